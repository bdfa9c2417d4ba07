//! Reading cold rows and flags by io_uring, from the worker that needs them: no other thread is
//! woken, and none wakes it.
//!
//! ```text
//!   fetch -> line -> ring -> the kernel reads -> event fd -> the runtime of the worker
//!         -> blocks are checked -> the turn goes on
//! ```
//!
//! Each worker has a ring of its own, from its first cold read on, and a line like the one of the
//! threads before it. What the ring does not get (a file of a simulated disk, an error, a block
//! that is not whole) the threads read, which report what is wrong; so does all of it where the
//! system has no io_uring, or does not allow it.

use crate::cold::Cold;
use crate::cold::fetch::{Job, Line, Rest};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use store::Ring;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// Reads of one worker at a time; what they take of memory the configuration says.
const DEPTH: u32 = 32;
/// Blocks that are asked for in one go, and then at most that are checked, before the worker's
/// other tasks are served: about 30 and 20 microseconds, so that the pages of others hardly notice
/// a page of cold rows. How many more after a long turn of the others: [`EVERY`].
const AT_ONCE: usize = 4;
/// How long blocks are checked in one go: one of which thousands of rows are wanted is the last.
const BURST: Duration = Duration::from_micros(50);
/// A worker that comes to it again only after so long may do as much again, for each time: an
/// eighth of the worker is for what is cold, however long the others' turns are. So much at most,
/// which fills the ring.
const EVERY: Duration = Duration::from_micros(400);
const MOST: u32 = DEPTH / AT_ONCE as u32;

/// A worker's ring, and the turns that wait for it.
pub(crate) struct Hub {
    ring: Ring<Job>,
    line: Line,
    /// There is more to be done, without anything being complete.
    nudge: Arc<Notify>,
    /// When it was left with something to be done.
    left: Option<Instant>,
    /// That the system takes no more reads was said.
    said: bool,
}

enum Here {
    /// This thread has no runtime that would notice what is complete, or the ring was refused.
    No,
    /// It has, and nothing cold was read yet.
    May,
    Has(Arc<Mutex<Hub>>),
}

thread_local! {
    static HERE: RefCell<Here> = const { RefCell::new(Here::No) };
}

/// As long as this is there, what is cold is read by this thread, where the system allows that. To
/// be made and dropped on the thread of a current-thread runtime with I/O, of which what is fetched
/// must be waited for within it.
pub struct ReadsHere(());

impl ReadsHere {
    /// From now on.
    pub fn begin() -> ReadsHere {
        HERE.set(Here::May);
        ReadsHere(())
    }
}

impl Drop for ReadsHere {
    fn drop(&mut self) {
        HERE.set(Here::No);
    }
}

/// Whether the system has io_uring, and lets us use it.
pub(crate) fn is_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let ring = Ring::<()>::new(1);
        ring.inspect_err(|error| tracing::info!("no io_uring ({error}): threads read what is cold"))
            .is_ok()
    })
}

/// The ring of this thread.
pub(crate) fn here(cold: &Cold) -> Option<Arc<Mutex<Hub>>> {
    HERE.with_borrow_mut(|here| match here {
        Here::No => None,
        Here::Has(hub) => cold.reads.may_ring().then(|| hub.clone()),
        Here::May if !cold.reads.may_ring() => None,
        Here::May => match open() {
            Ok(hub) => {
                *here = Here::Has(hub.clone());
                Some(hub)
            }
            Err(error) => {
                tracing::warn!(
                    "a worker gets no io_uring ({error}): threads read what is cold for it; allow \
                     io_uring, or set spill.io_method = \"threads\""
                );
                *here = Here::No;
                None
            }
        },
    })
}

fn open() -> io::Result<Arc<Mutex<Hub>>> {
    let (ring, event) = Ring::new(DEPTH)?;
    #[expect(
        deprecated,
        reason = "what takes its place is unsafe, for those types that give another descriptor \
                  each time; this one does not"
    )]
    let event = AsyncFd::with_interest(event, Interest::READABLE)?;
    let nudge = Arc::new(Notify::new());
    let hub = Arc::new(Mutex::new(Hub {
        ring,
        line: Line::default(),
        nudge: nudge.clone(),
        left: None,
        said: false,
    }));
    tokio::spawn(drive(hub.clone(), event, nudge));
    Ok(hub)
}

/// The ring of this thread ends with its driver, in a panic, too: what it has goes, and is
/// asked for again, of threads.
struct Driver;

impl Drop for Driver {
    fn drop(&mut self) {
        // What was there goes when it is not borrowed any more; it may have gone with the thread.
        let _ring = HERE.try_with(|here| {
            here.try_borrow_mut().map(|mut here| std::mem::replace(&mut *here, Here::No))
        });
    }
}

