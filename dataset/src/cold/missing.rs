//! Records the missing rows of a page while the page is read.
//!
//! A check for cold rows before a request costs as much as the request. It finds nothing while the
//! cache has the rows. So a page is read at once, and rows that are neither cached nor pinned are
//! recorded. If there are any, the page is read again after they have been fetched. The first
//! attempt sees such rows as unreadable, so it returns no answer.

use crate::cold::cache::{ColdCache, Key, PINS, Read, pinned};
use crate::cold::fetch::Fetching;
use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};

/// Error returned for a row that will be fetched.
static TO_FETCH: LazyLock<Arc<str>> = LazyLock::new(|| "the row has not been read yet".into());

#[derive(Default)]
struct Notes {
    lacks: Fetching,
    /// Number of rows and pairs found in the cache.
    hits: u64,
}

thread_local! {
    /// Notes of the current page; `None` if missing rows are not recorded.
    static NOTES: RefCell<Option<Notes>> = const { RefCell::new(None) };
}

impl ColdCache {
    /// Runs `read` and returns the rows it missed. If there are any, the caller discards the
    /// result, [fetches](super::Cold::fetch) them and calls this again.
    pub fn note_missing(&self, read: impl FnOnce()) -> Fetching {
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

    /// Returns a pinned or cached row or pair. If it is missing and missing rows are recorded,
    /// calls `want` to record it and returns an error. Otherwise returns `None`, and the caller
    /// reads in place.
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
            // The page will be read again. Pinning protects the row from eviction until then.
            if !notes.lacks.is_ready() {
                PINS.with_borrow_mut(|pins| pins.insert(*key, Ok(row.clone())));
            }
            Some(Ok(row))
        })
    }
}
