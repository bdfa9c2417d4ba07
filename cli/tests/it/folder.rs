//! Data folders of the real binary without disk faults: long startups, automatic snapshots, and
//! folders of earlier releases.
//!
//! `TIDEMARK_WRITE_FIXTURES=1 cargo test -p tidemark --test it folder::` writes the folder of the
//! current version. Use this command only to add a new version, in a new folder.

use client::{Client, Reply};
use dataset::log_records::{RecordKind, RowsWriter};
use harness::program::{FIRST, Program, call, count, refusal, text, tidemark, until};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use store::{Batch, RealDisk, Store, StoreOptions};

fn start(dir: &Path, config: &Path) -> Program {
    let options = ["--fsync", "always", "--config", config.to_str().unwrap()];
    Program::start_as(&[], dir, &options)
        .unwrap_or_else(|said| panic!("the server did not start: {said:#?}"))
}

fn config(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Appends rows to the log of a folder that no server uses, which is much faster than requests.
fn append_rows(dir: &Path, space: u32, rows: u64) {
    const PER_BATCH: u64 = 20_000;
    let store =
        Store::open(Arc::new(RealDisk::open(dir).unwrap()), StoreOptions::default()).unwrap();
    let (mut log, _) = store.replay(|_| Ok(()), |_| ()).unwrap();
    for first in (0..rows).step_by(PER_BATCH as usize) {
        let mut writer = RowsWriter::new(4);
        for i in first..rows.min(first + PER_BATCH) {
            writer.row(FIRST + i * 4096, Some(&[i as i64, 1, 2, 3]));
        }
        let mut batch = Batch::new();
        batch.push(space, RecordKind::Rows as u8, &writer.finish());
        log.append(&batch, 1).unwrap();
    }
    log.seal(1).unwrap();
    store.record_durable(&log).unwrap();
}

/// The folder itself is also locked, so removing the lock file does not allow a second server.
#[test]
fn a_folder_is_one_servers_whatever_happens_to_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "always");
    for removed in [false, true] {
        if removed {
            std::fs::remove_file(folder.path().join("tidemark.lock")).unwrap();
        }
        let told =
            Program::start_as(&[], folder.path(), &["--fsync", "always"]).err().unwrap_or_default();
        assert!(told.iter().any(|line| line.contains("in use by another process")), "{told:?}");
    }
    assert_eq!(refusal(&call(&mut program.client(), &format!("CNT.SET post {FIRST} like 1"))), "");
    assert!(program.terminate().success());
    Program::start(folder.path(), "always");
}

/// The log of a killed server is truncated before the replay position, for example because it was
/// copied incompletely. The server refuses to start, and `tidemark check` reports the missing part.
#[test]
fn start_and_check_refuse_log_cut_below_replay_position() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "always");
    let mut client = program.client();
    let like = |client: &mut Client, id: u64| {
        assert_eq!(refusal(&call(client, &format!("HINCRBY post:{id} like 1"))), "");
    };
    (0..100).for_each(|id| like(&mut client, FIRST + id));
    assert_eq!(refusal(&call(&mut client, "SAVE")), "");
    (100..200).for_each(|id| like(&mut client, FIRST + id));
    program.kill();
    let name = "log-0000000000000001.tlog";
    let path = folder.path().join(name);
    let whole = std::fs::read(&path).unwrap();
    let replay: usize = {
        let text = std::fs::read_to_string(folder.path().join("tidemark.manifest")).unwrap();
        let line = text.lines().find(|line| line.starts_with("replay 1 ")).unwrap();
        line.split(' ').nth(2).unwrap().parse().unwrap()
    };
    for cut in [replay / 2, replay - 1] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let told = Program::start_as(&[], folder.path(), &[])
            .err()
            .expect("the server started")
            .join("\n");
        assert!(told.contains(name) && told.contains(&format!("byte {cut}")), "{told}");
        assert!(told.contains("acknowledged writes are missing"), "{told}");
        let check = tidemark(&["check", folder.path().to_str().unwrap()]);
        let told = String::from_utf8_lossy(&check.stdout);
        assert_eq!(check.status.code(), Some(1), "{told}");
        assert!(told.contains("DAMAGE") && told.contains(&format!("byte {cut}")), "{told}");
    }
    std::fs::write(&path, &whole).unwrap();
    let program = Program::start(folder.path(), "always");
    let last = call(&mut program.client(), &format!("HGET post:{} like", FIRST + 199));
    assert_eq!(last, Reply::BulkString(b"1".to_vec()));
}

