//! Schema changes at run time, advice, and table statistics.

use crate::commands::check;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tidemark_server::config::{Fsync, LedgerMode};
use tidemark_tests::{Raw, TestServer, eventually};

fn always() -> TestServer {
    TestServer::with(|config| config.durability.fsync = Fsync::Always)
}

/// Starts a server as `always` does, with a view of a whole space.
fn always_whole() -> TestServer {
    TestServer::with(|config| {
        config.durability.fsync = Fsync::Always;
        config.view[0].counters = vec!["post".to_owned()];
    })
}

/// Returns the reply of TM.SPACE ALTER: the schema, and a warning about the width of `home`.
fn warned(schema: &str, values: usize) -> String {
    let text = format!(
        "{schema}\nwarning: the view 'home' shows the whole space 'post': its pages now have \
         {values} values per id"
    );
    format!("${}\r\n{text}\r\n", text.len())
}

/// Checks the state after the first test's changes.
fn altered(raw: &mut Raw) {
    check(
        raw,
        &[
            (
                "HGETALL post:1",
                "*8\r\n$4\r\nlike\r\n$1\r\n5\r\n$6\r\nrepost\r\n$1\r\n0\r\n$4\r\nread\r\n$5\r\n\
                 70000\r\n$5\r\nshare\r\n$1\r\n0\r\n",
            ),
            ("HMGET post:2 like share", "*2\r\n$1\r\n0\r\n$6\r\n123456\r\n"),
            ("HGET post:1 comment", "$-1\r\n"),
            ("GET post:2:share", "$6\r\n123456\r\n"),
            (
                "MGET post:1:share post:2:share post:3:share",
                "*3\r\n$1\r\n0\r\n$6\r\n123456\r\n$-1\r\n",
            ),
            (
                "CNT.GET post 1 2",
                "*2\r\n*4\r\n:5\r\n:0\r\n:70000\r\n:0\r\n*4\r\n:0\r\n:0\r\n:0\r\n:123456\r\n",
            ),
            // The view of the whole space follows the schema.
            (
                "FEED.GET home 7 1 2",
                "*2\r\n*6\r\n:5\r\n:0\r\n:70000\r\n:0\r\n:0\r\n:0\r\n*6\r\n:0\r\n:0\r\n:0\r\n\
                 :123456\r\n:0\r\n:0\r\n",
            ),
        ],
    );
}

#[test]
fn fields_are_added_widened_and_dropped_and_stay_so() {
    let server = always_whole();
    let raw = &mut server.raw();
    check(
        raw,
        &[
            ("HSET post:1 like 5 comment 9 read 70000", ":3\r\n"),
            (
                "TM.SPACE ALTER post ADD share:14",
                &warned("like:12 repost:8 comment:8 read:16 share:14", 7),
            ),
        ],
    );
    check(
        raw,
        &[
            ("HGET post:1 share", "$1\r\n0\r\n"),
            ("HINCRBY post:2 share 123456", ":123456\r\n"),
            (
                "TM.SPACE ALTER post WIDEN like 24",
                "$43\r\nlike:24 repost:8 comment:8 read:16 share:14\r\n",
            ),
            (
                "TM.SPACE ALTER post DROP comment",
                &warned("like:24 repost:8 !comment:8 read:16 share:14", 6),
            ),
        ],
    );
    altered(raw);
    // The changes survive a crash, a clean stop, and a restart from a snapshot.
    altered(&mut server.killed().raw());
    let server = server.restart();
    altered(&mut server.raw());
    assert_eq!(server.raw().ask(&["SAVE"]), "+OK");
    let server = server.killed();
    altered(&mut server.raw());
    let server = server.restart();
    altered(&mut server.raw());
    // A dropped name can be reused for a new field.
    check(
        &mut server.raw(),
        &[
            (
                "TM.SPACE ALTER post ADD comment:10",
                &warned("like:24 repost:8 !comment:8 read:16 share:14 comment:10", 7),
            ),
            ("HGET post:1 comment", "$1\r\n0\r\n"),
        ],
    );
}

