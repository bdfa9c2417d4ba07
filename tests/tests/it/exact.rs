//! Exact counters: every field holds any i64 and behaves like a redis-server hash, regardless of
//! its current width. Bounds hold under concurrency.

use crate::beside_redis::redis;
use std::io::{Read, Write};
use std::net::TcpStream;
use tidemark_tests::{Raw, TestServer, request};

const FIELDS: [&str; 4] = ["like", "repost", "comment", "read"];

/// Returns a value near a limit: the limit of a field of some width, of an aux dictionary entry, or
/// of an i64.
fn edge(rng: &mut fastrand::Rng) -> i64 {
    let near = rng.i64(-2..=2);
    let far = match rng.u32(0..10) {
        0..6 => [0, 1 << 8, 1 << 12, 1 << 16, 1 << 24, 1 << 26][rng.usize(0..6)],
        6 => 1i64 << rng.u32(0..63),
        7 => rng.i64(..),
        8 => return i64::MAX - rng.i64(0..3),
        _ => return i64::MIN + rng.i64(0..3),
    };
    let value = far.saturating_add(near);
    if rng.bool() { value } else { value.wrapping_neg() }
}

/// Returns all replies as bytes, for comparison between servers.
fn replies(raw: &mut Raw, requests: &[Vec<u8>]) -> String {
    raw.send(requests.concat()).request(&["ECHO", "the mark"]);
    let mut got = Vec::new();
    let mut buf = [0; 65536];
    while !got.ends_with(b"$8\r\nthe mark\r\n") {
        let n = raw.stream.read(&mut buf).unwrap();
        assert!(n > 0, "closed after {:?}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&buf[..n]);
    }
    String::from_utf8_lossy(&got).into_owned()
}

fn raw(port: u16) -> Raw {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(tidemark_tests::DEFAULT_TIMEOUT)).unwrap();
    Raw { stream }
}

/// Sends 40,000 increments and sets, whose values outgrow their bits and shrink again, while field
/// widths change and new tables are created. The replies must equal redis-server's.
#[test]
fn every_field_holds_any_i64_as_redis_does() {
    let redis = redis();
    let server = TestServer::with(|config| config.counter[0].rows_per_table = 64);
    let (mut theirs, mut ours, mut admin) = (raw(redis.port), server.raw(), server.raw());
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    // Use random ids, including both extremes.
    let mut ids: Vec<u64> = (0..300).map(|_| rng.u64(..) >> rng.u32(0..40)).collect();
    ids.extend([0, u64::MAX, u64::MAX - 1, 1 << 63]);
    let keys: Vec<String> = ids.iter().map(|id| format!("post:{id}")).collect();
    let zeros = FIELDS.map(|field| [field, "0"]).concat();
    let rows: Vec<Vec<u8>> =
        keys.iter().map(|key| request(&[&["HMSET", key], &zeros[..]].concat())).collect();
    assert_eq!(replies(&mut ours, &rows), replies(&mut theirs, &rows));
    let mut overflows = 0;
    for batch in 0..400 {
        let commands: Vec<Vec<u8>> = (0..100)
            .map(|_| {
                let (key, field) = (&*keys[rng.usize(..keys.len())], FIELDS[rng.usize(..4)]);
                let (one, two) = (edge(&mut rng).to_string(), edge(&mut rng).to_string());
                match rng.u32(0..10) {
                    0..6 => request(&["HINCRBY", key, field, &one]),
                    // Use HMSET, because the reply of HSET counts fields with value 0 as new.
                    6 => request(&["HMSET", key, field, &one, FIELDS[rng.usize(..4)], &two]),
                    7 => request(&["HMGET", key, "read", "like", "comment", "repost", "like"]),
                    8 => request(&["HGET", key, field]),
                    _ => request(&["HVALS", key]),
                }
            })
            .collect();
        let (ours, theirs) = (replies(&mut ours, &commands), replies(&mut theirs, &commands));
        overflows += ours.matches("-ERR increment or decrement would overflow\r\n").count();
        if ours != theirs {
            let first = ours
                .bytes()
                .zip(theirs.bytes())
                .position(|(a, b)| a != b)
                .unwrap_or(0)
                .saturating_sub(100);
            panic!(
                "seed {seed}, batch {batch}: {:?}, Redis {:?}",
                &ours[first..],
                &theirs[first..]
            );
        }
        // The width of a field determines where a value is stored, but not the value.
        match batch % 8 {
            0 => {
                let (field, width) = (FIELDS[rng.usize(..4)], rng.u32(1..=40).to_string());
                let mut alter = |how| admin.ask(&["TM.SPACE", "ALTER", "post", how, field, &width]);
                let answer = alter("WIDEN");
                let narrows = answer.starts_with('-');
                assert!(answer.starts_with('$') || alter("NARROW").starts_with('$'), "{answer}");
                assert_eq!(narrows, answer.ends_with("use NARROW"), "{answer}");
                admin.line();
            }
            4 => assert!(admin.ask(&["TM.ROLL", "post"]).starts_with(':')),
            _ => {}
        }
    }
    assert!(overflows > 100, "{overflows}");
    let all: Vec<Vec<u8>> = keys.iter().map(|key| request(&["HGETALL", key])).collect();
    assert_eq!(replies(&mut ours, &all), replies(&mut theirs, &all), "seed {seed}, at the end");
    let server = server.restart();
    assert_eq!(
        replies(&mut server.raw(), &all),
        replies(&mut theirs, &all),
        "seed {seed}, after a restart"
    );
}

