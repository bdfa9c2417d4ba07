//! Tests of cold files: each row can be read back with one read, damage is located, and a crash
//! leaves the old or the new state.

use std::sync::Arc;

use store::{
    Batch, ColdFile, Error, Faults, FileEntry, Severity, SimDisk, Store, StoreOptions, Tag, check,
    dump,
};

fn tag(low: u64, high: u64) -> Tag {
    Tag { space: 1, kind: 2, low, high, stamp: 0 }
}

fn open(disk: &SimDisk) -> Store {
    Store::open(Arc::new(disk.clone()), StoreOptions::default()).unwrap()
}

fn write(store: &Store, tag: Tag, rows: &[(u64, [i64; 4])]) -> FileEntry {
    let mut writer = store.begin_cold(tag, 4).unwrap();
    rows.iter().for_each(|(id, values)| writer.push(*id, values).unwrap());
    writer.finish().unwrap().unwrap()
}

/// Generates posts of a microblog with log-normal counts, as in the memory benchmark of the counter
/// engine.
fn posts(n: u64) -> Vec<(u64, [i64; 4])> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut count = |mean: f64, sigma: f64, share: f64| {
        if rng.f64() >= share {
            return 0;
        }
        let normal =
            (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (rng.f64() * std::f64::consts::TAU).cos();
        ((mean / share).ln() - sigma * sigma / 2.0 + sigma * normal).exp() as i64
    };
    (0..n)
        .map(|i| {
            let id = ((1_700_000_000 + i / 1000) << 22) | (i % 1000);
            (
                id,
                [
                    count(39.0, 2.0, 1.0),
                    count(8.0, 1.8, 1.0 / 3.0),
                    count(8.0, 1.8, 1.0 / 3.0),
                    count(2900.0, 1.6, 1.0),
                ],
            )
        })
        .collect()
}

#[test]
fn rows_are_found_by_one_read_and_nothing_else_is() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let rows = posts(100_000);
    let entry = write(&store, tag(0, u64::MAX), &rows);
    let per_row = entry.bytes as f64 / rows.len() as f64;
    assert!(per_row < 5.0, "{per_row} bytes per row");
    store.replace_files(vec![entry.clone()], &[], 0).unwrap();
    let file = store.open_cold(&entry).unwrap();
    assert!(file.memory_bytes() < 5_000, "{} bytes of memory", file.memory_bytes());
    let mut out = [0; 4];
    for (id, values) in &rows {
        assert!(file.get(*id, &mut out).unwrap());
        assert_eq!(out, *values);
        assert!(!file.get(id + 500_000, &mut out).unwrap());
    }
    for id in [0, rows[0].0 - 1, rows[rows.len() - 1].0 + 1, u64::MAX] {
        assert_eq!(file.block_of(id), None, "an id outside the file costs no read");
    }
    let (mut all, mut ids, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let file = Arc::new(file);
    let mut walk = file.rows();
    while walk.next(&mut ids, &mut values).unwrap() {
        all.extend(
            ids.iter().zip(values.chunks(4)).map(|(&id, v)| (id, <[i64; 4]>::try_from(v).unwrap())),
        );
    }
    assert!(all == rows);
    // Use the whole range of ids, and rows with fewer values than columns.
    let mut writer = store.begin_cold(tag(0, u64::MAX), 3).unwrap();
    writer.push(0, &[]).unwrap();
    writer.push(u64::MAX, &[i64::MIN, 5]).unwrap();
    let entry = writer.finish().unwrap().unwrap();
    let file = store.open_cold(&entry).unwrap();
    assert!(file.get(u64::MAX, &mut out[..3]).unwrap());
    assert_eq!(out[..3], [i64::MIN, 5, 0]);
    assert!(
        store.begin_cold(tag(0, 9), 4).unwrap().finish().unwrap().is_none(),
        "a file without rows is invalid"
    );
    drop(store);
    let store = open(&disk.kill());
    assert_eq!(
        store.cold_files().len(),
        1,
        "the second file was never in a manifest and is removed"
    );
    assert_eq!(disk.list_names().iter().filter(|n| n.starts_with("cold-")).count(), 1);
}

