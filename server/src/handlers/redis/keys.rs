//! Keys of any kind.

use crate::handlers::call::{Call, integer};
use crate::handlers::counter::scan;
use crate::handlers::execute::but_unreadable;
use crate::handlers::help::help;
use crate::handlers::items::Answered;
use crate::handlers::stream;
use crate::handlers::{Handler, LongHandler};
use dataset::clock::unix_us;
use dataset::cold::Unreadable;
use dataset::engines::{CounterSpace, Engines, ExistenceSpace, KeyRef, NO_MEMBER, WriteError};
use dataset::key_patterns::{Kind, Pattern};
use dataset::options::Expire;
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::Outcome;
use node::command::streams;
use node::roles::node::Node;
use node::runtime::glob;
use phantom::{Answer, Change};
use resp::Reply;

pub(crate) const RUN: &[(&str, Handler)] = &[
    ("type", kind),
    ("ttl", ttl),
    ("pttl", ttl),
    ("expiretime", ttl),
    ("pexpiretime", ttl),
    ("persist", persist),
    ("expire", expire),
    ("pexpire", expire),
    ("expireat", expire),
    ("pexpireat", expire),
    ("rename", no_move),
    ("renamenx", no_move),
    ("copy", no_move),
    ("move", no_move),
    ("keys", keys),
    ("scan", scan),
    ("randomkey", randomkey),
    ("object|encoding", encoding),
    ("object|freq", frequency),
    ("object|help", help),
    ("object|idletime", idletime),
    ("object|refcount", refcount),
    ("object", help),
];

pub(crate) const LONG: &[(&str, LongHandler)] =
    &[("del", del), ("unlink", del), ("exists", exists), ("touch", exists)];

/// Whether any pair of an id is set; `None`: a filter cannot tell.
pub(crate) fn has_pairs(space: &ExistenceSpace, id: u64) -> Result<Option<bool>, Unreadable> {
    match space.ledger() {
        Some(ledger) => ledger.has_any(id).map(Some),
        None if space.has_members => Ok(None),
        None => Ok(Some(space.contains(id, &NO_MEMBER)? == Answer::Yes)),
    }
}

fn many_pairs(doing: &str) -> Refusal {
    refuse!(
        "ERR the pairs of an id cannot be {doing} together: name the members (SISMEMBER, SREM, \
         PH.EXISTS, PH.DEL)"
    )
}

/// What a key names; what no space can have is absent, as in Redis.
fn lookup<'a>(call: &Call<'a>, key: &[u8]) -> Option<KeyRef<'a>> {
    call.node.engines().resolve(key).ok()
}

fn del(call: &mut Call<'_>) -> Answered {
    let engines = call.node.engines();
    let keys = call.args.from(1);
    call.check_each(keys.len(), |call, items| {
        for key in items.map(|item| keys.at(item)) {
            if let Some(KeyRef::Pair { space, .. }) = lookup(call, key)
                && space.has_members
                && space.ledger().is_none()
            {
                return Err(many_pairs("deleted"));
            }
            if is_stream(call, key) {
                return Err(stream::READ_ONLY);
            }
        }
        Ok(())
    })?;
    call.count_each(keys.len(), |call, item| {
        let key = lookup(call, keys.at(item));
        let gone = key.map_or(Ok(false), |key| delete_key(engines, &key));
        Ok(but_unreadable(gone, &mut call.scratch.unreadable)?)
    })
}

fn exists(call: &mut Call<'_>) -> Answered {
    let keys = call.args.from(1);
    call.count_each(keys.len(), |call, item| {
        let key = keys.at(item);
        let found = match lookup(call, key) {
            Some(KeyRef::Row { space, id } | KeyRef::Cell { space, id, .. }) => space.exists(id)?,
            Some(KeyRef::Pair { space, id }) => {
                has_pairs(space, id)?.ok_or_else(|| many_pairs("asked for"))?
            }
            None => is_stream(call, key),
        };
        call.note_found(found);
        Ok(found)
    })
}

fn kind(call: &mut Call<'_>) -> Outcome {
    let kind = match lookup(call, call.args.at(1)) {
        None if is_stream(call, call.args.at(1)) => "stream",
        Some(KeyRef::Row { space, id }) if space.exists(id)? => "hash",
        Some(KeyRef::Cell { space, id, .. }) if space.exists(id)? => "string",
        Some(KeyRef::Pair { space, id }) if has_pairs(space, id)? != Some(false) => "set",
        Some(_) | None => "none",
    };
    call.reply.simple(kind);
    Ok(())
}

fn ttl(call: &mut Call<'_>) -> Outcome {
    let (exists, _) = is_there(call, 1)?;
    call.reply.int(if exists { -1 } else { -2 });
    Ok(())
}