/// Eight connections send 1,000,000 decrements of a stock of 100; exactly 100 succeed, with either
/// command.
#[test]
fn a_stock_of_a_hundred_is_sold_a_hundred_times() {
    let server = TestServer::start();
    let set = server.raw().ask(&["CNT.SET", "post", "7", "read", "100", "like", "100"]);
    assert_eq!(set, "+OK");
    const CLIENTS: usize = 8;
    const BATCH: usize = 500;
    const BATCHES: usize = 1_000_000 / CLIENTS / BATCH;
    let sell =
        request(&["CNT.INCRBY", "post", "7", "read", "-1", "MIN", "0", "FAIL"]).repeat(BATCH);
    let sold = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut stream = raw(server.port()).stream;
                    let (mut sold, mut refused) = (0, 0);
                    let mut buf = [0; 65536];
                    for _ in 0..BATCHES {
                        stream.write_all(&sell).unwrap();
                        let (until, mut at_start) = (sold + refused + BATCH, true);
                        while sold + refused < until {
                            let n = stream.read(&mut buf).unwrap();
                            assert!(n > 0);
                            // A reply is `*1` plus a number, or an error, each at the start of a
                            // line.
                            for &byte in &buf[..n] {
                                sold += usize::from(at_start && byte == b'*');
                                refused += usize::from(at_start && byte == b'-');
                                at_start = byte == b'\n';
                            }
                        }
                    }
                    (sold, refused)
                })
            })
            .collect();
        clients
            .into_iter()
            .map(|c| c.join().unwrap())
            .fold((0, 0), |sum, (sold, refused)| (sum.0 + sold, sum.1 + refused))
    });
    assert_eq!(sold, (100, 999_900));
    let mut c = server.raw();
    c.request(&["CNT.GET", "post", "7"]).expect("*1\r\n*4\r\n:100\r\n:0\r\n:0\r\n:0\r\n");
    // SAT takes the remaining stock; a refused command has no effect.
    c.request(&["CNT.INCRBY", "post", "7", "like", "-70", "MIN", "0"]).expect("*1\r\n:30\r\n");
    assert_eq!(
        c.ask(&["CNT.INCRBY", "post", "7", "repost", "1", "like", "-31", "MIN", "0"]),
        "-ERR the new value would be out of bounds"
    );
    c.request(&["CNT.INCRBY", "post", "7", "repost", "1", "like", "-31", "MIN", "0", "SAT"])
        .expect("*2\r\n:1\r\n:0\r\n");
}
