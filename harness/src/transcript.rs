//! Golden transcripts: scripts of commands and expected replies, run against real servers.
//!
//! A transcript is a file in `tests/scripts`. Replies are formatted as redis-cli formats them. The
//! runner compares them with the file line by line, or writes them to the file on request.
//! `tests/scripts/README.md` describes the format.

mod parse;
pub mod reply;
mod servers;

use client::Reply;
use parse::{Command, Kind, Step, parse};
use servers::{MAIN, Server, Servers};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Timeout of an `@ until` step.
const UNTIL_TIMEOUT: Duration = Duration::from_secs(10);

/// Result of a transcript.
pub struct Outcome {
    /// Text of the transcript, with the replies of this run.
    pub text: String,
    /// Descriptions of the steps whose replies differ from the file. Empty on success.
    pub differences: Vec<String>,
}

/// Runs the transcript in a file.
///
/// # Errors
///
/// The line that cannot be executed, and why.
pub fn run(path: &Path) -> Result<Outcome, String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let mut story = Story::default();
    let mut out = Outcome { text: String::new(), differences: Vec::new() };
    for step in parse(&text)? {
        let at = format!("{}:{}", path.display(), step.line);
        let body = story.step(&step).map_err(|why| format!("{at}: {why}"))?;
        if body != step.body {
            let lines = |lines: &[String]| lines.join("\n    ");
            out.differences.push(format!(
                "{at}: {}\n  expected:\n    {}\n  got:\n    {}",
                step.head,
                lines(&step.body),
                lines(&body)
            ));
        }
        for line in std::iter::once(&step.head).chain(&body) {
            out.text.push_str(line);
            out.text.push('\n');
        }
    }
    Ok(out)
}

/// Default configuration of a transcript. Snapshots are only written on request.
const CONFIG: &str = "[server]\nworkers = 2\n[durability]\nsnapshot_every = 0\n";

#[derive(Default)]
struct Story {
    servers: Servers,
    /// Names whose values are masked in the replies.
    masked: Vec<String>,
    /// `@ until`: text that the reply to the next command must contain. The command is repeated
    /// until its reply contains the text.
    until: Option<String>,
    /// `| keep NAME`: replies that later commands can refer to by name.
    kept: BTreeMap<String, Vec<u8>>,
    /// `@ ids`: stream entry ids in order of appearance.
    ids: Option<Vec<String>>,
}

impl Story {
    /// Executes a step and returns the lines of its output.
    fn step(&mut self, step: &Step) -> Result<Vec<String>, String> {
        match &step.kind {
            Kind::Text => return Ok(Vec::new()),
            Kind::Directive(words) => {
                let config = step.body.join("\n");
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                self.directive(&words, (!config.is_empty()).then_some(config))?;
                return Ok(step.body.clone());
            }
            _ => {}
        }
        if !self.servers.servers.contains_key(MAIN) {
            self.servers.servers.insert(MAIN.to_owned(), Server::new(CONFIG)?);
        }
        let said = match &step.kind {
            Kind::Shell(words) => self.shell(words)?,
            Kind::Read(connection) => {
                let reply = self.servers.connection(connection)?.next();
                self.printed(connection, reply, &[])?
            }
            Kind::Command(command) => match self.until.take() {
                None => self.command(command)?,
                Some(text) => self.command_until(command, &text)?,
            },
            Kind::Text | Kind::Directive(_) => String::new(),
        };
        // Replace empty lines, because an empty line would end the step.
        let safe = |line: &str| match line.trim_end() {
            "" => "\"\"".to_owned(),
            line => line.to_owned(),
        };
        Ok(said.lines().map(safe).collect())
    }

    fn directive(&mut self, words: &[&str], config: Option<String>) -> Result<(), String> {
        let name = words.get(1).copied().unwrap_or(MAIN);
        match *words.first().unwrap_or(&"") {
            "server" => {
                let server = Server::new(&config.unwrap_or_else(|| CONFIG.to_owned()))?;
                self.servers.servers.insert(name.to_owned(), server);
            }
            "replica" => self.replica(name, config)?,
            "stop" => self.end(name, false)?,
            "kill" => self.end(name, true)?,
            "start" => self.start(name, config)?,
            "restart" => {
                self.end(name, false)?;
                self.start(name, config)?;
            }
            "lose" => self.servers.server(name)?.lose()?,
            "close" => self.servers.close(name),
            "mask" => self.masked.extend(words[1..].iter().map(|&word| word.to_owned())),
            "ids" => self.ids = Some(self.ids.take().unwrap_or_default()),
            "until" => self.until = Some(words[1..].join(" ")),
            other => return Err(format!("unknown directive '{other}'")),
        }
        Ok(())
    }

    fn end(&mut self, name: &str, kill: bool) -> Result<(), String> {
        self.servers.close_all_of(name);
        self.servers.server(name)?.end(kill)
    }

