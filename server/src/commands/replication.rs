//! Replication commands: REPLICAOF, ROLE, FAILOVER, and the handshake of a replica.

use crate::commands::call::{Call, integer};
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::wait::{wait, waitaof};
use ::replication::{Sending, promotions};
use node::command::error::{Refusal, refuse};
use node::command::spec::{ALWAYS, NO_KEYS, Outcome, flag};
use node::roles::node::Node;
use node::roles::outgoing_link::ReplicaSlot;
use node::roles::{Hello, LinkState, Master, Order, Promotion, Sentinel, failover, log_owner};
use node::runtime::blocking_task::apart;
use node::runtime::clients::Client;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const SERVER: Group = Group::new("server", "1.0.0", NO_KEYS);
const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT | flag::STALE;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    SERVER.row("replicaof", -3, ADMIN, "<host port [FORCE]|NO ONE>", Once(replicaof),
        "Makes this node a replica of the given master, or, with NO ONE, a master. Saves the role \
         in the data folder before the reply. FORCE replaces this node's data with the data of the \
         master. If a connected replica receives NO ONE, it first makes the old master its \
         replica, so that no write is lost.")
        .since("5.0.0"),
    SERVER.row("slaveof", -3, ADMIN, "<host port [FORCE]|NO ONE>", Once(replicaof),
        "Same as REPLICAOF."),
    SERVER.row("role", 1, ALWAYS | flag::FAST, "", Once(role),
        "Returns the role (master or slave), the replication offset, and the replicas of a master \
         or the master of a replica.")
        .since("2.8.12")
        .linear("replicas"),
    SERVER.row("wait", 3, flag::NOSCRIPT, "numreplicas timeout", Once(wait),
        "Blocks until the given number of replicas have received all earlier writes of this \
         connection, or until the timeout in milliseconds (0 for no timeout). Returns the number \
         of replicas that have received the writes.").group("generic").since("3.0.0")
        .tips(&["request_policy:all_shards", "response_policy:agg_min"]),
    SERVER.row("waitaof", 4, flag::NOSCRIPT, "numlocal numreplicas timeout", Once(waitaof),
        "Blocks until this server (numlocal = 1) and the given number of replicas have synced all \
         earlier writes of this connection to disk, or until the timeout in milliseconds. Returns \
         whether this server has synced the writes (1 or 0), and the number of replicas that have \
         synced them.")
        .group("generic").since("7.2.0"),
    SERVER.row("failover", -1, ADMIN,
        "[TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]", Once(failover),
        "Pauses writes until a replica has caught up, and makes this replica the master. This node \
         then becomes a replica of the new master. ABORT cancels the failover, unless the server \
         has already asked the replica to take over and has no answer yet.")
        .since("6.2.0"),
    SERVER.row("tm.replicate", -2, ADMIN | flag::NO_MULTI,
        "protocol [FAILOVER offset lineage term]", Once(replicate),
        "Internal command of Tidemark replicas; turns the connection into a replication link. With \
         FAILOVER, this node first becomes the master if its history contains the given offset and \
         lineage.").since("0.1.0")
        .cost("O(N) where N is the number of bytes of files or log that the replica lacks"),
    SERVER.row("replconf", -1, ADMIN, "[option value [option value ...]]", Once(foreign),
        NOT_TO_REDIS).since("3.0.0"),
    SERVER.row("psync", -3, ADMIN | flag::NO_MULTI, "replicationid offset", Once(foreign),
        NOT_TO_REDIS).since("2.8.0"),
    SERVER.row("sync", 1, ADMIN | flag::NO_MULTI, "", Once(foreign), NOT_TO_REDIS),
];

const NOT_TO_REDIS: &str = "Not supported: a Redis server cannot replicate from Tidemark.";

/// Handles the handshake of a Redis server that is configured to replicate from this server. If the
/// reply to PSYNC is NOMASTERLINK, that server retries once a second. After any other error it
/// would send SYNC, fail, and reconnect in a tight loop.
fn foreign(call: &mut Call<'_>) -> Outcome {
    let why = "a Redis server cannot replicate from Tidemark; to copy rows to Redis, read them \
               with SCAN and HGETALL and write them with redis-cli --pipe";
    if call.spec.name != "replconf" {
        call.node.replication.note_foreign_replica(call.session.client.peer.ip(), why);
    }
    let code = if call.spec.name == "psync" { "NOMASTERLINK" } else { "ERR" };
    Err(refuse!("{code} {why}"))
}

