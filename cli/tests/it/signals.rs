//! Checks which signals stop the server, and that no signal loses acknowledged writes.

use client::Reply;
use harness::program::{FIRST, Program, call, refusal};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn like(program: &Program) {
    let reply = call(&mut program.client(), &format!("HINCRBY post:{FIRST} like 1"));
    assert_eq!(refusal(&reply), "");
}

fn send(program: &Program, signal: Signal) {
    kill_process(Pid::from_child(&program.child), signal).unwrap();
}

/// Waits up to ten seconds until the process exits. Returns the status.
fn ended(program: &mut Program) -> std::process::ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = program.child.try_wait().unwrap() {
            return status;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "the server did not exit in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Regression: SIGHUP and other unhandled signals ended the process and lost the writes of the last
/// second. This test sends each signal right after a write.
#[test]
fn signals_that_are_not_for_stopping_never_end_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path(), "everysec");
    let harmless = [
        Signal::HUP,
        Signal::PIPE,
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::VTALARM,
        Signal::PROF,
        Signal::IO,
        Signal::XFSZ,
    ];
    for signal in harmless {
        like(&program);
        send(&program, signal);
        send(&program, signal);
        // Wait until the server has received the signal.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(program.child.try_wait().unwrap(), None, "{signal:?} ended the server");
    }
    let count = Reply::BulkString(harmless.len().to_string().into_bytes());
    assert_eq!(program.ask(&format!("HGET post:{FIRST} like")), count);
}

/// Each signal that stops the server does so cleanly, and loses no acknowledged write.
#[test]
fn signals_that_stop_the_server_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let stops = [Signal::TERM, Signal::INT, Signal::QUIT, Signal::XCPU, Signal::POWER];
    for (stopped, signal) in stops.into_iter().enumerate() {
        let mut program = Program::start(folder.path(), "everysec");
        let held = program.ask(&format!("HGET post:{FIRST} like"));
        let expected = match stopped {
            0 => Reply::Null,
            n => Reply::BulkString(n.to_string().into_bytes()),
        };
        assert_eq!(held, expected, "before {signal:?}");
        like(&program);
        send(&program, signal);
        let status = ended(&mut program);
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{signal:?}");
    }
    let program = Program::start(folder.path(), "everysec");
    let all = Reply::BulkString(stops.len().to_string().into_bytes());
    assert_eq!(program.ask(&format!("HGET post:{FIRST} like")), all);
}

/// Connects a client that reads nothing. A shutdown waits for this client to read its replies, up
/// to `shutdown_grace` (one second).
fn a_client_that_does_not_read(program: &Program) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", program.port)).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let requests = format!("HGETALL post:{FIRST}\r\n").repeat(10_000);
    while stream.write_all(requests.as_bytes()).is_ok() {}
    stream
}

/// `timeout`, shells and process managers signal a process and then its group, and scripts repeat
/// SIGTERM. Regression: the second signal killed the server before it had written its log.
#[test]
fn a_signal_to_stop_that_is_repeated_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let repeated = [
        (Signal::TERM, Duration::from_millis(100)),
        (Signal::INT, Duration::from_millis(100)),
        (Signal::TERM, Duration::from_millis(700)),
    ];
    for (signal, after) in repeated {
        let mut program = Program::start(folder.path(), "everysec");
        like(&program);
        let deaf = a_client_that_does_not_read(&program);
        send(&program, signal);
        std::thread::sleep(after);
        assert_eq!(program.child.try_wait().unwrap(), None, "the server exited before its replies");
        send(&program, signal);
        assert_eq!(ended(&mut program).code(), Some(0), "{signal:?} after {after:?}");
        drop(deaf);
    }
    let program = Program::start(folder.path(), "everysec");
    let all = Reply::BulkString(repeated.len().to_string().into_bytes());
    assert_eq!(program.ask(&format!("HGET post:{FIRST} like")), all);
}

#[test]
fn a_second_ctrl_c_ends_a_stop_that_takes_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path(), "everysec");
    like(&program);
    let _deaf = a_client_that_does_not_read(&program);
    send(&program, Signal::INT);
    std::thread::sleep(Duration::from_millis(700));
    send(&program, Signal::INT);
    assert_eq!(ended(&mut program).code(), Some(1));
}

/// Writes a self-signed certificate and its key. Returns the certificate.
fn sign(folder: &Path) -> Vec<u8> {
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("server.pem"), signed.cert.pem()).unwrap();
    std::fs::write(folder.join("server.key"), signed.signing_key.serialize_pem()).unwrap();
    signed.cert.pem().into_bytes()
}

/// Returns whether a client that trusts only this certificate gets a reply.
fn is_trusted(port: u16, certificate: &[u8]) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.pem");
    std::fs::write(&ca_file, certificate).unwrap();
    let tls = tidemark_server::tls::Tls::default();
    let settings = tidemark_server::config::Tls {
        ca_file: ca_file.to_str().unwrap().to_owned(),
        ..Default::default()
    };
    tls.configure(&settings).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tls = tls.client().unwrap();
        client::Socket::connect("127.0.0.1", port, Some(&tls), "localhost").await.is_ok()
    })
}

/// Tools that renew certificates (certbot, cert-manager, logrotate's `postrotate`) send SIGHUP.
#[test]
fn sighup_reloads_certificates_and_keeps_old_ones_if_invalid() {
    let folder = tempfile::tempdir().unwrap();
    let first = sign(folder.path());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let config = format!(
        "[tls]\nport = {port}\ncert_file = \"{}\"\nkey_file = \"{}\"\nauth_clients = \"no\"\n",
        text("server.pem"),
        text("server.key")
    );
    let file = text("tidemark.toml");
    std::fs::write(&file, config).unwrap();
    let data = tempfile::tempdir().unwrap();
    let program = Program::start_as(&[], data.path(), &["--config", &file]).unwrap();
    assert!(is_trusted(port, &first));
    let renewed = sign(folder.path());
    assert!(is_trusted(port, &first), "the certificate changed without SIGHUP");
    send(&program, Signal::HUP);
    harness::program::until("the new certificate is used", || is_trusted(port, &renewed));
    assert!(!is_trusted(port, &first));
    std::fs::write(folder.path().join("server.pem"), "broken").unwrap();
    send(&program, Signal::HUP);
    std::thread::sleep(Duration::from_millis(100));
    assert!(is_trusted(port, &renewed), "an unreadable certificate replaced the old one");
}
