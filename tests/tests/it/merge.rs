//! Filters on the way from one server to another: digest, export, merge. And what clients of sets
//! and filters ask a filter that it cannot know.

use crate::cold::info;
use crate::commands::check;
use crate::replication::{detach, follow, in_step};
use std::collections::HashMap;
use tidemark_server::config::{Config, Fsync};
use tidemark_tests::{TestServer, eventually};

type Maps = Vec<HashMap<String, redis::Value>>;

fn site() -> TestServer {
    TestServer::with(joined)
}

fn joined(config: &mut Config) {
    for existence in &mut config.existence {
        // Tables stay in memory, and are recycled.
        (existence.seed, existence.spill) = (7, false);
    }
    config.durability.fsync = Fsync::Always;
}

/// One whose first table has some twenty blocks.
fn large_site() -> TestServer {
    TestServer::with(|config| {
        joined(config);
        config.existence[0].pairs_per_table <<= 3;
    })
}

fn like(server: &TestServer, members: std::ops::Range<u64>) {
    let mut pipe = redis::pipe();
    for member in members {
        pipe.cmd("PH.ADD").arg("liked").arg(member).arg(member % 500).ignore();
    }
    pipe.query::<()>(&mut server.connection()).unwrap();
}

fn liked(server: &TestServer, members: std::ops::Range<u64>) -> usize {
    let mut pipe = redis::pipe();
    for member in members {
        pipe.cmd("PH.EXISTS").arg("liked").arg(member).arg(member % 500);
    }
    let answers: Vec<Vec<i64>> = pipe.query(&mut server.connection()).unwrap();
    answers.iter().filter(|answer| **answer == [1]).count()
}

fn export(server: &TestServer, blocks: &[usize]) -> Vec<u8> {
    redis::cmd("TM.EXPORT")
        .arg(&["liked", "0"])
        .arg(blocks)
        .query(&mut server.connection())
        .unwrap()
}

/// Which blocks of `there` differ from ours.
fn differing(here: &TestServer, there: &TestServer) -> Vec<usize> {
    let (ours, theirs) = (digest(here), digest(there));
    (0..theirs.len()).filter(|&i| ours.get(i) != theirs.get(i)).collect()
}

fn merge(server: &TestServer, blocks: &[u8]) -> redis::RedisResult<usize> {
    redis::cmd("TM.MERGE").arg("liked").arg(blocks).query(&mut server.connection())
}

fn digest(server: &TestServer) -> Vec<String> {
    let maps: Maps =
        redis::cmd("TM.DIGEST").arg(&["liked", "0"]).query(&mut server.connection()).unwrap();
    redis::from_redis_value_ref(&maps[0]["blocks"]).unwrap()
}

#[test]
fn two_sites_become_one_and_a_crash_does_not_part_them() {
    let (here, there) = (site(), site());
    like(&here, 0..2000);
    like(&there, 0..2000);
    assert_eq!(digest(&here), digest(&there), "the same pairs, the same filters");
    like(&there, 2000..4000);
    assert_ne!(digest(&here), digest(&there));
    // Liked on both sides, and unliked on one: whatever happens to this pair, it happens on both.
    let unlike = |server: &TestServer, member: u64| {
        redis::cmd("PH.DEL")
            .arg("liked")
            .arg(member)
            .arg(member % 500)
            .query::<()>(&mut server.connection())
            .unwrap();
    };
    unlike(&here, 7);
    unlike(&there, 3999);
    let blocks = differing(&here, &there);
    let table = export(&there, &blocks);
    assert!(liked(&here, 2000..4000) < 20);
    assert_eq!(merge(&here, &table), Ok(blocks.len()));
    assert_eq!(
        (liked(&here, 7..8), liked(&here, 3999..4000)),
        (1, 0),
        "set on either side is set; revoked on both is not"
    );
    like(&there, 3999..4000);
    like(&here, 3999..4000);
    assert_eq!(liked(&here, 0..4000), 4000);
    assert!(differing(&here, &there).is_empty());
    // Acknowledged is durable.
    assert_eq!(liked(&here.killed(), 0..4000), 4000);
    like(&here, 4000..4100);
    let here = here.restart();
    assert_eq!(liked(&here, 0..4100), 4100);
    redis::cmd("SAVE").query::<()>(&mut here.connection()).unwrap();
    assert_eq!(liked(&here.killed(), 0..4100), 4100);
}

