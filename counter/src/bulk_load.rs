//! Bulk load: an empty space is filled from a snapshot, much faster than by [`Space::put`].
//!
//! ```text
//!   Space::loader(head, ranges)     a table per range, of the size its rows need; private so far
//!   Loader::part(low) -> push ...   rows in any order; one thread a part, many parts at once
//!   Loader::install                 all tables become the ring at once; then what is ahead is put
//! ```
//!
//! Three things make it fast. A table that no other thread knows needs no stripe, no bucket lock
//! and no atomic count. It is made as large as it will be, so nothing is rewritten. And rows wait
//! in a short queue from the moment their bucket is known and asked for until it is in the cache,
//! so memory is waited for once for [`QUEUE`] rows, not once each.
//!
//! The usual row is packed into one word and stored by two ([`Table::fill`]); one that escapes,
//! comes twice or finds its probes full goes the way of all writes.
//!
//! The *head* says of a space what its rows do not: how far its frontier was, and what its newest
//! table was made for.
//!
//! ```text
//!   offset  size  field                              little-endian
//!        0     8  magic "TMCNTHD" 01
//!        8     8  1 if the frontier is known, else 0
//!       16     8  frontier                           24  8  its window
//!       32     8  lowest id of the newest table      40  8  highest id that it has a place for
//!       48     8  rows that it was made for          56  8  1 if ids came in rising order, else 0
//!
//!   of several ranges of ids: magic "TMCNTHD" 02, and
//!       64    24  of each range below the highest, downwards: where the range above it begins, its
//!                 frontier, its window
//! ```

use crate::Error;
use crate::key::Home;
use crate::sizing::Sizing;
use crate::space::{FIRST_ROWS, Shape, Space};
use crate::table::Table;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// Rows whose buckets are on their way into the cache.
const QUEUE: usize = 32;

const MAGIC: &[u8; 8] = b"TMCNTHD\x01";
/// Of a space with several ranges of ids.
const MAGIC_RANGES: &[u8; 8] = b"TMCNTHD\x02";

/// A range of ids to be loaded: what the snapshot has a file for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoadRange {
    /// The lowest id.
    pub low: u64,
    /// The highest one, inclusive.
    pub last: u64,
    /// How many rows there are, about. A wrong number costs time or memory, nothing else.
    pub rows: u64,
}

/// A row that has no place in its part.
type Stray = (u64, Box<[i64]>);

/// An empty space under load. See the top of the file.
pub struct Loader<'a> {
    space: &'a Space,
    head: Head,
    /// By lowest id, rising.
    parts: Vec<(u64, Mutex<LoadPart>)>,
}

/// One range under load.
pub struct LoadPart {
    range: LoadRange,
    /// Ids that lie in none of these are ahead of the frontier.
    ids: Arc<[rolling::Range]>,
    /// Rows of ids below it are passed over: they were retired since.
    horizon: u64,
    table: Table,
    shape: Arc<Shape>,
    queue: Vec<(u64, Home)>,
    /// Of the rows in the queue, `width` each.
    values: Vec<i64>,
    strays: Vec<Stray>,
}

/// What a head says.
#[derive(Default)]
struct Head {
    ids: Arc<[rolling::Range]>,
    newest: LoadRange,
    rises: bool,
}

impl Default for LoadRange {
    fn default() -> LoadRange {
        LoadRange { low: u64::MAX, last: u64::MAX, rows: 0 }
    }
}

impl Head {
    fn decode(bytes: &[u8]) -> Result<Head, Error> {
        let (fields, rest) = bytes.as_chunks::<8>();
        let &[magic, known, high, window, low, last, rows, rises, ref lower @ ..] = fields else {
            return Err(Error::BadHead);
        };
        let has_ranges = &magic == MAGIC_RANGES;
        if (&magic != MAGIC && !has_ranges) || !rest.is_empty() || has_ranges == lower.is_empty() {
            return Err(Error::BadHead);
        }
        let [known, high, window, low, last, rows, rises] =
            [known, high, window, low, last, rows, rises].map(u64::from_le_bytes);
        if known > 1 || rises > 1 || low > last {
            return Err(Error::BadHead);
        }
        let newest = LoadRange { low, last, rows };
        let mut ids = if known == 1 { vec![high, window] } else { vec![] };
        ids.extend(lower.iter().copied().map(u64::from_le_bytes));
        let ids = rolling::Range::decode(&ids).ok_or(Error::BadHead)?;
        Ok(Head { ids: ids.into(), newest, rises: rises == 1 })
    }
}

