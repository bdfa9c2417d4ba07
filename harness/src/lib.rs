//! Servers under test, and what tests of them share.
//!
//! | module | server |
//! |---|---|
//! | [`in_process`] | inside of the test's process: fast, and open to Rust |
//! | [`mod@program`] | the real program as a process: signals, kill -9, failing disks |
//! | [`measured`] | a process under measurement, ours or a peer's |
//! | [`transcript`] | one per story of `tests/scripts` |

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the report")]

pub mod in_process;
pub mod measured;
pub mod program;
pub mod transcript;

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a test waits for something that should take milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(20);

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

/// Says that a test cannot run here: past libtest, which shows nothing of what passes, and in the
/// file that `./test` prints at its end.
pub fn cannot(why: &str) {
    // A test that has a process of its own runs on its main thread.
    let name = std::env::var("NEXTEST_TEST_NAME")
        .unwrap_or_else(|_| std::thread::current().name().unwrap_or_default().to_owned());
    let said = format!("SKIPPED: {name}: {why}\n");
    std::io::stderr().write_all(said.as_bytes()).expect("somewhere to say it");
    if let Some(path) = std::env::var_os("TIDEMARK_SKIPPED") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(said.as_bytes()))
            .expect("the list of what is skipped");
    }
}

/// Waits until `done` holds.
#[track_caller]
pub fn eventually(what: &str, done: impl FnMut() -> bool) {
    within(PATIENCE, what, done);
}

/// Waits until `done` holds, for so long at most.
#[track_caller]
pub fn within(patience: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < patience, "not in {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What TM.TABLES says of each table of a space, without the entry of its outliers, which are in no
/// table.
pub fn tables(
    connection: &mut redis::Connection,
    space: &str,
) -> Vec<HashMap<String, redis::Value>> {
    let all: Vec<HashMap<String, redis::Value>> =
        redis::cmd("TM.TABLES").arg(space).query(connection).unwrap();
    let is_aside = |table: &HashMap<String, redis::Value>| {
        redis::from_redis_value::<String>(table["where"].clone()).is_ok_and(|at| at == "aside")
    };
    all.into_iter().filter(|table| !is_aside(table)).collect()
}

/// A number that TM.TABLES says of a table.
pub fn number(table: &HashMap<String, redis::Value>, name: &str) -> f64 {
    redis::from_redis_value(table[name].clone()).unwrap_or_else(|_| panic!("{name} of {table:?}"))
}

/// Bytes of memory that this process has in RAM.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("VmRSS");
    let kilobytes: u64 =
        line.split_ascii_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    kilobytes * 1024
}
