//! Interfaces for packages and service managers: version, completions, manual pages, health checks,
//! readiness, and JSON logs.

use harness::program::Program;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn tidemark(words: &[&str]) -> Output {
    Command::new(harness::program()).args(words).env_remove("REDISCLI_AUTH").output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn subcommands() -> Vec<String> {
    let help = text(&tidemark(&["help"]));
    let list = help.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn version_names_the_commit_and_the_features() {
    let version = text(&tidemark(&["--version"]));
    for part in [env!("CARGO_PKG_VERSION"), "commit ", "linux", "tls, jemalloc"] {
        assert!(version.contains(part), "{version}");
    }
    assert_eq!(version.lines().count(), 1);
}

#[test]
fn completions_know_every_subcommand() {
    let names = subcommands();
    assert!(names.len() >= 10, "{names:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&tidemark(&["completions", shell]));
        for name in &names {
            assert!(script.contains(name.as_str()), "{shell}: {name}");
        }
    }
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    text(&tidemark(&["man", "--dir", folder.path().to_str().unwrap()]));
    for name in subcommands() {
        let page = std::fs::read_to_string(folder.path().join(format!("tidemark-{name}.1")));
        let page = page.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH DESCRIPTION"), "{name}");
    }
    let all = std::fs::read_to_string(folder.path().join("tidemark.1")).unwrap();
    assert!(all.contains(&text(&tidemark(&["man"]))[..200]), "the same as on standard output");
}

#[test]
fn ping_succeeds_only_if_the_server_answers_pong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidemark.toml");
    std::fs::write(&file, "[security]\npassword = \"secret\"\n").unwrap();
    let options = ["--config", file.to_str().unwrap()];
    let server = Program::start_as(&[], &folder.path().join("data"), &options).unwrap();
    let port = server.port.to_string();
    assert_eq!(text(&tidemark(&["ping", "-p", &port, "-a", "secret"])), "PONG\n");

    let refused = tidemark(&["ping", "-p", &port]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("NOAUTH"), "{refused:?}");

    assert!(server.terminate().success());
    let gone = tidemark(&["ping", "-p", &port, "-a", "secret"]);
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
}

#[test]
fn ping_waits_for_a_server_that_starts() {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let began = Instant::now();
    let waits = ["ping", "-p", &port, "--wait", "60"].map(str::to_owned);
    let ping = std::thread::spawn(move || {
        let words: Vec<&str> = waits.iter().map(String::as_str).collect();
        tidemark(&words)
    });
    std::thread::sleep(Duration::from_millis(500));
    let server = Program::start_as(&[], folder.path(), &["--port", &port]).unwrap();
    assert_eq!(text(&ping.join().unwrap()), "PONG\n");
    assert!(began.elapsed() >= Duration::from_millis(500));
    assert!(server.terminate().success());
}

/// `Type=notify`: the service manager's socket receives READY=1 once the data is loaded, and
/// STOPPING=1 when the server stops.
#[test]
fn service_manager_is_notified_of_ready_and_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut buffer = [0; 512];
    let mut next = || {
        let n = manager.recv(&mut buffer).expect("a message of the server");
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    };
    // `env` sets the variable and then executes the server.
    let variable = format!("NOTIFY_SOCKET={}", path.display());
    let data = folder.path().join("data");
    let server = Program::start_as(&["env", &variable], &data, &[]).unwrap();
    let ready = next();
    assert!(ready.contains("READY=1\n") && ready.contains("STATUS="), "{ready}");
    assert!(server.terminate().success());
    let stopping = next();
    assert!(stopping.contains("STOPPING=1"), "{stopping}");
}

