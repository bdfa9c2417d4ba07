//! Cold rows: after a spill, rows are read, changed, deleted, merged and restored like rows in
//! memory.

use redis::{Commands, Connection, Value};
use std::collections::BTreeMap;
use tidemark_server::config::Config;
use tidemark_tests::TestServer;

pub(crate) const FIELDS: [&str; 4] = ["like", "repost", "comment", "read"];

pub(crate) fn small(config: &mut Config) {
    config.counter[0].spill = true;
    config.counter[0].rows_per_table = 2_000;
    config.counter[0].memory_limit_bytes = 64 << 20;
    config.durability.snapshot_every_s = 0;
}

/// Configures small tables, and a memory limit that fits only a few of them.
pub(crate) fn tight(config: &mut Config) {
    small(config);
    config.counter[0].rows_per_table = 10_000;
    config.counter[0].memory_limit_bytes = 1 << 20;
}

/// Sends a command whose arguments are separated by spaces.
pub(crate) fn call<T: redis::FromRedisValue>(
    connection: &mut Connection,
    text: &str,
) -> redis::RedisResult<T> {
    let mut words = text.split(' ');
    redis::cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>()).query(connection)
}

/// Returns all lines of a command's reply, each followed by `|`, up to the reply to a PING.
pub(crate) fn lines(server: &TestServer, text: &str) -> String {
    let mut raw = server.raw();
    raw.send(tidemark_tests::request(&text.split(' ').collect::<Vec<_>>()));
    raw.send(tidemark_tests::request(&["PING"]));
    let mut told = String::new();
    while !told.contains("PONG") {
        told += &raw.line();
        told.push('|');
    }
    told
}

/// Overwrites part of a file to simulate disk corruption.
pub(crate) fn damage_file(path: &std::path::Path, at: u64, bytes: usize) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0x55; bytes], at).unwrap();
}

pub(crate) fn info(connection: &mut Connection, name: &str) -> u64 {
    let text: String = redis::cmd("INFO").arg("cold").query(connection).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("{name} in {text}"));
    line.parse().unwrap()
}

/// Checks that reader threads did most cold reads, not the worker itself.
pub(crate) fn was_read_ahead(connection: &mut Connection) {
    assert!(info(connection, "cold_reads") > info(connection, "cold_reads_in_place"));
}

pub(crate) type Truth = BTreeMap<u64, [i64; 4]>;

/// Compares all rows with the model, individually and on pages; the rows in `absent` must not
/// exist.
pub(crate) fn verify(server: &TestServer, truth: &Truth, absent: &[u64]) {
    let mut connection = server.connection();
    let ids: Vec<u64> = truth.keys().copied().chain(absent.iter().copied()).collect();
    for page in ids.chunks(100) {
        let mut pipe = redis::pipe();
        for id in page {
            pipe.cmd("HMGET").arg(format!("post:{id}")).arg(&FIELDS);
        }
        let rows: Vec<Vec<Option<i64>>> = pipe.query(&mut connection).unwrap();
        for (id, row) in page.iter().zip(rows) {
            let expected = truth.get(id).map_or([None; 4], |row| row.map(Some));
            assert_eq!(row, expected, "{id}");
        }
        let rows: Vec<Vec<i64>> =
            redis::cmd("FEED.GET").arg("home").arg(7).arg(page).query(&mut connection).unwrap();
        for (id, row) in page.iter().zip(rows) {
            assert_eq!(row[..4], truth.get(id).copied().unwrap_or_default(), "{id} on a page");
        }
    }
}

/// Sends idempotent changes and retries after OOM errors: with a small limit there may briefly be
/// no memory for the next table.
pub(crate) fn retry_after_oom(pipe: &redis::Pipeline, connection: &mut Connection) {
    let mut told = pipe.query::<Value>(connection);
    let started = std::time::Instant::now();
    while told.as_ref().is_err_and(|error| error.to_string().contains("OOM")) {
        assert!(started.elapsed() < tidemark_tests::DEFAULT_TIMEOUT, "{told:?}");
        std::thread::sleep(std::time::Duration::from_millis(5));
        told = pipe.query(connection);
    }
    told.unwrap();
}

pub(crate) fn fill(connection: &mut Connection, n: u64, truth: &mut Truth) {
    fill_from(connection, 0, n, truth);
}

pub(crate) fn fill_from(connection: &mut Connection, from: u64, n: u64, truth: &mut Truth) {
    let ids: Vec<u64> = (from..from + n).collect();
    for ids in ids.chunks(500) {
        retry_after_oom(&rows(ids.iter().copied(), truth), connection);
    }
}

