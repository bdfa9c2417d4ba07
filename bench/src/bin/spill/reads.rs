//! Cold rows one by one, beside plain reads of the same files: what one costs by the kernel's count, and how many go in parallel.

use crate::node::{Node, proc_of};
use crate::rows::{Rows, SPACE, id, reply, request};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;

/// The cold files of a folder.
pub(crate) struct Files(Vec<(File, u64)>);

impl Files {
    pub(crate) fn open(dir: &std::path::Path) -> io::Result<Files> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "tcold") {
                let file = File::open(path)?;
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
                let blocks = file.metadata()?.len() / BLOCK - 1;
                files.push((file, blocks));
            }
        }
        Ok(Files(files))
    }

    /// From now on reads come from the device.
    pub(crate) fn drop_cache(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|(file, _)| Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?))
    }

    fn read(&self, rng: &mut fastrand::Rng, buffer: &mut [u8]) -> io::Result<()> {
        let (file, blocks) = &self.0[rng.usize(..self.0.len())];
        file.read_exact_at(buffer, (1 + rng.u64(..*blocks)) * BLOCK)
    }
}

/// Reads that were measured.
pub(crate) struct Measured {
    ns: Vec<u64>,
    took: Duration,
    /// Bytes that the device gave, and calls of `read` and its like, per read; by the kernel's count.
    pub(crate) device_bytes: f64,
    pub(crate) calls: f64,
}

impl Measured {
    pub(crate) fn per_s(&self) -> f64 {
        self.ns.len() as f64 / self.took.as_secs_f64()
    }

    pub(crate) fn us(&mut self, share: f64) -> f64 {
        percentile(&mut self.ns, share) / 1000.0
    }
}

/// Of some times, the one that this share does not exceed.
pub(crate) fn percentile(ns: &mut [u64], share: f64) -> f64 {
    ns.sort_unstable();
    let at = ((ns.len() as f64 * share).ceil() as usize).clamp(1, ns.len().max(1)) - 1;
    ns.get(at).map_or(f64::NAN, |&ns| ns as f64)
}

/// `number` reads by so many readers, each of which does one after the other.
fn measure(
    readers: u64,
    number: u64,
    process: u32,
    reader: impl Fn(u64) -> io::Result<Box<dyn FnMut() -> io::Result<()> + Send>> + Sync,
) -> io::Result<Measured> {
    let io_of = || ["read_bytes", "syscr"].map(|name| proc_of(process, "io", name));
    let before = io_of();
    let began = Instant::now();
    let ns = std::thread::scope(|scope| {
        let run = |n: u64| {
            let mut read = reader(n)?;
            let mut ns = Vec::with_capacity((number / readers) as usize);
            for _ in 0..number / readers {
                let began = Instant::now();
                read()?;
                ns.push(began.elapsed().as_nanos() as u64);
            }
            Ok::<_, io::Error>(ns)
        };
        let threads: Vec<_> = (0..readers).map(|n| scope.spawn(move || run(n))).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.append(&mut thread.join().map_err(|_| io::Error::other("a reader panicked"))??);
        }
        Ok::<_, io::Error>(all)
    })?;
    let (took, after) = (began.elapsed(), io_of());
    let per = |i: usize| (after[i] - before[i]) / ns.len() as f64;
    Ok(Measured { took, device_bytes: per(0), calls: per(1), ns })
}

/// Random cold rows of numbers below `cold`, each asked for alone.
pub(crate) fn rows(
    node: &Node,
    all: &std::sync::Arc<Rows>,
    cold: u64,
    rounds: u64,
    readers: u64,
    number: u64,
    seed: u64,
) -> io::Result<Measured> {
    measure(readers, number, node.process(), |reader| {
        let (mut link, all) = (node.connect()?, all.clone());
        let mut rng = fastrand::Rng::with_seed(seed << 8 | reader);
        let (mut bytes, mut text) = (Vec::new(), Vec::new());
        Ok(Box::new(move || {
            let number = rng.u64(..cold);
            bytes.clear();
            text.clear();
            request(&["CNT.GET", SPACE], &[id(number)], &mut bytes);
            text.extend_from_slice(b"*1\r\n");
            reply(all.after(number, rounds), &mut text);
            link.send(&bytes)?;
            link.expect(&text)
        }))
    })
}

/// Random blocks of the same files by `pread`.
pub(crate) fn plain(files: &std::sync::Arc<Files>, readers: u64, number: u64, seed: u64) -> io::Result<Measured> {
    measure(readers, number, std::process::id(), |reader| {
        let files = files.clone();
        let mut rng = fastrand::Rng::with_seed(seed << 8 | reader);
        let mut buffer = vec![0; BLOCK as usize];
        Ok(Box::new(move || files.read(&mut rng, &mut buffer)))
    })
}
