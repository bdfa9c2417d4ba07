//! Connection commands: HELLO, AUTH, CLIENT, PING, SELECT, RESET.

use crate::commands::admin::info;
use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::connection::{client_admin, tracking};
use crate::commands::{pubsub, transaction};
use crate::session::{Replies, Session};
use node::acl::{Access, DEFAULT, Reason};
use node::command::error::{Refusal, refuse};
use node::command::spec::{ALWAYS, NO_KEYS, Outcome, flag};
use node::roles::node::Node;
use node::runtime::clients::{NO_EVICT, NO_TOUCH, Names};
use resp::Protocol;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

const CONNECTION: Group = Group::new("connection", "1.0.0", NO_KEYS);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    CONNECTION.row("ping", -1, flag::FAST | flag::LISTENER, "[message]", Once(ping),
        "Returns PONG, or the message.")
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    CONNECTION.row("echo", 2, flag::FAST | flag::LOADING | flag::STALE, "message", Once(echo),
        "Returns the message."),
    CONNECTION.row("hello", -1, ALWAYS | flag::FAST | flag::NO_AUTH | flag::SKIP_MONITOR,
        "[protover [AUTH username password] [SETNAME clientname]]", Once(hello),
        "Switches the protocol version and returns the properties of the server.").since("6.0.0"),
    CONNECTION.row("auth", -2, ALWAYS | flag::FAST | flag::NO_AUTH | flag::SKIP_MONITOR,
        "[username] password", Once(auth),
        "Authenticates the connection. Without a username, the user is default."),
    CONNECTION.row("select", 2, flag::FAST | flag::LOADING | flag::STALE, "index", Once(select),
        "Returns OK for database 0; no other database exists."),
    CONNECTION.row("quit", -1, ALWAYS | flag::FAST | flag::NO_AUTH | flag::AT_ONCE | flag::LISTENER,
        "", Once(quit),
        "Closes the connection."),
    CONNECTION.row("reset", 1, ALWAYS | flag::FAST | flag::NO_AUTH | flag::AT_ONCE | flag::LISTENER,
        "", Once(reset),
        "Resets the connection to its initial state.").since("6.2.0"),
    CONNECTION.container("client", "A container for commands about connections.", &[
        CONNECTION.row("client|getname", 2, ALWAYS, "", Once(getname),
            "Returns the name of the connection.").since("2.6.9"),
        CONNECTION.help("client|help").since("5.0.0"),
        CONNECTION.row("client|id", 2, ALWAYS, "", Once(id),
            "Returns the id of the connection. Ids are never reused.").since("5.0.0"),
        CONNECTION.row("client|info", 2, ALWAYS, "", Once(info),
            "Returns information about this connection, in \
             the format of CLIENT LIST.").since("6.2.0")
            .tips(&["nondeterministic_output"]),
        client_admin::KILL,
        client_admin::LIST,
        CONNECTION.row("client|no-evict", 3, ALWAYS | flag::ADMIN, "<ON|OFF>", Once(no_evict),
            "Sets a flag that CLIENT LIST shows. The flag has no other effect.").since("7.0.0"),
        CONNECTION.row("client|no-touch", 3, ALWAYS, "<ON|OFF>", Once(no_touch),
            "Sets a flag that CLIENT LIST shows. The flag has no other effect.").since("7.2.0"),
        client_admin::PAUSE,
        CONNECTION.row("client|reply", 3, ALWAYS, "<ON|OFF|SKIP>", Once(reply),
            "Sets whether the server replies to the commands of this connection.").since("3.2.0"),
        CONNECTION.row("client|setinfo", 4, ALWAYS,
            "<LIB-NAME libname|LIB-VER libver>", Once(setinfo),
            "Sets the name or version of the client library.").since("7.2.0"),
        CONNECTION.row("client|setname", 3, ALWAYS, "connection-name", Once(setname),
            "Sets the name of the connection.").since("2.6.9"),
        tracking::TRACKING,
        tracking::TRACKING_INFO,
        tracking::CACHING,
        tracking::GET_REDIRECTION,
        client_admin::UNBLOCK,
        client_admin::UNPAUSE,
    ]).since("2.4.0"),
];

fn ping(call: &mut Call<'_>) -> Outcome {
    // Sentinel treats a master as failed if it answers PING with an error other than LOADING. As in
    // Redis, a node that cannot write therefore answers with an error, unless `ping_fails_with_log`
    // is off.
    if call.node.config().durability.ping_fails_with_log
        && let Some(text) = call.node.durability.refusal()
    {
        return Err(Refusal::new(text.into_bytes()));
    }
    match call.args.len() {
        1 | 2 if call.session.listening && call.reply.protocol() == Protocol::Resp2 => {
            // In RESP2 the reply to a subscriber has the form of a message.
            call.reply.array(2);
            call.reply.bulk(b"pong");
            call.reply.bulk(call.args.at(1));
        }
        1 => call.reply.simple("PONG"),
        2 => call.reply.bulk(call.args.at(1)),
        _ => return Err(call.wrong_arity()),
    }
    Ok(())
}

