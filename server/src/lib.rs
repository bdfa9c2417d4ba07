//! The Tidemark server: a RESP front end for feed counters and viewer flags.
//!
//! ```text
//!   sockets -> connection (one task per client, on one of the worker threads)
//!                -> resp::Scanner -> commands -> dataset (all writes)
//!                -> counter, phantom
//!                <- resp::Reply   <-
//! ```
//!
//! A *turn* is one event-loop iteration of a connection: one read, all complete requests in it, and
//! one write. Buffers belong to the worker, not to the connection, so an idle client costs a few
//! hundred bytes. Commands never block a worker: a request that needs the disk or another node is
//! suspended. Clients of one worker therefore need no locks among themselves.
//!
//! [`start`] runs a server inside this process, for tests and the demo. `tidemark serve` uses the
//! same code.
#![forbid(unsafe_code)]

mod commands;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod http;
mod ingest;
mod net;
mod sentinel;
mod session;
mod watch;

pub use commands::reference;
pub use net::in_process::{Local, serve};
pub use net::workers::Maintenance;
pub use node::config;
pub use node::runtime::shutdown::Stop;
pub use node::runtime::tls;

use config::Config;
use dataset::Engines;
use dataset::recovery;
use dataset::recovery::NodeLog;
use net::workers;
use node::roles::load::load;
use node::roles::node::Host;
use node::roles::{audit, background, backup, graceful_shutdown, log_owner};
use node::runtime::{atomic_file, service_manager};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Reason why a server did not start or did not stop cleanly.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] node::config::ConfigError),
    /// The data folder cannot be opened, or does not match the configuration.
    #[error(transparent)]
    Recover(#[from] recovery::RecoverError),
    /// The ACL users cannot be loaded.
    #[error("{0}")]
    Users(String),
    /// The TLS certificates cannot be loaded.
    #[error("{0}")]
    Tls(String),
    /// A socket cannot listen on its address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The service manager passed an unusable socket.
    #[error("cannot listen on the socket \"{name}\" from the service manager: {source}")]
    Passed {
        /// Name of the socket (`FileDescriptorName=` of its unit).
        name: String,
        /// Reason.
        source: io::Error,
    },
    /// The operating system could not create a thread or a socket.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// The server ran and stopped with an error.
    #[error("{0}")]
    DisconnectCounts(io::Error),
}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> Self {
        match error {
            StartError::System(source) | StartError::DisconnectCounts(source) => source,
            other => io::Error::other(other),
        }
    }
}

/// Opens the configured listening sockets for clients.
pub fn listen(config: &Config) -> Result<Vec<TcpListener>, StartError> {
    listen_at(config, config.server.port)
}

/// Listening sockets opened before the server starts. The server opens the other configured sockets
/// itself.
#[derive(Default)]
pub struct Sockets {
    /// Sockets for plain-text clients.
    pub clients: Vec<TcpListener>,
    /// Sockets for TLS clients.
    pub tls: Vec<TcpListener>,
    /// Socket of the admin port.
    pub admin: Option<TcpListener>,
}

impl Sockets {
    /// Takes over the sockets that systemd passed to this process; see sd_listen_fds(3). A socket
    /// named `tls` is used for TLS clients, a socket named `admin` for the admin port, and any
    /// other socket for plain-text clients. Call this before the process starts a second thread,
    /// because this function changes the environment.
    pub fn from_service_manager() -> Result<Sockets, StartError> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut passed = listenfd::ListenFd::from_env();
        let mut sockets = Sockets::default();
        for index in 0..passed.len() {
            let name = names.next().unwrap_or_default();
            let refused = |source| StartError::Passed { name: name.to_owned(), source };
            let Some(socket) = passed.take_tcp_listener(index).map_err(refused)? else { continue };
            match name {
                "tls" => sockets.tls.push(socket),
                "admin" if sockets.admin.is_none() => sockets.admin = Some(socket),
                "admin" => {
                    let what = "more than one socket was passed for the admin port";
                    return Err(refused(io::Error::new(io::ErrorKind::InvalidInput, what)));
                }
                _ => sockets.clients.push(socket),
            }
        }
        Ok(sockets)
    }
}

fn listen_at(config: &Config, port: u16) -> Result<Vec<TcpListener>, StartError> {
    let mut listeners = Vec::new();
    for host in &config.server.bind {
        let address = format!("{host}:{port}");
        listeners.push(
            workers::listen_on(host, port, node::config::BACKLOG)
                .map_err(|source| StartError::Listen { address, source })?,
        );
    }
    Ok(listeners)
}

