//! What readers notice when a large table is recycled and cleared in the background: the time of a
//! page of 20 checks, beside none.
//!
//! `cargo run --release -p tidemark-bench --bin phantom_recycle -- --gib 1`

use clap::Parser;
use phantom::{Member, Options, Space};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Measures reads while tables are recycled.
#[derive(Parser)]
struct Args {
    /// Size of a table's filter, in GiB.
    #[arg(long, default_value_t = 1.0)]
    gib: f64,
    /// How long each measurement takes, in seconds.
    #[arg(long, default_value_t = 8)]
    seconds: u64,
}

const BATCH: usize = 20;
/// Ids of a table.
const SPAN: u64 = 1 << 20;

fn main() {
    let args = Args::parse();
    let bits = args.gib * 8.0 * (1u64 << 30) as f64;
    let options = Options {
        pairs_per_table: (bits / 19.9) as u64,
        max_tables: 2,
        seed: 3,
        ..Options::default()
    };
    let space = Space::new(options).expect("memory");
    let mut epoch = 0;
    // Tables double until they are as large as they get.
    for _ in 0..9 {
        roll(&space, &mut epoch, 20_000);
    }
    while space.maintain() {}
    let full = space.tables().last().map_or(0, |table| table.bytes);
    println!("{:>6} MiB a table, {} of them", full >> 20, space.layout().len());
    println!(
        "{:<28} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "pages of 20, us", "p50", "p99", "p99.9", "max", "pages"
    );
    for round in 0..2 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| pages(&space, &stop));
            std::thread::sleep(Duration::from_secs(args.seconds));
            stop.store(true, Relaxed);
            show("alone", reader.join().expect("it only reads"));
        });
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| pages(&space, &stop));
            let (start, mut recycled) = (Instant::now(), 0);
            while start.elapsed() < Duration::from_secs(args.seconds) {
                // Every page of the table was written to, so that all of it is memory to be
                // cleared.
                roll(&space, &mut epoch, 1_000_000);
                while space.maintain() {}
                recycled += 1;
            }
            stop.store(true, Relaxed);
            show(&format!("{recycled} tables recycled"), reader.join().expect("it only reads"));
        });
        assert!(round > 1 || space.layout().len() <= 3);
    }
}

/// Adds pairs of new ids, and closes their table.
fn roll(space: &Space, epoch: &mut u64, pairs: u64) {
    *epoch += 1;
    for i in 0..pairs {
        let id = *epoch * SPAN + i.wrapping_mul(0x9e37_79b9) % SPAN;
        space.add(id, &Member::Number(i)).expect("room");
    }
    while space.maintain() {}
    assert!(space.roll_now());
}

/// The time of each page, in nanoseconds.
fn pages(space: &Space, stop: &AtomicBool) -> Vec<u64> {
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut ids, mut answers, mut times) = (vec![0; BATCH], vec![], vec![]);
    while !stop.load(Relaxed) {
        let horizon = space.horizon();
        ids.iter_mut().for_each(|id| *id = horizon + rng.u64(0..2 * SPAN));
        answers.clear();
        let start = Instant::now();
        space
            .contains_batch(&Member::Number(rng.u64(..)), &ids, &mut answers)
            .expect("all is in memory");
        times.push(start.elapsed().as_nanos() as u64);
        black_box(&answers);
    }
    times
}

fn show(what: &str, mut times: Vec<u64>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
    println!(
        "{what:<28} {:>9.2} {:>9.2} {:>9.2} {:>9.1} {:>9}",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
        times.len()
    );
}
