//! Feed pages, side by side: Tidemark and real peers hold the same posts and flags, and are asked for the same pages by the same client.
//!
//! ```text
//! cargo build --release -p tidemark-server -p tidemark-bench
//! target/release/feed                                the table and the plots, into docs/performance/
//! target/release/feed --short                        the cells that matter most, in less than 100 s, to the terminal
//! target/release/feed --peer valkey=PATH             with another server that takes redis-server's arguments
//! ```
//!
//! Every server has one core, the client another. What counts is *pages per second of the server's own CPU time* (all its threads, from
//! `/proc/PID/task/*/schedstat`): that is what a page costs, on a noisy machine, too. Layouts are in `layout`, the data in `data`, the
//! load in `load`. Every reply of a run without likes is compared, byte for byte, with the one that was checked against the data.

mod data;
mod layout;
mod load;
mod plot;
mod pool;
mod report;

use clap::Parser;
use data::{Data, From, Liked};
use layout::Layout;
use load::{Likes, closed, open};
use pool::Pool;
use report::{Cell, Latencies, Loaded, Report};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tidemark_bench::server::Server;

/// Measures feed pages beside real peers.
#[derive(Parser)]
struct Args {
    /// The program; by default the one beside this one.
    #[arg(long)]
    tidemark: Option<PathBuf>,
    /// Another server that takes redis-server's arguments: NAME=PATH. May be repeated; `redis-server` of the system is always there.
    #[arg(long)]
    peer: Vec<String>,
    /// Posts.
    #[arg(long, default_value_t = 1_000_000)]
    posts: u64,
    /// Flags: likes and reads of viewers.
    #[arg(long, default_value_t = 1_000_000)]
    flags: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The cells that matter most only; files only if `--out` says where.
    #[arg(long)]
    short: bool,
    /// Tidemark only, at these pipelines: for a profiler.
    #[arg(long, value_delimiter = ',')]
    only: Vec<usize>,
    /// Seed of everything.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the table and the plots go; docs/performance if all cells are measured.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Data folders are made here, and removed.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
}

/// A server with the data in one layout.
struct Subject {
    name: String,
    server: usize,
    layout: Layout,
}

/// What is measured: the size of a page, where its posts come from, connections, pipeline.
type Load = (usize, From, usize, usize);

const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;
/// Pages that are asked for again and again.
const POOL: usize = 8192;

