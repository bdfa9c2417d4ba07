//! Replies of each command, compared as bytes; RESP2 unless noted.

use tidemark_tests::{Raw, TestServer};

#[track_caller]
pub(crate) fn check(raw: &mut Raw, script: &[(&str, &str)]) {
    for (line, expected) in script {
        let args: Vec<&str> = line.split(' ').collect();
        raw.request(&args);
        assert_eq!(raw.take(expected.len()), *expected, "{line}");
    }
    // No further output follows.
    raw.request(&["ECHO", "end"]);
    raw.expect("$3\r\nend\r\n");
}

#[test]
fn counters() {
    let server = TestServer::start();
    check(
        &mut server.raw(),
        &[
            ("CNT.GET post 1 2", "*2\r\n*-1\r\n*-1\r\n"),
            ("CNT.INCRBY post 1 like 5", "*1\r\n:5\r\n"),
            ("CNT.INCRBY post 1 like 2 read 100000", "*2\r\n:7\r\n:100000\r\n"),
            ("CNT.GET post 1 2", "*2\r\n*4\r\n:7\r\n:0\r\n:0\r\n:100000\r\n*-1\r\n"),
            ("CNT.INCRBY post 1 like -10 MIN 0", "-ERR the new value would be out of bounds\r\n"),
            ("CNT.INCRBY post 1 like -10 MIN 0 SAT", "*1\r\n:0\r\n"),
            ("CNT.INCRBY post 1 like 10 MAX 7 SAT", "*1\r\n:7\r\n"),
            ("CNT.INCRBY post 1 like 10 min 9 max 3", "-ERR MIN 9 is greater than MAX 3\r\n"),
            (
                "CNT.INCRBY post 1 like 1 read 9223372036854775807",
                "-ERR increment or decrement would overflow\r\n",
            ),
            ("CNT.GET post 1", "*1\r\n*4\r\n:7\r\n:0\r\n:0\r\n:100000\r\n"),
            ("CNT.INCRBY post 1 likes 1", "-ERR No schema field 'likes' in space 'post'\r\n"),
            ("CNT.INCRBY post 1 like x", "-ERR value is not an integer or out of range\r\n"),
            (
                "CNT.INCRBY post 1 like 1 read",
                "-ERR wrong number of arguments for 'cnt.incrby' command\r\n",
            ),
            ("CNT.INCRBY post 1 MAX 1 SAT", "-ERR syntax error\r\n"),
            ("CNT.INCRBY nope 1 like 1", "-ERR no such counter space 'nope'\r\n"),
            ("CNT.INCRBY liked 1 like 1", "-ERR no such counter space 'liked'\r\n"),
            ("CNT.MINCRBY post 1 like 1 2 read 4 1 like 1", "*3\r\n:8\r\n:4\r\n:9\r\n"),
            (
                "CNT.MINCRBY post 1 like 1 2 read 9223372036854775807",
                "*2\r\n:10\r\n-ERR increment or decrement would overflow\r\n",
            ),
            (
                "CNT.MINCRBY post 1 like 1 2 nope 1",
                "-ERR No schema field 'nope' in space 'post'\r\n",
            ),
            (
                "CNT.MINCRBY post 1 like 1 2",
                "-ERR wrong number of arguments for 'cnt.mincrby' command\r\n",
            ),
            ("CNT.SET post 1 like 9223372036854775807 repost -9223372036854775808", "+OK\r\n"),
            (
                "CNT.GET post 1",
                "*1\r\n*4\r\n:9223372036854775807\r\n:-9223372036854775808\r\n:0\r\n:100000\r\n",
            ),
            ("CNT.SET post 1 like 1 like 2", "+OK\r\n"),
            ("HGET post:1 like", "$1\r\n2\r\n"),
            ("CNT.SET post 1 like 1.5", "-ERR value is not an integer or out of range\r\n"),
            ("CNT.DEL post 1 2 3", ":2\r\n"),
            ("CNT.GET post 1", "*1\r\n*-1\r\n"),
        ],
    );
}

