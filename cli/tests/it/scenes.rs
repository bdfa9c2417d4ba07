//! Tests the life cycle of a scene (a counter space, an existence space, a view and an action) on
//! the real binary and its replica. Four clients use the scene under load while the test repeatedly
//! creates, alters and drops the scene, and kills and restarts the server.
//!
//! - A transaction sees the scene only as it is between two commands of its creator.
//! - Acknowledged changes are present on the master, on its replica, and after kill -9.
//! - At the end, memory and files are the same as at the beginning.
//!
//! `TIDEMARK_RUNS` (default 12) sets the number of scenes. `TIDEMARK_SEED` determines the sequence
//! of events.

use client::{Client, Reply};
use harness::program::{FIRST, Program, call, refusal, rounds, text, until};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 4;
const POSTS: u64 = 50;
/// Offsets of additional rows from the first post; enough rows for several tables.
const FURTHER: std::ops::Range<u64> = 1..1000;

fn start(dir: &Path) -> Program {
    Program::start_with(dir, "[durability]\nfsync = \"always\"\nsnapshot_every = 0\n")
}

fn ok(client: &mut Client, words: &str) -> Reply {
    let reply = call(client, words);
    assert_eq!(refusal(&reply), "", "{words}");
    reply
}

#[derive(Default)]
struct Shared {
    port: AtomicU16,
    is_over: AtomicBool,
    /// State of the current scene: (post, member) -> whether the act was acknowledged.
    acts: Mutex<BTreeMap<(u64, u64), bool>>,
    /// Number of transactions, indexed by the part of the scene that each transaction saw.
    seen: [AtomicU64; 5],
    reconnects: AtomicU64,
}

/// Returns the part of the scene that a transaction has seen. The creation order is space, flags,
/// view, action; the scene is dropped in reverse order.
fn part_seen(replies: &[Reply]) -> usize {
    let [row, flag, page, act] = replies else { panic!("{replies:?}") };
    // A key outside all spaces reads as missing, or as an empty set.
    let has_row = match row {
        Reply::Array(values) => {
            assert_eq!(values.len(), 1);
            true
        }
        Reply::Error(why) => {
            assert!(why.starts_with("ERR no such counter space"), "{why}");
            false
        }
        other => panic!("{other:?}"),
    };
    let has_flag = match flag {
        Reply::Array(_) => true,
        Reply::Error(why) => {
            assert!(why.starts_with("ERR no such existence space"), "{why}");
            false
        }
        other => panic!("{other:?}"),
    };
    let has_page = match page {
        Reply::Array(rows) => {
            let Reply::Array(row) = &rows[0] else { panic!("{rows:?}") };
            // Fields: like, share, the field that may have been added later, and the flag.
            assert!(row.len() == 3 || row.len() == 4, "{row:?}");
            assert!(row.iter().all(|value| matches!(value, Reply::Integer(_))), "{row:?}");
            true
        }
        Reply::Error(why) => {
            assert!(why.starts_with("ERR no such view"), "{why}");
            false
        }
        other => panic!("{other:?}"),
    };
    let has_action = match act {
        Reply::Array(_) => true,
        Reply::Error(why) => {
            assert!(why.starts_with("ERR no such action"), "{why}");
            false
        }
        other => panic!("{other:?}"),
    };
    let parts = [has_row, has_flag, has_page, has_action];
    let seen = parts.iter().take_while(|is| **is).count();
    assert!(parts[seen..].iter().all(|is| !is), "a transaction was visible in part: {parts:?}");
    seen
}

