//! What a connection remembers between commands.

pub(crate) mod scratch;
pub(crate) mod subscriptions;
pub(crate) mod suspend;
pub(crate) mod tracked;
pub(crate) mod transaction;

pub(crate) use scratch::Scratch;

use crate::commands::cluster::gathering::{Gathering, Joined};
use dataset::engines::Seen;
use dataset::watch::Place;
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

/// Which replies a client wants (CLIENT REPLY).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replies {
    On,
    Off,
    /// Not to the next command.
    SkipNext,
    /// Not to this one.
    SkipThis,
}

/// Replies are kept back until this is done.
pub(crate) type Later = Pin<Box<dyn Future<Output = Come> + Send>>;

/// What came of it.
#[derive(Default)]
pub(crate) struct Come {
    /// Replies of several nodes, in order, and their places among the replies.
    pub(crate) joined: Vec<Joined>,
    /// The last reply, if it was missing.
    pub(crate) last: Vec<u8>,
}

impl Come {
    /// Completes the replies of the turn.
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

/// What a connection remembers between commands.
pub(crate) struct Session {
    pub(crate) client: Arc<Client>,
    pub(crate) access: Access,
    /// The worker that serves it.
    pub(crate) worker: usize,
    pub(crate) replies: Replies,
    /// What comes between MULTI and EXEC.
    pub(crate) transaction: Option<Transaction>,
    /// By place: what is watched twice is watched once, from the first time on.
    pub(crate) watched: HashMap<Place, Seen>,
    /// It watched keys of a data set that another one has replaced: as in Redis they have changed.
    pub(crate) watch_lost: bool,
    /// EXEC is executing: nothing may wait, but for errands, if `may_leave`.
    pub(crate) in_exec: bool,
    /// The transaction keeps no writer out.
    pub(crate) may_leave: bool,
    pub(crate) suspension: Suspension,
    /// The request at hand was not looked at for cold rows: it is to note those that it lacks.
    pub(crate) notes_missing: bool,
    /// What EXEC was told for all its commands when it asked whether changes are taken.
    pub(crate) admitted: Option<Outcome>,
    /// The turn ends after this request: it has kept all writers out, and they are to come in; or
    /// enough waits for other nodes.
    pub(crate) ends_turn: bool,
    pub(crate) subscriptions: Subscriptions,
    /// It has subscriptions.
    pub(crate) listening: bool,
    /// There are messages for it that come right behind the reply at hand: it has sent them itself,
    /// or listens no more.
    pub(crate) messages_due: bool,
    /// The reply at hand is a push, which CLIENT REPLY does not silence.
    pub(crate) reply_is_push: bool,
    /// It is shown what others send.
    pub(crate) monitoring: bool,
    /// It tracks (CLIENT TRACKING).
    pub(crate) tracking: Option<Box<Tracked>>,
    /// The keys that it reads are remembered: it tracks, and not by broadcasts.
    pub(crate) tracks_reads: bool,
    /// All its commands are timed: see `slowlog`.
    pub(crate) timed: bool,
    /// Since the replies were last sent it was admitted to write.
    pub(crate) wrote: bool,
    /// Commit ticket that covers the client's writes up to its last turn, or up to the EXEC that
    /// is executing; 0 before the first write.
    pub(crate) last_write: Ticket,
    /// What its reads have shown since the replies were last sent is safe with this round: see
    /// `visibility.rs`.
    pub(crate) shown: Ticket,
    /// What the replies of this turn wait for, if its last command said so.
    pub(crate) hold: Option<Later>,
    /// What the last command of this turn gives is its reply, which is missing from the others.
    pub(crate) later: bool,
    /// The connection becomes a replica's once the replies are written, if it is `leaving` then;
    /// else it has asked for that.
    pub(crate) replicates: Option<outgoing_link::Place>,
    /// Close once the replies are written.
    pub(crate) leaving: bool,
    /// Its SHUTDOWN was accepted.
    pub(crate) shuts_down: bool,
    /// Where its requests are answered, of one moment: set for each turn, if this is a node of a
    /// cluster.
    pub(crate) topology: Option<Arc<Topology>>,
    /// It reads from replicas, too (READONLY).
    pub(crate) reads_replica: bool,
    /// It is another node of the cluster that asks for parts of pages: see `cluster/gather.rs`.
    pub(crate) is_coordinator: bool,
    /// It has written to slots of other nodes, through this one.
    pub(crate) wrote_elsewhere: bool,
    /// Other nodes answer for ids of the request at hand, which was not refused for another reason.
    pub(crate) is_parted: Cell<bool>,
    /// What of this turn waits for other nodes.
    pub(crate) gathering: Option<Gathering>,
    /// Most arguments of a request.
    pub(crate) most_args: usize,
    /// Most bytes of replies that may wait: the rest of a longer one need not be made, as its
    /// connection ends.
    pub(crate) most_out: usize,
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
            may_leave: false,
            suspension: Suspension::default(),
            notes_missing: false,
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
            wrote_elsewhere: false,
            is_parted: Cell::new(false),
            gathering: None,
            most_args: usize::MAX,
            most_out: usize::MAX,
        }
    }

    /// Whether its inbox is to be looked at.
    #[inline]
    pub(crate) fn listens(&self) -> bool {
        self.listening || self.monitoring || self.client.hears.load(Relaxed)
    }

    /// Its subscriptions, watched keys or prefixes have changed: tells what they take.
    pub(crate) fn note_kept(&self) {
        let watched = self.watched.len() * WATCHED_BYTES;
        let tracked = self.tracking.as_ref().map_or(0, |tracked| tracked.bytes());
        self.client.set_kept(self.subscriptions.bytes() + watched + tracked);
    }

    /// Tells others how many keys are watched, and gives back a large table that is empty.
    pub(crate) fn note_watched(&mut self) {
        if self.watched.is_empty() {
            self.watched = HashMap::new();
        }
        self.client.watching.store(self.watched.len(), Relaxed);
        self.note_kept();
    }

    /// The data set is another one from now on.
    pub(crate) fn lose_watched(&mut self) {
        self.watch_lost |= !self.watched.is_empty();
        self.watched.clear();
        self.note_watched();
    }

    /// The turn is over: its replies wait for other nodes, too, if any was asked.
    pub(crate) fn hold_for_others(&mut self, process: impl FnOnce() -> Arc<Process>) {
        let Some(gathering) = self.gathering.take() else { return };
        let (process, last) = (process(), self.hold.take());
        self.hold = Some(Box::pin(async move {
            let joined = gathering.joined(process).await;
            let last = match last {
                Some(last) => last.await.last,
                None => Vec::new(),
            };
            Come { joined, last }
        }));
    }
}
