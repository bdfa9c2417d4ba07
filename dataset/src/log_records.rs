//! Log records: the encoding of the engines' state in the log and in snapshots. Records contain
//! state, never deltas (promise 2 in `docs/promises.md`).
//!
//! - 1, catalogue (space 0): the spaces with their numbers, schemas and seeds as TOML. Readable in
//!   the output of `tidemark dump`.
//! - 2, rows (counter): number of fields n; per row `step << 1 | exists`; if it exists, n zigzag
//!   values.
//! - 3, pairs (existence): per pair `step << 2 | is hash << 1 | set`; then the member, or the 16
//!   bytes of the pair's hash.
//! - 4, layout (existence): per table the distance of its low id from the previous table's low id,
//!   and its number of pages. Written by older releases; replaced by kind 16.
//! - 5, table (existence), snapshots only: a part of a table in the phantom engine's format.
//! - 6, head (both), snapshots only: state outside the tables in the engine's format: the frontier,
//!   and an existence space's outlier pairs (pairs of ids far above all tables).
//! - 7 and 8 are unused.
//! - 9, frontier (existence): the id ranges that tables accept. Empty if no range is open.
//!   Otherwise the highest id and the window of the highest range; then, for each lower range, the
//!   start of the range above it, its highest id and its window.
//! - 10, late (existence), snapshots only: late changes to cold tables in the phantom engine's
//!   format.
//! - 11, tokens (space 0): per token 16 bytes of its hash, Unix time of its use in seconds, 4 bytes
//!   of the hash of its increment, number n of values, and n zigzag values of the reply
//!   (`tokens.rs`).
//! - 12 is unused; it was an older version of kind 17 without the hash.
//! - 13, groups (space 0): cursors of consumer groups of streams (`groups/records.rs`).
//! - 14, forgotten (existence): ids whose pairs were all unset by FORGET: per id its step and its
//!   generation, the number of FORGETs. A pair of kind 3 stores the member only if it was set
//!   before the first FORGET. Later pairs are stored as hashes, which include the generation.
//! - 15, exact pairs (existence spaces with a ledger, instead of 3): per pair the step and two
//!   flags (is string, set) as in 3, the generation of the id, and the member: a number, or the
//!   length of a string and the string. In a snapshot each chunk of the ledger's memory begins with
//!   a type byte. A chunk of type 1 contains pairs. A chunk of type 0 contains dropped ids: per id
//!   its step, and the identity of the newest run that may still have pairs of it.
//! - 16, ring (existence): per table the same numbers as in kind 4, and the number of pairs at
//!   which the table is closed.
//! - 17, offsets (space 0): per source of events the length of its name, the name, the partition,
//!   the upper and the lower half of the next message's position, the number of its events already
//!   applied, and the hash of the last message with applied events (`offsets.rs`).
//!
//! Numbers are LEB128 unless stated otherwise. Ids never decrease within a payload, so each id is
//! stored as a step: its distance from the previous id. A batch contains each changed row once. A
//! payload is damaged if a number has more than 64 bits, an id exceeds 2^64-1, or the payload ends
//! within a row. An id may occur twice; the later row applies.

use crate::dirty_keys::MarkedMember;
use rolling::Unreadable;
use store::{Batch, buffer};

/// Maximum encoded size of an id in bytes: an escape and a step.
pub const ID_BYTES: usize = 20;
/// Maximum encoded size of a value of a row, in bytes.
pub const VALUE_BYTES: usize = 10;
/// Maximum encoded size of a pair in bytes: its id, and a member or a hash.
pub const PAIR_BYTES: usize = ID_BYTES + 16;
/// Maximum encoded size of an exact pair in bytes: its id, a generation, a length and a string.
pub const EXACT_PAIR_BYTES: usize = ID_BYTES + 10 + 2 + ledger::MAX_MEMBER_BYTES;

