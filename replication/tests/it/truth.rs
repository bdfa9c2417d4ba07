//! Record of every batch that was ever in a log, and of the batch's predecessor. A batch is never
//! removed from the record, so the record always shows where two histories diverge.

use super::node::{Kind, Life, Node};
use std::collections::{BTreeMap, BTreeSet};
use store::{Position, SEGMENT_HEAD_BYTES, Step, Tail};

/// Point in a history, as a pair of offset and chain value. The pair is unique.
pub(crate) type Place = (u64, u32);

pub(crate) fn place(at: Position) -> Place {
    (at.offset, at.chain)
}

#[derive(Default)]
pub(crate) struct Truth {
    before: BTreeMap<Place, Place>,
    seals: BTreeSet<Place>,
    /// Position up to which each node's log was read.
    read: BTreeMap<usize, Position>,
}

impl Truth {
    pub(crate) fn learn(&mut self, n: usize, node: &Node) {
        let Some(Life { store, kind, .. }) = &node.life else { return };
        let end = match kind {
            Kind::Master(log) => log.written(),
            Kind::Replica(log) => log.written(),
        };
        let known = self.read.get(&n).copied();
        if known == Some(end) {
            return;
        }
        let going_on = known.and_then(|at| Tail::open(store.disk().clone(), at, end).ok());
        let Some(mut tail) = going_on.or_else(|| from_the_oldest(node, end)) else { return };
        loop {
            let before = tail.position();
            match tail.next(end) {
                Ok(Step::Batch(head, _)) => {
                    let is_seal = head.is_seal();
                    let end = place(tail.position());
                    self.before.insert(end, place(before));
                    if is_seal {
                        self.seals.insert(end);
                    }
                }
                Ok(Step::Segment(_)) => {}
                Ok(Step::End) | Err(_) => break,
            }
        }
        self.read.insert(n, tail.position());
    }

    fn back(&self, from: Place) -> impl Iterator<Item = Place> {
        std::iter::successors(Some(from), |at| self.before.get(at).copied())
    }

    /// Whether the history that ends at `end` has data after this offset.
    pub(crate) fn has_data_after(&self, end: Place, offset: u64) -> bool {
        self.back(end).take_while(|at| at.0 > offset).any(|at| !self.seals.contains(&at))
    }

    /// Returns the offset up to which two histories are equal, or `None` if they have no known
    /// point in common.
    pub(crate) fn parting(&self, a: Place, b: Place) -> Option<u64> {
        let all: BTreeSet<Place> = self.back(a).collect();
        self.back(b).find(|at| all.contains(at)).map(|at| at.0)
    }
}

/// Opens a tailing reader at the oldest available segment.
fn from_the_oldest(node: &Node, end: Position) -> Option<Tail> {
    let store = &node.life.as_ref()?.store;
    let names = store.disk().list().ok()?;
    let mut head = store.segment_head(end.segment).ok()??;
    while names.contains(&store::segment_name(head.previous)) {
        head = store.segment_head(head.previous).ok()??;
    }
    let start = Position {
        segment: head.segment,
        byte: SEGMENT_HEAD_BYTES,
        offset: head.base,
        sequence: head.sequence,
        chain: head.chain,
    };
    Tail::open(store.disk().clone(), start, end).ok()
}
