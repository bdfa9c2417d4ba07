//! Tests `examples/write_behind`: databases follow a server through a consumer group, while the
//! test kills the server and the consumers, trims the log, and fails over. At the end, every row of
//! the databases equals the server's row.

use harness::program::{Program, call, until};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Each start begins a new log segment, and each snapshot deletes earlier segments. The nodes are
/// not fenced, because there is no Sentinel to confirm the master.
const CONFIG: &str = "[durability]\nkeep_log = 0\nsnapshot_every = 0\n\
                      [replication]\nfence = false\n[changes]\nmax_pending = 600\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

struct Node {
    folder: tempfile::TempDir,
    program: Option<Program>,
    port: u16,
}

impl Node {
    fn new() -> Node {
        let mut node = Node { folder: tempfile::tempdir().unwrap(), program: None, port: 0 };
        std::fs::write(node.config(), CONFIG).unwrap();
        node.start();
        node
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("tidemark.toml")
    }

    fn start(&mut self) {
        let (config, port) = (self.config(), self.port.to_string());
        let options = ["--fsync", "always", "--config", config.to_str().unwrap(), "--port", &port];
        let program = Program::start_as(&[], &self.folder.path().join("data"), &options)
            .unwrap_or_else(|said| panic!("the server did not start: {said:#?}"));
        self.port = program.port;
        self.program = Some(program);
    }

    fn kill(&mut self) {
        self.program.take().unwrap().kill();
    }

    fn call(&self, words: &str) -> String {
        format!("{:?}", call(&mut self.program.as_ref().unwrap().client(), words))
    }
}

struct Follower {
    servers: String,
    database: String,
    child: Option<Child>,
}

impl Follower {
    fn command(&self, option: &str) -> Command {
        let mut python = Command::new(root().join("target/clients/redis-py-new/bin/python"));
        python.arg("-B").arg(root().join("examples/write_behind/write_behind.py"));
        python.args([&self.servers, &self.database]).stdin(Stdio::null());
        // One group per database.
        python.args(["--group", self.database.split(':').next().unwrap()]);
        if !option.is_empty() {
            python.arg(option);
        }
        python
    }

