//! KEYS, SCAN and RANDOMKEY. These commands list row keys. In a space whose rows have no keys, they
//! list cell keys.

use crate::commands::call::{Call, disk, integer};
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::counter::scan::{self, MAX_KEYS};
use dataset::engines::{CounterSpace, Engines};
use dataset::key_patterns::{Kind, Pattern};
use node::command::error::{Refusal, refuse};
use node::command::spec::{NO_KEYS, Outcome, flag};
use node::roles::node::Node;
use node::runtime::glob;
use resp::Reply;

const GENERIC: Group = Group::new("generic", "1.0.0", NO_KEYS);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    GENERIC.row("keys", 2, flag::READONLY | flag::NO_MULTI, "pattern", Once(keys),
        "Returns the keys of rows that match the pattern. In a space where only counters have \
         keys, returns the keys of counters. Fails if all spaces together have more than 10000 \
         rows. Does not return keys of sets.")
        .linear("rows of all spaces, at most 10000")
        .tips(&["request_policy:all_shards", "nondeterministic_output_order"]),
    GENERIC.row("scan", -2, flag::READONLY | flag::NO_MULTI,
        "cursor [MATCH pattern] [COUNT count] [TYPE type]", Once(scan),
        "Iterates over the keys of rows. In a space where only counters have keys, iterates over \
         the keys of counters. Returns the next cursor (0 at the end) and an array of keys. Start \
         with cursor 0. A row that exists during the whole iteration is returned at least once, \
         possibly twice. Cursors are below 2^50, so that clients may store them as doubles. Does \
         not return keys of sets.")
        .since("2.8.0")
        .cost("O(1) for every call, O(N) for a complete iteration, where N is the number of rows")
        .tips(&["request_policy:special", "nondeterministic_output"]),
    GENERIC.row("randomkey", 1, flag::READONLY | flag::NO_MULTI, "", Once(randomkey),
        "Returns the key of an arbitrary row, or nil if there are no rows. In a space where only \
         counters have keys, returns the key of a counter of the row.")
        .tips(&["request_policy:all_shards", "nondeterministic_output"]),
];

/// Key patterns of a space. They yield one key per row, or one key per counter if rows have no
/// keys.
struct RowKeyPatterns<'a> {
    /// Patterns of the keys, in order of preference.
    forms: Vec<&'a Pattern>,
    /// Names of the counters with keys. If the row itself has a key, the list contains a single
    /// empty name.
    fields: Vec<String>,
    kind: &'static str,
}

