//! Bulk load: fills an empty space from a snapshot, much faster than [`Space::put`].
//!
//! ```text
//!   Space::loader(head, ranges)     one private table per range, sized for its rows
//!   Loader::part(low) -> push ...   rows in any order; one thread per part, parts in parallel
//!   Loader::install                 publishes all tables as the ring, then puts the outliers
//! ```
//!
//! A private table needs no stripe, bucket lock or atomic count. The table has its final size, so
//! nothing is rewritten. Rows wait in a short queue while their buckets are prefetched, so
//! [`QUEUE`] rows share one memory stall.
//!
//! Most rows fit in one word and are stored by [`Table::fill`]. A row uses the regular write path
//! if a value does not fit its field, if the id occurs twice, or if all probed buckets are full.
//!
//! The *head* holds the state of a space that its rows do not determine: the frontier, and the
//! dimensions of the newest table.
//!
//! ```text
//!   offset  size  field                              little-endian
//!        0     8  magic "TMCNTHD" 01
//!        8     8  1 if the frontier is known, else 0
//!       16     8  frontier                           24  8  its window
//!       32     8  lowest id of the newest table      40  8  highest id that the table can store
//!       48     8  rows that the table is sized for   56  8  1 if ids arrived in order, else 0
//!
//!   with several ranges of ids: magic "TMCNTHD" 02, and in addition
//!       64    24  for each range below the highest, descending: start of the range above it,
//!                 frontier, window
//! ```

use crate::Error;
use crate::key::Home;
use crate::sizing::Sizing;
use crate::space::{FIRST_ROWS, Shape, Space};
use crate::table::Table;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// Number of rows whose buckets are prefetched at the same time.
const QUEUE: usize = 32;

const MAGIC: &[u8; 8] = b"TMCNTHD\x01";
/// Magic bytes of a head with several ranges of ids.
const MAGIC_RANGES: &[u8; 8] = b"TMCNTHD\x02";

/// A range of ids to load, which has one file in the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoadRange {
    /// Lowest id.
    pub low: u64,
    /// Highest id, inclusive.
    pub last: u64,
    /// Approximate number of rows. An inaccurate number only costs time or memory.
    pub rows: u64,
}

/// A row that the table of its part cannot store: id and values.
type StrayRow = (u64, Box<[i64]>);

/// An empty space during a bulk load.
pub struct Loader<'a> {
    space: &'a Space,
    head: LoadHead,
    /// Parts by lowest id, ascending.
    parts: Vec<(u64, Mutex<LoadPart>)>,
}

/// One range during a bulk load.
pub struct LoadPart {
    range: LoadRange,
    /// Ids outside these ranges are outliers.
    ids: Arc<[rolling::Range]>,
    /// Rows below this are skipped, since they were retired.
    horizon: u64,
    table: Table,
    shape: Arc<Shape>,
    queue: Vec<(u64, Home)>,
    /// Values of the queued rows, `width` per row.
    values: Vec<i64>,
    strays: Vec<StrayRow>,
}

/// A decoded head.
#[derive(Default)]
struct LoadHead {
    ids: Arc<[rolling::Range]>,
    newest: LoadRange,
    is_ascending: bool,
}

impl Default for LoadRange {
    fn default() -> LoadRange {
        LoadRange { low: u64::MAX, last: u64::MAX, rows: 0 }
    }
}

impl LoadHead {
    fn decode(bytes: &[u8]) -> Result<LoadHead, Error> {
        let (fields, rest) = bytes.as_chunks::<8>();
        let &[magic, known, high, window, low, last, rows, is_ascending, ref lower @ ..] = fields
        else {
            return Err(Error::BadHead);
        };
        let has_ranges = &magic == MAGIC_RANGES;
        if (&magic != MAGIC && !has_ranges) || !rest.is_empty() || has_ranges == lower.is_empty() {
            return Err(Error::BadHead);
        }
        let [known, high, window, low, last, rows, is_ascending] =
            [known, high, window, low, last, rows, is_ascending].map(u64::from_le_bytes);
        if known > 1 || is_ascending > 1 || low > last {
            return Err(Error::BadHead);
        }
        let newest = LoadRange { low, last, rows };
        let mut ids = if known == 1 { vec![high, window] } else { vec![] };
        ids.extend(lower.iter().copied().map(u64::from_le_bytes));
        let ids = rolling::Range::decode(&ids).ok_or(Error::BadHead)?;
        Ok(LoadHead { ids: ids.into(), newest, is_ascending: is_ascending == 1 })
    }
}

