//! server
#![allow(missing_docs)]
pub mod changes;
pub mod cli;

pub mod config {
    pub const DEFAULT_PORT: u16 = 6399;
}
