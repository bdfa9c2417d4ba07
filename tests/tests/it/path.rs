//! What the path from request to reply costs, in counts that do not depend on the machine's mood:
//! instructions and allocations.
//!
//! Instructions are those of the debug build (CI builds no other), so they guard against
//! regressions and say nothing of speed; what release code does is in docs/performance.md. After a
//! change that is meant to cost more, or a toolchain that compiles otherwise, put the new counts
//! here: `cargo test -p tidemark-tests --test it path -- --nocapture` prints them.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tidemark_tests::{TestServer, request};

/// A count may be so much higher than the one written down. From run to run they differ by up to
/// 0.7 %, as a process's secrets decide which rows meet.
const TOLERANCE: f64 = 1.03;

/// Instructions of one turn, its first ones included, by what is in it: see `src/bin/page_path.rs`.
const INSTRUCTIONS: [(&str, f64); 13] = [
    // 30 of them are calls into the crate `node`, which this build does not inline; 40 ask whether
    // a long request is under way, and whether one begins.
    ("ping", 1535.0),
    ("page", 31250.0),
    ("young", 30900.0),
    // A page that lacks cold rows is read twice: `cold` runs again once they have come.
    ("cold", 114400.0),
    ("cached", 53100.0),
    // 80,300 to 82,200, as the secrets of three nodes decide.
    // The plan, the own part as a request of its own, two requests for other nodes, and their
    // replies joined. That three nodes hash what the view means is 4 % of it: else rows of another
    // view of that name would be joined.
    ("coordinator", 81500.0),
    ("pages", 248900.0),
    ("binary", 26300.0),
    ("stock", 113100.0),
    ("hmget", 73000.0),
    ("hincrby", 68600.0),
    // Whether its table has an id that is to be forgotten, whether the space has a ledger, and
    // whether the node is one of a cluster is asked of each like: 3 % of it.
    ("likes", 91100.0),
    // The same with a ledger, as the stock spaces have it.
    ("exact", 103000.0),
];

/// Turns of each.
const TURNS: u32 = 200;

#[test]
fn a_turn_takes_no_more_instructions_than_before() {
    let next = AtomicUsize::new(0);
    let counts = || std::iter::from_fn(|| INSTRUCTIONS.get(next.fetch_add(1, Relaxed))).map(over);
    let counts = || counts().flatten().collect::<Vec<String>>();
    // Each is a process that computes on one thread at a time.
    let over = std::thread::scope(|scope| {
        let all = [scope.spawn(counts), scope.spawn(counts)];
        all.into_iter().flat_map(|one| one.join().unwrap()).collect::<Vec<String>>()
    });
    assert!(over.is_empty(), "{over:?}");
}

/// What a turn takes now, if that is too much.
fn over(&(what, most): &(&str, f64)) -> Option<String> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    valgrind.args([
        "--toggle-collect=*Local::turn_*",
        env!("CARGO_BIN_EXE_page_path"),
        what,
        &TURNS.to_string(),
    ]);
    let done = valgrind.output().expect("valgrind: run tests/clients/setup once");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    // "==123== Collected : 456"
    let collected =
        said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse::<f64>().ok());
    let per_turn = collected.unwrap_or_else(|| panic!("no count in {said}")) / f64::from(TURNS);
    println!("{what}: {per_turn:.0} instructions a turn (written down: {most})");
    assert!(per_turn > 500.0, "{what}: nothing was counted");
    (per_turn > most * TOLERANCE).then(|| format!("{what}: {per_turn:.0} instead of {most}"))
}