/// The schema of the data folder takes precedence. The server logs each field that the
/// configuration file declares differently, and `tidemark check --config` fails.
#[test]
fn a_file_with_other_fields_is_said_at_start_and_by_check() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Program::start(folder.path(), "always").terminate().success());
    let file = folder.path().join("tidemark.toml");
    let fields = |fields: &str| {
        let space = format!("[[counter]]\nname = \"post\"\nfields = \"{fields}\"\n");
        std::fs::write(&file, format!("{space}rows = \"post:{{id}} post:{{{{id}}}}\"\n")).unwrap();
    };
    let check = || {
        let words = ["check", folder.path().to_str().unwrap(), "--config", file.to_str().unwrap()];
        let check = tidemark(&words);
        (check.status.code(), String::from_utf8(check.stderr).unwrap())
    };
    fields("like:20 repost:8 comment:8 read:16");
    let line = "the field 'like' of the counter space 'post' is 12 in the data folder, which takes \
        precedence over 20 in the file. Use TM.SPACE ALTER post to change it, or CONFIG REWRITE to \
        update the file";
    let (status, said) = check();
    assert!(status == Some(1) && said.contains(line), "{status:?} {said}");
    let options = ["--config", file.to_str().unwrap()];
    let (program, _) = Program::start_until(&[], folder.path(), &options, line).unwrap();
    assert!(program.terminate().success());
    fields("like:12 repost:8 comment:8 read:16");
    let (_, said) = check();
    assert!(!said.contains("the field "), "{said}");
}

#[test]
fn a_long_start_says_how_far_it_is_and_tells_clients_to_wait() {
    const ROWS: u64 = 9_000_000;
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "no");
    call(&mut program.client(), &format!("CNT.SET post {FIRST} like 1"));
    assert!(program.terminate().success());
    append_rows(folder.path(), 1, ROWS);

    let mut child = Command::new(harness::program())
        .args(["serve", "--port", "0", "--dir"])
        .arg(folder.path())
        .env("NO_COLOR", "1")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let port = lines
        .by_ref()
        .find_map(|line| {
            line.split_once("listening on 127.0.0.1:")?.1.split(',').next()?.parse::<u16>().ok()
        })
        .unwrap();
    let program = Program { child, port };
    // While the server loads its data, its errors state the reason.
    let mut client = program.client();
    let (mut told, mut asked) = (0, 0);
    loop {
        asked += 1;
        let reply = call(&mut client, &format!("HGET post:{FIRST} read"));
        if refusal(&reply).is_empty() {
            assert_eq!(reply, Reply::BulkString(b"3".to_vec()));
            break;
        }
        assert!(refusal(&reply).starts_with("LOADING "), "{reply:?}");
        let pong = call(&mut client, "PING");
        assert!(refusal(&pong).is_empty() || refusal(&pong).starts_with("LOADING "), "{pong:?}");
        let Reply::BulkString(info) = call(&mut client, "INFO persistence") else {
            panic!("INFO while it loads")
        };
        told += u64::from(String::from_utf8(info).unwrap().contains("loading:1"));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(
        asked > 10 && told > 10,
        "{asked} requests, {told} progress reports: the start was too short"
    );
    let said: Vec<String> =
        lines.by_ref().take_while(|line| !line.contains("ready to accept")).collect();
    let shares: Vec<u64> = said
        .iter()
        .filter_map(|line| line.split_once("loading: ")?.1.split(' ').next()?.parse().ok())
        .collect();
    assert!(
        !shares.is_empty() && shares.is_sorted() && shares.iter().all(|&share| share <= 100),
        "{said:#?}"
    );
    let last = FIRST + (ROWS - 1) * 4096;
    assert_eq!(
        call(&mut client, &format!("HGET post:{last} like")),
        Reply::BulkString(text(ROWS - 1))
    );
}

fn snapshots(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".tsnap"))
        .collect();
    names.sort();
    names
}

