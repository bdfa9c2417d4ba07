//! Fuzz targets for all file formats of the store, and a deterministic test of them with seeded
//! input. The inputs simulate a bad disk or an untrusted backup.
//!
//! The targets damage the data before they compute the checksums. Otherwise the checksums would
//! reject nearly all inputs, and the code that runs after the verification would remain untested.
//! Every function must return without a panic, and undamaged data must read back unchanged.

use std::sync::Arc;

use crate::batch::{BatchHead, BatchLocation, Lineage, put_batch};
use crate::check::{check, dump};
use crate::cold::{
    BLOCK_BYTES, ColdFile, ColdWriter, MAX_COLUMNS, PageFile, PageWriter, cold_name,
};
use crate::disk::Disk;
use crate::error::Result;
use crate::frame::{Check, frame_head};
use crate::log::Position;
use crate::manifest::{MANIFEST, Manifest, Tag};
use crate::record::Records;
use crate::segment::{SEGMENT_HEAD_BYTES, SegmentHead, segment_name};
use crate::sim::SimDisk;
use crate::snapshot::{SnapshotReader, snapshot_name};
use crate::store::{Store, StoreOptions};
use crate::tail::{Step, Tail};

const LINEAGE: Lineage = Lineage([7; 16]);
const NUMBERS: [u64; 12] = [
    0,
    1,
    2,
    79,
    80,
    4096,
    u32::MAX as u64,
    1 << 32,
    1 << 63,
    u64::MAX - 80,
    u64::MAX - 1,
    u64::MAX,
];

