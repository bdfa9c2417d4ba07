//! What lies elsewhere, on a disk, and could not be read: an error that both engines have.

use std::sync::Arc;

/// What an id has elsewhere could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the row of {id} cannot be read: {why}")]
pub struct Unreadable {
    /// The id.
    pub id: u64,
    /// What the disk said.
    pub why: Arc<str>,
}

/// The error of a batch: what some of its ids have could not be read. What was asked of the others
/// has been answered.
#[derive(Debug)]
pub struct UnreadableIds(Vec<Unreadable>);

impl UnreadableIds {
    /// The outcome of a batch in which these failed.
    #[inline]
    pub fn check(failed: Vec<Unreadable>) -> Result<(), UnreadableIds> {
        if failed.is_empty() { Ok(()) } else { Err(UnreadableIds(failed)) }
    }

    /// Each id, in the order in which it was asked for; one that was asked for more than once may
    /// be there more than once.
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
    /// The first one: for a caller to which one error is enough.
    fn from(ids: UnreadableIds) -> Unreadable {
        // `check` lets no empty list through.
        ids.0.into_iter().next().unwrap_or_else(|| unreachable!("a batch failed without an id"))
    }
}
