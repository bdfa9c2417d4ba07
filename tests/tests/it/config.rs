//! CONFIG on a running server: SET takes effect immediately, and REWRITE persists it.

use tidemark_server::config::{Config, Fsync};
use tidemark_tests::{DEFAULT_TIMEOUT, TestServer, eventually};

fn config(server: &TestServer, args: &[&str]) -> redis::RedisResult<redis::Value> {
    let mut command = redis::cmd("CONFIG");
    args.iter().for_each(|arg| {
        command.arg(arg);
    });
    command.query(&mut server.connection())
}

fn get(server: &TestServer, name: &str) -> String {
    let pair: Vec<String> =
        redis::cmd("CONFIG").arg("GET").arg(name).query(&mut server.connection()).unwrap();
    assert_eq!(pair.len(), 2, "{pair:?}");
    pair[1].clone()
}

fn set(server: &TestServer, pairs: &[&str]) {
    let mut all = vec!["SET"];
    all.extend(pairs);
    config(server, &all).unwrap();
}

#[test]
fn limits_take_effect_for_connections_that_are_there() {
    let server = TestServer::start();
    let mut raw = server.raw();
    raw.request(&["PING"]).expect("+PONG\r\n");
    set(&server, &["proto-max-bulk-len", "65536", "client-query-buffer-limit", "1mb"]);
    raw.send("*1\r\n$65537\r\n").expect("-ERR Protocol error: invalid bulk length\r\n");
    drop(raw);
    let mut kept: Vec<_> = (0..3).map(|_| server.raw()).collect();
    for raw in &mut kept {
        raw.request(&["PING"]).expect("+PONG\r\n");
    }
    let listed = |raw: &mut tidemark_tests::Raw| {
        let length = raw.ask(&["CLIENT", "LIST"])[1..].parse::<usize>().unwrap() + 2;
        raw.take(length).lines().filter(|l| l.starts_with("id=")).count()
    };
    eventually("those before have gone", || listed(&mut kept[0]) == 3);
    kept[0].request(&["CONFIG", "SET", "maxclients", "3"]).expect("+OK\r\n");
    assert_eq!(server.raw().rest(), "-ERR max number of clients reached\r\n");
    kept[0].request(&["CONFIG", "SET", "timeout", "1"]).expect("+OK\r\n");
    let started = std::time::Instant::now();
    assert_eq!(kept[1].rest(), "");
    assert!(started.elapsed() < DEFAULT_TIMEOUT / 2);
}

/// A keepalive value that the kernel rejects is refused, and accepted values lock no client out.
#[test]
fn no_keepalive_locks_clients_out() {
    let server = TestServer::start();
    for value in ["32768", "86400", "2147483647", "-1"] {
        let error = config(&server, &["SET", "tcp-keepalive", value]).unwrap_err().to_string();
        assert!(error.contains("CONFIG SET failed"), "{value}: {error}");
        assert_eq!(get(&server, "tcp-keepalive"), "300");
    }
    for value in ["32767", "1", "2", "0"] {
        set(&server, &["tcp-keepalive", value]);
        assert_eq!(server.raw().ask(&["PING"]), "+PONG", "{value}");
    }
    // A duration too long for a deadline would make the worker panic at shutdown.
    let names =
        [("server.shutdown_grace", "ms"), ("timeout", ""), ("server.shutdown_timeout", "s")];
    for (name, unit) in names {
        let too_long = format!("9223372036854775807{unit}");
        let error = config(&server, &["SET", name, &too_long]).unwrap_err();
        assert!(error.to_string().contains("must be 0 to 2147483647"), "{name}: {error}");
        set(&server, &[name, &format!("2147483647{unit}")]);
    }
    assert_eq!(server.raw().ask(&["PING"]), "+PONG");
    server.stop();
}

