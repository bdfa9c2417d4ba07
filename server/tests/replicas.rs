//! The real program as a replica that meets what it has no room, no name or no common past for. It goes on answering reads, says why its link is
//! down, and gives nothing up that it has not kept first.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the report")]

mod common;

use common::{FIRST, Program, SmallDisk, call, cannot, count, names, refusal, text, until};
use redis_protocol::resp2::types::OwnedFrame;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SPACES: &str = r#"[durability]
snapshot_log_bytes = 0
snapshot_every_s = 0
keep_log_bytes = 0
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
    Program::start_as(under, dir, &options).unwrap_or_else(|said| panic!("it did not start: {said:#?}"))
}

/// Rows of so many tables, each of which is a file of the snapshot.
fn fill(program: &Program, tables: u64) {
    let mut client = program.client();
    for id in (0..tables * 1000).map(|row| text(FIRST + row * 4096)) {
        client.push(&[b"CNT.SET", b"post", &id, b"like", b"5", b"read", b"300"]);
        if client.is_full() {
            (0..client.waiting()).for_each(|_| assert_eq!(refusal(&client.reply().unwrap()), ""));
        }
    }
    (0..client.waiting()).for_each(|_| assert_eq!(refusal(&client.reply().unwrap()), ""));
    fine(program, "SAVE");
}

fn staged(dir: &Path) -> usize {
    names(dir).iter().filter(|name| name.starts_with("staged-snap") && name.ends_with(".tsnap")).count()
}

fn fine(program: &Program, words: &str) {
    assert_eq!(refusal(&call(&mut program.client(), words)), "", "{words}");
}

fn like_of(program: &Program, post: u64) -> OwnedFrame {
    program.ask(&format!("HGET post:{post} like"))
}

fn bulk(n: u64) -> OwnedFrame {
    OwnedFrame::BulkString(text(n))
}

fn follow(replica: &Program, master: &Program) {
    fine(replica, &format!("REPLICAOF 127.0.0.1 {}", master.port));
}

fn in_step(replica: &Program, master: &Program) {
    until("the replica has it all", || {
        replica.info("master_link_status") == "up"
            && replica.info("slave_repl_offset") == master.info("master_repl_offset")
    });
}

#[test]
fn a_branch_is_kept_though_the_master_has_removed_the_segment_where_it_parted() {
    const FIRST_SEGMENT: &str = "log-0000000000000001.tlog";
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [old, new] = [0, 1].map(|n: usize| start(folders[n].path(), SPACES));
    fine(&old, &format!("CNT.SET post {FIRST} like 1"));
    follow(&new, &old);
    in_step(&new, &old);
    fine(&new, "REPLICAOF NO ONE");
    fine(&new, &format!("CNT.SET post {FIRST} like 2"));
    for i in 1..6 {
        fine(&old, &format!("CNT.SET post {} like 1{i}", FIRST + i * 4096));
    }
    // The longer of the two, so that the position of the other would be in it, if that segment were there.
    for i in 100..130 {
        fine(&new, &format!("CNT.SET post {} like 3", FIRST + i * 4096));
    }
    let alone = std::fs::read(folders[0].path().join(FIRST_SEGMENT)).unwrap();
    fine(&new, "SAVE");
    until("the segment that both had goes", || !folders[1].path().join(FIRST_SEGMENT).exists());

    follow(&old, &new);
    until("it has the other's", || like_of(&old, FIRST) == bulk(2));
    in_step(&old, &new);
    assert_eq!(like_of(&old, FIRST + 4096), OwnedFrame::Null);
    let kept: Vec<_> = std::fs::read_dir(folders[0].path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("dropped-"))
        .collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(std::fs::read(kept[0].join(FIRST_SEGMENT)).unwrap().starts_with(&alone), "all that it had alone is there");
}

