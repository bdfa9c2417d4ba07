//! Replica side of replication: the link to the master. The link applies the master's log to this
//! node's log and engines.
//!
//! **Taking over.** The promotion of a connected replica loses no write of its master. Before the
//! replica begins its own log, it asks the master to step down (`StepDown`). The master stops
//! accepting writes, follows this node, and reports the end of its log (`SteppedDown`). This node
//! applies the log up to that end while its clients' writes wait. This node stops waiting after 1.5
//! s without a message from the master, which may be dead or frozen. A frozen master finds the
//! request in its socket when it resumes, and steps down.
//!
//! Under Sentinel the request is delayed, by up to 1.3 s, until a Sentinel reports this node as the
//! master. Until that time clients only know the old master, which serves them.
//!
//! Long: this file is long because the steps of a link share the private `ReplicaContext`.

use crate::config::Fsync;
use crate::roles::failover::describe_answer;
use crate::roles::link_io::read_available;
use crate::roles::node::{Host, Node};
use crate::roles::replicas::REFUSAL_LOG_INTERVAL;
use crate::roles::role::Master;
use crate::roles::{LinkState, salvage};
use client::{Socket, put_command};
use dataset::catalogue::Catalogue;
use dataset::engines::Engines;
use dataset::log_records::RecordKind;
use dataset::recovery::apply::apply_record;
use replication::{Follower, FollowerStep, LinkError, ReplicaHost, Timeouts};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use store::time::{elapsed_ms, now, since, sleep};
use store::{BatchHead, Disk, Manifest, Records, ReplicaLog, Staging};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Interval between two attempts to connect.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum interval after an error that each attempt may repeat after a full sync, such as damaged
/// data or a full disk. The interval doubles up to this limit.
const MAX_RECONNECT_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum wait of received batches for a spill. After that, they are applied above the memory
/// limit.
const SPILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for connecting, and for each reply of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum silence of a master that must step down. A live master sends a message every second.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(1500);
/// Timeout of the whole take-over, including disk writes.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum wait for a Sentinel to report this node as the master. During a failover Sentinels poll
/// the promoted node every second.
const NAMING_TIMEOUT: Duration = Duration::from_millis(1300);
/// Poll interval while waiting for a Sentinel to report this node as the master.
const NAMING_POLL_INTERVAL: Duration = Duration::from_millis(5);
const TICK: Duration = Duration::from_millis(100);
/// Delay between receiving log bytes and syncing them, unless `fsync` is `always`. With the timer's
/// [`TICK`] the total is under a second.
const SYNC_AFTER_MS: u64 = 800;
/// Bytes per read. `ROUND_BYTES` bounds the bytes that are read before a sync and an
/// acknowledgement.
const READ_BYTES: usize = 256 << 10;
/// Maximum length of a logged link error, in characters.
const MAX_ERROR_CHARS: usize = 512;
const ROUND_BYTES: usize = 4 << 20;

/// Reason why this node stopped following its master.
pub enum FollowEnd {
    /// The role has changed, or the server stops.
    Ordered,
    /// The data folder must be reopened.
    Replace {
        /// Whether a full sync has completed, so that the folder has all of the master's data.
        is_whole: bool,
    },
}

/// The link's state and the data that it changes.
struct ReplicaContext {
    node: Arc<Node>,
    log: ReplicaLog,
    /// Last catalogue received over this link.
    received_catalogue: Option<Catalogue>,
    is_whole: bool,
    /// Deadline of [`wait_for_room`](Here::wait_for_room), which the batches before one sync share.
    /// Set by the first batch that waits.
    room_deadline: Option<Instant>,
}

impl ReplicaHost for ReplicaContext {
    fn log(&mut self) -> &mut ReplicaLog {
        &mut self.log
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.node.store.disk().clone()
    }

    fn manifest(&self) -> Manifest {
        // Snapshots and spills must not delete files that both data sets share.
        self.node.store.keep_files(true);
        self.node.store.manifest().clone()
    }

