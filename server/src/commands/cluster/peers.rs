//! Connections of a worker to other nodes of its cluster, for parts of pages.
//!
//! A worker keeps one to each node that it has asked, and sends on it what all its clients want:
//! what they ask for in one round of the worker goes out in one write. Replies come in the order of
//! the requests. A request that gets none within `cluster.peer_timeout_ms` has failed, and its late
//! reply is dropped. A connection on which nothing comes for so long is closed; while there is
//! none, requests fail at once, and a new one is tried for every [`RETRY_EVERY`].

use node::client::connect;
use node::cluster::topology::MOST_NODES;
use node::cluster::{Member, Topology};
use node::config::ReadFrom;
use node::roles::node::Process;
use node::roles::peer;
use node::runtime::tls::Socket;
use parking_lot::Mutex;
use redis_protocol::resp2::types::OwnedFrame;
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

/// How far apart it is tried to reach a node that could not be.
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// Bytes of replies that are read at a time.
const READ_BYTES: usize = 64 << 10;
/// Most bytes of requests that wait for a node which does not take them.
const MOST_OUT: usize = 16 << 20;
/// Most requests that wait for their replies.
const MOST_WAITING: usize = 1 << 16;
/// Most connections of a worker: each node of a topology in both roles.
const MOST_LINKS: usize = 2 * MOST_NODES;
/// Most bytes of one reply: a node that says more is left, with all that was asked of it.
const MOST_REPLY: usize = 512 << 20;
/// A reply of no more bytes is kept, however many others there are: that of a write, say.
const SMALL: usize = 1 << 10;
/// Of so many choices of the nearest node one is another node: it may have become faster.
const LOOK_AGAIN: u32 = 64;

/// Why a node gave no answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The request was not sent.
    Unsent(String),
    /// It was sent, and what it did is not known.
    Lost(String),
}

/// The outcome of a request to another node: its whole reply.
pub(crate) type Answer = Result<Vec<u8>, Failure>;

/// Requests of one client to other nodes, whose answers are waited for together.
#[derive(Default)]
pub(crate) struct Batch(Mutex<Answers>);

#[derive(Default)]
struct Answers {
    all: Vec<Option<Answer>>,
    missing: usize,
    /// Of all replies.
    bytes: usize,
    waker: Option<Waker>,
}

impl Batch {
    /// One more request: its number.
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

    /// The reply of a node, unless those of the turn take more than `most` bytes with it.
    fn reply(&self, number: usize, reply: &[u8], most: usize) {
        let is_too_much = {
            let mut answers = self.0.lock();
            let is_too_much = reply.len() > SMALL && answers.bytes + reply.len() > most;
            answers.bytes += if is_too_much { 0 } else { reply.len() };
            is_too_much
        };
        let why = || format!("the replies take more than {most} bytes (max_output_buffer_bytes)");
        self.fill(number, if is_too_much { Err(Failure::Lost(why())) } else { Ok(reply.to_vec()) });
    }

    /// All answers, when they are there.
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

/// Which node, and in which role: as a replica it may be asked for what it reads only.
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
    /// Of the master that a MOVED names.
    pub(crate) fn of_master(text: &str) -> Option<Address> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Address { host: host.to_owned(), port: port.parse().ok()?, as_replica: false })
    }

    fn of(member: &Member) -> Address {
        let Member { host, port, .. } = member;
        Address { host: host.clone(), port: *port, as_replica: member.master.is_some() }
    }
}

/// A request that waits for its reply; without a batch it has waited too long.
struct Waiter {
    batch: Option<Arc<Batch>>,
    number: usize,
    asked: Instant,
}

#[derive(Default)]
struct State {
    /// Why requests fail at once: there is no connection.
    down: Option<String>,
    /// Requests that were not sent, and how many.
    out: Vec<u8>,
    unsent: usize,
    waiting: VecDeque<Waiter>,
    task: Option<Waker>,
    /// A request's time, smoothed; 0: none was measured.
    us: u64,
    /// No request comes to it any more.
    is_retired: bool,
}

/// One connection. See the top of the file.
pub(crate) struct Link {
    pub(crate) address: Address,
    state: Mutex<State>,
}

impl Link {
    /// Asks for something; `write` appends the request. The answer is this one of the batch's.
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
            Some(why) => Some(format!("{} cannot be reached: {why}", self.address)),
            None if state.out.len() > MOST_OUT || state.waiting.len() >= MOST_WAITING => {
                Some(format!("{} has too much to answer", self.address))
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

    /// Whether it is in use, and nothing waits.
    fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && !state.is_retired
    }

    /// The connection has ended: no request that waits gets an answer.
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
                Failure::Unsent(format!("{} cannot be reached: {why}", self.address))
            };
            process.cluster.unanswered.fetch_add(1, Relaxed);
            batch.fill(waiter.number, Err(failure));
        }
    }

    /// Connects, again and again, and serves.
    async fn run(self: Arc<Link>, process: Arc<Process>) {
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
            // An idle connection that the node has closed (idle_timeout_s, say) means nothing.
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

    /// A connection for parts of pages.
    async fn open(&self, process: &Process) -> io::Result<Socket> {
        let mut link = peer::open(process, &self.address.host, self.address.port).await?;
        let mode: &[u8] = if self.address.as_replica { b"READONLY" } else { b"READWRITE" };
        for words in [&[&b"TM.COORDINATOR"[..]], &[mode]] {
            if let OwnedFrame::Error(reason) = link.call(words).await? {
                return Err(io::Error::other(reason));
            }
        }
        Ok(link.socket)
    }
}

