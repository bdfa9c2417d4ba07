//! Migration by RESTORE and DUMP with a real redis-server: MIGRATE, payloads of every encoding, and
//! the commands of RedisShake.

use crate::beside_redis::redis as start_redis;
use redis::{Connection, RedisError, Value, cmd};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tidemark_server::config::Expire;
use tidemark_tests::TestServer;

type Row = BTreeMap<String, i64>;

fn row(connection: &mut Connection, key: &str) -> Row {
    cmd("HGETALL").arg(key).query(connection).unwrap()
}

fn connect(port: u16) -> Connection {
    redis::Client::open(("127.0.0.1", port)).unwrap().get_connection().unwrap()
}

/// Sends `MIGRATE 127.0.0.1 port "" 0 5000 options... KEYS keys...`.
fn migrate(
    from: &mut Connection,
    port: u16,
    options: &[&str],
    keys: &[String],
) -> Result<String, RedisError> {
    let mut command = cmd("MIGRATE");
    command.arg(&["127.0.0.1", &port.to_string(), "", "0", "5000"]).arg(options);
    command.arg("KEYS").arg(keys).query(from)
}

/// Fills a Redis with posts as hashes in both encodings and likes as sets in all encodings.
fn fill(theirs: &mut Connection, posts: u64) -> Vec<String> {
    let mut keys = Vec::new();
    let mut pipe = redis::pipe();
    let values = |id: u64| {
        let wide = [i64::MAX, i64::MIN, 70_000, -300, 5][id as usize % 5];
        [("like", wide), ("read", id as i64), ("comment", -1), ("repost", 12)]
    };
    for id in 1..=posts {
        pipe.cmd("HSET").arg(format!("post:{id}")).arg(&values(id)[..1 + id as usize % 4]).ignore();
        let liked = format!("liked:{id}");
        match id % 4 {
            0 => pipe.sadd(&liked, &[id, id + 1, id << 40]),
            1 => pipe.sadd(&liked, &["7".to_owned(), format!("viewer-{id}")]),
            2 => pipe.sadd(&liked, "a long member, which is compressed, ".repeat(14)),
            _ => pipe.sadd(&liked, (id..id + 700).collect::<Vec<_>>()),
        };
        keys.extend([format!("post:{id}"), liked]);
    }
    pipe.query::<()>(theirs).unwrap();
    keys
}

/// Checks that all rows and members were copied, and that a non-member was not.
fn same(theirs: &mut Connection, ours: &mut Connection, posts: u64) {
    for id in 1..=posts {
        let key = format!("post:{id}");
        let mut wanted = row(theirs, &key);
        for field in ["like", "read", "comment", "repost"] {
            wanted.entry(field.to_owned()).or_insert(0);
        }
        assert_eq!(row(ours, &key), wanted, "{key}");
        let key = format!("liked:{id}");
        let members: BTreeSet<Vec<u8>> = cmd("SMEMBERS").arg(&key).query(theirs).unwrap();
        let members: Vec<_> = members.into_iter().collect();
        let set: Vec<bool> = cmd("SMISMEMBER").arg(&key).arg(&members).query(ours).unwrap();
        assert!(set.iter().all(|set| *set), "{key}");
    }
    let strange: i64 = (1..=posts)
        .map(|id| {
            cmd("SISMEMBER").arg(format!("liked:{id}")).arg("stranger").query::<i64>(ours).unwrap()
        })
        .sum();
    assert!(strange <= 2, "{strange} false positives");
}

/// Runs MIGRATE ... COPY on redis-server with a password and a user, for hundreds of keys at a
/// time. After changes a second run needs REPLACE, and fails with BUSYKEY without it.
#[test]
fn migrate_of_redis_server_pushes_rows_and_pairs() {
    let redis = start_redis();
    let server = TestServer::with(|config| {
        config.security.password = "hidden".to_owned();
        config.security.users = vec!["loader on >secret ~* +@all".to_owned()];
    });
    let mut theirs = connect(redis.port);
    let mut ours = server.connection();
    cmd("AUTH").arg("hidden").query::<()>(&mut ours).unwrap();
    let keys = fill(&mut theirs, 400);
    for (keys, login) in keys
        .chunks(300)
        .zip([&["AUTH", "hidden"][..], &["AUTH2", "loader", "secret"]].iter().cycle())
    {
        let options = [&["COPY"][..], login].concat();
        assert_eq!(migrate(&mut theirs, server.port(), &options, keys).unwrap(), "OK");
    }
    same(&mut theirs, &mut ours, 400);
    // An existing key is refused and unchanged.
    theirs_set(&mut theirs, "post:1", "like", 77);
    let login = ["COPY", "AUTH", "hidden"];
    let error = migrate(&mut theirs, server.port(), &login, &keys[..1]).unwrap_err().to_string();
    assert!(error.contains("BUSYKEY Target key name already exists"), "{error}");
    assert_ne!(row(&mut ours, "post:1")["like"], 77);
    let again = ["COPY", "REPLACE", "AUTH", "hidden"];
    migrate(&mut theirs, server.port(), &again, &keys).unwrap();
    same(&mut theirs, &mut ours, 400);
    // Without COPY the keys are moved.
    let moved = &keys[..100];
    migrate(&mut theirs, server.port(), &again[1..], moved).unwrap();
    let left: i64 = cmd("EXISTS").arg(moved).query(&mut theirs).unwrap();
    assert_eq!(left, 0);
}

