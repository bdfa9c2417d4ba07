//! What clients' buffers take together has a limit: beyond it who takes most makes room, and nobody
//! else notices.

use tidemark_tests::{Raw, TestServer, eventually};

const MIB: usize = 1 << 20;

/// A request of so many bytes, but for its last.
fn unfinished(server: &TestServer, bytes: usize) -> Raw {
    let mut raw = server.raw();
    raw.send(format!("*2\r\n$4\r\nPING\r\n${}\r\n", bytes + 1)).send(vec![b'x'; bytes]);
    raw
}

/// So many bytes of commands that wait for EXEC.
fn queued(server: &TestServer, bytes: usize) -> Raw {
    let mut raw = server.raw();
    assert_eq!(raw.ask(&["MULTI"]), "+OK");
    let word = "x".repeat(100_000);
    for _ in 0..bytes / word.len() {
        assert_eq!(raw.ask(&["PING", &word]), "+QUEUED");
    }
    raw
}

/// A reply of so many bytes that is not read; the kernel takes some of them.
fn unread(server: &TestServer, bytes: usize) -> Raw {
    let mut raw = server.raw();
    raw.request(&["PING", &"x".repeat(bytes)]);
    raw
}

fn info(server: &TestServer, name: &str) -> usize {
    let info = redis::cmd("INFO").query::<redis::InfoDict>(&mut server.connection()).unwrap();
    info.get(name).unwrap_or_else(|| panic!("INFO has no {name}"))
}

#[test]
fn who_takes_most_makes_room() {
    for (kind, take) in [
        ("requests", unfinished as fn(&TestServer, usize) -> Raw),
        ("transactions", queued),
        ("replies", unread),
    ] {
        let server = TestServer::with(|config| config.server.max_clients_memory_bytes = 16 * MIB);
        let mut small: Vec<Raw> = (0..5).map(|_| unfinished(&server, 200_000)).collect();
        let mut stays = server.raw();
        assert_eq!(stays.ask(&["PING"]), "+PONG");
        // Far more than there is room for, whatever the kernel takes.
        let _large: Vec<Raw> = (0..10).map(|_| take(&server, 8 * MIB)).collect();
        eventually(kind, || {
            info(&server, "evicted_clients") > 0 && info(&server, "mem_clients_normal") <= 16 * MIB
        });
        eventually("who has gone is not there any more", || {
            info(&server, "connected_clients") < 17
        });
        for raw in &mut small {
            raw.send("x\r\n").expect("$200001\r\n");
            assert_eq!(raw.take(200_001).len(), 200_001);
            raw.expect("\r\n");
        }
        assert_eq!(stays.ask(&["PING"]), "+PONG", "{kind}");
    }
}

#[test]
fn who_does_not_read_messages_makes_room() {
    let server = TestServer::with(|config| config.server.max_clients_memory_bytes = 16 * MIB);
    let mut silent: Vec<Raw> = (0..10).map(|_| server.raw()).collect();
    for raw in &mut silent {
        raw.request(&["SUBSCRIBE", "a"]).expect("*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    }
    let mut publisher = server.raw();
    let message = "x".repeat(MIB);
    // The limit of one client is 32 MiB.
    for _ in 0..24 {
        publisher.request(&["PUBLISH", "a", &message]);
        assert!(publisher.line().starts_with(':'));
    }
    eventually("they have gone", || {
        info(&server, "evicted_clients") > 0 && info(&server, "mem_clients_normal") <= 16 * MIB
    });
    assert_eq!(publisher.ask(&["PING"]), "+PONG");
}

#[test]
fn the_limit_holds_at_once_and_not_for_who_asked_to_stay() {
    let server = TestServer::start();
    let mut operator = server.raw();
    let mut kept = server.raw();
    assert_eq!(kept.ask(&["CLIENT", "NO-EVICT", "ON"]), "+OK");
    assert_eq!(kept.ask(&["MULTI"]), "+OK");
    assert_eq!(kept.ask(&["PING", &"x".repeat(5 * MIB)]), "+QUEUED");
    let mut large = queued(&server, 3 * MIB);
    let mut small = queued(&server, MIB);
    assert!(info(&server, "mem_clients_normal") >= 9_000_000);
    assert_eq!(operator.ask(&["CONFIG", "SET", "maxmemory-clients", "8mb"]), "+OK");
    assert_eq!(large.rest(), "", "it took most of those who may go");
    assert_eq!(small.ask(&["PING"]), "+QUEUED");
    assert_eq!(info(&server, "evicted_clients"), 1);
    assert_eq!(operator.ask(&["CONFIG", "RESETSTAT"]), "+OK");
    assert_eq!(info(&server, "evicted_clients"), 0);
    // Who stays counts, too.
    assert_eq!(operator.ask(&["CONFIG", "SET", "maxmemory-clients", "1"]), "+OK");
    assert_eq!(small.rest(), "");
    assert_eq!(kept.ask(&["DISCARD"]), "+OK");
    assert_eq!(operator.ask(&["CONFIG", "SET", "maxmemory-clients", "0"]), "+OK");
    let mut again = queued(&server, 3 * MIB);
    assert_eq!(again.ask(&["DISCARD"]), "+OK", "there is no limit any more");
}
