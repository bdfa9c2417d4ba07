//! Connections: handshakes, limits, and disconnects.

use std::io::Write;
use std::time::{Duration, Instant};
use tidemark_tests::{Raw, TestServer, eventually, request};

fn bulk(raw: &mut Raw, args: &[&str]) -> String {
    let head = raw.ask(args);
    let length: usize = head[1..].parse().unwrap_or_else(|_| panic!("{args:?}: {head}"));
    let text = raw.take(length);
    raw.expect("\r\n");
    text
}

#[test]
fn the_handshakes_of_stock_clients() {
    let server = TestServer::start();
    let mut raw = server.raw();
    // Handshakes of redis-py 8, ioredis, node-redis, Lettuce and go-redis.
    for (args, expected) in [
        (&["CLIENT", "SETINFO", "LIB-NAME", "redis-py"][..], "+OK"),
        (&["client", "setinfo", "lib-ver", "8.1.0"], "+OK"),
        (&["CLIENT", "SETINFO", "LIB-OS", "x"], "-ERR Unrecognized option 'LIB-OS'"),
        (
            &["CLIENT", "SETINFO", "LIB-NAME", "a b"],
            "-ERR lib-name cannot contain spaces, newlines or special characters.",
        ),
        (
            &["CLIENT", "MAINT_NOTIFICATIONS", "ON"],
            "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.",
        ),
        (&["CLIENT", "SETNAME", "me"], "+OK"),
        (
            &["CLIENT", "SETNAME", "a b"],
            "-ERR Client names cannot contain spaces, newlines or special characters.",
        ),
        (&["CLIENT"], "-ERR wrong number of arguments for 'client' command"),
        (&["CLIENT", "ID", "x"], "-ERR wrong number of arguments for 'client|id' command"),
        (&["CLIENT", "NO-EVICT", "on"], "+OK"),
        (&["CLIENT", "NO-TOUCH", "off"], "+OK"),
        (&["SELECT", "0"], "+OK"),
        (&["SELECT", "1"], "-ERR DB index is out of range"),
        (&["SELECT", "x"], "-ERR value is not an integer or out of range"),
        (&["HELLO", "4"], "-NOPROTO unsupported protocol version"),
        (&["HELLO", "x"], "-ERR Protocol version is not an integer or out of range"),
        (
            &["HELLO", "3", "AUTH", "nobody", "x"],
            "-WRONGPASS invalid username-password pair or user is disabled.",
        ),
        (&["AUTH", "default", "x"], "+OK"),
        (&["PING"], "+PONG"),
        (&["PING", "a", "b"], "-ERR wrong number of arguments for 'ping' command"),
        (&["CLIENT", "KILL", "1.2.3.4:5"], "-ERR No such client"),
        (&["CLIENT", "KILL", "ID", "0"], "-ERR client-id should be greater than 0"),
        (&["CLIENT", "KILL", "TYPE", "pubsub"], ":0"),
        (&["CLIENT", "KILL", "TYPE", "x"], "-ERR Unknown client type 'x'"),
        (&["SHUTDOWN", "WHENEVER"], "-ERR syntax error"),
    ] {
        assert_eq!(raw.ask(args), expected, "{args:?}");
    }
    assert_eq!(bulk(&mut raw, &["CLIENT", "GETNAME"]), "me");
    let list = bulk(&mut raw, &["CLIENT", "LIST"]);
    for part in [
        "name=me ",
        " flags=e ",
        "lib-name=redis-py lib-ver=8.1.0",
        " cmd=client|list ",
        " resp=2 ",
    ] {
        assert!(list.contains(part), "{part}: {list}");
    }
    assert_eq!(raw.ask(&["HELLO", "3", "SETNAME", "you"]), "%7");
    let map: String = (0..40).map(|_| raw.line() + " ").collect();
    assert!(
        map.starts_with("$6 server $5 redis $7 version $5 7.")
            && map.contains("$7 modules *1 %4 $4 name $2 bf "),
        "{map}"
    );
    assert_eq!(raw.ask(&["PING"]), "+PONG");
    assert_eq!(bulk(&mut raw, &["CLIENT", "GETNAME"]), "you");
    let mut raw = server.raw();
    raw.request(&["RESET"]).expect("+RESET\r\n").request(&["QUIT"]).expect("+OK\r\n");
    assert_eq!(raw.rest(), "");
}

