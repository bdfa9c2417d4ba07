//! Compares the cost of feed pages in Tidemark and in other servers. All servers store the same
//! posts and flags, and serve the same pages to the same client.
//!
//! ```text
//! cargo build --release -p tidemark -p tidemark-bench
//! target/release/feed                      writes docs/performance/; takes seven minutes
//! target/release/feed --short              prints the main results; takes three minutes
//! target/release/feed --short --late       flags on old posts, in random order
//! target/release/feed --tail               page latency during snapshots and other work
//! target/release/feed --peer valkey=PATH   another server with redis-server's arguments
//! ```
//!
//! The server runs on one core and the client on another. The metric is *pages per second of the
//! server's CPU time* (all threads, from `/proc/PID/task/*/schedstat`), which is robust on a noisy
//! machine. The metric still varies by a tenth from second to second. Each cell of the report (a
//! server under a load) is therefore measured for half a second in each of several rounds. Cells
//! that are compared with each other are measured one right after the other. The report contains
//! the median of the ratios over all rounds, with minimum and maximum. The first round measures all
//! servers and layouts. Later rounds measure only Tidemark and the fastest layout of each other
//! server.
//!
//! `layout` defines the layouts, `data` generates the data, `load` is the load generator, `report`
//! computes the ratios. In runs without likes, every reply is compared byte for byte with a reply
//! that was checked against the data.

mod data;
mod layout;
mod load;
mod plot;
mod pool;
mod report;
mod table;
mod tail;

use clap::Parser;
use data::{Data, Liked, Order, PostDistribution};
use layout::Layout;
use load::{Likes, closed, open};
use pool::Pool;
use report::{Cell, Latencies, Load, Report, Sample, Scaling, TargetLoad};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tidemark_bench::server::Server;

/// Compares feed pages of Tidemark and other servers
#[derive(Parser)]
struct Args {
    /// Path of the tidemark binary [default: the one in the folder of this binary]
    #[arg(long)]
    tidemark: Option<PathBuf>,
    /// Another server that accepts redis-server's arguments: NAME=PATH. May be repeated; the
    /// system's redis-server is always measured
    #[arg(long)]
    peer: Vec<String>,
    /// Number of posts
    #[arg(long, default_value_t = 1_000_000)]
    posts: u64,
    /// Number of flags (likes and reads of viewers)
    #[arg(long, default_value_t = 1_000_000)]
    flags: u64,
    /// Flags on old posts: 70 % on the newest tenth of the posts and 30 % on any post, in random
    /// order; pages are measured after a minute without writes
    #[arg(long)]
    late: bool,
    /// Seconds per measurement
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Number of rounds of the most important measurements; all others have three
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Measures only the most important combinations of load and server; writes files only with
    /// `--out`
    #[arg(long)]
    short: bool,
    /// Measures only Tidemark at these pipeline depths, for a profiler
    #[arg(long, value_delimiter = ',')]
    only: Vec<usize>,
    /// Runs only Tidemark, in all layouts and with likes, and shuts it down cleanly, to collect a
    /// profile for a profile-guided build
    #[arg(long)]
    train: bool,
    /// Measures latencies of pages, and of Redis's PING, during snapshots, table rollovers, spills,
    /// schema changes and full syncs
    #[arg(long)]
    tail: bool,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the table and the plots [default: docs/performance if all cells are measured]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Parent of the temporary data folders
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
}

/// A server and one layout of its data.
struct Subject {
    name: String,
    server: usize,
    layout: Layout,
}

const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;
/// Number of distinct pages.
const POOL: usize = 8192;
/// With `--late`: time without writes before pages are measured.
const QUIET_TIME: Duration = Duration::from_secs(60);
/// Number of rounds of the less important measurements.
const FEW_ROUNDS: usize = 3;

fn pin(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Starts a server on the core reserved for servers. Child processes inherit the affinity of the
/// thread.
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
    /// Likes that each server has received.
    liked: Vec<Liked>,
    subjects: Vec<Subject>,
    rng: fastrand::Rng,
    report: Report,
    pools: HashMap<(usize, usize, bool), Rc<Pool>>,
}

