//! Finds rows of the server that no longer exist in any source. If a key was deleted while no
//! import was running, neither a scan nor a notification reports the deletion. The import therefore
//! lists the rows of the server, and asks each source whether the keys of these rows exist.
//!
//! A Bloom filter cannot list its members. The import therefore detects a missing set only if the
//! row of the same id is missing as well.

use super::items::{Item, Read};
use super::layout::{Container, Layout};
use super::reader::{RateLimiter, is_redirect};
use super::source::RedisSource;
use crate::import::rows::{AllRows, Row};
use client::{Client, Reply, put_command};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;

/// Ids whose keys cannot be derived from the id, by layout: ids with leading zeros in the key, and
/// ids in buckets that may hold any id. The scan collects these ids.
#[derive(Default)]
pub(crate) struct AmbiguousIds(HashMap<usize, HashSet<u64>>);

impl AmbiguousIds {
    pub(crate) fn note(&mut self, layouts: &[Layout], read: &Read) {
        let layout = &layouts[read.layout];
        let ids: Vec<u64> = match layout.container {
            Container::Buckets(0) if layout.key(0, b"").is_none() => {
                read.items.iter().filter_map(Item::row).collect()
            }
            _ if layout.is_plain(&read.key) => return,
            Container::Buckets(_) => read.items.iter().filter_map(Item::row).collect(),
            _ => layout.read(&read.key).into_iter().map(|(id, _)| id).collect(),
        };
        if !ids.is_empty() {
            self.0.entry(read.layout).or_default().extend(ids);
        }
    }

    fn has(&self, layout: usize, id: u64) -> bool {
        self.0.get(&layout).is_some_and(|ids| ids.contains(&id))
    }
}

/// The part of a row that no source has: some nonzero counters, or the whole row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) id: u64,
    /// First layout of the space.
    pub(crate) layout: usize,
    /// Layout, index in [`Layout::fields`] and value of each counter.
    pub(crate) counters: Vec<(usize, usize, i64)>,
    /// True if the row is missing from all sources and the layouts cover all of its counters.
    pub(crate) is_whole: bool,
}

pub(crate) struct Finder {
    ours: AllRows,
    theirs: Vec<Client>,
    layouts: Arc<Vec<Layout>>,
    /// Counters of each space, in the order of CNT.GET replies.
    order: HashMap<String, Vec<String>>,
    rate: Option<RateLimiter>,
}

struct Probe {
    row: usize,
    layout: usize,
    positions: Vec<usize>,
}

/// Whether a key exists, according to the replies of the sources.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyPresence {
    Present,
    Absent,
    /// The key belongs to another node of the cluster, so the reply is ignored.
    OnOtherNode,
}

impl Finder {
    pub(crate) fn open(
        ours: AllRows,
        sources: &[RedisSource],
        layouts: Arc<Vec<Layout>>,
        order: HashMap<String, Vec<String>>,
        rate: Option<RateLimiter>,
    ) -> io::Result<Finder> {
        let theirs = sources.iter().map(RedisSource::open).collect::<io::Result<_>>()?;
        Ok(Finder { ours, theirs, layouts, order, rate })
    }

    pub(crate) fn ours(&mut self) -> &mut AllRows {
        &mut self.ours
    }

    pub(crate) fn spaces(&self) -> Vec<String> {
        let rows = self.layouts.iter().filter(|layout| !layout.is_flags());
        let mut spaces: Vec<String> = rows.map(|layout| layout.space.clone()).collect();
        spaces.sort_unstable();
        spaces.dedup();
        spaces
    }

