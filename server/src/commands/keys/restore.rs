//! DUMP and RESTORE in Redis's serialization format, for MIGRATE, RedisShake and similar tools.
//!
//! RESTORE parses the whole payload before it changes anything. A hash maps to a row key, a string
//! with an integer to a cell key, a set to the key of an id's pairs. As in Redis, an existing row
//! or cell is refused with `BUSYKEY`. A cell with value 0 is not refused, because its row may exist
//! only because of another cell. Without a ledger the server cannot determine whether an id has
//! pairs, so members are added to the existing members.

use crate::commands::call::{Call, integer};
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::counter::string::value;
use crate::commands::flags::members::dump_members;
use crate::commands::keys::keyspace::{delete_key, has_pairs, has_passed, refuse_expiry};
use crate::session::suspend::SuspendResult;
use dataset::cold::Unreadable;
use dataset::engines::{CounterSpace, Engines, ExistenceSpace, KeyRef};
use dataset::options::Expire;
use node::command::error::{Printable, Refusal, no_field, refuse};
use node::command::spec::{ONE_KEY, Outcome, flag};
use node::roles::node::Now;
use phantom::{Change, Member};
use rdb::{Element, Kind, Payload};

const GENERIC: Group = Group::new("generic", "2.6.0", ONE_KEY);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    GENERIC.row("dump", 2, flag::READONLY, "key", Once(dump),
        "Serializes a row as a hash, or a counter as a string, for RESTORE by Redis 2.6 and later \
         or by Valkey. Returns nil if the row does not exist. In a space with a ledger, serializes \
         the members of an id as a set. Fails for sets in a space without a ledger, because a \
         filter cannot list members.").linear("fields")
        .tips(&["nondeterministic_output"]),
    GENERIC.row("restore", -4, flag::WRITE | flag::DENYOOM,
        "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        Once(restore),
        "Restores a payload of DUMP by Redis 2.6 to 8 or Valkey: a hash of integers for a row, a \
         string with an integer for a counter, or a set for the pairs of an id. In a space without \
         a ledger, the members of a set are added to the existing members. Unknown types, such as \
         hash templates of Redis 8.10 (RDB types 29 and 31), are rejected with an error that names \
         the type and the RDB version. Validates the whole payload before any change. REPLACE \
         overwrites the old value: fields that are missing in the hash become 0, and with a ledger \
         the old members of a set are deleted. Without REPLACE, fails with BUSYKEY if the key is \
         an existing row, a counter that is not 0, or, with a ledger, a set that has members. \
         Fails if ttl is above 0 or a field has an expiry, unless the space has expire = \
         \"ignore\". In such a space, if ttl is in the past (ABSTTL), nothing is restored, and \
         REPLACE deletes the old value, as in Redis. RESTORE of a set is not allowed between MULTI \
         and EXEC.")
        .linear("bytes of the payload and of the members of a set").uses("OW update"),
    GENERIC.row("restore-asking", -4, flag::WRITE | flag::DENYOOM,
        "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        Once(restore),
        "Same as RESTORE, for MIGRATE from a Redis cluster.").group("server").since("3.0.0")
        .linear("bytes of the payload and of the members of a set").uses("OW update"),
];

/// Maximum number of members that are added on the worker. Larger sets, and sets in a space with
/// tables on disk, are added on another thread, so that they do not delay other clients.
const MEMBERS_IN_PLACE: usize = 256;

const BUSY_KEY: Refusal = Refusal::fixed(b"BUSYKEY Target key name already exists.");

fn dump(call: &mut Call<'_>) -> Outcome {
    let payload = match call.known(call.args.at(1))? {
        Some(KeyRef::Row { space, id }) => {
            let mut view = space.read();
            let mut row = vec![0; view.schema().width()];
            view.get(id, &mut row)?.then(|| {
                let fields: Vec<_> = view.schema().living().collect();
                rdb::dump_hash(fields.iter().map(|(at, field)| (field.name.as_bytes(), row[*at])))
            })
        }
        Some(KeyRef::Cell { space, id, field }) => value(space, id, field)?.map(rdb::dump_string),
        Some(KeyRef::Pair { space, id }) if space.ledger().is_some() => {
            let number = space.number();
            return dump_members(call, number, id);
        }
        Some(KeyRef::Pair { .. }) => {
            return Err(refuse!(
                "ERR DUMP of pairs needs a ledger (ledger exact): a filter cannot list the \
                 members of an id"
            ));
        }
        None => None,
    };
    call.note_found(payload.is_some());
    match payload {
        Some(payload) => call.reply.bulk(&payload),
        None => call.reply.null(),
    }
    Ok(())
}

