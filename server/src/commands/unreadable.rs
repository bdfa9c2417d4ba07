//! Errors of rows that could not be read from disk, for commands that read many rows.

use dataset::cold::UnreadableIds;
use dataset::engines::WriteError;
use node::command::error::Refusal;
use std::collections::HashMap;

/// Errors by id. A row that appears several times in a request has the same error each time.
#[derive(Default)]
pub(crate) struct UnreadableRows(Option<HashMap<u64, Refusal>>);

impl UnreadableRows {
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

    /// Returns the error of a row that could not be read from disk.
    #[inline]
    pub(crate) fn refusal(&self, id: u64) -> Option<&Refusal> {
        self.0.as_ref()?.get(&id)
    }
}

/// Lets a command that deletes many rows continue after a row that cannot be read. Stores the first
/// error in `unreadable`. The command returns this error at the end.
pub(crate) fn keep_first_unreadable(
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