/// Builds requests for new rows with these sequence numbers.
fn rows(numbers: impl Iterator<Item = u64>, truth: &mut Truth) -> redis::Pipeline {
    let mut pipe = redis::pipe();
    for id in numbers.map(|n| 1_000_000 + n * 37) {
        let row = [
            id as i64 % 50,
            id as i64 % 3,
            if id % 41 == 0 { id as i64 * 1_000_000 } else { 0 },
            id as i64 % 5000,
        ];
        truth.insert(id, row);
        pipe.cmd("CNT.SET").arg("post").arg(id);
        for (field, value) in FIELDS.iter().zip(row) {
            pipe.arg(field).arg(value);
        }
        pipe.ignore();
    }
    pipe
}

#[test]
fn spilled_rows_are_read_changed_deleted_merged_and_restarted() {
    let mut server = TestServer::with(|config| {
        small(config);
    });
    let mut connection = server.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 12_000, &mut truth);
    let spilled: u64 = call(&mut connection, "TM.SPILL post 4").unwrap();
    assert!(spilled > 4_000, "{spilled}");
    assert!(info(&mut connection, "cold_files") >= 3);
    verify(&server, &truth, &[1_000_001, 1_000_036, 5, 999_999]);
    assert!(info(&mut connection, "cold_reads") > 10);
    assert_eq!(info(&mut connection, "cold_reads_in_place"), 0, "all reads were prefetched");
    was_read_ahead(&mut connection);

    // Make every kind of change to cold rows.
    let id = |i: u64| 1_000_000 + i * 37;
    let mut absent = vec![];
    for round in 0..3 {
        let o = 100 * round;
        let mut connection = server.connection();
        let c = &mut connection;
        // HSET counts a field with value 0 as new.
        let is_zero = |i: u64, field: usize| i64::from(truth[&id(i)][field] == 0);
        for (text, reply) in [
            (format!("HINCRBY post:{} like 5", id(o)), truth[&id(o)][0] + 5),
            (format!("HSET post:{} repost 77", id(o + 1)), is_zero(o + 1, 1)),
            (format!("INCRBY post:{}:read 9", id(o + 2)), truth[&id(o + 2)][3] + 9),
            (format!("DEL post:{}", id(o + 3)), 1),
            (format!("DEL post:{}", id(o + 3)), 0),
            (format!("EXISTS post:{} post:{}", id(o + 3), id(o + 4)), 1),
            (format!("HINCRBY post:{} read 4", id(o + 5) + 1), 4),
            (format!("DEL post:{}", id(o + 6)), 1),
            (format!("HINCRBY post:{} comment 6", id(o + 6)), 6),
            (format!("HSET post:{} like 0", id(o + 7)), is_zero(o + 7, 0)),
        ] {
            assert_eq!(call::<i64>(c, &text).unwrap(), reply, "{text}");
        }
        let acts: Vec<i64> =
            call(c, &format!("FEED.ACT like 42 {} {}", id(o + 8), id(o + 9))).unwrap();
        assert_eq!(acts, [1, 1]);
        let cells: Vec<Option<i64>> =
            call(c, &format!("MGET post:{}:like post:{}:like", id(o + 8), id(o + 3))).unwrap();
        assert_eq!(cells, [Some(truth[&id(o + 8)][0] + 1), None]);
        truth.get_mut(&id(o)).unwrap()[0] += 5;
        truth.get_mut(&id(o + 1)).unwrap()[1] = 77;
        truth.get_mut(&id(o + 2)).unwrap()[3] += 9;
        truth.remove(&id(o + 3));
        absent.push(id(o + 3));
        truth.insert(id(o + 5) + 1, [0, 0, 0, 4]);
        truth.insert(id(o + 6), [0, 0, 6, 0]);
        truth.get_mut(&id(o + 7)).unwrap()[0] = 0;
        truth.get_mut(&id(o + 8)).unwrap()[0] += 1;
        truth.get_mut(&id(o + 9)).unwrap()[0] += 1;
        verify(&server, &truth, &absent);
        match round {
            // The first restart reads the log and cold files, and the second restart also reads a
            // snapshot.
            0 => server = server.restart(),
            1 => {
                let _: Value = call(&mut server.connection(), "SAVE").unwrap();
                server = server.restart();
            }
            _ => {}
        }
        verify(&server, &truth, &absent);
    }
    // A merge moves the changes into the files.
    let mut connection = server.connection();
    assert!(info(&mut connection, "overlay_rows") > 0);
    let _: u64 = call(&mut connection, "TM.SPILL post 20").unwrap();
    assert_eq!(info(&mut connection, "overlay_deleted"), 0);
    verify(&server, &truth, &absent);
    let killed = server.killed();
    verify(&killed, &truth, &absent);
    let exists: bool = connection.exists(format!("post:{}", absent[0])).unwrap();
    assert!(!exists);
}

