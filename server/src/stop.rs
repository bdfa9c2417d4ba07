//! The one way to stop a server: a signal, the SHUTDOWN command or a test says so, and everyone who waits hears it.

use std::sync::Arc;
use tokio::sync::watch;

/// A handle to stop a server with, and to wait for it. Clones are the same handle.
#[derive(Clone)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Default for Stop {
    fn default() -> Self {
        Stop(Arc::new(watch::Sender::new(false)))
    }
}

impl Stop {
    /// Not stopped yet.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Stops. Doing so twice changes nothing.
    pub fn now(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is stopped.
    pub async fn wait(&self) {
        // An error means that no sender is left, and `self` is one.
        let _ = self.0.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// Stops at SIGINT or SIGTERM. A second signal ends the process at once, for a stop that hangs.
    pub fn on_signals(&self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut interrupt, mut terminate) = {
            let _in = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        let stop = self.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                for _ in 0..2 {
                    let name = tokio::select! {
                        _ = interrupt.recv() => "SIGINT",
                        _ = terminate.recv() => "SIGTERM",
                    };
                    if stop.is_stopped() {
                        tracing::warn!("{name} again: leaving at once");
                        std::process::exit(1);
                    }
                    tracing::info!("{name}: stopping");
                    stop.now();
                }
            });
        })?;
        Ok(())
    }
}
