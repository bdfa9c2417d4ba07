//! TM.AUDIT: comparison of counters with their members. `node/src/roles/audit.rs` runs the passes.

use crate::commands::call::{Call, action, disk, set_option_once};
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::flags::phantom::no_ledger;
use dataset::engines::audit::{self, RangeDigest};
use node::command::error::{Refusal, refuse};
use node::command::spec::{ALWAYS, NO_KEYS, Outcome, flag};
use node::roles::audit_state::{AuditReport, AuditRequest, AuditState, DEFAULT_RATE};
use resp::Reply;

const AUDIT: Group = Group::new("schema", "0.2.0", NO_KEYS);
const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT;
/// Upper bound of RATE in ids per second.
const MAX_RATE: u64 = 1_000_000_000;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    AUDIT.row("tm.audit", -2, ADMIN | flag::NO_MULTI | flag::NAMED,
        "action [REPAIR] [RATE ids]", Once(begin),
        "Starts an audit in the background, which compares the counter of each id with the number \
         of members in the ledger. The comparison is exact, even during concurrent writes. REPAIR \
         corrects each wrong counter by adding the difference. RATE is the maximum number of ids \
         per second (default 20000; 0 for no limit). Only one audit runs at a time. TM.AUDIT \
         STATUS shows its progress.")
        .cost("O(N) in the background, where N is the number of ids and members").with(&[
        AUDIT.row("tm.audit|digest", -7, flag::READONLY | flag::NO_MULTI | flag::NAMED,
            "action FROM id TO id [STEP ids]", Once(digest),
            "Returns the lowest id, highest id, number of pairs and digest of each range of STEP \
             ids that contains pairs. Without STEP, there is a single range. Returns at most 10000 \
             ranges. The digest is the XOR of the first 64 bits of MD5('id:member') of all pairs, \
             in hexadecimal. SQL databases can compute the same digest (docs/audit.md).")
            .linear("pairs"),
        AUDIT.help("tm.audit|help"),
        AUDIT.row("tm.audit|status", 2, ALWAYS | flag::ADMIN, "", Once(status),
            "Returns a map with the state of the running or last audit. Its entry examples lists \
             up to 100 counters that differ, each with its id, its value and the number of \
             members."),
        AUDIT.row("tm.audit|stop", 2, ALWAYS | flag::ADMIN, "", Once(stop),
            "Stops the running audit. Counters that were repaired keep their new values."),
    ]),
];

fn begin(call: &mut Call<'_>) -> Outcome {
    let engines = call.node.engines();
    let action = action(engines, call.args.at(1))?;
    let (mut repairs, mut rate) = (None, None);
    let mut options = call.args.from(2).iter();
    while let Some(option) = options.next() {
        if option.eq_ignore_ascii_case(b"repair") {
            set_option_once(&mut repairs, true)?;
        } else if option.eq_ignore_ascii_case(b"rate") {
            let ids = resp::natural(options.next().ok_or(Refusal::SYNTAX)?);
            let ids = ids.filter(|&ids| ids <= MAX_RATE);
            let ids = ids.ok_or_else(|| refuse!("ERR RATE must be from 0 to {MAX_RATE}"))?;
            set_option_once(&mut rate, ids)?;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    let flags = engines.flag_of(action);
    if flags.ledger().is_none() {
        return Err(no_ledger(flags));
    }
    let repairs = repairs.unwrap_or(false);
    if repairs {
        if let Some(refusal) = call.node.refusal() {
            return Err(refusal);
        }
        if let Some(other) = engines.conflicting_actions(action).next() {
            return Err(refuse!(
                "ERR cannot repair '{}': the action '{}' changes its counter or its flag alone",
                engines.first_counter_name(action),
                other.name()
            ));
        }
    }
    let rate = rate.unwrap_or(DEFAULT_RATE);
    let request = AuditRequest { action: action.name().to_owned(), repairs, rate };
    if !call.node.audits.begin(request) {
        return Err(refuse!("ERR an audit is already in progress"));
    }
    call.reply.simple("Audit started");
    Ok(())
}

fn stop(call: &mut Call<'_>) -> Outcome {
    if !call.node.audits.stop() {
        return Err(refuse!("ERR no audit in progress"));
    }
    call.reply.ok();
    Ok(())
}

fn status(call: &mut Call<'_>) -> Outcome {
    let reply = &mut call.reply;
    let Some(report) = call.node.audits.report() else {
        reply.map(1);
        write_text(reply, "state", "none");
        return Ok(());
    };
    let AuditReport { request, state, other_writers, examples, .. } = &report;
    let error = if let AuditState::Failed(error) = state { error.as_str() } else { "" };
    reply.map(16);
    write_text(reply, "action", &request.action);
    write_text(reply, "state", state.name());
    write_text(reply, "error", error);
    let numbers = [
        ("repair", u64::from(request.repairs)),
        ("rate", request.rate),
        ("started", report.started_s),
        ("ended", report.ended_s),
        ("ids", report.ids),
        ("pairs", report.pairs),
        ("differing", report.differing),
        ("drift", report.drift),
        ("repaired", report.repaired),
        ("unreadable", report.unreadable),
    ];
    for (name, number) in numbers {
        reply.bulk(name.as_bytes());
        reply.int(i64::try_from(number).unwrap_or(i64::MAX));
    }
    // A string, because RESP integers cannot hold 64-bit unsigned ids.
    write_text(reply, "next_id", &report.next_id.to_string());
    reply.bulk(b"other_writers");
    reply.array(other_writers.len());
    other_writers.iter().for_each(|writer| reply.bulk(writer.as_bytes()));
    reply.bulk(b"examples");
    reply.array(examples.len());
    for (id, found) in examples {
        reply.array(3);
        reply.bulk(id.to_string().as_bytes());
        reply.int(found.counter);
        reply.int(i64::try_from(found.members).unwrap_or(i64::MAX));
    }
    Ok(())
}

fn write_text(reply: &mut Reply<'_>, name: &str, text: &str) {
    reply.bulk(name.as_bytes());
    reply.bulk(text.as_bytes());
}

fn digest(call: &mut Call<'_>) -> Outcome {
    let engines = call.node.engines();
    let action = action(engines, call.args.at(2))?;
    let word = |index: usize, word: &[u8]| call.args.at(index).eq_ignore_ascii_case(word);
    let has_step = call.args.len() == 9 && word(7, b"step");
    if !word(3, b"from") || !word(5, b"to") || call.args.len() != 7 && !has_step {
        return Err(Refusal::SYNTAX);
    }
    let (low, high) = (call.id(4)?, call.id(6)?);
    let step = if has_step { Some(call.id(8)?) } else { None };
    if low > high || step == Some(0) {
        return Err(refuse!("ERR FROM must not exceed TO, and STEP must be at least 1"));
    }
    let flags = engines.flag_of(action);
    let Some(ledger) = flags.ledger().cloned() else { return Err(no_ledger(flags)) };
    call.answer_later(move |node, reply| {
        let is_stopped = || node.stop.is_stopped();
        let ranges = audit::digests(&ledger, (low, high), step, &is_stopped).map_err(disk)?;
        reply.array(ranges.len());
        for RangeDigest { low, high, pairs, digest } in ranges {
            reply.array(4);
            reply.bulk(low.to_string().as_bytes());
            reply.bulk(high.to_string().as_bytes());
            reply.int(i64::try_from(pairs).unwrap_or(i64::MAX));
            reply.bulk(format!("{digest:016x}").as_bytes());
        }
        Ok(())
    })
}
