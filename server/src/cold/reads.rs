//! Reading cold rows and flags for a turn: one job per block or pair, on threads of their own, all of them at the same time.

use super::{Cold, Key, PINS, PairFile, Read, Values};
use parking_lot::{Condvar, Mutex};
use phantom::Pair;
use quick_cache::DefaultHashBuilder;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::time::Instant;
use store::{BLOCK_BYTES, ColdFile};
use tokio::sync::oneshot;

/// Rows at hand for one turn; looked for several times each.
pub(crate) type Pins = HashMap<Key, Read, DefaultHashBuilder>;

/// Rows and pairs that a turn needs and that are not at hand.
#[derive(Default)]
pub(crate) struct Fetching {
    wanted: Vec<(Arc<ColdFile>, u64, u64)>,
    pairs: Vec<(Arc<PairFile>, Pair)>,
}

impl Fetching {
    pub(super) fn want(&mut self, file: &Arc<ColdFile>, block: u64, id: u64) {
        self.wanted.push((file.clone(), block, id));
    }

    pub(super) fn want_pair(&mut self, file: &Arc<PairFile>, pair: &Pair) {
        self.pairs.push((file.clone(), *pair));
    }

    /// Whether everything is at hand.
    pub(crate) fn is_ready(&self) -> bool {
        self.wanted.is_empty() && self.pairs.is_empty()
    }
}

/// What is to be read, and for whom.
struct Job {
    what: What,
    turn: Arc<Waiting>,
}

enum What {
    /// One block, and the rows that are wanted of it.
    Rows {
        file: Arc<ColdFile>,
        block: u64,
        ids: Vec<u64>,
    },
    Pair(Arc<PairFile>, Pair),
}

/// A turn that waits for its jobs.
struct Waiting {
    pins: Mutex<Pins>,
    left: AtomicUsize,
    done: Mutex<Option<oneshot::Sender<Pins>>>,
    asked: Instant,
}

/// The threads that read. They start with the first job, and end with this.
pub(super) struct Reads {
    threads: usize,
    started: OnceLock<()>,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    nudge: Condvar,
}

impl Reads {
    pub(super) fn new(threads: usize) -> Reads {
        Reads { threads: threads.max(1), started: OnceLock::new(), queue: Arc::default() }
    }

    fn start(&self, cold: &Arc<Cold>) {
        self.started.get_or_init(|| {
            for index in 0..self.threads {
                let (queue, cold) = (self.queue.clone(), Arc::downgrade(cold));
                let body = move || {
                    while let Some(job) = queue.take() {
                        let Some(cold) = cold.upgrade() else { return };
                        job.run(&cold);
                    }
                };
                if let Err(error) = std::thread::Builder::new().name(format!("cold-{index}")).spawn(body) {
                    tracing::error!("a thread for cold reads cannot start: {error}");
                }
            }
        });
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        self.queue.jobs.lock().1 = true;
        self.queue.nudge.notify_all();
    }
}

impl Queue {
    fn take(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        loop {
            if let Some(job) = jobs.0.pop_front() {
                return Some(job);
            }
            if jobs.1 {
                return None;
            }
            self.nudge.wait(&mut jobs);
        }
    }
}

impl Job {
    fn run(self, cold: &Cold) {
        let turn = self.turn;
        match self.what {
            What::Rows { file, block, ids } => {
                let rows = read_rows(cold, &file, block, &ids);
                turn.pins.lock().extend(rows);
                cold.figures.note_read(turn.asked.elapsed());
            }
            What::Pair(file, pair) => {
                let read = file.read(&pair);
                turn.pins.lock().insert(file.key(&pair), read);
            }
        }
        if turn.left.fetch_sub(1, AcqRel) == 1 {
            let pins = std::mem::take(&mut *turn.pins.lock());
            if let Some(done) = turn.done.lock().take() {
                // A connection that has gone does not want them any more.
                let _ = done.send(pins);
            }
        }
    }
}

fn read_rows(cold: &Cold, file: &ColdFile, block: u64, ids: &[u64]) -> Vec<(Key, Read)> {
    let identity = file.head().identity;
    let mut rows = Vec::with_capacity(ids.len());
    match file.read(block, &mut [0; BLOCK_BYTES]) {
        Ok(block) => block.get_all(ids, |id, values| {
            let key = (identity, u128::from(id));
            let row: super::Row = values.map(Values::from_slice);
            cold.cache.insert(key, row.clone());
            rows.push((key, Ok(row)));
        }),
        Err(error) => {
            cold.note_failure(&error);
            let why: Arc<str> = error.to_string().into();
            rows.extend(ids.iter().map(|&id| ((identity, u128::from(id)), Err(why.clone()))));
        }
    }
    rows
}

impl Cold {
    /// Reads what is wanted, all at the same time. Gives that and what is pinned on this thread now.
    pub(crate) fn fetch(self: &Arc<Self>, fetching: Fetching) -> impl Future<Output = Pins> + Send + use<> {
        let Fetching { mut wanted, mut pairs } = fetching;
        let pins = PINS.take();
        self.reads.start(self);
        wanted.sort_unstable_by_key(|(file, block, id)| (file.head().identity, *block, *id));
        wanted.dedup_by_key(|(file, _, id)| (file.head().identity, *id));
        let same = |a: &(Arc<ColdFile>, u64, u64), b: &(Arc<ColdFile>, u64, u64)| Arc::ptr_eq(&a.0, &b.0) && a.1 == b.1;
        let blocks: Vec<_> = wanted.chunk_by(same).collect();
        pairs.sort_unstable_by_key(|(file, pair)| file.key(pair));
        pairs.dedup_by_key(|(file, pair)| file.key(pair));
        let (done, end) = oneshot::channel();
        let turn = Arc::new(Waiting {
            pins: Mutex::new(pins),
            left: AtomicUsize::new(blocks.len() + pairs.len()),
            done: Mutex::new(Some(done)),
            asked: Instant::now(),
        });
        let rows = blocks.into_iter().map(|rows| What::Rows {
            file: rows[0].0.clone(),
            block: rows[0].1,
            ids: rows.iter().map(|row| row.2).collect(),
        });
        let pairs = pairs.into_iter().map(|(file, pair)| What::Pair(file, pair));
        let jobs = rows.chain(pairs).map(|what| Job { what, turn: turn.clone() });
        let queue = &self.reads.queue;
        let more = {
            let mut waiting = queue.jobs.lock();
            let before = waiting.0.len();
            waiting.0.extend(jobs);
            waiting.0.len() - before
        };
        // Without the lock, which each that wakes up takes first.
        for _ in 0..more.min(self.reads.threads) {
            if !queue.nudge.notify_one() {
                // All are awake, and look for more when they have read.
                break;
            }
        }
        // Whoever ends without an answer gets none: then the rows are read in place.
        async move { end.await.unwrap_or_default() }
    }
}
