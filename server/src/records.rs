//! Records: what the log and the snapshots hold of the engines, as bytes. State, never deltas (promise 2).
//!
//! | kind | space | payload |
//! |---|---|---|
//! | 1 catalogue | 0 | the spaces with their numbers, schemas and seeds: TOML, so that `tidemark dump` shows it as it is |
//! | 2 rows | counter | fields n; then per row: (id - id before) << 1 \| exists; if it exists, n zigzag values |
//! | 3 pairs | existence | per pair: (id - id before) << 2 \| named by hash << 1 \| set; then the member, or the 16 bytes of the hash |
//! | 4 layout | existence | where its tables lie: per table low - low before, pages |
//! | 5 table | existence | snapshots only: a part of a table, in the phantom engine's own format |
//! | 6 aside | existence | snapshots only: the phantom engine's pairs of ids far ahead, in its own format |
//!
//! All numbers are LEB128 unless something else is said. Ids rise within a payload, so a like costs its id's distance from the
//! one before, its member, and nothing for a counter that the same batch holds anyway. A number of more than 64 bits, a
//! payload that ends within a row, an id that does not rise: damage.

use crate::changes::MarkedMember;

/// What a record's payload holds; see the top of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Spaces with their numbers.
    Catalogue = 1,
    /// Rows of a counter space.
    Rows = 2,
    /// Pairs of an existence space.
    Pairs = 3,
    /// The places of an existence space's tables.
    Layout = 4,
    /// A part of an existence space's table.
    Table = 5,
    /// An existence space's pairs of ids far ahead.
    Aside = 6,
}

