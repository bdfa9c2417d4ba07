//! NATS JetStream reader: a pull consumer that starts at Tidemark's own offset.
//!
//! The consumer is ephemeral: the broker keeps it in memory and expects no acknowledgements. Any
//! anomaly, for example a jump of the consumer sequence after a reconnect, ends the reader. The
//! next reader starts over at the stored offset.

use super::reading::{ANSWER_TIMEOUT, CHUNK_BYTES, CHUNK_MESSAGES, Chunk, IDLE, ReadStopReason};
use super::reading::{compare, ends_before, hash_of, record_gap};
use async_nats::jetstream;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy, pull};
use async_nats::jetstream::stream::Stream;
use dataset::offsets::Offset;
use futures_util::StreamExt as _;
use node::runtime::ingest::IngestSource;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

/// Time without requests after which the broker deletes a consumer.
const CONSUMER_EXPIRY: Duration = Duration::from_secs(60);
/// Maximum response size in bytes. A larger message is requested individually.
const MAX_RESPONSE_BYTES: usize = 8 * CHUNK_BYTES;
/// Broker's error if the next message exceeds the requested size.
const TOO_LARGE: &str = "Message Size Exceeds MaxBytes";

fn broken(error: impl Display) -> ReadStopReason {
    ReadStopReason::Broken(format!("NATS: {error}"))
}

/// Reader of one stream.
///
/// The low 64 bits of an offset are the stream sequence, the high bits the stream's creation time.
/// The creation time detects that a stream was deleted and recreated, even if the sequence numbers
/// of the new stream have already reached the stored offset.
pub(super) struct Reader {
    client: async_nats::Client,
    /// Creation time of the stream, shifted to the high half of an offset.
    made: u128,
    stream: Stream,
    consumer: Consumer<pull::Config>,
    /// Consumer sequence of the last delivered message.
    delivered: u64,
    /// Stream sequence and hash of the last applied message, to be compared with the first message
    /// that arrives. `None` after this comparison.
    last: Option<(u64, u64)>,
    /// Whether the last message read was the last message of the stream.
    is_idle: bool,
}

/// Creation time of a stream in nanoseconds, shifted to the high half of an offset.
fn made_at(info: &jetstream::stream::Info) -> u128 {
    let nanoseconds = info.created.unix_timestamp_nanos();
    u128::from(u64::try_from(nanoseconds).unwrap_or(0)) << 64
}

/// Halts the source if the offset belongs to an earlier stream of this name. An offset that an
/// operator has set contains no creation time, and is accepted.
fn check_made(source: &IngestSource, ours: u128, made: u128) -> Result<(), ReadStopReason> {
    let (ours, made) = (ours >> 64, made >> 64);
    if ours == 0 || made == 0 || ours == made {
        return Ok(());
    }
    Err(ReadStopReason::Halt(format!(
        "the stream '{}' was deleted and created again, so the stored offset is invalid: set a \
         new one with TM.INGEST SETOFFSET",
        source.config.stream
    )))
}

async fn connect(source: &IngestSource) -> Result<async_nats::Client, ReadStopReason> {
    let config = &source.config;
    let mut options = async_nats::ConnectOptions::new()
        .name("tidemark")
        .connection_timeout(ANSWER_TIMEOUT / 2)
        .request_timeout(Some(ANSWER_TIMEOUT / 2))
        .require_tls(config.tls)
        // Do not reconnect, because after a lost connection a new reader with a new consumer is
        // needed.
        .max_reconnects(1)
        .subscription_capacity(2 * CHUNK_MESSAGES);
    options = match (config.user.as_str(), config.password.as_str()) {
        ("", "") => options,
        ("", token) => options.token(token.to_owned()),
        (user, password) => options.user_and_password(user.to_owned(), password.to_owned()),
    };
    if !config.ca_file.is_empty() {
        options = options.add_root_certificates(PathBuf::from(&config.ca_file));
    }
    let hosts = config.url.split_once("://").map_or("", |(_, hosts)| hosts);
    let servers: Vec<String> = hosts.split(',').map(|host| format!("nats://{host}")).collect();
    options.connect(servers).await.map_err(broken)
}

