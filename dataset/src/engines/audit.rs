//! Audit of an action: compares each counter with the number of its members in the ledger.
//!
//! ```text
//!   chunk     ids of one table or cold file: rows with a nonzero counter, sorted
//!   batch     ids and members from the ledger, in id order, merged with the rows of the chunk
//!   id        under its stripe: the counter and an IdSnapshot; afterwards: count its members
//! ```
//!
//! A batch lists pairs without locks, while likes continue. Most ids do not change meanwhile: if
//! memory has no pair of the id and the version of the ledger is unchanged, the listed number of
//! members is exact. Otherwise the members of the snapshot are counted. So each comparison is exact
//! at one moment, and no disk is read while a stripe is locked, except for a cold row that the
//! cache evicts between two reads.
//!
//! The engines of a batch are those of its caller. A pass continues after a change of the catalogue
//! as long as the action exists.

use crate::cold::ledger::PairLedger;
use crate::cpu_throttle::CpuThrottle;
use crate::engines::action::Action;
use crate::engines::error::WriteError;
use crate::engines::registry::Engines;
use crate::engines::spaces::{CounterSpace, ExistenceSpace};
use counter::{Bounds, Change as Delta};
use ledger::{Member, OwnedMember};
use md5::{Digest, Md5};
use rolling::Unreadable;
use std::collections::VecDeque;

/// Number of pairs that are listed at a time.
const PIECE_PAIRS: usize = 1024;
/// Number of ids with members after which a batch ends.
const BATCH_IDS: usize = 256;
/// Number of cold rows that are listed at a time.
const COLD_ROWS: u64 = 4096;
/// Maximum number of ranges of a digest.
pub const MAX_DIGEST_RANGES: usize = 10_000;

/// Counter and members of an id at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Value of the counter; 0 without a row.
    pub counter: i64,
    /// Number of members in the ledger.
    pub members: u64,
    has_row: bool,
}

impl Comparison {
    /// Whether counter and members agree.
    pub fn is_equal(&self) -> bool {
        i128::from(self.counter) == i128::from(self.members)
    }

    /// Absolute difference.
    pub fn drift(&self) -> u64 {
        let difference = i128::from(self.counter) - i128::from(self.members);
        u64::try_from(difference.unsigned_abs()).unwrap_or(u64::MAX)
    }
}

/// Number and digest of the pairs of an id range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeDigest {
    /// Lowest id.
    pub low: u64,
    /// Highest id, inclusive.
    pub high: u64,
    /// Number of pairs.
    pub pairs: u64,
    /// XOR of the first 64 bits of MD5("id:member") of all pairs.
    pub digest: u64,
}

/// Position of a pass over all ids of an action.
pub struct AuditPass {
    action: String,
    /// Next id, or `None` at the end.
    next: Option<u64>,
    /// Remaining ids of the chunk that had a nonzero counter, in ascending order.
    rows: VecDeque<u64>,
    /// Last id of the chunk, or `None` before the first chunk.
    end: Option<u64>,
}

impl AuditPass {
    /// Creates a pass that begins at the lowest id.
    pub fn new(action: &str) -> AuditPass {
        AuditPass { action: action.to_owned(), next: Some(0), rows: VecDeque::new(), end: None }
    }

    /// Next id, or `None` at the end of the pass.
    pub fn next_id(&self) -> Option<u64> {
        self.next
    }

    /// Compares the next ids and passes each result to `each`. Blocks on disk reads, and sleeps to
    /// leave the processor to requests.
    ///
    /// # Errors
    /// If the action or its ledger no longer exists, or `is_stopped` returns true.
    pub fn step(
        &mut self,
        engines: &Engines,
        is_stopped: &(dyn Fn() -> bool + Sync),
        mut each: impl FnMut(u64, Result<Comparison, Unreadable>),
    ) -> Result<(), String> {
        let pace = CpuThrottle::until(is_stopped, &|| false);
        let action = engines.action(self.action.as_bytes());
        let action = action.ok_or_else(|| format!("the action '{}' was dropped", self.action))?;
        let (flags, counters) = engines.spaces_of(action);
        let ledger = flags.ledger().ok_or("the flags have no ledger")?;
        let Some(next) = self.next else { return Ok(()) };
        let next = next.max(lowest_id(flags, counters));
        let end = match self.end.filter(|&end| next <= end) {
            Some(end) => end,
            None => self.begin_chunk(counters, action.field, next, &pace, &mut each),
        };
        while self.rows.front().is_some_and(|&id| id < next) {
            self.rows.pop_front();
        }
        let seen = ledger.ledger().version();
        let listed = list_members(ledger, (next, end), &pace);
        let (mut members, end) = match &listed {
            Ok((members, end)) => (members.iter().copied().peekable(), *end),
            // Compare one row by itself: most ids are not in the damaged block.
            Err(_) => ([].iter().copied().peekable(), self.rows.front().map_or(end, |&id| id)),
        };
        if let (Err(error), true) = (&listed, self.rows.is_empty()) {
            each(next, Err(Unreadable { id: next, why: error.to_string().into() }));
        }
        loop {
            let row = self.rows.front().copied().filter(|&id| id <= end);
            let listed_id = members.peek().map(|&(id, _)| id);
            let Some(id) = row.into_iter().chain(listed_id).min() else { break };
            pace.goes_on().map_err(|error| error.to_string())?;
            let of_id = members.next_if(|&(listed, _)| listed == id).map_or(0, |(_, n)| n);
            if row == Some(id) {
                self.rows.pop_front();
            }
            let known = listed.is_ok().then_some((of_id, seen));
            match engines.compare_known(action, id, known, &pace) {
                Ok(Some(found)) => each(id, Ok(found)),
                // Below the horizon.
                Ok(None) => {}
                Err(unreadable) => each(id, Err(unreadable)),
            }
            pace.step();
        }
        self.next = end.checked_add(1);
        Ok(())
    }

