//! Backups made by the real binary: under load, during crashes, snapshots and spills, and on a full
//! disk. The tests compare the restored data with the acknowledged writes, row by row.
//!
//! `TIDEMARK_RUNS` (default 4; `cargo xtask play backup`) sets the number of runs, `TIDEMARK_SEED`
//! the seed. The test with the full disk needs permission to mount a tmpfs (`SmallDisk`).

use client::{Client, Reply};
use harness::program::{
    FIRST, Likes, POSTS, Program, SmallDisk, call, cannot, check, count, info, names, refusal,
    rounds, text, tidemark, until,
};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Starts a server that stores its data in `data` and its backups in `backups`, with additional
/// settings.
fn start(home: &Path, settings: &str) -> Program {
    start_in(home, "data", settings)
}

fn start_in(home: &Path, data: &str, settings: &str) -> Program {
    let config = home.join(format!("{data}.toml"));
    let backups = home.join("backups");
    let text = format!(
        "[durability]\nfsync = \"always\"\n[backup]\ndir = \"{}\"\n{settings}",
        backups.display()
    );
    std::fs::write(&config, text).unwrap();
    Program::start_as(&[], &home.join(data), &["--config", config.to_str().unwrap()])
        .unwrap_or_else(|said| panic!("the server did not start: {said:#?}"))
}

