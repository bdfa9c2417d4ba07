//! The frontier: the highest id that counts as normal, so that one bad id moves no boundary (R5,
//! promise 7).
//!
//! Ids rise with time, so the end of the traffic is near the highest id seen. But a broken client
//! may send 2^64-1, and a ring that took that for its end could never roll again. So an id that
//! jumps more than a *window* beyond the frontier is *ahead*: the engine keeps it exactly, in a
//! side dictionary, where it is found like any other, but it moves nothing.
//!
//! The ids that are ahead may be right, too: the service was idle for a month, or has just started.
//! When there are many of them the frontier advances to where they are. "Where they are" is the
//! *shorth*, the shortest interval that holds half of them (Andrews et al., Robust Estimates of
//! Location, 1972), so that a bad id among good ones has no say. How many are many:
//!
//! - before there is a frontier, [`QUORUM`] distinct ids, as no others have a better claim; or
//!   [`QUORUM_ENTRIES_AT_START`] entries, or as many as the side dictionary holds, if that is less;
//! - then so many entries as a sixteenth of the side dictionary holds, [`LEAP`] by default, of so
//!   many ids; they must be an eighth of recent writes, and most of the recent new ids: more than
//!   those by which the traffic has gone on where it is. (When the side dictionary is half full, a
//!   sixty-fourth of recent writes is enough, of what comes new: `Frontier::should_follow`.)
//!   There is no hurry, as they are found where
//!   they are; and an advance is for ever: tables of filters cannot give back the pairs of ids
//!   above.
//!
//! However many they are, one step takes at most half of the ids that are left
//! ([`Frontier::reach`]). A ring at the end of all ids could never roll again, and no traffic has a
//! reason to leap there, but ids that are negative numbers do: a broken client's -1 is 2^64-1. They
//! stay aside, up to the bound of that, and are refused then. Only a space that begins there, with
//! as many entries as there is room for, a quorum, and hardly one lower, has its frontier there.
//!
//! A space may refuse ids that are far too high (`max_ahead`). They are measured from the frontier;
//! before there is one all that was written is kept aside, and the highest id there is what they
//! are measured from ([`Frontier::is_too_far`]).
//!
//! A node that replays a log (at start, as a replica) takes the frontier from the log
//! ([`Frontier::tell`]) and admits nothing by itself: batches come in another order than the writes
//! did, so it would admit ids earlier, and tables would begin elsewhere.
//!
//! ```text
//!        low ids, late traffic           high        high + window
//!   -------------------------------------|-----------|------------------------------> id
//!            Inside                        Inside,         Ahead: kept aside
//!                                          moves high
//! ```

use parking_lot::Mutex;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};

/// Distinct ids that must be ahead before the frontier advances to them.
pub(crate) const QUORUM: usize = 64;
/// Before there is any frontier, so many entries will do, however few their ids: a service may have
/// three posts.
const QUORUM_ENTRIES_AT_START: usize = 4096;
/// Entries that must be ahead before a frontier that is known advances to them, or a sixteenth of
/// what the side dictionary holds, if that is less.
const LEAP: usize = 4096;
/// Of one id so many entries count for that.
pub(crate) const LEAP_ENTRIES_OF_ID: usize = LEAP / QUORUM;
/// Recent writes are counted up to here, then halved: an era ends.
const RECENT: u32 = 4096;
/// Writes that are skipped at once when an era had nothing ahead, or another writer admitted: no
/// write is counted from then on.
const LULL: u32 = 1 << 16;
/// The window is never narrower than this, nor than [`WINDOW_SPANS`] times the shorth.
const WINDOW_LEAST: u64 = 1024;
const WINDOW_SPANS: u64 = 16;

/// [`Frontier`]'s `leap`, by the room of the side dictionary.
fn leap_of(max_aside: usize) -> usize {
    (max_aside / 16).clamp(QUORUM, LEAP)
}

/// What the frontier says of an id that is about to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Goes to the table that covers it.
    Inside,
    /// Goes to the side dictionary, until the frontier reaches it.
    Ahead,
    /// Further above the frontier than `max_ahead` allows: refuse it (`ERR key too big`).
    TooFar,
}