#[test]
fn a_replica_with_a_full_disk_answers_reads_and_goes_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount(16) else { return cannot("a full disk needs the right to mount a tmpfs") };
    let folder = tempfile::tempdir().unwrap();
    let (master, replica) = (start(folder.path(), SPACES), start(disk.path(), SPACES));
    fine(&master, &format!("CNT.SET post {FIRST} like 7"));
    follow(&replica, &master);
    in_step(&replica, &master);
    let full_syncs = replica.info("repl_full_syncs");
    disk.fill(256 << 10);

    // Through one connection: a node that is opened anew would close it.
    let mut reader = replica.client();
    let mut reads = |id: u64| call(&mut reader, &format!("HGET post:{id} like"));
    let (mut last, mut client) = (FIRST, master.client());
    until("the replica's disk is full", || {
        for _ in 0..4_000 {
            last += 4096;
            client.push(&[b"CNT.SET", b"post", &text(last), b"like", b"5"]);
            if client.is_full() {
                (0..client.waiting()).for_each(|_| assert_eq!(refusal(&client.reply().unwrap()), ""));
            }
        }
        (0..client.waiting()).for_each(|_| assert_eq!(refusal(&client.reply().unwrap()), ""));
        assert_eq!(reads(FIRST), bulk(7));
        replica.info("master_link_error").contains("no room on the disk")
    });
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        assert_eq!(reads(FIRST), bulk(7), "for several attempts to go on");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(replica.info("master_link_error").contains("no room on the disk"));
    disk.make_room();
    in_step(&replica, &master);
    assert_eq!(reads(last), bulk(5));
    assert_eq!(replica.info("repl_full_syncs"), full_syncs, "it went on where it was");
    replica.kill();
    let replica = start(disk.path(), SPACES);
    in_step(&replica, &master);
    assert_eq!(like_of(&replica, last), bulk(5));
}

#[test]
fn a_space_that_only_the_master_has_stops_the_link_and_not_the_replica() {
    let more = format!("{SPACES}[[counter]]\nname = \"extra\"\nfields = \"a:8\"\nrows = \"extra:{{id}}\"\n");
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [master, replica] = [0, 1].map(|n: usize| start(folders[n].path(), SPACES));
    fine(&master, &format!("CNT.SET post {FIRST} like 7"));
    follow(&replica, &master);
    in_step(&replica, &master);
    assert!(master.terminate().success());
    let master = start(folders[0].path(), &more);

    let mut reader = replica.client();
    follow(&replica, &master);
    until("the replica says what it lacks", || replica.info("master_link_error").contains("'extra'"));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        let reply = call(&mut reader, &format!("HGET post:{FIRST} like"));
        assert_eq!(reply, bulk(7), "for several attempts to go on");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(replica.info("master_link_error").contains("'extra'"));
    // It has taken nothing of it: it starts as it is, and with the space it goes on.
    assert!(replica.terminate().success());
    let replica = start(folders[1].path(), SPACES);
    assert_eq!(like_of(&replica, FIRST), bulk(7));
    assert!(replica.terminate().success());
    let replica = start(folders[1].path(), &more);
    in_step(&replica, &master);
    until("the master takes writes", || refusal(&call(&mut master.client(), "CNT.SET extra 1 a 5")).is_empty());
    in_step(&replica, &master);
    assert_eq!(call(&mut replica.client(), "HGET extra:1 a"), bulk(5));
    assert_eq!(replica.info("repl_full_syncs"), "0", "it went on where it was");
}

