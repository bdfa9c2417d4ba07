//! Reads cold rows and flags for the request batches of connections. A pool of threads executes one
//! job per block or pair.
//!
//! The pool serves batches in order of arrival. After every `JOBS_PER_TURN` jobs a batch moves to
//! the end of the queue. A request for a million rows thus does not delay a page.

use crate::cold::cache::{ColdCache, Key, PINS, Pins, Read, Row, Values};
use crate::cold::ledger::Lookup;
use crate::cold::pair_file::PairFile;
use parking_lot::{Condvar, Mutex};
use phantom::Pair;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};
use std::time::Instant;
use store::{BLOCK_BYTES, Block, ColdFile, time};
use tokio::sync::oneshot;

/// Number of jobs after which the next request batch is served: enough for a page of 50 rows with
/// two flags each.
const JOBS_PER_TURN: usize = 200;
/// Number of missing rows and pairs after which a batch does not look at further pipelined
/// requests. Rows of the remaining requests are read for the next batch.
const MAX_MISSING_PER_TURN: usize = 4096;
/// Queue length above which cancelled batches are purged. While a disk hangs, clients disconnect
/// and reconnect, and their cancelled batches would fill the queue.
const PURGE_LENGTH: usize = 1024;
/// Accounted size of a missing row or pair in bytes: its read request, and its entry in a half-full
/// hash table of pins.
const WANTED_BYTES: usize =
    size_of::<(Arc<ColdFile>, u64, u64)>() + size_of::<ReadJob>() + 2 * size_of::<(Key, Read)>();

/// Rows and pairs that a request batch needs and that are neither cached nor pinned.
#[derive(Default)]
pub struct ColdReads {
    wanted: Vec<(Arc<ColdFile>, u64, u64)>,
    pairs: Vec<(Arc<PairFile>, Pair)>,
    lookups: Vec<Lookup>,
}

impl ColdReads {
    pub(crate) fn want(&mut self, file: &Arc<ColdFile>, block: u64, id: u64) {
        self.wanted.push((file.clone(), block, id));
    }

    pub(crate) fn request_pair(&mut self, file: &Arc<PairFile>, pair: &Pair) {
        self.pairs.push((file.clone(), *pair));
    }

    pub(crate) fn request_lookup(&mut self, lookup: Lookup) {
        self.lookups.push(lookup);
    }

    /// Returns true if all data are in memory, so that no read is needed.
    pub fn is_ready(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        self.wanted.len() + self.pairs.len() + self.lookups.len()
    }

    /// Returns true if the batch has reached its limit of missing rows. The caller then stops
    /// scanning further pipelined requests.
    pub fn is_limit_reached(&self) -> bool {
        self.len() >= MAX_MISSING_PER_TURN
    }

    /// Memory use in bytes until the reads finish.
    pub fn bytes(&self) -> usize {
        self.len() * WANTED_BYTES
    }
}

struct Job {
    what: ReadJob,
    turn: Arc<PendingRead>,
}

enum ReadJob {
    /// Read of the requested rows of one block.
    Rows { file: Arc<ColdFile>, block: u64, ids: Vec<u64> },
    /// Read of a pair: one page of each filter of the table.
    Pair { file: Arc<PairFile>, pair: Pair },
    /// Lookup in a ledger.
    LedgerLookup(Lookup),
}

struct PendingJobs {
    jobs: std::vec::IntoIter<ReadJob>,
    turn: Arc<PendingRead>,
    taken: usize,
}

struct PendingRead {
    cold: Arc<Cold>,
    pins: Mutex<Pins>,
    left: AtomicUsize,
    done: Mutex<Option<oneshot::Sender<Pins>>>,
    asked: Instant,
}

/// Pool of reader threads. The first job starts them; dropping `Reads` stops them.
pub(crate) struct Reads {
    threads: usize,
    started: OnceLock<()>,
    queue: Arc<Queue>,
    pub(crate) awaited: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    line: Mutex<JobQueue>,
    wake: Condvar,
}

