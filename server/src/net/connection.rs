//! One client connection: the socket, unprocessed input, unsent replies, and its event loop.
//!
//! A *turn* is one event-loop iteration. A turn reads once from the socket, executes every complete
//! request, and writes the replies once. The turn runs without interruption on the client's worker
//! and uses buffers that all connections of the worker share. Between turns the connection stores
//! only an incomplete request (`input`) and the replies that the socket did not accept (`pending`).
//!
//! Clients may send a whole pipeline before they read the first reply. The connection therefore
//! executes requests while replies are pending, up to `max_output_buffer`. Above that limit the
//! connection stops reading, and it closes if the client reads nothing for [`READER_TIMEOUT`].
//! Every buffer that a request can grow has a limit in [`Server`](node::config::Server).
//!
//! Between turns a connection holds a [`Host`] and no [`Node`], so it survives a full sync that
//! replaces the data set. A suspended request may keep the old node alive until the request
//! finishes.

use crate::commands::connection::client;
use crate::net::request_loop::{Closing, RequestLoop, TurnBuffers};
use crate::session::{LateReplies, Session};
use ::client::Socket;
use node::roles::node::{Host, Node};
use node::runtime::clients::Client;
use resp::Reply;
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Sleep;

/// Number of bytes per read from the socket, twice Redis's 16 KiB. One read and one write of the
/// socket cost as much as ten likes (FEED.ACT). With half this size, a like is 5% slower. The
/// requests in a full buffer take less than a millisecond.
const READ_BYTES: usize = 32 << 10;
/// Capacity in bytes up to which a connection keeps an empty input buffer.
const KEPT_INPUT_BYTES: usize = 2 << 10;
/// Input buffers above this capacity shrink once they are less than a quarter full.
const LARGE_INPUT_BYTES: usize = 64 << 10;
/// Number of event-loop iterations after which a connection yields to the other clients of its
/// worker.
const MAX_CONSECUTIVE_TURNS: usize = 2;

/// Buffers of a worker, used by one connection at a time.
struct Buffers {
    input: Box<[u8]>,
    turn: TurnBuffers,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers {
        input: vec![0; READ_BYTES].into_boxed_slice(),
        turn: TurnBuffers::default(),
    });
}

/// A client with a full output buffer is disconnected if it reads nothing for this long.
const READER_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which a connection with a suspended request checks whether its client has
/// disconnected.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Resolves to the missing part of the replies, or to an error that replaces all replies of the
/// iteration.
type ReplyCompletion = Pin<Box<dyn Future<Output = Result<LateReplies, String>> + Send>>;

/// Replies withheld until the log is durable up to the changes that the requests made or read, or
/// until the last reply is available.
struct HeldReplies {
    completion: ReplyCompletion,
    out: Vec<u8>,
    replies: usize,
}

/// State of a client connection; see the module documentation.
pub(crate) struct Connection {
    host: Arc<Host>,
    generation: u64,
    worker: usize,
    stream: Socket,
    processor: RequestLoop,
    input: Vec<u8>,
    pending: Vec<u8>,
    /// Number of bytes of `pending` already written to the socket.
    written: usize,
    /// True if TLS holds buffered bytes that the socket has refused so far.
    unflushed: bool,
    /// Timer that runs while the output buffer is full. The timer restarts whenever the client
    /// reads some bytes.
    reader_deadline: Option<Pin<Box<Sleep>>>,
    held: Option<HeldReplies>,
    /// Timer of the next check for a disconnected client. Later iterations reuse the timer, because
    /// with fsync `always` every iteration with a write waits for a few milliseconds.
    client_check_timer: Option<Pin<Box<Sleep>>>,
    /// Whether the last iteration delivered messages instead of reading requests.
    had_messages: bool,
}

/// Shrinks a large input buffer that is mostly empty.
fn shrink(input: &mut Vec<u8>) {
    if input.capacity() > LARGE_INPUT_BYTES && input.len() < input.capacity() / 4 {
        input.shrink_to(input.len() * 2);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Keep the socket of the client that sent SHUTDOWN open until the data folder is unlocked.
        // Scripts start the next server as soon as this socket closes.
        if self.processor.session.shuts_down && self.host.stop.is_stopped() {
            self.host.stop.keep_open(&self.stream);
        }
        self.processor.session.client.leave();
        let node = self.host.now();
        self.drop_replaced_state(&node);
        client::forget(&mut self.processor.session, &node);
        self.processor.session.client.buffers.set(0);
    }
}