/// All that it had is gone, by a command that counts as any other does: no older state of its master brings it back.
#[test]
fn a_replica_whose_rows_were_all_deleted_does_not_obey_a_master_that_has_lost_that() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [master, replica] = [0, 1].map(|n: usize| start(folders[n].path(), SPACES));
    let old = tempfile::tempdir().unwrap();
    fine(&master, &format!("CNT.SET post {FIRST} like 5"));
    follow(&replica, &master);
    in_step(&replica, &master);
    // A copy of the folder is the master's state of then.
    assert!(master.terminate().success());
    for entry in std::fs::read_dir(folders[0].path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), old.path().join(entry.file_name())).unwrap();
    }
    let master = start(folders[0].path(), SPACES);
    fine(&master, "REPLICAOF NO ONE");
    follow(&replica, &master);
    in_step(&replica, &master);
    fine(&master, &format!("DEL post:{FIRST}"));
    in_step(&replica, &master);
    assert_eq!(like_of(&replica, FIRST), OwnedFrame::Null);
    let full_syncs = replica.info("repl_full_syncs");
    master.kill();

    let master = start(old.path(), SPACES);
    follow(&replica, &master);
    let why = "the master's history ends or parts before ours does";
    until("it refuses", || replica.info("master_link_error").contains(why));
    assert_eq!(replica.info("slave_priority"), "0");
    assert_eq!((like_of(&replica, FIRST), replica.info("repl_full_syncs")), (OwnedFrame::Null, full_syncs));
    // An operator knows better; what is given up is kept all the same.
    fine(&replica, &format!("REPLICAOF 127.0.0.1 {} FORCE", master.port));
    until("it has what there was", || like_of(&replica, FIRST) == bulk(5));
    let names = std::fs::read_dir(folders[1].path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().starts_with("dropped-")).count(), 1);
}

#[test]
fn a_full_sync_for_which_there_is_no_room_is_asked_for_less_and_less_often() {
    let Some(disk) = SmallDisk::mount(16) else { return cannot("a full disk needs the right to mount a tmpfs") };
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
        assert_eq!(call(&mut reader, &format!("HGET post:{FIRST} like")), OwnedFrame::Null, "as before");
    }
    assert!(replica.info("master_link_error").contains("no room on the disk"));
    let left = staged(disk.path());
    assert!(left > 0, "what has come is kept");
    disk.make_room();
    until("the next attempt, after four seconds", || attempts() > 3);
    in_step(&replica, &master);
    assert_eq!(like_of(&replica, FIRST), bulk(5));
}

