//! Promotes a replica whose disk is slow or full. strace delays or fails the creation of the new
//! master's first log segment. Writes to the new master must succeed, wait, or return the disk's
//! error.

use client::Reply;
use harness::program::{FIRST, Program, call, cannot, refusal, text, until};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SLOW: Duration = Duration::from_secs(3);
/// Maximum duration of operations that must not wait for the segment, with a margin for a busy
/// machine.
const MAX_DURATION: Duration = Duration::from_millis(1_500);

/// Starts a master and its replica. `how` describes the fault of the first segment that the replica
/// creates. Returns `None` without strace.
fn pair(folders: &[tempfile::TempDir; 2], how: &str) -> Option<[Program; 2]> {
    if Command::new("strace").arg("-V").output().is_err() {
        cannot("requires strace");
        return None;
    }
    let [master, replica] = [0, 1].map(|n: usize| Program::start(folders[n].path(), "everysec"));
    assert_ok(&master, &format!("HINCRBY post:{FIRST} like 100"));
    follow(&replica, &master);
    wait_for_sync(&replica);
    assert!(replica.terminate().success());
    let newest = segments(folders[1].path()).pop().unwrap();
    // The server never reuses a segment number, even if the creation of that segment fails.
    let paths = [1, 2].map(|more| folders[1].path().join(store::segment_name(newest + more)));
    let inject = format!("inject=openat:{how}");
    let mut under = vec![
        "strace",
        "-D",
        "-f",
        "--seccomp-bpf",
        "-q",
        "-o",
        "/dev/null",
        "-e",
        "trace=openat",
        "-e",
        &inject,
    ];
    paths.iter().for_each(|path| under.extend(["-P", path.to_str().unwrap()]));
    let options = ["--fsync", "everysec"];
    let replica = Program::start_as(&under, folders[1].path(), &options)
        .unwrap_or_else(|said| panic!("{said:#?}"));
    wait_for_sync(&replica);
    Some([master, replica])
}

fn segments(folder: &Path) -> Vec<u64> {
    let names = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let number = |name: String| match store::parse_segment_name(&name) {
        store::SegmentName::Segment(number) => Some(number),
        _ => None,
    };
    let mut numbers: Vec<_> = names.filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

fn assert_ok(program: &Program, words: &str) {
    assert_eq!(refusal(&call(&mut program.client(), words)), "", "{words}");
}

fn follow(replica: &Program, master: &Program) {
    assert_ok(replica, &format!("REPLICAOF 127.0.0.1 {}", master.port));
}

fn wait_for_sync(replica: &Program) {
    until("the replica is connected", || {
        replica.info("master_link_status") == "up" && likes(replica) == Reply::BulkString(text(100))
    });
}

fn likes(program: &Program) -> Reply {
    program.ask(&format!("HGET post:{FIRST} like"))
}

fn send_like(program: &Program) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", program.port)).unwrap();
    stream.write_all(format!("HINCRBY post:{FIRST} like 1\r\n").as_bytes()).unwrap();
    stream
}

fn line(stream: TcpStream) -> String {
    BufReader::new(stream).lines().next().unwrap().unwrap()
}

#[test]
fn a_client_of_a_new_master_waits_for_its_log_alone() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let how = format!("delay_enter={}:when=1", SLOW.as_micros());
    let Some([master, replica]) = pair(&folders, &how) else { return };
    // Both clients connected before the promotion, and remain connected.
    let (mut reader, mut queues) = (replica.client(), replica.client());
    assert_ok(&replica, "REPLICAOF NO ONE");
    let began = Instant::now();
    let waits = send_like(&replica);
    let leaves = send_like(&replica);
    for words in ["MULTI", "PING"] {
        assert_eq!(refusal(&call(&mut queues, words)), "");
    }
    for words in ["PING", &format!("HGET post:{FIRST} like"), "PUBLISH news 1", "WAIT 0 0", "INFO"]
    {
        assert_eq!(refusal(&call(&mut reader, words)), "", "{words}");
    }
    assert_eq!(replica.info("role"), "master");
    assert_eq!(likes(&replica), Reply::BulkString(text(100)));
    drop(leaves);

    assert_ok(&replica, "REPLICAOF 127.0.0.1 1");
    assert_eq!(line(waits), "-READONLY You can't write against a read only replica.");
    assert!(began.elapsed() < MAX_DURATION, "a request waited for the disk: {:?}", began.elapsed());

    // Repeated promotions do not wait for the log either.
    for _ in 0..3 {
        assert_ok(&replica, "REPLICAOF NO ONE");
        assert_ok(&replica, "REPLICAOF 127.0.0.1 1");
    }
    assert_ok(&replica, "REPLICAOF NO ONE");
    assert!(began.elapsed() < SLOW, "{:?}", began.elapsed());
    let waits = send_like(&replica);
    assert_eq!(refusal(&call(&mut queues, &format!("HINCRBY post:{FIRST} like 1"))), "", "queued");
    let Reply::Array(done) = call(&mut queues, "EXEC") else { panic!("EXEC is refused") };
    assert!(matches!(done[1], Reply::Integer(101 | 102)), "{done:?}");
    assert!([":101", ":102"].contains(&line(waits).as_str()));
    assert!(began.elapsed() >= SLOW, "written before there was a log: {:?}", began.elapsed());
    assert_eq!(likes(&replica), Reply::BulkString(text(102)), "the client that left is forgotten");
    assert_ok(&replica, "WAITAOF 1 0 0");
    drop(master);
    replica.kill();
    let again = Program::start(folders[1].path(), "everysec");
    assert_eq!(likes(&again), Reply::BulkString(text(102)));
}

