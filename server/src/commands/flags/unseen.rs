//! PH.UNSEEN: returns the ids of a list for which the flag of a member is not set.
//!
//! A ranking service sends the candidates of a page and receives those that its viewer has not
//! seen. The ids are tested in batches whose cache misses overlap. The result is kept in
//! [`Scratch::unseen`] and written at the end. The reply to a long request is therefore either
//! complete or an error.
//!
//! With MARK an id is part of the reply only if this request has set its flag. If two requests for
//! the same member run concurrently, only one of them returns the id.

use crate::commands::call::{Call, integer, set_option_once};
use crate::commands::command::{Command, Group, Run::Long};
use crate::commands::flags::phantom::space;
use crate::commands::turn::{Answer, Answered};
use crate::session::Scratch;
use crate::session::unseen::UnseenOptions;
use dataset::engines::ExistenceSpace;
use node::command::error::{Refusal, refuse};
use node::command::id_list::{MAX_PACKED_IDS, first_id, is_ids};
use node::command::spec::{IdTarget, KeyArgs, MEMBER, Outcome, READ, flag};
use node::command::unseen_options::{Options, UnseenOption};
use phantom::{BATCH, Change, Member};
use resp::Args;
use std::ops::Range;

const PHANTOM: Group = Group::new("phantom", "0.2.0", KeyArgs::ids_of(IdTarget::Pairs));

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    PHANTOM.row("ph.unseen", -4,
        READ | flag::MAY_WRITE | flag::NAMED | flag::PER_ID | flag::PACKED,
        "space member [LIMIT count] [BELOW <seen|unseen>] [BITS] [MARK] <IDS packed|id [id ...]>",
        Long(unseen),
        "Returns the given ids whose flag the member has not set, in the given order, at most \
         LIMIT of them. Accepts up to 100,000 ids. With IDS, the ids are passed and returned in \
         one string of little-endian u64. Without IDS, the reply contains integers, or a string \
         for an id above 2^63 - 1. BITS returns a bitmap with one bit per given id, most \
         significant bit first. BELOW sets whether ids below the horizon count as seen (the \
         default) or unseen. MARK also sets the flags of the returned ids, and requires the \
         permission for PH.ADD. The flag of an id below the horizon cannot be set.")
        .linear("ids"),
];

/// Number of ids between two reads of the clock.
const READ_GROUP: usize = 8 * BATCH;
/// Number of ids between two reads of the clock if MARK is given, because each id may then be a
/// write.
const MARK_GROUP: usize = BATCH;

fn unseen(call: &mut Call<'_>) -> Answered {
    let space = space(call)?;
    let member = Member::parse(call.args.at(MEMBER));
    let first = first_id(call.spec, call.args, MEMBER + 1);
    if first >= call.args.len() {
        return Err(call.wrong_arity());
    }
    if call.step.begins_request() {
        let is_packed = is_ids(call.args.at(first));
        if !is_packed && call.args.len() - first > MAX_PACKED_IDS {
            return Err(too_many());
        }
        call.scratch.unseen.options = read_options(call.args, is_packed)?;
    }
    call.read_ids(first)?;
    let ids = call.scratch.ids.len();
    if call.step.begins_items() {
        call.scratch.unseen.restart(ids);
    }
    let marks = call.scratch.unseen.options.marks;
    if marks {
        call.admit_write()?;
    }
    let together = if marks { MARK_GROUP } else { READ_GROUP };
    let answer = call.do_each(ids, together, |call, items| test(call, space, &member, items))?;
    if matches!(answer, Answer::Continue(_)) && call.scratch.unseen.has_room() {
        return Ok(answer);
    }
    call.scratch.unseen.write(&mut call.reply);
    Ok(Answer::Done)
}

/// Returns the error for a request with too many ids.
fn too_many() -> Refusal {
    refuse!("ERR too many ids: at most {MAX_PACKED_IDS} per request")
}

