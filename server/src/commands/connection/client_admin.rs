//! CLIENT subcommands for other clients: LIST, KILL, PAUSE, UNBLOCK.

use crate::commands::call::{Call, answer};
use crate::commands::command::{Command, Group, Run::Once};
use node::acl::User;
use node::command::error::{Refusal, refuse};
use node::command::spec::{ALWAYS, NO_KEYS, Outcome, flag};

use node::roles::failover;
use node::roles::node::Node;
use node::runtime::clients::{Client, ClientKind};
use node::runtime::pause::{By, Paused};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CONNECTION: Group = Group::new("connection", "2.4.0", NO_KEYS);
const ADMIN: u32 = ALWAYS | flag::ADMIN;

#[rustfmt::skip]
pub(crate) const KILL: Command = CONNECTION.row("client|kill", -3, ADMIN,
    "<ip:port|[ID client-id] [TYPE <NORMAL|MASTER|SLAVE|REPLICA|PUBSUB>] [USER username] [ADDR \
     ip:port] [LADDR ip:port] [SKIPME <YES|NO>] [MAXAGE maxage]>", Once(kill),
    "Closes the connections that match all filters, except the current connection unless SKIPME NO \
     is given. Returns the number of closed connections.").linear("connections");

#[rustfmt::skip]
pub(crate) const LIST: Command = CONNECTION.row("client|list", -2, ADMIN,
    "[TYPE <NORMAL|MASTER|REPLICA|PUBSUB>] [ID client-id [client-id ...]]", Once(list),
    "Lists all connections, one per line.")
    .linear("connections").tips(&["nondeterministic_output"]);

#[rustfmt::skip]
pub(crate) const PAUSE: Command =
    CONNECTION.row("client|pause", -3, ADMIN, "timeout [WRITE|ALL]", Once(pause),
        "Pauses all requests for the given number of milliseconds. WRITE pauses only requests that \
         may write. Replies when all earlier writes are in the log.").since("2.9.50");

#[rustfmt::skip]
pub(crate) const UNBLOCK: Command =
    CONNECTION.row("client|unblock", -3, ADMIN, "client-id [TIMEOUT|ERROR]", Once(unblock),
        "Unblocks a client that is blocked in WAIT, WAITAOF, XREAD or XREADGROUP. The blocked \
         command returns as after a timeout, or with an error if ERROR is given. Returns 1, or 0 \
         if the client is not blocked.").since("5.0.0");

#[rustfmt::skip]
pub(crate) const UNPAUSE: Command = CONNECTION.row("client|unpause", 2, ADMIN, "", Once(unpause),
    "Resumes requests that CLIENT PAUSE has paused.").since("6.2.0").linear("connections");

fn kind(name: &[u8]) -> Result<ClientKind, Refusal> {
    let is = |kind: &[u8]| name.eq_ignore_ascii_case(kind);
    if is(b"normal") {
        Ok(ClientKind::Normal)
    } else if is(b"pubsub") {
        Ok(ClientKind::Pubsub)
    } else if is(b"replica") || is(b"slave") {
        Ok(ClientKind::Replica)
    } else if is(b"master") {
        Ok(ClientKind::Master)
    } else {
        Err(refuse!("ERR Unknown client type '{}'", node::command::error::Printable(name)))
    }
}

fn client_id(text: &[u8]) -> Result<u64, Refusal> {
    positive(text).ok_or_else(|| refuse!("ERR Invalid client ID"))
}

/// Parses a client id: a positive signed 64-bit integer, as in Redis.
fn positive(text: &[u8]) -> Option<u64> {
    resp::integer(text).and_then(|id| u64::try_from(id).ok()).filter(|&id| id > 0)
}

fn list(call: &mut Call<'_>) -> Outcome {
    let option = call.args.at(2);
    let mut clients = call.node.clients.list();
    if option.eq_ignore_ascii_case(b"type") && call.args.len() == 4 {
        let kind = kind(call.args.at(3))?;
        clients.retain(|c| c.kind() == kind);
    } else if option.eq_ignore_ascii_case(b"id") && call.args.len() > 3 {
        let ids = call
            .args
            .from(3)
            .iter()
            .map(client_id)
            .collect::<Result<std::collections::HashSet<u64>, _>>()?;
        clients.retain(|c| ids.contains(&c.id));
    } else if call.args.len() > 2 {
        return Err(Refusal::SYNTAX);
    }
    let now = Instant::now();
    let mut out = Vec::new();
    for client in clients {
        client.describe(now, &mut out);
        out.push(b'\n');
    }
    call.reply.text(&String::from_utf8_lossy(&out));
    Ok(())
}