    fn start(&mut self) {
        let mut command = self.command("");
        let started = command.stderr(Stdio::null()).spawn();
        self.child = Some(
            started.unwrap_or_else(|e| panic!("{command:?}: {e}: run tests/clients/setup once")),
        );
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn run(&self, option: &str) -> String {
        let done = self.command(option).output().unwrap();
        let (out, err) =
            (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{}: {out}\n{err}", self.database);
        out.into_owned()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) struct Postgres(tempfile::TempDir);

impl Postgres {
    fn as_its_user(words: &[&str]) -> Command {
        // PostgreSQL refuses to run as root.
        let user = if rustix::process::geteuid().is_root() {
            &["runuser", "-u", "postgres", "--"][..]
        } else {
            &[]
        };
        let words = [user, words].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir("/tmp").stdout(Stdio::null());
        command
    }

    pub(crate) fn start() -> Option<Postgres> {
        let bin = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().next()?.path();
        let bin = bin.join("bin");
        let folder = tempfile::tempdir().unwrap();
        if rustix::process::geteuid().is_root() {
            let owned = Command::new("chown").arg("postgres").arg(folder.path()).status();
            assert!(owned.unwrap().success());
        }
        let (data, socket) = (folder.path().join("data"), folder.path().to_str().unwrap());
        let data = data.to_str().unwrap();
        let of = |name: &str| bin.join(name).to_str().unwrap().to_owned();
        let made = Postgres::as_its_user(&[
            &of("initdb"),
            "-D",
            data,
            "-U",
            "postgres",
            "-A",
            "trust",
            "--no-sync",
        ]);
        assert!({ made }.status().unwrap().success());
        let options = format!("-k {socket} -c listen_addresses='' -c fsync=off");
        let log = format!("{socket}/log");
        let words = [&of("pg_ctl"), "-D", data, "-w", "-l", &log, "-o", &options, "start"];
        assert!(Postgres::as_its_user(&words).status().unwrap().success());
        Some(Postgres(folder))
    }

    /// Runs SQL and returns the rows, with columns separated by `|`.
    pub(crate) fn query(&self, sql: &str) -> String {
        let host = self.0.path().to_str().unwrap();
        let options = ["psql", "-h", host, "-U", "postgres", "-qAt", "-v", "ON_ERROR_STOP=1"];
        let mut psql = Postgres::as_its_user(&options);
        let psql = psql.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut psql = psql.unwrap();
        psql.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
        let done = psql.wait_with_output().unwrap();
        assert!(done.status.success());
        String::from_utf8(done.stdout).unwrap()
    }

    fn place(&self) -> String {
        format!("postgresql:host={} user=postgres dbname=postgres", self.0.path().display())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let bin = std::fs::read_dir("/usr/lib/postgresql").unwrap().flatten().next().unwrap();
        let (pg_ctl, data) = (bin.path().join("bin/pg_ctl"), self.0.path().join("data"));
        let words =
            [pg_ctl.to_str().unwrap(), "-D", data.to_str().unwrap(), "-m", "immediate", "stop"];
        let _ = Postgres::as_its_user(&words).status();
    }
}

/// Writes to the current master until stopped: likes that are repeatedly undone, other counters,
/// and deleted rows.
fn write(ports: [u16; 2], stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(7);
    let mut connection: Option<redis::Connection> = None;
    while !stop.load(Relaxed) {
        let Some(open) = &mut connection else {
            let client = |port: u16| redis::Client::open(format!("redis://127.0.0.1:{port}/"));
            connection = ports.iter().find_map(|port| {
                let mut open = client(*port).ok()?.get_connection().ok()?;
                let role: redis::Value = redis::cmd("ROLE").query(&mut open).ok()?;
                format!("{role:?}").contains("master").then_some(open)
            });
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        let mut pipe = redis::pipe();
        for _ in 0..20 {
            let (id, member) = (random.u32(1..3_000), random.u32(1..50));
            match random.u32(..10) {
                0 => pipe.cmd("HINCRBY").arg(format!("post:{id}")).arg("read").arg(1),
                1 => pipe.cmd("FEED.UNDO").arg("like").arg(member).arg(id),
                2 => pipe.cmd("HINCRBY").arg(format!("user:{id}")).arg("follower").arg(1),
                3 => pipe.cmd("DEL").arg(format!("user:{id}")),
                _ => pipe.cmd("FEED.ACT").arg("like").arg(member).arg(id),
            };
        }
        if pipe.query::<()>(open).is_err() {
            connection = None;
        }
    }
}

#[test]
fn databases_equal_the_server_after_kills_trims_and_a_failover() {
    let (mut master, copy) = (Node::new(), Node::new());
    copy.call(&format!("REPLICAOF 127.0.0.1 {}", master.port));
    let is_in_step =
        |copy: &Node| copy.program.as_ref().unwrap().info("master_link_status") == "up";
    until("the replica has caught up", || is_in_step(&copy));
    let folder = tempfile::tempdir().unwrap();
    let servers = format!("127.0.0.1:{},127.0.0.1:{}", master.port, copy.port);
    let sqlite = format!("sqlite:{}", folder.path().join("likes.db").display());
    let postgres = seeds::is_full().then(|| {
        Postgres::start().expect("PostgreSQL is installed: run tests/clients/setup --all once")
    });
    let databases = [Some(sqlite), postgres.as_ref().map(Postgres::place)];
    let mut followers: Vec<Follower> = databases
        .into_iter()
        .flatten()
        .map(|database| Follower { servers: servers.clone(), database, child: None })
        .collect();
    let ports = [master.port, copy.port];
    let moment = || std::thread::sleep(Duration::from_millis(700));
    while_written(ports, || {
        followers.iter_mut().for_each(Follower::start);
        for _ in 0..seeds::rounds(3) {
            moment();
            followers.iter_mut().for_each(Follower::kill);
            followers.iter_mut().for_each(Follower::start);
        }
        for _ in 0..seeds::rounds(2) {
            moment();
            master.kill();
            moment();
            master.start();
        }
        moment();
    });
    // A like changes a pair and a count, so comparing the two detects a missing pair.
    let likes = likes(master.port);
    assert!(likes > 1_000);
    for follower in &mut followers {
        assert_eq!(equal_pairs(follower), likes, "{}", follower.database);
    }
    while_written(ports, || {
        // The consumers are down while the server trims the log.
        moment();
        master.kill();
        master.start();
        moment();
        until("the log is trimmed", || {
            master.call("SAVE");
            master.call("XREAD COUNT 1 STREAMS tm:changes 0").contains("TRIMMED")
        });
        followers.iter_mut().for_each(Follower::start);
        moment();
        // Fails over to a replica that may lack the last changes.
        until("the replica has caught up", || is_in_step(&copy));
        moment();
        master.kill();
        copy.call("REPLICAOF NO ONE");
        moment();
        followers.iter_mut().for_each(Follower::kill);
        followers.iter_mut().for_each(Follower::start);
        moment();
    });
    // The server cannot list pairs that were set in the trimmed part of the log, so the databases
    // lack these pairs. All other pairs and all rows must be equal to the server's.
    for follower in &mut followers {
        assert!(equal_pairs(follower) >= likes / 2, "{}", follower.database);
    }
}

/// A new database does not continue at the position of an earlier database with the same group.
/// Instead, its consumer reads all data. The test also covers retired rows.
#[test]
fn empty_database_reads_all_whatever_its_group_has_got() {
    let mut server = Node::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("likes.db");
    let database = format!("sqlite:{}", file.display());
    let follower =
        Follower { servers: format!("127.0.0.1:{}", server.port), database, child: None };
    let made = "TM.SPACE CREATE old COUNTER fields like:12 rows old:{id} rows_per_table 100";
    assert!(!server.call(made).contains("Error"), "{made}");
    for id in 800..1_100 {
        server.call(&format!("HSET old:{id} like {id}"));
    }
    server.call("FEED.ACT like 42 7");
    let equal = |rows: &str| {
        follower.run("--until-idle");
        let said = follower.run("--compare");
        assert!(said.starts_with(rows) && said.contains(" 0 differences"), "{said}");
        said
    };
    assert!(equal("301 rows").contains(" 1 pairs"));
    // Until the log is trimmed, it contains all changes, including the pairs.
    std::fs::remove_file(&file).unwrap();
    assert!(equal("301 rows").contains(" 1 pairs"));
    std::fs::remove_file(&file).unwrap();
    server.kill();
    server.start();
    until("the log is trimmed", || {
        server.call("SAVE");
        server.call("XREAD COUNT 1 STREAMS tm:changes 0").contains("TRIMMED")
    });
    server.call("HSET old:900 like 9");
    equal("301 rows");
    let retired = server.call("TM.SPACE RETIRE old 1000");
    assert!(!retired.contains("Error"), "{retired}");
    equal("101 rows");
}

/// Some counters and spaces have the names of columns and tables of the example.
#[test]
fn names_of_its_own_are_told_from_those_of_counters_and_spaces() {
    let server = Node::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("likes.db");
    let database = format!("sqlite:{}", file.display());
    let follower =
        Follower { servers: format!("127.0.0.1:{}", server.port), database, child: None };
    for space in ["_followed", "odd"] {
        let fields = ["id:8", "_entry:8", "_deleted:8", "space:8", "Member:8"];
        let (fields, rows) = (fields.join(" "), format!("{space}:{{id}}"));
        let mut made = redis::cmd("TM.SPACE");
        made.arg(&["CREATE", space, "COUNTER", "fields", &fields, "rows", &rows]);
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port)).unwrap();
        made.query::<()>(&mut client.get_connection().unwrap()).unwrap();
        for id in 1..=20 {
            let row = format!("HSET {space}:{id} id 1 _entry 2 _deleted {} space 4", id % 2);
            assert!(!server.call(&row).contains("Error"), "{row}");
        }
        server.call(&format!("DEL {space}:1"));
    }
    // Cover both ways of reading all data: from the stream, and by a scan.
    for trims in [false, true] {
        if trims {
            std::fs::remove_file(&file).unwrap();
        }
        follower.run("--until-idle");
        let said = follower.run("--compare");
        assert!(said.starts_with("38 rows") && said.contains(" 0 differences"), "{said}");
    }
}

fn while_written(ports: [u16; 2], work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(ports, &stop));
        work();
        stop.store(true, Relaxed);
        writer.join().unwrap();
    });
}

/// Lets a database catch up and compares it with the server. Returns its number of pairs.
#[track_caller]
fn equal_pairs(follower: &mut Follower) -> u64 {
    follower.kill();
    follower.run("--until-idle");
    let said = follower.run("--compare");
    assert!(said.contains(" 0 differences"), "{}: {said}", follower.database);
    let pairs = said.split(", ").nth(1).and_then(|pairs| pairs.split(' ').next()).unwrap();
    pairs.parse().unwrap()
}

type Row = (String, u64, u64, u64, u64);

fn likes(port: u16) -> u64 {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
    let mut connection = client.get_connection().unwrap();
    let (mut cursor, mut likes) = ("0".to_owned(), 0);
    loop {
        let (next, rows): (String, Vec<Row>) =
            redis::cmd("CNT.SCAN").arg("post").arg(&cursor).query(&mut connection).unwrap();
        likes += rows.iter().map(|row| row.1).sum::<u64>();
        cursor = next;
        if cursor == "0" {
            return likes;
        }
    }
}
