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
         of the same ids in all spaces that share a view or an action with this space. Afterwards \
         FEED.ACT counts again, so that the counter stays equal to the number of set flags. If the \
         space is an existence space, the command unsets only the flags in that space. Returns the \
         number of ids that had a row. For an existence space, returns the number of ids that are \
         not below the horizon. Each id is deleted atomically. If an id fails, for example at the \
         limit max_forgotten of an existence space, the ids before it stay deleted. Flags whose \
         member is a given id are not deleted: if user 7 follows user 9, that flag belongs to id \
         9. Counters of members (member_counters) do not change either, because a filter cannot \
         list the members of an id; a later FEED.ACT increments them again. If these counters must \
         be exact, undo the actions first.")
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
