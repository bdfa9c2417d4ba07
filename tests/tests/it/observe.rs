//! Diagnostic commands: SLOWLOG, LATENCY, MONITOR, MEMORY, SCAN.

use redis::cmd;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tidemark_tests::{TestServer, eventually};

#[test]
fn the_slow_log_keeps_what_was_slow_and_no_secrets() {
    let server = TestServer::start();
    let mut raw = server.raw();
    raw.request(&["SLOWLOG", "LEN"]).expect(":0\r\n");
    raw.request(&["CONFIG", "SET", "slowlog-log-slower-than", "0", "slowlog-max-len", "20"])
        .expect("+OK\r\n");
    raw.request(&["CLIENT", "SETNAME", "me"]).expect("+OK\r\n");
    raw.request(&["SLOWLOG", "RESET"]).expect("+OK\r\n");
    raw.request(&["AUTH", "default", "swordfish"]).line();
    raw.request(&["ECHO", &"x".repeat(200)]);
    raw.line();
    raw.line();
    // The slow log does not contain EXEC itself, but the commands that it executed.
    raw.request(&["MULTI"])
        .expect("+OK\r\n")
        .request(&["INCR", "post:1:like"])
        .expect("+QUEUED\r\n");
    raw.request(&["EXEC"]).expect("*1\r\n:1\r\n");
    type Entry = (u64, u64, u64, Vec<String>, String, String);
    let entries: Vec<Entry> =
        cmd("SLOWLOG").arg("GET").arg(-1).query(&mut server.connection()).unwrap();
    assert!(entries.len() <= 20, "{}", entries.len());
    let commands: Vec<&str> = entries.iter().map(|e| e.3[0].as_str()).collect();
    assert!(commands.contains(&"INCR") && !commands.contains(&"EXEC"), "{commands:?}");
    let auth = entries.iter().find(|e| e.3[0] == "AUTH").unwrap();
    assert_eq!(auth.3, ["AUTH", "(redacted)", "(redacted)"]);
    assert_eq!(auth.5, "me");
    let echo = entries.iter().find(|e| e.3[0] == "ECHO").unwrap();
    assert_eq!(echo.3[1], format!("{}... (72 more bytes)", "x".repeat(128)));
    assert!(entries.windows(2).all(|pair| pair[0].0 > pair[1].0), "newest first");
    raw.request(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]).expect("+OK\r\n");
    raw.request(&["SLOWLOG", "RESET"])
        .expect("+OK\r\n")
        .request(&["SLOWLOG", "LEN"])
        .expect(":0\r\n");
}

