//! CLIENT TRACKING and related commands, and the functions called before and after each command.
//! The tables of tracked keys are in `node::runtime::tracking`.

use crate::commands::call::{Call, integer};
use crate::commands::command::{Command, Group, Run::Once};
use crate::session::Session;
use crate::session::tracked::{Tracked, bytes_of};
use node::command::error::{Refusal, refuse};
use node::command::footprint::{Footprint, TouchedObject};
use node::command::id_list;
use node::command::spec::{ALWAYS, NO_KEYS, Outcome, Spec};
use node::command::table::Found;
use node::roles::node::{Node, Now};
use node::runtime::clients::{BROKEN_REDIRECT, Client};
use node::runtime::tracking::{MAX_PREFIX, Options, Overlap, Spaces, find_overlap};
use resp::Args;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const CONNECTION: Group = Group::new("connection", "6.0.0", NO_KEYS);

#[rustfmt::skip]
pub(crate) const TRACKING: Command = CONNECTION.row("client|tracking", -3, ALWAYS,
    "<ON|OFF> [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] [OPTIN] [OPTOUT] \
     [NOLOOP]", Once(tracking),
    "Enables or disables invalidation messages for data that this client has read. The messages \
     contain the keys that the client used, and plain ids for FEED.GET, CNT.GET and PH.EXISTS. \
     With RESP3 the server sends them as push messages on this connection. REDIRECT sends them to \
     another client instead, through the channel __redis__:invalidate. BCAST reports all changed \
     keys with one of the prefixes, whether or not the client has read them. It reports a changed \
     id as the keys of its row, counters and pairs, and as the plain id.");

#[rustfmt::skip]
pub(crate) const TRACKING_INFO: Command =
    CONNECTION.row("client|trackinginfo", 2, ALWAYS, "", Once(tracking_info),
        "Returns the CLIENT TRACKING settings of this connection.").since("6.2.0");

#[rustfmt::skip]
pub(crate) const CACHING: Command =
    CONNECTION.row("client|caching", 3, ALWAYS, "<YES|NO>", Once(caching),
        "Sets whether the keys of the next command or transaction are tracked: YES with OPTIN, NO \
         with OPTOUT.");

#[rustfmt::skip]
pub(crate) const GET_REDIRECTION: Command =
    CONNECTION.row("client|getredir", 2, ALWAYS, "", Once(get_redirection),
        "Returns the id of the client that receives the invalidation messages of this connection. \
         Returns 0 if they are not redirected, and -1 if tracking is off.");

/// Returns whether a user may receive invalidations for all keys with this prefix.
fn may_receive(user: Option<&node::acl::User>, prefix: &[u8]) -> bool {
    user.is_some_and(|user| user.reads_all_with(prefix))
}

