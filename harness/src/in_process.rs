//! Runs a server inside the test process, on its own port, and provides clients.

use crate::DEFAULT_TIMEOUT;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::DirEntryExt;
use std::time::Instant;
use tidemark_server::config::Config;
use tidemark_server::{Server, start};

/// Returns the name and inode of each file in a folder. Appending to a file keeps its inode;
/// replacing the file does not.
fn files_of(folder: &std::path::Path) -> Vec<(std::ffi::OsString, u64)> {
    let entries =
        std::fs::read_dir(folder).expect("the data folder").map(|entry| entry.expect("an entry"));
    // Skips files that were removed after the folder was listed.
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|of| of.is_file()));
    let mut files: Vec<_> = files.map(|entry| (entry.file_name(), entry.ino())).collect();
    files.sort();
    files
}

/// A server that stops when the test ends.
pub struct TestServer {
    server: Option<Server>,
    port: u16,
    config: Config,
    folder: Option<tempfile::TempDir>,
}

impl TestServer {
    /// Starts a server with the default configuration.
    pub fn start() -> TestServer {
        TestServer::with(|_| {})
    }

    /// Starts a server with a configuration modified by `change`.
    pub fn with(change: impl FnOnce(&mut Config)) -> TestServer {
        let mut config = Config::default();
        config.server.workers = 2;
        // Servers of other tests may use the default admin port.
        config.admin.port = 0;
        // Raise the request limits, which have their own tests.
        (config.server.max_request_args, config.server.max_transaction_args) = (1 << 20, 1 << 20);
        change(&mut config);
        TestServer::on(tempfile::tempdir().expect("a temporary folder"), config)
    }

    fn on(folder: tempfile::TempDir, mut config: Config) -> TestServer {
        config.durability.dir = folder.path().to_path_buf();
        let server = start(config.clone(), listener()).expect("the server starts");
        TestServer { port: server.port(), server: Some(server), config, folder: Some(folder) }
    }

    /// Stops the server and starts it again on the same data, with a configuration modified by
    /// `change`.
    pub fn restart_with(mut self, change: impl FnOnce(&mut Config)) -> TestServer {
        if let Some(server) = self.server.take() {
            server.stop().expect("no thread panicked");
        }
        let mut config = self.config.clone();
        change(&mut config);
        TestServer::on(self.folder.take().expect("running until the end"), config)
    }

    /// Stops the server; [`Stopped::started`] starts it again on the same port.
    pub fn stopped(mut self) -> Stopped {
        if let Some(server) = self.server.take() {
            server.stop().expect("no thread panicked");
        }
        let folder = self.folder.take().expect("running until the end");
        Stopped { folder, config: self.config.clone(), port: self.port }
    }

    /// Stops the server and starts it again.
    pub fn restart(self) -> TestServer {
        self.restart_with(|_| {})
    }

    /// Simulates a kill: starts another server on a copy of the data. The copy contains every
    /// acknowledged write.
    pub fn killed(&self) -> TestServer {
        // Acknowledged writes may still be queued for the log, so flush it. If the log cannot be
        // written, copy the files without those writes.
        if let Ok(mut connection) =
            redis::Client::open(self.url()).and_then(|client| client.get_connection())
        {
            _ = redis::cmd("WAITAOF").arg(1).arg(0).arg(2_000).exec(&mut connection);
        }
        self.on_copy(self.folder())
    }

    /// Starts another server with the same configuration on a copy of a folder.
    pub fn on_copy(&self, from: &std::path::Path) -> TestServer {
        let started = Instant::now();
        let to = loop {
            let to = tempfile::tempdir().expect("a temporary folder");
            let before = files_of(from);
            let copied = before
                .iter()
                .all(|(name, _)| std::fs::copy(from.join(name), to.path().join(name)).is_ok());
            // Repeat the copy if files changed in the meantime. After a kill, all files are from
            // the same moment.
            if copied && files_of(from) == before {
                break to;
            }
            assert!(
                started.elapsed() < DEFAULT_TIMEOUT,
                "the files in {} keep changing",
                from.display()
            );
        };
        TestServer::on(to, self.config.clone())
    }

    /// Path of the data folder.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.as_ref().expect("running until the end").path()
    }

    /// Port on which the server listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address as a URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Opens a connection of redis-rs, a stock client.
    pub fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("a valid address");
        client.get_connection().expect("the server accepts connections")
    }

    /// Returns the server object.
    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("the server runs until it is dropped")
    }

    /// Opens a raw socket, for protocol tests.
    pub fn raw(&self) -> Raw {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server is listening");
        stream.set_read_timeout(Some(DEFAULT_TIMEOUT)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Raw { stream }
    }

    /// Stops the server and waits until it has ended.
    pub fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop().expect("no thread panicked");
        }
    }

    /// Waits until a client stops the server (SHUTDOWN).
    pub fn join(mut self) {
        if let Some(server) = self.server.take() {
            server.join().expect("no thread panicked");
        }
    }
}

