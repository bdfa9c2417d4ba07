//! Checks with strace that the real binary writes a role change to disk before it replies to an
//! operator or to Sentinel.

use client::Reply;
use harness::program::{FIRST, Program, SmallDisk, call, cannot, refusal, text, until};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;

/// Starts the server with a configuration file under strace. Returns `None` without strace.
fn under_strace(options: &[&str], dir: &Path, config: &Path) -> Option<Program> {
    if Command::new("strace").arg("-V").output().is_err() {
        cannot("requires strace");
        return None;
    }
    let mut under = vec!["strace", "-D", "-f", "-q", "--seccomp-bpf"];
    under.extend(options);
    let started = Program::start_as(&under, dir, &["--config", config.to_str().unwrap()]);
    Some(started.unwrap_or_else(|said| panic!("{said:#?}")))
}

/// Returns the completed calls of the thread that renames a file to `name`, and the beginning of
/// the first reply.
fn calls(trace: &str, name: &str) -> Vec<&'static str> {
    let thread_of = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let renames = |line: &str| line.contains("rename") && line.contains(&format!("/{name}\""));
    let thread = trace.lines().find(|line| renames(line)).map(thread_of);
    let (mut seen, mut begun) = (vec![], None);
    for line in trace.lines() {
        let call = match line {
            _ if line.contains("\"+OK") => Some("answer"),
            _ if Some(thread_of(line)) != thread => continue,
            _ if line.contains(" resumed>") => begun.take(),
            _ if line.contains("fsync(") && line.contains("/.tidemark-") => Some("file"),
            _ if line.contains("fsync(") => Some("folder"),
            _ if renames(line) => Some("rename"),
            _ => None,
        };
        if line.contains("<unfinished ...>") && call != Some("answer") {
            begun = call;
        } else {
            seen.extend(call);
        }
    }
    seen
}

#[test]
fn an_order_is_on_the_disk_before_it_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let [data, trace, config] =
        ["data", "trace", "tidemark.toml"].map(|name| folder.path().join(name));
    std::fs::write(&config, "[server]\nworkers = 1\n").unwrap();
    let watched = "trace=fsync,rename,renameat,renameat2,write,writev,sendto,sendmsg";
    let options = ["-y", "-s", "64", "-o", trace.to_str().unwrap(), "-e", watched];
    let Some(program) = under_strace(&options, &data, &config) else { return };
    let mut client = program.client();
    for (words, name) in [
        ("CONFIG REWRITE", "tidemark.toml"),
        ("REPLICAOF 127.0.0.1 1", "tidemark.role"),
        ("REPLICAOF NO ONE", "tidemark.role"),
    ] {
        assert_eq!(refusal(&call(&mut client, "CONFIG SET slowlog-max-len 7")), "");
        let before = std::fs::read(&trace).unwrap().len();
        assert_eq!(refusal(&call(&mut client, words)), "", "{words}");
        // When one more reply has arrived, the trace contains all earlier calls.
        assert_eq!(refusal(&call(&mut client, "CONFIG SET slowlog-max-len 8")), "");
        let trace = std::fs::read(&trace).unwrap();
        let trace = String::from_utf8_lossy(&trace[before..]);
        let wanted = ["file", "rename", "folder", "answer"];
        assert_eq!(calls(&trace, name).get(..4), Some(&wanted[..]), "{words}:\n{trace}");
    }
}

#[test]
fn an_order_that_is_not_on_the_disk_is_answered_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let own = tempfile::tempdir().unwrap();
    let (data, config) = (folder.path().join("data"), own.path().join("tidemark.toml"));
    std::fs::write(&config, "[server]\nworkers = 1\n").unwrap();
    // The calls fail only for the folder that contains the file, because strace matches the path of
    // the folder.
    let fails = [
        "-o",
        "/dev/null",
        "-P",
        own.path().to_str().unwrap(),
        "-e",
        "trace=fsync",
        "-e",
        "inject=fsync:error=EIO",
    ];
    let Some(program) = under_strace(&fails, &data, &config) else { return };
    let mut client = program.client();
    for words in ["MULTI", "REPLICAOF 127.0.0.1 1", "CONFIG REWRITE"] {
        assert_eq!(refusal(&call(&mut client, words)), "");
    }
    let Reply::Array(done) = call(&mut client, "EXEC") else { panic!("EXEC has a reply for each") };
    assert_eq!(refusal(&done[0]), "");
    assert!(refusal(&done[1]).starts_with("ERR Rewriting config file: "), "{done:?}");
}

