//! What the readers of all brokers share: messages that were read together, and what can go wrong.

use node::config::Broker;
use node::runtime::ingest::Source;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Bytes of messages that one read may bring, about: so much is held per partition.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// Messages of one read.
pub(super) const CHUNK_MESSAGES: usize = 4096;

/// How long a broker may be silent when it is asked; and one that was silent so long before.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

pub(super) const PATIENCE_MOST: Duration = Duration::from_secs(320);

/// How long a reader waits for the next message.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// Why a partition is not read on.
pub(super) enum Trouble {
    /// It is not to be: another role, a pause, another offset, the end.
    Ordered,
    /// The broker; it is tried again.
    Broken(String),
    /// An operator has to decide.
    Halt(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Broken(error.to_string())
    }
}

/// Messages that were read together.
#[derive(Default)]
pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    pub(super) messages: Vec<Message>,
    /// Messages behind these, as far as the broker has said; `None`: it has not.
    pub(super) lag: Option<u64>,
}

/// A message of a chunk.
pub(super) struct Message {
    pub(super) offset: u128,
    /// In [`Chunk::bytes`].
    pub(super) payload: Range<usize>,
    /// As the data set keeps it; 0 for one that stands for messages which are gone.
    pub(super) hash: u64,
}

/// The hash of a message, or of what makes one; never 0.
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

    /// Passes over messages that are gone, up to this one.
    pub(super) fn pass_over(&mut self, last: u128) {
        self.push(last, b"", 0);
    }
}

/// What a broker answers, if it does in time: one that hangs, or a link that lost its other end
/// without a word, is left, and tried anew. One that is only slow has twice as long then: what was
/// asked of it may keep it busy though no reader waits for the answer.
pub(super) async fn in_time<T>(
    source: &Source,
    answer: impl Future<Output = T>,
) -> Result<T, Trouble> {
    let patience = Duration::from_secs(source.patience_s.load(Relaxed)).max(PATIENCE);
    tokio::time::timeout(IDLE + patience, answer).await.map_err(|_| {
        source.patience_s.store((2 * patience).min(PATIENCE_MOST).as_secs(), Relaxed);
        Trouble::Broken(format!("the broker does not answer in {} s", (IDLE + patience).as_secs()))
    })
}

/// Messages were lost before they were read: the broker keeps them no more. `lost`: how many, if
/// that can be said. Never silent, whatever is done.
pub(super) fn note_gap(source: &Source, partition: u32, lost: Option<u64>, from: u128, to: u128) {
    source.gaps.fetch_add(1, Relaxed);
    source.gap_messages.fetch_add(lost.unwrap_or(0), Relaxed);
    let many = lost.map_or_else(|| "an unknown number of".to_owned(), |lost| lost.to_string());
    let of = match source.broker {
        Broker::Kafka => format!(" of partition {partition}"),
        Broker::Nats | Broker::Redis => String::new(),
    };
    let text = format!(
        "gap: {many} messages{of} from {} to before {} are lost: the broker removed them before \
         they were read",
        source.shown(from),
        source.shown(to)
    );
    source.note_error(&text);
    tracing::error!("ingest '{}': {text}", source.config.name);
}

/// What is said of a broker whose stream ends before our offset.
pub(super) fn ends_before(source: &Source, end: u128, next: u128) -> Trouble {
    let (end, next) = (source.shown(end), source.shown(next));
    Trouble::Halt(format!(
        "the stream ends at {end}, and it was read up to {next} already: it is another one, or has \
         lost its end; TM.INGEST SETOFFSET says where it is to be read from"
    ))
}

/// Fails if the message that was taken last is another one at the broker, which may not have it any
/// more.
pub(super) fn compare(
    source: &Source,
    last: u128,
    found: Option<u64>,
    taken: u64,
) -> Result<(), Trouble> {
    if found.is_none_or(|hash| hash == taken) {
        return Ok(());
    }
    Err(Trouble::Halt(format!(
        "the stream has another message at {} than the one that was read there: it has lost its \
         end and grown again, or is another one; TM.INGEST SETOFFSET says where it is to be read \
         from",
        source.shown(last)
    )))
}
