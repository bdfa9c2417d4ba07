//! Default memory limit: a share of the memory that is available to this process.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Default memory limit of a server, in percent of the available memory.
const PART: u64 = 70;

/// Returns [`PART`] percent of the machine's memory, or of the cgroup's limit if that is lower. The
/// result is computed only once.
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

/// Returns the lowest memory limit of this process's cgroup and its ancestors (version 1 or 2).
fn cgroup_bytes(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let limits = text.lines().flat_map(|line| {
        // The format of a line is hierarchy:controllers:path.
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
        // In a container this path may be valid only outside the container, so read all ancestors.
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
        // cgroup version 1 in a container: the path is valid only outside the container.
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