fn scanned(connection: &mut Connection, count: u64) -> Vec<u64> {
    let (mut cursor, mut ids) = (0u64, Vec::new());
    loop {
        let (next, keys): (u64, Vec<String>) =
            redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(count).query(connection).unwrap();
        ids.extend(
            keys.iter().map(|key| key.strip_prefix("post:").unwrap().parse::<u64>().unwrap()),
        );
        if next == 0 {
            break;
        }
        cursor = next;
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// DBSIZE must be exact after a crash, even if the newest table of the last snapshot was closed and
/// spilled in the meantime. No table then covers both the spilled rows and later rows.
#[test]
fn rows_above_those_on_the_disk_are_counted_after_a_crash() {
    let server = TestServer::with(small);
    let mut connection = server.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 500, &mut truth);
    let _: Value = call(&mut connection, "SAVE").unwrap();
    fill_from(&mut connection, 500, 8_500, &mut truth);
    let _: u64 = call(&mut connection, "TM.SPILL post 1").unwrap();
    let spilled = info(&mut connection, "cold_rows");
    assert!((500..8_000).contains(&spilled), "{spilled}");
    let count: u64 = call(&mut connection, "DBSIZE").unwrap();
    assert_eq!(count, 9_000);
    let server = server.killed();
    let count: u64 = call(&mut server.connection(), "DBSIZE").unwrap();
    assert_eq!(count, 9_000, "after a crash");
    verify(&server, &truth, &[]);
}

/// Cold rows are counted and listed, even after spilling was turned off.
#[test]
fn cold_rows_are_counted_and_listed_after_spilling_is_off() {
    let server = TestServer::with(small);
    let mut connection = server.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 9_000, &mut truth);
    // Use distant ids that are dense enough to define their own range.
    for id in (2_000_000..2_005_000).chain((1 << 62)..(1 << 62) + 5000) {
        let _: Value = call(&mut connection, &format!("CNT.SET post {id} like 3")).unwrap();
        truth.insert(id, [3, 0, 0, 0]);
    }
    let _: u64 = call(&mut connection, "TM.SPILL post 50").unwrap();
    assert!(info(&mut connection, "cold_rows") > 8_000);
    let ids: Vec<u64> = truth.keys().copied().collect();
    let count: u64 = call(&mut connection, "DBSIZE").unwrap();
    assert_eq!(count, ids.len() as u64);
    for count in [1, 10, 700] {
        assert!(scanned(&mut connection, count) == ids, "by {count}");
    }
    for id in &ids[100..200] {
        let _: i64 = call(&mut connection, &format!("DEL post:{id}")).unwrap();
        truth.remove(id);
    }
    let _: i64 = call(&mut connection, &format!("HINCRBY post:{} like 1", ids[300])).unwrap();
    truth.get_mut(&ids[300]).unwrap()[0] += 1;
    let left: Vec<u64> = truth.keys().copied().collect();
    assert!(scanned(&mut connection, 100) == left);
    let count: u64 = call(&mut connection, "DBSIZE").unwrap();
    assert_eq!(count, left.len() as u64);
    // RANDOMKEY and TM.ADVISE cover cold rows.
    let drawn: Vec<u64> = (0..40)
        .map(|_| {
            let key: String = redis::cmd("RANDOMKEY").query(&mut connection).unwrap();
            key.strip_prefix("post:").unwrap().parse().unwrap()
        })
        .collect();
    assert!(drawn.iter().all(|id| truth.contains_key(id)), "{drawn:?}");
    assert!(drawn.iter().any(|&id| id < ids[8_000]), "most tables are on disk: {drawn:?}");
    let advice: redis::Value = call(&mut connection, "TM.ADVISE post").unwrap();
    let redis::Value::Array(advice) = advice else { panic!("{advice:?}") };
    let redis::Value::Int(looked_at) = advice[1] else { panic!("{advice:?}") };
    assert!(looked_at.unsigned_abs() > left.len() as u64 * 9 / 10, "{looked_at} of {}", left.len());
    let _: String = call(&mut connection, "TM.SPACE ALTER post SET spill no").unwrap();
    let server = server.restart();
    verify(&server, &truth, &ids[100..200]);
    let mut connection = server.connection();
    assert!(scanned(&mut connection, 100) == left);
    let _: i64 = call(&mut connection, &format!("HINCRBY post:{} like 1", ids[301])).unwrap();
    truth.get_mut(&ids[301]).unwrap()[0] += 1;
    verify(&server.restart(), &truth, &ids[100..200]);
}

