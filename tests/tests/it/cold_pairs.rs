//! Cold flags: spilled pairs are tested, set, cleared, merged and restored like pairs in memory,
//! without false negatives.

use super::cold::{call, damage_file, info, lines, retry_after_oom, was_read_ahead};
use super::replication::{follow, wait_for_sync};
use redis::{Connection, Value, cmd};
use std::collections::BTreeMap;
use tidemark_server::config::{Config, LedgerMode};
use tidemark_tests::{TestServer, eventually};

const FIRST: u64 = 1_000_000;
const LIKES: u64 = 8;

fn small(config: &mut Config) {
    // The space `liked` has no ledger.
    config.existence[0].ledger = LedgerMode::Off;
    config.existence[0].pairs_per_table = 16_000;
    config.existence[0].max_tables = 3;
    config.durability.snapshot_every_s = 0;
}

fn horizon(connection: &mut Connection) -> u64 {
    let text: String = call(connection, "INFO spaces").unwrap();
    let line = text.lines().find(|line| line.starts_with("existence_liked:")).unwrap();
    line.rsplit_once("horizon=").unwrap().1.parse().unwrap()
}

/// Acknowledged state of each pair.
type Truth = BTreeMap<(u64, u64), bool>;

/// Adds likes to the posts `from..to`.
fn fill(connection: &mut Connection, from: u64, to: u64, truth: &mut Truth) {
    fill_some(connection, (from..to).collect(), truth);
}

fn fill_some(connection: &mut Connection, posts: Vec<u64>, truth: &mut Truth) {
    for posts in posts.chunks(100) {
        let mut pipe = redis::pipe();
        for post in posts {
            for like in 0..LIKES {
                let viewer = (post * 7 + like * 13) % 1000;
                pipe.cmd("FEED.ACT").arg("like").arg(viewer).arg(FIRST + post);
                truth.insert((FIRST + post, viewer), true);
            }
        }
        retry_after_oom(&pipe, connection);
    }
}

/// Checks every pair on a page, as a set member and in a filter, and some pairs that were never
/// set.
fn verify(server: &TestServer, truth: &Truth) {
    let mut connection = server.connection();
    let mut by_viewer: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    truth.keys().for_each(|&(id, viewer)| by_viewer.entry(viewer).or_default().push(id));
    for (viewer, ids) in &by_viewer {
        let page: Vec<Vec<i64>> =
            cmd("FEED.GET").arg("home").arg(viewer).arg(ids).query(&mut connection).unwrap();
        let flags: Vec<i64> =
            cmd("PH.EXISTS").arg("liked").arg(viewer).arg(ids).query(&mut connection).unwrap();
        for ((id, row), flag) in ids.iter().zip(page).zip(flags) {
            let wanted = i64::from(truth[&(*id, *viewer)]);
            assert_eq!((row[4], flag), (wanted, wanted), "post {id}, viewer {viewer}");
        }
    }
    let mut pipe = redis::pipe();
    let some: Vec<_> = truth.iter().step_by(97).collect();
    for ((id, viewer), _) in &some {
        pipe.cmd("SISMEMBER").arg(format!("liked:{id}")).arg(viewer);
        pipe.cmd("BF.EXISTS").arg(format!("liked:{id}")).arg(viewer);
        // Also look up a member without likes.
        pipe.cmd("SISMEMBER").arg(format!("liked:{id}")).arg(5_000_000 + viewer);
    }
    let told: Vec<i64> = pipe.query(&mut connection).unwrap();
    let mut wrong = 0;
    for ((_, set), told) in some.iter().zip(told.chunks(3)) {
        assert_eq!(told[..2], [i64::from(**set); 2]);
        wrong += told[2];
    }
    assert!(wrong <= 2, "{wrong} flags that were not set");
}

fn change(connection: &mut Connection, truth: &mut Truth, round: u64) {
    let some: Vec<((u64, u64), bool)> =
        truth.iter().map(|(&pair, &set)| (pair, set)).step_by(61).collect();
    for (index, ((id, viewer), set)) in (0u64..).zip(some) {
        let done: i64 = match (set, index % 3) {
            (true, 0) => {
                call::<Vec<i64>>(connection, &format!("FEED.UNDO like {viewer} {id}")).unwrap()[0]
            }
            (true, 1) => call(connection, &format!("SREM liked:{id} {viewer}")).unwrap(),
            // A repeated like has no effect.
            (true, _) => {
                1 - call::<Vec<i64>>(connection, &format!("FEED.ACT like {viewer} {id}")).unwrap()
                    [0]
            }
            (false, _) => call(connection, &format!("BF.ADD liked:{id} {viewer}")).unwrap(),
        };
        assert_eq!(done, 1, "{id} {viewer} {set} {index}");
        truth.insert((id, viewer), !set || index % 3 == 2);
        // Add a like after the table was spilled.
        let late = 10_000 * (round + 1) + index;
        let done: Vec<i64> = call(connection, &format!("FEED.ACT like {late} {id}")).unwrap();
        if done == [1] {
            truth.insert((id, late), true);
        }
    }
}

