//! Notifications to the service manager (systemd, `Type=notify`). Without `NOTIFY_SOCKET` in the
//! environment they have no effect.

use sd_notify::NotifyState;

/// Reports that the data are loaded and commands are accepted.
pub fn ready() {
    tell(&[NotifyState::Ready, NotifyState::Status("ready to accept connections")]);
}

/// Sets the text shown by `systemctl status`.
pub(crate) fn status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

/// Reports that the server is stopping. The server may still wait for replicas.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(
            "cannot notify the service manager: {error}. With Type=notify it kills this process \
             after TimeoutStartSec; check NotifyAccess= of the unit"
        );
    }
}
