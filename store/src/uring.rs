//! Reads blocks by io_uring: many of them in one system call, without a waiting thread.
//!
//! ```text
//!   push, push, push -> submit -> ... the disk reads ... -> the event fd -> take, take, take
//! ```
//!
//! A completion returns the caller's job with the block, or with the fact that it was not read
//! whole: an error, a file that ends, an interruption. What that was is for an ordinary read to
//! find out, which is tried again as such reads are.
//!
//! This is the one file of the store with `unsafe`, for what safe Rust cannot say: the kernel
//! writes to a buffer that is ours. The rule that all of it rests on: **from its submission until
//! its completion is taken a buffer is the kernel's**, and no code here reads it, writes it or
//! frees it. So buffers belong to the ring, not to the caller; its drop waits until the kernel has
//! given all of them back, and those of a disk that does not answer are never freed.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};

use crate::disk::DiskFile;

/// How long a drop waits for the disk, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// Bytes of a block: one read.
pub const BLOCK_BYTES: usize = 4096;

/// A block that lies somewhere on the disk, of a file that stays open as long as this.
#[derive(Clone, Debug)]
pub struct BlockPlace {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) at: u64,
}

/// One block, at a multiple of its size, as devices like it.
#[repr(align(4096))]
struct Buffer(UnsafeCell<[u8; BLOCK_BYTES]>);

// SAFETY: `Ring` alone has buffers, and reads one only by `&mut Ring`, when the kernel has given it
// back.
unsafe impl Sync for Buffer {}

/// What a buffer is used for.
struct Slot<T> {
    /// Open until the kernel has taken the file over, and a little longer: a number that was closed
    /// may be another file's.
    _file: Arc<dyn DiskFile>,
    /// `None`: the caller has taken it back.
    job: Option<T>,
}

/// Reads under way, each for a `T`.
pub struct Ring<T> {
    uring: IoUring,
    /// Never freed while the kernel has one of them.
    buffers: ManuallyDrop<Box<[Buffer]>>,
    /// What each buffer is used for.
    slots: Box<[Option<Slot<T>>]>,
    free: Vec<usize>,
    /// Slots that the kernel has not been told of, in their order.
    pushed: VecDeque<usize>,
    /// Slots that the kernel was told of, and whose completions have not been taken.
    under_way: usize,
}

impl<T> Ring<T> {
    /// A ring for so many reads at a time, a power of two, and a descriptor that becomes readable
    /// whenever one is complete. An error: this system does not allow it, or does not know it.
    pub fn new(depth: u32) -> io::Result<(Ring<T>, OwnedFd)> {
        let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
        let event = rustix::event::eventfd(0, flags)?;
        // A completion interrupts no running worker: it is noticed with the next system call,
        // of which a worker has many. Linux before 5.19 does not know that.
        let uring = IoUring::builder()
            .setup_coop_taskrun()
            .build(depth)
            .or_else(|_| IoUring::new(depth))?;
        let mut probe = io_uring::Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        uring.submitter().register_eventfd(event.as_raw_fd())?;
        let depth = depth as usize;
        let buffers = (0..depth).map(|_| Buffer(UnsafeCell::new([0; BLOCK_BYTES]))).collect();
        let slots = (0..depth).map(|_| None).collect();
        let ring = Ring {
            uring,
            buffers: ManuallyDrop::new(buffers),
            slots,
            free: (0..depth).collect(),
            pushed: VecDeque::new(),
            under_way: 0,
        };
        Ok((ring, event))
    }