fn pin(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Servers inherit the core of the thread that starts them.
fn on_server_core(start: impl FnOnce() -> io::Result<Server>) -> io::Result<Server> {
    pin(SERVER_CORE)?;
    let server = start();
    pin(CLIENT_CORE)?;
    server
}

struct Bench {
    args: Args,
    data: Data,
    servers: Vec<Server>,
    /// Per server.
    liked: Vec<Liked>,
    subjects: Vec<Subject>,
    rng: fastrand::Rng,
    report: Report,
    pools: HashMap<(usize, usize, bool), Rc<Pool>>,
}

impl Bench {
    /// Starts a server and loads the data; `layouts` read the same store.
    fn add(&mut self, name: &str, layouts: &[Layout], start: impl FnOnce() -> io::Result<Server>) -> io::Result<()> {
        let server = on_server_core(start)?;
        let first = layouts[0];
        let mut client = server.client()?;
        if first == Layout::Bloom && client.call(&[b"BF.ADD", b"probe", b"1"]).is_ok_and(|r| is_error(&r)) {
            return Ok(());
        }
        let used = || -> io::Result<f64> { Ok(server.info("used_memory")?.parse().unwrap_or(f64::NAN)) };
        let (posts, pairs) = (self.data.counts.len() as f64, self.data.pairs() as f64);
        let (empty, cpu, started) = (used()?, server.threads_cpu_s(), Instant::now());
        first.load_posts(&self.data, &mut client)?;
        let (with_posts, posts_cpu, seconds) = (used()?, server.threads_cpu_s() - cpu, started.elapsed().as_secs_f64());
        let cpu = server.threads_cpu_s();
        first.load_flags(&self.data, &mut client)?;
        let (with_flags, flags_cpu) = (used()?, server.threads_cpu_s() - cpu);
        self.report.loaded(Loaded {
            subject: format!("{name} {}", first.name()),
            bytes_per_post: (with_posts - empty) / posts,
            bytes_per_pair: (with_flags - with_posts) / pairs,
            posts_per_s: posts / seconds,
            posts_per_cpu_s: posts / posts_cpu,
            pairs_per_cpu_s: pairs / flags_cpu,
        });
        self.servers.push(server);
        self.liked.push(Liked::default());
        let server = self.servers.len() - 1;
        let subject = |&layout: &Layout| Subject { name: format!("{name} {}", layout.name()), server, layout };
        self.subjects.extend(layouts.iter().map(subject));
        Ok(())
    }

    fn start_all(&mut self) -> io::Result<()> {
        let (dir, tidemark) = (self.args.dir.clone(), self.args.tidemark.clone());
        let ours: &[Layout] =
            if self.args.only.is_empty() { &[Layout::Feed, Layout::Binary, Layout::Stock] } else { &[Layout::Feed] };
        self.add("tidemark", ours, || {
            Server::tidemark(tidemark.as_deref(), &dir, "everysec", "[server]\nworkers = 1\n")
        })?;
        if !self.args.only.is_empty() {
            return Ok(());
        }
        let mut peers = vec![("redis".to_owned(), PathBuf::from("redis-server"))];
        for peer in &self.args.peer {
            let (name, path) = peer.split_once('=').ok_or_else(|| io::Error::other("--peer takes NAME=PATH"))?;
            peers.push((name.to_owned(), PathBuf::from(path)));
        }
        let layouts: &[Layout] = if self.args.short {
            &[Layout::Hash, Layout::String]
        } else {
            &[Layout::Hash, Layout::String, Layout::Bucket, Layout::Bloom]
        };
        for (name, path) in peers {
            for layout in layouts {
                self.add(&name, &[*layout], || redis(&path, &dir))?;
            }
        }
        Ok(())
    }

    /// Pages with their checked replies; made once, until somebody likes something.
    fn pool(&mut self, subject: usize, size: usize, from: From) -> io::Result<Rc<Pool>> {
        let key = (subject, size, from == From::Hot);
        if let Some(pool) = self.pools.get(&key) {
            return Ok(pool.clone());
        }
        let subject = &self.subjects[subject];
        // The same pages for everybody.
        let mut rng = fastrand::Rng::with_seed(self.args.seed + size as u64);
        let pages = self.data.pages(POOL, size, from, &mut rng);
        let (pool, checked) = Pool::of_pages(
            &self.servers[subject.server],
            subject.layout,
            (&self.data, &self.liked[subject.server]),
            &pages,
        )?;
        self.report.checked(&subject.name, checked);
        Ok(self.pools.entry(key).or_insert(Rc::new(pool)).clone())
    }

    /// All subjects, one after the other, under one load.
    fn cell(&mut self, load: Load) -> io::Result<()> {
        let (size, from, connections, pipeline) = load;
        for subject in 0..self.subjects.len() {
            let pool = self.pool(subject, size, from)?;
            let server = &self.servers[self.subjects[subject].server];
            let done = closed(server, &pool, None, connections, pipeline, self.time())?;
            self.report.cell(Cell::new(&self.subjects[subject].name, load, "read", &done, pool.bytes()));
        }
        Ok(())
    }

    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.args.seconds)
    }

    /// The ceilings: PING, and an ECHO that moves as many bytes as a page of 20.
    fn ceilings(&mut self, connections: usize, pipeline: usize) -> io::Result<()> {
        for subject in 0..self.subjects.len() {
            if !matches!(self.subjects[subject].layout, Layout::Feed | Layout::Hash) {
                continue;
            }
            let bytes = self.pool(0, 20, From::Uniform)?.bytes();
            let (mut ping, mut echo) = (Vec::new(), Vec::new());
            layout::command(&["PING"], &mut ping);
            // In both directions together as many as the page, with what the protocol adds.
            let text = "x".repeat(((bytes.0 + bytes.1 - 40.0) / 2.0) as usize);
            layout::command(&["ECHO", &text], &mut echo);
            let reply = format!("${}\r\n{text}\r\n", text.len());
            for (what, request, reply) in [("ping", ping, "+PONG\r\n"), ("echo", echo, &*reply)] {
                let pool = Pool::of(&request, reply.as_bytes(), POOL);
                let server = &self.servers[self.subjects[subject].server];
                let done = closed(server, &pool, None, connections, pipeline, self.time())?;
                let load = (0, From::Uniform, connections, pipeline);
                let name = self.subjects[subject].name.split(' ').next().unwrap_or_default().to_owned();
                self.report.cell(Cell::new(&name, load, what, &done, pool.bytes()));
            }
        }
        Ok(())
    }

    /// One request of ten is a like. Afterwards the counters of posts that were liked are compared.
    fn mixed(&mut self, connections: usize, pipeline: usize) -> io::Result<()> {
        for subject in 0..self.subjects.len() {
            let (pool, time) = (self.pool(subject, 20, From::Uniform)?, self.time());
            let Subject { name, server, layout } = &self.subjects[subject];
            let (liked, server, layout) = (&mut self.liked[*server], &self.servers[*server], *layout);
            let (mut rng, data) = (self.rng.fork(), &self.data);
            let mut next = |out: &mut Vec<u8>| {
                let (viewer, post) = liked.next(data, &mut rng);
                layout.like(viewer, u64::from(post), out)
            };
            let done = closed(server, &pool, Some(Likes { next: &mut next }), connections, pipeline, time)?;
            let load = (20, From::Uniform, connections, pipeline);
            self.report.cell(Cell::new(name, load, "90/10", &done, pool.bytes()));
            let (_, checked) = Pool::of_pages(server, layout, (data, liked), &liked.pages(500))?;
            // One in 10,000 is expected where a filter decides; where a set does, none.
            let most = if layout.is_ours() { 5 + checked.likes / 2_000 } else { 0 };
            eprintln!("       {name}: {} of {} likes were taken for given", checked.uncounted, checked.likes);
            if checked.uncounted > most {
                return Err(io::Error::other(format!(
                    "{} of {} likes were not counted",
                    checked.uncounted, checked.likes
                )));
            }
        }
        // Their replies show counters of before.
        self.pools.clear();
        Ok(())
    }

    /// Latencies of all at the same rates, and of each at two thirds of its own throughput.
    fn latencies(&mut self) -> io::Result<()> {
        for subject in 0..self.subjects.len() {
            let pool = self.pool(subject, 20, From::Uniform)?;
            let server = &self.servers[self.subjects[subject].server];
            let most = closed(server, &pool, None, 8, 1, self.time())?.per_s();
            for rate in [5_000.0, 10_000.0, most * 0.66] {
                if rate > most * 0.9 {
                    continue;
                }
                let latency = open(server, &pool, 8, rate, self.time() * 3, &mut self.rng)?;
                self.report.latency(Latencies { subject: self.subjects[subject].name.clone(), most, latency });
            }
        }
        Ok(())
    }

    /// Pages per CPU second of one worker and of two, which may use all cores, beside the client: it takes one of them, so what two can do
    /// is told by their CPU time.
    fn scaling(&mut self) -> io::Result<()> {
        let mut all = CpuSet::new();
        all.set(SERVER_CORE);
        all.set(CLIENT_CORE);
        sched_setaffinity(None, &all)?;
        for workers in [1, 2] {
            let more = format!("[server]\nworkers = {workers}\n");
            let server = Server::tidemark(self.args.tidemark.as_deref(), &self.args.dir, "everysec", &more)?;
            let mut client = server.client()?;
            Layout::Feed.load_posts(&self.data, &mut client)?;
            Layout::Feed.load_flags(&self.data, &mut client)?;
            let mut rng = fastrand::Rng::with_seed(self.args.seed + 20);
            let pages = self.data.pages(POOL, 20, From::Uniform, &mut rng);
            let (pool, _) = Pool::of_pages(&server, Layout::Feed, (&self.data, &Liked::default()), &pages)?;
            let done = closed(&server, &pool, None, 8, 8, self.time() * 2)?;
            self.report.scaling.push((workers, done.per_s(), done.per_cpu_s()));
        }
        pin(CLIENT_CORE)
    }

    fn idle(&mut self) -> io::Result<()> {
        let server = &self.servers[0];
        let clients: Vec<_> = (0..100).map(|_| server.client()).collect::<io::Result<_>>()?;
        std::thread::sleep(Duration::from_secs(2));
        let (cpu, started) = (server.cpu_s(), Instant::now());
        std::thread::sleep(Duration::from_secs(20));
        self.report.idle = Some((server.cpu_s() - cpu) / started.elapsed().as_secs_f64());
        drop(clients);
        Ok(())
    }

    fn run(&mut self) -> io::Result<()> {
        self.start_all()?;
        if !self.args.only.is_empty() {
            for pipeline in self.args.only.clone() {
                self.cell((20, From::Uniform, 8, pipeline))?;
            }
            return Ok(());
        }
        for pipeline in [1, 8, 32] {
            self.ceilings(8, pipeline)?;
            self.cell((20, From::Uniform, 8, pipeline))?;
        }
        if self.args.short {
            return self.mixed(8, 8);
        }
        for pipeline in [1, 8, 32] {
            self.mixed(8, pipeline)?;
        }
        self.latencies()?;
        self.scaling()?;
        self.idle()?;
        self.save()?;
        for pipeline in [1, 8, 32] {
            self.cell((20, From::Hot, 8, pipeline))?;
            for connections in [1, 64] {
                self.cell((20, From::Uniform, connections, pipeline))?;
            }
            for size in [32, 50] {
                self.cell((size, From::Uniform, 8, pipeline))?;
            }
            // A run that is cut short leaves what it has.
            self.save()?;
        }
        Ok(())
    }

    /// Writes table and plots, if they are wanted.
    fn save(&self) -> io::Result<()> {
        let is_whole = !self.args.short && self.args.only.is_empty();
        if let Some(out) = self.args.out.clone().or(is_whole.then(|| PathBuf::from("docs/performance"))) {
            std::fs::create_dir_all(&out)?;
            std::fs::write(out.join("feed.md"), self.report.markdown())?;
            plot::all(&self.report, &out)?;
        }
        Ok(())
    }
}

fn redis(program: &Path, dir: &Path) -> io::Result<Server> {
    const OPTIONS: &[&str] =
        &["--appendonly", "yes", "--appendfsync", "everysec", "--hash-max-listpack-entries", "512"];
    Server::redis(program, dir, OPTIONS)
}

fn is_error(reply: &redis_protocol::resp2::types::OwnedFrame) -> bool {
    matches!(reply, redis_protocol::resp2::types::OwnedFrame::Error(_))
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let mut rng = fastrand::Rng::with_seed(args.seed);
    let data = Data::new(args.posts, args.flags, &mut rng);
    pin(CLIENT_CORE)?;
    let report = Report::new(args.posts, data.pairs());
    let (servers, liked, subjects, pools) = Default::default();
    let mut bench = Bench { args, data, servers, liked, subjects, rng, report, pools };
    bench.run()?;
    println!("{}", bench.report.markdown());
    bench.save()
}
