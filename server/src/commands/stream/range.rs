//! XRANGE, XREVRANGE, XLEN, and refused stream commands.

use super::{Found, Log, MAX_ENTRIES, READ_ONLY, id, refusal, scope, write_entry};
use super::{LENGTH_ITEMS, READ_COST, STREAM};
use crate::commands::call::{Call, integer};
use crate::commands::command::{Command, Run::Once};
use dataset::changes::{Change, Id, Scope, Start};
use node::command::error::{Refusal, refuse};
use node::command::spec::{Outcome, READ, flag};
use node::roles::node::Now;
use resp::Reply;

#[rustfmt::skip]
pub(crate) const READS: &[Command] = &[
    STREAM.row("xrange", -4, flag::READONLY, "key start end [COUNT count]", Once(xrange),
        "Returns the entries between two ids; `-` is the id of the oldest available entry. Fails \
         if there are more than 10000 entries; use COUNT to read fewer.")
        .cost(READ_COST),
    STREAM.row("xrevrange", -4, flag::READONLY, "key end start [COUNT count]", Once(xrange),
        "Returns the entries between two ids in reverse order.")
        .cost(READ_COST),
    STREAM.row("xlen", 2, READ, "key", Once(xlen),
        "Returns the number of entries of the stream that are in the log. The first call reads the \
         whole log.")
        .linear(LENGTH_ITEMS).uses("RO"),
];

#[rustfmt::skip]
pub(crate) const REFUSED: &[Command] = &[
    STREAM.row("xadd", -5, flag::WRITE | flag::DENYOOM | flag::FAST,
        "key [NOMKSTREAM] [<MAXLEN|MINID> [=|~] threshold [LIMIT count]] <*|id> field value [field \
         value ...]", Once(read_only), NOT_WRITABLE).tips(&["nondeterministic_output"]),
    STREAM.row("xdel", -3, flag::WRITE | flag::FAST, "key id [id ...]", Once(read_only),
        NOT_WRITABLE).uses("RW delete"),
    STREAM.row("xtrim", -4, flag::WRITE,
        "key <MAXLEN|MINID> [=|~] threshold [LIMIT count]", Once(read_only),
        "Not supported: the stream is the log, whose size is \
         limited by durability.keep_log.").uses("RW delete")
        .tips(&["nondeterministic_output"]),
    STREAM.row("xsetid", -3, flag::WRITE | flag::DENYOOM | flag::FAST,
        "key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]", Once(read_only),
        NOT_WRITABLE),
];

const NOT_WRITABLE: &str = "Not supported: the stream tm:changes is the log, which clients cannot \
                            write to.";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// The bound is `-` or `+`.
    Open,
    At(Id),
    /// The bound is exclusive, as in `(id`.
    Exclusive(Id),
}

impl Bound {
    fn read(text: &[u8], missing: u64) -> Result<Bound, Refusal> {
        match text {
            b"-" | b"+" => Ok(Bound::Open),
            [b'(', rest @ ..] if !rest.is_empty() => Ok(Bound::Exclusive(id(rest, missing)?)),
            text => Ok(Bound::At(id(text, missing)?)),
        }
    }

    /// Returns the lowest id that a lower bound includes.
    pub(super) fn low(text: &[u8]) -> Result<Id, Refusal> {
        Ok(match Bound::read(text, 0)? {
            Bound::Open if text == b"-" => Id::MIN,
            Bound::Open => Id::MAX,
            Bound::At(id) => id,
            Bound::Exclusive(id) => {
                id.after().ok_or_else(|| refuse!("ERR invalid start ID for the interval"))?
            }
        })
    }

    /// Returns the highest id that an upper bound includes.
    pub(super) fn high(text: &[u8]) -> Result<Id, Refusal> {
        Ok(match Bound::read(text, u64::MAX)? {
            Bound::Open if text == b"+" => Id::MAX,
            Bound::Open => Id::MIN,
            Bound::At(id) => id,
            Bound::Exclusive(Id::MIN) => {
                return Err(refuse!("ERR invalid end ID for the interval"));
            }
            Bound::Exclusive(id) => id.before(),
        })
    }
}

struct Range {
    scope: Scope,
    from: Bound,
    /// Lower bound (inclusive). The next field is the upper bound (inclusive).
    low: Id,
    high: Id,
    /// Maximum number of entries that the client requested (COUNT). Without COUNT, a range that
    /// exceeds the limit of a reply is an error.
    most: Option<usize>,
}

