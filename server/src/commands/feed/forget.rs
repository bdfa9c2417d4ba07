//! TM.FORGET: deletes a post's row and all its flags.

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Long};
use crate::commands::schema::spaces::{AnySpace, any_space};
use crate::commands::turn::Answered;
use node::command::spec::{IdTarget, KeyArgs, NO_KEYS, flag};

const FEED: Group = Group::new("feed", "0.1.0", NO_KEYS);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    FEED.row("tm.forget", -3, flag::WRITE | flag::NAMED, "space id [id ...]", Long(forget),
        "Deletes all data of the given ids: the row in the counter space, and the rows and flags \
         of the same ids in the spaces that views and actions use together with it. A later \
         FEED.ACT counts again, so the counter equals the number of set flags. With the name of \
         an existence space, unsets only the flags of that space. Returns the number of ids that \
         had a row, or with an existence space the number of ids not below the horizon. Each id \
         is deleted completely or, with an error, not at all (max_forgotten of an existence \
         space); the ids before a failed one stay deleted. Flags whose member is the id stay: \
         that 7 follows 9 is a flag of 9. Counters of members (member_counters) stay too, because \
         a filter cannot list its members; a later FEED.ACT counts again for the member. If these \
         counters must be exact, undo the actions first.")
        .keys(KeyArgs::Ids(IdTarget::RowsAndPairs, 2, 1)).linear("ids"),
];

fn forget(call: &mut Call<'_>) -> Answered {
    let engines = call.node.engines();
    let space = any_space(engines, call.args.at(1))?;
    call.read_ids(2)?;
    call.count_each(call.args.len() - 2, |call, item| {
        let id = call.scratch.ids[item];
        Ok(match space {
            AnySpace::Counter(space) => engines.forget(space, id)?,
            AnySpace::Existence(space) => engines.forget_flags(space, id)?,
        })
    })
}
