//! The frontier decides which ids count as normal traffic. A single bad id cannot move a table
//! boundary (R5; promise 7 in `docs/promises.md`).
//!
//! Ids grow with time, so a new id is normally close to the highest id so far. But a broken client
//! may send 2^64-1. If that became the highest id, the ring could never create another table above
//! it. An id more than one *window* above the frontier is therefore an *outlier*
//! ([`Admission::Ahead`]): the engine stores it in the outlier map, and no table boundary moves.
//!
//! Ids far ahead may also be legitimate. The service may have been idle for a month, or a second
//! service may use larger ids. When enough such ids arrive, the frontier creates a new *range* for
//! them. Each range has its own highest id and window, and ends where the next range starts:
//!
//! ```text
//!      range 0, from id 0       high    window           range 1       high   window
//!   ----------------------------|---------|---- gap ----[--------------|--------|---------> id
//!          Inside                 Inside,    Ahead          Inside       Inside,   Ahead
//!                                 moves high                             moves high
//! ```
//!
//! The ring has an open table at each `high`, and creates the next table above that table. A new
//! range does not change the existing ranges, so writes to older ids may continue at a high or a
//! low rate. A new range starts at the *shorth*, the shortest interval with half of the ids
//! (Andrews et al., Robust Estimates of Location, 1972). A few bad ids therefore do not affect
//! where a range starts. A new range requires this number of ids:
//!
//! - If there is no range yet: [`MIN_IDS_AHEAD`] distinct ids, or [`FIRST_RANGE_ENTRIES`] entries,
//!   or `max_outliers` entries if that is less.
//! - If there are ranges already: `max_outliers / 16` entries ([`MAX_ENTRIES_NEEDED`] by default)
//!   of at least [`MIN_IDS_AHEAD`] distinct ids. The interval must be shorter than a sixteenth of
//!   its distance to the next lower range; with `max_outliers` entries any interval is accepted.
//!   The interval contains the required number of ids, or half of all ids if that is less, because
//!   two services may start at the same time. If the interval is within [`WINDOW_FACTOR`] windows
//!   of the next lower range, that range grows instead.
//! - When memory for outliers is short: the same number as for the first range, at any distance.
//!
//! If a range receives no new id while other ranges receive [`IDLE_RANGE_IDS`], the frontier merges
//! it into the range above it. Its later ids count as late traffic. There are at most
//! [`MAX_RANGES`] ranges. When all of them are in use, other ids stay in the outlier map until the
//! map has `max_outliers` entries or memory is short. Then the frontier merges the least recently
//! used range into the range above it.
//!
//! The frontier moves by at most half of the remaining ids per step ([`Frontier::reach`]), because
//! a ring at the end of the id space could never create another table. Legitimate ids do not jump
//! to the end of the id space, but negative numbers do: a client's -1 is 2^64-1. Such ids stay in
//! the outlier map. The first range starts beyond the reach only if the map has `max_outliers`
//! entries, these are enough for a range, and most of them are beyond the reach.
//!
//! A space may refuse ids that are too high (`max_ahead`). The distance is measured from the
//! highest range or, without any range, from the highest id in the outlier map
//! ([`Frontier::is_too_far`]).
//!
//! A node that replays a log (at startup, or as a replica) reads the frontier from the log
//! ([`Frontier::tell`]) and does not move the frontier by itself. Replay orders the ids of a batch
//! differently from the original writes. A frontier computed from replayed ids would admit ids
//! earlier, and would put table boundaries at other ids.

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, fence,
};

/// Minimum number of distinct outlier ids for a new range.
pub(crate) const MIN_IDS_AHEAD: usize = 64;
/// Number of entries that suffice for the first range even if they have fewer than
/// [`MIN_IDS_AHEAD`] distinct ids. A small service may have only three posts.
const FIRST_RANGE_ENTRIES: usize = 4096;
/// Upper bound of the number of outlier entries required for each range after the first.
const MAX_ENTRIES_NEEDED: usize = 4096;
/// Maximum number of entries of one id that count towards [`MAX_ENTRIES_NEEDED`].
const MAX_COUNTED_PER_ID: usize = MAX_ENTRIES_NEEDED / MIN_IDS_AHEAD;
/// Minimum window of a range.
const MIN_WINDOW: u64 = 1024;
const WINDOW_FACTOR: u64 = 16;
/// Maximum number of ranges of a frontier. Each range has an open table.
pub const MAX_RANGES: usize = 8;
/// A range that receives no new id is merged into the range above it after the other ranges have
/// received this many new ids.
const IDLE_RANGE_IDS: u64 = 1 << 16;

/// Returns the number of outlier entries required for each range after the first.
fn entries_needed_for(max_outliers: usize) -> usize {
    (max_outliers / 16).clamp(MIN_IDS_AHEAD, MAX_ENTRIES_NEEDED)
}

/// Decision about an id that is about to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The id goes to the table that covers it.
    Inside,
    /// The id goes to the outlier map until a range reaches it.
    Ahead,
    /// The id exceeds the frontier by more than `max_ahead`: refuse it (`ERR key too big`).
    TooFar,
}

/// A range of ids in use. Ids from `start` to `high` count as normal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First id of the range; 0 for the lowest range. No table extends across this id.
    pub start: u64,
    /// Highest admitted id.
    pub high: u64,
    /// Largest jump above `high` that counts as normal.
    pub window: u64,
}

impl Range {
    /// Encodes ranges, given in ascending order, as numbers for a log or a snapshot. The list
    /// contains `high` and `window` of the highest range. For each lower range, in descending
    /// order, it then contains `start` of the range above it, `high`, `window`. An empty slice
    /// yields an empty list.
    pub fn encode(ranges: &[Range]) -> Vec<u64> {
        let mut numbers = Vec::new();
        for (i, range) in ranges.iter().enumerate().rev() {
            numbers.extend(ranges.get(i + 1).map(|above| above.start));
            numbers.extend([range.high, range.window]);
        }
        numbers
    }

    /// Decodes the numbers of [`Range::encode`]. Returns `None` if they are invalid.
    pub fn decode(numbers: &[u64]) -> Option<Vec<Range>> {
        let Some((&[high, window], lower)) = numbers.split_first_chunk() else {
            return numbers.is_empty().then(Vec::new);
        };
        let (lower, rest) = lower.as_chunks::<3>();
        let mut ranges = vec![Range { start: 0, high, window }];
        for &[start, high, window] in lower {
            let above = ranges.last_mut()?;
            above.start = start;
            if high >= start || start > above.high {
                return None;
            }
            ranges.push(Range { start: 0, high, window });
        }
        ranges.reverse();
        (rest.is_empty() && ranges.len() <= MAX_RANGES).then_some(ranges)
    }
}

/// A range, and the value of [`Tracking::moves`] when the `high` of the range last moved.
#[derive(Clone, Copy)]
struct Tracked {
    range: Range,
    moved: u64,
}

