//! Views and actions, for people: what FEED.GET shows in which order, and what FEED.ACT moves. They
//! are made by the configuration.

use crate::command::spec::{Outcome, Spec, flag, help, help_row};
use crate::handlers::call::Call;
use crate::handlers::schema::spaces::{Value, count, spec, write_maps};

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    Spec {
        subcommands: &[
            help_row("tm.view|help", "schema", "0.1.0"),
            spec("tm.view|list", 2, flag::STALE, "",
                "All views, a map each: their counters and flags in the order of FEED.GET's rows, \
                 and the bytes of a row with BINARY.",
                views),
        ],
        ..spec("tm.view", -2, 0, "", "A container for commands about views.", help)
    },
    Spec {
        subcommands: &[
            help_row("tm.action|help", "schema", "0.1.0"),
            spec("tm.action|list", 2, flag::STALE, "",
                "All actions, a map each: the flag and the counter that FEED.ACT moves.", actions),
        ],
        ..spec("tm.action", -2, 0, "", "A container for commands about actions.", help)
    },
];

fn views(call: &mut Call<'_>) -> Outcome {
    let engines = &call.node.engines;
    let views = engines.views().iter().map(|view| {
        let counters = engines.columns(view);
        let flags: Vec<String> = engines.flags(view).map(|space| space.name().to_owned()).collect();
        vec![
            ("name", Value::Text(view.name().to_owned())),
            ("row_bytes", count(counters.len() * 8 + flags.len())),
            ("counters", Value::Texts(counters)),
            ("flags", Value::Texts(flags)),
        ]
    });
    write_maps(&mut call.reply, &views.collect::<Vec<_>>());
    Ok(())
}

fn actions(call: &mut Call<'_>) -> Outcome {
    let engines = &call.node.engines;
    let actions = engines.actions().iter().map(|action| {
        vec![
            ("name", Value::Text(action.name().to_owned())),
            ("flag", Value::Text(engines.flag_of(action).name().to_owned())),
            ("counter", Value::Text(engines.moved_by(action))),
        ]
    });
    write_maps(&mut call.reply, &actions.collect::<Vec<_>>());
    Ok(())
}
