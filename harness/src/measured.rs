//! A server process under measurement: ours or a peer, on a free port, in a folder of its own.

use node::client::Client;
use redis_protocol::resp2::types::OwnedFrame;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where a benchmark has its servers.
#[derive(clap::Args, Clone)]
pub struct Place {
    /// The program; by default the one beside this one.
    #[arg(long, global = true)]
    tidemark: Option<PathBuf>,
    /// Data folders are made here, and removed. It must be on the disk that is to be measured.
    #[arg(long, global = true, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// What takes long to load is kept in this folder, and copied from there by later runs of the
    /// same size.
    #[arg(long, global = true)]
    keep: Option<PathBuf>,
}

impl Place {
    /// Starts Tidemark there. See [`Server::tidemark`].
    pub fn tidemark(&self, fsync: &'static str, more: &str) -> io::Result<Server> {
        Server::tidemark(self.tidemark.as_deref(), &self.dir, fsync, more)
    }

    /// Starts the redis-server of the system there. See [`Server::redis`].
    pub fn redis(&self, options: &'static [&'static str]) -> io::Result<Server> {
        Server::redis(Path::new("redis-server"), &self.dir, options)
    }

    /// An empty server with what `fill` puts there, which the name says: now, or in an earlier run,
    /// if such data are kept. Data of another version may lack what this one would write: the
    /// keeper removes them.
    pub fn filled(
        &self,
        name: &str,
        mut server: Server,
        fill: impl FnOnce(&Server) -> io::Result<()>,
    ) -> io::Result<Server> {
        let Some(keep) = &self.keep else {
            fill(&server)?;
            return Ok(server);
        };
        let kept = keep.join(name);
        if kept.exists() {
            println!("{name}: as it was kept");
            server.empty()?;
            copy_files(&kept, server.folder.path())?;
        } else {
            fill(&server)?;
            server.client()?.call(&[b"SAVE"])?;
            server.kill()?;
            // Under its name once all of it is there.
            let half = keep.join(format!("{name}.half"));
            std::fs::create_dir_all(&half)?;
            copy_files(server.folder.path(), &half)?;
            std::fs::rename(half, kept)?;
        }
        server.again()?;
        Ok(server)
    }

    /// A new folder there.
    pub fn folder(&self) -> io::Result<tempfile::TempDir> {
        tempfile::tempdir_in(&self.dir)
    }
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    for file in std::fs::read_dir(from)? {
        let file = file?;
        std::fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

/// A Tidemark in this very process, with room for many posts and nothing synced: for what is
/// measured without sockets. Its folder goes with it.
pub fn in_process()
-> Result<(tidemark_server::Server, tempfile::TempDir), Box<dyn std::error::Error>> {
    let mut config = tidemark_server::config::Config::default();
    let folder = tempfile::tempdir()?;
    config.durability.dir = folder.path().to_path_buf();
    config.durability.fsync = tidemark_server::config::Fsync::No;
    config.server.workers = 1;
    config.counter[0].memory_limit_bytes = 8 << 30;
    let server = tidemark_server::start(config, std::net::TcpListener::bind("127.0.0.1:0")?)?;
    Ok((server, folder))
}

/// How a server is started in a folder, on a port.
type Start = Box<dyn Fn(&Path, u16) -> Command + Send + Sync>;

/// A server process in a folder of its own. Killed, and the folder removed, when dropped.
pub struct Server {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
    start: Start,
}

impl Server {
    /// Starts what `start` says, in a new folder under `dir`, and waits until it answers.
    pub fn new(
        dir: &Path,
        start: impl Fn(&Path, u16) -> Command + Send + Sync + 'static,
    ) -> io::Result<Server> {
        let folder = tempfile::tempdir_in(dir)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = start(folder.path(), port).spawn()?;
        let server = Server { child, port, folder, start: Box::new(start) };
        server.ready()?;
        Ok(server)
    }

    /// Tidemark: the program, or the one beside this one; `more` is what its configuration says
    /// beside durability.
    pub fn tidemark(
        program: Option<&Path>,
        dir: &Path,
        fsync: &'static str,
        more: &str,
    ) -> io::Result<Server> {
        let beside = || Ok::<_, io::Error>(std::env::current_exe()?.with_file_name("tidemark"));
        let program = program.map(PathBuf::from).map_or_else(beside, Ok)?;
        let config = format!("[durability]\nsnapshot_every_s = 0\nsnapshot_log_bytes = 0\n{more}");
        Server::new(dir, move |folder, port| {
            let file = folder.join("tidemark.toml");
            // Without it the server says what is missing.
            let _ = std::fs::write(&file, &config);
            let mut command = Command::new(&program);
            command
                .args(["serve", "--fsync", fsync, "--port", &port.to_string(), "--config"])
                .arg(file);
            command.arg("--dir").arg(folder).env("RUST_LOG", "warn");
            command
        })
    }

    /// A server that takes redis-server's arguments.
    pub fn redis(
        program: &Path,
        dir: &Path,
        options: &'static [&'static str],
    ) -> io::Result<Server> {
        let program = program.to_owned();
        Server::new(dir, move |folder, port| {
            let mut command = Command::new(&program);
            command
                .args([
                    "--port",
                    &port.to_string(),
                    "--save",
                    "",
                    "--auto-aof-rewrite-percentage",
                    "0",
                ])
                .args(options);
            command.arg("--dir").arg(folder).stdout(Stdio::null());
            command
        })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A connection.
    pub fn client(&self) -> io::Result<Client> {
        Client::connect(("127.0.0.1", self.port))
    }

    /// Waits until it has loaded its data.
    fn ready(&self) -> io::Result<()> {
        let started = Instant::now();
        while !self
            .client()
            .and_then(|mut c| c.call(&[b"PING"]))
            .is_ok_and(|r| !matches!(r, OwnedFrame::Error(_)))
        {
            if started.elapsed() > Duration::from_secs(600) {
                return Err(io::Error::other("the server does not get ready"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Kills it and starts it again. Gives wall-clock and CPU seconds until it is ready.
    pub fn restart(&mut self) -> io::Result<(f64, f64)> {
        self.kill()?;
        self.again()
    }

    /// Kills it; its folder stays.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Kills it, and removes all files of its folder.
    pub fn empty(&mut self) -> io::Result<()> {
        self.kill()?;
        for file in std::fs::read_dir(self.folder.path())? {
            std::fs::remove_file(file?.path())?;
        }
        Ok(())
    }

    /// Starts it again after it was killed, as [`Server::restart`] does.
    pub fn again(&mut self) -> io::Result<(f64, f64)> {
        let started = Instant::now();
        self.child = (self.start)(self.folder.path(), self.port).spawn()?;
        self.ready()?;
        Ok((started.elapsed().as_secs_f64(), self.cpu_s()))
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) -> io::Result<()> {
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("the server ended with {status}")))
        }
    }

    /// User and system time of the process so far, in seconds, to a hundredth; threads that have
    /// ended included.
    pub fn cpu_s(&self) -> f64 {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // Behind the program's name, which may hold spaces: fields 14 and 15 of the whole.
        let fields: Vec<f64> = stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .split(' ')
            .filter_map(|f| f.parse().ok())
            .collect();
        // The state, a letter, is not among them; a server whose fields are missing shows as NaN.
        let ticks =
            fields.get(10).zip(fields.get(11)).map_or(f64::NAN, |(user, system)| user + system);
        ticks / rustix::param::clock_ticks_per_second() as f64
    }

    /// Time on a processor of all threads that it has now, in seconds, to a few milliseconds.
    pub fn threads_cpu_s(&self) -> f64 {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.child.id())) else {
            return f64::NAN;
        };
        let of_thread = |dir: PathBuf| {
            let text = std::fs::read_to_string(dir.join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        };
        threads.flatten().filter_map(|thread| of_thread(thread.path())).sum::<f64>() / 1e9
    }

    /// A line of INFO.
    pub fn info(&self, name: &str) -> io::Result<String> {
        let reply = self.client()?.call(&[b"INFO"])?;
        let OwnedFrame::BulkString(text) = reply else {
            return Err(io::Error::other(format!("INFO: {reply:?}")));
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value
            .map(|v| v.trim().to_owned())
            .ok_or_else(|| io::Error::other(format!("INFO has no {name}")))
    }

    /// Resident anonymous memory, in MiB: without the page cache.
    pub fn memory_mib(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
        line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok())
            .map_or(f64::NAN, |kib| kib / 1024.0)
    }

    /// Bytes of its files whose names end so, in this folder and those in it.
    pub fn bytes_of(&self, ending: &str) -> u64 {
        fn sum(dir: &Path, ending: &str) -> u64 {
            let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
            entries
                .flatten()
                .map(|e| match e.path() {
                    path if path.is_dir() => sum(&path, ending),
                    path if path.to_string_lossy().ends_with(ending) => {
                        e.metadata().map_or(0, |m| m.len())
                    }
                    _ => 0,
                })
                .sum()
        }
        sum(self.folder.path(), ending)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
