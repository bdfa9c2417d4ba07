//! Threads of the server: one acceptor, several workers, and one thread that maintains tables.
//!
//! Each worker runs its own current-thread runtime. A connection never moves to another worker. The
//! acceptor assigns a new connection to the worker with the fewest connections.

use crate::net::connection::Connection;
use client::Socket;
use dataset::Engines;
use dataset::clock::unix_s;
use dataset::poll_backoff::PollBackoff;
use node::config::{Config, ConfigError};
use node::roles::node::{Host, Node, Process};
use node::runtime::open_files::allowed_clients;
use node::runtime::process_memory::resident_bytes;
use node::runtime::shutdown::Vital;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::time;
use tokio::sync::mpsc;

/// Number of canary lookups for each millisecond that the maintenance thread sleeps. The lookups
/// alternate among existence spaces, so the total is 5,000 lookups per second, which take 0.1% of a
/// core. Lookups stop when every false-positive rate has been measured.
const CANARIES_PER_MS: u64 = 5;
/// Interval between searches for tables without recent writes.
const QUIET_TABLE_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between checks for counter tables to retire.
const RETIRE_EVERY: Duration = Duration::from_secs(1);
/// Number of blocking threads per worker for slow commands (statistics, digests, merges).
/// Additional slow commands wait in a queue, so that they do not delay page requests.
const SLOW_THREADS: usize = 2;

pub(crate) fn listen_on(host: &str, port: u16, backlog: i32) -> io::Result<TcpListener> {
    let address =
        (host.trim_matches(['[', ']']), port).to_socket_addrs()?.next().ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "the name resolves to no address")
        })?;
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    // Allows a restart while old connections are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// An accepted connection that is being passed to a worker.
struct Arrival {
    stream: TcpStream,
    client: Arc<node::runtime::clients::Client>,
    encrypted: bool,
}

/// The acceptor's view of a worker.
struct Worker {
    arrivals: mpsc::UnboundedSender<Arrival>,
    /// Number of connections that the worker serves or has in its queue.
    load: Arc<AtomicUsize>,
}

/// Starts all threads; they end when the node is stopped.
pub(crate) fn start(
    host: &Arc<Host>,
    listeners: Vec<TcpListener>,
    encrypted: Vec<TcpListener>,
) -> io::Result<Vec<JoinHandle<()>>> {
    lower_max_clients(host)?;
    let mut threads = Vec::new();
    let mut workers = Vec::new();
    let encrypted_addresses: Vec<_> =
        encrypted.iter().filter_map(|listener| listener.local_addr().ok()).collect();
    let all =
        listeners.into_iter().map(|l| (l, false)).chain(encrypted.into_iter().map(|l| (l, true)));
    // If a thread fails to start, the code below stops the threads that have already started.
    let spawned = (|| {
        for index in 0..host.tallies.len() {
            let (send, receive) = mpsc::unbounded_channel();
            let load = Arc::new(AtomicUsize::new(0));
            workers.push(Worker { arrivals: send, load: load.clone() });
            let host = host.clone();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(SLOW_THREADS)
                .build()?;
            threads.push(thread(host.stop.vital(), format!("worker-{index}"), move || {
                runtime.block_on(work(host, index, receive, load));
            })?);
        }
        let maintained = host.clone();
        threads
            .push(thread(host.stop.vital(), "maintain".to_owned(), move || maintain(&maintained))?);
        let host = host.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listeners = {
            let _in = runtime.enter();
            all.map(|(listener, encrypted)| {
                listener.set_nonblocking(true)?;
                Ok((tokio::net::TcpListener::from_std(listener)?, encrypted))
            })
            .collect::<io::Result<Vec<_>>>()?
        };
        threads.push(thread(host.stop.vital(), "accept".to_owned(), move || {
            runtime.block_on(accept(host, listeners, workers));
        })?);
        Ok(())
    })();
    if let Err(error) = spawned {
        host.stop.now();
        return Err(error);
    }
    for address in &host.addresses {
        tracing::info!("listening on {address}, {} workers", host.tallies.len());
    }
    for address in encrypted_addresses {
        tracing::info!("listening with TLS on {address}");
    }
    Ok(threads)
}

