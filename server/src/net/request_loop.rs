//! A turn without its socket: the bytes of requests in, the bytes of replies out.
//!
//! Requests are taken a few at a time, in three passes: all are scanned, then for each of them the
//! memory that it will need is asked for, then they are executed. So the waits for memory of a
//! pipeline's small commands overlap (`commands/prefetch.rs`).

use crate::commands::long_request::{LongRequest, execute_turn, is_long};
use crate::commands::prefetch::LookAhead;
use crate::commands::turn::{Step, Turn};
use crate::commands::{cold_keys, execute};
use crate::session::{Scratch, Session};
use dataset::cold;
use dataset::cold::Pins;
use dataset::cold::fetch::Fetching;
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

/// Once so many bytes of replies are there, they are written before more requests are looked at.
const WRITE_BYTES: usize = 256 << 10;
/// Most bytes of replies that wait for a client that has not logged in: bounds the work of
/// refusals.
const UNAUTHENTICATED_OUT_BYTES: usize = 16 << 10;
/// First room for replies.
const OUT_BYTES: usize = 64 << 10;
/// Most arguments of one request, as in Redis.
const MAX_ARGS: usize = 1 << 20;
/// How often a writer looks whether a space that is nearly full has room again.
pub(crate) const ROOM_EVERY: Duration = Duration::from_millis(2);
/// Capacity of `out` that is kept when it is empty.
const KEPT_OUT_BYTES: usize = 1 << 20;
/// Requests that are scanned before the first of them is executed: a page's, so that its rows are
/// waited for once.
const AHEAD: usize = 32;
/// Their arguments; with more, no further request is looked at.
const AHEAD_ARGS: usize = 1024;

/// What a worker keeps for the turns of all its connections.
pub(crate) struct TurnBuffers {
    pub(crate) out: Vec<u8>,
    scratch: Scratch,
    batch: Vec<Request>,
}

impl TurnBuffers {
    /// Empties `out`, and gives back its memory if that has become large.
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
            batch: Vec::with_capacity(AHEAD),
        }
    }
}

/// A request that was scanned, and is to be executed.
#[derive(Clone)]
pub(crate) struct Request {
    /// Where it begins and ends in the input.
    pub(crate) bytes: Range<usize>,
    /// Its arguments in the scanner.
    pub(crate) spans: Range<usize>,
    pub(crate) is_inline: bool,
    pub(crate) found: Found,
}

/// How a connection stands after its requests were looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    No,
    /// Write what is pending, then close.
    Politely,
    /// As above, but the peer may still be sending: let it read why before the socket goes.
    Lingering,
    /// Write nothing more.
    AtOnce,
}

/// Why no further request was scanned.
enum Halt {
    /// There are enough for now.
    Enough,
    /// The next one has not come whole.
    Incomplete,
    Refused(Malformed),
}

/// What a request waits for before it is executed.
enum Wait {
    /// Clients are paused.
    Pause,
    /// A space that is nearly full makes room.
    Room,
    /// Rows from the disk.
    Rows(Fetching),
}

/// Whether a request waits before it is executed.
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
    if execute::waits_for_room(found, session, node) {
        return Some(Wait::Room);
    }
    if has_cold {
        return cold_keys::before(found, args, session, node.engines()).map(Wait::Rows);
    }
    None
}

/// What a client may send now; how much may wait for it is noted.
fn limits(config: &Config, session: &mut Session) -> Limits {
    session.client.set_entered(session.access.user.is_some());
    if session.access.user.is_none() {
        session.most_out = UNAUTHENTICATED_OUT_BYTES;
        return Limits::UNAUTHENTICATED;
    }
    session.most_out = config.server.max_output_buffer_bytes;
    session.most_args = config.server.max_request_args;
    Limits {
        max_args: MAX_ARGS,
        max_bulk_bytes: config.server.max_bulk_bytes,
        unauthenticated: false,
    }
}

