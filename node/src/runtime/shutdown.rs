//! The one way to stop a server: a signal, the SHUTDOWN command or a test says so, and every waiter
//! hears it.

use super::tls::Socket;
use parking_lot::{Condvar, Mutex};
use rustix::process::Signal;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A handle to stop a server with, and to wait for it. Clones are the same handle.
#[derive(Clone, Default)]
pub struct Stop(Arc<Shared>);

#[derive(Default)]
struct Shared {
    stage: watch::Sender<Stage>,
    /// Threads that sleep until there is work or the server stops.
    sleepers: (Mutex<()>, Condvar),
    /// What a signal to stop does.
    leave: OnceLock<Box<Leave>>,
    /// What SIGHUP does.
    reload: OnceLock<Box<Reload>>,
    /// Signals stop it: it is the process's one server.
    has_signals: AtomicBool,
    /// One was refused, as something would be lost.
    warned: AtomicBool,
    /// An order to stop waits for a snapshot.
    saves: AtomicBool,
    /// Sockets of clients that have sent SHUTDOWN, which stay open until the folder is free.
    kept_open: Mutex<Vec<OwnedFd>>,
    /// The folder is free: later ones are closed at once.
    is_folder_free: AtomicBool,
    /// The last signal to stop, and when it came.
    signalled: Mutex<Option<(&'static str, Instant)>>,
}

/// A signal to stop that comes this soon after the same one is the same request: `timeout`, shells
/// and process managers signal a process and then its group, and wrappers pass ctrl-C on.
const SAME_REQUEST: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Runs,
    /// It is to stop when its replicas have everything (`graceful_shutdown.rs`), at this moment at
    /// the latest, by which one such wait is told from the next.
    Leaves(Instant),
    Stopped,
}

type Leave = dyn Fn(&str) -> bool + Send + Sync;
type Reload = dyn Fn() + Send + Sync;

/// Held by a thread without which a server is of no use: if it panics, the server stops.
pub struct Vital(Stop);

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.now();
        }
    }
}

impl Stop {
    /// Not stopped yet.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Stops. Doing so twice changes nothing.
    pub fn now(&self) {
        super::service_manager::stopping();
        self.0.stage.send_replace(Stage::Stopped);
        self.wake_sleepers();
    }

    /// Sleeps, on a thread without a runtime, for `at_most` or until the server stops.
    pub fn sleep(&self, at_most: Duration) {
        let (lock, woken) = &self.0.sleepers;
        let mut guard = lock.lock();
        if !self.is_stopped() {
            woken.wait_for(&mut guard, at_most);
        }
    }

    /// Blocks until the server stops.
    pub fn wait_blocking(&self) {
        let (lock, woken) = &self.0.sleepers;
        let mut guard = lock.lock();
        while !self.is_stopped() {
            woken.wait(&mut guard);
        }
    }

    fn wake_sleepers(&self) {
        let (lock, woken) = &self.0.sleepers;
        // A thread that has seen another stage is asleep by the time the lock is free.
        drop(lock.lock());
        woken.notify_all();
    }

    /// Keeps a connection open that its worker drops, until [`Stop::close_kept`].
    pub fn keep_open(&self, socket: &Socket) {
        let mut kept = self.0.kept_open.lock();
        if !self.0.is_folder_free.load(Relaxed) {
            kept.extend(socket.duplicate());
        }
    }

    /// The folder is free: clients that have sent SHUTDOWN see the end of their connections.
    pub fn close_kept(&self) {
        let mut kept = self.0.kept_open.lock();
        self.0.is_folder_free.store(true, Relaxed);
        kept.clear();
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        *self.0.stage.borrow() == Stage::Stopped
    }

    /// Waits until it is stopped.
    pub async fn wait(&self) {
        // An error means that no sender is left, and `self` is one.
        let _ = self.0.stage.subscribe().wait_for(|stage| *stage == Stage::Stopped).await;
    }

    /// A signal was refused, as something would be lost: a second one is obeyed.
    pub(crate) fn warn(&self) {
        self.0.warned.store(true, Relaxed);
    }

    /// An order to stop waits for a snapshot. False if one does.
    pub fn begin_save(&self) -> bool {
        !self.0.saves.swap(true, Relaxed)
    }

    /// No order to stop waits for a snapshot any more. Whether one did.
    pub fn end_save(&self) -> bool {
        !self.is_stopped() && self.0.saves.swap(false, Relaxed)
    }

    /// Whether one was.
    pub(crate) fn is_warned(&self) -> bool {
        self.0.warned.load(Relaxed)
    }

    /// It is not to stop any more because of that signal. False if there was none.
    pub(crate) fn forget_warning(&self) -> bool {
        !self.is_stopped() && self.0.warned.swap(false, Relaxed)
    }

    /// Stops while the data are loaded: at once, since nothing can be lost yet. A server within
    /// another program stops when it has loaded.
    pub(crate) fn while_loading(&self, cause: &str) {
        tracing::info!("{cause} while the data are loaded: leaving at once");
        if self.0.has_signals.load(Relaxed) {
            std::process::exit(0);
        }
        self.now();
    }

    /// For a thread to hold.
    pub fn vital(&self) -> Vital {
        Vital(self.clone())
    }

    /// It is to stop at `until` at the latest: `begun` is done before any waiter sees that. False
    /// if it leaves, or has stopped, already.
    pub(crate) fn leave_by(&self, until: Instant, begun: impl FnOnce()) -> bool {
        self.change(|stage| stage == Stage::Runs, Stage::Leaves(until), begun)
    }