#[test]
fn a_role_that_cannot_be_written_down_is_not_taken() {
    let Some(disk) = SmallDisk::mount(96) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let program = Program::start(disk.path(), "everysec");
    let mut client = program.client();
    let like = format!("HINCRBY post:{FIRST} like 1");
    assert_eq!(refusal(&call(&mut client, &like)), "");
    assert_eq!(refusal(&call(&mut client, "WAITAOF 1 0 0")), "");
    disk.fill(0);
    let reply = call(&mut client, "REPLICAOF 127.0.0.1 1");
    assert!(
        refusal(&reply).starts_with("ERR cannot save the role in the data folder: "),
        "{reply:?}"
    );
    let Reply::Array(role) = call(&mut client, "ROLE") else { panic!("ROLE has several") };
    assert_eq!(role[0], Reply::BulkString(b"master".to_vec()));
    disk.make_room();
    assert_eq!(refusal(&call(&mut client, &like)), "", "the node is no longer a master");
    assert_eq!(refusal(&call(&mut client, "REPLICAOF 127.0.0.1 1")), "");
    assert!(refusal(&call(&mut client, &like)).starts_with("READONLY"));
    program.kill();
    let again = Program::start(disk.path(), "everysec");
    assert!(
        refusal(&call(&mut again.client(), &like)).starts_with("READONLY"),
        "after a kill, too"
    );
}

/// Checks that another client of the only worker receives replies while the sender of `sent` waits
/// for the disk. Returns how many of these replies arrived before the sender's last reply line and
/// before `is_over`.
fn answered_meanwhile(
    program: &Program,
    sent: &str,
    last: &str,
    is_over: impl Fn() -> bool,
) -> usize {
    let mut others = program.client();
    let mut stream = TcpStream::connect(("127.0.0.1", program.port)).unwrap();
    stream.write_all(sent.as_bytes()).unwrap();
    let (said, says) = mpsc::channel();
    let reader = BufReader::new(stream.try_clone().unwrap());
    let listens = std::thread::spawn(move || {
        reader.lines().map_while(Result::ok).for_each(|line| _ = said.send(line))
    });
    let (mut times, mut has_come) = (0, false);
    while !has_come || !is_over() {
        for words in
            ["INFO", "ROLE", "CONFIG SET slowlog-max-len 9", &format!("HGET post:{FIRST} like")]
        {
            assert_eq!(refusal(&call(&mut others, words)), "", "{words}");
        }
        times += 1;
        has_come |= says.try_iter().any(|line| {
            assert!(!line.starts_with('-'), "{sent}: {line}");
            line == last
        });
    }
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    listens.join().unwrap();
    times
}

#[test]
fn only_the_client_of_an_order_waits_for_its_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (data, config) = (folder.path().join("data"), folder.path().join("tidemark.toml"));
    std::fs::write(&config, "[server]\nworkers = 1\n").unwrap();
    let slow = ["-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:delay_enter=500000"];
    let Some(program) = under_strace(&slow, &data, &config) else { return };
    assert_eq!(refusal(&call(&mut program.client(), &format!("HINCRBY post:{FIRST} like 1"))), "");
    let role = || std::fs::read_to_string(data.join("tidemark.role")).unwrap_or_default();
    let goes_on = |sent: &str, last: &str, is_over: &dyn Fn() -> bool| {
        let times = answered_meanwhile(&program, sent, last, is_over);
        assert!(
            times >= 4,
            "{sent}: others were answered {times} times while the disk was written"
        );
    };
    // The transaction as Sentinel sends it.
    let sentinel = |order: &str| {
        let order = format!("SLAVEOF {order}\r\nCONFIG REWRITE\r\nCLIENT KILL TYPE pubsub\r\n");
        format!("MULTI\r\n{order}EXEC\r\nECHO done\r\n")
    };
    goes_on("CONFIG SET timeout 100\r\nCONFIG REWRITE\r\nECHO done\r\n", "done", &|| true);
    goes_on("REPLICAOF 127.0.0.1 1\r\nECHO done\r\n", "done", &|| {
        role().contains("master 127.0.0.1 1\n")
    });
    goes_on("REPLICAOF NO ONE\r\nECHO done\r\n", "done", &|| role().contains("master -"));
    goes_on(&sentinel("127.0.0.1 1"), "done", &|| role().contains("master 127.0.0.1 1\n"));
    goes_on(&sentinel("NO ONE"), "done", &|| role().contains("master -"));
    until("the node is a master", || {
        refusal(&call(&mut program.client(), &format!("HINCRBY post:{FIRST} like 1"))).is_empty()
    });
    let hello =
        format!("127.0.0.1,26379,{},7,mymaster,127.0.0.1,{},7", "a".repeat(40), program.port);
    goes_on(&format!("PUBLISH __sentinel__:hello {hello}\r\n"), ":0", &|| {
        role().contains("sentinel 7 mymaster\n")
    });
    goes_on("TM.REPLICATE 3\r\n", "+OK", &|| role().contains("replicated yes"));
}

