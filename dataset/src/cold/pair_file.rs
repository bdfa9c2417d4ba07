//! Page file with the filters of one table.
//!
//! A lookup reads one page per filter of the table until a filter contains the pair. Most tables
//! have one filter. Few pages are read twice, so the cache stores results of lookups rather than
//! pages.

use crate::cold::cache::{ColdCache, Key, Read, Row, Values};
use phantom::{Chain, Note, Pair};
use std::sync::{Arc, Weak};
use std::time::Instant;
use store::{BLOCK_BYTES, FileEntry, PageFile, Store};

/// Page file with the filters of one table.
pub struct PairFile {
    pub(super) file: PageFile,
    chain: Arc<Chain>,
    pub(super) shared: Arc<ColdCache>,
    pub(super) this: Weak<PairFile>,
}

impl PairFile {
    /// Opens a file that is, or will be, listed in the manifest.
    pub(crate) fn open(
        store: &Store,
        entry: &FileEntry,
        options: &phantom::Options,
        shared: &Arc<ColdCache>,
    ) -> store::Result<(Arc<PairFile>, Note)> {
        let (file, bytes) = store.open_pages(entry)?;
        let note = Note::decode(options, &bytes);
        let note = note.map_err(|error| file.corrupt_note(&error.to_string()))?;
        let chain = note.chain().clone();
        if note.range() != (entry.tag.low, entry.tag.high) || chain.pages() as u64 != file.pages() {
            return Err(file.corrupt_note("the note belongs to another table"));
        }
        let file = Arc::new_cyclic(|this| PairFile {
            file,
            chain,
            shared: shared.clone(),
            this: this.clone(),
        });
        Ok((file, note))
    }

    /// Entry of the file in the manifest.
    pub fn entry(&self) -> &FileEntry {
        self.file.entry()
    }

    /// Log offset up to which the file contains all changes to its pairs; 0 if unknown.
    pub(crate) fn covered(&self) -> u64 {
        self.entry().tag.stamp
    }

    pub(crate) fn file(&self) -> &PageFile {
        &self.file
    }

    /// Memory use in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.file.memory_bytes() + size_of::<PairFile>()
    }

    /// Number of pairs, including pairs that were unset later.
    pub fn pairs(&self) -> u64 {
        self.chain.pairs()
    }

    pub(crate) fn key(&self, pair: &Pair) -> Key {
        (self.file.identity(), pair.hash())
    }

    pub(crate) fn look(&self, pair: &Pair) -> store::Result<Row> {
        let mut page = [0; BLOCK_BYTES];
        for (filter, number) in self.chain.places(pair).enumerate() {
            let started = Instant::now();
            self.file.read(number as u64, &mut page)?;
            self.shared.figures.record_read(started.elapsed());
            if self.chain.has(filter, pair, &page) {
                return Ok(Some(Values::new()));
            }
        }
        Ok(None)
    }

    /// Looks up a pair on disk and caches the result. Counts and logs a failure.
    pub(crate) fn read(&self, pair: &Pair) -> Read {
        self.cached(pair, self.look(pair))
    }

    fn cached(&self, pair: &Pair, answer: store::Result<Row>) -> Read {
        match answer {
            Ok(row) => {
                self.shared.cache.insert(self.key(pair), row.clone());
                Ok(row)
            }
            Err(error) => {
                self.shared.record_failure(&error);
                Err(error.to_string().into())
            }
        }
    }
}
