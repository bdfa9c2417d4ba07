//! A simulated disk: it grants what `disk.rs` says a disk grants, and takes away everything else.
//!
//! Each file has a *live* image (what a read sees) and a *durable* one (what is left when the power goes), and between them the
//! writes that were not synced, in order. [`SimDisk::power_cut`] decides for each of those, sector by sector, whether it arrived;
//! for each name that was created, renamed or removed since the last folder sync likewise. All decisions come from one seed, and
//! nothing here depends on time, addresses or threads: the same seed and the same calls give the same bytes, every time.
//!
//! ```text
//!   write ----> live image, and the list of unsynced writes --sync--> durable image
//!                                      |                   \--sync fails--> some arrive, some never will; live still shows them
//!                                      +--power cut--> none, all, a torn prefix, or any subset of sectors
//! ```
//!
//! Beside the faults that are drawn ([`Faults`]), a test can ask for one at an exact step: [`SimDisk::crash_after`] counts down
//! the operations of the disk, so that a run can be repeated with a crash at each of its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::disk::{Disk, DiskFile};

const SECTOR: usize = 512;

/// How often an operation goes wrong, each in 1/1024.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A write takes only a part of the bytes.
    pub short_write: u32,
    /// A write is interrupted and takes nothing.
    pub interrupted: u32,
    /// A write fails with EIO; some of its bytes may have arrived.
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

/// What happens to unsynced bytes on a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Nothing,
    Everything,
    Prefix,
    Sectors,
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Size(usize),
}

#[derive(Clone, Debug, Default)]
struct Inode {
    live: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
    allocated: u64,
}

#[derive(Clone, Debug)]
enum NameChange {
    Set(String, u64),
    Rename(String, String, u64),
    Remove(String),
}

#[derive(Debug)]
struct State {
    random: Random,
    faults: Faults,
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    unsynced_names: Vec<NameChange>,
    next_inode: u64,
    capacity: Option<u64>,
    steps: u64,
    crash_at: Option<u64>,
    crashed: bool,
    generation: u64,
    locked: bool,
}

/// The simulated disk. Clones share it.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    generation: u64,
}

impl SimDisk {
    /// An empty disk whose every decision follows from `seed`.
    pub fn new(seed: u64) -> SimDisk {
        let state = State {
            random: Random(seed ^ 0x9e37_79b9_7f4a_7c15),
            faults: Faults::default(),
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            next_inode: 1,
            capacity: None,
            steps: 0,
            crash_at: None,
            crashed: false,
            generation: 0,
            locked: false,
        };
        SimDisk { state: Arc::new(Mutex::new(state)), generation: 0 }
    }

    /// Sets how often operations fail from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// Limits the bytes of all files together; `None` lifts the limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// Lets the machine die at the `steps`-th operation from now (1 = the next one); `None` takes it back.
    pub fn crash_after(&self, steps: Option<u64>) {
        let mut state = self.state.lock();
        state.crash_at = steps.map(|n| state.steps + n);
    }

    /// Has the machine died? Every operation fails until [`SimDisk::power_cut`].
    pub fn crashed(&self) -> bool {
        self.state.lock().crashed
    }

