//! Consumer groups: XGROUP, XACK, XPENDING.

use super::STREAM;
use super::{INVALID_ID, Log, MAX_ENTRIES, id, range::Bound, scope};
use crate::commands::call::{Call, integer};
use crate::commands::command::{Command, Run::Once};
use dataset::changes::{Change, ChangeReadError, Id, Scope};
use dataset::clock::unix_ms;
use dataset::groups::{Cursor, Group, Groups, Key};
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::{Outcome, SECOND_KEY, flag};
use node::roles::node::Now;

#[rustfmt::skip]
pub(crate) const XGROUP: &[Command] = &[
    STREAM.container("xgroup", "A container for commands about consumer groups.", &[
        STREAM.row("xgroup|create", -5, flag::WRITE | flag::DENYOOM,
            "key groupname <id|$> [MKSTREAM] [ENTRIESREAD entries-read]", Once(create),
            "Creates a group that starts after an id; `$` is the id of the newest entry. Fails \
             with PARTED if the id is not part of this server's history, and with TRIMMED if the \
             log no longer contains it.")
            .keys(SECOND_KEY),
        STREAM.row("xgroup|setid", -5, flag::WRITE,
            "key groupname <id|$> [ENTRIESREAD entries-read]", Once(set_id),
            "Sets the last delivered id of a group.").keys(SECOND_KEY),
        STREAM.row("xgroup|destroy", 4, flag::WRITE, "key groupname", Once(destroy),
            "Deletes a group. Returns 1 if it existed.").keys(SECOND_KEY),
        STREAM.row("xgroup|createconsumer", 5, flag::WRITE | flag::DENYOOM,
            "key groupname consumername", Once(create_consumer),
            "Creates a consumer. The first XREADGROUP of a consumer also creates it. Returns 1 if \
             it is new.")
            .keys(SECOND_KEY).since("6.2.0"),
        STREAM.row("xgroup|delconsumer", 5, flag::WRITE,
            "key groupname consumername", Once(delete_consumer),
            "Deletes a consumer and its pending entries. Returns the number of deleted pending \
             entries.")
            .keys(SECOND_KEY).linear("pending entries"),
        STREAM.help("xgroup|help"),
    ]),
];

#[rustfmt::skip]
pub(crate) const PENDING: &[Command] = &[
    STREAM.row("xack", -4, flag::WRITE | flag::FAST, "key group id [id ...]", Once(xack),
        "Acknowledges entries of a group. Returns the number of entries that were pending.")
        .linear("ids"),
    STREAM.row("xpending", -3, flag::READONLY,
        "key group [[IDLE min-idle-time] start end count [consumer]]", Once(xpending),
        "Returns a summary of the pending entries: count, first and last id, and consumers. With \
         start, end and count, returns the entries.")
        .linear("pending entries").tips(&["nondeterministic_output"]),
];

const MAX_NAME_BYTES: usize = 512;

const NO_KEY: Refusal = Refusal::fixed(
    b"ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to \
      use the MKSTREAM option to create an empty stream automatically.",
);

/// Returns an error if the node accepts no writes.
pub(super) fn admitted(node: Now<'_>) -> Outcome {
    node.refusal().map_or(Ok(()), Err)
}

pub(super) fn named(name: &[u8]) -> Result<Vec<u8>, Refusal> {
    if name.len() > MAX_NAME_BYTES {
        return Err(refuse!(
            "ERR name of a group or consumer too long: at most {MAX_NAME_BYTES} bytes"
        ));
    }
    Ok(name.to_vec())
}

/// Creates a consumer if needed, up to the maximum number of consumers. Returns whether the
/// consumer is new.
pub(super) fn ensure_consumer(
    node: Now<'_>,
    group: &mut Group,
    name: &[u8],
) -> Result<bool, Refusal> {
    let most = node.config().changes.max_consumers;
    if !group.consumers.contains_key(name) && group.consumers.len() >= most {
        return Err(refuse!(
            "ERR the group has {most} consumers, the maximum (changes.max_consumers): remove one \
             with XGROUP DELCONSUMER"
        ));
    }
    Ok(group.consumer(name, unix_ms()).1)
}

fn key(call: &Call<'_>) -> Result<Key, Refusal> {
    let scope = scope(call.node, call.args.at(2))?.ok_or(NO_KEY)?;
    Ok((scope, named(call.args.at(3))?))
}

pub(super) fn no_group(call: &Call<'_>) -> Refusal {
    refuse!(
        "NOGROUP No such consumer group '{}' for key name '{}'",
        Printable(call.args.at(3)),
        Printable(call.args.at(2))
    )
}

/// Returns the error for a missing group, in commands other than XGROUP.
pub(super) fn no_key_or_group(key: &[u8], group: &[u8], behind: &str) -> Refusal {
    refuse!(
        "NOGROUP No such key '{}' or consumer group '{}'{behind}",
        Printable(key),
        Printable(group)
    )
}

