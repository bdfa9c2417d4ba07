//! TM.VIEW and TM.ACTION: the columns of FEED.GET and the effects of FEED.ACT.

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::schema::changes;
use crate::commands::schema::spaces::{Value, count, write_maps};
use dataset::engines::View;
use node::command::spec::{NO_KEYS, Outcome, flag};

const SCHEMA: Group = Group::new("schema", "0.1.0", NO_KEYS);
const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    SCHEMA.container("tm.view", "A container for commands about views.", &[
        SCHEMA.row("tm.view|create", -5, ADMIN | flag::WRITE | flag::NO_MULTI | flag::NAMED,
            "view [REPLACE] option value [option value ...]", Once(changes::create_view),
            "Creates a view, which all connections can use immediately. The options are the keys \
             of [[view]] in the configuration: counters, flags and then, each a list separated by \
             spaces. REPLACE atomically replaces a view of the same name."),
        SCHEMA.row("tm.view|drop", 3, ADMIN | flag::WRITE | flag::NO_MULTI | flag::NAMED,
            "view", Once(changes::drop_view),
            "Deletes a view. The data in its spaces is kept."),
        SCHEMA.help("tm.view|help"),
        SCHEMA.row("tm.view|list", 2, flag::STALE, "", Once(views),
            "Returns a map for each view: the size in bytes of a row with BINARY, the counters and \
             flags in the order in which FEED.GET returns them, and the joined views (then)."),
    ]),
    SCHEMA.container("tm.action", "A container for commands about actions.", &[
        SCHEMA.row("tm.action|create", -5, ADMIN | flag::WRITE | flag::NO_MULTI | flag::NAMED,
            "action [REPLACE] option value [option value ...]", Once(changes::create_action),
            "Creates an action, which all connections can use immediately. The options are the \
             keys of [[action]] in the configuration: flag, counter (as space.field), and the \
             lists also and member_counters of further counters. REPLACE atomically replaces an \
             action of the same name; flags and counters keep their values."),
        SCHEMA.row("tm.action|drop", 3, ADMIN | flag::WRITE | flag::NO_MULTI | flag::NAMED,
            "action", Once(changes::drop_action),
            "Deletes an action. Flags and counters keep their values."),
        SCHEMA.help("tm.action|help"),
        SCHEMA.row("tm.action|list", 2, flag::STALE, "", Once(actions),
            "Returns a map for each action: its flag and counter, and the further counters of the \
             id (also) and of the member (member_counters)."),
    ]),
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
            ("counter", Value::Text(engines.first_counter_name(action))),
            ("also", Value::Texts(engines.further_counter_names(action, false))),
            ("member_counters", Value::Texts(engines.further_counter_names(action, true))),
        ]
    });
    write_maps(&mut call.reply, &actions.collect::<Vec<_>>());
    Ok(())
}