/// A cold file contains changes up to the manifest's durable offset. A log truncated before that
/// offset would leave rows that are newer than the replayed state.
#[test]
fn a_log_that_ends_before_what_a_cold_file_has_seen_is_refused() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let (mut log, _) = store.replay(|_| Ok(()), |_| ()).unwrap();
    let mut records = Batch::new();
    records.push(1, 2, b"a row");
    let begun = log.append(&records, 0).unwrap();
    log.append(&records, 0).unwrap();
    let durable = log.sync().unwrap();
    let entry = write(&store, tag(0, 9), &[(1, [1; 4])]);
    store.replace_files(vec![entry], &[], durable.offset).unwrap();
    assert_eq!(store.manifest().durable, durable.offset);
    drop((store, log));
    let disk = disk.kill();
    open(&disk.fork(1).kill()).replay(|_| Ok(()), |_| ()).unwrap();
    let name = "log-0000000000000001.tlog";
    let bytes = disk.contents(name).unwrap();
    disk.put(name, &bytes[..begun.byte as usize]);
    let report = check(&disk).unwrap();
    assert_eq!(report.severity(), Severity::Damage, "{:?}", report.findings);
    let error = open(&disk).replay(|_| Ok(()), |_| ()).err().unwrap().to_string();
    assert!(error.contains("acknowledged writes are missing"), "{error}");
}

#[test]
fn each_damaged_byte_is_found_by_a_check_and_never_served() {
    let disk = SimDisk::new(2);
    let store = open(&disk);
    let rows = posts(3_000);
    let entry = write(&store, tag(0, u64::MAX), &rows);
    store.replace_files(vec![entry.clone()], &[], 0).unwrap();
    let mut text = Vec::new();
    dump(&disk, &entry.name, true, &mut text).unwrap();
    assert!(String::from_utf8(text).unwrap().contains("3000 rows of 4 values"));
    assert!(
        check(&disk).unwrap().findings.iter().any(|f| f.text.starts_with("3000 rows of space 1"))
    );
    drop(store);
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 0..300 {
        let bytes = entry.bytes as usize;
        let at = if round < 130 { round } else { rng.usize(0..bytes) };
        let damaged = disk.fork(round as u64);
        assert!(damaged.flip_bit(&entry.name, at as u64 * 8 + rng.u64(0..8)));
        let report = check(&damaged).unwrap();
        assert!(
            report.findings.iter().any(|f| f.file == entry.name
                && (f.text.contains("damaged") || f.text.contains("has format version"))),
            "byte {at}"
        );
        let Ok(store) = Store::open(Arc::new(damaged.clone()), StoreOptions::default()) else {
            continue;
        };
        let mut out = [0; 4];
        match store.open_cold(&entry) {
            Err(Error::Corrupt { .. } | Error::Version { .. }) => {}
            Err(other) => panic!("byte {at}: {other}"),
            Ok(file) => {
                let mut refused = 0;
                for (id, values) in &rows {
                    match file.get(*id, &mut out) {
                        Ok(found) => assert!(found && out == *values, "byte {at}, id {id}"),
                        Err(Error::Corrupt { offset, .. }) => {
                            assert_eq!(offset as usize, at / 4096 * 4096);
                            refused += 1;
                        }
                        Err(other) => panic!("byte {at}: {other}"),
                    }
                }
                assert!(
                    refused > 0 && refused < rows.len(),
                    "byte {at}: a block affects only its own rows: {refused}"
                );
            }
        }
    }
}

#[test]
fn a_replaced_file_goes_with_its_last_reader() {
    let disk = SimDisk::new(4);
    let store = open(&disk);
    let first = write(&store, tag(0, 9), &[(1, [1; 4])]);
    store.replace_files(vec![first.clone()], &[], 0).unwrap();
    let old = Arc::new(store.open_cold(&first).unwrap());
    let reader = old.clone();
    let second = write(&store, tag(0, 9), &[(1, [2; 4])]);
    store.replace_files(vec![second.clone()], std::slice::from_ref(&first.name), 0).unwrap();
    old.pages().retire(store.disk().clone());
    drop(old);
    let mut out = [0; 4];
    assert!(reader.get(1, &mut out).unwrap() && out == [1; 4]);
    assert!(disk.list_names().contains(&first.name));
    drop(reader);
    assert!(!disk.list_names().contains(&first.name));
    assert!(disk.list_names().contains(&second.name));
}