    /// Operations so far.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// Bytes of all files together.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used()
    }

    /// The power goes and comes back: what was not synced is lost, torn or kept, as the seed decides. The answer is the disk as
    /// the next start finds it; older handles are dead.
    pub fn power_cut(&self) -> SimDisk {
        let mut state = self.state.lock();
        state.lose_unsynced();
        state.restart();
        SimDisk { state: self.state.clone(), generation: state.generation }
    }

    /// The process dies but the machine goes on: all that was written is still there, synced or not.
    pub fn kill(&self) -> SimDisk {
        let mut state = self.state.lock();
        state.restart();
        SimDisk { state: self.state.clone(), generation: state.generation }
    }

    /// The bytes of a file as a read sees them.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        state.names.get(name).map(|n| state.inodes[n].live.clone())
    }

    /// All names, whatever state the machine is in.
    pub fn list_names(&self) -> Vec<String> {
        self.state.lock().names.keys().cloned().collect()
    }

    /// Puts a file there, durably, whatever was there before.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut state = self.state.lock();
        let inode = state.next_inode;
        state.next_inode += 1;
        let file = Inode { live: bytes.to_vec(), durable: bytes.to_vec(), ..Inode::default() };
        state.inodes.insert(inode, file);
        state.names.insert(name.to_string(), inode);
        state.durable_names.insert(name.to_string(), inode);
    }

    /// Takes a file away, durably.
    pub fn take(&self, name: &str) {
        let mut state = self.state.lock();
        state.names.remove(name);
        state.durable_names.remove(name);
    }

    /// Flips one bit of a file, as a worn disk does. False if there is no such bit.
    pub fn flip_bit(&self, name: &str, bit: u64) -> bool {
        let mut state = self.state.lock();
        let Some(&inode) = state.names.get(name) else { return false };
        let Some(file) = state.inodes.get_mut(&inode) else { return false };
        let (byte, mask) = ((bit / 8) as usize, 1u8 << (bit % 8));
        for image in [&mut file.live, &mut file.durable] {
            match image.get_mut(byte) {
                Some(cell) => *cell ^= mask,
                None => return false,
            }
        }
        true
    }

    /// A copy that shares nothing with this disk, with its own seed: to try several ends of one history.
    pub fn fork(&self, seed: u64) -> SimDisk {
        let state = self.state.lock();
        let copy = SimDisk::new(seed);
        {
            let mut other = copy.state.lock();
            other.inodes = state.inodes.clone();
            other.names = state.names.clone();
            other.durable_names = state.durable_names.clone();
            other.unsynced_names = state.unsynced_names.clone();
            other.next_inode = state.next_inode;
            other.capacity = state.capacity;
        }
        copy
    }

    fn enter(&self, generation: u64) -> io::Result<parking_lot::MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        if state.generation != generation || state.crashed {
            return Err(dead());
        }
        state.steps += 1;
        Ok(state)
    }
}

