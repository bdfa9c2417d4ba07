//! How many hints to the cache count that are given in one go: a processor may drop those for which
//! it has no room.
//!
//! ```text
//! cargo run --release -p tidemark-bench --bin hints
//! ```
//!
//! Random lines of memory of several sizes are asked for, one right after the other; a microsecond
//! later all are read, which takes next to nothing if all have come, and a wait for memory if one
//! has not. Beside it as many lines read with no hint. Nanoseconds, medians.

use clap::Parser;
use rolling::Words;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Reads lines that were asked for in one go.
#[derive(Parser)]
struct Args {
    /// Sizes of the memory, in MiB.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 64, 1024])]
    mib: Vec<usize>,
    /// Lines that are asked for.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 8, 16, 20, 24, 32, 40, 60])]
    lines: Vec<usize>,
    /// Times that each is done.
    #[arg(long, default_value_t = 2001)]
    times: usize,
}

/// So long after the last hint the lines are read.
const LATER: Duration = Duration::from_micros(1);

/// Words of a line.
const LINE: usize = 8;

/// Nanoseconds that the reading of `number` random lines takes. New ones each time: those that were
/// read a moment ago are in the cache.
fn read(words: &Words, number: usize, times: usize, hint: bool, rng: &mut fastrand::Rng) -> u128 {
    let mut took: Vec<u128> = (0..times)
        .map(|_| {
            let at: Vec<usize> =
                (0..number).map(|_| rng.usize(..words.len() / LINE) * LINE).collect();
            if hint {
                at.iter().for_each(|&at| words.prefetch(at));
            }
            let asked = Instant::now();
            while asked.elapsed() < LATER {
                spin_loop();
            }
            let begin = Instant::now();
            black_box(at.iter().map(|&at| words[at].load(Relaxed)).sum::<u64>());
            begin.elapsed().as_nanos()
        })
        .collect();
    took.sort_unstable();
    took[times / 2]
}

fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let mut rng = fastrand::Rng::with_seed(1);
    println!("{:>8} {:>6} {:>12} {:>12}", "MiB", "lines", "asked for", "not asked");
    for mib in args.mib {
        let words = Words::zeroed(mib.max(1) << 17)?;
        words.iter().step_by(LINE).for_each(|word| word.store(1, Relaxed));
        for &number in &args.lines {
            let took =
                [true, false].map(|hint| read(&words, number, args.times.max(1), hint, &mut rng));
            println!("{mib:>8} {number:>6} {:>12} {:>12}", took[0], took[1]);
        }
    }
    Ok(())
}
