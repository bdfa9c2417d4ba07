//! Channels: SUBSCRIBE, PUBLISH and their like.

use crate::handlers::Handler;
use crate::handlers::call::Call;
use crate::handlers::help::help;
use crate::handlers::session::{Replies, Session};
use node::acl::User;
use node::command::error::{Refusal, refuse};
use node::command::spec::{Outcome, Spec};
use node::roles::node::Node;
use node::runtime::pubsub::{Kind, MAX_CHANNEL, MAX_PATTERN};
use resp::Reply;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A message that is held against more patterns, or goes to more clients, is the last of its turn.
const MOST_OF_TURN: usize = 256;
/// A message that takes more nanoseconds ([`effort`](node::runtime::pubsub::Channels::effort)) is
/// delivered by another thread.
const MOST_EFFORT: usize = 1_000_000;

pub(crate) const RUN: &[(&str, Handler)] = &[
    ("subscribe", |c| subscribe(c, Kind::Channel)),
    ("unsubscribe", |c| unsubscribe(c, Kind::Channel)),
    ("psubscribe", |c| subscribe(c, Kind::Pattern)),
    ("punsubscribe", |c| unsubscribe(c, Kind::Pattern)),
    ("ssubscribe", |c| subscribe(c, Kind::Shard)),
    ("sunsubscribe", |c| unsubscribe(c, Kind::Shard)),
    ("publish", |c| publish(c, Kind::Channel)),
    ("spublish", |c| publish(c, Kind::Shard)),
    ("pubsub|channels", |c| names(c, Kind::Channel)),
    ("pubsub|help", help),
    ("pubsub|numpat", numpat),
    ("pubsub|numsub", |c| counts(c, Kind::Channel)),
    ("pubsub|shardchannels", |c| names(c, Kind::Shard)),
    ("pubsub|shardnumsub", |c| counts(c, Kind::Shard)),
    ("pubsub", help),
];

/// Bytes of one subscription beside its name: its places in the client's list and in the registry,
/// rounded up.
const SUBSCRIPTION_BYTES: usize = 352;

/// What one connection listens to, by kind.
#[derive(Default)]
pub(crate) struct Subscriptions {
    names: [BTreeSet<Arc<[u8]>>; 3],
    /// Bytes that they take; those of a name that others listen to as well count in full.
    bytes: usize,
}

impl Subscriptions {
    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.names.iter().any(|names| !names.is_empty())
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a user may hear all of them.
    pub(crate) fn are_allowed(&self, user: &User) -> bool {
        Kind::ALL.iter().all(|&kind| self.of(kind).iter().all(|name| user.may_hear(kind, name)))
    }

    fn of(&self, kind: Kind) -> &BTreeSet<Arc<[u8]>> {
        &self.names[kind as usize]
    }

    fn insert(&mut self, kind: Kind, name: Arc<[u8]>) {
        let bytes = bytes_of(&name);
        if self.names[kind as usize].insert(name) {
            self.bytes += bytes;
        }
    }

    fn remove(&mut self, kind: Kind, name: &[u8]) -> bool {
        let was_there = self.names[kind as usize].remove(name);
        if was_there {
            self.bytes -= bytes_of(name);
        }
        was_there
    }

    /// What replies count: channels and patterns together, shard channels by themselves.
    fn counted(&self, kind: Kind) -> usize {
        match kind {
            Kind::Shard => self.of(Kind::Shard).len(),
            _ => self.of(Kind::Channel).len() + self.of(Kind::Pattern).len(),
        }
    }
}

fn bytes_of(name: &[u8]) -> usize {
    SUBSCRIPTION_BYTES + name.len()
}

/// What confirms a subscription, and its end.
fn words(kind: Kind) -> (&'static [u8], &'static [u8]) {
    match kind {
        Kind::Channel => (b"subscribe", b"unsubscribe"),
        Kind::Pattern => (b"psubscribe", b"punsubscribe"),
        Kind::Shard => (b"ssubscribe", b"sunsubscribe"),
    }
}

fn note(session: &mut Session) {
    session.listening = session.subscriptions.any();
    for (count, names) in session.client.subscriptions.iter().zip(&session.subscriptions.names) {
        count.store(names.len(), Relaxed);
    }
    session.note_kept();
}

fn confirm(reply: &mut Reply<'_>, word: &[u8], name: Option<&[u8]>, count: usize) {
    reply.push(3);
    reply.bulk(word);
    match name {
        Some(name) => reply.bulk(name),
        None => reply.null(),
    }
    reply.count(count);
}

fn check_name(kind: Kind, name: &[u8]) -> Outcome {
    let (what, most) =
        if kind == Kind::Pattern { ("pattern", MAX_PATTERN) } else { ("channel", MAX_CHANNEL) };
    if name.len() > most { Err(refuse!("ERR a {what} may have {most} bytes")) } else { Ok(()) }
}

/// Whether a client's pattern is short enough to be held against many names.
pub(crate) fn check_pattern(pattern: &[u8]) -> Outcome {
    check_name(Kind::Pattern, pattern)
}

