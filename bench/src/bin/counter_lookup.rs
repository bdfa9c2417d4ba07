//! Batches of 20 random lookups in a table far beyond the cache, beside two peers of the same size, in one run; then reads
//! while a writer works at full speed.
//!
//! `cargo run --release -p tidemark-bench --bin counter_lookup -- [--megabytes 1024]`
//!
//! - *tidemark*: `Space::get_batch`, schema like:12 repost:8 comment:8 read:16.
//! - *naive*: 17-byte slots (id, four u16 counters, state), `h1 + N * h2` slot by slot; batched, and prefetched in the same way.
//! - *HashMap*: std's `HashMap<u64, [u32; 4]>` with a multiplicative hash; batched, but it offers no prefetch.
//!
//! All three are filled first, which takes longer than measuring; with `--wait` it then waits for a line of input, so that others who use
//! the machine can be asked to be quiet.

use clap::Parser;
use counter::{Bounds, Change, Options, Schema, Space};
use rolling::Words;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidemark_bench::cpu_ns;

#[derive(Parser)]
struct Arguments {
    /// Size of each structure.
    #[arg(long, default_value_t = 1024)]
    megabytes: u64,
    /// Repetitions of each measurement; the median is printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Without the peers and without reads beside writes.
    #[arg(long)]
    quick: bool,
    /// Waits for a line of input before it measures.
    #[arg(long)]
    wait: bool,
}

const BATCH: usize = 20;
const BATCHES: usize = 100_000;

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (x >> 32)
}

/// The id of post `i`: rising, one in 4,096 ids taken.
fn post(i: u64) -> u64 {
    (1 << 50) + i * 4096 + mix(i) % 4096
}

/// An id near post `i` that no post has.
fn nobody(i: u64) -> u64 {
    (1 << 50) + i * 4096 + (mix(i) + 1 + mix(!i) % 4095) % 4096
}

#[derive(Default)]
struct Multiplicative(u64);

impl Hasher for Multiplicative {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, x: u64) {
        self.0 = mix(x);
    }
}

/// 17-byte slots in one array.
struct Naive {
    words: Words,
    slots: u64,
}

impl Naive {
    const SLOT_BITS: u64 = 136;

    fn new(bytes: u64) -> std::io::Result<Naive> {
        let slots = bytes * 8 / Naive::SLOT_BITS;
        // Odd, and no multiple of small steps matters at this size.
        Ok(Naive { words: Words::zeroed(bytes as usize / 8 + 4)?, slots: slots | 1 })
    }

    fn bits(&self, at: u64) -> u64 {
        let (word, shift) = ((at / 64) as usize, at % 64);
        (self.words[word].load(Relaxed) >> shift) | (self.words[word + 1].load(Relaxed) << 1 << (63 - shift))
    }

    fn set(&self, at: u64, width: u64, value: u64) {
        for bit in (0..width).step_by(8) {
            let (word, shift) = (((at + bit) / 64) as usize, (at + bit) % 64);
            let byte = (value >> bit) & 0xFF;
            let old = self.words[word].load(Relaxed);
            self.words[word].store((old & !(0xFF << shift)) | (byte << shift), Relaxed);
        }
    }

    fn first(&self, id: u64) -> (u64, u64) {
        let hash = mix(id);
        let reduce = |x: u64, n: u64| ((u128::from(x) * u128::from(n)) >> 64) as u64;
        (reduce(hash, self.slots), 1 + reduce(mix(hash), self.slots - 1))
    }

    fn insert(&self, id: u64, row: u64) {
        let (mut slot, step) = self.first(id);
        while self.bits(slot * Naive::SLOT_BITS + 128) & 0xFF != 0 {
            slot = (slot + step) % self.slots;
        }
        let at = slot * Naive::SLOT_BITS;
        self.set(at, 64, id);
        self.set(at + 64, 64, row);
        self.set(at + 128, 8, 1);
    }