#[test]
fn spilled_flags_are_asked_for_changed_merged_and_restarted() {
    let mut server = TestServer::with(|config| {
        small(config);
    });
    let mut connection = server.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 0, 6_000, &mut truth);
    // When memory runs short, the oldest tables are spilled and no pair is lost.
    let (mut cold, mut still) = (0, 0);
    eventually("background spills have ended", || {
        let before = std::mem::replace(&mut cold, info(&mut connection, "cold_pairs"));
        still = if before == cold && cold > 5_000 { still + 1 } else { 0 };
        still == 40
    });
    assert_eq!((horizon(&mut connection), info(&mut connection, "spill_failures")), (0, 0));
    // A table may be spilled between prefetching and the lookup, so the worker may have read the
    // disk itself before this point.
    let in_place = info(&mut connection, "cold_reads_in_place");
    verify(&server, &truth);
    assert!(info(&mut connection, "cold_reads") > 1000);
    assert_eq!(info(&mut connection, "cold_reads_in_place"), in_place, "all reads were prefetched");
    for round in 0..3 {
        let mut connection = server.connection();
        let merges = info(&mut connection, "merges");
        change(&mut connection, &mut truth, round);
        verify(&server, &truth);
        assert!(
            info(&mut connection, "overlay_pairs") > 0 || info(&mut connection, "merges") > merges
        );
        match round {
            // The first restart reads the log and cold files, and the second restart also reads a
            // snapshot.
            0 => server = server.restart(),
            1 => {
                let _: Value = call(&mut connection, "SAVE").unwrap();
                change(&mut connection, &mut truth, 7);
                server = server.restart();
            }
            _ => {
                verify(&server.killed(), &truth);
            }
        }
        verify(&server, &truth);
        fill(&mut server.connection(), 6_000 + 1000 * round, 7_000 + 1000 * round, &mut truth);
    }
    let mut connection = server.connection();
    let _: u64 = call(&mut connection, "TM.SPILL liked 100").unwrap();
    // The merge may have happened already.
    assert!(info(&mut connection, "merges") > 0);
    assert_eq!(info(&mut connection, "overlay_pairs"), 0);
    verify(&server, &truth);
    verify(&server.killed(), &truth);
    // Read the location of each range.
    let tables: Vec<BTreeMap<String, Value>> = call(&mut connection, "TM.TABLES liked").unwrap();
    let place = |table: &BTreeMap<String, Value>| {
        redis::from_redis_value::<String>(table["where"].clone()).unwrap()
    };
    let places: Vec<String> = tables.iter().map(place).collect();
    assert!(
        places.len() > 3 && places[..places.len() - 1].iter().all(|place| place == "disk"),
        "{places:?}"
    );
    assert_eq!(places.last().unwrap(), "memory");
    let report = store::check(&store::RealDisk::open(server.folder()).unwrap()).unwrap();
    assert_ne!(report.severity(), store::Severity::Damage, "{:?}", report.findings);
    assert!(
        report.findings.iter().any(|f| f.text.contains("pages of space")),
        "{:?}",
        report.findings
    );
    for space in ["read", "user"] {
        let told =
            call::<Value>(&mut connection, &format!("TM.SPILL {space}")).unwrap_err().to_string();
        assert!(told.contains("spilling is not enabled"), "{told}");
    }
    let told = call::<Value>(&mut connection, "TM.SPILL liked -1").unwrap_err().to_string();
    assert!(told.contains("Invalid number of tables '-1'"), "{told}");
}

/// Late likes of cold tables wait in memory for a merge. Such likes are accepted even if the memory
/// limit leaves space for only the newest table.
#[test]
fn late_likes_wait_for_merges_and_are_not_refused() {
    for (posts, limit) in [(6_000, 0), (1_500, 14 * 4096)] {
        let server = TestServer::with(|config| {
            small(config);
            config.existence[0].memory_limit_bytes = limit;
        });
        let mut connection = server.connection();
        let mut truth = Truth::new();
        fill(&mut connection, 0, posts, &mut truth);
        eventually("the oldest tables are on disk", || info(&mut connection, "cold_pairs") > posts);
        let merges = info(&mut connection, "merges");
        // Add many more late likes than memory can hold, for a few posts of the oldest table.
        for viewers in (10_000u64..20_000).collect::<Vec<_>>().chunks(500) {
            let mut pipe = redis::pipe();
            for viewer in viewers {
                let post = FIRST + viewer % 10;
                pipe.cmd("FEED.ACT").arg("like").arg(viewer).arg(post);
            }
            let done: Vec<Vec<i64>> = pipe.query(&mut connection).expect("a like was rejected");
            for (viewer, done) in viewers.iter().zip(done) {
                if done == [1] {
                    truth.insert((FIRST + viewer % 10, *viewer), true);
                }
            }
        }
        assert!(truth.len() as u64 > posts * LIKES + 9_900, "{} likes", truth.len());
        assert!(info(&mut connection, "merges") > merges + 5);
        assert_eq!(info(&mut connection, "spill_failures"), 0);
        verify(&server, &truth);
    }
}

