//! The limit of open files, which bounds the number of clients.

/// Files that the process needs beside its clients: listeners, the log, cold files.
const RESERVED_FILES: u64 = 64;
/// More open files than this are not asked for: what Linux allows a process at most, unless told
/// otherwise.
const MOST_FILES: u64 = 1 << 20;

/// Clients that the limit of open files has room for. Raises that limit as far as it may: cold
/// files are opened as they come, one descriptor each.
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
