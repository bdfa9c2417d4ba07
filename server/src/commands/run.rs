//! Runs a checked command: calls the handler, then updates statistics, SLOWLOG, tracking and
//! visibility.

use crate::commands::call::Call;
use crate::commands::command::{Run, handler};
use crate::commands::connection::tracking;
use crate::commands::turn::{Answer, Answered, Step, Turn};
use crate::commands::visibility;
use crate::session::{Scratch, Session};
use node::command::error::{Refusal, refuse};
use node::command::spec::{Outcome, Spec, flag};
use node::command::table::bit_of;
use node::roles::node::Now;
use node::runtime::slowlog;
use resp::{Args, Reply};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Number of arguments of a request above which the worker releases its buffers afterwards.
const MANY_ARGS: usize = 4096;

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

/// Executes a checked command, or makes one handler call of a long request. The function is inlined
/// into [`run`], where the step is constant. This saves 50 instructions per command.
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
    let Turn { args, part, step, most_items } = turn;
    session.client.last_command.store(numbers, Relaxed);
    // MONITOR shows EXEC after its commands.
    let is_watched = node.monitors.any() && !spec.has(flag::ADMIN | flag::SKIP_MONITOR);
    // A suspended request runs again later. MONITOR and the statistics count only its first run.
    let is_first = step.begins_request() && !session.suspension.is_second_run();
    if is_watched && spec.name != "exec" && is_first {
        show(part, session, node);
    }
    let (calls, number) = (node.calls.of(session.worker), bit_of(numbers as u16, numbers >> 16));
    if step.begins_request() {
        // Remove the ids that an earlier request has left.
        scratch.ids.clear();
    }
    if session.tracks_reads && spec.has(flag::READONLY) {
        tracking::remember(spec, part, session, node);
    }
    let mut call =
        Call { spec, args, part, step, most_items, checked: None, reply, session, node, scratch };
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
    if call.session.suspension.is_requested() {
        return Ok(Answer::Done);
    }
    if is_watched && spec.name == "exec" {
        show(args, session, node);
    }
    if let Some(began) = began {
        record_duration(spec, number, args, began.elapsed(), session, node);
    }
    visibility::note(spec, turn, &scratch.ids, session, node.loaded());
    if step == Step::Whole && args.len().max(scratch.ids.len()) > MANY_ARGS {
        scratch.shrink();
    }
    if answer.is_err() {
        calls.failed(number);
    }
    answer
}

#[cold]
fn show(args: Args<'_>, session: &Session, node: Now<'_>) {
    node.monitors.show(&session.client, args, node.config().server.max_push_buffer_bytes);
}

pub(crate) fn record_duration(
    spec: &Spec,
    number: usize,
    args: Args<'_>,
    took: Duration,
    session: &Session,
    node: Now<'_>,
) {
    node.calls.of(session.worker).took(number, took);
    if !spec.has(flag::SKIP_SLOWLOG) {
        record_slow(spec, args, took, session, node);
    }
}

/// Records the execution time for SLOWLOG and LATENCY.
fn record_slow(spec: &Spec, args: Args<'_>, took: Duration, session: &Session, node: Now<'_>) {
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

/// Checks the arity and selects the subcommand. Also returns the subcommand's index, counted from
/// 1, or 0 for a command without a subcommand.
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
        // The name of an action: TM.AUDIT like.
        if spec.has(flag::NAMED) {
            return Ok((spec, 0));
        }
        return Err(refuse!(
            "ERR unknown subcommand '{}'. Try {} HELP.",
            String::from_utf8_lossy(&wanted[..wanted.len().min(128)]),
            spec.name.to_ascii_uppercase()
        ));
    };
    if sub.fits(args.len()) { Ok((sub, number)) } else { Err(wrong_arity(sub)) }
}