fn persist(call: &mut Call<'_>) -> Outcome {
    call.reply.int(0);
    Ok(())
}

/// Deletes all that a key names, the pairs of an id too. Whether there was something; of pairs that
/// cannot be said without a ledger.
pub(crate) fn delete_key(engines: &Engines, key: &KeyRef<'_>) -> Result<bool, WriteError> {
    match *key {
        KeyRef::Row { space, id } => engines.delete(space, id),
        KeyRef::Cell { space, id, field } => engines.clear(space, id, field),
        KeyRef::Pair { space, id } if space.has_members => {
            match has_pairs(space, id)? {
                // What is set meanwhile comes after it.
                Some(false) => Ok(false),
                _ => engines.forget_flags(space, id),
            }
        }
        KeyRef::Pair { space, id } => {
            engines.unflag(space, id, &NO_MEMBER).map(|change| change == Change::Changed)
        }
    }
}

/// Whether a time in milliseconds has passed: one of the clock, or one that is counted from now.
pub(crate) fn has_passed(time_ms: i64, is_of_clock: bool) -> bool {
    let now_ms = if is_of_clock { unix_us() / 1000 } else { 0 };
    time_ms <= 0 || time_ms.unsigned_abs() <= now_ms
}

/// EXPIRE and its kin. Nothing expires, so each key lives longer than any time that is given: that
/// is what NX, XX, GT and LT see where an expiry is ignored. A time that has passed deletes the key
/// at once, as in Redis.
fn expire(call: &mut Call<'_>) -> Outcome {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for option in call.args.from(3).iter() {
        let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
        match () {
            () if is(b"nx") => nx = true,
            () if is(b"xx") => xx = true,
            () if is(b"gt") => gt = true,
            () if is(b"lt") => lt = true,
            () => return Err(refuse!("ERR Unsupported option {}", Printable(option))),
        }
    }
    if nx && (xx || gt || lt) {
        return Err(refuse!("ERR NX and XX, GT or LT options at the same time are not compatible"));
    }
    if gt && lt {
        return Err(refuse!("ERR GT and LT options at the same time are not compatible"));
    }
    let time = integer(call.args.at(2))?;
    let name = call.spec.name;
    let time_ms = if name.starts_with('p') { Some(time) } else { time.checked_mul(1000) };
    let Some(time_ms) = time_ms else {
        return Err(refuse!("ERR invalid expire time in '{name}' command"));
    };
    let does = match lookup(call, call.args.at(1)) {
        None if is_stream(call, call.args.at(1)) => return Err(stream::READ_ONLY),
        None => false,
        Some(key) if key.expire() == Expire::Refuse => return Err(refuse_expiry(call)),
        Some(key) => {
            let does = is_there(call, 1)?.0 && !xx && !gt;
            if does && has_passed(time_ms, name.ends_with("at")) {
                delete_key(call.node.engines(), &key)?;
            }
            does
        }
    };
    call.reply.int(i64::from(does));
    Ok(())
}

/// For every command that would let something expire, where that is not ignored.
#[cold]
pub(crate) fn refuse_expiry(call: &Call<'_>) -> Refusal {
    let name = call.spec.name.to_ascii_uppercase();
    let with = match call.spec.name {
        "set" | "getex" | "restore" | "restore-asking" => " with an expiry",
        _ => "",
    };
    refuse!(
        "ERR {name}{with} is not possible here: counters, rows and pairs do not expire (expire = \
         \"ignore\" in the space's configuration ignores it)"
    )
}

fn no_move(call: &mut Call<'_>) -> Outcome {
    if is_stream(call, call.args.at(1)) {
        return Err(stream::READ_ONLY);
    }
    if lookup(call, call.args.at(1)).is_none() {
        return match call.spec.name {
            "copy" | "move" => {
                call.reply.int(0);
                Ok(())
            }
            _ => Err(refuse!("ERR no such key")),
        };
    }
    Err(refuse!(
        "ERR {} is not possible here: what a key names follows from its id",
        call.spec.name.to_ascii_uppercase()
    ))
}

/// Whether what a key names exists; of pairs that cannot be said without a ledger, so they do.
pub(crate) fn is_there(call: &Call<'_>, index: usize) -> Result<(bool, &'static str), Unreadable> {
    Ok(match lookup(call, call.args.at(index)) {
        Some(KeyRef::Row { space, id }) => (space.exists(id)?, "packed"),
        Some(KeyRef::Cell { space, id, .. }) => (space.exists(id)?, "int"),
        Some(KeyRef::Pair { space, id }) => (has_pairs(space, id)? != Some(false), "filter"),
        None => (is_stream(call, call.args.at(index)), "stream"),
    })
}

/// Whether a key names a stream that is there.
fn is_stream(call: &Call<'_>, key: &[u8]) -> bool {
    streams::scope_of(call.node.engines(), key).is_some()
}

