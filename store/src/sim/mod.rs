//! Simulated disk. The simulated disk provides exactly the guarantees listed in `disk.rs`.
//!
//! Each file has a *live* image, which reads return, and a *durable* image, which survives a power
//! cut. An ordered list of unsynced writes connects the two images. [`SimDisk::power_cut`] decides
//! for each sector of those writes whether it reached the disk. The same applies to names created,
//! renamed or removed since the last sync of the folder. All decisions derive from one seed and do
//! not depend on time, addresses or threads. The same seed and calls produce the same bytes.
//!
//! ```text
//!   write ----> live image, and the list of unsynced writes --sync--> durable image
//!                                      |           \--sync fails--> some arrive, others never;
//!                                      |                            reads still return them
//!                                      +--power cut--> none, all, a torn prefix, or any subset of
//!                                                      sectors
//! ```
//!
//! In addition to random faults ([`Faults`]), a test can request a crash at an exact step.
//! [`SimDisk::crash_after`] counts operations of the disk, so that a test can repeat a run with a
//! crash at each step.

mod files;
mod state;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

pub use state::Faults;
use state::{ConcurrentAction, Inode, Random, State, dead};

/// A simulated disk. Clones of a disk share their state.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    generation: u64,
}

impl SimDisk {
    /// Returns an empty disk. `seed` determines all decisions.
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
            meanwhile: ConcurrentAction::default(),
        };
        SimDisk { state: Arc::new(Mutex::new(state)), generation: 0 }
    }

    /// Sets the fault rates for later operations.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// Sets a hook that runs at the beginning of each sync, without locks held. The hook simulates
    /// concurrent activity during a slow sync.
    pub fn set_sync_hook(&self, others: impl Fn() + Send + Sync + 'static) {
        self.state.lock().meanwhile.0 = Some(Arc::new(others));
    }

    /// Limits the total size of all files in bytes; `None` removes the limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// Schedules a crash at the `steps`-th operation from now (1 = the next operation); `None`
    /// cancels the scheduled crash.
    pub fn crash_after(&self, steps: Option<u64>) {
        let mut state = self.state.lock();
        state.crash_at = steps.map(|n| state.steps + n);
    }

    /// Whether the machine has crashed. Every operation then fails until [`SimDisk::power_cut`].
    pub fn crashed(&self) -> bool {
        self.state.lock().crashed
    }

    /// Returns the number of operations so far.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// Returns the total size of all files in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used()
    }

    /// Simulates a power cut. The seed decides whether unsynced data is lost, torn or retained.
    /// Returns the disk for the next startup and invalidates older handles.
    pub fn power_cut(&self) -> SimDisk {
        let mut state = self.state.lock();
        state.lose_unsynced();
        state.restart();
        SimDisk { state: self.state.clone(), generation: state.generation }
    }

    /// Simulates a killed process. All written data remains, synced or not. Returns the disk for
    /// the next startup and invalidates older handles.
    pub fn kill(&self) -> SimDisk {
        let mut state = self.state.lock();
        state.restart();
        SimDisk { state: self.state.clone(), generation: state.generation }
    }

    /// Returns the live contents of a file.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        state.names.get(name).map(|n| state.inodes[n].live.clone())
    }

    /// Returns the names of all files. The call also works after a crash.
    pub fn list_names(&self) -> Vec<String> {
        self.state.lock().names.keys().cloned().collect()
    }

    /// Creates or replaces a file durably. The call also works after a crash.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut state = self.state.lock();
        let inode = state.next_inode;
        state.next_inode += 1;
        let file = Inode { live: bytes.to_vec(), durable: bytes.to_vec(), ..Inode::default() };
        state.inodes.insert(inode, file);
        state.names.insert(name.to_string(), inode);
        state.durable_names.insert(name.to_string(), inode);
    }

    /// Removes a file durably. The call also works after a crash.
    pub fn take(&self, name: &str) {
        let mut state = self.state.lock();
        state.names.remove(name);
        state.durable_names.remove(name);
    }

    /// Flips one bit of a file in both images. Returns false if the file has no such bit.
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

    /// Returns an independent copy with its own seed, to try several outcomes of one history.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, write_all_at};

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
    fn sync_after_a_failed_sync_succeeds_though_bytes_are_lost() {
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
            disk.set_faults(Faults {
                short_write: 200,
                sync_error: 100,
                interrupted: 100,
                ..Faults::default()
            });
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
