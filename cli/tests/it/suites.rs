//! Checks the runner of Redis's and RedisBloom's test suites (`tests/suites`) without the suites'
//! sources. Each expected failure has a reason, and the proxy that renames keys restores the
//! original names.

use std::process::Command;

#[test]
fn expected_failures_have_reasons_and_proxy_restores_names() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/suites/run.py");
    // Find a free port. The next higher port is probably free as well.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let done = Command::new("python3")
        .args(["-B", script, "check", "--tidemark", env!("CARGO_BIN_EXE_tidemark")])
        .args(["--port", &port.to_string()])
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{err}");
}
