//! One event-loop iteration without the socket: turns request bytes into reply bytes.
//!
//! Requests are processed in batches of up to [`MAX_BATCH_REQUESTS`], in three passes: scan all
//! requests, prefetch the memory that each request will read, and execute the requests in order.
//! The cache misses of a pipeline of small commands therefore overlap (`commands/prefetch.rs`).

use crate::commands::long_request::{LongRequest, execute_turn, is_long};
use crate::commands::prefetch::Prefetcher;
use crate::commands::turn::Step;
use crate::commands::{cold_keys, execute};
use crate::session::{Scratch, Session};
use dataset::cold;
use dataset::cold::Pins;
use dataset::cold::fetch::ColdReads;
use dataset::engines::{Current, Engines};
use node::command::table;
use node::command::table::{Found, Lookup};
use node::config::Config;
use node::roles::node::{Node, Now, Process};
use node::runtime::clients::Client;
use node::runtime::counters::Tallies;
use node::runtime::pause::Paused;
use node::runtime::slowlog;
use resp::{Limits, Malformed, Reply, Scan, Scanner};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Number of reply bytes after which the loop stops and writes them to the socket.
const WRITE_BYTES: usize = 256 << 10;
/// Maximum number of reply bytes for an unauthenticated client. The limit bounds the work that
/// refused requests cause.
const UNAUTHENTICATED_OUT_BYTES: usize = 16 << 10;
const OUT_BYTES: usize = 64 << 10;
/// Maximum number of arguments of one request, as in Redis.
const MAX_ARGS: usize = 1 << 20;
/// Interval at which a suspended write checks whether a nearly full space has free memory.
pub(crate) const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Capacity in bytes above which an empty reply buffer is released.
const KEPT_OUT_BYTES: usize = 1 << 20;
/// Maximum number of requests per batch: the HMGETs of one feed page fit into a batch.
const MAX_BATCH_REQUESTS: usize = 32;
const AHEAD_ARGS: usize = 1024;

/// Buffers of a worker, shared by all its connections.
pub(crate) struct TurnBuffers {
    pub(crate) out: Vec<u8>,
    scratch: Scratch,
    batch: Vec<Request>,
}

impl TurnBuffers {
    /// Empties `out` and releases its memory if it has grown large.
    pub(crate) fn clear_out(&mut self) {
        self.out.clear();
        if self.out.capacity() > KEPT_OUT_BYTES {
            self.out = Vec::with_capacity(OUT_BYTES);
        }
    }
}

impl Default for TurnBuffers {
    fn default() -> TurnBuffers {
        TurnBuffers {
            out: Vec::with_capacity(OUT_BYTES),
            scratch: Scratch::default(),
            batch: Vec::with_capacity(MAX_BATCH_REQUESTS),
        }
    }
}

#[derive(Clone)]
pub(crate) struct Request {
    /// Byte range of the request in the input.
    pub(crate) bytes: Range<usize>,
    /// Indices of the request's argument spans in the scanner.
    pub(crate) spans: Range<usize>,
    pub(crate) is_inline: bool,
    pub(crate) found: Found,
}

/// Whether and how the connection closes after its requests have been executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    No,
    /// Write pending replies, then close.
    AfterFlush,
    /// Like `AfterFlush`, but keep reading for a moment so that the peer can receive the error
    /// reply.
    Lingering,
    /// Close without writing anything.
    AtOnce,
}

enum ScanEnd {
    BatchFull,
    Incomplete,
    Refused(Malformed),
}

/// Reason why a request must wait before it runs.
enum Wait {
    /// The request waits until CLIENT PAUSE or a similar pause ends.
    Pause,
    /// The request waits for free memory in a nearly full space.
    Room,
    Rows(ColdReads),
}

/// Returns the reason why the request must wait before it can run, or `None` if the request can run
/// now.
#[inline(always)]
fn waits(
    found: Found,
    args: resp::Args<'_>,
    session: &mut Session,
    node: Now<'_>,
    has_cold: bool,
) -> Option<Wait> {
    let paused = node.pause.now();
    if paused != Paused::Nothing && execute::must_wait(args, session, paused, node) {
        return Some(Wait::Pause);
    }
    if execute::waits_for_room(found, args, session, node) {
        return Some(Wait::Room);
    }
    if has_cold {
        return cold_keys::before(found, args, session, node.engines()).map(Wait::Rows);
    }
    None
}