/// Maximum time that a replica's request waits until a new master has begun its log. Beginning the
/// log takes one or two fsyncs.
const LOG_START_TIMEOUT: Duration = Duration::from_secs(2);

/// Error of a node that cannot serve a replica now. The text is the same as in Redis.
const NO_LINK: &str = "NOMASTERLINK Can't SYNC while not connected with my master";
/// Error for REPLICAOF during a failover. The text is the same as in Redis.
const FAILING_OVER: &str = "ERR REPLICAOF not allowed while failing over.";

/// Refuses role changes if the topology determines the role, with Redis's error text. With
/// `[[shard]]`, role changes remain allowed, because Sentinel changes roles by commands.
fn refuse_in_cluster(node: &Node, command: &str) -> Outcome {
    let is_told = node.cluster.is_enabled() && node.config().shard.is_empty();
    if is_told && node.cluster.topology().own().is_some() {
        return Err(refuse!("ERR {command} not allowed in cluster mode."));
    }
    Ok(())
}

fn replicaof(call: &mut Call<'_>) -> Outcome {
    refuse_in_cluster(&call.node, "REPLICAOF")?;
    if call.node.replication.failover.forbids_orders(&call.node.replication) {
        return Err(refuse!("{FAILING_OVER}"));
    }
    let word = |index: usize| String::from_utf8_lossy(call.args.at(index)).into_owned();
    let (host, port) = (word(1), word(2));
    let forced = call.args.len() == 4 && call.args.at(3).eq_ignore_ascii_case(b"force");
    if call.args.len() > 4 || (call.args.len() == 4 && !forced) {
        return Err(Refusal::SYNTAX);
    }
    let is_nobody = host.eq_ignore_ascii_case("no") && port.eq_ignore_ascii_case("one");
    let master = if is_nobody && !forced {
        None
    } else {
        // Redis rejects ports with a sign or a leading zero.
        if !integer(call.args.at(2)).is_ok_and(|port| u16::try_from(port).is_ok()) {
            return Err(refuse!("ERR Invalid master port"));
        }
        Some(
            Master::parse(&format!("{host} {port}"))
                .ok_or_else(|| refuse!("ERR Invalid master host"))?,
        )
    };
    let peer = call.session.client.peer;
    // EXEC may hold locks that a commit would wait for.
    let may_flush = !call.session.in_exec || call.session.may_suspend;
    call.answer_later(move |node, reply| {
        if may_flush && master.is_some() {
            ensure_all_logged(&node)?;
        }
        let given = Order {
            master: master.clone(),
            forced,
            promotion: Promotion::TakesOver,
            ..Order::default()
        };
        let is_new = order(&node, given)?;
        match (is_new, &master) {
            (false, Some(_)) => reply.simple("OK Already connected to specified master"),
            (false, None) => reply.ok(),
            (true, Some(master)) => {
                tracing::info!("REPLICAOF {master} by {peer}");
                reply.ok();
            }
            (true, None) => {
                tracing::info!("REPLICAOF NO ONE by {peer}");
                reply.ok();
            }
        }
        Ok(())
    })
}

/// Changes this node's role, durably. Returns whether the role is new.
pub(crate) fn order(node: &Node, order: Order) -> Result<bool, Refusal> {
    let given = node.replication.failover.order(node, order);
    let given = given.ok_or_else(|| refuse!("{FAILING_OVER}"))?;
    given.map_err(|e| refuse!("ERR cannot save the role in the data folder: {e}"))
}

/// Ensures that the acknowledged writes of a master are in the log before the master becomes a
/// replica. Fails if the disk refuses these writes. The log thread retries writes that are accepted
/// between this call and the change of role (`node/src/roles/log_owner.rs`).
pub(crate) fn ensure_all_logged(node: &Node) -> Outcome {
    let is_writer = || node.replication.is_master() && node.replication.log_matches_role();
    if !is_writer() {
        return Ok(());
    }
    match node.durability.committer().flush() {
        // Ignore the error if the role has changed during the flush.
        Err(_) if is_writer() => {
            let why = node.durability.refusal().unwrap_or_default();
            Err(refuse!("ERR earlier writes are not in the log yet and would be lost: {why}"))
        }
        _ => Ok(()),
    }
}

