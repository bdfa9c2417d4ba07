//! The frontier: the highest id that counts as normal, so that one bad id moves no boundary (R5, promise 7).
//!
//! Ids rise with time, so the end of the traffic is near the highest id seen. But a broken client may send 2^64-1, and a ring that
//! took that for its end could never roll again. So an id that jumps more than a *window* beyond the frontier is *ahead*: the engine
//! keeps it exactly, in a side dictionary, where it is found like any other, but it moves nothing.
//!
//! The ids that are ahead may be right, too: the service was idle for a month, or has just started. When there are many of them
//! ([`QUORUM`] distinct ones, and at least an eighth of recent writes) the frontier advances to where they are. "Where they are" is
//! the *shorth*, the shortest interval that holds half of them (Andrews et al., Robust Estimates of Location, 1972), so that a
//! bad id among good ones has no say.
//!
//! A space may refuse ids that are far too high (`max_ahead`). They are measured from the frontier; before there is one all that was
//! written is kept aside, and the highest id there is what they are measured from ([`Frontier::is_too_far`]).
//!
//! Whoever replays a log (a start, a replica) follows what the writer of the log said of its frontier ([`Frontier::tell`]) and admits nothing by
//! itself: batches come in another order than the writes did, so it would admit ids earlier, and tables would begin elsewhere.
//!
//! ```text
//!        low ids, late traffic           high        high + window
//!   -------------------------------------|-----------|------------------------------> id
//!            Inside                        Inside,         Ahead: kept aside
//!                                          moves high
//! ```

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Distinct ids that must be ahead before the frontier advances to them.
const QUORUM: usize = 64;
/// Before there is any frontier, so many entries will do, however few their ids: a service may have three posts.
const QUORUM_ENTRIES_AT_START: usize = 4096;
/// Recent writes are counted up to here, then halved.
const RECENT: u32 = 4096;
/// The window is never narrower than this, nor than [`WINDOW_SPANS`] times the shorth.
const WINDOW_LEAST: u64 = 1024;
const WINDOW_SPANS: u64 = 16;

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

/// The highest id that counts as normal. See the top of the file. All methods may be called from any thread.
///
/// Writes may count themselves here, so it has two cache lines (which processors fetch in pairs) to itself: beside it lies what every read looks at.
#[repr(align(128))]
pub struct Frontier {
    /// The highest admitted id; 0 while `known` is false.
    high: AtomicU64,
    window: AtomicU64,
    known: AtomicBool,
    follows: AtomicBool,
    recent: AtomicU32,
    recent_ahead: AtomicU32,
    max_ahead: Option<u64>,
    /// Held while the frontier advances.
    advancing: Mutex<()>,
}

impl Frontier {
    /// No id seen yet. `max_ahead`: see [`Frontier::is_too_far`].
    pub fn new(max_ahead: Option<u64>) -> Frontier {
        Frontier {
            high: AtomicU64::new(0),
            window: AtomicU64::new(WINDOW_LEAST),
            known: AtomicBool::new(false),
            follows: AtomicBool::new(false),
            recent: AtomicU32::new(0),
            recent_ahead: AtomicU32::new(0),
            max_ahead,
            advancing: Mutex::new(()),
        }
    }

    /// As recovered from a snapshot: what [`Frontier::high`] and [`Frontier::window`] said.
    pub fn restore(high: Option<u64>, window: u64, max_ahead: Option<u64>) -> Frontier {
        let frontier = Frontier::new(max_ahead);
        frontier.window.store(window.max(WINDOW_LEAST), Relaxed);
        if let Some(high) = high {
            frontier.high.store(high, Relaxed);
            frontier.known.store(true, Relaxed);
        }
        frontier
    }

    /// Takes over what [`Frontier::high`] and [`Frontier::window`] of another one said, where that is further on.
    pub fn adopt(&self, high: Option<u64>, window: u64) {
        self.window.fetch_max(window, Relaxed);
        if let Some(high) = high {
            self.high.fetch_max(high, SeqCst);
            self.known.store(true, SeqCst);
        }
    }

