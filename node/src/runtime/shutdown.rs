//! Shutdown signal of a server. A Unix signal, SHUTDOWN or a test triggers the shutdown, and all
//! waiters are notified.

use client::Socket;
use parking_lot::{Condvar, Mutex};
use rustix::process::Signal;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Handle that stops a server or waits until the server has stopped. All clones refer to one
/// server.
#[derive(Clone, Default)]
pub struct Stop(Arc<Shared>);

#[derive(Default)]
struct Shared {
    stage: watch::Sender<Stage>,
    /// Wakes threads that sleep until there is work or the server stops.
    sleepers: (Mutex<()>, Condvar),
    /// Handler of signals that request a shutdown.
    leave: OnceLock<Box<Leave>>,
    reload: OnceLock<Box<Reload>>,
    /// Whether the server handles signals, because it owns its process.
    has_signals: AtomicBool,
    /// Whether a stop was refused because acknowledged writes would be lost.
    warned: AtomicBool,
    /// Whether a stop waits for a snapshot.
    saves: AtomicBool,
    /// Sockets of clients that sent SHUTDOWN. These sockets stay open until the data folder is
    /// released.
    kept_open: Mutex<Vec<OwnedFd>>,
    /// Whether the data folder is released, so that such sockets close immediately.
    is_folder_free: AtomicBool,
    signalled: Mutex<Option<(&'static str, Instant)>>,
}

/// Period in which equal signals count as one request. `timeout`, shells and process managers
/// signal a process and then its group, and wrapper processes forward ctrl-C.
const SAME_REQUEST: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Runs,
    /// The server waits for its replicas until this time (`graceful_shutdown.rs`). The time also
    /// identifies the wait.
    Leaves(Instant),
    Stopped,
}

type Leave = dyn Fn(&str) -> bool + Send + Sync;
type Reload = dyn Fn() + Send + Sync;

/// Guard of an essential thread: the server stops if the thread panics.
pub struct Vital(Stop);

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.now();
        }
    }
}

impl Stop {
    /// Creates the handle of a running server.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Stops the server. Further calls have no effect.
    pub fn now(&self) {
        super::service_manager::stopping();
        self.0.stage.send_replace(Stage::Stopped);
        self.wake_sleepers();
    }

