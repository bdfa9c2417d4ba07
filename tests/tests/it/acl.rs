//! ACL: rules take effect immediately on every connection, and no client learns a password.

use tidemark_server::config::Config;
use tidemark_tests::{Raw, TestServer, eventually, request};

fn inline(raw: &mut Raw, line: &str) -> String {
    let args: Vec<&str> = line.split(' ').collect();
    raw.ask(&args)
}

/// Returns the elements of an array or set of strings.
fn list(raw: &mut Raw, line: &str) -> Vec<String> {
    let head = inline(raw, line);
    let count: usize = head[1..].parse().unwrap_or_else(|_| panic!("{line}: {head}"));
    (0..count)
        .map(|_| {
            raw.line();
            raw.line()
        })
        .collect()
}

const OK: &str = "+OK";

#[test]
fn a_password_is_asked_for_and_nothing_else_is_answered_before() {
    let server = TestServer::with(|config| config.security.password = "secret".to_owned());
    let mut raw = server.raw();
    for line in [
        "PING",
        "GET post:1:like",
        "CONFIG GET *",
        "ACL WHOAMI",
        "CLIENT LIST",
        "INFO",
        "SHUTDOWN",
        "FEED.GET home 7 1",
    ] {
        assert_eq!(inline(&mut raw, line), "-NOAUTH Authentication required.", "{line}");
    }
    assert!(inline(&mut raw, "HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    for line in [
        "AUTH secre",
        "AUTH secret2",
        "AUTH default x",
        "AUTH nobody secret",
        "HELLO 3 AUTH default x",
    ] {
        assert_eq!(inline(&mut raw, line), wrong, "{line}");
    }
    // Before authentication, Redis's limits on announced sizes apply.
    for (bytes, error) in [
        ("*11\r\n", "-ERR Protocol error: unauthenticated multibulk length\r\n"),
        ("*1\r\n$16385\r\n", "-ERR Protocol error: unauthenticated bulk length\r\n"),
    ] {
        let mut raw = server.raw();
        raw.send(bytes);
        assert_eq!(raw.rest(), error);
    }
    // Send both requests in a single packet. The limits no longer apply to requests after AUTH.
    let long = "x".repeat(20_000);
    let mut bytes = request(&["AUTH", "secret"]);
    bytes.extend(request(&["ECHO", &long]));
    raw.send(bytes).expect("+OK\r\n$20000\r\n").expect(&long).expect("\r\n");
    raw.request(&["RESET"]).expect("+RESET\r\n");
    assert_eq!(inline(&mut raw, "PING"), "-NOAUTH Authentication required.");
    let mut raw = server.raw();
    assert!(inline(&mut raw, "HELLO 3 AUTH default secret SETNAME x").starts_with('%'));
}

#[test]
fn rules_allow_what_they_say_and_no_more() {
    let server = TestServer::start();
    let mut admin = server.raw();
    for line in [
        "ACL SETUSER reader on >r ~post:1* %R~user:* +@read",
        "ACL SETUSER page on >p $home %W$like +feed.get +feed.act",
        "ACL SETUSER space on >s $post +@all -@dangerous",
        "ACL SETUSER sub on >c +config|get +client|id +ping",
        "ACL SETUSER both on >b (~post:1 +hget) (~post:2 +hset)",
        "HSET post:1 like 5",
        "HSET post:2 like 6",
        "HSET user:3 follower 7",
    ] {
        assert!(["+OK", ":1"].contains(&inline(&mut admin, line).as_str()), "{line}");
    }
    let command =
        |name: &str| format!("-NOPERM this user has no permissions to run the '{name}' command");
    let key = || {
        "-NOPERM this user has no permissions to access one of the keys used as arguments"
            .to_owned()
    };
    let name = || {
        "-NOPERM this user has no permissions to access one of the spaces, views or actions used \
         as arguments"
            .to_owned()
    };
    type Lines<'a> = &'a [(&'a str, String)];
    let cases: &[(&str, &str, Lines<'_>)] = &[
        (
            "reader",
            "r",
            &[
                ("HGET post:1 like", "$1".into()),
                ("HGET user:3 follower", "$1".into()),
                ("HGET post:2 like", key()),
                ("MGET post:1:like post:2:like", key()),
                ("EXISTS post:1 post:2", key()),
                ("HSET post:1 like 1", command("hset")),
                ("CNT.GET post 1", name()),
                ("FEED.GET home 7 1", name()),
                ("CONFIG GET x", command("config|get")),
                ("PING", command("ping")),
                (
                    "AUTH nobody x",
                    "-WRONGPASS invalid username-password pair or user is disabled.".into(),
                ),
            ],
        ),
        (
            "page",
            "p",
            &[
                ("FEED.ACT like 7 1", "*1".into()),
                ("FEED.ACT read 7 1", name()),
                ("FEED.GET home 7 1 MARK read", name()),
                ("FEED.GET nope 7 1", name()),
                ("PH.EXISTS liked 7 1", command("ph.exists")),
            ],
        ),
        (
            "space",
            "s",
            &[
                ("HGET post:2 like", "$1".into()),
                ("HINCRBY post:2 like 1", ":7".into()),
                ("INCR post:2:like", ":8".into()),
                ("HGET user:3 follower", key()),
                ("SISMEMBER liked:1 7", key()),
                ("CNT.GET user 3", name()),
                ("FEED.GET home 7 1", name()),
                ("TM.ROLL post", command("tm.roll")),
                ("INFO", command("info")),
            ],
        ),
        (
            "sub",
            "c",
            &[
                ("CONFIG GET maxclient", "*0".into()),
                ("CONFIG SET timeout 0", command("config|set")),
                ("CLIENT LIST", command("client|list")),
                ("PING", "+PONG".into()),
            ],
        ),
        (
            "both",
            "b",
            &[
                ("HGET post:1 like", "$1".into()),
                ("HGET post:2 like", key()),
                ("HSET post:2 like 9", ":0".into()),
                ("HSET post:1 like 9", key()),
                ("HEXISTS post:1 like", command("hexists")),
            ],
        ),
    ];
    for (user, password, lines) in cases {
        for (line, expected) in *lines {
            let mut raw = server.raw();
            assert_eq!(inline(&mut raw, &format!("AUTH {user} {password}")), OK);
            assert_eq!(inline(&mut raw, line), *expected, "{user}: {line}");
        }
    }
    // Refusals are counted.
    let info: String = redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
    for field in ["acl_access_denied_cmd:", "acl_access_denied_key:", "acl_access_denied_auth:"] {
        let count = info.lines().find_map(|l| l.strip_prefix(field)).unwrap();
        assert_ne!(count, "0", "{field}");
    }
    let log: Vec<std::collections::HashMap<String, redis::Value>> =
        redis::cmd("ACL").arg(&["LOG", "100"]).query(&mut server.connection()).unwrap();
    let has = |field: &str, value: &str| {
        log.iter()
            .any(|e| redis::from_redis_value::<String>(e[field].clone()).is_ok_and(|v| v == value))
    };
    assert!(
        has("object", "post:2:like")
            && has("object", "config|set")
            && has("username", "nobody")
            && has("reason", "auth")
    );
}

#[test]
fn a_page_that_marks_needs_the_right_to_the_action() {
    let server = TestServer::start();
    let mut raw = server.raw();
    raw.request(&["ACL", "SETUSER", "page", "on", "nopass", "$home", "+feed.get"])
        .expect("+OK\r\n");
    raw.request(&["AUTH", "page", "x"]).expect("+OK\r\n");
    raw.request(&["FEED.GET", "home", "7", "1"])
        .expect("*1\r\n*6\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n");
    for words in [["mark", "read"], ["MARK", "like"]] {
        let reply = raw.ask(&["FEED.GET", "home", "7", "1", words[0], words[1]]);
        assert!(reply.starts_with("-NOPERM"), "{reply}");
    }
}

/// MARK requires the permission for FEED.ACT, even for users with access to all keys. The rule
/// applies directly, in a transaction, and in ACL DRYRUN.
#[test]
fn mark_needs_the_right_to_feed_act() {
    let server = TestServer::start();
    let mut admin = server.raw();
    let page = "*1\r\n*6\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n";
    let refusal = "this user has no permissions to run the 'feed.act' command";
    for (number, rules) in [
        "~* -@all +@read",
        "~* +@all -@write",
        "~* +@all -feed.act",
        "$home %W$like +feed.get",
        // The permissions for FEED.ACT and for FEED.GET are in different selectors.
        "~* +feed.get (~* +feed.act)",
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("u{number}");
        let made = format!("ACL SETUSER {name} on nopass {rules} +multi +exec");
        assert_eq!(inline(&mut admin, &made), OK, "{rules}");
        let mut raw = server.raw();
        assert_eq!(inline(&mut raw, &format!("AUTH {name} x")), OK);
        raw.request(&["FEED.GET", "home", "7", "1"]).expect(page);
        for line in ["FEED.GET home 7 1 MARK like", "FEED.GET home 7 1 BINARY mark like"] {
            assert_eq!(inline(&mut raw, line), format!("-NOPERM {refusal}"), "{rules}: {line}");
        }
        assert_eq!(inline(&mut raw, "MULTI"), OK);
        let queued = inline(&mut raw, "FEED.GET home 7 1 MARK like");
        assert_eq!(queued, format!("-NOPERM {refusal}"), "{rules}");
        assert!(inline(&mut raw, "EXEC").starts_with("-EXECABORT"), "{rules}");
        let dry = format!("ACL DRYRUN {name} FEED.GET home 7 1 MARK like");
        assert!(inline(&mut admin, &dry).starts_with('$'), "{rules}");
        assert_eq!(admin.line(), refusal.replacen('t', "T", 1), "{rules}");
        assert_eq!(inline(&mut admin, &format!("ACL DRYRUN {name} FEED.GET home 7 1")), OK);
        // EXEC checks the permission again.
        assert_eq!(inline(&mut admin, &format!("ACL SETUSER {name} ~* +feed.act")), OK);
        assert_eq!(inline(&mut raw, "MULTI"), OK);
        assert_eq!(inline(&mut raw, "FEED.GET home 7 1 MARK like"), "+QUEUED");
        assert_eq!(inline(&mut admin, &format!("ACL SETUSER {name} -feed.act")), OK);
        let reply = format!("*1\r\n-NOPERM {refusal}\r\n");
        if !rules.contains('(') {
            raw.request(&["EXEC"]).expect(&reply);
        }
    }
    admin.request(&["PH.EXISTS", "liked", "7", "1"]).expect("*1\r\n:0\r\n");
    admin.request(&["CNT.GET", "post", "1"]).expect("*1\r\n*-1\r\n");
    let log = list_of_refused(&mut admin);
    assert!(log.contains("feed.act") && !log.contains("feed.get"), "{log}");
    assert_eq!(inline(&mut admin, "ACL SETUSER may on nopass ~* +feed.get +feed.act"), OK);
    let mut raw = server.raw();
    assert_eq!(inline(&mut raw, "AUTH may x"), OK);
    raw.request(&["FEED.GET", "home", "7", "1", "MARK", "like"]).expect(page);
    admin.request(&["PH.EXISTS", "liked", "7", "1"]).expect("*1\r\n:1\r\n");
}

/// A client that revokes its own channels or user with ACL LOAD still receives its +OK.
#[test]
fn acl_load_answers_the_client_whose_connection_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users.acl");
    for after in ["user u on nopass ~* resetchannels +@all\n", "user v on nopass\n"] {
        std::fs::write(&file, "user u on nopass ~* &* +@all\n").unwrap();
        let server = TestServer::with(|config| {
            config.security.acl_file = file.to_str().unwrap().to_owned();
        });
        let mut own = server.raw();
        assert_eq!(inline(&mut own, "AUTH u x"), OK);
        // In RESP3 a subscriber may send any command.
        own.request(&["HELLO", "3"]).send("SUBSCRIBE news\r\n");
        while own.line() != ">3" {}
        (0..5).for_each(|_| drop(own.line()));
        std::fs::write(&file, after).unwrap();
        own.request(&["ACL", "LOAD"]).expect("+OK\r\n");
        assert_eq!(own.rest(), "", "{after}");
        assert_eq!(inline(&mut server.raw(), "PUBSUB NUMPAT"), ":0");
    }
}

/// ACL SETUSER and ACL LOAD disconnect exactly the clients whose subscriptions were revoked.
#[test]
fn only_listeners_of_what_was_taken_away_are_ended() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users.acl");
    std::fs::write(&file, "").unwrap();
    let server = TestServer::with(|config| {
        config.security.acl_file = file.to_str().unwrap().to_owned();
    });
    let mut admin = server.raw();
    let listener = |user: &str, request: &str| {
        let mut raw = server.raw();
        assert_eq!(inline(&mut raw, &format!("AUTH {user} x")), OK);
        raw.request(&["CLIENT", "SETNAME", &request.replace(' ', "_")]).expect("+OK\r\n");
        assert_eq!(inline(&mut raw, request), "*3");
        (0..5).for_each(|_| drop(raw.line()));
        raw
    };
    // Publishes a message and checks that the given listener receives it.
    let hears = |raw: &mut Raw, admin: &mut Raw, publish: &str| {
        assert!(inline(admin, publish).starts_with(':'));
        assert!(raw.line().starts_with('*'), "{publish}");
        let words: usize = if publish.contains("news:2") { 4 } else { 3 };
        (0..2 * words).for_each(|_| drop(raw.line()));
    };
    for change in ["ACL SETUSER u", "ACL LOAD"] {
        let made = "on nopass +@all &news:1 &news:* &other";
        for user in ["u", "v"] {
            assert_eq!(inline(&mut admin, &format!("ACL SETUSER {user} reset {made}")), OK);
        }
        let mut channel = listener("u", "SUBSCRIBE news:1");
        let mut pattern = listener("u", "PSUBSCRIBE news:*");
        let mut shard = listener("u", "SSUBSCRIBE other");
        let mut another = listener("v", "PSUBSCRIBE news:*");
        let set = |admin: &mut Raw, rules: &str| {
            if change == "ACL LOAD" {
                let text = format!("user u on nopass +@all {rules}\nuser v {made}\n");
                std::fs::write(&file, text).unwrap();
                assert_eq!(inline(admin, "ACL LOAD"), OK);
            } else {
                assert_eq!(inline(admin, &format!("{change} resetchannels {rules}")), OK);
            }
            // CLIENT LIST returns one bulk string.
            assert!(inline(admin, "CLIENT LIST").starts_with('$'));
            admin.line()
        };
        set(&mut admin, "&other &news:1 &news:* &more");
        hears(&mut channel, &mut admin, "PUBLISH news:1 m");
        for raw in [&mut pattern, &mut another] {
            // Skips the message published on news:1.
            (0..9).for_each(|_| drop(raw.line()));
        }
        hears(&mut pattern, &mut admin, "PUBLISH news:2 m");
        (0..9).for_each(|_| drop(another.line()));
        hears(&mut shard, &mut admin, "SPUBLISH other m");
        // A channel covered by the pattern stays allowed; the pattern itself does not.
        let clients = set(&mut admin, "&other &news:1");
        let listeners: Vec<&str> = clients.lines().filter(|l| l.contains(" flags=P ")).collect();
        assert_eq!(listeners.len(), 3, "the connection was not closed after the reply: {clients}");
        assert_eq!(pattern.rest(), "", "{change}");
        hears(&mut channel, &mut admin, "PUBLISH news:1 m");
        hears(&mut shard, &mut admin, "SPUBLISH other m");
        set(&mut admin, "&unknown");
        assert_eq!((channel.rest(), shard.rest()), (String::new(), String::new()), "{change}");
        // Skips two messages of news:1.
        (0..9).for_each(|_| drop(another.line()));
        hears(&mut another, &mut admin, "PUBLISH news:2 m");
    }
}

/// The ACL file keeps rules for commands that only Redis has. A rule that allows a command with one
/// first argument allows no other first argument.
#[test]
fn rules_that_name_commands_of_redis_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users.acl");
    std::fs::write(&file, "").unwrap();
    let server = TestServer::with(|config| {
        config.security.acl_file = file.to_str().unwrap().to_owned();
        config.security.deny_commands = vec!["debug".to_owned(), "eval".to_owned()];
    });
    let mut admin = server.raw();
    let rules = "~* resetchannels -@all +@read -eval -script +@search +select|0 +ping";
    assert_eq!(inline(&mut admin, &format!("ACL SETUSER u on nopass {rules}")), OK);
    let told = list(&mut admin, "ACL LIST").join("\n");
    let line = format!("user u on nopass {rules}");
    assert!(told.contains(&line), "{told}");
    assert_eq!(inline(&mut admin, "ACL SAVE"), OK);
    assert!(std::fs::read_to_string(&file).unwrap().contains(&line));
    assert_eq!(inline(&mut admin, "ACL LOAD"), OK);
    assert_eq!(list(&mut admin, "ACL LIST").join("\n"), told);
    assert_eq!(inline(&mut admin, "ACL CAT search"), "*0");
    assert!(inline(&mut admin, "ACL CAT nonsense").starts_with("-ERR Unknown category"));
    let mut raw = server.raw();
    assert_eq!(inline(&mut raw, "AUTH u x"), OK);
    let refusal = "-NOPERM this user has no permissions to run the 'select' command";
    for (line, reply) in
        [("SELECT 0", OK), ("SELECT 1", refusal), ("PING", "+PONG"), ("HGET post:1 like", "$-1")]
    {
        assert_eq!(inline(&mut raw, line), reply, "{line}");
    }
    assert_eq!(inline(&mut admin, "ACL SETUSER u -select"), OK);
    assert_eq!(inline(&mut raw, "SELECT 0"), refusal);
    assert_eq!(inline(&mut admin, "ACL SETUSER u +select|0 -@connection +ping"), OK);
    assert_eq!(inline(&mut raw, "SELECT 0"), refusal, "a category goes for all first arguments");
    // The action of MARK counts as FEED.ACT's first argument.
    assert_eq!(inline(&mut admin, "ACL SETUSER u +feed.get +feed.act|like"), OK);
    assert_eq!(inline(&mut raw, "FEED.ACT like 7 1"), "*1");
    assert_eq!(raw.line(), ":1");
    assert!(inline(&mut raw, "FEED.ACT read 7 1").starts_with("-NOPERM"));
    assert_eq!(
        inline(&mut raw, "FEED.GET home 7 1 MARK read"),
        refusal.replace("select", "feed.act")
    );
    assert_eq!(inline(&mut raw, "FEED.GET home 7 1 MARK like"), "*1");
}

fn list_of_refused(raw: &mut Raw) -> String {
    let mut all = String::new();
    raw.request(&["ACL", "LOG", "1000"]).request(&["ECHO", "the mark"]);
    while !all.ends_with("the mark\n") {
        let line = raw.line();
        if !line.contains("cmd=") {
            all += &line;
            all.push('\n');
        }
    }
    all
}

/// A command denied by the configuration is also denied as an option of other commands.
#[test]
fn a_denied_feed_act_is_denied_to_mark() {
    let server = TestServer::with(|config| {
        config.security.deny_commands = vec!["feed.act".to_owned()];
    });
    let mut raw = server.raw();
    let refusal = "feed.act command not allowed: the configuration denies it to all users";
    for line in ["FEED.ACT like 7 1", "FEED.GET home 7 1 MARK like"] {
        assert_eq!(inline(&mut raw, line), format!("-ERR {refusal}"), "{line}");
        assert!(inline(&mut raw, &format!("ACL DRYRUN default {line}")).starts_with('$'));
        assert_eq!(raw.line(), refusal);
    }
    assert_eq!(inline(&mut raw, "ACL DRYRUN default FEED.GET home 7 1"), OK);
    raw.request(&["PH.EXISTS", "liked", "7", "1"]).expect("*1\r\n:0\r\n");
}

#[test]
fn changes_reach_connections_that_are_there() {
    let server = TestServer::start();
    let (mut admin, mut raw) = (server.raw(), server.raw());
    inline(&mut admin, "ACL SETUSER u on >p ~* +@all");
    assert_eq!(inline(&mut raw, "AUTH u p"), OK);
    assert_eq!(inline(&mut raw, "HSET post:1 like 1"), ":1");
    assert!(inline(&mut raw, "CLIENT INFO").starts_with('$'));
    assert!(raw.line().contains(" user=u "));
    inline(&mut admin, "ACL SETUSER u -hset");
    assert!(inline(&mut raw, "HSET post:1 like 1").starts_with("-NOPERM"));
    inline(&mut admin, "ACL SETUSER u +hset resetkeys ~post:2");
    assert!(inline(&mut raw, "HSET post:1 like 1").starts_with("-NOPERM"));
    assert_eq!(inline(&mut raw, "HSET post:2 like 1"), ":1");
    assert_eq!(inline(&mut admin, "ACL DELUSER u nobody"), ":1");
    assert_eq!(raw.rest(), "");
    // As in Redis, a new password does not end existing sessions.
    let mut early = server.raw();
    assert_eq!(inline(&mut early, "PING"), "+PONG");
    assert_eq!(inline(&mut admin, "CONFIG SET requirepass x"), OK);
    assert_eq!(inline(&mut early, "PING"), "+PONG");
    assert!(inline(&mut server.raw(), "PING").starts_with("-NOAUTH"));
    assert_eq!(inline(&mut admin, "CONFIG SET requirepass "), OK);
    assert_eq!(inline(&mut server.raw(), "PING"), "+PONG");
}

#[test]
fn users_live_in_a_file_or_in_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(
        path("users.acl"),
        "# ours\nuser alice on >a ~post:* +@read\n\nuser default on nopass ~* &* +@all\n",
    )
    .unwrap();
    let server = TestServer::with(|config| config.security.acl_file = path("users.acl"));
    let mut admin = server.raw();
    assert_eq!(list(&mut admin, "ACL USERS"), ["alice", "default"]);
    let mut alice = server.raw();
    assert_eq!(inline(&mut alice, "AUTH alice a"), OK);
    assert_eq!(inline(&mut admin, "ACL SETUSER bob on >b +ping"), OK);
    assert_eq!(inline(&mut admin, "ACL SAVE"), OK);
    let text = std::fs::read_to_string(path("users.acl")).unwrap();
    assert!(text.contains(
        "user bob on #3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d \
         resetchannels -@all +ping\n"
    ));
    assert!(!text.contains(">a"), "{text}");
    // One invalid line rejects the whole file.
    std::fs::write(path("users.acl"), format!("{text}user eve on +nope\nnonsense\n")).unwrap();
    let error = inline(&mut admin, "ACL LOAD");
    assert!(
        error.contains("users.acl:4: Error in ACL SETUSER modifier '+nope'")
            && error.contains(":5: line should start"),
        "{error}"
    );
    assert!(
        error.ends_with("no change to the previously active ACL rules was performed"),
        "{error}"
    );
    assert_eq!(list(&mut admin, "ACL USERS"), ["alice", "bob", "default"]);
    // A deleted user is disconnected.
    std::fs::write(path("users.acl"), "user bob on >b +ping\n").unwrap();
    assert_eq!(inline(&mut admin, "ACL LOAD"), OK);
    assert_eq!(alice.rest(), "");
    assert_eq!(list(&mut admin, "ACL USERS"), ["bob", "default"]);
    let server = server.restart();
    assert_eq!(inline(&mut server.raw(), "AUTH bob b"), OK);
    drop(server);
    // Without an ACL file, CONFIG REWRITE writes the users.
    std::fs::write(path("t.toml"), "[server]\n").unwrap();
    let start = || {
        let config = Config::load(path("t.toml").as_ref()).unwrap();
        TestServer::with(|c| *c = config)
    };
    let server = start();
    let mut admin = server.raw();
    assert!(
        inline(&mut admin, "ACL SAVE")
            .starts_with("-ERR This Redis instance is not configured to use an ACL file.")
    );
    for line in ["ACL SETUSER carol on >c ~* +@all", "CONFIG SET requirepass top", "CONFIG REWRITE"]
    {
        assert_eq!(inline(&mut admin, line), OK, "{line}");
    }
    server.stop();
    let server = start();
    let mut raw = server.raw();
    assert!(inline(&mut raw, "PING").starts_with("-NOAUTH"));
    assert_eq!(inline(&mut raw, "AUTH carol c"), OK);
    assert_eq!(inline(&mut raw, "AUTH top"), OK);
    assert_eq!(list(&mut raw, "ACL USERS"), ["carol", "default"]);
}

