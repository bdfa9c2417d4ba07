//! A post goes, with all that was said of it.

use crate::handlers::LongHandler;
use crate::handlers::call::Call;
use crate::handlers::items::Answered;
use crate::handlers::schema::spaces::{AnySpace, any_space};

pub(crate) const LONG: &[(&str, LongHandler)] = &[("tm.forget", forget)];

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
