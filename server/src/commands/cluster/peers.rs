//! Connections of a worker to other cluster nodes, for parts of pages.
//!
//! A worker has one connection per node and shares it among its clients. The requests that are
//! queued in one event-loop iteration are sent in one write. Replies arrive in the order of the
//! requests. A request without a reply within `cluster.peer_timeout` fails, and a late reply is
//! discarded. A connection on which no reply arrives for that time is closed. While a node is
//! unreachable, requests to it fail immediately, and the worker tries to reconnect every
//! [`RETRY_EVERY`].

use client::Socket;
use node::cluster::topology::MAX_NODES;
use node::cluster::{Member, Topology};
use node::config::ReadFrom;
use node::roles::node::Process;
use node::roles::peer;
use parking_lot::Mutex;
use resp::ReplyEnd;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

const RETRY_EVERY: Duration = Duration::from_millis(100);
const READ_BYTES: usize = 64 << 10;
/// Maximum number of unsent request bytes per connection.
const MAX_UNSENT_BYTES: usize = 16 << 20;
/// Maximum number of requests per connection that have no reply yet.
const MAX_PENDING_REQUESTS: usize = 1 << 16;
/// Maximum number of connections per worker. Every node of a topology may have two, one per role.
const MAX_LINKS: usize = 2 * MAX_NODES;
/// Maximum size of a reply in bytes. A larger reply closes the connection, which fails all pending
/// requests.
const MAX_REPLY_BYTES: usize = 512 << 20;
/// Maximum size in bytes of a reply that is stored even if the replies exceed the client's output
/// limit. Replies to writes do not exceed this size.
const SMALL_REPLY_BYTES: usize = 1 << 10;
/// One in this many reads is not sent to the nearest node but to the next node in turn, so that its
/// latency is measured again.
const LOOK_AGAIN: u32 = 64;

#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Unsent(String),
    /// The request was sent; its effect is unknown.
    Lost(String),
}

/// Complete reply of another node, or a failure.
pub(crate) type Answer = Result<Vec<u8>, Failure>;

/// Requests of one client to other nodes. The batch is complete when every request has a reply or
/// has failed.
#[derive(Default)]
pub(crate) struct Batch(Mutex<Answers>);

#[derive(Default)]
struct Answers {
    all: Vec<Option<Answer>>,
    missing: usize,
    bytes: usize,
    waker: Option<Waker>,
}

impl Batch {
    /// Registers a request and returns its index.
    fn expect(&self) -> usize {
        let mut answers = self.0.lock();
        answers.all.push(None);
        answers.missing += 1;
        answers.all.len() - 1
    }

    fn fill(&self, number: usize, answer: Answer) {
        let mut answers = self.0.lock();
        answers.all[number] = Some(answer);
        answers.missing -= 1;
        if answers.missing == 0
            && let Some(waker) = answers.waker.take()
        {
            waker.wake();
        }
    }

    /// Stores a reply, or an error if the replies of the batch would exceed `most` bytes.
    fn reply(&self, number: usize, reply: &[u8], most: usize) {
        let is_too_much = {
            let mut answers = self.0.lock();
            let is_too_much = reply.len() > SMALL_REPLY_BYTES && answers.bytes + reply.len() > most;
            answers.bytes += if is_too_much { 0 } else { reply.len() };
            is_too_much
        };
        let why = || format!("the replies exceed {most} bytes (max_output_buffer)");
        self.fill(number, if is_too_much { Err(Failure::Lost(why())) } else { Ok(reply.to_vec()) });
    }

    pub(crate) async fn answers(&self) -> Vec<Answer> {
        poll_fn(|cx| {
            let mut answers = self.0.lock();
            if answers.missing > 0 {
                answers.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            answers.bytes = 0;
            Poll::Ready(std::mem::take(&mut answers.all).into_iter().flatten().collect())
        })
        .await
    }
}

/// Node address and role. A connection with the role replica is used for reads only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    as_replica: bool,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Address {
    pub(crate) fn of_master(text: &str) -> Option<Address> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Address { host: host.to_owned(), port: port.parse().ok()?, as_replica: false })
    }

    fn of(member: &Member) -> Address {
        let Member { host, port, .. } = member;
        Address { host: host.clone(), port: *port, as_replica: member.master.is_some() }
    }
}

/// A request without a reply. `batch` is `None` if the request has timed out.
struct Waiter {
    batch: Option<Arc<Batch>>,
    number: usize,
    asked: Instant,
}

