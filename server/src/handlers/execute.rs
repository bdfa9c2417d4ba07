//! From a request to its reply: whether it may be executed now, by this client; and what is noted
//! of it.

use crate::handlers::call::Call;
use crate::handlers::cluster::{gather, route, shape};
use crate::handlers::items::{Answer, Answered, Step, Turn};
use crate::handlers::redis::{pubsub, tracking, transaction};
use crate::handlers::session::{Replies, Scratch, Session};
use crate::handlers::table::{Run, handler};
use crate::handlers::visibility;
use dataset::cold::UnreadableIds;
use dataset::engines::{Engines, WriteError};
use node::acl::Request;
use node::command::error::{Refusal, refuse};
use node::command::spec::{KeyArgs, MEMBER, Of, Outcome, Spec, flag};
use node::command::table::{Found, bit_of, find};
use node::roles::node::Now;
use node::runtime::clients::Kind;
use node::runtime::pause::Paused;
use node::runtime::slowlog;
use resp::{Args, Protocol, Reply};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Requests with more arguments than these do not leave their buffers to the next one.
const MANY_ARGS: usize = 4096;
/// A viewer or member of more bytes, times its ids, may have so many: promise 9.
const LONG_MEMBER: usize = 1 << 10;
const MOST_HASHED: usize = 4 << 20;