#[test]
fn snapshots_come_by_log_size_and_by_time_and_only_for_changes() {
    let folder = tempfile::tempdir().unwrap();
    let by_size = config("[durability]\nsnapshot_log = 100_000\nsnapshot_every = 0\n");
    let program = start(folder.path(), by_size.path());
    let mut client = program.client();
    let like = |client: &mut Client, members: std::ops::Range<u64>| {
        for member in members {
            client.push(&[b"FEED.ACT", b"like", &text(member), &text(FIRST)]);
            if client.is_full() {
                let waiting = client.waiting();
                (0..waiting).for_each(|_| assert!(refusal(&client.reply().unwrap()).is_empty()));
            }
        }
        (0..client.waiting()).for_each(|_| drop(client.reply().unwrap()));
    };
    like(&mut client, 0..1000);
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert_eq!(snapshots(folder.path()), [] as [&str; 0], "10 kB are too little");
    like(&mut client, 1000..40_000);
    until("the log is large enough", || !snapshots(folder.path()).is_empty());
    // That snapshot may have begun before the last like. The next start would then write the
    // remaining log to another snapshot.
    until("the snapshot is saved", || refusal(&call(&mut client, "SAVE")).is_empty());
    assert!(program.terminate().success());

    let by_time = config("[durability]\nsnapshot_log = 0\nsnapshot_every = 1\n");
    let program = start(folder.path(), by_time.path());
    let mut client = program.client();
    let before = snapshots(folder.path());
    std::thread::sleep(std::time::Duration::from_millis(1700));
    assert_eq!(snapshots(folder.path()), before, "a snapshot was written without changes");
    call(&mut client, &format!("CNT.SET post {FIRST} repost 5"));
    until("one second has passed", || snapshots(folder.path()) != before);
    program.kill();
    let program = start(folder.path(), by_time.path());
    assert_eq!(
        call(&mut program.client(), &format!("HMGET post:{FIRST} like repost")),
        values(&["40000", "5"])
    );
}

/// Posts in several tables of rows and pairs, with an initial and a changed state.
struct Tables {
    ids: Vec<u64>,
}

impl Tables {
    fn fill(client: &mut Client) -> Tables {
        let ids: Vec<u64> = (0..1500).map(|i| FIRST + i * 4096).collect();
        for (i, id) in ids.iter().enumerate() {
            client.push(&[b"CNT.SET", b"post", &text(*id), b"read", &text(i as u64)]);
            client.push(&[b"PH.ADD", b"liked", b"7", &text(*id)]);
            client.push(&[b"PH.ADD", b"liked", b"8", &text(*id)]);
            if i % 100 == 99 {
                fine(client);
            }
            if i % 400 == 399 {
                assert_eq!(refusal(&call(client, "TM.ROLL liked")), "");
            }
        }
        Tables { ids }
    }

    fn change(&self, client: &mut Client) {
        for id in self.ids.iter().step_by(100) {
            client.push(&[b"CNT.INCRBY", b"post", &text(*id), b"like", b"3"]);
            client.push(&[b"PH.ADD", b"liked", b"9", &text(*id)]);
            client.push(&[b"PH.DEL", b"liked", b"8", &text(*id)]);
        }
        fine(client);
    }

    fn check(&self, client: &mut Client) {
        for (i, id) in self.ids.iter().enumerate() {
            let changed = i % 100 == 0;
            let likes = if changed { "3" } else { "0" };
            assert_eq!(
                call(client, &format!("HMGET post:{id} like read")),
                values(&[likes, &i.to_string()]),
                "{id}"
            );
            let flags = ["7", "8", "9"]
                .map(|member| call(client, &format!("PH.EXISTS liked {member} {id}")));
            let bit = |set: bool| Reply::Array(vec![Reply::Integer(i64::from(set))]);
            assert_eq!(flags, [bit(true), bit(!changed), bit(changed)], "{id}");
        }
    }
}

/// The data folder takes precedence over the configuration, on a master and on a replica.
#[test]
fn a_folder_with_a_space_that_the_configuration_lacks_starts() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let whole = config(&format!(
        "{V4_CONFIG}\n[[counter]]\nname = \"extra\"\nfields = \"n:8\"\nrows = \"extra:{{id}}\"\n"
    ));
    let lacking = config(V4_CONFIG);
    let [master, replica] = [0, 1].map(|n: usize| start(folders[n].path(), whole.path()));
    assert_eq!(refusal(&call(&mut master.client(), "HSET extra:1 n 7")), "");
    assert_eq!(
        refusal(&call(&mut replica.client(), &format!("REPLICAOF 127.0.0.1 {}", master.port))),
        ""
    );
    until("the replica has all writes", || {
        replica.ask("HGET extra:1 n") == Reply::BulkString(text(7))
    });
    for (program, folder) in [replica, master].into_iter().zip(folders.iter().rev()) {
        assert!(program.terminate().success());
        let again = start(folder.path(), lacking.path());
        assert_eq!(again.ask("HGET extra:1 n"), Reply::BulkString(text(7)));
    }
}

