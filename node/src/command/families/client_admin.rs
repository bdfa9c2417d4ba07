//! The rows of `server/src/handlers/redis/client_admin.rs`.

use crate::command::spec::{ALWAYS, NO_KEYS, Spec, flag, rows_of};

rows_of!("connection", NO_KEYS);

pub(crate) const KILL: Spec = spec(
    "client|kill",
    -3,
    ALWAYS | flag::ADMIN,
    "2.4.0",
    "<ip:port|[ID client-id] [TYPE <NORMAL|MASTER|SLAVE|REPLICA|PUBSUB>] [USER username] [ADDR \
     ip:port] [LADDR ip:port] [SKIPME <YES|NO>] [MAXAGE maxage]>",
    "Closes the connections for which all filters hold; answers how many. Its own only with SKIPME \
     NO.",
);

pub(crate) const LIST: Spec = spec(
    "client|list",
    -2,
    ALWAYS | flag::ADMIN,
    "2.4.0",
    "[TYPE <NORMAL|MASTER|REPLICA|PUBSUB>] [ID client-id [client-id ...]]",
    "All connections, one per line.",
);

pub(crate) const PAUSE: Spec = spec(
    "client|pause",
    -3,
    ALWAYS | flag::ADMIN,
    "2.9.50",
    "timeout [WRITE|ALL]",
    "For so many milliseconds requests wait unanswered: all, or those that may change something. \
     Answers when all writes before it are in the log.",
);

pub(crate) const UNPAUSE: Spec =
    spec("client|unpause", 2, ALWAYS | flag::ADMIN, "6.2.0", "", "Ends CLIENT PAUSE.");

pub(crate) const UNBLOCK: Spec = spec(
    "client|unblock",
    -3,
    ALWAYS | flag::ADMIN,
    "5.0.0",
    "client-id [TIMEOUT|ERROR]",
    "Ends a client's WAIT or WAITAOF, as if its time were over, or with an error: 1; or 0 if it \
     does not wait.",
);
