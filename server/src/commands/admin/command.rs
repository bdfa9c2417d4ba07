//! COMMAND: the command table in Redis's format.

use super::command_docs;
use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Once};
use node::acl;
use node::command::error::{Refusal, refuse};
use node::command::footprint::key_positions;
use node::command::keyspec;
use node::command::keyspec::{KeySpec, Uses};
use node::command::spec::{KeyArgs, NO_KEYS, Outcome, Spec, flag};
use node::command::table::{all, find};
use resp::{Args, Reply};

const SERVER: Group = Group::new("server", "2.8.13", NO_KEYS);
const ANYTIME: u32 = flag::LOADING | flag::STALE;

#[rustfmt::skip]
pub(crate) const COMMAND: Command = SERVER.row("command", -1, ANYTIME, "", Once(every),
    "Returns the arity, flags and key positions of all commands.").linear("commands")
    .tips(&["nondeterministic_output_order"]).with(&[
    SERVER.row("command|count", 2, ANYTIME, "", Once(count), "Returns the number of commands."),
    SERVER.row("command|docs", -2, ANYTIME,
        "[command-name [command-name ...]]", Once(documentation),
        "Returns the documentation of the given commands, or \
         of all commands, as a map.").since("7.0.0").linear("commands")
        .tips(&["nondeterministic_output_order"]),
    SERVER.row("command|getkeys", -4, ANYTIME, "command arg [arg ...]", Once(getkeys),
        "Returns the arguments of a command that are keys."),
    SERVER.row("command|getkeysandflags", -4, ANYTIME,
        "command arg [arg ...]", Once(getkeysandflags),
        "Returns the arguments of a command that are keys, and how the command uses them.")
        .since("7.0.0"),
    SERVER.help("command|help").since("5.0.0"),
    SERVER.row("command|info", -2, ANYTIME, "[command-name [command-name ...]]", Once(info),
        "Returns the arity, flags and key positions of the given \
         commands, or of all commands.").linear("commands")
        .tips(&["nondeterministic_output_order"]),
    SERVER.row("command|list", -2, ANYTIME,
        "[FILTERBY <MODULE module-name|ACLCAT category|PATTERN pattern>]", Once(list),
        "Lists the names of commands.").since("7.0.0").linear("commands")
        .tips(&["nondeterministic_output_order"]),
]);

/// Returns first key, last key and step. In cluster mode the first id counts as a key, so that
/// clients route the request to its node.
fn positions(spec: &Spec, in_cluster: bool) -> [i64; 3] {
    if let KeyArgs::Ids(_, first, _) = spec.keys
        && in_cluster
    {
        return [first as i64, first as i64, 1];
    }
    let (first, last, step) = spec.keys.positions();
    [first, last, step].map(i64::from)
}

/// Writes the ten elements of COMMAND INFO, as in Redis 7.
fn write_info(reply: &mut Reply<'_>, spec: &Spec, in_cluster: bool) {
    reply.array(10);
    reply.bulk(spec.name.as_bytes());
    reply.int(i64::from(spec.arity));
    let flags: Vec<&str> = flag::NAMES
        .iter()
        .enumerate()
        .filter(|(bit, _)| spec.has(1 << bit))
        .map(|(_, name)| *name)
        // This flag makes cluster clients call COMMAND GETKEYS.
        .chain(matches!(spec.keys, KeyArgs::Streams(_)).then_some("movablekeys"))
        .collect();
    reply.set(flags.len());
    for name in flags {
        reply.simple(name);
    }
    for position in positions(spec, in_cluster) {
        reply.int(position);
    }
    let categories = categories(spec);
    reply.set(categories.len());
    for category in &categories {
        reply.simple(category);
    }
    reply.set(spec.tips.len());
    spec.tips.iter().for_each(|tip| reply.bulk(tip.as_bytes()));
    let specs = keyspec::of(spec);
    reply.array(specs.len());
    specs.iter().for_each(|keys| write_key_specification(reply, keys));
    reply.array(spec.subcommands.len());
    for sub in spec.subcommands {
        write_info(reply, sub, in_cluster);
    }
}

fn write_uses(reply: &mut Reply<'_>, uses: &str) {
    reply.set(uses.split(' ').count());
    uses.split(' ').for_each(|word| reply.simple(word));
}

fn write_key_specification(reply: &mut Reply<'_>, spec: &KeySpec) {
    let (first, last, step) = spec.keys.positions();
    let named_from = match spec.keys {
        KeyArgs::Streams(from) => Some(from),
        KeyArgs::None | KeyArgs::Keys(..) | KeyArgs::Shown | KeyArgs::Ids(..) => None,
    };
    reply.map(3);
    reply.bulk(b"flags");
    write_uses(reply, spec.uses);
    reply.bulk(b"begin_search");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(if named_from.is_some() { b"keyword" } else { b"index" });
    reply.bulk(b"spec");
    if let Some(from) = named_from {
        reply.map(2);
        reply.bulk(b"keyword");
        reply.bulk(b"STREAMS");
        reply.bulk(b"startfrom");
        reply.int(i64::from(from));
    } else {
        reply.map(1);
        reply.bulk(b"index");
        reply.int(i64::from(first));
    }
    reply.bulk(b"find_keys");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"range");
    reply.bulk(b"spec");
    // `lastkey` in a key specification is relative to the first key. For stream commands, the first
    // half of the remaining arguments are keys (limit 2).
    let last = if last > 0 { last - first } else { last };
    let (last, step, limit) = if named_from.is_some() { (-1, 1, 2) } else { (last, step, 0) };
    reply.map(3);
    for (name, number) in [("lastkey", last), ("keystep", step), ("limit", limit)] {
        reply.bulk(name.as_bytes());
        reply.int(i64::from(number));
    }
}

