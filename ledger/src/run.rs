//! A run: the pairs of one range of ids, sorted, in an immutable file of the store.
//!
//! A run is a page file (`store/src/cold/pages.rs`). Its pages are blocks of pairs (`block.rs`).
//! Its note is
//!
//! ```text
//!   offset  size  field
//!        0     4  version   1
//!        4     4  flags     1: it has a filter
//!        8     8  pairs
//!       16     8  unset     how many of them are unset
//!       24     8  first     lowest id
//!       32     8  last      highest id
//!       40        index (index.rs)
//!                 filter (filter.rs), to the end
//! ```
//!
//! Little-endian. Valid only if version and flags are known, the ids lie within the file's range,
//! the counts are possible, and index and filter have the lengths that they need. The lowest run
//! of a range has all that is set and not in the runs above it: it needs no unset pairs, and as
//! nearly all lookups that reach it find their pair, no filter.

use crate::block::{Block, Builder};
use crate::filter::Filter;
use crate::index::{Firsts, Index};
use crate::pair::{Member, Pair, Pairs, hash_of};
use store::{BLOCK_BYTES, FileEntry, PageFile, PageWriter, Store, Tag};

const VERSION: u32 = 1;
const HAS_FILTER: u32 = 1;
const NOTE_HEAD: usize = 40;

/// What the note's head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    pairs: u64,
    unset: u64,
    first: u64,
    last: u64,
}

/// A run, open for lookups from any thread.
#[derive(Debug)]
pub struct Run {
    file: PageFile,
    counts: Counts,
    index: Index,
    filter: Option<Filter>,
}

fn decode(
    mut note: &[u8],
    tag: &Tag,
    pages: u64,
) -> Result<(Counts, Index, Option<Filter>), &'static str> {
    let head = note.split_off(..NOTE_HEAD).ok_or("the note is cut off")?;
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
    let (version, flags) = (number(0) as u32, (number(0) >> 32) as u32);
    if version != VERSION || flags & !HAS_FILTER != 0 {
        return Err("the note has a version, or a flag, that is not known");
    }
    let counts =
        Counts { pairs: number(8), unset: number(16), first: number(24), last: number(32) };
    let possible = (pages..=pages * BLOCK_BYTES as u64 * 4).contains(&counts.pairs)
        && counts.unset <= counts.pairs
        && tag.low <= counts.first
        && counts.first <= counts.last
        && counts.last <= tag.high;
    if !possible {
        return Err("the note describes an impossible run");
    }
    let index = Index::decode(&mut note, counts.first, pages as usize)?;
    match flags {
        HAS_FILTER => Ok((counts, index, Some(Filter::decode(note)?))),
        _ if note.is_empty() => Ok((counts, index, None)),
        _ => Err("the note is longer than it should be"),
    }
}

impl Run {
    /// Opens a file that the manifest names, or will name.
    pub fn open(store: &Store, entry: &FileEntry) -> store::Result<Run> {
        let (file, note) = store.open_pages(entry)?;
        let (counts, index, filter) =
            decode(&note, &entry.tag, file.pages()).map_err(|what| file.corrupt_note(what))?;
        Ok(Run { file, counts, index, filter })
    }

    pub(crate) fn file(&self) -> &PageFile {
        &self.file
    }

    /// As the manifest names it.
    pub fn entry(&self) -> &FileEntry {
        self.file.entry()
    }

    /// Rises with each file that is written: of two runs, the one with the larger is newer.
    pub fn identity(&self) -> u64 {
        self.file.identity()
    }

    /// Offset of the log up to which this run and the older ones of its range have all changes of
    /// the ids that it answers for; 0 if that is not known.
    pub(crate) fn covered(&self) -> u64 {
        self.entry().tag.stamp
    }

    /// Whether the id lies in the range that this run was written for.
    pub(crate) fn answers_for(&self, id: u64) -> bool {
        let tag = self.entry().tag;
        (tag.low..=tag.high).contains(&id)
    }

    /// Pairs in it, unset ones included.
    pub fn pairs(&self) -> u64 {
        self.counts.pairs
    }

    /// How many of them are unset.
    pub fn unset(&self) -> u64 {
        self.counts.unset
    }

