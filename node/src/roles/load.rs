//! Loads the data folder at startup and after a full sync.

use crate::roles::node::Node;
use crate::runtime::service_manager;
use dataset::recovery::{NodeLog, RecoverError, open, recover_from};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use store::Disk;

/// Maximum time to wait for another process to release the data folder.
const FOLDER_TIMEOUT: Duration = Duration::from_secs(5);
const FOLDER_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Loads the data folder and reports progress.
pub fn load(node: &Node) -> Result<NodeLog, RecoverError> {
    let disk = open(&node.config().durability.dir)?;
    wait_for_folder(node, &*disk);
    load_from(node, disk)
}

/// Waits up to [`FOLDER_TIMEOUT`] for another process to release the folder, because a stopping
/// server may still be writing. If that process keeps the lock, opening the store fails.
fn wait_for_folder(node: &Node, disk: &dyn Disk) {
    let (began, mut is_said) = (Instant::now(), false);
    while disk.lock().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        && began.elapsed() < FOLDER_TIMEOUT
        && !node.stop.is_stopped()
    {
        if !is_said {
            tracing::warn!(
                "{} is in use by another process: waiting up to {} s for it to exit",
                disk.path("").display(),
                FOLDER_TIMEOUT.as_secs()
            );
            is_said = true;
        }
        std::thread::sleep(FOLDER_POLL_INTERVAL);
    }
}

/// Like [`load`], but reads from `disk`.
pub fn load_from(node: &Node, disk: Arc<dyn Disk>) -> Result<NodeLog, RecoverError> {
    let started = Instant::now();
    let said = Mutex::new(started);
    // A node that stopped during its promotion still has its last master's log, and must begin a
    // higher term.
    let follows = !node.replication.is_master() || node.replication.promoting() > 0;
    let recovered =
        recover_from(disk, &node.config().data_set(), &node.durability, follows, |progress| {
            let Some(mut said) =
                said.try_lock().filter(|said| said.elapsed() > Duration::from_secs(1))
            else {
                return;
            };
            *said = Instant::now();
            let share = progress.bytes as f64 / progress.of_bytes.max(1) as f64 * 100.0;
            let text = format!("loading: {share:.0} % of {} MB", progress.of_bytes >> 20);
            service_manager::status(&text);
            tracing::info!("{text}");
        })?;
    tracing::info!(
        "loaded in {:.1} s: {} log records, {} torn bytes truncated, log continues at {}",
        started.elapsed().as_secs_f64(),
        recovered.end.records,
        recovered.end.torn_bytes,
        recovered.log.end(),
    );
    if recovered.end.torn_bytes > 0 {
        tracing::warn!(
            "truncated an incomplete batch of {} bytes at the end of the log. This is normal after \
             a crash; otherwise check the disk",
            recovered.end.torn_bytes
        );
    }
    let differences = {
        let config = node.config();
        recovered.engines.catalogue().differences(&config.data_set(), &config.lists)
    };
    for difference in differences {
        tracing::warn!("configuration: {difference}");
    }
    // Makes the end of the log visible to INFO and to spills. A replica runs no commit rounds.
    // Without this call, a spill would wait for one until a promotion.
    let end = recovered.log.end();
    match recovered.log {
        NodeLog::Own(_) => node.durability.reach(end, end),
        NodeLog::Follows(_) => node.durability.followed(end, end),
    }
    // Set the term before clients are served: a node that asks this node to take over compares
    // terms.
    node.replication.term.store(recovered.log.term(), Relaxed);
    node.store.fill(recovered.store);
    node.fill(recovered.engines);
    Ok(recovered.log)
}
