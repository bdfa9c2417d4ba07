//! Rebuilds filters with a different false-positive rate, concurrently with likes, unlikes and
//! reads. Each writer tracks the pairs that it has set. A pair that is set must never read as
//! unset, before or after a `kill -9` during a rebuild. The test checks this on the master, on its
//! replica, and after the replica's promotion.
//!
//! `TIDEMARK_RUNS` sets the number of kills (default 2), `TIDEMARK_SEED` the seed.

use client::{Client, Reply};
use harness::program::{Program, call, number_in, refusal, rounds, until};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const CONFIG: &str = r#"
[durability]
fsync = "always"
[[counter]]
name = "post"
fields = "like:16"
rows = "post:{id}"
[[existence]]
name = "liked"
pairs = "liked:{id}"
ledger = "exact"
spill = true
false_positive_rate = 0.01
[[action]]
name = "like"
flag = "liked"
counter = "post.like"
"#;
const WRITERS: u64 = 2;
const BATCH: usize = 64;
const POSTS: u64 = 4000;

/// Whether each (post, member) of one writer is set.
type Truth = BTreeMap<(u64, u64), bool>;

fn integers(frame: Reply) -> Vec<i64> {
    let Reply::Array(frames) = frame else { panic!("{frame:?}") };
    let integer = |frame| match frame {
        Reply::Integer(n) => n,
        other => panic!("{other:?}"),
    };
    frames.into_iter().map(integer).collect()
}

fn push(client: &mut Client, words: &[&str], (post, member): (u64, u64)) {
    let (post, member) = (post.to_string(), member.to_string());
    let words = words.iter().map(|word| word.as_bytes());
    client.push(&words.chain([member.as_bytes(), post.as_bytes()]).collect::<Vec<_>>());
}

/// Likes, unlikes and reads posts until stopped, or until the server exits. Afterwards, removes all
/// pairs from `truth` whose state is unknown.
fn write(port: u16, number: u64, rng: &mut fastrand::Rng, truth: &mut Truth, stop: &AtomicBool) {
    let mut client = Client::connect(("127.0.0.1", port)).unwrap();
    while !stop.load(Relaxed) {
        let batch: BTreeMap<(u64, u64), bool> = (0..BATCH)
            .map(|_| {
                let pair = (1 + rng.u64(..POSTS), rng.u64(..3000) * WRITERS + number);
                (pair, rng.u8(..) < 180)
            })
            .collect();
        for (&pair, &likes) in &batch {
            push(&mut client, &[if likes { "FEED.ACT" } else { "FEED.UNDO" }, "like"], pair);
            push(&mut client, &["PH.EXISTS", "liked"], pair);
        }
        let mut replies = batch.iter();
        while let Some((&pair, &likes)) = replies.next() {
            let both = client.reply().and_then(|done| Ok((done, client.reply()?)));
            let Ok((done, is_set)) = both else {
                truth.remove(&pair);
                replies.for_each(|(pair, _)| _ = truth.remove(pair));
                return;
            };
            let before = truth.insert(pair, likes);
            // The server may have applied the change before it was killed.
            let changes = i64::from(before.unwrap_or(false) != likes);
            let done = integers(done);
            assert!(before.is_none() || done == [changes], "{pair:?} {likes}: {done:?}");
            assert!(!likes || integers(is_set) == [1], "{pair:?} was liked but is not set");
        }
    }
}

/// Checks that every pair has the expected state. Also looks up the set pairs without using the
/// ledger.
fn check(client: &mut Client, truths: &[Truth]) {
    for truth in truths {
        for pairs in truth.iter().collect::<Vec<_>>().chunks(256) {
            for &(&pair, _) in pairs {
                let (post, member) = (pair.0.to_string(), pair.1.to_string());
                let words = ["PH.EXISTS", "liked", &member, &post, "EXACT"];
                client.push(&words.map(str::as_bytes));
                push(client, &["PH.EXISTS", "liked"], pair);
            }
            for (pair, set) in pairs {
                assert_eq!(integers(client.reply().unwrap()), [i64::from(**set)], "{pair:?}");
                let seems_set = integers(client.reply().unwrap()) == [1];
                assert!(seems_set || !**set, "{pair:?} was deleted but is set");
            }
        }
    }
}

/// Calls a command with each id of a range.
fn call_for(client: &mut Client, words: &[&str], ids: RangeInclusive<u64>) -> Reply {
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    let all = words.iter().copied().chain(ids.iter().map(String::as_str));
    client.call(&all.map(str::as_bytes).collect::<Vec<_>>()).unwrap()
}

