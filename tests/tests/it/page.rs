//! Pages, and the actions that change them.

use redis::{RedisResult, Value, cmd};
use std::sync::Barrier;
use tidemark_tests::{TestServer, request};

/// Row of a page: four counters and two flags.
type Row = (i64, i64, i64, i64, Option<i64>, Option<i64>);

fn page(c: &mut redis::Connection, viewer: &str, ids: &[u64]) -> Vec<Row> {
    cmd("FEED.GET").arg("home").arg(viewer).arg(ids).query(c).unwrap()
}

fn act(
    c: &mut redis::Connection,
    verb: &str,
    action: &str,
    viewer: &str,
    ids: &[u64],
) -> Vec<Option<i64>> {
    cmd(verb).arg(action).arg(viewer).arg(ids).query(c).unwrap()
}

#[test]
fn a_like_counts_once_and_an_unlike_undoes_it() {
    let server = TestServer::start();
    let c = &mut server.connection();
    assert_eq!(page(c, "7", &[1, 2]), [(0, 0, 0, 0, Some(0), Some(0)); 2]);
    assert_eq!(act(c, "FEED.ACT", "like", "7", &[1, 2, 1]), [Some(1), Some(1), Some(0)]);
    assert_eq!(act(c, "FEED.ACT", "like", "7", &[1]), [Some(0)]);
    assert_eq!(act(c, "FEED.ACT", "like", "8", &[1]), [Some(1)]);
    assert_eq!(
        page(c, "7", &[1, 2]),
        [(2, 0, 0, 0, Some(1), Some(0)), (1, 0, 0, 0, Some(1), Some(0))]
    );
    assert_eq!(page(c, "9", &[1]), [(2, 0, 0, 0, Some(0), Some(0))]);
    assert_eq!(act(c, "FEED.UNDO", "like", "7", &[1]), [Some(1)]);
    assert_eq!(act(c, "FEED.UNDO", "like", "7", &[1]), [Some(0)]);
    assert_eq!(page(c, "7", &[1]), [(1, 0, 0, 0, Some(0), Some(0))]);
    assert_eq!(act(c, "FEED.ACT", "like", "7", &[1]), [Some(1)], "liking again after an unlike");
    assert_eq!(page(c, "7", &[1]), [(2, 0, 0, 0, Some(1), Some(0))]);
}

#[test]
fn undo_does_not_take_a_lowered_counter_below_zero() {
    let server = TestServer::start();
    let c = &mut server.connection();
    act(c, "FEED.ACT", "like", "7", &[1]);
    let _: () = cmd("CNT.SET").arg("post").arg(1).arg("like").arg(0).query(c).unwrap();
    assert_eq!(act(c, "FEED.UNDO", "like", "7", &[1]), [Some(1)]);
    assert_eq!(page(c, "7", &[1])[0], (0, 0, 0, 0, Some(0), Some(0)));
}

#[test]
fn many_connections_that_like_at_the_same_moment_count_once() {
    let server = TestServer::start();
    let (threads, rounds) = (4, 300);
    let barrier = Barrier::new(threads);
    let changed: i64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let c = &mut server.connection();
                    let mut changed = 0;
                    for id in 0..rounds {
                        barrier.wait();
                        changed += act(c, "FEED.ACT", "like", "7", &[id])[0].unwrap();
                    }
                    changed
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().unwrap()).sum()
    });
    let c = &mut server.connection();
    let ids: Vec<u64> = (0..rounds).collect();
    let rows = page(c, "7", &ids);
    let likes: i64 = rows.iter().map(|r| r.0).sum();
    assert_eq!(likes, changed, "counters and replies differ");
    assert!(rows.iter().all(|r| r.0 <= 1 && r.4 == Some(1)));
    // A false positive suppresses a like, so allow two for 300 flags at a rate of 1 in 10,000.
    assert!(changed >= rounds as i64 - 2, "{changed}");
}

