//! A post goes, with all that was said of it.

use crate::handlers::Handler;
use crate::handlers::call::Call;
use crate::handlers::schema::spaces::{AnySpace, any_space};
use node::command::spec::Outcome;

pub(crate) const RUN: &[(&str, Handler)] = &[("tm.forget", forget)];

fn forget(call: &mut Call<'_>) -> Outcome {
    let engines = call.node.engines();
    let space = any_space(engines, call.args.at(1))?;
    call.ids_from(2)?;
    let mut forgotten = 0;
    for &id in &call.scratch.ids {
        forgotten += usize::from(match space {
            AnySpace::Counter(space) => engines.forget(space, id)?,
            AnySpace::Existence(space) => engines.forget_flags(space, id)?,
        });
    }
    call.reply.count(forgotten);
    Ok(())
}