/// Returns the scanner's limits for this client, and updates the limits in the session.
fn limits(config: &Config, session: &mut Session) -> Limits {
    session.client.set_handshake_complete(session.access.user.is_some());
    if session.access.user.is_none() {
        session.max_out_bytes = UNAUTHENTICATED_OUT_BYTES;
        return Limits::UNAUTHENTICATED;
    }
    session.max_out_bytes = config.server.max_output_buffer_bytes;
    session.args_limit = config.server.max_request_args;
    Limits {
        max_args: MAX_ARGS,
        max_bulk_bytes: config.server.max_bulk_bytes,
        unauthenticated: false,
    }
}

/// State of a client's request processing; see the module documentation.
pub(crate) struct RequestLoop {
    pub(crate) session: Session,
    scanner: Scanner,
    lookup: Lookup,
    limits: Limits,
    /// Configuration that the session last used.
    pub(crate) config: Arc<Config>,
    /// Whether the input may contain complete requests for the next iteration.
    pub(crate) more: bool,
    /// Number of replies written in this iteration.
    pub(crate) replies: usize,
    pub(crate) closing: Closing,
    /// Future that the next request waits for. The future resolves to the cold rows that the
    /// request needs, if any.
    pub(crate) stalled: Option<Pin<Box<dyn Future<Output = Pins> + Send>>>,
    /// First request in the input, if that is a long request.
    long: Option<Box<(Request, LongRequest)>>,
    /// Number of reply bytes that are sent unchanged even if a failed sync replaces later replies
    /// with errors.
    pub(crate) kept_out: usize,
    /// Cold rows fetched for the next requests.
    pub(crate) pins: Pins,
    /// Bytes of the fetched cold rows, including rows that are still being read.
    pub(crate) pinned_bytes: usize,
    /// Whether the pending read belongs to a data set that has been replaced.
    outlived: bool,
    in_cluster: bool,
}

impl RequestLoop {
    pub(crate) fn new(node: &Node, client: Arc<Client>, worker: usize) -> RequestLoop {
        let mut session = Session::new(node, client, worker);
        let config = Arc::clone(&node.config());
        session.timed = slowlog::times_all(&config.server);
        let limits = limits(&config, &mut session);
        RequestLoop {
            config,
            session,
            scanner: Scanner::default(),
            lookup: Lookup::default(),
            limits,
            more: false,
            replies: 0,
            closing: Closing::No,
            stalled: None,
            long: None,
            kept_out: 0,
            pins: Pins::default(),
            pinned_bytes: 0,
            outlived: false,
            in_cluster: node.cluster.is_enabled(),
        }
    }

    /// Drops everything that belongs to a replaced data set: fetched rows and watched keys.
    #[cold]
    pub(crate) fn drop_replaced_data(&mut self) {
        self.pins = Pins::default();
        self.outlived = self.stalled.is_some();
        self.session.fail_watches();
    }

    /// Ends the wait and stores the fetched rows, unless they belong to a replaced data set.
    pub(crate) fn resume_with(&mut self, pins: Pins) {
        self.stalled = None;
        self.pins = if std::mem::take(&mut self.outlived) { Pins::default() } else { pins };
    }

    /// Executes the complete requests at the start of `buf`; returns the number of bytes consumed.
    pub(crate) fn execute(
        &mut self,
        node: &Arc<Node>,
        tallies: &Tallies,
        buf: &[u8],
        turn: &mut TurnBuffers,
    ) -> usize {
        // Must precede every read of global state: `wait_for_turns` waits for iterations that may
        // have read the old state.
        let _turn = tallies.enter();
        // All requests of this iteration use the same version of spaces, views and actions.
        let engines = node.current.get().map(Current::now);
        let node = Now::new(node, engines.as_ref().map(|engines| &***engines));
        if self.in_cluster {
            self.session.topology = Some(node.cluster.topology());
        }
        let used = self.execute_with(node, tallies, buf, turn);
        // Release the topology, so that an idle client does not keep an old topology alive.
        if self.in_cluster {
            self.session.topology = None;
            self.session.wait_for_nodes(|| node.process());
        }
        used
    }

    #[inline]
    fn execute_with(
        &mut self,
        node: Now<'_>,
        tallies: &Tallies,
        buf: &[u8],
        turn: &mut TurnBuffers,
    ) -> usize {
        // Unauthenticated clients cannot read rows.
        if self.limits.unauthenticated || !node.loaded().is_some_and(Engines::has_cold) {
            return self.execute_all(node, tallies, buf, turn, false);
        }
        cold::pin(std::mem::take(&mut self.pins));
        let used = self.execute_all(node, tallies, buf, turn, true);
        // If the loop stopped early, keep the fetched cold rows for the next iteration.
        let pins = cold::unpin();
        if self.more && self.stalled.is_none() {
            self.pins = pins;
        } else if self.stalled.is_none() {
            self.pinned_bytes = 0;
        }
        used
    }

