//! Publish/subscribe commands.

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Once};
use crate::session::subscriptions::bytes_of;
use crate::session::{Replies, Session};
use node::command::error::{Refusal, refuse};
use node::command::spec::{ALWAYS, NO_KEYS, Outcome, Spec, flag};
use node::roles::node::Node;
use node::runtime::pubsub::{ChannelKind, MAX_CHANNEL, MAX_PATTERN};
use resp::Reply;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Maximum sum of patterns compared with a message and clients that receive the message. Above it,
/// the worker serves other connections before the next request.
const MAX_RECEIVERS_PER_TURN: usize = 256;
/// Estimated cost of a message in nanoseconds ([`effort`](node::runtime::pubsub::Channels::effort))
/// above which another thread delivers the message.
const MAX_PUBLISH_COST_NS: usize = 1_000_000;

const PUBSUB: Group = Group::new("pubsub", "2.0.0", NO_KEYS);
const LISTEN: u32 = ALWAYS | flag::PUBSUB | flag::LISTENER;
const PUBLISH: u32 = flag::PUBSUB | flag::LOADING | flag::STALE | flag::FAST | flag::MAY_REPLICATE;
const QUERY_FLAGS: u32 = ALWAYS | flag::PUBSUB;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    PUBSUB.row("subscribe", -2, LISTEN,
        "channel [channel ...]", Once(|c| subscribe(c, ChannelKind::Channel)),
        "Subscribes to channels.").linear("channels"),
    PUBSUB.row("unsubscribe", -1, LISTEN,
        "[channel [channel ...]]", Once(|c| unsubscribe(c, ChannelKind::Channel)),
        "Unsubscribes from the given channels, or from all.").linear("channels"),
    PUBSUB.row("psubscribe", -2, LISTEN,
        "pattern [pattern ...]", Once(|c| subscribe(c, ChannelKind::Pattern)),
        "Subscribes to all channels that match one of the patterns.").linear("patterns"),
    PUBSUB.row("punsubscribe", -1, LISTEN,
        "[pattern [pattern ...]]", Once(|c| unsubscribe(c, ChannelKind::Pattern)),
        "Unsubscribes from the given patterns, or from all.").linear("patterns"),
    PUBSUB.row("ssubscribe", -2, LISTEN,
        "shardchannel [shardchannel ...]", Once(|c| subscribe(c, ChannelKind::Shard)),
        "Subscribes to shard channels.").since("7.0.0").linear("channels"),
    PUBSUB.row("sunsubscribe", -1, LISTEN,
        "[shardchannel [shardchannel ...]]", Once(|c| unsubscribe(c, ChannelKind::Shard)),
        "Unsubscribes from the given shard channels, or from all.")
        .since("7.0.0").linear("channels"),
    PUBSUB.row("publish", 3, PUBLISH, "channel message", Once(|c| publish(c, ChannelKind::Channel)),
        "Posts a message to a channel. Returns the number of subscribers on this server that \
         received it.")
        .cost(
            "O(N+M) where N is the number of subscribers of the channel and M the number of \
             patterns"),
    PUBSUB.row("spublish", 3, PUBLISH, "shardchannel message",
        Once(|c| publish(c, ChannelKind::Shard)),
        "Posts a message to a shard channel.").since("7.0.0").linear("subscribers of the channel"),
    PUBSUB.container("pubsub", "A container for commands about channels.", &[
        PUBSUB.row("pubsub|channels", -2, QUERY_FLAGS, "[pattern]",
            Once(|c| names(c, ChannelKind::Channel)),
            "Lists the channels with subscribers.").since("2.8.0").linear("channels"),
        PUBSUB.help("pubsub|help").since("6.2.0"),
        PUBSUB.row("pubsub|numpat", 2, QUERY_FLAGS, "", Once(numpat),
            "Returns the number of patterns with subscribers.").since("2.8.0"),
        PUBSUB.row("pubsub|numsub", -2, QUERY_FLAGS,
            "[channel [channel ...]]", Once(|c| counts(c, ChannelKind::Channel)),
            "Returns the number of subscribers of each channel, without patterns.")
            .since("2.8.0").linear("channels"),
        PUBSUB.row("pubsub|shardchannels", -2, QUERY_FLAGS, "[pattern]",
            Once(|c| names(c, ChannelKind::Shard)),
            "Lists the shard channels with subscribers.").since("7.0.0").linear("channels"),
        PUBSUB.row("pubsub|shardnumsub", -2, QUERY_FLAGS,
            "[shardchannel [shardchannel ...]]", Once(|c| counts(c, ChannelKind::Shard)),
            "Returns the number of subscribers of each shard channel.")
            .since("7.0.0").linear("channels"),
    ]).since("2.8.0"),
];

fn words(kind: ChannelKind) -> (&'static [u8], &'static [u8]) {
    match kind {
        ChannelKind::Channel => (b"subscribe", b"unsubscribe"),
        ChannelKind::Pattern => (b"psubscribe", b"punsubscribe"),
        ChannelKind::Shard => (b"ssubscribe", b"sunsubscribe"),
    }
}