/// Returns the group that the first two arguments of a command name. Fails if the group does not
/// exist.
pub(super) fn known(call: &Call<'_>) -> Result<Key, Refusal> {
    let missing = || no_key_or_group(call.args.at(1), call.args.at(2), "");
    let scope = scope(call.node, call.args.at(1))?.ok_or_else(missing)?;
    let key = (scope, call.args.at(2).to_vec());
    let is_there = groups(call.node).with(&key, |group| group.is_some());
    if is_there { Ok(key) } else { Err(missing()) }
}

pub(super) fn groups<'a>(node: Now<'a>) -> &'a Groups {
    &node.engines().groups
}

#[derive(Clone, Copy)]
enum GroupStart {
    End,
    Behind(Id),
}

/// Parses the options of CREATE and SETID. ENTRIESREAD is validated and ignored, because the cursor
/// determines the position.
fn begin(call: &Call<'_>) -> Result<GroupStart, Refusal> {
    let mut options = call.args.from(5).iter();
    while let Some(option) = options.next() {
        if option.eq_ignore_ascii_case(b"mkstream") && call.spec.name == "xgroup|create" {
            continue;
        }
        if !option.eq_ignore_ascii_case(b"entriesread") {
            return Err(call.wrong_subcommand());
        }
        if integer(options.next().ok_or_else(|| call.wrong_subcommand())?)? < -1 {
            return Err(refuse!("ERR value for ENTRIESREAD must be positive or -1"));
        }
    }
    match call.args.at(4) {
        b"$" => Ok(GroupStart::End),
        text => Ok(GroupStart::Behind(id(text, 0)?)),
    }
}

impl GroupStart {
    /// Returns the cursor for a new group. Fails if the log does not contain its position.
    fn cursor(self, log: Log<'_>, scope: Scope) -> Result<Cursor, Refusal> {
        let id = match self {
            GroupStart::End => log.last(scope)?.unwrap_or(Id::MIN),
            GroupStart::Behind(id) => id,
        };
        let start = Cursor::After(id).start();
        match log.find(scope, start)? {
            Some(_) => Ok(Cursor::After(id)),
            // The position is valid, because the log is empty.
            None if id == Id::MIN => Ok(Cursor::After(id)),
            None => Err(super::refusal(&ChangeReadError::Ahead, &id.to_string(), None)),
        }
    }
}

fn create(call: &mut Call<'_>) -> Outcome {
    let (begin, key) = (begin(call)?, key(call)?);
    call.answer_later(move |node, reply| {
        let most = node.config().changes.max_groups;
        let (is_there, groups) = (groups(node).with(&key, |group| group.is_some()), groups(node));
        if !is_there && groups.stats().groups >= most {
            return Err(refuse!(
                "ERR the server has {most} groups, the maximum (changes.max_groups): remove one \
                 with XGROUP DESTROY"
            ));
        }
        let cursor = if is_there { None } else { Some(begin.cursor(Log::new(node), key.0)?) };
        node.current.change_group(
            &key,
            || admitted(node),
            |group| match (&group, cursor) {
                (None, Some(cursor)) => {
                    *group = Some(Groups::begin(cursor));
                    Ok(())
                }
                _ => Err(refuse!("BUSYGROUP Consumer Group name already exists")),
            },
        )??;
        reply.ok();
        Ok(())
    })
}

fn set_id(call: &mut Call<'_>) -> Outcome {
    let (key, missing) = (key(call)?, no_group(call));
    if !groups(call.node).with(&key, |group| group.is_some()) {
        return Err(missing);
    }
    let begin = begin(call)?;
    call.answer_later(move |node, reply| {
        let cursor = begin.cursor(Log::new(node), key.0)?;
        node.current.change_group(
            &key,
            || admitted(node),
            |group| {
                let group = group.as_mut().ok_or(missing)?;
                (group.next, group.place) = (cursor, None);
                Ok::<_, Refusal>(())
            },
        )??;
        reply.ok();
        Ok(())
    })
}

fn destroy(call: &mut Call<'_>) -> Outcome {
    let (key, node) = (key(call)?, call.node);
    let was_there =
        node.current.change_group(&key, || admitted(node), |group| group.take().is_some())?;
    call.reply.int(i64::from(was_there));
    Ok(())
}

fn create_consumer(call: &mut Call<'_>) -> Outcome {
    let (key, name) = (key(call)?, named(call.args.at(4))?);
    let is_new = groups(call.node).with(&key, |group| {
        ensure_consumer(call.node, group.ok_or_else(|| no_group(call))?, &name)
    })?;
    call.reply.int(i64::from(is_new));
    Ok(())
}