/// One client's requests and replies. See the top of the file.
pub(crate) struct RequestLoop {
    pub(crate) session: Session,
    scanner: Scanner,
    lookup: Lookup,
    limits: Limits,
    /// As it was at this version of the settings.
    pub(crate) config: Arc<Config>,
    /// The input may hold whole requests, left there because the replies have to be written first.
    pub(crate) more: bool,
    /// Replies that the turn at hand has given.
    pub(crate) replies: usize,
    pub(crate) closing: Closing,
    /// The next request has to wait: clients are paused, or it is suspended, or it needs rows from
    /// the disk, which this gives.
    pub(crate) stalled: Option<Pin<Box<dyn Future<Output = Pins> + Send>>>,
    /// The first request in the input, if it takes several turns.
    long: Option<Box<(Request, LongRequest)>>,
    /// Bytes of the replies of the turn at hand that stay if the others become errors.
    pub(crate) kept_out: usize,
    /// Rows that were read for the requests that come next.
    pub(crate) pins: Pins,
    /// Bytes that these take, or will.
    pub(crate) pinned_bytes: usize,
    /// What it waits for reads rows of a data set that is not served any more.
    outlived: bool,
    /// This is a node of a cluster.
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

    /// Another data set is served from now on: rows that were read for it, and what it watches, are
    /// of the last one.
    #[cold]
    pub(crate) fn lose_data(&mut self) {
        self.pins = Pins::default();
        self.outlived = self.stalled.is_some();
        self.session.lose_watched();
    }

    /// What it has waited for has come.
    pub(crate) fn return_with(&mut self, pins: Pins) {
        self.stalled = None;
        self.pins = if std::mem::take(&mut self.outlived) { Pins::default() } else { pins };
    }

    /// Executes the whole requests at the start of `buf`; gives the bytes that they took.
    pub(crate) fn execute(
        &mut self,
        node: &Arc<Node>,
        tallies: &Tallies,
        buf: &[u8],
        turn: &mut TurnBuffers,
    ) -> usize {
        // Before anything is asked: a thread that changed something global waits for the turns that
        // may not have seen it.
        let _turn = tallies.enter();
        // One set of spaces, views and actions for all that the turn does.
        let engines = node.current.get().map(Current::now);
        let node = Now::new(node, engines.as_ref().map(|engines| &***engines));
        if self.in_cluster {
            self.session.topology = Some(node.cluster.topology());
        }
        let used = self.execute_with(node, tallies, buf, turn);
        // An idle client keeps no topology of the past.
        if self.in_cluster {
            self.session.topology = None;
            self.session.hold_for_others(|| node.process());
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
        // A client that has not logged in reads nothing.
        if self.limits.unauthenticated || !node.loaded().is_some_and(Engines::has_cold) {
            return self.execute_all(node, tallies, buf, turn, false);
        }
        cold::pin(std::mem::take(&mut self.pins));
        let used = self.execute_all(node, tallies, buf, turn, true);
        // A turn that stops for another reason may still want its rows.
        let pins = cold::unpin();
        if self.more && self.stalled.is_none() {
            self.pins = pins;
        } else if self.stalled.is_none() {
            self.pinned_bytes = 0;
        }
        used
    }

    // Long: a loop whose steps each may end the turn.
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
            self.look_ahead(node, batch, buf);
            for (index, request) in batch.iter().enumerate() {
                // The request before this one may have changed it, too.
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
                if is_long(request.found, args, node)
                    && !request.is_inline
                    && let Some(engines) = node.loaded()
                    && let Some(long) = LongRequest::new(request.found, args, session, engines)
                {
                    tallies.commands.add(index as u64);
                    // In a turn of its own: its replies may become errors, in their own way.
                    if self.replies > 0 || index > 0 {
                        self.scanner.restart();
                    } else {
                        let bytes = 0..request.bytes.len();
                        self.long = Some(Box::new((Request { bytes, ..request.clone() }, long)));
                    }
                    self.more = true;
                    return request.bytes.start;
                }
                // The request before this one may have been what pauses.
                if let Some(wait) = waits(request.found, args, session, node, has_cold) {
                    tallies.commands.add(index as u64);
                    self.scanner.restart();
                    self.wait(wait, node, &buf[request.bytes.end..]);
                    return request.bytes.start;
                }
                if !execute::execute(request.found, args, session, node, out, scratch) {
                    tallies.errors.add(1);
                }
                if session.suspension.is_asked() {
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
                if self.goes_on(node, out.len()) {
                    continue;
                }
                self.session.ends_turn = false;
                // What was scanned behind it will be scanned again, or never.
                tallies.commands.add(index as u64 + 1);
                self.scanner.restart();
                if self.closing != Closing::No {
                    return buf.len();
                }
                self.more = at < buf.len();
                return at;
            }
            tallies.commands.add(batch.len() as u64);
            self.scanner.settle();
            at = end;
            match halt {
                Halt::Enough => {}
                Halt::Incomplete => return at,
                Halt::Refused(why) => {
                    self.refuse(&why, node, tallies, out);
                    return buf.len();
                }
            }
        }
    }