#[test]
fn changes_since_the_last_snapshot_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "always");
    let mut client = program.client();
    let changes = |client: &mut Client| count(client, "rdb_changes_since_last_save");
    let add = |client: &mut Client, first: u64, members: u64| {
        let members: Vec<String> =
            (first..first + members).map(|member| member.to_string()).collect();
        let added = call(client, &format!("SADD liked:{FIRST} {}", members.join(" ")));
        assert_eq!(added, Reply::Integer(members.len() as i64));
    };
    // The first change also logs the new space.
    add(&mut client, 0, 1);
    for round in 0..3 {
        let before = changes(&mut client);
        add(&mut client, 100 + round * 100, 10 + round);
        assert_eq!(changes(&mut client), before + 10 + round);
        call(&mut client, &format!("MSET post:{FIRST}:like 5 post:{}:like {round}", FIRST + 4096));
        assert_eq!(changes(&mut client), before + 12 + round);
        assert_eq!(refusal(&call(&mut client, "SAVE")), "");
        assert_eq!(changes(&mut client), 0);
    }
}

fn fine(client: &mut Client) {
    (0..client.waiting()).for_each(|_| assert_eq!(refusal(&client.reply().unwrap()), ""));
}

/// Takes two snapshots without changes between them. The second snapshot reuses the files of the
/// first.
fn save_twice(client: &mut Client, dir: &Path) {
    assert_eq!(refusal(&call(client, "SAVE")), "");
    let first = snapshots(dir);
    assert_eq!(refusal(&call(client, "SAVE")), "");
    let kept = snapshots(dir).iter().filter(|name| first.contains(name)).count();
    assert!(kept >= 5, "unchanged chunks were rewritten: {first:?}");
}

/// The next snapshot must contain the changes that this process has only read from the log, because
/// the snapshot lets the server delete that log.
#[test]
fn what_a_start_reads_from_the_log_is_in_its_next_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(V4_CONFIG);
    let program = start(folder.path(), config.path());
    let mut client = program.client();
    let tables = Tables::fill(&mut client);
    save_twice(&mut client, folder.path());
    tables.change(&mut client);
    program.kill();
    let program = start(folder.path(), config.path());
    assert_eq!(refusal(&call(&mut program.client(), "SAVE")), "");
    program.kill();
    tables.check(&mut start(folder.path(), config.path()).client());
}

/// A replica's snapshot contains the changes that the replica has received since its last snapshot.
#[test]
fn what_a_replica_is_told_is_in_its_next_snapshot() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let config = config(V4_CONFIG);
    let [master, replica] = [0, 1].map(|n: usize| start(folders[n].path(), config.path()));
    let tables = Tables::fill(&mut master.client());
    assert_eq!(
        refusal(&call(&mut replica.client(), &format!("REPLICAOF 127.0.0.1 {}", master.port))),
        ""
    );
    // The replica closes client connections once, when it replaces its data by the master's data.
    let offset = |program: &Program, key: &str| -> Option<u64> {
        let mut client = Client::connect(("127.0.0.1", program.port)).ok()?;
        let Reply::BulkString(all) = client.call(&[b"INFO", b"replication"]).ok()? else {
            return None;
        };
        let all = String::from_utf8(all).unwrap();
        all.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')?.parse().ok())
    };
    let is_in_sync = || {
        let at = offset(&master, "master_repl_offset");
        at.is_some() && offset(&replica, "slave_repl_offset") == at
    };
    until("the replica has all writes", is_in_sync);
    save_twice(&mut replica.client(), folders[1].path());
    tables.change(&mut master.client());
    until("the replica has the changes", is_in_sync);
    tables.check(&mut replica.client());
    master.kill();
    assert_eq!(refusal(&call(&mut replica.client(), "SAVE")), "");
    replica.kill();
    tables.check(&mut start(folders[1].path(), config.path()).client());
}

