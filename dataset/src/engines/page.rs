//! Reads pages: the columns of a view, for one viewer and many ids.

use crate::engines::registry::Engines;
use crate::engines::spaces::CounterSpace;
use crate::engines::view::{Column, View};
use phantom::{Answer, Answers, BATCH, Member};
use rolling::{Unreadable, UnreadableIds};

/// Result of a page read: the columns of a view for each id. The next page reuses its buffers.
#[derive(Default)]
pub struct Page {
    /// For each column, the index of its first value in `rows` and the distance between its values.
    /// Both values depend on the schemas at the time of the read.
    columns: Vec<(usize, usize)>,
    /// Whether the columns of an id are adjacent in `rows`.
    is_contiguous: bool,
    /// For each source, the index of its first row in `rows` and the number of values per row.
    sources: Vec<(usize, usize)>,
    living: Vec<(usize, usize)>,
    /// All rows of the first source, then of the second, and so on.
    rows: Vec<i64>,
    flags: usize,
    /// Answers: for each batch of ids, one entry per flag.
    answers: Vec<Answers>,
}

impl Page {
    /// Number of counters per id.
    #[inline]
    pub fn counters(&self) -> usize {
        self.columns.len()
    }

    /// Number of flags per id.
    #[inline]
    pub fn flags(&self) -> usize {
        self.flags
    }

    /// Counter `column` of the id at position `index`.
    #[inline]
    pub fn counter(&self, index: usize, column: usize) -> i64 {
        let (first, apart) = self.columns[column];
        self.rows[first + index * apart]
    }

    /// All counters of the id at position `index`, if they are adjacent in memory. Otherwise the
    /// caller uses [`Page::counter`].
    #[inline(always)]
    pub fn counters_of(&self, index: usize) -> Option<&[i64]> {
        let &(first, apart) = self.columns.first().filter(|_| self.is_contiguous)?;
        self.rows.get(first.wrapping_add(index.wrapping_mul(apart))..)?.get(..self.columns.len())
    }

    /// Bitwise OR of all counters, from which the reply writer derives the maximum number of
    /// digits.
    pub fn bits(&self) -> u64 {
        self.rows.iter().fold(0, |bits, &value| bits | value as u64)
    }

    /// Returns the page in a simpler form if it has four adjacent counters and two flags, and all
    /// answers are known. Most pages have this form.
    pub fn usual(&self) -> Option<UsualPage<'_>> {
        let is_usual = self.is_contiguous
            && self.columns.len() == 4
            && self.columns[0] == (0, 4)
            && self.flags == 2;
        (is_usual && self.answers.iter().all(|answers| answers.unknown == 0))
            .then(|| (self.rows.as_chunks().0, self.answers.as_chunks().0))
    }

    /// All flags of the id at position `index`.
    #[inline(always)]
    pub fn flags_of(&self, index: usize) -> impl Iterator<Item = Answer> {
        let first = index / BATCH * self.flags;
        self.answers[first..first + self.flags].iter().map(move |answers| answers.at(index))
    }

    /// Flag `flag` of the id at position `index`.
    #[inline]
    pub fn flag(&self, index: usize, flag: usize) -> Answer {
        self.answers[index / BATCH * self.flags + flag].at(index)
    }
}

impl Engines {
    /// Verifies a page's positive answers with the ledgers of the view's flags. Answers for pairs
    /// that cannot be read become negative, and the error contains the ids of these pairs. Returns
    /// `None` if no flag has a ledger.
    pub fn verify_page(
        &self,
        view: &View,
        viewer: &Member<'_>,
        ids: &[u64],
        page: &mut Page,
    ) -> Option<Result<(), UnreadableIds>> {
        let exact = view.flags.iter().enumerate();
        let exact: Vec<_> = exact
            .map(|(at, &space)| (at, &self.existences[space]))
            .filter(|(_, space)| space.ledger().is_some())
            .collect();
        if exact.is_empty() {
            return None;
        }
        let mut failed = Vec::new();
        for (index, &id) in ids.iter().enumerate() {
            for &(flag, space) in &exact {
                let answers = &mut page.answers[index / BATCH * view.flags.len() + flag];
                let bit = 1 << (index % BATCH);
                if answers.yes & bit == 0 {
                    continue;
                }
                if !space.confirm_set_collecting(id, viewer, &mut failed) {
                    answers.yes &= !bit;
                }
            }
        }
        Some(UnreadableIds::check(failed))
    }
}

/// Result of [`Page::usual`]: the counters of each id, and the answers of each [`BATCH`] of ids.
pub(crate) type UsualPage<'a> = (&'a [[i64; 4]], &'a [[Answers; 2]]);

/// Number of lookups whose cache lines are prefetched together. A lookup covers one flag and
/// [`BATCH`] ids. Each lookup stores its positions on the stack, and uses one of the eight
/// snapshots that a thread can hold without reference counting.
const LOOKUPS_PER_BATCH: usize = 4;

