//! Counters: by space and id, as fields of hashes, as strings.

pub(crate) mod cnt;
pub(crate) mod hash;
pub(crate) mod scan;
pub(crate) mod string;
