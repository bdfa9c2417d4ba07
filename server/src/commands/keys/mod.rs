//! Commands on keys of any type.

pub(crate) mod keyspace;
pub(crate) mod restore;
pub(crate) mod walk;
