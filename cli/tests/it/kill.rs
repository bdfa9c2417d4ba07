//! The real program, killed (SIGKILL) under load, again and again: with `--fsync always` every
//! acknowledged like is there after the restart, and no crash parts a flag from its counter.
//! Snapshots are taken in between.
//!
//! `TIDEMARK_RUNS` (default 8; 200 before a release) and `TIDEMARK_SEED`.

use harness::program::{
    FIRST, Likes, POSTS, Program, acknowledged, call, check, like_from, refusal, rounds,
    rounds_at_least, text, until,
};
use node::client::Client;
use redis_protocol::resp2::types::OwnedFrame;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Rounds that like the same posts. What older ones left is checked era by era, so that a round
/// costs the same however many there were.
const ERA: u64 = 10;

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let (rounds, seed) = rounds_at_least(8, 8);
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut eras: Vec<Likes> = vec![];
    let (mut snapshots, mut all) = (0, 0);
    for round in 0..rounds {
        let program = Program::start(folder.path(), "always");
        let port = program.port;
        if let Some(now) = eras.last() {
            check(port, now);
            check(port, &eras[rng.usize(0..eras.len())]);
        }
        if round % ERA == 0 {
            eras.push(Likes::new());
        }
        let first_post = FIRST + (eras.len() as u64 - 1) * POSTS * 4096;
        let pause = Duration::from_millis(rng.u64(1..400));
        let seeds = [rng.u64(..), rng.u64(..)];
        let fresh: Vec<Likes> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..2)
                .map(|i| {
                    let first_member = (round * 2 + i) * 1_000_000 + 1;
                    s.spawn(move || {
                        let how = (100, seeds[i as usize]);
                        like_from(port, first_post, first_member, how, |words| panic!("{words}"))
                    })
                })
                .collect();
            if round % 3 == 1 {
                s.spawn(move || {
                    // The kill may come first.
                    let _ =
                        Client::connect(("127.0.0.1", port)).and_then(|mut c| c.call(&[b"BGSAVE"]));
                });
            }
            std::thread::sleep(pause);
            program.kill();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        snapshots += u64::from(
            std::fs::read_dir(folder.path())
                .unwrap()
                .any(|e| e.unwrap().file_name().to_string_lossy().ends_with(".tsnap")),
        );
        for fresh in fresh {
            let (sent, kept) = (fresh.len(), acknowledged(&fresh));
            eprintln!("round {round}: {sent} sent, {kept} acknowledged, killed after {pause:?}");
            all += kept as u64;
            eras.last_mut().unwrap().extend(fresh);
        }
    }
    let program = Program::start(folder.path(), "always");
    eras.iter().for_each(|likes| drop(check(program.port, likes)));
    assert!(
        all > rounds * 10 && snapshots > 0,
        "the test did not do much: {all} likes, {snapshots} starts from a snapshot"
    );
    eprintln!("{all} acknowledged likes, none lost; {snapshots} starts had a snapshot");
}

#[test]
fn a_clean_end_loses_nothing_whatever_the_policy() {
    for fsync in ["no", "everysec"] {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Program::start(folder.path(), fsync);
        let mut client = Client::connect(("127.0.0.1", program.port)).unwrap();
        for i in 0..500 {
            client.push(&[b"FEED.ACT", b"like", &text(i), &text(FIRST)]);
        }
        (0..500).for_each(|_| drop(client.reply().unwrap()));
        assert!(client.call(&[b"SHUTDOWN"]).is_err(), "the connection ends without a reply");
        assert!(program.child.wait().unwrap().success());
        let again = Program::start(folder.path(), fsync);
        let all = (0..500).map(|member| ((FIRST, member), true)).collect();
        check(again.port, &all);
        // The same folder, a second time: refused, and the first goes on.
        let second = Command::new(harness::program())
            .args(["serve", "--port", "0", "--dir"])
            .arg(folder.path())
            .output()
            .unwrap();
        assert!(!second.status.success());
        assert!(String::from_utf8_lossy(&second.stderr).contains("in use by another process"));
        check(again.port, &all);
    }
}