/// Queue of waiting request batches. The first batch is served next.
#[derive(Default)]
struct JobQueue {
    turns: VecDeque<PendingJobs>,
    /// Queue length that triggers the next purge: twice the length after the last purge.
    most: usize,
    closed: bool,
}

impl JobQueue {
    /// Appends a batch. If the queue is long, moves cancelled batches to `left`; see
    /// [`JobQueue::next`].
    fn add(&mut self, rest: PendingJobs, left: &mut Vec<PendingJobs>) {
        if self.turns.len() >= self.most.max(PURGE_LENGTH) {
            let all = std::mem::take(&mut self.turns);
            for rest in all {
                if rest.turn.is_left() { left.push(rest) } else { self.turns.push_back(rest) }
            }
            self.most = 2 * self.turns.len();
        }
        self.turns.push_back(rest);
    }

    /// Returns the next job. Moves cancelled batches to `left`. The caller must release the lock
    /// before it drops these batches: the last batch may own [`Cold`], whose drop acquires the
    /// lock.
    fn next(&mut self, left: &mut Vec<PendingJobs>) -> Option<Job> {
        loop {
            let first = self.turns.front_mut()?;
            // Skip the remaining jobs of a closed connection.
            let Some(what) = first.jobs.next().filter(|_| !first.turn.is_left()) else {
                left.extend(self.turns.pop_front());
                continue;
            };
            let job = Job { what, turn: first.turn.clone() };
            first.taken += 1;
            if first.jobs.len() == 0 {
                self.turns.pop_front();
            } else if first.taken == JOBS_PER_TURN {
                first.taken = 0;
                self.turns.rotate_left(1);
            }
            return Some(job);
        }
    }
}

impl Reads {
    pub(crate) fn new(threads: usize) -> Reads {
        let (started, queue, awaited) = Default::default();
        Reads { threads: threads.max(1), started, queue, awaited }
    }

    fn add(&self, rest: PendingJobs) {
        let jobs = rest.jobs.len();
        let mut left = Vec::new();
        self.queue.line.lock().add(rest, &mut left);
        drop(left);
        let queue = self.queue.clone();
        if time::spawn(move || queue.run_all()).is_ok() {
            return;
        }
        self.start();
        // Notify after releasing the lock, because each woken thread acquires it first.
        for _ in 0..jobs.min(self.threads) {
            if !self.queue.wake.notify_one() {
                // No thread is idle. Busy threads check the queue after their current job.
                break;
            }
        }
    }

    fn start(&self) {
        self.started.get_or_init(|| {
            for index in 0..self.threads {
                let queue = self.queue.clone();
                let body = move || {
                    while let Some(job) = queue.take() {
                        job.run();
                    }
                };
                if let Err(error) =
                    std::thread::Builder::new().name(format!("cold-{index}")).spawn(body)
                {
                    tracing::error!("cannot start a thread for cold reads: {error}");
                }
            }
        });
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        self.queue.line.lock().closed = true;
        self.queue.wake.notify_all();
    }
}

impl Queue {
    fn run_all(&self) {
        loop {
            let mut left = Vec::new();
            let job = self.line.lock().next(&mut left);
            match job {
                Some(job) => job.run(),
                None => return,
            }
        }
    }

    fn take(&self) -> Option<Job> {
        loop {
            // Declared before `line`, so that it is dropped after the lock guard.
            let mut left = Vec::new();
            let mut line = self.line.lock();
            let job = line.next(&mut left);
            if job.is_some() || line.closed {
                return job;
            }
            if left.is_empty() {
                self.wake.wait(&mut line);
            }
        }
    }
}

impl PendingRead {
    fn new(
        cold: &Arc<Cold>,
        pins: Pins,
        jobs: usize,
    ) -> (Arc<PendingRead>, oneshot::Receiver<Pins>) {
        let (done, end) = oneshot::channel();
        cold.reads.awaited.fetch_add(1, Relaxed);
        let turn = PendingRead {
            cold: cold.clone(),
            pins: Mutex::new(pins),
            left: AtomicUsize::new(jobs),
            done: Mutex::new(Some(done)),
            asked: Instant::now(),
        };
        (Arc::new(turn), end)
    }

