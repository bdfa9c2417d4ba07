//! How a page is read: what a view names, for one viewer and many ids.

use super::{Engines, Tie};
use crate::cold;
use phantom::{Answer, Asked, BATCH, Member};

/// A column of a view; the first number is an index into [`View::sources`].
pub(super) enum Column {
    /// One counter, by its position.
    Field(usize, usize),
    /// All that the space has at the moment.
    All(usize),
}

/// A flag of a view.
pub(super) struct Flag {
    /// Index of the existence space.
    pub(super) space: usize,
    pub(super) gate: Option<Gate>,
}

/// The counter that answers for a flag where it is 0: see `gate.rs`.
pub(super) struct Gate {
    pub(super) tie: Tie,
    /// Index into [`View::sources`].
    pub(super) source: usize,
    /// Position of the field.
    pub(super) field: usize,
}

/// What FEED.GET answers for each id: counters, then flags.
pub struct View {
    pub(super) name: String,
    /// Counter spaces, each once.
    pub(super) sources: Vec<usize>,
    pub(super) columns: Vec<Column>,
    pub(super) flags: Vec<Flag>,
}

impl View {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Flags per id.
    pub fn flags(&self) -> usize {
        self.flags.len()
    }
}

/// A page as it was read: for `ids.len()` ids the columns of a view. Its memory is kept from page to page.
#[derive(Default)]
pub struct Page {
    ids: usize,
    /// Per column of the view, under the schemas by which the rows were read: where its first value is in `rows`, and how far apart its values
    /// are.
    columns: Vec<(usize, usize)>,
    /// The columns lie side by side, as those of one whole source do.
    straight: bool,
    /// Per source: where its rows begin, and values per row.
    sources: Vec<(usize, usize)>,
    /// Source and position of all living fields.
    living: Vec<(usize, usize)>,
    /// Rows of the first source, then of the second, ...
    rows: Vec<i64>,
    found: Vec<bool>,
    /// Answers for the first flag, then for the second, ...
    answers: Vec<Answer>,
    /// Per flag, the ids that are being looked up.
    asked: Vec<Asked>,
}

impl Page {
    /// Counters per id.
    #[inline]
    pub fn counters(&self) -> usize {
        self.columns.len()
    }

    /// Counter `column` of the id at position `index`.
    #[inline]
    pub fn counter(&self, index: usize, column: usize) -> i64 {
        let (first, apart) = self.columns[column];
        self.rows[first + index * apart]
    }

    /// Gives all counters of the id at position `index` to `take`.
    #[inline]
    pub fn counters_of(&self, index: usize, mut take: impl FnMut(i64)) {
        match self.columns.first() {
            Some(&(first, apart)) if self.straight => {
                let row = first.wrapping_add(index.wrapping_mul(apart));
                self.rows[row..][..self.columns.len()].iter().for_each(|&value| take(value));
            }
            _ => (0..self.columns.len()).for_each(|column| take(self.counter(index, column))),
        }
    }

    /// All flags of the id at position `index`.
    #[inline]
    pub fn flags_of(&self, index: usize) -> impl Iterator<Item = Answer> {
        self.answers.iter().skip(index).step_by(self.ids.max(1)).copied()
    }

    /// Flag `flag` of the id at position `index`.
    #[inline]
    pub fn flag(&self, index: usize, flag: usize) -> Answer {
        self.answers[flag * self.ids + index]
    }
}

impl Engines {
    /// Reads a page: one viewer, many ids. It allocates only if `page` has never been so large. All flags are asked for before the counters are
    /// read, so that they come into the cache meanwhile.
    pub fn feed_get(&self, view: &View, viewer: &Member<'_>, ids: &[u64], page: &mut Page) {
        page.ids = ids.len();
        page.rows.clear();
        page.found.clear();
        page.sources.clear();
        page.answers.clear();
        page.columns.clear();
        page.living.clear();
        page.asked.resize_with(view.flags.len().max(page.asked.len()), Asked::default);
        let first = &ids[..ids.len().min(BATCH)];
        for (flag, asked) in view.flags.iter().zip(&mut page.asked) {
            self.existences[flag.space].ask(viewer, first, asked);
        }
        for (source, &space) in view.sources.iter().enumerate() {
            let start = page.rows.len();
            let mut read = self.counters[space].read();
            read.get_batch(ids, &mut page.rows, &mut page.found);
            let schema = read.schema();
            page.sources.push((start, schema.width()));
            page.living.extend(schema.living().map(|(position, _)| (source, position)));
        }
        let Page { columns, straight, sources, living, rows, answers, asked, .. } = page;
        let place = |(source, position): (usize, usize)| (sources[source].0 + position, sources[source].1);
        for column in &view.columns {
            match *column {
                Column::Field(source, position) => columns.push(place((source, position))),
                Column::All(all) => columns.extend(living.iter().filter(|&&(s, _)| s == all).map(|&c| place(c))),
            }
        }
        *straight = columns.windows(2).all(|pair| pair[1] == (pair[0].0 + 1, pair[0].1));
        for (flag, asked) in view.flags.iter().zip(asked) {
            let space = &self.existences[flag.space];
            let gate = flag.gate.as_ref().filter(|gate| space.tie() == Some(gate.tie));
            for (at, ids) in ids.chunks(BATCH).enumerate() {
                if at > 0 {
                    space.ask(viewer, ids, asked);
                }
                let wanted = gate.map_or(u32::MAX, |gate| {
                    let (start, width) = sources[gate.source];
                    let counters = rows[start + at * BATCH * width..].iter().skip(gate.field).step_by(width);
                    // A row that could not be read is 0 here, and proves nothing.
                    space.not_disproved(ids, counters.copied()) | cold::failed_among(ids)
                });
                space.answer(asked, wanted, answers);
            }
        }
    }
}
