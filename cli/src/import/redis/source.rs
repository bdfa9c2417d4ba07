//! A Redis server as the source or target of a copy: its URL and its connections.

use node::client::connect::{ConnectArgs, Link, is_permission_error, put_command, refused, timely};
use redis_protocol::resp2::types::OwnedFrame;
use std::fmt;
use std::io;
use std::net::ToSocketAddrs as _;
use std::time::Duration;
use tokio::runtime::Runtime;

#[derive(Clone, Debug)]
pub(crate) struct RedisSource {
    connect: ConnectArgs,
    pub(crate) db: u32,
    side: Side,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    From,
    To,
}

impl Side {
    fn option(self) -> &'static str {
        match self {
            Side::From => "--from",
            Side::To => "--to",
        }
    }

    /// Returns the name of the environment variable for the password. Other users of the machine
    /// can see a password that is part of a URL argument.
    fn variable(self) -> &'static str {
        match self {
            Side::From => "TIDEMARK_SOURCE_PASSWORD",
            Side::To => "TIDEMARK_TARGET_PASSWORD",
        }
    }
}

/// Prints the URL without the password.
impl fmt::Display for RedisSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.connect.tls { "rediss" } else { "redis" };
        write!(f, "{scheme}://{}", self.connect.address())?;
        if self.db > 0 { write!(f, "/{}", self.db) } else { Ok(()) }
    }
}

impl RedisSource {
    /// Parses `redis://[[user]:password@]host[:port][/db]`, or `rediss://` for TLS.
    pub(crate) fn parse(
        side: Side,
        url: &str,
        cacert: Option<&str>,
    ) -> Result<RedisSource, String> {
        let wrong = |why: &str| {
            // The error must not contain the password.
            let option = side.option();
            format!("{option}: {why}; expected redis://[[user]:password@]host[:port][/db]")
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("redis:// is missing"))?;
        let tls = match scheme {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(wrong("the scheme must be redis or rediss")),
        };
        let (login, place) = rest.rsplit_once('@').map_or((None, rest), |(l, p)| (Some(l), p));
        let (address, db) = place.split_once('/').unwrap_or((place, ""));
        let db = match db {
            "" => 0,
            db => db.parse().map_err(|_| wrong("the database must be a number"))?,
        };
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if !address.ends_with(']') => {
                (host, port.parse().map_err(|_| wrong("the port must be a number"))?)
            }
            _ => (address, 6379),
        };
        if host.is_empty() {
            return Err(wrong("the host is missing"));
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let (user, pass) = match login {
            None => (None, None),
            Some(login) => {
                let (user, pass) = match login.split_once(':') {
                    Some((user, pass)) => (user, Some(pass)),
                    None => (login, None),
                };
                let text = |t: &str| unescaped(t).ok_or_else(|| wrong("invalid percent-encoding"));
                let user = text(user)?;
                (Some(user).filter(|user| !user.is_empty()), pass.map(text).transpose()?)
            }
        };
        let pass = pass.or_else(|| std::env::var(side.variable()).ok().filter(|p| !p.is_empty()));
        let cacert = cacert.filter(|_| tls).map(str::to_owned);
        Ok(RedisSource {
            connect: ConnectArgs { host, port, user, pass, tls, cacert, ..ConnectArgs::default() },
            db,
            side,
        })
    }

    /// Fails if the host name cannot be resolved, because a retry would not help.
    pub(crate) fn resolve(&self) -> Result<(), String> {
        let ConnectArgs { host, port, .. } = &self.connect;
        match (host.as_str(), *port).to_socket_addrs() {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{}: cannot resolve '{host}': {error}", self.side.option())),
        }
    }

    pub(crate) fn open(&self) -> io::Result<BlockingConnection> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let link = runtime.block_on(async {
            let tls = self.connect.tls()?;
            let (option, variable) = (self.side.option(), self.side.variable());
            let advice = format!("Use {option} redis://user:password@..., or set {variable}.");
            self.connect.open_as(tls.as_ref(), self.connect.pass.clone(), &advice).await
        })?;
        let mut remote = BlockingConnection { runtime, link };
        if self.db > 0 {
            let db = self.db.to_string();
            // `InvalidInput` prevents retries, because another attempt would fail in the same way.
            let select = remote.ask(&[b"SELECT", db.as_bytes()]);
            select.map_err(|error| match error.kind() {
                io::ErrorKind::Other => io::Error::new(io::ErrorKind::InvalidInput, error),
                _ => error,
            })?;
        }
        Ok(remote)
    }
}

