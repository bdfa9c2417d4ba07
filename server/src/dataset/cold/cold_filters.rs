//! Existence tables that lie on the disk: the page files of a space, their backend, and how they
//! come to be.
//!
//! The procedure is the one of `spill.rs`, step by step; what differs is what a file is made of. A
//! table's filters become the pages of one file, of which a check reads one (one for each filter of
//! its chain, if the table was overrun: one after the other, until one has the pair). The cache
//! does not hold pages, which are hardly ever read twice, but answers: this pair, in this file, yes
//! or no.
//!
//! ```text
//!   1  phantom::Space::begin_rewrite   the table is frozen: what changes from here is kept beside
//!                                      it, exactly
//!   2  a new file                      its pages, with what came late; then the revoked pairs
//!   3  log flushed, new manifest       names the new file, and neither the old one nor the
//!                                      snapshot's file of the table
//!   4  phantom::Space::end_rewrite     the file answers; the memory goes to the next table
//! ```
//!
//! A step that fails leaves a frozen table that is still in memory and answers as before; the next
//! attempt goes on with it.

use crate::dataset::cold::io_throttle::Pace;
use crate::dataset::cold::spill::{Ground, Spilled, no_room};
use crate::dataset::cold::{Cold, Damaged, Fetching, Key, Read, Values, note_failed};
use crate::dataset::engines::{Engines, ExistenceSpace};
use crate::dataset::log_records::RecordKind;
use arc_swap::ArcSwap;
use phantom::{Chain, ColdBackend, Member, Note, Pair};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use store::{BLOCK_BYTES, BlockPlace, FileEntry, PageFile, Role, Store, Tag};

/// Pages that are written together.
const PAGES_AT_ONCE: usize = 16;

