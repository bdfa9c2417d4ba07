//! Tests replicas that lack disk space, a valid host name of the master, or a history in common
//! with the master. Such replicas continue to serve reads, report why their link is down, and save
//! any data before they discard it.

mod stops;
mod takes_over;

use client::Reply;
use harness::program::{
    FIRST, Program, SmallDisk, call, cannot, count, names, refusal, text, until,
};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

const SPACES: &str = r#"[durability]
snapshot_log = 0
snapshot_every = 0
keep_log = 0
[[counter]]
name = "post"
fields = "like:12 read:16"
rows = "post:{id}"
[[existence]]
name = "liked"
pairs = "liked:{id}"
[[view]]
name = "home"
counters = ["post"]
flags = ["liked"]
[[action]]
name = "like"
flag = "liked"
counter = "post.like"
"#;

fn start(dir: &Path, config: &str) -> Program {
    start_as(&[], dir, config)
}

fn start_as(under: &[&str], dir: &Path, config: &str) -> Program {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(config.as_bytes()).unwrap();
    let options = ["--fsync", "always", "--config", file.path().to_str().unwrap()];
    Program::start_as(under, dir, &options)
        .unwrap_or_else(|said| panic!("the server did not start: {said:#?}"))
}

/// Fills `tables` tables, each of which becomes a file of the snapshot.
fn fill(program: &Program, tables: u64) {
    let mut client = program.client();
    for id in (0..tables * 1000).map(|row| text(FIRST + row * 4096)) {
        client.push(&[b"CNT.SET", b"post", &id, b"like", b"5", b"read", b"300"]);
        if client.is_full() {
            (0..client.waiting()).for_each(|_| assert_eq!(refusal(&client.reply().unwrap()), ""));
        }
    }
    (0..client.waiting()).for_each(|_| assert_eq!(refusal(&client.reply().unwrap()), ""));
    assert_ok(program, "SAVE");
}

fn staged(dir: &Path) -> usize {
    names(dir)
        .iter()
        .filter(|name| name.starts_with("staged-snap") && name.ends_with(".tsnap"))
        .count()
}

fn assert_ok(program: &Program, words: &str) {
    assert_eq!(refusal(&call(&mut program.client(), words)), "", "{words}");
}

fn like_of(program: &Program, post: u64) -> Reply {
    program.ask(&format!("HGET post:{post} like"))
}

fn bulk(n: u64) -> Reply {
    Reply::BulkString(text(n))
}

fn follow(replica: &Program, master: &Program) {
    assert_ok(replica, &format!("REPLICAOF 127.0.0.1 {}", master.port));
}

fn wait_for_sync(replica: &Program, master: &Program) {
    until("the replica has all data", || {
        replica.info("master_link_status") == "up"
            && replica.info("slave_repl_offset") == master.info("master_repl_offset")
    });
}

#[test]
fn branch_is_kept_if_master_removed_the_diverging_segment() {
    const FIRST_SEGMENT: &str = "log-0000000000000001.tlog";
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [old, new] = [0, 1].map(|n: usize| start(folders[n].path(), SPACES));
    assert_ok(&old, &format!("CNT.SET post {FIRST} like 1"));
    follow(&new, &old);
    wait_for_sync(&new, &old);
    // The link of `new` is down, so both nodes are masters.
    assert_ok(&new, "REPLICAOF 127.0.0.1 1");
    assert_ok(&new, "REPLICAOF NO ONE");
    assert_ok(&new, &format!("CNT.SET post {FIRST} like 2"));
    for i in 1..6 {
        assert_ok(&old, &format!("CNT.SET post {} like 1{i}", FIRST + i * 4096));
    }
    // This node's history is longer than the other node's. The log would contain the position of
    // the other node if the segment still existed.
    for i in 100..130 {
        assert_ok(&new, &format!("CNT.SET post {} like 3", FIRST + i * 4096));
    }
    let alone = std::fs::read(folders[0].path().join(FIRST_SEGMENT)).unwrap();
    assert_ok(&new, "SAVE");
    until("the shared segment is removed", || !folders[1].path().join(FIRST_SEGMENT).exists());

    follow(&old, &new);
    until("the node has the writes of the other node", || like_of(&old, FIRST) == bulk(2));
    wait_for_sync(&old, &new);
    assert_eq!(like_of(&old, FIRST + 4096), Reply::Null);
    let kept: Vec<_> = std::fs::read_dir(folders[0].path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("dropped-"))
        .collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(
        std::fs::read(kept[0].join(FIRST_SEGMENT)).unwrap().starts_with(&alone),
        "the diverged writes are in the file"
    );
}