impl Bench {
    /// Starts a server and loads the data. All `layouts` read the same data.
    fn add(
        &mut self,
        name: &str,
        layouts: &[Layout],
        start: impl FnOnce() -> io::Result<Server>,
    ) -> io::Result<()> {
        let server = on_server_core(start)?;
        let first = layouts[0];
        let mut client = server.client()?;
        if first == Layout::Bloom
            && client.call(&[b"BF.ADD", b"probe", b"1"]).is_ok_and(|r| is_error(&r))
        {
            return Ok(());
        }
        let used =
            || -> io::Result<f64> { Ok(server.info("used_memory")?.parse().unwrap_or(f64::NAN)) };
        let (posts, pairs) = (self.data.counts.len() as f64, self.data.pairs() as f64);
        let (empty, cpu, started) = (used()?, server.threads_cpu_s(), Instant::now());
        first.load_posts(&self.data, &mut client)?;
        let (with_posts, posts_cpu, seconds) =
            (used()?, server.threads_cpu_s() - cpu, started.elapsed().as_secs_f64());
        let cpu = server.threads_cpu_s();
        first.load_flags(&self.data, &mut client)?;
        let (with_flags, flags_cpu) = (used()?, server.threads_cpu_s() - cpu);
        self.report.loaded(TargetLoad {
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
        let subject = |&layout: &Layout| Subject {
            name: format!("{name} {}", layout.name()),
            server,
            layout,
        };
        self.subjects.extend(layouts.iter().map(subject));
        Ok(())
    }

    fn start_all(&mut self) -> io::Result<()> {
        let (dir, tidemark) = (self.args.dir.clone(), self.args.tidemark.clone());
        let ours: &[Layout] = if self.args.only.is_empty() {
            &[Layout::Feed, Layout::Binary, Layout::Stock]
        } else {
            &[Layout::Feed]
        };
        self.add("tidemark", ours, || {
            Server::tidemark(tidemark.as_deref(), &dir, "everysec", "[server]\nworkers = 1\n")
        })?;
        if self.args.train || self.args.tail || !self.args.only.is_empty() {
            return Ok(());
        }
        let mut peers = vec![("redis".to_owned(), PathBuf::from("redis-server"))];
        for peer in &self.args.peer {
            let (name, path) =
                peer.split_once('=').ok_or_else(|| io::Error::other("--peer takes NAME=PATH"))?;
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

    /// Returns pages with their checked replies, which are cached until a like changes the data.
    fn pool(
        &mut self,
        subject: usize,
        size: usize,
        from: PostDistribution,
    ) -> io::Result<Rc<Pool>> {
        let key = (subject, size, from == PostDistribution::Hot);
        if let Some(pool) = self.pools.get(&key) {
            return Ok(pool.clone());
        }
        let subject = &self.subjects[subject];
        // All servers and layouts serve the same pages.
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

    /// Returns the servers and layouts to measure in a round: all of them in the first round, later
    /// Tidemark and the fastest layout of each other server.
    fn subjects(&self, what: &'static str, load: Load, round: usize) -> Vec<usize> {
        let first = |index: usize| {
            let cell = self.report.find(&self.subjects[index].name, what, load);
            cell.map_or(0.0, Cell::per_cpu_s)
        };
        let is_wanted = |index: usize| match self.subjects[index].layout {
            Layout::Feed | Layout::Binary => true,
            Layout::Stock => false,
            _ => {
                let mut rivals = (0..self.subjects.len()).filter(|&other| {
                    server_name(&self.subjects[other].name)
                        == server_name(&self.subjects[index].name)
                });
                rivals.all(|other| first(other) <= first(index))
            }
        };
        (0..self.subjects.len()).filter(|&index| round == 0 || is_wanted(index)).collect()
    }

    /// Runs one round of a load: measures each server and layout once.
    fn pages(&mut self, load: Load, round: usize) -> io::Result<()> {
        for subject in self.subjects("read", load, round) {
            self.page(subject, load, round)?;
        }
        Ok(())
    }

    fn page(&mut self, subject: usize, load: Load, round: usize) -> io::Result<()> {
        let pool = self.pool(subject, load.size, load.from)?;
        let server = &self.servers[self.subjects[subject].server];
        let done = closed(server, &pool, None, load.connections, load.pipeline, self.time())?;
        self.report.sample(
            &self.subjects[subject].name,
            "read",
            load,
            pool.bytes(),
            Sample::new(round, &done),
        );
        Ok(())
    }

    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.args.seconds)
    }

    /// Runs one round of the main measurements and their upper bounds: Tidemark's PING and page,
    /// the other servers' pages, Tidemark's ECHO and packed page.
    fn base(&mut self, pipeline: usize, round: usize) -> io::Result<()> {
        let load = Load::base(pipeline);
        let all = self.subjects("read", load, round);
        self.ceiling(0, "ping", load, round)?;
        self.page(0, load, round)?;
        for &subject in
            all.iter().filter(|&&s| !self.subjects[s].layout.is_ours()).collect::<Vec<_>>()
        {
            self.page(subject, load, round)?;
        }
        self.ceiling(0, "echo", load, round)?;
        for subject in all {
            match self.subjects[subject].layout {
                Layout::Binary | Layout::Stock => self.page(subject, load, round)?,
                Layout::Hash if round == 0 => {
                    self.ceiling(subject, "ping", load, round)?;
                    self.ceiling(subject, "echo", load, round)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Measures PING, or an ECHO with as many bytes as a page of 20.
    fn ceiling(
        &mut self,
        subject: usize,
        what: &'static str,
        load: Load,
        round: usize,
    ) -> io::Result<()> {
        let bytes = self.pool(0, 20, PostDistribution::Uniform)?.bytes();
        // Request and reply together have as many bytes as the request and the reply of a page,
        // including protocol overhead.
        let text = "x".repeat(((bytes.0 + bytes.1 - 40.0) / 2.0) as usize);
        let mut request = Vec::new();
        let reply = if what == "ping" {
            layout::command(&["PING"], &mut request);
            "+PONG\r\n".to_owned()
        } else {
            layout::command(&["ECHO", &text], &mut request);
            format!("${}\r\n{text}\r\n", text.len())
        };
        let pool = Pool::of(&request, reply.as_bytes(), POOL);
        let Subject { name, server, .. } = &self.subjects[subject];
        let done = closed(
            &self.servers[*server],
            &pool,
            None,
            load.connections,
            load.pipeline,
            self.time(),
        )?;
        let load = Load { size: 0, ..load };
        self.report.sample(server_name(name), what, load, pool.bytes(), Sample::new(round, &done));
        Ok(())
    }

    /// Measures pages mixed with likes, one in ten requests.
    fn mixed(&mut self, pipeline: usize, round: usize) -> io::Result<()> {
        let load = Load::base(pipeline);
        for subject in self.subjects("90/10", load, round) {
            let (pool, time) = (self.pool(subject, 20, PostDistribution::Uniform)?, self.time());
            let Subject { name, server, layout } = &self.subjects[subject];
            let (liked, server, layout) =
                (&mut self.liked[*server], &self.servers[*server], *layout);
            let (mut rng, data) = (self.rng.fork(), &self.data);
            let mut next = |out: &mut Vec<u8>| {
                let (viewer, post) = liked.next(data, &mut rng);
                layout.like(viewer, u64::from(post), out)
            };
            let likes = Some(Likes { next: &mut next });
            let done = closed(server, &pool, likes, load.connections, load.pipeline, time)?;
            self.report.sample(name, "90/10", load, pool.bytes(), Sample::new(round, &done));
        }
        Ok(())
    }

    /// Checks the counters of liked posts. Invalidates all checked pages.
    fn check_likes(&mut self) -> io::Result<()> {
        self.pools.clear();
        for Subject { name, server, layout } in &self.subjects {
            let liked = &self.liked[*server];
            let (_, checked) = Pool::of_pages(
                &self.servers[*server],
                *layout,
                (&self.data, liked),
                &liked.pages(500),
            )?;
            // With a Bloom filter, one like in 10,000 is expected to be a false positive; with a
            // set, none.
            let most = if layout.is_ours() { 5 + checked.likes / 2_000 } else { 0 };
            eprintln!(
                "       {name}: {} of {} likes were false positives",
                checked.uncounted, checked.likes
            );
            if checked.uncounted > most {
                return Err(io::Error::other(format!(
                    "{} of {} likes were not counted",
                    checked.uncounted, checked.likes
                )));
            }
        }
        Ok(())
    }

    /// Measures latencies of all servers at the same rates, and of each at two thirds of its
    /// throughput.
    fn latencies(&mut self) -> io::Result<()> {
        for subject in 0..self.subjects.len() {
            let pool = self.pool(subject, 20, PostDistribution::Uniform)?;
            let server = &self.servers[self.subjects[subject].server];
            let most = closed(server, &pool, None, 8, 1, self.time())?.per_s();
            for rate in [5_000.0, 10_000.0, most * 0.66] {
                if rate > most * 0.9 {
                    continue;
                }
                let latency = open(server, &pool, 8, rate, self.time() * 3, &mut self.rng)?;
                self.report.latency(Latencies {
                    subject: self.subjects[subject].name.clone(),
                    most,
                    latency,
                });
            }
        }
        Ok(())
    }

    /// Compares one worker and its client on one core with two workers and their client on two
    /// cores, in alternating measurements. The client's share of the CPU is the same in both.
    fn scaling(&mut self) -> io::Result<()> {
        let cores = |number: usize| {
            let mut set = CpuSet::new();
            [SERVER_CORE, CLIENT_CORE][..number].iter().for_each(|&core| set.set(core));
            sched_setaffinity(None, &set)
        };
        let mut both = Vec::new();
        for workers in [1, 2] {
            cores(workers)?;
            let more = format!("[server]\nworkers = {workers}\n");
            let server =
                Server::tidemark(self.args.tidemark.as_deref(), &self.args.dir, "everysec", &more)?;
            let mut client = server.client()?;
            Layout::Feed.load_posts(&self.data, &mut client)?;
            Layout::Feed.load_flags(&self.data, &mut client)?;
            let mut rng = fastrand::Rng::with_seed(self.args.seed + 20);
            let pages = self.data.pages(POOL, 20, PostDistribution::Uniform, &mut rng);
            let (pool, _) =
                Pool::of_pages(&server, Layout::Feed, (&self.data, &Liked::default()), &pages)?;
            both.push((workers, server, pool));
        }
        for round in 0..self.args.rounds {
            for (workers, server, pool) in &both {
                cores(*workers)?;
                let done = closed(server, pool, None, 8, 8, self.time() * 2)?;
                self.report
                    .scaling(Scaling { workers: *workers, sample: Sample::new(round, &done) });
            }
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
        if self.args.late {
            std::thread::sleep(QUIET_TIME);
        }
        let (rounds, pipelines) = (self.args.rounds, [1, 8, 32]);
        if self.args.train {
            return self.train();
        }
        if !self.args.only.is_empty() {
            for round in 0..rounds {
                for pipeline in self.args.only.clone() {
                    self.pages(Load::base(pipeline), round)?;
                }
            }
            return Ok(());
        }
        for round in 0..rounds {
            for pipeline in pipelines {
                self.base(pipeline, round)?;
            }
        }
        if !self.args.short {
            // Save now, so that an interrupted run keeps its results.
            self.save()?;
            self.latencies()?;
            self.scaling()?;
            self.idle()?;
            self.save()?;
            for pipeline in pipelines {
                for round in 0..FEW_ROUNDS {
                    let base = Load::base(pipeline);
                    for connections in [1, 64] {
                        self.pages(Load { connections, ..base }, round)?;
                    }
                    self.pages(Load { from: PostDistribution::Hot, ..base }, round)?;
                    for size in [32, 50] {
                        self.pages(Load { size, ..base }, round)?;
                    }
                }
                self.save()?;
            }
        }
        // Measure likes last, because they change the pages.
        let liking = if self.args.short { &pipelines[1..2] } else { &pipelines[..] };
        for round in 0..rounds {
            for &pipeline in liking {
                self.mixed(pipeline, round)?;
            }
        }
        self.check_likes()
    }

    fn train(&mut self) -> io::Result<()> {
        for pipeline in [1, 8, 32] {
            self.pages(Load::base(pipeline), 0)?;
            self.mixed(pipeline, 0)?;
            // Likes have changed the counters.
            self.check_likes()?;
        }
        // SHUTDOWN closes the connection without a reply.
        let _ = self.servers[0].client()?.call(&[b"SHUTDOWN"]);
        self.servers[0].wait()
    }

    /// Writes the table and the plots if requested.
    fn save(&self) -> io::Result<()> {
        let is_whole = !self.args.short && !self.args.train && self.args.only.is_empty();
        if let Some(out) =
            self.args.out.clone().or(is_whole.then(|| PathBuf::from("docs/performance")))
        {
            std::fs::create_dir_all(&out)?;
            std::fs::write(out.join("feed.md"), table::markdown(&self.report))?;
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

/// Returns the server's name, the part before the layout.
fn server_name(subject: &str) -> &str {
    subject.split(' ').next().unwrap_or_default()
}

fn is_error(reply: &client::Reply) -> bool {
    matches!(reply, client::Reply::Error(_))
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let mut rng = fastrand::Rng::with_seed(args.seed);
    let order = if args.late { Order::Random } else { Order::Time };
    let data = Data::new(args.posts, args.flags, order, &mut rng);
    pin(CLIENT_CORE)?;
    let report = Report::new(args.posts, data.pairs());
    let (servers, liked, subjects, pools) = Default::default();
    let mut bench = Bench { args, data, servers, liked, subjects, rng, report, pools };
    if bench.args.tail {
        println!("{}", bench.tail()?);
        return Ok(());
    }
    bench.run()?;
    println!("{}", table::markdown(&bench.report));
    bench.save()
}