#[test]
fn a_strangers_table_does_no_harm() {
    let (here, there) = (site(), site());
    like(&here, 0..300);
    like(&there, 300..600);
    let table = export(&there, &[0]);
    let before = digest(&here);
    let c = &mut here.connection();
    let mut refused = |space: &str, bytes: &[u8]| {
        let error = redis::cmd("TM.MERGE").arg(space).arg(bytes).query::<String>(c).unwrap_err();
        error.to_string()
    };
    assert!(refused("nope", &table).contains("no such existence space 'nope'"));
    assert!(refused("post", &table).contains("no such existence space 'post'"));
    assert!(refused("liked", b"").contains("too early"));
    assert!(refused("liked", b"x").contains("too early"));
    assert!(refused("liked", b"TMPHBLK\x01").contains("too early"));
    assert!(refused("liked", &table[..table.len() - 1]).contains("too early"));
    assert!(refused("liked", &[b'x'; 72]).contains("no block"));
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..300 {
        let mut damaged = table.clone();
        for _ in 0..rng.usize(1..4) {
            // The header is short, and decides most.
            let at = if rng.bool() { rng.usize(0..200) } else { rng.usize(0..damaged.len()) };
            damaged[at] ^= 1 << rng.u8(0..8);
        }
        if damaged != table {
            refused("liked", &damaged);
        }
    }
    assert_eq!(digest(&here), before);
    // Another seed: its bits say nothing here.
    let other = TestServer::start();
    like(&other, 0..300);
    let error = redis::cmd("TM.MERGE")
        .arg("liked")
        .arg(export(&other, &[0]))
        .query::<String>(c)
        .unwrap_err();
    assert!(error.to_string().contains("not merged"), "{error}");
    assert_eq!(digest(&here), before);
    let error = redis::cmd("TM.EXPORT").arg(&["liked", "7", "0"]).query::<Vec<u8>>(c).unwrap_err();
    assert!(error.to_string().contains("no table of 'liked' begins at 7"), "{error}");
}

/// A site that was restored from an old copy gets what it lacks from the other one: the blocks that
/// differ, and no more.
#[test]
fn what_an_old_copy_lacks_is_repaired_by_the_blocks_that_differ() {
    let there = large_site();
    like(&there, 0..20_000);
    redis::cmd("SAVE").query::<()>(&mut there.connection()).unwrap();
    let here = there.killed();
    assert!(differing(&here, &there).is_empty());
    like(&there, 20_000..20_003);
    let (all, blocks) = (digest(&there).len(), differing(&here, &there));
    assert!(all >= 16 && (1..=3).contains(&blocks.len()), "{blocks:?} of {all}");
    let repair = export(&there, &blocks);
    assert!(repair.len() < 4 * (66 << 10));
    assert_eq!(merge(&here, &repair), Ok(blocks.len()));
    assert_eq!(digest(&here), digest(&there));
    assert_eq!(liked(&here, 0..20_003), 20_003);
    // One bit of one block is lost on the way: that block is refused, and named; those before it
    // are in.
    like(&there, 20_003..20_400);
    let blocks = differing(&here, &there);
    let mut repair = export(&there, &blocks);
    let (whole, tail) = (repair.len(), 8);
    repair[whole - tail - 100] ^= 1;
    let error = merge(&here, &repair).unwrap_err().to_string();
    assert!(error.contains(&format!("block {} was not merged", blocks.len() - 1)), "{error}");
    let left = differing(&here, &there);
    assert_eq!(left, blocks[blocks.len() - 1..]);
    assert_eq!(merge(&here, &export(&there, &left)), Ok(1));
    let here = here.killed();
    assert_eq!(digest(&here), digest(&there));
    assert_eq!(liked(&here, 0..20_400), 20_400);
}

