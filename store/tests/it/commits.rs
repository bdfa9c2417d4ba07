//! Tests of the committer without threads: tickets, deduplication, failures. `turns.rs` contains
//! tests with real threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use store::{
    Batch, CommitOptions, Committed, Committer, Error, Faults, Health, Log, LoggedState, Rounds,
    SimDisk, SyncPolicy, Ticket,
};

use crate::basics::{open, options};

mod together;

/// Minimal engine for the tests. Like the real engines, it stores counters in atomic integers.
pub(crate) struct Engine {
    pub(crate) counters: Vec<AtomicI64>,
}

impl Engine {
    pub(crate) fn new(n: usize) -> Engine {
        Engine { counters: (0..n).map(|_| AtomicI64::new(0)).collect() }
    }
}

pub(crate) fn row(key: u32, value: i64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&key.to_le_bytes());
    bytes[4..].copy_from_slice(&value.to_le_bytes());
    bytes
}

pub(crate) fn read_row(bytes: &[u8]) -> (u32, i64) {
    (
        u32::from_le_bytes(bytes[..4].try_into().unwrap()),
        i64::from_le_bytes(bytes[4..12].try_into().unwrap()),
    )
}

pub(crate) struct Reader<'a> {
    engine: &'a Engine,
    rows: Vec<(u32, i64)>,
    pub(crate) published: Arc<Mutex<Vec<Committed>>>,
    errors: usize,
    /// Number of rounds that fail with an unreadable row.
    unreadable: usize,
    /// Whether to yield between reads, so that other threads can write.
    yields: bool,
    clock: Option<&'a (dyn Fn() -> Instant + Sync)>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Reader<'a> {
        Reader {
            engine,
            rows: Vec::new(),
            published: Arc::default(),
            errors: 0,
            unreadable: 0,
            yields: true,
            clock: None,
        }
    }

    /// Returns a source for tests without other threads, where yields would only cost time.
    pub(crate) fn alone(engine: &'a Engine) -> Reader<'a> {
        Reader { yields: false, ..Reader::new(engine) }
    }

    pub(crate) fn by_clock(
        engine: &'a Engine,
        clock: &'a (dyn Fn() -> Instant + Sync),
    ) -> Reader<'a> {
        Reader { clock: Some(clock), ..Reader::alone(engine) }
    }
}

impl LoggedState<u32> for Reader<'_> {
    fn collect(&mut self, keys: &[u32]) -> usize {
        assert!(keys.is_sorted_by(|a, b| a < b), "sorted and distinct");
        for &key in keys {
            self.rows.push((key, self.engine.counters[key as usize].load(Ordering::Acquire)));
            if self.yields {
                std::thread::yield_now();
            }
        }
        self.rows.len() * 15
    }
    fn encode(&mut self, batch: &mut Batch) -> Result<(), Error> {
        if self.unreadable > 0 {
            self.unreadable -= 1;
            return Err(Error::Refused("a row cannot be read".to_owned()));
        }
        for (key, value) in self.rows.drain(..) {
            batch.push(1, 1, &row(key, value));
        }
        Ok(())
    }
    fn forget(&mut self) {
        self.rows.clear();
    }
    fn published(&mut self, now: &Committed) {
        self.published.lock().push(*now);
    }
    fn now_ms(&mut self) -> u64 {
        7
    }
    fn now(&self) -> Instant {
        self.clock.map_or_else(Instant::now, |now| now())
    }
    fn failed(&mut self, _: &Error) {
        self.errors += 1;
    }
}

pub(crate) fn recover(disk: &SimDisk) -> (Log, BTreeMap<u32, i64>) {
    let store = open(disk, options(8000)).unwrap();
    let mut state = BTreeMap::new();
    let (log, _) = store
        .replay(
            |r| {
                let (key, value) = read_row(r.payload);
                state.insert(key, value);
                Ok(())
            },
            |_| (),
        )
        .unwrap();
    (log, state)
}

pub(crate) fn always(stripes: usize) -> CommitOptions {
    CommitOptions { policy: SyncPolicy::Always, stripes, ..CommitOptions::default() }
}

/// Disk, engine and committer of a test.
pub(crate) struct Meeting {
    pub(crate) disk: SimDisk,
    pub(crate) engine: Engine,
    pub(crate) committer: Committer<u32>,
}

impl Meeting {
    pub(crate) fn new(counters: usize, options: CommitOptions) -> Meeting {
        Meeting {
            disk: SimDisk::new(1),
            engine: Engine::new(counters),
            committer: Committer::new(options),
        }
    }

    /// Returns a commit thread that the test drives.
    fn by_hand(&self) -> ByHand<'_, Reader<'_>> {
        self.by_hand_with(Reader::alone(&self.engine))
    }

