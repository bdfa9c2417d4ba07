//! Checks that a master that shuts down waits for its replicas, and for a replica that takes over,
//! up to the configured timeout.

use super::{
    SPACES, assert_ok, bulk, follow, is_master, like_of, start, synced_pair_with_config,
    wait_for_sync,
};
use client::Reply;
use harness::program::{FIRST, Program, SmallDisk, call, cannot, refusal, until};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Returns a port that forwards to a server, and a flag that blocks data from the server.
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

/// Sends a request in the background. Returns the reply, or `None` if the connection closes without
/// a reply.
fn told(program: &Program, words: &str) -> std::thread::JoinHandle<Option<Reply>> {
    let (mut client, words) = (program.client(), words.to_owned());
    std::thread::spawn(move || {
        client.call(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>()).ok()
    })
}

/// Begins to stop the server. Returns the pending reply to SHUTDOWN, or `None` if the server is
/// stopped by a signal.
fn begin_stop(program: &Program, how: &str) -> Option<std::thread::JoinHandle<Option<Reply>>> {
    if how == "SIGTERM" {
        program.sigterm();
        return None;
    }
    Some(told(program, how))
}

/// A master that is shutting down and waits for a replica. The gate has blocked its last write,
/// which sets the counter to 3. Writers wait until the shutdown ends.
struct StoppingMaster {
    folders: [tempfile::TempDir; 2],
    master: Program,
    replica: Program,
    /// Blocks the data from the master to the replica.
    gate: Arc<AtomicBool>,
    /// Reply to SHUTDOWN, or `None` for a signal.
    asked: Option<std::thread::JoinHandle<Option<Reply>>>,
    /// Reply to a write that was sent after the shutdown began.
    paused: std::thread::JoinHandle<Option<Reply>>,
}

impl StoppingMaster {
    fn by(how: &str) -> StoppingMaster {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [master, replica] = [0, 1].map(|n: usize| start(folders[n].path(), SPACES));
        let (port, gate) = gate_to(master.port);
        assert_ok(&replica, &format!("REPLICAOF 127.0.0.1 {port}"));
        wait_for_sync(&replica, &master);
        assert_ok(&master, "CONFIG SET shutdown-timeout 600");
        gate.store(true, SeqCst);
        assert_ok(&master, &format!("CNT.SET post {FIRST} like 3"));
        let asked = begin_stop(&master, how);
        until("the master waits for its replica", || is_stopping(&master));
        let paused = told(&master, &format!("CNT.SET post {FIRST} read 8"));
        let is_sent = |line: &str| line.contains(" qbuf=") && !line.contains(" qbuf=0 ");
        until("the write has reached the master", || match master.ask("CLIENT LIST") {
            Reply::BulkString(list) => String::from_utf8(list).unwrap().lines().any(is_sent),
            other => panic!("{other:?}"),
        });
        StoppingMaster { folders, master, replica, gate, asked, paused }
    }
}

fn is_stopping(master: &Program) -> bool {
    master.info("shutdown_in_milliseconds").parse::<u64>().is_ok_and(|ms| ms > 0)
}

