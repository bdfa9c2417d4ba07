//! State of a simulated disk, and the effect of a power cut on it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

const SECTOR: usize = 512;

/// Fault rates of the operations, in units of 1/1024.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A write stores only the first part of its bytes and returns their number.
    pub short_write: u32,
    /// A write fails with EINTR before it stores any bytes.
    pub interrupted: u32,
    /// A write fails with EIO. Some of its bytes may have reached the disk.
    pub write_error: u32,
    /// A write, creation or size change fails with ENOSPC.
    pub no_space: u32,
    /// A sync of a file fails with EIO.
    pub sync_error: u32,
    /// A sync of the folder fails with EIO.
    pub sync_dir_error: u32,
    /// A read fails with EIO.
    pub read_error: u32,
}

/// Error of every operation after the crash.
pub(super) fn dead() -> io::Error {
    io::Error::other("the simulated machine is down")
}

/// Effect of a power cut on unsynced bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrashOutcome {
    Nothing,
    Everything,
    Prefix,
    Sectors,
}

#[derive(Clone, Debug)]
pub(super) enum UnsyncedChange {
    Write { offset: usize, bytes: Vec<u8> },
    Size(usize),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub(super) live: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) unsynced: Vec<UnsyncedChange>,
    pub(super) allocated: u64,
}

#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Set(String, u64),
    Rename(String, String, u64),
    Remove(String),
}

/// Callback that simulates the activity of other threads while a file is synced.
#[derive(Clone, Default)]
pub(super) struct ConcurrentAction(pub(super) Option<Arc<dyn Fn() + Send + Sync>>);

impl std::fmt::Debug for ConcurrentAction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Meanwhile(..)" } else { "Meanwhile" })
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) random: Random,
    pub(super) faults: Faults,
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) names: BTreeMap<String, u64>,
    pub(super) durable_names: BTreeMap<String, u64>,
    pub(super) unsynced_names: Vec<NameChange>,
    pub(super) next_inode: u64,
    pub(super) capacity: Option<u64>,
    pub(super) steps: u64,
    pub(super) crash_at: Option<u64>,
    pub(super) crashed: bool,
    pub(super) generation: u64,
    pub(super) locked: bool,
    pub(super) meanwhile: ConcurrentAction,
}

impl State {
    pub(super) fn used(&self) -> u64 {
        self.names
            .values()
            .map(|n| (self.inodes[n].live.len() as u64).max(self.inodes[n].allocated))
            .sum()
    }

    pub(super) fn room(&self) -> u64 {
        self.capacity.map_or(u64::MAX, |limit| limit.saturating_sub(self.used()))
    }

    pub(super) fn drawn(&mut self, rate: u32) -> bool {
        rate > 0 && self.random.below(1024) < u64::from(rate)
    }

    /// Whether the machine crashes at this step. The step's `effect` is applied with probability
    /// 1/2.
    pub(super) fn dies(&mut self, effect: impl FnOnce(&mut State)) -> bool {
        // Reads count as steps but never crash. If `crash_at` is a read, the crash happens at the
        // next step that changes the disk.
        if self.crash_at.is_none_or(|at| self.steps < at) {
            return false;
        }
        if self.random.below(2) == 0 {
            effect(self);
        }
        self.crashed = true;
        true
    }

    pub(super) fn restart(&mut self) {
        self.generation += 1;
        self.crashed = false;
        self.crash_at = None;
        self.locked = false;
        // A power cut may undo an unsynced removal, so keep the file's inode.
        let pending = self.unsynced_names.iter().filter_map(|change| match change {
            NameChange::Set(_, inode) | NameChange::Rename(_, _, inode) => Some(inode),
            NameChange::Remove(_) => None,
        });
        let named: BTreeSet<u64> = self
            .names
            .values()
            .chain(self.durable_names.values())
            .chain(pending)
            .copied()
            .collect();
        self.inodes.retain(|n, _| named.contains(n));
        for file in self.inodes.values_mut() {
            file.allocated = 0;
        }
    }