#[test]
fn a_pipeline_is_answered_in_order_however_it_arrives() {
    let server = TestServer::start();
    let mut bytes = Vec::new();
    let mut expected = String::new();
    for i in 0..2000 {
        bytes.extend(request(&["ECHO", &i.to_string()]));
        expected += &format!("${}\r\n{i}\r\n", i.to_string().len());
    }
    let mut raw = server.raw();
    raw.send(&bytes).expect(&expected);
    let mut raw = server.raw();
    for piece in bytes[..3000].chunks(7) {
        raw.send(piece);
    }
    raw.send(&bytes[3000..]).expect(&expected);
}

#[test]
fn replies_can_be_switched_off() {
    let server = TestServer::start();
    let mut raw = server.raw();
    raw.request(&["CLIENT", "REPLY", "OFF"]).request(&["PING"]).request(&["NOPE"]);
    raw.request(&["CLIENT", "REPLY", "ON"]).expect("+OK\r\n");
    raw.request(&["CLIENT", "REPLY", "SKIP"])
        .request(&["PING"])
        .request(&["ECHO", "a"])
        .expect("$1\r\na\r\n");
}

#[test]
fn clients_can_be_listed_and_killed() {
    let server = TestServer::start();
    let (mut one, mut two) = (server.raw(), server.raw());
    let id = one.ask(&["CLIENT", "ID"])[1..].to_owned();
    assert_eq!(two.ask(&["CLIENT", "KILL", "ID", &id]), ":1");
    assert_eq!(one.rest(), "");
    let address = two.stream.local_addr().unwrap().to_string();
    assert_eq!(two.ask(&["CLIENT", "KILL", "ADDR", &address]), ":0", "SKIPME is the default");
    assert_eq!(two.ask(&["CLIENT", "KILL", "ADDR", &address, "SKIPME", "no"]), ":1");
    assert_eq!(two.rest(), "");
    let mut three = server.raw();
    eventually("only one client is listed", || {
        bulk(&mut three, &["CLIENT", "LIST"]).lines().count() == 1
    });
}

#[test]
fn one_client_too_many_is_told_so() {
    let server = TestServer::with(|config| config.server.max_clients = 2);
    let (mut one, mut two) = (server.raw(), server.raw());
    one.request(&["PING"]).expect("+PONG\r\n");
    two.request(&["PING"]).expect("+PONG\r\n");
    assert_eq!(server.raw().rest(), "-ERR max number of clients reached\r\n");
    drop(one);
    eventually("space is available again", || server.raw().ask(&["PING"]) == "+PONG");
}

#[test]
fn idle_clients_are_disconnected_if_so_configured() {
    let server = TestServer::with(|config| config.server.idle_timeout_s = 1);
    let mut raw = server.raw();
    raw.request(&["PING"]).expect("+PONG\r\n");
    let start = Instant::now();
    assert_eq!(raw.rest(), "");
    assert!(start.elapsed() >= Duration::from_millis(900));
}

