//! The ledger of an existence space (`ledger = "exact"`): every pair, exact, behind the filters.
//!
//! ```text
//!   a write, a check with EXACT -> the filter says no --> it is not set, nothing is read
//!                               -> yes: in memory of the ledger? --> known
//!                               -> no: which block? -> read as cold rows are (fetch.rs), pinned
//!   in the id's stripe          -> the pin, unless the pair has changed, or moved, since
//! ```
//!
//! A filter has no false no, so a first like costs no read. What was pinned may be outdated by the
//! time at which the command runs; [`Ledger::settle`] says so, and the pair is then read in place.

use crate::cold::cache::{ColdCache, Key, PINS, Read, Values};
use crate::cold::quarantine::Quarantine;
use crate::cold::rebuilds::Rebuilds;
use crate::dirty_keys::MarkedMember;
use crate::log_records::RecordKind;
use ledger::{Answer, Flush, Ledger, OwnedMember, Question};
use phantom::Member;
use rolling::Unreadable;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use store::Store;

/// No file has an identity as high as that: pins of pairs of ledgers are under it and the space's
/// number, those of members that are strings under both.
const NUMBERS: u64 = 1 << 63;
const STRINGS: u64 = 1 << 62;

/// What a ledger was asked since the start.
#[derive(Default)]
pub struct LedgerFigures {
    /// Pairs that the filter had said yes to.
    pub asked: AtomicU64,
    /// Of these, those that are not set: the filter's false positives.
    pub false_positives: AtomicU64,
    /// Blocks read.
    pub reads: AtomicU64,
}

/// See the top of the file.
pub struct PairLedger {
    space: u32,
    ledger: Ledger,
    shared: Arc<ColdCache>,
    is_attached: AtomicBool,
    /// The last flush failed: no writer need wait for room.
    pub(crate) stuck: AtomicBool,
    /// What it was asked.
    pub figures: LedgerFigures,
    /// Filters that are built anew from it.
    pub rebuilds: Rebuilds,
    /// All of it, while the last trim has left a damaged range as it was.
    pub(crate) damaged: Quarantine,
}

/// A member as the ledger names it.
pub fn in_ledger(member: Member<'_>) -> ledger::Member<'_> {
    match member {
        Member::Number(number) => ledger::Member::Number(number),
        Member::Bytes(bytes) => ledger::Member::Bytes(bytes),
    }
}

/// A member of a ledger as the filters name it.
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

    /// The ledger itself.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Opens the runs that the manifest names, if that was not done before.
    pub(crate) fn attach(&self, store: &Store) -> store::Result<()> {
        if !self.is_attached.load(Relaxed) {
            if self.ledger.attach(store)? {
                self.shared.begins();
            }
            self.is_attached.store(true, Relaxed);
        }
        Ok(())
    }

    /// Moves pairs from memory to runs: [`Ledger::flush`]. From then on requests look ahead for
    /// what they must read.
    pub(crate) fn flush(
        &self,
        store: &Store,
        flush: Flush,
        covered: u64,
        log: impl FnOnce() -> store::Result<u64>,
    ) -> store::Result<u64> {
        // Before the first run is there.
        self.shared.begins();
        let flushed = self.ledger.flush(store, flush, covered, log);
        if let Some(error) = self.ledger.take_unreadable() {
            self.shared.note_failure(&error);
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

    /// Returns the lookup that decides whether a pair is set that the filter answers with yes;
    /// `None` if that is known without a read.
    pub(crate) fn lookup(self: &Arc<Self>, id: u64, member: &Member<'_>) -> Option<Lookup> {
        let named = in_ledger(*member);
        let key = self.key(id, named);
        if PINS.with_borrow(|pins| pins.contains_key(&key)) {
            return None;
        }
        match self.ledger.ask(id, named) {
            Answer::Asks(question) => Some(Lookup { ledger: self.clone(), question }),
            Answer::Known(_) => None,
        }
    }

    /// Whether a pair is set to which the filter says yes. In the id's stripe that holds as long as
    /// the stripe is held. Reads in place what was not read before.
    pub fn contains(&self, id: u64, member: &Member<'_>) -> Result<bool, Unreadable> {
        self.figures.asked.fetch_add(1, Relaxed);
        let set = self.find(id, member)?;
        self.figures.false_positives.fetch_add(u64::from(!set), Relaxed);
        Ok(set)
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
                Answer::Asks(question) => question,
            };
            self.shared.figures.reads_in_place.fetch_add(1, Relaxed);
            answer = self
                .read(question)
                .map_err(|why| Unreadable { id, why: why.to_string().into() })?;
        }
    }

    fn read(&self, question: Question) -> store::Result<Answer> {
        let started = Instant::now();
        let answer = question.read().inspect_err(|error| self.shared.note_failure(error))?;
        self.shared.figures.note_read(started.elapsed());
        self.figures.reads.fetch_add(1, Relaxed);
        Ok(answer)
    }

    /// Whether any pair of an id is set. Reads in place, at most one block of each run of its
    /// range.
    pub fn has_any(&self, id: u64) -> Result<bool, Unreadable> {
        let pairs = self.ledger.list((id, id), None, 1);
        let pairs = pairs.inspect_err(|error| self.shared.note_failure(error));
        let unreadable = |error: store::Error| Unreadable { id, why: error.to_string().into() };
        pairs.map(|pairs| !pairs.is_empty()).map_err(unreadable)
    }

    /// Whether a member can be kept.
    #[inline]
    pub(crate) fn takes(&self, member: &Member<'_>) -> bool {
        Ledger::takes(in_ledger(*member))
    }

    /// The member as a mark names it: by [`PairLedger::logged`] it is found again.
    #[inline]
    pub(crate) fn marked(&self, id: u64, member: &Member<'_>) -> MarkedMember {
        match member {
            Member::Number(number) => MarkedMember::Number(*number),
            Member::Bytes(bytes) => MarkedMember::of_hash(self.ledger.name(id, bytes)),
        }
    }

    /// A marked pair as it is now, if it is in memory. If it is not, it has not changed since a
    /// flush copied it, and the log has it as it is, as it was flushed after that; or its id was
    /// dropped.
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

    /// The pair is set, or unset, from now on. In its id's stripe.
    #[inline]
    pub(crate) fn set(&self, id: u64, member: &Member<'_>, set: bool) {
        self.ledger.set(id, in_ledger(*member), set);
    }

    /// Whether so many pairs wait for a flush that writers are to wait, too.
    pub(crate) fn is_crowded(&self) -> bool {
        self.ledger.is_crowded() && !self.stuck.load(Relaxed)
    }
}

/// A lookup under way, for a request that waits.
#[derive(Clone)]
pub(crate) struct Lookup {
    ledger: Arc<PairLedger>,
    question: Question,
}

impl Lookup {
    /// Under which name its answer is pinned.
    pub(crate) fn key(&self) -> Key {
        let (id, member) = self.question.pair();
        self.ledger.key(id, member)
    }

    /// Reads until the answer is known. Waits for the disk.
    pub(crate) fn read(self) -> (Key, Read) {
        let (key, seen, ledger) = (self.key(), self.question.seen(), self.ledger);
        let mut question = self.question;
        loop {
            match ledger.read(question) {
                Ok(Answer::Asks(next)) => question = next,
                Ok(Answer::Known(set)) => return (key, settled(set, seen)),
                Err(error) => return (key, Err(error.to_string().into())),
            }
        }
    }
}

/// As it is pinned: what runs of this version of the ledger say.
fn settled(set: bool, seen: u64) -> Read {
    Ok(Some(Values::from_slice(&[i64::from(set), seen as i64])))
}