impl Range {
    /// Parses the range. The inner `Err` means that the reply is empty: nil for true, an empty
    /// array for false.
    fn read(call: &Call<'_>, is_reverse: bool) -> Result<Result<Range, bool>, Refusal> {
        let (low, high) = if is_reverse { (3, 2) } else { (2, 3) };
        let (low, high) = (call.args.at(low), call.args.at(high));
        let (from, first) = (Bound::read(low, 0)?, Bound::low(low)?);
        let last = Bound::high(high)?;
        let mut count = None;
        let mut options = call.args.from(4).iter();
        while let Some(option) = options.next() {
            let value = options.next().filter(|_| option.eq_ignore_ascii_case(b"count"));
            count = Some(integer(value.ok_or(Refusal::SYNTAX)?)?.max(0));
        }
        let most = count.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        let Some(scope) = scope(call.node, call.args.at(1))? else { return Ok(Err(false)) };
        if most == Some(0) {
            return Ok(Err(true));
        }
        // If the range is empty, its lower bound is not looked up in the log.
        if first > last {
            return Ok(Err(false));
        }
        Ok(Ok(Range { scope, from, low: first, high: last, most }))
    }

    fn start(&self) -> Start {
        match self.from {
            Bound::Open if self.low == Id::MIN => Start::Oldest,
            Bound::Open => Start::End,
            Bound::At(id) => Start::At(id),
            Bound::Exclusive(id) => Start::After(id),
        }
    }

    /// Returns the number of entries to read. This is one more than the limit of a reply, to detect
    /// that the range exceeds the limit.
    fn wanted(&self) -> usize {
        self.most.unwrap_or(usize::MAX).min(MAX_ENTRIES + 1)
    }

    fn write(&self, found: &Found, reply: &mut Reply<'_>) -> Outcome {
        let is_cut = found.bytes.len() >= super::MAX_REPLY_BYTES && self.most != Some(found.count);
        if found.count > MAX_ENTRIES || is_cut {
            return Err(refuse!(
                "ERR the range has more than {MAX_ENTRIES} entries, or more than 4 MiB: use COUNT"
            ));
        }
        found.write(reply);
        Ok(())
    }

    fn up(&self, node: Now<'_>, reply: &mut Reply<'_>) -> Outcome {
        let log = Log::new(node);
        let mut found = Found::default();
        if let Some(mut place) = log.find(self.scope, self.start())? {
            log.read(self.scope, &mut place, &|| true, |id, bytes| {
                if id > self.high {
                    return false;
                }
                found.bytes.extend_from_slice(bytes);
                found.count += 1;
                !found.is_full(self.wanted())
            })?;
        }
        self.write(&found, reply)
    }

    fn down(&self, node: Now<'_>, reply: &mut Reply<'_>) -> Outcome {
        let log = Log::new(node);
        // Fails if the log no longer contains the lower bound.
        log.find(self.scope, self.start())?;
        let make = |id: Id, space: u32, change: Change<'_>| {
            let mut bytes = Vec::new();
            let entry = (id, space, change);
            write_entry(node.engines(), self.scope, entry, &mut bytes).then_some(bytes)
        };
        let (store, ends) = (&node.store, (self.high, self.low));
        let entries = node.changes.read_back(store, log.end, self.scope, ends, self.wanted(), make);
        let entries = entries.map_err(|lost| refusal(&lost, "this position", None))?;
        let mut found = Found::default();
        for entry in entries {
            if found.is_full(self.wanted()) {
                break;
            }
            found.bytes.extend_from_slice(&entry);
            found.count += 1;
        }
        self.write(&found, reply)
    }
}

fn xrange(call: &mut Call<'_>) -> Outcome {
    let is_reverse = call.spec.name == "xrevrange";
    match Range::read(call, is_reverse)? {
        Ok(range) => call.answer_later(move |node, reply| {
            if is_reverse { range.down(node, reply) } else { range.up(node, reply) }
        }),
        Err(true) => {
            call.reply.null_array();
            Ok(())
        }
        Err(false) => {
            call.reply.array(0);
            Ok(())
        }
    }
}

fn xlen(call: &mut Call<'_>) -> Outcome {
    let Some(scope) = scope(call.node, call.args.at(1))? else {
        call.reply.int(0);
        return Ok(());
    };
    call.answer_later(move |node, reply| {
        reply.int(i64::try_from(Log::new(node).tally(scope)?.entries).unwrap_or(i64::MAX));
        Ok(())
    })
}

/// Refuses a write. If the key has another type, returns Redis's error for that case.
fn read_only(call: &mut Call<'_>) -> Outcome {
    let (node, key) = (call.node, call.args.at(1));
    if scope(node, key)?.is_none() {
        node.engines().resolve(key)?;
    }
    Err(READ_ONLY)
}
