//! Reading cold rows for a turn: one job per block, on threads of their own, all of them at the same time.

use super::{Cold, Key, PINS, Read, Values};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::time::Instant;
use store::{BLOCK_BYTES, ColdFile};
use tokio::sync::oneshot;

/// Rows at hand for one turn.
pub(crate) type Pins = HashMap<Key, Read>;

/// Rows that a turn needs and that are not at hand.
#[derive(Default)]
pub(crate) struct Fetching {
    wanted: Vec<(Arc<ColdFile>, u64, u64)>,
}

impl Fetching {
    pub(super) fn want(&mut self, file: &Arc<ColdFile>, block: u64, id: u64) {
        self.wanted.push((file.clone(), block, id));
    }

    /// Whether everything is at hand.
    pub(crate) fn is_ready(&self) -> bool {
        self.wanted.is_empty()
    }
}

/// One block, and the rows that are wanted of it.
struct Job {
    file: Arc<ColdFile>,
    block: u64,
    ids: Vec<u64>,
    turn: Arc<Waiting>,
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
        let mut buffer = [0; BLOCK_BYTES];
        let identity = self.file.head().identity;
        match self.file.read(self.block, &mut buffer) {
            Ok(block) => {
                let mut rows = Vec::with_capacity(self.ids.len());
                block.get_all(&self.ids, |id, values| {
                    let row: super::Row = values.map(Values::from_slice);
                    cold.cache.insert((identity, id), row.clone());
                    rows.push(((identity, id), Ok(row)));
                });
                self.turn.pins.lock().extend(rows);
            }
            Err(error) => {
                cold.note_failure(&error);
                let why: Arc<str> = error.to_string().into();
                let mut pins = self.turn.pins.lock();
                pins.extend(self.ids.iter().map(|&id| ((identity, id), Err(why.clone()))));
            }
        }
        cold.figures.note_read(self.turn.asked.elapsed());
        if self.turn.left.fetch_sub(1, AcqRel) == 1 {
            let pins = std::mem::take(&mut *self.turn.pins.lock());
            if let Some(done) = self.turn.done.lock().take() {
                // A connection that has gone does not want them any more.
                let _ = done.send(pins);
            }
        }
    }
}

impl Cold {
    /// Reads what is wanted, all at the same time. Gives that and what is pinned on this thread now.
    pub(crate) fn fetch(self: &Arc<Self>, fetching: Fetching) -> impl Future<Output = Pins> + Send + use<> {
        let Fetching { mut wanted } = fetching;
        let pins = PINS.take();
        self.reads.start(self);
        wanted.sort_unstable_by_key(|(file, block, id)| (file.head().identity, *block, *id));
        wanted.dedup_by_key(|(file, _, id)| (file.head().identity, *id));
        let same = |a: &(Arc<ColdFile>, u64, u64), b: &(Arc<ColdFile>, u64, u64)| Arc::ptr_eq(&a.0, &b.0) && a.1 == b.1;
        let blocks: Vec<_> = wanted.chunk_by(same).collect();
        let (done, end) = oneshot::channel();
        let turn = Arc::new(Waiting {
            pins: Mutex::new(pins),
            left: AtomicUsize::new(blocks.len()),
            done: Mutex::new(Some(done)),
            asked: Instant::now(),
        });
        let jobs = blocks.into_iter().map(|rows| Job {
            file: rows[0].0.clone(),
            block: rows[0].1,
            ids: rows.iter().map(|row| row.2).collect(),
            turn: turn.clone(),
        });
        let mut queue = self.reads.queue.jobs.lock();
        let before = queue.0.len();
        queue.0.extend(jobs);
        for _ in 0..(queue.0.len() - before).min(self.reads.threads) {
            self.reads.queue.nudge.notify_one();
        }
        drop(queue);
        // Whoever ends without an answer gets none: then the rows are read in place.
        async move { end.await.unwrap_or_default() }
    }
}
