//! Construction of HTTP responses.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};

pub(super) type Answer = Response<Full<Bytes>>;

pub(super) fn body(status: StatusCode, media: &'static str, content: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(content.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

pub(super) fn text(status: StatusCode, content: impl Into<Bytes>) -> Answer {
    body(status, "text/plain; charset=utf-8", content)
}

pub(super) fn json(value: &serde_json::Value) -> Answer {
    body(StatusCode::OK, "application/json", value.to_string())
}

pub(super) fn wrong(status: StatusCode, why: &str) -> Answer {
    body(status, "application/json", serde_json::json!({ "error": why }).to_string())
}
