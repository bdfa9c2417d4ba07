//! The ledger of an existence space (`ledger = "exact"`), which verifies positive answers of the
//! filters.
//!
//! ```text
//!   before a write, or a check with EXACT:
//!      negative filter                       -> the pair is unset, no disk read
//!      positive filter, pair in memory       -> the ledger's memory has the answer
//!      positive filter, pair not in memory   -> read its block (fetch.rs), pin the answer
//!   the command, under the id's stripe: uses the pinned answer unless the pair changed or moved
//! ```
//!
//! A filter has no false negatives, so a first like rarely needs a disk read. A pinned answer may
//! be outdated when the command runs. [`Ledger::settle`] detects this, and the worker then reads
//! the pair synchronously.

use crate::cold::cache::{ColdCache, Key, PINS, Read, Values};
use crate::cold::quarantine::Quarantine;
use crate::cold::rebuilds::Rebuilds;
use crate::dirty_keys::MarkedMember;
use crate::log_records::RecordKind;
use ledger::{Answer, BlockBuffer, Flush, Ledger, OwnedMember, PendingLookup};
use phantom::Member;
use rolling::Unreadable;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use store::Store;

/// Bits in the pin keys of ledger pairs. A file's identity never has the top bit, so pins of files
/// have other keys. Every ledger key contains `NUMBERS` and the space's number. The key of a string
/// member also contains `STRINGS`.
const NUMBERS: u64 = 1 << 63;
const STRINGS: u64 = 1 << 62;

/// Counters of ledger lookups since startup.
#[derive(Default)]
pub struct LedgerFigures {
    /// Lookups after a positive answer of a filter.
    pub asked: AtomicU64,
    /// Lookups of pairs that are not set: false positives of the filter.
    pub false_positives: AtomicU64,
    /// Blocks read.
    pub reads: AtomicU64,
}

/// Ledger of one existence space with its counters.
pub struct PairLedger {
    space: u32,
    ledger: Ledger,
    shared: Arc<ColdCache>,
    is_attached: AtomicBool,
    /// Whether the last flush failed. In this state writers do not wait for memory.
    pub(crate) stuck: AtomicBool,
    /// Counters of lookups.
    pub figures: LedgerFigures,
    /// Progress of filter rebuilds from the ledger.
    pub rebuilds: Rebuilds,
    /// Quarantined id ranges. Contains all ids if the last trim skipped a damaged range.
    pub(crate) damaged: Quarantine,
}

