//! Ingests events from real brokers while the server, the broker and the master are killed
//! (SIGKILL) repeatedly. Each event counts once, and the dead letters are exactly the invalid
//! events.
//!
//! The test computes the expected values from the events that the broker's stream contains. The
//! messages are numbered. After the broker is killed, the publisher therefore continues after the
//! last stored message.
//!
//! `TIDEMARK_RUNS` sets the number of events per broker in thousands (default 200). If the value is
//! at least 1,000, the test kills the server and the broker ten times each, and runs two failovers.

mod brokers;
mod cold;
mod forgot;
mod gaps;
mod links;
mod strange;

use brokers::{Broker, Brokers, Counted, Kafka, Nats, Redis};
use client::Reply;
use harness::program::{Program, call, refusal};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const FIRST: u64 = 3_631_614_501_919_378;
/// Number of rows. `ROWS` is a multiple of the number of partitions, because the row determines the
/// partition.
const ROWS: u64 = 3000;
const MEMBERS: u64 = 400;
/// Interval between malformed events: one in this many events is malformed.
const POISON: u64 = 5003;

/// Kinds of events: likes and unlikes, many of which change nothing, reposts, increments, and sets.
enum Event {
    Like(u64),
    Unlike(u64),
    Repost(u64),
    Increment(i64),
    Set(i64),
    Poison(&'static str),
}

/// Number of events per message. After each start, the Kafka broker checks every message, which
/// takes minutes if there are very many.
fn together() -> u64 {
    static SENT_TOGETHER: OnceLock<u64> = OnceLock::new();
    *SENT_TOGETHER.get_or_init(|| match seeds::given("TIDEMARK_RUNS") {
        Some(10_000..) => 40,
        _ => 4,
    })
}

fn row(n: u64) -> u64 {
    n % ROWS
}

fn id(row: u64) -> u64 {
    FIRST + row * 4096
}

fn event(n: u64) -> Event {
    let mixed = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
    let member = mixed % MEMBERS;
    if n % POISON == 17 {
        return Event::Poison(match mixed % 4 {
            0 => "{\"event\":\"like\",\"id\":18446744073709551616,\"member\":1}",
            1 => "{\"event\":\"dance\",\"id\":1,\"member\":1}",
            2 => "{\"event\":\"like\",",
            _ => "like 7 17",
        });
    }
    match (mixed >> 20) % 16 {
        0..=7 => Event::Like(member),
        8..=10 => Event::Unlike(member),
        11 | 12 => Event::Repost(member),
        13 | 14 => Event::Increment((mixed >> 30) as i64 % 9 - 2),
        _ => Event::Set(n as i64),
    }
}

fn line(n: u64, out: &mut String) {
    let id = id(row(n));
    let _ = match event(n) {
        Event::Like(m) => {
            writeln!(out, "{{\"event\":\"like\",\"id\":{id},\"member\":{m},\"at\":[1.5]}}")
        }
        Event::Unlike(m) => {
            writeln!(out, "{{\"member\":\"{m}\",\"id\":\"{id}\",\"event\":\"unlike\"}}")
        }
        Event::Repost(m) => writeln!(out, "{{\"event\":\"repost\",\"id\":{id},\"member\":{m}}}"),
        Event::Increment(by) => writeln!(
            out,
            "{{\"event\":\"increment\",\"field\":\"post.read\",\"id\":{id},\"value\":{by}}}"
        ),
        Event::Set(value) => writeln!(
            out,
            "{{\"event\":\"set\",\"field\":\"post.comment\",\"id\":{id},\"value\":{value}}}"
        ),
        Event::Poison(text) => writeln!(out, "{text}"),
    };
}

fn message(number: u64, partition: u64, of: u64) -> String {
    let mut text = String::new();
    for place in 0..together() {
        line((number * together() + place) * of + partition, &mut text);
    }
    text
}

/// Returns the expected rows, computed with plain sets.
fn expected(events: u64) -> Vec<[i64; 4]> {
    let mut rows = vec![[0i64; 4]; ROWS as usize];
    let mut set = [vec![false; (ROWS * MEMBERS) as usize], vec![false; (ROWS * MEMBERS) as usize]];
    for n in 0..events {
        let row = row(n);
        let counters = &mut rows[row as usize];
        let mut act = |flags: usize, member: u64, to: bool| {
            let flag = &mut set[flags][(row * MEMBERS + member) as usize];
            let changed = *flag != to;
            *flag = to;
            if changed && to { 1 } else { -i64::from(changed) }
        };
        match event(n) {
            Event::Like(member) => counters[0] += act(0, member, true),
            Event::Unlike(member) => counters[0] += act(0, member, false),
            Event::Repost(member) => counters[1] += act(1, member, true),
            Event::Set(value) => counters[2] = value,
            Event::Increment(by) => counters[3] += by,
            Event::Poison(_) => {}
        }
    }
    rows
}

/// Returns the malformed events by partition, message and event.
fn poison(events: u64, of: u64) -> BTreeSet<(u64, u64, u64)> {
    let is_poison = |n: &u64| matches!(event(*n), Event::Poison(_));
    let place = |n: u64| (n % of, n / of / together(), n / of % together());
    (0..events).filter(is_poison).map(place).collect()
}

/// Spaces of the server. The filters are nearly empty, so that no false positive hides an event.
const SPACES: &str = "view = []
[durability]
snapshot_log = 4_000_000
[replication]
fence = false
[[counter]]
name = \"post\"
fields = \"like:16 repost:16 comment:32 read:16\"
rows = \"post:{id}\"
[[existence]]
name = \"liked\"
false_positive_rate = 1e-7
pairs_per_table = 67_108_864
[[existence]]
name = \"reposted\"
false_positive_rate = 1e-7
pairs_per_table = 67_108_864
[[action]]
name = \"like\"
flag = \"liked\"
counter = \"post.like\"
[[action]]
name = \"repost\"
flag = \"reposted\"
counter = \"post.repost\"
";

/// Starts a server on the given port; 0 selects a free port.
fn serve(dir: &Path, port: u16, sources: &str) -> Program {
    serve_as(dir, port, &format!("{SPACES}{sources}"))
}

/// Starts a replica. The node must never become a master, not even briefly, because a master would
/// ingest events.
fn follow(dir: &Path, master: &Program, sources: &str) -> Program {
    let of = format!("[replication]\nreplicaof = \"127.0.0.1 {}\"", master.port);
    let program = serve_as(dir, 0, &format!("{}{sources}", SPACES.replace("[replication]", &of)));
    // A former master still has the role of a master in its folder.
    call(&mut program.client(), &format!("REPLICAOF 127.0.0.1 {}", master.port));
    wait_long("the replica is connected", || program.info("master_link_status") == "up");
    program
}

fn serve_as(dir: &Path, port: u16, text: &str) -> Program {
    std::fs::create_dir_all(dir).unwrap();
    let config = dir.join("tidemark.toml");
    std::fs::write(&config, text).unwrap();
    let port = port.to_string();
    let options = ["--config", config.to_str().unwrap(), "--port", &port];
    Program::start_as(&[], &dir.join("data"), &options)
        .unwrap_or_else(|said| panic!("the server did not start: {said:#?}"))
}

fn map(frame: Reply) -> BTreeMap<String, Reply> {
    let Reply::Array(parts) = frame else { panic!("no map: {frame:?}") };
    let mut parts = parts.into_iter();
    let mut all = BTreeMap::new();
    while let (Some(Reply::BulkString(name)), Some(value)) = (parts.next(), parts.next()) {
        all.insert(String::from_utf8(name).unwrap(), value);
    }
    all
}

fn text(frame: &Reply) -> String {
    match frame {
        Reply::BulkString(text) => String::from_utf8(text.clone()).unwrap(),
        Reply::Integer(number) => number.to_string(),
        Reply::Null => "-".to_owned(),
        other => panic!("{other:?}"),
    }
}

/// Returns the entry of the only source in TM.INGEST LIST. Returns `None` without a reply.
fn listed(program: &Program) -> Option<BTreeMap<String, Reply>> {
    match program.ask("TM.INGEST LIST") {
        Reply::Array(mut sources) if sources.len() == 1 => Some(map(sources.remove(0))),
        _ => None,
    }
}

fn field(program: &Program, name: &str) -> String {
    listed(program).map_or_else(String::new, |all| text(&all[name]))
}

fn offsets(program: &Program) -> Vec<String> {
    let Some(mut all) = listed(program) else { return Vec::new() };
    let Some(Reply::Array(partitions)) = all.remove("partitions") else { return Vec::new() };
    partitions.into_iter().map(|partition| text(&map(partition)["offset"])).collect()
}

fn rows(program: &Program) -> Vec<[i64; 4]> {
    let mut client = program.client();
    let values = |row: u64| {
        let Reply::Array(rows) = call(&mut client, &format!("CNT.GET post {}", id(row))) else {
            panic!("no row")
        };
        let Reply::Array(values) = &rows[0] else { return [0; 4] };
        let values: Vec<i64> = values.iter().map(|value| text(value).parse().unwrap()).collect();
        values.try_into().unwrap()
    };
    (0..ROWS).map(values).collect()
}

/// Returns the distinct dead letters in the file. A kill may leave a duplicate.
fn letters(dir: &Path, messages_from: u64) -> BTreeSet<(u64, u64, u64)> {
    let text = std::fs::read_to_string(dir.join("data/events.dead")).unwrap_or_default();
    let letter = |line: &str| {
        // After a kill, the last line of the process may be incomplete.
        let letter: serde_json::Value = serde_json::from_str(line).ok()?;
        let offset = letter["offset"].as_str().unwrap().rsplit('-').next().unwrap();
        let message = offset.parse::<u64>().unwrap() - messages_from;
        Some((letter["partition"].as_u64().unwrap(), message, letter["event"].as_u64().unwrap()))
    };
    text.lines().filter_map(letter).collect()
}

/// A fault that the test injects.
#[derive(Clone, Copy, Debug)]
enum InjectedFault {
    Server,
    Broker,
    Failover,
}

fn faults(events: u64) -> Vec<InjectedFault> {
    if events < 1_000_000 {
        return vec![
            InjectedFault::Server,
            InjectedFault::Broker,
            InjectedFault::Failover,
            InjectedFault::Server,
        ];
    }
    let mut all = Vec::new();
    for n in 0..10 {
        all.extend([InjectedFault::Server, InjectedFault::Broker]);
        if n % 5 == 2 {
            all.push(InjectedFault::Failover);
        }
    }
    all
}

fn exactly_once<B: Broker>() {
    let Some(brokers) = Brokers::<B>::here() else { return };
    let events = seeds::rounds(200) * 1000;
    let of = B::PARTITIONS;
    let messages = events / together() / of;
    let events = messages * together() * of;
    let folder = tempfile::tempdir().unwrap();
    let broker = Arc::new(brokers.start(&folder.path().join("broker")));
    let sources = format!(
        "[[ingest]]\nname = \"events\"\nurl = \"{}\"\nstream = \"{}\"\n",
        broker.url(),
        B::STREAM
    );
    let dirs = ["here", "there"].map(|name| folder.path().join(name));
    let mut used = vec![dirs[0].clone()];
    let mut at = 0;
    let mut master = serve(&dirs[0], 0, &sources);
    let stop = Arc::new(AtomicBool::new(false));
    let publisher = {
        let (broker, stop) = (broker.clone(), stop.clone());
        std::thread::spawn(move || broker.publish_all(messages, &|| stop.load(SeqCst)))
    };
    let progress = |master: &Program| -> u64 {
        let offsets = offsets(master);
        offsets.iter().filter_map(|offset| B::messages(offset)).sum()
    };
    let began = Instant::now();
    let all = messages * of;
    let faults = faults(events);
    for (place, blow) in faults.iter().enumerate() {
        let due = all * (place as u64 + 1) / (faults.len() as u64 + 1);
        wait_long(&format!("{due} messages are processed"), || progress(&master) >= due);
        match blow {
            InjectedFault::Server => {
                let port = master.port;
                master.sigkill();
                master = serve(&dirs[at], port, &sources);
            }
            InjectedFault::Broker => broker.kill_and_start(),
            InjectedFault::Failover => {
                at = 1 - at;
                let replica = follow(&dirs[at], &master, &sources);
                used.push(dirs[at].clone());
                let now = progress(&master);
                wait_long("the master continues", || progress(&master) > now || now == all);
                // A former master may still be opening its connection to the broker.
                wait_long("a replica is idle", || field(&replica, "state") == "idle");
                master.sigkill();
                let order = call(&mut replica.client(), "REPLICAOF NO ONE");
                assert_eq!(refusal(&order), "");
                master = replica;
            }
        }
    }
    publisher.join().unwrap();
    wait_long("all messages are processed", || progress(&master) == all);
    let took = began.elapsed();
    let expected = expected(events);
    let found = rows(&master);
    let differing = found.iter().zip(&expected).filter(|(found, expected)| found != expected);
    assert_eq!(differing.count(), 0, "rows that differ");
    for name in ["gaps", "poison_dropped", "unknown"] {
        assert_eq!(field(&master, name), "0", "{name}");
    }
    let port = master.port;
    master.sigkill();
    let master = serve(&dirs[at], port, &sources);
    // The server ingests those events again that were not in its log when it was killed.
    wait_long("all messages are processed", || progress(&master) == all);
    assert_eq!(rows(&master), expected);
    let again = take_again::<B>(&master, all, events);
    used.sort();
    used.dedup();
    let mut dead = BTreeSet::new();
    used.iter().for_each(|dir| dead.extend(letters(dir, B::FIRST)));
    let of_poison = poison(events, of);
    assert!(!of_poison.is_empty() && dead == of_poison, "{} {}", dead.len(), of_poison.len());
    eprintln!(
        "{}: {events} events in {messages} messages of {of} partitions, {} blows, exact; {:.0} \
         events/s over all of {took:.1?}; {again}",
        B::PROGRAM,
        faults.len(),
        events as f64 / took.as_secs_f64()
    );
    stop.store(true, SeqCst);
}

/// Ingests all events again without faults, to measure the speed.
fn take_again<B: Broker>(master: &Program, all: u64, events: u64) -> String {
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", master.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_ascii_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let progress = || -> u64 { offsets(master).iter().filter_map(|o| B::messages(o)).sum() };
    let (began, before) = (Instant::now(), ticks());
    for partition in 0..B::PARTITIONS {
        let first =
            if B::PROGRAM == Redis::PROGRAM { "0-1".to_owned() } else { B::FIRST.to_string() };
        let order = format!("TM.INGEST SETOFFSET events {partition} {first}");
        assert_eq!(refusal(&call(&mut master.client(), &order)), "");
    }
    wait_long("all messages are processed again", || progress() == all);
    let (took, cpu) = (began.elapsed().as_secs_f64(), (ticks() - before) as f64 / 100.0);
    let events = events as f64;
    format!(
        "ingest only: {:.0} events/s, {:.0} per CPU second of the server",
        events / took,
        events / cpu.max(0.01)
    )
}

fn wait_long(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(1800), "{what}: timed out");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn events_of_jetstream_count_once_whatever_is_killed() {
    exactly_once::<Nats>();
}

#[test]
fn events_of_another_redis_count_once_whatever_is_killed() {
    exactly_once::<Redis>();
}

/// Tests that need a Kafka broker, which `./test --all` compiles.
mod full {
    use super::*;

    #[test]
    fn events_of_kafka_count_once_whatever_is_killed() {
        exactly_once::<Kafka>();
    }
}