fn use_scenes(number: u64, shared: &Shared) {
    let mut rng = fastrand::Rng::with_seed(number);
    let mut member = number << 32;
    'connections: while !shared.is_over.load(Relaxed) {
        let Ok(mut client) = Client::connect(("127.0.0.1", shared.port.load(Relaxed))) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        shared.reconnects.fetch_add(1, Relaxed);
        while !shared.is_over.load(Relaxed) {
            member += 1;
            let post = FIRST + rng.u64(0..POSTS) * 4096;
            let (id, who) = (text(post), text(member));
            shared.acts.lock().unwrap().insert((post, member), false);
            let requests: [&[&[u8]]; 6] = [
                &[b"MULTI"],
                &[b"CNT.GET", b"photo", &id],
                &[b"PH.EXISTS", b"loved", &who, &id],
                &[b"FEED.GET", b"wall", &who, &id],
                &[b"FEED.ACT", b"love", &who, &id],
                &[b"EXEC"],
            ];
            requests.iter().for_each(|words| client.push(words));
            let mut replies = Vec::new();
            for _ in 0..requests.len() {
                let Ok(reply) = client.reply() else { continue 'connections };
                replies.push(reply);
            }
            let replies = match replies.pop() {
                Some(Reply::Array(replies)) => replies,
                // The server is shutting down or starting.
                Some(Reply::Error(why)) => {
                    assert!(why.contains("LOADING") || why.contains("EXECABORT"), "{why}");
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                other => panic!("{other:?}"),
            };
            let seen = part_seen(&replies);
            shared.seen[seen].fetch_add(1, Relaxed);
            let mut acts = shared.acts.lock().unwrap();
            match &replies[3] {
                Reply::Array(acted) if acted[0] == Reply::Integer(1) => {
                    // The acts of a dropped scene are no longer recorded.
                    acts.entry((post, member)).and_modify(|known| *known = true);
                }
                _ => _ = acts.remove(&(post, member)),
            }
        }
    }
}

/// Checks that every acknowledged act is present, and that no counter exceeds the number of acts
/// sent.
fn check(client: &mut Client, acts: &BTreeMap<(u64, u64), bool>, whose: &str) {
    let mut counted: BTreeMap<u64, (i64, i64)> = BTreeMap::new();
    let all: Vec<_> = acts.iter().collect();
    for some in all.chunks(200) {
        for ((post, member), _) in some {
            client.push(&[b"PH.EXISTS", b"loved", &text(*member), &text(*post)]);
        }
        for ((post, member), acknowledged) in some {
            let Reply::Array(found) = client.reply().unwrap() else { panic!("no array") };
            let is_set = found[0] == Reply::Integer(1);
            assert!(is_set || !**acknowledged, "{whose}: {member} on {post} is lost");
            let (least, most) = counted.entry(*post).or_default();
            *least += i64::from(**acknowledged);
            *most += 1;
        }
    }
    for (post, (least, most)) in counted {
        let reply = ok(client, &format!("CNT.GET photo {post}"));
        let Reply::Array(values) = reply else { panic!("no array") };
        let likes = match &values[0] {
            Reply::Array(row) => match row[0] {
                Reply::Integer(likes) => likes,
                _ => panic!("{row:?}"),
            },
            _ => 0,
        };
        // Each client may have sent one act that was recorded for the previous scene.
        let most = most + CLIENTS.cast_signed();
        assert!((least..=most).contains(&likes), "{whose}: {post}: {likes} of {least} to {most}");
    }
}

/// Returns the spaces of a server, the bytes of their tables, and the numbers of the spaces that
/// have files.
fn spaces_and_files(program: &Program, dir: &Path) -> (Reply, String, Vec<u32>) {
    let manifest = std::fs::read_to_string(dir.join("data/tidemark.manifest")).unwrap();
    let mut numbers: Vec<u32> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("file ")?.split(' ').nth(4)?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    (program.ask("CONFIG GET counter.*.rows"), program.info("used_memory_dataset"), numbers)
}

fn cold_files(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir.join("data")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".tcold")).count()
}

