//! The servers of a story, each a process of its own, and connections to them.

use super::reply::Reply;
use crate::program::Program;
use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that runs, or has run and may be started again on the same folder and port.
pub(super) struct Server {
    pub(super) folder: tempfile::TempDir,
    pub(super) port: u16,
    program: Option<Program>,
}

impl Server {
    /// A server with this configuration in a new folder, on a port that it chooses.
    pub(super) fn new(config: &str) -> Result<Server, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let mut server = Server { folder, port: 0, program: None };
        server.configure(config)?;
        server.start()?;
        Ok(server)
    }

    /// Has effect from the next start on. `<home>` is the folder that all of it is in.
    pub(super) fn configure(&self, config: &str) -> Result<(), String> {
        let config = config.replace("<home>", &self.folder.path().to_string_lossy());
        std::fs::write(self.folder.path().join("tidemark.toml"), config).map_err(|e| e.to_string())
    }

    /// The folder of its data.
    pub(super) fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    /// Its data are lost; it does not run.
    pub(super) fn lose(&self) -> Result<(), String> {
        std::fs::remove_dir_all(self.data()).map_err(|e| e.to_string())
    }

    pub(super) fn start(&mut self) -> Result<(), String> {
        let config = self.folder.path().join("tidemark.toml");
        let (port, config) = (self.port.to_string(), config.to_string_lossy().into_owned());
        let options = ["--port", &port, "--config", &config];
        let program = Program::start_as(&[], &self.data(), &options)
            .map_err(|said| format!("the server did not start: {said:#?}"))?;
        self.port = program.port;
        self.program = Some(program);
        Ok(())
    }

    /// kill -9, or SIGTERM; and waits for its end.
    pub(super) fn end(&mut self, kill: bool) -> Result<(), String> {
        let program = self.program.take().ok_or("it does not run")?;
        if kill {
            program.kill();
        } else {
            program.terminate();
        }
        Ok(())
    }
}

/// One connection of a story.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
    /// Messages that came while a reply was waited for.
    pushed: std::collections::VecDeque<Reply>,
}

/// What redis-cli says when the connection is gone.
const CLOSED: &str = "Error: Server closed the connection";

impl Connection {
    pub(super) fn open(port: u16) -> Result<Connection, String> {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(|e| e.to_string())?;
        Ok(Connection { stream: BufReader::new(stream), pushed: Default::default() })
    }

    pub(super) fn send(&mut self, requests: &[Vec<Vec<u8>>]) {
        let mut bytes = Vec::new();
        for words in requests {
            bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in words {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        // If the server has closed the connection, the reply says so.
        _ = self.stream.get_mut().write_all(&bytes);
    }

    /// The next reply; messages before it are kept. The error is what the transcript shows.
    pub(super) fn reply(&mut self) -> Result<Reply, String> {
        loop {
            match Reply::read(&mut self.stream) {
                // Subscriptions are answered by messages.
                Ok(Reply::Push(items)) if !is_confirmation(&items) => {
                    self.pushed.push_back(Reply::Push(items));
                }
                Ok(reply) => return Ok(reply),
                Err(e) => return Err(failure(&e)),
            }
        }
    }

    /// The next message or reply.
    pub(super) fn next(&mut self) -> Result<Reply, String> {
        match self.pushed.pop_front() {
            Some(message) => Ok(message),
            None => Reply::read(&mut self.stream).map_err(|e| failure(&e)),
        }
    }
}

fn is_confirmation(items: &[Reply]) -> bool {
    matches!(items.first(), Some(Reply::Bulk(kind)) if kind.ends_with(b"subscribe"))
}

fn failure(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => {
            CLOSED.to_owned()
        }
        std::io::ErrorKind::WouldBlock => format!("Error: no reply within {PATIENCE:?}"),
        _ => format!("Error: {error}"),
    }
}

/// All servers and connections of a story, by their names.
#[derive(Default)]
pub(super) struct Servers {
    pub(super) servers: BTreeMap<String, Server>,
    connections: BTreeMap<String, Connection>,
}

/// The server that a connection without a server's name goes to.
pub(super) const MAIN: &str = "main";

impl Servers {
    pub(super) fn server(&mut self, name: &str) -> Result<&mut Server, String> {
        self.servers.get_mut(name).ok_or_else(|| format!("there is no server '{name}'"))
    }

    /// The server of a connection: `replica`, `replica.c2`, and `c2` is one of main.
    fn server_of<'a>(&self, connection: &'a str) -> &'a str {
        let name = connection.split('.').next().unwrap_or(connection);
        if self.servers.contains_key(name) { name } else { MAIN }
    }

    pub(super) fn connection(&mut self, name: &str) -> Result<&mut Connection, String> {
        if !self.connections.contains_key(name) {
            let server = self.server_of(name).to_owned();
            let opened = Connection::open(self.server(&server)?.port)?;
            self.connections.insert(name.to_owned(), opened);
        }
        self.connections.get_mut(name).ok_or_else(|| "no connection".to_owned())
    }

    /// The next use of the name opens another one.
    pub(super) fn close(&mut self, connection: &str) {
        self.connections.remove(connection);
    }

    /// Closes all connections to a server, which is going to end.
    pub(super) fn close_all_of(&mut self, server: &str) {
        let names: Vec<String> = self.connections.keys().cloned().collect();
        for name in names {
            if self.server_of(&name) == server {
                self.close(&name);
            }
        }
    }

    /// `<main.port>` and `<main.dir>` become what they stand for.
    pub(super) fn expand(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, server) in &self.servers {
            text = text.replace(&format!("<{name}.port>"), &server.port.to_string());
            text = text.replace(&format!("<{name}.dir>"), &server.data().to_string_lossy());
            let home = server.folder.path().to_string_lossy();
            text = text.replace(&format!("<{name}.home>"), &home);
        }
        text
    }

    /// Ports and folders become their names.
    pub(super) fn shorten(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, server) in &self.servers {
            let (port, shown) = (server.port.to_string(), format!("<{name}.port>"));
            if text == port {
                return shown;
            }
            for before in ["127.0.0.1:", "127.0.0.1 ", "port=", "port:"] {
                text = text.replace(&format!("{before}{port}"), &format!("{before}{shown}"));
            }
            text = text.replace(&*server.data().to_string_lossy(), &format!("<{name}.dir>"));
            let home = server.folder.path().to_string_lossy();
            text = text.replace(&*home, &format!("<{name}.home>"));
        }
        text
    }
}
