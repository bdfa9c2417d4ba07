//! Replies of COMMAND DOCS.

use super::usage::{self, Argument};
use node::command::spec::{Cost, Spec};
use resp::Reply;
use std::borrow::Cow;

fn cost(spec: &Spec) -> Cow<'static, str> {
    match spec.cost {
        Cost::Constant => "O(1)".into(),
        Cost::Linear(items) => format!("O(N) where N is the number of {items}").into(),
        Cost::Other(cost) => cost.into(),
    }
}

pub(super) fn write(reply: &mut Reply<'_>, spec: &Spec) {
    let arguments = usage::arguments(spec);
    reply.bulk(spec.name.as_bytes());
    reply.map(4 + usize::from(!arguments.is_empty()) + usize::from(!spec.subcommands.is_empty()));
    for (name, text) in [
        ("summary", spec.summary),
        ("since", spec.since),
        ("group", spec.group),
        ("complexity", &cost(spec)),
    ] {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if !arguments.is_empty() {
        write_arguments(reply, &arguments);
    }
    if !spec.subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(spec.subcommands.len());
        for sub in spec.subcommands {
            write(reply, sub);
        }
    }
}

fn write_arguments(reply: &mut Reply<'_>, arguments: &[Argument]) {
    reply.bulk(b"arguments");
    reply.array(arguments.len());
    for argument in arguments {
        let flags: Vec<&str> = [
            (argument.optional, "optional"),
            (argument.multiple, "multiple"),
            (argument.multiple_token, "multiple_token"),
        ]
        .into_iter()
        .filter_map(|(is, name)| is.then_some(name))
        .collect();
        let there = [
            argument.key.is_some(),
            argument.token.is_some(),
            !flags.is_empty(),
            !argument.parts.is_empty(),
        ];
        reply.map(2 + there.into_iter().filter(|is| *is).count());
        reply.bulk(b"name");
        reply.bulk(argument.name.as_bytes());
        reply.bulk(b"type");
        reply.bulk(argument.kind.as_bytes());
        if let Some(key) = argument.key {
            reply.bulk(b"key_spec_index");
            reply.count(key);
        }
        if let Some(token) = &argument.token {
            reply.bulk(b"token");
            reply.bulk(token.as_bytes());
        }
        if !flags.is_empty() {
            reply.bulk(b"flags");
            reply.set(flags.len());
            flags.iter().for_each(|flag| reply.simple(flag));
        }
        if !argument.parts.is_empty() {
            write_arguments(reply, &argument.parts);
        }
    }
}
