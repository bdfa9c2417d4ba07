//! Facts about commands: names, arity, flags, key specifications, ACL categories, error texts.

pub(crate) mod docs;
pub(crate) mod error;
pub(crate) mod families;
pub(crate) mod footprint;
pub(crate) mod keyspec;
pub(crate) mod spec;
pub(crate) mod streams;
pub(crate) mod table;
pub(crate) mod usage;
