//! The page: what Tidemark exists for.

use crate::handlers::Handler;
use crate::handlers::call::{Call, action, id, view};
use crate::handlers::execute::UnreadableRows;
use crate::handlers::log_size;
use crate::handlers::session::Scratch;
use crate::handlers::suspend::Suspension;
use dataset::cold::UnreadableIds;
use dataset::engines::{Action, Page, View};
use node::command::error::Printable;
use node::command::error::{Refusal, refuse};
use node::command::spec::Outcome;
use phantom::{Answer, BATCH, Change, Member};
use resp::IntRow;

pub(crate) const RUN: &[(&str, Handler)] =
    &[("feed.get", get), ("feed.row", row), ("feed.act", act), ("feed.undo", undo)];

/// Ids of a page that is looked at before it is made: it may be too long to be sent, and its memory
/// is not kept.
const LONG: usize = 4096;

/// What a page is asked for beside its ids.
struct Asked<'a> {
    binary: bool,
    exact: bool,
    mark: Option<&'a Action>,
}

fn get(call: &mut Call<'_>) -> Outcome {
    let view = view(call.node.engines(), call.args.at(1))?;
    let viewer = Member::parse(call.args.at(2));
    let asked = read_words(call, view)?;
    show(call, view, viewer, asked)
}

/// What a page has of one post, asked for by its key: the page of a client that sends each request
/// to the node of its key is a pipeline of these.
fn row(call: &mut Call<'_>) -> Outcome {
    let view = view(call.node.engines(), call.args.at(2))?;
    if view.is_joined() {
        return Err(refuse!(
            "ERR an entry of the view '{}' has several ids: ask for it with FEED.GET",
            view.name()
        ));
    }
    let (space, id) = call.row(1)?;
    let mut sources = call.node.engines().sources(view).peekable();
    if sources.peek().is_some() && !sources.any(|source| std::ptr::eq(source, space)) {
        return Err(refuse!(
            "ERR the view '{}' shows nothing of the counter space '{}'",
            view.name(),
            space.name()
        ));
    }
    let exact = call.args.len() > 4;
    if call.args.len() > 5 || exact && !call.args.at(4).eq_ignore_ascii_case(b"EXACT") {
        return Err(Refusal::SYNTAX);
    }
    call.scratch.ids.clear();
    call.scratch.ids.push(id);
    let mark = call.reply.mark();
    show(call, view, Member::parse(call.args.at(3)), Asked { binary: false, exact, mark: None })?;
    if call.session.suspension.is_asked() {
        return Ok(());
    }
    // The row alone.
    let head = b"*1\r\n".len();
    call.reply.bytes().drain(mark..mark + head);
    Ok(())
}

/// Answers with the rows of the ids that were read.
fn show<'a>(call: &mut Call<'a>, view: &'a View, viewer: Member<'a>, asked: Asked<'a>) -> Outcome {
    let engines = call.node.engines();
    let is_long = call.scratch.ids.len() > LONG;
    if is_long {
        check_length(call, view, asked.binary)?;
    }
    let (mut failed, mut is_verified) = (Vec::new(), false);
    let mut read = |view, ids: &[u64], page: &mut Page| {
        let mut all_read = engines.feed_get(view, &viewer, ids, page);
        if asked.exact
            && let Some(verified) = engines.verify_page(view, &viewer, ids, page)
        {
            is_verified = true;
            all_read = all_read.and(verified);
        }
        if let Err(ids) = all_read {
            failed.push(ids);
        }
    };
    let Scratch { ids, page, further, .. } = &mut *call.scratch;
    let read_all = || {
        read(view, ids, page);
        engines.then(view).zip(further).for_each(|(part, (ids, page))| read(part, ids, page));
    };
    if std::mem::take(&mut call.session.notes_missing) {
        let missing = engines.cold.note_missing(read_all);
        if !missing.is_ready() {
            call.session.suspension = Suspension::Lacks(Box::new(missing));
            return Ok(());
        }
    } else {
        read_all();
    }
    if asked.binary && !failed.is_empty() {
        return Err(failed.swap_remove(0).into());
    }
    if asked.exact && !is_verified {
        return Err(refuse!(
            "ERR EXACT asks ledgers, and no flag of the view '{}' has one (ledger exact)",
            view.name()
        ));
    }
    let mut refused =
        if failed.is_empty() { Vec::new() } else { unreadable_rows(call, view, &failed) };
    if let Some(action) = asked.mark {
        mark(call, action, &viewer, &mut refused);
    }
    if !asked.binary {
        write_rows(call, view, &refused);
    } else if let Some((_, refusal)) = refused.first() {
        // A packed page has no place for errors.
        call.reply.array(2);
        write_packed(call, view);
        call.reply.error(refusal.text());
    } else {
        write_packed(call, view);
    }
    if view.is_joined() {
        // All of them were shown: `visibility.rs`.
        let Scratch { ids, further, .. } = &mut *call.scratch;
        further.iter().for_each(|(more, _)| ids.extend(more));
    }
    if is_long {
        call.scratch.page = Page::default();
        call.scratch.further.clear();
    }
    Ok(())
}

