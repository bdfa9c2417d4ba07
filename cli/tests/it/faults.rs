//! The real binary on faulty disks: syncs or writes fail (strace injects the errors), or the disk
//! is read-only. `full_disk.rs` covers a full disk. Further tests cover SIGTERM under load and the
//! errors about a damaged log.
//!
//! Fault injection needs strace (`tests/clients/setup` installs it). A read-only disk needs
//! permission to mount a tmpfs, possibly in a new namespace. If a prerequisite is missing, a test
//! prints a warning and passes, unless `CI` or `TIDEMARK_ALL_FAULTS` is set. `TIDEMARK_SEED`
//! selects which sync fails first.

use client::{Client, Reply};
use harness::program::{
    FIRST, Likes, Program, SmallDisk, acknowledged, assert_likes_are_refused, call, cannot, check,
    info, like, like_until_accepted, names, refusal, text, tidemark, until,
};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Starts the server with a system call that fails at the calls selected by `when`, counted per
/// thread.
fn with_failing(call: &str, error: &str, when: &str, dir: &Path, fsync: &str) -> Option<Program> {
    with(call, &format!("error={error}:when={when}"), dir, fsync)
}

fn with(call: &str, how: &str, dir: &Path, fsync: &str) -> Option<Program> {
    Some(try_with(call, how, dir, fsync)?.unwrap_or_else(|said| panic!("{said:#?}")))
}

/// Starts the server with a modified system call. If the server exits before it is ready, returns
/// its output as the error.
fn try_with(
    call: &str,
    how: &str,
    dir: &Path,
    fsync: &str,
) -> Option<Result<Program, Vec<String>>> {
    let inject = format!("inject={call}:{how}");
    let trace = format!("trace={call}");
    // With -D, the server is our child, and strace is a grandchild. With --seccomp-bpf, strace adds
    // no cost to other calls, but sends signals only at the first call.
    let filter = if how.starts_with("signal=") { "-f" } else { "--seccomp-bpf" };
    let strace =
        ["strace", "-D", "-f", filter, "-q", "-o", "/dev/null", "-e", &trace, "-e", &inject];
    if Command::new("strace").arg("-V").output().is_err() {
        cannot("requires strace");
        return None;
    }
    Some(Program::start_as(&strace, dir, &["--fsync", fsync]))
}

/// Two clients send likes until each has received `enough` errors, or until the server exits.
fn like_from_two(port: u16, enough: usize, for_at_most: Duration) -> (Likes, usize) {
    let started = Instant::now();
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..2)
            .map(|i| {
                s.spawn(move || {
                    let (mut likes, mut refused) = (Likes::new(), 0);
                    for round in 0.. {
                        likes.extend(like_some(port, 1 + (i * 1000 + round) * 1000, &mut refused));
                        if refused >= enough || started.elapsed() > for_at_most {
                            break;
                        }
                    }
                    (likes, refused)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).fold(
            (Likes::new(), 0),
            |(mut all, sum), (likes, refused)| {
                all.extend(likes);
                (all, sum + refused)
            },
        )
    })
}

fn like_some(port: u16, first_member: u64, refused: &mut usize) -> Likes {
    let mut client = Client::connect(("127.0.0.1", port)).unwrap();
    let mut likes = Likes::new();
    for member in first_member..first_member + 20 {
        let post = FIRST + member % 7 * 4096;
        let reply = client.call(&[b"FEED.ACT", b"like", &text(member), &text(post)]).unwrap();
        assert!(refusal(&reply).is_empty() || refusal(&reply).starts_with("MISCONF "), "{reply:?}");
        *refused += usize::from(!refusal(&reply).is_empty());
        likes.insert((post, member), refusal(&reply).is_empty());
    }
    likes
}

