//! Cluster state in the file `tidemark.cluster` of the data folder. A command that changes the
//! state replaces the file atomically and durably before its reply.
//!
//! ```text
//!   tidemark cluster 1
//!   version 7
//!   id <own id>                or -
//!   lease 3 10000              highest election of a HEARTBEAT, and the lease in milliseconds; 0 0
//!                              if there is none
//!   giving                     this node has given slots away in this topology, and not all new
//!                              owners have confirmed it
//!   node <a line of the topology's text>
//!   check 1f2e3d4c             CRC-32C of the lines above
//! ```

use crate::cluster::topology::{Topology, is_id};
use crate::runtime::checked_file;
use std::io;
use std::path::Path;

/// File name in the data folder.
pub const NAME: &str = "tidemark.cluster";

/// Cluster state that survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredState {
    /// Topology that this node last accepted.
    pub topology: Topology,
    /// Highest election number received in a HEARTBEAT; 0 before the first HEARTBEAT.
    pub election: u64,
    /// Duration of the lease that this HEARTBEAT granted, in milliseconds.
    pub lease_ms: u64,
    /// True if this node has handed over slots and still waits for a new owner to confirm the
    /// topology.
    pub giving: bool,
}

impl StoredState {
    fn encode(&self) -> String {
        let Topology { version, own_id, .. } = &self.topology;
        let id = if own_id.is_empty() { "-" } else { own_id };
        let mut text = format!(
            "tidemark cluster 1\nversion {version}\nid {id}\nlease {} {}\n",
            self.election, self.lease_ms
        );
        if self.giving {
            text.push_str("giving\n");
        }
        for line in self.topology.describe().lines() {
            text.push_str("node ");
            text.push_str(line);
            text.push('\n');
        }
        checked_file::sealed(&text)
    }

    fn decode(text: &str) -> Option<StoredState> {
        let mut lines = checked_file::unsealed(text)?.lines();
        (lines.next()? == "tidemark cluster 1").then_some(())?;
        let version = lines.next()?.strip_prefix("version ")?.parse().ok()?;
        let own_id = match lines.next()?.strip_prefix("id ")? {
            "-" => "",
            id => Some(id).filter(|id| is_id(id))?,
        };
        let (election, lease_ms) = lines.next()?.strip_prefix("lease ")?.split_once(' ')?;
        let mut lines = lines.peekable();
        let giving = lines.next_if_eq(&"giving").is_some();
        let nodes = lines.map(|line| line.strip_prefix("node ")).collect::<Option<Vec<_>>>()?;
        let topology = if nodes.is_empty() {
            let mut nothing = Topology::default().with_own_id(own_id);
            nothing.version = version;
            nothing
        } else {
            Topology::parse(&nodes.join("\n"), version, own_id).ok()?
        };
        let (election, lease_ms) = (election.parse().ok()?, lease_ms.parse().ok()?);
        Some(StoredState { topology, election, lease_ms, giving })
    }

    /// Reads the stored cluster state. Returns `None` if the folder has no such file.
    pub fn read(dir: &Path) -> io::Result<Option<StoredState>> {
        let advice = "remove it, then have the cluster's controller send the topology again";
        checked_file::read(dir, NAME, StoredState::decode, advice)
    }

    /// Tests whether the cluster state can be written, by writing a temporary file.
    pub(crate) fn try_write(&self, dir: &Path) -> io::Result<()> {
        let name = format!("{NAME}.try");
        checked_file::write(dir, &name, &self.encode())?;
        std::fs::remove_file(dir.join(name))
    }

    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        checked_file::write(dir, NAME, &self.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::topology::tests::{id, two_shards};

    fn kept() -> StoredState {
        let topology = Topology::parse(&two_shards(), 7, &id('a')).unwrap();
        StoredState { topology, election: u64::MAX, lease_ms: 10_000, giving: true }
    }

    #[test]
    fn a_stored_state_round_trips() {
        let nothing = Topology::default().with_own_id(&id('a'));
        for kept in [
            StoredState::default(),
            kept(),
            StoredState { giving: false, ..kept() },
            StoredState { topology: nothing, ..StoredState::default() },
        ] {
            assert_eq!(StoredState::decode(&kept.encode()), Some(kept));
        }
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(StoredState::read(folder.path()).unwrap(), None);
        kept().write(folder.path()).unwrap();
        assert_eq!(StoredState::read(folder.path()).unwrap(), Some(kept()));
    }

    #[test]
    fn a_file_with_any_bit_flipped_or_cut_off_is_damaged() {
        let text = kept().encode().into_bytes();
        for at in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            let read = std::str::from_utf8(&flipped).ok().and_then(StoredState::decode);
            assert_eq!(read, None, "bit {at}");
        }
        for length in 0..text.len() {
            let read = std::str::from_utf8(&text[..length]).ok().and_then(StoredState::decode);
            assert_eq!(read, None, "{length} bytes");
        }
    }
}