/// Starts a server whose posts have a stock with lower bound 0 and a level that saturates at 3.
fn bounded() -> TestServer {
    TestServer::with(|config| {
        config.durability.fsync = Fsync::Always;
        config.counter[0].fields = "like:12{..2} stock:20{0..} level:8{0..3}sat".to_owned();
        config.view.truncate(1);
        config.view[0].counters = vec!["post".to_owned()];
        config.action.truncate(1);
        config.existence.retain(|space| space.name == "liked");
        config.view[0].flags = vec!["liked".to_owned()];
    })
}

const STOCK: &str = "-ERR the value of 'stock' would be out of bounds {0..}\r\n";
const LIKES: &str = "-ERR the value of 'like' would be out of bounds {..2}\r\n";

/// Tests every command that writes a counter, with values inside and outside the bounds of a field.
#[test]
fn declared_bounds_hold_whatever_the_command() {
    let server = bounded();
    let in_array = |error: &str| format!("*1\r\n{error}");
    let nothing =
        "*6\r\n$4\r\nlike\r\n$1\r\n0\r\n$5\r\nstock\r\n$1\r\n5\r\n$5\r\nlevel\r\n$1\r\n0\r\n";
    check(&mut server.raw(), &[("HSET post:1 stock 5", ":1\r\n")]);
    for command in [
        "HINCRBY post:1 stock -6",
        "HINCRBY post:1 stock -9223372036854775808",
        "HINCRBY post:2 stock -1",
        "DECRBY post:1:stock 6",
        "DECR post:3:stock",
        "INCRBY post:1:stock -6",
        "CNT.INCRBY post 1 like 1 stock -6",
        "CNT.INCRBY post 1 stock 1 stock -7",
        "CNT.INCRBY post 1 stock -9 MIN -10 SAT",
        "HSET post:1 stock -1",
        "HSET post:1 like 1 stock -1",
        "HMSET post:1 like 1 stock -1",
        "HSETNX post:4 stock -1",
        "SET post:1:stock -1",
        "SET post:4:stock -1 NX",
        "GETSET post:1:stock -1",
        "MSET post:1:like 1 post:1:stock -1",
        "MSETNX post:4:like 1 post:4:stock -1",
        "CNT.SET post 1 like 1 stock -1",
    ] {
        check(&mut server.raw(), &[(command, STOCK)]);
    }
    check(
        &mut server.raw(),
        &[
            ("CNT.MINCRBY post 1 stock -6", &in_array(STOCK)),
            ("HGETALL post:1", nothing),
            ("EXISTS post:2 post:3 post:4", ":0\r\n"),
            // A decrement stops at the bound, even if the command has bounds of its own.
            ("CNT.INCRBY post 1 stock -9 MIN 1 SAT", "*1\r\n:1\r\n"),
            ("DECR post:1:stock", ":0\r\n"),
            ("DECR post:1:stock", STOCK),
            // A saturating field stops at its bounds.
            ("HINCRBY post:1 level 2", ":2\r\n"),
            ("HINCRBY post:1 level 9223372036854775807", ":3\r\n"),
            ("INCR post:1:level", ":3\r\n"),
            ("HINCRBY post:1 level -9", ":0\r\n"),
            ("CNT.SET post 1 level 99", "+OK\r\n"),
            ("GET post:1:level", "$1\r\n3\r\n"),
            ("HDEL post:1 level", ":1\r\n"),
            // An action is atomic.
            ("FEED.ACT like 7 1", "*1\r\n:1\r\n"),
            ("FEED.ACT like 8 1", "*1\r\n:1\r\n"),
            ("FEED.ACT like 9 1", &in_array(LIKES)),
            ("FEED.GET home 9 1", "*1\r\n*4\r\n:2\r\n:0\r\n:0\r\n:0\r\n"),
            ("FEED.UNDO like 8 1", "*1\r\n:1\r\n"),
            ("FEED.ACT like 9 1", "*1\r\n:1\r\n"),
            ("MINCR post:1:like", &in_array(LIKES)),
        ],
    );
}

