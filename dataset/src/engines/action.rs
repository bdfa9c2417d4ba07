//! Actions: which flag and which counters move together. `act.rs` executes them.

/// A flag and the counters that move together.
#[derive(Clone)]
pub struct Action {
    pub(super) name: String,
    pub(super) flag: usize,
    pub(super) counter: usize,
    pub(super) field: usize,
    pub(super) beside: Vec<Beside>,
    /// Whether the action counts on an id whose flag is set but whose row is gone. True if all
    /// actions of the flag move the same counter.
    pub(super) counts_without_row: bool,
}

/// A counter that moves in addition to the first one.
#[derive(Clone)]
pub(super) struct Beside {
    /// Index of the counter space.
    pub(super) counter: usize,
    /// Position of the field.
    pub(super) field: usize,
    /// Whether the counter is in the member's row, not in the id's.
    pub(super) of_member: bool,
}

impl Action {
    /// Name of the action.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it moves several counters. Its callers then keep out other writers of the id, and of
    /// the member if counters of the member move.
    #[inline]
    pub fn is_wide(&self) -> bool {
        !self.beside.is_empty()
    }

    /// Whether counters of the member move. The member must then be a number.
    pub fn counts_member(&self) -> bool {
        self.beside.iter().any(|beside| beside.of_member)
    }
}
