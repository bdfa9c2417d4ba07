//! The Tidemark server: RESP in, feed pages out.
//!
//! ```text
//!   sockets -> connection (one task per client, on one of the worker threads)
//!                -> resp::Scanner -> commands -> dataset (the one path of writes)
//!                -> counter, phantom
//!                <- resp::Reply   <-
//! ```
//!
//! One *turn* of a connection is one read, all the requests in it, one write. Buffers belong to the
//! worker, not to the connection: an idle client costs a few hundred bytes. No command waits for
//! anything, so a worker needs no locks between its clients.
//!
//! [`start`] runs a server inside this process, as the tests and the demo do; the program's
//! `tidemark serve` does the same.
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
use dataset::recovery::Held;
use net::workers;
use node::roles::load::load;
use node::roles::node::Host;
use node::roles::{background, backup, graceful_shutdown, log_owner};
use node::runtime::{atomic_file, service_manager};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] node::config::ConfigError),
    /// The data folder cannot be opened, or does not fit the configuration.
    #[error(transparent)]
    Recover(#[from] recovery::RecoverError),
    /// The users cannot be read.
    #[error("{0}")]
    Users(String),
    /// The certificates cannot be read.
    #[error("{0}")]
    Tls(String),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which address.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The service manager passed a socket that cannot be served.
    #[error("cannot listen on the socket \"{name}\" of the service manager: {source}")]
    Passed {
        /// Name of the socket (`FileDescriptorName=` of its unit).
        name: String,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The system refused a thread or a socket.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// It ran, and did not end well.
    #[error("{0}")]
    Ended(io::Error),
}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> Self {
        match error {
            StartError::System(source) | StartError::Ended(source) => source,
            other => io::Error::other(other),
        }
    }
}

/// Opens the listening sockets that the configuration names.
pub fn listen(config: &Config) -> Result<Vec<TcpListener>, StartError> {
    listen_at(config, config.server.port)
}

/// Listening sockets that were open before the server started. A server opens the ones that are
/// missing.
#[derive(Default)]
pub struct Sockets {
    /// Sockets for clients.
    pub clients: Vec<TcpListener>,
    /// Sockets for clients that use TLS.
    pub tls: Vec<TcpListener>,
    /// The socket of the admin port.
    pub admin: Option<TcpListener>,
}

impl Sockets {
    /// Takes the sockets that systemd passed to this process, as sd_listen_fds(3) describes. Each
    /// serves what its name says: `tls`, `admin`, or clients by any other name. Call it before the
    /// process has a second thread, as it changes the environment.
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
                    let what = "the admin port has one socket";
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
            workers::listen_on(host, port, config.server.backlog)
                .map_err(|source| StartError::Listen { address, source })?,
        );
    }
    Ok(listeners)
}

/// A running server. Dropping it leaves it running; [`Server::stop`] ends it.
pub struct Server {
    host: Arc<Host>,
    threads: Vec<JoinHandle<()>>,
    log: JoinHandle<store::Result<()>>,
}

/// A process with this configuration, which knows all commands.
pub fn host(config: Config, addresses: Vec<SocketAddr>, stop: Stop) -> Host {
    commands::families::install();
    Host::new(config, addresses, stop)
}

/// Starts a server on one listening socket (port 0 is fine: [`Server::port`] tells which it
/// became).
pub fn start(config: Config, listener: TcpListener) -> Result<Server, StartError> {
    let sockets = Sockets { clients: vec![listener], ..Sockets::default() };
    start_on(config, sockets, Stop::new())
}

/// Starts a server on these listening sockets, and on those that the configuration names and
/// `sockets` lacks; `stop` will stop it. Returns when the data are loaded. Clients that connect
/// before are answered `-LOADING`.
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
        let text = "a socket named \"tls\" was passed, but TLS is off: set tls.port and its files";
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
    // Also while the data are loaded: /readyz says so.
    if let Some(listener) = admin {
        threads.push(http::start(&host, listener).inspect_err(|_| host.stop.now())?);
    }
    let recalled = recall(&host).map_err(StartError::System);
    let opened = recalled.and_then(|()| Ok(load(&host.node())?)).and_then(|log| {
        // Now that the folder is this process's.
        if let Err(error) = atomic_file::remove_unfinished(&host.config().durability.dir) {
            tracing::warn!(
                "what a kill has left in the data folder cannot be removed: {error}; \
                            check the rights of the folder"
            );
        }
        let of_log = host.clone();
        // Before any client is told that the server is ready: writes are taken from the first
        // moment, or refused for the right reason.
        host.replication.settle(&host.config(), log.is_own(), log.term());
        if let Held::Own(log) = &log {
            host.node().durability.look_at(log);
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
                // What went wrong is known already.
                let _ = thread.join();
            }
            Err(error)
        }
    }
}