impl Space {
    /// What the rows do not say, for [`Space::loader`]. Take it after the rows: a row that has come
    /// in meanwhile is then not ahead of it.
    pub fn encode_head(&self) -> Vec<u8> {
        let tables = self.ring.load();
        let (slot, table) = (tables.newest().slot(), tables.newest().table());
        let ids = rolling::Range::encode(&self.frontier.ranges());
        let mut fields = vec![u64::from(!ids.is_empty())];
        fields.extend(ids.iter().take(2));
        fields.resize(3, 0);
        fields.extend([
            slot.low(),
            table.span().1.max(slot.low()),
            table.roll_at(),
            u64::from(table.rises()),
        ]);
        fields.extend(ids.iter().skip(2));
        let mut bytes = if ids.len() > 2 { MAGIC_RANGES } else { MAGIC }.to_vec();
        fields.iter().for_each(|field| bytes.extend_from_slice(&field.to_le_bytes()));
        bytes
    }

    /// Begins a bulk load of an empty space: `head` is what [`Space::encode_head`] gave (empty:
    /// nothing is known), `ranges` rise and do not overlap. No write to the space is allowed before
    /// [`Loader::install`].
    pub fn loader(&self, head: &[u8], ranges: &[LoadRange]) -> Result<Loader<'_>, Error> {
        let head = if head.is_empty() { Head::default() } else { Head::decode(head)? };
        let rises = ranges.windows(2).all(|w| w[0].last < w[1].low)
            && ranges.iter().all(|r| r.low <= r.last);
        assert!(
            rises && self.rows() == 0,
            "a bulk load is for an empty space, and its ranges rise"
        );
        let shape = self.shape.load_full();
        let part = |(at, range): (usize, &LoadRange)| {
            let mut made_for = *range;
            if range.low == head.newest.low {
                // It goes on filling as it did.
                made_for.rows = range.rows.max(head.newest.rows);
                made_for.last = head.newest.last.clamp(range.low, range.last);
            }
            if let Some(next) = ranges.get(at + 1) {
                // What lies between two ranges has gone below since; a log may tell of it again.
                made_for.last = next.low - 1;
                if let Some(ids) = head.ids.windows(2).find(|ids| ids[1].start == next.low) {
                    // It goes on filling, and not up to there.
                    let (rows, span) = (range.rows.max(1), ids[0].high.saturating_sub(range.low));
                    let most = self.rows_per_table();
                    let all = (u128::from(span) * u128::from(most / rows + 1)).max(1 << 16);
                    let all = u64::try_from(all).unwrap_or(u64::MAX);
                    made_for.rows = rows.max(most);
                    made_for.last = range.low.saturating_add(all).min(made_for.last);
                }
            }
            let rows = made_for.rows.max(FIRST_ROWS.min(self.rows_per_table()));
            let sizing = Sizing::new(&shape.schema, range.low, made_for.last, rows);
            let part = LoadPart {
                range: *range,
                ids: head.ids.clone(),
                horizon: self.horizon(),
                table: self.new_table(&sizing, shape.schema.clone(), &self.quota)?,
                shape: shape.clone(),
                queue: Vec::with_capacity(QUEUE),
                values: Vec::with_capacity(QUEUE * shape.schema.width()),
                strays: Vec::new(),
            };
            Ok((range.low, Mutex::new(part)))
        };
        let parts = ranges.iter().enumerate().map(part).collect::<Result<_, Error>>()?;
        Ok(Loader { space: self, head, parts })
    }
}

