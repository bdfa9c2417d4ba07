//! Tests `--from` and `export` with a real redis-server: refused values, servers that hang, and
//! changed data sets.

use super::said;
use harness::program::{Program, call, cannot, freeze, refusal, until};
use harness::within;
use redis::{Connection, Value, cmd};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A redis-server without persistence. The destructor kills it.
pub(super) struct Redis {
    child: Child,
    pub(super) port: u16,
    folder: tempfile::TempDir,
}

impl Redis {
    /// Returns `None`, with a warning, if redis-server is not installed.
    pub(super) fn start() -> Option<Redis> {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        match Redis::spawn(folder.path(), port) {
            Ok(child) => Some(Redis { child, port, folder }),
            Err(_) => {
                cannot("redis-server is not installed: tests/clients/setup");
                None
            }
        }
    }

    /// Starts two masters of a cluster, each of which has half of the slots.
    fn cluster() -> Option<[Redis; 2]> {
        let start = || {
            let folder = tempfile::tempdir().unwrap();
            // The cluster bus uses the port number plus 10,000.
            let mut ports = std::iter::from_fn(|| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                Some(listener.local_addr().unwrap().port())
            });
            let port = ports.find(|port| *port < 50_000).unwrap_or(7000);
            let child = Redis::spawn_as(folder.path(), port, &["--cluster-enabled", "yes"]);
            child.ok().map(|child| Redis { child, port, folder })
        };
        let (Some(first), Some(second)) = (start(), start()) else {
            cannot("redis-server is not installed: tests/clients/setup");
            return None;
        };
        first.run(&["CLUSTER ADDSLOTSRANGE 0 8191", TELLS]);
        second.run(&["CLUSTER ADDSLOTSRANGE 8192 16383", TELLS]);
        first.run(&[&format!("CLUSTER MEET 127.0.0.1 {}", second.port)]);
        for redis in [&first, &second] {
            let info = || cmd("CLUSTER").arg("INFO").query::<String>(&mut redis.connection());
            until("the cluster is up", || info().unwrap().contains("cluster_state:ok"));
        }
        Some([first, second])
    }

    fn spawn(folder: &Path, port: u16) -> std::io::Result<Child> {
        Redis::spawn_as(folder, port, &[])
    }

    fn spawn_as(folder: &Path, port: u16, more: &[&str]) -> std::io::Result<Child> {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--save", "", "--dir"]).arg(folder).args(more);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        until("redis-server is up", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Ok(child)
    }

    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Redis::spawn(self.folder.path(), self.port).unwrap();
    }

    pub(super) fn connection(&self) -> Connection {
        redis::Client::open(("127.0.0.1", self.port)).unwrap().get_connection().unwrap()
    }

    pub(super) fn run(&self, lines: &[&str]) {
        let mut connection = self.connection();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            cmd(words[0]).arg(&words[1..]).query::<Value>(&mut connection).unwrap();
        }
    }

    fn rows(&self, count: u64) {
        for from in (1..=count).step_by(1000) {
            let mut pipe = redis::pipe();
            for id in from..(from + 1000).min(count + 1) {
                pipe.cmd("HSET").arg(format!("post:{id}")).arg("like").arg(id).ignore();
            }
            pipe.query::<()>(&mut self.connection()).unwrap();
        }
    }

    pub(super) fn listens(&self) {
        let patterns = || cmd("PUBSUB").arg("NUMPAT").query::<i64>(&mut self.connection()).unwrap();
        until("the import is subscribed", || patterns() > 0);
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn import(folder: &Path, from: u16, to: u16, more: &[&str]) -> Command {
    let mut command = Command::new(harness::program());
    command.current_dir(folder).env_remove("REDISCLI_AUTH");
    command.args(["import", "--port", &to.to_string()]);
    command.args(["--from", &format!("redis://127.0.0.1:{from}")]).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(super) fn done(mut command: Command, status: i32, words: &[&str]) -> String {
    let output = command.output().unwrap();
    ended(&output, status, words)
}

pub(super) fn ended(output: &Output, status: i32, words: &[&str]) -> String {
    let text = said(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
    text
}

pub(super) fn ask(program: &Program, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    match command.query::<Value>(&mut program.connection()) {
        Ok(Value::BulkString(text)) => String::from_utf8(text).unwrap(),
        Ok(Value::Int(number)) => number.to_string(),
        Ok(Value::Nil) => "-".to_owned(),
        other => format!("{other:?}"),
    }
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

pub(super) const BOUNDED: &str = "view = []\naction = []\n[[counter]]\nname = \"post\"
fields = \"like:12 stock:8{0..100}\"\nrows = \"post:{id}\"\ncells = \"like:{id}\"
[[existence]]\nname = \"liked\"\npairs = \"liked:{id}\"\n";

/// The import counts every key with a refused value as bad, even if the output does not list the
/// key.
#[test]
fn refused_rows_are_bad_and_not_set() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start_with(&folder.path().join("server"), BOUNDED);
    let mut pipe = redis::pipe();
    for id in 1..=1000 {
        pipe.cmd("HSET").arg(format!("post:{id}")).arg("stock").arg(500).ignore();
    }
    pipe.query::<()>(&mut redis.connection()).unwrap();
    let words =
        ["; 0 rows set, 0 flags; 1,000 bad keys", "further bad keys are counted but not shown"];
    done(import(folder.path(), redis.port, program.port, &[]), 1, &words);
    assert_eq!(ask(&program, "DBSIZE"), "0");
    redis.run(&["HSET post:7 stock 5", "SADD liked:7 1 2"]);
    let words = ["; 1 rows set, 2 flags; 999 bad keys"];
    done(import(folder.path(), redis.port, program.port, &[]), 1, &words);
}

/// A server that refuses a row for lack of memory would refuse all later rows as well. The import
/// therefore ends, and can be resumed.
#[test]
fn full_server_stops_the_import_where_it_is() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = "[[counter]]\nname = \"post\"\nfields = \"like:16\"\nrows = \"post:{id}\"\n\
                  spill = false\nmemory_limit = 100_000\n";
    let program = Program::start_with(&folder.path().join("server"), config);
    redis.rows(20_000);
    let more = ["--retry", "1", "--state", "state"];
    let words = ["the server rejected: OOM", "run the same command to resume"];
    let text = done(import(folder.path(), redis.port, program.port, &more), 1, &words);
    assert!(!text.contains("rows set"), "{text}");
    let lines: String = (1..20_000).map(|id| format!("{id},1\n")).collect();
    std::fs::write(folder.path().join("rows.csv"), format!("id,like\n{lines}")).unwrap();
    let mut files = Command::new(harness::program());
    files.current_dir(folder.path()).args(["import", "--port", &program.port.to_string()]);
    done_of(
        files.arg("rows.csv"),
        1,
        &["was rejected: OOM", "it is safe to import the file again"],
    );
    ask(&program, "TM.SPACE ALTER post SET memory_limit 0");
    let words = ["20,000 rows set, 0 flags; 0 bad keys"];
    done(import(folder.path(), redis.port, program.port, &more), 0, &words);
}

fn done_of(command: &mut Command, status: i32, words: &[&str]) -> String {
    ended(&command.output().unwrap(), status, words)
}

/// The import skips keys that the space refuses. Patterns for the first counter of a space need no
/// `{field}`. Key names from the source cannot inject terminal control sequences.
#[test]
fn keys_mean_what_the_servers_patterns_say() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start_with(&folder.path().join("server"), BOUNDED);
    redis.run(&[
        "HSET post:0031 stock 5",
        "HSET post:32 stock 6",
        "SET like:32 7",
        "SET like:033 8",
        "SET evil:\x1b[2J\x07 8",
        "HSET post:34 stock \x1b[31m",
    ]);
    let words = [
        "post:0031: the id has leading zeros, which the space 'post' does not accept (padded_ids)",
        "like:033: the id has leading zeros",
        "(evil:\\u{1b}[2J\\u{7})",
        "2 rows set, 0 flags",
        "3 bad keys",
    ];
    let text = done(import(folder.path(), redis.port, program.port, &[]), 1, &words);
    assert!(!text.contains('\x1b'), "{text:?}");
    assert_eq!(ask(&program, "DBSIZE"), "1");
    assert_eq!(ask(&program, "HGET post:32 like"), "7");
    assert_eq!(ask(&program, "HGET post:32 stock"), "6");
    // The import reads the hash again later. The counter from the other key must keep its value.
    redis.run(&["HSET post:32 stock 9"]);
    done(import(folder.path(), redis.port, program.port, &[]), 1, &["3 bad keys"]);
    assert_eq!(ask(&program, "HGET post:32 like"), "7");
}

/// An import or export does not wait forever for an unresponsive peer. A signal ends an import that
/// is stuck.
#[test]
fn silent_peers_are_left() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    std::fs::write(folder.path().join("rows.csv"), "id,like\n1,1\n").unwrap();
    let (here, there) = (program.port.to_string(), port.to_string());
    let tls = format!("rediss://127.0.0.1:{port}");
    let words: [&[&str]; 4] = [
        &["import", "--port", &there, "rows.csv"],
        &["export", "--port", &there],
        &["export", "--port", &here, "--to", &tls],
        &["import", "--port", &here, "--retry", "0", "--from", &tls],
    ];
    let began = Instant::now();
    let start = |words: &[&str]| {
        let mut command = Command::new(harness::program());
        command.current_dir(folder.path()).args(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let all: Vec<Child> = words.iter().map(|words| start(words)).collect();
    for child in all {
        let output = child.wait_with_output().unwrap();
        ended(&output, 1, &[" for 10 s"]);
    }
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    // The import does not retry permanent errors, and reports a server that is not a Tidemark.
    let Some(redis) = Redis::start() else { return };
    let began = Instant::now();
    let redis_port = redis.port.to_string();
    let database = format!("redis://127.0.0.1:{redis_port}/99");
    for (port, why) in [(&here, "DB index is out of range"), (&redis_port, "not a Tidemark server")]
    {
        let words = ["import", "--port", port, "--state", "other", "--from", &database];
        ended(&start(&words).wait_with_output().unwrap(), 1, &[why]);
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    redis.rows(20_000);
    let mut command = import(folder.path(), redis.port, program.port, &["--rate", "1000"]);
    let child = command.args(["--state", "third"]).spawn().unwrap();
    until("the import has started", || ask(&program, "DBSIZE") != "0");
    freeze(&redis.child, true);
    let began = Instant::now();
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    freeze(&redis.child, false);
    ended(&output, 1, &["run the same command to resume"]);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

/// A different data set lacks the rows that were copied before, so an import must not resume there.
#[test]
fn import_does_not_go_on_in_another_data_set() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let start = |name: &str, port: u16| {
        let port = port.to_string();
        let options = ["--port", &port];
        Program::start_as(&[], &folder.path().join(name), &options).unwrap()
    };
    let mut program = start("first", 0);
    redis.rows(20_000);
    let mut child =
        import(folder.path(), redis.port, program.port, &["--rate", "2000"]).spawn().unwrap();
    let state = folder.path().join("tidemark-import.state");
    let has_advanced = || {
        let text = std::fs::read_to_string(&state).unwrap_or_default();
        text.contains("\"keys\": ") && !text.contains("\"keys\": 0")
    };
    within(Duration::from_secs(60), "the state has advanced", has_advanced);
    child.kill().unwrap();
    child.wait().unwrap();
    let port = program.port;
    program.sigkill();
    // The data set remains the same after a restart.
    let mut program = start("first", port);
    let more = ["--rate", "1000"];
    let mut child = import(folder.path(), redis.port, port, &more).spawn().unwrap();
    let before = std::fs::read_to_string(&state).unwrap();
    let has_advanced = || std::fs::read_to_string(&state).is_ok_and(|text| text != before);
    within(Duration::from_secs(60), "the state has advanced again", has_advanced);
    assert!(child.try_wait().unwrap().is_none(), "the import exited");
    program.sigkill();
    let program = start("second", port);
    ended(&child.wait_with_output().unwrap(), 1, &["has changed, and the copied data are gone"]);
    let words = ["differs from the one in the state file", "delete that file to start over"];
    done(import(folder.path(), redis.port, port, &[]), 1, &words);
    std::fs::remove_file(&state).unwrap();
    done(import(folder.path(), redis.port, port, &["--verify"]), 0, &["20,000 rows set"]);
    assert_eq!(ask(&program, "DBSIZE"), "20000");
}

pub(super) const TELLS: &str = "CONFIG SET notify-keyspace-events K$ghsxe";

/// Covers --follow with a single hash for all ids, FLUSHALL, a source that stops its notifications,
/// and a source that has lost its keys.
#[test]
fn follow_deletes_what_is_deleted_and_nothing_else() {
    let Some(mut redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    let (from, to) = (redis.port, program.port);
    let row = |id: u64, field: &str| ask(&program, &format!("HGET post:{id} {field}"));
    redis.run(&[TELLS, "HSET one 1 10 2 20 3 30", "SADD likers:5 1 2", "SADD likers:6 3"]);
    let follow = ["--follow", "--delete-missing"];
    let layouts = [
        "--layout",
        "buckets key=one space=post fields=repost",
        "--layout",
        "set key=likers:{id} space=liked",
    ];
    let start = |more: &[&str]| {
        let child = import(folder.path(), from, to, &[&follow, &layouts[..], more].concat());
        { child }.spawn().unwrap()
    };
    let child = start(&["--until-idle", "4"]);
    until("all rows are copied", || {
        ["10", "20", "30"].iter().zip(1..).all(|(value, id)| row(id, "repost") == *value)
            && ask(&program, "SISMEMBER liked:6 3") == "1"
    });
    redis.listens();
    redis.run(&["HDEL one 1"]);
    until("the row is deleted", || row(1, "repost") == "-");
    assert_eq!(row(2, "repost"), "20");
    redis.run(&["DEL one"]);
    until("all rows are deleted", || row(2, "repost") == "-" && row(3, "repost") == "-");
    let mut pipe = redis::pipe();
    pipe.atomic().cmd("FLUSHALL").cmd("HSET").arg(&["one", "7", "70"]);
    pipe.cmd("SADD").arg(&["likers:5", "2", "9"]);
    pipe.query::<Value>(&mut redis.connection()).unwrap();
    until("the new field is copied", || row(7, "repost") == "70");
    until("the removed member is unset", || ask(&program, "SISMEMBER liked:6 3") == "0");
    let output = child.wait_with_output().unwrap();
    ended(&output, 0, &["all keys of the source were deleted (FLUSHALL or FLUSHDB); retrying"]);
    for (member, is_set) in [("1", "0"), ("2", "1"), ("9", "1")] {
        assert_eq!(ask(&program, &format!("SISMEMBER liked:5 {member}")), is_set, "{member}");
    }

    // The import does not mistake a source without notifications for an idle source.
    let child = start(&["--until-idle", "600"]);
    redis.listens();
    redis.run(&["CONFIG SET notify-keyspace-events "]);
    let output = child.wait_with_output().unwrap();
    ended(
        &output,
        1,
        &["keyspace notifications are not enabled", "start over: changes made in between"],
    );

    // A source that restarts without its dump file has lost its keys; the import must not treat
    // them as deleted.
    let fill: Vec<String> = (1..=100).map(|id| format!("HSET one {id} {id}")).collect();
    redis.run(&fill.iter().map(String::as_str).collect::<Vec<_>>());
    redis.run(&[TELLS, "SADD likers:8 1"]);
    let child = start(&["--until-idle", "600"]);
    until("all rows are copied", || row(100, "repost") == "100");
    redis.restart();
    redis.run(&[TELLS]);
    let output = child.wait_with_output().unwrap();
    ended(&output, 1, &["has 0 keys, but had", "start over with --allow-loss"]);
    assert_eq!(row(100, "repost"), "100");
    let more = ["--delete-missing", "--allow-loss"];
    let more = [&more[..], &layouts].concat();
    done(import(folder.path(), from, to, &more), 0, &["100 rows deleted"]);
    assert_eq!(row(100, "repost"), "-");
}

/// Imports from a cluster. The options must name all masters. Two nodes may hold sets with members
/// of the same id.
#[test]
fn masters_of_a_cluster_are_read_together() {
    let Some([first, second]) = Redis::cluster() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    let both = ["--from", &format!("redis://127.0.0.1:{}", second.port)];
    let import = |more: &[&str]| import(folder.path(), first.port, program.port, more);
    // The key with {5} is in a slot of the first node, and liked:5 is in a slot of the second node.
    let slot = |key: &str| {
        cmd("CLUSTER").arg("KEYSLOT").arg(key).query::<u16>(&mut first.connection()).unwrap()
    };
    let apart = |id: &u64| slot(&format!("{id}")) < 8192 && slot(&format!("liked:{id}")) >= 8192;
    let id = (1..100).find(apart).unwrap();
    first.run(&[&format!("SADD liked:{{{id}}} 1")]);
    second.run(&[&format!("SADD liked:{id} 2 3")]);
    done(
        import(&[]),
        1,
        &["the cluster has masters that are not in --from", &format!(":{}", second.port)],
    );
    done(import(&["--allow-part"]), 0, &["1 flags"]);
    done(import(&both), 0, &["3 flags"]);
    let mut follow = import(&[&both[..], &["--follow", "--delete-missing"]].concat());
    let child = follow.args(["--until-idle", "3"]).spawn().unwrap();
    first.listens();
    second.listens();
    // The import reports no event after it has copied the two keys.
    std::thread::sleep(Duration::from_millis(500));
    second.run(&[&format!("SREM liked:{id} 2")]);
    let is_set = |member: u64| ask(&program, &format!("SISMEMBER liked:{id} {member}"));
    until("the pair is unset", || is_set(2) == "0");
    let output = child.wait_with_output().unwrap();
    ended(&output, 0, &["0 bad keys"]);
    assert_eq!([is_set(1), is_set(3)], ["1", "1"], "pairs of the other node were unset");
    done(import(&[&both[..], &["--only-verify"]].concat()), 0, &["0 keys differ"]);
}

/// A row of zeros without a key counts as missing, like any other row, and so do the flags of its
/// id.
#[test]
fn rows_of_zeros_are_deleted_with_their_flags() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    let import = |more: &[&str]| import(folder.path(), redis.port, program.port, more);
    redis.run(&["HSET post:31 like 0", "HSET post:32 like 0", "SADD liked:31 7"]);
    done(import(&["--verify"]), 0, &["0 extra rows"]);
    redis.run(&["DEL post:31 liked:31"]);
    done(
        import(&["--only-verify"]),
        1,
        &["1 extra rows", "31: a row of zeros exists only on the server"],
    );
    done(import(&["--delete-missing", "--verify"]), 0, &["1 rows deleted"]);
    assert_eq!(ask(&program, "EXISTS post:31 post:32"), "1");
    assert_eq!(ask(&program, "SISMEMBER liked:31 7"), "0");
    let nowhere = ["--only-verify", "--report", "/nonexistent/report"];
    done(import(&nowhere), 1, &["--report: /nonexistent/report: No such file"]);
}

/// If no message arrives from the source, an empty queue does not prove that the copy is up to
/// date.
#[test]
fn follow_says_that_the_source_is_silent() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    redis.run(&[TELLS, "HSET post:1 like 5"]);
    let mut child = import(folder.path(), redis.port, program.port, &["--follow"]).spawn().unwrap();
    redis.listens();
    until("all rows are copied", || ask(&program, "HGET post:1 like") == "5");
    freeze(&redis.child, true);
    // Without a terminal, the import prints a line every ten seconds.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("no reply from the source for")));
    interrupt(&child);
    let status = child.wait().unwrap();
    freeze(&redis.child, false);
    assert_eq!(status.code(), Some(1));
}

/// An existing file remains until the new file is complete.
#[test]
fn export_replaces_a_file_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    let file = folder.path().join("rows.csv");
    std::fs::write(&file, "before").unwrap();
    ask(&program, "HSET post:1 like 5");
    let made = call(&mut program.client(), "ACL SETUSER u on nopass ~* +@all -cnt.scan");
    assert_eq!(refusal(&made), "");
    let export = |more: &[&str]| {
        let mut command = Command::new(harness::program());
        command.args(["export", "--port", &program.port.to_string(), "-o"]).arg(&file).args(more);
        command.output().unwrap()
    };
    ended(&export(&["--user", "u"]), 1, &["NOPERM"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
    ended(&export(&[]), 0, &["1 rows"]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text, "id,like,repost,comment,read\n1,5,0,0,0\n");
    assert!(!folder.path().join("rows.csv.partial").exists());
}

/// The import writes to the masters of the slots, even while a shard moves to another node. The
/// import finds missing rows on all masters, and an export contains the rows of all masters.
#[test]
fn a_cluster_takes_a_copy_while_a_shard_moves() {
    const ROWS: u64 = 6000;
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = "[cluster]\nenabled = true\n";
    let [a, b, c] =
        ["a", "b", "c"].map(|name| Program::start_with(&folder.path().join(name), config));
    let line = |id: &str, of: &Program, slots: &str| {
        format!("{} 127.0.0.1 {} master - {slots}\n", id.repeat(40), of.port)
    };
    let topology = line("a", &a, "0-8191") + &line("b", &b, "8192-16383");
    for node in [&a, &b] {
        let mut command = cmd("CLUSTERX");
        command.arg("SETNODES").arg(&topology).arg(1);
        command.query::<()>(&mut node.connection()).unwrap();
    }
    redis.rows(ROWS);
    (1..=300).for_each(|id| redis.run(&[&format!("SADD liked:{id} 7 x")]));
    let mut copy = import(folder.path(), redis.port, a.port, &["--rate", "2000", "--verify"]);
    let copy = copy.spawn().unwrap();
    let rows = |of: &Program| ask(of, "DBSIZE").parse::<u64>().unwrap();
    until("both masters have rows", || rows(&a) > 300 && rows(&b) > 300);
    let mut shard = Command::new(harness::program());
    shard.args(["cluster", "move", "--port", &a.port.to_string()]);
    shard.args(["--from", &format!("127.0.0.1:{}", b.port)]);
    shard.args(["--to", &format!("127.0.0.1:{}", c.port)]);
    done_of(&mut shard, 0, &[]);
    let words = ["600 flags (0 below the horizon)", "0 keys differ; 0 extra rows"];
    let text = ended(&copy.wait_with_output().unwrap(), 0, &words);
    assert!(text.contains("; retrying for "), "the shard moved in the middle: {text}");
    assert_eq!(rows(&a) + rows(&c), ROWS);
    // Except for the deleted rows, no row exists only in the cluster.
    redis.run(&["DEL post:1 post:2 post:3 post:4 post:5", "HDEL post:6 like"]);
    let words = ["6 extra rows"];
    done(import(folder.path(), redis.port, c.port, &["--only-verify"]), 1, &words);
    let more = ["--delete-missing", "--verify"];
    let words = ["0 keys differ; 0 extra rows"];
    done(import(folder.path(), redis.port, c.port, &more), 0, &words);
    let mut export = Command::new(harness::program());
    export.current_dir(folder.path()).args(["export", "--port", &a.port.to_string(), "-o", "all"]);
    done_of(&mut export, 0, &["5,994 rows"]);
    let all = std::fs::read_to_string(folder.path().join("all")).unwrap();
    let mut ids: Vec<u64> =
        all.lines().filter_map(|line| line.split(',').next()?.parse().ok()).collect();
    ids.sort_unstable();
    let rest: Vec<u64> = (7..=ROWS).collect();
    assert_eq!(ids, rest);
}
