//! Changes at the broker: removed messages, recreated streams, offsets that an operator sets,
//! malformed messages that halt a source, and entries whose fields form the event.

use super::brokers::{Broker, Brokers, Kafka, Nats, Redis, Running};
use super::{FIRST, field, listed, offsets, serve, text};
use client::Reply;
use harness::program::{Program, call, refusal};
use harness::within;
use std::path::Path;
use std::time::Duration;

pub(crate) fn source<B: Broker>(broker: &Running<B>, more: &str) -> String {
    let (url, stream) = (broker.url(), B::STREAM);
    format!("[[ingest]]\nname = \"events\"\nurl = \"{url}\"\nstream = \"{stream}\"\n{more}\n")
}

pub(crate) fn counter(program: &Program, name: &str) -> String {
    text(&program.ask(&format!("HGET post:{FIRST} {name}")))
}

pub(crate) fn like(member: u64) -> String {
    format!("{{\"event\":\"like\",\"id\":{FIRST},\"member\":{member}}}")
}

pub(crate) fn redis_cmd(broker: &Running<Redis>, words: &[&str]) {
    let mut connection = Redis::connection(broker.port).unwrap();
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(word));
    command.query::<redis::Value>(&mut connection).unwrap();
}

pub(crate) fn add(broker: &Running<Redis>, id: u64, payload: &str) {
    redis_cmd(broker, &["XADD", Redis::STREAM, &format!("0-{id}"), "payload", payload]);
}

pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    within(Duration::from_secs(60), what, holds);
}

pub(crate) fn wait_for_field(program: &Program, name: &str, value: &str) {
    until(&format!("{name} is {value}"), || field(program, name) == value);
}

pub(crate) fn asked(program: &Program, words: &str) {
    let reply = call(&mut program.client(), words);
    assert_eq!(refusal(&reply), "", "{words}");
}

/// XDEL of unread entries, at the beginning and in the middle, leaves a gap. XDEL of an entry that
/// was already read leaves no gap.
fn is_a_gap_when_entries_are_deleted(broker: &Running<Redis>, server: &Program) {
    redis_cmd(broker, &["XDEL", Redis::STREAM, "0-5"]);
    asked(server, "TM.INGEST PAUSE events");
    wait_for_field(server, "state", "paused");
    for id in ["0-55", "0-56", "0-57", "0-58"] {
        redis_cmd(broker, &["XADD", Redis::STREAM, id, "payload", ""]);
    }
    redis_cmd(broker, &["XDEL", Redis::STREAM, "0-55", "0-57"]);
    asked(server, "TM.INGEST RESUME events");
    until("all messages are read", || offsets(server) == ["0-59"]);
    assert_eq!(field(server, "gaps"), "2");
    let told = "gap: lost an unknown number of messages from 0-6 to before 0-58";
    assert!(field(server, "last_error").contains(told), "{}", field(server, "last_error"));
}

