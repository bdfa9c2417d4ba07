//! Runs the measured server in a separate process that can be killed. The process runs this binary
//! with another subcommand. The process loads rows by calling the engines directly, because
//! 200,000,000 requests would mostly measure sockets.

use crate::reads::{self, Measured, Pattern};
use crate::rows::{FIELDS, Rows, SPACE, id};
use client::Reply::{BulkString, Error, Integer, SimpleString};
use client::{Client, info_field};
use dataset::engines::WriteError;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidemark_server::config::Config;

/// Configuration of the node.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Setup {
    /// Memory limit of the space in MiB
    #[arg(long, default_value_t = 512, global = true)]
    pub(crate) limit_mib: u64,
    /// Cache for cold rows in MiB
    #[arg(long, default_value_t = 64, global = true)]
    pub(crate) cache_mib: u64,
    /// Rows per table
    #[arg(long, default_value_t = 1 << 20, global = true)]
    pub(crate) per_table: u64,
    /// Number of reading threads
    #[arg(long, default_value_t = 16, global = true)]
    pub(crate) read_threads: usize,
}

/// Serves the data folder until the end of standard input.
pub(crate) fn serve(dir: &Path, setup: &Setup) -> io::Result<()> {
    let mut config = Config::default();
    config.durability.dir = dir.to_owned();
    config.spill.cache_bytes = setup.cache_mib << 20;
    config.spill.read_threads = setup.read_threads;
    let space = &mut config.counter[0];
    (space.spill, space.rows_per_table, space.memory_limit_bytes) =
        (true, setup.per_table, setup.limit_mib << 20);
    let server = tidemark_server::start(config, TcpListener::bind("127.0.0.1:0")?)
        .map_err(io::Error::other)?;
    println!("{}", server.port());
    let rows = Rows::new();
    for line in io::stdin().lines() {
        let line = line?;
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let engines = server.engines();
        match numbers[..] {
            [from, to] => {
                load(&engines, &rows, from, to)?;
                println!("done");
            }
            [cold, rounds, readers, number, seed] => {
                let pattern = Pattern { cold, rounds, readers, number, seed };
                println!("{}", reads::inside(&engines, &rows, &pattern)?);
            }
            _ => return Err(io::Error::other(format!("'{line}'?"))),
        }
    }
    server.stop()
}

fn load(engines: &dataset::Engines, rows: &Rows, from: u64, to: u64) -> io::Result<()> {
    let space =
        engines.counter(SPACE.as_bytes()).ok_or_else(|| io::Error::other("no counter space"))?;
    let patience = Duration::from_secs(60);
    let mut refused: Option<Instant> = None;
    for number in from..to {
        let row = rows.row(number);
        let values: [(usize, i64); FIELDS] = std::array::from_fn(|field| (field, row[field]));
        // A connection makes the same check after each event-loop iteration.
        while number % 64 == 0
            && (engines.durability().is_crowded()
                || engines.durability().committer().is_late()
                || engines.durability().refusal().is_some()
                || space.memory_bytes() > space.memory_limit_bytes() / 32 * 31)
            && refused.is_none_or(|since| since.elapsed() < patience)
        {
            refused.get_or_insert_with(Instant::now);
            std::thread::sleep(Duration::from_millis(1));
        }
        loop {
            match engines.set(space, id(number), &values) {
                Ok(_) => break,
                Err(WriteError::Counter(counter::Error::Full { .. }))
                    if refused.get_or_insert_with(Instant::now).elapsed() < patience =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(io::Error::other(format!("row {number}: {error}"))),
            }
        }
        if number % 64 == 63 {
            refused = None;
        }
    }
    Ok(())
}

/// Handle of the server process.
pub(crate) struct Node {
    child: Child,
    peak: Peak,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    port: u16,
    /// Time from the start of the process until it accepted connections.
    pub(crate) started_in: Duration,
}

impl Node {
    pub(crate) fn start(dir: &Path, setup: &Setup) -> io::Result<Node> {
        let began = Instant::now();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["node", "--dir"])
            .arg(dir)
            .args([
                "--limit-mib",
                &setup.limit_mib.to_string(),
                "--cache-mib",
                &setup.cache_mib.to_string(),
            ])
            .args([
                "--per-table",
                &setup.per_table.to_string(),
                "--read-threads",
                &setup.read_threads.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("stdout is not piped");
        let orders = child.stdin.take().ok_or_else(missing)?;
        let mut answers = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        let mut line = String::new();
        answers.read_line(&mut line)?;
        let port = line.trim().parse().map_err(|_| io::Error::other("the node did not start"))?;
        let peak = Peak::watch(child.id(), port);
        Ok(Node { child, peak, orders, answers, port, started_in: began.elapsed() })
    }

    /// Starts loading rows `from..to`.
    pub(crate) fn begin_load(&mut self, from: u64, to: u64) -> io::Result<()> {
        writeln!(self.orders, "{from} {to}")
    }

    /// Waits until the rows are loaded.
    pub(crate) fn end_load(&mut self) -> io::Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.trim() == "done" {
            Ok(())
        } else {
            Err(io::Error::other("the node exited during the load"))
        }
    }