    /// When it will stop at the latest, if it waits for replicas.
    pub fn leaves(&self) -> Option<Instant> {
        if let Stage::Leaves(until) = *self.0.stage.borrow() { Some(until) } else { None }
    }

    /// The wait that was to last until then is over. False if it was not waited for any more.
    pub(crate) fn left(&self, until: Instant) -> bool {
        let is_over = self.change(|stage| stage == Stage::Leaves(until), Stage::Stopped, || ());
        self.wake_sleepers();
        is_over
    }

    /// It goes on after all: `ended` is done before it can be told to stop again. False if it waits
    /// for no replicas.
    pub(crate) fn stay(&self, ended: impl FnOnce()) -> bool {
        self.change(|stage| matches!(stage, Stage::Leaves(_)), Stage::Runs, ended)
    }

    fn change(&self, is_from: impl FnOnce(Stage) -> bool, to: Stage, then: impl FnOnce()) -> bool {
        self.0.stage.send_if_modified(|stage| {
            let changes = is_from(*stage);
            if changes {
                *stage = to;
                then();
            }
            changes
        })
    }

    /// Until the wait that was to last until then is over: it has stopped, or goes on.
    pub async fn waited(&self, until: Instant) {
        // An error means that no sender is left, and `self` is one.
        let _ = self.0.stage.subscribe().wait_for(|stage| *stage != Stage::Leaves(until)).await;
    }

    /// Has signals do this, which gives whether there is still something to be stopped by it.
    pub fn on_signal(&self, leave: impl Fn(&str) -> bool + Send + Sync + 'static) {
        // The first one is as good.
        let _ = self.0.leave.set(Box::new(leave));
    }

    /// Has SIGHUP do this.
    pub fn on_reload(&self, reload: impl Fn() + Send + Sync + 'static) {
        // The first one set is as good.
        let _ = self.0.reload.set(Box::new(reload));
    }

    /// Handles the process's signals from now on (`Act`). Without it most of them would end the
    /// process, and with it the writes of the last second.
    ///
    /// A signal that stops, stops as `graceful_shutdown.rs` has it; SIGINT stops at once while the
    /// server waits for replicas. As in Redis a later SIGINT ends a process whose stop hangs; a
    /// later SIGTERM changes nothing, as scripts repeat it.
    pub fn on_signals(&self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (to_thread, mut received) = tokio::sync::mpsc::unbounded_channel();
        for &(number, name, act) in SIGNALS {
            let _in = runtime.enter();
            let mut signals = signal(SignalKind::from_raw(number.as_raw()))?;
            let to_thread = to_thread.clone();
            runtime.spawn(async move {
                while signals.recv().await.is_some() && to_thread.send((name, act)).is_ok() {}
            });
        }
        self.0.has_signals.store(true, Relaxed);
        let stop = self.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                while let Some((name, act)) = received.recv().await {
                    match act {
                        Act::Stop => stop.stop_by(name),
                        Act::Reload => match stop.0.reload.get() {
                            Some(reload) => reload(),
                            None => tracing::info!("{name}: there is nothing to reload yet"),
                        },
                        Act::Say => tracing::info!("{name}: ignored"),
                        Act::Ignore => {}
                    }
                }
            });
        })?;
        Ok(())
    }

    /// A signal to stop came.
    fn stop_by(&self, name: &'static str) {
        let before = self.0.signalled.lock().replace((name, Instant::now()));
        let is_repeated =
            before.is_some_and(|(before, at)| before == name && at.elapsed() < SAME_REQUEST);
        if is_repeated || self.is_stopped() && name != "SIGINT" {
            tracing::info!("{name} again: ignored");
            return;
        }
        if self.is_stopped() {
            tracing::warn!("{name} again: leaving at once");
            std::process::exit(1);
        }
        let insists = name == "SIGINT" && self.leaves().is_some();
        if insists || !self.0.leave.get().is_some_and(|leave| leave(name)) {
            tracing::info!("{name}: stopping at once");
            self.now();
        }
    }
}

/// What a signal makes the server do.
#[derive(Clone, Copy)]
enum Act {
    /// It stops, and loses nothing.
    Stop,
    /// It reads its certificates again.
    Reload,
    /// A line in the log.
    Say,
    /// Nothing, not even a line in the log: that might be what the signal is about.
    Ignore,
}

/// Every signal that ends a process by default and that another process, a terminal or a limit of
/// the system sends. The others say that the process is broken (SIGSEGV, SIGABRT, ...). SIGPIPE is
/// ignored by Rust's runtime. With SIGXFSZ ignored, a write beyond the file-size limit is an error,
/// as on a full disk.
const SIGNALS: &[(Signal, &str, Act)] = &[
    (Signal::INT, "SIGINT", Act::Stop),
    (Signal::TERM, "SIGTERM", Act::Stop),
    (Signal::QUIT, "SIGQUIT", Act::Stop),
    (Signal::XCPU, "SIGXCPU", Act::Stop),
    #[cfg(target_os = "linux")]
    (Signal::POWER, "SIGPWR", Act::Stop),
    (Signal::HUP, "SIGHUP", Act::Reload),
    (Signal::USR1, "SIGUSR1", Act::Say),
    (Signal::USR2, "SIGUSR2", Act::Say),
    (Signal::ALARM, "SIGALRM", Act::Say),
    (Signal::VTALARM, "SIGVTALRM", Act::Say),
    (Signal::PROF, "SIGPROF", Act::Say),
    (Signal::IO, "SIGIO", Act::Say),
    (Signal::XFSZ, "SIGXFSZ", Act::Ignore),
];
