//! Role of a node, in the file `tidemark.role` of its data folder. A role change replaces the text
//! file atomically and durably before any client sees the new role.
//!
//! ```text
//!   tidemark role 3
//!   master -                   or: master <host> <port>, for a replica
//!   synced no                  whether a replica has all of its master's data, as far as it knows
//!   replicated yes             whether there are other nodes: it had replicas, or was a replica
//!   sentinel 7 mymaster        highest epoch heard from the Sentinels of this group; one line each
//!   handing 4711               FAILOVER: the new master, formerly this node's replica, must have
//!                              the log up to this offset, and has not confirmed its promotion
//!   forced                     a replica that must discard its data and copy its master's
//!   promoting                  a master that has not begun a higher term of the log yet; a number
//!                              follows if it missed several promotions
//!   unfit                      a replica whose history diverges from its master's
//!   check 1f2e3d4c             CRC-32C of the lines above
//! ```
//!
//! Older versions are readable: version 2 had one epoch without a name, version 1 had no check.

use crate::runtime::checked_file;
use std::io;
use std::path::Path;

/// File name in the data folder.
pub const NAME: &str = "tidemark.role";

/// Maximum number of missed promotions. Prevents a malicious epoch from exhausting the range of
/// terms.
const MAX_MISSED_PROMOTIONS: u64 = 1 << 16;

/// Address of a master, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Host name or IP address of the master.
    pub host: String,
    /// TCP port of the master.
    pub port: u16,
}

impl Master {
    /// Parses "host port".
    pub fn parse(text: &str) -> Option<Master> {
        let (host, port) = text.trim().split_once(' ')?;
        let legal =
            !host.is_empty() && host.len() <= 255 && host.bytes().all(|b| b.is_ascii_graphic());
        Some(Master { host: host.to_owned(), port: port.trim().parse().ok().filter(|_| legal)? })
    }
}

impl std::fmt::Display for Master {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.host, self.port)
    }
}

/// Configuration epoch of a group of Sentinels. Epochs of different groups are independent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) name: String,
    pub(crate) epoch: u64,
}

/// Role of a node. See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Master to follow, or `None` for a master.
    pub master: Option<Master>,
    /// Whether a replica has its master's whole data set, as far as the replica knows.
    pub(crate) synced: bool,
    /// Whether other nodes exist: this node had replicas, or it was a replica and is no longer
    /// `synced`.
    pub(crate) replicated: bool,
    pub(crate) sentinels: Vec<Epoch>,
    /// FAILOVER: offset up to which `master` must have the log. Cleared when `master` confirms that
    /// it took over.
    pub(crate) handing: Option<u64>,
    /// Whether the node discards its data and copies its master's. Cleared after the copy, so that
    /// a restart does not discard data again.
    pub(crate) forced: bool,
    /// Number of promotions by which the log's next term must rise; 0 if a master has begun its
    /// log.
    pub(crate) promoting: u32,
    pub(crate) unfit: bool,
}

impl Role {
    /// Sets `replicated` if the node has synced as a replica. Call this function before clearing
    /// `synced`.
    pub(crate) fn with_replicated(self) -> Role {
        Role { replicated: self.replicated || self.synced, ..self }
    }

    /// Returns the role of a master that becomes the master again after `missed` promotions of
    /// other nodes.
    pub(crate) fn renewed(self, missed: u64) -> Role {
        let later = if missed == 0 { 0 } else { missed.min(MAX_MISSED_PROMOTIONS) as u32 + 1 };
        Role { promoting: self.promoting.saturating_add(later), ..self }
    }

    /// Whether a master that changes from this role to `next` must begin another term.
    pub(crate) fn begins_another_term(&self, next: &Role) -> bool {
        let are_masters = self.master.is_none() && next.master.is_none();
        are_masters && next.promoting > self.promoting
    }

    fn encode(&self) -> String {
        let master = self.master.as_ref().map_or("-".to_owned(), Master::to_string);
        let word = |yes| if yes { "yes" } else { "no" };
        let mut text = format!(
            "tidemark role 3\nmaster {master}\nsynced {}\nreplicated {}\n",
            word(self.synced),
            word(self.replicated)
        );
        for Epoch { name, epoch } in &self.sentinels {
            text.push_str(&format!("sentinel {epoch} {name}\n"));
        }
        if let Some(offset) = self.handing {
            text.push_str(&format!("handing {offset}\n"));
        }
        if self.forced {
            text.push_str("forced\n");
        }
        match self.promoting {
            0 => {}
            1 => text.push_str("promoting\n"),
            by => text.push_str(&format!("promoting {by}\n")),
        }
        if self.unfit {
            text.push_str("unfit\n");
        }
        checked_file::sealed(&text)
    }

