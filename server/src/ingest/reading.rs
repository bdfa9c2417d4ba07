//! Parts shared by all broker readers: chunks of messages, errors, gap reports.

use node::config::Broker;
use node::runtime::ingest::Source;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Approximate number of bytes per read. This many bytes are buffered per partition.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

pub(super) const CHUNK_MESSAGES: usize = 4096;

/// Timeout for a reply of the broker. The timeout doubles each time it expires, up to
/// `MAX_ANSWER_TIMEOUT`.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) const MAX_ANSWER_TIMEOUT: Duration = Duration::from_secs(320);

/// Maximum time that a reader waits for the next message.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// Reason why reading a partition stopped.
pub(super) enum ReadStopReason {
    /// A change of role, a pause, a new offset, or a shutdown stopped the reader.
    Ordered,
    /// Broker error; the reader retries.
    Broken(String),
    /// An operator must decide how to continue. The reader does not retry.
    Halt(String),
}

impl From<io::Error> for ReadStopReason {
    fn from(error: io::Error) -> ReadStopReason {
        ReadStopReason::Broken(error.to_string())
    }
}

#[derive(Default)]
pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    pub(super) messages: Vec<Message>,
    /// Number of messages after this chunk, if the broker has reported it.
    pub(super) lag: Option<u64>,
}

pub(super) struct Message {
    pub(super) offset: u128,
    /// Range of the payload in [`Chunk::bytes`].
    pub(super) payload: Range<usize>,
    /// Hash stored with the offset; 0 for a placeholder of removed messages.
    pub(super) hash: u64,
}

/// Hash of a message's content; never 0.
pub(super) fn hash_of(content: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(content).max(1)
}

impl Chunk {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(2 * CHUNK_BYTES);
        self.messages.clear();
        self.lag = None;
    }

    pub(super) fn push(&mut self, offset: u128, payload: &[u8], hash: u64) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        self.messages.push(Message { offset, payload: start..self.bytes.len(), hash });
    }

    /// Adds a placeholder for removed messages, up to and including `last`.
    pub(super) fn pass_over(&mut self, last: u128) {
        self.push(last, b"", 0);
    }
}

/// Limits the time that the broker may take to reply. The reader thus reconnects if a broker or a
/// link hangs. Each timeout doubles the next timeout, because a slow broker may still process the
/// abandoned request.
pub(super) async fn with_timeout<T>(
    source: &Source,
    answer: impl Future<Output = T>,
) -> Result<T, ReadStopReason> {
    let patience = Duration::from_secs(source.patience_s.load(Relaxed)).max(ANSWER_TIMEOUT);
    tokio::time::timeout(IDLE + patience, answer).await.map_err(|_| {
        source.patience_s.store((2 * patience).min(MAX_ANSWER_TIMEOUT).as_secs(), Relaxed);
        ReadStopReason::Broken(format!(
            "no reply from the broker within {} s",
            (IDLE + patience).as_secs()
        ))
    })
}

/// Records that the broker removed messages before they were read. Always logs this event. `lost`
/// is the number of removed messages, if known.
pub(super) fn record_gap(source: &Source, partition: u32, lost: Option<u64>, from: u128, to: u128) {
    source.gaps.fetch_add(1, Relaxed);
    source.gap_messages.fetch_add(lost.unwrap_or(0), Relaxed);
    let many = lost.map_or_else(|| "an unknown number of".to_owned(), |lost| lost.to_string());
    let of = match source.broker {
        Broker::Kafka => format!(" of partition {partition}"),
        Broker::Nats | Broker::Redis => String::new(),
    };
    let text = format!(
        "gap: lost {many} messages{of} from {} to before {}: the broker removed them before they \
         were read",
        source.shown(from),
        source.shown(to)
    );
    source.note_error(&text);
    tracing::error!("ingest '{}': {text}", source.config.name);
}

/// Error for a stream that ends before the stored offset.
pub(super) fn ends_before(source: &Source, end: u128, next: u128) -> ReadStopReason {
    let (end, next) = (source.shown(end), source.shown(next));
    ReadStopReason::Halt(format!(
        "the stream ends at {end}, before the stored offset {next}: it was replaced or truncated; \
         set the offset with TM.INGEST SETOFFSET"
    ))
}

/// Fails if the broker's message differs from the message that was applied last. `found` is the
/// hash of the broker's message, or `None` if the broker no longer has the message.
pub(super) fn compare(
    source: &Source,
    last: u128,
    found: Option<u64>,
    taken: u64,
) -> Result<(), ReadStopReason> {
    if found.is_none_or(|hash| hash == taken) {
        return Ok(());
    }
    Err(ReadStopReason::Halt(format!(
        "the message at {} differs from the one that was read there: the stream was replaced or \
         truncated; set the offset with TM.INGEST SETOFFSET",
        source.shown(last)
    )))
}
