//! Clients of MONITOR. Without monitoring clients, a command costs one additional atomic load.

use crate::runtime::clients::{Client, MONITOR};
use dataset::clock::unix_us;
use parking_lot::Mutex;
use resp::Args;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Maximum number of bytes of an argument that MONITOR shows.
const SHOWN_BYTES: usize = 4096;

/// Clients in MONITOR mode.
#[derive(Default)]
pub struct Monitors {
    count: AtomicUsize,
    clients: Mutex<Vec<Arc<Client>>>,
}

impl Monitors {
    /// Adds a client to the monitors.
    pub fn add(&self, client: &Arc<Client>) {
        let mut clients = self.clients.lock();
        client.flags.fetch_or(MONITOR, Relaxed);
        clients.push(client.clone());
        self.count.store(clients.len(), Relaxed);
    }

    /// Removes a client from the monitors.
    pub fn remove(&self, client: &Client) {
        let mut clients = self.clients.lock();
        client.flags.fetch_and(!MONITOR, Relaxed);
        clients.retain(|c| c.id != client.id);
        self.count.store(clients.len(), Relaxed);
    }

    /// Whether any client is in MONITOR mode.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// Sends a command to all monitors. A client whose inbox would exceed `most` bytes is
    /// disconnected.
    #[cold]
    pub fn show(&self, by: &Client, args: Args<'_>, most: usize) {
        let now = unix_us();
        let mut line = Vec::with_capacity(128);
        let _ = write!(line, "+{}.{:06} [0 {}]", now / 1_000_000, now % 1_000_000, by.peer);
        for arg in args.iter() {
            line.push(b' ');
            quote(&arg[..arg.len().min(SHOWN_BYTES)], &mut line);
        }
        line.extend_from_slice(b"\r\n");
        for client in self.clients.lock().iter() {
            client.push(&line, most);
        }
    }
}

/// Quotes a text as Redis does: bytes other than printable ASCII are escaped.
fn quote(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            7 => out.extend_from_slice(b"\\a"),
            8 => out.extend_from_slice(b"\\b"),
            b' '..=b'~' => out.push(byte),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out.push(b'"');
}
