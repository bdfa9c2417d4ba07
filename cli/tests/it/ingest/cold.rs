//! Events for old posts, whose rows and flags are on disk.

use super::brokers::{Broker, Brokers, Redis};
use super::{field, offsets, serve_as, text};
use client::Reply;
use harness::program::call;
use harness::within;
use std::fmt::Write as _;
use std::time::Duration;

/// Number of rows, many times more than fit into memory.
const POSTS: u64 = 300_000;
const EVENTS_PER_MESSAGE: u64 = 100;
/// Number of events for old posts, which follow the events that create the posts.
const LATE: u64 = 20_000;

const SPACES: &str = "view = []
[[counter]]
name = \"post\"
fields = \"like:8 read:8\"
spill = true
rows_per_table = 10_000
memory_limit = 1_048_576
[[existence]]
name = \"liked\"
false_positive_rate = 1e-7
pairs_per_table = 20_000
max_tables = 3
spill = true
[[action]]
name = \"like\"
flag = \"liked\"
counter = \"post.like\"
";

fn event(n: u64) -> (u64, &'static str) {
    if n < 2 * POSTS {
        // Each new post is read once and liked by one member.
        return (n / 2, if n.is_multiple_of(2) { "read" } else { "like" });
    }
    let mixed = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24;
    let kind = ["read", "like", "unlike", "like again"][(mixed >> 20) as usize % 4];
    (mixed % POSTS, kind)
}

fn line(n: u64, out: &mut String) {
    let (id, kind) = event(n);
    let _ = match kind {
        "read" => writeln!(
            out,
            "{{\"event\":\"increment\",\"field\":\"post.read\",\"id\":{id},\"value\":1}}"
        ),
        "like again" => writeln!(out, "{{\"event\":\"like\",\"id\":{id},\"member\":9}}"),
        kind => writeln!(out, "{{\"event\":\"{kind}\",\"id\":{id},\"member\":7}}"),
    };
}

#[test]
fn rows_and_flags_on_the_disk_are_read_before_a_step() {
    let Some(brokers) = Brokers::<Redis>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let events = 2 * POSTS + LATE;
    let mut pipe = redis::pipe();
    for from in (0..events).step_by(EVENTS_PER_MESSAGE as usize) {
        let mut lines = String::new();
        (from..from + EVENTS_PER_MESSAGE).for_each(|n| line(n, &mut lines));
        pipe.cmd("XADD").arg(Redis::STREAM).arg("*").arg("payload").arg(lines).ignore();
    }
    pipe.query::<()>(&mut Redis::connection(broker.port).unwrap()).unwrap();
    let source = format!(
        "{SPACES}[[ingest]]\nname = \"events\"\nurl = \"{}\"\nstream = \"{}\"\n",
        broker.url(),
        Redis::STREAM
    );
    let server = serve_as(&folder.path().join("here"), 0, &source);
    within(Duration::from_secs(120), "all messages are processed", || {
        field(&server, "messages") == (events / EVENTS_PER_MESSAGE).to_string()
    });
    assert_eq!(offsets(&server).len(), 1);
    assert_eq!((field(&server, "poison"), field(&server, "unknown")), ("0".into(), "0".into()));
    let cold: u64 = server.info("cold_rows").parse().unwrap();
    assert!(cold > POSTS / 5, "{cold} rows are on disk");
    let mut rows = vec![([false; 2], 0i64); POSTS as usize];
    for (id, kind) in (0..events).map(event) {
        let (flags, reads) = &mut rows[id as usize];
        match kind {
            "read" => *reads += 1,
            "like" => flags[0] = true,
            "unlike" => flags[0] = false,
            _ => flags[1] = true,
        }
    }
    let mut client = server.client();
    for (id, (flags, reads)) in rows.into_iter().enumerate().step_by(37) {
        let Reply::Array(found) = call(&mut client, &format!("CNT.GET post {id}")) else {
            panic!("no row")
        };
        let Reply::Array(values) = &found[0] else { panic!("{id}: {found:?}") };
        let likes = flags.iter().filter(|flag| **flag).count();
        let values: Vec<String> = values.iter().map(text).collect();
        assert_eq!(values, [likes.to_string(), reads.to_string()], "{id}");
    }
}