#[test]
fn a_stream_of_redis_that_lost_entries_says_so_and_goes_on() {
    let Some(brokers) = Brokers::<Redis>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let config = source(&broker, "");
    let dir = folder.path().join("here");
    let server = serve(&dir, 0, &config);
    wait_for_field(&server, "state", "running");
    (1..=3).for_each(|id| add(&broker, id, &like(id)));
    until("three events are counted", || counter(&server, "like") == "3");
    // Two entries are trimmed while the source is paused; one of them is unread.
    asked(&server, "TM.INGEST PAUSE events");
    wait_for_field(&server, "state", "paused");
    add(&broker, 4, &like(4));
    add(&broker, 5, &like(5));
    redis_cmd(&broker, &["XTRIM", Redis::STREAM, "MAXLEN", "1"]);
    asked(&server, "TM.INGEST RESUME events");
    until("the last event is counted", || counter(&server, "like") == "4");
    // The number of lost messages is unknown, because the reader is new.
    assert_eq!((field(&server, "gaps"), field(&server, "gap_messages")), ("1".into(), "0".into()));
    assert!(
        field(&server, "last_error").contains("gap: lost an unknown number of messages from 0-4")
    );
    is_a_gap_when_entries_are_deleted(&broker, &server);
    // Add an entry whose fields form an event, and an entry without event fields.
    redis_cmd(
        &broker,
        &[
            "XADD",
            Redis::STREAM,
            "0-66",
            "event",
            "like",
            "id",
            &FIRST.to_string(),
            "member",
            "\"m",
        ],
    );
    redis_cmd(&broker, &["XADD", Redis::STREAM, "0-67", "payload", ""]);
    until("the event is counted", || counter(&server, "like") == "5");
    until("all messages are read", || offsets(&server) == ["0-68"]);
    // Apply all events again: likes that are already set count as repeated.
    asked(&server, "TM.INGEST SETOFFSET events 0 0-66");
    wait_for_field(&server, "repeated", "1");
    assert_eq!(counter(&server, "like"), "5");
    // Create another stream with the same name.
    redis_cmd(&broker, &["DEL", Redis::STREAM]);
    wait_for_field(&server, "state", "failing");
    add(&broker, 1, &like(9));
    wait_for_field(&server, "state", "halted");
    assert!(
        field(&server, "last_error").contains("it was replaced or truncated"),
        "{:?}",
        listed(&server)
    );
    asked(&server, "TM.INGEST SETOFFSET events 0 0-0");
    until("the message is read", || counter(&server, "like") == "6");
    for (words, expected) in [
        (
            "TM.INGEST SETOFFSET events 0 17",
            "Invalid offset '17': offsets of this source look like 0-17",
        ),
        ("TM.INGEST SETOFFSET events x 0-1", "Invalid partition 'x': must be a number from 0"),
        ("TM.INGEST SETOFFSET events 1 0-1", "source 'events' has no partition 1"),
        ("TM.INGEST SETOFFSET none 0 0-1", "no such ingest source 'none'"),
        ("TM.INGEST PAUSE none", "no such ingest source 'none'"),
    ] {
        let reply = call(&mut server.client(), words);
        assert!(refusal(&reply).contains(expected), "{words}: {reply:?}");
    }
    until("INFO says that all is read", || {
        let Reply::BulkString(info) = server.ask("INFO ingest") else { return false };
        String::from_utf8(info).unwrap().contains("\r\ningest_events:state=running,lag=0,")
    });
}

#[test]
fn poison_message_halts_source_until_operator_skips_it() {
    let Some(brokers) = Brokers::<Redis>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let dir = folder.path().join("here");
    let server = serve(&dir, 0, &source(&broker, "poison = \"stop\""));
    let [before, after] = [like(1), like(2)];
    asked(&server, "TM.INGEST PAUSE events");
    add(&broker, 1, &format!("{before}\nno event\n{after}"));
    asked(&server, "TM.INGEST RESUME events");
    wait_for_field(&server, "state", "halted");
    // The message that halts the source counts as lag.
    assert_eq!(field(&server, "lag"), "1");
    asked(&server, "TM.INGEST PAUSE events");
    wait_for_field(&server, "state", "paused");
    assert_eq!(field(&server, "lag"), "1");
    asked(&server, "TM.INGEST RESUME events");
    wait_for_field(&server, "state", "halted");
    let said = field(&server, "last_error");
    assert!(said.contains("poison event 1 of message 0-1") && said.contains("SETOFFSET"), "{said}");
    assert_eq!(counter(&server, "like"), "1", "the messages before it are processed");
    asked(&server, "TM.INGEST SETOFFSET events 0 0-2");
    add(&broker, 2, &like(3));
    until("the source continues", || counter(&server, "like") == "2");
    assert_eq!(field(&server, "poison"), "0");
}

