//! Turns what was read into commands, and hears what the server says of them.

use super::divided::Divided;
use super::layout::{Item, Layout, shown};
use super::reader::Read;
use crate::import::SHOWN;
use crate::import::pipe::{Event, Pipe};
use indicatif::ProgressBar;
use node::client::connect::put_command;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Why an attempt ended.
pub(super) enum Failure {
    /// Another attempt may do better.
    Broken(String),
    /// None will.
    Final(String),
}

impl Failure {
    /// Of a connection to this one.
    pub(super) fn of(whose: &dyn std::fmt::Display, error: &io::Error) -> Failure {
        let text = format!("{whose}: {error}");
        match error.kind() {
            io::ErrorKind::PermissionDenied => Failure::Final(text),
            _ => Failure::Broken(text),
        }
    }
}

/// Errors of the server that pass.
const PASSING: [&str; 4] = ["LOADING ", "MASTERDOWN ", "READONLY ", "NOREPLICAS "];

/// What an event means for the attempt.
pub(super) fn event_failure(
    event: Event,
    names: &VecDeque<(u64, Vec<u8>)>,
    bar: &ProgressBar,
    bad: &mut u64,
) -> Result<(), Failure> {
    match event {
        Event::Bad { line, reason } => {
            *bad += 1;
            let name = names.iter().find(|(number, _)| *number == line);
            let name = name.map_or("a key".into(), |(_, name)| shown(name));
            bar.suspend(|| eprintln!("{name}: the server says: {reason}"));
            Ok(())
        }
        Event::Refused { reason, .. } if PASSING.iter().any(|start| reason.starts_with(start)) => {
            Err(Failure::Broken(reason))
        }
        Event::Refused { reason, .. } => Err(Failure::Final(reason)),
        Event::Broken(error) => Err(Failure::Broken(error.to_string())),
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
    pub(super) bad: u64,
    pub(super) rows: u64,
    pub(super) flags: u64,
    /// Rows that were missing at the sources, and are deleted here.
    pub(super) deleted: u64,
    /// Keys that are gone, of which it is not known what they had.
    pub(super) lost: u64,
    /// What is missing is deleted: it is looked for where a key does not tell what it had.
    pub(super) deletes: bool,
    pub(super) divided: Divided,
    pub(super) bar: ProgressBar,
}

impl Writer {
    pub(super) fn push(&mut self, read: Read) {
        self.number += 1;
        let layout = &self.layouts[read.layout];
        let space = layout.space.as_bytes();
        let is_found = self.deletes && layout.ids(&read.key).is_some();
        self.lost += u64::from(read.is_lost && !is_found);
        if let Some(reason) = read.bad {
            self.bad += 1;
            if self.bad <= SHOWN as u64 {
                let key = shown(&read.key).into_owned();
                self.bar.suspend(|| eprintln!("{key}: {reason}"));
            }
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
            self.pipe.push(id, self.number, |out| match item {
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
            match item {
                Item::Member(..) => self.flags += 1,
                Item::Row(..) | Item::Hash(..) | Item::Gone(_) => self.rows += 1,
                Item::Missing(_) => self.deleted += 1,
                Item::Unset(_) => {}
            }
        }
        self.names.push_back((self.number, read.key));
    }

    /// All keys up to this one are acknowledged.
    pub(super) fn answered(&mut self) -> u64 {
        let answered = self.pipe.answered_through(self.number);
        while self.names.front().is_some_and(|(number, _)| *number <= answered) {
            self.names.pop_front();
        }
        answered
    }

    pub(super) fn events(&mut self) -> Result<(), Failure> {
        let Writer { pipe, names, bar, bad, .. } = self;
        pipe.events().try_for_each(|event| event_failure(event, names, bar, bad))
    }
}