/// Starts a thread. The server stops if the thread ends.
pub(crate) fn thread<T: Send + 'static>(
    vital: Vital,
    name: String,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name).spawn(move || {
        let _vital = vital;
        body()
    })
}

/// Niceness added to background threads. On a core shared with a worker, such a thread gets a tenth
/// of the time, and the worker preempts it.
const BACKGROUND_NICENESS: i32 = 10;

/// Starts a thread at low priority. No client may wait for such a thread. The spill thread
/// therefore has normal priority, because writers wait for it.
pub(crate) fn background<T: Send + 'static>(
    vital: Vital,
    name: String,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread(vital, name, || {
        let own = Some(rustix::thread::gettid());
        let nicer = rustix::process::getpriority_process(own)
            .and_then(|now| rustix::process::setpriority_process(own, now + BACKGROUND_NICENESS));
        if let Err(error) = nicer {
            tracing::debug!("cannot lower the priority of background threads: {error}");
        }
        body()
    })
}

/// Lowers `max_clients` to the number of files that the system allows.
fn lower_max_clients(process: &Process) -> io::Result<()> {
    let wanted = process.config().server.max_clients;
    let allowed = allowed_clients(wanted);
    if allowed < wanted {
        tracing::warn!(
            "the open file limit allows {allowed} clients instead of {wanted}: raise LimitNOFILE \
             (ulimit -n), or lower max_clients"
        );
        let change = |config: &mut Config| {
            config.server.max_clients = allowed;
            Ok::<(), ConfigError>(())
        };
        process.settings.change(change, |_, _| Ok(())).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Accepts connections, assigns them to workers, and checks all clients once a second.
async fn accept(
    host: Arc<Host>,
    listeners: Vec<(tokio::net::TcpListener, bool)>,
    workers: Vec<Worker>,
) {
    let workers = Arc::new(workers);
    for (listener, encrypted) in listeners {
        let (host, workers) = (host.clone(), workers.clone());
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        if let Err(error) = admit(&host, &workers, stream, peer, encrypted) {
                            tracing::debug!("cannot set up the connection from {peer}: {error}");
                        }
                    }
                    Err(error) => {
                        // Usually the process is out of file descriptors. Retry after a pause.
                        tracing::warn!(
                            "cannot accept connections: {error}; retrying every 100 ms, check the \
                             open file limit"
                        );
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        });
    }
    host.clients.budget.set_limit_bytes(host.config().server.max_clients_memory_bytes);
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut before = (Instant::now(), host.totals());
    let mut settled = Instant::now();
    loop {
        tokio::select! {
            () = host.stop.wait() => return,
            () = host.clients.budget.exceeded() => host.clients.make_room(),
            _ = second.tick() => {
                let now = Instant::now();
                let (elapsed, totals) = (now.duration_since(before.0), host.totals());
                host.rates.measure(&before.1, &totals, elapsed);
                host.turns.measure(&host.tallies);
                if let Some(engines) = host.node().loaded() {
                    engines.measure(elapsed);
                    engines.tokens.sweep(unix_s());
                    if now.duration_since(settled) >= QUIET_TABLE_INTERVAL {
                        engines.settle();
                        settled = now;
                    }
                }
                before = (now, totals);
                // A dead replica does not report its lag, so check the lag here.
                host.replication.judge(&host.config());
                let (idle_s, handshake_s) = {
                    let config = host.config();
                    (config.server.idle_timeout_s, config.security.handshake_timeout_s)
                };
                for client in host.clients.list() {
                    let waited_s = client.handshake_wait_s(now);
                    let slow = handshake_s > 0 && waited_s.is_some_and(|s| s >= handshake_s);
                    let idle = idle_s > 0 && client.is_idle(now, idle_s);
                    if slow || idle {
                        let ended = &host.clients.ended;
                        let count = if slow { &ended.by_handshake } else { &ended.by_idleness };
                        count.fetch_add(1, Relaxed);
                        client.kill();
                    }
                }
            }
        }
    }
}

/// Redis's error text, with the names of Tidemark's settings.
const DENIED: &[u8] = b"-DENIED Tidemark is running in protected mode because protected mode is \
                        enabled and no password is set for the default user. In this mode \
                        connections are only accepted from the loopback interface. If you want to \
                        connect from external computers, set a password for the default user \
                        (security.password, or CONFIG SET requirepass from this machine), or, if \
                        the server is not reachable by others, disable protected mode \
                        (security.protected_mode).\r\n";