    /// Bytes of memory that it takes.
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

    /// The block that must be read to know whether the run has a pair; none: it has not got it.
    pub(crate) fn block_of(&self, id: u64, member: Member<'_>, hash: u64) -> Option<usize> {
        let within = (self.counts.first..=self.counts.last).contains(&id);
        let may = within && self.filter.as_ref().is_none_or(|filter| filter.may_hold(hash));
        may.then(|| self.index.block_of(id, member))
    }

    /// The first block that may have pairs from this one on.
    pub(crate) fn block_from(&self, id: u64, member: Option<Member<'_>>) -> usize {
        // An id may begin in the block before the one that goes on with it.
        self.index.block_of(id, member.unwrap_or(Member::Number(0)))
    }

    /// What a block, as it was read, says of a pair.
    pub(crate) fn find(
        &self,
        block: usize,
        bytes: &[u8; BLOCK_BYTES],
        (id, member): (u64, Member<'_>),
    ) -> store::Result<Option<bool>> {
        self.file.verify(block as u64, bytes)?;
        let found = Block::new(bytes).find(id, member);
        found.map_err(|what| self.file.corrupt(block as u64, what))
    }

    /// Reads a block.
    pub(crate) fn read(&self, block: usize, bytes: &mut [u8; BLOCK_BYTES]) -> store::Result<()> {
        self.file.read(block as u64, bytes)
    }

    /// Reads all pairs of a block, which are to lie behind `before`.
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
            return Err(corrupt("the block holds no pairs"));
        };
        let rises = before.is_none_or(|before| before < first.key());
        if !rises || first.id != self.index.id(block) || last.id > self.counts.last {
            return Err(corrupt("the block's pairs are not those of the index"));
        }
        Ok(())
    }
}

/// A run under construction. Dropped before [`finish`](RunWriter::finish) it leaves nothing.
#[derive(Debug)]
pub struct RunWriter {
    pages: PageWriter,
    builder: Builder,
    firsts: Firsts,
    /// The last pair of the last block.
    before: Pairs,
    counts: Counts,
    /// Of all pairs, if it gets a filter.
    hashes: Option<Vec<u64>>,
}

impl RunWriter {
    /// Begins a run of the ids of `tag`; `is_lowest`: it gets no filter.
    pub fn begin(store: &Store, tag: Tag, is_lowest: bool) -> store::Result<RunWriter> {
        Ok(RunWriter {
            pages: store.begin_pages(tag)?,
            builder: Builder::default(),
            firsts: Firsts::default(),
            before: Pairs::default(),
            counts: Counts { pairs: 0, unset: 0, first: 0, last: 0 },
            hashes: (!is_lowest).then(Vec::new),
        })
    }

    /// The identity that the run will have.
    pub fn identity(&self) -> u64 {
        self.pages.identity()
    }

    /// Pairs so far.
    pub fn pairs(&self) -> u64 {
        self.counts.pairs
    }

    /// Bytes so far: for a budget.
    pub fn bytes(&self) -> u64 {
        self.pages.bytes()
    }

    /// Adds a pair, which lies behind all before.
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

    /// The run answers for ids up to `high` only, and not as far as its tag said.
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

    /// Completes the file, makes it durable and gives it its name; `None`, and no file is left, if
    /// it has no pair. [`Store::replace_files`] makes it part of the data.
    pub fn finish(mut self) -> store::Result<Option<FileEntry>> {
        self.end_block()?;
        if self.firsts.blocks() == 0 {
            return Ok(None);
        }
        let flags = if self.hashes.is_some() { HAS_FILTER } else { 0 };
        let mut note = Vec::new();
        note.extend_from_slice(&VERSION.to_le_bytes());
        note.extend_from_slice(&flags.to_le_bytes());
        let Counts { pairs, unset, first, last } = self.counts;
        [pairs, unset, first, last].iter().for_each(|n| note.extend_from_slice(&n.to_le_bytes()));
        note.extend_from_slice(&self.firsts.encode());
        if let Some(hashes) = &self.hashes {
            note.extend_from_slice(Filter::of(hashes).bytes());
        }
        self.pages.finish(&note).map(Some)
    }
}
