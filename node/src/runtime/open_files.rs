//! Limit of open files, which bounds the number of clients.

/// Number of files reserved for listeners, the log and cold files.
const RESERVED_FILES: u64 = 64;
/// Maximum limit to request, unless more clients need a higher limit. The value is Linux's default
/// for `fs.nr_open`.
const MOST_FILES: u64 = 1 << 20;

/// Raises the limit of open files as far as allowed, and returns the number of clients that the
/// limit permits, at most `wanted`. The limit exceeds the number of clients, because each cold file
/// also uses a descriptor.
pub fn allowed_clients(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = wanted as u64 + RESERVED_FILES;
    let limit = getrlimit(Resource::Nofile);
    let mut current = limit.current.unwrap_or(u64::MAX);
    let raised = limit.maximum.unwrap_or(MOST_FILES).min(MOST_FILES.max(needed));
    if raised > current
        && setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit }).is_ok()
    {
        current = raised;
    }
    usize::try_from(current.saturating_sub(RESERVED_FILES)).unwrap_or(usize::MAX).clamp(1, wanted)
}