#[test]
fn flags() {
    let server = TestServer::start();
    check(
        &mut server.raw(),
        &[
            ("PH.EXISTS liked 7 1 2", "*2\r\n:0\r\n:0\r\n"),
            ("PH.ADD liked 7 1 2 1", "*3\r\n:1\r\n:1\r\n:0\r\n"),
            ("PH.EXISTS liked 7 1 2 3", "*3\r\n:1\r\n:1\r\n:0\r\n"),
            ("PH.EXISTS liked 8 1", "*1\r\n:0\r\n"),
            ("PH.EXISTS read 7 1", "*1\r\n:0\r\n"),
            ("PH.DEL liked 7 1 3", "*2\r\n:1\r\n:0\r\n"),
            ("PH.EXISTS liked 7 1 2", "*2\r\n:0\r\n:1\r\n"),
            ("PH.ADD liked some-name 1", "*1\r\n:1\r\n"),
            ("PH.ADD nope 7 1", "-ERR no such existence space 'nope'\r\n"),
            ("PH.ADD post 7 1", "-ERR no such existence space 'post'\r\n"),
            ("SISMEMBER liked:1 some-name", ":1\r\n"),
            ("SMISMEMBER liked:1 some-name 7 8", "*3\r\n:1\r\n:0\r\n:0\r\n"),
            ("SADD liked:1 7 8 8", ":2\r\n"),
            ("SREM liked:1 7 9", ":1\r\n"),
            ("BF.ADD liked:1 11", ":1\r\n"),
            ("BF.ADD liked:1 11", ":0\r\n"),
            ("BF.MADD liked:1 11 12", "*2\r\n:0\r\n:1\r\n"),
            ("BF.EXISTS liked:1 12", ":1\r\n"),
            ("BF.MEXISTS liked:1 12 13", "*2\r\n:1\r\n:0\r\n"),
            (
                "BF.ADD post:1 11",
                "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
            ),
            ("FEED.GET home 12 1", "*1\r\n*6\r\n:0\r\n:0\r\n:0\r\n:0\r\n:1\r\n:0\r\n"),
        ],
    );
}