impl Reader {
    pub(super) async fn open(
        source: &IngestSource,
        at: Option<Offset>,
        is_new: bool,
    ) -> Result<(Reader, u128), ReadStopReason> {
        let config = &source.config;
        let client = connect(source).await?;
        let mut context = jetstream::new(client.clone());
        context.set_timeout(ANSWER_TIMEOUT / 2);
        let mut stream = context.get_stream(&config.stream).await.map_err(broken)?;
        let info = stream.info().await.map_err(broken)?;
        let (state, made) = (info.state.clone(), made_at(info));
        if let Some(at) = at {
            check_made(source, at.message, made)?;
        }
        let next = match at {
            Some(at) => source.number(at.message),
            None if is_new => u128::from(state.last_sequence) + 1,
            // The first sequence of an empty stream is 1, or follows its last removed message.
            None => u128::from(state.first_sequence.max(1)),
        };
        if u128::from(state.last_sequence) + 1 < next {
            return Err(ends_before(source, state.last_sequence.into(), next - 1));
        }
        let from = u64::try_from(next).unwrap_or(u64::MAX).max(1);
        let last = at.filter(|at| at.hash != 0).and_then(|at| {
            let last = from.checked_sub(u64::from(at.events == 0)).filter(|last| *last > 0);
            Some((last?, at.hash))
        });
        let begin = last.map_or(from, |(last, _)| last);
        let consumer = stream
            .create_consumer(pull::Config {
                deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: begin },
                ack_policy: AckPolicy::None,
                filter_subject: config.subject.clone(),
                inactive_threshold: CONSUMER_EXPIRY,
                memory_storage: true,
                num_replicas: 1,
                ..pull::Config::default()
            })
            .await
            .map_err(broken)?;
        let is_idle = state.last_sequence < begin;
        let reader = Reader { client, made, stream, consumer, delivered: 0, last, is_idle };
        Ok((reader, made | u128::from(from)))
    }

    pub(super) async fn read(
        &mut self,
        source: &IngestSource,
        next: u128,
        chunk: &mut Chunk,
    ) -> Result<(), ReadStopReason> {
        if self.client.connection_state() != async_nats::connection::State::Connected {
            return Err(broken("connection lost"));
        }
        // An idle reader waits for one message; otherwise fetch everything available.
        let mut batch = if self.is_idle {
            self.consumer.batch().max_messages(1).expires(IDLE).messages().await
        } else {
            let all = self
                .consumer
                .fetch()
                .max_messages(CHUNK_MESSAGES / 2)
                .max_bytes(MAX_RESPONSE_BYTES);
            all.messages().await
        }
        .map_err(broken)?;
        let next = source.number(next);
        let (mut expected, mut jumps) = (next, Vec::new());
        while let Some(message) = batch.next().await {
            let message = match message {
                // The next message is too large for this batch; the next read requests it alone.
                Err(error) if error.to_string().contains(TOO_LARGE) => break,
                message => message.map_err(broken)?,
            };
            let info = message.info().map_err(broken)?;
            if info.consumer_sequence != self.delivered + 1 {
                return Err(broken("lost messages in transit"));
            }
            self.delivered = info.consumer_sequence;
            let sequence = u128::from(info.stream_sequence);
            if let Some((last, hash)) = self.last.take()
                && sequence == u128::from(last)
            {
                compare(source, sequence, Some(hash_of(&message.payload)), hash)?;
                // Skip the last applied message, unless only some of its events were applied.
                if sequence < next {
                    chunk.lag = Some(info.pending);
                    continue;
                }
            }
            if sequence < expected {
                return Err(broken("duplicate message"));
            }
            if sequence > expected {
                jumps.push((expected, sequence));
            }
            chunk.lag = Some(info.pending);
            chunk.push(self.made | sequence, &message.payload, hash_of(&message.payload));
            expected = sequence + 1;
        }
        if !jumps.is_empty() {
            self.look_for_gap(source, &jumps).await?;
        }
        let is_idle = chunk.messages.is_empty() || chunk.lag == Some(0);
        if chunk.messages.is_empty() && self.is_idle {
            self.look_after(source, next, chunk).await?;
        }
        self.is_idle = is_idle;
        Ok(())
    }

    /// Determines how many of the messages skipped by a jump were removed; the remaining messages
    /// have a different subject. The first sequence of the stream only increases. If it is less
    /// than a skipped sequence now, it was also less when the message was delivered.
    async fn look_for_gap(
        &mut self,
        source: &IngestSource,
        jumps: &[(u128, u128)],
    ) -> Result<(), ReadStopReason> {
        let state = self.stream.info().await.map_err(broken)?.state.clone();
        let first = u128::from(state.first_sequence);
        let lost: u128 = jumps.iter().map(|&(from, to)| first.min(to).saturating_sub(from)).sum();
        if let (true, Some(&(from, _))) = (lost > 0, jumps.first()) {
            record_gap(source, 0, u64::try_from(lost).ok(), from, first);
        }
        Ok(())
    }

    /// Checks consumer and stream when no message arrives.
    async fn look_after(
        &mut self,
        source: &IngestSource,
        next: u128,
        chunk: &mut Chunk,
    ) -> Result<(), ReadStopReason> {
        let pending = self.consumer.info().await.map_err(broken)?.num_pending;
        let info = self.stream.info().await.map_err(broken)?;
        let state = info.state.clone();
        check_made(source, self.made, made_at(info))?;
        if u128::from(state.last_sequence) + 1 < next {
            return Err(ends_before(source, state.last_sequence.into(), next - 1));
        }
        let first = u128::from(state.first_sequence);
        if first > next && pending == 0 {
            // All messages up to the end of the stream were removed.
            record_gap(source, 0, u64::try_from(first - next).ok(), next, first);
            chunk.pass_over(self.made | (first - 1));
        }
        chunk.lag = Some(pending);
        Ok(())
    }
}