/// Eight clients decrement a stock of 100 until it is zero.
#[test]
fn a_stock_is_sold_exactly_once() {
    let server = bounded();
    check(&mut server.raw(), &[("HSET post:1 stock 100", ":1\r\n")]);
    let sold: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut raw = server.raw();
                    (0..40).filter(|_| raw.ask(&["DECR", "post:1:stock"]).starts_with(':')).count()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(sold, 100);
    check(&mut server.raw(), &[("GET post:1:stock", "$1\r\n0\r\n")]);
}

/// ALTER changes bounds, which then survive in the log, a snapshot and CONFIG REWRITE.
#[test]
fn declared_bounds_are_altered_and_stay_so() {
    let server = bounded();
    let answer = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let schema = "like:12 stock:21{0..} level:8{0..3}sat seats:9{0..2}";
    check(
        &mut server.raw(),
        &[
            ("HSET post:1 like 2", ":1\r\n"),
            (
                "TM.SPACE ALTER post BOUND like {..1}",
                &answer("like:12{..1} stock:20{0..} level:8{0..3}sat"),
            ),
            // A value outside new bounds may only move toward the bounds.
            ("HINCRBY post:1 like 1", "-ERR the value of 'like' would be out of bounds {..1}\r\n"),
            ("HINCRBY post:1 like 0", ":2\r\n"),
            ("HINCRBY post:1 like -1", ":1\r\n"),
            (
                "TM.SPACE ALTER post BOUND like {..}",
                &answer("like:12 stock:20{0..} level:8{0..3}sat"),
            ),
            (
                "TM.SPACE ALTER post WIDEN stock:21",
                &answer("like:12 stock:21{0..} level:8{0..3}sat"),
            ),
            ("TM.SPACE ALTER post ADD seats:9{0..2}", &warned(schema, 5)),
            (
                "TM.SPACE ALTER post BOUND stock {1..}",
                "-ERR bad schema: the bounds {1..} must include 0, the initial value of a \
                 field\r\n",
            ),
            (
                "TM.SPACE ALTER post BOUND stock 1..",
                "-ERR bad schema: invalid bounds '1..', expected {min..max}, {min..}, {..max} or \
                 {..}\r\n",
            ),
            ("TM.SPACE ALTER post BOUND nope {0..}", "-ERR no field 'nope'\r\n"),
        ],
    );
    let holds = |server: &TestServer| {
        check(
            &mut server.raw(),
            &[
                ("DECR post:1:stock", STOCK),
                (
                    "HSET post:1 seats 3",
                    "-ERR the value of 'seats' would be out of bounds {0..2}\r\n",
                ),
                ("HSET post:1 like 9", ":0\r\n"),
            ],
        );
        check(&mut server.raw(), &[("TM.SPACE ALTER post BOUND like {..}", &answer(schema))]);
    };
    let server = server.killed();
    holds(&server);
    assert_eq!(server.raw().ask(&["SAVE"]), "+OK");
    holds(&server.killed());
}

