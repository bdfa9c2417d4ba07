//! `/readyz`: whether this node should get traffic.

use super::{Answer, text};
use crate::roles::LinkState;
use crate::roles::node::Node;
use hyper::StatusCode;

/// Why this node should get no traffic now, if it should not.
pub(super) fn unready(node: &Node) -> Option<String> {
    if node.stop.is_stopped() || node.stop.leaves().is_some() {
        return Some("the server is stopping".to_owned());
    }
    if !node.is_loaded() {
        return Some("the data are being loaded".to_owned());
    }
    if node.replication.is_master() {
        let refusal = node.durability.refusal();
        return refusal.or_else(|| node.replication.refusal().map(str::to_owned));
    }
    // A replica takes no writes, but a disk that fails keeps it from following.
    if let Some(why) = node.durability.refusal() {
        return Some(why);
    }
    let link = node.replication.link.lock();
    let why = match link.state {
        LinkState::Connected => return None,
        LinkState::Sync => "the replica copies its master's data",
        LinkState::Connect | LinkState::Connecting => "the link to the master is down",
    };
    let error = if link.error.is_empty() { String::new() } else { format!(": {}", link.error) };
    Some(format!("{why}{error}"))
}

pub(super) fn ready(node: &Node) -> Answer {
    match unready(node) {
        None => text(StatusCode::OK, "ready\n"),
        Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
    }
}
