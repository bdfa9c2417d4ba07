//! The replicas that are fed from here, as they report themselves: address, position, lag.

use crate::roles::Master;
use parking_lot::Mutex;
use replication::{Peer, Sending};
use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
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
        (fed.port, fed.heard) = (peer.port, heard);
        (fed.sending, fed.written, fed.durable) = now;
        grown
    }

    pub(crate) fn end(&self, client: u64) {
        self.all.lock().remove(&client);
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