/// A server of which the filters are as those of others, and close soon.
fn site(dir: &Path) -> Program {
    let text = "[durability]\nfsync = \"always\"\n[[counter]]\nname = \"post\"\n\
                fields = \"like:12 repost:8 comment:8 read:16\"\nrows = \"post:{id}\"\n\
                [[existence]]\nname = \"liked\"\nseed = 7\nspill = false\n\
                pairs_per_table = 16_000\n[[view]]\nname = \"home\"\ncounters = [\"post\"]\n\
                flags = [\"liked\"]\n[[action]]\nname = \"like\"\nflag = \"liked\"\n\
                counter = \"post.like\"\n";
    Program::start_with(dir, text)
}

/// Likes posts from `from` on, each a little higher than the one before, until the connection
/// breaks, or `most` are liked. Gives what was sent, and what was acknowledged.
fn like_on(port: u16, from: u64, first_member: u64, most: usize) -> Likes {
    let mut likes = Likes::new();
    let Ok(mut client) = Client::connect(("127.0.0.1", port)) else { return likes };
    for first in (0..).step_by(20) {
        let some: Vec<(u64, u64)> =
            (first..first + 20).map(|n| (from + n / 40, first_member + n)).collect();
        for &(post, member) in &some {
            client.push(&[b"FEED.ACT", b"like", &text(member), &text(post)]);
        }
        likes.extend(some.iter().map(|&like| (like, false)));
        for like in some {
            match client.reply() {
                Ok(OwnedFrame::Array(items)) => {
                    likes.insert(like, items[0] == OwnedFrame::Integer(1));
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => return likes,
            }
        }
        if likes.len() >= most {
            break;
        }
    }
    likes
}

/// Where the tables of a server begin, and what they hold.
fn digests(client: &mut Client) -> Option<Vec<(u64, OwnedFrame)>> {
    let OwnedFrame::Array(tables) = client.call(&[b"TM.DIGEST", b"liked"]).ok()? else {
        return None;
    };
    let of = |table: &OwnedFrame| {
        let OwnedFrame::Array(fields) = table else { panic!("{table:?}") };
        let field = |name: &[u8]| {
            let at = fields
                .iter()
                .position(|field| matches!(field, OwnedFrame::BulkString(text) if text == name));
            fields[at.unwrap() + 1].clone()
        };
        let low = match field(b"low") {
            OwnedFrame::Integer(low) => low as u64,
            OwnedFrame::BulkString(low) => String::from_utf8(low).unwrap().parse().unwrap(),
            other => panic!("{other:?}"),
        };
        (low, field(b"digest"))
    };
    Some(tables.iter().map(of).collect())
}

/// Exports all tables of one server and merges them into another. Gives the tables' lowest ids that
/// were merged; stops when one of them is gone.
fn merge_all(from: &mut Client, to: &mut Client) -> BTreeSet<u64> {
    let mut merged = BTreeSet::new();
    let numbers: Vec<Vec<u8>> = (0..64).map(text).collect();
    for (low, _) in digests(from).unwrap_or_default() {
        let low_text = text(low);
        let words = [&b"TM.EXPORT"[..], b"liked", &low_text];
        let words: Vec<&[u8]> =
            words.into_iter().chain(numbers.iter().map(Vec::as_slice)).collect();
        let Ok(OwnedFrame::BulkString(blocks)) = from.call(&words) else { break };
        match to.call(&[b"TM.MERGE", b"liked", &blocks]) {
            Ok(OwnedFrame::Integer(_)) => drop(merged.insert(low)),
            // Its ids may not be there yet, or its table be another one.
            Ok(_) => {}
            Err(_) => break,
        }
    }
    merged
}

/// How many of them are not set, and one of those. `None`: the connection broke.
fn lost(client: &mut Client, likes: &BTreeSet<(u64, u64)>) -> Option<(usize, Option<(u64, u64)>)> {
    let mut lost = (0, None);
    let mut asked = likes.iter();
    for &like in likes {
        while !client.is_full() {
            let Some(&(post, member)) = asked.next() else { break };
            client.push(&[b"PH.EXISTS", b"liked", &text(member), &text(post)]);
        }
        if client.reply().ok()? != OwnedFrame::Array(vec![OwnedFrame::Integer(1)]) {
            lost = (lost.0 + 1, Some(like));
        }
    }
    Some(lost)
}

/// Another site's blocks are merged under load, and the server is killed in the middle, again and
/// again; its replica, too. What was acknowledged here, and what was acknowledged there, exported,
/// and acknowledged as merged, is found after each start, and the replica has the same filters, bit
/// by bit.
#[test]
fn nothing_merged_is_lost_by_kill_9() {
    let (rounds, seed) = rounds(6);
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let [master_dir, replica_dir, there_dir] =
        ["master", "replica", "there"].map(|name| folder.path().join(name));
    let there = site(&there_dir);
    let mut replica = site(&replica_dir);
    let (mut ours, mut merged, mut tables, mut merges) = (Likes::new(), BTreeSet::new(), 0, 0);
    for round in 0..=rounds {
        let master = site(&master_dir);
        let port = text(u64::from(master.port));
        assert_eq!(
            replica.client().call(&[b"REPLICAOF", b"127.0.0.1", &port]).unwrap(),
            OwnedFrame::SimpleString(b"OK".to_vec())
        );
        let mut client = master.client();
        if round == 0 {
            // So many ids that it is known which are normal: else all would be kept aside, and be
            // in no block.
            let ids: Vec<String> = (FIRST - 200..FIRST).map(|id| id.to_string()).collect();
            call(&mut client, &format!("PH.ADD liked 1 {}", ids.join(" ")));
        }
        check(master.port, &ours);
        assert_eq!(lost(&mut client, &merged), Some((0, None)), "round {round}: merged, and lost");
        until("the replica has the same filters", || {
            let theirs = digests(&mut replica.client());
            theirs.is_some() && theirs == digests(&mut client)
        });
        assert_eq!(
            lost(&mut replica.client(), &merged),
            Some((0, None)),
            "round {round}: lost at the replica"
        );
        tables = digests(&mut client).unwrap().len();
        if round == rounds {
            break;
        }
        // The other site has its tables where we have them when it begins as a copy of us. What it
        // has of its own from before it gives up.
        let at = there.client().call(&[b"REPLICAOF", b"127.0.0.1", &port, b"FORCE"]).unwrap();
        assert_eq!(at, OwnedFrame::SimpleString(b"OK".to_vec()));
        until("the other site has the same filters", || {
            let theirs = digests(&mut there.client());
            theirs.is_some() && theirs == digests(&mut client)
        });
        // Its link is down, so both are masters.
        call(&mut there.client(), "REPLICAOF 127.0.0.1 1");
        call(&mut there.client(), "REPLICAOF NO ONE");
        let add = format!("PH.ADD liked 1 {FIRST}");
        until("the other site takes writes", || {
            refusal(&call(&mut there.client(), &add)).is_empty()
        });
        let (from, master_port, there_port) = (FIRST + round * 200, master.port, there.port);
        let member = |nth: u64| (round * 3 + nth + 1) * 1_000_000;
        let pause = Duration::from_millis(rng.u64(..400));
        let has_merged = &AtomicBool::new(false);
        let (fresh, done) = std::thread::scope(|scope| {
            let likes = scope.spawn(move || like_on(master_port, from, member(0), usize::MAX));
            let merges = scope.spawn(move || {
                let mut done = (BTreeSet::new(), 0);
                let mut clients = [there_port, master_port]
                    .map(|port| Client::connect(("127.0.0.1", port)).unwrap());
                for step in 0.. {
                    // New likes of posts of before and of now, there.
                    let posts = [from, from.saturating_sub(300).max(FIRST)];
                    let some = posts.map(|post| {
                        like_on(there_port, post, member(1) + step * 10_000 + post % 1000 * 10, 200)
                    });
                    let [there, here] = &mut clients;
                    let lows = merge_all(there, here);
                    if lows.is_empty() && here.call(&[b"PING"]).is_err() {
                        break;
                    }
                    let begins: BTreeSet<u64> =
                        digests(there).unwrap().iter().map(|table| table.0).collect();
                    let acknowledged =
                        some.iter().flatten().filter(|like| *like.1).map(|like| *like.0);
                    let is_merged = |like: &(u64, u64)| {
                        begins.range(..=like.0).next_back().is_some_and(|low| lows.contains(low))
                    };
                    let merged: BTreeSet<(u64, u64)> = acknowledged.filter(is_merged).collect();
                    assert_eq!(
                        lost(there, &merged),
                        Some((0, None)),
                        "round {round}, step {step}: there"
                    );
                    let found = lost(here, &merged);
                    assert!(
                        found.is_none_or(|lost| lost == (0, None)),
                        "round {round}, step {step}: {found:?}"
                    );
                    done.0.extend(merged);
                    done.1 += lows.len();
                    has_merged.store(done.1 > 0, SeqCst);
                }
                done
            });
            // However slow the machine is.
            until("something is merged", || has_merged.load(SeqCst) || merges.is_finished());
            std::thread::sleep(pause);
            if round % 3 == 2 {
                replica.sigkill();
            }
            master.kill();
            (likes.join().unwrap(), merges.join().unwrap())
        });
        eprintln!(
            "round {round}: {} liked, {} merged in {} merges, {tables} tables, killed after \
             {pause:?}",
            acknowledged(&fresh),
            done.0.len(),
            done.1
        );
        ours.extend(fresh);
        merged.extend(done.0);
        merges += done.1;
        if round % 3 == 2 {
            replica = site(&replica_dir);
        }
    }
    assert!(
        merges as u64 >= rounds && merged.len() as u64 > rounds * 50 && tables > 1,
        "{merges} merges, {} pairs, {tables} tables",
        merged.len()
    );
}

/// A replica's snapshot has the blocks that its master's log tells it of, though it has written
/// their table before. (`folder.rs` has the same of rows and pairs.)
#[test]
fn a_block_that_a_replica_is_told_of_is_in_its_next_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let [here, replica, there] =
        ["here", "replica", "there"].map(|name| site(&folder.path().join(name)));
    let mut client = here.client();
    let ids: Vec<String> = (FIRST - 200..FIRST).map(|id| id.to_string()).collect();
    call(&mut client, &format!("PH.ADD liked 1 {}", ids.join(" ")));
    let port = text(u64::from(here.port));
    // Clients are disconnected once, when the master's data take the place of its own.
    let mut in_step = |program: &Program| {
        until("it has the same filters", || {
            let theirs = digests(&mut program.client());
            theirs.is_some() && theirs == digests(&mut client)
        });
    };
    for program in [&replica, &there] {
        assert_eq!(
            refusal(&program.client().call(&[b"REPLICAOF", b"127.0.0.1", &port]).unwrap()),
            ""
        );
        in_step(program);
    }
    // Its link is down, so both are masters.
    call(&mut there.client(), "REPLICAOF 127.0.0.1 1");
    call(&mut there.client(), "REPLICAOF NO ONE");
    let mut other = there.client();
    let add = format!("PH.ADD liked 2 {}", FIRST - 1);
    until("the other site takes writes", || refusal(&call(&mut other, &add)).is_empty());
    let merged: BTreeSet<(u64, u64)> = (0..150).map(|n| (FIRST - 200 + n, 1_000 + n)).collect();
    for (post, member) in &merged {
        assert_eq!(refusal(&call(&mut other, &format!("PH.ADD liked {member} {post}"))), "");
    }
    // The first one writes everything, as it is not known what was aside; the second nothing of
    // this table.
    for _ in 0..2 {
        assert_eq!(refusal(&call(&mut replica.client(), "SAVE")), "");
    }
    assert_eq!(merge_all(&mut other, &mut here.client()).len(), 1);
    in_step(&replica);
    here.kill();
    assert_eq!(refusal(&call(&mut replica.client(), "SAVE")), "");
    replica.kill();
    let again = site(&folder.path().join("replica"));
    assert_eq!(lost(&mut again.client(), &merged), Some((0, None)));
}
