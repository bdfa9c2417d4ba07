//! Basic tests: write, stop and restart.

use std::sync::Arc;

use store::{
    Batch, Disk, Error, Faults, Lineage, Log, LogOptions, RealDisk, Severity, SimDisk, Store,
    StoreOptions, Tag, check,
};

pub(crate) const LINEAGE: Lineage = Lineage(*b"a test's lineage");

pub(crate) fn options(segment_bytes: u64) -> StoreOptions {
    StoreOptions { log: LogOptions { segment_bytes, unsynced_bytes: 16384 }, keep_log_bytes: 0 }
}

pub(crate) fn open(disk: &SimDisk, options: StoreOptions) -> store::Result<Store> {
    Store::open_with(Arc::new(disk.clone()), options, || Ok(LINEAGE))
}

pub(crate) type Payloads = Vec<Vec<u8>>;

/// Opens and loads a store and replays its log. Returns the payloads of the snapshot's chunks and
/// of the log's records.
pub(crate) fn start(
    disk: &SimDisk,
    options: StoreOptions,
) -> store::Result<(Store, Log, Payloads, Payloads)> {
    let store = open(disk, options)?;
    let chunks = std::sync::Mutex::new(Vec::new());
    store.load(
        1,
        |_, chunk| {
            chunks.lock().unwrap().push(chunk.to_vec());
            Ok(())
        },
        |_| (),
    )?;
    let mut records = Vec::new();
    let (log, _) = store.replay(
        |r| {
            records.push(r.payload.to_vec());
            Ok(())
        },
        |_| (),
    )?;
    Ok((store, log, chunks.into_inner().unwrap(), records))
}

pub(crate) fn batch(payloads: &[&[u8]]) -> Batch {
    let mut batch = Batch::new();
    for payload in payloads {
        batch.push(1, 7, payload);
    }
    batch
}

/// The sync of the first segment failed, and the process was killed before it could remove the
/// file. The header is complete, but exists only in the page cache.
#[test]
fn a_log_does_not_go_on_behind_a_header_that_the_disk_never_got() {
    let name = "log-0000000000000001.tlog";
    let other = SimDisk::new(1);
    drop(start(&other, options(1 << 20)).unwrap());
    let header = other.contents(name).unwrap();

    let disk = SimDisk::new(2);
    drop(open(&disk, options(1 << 20)).unwrap());
    let file = disk.create(name).unwrap();
    assert_eq!(file.write_at(&header[..80], 0).unwrap(), 80);
    disk.set_faults(Faults { sync_error: 1024, ..Faults::default() });
    file.sync().unwrap_err();
    disk.set_faults(Faults::default());
    disk.sync_dir().unwrap();
    let disk = disk.kill();
    assert_eq!(disk.contents(name).unwrap()[..80], header[..80]);

    let (store, mut log, ..) = start(&disk, options(1 << 20)).unwrap();
    log.append(&batch(&[b"acknowledged"]), 1).unwrap();
    log.sync().unwrap();
    drop((store, log));
    let (.., records) = start(&disk.power_cut(), options(1 << 20)).unwrap();
    assert_eq!(records, [b"acknowledged".to_vec()]);
}

/// Timestamps are informational, so a clock jump has no other effect.
#[test]
fn a_clock_that_jumps_costs_nothing() {
    let disk = SimDisk::new(5);
    let mut told = Vec::new();
    // Each startup begins a segment, and full segments have successors between startups.
    for life in 0..3u8 {
        let (_, mut log, _, records) = start(&disk, options(256)).unwrap();
        assert_eq!(records, told);
        for (i, time_ms) in
            [1_700_000_000_000, 0, u64::MAX, 5, 1_700_000_000_000].into_iter().enumerate()
        {
            told.push(vec![life, i as u8]);
            log.append(&batch(&[&told[told.len() - 1]]), time_ms).unwrap();
        }
        log.seal(if life == 1 { u64::MAX } else { 0 }).unwrap();
    }
    let disk = disk.power_cut();
    let (.., records) = start(&disk, options(256)).unwrap();
    assert_eq!(records, told);
    assert!(check(&disk).unwrap().severity() < Severity::Damage);
}

#[test]
fn no_more_is_unsynced_than_was_said() {
    let disk = SimDisk::new(3);
    let (_, mut log, _, _) = start(&disk, options(1 << 20)).unwrap();
    for i in 0..100u8 {
        log.append(&batch(&[&[i; 1000]]), 1).unwrap();
        let unsynced = log.written().offset - log.durable().offset;
        assert!(unsynced <= 16384, "{unsynced} bytes after batch {i}");
    }
    assert!(log.stats().syncs >= 6, "only the loss window requires a sync");
}

