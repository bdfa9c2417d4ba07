//! Helpers shared by benchmarks that compare Tidemark with other servers.

pub mod play;

pub use harness::measured as server;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of the calling thread in nanoseconds. Unlike wall-clock time it is meaningful on a
/// shared machine.
pub fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