#[test]
fn more_clients_than_files_are_refused() {
    let server = TestServer::start();
    let error = config(&server, &["SET", "maxclients", "1000000000"]).unwrap_err().to_string();
    assert!(
        error.contains("not able to handle the specified number of clients, try with "),
        "{error}"
    );
    assert_eq!(get(&server, "maxclients"), Config::default().server.max_clients.to_string());
}

#[test]
fn fsync_always_holds_from_the_moment_it_is_set() {
    let server = TestServer::with(|config| config.durability.fsync = Fsync::No);
    let mut raw = server.raw();
    raw.request(&["HINCRBY", "post:1", "like", "1"]).expect(":1\r\n");
    set(&server, &["appendfsync", "always"]);
    for n in 2..50 {
        raw.request(&["HINCRBY", "post:1", "like", "1"]).expect(&format!(":{n}\r\n"));
    }
    // A copy of the data folder contains every acknowledged write.
    let copy = server.killed();
    copy.raw().request(&["HGET", "post:1", "like"]).expect("$2\r\n49\r\n");
    set(&server, &["appendfsync", "everysec"]);
    raw.request(&["HINCRBY", "post:1", "like", "1"]).expect(":50\r\n");
    eventually("the log has it without being asked", || {
        let copy = server.killed();
        let mut raw = copy.raw();
        raw.ask(&["HGET", "post:1", "like"]) == "$2" && raw.line() == "50"
    });
}

#[test]
fn a_rewrite_is_there_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidemark.toml");
    std::fs::write(&file, "# ours\n[server]\nworkers = 2 # two\n").unwrap();
    let start = || {
        let loaded = Config::load(&file).unwrap();
        TestServer::with(|config| *config = loaded)
    };
    let server = start();
    set(&server, &["timeout", "77", "server.max_clients", "99"]);
    config(&server, &["REWRITE"]).unwrap();
    server.stop();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.starts_with("# ours\n[server]\nworkers = 2 # two\n")
            && text.contains("idle_timeout = \"77s\"\n"),
        "{text}"
    );
    let server = start();
    assert_eq!(
        (get(&server, "timeout"), get(&server, "maxclients")),
        ("77".to_owned(), "99".to_owned())
    );
    // After the folder is deleted, REWRITE fails and the server continues.
    drop(folder);
    let error = config(&server, &["REWRITE"]).unwrap_err().to_string();
    assert!(error.contains("Rewriting config file: "), "{error}");
    server.raw().request(&["PING"]).expect("+PONG\r\n");
    let error = config(&TestServer::start(), &["REWRITE"]).unwrap_err().to_string();
    assert!(error.contains("The server is running without a config file"), "{error}");
}

