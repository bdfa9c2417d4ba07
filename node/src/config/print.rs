//! The file as it is printed: every key, its documentation and its value.

use crate::config::{
    Action, Admin, Backup, Changes, Cluster, Config, Counter, Durability, Existence, Ingest, Key,
    Replication, Security, Server, Shard, Spill, Tls, Tokens, View,
};
use serde::Serialize;
use std::fmt::Write as _;

/// The head of the printed file.
const PREAMBLE: &str = "# Tidemark's configuration. Every key is listed with its default; a file \
                        needs only what it changes.
# Lists of spaces, views and actions replace the default ones of their kind as a whole. They are \
                        for a new data
# folder, which keeps its own from then on: TM.SPACE, TM.VIEW and TM.ACTION change them while the \
                        server runs, and
# CONFIG REWRITE writes them here.
# A key marked * can be changed while the server runs: CONFIG SET section.key value, then CONFIG \
                        REWRITE to keep it.
#
# Sizing. Memory grows by table as ids arrive, and stops at server.memory_bytes, which all spaces \
                        share by what they need:
#   counter space     rows x (bits of all fields / 8 + 3.5) bytes; a tenth more while ids come in \
                        random order
#   existence space   pairs x 20 bits at a false-positive rate of 0.0001 when tables are full, 28 \
                        with all that goes on; tables x pairs_per_table are remembered
# For a machine with 100 GB, say 2 billion posts and 20 billion flags: post 2e9 x 9 = 18 GB, flags \
                        20e9 x 28 / 8 = 70 GB:
#   server            memory_bytes = 95_000_000_000
#   counter.post      rows_per_table = 67_108_864
#   existence.*       pairs_per_table = 268_435_456    max_tables = 25      (3 spaces x 25 tables \
                        x 0.27e9 pairs)
# Bigger tables cost fewer steps per lookup; smaller ones roll, recycle and spill in finer steps. \
                        30 to 100 tables per space are good.
";

impl Config {
    /// The file with every key, its documentation and these values.
    pub fn print(&self) -> String {
        let mut out = PREAMBLE.to_owned();
        print_if_empty(&mut out, "counter", &self.counter);
        print_if_empty(&mut out, "existence", &self.existence);
        print_if_empty(&mut out, "view", &self.view);
        print_if_empty(&mut out, "action", &self.action);
        print_section(&mut out, "[server]", Server::ABOUT, Server::KEYS, &self.server, true);
        print_section(&mut out, "[admin]", Admin::ABOUT, Admin::KEYS, &self.admin, true);
        print_section(
            &mut out,
            "[durability]",
            Durability::ABOUT,
            Durability::KEYS,
            &self.durability,
            true,
        );
        print_section(&mut out, "[backup]", Backup::ABOUT, Backup::KEYS, &self.backup, true);
        print_section(
            &mut out,
            "[security]",
            Security::ABOUT,
            Security::KEYS,
            &self.security,
            true,
        );
        print_section(&mut out, "[tls]", Tls::ABOUT, Tls::KEYS, &self.tls, true);
        print_section(
            &mut out,
            "[replication]",
            Replication::ABOUT,
            Replication::KEYS,
            &self.replication,
            true,
        );
        print_section(&mut out, "[cluster]", Cluster::ABOUT, Cluster::KEYS, &self.cluster, true);
        print_section(&mut out, "[spill]", Spill::ABOUT, Spill::KEYS, &self.spill, true);
        print_section(&mut out, "[tokens]", Tokens::ABOUT, Tokens::KEYS, &self.tokens, true);
        print_section(&mut out, "[changes]", Changes::ABOUT, Changes::KEYS, &self.changes, true);
        print_entries(&mut out, "[[counter]]", Counter::ABOUT, Counter::KEYS, &self.counter);
        print_entries(
            &mut out,
            "[[existence]]",
            Existence::ABOUT,
            Existence::KEYS,
            &self.existence,
        );
        print_entries(&mut out, "[[view]]", View::ABOUT, View::KEYS, &self.view);
        print_entries(&mut out, "[[action]]", Action::ABOUT, Action::KEYS, &self.action);
        self.print_samples(&mut out);
        out
    }

    /// Lists that are empty by default.
    fn print_samples(&self, out: &mut String) {
        let source = Ingest {
            name: "likes".to_owned(),
            url: "nats://127.0.0.1:4222".to_owned(),
            stream: "LIKES".to_owned(),
            ..Ingest::default()
        };
        let (about, keys) = (Ingest::ABOUT, Ingest::KEYS);
        print_or_show(out, "[[ingest]]", about, keys, &self.ingest, source);
        let shard = Shard {
            name: "first".to_owned(),
            slots: "0-8191".to_owned(),
            master: "posts-first".to_owned(),
        };
        print_or_show(out, "[[shard]]", Shard::ABOUT, Shard::KEYS, &self.shard, shard);
    }
}

/// Prints the entries of a list; without any a sample, as a comment.
fn print_or_show<T: Serialize>(
    out: &mut String,
    head: &str,
    about: &[&str],
    keys: &[Key],
    entries: &[T],
    sample: T,
) {
    if !entries.is_empty() {
        return print_entries(out, head, about, keys, entries);
    }
    let mut text = String::new();
    print_entries(&mut text, head, about, keys, &[sample]);
    for line in text.lines() {
        let mark = if line.is_empty() || line.starts_with('#') { "" } else { "#" };
        let _ = writeln!(out, "{mark}{line}");
    }
}

/// A list without an entry: where a file leaves one out there are the default ones. Before the
/// first section, as keys behind its head are the section's.
fn print_if_empty<T>(out: &mut String, name: &str, entries: &[T]) {
    if entries.is_empty() {
        let _ = writeln!(out, "\n{name} = []");
    }
}

fn print_entries<T: Serialize>(
    out: &mut String,
    head: &str,
    about: &[&str],
    keys: &[Key],
    entries: &[T],
) {
    for (i, item) in entries.iter().enumerate() {
        print_section(out, head, about, keys, item, i == 0);
    }
}

/// The documentation is printed with the first of several entries only.
fn print_section(
    out: &mut String,
    head: &str,
    about: &[&str],
    keys: &[Key],
    values: &impl Serialize,
    first: bool,
) {
    out.push('\n');
    if first {
        for line in about {
            let _ = writeln!(out, "#{line}");
        }
    }
    let _ = writeln!(out, "{head}");
    let values = toml::Table::try_from(values).unwrap_or_default();
    for key in keys {
        if first {
            for (i, line) in key.doc.iter().enumerate() {
                let _ = writeln!(out, "#{}{line}", if i == 0 && key.live { " *" } else { "" });
            }
        }
        if let Some(value) = values.get(key.name) {
            let _ = writeln!(out, "{} = {value}", key.name);
        }
    }
}
