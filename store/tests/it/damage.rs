//! Tests of damaged and truncated files: the loaded state is an exact prefix, and damage is
//! reported with its location.
//!
//! A flipped bit in the log is always detected, and no wrong value is loaded. If a later batch was
//! written after the damaged bytes were durable, startup fails. Otherwise the damage is
//! indistinguishable from a torn write. The log is then truncated at that byte, and loses only
//! batches of the last sync. In a sealed log only the seal itself can be lost.

use std::collections::BTreeMap;

use store::{
    Error, Faults, Finding, MANIFEST_VERSION, Severity, SimDisk, StoreOptions, Tag, check, dump,
};

use crate::basics::{batch, open, options, start};

const NAME: &str = "log-0000000000000001.tlog";

fn payload(i: usize) -> Vec<u8> {
    vec![i as u8; 5 + i * 3 % 11]
}

/// Creates a log of `batches` batches with two records each in one segment. `sync` decides which
/// batches are synced. Returns the ends of the batches.
fn small_log(batches: usize, sync: impl Fn(usize) -> bool, seal: bool) -> (SimDisk, Vec<u64>) {
    let disk = SimDisk::new(1);
    let (_store, mut log, _, _) = start(&disk, options(1 << 20)).unwrap();
    let mut ends = vec![log.written().byte];
    for i in 0..batches {
        log.append(&batch(&[&payload(2 * i), &payload(2 * i + 1)]), i as u64).unwrap();
        ends.push(log.written().byte);
        if sync(i) {
            log.sync().unwrap();
        }
    }
    if seal {
        log.seal(99).unwrap();
    } else {
        log.sync().unwrap();
    }
    (disk.kill(), ends)
}

fn load(disk: &SimDisk) -> store::Result<Vec<Vec<u8>>> {
    start(disk, options(1 << 20)).map(|(_, _, _, records)| records)
}

fn prefix(batches: usize) -> Vec<Vec<u8>> {
    (0..2 * batches).map(payload).collect()
}

#[test]
fn log_cut_inside_its_last_batches_loads_whole_batches() {
    let (disk, ends) = small_log(8, |_| true, false);
    let whole = disk.contents(NAME).unwrap();
    for cut in ends[5]..=ends[8] {
        let disk = disk.fork(cut);
        disk.put(NAME, &whole[..cut as usize]);
        let batches = ends.iter().filter(|&&end| end <= cut).count() - 1;
        assert_eq!(load(&disk).unwrap(), prefix(batches), "cut at {cut}");
        // After another start, the log has the same prefix, followed by the new batch.
        let (_store, mut log, _, _) = start(&disk.kill(), options(1 << 20)).unwrap();
        log.append(&batch(&[b"after"]), 0).unwrap();
        log.sync().unwrap();
        let mut expected = prefix(batches);
        expected.push(b"after".to_vec());
        assert_eq!(load(&disk.power_cut()).unwrap(), expected, "cut at {cut}, then appended");
    }
}

/// Flips each bit of a log. `window` is the first batch that recovery may discard without an error.
fn each_bit(disk: &SimDisk, ends: &[u64], window: usize) {
    let whole = disk.contents(NAME).unwrap();
    let (mut refused, mut cut) = (0, 0);
    for bit in 0..whole.len() as u64 * 8 {
        let disk = disk.fork(bit);
        assert!(disk.flip_bit(NAME, bit));
        // 0 is the header, n is the n-th batch, and the number after the last batch is the seal.
        let hit = ends.iter().filter(|&&end| end <= bit / 8).count();
        match load(&disk) {
            Err(Error::Corrupt { path, offset, .. }) => {
                assert!(path.ends_with(NAME));
                let expected = if hit == 0 { 0 } else { ends[hit - 1] };
                assert!(
                    offset == expected || hit == 0,
                    "bit {bit}: named byte {offset}, not {expected}"
                );
                refused += 1;
            }
            Err(Error::Version { .. }) => assert!((64..96).contains(&bit), "bit {bit}"),
            Err(error) => panic!("bit {bit}: {error}"),
            Ok(records) => {
                assert!(hit > window, "bit {bit} in batch {hit} was durable and is missing");
                assert_eq!(records, prefix(hit - 1), "bit {bit}");
                cut += 1;
            }
        }
    }
    assert!(refused > 0 && cut > 0, "{refused} refused, {cut} cut");
}

