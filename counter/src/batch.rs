//! Reads of many rows at once, so that their memory accesses overlap and the processor rarely guesses wrong.
//!
//! ```text
//!   begin      for all ids: table, bucket; ask the cache for the bucket
//!   round      for those that are looking: which slots have the right first byte? Some -> candidates. None, but the mark -> onward.
//!              for those that go onward:   the next bucket; ask the cache for it
//!              for the candidates:         the whole tag, the fields; a wrong one with the mark -> onward
//! ```
//!
//! Where an id goes next cannot be predicted, so it is no jump: each id's number is written to the end of a list, whose length then grows
//! by 0 or 1. What is left to jumps is usual (the first candidate is right) or is a list's end.
//!
//! The search itself needs no version: the tag of a row that is there all the time is there at every moment (B1, T1). Its fields do.

use crate::bucket::Matches;
use crate::key::{Home, PROBES};
use crate::read::{Read, is_current};
use crate::table::Table;
use rolling::Entry;

/// Ids that are looked up together: enough to overlap memory latencies, few enough to stay in the first cache; one bit each in a u32.
const CHUNK: usize = 32;

/// Numbers below [`CHUNK`], each at most once.
#[derive(Clone, Copy)]
struct List {
    /// Twice as long as needed: what is not kept is written, too.
    items: [u8; 2 * CHUNK],
    len: usize,
}

impl List {
    const EMPTY: List = List { items: [0; 2 * CHUNK], len: 0 };

    #[inline(always)]
    fn push_if(&mut self, condition: bool, item: usize) {
        self.items[self.len % (2 * CHUNK)] = item as u8;
        self.len = self.len.wrapping_add(usize::from(condition));
    }

    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = usize> {
        self.items[..self.len].iter().map(|&item| usize::from(item) % CHUNK)
    }
}

/// Where the search for one row stands.
#[derive(Clone, Copy, Default)]
struct Way {
    bucket: u64,
    tag: u64,
    remainder: u64,
    matches: Matches,
    past: bool,
}

impl Way {
    fn new(table: &Table, home: Home) -> Way {
        let tag = table.layout().tag(home.remainder, 0);
        Way { bucket: home.bucket, tag, remainder: home.remainder, ..Way::default() }
    }

    /// Looks at the first bytes of the bucket.
    #[inline(always)]
    fn look(&mut self, table: &Table) {
        let bucket = table.main().bucket(self.bucket);
        self.matches = bucket.matches(self.tag as u8, 0);
        self.past = bucket.head().is_past(self.remainder);
    }

    /// Goes on to the next bucket; whether there is one.
    #[inline(always)]
    fn go_on(&mut self, table: &Table) -> bool {
        let main = table.main();
        self.bucket = main.keys.next(self.bucket, main.keys.step(self.remainder));
        main.prefetch(self.bucket);
        self.tag = self.tag.wrapping_add(main.layout.tag(0, 0));
        self.tag < main.layout.tag(0, PROBES)
    }
}

impl Read<'_> {
    /// See [`crate::Space::get_batch`].
    pub fn get_batch(&mut self, ids: &[u64], rows: &mut Vec<i64>, found: &mut Vec<bool>) {
        let width = self.shape.schema.width();
        let mut at = rows.len();
        rows.resize(at + ids.len() * width, 0);
        for ids in ids.chunks(CHUNK) {
            let rows = &mut rows[at..at + ids.len() * width];
            at += ids.len() * width;
            self.get_chunk(ids, width, rows, found);
        }
    }

    /// `rows` are zero.
    fn get_chunk(&mut self, ids: &[u64], width: usize, rows: &mut [i64], found: &mut Vec<bool>) {
        let living = self.shape.living;
        let mut ways = [Way::default(); CHUNK];
        let mut entries: [Option<&Entry<Table>>; CHUNK] = [None; CHUNK];
        let mut looking = List::EMPTY;
        let (mut hits, mut unsure) = (0u32, 0u32);
        for (i, &id) in ids.iter().enumerate() {
            match self.quick(id) {
                Some((entry, home)) => {
                    entry.table().prefetch(home);
                    ways[i] = Way::new(entry.table(), home);
                    entries[i] = Some(entry);
                    looking.push_if(true, i);
                }
                None => unsure |= 1 << i,
            }
        }
        while looking.len > 0 {
            let (mut candidates, mut onward) = (List::EMPTY, List::EMPTY);
            for i in looking.iter() {
                let (Some(entry), way) = (entries[i], &mut ways[i]) else { continue };
                way.look(entry.table());
                candidates.push_if(!way.matches.is_empty(), i);
                onward.push_if(way.matches.is_empty() & way.past, i);
            }
            looking = List::EMPTY;
            for i in onward.iter() {
                let Some(entry) = entries[i] else { continue };
                let more = ways[i].go_on(entry.table());
                looking.push_if(more, i);
                unsure |= u32::from(!more) << i;
            }
            for i in candidates.iter() {
                let (Some(entry), way) = (entries[i], &mut ways[i]) else { continue };
                let out = &mut rows[i * width..][..width];
                let table = entry.table();
                if table.read_match(way.bucket, way.tag, way.matches, ids[i], |row| row.values(living, out)) {
                    hits |= 1 << i;
                    continue;
                }
                // A row that was deleted under the search may have left something.
                out.fill(0);
                if way.past {
                    let more = way.go_on(table);
                    looking.push_if(more, i);
                    unsure |= u32::from(!more) << i;
                }
            }
        }
        let first = found.len();
        found.extend((0..ids.len()).map(|i| hits >> i & 1 == 1));
        for (i, &id) in ids.iter().enumerate() {
            if hits >> i & 1 == 0 && (!entries[i].is_some_and(|entry| is_current(entry, id)) || self.may_lie_below(id))
            {
                unsure |= 1 << i;
            }
        }
        while unsure != 0 {
            let i = unsure.trailing_zeros() as usize;
            unsure &= unsure - 1;
            found[first + i] = self.get(ids[i], &mut rows[i * width..][..width]);
        }
    }

    /// Where `id` is looked for first, if it is in none of the places that the quick way does not know: the aside, a drained table.
    #[inline(always)]
    fn quick(&self, id: u64) -> Option<(&Entry<Table>, Home)> {
        let entry = self.tables.find(id)?;
        let home = entry.table().home(id)?;
        // In the order in which rows move: aside, drained table, table.
        let elsewhere = self.space.aside.may_hold(id) || entry.drains().is_some();
        (!elsewhere && entry.table().layout().byte_lines == 1).then_some((entry, home))
    }
}
