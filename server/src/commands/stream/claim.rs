//! XCLAIM and XAUTOCLAIM: transfer pending entries to another consumer.

use super::group::{admitted, ensure_consumer, groups, known, named};
use super::{Log, MAX_ENTRIES, id, range::Bound};
use super::{READ_COST, STREAM};
use crate::commands::call::Call;
use crate::commands::command::{Command, Run::Once};
use dataset::changes::{Id, Start};
use dataset::clock::unix_ms;
use dataset::groups::{Cursor, Group, Key};
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::{Outcome, flag};
use node::roles::node::Now;
use resp::Reply;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    STREAM.row("xclaim", -6, flag::WRITE | flag::FAST,
        "key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] \
         [RETRYCOUNT count] [FORCE] [JUSTID] [LASTID lastid]", Once(xclaim),
        "Transfers pending entries to a consumer if they have been idle for at least min-idle-time \
         milliseconds.")
        .cost(READ_COST).tips(&["nondeterministic_output"]),
    STREAM.row("xautoclaim", -6, flag::WRITE | flag::FAST,
        "key group consumer min-idle-time start [COUNT count] [JUSTID]", Once(xautoclaim),
        "Transfers idle pending entries to a consumer, beginning at the id start. Returns the next \
         start id, the entries, and the ids of pending entries that \
         the log no longer contains.").since("6.2.0")
        .cost(READ_COST).uses("RW delete").tips(&["nondeterministic_output"]),
];

/// Id and encoded reply of an entry.
type Entry = (Id, Vec<u8>);

struct Claim {
    key: Key,
    consumer: Vec<u8>,
    min_idle_ms: u64,
    /// Delivery time to record.
    time_ms: u64,
    now_ms: u64,
    times: Option<u64>,
    force: bool,
    just_id: bool,
}

fn number(text: &[u8], what: &str, command: &str) -> Result<u64, Refusal> {
    let number = resp::integer(text)
        .ok_or_else(|| refuse!("ERR Invalid {what} for {}", command.to_ascii_uppercase()))?;
    Ok(u64::try_from(number).unwrap_or(0))
}

impl Claim {
    fn read(call: &Call<'_>) -> Result<Claim, Refusal> {
        let min_idle_ms = number(call.args.at(4), "min-idle-time argument", call.spec.name)?;
        let now_ms = unix_ms();
        Ok(Claim {
            key: known(call)?,
            consumer: named(call.args.at(3))?,
            min_idle_ms,
            time_ms: now_ms,
            now_ms,
            times: None,
            force: false,
            just_id: false,
        })
    }

    fn may(&self, group: &Group, id: Id) -> bool {
        group.pending.get(&id).map_or(self.force, |pending| {
            self.now_ms.saturating_sub(pending.time_ms) >= self.min_idle_ms
        })
    }

    /// Claims the eligible entries and returns them in encoded form. Also returns the ids of
    /// entries that the log no longer contains, and removes these ids from the pending list.
    fn claim_entries(&self, node: Now<'_>, ids: &[Id]) -> Result<(Vec<Entry>, Vec<Id>), Refusal> {
        let log = Log::new(node);
        let wanted: Vec<Id> = groups(node).with(&self.key, |group| {
            let Some(group) = group else { return Vec::new() };
            ids.iter().copied().filter(|id| self.may(group, *id)).collect()
        });
        let mut read = Vec::new();
        for id in wanted {
            read.push((id, log.entry(self.key.0, id)?));
        }
        let most = node.config().changes.max_pending;
        let (mut claimed, mut gone) = (Vec::new(), Vec::new());
        node.current.change_group(
            &self.key,
            || admitted(node),
            |group| {
                let Some(group) = group.as_mut() else { return Ok(()) };
                for (id, bytes) in read {
                    let Some(bytes) = bytes else {
                        if group.acknowledge(id) {
                            gone.push(id);
                        }
                        continue;
                    };
                    // Check again, because another consumer may have claimed the entry during the
                    // read.
                    let is_new = !group.pending.contains_key(&id);
                    if !self.may(group, id) || is_new && group.pending.len() >= most {
                        continue;
                    }
                    ensure_consumer(node, group, &self.consumer)?;
                    let (consumer, _) = group.consumer(&self.consumer, self.now_ms);
                    let before = group.pending.get(&id).map_or(0, |pending| pending.times);
                    let counted = before + u64::from(!self.just_id);
                    let times = self.times.unwrap_or(counted);
                    group.deliver(id, &consumer, self.time_ms, times);
                    claimed.push((id, bytes));
                }
                Ok::<_, Refusal>(())
            },
        )??;
        Ok((claimed, gone))
    }

    fn write(&self, claimed: &[Entry], reply: &mut Reply<'_>) {
        reply.array(claimed.len());
        for (id, bytes) in claimed {
            if self.just_id {
                reply.bulk(id.to_string().as_bytes());
            } else {
                reply.bytes().extend_from_slice(bytes);
            }
        }
    }
}

