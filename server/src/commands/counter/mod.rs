//! Counters: by space and id, as hash fields, and as strings.

pub(crate) mod cnt;
pub(crate) mod hash;
pub(crate) mod scan;
pub(crate) mod string;