    fn get_batch(&self, ids: &[u64], out: &mut Vec<Option<u64>>) {
        let mut firsts = [(0, 0); BATCH];
        for (first, &id) in firsts.iter_mut().zip(ids) {
            *first = self.first(id);
            let word = (first.0 * Naive::SLOT_BITS / 64) as usize;
            self.words.prefetch(word);
            self.words.prefetch(word + 2);
        }
        out.clear();
        for (&(first, step), &id) in firsts.iter().zip(ids) {
            let mut slot = first;
            out.push(loop {
                let at = slot * Naive::SLOT_BITS;
                if self.bits(at + 128) & 0xFF == 0 {
                    break None;
                }
                if self.bits(at) == id {
                    break Some(self.bits(at + 64));
                }
                slot += step;
                if slot >= self.slots {
                    slot -= self.slots;
                }
            });
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds of processor time per lookup of random ids, median of the rounds.
fn measure(rounds: usize, rows: u64, id: fn(u64) -> u64, mut look: impl FnMut(&[u64]) -> usize) -> (f64, f64) {
    let mut times = Vec::new();
    let mut found = 0;
    for round in 0..rounds {
        let mut rng = fastrand::Rng::with_seed(round as u64);
        let ids: Vec<u64> = (0..BATCH * BATCHES).map(|_| id(rng.u64(0..rows))).collect();
        let begin = cpu_ns();
        for batch in ids.chunks_exact(BATCH) {
            found += look(batch);
        }
        times.push((cpu_ns() - begin) as f64 / ids.len() as f64);
    }
    (median(times), found as f64 / (rounds * BATCH * BATCHES) as f64)
}

type Posts = fn(u64) -> u64;
const KINDS: [(&str, Posts); 2] = [("hit", post), ("miss", nobody)];

/// What is measured: its ids are those of posts from `first` on, `rows` of them.
struct Tidemark {
    space: Space,
    first: u64,
    rows: u64,
}

impl Tidemark {
    /// As many rows as make one table of this size; a little is known of them beforehand, as a running space would know.
    fn new(bytes: u64) -> Result<Tidemark, Box<dyn std::error::Error>> {
        let schema = Schema::parse("like:12 repost:8 comment:8 read:16")?;
        let rows = (bytes as f64 / 128.0 * 15.0 * 0.9099) as u64;
        let space =
            Space::new(Options { rows_per_table: rows + 1, memory_limit_bytes: 64 << 30, ..Options::new(schema) })?;
        let begin = cpu_ns();
        // Smaller tables come first; the one to be measured is the last one opened.
        let (mut first, mut n) = (0, 0);
        while n - first < rows {
            let ids: [u64; 32] = std::array::from_fn(|i| post(n + i as u64));
            space.read().prefetch(&ids);
            for (id, i) in ids.into_iter().zip(n..) {
                space.set(id, &[(0, (i % 4000) as i64), (1, (i % 250) as i64), (2, 7), (3, (i % 60_000) as i64)])?;
            }
            n += ids.len() as u64;
            if n % 65_536 == 0 {
                let low = space.tables().last().map_or(0, |t| t.low);
                first = if low <= post(0) { 0 } else { (low - (1 << 50)) / 4096 + 1 };
            }
        }
        let table = space.tables().pop().ok_or("no table")?;
        println!(
            "tidemark: {} rows in the measured table, {:.0} MiB, fill {:.1} %, hit {:.3} buckets, miss {:.3}, {:.3} % in the extend dictionary, \
             filled at {:.0} ns a row",
            table.rows,
            table.bytes as f64 / 1048576.0,
            100.0 * table.fill,
            table.probes_mean,
            1.0 / (1.0 - table.past_share),
            100.0 * table.extend_rows as f64 / table.rows as f64,
            (cpu_ns() - begin) as f64 / n as f64
        );
        Ok(Tidemark { space, first, rows: n - first })
    }

    fn measure(&self, rounds: usize, id: Posts) -> (f64, f64) {
        let (mut out, mut found, mut ids) = (Vec::new(), Vec::new(), [0; BATCH]);
        measure(
            rounds,
            self.rows,
            |i| i,
            |batch| {
                ids.iter_mut().zip(batch).for_each(|(to, &i)| *to = id(self.first + i));
                out.clear();
                found.clear();
                self.space.get_batch(&ids, &mut out, &mut found);
                black_box(&out);
                found.iter().filter(|f| **f).count()
            },
        )
    }

    /// Million rows read per second of processor time.
    fn read_for(&self, time: Duration) -> f64 {
        let mut rng = fastrand::Rng::with_seed(5);
        let (mut out, mut found) = (Vec::new(), Vec::new());
        let (begin, cpu, mut lookups) = (Instant::now(), cpu_ns(), 0u64);
        while begin.elapsed() < time {
            for _ in 0..50 {
                let ids: [u64; BATCH] = std::array::from_fn(|_| post(self.first + rng.u64(0..self.rows)));
                out.clear();
                found.clear();
                self.space.get_batch(&ids, &mut out, &mut found);
                lookups += BATCH as u64;
            }
        }
        lookups as f64 * 1e3 / (cpu_ns() - cpu) as f64
    }

    /// [`Tidemark::read_for`], while another thread adds to random posts of a space; and million writes per second.
    fn read_beside_writes(&self, time: Duration, target: &Space, first: u64, rows: u64) -> (f64, f64) {
        let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
        let write = || {
            let mut rng = fastrand::Rng::with_seed(6);
            let mut out = Vec::new();
            while !stop.load(Relaxed) {
                let id = post(first + rng.u64(0..rows));
                if target.add(id, &[Change { field: 3, delta: 1 }], &Bounds::default(), &mut out).is_ok() {
                    writes.store(writes.load(Relaxed) + 1, Relaxed);
                }
            }
        };
        std::thread::scope(|s| {
            s.spawn(write);
            let rate = self.read_for(time);
            stop.store(true, Relaxed);
            (rate, writes.load(Relaxed) as f64 / time.as_secs_f64() / 1e6)
        })
    }

    fn print_reads_beside_writes(&self, rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
        const OTHER_ROWS: u64 = 4_000_000;
        let other = Space::new(Options::new(Schema::parse("a:12 b:8 c:8 d:16")?))?;
        for i in 0..OTHER_ROWS {
            other.set(post(i), &[(0, 1)])?;
        }
        let time = Duration::from_secs(2);
        let mut rates = [const { Vec::new() }; 3];
        let mut written = 0.0;
        for _ in 0..rounds {
            rates[0].push(self.read_for(time));
            rates[1].push(self.read_beside_writes(time, &other, 0, OTHER_ROWS).0);
            let (rate, w) = self.read_beside_writes(time, &self.space, self.first, self.rows);
            rates[2].push(rate);
            written = w;
        }
        let [alone, beside, within] = rates.map(median);
        println!(
            "million rows read per second of processor time by one thread: alone {alone:.2}; while another writes a different space {beside:.2}; \
             while it writes the same rows at full speed ({written:.2} million writes/s) {within:.2}: {:.0} % of alone",
            100.0 * within / alone
        );
        Ok(())
    }
}

type Map = HashMap<u64, [u32; 4], BuildHasherDefault<Multiplicative>>;

/// 24 bytes and a control byte per slot, at most seven of eight taken.
fn map(bytes: u64) -> Map {
    let slots = (bytes / 25).next_power_of_two();
    let slots = if slots * 25 > bytes * 3 / 2 { slots / 2 } else { slots };
    let rows = slots * 7 / 8;
    let mut map = Map::default();
    map.reserve(rows as usize);
    map.extend((0..rows).map(|i| (post(i), [i as u32; 4])));
    println!("HashMap: {rows} rows, {:.0} MiB", (slots * 25) as f64 / 1048576.0);
    map
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Arguments { megabytes, rounds, quick, wait } = Arguments::parse();
    let bytes = megabytes << 20;
    let tidemark = Tidemark::new(bytes)?;
    let peers = if quick {
        None
    } else {
        let naive = Naive::new(bytes)?;
        let rows = naive.slots * 9 / 10;
        (0..rows).for_each(|i| naive.insert(post(i), i));
        Some((naive, rows, map(bytes)))
    };
    if wait {
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
    }
    let mut results = Vec::new();
    for (kind, id) in KINDS {
        results.push(("tidemark", kind, tidemark.measure(rounds, id)));
    }
    if let Some((naive, rows, map)) = &peers {
        let mut answers = Vec::new();
        for (kind, id) in KINDS {
            let result = measure(rounds, *rows, id, |batch| {
                naive.get_batch(batch, &mut answers);
                black_box(&answers);
                answers.iter().flatten().count()
            });
            results.push(("naive 17-byte slots", kind, result));
        }
        for (kind, id) in KINDS {
            let result = measure(rounds, map.len() as u64, id, |batch| {
                let mut found = 0;
                for row in batch.iter().filter_map(|id| map.get(id)) {
                    black_box(row);
                    found += 1;
                }
                found
            });
            results.push(("HashMap<u64, [u32; 4]>", kind, result));
        }
        tidemark.print_reads_beside_writes(rounds)?;
    }
    println!("\n{:24} {:>5} {:>10} {:>8}", "", "", "ns/row", "found");
    for (what, kind, (ns, share)) in results {
        println!("{what:24} {kind:>5} {ns:>10.1} {:>7.1}%", 100.0 * share);
    }
    Ok(())
}
