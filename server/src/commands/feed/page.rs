//! FEED.GET and FEED.ACT: pages of counters and flags, and actions that change both.

use crate::commands::call::{Call, action, id, too_long, view};
use crate::commands::command::{Command, Group, Run::Long, Run::Once};
use crate::commands::feed::among;
use crate::commands::flags::phantom::write_change;
use crate::commands::items::ITEMS_PER_CLOCK_READ;
use crate::commands::log_size;
use crate::commands::turn::{Answer as Handled, Answered, Step};
use crate::commands::unreadable::UnreadableRows;
use crate::session::scratch::{PageOptions, Scratch};
use crate::session::suspend::Suspension;
use dataset::cold::UnreadableIds;
use dataset::engines::{Action, Page, View};
use node::command::among::is_among;
use node::command::error::{Printable, Refusal, refuse};
use node::command::id_list::is_ids;
use node::command::spec::{IdTarget, KeyArgs, NO_KEYS, Outcome, READ, flag};
use phantom::{Answer, BATCH, Change, Member};
use resp::IntRow;
use std::ops::Range;

const FEED: Group = Group::new("feed", "0.1.0", NO_KEYS);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    FEED.row("feed.get", -4, READ | flag::MAY_WRITE | flag::NAMED | flag::PER_ID | flag::PACKED,
        "view viewer <IDS packed|id [id ...]> [BINARY] [EXACT] [MARK action] \
         [AMONG flag [TOP count] <MEMBERS packed|OF space|member [member ...]>]", Long(get),
        "Returns an array for each id: the view's counters, then the viewer's flags (1, 0, or nil \
         if the id is below the horizon). In a view that joins other views (then), an entry \
         consists of several ids, such as post/author. The array of such an entry contains the \
         rows of all its ids. BINARY returns one string instead: for each id the counters as \
         little-endian i64, then the flags as signed bytes (1, 0, -1 for unknown). In Python, \
         struct.iter_unpack('<4q2b', reply) decodes rows of four counters and two flags. EXACT \
         verifies each set flag in its ledger (ledger = \"exact\"), which removes false positives \
         and costs a disk read per set flag. IDS passes the ids in one string of little-endian \
         u64. MARK also applies an action to each id after reading it, and requires the permission \
         for FEED.ACT. The action must change exactly one counter. In an entry with several ids, \
         MARK applies the action to the first id. If the action fails for an id, an error replaces \
         the row of this id. If the log cannot be written (MISCONF), the reply contains all rows, \
         followed by the error as an extra element. With BINARY, any error turns the reply into an \
         array of the string and the first error. AMONG must be the last option. It appends two \
         elements to each row: the number of given members that have set a flag on the id, and the \
         first TOP of these members in the given order (default 3). AMONG accepts up to 2,000 \
         members. MEMBERS passes the members in one string of little-endian u64. OF uses the \
         viewer's members in a space with a ledger. The result of AMONG is exact if the flag's \
         space has a ledger. With BINARY, AMONG appends the count as i64, then TOP members as u64, \
         padded with zeros.")
        .keys(KeyArgs::ids_of(IdTarget::View)).linear("ids"),
    FEED.row("feed.row", -4, READ | flag::NAMED, "key view viewer [EXACT]", Once(row),
        "Returns the row that FEED.GET returns for one id, given the key of its row: the view's \
         counters, then the viewer's flags. In a cluster, a client can pipeline FEED.ROW to the \
         nodes that own the keys; the nodes then exchange no data.")
        .keys(KeyArgs::Shown).since("0.2.0"),
    FEED.row("feed.act", -4, flag::WRITE | flag::DENYOOM | flag::FAST | flag::NAMED | flag::PER_ID,
        "action viewer id [id ...]", Long(act),
        "Applies an action to each id: sets the viewer's flag and adds 1 to the counter. Returns \
         for each id 1, 0 if the flag was already set, or nil if the id is below the horizon. A \
         repeated action counts only once. If an action changes several counters of the id and of \
         the viewer, it changes all of them or none. If the id has no row, for example after DEL, \
         the first action increments the counters of the id even if the viewer's flag is set. In \
         this case the counters of the viewer do not change again. The flags of other viewers do \
         not change.")
        .keys(KeyArgs::ids_of(IdTarget::Action)).linear("ids"),
    FEED.row("feed.undo", -4, flag::WRITE | flag::FAST | flag::NAMED | flag::PER_ID,
        "action viewer id [id ...]", Long(undo),
        "Reverts an action on each id: unsets the viewer's flag and subtracts 1 from the counter, \
         but not below 0. Returns for each id 1, 0 if the flag was not set, or nil if the id is \
         below the horizon.").keys(KeyArgs::ids_of(IdTarget::Action)).linear("ids"),
];

