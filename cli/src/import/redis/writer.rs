//! Converts items to commands and processes the replies.

use super::divided::DividedRows;
use super::items::{Item, Read};
use super::layout::{Layout, printable, shown};
use crate::import::pipe::{CommandKind, Event, Pipe};
use crate::import::summary::MAX_SHOWN_ERRORS;
use client::put_command;
use indicatif::ProgressBar;
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;

pub(super) enum Failure {
    /// A failure that a retry may resolve.
    Broken(String),
    /// A failure that a retry cannot resolve.
    Permanent(String),
}

impl Failure {
    /// Classifies an error of a connection. Missing permissions, a missing database or setting, and
    /// an invalid certificate are permanent failures.
    pub(super) fn of(whose: &dyn std::fmt::Display, error: &io::Error) -> Failure {
        use io::ErrorKind::{InvalidData, InvalidInput, PermissionDenied, Unsupported};
        let text = format!("{whose}: {}", printable(&error.to_string()));
        match error.kind() {
            InvalidData | InvalidInput | PermissionDenied | Unsupported => Failure::Permanent(text),
            _ => Failure::Broken(text),
        }
    }
}

/// Prefixes of temporary errors of the server.
const TRANSIENT_ERROR_PREFIXES: [&str; 9] = [
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

/// Keys that were not copied completely, each counted once.
pub(super) struct Bad {
    pub(super) count: u64,
    /// Numbers of unacknowledged bad keys, for which more errors may arrive.
    keys: BTreeSet<u64>,
    report: Option<Arc<File>>,
    progress_bar: ProgressBar,
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
            self.progress_bar.suspend(|| eprintln!("--report: {error}"));
            self.report = None;
        }
        if self.count <= MAX_SHOWN_ERRORS as u64 {
            self.progress_bar.suspend(|| eprintln!("{}: {}", shown(key), printable(reason)));
        } else if self.count == MAX_SHOWN_ERRORS as u64 + 1 {
            self.progress_bar.suspend(|| eprintln!("further bad keys are counted but not shown"));
        }
    }

    fn event(&mut self, event: Event, names: &VecDeque<(u64, Vec<u8>)>) -> Result<(), Failure> {
        match event {
            Event::Bad { line, reason } => {
                let name = names.iter().find(|(number, _)| *number == line);
                let name = name.map_or(&b"a key"[..], |(_, name)| name);
                self.note(line, name, &format!("the server replied: {reason}"));
                Ok(())
            }
            Event::Refused { reason, .. }
                if TRANSIENT_ERROR_PREFIXES.iter().any(|start| reason.starts_with(start)) =>
            {
                Err(Failure::Broken(format!("the server rejected: {}", printable(&reason))))
            }
            Event::Refused { reason, .. } => Err(Failure::Permanent(printable(&reason))),
            Event::Broken(error) => Err(Failure::Broken(error.to_string())),
        }
    }
}

pub(super) struct Writer {
    pub(super) pipe: Pipe,
    pub(super) layouts: Arc<Vec<Layout>>,
    /// Sequence number of the last key. The first key is 1.
    pub(super) number: u64,
    /// Keys that are not acknowledged yet, with their numbers.
    pub(super) names: VecDeque<(u64, Vec<u8>)>,
    /// Sequence number up to which all keys are acknowledged and all of their errors are known.
    pub(super) answered: u64,
    pub(super) bad: Bad,
    /// Number of deleted keys whose former contents are unknown.
    pub(super) lost: u64,
    /// Whether the import deletes missing rows. If so, the import determines the former contents of
    /// deleted keys.
    pub(super) deletes: bool,
    pub(super) divided: DividedRows,
    pub(super) progress_bar: ProgressBar,
}

impl Writer {
    pub(super) fn new(
        pipe: Pipe,
        layouts: Arc<Vec<Layout>>,
        deletes: bool,
        divided: DividedRows,
        report: Option<Arc<File>>,
        progress_bar: ProgressBar,
    ) -> Writer {
        let bad =
            Bad { count: 0, keys: BTreeSet::new(), report, progress_bar: progress_bar.clone() };
        let names = VecDeque::new();
        Writer {
            pipe,
            layouts,
            number: 0,
            names,
            answered: 0,
            bad,
            lost: 0,
            deletes,
            divided,
            progress_bar,
        }
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
            if matches!(item, Item::RowKeyDeleted(_)) && self.divided.has(&layout.space, id) {
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
                Item::Row(..) | Item::Hash(..) | Item::RowKeyDeleted(_) => CommandKind::Row,
                Item::Missing(_) => CommandKind::Delete,
                Item::Unset(_) => CommandKind::Unset,
                Item::Member(..) => CommandKind::Flag,
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
                Item::RowKeyDeleted(_) | Item::Missing(_) => {
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

    /// Processes the events of the pipe and advances `answered`.
    pub(super) fn events(&mut self) -> Result<(), Failure> {
        // Read the position before the events, so that the queue already contains the errors of all
        // keys up to that position.
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

    /// Waits until the server has executed the commands in flight, because another attempt may send
    /// newer values of the same ids. Returns the number of bad keys.
    pub(super) fn abandon(self) -> u64 {
        self.pipe.abandon();
        self.bad.count
    }

    /// Waits for all replies. Returns the number of bad keys and of unknown flags.
    pub(super) fn finish(self) -> (u64, Result<u64, Failure>) {
        let (names, mut bad) = (self.names, self.bad);
        let tally = self.pipe.finish(
            |event, _| bad.event(event, &names),
            |error| Failure::Broken(error.to_string()),
        );
        (bad.count, tally.map(|tally| tally.unknown))
    }
}