/// Changes and deletions of cold rows take memory until a merge. Merges start automatically and
/// bound this memory.
#[test]
fn changes_are_merged_by_themselves() {
    let server = TestServer::with(tight);
    let mut connection = server.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 150_000, &mut truth);
    let ids: Vec<u64> = truth.keys().copied().collect();
    // Delete some rows of each file. The tombstones of these rows would take 1.4 MB, and the limit
    // is 1 MiB.
    for ids in ids[..120_000].chunks(1000) {
        let _: Value =
            redis::cmd("CNT.DEL").arg("post").arg(&ids[..500]).query(&mut connection).unwrap();
        truth.retain(|id, _| !(ids[0]..=ids[499]).contains(id));
    }
    let waiting = |connection: &mut Connection| info(connection, "merge_backlog_rows") * 24;
    tidemark_tests::eventually("deletions are merged", || waiting(&mut connection) < (1 << 20) / 8);
    assert!(info(&mut connection, "merges") > 3);
    verify(&server, &truth, &ids[..500]);
    assert_eq!(info(&mut connection, "spill_failures"), 0);
    let server = server.killed();
    verify(&server, &truth, &ids[..500]);
}

/// Each file takes a file descriptor and a search step, so files with few remaining rows are merged
/// into one file. A merge observes its rate limit until a writer needs memory or the server stops.
#[test]
fn a_slow_merge_delays_no_request() {
    let server = TestServer::with(|config| {
        small(config);
        config.counter[0].rows_per_table = 10_000;
        config.counter[0].memory_limit_bytes = 2 << 20;
        config.spill.merge_bytes_per_s = 500;
    });
    let mut connection = server.connection();
    connection.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    let mut truth = Truth::new();
    fill(&mut connection, 100_000, &mut truth);
    call::<Value>(&mut connection, "TM.SPILL post 100").unwrap();
    let changed: Vec<u64> = truth.keys().copied().take(60_000).collect();
    let merges_or_tries = |connection: &mut Connection| {
        let unfinished = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.file_name().to_string_lossy().ends_with(".tcold.tmp"))
        };
        info(connection, "merge_backlog_rows") > 0
            && std::fs::read_dir(server.folder()).unwrap().any(unfinished)
    };
    for ids in changed.chunks(500) {
        let mut pipe = redis::pipe();
        for id in ids {
            truth.get_mut(id).unwrap()[0] += 1;
            pipe.cmd("HINCRBY").arg(format!("post:{id}")).arg("like").arg(1).ignore();
        }
        pipe.query::<()>(&mut connection).unwrap();
    }
    tidemark_tests::eventually("a merge is under way", || merges_or_tries(&mut connection));
    let mut other = server.connection();
    other.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    // Add more rows than fit into memory in addition to the changes that wait for a merge.
    for from in (100_000..400_000).step_by(10_000) {
        fill_from(&mut connection, from, 10_000, &mut truth);
        redis::cmd("HINCRBY")
            .arg("user:1")
            .arg("follower")
            .arg(1)
            .query::<i64>(&mut other)
            .unwrap();
    }
    assert!(info(&mut connection, "merges") > 0);
    verify(&server, &truth, &[]);
    let began = std::time::Instant::now();
    server.stop();
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn small_neighbours_become_one_file() {
    let server = TestServer::with(|config| {
        small(config);
        config.counter[0].rows_per_table = 10_000;
    });
    let mut connection = server.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 120_000, &mut truth);
    let spilled: u64 = call(&mut connection, "TM.SPILL post 8").unwrap();
    let before = info(&mut connection, "cold_files");
    assert!(before >= 8 && spilled > 60_000, "{before} files, {spilled} rows");
    // Keep one row in a hundred, so that several files together have fewer rows than one table.
    let ids: Vec<u64> = truth.keys().copied().collect();
    for ids in ids[..60_000].chunks(500) {
        let some: Vec<u64> = ids.iter().copied().filter(|id| id % 100 != 0).collect();
        let _: Value = redis::cmd("CNT.DEL").arg("post").arg(&some).query(&mut connection).unwrap();
        truth.retain(|id, _| !(some[0]..=some[some.len() - 1]).contains(id) || id % 100 == 0);
    }
    let _: u64 = call(&mut connection, "TM.SPILL post 8").unwrap();
    tidemark_tests::eventually("adjacent files are merged", || {
        info(&mut connection, "merge_backlog_rows") == 0
            && info(&mut connection, "cold_files") + 4 <= before
    });
    assert_eq!(info(&mut connection, "spill_failures"), 0);
    verify(&server, &truth, &ids[..2000]);
    let killed = server.killed();
    verify(&killed, &truth, &ids[..2000]);
    verify(&server.restart(), &truth, &ids[..2000]);
}

