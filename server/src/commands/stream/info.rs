//! XINFO: information about streams, groups and consumers.

use super::group::{groups, no_group};
use super::{Found, Log, count, scope};
use super::{LENGTH_ITEMS, STREAM};
use crate::commands::call::Call;
use crate::commands::command::{Command, Run::Once};
use dataset::changes::{Id, Scope, Start};
use dataset::clock::unix_ms;
use dataset::groups::Group;
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::{Outcome, SECOND_KEY, flag};
use node::roles::node::Now;
use resp::Reply;

#[rustfmt::skip]
pub(crate) const XINFO: &[Command] = &[
    STREAM.container("xinfo", "A container for commands about streams.", &[
        STREAM.row("xinfo|stream", -3, flag::READONLY, "key [FULL [COUNT count]]", Once(stream),
            "Returns the length and the first and last entry of a stream. FULL also returns its \
             groups and entries.")
            .keys(SECOND_KEY)
            .linear(LENGTH_ITEMS),
        STREAM.row("xinfo|groups", 3, flag::READONLY, "key", Once(groups_of),
            "Returns the groups of a stream, each with its last delivered id and its lag.")
            .keys(SECOND_KEY)
            .linear(LENGTH_ITEMS),
        STREAM.row("xinfo|consumers", 4, flag::READONLY, "key group", Once(consumers),
            "Returns the consumers of a group, each with the number of milliseconds since its last \
             activity.")
            .keys(SECOND_KEY).linear("consumers"),
        STREAM.help("xinfo|help"),
    ]),
];

const NO_KEY: Refusal = Refusal::fixed(b"ERR no such key");

/// Parses XINFO STREAM. Returns the COUNT of option FULL, if FULL is given.
fn parse(call: &Call<'_>) -> Result<(Scope, Option<usize>), Refusal> {
    let words = call.args.len();
    let is = |at: usize, word: &[u8]| call.args.at(at).eq_ignore_ascii_case(word);
    let full = match words {
        3 => None,
        4 if is(3, b"full") => Some(10),
        6 if is(3, b"full") && is(4, b"count") => {
            // As in Redis, 0 means no limit. The maximum number of entries in a reply still
            // applies.
            Some(count(Some(call.args.at(5)))?)
        }
        _ => {
            return Err(refuse!(
                "ERR unknown subcommand or wrong number of arguments for '{}'. Try XINFO HELP.",
                Printable(call.args.at(1))
            ));
        }
    };
    Ok((scope(call.node, call.args.at(2))?.ok_or(NO_KEY)?, full))
}

fn stream(call: &mut Call<'_>) -> Outcome {
    let (scope, full) = parse(call)?;
    call.answer_later(move |node, reply| write(node, scope, full, reply))
}

fn write(node: Now<'_>, scope: Scope, full: Option<usize>, reply: &mut Reply<'_>) -> Outcome {
    let log = Log::new(node);
    let tally = log.tally(scope)?;
    let (segments, _) = log.reach()?;
    let (first, last) = tally.ends.unwrap_or_default();
    reply.map(if full.is_some() { 9 } else { 10 });
    number(reply, "length", tally.entries);
    // Log segments are the closest equivalent of radix tree nodes.
    number(reply, "radix-tree-keys", segments as u64);
    number(reply, "radix-tree-nodes", segments as u64 + 1);
    let id = |reply: &mut Reply<'_>, name: &str, id: Id| {
        reply.bulk(name.as_bytes());
        reply.bulk(id.to_string().as_bytes());
    };
    id(reply, "last-generated-id", last);
    id(reply, "max-deleted-entry-id", Id::MIN);
    number(reply, "entries-added", tally.entries);
    id(reply, "recorded-first-entry-id", first);
    match full {
        None => {
            number(reply, "groups", groups(node).of(scope).len() as u64);
            reply.bulk(b"first-entry");
            write_one(log, scope, tally.ends.map(|ends| ends.0), reply)?;
            reply.bulk(b"last-entry");
            write_one(log, scope, tally.ends.map(|ends| ends.1), reply)
        }
        Some(most) => {
            let mut found = Found::default();
            if let Some(mut place) = log.find(scope, Start::Oldest)? {
                log.collect(scope, &mut place, most, &|| true, &mut found)?;
            }
            reply.bulk(b"entries");
            found.write(reply);
            reply.bulk(b"groups");
            let groups = groups(node).of(scope);
            reply.array(groups.len());
            for (name, group) in groups {
                write_whole(log, scope, (&name, &group), most, reply)?;
            }
            Ok(())
        }
    }
}

