//! Shared state of event sources: configuration, progress and operators' commands. The thread that
//! reads the sources is in `server/src/ingest`.

use crate::config::{Broker, Ingest, Mapped};
use crate::runtime::counters::Tallies;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use tokio::sync::Notify;

/// State of a partition's reader, ordered from best to worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceState {
    /// The reader applies events.
    Running,
    /// The node is a replica or is loading.
    #[default]
    Idle,
    /// TM.INGEST PAUSE has paused the reader.
    Paused,
    /// The reader connects to the broker.
    Connecting,
    /// The reader waits until changes are accepted, for example after a log failure, a full space
    /// or CLIENT PAUSE.
    Waiting,
    /// Reading from the broker fails. The reader retries.
    Failing,
    /// The reader is stopped until an operator's command.
    Halted,
}

impl SourceState {
    /// Returns the name in TM.INGEST.
    pub fn name(self) -> &'static str {
        match self {
            SourceState::Running => "running",
            SourceState::Idle => "idle",
            SourceState::Paused => "paused",
            SourceState::Connecting => "connecting",
            SourceState::Waiting => "waiting",
            SourceState::Failing => "failing",
            SourceState::Halted => "halted",
        }
    }
}

/// Progress of a partition.
#[derive(Clone, Copy, Debug, Default)]
pub struct IngestProgress {
    /// State of the partition's reader.
    pub state: SourceState,
    /// Number of unread messages in the broker's last report, or `None` before the first report. A
    /// pause does not change this number.
    pub lag: Option<u64>,
}

/// An event source.
pub struct IngestSource {
    /// Configuration of the source.
    pub config: Ingest,
    /// Kind of the broker.
    pub broker: Broker,
    /// Event types of the source.
    pub mapped: Vec<Mapped>,
    paused: AtomicBool,
    /// Number of commands so far (RESUME, SETOFFSET). A halted reader retries when it changes.
    orders: AtomicU64,
    /// Wakes the readers after a command.
    pub told: Notify,
    /// Progress of each partition.
    pub partitions: Mutex<BTreeMap<u32, IngestProgress>>,
    /// Number of messages read.
    pub messages: AtomicU64,
    /// Number of events applied.
    pub events: AtomicU64,
    /// Number of actions without effect, because the pair was already set or already unset.
    pub repeated: AtomicU64,
    /// Number of actions on ids below the horizon.
    pub unknown: AtomicU64,
    /// Number of messages that could not be parsed.
    pub poison: AtomicU64,
    /// Number of unparsable messages that were not written to a dead-letter file.
    pub poison_dropped: AtomicU64,
    /// Number of times that the broker had deleted the next messages before they were read.
    pub gaps: AtomicU64,
    /// Number of messages lost in these gaps.
    pub gap_messages: AtomicU64,
    /// Number of reconnections.
    pub reconnects: AtomicU64,
    /// Number of events in the last second.
    pub rate: AtomicU64,
    /// Timeout for the broker's replies, in seconds; 0 for the default.
    pub patience_s: AtomicU64,
    last_error: Mutex<String>,
    problems: Mutex<BTreeMap<u32, String>>,
}

impl IngestSource {
    fn new(config: &Ingest) -> Result<IngestSource, String> {
        Ok(IngestSource {
            broker: Broker::of(&config.url)?.0,
            mapped: Mapped::all(&config.events)?,
            config: config.clone(),
            paused: AtomicBool::new(false),
            orders: AtomicU64::new(0),
            told: Notify::new(),
            partitions: Mutex::default(),
            messages: AtomicU64::new(0),
            events: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            poison: AtomicU64::new(0),
            poison_dropped: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
            gap_messages: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            patience_s: AtomicU64::new(0),
            last_error: Mutex::default(),
            problems: Mutex::default(),
        })
    }

    /// Whether TM.INGEST PAUSE has paused the source.
    pub fn is_paused(&self) -> bool {
        self.paused.load(SeqCst)
    }