/// Sentinel receives the replies to its transaction in order, as from Redis, even if a command in
/// the transaction waits. No reply is lost or duplicated.
#[test]
fn transaction_waiting_for_disk_gets_replies_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (data, config) = (folder.path().join("data"), folder.path().join("tidemark.toml"));
    std::fs::write(&config, "[server]\nworkers = 1\n").unwrap();
    let program = Program::start_as(&[], &data, &["--config", config.to_str().unwrap()]).unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", program.port)).unwrap();
    let sent = "CLIENT ID\r\nMULTI\r\nPING\r\nSLAVEOF 127.0.0.1 1\r\nREPLICAOF 127.0.0.1 1\r\n\
                ROLE\r\nREPLICAOF no port\r\nCONFIG REWRITE\r\nSLAVEOF NO ONE\r\nFAILOVER ABORT\r\n\
                FAILOVER\r\nCLIENT KILL TYPE normal\r\nECHO last\r\nEXEC\r\nROLE\r\n\
                CLIENT REPLY SKIP\r\nCONFIG REWRITE\r\nECHO end\r\n";
    stream.write_all(sent.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut next = |count: usize| (0..count).map(|_| lines.next().unwrap()).collect::<Vec<_>>();
    assert!(next(1)[0].starts_with(':'));
    assert_eq!(next(1), ["+OK"]);
    assert_eq!(next(11), ["+QUEUED"; 11]);
    assert_eq!(next(4), ["*11", "+PONG", "+OK", "+OK Already connected to specified master"]);
    let role = next(9);
    assert_eq!(
        (role[0].as_str(), role[2].as_str(), role[4].as_str()),
        ("*5", "slave", "127.0.0.1"),
        "{role:?}"
    );
    assert_eq!(next(1), ["-ERR Invalid master port"]);
    assert_eq!(next(2), ["+OK", "+OK"]);
    assert_eq!(next(1), ["-ERR No failover in progress."]);
    assert_eq!(next(1), ["-ERR FAILOVER requires connected replicas."]);
    assert_eq!(next(3), [":0", "$4", "last"]);
    assert_eq!(next(5)[2], "master");
    assert_eq!(next(2), ["$3", "end"]);
    let mut client = program.client();
    let Reply::BulkString(stats) = call(&mut client, "INFO commandstats") else {
        panic!("INFO is text")
    };
    let stats = String::from_utf8(stats).unwrap();
    for counted in
        ["cmdstat_exec:calls=1,", "cmdstat_slaveof:calls=2,", "cmdstat_config|rewrite:calls=2,"]
    {
        assert!(stats.contains(counted), "{counted}: each is one call\n{stats}");
    }
}

const ROWS: u64 = 3_000;

/// Fills the disk so that the role file still fits, but the pending log does not.
fn nearly_full(disk: &SmallDisk, program: &Program) {
    let mut client = program.client();
    assert_eq!(refusal(&call(&mut client, &format!("HINCRBY post:{FIRST} like 1"))), "");
    assert_eq!(refusal(&call(&mut client, "WAITAOF 1 0 0")), "");
    disk.fill(12 << 10);
}

fn rows() -> String {
    (0..ROWS).map(|row| format!("HINCRBY post:{} like 5\r\n", FIRST + row * 4096)).collect()
}

fn row(program: &Program, row: u64) -> Reply {
    call(&mut program.client(), &format!("HGET post:{} like", FIRST + row * 4096))
}

fn info(program: &Program, key: &str) -> String {
    harness::program::info(&mut program.client(), key)
}

fn lines(program: &Program, sent: &str) -> Vec<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", program.port)).unwrap();
    stream.write_all(sent.as_bytes()).unwrap();
    stream.write_all(b"QUIT\r\n").unwrap();
    let mut lines: Vec<String> = BufReader::new(stream).lines().map_while(Result::ok).collect();
    assert_eq!(lines.pop().as_deref(), Some("+OK"), "of QUIT");
    lines
}

fn last_line(program: &Program, sent: &str) -> String {
    lines(program, sent).pop().unwrap()
}