/// Parses the options of a request.
pub(crate) fn read_options(args: Args<'_>, is_packed: bool) -> Result<UnseenOptions, Refusal> {
    let (mut limit, mut below, mut bits, mut marks) = (None, None, None, None);
    for option in Options::new(args, MEMBER + 1) {
        match option {
            UnseenOption::Limit(count) => {
                let count = integer(count.ok_or(Refusal::SYNTAX)?)?;
                if count < 1 {
                    return Err(refuse!("ERR LIMIT must be > 0"));
                }
                set_option_once(&mut limit, usize::try_from(count).unwrap_or(usize::MAX))?;
            }
            UnseenOption::Below(side) => {
                let side = side.ok_or(Refusal::SYNTAX)?;
                let is_unseen = side.eq_ignore_ascii_case(b"unseen");
                if !is_unseen && !side.eq_ignore_ascii_case(b"seen") {
                    return Err(Refusal::SYNTAX);
                }
                set_option_once(&mut below, is_unseen)?;
            }
            UnseenOption::Bits => set_option_once(&mut bits, true)?,
            UnseenOption::Mark => set_option_once(&mut marks, true)?,
        }
    }
    Ok(UnseenOptions {
        limit: limit.unwrap_or(usize::MAX),
        below_is_unseen: below.unwrap_or(false),
        bits: bits.unwrap_or(false),
        marks: marks.unwrap_or(false),
        is_packed,
    })
}

/// Tests some of the ids and adds the unseen ids to the result, up to the limit.
fn test(
    call: &mut Call<'_>,
    space: &ExistenceSpace,
    member: &Member<'_>,
    items: Range<usize>,
) -> Outcome {
    let engines = call.node.engines();
    let Scratch { ids, unseen: result, .. } = &mut *call.scratch;
    if !result.has_room() {
        return Ok(());
    }
    let options = result.options;
    let mut start = items.start;
    let mut marked: Outcome = Ok(());
    let tested = space.answer_batches(member, &ids[items], |ids, answers| {
        let below = if options.below_is_unseen { 0 } else { answers.unknown };
        let mut unseen = u32::MAX >> (BATCH - ids.len()) & !answers.yes & !below;
        while unseen != 0 && result.has_room() && marked.is_ok() {
            let at = unseen.trailing_zeros() as usize;
            unseen &= unseen - 1;
            if options.marks && answers.unknown >> at & 1 == 0 {
                match engines.flag(space, ids[at], member) {
                    Ok(Change::Changed) => {}
                    // The id has fallen below the horizon since the test.
                    Ok(Change::Unknown) if options.below_is_unseen => {}
                    // Another request has set the flag since the test.
                    Ok(Change::Unchanged | Change::Unknown) => continue,
                    Err(error) => {
                        marked = Err(error.into());
                        break;
                    }
                }
            }
            result.push(start + at, ids[at]);
        }
        start += ids.len();
    });
    marked?;
    Ok(tested?)
}

#[cfg(test)]
mod tests {
    use crate::fuzz::commands::{Guest, alone};
    use node::config::Config;
    use std::collections::BTreeSet;

    fn guest() -> (tempfile::TempDir, Guest) {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        let node = alone(&config);
        (folder, Guest::new(&node))
    }