#[test]
fn what_cannot_be_altered_is_refused_and_changes_nothing() {
    let server = TestServer::with(|config| {
        config.view[0].counters = vec!["post.comment".to_owned(), "post".to_owned()];
    });
    let reserved = "-ERR invalid field name 'max': it is an option of CNT.INCRBY\r\n";
    let in_action = "-ERR the action 'like' uses the field 'like'\r\n";
    let in_view = "-ERR the view 'home' uses the field 'comment'\r\n";
    check(
        &mut server.raw(),
        &[
            ("TM.SPACE ALTER post ADD max:3", reserved),
            ("TM.SPACE ALTER post DROP like", in_action),
            ("TM.SPACE ALTER post DROP comment", in_view),
            ("TM.SPACE ALTER post DROP nope", "-ERR no field 'nope'\r\n"),
            ("TM.SPACE ALTER nope DROP like", "-ERR no such counter space 'nope'\r\n"),
            ("TM.SPACE ALTER liked DROP like", "-ERR no such counter space 'liked'\r\n"),
            ("TM.SPACE ALTER post ADD like:3", "-ERR bad schema: field 'like' twice\r\n"),
            (
                "TM.SPACE ALTER post ADD x:65",
                "-ERR bad schema: field 'x' has 65 bits, expected 1 to 64\r\n",
            ),
            (
                "TM.SPACE ALTER post ADD x:600",
                "-ERR bad schema: invalid width '600', expected 1 to 64 bits\r\n",
            ),
            ("TM.SPACE ALTER post ADD x", "-ERR bad schema: 'x' is not in the form name:bits\r\n"),
            (
                "TM.SPACE ALTER post WIDEN like:600",
                "-ERR Invalid number of bits '600': must be 1 to 64\r\n",
            ),
            ("TM.SPACE ALTER post WIDEN like", "-ERR Invalid field 'like': must be field:bits\r\n"),
            ("TM.SPACE ALTER post SHRINK x", "-ERR syntax error\r\n"),
            (
                "TM.SPACE ALTER post DROP",
                "-ERR wrong number of arguments for 'tm.space|alter' command\r\n",
            ),
            (
                "TM.SPACE ALTER post DROP comment 5",
                "-ERR wrong number of arguments for 'tm.space|alter' command\r\n",
            ),
            ("HSET post:1 like 1", ":1\r\n"),
            ("HLEN post:1", ":4\r\n"),
        ],
    );
}

/// Reads and writes continue while fields are added and dropped; the final state is correct, also
/// after a restart.
#[test]
fn schemas_change_under_traffic() {
    let server = always_whole();
    let stop = AtomicBool::new(false);
    /// Stops the writers even if this thread panics.
    struct StopOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    const ROWS: u64 = 200;
    let expected: Vec<Vec<i64>> = std::thread::scope(|scope| {
        let at_end = StopOnDrop(&stop);
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let (server, stop) = (&server, &stop);
                scope.spawn(move || {
                    let (mut raw, mut rng) = (server.raw(), fastrand::Rng::with_seed(writer));
                    // Writers use disjoint rows.
                    let mut rows = vec![vec![0i64; 12]; ROWS as usize];
                    while !stop.load(Relaxed) {
                        let (row, extra) = (rng.usize(0..ROWS as usize), rng.usize(0..12));
                        let key = format!("post:{}", row as u64 * 2 + writer);
                        let reply = raw.ask(&["HINCRBY", &key, &format!("extra{extra}"), "3"]);
                        match reply.strip_prefix(':') {
                            Some(value) => {
                                rows[row][extra] += 3;
                                assert_eq!(value, rows[row][extra].to_string());
                            }
                            None => assert!(reply.starts_with("-ERR No schema field"), "{reply}"),
                        }
                        raw.request(&[
                            "FEED.GET",
                            "home",
                            "7",
                            &(row as u64 * 2 + writer).to_string(),
                        ]);
                        assert_eq!(raw.line(), "*1");
                        let values: usize = raw.line()[1..].parse().unwrap();
                        assert!((6..=18).contains(&values), "{values}");
                        (0..values).for_each(|_| assert!(raw.line().starts_with(':')));
                    }
                    rows
                })
            })
            .collect();
        let mut raw = server.raw();
        for extra in 0..12 {
            raw.request(&[
                "TM.SPACE",
                "ALTER",
                "post",
                "ADD",
                &format!("extra{extra}:{}", extra + 1),
            ]);
            assert!(raw.line().starts_with('$'));
            assert!(raw.line().contains("\nwarning: the view 'home'"));
            std::thread::sleep(std::time::Duration::from_millis(40));
            if extra % 4 == 1 {
                assert_eq!(raw.ask(&["SAVE"]), "+OK");
            }
        }
        drop(at_end);
        let rows: Vec<Vec<Vec<i64>>> = writers.into_iter().map(|w| w.join().unwrap()).collect();
        (0..ROWS as usize).flat_map(|row| rows.iter().map(move |of| of[row].clone())).collect()
    });
    let verify = |server: &TestServer, when: &str| {
        let mut raw = server.raw();
        for (id, row) in expected.iter().enumerate().filter(|(_, row)| row.iter().any(|&n| n > 0)) {
            let fields: Vec<String> = (0..12).map(|extra| format!("extra{extra}")).collect();
            let key = format!("post:{id}");
            let mut request = vec!["HMGET", &key];
            request.extend(fields.iter().map(String::as_str));
            assert_eq!(raw.ask(&request), "*12");
            for &value in row {
                raw.line();
                assert_eq!(raw.line(), value.to_string(), "row {id}, {when}");
            }
        }
    };
    verify(&server, "at the end");
    verify(&server.killed(), "after a crash");
    verify(&server.restart(), "after a restart");
}

