//! TLS with the library rustls, for the TLS port and for outgoing connections.
//!
//! Certificates are loaded at startup, on SIGHUP, and when CONFIG SET changes a key of `[tls]`.
//! Only new connections use reloaded certificates. If loading fails, the old certificates remain in
//! use.

use crate::config::{AuthClients, Tls as Settings};
use arc_swap::ArcSwapOption;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore, ServerConfig, crypto::ring};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Error of a replication link that uses TLS but has no trusted authorities.
const NO_AUTHORITIES: &str = "tls.ca_file is empty, but replication.tls = true needs it: set it to \
    a PEM file with the CA certificates that sign the master's certificate";

/// Current TLS configurations of both sides.
#[derive(Default)]
pub struct Tls {
    server: ArcSwapOption<ServerConfig>,
    client: ArcSwapOption<ClientConfig>,
    /// Number of failed handshakes.
    pub failed: AtomicU64,
}

impl Tls {
    /// Loads the certificates named by the settings. After an error the old certificates stay in
    /// use.
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

    /// Creates a configuration for outgoing connections only.
    pub(crate) fn of_client(config: ClientConfig) -> Tls {
        let tls = Tls::default();
        tls.client.store(Some(Arc::new(config)));
        tls
    }

    /// Performs the handshake with a client.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Socket> {
        let config =
            self.server.load_full().ok_or_else(|| io::Error::other("TLS is not configured"))?;
        Ok(Socket::Tls(Box::new(TlsAcceptor::from(config).accept(stream).await?.into())))
    }

    /// Performs the handshake with a server, whose certificate must be valid for `host` and signed
    /// by `tls.ca_file`. Presents the client's certificate if one is configured.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<Socket> {
        let config = self.client.load_full().ok_or_else(|| io::Error::other(NO_AUTHORITIES))?;
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Socket::Tls(Box::new(TlsConnector::from(config).connect(name, stream).await?.into())))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Names of the settings or options that contain PEM files, for errors. Command-line options and
/// the configuration use different names.
pub(crate) struct Names {
    pub(crate) cert_file: &'static str,
    pub(crate) key_file: &'static str,
    pub(crate) ca_file: &'static str,
}

const SETTINGS: Names =
    Names { cert_file: "tls.cert_file", key_file: "tls.key_file", ca_file: "tls.ca_file" };

fn bad_file(setting: &str, path: &str, error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!("{setting}: cannot read '{path}': {error}"),
        pem::Error::NoItemsFound => no_item(setting, path),
        error => format!("{setting}: '{path}' is not a PEM file: {error}"),
    }
}

/// Returns the error for a file without the required item, with a hint based on its content.
fn no_item(setting: &str, path: &str) -> String {
    let (what, label) = match setting.contains("key") {
        true => ("private key", "PRIVATE KEY"),
        false => ("certificate", "CERTIFICATE"),
    };
    let text = std::fs::read(path).unwrap_or_default();
    let has = |label: &str| text.windows(label.len()).any(|w| w == label.as_bytes());
    let found = if has("BEGIN ENCRYPTED PRIVATE KEY") || has("Proc-Type: 4,ENCRYPTED") {
        "the key is encrypted, decrypt it first (openssl pkey -in FILE -out FILE)"
    } else if has("BEGIN CERTIFICATE-----") {
        "it contains a certificate, are the two files swapped?"
    } else if has("PRIVATE KEY-----") {
        "it contains a private key, are the two files swapped?"
    } else {
        "it is not a PEM file, convert DER with openssl x509 (or pkey) -inform DER -in FILE -out \
         FILE"
    };
    format!("{setting}: '{path}' has no {what} (-----BEGIN {label}-----): {found}")
}

fn certificates(setting: &str, path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(|e| bad_file(setting, path, &e))?;
    if all.is_empty() { Err(no_item(setting, path)) } else { Ok(all) }
}

