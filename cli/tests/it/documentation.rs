//! Runs the command lines of the documentation against real servers. The test only replaces ports
//! and folders.
//!
//! - `sh` blocks: each line must succeed and print no error.
//! - `console` blocks: lines after `$ ` are run, and must print the lines below them. `...` matches
//!   any output.
//! - `python` blocks run with redis-py; `toml` blocks are parsed as a configuration.
//! - [`NOT_RUN_HERE`] lists lines that do not run in this test, with the reason. Other blocks
//!   contain no command lines.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Lines and Python programs that this test skips, with the reason. A line is given by its prefix,
/// a program by a substring.
const NOT_RUN_HERE: [(&str, &str); 22] = [
    ("rclone", "needs another machine"),
    ("aws", "needs an S3 bucket"),
    ("./run", "builds and runs the demo: cli/tests/it/demo.rs"),
    ("./test", "runs this test"),
    ("cargo", "builds, and most runs are long: `./test` has short ones"),
    ("target/release/", "a benchmark"),
    ("apt-get", "changes the machine: tests/clients/setup"),
    ("scripts/release", "builds packages: deploy/check"),
    ("dpkg", "changes the machine: deploy/check and cli/tests/it/packaging.rs"),
    ("systemctl", "needs a service manager: deploy/check and cli/tests/it/packaging.rs"),
    ("journalctl", "needs a service manager: deploy/check"),
    ("docker", "needs Docker: deploy/check"),
    ("redis-sentinel", "Sentinels: cli/tests/it/failover.rs"),
    ("redis-cli -p 27001", "Sentinels: cli/tests/it/failover.rs"),
    ("from redis.sentinel", "Sentinels: cli/tests/it/failover.rs and tests/clients/switches.py"),
    ("kill", "kills the master: cli/tests/it/failover.rs"),
    ("redis-benchmark -p 6399 -r", "needs the settings of that page: tests/tests/it/manners.rs"),
    ("python3 examples/feed", "tests/tests/it/feed_app.rs"),
    ("redis-cli -h old", "needs a Redis server: tests/tests/it/migrate.rs"),
    ("tidemark import --from", "needs a Redis server: tests/tests/it/import_redis.rs"),
    ("tidemark export --to", "needs a Redis server: tests/tests/it/import_redis.rs"),
    ("tidemark cluster", "needs a cluster: tests/clients/split.py"),
];

/// Prefixes of command lines. A block that is not run must not contain a line with such a prefix.
const COMMANDS: [&str; 11] = [
    "$ ",
    "redis-cli",
    "tidemark ",
    "cargo ",
    "curl ",
    "sudo ",
    "ACL ",
    "CONFIG ",
    "FEED.",
    "TM.",
    "./",
];

struct Block {
    language: String,
    lines: Vec<String>,
}

/// Returns the blocks of a page without their indentation.
fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = vec![];
    let mut indent = None;
    for line in page.lines() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, indent) {
            (Some(language), None) => {
                indent = Some(line.len() - line.trim_start().len());
                found.push(Block { language: language.trim().to_owned(), lines: vec![] });
            }
            (Some(_), Some(_)) => indent = None,
            (None, Some(indent)) => {
                let line = line.get(indent..).unwrap_or_default();
                found.last_mut().unwrap().lines.push(line.to_owned());
            }
            (None, None) => {}
        }
    }
    assert!(indent.is_none(), "a block does not end");
    found
}

fn command(line: &str) -> (&str, &str) {
    let (command, comment) = line.split_once("  #").unwrap_or((line, ""));
    (command.trim(), comment.trim())
}

fn elsewhere(text: &str) -> Option<&'static str> {
    NOT_RUN_HERE.iter().map(|(what, _)| *what).find(|what| text.starts_with(what))
}

