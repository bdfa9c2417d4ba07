//! Administration of spaces, tables, views and actions.

pub(crate) mod changes;
pub(crate) mod spaces;
pub(crate) mod views;
