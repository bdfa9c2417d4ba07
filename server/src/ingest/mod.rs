//! Ingest applies broker events exactly once. It runs on a thread of the master.
//!
//! ```text
//!   broker -> nats, kafka, redis   one reader per partition, from the stored offset on
//!          -> event                parses events; malformed ones are poison (dead.rs)
//!          -> take                 commits some hundred events and the offset in one batch
//! ```
//!
//! The authoritative offset is in Tidemark's log, committed together with the rows
//! (`dataset/src/offsets.rs`). Readers send no acknowledgements to the broker. After a crash, a
//! lost link or a failover, a new reader starts at that offset.
//!
//! The stored offset also contains a hash of the last message that was applied. A new reader
//! compares this hash with that of the broker's message at the same offset. This detects a broker
//! that has lost the end of its stream and assigned the same numbers to other messages.

mod dead;
mod event;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
mod reading;
mod redis;
mod take;

use dataset::offsets::Offset;
use node::config::{Broker, Ingest, IngestStart};
use node::roles::node::Host;
use node::runtime::ingest::{IngestSource, SourceState};
use reading::{Chunk, ReadStopReason, compare, with_timeout};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use take::may_read;
use tokio::task::JoinSet;

/// Interval at which a waiting source checks whether it may read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Retry delay after the first failure. The delay doubles with each further failure, up to
/// `MAX_RETRY_DELAY`.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Interval at which a topic is checked for new partitions.
const PARTITION_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of partitions read per topic; each needs a task and a buffer.
const MAX_PARTITIONS: usize = 4096;
/// Reader of one partition, for each kind of broker.
enum Reader {
    #[cfg(feature = "nats")]
    Nats(Box<nats::Reader>),
    #[cfg(feature = "kafka")]
    Kafka(kafka::Reader),
    Redis(Box<redis::Reader>),
}

/// Returns the partitions of a source. For a broker without partitions, returns one partition with
/// number 0.
async fn partitions(config: &Ingest, broker: Broker) -> Result<Vec<u32>, ReadStopReason> {
    match broker {
        #[cfg(feature = "kafka")]
        Broker::Kafka => kafka::partitions(config).await,
        _ => {
            let _ = config;
            Ok(vec![0])
        }
    }
}

impl Reader {
    /// Opens a reader that starts at the offset `at`. If there is no offset, the reader starts
    /// after the last message if `is_new`, and at the first message otherwise. Also returns the
    /// offset at which the reader starts.
    async fn open(
        source: &IngestSource,
        partition: u32,
        at: Option<Offset>,
        is_new: bool,
    ) -> Result<(Reader, Offset), ReadStopReason> {
        let next = at.map(|at| at.message);
        let (mut reader, next) = match source.broker {
            #[cfg(feature = "nats")]
            Broker::Nats => {
                let (reader, next) = nats::Reader::open(source, at, is_new).await?;
                (Reader::Nats(Box::new(reader)), next)
            }
            #[cfg(feature = "kafka")]
            Broker::Kafka => {
                let (reader, next) = kafka::Reader::open(source, partition, next, is_new).await?;
                (Reader::Kafka(reader), next)
            }
            Broker::Redis => {
                let (reader, next) = redis::Reader::open(source, next, is_new).await?;
                (Reader::Redis(Box::new(reader)), next)
            }
            #[cfg(not(all(feature = "nats", feature = "kafka")))]
            _ => {
                return Err(ReadStopReason::Halt(
                    "this program was built without support for the broker".to_owned(),
                ));
            }
        };
        let _ = partition;
        if let Some(at) = at.filter(|at| at.hash != 0) {
            reader.check_last(source, at).await?;
        }
        // After a gap, the event count refers to a message that the broker has removed. The count
        // therefore restarts at 0.
        let at = at.filter(|at| source.number(at.message) == source.number(next));
        let at = at.map(|at| Offset { message: next, ..at });
        Ok((reader, at.unwrap_or(Offset { message: next, ..Offset::default() })))
    }

