//! TM.FORGET: deletes a post's row and all its flags.

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Long};
use crate::commands::schema::spaces::{AnySpace, any_space};
use crate::commands::turn::Answered;
use node::command::spec::{KeyArgs, NO_KEYS, Of, flag};

const FEED: Group = Group::new("feed", "0.1.0", NO_KEYS);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    FEED.row("tm.forget", -3, flag::WRITE | flag::NAMED, "space id [id ...]", Long(forget),
        "Deletes all that is kept of these ids: the row in the counter space, the rows in those \
         counter spaces and all flags in those existence spaces that a view or an action names \
         beside it. A later FEED.ACT counts again, and its counter equals the members whose flags \
         are set. With the name of an existence space only the flags there are unset. Answers how \
         many of the ids had a row, or with an existence space how many are not below the horizon. \
         Each id is forgotten as a whole or, with an error, not at all (max_forgotten of an \
         existence space), and those before it are. What others hold under the id as a member \
         stays: that 7 follows 9 is a flag of 9. And the counters of members (member_counters) \
         stay, as a filter does not list its members: a later FEED.ACT counts again for the \
         member, too. Undo the actions first where these must be right.")
        .keys(KeyArgs::Ids(Of::Kin, 2, 1)).linear("ids"),
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
