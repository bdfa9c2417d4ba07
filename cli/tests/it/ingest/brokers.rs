//! Runs brokers as processes: nats-server and redis-server from Debian, and tansu, a broker that
//! implements Kafka's protocol.

use super::message;
use harness::program::{cannot, freeze};
use rskafka::client::partition::{Compression, OffsetAt, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::{BackoffConfig, record::Record};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Number of messages per batch, about 2,000 events. After each batch, the publisher checks how
/// many messages the broker has stored.
fn sent_together() -> u64 {
    2000 / super::together()
}

pub(crate) trait Broker: Sized + Send + Sync + 'static {
    const PROGRAM: &'static str;
    const STREAM: &'static str;
    const PARTITIONS: u64;
    const FIRST: u64;

    fn command(program: &Path, port: u16, dir: &Path) -> Command;
    fn url(port: u16) -> String;
    fn prepare(port: u16);
    /// Publishes the messages of a partition that the broker has not stored yet. Returns early on
    /// an error.
    fn publish(port: u16, partition: u64, to: u64) -> Result<(), String>;
}

pub(crate) struct Brokers<B>(PathBuf, PhantomData<B>);

impl<B: Broker> Brokers<B> {
    /// Returns `None`, with a warning, if the broker is not installed.
    pub(crate) fn here() -> Option<Brokers<B>> {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders = std::env::split_paths(&path).chain([tools, PathBuf::from("/usr/sbin")]);
        let program = folders.find_map(|folder| {
            let program = folder.join(B::PROGRAM);
            program.exists().then_some(program)
        });
        if program.is_none() {
            cannot(&format!("{} is not installed: tests/clients/setup", B::PROGRAM));
        }
        program.map(|program| Brokers(program, PhantomData))
    }

    pub(crate) fn start(&self, dir: &Path) -> Running<B> {
        std::fs::create_dir_all(dir).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let running = Running {
            program: self.0.clone(),
            dir: dir.to_owned(),
            port,
            child: Mutex::new(None),
            kind: PhantomData,
        };
        running.up_with(&[]);
        B::prepare(port);
        running
    }
}

pub(crate) struct Running<B> {
    program: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) port: u16,
    child: Mutex<Option<Child>>,
    kind: PhantomData<B>,
}

impl<B: Broker> Running<B> {
    pub(crate) fn up_with(&self, more: &[String]) {
        let mut command = B::command(&self.program, self.port, &self.dir);
        command.args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        *self.child.lock().unwrap() = Some(command.spawn().unwrap());
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(30), "{} does not listen", B::PROGRAM);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn url(&self) -> String {
        B::url(self.port)
    }

