//! TLS with the library rustls, for the TLS port and for outgoing connections.
//!
//! Certificates are loaded at startup, on SIGHUP, and when CONFIG SET changes a key of `[tls]`.
//! Only new connections use reloaded certificates. If loading fails, the old certificates remain in
//! use.

use crate::config::{AuthClients, Tls as Settings};
use arc_swap::ArcSwapOption;
use client::Socket;
use client::tls::{Names, client_side, identity, provider, roots};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, Error, ServerConfig};

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

    /// Performs the handshake with a client.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Socket> {
        let config =
            self.server.load_full().ok_or_else(|| io::Error::other("TLS is not configured"))?;
        Ok(Socket::Tls(Box::new(TlsAcceptor::from(config).accept(stream).await?.into())))
    }

    /// Returns the configuration of connections to other servers, whose certificates must be signed
    /// by `tls.ca_file`. Presents the client's certificate if one is configured.
    pub fn client(&self) -> io::Result<Arc<ClientConfig>> {
        self.client.load_full().ok_or_else(|| io::Error::other(NO_AUTHORITIES))
    }
}

const SETTINGS: Names =
    Names { cert_file: "tls.cert_file", key_file: "tls.key_file", ca_file: "tls.ca_file" };

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
