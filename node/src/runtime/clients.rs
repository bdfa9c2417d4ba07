//! The connected clients: what CLIENT LIST shows of each, and the handle by which it can be
//! disconnected.
//!
//! The list is locked when a client comes, goes or is asked for; never while it sends commands.
//! What changes with every turn lies in atomics that only the client's own worker writes.

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

/// The user of connections that have not logged in as another one.
pub const DEFAULT_USER: &str = "default";

/// What a client may call itself and its library.
pub struct Names {
    /// The user that it has logged in as.
    pub user: String,
    /// CLIENT SETNAME.
    pub name: Vec<u8>,
    /// CLIENT SETINFO lib-name.
    pub lib_name: Vec<u8>,
    /// CLIENT SETINFO lib-ver.
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

/// `CLIENT NO-EVICT ON` was sent.
pub const NO_EVICT: u32 = 1;
/// `CLIENT NO-TOUCH ON` was sent.
pub const NO_TOUCH: u32 = 2;
/// It is a replica that follows us.
pub const REPLICA: u32 = 4;
/// It is the link to our master.
pub(crate) const MASTER: u32 = 8;
/// `MONITOR` was sent.
pub(crate) const MONITOR: u32 = 16;
/// `CLIENT TRACKING ON` was sent.
pub(crate) const TRACKING: u32 = 32;
/// The client that it redirects invalidations to is gone.
pub const BROKEN_REDIRECT: u32 = 64;
/// It tracks in broadcast mode.
pub(crate) const BROADCAST: u32 = 128;

/// One connected client.
pub struct Client {
    /// CLIENT ID.
    pub id: u64,
    /// The other end of its socket.
    pub peer: SocketAddr,
    /// This end.
    pub local: SocketAddr,
    /// When it connected.
    pub since: Instant,
    /// What it calls itself.
    pub names: Mutex<Names>,
    protocol: AtomicU8,
    /// What CLIENT LIST shows as `flags`.
    pub flags: AtomicU32,
    /// Milliseconds after `since` at which it last sent something.
    last_active_ms: AtomicU64,
    /// The last command: see `commands::name_of`.
    pub last_command: AtomicU32,
    /// Bytes of an incomplete request.
    pub query_bytes: AtomicUsize,
    /// Bytes of replies that the client has not taken.
    pub output_bytes: AtomicUsize,
    /// Bytes of commands between MULTI and EXEC.
    pub queued_bytes: AtomicUsize,
    /// What its worker keeps for it.
    pub buffers: Share,
    /// Bytes of its subscriptions and watched keys, in its own lists and in those of all clients.
    pub kept_bytes: AtomicUsize,
    /// The same, as it counts in the memory of all clients.
    kept: Share,
    /// Messages of channels that it has not taken.
    pub inbox: Inbox,
    /// Channels, patterns and shard channels that it listens to.
    pub subscriptions: [AtomicUsize; 3],
    /// Commands between MULTI and EXEC; -1 without MULTI.
    pub queued: AtomicI64,
    /// Keys that it watches.
    pub watching: AtomicUsize,
    /// While it tracks: the client that gets its invalidations, by number, or 0. Else -1.
    pub redirect: AtomicI64,
    /// Its inbox is looked at though it listens to no channel: it tracks, or another client
    /// redirects invalidations to it.
    pub hears: AtomicBool,
    /// Whether it waits for replicas, or a disk.
    pub blocked: Blocked,
    /// It waits for a reply that takes its time, or for the end of a pause.
    pub waits: AtomicBool,
    /// It waits for the end of a pause.
    pub paused: AtomicBool,
    /// What it waits for may hold the data set that it was served from.
    pub away: AtomicBool,
    /// It has logged in, or need not, and has made its TLS handshake, if one is due.
    entered: AtomicBool,
    /// Milliseconds after `since` at which it last had not, having done so before: RESET.
    left_ms: AtomicU64,
    abort: OnceLock<AbortHandle>,
    killed: AtomicBool,
    /// Its connection has ended.
    gone: AtomicBool,
    ended: Arc<Ended>,
}

/// Connections that we ended, by what they did.
#[derive(Default)]
pub struct Ended {
    /// A request, or several, beyond `max_query_buffer_bytes`.
    pub by_input: AtomicU64,
    /// Replies beyond `max_output_buffer_bytes`, or messages beyond `max_push_buffer_bytes`.
    pub by_output: AtomicU64,
    /// No login, or TLS handshake, within `handshake_timeout_s`.
    pub by_handshake: AtomicU64,
    /// Nothing sent for `idle_timeout_s`.
    pub by_idleness: AtomicU64,
    /// Took most when all together went beyond `max_clients_memory_bytes`.
    pub(crate) by_memory: AtomicU64,
}

impl Ended {
    /// CONFIG RESETSTAT.
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

/// What CLIENT LIST and CLIENT KILL tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Sends commands.
    Normal,
    /// Listens to channels.
    Pubsub,
    /// A replica of ours.
    Replica,
    /// Our master.
    Master,
}

impl Client {
    pub(crate) fn has_entered(&self) -> bool {
        self.entered.load(Relaxed)
    }