    // Long: most steps of the loop may return or skip to the next request.
    fn execute_all(
        &mut self,
        node: Now<'_>,
        tallies: &Tallies,
        buf: &[u8],
        turn: &mut TurnBuffers,
        has_cold: bool,
    ) -> usize {
        let mut at = 0;
        (self.replies, self.kept_out) = (0, 0);
        self.more = false;
        if let Some(long) = self.long.take() {
            return self.continue_long(long, node, tallies, buf, turn, has_cold);
        }
        loop {
            if self.is_outdated(&node) && !self.look_again(&node) {
                return buf.len();
            }
            let (end, halt) = self.scan(buf, at, &mut turn.batch);
            let TurnBuffers { out, scratch, batch } = turn;
            self.prefetch_batch(node, batch, buf);
            for (index, request) in batch.iter().enumerate() {
                // The previous request may have changed settings or users.
                if self.is_outdated(&node) && !self.look_again(&node) {
                    return buf.len();
                }
                let before = out.len();
                let RequestLoop { session, scanner, .. } = self;
                let args = scanner.args_in(
                    &buf[request.bytes.clone()],
                    request.spans.clone(),
                    request.is_inline,
                );
                if is_long(request.found, args, request.bytes.len(), node)
                    && !request.is_inline
                    && let Some(engines) = node.loaded()
                    && let Some(long) = LongRequest::new(request.found, args, session, engines)
                {
                    tallies.commands.add(index as u64);
                    // A long request runs in an iteration of its own, because it handles failed
                    // replies differently.
                    if self.replies > 0 || index > 0 {
                        self.scanner.restart();
                    } else {
                        let bytes = 0..request.bytes.len();
                        self.long = Some(Box::new((Request { bytes, ..request.clone() }, long)));
                    }
                    self.more = true;
                    return request.bytes.start;
                }
                // The previous request may have started a pause.
                if let Some(wait) = waits(request.found, args, session, node, has_cold) {
                    tallies.commands.add(index as u64);
                    self.scanner.restart();
                    self.wait(wait, node, &buf[request.bytes.end..]);
                    return request.bytes.start;
                }
                if !execute::execute(request.found, args, session, node, out, scratch) {
                    tallies.errors.add(1);
                }
                if session.suspension.is_requested() {
                    tallies.commands.add(index as u64);
                    self.scanner.restart();
                    self.suspend(node, &buf[request.bytes.end..]);
                    return request.bytes.start;
                }
                self.replies += usize::from(out.len() > before);
                at = request.bytes.end;
                if self.limits.unauthenticated != self.session.access.user.is_none() {
                    self.limits = limits(&self.config, &mut self.session);
                }
                if self.continues_turn(node, out.len()) {
                    continue;
                }
                self.session.ends_turn = false;
                // The next iteration scans the requests after this request again.
                tallies.commands.add(index as u64 + 1);
                self.scanner.restart();
                if self.closing != Closing::No {
                    return buf.len();
                }
                self.more = at < buf.len();
                return at;
            }
            tallies.commands.add(batch.len() as u64);
            self.scanner.discard_complete_requests();
            at = end;
            match halt {
                ScanEnd::BatchFull => {}
                ScanEnd::Incomplete => return at,
                ScanEnd::Refused(why) => {
                    self.refuse(&why, node, tallies, out);
                    return buf.len();
                }
            }
        }
    }

    /// Prefetches memory for the requests of a batch. Prefetching does not speed up a batch with a
    /// single request.
    #[inline]
    fn prefetch_batch(&self, node: Now<'_>, batch: &[Request], buf: &[u8]) {
        if let Some(engines) = node.loaded()
            && batch.len() > 1
        {
            let mut ahead = Prefetcher::new(engines);
            for request in batch {
                ahead.at(request.found, self.args(request, buf));
            }
        }
    }

    #[cold]
    fn stall(&mut self, wait: impl Future<Output = ()> + Send + 'static) {
        self.session.client.waits.store(true, Relaxed);
        self.stalled = Some(Box::pin(async move {
            wait.await;
            Pins::default()
        }));
        self.more = true;
    }