fn status(client: &mut Client, field: &str) -> String {
    let Reply::Array(all) = call(client, "BACKUP STATUS") else { panic!("a map") };
    let said = |frame: &Reply| match frame {
        Reply::BulkString(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        Reply::Integer(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let pair = all.chunks(2).find(|pair| said(&pair[0]) == field);
    pair.map(|pair| said(&pair[1])).unwrap_or_default()
}

fn back_up(client: &mut Client, name: &str) -> String {
    assert_eq!(refusal(&call(client, &format!("BACKUP TO {name}"))), "");
    until("the backup ends", || status(client, "state") == "idle");
    status(client, "last_status")
}

fn restore(backup: &Path, to: &Path, more: &[&str]) -> (bool, String) {
    let mut words = vec!["restore", backup.to_str().unwrap(), "--to", to.to_str().unwrap()];
    words.extend(more);
    let output = tidemark(&words);
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn restored(backup: &Path, to: &Path, more: &[&str]) -> String {
    let (fine, said) = restore(backup, to, more);
    assert!(fine, "{said}");
    let checked = tidemark(&["check", to.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    said
}

fn backups(home: &Path) -> Vec<PathBuf> {
    let root = home.join("backups");
    let all = if root.is_dir() { names(&root) } else { Vec::new() };
    // An incomplete backup has a temporary name.
    let is_whole =
        |name: &String| !name.starts_with('.') && !name.ends_with(".tmp") && name != "log";
    all.into_iter()
        .filter(is_whole)
        .map(|name| root.join(name))
        .filter(|path| path.is_dir())
        .collect()
}

/// Crashes during backups. Every finished backup is complete and contains all writes that were
/// acknowledged before the backup was requested.
#[test]
fn backup_has_acknowledged_writes_though_the_server_is_killed() {
    let (rounds, seed) = rounds(4);
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    // For each backup, by name: the writes that were acknowledged before it was requested.
    let promised: Mutex<Vec<(String, Likes)>> = Mutex::default();
    let all: Mutex<Likes> = Mutex::default();
    let mut torn = 0;
    for round in 0..rounds {
        // The rate limit is low enough that crashes interrupt some backups.
        let program = start(home, "rate = 3_000_000\nkeep_log = 3600\n");
        let port = program.port;
        check(port, &all.lock().unwrap());
        let pause = Duration::from_millis(rng.u64(300..1500));
        let seeds = [rng.u64(..), rng.u64(..)];
        let is_over = AtomicBool::new(false);
        std::thread::scope(|s| {
            for (i, seed) in (0..2).zip(seeds) {
                let (all, is_over) = (&all, &is_over);
                s.spawn(move || {
                    // Write in short bursts, so that the test quickly learns which writes are
                    // acknowledged.
                    for burst in 0.. {
                        let first = ((round * 2 + i) * 1_000 + burst) * 100 + 1;
                        let mut sent = Likes::new();
                        let Ok(mut client) = Client::connect(("127.0.0.1", port)) else { return };
                        let mut rng = fastrand::Rng::with_seed(seed ^ burst);
                        for member in first..first + 40 {
                            let post = FIRST + rng.u64(0..POSTS) * 4096;
                            client.push(&[b"FEED.ACT", b"like", &text(member), &text(post)]);
                            sent.insert((post, member), false);
                        }
                        let mut members: Vec<_> = sent.keys().copied().collect();
                        members.sort_by_key(|(_, member)| *member);
                        for like in members {
                            let Ok(Reply::Array(items)) = client.reply() else { break };
                            sent.insert(like, items[0] == Reply::Integer(1));
                        }
                        all.lock().unwrap().extend(sent);
                        if is_over.load(SeqCst) {
                            return;
                        }
                    }
                });
            }
            let (all, promised, is_over) = (&all, &promised, &is_over);
            s.spawn(move || {
                let Ok(mut client) = Client::connect(("127.0.0.1", port)) else { return };
                for n in 0.. {
                    let name = format!("r{round}-{n}");
                    let now: Likes = all
                        .lock()
                        .unwrap()
                        .iter()
                        .filter(|like| *like.1)
                        .map(|l| (*l.0, true))
                        .collect();
                    promised.lock().unwrap().push((name.clone(), now));
                    if n % 2 == 1 && client.call(&[b"SAVE"]).is_err() {
                        return;
                    }
                    if client.call(&[b"BACKUP", b"TO", name.as_bytes()]).is_err() {
                        return;
                    }
                    while !is_over.load(SeqCst) {
                        let Ok(Reply::Array(said)) = client.call(&[b"BACKUP", b"STATUS"]) else {
                            return;
                        };
                        if said.contains(&Reply::BulkString(b"idle".to_vec())) {
                            break;
                        }
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            });
            std::thread::sleep(pause);
            program.kill();
            is_over.store(true, SeqCst);
        });
        torn += u64::from(names(&home.join("backups")).iter().any(|n| n.ends_with(".tmp")));
        eprintln!("round {round}: {} backups, killed after {pause:?}", backups(home).len());
    }
    let sent = all.into_inner().unwrap();
    let there = backups(home);
    for (name, mut likes) in promised.into_inner().unwrap() {
        let backup = home.join("backups").join(&name);
        if !there.contains(&backup) {
            continue;
        }
        let to = home.join("restored");
        restored(&backup, &to, &[]);
        let program = start_in(home, "restored", "");
        // The backup may contain later likes. Flags and counters of these likes must also be
        // consistent.
        let promises = likes.len();
        likes.extend(
            sent.keys().filter(|l| !likes.contains_key(l)).map(|l| (*l, false)).collect::<Vec<_>>(),
        );
        check(program.port, &likes);
        eprintln!("{name}: {promises} promised");
        program.kill();
        std::fs::remove_dir_all(&to).unwrap();
    }
    // The next backup deletes the files of interrupted backups.
    let program = start(home, "");
    assert_eq!(back_up(&mut program.client(), "last"), "ok");
    assert!(!names(&home.join("backups")).iter().any(|name| name.ends_with(".tmp")));
    check(program.port, &sent);
    program.kill();
    // The backup and the log archive contain all acknowledged writes.
    restored(&home.join("backups/last"), &home.join("restored"), &["--until", "latest"]);
    check(start_in(home, "restored", "").port, &sent);
    assert!(there.len() as u64 >= rounds, "{} backups of {rounds} rounds", there.len());
    eprintln!("{} backups, {torn} rounds left a partial one, {} likes", there.len(), sent.len());
}

fn likes_of(port: u16) -> i64 {
    let mut client = Client::connect(("127.0.0.1", port)).unwrap();
    let posts = (0..POSTS).map(|n| format!("post:{}:like", FIRST + n * 4096));
    let Reply::Array(all) =
        call(&mut client, &format!("MGET {}", posts.collect::<Vec<_>>().join(" ")))
    else {
        panic!("an array")
    };
    let number = |frame: &Reply| match frame {
        Reply::BulkString(n) => String::from_utf8(n.clone()).unwrap().parse().unwrap(),
        _ => 0,
    };
    all.iter().map(number).sum()
}

#[test]
fn a_restore_ends_at_the_position_or_the_time_that_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let program = start(home, "keep_log = 3600\n");
    let mut client = program.client();
    // Positions before and after the backup, and before and after a restart and a snapshot.
    let mut places = Vec::new();
    let mut program = Some(program);
    let mut liked = 0;
    for phase in 0..6u64 {
        if phase == 2 {
            assert_eq!(refusal(&call(&mut client, "SAVE")), "");
            assert_eq!(back_up(&mut client, "base"), "ok");
        }
        if phase == 4 {
            assert_eq!(refusal(&call(&mut client, "SAVE")), "");
            program.take().unwrap().kill();
            let again = start(home, "keep_log = 3600\n");
            client = again.client();
            program = Some(again);
        }
        let mut rng = fastrand::Rng::with_seed(phase);
        for member in 1..=100 {
            let post = FIRST + rng.u64(0..POSTS) * 4096;
            client.push(&[b"FEED.ACT", b"like", &text(phase * 1_000 + member), &text(post)]);
        }
        for _ in 0..100 {
            let Reply::Array(said) = client.reply().unwrap() else { panic!("no array") };
            liked += i64::from(said[0] == Reply::Integer(1));
        }
        let offset = count(&mut client, "log_synced_offset");
        let Reply::Array(time) = call(&mut client, "TIME") else { panic!("a time") };
        let said = |frame: &Reply| match frame {
            Reply::BulkString(n) => String::from_utf8(n.clone()).unwrap().parse::<u64>().unwrap(),
            other => panic!("{other:?}"),
        };
        // The server truncates microseconds to the milliseconds of log batches.
        let (seconds, micros) = (said(&time[0]), said(&time[1]));
        std::thread::sleep(Duration::from_millis(20));
        places.push((offset, seconds * 1_000 + micros / 1_000, liked));
    }
    let end = count(&mut client, "log_synced_offset");
    until("the log is kept", || {
        status(&mut client, "log_offset").parse::<u64>().is_ok_and(|offset| offset >= end)
    });
    program.take().unwrap().kill();
    let base = home.join("backups/base");
    let to = home.join("restored");
    let time_of = |ms: u64| {
        let date = std::process::Command::new("date")
            .args(["-u", "-d", &format!("@{}", ms / 1000), "+%Y-%m-%dT%H:%M:%S"])
            .output()
            .unwrap();
        format!("{}.{:03}Z", String::from_utf8(date.stdout).unwrap().trim(), ms % 1000)
    };
    for (offset, ms, likes) in &places[2..] {
        for place in [offset.to_string(), time_of(*ms)] {
            let said = restored(&base, &to, &["--until", &place]);
            let again = start_in(home, "restored", "");
            assert_eq!(likes_of(again.port), *likes, "{place}: {said}");
            // The restored server is a master that accepts writes.
            let like = call(&mut again.client(), &format!("FEED.ACT like 99999999 {FIRST}"));
            assert_eq!(refusal(&like), "");
            again.kill();
            std::fs::remove_dir_all(&to).unwrap();
        }
    }
    for place in [places[0].0.to_string(), time_of(places[0].1 - 2_000), "1".to_owned()] {
        let (fine, said) = restore(&base, &to, &["--until", &place]);
        assert!(!fine && said.contains("Use an older backup"), "{place}: {said}");
    }
    let (fine, said) = restore(&base, &to, &["--until", &(end + 1000).to_string()]);
    assert!(!fine && said.contains("Add more of the log with --log"), "{said}");
    assert!(!to.exists(), "the folder was written before all checksums were verified");
    // Without the archive, the log is still in the data folder.
    std::fs::remove_dir_all(home.join("backups/log")).unwrap();
    restored(&base, &to, &["--until", "latest", "--log", home.join("data").to_str().unwrap()]);
    assert_eq!(likes_of(start_in(home, "restored", "").port), liked);
}

/// `check` and `restore` name any damaged file of a backup. In that case `restore` writes nothing.
#[test]
fn damage_of_a_backup_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let program = start(home, "");
    let mut client = program.client();
    for member in 1..500 {
        call(&mut client, &format!("FEED.ACT like {member} {}", FIRST + member % 7));
    }
    assert_eq!(refusal(&call(&mut client, "SAVE")), "");
    assert_eq!(back_up(&mut client, "one"), "ok");
    let one = home.join("backups/one");
    assert!(tidemark(&["check", one.to_str().unwrap()]).status.success());
    // A server refuses to start on a backup folder.
    let refused = Program::start_as(&[], &one, &[]).err().expect("the server started").join("\n");
    assert!(refused.contains("tidemark restore"), "{refused}");
    for name in names(&one) {
        if name == "tidemark.lock" {
            continue;
        }
        let path = one.join(&name);
        let whole = std::fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        // Remove the file first, because it may be a hard link to a file of the data folder.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let (fine, said) = restore(&one, &home.join("restored"), &[]);
        assert!(!fine && said.contains(&name), "{name}: {said}");
        assert!(!home.join("restored").exists());
        let checked = tidemark(&["check", one.to_str().unwrap()]);
        let said = String::from_utf8(checked.stdout).unwrap();
        assert!(!checked.status.success() && said.contains(&name), "{said}");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, whole).unwrap();
    }
    restored(&one, &home.join("restored"), &[]);
}

/// A full backup disk does not affect the server, and the failed backup leaves no files. After
/// space is freed, the next backup succeeds.
#[test]
fn a_full_disk_fails_the_backup_and_nothing_else() {
    let Some(disk) = SmallDisk::mount(48) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    std::os::unix::fs::symlink(disk.path(), home.join("backups")).unwrap();
    let program = start(home, "rate = 0\n");
    let mut client = program.client();
    for first in (0..40_000u64).step_by(1000) {
        for id in first..first + 1000 {
            client.push(&[b"CNT.SET", b"post", &text(FIRST + id), b"like", &text(id % 4000)]);
        }
        (0..1000).for_each(|_| assert_eq!(refusal(&client.reply().unwrap()), ""));
    }
    assert_eq!(refusal(&call(&mut client, "SAVE")), "");
    disk.fill(100 << 10);
    assert_eq!(back_up(&mut client, "one"), "err");
    let why = status(&mut client, "last_error");
    assert!(why.contains("No space left"), "{why}");
    assert_eq!(info(&mut client, "backup_last_status"), "err");
    assert!(names(disk.path()).iter().all(|n| !n.contains("one")), "{:?}", names(disk.path()));
    assert_eq!(refusal(&call(&mut client, &format!("FEED.ACT like 1 {FIRST}"))), "");
    disk.make_room();
    assert_eq!(back_up(&mut client, "one"), "ok");
    assert_eq!(info(&mut client, "backup_last_status"), "ok");
    // The backup is on another file system, so its files are copies rather than hard links. The
    // second backup shares files with the first backup.
    let copied: u64 = status(&mut client, "last_bytes_copied").parse().unwrap();
    let bytes: u64 = status(&mut client, "last_bytes").parse().unwrap();
    assert!(copied > 100_000 && copied + 4096 > bytes, "{copied} of {bytes}");
    assert_eq!(back_up(&mut client, "two"), "ok");
    let again: u64 = status(&mut client, "last_bytes_copied").parse().unwrap();
    assert!(again < copied, "{again}");
    restored(&home.join("backups/two"), &home.join("restored"), &[]);
    let row = call(
        &mut start_in(home, "restored", "").client(),
        &format!("HGET post:{} like", FIRST + 39_999),
    );
    assert_eq!(row, Reply::BulkString(text(39_999 % 4000)));
}

/// Snapshots, spills and merges continuously replace files of the data folder, but the files of a
/// backup remain.
#[test]
fn backups_beside_snapshots_and_spills_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let settings = "rate = 0\n[[counter]]\nname = \"post\"\nfields = \"like:24\"\n\
                    rows = \"post:{id}\"\nrows_per_table = 2000\nspill = true\n";
    let program = start(home, settings);
    let port = program.port;
    let (is_over, floor, made) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    // Each pass sets all rows to the number of the pass, and reads all replies.
    const ROWS: u64 = 12_000;
    let mut floors = Vec::new();
    std::thread::scope(|s| {
        let (is_over, floor, made) = (&is_over, &floor, &made);
        s.spawn(move || {
            let mut client = Client::connect(("127.0.0.1", port)).unwrap();
            for pass in 1.. {
                for first in (0..ROWS).step_by(500) {
                    for id in first..first + 500 {
                        client.push(&[b"CNT.SET", b"post", &text(1 + id), b"like", &text(pass)]);
                    }
                    (0..500).for_each(|_| assert_eq!(refusal(&client.reply().unwrap()), ""));
                }
                floor.store(pass, SeqCst);
                if is_over.load(SeqCst) {
                    return;
                }
            }
        });
        s.spawn(move || {
            let mut client = Client::connect(("127.0.0.1", port)).unwrap();
            while !is_over.load(SeqCst) {
                for words in ["TM.SPILL post 2", "SAVE", "TM.SPILL post"] {
                    assert_eq!(refusal(&call(&mut client, words)), "");
                }
                made.fetch_add(1, SeqCst);
            }
        });
        let mut client = program.client();
        while floors.len() < 6 || made.load(SeqCst) < 4 {
            let name = format!("b{}", floors.len());
            floors.push((name.clone(), floor.load(SeqCst)));
            assert_eq!(back_up(&mut client, &name), "ok", "{}", status(&mut client, "last_error"));
        }
        is_over.store(true, SeqCst);
    });
    program.kill();
    let mut cold = 0;
    for (name, floor) in floors {
        let backup = home.join("backups").join(&name);
        cold += names(&backup).iter().filter(|name| name.ends_with(".tcold")).count();
        restored(&backup, &home.join("restored"), &[]);
        let program = start_in(home, "restored", settings);
        let mut client = program.client();
        for id in 0..ROWS {
            client.push(&[b"CNT.GET", b"post", &text(1 + id)]);
            if id % 100 == 99 {
                for id in id - 99..=id {
                    let Reply::Array(row) = client.reply().unwrap() else { panic!("a row") };
                    let value = match &row[0] {
                        Reply::Array(row) => row[0].clone(),
                        other => other.clone(),
                    };
                    let value = match value {
                        Reply::Integer(n) => n as u64,
                        Reply::Null => 0,
                        other => panic!("{other:?}"),
                    };
                    assert!(value >= floor, "{name}: row {id} is {value}, acknowledged {floor}");
                }
            }
        }
        program.kill();
        std::fs::remove_dir_all(home.join("restored")).unwrap();
    }
    assert!(cold > 6, "{cold} cold files in the backups");
}

/// A restored server begins a new history. Replicas of the old server discard their data and copy
/// the data of the restored server.
#[test]
fn replicas_of_the_old_node_take_the_data_of_the_restored_one() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let master = start(home, "");
    let port = master.port;
    let replica = start_in(home, "replica", "");
    assert_eq!(refusal(&call(&mut replica.client(), &format!("REPLICAOF 127.0.0.1 {port}"))), "");
    let mut client = master.client();
    call(&mut client, &format!("CNT.SET post {FIRST} like 1"));
    assert_eq!(back_up(&mut client, "one"), "ok");
    call(&mut client, &format!("CNT.SET post {FIRST} like 2"));
    let value = |program: &Program| program.ask(&format!("HGET post:{FIRST} like"));
    let is = |n: u64| Reply::BulkString(text(n));
    until("the replica has the write", || value(&replica) == is(2));
    master.kill();
    restored(&home.join("backups/one"), &home.join("restored"), &[]);
    let config = home.join("data.toml");
    let options = ["--config", config.to_str().unwrap(), "--port", &port.to_string()];
    let again = Program::start_as(&[], &home.join("restored"), &options).unwrap();
    let mut client = again.client();
    assert_eq!(call(&mut client, &format!("HGET post:{FIRST} like")), is(1));
    call(&mut client, &format!("CNT.SET post {} like 7", FIRST + 1));
    until("the replica has what was restored", || {
        value(&replica) == is(1)
            && replica.ask(&format!("HGET post:{} like", FIRST + 1)) == is(7)
            && replica.info("master_link_status") == "up"
    });
    let [mine, theirs] = [&again, &replica].map(|program| program.info("master_replid"));
    assert_eq!(mine, theirs);
}

/// Scheduled backups with retention: the newest backups remain, and so do all manual backups.
#[test]
fn backups_are_made_by_a_timetable_and_old_ones_removed() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let settings = "every = 1\nkeep = 2\nkeep_log = 3600\n";
    let program = start(home, settings);
    let mut client = program.client();
    let autos = || {
        let all = backups(home);
        let is_auto = |path: &&PathBuf| path.to_str().unwrap().contains("/auto-");
        all.iter().filter(is_auto).cloned().collect::<Vec<_>>()
    };
    until("the first backup exists", || !autos().is_empty());
    let first = autos().remove(0);
    until("no backup is running", || {
        refusal(&call(&mut client, "BACKUP TO mine")).is_empty()
            || home.join("backups/mine").exists()
    });
    until("the first backup is removed", || !first.exists());
    until("two backups are kept", || autos().len() == 2);
    until("the operator's backup exists", || {
        home.join("backups/mine").join("tidemark.backup").exists()
    });
    // A backup folder belongs to one server.
    let other = start_in(home, "other", "every = 1\n");
    until("the backup fails", || other.info("backup_last_status") == "err");
    assert!(status(&mut other.client(), "last_error").contains("in use by another process"));
    drop(other);
    program.kill();
    // A restart does not reset the schedule: the hour has not passed yet.
    let program = start(home, "every = 3600\nkeep = 2\n");
    let before = autos();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(autos(), before);
    assert_ne!(program.info("backup_last_time"), "0");
    for backup in backups(home) {
        assert!(tidemark(&["check", backup.to_str().unwrap()]).status.success());
    }
}

/// A server with other data, or without data, deletes no backup of another history. A replica
/// without data creates no backup. Retention never deletes manual backups.
#[test]
fn a_timetable_removes_only_its_own_backups_of_the_same_history() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let timetable = "every = 1\nkeep = 2\n";
    let program = start(home, timetable);
    call(&mut program.client(), "HSET post:1 like 5");
    let mut newest = Vec::new();
    until("two backups are there", || {
        newest = backups(home);
        newest.len() == 2
    });
    assert!(program.terminate().success());
    newest = backups(home);
    let kept = newest[1].clone();
    let own =
        home.join("backups").join(format!("{}-mine", kept.file_name().unwrap().to_str().unwrap()));
    assert!(
        std::process::Command::new("cp").arg("-a").args([&kept, &own]).status().unwrap().success()
    );

    let replica = start_in(
        home,
        "replica",
        &format!("{timetable}[replication]\nreplicaof = \"127.0.0.1 1\"\n"),
    );
    let mut client = replica.client();
    until("the backup fails", || status(&mut client, "last_status") == "err");
    assert!(
        status(&mut client, "last_error").contains("has not received its master's data"),
        "the error names the reason"
    );
    assert!(replica.terminate().success());
    let other = start_in(home, "other", timetable);
    until("the node has made a backup", || backups(home).len() >= 5);
    for _ in 0..2 {
        let last = other.info("backup_last_time");
        until("the node has made another backup", || other.info("backup_last_time") != last);
    }
    // Retention deletes old backups only after the new one is complete.
    until("two backups of each history and the operator's remain", || backups(home).len() == 5);
    assert!(other.terminate().success());
    let to = home.join("restored");
    restored(&kept, &to, &[]);
    assert!(own.is_dir());
}

/// `restore` reports missing parts of the log, and `check` reports a folder that is not a backup.
#[test]
fn restore_reports_missing_log_and_check_a_foreign_folder() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let program = start(home, "keep_log = 3600\n");
    let mut client = program.client();
    call(&mut client, "HSET post:1 like 5");
    assert_eq!(back_up(&mut client, "one"), "ok");
    call(&mut client, "HSET post:1 like 6");
    assert!(program.terminate().success());
    let root = home.join("backups");
    let latest = |to: &str, log: &Path| {
        restored(
            &root.join("one"),
            &home.join(to),
            &["--until", "latest", "--log", log.to_str().unwrap()],
        )
    };
    // If `--log` names a folder of backups, `restore` uses the log archive in that folder.
    assert!(!latest("a", &root).contains("note:"));
    let nothing = home.join("nothing");
    std::fs::create_dir(&nothing).unwrap();
    assert!(latest("b", &nothing).contains("note: found no log after the end of the backup"));
    std::fs::create_dir_all(home.join("mounted/lost+found")).unwrap();
    assert!(!latest("mounted", &root).contains("note:"));
    for (dir, like) in [("a", "6"), ("b", "5"), ("mounted", "6")] {
        let program = Program::start(&home.join(dir), "always");
        assert_eq!(
            call(&mut program.client(), "HGET post:1 like"),
            Reply::BulkString(like.into()),
            "{dir}"
        );
    }
    for wrong in [&root, &nothing] {
        let checked = tidemark(&["check", wrong.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(
            !checked.status.success() && said.contains("neither a data folder nor a backup"),
            "{said}"
        );
    }
}