fn figure(program: &Program, name: &str) -> u64 {
    number_in(&program.info("ledger_liked"), name).unwrap_or(0)
}

fn alter(program: &Program, rate: &str) {
    let reply = program.ask(&format!("TM.SPACE ALTER liked SET false_positive_rate {rate}"));
    assert_eq!(refusal(&reply), "");
}

fn have_rate(program: &Program, rate: &str) -> bool {
    let Reply::Array(tables) = program.ask("TM.TABLES liked") else { return false };
    let is = |frame: &Reply, text: &str| match frame {
        Reply::BulkString(bytes) => bytes == text.as_bytes(),
        _ => false,
    };
    let rates = tables.iter().filter_map(|table| {
        let Reply::Array(entries) = table else { panic!("{table:?}") };
        entries.chunks(2).find(|entry| is(&entry[0], "false_positive_rate"))
    });
    let have: Vec<bool> = rates.map(|entry| is(&entry[1], rate)).collect();
    !have.is_empty() && have.iter().all(|has| *has)
}

fn beside_writers(port: u16, rngs: &mut [fastrand::Rng], truths: &mut [Truth], act: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, (rng, truth)) in (0..).zip(rngs.iter_mut().zip(truths)) {
            let stop = &stop;
            scope.spawn(move || write(port, number, rng, truth, stop));
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        stop.store(true, Relaxed);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
}

fn writers(seed: u64) -> (Vec<fastrand::Rng>, Vec<Truth>) {
    let rngs = (0..WRITERS).map(|n| fastrand::Rng::with_seed(seed ^ n << 32)).collect();
    (rngs, (0..WRITERS).map(|_| Truth::new()).collect())
}

/// Checks that each counter equals the number of members, including likes whose replies were lost.
fn check_counters(client: &mut Client) {
    for post in 1..=POSTS {
        let members = call(client, &format!("SCARD liked:{post}"));
        let Reply::Integer(members) = members else { panic!("{members:?}") };
        let likes = match call(client, &format!("HGET post:{post} like")) {
            Reply::BulkString(text) => String::from_utf8(text).unwrap().parse().unwrap(),
            _ => 0i64,
        };
        assert_eq!(likes, members, "post {post}");
    }
}

#[test]
fn no_set_pair_is_answered_with_no_while_filters_are_built_anew() {
    let (kills, seed) = rounds(2);
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start_with(folder.path(), CONFIG);
    let (mut rngs, mut truths) = writers(seed);
    let mut left = 0;
    for round in 0..=kills {
        beside_writers(program.port, &mut rngs, &mut truths, || {
            program.wait_for_commands(20_000);
            // Afterwards, some of the tables are on disk.
            program.ask("TM.ROLL liked");
            assert_eq!(refusal(&program.ask("TM.SPILL liked 2")), "");
            for rate in ["0.0001", "0.05", "0.001"] {
                alter(&program, rate);
                until("all filters are rebuilt", || have_rate(&program, rate));
            }
            assert!(integers(Reply::Array(vec![program.ask("TM.REBUILD liked")]))[0] > 1);
            alter(&program, if round % 2 == 0 { "0.0002" } else { "0.01" });
            std::thread::sleep(Duration::from_millis(fastrand::u64(..60)));
            if round < kills {
                program.sigkill();
            }
        });
        if round < kills {
            program = Program::start_with(folder.path(), CONFIG);
            left += figure(&program, "rebuild_tables");
            check(&mut program.client(), &truths);
        }
    }
    let rate = if kills % 2 == 0 { "0.0002" } else { "0.01" };
    until("all filters are rebuilt", || have_rate(&program, rate));
    let mut client = program.client();
    check(&mut client, &truths);
    check_counters(&mut client);
    println!("tables still to rebuild after kills: {left}");
}