#[test]
fn requested_snapshots_run_one_at_a_time_and_set_lastsave() {
    let folder = tempfile::tempdir().unwrap();
    let config = config("[durability]\nsnapshot_log = 0\nsnapshot_every = 0\n");
    let program = start(folder.path(), config.path());
    let mut client = program.client();
    let last = |client: &mut Client| match call(client, "LASTSAVE") {
        Reply::Integer(seconds) => seconds,
        other => panic!("{other:?}"),
    };
    let at_start = last(&mut client);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    call(&mut client, &format!("CNT.SET post {FIRST} like 1"));
    assert_eq!(last(&mut client), at_start);
    assert_eq!(snapshots(folder.path()), [] as [&str; 0]);
    // SAVE replies once the files exist.
    assert_eq!(call(&mut client, "SAVE"), Reply::SimpleString(b"OK".to_vec()));
    let first = snapshots(folder.path());
    assert!(!first.is_empty());
    assert!(last(&mut client) > at_start);
    // Send two requests in one batch, so that the first snapshot is still running when the server
    // reads the second request.
    client.push(&[b"BGSAVE"]);
    client.push(&[b"BGSAVE"]);
    let replies = [client.reply().unwrap(), client.reply().unwrap()];
    assert_eq!(replies[0], Reply::SimpleString(b"Background saving started".to_vec()));
    assert_eq!(refusal(&replies[1]), "ERR Background save already in progress");
    until("the snapshot ends", || snapshots(folder.path()) != first);
}

fn values(texts: &[&str]) -> Reply {
    let value = |text: &&str| match *text {
        "" => Reply::Null,
        text => Reply::BulkString(text.as_bytes().to_vec()),
    };
    Reply::Array(texts.iter().map(value).collect())
}

/// Configuration of the version 4 folder. Small tables keep the folder small.
const V4_CONFIG: &str = r#"[durability]
snapshot_log = 0
snapshot_every = 0
[[counter]]
name = "post"
fields = "like:12 repost:8 comment:8 read:16"
rows = "post:{id}"
rows_per_table = 300
[[existence]]
name = "liked"
pairs = "liked:{id}"
ledger = "exact"
pairs_per_table = 2000
seed = 77
[[existence]]
name = "read"
pairs = "read:{id}"
pairs_per_table = 2000
seed = 78
[[view]]
name = "home"
counters = ["post"]
flags = ["liked", "read"]
[[action]]
name = "like"
flag = "liked"
counter = "post.like"
"#;

/// Writes a version 4 data folder: a cold file, a snapshot of tables and heads, and a log with
/// records of every kind.
fn write_v4(program: &Program) {
    let mut client = program.client();
    let mut done = |words: &str| {
        let reply = call(&mut client, words);
        assert!(refusal(&reply).is_empty(), "{words}: {reply:?}");
    };
    for i in 0..1000 {
        done(&format!("CNT.SET post {} like {} read {}", FIRST + i * 4096, i % 50, i * 100));
    }
    done("TM.SPILL post 1");
    done(&format!("CNT.SET post {} comment -7 repost 9223372036854775807", FIRST + 4096));
    done(&format!("CNT.DEL post {}", FIRST + 2 * 4096));
    // An id far above all others, at the end of the id range.
    done("CNT.SET post 18446744073709551615 like 3");
    done("PH.ADD liked 9 18446744073709551615");
    for i in 0..300 {
        done(&format!("FEED.ACT like {} {}", 1000 + i, FIRST + (i % 7) * 4096));
        done(&format!("PH.ADD read name-{i} {}", FIRST + i * 4096));
    }
    done(&format!("FEED.UNDO like 1000 {FIRST}"));
    done("TM.ROLL liked");
    done("SAVE");
    done("TM.SPACE ALTER post ADD share:6");
    done(&format!("CNT.INCRBY post {} share 63 like 5000", FIRST + 5 * 4096));
    done(&format!("CNT.DEL post {}", FIRST + 6 * 4096));
    done(&format!("FEED.ACT like 5000 {FIRST}"));
    done(&format!("FEED.UNDO like 1007 {FIRST}"));
    done(&format!("PH.DEL read name-1 {}", FIRST + 4096));
    done(&format!("PH.ADD read another {}", FIRST + 4096));
    done(&format!("PH.ADD liked 77 {}", FIRST + 5000 * 4096));
}

