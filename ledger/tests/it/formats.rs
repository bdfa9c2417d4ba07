//! Compatibility with runs of version 1.

use crate::model::{KIND, SPACE, open};
use ledger::{Ledger, Member, Options, OwnedMember, Pair, RunWriter};
use std::collections::BTreeMap;
use store::{FileEntry, SimDisk, Store, Tag};

/// Returns set and unset pairs with numbers and strings. Some ids have few members, others many.
fn pairs() -> BTreeMap<(u64, OwnedMember), bool> {
    let mut pairs = BTreeMap::new();
    for n in 0..5000u64 {
        let number = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (id, number) = if n % 3 == 0 { (77, number >> 40) } else { (n / 30 * 4194, number) };
        pairs.insert((id, OwnedMember::Number(number)), n % 11 > 0);
        if n % 5 == 0 {
            let string = format!("user:{n:05}").into_bytes();
            pairs.insert((id, OwnedMember::Bytes(string.into())), true);
        }
    }
    pairs.insert((u64::MAX, OwnedMember::Number(u64::MAX)), true);
    pairs.insert((u64::MAX, OwnedMember::Bytes(Box::new([]))), false);
    pairs
}

fn write(store: &Store, is_lowest: bool) -> FileEntry {
    let tag = Tag { space: SPACE, kind: KIND, low: 0, high: u64::MAX, stamp: 0 };
    let mut writer = RunWriter::begin(store, tag, is_lowest).unwrap();
    for ((id, member), set) in pairs() {
        // The lowest run has no unset pairs.
        if set || !is_lowest {
            writer.push(Pair { id, member: member.as_member(), set }).unwrap();
        }
    }
    writer.finish().unwrap().unwrap()
}

/// Set `LEDGER_WRITE_FIXTURES=1` to write the files. Do this only for a new format version.
#[test]
fn version_1_is_read_and_written() {
    let fixtures = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    for is_lowest in [true, false] {
        let disk = SimDisk::new(1);
        let store = open(&disk);
        let entry = write(&store, is_lowest);
        let today = disk.contents(&entry.name).unwrap();
        let kept = fixtures.join(if is_lowest { "lowest.tcold" } else { "upper.tcold" });
        if std::env::var_os("LEDGER_WRITE_FIXTURES").is_some() {
            std::fs::create_dir_all(&fixtures).unwrap();
            std::fs::write(&kept, &today).unwrap();
        }
        let kept = std::fs::read(kept).unwrap();
        assert!(today == kept, "the encoding differs from version 1");
        disk.take(&entry.name);
        disk.put(&entry.name, &kept);
        store.replace_files(vec![entry], &[], 0).unwrap();
        let ledger = Ledger::open(&store, SPACE, KIND, Options::default()).unwrap();
        for ((id, member), set) in pairs() {
            assert_eq!(ledger.contains(id, member.as_member()).unwrap(), set, "{id} {member:?}");
        }
        assert!(!ledger.contains(78, Member::Number(1)).unwrap());
    }
}
