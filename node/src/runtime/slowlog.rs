//! Entries of SLOWLOG, and the history of events for LATENCY.
//!
//! The dispatcher records commands that exceeded a threshold. Such commands are rare, so a lock
//! suffices. The dispatcher times commands that do not take constant time, and commands with many
//! arguments. The dispatcher times all commands while LATENCY has a threshold or SLOWLOG's
//! threshold is below `COARSE_US`.

use crate::config::Server;
use crate::runtime::clients::Client;
use dataset::clock::unix_us;
use parking_lot::Mutex;
use resp::Args;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Threshold in microseconds that constant-time commands cannot exceed. At this threshold or above,
/// they need not be timed.
pub(crate) const COARSE_US: i64 = 10_000;
/// Number of arguments above which a command is timed even if it takes constant time per argument.
pub const MANY_ARGS: usize = 64;
/// Maximum number of arguments in an entry and bytes of each argument, as in Redis.
const KEPT_ARGS: usize = 32;
const KEPT_BYTES: usize = 128;
/// Maximum number of latencies per event, as in Redis.
const HISTORY: usize = 160;

/// Whether every command must be timed with these settings.
pub fn times_all(server: &Server) -> bool {
    (0..COARSE_US).contains(&server.slowlog_slower_than_us) || server.latency_threshold_ms > 0
}

/// A slow command.
#[derive(Clone)]
pub struct Entry {
    /// Unique, increasing identifier of the entry. SLOWLOG RESET does not restart the sequence.
    pub id: u64,
    /// Time of the command, in seconds since 1970.
    pub at_s: u64,
    /// Duration of the command, in microseconds.
    pub took_us: u64,
    /// Arguments of the command; long arguments are truncated.
    pub args: Vec<Vec<u8>>,
    /// Address of the client.
    pub peer: String,
    /// Name of the client.
    pub name: Vec<u8>,
}

/// Latencies of one event.
#[derive(Default, Clone)]
pub struct Event {
    /// Time in seconds since 1970, and latency in milliseconds.
    pub history: VecDeque<(u64, u64)>,
    /// Highest latency since the last reset, in milliseconds.
    pub highest_ms: u64,
}

#[derive(Default)]
struct Slow {
    next: u64,
    entries: VecDeque<Entry>,
}

/// State of SLOWLOG and LATENCY.
#[derive(Default)]
pub struct SlowLog {
    slow: Mutex<Slow>,
    events: Mutex<BTreeMap<&'static str, Event>>,
}

impl SlowLog {
    /// Records a command that ended, if it exceeded a threshold. `secret` arguments are redacted.
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
                // Only the highest latency of each second is kept.
                Some(last) if last.0 == now_s => last.1 = last.1.max(ms),
                _ => event.history.push_back((now_s, ms)),
            }
            if event.history.len() > HISTORY {
                event.history.pop_front();
            }
        }
    }

    /// Returns the newest entries, newest first.
    pub fn newest(&self, most: usize) -> Vec<Entry> {
        self.slow.lock().entries.iter().take(most).cloned().collect()
    }

    /// Number of entries.
    pub fn entries(&self) -> usize {
        self.slow.lock().entries.len()
    }

    /// Removes all entries; numbering continues.
    pub fn reset(&self) {
        self.slow.lock().entries.clear();
    }

    /// Returns all events that exceeded the threshold.
    pub fn events(&self) -> BTreeMap<&'static str, Event> {
        self.events.lock().clone()
    }

    /// Removes the events whose names satisfy `which`, and returns their number.
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