    fn is_empty(&self) -> bool {
        let engines = self.node.engines();
        engines.counters().iter().all(|s| s.rows() + s.cold().rows() == 0)
            && engines.existences().iter().all(|s| s.pairs() == 0)
    }

    fn sync_after_ms(&self) -> u64 {
        if self.node.config().durability.fsync == Fsync::Always { 0 } else { SYNC_AFTER_MS }
    }

    fn may_apply(&mut self, body: &[u8]) -> Result<(), String> {
        for record in Records::new(body) {
            let record = record?;
            if record.kind == RecordKind::Catalogue as u8 {
                let received_catalogue =
                    Catalogue::decode(record.payload).map_err(|e| e.to_string())?;
                self.received_catalogue = Some(received_catalogue);
            }
        }
        Ok(())
    }

    fn may_open(&mut self, staged: &Staging) -> Result<(), String> {
        let options = self.node.config().data_set();
        let text = staged
            .small(|tag| tag.kind == RecordKind::Catalogue as u32)
            .map_err(|e| e.to_string())?;
        let first =
            text.map(|text| Catalogue::decode(&text)).transpose().map_err(|e| e.to_string())?;
        let Some(received_catalogue) =
            self.received_catalogue.as_ref().filter(|_| staged.has_log()).or(first.as_ref())
        else {
            return Ok(());
        };
        if staged.is_whole() {
            // Check that this node can open the catalogue, without loading rows.
            let mut engines = Engines::empty(&options, self.node.durability.clone());
            let opened = engines.adopt(&received_catalogue.filled(&options));
            opened.map_err(|e| format!("cannot adopt the master's data: {e}"))?;
        }
        Ok(())
    }

    fn apply(&mut self, head: &BatchHead, body: &[u8]) -> Result<bool, String> {
        self.wait_for_room();
        if self.apply_once(head, body).is_ok() {
            return Ok(true);
        }
        // As in Redis, a replica applies all writes that its master has accepted, even above its
        // own memory limit. Applying a record twice is harmless.
        self.node.engines().lift_limits();
        let applied = self.apply_once(head, body);
        self.node.engines().set_limits();
        applied.map(|()| true)
    }

    fn save_dropped_batches(&mut self, from: u64) -> Result<(), store::Error> {
        let end = self.log.written();
        let Some(kept) = salvage::keep(&self.node, from, end)? else { return Ok(()) };
        tracing::warn!(
            "discarding the local log from offset {from} to {}, which the master lacks in part; a \
             copy is in {}; inspect it with `tidemark dump`, then remove it",
            end.offset,
            kept.display()
        );
        Ok(())
    }

    fn gives_up(&mut self) -> Result<(), store::Error> {
        let kept = self.node.replication.gives_up(&self.node.config());
        kept.map_err(|e| store::Error::Refused(format!("cannot save the role: {e}")))
    }

    fn settled(&mut self) {
        self.room_deadline = None;
        self.node.store.keep_files(false);
        self.node.durability.followed(self.log.written(), self.log.durable());
        self.node.replication.term.store(self.log.term(), Relaxed);
    }
}

impl ReplicaContext {
    /// Waits for a spill to free memory, up to [`SPILL_TIMEOUT`] between two syncs. Stops waiting
    /// when this node's role is about to change.
    fn wait_for_room(&mut self) {
        let node = &self.node;
        while node.engines().is_spilling()
            && node.replication.log_matches_role()
            && !node.stop.is_stopped()
        {
            // A spill waits until the log of its rows is durable (`Durability::flush`). Only this
            // thread can sync the log, so it must sync here to avoid a deadlock.
            if self.log.durable() != self.log.written() {
                // The link reports the error at its next sync.
                let _ = self.log.sync();
                let applied = node.durability.positions().0;
                node.durability.followed(applied, self.log.durable());
            }
            if now() >= *self.room_deadline.get_or_insert_with(|| now() + SPILL_TIMEOUT) {
                break;
            }
            sleep(Duration::from_millis(1));
        }
    }