fn a_cold_id(connection: &mut Connection) -> u64 {
    let tables: Vec<BTreeMap<String, Value>> = call(connection, "TM.TABLES liked").unwrap();
    let number = |table: &BTreeMap<String, Value>, name: &str| {
        redis::from_redis_value::<u64>(table[name].clone()).unwrap()
    };
    let table =
        tables.iter().find(|t| number(t, "extensions") == 0 && number(t, "low") > 0).unwrap();
    assert!(table.contains_key("file"), "{table:?}");
    number(table, "low").max(FIRST)
}

/// A check of a cold flag takes one read of 4 KiB, as counted by the kernel. A repeated check takes
/// no read.
#[test]
fn a_cold_flag_is_one_read() {
    let server = TestServer::with(|config| {
        small(config);
    });
    let mut connection = server.connection();
    fill(&mut connection, 0, 6_000, &mut Truth::new());
    eventually("it spills", || info(&mut connection, "cold_pairs") > 10_000);
    let low = a_cold_id(&mut connection);
    let before = info(&mut connection, "cold_reads");
    let page: Vec<u64> = (low..low + 50).collect();
    let flags: Vec<i64> =
        cmd("PH.EXISTS").arg("liked").arg(777_777).arg(&page).query(&mut connection).unwrap();
    assert!(flags.iter().sum::<i64>() <= 1);
    assert_eq!(info(&mut connection, "cold_reads") - before, 50);
    let _: Value =
        cmd("PH.EXISTS").arg("liked").arg(777_777).arg(&page).query(&mut connection).unwrap();
    assert_eq!(info(&mut connection, "cold_reads") - before, 50, "the pages are cached");
    was_read_ahead(&mut connection);
}

/// A corrupted page makes its flags an error, never "not set".
#[test]
fn a_spoiled_page_is_an_error_and_never_a_no() {
    let server = TestServer::with(|config| {
        small(config);
        // Use a tiny cache, so that pages are read from disk.
        config.spill.cache_bytes = 4096;
    });
    let mut connection = server.connection();
    fill(&mut connection, 0, 6_000, &mut Truth::new());
    let _: u64 = call(&mut connection, "TM.SPILL liked 9").unwrap();
    for entry in std::fs::read_dir(server.folder()).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().ends_with(".tcold") {
            let bytes = std::fs::read(entry.path()).unwrap();
            let pages = u64::from_le_bytes(bytes[72..80].try_into().unwrap());
            (1..=pages).for_each(|page| damage_file(&entry.path(), page * 4096 + 512, 100));
        }
    }
    // The second post is newer than all cold tables.
    let (spoiled, other) = (FIRST, FIRST + 7_000);
    for text in [
        format!("SISMEMBER liked:{spoiled} 5"),
        format!("SADD liked:{spoiled} 5"),
        format!("SREM liked:{spoiled} 5"),
        format!("BF.EXISTS liked:{spoiled} 5"),
        format!("FEED.GET home 5 {spoiled} BINARY"),
    ] {
        let told = format!("{:?}", call::<Value>(&mut connection, &text));
        assert!(told.contains("cannot be read"), "{text}: {told}");
        assert_eq!(
            call::<Vec<i64>>(&mut connection, &format!("PH.EXISTS liked 5 {other}")).unwrap().len(),
            1
        );
    }
    for text in [
        format!("FEED.GET home 5 {other} {spoiled}"),
        format!("PH.EXISTS liked 5 {other} {spoiled}"),
        format!("PH.ADD liked 5 {other} {spoiled}"),
        format!("PH.DEL liked 5 {other} {spoiled}"),
        format!("FEED.ACT like 5 {other} {spoiled}"),
        format!("FEED.UNDO like 5 {other} {spoiled}"),
    ] {
        let told = lines(&server, &text);
        assert!(told.starts_with("*2|"), "{text}: {told}");
        assert_eq!(told.matches("cannot be read").count(), 1, "{text}: {told}");
    }
    assert!(info(&mut connection, "cold_corrupt_blocks") > 0);
}