/// What a link has brought is looked at when the next one goes on with it. On a slow disk that takes longer than a master waits for a word.
#[test]
fn a_full_sync_goes_on_though_what_is_there_takes_long_to_look_at() {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        return cannot("a slow disk needs strace");
    }
    const FILES: usize = 15;
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let config = SPACES.replace("fields =", "rows_per_table = 1000\nfields =") + "[replication]\ntimeout_s = 2\n";
    let master = start(folders[0].path(), &config);
    fill(&master, FILES as u64 + 3);
    let slow = ["strace", "-D", "-f", "--seccomp-bpf", "-q", "-o", "/dev/null", "-e", "trace=pread64"];
    let slow = [&slow[..], &["-e", "inject=pread64:delay_enter=200000"]].concat();
    let mut replica = start_as(&slow, folders[1].path(), &config);
    follow(&replica, &master);
    let began = Instant::now();
    while staged(folders[1].path()) < FILES {
        assert!(began.elapsed() < Duration::from_secs(120), "{} files have come", staged(folders[1].path()));
        std::thread::sleep(Duration::from_millis(5));
    }
    replica.sigkill();
    drop(replica);
    assert!(staged(folders[1].path()) >= FILES, "there is much to look at");
    let replica = start_as(&slow, folders[1].path(), &config);
    let began = Instant::now();
    while staged(folders[1].path()) > 0 {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it does not come to an end: {}",
            replica.info("master_link_error")
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let began = Instant::now();
    while !(replica.info("master_link_status") == "up" && like_of(&replica, FIRST) == bulk(5)) {
        assert!(began.elapsed() < Duration::from_secs(120), "{}", replica.info("master_link_error"));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A master says why it does not serve us, in words that are more lines of INFO, and many.
#[test]
fn what_a_master_says_is_one_line_of_info() {
    const FORGED: &str = "no\r\nrole:master\nrole:master\u{85}role:master\u{2028}role:master\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        // What it says to TM.REPLICATE, and in place of Welcome.
        let error = format!("-ERR {}\r\n", FORGED.trim_end().replace('\r', ""));
        let refused = [&[72][..], b"frames ", FORGED.as_bytes(), &[b'x'; 1 << 20]].concat();
        let frame = store::frame_head(store::Check::new().u64(0), &refused);
        let answers = [error.into_bytes(), [b"+OK\r\n", &frame[..], &refused].concat()];
        for (stream, answer) in listener.incoming().zip(answers.iter().cycle()) {
            let mut stream = stream.unwrap();
            // It may have gone.
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(answer);
            std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let replica = start(folder.path(), SPACES);
    fine(&replica, &format!("REPLICAOF 127.0.0.1 {port}"));
    for said in ["TM.REPLICATE was answered -ERR no", "the peer refused: frames no"] {
        until("it is told why", || replica.info("master_link_error").contains(said));
        let OwnedFrame::BulkString(info) = replica.ask("INFO replication") else { panic!("INFO is text") };
        let info = String::from_utf8(info).unwrap();
        let lines = info.split(['\r', '\n', '\u{85}', '\u{2028}']);
        let roles: Vec<_> = lines.filter(|line| line.starts_with("role:")).collect();
        assert_eq!(roles, ["role:slave"], "{said}");
        assert!(info.len() < 4096, "{}", info.len());
    }
}

/// As a replica of Redis's, which says so, too.
#[test]
fn who_is_told_to_follow_itself_has_no_link_and_goes_on_with_its_master() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [master, replica] = [0, 1].map(|n: usize| start(folders[n].path(), SPACES));
    fine(&master, &format!("CNT.SET post {FIRST} like 7"));
    follow(&replica, &master);
    in_step(&replica, &master);
    follow(&replica, &replica);
    until("it finds out", || replica.info("master_link_error").contains("NOMASTERLINK"));
    assert_eq!(replica.info("master_link_status"), "down");
    fine(&master, &format!("CNT.SET post {FIRST} like 8"));
    follow(&replica, &master);
    in_step(&replica, &master);
    assert_eq!((like_of(&replica, FIRST), replica.info("repl_full_syncs")), (bulk(8), "1".to_owned()));
}

/// A port that leads to a server, and whether what comes from there waits on the way.
fn gate_to(server: u16) -> (u16, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, is_shut) = (listener.local_addr().unwrap().port(), Arc::new(AtomicBool::new(false)));
    let gate = is_shut.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
            for (from, to, is_held) in [(&client, &server, false), (&server, &client, true)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let gate = gate.clone();
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    loop {
                        let read = from.read(&mut buffer).unwrap_or(0);
                        while is_held && gate.load(SeqCst) {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        if read == 0 || to.write_all(&buffer[..read]).is_err() {
                            let _ = to.shutdown(std::net::Shutdown::Both);
                            return;
                        }
                    }
                });
            }
        }
    });
    (port, is_shut)
}

/// What it is told while somebody goes on with something else; none where the connection ends without a reply.
fn told(program: &Program, words: &str) -> std::thread::JoinHandle<Option<OwnedFrame>> {
    let (mut client, words) = (program.client(), words.to_owned());
    std::thread::spawn(move || client.call(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>()).ok())
}

/// The reply to SHUTDOWN; none: it is a signal.
fn told_to_stop(program: &Program, how: &str) -> Option<std::thread::JoinHandle<Option<OwnedFrame>>> {
    if how == "SIGTERM" {
        program.sigterm();
        return None;
    }
    Some(told(program, how))
}

/// A master that is to stop, and waits for a replica that does not hear of its last row, like 3. Nobody who writes is to wait longer than that.
struct Leaving {
    folders: [tempfile::TempDir; 2],
    master: Program,
    replica: Program,
    /// Keeps from the replica what the master sends.
    gate: Arc<AtomicBool>,
    /// SHUTDOWN's reply; none: it was a signal.
    asked: Option<std::thread::JoinHandle<Option<OwnedFrame>>>,
    /// The reply to a write that was sent since.
    paused: std::thread::JoinHandle<Option<OwnedFrame>>,
}

