//! The page: what Tidemark exists for.

use crate::command::error::Printable;
use crate::command::error::{Refusal, refuse};
use crate::command::spec::Outcome;
use crate::handlers::Handler;
use crate::handlers::call::{Call, id};
use crate::handlers::session::Scratch;
use dataset::engines::{Action, Page, View};
use phantom::{Answer, BATCH, Change, Member};
use resp::IntRow;

pub(crate) const RUN: &[(&str, Handler)] =
    &[("feed.get", get), ("feed.act", act), ("feed.undo", undo)];

/// Ids of a page that is looked at before it is made: it may be too long to be sent, and its memory
/// is not kept.
const LONG: usize = 4096;

fn get(call: &mut Call<'_>) -> Outcome {
    let engines = call.node.engines();
    let Some(view) = engines.view(call.args.at(1)) else {
        return Err(refuse!("ERR no such view '{}'", Printable(call.args.at(1))));
    };
    let viewer = Member::parse(call.args.at(2));
    let (mut binary, mut mark) = (false, None);
    call.scratch.ids.clear();
    let mut args = call.args.from(3).iter();
    while let Some(arg) = args.next() {
        if let Some(id) = resp::natural(arg) {
            call.scratch.ids.push(id);
        } else if arg.eq_ignore_ascii_case(b"BINARY") {
            binary = true;
        } else if arg.eq_ignore_ascii_case(b"MARK") {
            // Once: what a user may do is asked of the first.
            if mark.is_some() {
                return Err(Refusal::SYNTAX);
            }
            mark = Some(find_action(call, args.next().ok_or(Refusal::SYNTAX)?)?);
        } else {
            return Err(id(arg).err().unwrap_or(Refusal::SYNTAX));
        }
    }
    if call.scratch.ids.is_empty() {
        return Err(call.wrong_arity());
    }
    let long = call.scratch.ids.len() > LONG;
    if long {
        let (counters, flags, most) =
            (engines.columns(view).len(), view.flags(), call.session.most_out);
        // In integers each takes four bytes at least.
        let least = if binary { counters * 8 + flags } else { (counters + flags) * 4 };
        if call.scratch.ids.len().saturating_mul(least) > most {
            return Err(refuse!(
                "ERR the page takes more than {most} bytes (max_output_buffer_bytes)"
            ));
        }
    }
    engines.feed_get(view, &viewer, &call.scratch.ids, &mut call.scratch.page);
    if binary {
        crate::handlers::execute::readable(call.node)?;
    }
    // The page is read: marking comes after what it shows. A row that cannot be read, or a mark
    // that is refused (no memory), costs its own id's row only; a log that takes no changes costs
    // none: its error stands behind the last row.
    let mut refused: Vec<(usize, Refusal)> = Vec::new();
    if engines.has_cold() {
        let mut unreadable = crate::handlers::execute::Unreadable::default();
        if unreadable.note(call.node) {
            for (index, &id) in call.scratch.ids.iter().enumerate() {
                refused.extend(
                    unreadable.refusal(call.node, id).map(|refusal| (index, refusal.clone())),
                );
            }
        }
    }
    if let Some(action) = mark {
        match call.admit_write() {
            Err(refusal) => refused.push((call.scratch.ids.len(), refusal)),
            Ok(()) => {
                let Scratch { ids, row, .. } = call.scratch;
                let unreadable: Vec<usize> = refused.iter().map(|(at, _)| *at).collect();
                let mut unreadable = unreadable.into_iter().peekable();
                for (index, &id) in ids.iter().enumerate() {
                    if unreadable.next_if_eq(&index).is_some() {
                        continue;
                    }
                    if let Err(error) = engines.act(action, &viewer, id, row) {
                        refused.push((index, error.into()));
                    }
                    if let Err(refusal) = crate::handlers::execute::row_readable(call.node, id) {
                        refused.push((index, refusal));
                    }
                }
                refused.sort_by_key(|(at, _)| *at);
                refused.dedup_by_key(|(at, _)| *at);
            }
        }
    }
    if !binary {
        write_rows(call, view, &refused);
    } else if let Some((_, refusal)) = refused.first() {
        // A packed page has no place for errors.
        call.reply.array(2);
        write_packed(call, view);
        call.reply.error(refusal.text());
    } else {
        write_packed(call, view);
    }
    if long {
        call.scratch.page = Page::default();
    }
    Ok(())
}

