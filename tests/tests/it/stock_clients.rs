//! Stock clients: redis-py in two generations and both protocols, redis-cli, redis-benchmark.
//! `tests/clients/setup`, which `./test` runs, installs the clients.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidemark_server::config::Config;
use tidemark_tests::TestServer;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Runs a program and returns its output; a failure shows both streams.
fn output(command: &mut Command) -> String {
    let done = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}: run tests/clients/setup once"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}\n{err}", done.status);
    out.into_owned()
}

fn cli(server: &TestServer, args: &[&str]) -> String {
    output(Command::new("redis-cli").args(["-p", &server.port().to_string()]).args(args))
}

#[test]
fn redis_py_reads_a_page_in_both_protocols() {
    let server = TestServer::start();
    for (run, (client, protocol)) in
        [("redis-py-5", "2"), ("redis-py-5", "3"), ("redis-py-new", "2"), ("redis-py-new", "3")]
            .iter()
            .enumerate()
    {
        let python = root().join("target/clients").join(client).join("bin/python");
        let printed =
            output(Command::new(python).arg(root().join("tests/clients/redis_py.py")).args([
                server.port().to_string().as_str(),
                protocol,
                &run.to_string(),
            ]));
        assert!(printed.starts_with("ok "), "{client} protocol {protocol}: {printed}");
    }
}

#[test]
fn redis_py_caches_rows_cells_and_flags() {
    let server = TestServer::start();
    let python = root().join("target/clients/redis-py-new/bin/python");
    let script = root().join("tests/clients/caching.py");
    let printed = output(Command::new(python).arg(script).arg(server.port().to_string()));
    assert!(printed.starts_with("ok "), "{printed}");
}

/// Runs the program in docs/caching.md with both generations of redis-py.
#[test]
fn the_documented_cache_of_hot_posts_works() {
    let text = std::fs::read_to_string(root().join("docs/caching.md")).unwrap();
    let program = text.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    for client in ["redis-py-5", "redis-py-new"] {
        let server = TestServer::start();
        let python = root().join("target/clients").join(client).join("bin/python");
        let printed = output(
            Command::new(python)
                .env("TIDEMARK_PORT", server.port().to_string())
                .args(["-c", program]),
        );
        assert_eq!(printed, "5\n5\n6\n", "{client}");
    }
}

#[test]
fn redis_cli_shows_a_page_of_twenty_rows_of_six() {
    let server = TestServer::start();
    for flags in [&["-2"][..], &["-3"]] {
        let ids: Vec<String> = (0..20).map(|i| (1_000_000 + i).to_string()).collect();
        let mut args = flags.to_vec();
        args.extend(["--json", "FEED.GET", "home", "42"]);
        args.extend(ids.iter().map(String::as_str));
        // --json needs redis-cli 7 and implies RESP3.
        if flags == ["-2"] {
            args.retain(|a| *a != "--json");
            let printed = cli(&server, &args);
            assert_eq!(printed.lines().count(), 120, "{printed}");
            assert!(printed.lines().all(|l| l == "0"), "{printed}");
        } else {
            let printed = cli(&server, &args);
            let row = "[0,0,0,0,0,0]";
            assert_eq!(printed.trim(), format!("[{}]", [row; 20].join(",")));
        }
    }
    assert_eq!(cli(&server, &["FEED.ACT", "like", "42", "1000000"]).trim(), "1");
    assert_eq!(cli(&server, &["FEED.ACT", "like", "42", "1000000"]).trim(), "0");
    assert_eq!(
        cli(&server, &["HGETALL", "post:1000000"]).replace('\n', " ").trim(),
        "like 1 repost 0 comment 0 read 0"
    );
    assert!(cli(&server, &["INFO"]).contains("redis_version:"));
    assert!(cli(&server, &["CONFIG", "GET", "databases"]).contains("databases"));
    assert!(cli(&server, &["TM.TABLES", "post"]).contains("rows"));
    assert!(cli(&server, &["COMMAND", "COUNT"]).trim().parse::<u32>().unwrap() > 40);
}

/// redis-cli derives its help from COMMAND DOCS.
#[test]
fn redis_cli_help_shows_our_commands() {
    let server = TestServer::start();
    let docs: Vec<(String, HashMap<String, redis::Value>)> =
        redis::cmd("COMMAND").arg("DOCS").query(&mut server.connection()).unwrap();
    for name in ["feed.get", "tm.advise", "tm.space"] {
        let (_, about) = docs.iter().find(|(command, _)| command == name).unwrap();
        let summary: String = redis::from_redis_value_ref(&about["summary"]).unwrap();
        let printed = cli(&server, &["help", name]);
        assert!(printed.contains(&name.to_uppercase()) && printed.contains(&summary), "{printed}");
    }
    let group = cli(&server, &["help", "@feed"]);
    assert!(group.contains("FEED.GET") && group.contains("FEED.ACT"), "{group}");
}

