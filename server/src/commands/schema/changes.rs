//! Changes to spaces, views and actions at run time.
//!
//! A change runs on another thread, because allocating memory for tables may take long. The reply
//! waits until the change is durable in the log. Inside EXEC the change runs on the worker.

use crate::commands::call::Call;
use dataset::catalogue::{Catalogue, EditError};
use dataset::tiering::forget_dropped;
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::Outcome;
use node::roles::node::Node;
use std::sync::Arc;
use std::time::Duration;
use store::time;

const MAX_OPTION_ARGS: usize = 256;
/// Maximum length of an argument in bytes. Any declaration then fits into one log batch.
const MAX_OPTION_ARG_BYTES: usize = 2048;
/// Maximum number of arguments of a change that the server's log shows.
const SHOWN_WORDS: usize = 16;
/// Maximum time that DROP waits for other users of the space. If they take longer, the last user
/// frees the memory of the space.
const DROPPED_WITHIN: Duration = Duration::from_secs(10);

fn text(call: &Call<'_>, index: usize) -> Result<String, Refusal> {
    let bytes = call.args.at(index);
    if bytes.len() > MAX_OPTION_ARG_BYTES {
        return Err(refuse!("ERR name or option too long: at most {MAX_OPTION_ARG_BYTES} bytes"));
    }
    let text = str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|_| refuse!("ERR '{}' is not valid UTF-8", Printable(bytes)))
}

pub(crate) fn pairs(call: &Call<'_>, first: usize) -> Result<Vec<(String, String)>, Refusal> {
    let words = call.args.len() - first;
    if !words.is_multiple_of(2) {
        return Err(call.wrong_arity());
    }
    if words > MAX_OPTION_ARGS {
        return Err(refuse!("ERR too many options: at most {}", MAX_OPTION_ARGS / 2));
    }
    let pair = |at: usize| Ok((text(call, at)?.to_ascii_lowercase(), text(call, at + 1)?));
    (first..call.args.len()).step_by(2).map(pair).collect()
}

/// Parses the options of CREATE from argument 3 on. Also returns whether REPLACE precedes them.
fn options(call: &Call<'_>) -> Result<(bool, Vec<(String, String)>), Refusal> {
    let replaces = call.args.at(3).eq_ignore_ascii_case(b"replace");
    Ok((replaces, pairs(call, 3 + usize::from(replaces))?))
}

/// Refuses to drop an action or counter that configured ingest events refer to, because ingest
/// could no longer apply these events.
pub(crate) fn refuse_event_target(
    call: &Call<'_>,
    what: &str,
    is: impl Fn(&str) -> bool,
) -> Outcome {
    match call.node.ingest.source_for(is) {
        None => Ok(()),
        Some(source) => Err(refuse!(
            "ERR the {what} is used by the ingest source '{source}': change its configuration first"
        )),
    }
}

/// Applies a change in memory.
fn edit(
    node: &Node,
    may: impl FnOnce() -> Outcome,
    change: impl FnOnce(&mut Catalogue) -> Result<(), EditError>,
) -> Outcome {
    let before = node.current.catalogue();
    node.current.edit(may, change)?;
    node.follow_renames(&before);
    Ok(())
}

/// Applies a change and waits until it is in the log.
fn make(node: &Arc<Node>, change: impl FnOnce(&mut Catalogue) -> Result<(), EditError>) -> Outcome {
    edit(node, || node.refusal().map_or(Ok(()), Err), change)?;
    node.current.free_former_engines();
    node.durability.flush().map_err(|error| {
        refuse!(
            "MISCONF the change was made but is not logged yet, and is lost if the server stops \
             before the log can be written: {error}"
        )
    })
}

pub(crate) fn change(
    call: &mut Call<'_>,
    change: impl FnOnce(&mut Catalogue) -> Result<(), EditError> + Send + 'static,
) -> Outcome {
    let words: Vec<String> =
        call.args.iter().take(SHOWN_WORDS).map(|word| Printable(word).to_string()).collect();
    let by = format!("{} by {}", words.join(" "), call.session.client.peer);
    if call.session.in_exec {
        // The reply of EXEC waits for the log, as after any write.
        edit(&call.node, || Ok(()), change)?;
        call.reply.ok();
        return Ok(());
    }
    call.answer_without_engines(move |node, reply| {
        make(node, change)?;
        tracing::info!("{by}: done");
        reply.ok();
        Ok(())
    });
    Ok(())
}

