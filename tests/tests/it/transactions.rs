//! MULTI, EXEC, WATCH: isolation, atomicity, and detection of changed keys.

use redis::{Connection, cmd};
use std::sync::atomic::{AtomicBool, Ordering};
use tidemark_tests::TestServer;

fn int(c: &mut Connection, words: &[&str]) -> i64 {
    cmd(words[0]).arg(&words[1..]).query(c).unwrap()
}

/// Other connections increment two rows separately. A transaction that reads, writes and rereads
/// both must find consistent sums. The server has several workers.
#[test]
fn nothing_comes_between_the_commands_of_a_transaction() {
    let server = TestServer::with(|config| config.server.workers = 4);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let (server, done) = (&server, &done);
            scope.spawn(move || {
                let mut c = server.connection();
                let mut i = t;
                while !done.load(Ordering::Relaxed) {
                    i += 1;
                    let mut pipe = redis::pipe();
                    pipe.cmd("HINCRBY")
                        .arg(format!("post:{}", 10 + i % 2))
                        .arg("like")
                        .arg(1)
                        .ignore();
                    pipe.cmd("FEED.ACT").arg("repost").arg(i).arg(10).ignore();
                    pipe.query::<()>(&mut c).unwrap();
                }
            });
        }
        let mut c = server.connection();
        for round in 0..2000 {
            let mut pipe = redis::pipe();
            pipe.atomic();
            let read = |pipe: &mut redis::Pipeline| {
                for key in ["post:10", "post:11"] {
                    pipe.cmd("HMGET").arg(key).arg("like").arg("repost");
                }
            };
            read(&mut pipe);
            pipe.cmd("HINCRBY").arg("post:10").arg("like").arg(5).ignore();
            pipe.cmd("HINCRBY").arg("post:11").arg("like").arg(-5).ignore();
            read(&mut pipe);
            let [a, b, x, y]: [(Option<i64>, Option<i64>); 4] = pipe.query(&mut c).unwrap();
            let or_0 = |(l, r): (Option<i64>, Option<i64>)| (l.unwrap_or(0), r.unwrap_or(0));
            let (a, b) = (or_0(a), or_0(b));
            assert_eq!((or_0(x), or_0(y)), ((a.0 + 5, a.1), (b.0 - 5, b.1)), "round {round}");
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Commands that normally exclude other writers must not deadlock inside EXEC.
#[test]
fn commands_on_many_keys_do_not_wait_for_their_own_transaction() {
    let server = TestServer::start();
    let mut raw = server.raw();
    for round in ["1", "2"] {
        raw.request(&["MULTI"]).expect("+OK\r\n");
        for request in [
            "SADD liked:1 7",
            "MSET post:1:like 5 post:2:like 6",
            "MSETNX post:3:like 7 post:4:like 8",
            "SMOVE liked:1 liked:2 7",
            "MGET post:1:like post:4:like",
        ] {
            raw.request(&request.split(' ').collect::<Vec<_>>()).expect("+QUEUED\r\n");
        }
        let new = if round == "1" { ":1" } else { ":0" };
        raw.request(&["EXEC"])
            .expect(&format!("*5\r\n:1\r\n+OK\r\n{new}\r\n:1\r\n*2\r\n$1\r\n5\r\n$1\r\n8\r\n"));
    }
    // Clients that connect later are not blocked either.
    server.raw().request(&["INCR", "post:1:like"]).expect(":6\r\n");
}

/// Many clients increment with WATCH, GET and SET as in the Redis manual; no increment is lost.
#[test]
fn a_watched_counter_loses_no_addition() {
    let server = TestServer::with(|config| config.server.workers = 4);
    let each = 150;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut c = server.connection();
                for _ in 0..each {
                    loop {
                        cmd("WATCH").arg("post:5:like").query::<()>(&mut c).unwrap();
                        let now: Option<i64> = cmd("GET").arg("post:5:like").query(&mut c).unwrap();
                        let mut pipe = redis::pipe();
                        pipe.atomic()
                            .cmd("SET")
                            .arg("post:5:like")
                            .arg(now.unwrap_or(0) + 1)
                            .ignore();
                        if pipe.query::<Option<()>>(&mut c).unwrap().is_some() {
                            break;
                        }
                    }
                }
            });
        }
    });
    assert_eq!(int(&mut server.connection(), &["GET", "post:5:like"]), 4 * each);
}