fn xclaim(call: &mut Call<'_>) -> Outcome {
    let mut claim = Claim::read(call)?;
    let args = call.args;
    let mut ids = Vec::new();
    let mut at = 5;
    // The list of ids ends at the first argument that is not an id.
    while at < args.len()
        && let Ok(id) = id(args.at(at), 0)
    {
        ids.push(id);
        at += 1;
    }
    if ids.is_empty() {
        return Err(super::INVALID_ID);
    }
    let mut last = None;
    while at < args.len() {
        let word = args.at(at);
        let is = |option: &[u8]| word.eq_ignore_ascii_case(option) && at + 1 < args.len();
        let own = |what: &str| number(args.at(at + 1), what, "xclaim");
        if word.eq_ignore_ascii_case(b"force") {
            claim.force = true;
            at += 1;
            continue;
        }
        if word.eq_ignore_ascii_case(b"justid") {
            claim.just_id = true;
            at += 1;
            continue;
        }
        if is(b"idle") {
            claim.time_ms = claim.now_ms.saturating_sub(own("IDLE option argument")?);
        } else if is(b"time") {
            // A delivery time cannot be in the future.
            claim.time_ms = own("TIME option argument")?.min(claim.now_ms);
        } else if is(b"retrycount") {
            claim.times = Some(own("RETRYCOUNT option argument")?);
        } else if is(b"lastid") {
            last = Some(id(args.at(at + 1), 0)?);
        } else {
            return Err(refuse!("ERR Unrecognized XCLAIM option '{}'", Printable(word)));
        }
        at += 2;
    }
    if ids.len() > MAX_ENTRIES {
        return Err(refuse!("ERR at most {MAX_ENTRIES} entries can be claimed at once"));
    }
    call.answer_later(move |node, reply| {
        if let Some(last) = last {
            advance(node, &claim.key, last)?;
        }
        let (claimed, _) = claim.claim_entries(node, &ids)?;
        claim.write(&claimed, reply);
        Ok(())
    })
}

/// Option LASTID: advances the group's cursor if the id is greater.
fn advance(node: Now<'_>, key: &Key, last: Id) -> Outcome {
    let is_ahead = |group: &Group| group.next.last() < last;
    if !groups(node).with(key, |group| group.is_some_and(|group| is_ahead(group))) {
        return Ok(());
    }
    if Log::new(node).find(key.0, Start::After(last))?.is_none() {
        return Err(super::refusal(
            &dataset::changes::ChangeReadError::Ahead,
            &last.to_string(),
            None,
        ));
    }
    node.current.change_group(
        key,
        || admitted(node),
        |group| {
            if let Some(group) = group.as_mut().filter(|group| is_ahead(group)) {
                (group.next, group.place) = (Cursor::After(last), None);
            }
        },
    )
}

fn xautoclaim(call: &mut Call<'_>) -> Outcome {
    let args = call.args;
    let min_idle = number(args.at(4), "min-idle-time argument", call.spec.name)?;
    let start = Bound::low(args.at(5))?;
    let (mut count, mut just_id) = (100, false);
    let mut options = args.from(6).iter();
    while let Some(option) = options.next() {
        if option.eq_ignore_ascii_case(b"justid") {
            just_id = true;
        } else if option.eq_ignore_ascii_case(b"count") {
            let text = options.next().ok_or(Refusal::SYNTAX)?;
            let asked = resp::integer(text).and_then(|asked| usize::try_from(asked).ok());
            count = asked
                .filter(|asked| *asked > 0)
                .ok_or_else(|| refuse!("ERR COUNT must be > 0"))?
                .min(MAX_ENTRIES);
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    let claim = Claim { just_id, min_idle_ms: min_idle, ..Claim::read(call)? };
    call.answer_later(move |node, reply| {
        // As in Redis, at most ten times COUNT entries are examined.
        let looked_at = count.saturating_mul(10);
        let (ids, next) = groups(node).with(&claim.key, |group| {
            let Some(group) = group else { return (Vec::new(), None) };
            let mut ids = Vec::new();
            let mut pending = group.pending.keys().copied().skip_while(|id| *id < start);
            for id in pending.by_ref().take(looked_at) {
                if claim.may(group, id) {
                    ids.push(id);
                }
                if ids.len() == count {
                    break;
                }
            }
            (ids, pending.next())
        });
        let (claimed, gone) = claim.claim_entries(node, &ids)?;
        reply.array(3);
        reply.bulk(next.unwrap_or(Id::MIN).to_string().as_bytes());
        claim.write(&claimed, reply);
        reply.array(gone.len());
        gone.iter().for_each(|id| reply.bulk(id.to_string().as_bytes()));
        Ok(())
    })
}
