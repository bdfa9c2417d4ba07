//! Which parts of cold files are known to be damaged: found by a request, a merge or the scrubber.
//! Each is logged once, and INFO names them until their file goes or is found to be sound.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// So many parts of a file are known one by one; more say nothing new.
const MOST_PARTS: usize = 1024;

/// The damaged files by their names, and the bytes at which damaged parts begin.
#[derive(Default)]
pub struct Damaged(Mutex<BTreeMap<String, BTreeSet<u64>>>);

impl Damaged {
    /// Notes a damaged part. Whether it was not known.
    pub(crate) fn note(&self, file: &str, offset: u64) -> bool {
        let mut files = self.0.lock();
        let parts = files.entry(file.to_owned()).or_default();
        parts.len() < MOST_PARTS && parts.insert(offset)
    }

    /// All of a file was read, and was as it should be.
    pub(crate) fn is_sound(&self, file: &str) {
        self.0.lock().remove(file);
    }

    /// The damaged files that are `there`, and how many parts of each are damaged. The others are
    /// forgotten.
    pub fn files(&self, there: impl Fn(&str) -> bool) -> Vec<(String, usize)> {
        let mut files = self.0.lock();
        files.retain(|name, _| there(name));
        files.iter().map(|(name, parts)| (name.clone(), parts.len())).collect()
    }
}

/// The file and the byte that an error is about, if that is damage.
pub(crate) fn place_of(error: &store::Error) -> Option<(String, u64)> {
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
        assert!(damaged.note("a", 4096), "another file of that name");
        damaged.is_sound("b");
        assert_eq!(all(&|_| true), [("a".to_owned(), 1)]);
        assert_eq!((0..9999).filter(|&at| damaged.note("c", at)).count(), MOST_PARTS);
    }
}
