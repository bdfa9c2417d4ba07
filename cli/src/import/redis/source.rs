//! A Redis server as the source or target of a copy: its URL and its connections.

use client::{Client, ConnectArgs};
use std::fmt;
use std::io;
use std::net::ToSocketAddrs as _;

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
        let (connect, db) = ConnectArgs::of_redis(place).map_err(wrong)?;
        if connect.host.is_empty() {
            return Err(wrong("the host is missing"));
        }
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
        Ok(RedisSource { connect: ConnectArgs { user, pass, tls, cacert, ..connect }, db, side })
    }

    /// Fails if the host name cannot be resolved, because a retry would not help.
    pub(crate) fn resolve(&self) -> Result<(), String> {
        let ConnectArgs { host, port, .. } = &self.connect;
        match (host.as_str(), *port).to_socket_addrs() {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{}: cannot resolve '{host}': {error}", self.side.option())),
        }
    }

    pub(crate) fn open(&self) -> io::Result<Client> {
        let (option, variable) = (self.side.option(), self.side.variable());
        let advice = format!("Use {option} redis://user:password@..., or set {variable}.");
        let mut remote = Client::new(async {
            let tls = self.connect.tls()?;
            self.connect.open_as(tls.as_ref(), &advice).await
        })?;
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