    /// Applies a batch. After an error, a part of the batch may be applied.
    fn apply_once(&self, head: &BatchHead, body: &[u8]) -> Result<(), String> {
        let node = &self.node;
        let _applying = node.durability.applying.lock();
        let (mut engines, parts) = (node.engines(), &node.durability.parts);
        let mut records = 0;
        for record in Records::new(body) {
            let record = record?;
            records += 1;
            if record.kind == RecordKind::Catalogue as u8 {
                let received_catalogue =
                    Catalogue::decode(record.payload).map_err(|e| e.to_string())?;
                let received_catalogue = received_catalogue.filled(&node.config().data_set());
                let before = node.current.catalogue();
                node.current.learn(&received_catalogue).map_err(|e| e.to_string())?;
                node.follow_renames(&before);
                engines = node.engines();
                continue;
            }
            apply_record(&engines, parts, &record, u64::MAX)?;
        }
        if records != head.records {
            return Err("the batch's record count does not match its header".to_owned());
        }
        Ok(())
    }
}

/// Follows the master until the role changes, the server stops, or the folder must be reopened.
pub(crate) fn run(
    host: &Arc<Host>,
    node: Arc<Node>,
    log: ReplicaLog,
    master: &Master,
) -> (ReplicaLog, FollowEnd) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("cannot connect to the master: {error}");
            std::thread::sleep(RECONNECT_INTERVAL);
            return (log, FollowEnd::Ordered);
        }
    };
    let followed = runtime.block_on(follow(host, node, log, master, dial));
    // A DNS lookup may still be running. A promotion does not wait for the lookup.
    runtime.shutdown_background();
    followed
}

/// Asynchronous version of `run`. `dial` connects to the master; the simulator uses no TCP.
pub async fn follow(
    host: &Host,
    node: Arc<Node>,
    log: ReplicaLog,
    master: &Master,
    dial: impl AsyncFn(&Node, &Master) -> io::Result<Socket>,
) -> (ReplicaLog, FollowEnd) {
    let mut here = ReplicaContext {
        node,
        log,
        received_catalogue: None,
        is_whole: false,
        room_deadline: None,
    };
    here.settled();
    let end = keep_up(host, &mut here, master, dial).await;
    (here.log, end)
}