#[test]
fn replica_with_full_disk_serves_reads_and_resumes_with_room() {
    let Some(disk) = SmallDisk::mount(16) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let folder = tempfile::tempdir().unwrap();
    let (master, replica) = (start(folder.path(), SPACES), start(disk.path(), SPACES));
    assert_ok(&master, &format!("CNT.SET post {FIRST} like 7"));
    follow(&replica, &master);
    wait_for_sync(&replica, &master);
    let full_syncs = replica.info("repl_full_syncs");
    disk.fill(256 << 10);

    // Use one connection: the replica closes connections only when it replaces its data.
    let mut reader = replica.client();
    let mut reads = |id: u64| call(&mut reader, &format!("HGET post:{id} like"));
    let (mut last, mut client) = (FIRST, master.client());
    until("the replica's disk is full", || {
        for _ in 0..4_000 {
            last += 4096;
            client.push(&[b"CNT.SET", b"post", &text(last), b"like", b"5"]);
            if client.is_full() {
                (0..client.waiting())
                    .for_each(|_| assert_eq!(refusal(&client.reply().unwrap()), ""));
            }
        }
        (0..client.waiting()).for_each(|_| assert_eq!(refusal(&client.reply().unwrap()), ""));
        assert_eq!(reads(FIRST), bulk(7));
        replica.info("master_link_error").contains("disk full")
    });
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        assert_eq!(reads(FIRST), bulk(7), "for several attempts");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(replica.info("master_link_error").contains("disk full"));
    disk.make_room();
    wait_for_sync(&replica, &master);
    assert_eq!(reads(last), bulk(5));
    assert_eq!(replica.info("repl_full_syncs"), full_syncs, "the replica did a full sync");
    replica.kill();
    let replica = start(disk.path(), SPACES);
    wait_for_sync(&replica, &master);
    assert_eq!(like_of(&replica, last), bulk(5));
}

/// A new space in the configuration file is not added to an existing data folder. A replica that
/// was down gets a new space from its master's catalogue.
#[test]
fn new_space_comes_from_master_and_not_from_the_config_file() {
    let more = format!(
        "{SPACES}[[counter]]\nname = \"extra\"\nfields = \"a:8\"\nrows = \"extra:{{id}}\"\n"
    );
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [master, replica] = [0, 1].map(|n: usize| start(folders[n].path(), SPACES));
    assert_ok(&master, &format!("CNT.SET post {FIRST} like 7"));
    follow(&replica, &master);
    wait_for_sync(&replica, &master);
    assert!(master.terminate().success());
    let master = start(folders[0].path(), &more);
    follow(&replica, &master);
    wait_for_sync(&replica, &master);
    until("the master takes writes", || {
        refusal(&call(&mut master.client(), "CNT.SET post 1 like 5")).is_empty()
    });
    let missing = call(&mut master.client(), "CNT.SET extra 1 a 5");
    assert_eq!(refusal(&missing), "ERR no such counter space 'extra'");
    assert!(replica.terminate().success());
    assert_ok(&master, "TM.SPACE CREATE extra COUNTER fields a:8 rows extra:{id}");
    assert_ok(&master, "CNT.SET extra 1 a 5");

    let replica = start(folders[1].path(), SPACES);
    follow(&replica, &master);
    wait_for_sync(&replica, &master);
    assert_eq!(like_of(&replica, FIRST), bulk(7));
    assert_eq!(call(&mut replica.client(), "HGET extra:1 a"), bulk(5));
    assert_eq!(replica.info("repl_full_syncs"), "0", "the replica did a full sync");
    replica.kill();
    let replica = start(folders[1].path(), SPACES);
    assert_eq!(call(&mut replica.client(), "HGET extra:1 a"), bulk(5));
}