/// A spill does not wait for the end of a slow snapshot. The snapshot omits rows that were spilled
/// while it was written.
#[test]
fn a_spill_does_not_wait_for_the_end_of_a_snapshot() {
    let mut server = TestServer::with(small);
    let mut truth = Truth::new();
    fill(&mut server.connection(), 60_000, &mut truth);
    let (mut between, mut gone) = (0, Vec::new());
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..30 {
        let mut connection = server.connection();
        let saving = |connection: &mut Connection| {
            let text: String = redis::cmd("INFO").arg("persistence").query(connection).unwrap();
            text.contains("rdb_bgsave_in_progress:1")
        };
        // Changes and deletes rows before, during and after the spill.
        let mut change = |connection: &mut Connection, truth: &mut Truth| {
            for _ in 0..40 {
                let id = 1_000_000 + random.u64(..60_000) * 37;
                if random.u32(..4) == 0 {
                    let _: i64 = call(connection, &format!("DEL post:{id}")).unwrap();
                    truth.remove(&id);
                    gone.push(id);
                } else {
                    let _: i64 = call(connection, &format!("HINCRBY post:{id} read 3")).unwrap();
                    truth.entry(id).or_default()[3] += 3;
                }
            }
        };
        change(&mut connection, &mut truth);
        let _: Value = call(&mut connection, "BGSAVE").unwrap();
        for _ in 0..3 {
            change(&mut connection, &mut truth);
            let before = saving(&mut connection);
            let _: u64 = call(&mut connection, "TM.SPILL post 1").unwrap();
            // Both checks see the same snapshot, because no other snapshot was requested.
            between += u32::from(before && saving(&mut connection));
            change(&mut connection, &mut truth);
        }
        tidemark_tests::eventually("the snapshot is saved", || !saving(&mut connection));
        if round % 4 == 1 {
            server = if round % 8 == 1 { server.killed() } else { server.restart() };
            gone.retain(|id| !truth.contains_key(id));
            verify(&server, &truth, &gone);
        }
        if between >= 6 && round >= 8 {
            break;
        }
    }
    assert!(between >= 6, "{between} spills while a snapshot was written");
    gone.retain(|id| !truth.contains_key(id));
    verify(&server.killed(), &truth, &gone);
    let report = store::check(&store::RealDisk::open(server.folder()).unwrap()).unwrap();
    assert_ne!(report.severity(), store::Severity::Damage, "{:?}", report.findings);
}

/// When memory runs short during writes, old tables are spilled automatically and no write is
/// refused.
#[test]
fn a_full_space_goes_on_by_spilling() {
    let server = TestServer::with(tight);
    let mut connection = server.connection();
    let used = |connection: &mut Connection| {
        let text: String = redis::cmd("INFO").arg("memory").query(connection).unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix("used_memory_dataset:"))
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let others = used(&mut connection);
    let mut truth = Truth::new();
    fill(&mut connection, 200_000, &mut truth);
    assert!(info(&mut connection, "cold_rows") > 80_000);
    assert_eq!(info(&mut connection, "spill_failures"), 0);
    // Usage may exceed the limit by a sixteenth while tables are shrunk.
    let now = used(&mut connection);
    assert!(now < others + (1 << 20) + (1 << 16), "{now}, {others} before");
    verify(&server, &truth, &[]);
    let server = server.restart();
    verify(&server, &truth, &[]);
}

pub(crate) fn likes(connection: &mut Connection, viewer: u64, ids: &[u64]) -> Vec<[i64; 2]> {
    let rows: Vec<Vec<i64>> =
        redis::cmd("FEED.GET").arg("home").arg(viewer).arg(ids).query(connection).unwrap();
    rows.iter().map(|row| [row[0], row[4]]).collect()
}

