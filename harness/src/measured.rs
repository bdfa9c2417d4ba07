//! A measured server process: Tidemark or a server for comparison, on a free port, in its own
//! folder.

use client::{Client, Reply, info_field};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Binary and folders of the servers of a benchmark.
#[derive(clap::Args, Clone)]
pub struct ServerFiles {
    /// Path of the tidemark binary [default: the one in the folder of this binary]
    #[arg(long, global = true)]
    tidemark: Option<PathBuf>,
    /// Parent of the temporary data folders; must be on the disk to measure
    #[arg(long, global = true, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Cache folder for data that takes long to load, reused by runs of the same size
    #[arg(long, global = true)]
    keep: Option<PathBuf>,
}

impl ServerFiles {
    /// Starts Tidemark; see [`Server::tidemark`].
    pub fn tidemark(&self, fsync: &'static str, more: &str) -> io::Result<Server> {
        Server::tidemark(self.tidemark.as_deref(), &self.dir, fsync, more)
    }

    /// Starts the system's redis-server; see [`Server::redis`].
    pub fn redis(&self, options: &'static [&'static str]) -> io::Result<Server> {
        Server::redis(Path::new("redis-server"), &self.dir, options)
    }

    /// Fills an empty server with `fill`, or from the cache if an earlier run has stored data with
    /// this name. The cache has no version, so delete its folder after a change of file formats.
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
            println!("{name}: as stored");
            server.empty()?;
            copy_files(&kept, server.folder.path())?;
        } else {
            fill(&server)?;
            server.client()?.call(&[b"SAVE"])?;
            server.kill()?;
            // Rename the folder only when the copy is complete.
            let half = keep.join(format!("{name}.half"));
            std::fs::create_dir_all(&half)?;
            copy_files(server.folder.path(), &half)?;
            std::fs::rename(half, kept)?;
        }
        server.again()?;
        Ok(server)
    }

    /// Creates a temporary folder.
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

/// Starts Tidemark in this process, with tables for many posts and without fsync, for measurements
/// without sockets. The returned [`tempfile::TempDir`] removes the folder when it is dropped.
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

/// Builds the command that starts a server in a folder, on a port.
type Start = Box<dyn Fn(&Path, u16) -> Command + Send + Sync>;

/// A server process in its own folder. The destructor kills the process and removes the folder.
pub struct Server {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
    start: Start,
}

impl Server {
    /// Starts a server in a new folder under `dir` and waits until it answers.
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

    /// Starts Tidemark from the binary `program`; by default, from `tidemark` in the folder of the
    /// running binary. Appends `more` to the configuration.
    pub fn tidemark(
        program: Option<&Path>,
        dir: &Path,
        fsync: &'static str,
        more: &str,
    ) -> io::Result<Server> {
        let beside = || Ok::<_, io::Error>(std::env::current_exe()?.with_file_name("tidemark"));
        let program = program.map(PathBuf::from).map_or_else(beside, Ok)?;
        let config = format!("[durability]\nsnapshot_every = 0\nsnapshot_log = 0\n{more}");
        Server::new(dir, move |folder, port| {
            let file = folder.join("tidemark.toml");
            // If this fails, the server will report the missing file.
            let _ = std::fs::write(&file, &config);
            let mut command = Command::new(&program);
            command
                .args(["serve", "--fsync", fsync, "--port", &port.to_string(), "--config"])
                .arg(file);
            command.arg("--dir").arg(folder).env("RUST_LOG", "warn");
            command
        })
    }

    /// Starts a server that takes the arguments of redis-server.
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

    /// Port on which the server listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Opens a connection to the server.
    pub fn client(&self) -> io::Result<Client> {
        Client::connect(("127.0.0.1", self.port))
    }

    /// Waits until the server has loaded its data.
    fn ready(&self) -> io::Result<()> {
        let started = Instant::now();
        while !self
            .client()
            .and_then(|mut c| c.call(&[b"PING"]))
            .is_ok_and(|r| !matches!(r, Reply::Error(_)))
        {
            if started.elapsed() > Duration::from_secs(600) {
                return Err(io::Error::other("the server does not become ready"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Kills and restarts the server. Returns the wall-clock and CPU seconds until the server is
    /// ready.
    pub fn restart(&mut self) -> io::Result<(f64, f64)> {
        self.kill()?;
        self.again()
    }

    /// Kills the server without removing its folder.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Kills the server and removes all files of its folder.
    pub fn empty(&mut self) -> io::Result<()> {
        self.kill()?;
        for file in std::fs::read_dir(self.folder.path())? {
            std::fs::remove_file(file?.path())?;
        }
        Ok(())
    }

    /// Starts the server after [`Server::kill`]; see [`Server::restart`] for the result.
    pub fn again(&mut self) -> io::Result<(f64, f64)> {
        let started = Instant::now();
        self.child = (self.start)(self.folder.path(), self.port).spawn()?;
        self.ready()?;
        Ok((started.elapsed().as_secs_f64(), self.cpu_s()))
    }

    /// Waits until the server has exited by itself.
    pub fn wait(&mut self) -> io::Result<()> {
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("the server ended with {status}")))
        }
    }

    /// User and system CPU time of the process so far in seconds, with a resolution of 10 ms.
    /// Includes threads that have ended.
    pub fn cpu_s(&self) -> f64 {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The process name may contain spaces, so parse only the text after it: fields 14 and 15 of
        // the line.
        let fields: Vec<f64> = stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .split(' ')
            .filter_map(|f| f.parse().ok())
            .collect();
        // Skip the process state, which is a letter. Missing fields yield NaN.
        let ticks =
            fields.get(10).zip(fields.get(11)).map_or(f64::NAN, |(user, system)| user + system);
        ticks / rustix::param::clock_ticks_per_second() as f64
    }

    /// CPU time of all current threads in seconds, with a resolution of a few milliseconds.
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

    /// Returns the value of an INFO field.
    pub fn info(&self, name: &str) -> io::Result<String> {
        let reply = self.client()?.call(&[b"INFO"])?;
        let Reply::BulkString(text) = reply else {
            return Err(io::Error::other(format!("INFO: {reply:?}")));
        };
        let text = String::from_utf8_lossy(&text);
        let value = info_field(&text, name).map(str::to_owned);
        value.ok_or_else(|| io::Error::other(format!("no {name} in INFO")))
    }

    /// Resident anonymous memory in MiB, without the page cache.
    pub fn memory_mib(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
        line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok())
            .map_or(f64::NAN, |kib| kib / 1024.0)
    }

    /// Total bytes of the files whose names end with `ending`, including subfolders.
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
