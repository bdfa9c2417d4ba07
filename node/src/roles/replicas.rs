//! Replicas connected to this node, with their address, progress and lag.

use crate::roles::Master;
use parking_lot::Mutex;
use replication::{Peer, Sending};
use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use store::time::{now, since};

/// A connected replica.
#[derive(Clone, Debug)]
pub struct ConnectedReplica {
    /// Announced address, or the peer address of its connection.
    pub ip: String,
    /// Announced port; 0 until it is known.
    pub port: u16,
    /// Kind of data that is being sent to the replica.
    pub sending: Sending,
    /// End offset of the replica's log, which the replica's clients can read.
    pub written: u64,
    /// Offset up to which the replica's log is synced.
    pub durable: u64,
    /// Time of the replica's last message.
    pub heard: Instant,
    /// End offset of the replica's log, if this node's log does not contain that history.
    diverged_at: Option<u64>,
}

/// Time after which a refusing replica is removed. A refusing replica reconnects every second.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval for logging a refusal that persists.
pub(crate) const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(60);
const MAX_REFUSING: usize = 64;

/// A replica that keeps data of another history and does not follow.
#[derive(Debug)]
struct RefusingReplica {
    /// End offset of the replica's log.
    end: u64,
    heard: Instant,
    logged: Option<Instant>,
}

impl ConnectedReplica {
    /// Returns Redis's name of the state in INFO.
    pub fn state(&self) -> &'static str {
        match self.sending {
            Sending::Nothing => "wait_bgsave",
            Sending::Files => "send_bulk",
            Sending::Log => "online",
        }
    }

    /// Whether the replica is in sync and sent a message within `max_lag_s` seconds.
    pub fn is_close(&self, max_lag_s: u64) -> bool {
        self.sending == Sending::Log && since(self.heard).as_secs() <= max_lag_s
    }
}

/// All connected replicas, by the number of their connection.
#[derive(Default)]
pub struct ConnectedReplicas {
    all: Mutex<BTreeMap<u64, ConnectedReplica>>,
    /// Number of links that began with a full sync. `log_only_links` counts the links that needed
    /// only the log.
    pub(crate) full_sync_links: AtomicU64,
    pub(crate) log_only_links: AtomicU64,
    refusing: Mutex<BTreeMap<(String, u16), RefusingReplica>>,
    /// Number of full syncs forced by a diverged replica.
    pub(crate) refused_log: AtomicU64,
    /// Bytes sent to replicas. `bytes_in` counts the bytes received from the master.
    pub(crate) bytes_out: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
}

