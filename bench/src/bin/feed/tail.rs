//! Page latency while the server does other work: snapshots, table rollovers, spills, schema
//! changes and full syncs, repeated during a measurement. An open loop requests pages at 70 % of
//! the server's maximum throughput. Redis's PING at the same rate shows the latency of the machine
//! and the sockets.
//!
//! The server runs on one core and the client on another. The thread that triggers the work runs on
//! the server's core. The replica of a full sync runs on the client's core with `nice`, because
//! there are only two cores.

use crate::load::{Latency, closed, open};
use crate::pool::Pool;
use crate::{Bench, CLIENT_CORE, POOL, SERVER_CORE, data, on_server_core, pin, plot, redis};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tidemark_bench::play::{median, take_all, text};
use tidemark_bench::server::Server;

/// Request rate, as a share of the server's maximum throughput.
const SHARE: f64 = 0.7;
const CONNECTIONS: usize = 8;
/// Pause between two repetitions of the background work. The pause is short enough that the work
/// affects the slowest thousandth of the pages, and long enough that one core can do the work and
/// serve the pages.
const PAUSE: Duration = Duration::from_millis(400);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Number of rows in each table that is closed or spilled. `ROWS_AT_ONCE`: number of rows per
/// request.
const ROWS: u64 = 10_000;
const ROWS_AT_ONCE: u64 = 100;
/// Index of Redis's PING in `WORKLOADS`. `IDLE_WORKLOAD`: index of Tidemark's pages without other
/// work.
const PING: usize = 0;
const IDLE_WORKLOAD: usize = 1;

/// Work that the server does while it serves pages.
#[derive(Clone, Copy)]
enum BackgroundWork {
    Nothing,
    Snapshots,
    Rolls,
    Spills,
    SchemaChanges,
    FullSyncs,
}

const WORKLOADS: [(&str, BackgroundWork); 7] = [
    ("Redis: PING", BackgroundWork::Nothing),
    ("none", BackgroundWork::Nothing),
    ("snapshots", BackgroundWork::Snapshots),
    ("rolls of a table", BackgroundWork::Rolls),
    ("spills of 10,000 rows", BackgroundWork::Spills),
    ("a field added, and dropped", BackgroundWork::SchemaChanges),
    ("full syncs of a replica", BackgroundWork::FullSyncs),
];

