//! Prints the configuration file for `tidemark config`: settings in three groups, then the lists.
//!
//! Settings have their full names, as for CONFIG SET, because a section may have keys of several
//! groups and TOML allows a section only once.

use crate::config::{
    Action, Config, Counter, Existence, Extent, Ingest, Key, SECTIONS, Shard, View,
};
use serde::Serialize;
use std::fmt::Write as _;

/// Header of the printed file.
const HEAD: &str = "\
# Configuration of Tidemark with the default values. List only the settings that you change.
# Sizes (\"8gb\", \"64mb\") and times (\"500ms\", \"10s\", \"1h\", \"7d\") are quoted. A number
# without a unit is in bytes or seconds, quoted or not. Counts and ports are plain numbers.
# \"server.port = 1\" may also be written as \"port = 1\" in a section [server], but a file
# must use the same form for all settings of a section.
# CONFIG SET can change settings marked with * while the server runs. CONFIG REWRITE saves
# the changed values in this file.
";

/// Hint that ends the header of the short form.
const MORE: &str = "\
#
# Every operator should read these settings. `tidemark config --all` also prints the
# other settings, and the spaces, views and actions, which commands such as TM.SPACE can
# change while the server runs.
";

const GROUPS: &[(u8, &str)] =
    &[(1, "1. Set by every operator"), (2, "2. Tuned by some operators"), (3, "3. Rarely changed")];

const LISTS: &str = "\
# ---- 4. Spaces, views and actions ----
#
# These sections apply when a data folder is created. Later, use TM.SPACE, TM.VIEW and
# TM.ACTION to change them; CONFIG REWRITE saves the changes here.
# A single [[counter]] section replaces all default counter spaces. The same applies to
# [[existence]], [[view]] and [[action]]. A section lists only the keys that differ from
# the built-in defaults: `liked` below sets its ledger, because the default is \"off\".
# If a default space is missing, its counters and flags are removed from default views,
# and default actions on it are removed. Your own views and actions must not use it.
";

impl Config {
    /// Returns a configuration file with these values and their documentation.
    pub fn print(&self, extent: Extent) -> String {
        let is_all = extent == Extent::All;
        let mut out = HEAD.to_owned();
        out.push_str(if is_all { "" } else { MORE });
        let defaults = Config::default();
        let lists = [
            ("counter", self.counter.is_empty(), self.counter == defaults.counter),
            ("existence", self.existence.is_empty(), self.existence == defaults.existence),
            ("view", self.view.is_empty(), self.view == defaults.view),
            ("action", self.action.is_empty(), self.action == defaults.action),
        ];
        // Root keys precede all sections.
        for (name, _, _) in lists.iter().filter(|(_, is_empty, _)| *is_empty) {
            let _ = writeln!(out, "\n{name} = []");
        }
        self.print_settings(&mut out, &defaults, is_all);
        if extent != Extent::Short || lists.iter().any(|(_, _, is_default)| !is_default) {
            let _ = write!(out, "\n{LISTS}");
            print_entries(&mut out, "counter", Counter::ABOUT, Counter::KEYS, &self.counter);
            let keys = Existence::KEYS;
            print_entries(&mut out, "existence", Existence::ABOUT, keys, &self.existence);
            print_entries(&mut out, "view", View::ABOUT, View::KEYS, &self.view);
            print_entries(&mut out, "action", Action::ABOUT, Action::KEYS, &self.action);
        }
        self.print_samples(&mut out, is_all);
        out
    }

    fn print_settings(&self, out: &mut String, defaults: &Config, is_all: bool) {
        let values = toml::Table::try_from(self).unwrap_or_default();
        let defaults = toml::Table::try_from(defaults).unwrap_or_default();
        for (group, title) in GROUPS {
            let mut has_title = false;
            for (section, keys) in SECTIONS {
                let of = |all: &toml::Table, key: &Key| all.get(*section)?.get(key.name).cloned();
                let is_printed = |key: &&Key| {
                    // Settings without a group are printed with the last group.
                    let is_here = key.group == *group || key.group == 0 && *group == 3;
                    let is_default = of(&values, key) == of(&defaults, key);
                    is_here && (!is_default || *group == 1 || is_all && key.group > 0)
                };
                for key in keys.iter().filter(is_printed) {
                    if !has_title {
                        let _ = writeln!(out, "\n# ---- {title} ----");
                        has_title = true;
                    }
                    let Some(value) = of(&values, key) else { continue };
                    out.push_str(if is_all { "\n" } else { "" });
                    print_doc(out, key);
                    let _ = writeln!(out, "{section}.{} = {value}", key.name);
                }
            }
        }
    }

    /// Prints the lists that are empty by default. If all settings are printed, prints samples for
    /// the empty lists.
    fn print_samples(&self, out: &mut String, is_all: bool) {
        let source = Ingest {
            name: "likes".to_owned(),
            url: "nats://127.0.0.1:4222".to_owned(),
            stream: "LIKES".to_owned(),
            ..Ingest::default()
        };
        let shard = Shard {
            name: "first".to_owned(),
            slots: "0-8191".to_owned(),
            master: "posts-first".to_owned(),
        };
        let (about, keys) = (Ingest::ABOUT, Ingest::KEYS);
        print_or_show(out, "ingest", about, keys, &self.ingest, is_all.then_some(source));
        let (about, keys) = (Shard::ABOUT, Shard::KEYS);
        print_or_show(out, "shard", about, keys, &self.shard, is_all.then_some(shard));
    }
}

fn print_doc(out: &mut String, key: &Key) {
    for (i, line) in key.doc.iter().enumerate() {
        let _ = writeln!(out, "#{}{line}", if i == 0 && key.live { " *" } else { "" });
    }
}

/// Prints the entries of a list. For an empty list, prints `sample` as a comment.
fn print_or_show<T: Serialize + Default>(
    out: &mut String,
    name: &str,
    about: &[&str],
    keys: &[Key],
    entries: &[T],
    sample: Option<T>,
) {
    if !entries.is_empty() {
        return print_entries(out, name, about, keys, entries);
    }
    let Some(sample) = sample else { return };
    let mut text = String::new();
    print_entries(&mut text, name, about, keys, &[sample]);
    for line in text.lines() {
        let mark = if line.is_empty() || line.starts_with('#') { "" } else { "#" };
        let _ = writeln!(out, "{mark}{line}");
    }
}

/// Prints all entries of a list. The first entry has every grouped key with its documentation.
/// Further entries have only values that differ from the defaults.
fn print_entries<T: Serialize + Default>(
    out: &mut String,
    name: &str,
    about: &[&str],
    keys: &[Key],
    entries: &[T],
) {
    let plain = toml::Table::try_from(T::default()).unwrap_or_default();
    for (i, entry) in entries.iter().enumerate() {
        out.push('\n');
        if i == 0 {
            for line in about {
                let _ = writeln!(out, "#{line}");
            }
        }
        let _ = writeln!(out, "[[{name}]]");
        let values = toml::Table::try_from(entry).unwrap_or_default();
        for key in keys {
            let Some(value) = values.get(key.name) else { continue };
            let is_documented = i == 0 && key.group > 0;
            if !is_documented && plain.get(key.name) == Some(value) {
                continue;
            }
            if is_documented {
                print_doc(out, key);
            }
            let _ = writeln!(out, "{} = {value}", key.name);
        }
    }
}