    /// Asks the cache for what the requests of a batch will need. One alone would be fetched for no
    /// sooner than it fetches for itself.
    #[inline]
    fn look_ahead(&self, node: Now<'_>, batch: &[Request], buf: &[u8]) {
        if let Some(engines) = node.loaded()
            && batch.len() > 1
        {
            let mut ahead = LookAhead::new(engines);
            for request in batch {
                ahead.at(request.found, self.args(request, buf));
            }
        }
    }

    /// The request at hand is executed when `wait` is over.
    #[cold]
    fn stall(&mut self, wait: impl Future<Output = ()> + Send + 'static) {
        self.session.client.waits.store(true, Relaxed);
        self.stalled = Some(Box::pin(async move {
            wait.await;
            Pins::default()
        }));
        self.more = true;
    }

    /// The request at hand is executed when this has come. `behind`: the requests behind it.
    #[cold]
    fn wait(&mut self, wait: Wait, node: Now<'_>, behind: &[u8]) {
        match wait {
            Wait::Pause => {
                let process = node.process();
                self.session.client.paused.store(true, Relaxed);
                self.stall(async move { process.pause.eased().await });
            }
            Wait::Room => {
                let node = node.node().clone();
                self.session.client.away.store(true, Relaxed);
                self.stall(async move {
                    while node.is_spilling() && !node.stop.is_stopped() {
                        tokio::time::sleep(ROOM_EVERY).await;
                    }
                });
            }
            Wait::Rows(fetching) => self.fetch(node, behind, fetching),
        }
    }

    /// The request at hand is executed again when what it has asked for has come.
    #[cold]
    fn suspend(&mut self, node: Now<'_>, behind: &[u8]) {
        if let Some(fetching) = self.session.suspension.take_lacks() {
            return self.fetch(node, behind, *fetching);
        }
        let suspension = self.session.suspension.leave();
        self.session.client.away.store(true, Relaxed);
        self.stall(suspension);
    }