/// Deleting all rows is a change like any other. A replica must not restore the rows from an older
/// state of its master.
#[test]
fn emptied_replica_refuses_master_that_lost_the_deletions() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [master, replica] = [0, 1].map(|n: usize| start(folders[n].path(), SPACES));
    let old = tempfile::tempdir().unwrap();
    assert_ok(&master, &format!("CNT.SET post {FIRST} like 5"));
    follow(&replica, &master);
    wait_for_sync(&replica, &master);
    // The copy of the folder holds the master's earlier state.
    assert!(master.terminate().success());
    for entry in std::fs::read_dir(folders[0].path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), old.path().join(entry.file_name())).unwrap();
    }
    let master = start(folders[0].path(), SPACES);
    assert_ok(&master, "REPLICAOF NO ONE");
    follow(&replica, &master);
    wait_for_sync(&replica, &master);
    assert_ok(&master, &format!("DEL post:{FIRST}"));
    wait_for_sync(&replica, &master);
    assert_eq!(like_of(&replica, FIRST), Reply::Null);
    let full_syncs = replica.info("repl_full_syncs");
    master.kill();

    let master = start(old.path(), SPACES);
    follow(&replica, &master);
    let why = "the master's history ends or diverges before ours";
    until("it refuses", || replica.info("master_link_error").contains(why));
    assert_eq!(replica.info("slave_priority"), "0");
    assert_eq!(
        (like_of(&replica, FIRST), replica.info("repl_full_syncs")),
        (Reply::Null, full_syncs)
    );
    // An operator can force this; the replica saves the data that it discards.
    assert_ok(&replica, &format!("REPLICAOF 127.0.0.1 {} FORCE", master.port));
    until("the replica has the old writes", || like_of(&replica, FIRST) == bulk(5));
    let names =
        std::fs::read_dir(folders[1].path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().starts_with("dropped-")).count(), 1);
}

#[test]
fn full_sync_without_room_is_retried_with_backoff() {
    let Some(disk) = SmallDisk::mount(16) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let folder = tempfile::tempdir().unwrap();
    let config = SPACES.replace("fields =", "rows_per_table = 1000\nfields =");
    let (master, replica) = (start(folder.path(), &config), start(disk.path(), &config));
    fill(&master, 30);
    disk.fill(96 << 10);
    let mut client = master.client();
    let mut attempts = {
        let before = count(&mut client, "total_connections_received");
        move || count(&mut client, "total_connections_received") - before
    };
    let mut reader = replica.client();
    let began = Instant::now();
    follow(&replica, &master);
    for number in 1..=3u32 {
        until("another attempt", || attempts() >= u64::from(number));
        let after = Duration::from_secs((1 << (number - 1)) - 1);
        assert!(began.elapsed() >= after, "{number}: {:?}", began.elapsed());
        assert_eq!(call(&mut reader, &format!("HGET post:{FIRST} like")), Reply::Null, "as before");
    }
    assert!(replica.info("master_link_error").contains("disk full"));
    let left = staged(disk.path());
    assert!(left > 0, "the received part was not kept");
    disk.make_room();
    until("the next attempt, after four seconds", || attempts() > 3);
    wait_for_sync(&replica, &master);
    assert_eq!(like_of(&replica, FIRST), bulk(5));
}