/// The pages of one table.
pub(crate) struct PairFile {
    file: PageFile,
    chain: Arc<Chain>,
    shared: Arc<Cold>,
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
        Ok((Arc::new(PairFile { file, chain, shared: shared.clone() }), note))
    }

    pub(crate) fn entry(&self) -> &FileEntry {
        self.file.entry()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.file.memory_bytes() + size_of::<PairFile>()
    }

    /// Pairs in it, those that are revoked included.
    pub(crate) fn pairs(&self) -> u64 {
        self.chain.pairs()
    }

    pub(crate) fn key(&self, pair: &Pair) -> Key {
        (self.file.identity(), pair.hash())
    }

    /// Reads whether a pair is there.
    pub(crate) fn look(&self, pair: &Pair) -> store::Result<crate::dataset::cold::Row> {
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

    /// Where the page lies that this filter of the chain has for it; none: there is no such filter.
    pub(crate) fn place(&self, pair: &Pair, filter: usize) -> Option<BlockPlace> {
        self.chain.places(pair).nth(filter).map(|number| self.file.place(number as u64))
    }

    /// What that page, as it was read, says of it; nothing if the next filter may have it.
    pub(crate) fn answer(
        &self,
        pair: &Pair,
        filter: usize,
        page: &[u8; BLOCK_BYTES],
    ) -> Option<Read> {
        let mut left = self.chain.places(pair).skip(filter);
        let number = left.next()?;
        let told = match self.file.verify_page(number as u64, page) {
            Ok(()) if self.chain.has(filter, pair, page) => Ok(Some(Values::new())),
            Ok(()) if left.next().is_some() => return None,
            Ok(()) => Ok(None),
            Err(error) => Err(error),
        };
        Some(self.noted(pair, told))
    }

    /// Reads it, and has it cached. What cannot be read is reported.
    pub(crate) fn read(&self, pair: &Pair) -> Read {
        self.noted(pair, self.look(pair))
    }

    fn noted(&self, pair: &Pair, told: store::Result<crate::dataset::cold::Row>) -> Read {
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
    fn has(&self, pair: &Pair) -> Option<bool> {
        let read = self.shared.at_hand(&self.key(pair)).unwrap_or_else(|| {
            self.shared.figures.reads_in_place.fetch_add(1, Relaxed);
            self.read(pair)
        });
        match read {
            Ok(row) => Some(row.is_some()),
            Err(why) => {
                note_failed(pair.id, why);
                None
            }
        }
    }

    fn identity(&self) -> u64 {
        self.file.identity()
    }
}

/// The tables of one existence space that lie on the disk, in the order of their ranges.
pub(crate) struct ColdPairs {
    shared: Arc<Cold>,
    files: ArcSwap<Vec<Arc<PairFile>>>,
    /// See [`ColdPairs::end`].
    end: AtomicU64,
    /// The last attempt to write failed: no writer need wait for room.
    pub(crate) stuck: AtomicBool,
    /// What cannot be merged.
    pub(crate) damaged: Damaged,
}

impl ColdPairs {
    pub(crate) fn new(shared: Arc<Cold>) -> ColdPairs {
        let (files, end, stuck, damaged) = Default::default();
        ColdPairs { shared, files, end, stuck, damaged }
    }

    /// Whether there are any, or were.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.end() > 0
    }

    /// Pairs of ids from here on have never been on the disk, so that a page of young posts costs
    /// one look per id.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }

    pub(crate) fn files(&self) -> Arc<Vec<Arc<PairFile>>> {
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

    /// Notes what must be read before it can be said whether a pair is set; nothing if it is at
    /// hand, or in memory, or `asks` says that it is not needed.
    pub(crate) fn ask(
        &self,
        space: &phantom::Space,
        (id, member): (u64, &Member<'_>),
        fetching: &mut Fetching,
        asks: impl FnOnce() -> bool,
    ) {
        if id >= self.end() {
            return;
        }
        let pair = &space.pair(id, member);
        if !space.lies_elsewhere(pair) || !asks() {
            return;
        }
        let files = self.files.load();
        let above = files.partition_point(|file| file.entry().tag.low <= pair.id);
        let Some(file) = above.checked_sub(1).map(|at| &files[at]) else { return };
        if !self.shared.is_at_hand(file.key(pair)) {
            fetching.want_pair(file, pair);
        }
    }
}

/// The page files of an existence space that the manifest names.
pub(crate) fn files_of(store: &Store, space: u32) -> Vec<FileEntry> {
    let ours =
        |file: &FileEntry| file.tag.space == space && file.tag.kind == RecordKind::Table as u32;
    store.cold_files().into_iter().filter(ours).collect()
}

impl Ground<'_> {
    /// Writes the table that begins at `low` to the disk, or merges with its file what came late;
    /// `None`: there is no such table. `rate`: bytes per second. No other thread may write files.
    pub(crate) fn spill_pairs(
        &self,
        space: &ExistenceSpace,
        low: u64,
        rate: u64,
    ) -> store::Result<Option<Spilled>> {
        // A table is known by its lowest id.
        space.cold().damaged.note(low, low, self.write_pairs(space, low, rate))
    }

    fn write_pairs(
        &self,
        space: &ExistenceSpace,
        low: u64,
        rate: u64,
    ) -> store::Result<Option<Spilled>> {
        let Ground { store, durability, .. } = *self;
        let hurries = || self.hurries();
        let pace = Pace::new(rate, &hurries);
        let cold = space.cold();
        let figures = &cold.shared.figures;
        let refused = |e: phantom::Error| store::Error::Refused(e.to_string());
        // Before the table is frozen: until then what comes late goes where it always went.
        if let Some((oldest, bytes)) = space.oldest_in_memory()
            && oldest == low
            && self.room_for(bytes, 0)? < bytes
        {
            return Err(no_room(store));
        }
        let Some(mut rewrite) = space.begin_rewrite(low).map_err(refused)? else { return Ok(None) };
        let (low, last) = rewrite.range();
        let files = cold.files();
        let old = files.iter().find(|file| file.entry().tag.low == low);
        let needed = (rewrite.pages() as u64 + 1) * (BLOCK_BYTES as u64 + 4)
            + 16 * space.most_revoked() as u64;
        if self.room_for(needed, old.map_or(0, |old| old.entry().bytes))? < needed {
            return Err(no_room(store));
        }

        let tag = Tag {
            space: space.number(),
            kind: RecordKind::Table as u32,
            low,
            high: last,
            stamp: 0,
        };
        let mut writer = store.begin_pages(tag)?;
        let (mut page, mut pages) =
            ([0; BLOCK_BYTES], Vec::with_capacity(PAGES_AT_ONCE * BLOCK_BYTES));
        let missing = || store::Error::Refused("the old file of the table is not there".to_owned());
        while rewrite.next(&mut page, |number, page| {
            old.ok_or_else(missing)?.file.read(number as u64, page)
        })? {
            pages.extend_from_slice(&page);
            if pages.len() == PAGES_AT_ONCE * BLOCK_BYTES {
                writer.put(&pages)?;
                pages.clear();
                pace.after(writer.bytes());
            }
        }
        writer.put(&pages)?;
        let entry = writer.finish(&rewrite.note())?;
        let published = || -> store::Result<Arc<PairFile>> {
            let (file, _) = PairFile::open(store, &entry, space.options(), &cold.shared)?;
            let durable = self.flush()?;
            let is_replaced = |file: &&FileEntry| match file.role {
                Role::Cold => old.is_some_and(|old| old.entry().name == file.name),
                Role::Snapshot => {
                    (file.tag.space, file.tag.kind, file.tag.low) == (tag.space, tag.kind, low)
                }
            };
            let replaced: Vec<String> =
                store.manifest().files.iter().filter(is_replaced).map(|f| f.name.clone()).collect();
            durability.parts.forget_range(space.number(), low, last);
            store.replace_files(vec![entry.clone()], &replaced, durable)?;
            Ok(file)
        };
        let file = published().inspect_err(|_| store.discard(std::slice::from_ref(&entry)))?;

        let others = files.iter().filter(|file| file.entry().tag.low != low);
        cold.set_files(others.chain([&file]).cloned().collect());
        let is_spill = rewrite.is_spill();
        let left = if is_spill { file.pairs() } else { rewrite.late() as u64 };
        space.end_rewrite(rewrite, file);
        if let Some(old) = old.filter(|old| !store.is_pinned(&old.entry().name)) {
            old.file.retire(store.disk().clone());
        }
        let spilled = Spilled { rows: 0, left, bytes: entry.bytes };
        figures.written_bytes.fetch_add(entry.bytes, Relaxed);
        figures.spilled_pairs.fetch_add(left, Relaxed);
        if is_spill { &figures.spilled_tables } else { &figures.merges }.fetch_add(1, Relaxed);
        tracing::debug!(
            "space '{}': pairs of {low} to {last}: {spilled:?} in {:.1?}",
            space.name(),
            pace.elapsed()
        );
        Ok(Some(spilled))
    }

    /// Files of tables that were recycled go. Whether there were any.
    pub(crate) fn drop_recycled(&self, space: &ExistenceSpace) -> store::Result<bool> {
        let (files, horizon) = (space.cold().files(), space.horizon());
        let (gone, kept): (Vec<_>, Vec<_>) =
            files.iter().cloned().partition(|file| file.entry().tag.high < horizon);
        if gone.is_empty() {
            return Ok(false);
        }
        let names: Vec<String> = gone.iter().map(|file| file.entry().name.clone()).collect();
        self.store.replace_files(Vec::new(), &names, 0)?;
        space.cold().set_files(kept);
        let unpinned = gone.iter().filter(|file| !self.store.is_pinned(&file.entry().name));
        unpinned.for_each(|file| file.file.retire(self.store.disk().clone()));
        Ok(true)
    }

    /// Spills or merges what is most urgent. Whether there was anything. `None`: memory is short,
    /// and nothing can be done about it.
    pub(crate) fn look_after_pairs(
        &self,
        space: &ExistenceSpace,
        rate: u64,
    ) -> store::Result<Option<bool>> {
        if space.is_short() {
            let Some((low, _)) = space.oldest_in_memory() else { return Ok(None) };
            return Ok(self.spill_pairs(space, low, 0)?.map(|_| true));
        }
        let (late, most) = space.late();
        match most_late(space) {
            Some((low, _)) if late > most / 2 => {
                let rate = if is_crowded(space) { 0 } else { rate };
                Ok(Some(self.spill_pairs(space, low, rate)?.is_some()))
            }
            _ => Ok(Some(self.drop_recycled(space)?)),
        }
    }
}

/// The table with the most late pairs, of those that can be merged, and how many.
fn most_late(space: &ExistenceSpace) -> Option<(u64, usize)> {
    space.most_late(|low| !space.cold().damaged.has(low, low))
}

/// Whether so much has come late that writers are to wait for a merge.
pub(crate) fn is_crowded(space: &ExistenceSpace) -> bool {
    let (late, most) = space.late();
    late > most / 4 * 3
}

/// Whether there is anything to do for a space.
pub(crate) fn wants_care(space: &ExistenceSpace) -> bool {
    let (late, most) = space.late();
    let horizon = space.horizon();
    space.is_short()
        || late > most / 2
        || space.cold().files.load().first().is_some_and(|file| file.entry().tag.high < horizon)
}

/// Spills the oldest table of pairs that is in memory, or else merges where most has come late;
/// `None`: there is neither.
pub(crate) fn spill_oldest(
    ground: &Ground<'_>,
    space: &ExistenceSpace,
) -> store::Result<Option<Spilled>> {
    let low = space.oldest_in_memory().or(most_late(space).map(|(low, late)| (low, late as u64)));
    low.map_or(Ok(None), |(low, _)| ground.spill_pairs(space, low, 0))
}

/// Keeps the spaces within their limits while they are filled from the log.
pub(crate) fn keep_within(
    ground: &Ground<'_>,
    engines: &Engines,
) -> Result<(), (String, store::Error)> {
    for space in engines.existences() {
        loop {
            match ground.look_after_pairs(space, 0) {
                Ok(Some(true)) => {}
                Ok(_) => break,
                Err(error) => return Err((space.name().to_owned(), error)),
            }
        }
    }
    Ok(())
}
