//! The spill thread performs the background work of all spaces, one after the other, and retries
//! after failures.

use super::dropped::forget_dropped;
use super::ground::record_spill_failure;
use super::scrub::Scrubber;
use super::{counters, filters, ledgers, rebuild};
use crate::cold::Cold;
use crate::cold::quarantine::Quarantine;
use crate::commit::Durability;
use crate::engines::Engines;
use crate::live::Live;
use crate::poll_backoff::PollBackoff;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use store::time;

/// Time between a failure and the next attempt on the same space.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Retry times of spaces whose last attempt failed, and the state of the cleanup of dropped spaces.
#[derive(Default)]
struct Retries {
    due: HashMap<u32, Instant>,
    /// Catalogue version at the last complete cleanup of dropped spaces.
    clean: Option<u64>,
}

impl Retries {
    /// Performs the work of one space unless its retry time is in the future. Returns whether there
    /// was any work.
    fn do_urgent_work(
        &mut self,
        cold: &Cold,
        (number, name): (u32, &str),
        (stuck, damaged): (&AtomicBool, &Quarantine),
        look: impl FnOnce() -> store::Result<Option<bool>>,
    ) -> bool {
        if self.due.get(&number).is_some_and(|due| time::now() < *due) {
            return false;
        }
        self.due.remove(&number);
        match look() {
            Ok(Some(true)) => {
                stuck.store(false, Relaxed);
                if !damaged.any() {
                    cold.trouble.lock().remove(name);
                }
                return true;
            }
            Ok(Some(false)) => stuck.store(false, Relaxed),
            Ok(None) => stuck.store(true, Relaxed),
            Err(error) => {
                record_spill_failure(cold, name, &error);
                stuck.store(true, Relaxed);
                self.due.insert(number, time::now() + RETRY_INTERVAL);
            }
        }
        false
    }

    /// Removes the files of dropped spaces that remain after a crash, or after the master dropped
    /// the space and replicated this change. Returns whether it removed a file.
    fn forget_dropped(&mut self, live: &Live<'_>, engines: &Engines) -> bool {
        // No space has the number 0, so 0 is the key of this work.
        let is_due = self.due.get(&0).is_none_or(|due| time::now() >= *due);
        if self.clean == Some(engines.version()) || !is_due {
            return false;
        }
        let outcome = forget_dropped(live);
        match &outcome {
            Ok(_) => self.clean = Some(engines.version()),
            Err(error) => {
                tracing::warn!("cannot remove the files of a dropped space: {error}");
                self.due.insert(0, time::now() + RETRY_INTERVAL);
            }
        }
        outcome.is_ok_and(|worked| worked)
    }

    fn do_all_urgent_work(&mut self, live: &Live<'_>) -> bool {
        let engines = live.current.load();
        // Clone the lists and release the catalogue, so that a space dropped in the meantime is
        // freed promptly.
        let (counters, existences) = (engines.counters().to_vec(), engines.existences().to_vec());
        let mut worked = self.forget_dropped(live, &engines);
        let cold = engines.cold.clone();
        drop(engines);
        for space in existences {
            let (whose, of_space) = ((space.number(), space.name()), space.cold());
            let state = (&of_space.stuck, &of_space.damaged);
            worked |=
                self.do_urgent_work(&cold, whose, state, || filters::do_urgent_work(live, &space));
            if let Some(ledger) = space.ledger() {
                let state = (&ledger.stuck, &of_space.damaged);
                let look = || ledgers::do_urgent_work(live, &space);
                worked |= self.do_urgent_work(&cold, whose, state, look);
                let look = || rebuild::do_urgent_work(live, &space);
                worked |= self.do_urgent_work(&cold, whose, state, look);
            }
        }
        for space in counters {
            let (whose, of_space) = ((space.number(), space.name()), space.cold());
            let state = (&of_space.stuck, &of_space.damaged);
            worked |=
                self.do_urgent_work(&cold, whose, state, || counters::do_urgent_work(live, &space));
        }
        worked
    }
}

/// State of the spill thread.
#[derive(Default)]
pub struct Spiller {
    retries: Retries,
    scrubber: Scrubber,
    backoff: PollBackoff,
}

impl Spiller {
    /// Performs the work of all spaces if a data set is open, and scrubs one piece of a file.
    /// Returns the sleep time before the next step, or `None` if there may be more work.
    pub fn step(&mut self, live: Option<&Live<'_>>, durability: &Durability) -> Option<Duration> {
        let worked = live.is_some_and(|live| self.retries.do_all_urgent_work(live));
        let until_due = live.map_or(Duration::MAX, |live| self.scrubber.step(live));
        if worked {
            self.backoff.worked();
            return None;
        }
        Some(self.backoff.next(durability.parts.changes()).min(until_due))
    }
}