fn kill(call: &mut Call<'_>) -> Outcome {
    let args = call.args.from(2);
    let clients = call.node.clients.list();
    if args.len() == 1 {
        let wanted = String::from_utf8_lossy(args.at(0));
        let Some(client) = clients.iter().find(|c| c.peer.to_string() == wanted) else {
            return Err(refuse!("ERR No such client"));
        };
        end(call, client);
        call.reply.ok();
        return Ok(());
    }
    if !args.len().is_multiple_of(2) {
        return Err(Refusal::SYNTAX);
    }
    let mut skip_me = true;
    type Filter = Box<dyn Fn(&Client) -> bool>;
    let mut filters: Vec<Filter> = Vec::new();
    for at in (0..args.len()).step_by(2) {
        let (option, value) = (args.at(at), args.at(at + 1));
        let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
        let text = String::from_utf8_lossy(value).into_owned();
        if is(b"id") {
            let Some(id) = positive(value) else {
                return Err(refuse!("ERR client-id should be greater than 0"));
            };
            filters.push(Box::new(move |c| c.id == id));
        } else if is(b"type") {
            let kind = kind(value)?;
            filters.push(Box::new(move |c| c.kind() == kind));
        } else if is(b"addr") {
            filters.push(Box::new(move |c| c.peer.to_string() == text));
        } else if is(b"laddr") {
            filters.push(Box::new(move |c| c.local.to_string() == text));
        } else if is(b"user") {
            if call.node.acl.get(&text).is_none() {
                return Err(refuse!(
                    "ERR No such user '{}'",
                    node::command::error::Printable(value)
                ));
            }
            filters.push(Box::new(move |c| c.names.lock().user == text));
        } else if is(b"maxage") {
            let Some(age) = resp::integer(value) else {
                return Err(refuse!("ERR maxage is not an integer or out of range"));
            };
            let Some(age) = u64::try_from(age).ok().filter(|&age| age > 0) else {
                return Err(refuse!("ERR maxage should be greater than 0"));
            };
            filters.push(Box::new(move |c| c.since.elapsed().as_secs() >= age));
        } else if is(b"skipme") && value.eq_ignore_ascii_case(b"yes") {
            skip_me = true;
        } else if is(b"skipme") && value.eq_ignore_ascii_case(b"no") {
            skip_me = false;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    let me = call.session.client.id;
    let mut killed = 0;
    for client in
        clients.iter().filter(|c| !(skip_me && c.id == me) && filters.iter().all(|f| f(c)))
    {
        end(call, client);
        killed += 1;
    }
    call.reply.int(killed);
    Ok(())
}

pub(crate) fn disconnect_named_users(call: &mut Call<'_>, names: &[&str]) {
    for client in call.node.clients.list() {
        let is_theirs = names.contains(&client.names.lock().user.as_str());
        if is_theirs {
            end(call, &client);
        }
    }
}

/// Returns the clients with a subscription that the ACL no longer allows. `before` contains the
/// users as they were before the change. Skips users that have lost no channel permission.
pub(crate) fn denied_listeners(node: &Node, before: &[Arc<User>]) -> Vec<Arc<Client>> {
    let loses = |old: &Arc<User>| {
        let now = node.acl.get(old.name())?;
        now.lacks_channel_rule_of(old).then(|| (old.name().to_owned(), now))
    };
    let lost: HashMap<String, Arc<User>> = before.iter().filter_map(loses).collect();
    if lost.is_empty() {
        return Vec::new();
    }
    let of = |client: &Arc<Client>| {
        Some((client.id, lost.get(&client.names.lock().user)?.clone())).filter(|_| client.listens())
    };
    let listeners: HashMap<u64, Arc<User>> = node.clients.list().iter().filter_map(of).collect();
    if listeners.is_empty() {
        return Vec::new();
    }
    node.channels
        .denied(|id, kind, name| listeners.get(&id).is_none_or(|user| user.may_receive(kind, name)))
}

/// Closes a connection: the caller's own after its reply, any other immediately.
pub(crate) fn end(call: &mut Call<'_>, client: &Arc<Client>) {
    if client.id == call.session.client.id {
        call.session.leaving = true;
    } else {
        client.kill();
    }
}

fn pause(call: &mut Call<'_>) -> Outcome {
    if call.args.len() > 4 {
        return Err(call.wrong_subcommand());
    }
    let kind = match call.args.at(3) {
        _ if call.args.len() == 3 => Paused::All,
        word if word.eq_ignore_ascii_case(b"all") => Paused::All,
        word if word.eq_ignore_ascii_case(b"write") => Paused::Writes,
        _ => return Err(refuse!("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    let timeout = resp::integer(call.args.at(2));
    let Some(timeout) = timeout else {
        return Err(refuse!("ERR timeout is not an integer or out of range"));
    };
    let Ok(timeout) = u64::try_from(timeout) else {
        return Err(refuse!("ERR timeout is negative"));
    };
    let end = Instant::now().checked_add(Duration::from_millis(timeout.min(MAX_PAUSE_MS)));
    let Some(end) = end else {
        call.reply.ok();
        return Ok(());
    };
    call.node.pause.begin(By::Command, kind, end);
    if call.session.in_exec || !call.node.is_loaded() {
        call.reply.ok();
        return Ok(());
    }
    // The reply waits until earlier writes are in the log, so that the log does not grow after the
    // reply.
    let (node, protocol) = (call.node.node().clone(), call.reply.protocol());
    call.answer_when(async move {
        let written = failover::wait_for_all_written(&node, true);
        let _ = tokio::time::timeout_at(end.into(), written).await;
        answer(protocol, |reply| {
            reply.ok();
            Ok(())
        })
    });
    Ok(())
}

/// Maximum duration of a pause: ten years. Larger values could overflow an `Instant`.
const MAX_PAUSE_MS: u64 = 10 * 365 * 86_400_000;

fn unpause(call: &mut Call<'_>) -> Outcome {
    call.node.pause.end(By::Command);
    call.reply.ok();
    Ok(())
}

fn unblock(call: &mut Call<'_>) -> Outcome {
    let reason = call.args.at(3);
    if call.args.len() > 4 {
        return Err(call.wrong_subcommand());
    }
    if call.args.len() == 4
        && !reason.eq_ignore_ascii_case(b"timeout")
        && !reason.eq_ignore_ascii_case(b"error")
    {
        return Err(refuse!("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
    }
    let id = u64::try_from(crate::commands::call::integer(call.args.at(2))?).ok();
    let with_error = reason.eq_ignore_ascii_case(b"error");
    let client = call.node.clients.list().into_iter().find(|client| Some(client.id) == id);
    call.reply
        .int(i64::from(client.is_some_and(|client| client.blocked.unblock_client(with_error))));
    Ok(())
}
