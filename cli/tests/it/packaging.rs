//! What packages and service managers use of the program: version, completions, manual pages,
//! health checks, readiness, the log as JSON.

use harness::program::Program;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn tidemark(words: &[&str]) -> Output {
    Command::new(harness::program()).args(words).env_remove("REDISCLI_AUTH").output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The subcommands that `tidemark help` lists.
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

/// `Type=notify`: the service manager's socket gets READY=1 when the data are loaded, and
/// STOPPING=1 when the server stops.
#[test]
fn the_service_manager_is_told_when_the_server_is_ready_and_when_it_stops() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut buffer = [0; 512];
    let mut next = || {
        let n = manager.recv(&mut buffer).expect("a message of the server");
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    };
    // `env` becomes the server, which has the variable.
    let variable = format!("NOTIFY_SOCKET={}", path.display());
    let data = folder.path().join("data");
    let server = Program::start_as(&["env", &variable], &data, &[]).unwrap();
    let ready = next();
    assert!(ready.contains("READY=1\n") && ready.contains("STATUS="), "{ready}");
    assert!(server.terminate().success());
    let stopping = next();
    assert!(stopping.contains("STOPPING=1"), "{stopping}");
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
