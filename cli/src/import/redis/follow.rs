//! Changes of a Redis while it is imported: its keyspace notifications name the keys that change,
//! and these are read again. A notification says nothing of values, so a key that changes often is
//! read once for all its changes, and what is read is always newer than the notification.
//!
//! Notifications are not kept for a client that is away: when the connection breaks, or falls too
//! far behind, everything is scanned again.

use super::layout::{Layout, fits};
use super::source::{Remote, Source, bytes};
use parking_lot::Mutex;
use redis_protocol::resp2::types::OwnedFrame;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Keys that have changed and wait to be read, at most: beyond that it is cheaper to scan.
const MOST_KEYS: usize = 1 << 20;

/// Keys that have changed and were not read since.
pub(crate) struct Changes(Mutex<Waiting>);

struct Waiting {
    /// Since when they wait.
    keys: HashMap<Vec<u8>, Instant>,
    /// In the order in which they changed.
    order: VecDeque<Vec<u8>>,
    /// Why no more come.
    broken: Option<String>,
    /// Notifications that members were removed, which ones they do not say.
    removals: u64,
    last: Instant,
}

impl Changes {
    fn new() -> Changes {
        Changes(Mutex::new(Waiting {
            keys: HashMap::new(),
            order: VecDeque::new(),
            broken: None,
            removals: 0,
            last: Instant::now(),
        }))
    }

    fn note(&self, key: Vec<u8>, removes: bool) {
        let waiting = &mut *self.0.lock();
        waiting.last = Instant::now();
        waiting.removals += u64::from(removes);
        if waiting.keys.len() >= MOST_KEYS {
            waiting.broken = Some(format!("{MOST_KEYS} changed keys wait"));
        } else if !waiting.keys.contains_key(&key) {
            waiting.keys.insert(key.clone(), waiting.last);
            waiting.order.push_back(key);
        }
    }

    /// The keys that wait longest, and since when. An error if some are missing.
    pub(crate) fn take(&self, most: usize) -> io::Result<(Vec<Vec<u8>>, Option<Instant>)> {
        let waiting = &mut *self.0.lock();
        if let Some(why) = &waiting.broken {
            return Err(io::Error::other(format!("notifications are lost: {why}")));
        }
        let count = most.min(waiting.order.len());
        let keys: Vec<Vec<u8>> = waiting.order.drain(..count).collect();
        let since = keys.iter().filter_map(|key| waiting.keys.remove(key)).min();
        Ok((keys, since))
    }

    /// How many wait, and the first of them since when.
    pub(crate) fn waiting(&self) -> (usize, Option<Instant>) {
        let waiting = self.0.lock();
        let first = waiting.order.front().and_then(|key| waiting.keys.get(key)).copied();
        (waiting.order.len(), first)
    }

    /// How many notifications said that members were removed.
    pub(crate) fn removals(&self) -> u64 {
        self.0.lock().removals
    }

    /// How long nothing has changed.
    pub(crate) fn idle(&self) -> Duration {
        self.0.lock().last.elapsed()
    }
}

/// Begins to listen. When this returns, no change goes unheard.
pub(crate) fn listen(source: &Source, layouts: &Arc<Vec<Layout>>) -> io::Result<Arc<Changes>> {
    let mut remote = source.open()?;
    check_setting(&mut remote, layouts)?;
    let start = format!("__keyspace@{}__:", source.db);
    for layout in layouts.iter() {
        let pattern = format!("{start}{}", layout.glob);
        remote.ask(&[b"PSUBSCRIBE", pattern.as_bytes()])?;
    }
    let changes = Arc::new(Changes::new());
    let (told, layouts) = (changes.clone(), layouts.clone());
    let hear = move || {
        let broken = loop {
            match remote.message() {
                Err(error) => break error.to_string(),
                Ok(message) => hear(message, &start, &layouts, &told),
            }
        };
        told.0.lock().broken = Some(broken);
    };
    std::thread::Builder::new().name("notifications".to_owned()).spawn(hear)?;
    Ok(changes)
}

/// Whether the server tells of all changes that matter.
fn check_setting(remote: &mut Remote, layouts: &[Layout]) -> io::Result<()> {
    let name = "notify-keyspace-events";
    let set = match remote.ask(&[b"CONFIG", b"GET", name.as_bytes()]) {
        Ok(OwnedFrame::Array(mut pair)) => pair.pop().and_then(bytes).unwrap_or_default(),
        // A managed Redis may forbid CONFIG.
        _ => {
            eprintln!("whether {name} is set cannot be asked: without it no change is seen");
            return Ok(());
        }
    };
    let mut needed: Vec<char> =
        layouts.iter().flat_map(|layout| layout.classes().chars()).collect();
    needed.sort_unstable();
    needed.dedup();
    let has = |class: char| set.contains(&(class as u8)) || (class != 'K' && set.contains(&b'A'));
    if has('K') && needed.iter().all(|class| has(*class)) {
        return Ok(());
    }
    let needed: String = needed.into_iter().collect();
    Err(io::Error::other(format!(
        "it does not tell of changes: {name} is \"{}\". On it: CONFIG SET {name} K{needed}",
        String::from_utf8_lossy(&set)
    )))
}

/// One notification: `pmessage`, pattern, channel, event.
fn hear(message: OwnedFrame, start: &str, layouts: &[Layout], told: &Changes) {
    let OwnedFrame::Array(mut parts) = message else { return };
    let (event, channel) = (parts.pop().and_then(bytes), parts.pop().and_then(bytes));
    let (Some(event), Some(channel)) = (event, channel) else { return };
    let Some(key) = channel.strip_prefix(start.as_bytes()) else { return };
    // Several patterns may fit a key, and each sends a message.
    if layouts.iter().any(|layout| fits(&layout.glob, key)) {
        told.note(key.to_vec(), matches!(&event[..], b"srem" | b"spop"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_waits_once_for_all_its_changes() {
        let changes = Changes::new();
        for key in ["a", "b", "a"] {
            changes.note(key.into(), key == "b");
        }
        assert_eq!((changes.waiting().0, changes.removals()), (2, 1));
        let (keys, since) = changes.take(10).unwrap();
        assert_eq!(keys, [b"a".to_vec(), b"b".to_vec()]);
        assert!(since.is_some() && changes.waiting() == (0, None));
        changes.note(b"a".to_vec(), false);
        assert_eq!(changes.take(1).unwrap().0, [b"a".to_vec()], "it has changed again");
        changes.0.lock().broken = Some("the link".to_owned());
        assert!(changes.take(1).unwrap_err().to_string().contains("the link"));
    }
}
