//! The row of `server/src/handlers/feed/forget.rs`.

use crate::command::spec::{KeyArgs, Of, Spec, flag};

pub(crate) const TABLE: &[Spec] = &[Spec {
    name: "tm.forget",
    arity: -3,
    flags: flag::NAMED | flag::WRITE,
    keys: KeyArgs::Ids(Of::Kin, 2, 1),
    group: "feed",
    since: "0.1.0",
    usage: "space id [id ...]",
    summary: "Deletes all that is kept of these ids: the row in the counter space, the rows in \
              those counter spaces and all flags in those existence spaces that a view or an \
              action names beside it. A later FEED.ACT counts again, and its counter equals the \
              members whose flags are set. With the name of an existence space only the flags \
              there are unset. Answers how many of the ids had a row, or with an existence space \
              how many are not below the horizon. Each id is forgotten as a whole or, with an \
              error, not at all (max_forgotten of an existence space), and those before it are. \
              What others hold under the id as a member stays: that 7 follows 9 is a flag of 9. \
              And the counters of members (member_counters) stay, as a filter does not list its \
              members: a later FEED.ACT counts again for the member, too. Undo the actions first \
              where these must be right.",
    subcommands: &[],
}];