#[test]
fn each_flipped_bit_of_a_synced_log_is_found() {
    // Each batch was synced before the next batch, so only the last batch may be lost.
    let (disk, ends) = small_log(6, |_| true, false);
    each_bit(&disk, &ends, 5);
}

#[test]
fn each_flipped_bit_of_a_sealed_log_is_refused_but_in_the_seal() {
    let (disk, ends) = small_log(6, |_| true, true);
    each_bit(&disk, &ends, 6);
}

#[test]
fn a_window_of_unsynced_batches_may_arrive_in_any_order() {
    // Batches 3, 4 and 5 share a sync window, so damage in batch 3 resembles a reordered write.
    let (disk, ends) = small_log(6, |i| i < 3, false);
    each_bit(&disk, &ends, 3);
}

#[test]
fn zeroed_swapped_and_old_sectors_are_found() {
    let (disk, ends) = small_log(120, |_| true, true);
    let whole = disk.contents(NAME).unwrap();
    let sectors = whole.len() / 512;
    assert!(sectors > 8);
    for a in 0..sectors {
        let mut images = Vec::new();
        let mut zeroed = whole.clone();
        zeroed[a * 512..a * 512 + 512].fill(0);
        images.push(zeroed);
        for b in 0..sectors {
            // Swap two sectors, and copy one over the other.
            let mut swapped = whole.clone();
            let (x, y) =
                (whole[a * 512..a * 512 + 512].to_vec(), whole[b * 512..b * 512 + 512].to_vec());
            swapped[a * 512..a * 512 + 512].copy_from_slice(&y);
            images.push(swapped.clone());
            swapped[b * 512..b * 512 + 512].copy_from_slice(&x);
            images.push(swapped);
        }
        for image in images.into_iter().filter(|image| *image != whole) {
            let disk = disk.fork(1);
            disk.put(NAME, &image);
            let hit = image.iter().zip(&whole).position(|(a, b)| a != b).unwrap() as u64;
            match load(&disk) {
                Err(Error::Corrupt { .. }) => {}
                Err(error) => panic!("{error}"),
                Ok(_) => assert!(hit >= ends[120], "byte {hit} was durable"),
            }
        }
    }
}

