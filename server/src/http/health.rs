//! `/readyz` reports whether a load balancer should send traffic to this node.

use super::answer::{Answer, text};
use hyper::StatusCode;
use node::roles::LinkState;
use node::roles::node::Node;
use std::path::Path;

/// Returns the reason why this node should not receive traffic, or `None` if it should receive
/// traffic.
pub(super) fn unready(node: &Node) -> Option<String> {
    reason(node).map(|why| without_paths(node, &why))
}

/// Removes the paths of the data and backup folders from an error, because `/readyz` needs no
/// login. The server's log keeps the full paths.
pub(super) fn without_paths(node: &Node, error: &str) -> String {
    let config = node.config();
    let shown = without_folder(error, &config.durability.dir, "data");
    if config.backup.dir.as_os_str().is_empty() {
        return shown;
    }
    without_folder(&shown, &config.backup.dir, "backup")
}

fn without_folder(error: &str, folder: &Path, name: &str) -> String {
    // Errors contain the absolute path, even if the configuration has a relative path.
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let whole = whole.display().to_string();
    let (inside, name_of) = (format!("{whole}/"), format!("the {name} folder"));
    let error = error.replace(&inside, "").replace(&whole, &name_of);
    let folder = folder.display();
    let shown = format!(" {error}")
        .replace(&format!(" {folder}/"), " ")
        .replace(&format!(" {folder}:"), &format!(" the {name} folder:"));
    shown[1..].to_owned()
}

fn reason(node: &Node) -> Option<String> {
    if node.stop.is_stopped() || node.stop.leaves().is_some() {
        return Some("the server is stopping".to_owned());
    }
    if !node.is_loaded() {
        return Some("the server is loading its data".to_owned());
    }
    if node.replication.is_master() {
        if let Some(why) = node.durability.refusal() {
            return Some(why);
        }
        if let Some(why) = node.replication.refusal() {
            return Some(why.to_owned());
        }
        let end = node.durability.acknowledged_offset();
        return node.replication.feeds.is_behind_replica(end).then(|| {
            "a replica has more data than this master and refuses to follow it".to_owned()
        });
    }
    // This is checked on replicas as well, because a failing disk prevents a replica from following
    // its master.
    if let Some(why) = node.durability.refusal() {
        return Some(why);
    }
    let link = node.replication.link.lock();
    let why = match link.state {
        LinkState::Connected => return None,
        LinkState::Sync => "the replica is copying its master's data",
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

#[cfg(test)]
mod tests {
    use super::without_folder;
    use std::path::Path;

    #[test]
    fn errors_are_shown_without_the_path_of_the_data_folder() {
        let shown = |error| without_folder(error, Path::new("/srv/a b/data"), "data");
        let full = "disk full while writing /srv/a b/data/log-000007: No space left";
        assert_eq!(shown(full), "disk full while writing log-000007: No space left");
        assert_eq!(
            shown("/srv/a b/data/snap-3 is damaged at byte 7: checksum"),
            "snap-3 is damaged at byte 7: checksum"
        );
        assert_eq!(shown("syncing /srv/a b/data: gone"), "syncing the data folder: gone");
        assert_eq!(shown("the link to the master is down"), "the link to the master is down");
        let data = Path::new("data");
        assert_eq!(without_folder("the data are read", data, "data"), "the data are read");
    }
}