/// Fuzz input, from which a target draws its decisions. Returns 0 after the input is exhausted.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Returns true with a probability of about 1/`of`. Returns false after the input is exhausted.
    fn rarely(&mut self, of: u8) -> bool {
        !self.0.is_empty() && self.byte() % of == of - 1
    }

    /// Returns a number other than `was` with a probability of 1/16, otherwise `was`.
    fn number(&mut self, was: u64) -> u64 {
        if !self.rarely(16) {
            return was;
        }
        match self.byte() {
            near @ 0..64 => was.wrapping_add(u64::from(near)).wrapping_sub(32),
            other => NUMBERS[usize::from(other) % NUMBERS.len()],
        }
    }

    fn bytes(&mut self) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(usize::from(self.byte()).min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// Batches of a log: sequence number and body.
type Read = Vec<(u64, Vec<u8>)>;

/// Tests a log with valid checksums and otherwise arbitrary contents. Runs recovery twice, because
/// the result of the first run must be valid. Then runs a [`Tail`], `check` and `dump`.
// Long: the checks at the end depend on every choice made while the log is written.
pub fn log(input: &[u8]) {
    let mut input = Input(input);
    let disk = SimDisk::new(1);
    let (mut at, mut written, mut sound) = (Position::START, Read::new(), true);
    let segments = 1 + u64::from(input.byte() % 3);
    for segment in 1..=segments {
        let expected = SegmentHead {
            void: false,
            lineage: LINEAGE,
            segment,
            previous: segment - 1,
            base: at.offset,
            sequence: at.sequence,
            term: 0,
            chain: at.chain,
        };
        let head = SegmentHead {
            void: input.rarely(16),
            segment: input.number(segment),
            previous: input.number(segment - 1),
            base: input.number(at.offset),
            sequence: input.number(at.sequence),
            term: input.number(0),
            ..expected
        };
        sound &= head == expected;
        let mut file = head.encode().to_vec();
        (at.segment, at.byte, at.offset, at.sequence) =
            (head.segment, SEGMENT_HEAD_BYTES, head.base, head.sequence);
        for _ in 0..input.byte() % 5 {
            if input.rarely(16) {
                // Append garbage. At the end of the log, garbage is a torn tail.
                file.extend_from_slice(input.bytes());
                (at.byte, sound) = (file.len() as u64, false);
                continue;
            }
            let body = input.bytes();
            let sequence = at.sequence.wrapping_add(1);
            let place = BatchLocation {
                lineage: LINEAGE,
                segment: head.segment,
                byte: at.byte,
                offset: at.offset,
            };
            let named = BatchHead {
                body_bytes: 0,
                records: input.number(Records::new(body).count() as u64) as u32,
                sequence: input.number(sequence),
                time_ms: input.number(1_000),
                unsynced_bytes: input.number(0) as u32,
                previous: input.number(u64::from(at.chain)) as u32,
                chain: 0,
            };
            sound &= (named.sequence, named.previous) == (sequence, at.chain);
            at.chain = put_batch(&mut file, &place, &named, body);
            at.sequence = named.sequence;
            at.offset = at.offset.wrapping_add(file.len() as u64 - at.byte);
            at.byte = file.len() as u64;
            written.push((named.sequence, body.to_vec()));
        }
        disk.put(&segment_name(segment), &file);
    }
    let mut manifest = Manifest::new(LINEAGE);
    manifest.durable = input.number(0);
    manifest.replay.segment = input.number(1).max(1);
    sound &= manifest == Manifest::new(LINEAGE);
    disk.put(MANIFEST, manifest.encode().as_bytes());
    inspect(&disk);
    let first = recover(disk.clone());
    if sound {
        assert_eq!(first.as_ref().map(|(read, _)| read).ok(), Some(&written), "{first:?}");
    }
    let Ok((read, end)) = first else { return };
    let (again, _) = recover(disk.kill()).expect("recovery leaves a complete log");
    assert_eq!(again, read, "a second recovery succeeds");
    let disk: Arc<dyn Disk> = Arc::new(disk.kill());
    let Ok(Ok(mut tail)) = Tail::find(&disk, manifest.replay, end) else { return };
    let mut fed = Read::new();
    while let Ok(step) = tail.next(end) {
        match step {
            Step::Batch(head, frame) => {
                fed.push((head.sequence, frame[frame.len() - head.body_bytes as usize..].to_vec()))
            }
            Step::Segment(_) => {}
            Step::End => {
                assert_eq!(fed, read, "a replica accepts valid batches");
                return;
            }
        }
    }
}

fn recover(disk: SimDisk) -> Result<(Read, Position)> {
    let mut read = Read::new();
    let store = Store::open_with(Arc::new(disk), StoreOptions::default(), || Ok(LINEAGE))?;
    let mut each = |head: &BatchHead, body: &[u8]| {
        // The server's fuzz target `records` decodes the payloads.
        Records::new(body).for_each(drop);
        read.push((head.sequence, body.to_vec()));
        Ok(())
    };
    let (_, end) = store.replay_batches(&mut each, |_| ())?;
    Ok((read, end.position))
}

/// Runs the commands that an operator would use on a damaged folder.
fn inspect(disk: &SimDisk) {
    check(disk).expect("the disk can be listed");
    for name in disk.list_names() {
        let _ = dump(disk, &name, true, &mut std::io::sink());
    }
}

/// Tests arbitrary bytes as a manifest, with and without a valid checksum line. An accepted
/// manifest must be canonical and name only files inside the folder.
pub fn manifest(input: &[u8]) {
    let line = format!("check {:08x}\n", Check::new().bytes(input).value());
    for text in [input.to_vec(), [input, line.as_bytes()].concat()] {
        let Ok(manifest) = Manifest::decode(&text) else { continue };
        assert_eq!(manifest.encode().as_bytes(), text);
        assert!(
            manifest
                .files
                .iter()
                .all(|file| !file.name.contains('/') && !file.name.starts_with('.'))
        );
        let disk = SimDisk::new(1);
        disk.put(MANIFEST, &text);
        inspect(&disk);
        let store = Store::open_with(Arc::new(disk), StoreOptions::default(), || Ok(LINEAGE))
            .expect("the batch was read");
        let _ = store.load(1, |_, _| Ok(()), |_| ());
        let _ = store.replay(|_| Ok(()), |_| ());
    }
}

/// Overwrites a few fields of the file's first `up_to` bytes. Returns whether anything changed.
fn change(input: &mut Input<'_>, file: &mut [u8], up_to: usize) -> bool {
    let before = file[..up_to].to_vec();
    for _ in 0..input.byte() % 4 {
        let at = usize::from(input.byte()) % (up_to / 4).max(1) * 4;
        let number = NUMBERS[usize::from(input.byte()) % NUMBERS.len()].to_le_bytes();
        let width = if input.byte().is_multiple_of(2) { 4 } else { 8 };
        let end = up_to.min(at + width);
        file[at..end].copy_from_slice(&number[..end - at]);
    }
    file[..up_to] != before[..]
}

/// Tests a snapshot file with valid checksums and otherwise arbitrary contents.
pub fn snapshot(input: &[u8]) {
    let mut input = Input(input);
    let identity: u64 = (1 << 24) ^ 1;
    let name = snapshot_name(1, 1);
    let (mut chunks, mut body) = (Vec::new(), Vec::new());
    for _ in 0..input.byte() % 5 {
        let chunk = input.bytes();
        if !chunk.is_empty() {
            body.extend_from_slice(&frame_head(
                Check::new().u64(identity).u32(chunks.len() as u32),
                chunk,
            ));
            body.extend_from_slice(chunk);
            chunks.push(chunk.to_vec());
        }
    }
    let mut sound = true;
    if input.rarely(16) {
        body.extend_from_slice(input.bytes());
        sound = false;
    }
    let mut file = vec![0; 88];
    file[..8].copy_from_slice(b"TIDESNAP");
    file[8..12].copy_from_slice(&1u32.to_le_bytes());
    file[32..40].copy_from_slice(&identity.to_le_bytes());
    file[72..80].copy_from_slice(&(body.len() as u64).to_le_bytes());
    // Lineage and tag are arbitrary, because no manifest is compared.
    change(&mut input, &mut file[40..72], 32);
    file[44..48].fill(0);
    sound &= !change(&mut input, &mut file, 84);
    let head = Check::new().bytes(&file[..84]).value();
    file[84..88].copy_from_slice(&head.to_le_bytes());
    file.append(&mut body);
    let total = Check::new().bytes(&file).value();
    let mut foot = [0; 24];
    foot[4..8].copy_from_slice(&(chunks.len() as u32).to_le_bytes());
    foot[16..20].copy_from_slice(&total.to_le_bytes());
    // The number of rows is only a hint.
    change(&mut input, &mut foot[8..16], 8);
    sound &= !change(&mut input, &mut foot, 20);
    let check = Check::new().u64(identity).bytes(&foot[..20]).value();
    foot[20..24].copy_from_slice(&check.to_le_bytes());
    file.extend_from_slice(&foot);
    let disk = SimDisk::new(1);
    disk.put(&name, &file);
    inspect(&disk);
    let read = || -> Result<Vec<Vec<u8>>> {
        let mut reader = SnapshotReader::open(&disk, &name, None)?;
        let (mut read, mut chunk) = (Vec::new(), Vec::new());
        while reader.next(&mut chunk)? {
            read.push(chunk.clone());
        }
        Ok(read)
    };
    let read = read();
    if sound {
        assert_eq!(read.as_ref().ok(), Some(&chunks), "{read:?}");
    }
}

/// Tests a file of rows with valid checksums and an altered header and note. `block.rs` tests the
/// contents of blocks.
// Long: the checks at the end depend on every choice made while the file is written.
pub fn cold(input: &[u8]) {
    let mut input = Input(input);
    let disk = SimDisk::new(1);
    let columns = usize::from(input.byte()) % (MAX_COLUMNS + 1);
    let tag = Tag { space: 1, kind: 2, low: 0, high: u64::MAX, stamp: 3 };
    type Rows = Vec<(u64, Vec<i64>)>;
    let written = (|| -> Result<Option<Rows>> {
        let pages = PageWriter::create(Arc::new(disk.clone()), LINEAGE, (1, 1), tag)?;
        let mut writer = ColdWriter::new(pages, columns)?;
        let (mut id, mut rows) = (0u64, Vec::new());
        // A block contains a few hundred rows, so few input bytes create several blocks.
        for _ in 0..input.byte() % 8 {
            let [step, value] = [1, 2].map(|_| {
                let small = input.byte().into();
                input.number(small).max(1)
            });
            // Writes fewer rows if there are many columns, to limit the duration of a run.
            for row in 0..=u64::from(input.byte()) * 4 / (1 + columns as u64 / 4) {
                let Some(next) = id.checked_add(step) else { break };
                id = next;
                let values: Vec<i64> =
                    (0..columns as u64).map(|c| value.wrapping_mul(row ^ c) as i64).collect();
                writer.push(id, &values)?;
                rows.push((id, values));
            }
        }
        Ok(writer.finish()?.map(|_| rows))
    })();
    let Some(rows) = written.expect("this disk has no faults") else { return };
    let name = cold_name(1, 1);
    let mut file = disk.contents(&name).expect("the file was just written");
    let number = |file: &[u8], at: usize| {
        u64::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes"))
    };
    let note_at = (1 + number(&file, 72) as usize) * BLOCK_BYTES;
    let length = file.len() - note_at;
    let mut sound = !change(&mut input, &mut file[note_at..], length / 4 * 4);
    if input.rarely(16) {
        let more = input.bytes();
        file.extend_from_slice(more);
        file[80..88].copy_from_slice(&((length + more.len()) as u64).to_le_bytes());
        sound &= more.is_empty();
    }
    let noted = Check::new().u64(number(&file, 32)).bytes(&file[note_at..]).value();
    file[88..92].copy_from_slice(&noted.to_le_bytes());
    let body = Check::new().bytes(&file[BLOCK_BYTES..]).value();
    file[92..96].copy_from_slice(&body.to_le_bytes());
    sound &= !change(&mut input, &mut file, 124);
    let head = Check::new().bytes(&file[..124]).value();
    file[124..128].copy_from_slice(&head.to_le_bytes());
    disk.put(&name, &file);
    inspect(&disk);
    let opened = PageFile::open_any(&disk, &name).and_then(|(p, note)| ColdFile::new(p, &note));
    let Ok(cold) = opened else {
        assert!(!sound, "a written file can be opened");
        return;
    };
    let mut out = [0; MAX_COLUMNS];
    let columns = cold.head().columns;
    for id in NUMBERS.into_iter().chain(rows.iter().take(20).map(|row| row.0)) {
        let _ = cold.get(id, &mut out[..columns]);
    }
    if sound {
        // Each lookup reads a block, so look up only a sample of the rows. The walk below compares
        // all rows.
        for (id, values) in rows.iter().step_by(1 + rows.len() / 256) {
            assert!(cold.get(*id, &mut out[..columns]).expect("a sound file"), "{id}");
            assert_eq!(out[..columns], values[..], "{id}");
        }
    }
    let cold = Arc::new(cold);
    let (mut walk, mut ids, mut values, mut walked) = (cold.rows(), Vec::new(), Vec::new(), 0);
    while walk.next(&mut ids, &mut values).is_ok_and(|more| more) {
        if sound {
            let there = rows[walked..][..ids.len()].iter();
            assert!(
                there.clone().map(|row| row.0).eq(ids.iter().copied()),
                "ids after row {walked}"
            );
            assert!(there.flat_map(|row| &row.1).eq(&values), "values after row {walked}");
        }
        walked += ids.len();
    }
    assert!(!sound || walked == rows.len(), "{walked} of {} rows", rows.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An exhausted input causes no damage, so random inputs cause little damage.
    fn rounds(target: fn(&[u8]), rounds: u64) {
        for seed in 0..rounds {
            let mut random = fastrand::Rng::with_seed(seed);
            let input: Vec<u8> = (0..random.usize(..300)).map(|_| random.u8(..)).collect();
            let outcome = std::panic::catch_unwind(|| target(&input));
            assert!(outcome.is_ok(), "seed {seed}: {input:?}");
        }
    }

    #[test]
    fn seeded_rounds_of_the_log() {
        rounds(log, 3_000);
    }

    #[test]
    fn seeded_rounds_of_snapshots() {
        rounds(snapshot, 3_000);
    }

    #[test]
    fn seeded_rounds_of_cold_files() {
        rounds(cold, 1_000);
    }

    #[test]
    fn seeded_rounds_of_manifests() {
        let text = crate::manifest::tests::example().encode();
        let body = &text[..text.len() - 15];
        manifest(body.as_bytes());
        for seed in 0..3_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut bytes = body.as_bytes().to_vec();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                match random.u8(..3) {
                    0 => bytes[at] = *random.choice(b" \n0129f./-s").expect("a byte"),
                    1 => drop(bytes.remove(at)),
                    _ => {
                        let (from, to) = (random.usize(..=at), at);
                        bytes.extend_from_within(from..to);
                    }
                }
            }
            let outcome = std::panic::catch_unwind(|| manifest(&bytes));
            assert!(outcome.is_ok(), "seed {seed}: {:?}", String::from_utf8_lossy(&bytes));
        }
    }
}
