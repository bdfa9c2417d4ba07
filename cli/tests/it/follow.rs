//! Kills the real binary (SIGKILL) while eight clients make a few users follow and unfollow each
//! other. A follow changes three values under two stripes: a flag, one user's number of followers,
//! and the number of users that the other user follows. After each start, the three values are
//! consistent, and acknowledged changes are present.
//!
//! `TIDEMARK_RUNS` (default 10; 200 before a release) sets the number of runs, `TIDEMARK_SEED` the
//! seed.

use client::{Client, Reply};
use harness::program::{Program, call, refusal, rounds, text};
use harness::within;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const CLIENTS: u64 = 8;
/// Number of requests from all clients before a kill.
const ACTS: std::ops::Range<u64> = 50..1000;
/// Users that all clients change.
const SHARED: std::ops::Range<u64> = 1000..1006;
/// First of the users that a single client changes.
const OWN: u64 = 1006;

fn start(dir: &Path) -> Program {
    Program::start_with(dir, "[durability]\nfsync = \"always\"\nsnapshot_every = 0\n")
}

/// Users that a client's own user follows. A value is `None` if the last reply did not arrive.
type Own = BTreeMap<u64, Option<bool>>;

fn act(port: u16, number: u64, seed: u64, own: &mut Own, answered: &AtomicU64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let Ok(mut client) = Client::connect(("127.0.0.1", port)) else { return };
    loop {
        let is_own = rng.bool();
        let who = if is_own { OWN + number } else { rng.u64(SHARED) };
        // Sometimes a user follows two users at once, or follows itself.
        let mut whom = vec![rng.u64(SHARED)];
        if rng.u8(0..4) == 0 {
            whom.push(rng.u64(SHARED));
        }
        let follow = rng.u8(0..5) < 3;
        let verb: &[u8] = if follow { b"FEED.ACT" } else { b"FEED.UNDO" };
        let ids: Vec<Vec<u8>> = whom.iter().map(|id| text(*id)).collect();
        let member = text(who);
        let mut words: Vec<&[u8]> = vec![verb, b"follow", &member];
        words.extend(ids.iter().map(Vec::as_slice));
        if is_own {
            whom.iter().for_each(|id| _ = own.insert(*id, None));
        }
        client.push(&words);
        let Ok(reply) = client.reply() else { return };
        assert_eq!(refusal(&reply), "");
        answered.fetch_add(1, Relaxed);
        if is_own {
            whom.iter().for_each(|id| _ = own.insert(*id, Some(follow)));
        }
    }
}

fn row(client: &mut Client, id: u64) -> [i64; 2] {
    match call(client, &format!("HMGET user:{id} follower following")) {
        Reply::Array(values) => [&values[0], &values[1]].map(|value| match value {
            Reply::BulkString(text) => String::from_utf8_lossy(text).parse().unwrap(),
            Reply::Null => 0,
            other => panic!("{other:?}"),
        }),
        other => panic!("{other:?}"),
    }
}

fn check(client: &mut Client, own: &[Own], round: u64) {
    let all: Vec<u64> = (SHARED.start..OWN + CLIENTS).collect();
    let mut counts: BTreeMap<u64, [i64; 2]> = BTreeMap::new();
    for &who in &all {
        for &whom in &all {
            let reply = call(client, &format!("SISMEMBER follows:{whom} {who}"));
            let Reply::Integer(is_set) = reply else { panic!("{reply:?}") };
            counts.entry(whom).or_default()[0] += is_set;
            counts.entry(who).or_default()[1] += is_set;
            let number = who.checked_sub(OWN).map(|number| usize::try_from(number).unwrap());
            if let Some(known) = number.and_then(|number| own[number].get(&whom)).copied().flatten()
            {
                assert_eq!(is_set == 1, known, "round {round}: {who} follows {whom}");
            }
        }
    }
    for (id, counted) in counts {
        assert_eq!(row(client, id), counted, "round {round}: followers and followings of {id}");
    }
}

#[test]
fn flags_followers_and_followings_agree_after_kills() {
    let (rounds, seed) = rounds(10);
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut program = start(folder.path());
    for words in [
        // The false-positive rate is so low that no pair is a false positive.
        "TM.SPACE CREATE follows EXISTENCE pairs follows:{id} false_positive_rate 0.0000001",
        "TM.ACTION CREATE follow flag follows counter user.follower member_counters user.following",
    ] {
        assert_eq!(refusal(&call(&mut program.client(), words)), "", "{words}");
    }
    let mut own: Vec<Own> = vec![Own::new(); usize::try_from(CLIENTS).unwrap()];
    let mut acts = 0;
    for round in 0..rounds {
        let (port, began) = (program.port, rng.u64(..));
        let (answered, due) = (&AtomicU64::new(0), rng.u64(ACTS));
        std::thread::scope(|scope| {
            for (n, own) in (0..CLIENTS).zip(&mut own) {
                scope.spawn(move || act(port, n, began.wrapping_add(n), own, answered));
            }
            within(Duration::from_secs(60), "the clients have received replies", || {
                answered.load(Relaxed) >= due
            });
            program.sigkill();
        });
        acts += answered.load(Relaxed);
        if round % 5 == 4 {
            program = start(folder.path());
            assert_eq!(refusal(&program.ask("SAVE")), "");
            program.sigkill();
        }
        program = start(folder.path());
        check(&mut program.client(), &own, round);
    }
    println!("{rounds} rounds, each killed under load, {acts} replies");
}
