//! What the service manager is told (systemd, `Type=notify`): that the data are loaded, and that
//! the server stops. Without a manager that listens (`NOTIFY_SOCKET`) nothing happens.

use sd_notify::NotifyState;

/// The data are loaded, and commands are answered.
pub fn ready() {
    tell(&[NotifyState::Ready, NotifyState::Status("ready to accept connections")]);
}

/// How far loading is, for `systemctl status`.
pub(crate) fn status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

/// The server stops; it may still wait for replicas.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(
            "the service manager cannot be told: {error}; with Type=notify it will end this \
             process after TimeoutStartSec, so check NotifyAccess= of the unit"
        );
    }
}