#[test]
fn a_failed_sync_or_write_never_costs_what_was_acknowledged() {
    let seed = seeds::given("TIDEMARK_SEED").unwrap_or(1);
    eprintln!("TIDEMARK_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    // The thread that starts the server makes fewer such calls, so the first call that fails is in
    // the commit thread.
    for (system_call, error, lasts) in [
        ("fdatasync", "EIO", Some(0)),
        ("fdatasync", "EIO", Some(12)),
        ("fdatasync", "EIO", None),
        ("pwrite64", "EIO", Some(12)),
        ("pwrite64", "ENOSPC", Some(12)),
        ("pwrite64", "ENOSPC", None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let first = rng.u32(20..60);
        let when = match lasts {
            Some(more) => format!("{first}..{}", first + more),
            None => format!("{first}+"),
        };
        let what = format!("{system_call} {error} {when}");
        let Some(program) = with_failing(system_call, error, &when, folder.path(), "always") else {
            return;
        };
        // On a busy machine, the call that fails may come only after several seconds.
        let at_most = Duration::from_secs(if lasts == Some(0) { 3 } else { 15 });
        let (mut likes, refused) = like_from_two(program.port, 10, at_most);
        eprintln!("{what}: {} acknowledged, {refused} refused", acknowledged(&likes));
        check(program.port, &likes);
        let mut client = program.client();
        match lasts {
            // A new segment stores the data that the failed segment may have lost, without an error
            // for clients.
            Some(0) => assert_eq!(refused, 0, "{what}"),
            Some(_) => assert!(refused >= 1, "{what}"),
            None => {
                assert_likes_are_refused(&mut client, 5_000_000);
                assert!(refusal(&call(&mut client, "PING")).starts_with("MISCONF "));
            }
        }
        let mut held = None;
        if lasts.is_some() {
            like_until_accepted(&mut client, &mut likes, 20_000_000);
            held = Some(check(program.port, &likes));
        }
        program.kill();
        let again = Program::start(folder.path(), "always");
        let found = check(again.port, &likes);
        if let Some(held) = held {
            assert_eq!(found, held, "{what}: memory and log differ");
        }
        like_until_accepted(&mut again.client(), &mut likes, 30_000_000);
    }
}

/// If the sync of a write fails, the server replaces the pending replies by errors. This would drop
/// invalidation messages among these replies, although the data in memory has changed. The server
/// therefore sends the client an invalidation of all keys.
#[test]
fn a_client_that_tracks_loses_no_invalidation_to_a_failing_disk() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = with_failing("fdatasync", "EIO", "30+", folder.path(), "always") else {
        return;
    };
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", program.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut lines = std::io::BufReader::new(stream.try_clone().unwrap());
    let mut next = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
        line.trim_end().to_owned()
    };
    stream.write_all(b"HELLO 3\r\nCLIENT TRACKING ON\r\n").unwrap();
    while next() != "+OK" {}
    for written in 0..1000 {
        stream.write_all(b"GET post:7:like\r\n").unwrap();
        if next() != "_" {
            assert_eq!(next(), written.to_string(), "the last write");
        }
        stream.write_all(b"INCR post:7:like\r\n").unwrap();
        let answer = next();
        let push = [next(), next(), next()];
        assert_eq!(push[..], [">2", "$10", "invalidate"], "{answer}");
        if answer.starts_with("-MISCONF ") {
            assert_eq!(next(), "_", "all keys");
            return;
        }
        assert_eq!([next(), next(), next()], ["*1", "$11", "post:7:like"], "{answer}");
    }
    panic!("no sync has failed");
}

