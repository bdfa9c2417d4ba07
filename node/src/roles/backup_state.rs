//! State of the running backup, the last backup and the log archive.

use dataset::clock::unix_us;
use parking_lot::{Condvar, Mutex};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use store::{Archive, Backup, Error};

/// Time between two checks for due work.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Outcome of a backup.
#[derive(Clone)]
pub enum BackupOutcome {
    /// The backup is complete.
    Made {
        /// Files and log position of the backup.
        backup: Arc<Backup>,
        /// Bytes copied. The rest is shared by hard links.
        copied: u64,
    },
    /// BACKUP STOP or a shutdown stopped the backup.
    Stopped,
    /// The backup failed with this error.
    Failed(Arc<str>),
}

impl BackupOutcome {
    /// Name in INFO and BACKUP STATUS.
    pub fn name(&self) -> &'static str {
        match self {
            BackupOutcome::Made { .. } => "ok",
            BackupOutcome::Stopped => "stopped",
            BackupOutcome::Failed(_) => "err",
        }
    }
}

/// The last finished backup.
#[derive(Clone)]
pub struct FinishedBackup {
    /// Folder of the backup.
    pub folder: PathBuf,
    /// Outcome of the backup.
    pub fate: BackupOutcome,
    /// End of the backup, in seconds since the Unix epoch.
    pub ended_s: u64,
    /// Duration of the backup.
    pub took: Duration,
}

/// State of the log archive.
#[derive(Clone, Default)]
pub enum ArchiveState {
    /// There is no archive.
    #[default]
    Off,
    /// The archive contains the log up to this offset.
    UpTo(u64),
    /// The archive cannot be written because of this error.
    Failed(Arc<str>),
}

impl ArchiveState {
    /// Name in INFO and BACKUP STATUS.
    pub fn name(&self) -> &'static str {
        match self {
            ArchiveState::Off => "off",
            ArchiveState::UpTo(_) => "ok",
            ArchiveState::Failed(_) => "err",
        }
    }
}

#[derive(Default)]
pub(super) struct Shared {
    /// Folder of a backup that was requested and has not started.
    pub(super) wanted: Option<PathBuf>,
    /// Folder and start of a requested or running backup.
    pub(super) running: Option<(PathBuf, Instant)>,
    pub(super) last: Option<FinishedBackup>,
    /// End of the last complete backup, in seconds since the Unix epoch; 0 if none.
    pub(super) made_s: u64,
    pub(super) kept: ArchiveState,
}

/// State shared by the backup thread and its callers.
#[derive(Default)]
pub struct Backups {
    pub(super) shared: Mutex<Shared>,
    /// State of the backup thread. The last step of a shutdown also uses this state.
    pub(super) thread_state: Mutex<BackupThreadState>,
    pub(super) nudge: Condvar,
    pub(super) stopped: AtomicBool,
    pub(super) copied: AtomicU64,
    pub(super) linked: AtomicU64,
    pub(super) expected: AtomicU64,
}

/// State of the backups, for BACKUP STATUS and INFO.
pub struct Status {
    /// Folder and start of the running backup.
    pub running: Option<(PathBuf, Instant)>,
    /// Number of bytes copied so far.
    pub copied: u64,
    /// Number of bytes shared by hard links instead of copied.
    pub linked: u64,
    /// Total size of the backup in bytes, as far as known.
    pub expected: u64,
    /// Last finished backup.
    pub last: Option<FinishedBackup>,
    pub(crate) made_s: u64,
    /// State of the log archive.
    pub kept: ArchiveState,
}

impl Backups {
    /// Requests a backup into this folder. Returns false if another backup is running.
    pub fn begin(&self, folder: PathBuf) -> bool {
        let mut shared = self.shared.lock();
        if shared.running.is_some() {
            return false;
        }
        for bytes in [&self.copied, &self.linked, &self.expected] {
            bytes.store(0, Relaxed);
        }
        self.stopped.store(false, Relaxed);
        shared.running = Some((folder.clone(), Instant::now()));
        shared.wanted = Some(folder);
        self.nudge.notify_one();
        true
    }

    /// Stops the running backup. Returns false if no backup is running.
    pub fn give_up(&self) -> bool {
        let is_running = self.shared.lock().running.is_some();
        self.stopped.store(is_running, Relaxed);
        is_running
    }

    /// Returns the current state of the backups.
    pub fn status(&self) -> Status {
        let shared = self.shared.lock();
        Status {
            running: shared.running.clone(),
            copied: self.copied.load(Relaxed),
            linked: self.linked.load(Relaxed),
            expected: self.expected.load(Relaxed),
            last: shared.last.clone(),
            made_s: shared.made_s,
            kept: shared.kept.clone(),
        }
    }

    /// Wakes the backup thread, for a shutdown.
    pub fn wake(&self) {
        drop(self.shared.lock());
        self.nudge.notify_one();
    }

    /// Waits up to [`POLL_INTERVAL`] for a request or a shutdown.
    pub(super) fn wait(&self, is_stopped: &dyn Fn() -> bool) -> Option<PathBuf> {
        let mut shared = self.shared.lock();
        if shared.wanted.is_none() && !is_stopped() {
            self.nudge.wait_for(&mut shared, POLL_INTERVAL);
        }
        shared.wanted.take()
    }

    pub(super) fn ended(&self, folder: PathBuf, took: Duration, outcome: Result<Backup, Error>) {
        let copied = self.copied.load(Relaxed);
        let ended_s = unix_us() / 1_000_000;
        let fate = match outcome {
            Ok(backup) => {
                tracing::info!(
                    "backup {}: done up to offset {}, {copied} of {} bytes copied in {:.1} s",
                    folder.display(),
                    backup.position.offset,
                    backup.bytes(),
                    took.as_secs_f64()
                );
                BackupOutcome::Made { backup: Arc::new(backup), copied }
            }
            Err(_) if self.stopped.load(Relaxed) => {
                tracing::info!("backup {}: cancelled", folder.display());
                BackupOutcome::Stopped
            }
            Err(error) => {
                let why = format!("{error}. {}", error.advice_outside_data_folder());
                tracing::error!("backup {}: failed: {why}", folder.display());
                BackupOutcome::Failed(why.into())
            }
        };
        let mut shared = self.shared.lock();
        if let BackupOutcome::Made { .. } = fate {
            shared.made_s = ended_s;
        }
        shared.last = Some(FinishedBackup { folder, fate, ended_s, took });
        shared.running = None;
    }
}

pub(super) type Lock = Box<dyn Send + Sync>;

/// State of the backup thread.
#[derive(Default)]
pub(super) struct BackupThreadState {
    /// The backup directory, locked by this process.
    pub(super) root: Option<(PathBuf, Lock)>,
    /// Log archive, and the generation of the node whose log it contains.
    pub(super) archive: Option<(u64, Archive)>,
    pub(super) followed: Option<Instant>,
    /// Whether the existing backups in the folder were listed.
    pub(super) is_known: bool,
    pub(super) trimmed: Option<Instant>,
    /// End of the last scheduled backup, in milliseconds since the Unix epoch.
    pub(super) last_auto_ms: Option<u64>,
    pub(super) not_before: Option<Instant>,
}
