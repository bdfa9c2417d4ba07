//! Tests increments with tokens. Several clients resend increments until they receive a reply,
//! while the test kills the master (SIGKILL) repeatedly and its replica takes over. Afterwards, the
//! clients send all increments again, and the test kills the new master. Each increment must be
//! applied exactly once.
//!
//! With `always`, a kill loses no acknowledged write, but a failover may lose some, because
//! replication is asynchronous. Sending all increments again restores the lost increments, because
//! a token and its increment are written atomically.
//!
//! `TIDEMARK_RUNS` sets the number of increments in thousands (default 8; 1000 before a release).

use client::{Client, Reply};
use harness::program::{FIRST, Program, call, count, refusal, rounds, until};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 4;
/// Number of rows. The number is small, so that several clients change the same row.
const ROWS: u64 = 500;
/// Number of increments that a client sends before it reads their replies.
const INCREMENTS_PER_BATCH: u64 = 100;
const RETRY: Duration = Duration::from_millis(20);

/// Starts a server on the given port; 0 selects a free port.
fn serve(dir: &Path, port: u16) -> Program {
    std::fs::create_dir_all(dir).unwrap();
    let config = dir.join("tidemark.toml");
    // The limit has a margin, because the shards of the token table do not fill evenly.
    let text = "[durability]\nfsync = \"always\"\nsnapshot_log = 4_000_000\n[replication]\n\
                fence = false\n[tokens]\nmax_tokens = 4_000_000\n";
    std::fs::write(&config, text).unwrap();
    let port = port.to_string();
    let options = ["--config", config.to_str().unwrap(), "--port", &port];
    Program::start_as(&[], &dir.join("data"), &options)
        .unwrap_or_else(|said| panic!("the server did not start: {said:#?}"))
}

fn row(n: u64) -> u64 {
    FIRST + n.wrapping_mul(7919) % ROWS * 4096
}

/// Returns the requests of the n-th increment, and the changes of its rows (like, repost, comment,
/// read).
fn increment(n: u64) -> (Vec<String>, Vec<(u64, [i64; 4])>) {
    let (id, other) = (row(n), row(n + 1));
    match n % 4 {
        0 => (
            vec![format!("CNT.INCRBY post {id} like 1 read 3 TOKEN t{n}")],
            vec![(id, [1, 0, 0, 3])],
        ),
        1 => (
            vec![format!("CNT.MINCRBY post {id} like 2 {other} comment 1 TOKEN t{n}")],
            vec![(id, [2, 0, 0, 0]), (other, [0, 0, 1, 0])],
        ),
        2 => {
            (vec![format!("CNT.HINCRBY post:{id} repost -1 TOKEN t{n}")], vec![(id, [0, -1, 0, 0])])
        }
        _ => (
            vec![
                "MULTI".to_owned(),
                format!("CNT.INCRBY post {id} like 1 TOKEN t{n}"),
                format!("CNT.HINCRBY post:{other} read 5 TOKEN t{n}"),
                "EXEC".to_owned(),
            ],
            vec![(id, [1, 0, 0, 0]), (other, [0, 0, 0, 5])],
        ),
    }
}

/// Returns whether a reply contains a temporary error. Panics on any other error.
fn is_refused(reply: &Reply) -> bool {
    match reply {
        Reply::Array(parts) => parts.iter().any(is_refused),
        Reply::Error(text) => {
            assert!(!text.starts_with("ERR"), "{text}");
            true
        }
        _ => false,
    }
}

fn send(port: &AtomicU16, mut from: u64, to: u64, answered: &AtomicU64) {
    'connection: while from < to {
        std::thread::sleep(RETRY);
        let Ok(mut client) = Client::connect(("127.0.0.1", port.load(SeqCst))) else { continue };
        while from < to {
            let until = to.min(from + INCREMENTS_PER_BATCH);
            let requests: Vec<String> = (from..until).flat_map(|n| increment(n).0).collect();
            for request in &requests {
                let words: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
                client.push(&words);
            }
            let mut refused = false;
            for _ in &requests {
                let Ok(reply) = client.reply() else { continue 'connection };
                refused |= is_refused(&reply);
            }
            if refused {
                continue 'connection;
            }
            answered.fetch_add(until - from, SeqCst);
            from = until;
        }
    }
}

fn counters(client: &mut Client, expected: &BTreeMap<u64, [i64; 4]>) -> BTreeMap<u64, [i64; 4]> {
    let row = |id: &u64| {
        let Reply::Array(rows) = call(client, &format!("CNT.GET post {id}")) else {
            panic!("no row")
        };
        let Reply::Array(values) = &rows[0] else { return (*id, [0; 4]) };
        let values: Vec<i64> = values
            .iter()
            .map(|value| match value {
                Reply::Integer(value) => *value,
                other => panic!("{other:?}"),
            })
            .collect();
        (*id, values.try_into().unwrap())
    };
    expected.keys().map(row).collect()
}