impl Connection {
    pub(crate) fn new(
        host: Arc<Host>,
        worker: usize,
        stream: Socket,
        client: Arc<Client>,
    ) -> Connection {
        let (processor, generation) = {
            let node = host.now();
            (RequestLoop::new(&node, client, worker), node.generation)
        };
        Connection {
            host,
            generation,
            worker,
            stream,
            processor,
            input: Vec::new(),
            pending: Vec::new(),
            written: 0,
            unflushed: false,
            reader_deadline: None,
            held: None,
            client_check_timer: None,
            had_messages: false,
        }
    }

    /// Serves the client until either side closes the connection.
    pub(crate) async fn serve(mut self) {
        // Register the waker first, because another client may redirect invalidations to this
        // client before the first poll.
        poll_fn(|cx| {
            self.processor.session.client.inbox.set_waker(cx.waker());
            Poll::Ready(())
        })
        .await;
        let mut poll = |cx: &mut Context<'_>, buffers: &mut Buffers| {
            // A panic in another connection may have left replies in the buffer.
            buffers.turn.clear_out();
            self.poll(cx, buffers)
        };
        poll_fn(|cx| BUFFERS.with_borrow_mut(|buffers| poll(cx, buffers))).await;
        if self.processor.closing == Closing::Lingering {
            self.linger().await;
        }
        let session = &mut self.processor.session;
        if let Some(place) = session.replicates.take().filter(|_| session.leaving) {
            node::roles::outgoing_link::serve(
                place,
                self.processor.session.client.peer,
                &mut self.stream,
            )
            .await;
        }
    }

    /// Reads and discards input for up to 250 ms before closing. Closing a socket with unread bytes
    /// sends a reset, which may overtake the error reply.
    async fn linger(&mut self) {
        let _ = self.stream.shutdown().await;
        let mut rest = [0; 4096];
        let drop_rest = async { while matches!(self.stream.read(&mut rest).await, Ok(1..)) {} };
        let _ = tokio::time::timeout(Duration::from_millis(250), drop_rest).await;
    }

    /// Drops state that belongs to the previous data set if a full sync has replaced that data set.
    #[inline]
    fn drop_replaced_state(&mut self, node: &Node) {
        if self.generation != node.generation {
            self.generation = node.generation;
            self.processor.drop_replaced_data();
        }
    }

    /// Sets whether the connection waits for a future that may hold a reference to the current
    /// node.
    fn set_away(&self, away: bool) {
        self.processor.session.client.away.store(away, Relaxed);
    }

    /// Runs the event loop until the socket has no input or accepts no output. Returns `Ready` when
    /// the connection is closed.
    // Long: each step of the event loop may return `Pending`, and all steps borrow the same
    // buffers.
    fn poll(&mut self, cx: &mut Context<'_>, buffers: &mut Buffers) -> Poll<()> {
        let Buffers { input, turn } = buffers;
        let node: &Arc<Node> = &self.host.now();
        self.drop_replaced_state(node);
        for _ in 0..MAX_CONSECUTIVE_TURNS {
            if self.is_behind() && ready!(self.flush_or_read_on(cx)).is_err() {
                return Poll::Ready(());
            }
            if let Some(held) = &mut self.held {
                let Poll::Ready(outcome) = held.completion.as_mut().poll(cx) else {
                    return self.check_client(cx);
                };
                self.clear_wait_flags();
                if self.release(cx, outcome).is_err() {
                    return Poll::Ready(());
                }
                continue;
            }
            if self.processor.closing != Closing::No {
                return if self.is_behind() { Poll::Pending } else { Poll::Ready(()) };
            }
            if let Some(stalled) = &mut self.processor.stalled {
                let Poll::Ready(pins) = stalled.as_mut().poll(cx) else {
                    return self.check_client(cx);
                };
                self.clear_wait_flags();
                self.processor.resume_with(pins);
                self.set_away(false);
            }
            // The client may have lost the permission for a channel whose messages are in its
            // inbox.
            if self.processor.session.listens()
                && self.processor.is_outdated(node)
                && !self.processor.look_again(node)
            {
                return Poll::Ready(());
            }
            // While replies are pending, messages stay in the inbox, which has its own limit.
            let listens = self.processor.session.listens()
                && !self.processor.is_amid_reply()
                && !self.is_behind();
            let skips = std::mem::take(&mut self.had_messages);
            if listens && !skips && self.take_messages(cx, turn) {
                // The code below writes messages the same way as replies.
            } else if self.processor.more {
                self.run_input(node, turn);
            } else {
                let mut buf = ReadBuf::new(input);
                match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                    Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                        let length = buf.filled().len();
                        if self.receive(node, &input[..length], turn).is_err() {
                            return Poll::Ready(());
                        }
                    }
                    // End of file or an error: the client has disconnected.
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending if listens && skips && self.take_messages(cx, turn) => {}
                    Poll::Pending => return Poll::Pending,
                }
            }
            if self.processor.closing == Closing::AtOnce {
                turn.clear_out();
                return Poll::Ready(());
            }
            if self.hold_back(node, turn) {
                continue;
            }
            if !turn.out.is_empty() {
                let outcome = self.write(cx, &turn.out);
                turn.clear_out();
                if outcome.is_err() {
                    return Poll::Ready(());
                }
            }
        }
        // `wake_by_ref` would requeue this task many times before the runtime polls its sockets: a
        // client that never stops sending would occupy the worker for seconds.
        let _ = std::pin::pin!(tokio::task::yield_now()).poll(cx);
        Poll::Pending
    }

    /// Returns whether replies remain unsent.
    #[inline]
    fn is_behind(&self) -> bool {
        self.written < self.pending.len() || self.unflushed
    }

    /// Number of reply bytes that the socket has not accepted.
    fn unread_bytes(&self) -> usize {
        self.pending.len() - self.written
    }

    /// Writes pending replies. Returns `Pending` while the connection must wait for its client to
    /// read, and an error when the connection is closed.
    #[cold]
    fn flush_or_read_on(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
        if let Poll::Ready(outcome) = self.poll_flush(cx) {
            return Poll::Ready(outcome);
        }
        // A suspended request or withheld replies may be ready before the socket drains.
        if self.held.is_some() || self.processor.stalled.is_some() {
            return Poll::Ready(Ok(()));
        }
        if self.processor.closing != Closing::No {
            return Poll::Pending;
        }
        if self.unread_bytes() < self.processor.session.max_out_bytes {
            return Poll::Ready(Ok(()));
        }
        let sleep = || Box::pin(tokio::time::sleep(READER_TIMEOUT));
        let deadline = self.reader_deadline.get_or_insert_with(sleep);
        ready!(deadline.as_mut().poll(cx));
        self.processor.disconnect_for_output(&self.host);
        Poll::Ready(Err(()))
    }

    /// Withholds the replies of this iteration if they depend on a sync or on a pending future.
    #[inline]
    fn hold_back(&mut self, node: &Arc<Node>, turn: &mut TurnBuffers) -> bool {
        let session = &mut self.processor.session;
        if !session.wrote && session.shown == 0 && session.hold.is_none() {
            return false;
        }
        let ticket = node.durability.committer().ticket();
        if session.wrote {
            session.last_write = ticket;
        }
        let wrote = std::mem::take(&mut session.wrote) && must_hold(node, ticket);
        let shown = std::mem::take(&mut session.shown);
        let asked = session.hold.take();
        if !wrote && shown == 0 && asked.is_none() {
            return false;
        }
        self.processor.session.client.waits.store(asked.is_some(), Relaxed);
        self.set_away(true);
        let node = node.clone();
        let completion: ReplyCompletion = Box::pin(async move {
            if wrote {
                node.durability.wait_for_replies(ticket).await?;
            }
            let take_result = match asked {
                Some(asked) => asked.await,
                None => LateReplies::default(),
            };
            if shown > 0 {
                node.durability.settled(shown).await;
            }
            Ok(take_result)
        });
        let replies =
            self.processor.replies + usize::from(std::mem::take(&mut self.processor.session.later));
        self.held = Some(HeldReplies { completion, out: std::mem::take(&mut turn.out), replies });
        self.publish_sizes();
        true
    }

    /// Inserts the missing parts into the withheld replies and sends the replies. After a failed
    /// sync, sends an error in place of each reply.
    fn release(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Result<LateReplies, String>,
    ) -> Result<(), ()> {
        let Some(HeldReplies { mut out, replies, .. }) = self.held.take() else { return Ok(()) };
        self.set_away(false);
        self.publish_sizes();
        match outcome {
            Ok(take_result) => {
                take_result.complete(&mut out);
                if out.len() > self.processor.session.max_out_bytes {
                    self.processor.disconnect_for_output(&self.host);
                    return Err(());
                }
            }
            Err(text) => {
                // The writes may not survive a crash. The connection does not know which replies
                // belong to writes, so it replaces all of them with errors.
                out.truncate(self.processor.kept_out);
                self.processor.fail(&text);
                for _ in 0..replies {
                    Reply::new(&mut out, self.processor.session.client.protocol()).error(&text);
                }
                // The truncation also removed invalidation messages, so the client must drop its
                // whole cache.
                if self.processor.session.client.hears.load(Relaxed) {
                    node::runtime::tracking::write_all(&self.processor.session.client, &mut out);
                }
            }
        }
        self.write(cx, &out)?;
        if self.processor.session.client.blocked.leaves() {
            self.processor.closing = Closing::AfterFlush;
        }
        Ok(())
    }

    /// Moves messages from the client's inbox to the output. Returns whether the inbox had a
    /// message. The next iteration skips the inbox, so that a stream of messages cannot starve
    /// requests.
    fn take_messages(&mut self, cx: &Context<'_>, turn: &mut TurnBuffers) -> bool {
        let inbox = &self.processor.session.client.inbox;
        self.had_messages = inbox.take(&mut turn.out, Some(cx.waker()));
        self.had_messages
    }

    /// Executes the complete requests in `bytes` and stores the incomplete request after them, if
    /// any. Returns an error if the unprocessed input exceeds `max_query_buffer`.
    fn receive(
        &mut self,
        node: &Arc<Node>,
        bytes: &[u8],
        turn: &mut TurnBuffers,
    ) -> Result<(), ()> {
        let began = Instant::now();
        self.processor.session.client.touch(began);
        self.tallies().bytes_in.add(bytes.len() as u64);
        if self.input.is_empty() {
            let tallies = &node.tallies[self.worker];
            let used = self.processor.execute(node, tallies, bytes, turn);
            tallies.record_turn(began.elapsed());
            self.input.extend_from_slice(&bytes[used..]);
            self.publish_sizes();
        } else {
            self.input.extend_from_slice(bytes);
            self.run_input(node, turn);
        }
        if self.input.len() > self.processor.config.server.max_query_buffer_bytes {
            node.clients.ended.by_input.fetch_add(1, Relaxed);
            tracing::warn!(
                "client {} exceeded max_query_buffer: disconnected; send smaller requests, \
                 or raise the limit",
                self.processor.session.client.peer
            );
            return Err(());
        }
        Ok(())
    }

    /// Returns `Ready` if the client of a suspended request has disconnected. The connection then
    /// closes, and the request has no effect.
    fn check_client(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let client_check_timer = self
            .client_check_timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(CLIENT_CHECK_INTERVAL)));
        while client_check_timer.as_mut().poll(cx).is_ready() {
            if self.stream.is_left(cx) {
                return Poll::Ready(());
            }
            client_check_timer.as_mut().reset(tokio::time::Instant::now() + CLIENT_CHECK_INTERVAL);
        }
        Poll::Pending
    }

    fn clear_wait_flags(&self) {
        let client = &self.processor.session.client;
        for waits in [&client.waits, &client.paused] {
            if waits.load(Relaxed) {
                waits.store(false, Relaxed);
            }
        }
    }

    fn tallies(&self) -> &node::runtime::counters::Tallies {
        &self.host.tallies[self.worker]
    }

    fn run_input(&mut self, node: &Arc<Node>, turn: &mut TurnBuffers) {
        let began = Instant::now();
        let mut input = std::mem::take(&mut self.input);
        let used = self.processor.execute(node, &node.tallies[self.worker], &input, turn);
        self.tallies().record_turn(began.elapsed());
        input.drain(..used);
        if !input.is_empty() || input.capacity() <= KEPT_INPUT_BYTES {
            shrink(&mut input);
            self.input = input;
        }
        self.publish_sizes();
    }

    /// Updates the buffer sizes that CLIENT LIST shows and that count toward the memory limit.
    fn publish_sizes(&self) {
        let Session { client, transaction, .. } = &self.processor.session;
        let queued = transaction.as_ref().map_or(0, |transaction| transaction.bytes());
        for (shown, is) in [
            (&client.query_bytes, self.input.len()),
            (&client.output_bytes, self.unread_bytes()),
            (&client.queued_bytes, queued),
        ] {
            if shown.load(Relaxed) != is {
                shown.store(is, Relaxed);
            }
        }
        let held = self.held.as_ref().map_or(0, |held| held.out.len());
        client.buffers.set(
            self.input.capacity()
                + self.processor.scanner_bytes()
                + self.pending.capacity()
                + queued
                + held
                + self.processor.pinned_bytes,
        );
    }

    /// Writes replies to the socket and appends the bytes that the socket does not accept to
    /// `pending`.
    fn write(&mut self, cx: &mut Context<'_>, mut bytes: &[u8]) -> Result<(), ()> {
        if self.written < self.pending.len() {
            if self.written > self.pending.len() / 2 {
                self.pending.drain(..self.written);
                self.written = 0;
            }
            self.pending.extend_from_slice(bytes);
            self.publish_sizes();
            return Ok(());
        }
        while !bytes.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, bytes) {
                Poll::Ready(Ok(written @ 1..)) => {
                    self.tallies().bytes_out.add(written as u64);
                    bytes = &bytes[written..];
                }
                Poll::Ready(_) => return Err(()),
                Poll::Pending => {
                    self.pending.extend_from_slice(bytes);
                    self.publish_sizes();
                    break;
                }
            }
        }
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => return Err(()),
            Poll::Pending => self.unflushed = true,
        }
        Ok(())
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
        while self.written < self.pending.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.pending[self.written..])) {
                Ok(written @ 1..) => {
                    self.tallies().bytes_out.add(written as u64);
                    self.written += written;
                    self.reader_deadline = None;
                }
                _ => return Poll::Ready(Err(())),
            }
            self.publish_sizes();
        }
        self.pending = Vec::new();
        self.written = 0;
        self.publish_sizes();
        if ready!(Pin::new(&mut self.stream).poll_flush(cx)).is_err() {
            return Poll::Ready(Err(()));
        }
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }
}