/// Goes on whenever something is complete, until the runtime ends.
async fn drive(hub: Arc<Mutex<Hub>>, event: AsyncFd<OwnedFd>, nudge: Arc<Notify>) {
    let _driver = Driver;
    loop {
        tokio::select! {
            ready = event.readable() => match ready {
                // Its number is never read: each completion is an edge of its own. Before the look:
                // what completes meanwhile is looked at once more.
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => return,
            },
            () = nudge.notified() => {}
        }
        while hub.lock().go_on() {
            // First for the threads that wait for this processor, which the system would let wait
            // to the end of its slice: milliseconds. Then for the connections of this worker of
            // which something has come.
            std::thread::yield_now();
            tokio::task::yield_now().await;
        }
    }
}

impl Hub {
    /// Reads for this turn, behind those that are there.
    pub(crate) fn serve(&mut self, rest: Rest) {
        let is_first = self.line.turns.is_empty();
        let mut left = Vec::new();
        self.line.add(rest, &mut left);
        drop(left);
        // What was in the system's memory is there at once. Behind others it waits until `drive`
        // comes to it: hundreds of connections that want something at the same time do not each do
        // a share of it before any other is served.
        if is_first && self.go_on() {
            self.nudge.notify_one();
        }
    }

    /// Has some blocks read, and takes some of those that are complete. Whether there is more to be
    /// done at once.
    fn go_on(&mut self) -> bool {
        let since = self.left.take().map_or(Duration::ZERO, |left| left.elapsed());
        let times = (since.as_micros() / EVERY.as_micros()).clamp(1, u128::from(MOST)) as u32;
        let (at_once, burst) = (AT_ONCE * times as usize, BURST * times);
        let mut left = Vec::new();
        for _ in 0..at_once {
            if !self.ring.has_room() {
                break;
            }
            let Some(job) = self.line.next(&mut left) else { break };
            self.push(job);
        }
        self.submit();
        let began = Instant::now();
        let (mut taken, mut more) = (0, true);
        while more && taken < at_once && (taken == 0 || began.elapsed() < burst) {
            match self.ring.take(Job::take) {
                Some(next) => next.into_iter().for_each(|job| self.push(job)),
                None => more = false,
            }
            taken += 1;
        }
        self.submit();
        // A full ring goes on when something of it is complete.
        let more = more || self.ring.has_room() && !self.line.turns.is_empty();
        self.left = more.then(Instant::now);
        more
    }

    fn push(&mut self, job: Job) {
        let pushed = match job.what.place() {
            Some(place) => self.ring.push(place, job),
            None => Err(job),
        };
        if let Err(job) = pushed {
            job.by_thread();
        }
    }