/// Returns commands, and the replies of a server that has opened the version 4 data folder.
fn answers_of_v4() -> Vec<(String, Reply)> {
    let row = |i: u64| format!("HMGET post:{} like repost comment read", FIRST + i * 4096);
    let flags = |space: &str, member: &str, ids: &[u64]| {
        let ids: Vec<String> = ids.iter().map(|i| (FIRST + i * 4096).to_string()).collect();
        format!("PH.EXISTS {space} {member} {}", ids.join(" "))
    };
    let bits = |bits: &[i64]| Reply::Array(bits.iter().map(|&bit| Reply::Integer(bit)).collect());
    // 300 likes, alternating between the posts: 43 for each of the first six posts, 42 for the
    // seventh. One like of the first post is undone; another one is added and undone.
    vec![
        (row(0), values(&["42", "0", "0", "0"])),
        (row(1), values(&["44", "9223372036854775807", "-7", "100"])),
        // This row was deleted and liked again, so its counters started over.
        (row(2), values(&["43", "0", "0", "0"])),
        (row(5), values(&["5048", "0", "0", "500"])),
        (row(6), values(&["", "", "", ""])),
        (row(49), values(&["49", "0", "0", "4900"])),
        (row(999), values(&["49", "0", "0", "99900"])),
        (format!("HGET post:{} share", FIRST + 5 * 4096), Reply::BulkString(b"63".to_vec())),
        (format!("HGET post:{FIRST} share"), Reply::BulkString(b"0".to_vec())),
        ("HGET post:18446744073709551615 like".to_owned(), Reply::BulkString(b"3".to_vec())),
        ("PH.EXISTS liked 9 18446744073709551615".to_owned(), bits(&[1])),
        (flags("liked", "1000", &[0, 1]), bits(&[0, 0])),
        (flags("liked", "1007", &[0, 1]), bits(&[0, 0])),
        (flags("liked", "1014", &[0, 1]), bits(&[1, 0])),
        (flags("liked", "5000", &[0, 1]), bits(&[1, 0])),
        (flags("liked", "77", &[4999, 5000]), bits(&[0, 1])),
        (flags("read", "name-1", &[1, 2]), bits(&[0, 0])),
        (flags("read", "another", &[0, 1]), bits(&[0, 1])),
        (flags("read", "name-299", &[298, 299]), bits(&[0, 1])),
        (format!("FEED.GET home 1014 {FIRST}"), {
            let row = [42, 0, 0, 0, 0, 1, 0].map(Reply::Integer);
            Reply::Array(vec![Reply::Array(row.to_vec())])
        }),
    ]
}

fn check_v4(program: &Program, when: &str) {
    for (words, expected) in answers_of_v4() {
        assert_eq!(call(&mut program.client(), &words), expected, "{when}: {words}");
    }
}

/// Complements the fixtures of the store crate. Those cover the framing of files; this fixture
/// covers the contents.
#[test]
fn a_folder_of_version_4_opens() {
    let kept = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v4");
    let config = config(V4_CONFIG);
    if std::env::var_os("TIDEMARK_WRITE_FIXTURES").is_some() {
        std::fs::create_dir_all(&kept).unwrap();
        let program = start(&kept, config.path());
        write_v4(&program);
        check_v4(&program, "as written");
        assert!(program.terminate().success());
        std::fs::remove_file(kept.join("tidemark.lock")).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let mut kinds = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(&kept).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        let printed = Command::new(harness::program()).arg("dump").arg(&path).output().unwrap();
        assert!(printed.status.success() && !printed.stdout.is_empty(), "{path:?} is printed");
        kinds.extend(path.extension().map(|kind| kind.to_string_lossy().into_owned()));
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["manifest", "tcold", "tlog", "tsnap"]);
    let checked =
        Command::new(harness::program()).arg("check").arg(folder.path()).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));

    let program = start(folder.path(), config.path());
    check_v4(&program, "from snapshot and log");
    // Also check the current format.
    assert_eq!(refusal(&call(&mut program.client(), "SAVE")), "");
    program.kill();
    check_v4(&start(folder.path(), config.path()), "from today's snapshot");
}

#[test]
fn a_folder_of_version_3_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let kept = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v3");
    for entry in std::fs::read_dir(&kept).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let output = Command::new(harness::program())
        .args(["serve", "--port", "0", "--dir"])
        .arg(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{told}");
    assert!(told.contains("has format version 3, this release reads only version 4"), "{told}");
    assert!(told.contains("tidemark import --from"), "{told}");
}

