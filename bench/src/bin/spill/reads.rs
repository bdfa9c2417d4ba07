//! Measures reads of single cold rows, with and without sockets, compared with `pread` of the same
//! files. Reports the cost as counted by the kernel, and the parallel throughput.

use crate::node::{Node, proc_of};
use crate::rows::{FIELDS, Rows, SPACE, id, reply, request};
use dataset::Engines;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

const BLOCK: u64 = 4096;

/// Cold files of a folder.
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

    /// Evicts the files from the page cache, so that reads come from the device.
    pub(crate) fn drop_cache(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|(file, _)| {
            Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
        })
    }

    fn read(&self, rng: &mut fastrand::Rng, buffer: &mut [u8]) -> io::Result<()> {
        let (file, blocks) = &self.0[rng.usize(..self.0.len())];
        file.read_exact_at(buffer, (1 + rng.u64(..*blocks)) * BLOCK)
    }
}

/// Parameters of a measurement.
pub(crate) struct Pattern {
    /// Rows with a lower number are cold.
    pub(crate) cold: u64,
    /// Number of rounds of changes applied so far.
    pub(crate) rounds: u64,
    pub(crate) readers: u64,
    /// Total number of reads.
    pub(crate) number: u64,
    pub(crate) seed: u64,
}

impl Pattern {
    fn random(&self, reader: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed << 8 | reader)
    }
}

/// Result of a measurement.
pub(crate) struct Measured {
    pub(crate) per_s: f64,
    /// Median and 99th percentile of the latency in microseconds.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Bytes from the device and read system calls per read, as counted by the kernel.
    pub(crate) device_bytes: f64,
    pub(crate) calls: f64,
    /// CPU time per read, in microseconds.
    pub(crate) busy_us: f64,
}

/// Format for passing results between processes.
impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Measured { per_s, p50_us, p99_us, device_bytes, calls, busy_us } = self;
        write!(f, "{per_s} {p50_us} {p99_us} {device_bytes} {calls} {busy_us}")
    }
}

impl std::str::FromStr for Measured {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Measured> {
        let numbers: Vec<f64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
        let &[per_s, p50_us, p99_us, device_bytes, calls, busy_us] = &numbers[..] else {
            return Err(io::Error::other(format!("unexpected output: '{text}'")));
        };
        Ok(Measured { per_s, p50_us, p99_us, device_bytes, calls, busy_us })
    }
}

pub(crate) fn percentile(ns: &mut [u64], share: f64) -> f64 {
    ns.sort_unstable();
    let at = ((ns.len() as f64 * share).ceil() as usize).clamp(1, ns.len().max(1)) - 1;
    ns.get(at).map_or(f64::NAN, |&ns| ns as f64)
}

/// Performs a reader's next read.
type Read<'a> = Box<dyn FnMut() -> io::Result<()> + 'a>;

/// Measures reads. `read` returns their latencies in nanoseconds. System calls and CPU time are
/// measured for `process`.
fn measure(process: u32, read: impl FnOnce() -> io::Result<Vec<u64>>) -> io::Result<Measured> {
    let figures = || {
        let ticks = times_of(process);
        [proc_of(process, "io", "read_bytes"), proc_of(process, "io", "syscr"), ticks]
    };
    let before = figures();
    let began = Instant::now();
    let mut ns = read()?;
    let (took, after) = (began.elapsed(), figures());
    let n = ns.len() as f64;
    let per = |i: usize| (after[i] - before[i]) / n;
    Ok(Measured {
        per_s: n / took.as_secs_f64(),
        p50_us: percentile(&mut ns, 0.5) / 1000.0,
        p99_us: percentile(&mut ns, 0.99) / 1000.0,
        device_bytes: per(0),
        calls: per(1),
        busy_us: per(2),
    })
}

/// Runs `run` on `threads` threads and concatenates the results.
fn on_threads(
    threads: u64,
    run: impl Fn(u64) -> io::Result<Vec<u64>> + Sync,
) -> io::Result<Vec<u64>> {
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|n| scope.spawn(move || run(n))).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.append(&mut thread.join().map_err(|_| io::Error::other("a reader panicked"))??);
        }
        Ok(all)
    })
}

