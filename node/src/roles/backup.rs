//! Backup thread: BACKUP TO, scheduled backups, and the log archive
//! (`store/src/{backup,archive}.rs`).
//!
//! One thread does all work in `backup.dir`, one task at a time. A lock on the folder excludes
//! other servers. A task is cancelled, without leaving files, when the server stops or when a full
//! sync replaces the node.

use crate::config::Config;
use crate::roles::backup_state::{BackupThreadState, Kept};
use crate::roles::node::{Host, Node};
use crate::runtime::utc;
use dataset::clock::unix_ms;
use dataset::tiering::io_throttle::IoThrottle;
use std::cell::RefCell;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};
use store::{
    ARCHIVE, Archive, Backup, BackupProgress, Disk, Error, Lineage, Position, RealDisk, TEMPORARY,
};

/// Interval for copying the log to the archive.
const ARCHIVE_INTERVAL: Duration = Duration::from_secs(2);
const TRIM_EVERY: Duration = Duration::from_secs(60);
/// Delay after a failed scheduled backup.
const RETRY: Duration = Duration::from_secs(60);

/// Name prefix of scheduled backups.
const AUTO: &str = "auto-";
/// Name prefix of backups that BACKUP TO makes without a name.
const MANUAL: &str = "backup-";

/// Returns the folder that the argument of BACKUP TO names. The folder is always below
/// `backup.dir`.
pub fn place(config: &Config, text: &str) -> Result<PathBuf, String> {
    let root = &config.backup.dir;
    if root.as_os_str().is_empty() {
        return Err("backups are disabled, set backup.dir".to_owned());
    }
    let root = std::path::absolute(root).map_err(|error| format!("backup.dir: {error}"))?;
    let path = Path::new(text);
    let below = if path.is_absolute() {
        path.strip_prefix(&root)
            .map_err(|_| format!("backups must be below {} (backup.dir)", root.display()))?
    } else {
        path
    };
    let parts: Vec<Component<'_>> =
        below.components().filter(|part| *part != Component::CurDir).collect();
    if parts.is_empty() {
        return if text.is_empty() {
            Err("'' is no name of a backup".to_owned())
        } else {
            Ok(root.join(format!("{MANUAL}{}", utc::name(unix_ms()))))
        };
    }
    let legal = |part: &Component<'_>| match part {
        Component::Normal(name) => name.to_str().is_some_and(|name| {
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
            name.len() <= 100
                && name.bytes().all(is_plain)
                && !name.starts_with('.')
                && !name.ends_with(TEMPORARY)
        }),
        _ => false,
    };
    let first = parts[0].as_os_str();
    let is_taken = first == ARCHIVE || first.as_encoded_bytes().starts_with(AUTO.as_bytes());
    if parts.len() > 4 || !parts.iter().all(legal) || is_taken {
        return Err(
            "invalid backup name: use 1 to 4 parts (a/b), each of 1 to 100 characters of a-z, A-Z, \
             0-9, -, _ and . (not leading). 'log' and 'auto-*' are reserved"
                .to_owned(),
        );
    }
    Ok(parts.iter().fold(root, |path, part| path.join(part)))
}

/// Checks that the folder can be created: it does not exist, and no symbolic link leads out of
/// `backup.dir`.
pub fn look(config: &Config, folder: &Path) -> Result<(), String> {
    let root = std::path::absolute(&config.backup.dir).map_err(|error| error.to_string())?;
    store::create_folder(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    if folder.symlink_metadata().is_ok() {
        return Err(format!("{} exists already", folder.display()));
    }
    let inside = |path: &Path| -> std::io::Result<bool> {
        Ok(path.canonicalize()?.starts_with(root.canonicalize()?))
    };
    let there = folder.ancestors().skip(1).find(|above| above.symlink_metadata().is_ok());
    let there = there.unwrap_or(&root);
    match inside(there) {
        Ok(true) if store::Backup::of(there).is_some() => {
            Err(format!("{} is a backup", there.display()))
        }
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} is outside backup.dir", there.display())),
        Err(error) => Err(format!("{}: {error}", there.display())),
    }
}