impl Space {
    /// Encodes the head for [`Space::loader`]. Must be called after the rows were read, so that
    /// rows written concurrently are not above the frontier.
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
            u64::from(table.is_ascending()),
        ]);
        fields.extend(ids.iter().skip(2));
        let mut bytes = if ids.len() > 2 { MAGIC_RANGES } else { MAGIC }.to_vec();
        fields.iter().for_each(|field| bytes.extend_from_slice(&field.to_le_bytes()));
        bytes
    }

    /// Starts a bulk load of an empty space. `head` is a result of [`Space::encode_head`], or empty
    /// if unknown. `ranges` must be in ascending order and must not overlap. The caller must not
    /// write to the space before [`Loader::install`].
    ///
    /// # Errors
    ///
    /// [`Error::BadHead`] if `head` is invalid, [`Error::Full`] or [`Error::NoMemory`] if there is
    /// no memory for the tables.
    ///
    /// # Panics
    ///
    /// If the space has rows, or the ranges overlap or do not ascend.
    pub fn loader(&self, head: &[u8], ranges: &[LoadRange]) -> Result<Loader<'_>, Error> {
        let head = if head.is_empty() { LoadHead::default() } else { LoadHead::decode(head)? };
        let is_ascending = ranges.windows(2).all(|w| w[0].last < w[1].low)
            && ranges.iter().all(|r| r.low <= r.last);
        assert!(
            is_ascending && self.rows() == 0,
            "a bulk load needs an empty space and ascending ranges"
        );
        let shape = self.shape.load_full();
        let part = |(at, range): (usize, &LoadRange)| {
            let mut made_for = *range;
            if range.low == head.newest.low {
                // The newest table will receive more rows, so keep its previous size.
                made_for.rows = range.rows.max(head.newest.rows);
                made_for.last = head.newest.last.clamp(range.low, range.last);
            }
            if let Some(next) = ranges.get(at + 1) {
                // Rows between two ranges are in cold files; replay may write to them again.
                made_for.last = next.low - 1;
                if let Some(ids) = head.ids.windows(2).find(|ids| ids[1].start == next.low) {
                    // The last table of a range of ids will receive more rows, but covers only part
                    // of the gap to the next range.
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
    /// Locks the part of the range that begins at `low`. Returns `None` if there is no such part.
    pub fn part(&self, low: u64) -> Option<MutexGuard<'_, LoadPart>> {
        let at = self.parts.binary_search_by_key(&low, |part| part.0).ok()?;
        Some(self.parts[at].1.lock())
    }

    /// Publishes the loaded rows. Returns the number of rows that were written one by one, because
    /// their part's table could not store them.
    pub fn install(self) -> Result<u64, Error> {
        let Loader { space, head, parts } = self;
        let (mut tables, mut strays) = (Vec::new(), Vec::new());
        for (low, part) in parts {
            let mut part = part.into_inner();
            part.flush()?;
            let is_open = head.ids.iter().skip(1).any(|above| above.start - 1 == part.range.last);
            part.table.set_ascending(is_open || (low == head.newest.low && head.is_ascending));
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
                Err(_) => panic!("a bulk load needs an empty space"),
            }
        }
        space.retirement.restart_cleanup();
        space.frontier.adopt_ranges(&head.ids);
        for (i, (id, row)) in strays.iter().enumerate() {
            space.put(*id, Some(row))?;
            // These writes can make tables grow, as under regular traffic.
            while i % 1024 == 0 && space.wants_maintenance() && space.maintain() {}
        }
        Ok(strays.len() as u64)
    }
}

impl LoadPart {
    /// Adds a row. `row` holds the values by position; missing values are 0. If an id is added
    /// several times, the last row wins.
    ///
    /// # Errors
    ///
    /// [`Error::BadSchema`] if the row has more values than the schema, or the error of storing an
    /// earlier row.
    #[inline]
    pub fn push(&mut self, id: u64, row: &[i64]) -> Result<(), Error> {
        let width = self.shape.schema.width();
        if row.len() > width {
            return Err(Error::BadSchema(format!(
                "a row of {} values, expected {width}",
                row.len()
            )));
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

    /// Replay can write to ids between two loaded ranges if these ids were spilled after the
    /// snapshot.
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
