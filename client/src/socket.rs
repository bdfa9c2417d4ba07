//! A byte stream of a connection, for both sides.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// A connection, with or without TLS.
pub enum Socket {
    /// TCP without TLS.
    Plain(TcpStream),
    /// TLS over TCP, as a client or as a server.
    Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
    /// An in-process connection, for the simulator.
    Memory(DuplexStream),
}

impl Socket {
    /// Connects to a server. With TLS, the server's certificate must be valid for `name`.
    pub async fn connect(
        host: &str,
        port: u16,
        tls: Option<&Arc<ClientConfig>>,
        name: &str,
    ) -> io::Result<Socket> {
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let Some(config) = tls else { return Ok(Socket::Plain(stream)) };
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(config.clone());
        Ok(Socket::Tls(Box::new(connector.connect(name, stream).await?.into())))
    }

    /// Returns the TCP connection, or `None` for an in-process connection.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Socket::Plain(stream) => Some(stream),
            Socket::Tls(stream) => Some(stream.get_ref().0),
            Socket::Memory(_) => None,
        }
    }

    /// Duplicates the file descriptor, which keeps the connection open. Returns `None` without a
    /// descriptor or at the limit of open files.
    pub fn duplicate(&self) -> Option<OwnedFd> {
        self.tcp()?.as_fd().try_clone_to_owned().ok()
    }

    /// Whether the peer has closed its side. Unread input may remain.
    pub fn is_left(&self, cx: &mut Context<'_>) -> bool {
        let Some(stream) = self.tcp() else { return false };
        let state = std::pin::pin!(stream.ready(Interest::READABLE)).poll(cx);
        matches!(state, Poll::Ready(Ok(state)) if state.is_read_closed())
    }
}

impl AsyncRead for Socket {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Socket::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Socket::Memory(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Memory(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            // A TCP socket has no user-space buffer.
            Socket::Plain(_) => Poll::Ready(Ok(())),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Memory(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Memory(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