/// Pages show flags and counters of cold posts, and actions change them.
#[test]
fn flags_of_spilled_posts_are_shown() {
    let mut server = TestServer::with(|config| {
        small(config);
    });
    let mut connection = server.connection();
    let ids: Vec<u64> = (0..12_000).map(|i| 1_000_000 + i * 37).collect();
    for page in ids.chunks(500) {
        let liked: Vec<i64> =
            redis::cmd("FEED.ACT").arg("like").arg(7).arg(page).query(&mut connection).unwrap();
        assert_eq!(liked, vec![1; page.len()]);
    }
    let _: u64 = call(&mut connection, "TM.SPILL post 4").unwrap();
    // Reads the rows one by one, some from disk and some from the cache, then reads them as pages.
    for _ in 0..2 {
        let mut connection = server.connection();
        assert!(info(&mut connection, "cold_rows") > 4_000);
        for &id in ids.iter().take(200) {
            assert_eq!(likes(&mut connection, 7, &[id]), [[1, 1]], "{id}");
        }
        for page in ids.chunks(100) {
            assert!(likes(&mut connection, 7, page).iter().all(|row| row == &[1, 1]));
        }
        server = server.restart();
    }
    // Undoes and repeats actions on cold rows.
    let mut connection = server.connection();
    let undone: Vec<i64> =
        redis::cmd("FEED.UNDO").arg("like").arg(7).arg(&ids[..50]).query(&mut connection).unwrap();
    assert_eq!(undone, [1; 50]);
    let again: Vec<i64> =
        redis::cmd("FEED.ACT").arg("like").arg(8).arg(&ids[..50]).query(&mut connection).unwrap();
    assert_eq!(again, [1; 50]);
    let _: u64 = call(&mut connection, "TM.SPILL post 9").unwrap();
    assert_eq!(likes(&mut connection, 8, &ids[..50]), [[1, 1]; 50]);
}

/// A page request that runs again after its cold rows were read appears only once in MONITOR and in
/// the statistics. The worker of the request reads no cold file itself.
#[test]
fn a_page_that_lacks_cold_rows_runs_as_one_request() {
    let server = TestServer::with(small);
    let mut connection = server.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 12_000, &mut truth);
    let _: u64 = call(&mut connection, "TM.SPILL post 9").unwrap();
    let old: Vec<u64> = truth.keys().copied().step_by(97).take(40).collect();
    let mut monitor = server.raw();
    monitor.send(tidemark_tests::request(&["MONITOR"]));
    assert_eq!(monitor.line(), "+OK");
    let text = |ids: &[u64]| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    let figures = |connection: &mut Connection| {
        ["cold_cache_misses", "cold_cache_hits", "cold_reads_in_place"]
            .map(|name| info(connection, name))
    };
    let packed = |id: &u64| [&truth[id].map(i64::to_le_bytes).concat()[..], &[0, 0]].concat();
    let before = figures(&mut connection);
    for round in 0..2 {
        let rows: Vec<Vec<i64>> =
            call(&mut connection, &format!("FEED.GET home 7 {}", text(&old[..10]))).unwrap();
        for (id, row) in old.iter().zip(rows) {
            assert_eq!(row[..4], truth[id], "{round}: {id}");
        }
        let page: Vec<u8> =
            call(&mut connection, &format!("FEED.GET home 7 {} BINARY", text(&old[10..20])))
                .unwrap();
        assert_eq!(page, old[10..20].iter().flat_map(packed).collect::<Vec<u8>>(), "{round}");
        for id in &old[20..] {
            let row: Vec<i64> =
                call(&mut connection, &format!("FEED.ROW post:{id} home 7")).unwrap();
            assert_eq!(row[..4], truth[id], "{round}: {id}");
        }
    }
    let [misses, hits, in_place] = figures(&mut connection);
    assert_eq!((misses - before[0], hits - before[1], in_place), (40, 40, 0));
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
    for (name, calls) in [("feed.get", 4), ("feed.row", 40)] {
        assert!(stats.contains(&format!("cmdstat_{name}:calls={calls},")), "{stats}");
    }
    let _: String = call(&mut connection, "ECHO end").unwrap();
    let shown = std::iter::from_fn(|| Some(monitor.line()).filter(|line| !line.contains("ECHO")));
    let shown: Vec<String> = shown.collect();
    for (name, times) in [("FEED.GET", 4), ("FEED.ROW", 40)] {
        assert_eq!(shown.iter().filter(|line| line.contains(name)).count(), times, "{shown:?}");
    }
}

/// A pipeline larger than memory waits for spills and is not refused.
#[test]
fn a_long_pipeline_waits_for_room_and_nothing_of_it_is_refused() {
    let server = TestServer::with(tight);
    let mut connection = server.connection();
    let mut truth = Truth::new();
    rows(0..300_000, &mut truth).query::<()>(&mut connection).unwrap();
    assert!(info(&mut connection, "cold_rows") > 100_000);
    verify(&server, &truth, &[]);
}

