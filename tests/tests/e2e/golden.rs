//! Malformed requests: a table of what each is answered, checked against redis-server as well, whole and cut in two at every byte.
//! Where we are stricter than Redis on purpose stands in a table of its own.

use crate::beside_redis::{answer, redis};
use std::io::Read;
use std::time::Duration;
use tidemark_tests::{Raw, TestServer};

/// What a server answers until it closes, or to a mark behind it.
const MARK: &str = "$8\r\nthe mark\r\n";

/// Sent, and answered by both; without the mark the connection is closed.
fn table() -> Vec<(Vec<u8>, String)> {
    let error = |text: &str| format!("-ERR Protocol error: {text}\r\n");
    let fine = |text: &str| format!("{text}{MARK}");
    // (Lines without an end are in hostile.rs: what is answered depends on how much of them has come.)
    let table: Vec<(String, String)> = vec![
        ("*-1\r\n".into(), fine("")),
        ("*-10\r\n".into(), fine("")),
        ("*0\r\n".into(), fine("")),
        ("\r\n".into(), fine("")),
        ("\n".into(), fine("")),
        ("   \r\n".into(), fine("")),
        ("PING\n".into(), fine("+PONG\r\n")),
        ("*1\r\n$4\r\nPING\r\n".into(), fine("+PONG\r\n")),
        ("*2147483648\r\n".into(), error("invalid multibulk length")),
        ("*9223372036854775808\r\n".into(), error("invalid multibulk length")),
        ("*-9223372036854775809\r\n".into(), error("invalid multibulk length")),
        ("*abc\r\n".into(), error("invalid multibulk length")),
        ("*\r\n".into(), error("invalid multibulk length")),
        ("*1x\r\n".into(), error("invalid multibulk length")),
        ("* 1\r\n".into(), error("invalid multibulk length")),
        ("*01\r\n".into(), error("invalid multibulk length")),
        ("*+1\r\n".into(), error("invalid multibulk length")),
        ("*1\r\n$-1\r\n".into(), error("invalid bulk length")),
        ("*1\r\n$-0\r\n".into(), error("invalid bulk length")),
        ("*1\r\n$536870913\r\n".into(), error("invalid bulk length")),
        ("*1\r\n$9223372036854775807\r\n".into(), error("invalid bulk length")),
        ("*1\r\n$18446744073709551616\r\n".into(), error("invalid bulk length")),
        ("*1\r\n$abc\r\n".into(), error("invalid bulk length")),
        ("*1\r\n$\r\n".into(), error("invalid bulk length")),
        ("*1\r\n$4 \r\nPING\r\n".into(), error("invalid bulk length")),
        ("*1\r\n!4\r\nPING\r\n".into(), error("expected '$', got '!'")),
        ("*1\r\n:4\r\n".into(), error("expected '$', got ':'")),
        ("*2\r\n$4\r\nPING\r\n*1\r\n".into(), error("expected '$', got '*'")),
        ("*1\r\n\r\n".into(), error("expected '$', got '\r'").replace("'\r'", "' '")),
        ("SET \"a\r\n".into(), error("unbalanced quotes in request")),
        ("SET \"a\"b c\r\n".into(), error("unbalanced quotes in request")),
        ("SET 'a\r\n".into(), error("unbalanced quotes in request")),
        ("POST / HTTP/1.1\r\n".into(), String::new()),
        ("host: x\r\n".into(), String::new()),
        ("*1\r\n$4\r\nPOST\r\n".into(), String::new()),
        ("*1\r\n$0\r\n\r\n".into(), fine("-ERR unknown command '', with args beginning with: \r\n")),
    ];
    table.into_iter().map(|(bytes, reply)| (bytes.into_bytes(), reply)).collect()
}

