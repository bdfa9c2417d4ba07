//! Views and actions, for people: what FEED.GET shows in which order, and what FEED.ACT moves.

use crate::handlers::Handler;
use crate::handlers::call::Call;
use crate::handlers::help::help;
use crate::handlers::schema::spaces::{Value, count, write_maps};
use dataset::engines::View;
use node::command::spec::Outcome;

pub(crate) const RUN: &[(&str, Handler)] = &[
    ("tm.view|help", help),
    ("tm.view|list", views),
    ("tm.view", help),
    ("tm.action|help", help),
    ("tm.action|list", actions),
    ("tm.action", help),
];

fn views(call: &mut Call<'_>) -> Outcome {
    let engines = call.node.engines();
    let views = engines.views().iter().map(|view| {
        let counters = engines.columns(view);
        let flags: Vec<String> = engines.flags(view).map(|space| space.name().to_owned()).collect();
        let then: Vec<&View> = engines.then(view).collect();
        let further =
            then.iter().map(|view| engines.columns(view).len() * 8 + view.flags()).sum::<usize>();
        vec![
            ("name", Value::Text(view.name().to_owned())),
            ("row_bytes", count(counters.len() * 8 + flags.len() + further)),
            ("counters", Value::Texts(counters)),
            ("flags", Value::Texts(flags)),
            ("then", Value::Texts(then.iter().map(|view| view.name().to_owned()).collect())),
        ]
    });
    write_maps(&mut call.reply, &views.collect::<Vec<_>>());
    Ok(())
}

fn actions(call: &mut Call<'_>) -> Outcome {
    let engines = call.node.engines();
    let actions = engines.actions().iter().map(|action| {
        vec![
            ("name", Value::Text(action.name().to_owned())),
            ("flag", Value::Text(engines.flag_of(action).name().to_owned())),
            ("counter", Value::Text(engines.moved_by(action))),
            ("also", Value::Texts(engines.moved_beside(action, false))),
            ("member_counters", Value::Texts(engines.moved_beside(action, true))),
        ]
    });
    write_maps(&mut call.reply, &actions.collect::<Vec<_>>());
    Ok(())
}
