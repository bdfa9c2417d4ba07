//! Turns what was read into commands, and hears what the server says of them.

use super::divided::Divided;
use super::items::{Item, Read};
use super::layout::{Layout, printable, shown};
use crate::import::pipe::{Event, Pipe, Verb};
use crate::import::summary::SHOWN;
use indicatif::ProgressBar;
use node::client::connect::put_command;
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;

/// Why an attempt ended.
pub(super) enum Failure {
    /// Another attempt may do better.
    Broken(String),
    /// None will.
    Final(String),
}

impl Failure {
    /// Of a connection to this one. Rights, a database or a setting that is not there, a
    /// certificate that does not fit: these stay.
    pub(super) fn of(whose: &dyn std::fmt::Display, error: &io::Error) -> Failure {
        use io::ErrorKind::{InvalidData, InvalidInput, PermissionDenied, Unsupported};
        let text = format!("{whose}: {}", printable(&error.to_string()));
        match error.kind() {
            InvalidData | InvalidInput | PermissionDenied | Unsupported => Failure::Final(text),
            _ => Failure::Broken(text),
        }
    }
}

/// Errors of the server that pass.
const PASSING: [&str; 9] = [
    "LOADING ",
    "MASTERDOWN ",
    "READONLY ",
    "NOREPLICAS ",
    "MISCONF ",
    "OOM ",
    "MOVED ",
    "CLUSTERDOWN ",
    "UNKNOWN outcome",
];

/// Keys that are not copied as a whole, each counted once.
pub(super) struct Bad {
    pub(super) count: u64,
    /// By number, of those that are not acknowledged: more errors of them may come.
    keys: BTreeSet<u64>,
    /// The file of --report.
    report: Option<Arc<File>>,
    bar: ProgressBar,
}

impl Bad {
    fn note(&mut self, number: u64, key: &[u8], reason: &str) {
        if !self.keys.insert(number) {
            return;
        }
        self.count += 1;
        if let Some(mut report) = self.report.as_deref()
            && let Err(error) = writeln!(report, "{}: {}", shown(key), printable(reason))
        {
            self.bar.suspend(|| eprintln!("--report: {error}"));
            self.report = None;
        }
        if self.count <= SHOWN as u64 {
            self.bar.suspend(|| eprintln!("{}: {}", shown(key), printable(reason)));
        } else if self.count == SHOWN as u64 + 1 {
            self.bar.suspend(|| eprintln!("more bad keys are counted, not shown"));
        }
    }

    /// What an event means for the attempt.
    fn event(&mut self, event: Event, names: &VecDeque<(u64, Vec<u8>)>) -> Result<(), Failure> {
        match event {
            Event::Bad { line, reason } => {
                let name = names.iter().find(|(number, _)| *number == line);
                let name = name.map_or(&b"a key"[..], |(_, name)| name);
                self.note(line, name, &format!("the server says: {reason}"));
                Ok(())
            }
            Event::Refused { reason, .. }
                if PASSING.iter().any(|start| reason.starts_with(start)) =>
            {
                Err(Failure::Broken(format!("the server refuses: {}", printable(&reason))))
            }
            Event::Refused { reason, .. } => Err(Failure::Final(printable(&reason))),
            Event::Broken(error) => Err(Failure::Broken(error.to_string())),
        }
    }
}

/// See the top of the file.
pub(super) struct Writer {
    pub(super) pipe: Pipe,
    pub(super) layouts: Arc<Vec<Layout>>,
    /// Of the key that was read last, from 1.
    pub(super) number: u64,
    /// The keys that are not acknowledged.
    pub(super) names: VecDeque<(u64, Vec<u8>)>,
    /// All keys up to this one are acknowledged, and what was wrong with them is known.
    pub(super) answered: u64,
    pub(super) bad: Bad,
    /// Keys that are gone, of which it is not known what they had.
    pub(super) lost: u64,
    /// What is missing is deleted: it is looked for where a key does not tell what it had.
    pub(super) deletes: bool,
    pub(super) divided: Divided,
    pub(super) bar: ProgressBar,
}