/// Reads allocate nothing, once the worker's buffers have grown to what they need.
#[test]
fn reads_allocate_nothing() {
    let server = TestServer::start();
    let mut local = server.server().local().unwrap();
    let ids: Vec<String> =
        (0..50).map(|i| (3_631_614_501_919_378u64 + i * 4194).to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    for id in &ids {
        local.turn(&request(&["FEED.ACT", "like", "42", id]));
        // Some beyond their bits.
        local.turn(&request(&["CNT.SET", "post", id, "read", "70000", "comment", &id[12..]]));
    }
    let key = format!("post:{}", ids[7]);
    let (cell, pair) = (format!("post:{}:like", ids[7]), format!("liked:{}", ids[7]));
    let pages = [
        request(&[&["FEED.GET", "home", "42"], &ids[..20]].concat()),
        request(&[&["FEED.GET", "home", "somebody"], &ids[..]].concat()),
        request(&[&["FEED.GET", "home", "42"], &ids[..], &["BINARY"]].concat()),
        request(&[&["CNT.GET", "post"], &ids[..]].concat()),
        request(&[&["PH.EXISTS", "liked", "42"], &ids[..]].concat()),
        request(&["HMGET", &key, "like", "read"]),
        request(&["HGETALL", &key]),
        request(&["GET", &cell]),
        request(&["MGET", &cell, &cell, &cell]),
        request(&["SISMEMBER", &pair, "42"]),
        request(&["PING"]),
    ];
    let pipeline: Vec<u8> = pages.iter().cycle().take(40).flatten().copied().collect();
    for bytes in pages.iter().chain([&pipeline]) {
        let expected = local.turn(bytes).to_vec();
        assert!(!expected.starts_with(b"-"), "{}", String::from_utf8_lossy(&expected));
        let counted = allocation_counter::measure(|| {
            for _ in 0..100 {
                assert_eq!(local.turn(bytes), &expected[..]);
            }
        });
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        assert_eq!(counted.count_total, 0, "{shown:?}");
    }
    // The counter counts.
    assert!(
        allocation_counter::measure(|| drop(std::hint::black_box(vec![0u8; 100]))).count_total > 0
    );
    drop(local);
    server.stop();
}

/// Rows of one request, or of requests that arrive together, cost one wait for memory: a batch
/// holds up to 32.
#[cfg_attr(
    not(debug_assertions),
    ignore = "only builds with debug assertions note what they ask for"
)]
#[test]
fn rows_are_asked_for_together() {
    let server = TestServer::start();
    let mut local = server.server().local().unwrap();
    // Few enough that all lie in their first buckets, and enough that the space knows them for the
    // rule.
    let ids: Vec<String> =
        (0..200).map(|i| (3_631_614_501_919_378u64 + i * 4194).to_string()).collect();
    for id in &ids {
        local.turn(&request(&["CNT.SET", "post", id, "like", "3", "read", "700"]));
    }
    let mut cost = |bytes: &[&[u8]]| {
        let mut failed = Vec::new();
        let steps = counter::prefetch_trace::steps_of(|| {
            for turn in bytes {
                let reply = local.turn(turn);
                if reply.starts_with(b"-") {
                    failed.push(String::from_utf8_lossy(reply).into_owned());
                }
            }
        });
        assert!(failed.is_empty(), "{failed:?}");
        counter::prefetch_trace::waits(&steps)
    };
    let whole = |n: usize, head: &[&str], key: fn(&str) -> Vec<String>| {
        let words: Vec<String> = ids[..n].iter().flat_map(|id| key(id)).collect();
        request(&[head, &words.iter().map(String::as_str).collect::<Vec<_>>()].concat())
    };
    let itself: fn(&str) -> Vec<String> = |id| vec![id.to_owned()];
    for n in [20, 50] {
        for (name, bytes) in [
            ("FEED.GET", whole(n, &["FEED.GET", "home", "42"], itself)),
            ("CNT.GET", whole(n, &["CNT.GET", "post"], itself)),
            ("MGET", whole(n, &["MGET"], |id| vec![format!("post:{id}:read")])),
            (
                "CNT.MINCRBY",
                whole(n, &["CNT.MINCRBY", "post"], |id| {
                    [id, "read", "1"].map(str::to_owned).to_vec()
                }),
            ),
        ] {
            assert_eq!(cost(&[&bytes]), n.div_ceil(32), "{name} of {n}");
        }
        type Request = fn(&str) -> Vec<u8>;
        let each: [(&str, Request); 9] = [
            ("HMGET", |id| request(&["HMGET", &format!("post:{id}"), "like", "read"])),
            ("HGETALL", |id| request(&["HGETALL", &format!("post:{id}")])),
            ("HGET", |id| request(&["HGET", &format!("post:{id}"), "like"])),
            ("GET", |id| request(&["GET", &format!("post:{id}:like")])),
            ("HINCRBY", |id| request(&["HINCRBY", &format!("post:{id}"), "like", "2"])),
            ("INCR", |id| request(&["INCR", &format!("post:{id}:like")])),
            ("CNT.INCRBY", |id| request(&["CNT.INCRBY", "post", id, "like", "2"])),
            ("CNT.SET", |id| request(&["CNT.SET", "post", id, "like", "2"])),
            ("FEED.ACT", |id| request(&["FEED.ACT", "like", "7", id])),
        ];
        for (name, of) in each {
            let requests: Vec<Vec<u8>> = ids[..n].iter().map(|id| of(id)).collect();
            assert_eq!(cost(&[&requests.concat()]), n.div_ceil(32), "{n} {name}");
            let alone: Vec<&[u8]> = requests.iter().map(Vec::as_slice).collect();
            // Some share a bucket.
            assert!(cost(&alone) > n / 2, "{n} {name}, one by one");
        }
    }
    drop(local);
    server.stop();
}
