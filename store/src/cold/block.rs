//! Block of a cold file: a few hundred rows in 4 KiB, packed by column.
//!
//! ```text
//!   offset  size  field
//!        0     4  check     the page's checksum (pages.rs)
//!        4     2  rows      n, 1..=4096
//!        6     2  columns   c, 0..=64
//!        8     8  first     the lowest id
//!       16  4+4c  packing of the distances between ids, then of each column: width (7 bits, low
//!                 bits first), has a base (1), high width (8), exceptions (16)
//!              8  per column with a base: the base
//!                 bit array, low bits first: (n - 1) distances minus 1 and their exceptions, then
//!                 for each column n values minus the base, and its exceptions
//!                 zeros up to 4096
//! ```
//!
//! The array stores the low `width` bits of each number. Larger numbers are *exceptions*. The
//! positions of the exceptions follow the array, ascending and 12 bits each. The upper parts of the
//! exceptions, `high width` bits each, follow the positions. The size of a block therefore depends
//! on its typical values, not on its largest values. The format is the "patched frame of reference"
//! of Zukowski et al., "Super-Scalar RAM-CPU Cache Compression", ICDE 2006. The writer chooses the
//! width that minimises the column's size. A column has its lowest value as a base if that reduces
//! its size.
//!
//! Reading one row scans the distances once and accesses each column once.

use super::bits;
use crate::cold::BLOCK_BYTES;
use crate::frame::{u32_at, u64_at};

/// Maximum number of rows in a block.
pub const MAX_BLOCK_ROWS: usize = 4096;
/// Maximum number of columns.
pub const MAX_COLUMNS: usize = 64;

const HEADER_BYTES: usize = 16;
/// Width of an exception's position in bits.
const POSITION_BITS: u32 = 12;

/// Packing of an array of numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Packing {
    width: u32,
    high: u32,
    exceptions: usize,
    base: Option<i64>,
}

impl Packing {
    /// Returns the smallest packing of `n` numbers, given a histogram of their widths.
    fn best(n: usize, widths: &[u32; 65]) -> Packing {
        let most = widths.iter().rposition(|&count| count > 0).unwrap_or(0) as u32;
        let mut best = Packing { width: most, ..Packing::default() };
        let (mut cost, mut exceptions) = (best.bits(n), 0);
        for width in (0..most).rev() {
            exceptions += widths[width as usize + 1] as usize;
            let packing = Packing { width, high: most - width, exceptions, base: None };
            if packing.bits(n) < cost {
                (best, cost) = (packing, packing.bits(n));
            }
        }
        best
    }

    fn bits(&self, n: usize) -> usize {
        n * self.width as usize + self.exceptions * (POSITION_BITS + self.high) as usize
    }

    fn word(&self) -> u32 {
        self.width
            | u32::from(self.base.is_some()) << 7
            | self.high << 8
            | (self.exceptions as u32) << 16
    }
}

fn packing_of(values: impl Iterator<Item = i64> + Clone, n: usize) -> Packing {
    let widths = |base: i64| {
        let mut widths = [0; 65];
        values
            .clone()
            .for_each(|v| widths[bits::width_of(v.wrapping_sub(base) as u64) as usize] += 1);
        widths
    };
    let plain = Packing::best(n, &widths(0));
    let Some(least) = values.clone().min().filter(|&least| least != 0) else { return plain };
    let based = Packing { base: Some(least), ..Packing::best(n, &widths(least)) };
    if based.bits(n) + 64 < plain.bits(n) { based } else { plain }
}

