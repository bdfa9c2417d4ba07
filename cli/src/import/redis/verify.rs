//! Reads all keys of the sources again and compares them with the server.
//!
//! A key counts as different only if several further comparisons confirm the difference, because
//! concurrent writes reach the two servers at different times.

use super::divided::DividedRows;
use super::follow::ChangedKey;
use super::items::{Item, Read};
use super::layout::{Layout, printable, shown};
use super::missing::{AmbiguousIds, Finder, Missing};
use super::reader::KeyReader;
use super::source::RedisSource;
use crate::import::rows::{AllRows, Cursor};
use client::{Client, Reply, put_command};
use indicatif::ProgressBar;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

const ITEMS_PER_BATCH: usize = 1000;
/// Maximum number of differing keys that are compared again.
const MAX_RECHECKED_KEYS: usize = 100_000;
/// Number of comparisons of a key before it counts as different. `ROUND_INTERVAL`: pause between
/// two comparisons.
const ROUNDS: usize = 5;
const ROUND_INTERVAL: Duration = Duration::from_millis(500);
const MAX_SHOWN_DIFFERENCES: usize = 10;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) rows: u64,
    pub(crate) flags: u64,
    /// Number of flags below the horizon, whose state the server does not know.
    pub(crate) unknown: u64,
    pub(crate) unreadable: u64,
    pub(crate) differ: u64,
    /// Number of rows with counters that no source has.
    pub(crate) missing: u64,
}

pub(crate) struct Verify<'a> {
    pub(crate) ours: Client,
    pub(crate) layouts: Arc<Vec<Layout>>,
    /// Counters of each space, in the order of CNT.GET replies.
    pub(crate) order: &'a HashMap<String, Vec<String>>,
    pub(crate) progress: ProgressBar,
    /// Rows for which missing counters of a hash are not compared.
    pub(super) divided: DividedRows,
    pub(super) ambiguous_ids: AmbiguousIds,
    /// Whether the copy has already written the rejected keys to the report.
    pub(crate) is_after_copy: bool,
    /// Whether to ignore rows that exist only in the server.
    pub(crate) allow_extra: bool,
    pub(crate) told: usize,
    pub(crate) report: Report,
}

struct One {
    key: Vec<u8>,
    layout: usize,
    item: Item,
}

/// Compares the suspects up to [`ROUNDS`] times, and returns those that differ each time.
/// Concurrent writes cause temporary differences.
fn keep_persistent_differences<T>(
    mut suspects: Vec<T>,
    mut look: impl FnMut(&[T]) -> io::Result<Vec<T>>,
) -> io::Result<Vec<T>> {
    for round in 0..ROUNDS {
        if suspects.is_empty() {
            break;
        }
        if round > 0 {
            std::thread::sleep(ROUND_INTERVAL);
        }
        suspects = look(&suspects)?;
    }
    Ok(suspects)
}

