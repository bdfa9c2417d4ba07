//! Pipelines whose client sends all requests before it reads a reply, as stock clients do.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tidemark_tests::TestServer;

/// Time limit for a pipeline on the slowest machine.
const DEADLINE: Duration = Duration::from_secs(120);

fn connect(server: &TestServer) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends one request `count` times, then reads that many replies of `reply_lines` lines.
fn pipeline(stream: &mut (impl Read + Write), request: &str, count: usize, reply_lines: usize) {
    stream.write_all(request.repeat(count).as_bytes()).expect("the server reads");
    let (mut reader, mut left) = (BufReader::new(stream), count * reply_lines);
    let mut buffer = [0; 64 << 10];
    while left > 0 {
        let bytes = reader.read(&mut buffer).expect("the server answers");
        assert!(bytes > 0, "{left} lines are missing");
        left -= buffer[..bytes].iter().filter(|&&byte| byte == b'\n').count();
    }
}

/// Redis also answers a pipeline whose client sends all requests before it reads a reply.
#[test]
fn pipeline_is_answered_though_the_client_reads_last() {
    let server = TestServer::start();
    let mut stream = connect(&server);
    pipeline(&mut stream, "HINCRBY post:1 like 1\r\n", 300_000, 1);
    pipeline(&mut stream, "HGETALL post:1\r\n", 300_000, 17);
    pipeline(&mut stream, "SISMEMBER liked:1 7\r\n", 300_000, 1);
    let mut other = connect(&server);
    other.write_all(b"HGET post:1 like\r\n").unwrap();
    let mut reply = [0; 12];
    other.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"$6\r\n300000\r\n");
}

/// The server limits unread replies and disconnects the client in finite time.
#[test]
fn client_that_takes_no_reply_is_disconnected() {
    let server = TestServer::with(|config| config.server.max_output_buffer_bytes = 1 << 20);
    let mut stream = connect(&server);
    let requests = "HGETALL post:1\r\n".repeat(1000);
    let ended = loop {
        if let Err(error) = stream.write_all(requests.as_bytes()) {
            break error;
        }
    };
    let is_end = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&ended.kind());
    assert!(is_end, "{ended}");
}