/// What the data folder remembers of its role, and of its cluster. A master that had a lease has
/// none: another node may have become the master while this one was away.
fn recall(host: &Host) -> io::Result<()> {
    let config = host.config();
    host.cluster.recall(&config.durability.dir)?;
    let is_alone = host.cluster.rules_alone() && config.shard.is_empty();
    host.replication.recall(&config, is_alone)?;
    if host.cluster.lease().is_some() {
        host.replication.lease(&config, Duration::ZERO, false);
    }
    Ok(())
}

/// Starts the threads that work behind the clients' backs, once the data are there.
fn start_background(host: &Arc<Host>, threads: &mut Vec<JoinHandle<()>>) -> Result<(), StartError> {
    let of_snapshots = host.clone();
    threads.push(workers::background(host.stop.vital(), "snapshot".to_owned(), move || {
        background::snapshots(&of_snapshots)
    })?);
    let of_backups = host.clone();
    threads.push(workers::background(host.stop.vital(), "backup".to_owned(), move || {
        backup::backups(&of_backups)
    })?);
    if host.cluster.is_enabled() {
        let of_watch = host.clone();
        threads.push(workers::thread(host.stop.vital(), "watch".to_owned(), move || {
            if let Err(error) = watch::run(&of_watch) {
                tracing::error!("other nodes cannot be asked whether they live: {error}");
            }
        })?);
    }
    if host.cluster.is_enabled() && !host.config().shard.is_empty() {
        let of_sentinel = host.clone();
        threads.push(workers::thread(host.stop.vital(), "sentinel".to_owned(), move || {
            if let Err(error) = sentinel::run(&of_sentinel) {
                tracing::error!("Sentinel cannot be asked: {error}");
            }
        })?);
    }
    if !host.ingest.sources.is_empty() {
        let of_ingest = host.clone();
        threads.push(workers::thread(host.stop.vital(), "ingest".to_owned(), move || {
            if let Err(error) = ingest::run(&of_ingest) {
                tracing::error!("no events are taken over: {error}");
            }
        })?);
    }
    let of_spills = host.clone();
    threads.push(workers::thread(host.stop.vital(), "spill".to_owned(), move || {
        background::spills(&of_spills)
    })?);
    Ok(())
}

/// Runs a server until `stop` is told to stop.
pub fn run(config: Config, sockets: Sockets, stop: Stop) -> Result<(), StartError> {
    start_on(config, sockets, stop)?.join().map_err(StartError::Ended)
}

/// The engines of a node, as they are now.
struct Served(Arc<Engines>);

impl Deref for Served {
    type Target = Engines;

    fn deref(&self) -> &Engines {
        &self.0
    }
}

impl Server {
    /// The port of its first listening socket.
    pub fn port(&self) -> u16 {
        self.host.addresses.first().map_or(0, SocketAddr::port)
    }

    /// Where metrics and the dashboard are served, if they are.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.host.admin.get().copied()
    }

    /// Its spaces, views and actions.
    pub fn engines(&self) -> impl Deref<Target = Engines> {
        Served(self.host.node().engines())
    }

    /// A client without a socket. `None` if its clients cannot be counted any further.
    pub fn local(&self) -> Option<Local> {
        Local::new(self.host.node())
    }

    /// Stops it, and waits until it has stopped.
    pub fn stop(self) -> io::Result<()> {
        self.host.stop.now();
        self.join()
    }

    /// Waits until SIGINT, SIGTERM or the SHUTDOWN command stops it.
    pub fn wait(self) -> io::Result<()> {
        self.on_signals()?;
        self.join()
    }

    /// From now on SIGINT and SIGTERM stop it.
    pub fn on_signals(&self) -> io::Result<()> {
        self.host.stop.on_signals()
    }

    /// Whether it was stopped, or is being stopped.
    pub fn is_stopped(&self) -> bool {
        self.host.stop.is_stopped()
    }

    /// Waits until something else stops it.
    pub fn join(self) -> io::Result<()> {
        let mut outcome = Ok(());
        self.host.stop.wait_blocking();
        self.host.node().snapshots.wake();
        self.host.backups.wake();
        for thread in self.threads {
            let name = thread.thread().name().unwrap_or("unnamed").to_owned();
            if thread.join().is_err() {
                // The others must end, too.
                self.host.stop.now();
                outcome = Err(io::Error::other(format!("thread {name} panicked")));
            }
        }
        // No writer is left: a last commit takes what they have marked.
        self.host.node().durability.committer().stop();
        match self.log.join() {
            Ok(Ok(())) => tracing::info!("the log is complete"),
            Ok(Err(error)) => {
                outcome = Err(io::Error::other(format!("the last commit failed: {error}")))
            }
            Err(_) => outcome = Err(io::Error::other("the log thread panicked")),
        }
        backup::finish(&self.host);
        // The folder's, once a store was opened.
        if let Some(store) = self.host.node().store.get() {
            store.unlock();
        }
        self.host.stop.close_kept();
        outcome
    }
}
