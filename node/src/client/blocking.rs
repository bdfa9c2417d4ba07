//! Blocking client with pipelining, for the import and the demo.
//!
//! The crate redis-protocol decodes the replies, as this is not a hot path. At most
//! [`Client::IN_FLIGHT`] commands are pending, so that the socket buffers of both sides never fill
//! up while both sides write.

use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{TcpStream, ToSocketAddrs};

/// A blocking connection to a server.
pub struct Client {
    stream: TcpStream,
    out: Vec<u8>,
    /// Received bytes; `inbox[start..]` is not decoded yet.
    inbox: Vec<u8>,
    start: usize,
    waiting: usize,
}

impl Client {
    /// Maximum number of pending commands. Their replies, tens of bytes each, fit in the kernel's
    /// buffers.
    pub const IN_FLIGHT: usize = 1024;

    /// Connects to a host and a port.
    pub fn connect(address: impl ToSocketAddrs) -> Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, out: Vec::new(), inbox: Vec::new(), start: 0, waiting: 0 })
    }

    /// Queues a command. Replies arrive in the order of the commands.
    pub fn push(&mut self, args: &[&[u8]]) {
        let _ = write!(self.out, "*{}\r\n", args.len());
        for arg in args {
            let _ = write!(self.out, "${}\r\n", arg.len());
            self.out.extend_from_slice(arg);
            self.out.extend_from_slice(b"\r\n");
        }
        self.waiting += 1;
    }

    /// Number of pending replies, including the replies to unsent commands.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether [`Client::IN_FLIGHT`] replies are pending. The caller must then read replies before
    /// it pushes more commands.
    pub fn is_full(&self) -> bool {
        self.waiting >= Client::IN_FLIGHT
    }

    /// Sends the queued commands.
    pub fn send(&mut self) -> Result<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Sends the queued commands and returns the next reply.
    pub fn reply(&mut self) -> Result<OwnedFrame> {
        if !self.out.is_empty() {
            self.send()?;
        }
        loop {
            match decode(&self.inbox[self.start..]) {
                Ok(Some((frame, used))) => {
                    self.start += used;
                    self.waiting -= 1;
                    if self.start == self.inbox.len() {
                        self.inbox.clear();
                        self.start = 0;
                    }
                    return Ok(frame);
                }
                Ok(None) => {}
                Err(e) => {
                    return Err(Error::new(
                        ErrorKind::InvalidData,
                        format!("the server sent an invalid RESP reply: {e}"),
                    ));
                }
            }
            self.inbox.drain(..self.start);
            self.start = 0;
            let held = self.inbox.len();
            self.inbox.resize(held + (64 << 10), 0);
            let got = self.stream.read(&mut self.inbox[held..])?;
            self.inbox.truncate(held + got);
            if got == 0 {
                return Err(Error::new(
                    ErrorKind::UnexpectedEof,
                    "the server closed the connection",
                ));
            }
        }
    }

    /// Sends one command and returns its reply.
    pub fn call(&mut self, args: &[&[u8]]) -> Result<OwnedFrame> {
        self.push(args);
        self.reply()
    }
}