fn role(call: &mut Call<'_>) -> Outcome {
    if !call.may_show_offsets() {
        return Ok(());
    }
    let node = call.node;
    let offset = i64::try_from(node.durability.acknowledged_offset()).unwrap_or(i64::MAX);
    match node.replication.master() {
        None => {
            let online: Vec<_> = node
                .replication
                .feeds
                .reachable()
                .into_iter()
                .filter(|f| f.sending == Sending::Log)
                .collect();
            call.reply.array(3);
            call.reply.bulk(b"master");
            call.reply.int(offset);
            call.reply.array(online.len());
            for fed in online {
                call.reply.array(3);
                call.reply.bulk(fed.ip.as_bytes());
                call.reply.bulk(fed.port.to_string().as_bytes());
                call.reply.bulk(fed.written.to_string().as_bytes());
            }
        }
        Some(master) => {
            let state = match node.replication.link.lock().state {
                LinkState::Connect => "connect",
                LinkState::Connecting => "connecting",
                LinkState::Sync => "sync",
                LinkState::Connected => "connected",
            };
            call.reply.array(5);
            call.reply.bulk(b"slave");
            call.reply.bulk(master.host.as_bytes());
            call.reply.int(i64::from(master.port));
            call.reply.bulk(state.as_bytes());
            // As in Redis, -1 means that the first synchronization is not complete.
            call.reply.int(if node.replication.is_fit() { offset } else { -1 });
        }
    }
    Ok(())
}

/// Parses a hello message of a Sentinel, which contains the address of the monitored master:
/// `ip,port,runid,epoch,name,master-ip,master-port,master's epoch`. This node is that master if the
/// address is its local or its announced address.
///
/// A master that learns from the message that it was replaced disconnects its clients. Otherwise
/// they would get -READONLY for ten seconds, until Sentinel reconfigures the node.
pub(crate) fn handle_sentinel_hello(node: &Arc<Node>, sender: &Client, message: &[u8]) {
    let local = sender.local;
    let text = String::from_utf8_lossy(message);
    let fields: Vec<&str> = text.split(',').collect();
    let [at, at_port, run_id, current, group, ip, port, epoch] = fields[..] else { return };
    let (Ok(port), Ok(epoch)) = (port.parse::<u16>(), epoch.parse()) else { return };
    let config = node.config();
    let settings = &config.replication;
    let own_port = if settings.replica_announce_port == 0 {
        local.port()
    } else {
        settings.replica_announce_port
    };
    let own_ip = if settings.replica_announce_ip.is_empty() {
        local.ip().to_string()
    } else {
        settings.replica_announce_ip.clone()
    };
    let is_ours = port == own_port && ip == own_ip;
    let current = current.parse::<u64>().unwrap_or(0).max(epoch);
    let identity = [at, at_port, run_id];
    let said = Sentinel { identity, group, epoch: current, own: (own_ip, own_port) };
    if node.replication.heard(said, &format!("{ip} {port}"), is_ours) {
        log_owner::announce(node);
    }
    let hello = Hello { group, is_ours, epoch, address: format!("{ip} {port}") };
    let was_deposed = node.replication.is_deposed();
    let is_news = node.replication.named(&config, &hello);
    if !was_deposed && node.replication.is_deposed() && node.replication.is_master() {
        let users = node.clients.disconnect_users(sender.id);
        tracing::info!("disconnected {users} clients: Sentinel announces the new master to them");
    }
    if is_news {
        let node = node.clone();
        // Another thread saves the role, because the disk may be slow.
        drop(apart(move || node.replication.keep_epochs(&node.config())));
    }
}

