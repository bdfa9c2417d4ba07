//! TLS, by rustls: the port that speaks it, and a client's side, which is a replica's.
//!
//! Certificates are read at the start, at SIGHUP, and whenever CONFIG SET names a key of `[tls]`:
//! new connections use the new ones, those that are there go on. If they cannot be read, nothing
//! changes.

use crate::config::{AuthClients, Tls as Settings};
use arc_swap::ArcSwapOption;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Both sides of TLS as they are now.
#[derive(Default)]
pub struct Tls {
    server: ArcSwapOption<ServerConfig>,
    client: ArcSwapOption<ClientConfig>,
    /// Handshakes that failed.
    pub(crate) failed: AtomicU64,
}

impl Tls {
    /// Reads the certificates that the settings name. An error: then everything is as before.
    pub fn configure(&self, settings: &Settings) -> Result<(), String> {
        let server =
            if settings.port == 0 { None } else { Some(Arc::new(server_config(settings)?)) };
        let client = if settings.ca_file.is_empty() {
            None
        } else {
            Some(Arc::new(client_config(settings)?))
        };
        self.server.store(server);
        self.client.store(client);
        Ok(())
    }

    /// Makes the handshake with a client.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Socket> {
        let config =
            self.server.load_full().ok_or_else(|| io::Error::other("TLS is not configured"))?;
        Ok(Socket::Tls(Box::new(TlsAcceptor::from(config).accept(stream).await?.into())))
    }

    /// Makes the handshake with a server, whose certificate must be for `host` and signed by
    /// `tls.ca_file`. We show ours if there is one.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<Socket> {
        let config =
            self.client.load_full().ok_or_else(|| io::Error::other("tls.ca_file is not set"))?;
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Socket::Tls(Box::new(TlsConnector::from(config).connect(name, stream).await?.into())))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    all.map_err(|e| format!("tls: {path}: {e}"))
}

fn roots(path: &str) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| format!("tls: {path}: {e}"))?;
    }
    Ok(Arc::new(roots))
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(settings: &Settings) -> Result<Identity, String> {
    let key = PrivateKeyDer::from_pem_file(&settings.key_file)
        .map_err(|e| format!("tls: {}: {e}", settings.key_file))?;
    Ok((certificates(&settings.cert_file)?, key))
}

fn server_config(settings: &Settings) -> Result<ServerConfig, String> {
    let text = |e: tokio_rustls::rustls::Error| format!("tls: {e}");
    let (chain, key) = identity(settings)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(text)?;
    let builder = match settings.auth_clients {
        AuthClients::No => builder.with_no_client_auth(),
        ask => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots(&settings.ca_file)?, provider());
            let verifier = if ask == AuthClients::Optional {
                verifier.allow_unauthenticated()
            } else {
                verifier
            };
            builder.with_client_cert_verifier(verifier.build().map_err(|e| format!("tls: {e}"))?)
        }
    };
    builder.with_single_cert(chain, key).map_err(text)
}

fn client_config(settings: &Settings) -> Result<ClientConfig, String> {
    let text = |e: tokio_rustls::rustls::Error| format!("tls: {e}");
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(text)?;
    let builder = builder.with_root_certificates(roots(&settings.ca_file)?);
    if settings.cert_file.is_empty() {
        return Ok(builder.with_no_client_auth());
    }
    let (chain, key) = identity(settings)?;
    builder.with_client_auth_cert(chain, key).map_err(text)
}

/// A connection, encrypted or not.
pub enum Socket {
    /// As it is.
    Plain(TcpStream),
    /// Inside TLS; as a client or as a server.
    Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
}

impl Socket {
    /// Whether the peer has closed its side, as far as the system has said; what it sent before may
    /// still be unread.
    pub(crate) fn is_left(&self, cx: &mut Context<'_>) -> bool {
        let stream = match self {
            Socket::Plain(stream) => stream,
            Socket::Tls(stream) => stream.get_ref().0,
        };
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
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            // The system has what was written.
            Socket::Plain(_) => Poll::Ready(Ok(())),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