/// Input of a block: ascending ids, and their values row by row.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) ids: &'a [u64],
    pub(super) values: &'a [i64],
    pub(super) columns: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn first(&self, n: usize) -> Rows<'a> {
        Rows {
            ids: &self.ids[..n],
            values: &self.values[..n * self.columns],
            columns: self.columns,
        }
    }

    fn column(&self, column: usize) -> impl Iterator<Item = i64> + Clone + 'a {
        self.values.iter().copied().skip(column).step_by(self.columns.max(1))
    }

    fn distances(&self) -> impl Iterator<Item = u64> + Clone + 'a {
        self.ids.windows(2).map(|pair| pair[1] - pair[0] - 1)
    }

    /// Returns the packings, distances first, and the total size in bytes.
    fn plan(&self) -> (Vec<Packing>, usize) {
        let n = self.ids.len();
        let mut widths = [0; 65];
        self.distances().for_each(|d| widths[bits::width_of(d) as usize] += 1);
        let mut packings = vec![Packing::best(n - 1, &widths)];
        packings.extend((0..self.columns).map(|column| packing_of(self.column(column), n)));
        let bases = packings.iter().filter(|p| p.base.is_some()).count();
        let bits = packings[0].bits(n - 1) + packings[1..].iter().map(|p| p.bits(n)).sum::<usize>();
        let bytes = HEADER_BYTES + 4 * packings.len() + 8 * bases + bits.div_ceil(8);
        (packings, bytes)
    }

    fn fits(&self, n: usize) -> bool {
        self.first(n).plan().1 <= BLOCK_BYTES
    }

    /// Returns the number of rows that fit into one block. The search begins at `guess`. One row
    /// always fits.
    pub(super) fn fitting(&self, guess: usize) -> usize {
        let most = self.ids.len().min(MAX_BLOCK_ROWS);
        let mut n = guess.clamp(1, most);
        while n > 1 && !self.fits(n) {
            n -= (n / 32).max(1);
        }
        for share in [16, 128] {
            while n < most {
                let next = (n + (n / share).max(1)).min(most);
                if !self.fits(next) {
                    break;
                }
                n = next;
            }
        }
        n
    }

    /// Encodes all rows, which must fit, as a block. The checksum remains zero.
    pub(super) fn encode(&self) -> Box<[u8; BLOCK_BYTES]> {
        let n = self.ids.len();
        let (packings, bytes) = self.plan();
        assert!(
            bytes <= BLOCK_BYTES && n <= MAX_BLOCK_ROWS && n > 0,
            "{n} rows do not fit a block"
        );
        let mut block = Box::new([0; BLOCK_BYTES]);
        block[4..6].copy_from_slice(&(n as u16).to_le_bytes());
        block[6..8].copy_from_slice(&(self.columns as u16).to_le_bytes());
        block[8..16].copy_from_slice(&self.ids[0].to_le_bytes());
        let mut at = HEADER_BYTES;
        for packing in &packings {
            block[at..at + 4].copy_from_slice(&packing.word().to_le_bytes());
            at += 4;
        }
        for base in packings.iter().filter_map(|p| p.base) {
            block[at..at + 8].copy_from_slice(&base.to_le_bytes());
            at += 8;
        }
        let mut at = at * 8;
        pack(&mut block[..], &mut at, &packings[0], self.distances());
        for (column, packing) in packings[1..].iter().enumerate() {
            let base = packing.base.unwrap_or(0);
            pack(
                &mut block[..],
                &mut at,
                packing,
                self.column(column).map(|v| v.wrapping_sub(base) as u64),
            );
        }
        block
    }
}

fn pack(
    block: &mut [u8],
    at: &mut usize,
    packing: &Packing,
    numbers: impl Iterator<Item = u64> + Clone,
) {
    let Packing { width, high, .. } = *packing;
    let low = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
    for number in numbers.clone() {
        bits::put(block, *at, width, number & low);
        *at += width as usize;
    }
    if high == 0 {
        return;
    }
    let large = numbers.enumerate().filter(|&(_, number)| bits::width_of(number) > width);
    for (position, _) in large.clone() {
        bits::put(block, *at, POSITION_BITS, position as u64);
        *at += POSITION_BITS as usize;
    }
    for (_, number) in large {
        bits::put(block, *at, high, number >> width);
        *at += high as usize;
    }
}

/// A packed array, and the bit offsets of its parts.
#[derive(Clone, Copy, Debug)]
struct PackedArray {
    packing: Packing,
    n: usize,
    numbers: usize,
    positions: usize,
    highs: usize,
}