/// FAILOVER. The error texts are the same as in Redis.
fn failover(call: &mut Call<'_>) -> Outcome {
    refuse_in_cluster(&call.node, "FAILOVER")?;
    let words = call.args.len();
    let is = |at: usize, word: &[u8]| call.args.at(at).eq_ignore_ascii_case(word);
    if words == 2 && is(1, b"abort") {
        return call.answer_later(|node, reply| {
            let aborted = node.replication.failover.abort(&node, "FAILOVER ABORT");
            aborted.map_err(|why| Refusal::new(why.into_bytes()))?;
            reply.ok();
            Ok(())
        });
    }
    let (mut to, mut force, mut timeout) = (None, false, None);
    let mut at = 1;
    while at < words {
        if is(at, b"timeout") && at + 1 < words && timeout.is_none() {
            let ms = u64::try_from(integer(call.args.at(at + 1))?).ok().filter(|&ms| ms > 0);
            let ms = ms.ok_or_else(|| refuse!("ERR FAILOVER timeout must be greater than 0"))?;
            timeout = Some(Duration::from_millis(ms).min(failover::FAR));
            at += 2;
        } else if is(at, b"to") && at + 2 < words && to.is_none() {
            let word = |at: usize| String::from_utf8_lossy(call.args.at(at)).into_owned();
            integer(call.args.at(at + 2))?;
            to = Some((word(at + 1), word(at + 2)));
            at += 3;
        } else if is(at, b"force") && !force {
            force = true;
            at += 1;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    let asked = FailoverAsked { to, force, timeout, peer: call.session.client.peer };
    // FAILOVER begins on the worker, so that later commands of the same pipeline see the pause.
    let may_suspend = !call.session.in_exec || call.session.may_suspend;
    if asked.begin(&call.node, !may_suspend)? {
        call.reply.ok();
    } else {
        call.again_when(|node| node.replication.failover.wait_for_order());
    }
    Ok(())
}

struct FailoverAsked {
    to: Option<(String, String)>,
    force: bool,
    timeout: Option<Duration>,
    peer: SocketAddr,
}

impl FailoverAsked {
    /// Starts the failover. Returns false if the request must wait for a role change that is being
    /// saved.
    fn begin(&self, node: &Arc<Node>, may_wait: bool) -> Result<bool, Refusal> {
        let replication = &node.replication;
        let is_late = || refuse!("ERR FAILOVER already in progress.");
        if replication.failover.is_under_way() {
            return Err(is_late());
        }
        if !replication.is_master() {
            return Err(refuse!("ERR FAILOVER is not valid when server is a replica."));
        }
        if replication.is_fenced() {
            return Err(refuse!(
                "ERR FAILOVER is not valid on a fenced node: {}.",
                failover::FENCED
            ));
        }
        let feeds = replication.feeds.reachable();
        if feeds.is_empty() {
            return Err(refuse!("ERR FAILOVER requires connected replicas."));
        }
        if let Some(group) = replication.single_sentinel_group() {
            return Err(refuse!(
                "ERR FAILOVER needs two Sentinels that accept the new master, but only one \
                 monitors '{group}': use SENTINEL FAILOVER {group}"
            ));
        }
        let (force, timeout) = (self.force, self.timeout);
        if force && (self.to.is_none() || timeout.is_none()) {
            return Err(refuse!(
                "ERR FAILOVER with force option requires both a timeout and target HOST and IP."
            ));
        }
        let to = match &self.to {
            None => None,
            Some((host, port)) => {
                let found =
                    feeds.iter().find(|fed| fed.ip == *host && Ok(fed.port) == port.parse());
                let fed = found.ok_or_else(|| {
                    refuse!("ERR FAILOVER target HOST and PORT is not a replica.")
                })?;
                if fed.sending != Sending::Log {
                    return Err(refuse!("ERR FAILOVER target replica is not online."));
                }
                Some(Master { host: host.clone(), port: fed.port })
            }
        };
        match failover::begin(node, failover::FailoverRequest { to, force, timeout }, may_wait) {
            Some(true) => tracing::info!("FAILOVER by {}", self.peer),
            Some(false) => return Err(is_late()),
            None => return Ok(false),
        }
        Ok(true)
    }
}

/// Request from a master to take over its role. The master will follow this node on the same
/// connection.
struct TakeOver {
    offset: u64,
    lineage: String,
    term: u64,
    peer: SocketAddr,
}

impl TakeOver {
    fn read(call: &Call<'_>) -> Result<Option<TakeOver>, Refusal> {
        if call.args.len() == 2 {
            return Ok(None);
        }
        if call.args.len() != 6 || !call.args.at(2).eq_ignore_ascii_case(b"failover") {
            return Err(Refusal::SYNTAX);
        }
        let offset = u64::try_from(integer(call.args.at(3))?).unwrap_or(u64::MAX);
        let word = |at: usize| String::from_utf8_lossy(call.args.at(at)).into_owned();
        let term = u64::from_str_radix(&word(5), 16).map_err(|_| Refusal::SYNTAX)?;
        Ok(Some(TakeOver { offset, lineage: word(4), term, peer: call.session.client.peer }))
    }

    /// Makes this node a master. The role change is durable when this function returns.
    fn obey(&self, node: &Node) -> Outcome {
        let (ours, is_master) = (node.replication.term.load(Relaxed), node.replication.is_master());
        // The old master repeats the request if it did not receive the reply. In the meantime this
        // node may have been promoted, and may even have handed the role to another node.
        let is_after = promotions(ours) > promotions(self.term);
        if self.lineage != node.store.lineage().to_string() || !(ours == self.term || is_after) {
            return Err(refuse!(
                "{} this replica has a different history than the node that hands over its role",
                failover::NO
            ));
        }
        if is_master || is_after {
            return Ok(());
        }
        // Another command has changed this node's master since the sender made the request.
        if !node.replication.has_synced_with_master() {
            return Err(refuse!("{NO_LINK}"));
        }
        let ours = node.durability.shown().offset;
        if ours < self.offset {
            return Err(refuse!(
                "{} this replica's log ends at {ours}, before {}",
                failover::NO,
                self.offset
            ));
        }
        tracing::info!("taking over from the master, by {}", self.peer);
        let promotion = Promotion::HandedOver;
        order(node, Order { promotion, ..Order::default() }).map(|_| ())
    }
}

fn replicate(call: &mut Call<'_>) -> Outcome {
    let node = call.node;
    if integer(call.args.at(1))? != i64::from(::replication::PROTOCOL) {
        return Err(refuse!(
            "ERR this server uses version {} of the replication protocol",
            ::replication::PROTOCOL
        ));
    }
    let place = call.session.replicates.take();
    // Refuse a node that would follow itself. It would look like a replica in sync, but there would
    // be no master.
    let is_self = node.replication.link.lock().local == Some(call.session.client.peer);
    let take_over = TakeOver::read(call)?;
    if is_self && take_over.is_some() {
        return Err(refuse!("{} a node cannot take over from itself", failover::NO));
    }
    if is_self || !node.replication.is_fit() {
        return Err(refuse!("{NO_LINK}"));
    }
    // All refusals must precede the takeover, because the sender becomes master again after a
    // refusal.
    let place = place.or_else(|| ReplicaSlot::take(&node, &call.session.client));
    let place = place.ok_or_else(|| refuse!("ERR max number of replicas reached"))?;
    // A replica that takes over cannot serve replicas until its own log begins.
    let is_beginning = node.replication.is_master() && !node.replication.log_matches_role();
    if take_over.is_some() || is_beginning || !node.replication.is_replicated() {
        let ready = call.suspension(move |node| {
            let noted = node.replication.note_replicated(&node.config());
            noted.map_err(|e| refuse!("ERR cannot save the role: {e}"))?;
            let is_handed = take_over.is_some();
            take_over.map_or(Ok(()), |take_over| take_over.obey(&node))?;
            if is_handed || is_beginning {
                let log_matches_role = node.replication.wait_for_matching_log(LOG_START_TIMEOUT);
                if !log_matches_role && !is_handed {
                    return Err(refuse!("{NO_LINK}"));
                }
            }
            Ok(Vec::new())
        });
        match ready {
            Some(ready) => _ = ready?,
            None => {
                call.session.replicates = Some(place);
                return Ok(());
            }
        }
    }
    call.session.client.flags.fetch_or(node::runtime::clients::REPLICA, Relaxed);
    call.reply.ok();
    call.session.replicates = Some(place);
    call.session.leaving = true;
    Ok(())
}

/// Section `replication` of INFO, with Redis's field names.
// Long: this function has a statement for each line of the reply, in Redis's order.
pub(crate) fn info(node: &Node, out: &mut String) {
    let replication = &node.replication;
    let config = node.config();
    let settings = &config.replication;
    let (end, synced) = (node.durability.acknowledged_offset(), node.durability.positions().1);
    let master = replication.master();
    let _ = write!(out, "role:{}\r\n", if master.is_some() { "slave" } else { "master" });
    if let Some(master) = &master {
        let link = replication.link.lock().clone();
        let up = link.state == LinkState::Connected;
        // A node with incomplete data must not be promoted. Sentinel selects a replica by priority.
        // The Kvrocks controller selects by offset, so report 0 while the offset may belong to a
        // log that a full sync will drop.
        let is_fit = replication.is_fit() && node.is_loaded();
        let _ = write!(
            out,
            "master_host:{}\r\nmaster_port:{}\r\nmaster_link_status:{}\r\n\
             master_last_io_seconds_ago:{}\r\nmaster_sync_in_progress:{}\r\n\
             slave_read_repl_offset:{}\r\nslave_repl_offset:{}\r\nslave_synced_offset:{}\r\n",
            master.host,
            master.port,
            if up { "up" } else { "down" },
            if up { store::time::since(link.heard).as_secs() as i64 } else { -1 },
            u8::from(link.state == LinkState::Sync),
            end,
            if is_fit { end } else { 0 },
            synced.offset,
        );
        if link.state == LinkState::Sync {
            let _ = write!(out, "master_sync_read_bytes:{}\r\n", link.fetched);
        }
        if !up {
            let down_s = link.down_since.map(|since| store::time::since(since).as_secs() as i64);
            // As in Redis, the value is -1 before the first link.
            let down_s = down_s.unwrap_or(-1);
            let retry_s = link.due.map_or(0, |due| {
                due.saturating_duration_since(std::time::Instant::now()).as_secs()
            });
            let _ = write!(
                out,
                "master_link_down_since_seconds:{down_s}\r\nmaster_link_error:{}\r\n\
                 master_link_retry_seconds:{retry_s}\r\n",
                link.error
            );
        }
        let priority = if is_fit { settings.replica_priority } else { 0 };
        let _ = write!(
            out,
            "slave_priority:{priority}\r\nslave_read_only:1\r\nreplica_announced:1\r\n\
             slave_lag_bytes:{}\r\n",
            link.master_end.saturating_sub(end)
        );
    }
    let error = replication.last_error.lock().clone();
    if !error.is_empty() {
        let _ = write!(out, "repl_last_error:{error}\r\n");
    }
    let feeds = replication.feeds.reachable();
    let _ = write!(out, "connected_slaves:{}\r\n", feeds.len());
    if settings.min_replicas_to_write > 0 {
        let close =
            feeds.iter().filter(|fed| fed.is_close(settings.min_replicas_max_lag_s)).count();
        let _ = write!(out, "min_slaves_good_slaves:{close}\r\n");
    }
    for (number, fed) in feeds.iter().enumerate() {
        let _ = write!(
            out,
            "slave{number}:ip={},port={},state={},offset={},lag={},lag_bytes={},synced_offset={}\r\
             \n",
            fed.ip,
            fed.port,
            fed.state(),
            fed.written,
            store::time::since(fed.heard).as_secs(),
            end.saturating_sub(fed.written),
            fed.durable,
        );
    }
    // While the role change is being saved, this node still reports that it waits.
    let failover = match replication.failover.name() {
        failover::HANDING if master.is_none() => failover::WAITING,
        name => name,
    };
    let lineage =
        node.store.get().map_or_else(|| "0".repeat(32), |store| store.lineage().to_string());
    let _ = write!(
        out,
        "master_failover_state:{}\r\nmaster_replid:{lineage}{:08x}\r\nmaster_replid2:{:040}\r\n\
         master_repl_offset:{}\r\nsecond_repl_offset:-1\r\nrepl_backlog_active:0\r\n\
         repl_backlog_size:0\r\nrepl_backlog_first_byte_offset:0\r\nrepl_backlog_histlen:0\r\n\
         repl_term:{:016x}\r\nrepl_fenced:{}\r\nrepl_sentinel_groups:{}\r\nrepl_sentinels:{}\r\n\
         repl_refusing_replicas:{}\r\nrepl_full_syncs:{}\r\n\
         repl_continued:{}\r\nrepl_max_replicas:{}\r\n",
        failover,
        replication.term.load(Relaxed) as u32,
        0,
        end,
        replication.term.load(Relaxed),
        u8::from(replication.is_fenced()),
        replication.sentinel_groups(),
        replication.sentinels_heard(),
        replication.feeds.refusing(),
        replication.full_syncs.load(Relaxed),
        replication.continued.load(Relaxed),
        settings.max_replicas,
    );
}