/// Reads the ids and options of a page.
#[inline]
fn read_words<'a>(call: &mut Call<'a>, view: &View) -> Result<Asked<'a>, Refusal> {
    let mut asked = Asked { binary: false, exact: false, mark: None };
    let is_joined = view.is_joined();
    call.scratch.ids.clear();
    if is_joined {
        let parts = call.node.engines().then(view).count();
        call.scratch.further.resize_with(parts, Default::default);
        call.scratch.further.iter_mut().for_each(|(ids, _)| ids.clear());
    }
    let mut args = call.args.from(3).iter();
    while let Some(arg) = args.next() {
        if is_joined && arg.first().is_some_and(u8::is_ascii_digit) {
            read_entry(call.scratch, view, arg)?;
        } else if let Some(id) = resp::natural(arg) {
            call.scratch.ids.push(id);
        } else if arg.eq_ignore_ascii_case(b"BINARY") {
            if asked.binary {
                return Err(Refusal::SYNTAX);
            }
            asked.binary = true;
        } else if arg.eq_ignore_ascii_case(b"EXACT") {
            asked.exact = true;
        } else if arg.eq_ignore_ascii_case(b"MARK") {
            // Once: what a user may do is asked of the first.
            if asked.mark.is_some() {
                return Err(Refusal::SYNTAX);
            }
            let action = action(call.node.engines(), args.next().ok_or(Refusal::SYNTAX)?)?;
            if action.is_wide() {
                return Err(refuse!(
                    "ERR MARK does an action that moves one counter: '{}' moves several, for \
                     FEED.ACT",
                    action.name()
                ));
            }
            asked.mark = Some(action);
        } else {
            return Err(id(arg).err().unwrap_or(Refusal::SYNTAX));
        }
    }
    if call.scratch.ids.is_empty() {
        return Err(call.wrong_arity());
    }
    Ok(asked)
}

/// An entry of several ids, `1001/77`: the view's own, then those of its further views.
fn read_entry(scratch: &mut Scratch, view: &View, text: &[u8]) -> Outcome {
    let mut parts = text.split(|byte| *byte == b'/');
    let Scratch { ids, further, .. } = scratch;
    let wanted = 1 + further.len();
    let wrong = || {
        refuse!(
            "ERR Invalid entry '{}': the view '{}' takes {wanted} ids each, with / between them",
            Printable(text),
            view.name()
        )
    };
    let lists = std::iter::once(ids).chain(further.iter_mut().map(|(ids, _)| ids));
    let mut read = 0;
    for list in lists {
        let Some(part) = parts.next() else { break };
        list.push(resp::natural(part).ok_or_else(wrong)?);
        read += 1;
    }
    if read < wanted || parts.next().is_some() {
        return Err(wrong());
    }
    Ok(())
}

/// A page may be too long to be sent: looked at before it is made.
#[cold]
fn check_length(call: &Call<'_>, view: &View, binary: bool) -> Outcome {
    let (engines, most) = (call.node.engines(), call.session.most_out);
    let views = std::iter::once(view).chain(engines.then(view));
    // In integers each takes four bytes at least.
    let least = |view: &View| {
        let (counters, flags) = (engines.columns(view).len(), view.flags());
        if binary { counters * 8 + flags } else { (counters + flags) * 4 }
    };
    if call.scratch.ids.len().saturating_mul(views.map(least).sum()) > most {
        return Err(too_long(most));
    }
    Ok(())
}

/// Of a page of more bytes than a reply may have.
pub(crate) fn too_long(most: usize) -> Refusal {
    refuse!("ERR the page takes more than {most} bytes (max_output_buffer_bytes)")
}

/// Rows of which something could not be read, with the error: it costs this row only.
#[cold]
fn unreadable_rows(
    call: &Call<'_>,
    view: &View,
    failed: &[UnreadableIds],
) -> Vec<(usize, Refusal)> {
    let mut unreadable = UnreadableRows::default();
    failed.iter().for_each(|ids| unreadable.note_all(ids));
    let Scratch { ids, further, .. } = &*call.scratch;
    let further = if view.is_joined() { &further[..] } else { &[] };
    let mut refused = Vec::new();
    for (index, &id) in ids.iter().enumerate() {
        let entry = std::iter::once(id).chain(further.iter().map(|(ids, _)| ids[index]));
        let first = entry.filter_map(|id| unreadable.refusal(id)).next();
        refused.extend(first.map(|refusal| (index, refusal.clone())));
    }
    refused
}