    fn is_left(&self) -> bool {
        self.done.lock().as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Adds the results of a job. The last job of the batch sends all results to the connection.
    fn add(&self, reads: impl IntoIterator<Item = (Key, Read)>) {
        self.pins.lock().extend(reads);
        if self.left.fetch_sub(1, AcqRel) == 1 {
            let pins = std::mem::take(&mut *self.pins.lock());
            if let Some(done) = self.done.lock().take() {
                let _ = done.send(pins);
            }
        }
    }
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        self.cold.reads.awaited.fetch_sub(1, Relaxed);
    }
}

impl Job {
    fn run(self) {
        let Job { what, turn } = self;
        match what {
            ReadJob::Rows { file, block, ids } => {
                let mut buffer = [0; BLOCK_BYTES];
                let rows = rows(&turn.cold, &file, &ids, file.read(block, &mut buffer));
                turn.cold.figures.record_read(turn.asked.elapsed());
                turn.add(rows);
            }
            ReadJob::Pair { file, pair } => turn.add([(file.key(&pair), file.read(&pair))]),
            ReadJob::LedgerLookup(lookup) => turn.add([lookup.read()]),
        }
    }
}

/// Decodes the requested rows of a block and caches them. Counts and logs a failure.
fn rows(
    cold: &ColdCache,
    file: &ColdFile,
    ids: &[u64],
    block: store::Result<Block<'_>>,
) -> Vec<(Key, Read)> {
    let identity = file.head().identity;
    let mut rows = Vec::with_capacity(ids.len());
    match block {
        Ok(block) => block.get_all(ids, |id, values| {
            let key = (identity, u128::from(id));
            let row: Row = values.map(Values::from_slice);
            cold.cache.insert(key, row.clone());
            rows.push((key, Ok(row)));
        }),
        Err(error) => {
            cold.record_failure(&error);
            let why: Arc<str> = error.to_string().into();
            rows.extend(ids.iter().map(|&id| ((identity, u128::from(id)), Err(why.clone()))));
        }
    }
    rows
}

/// Cold rows and flags of all spaces: the cache and the reader threads.
pub struct Cold {
    cache: Arc<ColdCache>,
    reads: Reads,
    /// Error message of the last failed spill or merge, by name of the space.
    pub trouble: Mutex<BTreeMap<String, String>>,
}

impl Deref for Cold {
    type Target = ColdCache;

    #[inline]
    fn deref(&self) -> &ColdCache {
        &self.cache
    }
}

impl Cold {
    /// Creates the cache. The first read starts `threads` reader threads.
    pub(crate) fn new(cache_bytes: u64, threads: usize) -> Arc<Cold> {
        let cache = Arc::new(ColdCache::new(cache_bytes));
        Arc::new(Cold { cache, reads: Reads::new(threads), trouble: Mutex::default() })
    }

    /// Returns the cache without the threads. Files hold a reference only to the cache, so that
    /// they do not keep the threads alive.
    pub(crate) fn cache(&self) -> &Arc<ColdCache> {
        &self.cache
    }

    /// Whether a request waits for a cold read.
    pub(crate) fn is_awaited(&self) -> bool {
        self.reads.awaited.load(Relaxed) > 0
    }

