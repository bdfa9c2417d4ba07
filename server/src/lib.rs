//! The Tidemark server: RESP in, feed pages out.
#![forbid(unsafe_code)]

pub mod resp;
