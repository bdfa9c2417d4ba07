//! Dirty parts: the id ranges that the next snapshot must write.

use crate::log_records::RecordKind;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use store::{FileEntry, Role, Tag};

/// Dirty flags of all parts (id ranges of spaces). The commit thread sets them; a snapshot that
/// writes the part clears them.
#[derive(Default)]
pub struct DirtyParts {
    /// Parts of each space by lowest id.
    spaces: Mutex<HashMap<u32, BTreeMap<u64, DirtyPart>>>,
    /// Spaces that had outlier pairs (pairs of ids far above all tables) at the last snapshot.
    spaces_with_outliers: Mutex<HashSet<u32>>,
    /// Ranges (space, lowest and highest id) spilled since the current snapshot began.
    moved_to_disk: Mutex<Vec<(u32, u64, u64)>>,
    changes: AtomicU64,
}

#[derive(Clone, Copy)]
struct DirtyPart {
    high: u64,
    stamp: u64,
    changed: bool,
}

impl DirtyParts {
    pub(crate) fn touch(&self, space: u32, id: u64) {
        self.touch_all([(space, id)].into_iter());
    }

    /// Marks the parts of many ids as dirty under one lock. Consecutive ids of one part take only
    /// one search.
    pub(crate) fn touch_all(&self, ids: impl Iterator<Item = (u32, u64)>) {
        let mut spaces = self.spaces.lock();
        let mut changes = 0;
        let mut touched = None;
        for (space, id) in ids {
            changes += 1;
            if touched.is_some_and(|(of, low, high)| of == space && (low..=high).contains(&id)) {
                continue;
            }
            if let Some(parts) = spaces.get_mut(&space)
                && let Some((&low, part)) = parts.range_mut(..=id).next_back()
            {
                part.changed = true;
                touched = Some((space, low, part.high));
            }
        }
        self.changes.fetch_add(changes, Relaxed);
    }

    /// Approximate number of rows and pairs changed since startup, including those of the last log
    /// batch.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// Initialises the parts from the files of a manifest.
    pub(crate) fn adopt(&self, files: &[FileEntry]) {
        // The manifest does not contain which spaces had outliers. Assume that every space with a
        // head file had some.
        self.spaces_with_outliers.lock().extend(
            files.iter().filter(|f| f.tag.kind == RecordKind::Head as u32).map(|f| f.tag.space),
        );
        let mut spaces = self.spaces.lock();
        for tag in files.iter().filter(|f| f.role == Role::Snapshot).map(|f| f.tag) {
            if !matches!(
                RecordKind::from_number(tag.kind as u8),
                Some(RecordKind::Rows | RecordKind::Table)
            ) {
                continue;
            }
            let part = DirtyPart { high: tag.high, stamp: tag.stamp, changed: false };
            spaces.entry(tag.space).or_default().insert(tag.low, part);
        }
    }

    /// Sets the parts of the space to `tables`. Returns the stamp of each table's file, or `None`
    /// if the table must be written. Clears the dirty flags under the same lock, so that later
    /// changes count for the next snapshot.
    pub(crate) fn begin(&self, space: u32, tables: &[(u64, u64)], stamp: u64) -> Vec<Option<u64>> {
        let mut spaces = self.spaces.lock();
        let before = spaces.remove(&space).unwrap_or_default();
        let kept = |&(low, high): &(u64, u64)| {
            before
                .get(&low)
                .filter(|part| part.high == high && !part.changed)
                .map(|part| part.stamp)
        };
        let kept: Vec<Option<u64>> = tables.iter().map(kept).collect();
        let now = tables.iter().zip(&kept).map(|(&(low, high), kept)| {
            (low, DirtyPart { high, stamp: kept.unwrap_or(stamp), changed: false })
        });
        spaces.insert(space, now.collect());
        kept
    }

