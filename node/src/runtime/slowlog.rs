//! What took long: SLOWLOG's entries, and the history of latencies of LATENCY.
//!
//! Both are fed by the dispatcher, and only with what was timed and exceeded a threshold, so a lock
//! is good enough. Which commands are timed: those that do not take constant time, those with many
//! arguments, and all of them while a threshold lies below `COARSE_US`. A page of the usual size
//! costs no look at the clock.

use crate::config::Server;
use crate::runtime::clients::Client;
use dataset::clock::unix_us;
use parking_lot::Mutex;
use resp::Args;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Thresholds from here on, in microseconds, no command of constant time exceeds by itself.
pub(crate) const COARSE_US: i64 = 10_000;
/// Commands with more arguments are timed, though each argument takes constant time.
pub const MANY_ARGS: usize = 64;
/// Arguments, and bytes of each, that an entry keeps: as in Redis.
const KEPT_ARGS: usize = 32;
const KEPT_BYTES: usize = 128;
/// Latencies that are kept of each event: as in Redis.
const HISTORY: usize = 160;

/// Whether every command is to be timed under these settings.
pub fn times_all(server: &Server) -> bool {
    (0..COARSE_US).contains(&server.slowlog_slower_than_us) || server.latency_threshold_ms > 0
}

/// One slow command.
#[derive(Clone)]
pub struct Entry {
    /// Counts up, also over SLOWLOG RESET.
    pub id: u64,
    /// Seconds since 1970.
    pub at_s: u64,
    /// How long it took.
    pub took_us: u64,
    /// The request, long ones shortened.
    pub args: Vec<Vec<u8>>,
    /// The client's address.
    pub peer: String,
    /// The client's name.
    pub name: Vec<u8>,
}

/// Latencies of one event: (seconds since 1970, milliseconds), and the highest ever.
#[derive(Default, Clone)]
pub struct Event {
    /// When (seconds since 1970), and how many milliseconds it took.
    pub history: VecDeque<(u64, u64)>,
    /// The longest of all.
    pub highest_ms: u64,
}

#[derive(Default)]
struct Slow {
    next: u64,
    entries: VecDeque<Entry>,
}

/// See the top of the file.
#[derive(Default)]
pub struct SlowLog {
    slow: Mutex<Slow>,
    events: Mutex<BTreeMap<&'static str, Event>>,
}

impl SlowLog {
    /// A command has ended. Its arguments are kept unless they are `secret`.
    pub fn note(
        &self,
        server: &Server,
        client: &Client,
        args: Args<'_>,
        took: Duration,
        secret: bool,
        event: &'static str,
    ) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if server.slowlog_max_len > 0
            && u64::try_from(server.slowlog_slower_than_us).is_ok_and(|most| took_us >= most)
        {
            let mut slow = self.slow.lock();
            let id = slow.next;
            slow.next += 1;
            let peer = client.peer.to_string();
            let name = client.names.lock().name.clone();
            slow.entries.push_front(Entry {
                id,
                at_s: unix_us() / 1_000_000,
                took_us,
                args: kept(args, secret),
                peer,
                name,
            });
            slow.entries.truncate(server.slowlog_max_len);
        }
        let (ms, threshold) = (took_us / 1000, server.latency_threshold_ms);
        if threshold > 0 && ms >= threshold {
            let now_s = unix_us() / 1_000_000;
            let mut events = self.events.lock();
            let event = events.entry(event).or_default();
            event.highest_ms = event.highest_ms.max(ms);
            match event.history.back_mut() {
                // One a second: the highest.
                Some(last) if last.0 == now_s => last.1 = last.1.max(ms),
                _ => event.history.push_back((now_s, ms)),
            }
            if event.history.len() > HISTORY {
                event.history.pop_front();
            }
        }
    }

    /// The newest entries, newest first.
    pub fn newest(&self, most: usize) -> Vec<Entry> {
        self.slow.lock().entries.iter().take(most).cloned().collect()
    }

    /// How many entries there are.
    pub fn entries(&self) -> usize {
        self.slow.lock().entries.len()
    }

    /// Forgets all entries; their numbers go on.
    pub fn reset(&self) {
        self.slow.lock().entries.clear();
    }

    /// All events that were ever above the threshold.
    pub fn events(&self) -> BTreeMap<&'static str, Event> {
        self.events.lock().clone()
    }

    /// Forgets events for which `which` holds; gives how many.
    pub fn reset_events(&self, which: impl Fn(&str) -> bool) -> usize {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|name, _| !which(name));
        before - events.len()
    }
}

fn kept(args: Args<'_>, secret: bool) -> Vec<Vec<u8>> {
    let shown = if args.len() > KEPT_ARGS { KEPT_ARGS - 1 } else { args.len() };
    let mut kept: Vec<Vec<u8>> = Vec::with_capacity(KEPT_ARGS);
    for (index, arg) in args.iter().take(shown).enumerate() {
        kept.push(match arg.len() {
            _ if secret && index > 0 => b"(redacted)".to_vec(),
            0..=KEPT_BYTES => arg.to_vec(),
            more => {
                [&arg[..KEPT_BYTES], format!("... ({} more bytes)", more - KEPT_BYTES).as_bytes()]
                    .concat()
            }
        });
    }
    if shown < args.len() {
        kept.push(format!("... ({} more arguments)", args.len() - shown).into_bytes());
    }
    kept
}