impl<'a> RowKeyPatterns<'a> {
    /// Returns the patterns of a space, or `None` if neither its rows nor its counters have keys.
    fn of(engines: &'a Engines, space: &CounterSpace) -> Option<RowKeyPatterns<'a>> {
        let forms = |kind| -> Vec<_> { engines.counter_patterns(space, kind).collect() };
        let rows = forms(Kind::Row);
        if !rows.is_empty() {
            return Some(RowKeyPatterns { forms: rows, fields: vec![String::new()], kind: "hash" });
        }
        let fields = space.schema().living().map(|(_, field)| field.name.clone()).collect();
        let cells = forms(Kind::Cell);
        (!cells.is_empty()).then_some(RowKeyPatterns { forms: cells, fields, kind: "string" })
    }

    /// Returns the keys of one row. For each key, uses the first pattern that yields a key matching
    /// the glob.
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

/// Refuses to list more than [`MAX_KEYS`] rows at once.
pub(crate) fn refuse_many_keys(node: &Node) -> Outcome {
    let rows = node.engines().all_rows();
    if rows > MAX_KEYS {
        return Err(refuse!("ERR too many rows ({rows}) to list at once: use SCAN"));
    }
    Ok(())
}

/// Passes all matching keys to `take`. Some keys may be passed twice.
pub(crate) fn every_key(
    engines: &Engines,
    glob: Option<&[u8]>,
    take: &mut dyn FnMut(Vec<u8>),
) -> Outcome {
    for space in engines.counters() {
        let Some(listed) = RowKeyPatterns::of(engines, space) else { continue };
        let mut take = |id| listed.keys(id, glob).for_each(&mut *take);
        space.for_each(|id, _| take(id));
        let mut next = Some(0);
        while let Some(from) = next {
            next = space.cold().scan(space, from, MAX_KEYS, &mut take).map_err(disk)?;
        }
    }
    Ok(())
}

fn keys(call: &mut Call<'_>) -> Outcome {
    crate::commands::pubsub::check_pattern(call.args.at(1))?;
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
        .filter_map(|s| Some((s, RowKeyPatterns::of(engines, s)?)))
        .collect();
    let mut random = fastrand::Rng::new();
    let mut picked = None;
    if let Some((space, listed)) = random.choice(with_rows) {
        let (here, cold) = (space.rows(), space.cold().rows());
        let mut id = None;
        if random.u64(..(here + cold).max(1)) >= here {
            id = space.cold().some_id(space, &mut random).map_err(disk)?;
        }
        // No row was found. The sampled file may contain only deleted rows, or all rows in memory
        // may have been spilled in the meantime.
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

/// SCAN. The low byte of a cursor identifies the space, independently of which other spaces exist.
/// The other bits are the cursor within the space ([`scan::step`]). Cursors are less than 2^50, so
/// clients may store them as doubles.
fn scan(call: &mut Call<'_>) -> Outcome {
    let cursor = resp::natural(call.args.at(1)).filter(|&cursor| cursor < scan::CURSOR_LIMIT << 8);
    let cursor = cursor.ok_or_else(|| refuse!("ERR invalid cursor"))?;
    let (mut pattern, mut most, mut kind) = (None, 10, None);
    let mut options = call.args.from(2).iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or(Refusal::SYNTAX)?;
        if option.eq_ignore_ascii_case(b"match") {
            crate::commands::pubsub::check_pattern(value)?;
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
    let asked = KeyScan {
        pattern: pattern.map(<[u8]>::to_vec),
        most: most.unsigned_abs().min(MAX_KEYS),
        kind: kind.map(<[u8]>::to_vec),
    };
    if call.node.engines().has_cold() {
        return call
            .answer_later(move |node, reply| scan_from(node.engines(), cursor, &asked, reply));
    }
    scan_from(call.node.engines(), cursor, &asked, &mut call.reply)
}

struct KeyScan {
    pattern: Option<Vec<u8>>,
    most: u64,
    kind: Option<Vec<u8>>,
}

fn scan_from(engines: &Engines, cursor: u64, asked: &KeyScan, reply: &mut Reply<'_>) -> Outcome {
    let mut spaces: Vec<&CounterSpace> = engines.counters().iter().collect();
    spaces.sort_by_key(|space| space.slot());
    let (slot, inner) = (cursor & 0xff, cursor >> 8);
    let mut index = spaces.partition_point(|space| u64::from(space.slot()) < slot);
    // The last space was dropped, or the cursor is invalid. Start over instead of reporting the
    // end.
    index = if index < spaces.len() { index } else { 0 };
    // A space dropped during the scan has no rows left.
    let is_there = spaces.get(index).is_some_and(|space| u64::from(space.slot()) == slot);
    let mut inner = if is_there { inner } else { 0 };
    let mut left = asked.most;
    let mut found: Vec<Vec<u8>> = Vec::new();
    while index < spaces.len() && left > 0 {
        let space = spaces[index];
        let before = left;
        let wanted = left;
        let of_kind = |listed: &RowKeyPatterns<'_>| {
            asked.kind.as_ref().is_none_or(|k| k.eq_ignore_ascii_case(listed.kind.as_bytes()))
        };
        let listed = RowKeyPatterns::of(engines, space).filter(of_kind);
        let mut take = |id| {
            left = left.saturating_sub(1);
            let glob = asked.pattern.as_deref();
            found.extend(listed.iter().flat_map(|listed| listed.keys(id, glob)));
        };
        inner = match listed {
            None => 0,
            Some(_) => scan::step(space, inner, wanted, &mut take)?,
        };
        // An empty bucket also counts as one row, so that the time of a call is bounded.
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