fn encoding(call: &mut Call<'_>) -> Outcome {
    match is_there(call, 2)? {
        (true, encoding) => call.reply.bulk(encoding.as_bytes()),
        (false, _) => call.reply.null(),
    }
    Ok(())
}

fn refcount(call: &mut Call<'_>) -> Outcome {
    if is_there(call, 2)?.0 {
        call.reply.int(1)
    } else {
        call.reply.null()
    }
    Ok(())
}

fn frequency(call: &mut Call<'_>) -> Outcome {
    if !is_there(call, 2)?.0 {
        call.reply.null();
        return Ok(());
    }
    Err(refuse!(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note \
         that when switching between policies at runtime LRU and LFU data will take some time to \
         adjust."
    ))
}

fn idletime(call: &mut Call<'_>) -> Outcome {
    if !is_there(call, 2)?.0 {
        call.reply.null();
        return Ok(());
    }
    Err(refuse!("ERR idle times are not tracked"))
}

/// The keys that list the rows of a space: one per row, or, where rows have no keys of their own,
/// one per counter.
struct Listed<'a> {
    /// The forms of the keys; the first is shown unless a glob asks for another.
    forms: Vec<&'a Pattern>,
    /// The counters that have keys; one empty name where the row has one.
    fields: Vec<String>,
    /// The type that TYPE answers for the keys.
    kind: &'static str,
}

