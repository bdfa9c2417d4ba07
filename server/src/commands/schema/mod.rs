//! Spaces, tables, views and actions, for operators.

pub(crate) mod changes;
pub(crate) mod spaces;
pub(crate) mod views;