#[derive(Default)]
struct PeerLinkState {
    /// Error of requests made while the node is disconnected.
    down: Option<String>,
    /// Encoded requests that were not sent yet. The next field is their number.
    out: Vec<u8>,
    unsent: usize,
    waiting: VecDeque<Waiter>,
    task: Option<Waker>,
    /// Moving average of the response time in microseconds. 0 before the first measurement.
    response_us: u64,
    is_retired: bool,
}

/// Connection to one node; see the module documentation.
pub(crate) struct PeerLink {
    pub(crate) address: Address,
    state: Mutex<PeerLinkState>,
}

impl PeerLink {
    /// Queues a request, which `write` appends. Returns its index in the batch.
    pub(crate) fn ask(
        &self,
        process: &Process,
        batch: &Arc<Batch>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> usize {
        process.cluster.asked.fetch_add(1, Relaxed);
        let number = batch.expect();
        let mut state = self.state.lock();
        let refusal = match &state.down {
            Some(why) => Some(format!("cannot reach {}: {why}", self.address)),
            None if state.out.len() > MAX_UNSENT_BYTES
                || state.waiting.len() >= MAX_PENDING_REQUESTS =>
            {
                Some(format!("{} has too many pending requests", self.address))
            }
            None => None,
        };
        if let Some(why) = refusal {
            drop(state);
            process.cluster.unanswered.fetch_add(1, Relaxed);
            batch.fill(number, Err(Failure::Unsent(why)));
            return number;
        }
        write(&mut state.out);
        state.unsent += 1;
        let batch = Some(batch.clone());
        state.waiting.push_back(Waiter { batch, number, asked: Instant::now() });
        if let Some(task) = state.task.take() {
            task.wake();
        }
        number
    }

    /// Returns whether the link is in use and no request is pending.
    fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && !state.is_retired
    }

    fn fail(&self, process: &Process, why: &str) {
        let mut state = self.state.lock();
        state.down = Some(why.to_owned());
        state.out.clear();
        let sent = state.waiting.len() - std::mem::take(&mut state.unsent);
        for (at, waiter) in std::mem::take(&mut state.waiting).into_iter().enumerate() {
            let Some(batch) = waiter.batch else { continue };
            let failure = if at < sent {
                Failure::Lost(format!("{} did not answer: {why}", self.address))
            } else {
                Failure::Unsent(format!("cannot reach {}: {why}", self.address))
            };
            process.cluster.unanswered.fetch_add(1, Relaxed);
            batch.fill(waiter.number, Err(failure));
        }
    }

