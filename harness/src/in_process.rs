//! A server inside of the test's process, on a port of its own, and ways to talk to it.

use crate::PATIENCE;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::DirEntryExt;
use std::time::Instant;
use tidemark_server::config::Config;
use tidemark_server::{Server, start};

/// The files of a folder: their names, and which file each is. One that grows is the same; one that
/// was replaced is not.
fn files_of(folder: &std::path::Path) -> Vec<(std::ffi::OsString, u64)> {
    let entries =
        std::fs::read_dir(folder).expect("the data folder").map(|entry| entry.expect("an entry"));
    // What has gone meanwhile is not there.
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
    /// With the built-in configuration.
    pub fn start() -> TestServer {
        TestServer::with(|_| {})
    }

    /// With a configuration that `change` has changed.
    pub fn with(change: impl FnOnce(&mut Config)) -> TestServer {
        let mut config = Config::default();
        config.server.workers = 2;
        // Servers of other tests run beside this one.
        config.admin.port = 0;
        // What one request may hold is the affair of the test of that limit.
        (config.server.max_request_args, config.server.max_transaction_args) = (1 << 20, 1 << 20);
        change(&mut config);
        TestServer::on(tempfile::tempdir().expect("a temporary folder"), config)
    }

    fn on(folder: tempfile::TempDir, mut config: Config) -> TestServer {
        config.durability.dir = folder.path().to_path_buf();
        let server = start(config.clone(), listener()).expect("the server starts");
        TestServer { port: server.port(), server: Some(server), config, folder: Some(folder) }
    }

    /// Stops it and starts it again on the same data, with a configuration that `change` has
    /// changed.
    pub fn restart_with(mut self, change: impl FnOnce(&mut Config)) -> TestServer {
        if let Some(server) = self.server.take() {
            server.stop().expect("no thread panicked");
        }
        let mut config = self.config.clone();
        change(&mut config);
        TestServer::on(self.folder.take().expect("it is there until the end"), config)
    }

    /// Stops it; [`Stopped::started`] starts it again, on the same port.
    pub fn stopped(mut self) -> Stopped {
        if let Some(server) = self.server.take() {
            server.stop().expect("no thread panicked");
        }
        let folder = self.folder.take().expect("it is there until the end");
        Stopped { folder, config: self.config.clone(), port: self.port }
    }

    /// Stops it and starts it again.
    pub fn restart(self) -> TestServer {
        self.restart_with(|_| {})
    }

    /// Another server on what the disk holds once it has all that was answered: as if this one's
    /// process had been killed then.
    pub fn killed(&self) -> TestServer {
        // What was answered a moment ago may still be gathered for the log. Where it cannot get
        // there, the disk is taken as it is.
        if let Ok(mut connection) =
            redis::Client::open(self.url()).and_then(|client| client.get_connection())
        {
            _ = redis::cmd("WAITAOF").arg(1).arg(0).arg(2_000).exec(&mut connection);
        }
        self.on_copy(self.folder())
    }

    /// Another server, configured like this one, on a copy of a folder.
    pub fn on_copy(&self, from: &std::path::Path) -> TestServer {
        let started = Instant::now();
        let to = loop {
            let to = tempfile::tempdir().expect("a temporary folder");
            let before = files_of(from);
            let copied = before
                .iter()
                .all(|(name, _)| std::fs::copy(from.join(name), to.path().join(name)).is_ok());
            // A process dies at one moment: all files are to be of it.
            if copied && files_of(from) == before {
                break to;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "the files in {} change all the time",
                from.display()
            );
        };
        TestServer::on(to, self.config.clone())
    }

    /// Its data folder.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.as_ref().expect("it is there until the end").path()
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address, for a client that wants one.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// A connection of redis-rs, a stock client.
    pub fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("a valid address");
        client.get_connection().expect("the server takes connections")
    }

    /// The server itself.
    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs until it is dropped")
    }

    /// Bytes on a socket, for tests of the protocol.
    pub fn raw(&self) -> Raw {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Raw { stream }
    }

    /// Stops it and waits for its end.
    pub fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop().expect("no thread panicked");
        }
    }

    /// Waits until a client has stopped it (SHUTDOWN).
    pub fn join(mut self) {
        if let Some(server) = self.server.take() {
            server.join().expect("no thread panicked");
        }
    }
}

/// A server that was stopped.
pub struct Stopped {
    folder: tempfile::TempDir,
    config: Config,
    port: u16,
}

/// On a free port that the system gives to no outgoing connection: it must still be
/// free when a server that was stopped comes back.
pub fn listener() -> TcpListener {
    let range =
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let given_from: u16 =
        range.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(32_768);
    let some = |_| TcpListener::bind(("127.0.0.1", fastrand::u16(given_from / 3..given_from))).ok();
    (0..1000).find_map(some).expect("a free port")
}

impl Stopped {
    /// Starts it again.
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
            // A second panic would hide the first.
            if !std::thread::panicking() {
                stopped.expect("no thread panicked");
            }
        }
    }
}

/// A socket to the server, without a client's comfort.
pub struct Raw {
    /// The socket.
    pub stream: TcpStream,
}

impl Raw {
    /// Sends bytes; a server that has closed the connection meanwhile is no failure here.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Raw {
        let _ = self.stream.write_all(bytes.as_ref());
        self
    }

    /// Sends one request as an array of bulk strings.
    pub fn request(&mut self, args: &[&str]) -> &mut Raw {
        self.send(request(args))
    }

    /// Reads until so many bytes are there, or the server closes.
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

    /// Expects exactly these bytes next.
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
            // A reset, too, is a closed connection.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("after {:?}: {error}", String::from_utf8_lossy(&bytes)),
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a request and reads one line of reply.
    pub fn ask(&mut self, args: &[&str]) -> String {
        self.request(args);
        self.line()
    }

    /// Reads one line, without its end.
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

/// A request as an array of bulk strings.
pub fn request(args: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n{arg}\r\n", arg.len()).as_bytes());
    }
    bytes
}

/// The rules that docs/security.md recommends for a user, as words of ACL SETUSER, with this
/// password.
pub fn recommended_user(name: &str, password: &str) -> Vec<String> {
    let text = include_str!("../../docs/security.md");
    let start = format!("ACL SETUSER {name} ");
    let line = text.lines().find_map(|line| Some(&line[line.find(&start)?..]));
    // As a shell reads them: what is between quotes is one word.
    let parts = line.expect("the documentation has this user").split('\'').enumerate();
    let words = parts.flat_map(|(at, part)| match at % 2 {
        0 => part.split_ascii_whitespace().map(str::to_owned).collect(),
        _ if part.starts_with('>') => vec![format!(">{password}")],
        _ => vec![part.to_owned()],
    });
    words.collect()
}
