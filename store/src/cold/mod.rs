//! Cold files, `cold-<number>-<number>.tcold`: data that stays on disk and is read in pages of 4
//! KiB. Rows, filters and the runs of a ledger share one container format, the *page file*:
//!
//! - `pages.rs` is the container: header, pages, their checksums, a note.
//! - `rows.rs` stores rows sorted by id, in blocks (`block.rs`) of one page each.
//! - Filters (`dataset`) and runs (`ledger`) define their own pages and notes.
//! - `scrub.rs` reads a whole page file and verifies all checksums.
//!
//! A writer creates the file under its name plus `.tmp` and writes the header last. Then the writer
//! syncs the file, renames it and syncs the folder. Finally a manifest lists the file. A published
//! file never changes. Once no manifest lists the file, its last reader removes the file:
//! [`PageFile::retire`].

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