#[test]
fn hashes_strings_and_keys() {
    let server = TestServer::start();
    check(
        &mut server.raw(),
        &[
            ("HGETALL post:1", "*0\r\n"),
            ("HGET post:1 like", "$-1\r\n"),
            ("HMGET post:1 like read", "*2\r\n$-1\r\n$-1\r\n"),
            ("HLEN post:1", ":0\r\n"),
            ("HSTRLEN post:1 like", ":0\r\n"),
            ("HEXISTS post:1 like", ":0\r\n"),
            ("EXISTS post:1 post:1:like", ":0\r\n"),
            ("TYPE post:1", "+none\r\n"),
            ("TTL post:1", ":-2\r\n"),
            ("HSETNX post:1 like 3", ":1\r\n"),
            ("HSETNX post:1 like 4", ":0\r\n"),
            ("HEXISTS post:1 read", ":0\r\n"),
            ("HSETNX post:1 read 3", ":1\r\n"),
            ("HEXISTS post:1 read", ":1\r\n"),
            ("HDEL post:1 read nope", ":1\r\n"),
            ("HEXISTS post:1 read", ":0\r\n"),
            ("HSET post:1 like 4 read 70000", ":1\r\n"),
            ("HSET post:1 like 4 read 70000", ":0\r\n"),
            ("HSET post:2 like 4 read 70000", ":2\r\n"),
            ("HMSET post:3 like 4", "+OK\r\n"),
            ("HINCRBY post:1 like -5", ":-1\r\n"),
            (
                "HGETALL post:1",
                "*8\r\n$4\r\nlike\r\n$2\r\n-1\r\n$6\r\nrepost\r\n$1\r\n0\r\n$7\r\ncomment\r\n$1\r\n\
                 0\r\n$4\r\nread\r\n$5\r\n70000\r\n",
            ),
            ("HKEYS post:1", "*4\r\n$4\r\nlike\r\n$6\r\nrepost\r\n$7\r\ncomment\r\n$4\r\nread\r\n"),
            ("HVALS post:1", "*4\r\n$2\r\n-1\r\n$1\r\n0\r\n$1\r\n0\r\n$5\r\n70000\r\n"),
            ("HSTRLEN post:1 read", ":5\r\n"),
            ("HEXISTS post:1 nope", ":0\r\n"),
            ("HLEN post:1", ":4\r\n"),
            ("HGET post:1 nope", "$-1\r\n"),
            ("HMGET post:1 like nope", "*2\r\n$2\r\n-1\r\n$-1\r\n"),
            ("HSTRLEN post:1 nope", ":0\r\n"),
            ("HDEL post:1 nope", ":0\r\n"),
            ("HSET post:1 nope 1", "-ERR No schema field 'nope' in space 'post'\r\n"),
            ("HSET post:1 like", "-ERR wrong number of arguments for 'hset' command\r\n"),
            ("HSET post:1 like 1 read", "-ERR wrong number of arguments for 'hset' command\r\n"),
            ("HSET post:1 like x", "-ERR hash value is not an integer\r\n"),
            ("HINCRBY post:1 like x", "-ERR value is not an integer or out of range\r\n"),
            (
                "HINCRBY post:1 like -9223372036854775808",
                "-ERR increment or decrement would overflow\r\n",
            ),
            ("GET post:1:like", "$2\r\n-1\r\n"),
            ("GET post:9:like", "$-1\r\n"),
            (
                "MGET post:1:like post:9:like post:1:read",
                "*3\r\n$2\r\n-1\r\n$-1\r\n$5\r\n70000\r\n",
            ),
            ("SET post:1:like 10", "+OK\r\n"),
            (
                "SET post:1:like 10 EX 5",
                "-ERR SET with an expiry is not supported: counters, rows and pairs do not expire \
                 (set expire = \"ignore\" in the space's configuration to accept it)\r\n",
            ),
            ("SET post:1:like ten", "-ERR value is not an integer or out of range\r\n"),
            ("INCR post:1:like", ":11\r\n"),
            ("INCRBY post:1:like 9", ":20\r\n"),
            ("DECR post:1:like", ":19\r\n"),
            ("DECRBY post:1:like 20", ":-1\r\n"),
            ("DECRBY post:1:like -9223372036854775808", "-ERR decrement would overflow\r\n"),
            (
                "GET post:1",
                "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
            ),
            (
                "HGET post:1:like like",
                "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
            ),
            ("GET post:1:nope", "-ERR No schema field 'nope' in space 'post'\r\n"),
            (
                "INCR post:01:like",
                "-ERR Invalid key 'post:01:like': the id has leading zeros (set padded_ids = true \
                 in the space to accept them)\r\n",
            ),
            (
                "HSET post:18446744073709551616 like 1",
                "-ERR Invalid key 'post:18446744073709551616': the id exceeds \
                 18446744073709551615\r\n",
            ),
            ("HINCRBY post:18446744073709551615 like 1", ":1\r\n"),
            ("TYPE post:1", "+hash\r\n"),
            ("TYPE post:1:like", "+string\r\n"),
            ("TYPE liked:1", "+none\r\n"),
            ("TTL post:1", ":-1\r\n"),
            ("PTTL post:1", ":-1\r\n"),
            ("EXISTS post:1 post:1 post:1:like post:7", ":3\r\n"),
            ("DBSIZE", ":4\r\n"),
            ("DEL post:1:like post:1:comment", ":1\r\n"),
            ("GET post:1:like", "$1\r\n0\r\n"),
            ("DEL post:1 post:2 post:7", ":2\r\n"),
            ("UNLINK post:3", ":1\r\n"),
            ("EXISTS post:1", ":0\r\n"),
            (
                "DEL post:18446744073709551615 read:1",
                "-ERR the pairs of an id cannot be deleted as a whole: name the members \
                 (SISMEMBER, SREM, PH.EXISTS, PH.DEL)\r\n",
            ),
            ("EXISTS post:18446744073709551615", ":1\r\n"),
            ("HSET user:1 follower 5", ":1\r\n"),
        ],
    );
}

