//! Publish/subscribe: messages cross workers in order, in both protocols. A subscriber that does
//! not read is disconnected without effect on other clients. CLIENT KILL and CLIENT PAUSE are
//! tested here as well.

use std::time::{Duration, Instant};
use tidemark_tests::{DEFAULT_TIMEOUT, Raw, TestServer, eventually};

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn message(marker: char, parts: &[&str]) -> String {
    format!("{marker}{}\r\n{}", parts.len(), parts.iter().map(|p| bulk(p)).collect::<String>())
}

fn client(server: &TestServer, hello: bool) -> Raw {
    let mut raw = server.raw();
    if hello {
        raw.request(&["HELLO", "3"]).request(&["ECHO", "ready"]);
        while raw.line() != "ready" {}
    }
    raw
}

fn listener(server: &TestServer, hello: bool, words: &[&str]) -> Raw {
    let mut raw = client(server, hello);
    raw.request(words);
    for (n, name) in words[1..].iter().enumerate() {
        let marker = if hello { '>' } else { '*' };
        raw.expect(&format!(
            "{marker}3\r\n{}{}:{}\r\n",
            bulk(&words[0].to_lowercase()),
            bulk(name),
            n + 1
        ));
    }
    raw
}

#[test]
fn messages_reach_all_listeners_on_all_workers() {
    let server = TestServer::with(|config| config.server.workers = 3);
    let mut listeners: Vec<(Raw, char)> = (0..9)
        .map(|i| {
            let three = i % 2 == 1;
            (
                listener(&server, three, &["SUBSCRIBE", "news", "other"]),
                if three { '>' } else { '*' },
            )
        })
        .collect();
    let mut patterns = listener(&server, false, &["PSUBSCRIBE", "n?ws"]);
    let mut shard = listener(&server, true, &["SSUBSCRIBE", "news"]);
    let mut raw = server.raw();
    for i in 0..500 {
        let text = format!("message {i}\r\n");
        raw.request(&["PUBLISH", "news", &text]).expect(":10\r\n");
    }
    raw.request(&["SPUBLISH", "news", "s"]).expect(":1\r\n");
    raw.request(&["PUBLISH", "nobody", "x"]).expect(":0\r\n");
    for i in 0..500 {
        let text = format!("message {i}\r\n");
        for (listener, marker) in &mut listeners {
            listener.expect(&message(*marker, &["message", "news", &text]));
        }
        patterns.expect(&message('*', &["pmessage", "n?ws", "news", &text]));
    }
    shard.expect(&message('>', &["smessage", "news", "s"]));
    raw.request(&["PUBSUB", "NUMSUB", "news", "nobody"])
        .expect("*4\r\n$4\r\nnews\r\n:9\r\n$6\r\nnobody\r\n:0\r\n");
    raw.request(&["PUBSUB", "NUMPAT"]).expect(":1\r\n");
    raw.request(&["PUBSUB", "CHANNELS", "n*"]).expect("*1\r\n$4\r\nnews\r\n");
    raw.request(&["PUBSUB", "SHARDCHANNELS"]).expect("*1\r\n$4\r\nnews\r\n");
    drop((listeners, patterns, shard));
    eventually("the registry removes a closed client", || {
        raw.ask(&["PUBLISH", "news", "x"]) == ":0"
    });
    raw.request(&["PUBSUB", "CHANNELS"]).expect("*0\r\n");
}