fn update_client_counts(session: &mut Session) {
    session.listening = session.subscriptions.any();
    for (count, names) in session.client.subscriptions.iter().zip(&session.subscriptions.names) {
        count.store(names.len(), Relaxed);
    }
    session.update_stored_bytes();
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

fn check_name(kind: ChannelKind, name: &[u8]) -> Outcome {
    let (what, most) = if kind == ChannelKind::Pattern {
        ("pattern", MAX_PATTERN)
    } else {
        ("channel", MAX_CHANNEL)
    };
    if name.len() > most {
        Err(refuse!("ERR {what} too long: at most {most} bytes"))
    } else {
        Ok(())
    }
}

pub(crate) fn check_pattern(pattern: &[u8]) -> Outcome {
    check_name(ChannelKind::Pattern, pattern)
}

fn subscribe(call: &mut Call<'_>, kind: ChannelKind) -> Outcome {
    let names = call.args.from(1);
    let (most, most_bytes) = {
        let server = &call.node.config().server;
        (server.max_subscriptions, server.max_subscription_bytes)
    };
    let own = &call.session.subscriptions;
    if own.of(kind).len() + names.len() > most {
        return Err(refuse!(
            "ERR too many subscriptions: at most {most} of each kind per client (max_subscriptions)"
        ));
    }
    names.iter().try_for_each(|name| check_name(kind, name))?;
    let new = names.iter().filter(|name| !own.of(kind).contains(*name));
    if own.bytes() + new.map(bytes_of).sum::<usize>() > most_bytes {
        return Err(refuse!(
            "ERR the subscriptions of a client are limited to {most_bytes} bytes \
             (max_subscriptions_memory)"
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
    mark_as_push(call.session);
    Ok(())
}

fn unsubscribe(call: &mut Call<'_>, kind: ChannelKind) -> Outcome {
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
    // Messages received so far must precede the confirmation. Inside EXEC, messages must not be
    // mixed with the replies, so they follow the whole reply.
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
    mark_as_push(call.session);
    Ok(())
}

/// Removes all subscriptions without confirmation. Called by RESET and when the connection closes.
pub(crate) fn forget(session: &mut Session, node: &Node) {
    let own = std::mem::take(&mut session.subscriptions);
    for (kind, names) in ChannelKind::ALL.into_iter().zip(own.names) {
        for name in names {
            node.channels.unsubscribe(kind, &name, session.client.id);
        }
    }
    update_client_counts(session);
}

/// Records that the reply of [`subscribe`] or [`unsubscribe`] is a push message, which CLIENT REPLY
/// OFF must not remove.
fn mark_as_push(session: &mut Session) {
    update_client_counts(session);
    session.reply_is_push = session.replies != Replies::On && !session.in_exec;
}

fn publish(call: &mut Call<'_>, kind: ChannelKind) -> Outcome {
    check_name(kind, call.args.at(1))?;
    if call.args.at(1) == b"__sentinel__:hello" {
        crate::commands::replication::handle_sentinel_hello(
            &call.node,
            &call.session.client,
            call.args.at(2),
        );
    }
    let (channel, message) = (call.args.at(1), call.args.at(2));
    let most = call.node.config().server.max_push_buffer_bytes;
    let channels = &call.node.channels;
    // Inside EXEC, the limits of the transaction already include the cost of its messages.
    if channels.effort(kind, channel, message) > MAX_PUBLISH_COST_NS && !call.session.in_exec {
        let (channel, message) = (channel.to_vec(), message.to_vec());
        call.answer_without_engines(move |node, reply| {
            reply.count(node.channels.publish(kind, &channel, &message, most));
            Ok(())
        });
        return Ok(());
    }
    // Each pattern is compared with the message and counts as one receiver.
    let patterns =
        if kind == ChannelKind::Channel { channels.len(ChannelKind::Pattern) } else { 0 };
    let got = channels.publish(kind, channel, message, most);
    // As in Redis 7.2, a client receives its own message after the reply. Inside EXEC, it receives
    // the message after the whole reply of EXEC.
    call.session.messages_due |= call.session.listens();
    call.session.ends_turn |= patterns + got > MAX_RECEIVERS_PER_TURN;
    call.reply.count(got);
    Ok(())
}

fn names(call: &mut Call<'_>, kind: ChannelKind) -> Outcome {
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

fn counts(call: &mut Call<'_>, kind: ChannelKind) -> Outcome {
    let names = call.args.from(2);
    call.reply.array(names.len() * 2);
    for name in names.iter() {
        call.reply.bulk(name);
        call.reply.count(call.node.channels.count(kind, name));
    }
    Ok(())
}

fn numpat(call: &mut Call<'_>) -> Outcome {
    call.reply.count(call.node.channels.len(ChannelKind::Pattern));
    Ok(())
}

/// Returns the error for a command that a RESP2 subscriber may not send. Such a client could not
/// distinguish replies from messages.
pub(crate) fn refuse_while_listening(spec: &Spec) -> Refusal {
    refuse!(
        "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are \
         allowed in this context",
        spec.name
    )
}