/// A stopped server, which can be started again.
pub struct Stopped {
    folder: tempfile::TempDir,
    config: Config,
    port: u16,
}

/// Binds a free port outside the system's ephemeral range, so that no outgoing connection uses it
/// while the server is stopped.
pub fn listener() -> TcpListener {
    let range =
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let given_from: u16 =
        range.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(32_768);
    let some = |_| TcpListener::bind(("127.0.0.1", fastrand::u16(given_from / 3..given_from))).ok();
    (0..1000).find_map(some).expect("a free port")
}

impl Stopped {
    /// Starts the stopped server again.
    pub fn started(self) -> TestServer {
        let mut config = self.config;
        config.durability.dir = self.folder.path().to_path_buf();
        config.server.port = self.port;
        let listener = tidemark_server::listen(&config).expect("the port is free").remove(0);
        let server = start(config.clone(), listener).expect("the server starts");
        TestServer { port: server.port(), server: Some(server), config, folder: Some(self.folder) }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let stopped = server.stop();
            // Do not panic again, which would hide the first panic.
            if !std::thread::panicking() {
                stopped.expect("no thread panicked");
            }
        }
    }
}

/// A raw socket to the server.
pub struct Raw {
    /// TCP connection to the server.
    pub stream: TcpStream,
}

impl Raw {
    /// Sends bytes. Ignores errors of a connection that the server has closed.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Raw {
        let _ = self.stream.write_all(bytes.as_ref());
        self
    }

    /// Sends one request as an array of bulk strings.
    pub fn request(&mut self, args: &[&str]) -> &mut Raw {
        self.send(request(args))
    }

    /// Reads `length` bytes, or fewer if the server closes the connection.
    pub fn take(&mut self, length: usize) -> String {
        let mut bytes = Vec::with_capacity(length);
        let mut buf = [0; 4096];
        while bytes.len() < length {
            let most = buf.len().min(length - bytes.len());
            match self.stream.read(&mut buf[..most]) {
                Ok(0) => break,
                Ok(n) => bytes.extend_from_slice(&buf[..n]),
                Err(error) => panic!("after {:?}: {error}", String::from_utf8_lossy(&bytes)),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Asserts that exactly these bytes arrive next.
    #[track_caller]
    pub fn expect(&mut self, bytes: &str) -> &mut Raw {
        assert_eq!(self.take(bytes.len()), bytes);
        self
    }

    /// Reads until the server closes the connection.
    pub fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        match self.stream.read_to_end(&mut bytes) {
            Ok(_) => {}
            // A reset also counts as a closed connection.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("after {:?}: {error}", String::from_utf8_lossy(&bytes)),
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a request and reads one line of the reply.
    pub fn ask(&mut self, args: &[&str]) -> String {
        self.request(args);
        self.line()
    }

    /// Reads one line, without CRLF.
    pub fn line(&mut self) -> String {
        let mut bytes = Vec::new();
        let mut byte = [0];
        while !bytes.ends_with(b"\r\n") {
            match self.stream.read(&mut byte) {
                Ok(1) => bytes.push(byte[0]),
                Ok(_) => break,
                Err(error) => panic!("after {:?}: {error}", String::from_utf8_lossy(&bytes)),
            }
        }
        String::from_utf8_lossy(&bytes).trim_end_matches("\r\n").to_owned()
    }
}

/// Encodes a request as an array of bulk strings.
pub fn request(args: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    client::put_command(&mut bytes, &args.iter().map(|arg| arg.as_bytes()).collect::<Vec<_>>());
    bytes
}

/// Returns the rules that docs/security.md recommends for a user, as arguments of ACL SETUSER with
/// this password.
pub fn recommended_user(name: &str, password: &str) -> Vec<String> {
    let text = include_str!("../../docs/security.md");
    let start = format!("ACL SETUSER {name} ");
    let line = text.lines().find_map(|line| Some(&line[line.find(&start)?..]));
    // Split like a shell: quoted text is one argument.
    let parts = line.expect("the documentation has this user").split('\'').enumerate();
    let words = parts.flat_map(|(at, part)| match at % 2 {
        0 => part.split_ascii_whitespace().map(str::to_owned).collect(),
        _ if part.starts_with('>') => vec![format!(">{password}")],
        _ => vec![part.to_owned()],
    });
    words.collect()
}
