//! Pipelined connections of the import. Each connection sends and receives concurrently.
//!
//! The reading thread encodes commands into chunks, and one other thread does all network I/O. All
//! commands of an id use the same connection, so they run in the order of their lines.

use super::lanes::{Lanes, Route};
use client::{Inbox, MAX_INBOX_BYTES, Reply, Socket, closed, timely};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

/// Size at which a chunk is sent, in bytes.
const CHUNK_BYTES: usize = 32 << 10;
/// Maximum number of chunks per connection that wait to be sent, and maximum number that wait for
/// replies.
const CHUNKS: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplyCounts {
    /// Number of `OK` replies.
    pub(super) done: u64,
    /// Number of replies with 1: the command changed something.
    pub(super) changed: u64,
    /// Number of replies with 0: the state was already set.
    pub(super) repeated: u64,
    /// Number of nil replies: the id is below the horizon.
    pub(super) unknown: u64,
    /// Number of errors that concern one line.
    pub(super) bad: u64,
}

/// Kind of a command. Executed commands are counted per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandKind {
    Row,
    Flag,
    Event,
    Delete,
    Unset,
}

#[derive(Default)]
pub(super) struct Executed([AtomicU64; 5]);

impl Executed {
    pub(super) fn of(&self, verb: CommandKind) -> u64 {
        self.0[verb as usize].load(Relaxed)
    }

    fn note(&self, verb: CommandKind) {
        self.0[verb as usize].fetch_add(1, Relaxed);
    }
}

/// A message from the I/O thread to the reading thread.
pub(super) enum Event {
    /// An error that concerns only one line. The import reports it and continues.
    Bad { line: u64, reason: String },
    /// An error that would affect all lines.
    Refused { line: u64, reason: String },
    /// A connection failed.
    Broken(io::Error),
}

#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// Line and kind of each command.
    lines: Vec<(u64, CommandKind)>,
}

/// First line of each chunk that still has outstanding replies, for one connection.
type Outstanding = Arc<Mutex<VecDeque<u64>>>;

struct Lane {
    chunk: Chunk,
    to: mpsc::Sender<Chunk>,
    outstanding: Outstanding,
}

pub(super) struct Pipe {
    lanes: Vec<Lane>,
    route: Route,
    executed: Arc<Executed>,
    events: Receiver<Event>,
    thread: JoinHandle<io::Result<ReplyCounts>>,
}

impl Pipe {
    /// Starts the I/O thread. The connections must have been opened in `runtime`.
    pub(super) fn start(all: Lanes, runtime: tokio::runtime::Runtime) -> io::Result<Pipe> {
        let (event_sender, events) = channel();
        let (mut lanes, mut ends) = (Vec::new(), Vec::new());
        let executed = Arc::<Executed>::default();
        for link in all.links {
            let (to, chunks) = mpsc::channel(CHUNKS);
            let outstanding = Outstanding::default();
            let replies = Replies {
                tally: ReplyCounts::default(),
                executed: executed.clone(),
                event_sender: event_sender.clone(),
            };
            ends.push((link.socket, chunks, outstanding.clone(), replies));
            lanes.push(Lane { chunk: Chunk::default(), to, outstanding });
        }
        let run = move || {
            runtime.block_on(async {
                let serve = |(socket, chunks, outstanding, replies)| {
                    tokio::spawn(serve(socket, chunks, outstanding, replies))
                };
                let mut sum = ReplyCounts::default();
                for lane in ends.into_iter().map(serve).collect::<Vec<_>>() {
                    let tally = lane.await.map_err(io::Error::other)?;
                    sum.done += tally.done;
                    sum.changed += tally.changed;
                    sum.repeated += tally.repeated;
                    sum.unknown += tally.unknown;
                    sum.bad += tally.bad;
                }
                Ok(sum)
            })
        };
        let thread = std::thread::Builder::new().name("connections".to_owned()).spawn(run)?;
        Ok(Pipe { lanes, route: all.route, executed, events, thread })
    }