/// A site that has nothing, or whose ids end earlier, gets them all: after a crash and a roll, too.
/// One that is far behind is told to wait.
#[test]
fn a_site_whose_ids_end_earlier_gets_those_of_the_other() {
    let add = |server: &TestServer, ids: std::ops::Range<u64>| {
        let ids: Vec<u64> = ids.collect();
        redis::cmd("PH.ADD")
            .arg("liked")
            .arg(1)
            .arg(ids)
            .query::<()>(&mut server.connection())
            .unwrap();
    };
    let has = |server: &TestServer, ids: std::ops::Range<u64>| -> Vec<i64> {
        let ids: Vec<u64> = ids.collect();
        redis::cmd("PH.EXISTS")
            .arg("liked")
            .arg(1)
            .arg(ids)
            .query(&mut server.connection())
            .unwrap()
    };
    let (there, behind, empty) = (site(), site(), site());
    add(&there, 1..900);
    add(&behind, 1..200);
    redis::cmd("PH.DEL").arg("liked").arg(1).arg(700).query::<()>(&mut there.connection()).unwrap();
    let mut expected = vec![1; 899];
    expected[700 - 1] = 0;
    let error = merge(&empty, &export(&there, &differing(&empty, &there))).unwrap_err().to_string();
    assert!(error.contains("there are no ids here yet"), "{error}");
    add(&empty, 1..70);
    for here in [behind, empty] {
        merge(&here, &export(&there, &differing(&here, &there))).unwrap();
        let here = here.killed();
        assert_eq!(has(&here, 1..900), expected);
        assert_eq!(redis::cmd("TM.ROLL").arg("liked").query(&mut here.connection()), Ok(1));
        assert_eq!(layout(&here), [0, 900]);
        for here in [here.killed(), here] {
            assert_eq!(has(&here, 1..900), expected, "in the table that was closed");
            let unliked = redis::cmd("PH.DEL")
                .arg("liked")
                .arg(1)
                .arg(899)
                .query::<Vec<i64>>(&mut here.connection());
            assert_eq!((unliked, has(&here, 899..900)), (Ok(vec![1]), vec![0]));
        }
    }
    let (there, here) = (site(), site());
    add(&there, 1_000_000..1_000_200);
    add(&here, 1..200);
    let error = merge(&here, &export(&there, &differing(&here, &there))).unwrap_err().to_string();
    assert!(
        error.contains("its ids reach up to 1000199, far ahead of ours, which end at 199"),
        "{error}"
    );
}

/// What a master merges is in its log, so its replicas merge it, too; also one that comes later,
/// and one that was away.
#[test]
fn replicas_get_what_their_master_merges() {
    let (there, master, replica) = (site(), site(), site());
    follow(&replica, &master);
    like(&master, 0..1000);
    like(&there, 500..2000);
    redis::cmd("PH.DEL")
        .arg("liked")
        .arg(1500)
        .arg(0)
        .query::<()>(&mut there.connection())
        .unwrap();
    let table = export(&there, &differing(&master, &there));
    in_step(&master, &replica);
    let error = merge(&replica, &table).unwrap_err().to_string();
    assert!(error.to_lowercase().contains("read only replica"), "{error}");
    let away = replica.killed();
    assert!(merge(&master, &table).unwrap() > 0);
    in_step(&master, &replica);
    for server in [&master, &replica] {
        assert_eq!(liked(server, 0..2000), 1999);
        assert_eq!(liked(server, 1500..1501), 0, "revoked where it was set");
    }
    assert_eq!(digest(&replica), digest(&master));
    let replica = replica.restart();
    assert_eq!(digest(&replica), digest(&master));
    in_step(&master, &away);
    assert_eq!(digest(&away), digest(&master));
    // Snapshot and all.
    let late = site();
    redis::cmd("SAVE").query::<()>(&mut master.connection()).unwrap();
    follow(&late, &master);
    in_step(&master, &late);
    assert_eq!(digest(&late), digest(&master));
}

