//! The real program with exact likes: likes of posts by Zipf's law, each sent twice, the second
//! time when the first is on the disk, killed (SIGKILL) five times. In the end each counter is the
//! number of distinct members that were sent, and the members of posts are those.
//!
//! `TIDEMARK_STEPS`: likes (default 60,000; 100,000,000 before a release), and `TIDEMARK_SEED`.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the report")]

use harness::program::{Program, call, refusal, rounds};
use node::client::Client;
use redis_protocol::resp2::types::OwnedFrame;
use std::collections::VecDeque;
use std::path::Path;

const KILLS: u64 = 5;
/// Likes that are sent before their replies are read.
const BATCH: usize = 4096;
/// Ids begin here.
const FIRST: u64 = 1 << 40;
/// Posts of which the members are listed in the end.
const LISTED: u64 = 1000;

const CONFIG: &str = r#"
[[counter]]
name = "post"
fields = "like:16"
rows = "post:{id}"
[[existence]]
name = "liked"
pairs = "liked:{id}"
ledger = "exact"
spill = true
max_revoked = 16
[[view]]
name = "home"
counters = ["post.like"]
flags = ["liked"]
[[action]]
name = "like"
flag = "liked"
counter = "post.like"
"#;

fn start(dir: &Path) -> Program {
    Program::start_with(dir, CONFIG)
}

/// A like: the post's number and the member.
type Like = (u32, u32);

fn push(client: &mut Client, likes: &[Like]) {
    for (post, member) in likes {
        let (id, member) = ((FIRST + u64::from(*post)).to_string(), member.to_string());
        client.push(&[b"FEED.ACT", b"like", member.as_bytes(), id.as_bytes()]);
    }
}

/// Sends some likes, and gives how many of them counted; none if the server is gone.
fn send(client: &mut Client, likes: &[Like]) -> Option<i64> {
    push(client, likes);
    let mut counted = 0;
    for _ in likes {
        match client.reply().ok()? {
            OwnedFrame::Array(replies) => match &replies[..] {
                [OwnedFrame::Integer(done)] => counted += done,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
    Some(counted)
}

/// Zipf's law with exponent 1, of so many posts; their numbers say nothing of their ranks.
fn some_like(rng: &mut fastrand::Rng, posts: u32, members: u32) -> Like {
    let rank = f64::from(posts).powf(rng.f64()) as u64;
    let post = rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % u64::from(posts);
    (post as u32, rng.u32(0..members))
}

fn integer(frame: &OwnedFrame) -> i64 {
    match frame {
        OwnedFrame::BulkString(text) => String::from_utf8_lossy(text).parse().unwrap(),
        OwnedFrame::Null => 0,
        other => panic!("{other:?}"),
    }
}

/// Each counter is the number of its members, and listed members are those that were sent.
fn check(client: &mut Client, sent: &[Like], posts: u32) {
    let mut counts = vec![0i64; posts as usize];
    sent.iter().for_each(|(post, _)| counts[*post as usize] += 1);
    for (first, counts) in (0..).step_by(BATCH).zip(counts.chunks(BATCH)) {
        for at in 0..counts.len() as u64 {
            let key = format!("post:{}", FIRST + first + at);
            client.push(&[b"HGET", key.as_bytes(), b"like"]);
        }
        for (at, count) in counts.iter().enumerate() {
            let counted = integer(&client.reply().unwrap());
            assert_eq!(counted, *count, "likes of post number {}", first + at as u64);
        }
    }
    // Some from everywhere, the most popular ones among them: those are where likes lie closest.
    for number in 0..LISTED {
        let post = sent[(number as usize * (sent.len() / LISTED as usize)).min(sent.len() - 1)].0;
        let from = sent.partition_point(|like| like.0 < post);
        let members = sent[from..].iter().take_while(|like| like.0 == post).map(|like| like.1);
        let OwnedFrame::Array(listed) =
            call(client, &format!("SMEMBERS liked:{}", FIRST + u64::from(post)))
        else {
            panic!("SMEMBERS of post number {post}")
        };
        let listed = listed.iter().map(|member| integer(member) as u32);
        assert!(listed.eq(members), "members of post number {post}");
    }
}

#[test]
fn every_counter_is_the_number_of_its_members_after_kills() {
    let (_, seed) = rounds(1);
    let wanted = std::env::var("TIDEMARK_STEPS").map_or(60_000, |n| n.parse::<usize>().unwrap());
    let posts = u32::try_from(wanted / 50).unwrap();
    let members = u32::try_from((wanted / 10).max(5000)).unwrap();
    // So many likes later they are on the disk: by their number, or because the test asks for it.
    let later = (wanted / 20).clamp(BATCH, 4_000_000) / BATCH;
    let is_small = wanted < 20_000_000;
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut program = start(folder.path());
    let mut client = program.client();
    let batches = wanted / BATCH;
    let mut sent: Vec<Like> = Vec::with_capacity(batches * BATCH);
    let mut again: VecDeque<(usize, usize)> = VecDeque::new();
    let (mut kills, mut resent) = (0, 0);
    let mut round = |program: &mut Program, client: &mut Client, likes: &[Like], dies: bool| {
        if dies {
            // Somewhere in these likes.
            push(client, likes);
            (0..likes.len() / 2).for_each(|_| _ = client.reply());
            program.sigkill();
            *program = start(folder.path());
            *client = program.client();
            kills += 1;
        }
        send(client, likes).expect("the server lives")
    };
    for batch in 0..batches {
        let from = sent.len();
        sent.extend((0..BATCH).map(|_| some_like(&mut rng, posts, members)));
        let dies = (batch + 1) % (batches / KILLS as usize + 1) == 0;
        round(&mut program, &mut client, &sent[from..], dies);
        again.push_back((from, sent.len()));
        if is_small && batch % later == 0 {
            assert_eq!(refusal(&call(&mut client, "TM.SPILL liked")), "");
        }
        while again.len() > later || (batch + 1 == batches && !again.is_empty()) {
            let (from, to) = again.pop_front().unwrap();
            let done = round(&mut program, &mut client, &sent[from..to], false);
            assert_eq!(done, 0, "a repeated like has counted");
            resent += to - from;
        }
    }
    assert_eq!((kills, resent), (KILLS - 1, sent.len()), "kills and likes that were sent twice");
    let sends = 2 * sent.len();
    sent.sort_unstable();
    sent.dedup();
    check(&mut client, &sent, posts);
    let OwnedFrame::BulkString(info) = call(&mut client, "INFO spaces") else { panic!("INFO") };
    let info = String::from_utf8_lossy(&info).into_owned();
    let line = info.lines().find(|line| line.starts_with("ledger_liked:")).unwrap();
    // After a last start, too.
    program.sigkill();
    program = start(folder.path());
    check(&mut program.client(), &sent, posts);
    println!(
        "{sends} likes sent, {} distinct, {} kills; since the last kill but one: {line}",
        sent.len(),
        KILLS
    );
    assert!(line.contains("asked=") && !line.contains("asked=0,"), "no like was asked twice");
}