    /// Lists the rows with a nonzero counter from `next` to the end of its table or cold file.
    /// Returns this end.
    fn begin_chunk(
        &mut self,
        counters: &CounterSpace,
        field: usize,
        next: u64,
        pace: &CpuThrottle<'_>,
        each: &mut impl FnMut(u64, Result<Comparison, Unreadable>),
    ) -> u64 {
        let files = counters.cold().files();
        let file_ends = files.all().iter().map(|file| file.entry().tag.high);
        let table_ends = counters.ranges().into_iter().map(|range| range.last);
        let ends = file_ends.chain(table_ends).filter(|&end| end >= next);
        let end = ends.min().unwrap_or(u64::MAX);
        let mut ids = Vec::new();
        // Memory before disk, because rows move from memory to disk.
        counters.for_each_in(next, end, |id, row| {
            if row.get(field).is_some_and(|&value| value != 0) {
                ids.push(id);
            }
            pace.step();
        });
        let mut from = Some(next).filter(|_| counters.cold_end() > 0);
        while let Some(cold) = from.filter(|&id| id <= end) {
            let mut add = |id| {
                if id <= end {
                    ids.push(id)
                }
            };
            from =
                counters.cold().scan(counters, cold, COLD_ROWS, &mut add).unwrap_or_else(|error| {
                    each(cold, Err(Unreadable { id: cold, why: error.to_string().into() }));
                    None
                });
            pace.step();
        }
        ids.sort_unstable();
        ids.dedup();
        (self.rows, self.end) = (ids.into(), Some(end));
        end
    }
}

/// Ids with their numbers of members.
type MemberCounts = Vec<(u64, u64)>;

/// Lists ids of a range with their numbers of members, until there are more than [`BATCH_IDS`].
/// Returns them with the last id that the list covers.
fn list_members(
    ledger: &PairLedger,
    (low, high): (u64, u64),
    pace: &CpuThrottle<'_>,
) -> store::Result<(MemberCounts, u64)> {
    let mut members = MemberCounts::new();
    let is_whole = for_each_pair(ledger, (low, high), pace, |id, _| {
        match members.last_mut() {
            Some((last, n)) if *last == id => *n += 1,
            _ => members.push((id, 1)),
        }
        members.len() <= BATCH_IDS
    })?;
    match members.last() {
        // The last id may have more members.
        Some(&(last, _)) if !is_whole => {
            members.pop();
            Ok((members, last - 1))
        }
        _ => Ok((members, high)),
    }
}

