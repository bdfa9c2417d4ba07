//! RESP2 and RESP3, the protocol of Redis clients: bytes in, arguments out ([`Scanner`]); replies
//! in, bytes out ([`Reply`]).
//!
//! No I/O happens here. The scanner yields the range of each argument in the read buffer and copies
//! nothing; it resumes a half-received request where it stopped. Replies are written straight into
//! the connection's output buffer.
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
pub use kept::Kept;
pub use pass::{NoReply, ReplyEnd, elements, put_resp3};
pub use reply::{IntRow, Protocol, Reply, decimal};
pub use scan::{Limits, Malformed, Scan, Scanner};