/// Waits up to a minute until the process exits. Returns whether the exit status was 0.
fn ended(program: &mut Program) -> bool {
    let began = Instant::now();
    loop {
        if let Some(status) = program.child.try_wait().unwrap() {
            return status.success();
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the master did not exit in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn ends(program: &mut Program) {
    assert!(ended(program));
}

/// A planned restart under Sentinel: the replica that takes over must have all acknowledged writes.
#[test]
fn stopping_master_sends_last_writes_to_replicas() {
    for how in ["SIGTERM", "SHUTDOWN", "SHUTDOWN NOSAVE"] {
        let StoppingMaster { mut master, replica, gate, asked, paused, folders: _folders } =
            StoppingMaster::by(how);
        assert_eq!(like_of(&master, FIRST), bulk(3), "reads continue while the master waits");
        assert_eq!(like_of(&replica, FIRST), Reply::Null);
        let waiting = if asked.is_some() { "2" } else { "1" };
        until("the paused writer waits, and SHUTDOWN's client", || {
            master.info("blocked_clients") == waiting
        });
        assert!(master.child.try_wait().unwrap().is_none() && !paused.is_finished());
        gate.store(false, SeqCst);
        ends(&mut master);
        assert_eq!(
            asked.and_then(|asked| asked.join().unwrap()),
            None,
            "the server closed the connection without a reply"
        );
        assert_eq!(paused.join().unwrap(), None, "a write without a replica was acknowledged");
        assert_eq!(like_of(&replica, FIRST), bulk(3), "{how}");
        assert_eq!(replica.ask(&format!("HGET post:{FIRST} read")), bulk(0));
    }
}

#[test]
fn a_stop_that_waits_can_be_taken_back() {
    let StoppingMaster { mut master, replica, gate, asked, paused, folders: _folders } =
        StoppingMaster::by("SHUTDOWN");
    let also = told(&master, "SHUTDOWN NOW");
    until("as in Redis, both wait, beside the writer", || master.info("blocked_clients") == "3");
    // CLIENT UNBLOCK behaves as in Redis 7.2. Earlier versions of Redis crashed.
    let unblocked = (1..20).map(|id| master.ask(&format!("CLIENT UNBLOCK {id}")));
    assert!(unblocked.into_iter().all(|reply| reply == Reply::Integer(0)));
    for words in ["SHUTDOWN ABORT NOW", "SHUTDOWN NOSAVE ABORT", "SHUTDOWN SAVE NOSAVE"] {
        assert_eq!(refusal(&master.ask(words)), "ERR syntax error", "{words}");
    }
    assert_ok(&master, "SHUTDOWN ABORT ABORT");
    for reply in [asked.unwrap(), also] {
        until("SHUTDOWN's client is told", || reply.is_finished());
        assert_eq!(
            reply.join().unwrap().as_ref().map(refusal),
            Some("ERR Errors trying to SHUTDOWN. Check logs.")
        );
    }
    until("writes go on", || paused.is_finished());
    assert_eq!(
        paused.join().unwrap().as_ref().map(refusal),
        Some(""),
        "the write was rejected instead of delayed"
    );
    assert_eq!((master.info("blocked_clients"), is_stopping(&master)), ("0".to_owned(), false));
    assert_eq!(refusal(&master.ask("SHUTDOWN ABORT")), "ERR No shutdown in progress.");
    assert_ok(&master, &format!("CNT.SET post {FIRST} like 4"));

    master.sigterm();
    until("the master waits again", || is_stopping(&master));
    gate.store(false, SeqCst);
    ends(&mut master);
    assert_eq!(like_of(&replica, FIRST), bulk(4));
    assert_eq!(replica.ask(&format!("HGET post:{FIRST} read")), bulk(8));
}

#[test]
fn a_replica_that_lags_keeps_a_stop_no_longer_than_is_wanted() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let replica = start(folders[1].path(), SPACES);
    for (seconds, how) in [
        ("1", "SIGTERM"),
        ("1", "SHUTDOWN"),
        ("600", "SHUTDOWN NOW"),
        ("0", "SHUTDOWN"),
        ("600", "SIGINT"),
    ] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "[server]\nshutdown_timeout = {seconds}\n{SPACES}").unwrap();
        let options = ["--fsync", "always", "--config", file.path().to_str().unwrap()];
        let started = Program::start_until(&[], folders[0].path(), &options, "ready to accept");
        let (mut master, said) = started.unwrap_or_else(|said| panic!("{said:#?}"));
        let said = std::thread::spawn(|| said.map_while(Result::ok).collect::<Vec<_>>());
        assert_ok(&master, "REPLICAOF NO ONE");
        follow(&replica, &master);
        wait_for_sync(&replica, &master);
        replica.freeze(true);
        assert_ok(&master, &format!("HINCRBY post:{FIRST} like 1"));
        let (began, mut asked) = (Instant::now(), None);
        match how {
            "SIGTERM" => master.sigterm(),
            // After SIGTERM, even a repeated one, the server waits for its replicas. SIGINT (a
            // second Ctrl-C by the operator) ends the wait.
            "SIGINT" => {
                master.sigterm();
                until("the client is blocked", || is_stopping(&master));
                master.sigterm();
                std::thread::sleep(Duration::from_millis(300));
                assert!(is_stopping(&master), "a second SIGTERM changes nothing");
                let pid = rustix::process::Pid::from_child(&master.child);
                rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
            }
            words => asked = Some(told(&master, words)),
        }
        ends(&mut master);
        assert_eq!(asked.and_then(|asked| asked.join().unwrap()), None, "no reply");
        assert!(
            seconds != "1" || began.elapsed() >= Duration::from_secs(1),
            "{how}: {:?}",
            began.elapsed()
        );
        replica.freeze(false);
        let said = said.join().unwrap();
        if how != "SIGINT" {
            let lags = format!("Lagging replica 127.0.0.1:{} reported offset ", replica.port);
            assert!(said.iter().any(|line| line.contains(&lags)), "{said:#?}");
            assert!(
                said.iter().any(|line| line.contains("0 of 1 replicas are in sync")),
                "{said:#?}"
            );
        }
    }
}

#[test]
fn a_server_without_replicas_stops_at_once() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [mut master, replica] = [0, 1].map(|n: usize| start(folders[n].path(), SPACES));
    assert_ok(&master, "CONFIG SET shutdown-timeout 600");
    follow(&replica, &master);
    wait_for_sync(&replica, &master);
    replica.kill();
    until("the replica is disconnected", || master.info("connected_slaves") == "0");
    assert_ok(&master, &format!("CNT.SET post {FIRST} like 1"));
    master.sigterm();
    ends(&mut master);
}

#[test]
fn a_master_that_is_killed_while_it_waits_loses_nothing() {
    let StoppingMaster { mut master, replica, gate, paused, folders, asked: _ } =
        StoppingMaster::by("SIGTERM");
    master.sigkill();
    assert_eq!(paused.join().unwrap(), None);
    gate.store(false, SeqCst);
    let master = start(folders[0].path(), SPACES);
    assert_eq!(like_of(&master, FIRST), bulk(3));
    assert!(!is_stopping(&master));
    assert_ok(&master, "REPLICAOF NO ONE");
    assert_ok(&master, &format!("CNT.SET post {FIRST} read 9"));
    follow(&replica, &master);
    wait_for_sync(&replica, &master);
    assert_eq!(
        (like_of(&replica, FIRST), replica.info("repl_full_syncs")),
        (bulk(3), "1".to_owned())
    );
}