#[test]
fn what_is_sent_twice_counts_once_whatever_is_killed() {
    let all = rounds(8).0 * 1000;
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
    let mut master = serve(&here, 0);
    let replica = serve(&there, 0);
    let (first_port, replica_port) = (master.port, replica.port);
    call(&mut replica.client(), &format!("REPLICAOF 127.0.0.1 {first_port}"));
    let mut expected: BTreeMap<u64, [i64; 4]> = BTreeMap::new();
    for (id, moves) in (0..all).flat_map(|n| increment(n).1) {
        let row = expected.entry(id).or_default();
        row.iter_mut().zip(moves).for_each(|(sum, delta)| *sum += delta);
    }
    let port = &AtomicU16::new(first_port);
    let answered = &AtomicU64::new(0);
    let share = all / CLIENTS;
    let reached = |part: u64| {
        until_long("increments have replies", || answered.load(SeqCst) >= all * part / 10);
    };
    let senders = |scope: &mut dyn FnMut(u64, u64)| {
        (0..CLIENTS).for_each(|n| {
            let to = if n == CLIENTS - 1 { all } else { (n + 1) * share };
            scope(n * share, to);
        });
    };
    let began = Instant::now();
    let mut replica = std::thread::scope(|scope| {
        senders(&mut |from, to| _ = scope.spawn(move || send(port, from, to, answered)));
        for part in [1, 3, 5] {
            reached(part);
            master.sigkill();
            master = serve(&here, first_port);
        }
        reached(6);
        until_long("the replica is connected", || replica.info("master_link_status") == "up");
        reached(7);
        master.sigkill();
        assert_eq!(refusal(&call(&mut replica.client(), "REPLICAOF NO ONE")), "");
        port.store(replica_port, SeqCst);
        replica
    });
    let once = began.elapsed();
    // Send all increments again. Only the increments that the replica lacked are applied.
    answered.store(0, SeqCst);
    std::thread::scope(|scope| {
        senders(&mut |from, to| _ = scope.spawn(move || send(port, from, to, answered)));
        reached(5);
        replica.sigkill();
        replica = serve(&there, replica_port);
    });
    let twice = began.elapsed() - once;
    let mut client = replica.client();
    assert_eq!(counters(&mut client, &expected), expected);
    let (tokens, dropped) = (count(&mut client, "tokens"), count(&mut client, "tokens_dropped"));
    // Half of the increments change two rows, and each row stores its own token.
    assert_eq!((tokens, dropped), (all / 4 * 6, 0));
    let before = count(&mut client, "tokens_repeated");
    send(port, 0, 1000, answered);
    assert_eq!(count(&mut client, "tokens_repeated") - before, 1500, "1000 repeated increments");
    drop(client);
    replica.sigkill();
    let began = Instant::now();
    let again = serve(&there, replica_port);
    let took = began.elapsed();
    let mut client = again.client();
    assert_eq!(counters(&mut client, &expected), expected);
    assert_eq!(count(&mut client, "tokens"), tokens);
    eprintln!(
        "{all} increments: sent until answered in {once:.1?} (3 kills, a failover), again in \
         {twice:.1?} (a kill), each counted once; {tokens} tokens take {} bytes; a start with \
         them took {took:.1?}",
        harness::program::info(&mut client, "mem_tokens"),
    );
}

fn until_long(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(900), "{what}: timed out");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A replica drops the same tokens as its master, and therefore stores the same tokens.
#[test]
fn a_replica_answers_a_repetition_as_its_master_would() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
    let (master, replica) = (serve(&here, 0), serve(&there, 0));
    let mut client = master.client();
    // The first increment reaches the replica in a snapshot, the second increment in the log.
    let first = format!("CNT.INCRBY post {FIRST} like 5 read 1 TOKEN first");
    let second = format!("CNT.HINCRBY post:{FIRST} like 2 TOKEN second");
    let firsts = call(&mut client, &first);
    assert_eq!(refusal(&call(&mut client, "SAVE")), "");
    call(&mut replica.client(), &format!("REPLICAOF 127.0.0.1 {}", master.port));
    until("the replica is connected", || replica.info("master_link_status") == "up");
    assert_eq!(call(&mut client, &second), Reply::Integer(7));
    until("the replica has the write", || {
        replica.ask(&format!("HGET post:{FIRST} like")) == Reply::BulkString(b"7".to_vec())
    });
    drop(client);
    master.kill();
    let mut client = replica.client();
    assert!(refusal(&call(&mut client, &first)).starts_with("READONLY"));
    call(&mut client, "REPLICAOF NO ONE");
    until("the node accepts writes", || refusal(&call(&mut client, &first)).is_empty());
    assert_eq!(call(&mut client, &first), firsts);
    assert_eq!(call(&mut client, &second), Reply::Integer(7));
    assert_eq!(replica.ask(&format!("HGET post:{FIRST} like")), Reply::BulkString(b"7".to_vec()));
}