/// Connects to the master, and reconnects after errors.
// Long: this function is long because many steps return from it or continue the loop.
async fn keep_up(
    host: &Host,
    here: &mut ReplicaContext,
    master: &Master,
    dial: impl AsyncFn(&Node, &Master) -> io::Result<Socket>,
) -> FollowEnd {
    let mut orders = here.node.replication.subscribe();
    let node = here.node.clone();
    // REPLICAOF ... FORCE with the same master is also a role change.
    let seen = *orders.borrow_and_update();
    let is_new = |n: &u64| *n != seen || node.replication.master().as_ref() != Some(master);
    let ordered = async {
        tokio::select! {
            biased;
            _ = orders.wait_for(is_new) => {}
            () = host.stop.wait() => {}
        }
    };
    tokio::pin!(ordered);
    let mut said = String::new();
    let mut unfit_logged: Option<Instant> = None;
    let mut patience = RECONNECT_INTERVAL;
    loop {
        let followed = {
            let linked = link(here, master, &dial);
            tokio::pin!(linked);
            tokio::select! {
                biased;
                () = &mut ordered => {
                    let ended = if node.replication.is_taking_over() {
                        tokio::time::timeout(TAKE_OVER_TIMEOUT, linked).await.ok()
                    } else {
                        None
                    };
                    // Any error ends the link. The received data are applied in every case.
                    ended.filter(Result::is_ok)
                }
                result = &mut linked => Some(result),
            }
        };
        let Some(result) = followed else {
            return match here.log.sync_and_truncate() {
                Ok(()) => FollowEnd::Ordered,
                Err(error) => {
                    tracing::error!("the log lost applied records: {error}");
                    FollowEnd::Replace { is_whole: false }
                }
            };
        };
        let error = match result {
            Ok(()) => return FollowEnd::Replace { is_whole: here.is_whole },
            // The batch is in the log, but memory has only a part of it.
            Err(error @ LinkError::Apply(_)) => {
                tracing::error!("{}: reloading the data set", one_line(&error.to_string()));
                return FollowEnd::Replace { is_whole: false };
            }
            Err(error) => error,
        };
        if let LinkError::Foreign(why) = &error
            && node.replication.failover.returns(&node, master, why)
        {
            tracing::error!("REPLICAOF {master} is reverted: {}", one_line(why));
            continue;
        }
        let is_unfit = matches!(error, LinkError::CannotFollow(_));
        if is_unfit {
            node.replication.refuses(&node.config(), master);
        }
        // A retry is useful, because another server may have this address later.
        let is_refused = match &error {
            LinkError::Foreign(_) => {
                patience = MAX_RECONNECT_INTERVAL;
                true
            }
            LinkError::CannotApply(_) | LinkError::Damaged => true,
            // For example, the disk is full. Each attempt verifies the files that were already
            // received.
            LinkError::Store(_) => node.replication.link.lock().state == LinkState::Sync,
            _ => false,
        };
        let error = one_line(&error.to_string());
        let due = now() + if is_refused { patience } else { RECONNECT_INTERVAL };
        here.node.replication.link.lock().fail(error.clone(), due);
        if is_refused {
            tracing::warn!(
                "cannot use the data of master {master}: {error}; retrying in {} s",
                patience.as_secs()
            );
        } else if is_unfit {
            if unfit_logged.is_none_or(|at| since(at) >= REFUSAL_LOG_INTERVAL) {
                unfit_logged = Some(now());
                tracing::error!(
                    "this replica keeps its data and does not follow the master {master}: {error}"
                );
            }
        } else if error != said {
            tracing::warn!(
                "the link to the master {master} is down: {error}; retrying, still serving reads"
            );
        }
        said = error;
        tokio::select! {
            biased;
            () = &mut ordered => return FollowEnd::Ordered,
            is_same = sleep_until(&node, due) => {
                let longer = (patience * 2).min(MAX_RECONNECT_INTERVAL);
                patience = if is_refused && is_same { longer } else { RECONNECT_INTERVAL };
            }
        }
    }
}

/// Waits until `due` and returns true. Returns false as soon as the configuration changes.
async fn sleep_until(node: &Node, due: Instant) -> bool {
    let version = node.settings.version();
    while node.settings.version() == version {
        let left = due.saturating_duration_since(now());
        if left.is_zero() {
            return true;
        }
        tokio::time::sleep(left.min(TICK)).await;
    }
    false
}

/// Makes an error safe for INFO and the log. The error may contain text from the master, so control
/// characters become spaces and the length is bounded.
fn one_line(error: &str) -> String {
    let ends_a_line = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    error.chars().take(MAX_ERROR_CHARS).map(|c| if ends_a_line(c) { ' ' } else { c }).collect()
}

fn other(text: impl Into<String>) -> LinkError {
    LinkError::Refused(text.into())
}

fn net(error: &io::Error) -> LinkError {
    other(error.to_string())
}

async fn within<T>(what: impl Future<Output = io::Result<T>>) -> Result<T, LinkError> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, what).await {
        Ok(result) => result.map_err(|e| net(&e)),
        Err(_) => Err(LinkError::Timeout(HANDSHAKE_TIMEOUT.as_millis() as u64)),
    }
}