#[test]
fn binary_pages_hold_the_same() {
    let server = TestServer::start();
    let c = &mut server.connection();
    let _: () = cmd("CNT.SET")
        .arg("post")
        .arg(5)
        .arg("like")
        .arg(-3)
        .arg("read")
        .arg(i64::MAX)
        .query(c)
        .unwrap();
    act(c, "FEED.ACT", "read", "7", &[6]);
    let bytes: Vec<u8> =
        cmd("FEED.GET").arg("home").arg(7).arg(5).arg(6).arg("binary").query(c).unwrap();
    assert_eq!(bytes.len(), 2 * (4 * 8 + 2));
    let rows: Vec<(Vec<i64>, Vec<i8>)> = bytes
        .chunks(34)
        .map(|row| {
            let counters =
                row[..32].chunks(8).map(|c| i64::from_le_bytes(c.try_into().unwrap())).collect();
            (counters, row[32..].iter().map(|&b| b as i8).collect())
        })
        .collect();
    assert_eq!(rows, [(vec![-3, 0, 0, i64::MAX], vec![0, 0]), (vec![0, 0, 0, 1], vec![0, 1])]);
}

#[test]
fn mark_shows_what_held_before_it_marked() {
    let server = TestServer::start();
    let c = &mut server.connection();
    let marked: Vec<Row> =
        cmd("FEED.GET").arg("home").arg(7).arg("MARK").arg("read").arg(5).query(c).unwrap();
    assert_eq!(marked, [(0, 0, 0, 0, Some(0), Some(0))]);
    let marked: Vec<Row> =
        cmd("FEED.GET").arg("home").arg(7).arg(5).arg("mark").arg("read").query(c).unwrap();
    assert_eq!(marked, [(0, 0, 0, 1, Some(0), Some(1))], "marked once");
    assert_eq!(page(c, "7", &[5]), [(0, 0, 0, 1, Some(0), Some(1))]);
}

#[test]
fn what_a_page_cannot_be_is_said() {
    let server = TestServer::start();
    let mut raw = server.raw();
    let cases = [
        (&["FEED.GET", "home", "7"][..], "-ERR wrong number of arguments for 'feed.get' command"),
        (
            &["FEED.GET", "home", "7", "BINARY"],
            "-ERR wrong number of arguments for 'feed.get' command",
        ),
        (&["FEED.GET", "nope", "7", "1"], "-ERR no such view 'nope'"),
        (
            &["FEED.GET", "home", "7", "x"],
            "-ERR Invalid id 'x': an id is a decimal number from 0 to 18446744073709551615",
        ),
        (
            &["FEED.GET", "home", "7", "18446744073709551616"],
            "-ERR Invalid id '18446744073709551616': an id is a decimal number from 0 to \
             18446744073709551615",
        ),
        (&["FEED.GET", "home", "7", "1", "MARK"], "-ERR syntax error"),
        (&["FEED.GET", "home", "7", "1", "MARK", "fly"], "-ERR no such action 'fly'"),
        (&["FEED.ACT", "fly", "7", "1"], "-ERR no such action 'fly'"),
        (
            &["FEED.ACT", "like", "7", "1", "01"],
            "-ERR Invalid id '01': an id is a decimal number from 0 to 18446744073709551615",
        ),
    ];
    for (args, expected) in cases {
        assert_eq!(raw.ask(args), expected);
    }
    // All ids were parsed before the first change.
    let c = &mut server.connection();
    assert_eq!(page(c, "7", &[1])[0].0, 0);
}

#[test]
fn the_highest_id_leaves_others_as_they_are() {
    let server = TestServer::start();
    let c = &mut server.connection();
    act(c, "FEED.ACT", "like", "7", &[100, 200]);
    assert_eq!(act(c, "FEED.ACT", "like", "7", &[u64::MAX]), [Some(1)]);
    let ids: Vec<u64> = (300..20_300).collect();
    for chunk in ids.chunks(1000) {
        act(c, "FEED.ACT", "like", "7", chunk);
    }
    assert_eq!(act(c, "FEED.ACT", "like", "7", &[100, 200, u64::MAX]), [Some(0), Some(0), Some(0)]);
    assert_eq!(page(c, "7", &[100, 20_299, u64::MAX]), [(1, 0, 0, 0, Some(1), Some(0)); 3]);
    let horizon: RedisResult<Value> = cmd("PH.EXISTS").arg("liked").arg(7).arg(0).query(c);
    assert_eq!(horizon.unwrap(), Value::Array(vec![Value::Int(0)]), "0 is still above the horizon");
}