#[test]
fn resp3_has_maps_booleans_and_nulls() {
    let server = TestServer::start();
    let mut raw = server.raw();
    let hello = raw.ask(&["HELLO", "3"]);
    assert_eq!(hello, "%7");
    raw.request(&["ECHO", "the end"]);
    while raw.line() != "the end" {}
    check(
        &mut raw,
        &[
            ("HSET user:1 follower 5", ":1\r\n"),
            (
                "HGETALL user:1",
                "%3\r\n$8\r\nfollower\r\n$1\r\n5\r\n$9\r\nfollowing\r\n$1\r\n0\r\n$4\r\npost\r\n\
                 $1\r\n0\r\n",
            ),
            ("HGETALL user:2", "%0\r\n"),
            ("HGET user:2 post", "_\r\n"),
            ("CNT.GET post 1", "*1\r\n_\r\n"),
            ("BF.ADD liked:1 7", "#t\r\n"),
            ("BF.EXISTS liked:1 8", "#f\r\n"),
            ("SISMEMBER liked:1 7", ":1\r\n"),
            ("CONFIG GET databases", "%1\r\n$9\r\ndatabases\r\n$1\r\n1\r\n"),
        ],
    );
}

#[test]
fn ids_below_the_horizon_are_unknown_and_not_no() {
    let server = TestServer::with(|config| {
        for existence in &mut config.existence {
            existence.pairs_per_table = 1000;
            (existence.spill, existence.max_tables) = (false, 2);
            existence.ledger = tidemark_server::config::LedgerMode::Off;
        }
    });
    let mut raw = server.raw();
    let horizon = |raw: &mut Raw| -> u64 {
        let info = {
            raw.request(&["INFO", "spaces"]);
            let length: usize = raw.line()[1..].parse().unwrap();
            raw.take(length + 2)
        };
        let line = info.lines().find(|l| l.starts_with("existence_liked")).unwrap().to_owned();
        line.rsplit('=').next().unwrap().trim().parse().unwrap()
    };
    let mut id = 0u64;
    while horizon(&mut raw) < 100 {
        assert!(id < 1_000_000, "nothing was recycled");
        for _ in 0..50 {
            raw.request(&["PH.ADD", "liked", "7", &id.to_string()]);
            raw.expect("*1\r\n");
            raw.line();
            id += 1;
        }
    }
    check(
        &mut raw,
        &[
            ("PH.EXISTS liked 7 1", "*1\r\n$-1\r\n"),
            ("PH.ADD liked 7 1", "*1\r\n$-1\r\n"),
            ("SISMEMBER liked:1 7", "$-1\r\n"),
            ("BF.EXISTS liked:1 7", ":0\r\n"),
            ("BF.MEXISTS liked:1 7 8", "*2\r\n:0\r\n:0\r\n"),
            ("CF.EXISTS liked:1 7", ":0\r\n"),
            ("CF.ADD liked:1 7", "-ERR the id is below the horizon, its pairs were dropped\r\n"),
            ("CF.DEL liked:1 7", "-ERR the id is below the horizon, its pairs were dropped\r\n"),
            ("SADD liked:1 7", "-ERR the id is below the horizon, its pairs were dropped\r\n"),
            ("FEED.ACT like 7 1", "*1\r\n$-1\r\n"),
            ("FEED.GET home 7 1", "*1\r\n*6\r\n:0\r\n:0\r\n:0\r\n:0\r\n$-1\r\n:0\r\n"),
            ("CNT.GET post 1", "*1\r\n*-1\r\n"),
        ],
    );
}

