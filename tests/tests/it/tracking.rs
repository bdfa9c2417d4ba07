//! CLIENT TRACKING: a client that has read a key is notified when any command changes it, under the
//! name that it used, and gets no other message.
//!
//! Each check ends with a PING of the tracking client, which reveals both missing and excess
//! messages.

use crate::replication::{follow, wait_for_sync};
use std::time::{Duration, Instant};
use tidemark_tests::{Raw, TestServer, eventually};

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Returns the invalidation push for these keys.
fn invalidate(keys: &[&str]) -> String {
    let all: String = keys.iter().map(|key| bulk(key)).collect();
    format!(">2\r\n{}*{}\r\n{all}", bulk("invalidate"), keys.len())
}

const ALL_KEYS: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

/// Returns the invalidation message for a RESP2 client.
fn message(key: &str) -> String {
    format!("*3\r\n{}{}*1\r\n{}", bulk("message"), bulk("__redis__:invalidate"), bulk(key))
}

fn modern(server: &TestServer) -> Raw {
    let mut raw = server.raw();
    hello(&mut raw, "3");
    raw
}

fn hello(raw: &mut Raw, protocol: &str) {
    raw.request(&["HELLO", protocol]).request(&["ECHO", "ready"]);
    while raw.line() != "ready" {}
}

/// Connects a RESP3 client and turns tracking on with these options.
fn tracker(server: &TestServer, options: &[&str]) -> Raw {
    let mut raw = modern(server);
    track(&mut raw, options);
    raw
}

fn track(raw: &mut Raw, options: &[&str]) {
    let words = [&["CLIENT", "TRACKING", "ON"], options].concat();
    raw.request(&words).expect("+OK\r\n");
}

fn run(raw: &mut Raw, requests: &[&[&str]]) {
    for words in requests {
        raw.request(words);
        raw.request(&["ECHO", "done"]);
        while raw.line() != "done" {}
    }
}

/// Returns everything received before the reply to a PING.
fn until_pong(raw: &mut Raw) -> String {
    raw.request(&["PING"]);
    let mut all = String::new();
    loop {
        let line = raw.line();
        if line == "+PONG" {
            return all;
        }
        all += &line;
        all += "\r\n";
    }
}

/// Returns the sorted keys of all invalidations received.
fn keys(raw: &mut Raw) -> Vec<String> {
    let all = until_pong(raw);
    let mut lines = all.split("\r\n").peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next().filter(|line| !line.is_empty()) {
        assert_eq!((line, lines.next(), lines.next()), (">2", Some("$10"), Some("invalidate")));
        let count = lines.next().unwrap();
        if count == "_" {
            found.push("(all)".to_owned());
            continue;
        }
        for _ in 0..count.strip_prefix('*').unwrap().parse().unwrap() {
            assert!(lines.next().unwrap().starts_with('$'));
            found.push(lines.next().unwrap().to_owned());
        }
    }
    found.sort();
    found
}

fn text(raw: &mut Raw) -> String {
    let head = raw.line();
    let length: usize = head[1..].parse().unwrap();
    raw.take(length + 2)
}

fn info(raw: &mut Raw, name: &str) -> u64 {
    raw.request(&["INFO", "everything"]);
    let text = text(raw);
    let prefix = format!("{name}:");
    let line = text.lines().find_map(|line| line.strip_prefix(prefix.as_str()));
    line.unwrap_or_else(|| panic!("{name}")).parse().unwrap()
}

