//! Which parts of the data the files of the last snapshot still hold as they are.

use crate::log_records::RecordKind;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use store::{FileEntry, Role, Tag};

/// Which parts (id ranges of spaces) have changed since they were last written. The commit thread
/// says what changes.
#[derive(Default)]
pub struct DirtyParts {
    /// Per space, by lowest id: highest id, the stamp of the file that holds the part, and whether
    /// it changed since.
    spaces: Mutex<HashMap<u32, BTreeMap<u64, Part>>>,
    /// Spaces that had pairs aside when they were last written.
    aside: Mutex<HashSet<u32>>,
    /// Ranges of spaces that went to the disk since the snapshot under way began.
    gone: Mutex<Vec<(u32, u64, u64)>>,
    changes: AtomicU64,
}

#[derive(Clone, Copy)]
struct Part {
    high: u64,
    stamp: u64,
    changed: bool,
}

impl DirtyParts {
    /// Something about `id` has changed.
    pub(crate) fn touch(&self, space: u32, id: u64) {
        self.touch_all([(space, id)].into_iter());
    }

    /// The same for many, under one lock. Those of one part that come one after the other cost one
    /// search.
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

    /// Changed rows and pairs since the process began, about; the commit thread's last round is in
    /// it.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// Takes over what a manifest names.
    pub(crate) fn adopt(&self, files: &[FileEntry]) {
        // What the last process had aside is not known: then it may have moved.
        self.aside.lock().extend(
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
            let part = Part { high: tag.high, stamp: tag.stamp, changed: false };
            spaces.entry(tag.space).or_default().insert(tag.low, part);
        }
    }

    /// These tables are the parts of the space from now on. Gives for each the stamp of the file
    /// that holds it, if it has one and has not changed since; the others are to be written. That
    /// they have changed is forgotten in the same moment, under the same lock: what changes from
    /// here on counts for the next snapshot.
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
            (low, Part { high, stamp: kept.unwrap_or(stamp), changed: false })
        });
        spaces.insert(space, now.collect());
        kept
    }

    /// The space has these tables by now. Gives those that it had not, which are to be written.
    pub(crate) fn grow(&self, space: u32, tables: &[(u64, u64)], stamp: u64) -> Vec<(u64, u64)> {
        let mut spaces = self.spaces.lock();
        let parts = spaces.entry(space).or_default();
        let mut is_new = |&(low, high): &(u64, u64)| {
            let known = parts.contains_key(&low);
            parts.entry(low).or_insert(Part { high, stamp, changed: false });
            !known
        };
        tables.iter().copied().filter(|table| is_new(table)).collect()
    }

    /// The part has a new file after all.
    pub(crate) fn rewritten(&self, space: u32, low: u64, stamp: u64) {
        if let Some(part) = self.spaces.lock().get_mut(&space).and_then(|parts| parts.get_mut(&low))
        {
            part.stamp = stamp;
        }
    }

    /// Whether the space had pairs aside the last time; `now`: whether it has.
    pub(crate) fn had_outliers(&self, space: u32, now: bool) -> bool {
        let mut aside = self.aside.lock();
        if now { !aside.insert(space) } else { aside.remove(&space) }
    }

    /// A snapshot begins.
    pub(crate) fn begin_all(&self) {
        self.gone.lock().clear();
    }

    /// Whether what a file of the snapshot under way holds has gone to the disk since.
    pub(crate) fn is_gone(&self, tag: &Tag) -> bool {
        let within = |&(space, low, last): &(u32, u64, u64)| {
            space == tag.space && low <= tag.low && tag.high <= last
        };
        let is_part =
            [RecordKind::Rows, RecordKind::Table].iter().any(|&kind| kind as u32 == tag.kind);
        is_part && self.gone.lock().iter().any(within)
    }

    /// The parts of the space that lie in a range go to the disk: they must be written again, and
    /// what a snapshot under way has of them is not needed.
    pub(crate) fn forget_range(&self, space: u32, low: u64, last: u64) {
        self.gone.lock().push((space, low, last));
        if let Some(parts) = self.spaces.lock().get_mut(&space) {
            parts.retain(|&from, part| from > last || part.high < low);
        }
    }

    /// All parts of the space must be written again.
    pub(crate) fn forget_space(&self, space: u32) {
        self.spaces.lock().remove(&space);
    }

    /// The snapshot failed: nothing of it can be relied on.
    pub(crate) fn forget(&self) {
        self.spaces.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a start would read into memory what had gone from there.
    #[test]
    fn what_went_to_the_disk_is_not_kept_and_left_out_of_the_snapshot_under_way() {
        let tables = [(0, 9), (10, 19), (20, 29)];
        let parts = DirtyParts::default();
        parts.begin_all();
        assert_eq!(parts.begin(1, &tables, 5), [None; 3]);
        parts.forget_range(1, 10, 19);
        let gone = |space, low, high| {
            let tag = Tag { space, kind: RecordKind::Rows as u32, low, high, stamp: 5 };
            parts.is_gone(&tag)
        };
        assert!(gone(1, 10, 19) && gone(1, 12, 15), "what lies in it");
        assert!(!gone(1, 0, 9) && !gone(1, 10, 20) && !gone(2, 10, 19));
        parts.begin_all();
        assert!(!gone(1, 10, 19), "that was the last one's");
        assert_eq!(parts.begin(1, &tables, 6), [Some(5), None, Some(5)]);
        // A table that changes meanwhile is written again.
        parts.touch_all([(1, 3), (1, 4)].into_iter());
        assert_eq!(parts.begin(1, &tables, 7), [None, Some(6), Some(5)]);
    }
}