/// The highest id that counts as normal. See the top of the file. All methods may be called from
/// any thread.
///
/// Writes may count themselves here, so it has two cache lines (which processors fetch in pairs) to
/// itself: beside it lies what every read looks at.
#[repr(align(128))]
pub struct Frontier {
    /// The highest admitted id; 0 while `known` is false.
    high: AtomicU64,
    window: AtomicU64,
    known: AtomicBool,
    follows: AtomicBool,
    recent: AtomicU32,
    recent_ahead: AtomicU32,
    /// See [`Frontier::era`].
    era: AtomicU32,
    /// Of the last new ids, of which so many are looked at as make two leaps, those that moved the
    /// frontier, and those that are ahead.
    new_near: AtomicU32,
    new_ahead: AtomicU32,
    /// `u64::MAX`: none is too far.
    max_ahead: AtomicU64,
    /// Entries that must be ahead before it advances, once it is known.
    leap: AtomicUsize,
    /// Entries that there may be.
    max_aside: AtomicUsize,
    /// Held while the frontier advances.
    advancing: Mutex<()>,
}

impl Frontier {
    /// No id seen yet. `max_ahead`: see [`Frontier::is_too_far`]; `max_aside`: how many entries the
    /// side dictionary may hold.
    pub fn new(max_ahead: Option<u64>, max_aside: usize) -> Frontier {
        Frontier {
            high: AtomicU64::new(0),
            window: AtomicU64::new(WINDOW_LEAST),
            known: AtomicBool::new(false),
            follows: AtomicBool::new(false),
            recent: AtomicU32::new(0),
            recent_ahead: AtomicU32::new(0),
            era: AtomicU32::new(0),
            new_near: AtomicU32::new(0),
            new_ahead: AtomicU32::new(0),
            max_ahead: AtomicU64::new(max_ahead.unwrap_or(u64::MAX)),
            leap: AtomicUsize::new(leap_of(max_aside)),
            max_aside: AtomicUsize::new(max_aside),
            advancing: Mutex::new(()),
        }
    }

    /// As recovered from a snapshot: what [`Frontier::high`] and [`Frontier::window`] said.
    pub fn restore(
        high: Option<u64>,
        window: u64,
        max_ahead: Option<u64>,
        max_aside: usize,
    ) -> Frontier {
        let frontier = Frontier::new(max_ahead, max_aside);
        frontier.window.store(window.max(WINDOW_LEAST), Relaxed);
        if let Some(high) = high {
            frontier.high.store(high, Relaxed);
            frontier.known.store(true, Relaxed);
        }
        frontier
    }

    /// From now on these hold: see [`Frontier::new`].
    pub fn set_limits(&self, max_ahead: Option<u64>, max_aside: usize) {
        self.max_ahead.store(max_ahead.unwrap_or(u64::MAX), Relaxed);
        self.leap.store(leap_of(max_aside), Relaxed);
        self.max_aside.store(max_aside, Relaxed);
    }

    /// Takes over what [`Frontier::high`] and [`Frontier::window`] of another one said, where that
    /// is further on.
    pub fn adopt(&self, high: Option<u64>, window: u64) {
        self.window.fetch_max(window, Relaxed);
        if let Some(high) = high {
            self.high.fetch_max(high, SeqCst);
            self.known.store(true, SeqCst);
        }
    }

    /// From now on a log says how far it reaches, and nothing else moves it; or (`false`) what is
    /// written does.
    pub fn follow(&self, follows: bool) {
        if self.follows.swap(follows, SeqCst) != follows {
            self.era.fetch_add(LULL, Relaxed);
        }
    }

    /// Whether a log says how far it reaches.
    pub fn follows(&self) -> bool {
        self.follows.load(SeqCst)
    }

    /// What a log says: [`Frontier::high`] and [`Frontier::window`] of the one that wrote it. From
    /// now on it follows. It may fall: what was admitted here and came to nothing is taken back.
    pub fn tell(&self, high: Option<u64>, window: u64) {
        self.follow(true);
        self.window.store(window.max(WINDOW_LEAST), Relaxed);
        self.high.store(high.unwrap_or(0), SeqCst);
        self.known.store(high.is_some(), SeqCst);
    }

    /// Where a write of `id` goes that a log tells of.
    pub(crate) fn admit_told(&self, id: u64) -> Admission {
        if self.follows() { self.look_up(id) } else { self.admit(id) }
    }

    /// Where `id` is, if it is anywhere: for operations that write nothing new and so are no sample
    /// of the traffic.
    pub(crate) fn look_up(&self, id: u64) -> Admission {
        if self.high().is_some_and(|high| id <= high) {
            Admission::Inside
        } else {
            Admission::Ahead
        }
    }