/// Kills the server at the n-th call that creates, writes, syncs, renames or removes a file: during
/// startup, commits, writes of the manifest, and the removal of old files.
/// `cargo xtask play steps --steps 60` covers each n up to 60.
#[test]
fn killed_at_any_step_it_loses_nothing_acknowledged() {
    let all = seeds::given("TIDEMARK_STEPS");
    let (mut killed, mut snapshots) = (0, 0);
    for (system_call, some) in [
        ("fsync", &[1, 2, 3, 4][..]),
        ("rename", &[1, 2, 9, 15, 16]),
        ("unlink", &[1, 2, 9]),
        ("fdatasync", &[2, 3, 16, 17]),
        ("pwrite64", &[1, 4, 30]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut likes = Likes::new();
        for step in all.map_or(some.to_vec(), |last| (1..=last).collect()) {
            let what = format!("{system_call} {step}");
            let how = format!("signal=KILL:when={step}");
            let Some(started) = try_with(system_call, &how, folder.path(), "always") else {
                return;
            };
            let survived = started.is_ok_and(|program| {
                let Ok(mut client) = Client::connect(("127.0.0.1", program.port)) else {
                    return false;
                };
                // Each start adds new likes, so that each snapshot has data to write and a file to
                // remove.
                for member in 0..12 {
                    let (post, member) =
                        (FIRST + member % 5 * 4096, 1000 * likes.len() as u64 + member);
                    let words: [&[u8]; 4] = [b"FEED.ACT", b"like", &text(member), &text(post)];
                    let said = client.call(&words);
                    likes.insert((post, member), said.is_ok());
                    if said.is_err() || (member % 1000 % 5 == 4 && client.call(&[b"SAVE"]).is_err())
                    {
                        return false;
                    }
                }
                true
            });
            killed += u64::from(!survived);
            snapshots +=
                u64::from(names(folder.path()).iter().any(|name| name.ends_with(".tsnap")));
            let again = Program::start_as(&[], folder.path(), &["--fsync", "always"]);
            let again = again.unwrap_or_else(|said| panic!("{what}: {said:#?}"));
            eprintln!(
                "{what}: {}, {} acknowledged",
                if survived { "not reached" } else { "killed" },
                acknowledged(&likes)
            );
            check(again.port, &likes);
            again.kill();
            let found = tidemark(&["check", folder.path().to_str().unwrap()]);
            assert!(found.status.success(), "{what}: {}", String::from_utf8_lossy(&found.stdout));
        }
    }
    assert!(killed > 12 && snapshots > 8, "{killed} were killed, {snapshots} left a snapshot");
}

#[test]
fn read_only_folder_is_refused_by_name_and_unchanged() {
    let Some(mut disk) = SmallDisk::mount(96) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let program = Program::start(disk.path(), "always");
    let likes = (1..50).map(|member| ((FIRST, member), true)).collect();
    for member in 1..50 {
        call(&mut program.client(), &format!("FEED.ACT like {member} {FIRST}"));
    }
    program.kill();
    let before = names(disk.path());
    disk.remount("ro");
    let new = disk.path().join("new");
    for folder in [disk.path(), &new] {
        let said =
            Program::start_as(&[], folder, &[]).err().expect("the server started").join("\n");
        assert!(
            said.contains(folder.to_str().unwrap()) && said.contains("Read-only file system"),
            "{said}"
        );
    }
    assert!(
        tidemark(&["check", disk.path().to_str().unwrap()]).status.success(),
        "a read needs no write access"
    );
    disk.remount("rw");
    assert_eq!(names(disk.path()), before);
    check(Program::start(disk.path(), "always").port, &likes);
}

/// No client gets a reply before its write is synced. A kill would not show such a fault, because
/// the kernel retains written data.
#[test]
fn a_slow_fsync_delays_only_replies_that_need_it() {
    const SYNC: Duration = Duration::from_millis(400);
    for fsync in ["always", "everysec", "no"] {
        let folder = tempfile::tempdir().unwrap();
        let slow = format!("delay_enter={}", SYNC.as_micros());
        let Some(program) = with("fdatasync", &slow, folder.path(), fsync) else { return };
        let took = |words: &str| {
            let mut client = program.client();
            let began = Instant::now();
            let reply = call(&mut client, words);
            assert_eq!(refusal(&reply), "", "{words}");
            began.elapsed()
        };
        let over = std::sync::atomic::AtomicBool::new(false);
        let (likes, mut pages) = std::thread::scope(|s| {
            let reader = s.spawn(|| {
                let mut pages = vec![];
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    pages.push(took(&format!("FEED.GET home 1 {}", FIRST + 4096)));
                    std::thread::sleep(Duration::from_millis(10));
                }
                pages
            });
            // Measure sequential likes, concurrent likes, and repetitions of likes that are still
            // being synced.
            let one = |member: u64| took(&format!("FEED.ACT like {member} {FIRST}"));
            let mut likes: Vec<Duration> = (1..4).map(one).collect();
            let some: Vec<_> = [11, 12, 12, 13].map(|member| s.spawn(move || one(member))).into();
            likes.extend(some.into_iter().map(|like| like.join().unwrap()));
            likes.push(took(&format!("CNT.INCRBY post {FIRST} like 1")));
            likes.push(took(&format!("TM.SPACE ALTER post ADD share{fsync}:6")));
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            (likes, reader.join().unwrap())
        });
        let (least, most) = (likes.iter().min().unwrap(), likes.iter().max().unwrap());
        if fsync == "always" {
            assert!(*least >= SYNC, "acknowledged before it was synced: {likes:?}");
            pages.sort_unstable();
            assert!(
                pages.len() > 40 && pages[pages.len() / 2] < SYNC / 4,
                "pages of other posts waited: {pages:?}"
            );
        } else {
            assert!(*most < SYNC * 3 && *least < SYNC / 4, "{fsync} waited for a sync: {likes:?}");
        }
        // WAITAOF waits for the sync under every policy.
        call(&mut program.client(), &format!("CNT.INCRBY post {FIRST} like 1"));
        assert!(fsync == "always" || took("WAITAOF 1 0 60000") >= SYNC / 2, "{fsync}: WAITAOF");
    }
}

