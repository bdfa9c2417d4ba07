//! What a page finds missing while it is read.
//!
//! Looking for cold rows before a request runs costs as much as the request, and finds nothing to
//! read where the cache has them. So a page that can be read twice is not looked at: it is read,
//! notes what is not at hand, and is read again once that has come. What it lacks it takes for
//! unreadable meanwhile, so no answer is made of it.

use crate::cold::cache::{ColdCache, Key, PINS, Read, pinned};
use crate::cold::fetch::Fetching;
use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};

/// What a read is told of a row that will be fetched.
static TO_FETCH: LazyLock<Arc<str>> = LazyLock::new(|| "it is not read yet".into());

#[derive(Default)]
struct Notes {
    lacks: Fetching,
    /// Rows and pairs that were in the cache, and are not counted yet.
    hits: u64,
}

thread_local! {
    /// Of the page at hand, if it takes notes.
    static NOTES: RefCell<Option<Notes>> = const { RefCell::new(None) };
}

impl ColdCache {
    /// Runs `read`, and gives what it lacked. It is to be run again when that was
    /// [fetched](super::Cold::fetch), and what it has read counts only if it lacked nothing.
    pub fn note_missing(&self, read: impl FnOnce()) -> Fetching {
        /// Should the read panic.
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                NOTES.take();
            }
        }
        let _end = End;
        NOTES.set(Some(Notes::default()));
        read();
        let Notes { lacks, hits } = NOTES.take().unwrap_or_default();
        if hits > 0 {
            self.figures.hits.fetch_add(hits, Relaxed);
        }
        lacks
    }

    /// What is at hand of a row or a pair that is read. If nothing is, and the page at hand takes
    /// notes, `want` notes it there; `None`: it is to be read in place.
    pub(crate) fn find(&self, key: &Key, want: impl FnOnce(&mut Fetching)) -> Option<Read> {
        if let Some(read) = pinned(key) {
            return Some(read);
        }
        let row = self.cache.get(key);
        NOTES.with_borrow_mut(|notes| {
            let Some(notes) = notes else { return row.map(Ok) };
            let Some(row) = row else {
                self.figures.misses.fetch_add(1, Relaxed);
                want(&mut notes.lacks);
                return Some(Err(TO_FETCH.clone()));
            };
            notes.hits += 1;
            // It will be asked for again, and is not to leave the cache meanwhile.
            if !notes.lacks.is_ready() {
                PINS.with_borrow_mut(|pins| pins.insert(*key, Ok(row.clone())));
            }
            Some(Ok(row))
        })
    }
}
