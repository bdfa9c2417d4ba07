//! A log that is read again tells of many rows that have gone to the disk since, as they are there. They need not come back to memory, from
//! where they would have to be spilled once more.

use super::ColdSpace;
use crate::engines::CounterSpace;
use std::sync::Arc;
use store::{BLOCK_BYTES, ColdFile};

/// A block is read if at least so many of the rows that are told of lie in it.
const WORTH: usize = 16;

/// Compares the rows of one record, which rise, with those on the disk.
pub(crate) struct Again<'a> {
    space: &'a CounterSpace,
    cold: Arc<super::files::Files>,
    /// The block at hand.
    block: Option<(Arc<ColdFile>, u64)>,
    ids: Vec<u64>,
    values: Vec<i64>,
}

impl<'a> Again<'a> {
    /// `None`: nothing of the space lies on the disk.
    pub(crate) fn new(space: &'a CounterSpace) -> Option<Again<'a>> {
        let cold: &ColdSpace = space.cold();
        (space.cold_end() > 0).then(|| Again {
            space,
            cold: cold.files(),
            block: None,
            ids: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Whether the row is on the disk as it is told, and nowhere else. `rest`: the ids of the record from this one on. False, too, if
    /// it is not worth a look, or cannot be read: then it is to be put.
    pub(crate) fn is_there(&mut self, rest: &[u64], told: &[i64]) -> bool {
        let Some(place) = rest.first().and_then(|&id| self.cold.find(id)) else { return false };
        let is_it = |file: &Arc<ColdFile>, block| Arc::ptr_eq(file, place.file) && block == place.block;
        if !self.block.as_ref().is_some_and(|(file, block)| is_it(file, *block)) {
            let many = rest.get(WORTH - 1).and_then(|&id| self.cold.find(id));
            if !many.is_some_and(|many| is_it(many.file, many.block)) {
                return false;
            }
            self.ids.clear();
            self.values.clear();
            self.block = Some((place.file.clone(), place.block));
            let mut buffer = [0; BLOCK_BYTES];
            // What is damaged is found by who needs it.
            let Ok(block) = place.file.read(place.block, &mut buffer) else { return false };
            if block.append_to(&mut self.ids, &mut self.values).is_err() {
                self.ids.clear();
            }
        }
        let id = rest[0];
        let Ok(at) = self.ids.binary_search(&id) else { return false };
        let columns = place.file.head().columns;
        let row = &self.values[at * columns..][..columns];
        let same = (0..told.len().max(columns)).all(|i| told.get(i).unwrap_or(&0) == row.get(i).unwrap_or(&0));
        same && self.space.is_cold(id)
    }
}