/// On the master, and on a replica that has the blocks by its log, by a snapshot and by a copy.
#[test]
fn what_was_merged_moves_to_the_disk_when_the_space_is_told_to_spill() {
    let tables = |config: &mut Config| {
        joined(config);
        let existence = &mut config.existence[0];
        (existence.spill, existence.max_tables, existence.pairs_per_table) = (false, 16, 16_000);
        config.durability.snapshot_every_s = 0;
    };
    let [master, there, replica] = [(); 3].map(|()| TestServer::with(tables));
    follow(&replica, &master);
    follow(&there, &master);
    let like = |server: &TestServer, viewer: u64, ids: std::ops::Range<u64>| {
        let ids: Vec<u64> = ids.collect();
        for ids in ids.chunks(1000) {
            redis::cmd("PH.ADD")
                .arg("liked")
                .arg(viewer)
                .arg(ids)
                .query::<()>(&mut server.connection())
                .unwrap();
        }
    };
    const IDS: u64 = 30_000;
    like(&master, 1, 1..IDS);
    like(&master, 2, 1..IDS);
    in_step(&master, &there);
    in_step(&master, &replica);
    let cold = |server: &TestServer| info(&mut server.connection(), "cold_pairs");
    assert_eq!(cold(&master), 0);
    detach(&there);
    like(&there, 3, 1..IDS);
    let blocks: Vec<u64> = (0..200).collect();
    for low in layout(&master) {
        let exported = redis::cmd("TM.EXPORT")
            .arg("liked")
            .arg(low)
            .arg(&blocks)
            .query(&mut there.connection());
        let exported: Vec<u8> = exported.unwrap();
        assert!(merge(&master, &exported).unwrap() > 0);
    }
    let lost = |server: &TestServer| {
        let mut lost = 0;
        for viewer in 1..=3 {
            for first in (1..IDS).step_by(1000) {
                let ids: Vec<u64> = (first..IDS.min(first + 1000)).collect();
                let found = redis::cmd("PH.EXISTS")
                    .arg("liked")
                    .arg(viewer)
                    .arg(ids)
                    .query(&mut server.connection());
                let found: Vec<i64> = found.unwrap();
                lost += found.iter().filter(|found| **found != 1).count();
            }
        }
        lost
    };
    assert_eq!(lost(&master), 0);
    in_step(&master, &replica);
    assert_eq!(lost(&replica), 0, "at the replica");
    // From its log and its files; from a snapshot; from a copy of the moment.
    let replica = replica.restart();
    assert_eq!(lost(&replica), 0, "at the replica, started again");
    redis::cmd("SAVE").query::<()>(&mut replica.connection()).unwrap();
    let replica = replica.killed().restart();
    assert_eq!(lost(&replica), 0, "at the replica, from a snapshot");
    redis::cmd("TM.SPACE")
        .arg(&["ALTER", "liked", "SET", "spill", "yes", "max_tables", "2"])
        .query::<()>(&mut master.connection())
        .unwrap();
    for server in [&master, &replica] {
        eventually("the tables move to the disk", || cold(server) > 10_000);
        assert_eq!(lost(server), 0, "as they move");
        assert_eq!(info(&mut server.connection(), "spill_failures"), 0);
    }
    let replica = replica.restart();
    assert_eq!(lost(&replica), 0, "at the replica, from its disk");
    let master = master.restart();
    assert_eq!(lost(&master), 0, "at the next one");
}

