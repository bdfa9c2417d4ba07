//! Connected clients: the state that CLIENT LIST shows, and a handle to disconnect them.
//!
//! The list is locked when a client connects, disconnects or is looked up, but not for commands.
//! State that changes with every request is in atomics that only the client's own worker writes.

use crate::runtime::blocking::Blocked;
use crate::runtime::client_memory::{Budget, Share};
use crate::runtime::inbox::Inbox;
use parking_lot::Mutex;
use resp::Protocol;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
    Ordering::SeqCst,
};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// User of connections before authentication.
pub const DEFAULT_USER: &str = "default";

/// Names of a client and its library.
pub struct Names {
    /// User as which the client has authenticated.
    pub user: String,
    /// Name set by CLIENT SETNAME.
    pub name: Vec<u8>,
    /// Value of CLIENT SETINFO lib-name.
    pub lib_name: Vec<u8>,
    /// Value of CLIENT SETINFO lib-ver.
    pub lib_version: Vec<u8>,
}

impl Default for Names {
    fn default() -> Names {
        Names {
            user: DEFAULT_USER.to_owned(),
            name: Vec::new(),
            lib_name: Vec::new(),
            lib_version: Vec::new(),
        }
    }
}

/// Flag: the client has sent `CLIENT NO-EVICT ON`.
pub const NO_EVICT: u32 = 1;
/// Flag: the client has sent `CLIENT NO-TOUCH ON`.
pub const NO_TOUCH: u32 = 2;
/// Flag: the client is a replica of this node.
pub const REPLICA: u32 = 4;
/// Flag: the connection is the link to this node's master.
pub(crate) const MASTER: u32 = 8;
/// Flag: the client has sent `MONITOR`.
pub(crate) const MONITOR: u32 = 16;
/// Flag: the client has sent `CLIENT TRACKING ON`.
pub(crate) const TRACKING: u32 = 32;
/// Flag: the client that receives the redirected invalidations has disconnected.
pub const BROKEN_REDIRECT: u32 = 64;
/// Flag: the client tracks keys in broadcast mode.
pub(crate) const BROADCAST: u32 = 128;

/// A connected client.
pub struct Client {
    /// Id of the client, as returned by CLIENT ID.
    pub id: u64,
    /// Remote address of the connection.
    pub peer: SocketAddr,
    /// Local address of the connection.
    pub local: SocketAddr,
    /// Time at which the client connected.
    pub since: Instant,
    /// Names of the client and its library.
    pub names: Mutex<Names>,
    protocol: AtomicU8,
    /// Bits of the flags above.
    pub flags: AtomicU32,
    /// Time of the client's last input, in milliseconds after `since`.
    last_active_ms: AtomicU64,
    /// Last command: see `command::table::name_of`; `u32::MAX` if none.
    pub last_command: AtomicU32,
    /// Number of bytes in an incomplete request.
    pub query_bytes: AtomicUsize,
    /// Number of bytes in unsent replies.
    pub output_bytes: AtomicUsize,
    /// Number of bytes in commands queued by MULTI.
    pub queued_bytes: AtomicUsize,
    /// Share of the client's buffers in the memory of all clients.
    pub buffers: Share,
    /// Bytes of the client's subscriptions and watched keys, in its own lists and in shared lists.
    pub kept_bytes: AtomicUsize,
    /// Share of `kept_bytes` in the memory of all clients.
    stored_share: Share,
    /// Unsent messages that were pushed to the client.
    pub inbox: Inbox,
    /// Number of subscribed channels, patterns and shard channels.
    pub subscriptions: [AtomicUsize; 3],
    /// Number of commands queued by MULTI; -1 without MULTI.
    pub queued: AtomicI64,
    /// Number of keys that the client watches.
    pub watching: AtomicUsize,
    /// Id of the client that receives this client's invalidations; 0 without redirection, -1
    /// without tracking.
    pub redirect: AtomicI64,
    /// Whether the inbox must be polled even without subscriptions, because the client uses
    /// tracking or another client redirects invalidations to it.
    pub hears: AtomicBool,
    /// Whether the client waits in WAIT or WAITAOF.
    pub blocked: Blocked,
    /// Whether the client waits for an asynchronous reply or for the end of a pause.
    pub waits: AtomicBool,
    /// Whether the client waits for the end of a pause.
    pub paused: AtomicBool,
    /// Whether a pending task of the client may use the node's data set.
    pub away: AtomicBool,
    /// Whether authentication and the TLS handshake are complete, where required.
    entered: AtomicBool,
    /// Time at which `entered` was last cleared (RESET), in milliseconds after `since`.
    handshake_reset_ms: AtomicU64,
    abort: OnceLock<AbortHandle>,
    killed: AtomicBool,
    gone: AtomicBool,
    ended: Arc<DisconnectCounts>,
}

