//! Covers unusual states of brokers: a recreated stream, messages and batches of many MiB, an empty
//! stream. Also covers events for an action that does not exist.

use super::brokers::{Broker, Brokers, Kafka, Nats, Redis};
use super::gaps::{
    add, asked, counter, like, nats, produce, redis_cmd, send, source, until, wait_for_field,
};
use super::{field, follow, offsets, serve};
use harness::program::Program;

/// The new stream continues the numbering of the old stream, so only the identity of the stream
/// reveals the change.
#[test]
fn a_jetstream_made_anew_halts_its_source() {
    let Some(brokers) = Brokers::<Nats>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let (port, dir) = (broker.port, folder.path().join("here"));
    let anew = |members| {
        let deleted =
            nats(async |context| context.delete_stream(Nats::STREAM).await.unwrap(), port);
        assert!(deleted.success);
        Nats::prepare(port);
        send(port, "events.a", members);
    };
    let server = serve(&dir, 0, &source(&broker, ""));
    send(port, "events.a", 0..5);
    until("the events are counted", || counter(&server, "like") == "5");
    anew(100..110);
    wait_for_field(&server, "state", "halted");
    assert!(field(&server, "last_error").contains("was deleted and created again"));
    assert_eq!((counter(&server, "like"), offsets(&server)), ("5".into(), vec!["6".into()]));
    asked(&server, "TM.INGEST SETOFFSET events 0 1");
    until("all messages of the new stream are counted", || counter(&server, "like") == "15");
    assert_eq!(field(&server, "last_error"), "");
    // Recreate the stream while the server is down. The restarted server and the promoted replica
    // must both halt the source.
    let replica = follow(&folder.path().join("there"), &server, &source(&broker, ""));
    asked(&server, "WAITAOF 1 1 10000");
    server.kill();
    anew(200..230);
    let server = serve(&dir, 0, &source(&broker, ""));
    asked(&replica, "REPLICAOF NO ONE");
    for server in [&server, &replica] {
        wait_for_field(server, "state", "halted");
        assert_eq!(counter(server, "like"), "15");
    }
}

fn long(member: u64, bytes: usize) -> Vec<u8> {
    let line = like(member);
    let filler = "x".repeat(bytes);
    line.replace("}", &format!(",\"filler\":\"{filler}\"}}")).into_bytes()
}

#[test]
fn a_message_above_the_size_of_a_fetch_is_read_by_itself() {
    let Some(brokers) = Brokers::<Nats>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let config = folder.path().join("nats.conf");
    std::fs::write(&config, "max_payload: 16MB\n").unwrap();
    broker.down();
    broker.up_with(&["-c".to_owned(), config.display().to_string()]);
    let port = broker.port;
    let sizes = [10, 10, 9 << 20, 10, 12 << 20, 9 << 20, 10];
    nats(
        async |context| {
            for (size, member) in sizes.into_iter().zip(0..) {
                let message = long(member, size).into();
                context.publish("events.a", message).await.unwrap().await.unwrap();
            }
        },
        port,
    );
    let server = serve(&folder.path().join("here"), 0, &source(&broker, ""));
    until("all events are counted", || counter(&server, "like") == sizes.len().to_string());
    until("the lag is 0", || field(&server, "lag") == "0");
    assert_eq!(field(&server, "poison"), "0");
}

/// Appends random letters, so that the line does not compress.
fn random(mut line: Vec<u8>, bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(7);
    line.pop();
    line.extend_from_slice(b",\"more\":\"");
    line.extend(std::iter::repeat_with(|| rng.alphanumeric() as u8).take(bytes));
    line.extend_from_slice(b"\"}");
    line
}

/// All trimmed messages had been read. A new reader detects this from the last message number of
/// the stream.
#[test]
fn a_stream_of_redis_that_is_trimmed_to_nothing_has_no_gap() {
    let Some(brokers) = Brokers::<Redis>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let (dir, config) = (folder.path().join("here"), source(&broker, ""));
    let server = serve(&dir, 0, &config);
    (1..=3).for_each(|id| add(&broker, id, &like(id)));
    until("three events are counted", || counter(&server, "like") == "3");
    redis_cmd(&broker, &["XTRIM", Redis::STREAM, "MAXLEN", "0"]);
    asked(&server, "WAITAOF 1 0 0");
    server.kill();
    let server = serve(&dir, 0, &config);
    wait_for_field(&server, "state", "running");
    add(&broker, 4, &like(4));
    until("the next event is counted", || counter(&server, "like") == "4");
    assert_eq!(field(&server, "gaps"), "0");
}

/// Events for an action that does not exist yet wait until it does; they are not malformed.
#[test]
fn events_of_an_action_that_is_not_there_wait_for_it() {
    let Some(brokers) = Brokers::<Redis>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let more = "events = [\"like = act cheer\"]";
    let server = serve(&folder.path().join("here"), 0, &source(&broker, more));
    wait_for_field(&server, "state", "waiting");
    let said = field(&server, "last_error");
    assert!(said.contains("no such action 'cheer'"), "{said}");
    add(&broker, 1, &like(1));
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!((field(&server, "poison"), field(&server, "state")), ("0".into(), "waiting".into()));
    asked(&server, "TM.ACTION CREATE cheer flag liked counter post.like");
    until("the event is counted", || counter(&server, "like") == "1");
    assert_eq!((field(&server, "poison"), field(&server, "last_error")), ("0".into(), "".into()));
}

/// Tests that need a Kafka broker, which `./test --all` compiles.
mod full {
    use super::*;

    #[test]
    fn kafka_batch_above_fetch_size_is_fetched_with_larger_limit() {
        let Some(brokers) = Brokers::<Kafka>::here() else { return };
        let folder = tempfile::tempdir().unwrap();
        let broker = brokers.start(&folder.path().join("broker"));
        for (member, size) in [(1, 10), (2, 3 << 20), (3, 10)] {
            produce(broker.port, &[random(long(member, 0), size)]);
        }
        let server = serve(&folder.path().join("here"), 0, &source(&broker, ""));
        until("all events are counted", || counter(&server, "like") == "3");
        // The server asks the broker for the lag periodically.
        until("the lag is 0", || field(&server, "lag") == "0");
        assert_eq!(field(&server, "state"), "running");
    }

    /// The server logs an unreachable broker once, not at each attempt.
    #[test]
    fn a_kafka_that_is_away_does_not_fill_the_log() {
        let Some(_) = Brokers::<Kafka>::here() else { return };
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("tidemark.toml");
        let text = "[[ingest]]\nname = \"e\"\nurl = \"kafka://127.0.0.1:1\"\nstream = \"s\"\n";
        std::fs::write(&config, text).unwrap();
        let options = ["--config", config.to_str().unwrap()];
        let dir = folder.path().join("data");
        let (server, lines) = Program::start_until(&[], &dir, &options, "ready to accept").unwrap();
        wait_for_field(&server, "state", "failing");
        std::thread::sleep(std::time::Duration::from_secs(5));
        assert!(field(&server, "last_error").starts_with("partition 0: Kafka"));
        server.kill();
        let lines: Vec<String> = lines.map_while(Result::ok).collect();
        let about = |line: &&String| line.contains("connect") || line.contains("ingest");
        let said = lines.iter().filter(about).count();
        assert!((1..=3).contains(&said), "{lines:#?}");
    }
}