/// Performs the reads of a pattern. Each reader is a thread that reads sequentially.
fn by_threads<'a>(
    pattern: &Pattern,
    process: u32,
    reader: impl Fn(fastrand::Rng) -> io::Result<Read<'a>> + Sync,
) -> io::Result<Measured> {
    let Pattern { readers, number, .. } = *pattern;
    let run = |n: u64| {
        let mut read = reader(pattern.random(n))?;
        let mut ns = Vec::with_capacity((number / readers) as usize);
        for _ in 0..number / readers {
            let began = Instant::now();
            read()?;
            ns.push(began.elapsed().as_nanos() as u64);
        }
        Ok(ns)
    };
    measure(process, || on_threads(readers, run))
}

/// Reads random cold rows over sockets, one per request.
pub(crate) fn served(node: &Node, all: &Rows, pattern: &Pattern) -> io::Result<Measured> {
    by_threads(pattern, node.process(), |mut rng| {
        let (mut link, all) = (node.connect()?, all.clone());
        let (cold, rounds) = (pattern.cold, pattern.rounds);
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

/// Reads random cold rows without sockets. Like connections, the readers are tasks on as many
/// threads as the server has workers. A reader fetches a row in the same way as a request of a
/// connection, then reads the row.
pub(crate) fn inside(engines: &Engines, all: &Rows, pattern: &Pattern) -> io::Result<Measured> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    measure(std::process::id(), || {
        on_threads(workers, |worker| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            let readers = (worker..pattern.readers).step_by(workers as usize);
            runtime.block_on(all_of(readers.map(|n| reader(engines, all, pattern, n)).collect()))
        })
    })
}

async fn reader(engines: &Engines, all: &Rows, pattern: &Pattern, n: u64) -> io::Result<Vec<u64>> {
    let (mut rng, mut ns) = (pattern.random(n), Vec::new());
    for _ in 0..pattern.number / pattern.readers {
        let began = Instant::now();
        let number = rng.u64(..pattern.cold);
        let space = engines
            .counter(SPACE.as_bytes())
            .ok_or_else(|| io::Error::other("no counter space"))?;
        space.fetch(&[id(number)]).await;
        let mut row = [0; FIELDS];
        let found = space.get(id(number), &mut row).map_err(io::Error::other)?.then_some(row);
        if found != all.after(number, pattern.rounds) {
            return Err(io::Error::other(format!("row {number}: found {found:?}")));
        }
        ns.push(began.elapsed().as_nanos() as u64);
    }
    Ok(ns)
}

/// Runs all readers to completion and concatenates their results.
async fn all_of<F: Future<Output = io::Result<Vec<u64>>>>(readers: Vec<F>) -> io::Result<Vec<u64>> {
    let mut left: Vec<_> = readers.into_iter().map(Box::pin).collect();
    let mut all = Ok(Vec::new());
    std::future::poll_fn(|context| {
        left.retain_mut(|reader| match reader.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(given) => {
                all = std::mem::replace(&mut all, Ok(Vec::new())).and_then(|mut all| {
                    all.append(&mut given?);
                    Ok(all)
                });
                false
            }
        });
        if left.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    all
}

/// Reads random blocks of the same files with `pread`.
pub(crate) fn plain(files: &Arc<Files>, pattern: &Pattern) -> io::Result<Measured> {
    by_threads(pattern, std::process::id(), |mut rng| {
        let files = files.clone();
        let mut buffer = vec![0; BLOCK as usize];
        Ok(Box::new(move || files.read(&mut rng, &mut buffer)))
    })
}

/// CPU time of a process so far, in microseconds.
fn times_of(process: u32) -> f64 {
    times(process, [11, 12])
}

/// CPU time of a process's exited children, in microseconds.
pub(crate) fn times_of_children(process: u32) -> f64 {
    times(process, [13, 14])
}

/// Sums two time fields of `/proc/PID/stat`. `fields_of` counts the fields after the process name.
fn times(process: u32, fields_of: [usize; 2]) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields: Vec<&str> =
        text.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
    // A field in clock ticks (hundredths of a second).
    let ticks =
        |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(f64::NAN);
    fields_of.map(ticks).iter().sum::<f64>() * 1e4
}