impl<'a> Listed<'a> {
    /// `None` if neither the space's rows nor its counters have keys.
    fn of(engines: &'a Engines, space: &CounterSpace) -> Option<Listed<'a>> {
        let forms = |kind| -> Vec<_> { engines.counter_patterns(space, kind).collect() };
        let rows = forms(Kind::Row);
        if !rows.is_empty() {
            return Some(Listed { forms: rows, fields: vec![String::new()], kind: "hash" });
        }
        let fields = space.schema().living().map(|(_, field)| field.name.clone()).collect();
        let cells = forms(Kind::Cell);
        (!cells.is_empty()).then_some(Listed { forms: cells, fields, kind: "string" })
    }

    /// The keys of one row, each in the first form that fits the glob.
    fn keys(&self, id: u64, glob: Option<&[u8]>) -> impl Iterator<Item = Vec<u8>> {
        let fits = move |key: &Vec<u8>| glob.is_none_or(|glob| glob::matches(glob, key, false));
        self.fields.iter().filter_map(move |field| {
            let written = |form: &&Pattern| {
                let mut key = Vec::new();
                form.write(id, field.as_bytes(), &mut key);
                key
            };
            self.forms.iter().map(written).find(fits)
        })
    }
}

/// Most keys that KEYS lists, and SCAN gives at once.
pub(crate) const MOST_KEYS: u64 = 10_000;

/// Refuses to list all keys of rows where they are more than [`MOST_KEYS`].
pub(crate) fn refuse_many_keys(node: &Node) -> Outcome {
    let rows = node.engines().all_rows();
    if rows > MOST_KEYS {
        return Err(refuse!("ERR there are {rows} rows, too many to list at once: use SCAN"));
    }
    Ok(())
}

/// Gives all keys of rows that fit the glob, or of their counters where only those have keys, some
/// of them twice.
pub(crate) fn every_key(
    engines: &Engines,
    glob: Option<&[u8]>,
    take: &mut dyn FnMut(Vec<u8>),
) -> Outcome {
    for space in engines.counters() {
        let Some(listed) = Listed::of(engines, space) else { continue };
        let mut take = |id| listed.keys(id, glob).for_each(&mut *take);
        space.for_each(|id, _| take(id));
        let mut next = Some(0);
        while let Some(from) = next {
            next = space.cold().scan(space, from, MOST_KEYS, &mut take).map_err(disk)?;
        }
    }
    Ok(())
}

fn keys(call: &mut Call<'_>) -> Outcome {
    crate::handlers::redis::pubsub::check_pattern(call.args.at(1))?;
    let pattern = call.args.at(1).to_vec();
    refuse_many_keys(&call.node)?;
    call.answer_later(move |node, reply| {
        let mut found = std::collections::BTreeSet::new();
        every_key(node.engines(), Some(&pattern), &mut |key| {
            found.insert(key);
        })?;
        reply.array(found.len());
        found.iter().for_each(|key| reply.bulk(key));
        Ok(())
    })
}

fn randomkey(call: &mut Call<'_>) -> Outcome {
    if call.node.engines().has_cold() {
        return call.answer_later(|node, reply| random_from(node.engines(), reply));
    }
    random_from(call.node.engines(), &mut call.reply)
}

fn random_from(engines: &Engines, reply: &mut Reply<'_>) -> Outcome {
    let with_rows: Vec<_> = engines
        .counters()
        .iter()
        .filter(|s| s.all_rows() > 0)
        .filter_map(|s| Some((s, Listed::of(engines, s)?)))
        .collect();
    let mut random = fastrand::Rng::new();
    let mut picked = None;
    if let Some((space, listed)) = random.choice(with_rows) {
        let (here, cold) = (space.rows(), space.cold().rows());
        let mut id = None;
        if random.u64(..(here + cold).max(1)) >= here {
            id = space.cold().some_id(space, &mut random).map_err(disk)?;
        }
        // Of a file everything may have been deleted, and of memory everything spilled.
        if id.is_none() {
            id = space.some_id(random.u64(..));
        }
        if id.is_none() {
            space.cold().scan(space, 0, 1, &mut |first| id = id.or(Some(first))).map_err(disk)?;
        }
        picked = id.and_then(|id| random.choice(listed.keys(id, None).collect::<Vec<_>>()));
    }
    match picked {
        Some(key) => reply.bulk(&key),
        None => reply.null(),
    }
    Ok(())
}

/// A cursor is the slot of a space in its lowest byte, and above it the space's own cursor
/// ([`scan::step`]). It is below 2^50: clients that keep numbers as doubles do not round it, and a
/// cursor that is no smaller was not given here.
fn scan(call: &mut Call<'_>) -> Outcome {
    let cursor = resp::natural(call.args.at(1)).filter(|&cursor| cursor < scan::CURSOR_LIMIT << 8);
    let cursor = cursor.ok_or_else(|| refuse!("ERR invalid cursor"))?;
    let (mut pattern, mut most, mut kind) = (None, 10, None);
    let mut options = call.args.from(2).iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or(Refusal::SYNTAX)?;
        if option.eq_ignore_ascii_case(b"match") {
            crate::handlers::redis::pubsub::check_pattern(value)?;
            pattern = Some(value);
        } else if option.eq_ignore_ascii_case(b"count") {
            most = integer(value)?;
            if most < 1 {
                return Err(Refusal::SYNTAX);
            }
        } else if option.eq_ignore_ascii_case(b"type") {
            kind = Some(value);
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    let asked = Asked {
        pattern: pattern.map(<[u8]>::to_vec),
        most: most.unsigned_abs().min(MOST_KEYS),
        kind: kind.map(<[u8]>::to_vec),
    };
    if call.node.engines().has_cold() {
        return call
            .answer_later(move |node, reply| scan_from(node.engines(), cursor, &asked, reply));
    }
    scan_from(call.node.engines(), cursor, &asked, &mut call.reply)
}

/// What a SCAN wants.
struct Asked {
    pattern: Option<Vec<u8>>,
    most: u64,
    /// The type of the keys that are wanted.
    kind: Option<Vec<u8>>,
}

pub(crate) fn disk(error: store::Error) -> Refusal {
    refuse!("ERR {error}. {}", error.advice())
}

fn scan_from(engines: &Engines, cursor: u64, asked: &Asked, reply: &mut Reply<'_>) -> Outcome {
    let mut spaces: Vec<&CounterSpace> = engines.counters().iter().collect();
    spaces.sort_by_key(|space| space.slot());
    let (slot, inner) = (cursor & 0xff, cursor >> 8);
    let mut index = spaces.partition_point(|space| u64::from(space.slot()) < slot);
    // The last space was dropped, or the cursor is not ours: not an end.
    index = if index < spaces.len() { index } else { 0 };
    // One that was dropped meanwhile has no rows any more.
    let is_there = spaces.get(index).is_some_and(|space| u64::from(space.slot()) == slot);
    let mut inner = if is_there { inner } else { 0 };
    let mut left = asked.most;
    let mut found: Vec<Vec<u8>> = Vec::new();
    while index < spaces.len() && left > 0 {
        let space = spaces[index];
        let before = left;
        let wanted = left;
        let of_kind = |listed: &Listed<'_>| {
            asked.kind.as_ref().is_none_or(|k| k.eq_ignore_ascii_case(listed.kind.as_bytes()))
        };
        let listed = Listed::of(engines, space).filter(of_kind);
        let mut take = |id| {
            left = left.saturating_sub(1);
            let glob = asked.pattern.as_deref();
            found.extend(listed.iter().flat_map(|listed| listed.keys(id, glob)));
        };
        inner = match listed {
            None => 0,
            Some(_) => scan::step(space, inner, wanted, &mut take)?,
        };
        // Empty buckets count, too: a call must end.
        left = left.min(before.saturating_sub(1));
        if inner == 0 {
            index += 1;
        }
    }
    let next = spaces.get(index).map_or(0, |space| inner << 8 | u64::from(space.slot()));
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    reply.array(found.len());
    found.iter().for_each(|key| reply.bulk(key));
    Ok(())
}