#[test]
fn denied_commands_are_refused_to_all_users() {
    let server = TestServer::with(|config| {
        config.security.deny_commands =
            vec!["shutdown".to_owned(), "config|set".to_owned(), "@schema".to_owned()];
    });
    let mut raw = server.raw();
    for line in ["SHUTDOWN", "CONFIG SET timeout 1", "TM.SPACE LIST", "TM.ROLL post"] {
        let reply = inline(&mut raw, line);
        assert!(
            reply.starts_with("-ERR ") && reply.ends_with("denies it to all users"),
            "{line}: {reply}"
        );
    }
    assert_eq!(inline(&mut raw, "CONFIG GET maxclient"), "*0");
    assert_eq!(inline(&mut raw, "ACL SETUSER default +@all"), OK);
    assert!(inline(&mut raw, "SHUTDOWN").starts_with("-ERR "));
}

#[test]
fn a_client_that_does_not_log_in_is_disconnected() {
    let server = TestServer::with(|config| {
        config.security.password = "x".to_owned();
        config.security.handshake_timeout_s = 1;
    });
    let (mut stranger, mut friend) = (server.raw(), server.raw());
    assert_eq!(inline(&mut friend, "AUTH x"), OK);
    stranger.send("*1\r\n");
    assert_eq!(stranger.rest(), "");
    assert_eq!(inline(&mut friend, "PING"), "+PONG");
}