fn echo(call: &mut Call<'_>) -> Outcome {
    call.reply.bulk(call.args.at(1));
    Ok(())
}

/// Authenticates the connection as this user if the password is correct.
fn log_in(call: &mut Call<'_>, name: &[u8], password: &[u8]) -> Outcome {
    let (node, session) = (call.node, &mut *call.session);
    let Some(user) = node.acl.login(name, password) else {
        node.acl.note(Reason::Auth, call.args.at(0), name, &session.client);
        return Err(Refusal::WRONG_PASS);
    };
    session.client.names.lock().user = user.name().to_owned();
    session.access.enter(&node.acl, Some(user));
    tracking::forget_denied(session, &node);
    Ok(())
}

fn auth(call: &mut Call<'_>) -> Outcome {
    let (name, password) = match call.args.len() {
        2 if call.node.acl.get(DEFAULT).is_some_and(|user| user.has_no_password()) => {
            return Err(refuse!(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?"
            ));
        }
        2 => (DEFAULT.as_bytes(), call.args.at(1)),
        3 => (call.args.at(1), call.args.at(2)),
        _ => return Err(Refusal::SYNTAX),
    };
    log_in(call, name, password)?;
    call.reply.ok();
    Ok(())
}

fn hello(call: &mut Call<'_>) -> Outcome {
    let mut protocol = call.session.client.protocol();
    let (mut name, mut login) = (None, None);
    if call.args.len() > 1 {
        protocol = match resp::integer(call.args.at(1)) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err(refuse!("NOPROTO unsupported protocol version")),
            None => return Err(refuse!("ERR Protocol version is not an integer or out of range")),
        };
    }
    let mut options = call.args.from(2).iter();
    while let Some(option) = options.next() {
        if option.eq_ignore_ascii_case(b"AUTH") && options.len() >= 2 {
            login = Some((options.next().unwrap_or_default(), options.next().unwrap_or_default()));
        } else if option.eq_ignore_ascii_case(b"SETNAME") && options.len() >= 1 {
            name = Some(checked_name(options.next().unwrap_or_default())?);
        } else {
            return Err(refuse!(
                "ERR Syntax error in HELLO option '{}'",
                node::command::error::Printable(option)
            ));
        }
    }
    if let Some((user, password)) = login {
        log_in(call, user, password)?;
    }
    if call.session.access.user.is_none() {
        return Err(refuse!(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO AUTH <user> <pass> option can be used to authenticate the client and select the \
             RESP protocol version at the same time"
        ));
    }
    if let Some(name) = name {
        call.session.client.names.lock().name = name.to_vec();
    }
    call.session.client.set_protocol(protocol);
    call.reply.set_protocol(protocol);
    let mode = info::mode(&call.node).as_bytes();
    let reply = &mut call.reply;
    reply.map(7);
    reply.bulk(b"server");
    reply.bulk(b"redis");
    reply.bulk(b"version");
    reply.bulk(info::REDIS_VERSION.as_bytes());
    reply.bulk(b"proto");
    reply.int(if protocol == Protocol::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.int(i64::try_from(call.session.client.id).unwrap_or(i64::MAX));
    reply.bulk(b"mode");
    reply.bulk(mode);
    reply.bulk(b"role");
    reply.bulk(if call.node.replication.is_master() { b"master" } else { b"replica" });
    reply.bulk(b"modules");
    crate::commands::cluster::topology::write_modules(reply);
    Ok(())
}

fn select(call: &mut Call<'_>) -> Outcome {
    match resp::integer(call.args.at(1)) {
        Some(0) => {
            call.reply.ok();
            Ok(())
        }
        Some(index) if i32::try_from(index).is_err() => {
            Err(refuse!("ERR value is out of range, value must between -2147483648 and 2147483647"))
        }
        Some(_) => Err(refuse!("ERR DB index is out of range")),
        None => Err(Refusal::NOT_AN_INTEGER),
    }
}

fn quit(call: &mut Call<'_>) -> Outcome {
    call.session.leaving = true;
    call.reply.ok();
    Ok(())
}

/// Removes the state that the node stores for a connection. Called by RESET and when the connection
/// closes.
pub(crate) fn forget(session: &mut Session, node: &Node) {
    transaction::forget(session, node);
    pubsub::forget(session, node);
    tracking::forget(session, node);
    if std::mem::take(&mut session.monitoring) {
        node.monitors.remove(&session.client);
    }
}

