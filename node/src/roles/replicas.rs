//! The replicas that are fed from here, as they report themselves: address, position, lag.

use crate::roles::Master;
use parking_lot::Mutex;
use replication::{Peer, Sending};
use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use store::time::{now, since};

/// A replica of ours.
#[derive(Clone, Debug)]
pub struct Fed {
    /// Its address, as it is reached.
    pub ip: String,
    /// Its port.
    pub port: u16,
    /// What it is sent.
    pub sending: Sending,
    /// What it has in its log, and shows.
    pub written: u64,
    /// Up to which offset its log is synced.
    pub durable: u64,
    /// When it was heard last.
    pub heard: Instant,
    /// End of its log, if ours does not continue from there.
    diverged_at: Option<u64>,
}

/// For how long after its last attempt a replica counts as refusing. It connects every second.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(15);
/// How often a refusal that lasts is logged.
pub(crate) const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of refusing replicas that are remembered.
const MAX_REFUSING: usize = 64;

/// A replica that has data of another history, keeps them and does not follow.
#[derive(Debug)]
struct Refusing {
    /// End of its log.
    end: u64,
    heard: Instant,
    logged: Option<Instant>,
}

impl Fed {
    /// As Redis calls it.
    pub fn state(&self) -> &'static str {
        match self.sending {
            Sending::Nothing => "wait_bgsave",
            Sending::Files => "send_bulk",
            Sending::Log => "online",
        }
    }

    /// It is in step, and was heard of within so many seconds.
    pub fn is_close(&self, max_lag_s: u64) -> bool {
        self.sending == Sending::Log && since(self.heard).as_secs() <= max_lag_s
    }
}

/// See the top of the file.
#[derive(Default)]
pub struct Feeds {
    /// By the number of its connection.
    all: Mutex<BTreeMap<u64, Fed>>,
    /// To so many files were sent first, and to so many the log alone.
    pub(crate) by_files: AtomicU64,
    pub(crate) by_log: AtomicU64,
    /// Replicas that refuse to follow, by address.
    refusing: Mutex<BTreeMap<(String, u16), Refusing>>,
    /// Of those that got files, so many had data to which our log does not lead on.
    pub(crate) refused_log: AtomicU64,
    /// Sent to replicas; and, of a replica, got from its master.
    pub(crate) bytes_out: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
}

impl Feeds {
    /// A feed begins; false if there are `most` already.
    pub(crate) fn admit(&self, client: u64, peer: IpAddr, most: usize) -> bool {
        let mut all = self.all.lock();
        if all.len() >= most {
            return false;
        }
        let fed = Fed {
            ip: peer.to_string(),
            port: 0,
            sending: Sending::Nothing,
            written: 0,
            durable: 0,
            heard: now(),
            diverged_at: None,
        };
        all.insert(client, fed);
        true
    }

    /// True if a WAIT may be over.
    pub(crate) fn update(&self, client: u64, peer: &Peer, heard: Instant) -> bool {
        let mut all = self.all.lock();
        let Some(fed) = all.get_mut(&client) else { return false };
        if !peer.ip.is_empty() {
            fed.ip.clone_from(&peer.ip);
        }
        let now = (peer.sending, peer.written, peer.durable);
        let grown = (fed.sending, fed.written, fed.durable) != now;
        match (fed.sending, peer.sending) {
            (Sending::Nothing, Sending::Files) => {
                self.by_files.fetch_add(1, Relaxed);
                self.refused_log.fetch_add(u64::from(peer.refused_log), Relaxed);
            }
            (Sending::Nothing, Sending::Log) => _ = self.by_log.fetch_add(1, Relaxed),
            _ => {}
        }
        if fed.sending == Sending::Nothing && peer.sending != Sending::Nothing {
            self.refusing.lock().remove(&(fed.ip.clone(), peer.port));
        }
        (fed.port, fed.heard, fed.diverged_at) = (peer.port, heard, peer.diverged_at);
        (fed.sending, fed.written, fed.durable) = now;
        grown
    }

    /// A feed has ended. A replica that left without asking for anything, though its log is not
    /// the beginning of ours, keeps its data instead of following.
    pub(crate) fn end(&self, client: u64) {
        let Some(fed) = self.all.lock().remove(&client) else { return };
        if let Some(end) = fed.diverged_at.filter(|_| fed.sending == Sending::Nothing) {
            self.note_refusal(fed.ip, fed.port, end);
        }
    }