impl RecordKind {
    /// The kind with this number.
    pub fn from_number(kind: u8) -> Option<RecordKind> {
        use RecordKind::*;
        [Catalogue, Rows, Pairs, Layout, Table, Aside].into_iter().find(|&k| k as u8 == kind)
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

/// Takes a LEB128 number of at most 64 bits.
pub fn take_number(bytes: &mut &[u8]) -> Result<u64, String> {
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
    Err("a number is cut off, or has more than 64 bits".to_owned())
}

/// Small numbers of either sign as small numbers.
fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// The next id, `bits` flags below it. Ids rise, so the distance is at most 2^64-1; with flags it may need 66 bits, so a huge
/// one is written apart: all flags bits as usual, distance 2^62-1 as an escape, then the distance itself.
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

/// Ids that must rise: strictly, but for the first.
struct Rising(Option<u64>);

impl Rising {
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

/// Writes a rows payload, row by row, ids rising.
pub struct RowsWriter {
    out: Vec<u8>,
    ids: Rising,
    rows: u64,
}

impl RowsWriter {
    /// Rows of `fields` values each.
    pub fn new(fields: usize) -> RowsWriter {
        let mut out = Vec::new();
        put_number(&mut out, fields as u64);
        RowsWriter { out, ids: Rising(None), rows: 0 }
    }

    /// The next row; `None`: there is none of this id. Panics if the id lies below the one before.
    pub fn row(&mut self, id: u64, values: Option<&[i64]>) {
        put_step(&mut self.out, self.ids.step(id), 1, u64::from(values.is_some()));
        values.unwrap_or(&[]).iter().for_each(|&n| put_number(&mut self.out, zigzag(n)));
        self.rows += 1;
    }

    /// Bytes so far.
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The payload.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// Reads a rows payload: `each` gets the id and the values, `None` if there is no such row.
pub fn read_rows(
    mut bytes: &[u8],
    mut each: impl FnMut(u64, Option<&[i64]>) -> Result<(), String>,
) -> Result<(), String> {
    let fields = take_number(&mut bytes)?;
    if fields == 0 || fields > counter::MAX_FIELDS as u64 {
        return Err(format!("rows of {fields} fields"));
    }
    let mut values = vec![0; fields as usize];
    let mut ids = Rising(None);
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

/// Writes a pairs payload, pair by pair, ids rising.
#[derive(Default)]
pub struct PairsWriter {
    out: Vec<u8>,
    last: u64,
}

impl PairsWriter {
    /// The next pair: whether it is set. Panics if the id lies below the one before.
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
                self.out.extend_from_slice(&hash.to_le_bytes());
            }
        }
    }

    /// Bytes so far.
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// The payload.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// Reads a pairs payload.
pub fn read_pairs(
    mut bytes: &[u8],
    mut each: impl FnMut(u64, MarkedMember, bool) -> Result<(), String>,
) -> Result<(), String> {
    let mut ids = Rising(None);
    while !bytes.is_empty() {
        let (step, flags) = take_step(&mut bytes, 2)?;
        let id = ids.id(step)?;
        let member = if flags & 2 == 0 {
            MarkedMember::Number(take_number(&mut bytes)?)
        } else {
            let (hash, rest) = bytes.split_first_chunk::<16>().ok_or("a pair's hash is cut off")?;
            bytes = rest;
            MarkedMember::Hash(u128::from_le_bytes(*hash))
        };
        each(id, member, flags & 1 == 1)?;
    }
    Ok(())
}

/// One space's marks of a commit, with what is true of them now, as one payload after the other goes into a batch.
#[derive(Default)]
pub struct Commit {
    rows: Vec<(u32, u64, Option<usize>)>,
    values: Vec<i64>,
    pairs: Vec<(u32, u64, MarkedMember, bool)>,
}

impl Commit {
    /// Whether nothing was collected.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.pairs.is_empty()
    }

    /// A row as it is now. `read` fills in the values, and says whether there is such a row.
    pub fn row(&mut self, space: u32, id: u64, fields: usize, read: impl FnOnce(&mut [i64]) -> bool) {
        let start = self.values.len();
        self.values.resize(start + fields, 0);
        let exists = read(&mut self.values[start..]);
        if !exists {
            self.values.truncate(start);
        }
        self.rows.push((space, id, exists.then_some(start)));
    }

    /// A pair as it is now.
    pub fn pair(&mut self, space: u32, id: u64, member: MarkedMember, set: bool) {
        self.pairs.push((space, id, member, set));
    }

    /// Hands over the records, and forgets them: `emit` gets space, kind and payload of each, and the flag says that the records
    /// since the last one belong together: all that one commit knows of an id. `fields` tells a space's fields; no batch of
    /// records grows much beyond `most_bytes`.
    pub fn records(
        &mut self,
        fields: impl Fn(u32) -> usize,
        most_bytes: usize,
        mut emit: impl FnMut(u32, RecordKind, &[u8], bool),
    ) {
        self.rows.sort_unstable_by_key(|r| (r.1, r.0));
        self.pairs.sort_unstable_by_key(|p| (p.1, p.0, p.2));
        let (mut row, mut pair) = (0, 0);
        while row < self.rows.len() || pair < self.pairs.len() {
            // One batch: whole ids, up to its size. Within it the records are by space.
            let (first_row, first_pair) = (row, pair);
            let mut bytes = 0;
            while bytes < most_bytes && (row < self.rows.len() || pair < self.pairs.len()) {
                let next_row = self.rows.get(row).map_or(u64::MAX, |r| r.1);
                let next_pair = self.pairs.get(pair).map_or(u64::MAX, |p| p.1);
                let id = next_row.min(next_pair);
                while row < self.rows.len() && self.rows[row].1 == id {
                    bytes += 10 + 10 * fields(self.rows[row].0);
                    row += 1;
                }
                while pair < self.pairs.len() && self.pairs[pair].1 == id {
                    bytes += 26;
                    pair += 1;
                }
            }
            let rows = &mut self.rows[first_row..row];
            let pairs = &mut self.pairs[first_pair..pair];
            rows.sort_unstable_by_key(|r| (r.0, r.1));
            pairs.sort_unstable_by_key(|p| (p.0, p.1, p.2));
            let mut left = rows.chunk_by(|a, b| a.0 == b.0).count() + pairs.chunk_by(|a, b| a.0 == b.0).count();
            for group in rows.chunk_by(|a, b| a.0 == b.0) {
                let width = fields(group[0].0);
                let mut writer = RowsWriter::new(width);
                for &(_, id, start) in group {
                    writer.row(id, start.map(|s| &self.values[s..s + width]));
                }
                left -= 1;
                emit(group[0].0, RecordKind::Rows, &writer.finish(), left == 0);
            }
            for group in pairs.chunk_by(|a, b| a.0 == b.0) {
                let mut writer = PairsWriter::default();
                group.iter().for_each(|&(_, id, member, set)| writer.pair(id, member, set));
                left -= 1;
                emit(group[0].0, RecordKind::Pairs, &writer.finish(), left == 0);
            }
        }
        self.rows.clear();
        self.values.clear();
        self.pairs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_read_back() {
        for n in [0, 1, 127, 128, 1 << 32, u64::MAX - 1, u64::MAX] {
            let mut out = vec![];
            put_number(&mut out, n);
            let mut bytes = &out[..];
            assert_eq!(take_number(&mut bytes), Ok(n));
            assert!(bytes.is_empty());
            assert!(take_number(&mut &out[..out.len() - 1]).is_err());
        }
        assert!(take_number(&mut &[0xff; 10][..]).is_err(), "70 bits");
        for n in [0, -1, 1, i64::MIN, i64::MAX] {
            assert_eq!(unzigzag(zigzag(n)), n);
        }
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
            (7, MarkedMember::Hash(u128::MAX), true),
            (u64::MAX, MarkedMember::Hash(0), false),
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

    /// Decoders are total: any bytes give rows or an error.
    #[test]
    fn no_bytes_make_a_decoder_panic() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..200_000 {
            let bytes: Vec<u8> = (0..rng.usize(0..40)).map(|_| if rng.bool() { 0xff } else { rng.u8(..) }).collect();
            let _ = read_rows(&bytes, |_, _| Ok(()));
            let _ = read_pairs(&bytes, |_, _, _| Ok(()));
        }
    }

    /// However small the batches: all that a commit knows of one id is in one of them.
    #[test]
    fn an_id_is_never_split_over_batches() {
        for most in [1, 50, 500, 1 << 20] {
            let mut rng = fastrand::Rng::with_seed(most as u64);
            let mut commit = Commit::default();
            let (mut rows, mut pairs) = (0, 0);
            for id in 0..200 {
                for space in [1, 2] {
                    if rng.bool() {
                        commit.row(space, id, space as usize, |values| {
                            values.fill(id as i64);
                            rng.u8(0..4) > 0
                        });
                        rows += 1;
                    }
                }
                for member in 0..rng.u64(0..4) {
                    commit.pair(3, id, MarkedMember::Number(member), rng.bool());
                    pairs += 1;
                }
            }
            let mut batches = vec![vec![]];
            commit.records(
                |space| space as usize,
                most,
                |space, kind, payload, last| {
                    let batch = batches.last_mut().unwrap();
                    match kind {
                        RecordKind::Rows => read_rows(payload, |id, values| {
                            assert!(values.is_none_or(|v| v.iter().all(|&n| n == id as i64)));
                            batch.push((space, id));
                            rows -= 1;
                            Ok(())
                        }),
                        _ => read_pairs(payload, |id, _, _| {
                            batch.push((space, id));
                            pairs -= 1;
                            Ok(())
                        }),
                    }
                    .unwrap();
                    if last {
                        batches.push(vec![]);
                    }
                },
            );
            assert!(commit.is_empty());
            assert_eq!((rows, pairs), (0, 0));
            assert!(batches.pop().unwrap().is_empty());
            let mut seen = std::collections::HashMap::new();
            for (n, batch) in batches.iter().enumerate() {
                for &(_, id) in batch {
                    assert_eq!(*seen.entry(id).or_insert(n), n, "id {id} is in two batches of at most {most}");
                }
            }
            assert!(most > 1 << 19 || batches.len() > 1);
        }
    }
}
