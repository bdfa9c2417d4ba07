//! Buffers that a worker lends to commands.

use dataset::engines::{Page, WriteError};

/// Buffers that commands work in. The worker's are reused from one command to the next; a long
/// request has its own from its first turn to its last.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) ids: Vec<u64>,
    pub(crate) fields: Vec<usize>,
    pub(crate) row: Vec<i64>,
    pub(crate) rows: Vec<i64>,
    pub(crate) found: Vec<bool>,
    pub(crate) answers: Vec<::phantom::Answer>,
    pub(crate) changes: Vec<::counter::Change>,
    pub(crate) page: Page,
    /// Of a page whose entries have several ids: the further ones of all entries, and what is shown
    /// of them.
    pub(crate) further: Vec<(Vec<u64>, Page)>,
    /// Options among the ids of a page.
    pub(crate) asked: Asked,
    /// Number of elements announced in the head of the reply.
    pub(crate) elements: usize,
    /// Items counted so far, for a reply that is a number.
    pub(crate) count: usize,
    /// The first row that could not be read, for a reply that is a number.
    pub(crate) unreadable: Option<WriteError>,
    /// Rows of a packed page that takes several turns.
    pub(crate) packed: Vec<u8>,
}

impl Scratch {
    /// Gives back what a request with many arguments has made large.
    #[cold]
    pub(crate) fn shrink(&mut self) {
        *self = Scratch::default();
    }

    /// Bytes of memory that a long request keeps between its turns.
    pub(crate) fn bytes(&self) -> usize {
        let further: usize = self.further.iter().map(|(ids, _)| ids.capacity()).sum();
        (self.ids.capacity() + further) * size_of::<u64>()
            + self.changes.capacity() * size_of::<::counter::Change>()
            + self.packed.capacity()
    }
}

/// Options of a page.
#[derive(Clone, Copy, Default)]
pub(crate) struct Asked {
    pub(crate) binary: bool,
    pub(crate) exact: bool,
    /// Position of the action's name behind MARK.
    pub(crate) mark: Option<usize>,
}