impl ConnectedReplicas {
    /// Registers a replica. Returns false if `most` replicas are already registered.
    pub(crate) fn admit(&self, client: u64, peer: IpAddr, most: usize) -> bool {
        let mut all = self.all.lock();
        if all.len() >= most {
            return false;
        }
        let fed = ConnectedReplica {
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

    /// Updates a replica's progress. Returns true if it changed, which may end a WAIT.
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
                self.full_sync_links.fetch_add(1, Relaxed);
                self.refused_log.fetch_add(u64::from(peer.refused_log), Relaxed);
            }
            (Sending::Nothing, Sending::Log) => _ = self.log_only_links.fetch_add(1, Relaxed),
            _ => {}
        }
        if fed.sending == Sending::Nothing && peer.sending != Sending::Nothing {
            self.refusing.lock().remove(&(fed.ip.clone(), peer.port));
        }
        (fed.port, fed.heard, fed.diverged_at) = (peer.port, heard, peer.diverged_at);
        (fed.sending, fed.written, fed.durable) = now;
        grown
    }

    /// Removes a replica. If its log diverges and it disconnected without requesting data, it is
    /// recorded as refusing to follow.
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
        let it = refusing.entry((ip, port)).or_insert(RefusingReplica {
            end,
            heard: now(),
            logged: None,
        });
        (it.end, it.heard) = (end, now());
        if it.logged.is_none_or(|at| since(at) >= REFUSAL_LOG_INTERVAL) {
            it.logged = Some(now());
            tracing::error!(
                "replica {address} has diverged (its log ends at offset {end}) and refuses to \
                 follow this master. If this node lost its data: send REPLICAOF NO ONE to the \
                 replica, then REPLICAOF with the replica's address and FORCE here. To discard the \
                 replica's data: send it REPLICAOF with this address and FORCE"
            );
        }
    }

    /// Number of replicas that have data of another history and refuse to follow.
    pub fn refusing(&self) -> usize {
        let refusing = self.refusing.lock();
        refusing.values().filter(|it| since(it.heard) < REFUSAL_TIMEOUT).count()
    }

    /// Whether this master, whose log ends at `end`, has probably lost data. If it has, a replica
    /// with a longer log refuses to follow, and no other replica follows.
    pub fn is_behind_replica(&self, end: u64) -> bool {
        // Release the first lock before the second lock is taken.
        if self.count(|_| true) > 0 {
            return false;
        }
        let is_longer = |it: &RefusingReplica| it.end > end && since(it.heard) < REFUSAL_TIMEOUT;
        self.refusing.lock().values().any(is_longer)
    }

    /// Number of replicas in sync for which `has` returns true.
    pub fn count(&self, has: impl Fn(&ConnectedReplica) -> bool) -> usize {
        self.all.lock().values().filter(|fed| fed.sending == Sending::Log && has(fed)).count()
    }

    /// Number of replicas in sync with at most this lag.
    pub(crate) fn close(&self, max_lag_s: u64) -> usize {
        self.all.lock().values().filter(|fed| fed.is_close(max_lag_s)).count()
    }

    /// Returns the replicas that have announced a port. Replicas without a port must not be listed,
    /// because Sentinel never removes an address.
    pub fn reachable(&self) -> Vec<ConnectedReplica> {
        self.all.lock().values().filter(|fed| fed.port != 0).cloned().collect()
    }

    pub(crate) fn address_of(&self, client: u64) -> Option<Master> {
        let all = self.all.lock();
        let fed = all.get(&client).filter(|fed| fed.port != 0)?;
        Some(Master { host: fed.ip.clone(), port: fed.port })
    }

    /// Returns the replica in sync at this address. May block on a DNS lookup.
    pub fn in_sync_replica_at(&self, host: &str, port: u16) -> Option<ConnectedReplica> {
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

    /// Blocks all counts of replicas until the guard is dropped.
    #[cfg(test)]
    pub(crate) fn stopped(&self) -> impl Drop + '_ {
        self.all.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diverged_replica_counts_as_refusing_until_it_follows() {
        let feeds = ConnectedReplicas::default();
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
        // The replica disconnects before it sends the end of its log.
        connects(1, Sending::Nothing, None);
        feeds.end(1);
        assert_eq!(feeds.refusing(), 0);
        connects(2, Sending::Nothing, Some(100));
        assert_eq!(feeds.refusing(), 0, "the replica may request the files");
        feeds.end(2);
        assert_eq!(feeds.refusing(), 1);
        assert!(feeds.is_behind_replica(99) && !feeds.is_behind_replica(100));
        // A replica that follows has all of this master's data.
        assert!(feeds.admit(3, host, 9));
        feeds.update(3, &Peer { port: 8, ..peer(Sending::Log, None) }, now());
        assert!(!feeds.is_behind_replica(99) && feeds.refusing() == 1);
        feeds.end(3);
        assert!(feeds.is_behind_replica(99));
        // The operator sends REPLICAOF ... FORCE to the refusing replica.
        connects(4, Sending::Nothing, Some(100));
        feeds.update(4, &peer(Sending::Files, Some(100)), now());
        assert_eq!(feeds.refusing(), 0);
        feeds.end(4);
        assert_eq!(feeds.refusing(), 0);
    }
}