/// The default view names its fields, so a new field does not change the view. Fields that the
/// default view names cannot be dropped.
#[test]
fn default_view_keeps_its_values_when_a_field_is_added() {
    let server = always();
    let raw = &mut server.raw();
    let page = ("FEED.GET home 7 1", "*1\r\n*6\r\n:0\r\n:0\r\n:3\r\n:0\r\n:0\r\n:0\r\n");
    check(
        raw,
        &[
            ("HSET post:1 comment 3", ":1\r\n"),
            (
                "TM.SPACE ALTER post ADD share:14",
                "$43\r\nlike:12 repost:8 comment:8 read:16 share:14\r\n",
            ),
            ("HINCRBY post:1 share 9", ":9\r\n"),
            page,
            (
                "TM.SPACE ALTER post DROP comment",
                "-ERR the view 'home' uses the field 'comment'\r\n",
            ),
        ],
    );
    let server = server.restart();
    check(
        &mut server.raw(),
        &[
            page,
            (
                "TM.SPACE ALTER post DROP share",
                "$44\r\nlike:12 repost:8 comment:8 read:16 !share:14\r\n",
            ),
            page,
        ],
    );
}

/// A folder opens even if it lacks a field of the default view; the field was dropped while the
/// view showed the whole space.
#[test]
fn folder_without_a_default_field_opens() {
    let server = always_whole();
    check(
        &mut server.raw(),
        &[("TM.SPACE ALTER post DROP comment", &warned("like:12 repost:8 !comment:8 read:16", 5))],
    );
    check(
        &mut server.raw(),
        &[
            ("TM.VIEW DROP home", "+OK\r\n"),
            (
                "TM.VIEW CREATE home counters post.like,post.repost flags liked",
                "-ERR view 'home': there is no counter 'post.like,post.repost'\r\n",
            ),
        ],
    );
    let created: String = redis::cmd("TM.VIEW")
        .arg(&["CREATE", "home", "counters", "post.like post.repost post.read", "flags"])
        .arg("liked read")
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(created, "OK");
    let server = server.restart();
    check(
        &mut server.raw(),
        &[
            ("HSET post:1 like 1 read 2", ":2\r\n"),
            ("FEED.GET home 7 1", "*1\r\n*5\r\n:1\r\n:0\r\n:2\r\n:0\r\n:0\r\n"),
        ],
    );
}

/// A view may name a field added by ALTER although no snapshot was written since. A later space has
/// its own seed.
#[test]
fn the_history_of_the_catalogue_is_told_again() {
    let server = always();
    check(
        &mut server.raw(),
        &[(
            "TM.SPACE ALTER post ADD share:14",
            "$43\r\nlike:12 repost:8 comment:8 read:16 share:14\r\n",
        )],
    );
    check(
        &mut server.raw(),
        &[
            ("TM.VIEW DROP home", "+OK\r\n"),
            ("TM.SPACE CREATE saved EXISTENCE pairs saved:{id}", "+OK\r\n"),
            ("TM.VIEW CREATE home counters post.share flags saved", "+OK\r\n"),
            ("SADD saved:1 by-name 7", ":2\r\n"),
            ("INCRBY post:1:share 4", ":4\r\n"),
            ("FEED.GET home 7 1", "*1\r\n*2\r\n:4\r\n:1\r\n"),
        ],
    );
    let mut server = server;
    for _ in 0..2 {
        server = server.restart();
        check(
            &mut server.raw(),
            &[
                ("SMISMEMBER saved:1 by-name 7 other", "*3\r\n:1\r\n:1\r\n:0\r\n"),
                ("FEED.GET home 7 1", "*1\r\n*2\r\n:4\r\n:1\r\n"),
            ],
        );
    }
}