    /// Suspends the current request until `wait` ends. `behind` contains the requests after the
    /// current request. The cold rows of these requests are fetched at the same time.
    #[cold]
    fn wait(&mut self, wait: Wait, node: Now<'_>, behind: &[u8]) {
        match wait {
            Wait::Pause => {
                let process = node.process();
                self.session.client.paused.store(true, Relaxed);
                self.stall(async move { process.pause.wait_until_eased().await });
            }
            Wait::Room => {
                let node = node.node().clone();
                self.session.client.away.store(true, Relaxed);
                self.stall(async move {
                    while node.is_spilling() && !node.stop.is_stopped() {
                        tokio::time::sleep(ROOM_CHECK_INTERVAL).await;
                    }
                });
            }
            Wait::Rows(fetching) => self.fetch(node, behind, fetching),
        }
    }

    /// Waits for the work that the current request has started, then executes the request again.
    #[cold]
    fn suspend(&mut self, node: Now<'_>, behind: &[u8]) {
        if let Some(fetching) = self.session.suspension.take_missing_rows() {
            return self.fetch(node, behind, *fetching);
        }
        let suspension = self.session.suspension.leave();
        self.session.client.away.store(true, Relaxed);
        self.stall(suspension);
    }

    /// Makes the next handler call of a long request. Returns the length of the request in bytes if
    /// it is complete, otherwise 0.
    #[cold]
    fn continue_long(
        &mut self,
        mut long: Box<(Request, LongRequest)>,
        node: Now<'_>,
        tallies: &Tallies,
        buf: &[u8],
        turn: &mut TurnBuffers,
        has_cold: bool,
    ) -> usize {
        self.more = true;
        if self.is_outdated(&node) && !self.look_again(&node) {
            return buf.len();
        }
        let (Request { bytes, spans, .. }, request) = &mut *long;
        let args = self.scanner.args_in(&buf[bytes.clone()], spans.clone(), false);
        let (kept, step) = (request.part(args), request.step);
        let part = kept.first();
        let has_cold = has_cold && matches!(step, Step::Do(_));
        if let Some(wait) = waits(request.found, part, &mut self.session, node, has_cold) {
            self.wait(wait, node, &[]);
            self.long = Some(long);
            return 0;
        }
        let from = turn.out.len();
        let words = request.turn(args, part);
        let is_done = execute_turn(request, words, &mut self.session, node, &mut turn.out);
        if self.session.suspension.is_requested() {
            self.suspend(node, &[]);
            self.long = Some(long);
            return 0;
        }
        let written = request.written(step, is_done, &turn.out[from..]);
        (self.replies, self.kept_out) = (written.0, from + written.1);
        if has_cold {
            // Later steps do not need the rows of this step.
            drop(cold::unpin());
            self.pinned_bytes = 0;
        }
        if !self.continues_turn(node, turn.out.len()) && self.closing != Closing::No {
            return buf.len();
        }
        self.session.ends_turn = false;
        if !is_done {
            self.long = Some(long);
            return 0;
        }
        tallies.commands.add(1);
        self.scanner.restart();
        self.more = bytes.len() < buf.len();
        bytes.len()
    }

    /// Returns whether a reply is partly written, so that no push message may be inserted.
    pub(crate) fn is_amid_reply(&self) -> bool {
        self.long.as_ref().is_some_and(|long| long.1.is_amid_reply())
    }

    /// Handles a failed sync during a long request: replaces the rest of the reply with this error.
    pub(crate) fn fail(&mut self, text: &str) {
        if let Some(long) = &mut self.long {
            long.1.fail(text);
        }
    }

    /// Returns whether the loop continues with the next request, given the number of reply bytes so
    /// far. Sets `closing` if the connection is to be closed.
    #[inline]
    fn continues_turn(&mut self, node: Now<'_>, out: usize) -> bool {
        if out > self.session.max_out_bytes {
            self.disconnect_for_output(&node);
            return false;
        }
        if self.session.leaving {
            self.closing = Closing::AfterFlush;
            return false;
        }
        out < WRITE_BYTES && self.session.hold.is_none() && !self.session.ends_turn
    }

    /// Disconnects a client whose replies exceed its output limit.
    #[cold]
    pub(crate) fn disconnect_for_output(&mut self, process: &Process) {
        tracing::warn!(
            "client {} exceeded max_output_buffer: disconnected; request less at a time, or \
             raise the limit",
            self.session.client.peer
        );
        process.clients.ended.by_output.fetch_add(1, Relaxed);
        self.closing = Closing::AtOnce;
    }