impl PackedArray {
    fn position(&self, bytes: &[u8], exception: usize) -> usize {
        bits::get(bytes, self.positions + exception * POSITION_BITS as usize, POSITION_BITS)
            as usize
    }

    fn high(&self, bytes: &[u8], exception: usize) -> u64 {
        let high = self.packing.high;
        if high == 0 {
            return 0;
        }
        bits::get(bytes, self.highs + exception * high as usize, high) << self.packing.width
    }

    fn low(&self, bytes: &[u8], index: usize) -> u64 {
        let width = self.packing.width;
        bits::get(bytes, self.numbers + index * width as usize, width)
    }

    fn number(&self, bytes: &[u8], index: usize) -> u64 {
        let (mut from, mut to) = (0, self.packing.exceptions);
        while from < to {
            let middle = usize::midpoint(from, to);
            match self.position(bytes, middle) {
                at if at < index => from = middle + 1,
                at if at > index => to = middle,
                _ => return self.low(bytes, index) | self.high(bytes, middle),
            }
        }
        self.low(bytes, index)
    }

    fn value(&self, bytes: &[u8], index: usize) -> i64 {
        (self.number(bytes, index) as i64).wrapping_add(self.packing.base.unwrap_or(0))
    }

    /// Passes all numbers to `f` in order until it returns false.
    fn each(&self, bytes: &[u8], mut f: impl FnMut(usize, u64) -> bool) {
        let Packing { width, exceptions, .. } = self.packing;
        let place = |exception| {
            if exception < exceptions { self.position(bytes, exception) } else { usize::MAX }
        };
        let (mut exception, mut next) = (0, place(0));
        bits::each(bytes, self.numbers, width, self.n, |index, low| {
            let mut number = low;
            if index == next {
                number |= self.high(bytes, exception);
                exception += 1;
                next = place(exception);
            }
            f(index, number)
        });
    }
}

/// A verified block.
#[derive(Debug)]
pub struct Block<'a> {
    bytes: &'a [u8],
    rows: usize,
    first: u64,
    distances: PackedArray,
    columns: Vec<PackedArray>,
}