/// A page may be longer than a lookup batch and may repeat ids. Each position shows the values of
/// its own id.
#[test]
fn a_page_may_be_longer_than_a_batch() {
    let server = TestServer::start();
    let c = &mut server.connection();
    act(c, "FEED.ACT", "like", "7", &(0..200).step_by(3).collect::<Vec<_>>());
    act(c, "FEED.ACT", "read", "7", &(0..200).step_by(7).collect::<Vec<_>>());
    let mut rng = fastrand::Rng::with_seed(11);
    for length in [1, 31, 32, 33, 64, 65, 200] {
        let ids: Vec<u64> = (0..length).map(|_| rng.u64(0..200)).collect();
        let row = |&id: &u64| {
            let (like, read) = (i64::from(id % 3 == 0), i64::from(id % 7 == 0));
            (like, 0, 0, read, Some(like), Some(read))
        };
        assert_eq!(page(c, "7", &ids), ids.iter().map(row).collect::<Vec<Row>>(), "{length} ids");
    }
}

/// Four counters with two flags use a specialized encoder; similar shapes must show the same
/// values.
#[test]
fn views_of_any_shape_show_the_same_numbers() {
    let counters: [&[&str]; 7] = [
        &[],
        &["post"],
        &["post.like", "post.repost", "post.comment", "post.read"],
        &["post.read", "post.comment", "post.repost", "post.like"],
        &["post.repost", "post.comment", "post.read"],
        &["post.like", "post", "post.read"],
        &["user", "post"],
    ];
    let flags: [&[&str]; 6] = [
        &["liked", "read"],
        &["read", "liked"],
        &["read"],
        &["liked", "read", "liked"],
        &["read", "liked", "read", "liked", "liked"],
        &[],
    ];
    // A view without columns is refused.
    let shows_nothing = |counters: &[&str], flags: &[&str]| counters.is_empty() && flags.is_empty();
    let server = TestServer::with(|config| {
        for (at, counters) in counters.iter().enumerate() {
            for (of, flags) in flags.iter().enumerate() {
                if shows_nothing(counters, flags) {
                    continue;
                }
                let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
                let name = format!("view_{at}_{of}");
                config.view.push(tidemark_server::config::View {
                    name,
                    counters: own(counters),
                    flags: own(flags),
                    ..Default::default()
                });
            }
        }
    });
    let c = &mut server.connection();
    let ids: Vec<u64> = (1..=70).collect();
    // Use values of all lengths, some of them wider than their fields, and finally values above
    // 2^19 and below 0.
    let value = |id: u64, field: u64| {
        (id * 7919 + field * 104_729) as i64 % 10i64.pow((id + field) as u32 % 6 + 1)
    };
    for last in [1, 1 << 19, -3] {
        for &id in &ids {
            for (at, field) in ["like", "repost", "comment", "read"].into_iter().enumerate() {
                let value = if id == 70 && at == 3 { last } else { value(id, at as u64) };
                cmd("CNT.SET").arg("post").arg(id).arg(field).arg(value).exec(c).unwrap();
            }
            cmd("CNT.SET").arg("user").arg(id).arg("following").arg(id).exec(c).unwrap();
            if id % 3 == 0 {
                act(c, "FEED.ACT", "like", "7", &[id]);
            }
        }
        let mut fields = |space: &str| -> Vec<Vec<i64>> {
            cmd("CNT.GET").arg(space).arg(&ids).query(c).unwrap()
        };
        let (posts, users) = (fields("post"), fields("user"));
        let names = ["like", "repost", "comment", "read"];
        for (at, counters) in counters.iter().enumerate() {
            for (of, flags) in flags.iter().enumerate() {
                if shows_nothing(counters, flags) {
                    continue;
                }
                let page: Vec<Vec<i64>> = cmd("FEED.GET")
                    .arg(format!("view_{at}_{of}"))
                    .arg(7)
                    .arg(&ids)
                    .query(c)
                    .unwrap();
                for (row, &id) in ids.iter().enumerate() {
                    let mut expected = Vec::new();
                    for counter in *counters {
                        match counter.split_once('.') {
                            Some((_, name)) => expected
                                .push(posts[row][names.iter().position(|n| *n == name).unwrap()]),
                            None => expected.extend(if *counter == "post" {
                                &posts[row]
                            } else {
                                &users[row]
                            }),
                        }
                    }
                    expected.extend(
                        flags.iter().map(|flag| i64::from(*flag == "liked" && id % 3 == 0)),
                    );
                    assert_eq!(page[row], expected, "{counters:?} {flags:?} {id}");
                }
            }
        }
    }
}

