//! A broker loses the end of its stream, and reuses the offsets for other messages. The source must
//! halt. Otherwise the source would skip the new messages below its own offset.

use super::brokers::{Broker, Brokers, Kafka, Nats, Redis, Running};
use super::gaps::{
    add, asked, counter, like, produce, redis_cmd, send, source, until, wait_for_field,
};
use super::{field, listed, offsets, serve};
use std::path::Path;
use std::process::Command;

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// Writes messages with `loses`, makes the broker lose these messages, and writes other messages
/// with `instead`.
fn forget<B: Broker>(broker: &Running<B>, loses: impl FnOnce(), instead: impl FnOnce()) {
    let kept = broker.dir.with_extension("kept");
    broker.down();
    copy(&broker.dir, &kept);
    broker.up_with(&[]);
    loses();
    broker.down();
    copy(&kept, &broker.dir);
    broker.up_with(&[]);
    instead();
}

#[test]
fn redis_stream_with_other_entries_halts() {
    let Some(brokers) = Brokers::<Redis>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let (dir, config) = (folder.path().join("here"), source(&broker, ""));
    let server = serve(&dir, 0, &config);
    (1..=5).for_each(|id| add(&broker, id, &like(id)));
    until("all messages are read", || offsets(&server) == ["0-6"]);
    // If the stream is unchanged, the source continues after a pause.
    asked(&server, "TM.INGEST PAUSE events");
    wait_for_field(&server, "state", "paused");
    add(&broker, 6, &like(6));
    asked(&server, "TM.INGEST RESUME events");
    until("the event is counted", || counter(&server, "like") == "6");
    asked(&server, "WAITAOF 1 0 0");
    server.kill();
    redis_cmd(&broker, &["DEL", Redis::STREAM]);
    (1..=9).for_each(|id| add(&broker, id, &like(100 + id)));
    let server = serve(&dir, 0, &config);
    wait_for_field(&server, "state", "halted");
    let words = "the message at 0-6 differs from the one that was read there";
    assert!(field(&server, "last_error").contains(words), "{:?}", listed(&server));
    assert_eq!(counter(&server, "like"), "6");
    asked(&server, "TM.INGEST SETOFFSET events 0 0-1");
    until("the other stream is read completely", || counter(&server, "like") == "15");
    // The new stream lacks the entry that was read last. The source must halt, even though the
    // first id of the stream is higher.
    asked(&server, "TM.INGEST PAUSE events");
    wait_for_field(&server, "state", "paused");
    redis_cmd(&broker, &["DEL", Redis::STREAM]);
    add(&broker, 20, &like(20));
    asked(&server, "TM.INGEST RESUME events");
    wait_for_field(&server, "state", "halted");
    assert!(field(&server, "last_error").contains("the message at 0-9 differs"));
}

/// The hash covers the whole message, even if the source has applied only a part of the message.
#[test]
fn message_taken_in_part_is_compared() {
    let Some(brokers) = Brokers::<Redis>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let (dir, config) = (folder.path().join("here"), source(&broker, "poison = \"stop\""));
    let server = serve(&dir, 0, &config);
    add(&broker, 1, &format!("{}\nno event\n", like(1)));
    wait_for_field(&server, "state", "halted");
    assert_eq!(counter(&server, "like"), "1");
    let resume = || {
        asked(&server, "TM.INGEST PAUSE events");
        wait_for_field(&server, "state", "paused");
        asked(&server, "TM.INGEST RESUME events");
        wait_for_field(&server, "state", "halted");
        field(&server, "last_error")
    };
    assert!(resume().contains("poison event 1 of message 0-1"), "another message was reported");
    redis_cmd(&broker, &["DEL", Redis::STREAM]);
    add(&broker, 1, &format!("{}\n{}\n", like(2), like(3)));
    let why = resume();
    assert!(why.contains("the message at 0-1 differs"), "{why}");
}

#[test]
fn jetstream_that_lost_its_end_halts() {
    let Some(brokers) = Brokers::<Nats>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let port = broker.port;
    let server = serve(&folder.path().join("here"), 0, &source(&broker, "subject = \"events.a\""));
    send(port, "events.a", 0..3);
    until("three events are counted", || counter(&server, "like") == "3");
    let loses = || {
        send(port, "events.a", 3..6);
        until("six events are counted", || counter(&server, "like") == "6");
        asked(&server, "TM.INGEST PAUSE events");
        wait_for_field(&server, "state", "paused");
    };
    forget(&broker, loses, || send(port, "events.a", 20..28));
    asked(&server, "TM.INGEST RESUME events");
    wait_for_field(&server, "state", "halted");
    let words = "the message at 6 differs from the one that was read there";
    assert!(field(&server, "last_error").contains(words), "{:?}", listed(&server));
    assert_eq!(counter(&server, "like"), "6");
    asked(&server, "TM.INGEST SETOFFSET events 0 4");
    until("the new messages are read", || counter(&server, "like") == "14");
    assert_eq!((field(&server, "gaps"), field(&server, "repeated")), ("0".into(), "0".into()));
}

/// Tests that need a Kafka broker, which `./test --all` compiles.
mod full {
    use super::*;

    #[test]
    fn kafka_partition_that_lost_its_end_halts() {
        let Some(brokers) = Brokers::<Kafka>::here() else { return };
        let folder = tempfile::tempdir().unwrap();
        let broker = brokers.start(&folder.path().join("broker"));
        let port = broker.port;
        let server = serve(&folder.path().join("here"), 0, &source(&broker, ""));
        let publish = |members: std::ops::Range<u64>| {
            members.for_each(|member| produce(port, &[like(member).into_bytes()]));
        };
        publish(0..3);
        until("three events are counted", || counter(&server, "like") == "3");
        let loses = || {
            publish(3..6);
            until("six events are counted", || counter(&server, "like") == "6");
            asked(&server, "TM.INGEST PAUSE events");
            wait_for_field(&server, "state", "paused");
        };
        forget(&broker, loses, || publish(20..28));
        asked(&server, "TM.INGEST RESUME events");
        wait_for_field(&server, "state", "halted");
        let words = "the message at 5 differs from the one that was read there";
        assert!(field(&server, "last_error").contains(words), "{:?}", listed(&server));
    }
}
