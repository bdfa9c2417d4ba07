//! All spaces share one memory budget according to their need, without per-space settings.

use super::cold::call;
use redis::{Connection, cmd};
use tidemark_tests::{TestServer, eventually};

/// Starts a server with this budget. In-process servers share the test's memory, but the tables
/// always get a quarter of the budget.
fn with_budget(bytes: u64) -> TestServer {
    TestServer::with(|config| {
        config.server.memory_bytes = bytes;
        for counter in &mut config.counter {
            counter.spill = true;
            counter.rows_per_table = 5_000;
        }
        for existence in &mut config.existence {
            existence.spill = true;
            existence.pairs_per_table = 1 << 12;
        }
    })
}

fn info(c: &mut Connection, name: &str) -> u64 {
    let text: String = cmd("INFO").arg("everything").query(c).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// `used_memory` is the memory of the process, as limited by `maxmemory`, so that their ratio can
/// trigger an alarm.
#[test]
fn used_memory_is_what_maxmemory_limits() {
    let server = with_budget(64 << 20);
    let text: String = cmd("INFO").arg("memory").query(&mut server.connection()).unwrap();
    let field = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    };
    let (resident, tables) = (field("used_memory_rss"), field("used_memory_dataset"));
    assert!(resident > 2 * tables, "the test has no effect: {text}");
    assert_eq!(field("used_memory"), resident);
}

/// Two counter spaces and an existence space have no limits of their own. No write is refused or
/// lost, and memory stays within the budget.
#[test]
fn spaces_share_one_budget_and_refuse_nothing() {
    const BUDGET: u64 = 64 << 20;
    let server = with_budget(BUDGET);
    let mut c = server.connection();
    assert_eq!(info(&mut c, "maxmemory"), BUDGET);
    for from in (1..200_000).step_by(1000) {
        let mut pipe = redis::pipe();
        for id in from..from + 1000 {
            pipe.cmd("HSET").arg(format!("post:{id}")).arg(&["read", "7"]).ignore();
            pipe.cmd("HSET").arg(format!("user:{id}")).arg(&["follower", "5"]).ignore();
            pipe.cmd("FEED.ACT").arg("like").arg(id % 97).arg(id).ignore();
        }
        pipe.exec(&mut c).unwrap();
    }
    eventually("memory is within the limit of the tables", || {
        info(&mut c, "used_memory_dataset") < BUDGET / 4
    });
    for id in (1..200_000).step_by(1987) {
        let liked: Vec<i64> = call(&mut c, &format!("PH.EXISTS liked {} {id}", id % 97)).unwrap();
        let row: Vec<i64> = call(&mut c, &format!("HMGET post:{id} like read")).unwrap();
        let follower: i64 = call(&mut c, &format!("HGET user:{id} follower")).unwrap();
        assert_eq!((liked, row, follower), (vec![1], vec![1, 7], 5), "{id}");
    }
}

/// The setting `maxmemory` changes the budget at run time.
#[test]
fn the_budget_is_maxmemory() {
    let server = TestServer::with(|config| {
        config.counter[0].spill = false;
        config.counter[0].rows_per_table = 5_000;
    });
    let mut c = server.connection();
    let get = |c: &mut Connection| -> Vec<String> { call(c, "CONFIG GET maxmemory").unwrap() };
    assert!(get(&mut c)[1].parse::<u64>().unwrap() > 64 << 20, "70 % of the machine's memory");
    call::<()>(&mut c, "CONFIG SET maxmemory 33mb").unwrap();
    assert_eq!(get(&mut c)[1], (33 << 20).to_string());
    assert_eq!(info(&mut c, "maxmemory"), 33 << 20);
    let fill = |c: &mut Connection, from: u64| {
        (from..from + 3_000_000).step_by(1000).find_map(|from| {
            let mut pipe = redis::pipe();
            for id in from..from + 1000 {
                pipe.cmd("HSET").arg(format!("post:{id}")).arg(&["like", "3"]).ignore();
            }
            pipe.exec(c).err()
        })
    };
    let refused = fill(&mut c, 1).expect("no row was rejected").to_string();
    assert!(refused.contains("command not allowed when used memory > 'maxmemory'"), "{refused}");
    // Existing data can be read, and changed if that needs no more memory.
    assert_eq!(call::<i64>(&mut c, "HINCRBY post:1 like 1").unwrap(), 4);
    call::<()>(&mut c, "CONFIG SET maxmemory 0").unwrap();
    eventually("space is available", || call::<i64>(&mut c, "HSET post:9000000 like 1").is_ok());
}