/// Under any memory limit, tables are small enough for several to fit, so that the oldest can be
/// spilled.
#[test]
fn a_limit_too_small_for_the_tables_makes_smaller_tables() {
    for limit in [256 << 10, 1 << 20] {
        let server = TestServer::with(|config| {
            small(config);
            config.counter[0].rows_per_table = 1 << 20;
            config.counter[0].memory_limit_bytes = limit;
        });
        let mut connection = server.connection();
        let mut truth = Truth::new();
        fill(&mut connection, limit / 4, &mut truth);
        assert!(info(&mut connection, "cold_rows") > limit / 8);
        verify(&server, &truth, &[5, 999_999]);
    }
}

/// A replica receives cold files unchanged, reads them, spills by its own limit, and can be
/// promoted.
#[test]
fn replica_reads_cold_files_spills_and_can_be_promoted() {
    let master = TestServer::with(small);
    let mut connection = master.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 12_000, &mut truth);
    let _: u64 = call(&mut connection, "TM.SPILL post 4").unwrap();
    let ids: Vec<u64> = truth.keys().copied().collect();
    // Change and delete rows after the spill.
    for &id in &ids[..50] {
        let _: i64 = call(&mut connection, &format!("HINCRBY post:{id} like 1000")).unwrap();
        truth.get_mut(&id).unwrap()[0] += 1000;
    }
    let gone = &ids[50..100];
    for id in gone {
        let _: i64 = call(&mut connection, &format!("DEL post:{id}")).unwrap();
        truth.remove(id);
    }
    let replica = TestServer::with(small);
    super::replication::follow(&replica, &master);
    super::replication::wait_for_sync(&master, &replica);
    assert!(info(&mut replica.connection(), "cold_rows") > 4_000);
    verify(&replica, &truth, gone);
    // The replica receives more data than its memory holds, including changes to rows that are cold
    // on the replica.
    let limits = "memory_limit 1mb rows_per_table 10000 spill yes";
    let _: String = call(&mut connection, &format!("TM.SPACE ALTER post SET {limits}")).unwrap();
    let mut more = Truth::new();
    fill(&mut connection, 150_000, &mut more);
    truth.extend(more);
    for &id in &ids[100..150] {
        let _: i64 = call(&mut connection, &format!("HINCRBY post:{id} read 5")).unwrap();
        truth.get_mut(&id).unwrap()[3] += 5;
        let _: i64 = call(&mut connection, &format!("DEL post:{}", id + 37 * 100_000)).unwrap();
        truth.remove(&(id + 37 * 100_000));
    }
    super::replication::wait_for_sync(&master, &replica);
    assert!(info(&mut replica.connection(), "spilled_tables") > 0, "by itself");
    assert_eq!(info(&mut replica.connection(), "spill_failures"), 0);
    verify(&replica, &truth, &[]);
    // Take a snapshot on the replica, and restart the replica from the snapshot and its own cold
    // files.
    let _: Value = call(&mut replica.connection(), "SAVE").unwrap();
    let replica = replica.stopped().started();
    super::replication::wait_for_sync(&master, &replica);
    verify(&replica, &truth, &[]);
    let _: Value = call(&mut replica.connection(), "REPLICAOF NO ONE").unwrap();
    let mut connection = replica.connection();
    let _: i64 = call(&mut connection, &format!("HINCRBY post:{} like 1", ids[200])).unwrap();
    truth.get_mut(&ids[200]).unwrap()[0] += 1;
    let _: u64 = call(&mut connection, "TM.SPILL post 50").unwrap();
    verify(&replica, &truth, &[]);
    let replica = replica.restart();
    verify(&replica, &truth, &[]);
}