/// Runs the backup thread until the server stops.
pub fn backups(host: &Host) {
    let thread_state = &mut *host.backups.thread_state.lock();
    let is_stopped = || host.stop.is_stopped();
    while !is_stopped() {
        let asked = host.backups.wait(&is_stopped);
        let node = host.node();
        if node.is_loaded() {
            thread_state.step(host, &node, asked);
        } else if let Some(folder) = asked {
            let error = Error::Refused("the server is loading another data set".to_owned());
            host.backups.ended(folder, Duration::ZERO, Err(error));
        }
    }
}

/// Copies the rest of the log to the archive after the log is closed.
pub fn finish(host: &Host) {
    let node = host.node();
    let config = node.config().backup.clone();
    if node.is_loaded() && config.keep_log_s > 0 {
        host.backups.thread_state.lock().archive_log(&node, &config, &|| false);
    }
}

impl BackupThreadState {
    fn step(&mut self, host: &Host, node: &Node, asked: Option<PathBuf>) {
        let config = node.config().backup.clone();
        let keeps_log = config.keep_log_s > 0 && !config.dir.as_os_str().is_empty();
        if !keeps_log {
            node.store.keep_log_from(u64::MAX);
            node.backups.shared.lock().kept = Kept::Off;
            self.archive = None;
        }
        if config.dir.as_os_str().is_empty() {
            return;
        }
        if !std::mem::replace(&mut self.is_known, true) {
            let newest = store::newest_backup_in(&config.dir, node.store.lineage());
            node.backups.shared.lock().made_s = newest.map_or(0, |(_, b)| b.made_ms / 1_000);
        }
        if let Some(folder) = asked {
            self.make(host, node, folder, None);
        } else if self.is_due(node.store.lineage(), &config) {
            let root = std::path::absolute(&config.dir).unwrap_or_else(|_| config.dir.clone());
            let folder = root.join(format!("{AUTO}{}", utc::name(unix_ms())));
            // The name has a resolution of one second, so another server may have used it. The next
            // check tries again.
            if folder.symlink_metadata().is_err() && node.backups.begin(folder.clone()) {
                node.backups.shared.lock().wanted = None;
                self.make(host, node, folder, Some(config.keep));
            }
        }
        if keeps_log && self.is_behind() {
            self.archive_log(node, &config, &|| is_over(host, node));
        }
    }

    fn is_due(&mut self, lineage: Lineage, config: &crate::config::Backup) -> bool {
        if config.every_s == 0 || self.not_before.is_some_and(|at| Instant::now() < at) {
            return false;
        }
        let last_ms = *self.last_auto_ms.get_or_insert_with(|| {
            scheduled_backups(&config.dir, lineage).last().map_or(0, |(_, made_ms)| *made_ms)
        });
        // If the clock was set back, a backup is due immediately. Otherwise the next backup could
        // be delayed by hours.
        let now_ms = unix_ms();
        now_ms.saturating_sub(last_ms) >= config.every_s * 1_000 || now_ms < last_ms
    }

    /// Locks the backup folder.
    fn lock_folder(&mut self, dir: &Path) -> Result<PathBuf, Error> {
        let root = std::path::absolute(dir).map_err(|e| io(dir, "naming", e))?;
        if self.root.as_ref().is_none_or(|(taken, _)| *taken != root) {
            self.root = None;
            let disk = RealDisk::open(&root).map_err(|e| io(&root, "creating", e))?;
            let lock = disk.lock().map_err(|e| match e.kind() {
                std::io::ErrorKind::WouldBlock => Error::Locked { path: root.clone() },
                _ => io(&root, "locking", e),
            })?;
            self.root = Some((root.clone(), lock));
        }
        Ok(root)
    }

    /// Makes a backup. For a scheduled backup, `keep` is the number of scheduled backups to keep.
    fn make(&mut self, host: &Host, node: &Node, folder: PathBuf, keep: Option<usize>) {
        let began = Instant::now();
        let outcome = self.attempt(host, node, &folder);
        let is_made = outcome.is_ok();
        if !is_made && is_over(host, node) {
            node.backups.stopped.store(true, Relaxed);
        }
        node.backups.ended(folder.clone(), began.elapsed(), outcome);
        let Some(keep) = keep else { return };
        if !is_made {
            self.not_before = Some(Instant::now() + RETRY);
            return;
        }
        self.last_auto_ms = Some(unix_ms());
        let root = folder.parent().unwrap_or(&folder);
        for (old, _) in scheduled_backups(root, node.store.lineage()).iter().rev().skip(keep) {
            match store::remove(old) {
                Ok(()) => {
                    tracing::info!("backup {}: removed, keeping the newest {keep}", old.display())
                }
                Err(error) => {
                    tracing::warn!("backup {}: cannot remove it: {error}", old.display());
                }
            }
        }
    }

