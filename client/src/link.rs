//! An asynchronous connection, timeouts and errors.

use crate::inbox::Inbox;
use crate::reply::Reply;
use crate::socket::Socket;
use resp::{Protocol, Reply as Writer};
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// Timeout for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// One connection.
pub struct Link {
    /// Socket, for callers that read and write directly.
    pub socket: Socket,
    inbox: Inbox,
}

impl Link {
    /// Creates a link that holds up to `max_bytes` undecoded bytes of replies.
    pub fn new(socket: Socket, max_bytes: usize) -> Link {
        Link { socket, inbox: Inbox::new(max_bytes) }
    }

    /// Sends one command and returns its reply.
    pub async fn call(&mut self, args: &[&[u8]]) -> io::Result<Reply> {
        let mut out = Vec::new();
        put_command(&mut out, args);
        self.send(&out).await?;
        self.next().await
    }

    /// Like [`Link::call`], but returns the server's error reply as an error.
    pub async fn ask(&mut self, args: &[&[u8]]) -> io::Result<Reply> {
        match self.call(args).await? {
            Reply::Error(reason) => Err(refused(reason)),
            reply => Ok(reply),
        }
    }

    /// Sends requests. The caller must read replies before the buffers of both sockets are full.
    pub async fn send(&mut self, requests: &[u8]) -> io::Result<()> {
        self.socket.write_all(requests).await?;
        self.socket.flush().await
    }

    /// Returns the next reply. Loses no bytes if it is cancelled.
    pub async fn next(&mut self) -> io::Result<Reply> {
        loop {
            if let Some(reply) = self.inbox.take()? {
                return Ok(reply);
            }
            self.inbox.read(&mut self.socket).await?;
        }
    }
}

/// Appends one command.
pub fn put_command(out: &mut Vec<u8>, args: &[&[u8]]) {
    // A request is an array of bulk strings, like a reply of RESP2.
    let mut writer = Writer::new(out, Protocol::Resp2);
    writer.array(args.len());
    args.iter().for_each(|arg| writer.bulk(arg));
}

/// Runs `work` with the reply timeout.
pub async fn timely<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    within(REPLY_TIMEOUT, work).await
}

/// Runs `work` with a timeout.
pub async fn within<T>(
    timeout: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
        let why = format!("the server has not replied for {} s", timeout.as_secs_f32());
        Err(io::Error::new(ErrorKind::TimedOut, why))
    })
}

/// Whether the error is about authentication or permissions, so that a retry is useless.
pub fn is_permission_error(reason: &str) -> bool {
    ["NOAUTH", "WRONGPASS", "NOPERM"].iter().any(|word| reason.starts_with(word))
}

/// Converts the server's error reply; errors of permissions become `PermissionDenied`.
pub fn refused(reason: String) -> io::Error {
    match is_permission_error(&reason) {
        true => io::Error::new(ErrorKind::PermissionDenied, reason),
        false => io::Error::other(reason),
    }
}