/// Scripts stop a server with SHUTDOWN and restart it immediately, so the folder must be free when
/// the connection closes.
#[test]
fn shutdown_ends_the_connection_when_the_folder_is_free() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let mut program = Program::start(folder.path(), "everysec");
        let mut client = program.client();
        for id in 0..5_000 {
            client.push(&[
                b"HSET",
                format!("post:{}", FIRST + id).as_bytes(),
                b"like",
                &text(round),
            ]);
        }
        fine(&mut client);
        assert!(
            client.call(&[b"SHUTDOWN"]).is_err(),
            "the server closed the connection without a reply"
        );
        let disk = RealDisk::open(folder.path()).unwrap();
        assert!(store::Disk::lock(&disk).is_ok(), "round {round}: the folder is locked");
        assert!(program.child.wait().unwrap().success());
    }
}

#[test]
fn serve_waits_for_a_server_that_is_about_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(folder.path()).unwrap();
    let lock = store::Disk::lock(&disk).unwrap();
    let waits = Program::start_until(&[], folder.path(), &[], "in use by another process");
    let (program, lines) =
        waits.unwrap_or_else(|said| panic!("the server did not wait for the lock: {said:#?}"));
    drop(lock);
    let ready = lines.map_while(Result::ok).find(|line| line.contains("ready to accept"));
    assert!(ready.is_some());
    assert!(program.terminate().success());
}

#[test]
fn shutdown_save_writes_a_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path(), "always");
    let mut client = program.client();
    call(&mut client, &format!("HSET post:{FIRST} like 5"));
    assert!(snapshots(folder.path()).is_empty());
    assert!(
        client.call(&[b"SHUTDOWN", b"SAVE"]).is_err(),
        "the server closed the connection without a reply"
    );
    assert!(program.child.wait().unwrap().success());
    assert!(!snapshots(folder.path()).is_empty());
    let again = Program::start(folder.path(), "always");
    assert_eq!(again.ask(&format!("HGET post:{FIRST} like")), Reply::BulkString(text(5)));
}

/// Fills the log with records that take a long time to replay.
fn fill_log(client: &mut Client) {
    let members: Vec<Vec<u8>> = (0..100).map(|n| format!("{n:0>120}").into_bytes()).collect();
    for id in FIRST..FIRST + 2000 {
        let key = format!("liked:{id}").into_bytes();
        let words = [&b"SADD"[..], &key].into_iter();
        client.push(&words.chain(members.iter().map(Vec::as_slice)).collect::<Vec<_>>());
    }
    fine(client);
    until("a long log", || count(client, "log_bytes") > 20 << 20);
}

#[test]
fn shutdown_is_aborted_while_it_saves() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "everysec");
    let (mut stopping, mut other) = (program.client(), program.client());
    fill_log(&mut stopping);
    stopping.push(&[b"SHUTDOWN"]);
    stopping.send().unwrap();
    until("ABORT finds it", || refusal(&call(&mut other, "SHUTDOWN ABORT")).is_empty());
    let reply = stopping.reply().unwrap();
    assert_eq!(refusal(&reply), "ERR Errors trying to SHUTDOWN. Check logs.");
    assert_eq!(refusal(&call(&mut other, &format!("SADD liked:{FIRST} 1"))), "");
}

/// Replaying 16 MiB of log or more takes longer than loading a snapshot.
#[test]
fn a_stop_with_a_long_log_writes_a_snapshot() {
    for (saves, stop) in
        [(false, &["SHUTDOWN", "NOSAVE"][..]), (true, &["SHUTDOWN"]), (true, &["SIGTERM"])]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Program::start(folder.path(), "everysec");
        let mut client = program.client();
        fill_log(&mut client);
        match stop {
            ["SIGTERM"] => assert!(program.terminate().success()),
            words => {
                let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
                assert!(
                    client.call(&words).is_err(),
                    "the server closed the connection without a reply"
                );
                assert!(program.child.wait().unwrap().success());
            }
        }
        assert_eq!(!snapshots(folder.path()).is_empty(), saves, "{stop:?}");
        let again = Program::start(folder.path(), "everysec");
        let last = format!("SISMEMBER liked:{} {:0>120}", FIRST + 1999, 99);
        assert_eq!(again.ask(&last), Reply::Integer(1));
    }
}
