//! The atomics that the bucket protocol uses: the real ones, or loom's, which try every
//! interleaving (`RUSTFLAGS="--cfg loom" cargo test -p counter --release`).

#[cfg(not(loom))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicU64, fence};

    /// Waits a moment for a writer that holds a bucket. It needs nanoseconds, unless the kernel has
    /// just suspended it: then give it our time slice.
    pub(crate) fn wait(turn: u32) {
        if turn < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(loom)]
mod real {
    pub(crate) use loom::sync::atomic::{AtomicU64, fence};

    pub(crate) fn wait(_turn: u32) {
        loom::thread::yield_now();
    }
}

pub(crate) use real::*;