    /// Adds parts for tables created since [`DirtyParts::begin`], and returns these tables.
    pub(crate) fn grow(&self, space: u32, tables: &[(u64, u64)], stamp: u64) -> Vec<(u64, u64)> {
        let mut spaces = self.spaces.lock();
        let parts = spaces.entry(space).or_default();
        let mut is_new = |&(low, high): &(u64, u64)| {
            let known = parts.contains_key(&low);
            parts.entry(low).or_insert(DirtyPart { high, stamp, changed: false });
            !known
        };
        tables.iter().copied().filter(|table| is_new(table)).collect()
    }

    /// Records that the part was written with this stamp.
    pub(crate) fn rewritten(&self, space: u32, low: u64, stamp: u64) {
        if let Some(part) = self.spaces.lock().get_mut(&space).and_then(|parts| parts.get_mut(&low))
        {
            part.stamp = stamp;
        }
    }

    /// Returns whether the space had outliers at the last snapshot. Stores `now`, whether it has
    /// outliers now, for the next call.
    pub(crate) fn had_outliers(&self, space: u32, now: bool) -> bool {
        let mut spaces_with_outliers = self.spaces_with_outliers.lock();
        if now { !spaces_with_outliers.insert(space) } else { spaces_with_outliers.remove(&space) }
    }

    pub(crate) fn begin_all(&self) {
        self.moved_to_disk.lock().clear();
    }

    /// Whether the range of this file of the current snapshot has been spilled.
    pub(crate) fn is_gone(&self, tag: &Tag) -> bool {
        let within = |&(space, low, last): &(u32, u64, u64)| {
            space == tag.space && low <= tag.low && tag.high <= last
        };
        let is_part =
            [RecordKind::Rows, RecordKind::Table].iter().any(|&kind| kind as u32 == tag.kind);
        is_part && self.moved_to_disk.lock().iter().any(within)
    }

    /// Removes the parts of a range that is being spilled. The current snapshot no longer needs
    /// their files. If the range returns to memory, the next snapshot writes its parts.
    pub(crate) fn forget_range(&self, space: u32, low: u64, last: u64) {
        self.moved_to_disk.lock().push((space, low, last));
        if let Some(parts) = self.spaces.lock().get_mut(&space) {
            parts.retain(|&from, part| from > last || part.high < low);
        }
    }

    /// Marks all parts of the space as dirty.
    pub(crate) fn forget_space(&self, space: u32) {
        self.spaces.lock().remove(&space);
    }

    /// Marks all parts of all spaces as dirty, after a failed snapshot.
    pub(crate) fn forget(&self) {
        self.spaces.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the snapshot contained the range, recovery would load the spilled rows into memory again.
    #[test]
    fn spilled_range_is_left_out_of_the_running_snapshot() {
        let tables = [(0, 9), (10, 19), (20, 29)];
        let parts = DirtyParts::default();
        parts.begin_all();
        assert_eq!(parts.begin(1, &tables, 5), [None; 3]);
        parts.forget_range(1, 10, 19);
        let moved_to_disk = |space, low, high| {
            let tag = Tag { space, kind: RecordKind::Rows as u32, low, high, stamp: 5 };
            parts.is_gone(&tag)
        };
        assert!(
            moved_to_disk(1, 10, 19) && moved_to_disk(1, 12, 15),
            "a range inside the spilled one"
        );
        assert!(!moved_to_disk(1, 0, 9) && !moved_to_disk(1, 10, 20) && !moved_to_disk(2, 10, 19));
        parts.begin_all();
        assert!(!moved_to_disk(1, 10, 19), "a new snapshot starts clean");
        assert_eq!(parts.begin(1, &tables, 6), [Some(5), None, Some(5)]);
        // The table has changed since its file was written, so it must be written again.
        parts.touch_all([(1, 3), (1, 4)].into_iter());
        assert_eq!(parts.begin(1, &tables, 7), [None, Some(6), Some(5)]);
    }
}