/// The server's log output goes to a pipe without a reader.
#[test]
fn a_server_that_cannot_write_its_log_lines_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let started =
        Program::start_until(&[], folder.path(), &["--fsync", "always"], "ready to accept");
    let (program, pipe) = started.unwrap_or_else(|said| panic!("{said:#?}"));
    drop(pipe);
    let mut client = program.client();
    for member in 0..3 {
        call(&mut client, &format!("FEED.ACT like {member} {FIRST}"));
        assert_eq!(call(&mut client, "SAVE"), Reply::SimpleString(b"OK".to_vec()));
    }
    assert!(program.terminate().success());
}

/// Returns the prefix of a command line that delays each read by a second. Returns `None`, with a
/// warning, if strace is missing.
fn slow_disk() -> Option<Vec<&'static str>> {
    if Command::new("strace").arg("-V").output().is_err() {
        cannot("requires strace");
        return None;
    }
    let inject = "inject=pread64:delay_enter=1000000";
    let quiet = ["strace", "-D", "-f", "--seccomp-bpf", "-q", "-o", "/dev/null"];
    Some([&quiet[..], &["-e", "trace=pread64", "-e", inject]].concat())
}

#[test]
fn a_server_that_loads_is_stopped_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "always");
    let mut likes = Likes::new();
    like_until_accepted(&mut program.client(), &mut likes, 1);
    assert!(program.terminate().success());
    let Some(slowly) = slow_disk() else { return };
    for how in ["", "SHUTDOWN", "SHUTDOWN NOSAVE"] {
        let started = Program::start_until(&slowly, folder.path(), &[], "listening on");
        let (mut program, mut said) = started.unwrap_or_else(|said| panic!("{said:#?}"));
        if how.is_empty() {
            program.sigterm();
        } else {
            let words: Vec<&[u8]> = how.split(' ').map(str::as_bytes).collect();
            assert!(
                program.client().call(&words).is_err(),
                "the server closed the connection without a reply"
            );
        }
        assert!(program.child.wait().unwrap().success());
        assert!(
            said.all(|line| !line.unwrap().contains("ready to accept")),
            "{how}: the server was not loading, or continued"
        );
    }
    check(Program::start(folder.path(), "always").port, &likes);
}

