//! Compatibility details that stock clients and tools rely on: keys outside all spaces, padded ids,
//! and Redis and RedisBloom commands with limited meaning.

use super::commands::check;
use tidemark_server::config::{Counter, Existence};
use tidemark_tests::{Raw, TestServer};

#[track_caller]
fn ask(raw: &mut Raw, request: &str) -> String {
    raw.ask(&request.split(' ').collect::<Vec<_>>())
}

fn skip(raw: &mut Raw) {
    raw.request(&["ECHO", "the end"]);
    while raw.line() != "the end" {}
}

/// Session stores and locks on a shared Redis read keys outside all spaces before they write them.
#[test]
fn a_key_of_no_space_is_absent_for_reads() {
    let server = TestServer::start();
    let script = [
        ("GET session:abc", "$-1\r\n"),
        ("GET post:abc", "$-1\r\n"),
        ("GET post:abc:like", "$-1\r\n"),
        ("GET post:007:like", "$-1\r\n"),
        ("GET post:18446744073709551616:like", "$-1\r\n"),
        ("GETEX session:abc EX 10", "$-1\r\n"),
        ("GETDEL session:abc", "$-1\r\n"),
        ("STRLEN session:abc", ":0\r\n"),
        ("GETRANGE session:abc 0 -1", "$0\r\n\r\n"),
        ("HGET session:abc like", "$-1\r\n"),
        ("HMGET session:abc a b", "*2\r\n$-1\r\n$-1\r\n"),
        ("HGETALL session:abc", "*0\r\n"),
        ("HEXISTS session:abc a", ":0\r\n"),
        ("HLEN session:abc", ":0\r\n"),
        ("HKEYS session:abc", "*0\r\n"),
        ("HVALS session:abc", "*0\r\n"),
        ("HSTRLEN session:abc a", ":0\r\n"),
        ("HSCAN session:abc 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("HDEL session:abc a", ":0\r\n"),
        ("SISMEMBER session:abc a", ":0\r\n"),
        ("SMISMEMBER session:abc a b", "*2\r\n:0\r\n:0\r\n"),
        ("SMEMBERS session:abc", "*0\r\n"),
        ("SCARD session:abc", ":0\r\n"),
        ("SPOP session:abc", "$-1\r\n"),
        ("SPOP session:abc 2", "*0\r\n"),
        ("SRANDMEMBER session:abc", "$-1\r\n"),
        ("SRANDMEMBER session:abc 2", "*0\r\n"),
        ("SSCAN session:abc 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("SINTER session:abc s", "*0\r\n"),
        ("SUNION session:abc s", "*0\r\n"),
        ("SDIFF session:abc s", "*0\r\n"),
        ("SINTERCARD 2 session:abc s", ":0\r\n"),
        ("SREM session:abc a", ":0\r\n"),
        ("SMOVE session:abc liked:1 a", ":0\r\n"),
        ("BF.EXISTS session:abc a", ":0\r\n"),
        ("BF.MEXISTS session:abc a b", "*2\r\n:0\r\n:0\r\n"),
        ("BF.CARD session:abc", ":0\r\n"),
        ("BF.INFO session:abc", "-ERR not found\r\n"),
        ("CF.EXISTS session:abc a", ":0\r\n"),
        ("CF.MEXISTS session:abc a", "*1\r\n:0\r\n"),
        ("CF.COUNT session:abc a", ":0\r\n"),
        ("CF.INFO session:abc", "-ERR not found\r\n"),
        ("CF.DEL session:abc a", "-ERR Not found\r\n"),
        ("EXISTS session:abc post:abc", ":0\r\n"),
        ("TOUCH session:abc", ":0\r\n"),
        ("TYPE session:abc", "+none\r\n"),
        ("TTL session:abc", ":-2\r\n"),
        ("PTTL session:abc", ":-2\r\n"),
        ("EXPIRETIME session:abc", ":-2\r\n"),
        ("PEXPIRETIME session:abc", ":-2\r\n"),
        ("PERSIST session:abc", ":0\r\n"),
        ("EXPIRE session:abc 10", ":0\r\n"),
        ("PEXPIRE session:abc 10", ":0\r\n"),
        ("DEL session:abc", ":0\r\n"),
        ("UNLINK session:abc", ":0\r\n"),
        ("OBJECT ENCODING session:abc", "$-1\r\n"),
        ("OBJECT REFCOUNT session:abc", "$-1\r\n"),
        ("OBJECT FREQ session:abc", "$-1\r\n"),
        ("OBJECT IDLETIME session:abc", "$-1\r\n"),
        ("MEMORY USAGE session:abc", "$-1\r\n"),
        ("DUMP session:abc", "$-1\r\n"),
        ("RENAME session:abc x", "-ERR no such key\r\n"),
        ("COPY session:abc x", ":0\r\n"),
        ("MOVE session:abc 1", ":0\r\n"),
        ("WATCH session:abc", "+OK\r\n"),
        ("UNWATCH", "+OK\r\n"),
        // An unknown field is absent for commands that only test the key.
        ("EXISTS post:1:nope", ":0\r\n"),
        ("TYPE post:1:nope", "+none\r\n"),
        ("DEL post:1:nope", ":0\r\n"),
        ("GET post:1:nope", "-ERR No schema field 'nope' in space 'post'\r\n"),
    ];
    check(&mut server.raw(), &script);
    // RESP3 has its own types for absent values.
    let mut raw = server.raw();
    raw.request(&["HELLO", "3"]);
    skip(&mut raw);
    for (request, reply) in [
        ("GET session:abc", "_\r\n"),
        ("HGETALL session:abc", "%0\r\n"),
        ("SMEMBERS session:abc", "~0\r\n"),
        ("BF.EXISTS session:abc a", "#f\r\n"),
    ] {
        raw.request(&request.split(' ').collect::<Vec<_>>()).expect(reply);
    }
}

/// Regression test: one key outside all spaces used to fail the whole MGET.
#[test]
fn one_strange_key_does_not_fail_an_mget() {
    let server = TestServer::start();
    let mut raw = server.raw();
    ask(&mut raw, "SET post:1:like 5");
    ask(&mut raw, "SET post:2:like 6");
    raw.request(
        &"MGET post:1:like session:abc post:2:like post:1:nope liked:1 post:1 user:1 post:2:like \
          post:1:like"
            .split(' ')
            .collect::<Vec<_>>(),
    )
    .expect(
        "*9\r\n$1\r\n5\r\n$-1\r\n$1\r\n6\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$1\r\n6\r\n$1\r\n\
             5\r\n",
    );
}

/// A lock (`SET key token NX PX`) on a key outside all spaces must fail with an explanation.
#[test]
fn writes_of_a_key_of_no_space_say_what_belongs_here() {
    let server = TestServer::start();
    let mut raw = server.raw();
    let elsewhere = "-ERR Invalid key 'lock:a': it matches no key pattern (post:{id}, \
        post:{id}:{field}, user:{id}, liked:{id}, reposted:{id}, read:{id}). Only counters and \
        flags can be stored here, not locks, sessions or texts";
    for request in [
        "SET lock:a token NX PX 1000",
        "SET lock:a 1",
        "SETNX lock:a 1",
        "INCR lock:a",
        "HSET lock:a f 1",
    ] {
        assert_eq!(ask(&mut raw, request), elsewhere, "{request}");
    }
    for request in [
        "SADD lock:a 1",
        "BF.ADD lock:a 1",
        "CF.ADD lock:a 1",
        "APPEND lock:a x",
        "MSET post:1:like 1 lock:a 1",
    ] {
        assert_eq!(ask(&mut raw, request), elsewhere, "{request}");
    }
    let number = "an id is an integer from 0 to 18446744073709551615. Map other ids (text, UUID) \
                  to integers, for example the first 8 bytes of a hash";
    for (request, key) in [
        ("HSET post:abc like 1", "post:abc"),
        ("INCR post:abc:like", "post:abc:like"),
        ("SADD liked:5f2b-77 7", "liked:5f2b-77"),
        ("HINCRBY post:-1 like 1", "post:-1"),
    ] {
        assert_eq!(
            ask(&mut raw, request),
            format!("-ERR Invalid key '{key}': {number}"),
            "{request}"
        );
    }
    assert_eq!(ask(&mut raw, "GET post:1:like"), "$-1", "MSET has done nothing");
}

/// `SET key value NX` must succeed after DEL. If a row has only one counter, DEL deletes the row.
#[test]
fn del_of_the_only_counter_of_a_row_deletes_the_row() {
    let server = TestServer::with(|config| {
        config.counter.push(Counter {
            name: "stock".to_owned(),
            fields: "left:20".to_owned(),
            rows: "stock:{id}".to_owned(),
            cells: "left:{id}".to_owned(),
            ..Counter::default()
        });
    });
    let script = [
        ("SET left:7 3 NX", "+OK\r\n"),
        ("SET left:7 4 NX", "$-1\r\n"),
        ("DEL left:7", ":1\r\n"),
        ("EXISTS left:7 stock:7", ":0\r\n"),
        ("DEL left:7", ":0\r\n"),
        ("SET left:7 4 NX", "+OK\r\n"),
        ("GETDEL left:7", "$1\r\n4\r\n"),
        ("GET left:7", "$-1\r\n"),
        ("SET left:7 0", "+OK\r\n"),
        ("HDEL stock:7 left", ":1\r\n"),
        ("EXISTS stock:7", ":0\r\n"),
        // If the row has several counters, its other counters remain.
        ("SET post:7:like 1", "+OK\r\n"),
        ("DEL post:7:like", ":1\r\n"),
        ("GET post:7:like", "$1\r\n0\r\n"),
        ("SET post:7:like 1 NX", "+OK\r\n"),
        ("SET post:7:like 2 NX GET", "$1\r\n1\r\n"),
        ("DEL post:7:like", ":1\r\n"),
        ("SETNX post:7:like 3", ":1\r\n"),
        ("MSETNX post:7:like 4 post:8:like 4", ":0\r\n"),
        ("MSETNX post:7:read 4 post:8:like 4", ":1\r\n"),
    ];
    check(&mut server.raw(), &script);
    let server = server.restart();
    check(&mut server.raw(), &[("EXISTS stock:7 post:7", ":1\r\n")]);
}

/// `redis-benchmark -r` writes twelve-digit ids.
#[test]
fn a_space_may_accept_padded_ids() {
    let server = TestServer::with(|config| {
        let bench = |name: &str, cells: &str| Counter {
            name: name.to_owned(),
            fields: "value:32".to_owned(),
            cells: cells.to_owned(),
            padded_ids: true,
            ..Counter::default()
        };
        config.counter.push(bench("bench_key", "key:{id}"));
        config.counter.push(bench("bench_counter", "counter:{id}"));
        config.existence.push(Existence {
            name: "bench_set".to_owned(),
            pairs: "set:{id}".to_owned(),
            padded_ids: true,
            ..Existence::default()
        });
    });
    let script = [
        ("INCR counter:000000000042", ":1\r\n"),
        ("INCR counter:42", ":2\r\n"),
        ("SET key:000000000000 5", "+OK\r\n"),
        ("GET key:0", "$1\r\n5\r\n"),
        ("MSET key:000000000001 1 key:000000000002 2", "+OK\r\n"),
        ("MGET key:1 key:000000000002 key:000000000003", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n"),
        ("SADD set:000000000042 7", ":1\r\n"),
        ("SISMEMBER set:42 7", ":1\r\n"),
        // Only spaces with the option accept padded ids.
        (
            "INCR post:007:like",
            "-ERR Invalid key 'post:007:like': the id has leading zeros (set padded_ids = true in \
             the space to accept them)\r\n",
        ),
    ];
    check(&mut server.raw(), &script);
}

/// Runs the command lines of docs/keys.md with the configuration shown there.
#[test]
fn the_documented_lines_of_redis_benchmark_work() {
    let page = include_str!("../../../docs/keys.md");
    let blocks = |kind: &str| -> Vec<&str> {
        let fence = format!("```{kind}\n");
        let parts = page.split(fence.as_str()).skip(1);
        parts.map(|part| part.split("```").next().unwrap()).collect()
    };
    let shown: Vec<Counter> = blocks("toml")
        .iter()
        .flat_map(|text| {
            let text = format!("view = []\naction = []\n{text}");
            tidemark_server::config::Config::parse(&text, std::path::Path::new("keys.md"))
                .unwrap()
                .counter
        })
        .collect();
    assert_eq!(shown.len(), 4);
    let server = TestServer::with(|config| {
        config.counter[0].padded_ids = true;
        config.counter.extend(shown);
    });
    let lines: Vec<&str> = blocks("sh")
        .into_iter()
        .flat_map(str::lines)
        .filter(|line| line.starts_with("redis-benchmark -p 6399 "))
        .collect();
    assert_eq!(lines.len(), 5);
    for line in lines {
        let line = line.replace("6399", &server.port().to_string()).replace("10000 ", "500 ");
        let mut words = line.split(' ');
        let run = std::process::Command::new(words.next().unwrap()).args(words).output();
        let Ok(output) = run else {
            return tidemark_tests::cannot("redis-benchmark is not installed");
        };
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(output.status.success(), "{line}: {text}");
        assert!(
            text.contains("requests per second") || text.contains("throughput summary"),
            "{line}: {text}"
        );
        assert!(!text.to_lowercase().contains("error"), "{line}: {text}");
    }
    let rows: u64 = redis::cmd("DBSIZE").query(&mut server.connection()).unwrap();
    assert!(rows > 500, "{rows}");
    let mut raw = server.raw();
    let key = redis::cmd("SCAN").arg(0).arg("MATCH").arg("post:*").arg("COUNT").arg(100).to_owned();
    let (_, keys): (String, Vec<String>) = key.query(&mut server.connection()).unwrap();
    // Keys are listed without padding.
    assert!(keys.iter().all(|key| !key.starts_with("post:0")), "{keys:?}");
    assert!(!ask(&mut raw, "GET post:0000000000001:like").starts_with('-'));
}

/// Weibo's counter and existence services both use bare ids as keys.
#[test]
fn counters_and_flags_may_share_bare_ids() {
    let server = TestServer::with(|config| {
        config.view.clear();
        config.action.clear();
        config.counter = vec![Counter {
            name: "weibo".to_owned(),
            fields: "repost:8 like:12".to_owned(),
            rows: "{id}".to_owned(),
            cells: "{id}.{field}".to_owned(),
            text_rows: true,
            ..Counter::default()
        }];
        config.existence = vec![Existence {
            name: "seen".to_owned(),
            pairs: "{id}".to_owned(),
            members: false,
            first_id: 10,
            ..Existence::default()
        }];
        config.security.users = vec![
            "counts on nopass $weibo +@all".to_owned(),
            "flags on nopass $seen +@all".to_owned(),
        ];
    });
    let mut raw = server.raw();
    let whole = "-ERR Invalid key '44': it names a whole row, not a counter";
    let asked = [
        ("INCR 44.like", ":1"),
        ("BFGET 44", ":0"),
        ("BFSET 44", ":0"),
        ("BFSET 44", ":1"),
        ("EXISTS 44", ":1"),
        ("TYPE 44", "+hash"),
        ("DEL 44", ":1"),
        // DEL removes the row and keeps the flag.
        ("EXISTS 44", ":0"),
        ("BFGET 44", ":1"),
        ("GET 44.like", "$-1"),
        // Error texts that Weibo's clients expect for whole rows.
        ("SET 44 5", whole),
        ("INCRBY 44 5", whole),
        ("DECRBY 44 5", whole),
        ("INCR 44", whole),
        // Ids below the lowest id of a new space are unknown.
        ("BFSET 9", ":-1"),
        ("BFGET 9", ":-1"),
        ("BFSET 10", ":0"),
        ("BFGET 10", ":1"),
        ("INCR 9.like", ":1"),
    ];
    for (request, reply) in asked {
        assert_eq!(ask(&mut raw, request), reply, "{request}");
    }
    // The key 50 is both a row and a pair, so WATCH detects changes to the row and to the pair.
    let mut other = server.raw();
    assert_eq!(ask(&mut raw, "WATCH 50"), "+OK");
    assert_eq!(ask(&mut other, "BFSET 50"), ":0");
    assert_eq!(ask(&mut raw, "MULTI"), "+OK");
    assert_eq!(ask(&mut raw, "INCR 50.like"), "+QUEUED");
    assert_eq!(ask(&mut raw, "EXEC"), "*-1");
    // Rights on one space are sufficient for commands of that space.
    for (user, may, must_not) in
        [("counts", "INCR 60.like", "BFSET 60"), ("flags", "BFSET 60", "DEL 60")]
    {
        let mut raw = server.raw();
        assert_eq!(ask(&mut raw, &format!("AUTH {user} x")), "+OK");
        assert!(!ask(&mut raw, may).starts_with('-'), "{user}: {may}");
        assert!(ask(&mut raw, must_not).starts_with("-NOPERM"), "{user}: {must_not}");
    }
    // The lowest id is persistent and overrides the configuration.
    let server = server.restart_with(|config| config.existence[0].first_id = 0);
    let mut raw = server.raw();
    for (request, reply) in [("BFGET 9", ":-1"), ("BFGET 10", ":1"), ("BFGET 44", ":1")] {
        assert_eq!(ask(&mut raw, request), reply, "{request}");
    }
    let killed = server.killed();
    let mut raw = killed.raw();
    for (request, reply) in [("BFGET 9", ":-1"), ("BFGET 10", ":1"), ("BFGET 11", ":0")] {
        assert_eq!(ask(&mut raw, request), reply, "{request}");
    }
}

/// BF.RESERVE, NOCREATE and the CF commands follow RedisBloom where possible.
#[test]
fn filters_are_reserved_once_and_nocreate_is_heard() {
    let server = TestServer::start();
    let script = [
        ("BF.INSERT read:1 NOCREATE ITEMS a", "-ERR not found\r\n"),
        ("BF.EXISTS read:1 a", ":0\r\n"),
        ("BF.RESERVE read:1 0.01 1000", "+OK\r\n"),
        ("BF.RESERVE read:1 0.01 1000", "-ERR item exists\r\n"),
        ("BF.INSERT read:1 NOCREATE ITEMS a b", "*2\r\n:1\r\n:1\r\n"),
        // BF.INSERT creates a filter too.
        ("BF.INSERT read:2 ITEMS a", "*1\r\n:1\r\n"),
        ("BF.INSERT read:2 NOCREATE ITEMS a c", "*2\r\n:0\r\n:1\r\n"),
        ("BF.RESERVE read:2 0.01 1000", "-ERR item exists\r\n"),
        (
            "BF.RESERVE read:4 0.01 10 NONSCALING EXPANSION 2",
            "-ERR Nonscaling filters cannot expand\r\n",
        ),
        (
            "BF.RESERVE read:4 0.01 10 EXPANSION -1",
            "-ERR expansion must be in the range [0, 32768]\r\n",
        ),
        ("BF.RESERVE read:4 0.01 10 EXPANSION", "-ERR no expansion\r\n"),
        ("BF.RESERVE read:4 x 10", "-ERR bad error rate\r\n"),
        ("BF.RESERVE read:4 1 10", "-ERR error rate must be in the range (0.000000, 1.000000)\r\n"),
        ("BF.RESERVE read:4 0.01 x", "-ERR bad capacity\r\n"),
        ("BF.RESERVE read:4 0.01 0", "-ERR capacity must be in the range [1, 1073741824]\r\n"),
        ("BF.RESERVE read:4 0.01 10 NONSCALING", "+OK\r\n"),
        ("CF.INSERT read:5 NOCREATE ITEMS a", "-ERR not found\r\n"),
        ("CF.RESERVE read:5 1000 BUCKETSIZE 2 MAXITERATIONS 20 EXPANSION 1", "+OK\r\n"),
        ("CF.RESERVE read:5 1000", "-ERR item exists\r\n"),
        ("CF.INSERT read:5 CAPACITY 100 ITEMS a a b", "*3\r\n:1\r\n:1\r\n:1\r\n"),
        ("CF.INSERTNX read:5 NOCREATE ITEMS a c", "*2\r\n:0\r\n:1\r\n"),
        ("CF.MEXISTS read:5 a c d", "*3\r\n:1\r\n:1\r\n:0\r\n"),
        ("CF.COUNT read:5 a", ":1\r\n"),
        (
            "CF.RESERVE read:6 3",
            "-ERR Capacity must be in the range [2 * BUCKETSIZE, 1073741824]\r\n",
        ),
        (
            "CF.RESERVE read:6 100 BUCKETSIZE 256",
            "-ERR BUCKETSIZE: value must be in the range [1, 255]\r\n",
        ),
        ("CF.RESERVE read:6 100 EXPANSION x", "-ERR Couldn't parse EXPANSION\r\n"),
        (
            "CF.RESERVE read:6 100 EXPANSION",
            "-ERR wrong number of arguments for 'cf.reserve' command\r\n",
        ),
        (
            "CF.INSERT read:6 CAPACITY 3 ITEMS a",
            "-ERR Capacity must be in the range [4, 1073741824]\r\n",
        ),
        ("CF.INSERT read:6 a b", "-ERR Unknown argument received\r\n"),
        ("CF.LOADCHUNK read:6 1 x", "-ERR Couldn't load chunk!\r\n"),
        // With a ledger, the first member creates the filter.
        ("BF.RESERVE liked:1 0.01 1000", "+OK\r\n"),
        ("BF.INSERT liked:1 NOCREATE ITEMS 8", "-ERR not found\r\n"),
        ("FEED.ACT like 7 1", "*1\r\n:1\r\n"),
        ("BF.INSERT liked:1 NOCREATE ITEMS 8", "*1\r\n:1\r\n"),
        ("CF.RESERVE liked:1 1000", "-ERR item exists\r\n"),
    ];
    check(&mut server.raw(), &script);
    // The filter survives a restart, like its items.
    let server = server.restart();
    check(
        &mut server.raw(),
        &[
            ("BF.RESERVE read:1 0.01 1000", "-ERR item exists\r\n"),
            ("BF.INSERT read:1 NOCREATE ITEMS a", "*1\r\n:0\r\n"),
        ],
    );
}

/// BF.INFO and BF.CARD of an id describe the whole space, because all its ids share the filters.
#[test]
fn bf_info_and_bf_card_tell_the_figures_of_the_space() {
    let server = TestServer::with(|config| {
        for space in &mut config.existence {
            (space.pairs_per_table, space.max_tables) = (10_000, 4);
        }
    });
    let script = [
        ("BF.CARD liked:1", ":0\r\n"),
        ("BF.MADD liked:1 a b c", "*3\r\n:1\r\n:1\r\n:1\r\n"),
        ("BF.ADD liked:2 a", ":1\r\n"),
        ("BF.CARD liked:1", ":4\r\n"),
        ("BF.INFO liked:1 CAPACITY", "*1\r\n:40000\r\n"),
        ("BF.INFO liked:1 items", "*1\r\n:4\r\n"),
        ("BF.INFO liked:1 FILTERS", "*1\r\n:1\r\n"),
        ("BF.INFO liked:1 EXPANSION", "*1\r\n:2\r\n"),
        ("BF.INFO liked:1 nope", "-ERR Invalid information value\r\n"),
        ("BF.INFO liked:1 a b", "-ERR wrong number of arguments for 'bf.info' command\r\n"),
        (
            "BF.INFO post:1",
            "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        ),
    ];
    check(&mut server.raw(), &script);
    let facts: redis::Value =
        redis::cmd("BF.INFO").arg("liked:1").query(&mut server.connection()).unwrap();
    let names: Vec<String> = match facts {
        redis::Value::Array(facts) => facts
            .into_iter()
            .step_by(2)
            .map(|name| redis::from_redis_value(name).unwrap())
            .collect(),
        other => panic!("{other:?}"),
    };
    let wanted =
        ["Capacity", "Size", "Number of filters", "Number of items inserted", "Expansion rate"];
    assert_eq!(names, wanted);
    let facts: std::collections::HashMap<String, i64> =
        redis::cmd("CF.INFO").arg("liked:1").query(&mut server.connection()).unwrap();
    assert_eq!((facts["Number of items inserted"], facts.len()), (4, 8));
    assert!(facts["Size"] > 0);
}

/// A deleted post that is recreated can be liked again. A filter cannot clear the flags of viewers
/// that liked the old post.
#[test]
fn like_counts_after_row_deletion_despite_set_flag() {
    let server = TestServer::start();
    let script = [
        ("FEED.ACT like 77 5", "*1\r\n:1\r\n"),
        ("FEED.ACT like 78 5", "*1\r\n:1\r\n"),
        ("DEL post:5", ":1\r\n"),
        ("FEED.ACT like 77 5", "*1\r\n:1\r\n"),
        ("FEED.ACT like 77 5", "*1\r\n:0\r\n"),
        ("HGET post:5 like", "$1\r\n1\r\n"),
        // The other viewer's flag is still set.
        ("FEED.ACT like 78 5", "*1\r\n:0\r\n"),
        ("FEED.GET home 78 5", "*1\r\n*6\r\n:1\r\n:0\r\n:0\r\n:0\r\n:1\r\n:0\r\n"),
        // The viewer's flag was set by SADD instead of the action.
        ("SADD liked:6 77", ":1\r\n"),
        ("FEED.ACT like 77 6", "*1\r\n:1\r\n"),
        ("FEED.ACT like 77 6", "*1\r\n:0\r\n"),
        ("HGET post:6 like", "$1\r\n1\r\n"),
        ("FEED.UNDO like 77 6", "*1\r\n:1\r\n"),
        ("FEED.UNDO like 77 6", "*1\r\n:0\r\n"),
        ("HGET post:6 like", "$1\r\n0\r\n"),
        // MARK also executes an action.
        ("DEL post:5", ":1\r\n"),
        ("FEED.GET home 78 5 MARK like", "*1\r\n*6\r\n:0\r\n:0\r\n:0\r\n:0\r\n:1\r\n:0\r\n"),
        ("HGET post:5 like", "$1\r\n1\r\n"),
    ];
    check(&mut server.raw(), &script);
    let killed = server.killed();
    check(
        &mut killed.raw(),
        &[("HGET post:5 like", "$1\r\n1\r\n"), ("FEED.ACT like 78 5", "*1\r\n:0\r\n")],
    );
}

#[test]
fn part_of_a_counters_text_is_read() {
    let server = TestServer::start();
    let script = [
        ("SET post:1:like -12345", "+OK\r\n"),
        ("GETRANGE post:1:like 0 -1", "$6\r\n-12345\r\n"),
        ("SUBSTR post:1:like 1 2", "$2\r\n12\r\n"),
        ("GETRANGE post:1:like -3 -2", "$2\r\n34\r\n"),
        ("GETRANGE post:1:like -2 -3", "$0\r\n\r\n"),
        ("GETRANGE post:1:like 4 100", "$2\r\n45\r\n"),
        ("GETRANGE post:1:like -100 0", "$1\r\n-\r\n"),
        ("GETRANGE post:1:like 6 7", "$0\r\n\r\n"),
        ("GETRANGE post:1:like 0 -100", "$1\r\n-\r\n"),
        ("GETRANGE post:2:like 0 -1", "$0\r\n\r\n"),
        ("GETRANGE post:1:like 0 x", "-ERR value is not an integer or out of range\r\n"),
        (
            "GETRANGE post:1 0 1",
            "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        ),
        ("GETRANGE post:1:like -9223372036854775808 9223372036854775807", "$6\r\n-12345\r\n"),
    ];
    check(&mut server.raw(), &script);
}

/// Backup scripts send BGREWRITEAOF, and test suites send DEBUG OBJECT and DEBUG RELOAD.
#[test]
fn operators_commands_of_redis_are_answered() {
    let server = TestServer::start();
    let mut raw = server.raw();
    ask(&mut raw, "SET post:1:like 5");
    assert_eq!(ask(&mut raw, "DEBUG RELOAD"), "+OK");
    let before = ask(&mut raw, "LASTSAVE");
    assert_ne!(before, ":0");
    let object = ask(&mut raw, "DEBUG OBJECT post:1:like");
    assert!(object.starts_with("+Value at:0x") && object.contains(" encoding:int "), "{object}");
    // The row has 44 bits of fields and a part of its id, and is the only row of its table.
    let bytes = |raw: &mut Raw| -> u64 {
        ask(raw, "MEMORY USAGE post:1").strip_prefix(':').unwrap().parse().unwrap()
    };
    let small = bytes(&mut raw);
    assert!((6..=20).contains(&small), "{small}");
    assert!(object.contains(&format!(" serializedlength:{small} ")), "{object}");
    // Store a value wider than its 12-bit field, then a value wider than an aux entry of that size.
    ask(&mut raw, "SET post:1:like 5000");
    let wide = bytes(&mut raw);
    ask(&mut raw, "SET post:1:like -1");
    assert!(small + 8 <= wide && wide + 20 <= bytes(&mut raw), "{small}, {wide}");
    assert_eq!(ask(&mut raw, "DEBUG OBJECT post:2"), "-ERR no such key");
    assert_eq!(ask(&mut raw, "DEBUG OBJECT session:a"), "-ERR no such key");
    assert_eq!(ask(&mut raw, "DEBUG SET-ACTIVE-EXPIRE 0"), "+OK");
    assert_eq!(ask(&mut raw, "BGREWRITEAOF"), "+Background append only file rewriting started");
    let mut connection = server.connection();
    let info = |connection: &mut redis::Connection| {
        redis::cmd("INFO").arg("stats").arg("persistence").query::<String>(connection).unwrap()
    };
    while info(&mut connection).contains("rdb_bgsave_in_progress:1") {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let stats = info(&mut connection);
    for name in [
        "keyspace_hits",
        "keyspace_misses",
        "sync_partial_err",
        "total_net_repl_input_bytes",
        "total_net_repl_output_bytes",
        "instantaneous_input_repl_kbps",
        "instantaneous_output_repl_kbps",
        "evicted_scripts",
        "expire_cycle_cpu_milliseconds",
        "active_defrag_hits",
    ] {
        assert!(stats.contains(&format!("\r\n{name}:")), "{name}");
    }
}

#[test]
fn rows_that_are_read_are_hits_and_others_are_misses() {
    let server = TestServer::start();
    let mut raw = server.raw();
    let requests = [
        ("SET post:1:like 5", 0, 0),
        ("GET post:1:like", 1, 0),
        ("GET post:2:like", 0, 1),
        ("GET session:a", 0, 1),
        ("MGET post:1:like post:2:like session:a post:1:read", 2, 2),
        ("HGET post:1 like", 1, 0),
        ("HGETALL post:2", 0, 1),
        ("HMGET session:a a", 0, 1),
        ("EXISTS post:1 post:2", 1, 1),
        ("CNT.GET post 1 2 3", 1, 2),
        ("INCR post:1:like", 0, 0),
    ];
    let counts = |server: &TestServer| {
        let text: String = redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
        ["keyspace_hits:", "keyspace_misses:"].map(|name| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.parse::<u64>().unwrap()
        })
    };
    for (request, hits, misses) in requests {
        let before = counts(&server);
        raw.request(&request.split(' ').collect::<Vec<_>>());
        skip(&mut raw);
        let after = counts(&server);
        assert_eq!([after[0] - before[0], after[1] - before[1]], [hits, misses], "{request}");
    }
    assert_eq!(ask(&mut raw, "CONFIG RESETSTAT"), "+OK");
    assert_eq!(counts(&server), [0, 0]);
}

/// HELLO and MODULE LIST agree, and WIDEN cannot narrow a field.
#[test]
fn hello_names_the_modules_and_widen_does_not_narrow() {
    let server = TestServer::start();
    let mut raw = server.raw();
    let modules = "$4\r\nname\r\n$2\r\nbf\r\n";
    raw.request(&["MODULE", "LIST"]);
    let list = raw.take(4).to_owned();
    assert_eq!(list, "*1\r\n");
    let mut raw = server.raw();
    raw.request(&["HELLO", "2"]);
    raw.request(&["ECHO", "end"]);
    let mut text = String::new();
    while !text.ends_with("end\n") {
        text += &raw.line();
        text.push('\n');
    }
    let text = text.replace('\n', "\r\n");
    assert!(text.contains(modules), "{text}");
    let mut raw = server.raw();
    for (request, reply) in [
        (
            "TM.SPACE ALTER post WIDEN read:12",
            "-ERR WIDEN cannot change field 'read' from 16 to 12 bits: use NARROW",
        ),
        (
            "TM.SPACE ALTER post NARROW like:13",
            "-ERR NARROW cannot change field 'like' from 12 to 13 bits: use WIDEN",
        ),
        ("TM.SPACE ALTER post NARROW nope:13", "-ERR no field 'nope'"),
    ] {
        let answer = ask(&mut raw, request);
        assert!(answer.starts_with(reply), "{request}: {answer}");
    }
    raw.request(&"TM.SPACE ALTER post NARROW read:12".split(' ').collect::<Vec<_>>())
        .expect("$34\r\nlike:12 repost:8 comment:8 read:12\r\n");
    raw.request(&"TM.SPACE ALTER post WIDEN read:12".split(' ').collect::<Vec<_>>())
        .expect("$34\r\nlike:12 repost:8 comment:8 read:12\r\n");
}
