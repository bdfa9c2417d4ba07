//! File operations of the simulated disk. Each operation may fail, or crash the simulated machine.

use std::io;
use std::path::PathBuf;

use super::SimDisk;
use super::state::{Inode, NameChange, State, UnsyncedChange, apply, arrive, dead, draw_fate};
use crate::disk::{Disk, DiskFile};

fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

fn no_space() -> io::Error {
    io::Error::from(io::ErrorKind::StorageFull)
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
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
        assert!(self.writable, "write to a file opened for reading");
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
        assert!(self.writable, "resize of a file opened for reading");
        let mut state = self.enter()?;
        let (inode, size) = (self.inode, bytes as usize);
        let resize = |state: &mut State| {
            let file = state.file(inode);
            file.live.resize(size, 0);
            file.allocated = file.allocated.min(size as u64);
            file.unsynced.push(UnsyncedChange::Size(size));
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
        let meanwhile = self.enter()?.meanwhile.0.clone();
        if let Some(others) = meanwhile {
            others();
        }
        let mut state = self.enter()?;
        let inode = self.inode;
        let sync = |state: &mut State| {
            let file = state.file(inode);
            for change in std::mem::take(&mut file.unsynced) {
                match change {
                    UnsyncedChange::Write { offset, bytes } => {
                        apply(&mut file.durable, offset, &bytes)
                    }
                    UnsyncedChange::Size(size) => file.durable.resize(size, 0),
                }
            }
        };
        if state.dies(sync) {
            return Err(dead());
        }
        let rate = state.faults.sync_error;
        if state.drawn(rate) {
            // Only a part of the bytes reaches the disk, and the next sync still returns success.
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
                UnsyncedChange::Write { offset, bytes } => apply(&mut image, *offset, bytes),
                UnsyncedChange::Size(size) => image.resize(*size, 0),
            }
        }
        file.live = image;
        Ok(())
    }
}
