//! Selects the filters of a space to resize, and records the progress of rebuilds
//! (`tiering/rebuild.rs`).

use ledger::OwnedMember;
use parking_lot::Mutex;
use phantom::{Rebuild, TableLoad};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

/// Time without significant growth after which a table gets a filter of exactly the right size.
const QUIET_INTERVAL: Duration = Duration::from_secs(10);
/// Time before the next attempt to resize a table, after a failure or a lack of memory.
const RETRY_INTERVAL: Duration = Duration::from_secs(300);
/// Growth by more than 1/`GROWTH_PART` is significant.
const GROWTH_PART: u64 = 64;
/// A new filter has room for the growth that is expected within this time.
const GROWTH_TIME: Duration = Duration::from_secs(60);

/// State of the rebuilds of a space.
#[derive(Default)]
pub struct Rebuilds {
    pub(crate) now: Mutex<Option<ActiveRebuild>>,
    /// Tables whose filters are too small or too large, by lowest id.
    watched: Mutex<HashMap<u64, WatchedTable>>,
    /// Number of tables to rebuild, including the current table, at the time of the last step.
    pub left: AtomicUsize,
    /// Number of rebuilt tables.
    pub tables: AtomicU64,
    /// Number of pairs written to new filters.
    pub pairs: AtomicU64,
}

/// Running rebuild of a table, and its position in the ledger.
pub(crate) struct ActiveRebuild {
    pub(crate) rebuild: Rebuild,
    /// Last pair read, or `None` at the start.
    pub(crate) after: Option<(u64, OwnedMember)>,
    /// Whether the rebuild only changes the size of the filters.
    pub(crate) resizes: bool,
}

/// State of a table when it last grew significantly; see [`GROWTH_PART`].
struct WatchedTable {
    pairs: u64,
    since: Instant,
    /// Growth rate at that time, in pairs per second.
    rate: f64,
    retry_at: Option<Instant>,
}

/// A table to resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resize {
    /// Lowest id of the table's range.
    pub(crate) low: u64,
    /// Number of additional pairs that the new filter has room for.
    pub(crate) spare: u64,
    extensions: usize,
}

impl Rebuilds {
    /// Returns the table with the most extensions among those that are due for a resize, and the
    /// number of tables that are due.
    ///
    /// A growing table is due when it has two extensions. Its new filter has room for the expected
    /// pairs of the next minute: at least half and at most three times the current number. Each
    /// pair is thus copied about twice, and less often if the table grows fast. A table that has
    /// stopped growing is due if it has an extension, or far more room than pairs. Its new filter
    /// has exactly the right size.
    pub(crate) fn next_resize(&self, loads: &[TableLoad], now: Instant) -> (Option<Resize>, usize) {
        let is_unsuitable = |load: &&TableLoad| load.extensions > 0 || load.is_oversized();
        let mut watched = self.watched.lock();
        let mut before = std::mem::take(&mut *watched);
        let mut due = Vec::new();
        for load in loads.iter().filter(is_unsuitable) {
            let new = WatchedTable { pairs: load.pairs, since: now, rate: 0.0, retry_at: None };
            let mut table = before.remove(&load.low).unwrap_or(new);
            let elapsed = now.saturating_duration_since(table.since);
            let gained = load.pairs.saturating_sub(table.pairs);
            if gained > table.pairs / GROWTH_PART {
                let rate = gained as f64 / elapsed.as_secs_f64();
                table = WatchedTable { pairs: load.pairs, since: now, rate, ..table };
            }
            let is_quiet = now.saturating_duration_since(table.since) >= QUIET_INTERVAL;
            let expected = (table.rate * GROWTH_TIME.as_secs_f64()) as u64;
            let growing = expected.clamp(load.pairs / 2, load.pairs.saturating_mul(3));
            let spare = if is_quiet { 0 } else { growing };
            if (is_quiet || load.extensions > 1) && table.retry_at.is_none_or(|at| at <= now) {
                due.push(Resize { low: load.low, spare, extensions: load.extensions });
            }
            watched.insert(load.low, table);
        }
        (due.iter().max_by_key(|resize| resize.extensions).copied(), due.len())
    }

    /// Defers the next attempt to resize a table.
    pub(crate) fn defer_resize(&self, low: u64, now: Instant) {
        if let Some(table) = self.watched.lock().get_mut(&low) {
            table.retry_at = Some(now + RETRY_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(pairs: u64, capacity: u64, extensions: usize) -> TableLoad {
        let early = 800_000;
        TableLoad { low: 0, pairs, capacity, early, extensions, is_cold: false }
    }

    /// Returns the spare room of a table's new filter if the table is due `seconds` after `start`.
    fn spare(rebuilds: &Rebuilds, start: Instant, seconds: u64, load: TableLoad) -> Option<u64> {
        let (resize, _) = rebuilds.next_resize(&[load], start + Duration::from_secs(seconds));
        resize.map(|resize| resize.spare)
    }

    #[test]
    fn a_growing_table_gets_room_and_a_quiet_one_its_size() {
        let (rebuilds, start) = (Rebuilds::default(), Instant::now());
        let mut grown = 1_000_000;
        for seconds in 0..60 {
            grown += 10_000;
            assert_eq!(spare(&rebuilds, start, seconds, load(grown, 1 << 20, 1)), None);
        }
        // The table has grown by less than half in the last minute.
        let slow = load(grown, 1 << 20, 2);
        assert_eq!(spare(&rebuilds, start, 60, slow), Some(slow.pairs / 2));
        let fast = load(grown + 1_000_000, 1 << 20, 2);
        assert_eq!(spare(&rebuilds, start, 61, fast), Some(3 * fast.pairs));
        let is_over = load(grown + 1_000_000, 1 << 20, 1);
        for seconds in 62..85 {
            let is_due = spare(&rebuilds, start, seconds, is_over);
            assert_eq!(is_due, (seconds >= 71).then_some(0), "{seconds}");
        }
    }

    #[test]
    fn an_oversized_table_shrinks_once_it_is_closed_and_quiet() {
        let (rebuilds, start) = (Rebuilds::default(), Instant::now());
        let closed = load(1_000_000, 1_600_000, 0);
        let open = TableLoad { early: 0, ..closed };
        for seconds in [0, 30] {
            assert_eq!(spare(&rebuilds, start, seconds, open), None);
        }
        assert_eq!(spare(&rebuilds, start, 31, closed), None);
        assert_eq!(spare(&rebuilds, start, 41, closed), Some(0));
        for (capacity, is_oversized) in [(1_400_000, false), (2_400_000, true)] {
            let grown = load(capacity / 5 * 4, capacity, 0);
            assert_eq!(grown.is_oversized(), is_oversized, "{capacity}");
        }
    }

    #[test]
    fn a_failed_resize_is_tried_again_later() {
        let (rebuilds, start) = (Rebuilds::default(), Instant::now());
        let two = load(3_000_000, 1 << 20, 2);
        assert!(spare(&rebuilds, start, 0, two).is_some());
        rebuilds.defer_resize(0, start);
        assert_eq!(spare(&rebuilds, start, 299, two), None);
        assert!(spare(&rebuilds, start, 300, two).is_some());
    }
}
