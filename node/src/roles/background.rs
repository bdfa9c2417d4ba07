//! Threads that write files in the background: snapshots and spills.

use crate::roles::node::Host;
use dataset::snapshot::{Due, SNAPSHOT_POLL_INTERVAL, Schedule};
use dataset::tiering::Spiller;

/// The snapshot thread: writes a snapshot when one is requested or due.
pub fn snapshots(host: &Host) {
    let mut schedule = Schedule::default();
    let is_stopped = || host.stop.is_stopped();
    while !is_stopped() {
        let node = &host.node();
        if !node.is_loaded() {
            host.stop.sleep(SNAPSHOT_POLL_INTERVAL);
            continue;
        }
        let asked = schedule.wait(&node.snapshots, &is_stopped);
        let settings = &node.config().durability;
        let due =
            Due { log_bytes: settings.snapshot_log_bytes, every_s: settings.snapshot_every_s };
        if let Some(live) = node.live(&is_stopped) {
            schedule.step(&live, asked, due);
        }
    }
}

/// The spill thread: writes old tables to disk and frees their memory.
pub fn spills(host: &Host) {
    let mut spiller = Spiller::default();
    let is_stopped = || host.stop.is_stopped();
    while !is_stopped() {
        let node = host.node();
        let rest = spiller.step(node.live(&is_stopped).as_ref(), &node.durability);
        drop(node);
        if let Some(rest) = rest {
            host.stop.sleep(rest);
        }
    }
}