#[test]
fn dead_letters_are_bounded() {
    let Some(brokers) = Brokers::<Redis>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let dir = folder.path().join("here");
    let server = serve(&dir, 0, &source(&broker, "max_dead_letters = 1000"));
    let mut connection = Redis::connection(broker.port).unwrap();
    for id in 1..=20 {
        // Alternate between payloads with invalid UTF-8 and payloads with JSON that is not an
        // event.
        let payload: &[u8] = if id % 2 == 0 { b"\xff\xfe" } else { b"[1]\n{}" };
        let command = redis::cmd("XADD")
            .arg(Redis::STREAM)
            .arg(format!("0-{id}"))
            .arg("payload")
            .arg(payload)
            .to_owned();
        command.query::<redis::Value>(&mut connection).unwrap();
    }
    wait_for_field(&server, "poison", "30");
    let file = std::fs::read_to_string(dir.join("data/events.dead")).unwrap();
    let lines = file.lines().count() as u64;
    assert!(file.len() <= 1000 && lines >= 3, "{file}");
    assert!(file.contains("\"payload\":\"[1]\"") && file.contains("\"payload_base64\":\"//4=\""));
    assert_eq!(field(&server, "poison_dropped"), (30 - lines).to_string());
    assert_eq!(field(&server, "state"), "running");
}

/// While the master accepts no writes, its source waits and loses no event.
#[test]
fn a_pause_of_writes_holds_events_back() {
    let Some(brokers) = Brokers::<Redis>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let server = serve(&folder.path().join("here"), 0, &source(&broker, ""));
    wait_for_field(&server, "state", "running");
    asked(&server, "CLIENT PAUSE 60000 WRITE");
    add(&broker, 1, &like(1));
    wait_for_field(&server, "state", "waiting");
    assert_eq!(counter(&server, "like"), "-");
    asked(&server, "CLIENT UNPAUSE");
    until("the event is counted", || counter(&server, "like") == "1");
    wait_for_field(&server, "state", "running");
}

pub(crate) fn nats<R>(work: impl AsyncFnOnce(async_nats::jetstream::Context) -> R, port: u16) -> R {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { work(Nats::context(port).await.unwrap()).await })
}

pub(crate) fn send(port: u16, subject: &'static str, members: std::ops::Range<u64>) {
    nats(
        async |context| {
            for member in members {
                context.publish(subject, like(member).into()).await.unwrap().await.unwrap();
            }
        },
        port,
    );
}

#[test]
fn a_stream_of_jetstream_that_lost_messages_says_how_many() {
    let Some(brokers) = Brokers::<Nats>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let port = broker.port;
    let dir = folder.path().join("here");
    let server = serve(&dir, 0, &source(&broker, "subject = \"events.a\""));
    send(port, "events.a", 0..3);
    send(port, "events.b", 10..12);
    send(port, "events.a", 3..4);
    until("the messages of the subject are counted", || counter(&server, "like") == "4");
    assert_eq!(offsets(&server), ["7"]);
    asked(&server, "TM.INGEST PAUSE events");
    wait_for_field(&server, "state", "paused");
    send(port, "events.a", 20..25);
    nats(
        async |context| {
            let stream = context.get_stream(Nats::STREAM).await.unwrap();
            stream.purge().sequence(10).await.unwrap();
        },
        port,
    );
    asked(&server, "TM.INGEST RESUME events");
    until("the other events are counted", || counter(&server, "like") == "6");
    let gaps = (field(&server, "gaps"), field(&server, "gap_messages"));
    assert_eq!(gaps, ("1".into(), "3".into()), "{:?}", listed(&server));
    // Create another stream with the same name.
    let deleted = nats(async |context| context.delete_stream(Nats::STREAM).await.unwrap(), port);
    assert!(deleted.success);
    Nats::prepare(port);
    wait_for_field(&server, "state", "halted");
    send(port, "events.a", 40..41);
    let zero = call(&mut server.client(), "TM.INGEST SETOFFSET events 0 0");
    assert!(refusal(&zero).contains("Invalid offset '0': offsets of this source"), "{zero:?}");
    asked(&server, "TM.INGEST SETOFFSET events 0 1");
    until("the message is read", || counter(&server, "like") == "7");
}