#[test]
fn commands_and_errors_are_counted_by_name() {
    let server = TestServer::with(|config| config.server.workers = 2);
    let mut c = server.connection();
    let info = |c: &mut redis::Connection, section: &str| {
        cmd("INFO").arg(section).query::<String>(c).unwrap()
    };
    let mut raw = server.raw();
    let mut do_it = || {
        for _ in 0..130 {
            raw.request(&["GET", "post:1:like"]).expect("$-1\r\n");
        }
        assert!(
            raw.ask(&["GET"]).starts_with('-') && raw.ask(&["GET", "post:1:nope"]).starts_with('-')
        );
        assert!(
            raw.ask(&["NOPE"]).starts_with('-')
                && raw.ask(&["GET", "post:1"]).starts_with("-WRONGTYPE")
        );
        raw.request(&["CLIENT", "SETNAME", "me"]).expect("+OK\r\n");
        // A queued command counts when EXEC executes it.
        raw.request(&["MULTI"])
            .expect("+OK\r\n")
            .request(&["INCR", "post:9:like"])
            .expect("+QUEUED\r\n");
        raw.request(&["EXEC"]).line();
        raw.line();
    };
    do_it();
    let stats = info(&mut c, "commandstats");
    let line = |name: &str| {
        stats.lines().find(|l| l.starts_with(&format!("cmdstat_{name}:"))).unwrap_or_default()
    };
    assert!(line("get").starts_with("cmdstat_get:calls=132,usec="), "{stats}");
    assert!(line("get").ends_with(",rejected_calls=1,failed_calls=2"), "{stats}");
    assert!(
        line("incr").starts_with("cmdstat_incr:calls=1,") && line("exec").contains("calls=1,"),
        "{stats}"
    );
    assert!(line("client|setname").contains("calls=1,") && line("hget").is_empty(), "{stats}");
    let errors = info(&mut c, "errorstats");
    assert!(
        errors.contains("errorstat_ERR:count=3\r\n")
            && errors.contains("errorstat_WRONGTYPE:count=1\r\n"),
        "{errors}"
    );
    let latencies = info(&mut c, "latencystats");
    let get =
        latencies.lines().find(|l| l.starts_with("latency_percentiles_usec_get:p50=")).unwrap();
    assert!(get.contains(",p99=") && get.contains(",p99.9="), "{get}");
    type Histogram =
        std::collections::HashMap<String, std::collections::BTreeMap<String, redis::Value>>;
    let told: Histogram =
        cmd("LATENCY").arg("HISTOGRAM").arg("get").arg("client").query(&mut c).unwrap();
    assert!(told.contains_key("client|setname") && !told.contains_key("incr"), "{told:?}");
    assert_eq!(told["get"]["calls"], redis::Value::Int(132));
    let all: std::collections::BTreeMap<u64, u64> =
        redis::from_redis_value(told["get"]["histogram_usec"].clone()).unwrap();
    assert_eq!(all.values().last(), Some(&132), "{all:?}");
    assert!(all.values().is_sorted());
    // As in Redis, INFO includes the errors, and only INFO ALL includes the long lists.
    let (short, long) = (info(&mut c, "default"), info(&mut c, "all"));
    assert!(short.contains("errorstat_ERR") && !short.contains("cmdstat_"));
    assert!(long.contains("cmdstat_get:") && long.contains("latency_percentiles_usec_get:"));
    cmd("CONFIG").arg("RESETSTAT").query::<()>(&mut c).unwrap();
    let after = info(&mut c, "everything");
    assert!(
        !after.contains("cmdstat_get:")
            && !after.contains("errorstat_")
            && !after.contains("usec_get:"),
        "{after}"
    );
    do_it();
    assert!(info(&mut c, "commandstats").contains("cmdstat_get:calls=132,"));
}

/// As in Redis, CONFIG RESETSTAT starts all counts over, beginning with its own call, also inside a
/// transaction.
#[test]
fn no_histogram_has_no_calls() {
    let server = TestServer::start();
    let mut c = server.connection();
    type ReportedValues =
        std::collections::BTreeMap<String, std::collections::BTreeMap<String, redis::Value>>;
    let calls = |c: &mut redis::Connection| -> Vec<(String, redis::Value)> {
        let told: ReportedValues = cmd("LATENCY").arg("HISTOGRAM").query(c).unwrap();
        told.into_iter().map(|(name, of)| (name, of["calls"].clone())).collect()
    };
    let one = |name: &str| (name.to_owned(), redis::Value::Int(1));
    for _ in 0..3 {
        cmd("SET").arg("post:1:like").arg(1).query::<()>(&mut c).unwrap();
        cmd("CONFIG").arg("RESETSTAT").query::<()>(&mut c).unwrap();
        assert_eq!(calls(&mut c), [one("config|resetstat")]);
        cmd("CONFIG").arg("RESETSTAT").query::<()>(&mut c).unwrap();
        cmd("SET").arg("post:1:like").arg(1).query::<()>(&mut c).unwrap();
        assert_eq!(calls(&mut c), [one("config|resetstat"), one("set")]);
        let mut transaction = redis::pipe();
        transaction.atomic().cmd("CONFIG").arg("RESETSTAT").cmd("GET").arg("post:1:like");
        transaction.query::<redis::Value>(&mut c).unwrap();
        assert_eq!(calls(&mut c), [one("config|resetstat"), one("exec"), one("get")]);
    }
}