impl Verify<'_> {
    /// Compares all keys. Also writes the differences to `out`. `all` holds the rows of the server.
    pub(crate) fn run(
        mut self,
        all: AllRows,
        sources: &[RedisSource],
        out: Option<&File>,
    ) -> io::Result<Report> {
        for number in 0..sources.len() {
            let mut reader = KeyReader::open(sources, number, self.layouts.clone(), None, false)?;
            let suspects = self.scan(&mut reader, out)?;
            for line in self.read_again(&mut reader, suspects)? {
                self.report_difference(&line, out)?;
            }
        }
        if !self.allow_extra {
            for line in self.find_extra_rows(all, sources)? {
                self.report_difference(&line, out)?;
            }
        }
        self.progress.finish_and_clear();
        Ok(self.report)
    }

    fn report_difference(&mut self, line: &str, out: Option<&File>) -> io::Result<()> {
        if let Some(mut out) = out {
            writeln!(out, "{line}")?;
        }
        self.told += 1;
        if self.told <= MAX_SHOWN_DIFFERENCES {
            self.progress.suspend(|| eprintln!("differs: {line}"));
        }
        Ok(())
    }

    /// Scans all keys. Returns the keys with differences.
    fn scan(
        &mut self,
        reader: &mut KeyReader,
        out: Option<&File>,
    ) -> io::Result<BTreeSet<Vec<u8>>> {
        let (mut cursor, mut suspects) = (0, BTreeSet::new());
        loop {
            let mut some = Vec::new();
            let (next, seen) = reader.scan(cursor, &mut |read| some.push(read))?;
            self.progress.inc(seen.keys);
            for read in &some {
                self.ambiguous_ids.note(&self.layouts, read);
                let Some(reason) = &read.bad else { continue };
                self.report.unreadable += 1;
                let line = format!("{}: {}", shown(&read.key), printable(reason));
                if let Some(mut out) = out.filter(|_| !self.is_after_copy) {
                    writeln!(out, "{line}")?;
                }
                if self.report.unreadable <= MAX_SHOWN_DIFFERENCES as u64 {
                    self.progress.suspend(|| eprintln!("{line}"));
                }
            }
            for (key, what) in self.compare(some, true)? {
                // If there are more suspects than this, concurrent writes are not the cause.
                if suspects.len() < MAX_RECHECKED_KEYS {
                    suspects.insert(key);
                } else {
                    self.report.differ += 1;
                    self.report_difference(&format!("{}: {what}", shown(&key)), out)?;
                }
            }
            cursor = next;
            if cursor == 0 {
                return Ok(suspects);
            }
        }
    }

    fn read_again(
        &mut self,
        reader: &mut KeyReader,
        suspects: BTreeSet<Vec<u8>>,
    ) -> io::Result<Vec<String>> {
        let keys_of = |differences: &[(Vec<u8>, String)]| -> BTreeSet<Vec<u8>> {
            differences.iter().map(|(key, _)| key.clone()).collect()
        };
        let suspects = suspects.into_iter().map(|key| (key, String::new())).collect();
        let differences = keep_persistent_differences(suspects, |suspects| {
            let mut differences = Vec::new();
            for keys in keys_of(suspects).into_iter().collect::<Vec<_>>().chunks(ITEMS_PER_BATCH) {
                let mut some = Vec::new();
                let keys = keys.iter().map(|key| ChangedKey { key: key.clone(), removed: false });
                reader.read(keys, false, &mut |_| {}, &mut |read| some.push(read))?;
                differences.extend(self.compare(some, false)?);
            }
            Ok(differences)
        })?;
        self.report.differ += keys_of(&differences).len() as u64;
        Ok(differences.iter().map(|(key, what)| format!("{}: {what}", shown(key))).collect())
    }

    /// Describes each row that exists in the server but in no source.
    fn find_extra_rows(
        &mut self,
        ours: AllRows,
        sources: &[RedisSource],
    ) -> io::Result<Vec<String>> {
        let (layouts, order) = (self.layouts.clone(), self.order.clone());
        let mut finder = Finder::open(ours, sources, layouts, order, None)?;
        let mut lines = Vec::new();
        for space in finder.spaces() {
            let (mut suspects, mut cursor) = (Vec::new(), Some(Cursor::default()));
            while let Some(at) = cursor {
                let (rows, next) = finder.ours().page(&space, at)?;
                suspects.extend(finder.missing(&space, &rows, &self.ambiguous_ids)?);
                if suspects.len() > MAX_RECHECKED_KEYS {
                    let told = suspects.drain(MAX_RECHECKED_KEYS..);
                    self.report.missing += told.len() as u64;
                    lines.extend(told.map(|one| self.line(&space, &one)));
                }
                cursor = next;
            }
            let suspects = keep_persistent_differences(suspects, |suspects| {
                let mut still = Vec::new();
                for some in suspects.chunks(ITEMS_PER_BATCH) {
                    let ids: Vec<u64> = some.iter().map(|missing| missing.id).collect();
                    let rows = finder.ours().get(&space, &ids)?;
                    still.extend(finder.missing(&space, &rows, &self.ambiguous_ids)?);
                }
                Ok(still)
            })?;
            self.report.missing += suspects.len() as u64;
            lines.extend(suspects.iter().map(|one| self.line(&space, one)));
        }
        finder.ours().check_slots()?;
        Ok(lines)
    }

    fn line(&self, space: &str, missing: &Missing) -> String {
        let counter = |&(layout, at, value): &(usize, usize, i64)| {
            let name = self.layouts[layout].fields.get(at).map_or("", |(_, to)| to);
            format!("{name} {value}")
        };
        if missing.counters.is_empty() {
            return format!("{space} {}: a row of zeros exists only on the server", missing.id);
        }
        let counters: Vec<String> = missing.counters.iter().map(counter).collect();
        format!("{space} {}: {} exists only on the server", missing.id, counters.join(", "))
    }

    /// Compares items. Returns the keys with differences and their descriptions.
    fn compare(&mut self, some: Vec<Read>, count: bool) -> io::Result<Vec<(Vec<u8>, String)>> {
        let mut all = Vec::new();
        for read in some {
            let (key, layout) = (read.key, read.layout);
            self.divided.note(&self.layouts[layout], &read.items);
            all.extend(read.items.into_iter().map(|item| One { key: key.clone(), layout, item }));
        }
        let mut differences = Vec::new();
        for some in all.chunks(ITEMS_PER_BATCH) {
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
        let id = one.item.id().to_string();
        match &one.item {
            Item::Member(_, member) => {
                put_command(out, &[b"PH.EXISTS", space, member, id.as_bytes()]);
            }
            _ => put_command(out, &[b"CNT.GET", space, id.as_bytes()]),
        }
    }

    fn difference(&mut self, one: &One, reply: Reply, count: bool) -> Option<String> {
        let reply = match reply {
            Reply::Array(mut list) if list.len() == 1 => list.remove(0),
            other => other,
        };
        if let Reply::Error(reason) = reply {
            return Some(reason);
        }
        let layout = &self.layouts[one.layout];
        match &one.item {
            Item::RowKeyDeleted(_) | Item::Missing(_) | Item::Unset(_) => None,
            Item::Member(_, member) => {
                self.report.flags += u64::from(count);
                match reply {
                    Reply::Integer(1) => None,
                    Reply::Integer(_) => Some(format!("member {} is not set", shown(member))),
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
                    Reply::Array(list) => {
                        list.into_iter().map(|value| value.as_integer().unwrap_or(0)).collect()
                    }
                    // A missing row equals a row with only zeros.
                    _ => Vec::new(),
                };
                let order = self.order.get(&layout.space).map(Vec::as_slice).unwrap_or_default();
                values.iter().find_map(|&(at, there)| {
                    let name = &layout.fields[at].1;
                    let at = order.iter().position(|field| field == name);
                    let here = at.and_then(|at| here.get(at)).copied().unwrap_or(0);
                    (here != there).then(|| {
                        format!("{name} is {there} on the source and {here} on the server")
                    })
                })
            }
        }
    }
}
