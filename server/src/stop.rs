//! The one way to stop a server: a signal, the SHUTDOWN command or a test says so, and everyone who waits hears it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

/// A handle to stop a server with, and to wait for it. Clones are the same handle.
#[derive(Clone, Default)]
pub struct Stop(Arc<Shared>);

#[derive(Default)]
struct Shared {
    stopped: watch::Sender<bool>,
    /// Asked when a signal comes.
    ask: OnceLock<Box<Ask>>,
    /// Signals stop it: it is the process's one server.
    has_signals: AtomicBool,
}

type Ask = dyn Fn() -> Parting + Send + Sync;

/// What a signal to stop finds.
pub(crate) enum Parting {
    /// The data are loaded, and the log takes changes.
    Well,
    /// The data are not loaded yet.
    Loading,
    /// Changes that were acknowledged are not on the disk: why.
    Unsaved(String),
}

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
        self.0.stopped.send_replace(true);
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        *self.0.stopped.borrow()
    }

    /// Waits until it is stopped.
    pub async fn wait(&self) {
        // An error means that no sender is left, and `self` is one.
        let _ = self.0.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// Stops while the data are loaded: at once, since nothing can be lost yet. A server within another program stops when it has loaded.
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

    /// Has signals ask first.
    pub(crate) fn on_parting(&self, ask: impl Fn() -> Parting + Send + Sync + 'static) {
        // Who came first is as good.
        let _ = self.0.ask.set(Box::new(ask));
    }

    /// Stops at SIGINT or SIGTERM; as Redis, at once while the data are loaded, since then nothing is lost, and not at the first signal if
    /// the log fails, since then something is. A signal while it stops ends the process, for a stop that hangs.
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
                let mut warned = false;
                loop {
                    let name = tokio::select! {
                        _ = interrupt.recv() => "SIGINT",
                        _ = terminate.recv() => "SIGTERM",
                    };
                    if stop.is_stopped() {
                        tracing::warn!("{name} again: leaving at once");
                        std::process::exit(1);
                    }
                    match stop.0.ask.get().map_or(Parting::Well, |ask| ask()) {
                        Parting::Loading => stop.while_loading(name),
                        Parting::Unsaved(why) if !warned => {
                            tracing::error!("{name}: not stopping, as changes that were acknowledged would be lost; again to stop all the same. {why}");
                            warned = true;
                        }
                        _ => {
                            tracing::info!("{name}: stopping");
                            stop.now();
                        }
                    }
                }
            });
        })?;
        Ok(())
    }
}
