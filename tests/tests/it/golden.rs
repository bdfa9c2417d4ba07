//! Malformed requests with their expected replies, checked against redis-server as well, each sent
//! whole and split at every byte. A separate table lists the cases in which Tidemark is
//! deliberately stricter.

use crate::beside_redis::{answer, redis};
use std::io::Read;
use std::time::Duration;
use tidemark_tests::{Raw, TestServer};

/// Reply to the final ECHO marker.
const MARK: &str = "$8\r\nthe mark\r\n";

/// Requests and the replies of both servers; a reply without the marker means that the connection
/// closes.
fn table() -> Vec<(Vec<u8>, String)> {
    let error = |text: &str| format!("-ERR Protocol error: {text}\r\n");
    let fine = |text: &str| format!("{text}{MARK}");
    // Lines without a line end are tested in hostile.rs, because the reply depends on their length.
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
        (
            "*1\r\n$0\r\n\r\n".into(),
            fine("-ERR unknown command '', with args beginning with: \r\n"),
        ),
    ];
    table.into_iter().map(|(bytes, reply)| (bytes.into_bytes(), reply)).chain(families()).collect()
}

/// Additional requests, grouped by reply.
fn families() -> Vec<(Vec<u8>, String)> {
    let error = |text: &str| format!("-ERR Protocol error: {text}\r\n");
    let fine = |text: &str| format!("{text}{MARK}");
    let unknown = |name: &str, args: &str| {
        format!("-ERR unknown command '{name}', with args beginning with: {args}\r\n")
    };
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let mut table: Vec<(Vec<u8>, String)> = Vec::new();
    let mut row = |bytes: &[u8], reply: String| table.push((bytes.to_vec(), reply));

    // Inline requests: quotes, escapes, spaces.
    for (line, word) in [
        (r#"ECHO "a\tb\n\r\b\a""#, "a\tb\n\r\u{8}\u{7}"),
        (r#"ECHO "\x41\x00""#, "A\0"),
        (r#"ECHO "\x4""#, "x4"),
        (r#"ECHO "\xzz""#, "xzz"),
        (r#"ECHO "\q""#, "q"),
        (r#"ECHO "\\""#, "\\"),
        (r#"ECHO "\"""#, "\""),
        (r"ECHO 'a\nb'", r"a\nb"),
        (r"ECHO 'it\'s'", "it's"),
        (r"ECHO \n", r"\n"),
        (r#"ECHO """#, ""),
        ("ECHO ''", ""),
        (r#"ECHO a"b""#, "ab"),
        ("ECHO a'b'", "ab"),
        (r#""ECHO" hi"#, "hi"),
        ("ECHO\thi", "hi"),
        ("ECHO hi\r", "hi"),
        ("\u{b}\u{c} ECHO hi \t", "hi"),
        ("ECHO a\u{b}b\u{c}c", "a\u{b}b\u{c}c"),
    ] {
        row(format!("{line}\r\n").as_bytes(), fine(&bulk(word)));
    }
    for line in [
        r#"ECHO "a"'b'"#,
        r#"ECHO a"b"#,
        r#"ECHO "\""#,
        "\"PING",
        "PING \"",
        "PING '",
        "ECHO \"a\nb\"",
    ] {
        row(format!("{line}\r\n").as_bytes(), error("unbalanced quotes in request"));
    }
    for line in ["\tPING\t", "\"PING\"", "pInG", "'PING'"] {
        row(format!("{line}\r\n").as_bytes(), fine("+PONG\r\n"));
    }
    row(b"PING\r\nPING\n\nPING\r\n", fine("+PONG\r\n+PONG\r\n+PONG\r\n"));
    row(b"\r\r\n", fine(""));

    // Argument counts.
    for count in ["-2147483648", "-9223372036854775808", "0\r\n*0", "-1\r\n*-1"] {
        row(format!("*{count}\r\n").as_bytes(), fine(""));
    }
    let digits = "9".repeat(100);
    for count in [
        "00",
        "-0",
        "1.5",
        "1 ",
        "--1",
        "0x1",
        "18446744073709551617",
        &digits,
        "1\n$4",
        "1\n$4\r\nPING",
        "1\n$4\nPING\n",
    ] {
        row(format!("*{count}\r\n").as_bytes(), error("invalid multibulk length"));
    }

    // Argument lengths.
    for length in [
        "-2",
        "00",
        "04",
        "+4",
        "0x4",
        " 4",
        "4.0",
        "2147483648",
        "9223372036854775808",
        "-9223372036854775808",
        "4\nPING",
        &digits,
    ] {
        row(format!("*1\r\n${length}\r\nPING\r\n").as_bytes(), error("invalid bulk length"));
    }
    row(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$-1\r\n", error("invalid bulk length"));
    row(b"MULTI\r\n*1\r\n$abc\r\n", format!("+OK\r\n{}", error("invalid bulk length")));

    // Array elements other than bulk strings: nested arrays, other RESP types, plain words.
    for other in [
        "*1",
        "+hi",
        ":5",
        "-1",
        "_",
        "#t",
        ",1",
        "(1",
        "%0",
        "~0",
        ">1",
        "|1",
        "=5\r\ntxt:a",
        "!1",
        "\"",
        "'",
        "\\",
        "PING",
        "0",
    ] {
        let refused = error(&format!("expected '$', got '{}'", &other[..1]));
        row(format!("*2\r\n$4\r\nECHO\r\n{other}\r\n").as_bytes(), refused.clone());
        row(format!("*1\r\n{other}\r\n").as_bytes(), refused);
    }
    row(b"*1\r\n\n\r\n", error("expected '$', got ' '"));

    // Other RESP types at the start of a request are arguments of an inline request.
    for other in ["+OK", ":1", "-1", "%1", "~1", ">1", "_", "#t", ",1.5", "(123", "|1", "!3", "$4"]
    {
        row(format!("{other}\r\n").as_bytes(), fine(&unknown(other, "")));
    }
    row(b"-ERR x\r\n", fine(&unknown("-ERR", "'x' ")));
    row(b"=5\r\ntxt:a\r\n", fine(&[unknown("=5", ""), unknown("txt:a", "")].concat()));

    // The error text is truncated and on one line.
    let (y, z) = ("y".repeat(100), "z".repeat(100));
    row(format!("{}\r\n", "x".repeat(200)).as_bytes(), fine(&unknown(&"x".repeat(128), "")));
    row(
        format!("NOPE {y}{z}\r\n").as_bytes(),
        fine(&unknown("NOPE", &format!("'{y}{}' ", &z[..28]))),
    );
    row(
        format!("NOPE {y} {z}\r\n").as_bytes(),
        fine(&unknown("NOPE", &format!("'{y}' '{}' ", &z[..25]))),
    );
    row(
        b"*4\r\n$4\r\nNOPE\r\n$0\r\n\r\n$1\r\n\n\r\n$1\r\n'\r\n",
        fine(&unknown("NOPE", "'' ' ' ''' ")),
    );
    row(b"*1\r\n$4\r\na\r\nb\r\n", fine(&unknown("a  b", "")));
    row(b"*1\r\n$5\r\nPING \r\n", fine(&unknown("PING ", "")));
    row(b"*2\r\n$0\r\n\r\n$0\r\n\r\n", fine(&unknown("", "'' ")));
    row(b"\"\" a\r\n", fine(&unknown("", "'a' ")));
    row(
        b"*2\r\n$6\r\nCLIENT\r\n$3\r\na\r\n\r\n",
        fine("-ERR unknown subcommand 'a  '. Try CLIENT HELP.\r\n"),
    );
    row(
        b"*2\r\n$6\r\nCONFIG\r\n$0\r\n\r\n",
        fine("-ERR unknown subcommand ''. Try CONFIG HELP.\r\n"),
    );
    row(b"\x15\x03\r\n", fine(&unknown("\u{15}\u{3}", "")));
    row("get\u{e9}\r\n".as_bytes(), fine(&unknown("get\u{e9}", "")));
    row(b"SSH-2.0-OpenSSH_9\r\n", fine(&unknown("SSH-2.0-OpenSSH_9", "")));

    // Other protocols.
    for bytes in [
        "post\r\n",
        "HOST:\r\n",
        " POST\r\n",
        "\"POST\"\r\n",
        "*2\r\n$4\r\nPOST\r\n$1\r\n/\r\n",
        "*1\r\n$5\r\nHost:\r\n",
    ] {
        row(bytes.as_bytes(), String::new());
    }
    table
}

/// Sends bytes in two packets, then the marker.
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
        assert_eq!(answer(redis.port, &bytes), expected, "Redis, {shown:?}");
        for cut in 1..bytes.len().min(40) {
            assert_eq!(
                answer_in_two(server.port(), &bytes, cut),
                expected,
                "{shown:?} cut at {cut}"
            );
        }
    }
}

/// Redis does not reply and keeps waiting.
const WAITS: &str = "(waits)";

/// Each case has a request, Tidemark's reply, and a part of Redis 7.0's reply.
#[test]
fn where_we_are_stricter_than_redis() {
    let redis = redis();
    let server = TestServer::start();
    let cases: &[(&str, &str, &str)] = &[
        // Redis skips any two bytes after a bulk string, so a strict proxy would parse other
        // requests.
        (
            "*1\r\n$4\r\nPINGxx",
            "-ERR Protocol error: expected CRLF after a bulk string\r\n",
            "+PONG",
        ),
        (
            "*1\r\n$4\r\nPING\n\n",
            "-ERR Protocol error: expected CRLF after a bulk string\r\n",
            "+PONG",
        ),
        (
            "*1\r\n$4\r\nPING\rx",
            "-ERR Protocol error: expected CRLF after a bulk string\r\n",
            "+PONG",
        ),
        // The byte after the CR of a header line must also be LF.
        ("*1\rx$4\r\nPING\r\n", "-ERR Protocol error: invalid multibulk length\r\n", "+PONG"),
        ("*1\r\n$4\rxPING\r\n", "-ERR Protocol error: invalid bulk length\r\n", "+PONG"),
        // Redis searches for the end of a header as a C string; with a NUL before it, Redis waits
        // forever.
        ("*\0\r\n", "-ERR Protocol error: invalid multibulk length\r\n", WAITS),
        ("*1\0\r\n", "-ERR Protocol error: invalid multibulk length\r\n", WAITS),
        ("*1\r\n$4\0\r\nPING\r\n", "-ERR Protocol error: invalid bulk length\r\n", WAITS),
        // Redis 7 accepts 2^31-1 arguments. Tidemark accepts 2^20, like Redis 6.
        (
            "*1048577\r\n",
            "-ERR Protocol error: invalid multibulk length\r\n",
            "-ERR Protocol error: expected '$', got '*'",
        ),
        // Redis parses a TLS hello as an inline command.
        (
            "\u{16}\u{3}\r\n",
            "-ERR Protocol error: this port does not speak TLS\r\n",
            "-ERR unknown command",
        ),
        // Redis answers the first line of an HTTP request with an error and closes only at the next
        // line.
        ("GET / HTTP/1.1\r\n", "", "-ERR wrong number of arguments for 'get' command"),
        ("PUT /x HTTP/1.0\r\n", "", "-ERR unknown command 'PUT'"),
    ];
    for (bytes, ours, theirs) in cases {
        assert_eq!(answer(server.port(), bytes.as_bytes()), *ours, "{bytes:?}");
        for cut in 1..bytes.len() {
            assert_eq!(
                answer_in_two(server.port(), bytes.as_bytes(), cut),
                *ours,
                "{bytes:?} cut at {cut}"
            );
        }
        if *theirs != WAITS {
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
    // Nothing in an HTTP request is executed, and the browser gets no content.
    for first in
        ["POST /x HTTP/1.1", "GET /SHUTDOWN HTTP/1.1", "OPTIONS * HTTP/1.0", "Host: localhost"]
    {
        let mut raw = server.raw();
        raw.send(format!(
            "{first}\r\nHost: localhost:6399\r\nContent-Type: text/plain\r\n\r\n\
                          HSET post:1 like 5\r\n"
        ));
        assert_eq!(raw.rest(), "", "{first}");
    }
    server.raw().request(&["HGET", "post:1", "like"]).expect("$-1\r\n");
}