fn subscribe(call: &mut Call<'_>, kind: Kind) -> Outcome {
    let names = call.args.from(1);
    let (most, most_bytes) = {
        let server = &call.node.config().server;
        (server.max_subscriptions, server.max_subscription_bytes)
    };
    let own = &call.session.subscriptions;
    if own.of(kind).len() + names.len() > most {
        return Err(refuse!(
            "ERR a client may have {most} subscriptions of a kind (max_subscriptions)"
        ));
    }
    names.iter().try_for_each(|name| check_name(kind, name))?;
    let new = names.iter().filter(|name| !own.of(kind).contains(*name));
    if own.bytes() + new.map(bytes_of).sum::<usize>() > most_bytes {
        return Err(refuse!(
            "ERR a client's subscriptions may take {most_bytes} bytes (max_subscription_bytes)"
        ));
    }
    for name in names.iter() {
        if !call.session.subscriptions.of(kind).contains(name) {
            let name = call.node.channels.subscribe(kind, name, &call.session.client);
            call.session.subscriptions.insert(kind, name);
        }
        confirm(
            &mut call.reply,
            words(kind).0,
            Some(name),
            call.session.subscriptions.counted(kind),
        );
    }
    note_pushed(call.session);
    Ok(())
}

fn unsubscribe(call: &mut Call<'_>, kind: Kind) -> Outcome {
    let own = &mut call.session.subscriptions;
    let names: Vec<Arc<[u8]>> = match call.args.len() {
        1 => own.of(kind).iter().cloned().collect(),
        _ => call.args.from(1).iter().map(Arc::from).collect(),
    };
    let mut ended = Vec::with_capacity(names.len());
    for name in names {
        if own.remove(kind, &name) {
            call.node.channels.unsubscribe(kind, &name, call.session.client.id);
        }
        ended.push((name, own.counted(kind)));
    }
    let left = own.counted(kind);
    // What came before is not to arrive after it has ended; but no message is an element of what
    // EXEC answers.
    if call.session.in_exec {
        call.session.messages_due = true;
    } else {
        call.session.client.inbox.take(call.reply.bytes(), None);
    }
    if ended.is_empty() {
        confirm(&mut call.reply, words(kind).1, None, left);
    }
    for (name, left) in ended {
        confirm(&mut call.reply, words(kind).1, Some(&name), left);
    }
    note_pushed(call.session);
    Ok(())
}

/// Ends all of a connection's subscriptions without a word: RESET, and its end.
pub(crate) fn forget(session: &mut Session, node: &Node) {
    let own = std::mem::take(&mut session.subscriptions);
    for (kind, names) in Kind::ALL.into_iter().zip(own.names) {
        for name in names {
            node.channels.unsubscribe(kind, &name, session.client.id);
        }
    }
    note(session);
}

/// What [`subscribe`] and [`unsubscribe`] answer are pushes.
fn note_pushed(session: &mut Session) {
    note(session);
    session.reply_is_push = session.replies != Replies::On && !session.in_exec;
}

fn publish(call: &mut Call<'_>, kind: Kind) -> Outcome {
    check_name(kind, call.args.at(1))?;
    if call.args.at(1) == b"__sentinel__:hello" {
        crate::handlers::cluster::replication::heard_sentinel(
            &call.node,
            &call.session.client,
            call.args.at(2),
        );
    }
    let (channel, message) = (call.args.at(1), call.args.at(2));
    let most = call.node.config().server.max_push_buffer_bytes;
    let channels = &call.node.channels;
    // EXEC has counted it among its arguments.
    if channels.effort(kind, channel, message) > MOST_EFFORT && !call.session.in_exec {
        let (channel, message) = (channel.to_vec(), message.to_vec());
        call.answer_apart(move |node, reply| {
            reply.count(node.channels.publish(kind, &channel, &message, most));
            Ok(())
        });
        return Ok(());
    }
    // Each pattern is looked at: then it is the turn of others.
    let patterns = if kind == Kind::Channel { channels.len(Kind::Pattern) } else { 0 };
    let got = channels.publish(kind, channel, message, most);
    // As in Redis since 7.2 its own message comes behind the reply, and behind all of EXEC's.
    call.session.messages_due |= call.session.listens();
    call.session.ends_turn |= patterns + got > MOST_OF_TURN;
    call.reply.count(got);
    Ok(())
}

fn names(call: &mut Call<'_>, kind: Kind) -> Outcome {
    if call.args.len() > 3 {
        return Err(call.wrong_subcommand());
    }
    let pattern = (call.args.len() == 3).then(|| call.args.at(2));
    pattern.map_or(Ok(()), check_pattern)?;
    let names = call.node.channels.names(kind, pattern);
    call.reply.array(names.len());
    names.iter().for_each(|name| call.reply.bulk(name));
    Ok(())
}

fn counts(call: &mut Call<'_>, kind: Kind) -> Outcome {
    let names = call.args.from(2);
    call.reply.array(names.len() * 2);
    for name in names.iter() {
        call.reply.bulk(name);
        call.reply.count(call.node.channels.count(kind, name));
    }
    Ok(())
}

fn numpat(call: &mut Call<'_>) -> Outcome {
    call.reply.count(call.node.channels.len(Kind::Pattern));
    Ok(())
}

/// Refuses what a client that listens must not send in RESP2: it could not tell replies from
/// messages.
pub(crate) fn refuse_while_listening(spec: &Spec) -> Refusal {
    refuse!(
        "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are \
         allowed in this context",
        spec.name
    )
}