    /// Pauses or resumes reading. Resuming also restarts halted readers.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, SeqCst);
        self.order();
    }

    /// Makes halted readers retry.
    pub fn order(&self) {
        self.orders.fetch_add(1, SeqCst);
        self.told.notify_waiters();
    }

    /// Number of commands so far. A reader detects a new command when this number has changed.
    pub fn orders(&self) -> u64 {
        self.orders.load(SeqCst)
    }

    /// Sets the state of a partition's reader. The state `Running` clears the partition's problem.
    pub fn stand(&self, partition: u32, state: SourceState) {
        let before = {
            let mut partitions = self.partitions.lock();
            std::mem::replace(&mut partitions.entry(partition).or_default().state, state)
        };
        if state == SourceState::Running && before != SourceState::Running {
            self.problems.lock().remove(&partition);
        }
    }

    /// Marks a lag of 0 as unknown after the connection to the broker is lost. Retains a positive
    /// lag.
    pub fn lag_is_unknown(&self, partition: u32) {
        let mut partitions = self.partitions.lock();
        let lag = &mut partitions.entry(partition).or_default().lag;
        *lag = lag.filter(|lag| *lag > 0);
    }

    /// Sets a partition's number of unread messages.
    pub fn lags(&self, partition: u32, lag: u64) {
        self.partitions.lock().entry(partition).or_default().lag = Some(lag);
    }

    /// Returns the worst state of all partitions, and the sum of their lags.
    pub fn ingest_progress(&self) -> IngestProgress {
        let partitions = self.partitions.lock();
        IngestProgress {
            state: partitions
                .values()
                .map(|ingest_progress| ingest_progress.state)
                .max()
                .unwrap_or_default(),
            lag: partitions.values().map(|ingest_progress| ingest_progress.lag).sum(),
        }
    }

    /// Whether the partition may exist. Partitions of a Kafka topic are unknown until the broker
    /// has answered.
    pub fn may_have_partition(&self, partition: u32) -> bool {
        match self.broker {
            Broker::Kafka => {
                let known = self.partitions.lock();
                known.values().all(|ingest_progress| ingest_progress.lag.is_none())
                    || known.contains_key(&partition)
            }
            Broker::Nats | Broker::Redis => partition == 0,
        }
    }

    /// Sets a partition's problem, which is shown until the partition's reader runs again. Returns
    /// true if the problem is new.
    pub fn note_trouble(&self, partition: u32, why: &str) -> bool {
        let text = match self.broker {
            Broker::Kafka => format!("partition {partition}: {why}"),
            Broker::Nats | Broker::Redis => why.to_owned(),
        };
        let before = self.problems.lock().insert(partition, text);
        before.is_none_or(|before| !before.ends_with(why))
    }

    /// Sets the last permanent error, such as a gap. Later successes do not clear the error.
    /// Returns true if the error is new.
    pub fn note_error(&self, error: &str) -> bool {
        let mut last = self.last_error.lock();
        let is_new = *last != error;
        if is_new {
            error.clone_into(&mut last);
        }
        is_new
    }

    /// Returns a current problem as one line, or the last error if there is no problem.
    pub fn last_error(&self) -> String {
        let trouble = self.problems.lock().values().next().cloned();
        let text = trouble.unwrap_or_else(|| self.last_error.lock().clone());
        text.replace(['\r', '\n'], " ")
    }

    /// Formats an offset as the broker's tools do.
    pub fn shown(&self, message: u128) -> String {
        match self.broker {
            Broker::Redis => format!("{}-{}", message >> 64, message as u64),
            Broker::Nats | Broker::Kafka => self.number(message).to_string(),
        }
    }

    /// Returns the broker's sequence number in an offset. JetStream sequence numbers have 64 bits;
    /// the upper half of an offset identifies the stream (`server/src/ingest/nats.rs`).
    pub fn number(&self, message: u128) -> u128 {
        match self.broker {
            Broker::Nats => u128::from(message as u64),
            Broker::Kafka | Broker::Redis => message,
        }
    }

    /// Parses an offset, in the format of the broker's tools.
    pub fn read_offset(&self, text: &[u8]) -> Option<u128> {
        match self.broker {
            Broker::Redis => {
                let dash = text.iter().position(|&byte| byte == b'-')?;
                let (ms, seq) = (resp::natural(&text[..dash])?, resp::natural(&text[dash + 1..])?);
                Some(u128::from(ms) << 64 | u128::from(seq))
            }
            // Sequences of JetStream begin at 1.
            Broker::Nats => resp::natural(text).filter(|next| *next > 0).map(u128::from),
            Broker::Kafka => {
                resp::natural(text).filter(|offset| i64::try_from(*offset).is_ok()).map(u128::from)
            }
        }
    }
}

/// All event sources.
#[derive(Default)]
pub struct Ingests {
    /// Sources in the order of the configuration.
    pub sources: Vec<Arc<IngestSource>>,
    /// Counters of the ingest thread, which counts iterations like a worker.
    pub tallies: Tallies,
}

impl Ingests {
    /// Creates the configured sources. The configuration has been validated.
    pub(crate) fn new(configured: &[Ingest]) -> Ingests {
        let source = |config| IngestSource::new(config).ok().map(Arc::new);
        Ingests {
            sources: configured.iter().filter_map(source).collect(),
            tallies: Tallies::default(),
        }
    }

    /// Calls `is` for the target of each event: an action or `space.field`. Returns the name of the
    /// first source for which `is` returns true.
    pub fn source_for(&self, is: impl Fn(&str) -> bool) -> Option<&str> {
        let mut sources = self.sources.iter();
        let used = sources.find(|source| source.mapped.iter().any(|event| is(&event.target)));
        used.map(|source| source.config.name.as_str())
    }

    /// Returns the source with this name.
    pub fn find(&self, name: &[u8]) -> Option<&Arc<IngestSource>> {
        self.sources.iter().find(|source| source.config.name.as_bytes() == name)
    }
}
