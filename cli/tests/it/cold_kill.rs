//! Kills the real binary (SIGKILL) during a spill of flags and during a merge of late flags. After
//! the restart, every acknowledged change of a pair is present, and unfinished files are deleted.
//!
//! `TIDEMARK_RUNS` (default 6, half of them in spills) sets the number of runs; further runs follow
//! until kills have hit both a spill and a merge. `TIDEMARK_SEED` sets the seed.

use client::{Client, Reply};
use harness::program::{Program, count, rounds, text};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Id of the first post. `LIKES`: likes per post.
const FIRST: u64 = 1_000_000;
const LIKES: u64 = 20;
/// First member that likes posts after the spill. Pairs of this and higher members are late.
const LATE: u64 = 1_000_000;

/// Whether each (post, member) is set, or `None` if the server was killed before its reply.
type Truth = BTreeMap<(u64, u64), Option<bool>>;

fn start(dir: &Path) -> Program {
    // A thousand late pairs trigger a merge, which takes half a second.
    let text = "[durability]\nfsync = \"always\"\nsnapshot_every = 0\n[spill]\n\
                cache = 100_000\nmerge_rate = 500_000\n[[existence]]\n\
                name = \"liked\"\npairs = \"liked:{id}\"\nspill = true\npairs_per_table = 100_000\n\
                max_tables = 2\n[[view]]\nname = \"home\"\ncounters = [\"post\"]\n\
                flags = [\"liked\"]\n[[action]]\nname = \"like\"\nflag = \"liked\"\n\
                counter = \"post.like\"\n";
    Program::start_with(dir, text)
}

fn unfinished(dir: &Path) -> usize {
    let names =
        std::fs::read_dir(dir.join("data")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".tcold.tmp")).count()
}

/// Sets or unsets pairs until there are no more changes, or until the server exits. Returns the
/// resulting state.
fn write(port: u16, changes: impl Iterator<Item = ((u64, u64), bool)>) -> Truth {
    let mut told = Truth::new();
    let mut changes = changes.peekable();
    let Ok(mut client) = Client::connect(("127.0.0.1", port)) else { return told };
    while changes.peek().is_some() {
        let some: Vec<_> = changes.by_ref().take(200).collect();
        for &((post, member), set) in &some {
            let verb: &[u8] = if set { b"PH.ADD" } else { b"PH.DEL" };
            client.push(&[verb, b"liked", &text(member), &text(post)]);
            told.insert((post, member), None);
        }
        for (pair, set) in some {
            match client.reply() {
                Ok(Reply::Array(done)) => match &done[..] {
                    [Reply::Integer(_)] => _ = told.insert(pair, Some(set)),
                    // A refused change leaves the earlier state, which this function does not know.
                    [Reply::Error(why)] if why.starts_with("OOM") => {}
                    other => panic!("{other:?}"),
                },
                Ok(other) => panic!("{other:?}"),
                Err(_) => return told,
            }
        }
    }
    told
}

/// Checks one in `some` pairs, all late pairs, and all pairs with an unknown state. Records the
/// states that the server returns.
fn verify(program: &Program, truth: &mut Truth, some: usize) {
    let mut client = program.client();
    let (mut pairs, mut number) = (Vec::new(), 0);
    for (pair, known) in &*truth {
        number += 1;
        if number % some == 0 || known.is_none() || pair.1 >= LATE {
            pairs.push(*pair);
        }
    }
    for some in pairs.chunks(500) {
        for (post, member) in some {
            client.push(&[b"PH.EXISTS", b"liked", &text(*member), &text(*post)]);
        }
        for pair in some {
            let Reply::Array(flags) = client.reply().unwrap() else { panic!("no flags") };
            let is_set = flags[0] == Reply::Integer(1);
            let known = truth.insert(*pair, Some(is_set)).flatten();
            assert!(
                known.is_none_or(|known| known == is_set),
                "{pair:?}: expected {known:?}, found {is_set}"
            );
        }
    }
}

#[test]
fn flags_survive_a_kill_in_the_middle_of_a_spill_and_of_a_merge() {
    let (rounds, seed) = rounds(6);
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let (mut truth, mut next_post) = (Truth::new(), FIRST);
    let mut in_the_middle = [0, 0];
    let begun = start(folder.path());
    // Fill the first table, which is small, so that later tables have full size.
    let fresh =
        |from: u64| (from..).flat_map(|post| (0..LIKES).map(move |member| ((post, member), true)));
    truth.extend(write(begun.port, fresh(next_post).take(150_000)));
    next_post += 150_000 / LIKES;
    begun.kill();
    // Up to ten attempts per run: on a fast disk, most files are complete before the kill.
    for round in 0..10 * rounds {
        if round >= rounds && !in_the_middle.contains(&0) {
            break;
        }
        let program = start(folder.path());
        assert_eq!(unfinished(folder.path()), 0, "a start removes partial files");
        verify(&program, &mut truth, 10);
        let is_merge = round % 2 == 1;
        let pause = Duration::from_micros(rng.u64(..if is_merge { 600_000 } else { 1_000 }));
        let port = program.port;
        let late: Vec<_> = truth
            .iter()
            .filter(|(pair, _)| pair.0 < next_post - 10_000)
            .map(|(p, s)| (*p, *s))
            .collect();
        let late: Vec<((u64, u64), bool)> = (0..3000u64)
            .map(|n| match (rng.choice(&late), rng.bool()) {
                (Some((pair, Some(set))), true) => (*pair, !set),
                _ => (
                    (FIRST + rng.u64(..next_post - FIRST - 5_000), LATE + round * 10_000 + n),
                    true,
                ),
            })
            .collect();
        let told = std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                if is_merge {
                    write(port, late.into_iter())
                } else {
                    write(port, fresh(next_post).take(1_000_000))
                }
            });
            let began = Instant::now();
            while unfinished(folder.path()) == 0 && began.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_micros(20));
            }
            std::thread::sleep(pause);
            program.kill();
            writer.join().unwrap()
        });
        in_the_middle[usize::from(is_merge)] += usize::from(unfinished(folder.path()) > 0);
        next_post = next_post.max(told.keys().map(|pair| pair.0 + 1).max().unwrap_or(0));
        eprintln!(
            "round {round}: {} pairs written, killed {pause:?} after a file was created",
            told.len()
        );
        truth.extend(told);
    }
    eprintln!(
        "{} pairs; killed during {} spills and {} merges",
        truth.len(),
        in_the_middle[0],
        in_the_middle[1]
    );
    assert!(in_the_middle.iter().all(|&n| n > 0), "{in_the_middle:?}");
    let program = start(folder.path());
    verify(&program, &mut truth, 1);
    let mut client = program.client();
    // Spill the remaining tables. No late pairs may remain in memory.
    client.call(&[b"TM.SPILL", b"liked", b"100"]).unwrap();
    assert!(count(&mut client, "cold_files") >= 3 && count(&mut client, "spill_failures") == 0);
    assert_eq!(count(&mut client, "overlay_pairs"), 0);
    verify(&program, &mut truth, 1);
    assert!(program.terminate().success());
    let report = store::check(&store::RealDisk::open(folder.path().join("data")).unwrap()).unwrap();
    assert_eq!(report.severity(), store::Severity::Good, "{:?}", report.findings);
}
