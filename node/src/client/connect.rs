//! Connections of the command-line clients and of nodes to a server. Options have the names of
//! redis-cli.

use crate::config::DEFAULT_PORT;
use crate::runtime::tls;
use crate::runtime::tls::{Names, Socket, Tls};
use clap::Args;
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

/// Address and credentials of the server.
#[derive(Args, Clone, Debug)]
pub struct ConnectArgs {
    /// The server's host.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// The server's port.
    #[arg(short, long, default_value_t = DEFAULT_PORT)]
    pub port: u16,
    /// User to authenticate as. Default: `default`.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Password. The process list shows it to other users of this machine. To hide it, set the
    /// environment variable REDISCLI_AUTH, as for redis-cli.
    #[arg(short = 'a', long = "pass", visible_alias = "password", value_name = "PASSWORD")]
    pub pass: Option<String>,
    /// Connect with TLS.
    #[arg(long)]
    pub tls: bool,
    /// TLS: file with trusted CA certificates (PEM). Default: the system's.
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub cacert: Option<String>,
    /// TLS: client certificate (PEM).
    #[arg(long, value_name = "FILE", requires_all = ["tls", "key"])]
    pub cert: Option<String>,
    /// TLS: private key of the client certificate (PEM).
    #[arg(long, value_name = "FILE", requires_all = ["tls", "cert"])]
    pub key: Option<String>,
    /// TLS: host name to verify in the server's certificate. Default: --host.
    #[arg(long, value_name = "HOST", requires = "tls")]
    pub sni: Option<String>,
    /// Whether the server is a cluster node or a Sentinel. If so, replies may have at most 16 MiB.
    #[arg(skip)]
    pub is_peer: bool,
}

impl Default for ConnectArgs {
    fn default() -> Self {
        ConnectArgs {
            host: "127.0.0.1".to_owned(),
            port: DEFAULT_PORT,
            user: None,
            pass: None,
            tls: false,
            cacert: None,
            cert: None,
            key: None,
            sni: None,
            is_peer: false,
        }
    }
}

/// Names of the options, for errors.
const OPTIONS: Names = Names { cert_file: "--cert", key_file: "--key", ca_file: "--cacert" };
/// Timeout for connecting, including TLS and the login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
const READ_BYTES: usize = 64 << 10;
/// Maximum bytes of received and undecoded replies: Redis's limit for a query buffer.
const MAX_INBOX_BYTES: usize = 1 << 30;
/// Maximum bytes of received and undecoded replies of a node or Sentinel.
const MAX_PEER_INBOX_BYTES: usize = 16 << 20;
/// Files of trusted authorities on Debian, Fedora, Alpine and the BSDs.
const SYSTEM_AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

impl ConnectArgs {
    /// Creates the arguments for another Tidemark server or a Sentinel, and the password for
    /// [`open_as`]. An empty user or password means none.
    ///
    /// [`open_as`]: ConnectArgs::open_as
    pub fn to_peer(
        host: &str,
        port: u16,
        user: &str,
        password: &str,
    ) -> (ConnectArgs, Option<String>) {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let pass = given(password);
        let user = given(user).filter(|_| pass.is_some());
        let host = host.to_owned();
        (ConnectArgs { host, port, user, is_peer: true, ..ConnectArgs::default() }, pass)
    }

    /// Returns `host:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Loads the certificates named by the options. All connections can share the result.
    pub fn tls(&self) -> io::Result<Option<Tls>> {
        if !self.tls {
            return Ok(None);
        }
        let roots = match &self.cacert {
            Some(path) => tls::roots(OPTIONS.ca_file, path),
            None => system_roots(),
        };
        let text = |path: &Option<String>| path.clone().unwrap_or_default();
        let client = roots
            .and_then(|roots| {
                tls::client_side(roots, &OPTIONS, &text(&self.cert), &text(&self.key))
            })
            .map_err(io::Error::other)?;
        Ok(Some(Tls::of_client(client)))
    }