/// Nodes that start at the same time: a master queries the other nodes before it accepts writes,
/// and a node that is still loading already replies to such queries. A topology change waits until
/// the node has loaded its data.
#[test]
fn a_node_that_loads_says_whether_it_knows_a_later_topology() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let start = |at: usize, port: u16, under: &[&str], until: &str| {
        let file = folders[at].path().join("tidemark.toml");
        std::fs::write(&file, "[cluster]\nenabled = true\n").unwrap();
        let options = ["--config", file.to_str().unwrap(), "--port", &port.to_string()];
        let started =
            Program::start_until(under, &folders[at].path().join("data"), &options, until);
        started.unwrap_or_else(|said| panic!("{said:#?}"))
    };
    let nodes = [0, 1].map(|at| start(at, 0, &[], "ready to accept"));
    let ports = [nodes[0].0.port, nodes[1].0.port];
    let ids = ["a".repeat(40), "b".repeat(40)];
    let topology = |slots: [&str; 2]| {
        let line =
            |at: usize| format!("{} 127.0.0.1 {} master - {}", ids[at], ports[at], slots[at]);
        format!("{}\n{}", line(0), line(1))
    };
    let (now, later) = (topology(["0-8191", "8192-16383"]), topology(["0-99", "100-16383"]));
    let ask = |client: &mut Client, words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        client.call(&words).unwrap()
    };
    let ok = Reply::SimpleString(b"OK".to_vec());
    for (at, (node, _)) in nodes.iter().enumerate() {
        let mut client = node.client();
        assert_eq!(ask(&mut client, &["CLUSTERX", "SETNODEID", &ids[at]]), ok);
        assert_eq!(ask(&mut client, &["CLUSTERX", "SETNODES", &now, "3"]), ok);
        // Send likes for posts of both shards.
        for id in 1000..1040 {
            ask(&mut client, &["FEED.ACT", "like", "7", &id.to_string()]);
        }
    }
    nodes.into_iter().for_each(|(node, _)| assert!(node.terminate().success()));

    let Some(slowly) = slow_disk() else { return };
    let (slow, _said) = start(1, ports[1], &slowly, "listening on");
    let (quick, _said) = start(0, ports[0], &[], "ready to accept");
    let mut client = quick.client();
    until("the fast client writes", || info(&mut client, "repl_fenced") == "0");
    let mut loading = slow.client();
    assert!(refusal(&ask(&mut loading, &["PING"])).starts_with("LOADING "));
    let mut told = |text: &str, version: &str, option: &[&str]| {
        let words = [&["CLUSTERX", "SETNODES", text, version], option].concat();
        ask(&mut loading, &words)
    };
    assert_eq!(told(&now, "3", &["CHECK"]), ok);
    assert_eq!(told(&later, "4", &["CHECK"]), ok);
    for refused in [told(&later, "3", &["CHECK"]), told(&now, "2", &["CHECK"])] {
        assert!(refusal(&refused).starts_with("ERR Invalid cluster version"), "{refused:?}");
    }
    for option in [&[][..], &["FORCE"], &["HANDOVER"]] {
        let refused = told(&later, "4", option);
        assert!(refusal(&refused).starts_with("LOADING "), "{refused:?}");
    }
    assert!(
        refusal(&ask(&mut loading, &["PING"])).starts_with("LOADING "),
        "the server has loaded too early"
    );
}

/// The log contains all data of the snapshot, so a shutdown does not wait for the snapshot.
#[test]
fn a_snapshot_that_is_being_written_is_given_up_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let inject = "inject=fdatasync:delay_enter=300000";
    let slowly = [
        "strace",
        "-D",
        "-f",
        "--seccomp-bpf",
        "-q",
        "-o",
        "/dev/null",
        "-e",
        "trace=fdatasync",
        "-e",
        inject,
    ];
    if Command::new("strace").arg("-V").output().is_err() {
        return cannot("requires strace");
    }
    let started =
        Program::start_until(&slowly, folder.path(), &["--fsync", "always"], "ready to accept");
    let (mut program, said) = started.unwrap_or_else(|said| panic!("{said:#?}"));
    let mut likes = Likes::new();
    let mut client = program.client();
    like_until_accepted(&mut client, &mut likes, 1);
    assert_eq!(refusal(&call(&mut client, "BGSAVE")), "");
    assert_eq!(info(&mut client, "rdb_bgsave_in_progress"), "1");
    program.sigterm();
    assert!(program.child.wait().unwrap().success());
    let said: Vec<String> = said.map(Result::unwrap).collect();
    assert!(said.iter().any(|line| line.contains("snapshot cancelled")), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("the log is complete")), "{said:#?}");
    assert!(
        names(folder.path()).iter().all(|name| !name.starts_with("snap-")),
        "{:?}",
        names(folder.path())
    );
    check(Program::start(folder.path(), "always").port, &likes);
}