/// INFO shows disconnects by limits and current usage.
#[test]
fn limits_have_metrics() {
    let server = TestServer::with(|config| {
        config.server.max_query_buffer_bytes = 1 << 20;
        config.server.max_output_buffer_bytes = 1 << 20;
    });
    let mut c = server.connection();
    let mut info = |field: &str| {
        let info: String = cmd("INFO").query(&mut c).unwrap();
        let line = info
            .lines()
            .find(|l| l.split(':').next() == Some(field))
            .unwrap_or_else(|| panic!("{field}: {info}"));
        line.rsplit(':').next().unwrap().parse::<u64>().unwrap()
    };
    let mut raw = server.raw();
    raw.request(&["WATCH", "post:1", "post:2", "liked:3"]).expect("+OK\r\n");
    raw.request(&["MULTI"]).expect("+OK\r\n").request(&["PING"]).expect("+QUEUED\r\n");
    let mut listener = server.raw();
    listener.request(&["SUBSCRIBE", "a", "b"]);
    (0..12).for_each(|_| drop(listener.line()));
    for (field, value) in [
        ("watching_clients", 1),
        ("total_watched_keys", 3),
        ("most_watched_keys", 3),
        ("most_queued_commands", 1),
        ("pubsub_clients", 1),
        ("most_subscriptions", 2),
        ("acl_users", 1),
        ("client_query_buffer_limit_disconnections", 0),
        ("client_output_buffer_limit_disconnections", 0),
    ] {
        assert_eq!(info(field), value, "{field}");
    }
    let mut greedy = server.raw();
    greedy.send(format!("*1\r\n$2000000\r\n{}", "x".repeat(1_100_000)));
    greedy.rest();
    let ids: Vec<String> = (0..40_000).map(|i| i.to_string()).collect();
    let mut page = vec!["FEED.GET", "home", "7"];
    page.extend(ids.iter().map(String::as_str));
    let mut greedy = server.raw();
    greedy.request(&["MULTI"]).expect("+OK\r\n");
    greedy.request(&page).expect("+QUEUED\r\n");
    greedy.request(&["EXEC"]);
    greedy.rest();
    assert_eq!(info("client_query_buffer_limit_disconnections"), 1);
    assert_eq!(info("client_output_buffer_limit_disconnections"), 1);
}

#[test]
fn latencies_above_the_threshold_have_a_history() {
    let server = TestServer::start();
    let mut raw = server.raw();
    raw.request(&["LATENCY", "LATEST"]).expect("*0\r\n");
    raw.request(&["CONFIG", "SET", "latency-monitor-threshold", "10"]).expect("+OK\r\n");
    // Only the page of a million ids exceeds the threshold.
    let ids: Vec<String> = (0..1_000_000).map(|i| i.to_string()).collect();
    let mut page = vec!["CNT.GET", "post"];
    page.extend(ids.iter().map(String::as_str));
    raw.request(&page).expect(&format!("*1000000\r\n{}", "*-1\r\n".repeat(1_000_000)));
    raw.request(&["LATENCY", "LATEST"]).expect("*1\r\n*4\r\n$12\r\nfast-command\r\n");
    let (at, latest, highest) = (raw.line(), raw.line(), raw.line());
    assert_eq!(latest, highest);
    raw.request(&["LATENCY", "HISTORY", "fast-command"])
        .expect(&format!("*1\r\n*2\r\n{at}\r\n{latest}\r\n"));
    assert!(raw.ask(&["LATENCY", "DOCTOR"]).starts_with('$'));
    let told = raw.line();
    assert!(told.starts_with("fast-command: 1 seconds with a latency of at least 10 ms"), "{told}");
    raw.request(&["LATENCY", "RESET", "nope", "fast-command"]).expect(":1\r\n");
    raw.request(&["LATENCY", "HISTORY", "fast-command"]).expect("*0\r\n");
}