/// A range below the highest range, as published to writers.
struct LowerRange {
    start: u64,
    high: AtomicU64,
}

/// Decides which ids count as normal. All methods may be called from any thread.
///
/// The struct is aligned to two cache lines, because processors fetch lines in pairs. Writers of
/// new ids store to this struct, and every read loads the adjacent data.
#[repr(align(128))]
pub struct Frontier {
    /// `start` and `high` belong to the highest range; 0 while `known` is false.
    start: AtomicU64,
    high: AtomicU64,
    known: AtomicBool,
    follows: AtomicBool,
    /// Maximum distance of a new id above the frontier; `u64::MAX` if unlimited.
    max_ahead: AtomicU64,
    /// Number of outlier entries required for another range. The next field is the number of
    /// entries above which the distances between their ids no longer matter.
    entries_needed: AtomicUsize,
    max_outliers: AtomicUsize,
    /// Number of writes to ids far ahead since the last [`Frontier::advance`]. The next field is
    /// the number of such writes that triggers the next call.
    ahead: AtomicUsize,
    advance_after: AtomicUsize,
    /// Ranges below the highest range, in ascending order.
    lower: ArcSwap<Vec<LowerRange>>,
    /// All ranges, in ascending order. Locked while a range is extended, created or merged.
    ranges: Mutex<Tracking>,
}

#[derive(Default)]
struct Tracking {
    ranges: Vec<Tracked>,
    /// Number of times a range has moved to a higher id.
    moves: u64,
}

impl Tracking {
    fn values(&self) -> Vec<Range> {
        self.ranges.iter().map(|tracked| tracked.range).collect()
    }

    /// Returns the index of the last range that starts at or below `id`.
    fn below(&self, id: u64) -> Option<usize> {
        self.ranges.iter().rposition(|tracked| tracked.range.start <= id)
    }

    /// Returns the highest id that the range at index `at` may contain.
    fn last(&self, at: usize) -> u64 {
        self.ranges.get(at + 1).map_or(u64::MAX, |next| next.range.start - 1)
    }

    /// Merges the range at index `at`, which is not the highest, into the range above it.
    fn join(&mut self, at: usize) {
        let Tracked { range, .. } = self.ranges.remove(at);
        self.ranges[at].range.start = range.start;
    }

    /// Merges each range that is idle or full, except the highest, into the range above it. Returns
    /// whether any range was merged.
    fn join_idle(&mut self) -> bool {
        let before = self.ranges.len();
        let mut at = 0;
        while at + 1 < self.ranges.len() {
            let Tracked { range, moved } = self.ranges[at];
            if self.moves - moved > IDLE_RANGE_IDS || range.high == self.last(at) {
                self.join(at);
            } else {
                at += 1;
            }
        }
        self.ranges.len() < before
    }

    /// Merges the least recently used range into the range above it. Does not consider the highest
    /// range, or the last range that starts at or below `id`. Returns whether a range was merged.
    fn join_oldest(&mut self, id: Option<u64>) -> bool {
        let kept = id.and_then(|id| self.below(id));
        let others = (0..self.ranges.len().saturating_sub(1)).filter(|&at| Some(at) != kept);
        let oldest = others.min_by_key(|&at| self.ranges[at].moved);
        oldest.map(|at| self.join(at)).is_some()
    }
}

impl Frontier {
    /// Creates a frontier without ranges. [`Frontier::is_too_far`] explains `max_ahead`. With
    /// `max_outliers` outlier entries, a range is created even if their ids are far apart.
    pub fn new(max_ahead: Option<u64>, max_outliers: usize) -> Frontier {
        Frontier {
            start: AtomicU64::new(0),
            high: AtomicU64::new(0),
            known: AtomicBool::new(false),
            follows: AtomicBool::new(false),
            max_ahead: AtomicU64::new(max_ahead.unwrap_or(u64::MAX)),
            entries_needed: AtomicUsize::new(entries_needed_for(max_outliers)),
            max_outliers: AtomicUsize::new(max_outliers),
            ahead: AtomicUsize::new(0),
            advance_after: AtomicUsize::new(0),
            lower: ArcSwap::default(),
            ranges: Mutex::default(),
        }
    }

    /// Restores a frontier from the result of [`Frontier::ranges`].
    pub fn restore(ranges: &[Range], max_ahead: Option<u64>, max_outliers: usize) -> Frontier {
        let frontier = Frontier::new(max_ahead, max_outliers);
        frontier.set_ranges(ranges);
        frontier
    }

    /// Changes the limits; see [`Frontier::new`].
    pub fn set_limits(&self, max_ahead: Option<u64>, max_outliers: usize) {
        self.max_ahead.store(max_ahead.unwrap_or(u64::MAX), Relaxed);
        self.entries_needed.store(entries_needed_for(max_outliers), Relaxed);
        self.max_outliers.store(max_outliers, Relaxed);
    }

    /// Ranges in ascending order; empty until the first range is created.
    pub fn ranges(&self) -> Vec<Range> {
        self.ranges.lock().values()
    }

    /// Replaces all ranges.
    fn set_ranges(&self, ranges: &[Range]) {
        let mut tracking = self.ranges.lock();
        let moved = tracking.moves;
        let widened = |range: &Range| Range { window: range.window.max(MIN_WINDOW), ..*range };
        tracking.ranges =
            ranges.iter().map(|range| Tracked { range: widened(range), moved }).collect();
        self.publish(&tracking);
    }

    /// Publishes the ranges to writers. Writers may see a state between two stores, so the order of
    /// the stores matters. If an id is in a range both before and after the call, no writer may
    /// find it outside all ranges. If an id is in a gap, no writer may find it in a range. If the
    /// highest range was merged with a lower range, this function therefore lowers `start` before
    /// it removes the lower range from the list. If a new highest range was created, this function
    /// first adds the former highest range to the list.
    fn publish(&self, tracking: &Tracking) {
        let (top, lower) = match tracking.ranges.split_last() {
            Some((top, lower)) => (top.range, lower),
            None => (Range { start: 0, high: 0, window: 0 }, &[][..]),
        };
        if top.start < self.start.load(Relaxed) && top.high == self.high.load(Relaxed) {
            self.start.store(top.start, SeqCst);
        }
        let lower = lower.iter().map(|Tracked { range, .. }| LowerRange {
            start: range.start,
            high: AtomicU64::new(range.high),
        });
        self.lower.store(Arc::new(lower.collect()));
        self.start.store(top.start, SeqCst);
        self.high.store(top.high, SeqCst);
        self.known.store(!tracking.ranges.is_empty(), SeqCst);
    }