fn number(reply: &mut Reply<'_>, name: &str, number: u64) {
    reply.bulk(name.as_bytes());
    reply.int(i64::try_from(number).unwrap_or(i64::MAX));
}

/// Writes the position and the lag of a group. The lag is nil if the log no longer contains the
/// position.
fn write_progress(log: Log<'_>, scope: Scope, group: &Group, reply: &mut Reply<'_>) -> Outcome {
    reply.bulk(b"last-delivered-id");
    reply.bulk(log.delivered(scope, group.next)?.to_string().as_bytes());
    // Entries are not numbered, so this value is unknown.
    reply.bulk(b"entries-read");
    reply.null();
    reply.bulk(b"lag");
    match log.lag(scope, group.next.start())? {
        Some(lag) => reply.int(i64::try_from(lag).unwrap_or(i64::MAX)),
        None => reply.null(),
    }
    Ok(())
}

/// Writes a group for XINFO STREAM FULL.
fn write_whole(
    log: Log<'_>,
    scope: Scope,
    (name, group): (&[u8], &Group),
    most: usize,
    reply: &mut Reply<'_>,
) -> Outcome {
    reply.map(7);
    reply.bulk(b"name");
    reply.bulk(name);
    write_progress(log, scope, group, reply)?;
    number(reply, "pel-count", group.pending.len() as u64);
    reply.bulk(b"pending");
    reply.array(group.pending.len().min(most));
    for (id, pending) in group.pending.iter().take(most) {
        reply.array(4);
        reply.bulk(id.to_string().as_bytes());
        reply.bulk(&pending.consumer);
        reply.int(pending.time_ms.cast_signed());
        reply.int(pending.times.cast_signed());
    }
    reply.bulk(b"consumers");
    reply.array(group.consumers.len());
    for (name, consumer) in &group.consumers {
        reply.map(4);
        reply.bulk(b"name");
        reply.bulk(name);
        number(reply, "seen-time", consumer.seen_ms);
        number(reply, "pel-count", consumer.pending.len() as u64);
        reply.bulk(b"pending");
        reply.array(consumer.pending.len().min(most));
        for id in consumer.pending.iter().take(most) {
            let (time_ms, times) =
                group.pending.get(id).map_or((0, 0), |pending| (pending.time_ms, pending.times));
            reply.array(3);
            reply.bulk(id.to_string().as_bytes());
            reply.int(time_ms.cast_signed());
            reply.int(times.cast_signed());
        }
    }
    Ok(())
}

fn groups_of(call: &mut Call<'_>) -> Outcome {
    let scope = scope(call.node, call.args.at(2))?.ok_or(NO_KEY)?;
    call.answer_later(move |node, reply| {
        let log = Log::new(node);
        let groups = groups(node).of(scope);
        reply.array(groups.len());
        for (name, group) in groups {
            reply.map(6);
            reply.bulk(b"name");
            reply.bulk(&name);
            number(reply, "consumers", group.consumers.len() as u64);
            number(reply, "pending", group.pending.len() as u64);
            write_progress(log, scope, &group, reply)?;
        }
        Ok(())
    })
}

fn consumers(call: &mut Call<'_>) -> Outcome {
    let scope = scope(call.node, call.args.at(2))?.ok_or(NO_KEY)?;
    let key = (scope, call.args.at(3).to_vec());
    let consumers = groups(call.node).with(&key, |group| {
        group.map(|group| {
            let all = group.consumers.iter();
            all.map(|(name, c)| (name.clone(), c.pending.len(), c.seen_ms)).collect::<Vec<_>>()
        })
    });
    let consumers = consumers.ok_or_else(|| no_group(call))?;
    let now_ms = unix_ms();
    call.reply.array(consumers.len());
    for (name, pending, seen_ms) in consumers {
        call.reply.map(3);
        call.reply.bulk(b"name");
        call.reply.bulk(&name);
        number(&mut call.reply, "pending", pending as u64);
        number(&mut call.reply, "idle", now_ms.saturating_sub(seen_ms));
    }
    Ok(())
}

fn write_one(log: Log<'_>, scope: Scope, id: Option<Id>, reply: &mut Reply<'_>) -> Outcome {
    let mut found = Found::default();
    if let Some(id) = id
        && let Some(mut place) = log.find(scope, Start::At(id))?
    {
        log.collect(scope, &mut place, 1, &|| true, &mut found)?;
    }
    if found.count == 0 {
        reply.null();
    } else {
        reply.bytes().extend_from_slice(&found.bytes);
    }
    Ok(())
}
