//! Who is connected: what CLIENT LIST shows of each client, and the handle by which it can be disconnected.
//!
//! The list is locked when a client comes, goes or is asked for; never while it sends commands. What changes with every turn lies in
//! atomics that only the client's own worker writes.

use crate::resp::Protocol;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::task::AbortHandle;

/// What a client may call itself and its library.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) name: Vec<u8>,
    pub(crate) lib_name: Vec<u8>,
    pub(crate) lib_version: Vec<u8>,
}

/// `CLIENT NO-EVICT ON` was sent.
pub(crate) const NO_EVICT: u32 = 1;
/// `CLIENT NO-TOUCH ON` was sent.
pub(crate) const NO_TOUCH: u32 = 2;

/// One connected client.
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) since: Instant,
    pub(crate) names: Mutex<Names>,
    protocol: AtomicU8,
    pub(crate) flags: AtomicU32,
    /// Milliseconds after `since` at which it last sent something.
    last_active_ms: AtomicU64,
    /// The last command: see `commands::name_of`.
    pub(crate) last_command: AtomicU32,
    /// Bytes of an incomplete request.
    pub(crate) query_bytes: AtomicUsize,
    /// Bytes of replies that the client has not taken.
    pub(crate) output_bytes: AtomicUsize,
    abort: OnceLock<AbortHandle>,
}

impl Client {
    pub(crate) fn protocol(&self) -> Protocol {
        if self.protocol.load(Relaxed) == 3 { Protocol::Resp3 } else { Protocol::Resp2 }
    }

    pub(crate) fn set_protocol(&self, protocol: Protocol) {
        self.protocol.store(if protocol == Protocol::Resp3 { 3 } else { 2 }, Relaxed);
    }

    /// It has sent something at `now`.
    #[inline]
    pub(crate) fn touch(&self, now: Instant) {
        let ms = u64::try_from(now.saturating_duration_since(self.since).as_millis()).unwrap_or(u64::MAX);
        self.last_active_ms.store(ms, Relaxed);
    }

    /// Seconds since it last sent something.
    pub(crate) fn idle_s(&self, now: Instant) -> u64 {
        let age = u64::try_from(now.saturating_duration_since(self.since).as_millis()).unwrap_or(u64::MAX);
        age.saturating_sub(self.last_active_ms.load(Relaxed)) / 1000
    }

    /// Disconnects it at its next step; it may be in any state.
    pub(crate) fn kill(&self) {
        if let Some(abort) = self.abort.get() {
            abort.abort();
        }
    }

    /// The task that serves it.
    pub(crate) fn served_by(&self, task: AbortHandle) {
        let _ = self.abort.set(task);
    }

    /// The line that CLIENT LIST shows, in Redis's form, without its end. Names cannot hold spaces or line ends: SETNAME refuses them.
    pub(crate) fn describe(&self, now: Instant, out: &mut Vec<u8>) {
        use std::io::Write as _;
        let names = self.names.lock();
        let flags = self.flags.load(Relaxed);
        let marks = match (flags & NO_EVICT != 0, flags & NO_TOUCH != 0) {
            (false, false) => "N",
            (true, false) => "e",
            (false, true) => "T",
            (true, true) => "eT",
        };
        let (query, output) = (self.query_bytes.load(Relaxed), self.output_bytes.load(Relaxed));
        let _ = write!(out, "id={} addr={} laddr={} fd=-1 name=", self.id, self.peer, self.local);
        out.extend_from_slice(&names.name);
        let _ = write!(
            out,
            " age={} idle={} flags={marks} db=0 sub=0 psub=0 ssub=0 multi=-1 qbuf={query} qbuf-free=0 argv-mem=0 multi-mem=0 \
             rbs=0 rbp=0 obl=0 oll={} omem={output} tot-mem={} events=r cmd={} user=default redir=-1 resp={} lib-name=",
            now.saturating_duration_since(self.since).as_secs(),
            self.idle_s(now),
            u8::from(output > 0),
            query + output,
            crate::commands::name_of(self.last_command.load(Relaxed)),
            self.protocol.load(Relaxed),
        );
        out.extend_from_slice(&names.lib_name);
        out.extend_from_slice(b" lib-ver=");
        out.extend_from_slice(&names.lib_version);
    }
}

/// All connected clients.
#[derive(Default)]
pub(crate) struct Clients {
    all: Mutex<BTreeMap<u64, Arc<Client>>>,
    last_id: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) rejected: AtomicU64,
}

impl Clients {
    /// Adds a client, unless there are `most` already.
    pub(crate) fn admit(&self, peer: SocketAddr, local: SocketAddr, most: usize) -> Option<Arc<Client>> {
        let mut all = self.all.lock();
        if all.len() >= most {
            self.rejected.fetch_add(1, Relaxed);
            return None;
        }
        self.accepted.fetch_add(1, Relaxed);
        let id = self.last_id.fetch_add(1, Relaxed) + 1;
        let client = Arc::new(Client {
            id,
            peer,
            local,
            since: Instant::now(),
            names: Mutex::default(),
            protocol: AtomicU8::new(2),
            flags: AtomicU32::new(0),
            last_active_ms: AtomicU64::new(0),
            last_command: AtomicU32::new(u32::MAX),
            query_bytes: AtomicUsize::new(0),
            output_bytes: AtomicUsize::new(0),
            abort: OnceLock::new(),
        });
        all.insert(id, client.clone());
        Some(client)
    }

    /// It has gone.
    pub(crate) fn remove(&self, id: u64) {
        self.all.lock().remove(&id);
    }

    /// All, by rising id.
    pub(crate) fn list(&self) -> Vec<Arc<Client>> {
        self.all.lock().values().cloned().collect()
    }
}
