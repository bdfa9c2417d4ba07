//! Rounds of the commit thread. A round removes the marked keys from the stripes, logs their state,
//! syncs if due, and publishes its progress. A failed round returns the keys to their stripes (C4).
//! The invariants are numbered in `mod.rs`.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::committer::{Committer, SYNC_CLASSES, SyncPolicy};
use super::source::{Committed, Health, LoggedState, Ticket};
use super::stripe::{Joined, Stripe, StripeGuard};
use crate::batch::MAX_BODY_BYTES;
use crate::buffer;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::record::Batch;
use crate::time;

/// Age of the oldest unsynced change at which `everysec` syncs. This age is less than a second,
/// because the sync also takes time.
const MAX_UNSYNCED_AGE: Duration = Duration::from_millis(800);

/// Interval for repeated reports of a persistent failure. `MAX_REPORTED_FAILURES` limits the number
/// of different failures per interval.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
const MAX_REPORTED_FAILURES: usize = 8;

/// State of the commit thread. [`Committer::run`] runs the rounds; tests on a simulated disk run
/// single rounds.
#[derive(Debug)]
pub struct Rounds<'a, K> {
    committer: &'a Committer<K>,
    batch: Batch,
    /// Stripes that this round has not visited yet.
    waiting: Vec<usize>,
    /// Keys that were collected but not appended. For each stripe, `spans` has its index, the end
    /// of its keys in `taken`, and whether it was joined.
    taken: Vec<K>,
    spans: Vec<(usize, usize, bool)>,
    /// Keys of atomic groups in `taken`, and the bytes reserved for these groups.
    units: Vec<K>,
    reserved: usize,
    /// Empty list to swap with a stripe's list, to avoid an allocation.
    spare: Vec<K>,
    /// Start of the last successful round. All keys marked before that time are appended.
    last_round_start: Instant,
    /// Earliest possible time of the oldest change that is appended but not synced.
    unsynced_since: Option<Instant>,
    last_write: Option<Instant>,
    retry_at: Option<Instant>,
    /// Failures reported since the last successful round, with the times of the reports.
    reported: Vec<(String, Instant)>,
}

