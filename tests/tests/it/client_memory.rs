//! Memory limit of client buffers: above the limit, the client with the largest buffers is evicted,
//! and no other client is affected.

use tidemark_tests::{Raw, TestServer, eventually};

const MIB: usize = 1 << 20;

/// Sends a request of this size, except for its last byte.
fn unfinished(server: &TestServer, bytes: usize) -> Raw {
    let mut raw = server.raw();
    raw.send(format!("*2\r\n$4\r\nPING\r\n${}\r\n", bytes + 1)).send(vec![b'x'; bytes]);
    raw
}

/// Queues commands of this total size between MULTI and EXEC.
fn queued(server: &TestServer, bytes: usize) -> Raw {
    let mut raw = server.raw();
    assert_eq!(raw.ask(&["MULTI"]), "+OK");
    let word = "x".repeat(100_000);
    for _ in 0..bytes / word.len() {
        assert_eq!(raw.ask(&["PING", &word]), "+QUEUED");
    }
    raw
}

/// Requests a reply of this size and does not read it; the kernel buffers part of it.
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
fn the_largest_client_is_disconnected() {
    for (kind, take) in [
        ("requests", unfinished as fn(&TestServer, usize) -> Raw),
        ("transactions", queued),
        ("replies", unread),
    ] {
        let server = TestServer::with(|config| config.server.max_clients_memory_bytes = 16 * MIB);
        let mut small: Vec<Raw> = (0..5).map(|_| unfinished(&server, 200_000)).collect();
        let mut stays = server.raw();
        assert_eq!(stays.ask(&["PING"]), "+PONG");
        // Use much more memory than the limit, regardless of the kernel's buffers.
        let _large: Vec<Raw> = (0..10).map(|_| take(&server, 8 * MIB)).collect();
        eventually(kind, || {
            info(&server, "evicted_clients") > 0 && info(&server, "mem_clients_normal") <= 16 * MIB
        });
        eventually("a client that has gone is not listed", || {
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
fn a_client_that_does_not_read_messages_is_disconnected() {
    let server = TestServer::with(|config| config.server.max_clients_memory_bytes = 16 * MIB);
    let mut silent: Vec<Raw> = (0..10).map(|_| server.raw()).collect();
    for raw in &mut silent {
        raw.request(&["SUBSCRIBE", "a"]).expect("*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    }
    let mut publisher = server.raw();
    let message = "x".repeat(MIB);
    // The limit of a single client is 32 MiB.
    for _ in 0..24 {
        publisher.request(&["PUBLISH", "a", &message]);
        assert!(publisher.line().starts_with(':'));
    }
    eventually("they have gone", || {
        info(&server, "evicted_clients") > 0 && info(&server, "mem_clients_normal") <= 16 * MIB
    });
    assert_eq!(publisher.ask(&["PING"]), "+PONG");
}

/// Subscriptions and watched keys count as client memory, and the clients with the most of them are
/// evicted.
#[test]
fn subscriptions_and_watched_keys_count_and_make_room() {
    let server = TestServer::with(|config| config.server.max_clients_memory_bytes = 16 * MIB);
    let total = |raw: &mut Raw| {
        assert!(raw.ask(&["CLIENT", "INFO"]).starts_with(['$', '=']));
        let line = raw.line();
        let total = line.split(' ').find_map(|word| word.strip_prefix("tot-mem="));
        total.unwrap().parse::<usize>().unwrap()
    };
    let mut watcher = server.raw();
    let before = total(&mut watcher);
    for first in (0..10_000).step_by(1000) {
        let keys: Vec<String> = (first..first + 1000).map(|id| format!("post:{id}")).collect();
        let mut words = vec!["WATCH"];
        words.extend(keys.iter().map(String::as_str));
        assert_eq!(watcher.ask(&words), "+OK");
    }
    assert!(total(&mut watcher) >= before + 10_000 * 60, "{}", total(&mut watcher));
    assert_eq!(watcher.ask(&["UNWATCH"]), "+OK");
    assert_eq!(total(&mut watcher), before);
    // RESP3 allows a subscriber to run CLIENT INFO.
    let resident = tidemark_tests::resident_bytes();
    let listener = |letter: char| {
        let mut raw = server.raw();
        raw.request(&["HELLO", "3"]).request(&["ECHO", "mark"]);
        while raw.line() != "mark" {}
        for first in (0..4000).step_by(500) {
            let name = |id: usize| format!("{letter}{id:05}{}", "x".repeat(994));
            let names: Vec<String> = (first..first + 500).map(name).collect();
            let mut words = vec!["SUBSCRIBE"];
            words.extend(names.iter().map(String::as_str));
            raw.request(&words);
            let told = names.iter().zip(first + 1..).map(|(name, count)| {
                format!(">3\r\n$9\r\nsubscribe\r\n${}\r\n{name}\r\n:{count}\r\n", name.len())
            });
            raw.expect(&told.collect::<String>());
        }
        raw
    };
    let mut first = listener('a');
    assert!(total(&mut first) >= 4000 * 1000, "{}", total(&mut first));
    let counted = info(&server, "mem_clients_subscriptions");
    assert!(counted >= 4000 * 1000 && info(&server, "mem_clients_normal") >= counted);
    // A shared name is stored once but counts for each subscriber.
    let mut others: Vec<Raw> = ('b'..='j').map(listener).collect();
    eventually("those with most have gone", || {
        info(&server, "evicted_clients") > 0 && info(&server, "mem_clients_normal") <= 16 * MIB
    });
    assert_eq!(watcher.ask(&["PING"]), "+PONG");
    let grown = tidemark_tests::resident_bytes().saturating_sub(resident);
    assert!(grown < 300 << 20, "{grown} bytes, other tests beside it");
    for raw in others.iter_mut().chain([&mut first]) {
        raw.send("*1\r\n$5\r\nRESET\r\n");
    }
    eventually("nothing counts any more", || info(&server, "mem_clients_subscriptions") == 0);
}

/// The scanner state of an incomplete request counts as client memory and is released afterwards.
#[test]
fn what_the_scanner_knows_counts_until_the_request_is_done() {
    let server = TestServer::with(|config| config.server.max_clients_memory_bytes = 12 * MIB);
    let mut raw = server.raw();
    // Each argument takes seven bytes of input and eight bytes of scanner state. The input alone
    // would be allowed.
    raw.send(format!("*1000001\r\n$5\r\nTOUCH\r\n{}", "$1\r\n1\r\n".repeat(999_999)));
    assert_eq!(raw.rest(), "");
    eventually("it has most", || info(&server, "evicted_clients") == 1);
    let mut raw = server.raw();
    raw.send(format!("*100001\r\n$6\r\nEXISTS\r\n{}", "$1\r\n1\r\n".repeat(99_999)));
    eventually("the event is counted", || info(&server, "mem_clients_normal") > 600_000);
    raw.send("$1\r\n1\r\n");
    assert_eq!(raw.line(), ":0", "1 is a key of no space");
    eventually("the lag is 0", || info(&server, "mem_clients_normal") < 10_000);
}

#[test]
fn the_limit_holds_at_once_except_for_no_evict() {
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
    assert_eq!(large.rest(), "", "the largest client was not closed");
    assert_eq!(small.ask(&["PING"]), "+QUEUED");
    assert_eq!(info(&server, "evicted_clients"), 1);
    assert_eq!(operator.ask(&["CONFIG", "RESETSTAT"]), "+OK");
    assert_eq!(info(&server, "evicted_clients"), 0);
    // Lowering the limit affects connected clients.
    assert_eq!(operator.ask(&["CONFIG", "SET", "maxmemory-clients", "1"]), "+OK");
    assert_eq!(small.rest(), "");
    assert_eq!(kept.ask(&["DISCARD"]), "+OK");
    assert_eq!(operator.ask(&["CONFIG", "SET", "maxmemory-clients", "0"]), "+OK");
    let mut again = queued(&server, 3 * MIB);
    assert_eq!(again.ask(&["DISCARD"]), "+OK", "the limit still applies");
}