/// A file written by CONFIG REWRITE after TM.SPACE ALTER starts a new replica. The view in the file
/// needs the new field, so the original file would not start.
#[test]
fn rewritten_file_starts_a_new_replica() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidemark.toml");
    let spaces = "[[counter]]\nname = \"post\"\nfields = \"like:12 repost:8\" # of a post\n\
                  rows = \"post:{id}\"\n";
    let view = "[[view]]\nname = \"home\"\ncounters = [\"post.like\", \"post.share\"]\n\
                flags = [\"liked\"]\n";
    for listed in ["", spaces] {
        std::fs::write(&file, listed).unwrap();
        let loaded = || Config::load(&file).unwrap();
        let master = TestServer::with(|config| *config = loaded());
        let alter = |words: &[&str]| {
            let _: String = redis::cmd("TM.SPACE")
                .arg(&["ALTER", "post"])
                .arg(words)
                .query(&mut master.connection())
                .unwrap();
        };
        alter(&["ADD", "share:14"]);
        alter(&["WIDEN", "like:20"]);
        alter(&["ADD", "gone:3"]);
        alter(&["DROP", "gone"]);
        // The original file does not start in a new folder: its view names an unknown field.
        std::fs::write(&file, format!("{listed}{view}")).unwrap();
        let new = tempfile::tempdir().unwrap();
        let mut own = loaded();
        own.durability.dir = new.path().to_path_buf();
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let error = tidemark_server::start(own, listener).err().expect("the server started");
        assert!(error.to_string().contains("there is no counter 'post.share'"), "{error}");

        let views = |words: &[&str]| {
            redis::cmd("TM.VIEW").arg(words).query::<()>(&mut master.connection()).unwrap();
        };
        views(&["DROP", "home"]);
        views(&["CREATE", "home", "counters", "post.like post.share", "flags", "liked"]);
        config(&master, &["REWRITE"]).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let fields = match listed {
            "" => "like:20 repost:8 comment:8 read:16 share:14",
            _ => "like:20 repost:8 share:14",
        };
        let line = format!("fields = \"{fields}\"");
        assert!(text.contains(&line) && text.contains(view), "{text}");
        assert_eq!(text.contains("# of a post"), !listed.is_empty(), "{text}");
        assert_eq!(get(&master, "counter.post.fields"), fields);
        // A second REWRITE leaves the file unchanged.
        config(&master, &["REWRITE"]).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);

        let replica = TestServer::with(|config| *config = loaded());
        master.raw().request(&["HSET", "post:1", "like", "7", "share", "5"]).expect(":2\r\n");
        let port = master.port().to_string();
        replica.raw().request(&["REPLICAOF", "127.0.0.1", &port, "FORCE"]).expect("+OK\r\n");
        eventually("the replica shows the row", || {
            // A full sync may close connections.
            let connected = redis::Client::open(replica.url()).and_then(|c| c.get_connection());
            let ask = |mut connection: redis::Connection| -> redis::RedisResult<Vec<Vec<i64>>> {
                redis::cmd("FEED.GET").arg(&["home", "9", "1"]).query(&mut connection)
            };
            connected.and_then(ask).is_ok_and(|page| page == [[7, 5, 0]])
        });
        assert_eq!(get(&replica, "counter.post.fields"), fields);
    }
}

/// A file that declares only its own spaces starts, and the default views and actions adapt to
/// them.
#[test]
fn file_of_spaces_alone_starts() {
    let cases = [
        (
            "[[counter]]\nname = \"photo\"\nfields = \"like:8\"\nrows = \"photo:{id}\"\n",
            "-ERR no such view 'home'",
            "-ERR no such action 'like'",
        ),
        ("[[counter]]\nname = \"post\"\nfields = \"like:8 share:4\"\n", "*1\r\n*3", "*1\r\n:1"),
        ("[[existence]]\nname = \"saved\"\n", "*1\r\n*4", "-ERR no such action 'like'"),
        ("existence = []\n", "*1\r\n*4", "-ERR no such action 'like'"),
        ("[[existence]]\nname = \"liked\"\nmembers = false\n", "*1\r\n*4", "-ERR no such action"),
        ("view = []\n", "-ERR no such view 'home'", "*1\r\n:1"),
    ];
    for (text, page, like) in cases {
        let config = Config::parse(text, std::path::Path::new("t.toml")).unwrap();
        let server = TestServer::with(|now| *now = config);
        let mut raw = server.raw();
        raw.request(&["FEED.GET", "home", "7", "1"]);
        assert_eq!(raw.take(page.len()), page, "{text}");
        let mut raw = server.raw();
        raw.request(&["FEED.ACT", "like", "7", "1"]);
        assert_eq!(raw.take(like.len()), like, "{text}");
        server.raw().request(&["PING"]).expect("+PONG\r\n");
    }
}

#[test]
fn counts_begin_anew() {
    let server = TestServer::start();
    let mut raw = server.raw();
    for _ in 0..100 {
        raw.request(&["PING"]).expect("+PONG\r\n");
    }
    let field = |name: &str| -> u64 {
        let info: String = redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
        let line = info.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.parse().unwrap()
    };
    assert!(field("total_commands_processed") >= 100 && field("total_net_input_bytes") > 1000);
    config(&server, &["RESETSTAT"]).unwrap();
    assert!(field("total_commands_processed") < 20 && field("total_connections_received") < 5);
}