#[test]
fn replicaof_is_refused_while_acknowledged_writes_are_unlogged() {
    let Some(disk) = SmallDisk::mount(96) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let program = Program::start(disk.path(), "everysec");
    nearly_full(&disk, &program);
    let said = lines(&program, &format!("{}REPLICAOF 127.0.0.1 1\r\n", rows()));
    let refusal = said.last().unwrap();
    assert!(
        refusal
            .starts_with("-ERR earlier writes are not in the log yet and would be lost: MISCONF"),
        "{refusal}"
    );
    // After the failed commit, the server accepts no further writes.
    let last = said.iter().rposition(|line| line.starts_with(':')).unwrap() as u64;
    let held = Reply::BulkString(text(if last == 0 { 6 } else { 5 }));
    assert_eq!((info(&program, "role"), row(&program, last)), ("master".into(), held.clone()));
    disk.make_room();
    until("space is available", || last_line(&program, "REPLICAOF 127.0.0.1 1\r\n") == "+OK");
    assert_eq!((info(&program, "role"), row(&program, last)), ("slave".into(), held.clone()));
    program.kill();
    assert_eq!(row(&Program::start(disk.path(), "everysec"), last), held);
}

/// The server repeats a failed last commit, even if REPLICAOF is in one transaction with the writes
/// and cannot wait for them.
#[test]
fn a_last_commit_that_fails_is_tried_until_it_is_in_the_log() {
    for is_taken_back in [false, true] {
        let Some(disk) = SmallDisk::mount(96) else {
            return cannot("requires permission to mount a tmpfs");
        };
        let program = Program::start(disk.path(), "everysec");
        nearly_full(&disk, &program);
        let mut reader = program.client();
        let transaction = format!("MULTI\r\n{}REPLICAOF 127.0.0.1 1\r\nEXEC\r\n", rows());
        assert_eq!(last_line(&program, &transaction), "+OK");
        let is_said =
            || info(&program, "master_link_error").contains("the last commit as a master failed");
        until("the node logs the failure", is_said);
        assert!(info(&program, "master_link_error").contains("disk full"));
        assert_eq!(
            (info(&program, "role"), info(&program, "slave_priority")),
            ("slave".into(), "0".into())
        );
        if is_taken_back {
            // The role file needs less space than the pending log.
            assert_eq!(last_line(&program, "REPLICAOF NO ONE\r\n"), "+OK");
            assert_eq!(row(&program, ROWS - 1), Reply::BulkString(text(5)));
        }
        assert_eq!(
            call(&mut reader, &format!("HGET post:{FIRST} like")),
            Reply::BulkString(text(6)),
            "same connection"
        );
        disk.make_room();
        if is_taken_back {
            until("the node accepts writes", || {
                refusal(&call(&mut reader, &format!("HINCRBY post:{FIRST} like 1"))).is_empty()
            });
            assert_eq!(refusal(&call(&mut reader, "WAITAOF 1 0 0")), "");
        } else {
            until("the node continues as a replica", || {
                info(&program, "master_link_error").contains("refused")
            });
        }
        assert_eq!(row(&program, ROWS - 1), Reply::BulkString(text(5)));
        program.kill();
        assert_eq!(
            row(&Program::start(disk.path(), "everysec"), ROWS - 1),
            Reply::BulkString(text(5))
        );
    }
}

/// Only text that Redis parses as a number between 0 and 65535 is a valid port.
#[test]
fn what_is_no_port_is_no_order() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "always");
    let mut client = program.client();
    for port in ["+1", " 1", "1 ", "01", "-1", "-0", "65536", "1e3", ""] {
        let reply = client.call(&[b"REPLICAOF", b"127.0.0.1", port.as_bytes()]).unwrap();
        assert_eq!(refusal(&reply), "ERR Invalid master port", "{port:?}");
    }
    assert_eq!(info(&program, "role"), "master");
    assert_eq!(refusal(&call(&mut client, "REPLICAOF 127.0.0.1 65535")), "");
    assert_eq!(
        (info(&program, "role"), info(&program, "master_port")),
        ("slave".to_owned(), "65535".to_owned())
    );
}

/// If a kill has interrupted the writing of a role, the next start removes the server's temporary
/// file, but no other files.
#[test]
fn a_start_removes_what_a_kill_has_left_of_a_role() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    assert!(Program::start(folder.path(), "always").terminate().success());
    let (left, other) = (path(".tidemark-a1B2c3.tmp"), path(".tidemark-notes.txt"));
    [&left, &other].into_iter().for_each(|file| std::fs::write(file, "tidemark role 3\n").unwrap());
    std::fs::create_dir(path(".tidemark-folder.tmp")).unwrap();
    let program = Program::start(folder.path(), "always");
    assert!(!left.exists() && other.exists() && path(".tidemark-folder.tmp").exists());
    // A second process must not delete files of a folder that is in use.
    std::fs::write(&left, "").unwrap();
    assert!(Program::start_as(&[], folder.path(), &[]).is_err());
    assert!(left.exists());
    drop(program);
}