/// Decodes percent escapes: `%41` is `A`.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

/// A connection with blocking calls.
pub(crate) struct BlockingConnection {
    runtime: Runtime,
    link: Link,
}

impl BlockingConnection {
    pub(crate) fn open(connect: &ConnectArgs) -> io::Result<BlockingConnection> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tls = connect.tls()?;
        let link = runtime.block_on(connect.open(tls.as_ref()))?;
        Ok(BlockingConnection { runtime, link })
    }

    pub(crate) fn run<T>(&mut self, work: impl AsyncFnOnce(&mut Link) -> T) -> T {
        self.runtime.block_on(work(&mut self.link))
    }

    /// Sends `count` requests and passes each reply to `take`. A missing permission ends the batch,
    /// because later requests would fail in the same way.
    pub(crate) fn batch(
        &mut self,
        requests: &[u8],
        count: usize,
        mut take: impl FnMut(OwnedFrame),
    ) -> io::Result<()> {
        let link = &mut self.link;
        self.runtime.block_on(async {
            timely(link.send(requests)).await?;
            for _ in 0..count {
                match timely(link.next()).await? {
                    OwnedFrame::Error(reason) if is_permission_error(&reason) => {
                        return Err(refused(reason));
                    }
                    reply => take(reply),
                }
            }
            Ok(())
        })
    }

    /// Sends a request and returns its reply. An error reply becomes `Err`.
    pub(crate) fn ask(&mut self, args: &[&[u8]]) -> io::Result<OwnedFrame> {
        self.runtime.block_on(timely(self.link.ask(args)))
    }

    /// Returns the next message, or `None` if none arrives within `patience`.
    pub(crate) fn message(&mut self, patience: Duration) -> io::Result<Option<OwnedFrame>> {
        let link = &mut self.link;
        let next = async { tokio::time::timeout(patience, link.next()).await };
        // A timeout does not lose a partial message, because the link buffers the received part.
        self.runtime.block_on(next).ok().transpose()
    }

    /// Sends a request without waiting for the reply. [`BlockingConnection::message`] returns it.
    pub(crate) fn send(&mut self, args: &[&[u8]]) -> io::Result<()> {
        let mut request = Vec::new();
        put_command(&mut request, args);
        self.runtime.block_on(timely(self.link.send(&request)))
    }
}

pub(crate) fn bytes(frame: OwnedFrame) -> Option<Vec<u8>> {
    match frame {
        OwnedFrame::BulkString(bytes) | OwnedFrame::SimpleString(bytes) => Some(bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{RedisSource, Side};

    #[test]
    fn addresses_are_read_and_shown_without_the_password() {
        for (url, shown, user, pass) in [
            ("redis://a", "redis://a:6379", None, None),
            ("redis://:secret@a:1/3", "redis://a:1/3", None, Some("secret")),
            ("rediss://u:p%40%3a@b.c:7", "rediss://b.c:7", Some("u"), Some("p@:")),
            ("redis://u@a", "redis://a:6379", Some("u"), None),
            ("redis://u:a@b@[::1]:7", "redis://::1:7", Some("u"), Some("a@b")),
        ] {
            let source = RedisSource::parse(Side::From, url, None).unwrap();
            assert_eq!(source.to_string(), shown);
            assert_eq!(source.connect.user.as_deref(), user);
            assert_eq!(source.connect.pass.as_deref(), pass);
        }
        for bad in ["a:1", "http://a", "redis://", "redis://a:b", "redis://a/b", "redis://u:%4@a"] {
            let error = RedisSource::parse(Side::From, bad, None).unwrap_err();
            assert!(error.starts_with("--from: "), "{bad}: {error}");
        }
    }
}