    /// Sleeps for `at_most` or until the server stops. Used by threads without a runtime.
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
        // Taking the lock ensures that a thread that read the old stage is already waiting.
        drop(lock.lock());
        woken.notify_all();
    }

    /// Keeps a connection open, after its worker has dropped it, until [`Stop::close_kept`].
    pub fn keep_open(&self, socket: &Socket) {
        let mut kept = self.0.kept_open.lock();
        if !self.0.is_folder_free.load(Relaxed) {
            kept.extend(socket.duplicate());
        }
    }

    /// Closes the connections of clients that sent SHUTDOWN, once the data folder is released.
    pub fn close_kept(&self) {
        let mut kept = self.0.kept_open.lock();
        self.0.is_folder_free.store(true, Relaxed);
        kept.clear();
    }

    /// Whether the server is stopped.
    pub fn is_stopped(&self) -> bool {
        *self.0.stage.borrow() == Stage::Stopped
    }

    /// Waits until the server is stopped.
    pub async fn wait(&self) {
        // The wait cannot fail, because `self` holds the sender.
        let _ = self.0.stage.subscribe().wait_for(|stage| *stage == Stage::Stopped).await;
    }

    /// Records that a stop was refused because writes would be lost. The next signal stops the
    /// server.
    pub(crate) fn warn(&self) {
        self.0.warned.store(true, Relaxed);
    }

    /// Starts the wait for a snapshot. Returns false if a shutdown already waits for a snapshot.
    pub fn begin_save(&self) -> bool {
        !self.0.saves.swap(true, Relaxed)
    }

    /// Ends the wait for a snapshot. Returns false if no shutdown waits for a snapshot.
    pub fn end_save(&self) -> bool {
        !self.is_stopped() && self.0.saves.swap(false, Relaxed)
    }

    pub(crate) fn is_warned(&self) -> bool {
        self.0.warned.load(Relaxed)
    }

    /// Cancels a refused shutdown. Returns false if no shutdown was refused.
    pub(crate) fn forget_warning(&self) -> bool {
        !self.is_stopped() && self.0.warned.swap(false, Relaxed)
    }

    /// Stops a server that is loading immediately, because no write can be lost. A server embedded
    /// in another process stops after loading.
    pub(crate) fn stop_while_loading(&self, cause: &str) {
        tracing::info!("{cause} while loading: exiting now");
        if self.0.has_signals.load(Relaxed) {
            std::process::exit(0);
        }
        self.now();
    }

    /// Creates the guard of an essential thread.
    pub fn vital(&self) -> Vital {
        Vital(self.clone())
    }

    /// Starts the wait for replicas, which ends at `until`. `begun` is called before waiters are
    /// notified. Returns false if the server already waits or has stopped.
    pub(crate) fn begin_replica_wait(&self, until: Instant, begun: impl FnOnce()) -> bool {
        self.change(|stage| stage == Stage::Runs, Stage::Leaves(until), begun)
    }

    /// Returns the end of the wait for replicas, if one is in progress.
    pub fn leaves(&self) -> Option<Instant> {
        if let Stage::Leaves(until) = *self.0.stage.borrow() { Some(until) } else { None }
    }

    /// Ends the wait identified by `until` and stops. Returns false if that wait was cancelled.
    pub(crate) fn left(&self, until: Instant) -> bool {
        let is_over = self.change(|stage| stage == Stage::Leaves(until), Stage::Stopped, || ());
        self.wake_sleepers();
        is_over
    }

    /// Cancels the wait for replicas. `ended` is called before another shutdown can begin. Returns
    /// false if the server is not waiting for replicas.
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

    /// Waits until the wait identified by `until` ends, by a shutdown or a cancellation.
    pub async fn waited(&self, until: Instant) {
        // The wait cannot fail, because `self` holds the sender.
        let _ = self.0.stage.subscribe().wait_for(|stage| *stage != Stage::Leaves(until)).await;
    }

    /// Sets the handler of signals to stop. The handler returns false if the server must stop
    /// immediately.
    pub fn on_signal(&self, leave: impl Fn(&str) -> bool + Send + Sync + 'static) {
        // Only the first handler is kept.
        let _ = self.0.leave.set(Box::new(leave));
    }

    /// Sets the handler of SIGHUP.
    pub fn on_reload(&self, reload: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.reload.set(Box::new(reload));
    }

    /// Handles the process's signals (`Act`). Most of them would otherwise end the process and lose
    /// the writes of the last second.
    ///
    /// Signals to stop trigger a graceful shutdown. A SIGINT during the wait for replicas stops the
    /// server immediately. As in Redis, another SIGINT exits a process whose shutdown hangs.
    /// Repeated SIGTERMs are ignored, because scripts repeat them.
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
                        Act::Stop => stop.stop_on_signal(name),
                        Act::Reload => match stop.0.reload.get() {
                            Some(reload) => reload(),
                            None => tracing::info!("{name}: nothing to reload yet"),
                        },
                        Act::Say => tracing::info!("{name}: ignored"),
                        Act::Ignore => {}
                    }
                }
            });
        })?;
        Ok(())
    }

    fn stop_on_signal(&self, name: &'static str) {
        let before = self.0.signalled.lock().replace((name, Instant::now()));
        let is_repeated =
            before.is_some_and(|(before, at)| before == name && at.elapsed() < SAME_REQUEST);
        if is_repeated || self.is_stopped() && name != "SIGINT" {
            tracing::info!("{name} again: ignored");
            return;
        }
        if self.is_stopped() {
            tracing::warn!("{name} again: exiting now");
            std::process::exit(1);
        }
        let insists = name == "SIGINT" && self.leaves().is_some();
        if insists || !self.0.leave.get().is_some_and(|leave| leave(name)) {
            tracing::info!("{name}: stopping now");
            self.now();
        }
    }
}

#[derive(Clone, Copy)]
enum Act {
    /// The signal stops the server gracefully.
    Stop,
    Reload,
    /// The server only logs the signal.
    Say,
    /// The server ignores the signal. Even a log line could cause the same signal again.
    Ignore,
}

/// All signals that end a process by default and that are sent by another process, a terminal or a
/// system limit. The other fatal signals indicate a bug (SIGSEGV, SIGABRT, ...). Rust's runtime
/// ignores SIGPIPE. If SIGXFSZ is ignored, a write beyond the file-size limit fails like a write to
/// a full disk.
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