impl Writer {
    pub(super) fn new(
        pipe: Pipe,
        layouts: Arc<Vec<Layout>>,
        deletes: bool,
        divided: Divided,
        report: Option<Arc<File>>,
        bar: ProgressBar,
    ) -> Writer {
        let bad = Bad { count: 0, keys: BTreeSet::new(), report, bar: bar.clone() };
        let names = VecDeque::new();
        Writer { pipe, layouts, number: 0, names, answered: 0, bad, lost: 0, deletes, divided, bar }
    }

    pub(super) fn push(&mut self, read: Read) {
        self.number += 1;
        let layout = &self.layouts[read.layout];
        let space = layout.space.as_bytes();
        let is_found = self.deletes && layout.ids(&read.key).is_some();
        self.lost += u64::from(read.is_lost && !is_found);
        if let Some(reason) = read.bad {
            self.bad.note(self.number, &read.key, &reason);
        }
        self.divided.note(layout, &read.items);
        for item in &read.items {
            let id = item.id();
            if matches!(item, Item::Gone(_)) && self.divided.has(&layout.space, id) {
                self.lost += u64::from(!is_found);
                continue;
            }
            let values = self.divided.values(layout, item);
            if values.is_empty() && matches!(item, Item::Hash(..)) {
                continue;
            }
            let text = id.to_string();
            let id_text = text.as_bytes();
            let verb = match item {
                Item::Row(..) | Item::Hash(..) | Item::Gone(_) => Verb::Row,
                Item::Missing(_) => Verb::Delete,
                Item::Unset(_) => Verb::Unset,
                Item::Member(..) => Verb::Flag,
            };
            self.pipe.push(id, self.number, verb, |out| match item {
                Item::Row(..) | Item::Hash(..) => {
                    let texts: Vec<String> = values.iter().map(|v| v.1.to_string()).collect();
                    let mut args: Vec<&[u8]> = vec![b"CNT.SET", space, id_text];
                    for ((at, _), text) in values.iter().zip(&texts) {
                        args.extend([layout.fields[*at].1.as_bytes(), text.as_bytes()]);
                    }
                    put_command(out, &args);
                }
                Item::Gone(_) | Item::Missing(_) => {
                    put_command(out, &[b"CNT.DEL", space, id_text]);
                }
                Item::Unset(_) => put_command(out, &[b"TM.FORGET", space, id_text]),
                Item::Member(_, member) => {
                    put_command(out, &[b"PH.ADD", space, member, id_text]);
                }
            });
        }
        self.names.push_back((self.number, read.key));
    }

    /// Hears what the server has said, and notes up to which key.
    pub(super) fn events(&mut self) -> Result<(), Failure> {
        // Of keys up to here all errors are told already.
        let answered = self.pipe.answered_through(self.number);
        for event in self.pipe.events() {
            self.bad.event(event, &self.names)?;
        }
        self.answered = answered;
        while self.names.front().is_some_and(|(number, _)| *number <= answered) {
            self.names.pop_front();
        }
        self.bad.keys = self.bad.keys.split_off(&(answered + 1));
        Ok(())
    }

    /// After a failure: what is on its way is executed first, as another attempt may send newer
    /// values of the same ids. How many of the keys are bad.
    pub(super) fn abandon(self) -> u64 {
        self.pipe.abandon();
        self.bad.count
    }

    /// Waits for all replies: how many of the keys are bad, and how many flags unknown.
    pub(super) fn finish(self) -> (u64, Result<u64, Failure>) {
        let (names, mut bad) = (self.names, self.bad);
        let tally = self.pipe.finish(
            |event, _| bad.event(event, &names),
            |error| Failure::Broken(error.to_string()),
        );
        (bad.count, tally.map(|tally| tally.unknown))
    }
}