/// Hundreds of connections request cold pages, and some close before the reply; the other
/// connections receive correct rows.
#[test]
fn hundreds_of_connections_read_cold_pages() {
    const LINKS: usize = 300;
    let server = TestServer::with(|config| {
        small(config);
        // Use a tiny cache, so that nearly all rows are read from disk.
        config.spill.cache_bytes = 4096;
    });
    let mut connection = server.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 12_000, &mut truth);
    let _: u64 = call(&mut connection, "TM.SPILL post 9").unwrap();
    let ids: Vec<u64> = truth.keys().copied().filter(|id| id % 3 > 0).collect();
    let page_of = |n: usize| ids.iter().copied().cycle().skip(n * 101).step_by(7).take(50);
    let mut links: Vec<_> = (0..LINKS).map(|_| server.raw()).collect();
    for round in 0..3 {
        for (n, link) in links.iter_mut().enumerate() {
            let words: Vec<String> = page_of(n + round).map(|id| id.to_string()).collect();
            let words: Vec<&str> =
                ["CNT.GET", "post"].into_iter().chain(words.iter().map(String::as_str)).collect();
            link.send(tidemark_tests::request(&words));
        }
        for (n, link) in links.iter_mut().enumerate().rev() {
            if n % 5 == round {
                *link = server.raw();
                continue;
            }
            assert_eq!(link.line(), "*50");
            for id in page_of(n + round) {
                let row = [(); 5].map(|()| link.line());
                let expected = truth[&id].map(|value| format!(":{value}"));
                assert_eq!((row[0].as_str(), &row[1..]), ("*4", &expected[..]), "{id}");
            }
        }
    }
    assert_eq!(info(&mut connection, "cold_reads_in_place"), 0, "all reads were prefetched");
    was_read_ahead(&mut connection);
}

type Row = (u64, i64, i64, i64, i64);

/// Runs CNT.SCAN on a mostly cold space, in both formats, during changes. No row is missing, and
/// each row has a value that it had during the scan.
#[test]
fn cnt_scan_exports_rows_of_memory_and_disk() {
    let server = TestServer::with(small);
    let mut connection = server.connection();
    for id in 1..=20_000u64 {
        redis::cmd("CNT.SET")
            .arg("post")
            .arg(&[id.to_string(), "like".to_owned(), (id % 700).to_string()])
            .exec(&mut connection)
            .unwrap();
    }
    let spilled: u64 = call(&mut connection, "TM.SPILL post 8").unwrap();
    assert!(spilled > 10_000, "{spilled}");
    // Change and delete rows after the spill.
    call::<Vec<i64>>(&mut connection, "CNT.INCRBY post 5 like 1000000").unwrap();
    assert_eq!(call::<u64>(&mut connection, "CNT.DEL post 6").unwrap(), 1);
    let scan = |connection: &mut Connection, options: &str| -> BTreeMap<u64, i64> {
        let (mut cursor, mut rows, mut calls) = ("0".to_owned(), BTreeMap::new(), 0);
        loop {
            let (next, found): (String, Vec<Row>) =
                call(connection, &format!("CNT.SCAN post {cursor}{options}")).unwrap();
            rows.extend(found.iter().map(|row| (row.0, row.1)));
            (cursor, calls) = (next, calls + 1);
            if cursor == "0" {
                return rows;
            }
            assert!(calls < 20_000, "a scan ends");
        }
    };
    let expected = |id: u64| (id % 700) as i64 + if id == 5 { 1_000_000 } else { 0 };
    let all: BTreeMap<u64, i64> =
        (1..=20_000).filter(|id| *id != 6).map(|id| (id, expected(id))).collect();
    assert_eq!(scan(&mut connection, " COUNT 1000"), all);
    assert_eq!(scan(&mut connection, ""), all);

    // Repeat the scan in the binary format.
    let (mut cursor, mut rows) = ("0".to_owned(), BTreeMap::new());
    loop {
        let (next, bytes, counters): (String, Vec<u8>, usize) =
            call(&mut connection, &format!("CNT.SCAN post {cursor} BINARY COUNT 3000")).unwrap();
        assert_eq!(counters, 4);
        for row in bytes.chunks_exact(40) {
            let word = |at: usize| <[u8; 8]>::try_from(&row[at..at + 8]).unwrap();
            rows.insert(u64::from_le_bytes(word(0)), i64::from_le_bytes(word(8)));
        }
        assert_eq!(bytes.len() % 40, 0);
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(rows, all);

    // Rows are spilled and changed during the scan.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut connection = server.connection();
            let mut rounds = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let id = 1 + rounds * 37 % 20_000;
                if id != 6 {
                    call::<Vec<i64>>(&mut connection, &format!("CNT.INCRBY post {id} read 1"))
                        .unwrap();
                }
                if rounds % 500 == 0 {
                    call::<u64>(&mut connection, "TM.SPILL post 1").unwrap();
                }
                rounds += 1;
            }
        });
        for _ in 0..5 {
            assert_eq!(scan(&mut connection, " COUNT 500"), all);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap();
    });
    for bad in ["x", "0 COUNT", "0 COUNT 0", "0 COUNT x", "0 NOPE"] {
        assert!(call::<Value>(&mut connection, &format!("CNT.SCAN post {bad}")).is_err(), "{bad}");
    }
}