/// Tests every kind of change of a watched key, by the same and by another client.
#[test]
fn every_change_of_a_watched_key_is_noticed() {
    let server = TestServer::start();
    let (mut own, mut other) = (server.raw(), server.raw());
    let changes: &[(&str, &str)] = &[
        ("post:1", "HSET post:1 like 7"),
        ("post:1", "HMSET post:1 like 8"),
        ("post:1", "HSETNX post:2 like 7"),
        ("post:1", "HINCRBY post:1 like 1"),
        ("post:1:like", "INCR post:1:like"),
        ("post:1:like", "INCR post:1:read"),
        ("post:1:like", "DECRBY post:1:like 3"),
        ("post:1:like", "SET post:1:like 9"),
        ("post:1", "CNT.SET post 1 like 2"),
        ("post:1", "CNT.INCRBY post 1 like 2"),
        ("post:1", "CNT.MINCRBY post 1 like 2 3 like 1"),
        ("post:1", "FEED.ACT like 7 1"),
        ("liked:1", "FEED.UNDO like 7 1"),
        ("read:1", "FEED.GET home 7 1 MARK read"),
        ("liked:1", "SADD liked:1 a"),
        ("liked:1", "SREM liked:1 a"),
        ("liked:1", "PH.ADD liked b 1"),
        ("liked:1", "PH.DEL liked b 1"),
        ("liked:1", "BF.ADD liked:1 c"),
        ("liked:1", "BF.MADD liked:1 d e"),
        ("liked:1", "BF.INSERT liked:1 ITEMS f"),
        ("liked:1", "CF.DEL liked:1 f"),
        ("liked:1", "CF.ADD liked:1 f"),
        ("liked:1", "CF.ADDNX liked:1 g"),
        ("liked:1", "TM.ROLL liked"),
        ("post:1", "TM.SPACE ALTER post ADD share:4"),
        ("post:1:like", "DEL post:1:like"),
        ("post:1", "CNT.DEL post 1"),
        ("post:2", "DEL post:2"),
    ];
    own.request(&["HSET", "post:1", "like", "1"]).expect(":4\r\n".replace('4', "1").as_str());
    for (key, change) in changes {
        for by_other in [true, false] {
            let changes_post_2 = change.contains("post:2");
            let key = if changes_post_2 { "post:2" } else { key };
            own.request(&["WATCH", key]).expect("+OK\r\n");
            let (by, name) = if by_other { (&mut other, "another") } else { (&mut own, "itself") };
            let words: Vec<&str> = change.split(' ').collect();
            by.request(&words);
            by.request(&["ECHO", "done"]);
            let mut line = by.line();
            let first = line.clone();
            while line != "done" {
                line = by.line();
            }
            assert!(!first.starts_with('-') || change.contains("ALTER"), "{change}: {first}");
            own.request(&["MULTI"]).expect("+OK\r\n");
            own.request(&["PING"]).expect("+QUEUED\r\n");
            own.request(&["EXEC"]);
            let reply = own.line();
            // A repeated change has no effect.
            let repeated = !by_other
                && [
                    "FEED", "PH.", "BF.", "CF.DEL", "CF.ADD", "SADD", "SREM", "ROLL", "ALTER",
                    "DEL", "HSETNX",
                ]
                .iter()
                .any(|c| change.contains(c));
            if repeated && reply == "*1" {
                assert_eq!(own.line(), "+PONG");
            } else {
                assert_eq!(reply, "*-1", "{change} by {name}");
            }
        }
    }
    // Changes of other keys, or before WATCH, do not count.
    own.request(&["HSET", "post:3", "like", "1"]).line();
    own.request(&["WATCH", "post:3", "liked:3"]).expect("+OK\r\n");
    other.request(&["HSET", "post:4", "like", "1"]).line();
    own.request(&["MULTI"]).expect("+OK\r\n").request(&["PING"]).expect("+QUEUED\r\n");
    own.request(&["EXEC"]).expect("*1\r\n+PONG\r\n");
}

