//! Follows changes in the source Redis during an import. Keyspace notifications name the changed
//! keys, and the import reads these keys again. A notification carries no value, so a key with
//! several pending changes is read once. The value that the import reads is never older than the
//! notification.
//!
//! Redis does not store notifications for a disconnected client. If the connection breaks or the
//! queue overflows, the import scans all keys again. The import also rescans after FLUSHALL and
//! FLUSHDB. These commands send no keyspace notification, but they do invalidate client-side
//! caches.

use super::layout::{Layout, fits};
use super::source::RedisSource;
use client::{Client, Reply};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of pending changed keys. Above this number, a new scan is cheaper.
const MAX_PENDING_KEYS: usize = 1 << 20;
/// Interval between pings of an idle source.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a message from a source after which the import prints a warning. `SILENCE_TIMEOUT`:
/// time without a message after which the import closes the connection.
pub(crate) const SILENCE_WARNING_AGE: Duration = Duration::from_secs(3);
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct ChangeQueue(Mutex<PendingChanges>);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ChangedKey {
    pub(crate) key: Vec<u8>,
    /// Whether members or fields may have been removed.
    pub(crate) removed: bool,
}

struct PendingChanges {
    /// Time of the first pending change of each key, and whether members or fields may have been
    /// removed.
    keys: HashMap<Vec<u8>, (Instant, bool)>,
    /// Keys in the order of their first pending change.
    order: VecDeque<Vec<u8>>,
    /// Reason why notifications are no longer received.
    broken: Option<String>,
    is_flushed: bool,
    /// Number of notifications about removed members. Such a notification does not say which
    /// members were removed.
    removals: u64,
    last: Instant,
    /// Time of the last message from the source.
    heard: Instant,
}

impl ChangeQueue {
    fn new() -> ChangeQueue {
        ChangeQueue(Mutex::new(PendingChanges {
            keys: HashMap::new(),
            order: VecDeque::new(),
            broken: None,
            is_flushed: false,
            removals: 0,
            last: Instant::now(),
            heard: Instant::now(),
        }))
    }

    fn note(&self, key: Vec<u8>, may_remove: bool, removes: bool) {
        let waiting = &mut *self.0.lock();
        waiting.last = Instant::now();
        waiting.removals += u64::from(removes);
        if let Some((_, removed)) = waiting.keys.get_mut(&key) {
            *removed |= may_remove;
        } else if waiting.keys.len() >= MAX_PENDING_KEYS {
            waiting.broken = Some(format!(
                "too many pending changed keys ({MAX_PENDING_KEYS}); notifications were lost"
            ));
        } else {
            waiting.keys.insert(key.clone(), (waiting.last, may_remove));
            waiting.order.push_back(key);
        }
    }

    fn end(&self, why: String) {
        self.0.lock().broken.get_or_insert(why);
    }

    /// Removes up to `most` keys, oldest first, and returns them with the time of the first change.
    /// Fails if notifications were lost.
    pub(crate) fn take(&self, most: usize) -> io::Result<(Vec<ChangedKey>, Option<Instant>)> {
        let waiting = &mut *self.0.lock();
        if let Some(why) = &waiting.broken {
            return Err(io::Error::other(why.clone()));
        }
        let count = most.min(waiting.order.len());
        let mut since: Option<Instant> = None;
        let known = &mut waiting.keys;
        let changed = |key: Vec<u8>| {
            let (noted, removed) = known.remove(&key)?;
            since = Some(since.map_or(noted, |since| since.min(noted)));
            Some(ChangedKey { key, removed })
        };
        let changed = waiting.order.drain(..count).filter_map(changed).collect();
        Ok((changed, since))
    }

    pub(crate) fn waiting(&self) -> (usize, Option<Instant>) {
        let waiting = self.0.lock();
        let first = waiting.order.front().and_then(|key| waiting.keys.get(key));
        (waiting.order.len(), first.map(|(since, _)| *since))
    }

    pub(crate) fn removals(&self) -> u64 {
        self.0.lock().removals
    }

    pub(crate) fn silent(&self) -> Duration {
        self.0.lock().heard.elapsed()
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.0.lock().is_flushed
    }

    pub(crate) fn idle(&self) -> Duration {
        self.0.lock().last.elapsed()
    }
}