    /// Replies with a protocol error and closes the connection.
    #[cold]
    fn refuse(&mut self, why: &Malformed, node: Now<'_>, tallies: &Tallies, out: &mut Vec<u8>) {
        if matches!(why, Malformed::Http) {
            tracing::warn!(
                "client {} sent HTTP: connection closed (possibly a cross-site attack); find the \
                 program at that address",
                self.session.client.peer
            );
            self.closing = Closing::AfterFlush;
            return;
        }
        Reply::new(out, self.session.client.protocol()).error(format!("ERR {why}"));
        tallies.errors.add(1);
        node.calls.of(self.session.worker).error(b"ERR");
        self.closing = Closing::Lingering;
    }

    /// Starts reading the cold rows of the suspended request and of the requests that follow.
    #[cold]
    fn fetch(&mut self, node: Now<'_>, mut behind: &[u8], mut fetching: ColdReads) {
        let mut scanner = Scanner::default();
        while !fetching.is_limit_reached() {
            match scanner.scan(behind, &self.limits) {
                Scan::Nothing(length) => behind = &behind[length..],
                Scan::Request(length) => {
                    let args = scanner.args(behind);
                    cold_keys::ask(
                        table::find(args.at(0)),
                        args,
                        &self.session,
                        node.engines(),
                        &mut fetching,
                    );
                    behind = &behind[length..];
                    scanner.restart();
                }
                Scan::Incomplete | Scan::Refused(_) => break,
            }
        }
        self.pinned_bytes += fetching.bytes();
        self.session.client.away.store(true, Relaxed);
        self.stalled = Some(Box::pin(node.engines().cold.fetch(fetching)));
        self.more = true;
    }

    /// Returns the memory of the scanner and of a long request, in bytes.
    pub(crate) fn scanner_bytes(&self) -> usize {
        self.scanner.bytes() + self.long.as_ref().map_or(0, |long| long.1.bytes())
    }

    /// Returns whether settings or users have changed since the session last read them.
    #[inline]
    pub(crate) fn is_outdated(&self, node: &Node) -> bool {
        self.session.access.version != node.settings.version()
    }

    /// Reloads the settings and the user. Returns false and closes the connection if the user no
    /// longer exists.
    #[cold]
    pub(crate) fn look_again(&mut self, node: &Node) -> bool {
        // Read the version first, so that a later change triggers another reload.
        self.session.access.version = node.settings.version();
        self.config = Arc::clone(&node.config());
        self.session.timed = slowlog::times_all(&self.config.server);
        let mut known = self.session.access.look_again(&node.acl);
        // The client may have subscribed while its permission was being revoked.
        if self.session.listening
            && std::mem::take(&mut self.session.access.lost_channel_rule)
            && let Some(user) = &self.session.access.user
        {
            known = known && self.session.subscriptions.are_allowed(user);
        }
        if !known {
            self.closing = Closing::AtOnce;
        }
        self.limits = limits(&self.config, &mut self.session);
        known
    }

    /// Scans one batch starting at `at`. Returns the end of the batch and the reason for stopping.
    #[inline]
    fn scan(&mut self, buf: &[u8], mut at: usize, batch: &mut Vec<Request>) -> (usize, ScanEnd) {
        batch.clear();
        loop {
            match self.scanner.scan(&buf[at..], &self.limits) {
                Scan::Incomplete => return (at, ScanEnd::Incomplete),
                Scan::Refused(why) => return (at, ScanEnd::Refused(why)),
                Scan::Nothing(length) => at += length,
                Scan::Request(length) => {
                    let (bytes, is_inline) = (at..at + length, self.scanner.is_inline());
                    let name = self.scanner.args(&buf[at..]).at(0);
                    batch.push(Request {
                        bytes,
                        spans: self.scanner.last_spans(),
                        is_inline,
                        found: self.lookup.find(name),
                    });
                    at += length;
                    // The scanner can store the arguments of only one inline request. Before
                    // authentication, batches hold one request, because a successful AUTH changes
                    // the limits for the next request.
                    let enough = batch.len() == MAX_BATCH_REQUESTS
                        || is_inline
                        || self.scanner.kept() >= AHEAD_ARGS;
                    if enough || self.limits.unauthenticated {
                        return (at, ScanEnd::BatchFull);
                    }
                }
            }
        }
    }

    #[inline]
    fn args<'a>(&'a self, request: &Request, buf: &'a [u8]) -> resp::Args<'a> {
        self.scanner.args_in(&buf[request.bytes.clone()], request.spans.clone(), request.is_inline)
    }
}
