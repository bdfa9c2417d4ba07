//! The memory of this process, as the kernel counts it.

/// Resident bytes, by the kernel; 0 where it does not tell.
pub fn resident_bytes() -> u64 {
    kilobytes("/proc/self/status", "VmRSS")
}

/// A line of a file of /proc that counts kilobytes, in bytes; 0 if there is none.
pub fn kilobytes(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        * 1024
}