/// Parses the options after the payload. Returns whether REPLACE and ABSTTL are set. Checks the
/// eviction options (IDLETIME, FREQ) and ignores them.
fn options(call: &Call<'_>) -> Result<(bool, bool), Refusal> {
    let (mut replace, mut absolute, mut idle, mut frequency) = (false, false, false, false);
    let mut words = call.args.from(4).iter();
    while let Some(word) = words.next() {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        if is(b"replace") {
            replace = true;
        } else if is(b"idletime") && !frequency {
            if integer(words.next().ok_or(Refusal::SYNTAX)?)? < 0 {
                return Err(refuse!("ERR Invalid IDLETIME value, must be >= 0"));
            }
            idle = true;
        } else if is(b"freq") && !idle {
            if !(0..=255).contains(&integer(words.next().ok_or(Refusal::SYNTAX)?)?) {
                return Err(refuse!("ERR Invalid FREQ value, must be >= 0 and <= 255"));
            }
            frequency = true;
        } else if is(b"absttl") {
            absolute = true;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    Ok((replace, absolute))
}

/// Executes RESTORE, and adds the key to an error. MIGRATE sends many keys at once and reports only
/// one error.
fn restore(call: &mut Call<'_>) -> Outcome {
    let Err(refusal) = put(call) else { return Ok(()) };
    let text = String::from_utf8_lossy(refusal.text());
    let key = Printable(call.args.at(1)).to_string();
    // Leave BUSYKEY unchanged, because tools compare its text.
    if refusal.text() == BUSY_KEY.text() || text.contains(&key) {
        return Err(refusal);
    }
    Err(refuse!("{text} (key '{key}')"))
}

fn put(call: &mut Call<'_>) -> Outcome {
    if let Some(added) = call.session.suspension.take_result() {
        added?;
        call.reply.ok();
        return Ok(());
    }
    let (replace, absolute) = options(call)?;
    let key = call.node.engines().resolve(call.args.at(1))?;
    // As in Redis, the key is checked before the payload. The change itself checks the key again.
    if !replace && is_busy(&key)? {
        return Err(BUSY_KEY);
    }
    let ttl = integer(call.args.at(2))?;
    if ttl < 0 {
        return Err(refuse!("ERR Invalid TTL value, must be >= 0"));
    }
    let payload = Payload::open(call.args.at(3))?;
    if ttl > 0 && key.expire() == Expire::Refuse {
        return Err(refuse_expiry(call));
    }
    let wanted = match key {
        KeyRef::Row { .. } => Kind::Hash,
        KeyRef::Cell { .. } => Kind::String,
        KeyRef::Pair { .. } => Kind::Set,
    };
    if payload.kind() != wanted {
        return Err(refuse!(
            "ERR Bad data format: the payload is a {}, but '{}' is the key of a {}",
            payload.kind().name(),
            Printable(call.args.at(1)),
            wanted.name()
        ));
    }
    if ttl > 0 && has_passed(ttl, absolute) {
        // As in Redis, an expired value is not created, but REPLACE still deletes the existing
        // value.
        if replace {
            delete_key(call.node.engines(), &key)?;
        }
        call.reply.ok();
        return Ok(());
    }
    let put = match key {
        KeyRef::Row { space, id } => {
            let values = row(space, &payload)?;
            call.node.engines().put_row(space, id, &values, replace)?
        }
        KeyRef::Cell { space, id, field } => {
            let value = (field, cell(&payload)?);
            call.node.engines().put_cell(space, id, value, replace)?
        }
        KeyRef::Pair { space, id } => return pairs(call, space, id, &payload, replace),
    };
    if !put {
        return Err(BUSY_KEY);
    }
    call.reply.ok();
    Ok(())
}

/// Returns whether data exists that RESTORE without REPLACE must keep.
fn is_busy(key: &KeyRef<'_>) -> Result<bool, Unreadable> {
    match *key {
        KeyRef::Row { space, id } => space.exists(id),
        KeyRef::Cell { space, id, field } => {
            Ok(value(space, id, field)?.is_some_and(|now| now != 0))
        }
        KeyRef::Pair { space, id } => Ok(has_pairs(space, id)? == Some(true)),
    }
}

fn row(space: &CounterSpace, payload: &Payload<'_>) -> Result<Vec<(usize, i64)>, Refusal> {
    let mut values: Vec<(usize, i64)> = Vec::new();
    let mut field: Option<(usize, Vec<u8>)> = None;
    payload.elements(|element| {
        let Element::Text(element) = element else {
            return match &field {
                Some((_, name)) if space.expire == Expire::Refuse => Err(refuse_field_expiry(name)),
                _ => Ok(()),
            };
        };
        let Some((position, name)) = field.take() else {
            let position = space.index_of(element);
            let position = position.ok_or_else(|| no_field(space.name(), element))?;
            if values.iter().any(|value| value.0 == position) {
                return Err(refuse!(
                    "ERR Bad data format: duplicate field '{}'",
                    Printable(element)
                ));
            }
            field = Some((position, element.to_vec()));
            return Ok(());
        };
        let value = resp::integer(element).ok_or_else(|| {
            refuse!(
                "ERR hash value is not an integer: field '{}' is '{}'",
                Printable(&name),
                Printable(element)
            )
        })?;
        values.push((position, value));
        Ok(())
    })?;
    Ok(values)
}

#[cold]
fn refuse_field_expiry(name: &[u8]) -> Refusal {
    refuse!(
        "ERR field '{}' has an expiry: counters, rows and pairs do not expire (set expire = \
         \"ignore\" in the space's configuration to accept it)",
        Printable(name)
    )
}

fn cell(payload: &Payload<'_>) -> Result<i64, Refusal> {
    let mut value = None;
    payload.elements(|element| {
        let Element::Text(text) = element else { return Ok(()) };
        let number = resp::integer(text).ok_or_else(|| {
            refuse!("ERR value is not an integer or out of range: '{}'", Printable(text))
        })?;
        value = Some(number);
        Ok::<(), Refusal>(())
    })?;
    value.ok_or(Refusal::NOT_AN_INTEGER)
}

/// Adds the members of a set. With `replace` and a ledger, existing members are removed first.
fn pairs(
    call: &mut Call<'_>,
    space: &ExistenceSpace,
    id: u64,
    payload: &Payload<'_>,
    replace: bool,
) -> Outcome {
    if !space.has_members {
        return Err(Refusal::no_members(space));
    }
    if call.session.in_exec {
        // In a transaction, EXEC reserves log space by the number of arguments. That reservation
        // does not cover the members.
        return Err(refuse!("ERR RESTORE of a set is not allowed in a transaction"));
    }
    let mut members = 0;
    payload.elements(|_| {
        members += 1;
        Ok::<(), Refusal>(())
    })?;
    let replaces = replace && space.ledger().is_some() && has_pairs(space, id)? == Some(true);
    if members <= MEMBERS_IN_PLACE && !space.cold().any() {
        add(call.node.engines(), space, id, payload, members, replaces)?;
        call.reply.ok();
        return Ok(());
    }
    let (key, bytes) = (call.args.at(1).to_vec(), call.args.at(3).to_vec());
    let work = move |node: Now<'_>| -> SuspendResult {
        let _whole = node.node().begin_long_change()?;
        if let KeyRef::Pair { space, id } = node.engines().resolve(&key)? {
            add(node.engines(), space, id, &Payload::open(&bytes)?, members, replaces)?;
        }
        Ok(Vec::new())
    };
    // When all members are added, the request runs again and writes its reply.
    call.suspension(work);
    Ok(())
}

/// Adds members one by one. Pairs are independent and adding them is idempotent, so a client may
/// repeat a RESTORE that was partly refused.
fn add(
    engines: &Engines,
    space: &ExistenceSpace,
    id: u64,
    payload: &Payload<'_>,
    members: usize,
    replaces: bool,
) -> Outcome {
    if id < space.horizon() {
        return Err(Refusal::TABLE_RECYCLED);
    }
    payload.elements(|element| match element {
        Element::Text(member) => space.may_write(&Member::parse(member)).map_err(Refusal::from),
        _ => Ok(()),
    })?;
    if replaces {
        engines.forget_flags(space, id)?;
    }
    let mut added = 0;
    payload.elements(|element| {
        let Element::Text(member) = element else { return Ok(()) };
        let change = engines.flag(space, id, &Member::parse(member));
        match change.map_err(Refusal::from) {
            Ok(Change::Unknown) => Err(Refusal::TABLE_RECYCLED),
            Ok(_) => {
                added += 1;
                Ok(())
            }
            Err(refusal) if added == 0 => Err(refusal),
            Err(refusal) => Err(refuse!(
                "{} ({added} of {members} members were set; retrying is safe)",
                String::from_utf8_lossy(refusal.text())
            )),
        }
    })
}
