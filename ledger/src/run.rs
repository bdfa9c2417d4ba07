//! Run: an immutable file of the store with the sorted pairs of one id range.
//!
//! A run is a page file (`store/src/cold/pages.rs`) whose pages are blocks of pairs (`block.rs`).
//! The note of the page file contains:
//!
//! ```text
//!   offset  size  field
//!        0     4  version   1
//!        4     4  flags     1: has a filter
//!        8     8  pairs
//!       16     8  unset     number of unset pairs
//!       24     8  first     lowest id
//!       32     8  last      highest id
//!       40        index (index.rs)
//!                 filter (filter.rs), to the end
//! ```
//!
//! Integers are little-endian. A note is valid only if version and flags are known, the ids are
//! within the file's range, the counts are possible, and index and filter have the right lengths.
//! The lowest run of a range has no unset pairs, because there is no older state to hide. The
//! lowest run has no filter, because nearly all lookups that reach this run find their pair.

use crate::block::{Block, Builder};
use crate::filter::Filter;
use crate::index::{FirstPairs, Index};
use crate::pair::{Member, Pair, Pairs, hash_of};
use store::{BLOCK_BYTES, FileEntry, PageFile, PageWriter, Store, Tag};

const VERSION: u32 = 1;
const HAS_FILTER: u32 = 1;
const NOTE_HEADER_BYTES: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PairCounts {
    pairs: u64,
    unset: u64,
    first: u64,
    last: u64,
}

/// An open run. Any thread may look up pairs.
#[derive(Debug)]
pub struct Run {
    file: PageFile,
    counts: PairCounts,
    index: Index,
    filter: Option<Filter>,
}

fn decode(
    mut note: &[u8],
    tag: &Tag,
    pages: u64,
) -> Result<(PairCounts, Index, Option<Filter>), &'static str> {
    let head = note.split_off(..NOTE_HEADER_BYTES).ok_or("the note is truncated")?;
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
    let (version, flags) = (number(0) as u32, (number(0) >> 32) as u32);
    if version != VERSION || flags & !HAS_FILTER != 0 {
        return Err("unknown version or flag in the note");
    }
    let counts =
        PairCounts { pairs: number(8), unset: number(16), first: number(24), last: number(32) };
    let possible = (pages..=pages * BLOCK_BYTES as u64 * 4).contains(&counts.pairs)
        && counts.unset <= counts.pairs
        && tag.low <= counts.first
        && counts.first <= counts.last
        && counts.last <= tag.high;
    if !possible {
        return Err("the note is inconsistent");
    }
    let index = Index::decode(&mut note, counts.first, pages as usize)?;
    match flags {
        HAS_FILTER => Ok((counts, index, Some(Filter::decode(note)?))),
        _ if note.is_empty() => Ok((counts, index, None)),
        _ => Err("extra bytes in the note"),
    }
}

impl Run {
    /// Opens a file that is, or will be, listed in the manifest.
    pub fn open(store: &Store, entry: &FileEntry) -> store::Result<Run> {
        let (file, note) = store.open_pages(entry)?;
        let (counts, index, filter) =
            decode(&note, &entry.tag, file.pages()).map_err(|what| file.corrupt_note(what))?;
        Ok(Run { file, counts, index, filter })
    }

    pub(crate) fn file(&self) -> &PageFile {
        &self.file
    }

    /// Returns the manifest entry.
    pub fn entry(&self) -> &FileEntry {
        self.file.entry()
    }

    /// Returns the identity of the run. Every new file gets a larger identity, so of two runs the
    /// one with the larger identity is newer.
    pub fn identity(&self) -> u64 {
        self.file.identity()
    }

    /// Log offset up to which this run and the older runs of its range contain all changes; 0 if
    /// unknown.
    pub(crate) fn covered(&self) -> u64 {
        self.entry().tag.stamp
    }

    /// Whether the id is in the id range that the run was written for.
    pub(crate) fn answers_for(&self, id: u64) -> bool {
        let tag = self.entry().tag;
        (tag.low..=tag.high).contains(&id)
    }

    /// Returns the number of pairs, including unset pairs.
    pub fn pairs(&self) -> u64 {
        self.counts.pairs
    }

    /// Returns the number of unset pairs.
    pub fn unset(&self) -> u64 {
        self.counts.unset
    }