/// Starts the server with sockets like systemd does: descriptors 3 and 4, named `tidemark.socket`
/// and `admin`. Returns when the server is ready.
fn start_with_sockets(dir: &Path, clients: &TcpListener, admin: &TcpListener) -> Child {
    let passed = |socket: &TcpListener| Stdio::from(OwnedFd::from(socket.try_clone().unwrap()));
    let script = "exec 3<&0 4>&1 </dev/null >/dev/null
        export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=tidemark.socket:admin
        exec \"$@\"";
    let program = harness::program();
    // The configured port is already in use.
    let port = clients.local_addr().unwrap().port().to_string();
    let mut child = Command::new("sh")
        .args(["-c", script, "sh", program.to_str().unwrap(), "serve", "--port", &port])
        .args(["--fsync", "always", "--dir", dir.to_str().unwrap()])
        .stdin(passed(clients))
        .stdout(passed(admin))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut said = vec![];
    let is_ready = lines.any(|line| {
        said.push(line);
        said[said.len() - 1].contains("ready to accept")
    });
    assert!(is_ready, "{said:#?}");
    std::thread::spawn(move || lines.for_each(drop));
    child
}

/// Sends a command on a connection that may be older than the server process. Repeats the command
/// while the server loads its data.
fn ask(client: &mut TcpStream, command: &str) -> String {
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut replies = BufReader::new(client.try_clone().unwrap());
    loop {
        client.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut reply = String::new();
        replies.read_line(&mut reply).unwrap();
        if !reply.starts_with("-LOADING") {
            return reply;
        }
    }
}

/// Socket activation: the next server replies on a connection that was opened while no server was
/// running. A restart refuses no connection.
#[test]
fn sockets_of_the_service_manager_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let (clients, admin) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    for value in ["1", "2"] {
        let mut early = TcpStream::connect(clients.local_addr().unwrap()).unwrap();
        let mut server = start_with_sockets(folder.path(), &clients, &admin);
        assert_eq!(ask(&mut early, "HINCRBY post:7 like 1"), format!(":{value}\r\n"));
        let mut page = TcpStream::connect(admin.local_addr().unwrap()).unwrap();
        let reply = ask(&mut page, "GET /readyz HTTP/1.0\r\n");
        assert!(reply.contains("200 OK"), "{reply}");
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        assert!(server.wait().unwrap().success());
    }
}

/// The server refuses to start if it receives a socket that it cannot serve.
#[test]
fn unusable_sockets_of_the_service_manager_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    for (name, said) in [("tls", "TLS is disabled"), ("clients", "socket \"clients\"")] {
        // Descriptor 3 is the socket, or something that is not a socket.
        let stdin = match name {
            "tls" => Stdio::from(OwnedFd::from(socket.try_clone().unwrap())),
            _ => Stdio::null(),
        };
        let script = "exec 3<&0; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\"";
        let output = Command::new("sh")
            .args(["-c", script, "sh", harness::program().to_str().unwrap(), "serve"])
            .args(["--port", "0", "--admin-port", "0", "--dir", folder.path().to_str().unwrap()])
            .env("LISTEN_FDNAMES", name)
            .stdin(stdin)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn the_log_as_json_is_one_object_per_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidemark.toml");
    std::fs::write(&file, "[server]\nlog_format = \"json\"\n").unwrap();
    let options = ["--config", file.to_str().unwrap(), "--port", "0"];
    let mut child = Command::new(harness::program())
        .arg("serve")
        .args(options)
        .arg("--dir")
        .arg(folder.path().join("data"))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut messages = vec![];
    let lines = std::io::BufReader::new(child.stderr.take().unwrap());
    for line in std::io::BufRead::lines(lines) {
        let line = line.unwrap();
        let object: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        for key in ["timestamp", "level", "message"] {
            assert!(object[key].is_string(), "{key}: {line}");
        }
        messages.push(object["message"].as_str().unwrap().to_owned());
        if messages.last().unwrap().contains("ready to accept connections") {
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        }
    }
    assert!(child.wait().unwrap().success());
    assert!(messages.iter().any(|m| m.contains("listening on 127.0.0.1:")), "{messages:?}");
    assert!(messages.iter().any(|m| m.contains("SIGTERM")), "{messages:?}");
}