/// Sends bytes in two packets, then the mark.
fn answer_in_two(port: u16, bytes: &[u8], cut: usize) -> String {
    let stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut raw = Raw { stream };
    raw.send(&bytes[..cut]);
    std::thread::sleep(Duration::from_micros(300));
    raw.send(&bytes[cut..]).send("*2\r\n$4\r\nECHO\r\n$8\r\nthe mark\r\n");
    let mut got = Vec::new();
    let mut buf = [0; 4096];
    while let Ok(n @ 1..) = raw.stream.read(&mut buf) {
        got.extend_from_slice(&buf[..n]);
        if got.ends_with(MARK.as_bytes()) {
            break;
        }
    }
    String::from_utf8_lossy(&got).into_owned()
}

#[test]
fn malformed_requests_have_golden_replies() {
    let redis = redis();
    let server = TestServer::start();
    for (bytes, expected) in table() {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        assert_eq!(answer(server.port(), &bytes), expected, "{shown:?}");
        if let Some(redis) = &redis {
            assert_eq!(answer(redis.port, &bytes), expected, "Redis, {shown:?}");
        }
        for cut in 1..bytes.len().min(40) {
            assert_eq!(answer_in_two(server.port(), &bytes, cut), expected, "{shown:?} cut at {cut}");
        }
    }
}

/// Sent; what we answer; a part of what Redis 7.0 answers instead.
#[test]
fn where_we_are_stricter_than_redis() {
    let redis = redis();
    let server = TestServer::start();
    let cases: &[(&str, &str, &str)] = &[
        // Redis skips the two bytes behind a bulk string, whatever they are: a proxy that looks at them sees other requests.
        ("*1\r\n$4\r\nPINGxx", "-ERR Protocol error: expected CRLF after a bulk string\r\n", "+PONG"),
        ("*1\r\n$4\r\nPING\n\n", "-ERR Protocol error: expected CRLF after a bulk string\r\n", "+PONG"),
        ("*1\r\n$4\r\nPING\rx", "-ERR Protocol error: expected CRLF after a bulk string\r\n", "+PONG"),
        // And the byte behind the CR of a header line.
        ("*1\rx$4\r\nPING\r\n", "-ERR Protocol error: invalid multibulk length\r\n", "+PONG"),
        ("*1\r\n$4\rxPING\r\n", "-ERR Protocol error: invalid bulk length\r\n", "+PONG"),
        // Redis answers the first line of a page's request with an error, and only its next line ends the connection.
        ("GET / HTTP/1.1\r\n", "", "-ERR wrong number of arguments for 'get' command"),
        ("PUT /x HTTP/1.0\r\n", "", "-ERR unknown command 'PUT'"),
    ];
    for (bytes, ours, theirs) in cases {
        assert_eq!(answer(server.port(), bytes.as_bytes()), *ours, "{bytes:?}");
        for cut in 1..bytes.len() {
            assert_eq!(answer_in_two(server.port(), bytes.as_bytes(), cut), *ours, "{bytes:?} cut at {cut}");
        }
        if let Some(redis) = &redis {
            let reply = answer(redis.port, bytes.as_bytes());
            assert!(reply.starts_with(theirs), "Redis is as strict now: {bytes:?}: {reply:?}");
        }
    }
}

#[test]
fn other_protocols_are_cut_off() {
    let server = TestServer::start();
    let hello = [&[0x16u8, 3, 1, 2, 0, 1, 0][..], &[0xfc; 500]].concat();
    let mut raw = server.raw();
    raw.send(&hello);
    assert_eq!(raw.rest(), "-ERR Protocol error: this port does not speak TLS\r\n");
    // A browser: nothing of what it sends is executed, and nothing of ours is read as a page.
    for first in ["POST /x HTTP/1.1", "GET /SHUTDOWN HTTP/1.1", "OPTIONS * HTTP/1.0", "Host: localhost"] {
        let mut raw = server.raw();
        raw.send(format!("{first}\r\nHost: localhost:6399\r\nContent-Type: text/plain\r\n\r\nHSET post:1 like 5\r\n"));
        assert_eq!(raw.rest(), "", "{first}");
    }
    server.raw().request(&["HGET", "post:1", "like"]).expect("$-1\r\n");
}