impl<'a> Block<'a> {
    /// Validates the structure of a block. The caller has verified the block's checksum.
    pub(super) fn parse(
        bytes: &'a [u8; BLOCK_BYTES],
        columns: usize,
    ) -> Result<Block<'a>, &'static str> {
        let head = u32_at(bytes, 4);
        let (rows, found) = ((head & 0xffff) as usize, (head >> 16) as usize);
        if rows == 0 || rows > MAX_BLOCK_ROWS {
            return Err("the block's row count is out of bounds");
        }
        if found != columns || columns > MAX_COLUMNS {
            return Err("the block's column count differs from its file");
        }
        let mut runs = Vec::with_capacity(columns + 1);
        let mut at = HEADER_BYTES;
        let mut bases = HEADER_BYTES + 4 * (columns + 1);
        for index in 0..=columns {
            let word = u32_at(bytes, at);
            at += 4;
            let n = if index == 0 { rows - 1 } else { rows };
            let (width, high, exceptions) = (word & 0x7f, word >> 8 & 0xff, (word >> 16) as usize);
            if width > 64 || high > 64 || width + high > 64 || exceptions > n {
                return Err("invalid packing of a column");
            }
            let base = match word >> 7 & 1 {
                0 => None,
                // The base is within the block, because the heads and bases of 65 arrays end before
                // byte 1000.
                _ => {
                    bases += 8;
                    Some(u64_at(bytes, bases - 8) as i64)
                }
            };
            let packing = Packing { width, high, exceptions, base };
            runs.push(PackedArray { packing, n, numbers: 0, positions: 0, highs: 0 });
        }
        let mut at = bases * 8;
        for run in &mut runs {
            let Packing { width, high, exceptions, .. } = run.packing;
            run.numbers = at;
            run.positions = at + run.n * width as usize;
            run.highs = run.positions + exceptions * POSITION_BITS as usize;
            at = run.highs + exceptions * high as usize;
        }
        if at > BLOCK_BYTES * 8 {
            return Err("the block's columns exceed its size");
        }
        let distances = runs.remove(0);
        Ok(Block { bytes, rows, first: u64_at(bytes, 8), distances, columns: runs })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Looks up an id and copies its values to `out`. Returns whether the id exists. Excess
    /// elements of `out` become 0.
    pub fn get(&self, id: u64, out: &mut [i64]) -> bool {
        let mut at = self.first;
        let mut found = (at == id).then_some(0);
        if at < id {
            self.distances.each(self.bytes, |index, distance| {
                // Damaged distances may overflow; then the id is not found.
                at = at.saturating_add(distance).saturating_add(1);
                if at == id {
                    found = Some(index + 1);
                }
                at < id
            });
        }
        let Some(row) = found else { return false };
        out.fill(0);
        for (run, out) in self.columns.iter().zip(out) {
            *out = run.value(self.bytes, row);
        }
        true
    }

    /// Looks up ascending ids in one pass. `each` receives every id, and its values if it exists.
    pub fn get_all(&self, ids: &[u64], mut each: impl FnMut(u64, Option<&[i64]>)) {
        let mut ids = ids.iter().copied().peekable();
        let mut values = [0; MAX_COLUMNS];
        let values = &mut values[..self.columns.len()];
        let mut next = ids.peek().copied();
        let mut visit = |row: usize, at: u64| {
            // Fast path for rows between the requested ids.
            if next.is_some_and(|id| at < id) {
                return true;
            }
            while let Some(absent) = ids.next_if(|&id| id < at) {
                each(absent, None);
            }
            if let Some(id) = ids.next_if_eq(&at) {
                for (run, value) in self.columns.iter().zip(&mut *values) {
                    *value = run.value(self.bytes, row);
                }
                each(id, Some(values));
            }
            next = ids.peek().copied();
            next.is_some()
        };
        let mut at = self.first;
        if visit(0, at) {
            self.distances.each(self.bytes, |index, distance| {
                // Damaged distances may overflow; then the id is not found.
                at = at.saturating_add(distance).saturating_add(1);
                visit(index + 1, at)
            });
        }
        ids.for_each(|absent| each(absent, None));
    }

    /// Appends all ids to `ids` and their values, row by row, to `values`.
    pub fn append_to(&self, ids: &mut Vec<u64>, values: &mut Vec<i64>) -> Result<(), &'static str> {
        let mut id = Some(self.first);
        ids.push(self.first);
        self.distances.each(self.bytes, |_, distance| {
            id = id.and_then(|id| id.checked_add(distance)?.checked_add(1));
            id.inspect(|&id| ids.push(id)).is_some()
        });
        if id.is_none() {
            return Err("ids beyond 2^64-1");
        }
        let (start, width) = (values.len(), self.columns.len());
        values.resize(start + self.rows * width, 0);
        for (column, run) in self.columns.iter().enumerate() {
            let base = run.packing.base.unwrap_or(0);
            run.each(self.bytes, |row, number| {
                values[start + row * width + column] = (number as i64).wrapping_add(base);
                true
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(ids: &[u64], values: &[i64], columns: usize) -> usize {
        let rows = Rows { ids, values, columns };
        let n = rows.fitting(500);
        let bytes = rows.first(n).encode();
        let block = Block::parse(&bytes, columns).unwrap();
        let (mut back, mut back_values) = (Vec::new(), Vec::new());
        block.append_to(&mut back, &mut back_values).unwrap();
        assert_eq!((&back[..], &back_values[..]), (&ids[..n], &values[..n * columns]));
        let mut out = vec![9; columns + 1];
        for (i, &id) in ids[..n].iter().enumerate() {
            assert!(block.get(id, &mut out));
            assert_eq!(out[..columns], values[i * columns..][..columns]);
            assert_eq!(out[columns], 0, "an unknown field");
            for near in [id.wrapping_sub(1), id.wrapping_add(1)] {
                assert_eq!(block.get(near, &mut out), ids[..n].binary_search(&near).is_ok());
            }
        }
        let wanted: Vec<u64> = ids.iter().flat_map(|&id| [id, id.saturating_add(1)]).collect();
        let mut wanted = [&[0][..], &wanted[..], &[u64::MAX][..]].concat();
        wanted.sort_unstable();
        wanted.dedup();
        let mut seen = Vec::new();
        block.get_all(&wanted, |id, row| {
            seen.push(id);
            let there = ids[..n].binary_search(&id).ok().map(|i| &values[i * columns..][..columns]);
            assert_eq!(row, there, "{id}");
        });
        assert_eq!(seen, wanted);
        n
    }

    #[test]
    fn rows_read_back_whatever_they_are() {
        let mut rng = fastrand::Rng::with_seed(1);
        round_trip(&[u64::MAX], &[i64::MIN, i64::MAX], 2);
        round_trip(&[0, u64::MAX], &[i64::MIN, i64::MAX, 0, -1], 2);
        round_trip(&[5, 6, 7], &[], 0);
        let widest: Vec<i64> = (0..64 * 20).map(|_| rng.i64(..)).collect();
        assert!(round_trip(&(0..20).map(|i| i << 58).collect::<Vec<_>>(), &widest, 64) >= 6);
        for round in 0..60 {
            let columns = rng.usize(0..6);
            let gap = 1 << rng.u32(0..40);
            let mut id = rng.u64(..) >> 1;
            let n = rng.usize(1..3000);
            let ids: Vec<u64> = (0..n)
                .map(|_| {
                    id += 1 + rng.u64(0..gap);
                    id
                })
                .collect();
            let value = |rng: &mut fastrand::Rng| match rng.u32(0..20) {
                0 => rng.i64(..),
                1 => -rng.i64(0..1000),
                _ => rng.i64(..) >> 40 >> rng.clone().u32(1..20) & 0xff_ffff,
            };
            let values: Vec<i64> = (0..n * columns).map(|_| value(&mut rng)).collect();
            assert!(round_trip(&ids, &values, columns) > 0, "round {round}");
        }
        // Test rows that take zero bits each, and columns with values far from 0.
        assert_eq!(round_trip(&(0..5000).collect::<Vec<_>>(), &[0; 5000], 1), MAX_BLOCK_ROWS);
        let far: Vec<i64> = (0..5000).map(|i| 1_700_000_000_000 + i % 7).collect();
        assert!(round_trip(&(0..5000).collect::<Vec<_>>(), &far, 1) == MAX_BLOCK_ROWS);
    }

    #[test]
    fn hostile_bytes_end_with_an_error_or_a_block() {
        let mut rng = fastrand::Rng::with_seed(2);
        let ids: Vec<u64> = (0..2000).map(|i| i * 37).collect();
        let values: Vec<i64> =
            (0..6000).map(|i| i % 100 * if i % 50 == 0 { 1 << 40 } else { 1 }).collect();
        let rows = Rows { ids: &ids, values: &values, columns: 3 };
        let good = rows.first(rows.fitting(500)).encode();
        let (mut bad, mut read) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..rng.usize(1..8) {
                let end = if rng.bool() { 40 } else { BLOCK_BYTES };
                let at = rng.usize(4..end);
                bytes[at] = rng.u8(..);
            }
            match Block::parse(&bytes, 3) {
                Err(_) => bad += 1,
                Ok(block) => {
                    read += 1;
                    let mut out = [0; 3];
                    block.get(rng.u64(0..80_000), &mut out);
                    block.get(u64::MAX, &mut out);
                    let (mut ids, mut values) = (Vec::new(), Vec::new());
                    let _ = block.append_to(&mut ids, &mut values);
                    assert!(ids.len() <= MAX_BLOCK_ROWS);
                }
            }
        }
        assert!(
            bad > 1000 && read > 1000,
            "{bad} damaged and {read} readable blocks, expected both"
        );
    }
}