    fn decode(text: &str) -> Option<Role> {
        let first = text.lines().next()?;
        let text = match first {
            "tidemark role 1" => text,
            "tidemark role 2" | "tidemark role 3" => checked_file::unsealed(text)?,
            _ => return None,
        };
        let mut lines = text.lines().skip(1);
        let master = match lines.next()?.strip_prefix("master ")? {
            "-" => None,
            text => Some(Master::parse(text)?),
        };
        let mut flag = |name: &str| match lines.next()?.strip_prefix(name)? {
            " yes" => Some(true),
            " no" => Some(false),
            _ => None,
        };
        let (synced, replicated) = (flag("synced")?, flag("replicated")?);
        let (mut sentinels, mut handing) = (Vec::new(), None);
        let (mut forced, mut promoting, mut unfit) = (false, 0, false);
        for line in lines {
            match line.split_once(' ').unwrap_or((line, "")) {
                // Version 1 has no further lines, so this is a damaged file of a later version.
                _ if first == "tidemark role 1" => return None,
                ("sentinel", said) => {
                    let (epoch, name) = said.split_once(' ').unwrap_or((said, ""));
                    sentinels.push(Epoch { name: name.to_owned(), epoch: epoch.parse().ok()? });
                }
                ("handing", offset) => handing = Some(offset.parse().ok()?),
                ("forced", "") => forced = true,
                ("promoting", "") => promoting = 1,
                ("promoting", by) => promoting = by.parse().ok()?,
                ("unfit", "") => unfit = true,
                _ => return None,
            }
        }
        Some(Role { master, synced, replicated, sentinels, handing, forced, promoting, unfit })
    }

    /// Reads the role. Returns `None` if the folder has no role file.
    pub fn read(dir: &Path) -> io::Result<Option<Role>> {
        checked_file::read(dir, NAME, Role::decode, "remove it to start as a master")
    }

    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        checked_file::write(dir, NAME, &self.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_reads_back() {
        let master = Master { host: "::1".into(), port: 6399 };
        let full = Role { master: Some(master), unfit: true, ..busy() };
        for role in [
            Role::default(),
            Role { sentinels: Vec::new(), ..full.clone() },
            Role { handing: None, ..full.clone() },
            Role { forced: false, ..full.clone() },
            Role { promoting: 0, ..full.clone() },
            Role { promoting: 1, ..full.clone() },
            Role { unfit: false, ..full.clone() },
            full,
        ] {
            assert_eq!(Role::decode(&role.encode()), Some(role));
        }
        for text in
            ["", "tidemark role 4\n", "tidemark role 1\nmaster a\nsynced no\nreplicated no\n"]
        {
            assert_eq!(Role::decode(text), None);
        }
        let first = "tidemark role 1\nmaster ::1 6399\nsynced yes\nreplicated no\n";
        let master = Master { host: "::1".into(), port: 6399 };
        let read = Role { master: Some(master), synced: true, ..Role::default() };
        assert_eq!(Role::decode(first), Some(read.clone()));
        let second = first.replace("role 1", "role 2") + "sentinel 7\nunfit\n";
        let second = format!("{second}check {:08x}\n", crc32c::crc32c(second.as_bytes()));
        let sentinels = vec![Epoch { name: String::new(), epoch: 7 }];
        assert_eq!(Role::decode(&second), Some(Role { sentinels, unfit: true, ..read }));
        assert_eq!(Master::parse("a b"), None);
        assert_eq!(Master::parse("no one else"), None);
    }

    fn busy() -> Role {
        let sentinels = [("mymaster", u64::MAX), ("a name of two", 0)]
            .map(|(name, epoch)| Epoch { name: name.to_owned(), epoch });
        Role {
            synced: true,
            replicated: true,
            sentinels: sentinels.into(),
            handing: Some(u64::MAX),
            forced: true,
            promoting: u32::MAX,
            ..Role::default()
        }
    }

    #[test]
    fn a_role_with_any_bit_flipped_or_cut_off_is_damaged() {
        let master = Master { host: "10.0.0.17".into(), port: 6399 };
        let text = Role { master: Some(master), unfit: true, ..busy() }.encode().into_bytes();
        for at in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            let read = std::str::from_utf8(&flipped).ok().and_then(Role::decode);
            assert_eq!(read, None, "bit {at}");
        }
        for length in 0..text.len() {
            assert_eq!(
                std::str::from_utf8(&text[..length]).ok().and_then(Role::decode),
                None,
                "{length} bytes"
            );
        }
    }
}
