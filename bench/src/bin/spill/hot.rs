//! Measures the latency of hot pages while other clients request cold pages.

use crate::node::Node;
use crate::rows::{Rows, SPACE, id, reply, request};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Posts per page.
const PAGE: u64 = 32;
/// Number of connections for hot pages. The same number of connections request cold pages.
const CONNECTIONS: u64 = 4;

/// Load of a measurement.
pub(crate) struct Load {
    /// Numbers of the hot posts.
    pub(crate) hot: std::ops::Range<u64>,
    /// Posts with a lower number are cold.
    pub(crate) cold: u64,
    pub(crate) rounds: u64,
    /// Pages per second.
    pub(crate) rate: u64,
    pub(crate) time: Duration,
}

/// Requests pages at a fixed rate. The fraction `cold_share` of the pages is cold. Returns the
/// latencies of the hot pages, each measured from its scheduled time.
pub(crate) fn pages(
    node: &Node,
    all: &Rows,
    load: &Load,
    cold_share: f64,
    seed: u64,
) -> io::Result<Vec<u64>> {
    let over = AtomicBool::new(false);
    let began = Instant::now() + Duration::from_millis(50);
    let ask =
        |number: u64, of: u64, from: std::ops::Range<u64>, rate: f64| -> io::Result<Vec<u64>> {
            let mut link = node.connect()?;
            let mut rng = fastrand::Rng::with_seed(seed << 16 | of << 8 | number);
            let (mut bytes, mut text, mut ns) = (Vec::new(), Vec::new(), Vec::new());
            let step = Duration::from_secs_f64(CONNECTIONS as f64 / rate);
            let mut due = began + step.mul_f64(number as f64 / CONNECTIONS as f64);
            while due < began + load.time && !over.load(Relaxed) {
                let numbers: Vec<u64> = (0..PAGE).map(|_| rng.u64(from.clone())).collect();
                bytes.clear();
                text.clear();
                request(
                    &["CNT.GET", SPACE],
                    &numbers.iter().map(|&n| id(n)).collect::<Vec<_>>(),
                    &mut bytes,
                );
                text.extend_from_slice(format!("*{PAGE}\r\n").as_bytes());
                numbers.iter().for_each(|&n| reply(all.after(n, load.rounds), &mut text));
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                link.send(&bytes)?;
                link.expect(&text)?;
                ns.push(due.elapsed().as_nanos() as u64);
                due += step;
            }
            Ok(ns)
        };
    std::thread::scope(|scope| {
        let ask = &ask;
        let hot = |n| {
            scope.spawn(move || ask(n, 0, load.hot.clone(), load.rate as f64 * (1.0 - cold_share)))
        };
        let hot: Vec<_> = (0..CONNECTIONS).map(hot).collect();
        let cold = |n| scope.spawn(move || ask(n, 1, 0..load.cold, load.rate as f64 * cold_share));
        let cold: Vec<_> =
            if cold_share > 0.0 { (0..CONNECTIONS).map(cold).collect() } else { Vec::new() };
        let mut all = Vec::new();
        let panicked = |_| io::Error::other("a reader panicked");
        for thread in hot {
            all.append(&mut thread.join().map_err(panicked)??);
        }
        over.store(true, Relaxed);
        for thread in cold {
            thread.join().map_err(panicked)??;
        }
        Ok(all)
    })
}