impl<'a, K: Copy + Ord> Rounds<'a, K> {
    /// Returns the state before the first round.
    pub fn new(committer: &'a Committer<K>) -> Rounds<'a, K> {
        Rounds::starting(committer, time::now())
    }

    /// Like [`Rounds::new`], with an explicit time for a simulated clock.
    pub fn starting(committer: &'a Committer<K>, now: Instant) -> Rounds<'a, K> {
        committer.record_unsynced_since(now);
        Rounds {
            committer,
            batch: Batch::new(),
            waiting: Vec::new(),
            taken: Vec::new(),
            spans: Vec::new(),
            units: Vec::new(),
            reserved: 0,
            spare: Vec::new(),
            last_round_start: now,
            unsynced_since: None,
            last_write: None,
            retry_at: None,
            reported: Vec::new(),
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        self.retry_at.is_some()
    }

    /// Returns the time of the next round unless a writer wakes the thread earlier.
    pub(super) fn next_round_at(&self) -> Option<Instant> {
        let options = &self.committer.options;
        if self.retry_at.is_some() {
            return self.retry_at;
        }
        if self.committer.policy() != SyncPolicy::Always {
            return Some(time::now() + options.gather);
        }
        self.last_write.map(|t| t + options.seal_after)
    }

    /// Runs one round, which logs all marked keys. Syncs if the policy, a flush or `stop` requires
    /// it.
    pub fn turn(
        &mut self,
        log: &mut Log,
        source: &mut dyn LoggedState<K>,
        now: Instant,
        stop: bool,
    ) -> Result<()> {
        let committer = self.committer;
        let flush = {
            let pending_requests = committer.pending_requests.lock();
            committer.is_wake_pending.store(false, Ordering::SeqCst);
            pending_requests.flush > committer.synced.load(Ordering::Relaxed)
        };
        // The round must be incremented before the dirty bits are read (see `mod.rs`).
        let round = committer.round.fetch_add(1, Ordering::SeqCst);
        committer.crowded.store(false, Ordering::Relaxed);
        let result = self.attempt(log, source, now, round, flush || stop);
        let mut synced = committer.synced.load(Ordering::Relaxed);
        match &result {
            Ok(()) => {
                self.retry_at = None;
                self.reported.clear();
                committer.set_health(Health::Good);
                if log.durable().offset == log.written().offset {
                    self.unsynced_since = None;
                    synced = round;
                }
                self.last_round_start = now;
                committer.record_unsynced_since(self.unsynced_since.unwrap_or(now));
                committer.durable.store(round, Ordering::Release);
            }
            Err(error) => {
                self.retry_at = Some(now + committer.options.retry);
                committer.set_health(error.into());
                committer.failed.store(round, Ordering::Release);
                committer.stats.lock().failed_rounds += 1;
                if self.should_report(error, now) {
                    source.failed(error);
                }
            }
        }
        committer.stats.lock().log = log.stats();
        source.published(&Committed {
            written: committer.written.load(Ordering::Relaxed),
            durable: committer.durable.load(Ordering::Relaxed),
            synced,
            failed: committer.failed.load(Ordering::Relaxed),
            written_to: log.written(),
            synced_to: log.durable(),
            health: committer.health(),
        });
        // Store `synced` last, so that the progress is already published when `flush` returns.
        committer.synced.store(synced, Ordering::Release);
        if flush || result.is_err() || stop {
            drop(committer.pending_requests.lock());
            committer.progress.notify_all();
        }
        result
    }

    /// Whether to report a failure. Retries fail several times per second, each with a different
    /// segment number in the message.
    fn should_report(&mut self, error: &Error, now: Instant) -> bool {
        self.reported.retain(|(_, at)| now.saturating_duration_since(*at) < REPORT_INTERVAL);
        let gist = error.gist();
        let known = self.reported.iter().any(|(known, _)| *known == gist);
        let news = !known && self.reported.len() < MAX_REPORTED_FAILURES;
        if news {
            self.reported.push((gist, now));
        }
        news
    }

    fn attempt(
        &mut self,
        log: &mut Log,
        source: &mut dyn LoggedState<K>,
        now: Instant,
        round: Ticket,
        must_sync: bool,
    ) -> Result<()> {
        let options = &self.committer.options;
        let before = log.written().sequence;
        if let Err(error) = self.log_round(log, source) {
            source.forget();
            self.give_back();
            return Err(error);
        }
        self.committer.written.store(round, Ordering::Release);
        let logged = log.written().sequence != before;
        if logged {
            self.unsynced_since.get_or_insert(self.last_round_start);
            self.last_write = Some(now);
        }
        // Use the time after the append, which may be slow because it syncs when it begins a
        // segment. Waiters are notified of the append only after this sync.
        let appended = source.now().max(now);
        let second_is_over =
            || self.unsynced_since.is_some_and(|t| appended.duration_since(t) >= MAX_UNSYNCED_AGE);
        let due = match self.committer.policy() {
            SyncPolicy::Always => true,
            SyncPolicy::EverySecond => second_is_over(),
            SyncPolicy::No => false,
        };
        if due || must_sync || log.has_failed() {
            self.sync(log)?;
        }
        let idle =
            !logged && self.last_write.is_some_and(|t| now.duration_since(t) >= options.seal_after);
        if idle {
            log.seal(source.now_ms())?;
            self.last_write = None;
            self.appended();
            source.rest();
        }
        Ok(())
    }

    fn sync(&mut self, log: &mut Log) -> Result<()> {
        if log.durable().offset == log.written().offset && !log.has_failed() {
            return Ok(());
        }
        let began = time::now();
        log.sync()?;
        let us = (time::now() - began).as_micros() as u64;
        let mut stats = self.committer.stats.lock();
        stats.sync_us += us;
        stats.slowest_sync_us = stats.slowest_sync_us.max(us);
        let class = (u64::BITS - us.leading_zeros()) as usize;
        stats.syncs_by_us[class.min(SYNC_CLASSES - 1)] += 1;
        Ok(())
    }

    /// Collects all marked keys and appends their state. The keys of one stripe always share a
    /// batch (C2).
    fn log_round(&mut self, log: &mut Log, source: &mut dyn LoggedState<K>) -> Result<()> {
        self.taken.clear();
        self.spans.clear();
        self.waiting.clear();
        let waiting = &mut self.waiting;
        self.committer.take_dirty(|index| waiting.push(index));
        // A stripe stays in `waiting` until its keys are removed, so that a failed round does not
        // skip it (C4).
        while let Some(&index) = self.waiting.last() {
            let stripe = self.committer.stripes[index].lock.lock();
            if stripe.borrow().joined {
                // Lock order: `joined` before the stripes.
                drop(stripe);
                // This round may read a key of a joined stripe twice. Joined stripes therefore get
                // a separate batch (C7).
                self.append(log, source)?;
                self.take_joined(index, source);
                self.waiting.pop();
                self.append(log, source)?;
                continue;
            }
            let bytes = self.take(index, &mut stripe.borrow_mut(), source);
            drop(stripe);
            self.waiting.pop();
            if bytes >= self.committer.options.batch_bytes {
                self.append(log, source)?;
            }
        }
        self.append(log, source)
    }

    /// Removes a stripe's keys and collects their state under the caller's lock. Returns the
    /// approximate size of the collected state in bytes.
    fn take(
        &mut self,
        index: usize,
        stripe: &mut Stripe<K>,
        source: &mut dyn LoggedState<K>,
    ) -> usize {
        stripe.take(&mut self.spare, &self.committer.queued);
        self.spare.sort_unstable();
        self.spare.dedup();
        let bytes = if self.spare.is_empty() { 0 } else { source.collect(&self.spare) };
        self.taken.append(&mut self.spare);
        self.spans.push((index, self.taken.len(), std::mem::take(&mut stripe.joined)));
        bytes
    }

    /// Removes the keys of this stripe and all joined stripes under all their locks (C6).
    fn take_joined(&mut self, index: usize, source: &mut dyn LoggedState<K>) {
        let committer = self.committer;
        let mut joined = committer.joined.lock();
        if !joined.stripes.contains(&index) {
            // This stripe was already read together with another joined stripe.
            joined.stripes.push(index);
        }
        for (index, stripe) in self.hold_joined(&mut joined) {
            self.take(index, &mut stripe.borrow_mut(), source);
        }
    }

    /// Locks all joined stripes and resets the list. Moves the joined keys and their reservation to
    /// this round.
    fn hold_joined(&mut self, joined: &mut Joined<K>) -> Vec<(usize, StripeGuard<'a, K>)> {
        let committer = self.committer;
        // Several stripes are always locked in ascending order.
        joined.stripes.sort_unstable();
        // Replace the list instead of draining it, to free the memory of a burst.
        self.units.append(&mut std::mem::take(&mut joined.units));
        self.reserved += std::mem::take(&mut joined.bytes);
        joined
            .stripes
            .drain(..)
            .map(|index| (index, committer.stripes[index].lock.lock()))
            .collect()
    }

    fn append(&mut self, log: &mut Log, source: &mut dyn LoggedState<K>) -> Result<()> {
        if self.taken.is_empty() {
            self.release_reservation();
            return Ok(());
        }
        // A failed append leaves records in the batch.
        if !self.batch.is_empty() {
            self.batch.clear();
        }
        source.encode(&mut self.batch)?;
        if self.batch.bytes() > MAX_BODY_BYTES {
            return self.append_split(log, source);
        }
        self.append_batch(log, source)
    }

    /// Appends the encoded batch, which covers all of `taken`.
    fn append_batch(&mut self, log: &mut Log, source: &mut dyn LoggedState<K>) -> Result<()> {
        if !self.batch.is_empty() {
            log.append(&self.batch, source.now_ms())?;
        }
        let mut stats = self.committer.stats.lock();
        stats.batches += 1;
        stats.keys += self.taken.len() as u64;
        drop(stats);
        self.appended();
        Ok(())
    }

    /// Clears the keys that are in the log.
    fn appended(&mut self) {
        buffer::clear(&mut self.taken);
        buffer::clear(&mut self.spans);
        self.batch.clear();
        self.release_reservation();
    }

    fn release_reservation(&mut self) {
        self.units = Vec::new();
        if self.reserved > 0 {
            self.committer.reserved.fetch_sub(std::mem::take(&mut self.reserved), Ordering::SeqCst);
        }
    }

    /// Splits an oversized batch (C8).
    fn append_split(&mut self, log: &mut Log, source: &mut dyn LoggedState<K>) -> Result<()> {
        source.forget();
        let stripes: Vec<usize> = self.spans.iter().map(|span| span.0).collect();
        let were_joined = self.spans.iter().any(|span| span.2);
        let mut bytes = self.batch.bytes();
        // Return the keys to their stripes, to collect them again with newer marks.
        self.put_back();
        if were_joined {
            self.take_units(source);
            self.batch.clear();
            source.encode(&mut self.batch)?;
            if self.batch.bytes() <= MAX_BODY_BYTES {
                self.append_batch(log, source)?;
                // Visit the stripes of the remaining keys.
                self.waiting.extend(stripes);
                return Ok(());
            }
            bytes = self.batch.bytes();
            source.forget();
            self.put_back();
            self.split_group();
        }
        source.batch_split(bytes);
        // Split each stripe into as many batches as needed. A crash may lose some of these batches,
        // but an oversized batch could never be logged.
        let committer = self.committer;
        for index in stripes {
            let stripe = committer.stripes[index].lock.lock();
            if stripe.borrow().joined {
                // The stripe was joined after its keys were returned.
                self.waiting.push(index);
                continue;
            }
            stripe.borrow_mut().take(&mut self.taken, &committer.queued);
            self.taken.sort_unstable();
            self.taken.dedup();
            self.spans.push((index, self.taken.len(), false));
            // Hold the lock until all batches are appended, so that they show one consistent state.
            append_halves(&self.taken, &mut self.batch, log, source)?;
            committer.stats.lock().keys += self.taken.len() as u64;
            self.taken.clear();
            self.spans.clear();
        }
        Ok(())
    }

    /// Drops the atomicity of a group that exceeds the size limit of a batch.
    fn split_group(&mut self) {
        let committer = self.committer;
        for (_, stripe) in self.hold_joined(&mut committer.joined.lock()) {
            stripe.borrow_mut().joined = false;
        }
        self.appended();
    }

    /// Removes only the keys of atomic groups from the joined stripes, under all their locks.
    ///
    /// Also removes other keys of the same ids. All other keys remain in their stripes, and this
    /// round logs them in separate batches.
    fn take_units(&mut self, source: &mut dyn LoggedState<K>) {
        let committer = self.committer;
        let mut joined = committer.joined.lock();
        let stripes = self.hold_joined(&mut joined);
        self.units.sort_unstable();
        for (index, stripe) in stripes {
            let stripe = &mut *stripe.borrow_mut();
            stripe.take(&mut self.spare, &committer.queued);
            stripe.joined = false;
            self.spare.sort_unstable();
            self.spare.dedup();
            let start = self.taken.len();
            for of_one in
                self.spare.chunk_by(|before, after| !source.may_split_between(before, after))
            {
                let is_ours = of_one.iter().any(|key| self.units.binary_search(key).is_ok());
                if is_ours { &mut self.taken } else { &mut stripe.keys }.extend_from_slice(of_one);
            }
            self.spare.clear();
            if self.taken.len() > start {
                source.collect(&self.taken[start..]);
                self.spans.push((index, self.taken.len(), true));
            }
            // Visit the stripe again for the keys that were marked later.
            self.waiting.push(index);
        }
    }

    /// Returns all keys of a failed round to their stripes (C4).
    fn give_back(&mut self) {
        self.put_back();
        for index in self.waiting.drain(..) {
            self.committer.set_dirty(index);
        }
    }

    fn put_back(&mut self) {
        let mut start = 0;
        // Atomic groups stay joined, so that the next round logs each of them in one batch.
        let mut joined = self.committer.joined.lock();
        joined.units.append(&mut self.units);
        joined.bytes += std::mem::take(&mut self.reserved);
        for (index, end, was_joined) in self.spans.drain(..) {
            let stripe = self.committer.stripes[index].lock.lock();
            let stripe = &mut *stripe.borrow_mut();
            if was_joined && !stripe.joined {
                stripe.joined = true;
                joined.stripes.push(index);
            }
            stripe.keys.extend_from_slice(&self.taken[start..end]);
            self.committer.set_dirty(index);
            if stripe.keys.len() >= self.committer.options.crowded_keys {
                self.committer.crowded.store(true, Ordering::Relaxed);
            }
            start = end;
        }
        drop(joined);
        self.taken.clear();
    }
}

/// Appends the state of `keys`. Splits an oversized batch in half, at a boundary that
/// [`LoggedState::may_split_between`] permits.
fn append_halves<K>(
    keys: &[K],
    batch: &mut Batch,
    log: &mut Log,
    source: &mut dyn LoggedState<K>,
) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    source.collect(keys);
    batch.clear();
    source.encode(batch)?;
    let may_cut = |&at: &usize| source.may_split_between(&keys[at - 1], &keys[at]);
    let middle = keys.len() / 2;
    let cut = (batch.bytes() > MAX_BODY_BYTES)
        .then(|| (middle.max(1)..keys.len()).chain((1..middle).rev()).find(may_cut))
        .flatten();
    match cut {
        Some(at) => {
            source.forget();
            append_halves(&keys[..at], batch, log, source)?;
            append_halves(&keys[at..], batch, log, source)
        }
        None if batch.is_empty() => Ok(()),
        None => log.append(batch, source.now_ms()).map(|_| ()),
    }
}

impl<K: Copy + Ord> Committer<K> {
    /// Runs the commit thread until [`stop`](Committer::stop). After that, runs one more round,
    /// seals the log and returns it.
    pub fn run(&self, mut log: Log, source: &mut dyn LoggedState<K>) -> (Log, Result<()>) {
        let _ends = ExitNotifier(self);
        let mut rounds = Rounds::new(self);
        if log.has_failed() {
            // The log could not create a segment. Report the error now and retry before the first
            // write.
            let _ = rounds.turn(&mut log, source, time::now(), false);
        }
        loop {
            let stop = self.sleep(&rounds);
            let last = rounds.turn(&mut log, source, time::now(), stop);
            if stop {
                let seals = !self.pending_requests.lock().unsealed;
                let sealed =
                    last.and_then(|()| if seals { log.seal(source.now_ms()) } else { Ok(()) });
                return (log, sealed);
            }
        }
    }

    /// Waits for work. Returns whether the thread must stop.
    fn sleep(&self, rounds: &Rounds<'_, K>) -> bool {
        let mut pending_requests = self.pending_requests.lock();
        let until = rounds.next_round_at();
        // Marks do not wake the thread while the disk fails, because each attempt causes I/O.
        while (rounds.is_failing() || !self.is_wake_pending.load(Ordering::SeqCst))
            && !pending_requests.stop
        {
            match until {
                Some(until) if self.wake.wait_until(&mut pending_requests, until).timed_out() => {
                    break;
                }
                Some(_) => {}
                None => self.wake.wait(&mut pending_requests),
            }
        }
        pending_requests.stop
    }
}

/// Notifies waiters when the commit thread returns or panics.
struct ExitNotifier<'a, K>(&'a Committer<K>);

impl<K> Drop for ExitNotifier<'_, K> {
    fn drop(&mut self) {
        self.0.pending_requests.lock().ended = true;
        self.0.progress.notify_all();
    }
}