    fn submit(&mut self) {
        if let Err(error) = self.ring.submit() {
            // Without memory, say. Nothing may be under way that would bring us here again, so the
            // threads get all of it.
            if !std::mem::replace(&mut self.said, true) {
                tracing::warn!(
                    "io_uring takes no more reads at times ({error}): threads read what was asked \
                     for then"
                );
            }
            self.ring.take_back().into_iter().for_each(Job::by_thread);
            for rest in std::mem::take(&mut self.line.turns) {
                let cold = rest.turn.cold.clone();
                cold.reads.add(rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cold::fetch::Fetching;
    use crate::cold::fetch::Pins;
    use crate::options::IoMethod;
    use std::future::poll_fn;
    use std::path::PathBuf;
    use std::pin::pin;
    use std::sync::atomic::Ordering::Relaxed;
    use std::task::Poll;
    use store::{BLOCK_BYTES, ColdFile};

    /// So wide that a block holds few of them.
    const COLUMNS: usize = 60;
    const ROWS: u64 = 16_000;

    struct Some {
        _folder: tempfile::TempDir,
        path: PathBuf,
        disk: Arc<store::RealDisk>,
        file: Arc<ColdFile>,
        cold: Arc<Cold>,
    }

    fn value(id: u64, column: usize) -> i64 {
        (id * 61 + column as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as i64
    }

    impl Some {
        fn new(method: IoMethod) -> Some {
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
            Some {
                path: file.path().to_owned(),
                _folder: folder,
                disk,
                file,
                cold: Cold::new(4096, 2, method),
            }
        }

        /// The first row of each of these blocks is wanted.
        fn wanted(&self, blocks: impl Iterator<Item = u64>) -> Fetching {
            let mut fetching = Fetching::default();
            blocks.for_each(|block| {
                fetching.want(&self.file, block, self.file.block_start(block).unwrap())
            });
            fetching
        }

        /// The system has all of it in memory: each read is complete at once.
        fn at_hand(self) -> Some {
            assert!(!std::fs::read(&self.path).unwrap().is_empty());
            self
        }

        /// How many turns others have, each so long, while all blocks are read; and how many blocks
        /// those are.
        async fn turns_of_others(&self, each: Duration) -> (u64, u64) {
            let blocks = self.file.head().blocks;
            let mut much = pin!(self.cold.fetch(self.wanted(0..blocks)));
            let mut turns = 0;
            while !is_over(much.as_mut()).await {
                turns += 1;
                if !each.is_zero() {
                    std::thread::sleep(each);
                }
                tokio::task::yield_now().await;
            }
            (turns, blocks)
        }

        fn by_ring(&self) -> u64 {
            self.cold.figures.reads_by_ring.load(Relaxed)
        }

        /// They are as they were written.
        fn check(&self, pins: &Pins) {
            for ((file, id), read) in pins {
                let row = read.as_ref().unwrap().as_ref().unwrap();
                assert_eq!((*file, row.len()), (self.file.head().identity, COLUMNS));
                (0..COLUMNS).for_each(|c| assert_eq!(row[c], value(*id as u64, c), "row {id}"));
            }
        }
    }

    /// In a worker's runtime, where there is io_uring.
    fn in_a_worker(test: impl AsyncFnOnce()) {
        if !is_allowed() {
            return eprintln!("NOT TESTED: no io_uring here");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let _reads = ReadsHere::begin();
            test().await;
        });
    }

    /// Whether it is over by now.
    async fn is_over(future: impl Future) -> bool {
        let mut future = pin!(future);
        poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
    }

    #[test]
    fn a_worker_reads_all_that_a_turn_wants() {
        in_a_worker(async || {
            let some = Some::new(IoMethod::Auto);
            let blocks = some.file.head().blocks;
            for (from, to) in [(0, 1), (1, 21), (0, blocks)] {
                let before = some.by_ring();
                let pins = some.cold.fetch(some.wanted(from..to)).await;
                assert_eq!((pins.len() as u64, some.by_ring() - before), (to - from, to - from));
                some.check(&pins);
            }
            assert_eq!(some.cold.figures.reads.load(Relaxed), some.by_ring());
            assert_eq!(some.cold.io_method(), "io_uring");
        });
    }

    #[test]
    fn long_turns_of_others_leave_it_its_share() {
        in_a_worker(async || {
            let some = Some::new(IoMethod::Auto).at_hand();
            let (turns, blocks) = some.turns_of_others(EVERY * MOST).await;
            assert!(
                turns <= blocks / u64::from(DEPTH) * 2,
                "{turns} turns of others while {blocks} blocks were read"
            );
            assert_eq!(some.by_ring(), blocks);
        });
    }

    /// The one whose runtime has lost its driver; no other would ever be woken.
    #[test]
    fn a_ring_without_a_driver_leaves_reads_to_threads() {
        in_a_worker(async || {
            let some = Some::new(IoMethod::Auto);
            assert_eq!(some.cold.fetch(some.wanted(0..1)).await.len(), 1);
            drop(Driver);
            assert_eq!(some.cold.fetch(some.wanted(1..4)).await.len(), 3);
            assert_eq!(some.by_ring(), 1);
        });
    }

    #[test]
    fn threads_read_what_no_ring_is_for() {
        // The thread has no runtime of a worker; and it has, but is told not to.
        for method in [IoMethod::Auto, IoMethod::Threads] {
            let some = Some::new(method);
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(async {
                let _reads = (method == IoMethod::Threads).then(ReadsHere::begin);
                let pins = some.cold.fetch(some.wanted(0..100)).await;
                assert_eq!(
                    (pins.len(), some.by_ring(), some.cold.figures.reads.load(Relaxed)),
                    (100, 0, 100)
                );
                some.check(&pins);
            });
        }
        assert_eq!(Some::new(IoMethod::Threads).cold.io_method(), "threads");
    }

    #[test]
    fn large_batches_delay_no_small_ones() {
        in_a_worker(async || {
            let some = Some::new(IoMethod::Auto);
            let blocks = some.file.head().blocks;
            let mut much = pin!(some.cold.fetch(some.wanted(0..blocks)));
            let page = some.cold.fetch(some.wanted(700..720)).await;
            assert_eq!(page.len(), 20);
            assert!(!is_over(much.as_mut()).await, "a page waited for {blocks} blocks");
            let much = much.await;
            assert_eq!(much.len() as u64, blocks);
            some.check(&much);
        });
    }

    /// Each time that some blocks were checked: pages of hot rows do not wait for a page of cold
    /// ones.
    #[test]
    fn others_have_their_turn_between_a_few_blocks() {
        in_a_worker(async || {
            let some = Some::new(IoMethod::Auto).at_hand();
            let (turns, blocks) = some.turns_of_others(Duration::ZERO).await;
            // More at a time where this thread had to wait for its processor.
            assert!(
                turns >= blocks / u64::from(DEPTH),
                "{turns} turns while {blocks} blocks were read"
            );
            assert_eq!(some.by_ring(), blocks);
        });
    }

    /// However many come before the worker's other tasks are served.
    #[test]
    fn a_queued_request_does_no_work_of_others() {
        in_a_worker(async || {
            let some = Some::new(IoMethod::Auto).at_hand();
            let pages: Vec<_> =
                (0..60).map(|n| some.cold.fetch(some.wanted(n * 20..n * 20 + 20))).collect();
            assert!(some.by_ring() <= AT_ONCE as u64, "{} blocks were checked", some.by_ring());
            for page in pages {
                let page = page.await;
                assert_eq!(page.len(), 20);
                some.check(&page);
            }
        });
    }

    /// As a merge does with it.
    #[test]
    fn a_file_that_is_removed_is_read_to_its_end() {
        in_a_worker(async || {
            let some = Some::new(IoMethod::Auto);
            let (identity, blocks) = (some.file.head().identity, some.file.head().blocks);
            let mut pins = pin!(some.cold.fetch(some.wanted(0..blocks)));
            assert!(!is_over(pins.as_mut()).await);
            let Some { path, disk, file, cold, _folder } = some;
            file.retire(disk);
            drop(file);
            assert!(path.exists(), "it is being read");
            let pins = pins.await;
            assert_eq!(pins.len() as u64, blocks);
            for ((file, id), read) in &pins {
                assert_eq!(*file, identity);
                assert_eq!(
                    read.as_ref().unwrap().as_ref().unwrap()[7],
                    value(*id as u64, 7),
                    "row {id}"
                );
            }
            let began = Instant::now();
            while path.exists() {
                assert!(began.elapsed().as_secs() < 60, "it is not read any more");
                tokio::task::yield_now().await;
            }
            assert_eq!(cold.figures.reads_by_ring.load(Relaxed), blocks);
        });
    }

    #[test]
    fn reads_of_a_cancelled_request_stop() {
        in_a_worker(async || {
            let some = Some::new(IoMethod::Auto);
            for _ in 0..10 {
                drop(some.cold.fetch(some.wanted(0..some.file.head().blocks)));
            }
            let page = some.cold.fetch(some.wanted(7..27)).await;
            assert_eq!(page.len(), 20);
            some.check(&page);
            // Each had some under way when it went.
            let most = 10 * u64::from(DEPTH) + 20;
            assert!(some.by_ring() <= most, "{} blocks were read", some.by_ring());
            let began = Instant::now();
            while Arc::strong_count(&some.cold) > 1 {
                assert!(began.elapsed().as_secs() < 60, "something is kept for them");
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn what_is_not_whole_or_spoiled_is_an_error_of_its_own_rows() {
        in_a_worker(async || {
            let some = Some::new(IoMethod::Auto);
            let disk = std::fs::File::options().write(true).open(&some.path).unwrap();
            let block = BLOCK_BYTES as u64;
            std::os::unix::fs::FileExt::write_all_at(&disk, &[0x55; 100], 6 * block).unwrap();
            disk.set_len(11 * block + 100).unwrap();
            // Block 5 is spoiled, 10 is cut short, 11 has gone.
            let mut pins = some.cold.fetch(some.wanted(3..13)).await;
            let identity = some.file.head().identity;
            for bad in [5, 10, 11, 12] {
                let id = some.file.block_start(bad).unwrap();
                let why = pins.remove(&(identity, u128::from(id))).unwrap().unwrap_err();
                assert!(why.contains("is damaged"), "block {bad}: {why}");
            }
            assert_eq!(pins.len(), 6);
            some.check(&pins);
            let figures = &some.cold.figures;
            assert_eq!(
                (figures.corrupt.load(Relaxed), figures.reads.load(Relaxed), some.by_ring()),
                (4, 10, 7)
            );
            assert_eq!(
                some.cold.cache.get(&(identity, u128::from(some.file.block_start(5).unwrap()))),
                None
            );
        });
    }

    /// The next runtime on this thread has a ring of its own.
    #[test]
    fn a_worker_ends_with_reads_under_way() {
        for _ in 0..3 {
            in_a_worker(async || {
                let some = Some::new(IoMethod::Auto);
                let mut left = pin!(some.cold.fetch(some.wanted(0..some.file.head().blocks)));
                assert!(!is_over(left.as_mut()).await);
                let page = some.cold.fetch(some.wanted(0..20)).await;
                some.check(&page);
            });
            assert!(HERE.with_borrow(|here| matches!(here, Here::No)), "it outlives its worker");
        }
    }
}
