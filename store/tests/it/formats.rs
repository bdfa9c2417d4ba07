//! Compatibility tests: files that a release wrote in version 4 can be read, and this version
//! writes identical files.
//!
//! `STORE_WRITE_FIXTURES=1 cargo test -p store --test it formats` rewrites the fixtures. Use it
//! only for a new format version, with a new folder.

use std::path::PathBuf;
use std::sync::Arc;

use store::{Batch, RealDisk, SimDisk, Store, Tag, check};

use crate::basics::{LINEAGE, options, start};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v4")
}

/// Creates a data folder with all features of version 4: snapshot files, two log segments, a void
/// tail, a seal, records of several kinds.
fn written_today() -> SimDisk {
    let disk = SimDisk::new(1);
    let (store, mut log, _, _) = start(&disk, options(400)).unwrap();
    let record = |log: &mut store::Log, space: u32, kind: u8, payload: &[u8], time: u64| {
        let mut batch = Batch::new();
        batch.push(space, kind, payload);
        batch.push(0, 1, b"catalogue");
        log.append(&batch, time).unwrap();
    };
    for i in 0..6u8 {
        record(&mut log, 1, 2, &[i; 40], 1_700_000_000_000 + u64::from(i));
        log.sync().unwrap();
    }
    let mut snapshot = store.begin_snapshot(log.durable());
    for (low, high) in [(0, 999), (1000, u64::MAX)] {
        let mut file = snapshot.file(Tag { space: 300, kind: 2, low, high, stamp: 7 }).unwrap();
        file.write(b"a chunk of rows", 3).unwrap();
        file.write(&[0xa5; 200], 40).unwrap();
        let entry = file.finish().unwrap();
        snapshot.add(entry);
    }
    snapshot.commit(log.durable()).unwrap();
    record(&mut log, 1, 2, b"before a failed sync", 1_700_000_001_000);
    disk.set_faults(store::Faults { sync_error: 1024, ..store::Faults::default() });
    log.sync().unwrap_err();
    disk.set_faults(store::Faults::default());
    log.sync().unwrap();
    log.roll(1).unwrap();
    record(&mut log, u32::MAX, 255, b"", 1_700_000_002_000);
    log.seal(1_700_000_003_000).unwrap();
    store.record_durable(&log).unwrap();
    drop((store, log));
    disk.kill()
}

#[test]
fn what_is_written_today_equals_version_4() {
    let disk = written_today();
    let names: Vec<String> =
        disk.list_names().into_iter().filter(|n| n != "tidemark.lock").collect();
    if std::env::var_os("STORE_WRITE_FIXTURES").is_some() {
        std::fs::create_dir_all(folder()).unwrap();
        for name in &names {
            std::fs::write(folder().join(name), disk.contents(name).unwrap()).unwrap();
        }
    }
    let mut there: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    there.sort();
    assert_eq!(names, there);
    for name in &names {
        assert!(
            disk.contents(name).unwrap() == std::fs::read(folder().join(name)).unwrap(),
            "{name} differs from version 4"
        );
    }
}

#[test]
fn version_4_opens() {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let disk = Arc::new(RealDisk::open(copy.path()).unwrap());
    let report = check(&*disk).unwrap();
    assert!(report.severity() < store::Severity::Damage, "{:?}", report.findings);
    let store = Store::open(disk, options(400)).unwrap();
    assert_eq!(store.lineage(), LINEAGE);
    let rows = store
        .load(
            2,
            |file, chunk| {
                assert_eq!((file.tag.space, file.tag.kind, file.tag.stamp), (300, 2, 7));
                assert!(chunk == b"a chunk of rows" || chunk == [0xa5; 200]);
                Ok(())
            },
            |_| (),
        )
        .unwrap();
    assert_eq!(rows, 86);
    let mut records = Vec::new();
    let (log, end) = store
        .replay(
            |r| {
                records.push((r.space, r.kind, r.payload.to_vec()));
                Ok(())
            },
            |_| (),
        )
        .unwrap();
    let catalogue = (0, 1, b"catalogue".to_vec());
    let expected = [
        (1, 2, b"before a failed sync".to_vec()),
        catalogue.clone(),
        (u32::MAX, 255, Vec::new()),
        catalogue,
    ];
    assert_eq!(records, expected);
    assert_eq!((end.batches, end.torn_bytes, log.term()), (3, 0, 1));
}
