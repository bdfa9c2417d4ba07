//! Fuzz target that opens damaged or malicious runs, and a deterministic test with seeded random
//! input.
//!
//! Checksums would reject nearly all damage, so the target recomputes them. No call may panic or
//! hang, and undamaged runs must return the written pairs.

use crate::ledger::{Ledger, Options};
use crate::pair::{Member, OwnedMember, Pair};
use crate::rewrite::Flush;
use crate::run::RunWriter;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{BLOCK_BYTES, FileEntry, Lineage, SimDisk, Store, StoreOptions, Tag};

const TAG: Tag = Tag { space: 1, kind: 2, low: 0, high: u64::MAX, stamp: 0 };
const NUMBERS: [u64; 8] = [0, 1, 63, 1 << 20, 1 << 40, 1 << 63, u64::MAX - 1, u64::MAX];

/// Fuzzer input, read byte by byte. Bytes after the end are 0.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Returns true with a probability of 1/`of`; false after the end of the input.
    fn rarely(&mut self, of: u8) -> bool {
        !self.0.is_empty() && self.byte() % of == of - 1
    }

    fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..200 => small.into(),
            other => NUMBERS[usize::from(other) % NUMBERS.len()],
        }
    }

    /// Flips some bits. Returns whether the bytes changed.
    fn damage(&mut self, bytes: &mut [u8]) -> bool {
        let before = bytes.to_vec();
        while self.rarely(8) && !bytes.is_empty() {
            let at = usize::from(self.byte()) << (self.byte() % 5);
            bytes[at % before.len()] ^= 1 << (self.byte() % 8);
        }
        bytes != before
    }
}

type Written = BTreeMap<(u64, OwnedMember), bool>;

fn pairs(input: &mut Input<'_>) -> Written {
    let (mut pairs, mut id) = (Written::new(), 0u64);
    for _ in 0..=input.byte() % 8 {
        id = id.wrapping_add(input.number());
        let (step, kind, mut number) = (input.number(), input.byte(), input.number());
        for n in 0..u64::from(input.byte()) * 16 {
            number = number.wrapping_add(step.max(1));
            let member = match kind % 4 {
                0 => OwnedMember::Bytes(vec![number as u8; n as usize % 40].into()),
                1 => OwnedMember::Bytes(format!("user:{number}").into_bytes().into()),
                _ => OwnedMember::Number(number),
            };
            pairs.insert((id, member), kind < 128 || n % 3 > 0);
        }
    }
    pairs
}

fn write(store: &Store, pairs: &Written, is_lowest: bool) -> store::Result<Option<FileEntry>> {
    let mut writer = RunWriter::begin(store, TAG, is_lowest)?;
    for ((id, member), &set) in pairs {
        writer.push(Pair { id: *id, member: member.as_member(), set })?;
    }
    writer.finish()
}

/// Changes some bytes of the file and recomputes the checksums. Returns whether any byte changed.
fn spoil(
    input: &mut Input<'_>,
    store: &Store,
    entry: &FileEntry,
) -> store::Result<(FileEntry, bool)> {
    let (file, mut note) = store.open_pages(entry)?;
    let mut writer = store.begin_pages(TAG)?;
    let (mut page, mut spoiled) = ([0; BLOCK_BYTES], false);
    for number in 0..file.pages() {
        file.read(number, &mut page)?;
        spoiled |= input.damage(&mut page);
        writer.put(&page)?;
    }
    spoiled |= input.damage(&mut note);
    if input.rarely(16) {
        note.truncate(usize::from(input.byte()) * 4);
        spoiled = true;
    }
    Ok((writer.finish(&note)?, spoiled))
}

/// Opens a run with damaged contents and valid checksums. Then looks up, lists and merges its
/// pairs.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let options = || Ok(Lineage([7; 16]));
    let disk = Arc::new(SimDisk::new(1));
    let store = Store::open_with(disk, StoreOptions::default(), options);
    let store = store.expect("this disk has no faults");
    let pairs = pairs(&mut input);
    let is_lowest = input.byte() % 2 == 0;
    let entry = write(&store, &pairs, is_lowest).expect("this disk has no faults");
    let Some(entry) = entry else { return };
    let (entry, spoiled) = spoil(&mut input, &store, &entry).expect("a sound file");
    store.replace_files(vec![entry], &[], 0).expect("this disk has no faults");
    let Ok(ledger) = Ledger::open(&store, TAG.space, TAG.kind, Options::default()) else {
        assert!(spoiled, "a written file can be opened");
        return;
    };
    for ((id, member), &set) in pairs.iter().step_by(1 + pairs.len() / 64) {
        let there = ledger.contains(*id, member.as_member());
        assert!(spoiled || there.is_ok_and(|there| there == set), "{id} {member:?}");
    }
    for id in NUMBERS {
        for member in [Member::Number(id), Member::Bytes(&[0; 200][..id as usize % 200])] {
            let there = ledger.contains(id, member);
            let expected = pairs.get(&(id, member.to_owned())).copied().unwrap_or(false);
            assert!(spoiled || there.is_ok_and(|there| there == expected), "{id} {member:?}");
        }
    }
    let list = ledger.list((0, u64::MAX), None, usize::MAX);
    if !spoiled {
        let list = list.expect("a sound file");
        let set = pairs.iter().filter(|&(_, &set)| set).map(|(pair, _)| pair);
        assert!(list.iter().map(|pair| (pair.id, pair.member.to_owned())).eq(set.cloned()));
    }
    ledger.set(5, Member::Number(5), true);
    let flushed = ledger.flush(&store, Flush::All, 0, || Ok(0));
    assert!(spoiled || flushed.is_ok());
    if flushed.is_ok() {
        assert!(ledger.contains(5, Member::Number(5)).is_ok_and(|set| set) || spoiled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_rounds_of_runs() {
        for seed in 0..1_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let input: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..)).collect();
            let outcome = std::panic::catch_unwind(|| run(&input));
            assert!(outcome.is_ok(), "seed {seed}: {input:?}");
        }
    }
}