fn is_here(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

fn admit(
    process: &Process,
    workers: &[Worker],
    stream: tokio::net::TcpStream,
    peer: SocketAddr,
    encrypted: bool,
) -> io::Result<()> {
    let mut stream = stream.into_std()?;
    stream.set_nodelay(true)?;
    let config = process.config();
    let keepalive_s = config.server.tcp_keepalive_s;
    if keepalive_s > 0 {
        let third = Duration::from_secs((keepalive_s / 3).max(1));
        let probes = socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(keepalive_s))
            .with_interval(third);
        // As in Redis, a failure to set keepalive does not refuse the client.
        if let Err(error) =
            socket2::SockRef::from(&stream).set_tcp_keepalive(&probes.with_retries(3))
        {
            tracing::debug!("connection from {peer}: cannot enable keepalive: {error}");
        }
    }
    let local = stream.local_addr()?;
    if config.security.protected_mode && !is_here(peer) && process.acl.is_open() {
        process.clients.rejected.fetch_add(1, Relaxed);
        return if encrypted { Ok(()) } else { stream.write_all(DENIED) };
    }
    let Some(client) = process.clients.admit(peer, local, config.server.max_clients) else {
        // The send buffer of the socket is empty, so this does not block.
        return if encrypted {
            Ok(())
        } else {
            stream.write_all(b"-ERR max number of clients reached\r\n")
        };
    };
    let Some(worker) = workers.iter().min_by_key(|w| w.load.load(Relaxed)) else { return Ok(()) };
    worker.load.fetch_add(1, Relaxed);
    let id = client.id;
    if worker.arrivals.send(Arrival { stream, client, encrypted }).is_err() {
        // The worker has dropped its receiver: the server is stopping.
        process.clients.remove(id);
    }
    Ok(())
}

