//! Generates docs/compatibility.md from the tables below. Checks that each entry about a client
//! names an existing test, and that a server refuses every command listed as refused.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use tidemark_tests::TestServer;

struct Tested {
    name: &'static str,
    /// Versions that the tests install or that a recorded run used.
    version: &'static str,
    works: &'static str,
    /// Test functions anywhere in the repository that cover the client, or other evidence.
    tests: &'static [&'static str],
}

const CLIENTS: &[Tested] = &[
    Tested {
        name: "redis-py",
        version: "5.2, 8 (RESP2, RESP3, asyncio)",
        works: "hashes, strings, sets, `bf()`, pipelines, MULTI, pub/sub, Sentinel, cluster \
                client, caching",
        tests: &["redis_py_reads_a_page_in_both_protocols", "redis_py_caches_rows_cells_and_flags"],
    },
    Tested {
        name: "node-redis",
        version: "6 (RESP2, RESP3)",
        works: "pages, hashes, sets, pipelines, MULTI, pub/sub, Sentinel, cluster client, caching",
        tests: &["node_redis_and_ioredis_do_all_that_an_application_does"],
    },
    Tested {
        name: "ioredis",
        version: "6",
        works: "pages, hashes, sets, pipelines, MULTI, pub/sub, Sentinel, cluster client",
        tests: &["node_redis_and_ioredis_do_all_that_an_application_does"],
    },
    Tested {
        name: "redigo",
        version: "1.8 (Debian)",
        works: "pages, hashes, sets, pipelines, MULTI, pub/sub",
        tests: &["redigo_does_all_that_an_application_does"],
    },
    Tested {
        name: "go-redis",
        version: "5 (Debian)",
        works: "writes during a master crash and a planned failover; cluster client",
        tests: &["writes_of_stock_clients_fail_for_three_seconds_at_most"],
    },
    Tested {
        name: "Jedis",
        version: "4.4.8 (tested only if `TIDEMARK_JEDIS` is set)",
        works: "pages; Sentinel and failover were tested manually",
        tests: &["the_java_example_shows_a_page"],
    },
    Tested {
        name: "redis-rs",
        version: "1",
        works: "used by most end-to-end tests; Sentinel, cluster client",
        tests: &["generated_reposts_are_counted_once_per_user"],
    },
];

const TOOLS: &[Tested] = &[
    Tested {
        name: "redis-cli",
        version: "7.0 (RESP2, RESP3, `--json`, `--pipe`)",
        works: "all commands, including INFO, CONFIG and MONITOR",
        tests: &["redis_cli_shows_a_page_of_twenty_rows_of_six"],
    },
    Tested {
        name: "redis-benchmark",
        version: "7.0",
        works: "pings, pages, pipelines; put a digit before `__rand_int__` in keys",
        tests: &["redis_benchmark_runs_pages_pings_and_pipelines"],
    },
    Tested {
        name: "Redis Sentinel",
        version: "7.0",
        works: "monitoring, automatic and planned failover",
        tests: &["switches.py"],
    },
    Tested {
        name: "redis_exporter (Prometheus)",
        version: "1.45",
        works: "scrapes without errors, as a user with few permissions",
        tests: &["the_prometheus_exporter_scrapes_without_an_error"],
    },
    Tested {
        name: "twemproxy (nutcracker)",
        version: "0.5",
        works: "counters and sets; use hash tags to keep all keys of a post on one server",
        tests: &["counters_work_behind_twemproxy"],
    },
    Tested {
        name: "Tcl suite of Redis, flow tests of RedisBloom",
        version: "8.0.2; 2026",
        works: "results are in [testing.md](testing.md#suites-of-redis-and-redisbloom)",
        tests: &["expected_failures_have_reasons_and_proxy_restores_names"],
    },
];