    /// Where a write of `id` goes. An id inside the window moves the frontier.
    #[inline]
    pub fn admit(&self, id: u64) -> Admission {
        // While nothing was ahead of late there is nothing to compare with, and half of the most
        // says enough: no writer stores here then, and the cache line stays shared by all of them.
        let recent = self.recent.load(Relaxed);
        if recent < RECENT / 2 || self.recent_ahead.load(Relaxed) > 0 {
            self.count(recent + 1);
        }
        // SeqCst (a plain load on x86): see the argument in outliers.rs.
        let high = self.high.load(SeqCst);
        if id <= high && self.known.load(SeqCst) {
            return Admission::Inside;
        }
        self.admit_above(id, high)
    }

    /// Notes one more recent write. Load and store, not fetch_add: a lost count harms nothing, and
    /// an atomic addition costs twenty times as much.
    fn count(&self, recent: u32) {
        self.recent.store(recent, Relaxed);
        if recent >= RECENT {
            let ahead = self.recent_ahead.load(Relaxed) / 2;
            self.recent.store(recent / 2, Relaxed);
            self.recent_ahead.store(ahead, Relaxed);
            self.era.fetch_add(if ahead == 0 { LULL } else { 1 }, Relaxed);
        }
    }

    /// Whether `id` lies further than `max_ahead` above the frontier or, before there is one, above
    /// `highest`, the highest id in the side dictionary. Nothing is too far for the very first id.
    pub fn is_too_far(&self, id: u64, highest: Option<u64>) -> bool {
        let most = self.max_ahead.load(Relaxed);
        self.high().or(highest).is_some_and(|from| id.saturating_sub(from) > most)
    }

    #[cold]
    fn admit_above(&self, id: u64, high: u64) -> Admission {
        if self.known.load(SeqCst) {
            if self.is_too_far(id, None) {
                return Admission::TooFar;
            }
            if id > reach(high) {
                return Admission::Ahead;
            }
            if id.saturating_sub(high) <= self.window.load(Relaxed) {
                self.high.fetch_max(id, SeqCst);
                self.count_new(&self.new_near);
                return Admission::Inside;
            }
        }
        self.recent_ahead.store(self.recent_ahead.load(Relaxed) + 1, Relaxed);
        self.count_new(&self.new_ahead);
        Admission::Ahead
    }

    fn count_new(&self, which: &AtomicU32) {
        which.store(which.load(Relaxed) + 1, Relaxed);
        if (self.new_near.load(Relaxed) + self.new_ahead.load(Relaxed)) as usize
            >= 2 * self.leap.load(Relaxed)
        {
            [&self.new_near, &self.new_ahead]
                .into_iter()
                .for_each(|new| new.store(new.load(Relaxed) / 2, Relaxed));
        }
    }

    /// The highest id to which the frontier may go in one step: half of those above it are left.
    pub fn reach(&self) -> u64 {
        reach(self.high().unwrap_or(0))
    }

    /// The highest admitted id, if any was.
    pub fn high(&self) -> Option<u64> {
        self.known.load(SeqCst).then(|| self.high.load(SeqCst))
    }

    /// The first id above all admitted ones: where the newest table may be closed. `None` if there
    /// is none.
    pub fn boundary(&self) -> Option<u64> {
        self.high().and_then(|high| high.checked_add(1))
    }

    /// How far above [`Frontier::high`] an id may jump and still count as normal.
    pub fn window(&self) -> u64 {
        self.window.load(Relaxed)
    }

    /// Widens the window to a quarter of `span`, the id range of a table that has filled up: gaps
    /// that are small beside a table are normal.
    pub fn widen(&self, span: u64) {
        self.window.fetch_max(span / 4, Relaxed);
    }

    /// How many ids that found the side dictionary full are to be asked together by
    /// [`Frontier::advance`], if there are [`QUORUM`] different ones among them and no more than
    /// [`LEAP_ENTRIES_OF_ID`] of each: they are enough for a leap.
    pub(crate) fn sample(&self) -> usize {
        self.leap.load(Relaxed).max(8 * QUORUM)
    }

    /// How many eras (of [`Frontier::era`]) it may take until they are there: sixty-four times as
    /// many writes. The others may be where the traffic was, or of ids that are popular.
    pub(crate) fn sample_eras(&self) -> u32 {
        (QUORUM * self.sample()) as u32 / (RECENT / 2)
    }

    /// Rises by one with every 2,048 writes while some of them are ahead, and far when there were
    /// none among so many, or a log said what is. It wraps.
    pub(crate) fn era(&self) -> u32 {
        self.era.load(Relaxed)
    }

