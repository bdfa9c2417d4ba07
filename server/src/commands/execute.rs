//! Executes one request: checks it, queues it in a transaction or runs it, and records the result.

use crate::commands::check::{checked, note_rejected};
use crate::commands::cluster::{gather, shape};
use crate::commands::connection::tracking;
use crate::commands::run::{run, select};
use crate::commands::transaction;
use crate::session::transaction::{MAX_SPACE_CHANGES, Transaction};
use crate::session::{Replies, Scratch, Session};
use dataset::engines::Engines;
use node::acl::Request;
use node::command::error::{Refusal, refuse};
use node::command::spec::{Outcome, Spec, flag};
use node::command::table::{Found, bit_of, find};
use node::roles::node::Now;
use node::runtime::clients::Kind;
use node::runtime::pause::Paused;
use resp::{Args, Reply};
use std::sync::atomic::Ordering::Relaxed;

/// Executes one request whose name was resolved with [`find`] and appends its reply to `out`,
/// unless replies are off. Returns false if the reply is an error.
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
    let outcome = match checked(found, args, session.args_limit, session, node) {
        Err(_) if session.is_parted.take() => {
            answer_in_parts(found, args, told, &mut reply, session, node, scratch)
        }
        Err(refusal) => {
            note_rejected(found, args, session, node);
            Err(fail_transaction(args, session, node, refusal))
        }
        Ok((_, spec)) if session.transaction.is_some() && !spec.has(flag::AT_ONCE) => {
            queue(spec, args, &mut reply, session, node)
        }
        Ok((numbers, spec)) => {
            let reply = reply.again();
            shape::execute_part(told, spec, args, session, node, |session| {
                run(spec, numbers, args, reply, session, node, scratch)
            })
        }
    };
    reply.set_protocol(session.client.protocol());
    session.records_missing_rows = false;
    if session.suspension.is_requested() {
        // The request runs again later and writes its reply then.
        reply.rewind(mark);
        if is_tracked {
            node.tracking.end(node.loaded());
        }
        return true;
    }
    if session.suspension.is_second_run() {
        // The request was refused before its handler took the result of the wait. Discard the
        // result, so that the next command does not take it.
        session.suspension.come();
    }
    let fine = match outcome {
        Ok(()) => true,
        Err(refusal) => {
            reply.rewind(mark);
            // A connection closed for security reasons gets no reply.
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

pub(crate) fn note_refusal(refusal: &Refusal, session: &mut Session, node: Now<'_>) {
    node.calls.of(session.worker).error(refusal.text());
    // Close the connection. Client libraries that are disconnected ask Sentinel for the new master.
    if refusal.text().starts_with(b"READONLY ") && node.replication.redirects_writers() {
        session.leaving = true;
    }
}

/// Implements CLIENT REPLY OFF and SKIP: removes the output from `mark` on.
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

/// Returns whether a request must wait for the end of a pause.
#[cold]
pub(crate) fn must_wait(args: Args<'_>, session: &Session, paused: Paused, node: Now<'_>) -> bool {
    let Some((number, spec)) = find(args.at(0)) else { return false };
    let Ok((spec, sub)) = select(spec, args) else { return false };
    let request = Request { spec, number: bit_of(number, sub), args };
    if !session.access.allows(&node.acl, node.loaded(), &request) {
        return false;
    }
    // As in Redis, a request that will be refused does not wait for the end of the pause.
    if session.client.kind() == Kind::Replica || (!node.is_loaded() && !spec.has(flag::LOADING)) {
        return false;
    }
    let queued = session.transaction.as_ref().is_some_and(Transaction::writes);
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

/// Returns whether a write must wait because a nearly full space is being spilled. Without the
/// wait, the space might refuse the write.
#[inline]
pub(crate) fn waits_for_room(
    found: Found,
    args: Args<'_>,
    session: &Session,
    node: Now<'_>,
) -> bool {
    let Some((_, spec)) = found else { return false };
    let changes = match &session.transaction {
        Some(transaction) => spec.name == "exec" && transaction.writes(),
        None => spec.has(flag::WRITE) || spec.sets_flags(args),
    };
    changes && node.loaded().is_some_and(Engines::is_spilling) && node.replication.is_master()
}

fn queue(
    spec: &'static Spec,
    args: Args<'_>,
    reply: &mut Reply<'_>,
    session: &mut Session,
    node: Now<'_>,
) -> Outcome {
    let Some(transaction) = &mut session.transaction else { return Ok(()) };
    let (most, args_limit) = {
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
        transaction.fail_transaction();
        return Err(refusal);
    }
    if !transaction.has_room_for(spec, args, node, args_limit) {
        transaction.fail_transaction();
        return Err(refuse!(
            "ERR too many arguments in the transaction: at most {args_limit}, where messages and \
             sets of exact flags count as several (max_transaction_args)"
        ));
    }
    if !transaction.may_change_spaces(spec) {
        transaction.fail_transaction();
        return Err(refuse!(
            "ERR too many changes of spaces in the transaction: at most {} are allowed, because \
             each blocks other clients",
            MAX_SPACE_CHANGES
        ));
    }
    if !transaction.push(spec, args, most) {
        return Err(refuse!("ERR transaction too large: at most {most} bytes (max_transaction)"));
    }
    session.client.queued.store(i64::try_from(transaction.len()).unwrap_or(i64::MAX), Relaxed);
    reply.simple("QUEUED");
    Ok(())
}

/// Marks the transaction as failed because a command could not be queued. If the command is EXEC,
/// ends the transaction.
#[cold]
fn fail_transaction(
    args: Args<'_>,
    session: &mut Session,
    node: Now<'_>,
    refusal: Refusal,
) -> Refusal {
    if args.at(0).eq_ignore_ascii_case(b"exec") {
        transaction::forget(session, &node);
        return transaction::discarded(&refusal);
    }
    if let Some(transaction) = &mut session.transaction {
        transaction.fail_transaction();
    }
    refusal
}