    fn by_hand_with<S: LoggedState<u32>>(&self, source: S) -> ByHand<'_, S> {
        ByHand { log: recover(&self.disk).0, source, rounds: Rounds::new(&self.committer) }
    }

    /// Increments a counter while holding a write guard.
    fn add(&self, key: u32) -> Ticket {
        self.change(key, |counter| _ = counter.fetch_add(1, Ordering::Release))
    }

    /// Sets a counter while holding a write guard.
    pub(crate) fn set(&self, key: u32, value: i64) -> Ticket {
        self.change(key, |counter| counter.store(value, Ordering::Release))
    }

    fn change(&self, key: u32, change: impl FnOnce(&AtomicI64)) -> Ticket {
        let mut turn = self.committer.enter(u64::from(key));
        change(&self.engine.counters[key as usize]);
        turn.mark(key);
        turn.leave()
    }

    /// Returns the state recovered after a power cut.
    pub(crate) fn left(&self) -> BTreeMap<u32, i64> {
        recover(&self.disk.power_cut()).1
    }
}

struct ByHand<'a, S> {
    log: Log,
    source: S,
    rounds: Rounds<'a, u32>,
}

impl<S: LoggedState<u32>> ByHand<'_, S> {
    fn round(&mut self) -> Result<(), Error> {
        self.round_at(Instant::now())
    }

    fn round_at(&mut self, now: Instant) -> Result<(), Error> {
        self.rounds.turn(&mut self.log, &mut self.source, now, false)
    }
}

#[test]
fn a_hot_key_costs_one_record_a_round() {
    let meeting = Meeting::new(10, always(4));
    let mut thread = meeting.by_hand();
    for i in 0..100_000u32 {
        meeting.add(if i % 100 == 0 { i / 100 % 10 } else { 3 });
    }
    thread.round().unwrap();
    assert_eq!(thread.log.stats().records, 10);
    assert_eq!(meeting.left()[&3], 99_000 + 100);
}

#[test]
fn a_ticket_is_reached_only_after_the_sync() {
    let meeting = Meeting::new(10, always(4));
    let (disk, committer) = (&meeting.disk, &meeting.committer);
    let mut thread = meeting.by_hand();
    let ticket = meeting.add(1);
    assert!(committer.durable() < ticket);
    disk.set_faults(Faults { sync_error: 1024, ..Faults::default() });
    thread.round().unwrap_err();
    assert!(committer.durable() < ticket && committer.failed() >= ticket);
    assert_eq!(committer.health(), Health::Failing);
    disk.set_faults(Faults::default());
    thread.round().unwrap();
    assert!(committer.durable() >= ticket);
    assert_eq!(committer.health(), Health::Good);
    assert_eq!(thread.source.errors, 1);
    assert_eq!(meeting.left(), BTreeMap::from([(1, 1)]));
}

/// The log has an older state of an unreadable row, which must not count as the latest.
#[test]
fn unreadable_keys_stay_marked_and_not_durable() {
    let meeting = Meeting::new(10, always(4));
    let committer = &meeting.committer;
    let mut thread =
        meeting.by_hand_with(Reader { unreadable: 2, ..Reader::alone(&meeting.engine) });
    let ticket = meeting.set(1, 7);
    for _ in 0..2 {
        thread.round().unwrap_err();
        assert!(committer.durable() < ticket && committer.failed() >= ticket);
        assert_eq!(committer.health(), Health::Failing);
    }
    assert_eq!(thread.log.written().sequence, 0, "nothing was logged");
    thread.round().unwrap();
    assert!(committer.durable() >= ticket);
    assert_eq!((committer.health(), thread.source.errors), (Health::Good, 1));
    assert_eq!(meeting.left(), BTreeMap::from([(1, 7)]));
}

/// Each retry reports a different segment number. Five retries per second count as one failure,
/// which is reported once a minute.
#[test]
fn a_failure_that_lasts_is_reported_once_a_minute() {
    let meeting = Meeting::new(10, always(4));
    let mut thread = meeting.by_hand();
    meeting.add(1);
    meeting.disk.set_faults(Faults { sync_error: 1024, ..Faults::default() });
    let began = Instant::now();
    let mut messages = std::collections::BTreeSet::new();
    for attempt in 0..1000 {
        let now = began + Duration::from_millis(200) * attempt;
        messages.insert(thread.round_at(now).unwrap_err().to_string());
    }
    assert!(messages.len() > 3, "all messages are equal: {messages:?}");
    assert!((4..=8).contains(&thread.source.errors), "{} in 200 s", thread.source.errors);
    meeting.disk.set_faults(Faults::default());
    thread.round_at(began + Duration::from_secs(201)).unwrap();
    // A failure after a success is reported immediately.
    let before = thread.source.errors;
    meeting.add(1);
    meeting.disk.set_faults(Faults { sync_error: 1024, ..Faults::default() });
    thread.round_at(began + Duration::from_secs(202)).unwrap_err();
    assert_eq!(thread.source.errors, before + 1);
}