    /// Makes the server process read rows, without sockets.
    pub(crate) fn read_inside(&mut self, pattern: &Pattern) -> io::Result<Measured> {
        let Pattern { cold, rounds, readers, number, seed } = pattern;
        writeln!(self.orders, "{cold} {rounds} {readers} {number} {seed}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        line.trim().parse()
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Stops the process cleanly. Returns the duration.
    pub(crate) fn stop(mut self) -> io::Result<Duration> {
        let began = Instant::now();
        drop(self.orders);
        let status = self.child.wait()?;
        if status.success() {
            Ok(began.elapsed())
        } else {
            Err(io::Error::other(format!("the node exited with {status}")))
        }
    }

    pub(crate) fn connect(&self) -> io::Result<CheckedConnection> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        Ok(CheckedConnection { stream, buffer: Vec::new() })
    }

    pub(crate) fn client(&self) -> io::Result<Client> {
        Client::connect(("127.0.0.1", self.port))
    }

    /// Sends a command and returns its reply as text.
    pub(crate) fn call(&self, words: &[&str]) -> io::Result<String> {
        let mut client = self.client()?;
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        match client.call(&words)? {
            BulkString(text) | SimpleString(text) => {
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
            Integer(number) => Ok(number.to_string()),
            Error(text) => Err(io::Error::other(text)),
            other => Ok(format!("{other:?}")),
        }
    }

    /// Returns a field of INFO.
    pub(crate) fn text(&self, name: &str) -> io::Result<String> {
        let text = self.call(&["INFO"])?;
        let value = info_field(&text, name).map(str::to_owned);
        value.ok_or_else(|| io::Error::other(format!("INFO has no field {name}")))
    }

    pub(crate) fn info(&self, name: &str) -> io::Result<f64> {
        let text = self.text(name)?;
        text.parse()
            .map_err(|_| io::Error::other(format!("{name} in INFO is not a number: {text}")))
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns a field of the process's files in /proc: `status` in KiB, `io` in bytes or calls.
    pub(crate) fn proc(&self, file: &str, name: &str) -> f64 {
        proc_of(self.child.id(), file, name)
    }

    /// Resident memory in MiB, now and at its peak since [`Node::forget_peak`].
    pub(crate) fn resident_mib(&self) -> (f64, f64) {
        (self.proc("status", "VmRSS") / 1024.0, self.proc("status", "VmHWM") / 1024.0)
    }

    /// Memory fields of INFO at the sample closest to the peak since [`Node::forget_peak`].
    pub(crate) fn at_peak(&self) -> String {
        self.peak.seen.lock().map(|seen| seen.1.clone()).unwrap_or_default()
    }

    pub(crate) fn forget_peak(&self) -> io::Result<()> {
        if let Ok(mut seen) = self.peak.seen.lock() {
            *seen = (0.0, String::new());
        }
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5")
    }
}

/// Samples a process's memory twenty times per second until it is dropped.
struct Peak {
    seen: Arc<Mutex<(f64, String)>>,
}

impl Peak {
    fn watch(process: u32, port: u16) -> Peak {
        let seen = Arc::new(Mutex::new((0.0, String::new())));
        let ours = Arc::downgrade(&seen);
        std::thread::spawn(move || {
            let mut client = None;
            while let Some(seen) = ours.upgrade() {
                let resident = proc_of(process, "status", "VmRSS") / 1024.0;
                if let Ok(mut seen) = seen.lock()
                    && resident > seen.0 + 1.0
                {
                    *seen = (
                        resident,
                        format!(
                            "at {resident:.0}: {}",
                            parts(&mut client, port).unwrap_or_default()
                        ),
                    );
                }
                drop(seen);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Peak { seen }
    }
}

/// Memory fields of INFO in MiB.
fn parts(client: &mut Option<Client>, port: u16) -> io::Result<String> {
    if client.is_none() {
        *client = Some(Client::connect(("127.0.0.1", port))?);
    }
    let reply = match client {
        Some(client) => client.call(&[b"INFO"])?,
        None => return Ok(String::new()),
    };
    let BulkString(text) = reply else { return Err(io::Error::other("unexpected reply to INFO")) };
    let text = String::from_utf8_lossy(&text);
    let names = ["used_memory", "cold_cache_bytes", "cold_index_bytes", "log_queue_bytes"];
    let part = |name: &&str| {
        let value = info_field(&text, name)?;
        Some(format!("{name} {:.1}", value.parse::<f64>().ok()? / 1048576.0))
    };
    Ok(names.iter().filter_map(part).collect::<Vec<_>>().join(", "))
}

pub(crate) fn proc_of(process: u32, file: &str, name: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(f64::NAN)
}

/// A connection that compares replies with expected replies.
pub(crate) struct CheckedConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl CheckedConnection {
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads a reply that must equal `reply`.
    pub(crate) fn expect(&mut self, reply: &[u8]) -> io::Result<()> {
        match self.differs(reply)? {
            None => Ok(()),
            Some(got) => {
                let at = (0..got).find(|&i| self.buffer[i] != reply[i]).unwrap_or(0);
                let show = |bytes: &[u8]| {
                    String::from_utf8_lossy(
                        &bytes[at.saturating_sub(40)..(at + 60).min(bytes.len())],
                    )
                    .into_owned()
                };
                let (found, wanted) = (show(&self.buffer[..got]), show(reply));
                Err(io::Error::other(format!("at byte {at}: expected {wanted:?}, found {found:?}")))
            }
        }
    }

    /// Reads a reply as long as `reply` and compares the two. If they differ, returns the number of
    /// bytes read so far. The connection must then not be used again.
    pub(crate) fn differs(&mut self, reply: &[u8]) -> io::Result<Option<usize>> {
        self.buffer.resize(reply.len(), 0);
        let mut got = 0;
        while got < reply.len() {
            let n = self.stream.read(&mut self.buffer[got..])?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let before = got;
            got += n;
            if self.buffer[before..got] != reply[before..got] {
                return Ok(Some(got));
            }
        }
        Ok(None)
    }
}