    /// Fails if the broker has a different message at the last applied offset. If the broker has
    /// removed the message, the check is skipped.
    async fn check_last(
        &mut self,
        source: &IngestSource,
        at: Offset,
    ) -> Result<(), ReadStopReason> {
        let Some(last) = at.message.checked_sub(u128::from(at.events == 0)) else { return Ok(()) };
        let found = match self {
            // The NATS reader compares at its first read.
            #[cfg(feature = "nats")]
            Reader::Nats(_) => None,
            #[cfg(feature = "kafka")]
            Reader::Kafka(reader) => reader.hash_of(last).await?,
            Reader::Redis(reader) => reader.hash_of(source, last).await?,
        };
        compare(source, last, found, at.hash)
    }

    /// Waits up to [`reading::IDLE`] for messages from `next` on, and adds them to `chunk`.
    async fn read(
        &mut self,
        source: &IngestSource,
        next: u128,
        chunk: &mut Chunk,
    ) -> Result<(), ReadStopReason> {
        match self {
            #[cfg(feature = "nats")]
            Reader::Nats(reader) => reader.read(source, next, chunk).await,
            #[cfg(feature = "kafka")]
            Reader::Kafka(reader) => reader.read(source, next, chunk).await,
            Reader::Redis(reader) => reader.read(source, next, chunk).await,
        }
    }
}

pub(crate) fn run(host: &Arc<Host>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let mut flows = JoinSet::new();
        for source in &host.ingest.sources {
            flows.spawn_local(all_partitions(host.clone(), source.clone()));
            flows.spawn_local(measure(source.clone()));
        }
        tokio::select! {
            () = host.stop.wait() => {}
            // A task only ends if it panics.
            ended = flows.join_next() => {
                if let Some(Err(error)) = ended
                    && error.is_panic()
                {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
        }
    });
    Ok(())
}

async fn measure(source: Arc<IngestSource>) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    let mut before = 0;
    loop {
        second.tick().await;
        let now = source.events.load(Relaxed);
        source.rate.store(now.wrapping_sub(before), Relaxed);
        before = now;
    }
}