#[test]
fn a_full_disk_refuses_and_then_goes_on_with_nothing_lost() {
    let meeting = Meeting::new(100, always(8));
    let (disk, committer) = (&meeting.disk, &meeting.committer);
    let mut thread = meeting.by_hand();
    disk.set_capacity(Some(disk.used_bytes() + 300));
    let mut fulls = 0;
    for i in 0..60u32 {
        let ticket = meeting.set(i, i64::from(i));
        if i == 40 {
            disk.set_capacity(None);
        }
        match thread.round() {
            Ok(()) => assert!(committer.durable() >= ticket),
            Err(error) => {
                assert!(matches!(error, Error::Full { .. }), "{error}");
                assert_eq!(committer.health(), Health::Full);
                fulls += 1;
            }
        }
    }
    assert!(fulls > 20, "{fulls}");
    assert_eq!(meeting.left(), (0..60).map(|i| (i, i64::from(i))).collect());
}

/// The number of pending keys is bounded per stripe and in total. The memory of a burst is
/// released.
#[test]
fn keys_that_wait_are_bounded_in_all_stripes_together() {
    let options = CommitOptions {
        policy: SyncPolicy::No,
        max_stripe_keys: 512,
        queued_keys: 1024,
        ..always(16)
    };
    let keys_until_crowded = |spread: u32| {
        let meeting = Meeting::new(100_000, options);
        let mut thread = meeting.by_hand();
        // Run the test twice, because a round must subtract the keys that it removes from the
        // total.
        let [first, second] = [0, 1].map(|_| {
            let n = (0..100_000).find(|i| {
                meeting.set(i % 16 % spread + i / spread * 16, 1);
                meeting.committer.is_crowded()
            });
            assert!(meeting.committer.queue_bytes() <= 4 * 2 * 1024 + 4 * 32 * 16);
            thread.round().unwrap();
            assert!(!meeting.committer.is_crowded());
            n
        });
        assert_eq!(first, second);
        // A round swaps the lists of stripes with empty lists, so releasing the memory of all lists
        // takes two more rounds.
        (0..16).for_each(|key| _ = meeting.set(key, 2));
        thread.round().unwrap();
        (0..16).for_each(|key| _ = meeting.set(key, 3));
        thread.round().unwrap();
        assert!(
            meeting.committer.queue_bytes() <= 4 * 32 * 16,
            "{}",
            meeting.committer.queue_bytes()
        );
        first.unwrap()
    };
    assert_eq!(keys_until_crowded(1), 511, "one stripe");
    assert_eq!(keys_until_crowded(4), 1023, "four stripes");
}

/// Each stripe has its own batch. The first batch fails before the thread visits the other stripes.
#[test]
fn a_failed_round_forgets_no_stripe() {
    let meeting = Meeting::new(100, CommitOptions { batch_bytes: 1, ..always(8) });
    let mut thread = meeting.by_hand();
    meeting.disk.set_capacity(Some(meeting.disk.used_bytes()));
    for i in 0..8u32 {
        meeting.set(i, i64::from(i) + 1);
    }
    thread.round().unwrap_err();
    meeting.disk.set_capacity(None);
    thread.round().unwrap();
    assert_eq!(meeting.left(), (0..8).map(|i| (i, i64::from(i) + 1)).collect());
}

#[test]
fn every_second_syncs_in_time_and_no_does_not() {
    for (policy, syncs) in [(SyncPolicy::EverySecond, 5..=7), (SyncPolicy::No, 0..=0)] {
        let meeting =
            Meeting::new(10, CommitOptions { policy, stripes: 4, ..CommitOptions::default() });
        let mut thread = meeting.by_hand();
        let start = Instant::now();
        let (mut oldest, mut count) = (None, 0);
        for ms in (0..5000).step_by(50) {
            meeting.add(1);
            oldest.get_or_insert(ms);
            let before = thread.log.durable().offset;
            thread.round_at(start + Duration::from_millis(ms)).unwrap();
            if thread.log.durable().offset != before {
                assert!(ms - oldest.unwrap() <= 900, "a write waited {} ms", ms - oldest.unwrap());
                oldest = None;
                count += 1;
            }
        }
        assert!(syncs.contains(&count), "{policy:?}: {count} syncs");
    }
}

