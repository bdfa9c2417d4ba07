//! How much memory there is for this process.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The part of it that a server takes unless told otherwise, in percent.
const PART: u64 = 70;

/// [`PART`] of what the machine has, or the cgroup if that allows less. It is looked up once.
pub(super) fn default_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let machine = machine_bytes().unwrap_or(u64::MAX);
        machine.min(cgroup_bytes(Path::new("/")).unwrap_or(u64::MAX)) / 100 * PART
    })
}

fn machine_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The lowest limit of this process's cgroup and those above it, of version 2 or 1.
fn cgroup_bytes(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let limits = text.lines().flat_map(|line| {
        // hierarchy:controllers:path
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or("/"));
        let (folder, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|c| c == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        let folder = root.join(folder);
        let own = folder.join(path.trim_start_matches('/'));
        // In a container the path may be the one outside of it.
        let all: Vec<PathBuf> = own
            .ancestors()
            .take_while(|dir| dir.starts_with(&folder))
            .map(|dir| dir.join(file))
            .collect();
        all
    });
    let read = |file: PathBuf| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    limits.filter_map(read).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let file = root.path().join(name);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            std::fs::write(file, text).expect("written");
        }
        root
    }

    #[test]
    fn the_lowest_limit_of_the_cgroups_counts() {
        let root = with(&[
            ("proc/self/cgroup", "0::/system.slice/tidemark.service\n"),
            ("sys/fs/cgroup/system.slice/tidemark.service/memory.max", "max\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "2147483648\n"),
        ]);
        assert_eq!(cgroup_bytes(root.path()), Some(2 << 30));
        // Version 1, in a container: the path is the one outside.
        let root = with(&[
            ("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/docker/17\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
        ]);
        assert_eq!(cgroup_bytes(root.path()), Some(512 << 20));
        let root = with(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")]);
        assert_eq!(cgroup_bytes(root.path()), None);
        assert_eq!(cgroup_bytes(&root.path().join("nothing")), None);
    }

    #[test]
    fn this_machine_has_memory() {
        let bytes = default_bytes();
        assert!(bytes > 64 << 20 && bytes < 1 << 50, "{bytes}");
    }
}