/// Calls `each` for the set pairs of an id range, in order, until it returns false. Returns whether
/// it reached the end.
fn for_each_pair(
    ledger: &PairLedger,
    ids: (u64, u64),
    pace: &CpuThrottle<'_>,
    mut each: impl FnMut(u64, Member<'_>) -> bool,
) -> store::Result<bool> {
    let mut after: Option<(u64, OwnedMember)> = None;
    loop {
        pace.goes_on()?;
        let from = after.as_ref().map(|(id, member)| (*id, member.as_member()));
        let pairs = ledger.ledger().list(ids, from, PIECE_PAIRS)?;
        if !pairs.iter().all(|pair| each(pair.id, pair.member)) {
            return Ok(false);
        }
        pace.step();
        match pairs.last() {
            Some(last) if pairs.len() == PIECE_PAIRS => {
                after = Some((last.id, last.member.to_owned()));
            }
            _ => return Ok(true),
        }
    }
}

/// Below this id rows are deleted, or flags are unknown.
fn lowest_id(flags: &ExistenceSpace, counters: &CounterSpace) -> u64 {
    flags.horizon().max(counters.horizon())
}

impl Engines {
    /// Compares the counter of an id with its members. `None` below the horizon, where flags are
    /// unknown. The action must have a ledger. Blocks on disk reads.
    pub fn compare(&self, action: &Action, id: u64) -> Result<Option<Comparison>, Unreadable> {
        self.compare_known(action, id, None, &CpuThrottle::new(&|| false))
    }

    /// `known`: number of members, and the version of the ledger before they were listed.
    fn compare_known(
        &self,
        action: &Action,
        id: u64,
        known: Option<(u64, u64)>,
        pace: &CpuThrottle<'_>,
    ) -> Result<Option<Comparison>, Unreadable> {
        let (flags, counters) = self.spaces_of(action);
        let Some(ledger) = flags.ledger().map(|ledger| ledger.ledger()) else { return Ok(None) };
        let mut row = vec![0; counters.schema().width()];
        // Cache a cold row, so that the read with the stripe locked needs no disk.
        if counters.is_cold(id) {
            counters.get(id, &mut row)?;
        }
        let applying = self.durability.applying.lock();
        let stripe = self.lock_id(id);
        if id < lowest_id(flags, counters) {
            return Ok(None);
        }
        let has_row = counters.get(id, &mut row)?;
        let snapshot = ledger.snapshot(id);
        let is_unchanged = |seen| snapshot.is_flushed() && ledger.version() == seen;
        let known = known.filter(|&(_, seen)| is_unchanged(seen));
        drop((stripe, applying));
        let counter = row.get(action.field).copied().unwrap_or(0);
        let members = match known {
            Some((members, _)) => members,
            None => {
                let mut members: u64 = 0;
                let counted = snapshot.for_each(|_| {
                    members += 1;
                    if members.is_multiple_of(PIECE_PAIRS as u64) {
                        pace.step();
                    }
                });
                counted.map_err(|error| Unreadable { id, why: error.to_string().into() })?;
                members
            }
        };
        Ok(Some(Comparison { counter, members, has_row }))
    }

    /// Adds the difference to the counter, as an increment: later likes stay counted. Returns false
    /// without a change if the row was created or deleted since the comparison.
    pub fn correct_counter(
        &self,
        action: &Action,
        id: u64,
        found: &Comparison,
    ) -> Result<bool, WriteError> {
        let counters = self.counter_of(action);
        let members = i64::try_from(found.members).unwrap_or(i64::MAX);
        let delta = members.saturating_sub(found.counter);
        let _stripe = self.lock_id(id);
        if counters.exists(id)? != found.has_row {
            return Ok(false);
        }
        let change = [Delta { field: action.field, delta }];
        self.add(counters, id, &change, &Bounds::default(), &mut Vec::new())?;
        Ok(true)
    }

    /// Returns the other actions that change the counter without the flag of this action, or the
    /// flag without the counter. With such an action counter and members may differ.
    pub fn conflicting_actions(&self, action: &Action) -> impl Iterator<Item = &Action> {
        let flag = action.flag;
        let counter = (action.counter, action.field, false);
        self.actions.iter().filter(move |other| {
            let own = (other.counter, other.field, false);
            let beside = other.beside.iter().map(|b| (b.counter, b.field, b.of_member));
            let moves = std::iter::once(own)
                .chain(beside)
                .filter(|&(space, field, _)| (space, field) == (counter.0, counter.1));
            let mut moves = moves.peekable();
            match (other.flag == flag, moves.peek().is_some()) {
                (true, true) => moves.any(|moved| moved != counter),
                (true, false) | (false, true) => true,
                (false, false) => false,
            }
        })
    }
}

/// Digests the pairs of `low..=high`, in ranges of `step` ids that begin at `low`, or in a single
/// range if `step` is `None`. Omits empty ranges, and ends after [`MAX_DIGEST_RANGES`]. Blocks on
/// disk reads.
pub fn digests(
    ledger: &PairLedger,
    (low, high): (u64, u64),
    step: Option<u64>,
    is_stopped: &(dyn Fn() -> bool + Sync),
) -> store::Result<Vec<RangeDigest>> {
    let mut ranges: Vec<RangeDigest> = Vec::new();
    let pace = CpuThrottle::until(is_stopped, &|| false);
    let mut text = Vec::new();
    for_each_pair(ledger, (low, high), &pace, |id, member| {
        if ranges.last().is_none_or(|range| range.high < id) {
            if ranges.len() == MAX_DIGEST_RANGES {
                return false;
            }
            let first = step.map_or(low, |step| id - (id - low) % step);
            let last = step.map_or(high, |step| first.saturating_add(step - 1).min(high));
            ranges.push(RangeDigest { low: first, high: last, pairs: 0, digest: 0 });
        }
        text.clear();
        text.extend_from_slice(id.to_string().as_bytes());
        text.push(b':');
        match member {
            Member::Number(number) => text.extend_from_slice(number.to_string().as_bytes()),
            Member::Bytes(bytes) => text.extend_from_slice(bytes),
        }
        let [a, b, c, d, e, f, g, h, ..] = <[u8; 16]>::from(Md5::digest(&text));
        if let Some(range) = ranges.last_mut() {
            range.pairs += 1;
            range.digest ^= u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        }
        true
    })?;
    Ok(ranges)
}

#[cfg(test)]
mod tests;