/// Kind of a record. See the module's documentation for the payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Spaces with their numbers.
    Catalogue = 1,
    /// Rows of a counter space.
    Rows = 2,
    /// Pairs of an existence space.
    Pairs = 3,
    /// Layout of an existence space's tables, written by older releases.
    Layout = 4,
    /// Part of an existence space's table.
    Table = 5,
    /// State of a space outside its tables.
    Head = 6,
    /// Id ranges that an existence space's tables accept.
    Frontier = 9,
    /// Late changes to cold tables of an existence space.
    LatePairs = 10,
    /// Used tokens and the values of their replies.
    Tokens = 11,
    /// Cursors of consumer groups of streams.
    Groups = 13,
    /// Ids of an existence space whose pairs were all unset by FORGET.
    Forgotten = 14,
    /// Pairs of an existence space with a ledger. Runs of the ledger are also tagged with this
    /// kind.
    ExactPairs = 15,
    /// Layout of an existence space's tables, with the number of pairs at which each table is
    /// closed.
    Ring = 16,
    /// Offsets up to which the events of brokers are applied.
    Offsets = 17,
}

impl RecordKind {
    /// Returns the kind with this number.
    pub fn from_number(kind: u8) -> Option<RecordKind> {
        use RecordKind::*;
        [
            Catalogue, Rows, Pairs, Layout, Table, Head, Frontier, LatePairs, Tokens, Offsets,
            Groups, Forgotten, ExactPairs, Ring,
        ]
        .into_iter()
        .find(|&k| k as u8 == kind)
    }

    /// Whether this release supports the kind.
    pub fn is_known(kind: u8) -> bool {
        RecordKind::from_number(kind).is_some()
    }
}

