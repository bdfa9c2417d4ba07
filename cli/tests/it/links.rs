//! Tests faulty links between a master and its replicas under load. The test runs the script
//! `tests/clients/links.py` with the real binary.
//!
//! `cargo xtask play links --seconds 300` runs the test for five minutes.

use std::path::Path;
use std::process::Command;

#[test]
fn replicas_behind_bad_links_fetch_everything_once() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let seconds = seeds::seconds(20).to_string();
    let python = top.join("target/clients/redis-py-new/bin/python");
    assert!(python.exists(), "run tests/clients/setup first");
    let status = Command::new(python)
        .arg(top.join("tests/clients/links.py"))
        .args(["--server", env!("CARGO_BIN_EXE_tidemark"), "--seconds", &seconds])
        .status()
        .expect("python runs");
    assert!(status.success(), "see above");
}
