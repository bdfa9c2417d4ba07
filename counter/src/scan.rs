//! Cursor-based scan. The space keeps no state between calls.
//!
//! A cursor contains a table's name (a hash of its seed, range and size) and a position in that
//! table. If the table no longer exists, the scan restarts at the first table. Rows may then be
//! returned twice, but a row that exists throughout the scan is never missed.

use crate::key::{hash_by, seed_of};
use crate::space::{Space, all_tables};
use crate::table::Table;

/// Bits of a cursor. Together with one bit for the disk and one byte for the space, a cursor stays
/// below 2^50, so clients may store it as a double.
pub const CURSOR_BITS: u32 = 41;
/// Bits of the position; the bits above it name the table.
pub const POSITION_BITS: u32 = 18;
/// Maximum number of buckets that one call visits per requested row.
const BUCKETS_PER_ROW: u64 = 16;

/// Number of names per table. A table whose name collides with the name of another table uses an
/// alternative name.
const NAMES: u64 = 4;

/// Returns the name of a table with the given number: 23 bits, never 0.
fn name_of(table: &Table, turn: u64) -> u64 {
    let (low, last) = table.span();
    let shape = low ^ last.rotate_left(17) ^ table.buckets().rotate_left(40);
    (hash_by(seed_of(table.seed(), turn), shape) >> (64 - (CURSOR_BITS - POSITION_BITS))).max(1)
}

fn named(tables: &[&Table], name: u64) -> Option<usize> {
    (0..NAMES).find_map(|turn| tables.iter().position(|table| name_of(table, turn) == name))
}

/// Returns log2 of the buckets or blocks per position step: 0 unless `all` exceeds the number of
/// positions.
pub fn position_shift(all: u64) -> u32 {
    (64 - all.leading_zeros()).saturating_sub(POSITION_BITS)
}

impl Space {
    /// Passes about `most` ids to `f`. Returns the cursor for the next call, which is below 2^41,
    /// and 0 at the end. A scan starts with cursor 0.
    pub fn scan(&self, cursor: u64, most: u64, mut f: impl FnMut(u64)) -> u64 {
        let shape = self.shape.load_full();
        let width = shape.schema.width();
        let horizon = self.horizon();
        let (wanted, position) = (cursor >> POSITION_BITS, cursor & ((1 << POSITION_BITS) - 1));
        let mut given = 0;
        let tables = self.ring.load_full();
        // A drained table is visited once, before the tables that replace it. Rows then only move
        // to tables that the scan visits later, so the scan terminates.
        let all: Vec<&Table> = all_tables(&tables).collect();
        let start = if cursor == 0 { None } else { named(&all, wanted) };
        let mut bucket = start.map_or(0, |at| position << position_shift(all[at].buckets()));
        if start.is_none() {
            self.outliers.for_each(|id, _| {
                given += 1;
                f(id);
            });
        }
        let mut room = Vec::new();
        let mut looked = 0;
        for (i, table) in all.iter().enumerate().skip(start.unwrap_or(0)) {
            let shift = position_shift(table.buckets());
            while bucket < table.buckets() {
                let is_enough = given >= most || looked >= most.saturating_mul(BUCKETS_PER_ROW);
                if is_enough && (bucket >> shift) << shift == bucket {
                    let name = (0..NAMES)
                        .map(|turn| name_of(table, turn))
                        .find(|&name| named(&all, name) == Some(i));
                    // If all names collide, which is very unlikely, this call returns all rows of
                    // the table.
                    if let Some(name) = name {
                        return name << POSITION_BITS | bucket >> shift;
                    }
                }
                table.visit(bucket, shape.living, width, &mut room, |id, _, _| {
                    if id >= horizon {
                        given += 1;
                        f(id);
                    }
                });
                bucket += 1;
                looked += 1;
            }
            bucket = 0;
        }
        0
    }

    /// Returns the id of an arbitrary row, chosen by the random number `drawn`, or `None` if the
    /// search finds no row.
    pub fn some_id(&self, drawn: u64) -> Option<u64> {
        let tables = self.ring.load_full();
        let (shape, horizon) = (self.shape.load_full(), self.horizon());
        let width = shape.schema.width();
        let all: Vec<&Table> = tables
            .entries()
            .iter()
            .map(|entry| entry.table())
            .filter(|table| table.rows() > 0)
            .collect();
        let (mut room, mut found) = (Vec::new(), None);
        let first = usize::try_from(drawn % (all.len().max(1) as u64)).unwrap_or(0);
        for table in all[first..].iter().chain(&all[..first]) {
            let buckets = table.buckets();
            // In a table with rows, one of this many consecutive buckets contains a row.
            for step in 0..buckets.min(1 << 16) {
                let bucket = drawn.wrapping_add(step) % buckets;
                table.visit(bucket, shape.living, width, &mut room, |id, _, _| {
                    found = (id >= horizon).then_some(id).or(found);
                });
                if found.is_some() {
                    return found;
                }
            }
        }
        self.outliers.for_each(|id, _| found = Some(id));
        found
    }
}