/// Appends a number as LEB128.
pub fn put_number(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Decodes a LEB128 number of at most 64 bits, and removes it from `bytes`.
#[inline]
pub fn take_number(bytes: &mut &[u8]) -> Result<u64, String> {
    const LAST_BITS: u64 = 0x8080_8080_8080_8080;
    // Decodes up to eight bytes without a branch on the length, which would be hard to predict.
    if let Some(eight) = bytes.first_chunk() {
        let word = u64::from_le_bytes(*eight);
        let ends = !word & LAST_BITS;
        if ends != 0 {
            // Mask the bytes after the last byte of the number, then join the groups of 7 bits in
            // three steps.
            let x = word & (ends ^ (ends - 1)) & !LAST_BITS;
            let x = (x & 0x007f_007f_007f_007f) | ((x & 0x7f00_7f00_7f00_7f00) >> 1);
            let x = (x & 0x0000_3fff_0000_3fff) | ((x & 0x3fff_0000_3fff_0000) >> 2);
            let x = (x & 0x0fff_ffff) | ((x & 0x0fff_ffff_0000_0000) >> 4);
            *bytes = &bytes[ends.trailing_zeros() as usize / 8 + 1..];
            return Ok(x);
        }
    }
    take_long_number(bytes)
}

/// [`take_number`] for the last bytes of a payload, and for numbers of nine or ten bytes.
fn take_long_number(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut n = 0u64;
    for (i, &byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        if i == 9 && bits > 1 {
            break;
        }
        n |= bits << (7 * i);
        if byte & 0x80 == 0 {
            *bytes = &bytes[i + 1..];
            return Ok(n);
        }
    }
    Err("truncated number, or more than 64 bits".to_owned())
}

/// Zigzag code: maps numbers of small magnitude to small unsigned numbers.
pub(crate) fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

pub(crate) fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// Appends the distance to the next id, with `bits` flags in its lowest bits. Both together may
/// need 66 bits. A distance of 2^61-1 or more is therefore encoded as an escape (distance 2^61-1)
/// with the flags, followed by the distance itself.
fn put_step(out: &mut Vec<u8>, step: u64, bits: u32, flags: u64) {
    let escape = (1u64 << 61) - 1;
    if step < escape {
        put_number(out, (step << bits) | flags);
    } else {
        put_number(out, (escape << bits) | flags);
        put_number(out, step);
    }
}

fn take_step(bytes: &mut &[u8], bits: u32) -> Result<(u64, u64), String> {
    let escape = (1u64 << 61) - 1;
    let head = take_number(bytes)?;
    let (step, flags) = (head >> bits, head & ((1 << bits) - 1));
    Ok((if step == escape { take_number(bytes)? } else { step }, flags))
}

/// Delta encoder and decoder of ids that never decrease.
struct AscendingIds(Option<u64>);

impl AscendingIds {
    fn step(&mut self, id: u64) -> u64 {
        let step = id - self.0.unwrap_or(0);
        self.0 = Some(id);
        step
    }

    fn id(&mut self, step: u64) -> Result<u64, String> {
        let id = self.0.unwrap_or(0).checked_add(step).ok_or("an id of more than 64 bits")?;
        self.0 = Some(id);
        Ok(id)
    }
}

/// Writer of a rows payload. Ids must not decrease.
pub struct RowsWriter {
    out: Vec<u8>,
    ids: AscendingIds,
    rows: u64,
}

impl RowsWriter {
    /// Creates a writer of rows with `fields` values each.
    pub fn new(fields: usize) -> RowsWriter {
        let mut out = Vec::new();
        put_number(&mut out, fields as u64);
        RowsWriter { out, ids: AscendingIds(None), rows: 0 }
    }

    /// Appends a row. Pass `None` for a row that does not exist.
    ///
    /// # Panics
    ///
    /// If the id is below the previous id.
    pub fn row(&mut self, id: u64, values: Option<&[i64]>) {
        put_step(&mut self.out, self.ids.step(id), 1, u64::from(values.is_some()));
        values.unwrap_or(&[]).iter().for_each(|&n| put_number(&mut self.out, zigzag(n)));
        self.rows += 1;
    }

    /// Returns the current size in bytes.
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// Returns the current number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the payload.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// Decodes a rows payload. Calls `each` with the id and the values, or `None` if the row does not
/// exist.
pub fn read_rows(
    mut bytes: &[u8],
    mut each: impl FnMut(u64, Option<&[i64]>) -> Result<(), String>,
) -> Result<(), String> {
    let fields = take_number(&mut bytes)?;
    if fields == 0 || fields > counter::MAX_FIELDS as u64 {
        return Err(format!("a row with {fields} fields"));
    }
    let mut values = vec![0; fields as usize];
    let mut ids = AscendingIds(None);
    while !bytes.is_empty() {
        let (step, exists) = take_step(&mut bytes, 1)?;
        let id = ids.id(step)?;
        if exists == 0 {
            each(id, None)?;
            continue;
        }
        for value in &mut values {
            *value = unzigzag(take_number(&mut bytes)?);
        }
        each(id, Some(&values))?;
    }
    Ok(())
}

/// Writer of a pairs payload. Ids must not decrease.
#[derive(Default)]
pub struct PairsWriter {
    out: Vec<u8>,
    last: u64,
}

impl PairsWriter {
    /// Appends a pair and whether it is set.
    ///
    /// # Panics
    ///
    /// If the id is below the previous id.
    pub fn pair(&mut self, id: u64, member: MarkedMember, set: bool) {
        let step = id - self.last;
        self.last = id;
        match member {
            MarkedMember::Number(n) => {
                put_step(&mut self.out, step, 2, u64::from(set));
                put_number(&mut self.out, n);
            }
            MarkedMember::Hash(hash) => {
                put_step(&mut self.out, step, 2, 2 | u64::from(set));
                self.out.extend_from_slice(&MarkedMember::hash_of(hash).to_le_bytes());
            }
        }
    }

    /// Returns the current size in bytes.
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// Returns the payload.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// Decodes a pairs payload. Calls `each` with the id, the member, and whether the pair is set.
pub fn read_pairs(
    mut bytes: &[u8],
    mut each: impl FnMut(u64, MarkedMember, bool) -> Result<(), String>,
) -> Result<(), String> {
    let mut ids = AscendingIds(None);
    while !bytes.is_empty() {
        let (step, flags) = take_step(&mut bytes, 2)?;
        let id = ids.id(step)?;
        let member = if flags & 2 == 0 {
            MarkedMember::Number(take_number(&mut bytes)?)
        } else {
            let (hash, rest) = bytes.split_first_chunk::<16>().ok_or("truncated hash of a pair")?;
            bytes = rest;
            MarkedMember::of_hash(u128::from_le_bytes(*hash))
        };
        each(id, member, flags & 1 == 1)?;
    }
    Ok(())
}

/// Writer of an exact-pairs payload. Ids must not decrease.
#[derive(Default)]
pub struct ExactPairsWriter {
    out: Vec<u8>,
    last: u64,
}

impl ExactPairsWriter {
    /// Creates a writer for a snapshot's chunk with the type byte `first`.
    pub(crate) fn behind(first: u8) -> ExactPairsWriter {
        ExactPairsWriter { out: vec![first], last: 0 }
    }

    /// Appends a pair.
    ///
    /// # Panics
    ///
    /// If the id is below the previous id.
    pub fn pair(&mut self, pair: ledger::Pair<'_>, generation: u64) {
        let (step, set) = (pair.id - self.last, u64::from(pair.set));
        self.last = pair.id;
        match pair.member {
            ledger::Member::Number(number) => {
                put_step(&mut self.out, step, 2, set);
                put_number(&mut self.out, generation);
                put_number(&mut self.out, number);
            }
            ledger::Member::Bytes(bytes) => {
                put_step(&mut self.out, step, 2, 2 | set);
                put_number(&mut self.out, generation);
                put_number(&mut self.out, bytes.len() as u64);
                self.out.extend_from_slice(bytes);
            }
        }
    }

    /// Returns the payload.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// Decodes an exact-pairs payload. Calls `each` with the pair and the generation of its id.
pub fn read_exact_pairs<'a>(
    mut bytes: &'a [u8],
    mut each: impl FnMut(ledger::Pair<'a>, u64) -> Result<(), String>,
) -> Result<(), String> {
    let mut ids = AscendingIds(None);
    while !bytes.is_empty() {
        let (step, flags) = take_step(&mut bytes, 2)?;
        let id = ids.id(step)?;
        let generation = take_number(&mut bytes)?;
        let number = take_number(&mut bytes)?;
        let member = if flags & 2 == 0 {
            ledger::Member::Number(number)
        } else {
            let length = usize::try_from(number).unwrap_or(usize::MAX);
            if length > ledger::MAX_MEMBER_BYTES {
                return Err(format!("a member of {length} bytes"));
            }
            let (member, rest) = bytes.split_at_checked(length).ok_or("truncated member")?;
            bytes = rest;
            ledger::Member::Bytes(member)
        };
        each(ledger::Pair { id, member, set: flags & 1 == 1 }, generation)?;
    }
    Ok(())
}

fn put_ids(out: &mut Vec<u8>, ids: impl Iterator<Item = (u64, u64)>) {
    let mut before = 0;
    for (id, number) in ids {
        put_number(out, id - before);
        put_number(out, number);
        before = id;
    }
}

fn take_ids(mut bytes: &[u8]) -> Result<Vec<(u64, u64)>, String> {
    let (mut ids, mut id) = (Vec::new(), 0u64);
    while !bytes.is_empty() {
        id = id.checked_add(take_number(&mut bytes)?).ok_or("an id of more than 64 bits")?;
        ids.push((id, take_number(&mut bytes)?));
    }
    Ok(ids)
}

/// Encodes drop records as a chunk of a ledger's snapshot file. `drops` is sorted by id. Each entry
/// contains the identity of the newest run that may still have pairs of the id.
pub(crate) fn encode_drops(drops: &[(u64, u64)]) -> Vec<u8> {
    let mut out = vec![0];
    put_ids(&mut out, drops.iter().copied());
    out
}

/// Decodes a chunk of [`encode_drops`] without its type byte.
pub(crate) fn decode_drops(bytes: &[u8]) -> Result<Vec<(u64, u64)>, String> {
    take_ids(bytes)
}

/// Encodes a forgotten payload: ids in ascending order with their generations.
pub(crate) fn encode_forgotten(forgotten: impl Iterator<Item = (u64, u64)>) -> Vec<u8> {
    let mut out = Vec::new();
    put_ids(&mut out, forgotten);
    out
}

/// Decodes a forgotten payload.
pub(crate) fn decode_forgotten(bytes: &[u8]) -> Result<Vec<(u64, u64)>, String> {
    let forgotten = take_ids(bytes)?;
    let wrong = forgotten.iter().find(|(_, generation)| [0, u64::MAX].contains(generation));
    match wrong {
        Some((_, generation)) => Err(format!("an id forgotten {generation} times")),
        None => Ok(forgotten),
    }
}

/// A row in a commit. Rows of a space may differ in width if the schema changes during the commit.
struct CommitRow {
    space: u32,
    /// Index of the row's first value.
    at: u32,
    id: u64,
    fields: u32,
}

struct CommitPair {
    space: u32,
    set: bool,
    id: u64,
    member: MarkedMember,
}

struct CommitExactPair {
    space: u32,
    set: bool,
    id: u64,
    member: ledger::OwnedMember,
    generation: u64,
}

fn order(space: u32, id: u64) -> u128 {
    u128::from(space) << 64 | u128::from(id)
}

/// State of marked rows and pairs that a commit has read and not yet encoded.
#[derive(Default)]
pub struct Commit {
    rows: Vec<CommitRow>,
    values: Vec<i64>,
    pairs: Vec<CommitPair>,
    exact_pairs: Vec<CommitExactPair>,
    exact_bytes: usize,
}

impl Commit {
    /// Whether the commit is empty.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.pairs.is_empty() && self.exact_pairs.is_empty()
    }

    /// Adds a row. `read` appends its values and returns whether the row exists. If it fails, the
    /// commit is unchanged.
    pub fn row(
        &mut self,
        space: u32,
        id: u64,
        fields: usize,
        read: impl FnOnce(&mut [i64]) -> Result<bool, Unreadable>,
    ) -> Result<(), Unreadable> {
        let start = self.values.len();
        self.values.resize(start + fields, 0);
        let exists = read(&mut self.values[start..]);
        if !matches!(exists, Ok(true)) {
            self.values.truncate(start);
        }
        let exists = exists?;
        self.rows.push(CommitRow {
            space,
            at: start as u32,
            id,
            fields: if exists { fields as u32 } else { 0 },
        });
        Ok(())
    }

    /// Adds a pair and its state.
    pub fn pair(&mut self, space: u32, id: u64, member: MarkedMember, set: bool) {
        self.pairs.push(CommitPair { space, set, id, member });
    }

    /// Adds a pair of a space with a ledger. `generation`: generation of the id.
    pub fn exact_pair(
        &mut self,
        space: u32,
        id: u64,
        member: ledger::OwnedMember,
        set: bool,
        generation: u64,
    ) {
        self.exact_bytes += match &member {
            ledger::OwnedMember::Number(_) => 12,
            ledger::OwnedMember::Bytes(bytes) => 8 + bytes.len(),
        };
        self.exact_pairs.push(CommitExactPair { space, set, id, member, generation });
    }

    /// Returns the approximate size of the records in bytes.
    pub fn bytes(&self) -> usize {
        self.rows.len() * 4 + self.values.len() * 3 + self.pairs.len() * 12 + self.exact_bytes
    }

    /// Appends one record per space and kind to the batch and clears the commit. The committer
    /// guarantees that each row and pair occurs once (C7). This function relies on this guarantee,
    /// because sorting would lose the order of two states.
    pub fn encode(&mut self, batch: &mut Batch) {
        self.rows.sort_unstable_by_key(|row| order(row.space, row.id));
        self.pairs.sort_unstable_by_key(|pair| order(pair.space, pair.id));
        self.exact_pairs.sort_unstable_by_key(|pair| order(pair.space, pair.id));
        debug_assert!(self.has_each_once());
        for group in self.rows.chunk_by(|a, b| a.space == b.space) {
            let width = group.iter().map(|row| row.fields as usize).max().unwrap_or(0).max(1);
            let mut writer = RowsWriter::new(width);
            let mut padded = [0; counter::MAX_FIELDS];
            for row in group {
                let (at, fields) = (row.at as usize, row.fields as usize);
                padded[fields..].fill(0);
                padded[..fields].copy_from_slice(&self.values[at..at + fields]);
                writer.row(row.id, (fields > 0).then_some(&padded[..width]));
            }
            batch.push(group[0].space, RecordKind::Rows as u8, &writer.finish());
        }
        for group in self.pairs.chunk_by(|a, b| a.space == b.space) {
            let mut writer = PairsWriter::default();
            group.iter().for_each(|pair| writer.pair(pair.id, pair.member, pair.set));
            batch.push(group[0].space, RecordKind::Pairs as u8, &writer.finish());
        }
        for group in self.exact_pairs.chunk_by(|a, b| a.space == b.space) {
            let mut writer = ExactPairsWriter::default();
            for CommitExactPair { id, member, set, generation, .. } in group {
                let (id, set, member) = (*id, *set, member.as_member());
                writer.pair(ledger::Pair { id, member, set }, *generation);
            }
            batch.push(group[0].space, RecordKind::ExactPairs as u8, &writer.finish());
        }
        self.forget();
    }

    fn has_each_once(&self) -> bool {
        let mut pairs = std::collections::BTreeSet::new();
        self.rows.is_sorted_by(|a, b| order(a.space, a.id) < order(b.space, b.id))
            && self.pairs.iter().all(|pair| pairs.insert((pair.space, pair.id, pair.member)))
    }

    /// Clears the commit.
    pub fn forget(&mut self) {
        buffer::clear(&mut self.rows);
        buffer::clear(&mut self.values);
        buffer::clear(&mut self.pairs);
        buffer::clear(&mut self.exact_pairs);
        self.exact_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_read_back() {
        for n in (0..64)
            .flat_map(|bits| [(1u64 << bits) - 1, 1 << bits, 0x5555_5555_5555_5555 >> bits])
            .chain([u64::MAX - 1, u64::MAX])
        {
            let mut out = vec![];
            put_number(&mut out, n);
            for behind in [&[][..], &[0x80; 12]] {
                let all = [&out[..], behind].concat();
                let mut bytes = &all[..];
                assert_eq!(take_number(&mut bytes), Ok(n));
                assert_eq!(bytes, behind);
            }
            assert!(take_number(&mut &out[..out.len() - 1]).is_err());
        }
        assert!(take_number(&mut &[0xff; 10][..]).is_err(), "70 bits");
        for n in [0, -1, 1, i64::MIN, i64::MAX] {
            assert_eq!(unzigzag(zigzag(n)), n);
        }
    }

    #[test]
    fn forgotten_ids_read_back() {
        let forgotten = vec![(0, 1), (7, u64::MAX - 1), (u64::MAX, 300)];
        let bytes = encode_forgotten(forgotten.iter().copied());
        assert_eq!(decode_forgotten(&bytes), Ok(forgotten));
        assert_eq!(decode_forgotten(&[]), Ok(vec![]));
        assert!(decode_forgotten(&bytes[..bytes.len() - 1]).is_err(), "cut off");
        assert!(decode_forgotten(&[7]).is_err(), "no generation");
        assert!(decode_forgotten(&[7, 0]).is_err(), "never");
        assert!(decode_forgotten(&[bytes, vec![1, 1]].concat()).is_err(), "above 2^64-1");
    }

    /// A like of post 1000 by member 42, with the bytes in docs/formats.md.
    #[test]
    fn a_like_takes_eleven_bytes() {
        let mut row = RowsWriter::new(4);
        row.row(1000, Some(&[1, 0, 0, 0]));
        assert_eq!(row.finish(), [4, 0xd1, 0x0f, 2, 0, 0, 0]);
        let mut pair = ExactPairsWriter::default();
        let member = ledger::Member::Number(42);
        pair.pair(ledger::Pair { id: 1000, member, set: true }, 0);
        assert_eq!(pair.finish(), [0xa1, 0x1f, 0, 42]);
    }

    #[test]
    fn rows_read_back() {
        let rows: Vec<(u64, Option<Vec<i64>>)> = vec![
            (0, Some(vec![1, -1])),
            (1, None),
            (2, Some(vec![i64::MIN, i64::MAX])),
            (u64::MAX - 1, Some(vec![0, 0])),
            (u64::MAX, None),
        ];
        let mut writer = RowsWriter::new(2);
        rows.iter().for_each(|(id, values)| writer.row(*id, values.as_deref()));
        let bytes = writer.finish();
        let mut read = vec![];
        read_rows(&bytes, |id, values| {
            read.push((id, values.map(<[i64]>::to_vec)));
            Ok(())
        })
        .unwrap();
        assert_eq!(read, rows);
    }

    #[test]
    fn pairs_read_back() {
        let pairs = [
            (0, MarkedMember::Number(0), true),
            (0, MarkedMember::Number(u64::MAX), false),
            (7, MarkedMember::of_hash(u128::MAX - 1), true),
            (u64::MAX, MarkedMember::of_hash(0), false),
        ];
        let mut writer = PairsWriter::default();
        pairs.iter().for_each(|&(id, member, set)| writer.pair(id, member, set));
        let mut read = vec![];
        read_pairs(&writer.finish(), |id, member, set| {
            read.push((id, member, set));
            Ok(())
        })
        .unwrap();
        assert_eq!(read, pairs);
    }

    /// Any input must yield rows or an error.
    #[test]
    fn no_bytes_make_a_decoder_panic() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..200_000 {
            let bytes: Vec<u8> =
                (0..rng.usize(0..40)).map(|_| if rng.bool() { 0xff } else { rng.u8(..) }).collect();
            let _ = read_rows(&bytes, |_, _| Ok(()));
            let _ = read_pairs(&bytes, |_, _, _| Ok(()));
        }
    }

    #[test]
    fn rows_that_were_read_under_two_schemas_are_one_record() {
        let mut commit = Commit::default();
        for (id, fields) in [(1, 2), (2, 3), (3, 1)] {
            commit
                .row(1, id, fields, |values| {
                    values.fill(id as i64);
                    Ok(true)
                })
                .unwrap();
        }
        let mut batch = Batch::new();
        commit.encode(&mut batch);
        let records: Vec<_> = store::Records::new(batch.body()).map(Result::unwrap).collect();
        assert_eq!(records.len(), 1);
        let mut rows = vec![];
        read_rows(records[0].payload, |id, values| {
            rows.push((id, values.unwrap().to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(rows, [(1, vec![1, 1, 0]), (2, vec![2, 2, 2]), (3, vec![3, 0, 0])]);
    }

    #[test]
    fn a_commit_is_one_record_per_space_and_kind() {
        let mut commit = Commit::default();
        for id in [9, 3, 7] {
            commit
                .row(1, id, 2, |values| {
                    values.fill(id as i64);
                    Ok(id != 7)
                })
                .unwrap();
            commit.row(2, id, 1, |_| Ok(true)).unwrap();
            commit.pair(3, id, MarkedMember::Number(8), id == 3);
            commit.pair(3, id, MarkedMember::Number(5), id == 3);
        }
        assert!(!commit.is_empty() && commit.bytes() > 0);
        let mut batch = Batch::new();
        commit.encode(&mut batch);
        assert!(commit.is_empty());
        let records: Vec<_> = store::Records::new(batch.body()).map(Result::unwrap).collect();
        assert_eq!(
            records.iter().map(|r| (r.space, r.kind)).collect::<Vec<_>>(),
            [(1, 2), (2, 2), (3, 3)]
        );
        let mut rows = vec![];
        read_rows(records[0].payload, |id, values| {
            rows.push((id, values.map(<[i64]>::to_vec)));
            Ok(())
        })
        .unwrap();
        assert_eq!(rows, [(3, Some(vec![3, 3])), (7, None), (9, Some(vec![9, 9]))]);
        let mut pairs = vec![];
        read_pairs(records[2].payload, |id, member, set| {
            pairs.push((id, member, set));
            Ok(())
        })
        .unwrap();
        assert_eq!(pairs.len(), 6);
        assert!(
            pairs.contains(&(3, MarkedMember::Number(5), true))
                && pairs.is_sorted_by_key(|pair| pair.0)
        );
    }
}
