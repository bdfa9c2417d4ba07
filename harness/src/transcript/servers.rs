//! Server processes of a transcript, and connections to them.

use crate::program::Program;
use client::{Client, Reply};
use std::collections::BTreeMap;
use std::time::Duration;

/// Timeout for a server's reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// A running server, or a stopped server that can be restarted with the same folder and port.
pub(super) struct Server {
    pub(super) folder: tempfile::TempDir,
    pub(super) port: u16,
    program: Option<Program>,
}

impl Server {
    /// Starts a server with this configuration in a new folder, on a free port.
    pub(super) fn new(config: &str) -> Result<Server, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let mut server = Server { folder, port: 0, program: None };
        server.configure(config)?;
        server.start()?;
        Ok(server)
    }

    /// Writes the configuration for the next start. Replaces `<home>` by the server's folder.
    pub(super) fn configure(&self, config: &str) -> Result<(), String> {
        let config = config.replace("<home>", &self.folder.path().to_string_lossy());
        std::fs::write(self.folder.path().join("tidemark.toml"), config).map_err(|e| e.to_string())
    }

    pub(super) fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    /// Deletes the data of a stopped server.
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

    /// Stops the server with SIGKILL or SIGTERM and waits until it has ended.
    pub(super) fn end(&mut self, kill: bool) -> Result<(), String> {
        let program = self.program.take().ok_or("the server does not run")?;
        if kill {
            program.kill();
        } else {
            program.terminate();
        }
        Ok(())
    }
}

/// A connection of a transcript.
pub(super) struct Connection {
    client: Client,
    /// Messages that arrived while waiting for a reply.
    pushed: std::collections::VecDeque<Reply>,
}

/// redis-cli's message for a closed connection.
const CLOSED: &str = "Error: Server closed the connection";

impl Connection {
    pub(super) fn open(port: u16) -> Result<Connection, String> {
        let client = Client::connect(("127.0.0.1", port)).map_err(|e| e.to_string())?;
        Ok(Connection { client, pushed: Default::default() })
    }

    pub(super) fn send(&mut self, requests: &[Vec<Vec<u8>>]) {
        for words in requests {
            self.client.push(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        // Ignore errors: if the server has closed the connection, the next read reports it.
        _ = self.client.send();
    }

    /// Returns the next reply and queues the messages before it. The error is the text for the
    /// transcript.
    pub(super) fn reply(&mut self) -> Result<Reply, String> {
        loop {
            match self.receive()? {
                // A confirmation of a subscription is a push message, but counts as a reply.
                Reply::Push(items) if !is_confirmation(&items) => {
                    self.pushed.push_back(Reply::Push(items));
                }
                reply => return Ok(reply),
            }
        }
    }

    /// Returns the next message or reply.
    pub(super) fn next(&mut self) -> Result<Reply, String> {
        self.pushed.pop_front().map_or_else(|| self.receive(), Ok)
    }

    fn receive(&mut self) -> Result<Reply, String> {
        use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
        match self.client.message(REPLY_TIMEOUT) {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(format!("Error: no reply within {REPLY_TIMEOUT:?}")),
            Err(e) if matches!(e.kind(), UnexpectedEof | ConnectionReset) => Err(CLOSED.to_owned()),
            Err(e) => Err(format!("Error: {e}")),
        }
    }
}

fn is_confirmation(items: &[Reply]) -> bool {
    matches!(items.first(), Some(Reply::BulkString(kind)) if kind.ends_with(b"subscribe"))
}

/// All servers and connections of a transcript, by name.
#[derive(Default)]
pub(super) struct Servers {
    pub(super) servers: BTreeMap<String, Server>,
    connections: BTreeMap<String, Connection>,
}

/// Server of a connection whose name does not contain a server's name.
pub(super) const MAIN: &str = "main";

impl Servers {
    pub(super) fn server(&mut self, name: &str) -> Result<&mut Server, String> {
        self.servers.get_mut(name).ok_or_else(|| format!("no server is named '{name}'"))
    }

    /// Returns the name of the server that a connection is for. The connections `replica` and
    /// `replica.c2` are for the server `replica`, `c2` is for [`MAIN`].
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

    /// Closes a connection. The next use of the connection's name opens a new connection.
    pub(super) fn close(&mut self, connection: &str) {
        self.connections.remove(connection);
    }

    pub(super) fn close_all_of(&mut self, server: &str) {
        let names: Vec<String> = self.connections.keys().cloned().collect();
        for name in names {
            if self.server_of(&name) == server {
                self.close(&name);
            }
        }
    }

    /// Replaces `<main.port>` and `<main.dir>` by their values.
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

    /// Replaces ports and folders by their names.
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
