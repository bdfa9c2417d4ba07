//! TM.AUDIT of the real binary under load. Posts have likes of distinct members, and HSET spoils
//! some counters. The audit finds exactly these while two clients like and unlike, and repairs them
//! across kills (SIGKILL). At the end PostgreSQL computes the same digests from a table of likes.
//!
//! `TIDEMARK_STEPS` sets the number of likes (default 60,000).

use crate::write_behind::Postgres;
use client::{Client, Reply};
use harness::program::{Program, call, cannot, text, until};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

const FIRST: u64 = 1 << 40;
const LIKES_PER_POST: u64 = 50;
/// Members of the likes that come and go during an audit; higher than those of the table.
const LOAD_MEMBERS: std::ops::Range<u64> = 1 << 32..(1 << 32) + 4;

fn word(frame: &Reply) -> String {
    match frame {
        Reply::SimpleString(text) | Reply::BulkString(text) => {
            String::from_utf8_lossy(text).into_owned()
        }
        _ => format!("{frame:?}"),
    }
}

fn status(client: &mut Client) -> BTreeMap<String, Reply> {
    let Reply::Array(entries) = call(client, "TM.AUDIT STATUS") else { panic!("no map") };
    entries.chunks(2).map(|pair| (word(&pair[0]), pair[1].clone())).collect()
}

fn number(status: &BTreeMap<String, Reply>, name: &str) -> u64 {
    let Reply::Integer(number) = status[name] else { panic!("{name} of {status:?}") };
    number.unsigned_abs()
}

fn state(client: &mut Client) -> String {
    word(&status(client)["state"])
}

/// Runs an audit to its end and returns its status.
fn audit(client: &mut Client, options: &str) -> BTreeMap<String, Reply> {
    let started = call(client, &format!("TM.AUDIT like {options}"));
    assert_eq!(word(&started), "Audit started");
    let began = Instant::now();
    while state(client) == "running" {
        assert!(began.elapsed().as_secs() < 600, "{:?}", status(client));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let status = status(client);
    assert_eq!(word(&status["state"]), "done", "{status:?}");
    status
}

/// Sends one command per post, and waits for all replies.
fn for_each_post(client: &mut Client, posts: u64, command: impl Fn(u64) -> Vec<Vec<u8>>) {
    let mut open = 0;
    for post in 0..posts {
        let words = command(post);
        client.push(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        open += 1;
        if open == 500 || post + 1 == posts {
            client.send().unwrap();
            for _ in 0..std::mem::take(&mut open) {
                let reply = client.reply().unwrap();
                assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
            }
        }
    }
}

/// Likes and unlikes until `is_over`. Returns the number of changes.
fn load(program: &Program, posts: u64, seed: u64, is_over: &AtomicBool) -> u64 {
    let (mut client, mut random) = (program.client(), fastrand::Rng::with_seed(seed));
    let mut changes = 0;
    while !is_over.load(Relaxed) {
        for _ in 0..20 {
            // Half of the changes fall on few posts.
            let post = if random.bool() { random.u64(..posts) } else { random.u64(..posts.min(9)) };
            let command: &[u8] = if random.bool() { b"FEED.ACT" } else { b"FEED.UNDO" };
            let (member, post) = (text(random.u64(LOAD_MEMBERS)), text(FIRST + post));
            client.push(&[command, b"like", &member, &post]);
        }
        if client.send().is_err() {
            return changes;
        }
        for _ in 0..20 {
            let Ok(Reply::Array(replies)) = client.reply() else { return changes };
            changes += u64::from(replies == [Reply::Integer(1)]);
        }
    }
    changes
}

/// Runs `work` while two clients change likes.
fn under_load<T>(program: &Program, posts: u64, work: impl FnOnce() -> T) -> T {
    let (is_over, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (is_over, changes) = (&is_over, &changes);
            scope.spawn(move || {
                changes.fetch_add(load(program, posts, seed, is_over), Relaxed);
            });
        }
        let done = work();
        is_over.store(true, Relaxed);
        done
    })
}

