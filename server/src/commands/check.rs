//! Checks whether a client may execute a request now.

use crate::commands::cluster::gather;
use crate::commands::pubsub;
use crate::commands::run::select;
use crate::session::Session;
use node::acl::Request;
use node::command::among;
use node::command::error::{Refusal, refuse};
use node::command::id_list::{self, ID_BYTES, count_packed, first_id};
use node::command::spec::{KeyArgs, MEMBER, Of, Outcome, Spec, flag};
use node::command::table::{Found, bit_of};
use node::roles::node::Now;
use resp::{Args, Protocol};

/// A member longer than `LONG_MEMBER` bytes may be combined with at most `MAX_HASHED_BYTES /
/// length` ids, because the member is hashed for each id. This bounds the execution time of a
/// request.
const LONG_MEMBER: usize = 1 << 10;

const MAX_HASHED_BYTES: usize = 4 << 20;

/// Finds the command of a request and checks whether the client may send it now. Also returns the
/// numbers of the command and its subcommand (see [`name_of`]).
pub(crate) fn checked(
    found: Found,
    args: Args<'_>,
    args_limit: usize,
    session: &mut Session,
    node: Now<'_>,
) -> Result<(u32, &'static Spec), Refusal> {
    let Some((number, spec)) = found else { return Err(unknown(args, session)) };
    let (spec, sub) = select(spec, args)?;
    // A queued request runs without yielding, so each packed id counts as an argument.
    let is_queued = session.transaction.is_some() && spec.has(flag::PACKED);
    let packed_ids = if is_queued { count_packed(args) } else { 0 };
    if args.len() + packed_ids > args_limit {
        return Err(too_many(args_limit));
    }
    if let KeyArgs::Ids(of, ..) = spec.keys
        && args.at(MEMBER).len() > LONG_MEMBER
    {
        check_member(spec, of, args)?;
    }
    if !session.access.free {
        let request = Request { spec, number: bit_of(number, sub), args };
        session.access.check(&node.acl, node.loaded(), &session.client, &request)?;
    }
    if !node.is_loaded() && !spec.has(flag::LOADING) {
        return Err(Refusal::LOADING);
    }
    // EXEC is exempt: its commands were checked when they were queued.
    let listens =
        session.listening && !session.in_exec && session.client.protocol() == Protocol::Resp2;
    if listens && !spec.has(flag::LISTENER) {
        return Err(pubsub::refuse_while_listening(spec));
    }
    if let Some(topology) = &session.topology
        && let Some(engines) = node.loaded()
    {
        gather::check(topology, spec, args, session, node, engines)?;
    }
    Ok((u32::from(number) | sub << 16, spec))
}

/// Returns the error for a request with too many arguments, which could block other clients for too
/// long.
#[cold]
fn too_many(most: usize) -> Refusal {
    refuse!("ERR too many arguments: at most {most} per request (max_request_args)")
}

/// Bounds the work of hashing one member for many ids.
#[cold]
fn check_member(spec: &Spec, of: Of, args: Args<'_>) -> Outcome {
    let length = args.at(MEMBER).len();
    let packed = id_list::packed(spec, args);
    // Also counts the ids within compound entries. Options do not start with a digit.
    let ids_of = |at: usize| match args.at(at) {
        ids if packed == Some(at) => ids.len() / ID_BYTES,
        word if word.first().is_some_and(u8::is_ascii_digit) => word.split(|b| *b == b'/').count(),
        _ => 0,
    };
    let end = among::before(args).len();
    let ids = (first_id(spec, args, MEMBER + 1)..end).map(ids_of).sum::<usize>();
    if matches!(of, Of::Rows | Of::RowsAndPairs) || ids <= 1 || length * ids <= MAX_HASHED_BYTES {
        return Ok(());
    }
    let most = (MAX_HASHED_BYTES / length).max(1);
    Err(refuse!(
        "ERR too many ids: a viewer or member of {length} bytes is allowed with at most {most} ids"
    ))
}

#[cold]
pub(crate) fn note_rejected(found: Found, args: Args<'_>, session: &Session, node: Now<'_>) {
    if let Some((number, spec)) = found {
        let sub = select(spec, args).map_or(0, |(_, sub)| sub);
        node.calls.of(session.worker).rejected(bit_of(number, sub));
    }
}

#[cold]
fn unknown(args: Args<'_>, session: &mut Session) -> Refusal {
    let name = args.at(0);
    // These are the first words of an HTTP request, which a malicious web page may send. The
    // connection closes without a reply, so that the page learns nothing.
    if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
        tracing::warn!(
            "client {} sent HTTP: connection closed (possibly a cross-site attack); find the \
             program at that address",
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