#[test]
fn the_order_of_loading_does_not_matter() {
    let mut orders: Vec<Vec<u64>> = vec![(1..=3000).map(|i| i * 1000).collect(); 3];
    orders[1].reverse();
    fastrand::Rng::with_seed(5).shuffle(&mut orders[2]);
    for ids in orders {
        let server = TestServer::with(|config| {
            for counter in &mut config.counter {
                counter.rows_per_table = 500;
            }
            for existence in &mut config.existence {
                existence.pairs_per_table = 20_000;
            }
        });
        let c = &mut server.connection();
        for chunk in ids.chunks(100) {
            assert!(
                act(c, "FEED.ACT", "like", "7", chunk).iter().filter(|c| **c == Some(1)).count()
                    >= 99
            );
        }
        for chunk in ids.chunks(100) {
            for row in page(c, "7", chunk) {
                assert!(row.0 == 1 && row.4 == Some(1) || row.0 == 0, "{row:?}");
                assert_eq!(row.4, Some(1));
            }
        }
    }
}

/// Returns a random request: mostly page requests, some likes, and some invalid requests.
fn any_request(rng: &mut fastrand::Rng) -> Vec<u8> {
    let most = if rng.u8(..10) == 0 { 80 } else { 8 };
    let number = rng.usize(1..most);
    let ids: Vec<String> = (0..number).map(|_| rng.u64(1..30).to_string()).collect();
    let mut ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let (viewer, action) =
        (["7", "8", "somebody"][rng.usize(..3)], ["like", "read"][rng.usize(..2)]);
    let anywhere = rng.usize(..=ids.len());
    match rng.u8(..100) {
        0..45 => {}
        45..55 => ids.push("BINARY"),
        55..60 => ids.insert(anywhere, "binary"),
        60..70 => drop(ids.splice(anywhere..anywhere, ["MARK", action])),
        70..75 => ids.insert(anywhere, ["x", "MARK", "01"][rng.usize(..3)]),
        75..90 => {
            let verb = ["FEED.ACT", "FEED.ACT", "FEED.UNDO"][rng.usize(..3)];
            return request(&[&[verb, action, viewer], &ids[..]].concat());
        }
        90..92 => return request(&["FEED.GET", "nope", viewer, "1"]),
        92..94 => return request(&["FEED.GET", "home", viewer]),
        94..96 => return request(&["CLIENT", "REPLY", "SKIP"]),
        96..98 => return request(&["MULTI"]),
        _ => return request(&["EXEC"]),
    }
    request(&[&["FEED.GET", "home", viewer], &ids[..]].concat())
}

/// The server scans and prefetches a batch of requests before it executes the first request. The
/// replies must equal those to the same requests sent one at a time.
#[test]
fn a_pipeline_of_pages_is_answered_as_one_by_one() {
    let servers = [TestServer::start(), TestServer::start()];
    let [mut at_once, mut one_by_one] =
        servers.each_ref().map(|server| server.server().local().unwrap());
    let mut rng = fastrand::Rng::with_seed(9);
    for round in 0..500 {
        let requests: Vec<Vec<u8>> = (0..rng.usize(2..40)).map(|_| any_request(&mut rng)).collect();
        let together = at_once.turn(&requests.concat()).to_vec();
        let apart: Vec<u8> =
            requests.iter().flat_map(|request| one_by_one.turn(request).to_vec()).collect();
        let shown = String::from_utf8_lossy(&requests.concat()).into_owned();
        assert!(together == apart, "round {round}: {shown}");
    }
    drop((at_once, one_by_one));
    servers.into_iter().for_each(TestServer::stop);
}
