//! `tm:changes` as stock clients read it, with their own stream commands.

use std::path::Path;
use std::process::Command;
use tidemark_tests::TestServer;

#[test]
fn redis_py_reads_changes_in_both_protocols() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for client in ["redis-py-5", "redis-py-new"] {
        let server = TestServer::with(|config| {
            config.durability.fsync = tidemark_server::config::Fsync::Always;
        });
        let mut python = Command::new(root.join("target/clients").join(client).join("bin/python"));
        python.arg("-B").arg(root.join("tests/clients/changes.py")).arg(server.port().to_string());
        let done = python.output().expect("run tests/clients/setup once");
        let said = String::from_utf8_lossy(&done.stdout);
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said == "done\n", "{client}: {said}\n{err}");
    }
}
