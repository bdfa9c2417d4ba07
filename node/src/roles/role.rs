//! What a node is, kept in its data folder: `tidemark.role`, text, replaced as a whole and durably
//! before any client is told.
//!
//! ```text
//!   tidemark role 3
//!   master -                   or: master <host> <port>, for a replica
//!   synced no                  as a replica it has its master's whole data set, as far as it knows
//!   replicated yes             there are others: it has had replicas, or it has been a replica
//!   sentinel 7 mymaster        the highest epoch of which a Sentinel has spoken that watches a
//!                              master by this name; a line for each name
//!   handing 4711               its master, a replica of it until now, is to take over with the log
//!                              up to there, and has not confirmed it yet
//!   forced                     it gives its data up for its master's, until it has them
//!   promoting                  a master whose log is yet to begin as one, with a higher term;
//!                              followed by a number, if there were so many promotions meanwhile
//!   unfit                      its data and its master's do not fit
//!   check 1f2e3d4c             CRC-32C of the lines before
//! ```
//!
//! Older ones are read: version 2 had one epoch and no name for it, version 1 no check.

use crate::runtime::checked_file;
use std::io;
use std::path::Path;

/// Its name in the data folder.
pub const NAME: &str = "tidemark.role";

/// Most promotions that a master counts as missed: a number that was made up must not use up
/// the terms that there are.
const MOST_MISSED: u64 = 1 << 16;

/// A master's address, as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl Master {
    /// "host port"; anything else is none.
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

/// What Sentinels are at that watch a master by one name. Others count by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) name: String,
    pub(crate) epoch: u64,
}

/// See the top of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Whom it follows; none: it is a master.
    pub master: Option<Master>,
    /// As a replica it has its master's whole data set, as far as it has heard.
    pub(crate) synced: bool,
    /// There are others: as a master it has had replicas, or it has been a replica and is not
    /// `synced` any more.
    pub(crate) replicated: bool,
    /// The highest configuration epoch of which a Sentinel has spoken here, by the name that it has
    /// for what it watches.
    pub(crate) sentinels: Vec<Epoch>,
    /// FAILOVER: `master` is asked to take over, which is to have the log up to this offset, and
    /// has not said that it did.
    pub(crate) handing: Option<u64>,
    /// Its data are given up for whatever its master has. Until it has that: not once more.
    pub(crate) forced: bool,
    /// It is to be a master, and its log may still be the one that it had as a replica, or before
    /// another node was the master: it is to begin a term so many promotions later. 0: it has.
    pub(crate) promoting: u32,
    /// Its data and its master's do not fit, as that has said.
    pub(crate) unfit: bool,
}

impl Role {
    /// The same, which says that there are others, if it has met one as a replica: also when it is
    /// not `synced` any more.
    pub(crate) fn among_others(self) -> Role {
        Role { replicated: self.replicated || self.synced, ..self }
    }

    /// The same of a master that is chosen again, after so many promotions of others.
    pub(crate) fn renewed(self, missed: u64) -> Role {
        let later = if missed == 0 { 0 } else { missed.min(MOST_MISSED) as u32 + 1 };
        Role { promoting: self.promoting.saturating_add(later), ..self }
    }

    /// Whether a master with this role is to begin another term by the next one.
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
                // It ended here, so this is a later one that is damaged.
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

    /// As the folder has it.
    pub fn read(dir: &Path) -> io::Result<Option<Role>> {
        checked_file::read(dir, NAME, Role::decode, "remove it to begin as a master")
    }

    /// Durable when this returns.
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
