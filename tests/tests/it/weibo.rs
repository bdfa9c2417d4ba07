//! Compatibility with Weibo's own clients: rows as text under bare ids, cells, MINCR, the bf
//! commands, and error texts.

use tidemark_server::config::{Counter, Existence};
use tidemark_tests::{Raw, TestServer};

/// Starts a server with a counter space that has bare ids, and an existence space without members.
fn server() -> TestServer {
    TestServer::with(|config| {
        config.view.clear();
        config.action.clear();
        config.counter = vec![Counter {
            name: "weibo".to_owned(),
            fields: "repost:8 like:12 comment:8".to_owned(),
            rows: "{id}".to_owned(),
            cells: "{id}.{field}".to_owned(),
            text_rows: true,
            max_ahead: 1 << 40,
            ..Counter::default()
        }];
        config.existence = vec![Existence {
            name: "read".to_owned(),
            pairs: "r{id}".to_owned(),
            pairs_per_table: 20_000,
            max_tables: 2,
            spill: false,
            ..Existence::default()
        }];
    })
}

#[track_caller]
fn says(raw: &mut Raw, request: &str, reply: &str) {
    let words: Vec<&str> = request.split(' ').collect();
    raw.request(&words).expect(reply);
}

#[test]
fn rows_are_texts_and_cells_are_numbers() {
    let server = server();
    let mut raw = server.raw();
    for (request, reply) in [
        // An absent row reads as an empty string, and an absent cell as nil.
        ("GET 44", "$0\r\n\r\n"),
        ("GET 44.like", "$-1\r\n"),
        ("INCRBY 44.like 20", ":20\r\n"),
        ("INCRBY 44.repost 20", ":20\r\n"),
        ("INCR 44.comment", ":1\r\n"),
        ("GET 44", "$27\r\nrepost:20,like:20,comment:1\r\n"),
        ("INCR 45.like", ":1\r\n"),
        // A cell of an existing row reads as 0.
        ("GET 45.repost", "$1\r\n0\r\n"),
        ("DECRBY 45.comment 5", ":-5\r\n"),
        ("SET 45.repost 9223372036854775807", "+OK\r\n"),
        ("GET 45", "$44\r\nrepost:9223372036854775807,like:1,comment:-5\r\n"),
        (
            "MINCR 1.like 2.like 1.like 45.repost",
            "*4\r\n:1\r\n:1\r\n:2\r\n-ERR increment or decrement would overflow\r\n",
        ),
        (
            "MGET 1 2.like 3 3.like 2",
            "*5\r\n$25\r\nrepost:0,like:2,comment:0\r\n$1\r\n1\r\n$0\r\n\r\n$-1\r\n$25\r\n\
             repost:0,like:1,comment:0\r\n",
        ),
        ("DEL 44.like", ":1\r\n"),
        ("GET 44", "$26\r\nrepost:20,like:0,comment:1\r\n"),
        ("DEL 44", ":1\r\n"),
        ("GET 44", "$0\r\n\r\n"),
        (
            "HGETALL 1",
            "*6\r\n$6\r\nrepost\r\n$1\r\n0\r\n$4\r\nlike\r\n$1\r\n2\r\n$7\r\ncomment\r\n$1\r\n\
             0\r\n",
        ),
    ] {
        says(&mut raw, request, reply);
    }
    for (request, part) in [
        ("GET abc", "Invalid key"),
        ("INCR 44x.like", "Invalid key"),
        ("GET 18446744073709551616", "Invalid key"),
        ("INCR 44.nope", "No schema"),
        ("MINCR 44.like 44.nope", "No schema"),
        ("MGET 44 nope", "Invalid key"),
        ("SET 44 5", "Invalid key"),
        ("INCRBY 44 5", "Invalid key"),
        ("DECRBY 44 5", "Invalid key"),
        ("INCR 18446744073709551615.like", "key too big"),
    ] {
        let words: Vec<&str> = request.split(' ').collect();
        let error = raw.ask(&words);
        assert!(error.starts_with('-') && error.contains(part), "{request}: {error}");
    }
    // Refused requests changed nothing.
    says(&mut raw, "GET 44.like", "$-1\r\n");
    says(&mut raw, "GET 18446744073709551615", "$0\r\n\r\n");
    // A few rows suffice to define the normal range, also after a restart.
    let server = server.restart();
    let mut raw = server.raw();
    let error = raw.ask(&["INCR", "18446744073709551615.like"]);
    assert!(error.starts_with("-ERR key too big"), "{error}");
    says(&mut raw, "INCR 1099511627776.like", ":1\r\n");
}