    fn attempt(&mut self, host: &Host, node: &Node, folder: &Path) -> Result<Backup, Error> {
        let config = node.config().backup.clone();
        let root = self.lock_folder(&config.dir)?;
        // A backup of an empty replica would look complete.
        if !node.replication.is_master() && node.durability.positions().1.offset == 0 {
            return Err(Error::Refused(
                "this replica has not received its master's data yet".to_owned(),
            ));
        }
        let parent = folder.parent().unwrap_or(&root);
        store::sweep(parent)?;
        let lineage = node.store.lineage();
        let places = [parent, &root];
        let newest = places.iter().find_map(|place| store::newest_backup_in(place, lineage));
        let previous = newest.as_ref().map(|(path, _)| path.as_path());
        let is_over = || is_over(host, node) || node.backups.stopped.load(Relaxed);
        let pace = IoThrottle::new(config.bytes_per_s, &is_over);
        // The archive must not fall behind during a long copy.
        let mut follow = || {
            if config.keep_log_s > 0 && self.is_behind() {
                self.archive_log(node, &config, &is_over);
            }
        };
        let run = Run { node, pace, is_over: &is_over, follow: RefCell::new(&mut follow) };
        store::back_up(&node.store, folder, previous, &run)
    }

    fn is_behind(&self) -> bool {
        self.followed.is_none_or(|at| at.elapsed() >= ARCHIVE_INTERVAL)
    }

    /// Copies the log to the archive, and removes parts past their retention.
    fn archive_log(
        &mut self,
        node: &Node,
        config: &crate::config::Backup,
        is_over: &dyn Fn() -> bool,
    ) {
        let outcome = self.follow(node, config, is_over);
        self.followed = Some(Instant::now());
        let mut shared = node.backups.shared.lock();
        shared.kept = match outcome {
            Ok(offset) => {
                if let Kept::Failed(_) = shared.kept {
                    tracing::info!("log archiving resumed, archived up to offset {offset}");
                }
                Kept::UpTo(offset)
            }
            Err(_) if is_over() => return,
            Err(error) => {
                let why = format!("{error}. {}", error.advice_outside_data_folder());
                let is_known = match &shared.kept {
                    Kept::Failed(said) => store::gist(said) == store::gist(&why),
                    _ => false,
                };
                if !is_known {
                    tracing::error!("cannot archive the log: {why}");
                }
                Kept::Failed(why.into())
            }
        };
    }

    /// Copies the log to the archive. Returns the end offset of the archived log.
    fn follow(
        &mut self,
        node: &Node,
        config: &crate::config::Backup,
        is_over: &dyn Fn() -> bool,
    ) -> Result<u64, Error> {
        let root = self.lock_folder(&config.dir)?;
        let (of, archive) =
            self.archive.get_or_insert_with(|| (node.generation, Archive::new(&root)));
        if *of != node.generation {
            (*of, *archive) = (node.generation, Archive::new(&root));
        }
        let durable = node.durability.positions().1;
        // A shutdown waits for the rest of the log, so it is copied without throttling.
        let has_waiters = || is_over() || node.stop.is_stopped();
        let pace = IoThrottle::new(config.bytes_per_s, &has_waiters);
        let copied = std::cell::Cell::new(0);
        let next = archive.follow(&node.store, durable, &|bytes| {
            copied.set(copied.get() + bytes);
            pace.after(copied.get());
            if is_over() { Err(Error::Refused("cancelled".to_owned())) } else { Ok(()) }
        })?;
        node.store.keep_log_from(next);
        if self.trimmed.is_none_or(|at| at.elapsed() >= TRIM_EVERY) {
            let oldest = SystemTime::now().checked_sub(Duration::from_secs(config.keep_log_s));
            archive.trim(oldest.unwrap_or(SystemTime::UNIX_EPOCH))?;
            self.trimmed = Some(Instant::now());
        }
        Ok(durable.offset)
    }
}