    /// Reads all missing rows concurrently. Returns them together with this thread's pins.
    pub fn fetch(
        self: &Arc<Self>,
        fetching: ColdReads,
    ) -> impl Future<Output = Pins> + Send + use<> {
        let ColdReads { mut wanted, mut pairs, mut lookups } = fetching;
        let pins = PINS.take();
        wanted.sort_unstable_by_key(|(file, block, id)| (file.head().identity, *block, *id));
        wanted.dedup_by_key(|(file, _, id)| (file.head().identity, *id));
        let same = |a: &(Arc<ColdFile>, u64, u64), b: &(Arc<ColdFile>, u64, u64)| {
            Arc::ptr_eq(&a.0, &b.0) && a.1 == b.1
        };
        let blocks: Vec<_> = wanted.chunk_by(same).collect();
        pairs.sort_unstable_by_key(|(file, pair)| file.key(pair));
        pairs.dedup_by_key(|(file, pair)| file.key(pair));
        lookups.sort_by_cached_key(Lookup::key);
        lookups.dedup_by_key(|lookup| lookup.key());
        let (turn, end) = PendingRead::new(self, pins, blocks.len() + pairs.len() + lookups.len());
        let rows = blocks.into_iter().map(|rows| ReadJob::Rows {
            file: rows[0].0.clone(),
            block: rows[0].1,
            ids: rows.iter().map(|row| row.2).collect(),
        });
        let wanted_pairs = pairs.into_iter().map(|(file, pair)| ReadJob::Pair { file, pair });
        let lookups = lookups.into_iter().map(ReadJob::LedgerLookup);
        let jobs: Vec<ReadJob> = rows.chain(wanted_pairs).chain(lookups).collect();
        let rest = PendingJobs { jobs: jobs.into_iter(), turn, taken: 0 };
        self.reads.add(rest);
        // If a job panics, the sender is dropped. The batch then requests its rows again.
        async move { end.await.unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The node shuts down while cancelled batches are still in the queue.
    #[test]
    fn the_last_turn_takes_the_threads_with_it() {
        let cold = Cold::new(4096, 1);
        let queue = cold.reads.queue.clone();
        let (turn, _) = PendingRead::new(&cold, Pins::default(), 1);
        let what = ReadJob::Rows { file: file(), block: 0, ids: vec![0] };
        queue.line.lock().turns.push_back(PendingJobs {
            jobs: vec![what].into_iter(),
            turn,
            taken: 0,
        });
        drop(cold);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(queue.take().is_none()));
        assert_eq!(
            told.recv_timeout(std::time::Duration::from_secs(60)),
            Ok(true),
            "the queue waits for itself"
        );
    }

    fn file() -> Arc<ColdFile> {
        let disk = Arc::new(store::SimDisk::new(1));
        let store = store::Store::open(disk, store::StoreOptions::default()).unwrap();
        let tag = store::Tag { space: 1, kind: 1, low: 0, high: 99, stamp: 0 };
        let mut writer = store.begin_cold(tag, 1).unwrap();
        writer.push(7, &[70]).unwrap();
        Arc::new(store.open_cold(&writer.finish().unwrap().unwrap()).unwrap())
    }

    fn turn(line: &mut JobQueue, file: &Arc<ColdFile>, jobs: usize) -> oneshot::Receiver<Pins> {
        let (turn, end) = PendingRead::new(&Cold::new(0, 1), Pins::default(), jobs);
        let rows = |block| ReadJob::Rows { file: file.clone(), block, ids: vec![] };
        let jobs: Vec<ReadJob> = (0..jobs as u64).map(rows).collect();
        line.add(PendingJobs { jobs: jobs.into_iter(), turn, taken: 0 }, &mut Vec::new());
        end
    }

    #[test]
    fn page_records_missing_rows_and_pins_found_ones() {
        let cold = Cold::new(1 << 20, 1);
        let (file, row) = (file(), Some(Values::from_slice(&[70])));
        let keys = [1, 2, 3].map(|id| (7, id));
        cold.cache.cache.insert(keys[0], row.clone());
        cold.cache.cache.insert(keys[2], row.clone());
        let want = |fetching: &mut ColdReads| fetching.want(&file, 0, 7);
        let missing = cold.collect_missing(|| {
            let reads = keys.map(|key| cold.find(&key, want).expect("the row is fetched later"));
            assert_eq!((&reads[0], &reads[2]), (&Ok(row.clone()), &Ok(row.clone())));
            assert!(reads[1].is_err());
        });
        assert_eq!(missing.len(), 1);
        let figures = [&cold.figures.hits, &cold.figures.misses].map(|n| n.load(Relaxed));
        assert_eq!(figures, [2, 1]);
        assert_eq!(crate::cold::unpin().into_keys().collect::<Vec<_>>(), [keys[2]]);
        // Outside `collect_missing`, even after a panic in it, rows are read synchronously.
        assert_eq!(cold.find(&keys[1], want), None);
        let panics = std::panic::AssertUnwindSafe(|| cold.collect_missing(|| panic!("of a test")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(cold.find(&keys[1], want), None);
        // Pinned rows and pinned errors are both returned.
        crate::cold::pin(Pins::from_iter([(keys[1], Err("the block is damaged".into()))]));
        let missing = cold.collect_missing(|| {
            assert_eq!(cold.find(&keys[1], want), Some(Err("the block is damaged".into())));
        });
        assert!(missing.is_ready());
        crate::cold::unpin();
    }

    #[test]
    fn large_batches_wait_for_small_ones() {
        let file = file();
        let mut line = JobQueue::default();
        let _much = turn(&mut line, &file, 100_000);
        let (some, more) = (turn(&mut line, &file, 60), turn(&mut line, &file, 60));
        let mut places = [vec![], vec![], vec![]];
        let turns: Vec<_> = line.turns.iter().map(|rest| Arc::as_ptr(&rest.turn)).collect();
        let mut at = 0;
        while let Some(job) = line.next(&mut Vec::new()) {
            let whose = turns.iter().position(|turn| *turn == Arc::as_ptr(&job.turn)).unwrap();
            let ReadJob::Rows { block, .. } = job.what else { panic!("expected a job for rows") };
            assert_eq!(block, places[whose].len() as u64, "the jobs of each turn keep their order");
            places[whose].push(at);
            at += 1;
        }
        assert_eq!(places.each_ref().map(Vec::len), [100_000, 60, 60]);
        assert_eq!(
            places[1..].iter().flatten().copied().collect::<Vec<_>>(),
            (JOBS_PER_TURN..JOBS_PER_TURN + 120).collect::<Vec<_>>()
        );
        drop((some, more));
    }

    #[test]
    fn nothing_is_read_for_a_cancelled_request() {
        let file = file();
        let mut line = JobQueue::default();
        let gone = turn(&mut line, &file, 1000);
        let here = turn(&mut line, &file, 3);
        assert!(line.next(&mut Vec::new()).is_some());
        drop(gone);
        let rest = std::iter::from_fn(|| line.next(&mut Vec::new())).count();
        assert_eq!(rest, 3);
        drop(here);
    }

    #[test]
    fn clients_that_leave_while_the_disk_hangs_leave_the_line() {
        let file = file();
        let mut line = JobQueue::default();
        let stay: Vec<_> = (0..100).map(|_| turn(&mut line, &file, 1)).collect();
        for _ in 0..10 * PURGE_LENGTH {
            drop(turn(&mut line, &file, 1));
            assert!(line.turns.len() <= PURGE_LENGTH, "{}", line.turns.len());
        }
        assert_eq!(std::iter::from_fn(|| line.next(&mut Vec::new())).count(), stay.len());
    }

    const COLUMNS: usize = 60;
    const ROWS: u64 = 16_000;

    /// A cold file of more than 1,500 blocks on a real disk.
    struct Fixture {
        _folder: tempfile::TempDir,
        disk: Arc<store::RealDisk>,
        file: Arc<ColdFile>,
        cold: Arc<Cold>,
    }

    fn value(id: u64, column: usize) -> i64 {
        (id * 61 + column as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as i64
    }

    impl Fixture {
        fn new() -> Fixture {
            let folder = tempfile::tempdir().unwrap();
            let disk = Arc::new(store::RealDisk::open(folder.path()).unwrap());
            let store = store::Store::open(disk.clone(), store::StoreOptions::default()).unwrap();
            let tag = store::Tag { space: 1, kind: 1, low: 0, high: ROWS, stamp: 0 };
            let mut writer = store.begin_cold(tag, COLUMNS).unwrap();
            (0..ROWS).for_each(|id| {
                writer.push(id, &std::array::from_fn::<_, COLUMNS, _>(|c| value(id, c))).unwrap()
            });
            let file = Arc::new(store.open_cold(&writer.finish().unwrap().unwrap()).unwrap());
            assert!(file.head().blocks > 1500, "{}", file.head().blocks);
            Fixture { _folder: folder, disk, file, cold: Cold::new(4096, 2) }
        }

        fn wanted(&self, blocks: impl Iterator<Item = u64>) -> ColdReads {
            let mut fetching = ColdReads::default();
            blocks.for_each(|block| {
                fetching.want(&self.file, block, self.file.block_start(block).unwrap())
            });
            fetching
        }

        fn fetch(&self, blocks: std::ops::Range<u64>) -> Pins {
            wait(self.cold.fetch(self.wanted(blocks)))
        }

        fn reads(&self) -> u64 {
            self.cold.figures.reads.load(Relaxed)
        }

        fn check(&self, pins: &Pins) {
            for ((file, id), read) in pins {
                let row = read.as_ref().unwrap().as_ref().unwrap();
                assert_eq!((*file, row.len()), (self.file.head().identity, COLUMNS));
                (0..COLUMNS).for_each(|c| assert_eq!(row[c], value(*id as u64, c), "row {id}"));
            }
        }
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// Yields until `holds` returns true, for at most 60 seconds.
    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed().as_secs() < 60, "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_read_all_rows_that_a_turn_wants() {
        let fixture = Fixture::new();
        let blocks = fixture.file.head().blocks;
        for (from, to) in [(0, 1), (1, 21), (0, blocks)] {
            let before = fixture.reads();
            let pins = fixture.fetch(from..to);
            assert_eq!((pins.len() as u64, fixture.reads() - before), (to - from, to - from));
            fixture.check(&pins);
        }
    }

    /// A merge removes files that requests may still read.
    #[test]
    fn a_removed_file_is_read_to_its_end() {
        let fixture = Fixture::new();
        let (path, blocks) = (fixture.file.pages().path().to_owned(), fixture.file.head().blocks);
        let pins = fixture.cold.fetch(fixture.wanted(0..blocks));
        fixture.file.pages().retire(fixture.disk.clone());
        let pins = wait(pins);
        assert_eq!(pins.len() as u64, blocks);
        fixture.check(&pins);
        assert!(path.exists(), "the fixture keeps the file open");
        let Fixture { _folder, disk, file, cold } = fixture;
        drop((disk, file, cold));
        until("the file is removed", || !path.exists());
    }

    #[test]
    fn reads_of_cancelled_requests_stop() {
        let fixture = Fixture::new();
        for _ in 0..10 {
            drop(fixture.cold.fetch(fixture.wanted(0..fixture.file.head().blocks)));
        }
        let page = fixture.fetch(7..27);
        assert_eq!(page.len(), 20);
        fixture.check(&page);
        until("cancelled requests are released", || Arc::strong_count(&fixture.cold) == 1);
        assert!(fixture.cold.reads.queue.line.lock().turns.is_empty());
    }

    #[test]
    fn a_damaged_block_is_an_error_of_its_own_rows() {
        let fixture = Fixture::new();
        let file = std::fs::File::options().write(true).open(fixture.file.pages().path()).unwrap();
        let block = BLOCK_BYTES as u64;
        std::os::unix::fs::FileExt::write_all_at(&file, &[0x55; 100], 6 * block).unwrap();
        file.set_len(11 * block + 100).unwrap();
        // Block 5 is overwritten, block 10 is truncated, and 11 and 12 are missing.
        let mut pins = fixture.fetch(3..13);
        let identity = fixture.file.head().identity;
        for bad in [5, 10, 11, 12] {
            let id = fixture.file.block_start(bad).unwrap();
            let why = pins.remove(&(identity, u128::from(id))).unwrap().unwrap_err();
            assert!(why.contains("is damaged"), "block {bad}: {why}");
        }
        assert_eq!(pins.len(), 6);
        fixture.check(&pins);
        let figures = &fixture.cold.figures;
        assert_eq!((figures.corrupt.load(Relaxed), fixture.reads()), (4, 10));
        let damaged = (identity, u128::from(fixture.file.block_start(5).unwrap()));
        assert_eq!(fixture.cold.cache.cache.get(&damaged), None);
    }
}