    /// Whether one more can be pushed.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Reads that are not complete yet.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asks for a block, from the next [`submit`](Ring::submit) on. Gives the job back if there is
    /// no room, or if the file is not the kernel's.
    pub fn push(&mut self, place: BlockPlace, job: T) -> Result<(), T> {
        let (Some(file), Some(&slot)) = (place.file.descriptor(), self.free.last()) else {
            return Err(job);
        };
        let buffer = self.buffers[slot].0.get();
        let read =
            opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.cast(), BLOCK_BYTES as u32)
                .offset(place.at)
                .build()
                .user_data(slot as u64);
        // SAFETY: the buffer is free, hence not the kernel's already; from here on it is not free
        // until its completion is taken, and it is not freed before that. The file is kept in the
        // slot for as long. The entry names no other memory.
        let pushed = unsafe { self.uring.submission().push(&read) };
        if pushed.is_err() {
            // Not while there are as many entries as buffers.
            return Err(job);
        }
        self.free.pop();
        self.slots[slot] = Some(Slot { _file: place.file, job: Some(job) });
        self.pushed.push_back(slot);
        Ok(())
    }

    /// Tells the kernel of what was pushed. On an error some of it may still be untold:
    /// [`take_back`](Ring::take_back).
    pub fn submit(&mut self) -> io::Result<()> {
        while !self.pushed.is_empty() {
            match self.uring.submit() {
                Ok(0) => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(n) => {
                    self.pushed.drain(..n);
                    self.under_way += n;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Jobs of which the kernel was not told. Their buffers stay taken: it may yet read into them,
    /// and the result is dropped.
    pub fn take_back(&mut self) -> Vec<T> {
        let slots = &mut self.slots;
        self.pushed.iter().filter_map(|&slot| slots[slot].as_mut()?.job.take()).collect()
    }

    /// Takes one that is complete: its job, and its block if that was read whole.
    pub fn take<R>(&mut self, with: impl FnOnce(T, Option<&[u8; BLOCK_BYTES]>) -> R) -> Option<R> {
        loop {
            let entry = self.uring.completion().next()?;
            let at = entry.user_data() as usize;
            let slot = self.slots[at].take();
            self.under_way -= 1;
            self.free.push(at);
            let Some(job) = slot.and_then(|slot| slot.job) else { continue };
            let whole = entry.result() == BLOCK_BYTES as i32;
            // SAFETY: its completion has come, so the kernel writes to it no more, and nothing is
            // pushed into it while this borrows the ring.
            let block = unsafe { &*self.buffers[at].0.get() };
            return Some(with(job, whole.then_some(block)));
        }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let until = Instant::now() + PATIENCE;
        // What was only pushed the kernel never learns of.
        while self.under_way > 0 && Instant::now() < until {
            if self.take(|_, _| ()).is_none() {
                std::thread::sleep(LOOK_EVERY);
            }
        }
        if self.under_way == 0 {
            // SAFETY: none is the kernel's, and none is used after this.
            unsafe { ManuallyDrop::drop(&mut self.buffers) };
        }
    }
}

/// What the kernel has of it is not told.
impl<T> std::fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("depth", &self.slots.len())
            .field("under_way", &self.under_way)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, RealDisk};
    use crate::sim::SimDisk;
    use io::Write as _;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::{AsFd, BorrowedFd};

    /// A file that only the kernel reads: a pipe, of which a read ends when the test says so.
    #[derive(Debug)]
    struct Pipe(OwnedFd);

    impl DiskFile for Pipe {
        fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
            unreachable!("it is read by the kernel")
        }
        fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
            unreachable!("it is read only")
        }
        fn size(&self) -> io::Result<u64> {
            Ok(0)
        }
        fn set_size(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
        fn allocate(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn drop_cache(&self) -> io::Result<()> {
            Ok(())
        }
        fn expect_random(&self) -> io::Result<()> {
            Ok(())
        }
        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }
    }

    /// None where the system allows no ring, which is said.
    fn ring<T>(depth: u32) -> Option<(Ring<T>, OwnedFd)> {
        Ring::new(depth)
            .inspect_err(|error| eprintln!("NOT TESTED: no io_uring here: {error}"))
            .ok()
    }

    /// Waits until something is complete.
    fn wait(event: &OwnedFd) {
        let mut events = [PollFd::new(event, PollFlags::IN)];
        let time = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut events, Some(&time)).unwrap(), 1, "nothing is complete in a minute");
        rustix::io::read(event, &mut [0; 8]).unwrap();
    }

    /// Block `n` of the file is full of it.
    fn file_of(blocks: u8, more: usize) -> (tempfile::TempDir, Arc<dyn DiskFile>) {
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(folder.path()).unwrap();
        let mut bytes: Vec<u8> = (0..blocks).flat_map(|n| [n; BLOCK_BYTES]).collect();
        bytes.resize(bytes.len() + more, blocks);
        std::fs::write(disk.path("file"), bytes).unwrap();
        let file = disk.open("file").unwrap();
        (folder, file.into())
    }

    #[test]
    fn each_request_gets_its_block_or_an_error() {
        let Some((mut ring, event)) = ring(8) else { return };
        // The last one is cut short, and behind it there is nothing.
        let (_folder, file) = file_of(100, 1000);
        let (mut asked, mut seen) = (0..102u64, vec![None; 102]);
        // The ring holds it open.
        let mut places = (0..102)
            .map(|n| BlockPlace { file: file.clone(), at: n * BLOCK_BYTES as u64 })
            .collect::<Vec<_>>();
        drop(file);
        places.reverse();
        while seen.contains(&None) {
            while ring.has_room()
                && let Some(n) = asked.next()
            {
                ring.push(places.pop().unwrap(), n).unwrap();
            }
            ring.submit().unwrap();
            wait(&event);
            while let Some((n, block)) = ring.take(|n, block| (n, block.copied())) {
                assert_eq!(seen[n as usize].replace(block), None, "{n} is told twice");
            }
        }
        for (n, block) in seen.into_iter().enumerate() {
            assert_eq!(block.flatten(), (n < 100).then_some([n as u8; BLOCK_BYTES]), "block {n}");
        }
        assert!(ring.is_empty() && ring.take(|_, _| ()).is_none());
    }

    #[test]
    fn no_more_is_under_way_than_there_are_buffers() {
        let Some((mut ring, event)) = ring(2) else { return };
        let (_folder, file) = file_of(4, 0);
        let place = |n| BlockPlace { file: file.clone(), at: n * BLOCK_BYTES as u64 };
        assert_eq!(
            [ring.push(place(0), 0), ring.push(place(1), 1), ring.push(place(2), 2)],
            [Ok(()), Ok(()), Err(2)]
        );
        assert!(!ring.has_room());
        ring.submit().unwrap();
        assert_eq!(ring.push(place(3), 3), Err(3), "its buffers are the kernel's");
        let mut left = 2;
        while left > 0 {
            wait(&event);
            while ring.take(|n, block| assert_eq!(block, Some(&[n as u8; BLOCK_BYTES]))).is_some() {
                left -= 1;
            }
        }
        assert_eq!(ring.push(place(3), 3), Ok(()));
    }

    #[test]
    fn unsubmitted_reads_can_be_taken_back() {
        let Some((mut ring, event)) = ring(4) else { return };
        let (_folder, file) = file_of(4, 0);
        let place = |n| BlockPlace { file: file.clone(), at: n * BLOCK_BYTES as u64 };
        for n in 0..3 {
            ring.push(place(n), n).unwrap();
        }
        assert_eq!(ring.take_back(), [0, 1, 2]);
        assert_eq!((ring.take_back(), ring.len()), (vec![], 3), "their buffers are taken");
        ring.push(place(3), 3).unwrap();
        ring.submit().unwrap();
        let mut told = vec![];
        while !ring.is_empty() {
            wait(&event);
            while let Some(n) = ring.take(|n, _| n) {
                told.push(n);
            }
        }
        assert_eq!(told, [3]);
    }

    #[test]
    fn a_file_that_is_not_the_systems_is_given_back() {
        let Some((mut ring, _event)) = ring(4) else { return };
        let disk = SimDisk::new(1);
        let file = disk.create("file").unwrap();
        assert_eq!(ring.push(BlockPlace { file: file.into(), at: 0 }, 7), Err(7));
        assert!(ring.is_empty());
    }

    /// Else the kernel would write to memory that has another owner by then.
    #[test]
    fn a_drop_waits_until_the_kernel_has_written() {
        let Some((mut ring, _event)) = ring(4) else { return };
        let (from, mut to) = io::pipe().unwrap();
        ring.push(BlockPlace { file: Arc::new(Pipe(from.into())), at: 0 }, ()).unwrap();
        ring.submit().unwrap();
        // On the thread that submitted, which is the one that the kernel completes it on.
        std::thread::scope(|scope| {
            let writing = scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                let began = Instant::now();
                to.write_all(&[1; BLOCK_BYTES]).unwrap();
                began
            });
            drop(ring);
            let dropped = Instant::now();
            assert!(dropped > writing.join().unwrap(), "it did not wait");
        });
    }
}