type Maps = Vec<HashMap<String, redis::Value>>;

fn number(map: &HashMap<String, redis::Value>, key: &str) -> f64 {
    redis::from_redis_value_ref(&map[key])
        .unwrap_or_else(|e| panic!("{key} is {:?}: {e}", map[key]))
}

#[test]
fn advice_is_given_and_can_be_followed() {
    let server = TestServer::start();
    assert_eq!(
        server.raw().ask(&["TM.ADVISE", "post"]),
        "-ERR the space 'post' has 0 rows; TM.ADVISE needs at least 1000"
    );
    assert_eq!(server.raw().ask(&["TM.ADVISE", "liked"]), "-ERR no such counter space 'liked'");
    let c = &mut server.connection();
    let mut pipe = redis::pipe();
    for id in 0..20_000u64 {
        pipe.cmd("HSET")
            .arg(format!("post:{id}"))
            .arg(&["like", "1", "read"])
            .arg(id % 5000)
            .ignore();
    }
    pipe.query::<()>(c).unwrap();
    let advice: HashMap<String, redis::Value> =
        redis::cmd("TM.ADVISE").arg("post").query(c).unwrap();
    assert!(number(&advice, "rows") >= 10_000.0);
    assert!(number(&advice, "saving") > 0.1, "{advice:?}");
    let commands: Vec<String> = redis::from_redis_value_ref(&advice["commands"]).unwrap();
    assert!(!commands.is_empty());
    for command in &commands {
        let words: Vec<&str> = command.split(' ').collect();
        redis::cmd(words[0]).arg(&words[1..]).query::<String>(c).unwrap();
    }
    let spaces: Maps = redis::cmd("TM.SPACE").arg("LIST").query(c).unwrap();
    let fields: String = redis::from_redis_value_ref(&spaces[0]["fields"]).unwrap();
    assert_eq!(fields, redis::from_redis_value_ref::<String>(&advice["fields"]).unwrap());
    // Older tables are rewritten in the background without data loss.
    let wanted = fields.clone();
    eventually("tables are rewritten", || {
        let tables: Maps = redis::cmd("TM.TABLES").arg("post").query(c).unwrap();
        tables
            .iter()
            .all(|t| redis::from_redis_value_ref::<String>(&t["fields"]).unwrap() == wanted)
    });
    let row: Vec<i64> = redis::cmd("HVALS").arg("post:19999").query(c).unwrap();
    assert_eq!(row, [1, 0, 0, 4999]);
}