fn every(call: &mut Call<'_>) -> Outcome {
    call.reply.array(all().len());
    let in_cluster = call.node.cluster.is_enabled();
    for spec in all() {
        write_info(&mut call.reply, spec, in_cluster);
    }
    Ok(())
}

fn count(call: &mut Call<'_>) -> Outcome {
    call.reply.count(all().len());
    Ok(())
}

/// Finds a command by name, or a subcommand in the form `client|list`.
fn named(name: &[u8]) -> Option<&'static Spec> {
    let mut parts = name.splitn(2, |&b| b == b'|');
    let (_, spec) = find(parts.next()?)?;
    match parts.next() {
        None => Some(spec),
        Some(own) => {
            spec.subcommands.iter().find(|s| s.own_name().as_bytes().eq_ignore_ascii_case(own))
        }
    }
}

/// Maximum number of names per request. The reply to each name is about a thousand times as long as
/// the name.
const MAX_NAMES: usize = 1024;

/// Returns the names given in a request, up to the limit.
pub(crate) fn asked_names<'a>(call: &Call<'a>) -> Result<Args<'a>, Refusal> {
    let names = call.args.from(2);
    if names.len() > MAX_NAMES {
        Err(refuse!("ERR at most {MAX_NAMES} names are allowed"))
    } else {
        Ok(names)
    }
}

fn info(call: &mut Call<'_>) -> Outcome {
    let names = asked_names(call)?;
    if names.is_empty() {
        return every(call);
    }
    let in_cluster = call.node.cluster.is_enabled();
    call.reply.array(names.len());
    for name in names.iter() {
        match named(name) {
            Some(spec) => write_info(&mut call.reply, spec, in_cluster),
            None => call.reply.null(),
        }
    }
    Ok(())
}

fn list(call: &mut Call<'_>) -> Outcome {
    // As in Redis, subcommands are included with their full names.
    let mut specs: Vec<&Spec> =
        node::command::table::with_numbers().map(|(_, spec)| spec).collect();
    let args = call.args.from(2);
    if !args.is_empty() {
        if args.len() != 3 || !args.at(0).eq_ignore_ascii_case(b"filterby") {
            return Err(Refusal::SYNTAX);
        }
        let (by, value) = (args.at(1), args.at(2));
        if by.eq_ignore_ascii_case(b"module") {
            // Use the module name that MODULE LIST and HELLO report.
            let is_bloom = |s: &&Spec| ["bf.", "cf."].iter().any(|own| s.name.starts_with(own));
            specs.retain(|s| value.eq_ignore_ascii_case(b"bf") && is_bloom(s));
        } else if by.eq_ignore_ascii_case(b"aclcat") {
            specs.retain(|s| {
                categories(s).iter().any(|c| c.as_bytes()[1..].eq_ignore_ascii_case(value))
            });
        } else if by.eq_ignore_ascii_case(b"pattern") {
            crate::commands::pubsub::check_pattern(value)?;
            specs.retain(|s| node::runtime::glob::matches(value, s.name.as_bytes(), true));
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    call.reply.array(specs.len());
    for spec in specs {
        call.reply.bulk(spec.name.as_bytes());
    }
    Ok(())
}

fn documentation(call: &mut Call<'_>) -> Outcome {
    let names = asked_names(call)?;
    let mut specs: Vec<&Spec> = if names.is_empty() { all().iter().collect() } else { Vec::new() };
    for spec in names.iter().filter_map(named) {
        if !specs.iter().any(|known| known.name == spec.name) {
            specs.push(spec);
        }
    }
    call.reply.map(specs.len());
    for spec in specs {
        command_docs::write(&mut call.reply, spec);
    }
    Ok(())
}

/// Returns the request passed to COMMAND GETKEYS, and its command.
fn asked<'a>(call: &Call<'a>) -> Result<(&'static Spec, Args<'a>), Refusal> {
    let request = call.args.from(2);
    let Some((_, spec)) = find(request.at(0)) else {
        return Err(refuse!("ERR Invalid command specified"));
    };
    let own = spec
        .subcommands
        .iter()
        .find(|s| s.own_name().as_bytes().eq_ignore_ascii_case(request.at(1)));
    let spec = own.unwrap_or(spec);
    if !spec.keys.are_keys() {
        return Err(refuse!("ERR The command has no key arguments"));
    }
    if !spec.fits(request.len()) {
        return Err(refuse!("ERR Invalid number of arguments specified for command"));
    }
    Ok((spec, request))
}

fn getkeysandflags(call: &mut Call<'_>) -> Outcome {
    let (spec, request) = asked(call)?;
    call.reply.array(key_positions(spec, request).count());
    let uses = Uses::of(spec, request);
    for position in key_positions(spec, request) {
        call.reply.array(2);
        call.reply.bulk(request.at(position));
        write_uses(&mut call.reply, uses.at(position));
    }
    Ok(())
}

fn getkeys(call: &mut Call<'_>) -> Outcome {
    let (spec, request) = asked(call)?;
    call.reply.array(key_positions(spec, request).count());
    for position in key_positions(spec, request) {
        call.reply.bulk(request.at(position));
    }
    Ok(())
}

pub(crate) fn categories(spec: &Spec) -> Vec<String> {
    acl::categories(spec).into_iter().map(|name| format!("@{name}")).collect()
}