    /// Returns the counts of executed commands, which are updated continuously.
    pub(super) fn executed(&self) -> Arc<Executed> {
        self.executed.clone()
    }

    /// Appends the command that `encode` writes. Blocks while the connection's queue is full.
    pub(super) fn push(
        &mut self,
        id: u64,
        line: u64,
        verb: CommandKind,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        let lane = &mut self.lanes[self.route.of(id)];
        if lane.chunk.lines.is_empty() {
            lane.outstanding.lock().push_back(line);
        }
        encode(&mut lane.chunk.bytes);
        lane.chunk.lines.push((line, verb));
        if lane.chunk.bytes.len() >= CHUNK_BYTES {
            lane.send();
        }
    }

    pub(super) fn flush(&mut self) {
        self.lanes.iter_mut().for_each(Lane::send);
    }

    /// Returns the events since the last call.
    pub(super) fn events(&self) -> impl Iterator<Item = Event> {
        self.events.try_iter()
    }

    /// Returns the line number up to which all replies have arrived; `last` if no reply is
    /// outstanding.
    pub(super) fn answered_through(&self, last: u64) -> u64 {
        let first = |lane: &Lane| lane.outstanding.lock().front().copied();
        self.lanes.iter().filter_map(first).min().map_or(last, |line| line - 1)
    }

    /// Sends the remaining commands and waits for all replies. `on` receives the events; `finish`
    /// returns its first error.
    pub(super) fn finish<E>(
        mut self,
        mut on: impl FnMut(Event, &Pipe) -> Result<(), E>,
        failed: impl FnOnce(io::Error) -> E,
    ) -> Result<ReplyCounts, E> {
        self.flush();
        self.close();
        // Drain the events even after an error: the channel closes once all connections have ended.
        let mut outcome = Ok(());
        while let Ok(event) = self.events.recv() {
            if outcome.is_ok() {
                outcome = on(event, &self);
            }
        }
        let joined = self.thread.join();
        outcome?;
        match joined {
            Ok(outcome) => outcome.map_err(failed),
            Err(_) => Err(failed(io::Error::other("the thread of the connections panicked"))),
        }
    }

    /// Waits until each connection has sent its chunks or has failed. Discards events.
    pub(super) fn abandon(mut self) {
        self.close();
        self.events.iter().for_each(drop);
        // If the thread failed, an event has already reported it.
        let _ = self.thread.join();
    }

    /// Drops the senders. A connection without a sender closes after it has received all replies.
    fn close(&mut self) {
        for lane in &mut self.lanes {
            lane.to = mpsc::channel(1).0;
        }
    }
}

impl Lane {
    fn send(&mut self) {
        let chunk = std::mem::take(&mut self.chunk);
        if !chunk.lines.is_empty() {
            // The send fails only if the connection has failed, which an event reports.
            let _ = self.to.blocking_send(chunk);
        }
    }
}

/// Sends chunks and reads their replies concurrently.
async fn serve(
    socket: Socket,
    chunks: mpsc::Receiver<Chunk>,
    outstanding: Outstanding,
    mut replies: Replies,
) -> ReplyCounts {
    let (read, write) = tokio::io::split(socket);
    let (to_reader, sent) = mpsc::channel(CHUNKS);
    let event_sender = replies.event_sender.clone();
    let reading = replies.read(read, sent, &outstanding);
    let writing = async { send(write, chunks, to_reader).await.map_err(Some) };
    let outcome: Result<_, Option<io::Error>> = tokio::try_join!(reading, writing);
    if let Err(Some(error)) = outcome {
        // The receiver may have been dropped.
        let _ = event_sender.send(Event::Broken(error));
    }
    replies.tally
}