/// Sends a request and reads a simple reply, byte by byte: the stream of the log may follow it. The
/// inner error is the master's error reply.
async fn ask(stream: &mut Socket, words: &[&str]) -> Result<Result<(), String>, LinkError> {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let mut request = Vec::new();
    put_command(&mut request, &words);
    within(stream.write_all(&request)).await?;
    within(stream.flush()).await?;
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        if line.len() > 1024 {
            return Err(other("the master's reply is too long"));
        }
        line.push(within(stream.read_u8()).await?);
    }
    let text = one_line(String::from_utf8_lossy(&line).trim_end());
    Ok(if text.starts_with('+') { Ok(()) } else { Err(text) })
}

/// Whether the reply to TM.REPLICATE shows that the server is not Tidemark.
fn is_foreign(reply: &str) -> bool {
    reply.to_ascii_lowercase().starts_with("-err unknown command")
}

/// Error of REPLICAOF when the master is a Redis server.
fn foreign_master_error(master: &Master) -> LinkError {
    LinkError::Foreign(format!(
        "{master} is not a Tidemark server, and replication needs one. To copy data from Redis, \
         use `tidemark import`, redis-cli --pipe or RedisShake"
    ))
}

/// Connects to the master, with TLS if configured.
async fn dial(node: &Node, master: &Master) -> io::Result<Socket> {
    let encrypted = node.config().replication.tls;
    let tls = encrypted.then(|| node.tls.client()).transpose()?;
    let Master { host, port } = master;
    let socket = Socket::connect(host, *port, tls.as_ref(), host).await?;
    let local = socket.tcp().map(TcpStream::local_addr).transpose()?;
    node.replication.link.lock().local = local;
    Ok(socket)
}

/// Connects, authenticates, and sends TM.REPLICATE.
async fn connect(
    node: &Node,
    master: &Master,
    dial: &impl AsyncFn(&Node, &Master) -> io::Result<Socket>,
) -> Result<Socket, LinkError> {
    let (user, password) = {
        let config = node.config();
        let settings = &config.replication;
        (settings.master_user.clone(), settings.master_auth.clone())
    };
    let replication = &node.replication;
    replication.link.lock().state = LinkState::Connecting;
    let mut stream = within(dial(node, master)).await?;
    let refused = |verb: &str, reply: &str| other(describe_answer(verb, reply));
    let login: &[&str] = match (user.as_str(), password.as_str()) {
        (_, "") => &[],
        ("", password) => &["AUTH", password],
        (user, password) => &["AUTH", user, password],
    };
    if !login.is_empty() {
        ask(&mut stream, login).await?.map_err(|reply| refused("AUTH", &reply))?;
    }
    let protocol = replication::PROTOCOL.to_string();
    match replication.failover.handover() {
        None => {
            let asked = ask(&mut stream, &["TM.REPLICATE", &protocol]).await?;
            asked.map_err(|reply| {
                if is_foreign(&reply) {
                    foreign_master_error(master)
                } else {
                    refused("TM.REPLICATE", &reply)
                }
            })?;
        }
        Some(offset) => {
            // A frozen node could execute the request after this node has become the master again,
            // so it must answer a PING first. Errors that do not stop a node from reading requests
            // are ignored. A loading node may already have taken over, and a node at its client
            // limit closes the connection.
            let is_read = |reply: &str| {
                ["-NOAUTH ", "-NOPERM ", "-MISCONF "].iter().any(|code| reply.starts_with(code))
            };
            if let Err(reply) = ask(&mut stream, &["PING"]).await?
                && !is_read(&reply)
            {
                return Err(refused("PING", &reply));
            }
            let asking = replication.failover.asking();
            let asking = asking.ok_or_else(|| other("the failover was aborted"))?;
            let (lineage, term) =
                (node.store.lineage().to_string(), format!("{:x}", replication.term.load(Relaxed)));
            let request =
                ["TM.REPLICATE", &protocol, "FAILOVER", &offset.to_string(), &lineage, &term];
            match ask(&mut stream, &request).await? {
                Ok(()) => replication.failover.done(node),
                Err(reply) => return Err(other(asking.refused(node, &reply))),
            }
        }
    }
    Ok(stream)
}