    pub(super) fn lose_unsynced(&mut self) {
        let mut random = self.random;
        let fate = draw_fate(&mut random);
        let changes = std::mem::take(&mut self.unsynced_names);
        let kept = (random.below(changes.len() as u64 + 1)) as usize;
        for (i, change) in changes.into_iter().enumerate() {
            let arrives = match fate {
                CrashOutcome::Nothing => false,
                CrashOutcome::Everything => true,
                CrashOutcome::Prefix => i < kept,
                CrashOutcome::Sectors => random.below(2) == 0,
            };
            if !arrives {
                continue;
            }
            match change {
                NameChange::Set(name, inode) => {
                    self.durable_names.insert(name, inode);
                }
                NameChange::Rename(from, to, inode) => {
                    self.durable_names.remove(&from);
                    self.durable_names.insert(to, inode);
                }
                NameChange::Remove(name) => {
                    self.durable_names.remove(&name);
                }
            }
        }
        self.names = self.durable_names.clone();
        for file in self.inodes.values_mut() {
            let changes = std::mem::take(&mut file.unsynced);
            let fate = draw_fate(&mut random);
            arrive(&mut file.durable, changes, fate, &mut random);
            file.live = file.durable.clone();
        }
        self.random = random;
    }

    pub(super) fn file(&mut self, inode: u64) -> &mut Inode {
        // A removed file exists while it is open.
        self.inodes.entry(inode).or_default()
    }

    pub(super) fn write(&mut self, inode: u64, offset: usize, bytes: &[u8]) {
        let file = self.file(inode);
        apply(&mut file.live, offset, bytes);
        file.unsynced.push(UnsyncedChange::Write { offset, bytes: bytes.to_vec() });
    }
}

pub(super) fn draw_fate(random: &mut Random) -> CrashOutcome {
    match random.below(8) {
        0 => CrashOutcome::Nothing,
        1 => CrashOutcome::Everything,
        2..=4 => CrashOutcome::Prefix,
        _ => CrashOutcome::Sectors,
    }
}

/// Applies the surviving part of the changes to a durable image.
pub(super) fn arrive(
    image: &mut Vec<u8>,
    changes: Vec<UnsyncedChange>,
    fate: CrashOutcome,
    random: &mut Random,
) {
    let whole = random.below(changes.len() as u64 + 1) as usize;
    for (i, change) in changes.into_iter().enumerate() {
        let (all, some) = match fate {
            CrashOutcome::Nothing => (false, false),
            CrashOutcome::Everything => (true, true),
            CrashOutcome::Prefix => (i < whole, i <= whole),
            CrashOutcome::Sectors => (random.below(4) == 0, true),
        };
        match change {
            UnsyncedChange::Size(size) if all => image.resize(size, 0),
            UnsyncedChange::Size(_) => {}
            UnsyncedChange::Write { offset, bytes } if all => apply(image, offset, &bytes),
            UnsyncedChange::Write { offset, bytes } if some => {
                if fate == CrashOutcome::Prefix {
                    let cut = random.below(bytes.len() as u64 + 1) as usize;
                    apply(image, offset, &bytes[..cut]);
                    continue;
                }
                // Each sector gets its new bytes or keeps its old bytes. A new sector may also
                // contain zeros or garbage.
                let end = offset + bytes.len();
                let mut at = offset;
                while at < end {
                    let next = ((at / SECTOR + 1) * SECTOR).min(end);
                    match random.below(4) {
                        0 | 1 => apply(image, at, &bytes[at - offset..next - offset]),
                        2 if at >= image.len() => {
                            let rubbish: Vec<u8> =
                                (at..next).map(|_| random.below(256) as u8).collect();
                            apply(image, at, &rubbish);
                        }
                        _ => {}
                    }
                    at = next;
                }
            }
            UnsyncedChange::Write { .. } => {}
        }
    }
}

pub(super) fn apply(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[offset..end].copy_from_slice(bytes);
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). Seeds must reproduce on every machine and release.
#[derive(Clone, Copy, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number less than `limit`; 0 if the limit is 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }
}