#[test]
fn there_is_a_limit_of_users_and_of_rules() {
    let server = TestServer::with(|config| config.security.max_users = 3);
    let mut raw = server.raw();
    for name in ["a", "b"] {
        assert_eq!(inline(&mut raw, &format!("ACL SETUSER {name} on")), OK);
    }
    assert_eq!(
        inline(&mut raw, "ACL SETUSER c on"),
        "-ERR too many users: security.max_users is 3"
    );
    assert_eq!(inline(&mut raw, "ACL SETUSER b off"), OK);
    let mut rules = vec!["ACL".to_owned(), "SETUSER".into(), "b".into()];
    rules.extend((0..10_000).map(|i| format!("~key{i}")));
    let reply = raw.ask(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(reply.starts_with("-ERR a user's rules are limited to"), "{reply}");
    assert_eq!(
        raw.ask(&["ACL", "SETUSER", "a b"]),
        "-ERR Usernames can't contain spaces or null characters"
    );
    assert_eq!(
        raw.ask(&["ACL", "SETUSER", "a\r\nb"]),
        "-ERR Usernames can't contain spaces or null characters"
    );
}

#[test]
fn a_password_is_nowhere_to_be_seen() {
    let server = TestServer::start();
    let mut raw = server.raw();
    inline(&mut raw, "ACL SETUSER u on >hunter2 +@all ~*");
    inline(&mut raw, "AUTH u hunter2");
    inline(&mut raw, "AUTH u hunter2x");
    inline(&mut raw, "ACL SETUSER u <hunter2y");
    let mut seen = String::new();
    for line in ["INFO", "CLIENT LIST", "ACL LIST", "ACL GETUSER u", "ACL LOG", "CONFIG GET *"] {
        raw.request(&line.split(' ').collect::<Vec<_>>()).request(&["ECHO", "the mark"]);
        let mut reply = String::new();
        while !reply.ends_with("the mark\n") {
            reply += &raw.line();
            reply.push('\n');
        }
        seen += &reply;
    }
    assert!(seen.contains("user=u") && !seen.contains("hunter2"), "{seen}");
}

#[test]
fn monitor_and_slowlog_show_no_passwords() {
    let server = TestServer::start();
    let (mut monitor, mut client) = (server.raw(), server.connection());
    let mut said = |line: &str| {
        let mut words = line.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        cmd.arg(words.collect::<Vec<_>>());
        format!("{:?}", cmd.query::<redis::Value>(&mut client))
    };
    said("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 1000");
    assert_eq!(inline(&mut monitor, "MONITOR"), OK);
    // Send valid, invalid and malformed commands, also inside a transaction.
    for (line, answer) in [
        ("ACL SETUSER u on >hunter2 +@all ~*", "Ok("),
        ("ACL SETUSER u >hunter2 nonsense-hunter2", "Err("),
        ("ACL DRYRUN u AUTH hunter2", "Ok("),
        ("AUTH u hunter2", "Ok("),
        ("AUTH u hunter2x", "Err("),
        ("AUTH u hunter2 hunter2", "Err("),
        ("HELLO 2 AUTH u hunter2", "Ok("),
        ("HELLO 2 AUTH u hunter2x SETNAME z", "Err("),
        ("HELLO 2 AUTH u hunter2 nonsense", "Err("),
        ("CONFIG SET masterauth hunter2", "Ok("),
        ("CONFIG SET masterauth hunter2 nonsense hunter2", "Err("),
        ("CONFIG SET requirepass hunter2", "Ok("),
        ("MULTI", "Ok("),
        ("ACL SETUSER u >hunter2", "Ok("),
        ("CONFIG SET masterauth hunter2", "Ok("),
        ("ECHO in-a-transaction", "Ok("),
        ("EXEC", "Ok("),
        ("ECHO at-the-end", "Ok("),
    ] {
        let reply = said(line);
        assert!(reply.starts_with(answer), "{line}: {reply}");
    }
    let slow = said("SLOWLOG GET -1");
    for kept in ["ACL", "AUTH", "HELLO", "CONFIG", "(redacted)", "in-a-transaction", "at-the-end"] {
        assert!(slow.contains(kept), "{kept}: {slow}");
    }
    assert!(!slow.contains("hunter2"), "{slow}");
    let mut shown = String::new();
    while !shown.contains("at-the-end") {
        shown += &monitor.line();
    }
    assert!(shown.contains("in-a-transaction") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn random_requests_touch_no_key_that_is_not_allowed() {
    let server = TestServer::start();
    let mut admin = server.raw();
    inline(&mut admin, "HSET post:1 like 5 repost 6");
    inline(&mut admin, "SADD liked:1 7");
    inline(&mut admin, "ACL SETUSER u on nopass ~user:* $user +@all -@admin -@dangerous");
    let digest = |raw: &mut Raw| {
        let mut all = String::new();
        raw.request(&["HGETALL", "post:1"]).request(&["SISMEMBER", "liked:1", "7"]).request(&[
            "PH.EXISTS",
            "liked",
            "8",
            "1",
        ]);
        raw.request(&["ECHO", "the mark"]);
        while !all.ends_with("the mark\n") {
            all += &raw.line();
            all.push('\n');
        }
        all
    };
    let before = digest(&mut admin);
    let seed = 8;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut names: Vec<String> = list(&mut admin, "COMMAND LIST");
    names.retain(|name| !name.contains('|'));
    let words = [
        "post:1",
        "post:1:like",
        "liked:1",
        "post",
        "liked",
        "like",
        "read",
        "home",
        "1",
        "7",
        "8",
        "user:1",
        "user",
        "MARK",
        "follower",
        "like",
    ];
    let mut user = server.raw();
    assert_eq!(inline(&mut user, "AUTH u x"), OK);
    let mut allowed = 0;
    for step in 0..20_000 {
        let name = random.choice(&names).unwrap();
        let about_connection = [
            "quit",
            "reset",
            "hello",
            "auth",
            "client",
            "monitor",
            "multi",
            "exec",
            "discard",
            "watch",
            "unwatch",
            "subscribe",
            "psubscribe",
            "ssubscribe",
            "unsubscribe",
            "punsubscribe",
            "sunsubscribe",
        ];
        if about_connection.contains(&name.as_str()) {
            continue;
        }
        let mut args: Vec<&str> = vec![name];
        args.extend((0..random.usize(0..7)).map(|_| *random.choice(&words).unwrap()));
        user.request(&args).request(&["ECHO", "the mark"]);
        let mut reply = String::new();
        while !reply.ends_with("the mark\n") {
            reply += &user.line();
            reply.push('\n');
            assert!(!reply.is_empty(), "{args:?}");
        }
        if !reply.starts_with('-') {
            allowed += 1;
            let touched = args[1..].iter().any(|a| {
                ["post:1", "post:1:like", "liked:1", "post", "liked", "like", "read", "home"]
                    .contains(a)
            });
            let speaks_of_commands = [
                "echo",
                "ping",
                "command",
                "tm.space",
                "object",
                "acl",
                "publish",
                "pubsub",
                "tm.tables",
            ]
            .contains(&name.as_str());
            assert!(
                !touched || speaks_of_commands || args[1] == "user" || args[1] == "user:1",
                "seed {seed}, step {step}: {args:?}: {reply}"
            );
        }
    }
    assert!(allowed > 100, "{allowed}");
    assert_eq!(digest(&mut admin), before);
    eventually("the server replies", || inline(&mut server.raw(), "PING") == "+PONG");
}

#[test]
fn what_is_queued_is_asked_again_at_exec() {
    let server = TestServer::start();
    let (mut admin, mut raw) = (server.raw(), server.raw());
    inline(&mut admin, "ACL SETUSER u on nopass ~post:* +@all");
    inline(&mut raw, "AUTH u x");
    for (line, reply) in
        [("MULTI", "+OK"), ("HSET post:1 like 1", "+QUEUED"), ("HGET post:1 like", "+QUEUED")]
    {
        assert_eq!(inline(&mut raw, line), reply);
    }
    inline(&mut admin, "ACL SETUSER u -hset");
    raw.request(&["EXEC"])
        .expect("*2\r\n-NOPERM this user has no permissions to run the 'hset' command\r\n$-1\r\n");
    // A denied command is not queued, and EXEC executes nothing.
    assert_eq!(inline(&mut raw, "MULTI"), OK);
    assert!(inline(&mut raw, "HGET user:1 follower").starts_with("-NOPERM"));
    assert!(inline(&mut raw, "EXEC").starts_with("-EXECABORT"));
}

#[test]
fn channels_are_allowed_by_pattern_and_taken_back() {
    let server = TestServer::start();
    let (mut admin, mut raw) = (server.raw(), server.raw());
    inline(&mut admin, "ACL SETUSER u on nopass &news:* +@pubsub");
    inline(&mut raw, "AUTH u x");
    let denied =
        "-NOPERM this user has no permissions to access one of the channels used as arguments";
    assert_eq!(inline(&mut raw, "PUBLISH news:1 x"), ":0");
    for line in ["PUBLISH other x", "SUBSCRIBE news:1 other", "PSUBSCRIBE news:1*", "PSUBSCRIBE *"]
    {
        assert_eq!(inline(&mut raw, line), denied, "{line}");
    }
    raw.request(&["PSUBSCRIBE", "news:*"])
        .expect("*3\r\n$10\r\npsubscribe\r\n$6\r\nnews:*\r\n:1\r\n");
    inline(&mut admin, "ACL SETUSER u +ping");
    assert_eq!(inline(&mut admin, "PUBLISH news:1 x"), ":1");
    assert!(inline(&mut raw, "PING").starts_with('*'), "the message");
    // A subscriber sends no requests, so its connection is closed.
    inline(&mut admin, "ACL SETUSER u resetchannels &other");
    raw.rest();
}

/// Requires a non-loopback address on this machine.
#[test]
fn strangers_from_other_machines_are_denied() {
    let own = std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        // Connecting a UDP socket sends nothing; it only selects a source address.
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    let Ok(own) = own else {
        tidemark_tests::cannot("this machine has no address but loopback");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.durability.dir = folder.path().to_path_buf();
    let server =
        tidemark_server::start(config, std::net::TcpListener::bind("0.0.0.0:0").unwrap()).unwrap();
    let connect = |ip: std::net::IpAddr| {
        let stream = std::net::TcpStream::connect((ip, server.port())).unwrap();
        stream.set_read_timeout(Some(tidemark_tests::DEFAULT_TIMEOUT)).unwrap();
        Raw { stream }
    };
    assert!(connect(own.ip()).rest().starts_with("-DENIED Tidemark is running in protected mode"));
    let mut local = connect([127, 0, 0, 1].into());
    assert_eq!(inline(&mut local, "CONFIG SET protected-mode no"), OK);
    assert_eq!(inline(&mut connect(own.ip()), "PING"), "+PONG");
    for line in ["CONFIG SET protected-mode yes", "CONFIG SET requirepass x"] {
        assert_eq!(inline(&mut local, line), OK);
    }
    let mut far = connect(own.ip());
    assert!(inline(&mut far, "PING").starts_with("-NOAUTH"));
    assert_eq!(inline(&mut far, "AUTH x"), OK);
    server.stop().unwrap();
}

/// SET with GET and SMOVE reveal data, so these commands need read permission. Space names ($)
/// grant the same permissions as key patterns.
#[test]
fn a_write_only_key_right_reads_nothing() {
    let server = TestServer::start();
    let (mut admin, mut raw) = (server.raw(), server.raw());
    for rules in ["%W~post:* %W~liked:*", "%W$post %W$liked"] {
        for line in ["DEL post:1", "HSET post:1 like 5", "SADD liked:1 7"] {
            assert!(inline(&mut admin, line).starts_with(':'), "{line}");
        }
        assert_eq!(
            inline(&mut admin, &format!("ACL SETUSER u reset on nopass +@all -@dangerous {rules}")),
            OK
        );
        assert_eq!(inline(&mut raw, "AUTH u x"), OK);
        for line in [
            "GET post:1:like",
            "SET post:1:like 6 GET",
            "SET post:1:like 6 XX get",
            "GETSET post:1:like 6",
            "GETDEL post:1:like",
            "INCR post:1:like",
            "HINCRBY post:1 like 1",
            "MGET post:1:like",
            "HGETALL post:1",
            "SMOVE liked:1 liked:2 7",
            "SMOVE liked:1 liked:2 8",
            "BF.EXISTS liked:1 7",
            "CF.EXISTS liked:1 7",
            "BFGET liked:1",
            "CNT.GET post 1",
            "CNT.INCRBY post 1 like 1",
            "PH.EXISTS liked 7 1",
        ] {
            assert!(inline(&mut raw, line).starts_with("-NOPERM"), "{rules}: {line}");
        }
        for (line, reply) in [
            ("SET post:1:like 6", OK),
            ("SET post:1:like 7 NX", "$-1"),
            ("HSET post:1 like 7", ":0"),
            ("MSET post:1:like 8 post:2:like 9", OK),
            ("SADD liked:1 8", ":1"),
            ("SREM liked:1 8", ":1"),
            ("DEL post:2:like", ":1"),
        ] {
            assert_eq!(inline(&mut raw, line), reply, "{rules}: {line}");
        }
        assert_eq!(inline(&mut admin, "HGET post:1 like"), "$1");
        assert_eq!(admin.line(), "8");
    }
}

#[test]
fn a_page_marks_once_and_what_is_allowed() {
    let server = TestServer::start();
    let mut raw = server.raw();
    let rules = "ACL SETUSER u on nopass $home %W$like +feed.get +feed.act";
    assert_eq!(inline(&mut raw, rules), OK);
    raw.request(&["AUTH", "u", "x"]).expect("+OK\r\n");
    for line in ["FEED.GET home 7 1 MARK like MARK read", "FEED.GET home 7 1 MARK like MARK like"] {
        assert_eq!(inline(&mut raw, line), "-ERR syntax error", "{line}");
    }
    assert!(inline(&mut raw, "FEED.GET home 7 1 MARK read MARK like").starts_with("-NOPERM"));
    server.raw().request(&["PH.EXISTS", "read", "7", "1"]).expect("*1\r\n:0\r\n");
}

/// The metrics user recommended in docs/security.md can run what an exporter needs, and sees no
/// password.
#[test]
fn a_metrics_user_learns_no_password() {
    let server = TestServer::with(|config| {
        config.security.password = "topsecret".to_owned();
        config.replication.master_auth = "mpass".to_owned();
    });
    let (mut admin, mut raw) = (server.raw(), server.raw());
    assert_eq!(inline(&mut admin, "AUTH topsecret"), OK);
    let user = tidemark_tests::recommended_user("metrics", "m");
    assert_eq!(admin.ask(&user.iter().map(String::as_str).collect::<Vec<_>>()), OK);
    assert_eq!(inline(&mut raw, "AUTH metrics m"), OK);
    let secrets = ["requirepass", "masterauth", "security.password", "replication.master_auth"];
    for name in secrets {
        assert_eq!(inline(&mut raw, &format!("CONFIG GET {name}")), "*0", "{name}");
        assert_eq!(list(&mut admin, &format!("CONFIG GET {name}")).len(), 2, "{name}");
    }
    let all = list(&mut raw, "CONFIG GET *").join(" ");
    assert!(
        all.contains("maxclients") && !all.contains("topsecret") && !all.contains("mpass"),
        "{all}"
    );
    // Commands denied to everyone remain visible to the administrator.
    for line in [
        "CONFIG SET timeout 0",
        "LATENCY RESET",
        "SLOWLOG RESET",
        "CONFIG REWRITE",
        "ACL LIST",
        "MULTI",
    ] {
        assert!(inline(&mut raw, line).starts_with("-NOPERM"), "{line}");
    }
    for line in
        ["INFO", "PING", "SLOWLOG LEN", "SLOWLOG GET 1", "LATENCY LATEST", "LATENCY HISTOGRAM"]
    {
        let mut raw = server.raw();
        assert_eq!(inline(&mut raw, "AUTH metrics m"), OK);
        assert!(!inline(&mut raw, line).starts_with('-'), "{line}");
    }
}