    /// Whether the ids that are ahead have become so many that [`Frontier::advance`] may find a new
    /// frontier among them. `entries`: how many entries the side dictionary holds now.
    #[inline]
    pub fn should_advance(&self, entries: usize) -> bool {
        let enough =
            self.recent_ahead.load(Relaxed) >= (self.recent.load(Relaxed) / 8).max(QUORUM as u32);
        entries >= QUORUM.min(self.max_aside.load(Relaxed))
            && enough
            && self.new_ahead.load(Relaxed) > self.new_near.load(Relaxed)
    }

    /// Whether [`Frontier::advance`] may find a new frontier among a [sample](Frontier::sample) of
    /// writes that found the side dictionary full, or filled its second half. That it gathered in
    /// time shows that they are one write in sixty-four, at least; all others may be likes of old
    /// posts, which say nothing of where new ones are.
    pub(crate) fn should_follow(&self, entries: usize) -> bool {
        entries >= QUORUM.min(self.max_aside.load(Relaxed))
            && self.new_ahead.load(Relaxed) > self.new_near.load(Relaxed)
    }

    /// Advances to where most of `ahead` are: the ids of all entries in the side dictionary, an id
    /// once per entry, in any order. Returns the highest id that is now inside; the engine moves
    /// all entries up to it into tables. `None`: nothing changed, and a new quorum must gather
    /// before [`Frontier::should_advance`] says yes again.
    pub fn advance(&self, ahead: &mut Vec<u64>) -> Option<u64> {
        let _advancing = self.advancing.lock();
        // Not 0: eras go on, so that a lull is noticed.
        self.recent_ahead.store(1, Relaxed);
        ahead.sort_unstable();
        self.keep_candidates(ahead)?;
        let half = ahead.len() / 2;
        let start = (0..ahead.len() - half).min_by_key(|&i| ahead[i + half] - ahead[i])?;
        let span = ahead[start + half] - ahead[start];
        let window = span.saturating_mul(WINDOW_SPANS).max(self.window.load(Relaxed));
        let limit = ahead[start + half].saturating_add(window);
        // The window lets a chain of ids reach further, each within the window of the one before.
        let mut high = ahead[start + half];
        for &id in &ahead[start + half..] {
            if id - high > window || id > limit {
                break;
            }
            high = id;
        }
        self.window.store(window, Relaxed);
        self.high.fetch_max(high, SeqCst);
        self.known.store(true, SeqCst);
        self.high()
    }

    /// Leaves of `ahead`, which is sorted, those ids, once each, among which the frontier is to be
    /// looked for. `None`: they are too few.
    fn keep_candidates(&self, ahead: &mut Vec<u64>) -> Option<()> {
        let near = &ahead[..ahead.partition_point(|&id| id <= self.reach())];
        let ids = |entries: &[u64]| entries.chunk_by(|a, b| a == b).count();
        let is_quorum = |entries: &[u64]| ids(entries) >= QUORUM;
        let is_quorum_at_start =
            |entries: &[u64]| is_quorum(entries) || entries.len() >= QUORUM_ENTRIES_AT_START;
        let is_leap = |entries: &[u64]| {
            let counted =
                entries.chunk_by(|a, b| a == b).map(|of_id| of_id.len().min(LEAP_ENTRIES_OF_ID));
            is_quorum(entries) && counted.sum::<usize>() >= self.leap.load(Relaxed)
        };
        // Without room for more entries there is nothing to wait for.
        let full = ahead.len() >= self.max_aside.load(Relaxed);
        match self.known.load(SeqCst) {
            true if is_leap(near) => ahead.truncate(near.len()),
            false if is_quorum_at_start(near) => ahead.truncate(near.len()),
            // It begins there.
            false if full && is_quorum_at_start(ahead) && near.len() < ahead.len().div_ceil(2) => {}
            // Few as they may be: those beyond are no quorum, or no more than they.
            false if full => ahead.truncate(near.len()),
            _ => return None,
        }
        ahead.dedup();
        Some(())
    }
}