#[test]
fn audit_finds_and_repairs_exactly_the_spoiled_counters() {
    let likes = seeds::given("TIDEMARK_STEPS").unwrap_or(60_000);
    let posts = likes / LIKES_PER_POST;
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path(), "everysec");
    let mut client = program.client();
    for member in 0..LIKES_PER_POST {
        for_each_post(&mut client, posts, |post| {
            vec![
                b"FEED.ACT".into(),
                b"like".into(),
                text(member * 7 + post % 3),
                text(FIRST + post),
            ]
        });
    }
    let step = (posts / (likes / 1000)).max(1);
    let spoiled: BTreeSet<u64> = (0..posts).step_by(step as usize).map(|n| FIRST + n).collect();
    let all = spoiled.len() as u64;
    let spoil = |client: &mut Client| {
        for_each_post(client, posts, |post| match spoiled.contains(&(FIRST + post)) {
            true => {
                let key = [&b"post:"[..], &text(FIRST + post)].concat();
                vec![b"HINCRBY".into(), key, b"like".into(), b"3".into()]
            }
            false => vec![b"PING".into()],
        });
    };
    assert_eq!(number(&audit(&mut client, "RATE 0"), "differing"), 0);
    spoil(&mut client);
    let found = under_load(&program, posts, || {
        let began = Instant::now();
        let found = audit(&mut client, "RATE 0");
        let (pairs, took) = (number(&found, "pairs"), began.elapsed().as_secs_f64());
        eprintln!("{pairs} pairs in {took:.2} s, {:.0} per second", pairs as f64 / took);
        found
    });
    let counts = ["differing", "drift", "unreadable"].map(|name| number(&found, name));
    assert_eq!(counts, [all, 3 * all, 0], "{found:?}");
    let Reply::Array(examples) = &found["examples"] else { panic!("{found:?}") };
    for example in examples {
        let Reply::Array(words) = example else { panic!("{example:?}") };
        let [Reply::Integer(counter), Reply::Integer(members)] = words[1..] else {
            panic!("{example:?}")
        };
        assert!(spoiled.contains(&word(&words[0]).parse().unwrap()), "{example:?}");
        assert_eq!(counter, members + 3);
    }
    // A kill in the middle of a repair, twice.
    let mut repaired = 0;
    for _ in 0..2 {
        under_load(&program, posts, || {
            call(&mut client, "TM.AUDIT like REPAIR RATE 2000");
            until("some counters are repaired", || number(&status(&mut client), "repaired") > 0);
        });
        repaired = number(&status(&mut client), "repaired").max(repaired);
        program.kill();
        program = Program::start(folder.path(), "everysec");
        client = program.client();
    }
    under_load(&program, posts, || {
        let last = audit(&mut client, "REPAIR RATE 0");
        assert_eq!(number(&last, "differing"), number(&last, "repaired"), "{last:?}");
        assert!(number(&last, "differing") <= all && repaired > 0);
        assert_eq!(number(&audit(&mut client, "RATE 0"), "differing"), 0);
    });
    digests_equal_those_of_postgres(&mut client, posts);
}

/// Compares the digests with those of a table that has the same likes, by the query of
/// docs/audit.md.
fn digests_equal_those_of_postgres(client: &mut Client, posts: u64) {
    for member in LOAD_MEMBERS {
        for_each_post(client, posts, |post| {
            vec![b"FEED.UNDO".into(), b"like".into(), text(member), text(FIRST + post)]
        });
    }
    call(client, &format!("FEED.ACT like ann {}", FIRST + 7));
    let Some(postgres) = Postgres::start() else { return cannot("needs PostgreSQL") };
    let mut rows = "CREATE TABLE likes (post_id bigint, user_id text);\n\
                    COPY likes FROM STDIN WITH (DELIMITER ',');\n"
        .to_owned();
    for post in 0..posts {
        for member in 0..LIKES_PER_POST {
            let _ = writeln!(rows, "{},{}", FIRST + post, member * 7 + post % 3);
        }
    }
    let _ = writeln!(rows, "{},ann\n\\.", FIRST + 7);
    postgres.query(&rows);
    let documentation = include_str!("../../../docs/audit.md");
    let (_, query) = documentation.split_once("```sql\n").unwrap();
    let (query, _) = query.split_once("```").unwrap();
    let last = FIRST + posts - 1;
    let query = query
        .replace("1001 + (post_id - 1001)", &format!("{FIRST} + (post_id - {FIRST})"))
        .replace("/ 100 * 100", "/ 1000 * 1000")
        .replace("BETWEEN 1001 AND 2000", &format!("BETWEEN {FIRST} AND {last}"));
    let Reply::Array(ranges) =
        call(client, &format!("TM.AUDIT DIGEST like FROM {FIRST} TO {last} STEP 1000"))
    else {
        panic!("no array")
    };
    let mut ours = String::new();
    for range in &ranges {
        let Reply::Array(range) = range else { panic!("{range:?}") };
        let Reply::Integer(pairs) = range[2] else { panic!("{range:?}") };
        let _ = writeln!(ours, "{}|{pairs}|{}", word(&range[0]), word(&range[3]));
    }
    assert!(ranges.len() as u64 == posts.div_ceil(1000) && posts > 0);
    assert_eq!(postgres.query(&query), ours);
}
