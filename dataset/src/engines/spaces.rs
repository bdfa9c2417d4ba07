//! Spaces of a data set. A space is an engine with its name, options and files.

use crate::cold;
use crate::cold::cold_filters::{ColdPairs, is_crowded};
use crate::cold::fetch::ColdReads;
use crate::cold::files::ColdSpace;
use crate::cold::ledger::PairLedger;
use crate::cold::overlay::{changed_rows, overlay_bytes};
use crate::log_records::{EXACT_PAIR_BYTES, PAIR_BYTES};
use crate::options;
use crate::options::{Expire, RecycledIds};
use phantom::{Answer, Member};
use rolling::{Unreadable, UnreadableIds};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Time over which the rate of new pairs is averaged, in seconds.
const RATE_WINDOW_S: f64 = 60.0;

/// Options of CNT.INCRBY. A field must not have one of these names.
const RESERVED_FIELD_NAMES: [&str; 5] = ["min", "max", "sat", "fail", "token"];

/// Indexes of the spaces whose ids denote the same entities.
#[derive(Clone, Default)]
pub(super) struct RelatedSpaces {
    pub(super) counters: Vec<usize>,
    pub(super) existences: Vec<usize>,
}

/// A counter space: the engine, its name and number, and its rows on disk.
#[derive(Clone)]
pub struct CounterSpace {
    pub(super) number: u32,
    /// Position in SCAN's order. Unique among existing spaces.
    pub(super) slot: u8,
    /// Declared options. The schema has the current fields.
    pub(super) made: Arc<options::Counter>,
    pub(super) space: Arc<counter::Space>,
    /// Spaces whose ids denote the same entities.
    pub(super) related: RelatedSpaces,
    pub(super) cold: Arc<ColdSpace>,
    /// Whether GET returns a row as one string.
    pub text_rows: bool,
    /// How the space handles an expiry that a command requests.
    pub expire: Expire,
}

impl CounterSpace {
    /// Space number, as used in the catalogue and in log records.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Name of the space.
    pub fn name(&self) -> &str {
        &self.made.name
    }

    /// Number that identifies this space in a SCAN cursor. The number does not change when other
    /// spaces are created or dropped.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// Declared options. `fields` contains the original fields; the schema has the current fields.
    pub fn declared(&self) -> &options::Counter {
        &self.made
    }

    /// Whether the space spills old tables when memory is short.
    pub fn spills(&self) -> bool {
        self.made.spill
    }

    /// Number of rows in memory and on disk. In the id range of a cold file, new rows are not
    /// counted until the next merge. Otherwise exact.
    pub fn all_rows(&self) -> u64 {
        let changed = self.changed_rows();
        (self.space.rows() + self.cold.rows()).saturating_sub(changed + self.space.tombstones().0)
    }

    /// Size of the overlay in bytes: tables with changed cold rows. Merges free it.
    pub fn overlay_bytes(&self) -> u64 {
        overlay_bytes(&self.space, self.cold())
    }

    /// Approximate number of rows that were changed after they were spilled.
    pub fn changed_rows(&self) -> u64 {
        changed_rows(&self.space, &self.cold)
    }

    pub(crate) fn first(&self) -> Option<usize> {
        self.schema().living().next().map(|(position, _)| position)
    }

    pub(crate) fn has_one_field(&self) -> bool {
        self.schema().living().nth(1).is_none()
    }

    /// Rows on disk.
    #[inline]
    pub fn cold(&self) -> &Arc<ColdSpace> {
        &self.cold
    }

    /// Reads the cold rows of `ids` concurrently, and pins them to this thread until the next call.
    /// For code that uses the engines without a connection.
    pub async fn fetch(&self, ids: &[u64]) {
        cold::unpin();
        let mut fetching = ColdReads::default();
        ids.iter().filter(|&&id| self.is_cold(id)).for_each(|&id| self.cold.ask(id, &mut fetching));
        if !fetching.is_ready() {
            cold::pin(self.cold.shared().fetch(fetching).await);
        }
    }
}

impl Deref for CounterSpace {
    type Target = counter::Space;

    #[inline]
    fn deref(&self) -> &counter::Space {
        &self.space
    }
}

/// An existence space: the engine, its name and number, its tables on disk and its ledger.
#[derive(Clone)]
pub struct ExistenceSpace {
    pub(super) number: u32,
    /// Declared options.
    pub(super) made: Arc<options::Existence>,
    /// Whether the space stores pairs of id and member, or only ids.
    pub has_members: bool,
    /// How the space handles an expiry that a command requests.
    pub expire: Expire,
    pub(super) space: Arc<phantom::Space>,
    pub(super) cold: Arc<ColdPairs>,
    pub(super) ledger: Option<Arc<PairLedger>>,
    pub(super) pair_rate: Arc<PairRate>,
}

#[derive(Default)]
pub(super) struct PairRate {
    /// First id and number of pairs of the newest table at the last measurement.
    newest: parking_lot::Mutex<Option<(u64, u64)>>,
    /// New pairs per second, as the bits of an f64.
    rate: AtomicU64,
}

impl ExistenceSpace {
    /// Whether an action on an id below the horizon changes its counters.
    #[inline]
    pub(crate) fn counts_recycled_ids(&self) -> bool {
        self.made.recycled_ids == RecycledIds::Count
    }

    /// Space number, as used in the catalogue and in log records.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Name of the space.
    pub fn name(&self) -> &str {
        &self.made.name
    }