    /// Extends the range at or below `id` to include `id`, and widens the range's window to at
    /// least `window`. Used for ids that recovery finds in a file or that another site reports.
    pub fn adopt(&self, id: u64, window: u64) {
        let mut tracking = self.ranges.lock();
        let moved = tracking.moves;
        match tracking.below(id) {
            Some(at) => {
                let range = &mut tracking.ranges[at].range;
                range.high = range.high.max(id);
                range.window = range.window.max(window);
            }
            None => {
                let range = Range { start: 0, high: id, window: window.max(MIN_WINDOW) };
                tracking.ranges.push(Tracked { range, moved });
            }
        }
        self.publish(&tracking);
    }

    /// Adopts the ranges of a snapshot. Ids that were [adopted](Frontier::adopt) earlier stay in a
    /// range.
    pub fn adopt_ranges(&self, ranges: &[Range]) {
        let ours = self.ranges();
        if !ranges.is_empty() {
            self.set_ranges(ranges);
            ours.iter().for_each(|range| self.adopt(range.high, range.window));
        }
    }

    /// Sets whether a log controls the frontier. If so, writes do not move it.
    pub fn follow(&self, follows: bool) {
        self.follows.store(follows, SeqCst);
    }

    /// Whether a log controls the frontier.
    pub fn follows(&self) -> bool {
        self.follows.load(SeqCst)
    }

    /// Sets the [`Frontier::ranges`] that the log's writer recorded, and follows the log from now
    /// on. The highest id of the frontier decreases if this node has admitted higher ids than the
    /// node that wrote the log.
    pub fn tell(&self, ranges: &[Range]) {
        self.follow(true);
        self.set_ranges(ranges);
    }

    /// Decides whether a write replayed from a log goes to the tables.
    pub(crate) fn admit_replayed(&self, id: u64) -> Admission {
        if self.follows() { self.admit_unsampled(id) } else { self.admit(id) }
    }

    /// Decides whether an operation that adds no data goes to the tables. Such an operation does
    /// not move the frontier.
    pub(crate) fn admit_unsampled(&self, id: u64) -> Admission {
        if self.contains(id) { Admission::Inside } else { Admission::Ahead }
    }

    /// Whether `id` is in a range.
    pub fn contains(&self, id: u64) -> bool {
        // Load `high` first, because `publish` stores `start` before `high`. SeqCst loads are plain
        // loads on x86; outliers.rs explains why they are needed.
        let high = self.high.load(SeqCst);
        if id >= self.start.load(SeqCst) {
            return id <= high && self.known.load(SeqCst);
        }
        fence(SeqCst);
        let lower = self.lower.load();
        lower.iter().rfind(|range| range.start <= id).is_some_and(|r| id <= r.high.load(SeqCst))
    }

    /// Decides whether a write to `id` goes to the tables. An id in the window of a range raises
    /// the range's `high`.
    #[inline]
    pub fn admit(&self, id: u64) -> Admission {
        let high = self.high.load(SeqCst);
        if id <= high && id >= self.start.load(SeqCst) && self.known.load(SeqCst) {
            return Admission::Inside;
        }
        self.admit_above(id)
    }

    /// Whether `id` exceeds the frontier by more than `max_ahead`. Before the first range is
    /// created, the distance is measured from `highest`, the highest id in the outlier map. The
    /// first id of a space is never too far.
    pub fn is_too_far(&self, id: u64, highest: Option<u64>) -> bool {
        let most = self.max_ahead.load(Relaxed);
        self.high().or(highest).is_some_and(|from| id.saturating_sub(from) > most)
    }

    #[cold]
    fn admit_above(&self, id: u64) -> Admission {
        if self.contains(id) {
            return Admission::Inside;
        }
        let mut tracking = self.ranges.lock();
        let Some(at) = tracking.below(id) else {
            self.ahead.fetch_add(1, Relaxed);
            return Admission::Ahead;
        };
        let is_top = at + 1 == tracking.ranges.len();
        if is_top && self.is_too_far(id, None) {
            return Admission::TooFar;
        }
        let Range { high, window, .. } = tracking.ranges[at].range;
        if id > high {
            // A single id cannot extend a lower range to its last possible id. The window of a new
            // range is narrower than the gap above it, and only ids in the gap widen the window.
            if id - high > window || (is_top && id > reach(high)) {
                self.ahead.fetch_add(1, Relaxed);
                return Admission::Ahead;
            }
            tracking.moves += 1;
            let moves = tracking.moves;
            tracking.ranges[at].range.high = id;
            tracking.ranges[at].moved = moves;
            match is_top {
                true => self.high.store(id, SeqCst),
                false => self.lower.load()[at].high.store(id, SeqCst),
            }
        }
        Admission::Inside
    }

    /// Returns the highest id that the frontier may reach in one step. Half of the remaining ids
    /// are above it.
    pub fn reach(&self) -> u64 {
        reach(self.high().unwrap_or(0))
    }

    /// Highest admitted id, if any.
    pub fn high(&self) -> Option<u64> {
        self.known.load(SeqCst).then(|| self.high.load(SeqCst))
    }

    /// Last ids of the [open](Frontier::is_open) tables, ascending.
    pub fn open_ends(&self) -> Vec<u64> {
        let lower = self.lower.load();
        let starts = lower.iter().map(|range| range.start).chain([self.start.load(SeqCst)]);
        starts.skip(1).map(|start| start - 1).chain([u64::MAX]).collect()
    }

    /// Whether the table that ends at `last` receives new ids. Such a table is either the newest
    /// table, or the last table below the start of a range.
    pub fn is_open(&self, last: u64) -> bool {
        let Some(next) = last.checked_add(1) else { return true };
        next == self.start.load(SeqCst) || self.lower.load().iter().any(|r| r.start == next)
    }

    /// Returns the first id above all admitted ids of the table that ends at `last`. The table may
    /// be closed there. Returns `None` if no such id exists or the table is not
    /// [open](Frontier::is_open). Takes no lock.
    pub fn boundary(&self, last: u64) -> Option<u64> {
        let high = match last.checked_add(1) {
            None => self.high()?,
            Some(next) => {
                let lower = self.lower.load();
                let above = lower.iter().position(|range| range.start == next);
                let is_below_top = next == self.start.load(SeqCst);
                let above = above.or(is_below_top.then_some(lower.len()))?;
                lower.get(above.checked_sub(1)?)?.high.load(SeqCst)
            }
        };
        high.checked_add(1).filter(|&boundary| boundary <= last)
    }

    /// Widens the window of the range that contains `id` to a quarter of `span`. `span` is the
    /// number of ids that a full table covers. Gaps between ids are normal if they are small
    /// compared with a table.
    pub fn widen(&self, id: u64, span: u64) {
        let mut tracking = self.ranges.lock();
        if let Some(at) = tracking.below(id) {
            let range = &mut tracking.ranges[at].range;
            range.window = range.window.max(span / 4);
        }
    }