#[test]
fn an_idle_log_is_sealed_once() {
    let meeting = Meeting::new(10, always(4));
    let mut thread = meeting.by_hand();
    let start = Instant::now();
    meeting.set(1, 0);
    for s in 0..10 {
        thread.round_at(start + Duration::from_secs(s)).unwrap();
    }
    assert_eq!(thread.log.stats().batches, 2);
}

#[test]
fn everysec_is_late_when_a_change_is_unsynced_for_a_second() {
    let every_second =
        CommitOptions { policy: SyncPolicy::EverySecond, stripes: 4, ..CommitOptions::default() };
    let meeting = Meeting::new(1, every_second);
    let (disk, committer) = (&meeting.disk, &meeting.committer);
    let mut thread = meeting.by_hand();
    meeting.set(0, 1);
    thread.round().unwrap();
    assert!(
        !committer.is_late() && thread.log.durable() != thread.log.written(),
        "no sync is due yet"
    );
    std::thread::sleep(Duration::from_millis(1010));
    assert!(committer.is_late());
    disk.set_faults(Faults { sync_error: 1024, ..Faults::default() });
    thread.round().unwrap_err();
    assert!(committer.is_late(), "still no sync is due");
    disk.set_faults(Faults::default());
    thread.round().unwrap();
    assert!(!committer.is_late());
    committer.set_policy(SyncPolicy::No);
    std::thread::sleep(Duration::from_millis(1010));
    assert!(!committer.is_late(), "nothing is promised");
}

/// Tests invariant C9. Ids 1 and 5 share a stripe, but have different entries in the visibility
/// table.
#[test]
fn a_reader_learns_which_round_to_wait_for() {
    let meeting = Meeting::new(10, always(4));
    let (disk, committer) = (&meeting.disk, &meeting.committer);
    let mut thread = meeting.by_hand();
    let sights = || [1, 5, 2].map(|id| committer.last_change(id));
    assert_eq!(sights(), [0; 3]);

    // While a change is in progress, its round is unknown.
    let mut turn = committer.enter(1);
    assert_eq!(sights(), [Ticket::MAX, 0, 0]);
    assert_eq!(committer.first_locked_stripe(0), Some(1));
    meeting.engine.counters[1].store(7, Ordering::Release);
    turn.mark(1);
    // Earlier rounds do not contain the change.
    drop(committer.enter(1));
    assert_eq!(sights(), [Ticket::MAX, 0, 0], "a nested turn without changes");
    let ticket = turn.leave();
    assert_eq!(sights(), [ticket, 0, 0]);
    assert_eq!(committer.first_locked_stripe(0), None);
    thread.round().unwrap();
    assert_eq!(sights(), [0; 3]);

    // A guard without a change does not delay readers.
    drop(committer.enter(5));
    assert_eq!(sights(), [0; 3]);
    // An outer guard does not overwrite the round of a nested guard.
    let outer = committer.enter(5);
    let ticket = meeting.set(5, 8);
    drop(outer);
    assert_eq!(sights(), [0, ticket, 0]);

    // Readers do not wait for a failed round, but they wait for the next change.
    disk.set_faults(Faults { sync_error: 1024, ..Faults::default() });
    thread.round().unwrap_err();
    assert_eq!(sights(), [0; 3]);
    let ticket = meeting.add(2);
    assert_eq!(sights(), [0, 0, ticket]);
    disk.set_faults(Faults::default());
    thread.round().unwrap();
    assert_eq!(sights(), [0; 3]);

    // Test changes that affect all ids.
    let mut turn = committer.enter(0);
    turn.affects_all_ids();
    assert_eq!(sights(), [Ticket::MAX; 3]);
    turn.mark(0);
    let ticket = turn.leave();
    assert_eq!(sights(), [ticket; 3]);
    thread.round().unwrap();
    let several = committer.several([1, 2]);
    assert_eq!(sights(), [0; 3]);
    several.join();
    assert_eq!(sights(), [Ticket::MAX; 3]);
    drop(several);
    assert!(sights().iter().all(|&round| round > 0 && round < Ticket::MAX));
    thread.round().unwrap();
    assert_eq!(sights(), [0; 3]);
}

/// Changes that were made before the switch to `always` may be unsynced.
#[test]
fn a_new_policy_holds_for_what_is_read_from_then_on() {
    let meeting = Meeting::new(10, CommitOptions { policy: SyncPolicy::No, ..always(4) });
    let committer = &meeting.committer;
    let mut thread = meeting.by_hand();
    meeting.add(1);
    thread.round().unwrap();
    assert!(committer.durable() > committer.synced(), "written, not synced");
    assert_eq!(committer.last_change(1), 0, "no client was promised anything");
    committer.set_policy(SyncPolicy::Always);
    assert!(committer.last_change(1) > committer.synced());
    thread.round().unwrap();
    assert_eq!(committer.last_change(1), 0);
}