/// Files are written, published and merged. After a crash at any step, all files in the manifest
/// are complete.
#[test]
fn a_crash_at_any_step_leaves_the_old_files_or_the_new_one() {
    let all = posts(2_000);
    let life = |disk: &SimDisk| -> store::Result<()> {
        let store = Store::open(Arc::new(disk.clone()), StoreOptions::default())?;
        let cut = all[1_000].0;
        let mut entries: Vec<FileEntry> = Vec::new();
        for (low, high, rows) in [(0, cut - 1, &all[..1000]), (cut, u64::MAX, &all[1000..])] {
            let mut writer = store.begin_cold(tag(low, high), 4)?;
            for (id, values) in rows {
                writer.push(*id, values)?;
            }
            let entry = writer.finish()?.unwrap();
            store.replace_files(vec![entry.clone()], &[], 0)?;
            entries.push(entry);
        }
        let mut writer = store.begin_cold(tag(0, u64::MAX), 4)?;
        for (id, values) in &all {
            writer.push(*id, values)?;
        }
        let merged = writer.finish()?.unwrap();
        let old: Vec<String> = entries.iter().map(|e| e.name.clone()).collect();
        let open: Vec<ColdFile> =
            entries.iter().map(|e| store.open_cold(e)).collect::<store::Result<_>>()?;
        store.replace_files(vec![merged], &old, 0)?;
        open.iter().for_each(|file| file.pages().retire(store.disk().clone()));
        Ok(())
    };
    let mut seen = std::collections::BTreeSet::new();
    for step in 0.. {
        let disk = SimDisk::new(step);
        disk.crash_after(Some(step));
        let finished = life(&disk).is_ok();
        let store = open(&disk.power_cut());
        let files = store.cold_files();
        let mut rows = 0;
        for entry in &files {
            let file = Arc::new(store.open_cold(entry).unwrap());
            rows += file.head().rows;
            let mut out = [0; 4];
            for (id, values) in
                all.iter().filter(|(id, _)| (entry.tag.low..=entry.tag.high).contains(id))
            {
                assert!(file.get(*id, &mut out).unwrap() && out == *values, "step {step}");
            }
        }
        seen.insert((files.len(), rows));
        let report = check(&**store.disk()).unwrap();
        assert!(
            report.findings.iter().all(|f| !f.text.contains("damaged")),
            "step {step}: {report:?}"
        );
        if finished {
            break;
        }
    }
    let all_states = [(0, 0), (1, 1000), (1, 2000), (2, 2000)];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all_states, "every state was reached");
}

/// Returns row `n` of the fixture. The values are small numbers, some large numbers, and the
/// extremes.
fn row_of_version_2(n: u64) -> (u64, [i64; 3]) {
    let large = if n.is_multiple_of(97) { i64::MAX - n as i64 } else { 0 };
    (
        if n == 1499 { u64::MAX } else { 5_000_000 + n * n * 3 },
        [n as i64 % 7 - 3, large, i64::from(n == 8) * i64::MIN],
    )
}

#[test]
fn rows_of_version_2_are_read_and_written() {
    let disk = SimDisk::new(1);
    let (store, ..) = crate::basics::start(&disk, crate::basics::options(1 << 20)).unwrap();
    let mut writer = store.begin_cold(tag(5_000_000, u64::MAX), 3).unwrap();
    (0..1500).map(row_of_version_2).for_each(|(id, values)| writer.push(id, &values).unwrap());
    let entry = writer.finish().unwrap().unwrap();
    crate::pages::compare_with_fixture(&disk, &entry, "rows.tcold");
    let file = store.open_cold(&entry).unwrap();
    let mut row = [0; 3];
    for (id, values) in (0..1500).map(row_of_version_2) {
        assert!(file.get(id, &mut row).unwrap());
        assert_eq!(row, values);
    }
    assert!(!file.get(5_000_001, &mut row).unwrap());
}

