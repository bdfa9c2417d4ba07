//! Cost of the path from request to reply in machine-independent units: instructions and
//! allocations.
//!
//! Instructions are counted in the debug build, the only build that CI compiles. Instruction counts
//! detect regressions but do not measure speed. docs/performance.md has measurements of release
//! builds. After an intended change, or with a new compiler, update the numbers from `cargo test -p
//! tidemark-tests --test it path -- --nocapture`.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tidemark_tests::{TestServer, request};

/// Allowed ratio to the recorded count. Runs differ by up to 0.7%, because random hash seeds
/// determine collisions.
const TOLERANCE: f64 = 1.03;

/// Instructions per event-loop iteration, for each argument of `src/bin/page_path.rs`. The counts
/// include the first iterations.
const INSTRUCTIONS: [(&str, f64); 13] = [
    // 30 of these instructions are calls into the crate `node`, which are not inlined in this
    // build. 40 instructions check for long requests.
    ("ping", 1535.0),
    ("page", 31250.0),
    ("young", 30900.0),
    // A page with missing cold rows runs twice.
    ("cold", 114400.0),
    ("cached", 53100.0),
    // The count is 80,300 to 82,200, depending on the hash seeds of three nodes. It includes the
    // plan, a separate request for the node's own part, two remote requests, and the merge of the
    // replies. Hashing the view's definition on three nodes takes 4%. The hash prevents a merge of
    // rows of different views.
    ("coordinator", 81500.0),
    ("pages", 248900.0),
    ("binary", 26300.0),
    ("stock", 113100.0),
    ("hmget", 73000.0),
    ("hincrby", 68600.0),
    // 3% of these instructions check for forgotten ids, a ledger, and cluster mode, once per like.
    ("likes", 91100.0),
    // The space has a ledger, as in the default configuration.
    ("exact", 103000.0),
];

const TURNS: u32 = 200;

#[test]
fn a_turn_takes_no_more_instructions_than_before() {
    let next = AtomicUsize::new(0);
    let counts = || std::iter::from_fn(|| INSTRUCTIONS.get(next.fetch_add(1, Relaxed))).map(over);
    let counts = || counts().flatten().collect::<Vec<String>>();
    // Each of the two processes computes on one thread at a time.
    let over = std::thread::scope(|scope| {
        let all = [scope.spawn(counts), scope.spawn(counts)];
        all.into_iter().flat_map(|one| one.join().unwrap()).collect::<Vec<String>>()
    });
    assert!(over.is_empty(), "{over:?}");
}

/// Runs one kind of request; returns a message if it takes too many instructions.
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
    // Parse a line such as "==123== Collected : 456".
    let collected =
        said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse::<f64>().ok());
    let per_turn = collected.unwrap_or_else(|| panic!("no count in {said}")) / f64::from(TURNS);
    println!("{what}: {per_turn:.0} instructions per turn (limit: {most})");
    assert!(per_turn > 500.0, "{what}: no instruction was counted");
    (per_turn > most * TOLERANCE).then(|| format!("{what}: {per_turn:.0}, more than {most}"))
}

/// Reads do not allocate once the worker's buffers have reached their size.
#[test]
fn reads_allocate_nothing() {
    let server = TestServer::start();
    let mut local = server.server().local().unwrap();
    let ids: Vec<String> =
        (0..50).map(|i| (3_631_614_501_919_378u64 + i * 4194).to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    for id in &ids {
        local.turn(&request(&["FEED.ACT", "like", "42", id]));
        // Some values are wider than their fields.
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
    // Checks that the allocation counter works.
    assert!(
        allocation_counter::measure(|| drop(std::hint::black_box(vec![0u8; 100]))).count_total > 0
    );
    drop(local);
    server.stop();
}

/// Rows of a request, or of up to 32 requests in a batch, are prefetched together, so that their
/// cache misses overlap and take one memory latency.
#[cfg_attr(
    not(debug_assertions),
    ignore = "only builds with debug assertions note what they ask for"
)]
#[test]
fn rows_are_asked_for_together() {
    let server = TestServer::start();
    let mut local = server.server().local().unwrap();
    // Use few enough rows that each is in its first bucket, but enough that the space learns the
    // normal range of ids.
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
            // Some rows share a bucket.
            assert!(cost(&alone) > n / 2, "{n} {name}, one by one");
        }
    }
    drop(local);
    server.stop();
}