/// The new role is on disk, but the node has no segment of its own yet. If the node used the old
/// master's term, both logs would seem to have the same writer.
#[test]
fn master_killed_before_its_first_segment_starts_a_new_term() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let Some([master, mut replica]) = pair(&folders, "error=ENOSPC:when=1..60000") else { return };
    let term = |node: &Program| u64::from_str_radix(&node.info("repl_term"), 16).unwrap();
    assert_ok(&replica, "REPLICAOF NO ONE");
    assert_eq!((replica.info("role"), term(&replica)), ("master".to_owned(), term(&master)));
    replica.sigkill();
    let again = Program::start(folders[1].path(), "everysec");
    until("the node is a master with a new term", || {
        term(&again) >> 32 == (term(&master) >> 32) + 1
    });
    assert_eq!(likes(&again), Reply::BulkString(text(100)));
    let own = term(&again);
    assert_ok(&again, "REPLICAOF NO ONE");
    until("the node accepts writes", || {
        refusal(&call(&mut again.client(), &format!("HINCRBY post:{FIRST} like 1"))).is_empty()
    });
    assert_ok(&again, "WAITAOF 1 0 0");
    until("the role is stored", || {
        !std::fs::read_to_string(folders[1].path().join("tidemark.role"))
            .unwrap()
            .contains("promoting")
    });
    again.kill();
    let again = Program::start(folders[1].path(), "everysec");
    assert_eq!((term(&again), likes(&again)), (own, Reply::BulkString(text(101))));
}

#[test]
fn a_node_that_cannot_begin_its_log_says_so_until_it_can() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    // The node tries two segment numbers at a time, twice per second.
    let Some([master, replica]) = pair(&folders, "error=ENOSPC:when=1..24") else { return };
    let mut client = replica.client();
    let like = format!("HINCRBY post:{FIRST} like 1");
    assert_ok(&replica, "REPLICAOF NO ONE");
    let reply = call(&mut client, &like);
    let said = refusal(&reply);
    assert!(
        said.starts_with("MISCONF Tidemark cannot write its log, so it rejects writes: disk full"),
        "{said}"
    );
    for words in [&like, &"MULTI".to_owned(), &like, &"EXEC".to_owned(), &"PING".to_owned()] {
        let reply = call(&mut client, words);
        let said = refusal(&reply);
        let wanted = match words.as_str() {
            "MULTI" => "",
            "EXEC" => "EXECABORT",
            _ => "MISCONF",
        };
        assert!(
            said.starts_with(wanted) && said.is_empty() == wanted.is_empty(),
            "{words}: {said}"
        );
    }
    assert_eq!(replica.info("role"), "master");
    assert_eq!(replica.info("aof_last_write_status"), "err");
    assert_eq!(likes(&replica), Reply::BulkString(text(100)));

    // A replica creates no log segment of its own.
    follow(&replica, &master);
    until("the node rejects writes as a replica", || {
        refusal(&call(&mut client, &like)).starts_with("READONLY")
    });
    assert_eq!(refusal(&call(&mut client, "PING")), "");
    wait_for_sync(&replica);
    assert_eq!(replica.info("repl_full_syncs"), "0");

    assert_ok(&replica, "REPLICAOF NO ONE");
    assert!(refusal(&call(&mut client, &like)).starts_with("MISCONF"));
    let mut refused = vec![];
    until("the node accepts writes", || {
        let reply = call(&mut client, &like);
        let is_fine = refusal(&reply).is_empty();
        refused.extend((!is_fine).then(|| refusal(&reply).to_owned()));
        is_fine
    });
    assert!(refused.iter().all(|said| said.starts_with("MISCONF")), "{refused:?}");
    assert_eq!(refusal(&call(&mut client, "PING")), "");
    assert_eq!(likes(&replica), Reply::BulkString(text(101)));
}

