//! Whether a request may be executed now, by this client.

use crate::commands::cluster::gather;
use crate::commands::pubsub;
use crate::commands::run::select;
use crate::session::Session;
use node::acl::Request;
use node::command::error::{Refusal, refuse};
use node::command::spec::{KeyArgs, MEMBER, Of, Outcome, Spec, flag};
use node::command::table::{Found, bit_of};
use node::roles::node::Now;
use resp::{Args, Protocol};

/// A viewer or member of more bytes, times its ids, may have so many: promise 9.
const LONG_MEMBER: usize = 1 << 10;

const MOST_HASHED: usize = 4 << 20;

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
        gather::check(topology, spec, args, session, node, engines)?;
    }
    Ok((u32::from(number) | sub << 16, spec))
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