impl Bench {
    /// Measures page latency under each kind of background work in turn, for several rounds.
    /// Returns the table as text.
    pub(crate) fn tail(&mut self) -> io::Result<String> {
        self.start_all()?;
        let pings = Pool::of(b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n", POOL);
        let pages = self.pool(0, 20, data::PostDistribution::Uniform)?;
        let peer = on_server_core(|| redis(Path::new("redis-server"), &self.args.dir))?;
        let ours = &self.servers[0];
        let time = self.time() * 4;
        let rate = closed(ours, &pages, None, CONNECTIONS, 1, time)?.per_s() * SHARE;
        run_command(ours, &["TM.SPACE", "CREATE", "bulk", "COUNTER", "fields", "like:16 read:16"])?;
        let mut replica = Replica { program: self.args.tidemark.clone(), server: None };
        let mut rows = 0;
        let mut seen: Vec<Vec<(Latency, u64)>> = vec![Vec::new(); WORKLOADS.len()];
        for _ in 0..self.args.rounds {
            for (at, (name, beside)) in WORKLOADS.into_iter().enumerate() {
                let (server, pool) = if at == PING { (&peer, &pings) } else { (ours, &*pages) };
                let over = AtomicBool::new(false);
                let (latency, times) = std::thread::scope(|scope| {
                    let (over, rows, replica) = (&over, &mut rows, &mut replica);
                    let dir = &self.args.dir;
                    let orders =
                        scope.spawn(move || orders(ours, beside, (rows, replica, dir), over));
                    let latency = open(server, pool, CONNECTIONS, rate, time, &mut self.rng);
                    over.store(true, Relaxed);
                    let times = orders
                        .join()
                        .map_err(|_| io::Error::other("the background work panicked"))??;
                    Ok::<_, io::Error>((latency?, times))
                })?;
                eprintln!("       {name}: p99.9 {:.0} us, {times} times", latency.p999);
                seen[at].push((latency, times));
            }
        }
        let table = table(&seen, rate)?;
        if let Some(out) = &self.args.out {
            std::fs::create_dir_all(out)?;
            draw(&seen, rate, out)?;
            std::fs::write(out.join("tail.md"), &table)?;
        }
        Ok(table)
    }
}

/// A replica that starts with an empty data folder for every sync.
struct Replica {
    program: Option<PathBuf>,
    server: Option<Server>,
}

impl Replica {
    /// Runs one full sync.
    fn sync(&mut self, dir: &Path, master: u16) -> io::Result<()> {
        let server = match &mut self.server {
            Some(server) => {
                server.empty()?;
                server.again()?;
                server
            }
            None => {
                let beside = std::env::current_exe()?.with_file_name("tidemark");
                let program = self.program.clone().unwrap_or(beside);
                let start = move |folder: &Path, port: u16| {
                    let mut command = Command::new("nice");
                    command.args(["-n", "19"]).arg(&program).args(["serve", "--dir"]).arg(folder);
                    command.args(["--port", &port.to_string(), "--admin-port", "0"]);
                    command.env("RUST_LOG", "warn");
                    command
                };
                self.server.insert(Server::new(dir, start)?)
            }
        };
        run_command(server, &["REPLICAOF", "127.0.0.1", &master.to_string()])?;
        while server.info("master_link_status")? != "up" {
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

/// Runs a command that must succeed.
fn run_command(server: &Server, words: &[&str]) -> io::Result<()> {
    let mut client = server.client()?;
    client.push(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
    take_all(&mut client)
}

/// Triggers the background work repeatedly until `over` is set. Returns how often the work
/// succeeded.
fn orders(
    server: &Server,
    beside: BackgroundWork,
    (rows, replica, dir): (&mut u64, &mut Replica, &Path),
    over: &AtomicBool,
) -> io::Result<u64> {
    let is_sync = matches!(beside, BackgroundWork::FullSyncs);
    pin(if is_sync { CLIENT_CORE } else { SERVER_CORE })?;
    let mut times = 0;
    while !over.load(Relaxed) {
        match beside {
            BackgroundWork::Nothing => {
                std::thread::sleep(POLL_INTERVAL);
                continue;
            }
            BackgroundWork::Snapshots => {
                run_command(server, &["BGSAVE"])?;
                while server.info("rdb_bgsave_in_progress")? != "0" {
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
            BackgroundWork::Rolls => {
                write(server, rows, ROWS_AT_ONCE)?;
                run_command(server, &["TM.ROLL", "bulk"])?;
            }
            BackgroundWork::Spills => {
                write(server, rows, ROWS)?;
                run_command(server, &["TM.ROLL", "bulk"])?;
                run_command(server, &["TM.SPILL", "bulk"])?;
            }
            BackgroundWork::SchemaChanges => {
                run_command(server, &["TM.SPACE", "ALTER", "post", "ADD", "spare:8"])?;
                std::thread::sleep(PAUSE / 2);
                run_command(server, &["TM.SPACE", "ALTER", "post", "DROP", "spare"])?;
            }
            BackgroundWork::FullSyncs => replica.sync(dir, server.port())?,
        }
        times += 1;
        std::thread::sleep(PAUSE);
    }
    Ok(times)
}

/// Writes new rows whose ids are greater than all existing ids.
fn write(server: &Server, rows: &mut u64, number: u64) -> io::Result<()> {
    let mut client = server.client()?;
    for _ in 0..number / ROWS_AT_ONCE {
        let mut words: Vec<Vec<u8>> = vec![b"CNT.MINCRBY".to_vec(), b"bulk".to_vec()];
        for _ in 0..ROWS_AT_ONCE {
            *rows += 1;
            words.extend([text(*rows), b"like".to_vec(), text(*rows % 1000 + 1)]);
        }
        client.push(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        take_all(&mut client)?;
    }
    Ok(())
}

/// Returns the median of one latency value over all rounds.
fn of(rounds: &[(Latency, u64)], what: fn(&Latency) -> f64) -> f64 {
    median(rounds.iter().map(|(latency, _)| what(latency)).collect())
}

fn table(seen: &[Vec<(Latency, u64)>], rate: f64) -> io::Result<String> {
    let mut out = format!(
        "# Page latency during other work\n\n\
         `target/release/feed --tail --out docs/performance` writes this page.\n\n\
         ![Percentiles of page latency during each kind of work](tail.svg)\n\n\
         Open loop: pages of 20 posts over 8 connections, {rate:.0} per second, which is 0.7 of \
         the server's maximum rate.\n\
         Latency in microseconds from the scheduled time of a page; medians of {} alternating \
         rounds.\n\
         Ratios are medians over the rounds, with minimum and maximum.\n\
         The server and its background work share one core; a replica shares the client's core, \
         with `nice`.\n\
         Spills include the writes of their rows.\n\n\
         | other work | runs per round | p50 | p99 | p99.9 | p99.9, ratio to Redis's PING | ratio \
         to no other work |\n\
         |---|---|---|---|---|---|---|\n",
        seen[PING].len()
    );
    for ((name, _), rounds) in WORKLOADS.iter().zip(seen) {
        let ratio = |to: usize| {
            let pairs = rounds.iter().zip(&seen[to]);
            let all: Vec<f64> = pairs.map(|((one, _), (other, _))| one.p999 / other.p999).collect();
            let least = all.iter().copied().fold(f64::INFINITY, f64::min);
            let most = all.iter().copied().fold(0.0, f64::max);
            format!("{:.2} ({least:.1} to {most:.1})", median(all))
        };
        let times = median(rounds.iter().map(|&(_, times)| times as f64).collect());
        writeln!(
            out,
            "| {name} | {times:.0} | {:.0} | {:.0} | {:.0} | {} | {} |",
            of(rounds, |l| l.p50),
            of(rounds, |l| l.p99),
            of(rounds, |l| l.p999),
            ratio(PING),
            ratio(IDLE_WORKLOAD)
        )
        .map_err(io::Error::other)?;
    }
    Ok(out)
}

fn draw(seen: &[Vec<(Latency, u64)>], rate: f64, out: &Path) -> io::Result<()> {
    let line = |((name, _), rounds): (&(&str, BackgroundWork), &Vec<(Latency, u64)>)| {
        let points = [
            (0.3, of(rounds, |l| l.p50)),
            (2.0, of(rounds, |l| l.p99)),
            (3.0, of(rounds, |l| l.p999)),
        ];
        ((*name).to_owned(), points.to_vec())
    };
    let lines: Vec<_> = WORKLOADS.iter().zip(seen).map(line).collect();
    plot::draw(
        &out.join("tail.svg"),
        &format!("Pages of 20 during other work, and PING: {rate:.0} per second, open loop"),
        plot::NINES,
        "microseconds",
        &lines,
    )
}
