//! Malicious or broken input affects only its own request or connection, not the server or its
//! memory.

use std::io::Write;
use tidemark_tests::{TestServer, request, resident_bytes};

/// Checks that a new client is served.
fn alive(server: &TestServer) {
    server.raw().request(&["ECHO", "alive"]).expect("$5\r\nalive\r\n");
}

#[test]
fn malformed_requests_are_refused_and_end_the_connection() {
    let server = TestServer::start();
    let long = "1".repeat(70_000);
    let cases: &[(&str, &str)] = &[
        ("*2147483648\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        ("*abc\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        ("*1\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        ("*1\r\n$536870913\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        ("*1\r\n!4\r\nPING\r\n", "-ERR Protocol error: expected '$', got '!'\r\n"),
        ("*1\r\n$4\r\nPINGxx", "-ERR Protocol error: expected CRLF after a bulk string\r\n"),
        (&format!("*{long}"), "-ERR Protocol error: too big mbulk count string\r\n"),
        (&format!("*1\r\n${long}"), "-ERR Protocol error: too big bulk count string\r\n"),
        (&long, "-ERR Protocol error: too big inline request\r\n"),
        ("SET \"a\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
        ("POST / HTTP/1.1\r\nHost: x\r\n\r\nPING\r\n", ""),
        ("*1\r\n$5\r\nHost:\r\n", ""),
    ];
    for (bytes, expected) in cases {
        let mut raw = server.raw();
        raw.send("PING\r\n").expect("+PONG\r\n");
        // The server answers the earlier requests, but not the later requests.
        raw.send(format!("PING\r\n{bytes}"));
        if bytes.ends_with('\n') {
            raw.send("PING\r\n");
        }
        assert_eq!(
            raw.rest(),
            format!("+PONG\r\n{expected}"),
            "{:?}",
            &bytes[..bytes.len().min(40)]
        );
    }
    alive(&server);
}

#[test]
fn what_is_nothing_is_ignored_and_inline_commands_are_served() {
    let server = TestServer::start();
    let mut raw = server.raw();
    raw.send("\r\n*0\r\n*-1\r\n*-10\r\n  \r\nPING\r\n").expect("+PONG\r\n");
    raw.send("HINCRBY post:1 'like' \"2\"\nhget post:1 like\r\n").expect(":2\r\n$1\r\n2\r\n");
}

#[test]
fn an_unknown_command_cannot_forge_replies() {
    let server = TestServer::start();
    let mut raw = server.raw();
    raw.send("*2\r\n$10\r\nab\r\n+OK\r\nc\r\n$4\r\nx\0\r\n\r\n");
    raw.expect("-ERR unknown command 'ab  +OK  c', with args beginning with: 'x   ' \r\n");
    raw.request(&["PING"]).expect("+PONG\r\n");
    let long = "y".repeat(5000);
    let reply = raw.ask(&[&long, &long]);
    assert!(reply.len() < 400, "{}", reply.len());
    let reply = raw.ask(&["INCR", "a\r\n-b"]);
    let begins = "-ERR Invalid key 'a\\x0d\\x0a-b': it matches no key pattern (";
    assert!(reply.starts_with(begins), "{reply}");
}

#[test]
fn ten_thousand_arguments_arrive_in_packets() {
    let server = TestServer::start();
    let mut args = vec!["FEED.GET".to_owned(), "home".into(), "7".into()];
    args.extend((0..10_000).map(|i| (i * 37).to_string()));
    let bytes = request(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let mut raw = server.raw();
    for piece in bytes.chunks(1400) {
        raw.send(piece);
    }
    let row = "*6\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n";
    raw.expect(&format!("*10000\r\n{}", row.repeat(10_000)));
    raw.request(&["PING"]).expect("+PONG\r\n");
}

#[test]
fn a_request_beyond_the_query_buffer_ends_its_connection() {
    let server = TestServer::with(|config| config.server.max_query_buffer_bytes = 1 << 20);
    let mut raw = server.raw();
    raw.send("*2\r\n$4\r\nECHO\r\n$100000000\r\n");
    let chunk = vec![b'x'; 64 << 10];
    let mut sent = 0;
    while raw.stream.write_all(&chunk).is_ok() {
        sent += chunk.len();
        assert!(sent < 64 << 20, "the server did not limit its input");
    }
    alive(&server);
}

#[test]
fn a_reply_beyond_the_output_limit_ends_its_connection() {
    let server = TestServer::with(|config| config.server.max_output_buffer_bytes = 1 << 20);
    let mut args = vec!["FEED.GET".to_owned(), "home".into(), "7".into()];
    args.extend((0..40_000).map(|i| i.to_string()));
    let page: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut raw = server.raw();
    raw.request(&["MULTI"]).expect("+OK\r\n");
    raw.request(&page).expect("+QUEUED\r\n");
    raw.request(&["EXEC"]);
    assert_eq!(raw.rest(), "");
    alive(&server);
    // A reply to a single request is produced as fast as the client reads it.
    let mut raw = server.raw();
    raw.request(&page).expect("*40000\r\n");
    raw.expect(&"*6\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n".repeat(40_000));
}

#[test]
fn junk_and_broken_requests_do_no_harm() {
    let server = TestServer::start();
    let seed = 4711;
    let mut random = fastrand::Rng::with_seed(seed);
    alive(&server);
    let mut before = 0;
    let words = [
        "FEED.GET",
        "FEED.ACT",
        "CNT.INCRBY",
        "CNT.GET",
        "CNT.SET",
        "PH.ADD",
        "BF.MADD",
        "HSET",
        "HINCRBY",
        "HGETALL",
        "MGET",
        "DEL",
        "CLIENT",
        "CONFIG",
        "COMMAND",
        "HELLO",
        "INFO",
        "home",
        "post",
        "liked",
        "like",
        "post:1",
        "post:1:like",
        "liked:1",
        "1",
        "-1",
        "18446744073709551615",
        "18446744073709551616",
        "9223372036854775807",
        "-9223372036854775808",
        "GET",
        "LIST",
        "MIN",
        "MAX",
        "SAT",
        "BINARY",
        "MARK",
        "",
        "*",
        "\0",
        "\r\n",
        "x",
    ];
    for round in 0..3000 {
        let mut raw = server.raw();
        let mut bytes = Vec::new();
        match random.u8(..3) {
            0 => bytes.extend((0..random.usize(1..400)).map(|_| random.u8(..))),
            1 => {
                for _ in 0..random.usize(1..8) {
                    let args: Vec<&str> =
                        (0..random.usize(1..7)).map(|_| *random.choice(&words).unwrap()).collect();
                    bytes.extend(request(&args));
                }
            }
            _ => {
                let args: Vec<&str> =
                    (0..random.usize(1..7)).map(|_| *random.choice(&words).unwrap()).collect();
                bytes.extend(request(&args));
                for _ in 0..random.usize(1..4) {
                    let at = random.usize(..bytes.len());
                    bytes[at] = random.u8(..);
                }
            }
        }
        let cut = random.usize(..=bytes.len());
        raw.send(&bytes[..cut]);
        if random.bool() {
            raw.send(&bytes[cut..]);
        }
        drop(raw);
        if round == 500 {
            before = resident_bytes();
        }
        if round % 500 == 0 {
            alive(&server);
        }
    }
    alive(&server);
    let grown = resident_bytes().saturating_sub(before);
    // Allows for the memory of other tests in the same process.
    assert!(grown < 256 << 20, "seed {seed}: {grown} bytes grown");
}

/// The length of clients' patterns is limited, as is the length of the texts that patterns are
/// matched against.
#[test]
fn patterns_are_bounded_wherever_a_client_sends_one() {
    let server = TestServer::start();
    let mut raw = server.raw();
    raw.request(&["HSET", "post:1", "like", "1"]).expect(":1\r\n");
    let (fits, long) = (format!("*[{}]x", "!".repeat(252)), format!("*[{}]x", "!".repeat(253)));
    for words in [
        &["COMMAND", "LIST", "FILTERBY", "PATTERN"][..],
        &["HSCAN", "post:1", "0", "MATCH"],
        &["SCAN", "0", "MATCH"],
        &["KEYS"],
        &["PUBSUB", "CHANNELS"],
        &["PSUBSCRIBE"],
    ] {
        let mut raw = server.raw();
        let with = |pattern: &str| {
            [words, &[pattern]].concat().iter().map(|w| (*w).to_owned()).collect::<Vec<_>>()
        };
        let ask = |raw: &mut tidemark_tests::Raw, pattern| {
            raw.ask(&with(pattern).iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_eq!(ask(&mut raw, &long), "-ERR pattern too long: at most 256 bytes", "{words:?}");
        assert!(ask(&mut raw, &fits).starts_with('*'), "{words:?}");
    }
    // Each pattern is matched against every setting, so their total length is limited.
    let refusal = "-ERR at most 1024 patterns with 8192 bytes in total are allowed";
    assert_eq!(raw.ask(&["CONFIG", "GET", &"[".repeat(8193)]), refusal);
    let many = "[".repeat(64);
    assert_eq!(raw.ask(&[&["CONFIG", "GET"][..], &[many.as_str(); 129]].concat()), refusal);
    assert_eq!(raw.ask(&[&["CONFIG", "GET"][..], &[""; 1025]].concat()), refusal);
    assert_eq!(raw.ask(&[&["CONFIG", "GET"][..], &["timeout"; 1024]].concat()), "*2");
}

/// The description of a command is about a thousand times longer than its name.
#[test]
fn descriptions_of_commands_are_asked_for_once_each() {
    let server = TestServer::start();
    let mut raw = server.raw();
    for command in [&["COMMAND", "DOCS"][..], &["COMMAND", "INFO"], &["LATENCY", "HISTOGRAM"]] {
        assert_eq!(
            raw.ask(&[command, &["client"; 1025]].concat()),
            "-ERR at most 1024 names are allowed"
        );
    }
    let mut c = server.connection();
    let docs = |c: &mut redis::Connection, names: &[&str]| {
        redis::cmd("COMMAND").arg("DOCS").arg(names).query::<redis::Value>(c).unwrap()
    };
    let once = docs(&mut c, &["client", "get"]);
    assert_eq!(docs(&mut c, &["client", "get", "CLIENT", "client", "get"]), once);
    // COMMAND INFO answers in the order of the names.
    let info: Vec<redis::Value> =
        redis::cmd("COMMAND").arg("INFO").arg(&["get", "nope", "get"]).query(&mut c).unwrap();
    assert!(info.len() == 3 && info[0] == info[2] && info[1] == redis::Value::Nil);
}

/// The refusal of an id is found by index, not by a linear search.
#[test]
fn many_refused_marks_cost_no_more_each_than_few() {
    let server = TestServer::with(|config| config.existence[2].max_ahead = 1000);
    let mut c = server.connection();
    redis::cmd("PH.ADD")
        .arg("read")
        .arg(1)
        .arg((1000..1200).collect::<Vec<u64>>())
        .query::<()>(&mut c)
        .unwrap();
    let ids: Vec<String> = (0..200_000).map(|i| ((1u64 << 40) + i).to_string()).collect();
    let words: Vec<&str> = ["FEED.GET", "home", "7"]
        .into_iter()
        .chain(ids.iter().map(String::as_str))
        .chain(["MARK", "read"])
        .collect();
    let refused = "-ERR key too big: the id is too far above the highest one (max_ahead)\r\n";
    let began = std::time::Instant::now();
    server.raw().request(&words).expect("*200000\r\n").expect(&refused.repeat(ids.len()));
    // A linear search took minutes instead of about 10 ms per thousand ids.
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
}

/// FLUSHALL, which some test suites send first, gets a specific error.
#[test]
fn what_is_there_cannot_be_flushed() {
    let server = TestServer::start();
    let mut raw = server.raw();
    raw.request(&["HSET", "post:1", "like", "1"]).expect(":1\r\n");
    for words in [&["FLUSHALL"][..], &["flushdb"], &["FLUSHALL", "ASYNC"], &["FLUSHDB", "sync"]] {
        let reply = raw.ask(words);
        let name = words[0].to_ascii_uppercase();
        assert!(
            reply.starts_with(&format!("-ERR {name} is not supported: delete rows")),
            "{reply}"
        );
    }
    assert_eq!(raw.ask(&["FLUSHALL", "NOPE"]), "-ERR syntax error");
    assert_eq!(raw.ask(&["FLUSHALL", "ASYNC", "SYNC"]), "-ERR syntax error");
    raw.request(&["HGET", "post:1", "like"]).expect("$1\r\n1\r\n");
}