fn delete_consumer(call: &mut Call<'_>) -> Outcome {
    let (key, node, name) = (key(call)?, call.node, call.args.at(4));
    let missing = no_group(call);
    let pending = node.current.change_group(
        &key,
        || admitted(node),
        |group| {
            let group = group.as_mut().ok_or(missing)?;
            Ok::<_, Refusal>(group.remove_consumer(name).unwrap_or(0))
        },
    )??;
    call.reply.count(pending);
    Ok(())
}

fn xack(call: &mut Call<'_>) -> Outcome {
    let ids: Vec<Id> =
        call.args.from(3).iter().map(|text| id(text, 0)).collect::<Result<_, _>>()?;
    let (node, args) = (call.node, call.args);
    let Some(scope) = scope(node, args.at(1))? else {
        call.reply.int(0);
        return Ok(());
    };
    let key = (scope, args.at(2).to_vec());
    let acknowledged = node.current.change_group(
        &key,
        || admitted(node),
        |group| match group {
            Some(group) => ids.iter().filter(|id| group.acknowledge(**id)).count(),
            None => 0,
        },
    )?;
    call.reply.count(acknowledged);
    Ok(())
}

fn xpending(call: &mut Call<'_>) -> Outcome {
    if call.args.len() == 3 {
        return summary(call);
    }
    let args = call.args;
    let (mut at, mut idle) = (3, 0);
    if args.at(3).eq_ignore_ascii_case(b"idle") {
        idle = integer(args.at(4))?;
        at = 5;
        if args.len() < 8 {
            return Err(Refusal::SYNTAX);
        }
    }
    if args.len() < at + 3 || args.len() > at + 4 {
        return Err(Refusal::SYNTAX);
    }
    let count = usize::try_from(integer(args.at(at + 2))?).unwrap_or(0).min(MAX_ENTRIES);
    let (low, high) = (Bound::low(args.at(at))?, Bound::high(args.at(at + 1))?);
    let consumer = (args.len() == at + 4).then(|| args.at(at + 3));
    let (key, now) = (known(call)?, unix_ms());
    let idle_for = |time_ms: u64| i64::try_from(now.saturating_sub(time_ms)).unwrap_or(i64::MAX);
    let found = groups(call.node).with(&key, |group| {
        let Some(group) = group.filter(|_| low <= high) else { return Vec::new() };
        let of_it = |name: &[u8]| consumer.is_none_or(|wanted| wanted == name);
        let all = group
            .pending
            .range(low..=high)
            .filter(|(_, pending)| of_it(&pending.consumer) && idle_for(pending.time_ms) >= idle);
        all.take(count).map(|(id, pending)| (*id, pending.clone())).collect()
    });
    call.reply.array(found.len());
    for (id, pending) in found {
        call.reply.array(4);
        call.reply.bulk(id.to_string().as_bytes());
        call.reply.bulk(&pending.consumer);
        call.reply.int(idle_for(pending.time_ms));
        call.reply.int(i64::try_from(pending.times).unwrap_or(i64::MAX));
    }
    Ok(())
}

fn summary(call: &mut Call<'_>) -> Outcome {
    let key = known(call)?;
    let (count, ends, consumers) = groups(call.node).with(&key, |group| {
        let Some(group) = group else { return Default::default() };
        let consumers = group.consumers.iter().filter(|(_, consumer)| !consumer.pending.is_empty());
        let consumers: Vec<_> =
            consumers.map(|(name, consumer)| (name.clone(), consumer.pending.len())).collect();
        let ends = group.pending.keys().next().copied().zip(group.pending.keys().last().copied());
        (group.pending.len(), ends, consumers)
    });
    call.reply.array(4);
    call.reply.count(count);
    let Some((first, last)) = ends else {
        call.reply.null();
        call.reply.null();
        call.reply.null_array();
        return Ok(());
    };
    call.reply.bulk(first.to_string().as_bytes());
    call.reply.bulk(last.to_string().as_bytes());
    call.reply.array(consumers.len());
    for (name, pending) in consumers {
        call.reply.array(2);
        call.reply.bulk(&name);
        call.reply.bulk(pending.to_string().as_bytes());
    }
    Ok(())
}

impl Log<'_> {
    pub(super) fn last(&self, scope: Scope) -> Result<Option<Id>, Refusal> {
        let node = self.node;
        let make = |id: Id, space: u32, _: Change<'_>| {
            let is_there = space == 0 || node.engines().has(space);
            is_there.then(|| id.to_string().into_bytes())
        };
        let found =
            node.changes.read_back(&node.store, self.end, scope, (Id::MAX, Id::MIN), 1, make);
        let found = found.map_err(|lost| super::refusal(&lost, "its end", None))?;
        found.first().map(|text| id(text, 0).map_err(|_| INVALID_ID)).transpose()
    }
}
