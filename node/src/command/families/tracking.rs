//! The rows of `server/src/handlers/redis/tracking.rs`.

use crate::command::spec::{ALWAYS, NO_KEYS, Spec, rows_of};

rows_of!("connection", NO_KEYS);

#[rustfmt::skip]
pub(crate) const TRACKING: Spec = spec("client|tracking", -3, ALWAYS, "6.0.0",
    "<ON|OFF> [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] [OPTIN] [OPTOUT] \
     [NOLOOP]",
    "ON: from now on the client is told when something that it has read changes: the keys as it \
     named them, the ids of FEED.GET, CNT.GET and PH.EXISTS as they are. In RESP3 as a push on \
     this connection; with REDIRECT by the channel __redis__:invalidate of another. BCAST tells of \
     all changed keys with one of the prefixes, also those that it has not read; a changed id is \
     told under the names of its row, its cells, its pairs, and its own.");

pub(crate) const TRACKING_INFO: Spec = spec(
    "client|trackinginfo",
    2,
    ALWAYS,
    "6.2.0",
    "",
    "What CLIENT TRACKING has set for this connection.",
);

pub(crate) const CACHING: Spec = spec(
    "client|caching",
    3,
    ALWAYS,
    "6.0.0",
    "<YES|NO>",
    "Whether the keys of the next command, or transaction, are tracked: YES with OPTIN, NO with \
     OPTOUT.",
);

pub(crate) const GET_REDIRECTION: Spec = spec(
    "client|getredir",
    2,
    ALWAYS,
    "6.0.0",
    "",
    "The client that gets the invalidations of this one; 0 if it gets them itself, -1 if it does \
     not track.",
);
