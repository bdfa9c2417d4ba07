//! Flags that a counter of 0 answers for: never a false no.
//!
//! The model is the set of pairs that were acknowledged as set. A filter that errs for every fourth
//! pair makes sure that undos and repetitions of actions that never happened happen all the time.
//! Of twelve mutations, each without one rule of `dataset/src/engines/zero_proof.rs`, four seeds
//! find nine: what passes is not proved. `cargo xtask model gate --runs 100` runs more of
//! them.

use crate::replication::{follow, in_step};
use redis::{Cmd, Value, cmd};
use std::collections::{HashMap, HashSet};
use tidemark_server::config::{Action, Config, Existence, Fsync};
use tidemark_tests::TestServer;

const MEMBERS: u64 = 24;
const IDS: u64 = 30;
/// Pairs that fill the first table of a space, so that it errs as often as it may; and some that
/// leave it open.
const FILLING: u64 = 9000;
const HALF: u64 = 5000;

fn configure(config: &mut Config) {
    let template = config.existence[0].clone();
    let flag = |name: &str| Existence {
        name: name.to_owned(),
        pairs: format!("{name}:{{id}}"),
        false_positive_rate: 0.25,
        pairs_per_table: 40_000,
        max_tables: 3,
        spill: false,
        max_loose: 64,
        memory_limit_bytes: 1 << 30,
        seed: 7,
        ..template.clone()
    };
    let action = |name: &str, flag: &str, counter: &str| Action {
        name: name.to_owned(),
        flag: flag.to_owned(),
        counter: counter.to_owned(),
        ..Action::default()
    };
    // `cheered` shares its counter with `liked`; `both` has two counters, and so no gate.
    config.existence = ["liked", "cheered", "both", "read"].map(flag).into();
    config.action = vec![
        action("like", "liked", "post.like"),
        action("cheer", "cheered", "post.like"),
        action("one", "both", "post.repost"),
        action("two", "both", "post.comment"),
        action("read", "read", "post.read"),
    ];
    config.view[0].flags = ["liked", "cheered", "both", "read"].map(str::to_owned).into();
    config.durability.fsync = Fsync::Always;
}

/// The same, where old posts and flags may lie on the disk.
fn configure_spilling(config: &mut Config) {
    configure(config);
    config.counter[0].spill = true;
    config.existence.iter_mut().for_each(|space| space.spill = true);
}

/// Acknowledged pairs: (flag, id, member) that were reported as set.
type Told = HashSet<(usize, u64, u64)>;

const FLAGS: [&str; 4] = ["liked", "cheered", "both", "read"];

/// A command, and what it says of a flag if it is carried out: (flag, id, member, set or unset).
type Step = (Cmd, Option<(usize, u64, u64, bool)>);

fn of(words: &str) -> Cmd {
    let mut words = words.split(' ');
    let mut made = cmd(words.next().unwrap());
    words.for_each(|word| {
        made.arg(word);
    });
    made
}

