//! TLS by rustls: certificates in PEM files, and the configuration of outgoing connections.

use crate::connect::ConnectArgs;
use std::io;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

/// Files of trusted authorities on Debian, Fedora, Alpine and the BSDs.
const SYSTEM_AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Returns the cryptography of all TLS configurations.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Names of the settings or options with PEM files, for errors. Command-line options and the
/// configuration use different names.
pub struct Names {
    /// File with the certificate.
    pub cert_file: &'static str,
    /// File with the private key.
    pub key_file: &'static str,
    /// File with trusted authorities.
    pub ca_file: &'static str,
}

/// Names of the options, for errors.
const OPTIONS: Names = Names { cert_file: "--cert", key_file: "--key", ca_file: "--cacert" };

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

/// Loads trusted authorities.
pub fn roots(setting: &str, path: &str) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(setting, path)? {
        roots
            .add(certificate)
            .map_err(|e| format!("{setting}: '{path}' contains an invalid CA certificate: {e}"))?;
    }
    Ok(Arc::new(roots))
}

/// A certificate chain and its private key.
pub type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Loads a certificate and its key, and checks that they match.
pub fn identity(names: &Names, cert_file: &str, key_file: &str) -> Result<Identity, String> {
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

/// Returns the configuration for outgoing connections, with a client certificate if one is given.
pub fn client_side(
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

impl ConnectArgs {
    /// Loads the certificates named by the options. The result serves all connections.
    pub fn tls(&self) -> io::Result<Option<Arc<ClientConfig>>> {
        if !self.tls {
            return Ok(None);
        }
        let roots = match &self.cacert {
            Some(path) => roots(OPTIONS.ca_file, path),
            None => system_roots(),
        };
        let file = |path: &Option<String>| path.clone().unwrap_or_default();
        let config = roots
            .and_then(|roots| client_side(roots, &OPTIONS, &file(&self.cert), &file(&self.key)));
        Ok(Some(Arc::new(config.map_err(io::Error::other)?)))
    }
}

/// Returns a TLS configuration for other client libraries. It trusts the authorities in `ca_file`,
/// or the system's if `ca_file` is empty.
pub fn client_tls(ca_file: &str) -> Result<ClientConfig, String> {
    let roots = if ca_file.is_empty() { system_roots() } else { roots("ca_file", ca_file) };
    client_side(roots?, &OPTIONS, "", "")
}

fn system_roots() -> Result<Arc<RootCertStore>, String> {
    let named = std::env::var("SSL_CERT_FILE").ok();
    let path = named.as_deref().or_else(|| {
        SYSTEM_AUTHORITIES.into_iter().find(|path| std::path::Path::new(path).exists())
    });
    let path = path.ok_or("no CA certificates found in the system; set --cacert")?;
    let all = CertificateDer::pem_file_iter(path).map_err(|e| format!("{path}: {e}"))?;
    let mut roots = RootCertStore::empty();
    // Certificates that cannot be parsed are not trusted.
    roots.add_parsable_certificates(all.filter_map(Result::ok));
    Ok(Arc::new(roots))
}