    /// Returns the declared options of the space, including later changes.
    pub fn declared(&self) -> &options::Existence {
        &self.made
    }

    /// Whether writers must wait for a merge of late pairs.
    pub(crate) fn is_crowded(&self) -> bool {
        is_crowded(&self.space)
    }

    /// Tables on disk.
    #[inline]
    pub fn cold(&self) -> &ColdPairs {
        &self.cold
    }

    /// Returns the ledger, if the space has a ledger.
    #[inline]
    pub fn ledger(&self) -> Option<&Arc<PairLedger>> {
        self.ledger.as_ref()
    }

    /// Whether a pair that the filters report as set is actually set. Looks up the pair in the
    /// ledger, if the space has a ledger.
    #[inline]
    pub(crate) fn confirm_set(&self, id: u64, member: &Member<'_>) -> Result<bool, Unreadable> {
        self.ledger.as_ref().map_or(Ok(true), |ledger| ledger.contains(id, member))
    }

    /// Like `confirm_set`, but appends an error to `failed` and returns false.
    pub(crate) fn confirm_set_collecting(
        &self,
        id: u64,
        member: &Member<'_>,
        failed: &mut Vec<Unreadable>,
    ) -> bool {
        self.confirm_set(id, member).unwrap_or_else(|error| {
            failed.push(error);
            false
        })
    }

    /// Whether a pair is set. Without a ledger the result may be a false positive.
    pub fn contains_exactly(&self, id: u64, member: &Member<'_>) -> Result<Answer, Unreadable> {
        match self.space.contains(id, member)? {
            Answer::Yes if !self.confirm_set(id, member)? => Ok(Answer::No),
            answer => Ok(answer),
        }
    }

    /// Verifies positive answers of the filters with the ledger. Answers for pairs that cannot be
    /// read become negative, and the error contains the ids of these pairs.
    pub fn verify(
        &self,
        member: &Member<'_>,
        ids: &[u64],
        answers: &mut [Answer],
    ) -> Result<(), UnreadableIds> {
        let mut failed = Vec::new();
        let yes = ids.iter().zip(answers).filter(|(_, answer)| **answer == Answer::Yes);
        for (&id, answer) in yes {
            if !self.confirm_set_collecting(id, member, &mut failed) {
                *answer = Answer::No;
            }
        }
        UnreadableIds::check(failed)
    }

    /// Adds to `fetching` the reads that a lookup of a pair needs: from filters and, if `exact` is
    /// true (for example for a write), from the ledger. Adds nothing if the answer is in memory,
    /// cached or pinned.
    pub fn ask(&self, (id, member): (u64, &Member<'_>), exact: bool, fetching: &mut ColdReads) {
        let waits = self.cold.ask(&self.space, (id, member), fetching);
        // The caller calls this function again after it has read the filter's page.
        if exact
            && !waits
            && let Some(ledger) = &self.ledger
            && matches!(self.space.contains(id, member), Ok(Answer::Yes))
        {
            ledger
                .lookup(id, member)
                .into_iter()
                .for_each(|lookup| fetching.request_lookup(lookup));
        }
    }

    /// Maximum size of a pair in the log, in bytes.
    pub fn log_bytes_of_pair(&self) -> usize {
        if self.ledger.is_some() { EXACT_PAIR_BYTES } else { PAIR_BYTES }
    }

    /// New pairs per second in the newest table, averaged over about the last minute.
    pub fn pairs_per_s(&self) -> f64 {
        f64::from_bits(self.pair_rate.rate.load(Relaxed))
    }

    /// Returns the number of seconds until the oldest table is recycled at the current rate.
    /// Returns `None` if there are no new pairs or the space spills.
    pub fn recycled_in_s(&self) -> Option<f64> {
        let rate = self.pairs_per_s();
        (rate > 1e-6 && !self.space.spills())
            .then(|| self.space.pairs_until_recycled() as f64 / rate)
    }

    /// Updates the rate. Call this function from one thread, about once per second.
    pub(super) fn measure(&self, elapsed: Duration) {
        let tables = self.space.tables();
        let Some(newest) = tables.last() else { return };
        let before = self.pair_rate.newest.lock().replace((newest.low, newest.pairs));
        let Some((low, pairs)) = before else { return };
        let since = tables.iter().filter(|table| table.low >= low);
        let since = since.map(|table| table.pairs).sum::<u64>();
        // Skip this measurement if the table was cleared or recycled since the last measurement.
        let Some(come) = since.checked_sub(pairs) else { return };
        let now = come as f64 / elapsed.as_secs_f64().max(1e-3);
        let before = self.pairs_per_s();
        let weight =
            if before == 0.0 { 1.0 } else { 1.0 - (-elapsed.as_secs_f64() / RATE_WINDOW_S).exp() };
        self.pair_rate.rate.store((before + (now - before) * weight).to_bits(), Relaxed);
    }
}

impl Deref for ExistenceSpace {
    type Target = phantom::Space;

    #[inline]
    fn deref(&self) -> &phantom::Space {
        &self.space
    }
}

/// Member of all pairs in spaces without members: an empty string, which cannot equal a viewer's
/// number.
pub const NO_MEMBER: Member<'static> = Member::Bytes(b"");

pub(crate) fn is_reserved(field: &str) -> bool {
    RESERVED_FIELD_NAMES.contains(&field.to_ascii_lowercase().as_str())
}