fn step(rng: &mut fastrand::Rng, base: u64) -> Step {
    let (id, m) = (base + rng.u64(0..IDS), rng.u64(0..MEMBERS));
    let flag = [0, 0, 0, 1, 2, 3][rng.usize(0..6)];
    let (name, n) = (FLAGS[flag], rng.i64(-2..3));
    let action = match flag {
        0 => "like",
        1 => "cheer",
        2 => ["one", "two"][rng.usize(0..2)],
        _ => "read",
    };
    let field = ["like", "like", "like", "repost", "comment", "read"][rng.usize(0..6)];
    match rng.u32(0..100) {
        0..25 => (of(&format!("FEED.ACT {action} {m} {id}")), Some((flag, id, m, true))),
        25..30 => (of(&format!("FEED.GET home {m} {id} MARK {action}")), Some((flag, id, m, true))),
        30..62 => (of(&format!("FEED.UNDO {action} {m} {id}")), Some((flag, id, m, false))),
        62 => (of(&format!("PH.ADD {name} {m} {id}")), Some((flag, id, m, true))),
        63 => (of(&format!("SADD {name}:{id} {m}")), Some((flag, id, m, true))),
        64 => (of(&format!("BF.ADD {name}:{id} {m}")), Some((flag, id, m, true))),
        65 => (of(&format!("CF.ADDNX {name}:{id} {m}")), Some((flag, id, m, true))),
        66 => (of(&format!("PH.DEL {name} {m} {id}")), Some((flag, id, m, false))),
        67 => (of(&format!("SREM {name}:{id} {m}")), Some((flag, id, m, false))),
        68..72 => (of(&format!("CNT.INCRBY post {id} {field} {n}")), None),
        72 => (of(&format!("CNT.INCRBY post {id} {field} {n} MIN 0 MAX 1 SAT")), None),
        73..75 => (of(&format!("CNT.MINCRBY post {id} {field} -1 {id} {field} {n}")), None),
        75..77 => (of(&format!("CNT.SET post {id} {field} {n}")), None),
        77 => (of(&format!("HSET post:{id} {field} 0")), None),
        78..80 => (of(&format!("HINCRBY post:{id} {field} -1")), None),
        80 => (of(&format!("SET post:{id}:{field} {n}")), None),
        81 => (of(&format!("GETSET post:{id}:{field} 0")), None),
        82..84 => (of(&format!("DECR post:{id}:{field}")), None),
        84 => (of(&format!("DEL post:{id}")), None),
        85 => (of(&format!("HDEL post:{id} {field}")), None),
        86 => (of(&format!("CNT.DEL post {id}")), None),
        87 => (of(&format!("MSET post:{id}:{field} 0 post:{id}:read 1")), None),
        88 => (of(&format!("HSETNX post:{id} {field} -1")), None),
        89 => (of(&format!("GETDEL post:{id}:{field}")), None),
        _ => (of(&format!("INCR post:{id}:{field}")), None),
    }
}

/// What the page says of flags, per id: 1, 0 or nil.
fn page(connection: &mut redis::Connection, member: u64, ids: &[u64]) -> Vec<Vec<Option<i64>>> {
    let mut get = cmd("FEED.GET");
    get.arg("home").arg(member).arg(ids);
    let rows: Vec<Vec<Option<i64>>> = get.query(connection).unwrap();
    rows.into_iter().map(|row| row[4..].to_vec()).collect()
}

#[track_caller]
fn check(server: &TestServer, told: &Told, what: &str) {
    let mut by_member: HashMap<u64, Vec<u64>> = HashMap::new();
    for &(_, id, member) in told {
        by_member.entry(member).or_default().push(id);
    }
    let connection = &mut server.connection();
    for (member, mut ids) in by_member {
        ids.sort_unstable();
        ids.dedup();
        for (row, id) in page(connection, member, &ids).into_iter().zip(&ids) {
            for (flag, answer) in row.into_iter().enumerate() {
                let is_set = told.contains(&(flag, *id, member));
                assert!(
                    !is_set || answer != Some(0),
                    "{what}: a false no: {} of {member} on {id}",
                    FLAGS[flag]
                );
            }
        }
    }
}

fn steps(server: &TestServer, rng: &mut fastrand::Rng, base: u64, count: usize, told: &mut Told) {
    let steps: Vec<Step> = (0..count).map(|_| step(rng, base)).collect();
    // Behind each, what the page says of that very pair.
    let mut pipe = redis::pipe();
    pipe.ignore_errors();
    for (command, says) in &steps {
        pipe.add_command(command.clone());
        if let Some((_, id, member, _)) = says {
            pipe.cmd("FEED.GET").arg("home").arg(member).arg(id);
        }
    }
    let answers: Vec<Value> = pipe.query(&mut server.connection()).unwrap();
    let mut answers = answers.into_iter();
    for (command, says) in steps {
        let answer = answers.next().unwrap();
        let Some((flag, id, member, set)) = says else { continue };
        let row: Vec<Vec<Option<i64>>> = redis::from_redis_value(answers.next().unwrap()).unwrap();
        let shown = row[0][4 + flag];
        // An id below the horizon answers nil, and an error says that nothing was done.
        if matches!(answer, Value::ServerError(_)) || shown.is_none() {
            continue;
        }
        if set {
            told.insert((flag, id, member));
            let words = String::from_utf8_lossy(&command.get_packed_command()).replace("\r\n", " ");
            assert_eq!(shown, Some(1), "{answer:?} told that it is set: {words}");
        } else {
            told.remove(&(flag, id, member));
        }
    }
}

