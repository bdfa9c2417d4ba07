//! Damaged blocks of cold files, found by requests, merges and the scrubber.
//!
//! Each damaged block is logged once. INFO lists a file until it is removed or a scrub reads it
//! without an error.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of damaged blocks recorded per file.
const MAX_DAMAGED_BLOCKS: usize = 1024;

/// Damaged files by name, with the offsets of their damaged blocks in bytes.
#[derive(Default)]
pub struct Damaged(Mutex<BTreeMap<String, BTreeSet<u64>>>);

impl Damaged {
    /// Records a damaged block. Returns false if the block was already recorded, or if the file
    /// already has `MAX_DAMAGED_BLOCKS`.
    pub(crate) fn note(&self, file: &str, offset: u64) -> bool {
        let mut files = self.0.lock();
        let parts = files.entry(file.to_owned()).or_default();
        parts.len() < MAX_DAMAGED_BLOCKS && parts.insert(offset)
    }

    /// Forgets the recorded damage of a file that was read completely without an error.
    pub(crate) fn clear_damage(&self, file: &str) {
        self.0.lock().remove(file);
    }

    /// Returns the damaged files with their numbers of damaged blocks. First removes the files for
    /// which `there` returns false.
    pub fn files(&self, there: impl Fn(&str) -> bool) -> Vec<(String, usize)> {
        let mut files = self.0.lock();
        files.retain(|name, _| there(name));
        files.iter().map(|(name, parts)| (name.clone(), parts.len())).collect()
    }
}

/// Returns the file name and the offset of the damage that an error reports, or `None` for other
/// errors.
pub(crate) fn damage_location(error: &store::Error) -> Option<(String, u64)> {
    match error {
        store::Error::Corrupt { path, offset, .. } => {
            Some((path.file_name()?.to_str()?.to_owned(), *offset))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_part_is_new_once_and_goes_with_its_file() {
        let damaged = Damaged::default();
        assert!(damaged.note("a", 4096) && damaged.note("a", 8192) && damaged.note("b", 4096));
        assert!(!damaged.note("a", 4096));
        let all = |there: &dyn Fn(&str) -> bool| damaged.files(there);
        assert_eq!(all(&|_| true), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!(all(&|name| name == "b"), [("b".to_owned(), 1)]);
        assert!(damaged.note("a", 4096), "a new file of the same name");
        damaged.clear_damage("b");
        assert_eq!(all(&|_| true), [("a".to_owned(), 1)]);
        assert_eq!((0..9999).filter(|&at| damaged.note("c", at)).count(), MAX_DAMAGED_BLOCKS);
    }
}