    fn packed(ids: impl IntoIterator<Item = u64>) -> Vec<u8> {
        ids.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn bulk(bytes: &[u8]) -> Vec<u8> {
        [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
    }

    /// Sends a request with the words of `head` and one more argument, and returns the reply.
    async fn reply(guest: &mut Guest, head: &str, last: &[u8]) -> Vec<u8> {
        let words: Vec<&str> = head.split(' ').collect();
        let mut request = format!("*{}\r\n", words.len() + 1).into_bytes();
        words.iter().for_each(|word| request.extend(bulk(word.as_bytes())));
        request.extend(bulk(last));
        guest.answers(&request).await
    }

    /// Returns 20,000 ids. A request with these ids takes several turns, both with and without
    /// MARK.
    fn candidates() -> Vec<u64> {
        (0..20_000).map(|n| 1_000_000 + n * 7).collect()
    }

    #[tokio::test]
    async fn long_packed_requests_select_the_unset_ids_in_order() {
        let (_folder, mut guest) = guest();
        let ids = candidates();
        let seen: Vec<u64> = ids.iter().copied().filter(|id| id % 10 < 3).collect();
        for some in seen.chunks(700) {
            reply(&mut guest, "PH.ADD read 9 IDS", &packed(some.iter().copied())).await;
        }
        let all = packed(ids.iter().copied());
        let exists = reply(&mut guest, "PH.EXISTS read 9 IDS", &all).await;
        let lines: Vec<&[u8]> = exists.split(|&byte| byte == b'\n').skip(1).collect();
        let unseen: Vec<u64> = ids
            .iter()
            .zip(lines)
            .filter(|(_, line)| **line == *b":0\r")
            .map(|(id, _)| *id)
            .collect();
        // Allow for a few false positives.
        assert!(unseen.len() > ids.len() - seen.len() - 20, "{}", unseen.len());
        let select = |count: usize| bulk(&packed(unseen.iter().copied().take(count)));
        assert!(reply(&mut guest, "PH.UNSEEN read 9 IDS", &all).await == select(ids.len()));
        let some = reply(&mut guest, "PH.UNSEEN read 9 LIMIT 5000 IDS", &all).await;
        assert!(some == select(5000));
        let mut bitmap = vec![0u8; ids.len() / 8];
        let unset: BTreeSet<u64> = unseen.iter().copied().collect();
        for (at, _) in ids.iter().enumerate().filter(|(_, id)| unset.contains(id)) {
            bitmap[at / 8] |= 0x80 >> (at % 8);
        }
        assert!(reply(&mut guest, "PH.UNSEEN read 9 BITS IDS", &all).await == bulk(&bitmap));
    }

    #[tokio::test]
    async fn marks_of_a_long_request_end_at_the_limit() {
        let (_folder, mut guest) = guest();
        let ids = candidates();
        let all = packed(ids.iter().copied());
        let first = reply(&mut guest, "PH.UNSEEN read 9 LIMIT 15000 MARK IDS", &all).await;
        assert!(first.starts_with(b"$120000\r\n"));
        let rest = reply(&mut guest, "PH.UNSEEN read 9 IDS", &all).await;
        let none = reply(&mut guest, "PH.UNSEEN read 9 IDS", &first[9..first.len() - 2]).await;
        assert_eq!(none, b"$0\r\n\r\n");
        // Some unset ids may be false positives.
        assert!(rest.len() > 8 * 4990 && rest.len() < 8 * 5000 + 20, "{}", rest.len());
        let marked = reply(&mut guest, "PH.UNSEEN read 9 MARK IDS", &all).await;
        assert!(marked == rest);
        assert_eq!(reply(&mut guest, "PH.UNSEEN read 9 IDS", &all).await, b"$0\r\n\r\n");
    }

    #[tokio::test]
    async fn separate_ids_return_integers() {
        let (_folder, mut guest) = guest();
        let ids: Vec<String> = (1_000_000..1_003_000u64).map(|id| id.to_string()).collect();
        let head = |options: &str| format!("PH.UNSEEN read 9 {options}{}", ids.join(" "));
        let integers = |ids: &[String]| {
            let lines: String = ids.iter().map(|id| format!(":{id}\r\n")).collect();
            format!("*{}\r\n{lines}:5\r\n", ids.len() + 1).into_bytes()
        };
        assert!(reply(&mut guest, &head(""), b"5").await == integers(&ids));
        let some = reply(&mut guest, &head("LIMIT 2000 MARK "), b"5").await;
        assert!(some == [&b"*2000\r\n"[..], &integers(&ids[..2000])[7..2000 * 10 + 7]].concat());
        let rest = reply(&mut guest, &head(""), b"5").await;
        assert!(rest.len() < 1001 * 10 + 7, "{}", rest.len());
    }

    #[tokio::test]
    async fn requests_have_a_maximum_number_of_ids() {
        let (_folder, mut guest) = guest();
        let most = packed(0..100_000);
        let error: &[u8] = b"-ERR too many ids: at most 100000 per request\r\n";
        let many = packed(0..100_001);
        for head in ["PH.UNSEEN read 9 IDS", "PH.EXISTS read 9 IDS", "PH.ADD read 9 IDS"] {
            assert_eq!(reply(&mut guest, head, &many).await, error, "{head}");
        }
        assert_eq!(reply(&mut guest, "FEED.GET home 9 IDS", &many).await, error);
        let words = vec!["7"; 100_000].join(" ");
        let separate = reply(&mut guest, &format!("PH.UNSEEN read 9 {words}"), b"7").await;
        assert_eq!(separate, b"-ERR too many ids: at most 100000 per request\r\n");
        let unseen = reply(&mut guest, "PH.UNSEEN read 9 IDS", &most).await;
        assert!(unseen == bulk(&most));
        // A long member is limited to few ids, because it is hashed for each id.
        let member = "x".repeat(1 << 20);
        let long = reply(&mut guest, &format!("PH.UNSEEN read {member} IDS"), &packed(0..5)).await;
        let error: &[u8] = b"-ERR too many ids: a viewer or member of 1048576 bytes is allowed \
                             with at most 4 ids\r\n";
        assert_eq!(long, error);
        // The packed ids begin with the byte 48 (the digit 0), and LIMIT has a numeric argument.
        // Neither counts as a separate id.
        for head in ["IDS", "LIMIT 9 IDS"] {
            let few = packed(48..52);
            let reply = reply(&mut guest, &format!("PH.UNSEEN read {member} {head}"), &few).await;
            assert!(reply == bulk(&few));
        }
    }

    #[tokio::test]
    async fn transactions_count_packed_ids_as_arguments() {
        let (_folder, mut guest) = guest();
        assert_eq!(guest.answers(b"MULTI\r\n").await, b"+OK\r\n");
        let queued = reply(&mut guest, "PH.UNSEEN read 9 MARK IDS", &packed(0..32_768)).await;
        assert!(queued.starts_with(b"-ERR too many arguments: at most 16384 per request"));
        assert!(guest.answers(b"EXEC\r\n").await.starts_with(b"-EXECABORT"));
        assert_eq!(guest.answers(b"MULTI\r\n").await, b"+OK\r\n");
        let some = packed(0..10_000);
        reply(&mut guest, "PH.UNSEEN read 9 MARK IDS", &some).await;
        let exec = guest.answers(b"EXEC\r\n").await;
        assert!(exec == [b"*1\r\n", &bulk(&some)[..]].concat());
        assert_eq!(reply(&mut guest, "PH.UNSEEN read 9 IDS", &some).await, b"$0\r\n\r\n");
    }

    #[test]
    fn an_action_called_ids_announces_no_packed_ids() {
        use node::command::id_list;
        // Creating a guest registers the commands.
        let _guest = guest();
        let found = |line: &str| {
            let mut kept = resp::RequestQueue::default();
            kept.push_all(line.split(' ').map(str::as_bytes));
            let spec = node::command::table::find(kept.first().at(0)).unwrap().1;
            let ids = id_list::Ids::new(spec, kept.first(), 3, 1).map(|(_, id)| id);
            (id_list::packed(spec, kept.first()), ids.collect::<Vec<_>>())
        };
        assert_eq!(found("FEED.GET home z MARK ids 12345678"), (None, vec![12_345_678]));
        let packed = u64::from_le_bytes(*b"12345678");
        assert_eq!(found("FEED.GET home z MARK ids IDS 12345678"), (Some(6), vec![packed]));
        assert_eq!(found("PH.UNSEEN read z MARK IDS 12345678"), (Some(5), vec![packed]));
    }
}