/// Body of a worker thread: serves connections until the node stops.
async fn work(
    host: Arc<Host>,
    index: usize,
    mut arrivals: mpsc::UnboundedReceiver<Arrival>,
    load: Arc<AtomicUsize>,
) {
    if host.cluster.is_enabled() {
        tokio::spawn(node::runtime::arrival::watch());
    }
    let stop = host.stop.clone();
    let stopped = stop.wait();
    tokio::pin!(stopped);
    loop {
        let Arrival { stream, client, encrypted } = tokio::select! {
            () = &mut stopped => break,
            arrival = arrivals.recv() => match arrival {
                Some(arrival) => arrival,
                None => break,
            },
        };
        let departure = ConnectionGuard { load: load.clone(), host: host.clone(), id: client.id };
        match tokio::net::TcpStream::from_std(stream) {
            Ok(stream) => {
                let (host, of_task) = (host.clone(), client.clone());
                let task = tokio::spawn(async move {
                    let _departure = departure;
                    // The acceptor kills clients whose handshake exceeds `handshake_timeout`.
                    let socket = if encrypted {
                        host.tls.accept(stream).await
                    } else {
                        Ok(Socket::Plain(stream))
                    };
                    match socket {
                        Ok(socket) => Connection::new(host, index, socket, of_task).serve().await,
                        Err(error) => {
                            host.tls.failed.fetch_add(1, Relaxed);
                            tracing::debug!("TLS handshake with {} failed: {error}", of_task.peer);
                        }
                    }
                });
                client.served_by(task.abort_handle());
            }
            Err(error) => tracing::warn!("cannot serve {}: {error}", client.peer),
        }
    }
    // No command is being executed now. Close clients without pending replies. The other clients
    // may read their replies until the deadline.
    let deadline = Instant::now() + Duration::from_millis(host.config().server.shutdown_grace_ms);
    while load.load(Relaxed) > 0 && Instant::now() < deadline {
        for client in host.clients.list() {
            if client.output_bytes.load(Relaxed) == 0 {
                client.kill();
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Removes a connection from its worker's load and from the client list when dropped.
struct ConnectionGuard {
    load: Arc<AtomicUsize>,
    host: Arc<Host>,
    id: u64,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.host.clients.remove(self.id);
        self.load.fetch_sub(1, Relaxed);
    }
}

/// Interval at which memory is redistributed among spaces.
const SHARE_EVERY: Duration = Duration::from_millis(50);
/// Tables may use at least `1 / MIN_TABLE_SHARE` of the memory, regardless of other memory use.
const MIN_TABLE_SHARE: u64 = 4;
/// Time constant in seconds for smoothing increases of non-table memory. The allocator retains
/// memory that a table has freed for a few seconds. Without smoothing, this retained memory would
/// make the next table spill.
const RISE_TIME_CONSTANT_S: f64 = 10.0;

/// Divides the process's memory limit among spaces.
#[derive(Default)]
struct Sharing {
    last: Option<Instant>,
    /// Smoothed bytes of resident memory outside the tables.
    other_bytes: u64,
}

impl Sharing {
    fn step(&mut self, node: &Node, engines: &Engines) {
        let elapsed = self.last.map(|at| time::now() - at);
        if elapsed.is_some_and(|elapsed| elapsed < SHARE_EVERY) {
            return;
        }
        self.last = Some(time::now());
        let other_bytes = resident_bytes().saturating_sub(engines.memory_bytes());
        let part =
            elapsed.map_or(1.0, |elapsed| (elapsed.as_secs_f64() / RISE_TIME_CONSTANT_S).min(1.0));
        let rise = other_bytes.saturating_sub(self.other_bytes) as f64 * part;
        self.other_bytes = other_bytes.min(self.other_bytes.saturating_add(rise as u64));
        let most = node.config().memory_bytes();
        engines.share_memory(most.saturating_sub(self.other_bytes).max(most / MIN_TABLE_SHARE));
    }
}

/// Raises the horizon of each counter space that has more tables than configured. Replicas receive
/// the horizon from their master.
fn retire(node: &Node, engines: &Engines) {
    for (name, horizon) in engines.to_retire() {
        if !node.replication.is_master() {
            return;
        }
        let may = || node.refusal().map_or(Ok(()), Err);
        match node.current.edit(may, |now| now.retire(&name, horizon)) {
            Ok(()) => tracing::info!("space '{name}': retired ids below {horizon}"),
            // The log refuses changes, or the space was dropped. The next check retries.
            Err(refusal) => {
                tracing::debug!("space '{name}': {}", String::from_utf8_lossy(refusal.text()))
            }
        }
    }
}

fn maintain(host: &Host) {
    let mut maintenance = Maintenance::default();
    while !host.stop.is_stopped() {
        if let Some(rest) = maintenance.step(&host.node()) {
            host.stop.sleep(rest);
        }
    }
}

/// Work of the maintenance thread, divided into steps.
pub struct Maintenance {
    backoff: PollBackoff,
    turn: usize,
    sharing: Sharing,
    retired: Instant,
}

impl Default for Maintenance {
    fn default() -> Maintenance {
        let (backoff, sharing) = (PollBackoff::default(), Sharing::default());
        Maintenance { backoff, turn: 0, sharing, retired: time::now() }
    }
}

impl Maintenance {
    /// Runs one step for a node. Returns the time to sleep before the next step, or `None` if more
    /// work may be ready.
    pub fn step(&mut self, node: &Arc<Node>) -> Option<Duration> {
        let engines = node.current.get().map(|current| {
            current.free_former_engines();
            current.load()
        });
        let engines = engines.as_deref();
        if time::now() - self.retired >= RETIRE_EVERY {
            self.retired = time::now();
            engines.into_iter().for_each(|engines| retire(node, engines));
        }
        engines.into_iter().for_each(|engines| node.tracking.tidy(engines));
        engines.into_iter().for_each(|engines| self.sharing.step(node, engines));
        if let Some(engines) = engines.filter(|engines| engines.maintain()) {
            self.backoff.worked();
            // Yield the core. Otherwise a worker with a page request would wait for the next
            // scheduler tick (see dataset/src/cpu_throttle.rs). Do not sleep during a table
            // rewrite: every lookup then searches two tables, and pages took 80 times as long when
            // this thread slept.
            if !engines.has_waiters() {
                std::thread::yield_now();
            }
            return None;
        }
        let rest = self.backoff.next(node.durability.parts.changes());
        if let Some(engines) = engines {
            engines.probe(self.turn, rest.as_millis() as u64 * CANARIES_PER_MS);
            self.turn = self.turn.wrapping_add(1);
        }
        Some(rest)
    }
}