/// A running server. To stop the server, call [`Server::stop`]; dropping the handle does not stop
/// it.
pub struct Server {
    host: Arc<Host>,
    threads: Vec<JoinHandle<()>>,
    log: JoinHandle<store::Result<()>>,
}

/// Creates a process with this configuration and the full command table.
pub fn host(config: Config, addresses: Vec<SocketAddr>, stop: Stop) -> Host {
    commands::families::install();
    Host::new(config, addresses, stop)
}

/// Starts a server on one listening socket. If the socket was bound to port 0, [`Server::port`]
/// returns the actual port.
pub fn start(config: Config, listener: TcpListener) -> Result<Server, StartError> {
    let sockets = Sockets { clients: vec![listener], ..Sockets::default() };
    start_on(config, sockets, Stop::new())
}

/// Starts a server on `sockets`, and opens the configured addresses for which `sockets` has no
/// socket. Returns when the data set is loaded. Until then, clients get `-LOADING`. The caller can
/// stop the server with `stop`.
pub fn start_on(config: Config, sockets: Sockets, stop: Stop) -> Result<Server, StartError> {
    config.validate()?;
    node::cluster::sentinel::check(&config).map_err(config::ConfigError::Invalid)?;
    recovery::try_spaces(&config.data_set())?;
    let Sockets { mut clients, mut tls, mut admin } = sockets;
    if clients.is_empty() {
        clients = listen(&config)?;
    }
    if tls.is_empty() && config.tls.port != 0 {
        tls = listen_at(&config, config.tls.port)?;
    } else if !tls.is_empty() && config.tls.port == 0 {
        let text = "a socket named \"tls\" was passed, but TLS is disabled: set tls.port and its \
                    files";
        return Err(StartError::Tls(text.to_owned()));
    }
    if admin.is_none() {
        admin = http::listen(&config).map_err(|source| {
            let address = format!("{}:{} (admin)", config.admin.bind, config.admin.port);
            StartError::Listen { address, source }
        })?;
    }
    let addresses =
        clients.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<SocketAddr>>>()?;
    let host = Arc::new(host(config, addresses, stop));
    host.tls.configure(&host.config().tls).map_err(StartError::Tls)?;
    host.acl.configure(&host.config().security).map_err(StartError::Users)?;
    let asked = Arc::downgrade(&host);
    host.stop.on_signal(move |signal| {
        let host = asked.upgrade();
        host.inspect(|host| graceful_shutdown::signalled(&host.node(), signal)).is_some()
    });
    let asked = Arc::downgrade(&host);
    host.stop.on_reload(move || _ = asked.upgrade().inspect(|host| host.reload_certificates()));
    let mut threads = workers::start(&host, clients, tls)?;
    // The admin port starts before the data is loaded, so that /readyz can report the loading.
    if let Some(listener) = admin {
        threads.push(http::start(&host, listener).inspect_err(|_| host.stop.now())?);
    }
    let recalled = recall(&host).map_err(StartError::System);
    let opened = recalled.and_then(|()| Ok(load(&host.node())?)).and_then(|log| {
        // No other process uses these files, because `load` has locked the data folder.
        if let Err(error) = atomic_file::remove_unfinished(&host.config().durability.dir) {
            tracing::warn!(
                "cannot remove unfinished files from the data folder: {error}; check the \
                 permissions of the folder"
            );
        }
        let of_log = host.clone();
        // Set the role before the server accepts commands, because the role determines whether
        // writes are accepted.
        host.replication.settle(&host.config(), log.is_own(), log.term());
        if let NodeLog::Own(log) = &log {
            host.node().durability.accept_if_room(log);
        }
        let run = move || log_owner::direct(&of_log, log);
        let log = workers::thread(host.stop.vital(), "log".to_owned(), run)?;
        start_background(&host, &mut threads)?;
        Ok(log)
    });
    match opened {
        Ok(log) => {
            tracing::info!("ready to accept connections");
            service_manager::ready();
            Ok(Server { host, threads, log })
        }
        Err(error) => {
            host.stop.now();
            for thread in threads {
                // Ignore this error, and report the original error.
                let _ = thread.join();
            }
            Err(error)
        }
    }
}

/// Restores role and cluster state from the data folder. A restored lease counts as expired:
/// another node may have become master.
fn recall(host: &Host) -> io::Result<()> {
    let config = host.config();
    host.cluster.recall(&config.durability.dir)?;
    let is_alone = host.cluster.is_sole_owner() && config.shard.is_empty();
    host.replication.recall(&config, is_alone)?;
    if host.cluster.lease().is_some() {
        host.replication.lease(&config, Duration::ZERO, false);
    }
    Ok(())
}