/// Runs one link. Returns `Ok` if the folder must be reopened, otherwise the reason why the link
/// ended.
async fn link(
    here: &mut ReplicaContext,
    master: &Master,
    dial: &impl AsyncFn(&Node, &Master) -> io::Result<Socket>,
) -> Result<(), LinkError> {
    let node = here.node.clone();
    let mut stream = connect(&node, master, dial).await?;
    let (times, ip, port) = {
        let config = node.config();
        let settings = &config.replication;
        let port = match settings.replica_announce_port {
            0 if settings.tls => config.tls.port,
            0 => node.port(),
            port => port,
        };
        let times = Timeouts { timeout_ms: settings.timeout_s * 1000, ..Timeouts::default() };
        (times, settings.replica_announce_ip.clone(), port)
    };
    let started = now();
    here.received_catalogue = None;
    let mut out = Vec::new();
    let mut follower =
        Follower::new(times, node.replication.is_forced(), (&ip, port), here, &mut out, 0)?;
    let Err(error) = relay_bytes(here, master, &mut stream, &mut follower, out, started).await
    else {
        return Ok(());
    };
    // Applies and syncs all complete batches. Otherwise memory and log would differ.
    let is_sound = !matches!(error, LinkError::Apply(_))
        && matches!(follower.finish(here), Ok(FollowerStep::On));
    if is_sound && here.log.sync_and_truncate().is_ok() {
        here.settled();
        return Err(error);
    }
    let error = one_line(&error.to_string());
    tracing::error!(
        "reloading the data set, since received data cannot be applied or synced: {error}"
    );
    Ok(())
}

/// Copies bytes between the socket and the follower. Cancellation-safe, because all received
/// batches are applied at every await point.
// Long: this function is long because all arms of the `select!` borrow the same buffers and
// timestamps.
async fn relay_bytes(
    here: &mut ReplicaContext,
    master: &Master,
    stream: &mut Socket,
    follower: &mut Follower,
    mut out: Vec<u8>,
    started: Instant,
) -> Result<(), LinkError> {
    let node = here.node.clone();
    let replication = &node.replication;
    let mut input = vec![0; READ_BYTES];
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut was_following = false;
    let mut counted = false;
    let takes_over = takes_over(&node);
    tokio::pin!(takes_over);
    let mut has_asked = false;
    loop {
        if !out.is_empty() {
            within(stream.write_all(&out)).await?;
            within(stream.flush()).await?;
            out.clear();
        }
        let read = tokio::select! {
            // The arms are polled in order, as in outgoing_link.rs.
            biased;
            _ = ticks.tick() => {
                let unread = read_available(stream, &mut input).await.map_err(|e| net(&e))?;
                if unread.is_none() {
                    follower.check_timeout(elapsed_ms(started))?;
                }
                unread
            }
            () = &mut takes_over, if !has_asked && follower.is_following() => {
                has_asked = true;
                if replication.is_taking_over() && !node.stop.is_stopped() {
                    follower.ask_to_step_down(&mut out);
                }
                None
            }
            read = stream.read(&mut input) => Some(read.map_err(|e| net(&e))?),
            () = tokio::task::yield_now(), if follower.is_verifying() => {
                follower.look(here, &mut out)?;
                None
            }
        };
        if let Some(mut length) = read {
            let mut taken = 0;
            loop {
                if length == 0 {
                    return Err(other("the master closed the link"));
                }
                taken += length;
                replication.feeds.bytes_in.fetch_add(length as u64, Relaxed);
                let course =
                    follower.receive(&input[..length], here, &mut out, elapsed_ms(started))?;
                if course != FollowerStep::On {
                    return finish_for_reopen(here, course, counted);
                }
                if taken >= ROUND_BYTES {
                    break;
                }
                match read_available(stream, &mut input).await.map_err(|e| net(&e))? {
                    Some(read) => length = read,
                    None => break,
                }
            }
            let course = follower.settle(here, &mut out, elapsed_ms(started))?;
            if course != FollowerStep::On {
                return finish_for_reopen(here, course, counted);
            }
        }
        follower.tick(here, &mut out, elapsed_ms(started))?;
        if has_asked {
            if follower.has_whole_log(here) {
                replication.took_over(replication.is_named());
                return Err(other("the old master has stepped down"));
            }
            let silent_ms = elapsed_ms(started).saturating_sub(follower.heard_ms());
            // The timeout can expire only after the request was sent.
            let is_silent = out.is_empty() && silent_ms >= SILENCE_TIMEOUT.as_millis() as u64;
            if is_silent || !replication.is_taking_over() || node.stop.is_stopped() {
                tracing::warn!(
                    "the old master {master} has not stepped down: silent for {silent_ms} ms"
                );
                return Err(other("the old master has not stepped down"));
            }
        }
        let is_up = follower.is_following() && !was_following;
        if is_up {
            // Record the sync before INFO shows the link as up, so that this node is promotable by
            // that time.
            replication.synced(&node.config());
        }
        {
            let mut link = replication.link.lock();
            link.master_end = follower.master_end();
            link.heard = started + Duration::from_millis(follower.heard_ms());
            if follower.is_following() && node.durability.shown().offset >= link.master_end {
                link.in_step = Some(link.heard);
            }
            if let Some(bytes) = follower.is_fetching() {
                link.state = LinkState::Sync;
                link.fetched = bytes;
                counted = true;
            } else if is_up {
                link.state = LinkState::Connected;
                link.down_since = None;
                link.error.clear();
            }
        }
        if is_up {
            was_following = true;
            replication.continued.fetch_add(1, Relaxed);
            forget_full_sync(&node);
            tracing::info!("the link to the master {master} is up, from {}", here.log.written());
        }
    }
}

