//! Tests which nodes accept writes and which may be promoted, after role changes, hellos and
//! restarts.

use super::*;
use crate::roles::role::Epoch;
use ::replication::Sending;
use std::net::IpAddr;
use std::time::Instant;

fn order(replication: &Replication, config: &Config, master: Option<Master>) -> bool {
    replication.order(config, Order { master, ..Order::default() }, || ()).unwrap()
}

fn master() -> (Replication, Config, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.durability.dir = folder.path().to_path_buf();
    let replication = Replication::new();
    assert!(replication.refusal().is_some(), "before the log is loaded");
    assert!(replication.settle(&config, true, 1));
    assert_eq!(replication.refusal(), None);
    (replication, config, folder)
}

/// The thread `log` applies role changes one by one. If another change is published before the
/// thread finishes, the log does not match the role, and the write gate must stay closed.
#[test]
fn only_the_last_order_obeyed_opens_the_gate() {
    let (replication, config, _folder) = master();
    let other = |port| Master { host: "127.0.0.1".to_owned(), port };
    let give = |to: Option<Master>| {
        assert!(order(&replication, &config, to.clone()));
        let kept = Role::read(&config.durability.dir).unwrap().map(|role| role.master);
        assert_eq!(kept, Some(to), "durable before any client sees it");
        assert!(replication.refusal().unwrap().starts_with("READONLY "));
        assert!(!replication.log_matches_role());
    };
    // A replica becomes a master.
    give(Some(other(1)));
    give(None);
    assert!(!replication.settle(&config, false, 1));
    assert!(!replication.log_matches_role());
    assert!(replication.refusal().is_some(), "the log is still a replica's");
    assert!(replication.settle(&config, true, 2));
    assert!(replication.log_matches_role());
    assert_eq!(replication.refusal(), None);
    // A master becomes a replica.
    give(Some(other(1)));
    assert!(replication.settle(&config, false, 2));
    give(None);
    give(Some(other(2)));
    assert!(!replication.settle(&config, true, 3));
    assert!(!replication.log_matches_role());
    assert!(replication.refusal().is_some(), "a master's log on a node that becomes a replica");
    // Evaluating the gate again changes nothing.
    replication.judge(&config);
    assert!(replication.refusal().is_some());
    assert!(replication.settle(&config, false, 3));
    assert!(replication.refusal().is_some());
}

/// A slow evaluation of the gate must not open it on a node that has become a replica.
#[test]
fn an_order_that_comes_during_a_check_shuts_the_gate() {
    let (replication, mut config, _folder) = master();
    config.replication.min_replicas_to_write = 1;
    let counted = ::replication::Peer {
        ip: String::new(),
        port: 1,
        refused_log: false,
        diverged_at: None,
        sending: Sending::Log,
        written: 0,
        durable: 0,
        heard_ms: 0,
    };
    assert!(replication.feeds.admit(1, IpAddr::from([127, 0, 0, 1]), 1));
    replication.feeds.update(1, &counted, Instant::now());
    let pause = || std::thread::sleep(std::time::Duration::from_millis(100));
    let feeds = replication.feeds.stopped();
    std::thread::scope(|scope| {
        // Block this thread on `feeds`, because evaluating the gate counts replicas.
        scope.spawn(|| replication.judge(&config));
        pause();
        let other = Master { host: "127.0.0.1".to_owned(), port: 1 };
        scope.spawn(|| order(&replication, &config, Some(other)));
        pause();
        drop(feeds);
    });
    assert!(replication.refusal().unwrap().contains("read only replica"));
}

/// Creates a node that restarts with this role.
fn started(role: Role) -> (Replication, Config, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.durability.dir = folder.path().to_path_buf();
    role.write(folder.path()).unwrap();
    let replication = Replication::new();
    replication.recall(&config, false).unwrap();
    replication.settle(&config, role.master.is_none(), 1);
    (replication, config, folder)
}

#[test]
fn a_promoted_node_is_fenced_after_a_start() {
    let (replication, config, _folder) = started(Role { synced: true, ..Role::default() });
    assert!(replication.is_fenced() && replication.refusal().unwrap().contains("fenced"));
    replication.followed(&config, true);
    assert_eq!(replication.refusal(), None);
    let (replication, ..) = started(Role::default());
    assert_eq!(replication.refusal(), None, "the node never had replicas");
}