fn reach(high: u64) -> u64 {
    high + (u64::MAX - high) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use Admission::*;

    /// Entries that a side dictionary may hold.
    const MOST: usize = 1 << 16;

    /// A frontier that has seen `n` ids from `first`, `gap` apart.
    fn settled(first: u64, gap: u64, n: u64) -> Frontier {
        let frontier = Frontier::new(None, MOST);
        let mut ahead = vec![];
        for i in 0..n {
            if frontier.admit(first + i * gap) == Ahead {
                ahead.push(first + i * gap);
                if frontier.should_advance(ahead.len())
                    && let Some(limit) = frontier.advance(&mut ahead)
                {
                    ahead.retain(|&id| id > limit);
                }
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
        assert_eq!(frontier.advance(&mut vec![u64::MAX; 100_000]), None);
        assert_eq!(frontier.high(), high);
        assert_eq!(frontier.admit(high.unwrap() + 4096), Inside);
    }

    #[test]
    fn a_bad_id_at_the_very_start_has_no_say() {
        let frontier = Frontier::new(None, MOST);
        let mut ahead = vec![u64::MAX, u64::MAX, 1 << 62];
        ahead.iter().for_each(|&id| assert_eq!(frontier.admit(id), Ahead));
        for i in 0..QUORUM as u64 {
            assert_eq!(frontier.admit(1_000_000 + i * 10), Ahead);
            ahead.push(1_000_000 + i * 10);
        }
        assert!(frontier.should_advance(ahead.len()));
        assert_eq!(frontier.advance(&mut ahead), Some(1_000_000 + 63 * 10));
        assert_eq!(frontier.admit(u64::MAX), Ahead);
        assert_eq!(frontier.admit(0), Inside);
    }

    #[test]
    fn a_service_with_three_posts_gets_a_frontier() {
        let frontier = Frontier::new(None, MOST);
        let mut ahead: Vec<u64> = (0..4096).map(|i| 5000 + i % 3).collect();
        assert_eq!(frontier.advance(&mut ahead[..4095].to_vec()), None);
        assert_eq!(frontier.advance(&mut ahead), Some(5002));
    }

    /// Nor is one that may hold fewer entries than that refused for ever.
    #[test]
    fn a_side_dictionary_of_any_size_gets_a_frontier() {
        for most in [1, 2, 10, 63, 64, 100, 1000, 5000] {
            let posts = |n: usize| (0..n as u64).map(|i| 5000 + i % 3);
            let few = most.min(QUORUM_ENTRIES_AT_START) - 1;
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
            // Half of what there is, or few beside few, or many beside none, at the end of all ids.
            let begins = |ids: &dyn Fn(u64) -> u64| {
                let frontier = Frontier::new(None, most);
                (
                    frontier.advance(&mut (0..most as u64).map(ids).collect()),
                    frontier.admit(u64::MAX),
                )
            };
            assert_eq!(
                begins(&|i| if i % 2 == 0 { 5000 } else { u64::MAX - i }),
                (Some(5000), Ahead),
                "{most}"
            );
            if most < QUORUM_ENTRIES_AT_START {
                assert_eq!(
                    begins(&|i| if i == 0 { 5000 } else { u64::MAX - i % 3 }),
                    (Some(5000), Ahead),
                    "{most}"
                );
                assert_eq!(
                    begins(&|i| u64::MAX - i % 3),
                    (None, Ahead),
                    "{most}: few there move nothing"
                );
            }
            if most > QUORUM {
                let high = begins(&|i| if i == 0 { 5000 } else { u64::MAX - i }).0;
                assert!(high > Some(u64::MAX / 2), "{most}: {high:?}");
            }
        }
    }

    /// Writes each id, and has the frontier moved when that is time; those that stay ahead.
    fn write(frontier: &Frontier, ids: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut ahead: Vec<u64> = vec![];
        for id in ids {
            if frontier.admit(id) == Ahead {
                ahead.push(id);
                if frontier.should_advance(ahead.len())
                    && let Some(high) = frontier.advance(&mut ahead.clone())
                {
                    ahead.retain(|&id| id > high);
                }
            }
        }
        ahead
    }

    #[test]
    fn traffic_that_jumps_takes_the_frontier_along() {
        let frontier = settled(1 << 50, 4096, 1000);
        let mut later = (0..4 * LEAP as u64).map(|i| (1 << 51) + i * 4096);
        assert_eq!(write(&frontier, [u64::MAX].into_iter().chain(later.clone())), [u64::MAX]);
        assert_eq!(frontier.high(), later.next_back());
    }

    /// Ids that are negative numbers, say: as many as there may be, before, among and after the
    /// others.
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
        // Within its window, too, if that is as wide as can be.
        let frontier = Frontier::restore(Some(1 << 50), u64::MAX, None, MOST);
        assert_eq!((frontier.admit(u64::MAX), frontier.admit(1 << 63)), (Ahead, Inside));
        assert_eq!(
            (frontier.admit(u64::MAX), frontier.reach()),
            (Ahead, (1 << 63) + (1 << 62) - 1)
        );
        // As the last step leaves one id, there is always a place for the next table.
        while frontier.high() < Some(frontier.reach()) {
            assert_eq!(frontier.admit(frontier.reach()), Inside);
        }
        assert_eq!((frontier.boundary(), frontier.admit(u64::MAX)), (Some(u64::MAX), Ahead));
    }

    /// A space that begins at the end of all ids.
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

    /// Some thousand ids far ahead, at any place, are no traffic while there is some, however
    /// quickly they come; nor before they are many.
    #[test]
    fn strays_beside_traffic_move_nothing() {
        let frontier = settled(1 << 50, 4096, 1000);
        let few = LEAP as u64 - 1;
        assert_eq!(
            write(&frontier, (1 << 55)..(1 << 55) + few).len(),
            LEAP - 1,
            "all at once, and too few"
        );
        let frontier = settled(1 << 50, 4096, 1000);
        let mut ahead = vec![];
        for i in 0..20_000u64 {
            let new = (1 << 50) + (1000 + i) * 4096;
            for id in [new, (1 << 55) + i] {
                if frontier.admit(id) == Ahead {
                    ahead.push(id);
                }
            }
            assert!(
                !frontier.should_advance(ahead.len()) || i < few,
                "{i}: the traffic goes on where it is"
            );
        }
        assert_eq!((ahead.len(), frontier.high()), (20_000, Some((1 << 50) + 20_999 * 4096)));
        // One id counts for no more than one of sixty-four, however often it comes.
        let frontier = settled(1 << 50, 4096, 1000);
        let mut ahead: Vec<u64> = (0..QUORUM as u64 - 1).map(|i| (1 << 55) + i).collect();
        ahead.extend([(1 << 55) + QUORUM as u64; 100_000]);
        assert_eq!(frontier.advance(&mut ahead), None);
        let mut ahead: Vec<u64> =
            (0..QUORUM as u64 * LEAP_ENTRIES_OF_ID as u64).map(|i| (1 << 55) + i % 64).collect();
        assert_eq!(frontier.advance(&mut ahead), Some((1 << 55) + 63));
    }

    #[test]
    fn max_ahead_is_measured_from_the_frontier_or_from_the_highest_id() {
        let frontier = Frontier::restore(Some(1000), 50, Some(5000), MOST);
        assert_eq!(frontier.admit(6001), TooFar);
        assert_eq!(frontier.admit(6000), Ahead);
        assert_eq!(frontier.admit(1001), Inside);
        assert!(frontier.is_too_far(6002, Some(6000)), "what is ahead moves nothing");
        let young = Frontier::new(Some(10), MOST);
        assert_eq!(young.admit(u64::MAX), Ahead, "for the side dictionary to judge");
        assert!(!young.is_too_far(u64::MAX, None), "nothing to measure from");
        assert!(
            young.is_too_far(18, Some(7))
                && !young.is_too_far(17, Some(7))
                && !young.is_too_far(3, Some(7))
        );
    }

    #[test]
    fn a_following_frontier_admits_nothing_by_itself() {
        let frontier = Frontier::restore(Some(1000), 50, None, MOST);
        assert_eq!(
            (frontier.admit_told(1001), frontier.high()),
            (Inside, Some(1001)),
            "a log that does not tell"
        );
        frontier.tell(Some(1000), 5000);
        assert_eq!((frontier.admit_told(1001), frontier.admit_told(1000)), (Ahead, Inside));
        assert_eq!(
            (frontier.high(), frontier.window(), frontier.follows()),
            (Some(1000), 5000, true)
        );
        frontier.tell(None, 0);
        assert_eq!((frontier.admit_told(0), frontier.high()), (Ahead, None));
        frontier.tell(Some(7), 0);
        frontier.follow(false);
        assert_eq!((frontier.admit_told(8), frontier.high()), (Inside, Some(8)));
    }

    #[test]
    fn the_last_id_leaves_no_boundary() {
        assert_eq!(Frontier::restore(Some(u64::MAX), 0, None, MOST).boundary(), None);
        assert_eq!(Frontier::restore(Some(7), 0, None, MOST).boundary(), Some(8));
        assert_eq!(Frontier::new(None, MOST).boundary(), None);
    }
}