/// Number of ids above which a page's size is compared with the output limit before the page is
/// built.
const LARGE_PAGE_IDS: usize = 4096;

fn get(call: &mut Call<'_>) -> Answered {
    let view = view(call.node.engines(), call.args.at(1))?;
    let viewer = Member::parse(call.args.at(2));
    if call.step.begins_request() {
        call.scratch.asked = PageOptions::default();
        if view.is_joined() {
            let parts = call.node.engines().then(view).count();
            call.scratch.further.resize_with(parts, Default::default);
            call.scratch.further.iter_mut().for_each(|(ids, _)| ids.clear());
        }
    }
    call.check_each(call.args.len() - 3, |call, items| {
        read_words(call, view, items.start + 3..items.end + 3)
    })?;
    let ids = call.scratch.ids.len();
    call.check_given_ids()?;
    if ids == 0 {
        match call.scratch.asked.binary {
            true => call.reply.bulk(b""),
            false => call.reply.array(0),
        }
        return Ok(Handled::Done);
    }
    let is_slow = call.scratch.asked.exact && call.step != Step::Whole;
    let together = if is_slow { ITEMS_PER_CLOCK_READ } else { usize::MAX };
    call.do_each(ids, together, |call, items| write_page(call, view, &viewer, items))
}

/// FEED.ROW: one row of a page, addressed by its key. Clients that route requests by key can build
/// a page from a pipeline of FEED.ROW.
fn row(call: &mut Call<'_>) -> Outcome {
    let view = view(call.node.engines(), call.args.at(2))?;
    if view.is_joined() {
        return Err(refuse!(
            "ERR view '{}' takes entries of several ids: use FEED.GET",
            view.name()
        ));
    }
    let (space, id) = call.row(1)?;
    let mut sources = call.node.engines().sources(view).peekable();
    if sources.peek().is_some() && !sources.any(|source| std::ptr::eq(source, space)) {
        return Err(refuse!(
            "ERR view '{}' has no counters of the space '{}'",
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
    call.scratch.asked = PageOptions { exact, ..PageOptions::default() };
    if let Some(refused) = read(call, view, &Member::parse(call.args.at(3)), 0..1)? {
        write_rows(call, view, 1, &refused);
    }
    Ok(())
}

/// Writes some rows of a page. The first call also writes the header of the reply.
fn write_page(
    call: &mut Call<'_>,
    view: &View,
    viewer: &Member<'_>,
    items: Range<usize>,
) -> Outcome {
    let (asked, ids) = (call.scratch.asked, call.scratch.ids.len());
    let is_whole = call.step == Step::Whole;
    let friends = match asked.among {
        None => None,
        Some(at) => match among::find(call, at)? {
            None => return Ok(()),
            found => found,
        },
    };
    if items.start == 0 && ids > LARGE_PAGE_IDS && (asked.binary || is_whole) {
        check_length(call, view, asked.binary)?;
    }
    let Some(mut refused) = read(call, view, viewer, items.clone())? else { return Ok(()) };
    if let Some(friends) = &friends {
        refuse_rows(call, friends, &mut refused)?;
    }
    if let Some(at) = asked.mark {
        let action = action(call.node.engines(), call.args.at(at))?;
        mark(call, action, viewer, &mut refused);
    }
    if asked.binary {
        pack_rows(call.scratch, view, &items);
        if let Some(friends) = &friends {
            extend_packed(&mut call.scratch.packed, friends);
        }
        if items.end == ids {
            if !refused.is_empty() {
                call.reply.array(2);
            }
            call.reply.bulk(&call.scratch.packed);
            refused.first().into_iter().for_each(|(_, refusal)| call.reply.error(refusal.text()));
        }
    } else {
        let beyond = usize::from(refused.last().is_some_and(|&(at, _)| at == ids));
        if items.start == 0 {
            call.begin_array(ids + beyond);
        }
        match &friends {
            Some(friends) => write_extended(call, view, friends, &refused),
            None => write_rows(call, view, items.len() + beyond, &refused),
        }
    }
    if let Some(Some(viewer)) = asked.among.map(|at| among::source_id(call.args, at)) {
        // The reply also depends on the viewer's members; see `visibility.rs`.
        call.scratch.ids.push(viewer);
    }
    if view.is_joined() && is_whole {
        // The reply also depends on the ids of joined views; see `visibility.rs`.
        let Scratch { ids, further, .. } = &mut *call.scratch;
        further.iter().for_each(|(more, _)| ids.extend(more));
    }
    Ok(())
}

/// Reads the page rows of some ids. Returns the rows that could not be read, with their errors.
/// Returns `None` if the request must run again after its cold rows were read.
fn read(
    call: &mut Call<'_>,
    view: &View,
    viewer: &Member<'_>,
    items: Range<usize>,
) -> Result<Option<Vec<(usize, Refusal)>>, Refusal> {
    let engines = call.node.engines();
    let (mut failed, mut is_verified) = (Vec::new(), false);
    let Scratch { ids, page, further, asked, .. } = &mut *call.scratch;
    let mut read = |view, ids: &[u64], page: &mut Page| {
        let mut all_read = engines.feed_get(view, viewer, ids, page);
        if asked.exact
            && let Some(verified) = engines.verify_page(view, viewer, ids, page)
        {
            is_verified = true;
            all_read = all_read.and(verified);
        }
        if let Err(ids) = all_read {
            failed.push(ids);
        }
    };
    let range = items.clone();
    let read_all = || {
        read(view, &ids[range.clone()], page);
        let further = engines.then(view).zip(further);
        further.for_each(|(part, (ids, page))| read(part, &ids[range.clone()], page));
    };
    if std::mem::take(&mut call.session.records_missing_rows) {
        let missing = engines.cold.collect_missing(read_all);
        if !missing.is_ready() {
            call.session.suspension = Suspension::MissingRows(Box::new(missing));
            return Ok(None);
        }
    } else {
        read_all();
    }
    if asked.binary && !failed.is_empty() {
        return Err(failed.swap_remove(0).into());
    }
    if asked.exact && !is_verified {
        return Err(refuse!(
            "ERR EXACT needs a ledger: no flag of the view '{}' has one (ledger exact)",
            view.name()
        ));
    }
    Ok(Some(match failed.is_empty() {
        true => Vec::new(),
        false => unreadable_rows(call, view, items, &failed),
    }))
}

#[inline]
fn read_words(call: &mut Call<'_>, view: &View, words: Range<usize>) -> Outcome {
    let is_joined = view.is_joined();
    for at in words {
        let arg = call.args.at(at);
        let asked = &mut call.scratch.asked;
        if asked.mark == Some(at) {
        } else if asked.packed == Some(at) {
            call.read_packed_ids(arg)?;
        } else if is_joined && arg.first().is_some_and(u8::is_ascii_digit) {
            read_entry(call.scratch, view, arg)?;
        } else if let Some(id) = resp::natural(arg) {
            call.scratch.ids.push(id);
        } else if arg.eq_ignore_ascii_case(b"BINARY") {
            if std::mem::replace(&mut asked.binary, true) {
                return Err(Refusal::SYNTAX);
            }
        } else if arg.eq_ignore_ascii_case(b"EXACT") {
            asked.exact = true;
        } else if arg.eq_ignore_ascii_case(b"MARK") {
            // MARK may appear only once, because the ACL check covers only the first action.
            if asked.mark.replace(at + 1).is_some() || at + 1 == call.args.len() {
                return Err(Refusal::SYNTAX);
            }
            let action = action(call.node.engines(), call.args.at(at + 1))?;
            if action.is_wide() {
                return Err(refuse!(
                    "ERR MARK supports only actions that move one counter: use FEED.ACT for '{}'",
                    action.name()
                ));
            }
        } else if is_ids(arg) && asked.packed.is_none() && at + 1 < call.args.len() {
            if is_joined {
                return Err(refuse!(
                    "ERR IDS: an entry of the view '{}' has several ids",
                    view.name()
                ));
            }
            asked.packed = Some(at + 1);
        } else if is_among(call.args, at) {
            asked.among = Some(at);
            break;
        } else {
            return Err(id(arg).err().unwrap_or(Refusal::SYNTAX));
        }
    }
    Ok(())
}

/// Parses a compound entry such as `1001/77`. The first id is for the view itself, and one id per
/// joined view follows.
fn read_entry(scratch: &mut Scratch, view: &View, text: &[u8]) -> Outcome {
    let mut parts = text.split(|byte| *byte == b'/');
    let Scratch { ids, further, .. } = scratch;
    let wanted = 1 + further.len();
    let wrong = || {
        refuse!(
            "ERR Invalid entry '{}': view '{}' takes {wanted} ids per entry, separated by /",
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

/// Refuses a page that would exceed the output limit, before building the page.
#[cold]
fn check_length(call: &Call<'_>, view: &View, binary: bool) -> Outcome {
    let (engines, most) = (call.node.engines(), call.session.max_out_bytes);
    let views = std::iter::once(view).chain(engines.then(view));
    // An integer takes at least four bytes in a RESP reply.
    let least = |view: &View| {
        let (counters, flags) = (engines.columns(view).len(), view.flags());
        if binary { counters * 8 + flags } else { (counters + flags) * 4 }
    };
    if call.scratch.ids.len().saturating_mul(views.map(least).sum()) > most {
        return Err(too_long(most));
    }
    Ok(())
}

/// Returns the rows of which some part could not be read, and their errors.
#[cold]
fn unreadable_rows(
    call: &Call<'_>,
    view: &View,
    items: Range<usize>,
    failed: &[UnreadableIds],
) -> Vec<(usize, Refusal)> {
    let mut unreadable = UnreadableRows::default();
    failed.iter().for_each(|ids| unreadable.note_all(ids));
    let Scratch { ids, further, .. } = &*call.scratch;
    let further = if view.is_joined() { &further[..] } else { &[] };
    let mut refused = Vec::new();
    for (row, item) in items.enumerate() {
        let entry = std::iter::once(ids[item]).chain(further.iter().map(|(ids, _)| ids[item]));
        let first = entry.filter_map(|id| unreadable.refusal(id)).next();
        refused.extend(first.map(|refusal| (row, refusal.clone())));
    }
    refused
}

/// Executes an action for all ids of a page. The page was read before, so it shows the state before
/// the action. If the change of an id is refused (no memory), an error replaces its row. If the log
/// accepts no changes, one error follows the last row.
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

fn pages<'a>(scratch: &'a Scratch, view: &View) -> impl Iterator<Item = &'a Page> + Clone {
    let further = if view.is_joined() { &scratch.further[..] } else { &[] };
    std::iter::once(&scratch.page).chain(further.iter().map(|(_, page)| page))
}

/// Writes the rows that were read, and errors for the rows in `refused`.
fn write_rows(call: &mut Call<'_>, view: &View, rows: usize, refused: &[(usize, Refusal)]) {
    let page = &call.scratch.page;
    let most = call.session.max_out_bytes;
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

/// Adds the rows whose AMONG elements could not be read to the refused rows. Fails if the reply
/// would exceed the output limit, or if the page is binary.
#[cold]
fn refuse_rows(
    call: &Call<'_>,
    friends: &among::Rows,
    refused: &mut Vec<(usize, Refusal)>,
) -> Outcome {
    if friends.bytes() > call.session.max_out_bytes {
        return Err(too_long(call.session.max_out_bytes));
    }
    for (at, row) in friends.iter().enumerate() {
        let Err(text) = row else { continue };
        let refusal = Refusal::new(text.to_vec());
        if call.scratch.asked.binary {
            return Err(refusal);
        }
        refused.push((at, refusal));
    }
    refused.sort_by_key(|(at, _)| *at);
    refused.dedup_by_key(|(at, _)| *at);
    Ok(())
}

/// Writes the rows read, each extended by the elements of AMONG.
fn write_extended(
    call: &mut Call<'_>,
    view: &View,
    friends: &among::Rows,
    refused: &[(usize, Refusal)],
) {
    let Call { scratch, reply, .. } = call;
    let pages = pages(scratch, view);
    let width: usize = pages.clone().map(|page| page.counters() + page.flags()).sum();
    let mut refused = refused.iter().peekable();
    for (index, elements) in friends.iter().enumerate() {
        if let Some((_, refusal)) = refused.next_if(|(at, _)| *at == index) {
            reply.error(refusal.text());
            continue;
        }
        reply.array(width + 2);
        for page in pages.clone() {
            (0..page.counters()).for_each(|column| reply.int(page.counter(index, column)));
            for answer in page.flags_of(index) {
                match known(answer) {
                    Some(set) => reply.int(i64::from(set)),
                    None => reply.null(),
                }
            }
        }
        reply.bytes().extend_from_slice(elements.unwrap_or_default());
    }
    refused.for_each(|(_, refusal)| reply.error(refusal.text()));
}

/// Extends each packed row by the elements of AMONG.
fn extend_packed(packed: &mut Vec<u8>, friends: &among::Rows) {
    let rows = friends.iter().count();
    let width = packed.len() / rows.max(1);
    let mut extended = Vec::with_capacity(packed.len() + friends.bytes());
    for (row, elements) in packed.chunks(width.max(1)).zip(friends.iter()) {
        extended.extend_from_slice(row);
        extended.extend_from_slice(elements.unwrap_or_default());
    }
    *packed = extended;
}

fn known(answer: Answer) -> Option<bool> {
    match answer {
        Answer::Yes => Some(true),
        Answer::No => Some(false),
        Answer::Unknown => None,
    }
}

/// Appends the rows that were read, in packed form.
fn pack_rows(scratch: &mut Scratch, view: &View, items: &Range<usize>) {
    let mut packed = std::mem::take(&mut scratch.packed);
    let width = |page: &Page| page.counters() * 8 + page.flags();
    let all: usize = pages(scratch, view).map(width).sum();
    packed.resize(items.start * all, 0);
    packed.resize(items.end * all, 0);
    let out = &mut packed[items.start * all..];
    let usual = scratch.page.usual().filter(|_| !view.is_joined());
    if let Some((counters, flags)) = usual {
        let rows = out.as_chunks_mut().0.iter_mut().zip(counters);
        for (index, (row, counters)) in rows.enumerate() {
            let ([first, second], at) = (flags[index / BATCH], index % BATCH);
            *row = pack_usual(counters, [first.yes >> at & 1, second.yes >> at & 1]);
        }
    } else {
        let mut before = 0;
        for page in pages(scratch, view) {
            for (index, row) in out.chunks_exact_mut(all.max(1)).enumerate() {
                pack(page, index, &mut row[before..before + width(page)]);
            }
            before += width(page);
        }
    }
    scratch.packed = packed;
}

/// Specialized [`pack`] for rows of four counters and two flags.
#[inline]
fn pack_usual(counters: &[i64; 4], flags: [u32; 2]) -> [u8; 34] {
    let mut row = [0; 34];
    for (place, counter) in row.as_chunks_mut().0.iter_mut().zip(counters) {
        *place = counter.to_le_bytes();
    }
    row[32..].copy_from_slice(&flags.map(|flag| flag as u8));
    row
}

/// Packs one row: counters as little-endian i64, then one byte per flag (0xff: unknown).
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

fn act(call: &mut Call<'_>) -> Answered {
    change(call, |call, action, viewer, id| {
        Ok(call.node.engines().act(action, viewer, id, &mut call.scratch.row)?)
    })
}

fn undo(call: &mut Call<'_>) -> Answered {
    change(call, |call, action, viewer, id| {
        Ok(call.node.engines().undo(action, viewer, id, &mut call.scratch.row)?)
    })
}

/// Executes or undoes an action for each id. If the change of an id is refused (no memory), the
/// error becomes the element of that id, because other ids may already have changed.
fn change(
    call: &mut Call<'_>,
    one: fn(&mut Call<'_>, &Action, &Member<'_>, u64) -> Result<Change, Refusal>,
) -> Answered {
    let action = action(call.node.engines(), call.args.at(1))?;
    let viewer = Member::parse(call.args.at(2));
    call.read_ids(3)?;
    // The counters of the action may belong to several stripes. Lock all of these stripes, and log
    // the group of changes in one batch.
    let _alone = if action.is_wide() && call.checked.is_none() {
        let part = call.part;
        let bytes = log_size::of(call.node.engines(), || std::iter::once(part))?;
        let member = resp::natural(call.args.at(2)).filter(|_| action.counts_member());
        let ids = &call.scratch.ids;
        let ids = ids[call.items_of_turn(ids.len())].iter().copied().chain(member).collect();
        let Some(alone) = call.alone(ids, bytes) else { return Ok(Handled::Done) };
        alone
    } else {
        None
    };
    call.answer_each(call.scratch.ids.len(), ITEMS_PER_CLOCK_READ, |call, items| {
        for item in items {
            match one(call, action, &viewer, call.scratch.ids[item]) {
                Ok(change) => write_change(&mut call.reply, change),
                Err(refusal) => call.reply.error(refusal.text()),
            }
        }
        Ok(())
    })
}