/// Starts the background threads once the data set is loaded.
fn start_background(host: &Arc<Host>, threads: &mut Vec<JoinHandle<()>>) -> Result<(), StartError> {
    let of_snapshots = host.clone();
    threads.push(workers::background(host.stop.vital(), "snapshot".to_owned(), move || {
        background::snapshots(&of_snapshots)
    })?);
    let of_backups = host.clone();
    threads.push(workers::background(host.stop.vital(), "backup".to_owned(), move || {
        backup::backups(&of_backups)
    })?);
    let of_audits = host.clone();
    // Normal priority: it holds stripes for which writers wait.
    threads.push(workers::thread(host.stop.vital(), "audit".to_owned(), move || {
        audit::audits(&of_audits)
    })?);
    if host.cluster.is_enabled() {
        let of_watch = host.clone();
        threads.push(workers::thread(host.stop.vital(), "watch".to_owned(), move || {
            if let Err(error) = watch::run(&of_watch) {
                tracing::error!("cannot poll the other nodes: {error}");
            }
        })?);
    }
    if host.cluster.is_enabled() && !host.config().shard.is_empty() {
        let of_sentinel = host.clone();
        threads.push(workers::thread(host.stop.vital(), "sentinel".to_owned(), move || {
            if let Err(error) = sentinel::run(&of_sentinel) {
                tracing::error!("cannot poll Sentinel: {error}");
            }
        })?);
    }
    if !host.ingest.sources.is_empty() {
        let of_ingest = host.clone();
        threads.push(workers::thread(host.stop.vital(), "ingest".to_owned(), move || {
            if let Err(error) = ingest::run(&of_ingest) {
                tracing::error!("cannot start ingest: {error}");
            }
        })?);
    }
    let of_spills = host.clone();
    threads.push(workers::thread(host.stop.vital(), "spill".to_owned(), move || {
        background::spills(&of_spills)
    })?);
    Ok(())
}

/// Runs a server until `stop` stops it.
pub fn run(config: Config, sockets: Sockets, stop: Stop) -> Result<(), StartError> {
    start_on(config, sockets, stop)?.join().map_err(StartError::DisconnectCounts)
}

/// Keeps a version of the engines alive while it is borrowed.
struct Served(Arc<Engines>);

impl Deref for Served {
    type Target = Engines;

    fn deref(&self) -> &Engines {
        &self.0
    }
}

impl Server {
    /// Port of the first client socket.
    pub fn port(&self) -> u16 {
        self.host.addresses.first().map_or(0, SocketAddr::port)
    }

    /// Address of the admin port, if it is open.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.host.admin.get().copied()
    }

    /// Spaces, views and actions of the current data set.
    pub fn engines(&self) -> impl Deref<Target = Engines> {
        Served(self.host.node().engines())
    }

    /// Creates an in-process client. Returns `None` if the client limit is reached.
    pub fn local(&self) -> Option<Local> {
        Local::new(self.host.node())
    }

    /// Stops the server and waits for its threads.
    pub fn stop(self) -> io::Result<()> {
        self.host.stop.now();
        self.join()
    }

    /// Waits until SIGINT, SIGTERM or SHUTDOWN stops the server.
    pub fn wait(self) -> io::Result<()> {
        self.on_signals()?;
        self.join()
    }

    /// Makes SIGINT and SIGTERM stop the server.
    pub fn on_signals(&self) -> io::Result<()> {
        self.host.stop.on_signals()
    }

    /// Returns whether the server has stopped or is stopping.
    pub fn is_stopped(&self) -> bool {
        self.host.stop.is_stopped()
    }

    /// Waits until a client or another thread stops the server.
    pub fn join(self) -> io::Result<()> {
        let mut outcome = Ok(());
        self.host.stop.wait_blocking();
        self.host.node().snapshots.wake();
        self.host.backups.wake();
        self.host.audits.wake();
        for thread in self.threads {
            let name = thread.thread().name().unwrap_or("unnamed").to_owned();
            if thread.join().is_err() {
                // Stop the remaining threads.
                self.host.stop.now();
                outcome = Err(io::Error::other(format!("thread {name} panicked")));
            }
        }
        // All writers have ended. The last commit writes their pending changes.
        self.host.node().durability.committer().stop();
        match self.log.join() {
            Ok(Ok(())) => tracing::info!("the log is complete"),
            Ok(Err(error)) => {
                outcome = Err(io::Error::other(format!("the last commit failed: {error}")))
            }
            Err(_) => outcome = Err(io::Error::other("the log thread panicked")),
        }
        backup::finish(&self.host);
        // Unlock the folder last, because another process may open the folder as soon as it is
        // unlocked.
        if let Some(store) = self.host.node().store.get() {
            store.unlock();
        }
        self.host.stop.close_kept();
        outcome
    }
}
