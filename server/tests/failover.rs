//! Failovers by the stock redis-sentinel: `tests/clients/failover.py` has the play, this starts it with the real program.
//!
//! `TIDEMARK_FAILOVERS=20 cargo test -p tidemark-server --test failover -- --nocapture` plays 20 rounds.

use std::path::Path;
use std::process::Command;

#[test]
fn sentinel_fails_over_and_no_write_that_wait_acknowledged_is_lost() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let rounds = std::env::var("TIDEMARK_FAILOVERS").unwrap_or_else(|_| "3".to_owned());
    let python = top.join("target/clients/redis-py-new/bin/python");
    assert!(python.exists(), "run tests/clients/setup first");
    let status = Command::new(python)
        .arg(top.join("tests/clients/failover.py"))
        .args(["--server", env!("CARGO_BIN_EXE_tidemark"), "--rounds", &rounds])
        .status()
        .expect("python runs");
    assert!(status.success(), "see above");
}