impl Engines {
    /// Views for the second and later ids of an entry.
    pub fn then<'a>(&'a self, view: &'a View) -> impl Iterator<Item = &'a View> + use<'a> {
        view.then.iter().map(|&index| &self.views[index])
    }

    /// Counters of a view in column order, as "space.field".
    pub fn columns(&self, view: &View) -> Vec<String> {
        let schemas: Vec<_> =
            self.sources(view).map(|space| (space.name(), space.schema())).collect();
        let mut names = Vec::new();
        for column in &view.columns {
            let (Column::Field(source, _) | Column::All(source)) = *column;
            let (space, schema) = &schemas[source];
            let is_meant =
                |position: usize| !matches!(*column, Column::Field(_, field) if field != position);
            let fields = schema.living().filter(|(position, _)| is_meant(*position));
            names.extend(fields.map(|(_, field)| format!("{space}.{}", field.name)));
        }
        names
    }

    /// Whether a view shows all current fields of a space instead of selected fields.
    pub fn shows_whole(&self, view: &View, space: &CounterSpace) -> bool {
        let is_it = |source: usize| self.counters[view.sources[source]].number == space.number;
        view.columns.iter().any(|column| matches!(*column, Column::All(source) if is_it(source)))
    }

    /// Looks up the counters and flags of many ids for one viewer, and stores them in `page`.
    /// Allocates only to grow the buffers of `page`. If rows or pairs cannot be read, the error
    /// contains their ids, and the page contains 0 for them.
    pub fn feed_get(
        &self,
        view: &View,
        viewer: &Member<'_>,
        ids: &[u64],
        page: &mut Page,
    ) -> Result<(), UnreadableIds> {
        page.flags = view.flags.len();
        page.rows.clear();
        page.sources.clear();
        page.columns.clear();
        page.living.clear();
        page.answers.clear();
        let lookups = ids.len().div_ceil(BATCH) * page.flags;
        page.answers.resize(lookups, Answers::default());
        let mut failed = Vec::new();
        if lookups == 0 {
            self.read_counters(view, ids, page, &mut failed);
        }
        for first in (0..lookups).step_by(LOOKUPS_PER_BATCH) {
            self.read_flags(view, viewer, ids, first, page, &mut failed);
        }
        UnreadableIds::check(failed)
    }

    /// Runs up to [`LOOKUPS_PER_BATCH`] lookups, in the order of [`Page::answers`], starting at
    /// `first`. All lookups prefetch their memory before any of them reads it. Between the two
    /// steps the first call reads the counters, which hides the latency. One call is sufficient for
    /// a page of 64 ids with two flags.
    fn read_flags(
        &self,
        view: &View,
        viewer: &Member<'_>,
        ids: &[u64],
        first: usize,
        page: &mut Page,
        failed: &mut Vec<Unreadable>,
    ) {
        let lookup = |at: usize| {
            let start = at / view.flags.len() * BATCH;
            let ids = &ids[start..ids.len().min(start + BATCH)];
            self.existences[view.flags[at % view.flags.len()]].lookup(viewer, ids)
        };
        let further = |i: usize| (first + i < page.answers.len()).then(|| lookup(first + i));
        // Use separate variables: an array would copy 1.6 kB per lookup.
        let (a, b, c, d) = (lookup(first), further(1), further(2), further(3));
        let (mut room_a, mut room_b, mut room_c, mut room_d);
        room_a = a.pairs();
        let mut placed: [_; LOOKUPS_PER_BATCH] = [Some(a.place(&mut room_a)), None, None, None];
        if let Some(b) = &b {
            room_b = b.pairs();
            placed[1] = Some(b.place(&mut room_b));
        }
        if let Some(c) = &c {
            room_c = c.pairs();
            placed[2] = Some(c.place(&mut room_c));
        }
        if let Some(d) = &d {
            room_d = d.pairs();
            placed[3] = Some(d.place(&mut room_d));
        }
        if first == 0 {
            self.read_counters(view, ids, page, failed);
        }
        for (at, placed) in (first..).zip(placed.into_iter().flatten()) {
            page.answers[at] = placed.answer(failed);
        }
    }

    fn read_counters(
        &self,
        view: &View,
        ids: &[u64],
        page: &mut Page,
        failed: &mut Vec<Unreadable>,
    ) {
        let Page { columns, is_contiguous, sources, living, rows, .. } = page;
        for (source, &space) in view.sources.iter().enumerate() {
            let start = rows.len();
            let mut read = self.counters[space].read();
            if let Err(unreadable) = read.get_rows(ids, rows) {
                failed.extend(Vec::from(unreadable));
            }
            let schema = read.schema();
            sources.push((start, schema.width()));
            living.extend(schema.living().map(|(position, _)| (source, position)));
        }
        let place =
            |(source, position): (usize, usize)| (sources[source].0 + position, sources[source].1);
        for column in &view.columns {
            match *column {
                Column::Field(source, position) => columns.push(place((source, position))),
                Column::All(all) => {
                    columns.extend(living.iter().filter(|&&(s, _)| s == all).map(|&c| place(c)))
                }
            }
        }
        *is_contiguous = columns.windows(2).all(|pair| pair[1] == (pair[0].0 + 1, pair[0].1));
    }
}
