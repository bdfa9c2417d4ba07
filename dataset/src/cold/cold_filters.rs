//! Existence tables that lie on the disk: the page files of a space, and their backend.
//!
//! A table's filters are the pages of one file, of which a check reads one (one for each filter of
//! its chain, if the table was overrun: one after the other, until one has the pair). The cache
//! does not hold pages, which are hardly ever read twice, but answers: this pair, in this file, yes
//! or no. How a file comes to be is in `tiering/filters.rs`.

use crate::cold::fetch::Fetching;
use crate::cold::quarantine::Quarantine;
use crate::cold::{Cold, Key, Read, Unreadable, Values};
use crate::log_records::RecordKind;
use arc_swap::ArcSwap;
use phantom::{Chain, ColdBackend, Member, Note, Pair};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Instant;
use store::{BLOCK_BYTES, FileEntry, PageFile, Store};

/// The pages of one table.
pub struct PairFile {
    file: PageFile,
    chain: Arc<Chain>,
    shared: Arc<Cold>,
    /// Itself, for what is read of it later.
    this: Weak<PairFile>,
}

impl PairFile {
    /// Opens a file that the manifest names, or will name.
    pub(crate) fn open(
        store: &Store,
        entry: &FileEntry,
        options: &phantom::Options,
        shared: &Arc<Cold>,
    ) -> store::Result<(Arc<PairFile>, Note)> {
        let (file, bytes) = store.open_pages(entry)?;
        let corrupt =
            |what: String| store::Error::Corrupt { path: store.path(&entry.name), offset: 0, what };
        let note = Note::decode(options, &bytes).map_err(|e| corrupt(e.to_string()))?;
        let chain = note.chain().clone();
        if note.range() != (entry.tag.low, entry.tag.high) || chain.pages() as u64 != file.pages() {
            return Err(corrupt("its note is that of another table".to_owned()));
        }
        let file = Arc::new_cyclic(|this| PairFile {
            file,
            chain,
            shared: shared.clone(),
            this: this.clone(),
        });
        Ok((file, note))
    }

    /// As the manifest names it.
    pub fn entry(&self) -> &FileEntry {
        self.file.entry()
    }

    /// Offset of the log up to which the file has all changes of pairs of its ids; 0: unknown.
    pub(crate) fn covered(&self) -> u64 {
        self.entry().tag.stamp
    }

    pub(crate) fn file(&self) -> &PageFile {
        &self.file
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.file.memory_bytes() + size_of::<PairFile>()
    }

    /// Pairs in it, those that are revoked included.
    pub fn pairs(&self) -> u64 {
        self.chain.pairs()
    }

    pub(crate) fn key(&self, pair: &Pair) -> Key {
        (self.file.identity(), pair.hash())
    }

    /// Reads whether a pair is there.
    pub(crate) fn look(&self, pair: &Pair) -> store::Result<crate::cold::Row> {
        let mut page = [0; BLOCK_BYTES];
        for (filter, number) in self.chain.places(pair).enumerate() {
            let started = Instant::now();
            self.file.read(number as u64, &mut page)?;
            self.shared.figures.note_read(started.elapsed());
            if self.chain.has(filter, pair, &page) {
                return Ok(Some(Values::new()));
            }
        }
        Ok(None)
    }

    /// Reads it, and has it cached. What cannot be read is reported.
    pub(crate) fn read(&self, pair: &Pair) -> Read {
        self.noted(pair, self.look(pair))
    }

    fn noted(&self, pair: &Pair, told: store::Result<crate::cold::Row>) -> Read {
        match told {
            Ok(row) => {
                self.shared.cache.insert(self.key(pair), row.clone());
                Ok(row)
            }
            Err(error) => {
                self.shared.note_failure(&error);
                Err(error.to_string().into())
            }
        }
    }
}

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
    shared: Arc<Cold>,
    files: ArcSwap<Vec<Arc<PairFile>>>,
    /// See [`ColdPairs::end`].
    end: AtomicU64,
    /// The last attempt to write failed: no writer need wait for room.
    pub(crate) stuck: AtomicBool,
    /// What cannot be merged.
    pub(crate) damaged: Quarantine,
}

impl ColdPairs {
    pub(crate) fn new(shared: Arc<Cold>) -> ColdPairs {
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

    pub(crate) fn shared(&self) -> &Arc<Cold> {
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