/// Ids leap ahead, tables are closed, what was one parts and is joined again: a replica, one behind
/// it, one that comes later, and the master after a kill have the same tables, bit by bit.
#[test]
fn the_tables_of_a_log_are_the_same_everywhere() {
    let small = || {
        TestServer::with(|config| {
            joined(config);
            config.existence[0].pairs_per_table = 64_000;
        })
    };
    let (master, replica, behind, there) = (small(), small(), small(), small());
    follow(&replica, &master);
    follow(&behind, &replica);
    follow(&there, &master);
    let mut rng = fastrand::Rng::with_seed(4);
    let mut model = std::collections::BTreeMap::new();
    let mut now = 1000;
    let mut some = |server: &TestServer, viewer: u64, now: &mut u64| {
        let mut pipe = redis::pipe();
        for _ in 0..300 {
            *now += rng.u64(0..30);
            let id =
                if rng.u32(0..6) == 0 { *now + rng.u64(900..4000) } else { *now - rng.u64(0..900) };
            pipe.cmd("PH.ADD").arg("liked").arg(viewer).arg(id).ignore();
            model.insert((viewer, id), 1);
        }
        // Of those before, some are taken back.
        if let Some((&(viewer, id), set)) = model.iter_mut().nth(rng.usize(0..300)) {
            pipe.cmd("PH.DEL").arg("liked").arg(viewer).arg(id).ignore();
            *set = 0;
        }
        pipe.query::<()>(&mut server.connection()).unwrap();
    };
    for round in 0..6 {
        some(&master, round, &mut now);
        redis::cmd("TM.ROLL").arg("liked").query::<()>(&mut master.connection()).unwrap();
        some(&master, 100 + round, &mut now);
    }
    in_step(&master, &there);
    detach(&there);
    std::thread::sleep(std::time::Duration::from_millis(200));
    let mut parted = now - 12_000;
    some(&there, 1000, &mut parted);
    some(&master, 2000, &mut now);
    assert_eq!(layout(&there), layout(&master));
    for low in layout(&master) {
        let blocks = redis::cmd("TM.EXPORT")
            .arg("liked")
            .arg(low)
            .arg(&[0, 1, 2, 3])
            .query(&mut there.connection());
        let blocks: Vec<u8> = blocks.unwrap();
        assert!(merge(&master, &blocks).unwrap() > 0);
    }
    let late = small();
    redis::cmd("SAVE").query::<()>(&mut master.connection()).unwrap();
    some(&master, 2001, &mut now);
    follow(&late, &master);
    [&replica, &behind, &late].into_iter().for_each(|server| in_step(&master, server));
    let tables = tables(&master);
    let master = master.killed();
    for server in [&master, &replica, &behind, &late] {
        assert_eq!(self::tables(server), tables);
        let mut pipe = redis::pipe();
        model.keys().for_each(|(viewer, id)| {
            pipe.cmd("PH.EXISTS").arg("liked").arg(viewer).arg(id);
        });
        let answers: Vec<Vec<i64>> = pipe.query(&mut server.connection()).unwrap();
        let answers: Vec<i64> = answers.into_iter().map(|answer| answer[0]).collect();
        // What was unliked at the master before they parted may be set at the other site: it is
        // then.
        let lost = model.values().zip(&answers).filter(|(set, found)| **set > **found).count();
        let back = model.values().zip(&answers).filter(|(set, found)| **set < **found).count();
        assert!(lost == 0 && back <= 3, "{lost} lost, {back} back of {}", answers.len());
    }
}

/// Where tables begin, how large they are, and what is in them.
fn tables(server: &TestServer) -> Vec<(u64, usize, String)> {
    let maps: Maps = redis::cmd("TM.DIGEST").arg("liked").query(&mut server.connection()).unwrap();
    let text = |value: &redis::Value| redis::from_redis_value_ref(value).unwrap();
    let numbers = |map: &HashMap<String, redis::Value>| {
        (
            redis::from_redis_value_ref(&map["low"]).unwrap(),
            redis::from_redis_value_ref(&map["pages"]).unwrap(),
        )
    };
    maps.iter().map(|map| (numbers(map).0, numbers(map).1, text(&map["digest"]))).collect()
}

#[test]
fn blocks_of_a_table_that_was_recycled_or_never_was() {
    let small = || {
        TestServer::with(|config| {
            joined(config);
            (config.existence[0].pairs_per_table, config.existence[0].max_tables) = (64_000, 2);
        })
    };
    let (here, there) = (small(), small());
    like(&here, 0..500);
    like(&there, 300..800);
    let table = export(&there, &[0]);
    let roll = |server: &TestServer, ids: std::ops::Range<u64>| {
        let mut pipe = redis::pipe();
        ids.for_each(|id| {
            pipe.cmd("PH.ADD").arg("liked").arg(1).arg(id).ignore();
        });
        pipe.cmd("TM.ROLL").arg("liked").ignore();
        pipe.query::<()>(&mut server.connection()).unwrap();
    };
    let mut id = 1000;
    while redis::cmd("PH.EXISTS")
        .arg(&["liked", "1", "1"])
        .query::<Vec<Option<i64>>>(&mut here.connection())
        .unwrap()
        != [None]
    {
        roll(&here, id..id + 100);
        id += 1000;
        assert!(id < 100_000, "the first table is recycled");
    }
    let before = layout(&here);
    let error = merge(&here, &table).unwrap_err().to_string();
    assert!(error.contains("no table covers the ids 0..="), "{error}");
    assert_eq!(layout(&here), before);
    let error = merge(&there, &export_at(&here, before[0])).unwrap_err().to_string();
    assert!(error.contains("another size"), "a table that starts inside one of ours: {error}");
    // A log that tells of blocks of a table that is gone by now.
    let here = small();
    like(&here, 0..500);
    assert_eq!(merge(&here, &table), Ok(1));
    let mut id = 1000;
    while layout(&here)[0] == 0 {
        roll(&here, id..id + 100);
        id += 1000;
    }
    let restarted = here.killed();
    assert_eq!(layout(&restarted), layout(&here));
}

