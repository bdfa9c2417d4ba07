//! Existence tables on disk: the page files of a space, and the filter engine's backend for them.
//! The spill thread writes the files (`tiering/filters.rs`).

use crate::cold::cache::ColdCache;
use crate::cold::fetch::ColdReads;
use crate::cold::pair_file::PairFile;
use crate::cold::quarantine::Quarantine;
use crate::log_records::RecordKind;
use arc_swap::ArcSwap;
use phantom::{ColdBackend, Member, Pair};
use rolling::Unreadable;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use store::{FileEntry, Store};

impl ColdBackend for PairFile {
    fn has(&self, pair: &Pair) -> Result<bool, Unreadable> {
        let want = |fetching: &mut ColdReads| {
            self.this.upgrade().iter().for_each(|this| fetching.request_pair(this, pair));
        };
        let read = self.shared.find(&self.key(pair), want).unwrap_or_else(|| {
            self.shared.figures.reads_in_place.fetch_add(1, Relaxed);
            self.read(pair)
        });
        read.map(|row| row.is_some()).map_err(|why| Unreadable { id: pair.id, why })
    }

    fn read(&self, first: usize, pages: &mut [u8]) -> Result<(), Unreadable> {
        self.file.read_many(first as u64, pages).map_err(|error| {
            self.shared.record_failure(&error);
            Unreadable { id: self.entry().tag.low, why: error.to_string().into() }
        })
    }

    fn identity(&self) -> u64 {
        self.file.identity()
    }
}

pub(crate) fn refused(error: phantom::Error) -> store::Error {
    store::Error::Refused(error.to_string())
}

/// Cold tables of one existence space.
pub struct ColdPairs {
    shared: Arc<ColdCache>,
    files: ArcSwap<Vec<Arc<PairFile>>>,
    end: AtomicU64,
    /// Whether the last write of a file failed. In this state writers do not wait for memory.
    pub(crate) stuck: AtomicBool,
    /// Ranges that cannot be merged because a file is unreadable.
    pub(crate) damaged: Quarantine,
}

impl ColdPairs {
    pub(crate) fn new(shared: Arc<ColdCache>) -> ColdPairs {
        let (files, end, stuck, damaged) = Default::default();
        ColdPairs { shared, files, end, stuck, damaged }
    }

    /// Whether the space has, or had, a table on disk.
    #[inline]
    pub fn any(&self) -> bool {
        self.end() > 0
    }

    /// Lowest id above all tables that were ever on disk. Lookups of higher ids skip the search for
    /// a file.
    #[inline]
    pub fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }

    pub(crate) fn shared(&self) -> &Arc<ColdCache> {
        &self.shared
    }

    /// Log offset up to which a file contains all changes to the id's pairs; 0 if unknown or if no
    /// file covers the id.
    pub(crate) fn covered(&self, id: u64) -> u64 {
        if id >= self.end() {
            return 0;
        }
        let files = self.files.load();
        let above = files.partition_point(|file| file.entry().tag.low <= id);
        let file = above.checked_sub(1).map(|at| &files[at]);
        file.filter(|file| id <= file.entry().tag.high).map_or(0, |file| file.covered())
    }

    /// All files, in ascending order of their ranges.
    pub fn files(&self) -> Arc<Vec<Arc<PairFile>>> {
        self.files.load_full()
    }

    pub(crate) fn set_files(&self, mut files: Vec<Arc<PairFile>>) {
        files.sort_by_key(|file| file.entry().tag.low);
        // `end` never decreases, because readers load it without a barrier.
        if let Some(last) = files.last() {
            self.end.fetch_max(last.entry().tag.high.saturating_add(1), Relaxed);
            self.shared.begins();
        }
        self.files.store(Arc::new(files));
    }

    /// Adds to `fetching` the read that a lookup of the pair needs. Returns false if no read is
    /// needed, because the pair is in memory, pinned or cached.
    pub fn ask(
        &self,
        space: &phantom::Space,
        (id, member): (u64, &Member<'_>),
        fetching: &mut ColdReads,
    ) -> bool {
        if id >= self.end() {
            return false;
        }
        let pair = &space.pair(id, member);
        if !space.needs_disk(pair) {
            return false;
        }
        let files = self.files.load();
        let above = files.partition_point(|file| file.entry().tag.low <= pair.id);
        let Some(file) = above.checked_sub(1).map(|at| &files[at]) else { return false };
        let wants = !self.shared.is_at_hand(file.key(pair));
        if wants {
            fetching.request_pair(file, pair);
        }
        wants
    }
}

/// Returns the manifest entries of a space's page files.
pub(crate) fn files_of(store: &Store, space: u32) -> Vec<FileEntry> {
    let ours =
        |file: &FileEntry| file.tag.space == space && file.tag.kind == RecordKind::Table as u32;
    store.cold_files().into_iter().filter(ours).collect()
}

/// Whether writers must wait for a merge because late pairs use more than 3/4 of their limit.
pub(crate) fn is_crowded(space: &phantom::Space) -> bool {
    let (late, most) = space.late();
    late > most / 4 * 3
}
