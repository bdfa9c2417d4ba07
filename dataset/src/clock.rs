//! Wall-clock time, for timestamps that are stored on disk.

pub use store::time::unix_us;

/// Returns the Unix time in milliseconds.
pub fn unix_ms() -> u64 {
    unix_us() / 1_000
}

/// Returns the Unix time in seconds.
pub fn unix_s() -> u32 {
    u32::try_from(unix_us() / 1_000_000).unwrap_or(u32::MAX)
}