#[test]
fn a_listener_in_resp2_may_send_little_and_in_resp3_everything() {
    let server = TestServer::start();
    let mut two = listener(&server, false, &["SUBSCRIBE", "a"]);
    two.request(&["GET", "post:1:like"]);
    two.expect(
        "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
         are allowed in this context\r\n",
    );
    two.request(&["PING"]).expect("*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    two.request(&["PING", "x"]).expect("*2\r\n$4\r\npong\r\n$1\r\nx\r\n");
    two.request(&["UNSUBSCRIBE"]).expect("*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n");
    two.request(&["UNSUBSCRIBE"]).expect("*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n");
    two.request(&["GET", "post:1:like"]).expect("$-1\r\n");

    let mut three = listener(&server, true, &["SUBSCRIBE", "a"]);
    three.request(&["INCR", "post:1:like"]).expect(":1\r\n");
    // The reply precedes the client's own message.
    three
        .request(&["PUBLISH", "a", "x"])
        .expect(":1\r\n")
        .expect(&message('>', &["message", "a", "x"]));
    three.request(&["RESET"]).expect("+RESET\r\n");
    three.request(&["PUBLISH", "a", "x"]).expect(":0\r\n");
}

/// A push must not appear inside EXEC's array, regardless of the commands in the transaction.
#[test]
fn messages_to_oneself_come_behind_all_of_a_transaction() {
    let server = TestServer::start();
    let own = message('>', &["message", "a", "x"]);
    let mut three = listener(&server, true, &["SUBSCRIBE", "a"]);
    let queue = |raw: &mut Raw, commands: &[&[&str]]| {
        raw.request(&["MULTI"]).expect("+OK\r\n");
        commands.iter().for_each(|words| _ = raw.request(words).expect("+QUEUED\r\n"));
        raw.request(&["EXEC"]);
    };
    queue(&mut three, &[&["PUBLISH", "a", "x"], &["PING"]]);
    three.expect("*2\r\n:1\r\n+PONG\r\n").expect(&own);
    // The message also arrives if the transaction unsubscribes after the PUBLISH.
    queue(&mut three, &[&["PUBLISH", "a", "x"], &["UNSUBSCRIBE", "a"], &["PING"]]);
    three.expect("*3\r\n:1\r\n>3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n+PONG\r\n").expect(&own);
    three.request(&["PING"]).expect("+PONG\r\n");
    // A message published after unsubscribing has no receiver.
    three.request(&["SUBSCRIBE", "a"]).expect(">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    queue(&mut three, &[&["PUBLISH", "a", "x"], &["UNSUBSCRIBE", "a"], &["PUBLISH", "a", "y"]]);
    three.expect("*3\r\n:1\r\n>3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n:0\r\n").expect(&own);
}

/// Another thread delivers long messages and messages with many receivers.
#[test]
fn a_large_message_overtakes_nothing_and_nothing_overtakes_it() {
    let server = TestServer::with(|config| config.server.workers = 2);
    let large = "x".repeat(200 << 10);
    let texts = [&large[..], "1", &large[1..], "2"];
    let mut listeners: Vec<Raw> =
        (0..4).map(|_| listener(&server, false, &["SUBSCRIBE", "a"])).collect();
    let mut pattern = listener(&server, false, &["PSUBSCRIBE", "[a-b]"]);
    let mut own = listener(&server, true, &["SUBSCRIBE", "a"]);
    for text in texts {
        own.request(&["PUBLISH", "a", text]);
    }
    own.request(&["PING"]);
    for text in texts {
        // The client's own message follows the reply.
        own.expect(":6\r\n").expect(&message('>', &["message", "a", text]));
    }
    own.expect("+PONG\r\n");
    for listener in &mut listeners {
        for text in texts {
            listener.expect(&message('*', &["message", "a", text]));
        }
    }
    for text in texts {
        pattern.expect(&message('*', &["pmessage", "[a-b]", "a", text]));
    }
    // Repeats the test in a transaction, with and without data commands.
    let mut raw = server.raw();
    for (command, reply) in [("PING", "+PONG\r\n"), ("EXISTS", ":0\r\n")] {
        raw.request(&["MULTI"]).expect("+OK\r\n");
        raw.request(&["PUBLISH", "a", &large]).expect("+QUEUED\r\n");
        let words: &[&str] = if command == "PING" { &["PING"] } else { &["EXISTS", "post:1"] };
        raw.request(words).expect("+QUEUED\r\n");
        raw.request(&["EXEC"]).expect(&format!("*2\r\n:6\r\n{reply}"));
        listeners[0].expect(&message('*', &["message", "a", &large]));
    }
}

/// CLIENT REPLY OFF suppresses replies but not messages.
#[test]
fn messages_come_though_replies_are_off() {
    let server = TestServer::start();
    for (hello, sign) in [(false, '*'), (true, '>')] {
        let mut raw = client(&server, hello);
        raw.request(&["CLIENT", "REPLY", "OFF"]).request(&["PING"]).request(&["SUBSCRIBE", "b"]);
        raw.expect(&format!("{sign}3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:1\r\n"));
        let mut other = server.raw();
        other.request(&["PUBLISH", "b", "x"]).expect(":1\r\n");
        raw.expect(&message(sign, &["message", "b", "x"]));
        if hello {
            raw.request(&["PUBLISH", "b", "y"]).expect(&message(sign, &["message", "b", "y"]));
        }
        // Pending messages arrive before the confirmation of UNSUBSCRIBE.
        other.request(&["PUBLISH", "b", "z"]).expect(":1\r\n");
        raw.request(&["UNSUBSCRIBE"]).request(&["PING"]).request(&["CLIENT", "REPLY", "ON"]);
        raw.expect(&message(sign, &["message", "b", "z"]));
        raw.expect(&format!("{sign}3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:0\r\n+OK\r\n"));
    }
}

#[test]
fn a_subscriber_that_does_not_read_is_disconnected() {
    let server = TestServer::with(|config| config.server.max_push_buffer_bytes = 1 << 20);
    let mut deaf = listener(&server, false, &["SUBSCRIBE", "flood"]);
    let mut good = listener(&server, false, &["SUBSCRIBE", "flood"]);
    let mut raw = server.raw();
    let text = "x".repeat(100_000);
    let started = Instant::now();
    let expected = message('*', &["message", "flood", &text]);
    loop {
        let got = raw.ask(&["PUBLISH", "flood", &text]);
        good.expect(&expected);
        if got == ":1" {
            break;
        }
        assert!(started.elapsed() < DEFAULT_TIMEOUT, "the client was not disconnected");
    }
    // The client receives what was written before the disconnect.
    deaf.rest();
    raw.request(&["PUBLISH", "flood", "x"]).expect(":1\r\n");
}

fn admin_sets(server: &TestServer, name: &str, value: &str) {
    assert_eq!(server.raw().ask(&["CONFIG", "SET", name, value]), "+OK");
}

#[test]
fn names_and_numbers_of_subscriptions_are_limited() {
    let server = TestServer::with(|config| config.server.max_subscriptions = 2);
    let mut raw = server.raw();
    assert_eq!(
        raw.ask(&["SUBSCRIBE", "a", "b", "c"]),
        "-ERR too many subscriptions: at most 2 of each kind per client (max_subscriptions)"
    );
    assert_eq!(
        raw.ask(&["SUBSCRIBE", &"x".repeat(5000)]),
        "-ERR channel too long: at most 4096 bytes"
    );
    assert_eq!(
        raw.ask(&["PSUBSCRIBE", &"x".repeat(500)]),
        "-ERR pattern too long: at most 256 bytes"
    );
    // The limit in bytes covers all kinds of subscriptions; a repeated subscription takes no
    // additional memory.
    admin_sets(&server, "server.max_subscriptions_memory", "2048");
    raw.request(&["HELLO", "3"]);
    while raw.line() != "modules" {}
    raw.request(&["ECHO", "mark"]);
    while raw.line() != "mark" {}
    let (long, other) = ("x".repeat(1000), "y".repeat(1000));
    assert_eq!(raw.ask(&["SUBSCRIBE", &long]), ">3");
    (0..5).for_each(|_| drop(raw.line()));
    let error =
        "-ERR the subscriptions of a client are limited to 2048 bytes (max_subscriptions_memory)";
    assert_eq!(raw.ask(&["SSUBSCRIBE", &other]), error);
    assert_eq!(raw.ask(&["SUBSCRIBE", &long]), ">3");
    (0..5).for_each(|_| drop(raw.line()));
    assert_eq!(raw.ask(&["UNSUBSCRIBE"]), ">3");
    (0..5).for_each(|_| drop(raw.line()));
    assert_eq!(raw.ask(&["SSUBSCRIBE", &other]), ">3");
    (0..5).for_each(|_| drop(raw.line()));
    raw.request(&["PING"]).expect("+PONG\r\n");
}

/// Sentinel's failover transaction is accepted and executed. Other clients are disconnected, but
/// the caller is not.
#[test]
fn kill_by_type_spares_the_caller_and_other_types() {
    let server = TestServer::start();
    let mut normal: Vec<Raw> = (0..5).map(|_| server.raw()).collect();
    for raw in &mut normal {
        raw.request(&["PING"]).expect("+PONG\r\n");
    }
    // These clients are in the middle of a request and of a transaction.
    normal[1].send("*2\r\n$4\r\nECHO\r\n$10\r\nabc");
    normal[2].request(&["MULTI"]).expect("+OK\r\n");
    let mut listening = listener(&server, false, &["SUBSCRIBE", "__sentinel__:hello"]);
    let mut raw = server.raw();
    raw.request(&["MULTI"]).expect("+OK\r\n");
    raw.request(&["CLIENT", "KILL", "TYPE", "normal"]).expect("+QUEUED\r\n");
    raw.request(&["EXEC"]).expect("*1\r\n:5\r\n");
    for mut gone in normal {
        assert_eq!(gone.rest(), "");
    }
    raw.request(&["CLIENT", "KILL", "TYPE", "replica"]).expect(":0\r\n");
    raw.request(&["PUBLISH", "__sentinel__:hello", "x"]).expect(":1\r\n");
    listening.expect(&message('*', &["message", "__sentinel__:hello", "x"]));
    raw.request(&["CLIENT", "KILL", "TYPE", "pubsub"]).expect(":1\r\n");
    assert_eq!(listening.rest(), "");
    raw.request(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no"]).expect(":1\r\n");
    assert_eq!(raw.rest(), "");
}

/// CLIENT PAUSE delays only commands that would be executed. A delayed client counts as blocked in
/// INFO and CLIENT LIST.
#[test]
fn a_pause_holds_only_what_would_be_executed() {
    let server = TestServer::start();
    let (mut admin, mut raw, mut writer) = (server.raw(), server.raw(), server.raw());
    let rules = ["ACL", "SETUSER", "u", "on", "nopass", "~post:1", "+@all", "-del", "-@admin"];
    assert_eq!(admin.ask(&rules), "+OK");
    assert_eq!(raw.ask(&["AUTH", "u", "x"]), "+OK");
    assert_eq!(admin.ask(&["CLIENT", "PAUSE", "100000", "WRITE"]), "+OK");
    for (words, error) in [
        (&["HSET", "post:1", "like"][..], "-ERR wrong number of arguments for 'hset' command"),
        (&["INCR"], "-ERR wrong number of arguments for 'incr' command"),
        (&["TM.SPACE", "nonsense"], "-ERR unknown subcommand 'nonsense'. Try TM.SPACE HELP."),
        (&["NONSENSE"], "-ERR unknown command 'NONSENSE', with args beginning with: "),
        (&["DEL", "post:1"], "-NOPERM this user has no permissions to run the 'del' command"),
        (
            &["HSET", "post:2", "like", "1"],
            "-NOPERM this user has no permissions to access one of the keys used as arguments",
        ),
    ] {
        assert_eq!(raw.ask(words), error, "{words:?}");
    }
    let blocked = |raw: &mut Raw| {
        let head = raw.ask(&["INFO", "clients"]);
        // Reads the text and its final line break.
        let mut left = head[1..].parse::<usize>().unwrap() + 2;
        let mut blocked = String::new();
        while left > 0 {
            let line = raw.line();
            left -= line.len() + 2;
            if let Some(count) = line.strip_prefix("blocked_clients:") {
                blocked = count.to_owned();
            }
        }
        blocked
    };
    assert_eq!(blocked(&mut admin), "0");
    writer.request(&["HINCRBY", "post:1", "like", "1"]);
    raw.request(&["HINCRBY", "post:1", "like", "1"]);
    eventually("two clients are blocked", || blocked(&mut admin) == "2");
    // Subcommands that write are also paused.
    let mut schema = server.raw();
    schema.request(&["TM.SPACE", "ALTER", "post", "ADD", "share:4"]);
    eventually("three clients are blocked", || blocked(&mut admin) == "3");
    assert_eq!(admin.ask(&["CLIENT", "UNPAUSE"]), "+OK");
    assert!(writer.line().starts_with(':') && raw.line().starts_with(':'));
    assert!(!schema.line().starts_with('-'));
    assert_eq!(blocked(&mut admin), "0");
}

/// MAXAGE is parsed as in Redis.
#[test]
fn the_age_of_a_client_to_kill_is_a_positive_number() {
    let server = TestServer::start();
    let mut raw = server.raw();
    for (age, error) in [
        ("x", "-ERR maxage is not an integer or out of range"),
        ("9223372036854775808", "-ERR maxage is not an integer or out of range"),
        ("18446744073709551615", "-ERR maxage is not an integer or out of range"),
        ("-1", "-ERR maxage should be greater than 0"),
        ("0", "-ERR maxage should be greater than 0"),
    ] {
        assert_eq!(raw.ask(&["CLIENT", "KILL", "MAXAGE", age]), error, "{age}");
    }
    assert_eq!(raw.ask(&["CLIENT", "KILL", "MAXAGE", "9223372036854775807"]), ":0");
    let error = raw.ask(&["CLIENT", "KILL", "ID", "9223372036854775808"]);
    assert_eq!(error, "-ERR client-id should be greater than 0");
}

#[test]
fn a_pause_delays_and_loses_nothing() {
    let server = TestServer::start();
    let (mut admin, mut reader, mut writer) = (server.raw(), server.raw(), server.raw());
    admin.request(&["CLIENT", "PAUSE", "100000", "WRITE"]).expect("+OK\r\n");
    for i in 1..=3 {
        writer.request(&["INCR", "post:1:like"]);
        assert_eq!(reader.ask(&["GET", "post:1:like"]), "$-1", "step {i}");
    }
    reader.request(&["MULTI"]).expect("+OK\r\n").request(&["PING"]).expect("+QUEUED\r\n");
    reader.request(&["EXEC"]).expect("*1\r\n+PONG\r\n");
    reader
        .request(&["FEED.GET", "home", "7", "1"])
        .expect("*1\r\n*6\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n");
    admin.request(&["CLIENT", "UNPAUSE"]).expect("+OK\r\n");
    writer.expect(":1\r\n:2\r\n:3\r\n");
    // Pauses all commands for 300 ms.
    let started = Instant::now();
    admin.request(&["CLIENT", "PAUSE", "300"]).expect("+OK\r\n");
    reader.request(&["PING"]).expect("+PONG\r\n");
    assert!(started.elapsed() >= Duration::from_millis(300), "{:?}", started.elapsed());
    for (words, error) in [
        (&["CLIENT", "PAUSE", "x"][..], "-ERR timeout is not an integer or out of range"),
        (&["CLIENT", "PAUSE", "-1"], "-ERR timeout is negative"),
        (&["CLIENT", "PAUSE", "1", "NOPE"], "-ERR CLIENT PAUSE mode must be WRITE or ALL"),
    ] {
        assert_eq!(admin.ask(words), error);
    }
}