#[test]
fn monitor_sees_commands_and_does_not_block_clients() {
    let server = TestServer::with(|config| {
        config.server.workers = 2;
        config.server.max_push_buffer_bytes = 1 << 20;
    });
    let mut monitor = server.raw();
    monitor.request(&["MONITOR"]).expect("+OK\r\n");
    let mut raw = server.raw();
    raw.request(&["INCR", "post:1:like"]).expect(":1\r\n");
    raw.request(&["CONFIG", "GET", "nope"]).expect("*0\r\n");
    raw.request(&["AUTH", "default", "swordfish"]).line();
    raw.request(&["ECHO", "a\"\\\r\n\u{7}\u{1}é"]).expect("$9\r\na\"\\\r\n\u{7}\u{1}é\r\n");
    raw.request(&["MULTI"])
        .expect("+OK\r\n")
        .request(&["GET", "post:1:like"])
        .expect("+QUEUED\r\n");
    raw.request(&["EXEC"]).expect("*1\r\n$1\r\n1\r\n");
    let mut lines = Vec::new();
    while lines.last().is_none_or(|l: &String| !l.contains("EXEC")) {
        lines.push(monitor.line());
    }
    let shown: Vec<&str> = lines.iter().map(|l| l.split_once("] ").unwrap().1).collect();
    assert_eq!(
        shown,
        [
            "\"INCR\" \"post:1:like\"",
            "\"ECHO\" \"a\\\"\\\\\\r\\n\\a\\x01\\xc3\\xa9\"",
            "\"MULTI\"",
            "\"GET\" \"post:1:like\"",
            "\"EXEC\""
        ]
    );
    // A monitor that stops reading is disconnected without effect on other clients.
    let text = "x".repeat(4000);
    let started = Instant::now();
    let list = |raw: &mut tidemark_tests::Raw| {
        raw.request(&["CLIENT", "LIST"]);
        let length: usize = raw.line()[1..].parse().unwrap();
        raw.take(length + 2)
    };
    while list(&mut raw).contains(" flags=O ") {
        for _ in 0..100 {
            raw.request(&["ECHO", &text]).expect(&format!("$4000\r\n{text}\r\n"));
        }
        assert!(started.elapsed() < tidemark_tests::DEFAULT_TIMEOUT);
    }
}

/// If rows have no keys, SCAN, KEYS and RANDOMKEY list cell keys, so that the rows counted by
/// DBSIZE can be found.
#[test]
fn cells_are_listed_where_rows_have_no_keys() {
    let server = TestServer::with(|config| {
        config.counter[0].rows = String::new();
        config.counter[0].fields = "n:16 m:16".to_owned();
        config.counter[0].cells = "lock:{id}:{field}".to_owned();
        config.view.clear();
        config.action.clear();
    });
    let mut c = server.connection();
    let random: Option<String> = cmd("RANDOMKEY").query(&mut c).unwrap();
    assert_eq!(random, None);
    cmd("SET").arg("lock:7:n").arg(1).query::<()>(&mut c).unwrap();
    cmd("HSET").arg("user:9").arg("post").arg(1).query::<()>(&mut c).unwrap();
    let mut scan = |options: &[&str]| {
        let (next, mut keys): (u64, Vec<String>) =
            cmd("SCAN").arg(0).arg("COUNT").arg(1000).arg(options).query(&mut c).unwrap();
        assert_eq!(next, 0);
        keys.sort();
        keys
    };
    assert_eq!(scan(&[]), ["lock:7:m", "lock:7:n", "user:9"]);
    assert_eq!(scan(&["TYPE", "string"]), ["lock:7:m", "lock:7:n"]);
    assert_eq!(scan(&["TYPE", "hash"]), ["user:9"]);
    assert_eq!(scan(&["TYPE", "set"]), [""; 0]);
    assert_eq!(scan(&["MATCH", "*:n"]), ["lock:7:n"]);
    let keys: Vec<String> = cmd("KEYS").arg("lock:*").query(&mut c).unwrap();
    assert_eq!(keys, ["lock:7:m", "lock:7:n"]);
    cmd("DEL").arg("user:9").query::<()>(&mut c).unwrap();
    for _ in 0..10 {
        let random: String = cmd("RANDOMKEY").query(&mut c).unwrap();
        assert!(keys.contains(&random), "{random}");
    }
}