    fn note_refusal(&self, ip: String, port: u16, end: u64) {
        let mut refusing = self.refusing.lock();
        refusing.retain(|_, it| since(it.heard) < REFUSAL_TIMEOUT);
        if refusing.len() >= MAX_REFUSING {
            return;
        }
        let address = format!("{ip}:{port}");
        let it = refusing.entry((ip, port)).or_insert(Refusing { end, heard: now(), logged: None });
        (it.end, it.heard) = (end, now());
        if it.logged.is_none_or(|at| since(at) >= REFUSAL_LOG_INTERVAL) {
            it.logged = Some(now());
            tracing::error!(
                "replica {address} has data of another history (its log ends at offset {end}) and \
                 refuses to follow this master. If this node has lost its data: send REPLICAOF NO \
                 ONE to the replica, then REPLICAOF with the replica's address and FORCE here. If \
                 the replica's data are not needed: send it REPLICAOF with this address and FORCE"
            );
        }
    }

    /// Number of replicas that have data of another history and refuse to follow.
    pub fn refusing(&self) -> usize {
        let refusing = self.refusing.lock();
        refusing.values().filter(|it| since(it.heard) < REFUSAL_TIMEOUT).count()
    }

    /// Whether this master, whose log ends at `end`, has probably lost data: a replica whose log
    /// is longer refuses to follow, and no other replica follows.
    pub fn is_behind_replica(&self, end: u64) -> bool {
        // Not both locks at a time.
        if self.count(|_| true) > 0 {
            return false;
        }
        let is_longer = |it: &Refusing| it.end > end && since(it.heard) < REFUSAL_TIMEOUT;
        self.refusing.lock().values().any(is_longer)
    }

    /// Replicas in step of which this is true.
    pub fn count(&self, has: impl Fn(&Fed) -> bool) -> usize {
        self.all.lock().values().filter(|fed| fed.sending == Sending::Log && has(fed)).count()
    }

    /// How many follow closely.
    pub(crate) fn close(&self, max_lag_s: u64) -> usize {
        self.all.lock().values().filter(|fed| fed.is_close(max_lag_s)).count()
    }

    /// The replicas that have said where they can be reached: Sentinel would remember any other
    /// address for ever.
    pub fn reachable(&self) -> Vec<Fed> {
        self.all.lock().values().filter(|fed| fed.port != 0).cloned().collect()
    }

    /// Where the replica of this connection can be reached.
    pub(crate) fn address_of(&self, client: u64) -> Option<Master> {
        let all = self.all.lock();
        let fed = all.get(&client).filter(|fed| fed.port != 0)?;
        Some(Master { host: fed.ip.clone(), port: fed.port })
    }

    /// The replica in step that is reached there. Waits if the name of the host is to be looked up.
    pub fn in_step_at(&self, host: &str, port: u16) -> Option<Fed> {
        let mut near = self.reachable();
        near.retain(|fed| fed.port == port && fed.sending == Sending::Log);
        if near.is_empty() {
            return None;
        }
        if let Some(fed) = near.iter().find(|fed| fed.ip == host) {
            return Some(fed.clone());
        }
        let ips: Vec<String> = (host, port)
            .to_socket_addrs()
            .map(|all| all.map(|at| at.ip().to_string()).collect())
            .unwrap_or_default();
        near.into_iter().find(|fed| ips.contains(&fed.ip))
    }

    /// Counting waits until this is dropped.
    #[cfg(test)]
    pub(crate) fn stopped(&self) -> impl Drop + '_ {
        self.all.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_leaves_with_other_data_refuses_until_it_follows() {
        let feeds = Feeds::default();
        let host = IpAddr::from([127, 0, 0, 1]);
        let peer = |sending, diverged_at| Peer {
            ip: String::new(),
            port: 7,
            refused_log: false,
            diverged_at,
            sending,
            written: 0,
            durable: 0,
            heard_ms: 0,
        };
        let connects = |client, sending, diverged_at| {
            assert!(feeds.admit(client, host, 9));
            feeds.update(client, &peer(sending, diverged_at), now());
        };
        // It has not even said where its log ends.
        connects(1, Sending::Nothing, None);
        feeds.end(1);
        assert_eq!(feeds.refusing(), 0);
        connects(2, Sending::Nothing, Some(100));
        assert_eq!(feeds.refusing(), 0, "it may ask for the files");
        feeds.end(2);
        assert_eq!(feeds.refusing(), 1);
        assert!(feeds.is_behind_replica(99) && !feeds.is_behind_replica(100));
        // Another one that follows has what this master has.
        assert!(feeds.admit(3, host, 9));
        feeds.update(3, &Peer { port: 8, ..peer(Sending::Log, None) }, now());
        assert!(!feeds.is_behind_replica(99) && feeds.refusing() == 1);
        feeds.end(3);
        assert!(feeds.is_behind_replica(99));
        // FORCE.
        connects(4, Sending::Nothing, Some(100));
        feeds.update(4, &peer(Sending::Files, Some(100)), now());
        assert_eq!(feeds.refusing(), 0);
        feeds.end(4);
        assert_eq!(feeds.refusing(), 0);
    }
}