impl Loader<'_> {
    /// The part of the range that begins at `low`, for as long as it is filled.
    pub fn part(&self, low: u64) -> Option<MutexGuard<'_, LoadPart>> {
        let at = self.parts.binary_search_by_key(&low, |part| part.0).ok()?;
        Some(self.parts[at].1.lock())
    }

    /// Ends the load: what was pushed is in the space. Returns how many rows were put one by one,
    /// because they are ahead.
    pub fn install(self) -> Result<u64, Error> {
        let Loader { space, head, parts } = self;
        let (mut tables, mut strays) = (Vec::new(), Vec::new());
        for (low, part) in parts {
            let mut part = part.into_inner();
            part.flush()?;
            let is_open = head.ids.iter().skip(1).any(|above| above.start - 1 == part.range.last);
            part.table.set_rises(is_open || (low == head.newest.low && head.rises));
            strays.append(&mut part.strays);
            tables.push((low, part.table));
        }
        if let Some(&(low, _)) = tables.first() {
            if low > 0 {
                let schema = space.schema();
                let sizing =
                    Sizing::new(&schema, 0, low - 1, FIRST_ROWS.min(space.rows_per_table()));
                tables.insert(0, (0, space.new_table(&sizing, schema, &space.quota)?));
            }
            match space.ring.rewrite(0, tables) {
                Ok(empty) => space.ring.finish(&empty),
                Err(_) => panic!("a bulk load is for an empty space"),
            }
        }
        space.retirement.begin_again();
        space.frontier.adopt_ranges(&head.ids);
        for (i, (id, row)) in strays.iter().enumerate() {
            space.put(*id, Some(row))?;
            // As under clients, where tables grow meanwhile.
            while i % 1024 == 0 && space.wants_maintenance() && space.maintain() {}
        }
        Ok(strays.len() as u64)
    }
}

impl LoadPart {
    /// Takes a row: values by position, missing ones are 0. The later of two rows of one id holds.
    #[inline]
    pub fn push(&mut self, id: u64, row: &[i64]) -> Result<(), Error> {
        let width = self.shape.schema.width();
        if row.len() > width {
            return Err(Error::BadSchema(format!("a row of {} values, {width} fields", row.len())));
        }
        if id < self.horizon {
            return Ok(());
        }
        let inside = id >= self.range.low
            && id <= self.range.last
            && self.ids.iter().rfind(|range| range.start <= id).is_some_and(|r| id <= r.high);
        let Some(home) = self.table.home(id).filter(|_| inside) else {
            self.strays.push((id, row.into()));
            return Ok(());
        };
        self.table.prefetch(home);
        self.queue.push((id, home));
        self.values.extend_from_slice(row);
        self.values.resize(self.queue.len() * width, 0);
        if self.queue.len() == QUEUE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Error> {
        let (mut rows, mut high) = (0, 0);
        for (&(id, home), row) in
            self.queue.iter().zip(self.values.chunks_exact(self.shape.schema.width()))
        {
            if self.table.fill(home, row) {
                rows += 1;
                high = high.max(id);
            } else {
                let cells = self.shape.schema.living().map(|(field, _)| (field, row[field]));
                self.table.store(id, self.table.locate(id), cells)?;
            }
        }
        self.table.count(rows, high);
        self.queue.clear();
        self.values.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Schema};

    /// The range between has gone below since the snapshot, and the log tells of its rows again.
    #[test]
    fn ids_between_loaded_ranges_have_a_place() {
        let schema = Schema::parse("a:12").unwrap();
        let space = Space::new(Options { rows_per_table: 1000, ..Options::new(schema) }).unwrap();
        let range = |low, last| LoadRange { low, last, rows: 0 };
        let ranges = [range(0, 999), range(1 << 40, u64::MAX)];
        space.loader(&[], &ranges).unwrap().install().unwrap();
        let newer = (1 << 40..(1 << 40) + 200).map(|id| id * 2 - (1 << 40));
        let ids: Vec<u64> = newer.chain([1 << 30, (1 << 40) - 1, 1000]).collect();
        for &id in &ids {
            space.put(id, Some(&[7])).unwrap();
        }
        while space.maintain() {}
        assert_eq!(space.ranges().iter().map(|range| range.rows).sum::<u64>(), ids.len() as u64);
        let mut row = [0];
        assert!(ids.iter().all(|&id| space.get(id, &mut row).unwrap() && row == [7]));
    }
}
