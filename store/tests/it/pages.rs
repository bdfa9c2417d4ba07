//! Tests of page files: one verified read per page, atomic replacement, and a stable format version
//! 2.

use std::sync::Arc;

use store::{BLOCK_BYTES, Error, FileEntry, SimDisk, Store, StoreOptions, Tag, check, dump};

const TAG: Tag = Tag { space: 2, kind: 5, low: 10, high: 900, stamp: 0 };
const NOTE: &[u8] = b"what the server must know of them";

fn open(disk: &SimDisk) -> Store {
    Store::open(Arc::new(disk.clone()), StoreOptions::default()).unwrap()
}

/// Returns a page that uses every byte.
fn page(seed: u64, number: u64) -> [u8; BLOCK_BYTES] {
    std::array::from_fn(|at| (seed * 31 + number * 7 + at as u64 * at as u64 % 251) as u8)
}

fn write(store: &Store, seed: u64, pages: u64) -> store::Result<FileEntry> {
    let mut writer = store.begin_pages(TAG)?;
    for number in 0..pages {
        writer.put(&page(seed, number))?;
    }
    assert!(writer.bytes() > pages * 4096);
    writer.finish(NOTE)
}

#[test]
fn pages_are_read_as_they_were_written() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let entry = write(&store, 1, 100).unwrap();
    assert_eq!(entry.bytes, 101 * 4096 + 400 + NOTE.len() as u64);
    store.replace_files(vec![entry.clone()], &[], 0).unwrap();
    let (file, note) = store.open_pages(&entry).unwrap();
    assert_eq!((note.as_slice(), file.pages(), file.entry()), (NOTE, 100, &entry));
    assert!(file.memory_bytes() < 1200, "four bytes a page: {}", file.memory_bytes());
    let mut read = [0; BLOCK_BYTES];
    for number in (0..100).rev() {
        file.read(number, &mut read).unwrap();
        assert_eq!(read, page(1, number));
    }
    assert!(matches!(file.read(100, &mut read), Err(Error::Corrupt { .. })));
    let mut text = Vec::new();
    dump(&disk, &entry.name, true, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("100 pages") && text.contains("byte 409600 page 99"), "{}", &text[..200]);
    assert!(
        check(&disk)
            .unwrap()
            .findings
            .iter()
            .any(|f| f.text == "100 pages of space 2 kind 5, ids 10 to 900")
    );
    // Test a manifest with another tag, and a file under another name.
    let other = FileEntry { tag: Tag { high: 901, ..TAG }, ..entry.clone() };
    assert!(matches!(store.open_pages(&other), Err(Error::Corrupt { .. })));
    disk.put("cold-0000000099-000001.tcold", &disk.contents(&entry.name).unwrap());
    let renamed = FileEntry { name: "cold-0000000099-000001.tcold".to_owned(), ..entry.clone() };
    assert!(store.open_pages(&renamed).unwrap_err().to_string().contains("another name"));
    assert!(store.open_cold(&entry).is_err(), "it has no rows");
}

#[test]
fn each_damaged_byte_is_found_by_a_check_and_never_served() {
    let disk = SimDisk::new(2);
    let store = open(&disk);
    let entry = write(&store, 2, 5).unwrap();
    store.replace_files(vec![entry.clone()], &[], 0).unwrap();
    drop(store);
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 0..300 {
        let at = match round {
            0..130 => round,
            130..190 => entry.bytes - 1 - (round - 130),
            _ => rng.u64(0..entry.bytes),
        };
        let damaged = disk.fork(round);
        assert!(damaged.flip_bit(&entry.name, at * 8 + rng.u64(0..8)));
        let report = check(&damaged).unwrap();
        let named = |text: &str| text.contains("damaged") || text.contains("has format version");
        assert!(
            report.findings.iter().any(|f| f.file == entry.name && named(&f.text)),
            "byte {at}: {report:?}"
        );
        let Ok(store) = Store::open(Arc::new(damaged.clone()), StoreOptions::default()) else {
            continue;
        };
        match store.open_pages(&entry) {
            Err(Error::Corrupt { .. } | Error::Version { .. }) => {
                assert!(!(4096..6 * 4096).contains(&at), "byte {at}")
            }
            Err(other) => panic!("byte {at}: {other}"),
            Ok((file, _)) => {
                let mut read = [0; BLOCK_BYTES];
                let bad: Vec<u64> = (0..5).filter(|&n| file.read(n, &mut read).is_err()).collect();
                assert_eq!(bad, [at / 4096 - 1], "byte {at}: a page affects only itself");
            }
        }
    }
}

