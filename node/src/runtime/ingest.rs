//! Sources of events as the process knows them: what is configured, how they stand, and what an
//! operator has told them. The thread that reads them is `crate::ingest`.

use crate::config::{Broker, Ingest, Mapped};
use crate::runtime::counters::Tallies;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use tokio::sync::Notify;

/// How a partition of a source stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Its events are taken over.
    Running,
    /// This node is a replica, or still loads.
    #[default]
    Idle,
    /// TM.INGEST PAUSE.
    Paused,
    /// The broker is being connected to.
    Connecting,
    /// Changes are not taken at the moment: the log, a space without room, CLIENT PAUSE.
    Waiting,
    /// The broker cannot be read; it is tried again.
    Failing,
    /// It goes on when an operator says so.
    Halted,
}

impl State {
    /// As TM.INGEST calls it.
    pub fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Idle => "idle",
            State::Paused => "paused",
            State::Connecting => "connecting",
            State::Waiting => "waiting",
            State::Failing => "failing",
            State::Halted => "halted",
        }
    }
}

/// How a partition stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    /// What the reader does.
    pub state: State,
    /// Messages of the broker that are not taken over yet, as it said last; `None`: it was not
    /// asked yet. A pause leaves it as it was.
    pub lag: Option<u64>,
}

/// One source.
pub struct Source {
    /// Its section of the configuration.
    pub config: Ingest,
    /// The kind of its broker.
    pub broker: Broker,
    /// Its types of events.
    pub mapped: Vec<Mapped>,
    paused: AtomicBool,
    /// Rises with RESUME and SETOFFSET: what is halted tries again.
    orders: AtomicU64,
    /// Wakes its readers after an order.
    pub told: Notify,
    /// Each partition's reader.
    pub partitions: Mutex<BTreeMap<u32, Standing>>,
    /// Messages that were taken over.
    pub messages: AtomicU64,
    /// Events in them.
    pub events: AtomicU64,
    /// Actions that were done already, or were not to be undone.
    pub repeated: AtomicU64,
    /// Actions on ids below the horizon.
    pub unknown: AtomicU64,
    /// Messages that cannot be understood.
    pub poison: AtomicU64,
    /// Of these, the ones that no dead-letter file has.
    pub poison_dropped: AtomicU64,
    /// Times that the broker had dropped what comes next.
    pub gaps: AtomicU64,
    /// Messages that were lost so.
    pub gap_messages: AtomicU64,
    /// Connections after the first.
    pub reconnects: AtomicU64,
    /// Events of the last second.
    pub rate: AtomicU64,
    /// How long its broker may be silent when it is asked; 0: the usual time.
    pub patience_s: AtomicU64,
    last_error: Mutex<String>,
    /// What is in the way of partitions now.
    troubles: Mutex<BTreeMap<u32, String>>,
}

impl Source {
    fn new(config: &Ingest) -> Result<Source, String> {
        Ok(Source {
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
            troubles: Mutex::default(),
        })
    }

    /// TM.INGEST PAUSE.
    pub fn is_paused(&self) -> bool {
        self.paused.load(SeqCst)
    }

