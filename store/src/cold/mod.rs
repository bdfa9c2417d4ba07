//! Cold files, `cold-<number>-<number>.tcold`: data that stays on the disk and is read by pages of
//! 4 KiB. Rows, filters and the runs of a ledger use the same container, the *page file*:
//!
//! - `pages.rs` is the container: header, pages, their checksums, a note.
//! - `rows.rs` keeps rows in one: sorted by id, in blocks (`block.rs`) of one page each.
//! - Filters (`dataset`) and runs (`ledger`) define their pages and notes themselves.
//! - `scrub.rs` reads a page file as a whole and compares all checksums.
//!
//! A writer creates the file under its name plus `.tmp` and writes the header last. Then it syncs
//! the file, renames it and syncs the folder, and a manifest names it. A published file never
//! changes. When no manifest names it any more, its last reader removes it: [`PageFile::retire`].

pub mod bits;
mod block;
mod pages;
mod rows;
mod scrub;

pub use block::{Block, MAX_BLOCK_ROWS, MAX_COLUMNS};
#[cfg(any(test, fuzzing))]
pub(crate) use pages::cold_name;
pub(crate) use pages::parse_cold_name;
pub use pages::{BLOCK_BYTES, COLD_VERSION, PageFile, PageWriter};
pub use rows::{ColdFile, ColdHead, ColdRows, ColdWriter};
pub use scrub::{Damage, Scrub};