/// A source that starts with new messages only. The test kills the node before any message has
/// arrived.
#[test]
fn what_is_new_is_not_another_message_after_a_kill() {
    let Some(brokers) = Brokers::<Nats>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let (dir, config) = (folder.path().join("here"), source(&broker, "start = \"new\""));
    send(broker.port, "events.a", 0..3);
    let server = serve(&dir, 0, &config);
    until("the start offset is known", || offsets(&server) == ["4"]);
    asked(&server, "WAITAOF 1 0 0");
    server.kill();
    send(broker.port, "events.a", 3..5);
    let server = serve(&dir, 0, &config);
    until("later messages are counted", || counter(&server, "like") == "2");
}

pub(crate) fn produce(port: u16, messages: &[Vec<u8>]) {
    use rskafka::client::partition::{Compression, UnknownTopicHandling};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Kafka::client(port).await.unwrap();
        for (message, partition) in messages.iter().zip(0..).filter(|(m, _)| !m.is_empty()) {
            let handling = UnknownTopicHandling::Error;
            let producer =
                client.partition_client(Kafka::STREAM, partition, handling).await.unwrap();
            let record = rskafka::record::Record {
                key: None,
                value: Some(message.clone()),
                headers: Default::default(),
                timestamp: rskafka::chrono::DateTime::UNIX_EPOCH,
            };
            producer.produce(vec![record], Compression::Gzip).await.unwrap();
        }
    });
}

#[test]
fn a_broker_that_is_not_there_is_said_and_waited_for() {
    let Some(brokers) = Brokers::<Redis>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    add(&broker, 1, &like(1));
    broker.down();
    let server = serve(Path::new(&folder.path().join("here")), 0, &source(&broker, ""));
    wait_for_field(&server, "state", "failing");
    assert!(field(&server, "last_error").contains("refused"), "{:?}", listed(&server));
    broker.kill_and_start();
    until("the event is counted", || counter(&server, "like") == "1");
    assert_eq!(field(&server, "last_error"), "", "the error was not cleared");
}

/// Tests that need a Kafka broker, which `./test --all` compiles.
mod full {
    use super::*;

    /// Binary events from Kafka; each partition has its own offsets.
    #[test]
    fn binary_events_of_several_partitions_are_read() {
        let Some(brokers) = Brokers::<Kafka>::here() else { return };
        let folder = tempfile::tempdir().unwrap();
        let broker = brokers.start(&folder.path().join("broker"));
        let more = "format = \"binary\"\nevents = [\"l = act like\", \"u = undo like\", \
                    \"v = increment post.read\", \"s = set post.comment\"]";
        let server = serve(&folder.path().join("here"), 0, &source(&broker, more));
        let mut id = Vec::new();
        dataset::log_records::put_number(&mut id, FIRST);
        let events = |list: &[(u8, u8)]| -> Vec<u8> {
            list.iter()
                .flat_map(|&(event, value)| [&[event << 1], &id[..], &[value]].concat())
                .collect()
        };
        let messages = [
            events(&[(0, 7), (0, 8), (2, 10)]),
            events(&[(3, 84), (0, 9)]),
            events(&[(2, 3), (9, 1)]),
        ];
        produce(broker.port, &messages);
        until("likes are counted", || counter(&server, "like") == "3");
        until("increments and sets are counted", || {
            (counter(&server, "read"), counter(&server, "comment")) == ("3".into(), "42".into())
        });
        wait_for_field(&server, "poison", "1");
        until("each partition is read", || offsets(&server) == ["1", "1", "1"]);
        let unlike = events(&[(1, 9)]);
        produce(broker.port, &[Vec::new(), unlike]);
        until("the like is undone", || counter(&server, "like") == "2");
    }
}
