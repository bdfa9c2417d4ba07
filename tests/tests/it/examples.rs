//! Runs each program of `examples/` with the command in its first line. All programs must print the
//! same page.

use std::path::{Path, PathBuf};
use std::process::Command;
use tidemark_tests::TestServer;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn example(name: &str) -> PathBuf {
    root().join("examples").join(name)
}

/// Runs a program with a port and unused ids, and checks its output.
#[track_caller]
fn shows_the_page(server: &TestServer, first: u64, program: &mut Command) {
    let done = program
        .args([server.port().to_string(), first.to_string()])
        .output()
        .unwrap_or_else(|e| panic!("{program:?}: {e}: run tests/clients/setup once"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{program:?}: {out}\n{err}");
    let next = first + 1;
    let expected = format!(
        "post {first}: 1 likes, 1 comments; liked by me: yes\n\
         post {next}: 0 likes, 0 comments; liked by me: no\n"
    );
    assert_eq!(out, expected, "{program:?}: {err}");
}

#[test]
fn the_python_example_shows_a_page() {
    let server = TestServer::start();
    for (client, first) in [("redis-py-5", 100), ("redis-py-new", 200)] {
        let python = root().join("target/clients").join(client).join("bin/python");
        shows_the_page(&server, first, Command::new(python).arg("-B").arg(example("feed_page.py")));
    }
}

#[test]
fn the_node_example_shows_a_page() {
    let server = TestServer::start();
    let modules = root().join("target/clients/node/node_modules");
    let mut node = Command::new("node");
    shows_the_page(&server, 100, node.env("NODE_PATH", modules).arg(example("feed_page.js")));
}

#[test]
fn the_go_example_shows_a_page() {
    let server = TestServer::start();
    let mut go = Command::new("go");
    go.env("GO111MODULE", "off").env("GOPATH", "/usr/share/gocode");
    go.env("GOFLAGS", "-p=1").env("CGO_ENABLED", "0").arg("run").arg(example("feed_page.go"));
    shows_the_page(&server, 100, &mut go);
}

/// Cargo builds the package's examples before its tests.
#[test]
fn the_rust_example_shows_a_page() {
    let server = TestServer::start();
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().and_then(Path::parent).unwrap().join("examples/feed_page");
    if !built.exists() {
        // Cargo builds no examples if its command line selects a single test target.
        let cargo = Command::new(env!("CARGO"))
            .args(["build", "--locked", "-p", "tidemark-tests", "--example", "feed_page"])
            .current_dir(root())
            .status();
        assert!(cargo.unwrap().success());
    }
    shows_the_page(&server, 100, &mut Command::new(built));
}

#[test]
fn the_java_example_shows_a_page() {
    let Some(jedis) = std::env::var_os("TIDEMARK_JEDIS") else {
        return tidemark_tests::cannot(
            "Jedis is in no registry that the tests use: set TIDEMARK_JEDIS to a class path that \
             has it",
        );
    };
    let server = TestServer::start();
    let mut java = Command::new("java");
    shows_the_page(&server, 100, java.arg("-cp").arg(jedis).arg(example("FeedPage.java")));
}
