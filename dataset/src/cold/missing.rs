//! Records which rows of a page must be fetched from disk.
//!
//! Checking for cold rows before a request would cost as much as the request itself, and usually
//! all rows are in the cache. Therefore the worker reads a page immediately, and records rows that
//! are neither cached nor pinned. If rows are missing, the reader threads fetch them, and the
//! worker reads the page again. The first attempt treats such rows as unreadable, and its result is
//! discarded.

use crate::cold::cache::{ColdCache, Key, PINS, Read, pinned};
use crate::cold::fetch::ColdReads;
use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};

/// Error for a row that will be fetched.
static NOT_READ_YET: LazyLock<Arc<str>> = LazyLock::new(|| "the row has not been read yet".into());

#[derive(Default)]
struct Notes {
    missing_reads: ColdReads,
    /// Number of rows and pairs found in the cache.
    hits: u64,
}

thread_local! {
    /// Missing rows of the current page, or `None` if missing rows are not recorded.
    static MISSING_READS: RefCell<Option<Notes>> = const { RefCell::new(None) };
}

impl ColdCache {
    /// Runs `read` and returns the missing rows. If rows are missing, the caller discards the
    /// result, [fetches](super::Cold::fetch) them and calls this function again.
    pub fn collect_missing(&self, read: impl FnOnce()) -> ColdReads {
        struct StopRecording;
        impl Drop for StopRecording {
            fn drop(&mut self) {
                MISSING_READS.take();
            }
        }
        let _end = StopRecording;
        MISSING_READS.set(Some(Notes::default()));
        read();
        let Notes { missing_reads, hits } = MISSING_READS.take().unwrap_or_default();
        if hits > 0 {
            self.figures.hits.fetch_add(hits, Relaxed);
        }
        missing_reads
    }

    /// Returns a pinned or cached row or pair. If the row is missing and missing rows are recorded,
    /// calls `want` to record it and returns an error. Otherwise returns `None`, and the caller
    /// reads the row synchronously.
    pub(crate) fn find(&self, key: &Key, want: impl FnOnce(&mut ColdReads)) -> Option<Read> {
        if let Some(read) = pinned(key) {
            return Some(read);
        }
        let row = self.cache.get(key);
        MISSING_READS.with_borrow_mut(|notes| {
            let Some(notes) = notes else { return row.map(Ok) };
            let Some(row) = row else {
                self.figures.misses.fetch_add(1, Relaxed);
                want(&mut notes.missing_reads);
                return Some(Err(NOT_READ_YET.clone()));
            };
            notes.hits += 1;
            // The page will be read again. Pin the row, so that it is not evicted until then.
            if !notes.missing_reads.is_ready() {
                PINS.with_borrow_mut(|pins| pins.insert(*key, Ok(row.clone())));
            }
            Some(Ok(row))
        })
    }
}