/// Many pairs at one id above the others, so that the filter of all of them is full.
fn fill(server: &TestServer, base: u64, pairs: u64) {
    let mut pipe = redis::pipe();
    for name in FLAGS {
        for chunk in 0..pairs / 1000 {
            let members: Vec<u64> = (0..1000).map(|i| 1_000_000 + chunk * 1000 + i).collect();
            pipe.cmd("SADD").arg(format!("{name}:{}", base + 200)).arg(members).ignore();
        }
    }
    pipe.query::<()>(&mut server.connection()).unwrap();
}

/// Of pairs that were never set: how many the filter takes for set, and how many of them the page
/// does, too.
fn errors(server: &TestServer, base: u64, told: &Told) -> (usize, usize) {
    let connection = &mut server.connection();
    let (mut filter, mut shown) = (0, 0);
    for member in 0..MEMBERS {
        let ids: Vec<u64> =
            (base..base + IDS).filter(|&id| !told.contains(&(0, id, member))).collect();
        let by_filter: Vec<Option<i64>> =
            cmd("PH.EXISTS").arg("liked").arg(member).arg(&ids).query(connection).unwrap();
        filter += by_filter.iter().filter(|answer| **answer == Some(1)).count();
        shown += page(connection, member, &ids).into_iter().filter(|row| row[0] == Some(1)).count();
    }
    (filter, shown)
}

fn run(seed: u64, spills: bool) -> (usize, u64) {
    let configure = if spills { configure_spilling } else { configure };
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut server = TestServer::with(configure);
    let mut told = Told::new();
    let (mut base, mut spared, mut asked, mut spilled) = (1000, 0, 0, 0);
    for round in 0..12 {
        let what = format!("seed {seed}, round {round}");
        base += if round % 3 == 0 { 300 } else { 2 * IDS };
        if round % 3 == 0 {
            fill(&server, base, FILLING << (round / 3).min(2));
        }
        steps(&server, &mut rng, base, 300, &mut told);
        let (by_filter, by_page) = errors(&server, base, &told);
        asked += by_filter;
        // A table that is merged on the disk between the two questions errs for other pairs then.
        spared += by_filter.saturating_sub(by_page);
        steps(&server, &mut rng, base, 1200, &mut told);
        check(&server, &told, &what);
        let call = |words: &str| of(words).query::<Value>(&mut server.connection());
        match rng.u32(0..6) {
            0 => drop(call("SAVE").unwrap()),
            1 => drop(call("TM.ROLL liked").unwrap()),
            2..5 if spills => {
                for space in FLAGS.into_iter().chain(["post"]) {
                    call(&format!("TM.ROLL {space}")).unwrap();
                    let moved = call(&format!("TM.SPILL {space} 9")).unwrap();
                    spilled += redis::from_redis_value::<u64>(moved).unwrap();
                }
                check(&server, &told, &format!("{what}, on the disk"));
                steps(&server, &mut rng, base, 600, &mut told);
                check(&server, &told, &format!("{what}, changed on the disk"));
            }
            _ => {}
        }
        server = match rng.u32(0..5) {
            0 => server.killed(),
            1 => server.restart(),
            // A while without the action: what is counted meanwhile says nothing of the flags.
            2 => {
                let ties = |counter: &str| {
                    call("TM.ACTION DROP like").unwrap();
                    call(&format!("TM.ACTION CREATE like flag liked counter {counter}")).unwrap();
                };
                ties("post.comment");
                steps(&server, &mut rng, base, 300, &mut told);
                check(&server, &told, &format!("{what}, tied otherwise"));
                ties("post.like");
                server
            }
            _ => server,
        };
        check(&server, &told, &format!("{what}, started again"));
    }
    assert!(asked > 0 && (spilled > 0) == spills, "{asked} asked, {spilled} spilled");
    (spared, loose(&server))
}

/// Ids of `liked` of which a counter of 0 proves nothing.
fn loose(server: &TestServer) -> u64 {
    let maps: Vec<HashMap<String, Value>> =
        cmd("TM.SPACE").arg("LIST").query(&mut server.connection()).unwrap();
    let liked =
        maps.into_iter().find(|map| map["name"] == Value::BulkString(b"liked".to_vec())).unwrap();
    redis::from_redis_value(liked["loose_ids"].clone()).unwrap()
}

