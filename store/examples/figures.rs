//! Benchmark of the store: `cargo run --release -p store --example figures [folder]`.
//!
//! Prints one result per line. Results that depend on the disk include the raw speed of the disk,
//! measured in the same run.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use store::{
    Batch, CommitOptions, Committed, Committer, Disk, LoggedState, RealDisk, SimDisk, Store,
    StoreOptions, SyncPolicy, Tag, write_all_at,
};

type Failure = Box<dyn std::error::Error>;

struct Rows(Vec<u64>);

impl LoggedState<u64> for Rows {
    fn collect(&mut self, keys: &[u64]) -> usize {
        self.0.extend_from_slice(keys);
        self.0.len() * 12
    }
    fn encode(&mut self, batch: &mut Batch) -> store::Result<()> {
        let mut payload = Vec::with_capacity(self.0.len() * 12);
        for key in self.0.drain(..) {
            payload.extend_from_slice(&key.to_le_bytes());
            payload.extend_from_slice(&[1; 4]);
        }
        batch.push(1, 1, &payload);
        Ok(())
    }
    fn forget(&mut self) {
        self.0.clear();
    }
    fn published(&mut self, _: &Committed) {}
}

fn per(n: u64, time: Duration) -> f64 {
    time.as_nanos() as f64 / n as f64
}

fn mb_per_second(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64()
}

fn marks() {
    let committer: Committer<u64> =
        Committer::new(CommitOptions { max_stripe_keys: usize::MAX, ..CommitOptions::default() });
    let n = 4_000_000u64;
    let start = Instant::now();
    for i in 0..n {
        let mut turn = committer.enter(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40);
        turn.mark(i);
        black_box(turn.leave());
    }
    println!("mark, {n} distinct keys, one thread, no commits: {:.1} ns", per(n, start.elapsed()));
    let start = Instant::now();
    for i in 0..n {
        let mut turn = committer.enter(7);
        turn.mark(i & 1);
        black_box(turn.leave());
    }
    println!("mark, two hot keys: {:.1} ns", per(n, start.elapsed()));
}

fn marks_with_commits() -> Result<(), Failure> {
    let disk = SimDisk::new(1);
    let store = Store::open(Arc::new(disk), StoreOptions::default())?;
    let (log, _) = store.replay(|_| Ok(()), |_| ())?;
    let committer: Committer<u64> =
        Committer::new(CommitOptions { policy: SyncPolicy::No, ..CommitOptions::default() });
    let n = 4_000_000u64;
    std::thread::scope(|scope| -> Result<(), Failure> {
        let thread = scope.spawn(|| committer.run(log, &mut Rows(Vec::new())).1);
        let start = Instant::now();
        for i in 0..n {
            let mut turn = committer.enter(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40);
            turn.mark(i);
            black_box(turn.leave());
            while committer.is_crowded() {
                std::thread::yield_now();
            }
        }
        let marked = start.elapsed();
        committer.flush()?;
        println!(
            "mark, while the commit thread drains into memory: {:.1} ns; with the flush {:.1} ns",
            per(n, marked),
            per(n, start.elapsed())
        );
        committer.stop();
        Ok(thread.join().map_err(|_| "the commit thread failed")??)
    })
}