/// In a space without members and with bare keys, ids are set, tested, counted and cleared.
#[test]
fn a_space_without_members_has_bare_ids() {
    let server = TestServer::with(|config| {
        config.view.clear();
        config.action.clear();
        config.counter.retain(|counter| counter.name == "user");
        config.existence = vec![Existence {
            name: "seen".to_owned(),
            pairs: "{id}".to_owned(),
            members: false,
            ..Existence::default()
        }];
    });
    let mut raw = server.raw();
    let none = "ERR the space 'seen' has no members, use BFSET, BFGET, EXISTS or DEL on its ids";
    for (request, reply) in [
        ("BFGET 44", ":0"),
        ("EXISTS 44", ":0"),
        ("TYPE 44", "+none"),
        ("TTL 44", ":-2"),
        ("BFSET 44", ":0"),
        ("BFSET 44", ":1"),
        ("BFSET 18446744073709551615", ":0"),
        ("BFGET 18446744073709551615", ":1"),
        ("BFGET 18446744073709551616", ":-2"),
        ("BFGET 044", ":-2"),
        ("EXISTS 44 45 18446744073709551615", ":2"),
        ("TYPE 44", "+set"),
        ("TTL 44", ":-1"),
        ("DEL 44 45", ":1"),
        ("BFGET 44", ":0"),
        ("UNLINK 44", ":0"),
    ] {
        assert_eq!(raw.ask(&request.split(' ').collect::<Vec<_>>()), reply, "{request}");
    }
    for request in [
        "SADD 44 7",
        "SISMEMBER 44 7",
        "SCARD 44",
        "BF.ADD 44 7",
        "CF.DEL 44 7",
        "PH.ADD seen 7 44",
        "PH.EXISTS seen 7 44",
    ] {
        assert_eq!(
            raw.ask(&request.split(' ').collect::<Vec<_>>()),
            format!("-{none}"),
            "{request}"
        );
    }
    let server = server.restart();
    let mut raw = server.raw();
    raw.request(&["BFMGET", "44", "18446744073709551615", "45"]).expect("*3\r\n:0\r\n:1\r\n:0\r\n");
}

#[test]
fn the_bf_verbs_tell_the_state_before_and_the_oldest_table() {
    let server = server();
    let mut raw = server.raw();
    for (request, reply) in [
        ("BFGET r7", ":0\r\n"),
        ("BFSET r7", ":0\r\n"),
        ("BFSET r7", ":1\r\n"),
        ("BFGET r7", ":1\r\n"),
        ("BFMSET r7 r8 x9 44", "*4\r\n:1\r\n:0\r\n:-2\r\n:-2\r\n"),
        ("BFMGET r7 r8 r9 x9", "*4\r\n:1\r\n:1\r\n:0\r\n:-2\r\n"),
        ("BFSET nope", ":-2\r\n"),
        ("BFGET r18446744073709551616", ":-2\r\n"),
        // A pair without a member differs from member 0.
        ("SISMEMBER r7 0", ":0\r\n"),
    ] {
        says(&mut raw, request, reply);
    }
    // Add enough ids for the first table to be recycled.
    let mut c = server.connection();
    for chunk in 0..40u64 {
        let mut command = redis::cmd("BFMSET");
        for i in 0..2_500u64 {
            command.arg(format!("r{}", 10 + chunk * 2_500 + i));
        }
        command.query::<Vec<i64>>(&mut c).unwrap();
    }
    says(&mut raw, "BFGET r7", ":-1\r\n");
    says(&mut raw, "BFSET r7", ":-1\r\n");
    says(&mut raw, "BFGET r100005", ":1\r\n");
    let server = server.restart();
    let mut raw = server.raw();
    says(&mut raw, "BFMGET r7 r100005 r100050", "*3\r\n:-1\r\n:1\r\n:0\r\n");
}