#[test]
fn scenes_come_and_go_without_a_trace() {
    let (rounds, seed) = rounds(12);
    let mut rng = fastrand::Rng::with_seed(seed);
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut master = start(folders[0].path());
    let replica = start(folders[1].path());
    let shared = Shared::default();
    shared.port.store(master.port, Relaxed);
    ok(&mut replica.client(), &format!("REPLICAOF 127.0.0.1 {}", master.port));
    until("the node is a connected replica", || replica.info("master_link_status") == "up");
    let before = [
        spaces_and_files(&master, folders[0].path()),
        spaces_and_files(&replica, folders[1].path()),
    ];
    let began = Instant::now();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (1..=CLIENTS)
            .map(|n| {
                scope.spawn({
                    let shared = &shared;
                    move || use_scenes(n, shared)
                })
            })
            .collect();
        struct StopOnDrop<'a>(&'a AtomicBool);
        impl Drop for StopOnDrop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let _over = StopOnDrop(&shared.is_over);
        for round in 0..rounds {
            assert!(clients.iter().all(|client| !client.is_finished()), "a client has failed");
            master = scene(&mut rng, master, &replica, &folders[0], &shared);
            // Wait until the scene is dropped on the replica as well. The scene must leave no trace
            // on either node.
            let step = |master: &Program| {
                let mut client = master.client();
                ok(&mut client, &format!("HSET user:1 post {round}"));
                ok(&mut client, "WAIT 1 20000")
            };
            assert_eq!(step(&master), Reply::Integer(1), "round {round}");
            for (program, folder, before) in
                [(&master, &folders[0], &before[0]), (&replica, &folders[1], &before[1])]
            {
                if round % 8 == 3 {
                    ok(&mut program.client(), "SAVE");
                }
                until("memory and files are as before", || {
                    let (spaces, bytes, files) = spaces_and_files(program, folder.path());
                    let is_small = bytes.parse::<u64>().unwrap_or(u64::MAX)
                        <= before.1.parse::<u64>().unwrap_or(0) + (64 << 10);
                    spaces == before.0 && is_small && files.iter().all(|&number| number <= 5)
                });
                // The server removes a file from the manifest before it deletes the file.
                until("cold files are removed", || cold_files(folder.path()) == 0);
            }
        }
    });
    let seen: Vec<u64> = shared.seen.iter().map(|seen| seen.load(Relaxed)).collect();
    println!(
        "{rounds} scenes in {:.0} s; transactions that saw 0 to 4 parts of one: {seen:?}; {} \
         connections",
        began.elapsed().as_secs_f64(),
        shared.reconnects.load(Relaxed)
    );
    assert!(seen[0] > 0 && seen[4] > rounds, "the transactions saw too few changes: {seen:?}");
}

fn killed(
    mut master: Program,
    replica: &Program,
    folder: &tempfile::TempDir,
    shared: &Shared,
) -> (Program, Client) {
    master.sigkill();
    let master = start(folder.path());
    shared.port.store(master.port, Relaxed);
    ok(&mut replica.client(), &format!("REPLICAOF 127.0.0.1 {}", master.port));
    until("the replica is connected again", || replica.info("master_link_status") == "up");
    let mut client = master.client();
    // A master with a replica waits for it before it accepts writes.
    until("the node accepts writes", || {
        refusal(&call(&mut client, "HSET user:1 post 1")).is_empty()
    });
    (master, client)
}

#[derive(Default)]
struct ForgottenPosts {
    /// Post whose row and flags were deleted with TM.FORGET.
    forgotten: u64,
    /// Id below which rows were deleted with TM.SPACE RETIRE.
    horizon: u64,
}

/// Deletes a random post with TM.FORGET. Unless the space spills, also deletes the older half of
/// the additional rows with TM.SPACE RETIRE.
fn give_up(
    client: &mut Client,
    acts: &BTreeMap<(u64, u64), bool>,
    spills: bool,
    rng: &mut fastrand::Rng,
) -> ForgottenPosts {
    let mut gone = ForgottenPosts::default();
    let posts: Vec<u64> = acts.keys().map(|(post, _)| *post).collect();
    if let Some(&post) = rng.choice(&posts) {
        gone.forgotten = post;
        ok(client, &format!("TM.FORGET photo {post}"));
    }
    if !spills {
        gone.horizon = FIRST + FURTHER.end / 2;
        ok(client, &format!("TM.SPACE RETIRE photo {}", gone.horizon));
    }
    gone
}

/// Checks that the posts in `gone`, and no other posts, were deleted.
fn check_gone(
    client: &mut Client,
    acts: &BTreeMap<(u64, u64), bool>,
    gone: &ForgottenPosts,
    whose: &str,
) {
    let mut likes: BTreeMap<u64, bool> = BTreeMap::new();
    for ((post, member), acknowledged) in acts {
        *likes.entry(*post).or_default() |= acknowledged;
        if *post == gone.forgotten {
            let found = ok(client, &format!("PH.EXISTS loved {member} {post}"));
            let unset = Reply::Array(vec![Reply::Integer(0)]);
            assert_eq!(found, unset, "{whose}: {member} on {post}, which was deleted");
        }
    }
    let further = FURTHER.map(|n| (FIRST + n, true));
    for (post, is_liked) in likes.into_iter().chain(further.step_by(37)) {
        let Reply::Array(rows) = ok(client, &format!("CNT.GET photo {post}")) else {
            panic!("no array")
        };
        let is_there = rows[0] != Reply::Null;
        if post == gone.forgotten || post < gone.horizon {
            assert!(!is_there, "{whose}: {post} has a row: {rows:?}");
        } else {
            assert!(is_there || !is_liked, "{whose}: the row of {post} is lost");
        }
    }
}