/// Deletes the files of an unfinished full sync.
pub(crate) fn forget_full_sync(node: &Node) {
    if let Err(error) = store::Staging::clear(node.store.disk()) {
        tracing::warn!(
            "cannot remove the files of a full sync: {error}. Stop the server and remove staged-*"
        );
    }
}

/// Waits until this node must take over, and then until a Sentinel reports this node as the master
/// or a timeout expires.
async fn takes_over(node: &Node) {
    node.replication.takes_over().await;
    let began = now();
    let is_due = || {
        let replication = &node.replication;
        let silent = since(replication.link.lock().heard);
        // Another role change or a shutdown ends the link without a request.
        let is_over = !replication.is_taking_over() || node.stop.is_stopped();
        is_over
            || replication.is_named()
            || !replication.is_watched()
            || silent >= SILENCE_TIMEOUT
            || since(began) >= NAMING_TIMEOUT
    };
    while !is_due() {
        tokio::time::sleep(NAMING_POLL_INTERVAL).await;
    }
}

fn finish_for_reopen(
    here: &mut ReplicaContext,
    course: FollowerStep,
    fetched: bool,
) -> Result<(), LinkError> {
    here.is_whole = course == FollowerStep::Adopt;
    if fetched {
        here.node.replication.full_syncs.fetch_add(1, Relaxed);
        tracing::info!("full sync complete: reloading the data set");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::roles::Order;
    use crate::roles::node::Host;
    use std::io::{Read, Write};
    use store::{Check, Position, frame_head};

    /// Context of a replica whose log begins at the start of its history.
    fn context(node: &Arc<Node>) -> ReplicaContext {
        let lineage = node.store.lineage();
        let log = ReplicaLog::open(node.store.disk().clone(), lineage, Position::START).unwrap();
        ReplicaContext {
            node: node.clone(),
            log,
            received_catalogue: None,
            is_whole: false,
            room_deadline: None,
        }
    }

    /// Runs a link to a fake master, which replies OK to TM.REPLICATE and then calls `does`.
    /// Returns the link's error.
    fn link_to(
        timeout_s: u64,
        does: impl FnOnce(&Node, &mut std::net::TcpStream) + Send + 'static,
    ) -> LinkError {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        config.replication.timeout_s = timeout_s;
        let node = Host::alone(&config);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let master =
            Master { host: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() };
        let mut here = context(&node);
        let plays = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 1000]).unwrap() > 0, "the replica asks for the log");
            does(&node, &mut stream);
            // Waits until the replica has disconnected.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let linked = async {
            tokio::time::timeout(Duration::from_secs(60), link(&mut here, &master, &dial)).await
        };
        let ended = runtime
            .block_on(linked)
            .expect("the link does not end")
            .expect_err("the link received nothing");
        plays.join().unwrap();
        ended
    }

    #[test]
    fn a_master_that_does_not_speak_is_given_up() {
        let ended = link_to(1, |_, stream| stream.write_all(b"+OK\r\n").unwrap());
        assert!(matches!(ended, LinkError::Timeout(1_000..)), "{ended}");
    }

    /// A slow disk may block the link for longer than the timeout. The replica reads the pending
    /// messages before it closes the link.
    #[test]
    fn a_master_whose_words_wait_unread_is_not_given_up() {
        const TIMEOUT_S: u64 = 2;
        let busy = |node: &Node, stream: &mut std::net::TcpStream| {
            let began = Instant::now();
            let _busy = node.replication.link.lock();
            stream.write_all(b"+OK\r\n").unwrap();
            assert!(stream.read(&mut [0; 1000]).unwrap() > 0, "it greets");
            std::thread::sleep(Duration::from_secs(1));
            let words = [&[72][..], b"not today"].concat();
            stream.write_all(&frame_head(Check::new().u64(0), &words)).unwrap();
            stream.write_all(&words).unwrap();
            std::thread::sleep(Duration::from_secs(TIMEOUT_S + 1).saturating_sub(began.elapsed()));
        };
        // Run several links, because the timer and the socket race.
        let links: Vec<_> =
            (0..16).map(|_| std::thread::spawn(move || link_to(TIMEOUT_S, busy))).collect();
        for link in links {
            let ended = link.join().unwrap();
            assert!(matches!(&ended, LinkError::Refused(words) if words == "not today"), "{ended}");
        }
    }

    /// Batches wait for a spill, but only until a timeout or a role change.
    #[test]
    fn batches_wait_for_a_spill_for_a_limited_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        config.counter[0].spill = true;
        let node = Host::alone(&config);
        let engines = node.engines();
        let space = &engines.counters()[0];
        let mut here = context(&node);
        assert!(!node.engines().is_spilling());
        here.wait_for_room();
        assert_eq!(here.room_deadline, None, "the engines have room");

        space.set_memory_limit_bytes(1);
        assert!(node.engines().is_spilling());
        let began = Instant::now();
        here.wait_for_room();
        assert!(began.elapsed() >= SPILL_TIMEOUT, "the test freed memory");
        let deadline = here.room_deadline.unwrap();
        here.wait_for_room();
        assert_eq!(here.room_deadline, Some(deadline), "the batches of a round wait once");
        here.settled();
        assert_eq!(here.room_deadline, None, "the batches of the next round wait again");

        // Set a distant deadline, so that only the events below can end the wait.
        let far = Some(Instant::now() + Duration::from_secs(3600));
        let ends = |here: &mut ReplicaContext, end: &(dyn Fn() + Sync)| {
            here.room_deadline = far;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(TICK);
                    end();
                });
                here.wait_for_room();
            });
        };
        ends(&mut here, &|| space.set_memory_limit_bytes(u64::MAX));
        assert!(!node.engines().is_spilling());
        space.set_memory_limit_bytes(1);
        let master = Master { host: "127.0.0.1".to_owned(), port: 1 };
        let order = || Order { master: Some(master.clone()), ..Order::default() };
        ends(&mut here, &|| assert!(node.replication.order(&config, order(), || ()).unwrap()));
        node.replication.settle(&config, false, 0);
        ends(&mut here, &|| node.stop.now());
    }
}