    /// Connects and authenticates. The password may come from the environment.
    pub async fn open(&self, tls: Option<&Tls>) -> io::Result<Link> {
        let environment = std::env::var("REDISCLI_AUTH").ok().filter(|pass| !pass.is_empty());
        let pass = self.pass.clone().or(environment);
        self.open_as(tls, pass, "Give --user and --pass, or set REDISCLI_AUTH.").await
    }

    /// Connects and authenticates with `pass`. `advice` tells the user how to provide a missing
    /// password.
    pub async fn open_as(
        &self,
        tls: Option<&Tls>,
        pass: Option<String>,
        advice: &str,
    ) -> io::Result<Link> {
        within(CONNECT_TIMEOUT, self.log_in(tls, pass, advice)).await
    }

    async fn log_in(
        &self,
        tls: Option<&Tls>,
        pass: Option<String>,
        advice: &str,
    ) -> io::Result<Link> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let socket = match tls {
            Some(tls) => tls.connect(self.sni.as_ref().unwrap_or(&self.host), stream).await?,
            None => Socket::Plain(stream),
        };
        let most = if self.is_peer { MAX_PEER_INBOX_BYTES } else { MAX_INBOX_BYTES };
        let mut link = Link { socket, inbox: Vec::new(), start: 0, most };
        let login: Vec<&[u8]> = match (&self.user, &pass) {
            (Some(user), pass) => {
                vec![b"AUTH", user.as_bytes(), pass.as_deref().unwrap_or_default().as_bytes()]
            }
            (None, Some(pass)) => vec![b"AUTH", pass.as_bytes()],
            (None, None) => vec![b"PING"],
        };
        match link.call(&login).await? {
            OwnedFrame::Error(reason) if reason.starts_with("NOAUTH") => {
                Err(refused(format!("{reason} {advice}")))
            }
            // A node that is loading its data still answers some commands.
            OwnedFrame::Error(reason) if self.is_peer && reason.starts_with("LOADING") => Ok(link),
            OwnedFrame::Error(reason) => Err(refused(reason)),
            _ => Ok(link),
        }
    }
}

/// Runs `work` with the reply timeout.
pub async fn timely<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    within(REPLY_TIMEOUT, work).await
}

/// Runs `work` with a timeout.
pub async fn within<T>(
    patience: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::time::timeout(patience, work).await.unwrap_or_else(|_| {
        let why = format!("the server has not replied for {} s", patience.as_secs_f32());
        Err(io::Error::new(ErrorKind::TimedOut, why))
    })
}

/// Returns a TLS configuration for other client libraries. The configuration trusts the authorities
/// in `ca_file`, or the system's authorities if `ca_file` is empty.
#[cfg(feature = "kafka")]
pub fn client_tls(ca_file: &str) -> Result<tokio_rustls::rustls::ClientConfig, String> {
    let roots = if ca_file.is_empty() { system_roots() } else { tls::roots("ca_file", ca_file) };
    tls::client_side(roots?, &OPTIONS, "", "")
}

fn system_roots() -> Result<std::sync::Arc<RootCertStore>, String> {
    let named = std::env::var("SSL_CERT_FILE").ok();
    let path = named.as_deref().or_else(|| {
        SYSTEM_AUTHORITIES.into_iter().find(|path| std::path::Path::new(path).exists())
    });
    let path = path.ok_or("no CA certificates found in the system; set --cacert")?;
    let all = CertificateDer::pem_file_iter(path).map_err(|e| format!("{path}: {e}"))?;
    let mut roots = RootCertStore::empty();
    // Certificates that cannot be parsed are not trusted.
    roots.add_parsable_certificates(all.filter_map(Result::ok));
    Ok(std::sync::Arc::new(roots))
}