/// A counter that is refused to fall, or stops at its bound, proves what it did.
#[test]
fn what_does_not_lower_a_counter_opens_no_gate() {
    let server = TestServer::with(configure);
    let connection = &mut server.connection();
    fill(&server, 1000, HALF);
    let before = loose(&server);
    for id in (900..940).chain(u64::MAX - 100..=u64::MAX) {
        for bound in ["MIN 0 FAIL", "MIN 0 SAT"] {
            let told =
                of(&format!("CNT.INCRBY post {id} like -1 {bound}")).query::<Value>(connection);
            assert_eq!(told.is_err(), bound.contains("FAIL"), "{id}: {told:?}");
        }
    }
    assert_eq!(loose(&server), before);
    // One that does fall.
    of("CNT.INCRBY post 900 like -1").query::<Value>(connection).unwrap();
    assert_eq!(loose(&server), before + 1);
}

/// Uncounted flags of ids far ahead are held exactly, and take no gate from others,
/// however many they are; when the traffic comes to them they are found all the same.
#[test]
fn what_lies_far_ahead_opens_no_gate() {
    const FAR: u64 = 1 << 40;
    let far = |i: u64| FAR + i * 1000;
    let (master, replica) = (TestServer::with(configure), TestServer::with(configure));
    follow(&replica, &master);
    fill(&master, 1000, HALF);
    let mut told = Told::new();
    let send =
        |server: &TestServer, told: &mut Told, commands: Vec<(String, Option<(u64, u64)>)>| {
            let mut pipe = redis::pipe();
            for (command, flag) in commands {
                pipe.add_command(of(&command)).ignore();
                told.extend(flag.map(|(id, member)| (0, id, member)));
            }
            pipe.query::<()>(&mut server.connection()).unwrap();
        };
    // Set without a counter, liked and counted down, liked twice; and counters that fall of ids
    // without flags.
    let commands = (0..3000).flat_map(|i| {
        let (id, member) = (far(i), i % MEMBERS);
        match i % 4 {
            0 => vec![(format!("PH.ADD liked {member} {id}"), Some((id, member)))],
            1 => vec![
                (format!("FEED.ACT like {member} {id}"), Some((id, member))),
                (format!("CNT.SET post {id} like 0"), None),
            ],
            2 => vec![(format!("CNT.INCRBY post {} like -1", id + 1), None)],
            _ => vec![(format!("FEED.ACT like {member} {id}"), Some((id, member)))],
        }
    });
    send(&master, &mut told, commands.collect());
    let of_gate = |server: &TestServer, what: &str| {
        let (by_filter, by_page) = errors(server, 1000, &Told::new());
        assert!(by_filter > 0 && by_page == 0, "{what}: {by_page} of {by_filter}");
    };
    // Of a flag that is exact a counter of 0 proves nothing: it is there, and can be taken away.
    let answer = |words: String| of(&words).query::<Vec<i64>>(&mut master.connection()).unwrap();
    assert_eq!(answer(format!("FEED.ACT like 1 {}", far(1))), [0]);
    assert_eq!(answer(format!("FEED.UNDO like 5 {}", far(5))), [1]);
    told.remove(&(0, far(5), 5));
    check(&master, &told, "aside");
    of_gate(&master, "aside");
    let killed = master.killed();
    check(&killed, &told, "aside, and started again");
    of_gate(&killed, "aside, and started again");
    drop(killed);
    in_step(&master, &replica);
    check(&replica, &told, "aside, on the replica");
    of_gate(&replica, "aside, on the replica");
    // Now the traffic is there.
    let commands = (0..6000).map(|i| (format!("FEED.ACT like 77 {}", far(3000) + i), None));
    send(&master, &mut told, commands.collect());
    let through: Vec<HashMap<String, Value>> =
        cmd("TM.SPACE").arg("LIST").query(&mut master.connection()).unwrap();
    let liked = through
        .into_iter()
        .find(|map| map["name"] == Value::BulkString(b"liked".to_vec()))
        .unwrap();
    let aside: u64 = redis::from_redis_value(liked["aside_pairs"].clone()).unwrap();
    assert!(aside < 1000, "{aside}: they have moved into tables");
    check(&master, &told, "in tables");
    in_step(&master, &replica);
    check(&replica, &told, "in tables, on the replica");
    check(&replica.killed(), &told, "in tables, on the replica, and started again");
    check(&master.killed(), &told, "in tables, and started again");
}