fn tracking(call: &mut Call<'_>) -> Outcome {
    let (mut options, mut redirect, mut prefixes) = (Options::default(), 0, Vec::new());
    let mut args = call.args.from(3).iter();
    while let Some(option) = args.next() {
        let is = |word: &[u8]| option.eq_ignore_ascii_case(word);
        if is(b"redirect") && args.len() > 0 {
            if redirect != 0 {
                return Err(refuse!("ERR A client can only redirect to a single other client"));
            }
            redirect = integer(args.next().unwrap_or_default())?;
            let id = u64::try_from(redirect).unwrap_or(0);
            let Some(target) = call.node.clients.get(id) else {
                return Err(refuse!("ERR The client ID you want redirect to does not exist"));
            };
            options.redirect = Some((id, Arc::downgrade(&target)));
        } else if is(b"bcast") {
            options.broadcast = true;
        } else if is(b"optin") {
            options.opt_in = true;
        } else if is(b"optout") {
            options.opt_out = true;
        } else if is(b"noloop") {
            options.no_loop = true;
        } else if is(b"prefix") && args.len() > 0 {
            prefixes.push(args.next().unwrap_or_default());
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    if call.args.at(2).eq_ignore_ascii_case(b"on") {
        start(call, options, prefixes)?;
    } else if call.args.at(2).eq_ignore_ascii_case(b"off") {
        forget(call.session, &call.node);
    } else {
        return Err(Refusal::SYNTAX);
    }
    call.reply.ok();
    Ok(())
}

/// Checks that the options are consistent with each other and with the current mode.
fn check(options: &Options, prefixes: &[&[u8]], before: Option<&Tracked>) -> Outcome {
    if !options.broadcast && !prefixes.is_empty() {
        return Err(refuse!("ERR PREFIX option requires BCAST mode to be enabled"));
    }
    let old = before.map(|tracked| &tracked.tracker.options);
    if old.is_some_and(|old| old.broadcast != options.broadcast) {
        return Err(refuse!(
            "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and \
             then re-enabling it with a different mode."
        ));
    }
    if options.broadcast && (options.opt_in || options.opt_out) {
        return Err(refuse!("ERR OPTIN and OPTOUT are not compatible with BCAST"));
    }
    if options.opt_in && options.opt_out {
        return Err(refuse!("ERR You can't specify both OPTIN mode and OPTOUT mode"));
    }
    if old.is_some_and(|old| options.opt_in && old.opt_out || options.opt_out && old.opt_in) {
        return Err(refuse!(
            "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and \
             then re-enabling it with a different mode."
        ));
    }
    Ok(())
}

fn start(call: &mut Call<'_>, options: Options, mut prefixes: Vec<&[u8]>) -> Outcome {
    let (node, session) = (call.node, &mut *call.session);
    check(&options, &prefixes, session.tracking.as_deref())?;
    let mut own = session.tracking.as_ref().map(|tracked| tracked.prefixes.clone());
    let own = own.get_or_insert_default();
    if options.broadcast {
        let most = node.config().server.max_subscriptions;
        if own.len() + prefixes.len() > most {
            return Err(refuse!(
                "ERR too many prefixes: at most {most} per client (max_subscriptions)"
            ));
        }
        if prefixes.iter().any(|prefix| prefix.len() > MAX_PREFIX) {
            return Err(refuse!("ERR prefix too long: at most {MAX_PREFIX} bytes"));
        }
        if let Some(overlap) = find_overlap(own, &prefixes) {
            let shown = node::command::error::Printable;
            return Err(match overlap {
                Overlap::Existing(prefix, other) => refuse!(
                    "ERR Prefix '{}' overlaps with an existing prefix '{}'. Prefixes for a single \
                     client must not overlap.",
                    shown(prefix),
                    shown(other)
                ),
                Overlap::Provided(prefix, other) => refuse!(
                    "ERR Prefix '{}' overlaps with another provided prefix '{}'. Prefixes for a \
                     single client must not overlap.",
                    shown(prefix),
                    shown(other)
                ),
            });
        }
        if prefixes.is_empty() {
            prefixes.push(b"");
        }
        let user = session.access.user.as_deref();
        if !session.access.free && !prefixes.iter().all(|prefix| may_receive(user, prefix)) {
            return Err(refuse!(
                "NOPERM this user has no permissions to access all keys with the prefixes used as \
                 arguments"
            ));
        }
        own.extend(prefixes.iter().map(|prefix| Box::from(*prefix)));
        let most_bytes = node.config().server.max_subscription_bytes;
        if bytes_of(own) > most_bytes {
            return Err(refuse!(
                "ERR the prefixes of a client are limited to {most_bytes} bytes \
                 (max_subscriptions_memory)"
            ));
        }
    }
    let (broadcast, own) = (options.broadcast, std::mem::take(own));
    let (before, engines) = (session.tracking.take(), node.loaded());
    let before_it = before.as_ref().map(|tracked| &*tracked.tracker);
    let tracker = node.tracking.start(&session.client, options, &prefixes, before_it, engines);
    // Wait for writes in progress, which may not have seen the new tracker. EXEC already excludes
    // writers.
    if let Some(engines) = engines.filter(|_| !session.in_exec) {
        engines.wait_for_writers();
    }
    session.tracks_reads = !broadcast;
    session.tracking = Some(Box::new(Tracked { tracker, prefixes: own, caching: false }));
    session.update_stored_bytes();
    Ok(())
}

/// Turns tracking off. Called by CLIENT TRACKING OFF and RESET, and when the connection closes.
pub(crate) fn forget(session: &mut Session, node: &Node) {
    if let Some(tracked) = session.tracking.take() {
        node.tracking.stop(&tracked.tracker, &tracked.prefixes);
        session.update_stored_bytes();
    }
    session.tracks_reads = false;
}

/// Turns tracking off if the newly authenticated user has no permission for the tracked prefixes.
pub(crate) fn forget_denied(session: &mut Session, node: &Node) {
    let user = session.access.user.as_deref();
    let is_denied = session
        .tracking
        .as_ref()
        .is_some_and(|tracked| tracked.prefixes.iter().any(|prefix| !may_receive(user, prefix)));
    if is_denied {
        forget(session, node);
    }
}

/// Closes the connections whose users no longer have permission for the tracked prefixes.
pub(crate) fn end_denied(node: &Node) {
    let may = |client: &Client, prefix: &[u8]| {
        let user = client.names.lock().user.clone();
        may_receive(node.acl.get(&user).as_deref(), prefix)
    };
    node.tracking.end_denied(may);
}

fn caching(call: &mut Call<'_>) -> Outcome {
    let Some(tracked) = &mut call.session.tracking else {
        return Err(refuse!(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN \
             or OPTOUT mode enabled"
        ));
    };
    let (options, answer) = (&tracked.tracker.options, call.args.at(2));
    if answer.eq_ignore_ascii_case(b"yes") {
        if !options.opt_in {
            return Err(refuse!(
                "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode."
            ));
        }
    } else if answer.eq_ignore_ascii_case(b"no") {
        if !options.opt_out {
            return Err(refuse!(
                "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode."
            ));
        }
    } else {
        return Err(Refusal::SYNTAX);
    }
    tracked.caching = true;
    call.reply.ok();
    Ok(())
}

fn get_redirection(call: &mut Call<'_>) -> Outcome {
    call.reply.int(call.session.client.redirect.load(Relaxed));
    Ok(())
}

fn tracking_info(call: &mut Call<'_>) -> Outcome {
    let (session, reply) = (&*call.session, &mut call.reply);
    let tracked = session.tracking.as_deref();
    let options = tracked.map(|tracked| tracked.tracker.options.clone()).unwrap_or_default();
    let caching = tracked.is_some_and(|tracked| tracked.caching);
    let is_broken = session.client.flags.load(Relaxed) & BROKEN_REDIRECT != 0;
    let words = [
        (if tracked.is_some() { "on" } else { "off" }, true),
        ("bcast", options.broadcast),
        ("optin", options.opt_in),
        ("caching-yes", options.opt_in && caching),
        ("optout", options.opt_out),
        ("caching-no", options.opt_out && caching),
        ("noloop", options.no_loop),
        ("broken_redirect", is_broken),
    ];
    let words: Vec<&str> = words.iter().filter(|(_, is)| *is).map(|(word, _)| *word).collect();
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(words.len());
    words.iter().for_each(|word| reply.bulk(word.as_bytes()));
    reply.bulk(b"redirect");
    reply.int(session.client.redirect.load(Relaxed));
    reply.bulk(b"prefixes");
    let none = BTreeSet::new();
    let prefixes = tracked.map_or(&none, |tracked| &tracked.prefixes);
    reply.array(prefixes.len());
    prefixes.iter().for_each(|prefix| reply.bulk(prefix));
    Ok(())
}

#[cold]
pub(crate) fn begin(session: &Session, node: &Node) {
    let tracker = session.tracking.as_ref().map(|tracked| &*tracked.tracker);
    node.tracking.begin(Some(&session.client), tracker);
}

#[cold]
pub(crate) fn end(found: Found, session: &mut Session, node: Now<'_>) {
    // A client receives the invalidations caused by its own changes after the reply.
    session.messages_due |= node.tracking.end(node.loaded());
    let is_client = found.is_some_and(|(_, spec)| spec.name == "client");
    if session.transaction.is_none() && !is_client {
        end_caching(session);
    }
}

pub(crate) fn end_caching(session: &mut Session) {
    if let Some(tracked) = &mut session.tracking {
        tracked.caching = false;
    }
}

/// Records the keys that a command is about to read, for a tracking client.
#[cold]
pub(crate) fn remember(spec: &Spec, args: Args<'_>, session: &Session, node: Now<'_>) {
    let (Some(tracked), Some(engines)) = (session.tracking.as_deref(), node.loaded()) else {
        return;
    };
    let tracker = &*tracked.tracker;
    let options = &tracker.options;
    if options.opt_in && !tracked.caching || options.opt_out && tracked.caching {
        return;
    }
    // A key outside all spaces is not recorded, because it never changes.
    let packed = id_list::packed(spec, args);
    let footprint = Footprint::new(spec, args, engines);
    let mut remember = |at, touch: TouchedObject<'_>| {
        let spaces = match touch {
            TouchedObject::Row(space, _) => Spaces::from_slice(&[space.number()]),
            TouchedObject::Pair(space, ..) => Spaces::from_slice(&[space.number()]),
            TouchedObject::Shown(view, ..) => {
                let rows = engines.sources(view).map(|space| space.number());
                rows.chain(engines.flags(view).map(|space| space.number())).collect()
            }
        };
        let text = (packed == Some(at)).then(|| touch.id().to_string());
        let key = text.as_deref().map_or(args.at(at), str::as_bytes);
        node.tracking.remember(tracker, touch.id(), key, &spaces);
    };
    footprint.each(&mut remember);
    footprint.among().into_iter().for_each(|among| among.each(&mut remember));
}
