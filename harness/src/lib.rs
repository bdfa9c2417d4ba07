//! Servers under test, and helpers that their tests share.
//!
//! | module | server |
//! |---|---|
//! | [`in_process`] | inside the test process: fast, and accessible from Rust |
//! | [`mod@program`] | the real binary as a process: signals, kill -9, disk failures |
//! | [`measured`] | a measured process: Tidemark or a server for comparison |
//! | [`transcript`] | the servers of a transcript of `tests/scripts` |

#![allow(clippy::unwrap_used, reason = "test helpers panic to report a failure")]

pub mod in_process;
pub mod measured;
pub mod program;
pub mod transcript;

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Timeout for events that should take milliseconds.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);

/// Path of the binary under test: `tidemark` in the build directory of the running test.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let this = std::env::current_exe().expect("the path of this test");
        // Tests are in target/debug/deps, benchmarks in the same folder as the binary.
        let mut beside = this.ancestors().skip(1).take(2).map(|dir| dir.join("tidemark"));
        let found = beside.find(|path| path.is_file());
        found.expect("the program is built: cargo build --bin tidemark")
    })
}

/// Reports that a test cannot run here, on stderr (bypassing libtest's capture) and in a file that
/// `./test` prints when it ends.
pub fn cannot(why: &str) {
    // A test in a separate process runs on the main thread.
    let name = std::env::var("NEXTEST_TEST_NAME")
        .unwrap_or_else(|_| std::thread::current().name().unwrap_or_default().to_owned());
    let said = format!("SKIPPED: {name}: {why}\n");
    std::io::stderr().write_all(said.as_bytes()).expect("stderr is writable");
    if let Some(path) = std::env::var_os("TIDEMARK_SKIPPED") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(said.as_bytes()))
            .expect("the list of skipped tests is writable");
    }
}

/// Waits until `done` returns true, with the default timeout.
#[track_caller]
pub fn eventually(what: &str, done: impl FnMut() -> bool) {
    within(DEFAULT_TIMEOUT, what, done);
}

/// Waits until `done` returns true, for at most `patience`.
#[track_caller]
pub fn within(patience: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < patience, "timeout after {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the TM.TABLES entries of a space, except the entry of its outliers (ids far above all
/// tables).
pub fn tables(
    connection: &mut redis::Connection,
    space: &str,
) -> Vec<HashMap<String, redis::Value>> {
    let all: Vec<HashMap<String, redis::Value>> =
        redis::cmd("TM.TABLES").arg(space).query(connection).unwrap();
    let is_outliers = |table: &HashMap<String, redis::Value>| {
        redis::from_redis_value::<String>(table["where"].clone()).is_ok_and(|at| at == "outliers")
    };
    all.into_iter().filter(|table| !is_outliers(table)).collect()
}

/// Returns a numeric field of a TM.TABLES entry.
pub fn number(table: &HashMap<String, redis::Value>, name: &str) -> f64 {
    redis::from_redis_value(table[name].clone()).unwrap_or_else(|_| panic!("{name} of {table:?}"))
}

/// Resident memory of this process, in bytes.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("VmRSS");
    let kilobytes: u64 =
        line.split_ascii_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    kilobytes * 1024
}