/// Executes one request, whose name was [`find`]-ed: one reply is appended to `out` (unless the
/// client wants none). False if it is an error.
pub(crate) fn execute(
    found: Found,
    args: Args<'_>,
    session: &mut Session,
    node: Now<'_>,
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> bool {
    let mut reply = Reply::new(out, session.client.protocol());
    let mark = reply.mark();
    let is_tracked = node.tracking.any();
    if is_tracked {
        tracking::begin(session, &node);
    }
    let (args, told) = shape::split(found, args, session);
    let outcome = match checked(found, args, session.most_args, session, node) {
        Err(_) if session.is_parted.take() => {
            answer_in_parts(found, args, told, &mut reply, session, node, scratch)
        }
        Err(refusal) => {
            note_rejected(found, args, session, node);
            Err(spoil(args, session, node, refusal))
        }
        Ok((_, spec)) if session.transaction.is_some() && !spec.has(flag::AT_ONCE) => {
            queue(spec, args, &mut reply, session, node)
        }
        Ok((numbers, spec)) => {
            let reply = reply.again();
            shape::as_told(told, spec, args, session, node, |session| {
                run(spec, numbers, args, reply, session, node, scratch)
            })
        }
    };
    reply.set_protocol(session.client.protocol());
    session.notes_missing = false;
    if session.suspension.is_asked() {
        // It will be executed again, and answered then.
        reply.rewind(mark);
        if is_tracked {
            node.tracking.end(node.loaded());
        }
        return true;
    }
    if session.suspension.is_back() {
        // It was refused before it asked for the outcome, which belongs to no other command.
        session.suspension.come();
    }
    let fine = match outcome {
        Ok(()) => true,
        Err(refusal) => {
            reply.rewind(mark);
            // A connection that is closed without a word gets none.
            if !session.leaving {
                reply.error(refusal.text());
            }
            note_refusal(&refusal, session, node);
            false
        }
    };
    if session.replies != Replies::On {
        withhold(&mut reply, mark, session);
    }
    if is_tracked {
        tracking::end(found, session, node);
    }
    if session.messages_due {
        session.messages_due = false;
        session.client.inbox.take(reply.bytes(), None);
    }
    fine
}

/// Notes an error that a client gets.
pub(crate) fn note_refusal(refusal: &Refusal, session: &mut Session, node: Now<'_>) {
    node.calls.of(session.worker).error(refusal.text());
    // Its library asks Sentinel for the master before it connects again.
    if refusal.text().starts_with(b"READONLY ") && node.replication.sends_writers_away() {
        session.leaving = true;
    }
}

/// CLIENT REPLY OFF or SKIP: takes back what was written from `mark` on.
#[cold]
pub(crate) fn withhold(reply: &mut Reply<'_>, mark: usize, session: &mut Session) {
    if !std::mem::take(&mut session.reply_is_push) {
        reply.rewind(mark);
        session.gathering.iter_mut().for_each(|gathering| gathering.drop_replies(mark));
    }
    session.replies = match session.replies {
        Replies::SkipNext => Replies::SkipThis,
        Replies::SkipThis => Replies::On,
        other => other,
    };
}

/// Finds the command of a request, and whether this client may send it now. Gives its numbers, too
/// (see [`name_of`]).
pub(crate) fn checked(
    found: Found,
    args: Args<'_>,
    most_args: usize,
    session: &mut Session,
    node: Now<'_>,
) -> Result<(u32, &'static Spec), Refusal> {
    let Some((number, spec)) = found else { return Err(unknown(args, session)) };
    let (spec, sub) = select(spec, args)?;
    if args.len() > most_args {
        return Err(too_many(most_args));
    }
    if let KeyArgs::Ids(of, ..) = spec.keys
        && args.at(MEMBER).len() > LONG_MEMBER
    {
        check_member(of, args)?;
    }
    if !session.access.free {
        let request = Request { spec, number: bit_of(number, sub), args };
        session.access.check(&node.acl, node.loaded(), &session.client, &request)?;
    }
    if !node.is_loaded() && !spec.has(flag::LOADING) {
        return Err(Refusal::LOADING);
    }
    // What was queued was asked before the transaction began to listen.
    let listens =
        session.listening && !session.in_exec && session.client.protocol() == Protocol::Resp2;
    if listens && !spec.has(flag::LISTENER) {
        return Err(pubsub::refuse_while_listening(spec));
    }
    if let Some(topology) = &session.topology
        && let Some(engines) = node.loaded()
    {
        route::check(topology, spec, args, session, node, engines)?;
    }
    Ok((u32::from(number) | sub << 16, spec))
}

/// A request for ids of several nodes.
#[cold]
fn answer_in_parts(
    found: Found,
    args: Args<'_>,
    told: Option<u64>,
    reply: &mut Reply<'_>,
    session: &mut Session,
    node: Now<'_>,
    scratch: &mut Scratch,
) -> Outcome {
    let Some((number, spec)) = found else { return Ok(()) };
    gather::answer(number, spec, args, told, reply, session, node, scratch)
}

/// Promise 9: no request keeps others waiting for long.
#[cold]
fn too_many(most: usize) -> Refusal {
    refuse!("ERR a request may have {most} arguments (max_request_args)")
}

/// The same: the member is hashed for each id.
#[cold]
fn check_member(of: Of, args: Args<'_>) -> Outcome {
    let length = args.at(MEMBER).len();
    // Those of an entry of several, too; options are none.
    let rest = args.from(MEMBER + 1);
    let words = rest.iter().filter(|word| word.first().is_some_and(u8::is_ascii_digit));
    let ids: usize = words.map(|word| word.split(|byte| *byte == b'/').count()).sum();
    if matches!(of, Of::Rows | Of::Kin) || ids <= 1 || length * ids <= MOST_HASHED {
        return Ok(());
    }
    let most = (MOST_HASHED / length).max(1);
    Err(refuse!("ERR a viewer or member of {length} bytes may come with {most} ids"))
}

/// For INFO commandstats: a command that was known, and not let in.
#[cold]
pub(crate) fn note_rejected(found: Found, args: Args<'_>, session: &Session, node: Now<'_>) {
    if let Some((number, spec)) = found {
        let sub = select(spec, args).map_or(0, |(_, sub)| sub);
        node.calls.of(session.worker).rejected(bit_of(number, sub));
    }
}

/// Whether a request has to wait while `paused` is.
#[cold]
pub(crate) fn must_wait(args: Args<'_>, session: &Session, paused: Paused, node: Now<'_>) -> bool {
    let Some((number, spec)) = find(args.at(0)) else { return false };
    let Ok((spec, sub)) = select(spec, args) else { return false };
    let request = Request { spec, number: bit_of(number, sub), args };
    if !session.access.allows(&node.acl, node.loaded(), &request) {
        return false;
    }
    // As in Redis, a command that is refused in any case is refused at once: by a replica, too.
    if session.client.kind() == Kind::Replica || (!node.is_loaded() && !spec.has(flag::LOADING)) {
        return false;
    }
    let queued = session.transaction.as_ref().is_some_and(transaction::Transaction::writes);
    let changes =
        spec.name == "exec" && queued || spec.may_write(args) && !spec.has(flag::MAY_REPLICATE);
    match paused {
        Paused::Nothing => false,
        Paused::Changes => changes && node.replication.is_master(),
        Paused::Writes if changes => node.replication.is_master(),
        Paused::Writes => spec.may_write(args),
        Paused::All => true,
    }
}

/// Whether a request has to wait, as it changes data, and a space is nearly full and will soon be
/// less so: behind that it could be refused.
#[inline]
pub(crate) fn waits_for_room(found: Found, session: &Session, node: Now<'_>) -> bool {
    let Some((_, spec)) = found else { return false };
    let changes = match &session.transaction {
        Some(transaction) => spec.name == "exec" && transaction.writes(),
        None => spec.has(flag::WRITE),
    };
    changes && node.loaded().is_some_and(Engines::is_spilling) && node.replication.is_master()
}

/// Executes a command that was checked.
pub(crate) fn run(
    spec: &'static Spec,
    numbers: u32,
    args: Args<'_>,
    reply: Reply<'_>,
    session: &mut Session,
    node: Now<'_>,
    scratch: &mut Scratch,
) -> Outcome {
    run_turn(spec, numbers, Turn::whole(args), reply, session, node, scratch).map(|_| ())
}

/// Executes a command that was checked, or a turn of it. Inlined into [`run`], where the step is
/// known: that saves 50 instructions of each command.
#[inline(always)]
pub(crate) fn run_turn(
    spec: &'static Spec,
    numbers: u32,
    turn: Turn<'_>,
    reply: Reply<'_>,
    session: &mut Session,
    node: Now<'_>,
    scratch: &mut Scratch,
) -> Answered {
    let Turn { args, part, step } = turn;
    session.client.last_command.store(numbers, Relaxed);
    // EXEC is shown behind what it executes.
    let is_watched = node.monitors.any() && !spec.has(flag::ADMIN | flag::SKIP_MONITOR);
    // The first call of a request shows and counts it, not one after a suspension.
    let is_first = step.begins_request() && !session.suspension.is_back();
    if is_watched && spec.name != "exec" && is_first {
        show(part, session, node);
    }
    let (calls, number) = (node.calls.of(session.worker), bit_of(numbers as u16, numbers >> 16));
    if step.begins_request() {
        // What an earlier request was about is not what this one shows.
        scratch.ids.clear();
    }
    if session.tracks_reads && spec.has(flag::READONLY) {
        tracking::remember(spec, part, session, node);
    }
    let mut call = Call { spec, args, part, step, checked: None, reply, session, node, scratch };
    if spec.has(flag::WRITE)
        && let Err(refusal) = call.admit_write()
    {
        calls.rejected(number);
        return Err(refusal);
    }
    let timed = step == Step::Whole
        && (!is_first
            || calls.begins(number)
            || call.session.timed
            || !spec.has(flag::FAST)
            || args.len() > slowlog::MANY_ARGS);
    if step == Step::Check(0) {
        calls.begins(number);
    }
    let began = timed.then(Instant::now);
    let answer = match handler(number) {
        Run::Once(handler) => handler(&mut call).map(|()| Answer::Done),
        Run::Long(handler) => handler(&mut call),
    };
    if call.session.suspension.is_asked() {
        return Ok(Answer::Done);
    }
    if is_watched && spec.name == "exec" {
        show(args, session, node);
    }
    if let Some(began) = began {
        note_took(spec, number, args, began.elapsed(), session, node);
    }
    visibility::note(spec, turn, &scratch.ids, session, node.loaded());
    if step == Step::Whole && args.len() > MANY_ARGS {
        scratch.shrink();
    }
    if answer.is_err() {
        calls.failed(number);
    }
    answer
}

/// For MONITOR.
#[cold]
fn show(args: Args<'_>, session: &Session, node: Now<'_>) {
    node.monitors.show(&session.client, args, node.config().server.max_push_buffer_bytes);
}

pub(crate) fn note_took(
    spec: &Spec,
    number: usize,
    args: Args<'_>,
    took: Duration,
    session: &Session,
    node: Now<'_>,
) {
    node.calls.of(session.worker).took(number, took);
    if !spec.has(flag::SKIP_SLOWLOG) {
        note_time(spec, args, took, session, node);
    }
}

/// For SLOWLOG and LATENCY.
fn note_time(spec: &Spec, args: Args<'_>, took: Duration, session: &Session, node: Now<'_>) {
    let config = node.config();
    let server = &config.server;
    let us = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
    let is_slow = server.slowlog_slower_than_us >= 0 && us >= server.slowlog_slower_than_us;
    if is_slow || server.latency_threshold_ms > 0 {
        let secret = spec.has(flag::SKIP_MONITOR)
            || spec.name.starts_with("acl|")
            || spec.name == "config|set";
        let event = if spec.has(flag::FAST) { "fast-command" } else { "command" };
        node.slow.note(server, &session.client, args, took, secret, event);
    }
}

/// A command between MULTI and EXEC.
fn queue(
    spec: &'static Spec,
    args: Args<'_>,
    reply: &mut Reply<'_>,
    session: &mut Session,
    node: Now<'_>,
) -> Outcome {
    let Some(transaction) = &mut session.transaction else { return Ok(()) };
    let (most, most_args) = {
        let server = &node.config().server;
        (server.max_transaction_bytes, server.max_transaction_args)
    };
    let refused = if spec.has(flag::NO_MULTI) {
        Some(refuse!("ERR Command not allowed inside a transaction"))
    } else if spec.has(flag::WRITE) {
        node.refusal()
    } else {
        None
    };
    if let Some(refusal) = refused {
        transaction.spoil();
        return Err(refusal);
    }
    if !transaction.has_room_for(spec, args, node, most_args) {
        transaction.spoil();
        return Err(refuse!(
            "ERR the commands of a transaction may have {most_args} arguments, of which messages \
             and sets of exact flags count as several (max_transaction_args)"
        ));
    }
    if !transaction.may_change_spaces(spec) {
        transaction.spoil();
        return Err(refuse!(
            "ERR a transaction may have {} changes of spaces at most: others \
             wait for each of them",
            transaction::MOST_SPACE_CHANGES
        ));
    }
    if !transaction.push(spec, args, most) {
        return Err(refuse!("ERR a transaction may take {most} bytes (max_transaction_bytes)"));
    }
    session.client.queued.store(i64::try_from(transaction.len()).unwrap_or(i64::MAX), Relaxed);
    reply.simple("QUEUED");
    Ok(())
}

/// After a command that could not be queued EXEC executes nothing; an EXEC that is itself refused
/// ends the transaction.
#[cold]
fn spoil(args: Args<'_>, session: &mut Session, node: Now<'_>, refusal: Refusal) -> Refusal {
    if args.at(0).eq_ignore_ascii_case(b"exec") {
        transaction::forget(session, &node);
        return transaction::discarded(&refusal);
    }
    if let Some(transaction) = &mut session.transaction {
        transaction.spoil();
    }
    refusal
}

/// What is answered in the places of rows that could not be read: the same wherever a row stands.
#[derive(Default)]
pub(crate) struct UnreadableRows(Option<HashMap<u64, Refusal>>);

impl UnreadableRows {
    /// Notes which rows of a batch could not be read.
    #[inline]
    pub(crate) fn note(&mut self, read: Result<(), UnreadableIds>) {
        if let Err(ids) = read {
            self.note_all(&ids);
        }
    }

    #[cold]
    pub(crate) fn note_all(&mut self, ids: &UnreadableIds) {
        let refusals = self.0.get_or_insert_default();
        for unreadable in ids.all() {
            refusals.entry(unreadable.id).or_insert_with(|| unreadable.clone().into());
        }
    }

    /// For a row that was not found: whether that is so because it could not be read.
    #[inline]
    pub(crate) fn refusal(&self, id: u64) -> Option<&Refusal> {
        self.0.as_ref()?.get(&id)
    }
}

/// For a command that deletes many rows: a row that cannot be read does not stop the others. Keeps
/// the first such error in `unreadable`, for the end of the command.
pub(crate) fn but_unreadable(
    deleted: Result<bool, WriteError>,
    unreadable: &mut Option<WriteError>,
) -> Result<bool, WriteError> {
    match deleted {
        Err(error @ WriteError::Unreadable(_)) => {
            unreadable.get_or_insert(error);
            Ok(false)
        }
        other => other,
    }
}

/// Checks the number of arguments and steps down to the subcommand; gives its number, too, or 0 if
/// there is none.
#[inline]
pub(crate) fn select(spec: &'static Spec, args: Args<'_>) -> Result<(&'static Spec, u32), Refusal> {
    let wrong_arity =
        |spec: &Spec| refuse!("ERR wrong number of arguments for '{}' command", spec.name);
    if !spec.fits(args.len()) {
        return Err(wrong_arity(spec));
    }
    if spec.subcommands.is_empty() || args.len() == 1 {
        return Ok((spec, 0));
    }
    let wanted = args.at(1);
    let named = |(_, s): &(u32, &Spec)| s.own_name().as_bytes().eq_ignore_ascii_case(wanted);
    let Some((number, sub)) = (1..).zip(spec.subcommands).find(named) else {
        return Err(refuse!(
            "ERR unknown subcommand '{}'. Try {} HELP.",
            String::from_utf8_lossy(&wanted[..wanted.len().min(128)]),
            spec.name.to_ascii_uppercase()
        ));
    };
    if sub.fits(args.len()) { Ok((sub, number)) } else { Err(wrong_arity(sub)) }
}

#[cold]
fn unknown(args: Args<'_>, session: &mut Session) -> Refusal {
    let name = args.at(0);
    // What a browser or an HTTP client sends first: a page makes it talk to us. No answer, so
    // that nothing of ours is read as a page.
    if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
        tracing::warn!(
            "client {} speaks HTTP: closed (a cross-site attack?); find the program at \
                        that address",
            session.client.peer
        );
        session.leaving = true;
    }
    let mut shown = Vec::new();
    for arg in args.from(1).iter() {
        if shown.len() >= 128 {
            break;
        }
        let room = 128 - shown.len();
        shown.push(b'\'');
        shown.extend_from_slice(&arg[..arg.len().min(room)]);
        shown.extend_from_slice(b"' ");
    }
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(&name[..name.len().min(128)]);
    text.extend_from_slice(b"', with args beginning with: ");
    text.extend_from_slice(&shown);
    Refusal::new(text)
}
