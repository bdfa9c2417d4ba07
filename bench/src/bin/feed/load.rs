//! The load generator: one thread, nonblocking sockets, no parsing.
//!
//! **Closed loop** (throughput): each connection sends a batch of `pipeline` requests, reads all
//! replies, and sends the next batch.
//!
//! **Open loop** (latency): requests are scheduled at random times (Poisson) with a fixed rate,
//! regardless of the server. Latency is measured from the *scheduled* time, so every request
//! scheduled during a stall contributes (this avoids coordinated omission; G. Tene).
//!
//! The thread never sleeps, and it has a core to itself, because a delayed wakeup would count as
//! latency of the server.

use crate::pool::Pool;
use rustix::event::epoll;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tidemark_bench::server::Server;

/// Warm-up time before a measurement.
const WARM: Duration = Duration::from_millis(150);
/// A run fails after this time without a reply.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

struct Conn {
    stream: TcpStream,
    /// Bytes that the socket has not accepted yet.
    unsent: Vec<u8>,
    sent: usize,
}

impl Conn {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.sent == self.unsent.len() {
            self.unsent.clear();
            self.sent = 0;
            let written = write(&mut self.stream, bytes)?;
            self.unsent.extend_from_slice(&bytes[written..]);
        } else {
            self.unsent.extend_from_slice(bytes);
            self.send_unsent()?;
        }
        Ok(())
    }

    fn send_unsent(&mut self) -> io::Result<()> {
        self.sent += write(&mut self.stream, &self.unsent[self.sent..])?;
        Ok(())
    }

    /// Reads the bytes that have arrived, if any.
    fn take<'b>(&mut self, buf: &'b mut [u8]) -> io::Result<&'b [u8]> {
        match self.stream.read(buf) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => Ok(&buf[..got]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(&[]),
            Err(e) => Err(e),
        }
    }
}

fn write(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match stream.write(bytes) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}

/// All connections and their readiness events.
struct Conns {
    all: Vec<Conn>,
    epoll: rustix::fd::OwnedFd,
    events: Vec<epoll::Event>,
    heard: Instant,
}

impl Conns {
    fn open(server: &Server, number: usize) -> io::Result<Conns> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut all = Vec::new();
        for index in 0..number {
            let stream = TcpStream::connect(("127.0.0.1", server.port()))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(
                &epoll,
                &stream,
                epoll::EventData::new_u64(index as u64),
                epoll::EventFlags::IN,
            )?;
            all.push(Conn { stream, unsent: Vec::new(), sent: 0 });
        }
        Ok(Conns { all, epoll, events: Vec::with_capacity(256), heard: Instant::now() })
    }

    /// Polls for readable connections without blocking, and sends pending output.
    fn ready(&mut self, now: Instant) -> io::Result<()> {
        for conn in &mut self.all {
            if conn.sent < conn.unsent.len() {
                conn.send_unsent()?;
            }
        }
        self.events.clear();
        epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }),
        )?;
        if !self.events.is_empty() {
            self.heard = now;
        } else if now.duration_since(self.heard) > IDLE_TIMEOUT {
            return Err(io::Error::other("the server does not reply"));
        }
        Ok(())
    }
}

/// Result of a closed-loop run.
#[derive(Clone, Copy)]
pub(crate) struct Throughput {
    /// Number of completed requests.
    pub(crate) pages: u64,
    pub(crate) likes: u64,
    pub(crate) seconds: f64,
    /// CPU seconds of all threads of the server.
    pub(crate) cpu_s: f64,
}

impl Throughput {
    pub(crate) fn per_s(&self) -> f64 {
        (self.pages + self.likes) as f64 / self.seconds
    }

    pub(crate) fn per_cpu_s(&self) -> f64 {
        (self.pages + self.likes) as f64 / self.cpu_s
    }
}

/// Source of the likes that are mixed with page requests; one request in ten is a like.
pub(crate) struct Likes<'a> {
    /// Appends the commands of the next like. Returns the number of lines in their replies.
    pub(crate) next: &'a mut dyn FnMut(&mut Vec<u8>) -> usize,
}

/// A batch in progress.
#[derive(Default, Clone, Copy)]
struct Batch {
    from: usize,
    to: usize,
    /// Received and expected size of the replies, in bytes, or in lines if the batch contains
    /// likes.
    got: usize,
    of: usize,
    likes: u64,
    /// Number of requests that the connection has sent since its last like, including earlier
    /// batches.
    since: usize,
}