struct Ports([(&'static str, String); 4]);

impl Ports {
    fn free() -> Ports {
        let listeners: Vec<_> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let port = |n: usize| listeners[n].local_addr().unwrap().port().to_string();
        Ports([("6399", port(0)), ("6398", port(1)), ("7001", port(2)), ("7002", port(3))])
    }

    fn here(&self, line: &str, folder: &Path) -> String {
        let mut line = line.to_owned();
        for command in ["import", "export", "ping"] {
            line = line
                .replace(&format!("tidemark {command}"), &format!("tidemark {command} -p 6399"));
        }
        if line.starts_with("tidemark serve") {
            let is_main = !line.contains("--port");
            line += if is_main { " --admin-port 6398 --port 6399" } else { " --admin-port 0" };
        }
        // Print replies as on a terminal.
        line = line.replace("redis-cli ", "redis-cli --no-raw ");
        // Replace in two steps, because a replacement port may contain the digits of another port.
        for (at, (theirs, _)) in self.0.iter().enumerate() {
            line = line.replace(theirs, &format!("<{at}>"));
        }
        for (at, (_, ours)) in self.0.iter().enumerate() {
            line = line.replace(&format!("<{at}>"), ours);
        }
        let data = folder.join("data").display().to_string();
        line.replace("/var/lib/tidemark", &data)
            .replace("/backup", &folder.join("backup").display().to_string())
    }
}

/// Servers started by the commands of a page. The destructor kills them.
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
        if !line.contains("--port") {
            self.servers = Servers(vec![]);
        }
        let line = self.ports.here(line, self.folder.path());
        let child = self.shell(&format!("exec {line}")).stderr(Stdio::null()).spawn().unwrap();
        self.servers.0.push(child);
        let port = line.rsplit_once("--port ").unwrap().1.split(' ').next().unwrap();
        let ready = self.shell(&format!("tidemark ping -p {port} --wait 60")).output().unwrap();
        assert!(ready.status.success(), "{line}: {ready:?}");
    }

    /// Runs a line and returns its output. Repeats the line until INFO shows the text in the line's
    /// comment. After SHUTDOWN, waits until the server has exited.
    fn run(&mut self, line: &str, comment: &str) -> String {
        if line.starts_with("tidemark serve") {
            self.serve(line);
            return String::new();
        }
        let here = self.ports.here(line, self.folder.path());
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let output = self.shell(&here).output().unwrap();
            let text = printed(&output);
            let is_error = text.starts_with("ERR") || text.starts_with("(error)");
            // SHUTDOWN closes the connection without a reply.
            let ends = line.ends_with("SHUTDOWN");
            assert!(output.status.success() || ends, "{line}: {output:?}");
            assert!(!is_error, "{line}: {text}");
            let has_ended =
                !ends || self.servers.0.iter_mut().any(|child| child.try_wait().unwrap().is_some());
            if has_ended && (!comment.contains("master_link_status") || text.contains(comment)) {
                return text;
            }
            assert!(Instant::now() < until, "{line}: no {comment} in {text}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn converse(&mut self, lines: &[String], used: &mut BTreeSet<&'static str>) -> usize {
        let starts: Vec<usize> = (0..lines.len()).filter(|&n| lines[n].starts_with("$ ")).collect();
        for (n, &start) in starts.iter().enumerate() {
            let (line, _) = command(&lines[start][2..]);
            if let Some(what) = elsewhere(line) {
                used.insert(what);
                continue;
            }
            let text = self.run(line, "");
            let shown = &lines[start + 1..starts.get(n + 1).copied().unwrap_or(lines.len())];
            let is_whole = shown.iter().all(|line| line.trim() != "...");
            let shown: Vec<&str> = shown.iter().map(|line| line.trim_end()).collect();
            let shown: Vec<&str> =
                shown.into_iter().take_while(|line| line.trim() != "...").collect();
            let (shown, is) = (shown.join("\n"), text.trim_end().replace(" \n", "\n"));
            let (shown, is) = (shown.trim(), is.trim());
            let is_same = if is_whole { is == shown } else { is.starts_with(shown) };
            assert!(is_same, "{line}: printed\n{is}\ninstead of\n{shown}");
        }
        starts.len()
    }

    fn python(&self, program: &str) {
        let mut program = program.to_owned();
        for (theirs, ours) in &self.ports.0 {
            program = program.replace(theirs, ours);
        }
        let python = root().join("target/clients/redis-py-5/bin/python");
        let output = Command::new("timeout")
            .arg("60")
            .arg(&python)
            .args(["-c", &program])
            .env("TIDEMARK_PORT", &self.ports.0[0].1)
            .output()
            .unwrap_or_else(|e| panic!("{}: {e}: run tests/clients/setup once", python.display()));
        assert!(output.status.success(), "{program}\n{output:?}");
    }

    fn toml(&self, text: &str) {
        let file = self.folder.path().join("block.toml");
        std::fs::write(&file, text).unwrap();
        let output = self.shell("tidemark config --config block.toml").output().unwrap();
        assert!(output.status.success(), "{text}\n{output:?}");
    }
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Runs a page and records the entries of [`NOT_RUN_HERE`] that it uses. Returns the number of
/// lines and programs that ran.
fn run(text: &str, used: &mut BTreeSet<&'static str>) -> usize {
    let blocks = blocks(text);
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("bin")).unwrap();
    std::fs::create_dir_all(folder.path().join("backup")).unwrap();
    std::os::unix::fs::symlink(harness::program(), folder.path().join("bin/tidemark")).unwrap();
    let mut page = Page { folder, ports: Ports::free(), servers: Servers(vec![]) };
    // Files that the page assumes to exist: rows to import and a configuration.
    let given = "printf 'id,like,repost,comment,read\n3,1,2,3,4\n' | gzip > posts.csv.gz; \
                 tidemark config > mine.toml";
    assert!(page.shell(given).status().unwrap().success());
    page.serve("tidemark serve --dir /var/lib/tidemark");
    let mut ran = 0;
    for Block { language, lines } in &blocks {
        match language.as_str() {
            "sh" => {
                let lines = lines.iter().map(|line| command(line));
                for (line, comment) in lines.filter(|(line, _)| !line.is_empty()) {
                    if let Some(what) = elsewhere(line) {
                        used.insert(what);
                    } else if !line.starts_with('#') {
                        page.run(line, comment);
                        ran += 1;
                    }
                }
            }
            "console" => ran += page.converse(lines, used),
            "python" => {
                if let Some(what) = elsewhere(&lines.join("\n")) {
                    used.insert(what);
                } else {
                    page.python(&lines.join("\n"));
                    ran += 1;
                }
            }
            "toml" => {
                page.toml(&lines.join("\n"));
                ran += 1;
            }
            _ => {
                let hidden = lines.iter().find(|line| COMMANDS.iter().any(|c| line.starts_with(c)));
                assert!(hidden.is_none(), "a command in a block of {language}: {hidden:?}");
            }
        }
    }
    ran
}

fn pages() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "tests/scripts/README.md"]
        .iter()
        .chain(&["examples/README.md", "examples/feed/README.md"])
        .map(PathBuf::from)
        .collect();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the text of a page. Like mdBook, inserts the file that the page includes.
fn included(path: &Path) -> String {
    let read = |path: &Path| std::fs::read_to_string(root().join(path)).unwrap();
    let text = read(path);
    let Some((before, rest)) = text.split_once("{{#include ") else { return text };
    let (file, after) = rest.split_once("}}").unwrap();
    [before, &read(&path.parent().unwrap().join(file)), after].concat()
}

#[test]
fn command_lines_of_the_documentation_run() {
    let mut used = BTreeSet::new();
    let mut all = 0;
    for path in pages() {
        let text = included(&path);
        if text.contains("```") {
            // If a line fails, the output shows its page.
            eprintln!("{}", path.display());
            let ran = run(&text, &mut used);
            eprintln!("{}: {ran} lines and programs", path.display());
            all += ran;
        }
    }
    assert!(all >= 60, "{all}");
    for (what, why) in NOT_RUN_HERE {
        eprintln!("skipped: {what}: {why}");
        assert!(used.contains(what), "no page has a line with {what}");
    }
}
