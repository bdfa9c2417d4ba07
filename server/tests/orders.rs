//! What an operator, or Sentinel, orders is on the disk before the answer: seen from outside, by strace, of the real program.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the report")]

mod common;

use common::{FIRST, Program, SmallDisk, call, cannot, refusal};
use redis_protocol::resp2::types::OwnedFrame;
use std::path::Path;
use std::process::Command;

/// The program with its configuration in a file, and with strace as its companion; none if there is no strace.
fn under_strace(options: &[&str], dir: &Path, config: &Path) -> Option<Program> {
    if Command::new("strace").arg("-V").output().is_err() {
        cannot("to see the order of system calls needs strace");
        return None;
    }
    let mut under = vec!["strace", "-D", "-f", "-q", "--seccomp-bpf"];
    under.extend(options);
    let started = Program::start_as(&under, dir, &["--config", config.to_str().unwrap()]);
    Some(started.unwrap_or_else(|said| panic!("{said:#?}")))
}

/// What the thread that gives a file of this name its name does, as each call is done, and when the first answer begins.
fn calls(trace: &str, name: &str) -> Vec<&'static str> {
    let thread_of = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let renames = |line: &str| line.contains("rename") && line.contains(&format!("/{name}\""));
    let thread = trace.lines().find(|line| renames(line)).map(thread_of);
    let (mut seen, mut begun) = (vec![], None);
    for line in trace.lines() {
        let call = match line {
            _ if line.contains("\"+OK") => Some("answer"),
            _ if Some(thread_of(line)) != thread => None,
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
    let [data, trace, config] = ["data", "trace", "tidemark.toml"].map(|name| folder.path().join(name));
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
        // Once it has answered something else, what it did before is in the trace.
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
    // The folder of the file; the file itself has another path.
    let fails =
        ["-o", "/dev/null", "-P", own.path().to_str().unwrap(), "-e", "trace=fsync", "-e", "inject=fsync:error=EIO"];
    let Some(program) = under_strace(&fails, &data, &config) else { return };
    let mut client = program.client();
    for words in ["MULTI", "REPLICAOF 127.0.0.1 1", "CONFIG REWRITE"] {
        assert_eq!(refusal(&call(&mut client, words)), "");
    }
    let OwnedFrame::Array(done) = call(&mut client, "EXEC") else { panic!("EXEC has a reply for each") };
    assert_eq!(refusal(&done[0]), "");
    assert!(refusal(&done[1]).starts_with("ERR Rewriting config file: "), "{done:?}");
}

#[test]
fn a_role_that_cannot_be_written_down_is_not_taken() {
    let Some(disk) = SmallDisk::mount(96) else { return cannot("a full disk needs the right to mount a tmpfs") };
    let program = Program::start(disk.path(), "everysec");
    let mut client = program.client();
    let like = format!("HINCRBY post:{FIRST} like 1");
    assert_eq!(refusal(&call(&mut client, &like)), "");
    assert_eq!(refusal(&call(&mut client, "WAITAOF 1 0 0")), "");
    disk.fill(0);
    let reply = call(&mut client, "REPLICAOF 127.0.0.1 1");
    assert!(refusal(&reply).starts_with("ERR the role cannot be written to the data folder: "), "{reply:?}");
    let OwnedFrame::Array(role) = call(&mut client, "ROLE") else { panic!("ROLE has several") };
    assert_eq!(role[0], OwnedFrame::BulkString(b"master".to_vec()));
    disk.make_room();
    assert_eq!(refusal(&call(&mut client, &like)), "", "it is still a master");
    assert_eq!(refusal(&call(&mut client, "REPLICAOF 127.0.0.1 1")), "");
    assert!(refusal(&call(&mut client, &like)).starts_with("READONLY"));
    program.kill();
    let again = Program::start(disk.path(), "everysec");
    assert!(refusal(&call(&mut again.client(), &like)).starts_with("READONLY"), "after a kill, too");
}