/// Starts a hand-over to a frozen replica, which has not read the request.
fn handing(shutdown_timeout_s: u32) -> ([tempfile::TempDir; 2], Program, Program) {
    let (folders, old, new) = synced_pair_with_config("");
    assert_ok(&old, &format!("CONFIG SET shutdown-timeout {shutdown_timeout_s}"));
    new.freeze(true);
    assert_ok(&old, "FAILOVER");
    until("the replica is asked to take over", || old.info("role") == "slave");
    assert_eq!(old.info("master_failover_state"), "failover-in-progress");
    (folders, old, new)
}

/// A planned restart after FAILOVER: once the old master has exited, there is a new master.
#[test]
fn a_stop_waits_for_the_replica_that_is_to_take_over() {
    for how in ["SIGTERM", "SHUTDOWN"] {
        let (_folders, mut old, new) = handing(600);
        let asked = begin_stop(&old, how);
        until("the old master waits for the new master", || is_stopping(&old));
        new.freeze(false);
        ends(&mut old);
        assert_eq!(asked.and_then(|asked| asked.join().unwrap()), None, "no reply");
        is_master(&new, 3);
    }
}

#[test]
fn a_failover_while_a_master_stops_leaves_a_master() {
    for how in ["SIGTERM", "SHUTDOWN"] {
        let StoppingMaster { mut master, replica, gate, asked: _, paused, folders: _folders } =
            StoppingMaster::by(how);
        assert_ok(&master, "FAILOVER");
        assert_eq!(master.info("master_failover_state"), "waiting-for-sync");
        gate.store(false, SeqCst);
        ends(&mut master);
        assert_eq!(
            paused.join().unwrap(),
            None,
            "a write that the new master lacks was acknowledged"
        );
        is_master(&replica, 3);
    }
}

/// After a restart, the old master is either the master again, or repeats its request to the
/// replica.
#[test]
fn unfinished_failover_delays_stop_until_timeout_or_abort() {
    for is_aborted in [true, false] {
        let (folders, mut old, new) = handing(if is_aborted { 600 } else { 1 });
        old.sigterm();
        if is_aborted {
            until("the old master waits for the new master", || is_stopping(&old));
            // The server may exit before it replies.
            told(&old, "FAILOVER ABORT");
        }
        ends(&mut old);
        let port = old.port.to_string();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(SPACES.as_bytes()).unwrap();
        let options =
            ["--fsync", "always", "--config", file.path().to_str().unwrap(), "--port", &port];
        let old = Program::start_as(&[], folders[0].path(), &options)
            .unwrap_or_else(|said| panic!("{said:#?}"));
        let state = ["role", "master_failover_state"].map(|line| old.info(line));
        let (master, replica) = if is_aborted {
            assert_eq!(state, ["master", "no-failover"]);
            (&old, &new)
        } else {
            assert_eq!(state, ["slave", "failover-in-progress"]);
            (&new, &old)
        };
        new.freeze(false);
        is_master(master, 3);
        wait_for_sync(replica, master);
        assert_eq!(like_of(replica, FIRST), bulk(4));
    }
}

/// Replicas receive all data that is in the log at the time of the shutdown, and nothing else.
#[test]
fn a_forced_stop_does_not_wait_for_a_disk_that_takes_nothing() {
    let Some(disk) = SmallDisk::mount(16) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let folder = tempfile::tempdir().unwrap();
    let [mut master, replica] = [disk.path(), folder.path()].map(|path| start(path, SPACES));
    assert_ok(&master, "CONFIG SET shutdown-timeout 600");
    let (port, gate) = gate_to(master.port);
    assert_ok(&replica, &format!("REPLICAOF 127.0.0.1 {port}"));
    wait_for_sync(&replica, &master);
    gate.store(true, SeqCst);
    assert_ok(&master, &format!("CNT.SET post {FIRST} like 3"));
    disk.fill(256 << 10);
    let (mut last, mut client) = (FIRST, master.client());
    let mut is_taken = || {
        last += 4096;
        refusal(&call(&mut client, &format!("CNT.SET post {last} like 5"))).is_empty()
    };
    while is_taken() {}
    let asked = told(&master, "SHUTDOWN FORCE");
    until("the master waits for the replica", || is_stopping(&master));
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_stopping(&master) && like_of(&replica, FIRST) == Reply::Null);
    gate.store(false, SeqCst);
    // The exit status shows whether acknowledged writes were not synced.
    ended(&mut master);
    assert_eq!(asked.join().unwrap(), None, "no reply");
    assert_eq!(like_of(&replica, FIRST), bulk(3));
    assert_eq!(like_of(&replica, last - 4096), bulk(5), "the last accepted write");
}