fn theirs_set(theirs: &mut Connection, key: &str, field: &str, value: i64) {
    cmd("HSET").arg(key).arg(field).arg(value).query::<i64>(theirs).unwrap();
}

/// Tests every encoding that the installed redis-server can be configured to write.
#[test]
fn dumps_of_each_encoding_are_restored() {
    let redis = start_redis();
    let server = TestServer::start();
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let mut id = 0;
    for entries in [0, 128] {
        for name in ["hash-max-listpack-entries", "set-max-intset-entries"] {
            cmd("CONFIG").arg(&["SET", name]).arg(entries).query::<()>(&mut theirs).unwrap();
        }
        for compression in ["yes", "no"] {
            cmd("CONFIG")
                .arg(&["SET", "rdbcompression", compression])
                .query::<()>(&mut theirs)
                .unwrap();
            let from = id + 1;
            for _ in 0..8 {
                id += 1;
                fill_one(&mut theirs, id);
            }
            for id in from..=id {
                for key in [format!("post:{id}"), format!("liked:{id}")] {
                    let payload: Vec<u8> = cmd("DUMP").arg(&key).query(&mut theirs).unwrap();
                    cmd("RESTORE").arg(&key).arg(0).arg(payload).query::<()>(&mut ours).unwrap();
                }
            }
        }
    }
    same(&mut theirs, &mut ours, id);
}

fn fill_one(theirs: &mut Connection, id: u64) {
    let fields = ["like", "read", "comment", "repost"];
    for (n, field) in fields.iter().enumerate().take(1 + id as usize % 4) {
        let value =
            [0, 127, -128, 32_767, 1 << 23, 1 << 31, i64::MAX, i64::MIN][(n + id as usize) % 8];
        theirs_set(theirs, &format!("post:{id}"), field, value);
    }
    let key = format!("liked:{id}");
    match id % 3 {
        0 => cmd("SADD").arg(&key).arg(&[id, id << 33]).query::<i64>(theirs),
        1 => cmd("SADD").arg(&key).arg("ab".repeat(60)).arg(7).query(theirs),
        _ => cmd("SADD").arg(&key).arg((0..300u64).collect::<Vec<_>>()).query(theirs),
    }
    .unwrap();
}

/// redis-server restores the payloads of Tidemark's DUMP, and a DUMP of redis-server returns the
/// same values.
#[test]
fn redis_server_restores_what_is_dumped_here() {
    let redis = start_redis();
    let server = TestServer::start();
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let values = [0, 1, -1, 127, 128, -129, 40_000, 3_000_000_000, i64::MAX, i64::MIN];
    for (id, like) in values.into_iter().enumerate() {
        let key = format!("post:{id}");
        let fields = [("like", like), ("read", -like.max(-i64::MAX))];
        cmd("HSET").arg(&key).arg(&fields).query::<i64>(&mut ours).unwrap();
        for key in [key.clone(), format!("{key}:like")] {
            let payload: Vec<u8> = cmd("DUMP").arg(&key).query(&mut ours).unwrap();
            cmd("RESTORE").arg(&key).arg(0).arg(&payload).query::<()>(&mut theirs).unwrap();
            let back: Vec<u8> = cmd("DUMP").arg(&key).query(&mut theirs).unwrap();
            cmd("RESTORE")
                .arg(&key)
                .arg(0)
                .arg(back)
                .arg("REPLACE")
                .query::<()>(&mut ours)
                .unwrap();
        }
        assert_eq!(row(&mut ours, &key), row(&mut theirs, &key));
        let text: String = cmd("GET").arg(format!("{key}:like")).query(&mut theirs).unwrap();
        assert_eq!(text, like.to_string());
    }
}

