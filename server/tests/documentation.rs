//! The command lines of the documentation run as they stand there, against real servers: only
//! ports and folders are this test's own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// First words of lines that need another machine, a service manager, a container or Sentinels
/// (`deploy/check` and `server/tests/failover.rs` run what they stand for).
const ELSEWHERE: [&str; 9] = [
    "cargo",
    "scripts/release",
    "dpkg",
    "systemctl",
    "journalctl",
    "docker",
    "redis-sentinel",
    "kill",
    "redis-cli -p 27001",
];

/// The lines of all `sh` blocks, without comments: command, comment.
fn lines(page: &str) -> Vec<(String, String)> {
    let mut found = vec![];
    let mut inside = false;
    for line in page.lines().map(str::trim) {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside && !line.is_empty() && !line.starts_with('#') => {
                let (command, comment) = line.split_once("  #").unwrap_or((line, ""));
                found.push((command.trim().to_owned(), comment.trim().to_owned()));
            }
            _ => {}
        }
    }
    found
}

/// Ports of the pages, and those of this test.
struct Ports([(&'static str, String); 3]);

impl Ports {
    fn free() -> Ports {
        let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let port = |n: usize| listeners[n].local_addr().unwrap().port().to_string();
        Ports([("6399", port(0)), ("7001", port(1)), ("7002", port(2))])
    }

    /// The line as it runs here.
    fn here(&self, line: &str, folder: &Path) -> String {
        let mut line = line.to_owned();
        for command in ["import", "ping"] {
            line = line
                .replace(&format!("tidemark {command}"), &format!("tidemark {command} -p 6399"));
        }
        if line.starts_with("tidemark serve") && !line.contains("--port") {
            line += " --port 6399";
        }
        for (theirs, ours) in &self.0 {
            line = line.replace(theirs, ours);
        }
        let data = folder.join("data").display().to_string();
        line.replace("/var/lib/tidemark", &data)
            .replace("/backup", &folder.join("backup").display().to_string())
    }
}

/// Servers that a page has started. They end with it.
struct Servers(Vec<Child>);

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

struct Page {
    folder: tempfile::TempDir,
    ports: Ports,
    servers: Servers,
}

impl Page {
    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        let path = std::env::var("PATH").unwrap_or_default();
        let bin = self.folder.path().join("bin");
        command
            .args(["-c", line])
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{path}", bin.display()))
            .env_remove("REDISCLI_AUTH");
        command
    }

    fn serve(&mut self, line: &str) {
        let line = self.ports.here(line, self.folder.path());
        let child = self.shell(&format!("exec {line}")).stderr(Stdio::null()).spawn().unwrap();
        self.servers.0.push(child);
        let port = line.rsplit_once("--port ").unwrap().1.split(' ').next().unwrap();
        let ready = self.shell(&format!("tidemark ping -p {port} --wait 60")).output().unwrap();
        assert!(ready.status.success(), "{line}: {ready:?}");
    }

    /// Runs a line; where its comment shows a line of INFO, until that is there. After SHUTDOWN,
    /// until the server has ended.
    fn run(&mut self, line: &str, comment: &str) {
        let here = self.ports.here(line, self.folder.path());
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let output = self.shell(&here).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let is_error = text.starts_with("ERR") || text.starts_with("(error)");
            // SHUTDOWN answers by ending the connection.
            let ends = line.ends_with("SHUTDOWN");
            assert!(output.status.success() || ends, "{line}: {output:?}");
            assert!(!is_error, "{line}: {text}");
            let has_ended =
                !ends || self.servers.0.iter_mut().any(|child| child.try_wait().unwrap().is_some());
            if has_ended && (!comment.contains("master_link_status") || text.contains(comment)) {
                return;
            }
            assert!(Instant::now() < until, "{line}: no {comment} in {text}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Runs a page. Answers how many lines ran.
fn run(text: &str) -> usize {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("bin")).unwrap();
    std::fs::create_dir_all(folder.path().join("backup")).unwrap();
    std::os::unix::fs::symlink(harness::program(), folder.path().join("bin/tidemark")).unwrap();
    let mut page = Page { folder, ports: Ports::free(), servers: Servers(vec![]) };
    let lines = lines(text);
    let starts = |line: &str| line.starts_with("tidemark serve") && !line.contains("--port");
    if !lines.iter().any(|(line, _)| starts(line)) {
        page.serve("tidemark serve --dir /var/lib/tidemark");
    }
    let mut ran = 0;
    for (line, comment) in &lines {
        if ELSEWHERE.iter().any(|first| line.starts_with(first)) {
            continue;
        }
        if line.starts_with("tidemark serve") {
            page.serve(line);
        } else {
            page.run(line, comment);
        }
        ran += 1;
    }
    ran
}

#[test]
fn command_lines_of_the_quickstart_run() {
    assert!(run(include_str!("../../docs/quickstart.md")) >= 15);
}

#[test]
fn command_lines_of_operations_run() {
    assert!(run(include_str!("../../docs/operations.md")) >= 12);
}

#[test]
fn command_lines_of_configuration_run() {
    assert!(run(include_str!("../../docs/configuration.md")) >= 4);
}

#[test]
fn command_lines_of_migration_run() {
    assert!(run(include_str!("../../docs/migration.md")) >= 4);
}
