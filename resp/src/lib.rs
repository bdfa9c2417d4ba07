//! RESP2 and RESP3, the protocols of Redis clients. [`Scanner`] parses requests into arguments,
//! [`Reply`] encodes replies.
//!
//! The crate performs no I/O. The scanner returns ranges of the read buffer without copying. It
//! continues a partial request where it stopped. Replies are written directly to the connection's
//! output buffer.
#![forbid(unsafe_code)]

mod args;
mod inline;
mod kept;
mod pass;
mod reply;
mod scan;
mod span;

pub use args::Args;
pub use digits::{integer, natural};
pub use kept::RequestQueue;
pub use pass::{InvalidReply, ReplyEnd, elements, put_resp3};
pub use reply::{IntRow, Protocol, Reply, decimal};
pub use scan::{Limits, Malformed, Scan, Scanner};