#[test]
fn every_key_that_was_read_is_told_whatever_command_changes_it() {
    let server = TestServer::start();
    let mut reader = tracker(&server, &[]);
    let mut writer = server.raw();
    let rows = ["post:7"];
    let cells = ["post:7:like", "post:7:read"];
    let pairs = ["liked:7"];
    let page = ["7"];
    let read = |reader: &mut Raw| {
        run(
            reader,
            &[
                &["HGETALL", "post:7"],
                &["MGET", "post:7:like", "post:7:read", "post:8:like"],
                &["SISMEMBER", "liked:7", "42"],
                &["BF.EXISTS", "read:9", "42"],
                &["FEED.GET", "home", "42", "7", "8"],
            ],
        );
    };
    let all = |of: &[&[&str]]| {
        let mut all: Vec<String> = of.concat().iter().map(|&key| key.to_owned()).collect();
        all.sort();
        all
    };
    let row = all(&[&rows, &cells, &page]);
    let flag = all(&[&pairs, &page]);
    let both = all(&[&rows, &cells, &pairs, &page]);
    let cases: &[(&[&str], &[String])] = &[
        (&["HINCRBY", "post:7", "comment", "1"], &row),
        (&["HSET", "post:7", "like", "3"], &row),
        (&["INCR", "post:7:repost"], &row),
        (&["SET", "post:7:like", "3"], &row),
        (&["MSET", "post:7:like", "4", "post:70:like", "4"], &row),
        (&["CNT.INCRBY", "post", "7", "read", "1"], &row),
        (&["CNT.MINCRBY", "post", "70", "read", "1", "7", "read", "1"], &row),
        (&["HDEL", "post:7", "like"], &row),
        (&["GETDEL", "post:7:read"], &row),
        (&["FEED.ACT", "like", "42", "7"], &both),
        (&["FEED.UNDO", "like", "42", "7"], &both),
        (&["FEED.GET", "home", "42", "7", "MARK", "like"], &both),
        (&["SADD", "liked:7", "43"], &flag),
        (&["SREM", "liked:7", "43"], &flag),
        (&["BF.ADD", "liked:7", "44"], &flag),
        (&["CF.DEL", "liked:7", "44"], &flag),
        (&["PH.ADD", "liked", "45", "7"], &flag),
        // The page shows this flag although its key was not read.
        (&["BF.MADD", "read:7", "45", "46"], &all(&[&page])),
        (&["DEL", "post:7"], &row),
        // Commands without an effect cause no invalidation.
        (&["SADD", "liked:7", "45"], &[]),
        (&["HSETNX", "post:7", "like", "9"], &row),
        (&["HSETNX", "post:7", "like", "10"], &[]),
        (&["FEED.UNDO", "like", "1000", "7"], &[]),
        // Changes of other ids and spaces cause no invalidation.
        (&["HINCRBY", "post:77", "like", "1"], &[]),
        (&["HINCRBY", "user:7", "post", "1"], &[]),
        (&["SADD", "reposted:7", "42"], &[]),
    ];
    for (command, told) in cases {
        read(&mut reader);
        run(&mut writer, &[command]);
        assert_eq!(keys(&mut reader), **told, "{command:?}");
        // After an invalidation, a key is tracked again only once it is read.
        if !told.is_empty() {
            run(
                &mut writer,
                &[&["FEED.ACT", "like", "50", "7"], &["FEED.UNDO", "like", "50", "7"]],
            );
            let left: Vec<String> =
                both.iter().filter(|key| !told.contains(key)).cloned().collect();
            assert_eq!(keys(&mut reader), left, "{command:?}");
        }
    }
    // Now change the other keys that were read.
    run(&mut writer, &[&["SADD", "read:9", "42"], &["HINCRBY", "post:8", "like", "1"]]);
    assert_eq!(keys(&mut reader), ["8", "post:8:like", "read:9"]);
}

#[test]
fn a_client_is_told_of_its_own_change_behind_the_reply() {
    let server = TestServer::start();
    let mut raw = tracker(&server, &[]);
    run(&mut raw, &[&["HINCRBY", "post:7", "like", "4"], &["HGET", "post:7", "like"]]);
    raw.request(&["HINCRBY", "post:7", "like", "1"]).expect(":5\r\n");
    raw.expect(&invalidate(&["post:7"]));
    // In a pipeline, the message follows the reply to its own command and precedes the next reply.
    run(&mut raw, &[&["GET", "post:7:like"]]);
    let (write, read) = (["INCR", "post:7:like"], ["GET", "post:7:like"]);
    raw.send([tidemark_tests::request(&write), tidemark_tests::request(&read)].concat());
    raw.expect(&format!(":6\r\n{}$1\r\n6\r\n", invalidate(&["post:7:like"])));
    // In a transaction, the message follows EXEC's reply.
    raw.request(&["MULTI"]).expect("+OK\r\n");
    raw.request(&["INCR", "post:7:like"]).expect("+QUEUED\r\n");
    raw.request(&["GET", "post:7:like"]).expect("+QUEUED\r\n");
    raw.request(&["INCR", "post:7:like"]).expect("+QUEUED\r\n");
    raw.request(&["EXEC"]).expect("*3\r\n:7\r\n$1\r\n7\r\n:8\r\n");
    raw.expect(&invalidate(&["post:7:like"])).expect(&invalidate(&["post:7:like"]));
    assert_eq!(until_pong(&mut raw), "");
    // Reads in EXEC are tracked.
    raw.request(&["MULTI"]).expect("+OK\r\n");
    raw.request(&["GET", "post:7:like"]).expect("+QUEUED\r\n");
    raw.request(&["EXEC"]).expect("*1\r\n$1\r\n8\r\n");
    run(&mut server.raw(), &[&["HSET", "post:7", "like", "1"]]);
    raw.expect(&invalidate(&["post:7:like"]));
}

/// CLIENT TRACKING waits for active writers; EXEC has already excluded them.
#[test]
fn tracking_may_begin_and_end_within_a_transaction() {
    let server = TestServer::start();
    let mut writer = server.raw();
    let mut raw = modern(&server);
    for words in [
        &["MULTI"][..],
        &["HINCRBY", "post:2", "like", "1"],
        &["CLIENT", "TRACKING", "ON", "OPTIN"],
        &["CLIENT", "CACHING", "YES"],
        &["GET", "post:1:like"],
    ] {
        raw.request(words);
        raw.line();
    }
    raw.request(&["EXEC"]).expect("*4\r\n:1\r\n+OK\r\n+OK\r\n_\r\n");
    run(&mut writer, &[&["INCR", "post:1:like"]]);
    assert_eq!(keys(&mut raw), ["post:1:like"]);
    raw.request(&["MULTI"]).expect("+OK\r\n");
    raw.request(&["CLIENT", "TRACKING", "OFF"]).expect("+QUEUED\r\n");
    raw.request(&["EXEC"]).expect("*1\r\n+OK\r\n");
    assert_eq!(info(&mut writer, "tracking_clients"), 0);
}

