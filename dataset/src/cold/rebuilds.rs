//! What is under way of filters that are built anew from a ledger (`tiering/rebuild.rs`).

use crate::cold::cold_filters::refused;
use crate::cold::ledger::{PairLedger, in_filters};
use ledger::OwnedMember;
use parking_lot::Mutex;
use phantom::Rebuild;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Pairs that are listed together: about as many as some blocks have, so few are decoded twice.
const PIECE: usize = 512;

/// The rebuild of a space's tables.
#[derive(Default)]
pub struct Rebuilds {
    pub(crate) now: Mutex<Option<Walk>>,
    /// Tables that wait for it, the one under way included: as of the last look.
    pub left: AtomicUsize,
    /// Tables that were built anew.
    pub tables: AtomicU64,
    /// Pairs that were put into new filters.
    pub pairs: AtomicU64,
}

/// One table, and how far its pairs were read.
pub(crate) struct Walk {
    pub(crate) rebuild: Rebuild,
    after: Option<(u64, OwnedMember)>,
}

impl Walk {
    pub(crate) fn new(rebuild: Rebuild) -> Walk {
        Walk { rebuild, after: None }
    }

    /// Puts some more pairs into the new filters; whether those were the last.
    pub(crate) fn step(
        &mut self,
        space: &phantom::Space,
        ledger: &PairLedger,
    ) -> store::Result<bool> {
        let after = self.after.as_ref().map(|(id, member)| (*id, member.as_member()));
        let pairs = ledger.ledger().list(self.rebuild.range(), after, PIECE)?;
        for pair in pairs.iter() {
            let member = in_filters(pair.member);
            space.put_rebuilt(&self.rebuild, pair.id, &member).map_err(refused)?;
        }
        ledger.rebuilds.pairs.fetch_add(pairs.len() as u64, Relaxed);
        let last = pairs.last().filter(|_| pairs.len() == PIECE);
        self.after = last.map(|last| (last.id, last.member.to_owned()));
        Ok(self.after.is_none())
    }
}
