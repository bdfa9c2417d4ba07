//! Reusable buffers for commands.

use crate::session::unseen::Unseen;
use dataset::engines::{Page, WriteError};

/// Working buffers of a command. A worker uses one set for all commands. A long request has its own
/// set.
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
    /// Used for page entries with several ids. Each element contains one additional id of every
    /// entry, and the page that was read for these ids.
    pub(crate) further: Vec<(Vec<u64>, Page)>,
    pub(crate) asked: Asked,
    pub(crate) unseen: Unseen,
    /// Number of elements announced in the reply's header.
    pub(crate) elements: usize,
    /// Number of items counted so far, for integer replies.
    pub(crate) count: usize,
    /// Error about the first unreadable row, for integer replies.
    pub(crate) unreadable: Option<WriteError>,
    /// Rows of a packed page that takes several handler calls.
    pub(crate) packed: Vec<u8>,
}

impl Scratch {
    /// Frees buffers that have grown for a request with many arguments.
    #[cold]
    pub(crate) fn shrink(&mut self) {
        *self = Scratch::default();
    }

    /// Returns the bytes of memory that a long request uses between handler calls.
    pub(crate) fn bytes(&self) -> usize {
        let further: usize = self.further.iter().map(|(ids, _)| ids.capacity()).sum();
        (self.ids.capacity() + further) * size_of::<u64>()
            + self.changes.capacity() * size_of::<::counter::Change>()
            + self.packed.capacity()
            + self.unseen.bytes.capacity()
    }
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Asked {
    pub(crate) binary: bool,
    pub(crate) exact: bool,
    /// Argument index of the packed ids (`IDS packed`).
    pub(crate) packed: Option<usize>,
    /// Argument index of the action's name after MARK.
    pub(crate) mark: Option<usize>,
    /// Position of the option AMONG.
    pub(crate) among: Option<usize>,
}
