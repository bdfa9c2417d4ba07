//! Atomic types of the bucket protocol, from std or from loom. Tests with loom explore every
//! interleaving (`RUSTFLAGS="--cfg loom" cargo test -p counter --release`).

#[cfg(not(loom))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicU64, fence};

    /// Waits for the writer of a bucket. A writer needs nanoseconds unless the kernel has preempted
    /// it; after 64 spins the waiter yields its time slice.
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