/// Without space for cold files, the newest table grows until writes are refused with a clear
/// error. No pair is lost, and spilling resumes once there is space.
#[test]
fn pairs_survive_and_spilling_resumes_after_cold_files_are_full() {
    let server = TestServer::with(|config| {
        small(config);
        config.spill.max_bytes = 1;
    });
    let mut connection = server.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 0, 6_000, &mut truth);
    eventually("it tries", || info(&mut connection, "spill_failures") > 0);
    assert_eq!((info(&mut connection, "cold_files"), horizon(&mut connection)), (0, 0));
    // Existing pairs can still be changed.
    change(&mut connection, &mut truth, 3);
    let mut post = FIRST + 6_000;
    let refused = loop {
        let mut ids: Vec<u64> = (post..post + 20).collect();
        let mut told = cmd("BF.ADD").arg(format!("liked:{post}")).arg(1).exec(&mut connection);
        if told.is_ok() {
            let mut pipe = redis::pipe();
            ids.iter().for_each(|id| {
                (2..500).for_each(|viewer| {
                    _ = pipe.cmd("BF.ADD").arg(format!("liked:{id}")).arg(viewer)
                })
            });
            told = pipe.exec(&mut connection);
        }
        if let Err(error) = told {
            break error.to_string();
        }
        // A refused pipeline may have been partly executed, so only fully acknowledged pipelines
        // count.
        ids.retain(|id| id % 7 == 0);
        truth.extend(ids.iter().flat_map(|id| (2..500).map(|viewer| ((*id, viewer), true))));
        post += 20;
        assert!(post < FIRST + 8_000, "no write was rejected");
    };
    assert!(refused.contains("OOM") && refused.contains("memory limit"), "{refused}");
    verify(&server, &truth);
    let _: Value = call(&mut connection, "SAVE").unwrap();
    verify(&server.killed(), &truth);
    let _: Value = call(&mut connection, "CONFIG SET spill.max_disk 0").unwrap();
    eventually("it spills", || info(&mut connection, "cold_files") > 0);
    eventually("without an error", || {
        call::<String>(&mut connection, "INFO cold").unwrap().contains("spill_last_status:ok")
    });
    fill(&mut connection, 9_000, 12_000, &mut truth);
    assert_eq!(horizon(&mut connection), 0);
    verify(&server, &truth);
    verify(&server.restart(), &truth);
}

/// A replica receives cold files in a full sync, spills by its own limit, and can be promoted.
#[test]
fn a_replica_has_the_spilled_flags_and_is_promoted() {
    let master = TestServer::with(small);
    let mut connection = master.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 0, 6_000, &mut truth);
    eventually("it spills", || info(&mut connection, "cold_pairs") > 5_000);
    change(&mut connection, &mut truth, 0);
    let _: Value = call(&mut connection, "SAVE").unwrap();
    let replica = TestServer::with(small);
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    assert!(info(&mut replica.connection(), "cold_pairs") > 5_000);
    verify(&replica, &truth);
    let before = info(&mut replica.connection(), "cold_files");
    fill(&mut connection, 6_000, 12_000, &mut truth);
    change(&mut connection, &mut truth, 1);
    wait_for_sync(&master, &replica);
    eventually("the replica spills in the background", || {
        info(&mut replica.connection(), "cold_files") > before
    });
    verify(&replica, &truth);
    let _: Value = call(&mut replica.connection(), "SAVE").unwrap();
    let replica = replica.stopped().started();
    wait_for_sync(&master, &replica);
    verify(&replica, &truth);
    let _: Value = call(&mut replica.connection(), "REPLICAOF NO ONE").unwrap();
    let mut connection = replica.connection();
    let _: i64 = call(&mut connection, "SADD liked:1 1").unwrap();
    change(&mut connection, &mut truth, 2);
    verify(&replica, &truth);
    verify(&replica.restart(), &truth);
}

/// A space switched from spilling back to recycling deletes its cold files.
#[test]
fn a_space_that_recycles_again_lets_its_files_go() {
    let server = TestServer::with(small);
    let mut connection = server.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 0, 6_000, &mut truth);
    eventually("it spills", || info(&mut connection, "cold_files") > 1);
    let _: String = call(&mut connection, "TM.SPACE ALTER liked SET spill no").unwrap();
    fill(&mut connection, 6_000, 12_000, &mut Truth::new());
    eventually("the files are removed", || info(&mut connection, "cold_files") == 0);
    assert!(horizon(&mut connection) > FIRST);
    let old: Option<i64> = call(&mut connection, &format!("SISMEMBER liked:{FIRST} 0")).unwrap();
    assert_eq!(old, None, "the pair is still known");
    let names = std::fs::read_dir(server.folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let cold = names.filter(|name| name.to_string_lossy().contains(".tcold")).count();
    assert_eq!(cold, 0);
    drop(server.restart());
}