fn scene(
    rng: &mut fastrand::Rng,
    mut master: Program,
    replica: &Program,
    folder: &tempfile::TempDir,
    shared: &Shared,
) -> Program {
    shared.acts.lock().unwrap().clear();
    let mut client = master.client();
    let pause = |rng: &mut fastrand::Rng| std::thread::sleep(Duration::from_millis(rng.u64(0..8)));
    for words in [
        "TM.SPACE CREATE photo COUNTER fields like:4,share:8 rows photo:{id} rows_per_table 64",
        "TM.SPACE CREATE loved EXISTENCE pairs loved:{id} pairs_per_table 2000",
        "TM.VIEW CREATE wall counters photo flags loved",
        "TM.ACTION CREATE love flag loved counter photo.like",
    ] {
        ok(&mut client, words);
        pause(rng);
    }
    for words in [
        "TM.SPACE ALTER photo ADD view:20",
        "TM.SPACE ALTER photo WIDEN like:20",
        "TM.SPACE ALTER photo NARROW like:6",
        "TM.SPACE ALTER photo BOUND share {0..}",
        "TM.SPACE ALTER photo SET memory_limit 64mb",
        "TM.SPACE ALTER loved SET spill yes max_tables 40",
    ] {
        ok(&mut client, words);
        pause(rng);
    }
    let both = b"photo:{id} photo:{{id}}";
    let forms: [&[u8]; 6] = [b"TM.SPACE", b"ALTER", b"photo", b"SET", b"rows", both];
    assert_eq!(refusal(&client.call(&forms).unwrap()), "");
    FURTHER.for_each(|n| client.push(&[b"CNT.SET", b"photo", &text(FIRST + n), b"share", b"1"]));
    FURTHER.for_each(|_| assert_eq!(refusal(&client.reply().unwrap()), ""));
    let spills = rng.bool();
    if spills {
        ok(&mut client, "TM.SPACE ALTER photo SET spill yes");
    } else if rng.bool() {
        ok(&mut client, "TM.SPACE ALTER photo SET keep_newest 1000000000");
    }
    if spills && rng.bool() {
        for words in ["TM.ROLL photo", "TM.SPILL photo 9", "TM.ROLL loved", "TM.SPILL loved 9"] {
            ok(&mut client, words);
        }
    }
    if rng.bool() {
        ok(&mut client, "SAVE");
    }
    std::thread::sleep(Duration::from_millis(20));
    if rng.u32(0..4) == 0 {
        drop(client);
        (master, client) = killed(master, replica, folder, shared);
        std::thread::sleep(Duration::from_millis(20));
    }
    // No act may run during the check, so drop the action first.
    ok(&mut client, "TM.ACTION DROP love");
    std::thread::sleep(Duration::from_millis(5));
    let acts = shared.acts.lock().unwrap().clone();
    check(&mut client, &acts, "the master");
    assert_eq!(ok(&mut client, "WAIT 1 20000"), Reply::Integer(1));
    check(&mut replica.client(), &acts, "the replica");
    pause(rng);
    let is_gone = give_up(&mut client, &acts, spills, rng);
    if rng.u32(0..8) == 0 {
        drop(client);
        (master, client) = killed(master, replica, folder, shared);
    }
    check_gone(&mut client, &acts, &is_gone, "the master");
    assert_eq!(ok(&mut client, "WAIT 1 20000"), Reply::Integer(1));
    check_gone(&mut replica.client(), &acts, &is_gone, "the replica");
    for words in [
        "TM.VIEW DROP wall",
        "TM.SPACE DROP loved YES-I-MEAN-loved",
        "TM.SPACE DROP photo YES-I-MEAN-photo",
    ] {
        ok(&mut client, words);
        pause(rng);
    }
    master
}