/// Returns whether `counter`, written as space.field, is a counter of `space`.
fn is_of(counter: &str, space: &str) -> bool {
    counter.split_once('.').is_some_and(|(of, _)| of == space)
}

pub(super) fn create_space(call: &mut Call<'_>) -> Outcome {
    let kind = call.args.at(3);
    let is_counter = kind.eq_ignore_ascii_case(b"counter");
    if !is_counter && !kind.eq_ignore_ascii_case(b"existence") {
        return Err(refuse!(
            "ERR Invalid kind of space '{}': must be counter or existence",
            Printable(kind)
        ));
    }
    let (name, pairs) = (text(call, 2)?, pairs(call, 4)?);
    change(call, move |now| match is_counter {
        true => now.create_counter(&name, &pairs),
        false => now.create_existence(&name, &pairs),
    })
}

pub(super) fn rename_space(call: &mut Call<'_>) -> Outcome {
    let (from, to) = (text(call, 2)?, text(call, 3)?);
    refuse_event_target(call, &format!("space '{from}'"), |target| is_of(target, &from))?;
    let cold = call.node.engines().cold.clone();
    change(call, move |now| {
        now.rename(&from, &to)?;
        cold.trouble.lock().remove(&from);
        Ok(())
    })
}

/// Deletes all rows with an id below a horizon. The horizon must not exceed the highest id, because
/// a horizon that is too high, for example due to a typo, would discard all future rows.
pub(super) fn retire(call: &mut Call<'_>) -> Outcome {
    let (name, horizon) = (text(call, 2)?, call.id(3)?);
    let space = call.node.engines().counter(name.as_bytes());
    let space = space.ok_or_else(|| EditError::NoSuch("counter space", name.clone()))?;
    let Some(highest) = space.frontier() else {
        return Err(refuse!("ERR the space '{name}' has no tables yet"));
    };
    if horizon > highest {
        return Err(refuse!("ERR id {horizon} is above {highest}, the highest id of '{name}'"));
    }
    change(call, move |now| now.retire(&name, horizon))
}

pub(super) fn drop_space(call: &mut Call<'_>) -> Outcome {
    let name = text(call, 2)?;
    let engines = call.node.engines();
    if engines.counter(name.as_bytes()).is_none() && engines.existence(name.as_bytes()).is_none() {
        return Err(EditError::NoSuch("space", name).into());
    }
    if call.args.at(3) != format!("YES-I-MEAN-{name}").as_bytes() {
        return Err(refuse!(
            "ERR TM.SPACE DROP permanently deletes the space and its data: to confirm, send \
             TM.SPACE DROP {name} YES-I-MEAN-{name}"
        ));
    }
    refuse_event_target(call, &format!("space '{name}'"), |target| is_of(target, &name))?;
    let peer = call.session.client.peer;
    call.answer_without_engines(move |node, reply| {
        make(node, |now| now.drop_space(&name))?;
        tracing::warn!("dropped the space '{name}', by {peer}");
        remove(node, &name);
        reply.ok();
        Ok(())
    });
    Ok(())
}

fn remove(node: &Arc<Node>, name: &str) {
    node.engines().cold.trouble.lock().remove(name);
    let began = time::now();
    while !node.current.free_former_engines()
        && time::now() - began < DROPPED_WITHIN
        && !node.stop.is_stopped()
    {
        time::sleep(Duration::from_millis(1));
    }
    let is_stopped = || node.stop.is_stopped();
    let removed = node.live(&is_stopped).map_or(Ok(false), |live| forget_dropped(&live));
    if let Err(error) = removed {
        tracing::warn!(
            "cannot remove the files of the dropped space '{name}' yet, will retry: {error}"
        );
    }
}

pub(super) fn create_view(call: &mut Call<'_>) -> Outcome {
    let (name, (replaces, pairs)) = (text(call, 2)?, options(call)?);
    change(call, move |now| now.create_view(&name, &pairs, replaces))
}

pub(super) fn drop_view(call: &mut Call<'_>) -> Outcome {
    let name = text(call, 2)?;
    change(call, move |now| now.drop_view(&name))
}

pub(super) fn create_action(call: &mut Call<'_>) -> Outcome {
    let (name, (replaces, pairs)) = (text(call, 2)?, options(call)?);
    change(call, move |now| now.create_action(&name, &pairs, replaces))
}

pub(super) fn drop_action(call: &mut Call<'_>) -> Outcome {
    let name = text(call, 2)?;
    refuse_event_target(call, &format!("action '{name}'"), |target| target == name)?;
    change(call, move |now| now.drop_action(&name))
}