/// Number of connections closed by the server, by reason.
#[derive(Default)]
pub struct DisconnectCounts {
    /// The client's requests exceeded `max_query_buffer`.
    pub by_input: AtomicU64,
    /// The client's replies exceeded `max_output_buffer`, or its messages exceeded
    /// `max_push_buffer`.
    pub by_output: AtomicU64,
    /// The client did not complete authentication or the TLS handshake within `handshake_timeout`.
    pub by_handshake: AtomicU64,
    /// The client sent nothing for `idle_timeout`.
    pub by_idleness: AtomicU64,
    /// The client used the most memory when the sum exceeded `max_clients_memory`.
    pub(crate) by_memory: AtomicU64,
}

impl DisconnectCounts {
    pub(crate) fn reset(&self) {
        for count in [
            &self.by_input,
            &self.by_output,
            &self.by_handshake,
            &self.by_idleness,
            &self.by_memory,
        ] {
            count.store(0, Relaxed);
        }
    }
}

/// Type of a client in CLIENT LIST and CLIENT KILL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientKind {
    /// The client sends commands.
    Normal,
    /// The client has subscriptions.
    Pubsub,
    /// The client is a replica of this node.
    Replica,
    /// The client is the master of this node.
    Master,
}

impl Client {
    pub(crate) fn is_handshake_complete(&self) -> bool {
        self.entered.load(Relaxed)
    }

    /// Records whether authentication and the TLS handshake are complete.
    #[inline]
    pub fn set_handshake_complete(&self, entered: bool) {
        if self.entered.swap(entered, Relaxed) && !entered {
            self.handshake_reset_ms.store(self.age_ms(Instant::now()), Relaxed);
        }
    }

    /// Returns the seconds since authentication or the TLS handshake became due, or `None` if both
    /// are complete.
    pub fn handshake_wait_s(&self, now: Instant) -> Option<u64> {
        (!self.is_handshake_complete())
            .then(|| self.age_ms(now).saturating_sub(self.handshake_reset_ms.load(Relaxed)) / 1000)
    }

