//! Skips rows during replay that are already in cold files.
//!
//! Loading such rows into memory again would only cause another spill of the same data.

use crate::cold::files::ColdSpace;
use crate::engines::CounterSpace;
use std::sync::Arc;
use store::{BLOCK_BYTES, ColdFile};

/// Minimum number of the record's rows in a block. The filter does not read blocks with fewer rows.
const MIN_ROWS_PER_READ: usize = 16;

/// Compares the rows of one log record with the cold files, in ascending order of ids.
pub(crate) struct ReplayFilter<'a> {
    space: &'a CounterSpace,
    cold: Arc<crate::cold::files::Files>,
    block: Option<(Arc<ColdFile>, u64)>,
    ids: Vec<u64>,
    values: Vec<i64>,
}

impl<'a> ReplayFilter<'a> {
    pub(crate) fn new(space: &'a CounterSpace) -> Option<ReplayFilter<'a>> {
        let cold: &ColdSpace = space.cold();
        (space.cold_end() > 0).then(|| ReplayFilter {
            space,
            cold: cold.files(),
            block: None,
            ids: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Whether a cold file contains the row with exactly these values, and memory has no newer
    /// version. `rest` is the list of the record's remaining ids, starting with this row's. Returns
    /// false if too few rows are in the block, or if it cannot be read. The caller then applies the
    /// row.
    pub(crate) fn file_has_row(&mut self, rest: &[u64], told: &[i64]) -> bool {
        let Some(place) = rest.first().and_then(|&id| self.cold.find(id)) else { return false };
        let is_it =
            |file: &Arc<ColdFile>, block| Arc::ptr_eq(file, place.file) && block == place.block;
        if !self.block.as_ref().is_some_and(|(file, block)| is_it(file, *block)) {
            let many = rest.get(MIN_ROWS_PER_READ - 1).and_then(|&id| self.cold.find(id));
            if !many.is_some_and(|many| is_it(many.file, many.block)) {
                return false;
            }
            self.ids.clear();
            self.values.clear();
            self.block = Some((place.file.clone(), place.block));
            let mut buffer = [0; BLOCK_BYTES];
            // Do not report damage before a request needs the block.
            let Ok(block) = place.file.read(place.block, &mut buffer) else { return false };
            if block.append_to(&mut self.ids, &mut self.values).is_err() {
                self.ids.clear();
            }
        }
        let id = rest[0];
        let Ok(at) = self.ids.binary_search(&id) else { return false };
        let columns = place.file.head().columns;
        let row = &self.values[at * columns..][..columns];
        let same = (0..told.len().max(columns))
            .all(|i| told.get(i).unwrap_or(&0) == row.get(i).unwrap_or(&0));
        // A spill during the replay may have moved a newer version of the row to a new file.
        same && self.space.is_cold(id) && Arc::ptr_eq(&self.cold, &self.space.cold().files())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::Durability;
    use crate::options::{Counter, Options};
    use crate::recovery::recover;
    use crate::tiering::{SpillContext, SpillLog};

    /// A merge may replace the files while a record is replayed, so a match with the old files is
    /// not sufficient.
    #[test]
    fn what_a_merge_has_replaced_meanwhile_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options { dir: folder.path().to_path_buf(), ..Options::default() };
        options.counter = vec![Counter { rows_per_table: 4096, ..options.counter[0].clone() }];
        (options.existence, options.view, options.action) = (vec![], vec![], vec![]);
        let durability = Arc::new(Durability::new(options.fsync));
        let opened = recover(&options, &durability, false, |_| ()).unwrap();
        opened.engines.attach_cold(&opened.store).unwrap();
        let space = &opened.engines.counters()[0];
        let ids: Vec<u64> = (0..20_000).collect();
        ids.iter().for_each(|&id| space.put(id, Some(&[1, 2, 3, 4])).unwrap());
        while space.maintain() {}
        // Spill as recovery does, which does not write to the log.
        let (store, log) = (&opened.store, SpillLog::Replayed(0));
        let ground = SpillContext { store, durability: &durability, most_bytes: 0, log };
        let oldest = space.ranges()[0];
        assert!(oldest.last < 20_000, "the oldest table is closed");
        ground.spill(space, oldest.low, oldest.last, 0).unwrap();
        let mut again = ReplayFilter::new(space).expect("there are cold rows");
        assert!(
            again.file_has_row(&ids, &[1, 2, 3, 4]) && again.file_has_row(&ids[1..], &[1, 2, 3, 4])
        );
        assert!(!again.file_has_row(&ids, &[1, 2, 3, 5]), "the row has other values");
        space.put(0, Some(&[9, 2, 3, 4])).unwrap();
        assert!(!again.file_has_row(&ids, &[1, 2, 3, 4]), "the row is in memory");
        ground.spill(space, oldest.low, oldest.last, 0).unwrap();
        assert!(space.is_cold(0), "merged and no longer in memory");
        assert!(!again.file_has_row(&ids, &[1, 2, 3, 4]), "the old file contained it");
        assert!(!again.file_has_row(&ids[1..], &[1, 2, 3, 4]), "the rows are no longer known");
        assert!(ReplayFilter::new(space).unwrap().file_has_row(&ids, &[9, 2, 3, 4]));
    }
}