/// Does an action for all ids of a page. The page is read: marking comes after what it shows. A
/// mark that is refused (no memory) costs its own id's row only; a log that takes no changes costs
/// none: its error stands behind the last row.
#[inline]
fn mark(
    call: &mut Call<'_>,
    action: &Action,
    viewer: &Member<'_>,
    refused: &mut Vec<(usize, Refusal)>,
) {
    if let Err(refusal) = call.admit_write() {
        refused.push((call.scratch.ids.len(), refusal));
        return;
    }
    let engines = call.node.engines();
    let Scratch { ids, row, .. } = &mut *call.scratch;
    let unreadable: Vec<usize> = refused.iter().map(|(at, _)| *at).collect();
    let mut unreadable = unreadable.into_iter().peekable();
    for (index, &id) in ids.iter().enumerate() {
        if unreadable.next_if_eq(&index).is_some() {
            continue;
        }
        if let Err(error) = engines.act(action, viewer, id, row) {
            refused.push((index, error.into()));
        }
    }
    refused.sort_by_key(|(at, _)| *at);
    refused.dedup_by_key(|(at, _)| *at);
}

/// The pages of a view with those of its further views.
fn pages<'a>(scratch: &'a Scratch, view: &View) -> impl Iterator<Item = &'a Page> + Clone {
    let further = if view.is_joined() { &scratch.further[..] } else { &[] };
    std::iter::once(&scratch.page).chain(further.iter().map(|(_, page)| page))
}

fn write_rows(call: &mut Call<'_>, view: &View, refused: &[(usize, Refusal)]) {
    let (ids, page) = (&call.scratch.ids, &call.scratch.page);
    let rows = ids.len() + usize::from(refused.last().is_some_and(|&(at, _)| at == ids.len()));
    let most = call.session.most_out;
    let is_whole = refused.is_empty() && !view.is_joined();
    if let (Some((counters, flags)), true) = (page.usual(), is_whole) {
        let width = page.counters() + view.flags();
        let write = |index: usize, row: &mut IntRow<'_>| {
            let ([first, second], at) = (flags[index / BATCH], index % BATCH);
            row.usual(&counters[index], [first.yes >> at & 1 != 0, second.yes >> at & 1 != 0]);
        };
        return call.reply.int_rows(rows, width, page.bits(), most, write, |_| None);
    }
    let pages = pages(call.scratch, view);
    let width = pages.clone().map(|page| page.counters() + page.flags()).sum();
    let bits = pages.clone().fold(0, |bits, page| bits | page.bits());
    let write = |index: usize, row: &mut IntRow<'_>| {
        row.header();
        for page in pages.clone() {
            match page.counters_of(index) {
                Some(counters) => counters.iter().for_each(|&value| row.int(value)),
                None => {
                    (0..page.counters()).for_each(|column| row.int(page.counter(index, column)));
                }
            }
            page.flags_of(index).for_each(|answer| row.flag(known(answer)));
        }
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
    let width = |page: &Page| page.counters() * 8 + page.flags();
    let pages = pages(call.scratch, view);
    let all: usize = pages.clone().map(width).sum();
    let bytes = call.scratch.ids.len() * all;
    let usual = call.scratch.page.usual().filter(|_| !view.is_joined());
    call.reply.bulk_with(bytes, |out| {
        let start = out.len();
        out.resize(start + bytes, 0);
        let out = &mut out[start..];
        if let Some((counters, flags)) = usual {
            let rows = out.as_chunks_mut().0.iter_mut().zip(counters);
            for (index, (row, counters)) in rows.enumerate() {
                let ([first, second], at) = (flags[index / BATCH], index % BATCH);
                *row = pack_usual(counters, [first.yes >> at & 1, second.yes >> at & 1]);
            }
            return;
        }
        let mut before = 0;
        for page in pages {
            for (index, row) in out.chunks_exact_mut(all.max(1)).enumerate() {
                pack(page, index, &mut row[before..before + width(page)]);
            }
            before += width(page);
        }
    });
}

/// What [`pack`] makes of the usual row.
#[inline]
fn pack_usual(counters: &[i64; 4], flags: [u32; 2]) -> [u8; 34] {
    let mut row = [0; 34];
    for (place, counter) in row.as_chunks_mut().0.iter_mut().zip(counters) {
        *place = counter.to_le_bytes();
    }
    row[32..].copy_from_slice(&flags.map(|flag| flag as u8));
    row
}

/// What a page has of one id, as bytes.
#[inline]
fn pack(page: &Page, index: usize, row: &mut [u8]) {
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
    let action = action(call.node.engines(), call.args.at(1))?;
    let viewer = Member::parse(call.args.at(2));
    call.ids_from(3)?;
    // What it moves beside lies in other stripes: all of them together, in one batch of the log.
    let _alone = if action.is_wide() {
        let bytes = log_size::of(call.node.engines(), || std::iter::once(call.args))?;
        let member = resp::natural(call.args.at(2)).filter(|_| action.counts_member());
        let ids = call.scratch.ids.iter().copied().chain(member).collect();
        let Some(alone) = call.alone(ids, bytes) else { return Ok(()) };
        alone
    } else {
        None
    };
    call.reply.array(call.scratch.ids.len());
    for index in 0..call.scratch.ids.len() {
        let id = call.scratch.ids[index];
        match one(call, action, &viewer, id) {
            Ok(change) => crate::handlers::flags::phantom::write_change(&mut call.reply, change),
            Err(refusal) => call.reply.error(refusal.text()),
        }
    }
    Ok(())
}
