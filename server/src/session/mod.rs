//! State of a connection that outlives a single command.

pub(crate) mod scratch;
pub(crate) mod subscriptions;
pub(crate) mod suspend;
pub(crate) mod tracked;
pub(crate) mod transaction;
pub(crate) mod unseen;

pub(crate) use scratch::Scratch;

use crate::commands::cluster::gathering::{Gathering, Joined};
use dataset::engines::WatchedState;
use dataset::watch::WatchedId;
use node::acl::Access;
use node::cluster::Topology;
use node::command::spec::Outcome;
use node::roles::node::{Node, Process};
use node::roles::outgoing_link;
use node::runtime::clients::Client;
use std::cell::Cell;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use store::Ticket;
use subscriptions::Subscriptions;
use suspend::Suspension;
use tracked::Tracked;
use transaction::{Transaction, WATCHED_BYTES};

/// Reply mode of a client (CLIENT REPLY).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replies {
    On,
    Off,
    /// CLIENT REPLY SKIP was executed. The next command gets no reply.
    SkipNext,
    /// The current command gets no reply.
    SkipThis,
}

/// Future that withheld replies wait for.
pub(crate) type Later = Pin<Box<dyn Future<Output = LateReplies> + Send>>;

/// Parts of replies that a [`Later`] supplies.
#[derive(Default)]
pub(crate) struct LateReplies {
    /// Replies merged from several nodes, in order, each with the range of the output that it
    /// replaces.
    pub(crate) joined: Vec<Joined>,
    /// Deferred reply of the last command, if any.
    pub(crate) last: Vec<u8>,
}

impl LateReplies {
    /// Inserts the late parts into the replies.
    pub(crate) fn complete(self, out: &mut Vec<u8>) {
        if !self.joined.is_empty() {
            let replies = std::mem::take(out);
            let mut at = 0;
            for (place, reply) in &self.joined {
                out.extend_from_slice(&replies[at..place.start]);
                out.extend_from_slice(reply);
                at = place.end;
            }
            out.extend_from_slice(&replies[at..]);
        }
        out.extend_from_slice(&self.last);
    }
}

pub(crate) struct Session {
    pub(crate) client: Arc<Client>,
    pub(crate) access: Access,
    pub(crate) worker: usize,
    pub(crate) replies: Replies,
    /// Commands queued between MULTI and EXEC.
    pub(crate) transaction: Option<Transaction>,
    /// Watched keys by space number and id. If a key is watched twice, the version from the first
    /// WATCH is kept.
    pub(crate) watched: HashMap<WatchedId, WatchedState>,
    /// Whether a watched data set was replaced by another data set. As in Redis, all watched keys
    /// then count as modified.
    pub(crate) watch_lost: bool,
    /// Whether EXEC is running. The commands in EXEC must not wait, and may suspend only if
    /// `may_suspend` is set.
    pub(crate) in_exec: bool,
    /// Whether the commands of EXEC may suspend, because EXEC holds no locks.
    pub(crate) may_suspend: bool,
    pub(crate) suspension: Suspension,
    /// True if the command records missing cold rows because it runs without a prior fetch of these
    /// rows.
    pub(crate) records_missing_rows: bool,
    /// Result of the check that the node accepts writes. EXEC makes this check once for all its
    /// commands.
    pub(crate) admitted: Option<Outcome>,
    /// Whether the event-loop iteration ends after this request. Set if the request blocked all
    /// writers or sent a message to many clients, or if many replies wait for other nodes.
    pub(crate) ends_turn: bool,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) listening: bool,
    /// Whether pending messages must directly follow the current reply, because the client has
    /// published to itself or has just unsubscribed.
    pub(crate) messages_due: bool,
    /// Whether the current reply is a push, which CLIENT REPLY does not suppress.
    pub(crate) reply_is_push: bool,
    pub(crate) monitoring: bool,
    /// State of CLIENT TRACKING, if it is on.
    pub(crate) tracking: Option<Box<Tracked>>,
    /// Whether reads are recorded for invalidation, which requires that tracking is on without
    /// BCAST.
    pub(crate) tracks_reads: bool,
    /// Whether every command is timed (see `slowlog`).
    pub(crate) timed: bool,
    /// Whether a write was admitted since replies were last sent.
    pub(crate) wrote: bool,
    /// Commit ticket that covers the client's writes in earlier iterations and before the running
    /// EXEC. 0 before the first write.
    pub(crate) last_write: Ticket,
    /// Commit ticket that must be durable before the values read since the last reply may be shown
    /// (see `visibility.rs`).
    pub(crate) shown: Ticket,
    /// Future that the replies of this iteration wait for. The last command sets this future.
    pub(crate) hold: Option<Later>,
    /// Whether the reply of the last command comes from the future in `hold`.
    pub(crate) later: bool,
    /// Requested replication link. If `leaving` is set, the link starts after the replies are
    /// written.
    pub(crate) replicates: Option<outgoing_link::ReplicaSlot>,
    /// Whether to close the connection after the replies are written.
    pub(crate) leaving: bool,
    pub(crate) shuts_down: bool,
    /// Topology that all requests of this iteration use. Set only on cluster nodes.
    pub(crate) topology: Option<Arc<Topology>>,
    /// Whether READONLY is active: the client also reads from replicas.
    pub(crate) reads_replica: bool,
    /// Whether the client is a cluster node that fetches parts of pages (see `cluster/gather.rs`).
    pub(crate) is_coordinator: bool,
    /// Whether the client has written to slots of other nodes through this node.
    pub(crate) wrote_to_other_nodes: bool,
    /// Whether the current request is accepted and some of its ids belong to other nodes.
    pub(crate) spans_nodes: Cell<bool>,
    /// Requests to other nodes that the replies of this iteration depend on.
    pub(crate) gathering: Option<Gathering>,
    /// Maximum number of arguments of a request.
    pub(crate) args_limit: usize,
    /// Output limit in bytes. A command may stop building a larger reply, because the connection
    /// will be closed.
    pub(crate) max_out_bytes: usize,
}