    /// From now on a log says how far it reaches, and nothing else moves it; or (`false`) what is written does.
    pub fn follow(&self, follows: bool) {
        self.follows.store(follows, SeqCst);
    }

    /// Whether a log says how far it reaches.
    pub fn follows(&self) -> bool {
        self.follows.load(SeqCst)
    }

    /// What a log says: [`Frontier::high`] and [`Frontier::window`] of the one that wrote it. From now on it follows. It may fall: what was admitted
    /// here and came to nothing is taken back.
    pub fn tell(&self, high: Option<u64>, window: u64) {
        self.follow(true);
        self.window.store(window.max(WINDOW_LEAST), Relaxed);
        self.high.store(high.unwrap_or(0), SeqCst);
        self.known.store(high.is_some(), SeqCst);
    }

    /// Where a write of `id` goes that a log tells of.
    pub(crate) fn admit_told(&self, id: u64) -> Admission {
        match self.high() {
            _ if !self.follows() => self.admit(id),
            Some(high) if id <= high => Admission::Inside,
            _ => Admission::Ahead,
        }
    }

    /// Where a write of `id` goes. An id inside the window moves the frontier.
    #[inline]
    pub fn admit(&self, id: u64) -> Admission {
        // While nothing was ahead of late there is nothing to compare with, and half of the most says enough: nobody writes here then, and the line
        // stays in the caches of all writers.
        let recent = self.recent.load(Relaxed);
        if recent < RECENT / 2 || self.recent_ahead.load(Relaxed) > 0 {
            self.count(recent + 1);
        }
        // SeqCst (a plain load on x86): see the argument in aside.rs.
        let high = self.high.load(SeqCst);
        if id <= high && self.known.load(SeqCst) {
            return Admission::Inside;
        }
        self.admit_above(id, high)
    }

    /// Notes one more recent write. Load and store, not fetch_add: a lost count harms nothing, and an atomic addition costs twenty times as much.
    fn count(&self, recent: u32) {
        self.recent.store(recent, Relaxed);
        if recent >= RECENT {
            self.recent.store(recent / 2, Relaxed);
            self.recent_ahead.store(self.recent_ahead.load(Relaxed) / 2, Relaxed);
        }
    }

    /// Whether `id` lies further than `max_ahead` above the frontier or, before there is one, above `highest`, the highest id in
    /// the side dictionary. Nothing is too far for the very first id.
    pub fn is_too_far(&self, id: u64, highest: Option<u64>) -> bool {
        let Some(most) = self.max_ahead else { return false };
        self.high().or(highest).is_some_and(|from| id.saturating_sub(from) > most)
    }

    #[cold]
    fn admit_above(&self, id: u64, high: u64) -> Admission {
        if self.known.load(SeqCst) {
            if self.is_too_far(id, None) {
                return Admission::TooFar;
            }
            if id.saturating_sub(high) <= self.window.load(Relaxed) {
                self.high.fetch_max(id, SeqCst);
                return Admission::Inside;
            }
        }
        self.recent_ahead.store(self.recent_ahead.load(Relaxed) + 1, Relaxed);
        Admission::Ahead
    }

    /// The highest admitted id, if any was.
    pub fn high(&self) -> Option<u64> {
        self.known.load(SeqCst).then(|| self.high.load(SeqCst))
    }

    /// The first id above all admitted ones: where the newest table may be closed. `None` if there is none.
    pub fn boundary(&self) -> Option<u64> {
        self.high().and_then(|high| high.checked_add(1))
    }

    /// How far above [`Frontier::high`] an id may jump and still count as normal.
    pub fn window(&self) -> u64 {
        self.window.load(Relaxed)
    }

    /// Widens the window to a quarter of `span`, the id range of a table that has filled up: gaps that are small beside a
    /// table are normal.
    pub fn widen(&self, span: u64) {
        self.window.fetch_max(span / 4, Relaxed);
    }

    /// Whether the ids that are ahead have become so many that [`Frontier::advance`] may find a new frontier among them.
    /// `entries`: how many entries the side dictionary holds now.
    #[inline]
    pub fn should_advance(&self, entries: usize) -> bool {
        let enough = self.recent_ahead.load(Relaxed) >= (self.recent.load(Relaxed) / 8).max(QUORUM as u32);
        enough && entries >= QUORUM
    }