/// A full sync resumes with files of an earlier link, after the replica has verified them. On a
/// slow disk, the verification takes longer than the master's timeout.
#[test]
fn full_sync_survives_slow_verification_of_staged_files() {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        return cannot("requires strace");
    }
    const FILES: usize = 15;
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let config = SPACES.replace("fields =", "rows_per_table = 1000\nfields =")
        + "[replication]\ntimeout = 2\n";
    let master = start(folders[0].path(), &config);
    fill(&master, FILES as u64 + 3);
    let slow =
        ["strace", "-D", "-f", "--seccomp-bpf", "-q", "-o", "/dev/null", "-e", "trace=pread64"];
    let slow = [&slow[..], &["-e", "inject=pread64:delay_enter=200000"]].concat();
    let mut replica = start_as(&slow, folders[1].path(), &config);
    follow(&replica, &master);
    let began = Instant::now();
    while staged(folders[1].path()) < FILES {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "{} files received",
            staged(folders[1].path())
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    replica.sigkill();
    drop(replica);
    assert!(staged(folders[1].path()) >= FILES, "there are too few staged files");
    let replica = start_as(&slow, folders[1].path(), &config);
    let began = Instant::now();
    while staged(folders[1].path()) > 0 {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "the full sync does not end: {}",
            replica.info("master_link_error")
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let began = Instant::now();
    while !(replica.info("master_link_status") == "up" && like_of(&replica, FIRST) == bulk(5)) {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "{}",
            replica.info("master_link_error")
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The reason that a master gives for refusing a replica may be long and contain line breaks. The
/// text must not inject lines into INFO.
#[test]
fn what_a_master_says_is_one_line_of_info() {
    const FORGED: &str = "no\r\nrole:master\nrole:master\u{85}role:master\u{2028}role:master\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        // The first connection gets the text as an error reply to TM.REPLICATE. The second
        // connection gets the text in a frame instead of Welcome.
        let error = format!("-ERR {}\r\n", FORGED.trim_end().replace('\r', ""));
        let refused = [&[72][..], b"frames ", FORGED.as_bytes(), &[b'x'; 1 << 20]].concat();
        let frame = store::frame_head(store::Check::new().u64(0), &refused);
        let answers = [error.into_bytes(), [b"+OK\r\n", &frame[..], &refused].concat()];
        for (stream, answer) in listener.incoming().zip(answers.iter().cycle()) {
            let mut stream = stream.unwrap();
            // The client may have disconnected.
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(answer);
            std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let replica = start(folder.path(), SPACES);
    assert_ok(&replica, &format!("REPLICAOF 127.0.0.1 {port}"));
    for said in ["TM.REPLICATE failed: -ERR no", "the peer refused: frames no"] {
        until("the link error names the reason", || {
            replica.info("master_link_error").contains(said)
        });
        let Reply::BulkString(info) = replica.ask("INFO replication") else {
            panic!("INFO is text")
        };
        let info = String::from_utf8(info).unwrap();
        let lines = info.split(['\r', '\n', '\u{85}', '\u{2028}']);
        let roles: Vec<_> = lines.filter(|line| line.starts_with("role:")).collect();
        assert_eq!(roles, ["role:slave"], "{said}");
        assert!(info.len() < 4096, "{}", info.len());
    }
}

/// Redis returns the same error when a node is told to replicate itself.
#[test]
fn a_node_told_to_follow_itself_keeps_its_master() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [master, replica] = [0, 1].map(|n: usize| start(folders[n].path(), SPACES));
    assert_ok(&master, &format!("CNT.SET post {FIRST} like 7"));
    follow(&replica, &master);
    wait_for_sync(&replica, &master);
    follow(&replica, &replica);
    until("the replica notices that the peer has no master", || {
        replica.info("master_link_error").contains("NOMASTERLINK")
    });
    assert_eq!(replica.info("master_link_status"), "down");
    assert_ok(&master, &format!("CNT.SET post {FIRST} like 8"));
    follow(&replica, &master);
    wait_for_sync(&replica, &master);
    assert_eq!(
        (like_of(&replica, FIRST), replica.info("repl_full_syncs")),
        (bulk(8), "1".to_owned())
    );
}

fn synced_pair_with_config(more: &str) -> ([tempfile::TempDir; 2], Program, Program) {
    synced_pair_with_config_of(|_| more.to_owned())
}

/// Starts a master and a replica that is in sync; the replica's configuration depends on the
/// master.
fn synced_pair_with_config_of(
    more: impl FnOnce(&Program) -> String,
) -> ([tempfile::TempDir; 2], Program, Program) {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let master = start(folders[0].path(), SPACES);
    let replica = start(folders[1].path(), &format!("{SPACES}[replication]\n{}\n", more(&master)));
    assert_ok(&master, &format!("CNT.SET post {FIRST} like 3"));
    follow(&replica, &master);
    wait_for_sync(&replica, &master);
    until("the master lists the replica", || master.info("slave0").contains("lag_bytes=0"));
    (folders, master, replica)
}

fn is_master(program: &Program, likes: u64) {
    until("the node is a master", || program.info("role") == "master");
    let more = format!("HINCRBY post:{FIRST} like 1");
    until("the node accepts writes", || program.ask(&more) == Reply::Integer(likes as i64 + 1));
}