/// Appends one command in RESP.
pub fn put_command(out: &mut Vec<u8>, args: &[&[u8]]) {
    put_head(out, b'*', args.len());
    args.iter().for_each(|arg| put_bulk(out, arg));
}

/// Appends one argument as a bulk string.
pub fn put_bulk(out: &mut Vec<u8>, arg: &[u8]) {
    put_head(out, b'$', arg.len());
    out.extend_from_slice(arg);
    out.extend_from_slice(b"\r\n");
}

/// Appends a RESP type byte and a length.
pub fn put_head(out: &mut Vec<u8>, sign: u8, length: usize) {
    out.push(sign);
    match length {
        // Most lengths have one digit.
        0..=9 => out.push(b'0' + length as u8),
        _ => out.extend_from_slice(length.to_string().as_bytes()),
    }
    out.extend_from_slice(b"\r\n");
}

/// Whether the error is about authentication or permissions, so that a retry would fail again.
pub fn is_permission_error(reason: &str) -> bool {
    ["NOAUTH", "WRONGPASS", "NOPERM"].iter().any(|word| reason.starts_with(word))
}

/// Converts the peer's error reply; permission errors become `PermissionDenied`.
pub fn refused(reason: String) -> io::Error {
    match is_permission_error(&reason) {
        true => io::Error::new(ErrorKind::PermissionDenied, reason),
        false => io::Error::other(reason),
    }
}

/// Returns the error for a connection closed by the peer.
pub fn closed() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")
}

/// Returns the error for a reply longer than the limit.
pub fn too_long(most: usize) -> io::Error {
    let why = format!("the server's reply exceeds {most} bytes");
    io::Error::new(ErrorKind::InvalidData, why)
}

/// Decodes the next reply and its length. Returns `None` if the reply is incomplete.
pub fn read_reply(bytes: &[u8]) -> io::Result<Option<(OwnedFrame, usize)>> {
    decode(bytes).map_err(|e| {
        io::Error::new(
            ErrorKind::InvalidData,
            format!("the server sent an invalid RESP reply: {e}"),
        )
    })
}

/// An asynchronous connection to a server.
pub struct Link {
    /// Socket, for callers that read and write directly.
    pub socket: Socket,
    inbox: Vec<u8>,
    /// Number of decoded bytes in `inbox`.
    start: usize,
    /// Maximum bytes in `inbox`.
    most: usize,
}

impl Link {
    /// Sends one command and returns its reply.
    pub async fn call(&mut self, args: &[&[u8]]) -> io::Result<OwnedFrame> {
        let mut out = Vec::new();
        put_command(&mut out, args);
        self.send(&out).await?;
        self.next().await
    }

    /// Like [`Link::call`], but returns the peer's error reply as an error.
    pub async fn ask(&mut self, args: &[&[u8]]) -> io::Result<OwnedFrame> {
        match self.call(args).await? {
            OwnedFrame::Error(reason) => Err(refused(reason)),
            reply => Ok(reply),
        }
    }

    /// Sends requests. The caller must read replies before the buffers of both sockets are full.
    pub async fn send(&mut self, requests: &[u8]) -> io::Result<()> {
        self.socket.write_all(requests).await?;
        self.socket.flush().await
    }

    /// Returns the next reply.
    pub async fn next(&mut self) -> io::Result<OwnedFrame> {
        loop {
            let rest = &self.inbox[self.start..];
            if let Some((reply, length)) = if rest.is_empty() { None } else { read_reply(rest)? } {
                self.start += length;
                return Ok(reply);
            }
            self.inbox.drain(..self.start);
            self.start = 0;
            if self.inbox.len() > self.most {
                return Err(too_long(self.most));
            }
            // An incomplete reply is decoded again after each read, so reads are large.
            self.inbox.reserve(READ_BYTES.max(self.inbox.len()));
            if self.socket.read_buf(&mut self.inbox).await? == 0 {
                return Err(closed());
            }
        }
    }
}
