//! The command table: what a command is called, how many arguments it takes, which of them are
//! keys, what it does.
//!
//! A command is one row in its family's file and one function. From the rows come dispatch, arity
//! errors, COMMAND and its subcommands, HELP, and docs/commands.md: nothing is said twice.

mod acl;
mod ahead;
mod bloom;
mod call;
pub(crate) mod channels;
mod client;
mod cluster;
mod cold;
mod command;
mod config;
mod counter;
mod cuckoo;
mod docs;
mod errand;
mod execute;
mod feed;
mod hash;
mod info;
mod keys;
mod keyspec;
mod observe;
mod peers;
mod phantom;
mod reference;
mod refusal;
mod replication;
mod schema;
mod server;
mod session;
mod set;
mod sight;
mod spec;
mod string;
mod syntax;
mod table;
mod tracking;
pub(crate) mod transaction;
mod views;
mod weibo;
mod weight;

pub(crate) use ahead::LookAhead;
pub(crate) use call::{Call, id, integer, member};
pub(crate) use cold::ask as ask_cold;
pub(crate) use command::key_positions;
pub(crate) use execute::{execute, must_wait};
pub(crate) use keyspec::Uses;
pub use reference::reference;
pub(crate) use refusal::{Printable, Refusal, refuse};
pub(crate) use session::{Replies, Scratch, Session};
pub(crate) use spec::{ALL_KEYS, Handler, KeyArgs, NO_KEYS, ONE_KEY, Outcome, Spec, flag};
pub(crate) use table::{
    Found, Lookup, bit_of, bits, find, name_of, name_of_bit, numbers_named, with_numbers,
};

use channels::check_pattern;
use execute::{Unreadable, checked, readable, row_readable, run, select};
use spec::{help, help_row};
use table::all;