/// Where tables begin.
fn layout(server: &TestServer) -> Vec<u64> {
    let maps: Maps = redis::cmd("TM.DIGEST").arg("liked").query(&mut server.connection()).unwrap();
    maps.iter().map(|map| redis::from_redis_value_ref(&map["low"]).unwrap()).collect()
}

fn export_at(server: &TestServer, low: u64) -> Vec<u8> {
    redis::cmd("TM.EXPORT").arg("liked").arg(low).arg(0).query(&mut server.connection()).unwrap()
}

/// The one that is on its way may take as long as the log does; what waits for the log is bounded.
#[test]
fn merges_come_one_at_a_time_and_in_bounded_pieces() {
    let (here, there) = (site(), site());
    like(&here, 0..200);
    like(&there, 0..500);
    let all: Vec<usize> = (0..digest(&there).len()).collect();
    let block = export(&there, &all);
    let many: Vec<usize> = vec![0; 257];
    let error = redis::cmd("TM.EXPORT")
        .arg("liked")
        .arg(0)
        .arg(&many)
        .query::<Vec<u8>>(&mut there.connection());
    assert!(error.unwrap_err().to_string().contains("at most 256 blocks at once"));
    assert_eq!(export(&there, &[9999]), b"", "no such block");
    let error = merge(&here, &block.repeat(256 / all.len() + 1)).unwrap_err().to_string();
    assert!(error.contains("at most 256 blocks at once: those were merged"), "{error}");
    assert_eq!(liked(&here, 0..500), 500);
    // Many at once: each is merged or told to try again, none waits in a queue.
    let merged = std::thread::scope(|scope| {
        let (here, block) = (&here, &block);
        let merges: Vec<_> = (0..8)
            .map(|_| scope.spawn(move || (0..10).map(|_| merge(here, block)).collect()))
            .collect();
        merges
            .into_iter()
            .flat_map(|merges| -> Vec<_> { merges.join().unwrap() })
            .collect::<Vec<_>>()
    });
    let busy =
        |error: &redis::RedisError| error.to_string().contains("another TM.MERGE is on its way");
    assert!(
        merged.iter().all(|merged| *merged == Ok(all.len()) || merged.as_ref().is_err_and(busy)),
        "{merged:?}"
    );
    assert!(merged.iter().any(|merged| merged.is_ok()));
    assert_eq!(liked(&here.killed(), 0..500), 500);
}