#[test]
fn no_loop_leaves_out_the_own_changes_in_both_modes() {
    let server = TestServer::start();
    let mut writer = server.raw();
    let mut raw = tracker(&server, &["NOLOOP"]);
    run(&mut raw, &[&["MGET", "post:1:like", "post:2:like", "post:3:like"]]);
    run(&mut writer, &[&["SET", "post:1:like", "1"]]);
    run(&mut raw, &[&["SET", "post:2:like", "1"]]);
    run(&mut writer, &[&["SET", "post:3:like", "1"]]);
    // The first message preceded the reply to the client's own change.
    assert_eq!(keys(&mut raw), ["post:3:like"]);
    run(&mut raw, &[&["MGET", "post:1:like", "post:2:like"]]);
    run(&mut writer, &[&["SET", "post:1:like", "1"]]);
    assert_eq!(keys(&mut raw), ["post:1:like"]);

    let mut raw = tracker(&server, &["BCAST", "NOLOOP", "PREFIX", "liked:"]);
    raw.request(&["SADD", "liked:2", "42"]).expect(":1\r\n");
    run(&mut writer, &[&["SADD", "liked:1", "42"]]);
    run(&mut writer, &[&["SADD", "liked:3", "42"]]);
    assert_eq!(keys(&mut raw), ["liked:1", "liked:3", "liked:{1}", "liked:{3}"]);
}