impl Leaving {
    fn by(how: &str) -> Leaving {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [master, replica] = [0, 1].map(|n: usize| start(folders[n].path(), SPACES));
        let (port, gate) = gate_to(master.port);
        fine(&replica, &format!("REPLICAOF 127.0.0.1 {port}"));
        in_step(&replica, &master);
        fine(&master, "CONFIG SET shutdown-timeout 600");
        gate.store(true, SeqCst);
        fine(&master, &format!("CNT.SET post {FIRST} like 3"));
        let asked = told_to_stop(&master, how);
        until("it waits for its replica", || is_leaving(&master));
        let paused = told(&master, &format!("CNT.SET post {FIRST} read 8"));
        let is_sent = |line: &str| line.contains(" qbuf=") && !line.contains(" qbuf=0 ");
        until("what was written has come", || match master.ask("CLIENT LIST") {
            OwnedFrame::BulkString(list) => String::from_utf8(list).unwrap().lines().any(is_sent),
            other => panic!("{other:?}"),
        });
        Leaving { folders, master, replica, gate, asked, paused }
    }
}

fn is_leaving(master: &Program) -> bool {
    master.info("shutdown_in_milliseconds").parse::<u64>().is_ok_and(|ms| ms > 0)
}

/// Whether all threads of a process are stopped.
fn stands_still(process: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let state = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
    tasks
        .map(|task| state(task.unwrap()))
        .all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
}

