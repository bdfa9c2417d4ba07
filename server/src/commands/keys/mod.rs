//! Keys of any kind.

pub(crate) mod keyspace;
pub(crate) mod restore;
pub(crate) mod walk;