#[test]
fn filters_and_sets_under_other_names() {
    let server = TestServer::start();
    let unknowable = "-ERR a filter cannot tell how many or which members one id has: it holds \
                      those of all ids of its table together. Ask for members one by one, keep a \
                      counter for their number (FEED.ACT moves both), and see TM.TABLES for the \
                      table\r\n";
    let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    check(
        &mut server.raw(),
        &[
            ("CF.ADD liked:1 a", ":1\r\n"),
            ("CF.ADD liked:1 a", ":1\r\n"),
            ("CF.ADDNX liked:1 a", ":0\r\n"),
            ("CF.ADDNX liked:1 b", ":1\r\n"),
            ("CF.EXISTS liked:1 a", ":1\r\n"),
            ("CF.MEXISTS liked:1 a b c", "*3\r\n:1\r\n:1\r\n:0\r\n"),
            ("CF.COUNT liked:1 a", ":1\r\n"),
            ("CF.DEL liked:1 a", ":1\r\n"),
            ("CF.COUNT liked:1 a", ":0\r\n"),
            ("CF.DEL liked:1 a", ":0\r\n"),
            ("CF.EXISTS liked:1 a", ":0\r\n"),
            ("CF.ADD post:1 a", wrong_type),
            ("BF.INSERT liked:2 ITEMS a b a", "*3\r\n:1\r\n:1\r\n:0\r\n"),
            (
                "BF.INSERT liked:2 CAPACITY 1000 ERROR 0.01 EXPANSION 2 NOCREATE NONSCALING ITEMS \
                 c",
                "*1\r\n:1\r\n",
            ),
            (
                "BF.INSERT liked:2 ERROR 0.000001 ITEMS c",
                "-ERR the space 'liked' was made for an error rate of 0.0001\r\n",
            ),
            ("BF.INSERT liked:2 ERROR x ITEMS c", "-ERR Bad error rate\r\n"),
            ("BF.INSERT liked:2 CAPACITY x ITEMS c", "-ERR Bad capacity\r\n"),
            (
                "BF.INSERT liked:2 NOCREATE ITEMS",
                "-ERR wrong number of arguments for 'bf.insert' command\r\n",
            ),
            (
                "BF.INSERT liked:2 NOCREATE CAPACITY",
                "-ERR wrong number of arguments for 'bf.insert' command\r\n",
            ),
            ("BF.INSERT liked:2 a b", "-ERR Unknown argument received\r\n"),
            ("BF.RESERVE liked:3 0.01 1000 EXPANSION 2", "+OK\r\n"),
            (
                "BF.RESERVE liked:2 0.00001 1000",
                "-ERR the space 'liked' was made for an error rate of 0.0001\r\n",
            ),
            ("BF.RESERVE liked:2 0.01 x", "-ERR bad capacity\r\n"),
            ("BF.SCANDUMP liked:2 0", unknowable),
            ("BF.LOADCHUNK liked:2 1 x", "-ERR received bad data\r\n"),
            ("SINTERCARD 2 liked:1 liked:2", unknowable),
            ("SINTERCARD 1 liked:1 LIMIT 1", unknowable),
            ("SINTERCARD 0 liked:1", "-ERR numkeys should be greater than 0\r\n"),
            (
                "SINTERCARD 2 liked:1",
                "-ERR Number of keys can't be greater than number of args\r\n",
            ),
            ("SINTERCARD 1 liked:1 LIMIT -1", "-ERR LIMIT can't be negative\r\n"),
            ("SINTERCARD 1 liked:1 liked:2", "-ERR syntax error\r\n"),
            ("SCARD liked:2", unknowable),
            ("SMEMBERS liked:2", unknowable),
            ("SPOP liked:2", unknowable),
            ("SRANDMEMBER liked:2 3", unknowable),
            ("SSCAN liked:2 0", unknowable),
            ("SCARD post:2", wrong_type),
            ("SCARD nope", ":0\r\n"),
        ],
    );
}

/// A table on the disk gets more blocks than may wait in memory: TM.MERGE merges its file in
/// between, and nothing of it is lost by a kill.
#[test]
fn blocks_for_a_table_on_the_disk_are_merged_with_its_file_when_memory_is_full() {
    let site = || {
        TestServer::with(|config| {
            joined(config);
            let existence = &mut config.existence[0];
            (existence.spill, existence.max_tables) = (true, 2);
            existence.pairs_per_table = 1 << 20;
        })
    };
    let (here, there) = (site(), site());
    for server in [&here, &there] {
        like(server, 0..1000);
        let roll = redis::cmd("TM.ROLL").arg("liked").query::<u64>(&mut server.connection());
        assert_eq!(roll, Ok(1));
        // Of the next table.
        let add = redis::cmd("PH.ADD").arg("liked").arg(1).arg(600).clone();
        add.exec(&mut server.connection()).unwrap();
    }
    let spill = redis::cmd("TM.SPILL").arg("liked").query::<u64>(&mut here.connection());
    assert_eq!(spill, Ok(1000));
    like(&there, 0..30_000);
    let blocks: Vec<usize> = (0..digest(&there).len()).collect();
    let merges = info(&mut here.connection(), "merges");
    assert_eq!(merge(&here, &export(&there, &blocks)).unwrap(), blocks.len());
    assert!(info(&mut here.connection(), "merges") > merges, "{} blocks", blocks.len());
    assert_eq!(liked(&here, 0..30_000), 30_000);
    assert_eq!(digest(&here), digest(&there));
    let here = here.killed();
    assert_eq!(liked(&here, 0..30_000), 30_000);
    assert_eq!(digest(&here), digest(&there));
}