    /// PAUSE and RESUME; a RESUME sets going what has halted, too.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, SeqCst);
        self.order();
    }

    /// What waits for an operator looks again.
    pub fn order(&self) {
        self.orders.fetch_add(1, SeqCst);
        self.told.notify_waiters();
    }

    /// How many orders it was given: a reader sees by it that there is a new one.
    pub fn orders(&self) -> u64 {
        self.orders.load(SeqCst)
    }

    /// Notes what a partition's reader does. What was in its way is not, when it runs.
    pub fn stand(&self, partition: u32, state: State) {
        let before = {
            let mut partitions = self.partitions.lock();
            std::mem::replace(&mut partitions.entry(partition).or_default().state, state)
        };
        if state == State::Running && before != State::Running {
            self.troubles.lock().remove(&partition);
        }
    }

    /// The reader of a partition has lost the broker, which has said nothing of late: that nothing
    /// waits there is not known any more.
    pub fn lag_is_unknown(&self, partition: u32) {
        let mut partitions = self.partitions.lock();
        let lag = &mut partitions.entry(partition).or_default().lag;
        *lag = lag.filter(|lag| *lag > 0);
    }

    /// Notes how many messages a partition has that were not read.
    pub fn lags(&self, partition: u32, lag: u64) {
        self.partitions.lock().entry(partition).or_default().lag = Some(lag);
    }

    /// The state of the partition that stands worst; and the messages of all that wait.
    pub fn standing(&self) -> Standing {
        let partitions = self.partitions.lock();
        Standing {
            state: partitions.values().map(|standing| standing.state).max().unwrap_or_default(),
            lag: partitions.values().map(|standing| standing.lag).sum(),
        }
    }

    /// Whether there may be such a partition: those of a broker that was not asked yet are unknown.
    pub fn may_have(&self, partition: u32) -> bool {
        match self.broker {
            Broker::Kafka => {
                let known = self.partitions.lock();
                known.values().all(|standing| standing.lag.is_none())
                    || known.contains_key(&partition)
            }
            Broker::Nats | Broker::Redis => partition == 0,
        }
    }

    /// What is in the way of a partition, until it runs. Whether that is new.
    pub fn note_trouble(&self, partition: u32, why: &str) -> bool {
        let text = match self.broker {
            Broker::Kafka => format!("partition {partition}: {why}"),
            Broker::Nats | Broker::Redis => why.to_owned(),
        };
        let before = self.troubles.lock().insert(partition, text);
        before.is_none_or(|before| !before.ends_with(why))
    }

    /// What went wrong last that no later success mends: a gap, poison. Whether that is new.
    pub fn note_error(&self, error: &str) -> bool {
        let mut last = self.last_error.lock();
        let is_new = *last != error;
        if is_new {
            error.clone_into(&mut last);
        }
        is_new
    }

    /// What is in the way now; else what went wrong last. One line.
    pub fn last_error(&self) -> String {
        let trouble = self.troubles.lock().values().next().cloned();
        let text = trouble.unwrap_or_else(|| self.last_error.lock().clone());
        text.replace(['\r', '\n'], " ")
    }

    /// An offset as the broker's tools show it.
    pub fn shown(&self, message: u128) -> String {
        match self.broker {
            Broker::Redis => format!("{}-{}", message >> 64, message as u64),
            Broker::Nats | Broker::Kafka => self.number(message).to_string(),
        }
    }

    /// The part of an offset that counts messages. JetStream's numbers have 64 bits, and its
    /// offsets say in front of them of which stream they are (`server/src/ingest/nats.rs`).
    pub fn number(&self, message: u128) -> u128 {
        match self.broker {
            Broker::Nats => u128::from(message as u64),
            Broker::Kafka | Broker::Redis => message,
        }
    }

    /// Reads one.
    pub fn read_offset(&self, text: &[u8]) -> Option<u128> {
        match self.broker {
            Broker::Redis => {
                let dash = text.iter().position(|&byte| byte == b'-')?;
                let (ms, seq) = (resp::natural(&text[..dash])?, resp::natural(&text[dash + 1..])?);
                Some(u128::from(ms) << 64 | u128::from(seq))
            }
            // Sequences begin with 1.
            Broker::Nats => resp::natural(text).filter(|next| *next > 0).map(u128::from),
            Broker::Kafka => {
                resp::natural(text).filter(|offset| i64::try_from(*offset).is_ok()).map(u128::from)
            }
        }
    }
}

/// All sources.
#[derive(Default)]
pub struct Ingests {
    /// All of them, as configured.
    pub sources: Vec<Arc<Source>>,
    /// Whether the thread is in a turn, as a worker's tallies say it.
    pub tallies: Tallies,
}

impl Ingests {
    /// Those that are configured; the configuration has been checked.
    pub(crate) fn new(configured: &[Ingest]) -> Ingests {
        let source = |config| Source::new(config).ok().map(Arc::new);
        Ingests {
            sources: configured.iter().filter_map(source).collect(),
            tallies: Tallies::default(),
        }
    }

    /// The name of a source that has events for a target, an action or space.field, of this kind.
    pub fn source_for(&self, is: impl Fn(&str) -> bool) -> Option<&str> {
        let mut sources = self.sources.iter();
        let used = sources.find(|source| source.mapped.iter().any(|event| is(&event.target)));
        used.map(|source| source.config.name.as_str())
    }

    /// The source of this name.
    pub fn find(&self, name: &[u8]) -> Option<&Arc<Source>> {
        self.sources.iter().find(|source| source.config.name.as_bytes() == name)
    }
}
