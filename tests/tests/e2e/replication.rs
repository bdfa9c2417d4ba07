//! Replicas: attached, cut off, promoted; what they answer and what they refuse.

use redis::Commands;
use tidemark_server::config::Config;
use tidemark_tests::{TestServer, eventually};

/// A field of INFO replication.
pub(crate) fn info(connection: &mut redis::Connection, field: &str) -> Option<String> {
    let text: String = redis::cmd("INFO").arg("replication").query(connection).ok()?;
    let prefix = format!("{field}:");
    text.lines().find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
}

fn number(server: &TestServer, field: &str) -> u64 {
    let client = redis::Client::open(server.url()).unwrap();
    let Ok(mut connection) = client.get_connection() else { return 0 };
    info(&mut connection, field).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn follow(replica: &TestServer, master: &TestServer) {
    let port = master.port().to_string();
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(port).query::<()>(&mut replica.connection()).unwrap();
}

/// Waits until the replica has all that the master has synced.
fn in_step(master: &TestServer, replica: &TestServer) {
    eventually("the replica is in step", || {
        let link = redis::Client::open(replica.url()).unwrap().get_connection().ok();
        let up = link.and_then(|mut c| info(&mut c, "master_link_status")).as_deref() == Some("up");
        let synced: u64 =
            redis::cmd("WAITAOF").arg(1).arg(0).arg(5000).query::<Vec<u64>>(&mut master.connection()).unwrap()[0];
        up && synced == 1 && number(master, "master_repl_offset") == number(replica, "slave_repl_offset")
    });
}

fn small(config: &mut Config) {
    config.counter[0].rows_per_table = 1000;
    config.durability.snapshot_every_s = 0;
}

fn likes(server: &TestServer, ids: std::ops::Range<u64>) -> Vec<Option<i64>> {
    let mut pipe = redis::pipe();
    ids.for_each(|id| {
        pipe.hget(format!("post:{id}"), "like");
    });
    pipe.query(&mut server.connection()).unwrap()
}

#[test]
fn a_replica_gets_what_is_there_and_what_comes_and_goes_on_after_restarts_of_either() {
    let master = TestServer::with(small);
    let mut at_master = master.connection();
    let mut pipe = redis::pipe();
    for id in 0..5000u64 {
        pipe.hset(format!("post:{id}"), "like", id).ignore();
    }
    pipe.query::<()>(&mut at_master).unwrap();
    redis::cmd("SAVE").query::<()>(&mut at_master).unwrap();
    redis::cmd("FEED.ACT").arg("like").arg(7).arg(&[1, 2, 3]).query::<()>(&mut at_master).unwrap();
    let replica = TestServer::with(small);
    follow(&replica, &master);
    in_step(&master, &replica);
    assert_eq!(likes(&replica, 0..5000), likes(&master, 0..5000));
    assert_eq!(number(&replica, "repl_full_syncs"), 1);
    // What comes.
    for id in 0..100u64 {
        at_master.hincr::<_, _, _, ()>(format!("post:{id}"), "like", 1000).unwrap();
    }
    assert_eq!(redis::cmd("WAIT").arg(1).arg(5000).query::<u64>(&mut at_master).unwrap(), 1);
    assert_eq!(likes(&replica, 0..200), likes(&master, 0..200));
    let flags: Vec<u64> =
        redis::cmd("PH.EXISTS").arg("liked").arg(7).arg(&[1, 2, 3, 4]).query(&mut replica.connection()).unwrap();
    assert_eq!(flags, [1, 1, 1, 0]);
    // It refuses writes, in Redis's words.
    let error = replica.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap_err().to_string();
    assert!(error.to_lowercase().contains("read only replica"), "{error}");
    let error = redis::cmd("WAIT").arg(1).arg(1).query::<u64>(&mut replica.connection()).unwrap_err().to_string();
    assert!(error.contains("WAIT cannot be used with replica instances"), "{error}");
    // It is restarted, and misses something meanwhile.
    let replica = replica.stopped();
    at_master.hset::<_, _, _, ()>("post:1", "like", 77).unwrap();
    let replica = replica.started();
    in_step(&master, &replica);
    assert_eq!(likes(&replica, 0..5000), likes(&master, 0..5000));
    assert_eq!(number(&replica, "repl_full_syncs"), 0, "it went on where it was");
}