/// Delivers a hello of the default group and persists its epoch.
fn named(replication: &Replication, config: &Config, is_ours: bool, epoch: u64) {
    if replication.named(
        config,
        &Hello { group: "mymaster", is_ours, epoch, address: "somewhere".to_owned() },
    ) {
        replication.keep_epochs(config);
    }
}

#[test]
fn what_sentinels_have_said_is_known_after_a_start() {
    let (replication, config, folder) = started(Role { replicated: true, ..Role::default() });
    let kept = || Role::read(folder.path()).unwrap().unwrap().sentinels;
    let at = |epoch| vec![Epoch { name: "mymaster".to_owned(), epoch }];
    named(&replication, &config, true, 5);
    assert_eq!((replication.refusal(), kept()), (None, at(5)));
    let again = Replication::new();
    again.recall(&config, false).unwrap();
    again.settle(&config, true, 2);
    again.followed(&config, true);
    named(&again, &config, true, 4);
    assert!(
        again.refusal().unwrap().contains("fenced"),
        "a replica follows while a Sentinel is away"
    );
    named(&again, &config, false, 6);
    assert!(again.refusal().unwrap().contains("fenced"));
    assert_eq!(kept(), at(6));
    // An operator promotes this node. Another node may have been the master.
    assert!(order(&again, &config, None));
    assert!(again.renews() && again.promoting() == 2 && again.refusal().is_some());
    assert!(!again.settle(&config, true, 3), "not before the log has a new term");
    again.renewed();
    assert!(again.settle(&config, true, 3));
    again.promoted(&config);
    assert!(!again.renews() && again.promoting() == 0);
    assert_eq!((again.refusal(), kept()), (None, vec![]));
    assert!(!order(&again, &config, None), "the node is a master");
}

/// Regression test from the soak. The node was down while two other nodes were the master. Sentinel
/// promotes this node before sending a hello to it.
#[test]
fn promotion_before_the_first_sentinel_hello_skips_a_term() {
    let sentinels = vec![Epoch { name: "mymaster".to_owned(), epoch: 23 }];
    let role = Role { replicated: true, sentinels, ..Role::default() };
    let (replication, config, _folder) = started(role);
    assert!(order(&replication, &config, None));
    assert!(replication.renews() && replication.promoting() > 2);
    // Without Sentinels only an operator changes roles, so the new role needs no confirmation.
    let (replication, config, _folder) = started(Role { replicated: true, ..Role::default() });
    assert!(!order(&replication, &config, None) && !replication.renews());
}

/// Several Sentinels publish every second. One thread persists their epochs. Other threads do not
/// wait for the disk.
#[test]
fn one_at_a_time_writes_down_what_sentinels_say() {
    let (replication, config, folder) = started(Role { replicated: true, ..Role::default() });
    let says = |epoch| {
        replication
            .named(&config, &Hello { group: "m", is_ours: true, epoch, address: String::new() })
    };
    assert!(says(5) && !says(5) && !says(6), "another order is pending");
    replication.keep_epochs(&config);
    assert_eq!(
        Role::read(folder.path()).unwrap().unwrap().sentinels[0].epoch,
        6,
        "the last order wins"
    );
    assert_eq!(replication.refusal(), None);
    assert!(!says(6), "an equal epoch is old news");
    assert!(says(7));
}

/// Writing the role may take seconds. Until the role is on disk, readers see the old role and gate.
#[test]
fn reads_of_the_role_do_not_wait_for_the_disk() {
    let (replication, config, _folder) = master();
    let disk = replication.changing.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| order(&replication, &config, Some(other(1))));
        scope.spawn(|| named(&replication, &config, true, 5));
        scope.spawn(|| replication.note_replicated(&config).unwrap());
        // The test would hang if one of these calls took the lock.
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(replication.master().is_none() && replication.is_fit() && replication.is_master());
        replication.judge(&config);
        replication.followed(&config, true);
        assert!(replication.settle(&config, true, 1) && replication.log_matches_role());
        assert!(!replication.is_fenced() && !replication.is_replicated());
        replication
            .named(&config, &Hello { group: "m", is_ours: true, epoch: 5, address: String::new() });
        assert_eq!((replication.refusal(), replication.failover.name()), (None, "no-failover"));
        drop(disk);
    });
    assert_eq!(replication.master(), Some(other(1)));
    assert!(replication.is_replicated() && replication.refusal().is_some());
}

