//! The admin port: metrics, health checks and the dashboard, over HTTP.
//!
//! It runs on its own thread with a current-thread runtime, so it cannot delay workers. Everything
//! is read-only. [`guard`] applies the ACL to pages with clients, keys or data.

mod answer;
mod api;
mod dashboard;
mod guard;
mod health;
mod history;
mod inspect;

use answer::{Answer, body, json, text};
use guard::AccessPolicy;
use history::History;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use node::metrics::{self, Format};
use node::roles::node::Host;
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// Maximum number of connections. When the maximum is reached, a new connection closes the oldest
/// connection.
const MAX_CONNECTIONS: usize = 64;
/// Timeout for receiving a complete request head. It is also the idle timeout of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum interval between log lines about failing accepts.
const SAY_EVERY: Duration = Duration::from_secs(60);
const MAX_HEAD_BYTES: usize = 16 << 10;

struct Admin {
    host: Arc<Host>,
    access_policy: AccessPolicy,
    history: History,
}

/// Opens the admin port. Returns `None` if the admin port is disabled or already in use. Another
/// node on this machine may use the port, which must not prevent startup.
pub(crate) fn listen(config: &node::config::Config) -> io::Result<Option<TcpListener>> {
    let admin = &config.admin;
    if admin.port == 0 {
        return Ok(None);
    }
    match crate::net::workers::listen_on(&admin.bind, admin.port, 128) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            tracing::warn!(
                "admin port {}:{} is in use, so the server runs without metrics and dashboard: \
                 choose another port (admin.port, or --admin-port), or disable it with 0",
                admin.bind,
                admin.port
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Serves the admin port until the server stops. The server continues if this thread ends.
pub(crate) fn start(host: &Arc<Host>, listener: TcpListener) -> io::Result<JoinHandle<()>> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _in = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    host.admin.get_or_init(|| address);
    let admin = Arc::new(Admin {
        host: host.clone(),
        access_policy: AccessPolicy::new(address),
        history: History::default(),
    });
    let thread = std::thread::Builder::new().name("admin".to_owned());
    let thread = thread.spawn(move || {
        let stop = admin.host.stop.clone();
        runtime.block_on(async {
            tokio::select! {
                () = stop.wait() => {}
                () = accept(&admin, listener) => {}
                () = history::record(&admin.host, &admin.history) => {}
            }
        });
    })?;
    tracing::info!("metrics and dashboard: http://{address}/");
    Ok(thread)
}

async fn accept(admin: &Arc<Admin>, listener: tokio::net::TcpListener) {
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    let mut said: Option<Instant> = None;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                connections.retain(|connection| !connection.is_finished());
                // Close the oldest connection, so that idle connections cannot make the port
                // unavailable.
                if connections.len() >= MAX_CONNECTIONS
                    && let Some(oldest) = connections.pop_front()
                {
                    oldest.abort();
                }
                let admin = admin.clone();
                let served = tokio::spawn(async move {
                    let _ = stream.set_nodelay(true);
                    let served = service_fn(|request| answer(&admin, peer, request));
                    let connection = hyper::server::conn::http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEAD_TIMEOUT)
                        .max_buf_size(MAX_HEAD_BYTES)
                        .serve_connection(TokioIo::new(stream), served);
                    if let Err(error) = connection.await {
                        tracing::debug!("admin port: {peer}: {error}");
                    }
                });
                connections.push_back(served.abort_handle());
            }
            Err(error) => {
                // Usually the process is out of file descriptors. Retry after a pause.
                if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
                    tracing::warn!(
                        "the admin port cannot accept connections: {error}; allow more open files \
                         (ulimit -n, LimitNOFILE)"
                    );
                    said = Some(Instant::now());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(
    admin: &Admin,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Result<Answer, std::convert::Infallible> {
    let is_head = request.method() == Method::HEAD;
    let mut response = if is_head || request.method() == Method::GET {
        route(admin, peer, &request).await
    } else {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "the admin port is read-only\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        response
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    // For HEAD, hyper omits the body of the response but sends its length.
    Ok(response)
}

/// Headers of every response. They forbid external resources, framing and caching.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

async fn route(admin: &Admin, peer: SocketAddr, request: &Request<Incoming>) -> Answer {
    let node = admin.host.node();
    let header = |name: HeaderName| {
        request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    let config = node.config().clone();
    let names = config.admin.hosts.iter().chain([&config.admin.bind]).map(String::as_str);
    if !guard::is_own_host(header(header::HOST), names) {
        return text(
            StatusCode::MISDIRECTED_REQUEST,
            "unknown Host header: use the server's address, or add the name to admin.hosts\n",
        );
    }
    let path = request.uri().path();
    let asked = guard::AdminRequest { peer, authorization: header(header::AUTHORIZATION) };
    match path {
        "/metrics" => {
            let format = Format::accepted(header(header::ACCEPT));
            body(StatusCode::OK, format.content_type(), metrics::encode(node, format))
        }
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => health::ready(&node),
        "/api/status" => json(&api::status(&node)),
        "/api/spaces" => json(&api::spaces(&node)),
        "/api/history" => json(&admin.history.json()),
        "/api/slowlog" => {
            match admin.access_policy.check_access(&node, &asked, &["SLOWLOG", "GET"]).await {
                Ok(()) => json(&api::slowlog(&node)),
                Err(refusal) => refusal,
            }
        }
        "/api/clients" => {
            match admin.access_policy.check_access(&node, &asked, &["CLIENT", "LIST"]).await {
                Ok(()) => json(&api::clients(&node)),
                Err(refusal) => refusal,
            }
        }
        "/api/page" => {
            inspect::page(&admin.access_policy, node, &asked, request.uri().query()).await
        }
        _ => match dashboard::file(path) {
            Some((media, content)) => body(StatusCode::OK, media, content),
            None => text(StatusCode::NOT_FOUND, "not found\n"),
        },
    }
}