/// RedisShake stops at the first error other than BUSYKEY. Its scan reader sends DUMP and PTTL in a
/// pipeline, and RESTORE. Its sync reader sends a Redis snapshot as commands, then the replication
/// stream, each preceded by `select`.
#[test]
fn commands_of_redis_shake_get_no_error() {
    let redis = start_redis();
    let server = TestServer::with(|config| {
        config.counter.iter_mut().for_each(|space| space.expire = Expire::Ignore);
        config.existence.iter_mut().for_each(|space| space.expire = Expire::Ignore);
    });
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let keys = fill(&mut theirs, 40);
    cmd("PEXPIRE").arg("post:3").arg(100_000_000).query::<i64>(&mut theirs).unwrap();
    // Send the requests of the scan reader with `rdb_restore_command_behavior` = rewrite.
    let mut pipe = redis::pipe();
    pipe.cmd("select").arg("0").ignore();
    for key in &keys {
        let (dump, ttl): (Vec<u8>, i64) =
            redis::pipe().cmd("DUMP").arg(key).cmd("PTTL").arg(key).query(&mut theirs).unwrap();
        pipe.cmd("RESTORE").arg(key).arg(ttl.max(0)).arg(dump).arg("replace").ignore();
    }
    pipe.query::<()>(&mut ours).unwrap();
    same(&mut theirs, &mut ours, 40);
    // Send the requests of the sync reader.
    let requests = [
        // Start of each connection (internal/client/redis.go of v4).
        "ping",
        "info replication",
        "info cluster",
        "select 0",
        // RedisShake sends keys that have already expired with a TTL of 1 ms.
        "hset post:53 like 5",
        "PEXPIRE post:53 1",
        "hset post:50 like 5",
        "hset post:50 read 7",
        "sadd liked:50 7",
        "set post:51:like 9",
        "PEXPIRE post:51:like 1000",
        "MULTI",
        "HINCRBY post:50 like 1",
        "SREM liked:50 7",
        "EXEC",
        "SET post:51:like 10 PXAT 1900000000000",
        "PEXPIREAT post:50 1900000000000",
        "DEL post:51:like",
        "UNLINK post:52",
    ];
    for request in requests {
        let mut words = request.split(' ');
        let reply =
            cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>()).query::<Value>(&mut ours);
        reply.unwrap_or_else(|error| panic!("{request}: {error}"));
    }
    assert_eq!(row(&mut ours, "post:50")["like"], 6);
    // Send the requests of the scan reader in the other direction.
    let info: String = cmd("info").arg("keyspace").query(&mut ours).unwrap();
    assert!(info.contains("db0:keys="), "{info}");
    let (mut cursor, mut seen) = (0, 0);
    loop {
        let (next, keys): (u64, Vec<String>) = cmd("SCAN").arg(cursor).query(&mut ours).unwrap();
        for key in keys {
            let (dump, ttl): (Vec<u8>, i64) =
                redis::pipe().cmd("DUMP").arg(&key).cmd("PTTL").arg(&key).query(&mut ours).unwrap();
            assert_eq!(ttl, -1);
            cmd("RESTORE")
                .arg(&key)
                .arg(0)
                .arg(dump)
                .arg("REPLACE")
                .query::<()>(&mut theirs)
                .unwrap();
            assert_eq!(row(&mut theirs, &key), row(&mut ours, &key));
            seen += 1;
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    assert!(seen >= 42, "{seen}");
}

/// RESTORE of a large set runs on another thread. Other clients are served, and later requests of
/// the same connection wait.
#[test]
fn large_set_keeps_no_client_waiting() {
    let redis = start_redis();
    let server = TestServer::with(|config| config.server.workers = 1);
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    for from in (0..400_000u64).step_by(100_000) {
        let members: Vec<_> = (from..from + 100_000).collect();
        cmd("SADD").arg("liked:1").arg(members).query::<i64>(&mut theirs).unwrap();
    }
    let payload: Vec<u8> = cmd("DUMP").arg("liked:1").query(&mut theirs).unwrap();
    let other = std::thread::spawn({
        let mut other = server.connection();
        move || {
            let (mut worst, started) = (std::time::Duration::ZERO, Instant::now());
            while started.elapsed() < std::time::Duration::from_millis(500) {
                let began = Instant::now();
                cmd("PING").query::<()>(&mut other).unwrap();
                worst = worst.max(began.elapsed());
            }
            worst
        }
    });
    let answers: (String, i64) = redis::pipe()
        .cmd("RESTORE")
        .arg("liked:1")
        .arg(0)
        .arg(&payload)
        .cmd("SISMEMBER")
        .arg("liked:1")
        .arg(399_999)
        .query(&mut ours)
        .unwrap();
    assert_eq!(answers, ("OK".to_owned(), 1));
    let worst = other.join().unwrap();
    // Parsing the payload takes a few milliseconds; the rest does not run on the worker.
    assert!(worst < std::time::Duration::from_millis(200), "{worst:?}");
    for chunk in (0..400_000u64).collect::<Vec<_>>().chunks(50_000) {
        let set: Vec<i64> = cmd("SMISMEMBER").arg("liked:1").arg(chunk).query(&mut ours).unwrap();
        assert!(set.iter().all(|set| *set == 1));
    }
}