    fn age_ms(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.since).as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the protocol: RESP2 or RESP3.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        if self.protocol.load(Relaxed) == 3 { Protocol::Resp3 } else { Protocol::Resp2 }
    }

    /// Sets the protocol, after HELLO.
    pub fn set_protocol(&self, protocol: Protocol) {
        self.protocol.store(if protocol == Protocol::Resp3 { 3 } else { 2 }, Relaxed);
    }

    /// Records that the client sent data at `now`.
    #[inline]
    pub fn touch(&self, now: Instant) {
        self.last_active_ms.store(self.age_ms(now), Relaxed);
    }

    /// Returns the seconds since the client's last input.
    pub fn idle_s(&self, now: Instant) -> u64 {
        self.age_ms(now).saturating_sub(self.last_active_ms.load(Relaxed)) / 1000
    }

    /// Returns true if the client has been silent for `most_s` seconds. As in Redis, subscribers,
    /// replicas and blocked clients are never idle.
    pub fn is_idle(&self, now: Instant, most_s: u64) -> bool {
        let is_here_to_hear =
            self.kind() != ClientKind::Normal || self.flags.load(Relaxed) & MONITOR != 0;
        !is_here_to_hear && !self.waits.load(Relaxed) && self.idle_s(now) >= most_s
    }

    /// Returns the number of bytes that count towards the memory of all clients.
    fn memory(&self) -> usize {
        self.buffers.counted() + self.inbox.counted() + self.stored_share.counted()
    }

    /// Sets the number of bytes used by the client's subscriptions, watched keys and tracked
    /// prefixes. Only the client's own worker calls this function.
    pub fn set_stored_bytes(&self, bytes: usize) {
        self.kept_bytes.store(bytes, Relaxed);
        self.stored_share.set(bytes);
    }

    /// Whether the client may be disconnected to free memory. As in Redis, clients with NO-EVICT,
    /// replicas and the master are exempt.
    fn is_evictable(&self) -> bool {
        self.flags.load(Relaxed) & (NO_EVICT | REPLICA | MASTER) == 0
    }

    /// Disconnects the client at its next await point.
    pub fn kill(&self) {
        self.killed.store(true, SeqCst);
        if let Some(abort) = self.abort.get() {
            abort.abort();
        }
    }

    /// Records that the client's connection has ended.
    pub fn leave(&self) {
        self.gone.store(true, SeqCst);
    }

    /// Whether messages can still be delivered to the client.
    pub fn is_connected(&self) -> bool {
        !self.gone.load(SeqCst) && !self.killed.load(SeqCst)
    }

    /// Sets the task that serves the client.
    pub fn served_by(&self, task: AbortHandle) {
        let _ = self.abort.set(task);
        // The client may have been killed before the task was set.
        if self.killed.load(SeqCst) {
            self.kill();
        }
    }

    /// Appends a message to the inbox. If the inbox would exceed `most` bytes, disconnects the
    /// client and returns false.
    pub(crate) fn push(&self, message: &[u8], most: usize) -> bool {
        let taken = self.inbox.push(message, most);
        if !taken && !self.killed.load(Relaxed) {
            self.ended.by_output.fetch_add(1, Relaxed);
            tracing::warn!("closing client {}: unread messages exceed max_push_buffer", self.peer);
            self.kill();
        }
        taken
    }

    /// Whether the client is blocked in Redis's sense: by a blocking command or a pause.
    pub fn is_blocked(&self) -> bool {
        self.blocked.is_waiting() || self.paused.load(Relaxed)
    }

    /// Whether the client has subscriptions.
    pub fn listens(&self) -> bool {
        self.subscriptions.iter().any(|count| count.load(Relaxed) > 0)
    }

    /// Returns the type of the client.
    pub fn kind(&self) -> ClientKind {
        let flags = self.flags.load(Relaxed);
        if flags & MASTER != 0 {
            ClientKind::Master
        } else if flags & REPLICA != 0 {
            ClientKind::Replica
        } else if self.listens() {
            ClientKind::Pubsub
        } else {
            ClientKind::Normal
        }
    }

    /// Returns Redis's letters for the client's flags; N if none is set.
    fn marks(&self) -> String {
        let flags = self.flags.load(Relaxed);
        let letters = [
            ('M', flags & MASTER != 0),
            ('S', flags & REPLICA != 0),
            ('O', flags & MONITOR != 0),
            ('P', self.kind() == ClientKind::Pubsub),
            ('b', self.is_blocked()),
            ('x', self.queued.load(Relaxed) >= 0),
            ('t', flags & TRACKING != 0),
            ('R', flags & BROKEN_REDIRECT != 0),
            ('B', flags & BROADCAST != 0),
            ('e', flags & NO_EVICT != 0),
            ('T', flags & NO_TOUCH != 0),
        ];
        let marks: String =
            letters.iter().filter(|(_, is)| *is).map(|(letter, _)| *letter).collect();
        if marks.is_empty() { "N".to_owned() } else { marks }
    }

    /// Writes the client's line of CLIENT LIST in Redis's format, without the line end. Names
    /// contain no spaces or line ends, because SETNAME refuses them.
    pub fn describe(&self, now: Instant, out: &mut Vec<u8>) {
        use std::io::Write as _;
        let names = self.names.lock();
        let marks = self.marks();
        let (query, output) = (
            self.query_bytes.load(Relaxed),
            self.output_bytes.load(Relaxed) + self.inbox.waiting(),
        );
        let [channels, patterns, shards] =
            [0, 1, 2].map(|kind: usize| self.subscriptions[kind].load(Relaxed));
        let (queued, watching) = (self.queued.load(Relaxed), self.watching.load(Relaxed));
        let queued_bytes = self.queued_bytes.load(Relaxed);
        let _ = write!(out, "id={} addr={} laddr={} fd=-1 name=", self.id, self.peer, self.local);
        out.extend_from_slice(&names.name);
        let _ = write!(
            out,
            " age={} idle={} flags={marks} db=0 sub={channels} psub={patterns} ssub={shards} \
             multi={queued} watch={watching} qbuf={query} qbuf-free=0 argv-mem=0 \
             multi-mem={queued_bytes} rbs=0 rbp=0 obl=0 oll={} omem={output} tot-mem={} events=r \
             cmd={} user={} redir={} resp={} lib-name=",
            now.saturating_duration_since(self.since).as_secs(),
            self.idle_s(now),
            u8::from(output > 0),
            query + output + queued_bytes + self.kept_bytes.load(Relaxed),
            crate::command::table::name_of(self.last_command.load(Relaxed)),
            names.user,
            self.redirect.load(Relaxed),
            self.protocol.load(Relaxed),
        );
        out.extend_from_slice(&names.lib_name);
        out.extend_from_slice(b" lib-ver=");
        out.extend_from_slice(&names.lib_version);
    }
}

/// Prefix of the names of Sentinels' connections.
const SENTINEL: &[u8] = b"sentinel-";