fn reset(call: &mut Call<'_>) -> Outcome {
    let listened = call.session.client.listens();
    forget(call.session, &call.node);
    let client = &call.session.client;
    if listened {
        // Deliver the pending messages, because their publishers have counted this client as a
        // receiver.
        client.inbox.take(call.reply.bytes(), None);
    }
    client.set_protocol(Protocol::Resp2);
    {
        let mut names = client.names.lock();
        names.name.clear();
        names.user = DEFAULT.to_owned();
    }
    client.flags.store(0, Relaxed);
    (call.session.reads_replica, call.session.wrote_to_other_nodes) = (false, false);
    call.session.access = Access::new(&call.node.acl, call.node.settings.version());
    call.session.replies = Replies::On;
    call.reply.set_protocol(Protocol::Resp2);
    call.reply.simple("RESET");
    Ok(())
}

fn id(call: &mut Call<'_>) -> Outcome {
    call.reply.int(i64::try_from(call.session.client.id).unwrap_or(i64::MAX));
    Ok(())
}

fn getname(call: &mut Call<'_>) -> Outcome {
    let names = call.session.client.names.lock();
    if names.name.is_empty() {
        call.reply.null()
    } else {
        call.reply.bulk(&names.name)
    }
    Ok(())
}

const MAX_NAME: usize = 256;

/// Returns whether a name consists of printable ASCII characters other than spaces. Names appear in
/// the space-separated lines of CLIENT LIST.
fn is_plain(name: &[u8]) -> bool {
    name.iter().all(|b| (b'!'..=b'~').contains(b))
}

fn checked_name(name: &[u8]) -> Result<&[u8], Refusal> {
    if !is_plain(name) {
        return Err(refuse!(
            "ERR Client names cannot contain spaces, newlines or special characters."
        ));
    }
    if name.len() > MAX_NAME {
        return Err(refuse!("ERR Client names cannot be longer than {MAX_NAME} bytes"));
    }
    Ok(name)
}

fn setname(call: &mut Call<'_>) -> Outcome {
    let name = checked_name(call.args.at(2))?;
    call.session.client.names.lock().name = name.to_vec();
    call.reply.ok();
    Ok(())
}

fn setinfo(call: &mut Call<'_>) -> Outcome {
    let (option, value) = (call.args.at(2), call.args.at(3));
    type Pick = fn(&mut Names) -> &mut Vec<u8>;
    let (what, pick): (&str, Pick) = if option.eq_ignore_ascii_case(b"lib-name") {
        ("lib-name", |names| &mut names.lib_name)
    } else if option.eq_ignore_ascii_case(b"lib-ver") {
        ("lib-ver", |names| &mut names.lib_version)
    } else {
        return Err(refuse!(
            "ERR Unrecognized option '{}'",
            node::command::error::Printable(option)
        ));
    };
    if !is_plain(value) || value.len() > MAX_NAME {
        return Err(refuse!("ERR {what} cannot contain spaces, newlines or special characters."));
    }
    *pick(&mut call.session.client.names.lock()) = value.to_vec();
    call.reply.ok();
    Ok(())
}

fn set_flag(call: &mut Call<'_>, bit: u32) -> Outcome {
    let flags = &call.session.client.flags;
    if call.args.at(2).eq_ignore_ascii_case(b"on") {
        flags.fetch_or(bit, Relaxed);
    } else if call.args.at(2).eq_ignore_ascii_case(b"off") {
        flags.fetch_and(!bit, Relaxed);
    } else {
        return Err(Refusal::SYNTAX);
    }
    call.reply.ok();
    Ok(())
}

fn no_evict(call: &mut Call<'_>) -> Outcome {
    set_flag(call, NO_EVICT)
}

fn no_touch(call: &mut Call<'_>) -> Outcome {
    set_flag(call, NO_TOUCH)
}

fn reply(call: &mut Call<'_>) -> Outcome {
    let mode = call.args.at(2);
    if mode.eq_ignore_ascii_case(b"on") {
        call.session.replies = Replies::On;
        call.reply.ok();
    } else if mode.eq_ignore_ascii_case(b"off") {
        call.session.replies = Replies::Off;
    } else if mode.eq_ignore_ascii_case(b"skip") {
        // With replies off, SKIP has no effect.
        if call.session.replies != Replies::Off {
            call.session.replies = Replies::SkipNext;
        }
    } else {
        return Err(Refusal::SYNTAX);
    }
    Ok(())
}

fn info(call: &mut Call<'_>) -> Outcome {
    let mut line = Vec::new();
    call.session.client.describe(Instant::now(), &mut line);
    line.push(b'\n');
    call.reply.text(&String::from_utf8_lossy(&line));
    Ok(())
}
