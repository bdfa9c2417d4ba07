//! Benchmarks beside real peers: what several of them need.

pub mod play;
pub mod server;

/// Time that the calling thread has spent on a processor, in nanoseconds: the fair clock on a machine that is shared. 0 where the
/// system does not say.
pub fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_default()
}