#[test]
fn opt_in_and_opt_out_choose_single_commands_and_transactions() {
    let server = TestServer::start();
    let mut writer = server.raw();
    let change = |writer: &mut Raw| {
        run(writer, &[&["MSET", "post:1:like", "1", "post:2:like", "1", "post:3:like", "1"]]);
    };
    let get = |raw: &mut Raw, id: &str| run_quietly(raw, &["GET", &format!("post:{id}:like")]);
    let mut raw = tracker(&server, &["OPTIN"]);
    get(&mut raw, "1");
    raw.request(&["CLIENT", "CACHING", "YES"]).expect("+OK\r\n");
    get(&mut raw, "2");
    get(&mut raw, "3");
    change(&mut writer);
    assert_eq!(keys(&mut raw), ["post:2:like"]);
    // CACHING YES applies to a whole transaction, even if a CLIENT command precedes MULTI.
    raw.request(&["CLIENT", "CACHING", "YES"]).expect("+OK\r\n");
    raw.request(&["CLIENT", "GETREDIR"]).expect(":0\r\n");
    raw.request(&["MULTI"]).expect("+OK\r\n");
    raw.request(&["GET", "post:1:like"]).expect("+QUEUED\r\n");
    raw.request(&["GET", "post:2:like"]).expect("+QUEUED\r\n");
    raw.request(&["EXEC"]).expect("*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
    get(&mut raw, "3");
    change(&mut writer);
    assert_eq!(keys(&mut raw), ["post:1:like", "post:2:like"]);

    let mut raw = tracker(&server, &["OPTOUT"]);
    get(&mut raw, "1");
    raw.request(&["CLIENT", "CACHING", "NO"]).expect("+OK\r\n");
    get(&mut raw, "2");
    get(&mut raw, "3");
    change(&mut writer);
    assert_eq!(keys(&mut raw), ["post:1:like", "post:3:like"]);
}

/// Sends a request whose reply is a bulk string or nil.
fn run_quietly(raw: &mut Raw, words: &[&str]) {
    let head = raw.ask(words);
    if head.starts_with('$') && head != "$-1" {
        raw.line();
    }
}

#[test]
fn broadcast_lists_all_keys_of_an_id_with_the_prefix() {
    let server = TestServer::start();
    let mut writer = server.raw();
    let mut every = tracker(&server, &["BCAST"]);
    let mut posts = tracker(&server, &["BCAST", "PREFIX", "post:7", "PREFIX", "liked:"]);
    run(&mut writer, &[&["HINCRBY", "post:7", "like", "1"]]);
    let cells = ["post:7:comment", "post:7:like", "post:7:read", "post:7:repost"];
    let tagged = ["post:{7}:comment", "post:{7}:like", "post:{7}:read", "post:{7}:repost"];
    let names = [&["7", "post:7"][..], &cells, &["post:{7}"], &tagged].concat();
    assert_eq!(keys(&mut every), names);
    assert_eq!(keys(&mut posts), [&["post:7"][..], &cells].concat());
    run(&mut writer, &[&["HINCRBY", "user:7", "post", "1"], &["SADD", "read:7", "1"]]);
    assert_eq!(keys(&mut every), ["7", "7", "read:7", "read:{7}", "user:7", "user:{7}"]);
    assert_eq!(keys(&mut posts), [""; 0]);
    // Each command causes one message per prefix, and the message contains each key once.
    run(&mut writer, &[&["FEED.ACT", "like", "9", "7", "8"]]);
    let mut all = ["post:7".to_owned(), "post:7:comment".to_owned()].to_vec();
    all.extend(cells[1..].iter().map(|cell| (*cell).to_owned()));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(
        until_pong(&mut posts),
        [invalidate(&["liked:7", "liked:8", "liked:{7}", "liked:{8}"]), invalidate(&all)].concat()
    );
    until_pong(&mut every);
    for words in [&["MULTI"][..], &["INCR", "post:7:like"], &["INCR", "post:71:like"]] {
        writer.request(words);
        writer.line();
    }
    writer.request(&["EXEC"]).expect("*2\r\n:3\r\n:1\r\n");
    let of = |id: u32| {
        let cells = ["comment", "like", "read", "repost"].map(|field| format!("post:{id}:{field}"));
        [vec![format!("post:{id}")], cells.to_vec()].concat()
    };
    let both = [of(7), of(71)].concat();
    let mut told: Vec<&str> = both.iter().map(String::as_str).collect();
    told.sort_unstable();
    assert_eq!(until_pong(&mut posts), invalidate(&told));
    // Invalidations for the client's own changes follow the reply; adding a prefix keeps the
    // earlier prefixes.
    track(&mut posts, &["BCAST", "PREFIX", "user:"]);
    let told = invalidate(&["liked:5", "liked:{5}"]);
    posts.request(&["SADD", "liked:5", "1"]).expect(":1\r\n").expect(&told);
    run(&mut writer, &[&["HINCRBY", "user:7", "post", "1"]]);
    assert_eq!(keys(&mut posts), ["user:7", "user:{7}"]);
    assert_eq!(info(&mut writer, "tracking_total_prefixes"), 4);
    drop((posts, every));
    eventually("their prefixes go with them", || {
        info(&mut writer, "tracking_total_prefixes") + info(&mut writer, "tracking_clients") == 0
    });
}

#[test]
fn invalidations_are_redirected_to_clients_of_both_protocols() {
    let server = TestServer::start();
    let mut writer = server.raw();
    let mut old = server.raw();
    let old_id = old.ask(&["CLIENT", "ID"])[1..].to_owned();
    old.request(&["SUBSCRIBE", "__redis__:invalidate"]);
    old.expect(&format!("*3\r\n$9\r\nsubscribe\r\n{}:1\r\n", bulk("__redis__:invalidate")));
    let mut new = modern(&server);
    let new_id = new.ask(&["CLIENT", "ID"])[1..].to_owned();

    // Both sides use RESP2, and two clients redirect to one client.
    let (mut one, mut two) = (server.raw(), modern(&server));
    track(&mut one, &["REDIRECT", &old_id]);
    track(&mut two, &["REDIRECT", &old_id]);
    run_quietly(&mut one, &["GET", "post:1:like"]);
    run_quietly(&mut two, &["GET", "post:2:like"]);
    run(&mut writer, &[&["INCR", "post:1:like"]]);
    old.expect(&message("post:1:like"));
    run(&mut writer, &[&["INCR", "post:2:like"]]);
    old.expect(&message("post:2:like"));
    // The redirecting client itself writes.
    run_quietly(&mut one, &["GET", "post:1:like"]);
    one.request(&["INCR", "post:1:like"]).expect(":2\r\n");
    old.expect(&message("post:1:like"));
    one.request(&["CLIENT", "GETREDIR"]).expect(&format!(":{old_id}\r\n"));
    one.request(&["CLIENT", "INFO"]);
    let list = text(&mut one);
    assert!(list.contains(&format!(" redir={old_id} ")) && list.contains(" flags=t "), "{list}");

    // A RESP3 target gets a push without a subscription.
    track(&mut one, &["REDIRECT", &new_id]);
    run_quietly(&mut one, &["GET", "post:1:like"]);
    run(&mut writer, &[&["INCR", "post:1:like"]]);
    new.expect(&invalidate(&["post:1:like"]));
    // An invalidation for the target's own change follows its reply.
    run_quietly(&mut one, &["GET", "post:1:like"]);
    new.request(&["INCR", "post:1:like"]).expect(":4\r\n").expect(&invalidate(&["post:1:like"]));
    // A RESP2 client without redirection receives no invalidations.
    let mut dumb = server.raw();
    track(&mut dumb, &[]);
    run_quietly(&mut dumb, &["GET", "post:1:like"]);
    run(&mut writer, &[&["INCR", "post:1:like"]]);
    assert_eq!(until_pong(&mut dumb), "");
    // Keys read in RESP2 are invalidated after the client has switched to RESP3.
    run_quietly(&mut dumb, &["GET", "post:1:like"]);
    hello(&mut dumb, "3");
    run(&mut writer, &[&["INCR", "post:1:like"]]);
    assert_eq!(keys(&mut dumb), ["post:1:like"]);
}

#[test]
fn a_client_learns_that_its_redirection_is_broken() {
    let server = TestServer::start();
    let mut writer = server.raw();
    let mut target = modern(&server);
    let id = target.ask(&["CLIENT", "ID"])[1..].to_owned();
    let mut raw = tracker(&server, &["REDIRECT", &id]);
    run_quietly(&mut raw, &["GET", "post:1:like"]);
    writer.request(&["CLIENT", "KILL", "ID", &id]).expect(":1\r\n");
    eventually("the client has gone", || {
        writer.request(&["CLIENT", "LIST", "ID", &id]);
        text(&mut writer) == "\r\n"
    });
    run(&mut writer, &[&["INCR", "post:1:like"]]);
    raw.expect(&format!(">2\r\n{}:{id}\r\n", bulk("tracking-redir-broken")));
    raw.request(&["CLIENT", "TRACKINGINFO"]);
    raw.expect(&format!(
        "%3\r\n{}~2\r\n{}{}{}:{id}\r\n{}*0\r\n",
        bulk("flags"),
        bulk("on"),
        bulk("broken_redirect"),
        bulk("redirect"),
        bulk("prefixes")
    ));
    raw.request(&["CLIENT", "LIST"]);
    let list = text(&mut raw);
    assert!(list.contains(" flags=tR "), "{list}");
    track(&mut raw, &[]);
    run_quietly(&mut raw, &["GET", "post:1:like"]);
    run(&mut writer, &[&["INCR", "post:1:like"]]);
    assert_eq!(keys(&mut raw), ["post:1:like"]);
}

/// Evicting a tracked key notifies its reader, so no stale copy remains.
#[test]
fn keys_beyond_the_limit_are_forgotten_and_told() {
    let server = TestServer::with(|config| config.server.max_tracked_keys = 100);
    let mut writer = server.raw();
    let mut raw = tracker(&server, &["NOLOOP"]);
    let mut told = Vec::new();
    let names: Vec<String> = (0..1000).map(|id| format!("post:{id}:like")).collect();
    for chunk in names.chunks(50) {
        raw.request(
            &["MGET"].into_iter().chain(chunk.iter().map(String::as_str)).collect::<Vec<_>>(),
        );
        raw.expect(&format!("*50\r\n{}", "_\r\n".repeat(50)));
        told.extend(keys(&mut raw));
        assert!(info(&mut writer, "tracking_total_items") <= 100);
    }
    assert_eq!(info(&mut writer, "tracking_total_keys"), 100);
    assert_eq!(info(&mut writer, "tracking_evicted_items"), 900);
    let bytes = info(&mut writer, "mem_tracking_table");
    assert!((100 * 64..100 * 400).contains(&bytes), "{bytes}");
    writer.request(&["CONFIG", "SET", "tracking-table-max-keys", "1"]).expect("+OK\r\n");
    eventually("a lower limit is reached without a read", || {
        told.extend(keys(&mut raw));
        info(&mut writer, "tracking_total_keys") == 1
    });
    told.extend(keys(&mut raw));
    told.sort();
    told.dedup();
    assert_eq!(told.len(), 999, "one invalidation per key");
    let left = names.iter().find(|name| !told.contains(name)).unwrap();
    run(&mut writer, &[&["INCR", left]]);
    assert_eq!(keys(&mut raw), [left.as_str()]);
    assert_eq!(
        (info(&mut writer, "tracking_total_keys"), info(&mut writer, "mem_tracking_table")),
        (0, 0)
    );
}

#[test]
fn what_clients_have_read_that_have_gone_is_forgotten() {
    let server = TestServer::start();
    let mut writer = server.raw();
    let mut stays = tracker(&server, &[]);
    run_quietly(&mut stays, &["GET", "post:1:like"]);
    let names: Vec<String> = (1..3000).map(|id| format!("post:{id}:like")).collect();
    let mut words = vec!["MGET"];
    words.extend(names.iter().map(String::as_str));
    let mut goes = tracker(&server, &[]);
    goes.request(&words).expect(&format!("*2999\r\n{}", "_\r\n".repeat(2999)));
    assert_eq!(info(&mut writer, "tracking_total_items"), 3000);
    assert_eq!(info(&mut writer, "tracking_total_keys"), 2999);
    goes.request(&["RESET"]).expect("+RESET\r\n");
    eventually("only the other one's is left", || {
        info(&mut writer, "tracking_total_items") == 1
            && info(&mut writer, "tracking_total_keys") == 1
    });
    run(&mut writer, &[&["INCR", "post:1:like"]]);
    assert_eq!(keys(&mut stays), ["post:1:like"]);
    // The client receives no more messages and can track again.
    hello(&mut goes, "3");
    assert_eq!(until_pong(&mut goes), "");
    track(&mut goes, &[]);
    run_quietly(&mut goes, &["GET", "post:1:like"]);
    track(&mut goes, &["NOLOOP"]);
    goes.request(&["CLIENT", "TRACKING", "OFF"]).expect("+OK\r\n");
    track(&mut goes, &["BCAST", "PREFIX", "none:"]);
    run(&mut writer, &[&["INCR", "post:1:like"]]);
    assert_eq!(keys(&mut goes), [""; 0]);
}

#[test]
fn a_change_of_a_schema_invalidates_everything() {
    let server = TestServer::start();
    let mut writer = server.raw();
    let (mut reader, mut all) =
        (tracker(&server, &[]), tracker(&server, &["BCAST", "PREFIX", "x"]));
    let mut own = tracker(&server, &["NOLOOP"]);
    run(&mut reader, &[&["HGETALL", "post:7"]]);
    own.request(&["TM.SPACE", "ALTER", "post", "ADD", "share:8"]);
    let answer = until_pong(&mut own);
    assert!(answer.ends_with(ALL_KEYS) && !answer.starts_with('>'), "behind the reply: {answer}");
    assert_eq!(keys(&mut reader), ["(all)"]);
    assert_eq!(keys(&mut all), ["(all)"]);
    run(&mut writer, &[&["INCR", "post:7:like"]]);
    assert_eq!(keys(&mut reader), [""; 0], "a second invalidation was sent");
}

/// After a table is recycled, lookups of its pairs return "unknown".
#[test]
fn ids_below_the_horizon_are_invalidated() {
    let server = TestServer::with(|config| {
        for space in &mut config.existence {
            (space.spill, space.max_tables, space.pairs_per_table) = (false, 2, 1000);
            space.ledger = tidemark_server::config::LedgerMode::Off;
        }
    });
    let mut writer = server.raw();
    let mut reader = tracker(&server, &[]);
    let mut all = tracker(&server, &["BCAST", "PREFIX", "liked:9"]);
    let mut others = tracker(&server, &["BCAST", "PREFIX", "post:"]);
    for first in [1_000, 2_000, 3_000] {
        for id in first..first + 100 {
            run(&mut writer, &[&["SADD", &format!("liked:{id}"), "42"]]);
        }
        if first == 1_000 {
            run(
                &mut reader,
                &[
                    &["SISMEMBER", "liked:1050", "42"],
                    &["PH.EXISTS", "liked", "42", "1051"],
                    &["HGETALL", "post:1050"],
                    &["SISMEMBER", "liked:9000", "42"],
                ],
            );
        }
        run(&mut writer, &[&["TM.ROLL", "liked"]]);
    }
    let mut told = Vec::new();
    eventually("the reader is told", || {
        told.extend(keys(&mut reader));
        told.len() >= 2
    });
    told.sort();
    assert_eq!(told, ["1051", "liked:1050"]);
    // The server may send one message per recycled table.
    let mut told = Vec::new();
    eventually("a client in BCAST mode is told that any may have changed", || {
        told.extend(keys(&mut all));
        !told.is_empty()
    });
    told.dedup();
    assert_eq!(told, ["(all)"]);
    assert_eq!(keys(&mut others), [""; 0]);
    run(&mut writer, &[&["SADD", "liked:9000", "42"], &["HINCRBY", "post:1050", "like", "1"]]);
    assert_eq!(keys(&mut reader), ["liked:9000", "post:1050"]);
}

#[test]
fn readers_of_a_replica_are_told_what_its_master_sends() {
    let (master, replica) = (TestServer::start(), TestServer::start());
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    let mut writer = master.raw();
    let mut reader = tracker(&replica, &[]);
    let mut all = tracker(&replica, &["BCAST", "PREFIX", "liked:"]);
    run(
        &mut reader,
        &[
            &["HGETALL", "post:7"],
            &["GET", "post:7:read"],
            &["SISMEMBER", "liked:7", "42"],
            &["FEED.GET", "home", "42", "7"],
        ],
    );
    run(&mut writer, &[&["FEED.ACT", "like", "42", "7"]]);
    let mut told = Vec::new();
    eventually("the reader is told", || {
        told.extend(keys(&mut reader));
        told.len() == 4
    });
    told.sort();
    assert_eq!(told, ["7", "liked:7", "post:7", "post:7:read"]);
    eventually("and the client in BCAST mode", || keys(&mut all) == ["liked:7", "liked:{7}"]);
    run(&mut reader, &[&["HGETALL", "post:7"]]);
    run(&mut writer, &[&["TM.SPACE", "ALTER", "post", "ADD", "share:8"]]);
    eventually("of a schema, too", || keys(&mut reader) == ["(all)"]);
}

/// A full sync replaces the data set without closing connections, so all cached data is invalid.
#[test]
fn a_full_sync_invalidates_everything() {
    let (master, replica) = (TestServer::start(), TestServer::start());
    run(&mut master.raw(), &[&["HSET", "post:7", "like", "5"]]);
    run(&mut replica.raw(), &[&["HSET", "post:7", "like", "1"]]);
    let mut reader = tracker(&replica, &[]);
    run(&mut reader, &[&["HGETALL", "post:7"]]);
    redis::cmd("REPLICAOF")
        .arg(&["127.0.0.1", &master.port().to_string(), "FORCE"])
        .query::<()>(&mut replica.connection())
        .unwrap();
    reader.expect(ALL_KEYS);
    wait_for_sync(&master, &replica);
    reader.request(&["GET", "post:7:like"]).expect("$1\r\n5\r\n");
    run(&mut master.raw(), &[&["HSET", "post:7", "like", "6"]]);
    reader.expect(&invalidate(&["post:7:like"]));
    assert_eq!(info(&mut replica.raw(), "tracking_clients"), 1);
}

/// RESET turns tracking off; CLIENT REPLY OFF does not.
#[test]
fn pushes_come_though_replies_are_off_and_end_with_reset() {
    let server = TestServer::start();
    let mut writer = server.raw();
    let mut raw = tracker(&server, &[]);
    run_quietly(&mut raw, &["GET", "post:1:like"]);
    raw.request(&["CLIENT", "REPLY", "OFF"]);
    raw.request(&["SET", "post:1:like", "1"]).expect(&invalidate(&["post:1:like"]));
    raw.request(&["GET", "post:1:like"]).request(&["CLIENT", "REPLY", "ON"]).expect("+OK\r\n");
    run(&mut writer, &[&["INCR", "post:1:like"]]);
    raw.expect(&invalidate(&["post:1:like"]));
    run_quietly(&mut raw, &["GET", "post:1:like"]);
    raw.request(&["RESET"]).expect("+RESET\r\n");
    run(&mut writer, &[&["INCR", "post:1:like"]]);
    raw.request(&["CLIENT", "GETREDIR"]).expect(":-1\r\n");
    assert_eq!(until_pong(&mut raw), "");
    assert_eq!(info(&mut writer, "tracking_clients"), 0);
    assert_eq!(info(&mut writer, "tracking_total_keys"), 0);
}

#[test]
fn errors_are_worded_as_redis_words_them() {
    let server = TestServer::start();
    let mut raw = modern(&server);
    let refuse = |raw: &mut Raw, words: &[&str], text: &str| {
        let answer = raw.ask(&[&["CLIENT"], words].concat());
        assert_eq!(answer, format!("-ERR {text}"), "{words:?}");
    };
    const MODE: &str =
        "before disabling tracking for this client, and then re-enabling it with a different mode.";
    for (words, text) in [
        (&["TRACKING", "MAYBE"][..], "syntax error"),
        (&["TRACKING", "ON", "PREFIX"], "syntax error"),
        (&["TRACKING", "ON", "NONSENSE"], "syntax error"),
        (&["TRACKING", "ON", "REDIRECT", "x"], "value is not an integer or out of range"),
        (
            &["TRACKING", "ON", "REDIRECT", "987654"],
            "The client ID you want redirect to does not exist",
        ),
        (&["TRACKING", "ON", "REDIRECT", "0"], "The client ID you want redirect to does not exist"),
        (&["TRACKING", "ON", "PREFIX", "a"], "PREFIX option requires BCAST mode to be enabled"),
        (&["TRACKING", "ON", "BCAST", "OPTIN"], "OPTIN and OPTOUT are not compatible with BCAST"),
        (
            &["TRACKING", "ON", "OPTIN", "OPTOUT"],
            "You can't specify both OPTIN mode and OPTOUT mode",
        ),
        (
            &["CACHING", "YES"],
            "CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or \
             OPTOUT mode enabled",
        ),
        (
            &["TRACKING", "ON", "BCAST", "PREFIX", "FOOBAR", "PREFIX", "FOO"],
            "Prefix 'FOOBAR' overlaps with another provided prefix 'FOO'. Prefixes for a single \
             client must not overlap.",
        ),
        (
            &["TRACKING", "ON", "BCAST", "PREFIX", "A", "PREFIX", "FOOBAR", "PREFIX", "FOO"],
            "Prefix 'FOOBAR' overlaps with another provided prefix 'FOO'. Prefixes for a single \
             client must not overlap.",
        ),
    ] {
        refuse(&mut raw, words, text);
    }
    let id = raw.ask(&["CLIENT", "ID"])[1..].to_owned();
    refuse(
        &mut raw,
        &["TRACKING", "ON", "REDIRECT", &id, "REDIRECT", &id],
        "A client can only redirect to a single other client",
    );
    raw.request(&["CLIENT", "GETREDIR"]).expect(":-1\r\n");
    track(&mut raw, &["BCAST", "PREFIX", "FOO"]);
    refuse(
        &mut raw,
        &["TRACKING", "ON", "BCAST", "PREFIX", "FO"],
        "Prefix 'FO' overlaps with an existing prefix 'FOO'. Prefixes for a single client must not \
         overlap.",
    );
    refuse(&mut raw, &["TRACKING", "ON"], &format!("You can't switch BCAST mode on/off {MODE}"));
    raw.request(&["CLIENT", "TRACKING", "OFF"]).expect("+OK\r\n");
    track(&mut raw, &["OPTIN"]);
    refuse(
        &mut raw,
        &["TRACKING", "ON", "OPTOUT"],
        &format!("You can't switch OPTIN/OPTOUT mode {MODE}"),
    );
    refuse(
        &mut raw,
        &["CACHING", "NO"],
        "CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
    );
    refuse(&mut raw, &["CACHING", "MAYBE"], "syntax error");
    raw.request(&["CLIENT", "CACHING", "YES"]).expect("+OK\r\n");
    raw.request(&["CLIENT", "TRACKINGINFO"]);
    let words = ["on", "optin", "caching-yes"].map(bulk).concat();
    let tail = format!("{}:0\r\n{}*0\r\n", bulk("redirect"), bulk("prefixes"));
    raw.expect(&format!("%3\r\n{}~3\r\n{words}{tail}", bulk("flags")));
}

/// Prefixes are limited by number and bytes, and count as client memory.
#[test]
fn prefixes_are_limited_and_counted() {
    let server = TestServer::with(|config| {
        (config.server.max_subscriptions, config.server.max_subscription_bytes) = (20, 4096);
    });
    let mut writer = server.raw();
    let mut raw = modern(&server);
    let names: Vec<String> = (10..31).map(|n| format!("post:{n}")).collect();
    let ask = |raw: &mut Raw, names: &[String]| {
        let mut words = vec!["CLIENT", "TRACKING", "ON", "BCAST"];
        names.iter().for_each(|name| words.extend(["PREFIX", name.as_str()]));
        raw.ask(&words)
    };
    assert_eq!(
        ask(&mut raw, &names),
        "-ERR too many prefixes: at most 20 per client (max_subscriptions)"
    );
    assert_eq!(
        ask(&mut raw, &names[..20]),
        "-ERR the prefixes of a client are limited to 4096 bytes (max_subscriptions_memory)"
    );
    assert_eq!(ask(&mut raw, &["x".repeat(257)]), "-ERR prefix too long: at most 256 bytes");
    assert_eq!(ask(&mut raw, &names[..10]), "+OK");
    assert_eq!(info(&mut writer, "mem_clients_subscriptions"), 10 * (256 + 2 * 7));
    raw.request(&["CLIENT", "TRACKING", "OFF"]).expect("+OK\r\n");
    assert_eq!(info(&mut writer, "mem_clients_subscriptions"), 0);
}

/// BCAST requires the right to read all keys with the prefix.
#[test]
fn broadcasts_need_the_right_to_read_all_that_they_tell() {
    let server = TestServer::start();
    let mut admin = server.raw();
    let rules = ["on", "nopass", "~post:*", "+@all"];
    admin.request(&[&["ACL", "SETUSER", "feed"], &rules[..]].concat()).expect("+OK\r\n");
    let mut raw = modern(&server);
    raw.request(&["AUTH", "feed", "x"]).expect("+OK\r\n");
    for prefixes in [&[][..], &["PREFIX", "liked:"], &["PREFIX", "post:1", "PREFIX", "pos"]] {
        let answer = raw.ask(&[&["CLIENT", "TRACKING", "ON", "BCAST"], prefixes].concat());
        assert!(answer.starts_with("-NOPERM ") || answer.contains("overlaps"), "{answer}");
    }
    track(&mut raw, &["BCAST", "PREFIX", "post:1", "PREFIX", "post:2"]);
    run(&mut admin, &[&["HINCRBY", "post:1", "like", "1"]]);
    assert_eq!(keys(&mut raw)[0], "post:1");
    admin.request(&["ACL", "SETUSER", "feed", "resetkeys", "~user:*"]).expect("+OK\r\n");
    assert_eq!(raw.rest(), "", "the client received more data");
    // A client that may still read the keys of its prefixes stays connected.
    let mut raw = modern(&server);
    raw.request(&["AUTH", "feed", "x"]).expect("+OK\r\n");
    track(&mut raw, &["BCAST", "PREFIX", "user:"]);
    admin.request(&["ACL", "SETUSER", "feed", "~liked:*"]).expect("+OK\r\n");
    run(&mut admin, &[&["HINCRBY", "user:1", "post", "1"]]);
    assert_eq!(keys(&mut raw), ["user:1", "user:{1}"]);
}

/// One caching client and four writers: whenever the writers pause and all messages are read, the
/// cached values equal the server's.
#[test]
fn no_copy_stays_stale_under_concurrent_writes() {
    const IDS: usize = 20;
    let server = TestServer::with(|config| config.server.workers = 4);
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for seed in 0..4 {
            let (server, ended) = (&server, &ended);
            writers.push(scope.spawn(move || {
                let mut raw = server.raw();
                let mut random = fastrand::Rng::with_seed(seed);
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    let id = random.usize(..IDS);
                    raw.request(&["INCR", &format!("post:{id}:like")]);
                    raw.line();
                }
            }));
        }
        let mut raw = tracker(&server, &[]);
        let mut copies: Vec<Option<String>> = vec![None; IDS];
        let mut random = fastrand::Rng::with_seed(9);
        let began = Instant::now();
        let (mut told, mut read) = (0, 0);
        // Reads one line and stores or drops copies.
        let mut step = |raw: &mut Raw, copies: &mut Vec<Option<String>>, wanted: Option<usize>| {
            let key = wanted.map(|id| format!("post:{id}:like"));
            let end = if key.is_some() { "$" } else { "+PONG" };
            match &key {
                Some(key) => raw.request(&["GET", key]),
                None => raw.request(&["PING"]),
            };
            loop {
                let line = raw.line();
                if line == ">2" {
                    for wanted in ["$10", "invalidate", "*1"] {
                        assert_eq!(raw.line(), wanted);
                    }
                    raw.line();
                    let key = raw.line();
                    let id: usize = key.split(':').nth(1).unwrap().parse().unwrap();
                    copies[id] = None;
                    told += 1;
                } else if line.starts_with(end) || line == "_" {
                    if let Some(id) = wanted {
                        read += 1;
                        copies[id] = Some(if line == "_" { line } else { raw.line() });
                    }
                    return;
                }
            }
        };
        while began.elapsed() < Duration::from_secs(2) {
            let id = random.usize(..IDS);
            let wanted = copies[id].is_none().then_some(id);
            step(&mut raw, &mut copies, wanted);
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        step(&mut raw, &mut copies, None);
        let mut other = server.raw();
        for (id, copy) in copies.iter().enumerate() {
            let Some(copy) = copy else { continue };
            other.request(&["GET", &format!("post:{id}:like")]);
            other.line();
            assert_eq!(*copy, other.line(), "post {id}");
        }
        assert!(told > 100 && read > 100, "{told} {read}");
    });
}
