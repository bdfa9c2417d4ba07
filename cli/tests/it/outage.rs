//! Measures how long writes of stock clients fail during a planned SENTINEL FAILOVER and after a
//! `kill -9`. `tests/clients/outage.py` runs the other clients; this file contains the client that
//! uses redis-rs.

use redis::Commands;
use redis::cluster::ClusterClient;
use redis::sentinel::{SentinelClient, SentinelServerType};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Environment variable that makes this test binary act as a client.
const WRITER: &str = "TIDEMARK_WRITER";

/// Regression: a planned failover blocked writes of ioredis and Lettuce for eight seconds.
#[test]
fn writes_of_stock_clients_fail_for_three_seconds_at_most() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let clients = top.join("target/clients");
    let python = |of: &str| clients.join(of).join("bin/python");
    assert!(python("redis-py-new").exists(), "run tests/clients/setup first");
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("writer-go");
    let built = Command::new("go")
        .env("GO111MODULE", "off")
        .env("GOPATH", "/usr/share/gocode")
        .env("GOFLAGS", "-p=1")
        .env("CGO_ENABLED", "0")
        .args(["build", "-o"])
        .arg(&go)
        .arg(top.join("tests/clients/writer.go"))
        .status()
        .expect("cannot run go: tests/clients/setup installs it");
    assert!(built.success(), "see above");
    let own = std::env::current_exe().unwrap();
    let programs = format!(
        "go-redis={},redis-rs=env {WRITER}=1 {} outage::redis_rs_writes --exact --nocapture",
        go.display(),
        own.display()
    );
    let status = Command::new(python("redis-py-new"))
        .arg("-B")
        .arg(top.join("tests/clients/outage.py"))
        .args(["--server", env!("CARGO_BIN_EXE_tidemark"), "--programs", &programs])
        .arg("--modules")
        .arg(clients.join("node"))
        .arg("--python")
        .arg(format!("{},{}", python("redis-py-5").display(), python("redis-py-new").display()))
        .status()
        .expect("python runs");
    assert!(status.success(), "see above");
}

/// Counterpart of `tests/clients/writer.py` for redis-rs. This test does nothing unless `outage.py`
/// has started it.
#[test]
fn redis_rs_writes() {
    if std::env::var_os(WRITER).is_none() {
        return;
    }
    let words: Vec<String> = std::env::args().collect();
    let [mode, ports, post] = &words[words.len() - 3..] else { panic!("{words:?}") };
    let places: Vec<String> =
        ports.split(',').map(|port| format!("redis://127.0.0.1:{port}/")).collect();
    let key = format!("post:{post}");
    println!();
    if mode == "cluster" {
        let client = ClusterClient::new(places).unwrap();
        let mut connection = client.get_connection().unwrap();
        write(|| connection.hincr(&key, "like", 1));
    }
    let mut client =
        SentinelClient::build(places, "m".to_owned(), None, SentinelServerType::Master).unwrap();
    let mut connection = None;
    write(|| {
        // The client asks Sentinel for the master before each new connection.
        if connection.is_none() {
            connection = Some(client.get_connection()?);
        }
        let written = connection.as_mut().expect("made above").hincr(&key, "like", 1);
        if written.is_err() {
            connection = None;
        }
        written
    });
}

fn write(mut once: impl FnMut() -> redis::RedisResult<i64>) -> ! {
    loop {
        match once() {
            Ok(_) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
                println!("ok {:.3}", now.as_secs_f64());
            }
            Err(error) => println!("no {}", error.to_string().replace('\n', " ")),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