/// Requests pages in a closed loop for some time. If `likes` is given, one request in ten is a
/// like.
// Long: the function is not split because all branches of its loop borrow the same buffers and
// timestamps.
pub(crate) fn closed(
    server: &Server,
    pool: &Pool,
    mut likes: Option<Likes<'_>>,
    connections: usize,
    pipeline: usize,
    time: Duration,
) -> io::Result<Throughput> {
    let mut conns = Conns::open(server, connections)?;
    let mut batches = vec![Batch::default(); connections];
    let by_lines = likes.is_some();
    let mut out = Vec::new();
    let mut begin = |conn: &mut Conn, batch: &mut Batch, from: usize| -> io::Result<()> {
        // The requests of a batch are contiguous in the pool.
        let from = if from + pipeline > pool.len() { 0 } else { from };
        *batch = Batch { from, to: from + pipeline, got: 0, of: 0, likes: 0, since: batch.since };
        let Some(likes) = &mut likes else {
            batch.of = pool.replies(from, batch.to).len();
            return conn.send(pool.requests(from, batch.to));
        };
        out.clear();
        let mut at = from;
        for _ in 0..pipeline {
            batch.since += 1;
            if batch.since.is_multiple_of(10) {
                batch.of += (likes.next)(&mut out);
                batch.likes += 1;
            } else {
                out.extend_from_slice(pool.requests(at, at + 1));
                batch.of += pool.lines(at, at + 1);
                at += 1;
            }
        }
        batch.to = at;
        conn.send(&out)
    };
    for (index, (conn, batch)) in conns.all.iter_mut().zip(&mut batches).enumerate() {
        batch.since = index;
        begin(conn, batch, index * pool.len() / connections)?;
    }
    let mut buf = vec![0; 1 << 20];
    let started = Instant::now();
    let mut measured: Option<(Instant, f64)> = None;
    let mut done = Throughput { pages: 0, likes: 0, seconds: 0.0, cpu_s: 0.0 };
    let mut running = connections;
    while running > 0 {
        let now = Instant::now();
        match measured {
            None if now - started >= WARM => {
                done = Throughput { pages: 0, likes: 0, ..done };
                measured = Some((now, server.threads_cpu_s()));
            }
            Some((since, cpu_s)) if done.seconds == 0.0 && now - since >= time => {
                done.seconds = (now - since).as_secs_f64();
                done.cpu_s = server.threads_cpu_s() - cpu_s;
            }
            _ => {}
        }
        conns.ready(now)?;
        for event in 0..conns.events.len() {
            let index = conns.events[event].data.u64() as usize;
            let (conn, batch) = (&mut conns.all[index], &mut batches[index]);
            let bytes = conn.take(&mut buf)?;
            if by_lines {
                if bytes.first() == Some(&b'-') {
                    return Err(io::Error::other(String::from_utf8_lossy(bytes).into_owned()));
                }
                batch.got += bytes.iter().filter(|&&b| b == b'\n').count();
            } else {
                let expected = pool.replies(batch.from, batch.to);
                if expected.get(batch.got..batch.got + bytes.len()) != Some(bytes) {
                    return Err(io::Error::other(format!(
                        "the reply differs from the previous one: {}",
                        String::from_utf8_lossy(bytes)
                    )));
                }
                batch.got += bytes.len();
            }
            if batch.got < batch.of {
                continue;
            }
            if done.seconds == 0.0 {
                done.pages += (batch.to - batch.from) as u64;
                done.likes += batch.likes;
                let next = batch.to;
                begin(conn, batch, next)?;
            } else {
                running -= 1;
                batch.of = usize::MAX;
            }
        }
    }
    Ok(done)
}

/// Latency percentiles in microseconds.
#[derive(Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) rate: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

/// Requests pages in an open loop at a fixed rate for some time.
pub(crate) fn open(
    server: &Server,
    pool: &Pool,
    connections: usize,
    rate: f64,
    time: Duration,
    rng: &mut fastrand::Rng,
) -> io::Result<Latency> {
    let mut conns = Conns::open(server, connections)?;
    // For each connection: start time and page of each pending request, and the received part of
    // the first reply.
    let mut waiting: Vec<VecDeque<(Instant, usize)>> = vec![VecDeque::new(); connections];
    let mut got = vec![0; connections];
    let mut latencies: Vec<f64> = Vec::with_capacity((rate * time.as_secs_f64() * 1.1) as usize);
    let mut buf = vec![0; 1 << 20];
    let started = Instant::now();
    let (mut due, mut page) = (started, 0);
    let mut under_way = 0;
    loop {
        let now = Instant::now();
        let ending = now - started >= WARM + time;
        if ending && under_way == 0 {
            break;
        }
        while due <= now && !ending {
            let index = page % connections;
            let at = page % pool.len();
            conns.all[index].send(pool.requests(at, at + 1))?;
            waiting[index].push_back((due, at));
            under_way += 1;
            page += 1;
            due += Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / rate);
        }
        conns.ready(now)?;
        for event in 0..conns.events.len() {
            let index = conns.events[event].data.u64() as usize;
            let mut bytes = conns.all[index].take(&mut buf)?;
            let now = Instant::now();
            while !bytes.is_empty() {
                let Some(&(due, at)) = waiting[index].front() else {
                    return Err(io::Error::other("a reply without a request"));
                };
                let expected = &pool.replies(at, at + 1)[got[index]..];
                let (these, rest) = bytes.split_at(bytes.len().min(expected.len()));
                if these != &expected[..these.len()] {
                    return Err(io::Error::other("the reply differs from the previous one"));
                }
                bytes = rest;
                got[index] += these.len();
                if these.len() == expected.len() {
                    waiting[index].pop_front();
                    got[index] = 0;
                    under_way -= 1;
                    if due - started >= WARM {
                        latencies.push((now - due).as_secs_f64() * 1e6);
                    }
                }
            }
        }
    }
    latencies.sort_by(f64::total_cmp);
    let share = |p: f64| {
        latencies
            .get(((latencies.len() as f64 * p) as usize).min(latencies.len().max(1) - 1))
            .copied()
    };
    let at = |p| share(p).unwrap_or(f64::NAN);
    Ok(Latency { rate, p50: at(0.5), p99: at(0.99), p999: at(0.999) })
}