    /// Marks it as one that has logged in, or not.
    #[inline]
    pub fn set_entered(&self, entered: bool) {
        if self.entered.swap(entered, Relaxed) && !entered {
            self.left_ms.store(self.age_ms(Instant::now()), Relaxed);
        }
    }

    /// Since when it is to log in, or to make its TLS handshake; nothing if it has.
    pub fn outside_s(&self, now: Instant) -> Option<u64> {
        (!self.has_entered())
            .then(|| self.age_ms(now).saturating_sub(self.left_ms.load(Relaxed)) / 1000)
    }

    fn age_ms(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.since).as_millis()).unwrap_or(u64::MAX)
    }

    /// RESP2 or RESP3.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        if self.protocol.load(Relaxed) == 3 { Protocol::Resp3 } else { Protocol::Resp2 }
    }

    /// After HELLO.
    pub fn set_protocol(&self, protocol: Protocol) {
        self.protocol.store(if protocol == Protocol::Resp3 { 3 } else { 2 }, Relaxed);
    }

    /// It has sent something at `now`.
    #[inline]
    pub fn touch(&self, now: Instant) {
        self.last_active_ms.store(self.age_ms(now), Relaxed);
    }

    /// Seconds since it last sent something.
    pub fn idle_s(&self, now: Instant) -> u64 {
        self.age_ms(now).saturating_sub(self.last_active_ms.load(Relaxed)) / 1000
    }

    /// Whether it could send something, and has not for so long. As in Redis that never holds for
    /// subscribers, replicas and blocked clients.
    pub fn is_idle(&self, now: Instant, most_s: u64) -> bool {
        let is_here_to_hear =
            self.kind() != Kind::Normal || self.flags.load(Relaxed) & MONITOR != 0;
        !is_here_to_hear && !self.waits.load(Relaxed) && self.idle_s(now) >= most_s
    }

    /// Bytes that it counts with in the memory of all clients.
    fn memory(&self) -> usize {
        self.buffers.counted() + self.inbox.counted() + self.kept.counted()
    }

    /// Its subscriptions and watched keys take so many bytes now. Only its own worker says so.
    pub fn set_kept(&self, bytes: usize) {
        self.kept_bytes.store(bytes, Relaxed);
        self.kept.set(bytes);
    }

    /// Whether it may be disconnected for what others take. As in Redis not a client with NO-EVICT,
    /// nor our replicas and our master.
    fn makes_room(&self) -> bool {
        self.flags.load(Relaxed) & (NO_EVICT | REPLICA | MASTER) == 0
    }

    /// Disconnects it at its next step; it may be in any state.
    pub fn kill(&self) {
        self.killed.store(true, SeqCst);
        if let Some(abort) = self.abort.get() {
            abort.abort();
        }
    }

    /// Its connection has ended.
    pub fn leave(&self) {
        self.gone.store(true, SeqCst);
    }

    /// Whether messages can still reach it.
    pub fn is_connected(&self) -> bool {
        !self.gone.load(SeqCst) && !self.killed.load(SeqCst)
    }

    /// The task that serves it.
    pub fn served_by(&self, task: AbortHandle) {
        let _ = self.abort.set(task);
        // It may have been killed before its task was known.
        if self.killed.load(SeqCst) {
            self.kill();
        }
    }

    /// Sends it a message, whenever it was not asked for; false if it does not keep up and is
    /// disconnected: `most` is the limit.
    pub(crate) fn push(&self, message: &[u8], most: usize) -> bool {
        let taken = self.inbox.push(message, most);
        if !taken && !self.killed.load(Relaxed) {
            self.ended.by_output.fetch_add(1, Relaxed);
            tracing::warn!(
                "client {} does not read its messages: disconnected; make it read, or raise \
                 max_push_buffer_bytes",
                self.peer
            );
            self.kill();
        }
        taken
    }

    /// Whether it is blocked in Redis's sense: in a command that waits, or by a pause.
    pub fn is_blocked(&self) -> bool {
        self.blocked.is_waiting() || self.paused.load(Relaxed)
    }

    /// Whether it listens to anything.
    pub fn listens(&self) -> bool {
        self.subscriptions.iter().any(|count| count.load(Relaxed) > 0)
    }

    /// What it is here for.
    pub fn kind(&self) -> Kind {
        let flags = self.flags.load(Relaxed);
        if flags & MASTER != 0 {
            Kind::Master
        } else if flags & REPLICA != 0 {
            Kind::Replica
        } else if self.listens() {
            Kind::Pubsub
        } else {
            Kind::Normal
        }
    }

    /// Redis's letters for what it is and does; N if nothing special.
    fn marks(&self) -> String {
        let flags = self.flags.load(Relaxed);
        let letters = [
            ('M', flags & MASTER != 0),
            ('S', flags & REPLICA != 0),
            ('O', flags & MONITOR != 0),
            ('P', self.kind() == Kind::Pubsub),
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

    /// The line that CLIENT LIST shows, in Redis's form, without its end. Names cannot hold spaces
    /// or line ends: SETNAME refuses them.
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

/// How the names begin that Sentinels give their connections.
const SENTINEL: &[u8] = b"sentinel-";

/// A client younger than this does not count as silent yet.
const TIME_TO_ASK: Duration = Duration::from_secs(1);

/// All connected clients.
#[derive(Default)]
pub struct Clients {
    all: Mutex<BTreeMap<u64, Arc<Client>>>,
    last_id: AtomicU64,
    pub(crate) accepted: AtomicU64,
    /// Connections beyond `max_clients`.
    pub rejected: AtomicU64,
    /// Connections that were ended, by reason.
    pub ended: Arc<Ended>,
    /// Memory of their buffers.
    pub budget: Arc<Budget>,
}

impl Clients {
    /// Adds a client, unless there are `most` already. Then the oldest client that has not logged
    /// in, or has never sent a whole request, makes room, so that idle connections cannot lock the
    /// others out.
    pub fn admit(&self, peer: SocketAddr, local: SocketAddr, most: usize) -> Option<Arc<Client>> {
        let mut all = self.all.lock();
        if all.len() >= most {
            self.rejected.fetch_add(1, Relaxed);
            let never_asked = |c: &&Arc<Client>| {
                c.last_command.load(Relaxed) == u32::MAX && c.since.elapsed() >= TIME_TO_ASK
            };
            // However young: else a client that reconnects often enough would lock the others out.
            let stranger = all.values().find(|c| !c.has_entered());
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
            kept: Share::of(&self.budget),
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
            left_ms: AtomicU64::new(0),
            abort: OnceLock::new(),
            killed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            ended: self.ended.clone(),
        });
        all.insert(id, client.clone());
        Some(client)
    }

    /// Disconnects the clients that take most memory, until all others together keep within the
    /// budget.
    pub fn make_room(&self) {
        let Some(most) = self.budget.most() else { return };
        let mut all: Vec<_> =
            self.list().into_iter().map(|client| (client.memory(), client)).collect();
        let mut taken: usize = all.iter().map(|(bytes, _)| bytes).sum();
        all.retain(|(bytes, client)| *bytes > 0 && client.makes_room());
        all.sort_unstable_by_key(|(bytes, _)| *bytes);
        while taken > most {
            let Some((bytes, client)) = all.pop() else { return };
            tracing::warn!(
                "client {} disconnected: of all it takes most memory, {bytes} bytes, and together \
                 they take more than max_clients_memory_bytes; raise it, or have clients read",
                client.peer
            );
            self.ended.by_memory.fetch_add(1, Relaxed);
            client.kill();
            taken -= bytes;
        }
    }

    /// Disconnects the clients that send commands or listen to channels, as Sentinel does when it
    /// has changed a node's role (CLIENT KILL TYPE normal, TYPE pubsub): their libraries ask
    /// Sentinel again where the master is. Sentinels, which name themselves, and the client
    /// `except` stay. Gives how many.
    pub fn part_with_users(&self, except: u64) -> usize {
        let mut users = self.list();
        users.retain(|client| {
            client.id != except
                && matches!(client.kind(), Kind::Normal | Kind::Pubsub)
                && !client.names.lock().name.starts_with(SENTINEL)
        });
        users.iter().for_each(|client| client.kill());
        users.len()
    }

    /// The client with this number, if it is connected.
    pub fn get(&self, id: u64) -> Option<Arc<Client>> {
        self.all.lock().get(&id).filter(|client| client.is_connected()).cloned()
    }

    /// It has gone.
    pub fn remove(&self, id: u64) {
        self.all.lock().remove(&id);
    }

    /// All, by rising id. Not those being disconnected: for their clients they are gone already.
    pub fn list(&self) -> Vec<Arc<Client>> {
        self.all.lock().values().filter(|client| !client.killed.load(SeqCst)).cloned().collect()
    }
}