/// Returns whether replies to writes must wait for an fsync (policy `always`, or a commit thread
/// that is behind) or for space in the log's queue. A write that changes nothing also waits while
/// the earlier write of the same value is not durable.
fn must_hold(node: &Node, ticket: store::Ticket) -> bool {
    let durability = &node.durability;
    (durability.committer().durable() < ticket
        && (durability.holds_replies() || durability.committer().is_late()))
        || durability.is_crowded()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataset::Engines;
    use node::config::Config;
    use node::runtime::counters::Tallies;
    use node::runtime::shutdown::Stop;
    use std::net::SocketAddr;

    #[test]
    fn an_input_buffer_shrinks_with_what_is_left() {
        for (capacity, left, most) in
            [(8 << 20, 100, 200), (8 << 20, 3 << 20, 8 << 20), (64 << 10, 1, 64 << 10)]
        {
            let mut input = Vec::with_capacity(capacity);
            input.resize(left, 7u8);
            shrink(&mut input);
            assert!(input.capacity() <= most, "{} of {capacity}", input.capacity());
            assert!(input.capacity() >= left && input.iter().all(|&byte| byte == 7));
            assert!(most < capacity || input.capacity() == capacity);
        }
    }

    /// The connection may close after `+OK` and before the link starts, for example because the
    /// replica does not read its socket.
    #[tokio::test]
    async fn a_replica_disconnecting_before_the_link_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        config.replication.max_replicas = 1;
        let node = crate::host(config, Vec::new(), Stop::new()).node();
        node.fill(Engines::empty(&node.config().data_set(), node.durability.clone()));
        assert!(node.replication.settle(&node.config(), true, 1));
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let asked = async || {
            let client = node.clients.admit(nowhere, nowhere, usize::MAX).unwrap();
            let (mut processor, mut turn) =
                (RequestLoop::new(&node, client, 0), TurnBuffers::default());
            let request = format!("TM.REPLICATE {}\r\n", replication::PROTOCOL);
            while processor.execute(&node, &Tallies::default(), request.as_bytes(), &mut turn) == 0
            {
                processor.stalled.take().expect("the request waits for the disk").await;
            }
            (processor, String::from_utf8(turn.out).unwrap())
        };
        let (first, said) = asked().await;
        assert_eq!(said, "+OK\r\n");
        assert_eq!(asked().await.1, "-ERR max number of replicas reached\r\n");
        drop(first);
        assert_eq!(asked().await.1, "+OK\r\n");
    }
}
