//! Servers under test: in the test's process, as a program of its own, and golden transcripts.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the report")]

pub mod transcript;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The program under test: `tidemark` in the folder of this test's own build.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let this = std::env::current_exe().expect("the path of this test");
        // A test lies in target/debug/deps, a benchmark beside the program.
        let mut beside = this.ancestors().skip(1).take(2).map(|dir| dir.join("tidemark"));
        let found = beside.find(|path| path.is_file());
        found.expect("the program is built: cargo build --bin tidemark")
    })
}