    /// Returns the memory use in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.file.memory_bytes() + size_of::<Run>() - size_of::<PageFile>()
            + self.index.memory_bytes()
            + self.filter.as_ref().map_or(0, |filter| filter.bytes().len())
    }

    pub(crate) fn ids(&self) -> (u64, u64) {
        (self.counts.first, self.counts.last)
    }

    pub(crate) fn blocks(&self) -> usize {
        self.file.pages() as usize
    }

    /// Returns the block that a lookup of the pair must read, or `None` if the run does not contain
    /// the pair.
    pub(crate) fn block_of(&self, id: u64, member: Member<'_>, hash: u64) -> Option<usize> {
        let within = (self.counts.first..=self.counts.last).contains(&id);
        let may = within && self.filter.as_ref().is_none_or(|filter| filter.may_hold(hash));
        may.then(|| self.index.block_of(id, member))
    }

    /// Returns the first block that may contain this pair or a later pair.
    pub(crate) fn block_from(&self, id: u64, member: Option<Member<'_>>) -> usize {
        // The first pairs of an id may be in the block before the first block that begins with the
        // id.
        self.index.block_of(id, member.unwrap_or(Member::Number(0)))
    }

    /// Returns whether a pair is set, or `None` if the block does not contain it. `bytes` is the
    /// block as [`Run::read`] returned it.
    pub(crate) fn find(
        &self,
        block: usize,
        bytes: &[u8; BLOCK_BYTES],
        (id, member): (u64, Member<'_>),
    ) -> store::Result<Option<bool>> {
        let found = Block::new(bytes).find(id, member);
        found.map_err(|what| self.file.corrupt(block as u64, what))
    }

    pub(crate) fn read(&self, block: usize, bytes: &mut [u8; BLOCK_BYTES]) -> store::Result<()> {
        self.file.read(block as u64, bytes)
    }

    /// Reads all pairs of a block and checks that they follow `before`.
    pub(crate) fn pairs_of(
        &self,
        block: usize,
        before: Option<(u64, Member<'_>)>,
        pairs: &mut Pairs,
    ) -> store::Result<()> {
        let mut bytes = [0; BLOCK_BYTES];
        self.read(block, &mut bytes)?;
        pairs.clear();
        let corrupt = |what: &str| self.file.corrupt(block as u64, what);
        Block::new(&bytes).append_to(pairs).map_err(corrupt)?;
        let (Some(first), Some(last)) = (pairs.get(0), pairs.last()) else {
            return Err(corrupt("the block has no pairs"));
        };
        let rises = before.is_none_or(|before| before < first.key());
        if !rises || first.id != self.index.id(block) || last.id > self.counts.last {
            return Err(corrupt("the block's pairs differ from the index"));
        }
        Ok(())
    }
}

/// Writer of a run. Deletes the file if dropped before [`finish`](RunWriter::finish).
#[derive(Debug)]
pub struct RunWriter {
    pages: PageWriter,
    builder: Builder,
    firsts: FirstPairs,
    before: Pairs,
    counts: PairCounts,
    /// Hashes of all pairs, or `None` for a run without a filter.
    hashes: Option<Vec<u64>>,
}

impl RunWriter {
    /// Begins a run for the ids of `tag`. The lowest run of a range gets no filter.
    pub fn begin(store: &Store, tag: Tag, is_lowest: bool) -> store::Result<RunWriter> {
        Ok(RunWriter {
            pages: store.begin_pages(tag)?,
            builder: Builder::default(),
            firsts: FirstPairs::default(),
            before: Pairs::default(),
            counts: PairCounts { pairs: 0, unset: 0, first: 0, last: 0 },
            hashes: (!is_lowest).then(Vec::new),
        })
    }

    /// Returns the identity of the run.
    pub fn identity(&self) -> u64 {
        self.pages.identity()
    }

    /// Returns the number of pairs written.
    pub fn pairs(&self) -> u64 {
        self.counts.pairs
    }

    /// Returns the number of bytes written.
    pub fn bytes(&self) -> u64 {
        self.pages.bytes()
    }

    /// Adds a pair, which must be greater than all previous pairs.
    pub fn push(&mut self, pair: Pair<'_>) -> store::Result<()> {
        if !self.builder.push(pair) {
            self.end_block()?;
            self.builder.push(pair);
        }
        if self.counts.pairs == 0 {
            self.counts.first = pair.id;
        }
        self.counts.last = pair.id;
        self.counts.pairs += 1;
        self.counts.unset += u64::from(!pair.set);
        if let Some(hashes) = &mut self.hashes {
            hashes.push(hash_of(pair.id, pair.member));
        }
        Ok(())
    }

    /// Lowers the end of the run's range to `high`.
    pub fn end_at(&mut self, high: u64) {
        self.pages.end_at(high);
    }

    fn end_block(&mut self) -> store::Result<()> {
        let pairs = self.builder.pairs();
        let (Some(first), Some(last)) = (pairs.get(0), pairs.last()) else { return Ok(()) };
        self.firsts.push(first, self.before.get(0));
        self.before.clear();
        self.before.push(last);
        let block = self.builder.finish();
        self.pages.put(&block)
    }

    /// Completes the file and makes it durable under its final name. Returns `None`, and leaves no
    /// file, if the run is empty. [`Store::replace_files`] adds the file to the manifest.
    pub fn finish(mut self) -> store::Result<Option<FileEntry>> {
        self.end_block()?;
        if self.firsts.blocks() == 0 {
            return Ok(None);
        }
        let flags = if self.hashes.is_some() { HAS_FILTER } else { 0 };
        let mut note = Vec::new();
        note.extend_from_slice(&VERSION.to_le_bytes());
        note.extend_from_slice(&flags.to_le_bytes());
        let PairCounts { pairs, unset, first, last } = self.counts;
        [pairs, unset, first, last].iter().for_each(|n| note.extend_from_slice(&n.to_le_bytes()));
        note.extend_from_slice(&self.firsts.encode());
        if let Some(hashes) = &self.hashes {
            note.extend_from_slice(Filter::of(hashes).bytes());
        }
        self.pages.finish(&note).map(Some)
    }
}