fn write_rows(call: &mut Call<'_>, view: &View, refused: &[(usize, Refusal)]) {
    let Scratch { ids, page, .. } = &*call.scratch;
    let rows = ids.len() + usize::from(refused.last().is_some_and(|&(at, _)| at == ids.len()));
    let (width, bits, most) = (page.counters() + view.flags(), page.bits(), call.session.most_out);
    if let (Some((counters, flags)), true) = (page.usual(), refused.is_empty()) {
        let write = |index: usize, row: &mut IntRow<'_>| {
            let ([first, second], at) = (flags[index / BATCH], index % BATCH);
            row.usual(&counters[index], [first.yes >> at & 1 != 0, second.yes >> at & 1 != 0]);
        };
        return call.reply.int_rows(rows, width, bits, most, write, |_| None);
    }
    let write = |index: usize, row: &mut IntRow<'_>| {
        row.header();
        match page.counters_of(index) {
            Some(counters) => counters.iter().for_each(|&value| row.int(value)),
            None => (0..page.counters()).for_each(|column| row.int(page.counter(index, column))),
        }
        page.flags_of(index).for_each(|answer| row.flag(known(answer)));
    };
    call.reply.int_rows(rows, width, bits, most, write, |row| {
        let at = refused.binary_search_by_key(&row, |(at, _)| *at).ok()?;
        Some(refused[at].1.text())
    });
}

fn known(answer: Answer) -> Option<bool> {
    match answer {
        Answer::Yes => Some(true),
        Answer::No => Some(false),
        Answer::Unknown => None,
    }
}

fn write_packed(call: &mut Call<'_>, view: &View) {
    let Scratch { ids, page, .. } = &*call.scratch;
    let width = page.counters() * 8 + view.flags();
    call.reply.bulk_with(ids.len() * width, |out| {
        let start = out.len();
        out.resize(start + ids.len() * width, 0);
        for (index, row) in out[start..].chunks_exact_mut(width.max(1)).enumerate() {
            let (counters, flags) = row.split_at_mut(page.counters() * 8);
            for (column, place) in counters.as_chunks_mut().0.iter_mut().enumerate() {
                *place = page.counter(index, column).to_le_bytes();
            }
            for (place, answer) in flags.iter_mut().zip(page.flags_of(index)) {
                *place = match answer {
                    Answer::Yes => 1,
                    Answer::No => 0,
                    Answer::Unknown => 0xff,
                };
            }
        }
    });
}

fn find_action<'a>(call: &Call<'a>, name: &[u8]) -> Result<&'a Action, Refusal> {
    let engines = call.node.engines();
    engines.action(name).ok_or_else(|| refuse!("ERR no such action '{}'", Printable(name)))
}

fn act(call: &mut Call<'_>) -> Outcome {
    change(call, |call, action, viewer, id| {
        Ok(call.node.engines().act(action, viewer, id, &mut call.scratch.row)?)
    })
}

fn undo(call: &mut Call<'_>) -> Outcome {
    change(call, |call, action, viewer, id| {
        Ok(call.node.engines().undo(action, viewer, id, &mut call.scratch.row)?)
    })
}

/// Does or undoes an action for each id. All ids are read before the first is changed; what the
/// engines refuse (no memory) is answered in the place of that id, as the others may have changed.
fn change(
    call: &mut Call<'_>,
    one: fn(&mut Call<'_>, &Action, &Member<'_>, u64) -> Result<Change, Refusal>,
) -> Outcome {
    let action = find_action(call, call.args.at(1))?;
    let viewer = Member::parse(call.args.at(2));
    call.ids_from(3)?;
    call.reply.array(call.scratch.ids.len());
    for index in 0..call.scratch.ids.len() {
        let id = call.scratch.ids[index];
        let changed = one(call, action, &viewer, id);
        match crate::handlers::execute::row_readable(call.node, id).and(changed) {
            Ok(change) => crate::handlers::flags::phantom::write_change(&mut call.reply, change),
            Err(refusal) => call.reply.error(refusal.text()),
        }
    }
    Ok(())
}