/// Accesses to keys are not counted, and redis-cli reports that.
#[test]
fn redis_cli_hotkeys_says_that_access_is_not_tracked() {
    let server = TestServer::start();
    let port = server.port().to_string();
    let hot_keys = || Command::new("redis-cli").args(["-p", &port, "--hotkeys"]).output().unwrap();
    assert!(hot_keys().status.success(), "redis-cli --hotkeys found no key");
    cli(&server, &["HSET", "post:1", "like", "1"]);
    let said = hot_keys();
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success(), "{error}");
    assert!(error.contains("ERR An LFU maxmemory policy is not selected"), "{error}");
}

#[test]
fn redis_benchmark_runs_pages_pings_and_pipelines() {
    let server = TestServer::start();
    let port = server.port().to_string();
    let run = |args: &[&str]| {
        let printed = output(
            Command::new("redis-benchmark")
                .args(["-p", &port, "-q", "-n", "5000", "-c", "8"])
                .args(args),
        );
        assert!(printed.contains("requests per second"), "{printed}");
        assert!(!printed.to_lowercase().contains("error"), "{printed}");
    };
    run(&["-t", "ping"]);
    let ids: Vec<String> = (0..20).map(|i| (5_000_000 + i).to_string()).collect();
    let mut page = vec!["FEED.GET", "home", "42"];
    page.extend(ids.iter().map(String::as_str));
    run(&page);
    let mut pipelined = vec!["-P", "16"];
    pipelined.extend(&page);
    run(&pipelined);
    // redis-benchmark pads its numbers; the 1 before them makes valid ids.
    run(&["-P", "16", "-r", "100000", "HINCRBY", "post:1__rand_int__", "like", "1"]);
}

#[test]
fn node_redis_and_ioredis_do_all_that_an_application_does() {
    let server = TestServer::start();
    let printed = output(
        Command::new("node")
            .arg(root().join("tests/clients/node.js"))
            .arg(root().join("target/clients/node"))
            .args([server.port().to_string().as_str(), "1000"]),
    );
    assert_eq!(printed.trim(), "ok");
}

/// Uses Debian's redigo package, so that no network is needed.
#[test]
fn redigo_does_all_that_an_application_does() {
    let server = TestServer::start();
    let printed = output(
        Command::new("go")
            .env("GO111MODULE", "off")
            .env("GOPATH", "/usr/share/gocode")
            .env("GOFLAGS", "-p=1")
            .env("CGO_ENABLED", "0")
            .arg("run")
            .arg(root().join("tests/clients/client.go"))
            .args([server.port().to_string().as_str(), "2000"]),
    );
    assert_eq!(printed.trim(), "ok");
}

/// The sample like service behaves the same on Redis and Tidemark, also with filters.
#[test]
fn a_like_service_moves_from_redis_by_changing_the_port() {
    let server = TestServer::start();
    let filtered = TestServer::start();
    let run = |client: &str, port: u16, kind: &str| {
        let python = root().join("target/clients").join(client).join("bin/python");
        output(
            Command::new(python)
                .arg(root().join("tests/clients/like_service.py"))
                .args([&port.to_string(), kind]),
        )
    };
    let redis = crate::beside_redis::redis();
    let theirs = run("redis-py-new", redis.port, "sets");
    assert!(theirs.lines().count() == 9 && theirs.contains("heard"), "{theirs}");
    assert_eq!(run("redis-py-new", server.port(), "sets"), theirs);
    assert_eq!(run("redis-py-5", filtered.port(), "bloom"), theirs);
}

struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn started(command: &mut Command, port: u16) -> Running {
    let quiet = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let running = Running(
        quiet.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}: run tests/clients/setup once")),
    );
    tidemark_tests::eventually("it listens", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    running
}

#[test]
fn the_prometheus_exporter_scrapes_without_an_error() {
    use std::io::{Read, Write};
    // Uses the user recommended in docs/security.md.
    let server = TestServer::with(|config| config.security.password = "topsecret".to_owned());
    let mut admin = server.raw();
    admin
        .request(&["AUTH", "topsecret"])
        .expect("+OK\r\n")
        .request(&["INCR", "post:1:like"])
        .expect(":1\r\n");
    let user = tidemark_tests::recommended_user("metrics", "m");
    admin.request(&user.iter().map(String::as_str).collect::<Vec<_>>()).expect("+OK\r\n");
    let port = free_port();
    let _exporter = started(
        Command::new("prometheus-redis-exporter").args([
            "-redis.addr",
            &server.url(),
            "-redis.user",
            "metrics",
            "-redis.password",
            "m",
            "-web.listen-address",
            &format!("127.0.0.1:{port}"),
        ]),
        port,
    );
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let has = |line: &str| metrics.lines().any(|l| l.starts_with(line));
    for line in [
        "redis_up 1",
        "redis_exporter_last_scrape_error{err=\"\"} 0",
        "redis_connected_clients ",
        "redis_commands_processed_total ",
        "redis_memory_used_bytes ",
        "redis_uptime_in_seconds ",
        "redis_slowlog_length ",
        "redis_commands_total{cmd=\"incr\"} 1",
        "redis_commands_duration_seconds_total{cmd=\"incr\"} ",
        "redis_db_keys{db=\"db0\"} 1",
        "redis_instance_info{",
        "redis_rdb_last_save_timestamp_seconds ",
    ] {
        assert!(has(line), "{line} is missing in\n{metrics}");
    }
}