    /// Whether there were enough writes to ids far ahead for [`Frontier::advance`] to find a range.
    /// `entries` is the current size of the outlier map.
    #[inline]
    pub fn should_advance(&self, entries: usize) -> bool {
        entries >= MIN_IDS_AHEAD.min(self.max_outliers.load(Relaxed))
            && self.ahead.load(Relaxed) >= self.advance_after.load(Relaxed).max(MIN_IDS_AHEAD)
            && !self.follows()
    }

    /// Creates or extends a range for the ids in `ahead`. `ahead` contains the ids of all outlier
    /// entries in any order, repeated once per write. Returns whether a range was created or
    /// extended. The engine then moves entries into tables.
    ///
    /// `is_short` is true if memory for outliers is short. `open` must close the table that
    /// contains the start of the range, and return whether it has closed the table. `open` runs
    /// while the frontier's lock is held, so it must not wait for a writer that waits for this
    /// lock.
    pub fn advance(
        &self,
        ahead: &mut Vec<u64>,
        is_short: bool,
        open: impl FnOnce(Range) -> bool,
    ) -> bool {
        let mut tracking = self.ranges.lock();
        self.ahead.store(0, Relaxed);
        // Every attempt sorts all entries, and most of the entries may never become part of a
        // range. Retry only after the number of writes has grown by an eighth.
        self.advance_after.store(ahead.len() / 8, Relaxed);
        ahead.retain(|&id| !self.contains(id));
        ahead.sort_unstable();
        let is_short = is_short && !tracking.ranges.is_empty();
        let is_full = is_short || ahead.len() >= self.max_outliers.load(Relaxed);
        let Some(range) = self.range_among(&tracking, ahead, is_full, is_short) else {
            return false;
        };
        let place = |tracking: &Tracking| {
            tracking.ranges.binary_search_by_key(&range.start, |tracked| tracked.range.start)
        };
        let tracked = Tracked { range, moved: tracking.moves };
        match place(&tracking) {
            Ok(at) => tracking.ranges[at] = tracked,
            Err(0) => tracking.ranges.push(tracked),
            Err(_) => {
                let is_crowded = tracking.ranges.len() >= MAX_RANGES;
                if (is_crowded && !is_full) || !open(range) {
                    return false;
                }
                if is_crowded {
                    tracking.join_oldest(Some(range.start));
                }
                let (Ok(at) | Err(at)) = place(&tracking);
                tracking.ranges.insert(at, tracked);
            }
        }
        // The remaining entries may suffice for another range.
        self.advance_after.store(0, Relaxed);
        self.ahead.store(MIN_IDS_AHEAD, Relaxed);
        self.publish(&tracking);
        true
    }

    /// Joins idle ranges with the ranges above them. Returns whether any was joined.
    pub fn join_idle(&self) -> bool {
        if self.lower.load().is_empty() {
            return false;
        }
        self.change(Tracking::join_idle)
    }

    /// Merges the least recently used range, other than the highest, into the range above it.
    /// Returns whether there was such a range.
    pub fn join_oldest(&self) -> bool {
        self.change(|tracking| tracking.join_oldest(None))
    }

    fn change(&self, change: impl FnOnce(&mut Tracking) -> bool) -> bool {
        let mut tracking = self.ranges.lock();
        let changed = change(&mut tracking);
        if changed {
            self.publish(&tracking);
        }
        changed
    }

    /// Returns the range to create for the sorted ids of `ahead`. If these ids are within
    /// [`WINDOW_FACTOR`] windows of an existing range, returns that range, extended to include the
    /// ids. Returns `None` if there are too few ids or they are too far apart.
    fn range_among(
        &self,
        tracking: &Tracking,
        ahead: &mut Vec<u64>,
        is_full: bool,
        is_short: bool,
    ) -> Option<Range> {
        self.retain_gap_candidates(tracking, ahead, is_full, is_short)?;
        let mut half = ahead.len() / 2;
        if !tracking.ranges.is_empty() {
            // Use only as many ids as a range needs, because the other ids may belong to another
            // service.
            half = half.min(self.entries_needed.load(Relaxed));
        }
        let first = (0..ahead.len() - half).min_by_key(|&i| ahead[i + half] - ahead[i])?;
        let span = ahead[first + half] - ahead[first];
        let mut window = span.saturating_mul(WINDOW_FACTOR).max(MIN_WINDOW);
        let Some(below) = tracking.below(ahead[first]) else {
            let high = chain(&ahead[first + half..], window);
            return Some(Range { start: 0, high, window });
        };
        let (known, last) = (tracking.ranges[below].range, tracking.last(below));
        let near = &ahead[first + half..];
        window = window.min(last - near[0]);
        let distance = ahead[first].saturating_sub(known.high);
        if distance.saturating_add(span) <= known.window.saturating_mul(WINDOW_FACTOR) {
            let window = known.window.max(window);
            return Some(Range { high: chain(near, window), window, ..known });
        }
        // Include lower ids that are much closer to the shorth than to the next lower range. These
        // ids are older posts of the same service.
        let close = |&id: &u64| ahead[first] - id <= id.saturating_sub(known.high) / WINDOW_FACTOR;
        let start = ahead[..=first].iter().rev().copied().take_while(close).last()?;
        (distance > window || is_full).then(|| Range { start, high: chain(near, window), window })
    }

    /// Reduces the sorted `ahead` to the distinct ids of the gap that has the most entries. Returns
    /// `None` if there are too few ids for a range.
    fn retain_gap_candidates(
        &self,
        tracking: &Tracking,
        ahead: &mut Vec<u64>,
        is_full: bool,
        is_short: bool,
    ) -> Option<()> {
        let near = &ahead[..ahead.partition_point(|&id| id <= self.reach())];
        let ids = |entries: &[u64]| entries.chunk_by(|a, b| a == b).count();
        let is_quorum = |entries: &[u64]| ids(entries) >= MIN_IDS_AHEAD;
        let is_quorum_at_start =
            |entries: &[u64]| is_quorum(entries) || entries.len() >= FIRST_RANGE_ENTRIES;
        let is_leap = |entries: &[u64]| {
            let counted =
                entries.chunk_by(|a, b| a == b).map(|of_id| of_id.len().min(MAX_COUNTED_PER_ID));
            is_quorum(entries) && counted.sum::<usize>() >= self.entries_needed.load(Relaxed)
        };
        if !tracking.ranges.is_empty() {
            let gaps = near.chunk_by(|&a, &b| tracking.below(a) == tracking.below(b));
            let fullest = gaps.max_by_key(|gap| gap.len())?;
            let is_enough = is_leap(fullest) || (is_short && is_quorum_at_start(fullest));
            if !is_enough {
                return None;
            }
            *ahead = fullest.to_vec();
        } else if is_quorum_at_start(near) {
            ahead.truncate(near.len());
        } else if !is_full {
            return None;
        } else if !is_quorum_at_start(ahead) || near.len() >= ahead.len().div_ceil(2) {
            // The range starts beyond the reach only if most entries are there, and all entries
            // together are enough for a range.
            ahead.truncate(near.len());
        }
        ahead.dedup();
        Some(())
    }
}

