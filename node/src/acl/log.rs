//! ACL LOG: refusals, newest first. Equal refusals within a minute share an entry.

use dataset::clock::unix_us;
use std::collections::VecDeque;

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The password was wrong.
    Auth,
    /// The user has no permission for the command.
    Command,
    /// The user has no permission for the key.
    Key,
    /// The user has no permission for the channel.
    Channel,
}

impl Reason {
    /// Returns the name in ACL LOG.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Auth => "auth",
            Reason::Command => "command",
            Reason::Key => "key",
            Reason::Channel => "channel",
        }
    }
}

/// A refusal, with the number of its repetitions.
pub struct Entry {
    /// Unique identifier of the entry.
    pub number: u64,
    pub count: u64,
    pub reason: Reason,
    pub object: Vec<u8>,
    pub user: Vec<u8>,
    /// CLIENT INFO of the last client.
    pub client: Vec<u8>,
    pub first_us: u64,
    pub last_us: u64,
}

/// Period in which equal refusals share an entry, in microseconds.
const TOGETHER_US: u64 = 60_000_000;
/// Maximum length of a stored object or name, in bytes.
const KEPT_BYTES: usize = 128;

/// Refusals, newest first.
pub struct Log {
    entries: VecDeque<Entry>,
    /// Maximum number of entries: `security.acl_log_entries`.
    pub(crate) most: usize,
    last_number: u64,
}

impl Default for Log {
    fn default() -> Log {
        Log { entries: VecDeque::new(), most: 128, last_number: 0 }
    }
}

impl Log {
    /// Adds a refusal, or increments the count of an equal recent refusal.
    pub fn note(&mut self, reason: Reason, object: &[u8], user: &[u8], client: Vec<u8>) {
        let cut = |text: &[u8]| text[..text.len().min(KEPT_BYTES)].to_vec();
        let (object, user, now) = (cut(object), cut(user), unix_us());
        let same = |e: &Entry| {
            e.reason == reason
                && e.object == object
                && e.user == user
                && now.saturating_sub(e.first_us) < TOGETHER_US
        };
        // As in Redis, only the newest 10 entries are compared.
        let known =
            self.entries.iter().take(10).position(same).and_then(|at| self.entries.remove(at));
        let entry = match known {
            Some(entry) => Entry { count: entry.count + 1, last_us: now, client, ..entry },
            None => {
                self.last_number += 1;
                let number = self.last_number - 1;
                Entry {
                    number,
                    count: 1,
                    reason,
                    object,
                    user,
                    client,
                    first_us: now,
                    last_us: now,
                }
            }
        };
        self.entries.push_front(entry);
        self.entries.truncate(self.most);
    }

    /// Removes all entries: ACL LOG RESET.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Returns the newest entries, newest first, up to a maximum of `most`.
    pub fn newest(&self, most: usize) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter().take(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_entries_are_merged_and_old_ones_removed() {
        let mut log = Log { most: 3, ..Log::default() };
        for object in ["a", "b", "a", "c", "d"] {
            log.note(Reason::Key, object.as_bytes(), b"u", Vec::new());
        }
        let shown: Vec<(&[u8], u64)> = log.newest(10).map(|e| (&e.object[..], e.count)).collect();
        assert_eq!(shown, [(&b"d"[..], 1), (b"c", 1), (b"a", 2)]);
        log.note(Reason::Auth, &[b'x'; 5000], &[b'y'; 5000], Vec::new());
        assert!(log.newest(1).all(|e| e.object.len() == 128 && e.user.len() == 128));
        log.clear();
        assert_eq!(log.newest(10).len(), 0);
    }
}
