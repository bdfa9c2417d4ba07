//! Facts about commands: names, arity, flags, key specifications, ACL categories, error texts.

pub mod error;
pub mod footprint;
pub mod keyspec;
pub mod spec;
pub mod stream_options;
pub mod streams;
pub mod table;
