//! How a page is read: what a view names, for one viewer and many ids.

use super::{Engines, Tie};
use phantom::{Answer, Member};

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
    /// Per source: where its rows begin, and values per row.
    sources: Vec<(usize, usize)>,
    /// Source and position of all living fields.
    living: Vec<(usize, usize)>,
    /// Rows of the first source, then of the second, ...
    rows: Vec<i64>,
    found: Vec<bool>,
    /// Answers for the first flag, then for the second, ...
    answers: Vec<Answer>,
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

    /// Flag `flag` of the id at position `index`.
    #[inline]
    pub fn flag(&self, index: usize, flag: usize) -> Answer {
        self.answers[flag * self.ids + index]
    }
}

impl Engines {
    /// Reads a page: one viewer, many ids. It allocates only if `page` has never been so large.
    pub fn feed_get(&self, view: &View, viewer: &Member<'_>, ids: &[u64], page: &mut Page) {
        page.ids = ids.len();
        page.rows.clear();
        page.found.clear();
        page.sources.clear();
        page.answers.clear();
        page.columns.clear();
        page.living.clear();
        for (source, &space) in view.sources.iter().enumerate() {
            let start = page.rows.len();
            let mut read = self.counters[space].read();
            read.get_batch(ids, &mut page.rows, &mut page.found);
            let schema = read.schema();
            page.sources.push((start, schema.width()));
            page.living.extend(schema.living().map(|(position, _)| (source, position)));
        }
        let Page { columns, sources, living, .. } = page;
        let place = |(source, position): (usize, usize)| (sources[source].0 + position, sources[source].1);
        for column in &view.columns {
            match *column {
                Column::Field(source, position) => columns.push(place((source, position))),
                Column::All(all) => columns.extend(living.iter().filter(|&&(s, _)| s == all).map(|&c| place(c))),
            }
        }
        for flag in &view.flags {
            let space = &self.existences[flag.space];
            match flag.gate.as_ref().filter(|gate| space.tie() == Some(gate.tie)) {
                None => space.contains_batch(viewer, ids, &mut page.answers),
                Some(gate) => {
                    let (start, width) = page.sources[gate.source];
                    let counters = page.rows[start..].iter().skip(gate.field).step_by(width);
                    // After the counters were read: see `gate.rs`.
                    let loose = space.loose().read(space);
                    let open = counters.zip(ids).map(|(&counter, &id)| counter != 0 || loose.holds(id));
                    space.contains_batch_where(viewer, ids, open, &mut page.answers);
                }
            }
        }
    }
}
