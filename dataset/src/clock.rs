//! The clock on the wall, for what is written with a time.

pub use store::time::unix_us;

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    unix_us() / 1_000
}

/// Seconds since 1970.
pub fn unix_s() -> u32 {
    u32::try_from(unix_us() / 1_000_000).unwrap_or(u32::MAX)
}