/// Runs `tidemark check` on the folder of a server that publishes new manifests and deletes the
/// files of old manifests.
#[test]
fn a_folder_in_use_is_not_called_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    writeln!(&config, "[durability]\nkeep_log = 0").unwrap();
    let options = ["--fsync", "no", "--config", config.path().to_str().unwrap()];
    let program =
        Program::start_as(&[], folder.path(), &options).unwrap_or_else(|said| panic!("{said:#?}"));
    let mut client = program.client();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for member in 0.. {
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                call(&mut client, &format!("FEED.ACT like {member} {FIRST}"));
                call(&mut client, "SAVE");
            }
        });
        let damaged = (0..60).find_map(|_| {
            let found = tidemark(&["check", folder.path().to_str().unwrap()]);
            (!found.status.success()).then(|| String::from_utf8_lossy(&found.stdout).into_owned())
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(damaged, None);
    });
}

/// Even if syncs are slow, `everysec` loses at most one second of writes, whether they are unsynced
/// or unwritten.
#[test]
fn a_slow_sync_costs_every_second_no_more_than_its_second() {
    const SYNC: Duration = Duration::from_secs(6);
    let folder = tempfile::tempdir().unwrap();
    // The calls are counted per thread; the first slow call is in the commit thread.
    let slow = format!("delay_enter={}:when=20+", SYNC.as_micros());
    let Some(program) = with("fdatasync", &slow, folder.path(), "everysec") else { return };
    let mut client = program.client();
    let like = format!("HINCRBY post:{FIRST} like 1");
    // Each WAITAOF forces a sync. Repeat until one of them times out.
    let mut acknowledged = 0;
    loop {
        assert_eq!(refusal(&call(&mut client, &like)), "");
        acknowledged += 1;
        if call(&mut client, "WAITAOF 1 0 300") == Reply::Array(vec![Reply::Integer(0); 2]) {
            break;
        }
        assert!(acknowledged < 1000, "no sync was slow");
    }
    let port = program.port;
    let writer = std::thread::spawn(move || {
        let mut client = Client::connect(("127.0.0.1", port)).unwrap();
        let mut times = Vec::new();
        while let Ok(Reply::Integer(_)) =
            client.call(&[b"HINCRBY", format!("post:{FIRST}").as_bytes(), b"like", b"1"])
        {
            times.push(Instant::now());
            std::thread::sleep(Duration::from_millis(5));
        }
        times
    });
    std::thread::sleep(Duration::from_secs(3));
    program.kill();
    let times = writer.join().unwrap();
    let again = Program::start(folder.path(), "everysec");
    let Reply::BulkString(held) = call(&mut again.client(), &format!("HGET post:{FIRST} like"))
    else {
        panic!("the data are lost")
    };
    let held: usize = String::from_utf8(held).unwrap().parse().unwrap();
    let lost = &times[held.saturating_sub(acknowledged).min(times.len())..];
    let span =
        lost.first().map_or(Duration::ZERO, |first| lost[lost.len() - 1].duration_since(*first));
    eprintln!(
        "{} acknowledged during the slow sync, {} lost, in {span:?}",
        times.len(),
        lost.len()
    );
    assert!(
        span < Duration::from_millis(1200),
        "lost {} acknowledged writes of {span:?}",
        lost.len()
    );
}

