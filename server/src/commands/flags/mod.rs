//! Flags (pairs of id and member), accessed as existence spaces, sets, Bloom filters and cuckoo
//! filters.

pub(crate) mod bloom;
pub(crate) mod cuckoo;
pub(crate) mod members;
pub(crate) mod phantom;
pub(crate) mod set;
pub(crate) mod unseen;