#[test]
fn subscribers_replicas_and_blocked_clients_are_not_idle() {
    let server = TestServer::with(|config| config.server.idle_timeout_s = 1);
    let replica = TestServer::start();
    let (host, port) = ("127.0.0.1", server.port().to_string());
    redis::cmd("REPLICAOF").arg(host).arg(&port).query::<()>(&mut replica.connection()).unwrap();
    eventually("the replica is connected", || server.raw().ask(&["WAIT", "1", "100"]) == ":1");
    let link = || {
        let info = redis::cmd("INFO").query::<redis::InfoDict>(&mut replica.connection()).unwrap();
        ["master_link_status", "repl_continued", "repl_full_syncs"]
            .map(|name| info.get::<String>(name).unwrap())
    };
    eventually("the link is up", || link()[0] == "up");
    let before = link();
    let mut listener = server.raw();
    listener.request(&["SUBSCRIBE", "a"]).expect("*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    let mut monitor = server.raw();
    monitor.request(&["MONITOR"]).expect("+OK\r\n");
    let (mut waiter, mut plain) = (server.raw(), server.raw());
    waiter.request(&["WAIT", "2", "3500"]);
    plain.request(&["PING"]).expect("+PONG\r\n");
    waiter.expect(":1\r\n");
    assert_eq!(plain.rest(), "", "a client that may have sent something");
    assert_eq!(server.raw().ask(&["PUBLISH", "a", "x"]), ":1");
    listener.expect("*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n");
    while !monitor.line().contains("\"PUBLISH\"") {}
    assert_eq!(link(), before, "the link was reopened");
}

fn connected(server: &TestServer) -> usize {
    let info = redis::cmd("INFO")
        .arg("clients")
        .query::<redis::InfoDict>(&mut server.connection())
        .unwrap();
    info.get("connected_clients").unwrap()
}

/// A client that disconnects while blocked may have repeated its request on another connection,
/// so the server drops the request.
#[test]
fn a_client_that_leaves_while_blocked_is_noticed() {
    let server = TestServer::with(|config| config.server.max_clients = 40);
    for gone in [&["WAIT", "1", "0"][..], &["DEBUG", "SLEEP", "3600"]] {
        for _ in 0..20 {
            server.raw().request(gone);
        }
        eventually("the clients are closed", || connected(&server) == 1);
    }
    let mut operator = server.raw();
    let mut waits = server.raw();
    waits.request(&["WAIT", "1", "0"]);
    eventually("the client is blocked", || {
        redis::cmd("INFO")
            .query::<redis::InfoDict>(&mut server.connection())
            .unwrap()
            .get("blocked_clients")
            == Some(1)
    });
    assert_eq!(operator.ask(&["CLIENT", "PAUSE", "60000", "WRITE"]), "+OK");
    for _ in 0..20 {
        server.raw().request(&["HINCRBY", "post:1", "like", "1"]);
    }
    let mut stays = server.raw();
    stays.request(&["HINCRBY", "post:1", "like", "1"]);
    eventually("the clients are closed", || connected(&server) == 4);
    assert_eq!(operator.ask(&["CLIENT", "UNPAUSE"]), "+OK");
    stays.expect(":1\r\n");
}

/// After RESET a connection gets the full login time of a new connection.
#[test]
fn a_reset_connection_has_time_to_log_in_again() {
    let server = TestServer::with(|config| {
        config.security.password = "secret".to_owned();
        config.security.handshake_timeout_s = 1;
    });
    let mut raw = server.raw();
    assert_eq!(raw.ask(&["AUTH", "secret"]), "+OK");
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(raw.ask(&["RESET"]), "+RESET");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(raw.ask(&["AUTH", "secret"]), "+OK");
    assert_eq!(raw.ask(&["RESET"]), "+RESET");
    let start = Instant::now();
    assert_eq!(raw.rest(), "");
    assert!(start.elapsed() > Duration::from_millis(900), "{:?}", start.elapsed());
}

/// Other clients can log in, regardless of how many unauthenticated clients connect and what they
/// send.
#[test]
fn unauthenticated_clients_lock_no_client_out() {
    let server = TestServer::with(|config| {
        config.security.password = "secret".to_owned();
        config.server.max_clients = 30;
    });
    for words in [&["RESET"][..], &["AUTH", "x"], &["HELLO"]] {
        let mut strangers: Vec<Raw> = (0..60).map(|_| server.raw()).collect();
        strangers.iter_mut().for_each(|stranger| drop(stranger.stream.write_all(&request(words))));
        for _ in 0..10 {
            assert_eq!(server.raw().ask(&["AUTH", "secret"]), "+OK", "{words:?}");
        }
    }
}

/// A late or failing reply does not change the earlier replies of the same batch.
#[test]
fn a_snapshot_that_fails_is_the_error_of_its_own_command() {
    let server = TestServer::start();
    let folder = server.folder().to_owned();
    let away = folder.with_extension("away");
    std::fs::rename(&folder, &away).unwrap();
    let mut raw = server.raw();
    raw.request(&["HINCRBY", "post:1", "like", "1"])
        .request(&["PING"])
        .request(&["SAVE"])
        .request(&["PING"]);
    raw.expect(":1\r\n+PONG\r\n-ERR ");
    let error = raw.line();
    raw.expect("+PONG\r\n");
    std::fs::rename(&away, &folder).unwrap();
    assert_eq!(raw.ask(&["SAVE"]), "+OK", "after: {error}");
}

#[test]
fn shutdown_stops_the_server_after_what_was_sent_before() {
    let server = TestServer::start();
    let mut raw = server.raw();
    raw.request(&["ECHO", "x"]).request(&["SHUTDOWN", "NOSAVE"]).request(&["PING"]);
    // The connection closes once the data folder is unlocked.
    server.join();
    assert_eq!(raw.rest(), "$1\r\nx\r\n");
}

#[test]
fn stopping_does_not_wait_for_idle_clients() {
    let server = TestServer::start();
    let mut raw = server.raw();
    raw.request(&["PING"]).expect("+PONG\r\n");
    let start = Instant::now();
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(raw.rest(), "");
}

#[test]
fn client_with_a_full_output_buffer_loses_no_reply() {
    const LIMIT: usize = 1 << 20;
    let server = TestServer::with(|config| config.server.max_output_buffer_bytes = LIMIT);
    let mut slow = server.raw();
    let ping = request(&["ECHO", &"x".repeat(1000)]);
    let batch = ping.repeat(100);
    slow.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut sent = 0;
    // Write until the buffers of both sides are full.
    while let Ok(n) = slow.stream.write(&batch[sent % batch.len()..]) {
        sent += n;
        assert!(sent < 200 << 20, "the server did not stop reading");
    }
    let mut other = server.raw();
    let list = bulk(&mut other, &["CLIENT", "LIST"]);
    let waiting: usize = list
        .split(" omem=")
        .skip(1)
        .map(|l| l.split(' ').next().unwrap().parse::<usize>().unwrap())
        .max()
        .unwrap();
    assert!((LIMIT..2 * LIMIT).contains(&waiting), "{waiting} bytes pending: {list}");
    // Once the client reads, every reply arrives complete and in order.
    let whole = sent / ping.len();
    let reply = format!("$1000\r\n{}\r\n", "x".repeat(1000));
    for _ in 0..whole {
        slow.expect(&reply);
    }
}

#[test]
fn info_and_config_answer_as_tools_expect() {
    let server = TestServer::start();
    let mut raw = server.raw();
    let info = bulk(&mut raw, &["INFO"]);
    for field in [
        "redis_version:7.",
        "loading:0",
        "connected_clients:1",
        "used_memory:",
        "role:master",
        "cluster_enabled:0",
    ] {
        assert!(info.contains(&format!("\r\n{field}")), "{field}: {info}");
    }
    let run_id = info.lines().find_map(|l| l.strip_prefix("run_id:")).unwrap();
    assert_eq!(run_id.trim().len(), 40);
    let one = bulk(&mut raw, &["info", "CPU", "nope"]);
    assert!(one.starts_with("# CPU\r\nused_cpu_sys:") && !one.contains("# Server"), "{one}");
    assert!(bulk(&mut raw, &["INFO", "everything"]).contains("# Keyspace"));
    let c = &mut server.connection();
    let map: std::collections::HashMap<String, String> = redis::cmd("CONFIG")
        .arg(&["GET", "save", "append*", "DATABASES", "server.port"])
        .query(c)
        .unwrap();
    assert_eq!(map["save"], "3600 1");
    assert_eq!(map["appendonly"], "yes");
    assert_eq!(map["databases"], "1");
    assert!(map.contains_key("server.port"));
    let all: std::collections::HashMap<String, String> =
        redis::cmd("CONFIG").arg(&["GET", "*"]).query(c).unwrap();
    assert!(
        all.contains_key("counter.post.fields") && !all.keys().any(|k| k.contains("seed")),
        "{all:?}"
    );
}
