//! Reads while writers work at full speed on the same table, one reader and one writer on each
//! core; every row's fields must agree. And what the machine itself takes from a reader when its
//! other core works: with arithmetic only, or with as many plain writes of as many lines of other
//! memory, which no reader looks at.

use crate::floor::Floor;
use crate::{BATCH, Tidemark, median, post};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidemark_bench::cpu_ns;

/// What goes on beside the readers.
#[derive(Clone, Copy)]
enum Beside<'a> {
    /// So many writers of the same table.
    Writers(u64),
    /// Arithmetic.
    Spinner,
    /// So many that write plainly to other memory, together so many times a second.
    Plain(&'a Floor, u64, f64),
}

/// What some readers did together.
struct Reads {
    /// Per second of processor time of one of them.
    rows_per_cpu_second: f64,
    writes_per_second: f64,
    torn: u64,
}

impl Tidemark {
    /// Reads random rows; how many, in how much processor time, and how many of them had fields
    /// that do not agree.
    fn read_until(&self, seed: u64, stop: &AtomicBool) -> (u64, u64, u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut out, mut found) = (Vec::new(), Vec::new());
        let (begin, mut rows, mut torn) = (cpu_ns(), 0, 0);
        while !stop.load(Relaxed) {
            for _ in 0..50 {
                let ids: [u64; BATCH] =
                    std::array::from_fn(|_| post(self.first + rng.u64(0..self.rows)));
                out.clear();
                found.clear();
                self.space.get_batch(&ids, &mut out, &mut found).expect("all is in memory");
                rows += BATCH as u64;
                torn += out.chunks_exact(4).filter(|row| row.iter().any(|v| *v != row[0])).count()
                    as u64;
                torn += found.iter().filter(|found| !**found).count() as u64;
            }
        }
        (rows, cpu_ns() - begin, torn)
    }

    fn write_until(&self, seed: u64, stop: &AtomicBool) -> u64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut writes = 0;
        while !stop.load(Relaxed) {
            let (id, value) = (post(self.first + rng.u64(0..self.rows)), rng.i64(0..255));
            // 254 is the most that the narrowest field holds.
            let cells: [(usize, i64); 4] = std::array::from_fn(|field| (field, value));
            writes += u64::from(self.space.set(id, &cells).is_ok());
        }
        writes
    }

    fn read_on(&self, readers: u64, beside: Beside<'_>, time: Duration) -> Reads {
        let stop = AtomicBool::new(false);
        let writers = match beside {
            Beside::Writers(writers) | Beside::Plain(_, writers, _) => writers,
            Beside::Spinner => 1,
        };
        let start = Barrier::new((readers + writers + 1) as usize);
        let (rows, cpu, torn, writes) =
            (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for seed in 0..readers {
                let (start, stop, rows, cpu, torn) = (&start, &stop, &rows, &cpu, &torn);
                scope.spawn(move || {
                    start.wait();
                    let (r, c, t) = self.read_until(seed, stop);
                    rows.fetch_add(r, Relaxed);
                    cpu.fetch_add(c, Relaxed);
                    torn.fetch_add(t, Relaxed);
                });
            }
            for seed in 0..writers {
                let (start, stop, writes) = (&start, &stop, &writes);
                scope.spawn(move || {
                    start.wait();
                    let done = match beside {
                        Beside::Writers(_) => self.write_until(100 + seed, stop),
                        Beside::Spinner => spin_until(stop),
                        Beside::Plain(floor, of, rate) => {
                            write_plainly_until(floor, rate / of as f64, seed, stop)
                        }
                    };
                    writes.fetch_add(done, Relaxed);
                });
            }
            start.wait();
            let begin = Instant::now();
            std::thread::sleep(time.saturating_sub(begin.elapsed()));
            stop.store(true, Relaxed);
        });
        Reads {
            rows_per_cpu_second: rows.into_inner() as f64 * 1e9 / cpu.into_inner().max(1) as f64,
            writes_per_second: writes.into_inner() as f64 / time.as_secs_f64(),
            torn: torn.into_inner(),
        }
    }

    /// Prints what writes take from reads: on one core each, and with both on both cores; and what
    /// other work takes. What is compared is measured one right after the other: a ratio is the
    /// median of those within rounds.
    pub(crate) fn print_reads_beside_writes(&self, rounds: usize, floor: &Floor) {
        let time = Duration::from_millis(1500);
        const NAMES: [&str; 7] = [
            "1 reader alone",
            "beside 1 writer",
            "beside as many plain writes of other memory",
            "beside arithmetic",
            "2 readers alone",
            "beside 2 writers",
            "beside as many plain writes of other memory",
        ];
        /// Which of them are alone.
        const ALONE: [usize; 2] = [0, 4];
        let mut rates = [const { Vec::new() }; NAMES.len()];
        let mut shares = [const { Vec::new() }; NAMES.len()];
        let mut writes = [const { Vec::new() }; NAMES.len()];
        let mut torn = 0;
        for _ in 0..rounds {
            let (mut rate, mut alone) = (0.0, 0.0);
            for i in 0..NAMES.len() {
                let readers = if i < ALONE[1] { 1 } else { 2 };
                let beside = match i {
                    0 | 4 => Beside::Writers(0),
                    1 | 5 => Beside::Writers(readers),
                    3 => Beside::Spinner,
                    _ => Beside::Plain(floor, readers, rate),
                };
                let reads = self.read_on(readers, beside, time);
                if ALONE.contains(&i) {
                    alone = reads.rows_per_cpu_second;
                }
                rate = reads.writes_per_second;
                rates[i].push(reads.rows_per_cpu_second / 1e6);
                shares[i].push(100.0 * reads.rows_per_cpu_second / alone);
                writes[i].push(rate / 1e6);
                torn += reads.torn;
            }
        }
        println!(
            "\nmillion rows read per second of a reader's processor time, rows whose fields must \
             agree; medians of rounds:"
        );
        for (i, name) in NAMES.iter().enumerate() {
            print!("{name:44} {:6.2}", median(rates[i].clone()));
            if !ALONE.contains(&i) {
                let (least, most) =
                    shares[i].iter().fold((f64::MAX, 0.0f64), |(a, b), s| (a.min(*s), b.max(*s)));
                print!(", {:3.0} % of alone ({least:.0} to {most:.0})", median(shares[i].clone()));
            }
            match median(writes[i].clone()) {
                writes if writes > 0.0 && i != 3 => println!(", {writes:.2} million writes/s"),
                _ => println!(),
            }
        }
        println!("torn or missing rows: {torn}");
    }
}

fn spin_until(stop: &AtomicBool) -> u64 {
    let mut x = 1;
    while !stop.load(Relaxed) {
        x = (0..10_000).fold(black_box(x), |x, i| crate::mix(x ^ i));
    }
    x & 1
}

/// Reads and writes both lines of random buckets, one after the other, as a writer of rows does.
fn write_plainly_until(floor: &Floor, rate: f64, seed: u64, stop: &AtomicBool) -> u64 {
    let mut rng = fastrand::Rng::with_seed(7 + seed);
    let (begin, mut writes) = (Instant::now(), 0);
    while !stop.load(Relaxed) {
        while (writes as f64) > begin.elapsed().as_secs_f64() * rate && !stop.load(Relaxed) {
            std::hint::spin_loop();
        }
        for _ in 0..16 {
            floor.write(rng.u64(..));
            writes += 1;
        }
    }
    writes
}