    pub(crate) fn down(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn freeze(&self, is_frozen: bool) {
        freeze(self.child.lock().unwrap().as_ref().unwrap(), is_frozen);
    }

    pub(crate) fn kill_and_start(&self) {
        self.down();
        std::thread::sleep(Duration::from_millis(300));
        self.up_with(&[]);
    }

    /// Publishes `messages` messages to each partition, alternating between them, even if the
    /// broker is killed.
    pub(crate) fn publish_all(&self, messages: u64, is_over: &dyn Fn() -> bool) {
        let mut to = 0;
        while to < messages {
            to = messages.min(to + 4 * sent_together());
            for partition in 0..B::PARTITIONS {
                while let Err(why) = B::publish(self.port, partition, to) {
                    if is_over() {
                        return;
                    }
                    let _ = why;
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }
}

impl<B> Drop for Running<B> {
    fn drop(&mut self) {
        if let Some(child) = self.child.lock().unwrap().as_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn block_on<R>(work: impl Future<Output = R>) -> R {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn timely<T, E: std::fmt::Display>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    let late = |_| "it takes too long".to_owned();
    let done = tokio::time::timeout(Duration::from_secs(10), work).await.map_err(late)?;
    done.map_err(|error| error.to_string())
}

pub(crate) struct Nats;

impl Nats {
    pub(crate) async fn context(port: u16) -> Result<async_nats::jetstream::Context, String> {
        let client = timely(async_nats::connect(format!("127.0.0.1:{port}"))).await?;
        Ok(async_nats::jetstream::new(client))
    }
}

impl Broker for Nats {
    const PROGRAM: &'static str = "nats-server";
    const STREAM: &'static str = "EVENTS";
    const PARTITIONS: u64 = 1;
    const FIRST: u64 = 1;

    fn command(program: &Path, port: u16, dir: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"]).arg(dir);
        command
    }

    fn url(port: u16) -> String {
        format!("nats://127.0.0.1:{port}")
    }

    fn prepare(port: u16) {
        block_on(async {
            let config = async_nats::jetstream::stream::Config {
                name: Nats::STREAM.to_owned(),
                subjects: vec!["events.>".to_owned()],
                ..Default::default()
            };
            Nats::context(port).await.unwrap().create_stream(config).await.unwrap();
        });
    }

    fn publish(port: u16, _: u64, to: u64) -> Result<(), String> {
        block_on(async {
            let context = Nats::context(port).await?;
            let mut stream = timely(context.get_stream(Nats::STREAM)).await?;
            let kept = timely(stream.info()).await?.state.last_sequence;
            for from in (kept..to).step_by(sent_together() as usize) {
                let mut sent = Vec::new();
                for number in from..to.min(from + sent_together()) {
                    let text = message(number, 0, 1);
                    let subject = format!("events.{}", number % 10);
                    sent.push(timely(context.publish(subject, text.into())).await?);
                }
                for (sent, number) in sent.into_iter().zip(from..) {
                    let ack = timely(sent.into_future()).await?;
                    assert_eq!(ack.sequence, number + 1, "one publisher");
                }
            }
            Ok(())
        })
    }
}

pub(crate) struct Kafka;

impl Kafka {
    pub(crate) async fn client(port: u16) -> Result<Client, String> {
        // Disable automatic retries, because they could duplicate messages.
        let backoff = BackoffConfig { deadline: Some(Duration::ZERO), ..BackoffConfig::default() };
        let builder = ClientBuilder::new(vec![format!("127.0.0.1:{port}")]);
        timely(builder.backoff_config(backoff).build()).await
    }
}

impl Broker for Kafka {
    const PROGRAM: &'static str = "tansu";
    const STREAM: &'static str = "events";
    const PARTITIONS: u64 = 3;
    const FIRST: u64 = 0;

    fn command(program: &Path, port: u16, dir: &Path) -> Command {
        let mut command = Command::new(program);
        let url = format!("tcp://127.0.0.1:{port}");
        command.args(["broker", "--listener-url", &url, "--advertised-listener-url", &url]);
        // The database is a file in the broker's working folder.
        command.args(["--storage-engine", "sqlite:///events.db"]).current_dir(dir);
        command
    }

    fn url(port: u16) -> String {
        format!("kafka://127.0.0.1:{port}")
    }

    fn prepare(port: u16) {
        block_on(async {
            let began = Instant::now();
            loop {
                let made = async {
                    let client = Kafka::client(port).await?;
                    let controller = client.controller_client().map_err(|e| e.to_string())?;
                    timely(controller.create_topic(
                        Kafka::STREAM,
                        Kafka::PARTITIONS as i32,
                        1,
                        5000,
                    ))
                    .await
                };
                match made.await {
                    Ok(()) => return,
                    Err(why) => assert!(began.elapsed() < Duration::from_secs(30), "{why}"),
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }

    fn publish(port: u16, partition: u64, to: u64) -> Result<(), String> {
        block_on(async {
            let client = Kafka::client(port).await?;
            let number = partition as i32;
            let handling = UnknownTopicHandling::Error;
            let producer = timely(client.partition_client(Kafka::STREAM, number, handling)).await?;
            let kept = timely(producer.get_offset(OffsetAt::Latest)).await? as u64;
            for from in (kept..to).step_by(sent_together() as usize) {
                let record = |number| Record {
                    key: None,
                    value: Some(message(number, partition, Kafka::PARTITIONS).into_bytes()),
                    headers: BTreeMap::new(),
                    timestamp: rskafka::chrono::DateTime::UNIX_EPOCH,
                };
                let records: Vec<Record> =
                    (from..to.min(from + sent_together())).map(record).collect();
                let compression = match from % 2 {
                    0 => Compression::Lz4,
                    _ => Compression::NoCompression,
                };
                let offsets = timely(producer.produce(records, compression)).await?;
                assert_eq!(offsets.first(), Some(&(from as i64)), "one publisher");
            }
            Ok(())
        })
    }
}

pub(crate) struct Redis;

impl Redis {
    pub(crate) fn connection(port: u16) -> Result<redis::Connection, String> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/"));
        client.and_then(|client| client.get_connection()).map_err(|e| e.to_string())
    }
}

impl Broker for Redis {
    const PROGRAM: &'static str = "redis-server";
    const STREAM: &'static str = "events";
    const PARTITIONS: u64 = 1;
    const FIRST: u64 = 1;

    fn command(program: &Path, port: u16, dir: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "no", "--dir"]).arg(dir);
        command
    }

    fn url(port: u16) -> String {
        format!("redis://127.0.0.1:{port}")
    }

    fn prepare(_: u16) {}

    fn publish(port: u16, _: u64, to: u64) -> Result<(), String> {
        let mut connection = Redis::connection(port)?;
        let text = |e: redis::RedisError| e.to_string();
        let last: Vec<(String, Vec<String>)> = redis::cmd("XREVRANGE")
            .arg(Redis::STREAM)
            .arg("+")
            .arg("-")
            .arg("COUNT")
            .arg(1)
            .query(&mut connection)
            .map_err(text)?;
        let kept = last.first().map_or(0, |(id, _)| id[2..].parse::<u64>().unwrap());
        for from in (kept..to).step_by(sent_together() as usize) {
            let mut pipe = redis::pipe();
            for number in from..to.min(from + sent_together()) {
                let id = format!("0-{}", number + 1);
                let text = message(number, 0, 1);
                pipe.cmd("XADD").arg(Redis::STREAM).arg(id).arg("payload").arg(text).ignore();
            }
            pipe.query::<()>(&mut connection).map_err(text)?;
        }
        Ok(())
    }
}

pub(crate) trait Counted {
    fn messages(offset: &str) -> Option<u64>;
}

impl<B: Broker> Counted for B {
    fn messages(offset: &str) -> Option<u64> {
        Some(offset.rsplit('-').next()?.parse::<u64>().ok()? - B::FIRST)
    }
}