#[test]
fn counters_work_behind_twemproxy() {
    let server = TestServer::start();
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nutcracker.yml");
    let config = format!(
        "posts:\n  listen: 127.0.0.1:{port}\n  redis: true\n  hash: fnv1a_64\n  distribution: \
         ketama\n  servers:\n   - 127.0.0.1:{}:1\n",
        server.port()
    );
    std::fs::write(&file, config).unwrap();
    let stats = free_port().to_string();
    let _proxy = started(
        Command::new("nutcracker").arg("-c").arg(&file).args(["-s", &stats, "-a", "127.0.0.1"]),
        port,
    );
    let stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(tidemark_tests::DEFAULT_TIMEOUT)).unwrap();
    let mut raw = tidemark_tests::Raw { stream };
    for (request, reply) in [
        ("INCR post:1:like", ":1\r\n"),
        ("INCRBY post:1:like 5", ":6\r\n"),
        ("DECR post:1:like", ":5\r\n"),
        ("DECRBY post:1:like 2", ":3\r\n"),
        ("GET post:1:like", "$1\r\n3\r\n"),
        ("SET post:2:like 7", "+OK\r\n"),
        ("MGET post:1:like post:2:like post:3:like", "*3\r\n$1\r\n3\r\n$1\r\n7\r\n$-1\r\n"),
        ("EXISTS post:1:like", ":1\r\n"),
        ("HINCRBY post:1 read 4", ":4\r\n"),
        ("HGET post:1 read", "$1\r\n4\r\n"),
        ("SADD liked:1 42", ":1\r\n"),
        ("SISMEMBER liked:1 42", ":1\r\n"),
        ("TTL post:1", ":-1\r\n"),
        ("DEL post:1 post:2", ":2\r\n"),
    ] {
        let words: Vec<&str> = request.split(' ').collect();
        raw.request(&words).expect(reply);
    }
}

/// With hash tags in key patterns, a proxy keeps a post's row, cells and flags on one of two
/// servers, which serves the whole page. The posts are distributed over both servers.
#[test]
fn twemproxy_keeps_a_post_together_by_hash_tags() {
    let tagged = || TestServer::with(Config::put_hash_tags);
    let servers = [tagged(), tagged()];
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nutcracker.yml");
    let config = format!(
        "posts:\n  listen: 127.0.0.1:{port}\n  redis: true\n  hash: murmur\n  hash_tag: \
         \"{{}}\"\n  distribution: ketama\n  servers:\n   - 127.0.0.1:{}:1\n   - 127.0.0.1:{}:1\n",
        servers[0].port(),
        servers[1].port()
    );
    std::fs::write(&file, config).unwrap();
    let stats = free_port().to_string();
    let _proxy = started(
        Command::new("nutcracker").arg("-c").arg(&file).args(["-s", &stats, "-a", "127.0.0.1"]),
        port,
    );
    let stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(tidemark_tests::DEFAULT_TIMEOUT)).unwrap();
    let mut raw = tidemark_tests::Raw { stream };
    for id in 1..=64 {
        raw.request(&["HINCRBY", &format!("post:{{{id}}}"), "comment", "3"]).expect(":3\r\n");
        raw.request(&["INCRBY", &format!("post:{{{id}}}:like"), "2"]).expect(":2\r\n");
        raw.request(&["SADD", &format!("liked:{{{id}}}"), "42"]).expect(":1\r\n");
        raw.request(&["SADD", &format!("read:{{{id}}}"), "42"]).expect(":1\r\n");
    }
    let mut posts = [0, 0];
    for id in 1..=64 {
        let pages = [0, 1].map(|server: usize| -> Vec<Vec<i64>> {
            redis::cmd("FEED.GET")
                .arg("home")
                .arg(42)
                .arg(id)
                .query(&mut servers[server].connection())
                .unwrap()
        });
        let at = pages.iter().position(|page| page[0] == [2, 0, 3, 0, 1, 1]);
        let at = at.unwrap_or_else(|| panic!("post {id} is on several servers: {pages:?}"));
        assert_eq!(pages[1 - at][0], [0; 6], "post {id}");
        posts[at] += 1;
    }
    assert!(posts.iter().all(|&posts| posts > 8), "{posts:?}");
}
