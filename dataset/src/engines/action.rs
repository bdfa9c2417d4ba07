//! Actions: a flag and the counters that change with it. `act.rs` executes them.

/// A flag and the counters that change with it.
#[derive(Clone)]
pub struct Action {
    pub(super) name: String,
    pub(super) flag: usize,
    pub(super) counter: usize,
    pub(super) field: usize,
    pub(super) beside: Vec<FurtherCounter>,
    /// Whether the action changes its counters if the flag is set but the id has no row. True if
    /// all actions of the flag change the same counter.
    pub(super) counts_without_row: bool,
}

/// A further counter that an action changes.
#[derive(Clone)]
pub(super) struct FurtherCounter {
    pub(super) counter: usize,
    pub(super) field: usize,
    /// Whether the counter is in the member's row instead of the id's.
    pub(super) of_member: bool,
}

impl Action {
    /// Name of the action.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the action changes several counters. For such an action the caller must exclude
    /// other writers of the id, and of the member if [`Action::counts_member`] is true.
    #[inline]
    pub fn is_wide(&self) -> bool {
        !self.beside.is_empty()
    }

    /// Whether the action changes counters of the member, which must then be a number.
    pub fn counts_member(&self) -> bool {
        self.beside.iter().any(|beside| beside.of_member)
    }
}