/// Reads all partitions of a source forever, and starts reading new partitions as they appear.
async fn all_partitions(host: Arc<Host>, source: Arc<IngestSource>) {
    let mut known = 0;
    let mut flows = JoinSet::new();
    let name = &source.config.name;
    let mut backoff = MIN_RETRY_DELAY;
    loop {
        wait_until_allowed(&host, &source, 0, known == 0).await;
        let all = with_timeout(&source, partitions(&source.config, source.broker))
            .await
            .unwrap_or_else(Err);
        let all = all.map(|mut all| {
            if all.len() > MAX_PARTITIONS {
                let why = format!(
                    "the topic has {} partitions, but only {MAX_PARTITIONS} are read",
                    all.len()
                );
                all.sort_unstable();
                all.truncate(MAX_PARTITIONS);
                if known == 0 {
                    source.note_error(&why);
                    tracing::error!("ingest '{name}': {why}");
                }
            }
            all
        });
        let rest = match all {
            Ok(all) => {
                // The number of partitions never decreases. Partitions added later are read from
                // their beginning.
                let from = known;
                let offsets = host.node().engines().offsets.list();
                let is_new = source.config.start == IngestStart::New
                    && offsets.iter().all(|(other, ..)| **other != **name);
                for partition in all.into_iter().filter(|partition| *partition >= from) {
                    flows.spawn_local(run_partition(
                        host.clone(),
                        source.clone(),
                        partition,
                        is_new,
                    ));
                    known = partition + 1;
                }
                backoff = MIN_RETRY_DELAY;
                PARTITION_CHECK_INTERVAL
            }
            Err(trouble) => {
                if known == 0 {
                    failed(&source, 0, &trouble);
                }
                backoff = (backoff * 2).min(MAX_RETRY_DELAY);
                backoff
            }
        };
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            ended = flows.join_next(), if !flows.is_empty() => {
                if let Some(Err(error)) = ended
                    && error.is_panic()
                {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
        }
    }
}

/// Waits until this node may read the source.
async fn wait_until_allowed(host: &Host, source: &IngestSource, partition: u32, says: bool) {
    while let Err(state) = may_read(host, source) {
        if says {
            source.stand(partition, state);
            // A replica reports a lag of 0, because it does not read the source. A paused source
            // keeps reporting its lag.
            if state == SourceState::Idle {
                source.lags(partition, 0);
            }
        }
        let _ = tokio::time::timeout(POLL_INTERVAL, source.told.notified()).await;
    }
}

/// Records an error for INFO, and logs it if it is new.
fn failed(source: &IngestSource, partition: u32, trouble: &ReadStopReason) {
    let (state, why) = match trouble {
        ReadStopReason::Ordered => return,
        ReadStopReason::Broken(why) => (SourceState::Failing, why),
        ReadStopReason::Halt(why) => (SourceState::Halted, why),
    };
    // Set the reason before the state, so that TM.INGEST LIST never shows a failing source without
    // a reason.
    let is_new = source.note_trouble(partition, why);
    source.stand(partition, state);
    source.lag_is_unknown(partition);
    if is_new {
        tracing::warn!("ingest '{}', partition {partition}: {why}", source.config.name);
    }
}

/// Reads one partition forever, with retries.
async fn run_partition(host: Arc<Host>, source: Arc<IngestSource>, partition: u32, is_new: bool) {
    let mut backoff = MIN_RETRY_DELAY;
    loop {
        wait_until_allowed(&host, &source, partition, true).await;
        let orders = source.orders();
        let before = source.messages.load(Relaxed);
        let Err(trouble) = read_on(&host, &source, partition, is_new).await;
        failed(&source, partition, &trouble);
        match trouble {
            ReadStopReason::Ordered => {}
            ReadStopReason::Broken(_) => {
                source.reconnects.fetch_add(1, Relaxed);
                let has_read = source.messages.load(Relaxed) != before;
                if has_read {
                    source.patience_s.store(0, Relaxed);
                }
                backoff =
                    if has_read { MIN_RETRY_DELAY } else { (backoff * 2).min(MAX_RETRY_DELAY) };
                // Jitter spreads reconnects of several partitions.
                let rest = backoff.mul_f64(0.75 + fastrand::f64() / 2.0);
                let _ = tokio::time::timeout(rest, source.told.notified()).await;
            }
            ReadStopReason::Halt(_) => {
                while source.orders() == orders && may_read(&host, &source).is_ok() {
                    let _ = tokio::time::timeout(POLL_INTERVAL, source.told.notified()).await;
                }
            }
        }
    }
}

/// Reads a partition from the stored offset until an error or a command stops it.
async fn read_on(
    host: &Arc<Host>,
    source: &IngestSource,
    partition: u32,
    is_new: bool,
) -> Result<std::convert::Infallible, ReadStopReason> {
    // Read the command counter before the offset. If a command changes the offset later, the change
    // of the counter then stops this reader.
    let orders = source.orders();
    source.stand(partition, SourceState::Connecting);
    let known = host.node().engines().offsets.get(&source.config.name, partition);
    let (mut reader, at) =
        with_timeout(source, Reader::open(source, partition, known, is_new)).await??;
    let mut taker = take::EventApplier::new(host, source, partition, known, at).await?;
    source.stand(partition, SourceState::Running);
    let mut chunk = Chunk::default();
    loop {
        if source.orders() != orders || may_read(host, source).is_err() {
            return Err(ReadStopReason::Ordered);
        }
        chunk.clear();
        tokio::select! {
            read = with_timeout(source, reader.read(source, taker.next(), &mut chunk)) => read??,
            () = source.told.notified() => return Err(ReadStopReason::Ordered),
        }
        if let Some(lag) = chunk.lag {
            source.lags(partition, lag + chunk.messages.len() as u64);
        }
        taker.take(&chunk).await?;
        if let Some(lag) = chunk.lag {
            source.lags(partition, lag);
        }
    }
}