/// With `always`, no command returns data that a power failure could still lose. Reads of other ids
/// do not wait for the sync.
#[test]
fn what_others_are_shown_is_durable() {
    const SYNC: Duration = Duration::from_millis(800);
    const OTHER: u64 = FIRST + 4096;
    let folder = tempfile::tempdir().unwrap();
    let slow = format!("delay_enter={}", SYNC.as_micros());
    let Some(program) = with("fdatasync", &slow, folder.path(), "always") else { return };
    for id in [FIRST, OTHER] {
        call(&mut program.client(), &format!("FEED.ACT like 1 {id}"));
    }
    let reads = |id: u64| {
        [
            format!("HGET post:{id} like"),
            format!("HGETALL post:{id}"),
            format!("GET post:{id}:like"),
            format!("MGET post:1:like post:{id}:like"),
            format!("CNT.GET post 1 {id}"),
            format!("FEED.GET home 2 1 2 3 {id} 4 5"),
            format!("FEED.GET home 2 1 {id} BINARY"),
            format!("PH.EXISTS liked 2 {id}"),
            format!("SMISMEMBER liked:{id} 7 2"),
            format!("BF.MEXISTS liked:{id} 7 2"),
            format!("EXISTS post:{id}"),
            format!("TYPE post:{id}"),
        ]
    };
    let same =
        [&reads(FIRST)[..], &["SCAN 0", "DBSIZE", "KEYS post:*"].map(str::to_owned)].concat();
    // Send the command in a transaction, or alone.
    let ask = |words: &str| {
        let mut client = program.client();
        if words.ends_with("4 5") {
            call(&mut client, "MULTI");
            call(&mut client, words);
            return call(&mut client, "EXEC");
        }
        call(&mut client, words)
    };
    let (mut kept_back, mut quick) = (0, 0);
    // The changes are a like, a change without a flag, and changes that create and delete rows.
    for change in [
        format!("FEED.ACT like 2 {FIRST}"),
        format!("CNT.INCRBY post {FIRST} like 5"),
        format!("MSET post:{FIRST}:like 9 post:77:like 1"),
        format!("DEL post:{FIRST}"),
    ] {
        let before: Vec<Reply> = same.iter().map(|words| ask(words)).collect();
        let began = Instant::now();
        let ask = |words: &str| (ask(words), began.elapsed());
        let ask = &ask;
        std::thread::scope(|s| {
            let change = &change;
            let writer = s.spawn(move || ask(change));
            // By now the sync has begun, unless the machine is too busy.
            std::thread::sleep(SYNC / 4);
            let others: Vec<_> =
                reads(OTHER).into_iter().map(|words| s.spawn(move || ask(&words))).collect();
            let readers: Vec<_> = same.iter().map(|words| s.spawn(move || ask(words))).collect();
            for ((reader, words), before) in readers.into_iter().zip(&same).zip(&before) {
                let (shown, at) = reader.join().unwrap();
                assert!(
                    at >= SYNC || shown == *before,
                    "{change}: {words} showed {shown:?} after {at:?}"
                );
                kept_back += usize::from(at >= SYNC);
            }
            quick += others
                .into_iter()
                .map(|other| other.join().unwrap())
                .filter(|other| other.1 < SYNC)
                .count();
            let (reply, at) = writer.join().unwrap();
            assert!(refusal(&reply).is_empty() && at >= SYNC, "{change}: {reply:?} after {at:?}");
        });
    }
    assert!(
        kept_back > 2 * same.len(),
        "only {kept_back} of {} replies were delayed",
        4 * same.len()
    );
    assert!(
        quick > 2 * reads(OTHER).len(),
        "only {quick} of {} readers of other rows did not wait",
        4 * reads(OTHER).len()
    );
    // A read does not wait if no write is in progress, or if the policy is `everysec`.
    let took = |words: &str| {
        let began = Instant::now();
        assert_eq!(refusal(&ask(words)), "");
        began.elapsed()
    };
    let read = format!("HGETALL post:{FIRST}");
    assert!(took(&read) < SYNC / 2);
    took("CONFIG SET appendfsync everysec");
    took(&format!("CNT.INCRBY post {FIRST} like 5"));
    assert!(took(&read) < SYNC / 2);
}