    /// Executes the next turn of a long request. Gives its bytes if it is done, or 0.
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
        let words = Turn { args, part, step };
        let is_done = execute_turn(request, words, &mut self.session, node, &mut turn.out);
        if self.session.suspension.is_asked() {
            self.suspend(node, &[]);
            self.long = Some(long);
            return 0;
        }
        let written = request.written(step, is_done, &turn.out[from..]);
        (self.replies, self.kept_out) = (written.0, from + written.1);
        if has_cold {
            // The rows of this turn: no other needs them.
            drop(cold::unpin());
            self.pinned_bytes = 0;
        }
        if !self.goes_on(node, turn.out.len()) && self.closing != Closing::No {
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

    /// Whether it is in the middle of a reply, where no message may stand.
    pub(crate) fn is_amid_reply(&self) -> bool {
        self.long.as_ref().is_some_and(|long| long.1.is_amid_reply())
    }

    /// What the turn has changed is not safe: replies that come later than the turn say so.
    pub(crate) fn fail(&mut self, text: &str) {
        if let Some(long) = &mut self.long {
            long.1.fail(text);
        }
    }

    /// Whether the next request is to be executed in the same turn, after one that has left so many
    /// bytes of replies; if the connection is to be closed, that is noted.
    #[inline]
    fn goes_on(&mut self, node: Now<'_>, out: usize) -> bool {
        if out > self.session.most_out {
            self.end_by_output(&node);
            return false;
        }
        if self.session.leaving {
            self.closing = Closing::Politely;
            return false;
        }
        out < WRITE_BYTES && self.session.hold.is_none() && !self.session.ends_turn
    }

    /// Its replies take more than may wait for it.
    #[cold]
    pub(crate) fn end_by_output(&mut self, process: &Process) {
        tracing::warn!(
            "client {} asked for more than max_output_buffer_bytes: disconnected; ask for less at \
             a time, or raise it",
            self.session.client.peer
        );
        process.clients.ended.by_output.fetch_add(1, Relaxed);
        self.closing = Closing::AtOnce;
    }

    /// What is no request ends the connection.
    #[cold]
    fn refuse(&mut self, why: &Malformed, node: Now<'_>, tallies: &Tallies, out: &mut Vec<u8>) {
        if matches!(why, Malformed::Http) {
            tracing::warn!(
                "client {} speaks HTTP: closed (a cross-site attack?); find the program at that \
                 address",
                self.session.client.peer
            );
            self.closing = Closing::Politely;
            return;
        }
        Reply::new(out, self.session.client.protocol()).error(format!("ERR {why}"));
        tallies.errors.add(1);
        node.calls.of(self.session.worker).error(b"ERR");
        self.closing = Closing::Lingering;
    }

    /// Lets the rows be read that the next request needs, together with those of the requests
    /// behind it.
    #[cold]
    fn fetch(&mut self, node: Now<'_>, mut behind: &[u8], mut fetching: Fetching) {
        let mut scanner = Scanner::default();
        while !fetching.is_enough() {
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

    /// Bytes that the scanner takes: what it knows of a request that has not come whole.
    pub(crate) fn scanner_bytes(&self) -> usize {
        self.scanner.bytes() + self.long.as_ref().map_or(0, |long| long.1.bytes())
    }

    /// Whether settings or users have changed since it looked.
    #[inline]
    pub(crate) fn is_outdated(&self, node: &Node) -> bool {
        self.session.access.version != node.settings.version()
    }

    /// Settings or users have changed. False: the connection's user is no more, and the connection
    /// neither.
    #[cold]
    pub(crate) fn look_again(&mut self, node: &Node) -> bool {
        // Before the look: what changes meanwhile is looked at once more.
        self.session.access.version = node.settings.version();
        self.config = Arc::clone(&node.config());
        self.session.timed = slowlog::times_all(&self.config.server);
        let mut known = self.session.access.look_again(&node.acl);
        // A subscription that was made while the rule that allowed it was taken away.
        if self.session.listening
            && std::mem::take(&mut self.session.access.hears_less)
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

    /// Scans some requests, from `at` on. Gives where they end, and why there are not more.
    #[inline]
    fn scan(&mut self, buf: &[u8], mut at: usize, batch: &mut Vec<Request>) -> (usize, Halt) {
        batch.clear();
        loop {
            match self.scanner.scan(&buf[at..], &self.limits) {
                Scan::Incomplete => return (at, Halt::Incomplete),
                Scan::Refused(why) => return (at, Halt::Refused(why)),
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
                    // The words of an inline request are kept until the next one. What a client may
                    // send after it has logged in is not to be judged before it has.
                    let enough =
                        batch.len() == AHEAD || is_inline || self.scanner.kept() >= AHEAD_ARGS;
                    if enough || self.limits.unauthenticated {
                        return (at, Halt::Enough);
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