    /// Advances to where most of `ahead` are: the ids of all entries in the side dictionary, an id once per entry, in any
    /// order. Returns the highest id that is now inside; the engine moves all entries up to it into tables. `None`: nothing
    /// changed, and a new quorum must gather before [`Frontier::should_advance`] says yes again.
    pub fn advance(&self, ahead: &mut Vec<u64>) -> Option<u64> {
        let _advancing = self.advancing.lock();
        let known = self.known.load(SeqCst);
        let entries = ahead.len();
        self.recent_ahead.store(0, Relaxed);
        ahead.sort_unstable();
        ahead.dedup();
        if ahead.len() < QUORUM && (known || entries < QUORUM_ENTRIES_AT_START) {
            return None;
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use Admission::*;

    /// A frontier that has seen `n` ids from `first`, `gap` apart.
    fn settled(first: u64, gap: u64, n: u64) -> Frontier {
        let frontier = Frontier::new(None);
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
        settled(u64::MAX - 99, 1, 100);
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
        let frontier = Frontier::new(None);
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
        let frontier = Frontier::new(None);
        let mut ahead: Vec<u64> = (0..4096).map(|i| 5000 + i % 3).collect();
        assert_eq!(frontier.advance(&mut ahead[..4095].to_vec()), None);
        assert_eq!(frontier.advance(&mut ahead), Some(5002));
    }

    #[test]
    fn traffic_that_jumps_takes_the_frontier_along() {
        let frontier = settled(1 << 50, 4096, 1000);
        let mut ahead = vec![u64::MAX];
        for i in 0..2 * RECENT as u64 {
            let id = (1 << 51) + i * 4096;
            if frontier.admit(id) == Ahead {
                ahead.push(id);
                if frontier.should_advance(ahead.len())
                    && let Some(limit) = frontier.advance(&mut ahead)
                {
                    ahead.retain(|&id| id > limit);
                }
            }
        }
        assert_eq!(frontier.high(), Some((1 << 51) + (2 * RECENT as u64 - 1) * 4096));
        assert_eq!(ahead, [u64::MAX]);
    }

    #[test]
    fn max_ahead_is_measured_from_the_frontier_or_from_the_highest_id() {
        let frontier = Frontier::restore(Some(1000), 50, Some(5000));
        assert_eq!(frontier.admit(6001), TooFar);
        assert_eq!(frontier.admit(6000), Ahead);
        assert_eq!(frontier.admit(1001), Inside);
        assert!(frontier.is_too_far(6002, Some(6000)), "what is ahead moves nothing");
        let young = Frontier::new(Some(10));
        assert_eq!(young.admit(u64::MAX), Ahead, "for the side dictionary to judge");
        assert!(!young.is_too_far(u64::MAX, None), "nothing to measure from");
        assert!(young.is_too_far(18, Some(7)) && !young.is_too_far(17, Some(7)) && !young.is_too_far(3, Some(7)));
    }

    #[test]
    fn who_follows_admits_nothing_by_itself() {
        let frontier = Frontier::restore(Some(1000), 50, None);
        assert_eq!((frontier.admit_told(1001), frontier.high()), (Inside, Some(1001)), "a log that does not tell");
        frontier.tell(Some(1000), 5000);
        assert_eq!((frontier.admit_told(1001), frontier.admit_told(1000)), (Ahead, Inside));
        assert_eq!((frontier.high(), frontier.window(), frontier.follows()), (Some(1000), 5000, true));
        frontier.tell(None, 0);
        assert_eq!((frontier.admit_told(0), frontier.high()), (Ahead, None));
        frontier.tell(Some(7), 0);
        frontier.follow(false);
        assert_eq!((frontier.admit_told(8), frontier.high()), (Inside, Some(8)));
    }

    #[test]
    fn the_last_id_leaves_no_boundary() {
        assert_eq!(Frontier::restore(Some(u64::MAX), 0, None).boundary(), None);
        assert_eq!(Frontier::restore(Some(7), 0, None).boundary(), Some(8));
        assert_eq!(Frontier::new(None).boundary(), None);
    }
}