/// Whether work for this node must be cancelled.
fn is_over(host: &Host, node: &Node) -> bool {
    host.stop.is_stopped() || host.now().generation != node.generation
}

fn io(path: &Path, doing: &'static str, source: std::io::Error) -> Error {
    Error::Io { path: path.to_owned(), doing, source }
}

/// Returns the scheduled backups of this history and their times of completion in milliseconds,
/// oldest first. Other backups belong to the operator.
fn scheduled_backups(root: &Path, lineage: Lineage) -> Vec<(PathBuf, u64)> {
    let is_auto = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_named = name.strip_prefix(AUTO).is_some_and(utc::is_name);
        is_named && path.symlink_metadata().is_ok_and(|found| found.is_dir())
    };
    let mut found: Vec<_> = store::backups_in(root)
        .into_iter()
        .filter(|(path, backup)| backup.lineage == lineage && is_auto(path))
        .map(|(path, backup)| (path, backup.made_ms))
        .collect();
    found.sort_by_key(|(_, made_ms)| *made_ms);
    found
}

struct Run<'a> {
    node: &'a Node,
    pace: IoThrottle<'a>,
    is_over: &'a dyn Fn() -> bool,
    /// Copies the log to the archive, if due.
    follow: RefCell<&'a mut dyn FnMut()>,
}

impl BackupProgress for Run<'_> {
    fn expect(&self, bytes: u64) {
        self.node.backups.expected.store(bytes, Relaxed);
    }

    fn advance(&self, bytes: u64, linked: bool) -> Result<(), Error> {
        let backups = &self.node.backups;
        if linked {
            backups.linked.fetch_add(bytes, Relaxed);
        } else {
            self.pace.after(backups.copied.fetch_add(bytes, Relaxed) + bytes);
        }
        if (self.is_over)() {
            return Err(Error::Refused("cancelled".to_owned()));
        }
        (self.follow.borrow_mut())();
        Ok(())
    }

    fn end(&self) -> Result<Position, Error> {
        self.node.durability.flush()?;
        Ok(self.node.durability.positions().1)
    }

    fn now_ms(&self) -> u64 {
        unix_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere_but_below_the_folder() {
        let mut config = Config::default();
        assert!(place(&config, "a").unwrap_err().contains("backup.dir"));
        config.backup.dir = "/backups".into();
        for (name, leads_to) in [
            ("a", "/backups/a"),
            ("nightly/2026-11-25", "/backups/nightly/2026-11-25"),
            ("./a/", "/backups/a"),
            ("/backups/a.b", "/backups/a.b"),
            ("logs", "/backups/logs"),
        ] {
            assert_eq!(place(&config, name).as_deref(), Ok(Path::new(leads_to)), "{name}");
        }
        for own in [".", "/backups", "/backups/", "./."] {
            let path = place(&config, own).unwrap();
            assert!(path.to_str().unwrap().starts_with("/backups/backup-20"), "{own}: {path:?}");
        }
        let long = "x".repeat(101);
        for wrong in [
            "",
            "/",
            "/etc",
            "/backups2/a",
            "..",
            "a/../../b",
            "../backups/a",
            "/backups/../etc",
            ".hidden",
            "a/.b",
            "a b",
            "a\0b",
            "a\nb",
            "log",
            "log/a",
            "auto-1",
            "a.tmp",
            "a/b/c/d/e",
            "\u{e9}",
            &long,
        ] {
            assert!(place(&config, wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_link_out_of_the_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.backup.dir = folder.path().join("backups");
        let place = |name: &str| place(&config, name).unwrap();
        assert_eq!(look(&config, &place("a/b")), Ok(()));
        let outside = folder.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, place("out")).unwrap();
        assert!(look(&config, &place("out/a")).unwrap_err().contains("is outside"));
        assert!(look(&config, &place("out")).unwrap_err().contains("exists already"));
        std::os::unix::fs::symlink("/nowhere", place("dead")).unwrap();
        assert!(look(&config, &place("dead/a")).is_err());
    }
}
