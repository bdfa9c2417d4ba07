//! Memory of this process, as reported by the kernel.

/// Returns the resident set size in bytes; 0 if unknown.
pub fn resident_bytes() -> u64 {
    kilobytes("/proc/self/status", "VmRSS")
}

/// Returns the value of a line of a /proc file in bytes; 0 if the line is missing. The file
/// contains kilobytes.
pub fn kilobytes(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        * 1024
}