async fn send(
    mut to: WriteHalf<Socket>,
    mut chunks: mpsc::Receiver<Chunk>,
    to_reader: mpsc::Sender<Vec<(u64, CommandKind)>>,
) -> io::Result<()> {
    while let Some(chunk) = chunks.recv().await {
        // Pass the line numbers to the reader first, because replies may arrive while the rest of
        // the chunk is being sent.
        if to_reader.send(chunk.lines).await.is_err() {
            return Ok(());
        }
        let sent = async {
            to.write_all(&chunk.bytes).await?;
            to.flush().await
        };
        sent.await.map_err(|e| match e.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => closed(),
            _ => e,
        })?;
    }
    Ok(())
}

/// Prefixes of errors that would also affect later lines, including errors of a cluster whose slots
/// or masters change. The import ends at the first such error.
const FATAL_ERROR_PREFIXES: [&str; 13] = [
    "MOVED ",
    "CLUSTERDOWN ",
    "UNKNOWN outcome",
    "NOAUTH ",
    "NOPERM ",
    "DENIED ",
    "READONLY ",
    "LOADING ",
    "MASTERDOWN ",
    "MISCONF ",
    "NOREPLICAS ",
    "OOM ",
    "ERR max number of clients",
];

struct Replies {
    tally: ReplyCounts,
    executed: Arc<Executed>,
    event_sender: Sender<Event>,
}

impl Replies {
    /// Reads replies until all sent chunks are answered. Returns `Err(Some(_))` if the connection
    /// fails, and `Err(None)` after an error that was already reported as an event.
    async fn read(
        &mut self,
        mut from: ReadHalf<Socket>,
        mut sent: mpsc::Receiver<Vec<(u64, CommandKind)>>,
        outstanding: &Outstanding,
    ) -> Result<(), Option<io::Error>> {
        let mut inbox = Inbox::new(MAX_INBOX_BYTES);
        while let Some(lines) = sent.recv().await {
            for (line, verb) in lines {
                loop {
                    if let Some(length) = self.match_common_reply(verb, inbox.bytes()) {
                        inbox.skip(length);
                        break;
                    }
                    if let Some(reply) = inbox.take().map_err(Some)? {
                        self.take(line, verb, reply).map_err(|Refused| None)?;
                        break;
                    }
                    let read = timely(inbox.read(&mut from)).await;
                    read.map_err(|e| match e.kind() {
                        io::ErrorKind::ConnectionReset => Some(closed()),
                        _ => Some(e),
                    })?;
                }
            }
            outstanding.lock().pop_front();
        }
        Ok(())
    }

    /// Recognizes the most frequent replies without decoding them. Returns the length of the reply.
    fn match_common_reply(&mut self, verb: CommandKind, bytes: &[u8]) -> Option<usize> {
        let (text, count) = match bytes.first()? {
            b'+' => (&b"+OK\r\n"[..], &mut self.tally.done),
            b'*' if bytes.get(5) == Some(&b'1') => (&b"*1\r\n:1\r\n"[..], &mut self.tally.changed),
            _ => (&b"*1\r\n:0\r\n"[..], &mut self.tally.repeated),
        };
        bytes.starts_with(text).then(|| {
            *count += 1;
            self.executed.note(verb);
            text.len()
        })
    }

    fn take(&mut self, line: u64, verb: CommandKind, reply: Reply) -> Result<(), Refused> {
        let reply = match reply {
            Reply::Array(mut items) if items.len() == 1 => items.remove(0),
            reply => reply,
        };
        match reply {
            Reply::Error(reason) => return self.error(line, reason),
            Reply::SimpleString(_) => self.tally.done += 1,
            Reply::Integer(1) => self.tally.changed += 1,
            Reply::Integer(_) => self.tally.repeated += 1,
            _ => self.tally.unknown += 1,
        }
        self.executed.note(verb);
        Ok(())
    }

    fn error(&mut self, line: u64, reason: String) -> Result<(), Refused> {
        // The receiver may have been dropped.
        if FATAL_ERROR_PREFIXES.iter().any(|start| reason.starts_with(start)) {
            let _ = self.event_sender.send(Event::Refused { line, reason });
            return Err(Refused);
        }
        self.tally.bad += 1;
        let _ = self.event_sender.send(Event::Bad { line, reason });
        Ok(())
    }
}

struct Refused;
