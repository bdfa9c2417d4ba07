//! Connections of the command-line clients and of nodes to a server. Options have the names of
//! redis-cli.

use crate::inbox::MAX_INBOX_BYTES;
use crate::link::{Link, refused, within};
use crate::reply::Reply;
use crate::socket::Socket;
use clap::Args;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::ClientConfig;

/// Default port of a Tidemark server.
pub const DEFAULT_PORT: u16 = 6399;
/// Timeout for connecting, including TLS and the login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of received and undecoded replies of a node or Sentinel.
const MAX_PEER_INBOX_BYTES: usize = 16 << 20;

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
    /// Whether the server is a cluster node or a Sentinel. Limits replies to 16 MiB.
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

impl ConnectArgs {
    /// Creates the arguments for another Tidemark server or a Sentinel. An empty user or password
    /// means none.
    pub fn to_peer(host: &str, port: u16, user: &str, password: &str) -> ConnectArgs {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let pass = given(password);
        let user = given(user).filter(|_| pass.is_some());
        let host = host.to_owned();
        ConnectArgs { host, port, user, pass, is_peer: true, ..ConnectArgs::default() }
    }

    /// Parses `host[:port][/db]` of a Redis URL. Returns the database, too.
    pub fn of_redis(place: &str) -> Result<(ConnectArgs, u32), &'static str> {
        let (address, db) = place.split_once('/').unwrap_or((place, ""));
        let db = match db {
            "" => 0,
            db => db.parse().map_err(|_| "the database must be a number")?,
        };
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if !address.ends_with(']') => {
                (host, port.parse().map_err(|_| "the port must be a number")?)
            }
            _ => (address, 6379),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok((ConnectArgs { host, port, ..ConnectArgs::default() }, db))
    }

    /// Returns `host:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Connects and authenticates. The password may come from the environment.
    pub async fn open(&self, tls: Option<&Arc<ClientConfig>>) -> io::Result<Link> {
        let environment = || std::env::var("REDISCLI_AUTH").ok().filter(|pass| !pass.is_empty());
        let with_pass =
            ConnectArgs { pass: self.pass.clone().or_else(environment), ..self.clone() };
        with_pass.open_as(tls, "Give --user and --pass, or set REDISCLI_AUTH.").await
    }

    /// Connects and authenticates. `advice` tells the user how to provide a missing password.
    pub async fn open_as(&self, tls: Option<&Arc<ClientConfig>>, advice: &str) -> io::Result<Link> {
        within(CONNECT_TIMEOUT, self.log_in(tls, advice)).await
    }

    async fn log_in(&self, tls: Option<&Arc<ClientConfig>>, advice: &str) -> io::Result<Link> {
        let name = self.sni.as_ref().unwrap_or(&self.host);
        let socket = Socket::connect(&self.host, self.port, tls, name).await?;
        let max_bytes = if self.is_peer { MAX_PEER_INBOX_BYTES } else { MAX_INBOX_BYTES };
        let mut link = Link::new(socket, max_bytes);
        let login: Vec<&[u8]> = match (&self.user, &self.pass) {
            (Some(user), pass) => {
                vec![b"AUTH", user.as_bytes(), pass.as_deref().unwrap_or_default().as_bytes()]
            }
            (None, Some(pass)) => vec![b"AUTH", pass.as_bytes()],
            (None, None) => vec![b"PING"],
        };
        match link.call(&login).await? {
            Reply::Error(reason) if reason.starts_with("NOAUTH") => {
                Err(refused(format!("{reason} {advice}")))
            }
            // A peer that is loading still answers some commands.
            Reply::Error(reason) if self.is_peer && reason.starts_with("LOADING") => Ok(link),
            Reply::Error(reason) => Err(refused(reason)),
            _ => Ok(link),
        }
    }
}