#[test]
fn an_acknowledged_flag_is_never_denied() {
    runs(false);
}

#[test]
fn no_flag_is_denied_that_lies_on_the_disk() {
    runs(true);
}

fn runs(spills: bool) {
    let mut spared = 0;
    for seed in seeds::seeds(4) {
        let (more, loose) = run(seed, spills);
        println!("seed {seed}: {more} false yes spared, {loose} ids loose at the end");
        spared += more;
    }
    assert!(spared > 0, "a gate that never closes");
}

/// A replica has the loose ids of its master, by its log and by a full sync, and keeps them when it
/// is restarted and promoted.
#[test]
fn a_replica_denies_no_flag_either() {
    let mut rng = fastrand::Rng::with_seed(17);
    let master = TestServer::with(configure);
    let (early, late) = (TestServer::with(configure), TestServer::with(configure));
    follow(&early, &master);
    let (mut told, mut base, mut spared) = (Told::new(), 1000, 0);
    for round in 0..4 {
        fill(&master, base, FILLING);
        steps(&master, &mut rng, base, 300, &mut told);
        in_step(&master, &early);
        // Not the same ones as on the master: the pairs came in another order, so others of them
        // seemed to be there already.
        let (by_filter, by_page) = errors(&early, base, &told);
        spared += by_filter - by_page;
        steps(&master, &mut rng, base, 900, &mut told);
        in_step(&master, &early);
        check(&early, &told, &format!("round {round}, on the replica"));
        base += 300;
    }
    assert!(spared > 0, "a gate that never closes");
    // Everything is in a snapshot when the other one comes. Of the newest ids no flag is set.
    fill(&master, base, FILLING);
    cmd("SAVE").query::<()>(&mut master.connection()).unwrap();
    follow(&late, &master);
    in_step(&master, &late);
    check(&late, &told, "after a full sync");
    let (by_filter, by_page) = errors(&late, base, &told);
    assert!(by_filter > 0 && by_page == 0, "no gate after a full sync: {by_page} of {by_filter}");
    let early = early.restart();
    in_step(&master, &early);
    check(&early, &told, "a replica that was restarted");
    drop(master);
    for (replica, what) in [(&early, "promoted"), (&late, "promoted after a full sync")] {
        cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut replica.connection()).unwrap();
        of("CNT.INCRBY post 1 like 1").query::<Value>(&mut replica.connection()).unwrap();
        let mut told = told.clone();
        steps(replica, &mut rng, base, 600, &mut told);
        check(replica, &told, what);
        check(&replica.killed(), &told, what);
    }
}

/// Everybody watches the own flag only, while others make the counter rise and fall.
#[test]
fn no_flag_is_denied_while_others_move_the_counter() {
    let server = TestServer::with(|config| {
        configure(config);
        config.durability.fsync = Fsync::Everysec;
    });
    fill(&server, 1000, FILLING);
    std::thread::scope(|scope| {
        for member in 0..4u64 {
            let server = &server;
            scope.spawn(move || {
                let connection = &mut server.connection();
                let mut rng = fastrand::Rng::with_seed(member);
                for turn in 0..2000u64 {
                    // Unused members: their pairs are set by chance, or not at all.
                    let (me, id) = (member * 1_000_000 + turn, 1000 + rng.u64(0..2));
                    let act =
                        cmd("FEED.ACT").arg("like").arg(me).arg(id).query::<Vec<i64>>(connection);
                    act.unwrap();
                    for _ in 0..rng.u32(1..4) {
                        assert_eq!(page(connection, me, &[id])[0][0], Some(1), "{me} on {id}");
                    }
                    let undo =
                        cmd("FEED.UNDO").arg("like").arg(me).arg(id).query::<Vec<i64>>(connection);
                    undo.unwrap();
                }
            });
        }
    });
}