/// Between a promotion and the first commit, no log contains the new writes. WAIT must not use the
/// replication state of the node's earlier role.
#[test]
fn wait_after_promotion_counts_only_replicas_with_the_write() {
    if Command::new("strace").arg("-V").output().is_err() {
        return cannot("requires strace");
    }
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    // A new master starts a thread; strace delays this by 50 ms.
    let under = [
        "strace",
        "-D",
        "-f",
        "--seccomp-bpf",
        "-q",
        "-o",
        "/dev/null",
        "-e",
        "trace=clone3,clone",
    ];
    let under = [&under[..], &["-e", "inject=clone3,clone:delay_exit=50000"]].concat();
    let options = ["--fsync", "everysec"];
    let node = Program::start_as(&under, folders[0].path(), &options)
        .unwrap_or_else(|said| panic!("{said:#?}"));
    let replica = Program::start(folders[1].path(), "everysec");
    assert_ok(&node, &format!("HINCRBY post:{FIRST} like 100"));
    follow(&replica, &node);
    wait_for_sync(&replica);
    let signal = |signal| {
        let pid = rustix::process::Pid::from_child(&replica.child);
        rustix::process::kill_process(pid, signal).unwrap();
    };
    for round in 1..=3 {
        assert_ok(&node, "REPLICAOF 127.0.0.1 1");
        until("the node is a replica, and its replica has all", || {
            let (fed, end) = (node.info("slave0"), node.info("slave_synced_offset"));
            node.info("master_link_error").contains("refused")
                && fed.contains(&format!(",offset={end},"))
                && fed.ends_with(&format!("synced_offset={end}"))
        });
        let mut clients: Vec<_> =
            (0..20).map(|_| TcpStream::connect(("127.0.0.1", node.port)).unwrap()).collect();
        signal(rustix::process::Signal::STOP);
        assert_ok(&node, "REPLICAOF NO ONE");
        for (number, client) in (0..).zip(&mut clients) {
            let wait = ["WAIT 1 1", "WAITAOF 0 1 1"][number % 2];
            let post = FIRST + (20 * round + number as u64) * 4096;
            client
                .write_all(format!("HINCRBY post:{post} like 1\r\n{wait}\r\n").as_bytes())
                .unwrap();
        }
        for (number, client) in (0..).zip(clients) {
            let mut lines = BufReader::new(client).lines().map(Result::unwrap);
            assert_eq!(lines.next().unwrap(), ":1");
            // WAITAOF returns two numbers; the second is the number of replicas.
            let count = if number % 2 == 0 { lines.next() } else { lines.nth(2) };
            assert_eq!(count.unwrap(), ":0", "round {round}: the only replica is stopped");
        }
        signal(rustix::process::Signal::CONT);
    }
    // Once the replica continues, it receives the writes.
    let mut client = node.client();
    assert_eq!(refusal(&call(&mut client, &format!("HINCRBY post:{FIRST} like 1"))), "");
    assert_eq!(call(&mut client, "WAIT 1 10000"), Reply::Integer(1));
}

/// The host name of the master does not resolve. A promotion of its replica must take effect
/// immediately.
#[test]
fn a_promotion_does_not_wait_for_the_old_masters_name() {
    if Command::new("strace").arg("-V").output().is_err() {
        return cannot("requires strace");
    }
    const FOR_EVER: &str = "inject=openat:delay_enter=15000000";
    let folder = tempfile::tempdir().unwrap();
    let options = ["-e", "trace=openat", "-e", FOR_EVER, "-P", "/etc/hosts"];
    let under = [&["strace", "-D", "-f", "-q", "-o", "/dev/null"], &options[..]].concat();
    let node = Program::start_as(&under, folder.path(), &["--fsync", "everysec"]).unwrap();
    let mut client = node.client();
    assert_eq!(refusal(&call(&mut client, "REPLICAOF nowhere.invalid 6399")), "");
    let connecting = Reply::BulkString(b"connecting".to_vec());
    until(
        "the replica resolves its master",
        || matches!(call(&mut client, "ROLE"), Reply::Array(role) if role[3] == connecting),
    );
    std::thread::sleep(Duration::from_millis(200));
    assert_ok(&node, "REPLICAOF NO ONE");
    let began = Instant::now();
    assert_ok(&node, &format!("HINCRBY post:{FIRST} like 1"));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