fn dead() -> io::Error {
    io::Error::other("the simulated machine is down")
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

fn no_space() -> io::Error {
    io::Error::from(io::ErrorKind::StorageFull)
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
}

impl State {
    fn used(&self) -> u64 {
        self.names.values().map(|n| (self.inodes[n].live.len() as u64).max(self.inodes[n].allocated)).sum()
    }

    fn room(&self) -> u64 {
        self.capacity.map_or(u64::MAX, |limit| limit.saturating_sub(self.used()))
    }

    fn drawn(&mut self, rate: u32) -> bool {
        rate > 0 && self.random.below(1024) < u64::from(rate)
    }

    /// Is this the step at which the machine dies? The step itself may or may not have had its effect: `effect` is run half of the time.
    fn dies(&mut self, effect: impl FnOnce(&mut State)) -> bool {
        // A step that changes nothing (a read, say) has no `dies`: then the machine dies at the next one that does.
        if self.crash_at.is_none_or(|at| self.steps < at) {
            return false;
        }
        if self.random.below(2) == 0 {
            effect(self);
        }
        self.crashed = true;
        true
    }

    fn restart(&mut self) {
        self.generation += 1;
        self.crashed = false;
        self.crash_at = None;
        self.locked = false;
        // A file whose name was removed may come back with a power cut, as long as the removal is not synced.
        let pending = self.unsynced_names.iter().filter_map(|change| match change {
            NameChange::Set(_, inode) | NameChange::Rename(_, _, inode) => Some(inode),
            NameChange::Remove(_) => None,
        });
        let named: BTreeSet<u64> =
            self.names.values().chain(self.durable_names.values()).chain(pending).copied().collect();
        self.inodes.retain(|n, _| named.contains(n));
        for file in self.inodes.values_mut() {
            file.allocated = 0;
        }
    }

    fn lose_unsynced(&mut self) {
        let mut random = self.random;
        let fate = draw_fate(&mut random);
        let changes = std::mem::take(&mut self.unsynced_names);
        let kept = (random.below(changes.len() as u64 + 1)) as usize;
        for (i, change) in changes.into_iter().enumerate() {
            let arrives = match fate {
                Fate::Nothing => false,
                Fate::Everything => true,
                Fate::Prefix => i < kept,
                Fate::Sectors => random.below(2) == 0,
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
}

fn draw_fate(random: &mut Random) -> Fate {
    match random.below(8) {
        0 => Fate::Nothing,
        1 => Fate::Everything,
        2..=4 => Fate::Prefix,
        _ => Fate::Sectors,
    }
}

/// Applies to a durable image what arrives of the changes.
fn arrive(image: &mut Vec<u8>, changes: Vec<Change>, fate: Fate, random: &mut Random) {
    let whole = random.below(changes.len() as u64 + 1) as usize;
    for (i, change) in changes.into_iter().enumerate() {
        let (all, some) = match fate {
            Fate::Nothing => (false, false),
            Fate::Everything => (true, true),
            Fate::Prefix => (i < whole, i <= whole),
            Fate::Sectors => (random.below(4) == 0, true),
        };
        match change {
            Change::Size(size) if all => image.resize(size, 0),
            Change::Size(_) => {}
            Change::Write { offset, bytes } if all => apply(image, offset, &bytes),
            Change::Write { offset, bytes } if some => {
                if fate == Fate::Prefix {
                    let cut = random.below(bytes.len() as u64 + 1) as usize;
                    apply(image, offset, &bytes[..cut]);
                    continue;
                }
                // Sector by sector: a sector arrives or keeps its old bytes; where the file had none, zeros or rubbish.
                let end = offset + bytes.len();
                let mut at = offset;
                while at < end {
                    let next = ((at / SECTOR + 1) * SECTOR).min(end);
                    match random.below(4) {
                        0 | 1 => apply(image, at, &bytes[at - offset..next - offset]),
                        2 if at >= image.len() => {
                            let rubbish: Vec<u8> = (at..next).map(|_| random.below(256) as u8).collect();
                            apply(image, at, &rubbish);
                        }
                        _ => {}
                    }
                    at = next;
                }
            }
            Change::Write { .. } => {}
        }
    }
}

fn apply(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[offset..end].copy_from_slice(bytes);
}

impl Disk for SimDisk {
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("sim").join(name)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.enter(self.generation)?;
        if state.names.contains_key(name) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{name} exists")));
        }
        let make = |state: &mut State| {
            let inode = state.next_inode;
            state.next_inode += 1;
            state.inodes.insert(inode, Inode::default());
            state.names.insert(name.to_string(), inode);
            state.unsynced_names.push(NameChange::Set(name.to_string(), inode));
            inode
        };
        if state.dies(|state| {
            make(state);
        }) {
            return Err(dead());
        }
        let rate = state.faults.no_space;
        if state.drawn(rate) {
            return Err(no_space());
        }
        let inode = make(&mut state);
        Ok(Box::new(SimFile { disk: self.clone(), inode, writable: true }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let state = self.enter(self.generation)?;
        let inode = *state.names.get(name).ok_or_else(|| not_found(name))?;
        Ok(Box::new(SimFile { disk: self.clone(), inode, writable: false }))
    }

    fn open_write(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let state = self.enter(self.generation)?;
        let inode = *state.names.get(name).ok_or_else(|| not_found(name))?;
        Ok(Box::new(SimFile { disk: self.clone(), inode, writable: true }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.enter(self.generation)?;
        Ok(state.names.keys().cloned().collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.enter(self.generation)?;
        let inode = *state.names.get(from).ok_or_else(|| not_found(from))?;
        let rename = |state: &mut State| {
            state.names.remove(from);
            state.names.insert(to.to_string(), inode);
            state.unsynced_names.push(NameChange::Rename(from.to_string(), to.to_string(), inode));
        };
        if state.dies(rename) {
            return Err(dead());
        }
        rename(&mut state);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.enter(self.generation)?;
        if !state.names.contains_key(name) {
            return Err(not_found(name));
        }
        let remove = |state: &mut State| {
            state.names.remove(name);
            state.unsynced_names.push(NameChange::Remove(name.to_string()));
        };
        if state.dies(remove) {
            return Err(dead());
        }
        remove(&mut state);
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.enter(self.generation)?;
        let sync = |state: &mut State| {
            state.durable_names = state.names.clone();
            state.unsynced_names.clear();
        };
        if state.dies(sync) {
            return Err(dead());
        }
        let rate = state.faults.sync_dir_error;
        if state.drawn(rate) {
            return Err(eio());
        }
        sync(&mut state);
        Ok(())
    }

    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        let mut state = self.enter(self.generation)?;
        if state.locked {
            return Err(io::Error::from(io::ErrorKind::WouldBlock));
        }
        state.locked = true;
        Ok(Box::new(SimLock { disk: self.clone() }))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.enter(self.generation)?.room())
    }
}

#[derive(Debug)]
struct SimLock {
    disk: SimDisk,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        if state.generation == self.disk.generation {
            state.locked = false;
        }
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: u64,
    writable: bool,
}

impl SimFile {
    fn enter(&self) -> io::Result<parking_lot::MutexGuard<'_, State>> {
        self.disk.enter(self.disk.generation)
    }
}

impl State {
    fn file(&mut self, inode: u64) -> &mut Inode {
        // A removed file lives on for those who have it open.
        self.inodes.entry(inode).or_default()
    }

    fn write(&mut self, inode: u64, offset: usize, bytes: &[u8]) {
        let file = self.file(inode);
        apply(&mut file.live, offset, bytes);
        file.unsynced.push(Change::Write { offset, bytes: bytes.to_vec() });
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.enter()?;
        let rate = state.faults.read_error;
        if state.drawn(rate) {
            return Err(eio());
        }
        let live = &state.file(self.inode).live;
        let start = (offset.min(live.len() as u64)) as usize;
        let n = buffer.len().min(live.len() - start);
        buffer[..n].copy_from_slice(&live[start..start + n]);
        Ok(n)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        assert!(self.writable, "a file opened for reading is written to");
        let mut state = self.enter()?;
        let (inode, offset) = (self.inode, offset as usize);
        if state.dies(|state| state.write(inode, offset, bytes)) {
            return Err(dead());
        }
        let faults = state.faults;
        if state.drawn(faults.interrupted) {
            return Err(io::Error::from(io::ErrorKind::Interrupted));
        }
        if state.drawn(faults.write_error) {
            let some = state.random.below(bytes.len() as u64 + 1) as usize;
            state.write(inode, offset, &bytes[..some]);
            return Err(eio());
        }
        let mut taken = bytes.len();
        let grows = (offset + bytes.len())
            .saturating_sub(state.file(inode).live.len().max(state.file(inode).allocated as usize));
        let room = state.room();
        if state.drawn(faults.no_space) {
            return Err(no_space());
        }
        if grows as u64 > room {
            taken = taken.saturating_sub(grows - room as usize);
            if taken == 0 {
                return Err(no_space());
            }
        }
        if taken > 1 && state.drawn(faults.short_write) {
            taken = 1 + state.random.below(taken as u64 - 1) as usize;
        }
        state.write(inode, offset, &bytes[..taken]);
        Ok(taken)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.enter()?.file(self.inode).live.len() as u64)
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        assert!(self.writable, "a file opened for reading is resized");
        let mut state = self.enter()?;
        let (inode, size) = (self.inode, bytes as usize);
        let resize = |state: &mut State| {
            let file = state.file(inode);
            file.live.resize(size, 0);
            file.allocated = file.allocated.min(size as u64);
            file.unsynced.push(Change::Size(size));
        };
        if state.dies(resize) {
            return Err(dead());
        }
        let rate = state.faults.write_error;
        if state.drawn(rate) {
            return Err(eio());
        }
        resize(&mut state);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.enter()?;
        let inode = self.inode;
        let sync = |state: &mut State| {
            let file = state.file(inode);
            for change in std::mem::take(&mut file.unsynced) {
                match change {
                    Change::Write { offset, bytes } => apply(&mut file.durable, offset, &bytes),
                    Change::Size(size) => file.durable.resize(size, 0),
                }
            }
        };
        if state.dies(sync) {
            return Err(dead());
        }
        let rate = state.faults.sync_error;
        if state.drawn(rate) {
            // Some of the bytes arrived, the others never will, and the next sync will say that all is well.
            let mut random = state.random;
            let file = state.file(inode);
            let changes = std::mem::take(&mut file.unsynced);
            let fate = draw_fate(&mut random);
            arrive(&mut file.durable, changes, fate, &mut random);
            state.random = random;
            return Err(eio());
        }
        sync(&mut state);
        Ok(())
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.enter()?;
        let has = (state.file(self.inode).live.len() as u64).max(state.file(self.inode).allocated);
        if bytes.saturating_sub(has) > state.room() {
            return Err(no_space());
        }
        let file = state.file(self.inode);
        file.allocated = file.allocated.max(bytes);
        Ok(())
    }

    fn expect_random(&self) -> io::Result<()> {
        Ok(())
    }

    fn drop_cache(&self) -> io::Result<()> {
        let mut state = self.enter()?;
        let file = state.file(self.inode);
        let mut image = file.durable.clone();
        for change in &file.unsynced {
            match change {
                Change::Write { offset, bytes } => apply(&mut image, *offset, bytes),
                Change::Size(size) => image.resize(*size, 0),
            }
        }
        file.live = image;
        Ok(())
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): small, and the same on every machine and release, which a replayed seed needs.
#[derive(Clone, Copy, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit` (0 if the limit is 0).
    fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::write_all_at;

    #[test]
    fn unsynced_bytes_may_vanish_and_synced_ones_stay() {
        let mut lost = 0;
        for seed in 0..200 {
            let disk = SimDisk::new(seed);
            let file = disk.create("a").unwrap();
            write_all_at(&*file, &[1; 1000], 0).unwrap();
            file.sync().unwrap();
            disk.sync_dir().unwrap();
            write_all_at(&*file, &[2; 3000], 1000).unwrap();
            let disk = disk.power_cut();
            let bytes = disk.contents("a").unwrap();
            assert_eq!(bytes[..1000], [1; 1000], "seed {seed}");
            lost += usize::from(bytes.len() < 4000 || bytes[1000..] != [2; 3000]);
        }
        assert!(lost > 100, "only {lost} of 200 cuts lost anything");
    }

    #[test]
    fn an_unsynced_name_may_vanish() {
        let gone = (0..100)
            .filter(|&seed| {
                let disk = SimDisk::new(seed);
                disk.create("a").unwrap().sync().unwrap();
                disk.power_cut().contents("a").is_none()
            })
            .count();
        assert!((20..80).contains(&gone), "{gone}");
    }

    #[test]
    fn after_a_failed_sync_the_next_one_succeeds_and_the_bytes_are_gone() {
        let lies = (0..100)
            .filter(|&seed| {
                let disk = SimDisk::new(seed);
                let file = disk.create("a").unwrap();
                disk.sync_dir().unwrap();
                write_all_at(&*file, &[7; 2000], 0).unwrap();
                disk.set_faults(Faults { sync_error: 1024, ..Faults::default() });
                file.sync().unwrap_err();
                disk.set_faults(Faults::default());
                file.sync().unwrap();
                assert_eq!(disk.contents("a").unwrap(), [7; 2000]);
                disk.power_cut().contents("a").unwrap() != [7; 2000]
            })
            .count();
        assert!(lies > 30, "{lies}");
    }

    #[test]
    fn a_seed_replays_exactly() {
        let run = |seed| {
            let disk = SimDisk::new(seed);
            disk.set_faults(Faults { short_write: 200, sync_error: 100, interrupted: 100, ..Faults::default() });
            for i in 0..20u64 {
                let file = disk.create(&format!("f{i}")).unwrap();
                let _ = write_all_at(&*file, &vec![i as u8; 700], 0);
                let _ = file.sync();
                if i % 3 == 0 {
                    disk.sync_dir().unwrap();
                }
            }
            let disk = disk.power_cut();
            let names = disk.list().unwrap();
            names.iter().map(|n| (n.clone(), disk.contents(n).unwrap())).collect::<Vec<_>>()
        };
        for seed in 0..50 {
            assert_eq!(run(seed), run(seed));
        }
    }

    #[test]
    fn a_full_disk_takes_what_fits_then_refuses() {
        let disk = SimDisk::new(1);
        disk.set_capacity(Some(1000));
        let file = disk.create("a").unwrap();
        let error = write_all_at(&*file, &[1; 1500], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.used_bytes(), 1000);
        file.set_size(0).unwrap();
        write_all_at(&*file, &[1; 900], 0).unwrap();
    }

    #[test]
    fn the_machine_dies_at_the_step_asked_for() {
        let disk = SimDisk::new(3);
        disk.crash_after(Some(2));
        let file = disk.create("a").unwrap();
        assert!(file.write_at(b"x", 0).is_err());
        assert!(disk.crashed());
        assert!(disk.list().is_err());
        assert!(disk.power_cut().list().is_ok());
    }
}
