//! The rows of `server/src/handlers/redis/client.rs`.

use super::client_admin;
use super::tracking;
use crate::command::spec::{ALWAYS, NO_KEYS, Spec, flag, help_row, rows_of};

rows_of!("connection", NO_KEYS);

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    spec("ping", -1, flag::FAST | flag::LISTENER, "1.0.0", "[message]", "PONG, or the message."),
    spec("echo", 2, flag::FAST | flag::LOADING | flag::STALE, "1.0.0", "message", "The message."),
    spec("hello", -1, ALWAYS | flag::FAST | flag::NO_AUTH | flag::SKIP_MONITOR, "6.0.0",
        "[protover [AUTH username password] [SETNAME clientname]]",
        "Chooses the protocol and tells what the server is."),
    spec("auth", -2, ALWAYS | flag::FAST | flag::NO_AUTH | flag::SKIP_MONITOR, "1.0.0",
        "[username] password",
        "Logs in, as the user default if no other is named."),
    spec("select", 2, flag::LOADING | flag::STALE | flag::FAST, "1.0.0", "index",
        "OK for database 0, the only one."),
    spec("quit", -1, ALWAYS | flag::FAST | flag::NO_AUTH | flag::AT_ONCE | flag::LISTENER, "1.0.0",
        "", "Closes the connection."),
    spec("reset", 1, ALWAYS | flag::FAST | flag::NO_AUTH | flag::AT_ONCE | flag::LISTENER, "6.2.0",
        "", "Makes the connection as it was at its start."),
    Spec {
        name: "client", arity: -2, flags: 0, keys: NO_KEYS, group: "connection", since: "2.4.0",
        usage: "",
        summary: "A container for commands about connections.", 
        subcommands: CLIENT,
    },
];

#[rustfmt::skip]
pub(crate) const CLIENT: &[Spec] = &[
    spec("client|getname", 2, ALWAYS, "2.6.9", "", "The connection's name."),
    help_row("client|help", "connection", "5.0.0"),
    spec("client|id", 2, ALWAYS, "5.0.0", "", "The connection's number, which no other ever has."),
    spec("client|info", 2, ALWAYS, "6.2.0", "", "What CLIENT LIST says of this connection."),
    client_admin::KILL,
    client_admin::LIST,
    spec("client|no-evict", 3, ALWAYS | flag::ADMIN, "7.0.0", "<ON|OFF>",
        "Noted, and shown by CLIENT LIST."),
    spec("client|no-touch", 3, ALWAYS, "7.2.0", "<ON|OFF>", "Noted, and shown by CLIENT LIST."),
    client_admin::PAUSE,
    spec("client|reply", 3, ALWAYS, "3.2.0", "<ON|OFF|SKIP>",
        "Which commands of this connection are answered."),
    spec("client|setinfo", 4, ALWAYS, "7.2.0", "<LIB-NAME libname|LIB-VER libver>",
        "What library the client uses."),
    spec("client|setname", 3, ALWAYS, "2.6.9", "connection-name", "Names the connection."),
    tracking::TRACKING,
    tracking::TRACKING_INFO,
    tracking::CACHING,
    tracking::GET_REDIRECTION,
    client_admin::UNBLOCK,
    client_admin::UNPAUSE,
];
