//! Spaces and their tables, for people.

use super::{Call, NO_KEYS, Outcome, Printable, Spec, flag, help_row, refuse};
use crate::resp::Reply;

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tm.space",
        arity: -2,
        flags: 0,
        keys: NO_KEYS,
        group: "schema",
        since: "0.1.0",
        usage: "",
        summary: "A container for commands about spaces.",
        run: super::help,
        subcommands: &[
            help_row("tm.space|help", "schema"),
            Spec {
                name: "tm.space|list",
                arity: 2,
                flags: flag::STALE,
                keys: NO_KEYS,
                group: "schema",
                since: "0.1.0",
                usage: "",
                summary: "All spaces, a map each: what they hold and how much memory that takes.",
                run: list,
                subcommands: &[],
            },
        ],
    },
    Spec {
        name: "tm.tables",
        arity: -1,
        flags: flag::STALE,
        keys: NO_KEYS,
        group: "schema",
        since: "0.1.0",
        usage: "[space]",
        summary: "The tables of a space (or of all), oldest first, a map each: id range, rows or pairs, fill, bytes; for existence \
                  spaces also the configured and the measured false-positive rate.",
        run: tables,
        subcommands: &[],
    },
];

/// A value in one of the maps.
enum Value {
    Count(u64),
    /// Ids may need 64 bits, which RESP's integers lack: they are strings.
    Id(u64),
    Number(f64),
    Text(String),
}

fn count(value: usize) -> Value {
    Value::Count(value as u64)
}

fn write_map(reply: &mut Reply<'_>, entries: &[(&str, Value)]) {
    reply.map(entries.len());
    for (name, value) in entries {
        reply.bulk(name.as_bytes());
        match value {
            Value::Count(n) => reply.int(i64::try_from(*n).unwrap_or(i64::MAX)),
            Value::Id(id) => reply.bulk(id.to_string().as_bytes()),
            Value::Number(x) => reply.double(*x),
            Value::Text(text) => reply.bulk(text.as_bytes()),
        }
    }
}

fn list(call: &mut Call<'_>) -> Outcome {
    let engines = &call.node.engines;
    call.reply.array(engines.counters().len() + engines.existences().len());
    for space in engines.counters() {
        let entries = [
            ("name", Value::Text(space.name().to_owned())),
            ("kind", Value::Text("counter".to_owned())),
            ("fields", Value::Text(space.schema().to_string())),
            ("rows", Value::Count(space.rows())),
            ("tables", count(space.tables().len())),
            ("memory_bytes", Value::Count(space.memory_bytes())),
            ("memory_limit_bytes", Value::Count(space.memory_limit_bytes())),
        ];
        write_map(&mut call.reply, &entries);
    }
    for space in engines.existences() {
        let entries = [
            ("name", Value::Text(space.name().to_owned())),
            ("kind", Value::Text("existence".to_owned())),
            ("false_positive_rate", Value::Number(space.options().false_positive_rate)),
            ("pairs", Value::Count(space.pairs())),
            ("tables", count(space.tables().len())),
            ("memory_bytes", Value::Count(space.memory_bytes())),
            ("horizon", Value::Id(space.horizon())),
        ];
        write_map(&mut call.reply, &entries);
    }
    Ok(())
}

fn tables(call: &mut Call<'_>) -> Outcome {
    let engines = &call.node.engines;
    let name = call.args.at(1);
    if call.args.len() > 2 {
        return Err(call.wrong_arity());
    }
    if call.args.len() == 2 && engines.counter(name).is_none() && engines.existence(name).is_none() {
        return Err(refuse!("ERR no such space '{}'", Printable(name)));
    }
    let wanted = |space: &str| call.args.len() == 1 || space.as_bytes() == name;
    let mut all: Vec<Vec<(&str, Value)>> = Vec::new();
    for space in engines.counters().iter().filter(|s| wanted(s.name())) {
        for table in space.tables() {
            all.push(vec![
                ("space", Value::Text(space.name().to_owned())),
                ("low", Value::Id(table.low)),
                ("last", Value::Id(table.last)),
                ("rows", Value::Count(table.rows)),
                ("capacity", Value::Count(table.capacity)),
                ("fill", Value::Number(table.fill)),
                ("probes_mean", Value::Number(table.probes_mean)),
                ("probes_p99", Value::Count(table.probes_p99)),
                ("probes_max", Value::Count(table.probes_max)),
                ("aux_entries", Value::Count(table.aux_entries)),
                ("extend_rows", Value::Count(table.extend_rows)),
                ("draining_rows", Value::Count(table.draining_rows)),
                ("bytes", Value::Count(table.bytes)),
                ("bytes_per_row", Value::Number(table.bytes_per_row)),
                ("slot_bits", Value::Count(u64::from(table.slot_bits))),
                ("fields", Value::Text(table.schema.clone())),
            ]);
        }
    }
    for space in engines.existences().iter().filter(|s| wanted(s.name())) {
        for table in space.tables() {
            all.push(vec![
                ("space", Value::Text(space.name().to_owned())),
                ("low", Value::Id(table.low)),
                ("last", Value::Id(table.last)),
                ("pairs", Value::Count(table.pairs)),
                ("capacity", Value::Count(table.capacity)),
                ("fill", Value::Number(table.fill)),
                ("bits_set", Value::Number(table.bits_set)),
                ("extensions", count(table.extensions)),
                ("revoked", count(table.revoked)),
                ("bytes", count(table.bytes)),
                ("false_positive_rate", Value::Number(table.configured_rate)),
                ("expected_rate", Value::Number(table.expected_rate)),
                ("measured_rate", Value::Number(table.measured_rate)),
                ("canaries", Value::Count(table.canaries)),
            ]);
        }
    }
    call.reply.array(all.len());
    for entries in &all {
        write_map(&mut call.reply, entries);
    }
    Ok(())
}