/// HSCAN supports NOVALUES, as in Redis 7.4.
#[test]
fn hscan_can_leave_values_out() {
    let server = TestServer::start();
    let mut c = server.connection();
    cmd("HSET").arg("user:9").arg("post").arg(5).query::<()>(&mut c).unwrap();
    let mut scan = |options: &[&str]| -> (String, Vec<String>) {
        cmd("HSCAN").arg("user:9").arg(0).arg(options).query(&mut c).unwrap()
    };
    let of = |fields: &[&str]| ("0".to_owned(), fields.iter().map(|f| (*f).to_owned()).collect());
    assert_eq!(scan(&["NOVALUES"]), of(&["follower", "following", "post"]));
    assert_eq!(scan(&["NOVALUES", "MATCH", "p*"]), of(&["post"]));
    assert_eq!(scan(&["MATCH", "p*"]), of(&["post", "5"]));
}

#[test]
fn a_scan_finds_every_row_while_others_write() {
    let server = TestServer::with(|config| config.counter[0].rows_per_table = 4096);
    let mut c = server.connection();
    let mut expected = HashSet::new();
    let mut pipe = redis::pipe();
    for i in 0..20_000u64 {
        // Use ids of several tables, including a distant id.
        let id = if i == 7 { u64::MAX } else { i * 37 };
        pipe.cmd("HINCRBY").arg(format!("post:{id}")).arg("like").arg(1).ignore();
        expected.insert(format!("post:{id}"));
    }
    for i in 0..50 {
        pipe.cmd("HINCRBY").arg(format!("user:{i}")).arg("post").arg(1).ignore();
        expected.insert(format!("user:{i}"));
    }
    pipe.query::<()>(&mut c).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut c = server.connection();
            for i in 0.. {
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                // Because of the new rows, tables are closed and rewritten during the scan.
                cmd("HINCRBY")
                    .arg(format!("post:{}", 800_000 + i))
                    .arg("like")
                    .arg(1)
                    .query::<()>(&mut c)
                    .unwrap();
            }
        });
        let mut c = server.connection();
        let (mut cursor, mut found, mut calls) = ("0".to_owned(), HashSet::new(), 0);
        loop {
            let (next, keys): (String, Vec<String>) =
                cmd("SCAN").arg(&cursor).arg("COUNT").arg(500).query(&mut c).unwrap();
            found.extend(keys);
            calls += 1;
            cursor = next;
            if cursor == "0" {
                break;
            }
            assert!(calls < 10_000, "the loop does not end");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let missing: Vec<_> = expected.difference(&found).collect();
        assert!(missing.is_empty(), "{} rows are missing, {:?}", missing.len(), missing.first());
    });
    let (_, users): (String, Vec<String>) = cmd("SCAN")
        .arg(0)
        .arg("COUNT")
        .arg(10_000)
        .arg("MATCH")
        .arg("user:?")
        .query(&mut c)
        .unwrap();
    assert!(users.iter().all(|key| key.len() == 6), "{users:?}");
    let error = cmd("KEYS").arg("*").query::<Vec<String>>(&mut c).unwrap_err().to_string();
    assert!(error.contains("to list at once: use SCAN"), "{error}");
    let key: String = cmd("RANDOMKEY").query(&mut c).unwrap();
    assert_eq!(cmd("EXISTS").arg(key).query::<i64>(&mut c).unwrap(), 1);
}

#[test]
fn a_sleep_delays_its_own_connection_only() {
    let server = TestServer::with(|config| config.server.workers = 1);
    let (mut sleeper, mut other) = (server.raw(), server.raw());
    let started = Instant::now();
    sleeper.request(&["DEBUG", "SLEEP", "0.4"]);
    eventually("others are served", || other.ask(&["PING"]) == "+PONG");
    assert!(started.elapsed() < Duration::from_millis(400));
    sleeper.expect("+OK\r\n");
    assert!(started.elapsed() >= Duration::from_millis(400));
}