#[test]
fn sigterm_under_load_keeps_all_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut likes = Likes::new();
    for round in 0..3 {
        let program = Program::start(folder.path(), "everysec");
        let port = program.port;
        let fresh: Vec<Likes> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..2)
                .map(|i| {
                    s.spawn(move || {
                        like(port, (round * 2 + i) * 1_000_000 + 1, round, |words| {
                            panic!("{words}")
                        })
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(60 + round * 70));
            assert!(program.terminate().success(), "a clean end");
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        fresh.into_iter().for_each(|f| likes.extend(f));
        // Kill the server after a restart, because the earlier shutdown must have saved everything.
        let program = Program::start(folder.path(), "everysec");
        check(program.port, &likes);
        program.kill();
    }
    assert!(acknowledged(&likes) > 300, "the test made too few changes");
}

#[test]
fn a_damaged_log_is_refused_by_name_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "always");
    for member in 0..50 {
        call(&mut program.client(), &format!("FEED.ACT like {member} {FIRST}"));
    }
    assert!(program.terminate().success());
    let dir = folder.path().to_str().unwrap();
    assert!(tidemark(&["check", dir]).status.success());
    let name = names(folder.path()).into_iter().find(|n| n.starts_with("log-")).unwrap();
    let path = folder.path().join(&name);
    let mut bytes = std::fs::read(&path).unwrap();
    // Damage the log within the likes, which follow the long batch of the catalogue.
    let at = bytes.len() - bytes.len() / 8;
    bytes[at] ^= 0x10;
    std::fs::write(&path, &bytes).unwrap();

    let said =
        Program::start_as(&[], folder.path(), &[]).err().expect("the server started").join("\n");
    let offset = |words: &str| {
        let numbers =
            words.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<usize>().ok());
        numbers.into_iter().any(|n| n <= at && n > at - 200)
    };
    assert!(said.contains(&name) && offset(&said) && said.contains("tidemark check"), "{said}");
    let found = tidemark(&["check", dir]);
    let words = String::from_utf8_lossy(&found.stdout);
    assert_eq!(found.status.code(), Some(1));
    assert!(words.contains("DAMAGE") && words.contains(&name) && offset(&words), "{words}");
    let printed = tidemark(&["dump", path.to_str().unwrap()]);
    let words = String::from_utf8_lossy(&printed.stdout);
    assert!(words.lines().count() > 10, "the batches before the damage are printed: {words}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "the file was changed");
}

/// A node must not misread the address of its master. Otherwise it would replace its data by the
/// data of another node.
#[test]
fn a_damaged_role_is_refused_by_name_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "always");
    assert_eq!(refusal(&call(&mut program.client(), "REPLICAOF 127.0.0.1 17")), "");
    program.kill();
    let check = || tidemark(&["check", folder.path().to_str().unwrap()]);
    let said = String::from_utf8(check().stdout).unwrap();
    assert!(
        check().status.success() && said.contains("tidemark.role: a replica of 127.0.0.1 17\n"),
        "{said}"
    );
    let path = folder.path().join("tidemark.role");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace(" 17\n", " 16\n")).unwrap();
    let said =
        Program::start_as(&[], folder.path(), &[]).err().expect("the server started").join("\n");
    assert!(said.contains("tidemark.role is damaged"), "{said}");
    let said = String::from_utf8(check().stdout).unwrap();
    assert!(!check().status.success() && said.contains("DAMAGE  tidemark.role"), "{said}");
    std::fs::write(&path, text).unwrap();
    assert!(Program::start_as(&[], folder.path(), &[]).is_ok());
}

/// With `always`, a replica receives only synced data. Otherwise the replica could take over with
/// data that the master has lost in the meantime.
#[test]
fn a_replica_gets_nothing_that_its_master_may_lose() {
    const SYNC: Duration = Duration::from_millis(400);
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let slow = format!("delay_enter={}", SYNC.as_micros());
    let Some(master) = with("fdatasync", &slow, folders[0].path(), "always") else { return };
    let replica = Program::start(folders[1].path(), "everysec");
    let mut at_replica = replica.client();
    assert_eq!(
        refusal(&call(&mut at_replica, &format!("REPLICAOF 127.0.0.1 {}", master.port))),
        ""
    );
    let shows = |value: u64| {
        let row = Client::connect(("127.0.0.1", replica.port))
            .and_then(|mut c| c.call(&[b"HGET", b"post:1", b"like"]));
        row.is_ok_and(|row| row == Reply::BulkString(text(value)))
    };
    for value in 1..4 {
        let began = Instant::now();
        std::thread::scope(|s| {
            let writer = s.spawn(|| call(&mut master.client(), "HINCRBY post:1 like 1"));
            until("the replica has the write", || shows(value));
            // The first write must also wait for the link.
            assert!(began.elapsed() >= SYNC, "after {:?}", began.elapsed());
            assert_eq!(writer.join().unwrap(), Reply::Integer(value as i64));
        });
    }
}
