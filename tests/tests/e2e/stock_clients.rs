//! Stock clients, as an application has them: redis-py in two generations and both protocols, redis-cli, redis-benchmark.
//! `tests/clients/setup` installs them (`./test` calls it).

use std::path::{Path, PathBuf};
use std::process::Command;
use tidemark_tests::TestServer;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Runs a program to its end and gives what it printed; a failure shows both outputs.
fn output(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}: run tests/clients/setup once"));
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
        [("redis-py-5", "2"), ("redis-py-5", "3"), ("redis-py-new", "2"), ("redis-py-new", "3")].iter().enumerate()
    {
        let python = root().join("target/clients").join(client).join("bin/python");
        let printed = output(Command::new(python).arg(root().join("tests/clients/redis_py.py")).args([
            server.port().to_string().as_str(),
            protocol,
            &run.to_string(),
        ]));
        assert!(printed.starts_with("ok "), "{client} protocol {protocol}: {printed}");
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
        // --json needs redis-cli 7 and speaks RESP3 by itself.
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

#[test]
fn redis_benchmark_runs_pages_pings_and_pipelines() {
    let server = TestServer::start();
    let port = server.port().to_string();
    let run = |args: &[&str]| {
        let printed =
            output(Command::new("redis-benchmark").args(["-p", &port, "-q", "-n", "5000", "-c", "8"]).args(args));
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
    // It pads its numbers with zeros; the 1 before them makes them ids.
    run(&["-P", "16", "-r", "100000", "HINCRBY", "post:1__rand_int__", "like", "1"]);
}