    async fn run(self: Arc<PeerLink>, process: Arc<Process>) {
        loop {
            let timeout = timeout(&process);
            let opened = match tokio::time::timeout(timeout, self.open(&process)).await {
                Ok(opened) => opened,
                Err(_) => Err(io::Error::other(late(timeout))),
            };
            let began = Instant::now();
            let (was_open, ended) = match opened {
                Ok(socket) => {
                    self.state.lock().down = None;
                    let mut wire = Wire::new(socket);
                    (true, poll_fn(|cx| wire.poll(cx, &self, &process)).await)
                }
                Err(error) => (false, error),
            };
            // A peer may close an idle connection (`idle_timeout`). That is not a failure.
            if was_open && self.is_idle() {
                tokio::time::sleep_until((began + RETRY_EVERY).into()).await;
                continue;
            }
            self.fail(&process, &ended.to_string());
            if self.state.lock().is_retired {
                return;
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    /// Opens a connection for parts of pages.
    async fn open(&self, process: &Process) -> io::Result<Socket> {
        let mut link = peer::open(process, &self.address.host, self.address.port).await?;
        let mode: &[u8] = if self.address.as_replica { b"READONLY" } else { b"READWRITE" };
        for words in [&[&b"TM.COORDINATOR"[..]], &[mode]] {
            link.ask(words).await?;
        }
        Ok(link.socket)
    }
}

fn timeout(process: &Process) -> Duration {
    Duration::from_millis(process.config().cluster.peer_timeout_ms)
}

fn late(timeout: Duration) -> String {
    format!("no reply within {} ms", timeout.as_millis())
}

struct Wire {
    socket: Socket,
    /// Request bytes that are being sent. The next field is the number of bytes already written.
    out: Vec<u8>,
    sent: usize,
    unflushed: bool,
    input: Vec<u8>,
    end: ReplyEnd,
    heard: Instant,
    /// Timer for the request that was the oldest when the timer was set.
    due: Pin<Box<Sleep>>,
    is_due_set: bool,
}

impl Wire {
    fn new(socket: Socket) -> Wire {
        Wire {
            socket,
            out: Vec::new(),
            sent: 0,
            unflushed: false,
            input: Vec::new(),
            end: ReplyEnd::default(),
            heard: Instant::now(),
            due: Box::pin(tokio::time::sleep(Duration::ZERO)),
            is_due_set: false,
        }
    }

    /// Returns `Ready` with the reason when the connection ends.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        link: &PeerLink,
        process: &Process,
    ) -> Poll<io::Error> {
        let outcome = self
            .write(cx, link)
            .and_then(|()| self.read(cx, link, process))
            .and_then(|()| self.look(cx, link, process));
        match outcome {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    }

    fn write(&mut self, cx: &mut Context<'_>, link: &PeerLink) -> io::Result<()> {
        loop {
            if self.sent == self.out.len() {
                self.out.clear();
                self.sent = 0;
                let mut state = link.state.lock();
                state.task = Some(cx.waker().clone());
                std::mem::swap(&mut self.out, &mut state.out);
                state.unsent = 0;
                if self.out.is_empty() {
                    if state.is_retired && state.waiting.is_empty() {
                        return Err(io::Error::other("the node is no longer part of the cluster"));
                    }
                    break;
                }
            }
            match Pin::new(&mut self.socket).poll_write(cx, &self.out[self.sent..]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(length)) => {
                    self.sent += length;
                    self.unflushed = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(()),
            }
        }
        if self.unflushed
            && let Poll::Ready(flushed) = Pin::new(&mut self.socket).poll_flush(cx)
        {
            flushed?;
            self.unflushed = false;
        }
        Ok(())
    }

    fn read(&mut self, cx: &mut Context<'_>, link: &PeerLink, process: &Process) -> io::Result<()> {
        let most = process.config().server.max_output_buffer_bytes;
        CHUNK.with_borrow_mut(|chunk| {
            loop {
                let mut buf = ReadBuf::new(chunk);
                match Pin::new(&mut self.socket).poll_read(cx, &mut buf) {
                    Poll::Ready(Ok(())) if buf.filled().is_empty() => {
                        return Err(client::closed());
                    }
                    Poll::Ready(Ok(())) => self.receive(buf.filled(), link, most)?,
                    Poll::Ready(Err(error)) => return Err(error),
                    Poll::Pending => return Ok(()),
                }
            }
        })
    }

    fn receive(&mut self, bytes: &[u8], link: &PeerLink, most: usize) -> io::Result<()> {
        self.heard = Instant::now();
        if self.input.is_empty() {
            let used = self.take(bytes, link, most)?;
            self.input.extend_from_slice(&bytes[used..]);
            return Ok(());
        }
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let used = self.take(&input, link, most)?;
        input.drain(..used);
        if !input.is_empty() {
            self.input = input;
        }
        Ok(())
    }

    /// Assigns the replies in `bytes` to their requests, and returns the number of bytes consumed.
    /// `most` limits the size of all replies in one batch.
    fn take(&mut self, bytes: &[u8], link: &PeerLink, most: usize) -> io::Result<usize> {
        let mut start = 0;
        let mut state = link.state.lock();
        loop {
            let found = self.end.find(&bytes[start..]);
            let length = found.map_err(|_| io::Error::other("invalid RESP in the reply"))?;
            let Some(length) = length else {
                if bytes.len() - start > MAX_REPLY_BYTES {
                    return Err(client::too_long(MAX_REPLY_BYTES));
                }
                return Ok(start);
            };
            let waiter = state.waiting.pop_front();
            let waiter =
                waiter.ok_or_else(|| io::Error::other("unexpected reply without a request"))?;
            if start == 0 {
                let response_us =
                    self.heard.saturating_duration_since(waiter.asked).as_micros() as u64;
                state.response_us = if state.response_us == 0 {
                    response_us
                } else {
                    (7 * state.response_us + response_us) / 8
                }
                .max(1);
            }
            if let Some(batch) = waiter.batch {
                batch.reply(waiter.number, &bytes[start..start + length], most);
            }
            start += length;
            self.end = ReplyEnd::default();
        }
    }

    fn look(&mut self, cx: &mut Context<'_>, link: &PeerLink, process: &Process) -> io::Result<()> {
        loop {
            if !self.is_due_set {
                let state = link.state.lock();
                let Some(oldest) = state.waiting.iter().find(|w| w.batch.is_some()) else {
                    return Ok(());
                };
                self.due.as_mut().reset((oldest.asked + timeout(process)).into());
                self.is_due_set = true;
            }
            if self.due.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            self.is_due_set = false;
            let timeout = timeout(process);
            let mut state = link.state.lock();
            let sent = state.waiting.len() - state.unsent;
            for waiter in state.waiting.iter_mut().take(sent) {
                if waiter.asked.elapsed() < timeout {
                    break;
                }
                let Some(batch) = waiter.batch.take() else { continue };
                process.cluster.unanswered.fetch_add(1, Relaxed);
                let why = format!("{} did not answer: {}", link.address, late(timeout));
                batch.fill(waiter.number, Err(Failure::Lost(why)));
            }
            let is_silent = !state.waiting.is_empty() && self.heard.elapsed() >= timeout;
            let oldest = state.waiting.front().map(|waiter| waiter.asked.elapsed());
            if is_silent && oldest.is_some_and(|age| age >= timeout) {
                return Err(io::Error::other(late(timeout)));
            }
        }
    }
}

#[derive(Default)]
pub(crate) struct Peers {
    all: HashMap<Address, Arc<PeerLink>>,
    /// Topology to which `member_links` belongs. That list contains a link per member, by position.
    topology: Option<Arc<Topology>>,
    member_links: Vec<Option<Arc<PeerLink>>>,
    turns: u32,
}

thread_local! {
    static PEERS: RefCell<Peers> = RefCell::default();
    static CHUNK: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

pub(crate) fn with<T>(use_them: impl FnOnce(&mut Peers) -> T) -> T {
    PEERS.with_borrow_mut(use_them)
}

fn retire(link: &PeerLink) {
    let mut state = link.state.lock();
    state.is_retired = true;
    if let Some(task) = state.task.take() {
        task.wake();
    }
}

impl Peers {
    /// Returns the link to the node that a MOVED error names, or `None` if [`MAX_LINKS`] is
    /// reached.
    pub(crate) fn moved_to(
        &mut self,
        address: Address,
        process: &Arc<Process>,
    ) -> Option<Arc<PeerLink>> {
        let has_room = self.all.len() < MAX_LINKS || self.all.contains_key(&address);
        has_room.then(|| self.to(address, process))
    }

    fn to(&mut self, address: Address, process: &Arc<Process>) -> Arc<PeerLink> {
        let link = self.all.entry(address).or_insert_with_key(|address| {
            let link = Arc::new(PeerLink { address: address.clone(), state: Mutex::default() });
            tokio::spawn(link.clone().run(process.clone()));
            link
        });
        link.clone()
    }

    /// Switches to a new topology. Links to former members close when their requests have replies.
    fn follow(&mut self, topology: &Arc<Topology>) {
        if self.topology.as_ref().is_some_and(|known| Arc::ptr_eq(known, topology)) {
            return;
        }
        let members: std::collections::HashSet<Address> =
            topology.members().iter().map(Address::of).collect();
        self.all.retain(|address, link| {
            let stays = members.contains(address);
            if !stays {
                retire(link);
            }
            stays
        });
        self.member_links.clear();
        self.member_links.resize(topology.members().len(), None);
        self.topology = Some(topology.clone());
    }

    fn member(
        &mut self,
        topology: &Topology,
        number: usize,
        process: &Arc<Process>,
    ) -> Arc<PeerLink> {
        if let Some(link) = &self.member_links[number] {
            return link.clone();
        }
        let link = self.to(Address::of(&topology.members()[number]), process);
        self.member_links[number] = Some(link.clone());
        link
    }

    /// Returns the link to the node that serves reads or writes for a shard.
    pub(crate) fn of_shard(
        &mut self,
        topology: &Arc<Topology>,
        master: usize,
        from: ReadFrom,
        process: &Arc<Process>,
    ) -> Arc<PeerLink> {
        self.follow(topology);
        let of_master = self.member(topology, master, process);
        if from == ReadFrom::Master {
            return of_master;
        }
        self.turns = self.turns.wrapping_add(1);
        let id = topology.members()[master].id.as_str();
        let numbers = topology.members().iter().enumerate();
        let replicas: Vec<usize> = numbers
            .filter(|(_, member)| member.master.as_deref() == Some(id))
            .map(|(number, _)| number)
            .collect();
        let mut links: Vec<Arc<PeerLink>> =
            replicas.into_iter().map(|number| self.member(topology, number, process)).collect();
        if from == ReadFrom::Nearest {
            links.push(of_master.clone());
        }
        links.retain(|link| link.state.lock().down.is_none());
        if links.is_empty() {
            return of_master;
        }
        let by_turns = self.turns as usize % links.len();
        if from == ReadFrom::Replica || self.turns.is_multiple_of(LOOK_AGAIN) {
            return links.swap_remove(by_turns);
        }
        links.into_iter().min_by_key(|link| link.state.lock().response_us).unwrap_or(of_master)
    }
}
