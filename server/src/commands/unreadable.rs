//! Rows that could not be read from the disk, for commands over many rows.

use dataset::cold::UnreadableIds;
use dataset::engines::WriteError;
use node::command::error::Refusal;
use std::collections::HashMap;

/// What is answered in the places of rows that could not be read: the same wherever a row stands.
#[derive(Default)]
pub(crate) struct UnreadableRows(Option<HashMap<u64, Refusal>>);

impl UnreadableRows {
    /// Notes which rows of a batch could not be read.
    #[inline]
    pub(crate) fn note(&mut self, read: Result<(), UnreadableIds>) {
        if let Err(ids) = read {
            self.note_all(&ids);
        }
    }

    #[cold]
    pub(crate) fn note_all(&mut self, ids: &UnreadableIds) {
        let refusals = self.0.get_or_insert_default();
        for unreadable in ids.all() {
            refusals.entry(unreadable.id).or_insert_with(|| unreadable.clone().into());
        }
    }

    /// For a row that was not found: whether that is so because it could not be read.
    #[inline]
    pub(crate) fn refusal(&self, id: u64) -> Option<&Refusal> {
        self.0.as_ref()?.get(&id)
    }
}

/// For a command that deletes many rows: a row that cannot be read does not stop the others. Keeps
/// the first such error in `unreadable`, for the end of the command.
pub(crate) fn but_unreadable(
    deleted: Result<bool, WriteError>,
    unreadable: &mut Option<WriteError>,
) -> Result<bool, WriteError> {
    match deleted {
        Err(error @ WriteError::Unreadable(_)) => {
            unreadable.get_or_insert(error);
            Ok(false)
        }
        other => other,
    }
}