pub(crate) fn roots(setting: &str, path: &str) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(setting, path)? {
        roots
            .add(certificate)
            .map_err(|e| format!("{setting}: '{path}' contains an invalid CA certificate: {e}"))?;
    }
    Ok(Arc::new(roots))
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Loads a certificate and its key, and checks that they match.
fn identity(names: &Names, cert_file: &str, key_file: &str) -> Result<Identity, String> {
    let chain = certificates(names.cert_file, cert_file)?;
    let key = PrivateKeyDer::from_pem_file(key_file)
        .map_err(|e| bad_file(names.key_file, key_file, &e))?;
    CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider()).map_err(|e| match e {
        Error::InconsistentKeys(_) => format!(
            "{}: '{key_file}' does not match the certificate in {} ('{cert_file}')",
            names.key_file, names.cert_file
        ),
        e => format!("{} '{cert_file}' and {} '{key_file}': {e}", names.cert_file, names.key_file),
    })?;
    Ok((chain, key))
}

fn server_config(settings: &Settings) -> Result<ServerConfig, String> {
    let text = |e: Error| format!("tls: {e}");
    let port = settings.port;
    for (name, value, what) in [
        (SETTINGS.cert_file, &settings.cert_file, "the server's certificate"),
        (SETTINGS.key_file, &settings.key_file, "its private key"),
    ] {
        if value.is_empty() {
            return Err(format!(
                "{name} is empty, but tls.port = {port} needs it: set it to a PEM file with \
                 {what}, or set tls.port = 0"
            ));
        }
    }
    let (chain, key) = identity(&SETTINGS, &settings.cert_file, &settings.key_file)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(text)?;
    let builder = match settings.auth_clients {
        AuthClients::No => builder.with_no_client_auth(),
        ask => {
            let word = if ask == AuthClients::Yes { "yes" } else { "optional" };
            if settings.ca_file.is_empty() {
                return Err(format!(
                    "{} is empty, but tls.auth_clients = \"{word}\" needs it: set it to a PEM file \
                     with the CA certificates that sign client certificates, or set \
                     tls.auth_clients = \"no\" to disable client certificates",
                    SETTINGS.ca_file
                ));
            }
            let roots = roots(SETTINGS.ca_file, &settings.ca_file)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            let verifier = if ask == AuthClients::Optional {
                verifier.allow_unauthenticated()
            } else {
                verifier
            };
            let verifier = verifier.build().map_err(|e| format!("{}: {e}", SETTINGS.ca_file))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    builder.with_single_cert(chain, key).map_err(text)
}

fn client_config(settings: &Settings) -> Result<ClientConfig, String> {
    let roots = roots(SETTINGS.ca_file, &settings.ca_file)?;
    client_side(roots, &SETTINGS, &settings.cert_file, &settings.key_file)
}

/// Returns the configuration for outgoing connections, with a client certificate if one is given.
pub(crate) fn client_side(
    roots: Arc<RootCertStore>,
    names: &Names,
    cert_file: &str,
    key_file: &str,
) -> Result<ClientConfig, String> {
    let text = |e: Error| format!("tls: {e}");
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(text)?
        .with_root_certificates(roots);
    for (name, value, of) in [
        (names.key_file, key_file, (names.cert_file, cert_file)),
        (names.cert_file, cert_file, (names.key_file, key_file)),
    ] {
        if value.is_empty() && !of.1.is_empty() {
            return Err(format!("{name} is empty, but {} '{}' needs it: set both", of.0, of.1));
        }
    }
    if cert_file.is_empty() {
        return Ok(builder.with_no_client_auth());
    }
    let (chain, key) = identity(names, cert_file, key_file)?;
    builder.with_client_auth_cert(chain, key).map_err(text)
}

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
    /// Duplicates the file descriptor, which keeps the connection open. Returns `None` without a
    /// descriptor or at the limit of open files.
    pub fn duplicate(&self) -> Option<OwnedFd> {
        let stream = match self {
            Socket::Plain(stream) => stream,
            Socket::Tls(stream) => stream.get_ref().0,
            Socket::Memory(_) => return None,
        };
        stream.as_fd().try_clone_to_owned().ok()
    }

    /// Whether the peer has closed its side of the connection. Unread input may remain.
    pub fn is_left(&self, cx: &mut Context<'_>) -> bool {
        let stream = match self {
            Socket::Plain(stream) => stream,
            Socket::Tls(stream) => stream.get_ref().0,
            Socket::Memory(_) => return false,
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