/// The replica gets the rate from the catalogue and rebuilds its own tables. The test kills the
/// replica as soon as the rebuild has begun.
#[test]
fn replica_equals_master_through_rebuilds_kills_and_promotion() {
    let (kills, seed) = rounds(2);
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [mut master, mut replica] =
        [0, 1].map(|n: usize| Program::start_with(folders[n].path(), CONFIG));
    let follow = |replica: &Program, master: &Program| {
        let words = format!("REPLICAOF 127.0.0.1 {}", master.port);
        assert_eq!(refusal(&replica.ask(&words)), "");
    };
    let wait_for_sync = |replica: &Program, master: &Program| {
        until("the replica has all data", || {
            replica.info("master_link_status") == "up"
                && replica.info("slave_repl_offset") == master.info("master_repl_offset")
        });
    };
    let (mut rngs, mut truths) = writers(seed);
    let mut left = 0;
    beside_writers(master.port, &mut rngs, &mut truths, || {
        master.wait_for_commands(7_000);
        master.ask("TM.ROLL liked");
        assert_eq!(refusal(&master.ask("TM.SPILL liked")), "");
        follow(&replica, &master);
    });
    for round in 0..kills {
        let rate = ["0.0001", "0.02", "0.001"][round as usize % 3];
        beside_writers(master.port, &mut rngs, &mut truths, || {
            for _ in 0..3 {
                master.wait_for_commands(7_000);
                master.ask("TM.ROLL liked");
            }
            // The first table is on disk on both nodes; the second table is in the replica's
            // memory.
            assert_eq!(refusal(&master.ask("TM.SPILL liked")), "");
            alter(&master, rate);
            until("the rebuild has started", || {
                figure(&replica, "rebuild_tables") > 0 || have_rate(&replica, rate)
            });
            replica.sigkill();
            replica = Program::start_with(folders[1].path(), CONFIG);
            left += figure(&replica, "rebuild_tables");
            for program in [&master, &replica] {
                until("all filters are rebuilt", || have_rate(program, rate));
            }
            let tables = replica.ask("TM.REBUILD liked");
            assert!(integers(Reply::Array(vec![tables]))[0] > 1);
            until("all filters are rebuilt", || figure(&replica, "rebuild_tables") == 0);
        });
        wait_for_sync(&replica, &master);
        for program in [&master, &replica] {
            check(&mut program.client(), &truths);
        }
    }
    println!("tables still to rebuild after kills: {left}");
    master.sigkill();
    assert_eq!(refusal(&replica.ask("REPLICAOF NO ONE")), "");
    let mut client = replica.client();
    check(&mut client, &truths);
    check_counters(&mut client);
    // The new master continues the rebuilds, and its counters are exact.
    alter(&replica, "0.0005");
    beside_writers(replica.port, &mut rngs, &mut truths, || {
        until("all filters are rebuilt", || have_rate(&replica, "0.0005"));
    });
    check(&mut client, &truths);
    check_counters(&mut client);
}

/// Ids are forgotten, and some of them liked again, while the master and its replica rebuild their
/// tables.
#[test]
fn forgotten_flags_stay_forgotten_through_rebuilds() {
    const ROUNDS: u64 = 20;
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let config = CONFIG.replace("rate = 0.01", "rate = 0.0000001").replace("always", "everysec");
    let [master, replica] = [0, 1].map(|n: usize| Program::start_with(folders[n].path(), &config));
    assert_eq!(refusal(&replica.ask(&format!("REPLICAOF 127.0.0.1 {}", master.port))), "");
    let mut clients = [master.client(), replica.client()];
    let mut wrong = [0, 0];
    for round in 0..ROUNDS {
        let viewers: Vec<String> = (0..8).map(|n| (round * 8 + n).to_string()).collect();
        for viewer in &viewers {
            call_for(&mut clients[0], &["PH.ADD", "liked", viewer], 1..=POSTS);
        }
        for program in [&master, &replica] {
            program.ask("TM.REBUILD liked");
        }
        call_for(&mut clients[0], &["TM.FORGET", "liked"], 1..=POSTS);
        call_for(&mut clients[0], &["PH.ADD", "liked", &viewers[0]], 1..=POSTS / 2);
        until("the replica has it all", || {
            replica.info("slave_repl_offset") == master.info("master_repl_offset")
        });
        for (number, program) in [&master, &replica].into_iter().enumerate() {
            until("all tables are rebuilt", || figure(program, "rebuild_tables") == 0);
            let mut set = |viewer: &str, ids| {
                let flags = call_for(&mut clients[number], &["PH.EXISTS", "liked", viewer], ids);
                integers(flags).iter().sum::<i64>()
            };
            let again = set(&viewers[0], 1..=POSTS / 2);
            assert_eq!(again, POSTS as i64 / 2, "flags set after the forget are lost");
            wrong[number] += viewers.iter().map(|v| set(v, POSTS / 2 + 1..=POSTS)).sum::<i64>();
        }
    }
    assert_eq!(wrong, [0, 0], "forgotten flags read as set on the master and on the replica");
}