    /// Returns the parts of these rows that no source has.
    pub(crate) fn missing(
        &mut self,
        space: &str,
        rows: &[Row],
        ambiguous_ids: &AmbiguousIds,
    ) -> io::Result<Vec<Missing>> {
        if let Some(rate) = &mut self.rate {
            rate.take(rows.len());
        }
        let order = self.order.get(space).cloned().unwrap_or_default();
        let layouts = self.layouts.clone();
        let is_of_space = |of: &Layout| of.space == space && !of.is_flags();
        let Some(first) = layouts.iter().position(is_of_space) else { return Ok(Vec::new()) };
        let (absent_counters, is_gone) =
            self.absent_counters(space, rows, &order, ambiguous_ids)?;
        // Layout and index of each counter.
        let holder = |name: &String| {
            layouts.iter().enumerate().find_map(|(layout, of)| {
                let is_of = of.space == space && !of.is_flags();
                Some((layout, of.fields.iter().position(|(_, to)| is_of && to == name)?))
            })
        };
        let holders: Vec<Option<(usize, usize)>> = order.iter().map(holder).collect();
        let found = rows.iter().enumerate().map(|(row, (id, values))| {
            let used: Vec<usize> = (0..order.len()).filter(|at| values[*at] != 0).collect();
            let counter = |&at: &usize| {
                let (layout, position) = holders[at].filter(|_| absent_counters[row][at])?;
                Some((layout, position, values[at]))
            };
            let is_whole = is_gone[row] && used.iter().all(|at| holders[*at].is_some());
            let counters = used.iter().filter_map(counter).collect();
            Missing { id: *id, layout: first, counters, is_whole }
        });
        Ok(found.filter(|missing| missing.is_whole || !missing.counters.is_empty()).collect())
    }

    /// For each row, returns which counters are in no key (in the order of the space), and whether
    /// the row has no key at all. Queries single-counter keys only if the other keys of the row
    /// lack counters.
    fn absent_counters(
        &mut self,
        space: &str,
        rows: &[Row],
        order: &[String],
        ambiguous_ids: &AmbiguousIds,
    ) -> io::Result<(Vec<Vec<bool>>, Vec<bool>)> {
        let mut absent_counters = vec![vec![true; order.len()]; rows.len()];
        let mut is_gone = vec![true; rows.len()];
        let layouts = self.layouts.clone();
        for cells in [false, true] {
            let mut probes = Vec::new();
            let of_these =
                |of: &Layout| of.space == space && !of.is_flags() && of.is_cell() == cells;
            for (row, (_, values)) in rows.iter().enumerate() {
                let is_lacking =
                    (0..order.len()).any(|at| values[at] != 0 && absent_counters[row][at]);
                let may_be_gone = is_gone[row] && values.iter().all(|value| *value == 0);
                if !is_lacking && !may_be_gone {
                    continue;
                }
                for (layout, of) in layouts.iter().enumerate().filter(|(_, of)| of_these(of)) {
                    let all = 0..of.fields.len();
                    match cells {
                        true => {
                            probes.extend(all.map(|at| Probe { row, layout, positions: vec![at] }));
                        }
                        false => probes.push(Probe { row, layout, positions: all.collect() }),
                    }
                }
            }
            let said = self.probe_sources(&probes, ambiguous_ids, |probe| rows[probe.row].0)?;
            for (probe, said) in probes.iter().zip(said) {
                let fields = &layouts[probe.layout].fields;
                let told = probe.positions.iter().zip(said);
                for (position, _) in told.filter(|(_, said)| *said != KeyPresence::Absent) {
                    is_gone[probe.row] = false;
                    let at = order.iter().position(|name| *name == fields[*position].1);
                    at.into_iter().for_each(|at| absent_counters[probe.row][at] = false);
                }
            }
        }
        Ok((absent_counters, is_gone))
    }

    /// Converts missing rows to items to write. Also requests the sets of rows that are missing
    /// completely.
    pub(crate) fn reads(
        &mut self,
        missing: Vec<Missing>,
        ambiguous_ids: &AmbiguousIds,
    ) -> io::Result<Vec<Read>> {
        let layouts = self.layouts.clone();
        let mut reads = Vec::new();
        for one in &missing {
            let read = |layout: usize, items| {
                Read::of(layouts[layout].key(one.id, b"").unwrap_or_default(), layout, items)
            };
            if one.is_whole {
                reads.push(read(one.layout, vec![Item::Missing(one.id)]));
                continue;
            }
            let zero = |&(layout, at, _): &(usize, usize, i64)| {
                read(layout, vec![Item::Row(one.id, vec![(at, 0)])])
            };
            reads.extend(one.counters.iter().map(zero));
        }
        let whole: Vec<u64> = missing.iter().filter(|m| m.is_whole).map(|m| m.id).collect();
        let mut probes = Vec::new();
        for (layout, _) in layouts.iter().enumerate().filter(|(_, of)| of.is_flags()) {
            let rows = 0..whole.len();
            probes.extend(rows.map(|row| Probe { row, layout, positions: vec![0] }));
        }
        let said = self.probe_sources(&probes, ambiguous_ids, |probe| whole[probe.row])?;
        let mut gone: BTreeMap<(usize, &str), (usize, bool)> = BTreeMap::new();
        for (probe, said) in probes.iter().zip(said) {
            let space = &layouts[probe.layout].space[..];
            let (_, is_gone) = gone.entry((probe.row, space)).or_insert((probe.layout, true));
            *is_gone &= said[0] == KeyPresence::Absent;
        }
        for ((row, _), (layout, _)) in gone.into_iter().filter(|(_, (_, is_gone))| *is_gone) {
            let (id, key) = (whole[row], layouts[layout].key(whole[row], b"").unwrap_or_default());
            reads.push(Read::of(key, layout, vec![Item::Unset(id)]));
        }
        Ok(reads)
    }

