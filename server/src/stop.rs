//! The one way to stop a server: a signal, the SHUTDOWN command or a test says so, and everyone who
//! waits hears it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::watch;

/// A handle to stop a server with, and to wait for it. Clones are the same handle.
#[derive(Clone, Default)]
pub struct Stop(Arc<Shared>);

#[derive(Default)]
struct Shared {
    stage: watch::Sender<Stage>,
    /// What a signal does.
    leave: OnceLock<Box<Leave>>,
    /// Signals stop it: it is the process's one server.
    has_signals: AtomicBool,
    /// One was refused, as something would be lost.
    warned: AtomicBool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Runs,
    /// It is to stop when its replicas have everything (`leave.rs`), at this moment at the latest,
    /// by which one such wait is told from the next.
    Leaves(Instant),
    Stopped,
}

type Leave = dyn Fn(&str) -> bool + Send + Sync;

/// Held by a thread without which a server is of no use: if it panics, the server stops.
pub(crate) struct Vital(Stop);

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
        self.0.stage.send_replace(Stage::Stopped);
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

    /// A signal was refused, as something would be lost: whoever sends another one knows.
    pub(crate) fn warn(&self) {
        self.0.warned.store(true, Relaxed);
    }

    /// Whether one was.
    pub(crate) fn is_warned(&self) -> bool {
        self.0.warned.load(Relaxed)
    }

    /// Stops while the data are loaded: at once, since nothing can be lost yet. A server within
    /// another program stops when it has loaded.
    pub(crate) fn while_loading(&self, who: &str) {
        tracing::info!("{who} while the data are loaded: leaving at once");
        if self.0.has_signals.load(Relaxed) {
            std::process::exit(0);
        }
        self.now();
    }

    /// For a thread to hold.
    pub(crate) fn vital(&self) -> Vital {
        Vital(self.clone())
    }

    /// It is to stop at `until` at the latest: `begun` is done before anybody sees that. False if
    /// it leaves, or has stopped, already.
    pub(crate) fn leave_by(&self, until: Instant, begun: impl FnOnce()) -> bool {
        self.change(|stage| stage == Stage::Runs, Stage::Leaves(until), begun)
    }

    /// When it will stop at the latest, if it waits for replicas.
    pub(crate) fn leaves(&self) -> Option<Instant> {
        if let Stage::Leaves(until) = *self.0.stage.borrow() { Some(until) } else { None }
    }

    /// The wait that was to last until then is over. False if it was not waited for any more.
    pub(crate) fn left(&self, until: Instant) -> bool {
        self.change(|stage| stage == Stage::Leaves(until), Stage::Stopped, || ())
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
    pub(crate) async fn waited(&self, until: Instant) {
        // An error means that no sender is left, and `self` is one.
        let _ = self.0.stage.subscribe().wait_for(|stage| *stage != Stage::Leaves(until)).await;
    }

    /// Has signals do this, which gives whether there is still something to be stopped by it.
    pub(crate) fn on_signal(&self, leave: impl Fn(&str) -> bool + Send + Sync + 'static) {
        // Who came first is as good.
        let _ = self.0.leave.set(Box::new(leave));
    }

    /// Stops at SIGINT or SIGTERM, as `leave.rs` has it; at a SIGINT that comes while replicas are
    /// waited for, at once. A signal while it stops ends the process, for a stop that hangs.
    pub fn on_signals(&self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut interrupt, mut terminate) = {
            let _in = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        self.0.has_signals.store(true, Relaxed);
        let stop = self.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                loop {
                    let name = tokio::select! {
                        _ = interrupt.recv() => "SIGINT",
                        _ = terminate.recv() => "SIGTERM",
                    };
                    if stop.is_stopped() {
                        tracing::warn!("{name} again: leaving at once");
                        std::process::exit(1);
                    }
                    let insists = name == "SIGINT" && stop.leaves().is_some();
                    if insists || !stop.0.leave.get().is_some_and(|leave| leave(name)) {
                        tracing::info!("{name}: stopping at once");
                        stop.now();
                    }
                }
            });
        })?;
        Ok(())
    }
}