/// Converts a filter member to a ledger member.
pub fn in_ledger(member: Member<'_>) -> ledger::Member<'_> {
    match member {
        Member::Number(number) => ledger::Member::Number(number),
        Member::Bytes(bytes) => ledger::Member::Bytes(bytes),
    }
}

pub(crate) fn in_filters(member: ledger::Member<'_>) -> Member<'_> {
    match member {
        ledger::Member::Number(number) => Member::Number(number),
        ledger::Member::Bytes(bytes) => Member::Bytes(bytes),
    }
}

impl PairLedger {
    pub(crate) fn new(space: u32, shared: Arc<ColdCache>) -> Arc<PairLedger> {
        let ledger = Ledger::new(space, RecordKind::ExactPairs as u32, ledger::Options::default());
        let (is_attached, stuck, figures, rebuilds, damaged) = Default::default();
        Arc::new(PairLedger {
            space,
            ledger,
            shared,
            is_attached,
            stuck,
            figures,
            rebuilds,
            damaged,
        })
    }

    /// Returns the ledger itself, without the cache and the counters.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Opens the runs listed in the manifest. Later calls do nothing.
    pub(crate) fn attach(&self, store: &Store) -> store::Result<()> {
        if !self.is_attached.load(Relaxed) {
            if self.ledger.attach(store)? {
                self.shared.begins();
            }
            self.is_attached.store(true, Relaxed);
        }
        Ok(())
    }

    /// Moves pairs from memory to runs; see [`Ledger::flush`].
    pub(crate) fn flush(
        &self,
        store: &Store,
        flush: Flush,
        covered: u64,
        log: impl FnOnce() -> store::Result<u64>,
    ) -> store::Result<u64> {
        // Call this before the first run exists: from then on requests must check for cold pairs.
        self.shared.begins();
        let flushed = self.ledger.flush(store, flush, covered, log);
        if let Some(error) = self.ledger.take_unreadable() {
            self.shared.record_failure(&error);
        }
        flushed
    }

    fn key(&self, id: u64, member: ledger::Member<'_>) -> Key {
        match member {
            ledger::Member::Number(number) => {
                (NUMBERS | u64::from(self.space), u128::from(id) << 64 | u128::from(number))
            }
            ledger::Member::Bytes(bytes) => {
                (NUMBERS | STRINGS | u64::from(self.space), self.ledger.name(id, bytes))
            }
        }
    }

    /// Returns the lookup for a pair after a positive answer of the filter, or `None` if no read is
    /// needed.
    pub(crate) fn lookup(self: &Arc<Self>, id: u64, member: &Member<'_>) -> Option<Lookup> {
        let named = in_ledger(*member);
        let key = self.key(id, named);
        if PINS.with_borrow(|pins| pins.contains_key(&key)) {
            return None;
        }
        match self.ledger.ask(id, named) {
            Answer::NeedsBlock(question) => Some(Lookup { ledger: self.clone(), question }),
            Answer::Known(_) => None,
        }
    }

    /// Whether a pair is set, after a positive answer of the filter. The result is valid while the
    /// caller holds the id's stripe. Reads synchronously if no answer is pinned.
    pub fn contains(&self, id: u64, member: &Member<'_>) -> Result<bool, Unreadable> {
        self.find(id, member).map(|set| self.count(set))
    }

    fn find(&self, id: u64, member: &Member<'_>) -> Result<bool, Unreadable> {
        let named = in_ledger(*member);
        let pinned = PINS.with_borrow(|pins| pins.get(&self.key(id, named)).cloned());
        if let Some(Some(told)) = pinned.transpose().map_err(|why| Unreadable { id, why })?
            && let Some(set) = self.ledger.settle(id, named, told[0] != 0, told[1] as u64)
        {
            return Ok(set);
        }
        let mut answer = self.ledger.ask(id, named);
        loop {
            let question = match answer {
                Answer::Known(set) => return Ok(set),
                Answer::NeedsBlock(question) => question,
            };
            self.shared.figures.reads_in_place.fetch_add(1, Relaxed);
            answer = self
                .read(question)
                .map_err(|why| Unreadable { id, why: why.to_string().into() })?;
        }
    }

    /// Whether a pair is set, after a positive answer of the filter. Returns `None` if the result
    /// needs a disk read.
    pub(crate) fn contains_in_memory(&self, id: u64, member: &Member<'_>) -> Option<bool> {
        match self.ledger.ask(id, in_ledger(*member)) {
            Answer::Known(set) => Some(self.count(set)),
            Answer::NeedsBlock(_) => None,
        }
    }

    /// Like [`PairLedger::contains`], for a series of pairs in their order. Blocks on disk reads.
    pub(crate) fn contains_buffered(
        &self,
        id: u64,
        member: &Member<'_>,
        buffer: &mut BlockBuffer,
    ) -> Result<bool, Unreadable> {
        let (mut answer, reads) = (self.ledger.ask(id, in_ledger(*member)), buffer.reads);
        let found = loop {
            match answer {
                Answer::Known(set) => break Ok(self.count(set)),
                Answer::NeedsBlock(question) => match question.read_buffered(buffer) {
                    Ok(next) => answer = next,
                    Err(error) => {
                        self.shared.record_failure(&error);
                        break Err(Unreadable { id, why: error.to_string().into() });
                    }
                },
            }
        };
        self.figures.reads.fetch_add(buffer.reads - reads, Relaxed);
        found
    }

    /// Counts a lookup with its result, and returns the result.
    fn count(&self, set: bool) -> bool {
        self.figures.asked.fetch_add(1, Relaxed);
        self.figures.false_positives.fetch_add(u64::from(!set), Relaxed);
        set
    }

    fn read(&self, question: PendingLookup) -> store::Result<Answer> {
        let started = Instant::now();
        let answer = question.read().inspect_err(|error| self.shared.record_failure(error))?;
        self.shared.figures.record_read(started.elapsed());
        self.figures.reads.fetch_add(1, Relaxed);
        Ok(answer)
    }

    /// Whether any pair of `id` is set. The call blocks while it reads from disk.
    pub fn has_any(&self, id: u64) -> Result<bool, Unreadable> {
        let pairs = self.ledger.list((id, id), None, 1);
        let pairs = pairs.inspect_err(|error| self.shared.record_failure(error));
        let unreadable = |error: store::Error| Unreadable { id, why: error.to_string().into() };
        pairs.map(|pairs| !pairs.is_empty()).map_err(unreadable)
    }

    #[inline]
    pub(crate) fn takes(&self, member: &Member<'_>) -> bool {
        Ledger::takes(in_ledger(*member))
    }

    /// Returns the form in which a mark stores a member. [`PairLedger::logged`] finds the pair by
    /// this form.
    #[inline]
    pub(crate) fn marked(&self, id: u64, member: &Member<'_>) -> MarkedMember {
        match member {
            Member::Number(number) => MarkedMember::Number(*number),
            Member::Bytes(bytes) => MarkedMember::of_hash(self.ledger.name(id, bytes)),
        }
    }

    /// Returns the member and current state of a marked pair. Returns `None` if the pair is no
    /// longer in memory, because the log already contains its last state or its id was dropped.
    pub(crate) fn logged(&self, id: u64, member: MarkedMember) -> Option<(OwnedMember, bool)> {
        match member {
            MarkedMember::Number(number) => {
                let set = self.ledger.in_memory(id, ledger::Member::Number(number))?;
                Some((OwnedMember::Number(number), set))
            }
            MarkedMember::Hash(hash) => {
                let (member, set) = self.ledger.named(id, MarkedMember::hash_of(hash))?;
                Some((OwnedMember::Bytes((*member).into()), set))
            }
        }
    }

    /// Sets or unsets a pair. The caller must hold the id's stripe.
    #[inline]
    pub(crate) fn set(&self, id: u64, member: &Member<'_>, set: bool) {
        self.ledger.set(id, in_ledger(*member), set);
    }

    /// Whether writers must wait for a flush. False after a failed flush.
    pub(crate) fn is_crowded(&self) -> bool {
        self.ledger.is_crowded() && !self.stuck.load(Relaxed)
    }
}

#[derive(Clone)]
pub(crate) struct Lookup {
    ledger: Arc<PairLedger>,
    question: PendingLookup,
}

impl Lookup {
    pub(crate) fn key(&self) -> Key {
        let (id, member) = self.question.pair();
        self.ledger.key(id, member)
    }

    /// Reads blocks of the ledger until the result is known. The call blocks during these reads.
    pub(crate) fn read(self) -> (Key, Read) {
        let (key, seen, ledger) = (self.key(), self.question.seen(), self.ledger);
        let mut question = self.question;
        loop {
            match ledger.read(question) {
                Ok(Answer::NeedsBlock(next)) => question = next,
                Ok(Answer::Known(set)) => return (key, pinned_answer(set, seen)),
                Err(error) => return (key, Err(error.to_string().into())),
            }
        }
    }
}

/// Encodes an answer for pinning: whether the pair is set, and the ledger's version at the start of
/// the lookup.
fn pinned_answer(set: bool, seen: u64) -> Read {
    Ok(Some(Values::from_slice(&[i64::from(set), seen as i64])))
}
