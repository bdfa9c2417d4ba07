//! Failovers by the stock redis-sentinel, and FAILOVER compared with redis-server. These tests run
//! the scripts `tests/clients/{switches,handover}.py` with the real binary.
//!
//! `cargo xtask play failover --runs 20` runs 20 rounds.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn play(name: &str, more: &[&str]) {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let python = top.join("target/clients/redis-py-new/bin/python");
    assert!(python.exists(), "run tests/clients/setup first");
    let status = Command::new(python)
        .arg(top.join("tests/clients").join(name))
        .args(["--server", env!("CARGO_BIN_EXE_tidemark")])
        .args(more)
        .status()
        .expect("python runs");
    assert!(status.success(), "see above");
}

/// The master is killed, stopped, or partitioned from the Sentinels together with a client that
/// keeps writing to it.
#[test]
fn sentinel_fails_over_and_keeps_writes_acknowledged_by_wait() {
    let rounds = seeds::rounds(3).to_string();
    play("switches.py", &["--by", "kill,stop,cut", "--replicas", "2", "--rounds", &rounds]);
}

/// Random writes to a master with a replica; `cargo xtask play kills --seconds 6000` runs longer.
#[test]
fn nodes_equal_a_model_after_kills_of_either() {
    let minutes = Duration::from_secs(seeds::seconds(60)).as_secs_f64() / 60.0;
    let seed = seeds::given("TIDEMARK_SEED").unwrap_or(1);
    play("kill_loops.py", &["--minutes", &minutes.to_string(), "--seed", &seed.to_string()]);
}

fn switch(more: &[&str]) {
    let rounds = seeds::rounds(2).to_string();
    play("switches.py", &[&["--rounds", &rounds], more].concat());
}

#[test]
fn sentinel_failover_keeps_acknowledged_writes() {
    switch(&["--by", "sentinel", "--min-replicas", "1"]);
}

#[test]
fn sentinel_failover_with_two_replicas_keeps_writes() {
    switch(&["--by", "sentinel", "--replicas", "2"]);
}

#[test]
fn failover_beside_sentinels_keeps_acknowledged_writes() {
    switch(&["--by", "failover"]);
}

#[test]
fn upgrade_beside_sentinels_keeps_acknowledged_writes() {
    switch(&["--by", "upgrade"]);
}

#[test]
fn promotion_by_hand_beside_sentinels_keeps_writes() {
    switch(&["--by", "replicaof"]);
}

#[test]
fn failover_goes_as_with_redis_word_for_word() {
    play("handover.py", &[]);
}

/// Two groups of Sentinels watch the same node under different names.
#[test]
fn sentinels_of_two_groups_do_not_fence_each_others_master() {
    play("groups.py", &[]);
}

/// One of four shards is first stopped, then killed, and finally loses its slots.
#[test]
fn any_node_answers_for_all_shards_and_each_like_counts_once() {
    play("pages.py", &["--shards", "4"]);
    play("pages.py", &["--shards", "3"]);
}

/// `tidemark cluster` splits a shard, and moves another shard back and forth, while the test kills
/// nodes and commands.
#[test]
fn a_shard_is_split_and_moved_and_no_slot_has_two_masters() {
    let kills = seeds::rounds(1).to_string();
    let posts = seeds::given("TIDEMARK_STEPS").unwrap_or(10000).to_string();
    play("split.py", &["--kills", &kills, "--fill", &posts]);
}

/// Three Sentinels choose the masters of three shards. The test kills the masters under load while
/// one Sentinel is down.
#[test]
fn sentinels_are_the_source_of_a_topology() {
    let rounds = seeds::rounds(2).to_string();
    play("sentinels.py", &["--rounds", &rounds]);
}

/// Stock Redis Cluster clients with three shards; a script replaces Kvrocks' controller.
#[test]
fn a_cluster_serves_stock_clients_and_leases_fence_old_masters() {
    let rounds = seeds::rounds(2).to_string();
    play("cluster.py", &["--rounds", &rounds]);
}

/// Tests that need etcd, which `./test --all` installs.
mod full {
    use super::*;

    /// Kvrocks' controller with two instances; a real etcd elects one of them.
    #[test]
    fn kvrocks_failover_keeps_writes_acknowledged_by_wait() {
        let rounds = seeds::rounds(3).to_string();
        play("kvrocks.py", &["--rounds", &rounds]);
    }
}
