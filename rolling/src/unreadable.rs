//! Errors of reads from a disk, shared by both engines.

use std::sync::Arc;

/// The data of an id could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the row of {id} cannot be read: {why}")]
pub struct Unreadable {
    /// Id whose data could not be read.
    pub id: u64,
    /// Error message of the disk read.
    pub why: Arc<str>,
}

/// Error of a batch: the data of some ids could not be read. The results for all other ids are
/// valid.
#[derive(Debug)]
pub struct UnreadableIds(Vec<Unreadable>);

impl UnreadableIds {
    /// Returns an error if `failed` is not empty.
    #[inline]
    pub fn check(failed: Vec<Unreadable>) -> Result<(), UnreadableIds> {
        if failed.is_empty() { Ok(()) } else { Err(UnreadableIds(failed)) }
    }

    /// Returns the failed ids in the order of the request. Contains duplicates if the request does.
    pub fn all(&self) -> &[Unreadable] {
        &self.0
    }
}

impl From<UnreadableIds> for Vec<Unreadable> {
    fn from(ids: UnreadableIds) -> Vec<Unreadable> {
        ids.0
    }
}

impl From<UnreadableIds> for Unreadable {
    /// Returns the first error.
    fn from(ids: UnreadableIds) -> Unreadable {
        // [`UnreadableIds::check`] never creates an empty list.
        ids.0.into_iter().next().unwrap_or_else(|| unreachable!("a batch failed without an id"))
    }
}