#[test]
fn the_table_answers_for_itself() {
    let server = TestServer::start();
    let c = &mut server.connection();
    let count: usize = redis::cmd("COMMAND").arg("COUNT").query(c).unwrap();
    let names: Vec<String> = redis::cmd("COMMAND").arg("LIST").query(c).unwrap();
    // As in Redis, COMMAND LIST includes subcommands and COMMAND COUNT does not.
    assert_eq!(count, names.iter().filter(|name| !name.contains('|')).count());
    for name in ["client", "client|list", "config|get"] {
        assert!(names.contains(&name.to_owned()), "{name}");
    }
    let filtered = |c: &mut redis::Connection, by: &[&str]| -> Vec<String> {
        redis::cmd("COMMAND").arg("LIST").arg("FILTERBY").arg(by).query(c).unwrap()
    };
    assert_eq!(filtered(c, &["PATTERN", "client|no-*"]), ["client|no-evict", "client|no-touch"]);
    // The module named by MODULE LIST has commands.
    let of_module = filtered(c, &["MODULE", "bf"]);
    assert!(of_module.contains(&"bf.madd".to_owned()) && of_module.contains(&"cf.add".to_owned()));
    assert!(of_module.iter().all(|name| name.starts_with("bf.") || name.starts_with("cf.")));
    assert_eq!(filtered(c, &["MODULE", "json"]), Vec::<String>::new());
    assert!(filtered(c, &["ACLCAT", "admin"]).contains(&"config|set".to_owned()));
    assert!(names.contains(&"feed.get".to_owned()));
    let all: Vec<redis::Value> = redis::cmd("COMMAND").query(c).unwrap();
    assert_eq!(all.len(), count);
    let info: Vec<Vec<redis::Value>> =
        redis::cmd("COMMAND").arg("INFO").arg("MGET").arg("client|list").query(c).unwrap();
    assert_eq!(info[0].len(), 10);
    assert_eq!(info[1].len(), 10);
    let keys: Vec<String> = redis::cmd("COMMAND")
        .arg("GETKEYS")
        .arg(&["MGET", "post:1:like", "post:2:like"])
        .query(c)
        .unwrap();
    assert_eq!(keys, ["post:1:like", "post:2:like"]);
    let strings: Vec<String> =
        redis::cmd("COMMAND").arg(&["LIST", "FILTERBY", "PATTERN", "feed.*"]).query(c).unwrap();
    assert_eq!(strings, ["feed.get", "feed.row", "feed.act", "feed.undo"]);
    check(
        &mut server.raw(),
        &[
            ("COMMAND GETKEYS PING x", "-ERR The command has no key arguments\r\n"),
            ("COMMAND GETKEYS NOPE x", "-ERR Invalid command specified\r\n"),
            (
                "COMMAND GETKEYS GET a b",
                "-ERR Invalid number of arguments specified for command\r\n",
            ),
            ("COMMAND INFO nope", "*1\r\n$-1\r\n"),
            ("COMMAND nope", "-ERR unknown subcommand 'nope'. Try COMMAND HELP.\r\n"),
            ("COMMAND COUNT x", "-ERR wrong number of arguments for 'command|count' command\r\n"),
            ("TM.TABLES nope", "-ERR no such space 'nope'\r\n"),
        ],
    );
    let spaces: Vec<std::collections::HashMap<String, redis::Value>> =
        redis::cmd("TM.SPACE").arg("LIST").query(c).unwrap();
    assert_eq!(spaces.len(), 5);
    let tables: Vec<std::collections::HashMap<String, redis::Value>> =
        redis::cmd("TM.TABLES").query(c).unwrap();
    assert!(tables.len() >= 5 && tables.iter().all(|t| t.contains_key("low")));
}
