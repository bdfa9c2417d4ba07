//! Benchmarks beside real peers: what several of them need.

pub mod play;

pub use harness::measured as server;

use rustix::time::{ClockId, clock_gettime};

/// Time that the calling thread has spent on a processor, in nanoseconds, exactly: the fair clock
/// on a machine that is shared.
pub fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