#[test]
fn tables_tell_of_themselves() {
    // Only recycling spaces have a forecast.
    let server = TestServer::with(|config| {
        let liked = &mut config.existence[0];
        (liked.spill, liked.ledger) = (false, LedgerMode::Off);
    });
    let c = &mut server.connection();
    let mut pipe = redis::pipe();
    for id in 0..5000u64 {
        pipe.cmd("FEED.ACT").arg("like").arg(id % 7).arg(id).ignore();
    }
    pipe.query::<()>(c).unwrap();
    let tables: Maps = redis::cmd("TM.TABLES").arg("post").query(c).unwrap();
    assert_eq!(
        tables.iter().map(|t| number(t, "rows") + number(t, "draining_rows")).sum::<f64>(),
        5000.0
    );
    for table in &tables {
        assert!(number(table, "bytes") > 0.0 && number(table, "fill") <= 1.0);
        assert!(number(table, "probes_max") >= number(table, "probes_mean"));
    }
    let liked: Maps = redis::cmd("TM.TABLES").arg("liked").query(c).unwrap();
    assert_eq!(liked.iter().map(|t| number(t, "pairs")).sum::<f64>(), 5000.0);
    assert!(
        liked
            .iter()
            .all(|t| number(t, "measured_rate") <= 0.001 && number(t, "canaries") >= 4096.0)
    );
    // The forecast needs a second of traffic.
    eventually("a rate", || {
        redis::cmd("FEED.ACT")
            .arg(&["like", "8"])
            .arg(fastrand::u64(0..5000))
            .query::<Vec<i64>>(c)
            .unwrap();
        let spaces: Maps = redis::cmd("TM.SPACE").arg("LIST").query(c).unwrap();
        let liked = spaces
            .iter()
            .find(|s| s["name"] == redis::Value::BulkString(b"liked".to_vec()))
            .unwrap();
        number(liked, "pairs_per_s") > 0.0 && number(liked, "recycled_in_s") > 1.0
    });
    let info: String = redis::cmd("INFO").arg("tables").query(c).unwrap();
    assert!(info.contains("table_liked_0:low=0,") && info.contains(",measured_rate="), "{info}");
    assert!(info.contains("table_post_0:low=0,") && info.contains(",bytes_per_row="), "{info}");
    assert!(!redis::cmd("INFO").query::<String>(c).unwrap().contains("# Tables"));

    for space in ["liked", "post"] {
        let before = redis::cmd("TM.TABLES").arg(space).query::<Maps>(c).unwrap().len();
        assert_eq!(redis::cmd("TM.ROLL").arg(space).query::<i64>(c).unwrap(), 1);
        assert_eq!(
            redis::cmd("TM.ROLL").arg(space).query::<i64>(c).unwrap(),
            0,
            "an empty table was rolled"
        );
        assert_eq!(redis::cmd("TM.TABLES").arg(space).query::<Maps>(c).unwrap().len(), before + 1);
    }
    assert!(redis::cmd("TM.ROLL").arg("nope").query::<i64>(c).is_err());
    let server = server.restart();
    let c = &mut server.connection();
    let rolled: Maps = redis::cmd("TM.TABLES").arg("liked").query(c).unwrap();
    assert_eq!(rolled.len(), liked.len() + 1, "the roll was logged");
    assert!(redis::cmd("PH.EXISTS").arg(&["liked", "6", "6"]).query::<Vec<i64>>(c).unwrap() == [1]);
}

/// Deferred replies keep their position, and CLIENT REPLY suppresses them.
#[test]
fn late_answers_keep_their_order() {
    let server = TestServer::start();
    let mut raw = server.raw();
    raw.send(
        "PING\r\nTM.TABLES nope\r\nTM.ADVISE post\r\nPING\r\nTM.TABLES gone\r\nPING\r\n\
         INFO tables\r\nPING\r\n",
    );
    for line in [
        "+PONG",
        "-ERR no such space 'nope'",
        "-ERR the space 'post' has 0 rows; TM.ADVISE needs at least 1000",
        "+PONG",
        "-ERR no such space 'gone'",
        "+PONG",
    ] {
        assert_eq!(raw.line(), line);
    }
    let size: usize = raw.line().strip_prefix('$').unwrap().parse().unwrap();
    let mut lines = vec![raw.line()];
    while lines.iter().map(|line| line.len() + 2).sum::<usize>() < size + 2 {
        lines.push(raw.line());
    }
    assert_eq!((&lines[0][..], raw.line()), ("# Tables", "+PONG".to_owned()));
    raw.send(
        "CLIENT REPLY SKIP\r\nTM.ADVISE post\r\nPING\r\nCLIENT REPLY OFF\r\nTM.TABLES\r\n\
         CLIENT REPLY ON\r\nPING\r\n",
    );
    for line in ["+PONG", "+OK", "+PONG"] {
        assert_eq!(raw.line(), line);
    }
}