/// After a failed replacement either manifest may be on disk. Files of both must stay until a
/// replacement succeeds.
#[test]
fn files_stay_while_either_manifest_may_be_on_disk() {
    let (mut old_ones, mut new_ones) = (0, 0);
    for seed in 0..60 {
        let is_snapshot = seed % 2 == 0;
        let disk = SimDisk::new(seed);
        let store = open(&disk);
        let (log, _) = store.replay(|_| Ok(()), |_| ()).unwrap();
        let old = write(&store, tag(0, u64::MAX), &posts(10));
        store.replace_files(vec![old.clone()], &[], 0).unwrap();
        // Fail all syncs of the folder after the new manifest's file is synced, so that the failure
        // follows the rename.
        let fail = || {
            let faults = Faults { sync_dir_error: 1024, ..Faults::default() };
            let other = disk.clone();
            disk.set_sync_hook(move || other.set_faults(faults));
        };
        if is_snapshot {
            let mut snapshot = store.begin_snapshot(log.durable());
            let mut file = snapshot.file(tag(0, u64::MAX)).unwrap();
            file.write(b"rows", 1).unwrap();
            snapshot.add(file.finish().unwrap());
            fail();
            snapshot.commit(log.durable()).unwrap_err();
        } else {
            let new = write(&store, tag(0, u64::MAX), &posts(20));
            fail();
            store.replace_files(vec![new.clone()], std::slice::from_ref(&old.name), 0).unwrap_err();
            // Delete the new file, as the server does after a failed publication.
            store.discard(&[new]);
        }
        disk.set_sync_hook(|| ());
        disk.set_faults(Faults::default());
        store.trim().unwrap();
        drop((log, store));
        let left = disk.power_cut();
        let store = open(&left);
        let names = left.list_names();
        for file in store.manifest().files.clone() {
            assert!(
                names.contains(&file.name),
                "seed {seed}: {} is in the manifest but was removed",
                file.name
            );
            let is_new =
                if is_snapshot { file.name.ends_with(".tsnap") } else { file.name != old.name };
            new_ones += u64::from(is_new);
        }
        old_ones +=
            u64::from(!is_snapshot && store.cold_files().iter().any(|file| file.name == old.name));
    }
    assert!(
        old_ones > 5 && new_ones > 5,
        "{old_ones} starts found the old manifest, {new_ones} the new one"
    );
}

/// In files of rows and of pages, a scrub reports each damaged block individually and finds the
/// other blocks intact.
#[test]
fn a_scrub_names_each_damaged_block() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let rows = write(&store, tag(0, u64::MAX), &posts(100_000));
    let mut writer = store.begin_pages(tag(0, 9)).unwrap();
    (0..100).for_each(|page| writer.put(&[page; 4096]).unwrap());
    let pages = writer.finish(b"note").unwrap();
    for entry in [rows, pages] {
        store.replace_files(vec![entry.clone()], &[], 0).unwrap();
        let scrub = |disk: &SimDisk| {
            let store = open(disk);
            let (mut scrub, mut found) = (store.scrub(&entry).unwrap(), Vec::new());
            let mut bytes = 0;
            loop {
                match scrub.step(&mut found) {
                    0 => break,
                    n => bytes += n,
                }
            }
            assert_eq!(bytes, entry.bytes);
            found.iter().for_each(|damage| assert!(damage.error.to_string().contains(&entry.name)));
            found.iter().map(|damage| damage.offset).collect::<Vec<_>>()
        };
        assert_eq!(scrub(&disk.fork(0)), []);
        let damaged = disk.fork(1);
        for block in [1, 2, 40, 90] {
            assert!(damaged.flip_bit(&entry.name, block * 4096 * 8 + 77));
        }
        assert_eq!(scrub(&damaged), [1, 2, 40, 90].map(|block| block * 4096));
        let findings = check(&damaged).unwrap().findings;
        assert_eq!(findings.iter().filter(|f| f.severity == Severity::Damage).count(), 4);
        // The header changes after the scrub has opened the file.
        let mut scrub = store.scrub(&entry).unwrap();
        assert!(disk.flip_bit(&entry.name, 700 * 8));
        let mut found = Vec::new();
        while scrub.step(&mut found) > 0 {}
        assert_eq!(found.iter().map(|damage| damage.offset).collect::<Vec<_>>(), [0]);
        assert!(disk.flip_bit(&entry.name, 700 * 8));
    }
}