/// A file is published, then replaced. After a crash at any step, the file in the manifest is
/// complete. A full disk leaves no files.
#[test]
fn a_crash_at_any_step_leaves_the_old_file_or_the_new_one() {
    let life = |disk: &SimDisk| -> store::Result<()> {
        let store = Store::open(Arc::new(disk.clone()), StoreOptions::default())?;
        let old = write(&store, 1, 20)?;
        store.replace_files(vec![old.clone()], &[], 0)?;
        let (reader, _) = store.open_pages(&old)?;
        let new = write(&store, 2, 30)?;
        store.replace_files(vec![new], std::slice::from_ref(&old.name), 0)?;
        reader.retire(store.disk().clone());
        Ok(())
    };
    let mut seen = std::collections::BTreeSet::new();
    for step in 0.. {
        let disk = SimDisk::new(step);
        disk.crash_after(Some(step));
        let finished = life(&disk).is_ok();
        let store = open(&disk.power_cut());
        let files = store.cold_files();
        assert!(files.len() <= 1);
        for entry in &files {
            let (file, note) = store.open_pages(entry).unwrap();
            let mut read = [0; BLOCK_BYTES];
            for number in 0..file.pages() {
                file.read(number, &mut read).unwrap();
                assert_eq!(
                    read,
                    page(if file.pages() == 20 { 1 } else { 2 }, number),
                    "step {step}"
                );
            }
            assert_eq!(note, NOTE);
            seen.insert(file.pages());
        }
        assert!(
            check(&**store.disk()).unwrap().findings.iter().all(|f| !f.text.contains("damaged")),
            "step {step}"
        );
        if finished {
            break;
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [20, 30], "both cases occurred");

    let disk = SimDisk::new(1);
    let store = open(&disk);
    disk.set_capacity(Some(disk.used_bytes() + 50_000));
    assert!(matches!(write(&store, 1, 20), Err(Error::Full { .. })));
    assert!(
        disk.list_names().iter().all(|name| !name.contains(".tcold")),
        "{:?}",
        disk.list_names()
    );
}

/// Compares a file with its fixture, and replaces it with the fixture. `STORE_WRITE_FIXTURES=1`
/// rewrites the fixture; use it only for a new format version.
pub(crate) fn compare_with_fixture(disk: &SimDisk, entry: &FileEntry, name: &str) {
    let folder =
        std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/cold-v2");
    let today = disk.contents(&entry.name).unwrap();
    if std::env::var_os("STORE_WRITE_FIXTURES").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), &today).unwrap();
    }
    let kept = std::fs::read(folder.join(name)).unwrap();
    assert!(today == kept, "the encoding differs from version 2");
    disk.take(&entry.name);
    disk.put(&entry.name, &kept);
}

#[test]
fn pages_of_version_2_are_read_and_written() {
    let disk = SimDisk::new(1);
    let (store, ..) = crate::basics::start(&disk, crate::basics::options(1 << 20)).unwrap();
    let entry = write(&store, 9, 3).unwrap();
    compare_with_fixture(&disk, &entry, "pages.tcold");
    let (file, note) = store.open_pages(&entry).unwrap();
    let mut read = [0; BLOCK_BYTES];
    file.read(2, &mut read).unwrap();
    assert!(read == page(9, 2) && note == NOTE);
}
