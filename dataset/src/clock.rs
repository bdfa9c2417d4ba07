//! The clock on the wall, for what is written with a time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since 1970.
pub fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    unix_us() / 1_000
}

/// Seconds since 1970.
pub fn unix_s() -> u32 {
    u32::try_from(unix_us() / 1_000_000).unwrap_or(u32::MAX)
}
