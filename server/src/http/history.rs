//! Ten minutes of samples for the dashboard's charts: rates, page latency, memory.

use dataset::clock::unix_ms;
use node::command::spec::flag;
use node::command::table::{numbers_named, with_numbers};
use node::roles::node::{Host, Node};
use node::runtime::command_stats::percentile_us;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
const SAMPLES: usize = 300;

/// Ring of samples, oldest first.
#[derive(Default)]
pub(super) struct History(Mutex<VecDeque<Point>>);

/// Rates and latencies of one interval.
#[derive(Clone)]
struct Point {
    /// End of the interval, in milliseconds since 1970.
    at_ms: u64,
    pages_per_s: f64,
    writes_per_s: f64,
    commands_per_s: f64,
    cold_reads_per_s: f64,
    /// p50, p99 and p99.9 of timed pages, in microseconds.
    page_us: [Option<f64>; 3],
    memory_bytes: u64,
}

struct Sums {
    at: Instant,
    pages: u64,
    page_classes: Vec<u64>,
    writes: u64,
    commands: u64,
    cold_reads: u64,
}

/// Adds a sample at each interval until the future is dropped.
pub(super) async fn record(host: &Host, history: &History) {
    let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut before = None;
    loop {
        ticks.tick().await;
        let node = host.node();
        let now = sums(&node);
        if let Some(before) = &before {
            let mut points = history.0.lock();
            if points.len() == SAMPLES {
                points.pop_front();
            }
            points.push_back(point(&node, before, &now));
        }
        before = Some(now);
    }
}

fn sums(node: &Node) -> Sums {
    let page = node.calls.sums(numbers_named("feed.get").start);
    let writes = with_numbers().filter(|(_, spec)| spec.has(flag::WRITE));
    Sums {
        at: Instant::now(),
        pages: page.calls,
        page_classes: page.classes().to_vec(),
        writes: writes.map(|(number, _)| node.calls.sums(number).calls).sum(),
        commands: node.totals().commands,
        cold_reads: node.loaded().map_or(0, |e| e.cold.figures.reads.load(Relaxed)),
    }
}

fn point(node: &Node, before: &Sums, now: &Sums) -> Point {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
    // The difference is 0 if a counter has decreased, as after CONFIG RESETSTAT or a full sync.
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
    let earlier = |class: usize| before.page_classes.get(class).copied().unwrap_or(0);
    let classes: Vec<u64> =
        now.page_classes.iter().enumerate().map(|(i, n)| n.saturating_sub(earlier(i))).collect();
    Point {
        at_ms: unix_ms(),
        pages_per_s: rate(before.pages, now.pages),
        writes_per_s: rate(before.writes, now.writes),
        commands_per_s: rate(before.commands, now.commands),
        cold_reads_per_s: rate(before.cold_reads, now.cold_reads),
        page_us: [0.5, 0.99, 0.999].map(|share| percentile_us(&classes, share)),
        memory_bytes: node.loaded().map_or(0, |engines| engines.memory_bytes()),
    }
}

impl History {
    pub(super) fn json(&self) -> Value {
        let points = self.0.lock().clone();
        let points: Vec<Value> = points
            .iter()
            .map(|p| {
                json!({
                    "at_ms": p.at_ms,
                    "pages_per_s": p.pages_per_s,
                    "writes_per_s": p.writes_per_s,
                    "commands_per_s": p.commands_per_s,
                    "cold_reads_per_s": p.cold_reads_per_s,
                    "page_p50_us": p.page_us[0],
                    "page_p99_us": p.page_us[1],
                    "page_p999_us": p.page_us[2],
                    "memory_bytes": p.memory_bytes,
                })
            })
            .collect();
        json!({ "every_s": SAMPLE_INTERVAL.as_secs(), "samples": points })
    }
}