fn always(disk: &Arc<dyn Disk>) -> Result<(), Failure> {
    let raw = disk.create("raw")?;
    let start = Instant::now();
    let mut syncs = 0u64;
    while start.elapsed() < Duration::from_secs(2) {
        write_all_at(&*raw, &[7; 100], syncs * 100)?;
        raw.sync()?;
        syncs += 1;
    }
    let raw_rate = syncs as f64 / start.elapsed().as_secs_f64();
    disk.remove("raw")?;

    let store = Store::open(disk.clone(), StoreOptions::default())?;
    let (log, _) = store.replay(|_| Ok(()), |_| ())?;
    let committer: Committer<u64> =
        Committer::new(CommitOptions { policy: SyncPolicy::Always, ..CommitOptions::default() });
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| -> Result<(), Failure> {
        let thread = scope.spawn(|| committer.run(log, &mut Rows(Vec::new())).1);
        // One thread simulates 64 clients. Each client waits for its ticket before the next mark.
        scope.spawn(|| {
            let mut tickets = [0u64; 64];
            let mut i = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let durable = committer.durable();
                for ticket in &mut tickets {
                    if *ticket <= durable {
                        acknowledged.fetch_add(u64::from(*ticket > 0), Ordering::Relaxed);
                        i += 1;
                        let mut turn = committer.enter(i);
                        turn.mark(i);
                        *ticket = turn.leave();
                    }
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        std::thread::sleep(Duration::from_secs(3));
        stop.store(true, Ordering::Relaxed);
        let rate = acknowledged.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        committer.stop();
        thread.join().map_err(|_| "the commit thread failed")??;
        let stats = committer.stats();
        println!(
            "always, 64 clients: {rate:.0} acknowledged/s in {:.0} syncs/s (this disk alone: \
             {raw_rate:.0} syncs/s of 100 bytes)",
            stats.log.syncs as f64 / start.elapsed().as_secs_f64()
        );
        Ok(())
    })
}

fn log_and_replay(disk: &Arc<dyn Disk>) -> Result<(), Failure> {
    let store = Store::open(disk.clone(), StoreOptions::default())?;
    let (mut log, _) = store.replay(|_| Ok(()), |_| ())?;
    let mut batch = Batch::new();
    for i in 0..2000u32 {
        batch.push(1, 1, &[i as u8; 20]);
    }
    let n = 6000u64;
    let start = Instant::now();
    for _ in 0..n {
        log.append(&batch, 0)?;
    }
    log.sync()?;
    let time = start.elapsed();
    let bytes = log.stats().bytes;
    println!(
        "append of {n} batches of 2000 records: {:.0} MB/s, synced",
        mb_per_second(bytes, time)
    );
    drop((store, log));
    let store = Store::open(disk.clone(), StoreOptions::default())?;
    let start = Instant::now();
    let mut records = 0u64;
    let (_, end) = store.replay(
        |r| {
            records += u64::from(r.payload.len() == 20);
            Ok(())
        },
        |_| (),
    )?;
    let time = start.elapsed();
    println!(
        "replay: {:.1} million records/s, {:.0} MB/s",
        records as f64 / 1e6 / time.as_secs_f64(),
        mb_per_second(end.bytes, time)
    );
    Ok(())
}

fn snapshot(disk: &Arc<dyn Disk>) -> Result<(), Failure> {
    let store = Store::open(disk.clone(), StoreOptions::default())?;
    let (log, _) = store.replay(|_| Ok(()), |_| ())?;
    let chunk: Vec<u8> = (0..128 * 1024u32).map(|i| (i * 31 % 251) as u8).collect();
    let (files, chunks) = (8u64, 1024u64);
    let start = Instant::now();
    let mut snapshot = store.begin_snapshot(log.durable());
    for low in 0..files {
        let mut file = snapshot.file(Tag { space: 1, kind: 1, low, high: low, stamp: 0 })?;
        for _ in 0..chunks {
            file.write(&chunk, 1000)?;
        }
        let entry = file.finish()?;
        snapshot.add(entry);
    }
    snapshot.commit(log.durable())?;
    let bytes = files * chunks * chunk.len() as u64;
    println!(
        "snapshot of {} MB: {:.0} MB/s, synced",
        bytes / 1_000_000,
        mb_per_second(bytes, start.elapsed())
    );
    for threads in [1, 2] {
        let start = Instant::now();
        let sum = AtomicU64::new(0);
        store.load(
            threads,
            |_, chunk| {
                sum.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                Ok(())
            },
            |_| (),
        )?;
        println!(
            "load on {threads} threads, checksums verified: {:.0} MB/s",
            mb_per_second(sum.into_inner(), start.elapsed())
        );
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let parent = std::env::args().nth(1).unwrap_or_else(|| ".".to_string());
    let folder = tempfile::Builder::new().prefix("tidemark-figures-").tempdir_in(parent)?;
    let disk = |name: &str| -> Result<Arc<dyn Disk>, Failure> {
        Ok(Arc::new(RealDisk::open(folder.path().join(name))?))
    };
    marks();
    marks_with_commits()?;
    always(&disk("always")?)?;
    log_and_replay(&disk("log")?)?;
    snapshot(&disk("snapshot")?)?;
    Ok(())
}