    /// Sends the probes to all sources. Returns the presence of the key for each position of each
    /// probe. A key is missing if at least one source replies that the key does not exist, and no
    /// source has the key.
    fn probe_sources(
        &mut self,
        probes: &[Probe],
        ambiguous_ids: &AmbiguousIds,
        id_of: impl Fn(&Probe) -> u64,
    ) -> io::Result<Vec<Vec<KeyPresence>>> {
        let mut said: Vec<Vec<KeyPresence>> = probes
            .iter()
            .map(|probe| vec![KeyPresence::OnOtherNode; probe.positions.len()])
            .collect();
        let mut requests = Vec::new();
        for (probe, said) in probes.iter().zip(&mut said) {
            if ambiguous_ids.has(probe.layout, id_of(probe)) {
                said.fill(KeyPresence::Present);
            }
            request(&self.layouts[probe.layout], id_of(probe), &probe.positions, &mut requests);
        }
        for theirs in &mut self.theirs {
            let mut at = said.iter_mut();
            theirs.batch(&requests, probes.len(), |reply| {
                let Some(said) = at.next() else { return };
                let values = parse_presence(reply, said.len());
                for (said, now) in said.iter_mut().zip(values) {
                    *said = match (*said, now) {
                        (KeyPresence::Present, _) | (_, KeyPresence::Present) => {
                            KeyPresence::Present
                        }
                        (KeyPresence::Absent, _) | (_, KeyPresence::Absent) => KeyPresence::Absent,
                        _ => KeyPresence::OnOtherNode,
                    };
                }
            })?;
        }
        Ok(said)
    }
}

fn request(layout: &Layout, id: u64, positions: &[usize], out: &mut Vec<u8>) {
    let name = |at: &usize| layout.fields.get(*at).map_or(&b""[..], |(from, _)| from.as_bytes());
    let field = positions.first().map_or(&b""[..], name);
    // All ids of such a bucket are in `ambiguous_ids`; a PING is sent instead.
    let Some(keys) = layout.keys(id, field) else { return put_command(out, &[b"PING"]) };
    let key = &keys[0];
    match layout.container {
        Container::Hash if keys.len() == 1 => {
            let mut request: Vec<&[u8]> = vec![b"HMGET", key];
            request.extend(positions.iter().map(name));
            put_command(out, &request);
        }
        Container::Buckets(_) => {
            put_command(out, &[b"HEXISTS", key, &layout.bucket_field(id, field)]);
        }
        _ => {
            let mut request: Vec<&[u8]> = vec![b"EXISTS"];
            request.extend(keys.iter().map(Vec::as_slice));
            put_command(out, &request);
        }
    }
}

/// Interprets a reply for `count` counters. An unexpected reply, such as one about a key of another
/// type, counts as present, so that nothing is deleted.
fn parse_presence(reply: Reply, count: usize) -> Vec<KeyPresence> {
    let is_not = |is: bool| if is { KeyPresence::Absent } else { KeyPresence::Present };
    match reply {
        Reply::Array(values) => {
            values.iter().map(|value| is_not(matches!(value, Reply::Null))).collect()
        }
        Reply::Integer(n) => vec![is_not(n == 0); count],
        // Reply to the PING for a bucket that holds any id.
        Reply::SimpleString(_) => vec![KeyPresence::Absent; count],
        elsewhere if is_redirect(&elsewhere) => vec![KeyPresence::OnOtherNode; count],
        _ => vec![KeyPresence::Present; count],
    }
}