/// Minimum age of a client that may be disconnected because it has sent no request.
const MIN_SILENT_AGE: Duration = Duration::from_secs(1);

/// All connected clients.
#[derive(Default)]
pub struct Clients {
    all: Mutex<BTreeMap<u64, Arc<Client>>>,
    last_id: AtomicU64,
    pub(crate) accepted: AtomicU64,
    /// Number of connections refused because of `max_clients`.
    pub rejected: AtomicU64,
    /// Number of connections closed by the server, by reason.
    pub ended: Arc<DisconnectCounts>,
    /// Memory of all clients.
    pub budget: Arc<Budget>,
}

impl Clients {
    /// Adds a client. If `most` clients are connected, disconnects the oldest client that has not
    /// authenticated. If all have authenticated, disconnects the oldest client that has never sent
    /// a request. So idle connections cannot use up all slots. Returns `None` if no client can be
    /// disconnected.
    pub fn admit(&self, peer: SocketAddr, local: SocketAddr, most: usize) -> Option<Arc<Client>> {
        let mut all = self.all.lock();
        if all.len() >= most {
            self.rejected.fetch_add(1, Relaxed);
            let never_asked = |c: &&Arc<Client>| {
                c.last_command.load(Relaxed) == u32::MAX && c.since.elapsed() >= MIN_SILENT_AGE
            };
            // Disconnect this client at any age. A minimum age would let frequent reconnections use
            // up all slots.
            let stranger = all.values().find(|c| !c.is_handshake_complete());
            let least = stranger.or_else(|| all.values().find(never_asked))?.clone();
            all.remove(&least.id);
            least.kill();
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
            queued_bytes: AtomicUsize::new(0),
            buffers: Share::of(&self.budget),
            kept_bytes: AtomicUsize::new(0),
            stored_share: Share::of(&self.budget),
            inbox: Inbox::new(Share::of(&self.budget)),
            blocked: Blocked::default(),
            subscriptions: Default::default(),
            queued: AtomicI64::new(-1),
            watching: AtomicUsize::new(0),
            redirect: AtomicI64::new(-1),
            hears: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            away: AtomicBool::new(false),
            entered: AtomicBool::new(false),
            handshake_reset_ms: AtomicU64::new(0),
            abort: OnceLock::new(),
            killed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            ended: self.ended.clone(),
        });
        all.insert(id, client.clone());
        Some(client)
    }

    /// Disconnects the largest clients until the remaining clients fit into the budget.
    pub fn make_room(&self) {
        let Some(most) = self.budget.most() else { return };
        let mut all: Vec<_> =
            self.list().into_iter().map(|client| (client.memory(), client)).collect();
        let mut taken: usize = all.iter().map(|(bytes, _)| bytes).sum();
        all.retain(|(bytes, client)| *bytes > 0 && client.is_evictable());
        all.sort_unstable_by_key(|(bytes, _)| *bytes);
        while taken > most {
            let Some((bytes, client)) = all.pop() else { return };
            tracing::warn!(
                "evicting client {}: it uses {bytes} bytes, the most of all, and clients exceed \
                 max_clients_memory",
                client.peer
            );
            self.ended.by_memory.fetch_add(1, Relaxed);
            client.kill();
            taken -= bytes;
        }
    }

    /// Disconnects normal and Pub/Sub clients, so that their libraries ask Sentinel for the master.
    /// Sentinel does the same after a role change (CLIENT KILL TYPE normal, TYPE pubsub). The
    /// client `except` and Sentinels, whose client names begin with `SENTINEL`, stay connected.
    /// Returns the number of disconnected clients.
    pub fn disconnect_users(&self, except: u64) -> usize {
        let mut users = self.list();
        users.retain(|client| {
            client.id != except
                && matches!(client.kind(), ClientKind::Normal | ClientKind::Pubsub)
                && !client.names.lock().name.starts_with(SENTINEL)
        });
        users.iter().for_each(|client| client.kill());
        users.len()
    }

    /// Returns a connected client by id.
    pub fn get(&self, id: u64) -> Option<Arc<Client>> {
        self.all.lock().get(&id).filter(|client| client.is_connected()).cloned()
    }

    /// Removes a client whose connection has ended.
    pub fn remove(&self, id: u64) {
        self.all.lock().remove(&id);
    }

    /// Returns all clients in ascending order of ids. Omits clients that are being disconnected.
    pub fn list(&self) -> Vec<Arc<Client>> {
        self.all.lock().values().filter(|client| !client.killed.load(SeqCst)).cloned().collect()
    }
}
