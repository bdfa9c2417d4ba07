//! Flags: pairs of an id and a member, as existence spaces, sets, Bloom and cuckoo filters.

pub(crate) mod bloom;
pub(crate) mod cuckoo;
pub(crate) mod members;
pub(crate) mod phantom;
pub(crate) mod set;