/// Follows the ascending `ids` while each step is at most `window`. Returns the last id that is
/// within `window` of the first.
fn chain(ids: &[u64], window: u64) -> u64 {
    let steps = ids.windows(2).take_while(|pair| pair[1] - pair[0] <= window);
    let near = steps.map(|pair| pair[1]).take_while(|id| id - ids[0] <= window);
    near.last().unwrap_or(ids[0])
}

fn reach(high: u64) -> u64 {
    high + (u64::MAX - high) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use Admission::*;

    /// Capacity of the outlier map.
    const MOST: usize = 1 << 16;

    /// Creates a range if there are enough ids, and removes its ids from `ahead`.
    fn take_in(frontier: &Frontier, ahead: &mut Vec<u64>) {
        if frontier.should_advance(ahead.len())
            && frontier.advance(&mut ahead.clone(), false, |_| true)
        {
            ahead.retain(|&id| !frontier.contains(id));
        }
    }

    fn of(high: u64, window: u64, max_ahead: Option<u64>) -> Frontier {
        Frontier::restore(&[Range { start: 0, high, window }], max_ahead, MOST)
    }

    /// Advances the frontier over all of `ahead` at once. Returns the frontier's highest id.
    fn advanced(frontier: &Frontier, ahead: impl IntoIterator<Item = u64>) -> Option<u64> {
        let mut ahead: Vec<u64> = ahead.into_iter().collect();
        frontier.advance(&mut ahead, false, |_| true).then(|| frontier.high().unwrap())
    }

    /// Creates a frontier that has admitted `n` ids, starting at `first` and `gap` apart.
    fn settled(first: u64, gap: u64, n: u64) -> Frontier {
        let frontier = Frontier::new(None, MOST);
        let mut ahead = vec![];
        for i in 0..n {
            if frontier.admit(first + i * gap) == Ahead {
                ahead.push(first + i * gap);
                take_in(&frontier, &mut ahead);
            }
        }
        assert_eq!(ahead, [], "all normal ids were admitted");
        assert_eq!(frontier.high(), Some(first + (n - 1) * gap));
        frontier
    }

    #[test]
    fn normal_traffic_is_admitted_after_a_quorum() {
        settled(0, 1, 100);
        settled(3_631_614_501_919_378, 4096, 10_000);
        settled((1 << 63) - 100, 1, 10_000);
    }

    #[test]
    fn one_bad_id_moves_nothing_however_often_it_comes() {
        let frontier = settled(1 << 50, 4096, 1000);
        let high = frontier.high();
        for _ in 0..100_000 {
            assert_eq!(frontier.admit(u64::MAX), Ahead);
        }
        assert_eq!(advanced(&frontier, vec![u64::MAX; 100_000]), None);
        assert_eq!(frontier.high(), high);
        assert_eq!(frontier.admit(high.unwrap() + 4096), Inside);
    }

    #[test]
    fn a_bad_id_at_the_very_start_has_no_say() {
        let frontier = Frontier::new(None, MOST);
        let mut ahead = vec![u64::MAX, u64::MAX, 1 << 62];
        ahead.iter().for_each(|&id| assert_eq!(frontier.admit(id), Ahead));
        for i in 0..MIN_IDS_AHEAD as u64 {
            assert_eq!(frontier.admit(1_000_000 + i * 10), Ahead);
            ahead.push(1_000_000 + i * 10);
        }
        assert!(frontier.should_advance(ahead.len()));
        assert_eq!(advanced(&frontier, ahead), Some(1_000_000 + 63 * 10));
        assert_eq!(frontier.admit(u64::MAX), Ahead);
        assert_eq!(frontier.admit(0), Inside);
    }

    #[test]
    fn a_service_with_three_posts_gets_a_frontier() {
        let frontier = Frontier::new(None, MOST);
        let ahead: Vec<u64> = (0..4096).map(|i| 5000 + i % 3).collect();
        assert_eq!(advanced(&frontier, ahead[..4095].to_vec()), None);
        assert_eq!(advanced(&frontier, ahead), Some(5002));
    }

    /// A small outlier map must not block the first range forever.
    #[test]
    fn a_side_dictionary_of_any_size_gets_a_frontier() {
        for most in [1, 2, 10, 63, 64, 100, 1000, 5000] {
            let posts = |n: usize| (0..n as u64).map(|i| 5000 + i % 3);
            let few = most.min(FIRST_RANGE_ENTRIES) - 1;
            let frontier = Frontier::new(None, most);
            assert_eq!(
                (write(&frontier, posts(few)).len(), frontier.high()),
                (few, None),
                "{most}"
            );
            assert!(
                write(&frontier, posts(2 * 5000)).is_empty() && frontier.high() < Some(5003),
                "{most}"
            );
            // Near the end of the id space there are half of all ids, only three distinct ids, or
            // all ids except one.
            let begins = |ids: &dyn Fn(u64) -> u64| {
                let frontier = Frontier::new(None, most);
                (advanced(&frontier, (0..most as u64).map(ids)), frontier.admit(u64::MAX))
            };
            assert_eq!(
                begins(&|i| if i % 2 == 0 { 5000 } else { u64::MAX - i }),
                (Some(5000), Ahead),
                "{most}"
            );
            if most < FIRST_RANGE_ENTRIES {
                assert_eq!(
                    begins(&|i| if i == 0 { 5000 } else { u64::MAX - i % 3 }),
                    (Some(5000), Ahead),
                    "{most}"
                );
                assert_eq!(
                    begins(&|i| u64::MAX - i % 3),
                    (None, Ahead),
                    "{most}: a few ids moved the frontier"
                );
            }
            if most > MIN_IDS_AHEAD {
                let high = begins(&|i| if i == 0 { 5000 } else { u64::MAX - i }).0;
                assert!(high > Some(u64::MAX / 2), "{most}: {high:?}");
            }
        }
    }

    /// Writes all ids and advances the frontier when [`Frontier::should_advance`] allows it.
    /// Returns the ids that are still outliers.
    fn write(frontier: &Frontier, ids: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut ahead: Vec<u64> = vec![];
        for id in ids {
            if frontier.admit(id) == Ahead {
                ahead.push(id);
                take_in(frontier, &mut ahead);
            }
        }
        ahead
    }

    /// The ids of two services arrive interleaved, or all ids of one service after those of the
    /// other, as in replay.
    #[test]
    fn two_services_that_begin_together_have_a_range_each() {
        let random = (1..3000).map(|i: u64| i.wrapping_mul(2_862_933_555_777_941_757) >> 1);
        let of = |from: u64| (0..5000).map(move |i| from + i);
        let one_by_one = of(1_000_000).zip(of(1_000_000_000_000)).flat_map(|(a, b)| [a, b]);
        let behind = of(1_000_000).chain(of(1_000_000_000_000));
        for ids in [one_by_one.collect::<Vec<_>>(), behind.collect()] {
            let frontier = settled(1000, 1, 5000);
            let mut ahead = write(&frontier, random.clone().chain(ids));
            take_in(&frontier, &mut ahead);
            let starts: Vec<u64> = frontier.ranges().iter().map(|range| range.start).collect();
            assert_eq!(starts[..2], [0, 1_000_000], "{starts:?}");
            assert!(starts.contains(&1_000_000_000_000), "{starts:?}");
            assert!(ahead.len() <= 3000, "{}", ahead.len());
        }
    }

    /// A range remains open while it receives new ids.
    #[test]
    fn traffic_that_jumps_opens_a_range() {
        let frontier = settled(1 << 50, 4096, 1000);
        let old = frontier.ranges()[0];
        let later = |from: u64, to: u64| (from..to).map(|i| (1 << 51) + i * 4096);
        let few = 4 * MAX_ENTRIES_NEEDED as u64;
        assert_eq!(write(&frontier, [u64::MAX].into_iter().chain(later(0, few))), [u64::MAX]);
        assert_eq!(frontier.high(), later(0, few).next_back());
        let ranges = frontier.ranges();
        assert_eq!((ranges.len(), ranges[0]), (2, old));
        assert_eq!(
            (ranges[1].start, frontier.boundary(u64::MAX)),
            (1 << 51, Some(ranges[1].high + 1))
        );
        let last = (1 << 51) - 1;
        assert_eq!((frontier.boundary(last), frontier.is_open(last)), (Some(old.high + 1), true));
        assert_eq!((frontier.boundary(last - 1), frontier.is_open(last - 1)), (None, false));
        // Ids in the gap are outliers. Ids in the window of either range raise its `high`.
        assert_eq!((frontier.admit(last), frontier.admit(1 << 51)), (Ahead, Inside));
        assert_eq!((frontier.admit(7), frontier.admit(old.high + 4096)), (Inside, Inside));
        assert_eq!((frontier.ranges()[0].high, frontier.ranges()[1]), (old.high + 4096, ranges[1]));
        assert!(!frontier.join_idle());
        assert!(write(&frontier, later(few, few + IDLE_RANGE_IDS + 1)).is_empty());
        assert!(frontier.join_idle());
        let high = later(few, few + IDLE_RANGE_IDS + 1).next_back().unwrap();
        assert_eq!(frontier.ranges(), [Range { start: 0, high, ..ranges[1] }]);
        assert_eq!(frontier.admit(last), Inside, "late");
    }

    /// For a long time, each of the smaller ranges gets one new id in 20, or one in 1,000.
    #[test]
    fn ranges_stay_apart_for_as_long_as_each_is_used() {
        for share in [20, 1000] {
            let frontier = settled(1 << 50, 4096, 1000);
            let ids = |i: u64| match i % share {
                0 => (1 << 52) + i * 16,
                1 => (1 << 58) + i * 1000,
                _ => (1 << 50) + (1000 + i) * 4096,
            };
            let ahead = write(&frontier, (0..10_000_000).map(ids));
            assert!(ahead.len() < MAX_ENTRIES_NEEDED, "{share}: {} ahead", ahead.len());
            let starts: Vec<u64> = frontier.ranges().iter().map(|range| range.start).collect();
            assert_eq!(starts, [0, 1 << 52, (1 << 58) + 1000], "{share}");
            assert!(!frontier.join_idle());
        }
    }

    /// While [`MAX_RANGES`] ranges are in use, a new range is created only after an idle range has
    /// been merged into another range.
    #[test]
    fn ranges_are_few() {
        let frontier = settled(1 << 30, 1, 1000);
        let place = |n: u64, i: u64| (1 << (32 + n)) + i;
        let few = 2 * MAX_ENTRIES_NEEDED as u64;
        for n in 1..MAX_RANGES as u64 {
            assert!(write(&frontier, (0..few).map(|i| place(n, i))).is_empty(), "{n}");
        }
        let used = (1..MAX_RANGES as u64).flat_map(|n| (few..few + 1).map(move |i| place(n, i)));
        assert!(write(&frontier, used).is_empty());
        let more = MAX_RANGES as u64 + 5;
        let ahead = write(&frontier, (0..few).map(|i| place(more, i)));
        assert_eq!((ahead.len(), frontier.ranges().len()), (few as usize, MAX_RANGES));
        // Only the highest range receives new ids from now on.
        assert!(
            write(&frontier, (0..2 * IDLE_RANGE_IDS).map(|i| place(7, few + 1 + i))).is_empty()
        );
        assert!(frontier.join_idle());
        assert!(write(&frontier, (0..2 * few).map(|i| place(more, i))).is_empty());
        assert_eq!(
            frontier.ranges().iter().map(|range| range.start).collect::<Vec<_>>(),
            [0, place(more, 0)]
        );
    }

    /// The gap with more writes gets the range. A new range does not extend across an existing
    /// range, even if there are nearby ids on both sides.
    #[test]
    fn a_range_opens_between_two_others_or_above_them() {
        let middle = 1 << 40;
        for (below, above) in [(5000, 4500), (4500, 5000)] {
            let frontier = settled(1 << 20, 1, 1000);
            assert!(
                write(&frontier, (0..2 * MAX_ENTRIES_NEEDED as u64).map(|i| middle + i)).is_empty()
            );
            let [old, range] = frontier.ranges()[..] else { panic!("two") };
            let above = (0..above).map(|i| range.high + 40 * range.window + i * i);
            let mut ids: Vec<u64> = (1..=below).map(|i| middle - i * i).chain(above).collect();
            assert!(frontier.advance(&mut ids, true, |_| true));
            let ranges = frontier.ranges();
            assert_eq!((ranges.len(), ranges[0]), (3, old));
            assert!(ranges.contains(&range), "{ranges:?}");
            assert_eq!(ranges[1].high < middle, below == 5000, "{ranges:?}");
        }
    }

    /// When memory is short, a range is created for a few distinct ids, however far apart they are.
    #[test]
    fn short_memory_opens_a_range_for_a_quorum() {
        let young = Frontier::new(None, MOST);
        let mut bad: Vec<u64> = (0..MIN_IDS_AHEAD as u64).map(|i| u64::MAX - i).collect();
        assert!(!young.advance(&mut bad, true, |_| true), "a space does not start at the end");
        let frontier = settled(1 << 50, 4096, 1000);
        let old = frontier.ranges()[0];
        let advance = |n: u64, is_short| {
            let mut ids: Vec<u64> = (0..n).map(|i| (1 << 51) + (i << 44)).collect();
            frontier.advance(&mut ids, is_short, |_| true)
        };
        let few = MIN_IDS_AHEAD as u64;
        assert!(!advance(few, false) && !advance(few - 1, true));
        assert!(advance(few, true));
        let ranges = frontier.ranges();
        assert_eq!((ranges.len(), ranges[0], ranges[1].start), (2, old, 1 << 51));
        assert_eq!(ranges[1].high, (1 << 51) + ((few - 1) << 44));
    }

    /// If all ranges are in use and memory is short, the least recently used range is merged into
    /// the range above it. The range directly below the new range is never merged.
    #[test]
    fn the_range_that_is_used_least_makes_room() {
        let place = |n: u64, i: u64| (1 << (32 + n)) + i;
        for (joined, new) in [(3, place(20, 0)), (1, place(3, 1 << 34))] {
            let frontier = settled(1 << 30, 1, 1000);
            for n in 1..MAX_RANGES as u64 {
                assert!(
                    write(&frontier, (0..2 * MAX_ENTRIES_NEEDED as u64).map(|i| place(n, i)))
                        .is_empty()
                );
            }
            let next = 2 * MAX_ENTRIES_NEEDED as u64;
            let used = (0..8)
                .filter(|&n| n != 3)
                .map(|n| if n == 0 { 1 << 30 | 1000 } else { place(n, next) });
            let used = used.map(|id| (frontier.admit(id), id)).collect::<Vec<_>>();
            assert!(used.iter().all(|used| used.0 == Inside), "{used:?}");
            if joined == 1 {
                assert_eq!(frontier.admit((1 << 30) + 1001), Inside);
            }
            let mut ids: Vec<u64> = (0..MIN_IDS_AHEAD as u64).map(|i| new + i).collect();
            assert!(
                !frontier.advance(&mut ids.clone(), false, |_| true),
                "not while memory is available"
            );
            assert!(!frontier.advance(&mut ids.clone(), true, |_| false));
            assert_eq!(frontier.ranges().len(), MAX_RANGES);
            assert!(frontier.advance(&mut ids, true, |_| true));
            let starts: Vec<u64> = frontier.ranges().iter().map(|range| range.start).collect();
            let mut expected: Vec<u64> =
                (0..8).map(|n| if n == 0 { 0 } else { place(n, 0) }).collect();
            expected.push(new);
            expected.sort_unstable();
            // The range above the merged range now begins at the start of the merged range.
            expected.retain(|&start| start != place(joined + 1, 0));
            assert_eq!(starts, expected);
            assert!(frontier.contains(place(joined, 7)) && frontier.contains(place(joined + 1, 7)));
            assert_eq!(frontier.admit(place(joined, 1 << 20)), Inside, "late");
        }
        let frontier = settled(1 << 30, 1, 1000);
        assert!(!frontier.join_oldest());
        assert!(
            write(&frontier, (0..2 * MAX_ENTRIES_NEEDED as u64).map(|i| place(9, i))).is_empty()
        );
        assert!(frontier.join_oldest() && !frontier.join_oldest());
        assert_eq!(frontier.ranges().len(), 1);
    }

    /// A few ids are just above the range in use, and many ids are far above it. The new range
    /// starts at the many ids and does not include the few.
    #[test]
    fn a_range_begins_far_above_the_one_below() {
        let frontier = settled(1 << 50, 4096, 1000);
        let Range { high, window, .. } = frontier.ranges()[0];
        let strays = (1..100).map(|i| high + 2 * i * window);
        let mut random = fastrand::Rng::with_seed(5);
        let many = std::iter::repeat_with(move || random.u64(high + (1 << 40)..high + (1 << 41)));
        let mut ahead: Vec<u64> = strays.chain(many.take(2 * MOST)).collect();
        ahead.extend((0..MAX_ENTRIES_NEEDED as u64).map(|i| high + (1 << 60) + i));
        assert!(frontier.advance(&mut ahead, false, |range| range.start >= high + (1 << 39)));
        assert_eq!(frontier.ranges()[0].high, high);
        assert_eq!(frontier.admit(high + 4096), Inside);
    }

    /// If the range's table cannot be created, nothing changes, and a later attempt may succeed.
    #[test]
    fn a_range_opens_with_its_table_or_not_at_all() {
        let frontier = settled(1 << 50, 4096, 1000);
        let before = frontier.ranges();
        let mut ahead: Vec<u64> = (0..MAX_ENTRIES_NEEDED as u64).map(|i| (1 << 55) + i).collect();
        assert!(!frontier.advance(&mut ahead, false, |_| false));
        assert_eq!(frontier.ranges(), before);
        assert_eq!(frontier.admit((1 << 50) + 1001 * 4096), Inside);
        assert!(frontier.advance(&mut ahead, false, |range| range.start == 1 << 55));
    }

    /// No range is created for a few random ids. For many random ids, ranges are created, but the
    /// range in use does not change.
    #[test]
    fn random_ids_take_nothing_from_the_traffic() {
        let frontier = settled(1 << 50, 4096, 1000);
        let old = frontier.ranges()[0];
        let mut random = fastrand::Rng::with_seed(5);
        let few = write(&frontier, (0..MOST / 2).map(|_| random.u64(1 << 51..)));
        assert_eq!((few.len(), frontier.ranges()), (MOST / 2, vec![old]));
        let frontier = settled(1 << 50, 4096, 1000);
        write(&frontier, (0..4 * MOST).map(|_| random.u64(1 << 51..)));
        assert_eq!(frontier.ranges()[0], old);
        assert!(frontier.ranges().len() > 1);
        assert_eq!(frontier.admit(old.high + 4096), Inside);
        assert_eq!(frontier.ranges()[0].high, old.high + 4096);
    }

    /// Many ids near 2^64, such as negative numbers, arrive before, between and after normal ids.
    #[test]
    fn ids_near_the_end_of_all_move_nothing() {
        let bad = |n: u64| (0..n).map(|i| u64::MAX - i * 1000);
        let good = |from: u64| (from..from + 1000).map(|i| (1 << 50) + i * 4096);
        let frontier = Frontier::new(None, MOST);
        assert_eq!(
            write(&frontier, bad(1000).chain(good(0)).chain(bad(100_000)).chain(good(1000))).len(),
            101_000
        );
        assert_eq!(frontier.high(), Some((1 << 50) + 1999 * 4096));
        // Even a window without limit does not admit the last id.
        let frontier = of(1 << 50, u64::MAX, None);
        assert_eq!((frontier.admit(u64::MAX), frontier.admit(1 << 63)), (Ahead, Inside));
        assert_eq!(
            (frontier.admit(u64::MAX), frontier.reach()),
            (Ahead, (1 << 63) + (1 << 62) - 1)
        );
        // The last step leaves one id for the next table.
        while frontier.high() < Some(frontier.reach()) {
            assert_eq!(frontier.admit(frontier.reach()), Inside);
        }
        assert_eq!(
            (frontier.boundary(u64::MAX), frontier.admit(u64::MAX)),
            (Some(u64::MAX), Ahead)
        );
    }

    /// All ids of the space are near 2^64.
    #[test]
    fn where_nothing_is_lower_the_frontier_may_be_anywhere() {
        let frontier = Frontier::new(None, MOST);
        let begin = u64::MAX - (1 << 40);
        assert_eq!(write(&frontier, begin..begin + MOST as u64 - 1).len(), MOST - 1);
        assert_eq!(frontier.high(), None);
        let frontier = Frontier::new(None, 5000);
        assert!(write(&frontier, [7, 9].into_iter().chain(begin..begin + 10_000)).is_empty());
        assert_eq!(frontier.high(), Some(begin + 9999));
    }

    /// No range is created for a few thousand ids far ahead, or for a few frequent ids.
    #[test]
    fn few_strays_move_nothing() {
        let frontier = settled(1 << 50, 4096, 1000);
        let few = MAX_ENTRIES_NEEDED as u64 - 1;
        assert_eq!(write(&frontier, (1 << 55)..(1 << 55) + few).len(), MAX_ENTRIES_NEEDED - 1);
        // The entries of one id count for at most 1/64 of the minimum.
        let frontier = settled(1 << 50, 4096, 1000);
        let ids = (0..MIN_IDS_AHEAD as u64 - 1).map(|i| (1 << 55) + i);
        let often = std::iter::repeat_n((1 << 55) + MIN_IDS_AHEAD as u64, 100_000);
        assert_eq!(advanced(&frontier, ids.chain(often)), None);
        let enough = MIN_IDS_AHEAD as u64 * MAX_COUNTED_PER_ID as u64;
        assert_eq!(
            advanced(&frontier, (0..enough).map(|i| (1 << 55) + i % 64)),
            Some((1 << 55) + 63)
        );
    }

    /// New ids jump by two windows. The existing range grows, and no new range is created.
    #[test]
    fn a_short_jump_moves_its_range() {
        let frontier = settled(1 << 50, 4096, 1000);
        let Range { high, window, .. } = frontier.ranges()[0];
        let later = |i: u64| high + 2 * window + i * 4096;
        let ahead = write(&frontier, (0..2 * MAX_ENTRIES_NEEDED as u64).map(later));
        assert!(ahead.iter().all(|&id| frontier.contains(id)));
        let ranges = frontier.ranges();
        assert_eq!((ranges.len(), ranges[0].high), (1, later(2 * MAX_ENTRIES_NEEDED as u64 - 1)));
    }

    #[test]
    fn max_ahead_is_measured_from_frontier_or_highest_id() {
        let frontier = of(1000, 50, Some(5000));
        assert_eq!(frontier.admit(6001), TooFar);
        assert_eq!(frontier.admit(6000), Ahead);
        assert_eq!(frontier.admit(1001), Inside);
        assert!(frontier.is_too_far(6002, Some(6000)), "ids far ahead do not move it");
        let young = Frontier::new(Some(10), MOST);
        assert_eq!(young.admit(u64::MAX), Ahead, "the side dictionary decides");
        assert!(!young.is_too_far(u64::MAX, None), "nothing to measure from");
        assert!(
            young.is_too_far(18, Some(7))
                && !young.is_too_far(17, Some(7))
                && !young.is_too_far(3, Some(7))
        );
    }

    #[test]
    fn a_following_frontier_admits_nothing_by_itself() {
        let frontier = of(1000, 50, None);
        assert_eq!(
            (frontier.admit_replayed(1001), frontier.high()),
            (Inside, Some(1001)),
            "a log without ranges"
        );
        let told = |high, window| [Range { start: 0, high, window }];
        frontier.tell(&told(1000, 5000));
        assert_eq!((frontier.admit_replayed(1001), frontier.admit_replayed(1000)), (Ahead, Inside));
        assert_eq!((frontier.ranges(), frontier.follows()), (told(1000, 5000).to_vec(), true));
        frontier.tell(&[]);
        assert_eq!((frontier.admit_replayed(0), frontier.high()), (Ahead, None));
        frontier.tell(&told(7, 0));
        frontier.follow(false);
        assert_eq!((frontier.admit_replayed(8), frontier.high()), (Inside, Some(8)));
    }

    #[test]
    fn ranges_read_back() {
        let range = |start, high| Range { start, high, window: 1024 + high / 2 };
        let all = [range(0, 7), range(100, 2000), range(1 << 52, u64::MAX)];
        for ranges in [&all[..0], &all[..1], &all[..2], &all[..]] {
            let numbers = Range::encode(ranges);
            assert_eq!(Range::decode(&numbers).as_deref(), Some(ranges));
            let cut = |end: &usize| Range::decode(&numbers[..*end]).is_some_and(|r| r == ranges);
            assert!(!(0..numbers.len()).any(|end| cut(&end)));
        }
        assert_eq!(Range::encode(&all[..1]), [7, 1027], "as with one range");
        assert_eq!(Range::decode(&[9, 0, 7, 7, 0]), None, "overlapping");
        assert_eq!(Range::decode(&[9, 0, 10, 7, 0]), None, "above its end");
        let many = [9, 0].into_iter().chain((0..9).rev().flat_map(|i| [i + 1, i, 0]));
        assert_eq!(Range::decode(&many.collect::<Vec<u64>>()), None, "too many");
    }

    #[test]
    fn the_last_id_leaves_no_boundary() {
        assert_eq!(of(u64::MAX, 0, None).boundary(u64::MAX), None);
        assert_eq!(of(7, 0, None).boundary(u64::MAX), Some(8));
        assert_eq!(Frontier::new(None, MOST).boundary(u64::MAX), None);
    }

    /// Writes to both ranges and to the gap while the upper range is created. Ids in the gap must
    /// never count as part of a range.
    #[test]
    fn no_id_of_the_gap_is_inside_while_a_range_opens() {
        for round in 0..200 {
            let frontier = settled(1 << 20, 1, 1000);
            let done = AtomicBool::new(false);
            std::thread::scope(|s| {
                s.spawn(|| {
                    let mut ahead: Vec<u64> =
                        (0..MAX_ENTRIES_NEEDED as u64).map(|i| (1 << 40) + i).collect();
                    assert!(frontier.advance(&mut ahead, false, |_| true), "{round}");
                    done.store(true, SeqCst);
                });
                while !done.load(SeqCst) {
                    assert_eq!(frontier.admit((1 << 40) - 1), Ahead);
                    assert_eq!(frontier.admit(1 << 20), Inside);
                    let next = frontier.ranges()[0].high + 1;
                    assert_eq!(frontier.admit(next), Inside);
                    assert!(frontier.contains(next));
                }
            });
        }
    }
}