/// The log has batches of two branches of one lineage, for example because a newer file has partly
/// overwritten an old copy. Each batch is valid by itself. Only the chain values show the
/// discontinuity.
#[test]
fn batches_of_another_branch_are_found() {
    let branch = |word: &[u8]| {
        let disk = SimDisk::new(1);
        let (_store, mut log, _, _) = start(&disk, options(1 << 20)).unwrap();
        let mut ends = Vec::new();
        for i in 0..6u8 {
            log.append(&batch(&[word, &[i]]), 0).unwrap();
            log.sync().unwrap();
            ends.push(log.written().byte as usize);
        }
        (disk.contents(NAME).unwrap(), ends, disk.kill())
    };
    let ((one, ends, disk), (two, _, _)) = (branch(b"this"), branch(b"that"));
    for end in &ends[..5] {
        let disk = disk.fork(1);
        disk.put(NAME, &[&one[..*end], &two[*end..]].concat());
        match start(&disk, options(1 << 20)) {
            Err(Error::Corrupt { offset, what, .. }) => {
                assert_eq!(offset, *end as u64);
                assert!(what.contains("does not follow the one before it"), "{what}");
            }
            // The damaged batch is the last batch, so recovery treats it as a torn tail.
            Ok((_, _, _, records)) => assert!(*end == ends[4] && records.len() == 10),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Creates a log of several segments, for tests of missing, duplicate and foreign files.
fn many_segments(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let (_store, mut log, _, _) = start(&disk, options(200)).unwrap();
    for i in 0..40 {
        log.append(&batch(&[&payload(i)]), 0).unwrap();
        log.sync().unwrap();
    }
    log.seal(0).unwrap();
    assert!(log.written().segment >= 6);
    disk.kill()
}

fn segment(n: u64) -> String {
    store::segment_name(n)
}

fn refusal(disk: &SimDisk) -> String {
    match start(disk, options(200)) {
        Ok(_) => panic!("it started"),
        Err(error @ Error::Corrupt { .. }) => {
            assert!(!error.advice().is_empty());
            let report = check(&disk.kill()).unwrap();
            assert_eq!(report.severity(), Severity::Damage, "check finds the damage too");
            error.to_string()
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn missing_duplicate_swapped_or_foreign_segments_are_refused() {
    let disk = many_segments(1);
    disk.take(&segment(3));
    assert!(refusal(&disk).contains(
        "log-0000000000000003.tlog is damaged at byte 0: missing, but segment 4 continues it"
    ));

    let disk = many_segments(1);
    disk.take(&segment(1));
    assert!(refusal(&disk).contains("log-0000000000000001.tlog is damaged at byte 0: missing"));

    // No other segment shows that the newest segment is missing, but the manifest has the durable
    // offset.
    let disk = many_segments(1);
    let (store, log, _, _) = start(&disk, options(200)).unwrap();
    drop((store, log));
    let names = disk.list_names();
    let mut newest = names.iter().rev().filter(|n| n.starts_with("log-"));
    disk.take(newest.next().unwrap()); // empty
    disk.take(newest.next().unwrap()); // with batches
    assert!(refusal(&disk.kill()).contains("acknowledged writes are missing"));

    let disk = many_segments(1);
    disk.put(&segment(9999), &disk.contents(&segment(2)).unwrap());
    assert!(refusal(&disk).contains("its header has segment number 2"));

    let disk = many_segments(1);
    disk.put("log-3.tlog", &disk.contents(&segment(3)).unwrap());
    assert!(refusal(&disk).contains("invalid name of a segment"));

    let disk = many_segments(1);
    let (two, three) = (disk.contents(&segment(2)).unwrap(), disk.contents(&segment(3)).unwrap());
    disk.put(&segment(2), &three);
    disk.put(&segment(3), &two);
    assert!(refusal(&disk).contains("its header has segment number 2"));

    // Test a segment of another data set under a valid number.
    let disk = many_segments(1);
    let mut bytes = disk.contents(&segment(3)).unwrap();
    let head = store::SegmentHead::decode(&bytes).unwrap();
    bytes[..80]
        .copy_from_slice(&store::SegmentHead { lineage: store::Lineage([9; 16]), ..head }.encode());
    disk.put(&segment(3), &bytes);
    assert!(refusal(&disk).contains("files of two data sets"));

    // Test a segment that is too short or too long.
    let disk = many_segments(1);
    let bytes = disk.contents(&segment(2)).unwrap();
    disk.put(&segment(2), &bytes[..bytes.len() - 1]);
    assert!(refusal(&disk).contains("log-0000000000000002.tlog is damaged"));
    disk.put(&segment(2), &[&bytes[..], b"x"].concat());
    assert!(
        refusal(&disk.kill()).contains("extra bytes after the position where segment 3 continues")
    );

    // Test a missing and an empty manifest.
    let disk = many_segments(1);
    disk.take("tidemark.manifest");
    assert!(refusal(&disk).contains("this folder contained data"));
    disk.put("tidemark.manifest", b"");
    assert!(refusal(&disk.kill()).contains("tidemark.manifest is damaged"));
}

#[test]
fn log_shorter_than_the_durable_offset_is_refused() {
    let disk = SimDisk::new(4);
    let (store, mut log, _, _) = start(&disk, options(1 << 20)).unwrap();
    log.append(&batch(&[b"one"]), 0).unwrap();
    let begun = log.sync().unwrap();
    log.append(&batch(&[b"two"]), 0).unwrap();
    let durable = log.sync().unwrap();
    store.begin_snapshot(begun).commit(durable).unwrap();
    drop((store, log));
    let disk = disk.kill();
    let bytes = disk.contents(NAME).unwrap();
    disk.put(NAME, &bytes[..begun.byte as usize]);
    assert!(refusal(&disk).contains("acknowledged writes are missing"));
}

/// A log that ends before the replay position is damaged, regardless of the durable offset. Startup
/// and the check report the same file and offset.
#[test]
fn log_cut_below_replay_position_is_refused_with_offset() {
    let disk = SimDisk::new(4);
    let (store, mut log, _, _) = start(&disk, options(1 << 20)).unwrap();
    let header = log.written().byte;
    log.append(&batch(&[b"one"]), 0).unwrap();
    let begun = log.sync().unwrap();
    store.begin_snapshot(begun).commit(begun).unwrap();
    log.append(&batch(&[b"two"]), 0).unwrap();
    log.sync().unwrap();
    drop((store, log));
    let disk = disk.kill();
    let bytes = disk.contents(NAME).unwrap();
    for cut in 0..begun.byte {
        let disk = disk.fork(cut);
        disk.put(NAME, &bytes[..cut as usize]);
        let report = check(&disk).unwrap();
        assert_eq!(report.severity(), Severity::Damage, "cut at {cut}: {:?}", report.findings);
        let error = start(&disk, options(1 << 20)).err().unwrap();
        let Error::Corrupt { path, offset, what } = error else { panic!("cut at {cut}: {error}") };
        assert!(path.ends_with(NAME), "cut at {cut}: {path:?}");
        if cut >= header {
            assert_eq!(offset, cut, "{what}");
            assert!(what.contains("acknowledged writes are missing"), "{what}");
        }
        assert!(report.findings.iter().any(|f| f.text.contains(&what)), "{:?}", report.findings);
    }
    // A log truncated after the replay position has a torn tail.
    for cut in begun.byte..=bytes.len() as u64 {
        let disk = disk.fork(cut);
        disk.put(NAME, &bytes[..cut as usize]);
        assert!(check(&disk).unwrap().severity() < Severity::Damage, "cut at {cut}");
        start(&disk, options(1 << 20)).unwrap();
    }
}

#[test]
fn each_flipped_bit_of_a_snapshot_file_is_found() {
    let disk = SimDisk::new(1);
    let (store, log, _, _) = start(&disk, options(1000)).unwrap();
    let mut snapshot = store.begin_snapshot(log.durable());
    let mut file =
        snapshot.file(store::Tag { space: 3, kind: 1, low: 5, high: 9, stamp: 2 }).unwrap();
    file.write(b"the first chunk", 2).unwrap();
    file.write(b"and the second", 1).unwrap();
    let entry = file.finish().unwrap();
    let name = entry.name.clone();
    snapshot.add(entry);
    snapshot.commit(log.durable()).unwrap();
    drop((store, log));
    let disk = disk.kill();
    let whole = disk.contents(&name).unwrap();
    for bit in 0..whole.len() as u64 * 8 {
        let disk = disk.fork(bit);
        disk.flip_bit(&name, bit);
        match start(&disk, options(1000)) {
            Err(Error::Corrupt { path, .. } | Error::Version { path, .. }) => {
                assert!(path.ends_with(&name), "bit {bit}")
            }
            other => panic!("bit {bit}: {:?}", other.map(|_| ())),
        }
    }
    for cut in 0..whole.len() {
        let disk = disk.fork(cut as u64);
        disk.put(&name, &whole[..cut]);
        assert!(matches!(start(&disk, options(1000)), Err(Error::Corrupt { .. })), "cut at {cut}");
    }
    disk.take(&name);
    assert!(refusal(&disk).contains("missing, but listed in the manifest"));
}

#[test]
fn check_finds_a_sound_folder_good_and_dump_prints_every_file() {
    let disk = many_segments(2);
    disk.put("notes.txt", b"mine");
    let report = check(&disk).unwrap();
    let damage: Vec<&Finding> =
        report.findings.iter().filter(|f| f.severity > Severity::Good).collect();
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!(damage[0].file, "notes.txt");
    assert_eq!(report.records, 40);
    for name in
        disk.list_names().iter().filter(|n| n.ends_with(".tlog") || n.ends_with(".manifest"))
    {
        let mut text = Vec::new();
        dump(&disk, name, true, &mut text).unwrap();
        assert!(text.len() > 50, "{name}");
    }
    let mut text = Vec::new();
    dump(&disk, NAME, true, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("space 1 kind 7 8 bytes 0101010101010101"), "{text}");
    assert!(dump(&disk, "notes.txt", true, &mut Vec::new()).is_err());
}

/// A check continues after damage in the log or in the manifest, and reports each damaged file. The
/// check never syncs.
#[test]
fn check_goes_on_behind_damage_and_syncs_nothing() {
    let whole = many_segments(4);
    whole.set_faults(Faults { sync_error: 1024, ..Faults::default() });
    assert_eq!(check(&whole).unwrap().severity(), Severity::Good);
    let names: Vec<String> =
        whole.list_names().into_iter().filter(|n| n.ends_with(".tlog")).collect();
    assert!(names.len() > 5);
    let damaged = |disk: &SimDisk| -> Vec<String> {
        let report = check(disk).unwrap();
        report
            .findings
            .into_iter()
            .filter(|f| f.severity == Severity::Damage)
            .map(|f| f.text)
            .collect()
    };
    let disk = whole.fork(1);
    for name in [&names[1], &names[3]] {
        assert!(disk.flip_bit(name, 90 * 8));
    }
    for manifest_too in [false, true] {
        if manifest_too {
            assert!(disk.flip_bit("tidemark.manifest", 8 * 100));
        }
        let found = damaged(&disk);
        let about = |name: &str| found.iter().filter(|text| text.contains(name)).count();
        assert!(about(&names[1]) == 1 && about(&names[3]) == 1, "{found:?}");
        assert_eq!(about("tidemark.manifest"), usize::from(manifest_too), "{found:?}");
        assert_eq!(found.len(), 2 + usize::from(manifest_too), "{found:?}");
    }
}

/// After a crash between the commit of a full sync and its adoption, the next startup completes the
/// adoption, and a check inspects the new data set.
#[test]
fn a_pending_adoption_is_no_damage() {
    let disk = many_segments(2);
    let names = disk.list_names();
    for name in names.iter().filter(|n| n.ends_with(".tlog") || n.ends_with(".tsnap")) {
        let bytes = disk.contents(name).unwrap();
        disk.take(name);
        disk.put(&format!("staged-{name}"), &bytes);
    }
    let manifest = disk.contents("tidemark.manifest").unwrap();
    for marker in ["staged-next.manifest", "staged-now.manifest"] {
        let disk = disk.fork(3);
        disk.put(marker, &manifest);
        let report = check(&disk).unwrap();
        assert_eq!(report.severity(), Severity::Note, "{report:?}");
        assert_eq!(report.records, 40);
        let staged = names.iter().find(|n| n.ends_with(".tlog")).unwrap();
        assert!(disk.flip_bit(&format!("staged-{staged}"), 90 * 8));
        assert_eq!(check(&disk).unwrap().severity(), Severity::Damage);
        assert!(disk.flip_bit(&format!("staged-{staged}"), 90 * 8));
        start(&disk, options(1000)).unwrap();
    }
}

/// Chunks before the damage are printed.
#[test]
fn dump_prints_what_is_in_front_of_damage() {
    let disk = SimDisk::new(9);
    let (store, log, _, _) = start(&disk, options(1000)).unwrap();
    let mut writer = store.begin_snapshot(log.durable());
    let mut file = writer.file(Tag { space: 1, kind: 2, low: 0, high: 9, stamp: 1 }).unwrap();
    (0..3).for_each(|i| file.write(&[i; 500], 1).unwrap());
    let entry = file.finish().unwrap();
    writer.add(entry.clone());
    writer.commit(log.durable()).unwrap();
    assert!(disk.flip_bit(&entry.name, (entry.bytes - 200) * 8));
    let mut text = Vec::new();
    assert!(matches!(dump(&disk, &entry.name, false, &mut text), Err(Error::Corrupt { .. })));
    assert_eq!(String::from_utf8(text).unwrap().matches(" chunk, ").count(), 2);
}

/// Only replicas need segments before the replay position. A check reads these segments, but
/// startup does not.
#[test]
fn what_is_kept_for_replicas_is_checked_too() {
    flip_what_is_kept(200);
    // Test a single segment that contains the replay position.
    flip_what_is_kept(1 << 20);
}

fn flip_what_is_kept(segment_bytes: u64) {
    let disk = SimDisk::new(5);
    let options = StoreOptions { keep_log_bytes: 1 << 20, ..options(segment_bytes) };
    let (store, mut log, _, _) = start(&disk, options).unwrap();
    let mut append = |i| {
        log.append(&batch(&[&payload(i)]), 0).unwrap();
        log.sync().unwrap()
    };
    let replay = (0..20).map(&mut append).last().unwrap();
    store.begin_snapshot(replay).commit(replay).unwrap();
    (20..30).for_each(|i| _ = append(i));
    log.seal(0).unwrap();
    let disk = disk.kill();
    let report = check(&disk).unwrap();
    assert_eq!(report.severity(), Severity::Good, "{report:?}");
    let kept =
        report.findings.iter().filter(|f| f.text.starts_with("kept for replicas")).count() as u64;
    assert!(kept == replay.segment - 1 && replay.byte > 100, "{kept} segments, {replay}");
    for number in 1..=replay.segment {
        let name = segment(number);
        let bytes = if number == replay.segment {
            replay.byte
        } else {
            disk.contents(&name).unwrap().len() as u64
        };
        for bit in (number % 3..bytes * 8).step_by(3) {
            let disk = disk.fork(bit);
            assert!(disk.flip_bit(&name, bit));
            let report = check(&disk).unwrap();
            let found =
                report.findings.iter().any(|f| f.file == name && f.severity == Severity::Note);
            // Startup reads the header of the segment with the replay position.
            let refused = number == replay.segment && report.severity() == Severity::Damage;
            assert!(found || refused, "{name}, bit {bit}: {report:?}");
            assert_eq!(start(&disk, options).is_err(), refused, "{name}, bit {bit}");
        }
    }
}

/// Random bytes, and randomly changed files with valid checksums, may cause errors, but no panics
/// or endless loops.
#[test]
fn decoders_are_total() {
    let mut random = fastrand::Rng::with_seed(7);
    let disk = many_segments(3);
    let names: Vec<String> =
        disk.list_names().into_iter().filter(|n| n != "tidemark.lock").collect();
    let mut outcomes: BTreeMap<&str, u32> = BTreeMap::new();
    for round in 0..6000u64 {
        let disk = disk.fork(round);
        let name = &names[random.usize(..names.len())];
        let mut bytes = disk.contents(name).unwrap();
        match random.u32(0..4) {
            0 => bytes = (0..random.usize(..300)).map(|_| random.u8(..)).collect(),
            1 => bytes.truncate(random.usize(..bytes.len())),
            _ => {}
        }
        for _ in 0..random.u32(1..6) {
            if !bytes.is_empty() {
                let at = random.usize(..bytes.len());
                let value = [0, 1, 0x7f, 0x80, 0xff, random.u8(..)][random.usize(..6)];
                let n = random.usize(1..9).min(bytes.len() - at);
                bytes[at..at + n].fill(value);
            }
        }
        if name.ends_with(".tlog") && bytes.len() >= 80 {
            fix_segment(&mut bytes);
        } else if name.ends_with(".manifest") {
            fix_manifest(&mut bytes);
        }
        disk.put(name, &bytes);
        let outcome = match start(&disk, StoreOptions::default()) {
            Ok(_) => "started",
            Err(Error::Corrupt { .. }) => "corrupt",
            Err(Error::Version { .. }) => "version",
            Err(_) => "other",
        };
        *outcomes.entry(outcome).or_default() += 1;
        let disk = disk.kill();
        check(&disk).unwrap();
        for name in &names {
            let _ = dump(&disk, name, true, &mut Vec::new());
        }
    }
    assert!(outcomes["corrupt"] > 1000 && outcomes["started"] > 100, "{outcomes:?}");
}

/// Recomputes the checksums of a segment, to test the code that runs after the checksums match.
fn fix_segment(bytes: &mut [u8]) {
    let crc = |parts: &[&[u8]]| {
        parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part)).to_le_bytes()
    };
    let check = crc(&[&bytes[..76]]);
    bytes[76..80].copy_from_slice(&check);
    let lineage: [u8; 16] = bytes[16..32].try_into().unwrap();
    let number =
        |at: usize, bytes: &[u8]| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (segment, base) = (number(32, bytes), number(48, bytes));
    let mut at = 80;
    let mut previous: [u8; 4] = bytes[72..76].try_into().unwrap();
    while at + 40 <= bytes.len() {
        let n = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        if n > bytes.len() - at - 40 {
            break;
        }
        bytes[at + 28..at + 32].copy_from_slice(&previous);
        let offset = base.wrapping_add(at as u64 - 80);
        let chain = crc(&[
            &lineage,
            &segment.to_le_bytes(),
            &offset.to_le_bytes(),
            &bytes[at..at + 32],
            &bytes[at + 40..at + 40 + n],
        ]);
        bytes[at + 32..at + 36].copy_from_slice(&chain);
        let check = crc(&[
            &lineage,
            &segment.to_le_bytes(),
            &(at as u64).to_le_bytes(),
            &bytes[at..at + 36],
        ]);
        bytes[at + 36..at + 40].copy_from_slice(&check);
        previous = chain;
        at += 40 + n;
    }
}

fn fix_manifest(bytes: &mut Vec<u8>) {
    if let Some(at) = bytes.windows(7).rposition(|w| w == b"\ncheck ") {
        let check = crc32c::crc32c(&bytes[..=at]);
        bytes.truncate(at + 1);
        bytes.extend_from_slice(format!("check {check:08x}\n").as_bytes());
    }
}

#[test]
fn another_version_is_refused_and_left_alone() {
    let disk = many_segments(1);
    let last = segment(disk.list_names().iter().filter(|n| n.ends_with(".tlog")).count() as u64);
    let mut bytes = disk.contents(&last).unwrap();
    bytes[8] = 2;
    disk.put(&last, &bytes);
    assert!(matches!(
        open(&disk, options(200)).unwrap().replay(|_| Ok(()), |_| ()),
        Err(Error::Version { found: 2, .. })
    ));
    assert_eq!(disk.contents(&last).unwrap(), bytes);
    let disk = many_segments(1);
    let text = String::from_utf8(disk.contents("tidemark.manifest").unwrap()).unwrap();
    let open_version = |version: u32| {
        let now = format!("manifest {MANIFEST_VERSION}\n");
        let other = text.replace(&now, &format!("manifest {version}\n"));
        disk.put("tidemark.manifest", other.as_bytes());
        open(&disk, options(200)).err()
    };
    let (newer, older) = (MANIFEST_VERSION + 1, MANIFEST_VERSION - 1);
    assert!(matches!(open_version(newer), Some(Error::Version { found, .. }) if found == newer));
    assert!(matches!(open_version(older), Some(Error::OldVersion { found, .. }) if found == older));
}