impl Session {
    pub(crate) fn new(node: &Node, client: Arc<Client>, worker: usize) -> Session {
        Session {
            client,
            access: Access::new(&node.acl, node.settings.version()),
            worker,
            replies: Replies::On,
            transaction: None,
            watched: HashMap::new(),
            watch_lost: false,
            in_exec: false,
            may_suspend: false,
            suspension: Suspension::default(),
            records_missing_rows: false,
            admitted: None,
            ends_turn: false,
            subscriptions: Subscriptions::default(),
            listening: false,
            messages_due: false,
            reply_is_push: false,
            monitoring: false,
            tracking: None,
            tracks_reads: false,
            timed: false,
            wrote: false,
            last_write: 0,
            shown: 0,
            hold: None,
            later: false,
            replicates: None,
            leaving: false,
            shuts_down: false,
            topology: None,
            reads_replica: false,
            is_coordinator: false,
            wrote_to_other_nodes: false,
            spans_nodes: Cell::new(false),
            gathering: None,
            args_limit: usize::MAX,
            max_out_bytes: usize::MAX,
        }
    }

    /// Returns whether the inbox may contain messages for this client.
    #[inline]
    pub(crate) fn listens(&self) -> bool {
        self.listening || self.monitoring || self.client.hears.load(Relaxed)
    }

    /// Updates the client's memory use: subscriptions, watched keys and prefixes.
    pub(crate) fn update_stored_bytes(&self) {
        let watched = self.watched.len() * WATCHED_BYTES;
        let tracked = self.tracking.as_ref().map_or(0, |tracked| tracked.bytes());
        self.client.set_stored_bytes(self.subscriptions.bytes() + watched + tracked);
    }

    /// Updates the number of watched keys in CLIENT LIST, and frees the table if it is empty.
    pub(crate) fn publish_watched_count(&mut self) {
        if self.watched.is_empty() {
            self.watched = HashMap::new();
        }
        self.client.watching.store(self.watched.len(), Relaxed);
        self.update_stored_bytes();
    }

    /// Marks all watches as failed, because the data set was replaced.
    pub(crate) fn fail_watches(&mut self) {
        self.watch_lost |= !self.watched.is_empty();
        self.watched.clear();
        self.publish_watched_count();
    }

    /// Makes the replies of this iteration wait for the requests sent to other nodes, if any.
    pub(crate) fn wait_for_nodes(&mut self, process: impl FnOnce() -> Arc<Process>) {
        let Some(gathering) = self.gathering.take() else { return };
        let (process, last) = (process(), self.hold.take());
        self.hold = Some(Box::pin(async move {
            let joined = gathering.joined(process).await;
            let last = match last {
                Some(last) => last.await.last,
                None => Vec::new(),
            };
            LateReplies { joined, last }
        }));
    }
}