/// A node crashes during a FAILOVER, before the replica has confirmed its promotion.
#[test]
fn unconfirmed_handover_resumes_after_restart() {
    let (replication, config, folder) = master();
    let handing = Some(Handing { offset: 7, has_all: true });
    let order = Order { master: Some(other(1)), handing, ..Order::default() };
    assert!(replication.order(&config, order, || ()).unwrap());
    let again = || {
        let again = Replication::new();
        again.recall(&config, false).unwrap();
        again
    };
    assert_eq!(again().failover.handover(), Some(7));
    assert_eq!(again().failover.name(), "failover-in-progress");
    assert!(again().is_fit(), "a promotion needs the whole data set");
    replication.synced(&config);
    assert_eq!(again().failover.handover(), None, "the node has taken over");
    // If there are Sentinels, they decide.
    let sentinels = vec![Epoch { name: "mymaster".to_owned(), epoch: 5 }];
    Role { master: Some(other(1)), handing: Some(7), sentinels, ..Role::default() }
        .write(folder.path())
        .unwrap();
    assert_eq!((again().failover.handover(), again().failover.name()), (None, "no-failover"));
}

fn other(port: u16) -> Master {
    Master { host: "127.0.0.1".to_owned(), port }
}

#[test]
fn node_with_diverged_or_discarded_data_is_not_promotable() {
    let master = Some(other(1));
    let (replication, config, folder) = started(Role { master, synced: true, ..Role::default() });
    let is_fit_after_a_start = || {
        let again = Replication::new();
        again.recall(&config, false).unwrap();
        again.is_fit()
    };
    assert!(replication.is_fit() && is_fit_after_a_start());
    replication.refuses(&config, &other(2));
    assert!(replication.is_fit(), "a former master does not announce itself");
    replication.refuses(&config, &other(1));
    assert!(!replication.is_fit() && !is_fit_after_a_start());
    replication.synced(&config);
    assert!(replication.is_fit() && is_fit_after_a_start());
    // A forced REPLICAOF discards this node's data once. After the sync the role is no longer
    // forced, because another node may get the master's address later.
    let forced = Order { master: Some(other(1)), forced: true, ..Order::default() };
    assert!(replication.order(&config, forced, || ()).unwrap() && replication.is_forced());
    let again = Replication::new();
    again.recall(&config, false).unwrap();
    assert!(again.is_forced(), "a restart does not revert it");
    replication.synced(&config);
    assert!(!replication.is_forced() && !Role::read(folder.path()).unwrap().unwrap().forced);
    replication.refuses(&config, &other(1));
    assert!(order(&replication, &config, Some(other(2))));
    assert!(
        replication.is_fit() && is_fit_after_a_start(),
        "nothing is known about the other master yet"
    );
    replication.gives_up(&config).unwrap();
    assert!(!replication.is_fit());
    assert!(!Role::read(folder.path()).unwrap().unwrap().synced, "also after a restart");
    replication.is_whole(&config, &other(1));
    assert!(!replication.is_fit(), "a former master's data set");
    replication.is_whole(&config, &other(2));
    assert!(replication.is_fit() && is_fit_after_a_start());
}

#[test]
fn a_demoted_master_is_promotable_after_its_first_sync() {
    let was_replica = Role { synced: true, ..Role::default() };
    let (replication, config, folder) = started(was_replica.clone());
    assert!(order(&replication, &config, Some(other(1))));
    assert!(!replication.is_fit());
    let kept = || Role::read(folder.path()).unwrap().unwrap();
    assert!(!kept().synced && kept().replicated, "the restarted master remembers other nodes");
    replication.synced(&config);
    assert!(order(&replication, &config, Some(other(2))));
    assert!(replication.is_fit(), "a replica that changes its master has a whole data set");

    for has_all in [false, true] {
        let (replication, config, _folder) = started(was_replica.clone());
        assert!(
            replication
                .order(
                    &config,
                    Order {
                        master: Some(other(1)),
                        handing: Some(Handing { offset: 7, has_all }),
                        ..Order::default()
                    },
                    || ()
                )
                .unwrap()
        );
        assert_eq!(replication.is_fit(), has_all);
    }
}
