//! Blocking connection with pipelining, for the import, the demo, tests and benchmarks.

use crate::connect::ConnectArgs;
use crate::inbox::MAX_INBOX_BYTES;
use crate::link::{Link, is_permission_error, put_command, refused, timely};
use crate::reply::Reply;
use crate::socket::Socket;
use std::io;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// One connection. It must not be used in an asynchronous task.
pub struct Client {
    runtime: Runtime,
    link: Link,
    /// Requests that are not sent yet.
    out: Vec<u8>,
    waiting: usize,
}

impl Client {
    /// Maximum number of pending commands. Their replies, tens of bytes each, fit in the kernel's
    /// buffers. More commands could fill the socket buffers of both sides while both write.
    pub const IN_FLIGHT: usize = 1024;

    /// Connects without TLS and login.
    pub fn connect((host, port): (&str, u16)) -> io::Result<Client> {
        Client::new(async {
            Ok(Link::new(Socket::connect(host, port, None, host).await?, MAX_INBOX_BYTES))
        })
    }

    /// Connects and authenticates.
    pub fn open(to: &ConnectArgs) -> io::Result<Client> {
        Client::new(async { to.open(to.tls()?.as_ref()).await })
    }

    /// Creates a client of the connection that `open` opens.
    pub fn new(open: impl Future<Output = io::Result<Link>>) -> io::Result<Client> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let link = runtime.block_on(open)?;
        Ok(Client { runtime, link, out: Vec::new(), waiting: 0 })
    }

    /// Queues a command. Replies arrive in the order of the commands.
    pub fn push(&mut self, args: &[&[u8]]) {
        put_command(&mut self.out, args);
        self.waiting += 1;
    }

    /// Number of pending replies, including those of unsent commands.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether [`Client::IN_FLIGHT`] replies are pending. The caller must then read replies before
    /// it pushes more commands.
    pub fn is_full(&self) -> bool {
        self.waiting >= Client::IN_FLIGHT
    }

    /// Sends the queued commands.
    pub fn send(&mut self) -> io::Result<()> {
        self.runtime.block_on(self.link.send(&self.out))?;
        self.out.clear();
        Ok(())
    }

    /// Sends the queued commands and returns the next reply.
    pub fn reply(&mut self) -> io::Result<Reply> {
        if !self.out.is_empty() {
            self.send()?;
        }
        let reply = self.runtime.block_on(self.link.next())?;
        self.waiting -= 1;
        Ok(reply)
    }

    /// Sends one command and returns its reply.
    pub fn call(&mut self, args: &[&[u8]]) -> io::Result<Reply> {
        self.push(args);
        self.reply()
    }

    /// Sends one command and returns its reply, with a timeout. An error reply becomes `Err`.
    pub fn ask(&mut self, args: &[&[u8]]) -> io::Result<Reply> {
        self.run(async |link| timely(link.ask(args)).await)
    }

    /// Sends `count` requests and passes each reply to `take`. A missing permission ends the batch,
    /// because later requests would fail in the same way.
    pub fn batch(
        &mut self,
        requests: &[u8],
        count: usize,
        mut take: impl FnMut(Reply),
    ) -> io::Result<()> {
        self.run(async |link| {
            timely(link.send(requests)).await?;
            for _ in 0..count {
                match timely(link.next()).await? {
                    Reply::Error(reason) if is_permission_error(&reason) => {
                        return Err(refused(reason));
                    }
                    reply => take(reply),
                }
            }
            Ok(())
        })
    }

    /// Returns the next message, or `None` if none arrives within `timeout`.
    pub fn message(&mut self, timeout: Duration) -> io::Result<Option<Reply>> {
        self.run(async |link| tokio::time::timeout(timeout, link.next()).await).ok().transpose()
    }

    /// Runs asynchronous work on the connection.
    pub fn run<T>(&mut self, work: impl AsyncFnOnce(&mut Link) -> T) -> T {
        self.runtime.block_on(work(&mut self.link))
    }
}