#[test]
fn what_was_synced_is_there_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(folder.path().join("data")).unwrap());
    let mut expected = Vec::new();
    for round in 0..5u32 {
        let store = Store::open(disk.clone(), options(1000)).unwrap();
        assert_eq!(store.is_new(), round == 0);
        let mut records = Vec::new();
        let (mut log, end) = store
            .replay(
                |r| {
                    records.push(r.payload.to_vec());
                    Ok(())
                },
                |_| (),
            )
            .unwrap();
        assert_eq!(records, expected, "round {round}");
        assert_eq!(end.torn_bytes, 0);
        for i in 0..50u32 {
            let payload = format!("round {round} record {i}").into_bytes();
            log.append(&batch(&[&payload]), 1000).unwrap();
            expected.push(payload);
        }
        log.seal(1000).unwrap();
    }
}

#[test]
fn a_second_process_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let disk = || Arc::new(RealDisk::open(folder.path()).unwrap());
    let first = Store::open(disk(), StoreOptions::default()).unwrap();
    assert!(matches!(Store::open(disk(), StoreOptions::default()), Err(Error::Locked { .. })));
    drop(first);
    Store::open(disk(), StoreOptions::default()).unwrap();
}

#[test]
fn snapshot_replaces_earlier_log_and_reuses_unchanged_tables() {
    let disk = SimDisk::new(1);
    let (store, mut log, _, _) = start(&disk, options(300)).unwrap();
    for i in 0..20u8 {
        log.append(&batch(&[&[i; 30]]), 0).unwrap();
    }
    let durable = log.sync().unwrap();
    let old = Tag { space: 1, kind: 1, low: 0, high: 9, stamp: 5 };
    let new = Tag { space: 1, kind: 1, low: 10, high: 99, stamp: 1 };
    let mut snapshot = store.begin_snapshot(log.durable());
    for tag in [old, new] {
        let mut file = snapshot.file(tag).unwrap();
        file.write(b"chunk one", 3).unwrap();
        file.write(format!("chunk two of {}", tag.low).as_bytes(), 2).unwrap();
        let entry = file.finish().unwrap();
        snapshot.add(entry);
    }
    snapshot.commit(durable).unwrap();
    assert!(
        disk.list().unwrap().iter().filter(|n| n.starts_with("log-")).count() <= 2,
        "{:?}",
        disk.list()
    );

    log.append(&batch(&[b"after"]), 0).unwrap();
    let durable = log.sync().unwrap();
    let mut snapshot = store.begin_snapshot(durable);
    assert_eq!(snapshot.carry_over(&old), 1);
    assert_eq!(snapshot.carry_over(&Tag { stamp: 2, ..new }), 0);
    let mut file = snapshot.file(Tag { stamp: 2, ..new }).unwrap();
    file.write(b"rewritten", 1).unwrap();
    let entry = file.finish().unwrap();
    snapshot.add(entry);
    snapshot.commit(durable).unwrap();
    drop((store, log));

    let (store, _, mut chunks, records) = start(&disk.power_cut(), options(300)).unwrap();
    chunks.sort();
    assert_eq!(chunks, [b"chunk one".to_vec(), b"chunk two of 0".to_vec(), b"rewritten".to_vec()]);
    assert_eq!(records, Vec::<Vec<u8>>::new());
    assert_eq!(store.manifest().files.len(), 2);
    assert!(disk.list().is_err(), "the old handle is closed");
}

#[test]
fn a_full_disk_can_be_started_from_and_read() {
    let disk = SimDisk::new(1);
    let (store, mut log, _, _) = start(&disk, options(1000)).unwrap();
    log.append(&batch(&[b"before"]), 0).unwrap();
    log.sync().unwrap();
    drop((store, log));
    let disk = disk.kill();
    disk.set_capacity(Some(0));
    let (_store, mut log, _, records) = start(&disk, options(1000)).unwrap();
    assert_eq!(records, [b"before".to_vec()]);
    assert!(matches!(log.append(&batch(&[b"refused"]), 0), Err(Error::Full { .. })));
    disk.set_capacity(None);
    log.append(&batch(&[b"after"]), 0).unwrap();
    log.sync().unwrap();
    let (_, _, _, records) = start(&disk.power_cut(), options(1000)).unwrap();
    assert_eq!(records, [b"before".to_vec(), b"after".to_vec()]);
}

#[test]
fn a_snapshot_that_would_replay_from_a_void_place_is_refused() {
    let disk = SimDisk::new(1);
    let (store, mut log, _, _) = start(&disk, options(1000)).unwrap();
    log.append(&batch(&[b"one"]), 0).unwrap();
    log.sync().unwrap();
    log.append(&batch(&[b"two"]), 0).unwrap();
    let written = store.begin_snapshot(log.written());
    let durable = store.begin_snapshot(log.durable());
    disk.set_faults(Faults { sync_error: 1024, ..Faults::default() });
    log.sync().unwrap_err();
    disk.set_faults(Faults::default());
    let end = log.sync().unwrap();
    assert!(matches!(written.commit(end), Err(Error::Refused(_))));
    durable.commit(end).unwrap();
    drop((store, log));
    let (_, _, _, records) = start(&disk.power_cut(), options(1000)).unwrap();
    assert_eq!(records, [b"two".to_vec()]);
}
