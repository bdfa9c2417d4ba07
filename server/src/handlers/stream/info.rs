//! XINFO.

use super::{Found, Log, count, scope};
use crate::command::error::{Printable, Refusal, refuse};
use crate::command::spec::Outcome;
use crate::handlers::Handler;
use crate::handlers::call::Call;
use crate::handlers::help::help;
use crate::roles::node::Now;
use dataset::changes::{Id, Scope, Start};
use resp::Reply;

pub(crate) const RUN: &[(&str, Handler)] =
    &[("xinfo", help), ("xinfo|stream", stream), ("xinfo|help", help)];

const NO_KEY: Refusal = Refusal::fixed(b"ERR no such key");

/// What XINFO STREAM asks for: how many entries FULL shows, if it is that.
fn parse(call: &Call<'_>) -> Result<(Scope, Option<usize>), Refusal> {
    let words = call.args.len();
    let is = |at: usize, word: &[u8]| call.args.at(at).eq_ignore_ascii_case(word);
    let full = match words {
        3 => None,
        4 if is(3, b"full") => Some(10),
        6 if is(3, b"full") && is(4, b"count") => {
            // As in Redis 0 is all of them, of which a reply has so many.
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
    let number = |reply: &mut Reply<'_>, name: &str, number: u64| {
        reply.bulk(name.as_bytes());
        reply.int(i64::try_from(number).unwrap_or(i64::MAX));
    };
    number(reply, "length", tally.entries);
    // A segment of the log is what comes closest.
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
            number(reply, "groups", 0);
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
            reply.array(0);
            Ok(())
        }
    }
}

/// The entry with this id, or nil.
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