/// It ends of its own accord in less than a minute; gives whether well.
fn ended(program: &mut Program) -> bool {
    let began = Instant::now();
    loop {
        if let Some(status) = program.child.try_wait().unwrap() {
            return status.success();
        }
        assert!(began.elapsed() < Duration::from_secs(60), "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The same, and well.
fn ends(program: &mut Program) {
    assert!(ended(program));
}

/// Freezes a process, or lets it go on.
fn freeze(program: &Program, is_frozen: bool) {
    let signal = if is_frozen { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
    rustix::process::kill_process(rustix::process::Pid::from_child(&program.child), signal).unwrap();
    // One of its threads takes the signal when it runs next, and until then the others go on.
    until("it stands still", || !is_frozen || stands_still(program.child.id()));
}

/// A planned restart under Sentinel: the replica that takes over has what the master had acknowledged.
#[test]
fn a_master_that_is_told_to_stop_gives_its_replicas_what_was_written_last() {
    for how in ["SIGTERM", "SHUTDOWN", "SHUTDOWN NOSAVE"] {
        let Leaving { mut master, replica, gate, asked, paused, folders: _folders } = Leaving::by(how);
        assert_eq!(like_of(&master, FIRST), bulk(3), "it is read meanwhile");
        assert_eq!(like_of(&replica, FIRST), OwnedFrame::Null);
        assert_eq!(master.info("blocked_clients"), if asked.is_some() { "1" } else { "0" });
        assert!(master.child.try_wait().unwrap().is_none() && !paused.is_finished());
        gate.store(false, SeqCst);
        ends(&mut master);
        assert_eq!(asked.and_then(|asked| asked.join().unwrap()), None, "the connection ends without a reply");
        assert_eq!(paused.join().unwrap(), None, "what no replica would have is not acknowledged");
        assert_eq!(like_of(&replica, FIRST), bulk(3), "{how}");
        assert_eq!(replica.ask(&format!("HGET post:{FIRST} read")), bulk(0));
    }
}

#[test]
fn a_stop_that_waits_can_be_taken_back() {
    let Leaving { mut master, replica, gate, asked, paused, folders: _folders } = Leaving::by("SHUTDOWN");
    let also = told(&master, "SHUTDOWN NOW");
    until("as in Redis, both wait", || master.info("blocked_clients") == "2");
    // As in Redis 7.2; before it, that crashed.
    let unblocked = (1..20).map(|id| master.ask(&format!("CLIENT UNBLOCK {id}")));
    assert!(unblocked.into_iter().all(|reply| reply == OwnedFrame::Integer(0)));
    for words in ["SHUTDOWN ABORT NOW", "SHUTDOWN NOSAVE ABORT", "SHUTDOWN SAVE NOSAVE"] {
        assert_eq!(refusal(&master.ask(words)), "ERR syntax error", "{words}");
    }
    fine(&master, "SHUTDOWN ABORT ABORT");
    for reply in [asked.unwrap(), also] {
        until("who said so hears it", || reply.is_finished());
        assert_eq!(reply.join().unwrap().as_ref().map(refusal), Some("ERR Errors trying to SHUTDOWN. Check logs."));
    }
    until("writes go on", || paused.is_finished());
    assert_eq!(paused.join().unwrap().as_ref().map(refusal), Some(""), "it waited, and was not refused");
    assert_eq!((master.info("blocked_clients"), is_leaving(&master)), ("0".to_owned(), false));
    assert_eq!(refusal(&master.ask("SHUTDOWN ABORT")), "ERR No shutdown in progress.");
    fine(&master, &format!("CNT.SET post {FIRST} like 4"));

    // And then it is stopped all the same.
    master.sigterm();
    until("it waits again", || is_leaving(&master));
    gate.store(false, SeqCst);
    ends(&mut master);
    assert_eq!(like_of(&replica, FIRST), bulk(4));
    assert_eq!(replica.ask(&format!("HGET post:{FIRST} read")), bulk(8));
}

#[test]
fn a_replica_that_lags_keeps_a_stop_no_longer_than_is_wanted() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let replica = start(folders[1].path(), SPACES);
    for (seconds, how) in
        [("1", "SIGTERM"), ("1", "SHUTDOWN"), ("600", "SHUTDOWN NOW"), ("0", "SHUTDOWN"), ("600", "SIGINT")]
    {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "[server]\nshutdown_timeout_s = {seconds}\n{SPACES}").unwrap();
        let options = ["--fsync", "always", "--config", file.path().to_str().unwrap()];
        let started = Program::start_until(&[], folders[0].path(), &options, "ready to accept");
        let (mut master, said) = started.unwrap_or_else(|said| panic!("{said:#?}"));
        let said = std::thread::spawn(|| said.map_while(Result::ok).collect::<Vec<_>>());
        fine(&master, "REPLICAOF NO ONE");
        follow(&replica, &master);
        in_step(&replica, &master);
        freeze(&replica, true);
        fine(&master, &format!("HINCRBY post:{FIRST} like 1"));
        let (began, mut asked) = (Instant::now(), None);
        match how {
            "SIGTERM" => master.sigterm(),
            // Each waits but for SIGINT at last: who has hit ctrl-C twice, say.
            "SIGINT" => {
                master.sigterm();
                until("it waits", || is_leaving(&master));
                master.sigterm();
                std::thread::sleep(Duration::from_millis(300));
                assert!(is_leaving(&master), "a second SIGTERM changes nothing");
                let pid = rustix::process::Pid::from_child(&master.child);
                rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
            }
            words => asked = Some(told(&master, words)),
        }
        ends(&mut master);
        assert_eq!(asked.and_then(|asked| asked.join().unwrap()), None, "no reply");
        assert!(seconds != "1" || began.elapsed() >= Duration::from_secs(1), "{how}: {:?}", began.elapsed());
        freeze(&replica, false);
        let said = said.join().unwrap();
        if how != "SIGINT" {
            let lags = format!("Lagging replica 127.0.0.1:{} reported offset ", replica.port);
            assert!(said.iter().any(|line| line.contains(&lags)), "{said:#?}");
            assert!(said.iter().any(|line| line.contains("0 of 1 replicas are in sync")), "{said:#?}");
        }
    }
}

#[test]
fn a_server_that_nobody_follows_any_more_stops_at_once() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [mut master, replica] = [0, 1].map(|n: usize| start(folders[n].path(), SPACES));
    fine(&master, "CONFIG SET shutdown-timeout 600");
    follow(&replica, &master);
    in_step(&replica, &master);
    replica.kill();
    until("it has gone", || master.info("connected_slaves") == "0");
    fine(&master, &format!("CNT.SET post {FIRST} like 1"));
    master.sigterm();
    ends(&mut master);
}

#[test]
fn a_master_that_is_killed_while_it_waits_loses_nothing() {
    let Leaving { mut master, replica, gate, paused, folders, asked: _ } = Leaving::by("SIGTERM");
    master.sigkill();
    assert_eq!(paused.join().unwrap(), None);
    gate.store(false, SeqCst);
    let master = start(folders[0].path(), SPACES);
    assert_eq!(like_of(&master, FIRST), bulk(3));
    assert!(!is_leaving(&master));
    fine(&master, "REPLICAOF NO ONE");
    fine(&master, &format!("CNT.SET post {FIRST} read 9"));
    follow(&replica, &master);
    in_step(&replica, &master);
    assert_eq!((like_of(&replica, FIRST), replica.info("repl_full_syncs")), (bulk(3), "1".to_owned()));
}

/// A master that has handed its role to its replica, which is frozen and has not read that; it is to stop within so many seconds.
fn handing(shutdown_timeout_s: u32) -> ([tempfile::TempDir; 2], Program, Program) {
    let (folders, old, new) = in_step_with("");
    fine(&old, &format!("CONFIG SET shutdown-timeout {shutdown_timeout_s}"));
    freeze(&new, true);
    fine(&old, "FAILOVER");
    until("the replica is asked", || old.info("role") == "slave");
    assert_eq!(old.info("master_failover_state"), "failover-in-progress");
    (folders, old, new)
}

fn is_master(program: &Program, likes: u64) {
    until("it is the master", || program.info("role") == "master");
    let more = format!("HINCRBY post:{FIRST} like 1");
    until("it takes writes", || program.ask(&more) == OwnedFrame::Integer(likes as i64 + 1));
}

/// A planned restart that begins with FAILOVER: when the old master has gone there is a new one.
#[test]
fn a_stop_waits_for_the_replica_that_is_to_take_over() {
    for how in ["SIGTERM", "SHUTDOWN"] {
        let (_folders, mut old, new) = handing(600);
        let asked = told_to_stop(&old, how);
        until("it waits for its successor", || is_leaving(&old));
        freeze(&new, false);
        ends(&mut old);
        assert_eq!(asked.and_then(|asked| asked.join().unwrap()), None, "no reply");
        is_master(&new, 3);
    }
}

#[test]
fn a_failover_while_a_master_stops_leaves_a_master() {
    for how in ["SIGTERM", "SHUTDOWN"] {
        let Leaving { mut master, replica, gate, asked: _, paused, folders: _folders } = Leaving::by(how);
        fine(&master, "FAILOVER");
        assert_eq!(master.info("master_failover_state"), "waiting-for-sync");
        gate.store(false, SeqCst);
        ends(&mut master);
        assert_eq!(paused.join().unwrap(), None, "nobody is told anything of what the new one does not have");
        is_master(&replica, 3);
    }
}

/// Then this one is the master when it starts again, or asks the other one again.
#[test]
fn a_failover_that_does_not_end_keeps_a_stop_no_longer_than_is_wanted() {
    for is_aborted in [true, false] {
        let (folders, mut old, new) = handing(if is_aborted { 600 } else { 1 });
        old.sigterm();
        if is_aborted {
            until("it waits for its successor", || is_leaving(&old));
            // It may have stopped before it says so.
            told(&old, "FAILOVER ABORT");
        }
        ends(&mut old);
        let port = old.port.to_string();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(SPACES.as_bytes()).unwrap();
        let options = ["--fsync", "always", "--config", file.path().to_str().unwrap(), "--port", &port];
        let old = Program::start_as(&[], folders[0].path(), &options).unwrap_or_else(|said| panic!("{said:#?}"));
        let state = ["role", "master_failover_state"].map(|line| old.info(line));
        let (master, replica) = if is_aborted {
            assert_eq!(state, ["master", "no-failover"]);
            (&old, &new)
        } else {
            assert_eq!(state, ["slave", "failover-in-progress"]);
            (&new, &old)
        };
        freeze(&new, false);
        is_master(master, 3);
        in_step(replica, master);
        assert_eq!(like_of(replica, FIRST), bulk(4));
    }
}

/// What is not in the log by then nobody will be given; what is there the replica still gets.
#[test]
fn a_forced_stop_does_not_wait_for_a_disk_that_takes_nothing() {
    let Some(disk) = SmallDisk::mount(16) else { return cannot("a full disk needs the right to mount a tmpfs") };
    let folder = tempfile::tempdir().unwrap();
    let [mut master, replica] = [disk.path(), folder.path()].map(|path| start(path, SPACES));
    fine(&master, "CONFIG SET shutdown-timeout 600");
    let (port, gate) = gate_to(master.port);
    fine(&replica, &format!("REPLICAOF 127.0.0.1 {port}"));
    in_step(&replica, &master);
    gate.store(true, SeqCst);
    fine(&master, &format!("CNT.SET post {FIRST} like 3"));
    disk.fill(256 << 10);
    let (mut last, mut client) = (FIRST, master.client());
    let mut is_taken = || {
        last += 4096;
        refusal(&call(&mut client, &format!("CNT.SET post {last} like 5"))).is_empty()
    };
    while is_taken() {}
    assert_eq!(refusal(&master.ask("SHUTDOWN")), "ERR Errors trying to SHUTDOWN. Check logs.");
    let asked = told(&master, "SHUTDOWN FORCE");
    until("it waits for the replica", || is_leaving(&master));
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_leaving(&master) && like_of(&replica, FIRST) == OwnedFrame::Null);
    gate.store(false, SeqCst);
    assert!(!ended(&mut master), "it says that something is lost");
    assert_eq!(asked.join().unwrap(), None, "no reply");
    assert_eq!(like_of(&replica, FIRST), bulk(3));
    assert_eq!(like_of(&replica, last - 4096), bulk(5), "the last one that was taken");
}

