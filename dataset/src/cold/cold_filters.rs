//! Existence tables on disk: the page files of a space, and the backend of the filter engine.
//! `tiering/filters.rs` writes the files.

use crate::cold::cache::ColdCache;
use crate::cold::fetch::Fetching;
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
        let want = |fetching: &mut Fetching| {
            self.this.upgrade().iter().for_each(|this| fetching.want_pair(this, pair));
        };
        let read = self.shared.find(&self.key(pair), want).unwrap_or_else(|| {
            self.shared.figures.reads_in_place.fetch_add(1, Relaxed);
            self.read(pair)
        });
        read.map(|row| row.is_some()).map_err(|why| Unreadable { id: pair.id, why })
    }

    fn read(&self, first: usize, pages: &mut [u8]) -> Result<(), Unreadable> {
        self.file.read_many(first as u64, pages).map_err(|error| {
            self.shared.note_failure(&error);
            Unreadable { id: self.entry().tag.low, why: error.to_string().into() }
        })
    }

    fn identity(&self) -> u64 {
        self.file.identity()
    }
}

/// What the filters refuse, as work with files tells it.
pub(crate) fn refused(error: phantom::Error) -> store::Error {
    store::Error::Refused(error.to_string())
}

/// The tables of one existence space that lie on the disk, in the order of their ranges.
pub struct ColdPairs {
    shared: Arc<ColdCache>,
    files: ArcSwap<Vec<Arc<PairFile>>>,
    /// See [`ColdPairs::end`].
    end: AtomicU64,
    /// The last attempt to write failed: no writer need wait for room.
    pub(crate) stuck: AtomicBool,
    /// What cannot be merged.
    pub(crate) damaged: Quarantine,
}

impl ColdPairs {
    pub(crate) fn new(shared: Arc<ColdCache>) -> ColdPairs {
        let (files, end, stuck, damaged) = Default::default();
        ColdPairs { shared, files, end, stuck, damaged }
    }

    /// Whether there are any, or were.
    #[inline]
    pub fn any(&self) -> bool {
        self.end() > 0
    }

    /// Pairs of ids from here on have never been on the disk, so that a page of young posts costs
    /// one look per id.
    #[inline]
    pub fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }

    pub(crate) fn shared(&self) -> &Arc<ColdCache> {
        &self.shared
    }

    /// Offset of the log up to which a file has all changes of this id's pairs; 0: unknown, or no
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

    /// All files, in the order of their ranges.
    pub fn files(&self) -> Arc<Vec<Arc<PairFile>>> {
        self.files.load_full()
    }

    /// These files answer from now on.
    pub(crate) fn set_files(&self, mut files: Vec<Arc<PairFile>>) {
        files.sort_by_key(|file| file.entry().tag.low);
        // Once there were some it is asked for ever: readers look without a barrier.
        if let Some(last) = files.last() {
            self.end.fetch_max(last.entry().tag.high.saturating_add(1), Relaxed);
            self.shared.begins();
        }
        self.files.store(Arc::new(files));
    }

    /// Notes what must be read before the filters can say whether a pair is set; nothing if it is
    /// at hand, or in memory. Whether something must.
    pub fn ask(
        &self,
        space: &phantom::Space,
        (id, member): (u64, &Member<'_>),
        fetching: &mut Fetching,
    ) -> bool {
        if id >= self.end() {
            return false;
        }
        let pair = &space.pair(id, member);
        if !space.lies_elsewhere(pair) {
            return false;
        }
        let files = self.files.load();
        let above = files.partition_point(|file| file.entry().tag.low <= pair.id);
        let Some(file) = above.checked_sub(1).map(|at| &files[at]) else { return false };
        let wants = !self.shared.is_at_hand(file.key(pair));
        if wants {
            fetching.want_pair(file, pair);
        }
        wants
    }
}

/// The page files of an existence space that the manifest names.
pub(crate) fn files_of(store: &Store, space: u32) -> Vec<FileEntry> {
    let ours =
        |file: &FileEntry| file.tag.space == space && file.tag.kind == RecordKind::Table as u32;
    store.cold_files().into_iter().filter(ours).collect()
}

/// Whether so much has come late that writers are to wait for a merge.
pub(crate) fn is_crowded(space: &phantom::Space) -> bool {
    let (late, most) = space.late();
    late > most / 4 * 3
}