/// Copies of the data folder are taken while transactions move likes between rows; each copy
/// contains complete transactions only.
#[test]
fn a_crash_leaves_all_of_a_transaction_or_nothing() {
    let server = TestServer::with(|config| {
        config.server.workers = 4;
        config.durability.fsync = tidemark_server::config::Fsync::Always;
    });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for t in 0..3u64 {
            let (server, done) = (&server, &done);
            scope.spawn(move || {
                let mut c = server.connection();
                let mut random = fastrand::Rng::with_seed(t);
                while !done.load(Ordering::Relaxed) {
                    let mut pipe = redis::pipe();
                    pipe.atomic();
                    let n = random.i64(1..100);
                    for (key, sign) in [(random.u64(..50), 1), (random.u64(..50), -1)] {
                        pipe.cmd("HINCRBY")
                            .arg(format!("post:{key}"))
                            .arg("like")
                            .arg(sign * n)
                            .ignore();
                    }
                    pipe.query::<()>(&mut c).unwrap();
                    // Change the same rows concurrently.
                    cmd("HINCRBY")
                        .arg(format!("post:{}", random.u64(..50)))
                        .arg("read")
                        .arg(1)
                        .query::<i64>(&mut c)
                        .unwrap();
                }
            });
        }
        for _ in 0..8 {
            std::thread::sleep(std::time::Duration::from_millis(60));
            let copy = server.killed();
            let mut c = copy.connection();
            let mut sum = 0;
            for key in 0..50 {
                let like: Option<i64> =
                    cmd("HGET").arg(format!("post:{key}")).arg("like").query(&mut c).unwrap();
                sum += like.unwrap_or(0);
            }
            assert_eq!(sum, 0, "half a transaction");
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn limits_hold_and_are_named() {
    let server = TestServer::with(|config| {
        config.server.max_transaction_bytes = 1000;
        config.server.max_watched_keys = 2;
    });
    let mut raw = server.raw();
    raw.request(&["MULTI"]).expect("+OK\r\n");
    let long = "x".repeat(600);
    let error = raw.ask(&["ECHO", &long]);
    assert_eq!(error, "-ERR transaction too large: at most 1000 bytes (max_transaction)");
    raw.request(&["EXEC"])
        .expect("-EXECABORT Transaction discarded because of previous errors.\r\n");
    raw.request(&["WATCH", "post:1", "post:2"]).expect("+OK\r\n");
    assert_eq!(
        raw.ask(&["WATCH", "post:3"]),
        "-ERR too many watched keys: at most 2 per client (max_watched_keys)"
    );
    // Slow commands and commands with a deferred reply are refused when queued.
    for late in [
        &["SAVE"][..],
        &["TM.TABLES"],
        &["TM.SPACE", "LIST"],
        &["SHUTDOWN"],
        &["KEYS", "*"],
        &["SCAN", "0"],
        &["RANDOMKEY"],
    ] {
        raw.request(&["MULTI"]).expect("+OK\r\n");
        raw.request(late).expect("-ERR Command not allowed inside a transaction\r\n");
        raw.request(&["DISCARD"]).expect("+OK\r\n");
    }
}

/// The errors for too many arguments of a request or of a transaction name the limit. Nothing is
/// executed, and the connection stays open.
#[test]
fn arguments_of_a_request_and_of_a_transaction_are_limited() {
    let server = TestServer::with(|config| {
        let default = tidemark_server::config::Server::default();
        config.server.max_request_args = default.max_request_args;
        config.server.max_transaction_args = default.max_transaction_args;
    });
    let mut raw = server.raw();
    let ask = |raw: &mut tidemark_tests::Raw, words: &str, keys: usize| {
        let keys: Vec<String> = (0..keys).map(|id| format!("post:{id}")).collect();
        let mut all: Vec<&str> = words.split(' ').collect();
        all.extend(keys.iter().map(String::as_str));
        raw.ask(&all)
    };
    let error = "-ERR too many arguments: at most 16384 per request (max_request_args)";
    raw.request(&["SET", "post:1:like", "5"]).expect("+OK\r\n");
    assert_eq!(ask(&mut raw, "WATCH", 16_384), error);
    assert_eq!(ask(&mut raw, "SUBSCRIBE", 16_384), error);
    // Requests that yield to other clients have no such limit.
    assert_eq!(ask(&mut raw, "EXISTS", 100_000), ":1");
    // Inside a transaction, one request with too many arguments makes EXEC fail, and so do too many
    // arguments in total.
    assert_eq!(raw.ask(&["MULTI"]), "+OK");
    assert_eq!(ask(&mut raw, "DEL", 16_384), error);
    assert!(raw.ask(&["EXEC"]).starts_with("-EXECABORT"));
    assert_eq!(raw.ask(&["MULTI"]), "+OK");
    for _ in 0..2 {
        assert_eq!(ask(&mut raw, "DEL", 16_383), "+QUEUED");
    }
    assert_eq!(raw.ask(&["PING"]), "+QUEUED", "PING was not queued");
    assert_eq!(
        raw.ask(&["DEL", "post:1"]),
        "-ERR too many arguments in the transaction: at most 32768, where messages and sets of \
         exact flags count as several (max_transaction_args)"
    );
    assert!(raw.ask(&["EXEC"]).starts_with("-EXECABORT"));
    raw.request(&["GET", "post:1:like"]).expect("$1\r\n5\r\n");
    // The setting applies to existing connections.
    let mut admin = server.raw();
    assert_eq!(admin.ask(&["CONFIG", "SET", "server.max_request_args", "100"]), "+OK");
    let error = "-ERR too many arguments: at most 100 per request (max_request_args)";
    assert_eq!(ask(&mut raw, "WATCH", 100), error);
    assert_eq!(ask(&mut raw, "WATCH", 99), "+OK");
}

/// A slow operation counts as many arguments, because other clients wait during EXEC.
#[test]
fn what_takes_long_in_a_transaction_counts_as_many_arguments() {
    let server = TestServer::with(|config| {
        config.server.max_transaction_args = 32_768;
    });
    let mut raw = server.raw();
    let mut queued = |words: &[&str]| {
        assert_eq!(raw.ask(&["MULTI"]), "+OK");
        let queued = (0..1000).take_while(|_| raw.ask(words) == "+QUEUED").count();
        let end = if queued < 1000 { "-EXECABORT" } else { "*1000" };
        assert!(raw.ask(&["EXEC"]).starts_with(end));
        (0..1000 * usize::from(queued == 1000)).for_each(|_| _ = raw.line());
        queued
    };
    // A set with a ledger counts as many arguments, because its members are read from files. Only
    // key arguments count.
    assert_eq!(queued(&["EXISTS", "liked:1"]), 32_768 / 129);
    assert_eq!(queued(&["SISMEMBER", "read:1", "liked:1"]), 1000);
    // Publish a message that is matched against many expensive patterns.
    let (pattern, channel) = (format!("*{}b", "a".repeat(198)), "a".repeat(200));
    assert_eq!(queued(&["PUBLISH", &channel, "x"]), 1000);
    let mut listener = server.raw();
    for n in 0..10 {
        assert_eq!(listener.ask(&["PSUBSCRIBE", &format!("{pattern}{n}")]), "*3");
        (0..5).for_each(|_| _ = listener.line());
    }
    let messages = queued(&["PUBLISH", &channel, "x"]);
    assert!((15..30).contains(&messages), "{messages}");
}

/// A key watched twice counts once.
#[test]
fn a_key_that_is_watched_twice_counts_once() {
    let server = TestServer::with(|config| config.server.max_watched_keys = 2);
    let (mut raw, mut other) = (server.raw(), server.raw());
    let watching = |raw: &mut tidemark_tests::Raw| {
        assert!(raw.ask(&["CLIENT", "INFO"]).starts_with('$'));
        let line = raw.line();
        line.split(' ').find_map(|word| word.strip_prefix("watch=")).unwrap().to_owned()
    };
    for _ in 0..3 {
        raw.request(&["WATCH", "post:1", "post:1", "post:2"]).expect("+OK\r\n");
    }
    assert_eq!(watching(&mut raw), "2");
    assert_eq!(
        raw.ask(&["WATCH", "post:3"]),
        "-ERR too many watched keys: at most 2 per client (max_watched_keys)"
    );
    // The first WATCH determines the version.
    other.request(&["HINCRBY", "post:1", "like", "1"]).expect(":1\r\n");
    raw.request(&["WATCH", "post:1"]).expect("+OK\r\n");
    raw.request(&["MULTI"]).expect("+OK\r\n");
    raw.request(&["HINCRBY", "post:2", "like", "1"]).expect("+QUEUED\r\n");
    raw.request(&["EXEC"]).expect("*-1\r\n");
    assert_eq!(watching(&mut raw), "0");
}

/// Replies above the output limit close the connection, but the transaction completes.
#[test]
fn a_transaction_that_answers_too_much_is_still_done_as_a_whole() {
    let server = TestServer::with(|config| config.server.max_output_buffer_bytes = 1 << 20);
    let mut raw = server.raw();
    raw.request(&["MULTI"]).expect("+OK\r\n");
    for _ in 0..100 {
        raw.request(&["COMMAND"]).expect("+QUEUED\r\n");
    }
    raw.request(&["INCR", "post:1:like"]).expect("+QUEUED\r\n");
    raw.request(&["EXEC"]);
    assert_eq!(raw.rest(), "");
    assert_eq!(int(&mut server.connection(), &["GET", "post:1:like"]), 1);
}

/// A group of changes must fit into one log batch.
#[test]
fn changes_too_large_for_a_log_batch_are_refused_whole() {
    const ROWS: usize = 100_000;
    let server = TestServer::with(|config| config.server.max_transaction_bytes = 64 << 20);
    let mut c = server.connection();
    for field in 4..64 {
        let field = format!("f{field}:6");
        cmd("TM.SPACE").arg(&["ALTER", "post", "ADD", &field]).query::<()>(&mut c).unwrap();
    }
    let set = |name: &str, rows: usize| {
        let mut cmd = cmd(name);
        (0..ROWS).for_each(|i| _ = cmd.arg(format!("post:{}:like", i % rows)).arg(7));
        cmd
    };
    for name in ["MSET", "MSETNX"] {
        let error = format!("{:?}", set(name, ROWS).query::<()>(&mut c).unwrap_err());
        assert!(error.contains("bytes of the log, and the maximum is 62914560"), "{error}");
    }
    // The client library cannot parse the reply of an EXEC that fails as a whole.
    let mut raw = server.raw();
    raw.request(&["MULTI"]);
    assert_eq!(raw.take(5), "+OK\r\n");
    for some in 0..ROWS / 1000 {
        (0..1000).for_each(|i| {
            _ = raw.request(&["HINCRBY", &format!("post:{}", some * 1000 + i), "like", "1"])
        });
        assert_eq!(raw.take(9 * 1000), "+QUEUED\r\n".repeat(1000));
    }
    let error = raw.request(&["EXEC"]).line();
    assert!(
        error.starts_with("-EXECABORT Transaction discarded because of: atomic change too large"),
        "{error}"
    );
    assert_eq!(int(&mut c, &["DBSIZE"]), 0, "a rejected change was made");
    // The same number of changes on fewer rows fits.
    set("MSET", 1000).query::<()>(&mut c).unwrap();
    assert_eq!(int(&mut c, &["DBSIZE"]), 1000);
}

/// After EXECABORT, a pooled connection is outside any transaction.
#[test]
fn an_exec_that_is_refused_ends_the_transaction() {
    let server = TestServer::start();
    let (mut admin, mut raw) = (server.raw(), server.raw());
    admin.request(&["ACL", "SETUSER", "u", "on", "nopass", "~*", "+@all"]).expect("+OK\r\n");
    raw.request(&["AUTH", "u", "x"])
        .expect("+OK\r\n")
        .request(&["WATCH", "post:1"])
        .expect("+OK\r\n");
    raw.request(&["MULTI"])
        .expect("+OK\r\n")
        .request(&["INCR", "post:1:like"])
        .expect("+QUEUED\r\n");
    admin.request(&["ACL", "SETUSER", "u", "-exec"]).expect("+OK\r\n");
    let reply = raw.ask(&["EXEC"]);
    assert!(reply.starts_with("-EXECABORT Transaction discarded because of: NOPERM"), "{reply}");
    raw.request(&["INCR", "post:1:like"]).expect(":1\r\n");
    let info: String = cmd("INFO").arg("clients").query(&mut server.connection()).unwrap();
    assert!(info.contains("watching_clients:0"), "{info}");
}

/// INFO reads the queue of the log, which a running transaction has locked.
#[test]
fn info_in_a_transaction_does_not_wait() {
    let server = TestServer::start();
    let mut c = server.connection();
    let (info,): (String,) = redis::pipe().atomic().cmd("INFO").query(&mut c).unwrap();
    assert!(info.contains("log_queue_bytes:"), "{info}");
    let mut all = redis::pipe();
    all.atomic()
        .cmd("INCR")
        .arg("post:1:like")
        .cmd("INFO")
        .arg("everything")
        .cmd("INCR")
        .arg("post:2:like");
    let (one, info, two): (i64, String, i64) = all.query(&mut c).unwrap();
    assert!((one, two) == (1, 1) && info.contains("log_queue_bytes:"), "{info}");
    cmd("MSET")
        .arg(&["post:1:read", "1", "post:2:read", "1"])
        .query::<()>(&mut server.connection())
        .unwrap();
}

/// A transaction can hold any number of commands about the server, and other clients wait for these
/// commands. Once a time budget is exhausted, further such commands are refused, while data
/// commands still run.
#[test]
fn commands_about_the_server_do_not_keep_others_out_for_long() {
    let server = TestServer::start();
    let mut raw = server.raw();
    let many = 60_000;
    let mut bytes = b"MULTI\r\n".to_vec();
    for _ in 0..many {
        bytes.extend(b"COMMAND LIST\r\n");
    }
    bytes.extend(b"INCR post:1:like\r\nEXEC\r\nECHO end\r\n");
    // Sends and receives concurrently.
    let mut sender = raw.stream.try_clone().unwrap();
    let sent = std::thread::spawn(move || std::io::Write::write_all(&mut sender, &bytes));
    let mut reply = Vec::new();
    while !reply.ends_with(b"$3\r\nend\r\n") {
        let mut buf = [0; 65_536];
        let read = std::io::Read::read(&mut raw.stream, &mut buf).unwrap();
        assert!(read > 0);
        reply.extend_from_slice(&buf[..read]);
    }
    sent.join().unwrap().unwrap();
    let text = String::from_utf8_lossy(&reply);
    assert!(text.ends_with(":1\r\n$3\r\nend\r\n"), "{}", &text[text.len() - 100..]);
    let refused =
        text.matches("-ERR administrative commands take too long in this transaction").count();
    assert!((1..many).contains(&refused), "{refused}");
}