/// A master with a replica that has everything, and this in the replica's configuration.
fn in_step_with(more: &str) -> ([tempfile::TempDir; 2], Program, Program) {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let master = start(folders[0].path(), SPACES);
    let replica = start(folders[1].path(), &format!("{SPACES}[replication]\n{more}\n"));
    fine(&master, &format!("CNT.SET post {FIRST} like 3"));
    follow(&replica, &master);
    in_step(&replica, &master);
    until("the master knows", || master.info("slave0").contains("lag_bytes=0"));
    (folders, master, replica)
}

/// It would be told no by a new master, and be one again itself.
#[test]
fn who_has_no_room_for_the_old_master_does_not_take_its_place() {
    let (_folders, old, new) = in_step_with("max_replicas = 1");
    let folder = tempfile::tempdir().unwrap();
    let last = start(folder.path(), SPACES);
    follow(&last, &new);
    in_step(&last, &new);
    fine(&old, "FAILOVER");
    until("it is over", || old.info("master_failover_state") == "no-failover" && old.info("role") == "master");
    assert_eq!(new.info("role"), "slave");
    is_master(&old, 3);
    in_step(&new, &old);
    assert_eq!((like_of(&new, FIRST), new.info("role")), (bulk(4), "slave".to_owned()));
}

/// It may have taken over before it was started again.
#[test]
fn a_replica_that_loads_is_asked_again_whether_it_takes_over() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, asked) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 1000];
            let is_loading = count.fetch_add(1, SeqCst) == 0;
            while let Ok(length @ 1..) = stream.read(&mut request) {
                let reply: &[u8] = match &request[..length] {
                    _ if is_loading => b"-LOADING Redis is loading the dataset in memory\r\n",
                    b"*1\r\n$4\r\nPING\r\n" => b"+PONG\r\n",
                    _ => b"-ERR no\r\n",
                };
                let _ = stream.write_all(reply);
            }
        }
    });
    let (_folders, old, _new) = in_step_with(&format!("replica_announce_port = {port}"));
    fine(&old, "FAILOVER");
    until("it has said no", || old.info("master_failover_state") == "no-failover");
    assert_eq!(asked.load(SeqCst), 2);
    is_master(&old, 3);
}
