//! Reads everything from the sources once more, and compares it with what is here.
//!
//! What differs is read again a few times before it counts: writes go on, and reach both sides one
//! after the other.

use super::divided::Divided;
use super::layout::{Item, Layout, shown};
use super::reader::{Read, Reader};
use super::source::{Remote, Source};
use indicatif::ProgressBar;
use node::client::connect::put_command;
use redis_protocol::resp2::types::OwnedFrame;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Items that are compared at once.
const AT_ONCE: usize = 1000;
/// Keys that are read again, at most.
const MOST_AGAIN: usize = 100_000;
/// How often they are, and the time between.
const ROUNDS: usize = 5;
const BETWEEN: Duration = Duration::from_millis(500);
/// Differences that are shown.
const SHOWN: usize = 10;

/// What a comparison found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) rows: u64,
    pub(crate) flags: u64,
    /// Flags below the horizon, of which nothing is known here.
    pub(crate) unknown: u64,
    pub(crate) unreadable: u64,
    pub(crate) differ: u64,
}

/// See the top of the file.
pub(crate) struct Verify<'a> {
    pub(crate) ours: Remote,
    pub(crate) layouts: Arc<Vec<Layout>>,
    /// The counters of each space, in the order in which CNT.GET answers them.
    pub(crate) order: &'a HashMap<String, Vec<String>>,
    pub(crate) progress: ProgressBar,
    /// What a hash lacks is not compared there.
    pub(super) divided: Divided,
    pub(crate) report: Report,
}

/// One thing to be compared.
struct One {
    key: Vec<u8>,
    layout: usize,
    item: Item,
}

impl Verify<'_> {
    /// Compares all; the differences go to the file as well.
    pub(crate) fn run(mut self, sources: &[Source], file: Option<&Path>) -> io::Result<Report> {
        let mut out = file.map(std::fs::File::create).transpose()?;
        let mut told = 0;
        for source in sources {
            let mut reader = Reader::open(source, self.layouts.clone(), None)?;
            let (mut cursor, mut suspects) = (0, BTreeSet::new());
            loop {
                let mut some = Vec::new();
                let (next, seen) = reader.scan(cursor, &mut |read| some.push(read))?;
                self.progress.inc(seen as u64);
                for (key, _) in self.compare(some, true)? {
                    // So many differences are no matter of writes that go on.
                    if suspects.len() < MOST_AGAIN {
                        suspects.insert(key);
                    } else {
                        self.report.differ += 1;
                    }
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
            let mut differences: Vec<(Vec<u8>, String)> = Vec::new();
            for round in 0..ROUNDS {
                if suspects.is_empty() {
                    break;
                }
                if round > 0 {
                    std::thread::sleep(BETWEEN);
                }
                differences.clear();
                for keys in suspects.iter().cloned().collect::<Vec<_>>().chunks(AT_ONCE) {
                    let mut some = Vec::new();
                    reader.read(keys.iter().cloned(), false, &mut |read| some.push(read))?;
                    differences.extend(self.compare(some, false)?);
                }
                suspects = differences.iter().map(|(key, _)| key.clone()).collect();
            }
            self.report.differ += suspects.len() as u64;
            for (key, what) in &differences {
                let line = format!("{}: {what}", shown(key));
                if let Some(out) = &mut out {
                    writeln!(out, "{line}")?;
                }
                told += 1;
                if told <= SHOWN {
                    self.progress.suspend(|| eprintln!("differs: {line}"));
                }
            }
        }
        self.progress.finish_and_clear();
        Ok(self.report)
    }

    /// The keys of what differs, and how.
    fn compare(&mut self, some: Vec<Read>, count: bool) -> io::Result<Vec<(Vec<u8>, String)>> {
        let mut all = Vec::new();
        for read in some {
            if let Some(reason) = read.bad {
                self.report.unreadable += u64::from(count);
                if count && self.report.unreadable <= SHOWN as u64 {
                    let key = shown(&read.key).into_owned();
                    self.progress.suspend(|| eprintln!("{key}: {reason}"));
                }
            }
            let (key, layout) = (read.key, read.layout);
            self.divided.note(&self.layouts[layout], &read.items);
            all.extend(read.items.into_iter().map(|item| One { key: key.clone(), layout, item }));
        }
        let mut differences = Vec::new();
        for some in all.chunks(AT_ONCE) {
            let mut requests = Vec::new();
            some.iter().for_each(|one| self.request(one, &mut requests));
            let mut replies = Vec::with_capacity(some.len());
            self.ours.batch(&requests, some.len(), |reply| replies.push(reply))?;
            for (one, reply) in some.iter().zip(replies) {
                if let Some(what) = self.difference(one, reply, count) {
                    differences.push((one.key.clone(), what));
                }
            }
        }
        Ok(differences)
    }

    fn request(&self, one: &One, out: &mut Vec<u8>) {
        let space = self.layouts[one.layout].space.as_bytes();
        match &one.item {
            Item::Row(id, _) | Item::Hash(id, _) | Item::Gone(id) => {
                put_command(out, &[b"CNT.GET", space, id.to_string().as_bytes()]);
            }
            Item::Member(id, member) => {
                put_command(out, &[b"PH.EXISTS", space, member, id.to_string().as_bytes()]);
            }
        }
    }

    fn difference(&mut self, one: &One, reply: OwnedFrame, count: bool) -> Option<String> {
        let reply = match reply {
            OwnedFrame::Error(reason) => return Some(reason),
            OwnedFrame::Array(mut list) if list.len() == 1 => list.remove(0),
            other => other,
        };
        let layout = &self.layouts[one.layout];
        match &one.item {
            Item::Gone(_) => None,
            Item::Member(_, member) => {
                self.report.flags += u64::from(count);
                match reply {
                    OwnedFrame::Integer(1) => None,
                    OwnedFrame::Integer(_) => Some(format!("member {} is not set", shown(member))),
                    _ => {
                        self.report.unknown += u64::from(count);
                        None
                    }
                }
            }
            Item::Row(..) | Item::Hash(..) => {
                let values = self.divided.values(layout, &one.item);
                self.report.rows += u64::from(count);
                let here: Vec<i64> = match reply {
                    OwnedFrame::Array(list) => list.into_iter().map(number).collect(),
                    // A row that there is not is one of zeros to a counter.
                    _ => Vec::new(),
                };
                let order = self.order.get(&layout.space).map(Vec::as_slice).unwrap_or_default();
                values.iter().find_map(|&(at, there)| {
                    let name = &layout.fields[at].1;
                    let at = order.iter().position(|field| field == name);
                    let here = at.and_then(|at| here.get(at)).copied().unwrap_or(0);
                    (here != there).then(|| format!("{name} is {there} there and {here} here"))
                })
            }
        }
    }
}

fn number(frame: OwnedFrame) -> i64 {
    match frame {
        OwnedFrame::Integer(value) => value,
        _ => 0,
    }
}