/// Commands refused by design: call, start of the reply, reason.
const REFUSED: &[(&str, &str, &str)] = &[
    ("EXPIRE post:1 60", "ERR EXPIRE is not supported", "Counters and flags do not expire."),
    ("SETEX post:1:like 60 5", "ERR SETEX is not supported", "Counters and flags do not expire."),
    (
        "SET post:1:like many",
        "ERR value is not an integer or out of range",
        "A counter is a 64-bit integer.",
    ),
    ("HINCRBYFLOAT post:1 like 0.5", "ERR counters are integers", "A counter is an integer."),
    (
        "APPEND post:1:like x",
        "ERR APPEND is not supported: a counter",
        "A counter is a number, not a string.",
    ),
    (
        "HINCRBY post:1 colour 1",
        "ERR No schema field 'colour'",
        "The schema of a space defines its fields.",
    ),
    ("SET session:9 x", "ERR Invalid key 'session:9'", "A key must match a pattern of a space."),
    (
        "HINCRBY liked:1 like 1",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "The name of a key determines its type.",
    ),
    ("SMEMBERS read:1", "ERR a filter cannot count", "A filter cannot list members."),
    ("SCARD read:1", "ERR a filter cannot count", "A filter cannot count the members of an id."),
    (
        "DEL read:1",
        "ERR the pairs of an id cannot be deleted as a whole",
        "A filter cannot list members; use SREM or PH.DEL.",
    ),
    ("RENAME post:1 post:2", "ERR RENAME is not supported", "A key is derived from its id."),
    ("DUMP read:1", "ERR DUMP of pairs needs a ledger", "A filter cannot list members."),
    ("FLUSHALL", "ERR FLUSHALL is not supported", "Delete rows and pairs individually."),
    ("SELECT 1", "ERR DB index is out of range", "There is only one database."),
    ("EVAL 1 0", "ERR unknown command 'EVAL'", "Scripting is not supported."),
    ("LPUSH list 1", "ERR unknown command 'LPUSH'", "Lists and sorted sets are not supported."),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Appends all test code: `.rs` files in the crates' test folders, and client scripts.
fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        } else {
            // A script counts as a test function with the script's file name.
            let _ = writeln!(text, "fn {}(", path.file_name().unwrap().to_string_lossy());
        }
    }
}

fn section(page: &mut String, title: &str, rows: &[Tested]) {
    let _ = write!(
        page,
        "\n## {title}\n\n| name | version | what works | shown by |\n|---|---|---|---|\n"
    );
    for row in rows {
        let tests: Vec<String> = row.tests.iter().map(|test| format!("`{test}`")).collect();
        let (name, version, works, tests) = (row.name, row.version, row.works, tests.join("<br>"));
        let _ = writeln!(page, "| {name} | {version} | {works} | {tests} |");
    }
}

/// The page equals the output of the tables, every test named there exists, and a server refuses
/// every listed command.
#[test]
fn compatibility_page_is_current() {
    let mut known = String::new();
    for folder in ["tests/tests", "tests/clients", "cli/tests"] {
        sources(&root().join(folder), &mut known);
    }
    let tested = CLIENTS.iter().chain(TOOLS);
    for test in tested.flat_map(|row| row.tests) {
        assert!(known.contains(&format!("fn {test}(")), "no such test: {test}");
    }

    let mut page = String::from(
        "# Compatibility\n\nPrinted from the tables in `tests/tests/it/compatibility.rs`; do not \
         edit.\nThe tests connect each client with its default options.\n`tests/clients/verbs` \
         compares the reply to each command with that of Redis 7.0.\n",
    );
    section(&mut page, "Clients", CLIENTS);
    section(&mut page, "Tools", TOOLS);
    page.push_str(
        "\n## Refused by design\n\nA test sends each call to a server with the default \
         configuration. The table shows how the error reply begins.\n\n| call | reply | reason \
         |\n|---|---|---|\n",
    );
    let server = TestServer::start();
    server.raw().request(&["FEED.ACT", "like", "7", "1"]).expect("*1\r\n:1\r\n");
    for (call, begins, reason) in REFUSED {
        let words: Vec<&str> = call.split(' ').collect();
        let reply = server.raw().ask(&words);
        assert!(reply.starts_with(&format!("-{begins}")), "{call}: {reply}");
        let _ = writeln!(page, "| `{call}` | {begins} | {reason} |");
    }
    page.push_str(
        "\nFor keys that match no pattern, and for all other commands, see \
         [commands.md](commands.md).\n",
    );

    let path = root().join("docs/compatibility.md");
    if std::env::var_os("TIDEMARK_PRINT").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap_or_default() == page,
        "docs/compatibility.md differs from the tables: rewrite it with\n  \
         TIDEMARK_PRINT=1 cargo test -p tidemark-tests --test it compatibility"
    );
}