fn timeout(process: &Process) -> Duration {
    Duration::from_millis(process.config().cluster.peer_timeout_ms)
}

fn late(timeout: Duration) -> String {
    format!("nothing came for {} ms", timeout.as_millis())
}

/// What the task of a link knows of its connection.
struct Wire {
    socket: Socket,
    /// Requests on their way, and how many bytes of them are sent.
    out: Vec<u8>,
    sent: usize,
    unflushed: bool,
    input: Vec<u8>,
    end: ReplyEnd,
    heard: Instant,
    /// When the request that was the oldest one is late.
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

    /// Ready with why the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>, link: &Link, process: &Process) -> Poll<io::Error> {
        let outcome = self
            .write(cx, link)
            .and_then(|()| self.read(cx, link, process))
            .and_then(|()| self.look(cx, link, process));
        match outcome {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    }

    fn write(&mut self, cx: &mut Context<'_>, link: &Link) -> io::Result<()> {
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
                        return Err(io::Error::other("it is no node of the cluster any more"));
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

    fn read(&mut self, cx: &mut Context<'_>, link: &Link, process: &Process) -> io::Result<()> {
        let most = process.config().server.max_output_buffer_bytes;
        CHUNK.with_borrow_mut(|chunk| {
            loop {
                let mut buf = ReadBuf::new(chunk);
                match Pin::new(&mut self.socket).poll_read(cx, &mut buf) {
                    Poll::Ready(Ok(())) if buf.filled().is_empty() => {
                        return Err(connect::closed());
                    }
                    Poll::Ready(Ok(())) => self.receive(buf.filled(), link, most)?,
                    Poll::Ready(Err(error)) => return Err(error),
                    Poll::Pending => return Ok(()),
                }
            }
        })
    }

    /// Hands out the replies that have come whole.
    fn receive(&mut self, bytes: &[u8], link: &Link, most: usize) -> io::Result<()> {
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

    /// Gives the bytes that the replies took. `most`: bytes of the replies of one batch.
    fn take(&mut self, bytes: &[u8], link: &Link, most: usize) -> io::Result<usize> {
        let mut start = 0;
        let mut state = link.state.lock();
        loop {
            let found = self.end.find(&bytes[start..]);
            let length = found.map_err(|_| io::Error::other("what it answers is no RESP"))?;
            let Some(length) = length else {
                if bytes.len() - start > MOST_REPLY {
                    return Err(connect::too_long(MOST_REPLY));
                }
                return Ok(start);
            };
            let waiter = state.waiting.pop_front();
            let waiter = waiter.ok_or_else(|| io::Error::other("it answers what nobody asked"))?;
            if start == 0 {
                let us = self.heard.saturating_duration_since(waiter.asked).as_micros() as u64;
                state.us = if state.us == 0 { us } else { (7 * state.us + us) / 8 }.max(1);
            }
            if let Some(batch) = waiter.batch {
                batch.reply(waiter.number, &bytes[start..start + length], most);
            }
            start += length;
            self.end = ReplyEnd::default();
        }
    }

    /// Looks for requests that are late.
    fn look(&mut self, cx: &mut Context<'_>, link: &Link, process: &Process) -> io::Result<()> {
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

/// A worker's links.
#[derive(Default)]
pub(crate) struct Peers {
    all: HashMap<Address, Arc<Link>>,
    /// Those of the nodes of this topology, by their positions in it.
    topology: Option<Arc<Topology>>,
    of_members: Vec<Option<Arc<Link>>>,
    turns: u32,
}

thread_local! {
    static PEERS: RefCell<Peers> = RefCell::default();
    static CHUNK: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// Lends the links of this worker.
pub(crate) fn with<T>(use_them: impl FnOnce(&mut Peers) -> T) -> T {
    PEERS.with_borrow_mut(use_them)
}

fn retire(link: &Link) {
    let mut state = link.state.lock();
    state.is_retired = true;
    if let Some(task) = state.task.take() {
        task.wake();
    }
}

impl Peers {
    /// The link to a node that another one says is a slot's master; none if there are too many.
    pub(crate) fn moved_to(
        &mut self,
        address: Address,
        process: &Arc<Process>,
    ) -> Option<Arc<Link>> {
        let has_room = self.all.len() < MOST_LINKS || self.all.contains_key(&address);
        has_room.then(|| self.to(address, process))
    }

    fn to(&mut self, address: Address, process: &Arc<Process>) -> Arc<Link> {
        let link = self.all.entry(address).or_insert_with_key(|address| {
            let link = Arc::new(Link { address: address.clone(), state: Mutex::default() });
            tokio::spawn(link.clone().run(process.clone()));
            link
        });
        link.clone()
    }

    /// The links are those of this topology: others are given up.
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
        self.of_members.clear();
        self.of_members.resize(topology.members().len(), None);
        self.topology = Some(topology.clone());
    }

    fn member(&mut self, topology: &Topology, number: usize, process: &Arc<Process>) -> Arc<Link> {
        if let Some(link) = &self.of_members[number] {
            return link.clone();
        }
        let link = self.to(Address::of(&topology.members()[number]), process);
        self.of_members[number] = Some(link.clone());
        link
    }

    /// The link to the node that answers for the shard of this master.
    pub(crate) fn of_shard(
        &mut self,
        topology: &Arc<Topology>,
        master: usize,
        from: ReadFrom,
        process: &Arc<Process>,
    ) -> Arc<Link> {
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
        let mut links: Vec<Arc<Link>> =
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
        links.into_iter().min_by_key(|link| link.state.lock().us).unwrap_or(of_master)
    }
}