/// Subscribes to notifications. No change after the call returns is missed.
pub(crate) fn listen(
    source: &RedisSource,
    layouts: &Arc<Vec<Layout>>,
) -> io::Result<Arc<ChangeQueue>> {
    let mut remote = source.open()?;
    check_setting(&mut remote, layouts, true)?;
    track_flushes(&mut remote);
    let start = format!("__keyspace@{}__:", source.db);
    for layout in layouts.iter() {
        let pattern = format!("{start}{}", layout.glob);
        remote.ask(&[b"PSUBSCRIBE", pattern.as_bytes()]).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let why =
                    format!("{error} (the user needs access to the channel: &{pattern} or &*)");
                io::Error::new(error.kind(), why)
            }
            _ => error,
        })?;
    }
    let changes = Arc::new(ChangeQueue::new());
    let (told, layouts) = (changes.clone(), layouts.clone());
    let handle_message = move || {
        let broken = loop {
            match remote.message(PING_INTERVAL) {
                Err(error) => break error.to_string(),
                Ok(Some(message)) => {
                    told.0.lock().heard = Instant::now();
                    handle_message(message, &start, &layouts, &told);
                }
                Ok(None) if told.silent() >= SILENCE_TIMEOUT => {
                    break format!("no reply from the source for {} s", SILENCE_TIMEOUT.as_secs());
                }
                Ok(None) => {
                    // The next `message` calls return the reply and any notifications.
                    remote.push(&[b"PING"]);
                    if let Err(error) = remote.send() {
                        break error.to_string();
                    }
                }
            }
        };
        told.end(format!("notifications were lost: {broken}"));
    };
    std::thread::Builder::new().name("notifications".to_owned()).spawn(handle_message)?;
    Ok(changes)
}

/// Enables client tracking without caching any key. Only FLUSHALL and FLUSHDB then send
/// invalidations, and they go to this connection.
fn track_flushes(remote: &mut Client) {
    let mut ask = || {
        let id = match remote.ask(&[b"CLIENT", b"ID"])? {
            Reply::Integer(id) => id.to_string(),
            _ => return Err(io::Error::other("unexpected reply to CLIENT ID")),
        };
        remote.ask(&[b"CLIENT", b"TRACKING", b"ON", b"REDIRECT", id.as_bytes(), b"OPTIN"])
    };
    if let Err(error) = ask() {
        eprintln!("CLIENT TRACKING failed, so FLUSHALL and FLUSHDB will not be noticed: {error}");
    }
}

/// Checks that the source sends notifications for all relevant changes. If `is_first`, prints a
/// warning when the import cannot read the setting.
pub(crate) fn check_setting(
    remote: &mut Client,
    layouts: &[Layout],
    is_first: bool,
) -> io::Result<()> {
    let name = "notify-keyspace-events";
    let set = match remote.ask(&[b"CONFIG", b"GET", name.as_bytes()]) {
        Ok(Reply::Array(mut pair)) => pair.pop().and_then(Reply::into_bytes).unwrap_or_default(),
        // The connection failed.
        Err(error) if !is_first && error.kind() != io::ErrorKind::PermissionDenied => {
            return Err(error);
        }
        _ if !is_first => return Ok(()),
        // A managed Redis may not allow CONFIG.
        _ => {
            eprintln!("cannot read {name}: if it is not set, changes will not be noticed");
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
    let (set, more) = (
        String::from_utf8_lossy(&set),
        match is_first {
            true => "",
            false => ", then start over: changes made in between were not copied",
        },
    );
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        format!(
            "keyspace notifications are not enabled: {name} is \"{set}\". Run CONFIG SET {name} \
             K{needed} on the source{more}"
        ),
    ))
}

/// Handles a notification (`pmessage`, pattern, channel, event) or an invalidation (`message`,
/// channel, null if all keys were deleted).
fn handle_message(message: Reply, start: &str, layouts: &[Layout], told: &ChangeQueue) {
    let Reply::Array(mut parts) = message else { return };
    let (event, channel) =
        (parts.pop().and_then(Reply::into_bytes), parts.pop().and_then(Reply::into_bytes));
    let (event, channel) = match (event, channel) {
        (Some(event), Some(channel)) => (event, channel),
        (None, Some(channel)) if channel == b"__redis__:invalidate" => {
            told.0.lock().is_flushed = true;
            told.end("all keys of the source were deleted (FLUSHALL or FLUSHDB)".to_owned());
            return;
        }
        _ => return,
    };
    let Some(key) = channel.strip_prefix(start.as_bytes()) else { return };
    // Redis sends one message for each subscribed pattern that matches the key.
    let mut fitting = layouts.iter().filter(|layout| fits(&layout.glob, key)).peekable();
    if fitting.peek().is_some() {
        let may_remove = fitting.any(|layout| layout.may_remove(&event));
        told.note(key.to_vec(), may_remove, matches!(&event[..], b"srem" | b"spop"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(changed: &[ChangedKey]) -> Vec<(&[u8], bool)> {
        changed.iter().map(|one| (&one.key[..], one.removed)).collect()
    }

    #[test]
    fn key_waits_once_for_all_its_changes() {
        let changes = ChangeQueue::new();
        for key in ["a", "b", "a"] {
            changes.note(key.into(), key == "b", key == "b");
        }
        assert_eq!((changes.waiting().0, changes.removals()), (2, 1));
        let (taken, since) = changes.take(10).unwrap();
        assert_eq!(keys(&taken), [(&b"a"[..], false), (b"b", true)]);
        assert!(since.is_some() && changes.waiting() == (0, None));
        changes.note(b"a".to_vec(), false, false);
        changes.note(b"a".to_vec(), true, false);
        assert_eq!(keys(&changes.take(1).unwrap().0), [(&b"a"[..], true)], "it has changed again");
        changes.end("the link".to_owned());
        changes.end("another".to_owned());
        assert!(changes.take(1).unwrap_err().to_string().contains("the link"));
    }
}