    fn start(&mut self, name: &str, config: Option<String>) -> Result<(), String> {
        let server = self.servers.server(name)?;
        if let Some(config) = config {
            server.configure(&config)?;
        }
        server.start()
    }

    /// Starts a replica of main and waits until it is in sync.
    fn replica(&mut self, name: &str, config: Option<String>) -> Result<(), String> {
        if !self.servers.servers.contains_key(MAIN) {
            self.servers.servers.insert(MAIN.to_owned(), Server::new(CONFIG)?);
        }
        let main = self.servers.server(MAIN)?.port;
        let server = Server::new(&config.unwrap_or_else(|| CONFIG.to_owned()))?;
        self.servers.servers.insert(name.to_owned(), server);
        let words = |text: &str| text.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let command = |text: &str| Command {
            connection: format!("{name}.setup"),
            words: words(text),
            ..Command::default()
        };
        self.command(&command(&format!("REPLICAOF 127.0.0.1 {main}")))?;
        self.command_until(&command("INFO replication"), "master_link_status:up")?;
        self.servers.close(&format!("{name}.setup"));
        Ok(())
    }

    fn command_until(&mut self, command: &Command, text: &str) -> Result<String, String> {
        let started = Instant::now();
        loop {
            let said = self.command(command)?;
            if said.contains(text) {
                return Ok(said);
            }
            if started.elapsed() > UNTIL_TIMEOUT {
                return Err(format!(
                    "timeout after {UNTIL_TIMEOUT:?}: expected '{text}', got\n{said}"
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn command(&mut self, command: &Command) -> Result<String, String> {
        let Some((from, to, step)) = command.repeat else {
            let words = command.words.iter().map(|word| self.expanded(word)).collect();
            let connection = self.servers.connection(&command.connection)?;
            connection.send(&[words]);
            if command.in_background {
                return Ok(String::new());
            }
            let reply = connection.reply();
            return self.printed(&command.connection, reply, &command.filters);
        };
        // Returns the distinct replies of a loop with their counts, in order of first appearance.
        let mut counts: Vec<(String, u64)> = Vec::new();
        let numbers: Vec<u64> = (from..=to).step_by(step).collect();
        for some in numbers.chunks(500) {
            let requests: Vec<Vec<Vec<u8>>> = some
                .iter()
                .map(|&n| command.words.iter().map(|w| with_number(w, n)).collect())
                .collect();
            self.servers.connection(&command.connection)?.send(&requests);
            for _ in some {
                let reply = self.servers.connection(&command.connection)?.reply();
                let said = self.printed(&command.connection, reply, &command.filters)?;
                let said = said.replace('\n', ", ");
                match counts.iter_mut().find(|(known, _)| *known == said) {
                    Some((_, count)) => *count += 1,
                    None => counts.push((said, 1)),
                }
            }
        }
        let with_counts = !command.filters.iter().any(|filter| filter[..] == ["kinds"]);
        let lines = counts.iter().map(|(said, count)| match with_counts {
            true => format!("{count} times: {said}\n"),
            false => format!("{said}\n"),
        });
        Ok(lines.collect())
    }

    fn expanded(&self, word: &[u8]) -> Vec<u8> {
        let name = word.strip_prefix(b"<").and_then(|rest| rest.strip_suffix(b">"));
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        if let Some(kept) = name.and_then(|name| self.kept.get(name)) {
            return kept.clone();
        }
        let Ok(text) = std::str::from_utf8(word) else { return word.to_vec() };
        let mut text = self.servers.expand(text);
        for (number, id) in (1..).zip(self.ids.iter().flatten()) {
            text = text.replace(&format!("<id{number}>"), id);
        }
        text.into_bytes()
    }

    /// Formats a reply for the transcript.
    fn printed(
        &mut self,
        connection: &str,
        reply: Result<Reply, String>,
        filters: &[Vec<String>],
    ) -> Result<String, String> {
        let mut reply = match reply {
            Ok(reply) => reply,
            Err(said) => {
                self.servers.close(connection);
                return Ok(said);
            }
        };
        for filter in filters {
            reply = match (filter.first().map(String::as_str), reply) {
                (Some("show"), reply) => reply::show(reply, &filter[1..]),
                (Some("text"), Reply::BulkString(bytes)) => Reply::Verbatim(bytes),
                (Some("text"), reply) => reply,
                (Some("columns"), Reply::BulkString(bytes)) => {
                    Reply::Verbatim(columns(&bytes, &filter[1..])?)
                }
                // The replies of a loop were counted before the filters.
                (Some("kinds"), reply) => reply,
                (Some("type"), reply) => Reply::SimpleString(reply::describe(&reply).into_bytes()),
                (Some("keep"), Reply::BulkString(bytes)) if filter.len() == 2 => {
                    self.kept.insert(filter[1].clone(), bytes);
                    reply::masked(&filter[1])
                }
                _ => return Err(format!("unknown filter '{}'", filter.join(" "))),
            };
        }
        let ids = RefCell::new(self.ids.take());
        let reply = reply::rename(reply, &|text: &str| {
            let text = self.servers.shorten(text);
            ids.borrow_mut().as_mut().map_or(text.clone(), |known| with_names(&text, known))
        });
        self.ids = ids.into_inner();
        Ok(reply::print(&reply::mask(reply, &self.masked)))
    }

    /// Runs a subcommand of the binary. Returns its output, and its exit status if it is not 0. `|
    /// TEXT` keeps only the lines that contain the text.
    fn shell(&mut self, words: &[String]) -> Result<String, String> {
        let Some(("tidemark", words)) = words.split_first().map(|(p, rest)| (p.as_str(), rest))
        else {
            return Err("only `$ tidemark ...` commands are allowed".to_owned());
        };
        let (words, only) = match words.iter().position(|word| word == "|") {
            Some(at) if words.get(at + 1).is_some_and(|word| word == "lines") => {
                (&words[..at], Some(words[at + 2..].join(" ")))
            }
            Some(_) => return Err("only `| lines TEXT` is allowed there".to_owned()),
            None => (words, None),
        };
        let words: Vec<String> = words.iter().map(|word| self.servers.expand(word)).collect();
        let mut command = std::process::Command::new(crate::program());
        command.args(&words).env("NO_COLOR", "1").env("COLUMNS", "100");
        let output = command.output().map_err(|e| e.to_string())?;
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said += &String::from_utf8_lossy(&output.stderr);
        if let Some(only) = only {
            said = said.lines().filter(|l| l.contains(&only)).map(|l| format!("{l}\n")).collect();
        }
        if let Some(code @ 1..) = output.status.code() {
            said += &format!("(exit status {code})\n");
        }
        Ok(self.servers.shorten(&said))
    }
}

/// Compares the formatting of replies with redis-cli for these commands, in RESP2 and RESP3.
///
/// # Errors
///
/// The first difference.
pub fn compare_with_redis_cli(commands: &[&[&str]]) -> Result<(), String> {
    let server = Server::new(CONFIG)?;
    for protocol in ["2", "3"] {
        let mut connection = servers::Connection::open(server.port)?;
        let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect();
        connection.send(&[words(&["HELLO", protocol])]);
        connection.reply()?;
        let mut compare = |command: &[&str]| {
            let mut cli = std::process::Command::new("redis-cli");
            cli.args(["--no-raw", "-p", &server.port.to_string(), &format!("-{protocol}")]);
            let output = cli.args(command).output().map_err(|e| format!("redis-cli: {e}"))?;
            let theirs = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
            connection.send(&[words(command)]);
            let ours = reply::print(&connection.reply()?);
            if ours.trim_end() == theirs {
                return Ok(());
            }
            Err(format!("{command:?}: redis-cli prints\n{theirs}\nbut the server printed\n{ours}"))
        };
        for command in commands {
            // Memory values may change between the two replies.
            compare(command).or_else(|_| compare(command)).or_else(|_| compare(command))?;
        }
    }
    Ok(())
}

/// Replaces a stream entry id by `<idN>`, numbered in order of appearance. Only a text that is a
/// whole id gets a new number. 0-0 is not replaced.
fn with_names(text: &str, known: &mut Vec<String>) -> String {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_id = text.split_once('-').is_some_and(|(term, seq)| is_number(term) && is_number(seq));
    if is_id && text != "0-0" && !known.iter().any(|id| id == text) {
        known.push(text.to_owned());
    }
    let named = |word: &str| match known.iter().position(|id| id == word) {
        Some(at) => format!("<id{}>", at + 1),
        None => word.to_owned(),
    };
    text.split(' ').map(named).collect::<Vec<_>>().join(" ")
}

fn with_number(word: &[u8], n: u64) -> Vec<u8> {
    match std::str::from_utf8(word) {
        Ok(text) => text.replace("<n>", &n.to_string()).into_bytes(),
        Err(_) => word.to_vec(),
    }
}

/// Returns the given columns of each line, numbered from 1 and separated by spaces.
fn columns(text: &[u8], numbers: &[String]) -> Result<Vec<u8>, String> {
    let wanted = numbers.iter().map(|number| number.parse::<usize>().map_err(|e| e.to_string()));
    let wanted = wanted.collect::<Result<Vec<usize>, String>>()?;
    let text = String::from_utf8_lossy(text);
    let line = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let shown = wanted.iter().filter_map(|at| words.get(at.checked_sub(1)?).copied());
        shown.collect::<Vec<_>>().join(" ")
    };
    Ok(text.lines().map(line).collect::<Vec<_>>().join("\n").into_bytes())
}
