//! Access control of the admin port.
//!
//! The admin port is read-only. On the loopback interface the admin port requires no password,
//! unless the RESP port requires a password. On any other address, or if the default user has a
//! password, HTTP basic authentication is required. The ACL user must be allowed to run the
//! equivalent command: SLOWLOG GET or CLIENT LIST (category @admin), or FEED.GET on the view.
//!
//! Other web pages cannot read responses, because no CORS header allows it. DNS rebinding would
//! circumvent this. A request whose `Host` is a name other than localhost, `admin.bind` or one of
//! `admin.hosts` therefore gets status 421. An address in `Host` is safe, because the browser has
//! connected to that address.

use super::answer::{Answer, wrong};
use base64::Engine as _;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use node::acl::{DEFAULT, Reason, Request};
use node::command::table::{numbers_named, with_numbers};
use node::roles::node::Node;
use resp::RequestQueue;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Delay before the response to a wrong password.
const WRONG_PASSWORD: Duration = Duration::from_millis(500);

/// Access policy of the admin port, derived from the address to which the port is bound.
pub(super) struct AccessPolicy {
    is_local: bool,
}

pub(super) struct AdminRequest<'a> {
    pub(super) peer: SocketAddr,
    pub(super) authorization: &'a str,
}

impl AccessPolicy {
    pub(super) fn new(address: SocketAddr) -> AccessPolicy {
        AccessPolicy { is_local: address.ip().to_canonical().is_loopback() }
    }

    /// Checks whether the sender may run this command. If not, the error is the response to send.
    pub(super) async fn check_access(
        &self,
        node: &Node,
        asked: &AdminRequest<'_>,
        command: &[&str],
    ) -> Result<(), Answer> {
        let user = if asked.authorization.is_empty() {
            let is_free = self.is_local && node.acl.is_open();
            node.acl.get(DEFAULT).filter(|_| is_free).ok_or_else(|| login("log in first"))?
        } else {
            let (name, password) = credentials(asked.authorization)
                .ok_or_else(|| login("only basic authentication is supported"))?;
            let Some(user) = node.acl.login(name.as_bytes(), password.as_bytes()) else {
                node.acl.refused[Reason::Auth as usize].fetch_add(1, Relaxed);
                let info = format!("addr={} name=admin-port", asked.peer).into_bytes();
                node.acl.log.lock().note(Reason::Auth, b"HTTP", name.as_bytes(), info);
                tokio::time::sleep(WRONG_PASSWORD).await;
                return Err(login("wrong user name or password"));
            };
            user
        };
        let mut kept = RequestQueue::default();
        kept.push_words(command);
        let Some(args) = kept.iter().next() else { return Err(login("log in first")) };
        let numbers = numbers_named(&full_name(command));
        let Some((number, spec)) = with_numbers().nth(numbers.start) else {
            return Err(login("log in first"));
        };
        match node.acl.dry_run(&user, &Request { spec, number, args }, node.loaded().as_deref()) {
            None => Ok(()),
            Some(why) => Err(wrong(StatusCode::FORBIDDEN, &why)),
        }
    }
}

/// Returns the command's name in the table, including the subcommand.
fn full_name(command: &[&str]) -> String {
    let name = command[0].to_lowercase();
    match command.get(1) {
        Some(sub) if !numbers_named(&format!("{name}|{}", sub.to_lowercase())).is_empty() => {
            format!("{name}|{}", sub.to_lowercase())
        }
        _ => name,
    }
}

/// Returns whether `Host` denotes this server. It must be an IP address, localhost, or one of
/// `names`. Browsers always send `Host`, so an empty `Host` is accepted.
pub(super) fn is_own_host<'n>(host: &str, mut names: impl Iterator<Item = &'n str>) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    host.is_empty()
        || address.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || names.any(|own| !own.is_empty() && name.eq_ignore_ascii_case(own))
}

/// Decodes user name and password of basic authentication.
fn credentials(authorization: &str) -> Option<(String, String)> {
    let (scheme, encoded) = authorization.split_once(' ')?;
    let decoded = base64::prelude::BASE64_STANDARD.decode(encoded.trim()).ok()?;
    let text = String::from_utf8(decoded).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let (name, password) = text.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

fn login(why: &str) -> Answer {
    let mut answer = wrong(StatusCode::UNAUTHORIZED, why);
    let realm = HeaderValue::from_static(
        "Basic realm=\"Tidemark: a user with +@admin\", charset=\"UTF-8\"",
    );
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, realm);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_configured_names_are_own_hosts() {
        let is_own = |host| is_own_host(host, ["feeds.internal", ""].into_iter());
        for host in [
            "",
            "127.0.0.1:6398",
            "LocalHost:6398",
            "localhost",
            "[::1]:6398",
            "[::1]",
            "10.0.0.1",
            "Feeds.Internal:6398",
        ] {
            assert!(is_own(host), "{host}");
        }
        for host in [
            "evil.example:6398",
            "evil.example",
            "127.0.0.1.evil.example",
            ":80",
            "localhost.evil.example",
            "x.feeds.internal",
            "evil.example:6398:x",
        ] {
            assert!(!is_own(host), "{host}");
        }
    }

    #[test]
    fn basic_authentication_is_read_and_nothing_else() {
        let some = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
        assert_eq!(credentials("Basic b3BzOmE6Yg=="), some("ops", "a:b"));
        assert_eq!(credentials("basic b3BzOg=="), some("ops", ""));
        for wrong in ["", "Basic", "Basic !!", "Bearer b3BzOg==", "Basic b3Bz", "Basic /////w=="] {
            assert_eq!(credentials(wrong), None, "{wrong}");
        }
    }
}
