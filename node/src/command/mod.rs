//! Properties of commands: names, arity, flags, key specifications, ACL categories and errors.

pub mod among;
pub mod error;
pub mod footprint;
pub mod id_list;
pub mod keyspec;
pub mod spec;
pub mod stream_options;
pub mod streams;
pub mod table;
pub mod unseen_options;
