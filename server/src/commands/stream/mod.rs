//! `tm:changes`: the log as a Redis stream ([`dataset::changes`]).
//!
//! Log files are read on other threads. There is one exception: if only a few bytes have arrived
//! for a blocked reader, its worker reads them. These bytes are in the page cache, so the read
//! takes less than a millisecond.

pub(crate) mod claim;
mod deliver;
pub(crate) mod group;
pub(crate) mod info;
pub(crate) mod range;
pub(crate) mod read;

use crate::commands::call::integer;
use crate::commands::command::Group;
use crate::commands::flags::members::write_member;
use dataset::catalogue::Catalogue;
use dataset::changes::{Change, ChangeCursor, ChangeReadError, EntrySummary, Id, Scope, Start};
use dataset::dirty_keys::MarkedMember;
use dataset::engines::Engines;
use dataset::groups::Cursor;
use node::command::error::{Refusal, refuse};
use node::command::spec::ONE_KEY;
use node::command::streams;
use node::roles::node::Now;
use resp::{Protocol, Reply};
use std::fmt::Write as _;
use store::Position;

const STREAM: Group = Group::new("stream", "5.0.0", ONE_KEY);
/// Complexity of commands that read entries.
const READ_COST: &str = "O(N+M) where N is the number of returned entries and M is 64 KiB of log, \
                         or the size of the segment that contains a given id if that segment has \
                         not been read since the server started";
/// Complexity of commands that need the number of entries.
const LENGTH_ITEMS: &str = "bytes of the log in the first call, and of bytes appended since the \
                            previous call in later calls";

/// Maximum number of entries per stream in a reply.
const MAX_ENTRIES: usize = 10_000;
/// Maximum size in bytes of the entries in a reply. A larger entry is returned alone.
const MAX_REPLY_BYTES: usize = 4 << 20;
/// Number of log bytes read between two checks that the client is still connected.
const STEP_BYTES: u64 = 8 << 20;

/// Refusal of commands that would change a stream.
pub(crate) const READ_ONLY: Refusal =
    Refusal::fixed(b"ERR tm:changes is a read-only stream of the changes made by other commands");
const INVALID_ID: Refusal =
    Refusal::fixed(b"ERR Invalid stream ID specified as stream command argument");

/// Resolves a key to a stream. Returns `None` if the key does not name a stream.
fn scope(node: Now<'_>, key: &[u8]) -> Result<Option<Scope>, Refusal> {
    let engines = node.engines();
    match streams::scope_of(engines, key) {
        None if engines.resolve(key).is_ok() => Err(Refusal::WRONG_TYPE),
        scope => Ok(scope),
    }
}

/// Parses COUNT where 0 or less means the maximum.
fn count(text: Option<&[u8]>) -> Result<usize, Refusal> {
    let asked = text.map(integer).transpose()?.unwrap_or(0);
    let asked = usize::try_from(asked).unwrap_or(0);
    Ok(if asked == 0 { MAX_ENTRIES } else { asked.min(MAX_ENTRIES) })
}

/// Parses an id. `missing` replaces the second part if the text has none.
fn id(text: &[u8], missing: u64) -> Result<Id, Refusal> {
    let mut parts = text.splitn(2, |byte| *byte == b'-');
    let mut number = || parts.next().map(resp::natural);
    let term = number().flatten().ok_or(INVALID_ID)?;
    let seq = number().map_or(Ok(missing), |seq| seq.ok_or(INVALID_ID))?;
    Ok(Id { term, seq })
}

/// Returns the error for a reader that cannot start at `at`. `first` is the first available entry.
fn refusal(lost: &ChangeReadError, at: &str, first: Option<Id>) -> Refusal {
    match lost {
        ChangeReadError::Trimmed => {
            let first = first.map_or("none".to_owned(), |id| id.to_string());
            refuse!(
                "TRIMMED the log no longer has {at} and begins at {first} now: read all data again \
                 and follow from there (docs/changes.md)"
            )
        }
        ChangeReadError::OtherHistory | ChangeReadError::Ahead => refuse!(
            "PARTED {at} is not in the history of this server: read all data again and follow \
             from there (docs/changes.md)"
        ),
        ChangeReadError::Store(error) => refuse!("ERR {error}. {}", error.advice()),
    }
}

#[derive(Default)]
struct Found {
    bytes: Vec<u8>,
    count: usize,
}

impl Found {
    fn is_full(&self, most: usize) -> bool {
        self.count >= most || self.bytes.len() >= MAX_REPLY_BYTES
    }

    fn write(&self, reply: &mut Reply<'_>) {
        reply.array(self.count);
        reply.bytes().extend_from_slice(&self.bytes);
    }
}

/// The log of a node, up to the position that was durable when this value was created.
#[derive(Clone, Copy)]
struct Log<'a> {
    node: Now<'a>,
    end: Position,
}

impl<'a> Log<'a> {
    fn new(node: Now<'a>) -> Log<'a> {
        Log { node, end: node.durability.applied_and_synced() }
    }

    /// Returns the position where a reader starts, or `None` if the position is beyond the end. On
    /// a replica, entries may still arrive there. On a master, a position beyond the end belongs to
    /// a diverged history, which is an error.
    fn find(&self, scope: Scope, start: Start) -> Result<Option<ChangeCursor>, Refusal> {
        let node = self.node;
        match node.changes.find(&node.store, self.end, start) {
            Ok(place) => Ok(Some(place)),
            Err(ChangeReadError::Ahead) if !node.replication.is_master() => Ok(None),
            // The entry is written but not durable. A replica may already have returned it.
            Err(ChangeReadError::Ahead) if self.is_written(start) => Ok(None),
            Err(lost) => {
                let (Start::After(id) | Start::At(id)) = start else {
                    return Err(refusal(&lost, "its start", None));
                };
                let first = match lost {
                    ChangeReadError::Trimmed => self.first(scope)?,
                    _ => None,
                };
                Err(refusal(&lost, &id.to_string(), first))
            }
        }
    }

    /// Returns true if a position is in the part of the log that is written but not yet durable.
    fn is_written(&self, start: Start) -> bool {
        let (Start::After(id) | Start::At(id)) = start else { return true };
        let (written, _) = self.node.durability.positions();
        self.node.changes.find(&self.node.store, written, start).is_ok() || id == Id::MIN
    }

    /// Returns the id of the entry before a cursor. A group may store only the id of the entry
    /// after it.
    fn delivered(&self, scope: Scope, cursor: Cursor) -> Result<Id, Refusal> {
        let Cursor::At(id) = cursor else { return Ok(cursor.last()) };
        let (node, engines) = (self.node, self.node.engines());
        let make = |id: Id, space: u32, change: Change<'_>| {
            let is_shown = write_entry(engines, scope, (id, space, change), &mut Vec::new());
            is_shown.then(|| id.to_string().into_bytes())
        };
        let ends = (id.before(), Id::MIN);
        let found = node.changes.read_back(&node.store, self.end, scope, ends, 1, make);
        let found = found.map_err(|lost| refusal(&lost, "this position", None))?;
        found.first().map_or(Ok(Id::MIN), |text| self::id(text, 0))
    }

    /// Returns the number of entries, and the first and the last entry of a stream.
    fn tally(&self, scope: Scope) -> Result<EntrySummary, Refusal> {
        let (engines, node) = (self.node.engines(), self.node);
        let tally = node.changes.count(&node.store, self.end, scope, |space| engines.has(space));
        tally.map_err(|lost| refusal(&lost, "its start", None))
    }

    /// Returns the number of entries that follow the given position, or `None` if the log no longer
    /// contains that position.
    fn lag(&self, scope: Scope, start: Start) -> Result<Option<u64>, Refusal> {
        let (engines, node) = (self.node.engines(), self.node);
        let place = match node.changes.find(&node.store, self.end, start) {
            Ok(place) => place,
            Err(ChangeReadError::Ahead) => return Ok(Some(0)),
            Err(ChangeReadError::Store(error)) => {
                return Err(refusal(&ChangeReadError::Store(error), "", None));
            }
            Err(_) => return Ok(None),
        };
        let is_known = |space| engines.has(space);
        match node.changes.count_after(&node.store, self.end, scope, place, is_known) {
            Ok(lag) => Ok(Some(lag)),
            Err(ChangeReadError::Store(error)) => {
                Err(refusal(&ChangeReadError::Store(error), "", None))
            }
            Err(_) => Ok(None),
        }
    }

    /// Returns the number of log segments and the log's first offset.
    fn reach(&self) -> Result<(usize, u64), Refusal> {
        let reach = self.node.changes.reach(&self.node.store, self.end);
        reach.map_err(|lost| refusal(&lost, "its start", None))
    }

    fn first(&self, scope: Scope) -> Result<Option<Id>, Refusal> {
        let mut first = None;
        let found = self.node.changes.find(&self.node.store, self.end, Start::Oldest);
        let Ok(mut place) = found else { return Ok(None) };
        let read = self.read_on(scope, &mut place, &|| true, |id, _| {
            first = Some(id);
            false
        });
        read.map_err(|lost| refusal(&lost, "its start", None))?;
        Ok(first)
    }

    /// Passes the entries after a position to `each`, encoded for a reply. Stops when `each` or
    /// `goes_on` returns false.
    fn read(
        &self,
        scope: Scope,
        place: &mut ChangeCursor,
        goes_on: &dyn Fn() -> bool,
        each: impl FnMut(Id, &[u8]) -> bool,
    ) -> Result<(), Refusal> {
        self.read_on(scope, place, goes_on, each).map_err(|lost| {
            let is_trimmed = matches!(lost, ChangeReadError::Trimmed);
            let first = if is_trimmed { self.first(scope).ok().flatten() } else { None };
            refusal(&lost, "this position", first)
        })
    }

    fn read_on(
        &self,
        scope: Scope,
        place: &mut ChangeCursor,
        goes_on: &dyn Fn() -> bool,
        mut each: impl FnMut(Id, &[u8]) -> bool,
    ) -> Result<(), ChangeReadError> {
        let (engines, node) = (self.node.engines(), self.node);
        let mut bytes = Vec::new();
        loop {
            let mut is_enough = false;
            let told = |id: Id, space: u32, change: Change<'_>| {
                bytes.clear();
                if write_entry(engines, scope, (id, space, change), &mut bytes) {
                    is_enough = !each(id, &bytes);
                }
                !is_enough
            };
            let is_done =
                node.changes.read(&node.store, self.end, scope, place, STEP_BYTES, told)?;
            if is_done || is_enough || !goes_on() {
                return Ok(());
            }
        }
    }

    /// Returns the entry with this id, if the log still contains it.
    fn entry(&self, scope: Scope, id: Id) -> Result<Option<Vec<u8>>, Refusal> {
        let mut place = match self.node.changes.find(&self.node.store, self.end, Start::At(id)) {
            Ok(place) => place,
            Err(ChangeReadError::Store(error)) => {
                return Err(refusal(&ChangeReadError::Store(error), "", None));
            }
            Err(_) => return Ok(None),
        };
        let mut found = None;
        self.read(scope, &mut place, &|| true, |other, bytes| {
            found = (other == id).then(|| bytes.to_vec());
            false
        })?;
        Ok(found)
    }

    /// Appends the entries after a position to `found` until it is full.
    fn collect(
        &self,
        scope: Scope,
        place: &mut ChangeCursor,
        most: usize,
        goes_on: &dyn Fn() -> bool,
        found: &mut Found,
    ) -> Result<(), Refusal> {
        self.read(scope, place, goes_on, |_, bytes| {
            found.bytes.extend_from_slice(bytes);
            found.count += 1;
            !found.is_full(most)
        })
    }
}

/// Reserved field names of entries. A counter with one of these names appears under a different
/// name.
const OWN_FIELDS: [&str; 8] =
    ["space", "id", "deleted", "member", "member_hash", "set", "forgotten", "horizon"];

/// Encodes an entry: its id, and its fields with their values. Returns false if the space was
/// dropped.
fn write_entry(
    engines: &Engines,
    scope: Scope,
    (id, space, change): (Id, u32, Change<'_>),
    out: &mut Vec<u8>,
) -> bool {
    // RESP2 and RESP3 encode arrays of strings the same way.
    let mut reply = Reply::new(out, Protocol::Resp2);
    let mut entry = |fields: usize| {
        reply.array(2);
        reply.bulk(id.to_string().as_bytes());
        reply.array(2 * fields);
    };
    match change {
        Change::Catalogue(payload) => {
            let catalogue = Catalogue::decode(payload).unwrap_or_default();
            let fields = schema_fields(&catalogue, scope);
            entry(fields.len());
            let fields: Vec<_> = fields.iter().map(|(name, text)| (&**name, &**text)).collect();
            write_fields(&mut reply, &fields);
        }
        Change::Row(row, values) => {
            let Some(space) = engines.counter_by_number(space) else { return false };
            let schema = space.schema();
            let fields = values.map_or(1, |_| schema.living().count());
            entry(2 + fields);
            write_fields(&mut reply, &[("space", space.name()), ("id", &row.to_string())]);
            let Some(values) = values else {
                write_fields(&mut reply, &[("deleted", "1")]);
                return true;
            };
            for (at, field) in schema.living() {
                if OWN_FIELDS.contains(&field.name.as_str()) {
                    reply.bulk(format!("counter.{}", field.name).as_bytes());
                } else {
                    reply.bulk(field.name.as_bytes());
                }
                // A field that was added after the entry was written has the value 0.
                reply.bulk_int(values.get(at).copied().unwrap_or(0));
            }
        }
        Change::Pair(pair, member, set) => {
            let Some(space) = engines.existence_by_number(space) else { return false };
            let (name, text) = match member {
                MarkedMember::Number(number) => ("member", number.to_string()),
                MarkedMember::Hash(hash) => {
                    ("member_hash", format!("{:032x}", MarkedMember::hash_of(hash)))
                }
            };
            entry(3 + usize::from(space.has_members));
            write_fields(&mut reply, &[("space", space.name()), ("id", &pair.to_string())]);
            if space.has_members {
                write_fields(&mut reply, &[(name, &text)]);
            }
            write_fields(&mut reply, &[("set", if set { "1" } else { "0" })]);
        }
        Change::ExactPair(pair) => {
            let Some(space) = engines.existence_by_number(space) else { return false };
            entry(4);
            write_fields(&mut reply, &[("space", space.name()), ("id", &pair.id.to_string())]);
            reply.bulk(b"member");
            write_member(&mut reply, pair.member);
            write_fields(&mut reply, &[("set", if pair.set { "1" } else { "0" })]);
        }
        Change::Forgotten(id) => {
            let Some(space) = engines.existence_by_number(space) else { return false };
            let id = id.to_string();
            entry(3);
            write_fields(&mut reply, &[("space", space.name()), ("id", &id), ("forgotten", "1")]);
        }
        Change::Horizon(low) => {
            let Some(space) = engines.existence_by_number(space) else { return false };
            entry(2);
            write_fields(&mut reply, &[("space", space.name()), ("horizon", &low.to_string())]);
        }
    }
    true
}

fn write_fields(reply: &mut Reply<'_>, fields: &[(&str, &str)]) {
    for (name, value) in fields {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
}

/// Returns the fields of a catalogue entry: the version of the catalogue, and a description of each
/// requested space.
fn schema_fields(catalogue: &Catalogue, scope: Scope) -> Vec<(String, String)> {
    let is_wanted = |number: u32| scope == Scope::All || scope == Scope::Space(number);
    let mut fields = vec![("schema".to_owned(), catalogue.version.to_string())];
    for known in catalogue.counter.iter().filter(|known| is_wanted(known.number)) {
        let mut text = "counter".to_owned();
        if let Ok(schema) = ::counter::Schema::parse(&known.made.fields) {
            schema.living().for_each(|(_, field)| _ = write!(text, " {}", field.name));
        }
        fields.push((format!("space.{}", known.made.name), text));
        if known.horizon > 0 {
            fields.push((format!("horizon.{}", known.made.name), known.horizon.to_string()));
        }
    }
    for known in catalogue.existence.iter().filter(|known| is_wanted(known.number)) {
        fields.push((format!("space.{}", known.made.name), "existence".to_owned()));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_two_numbers_or_one() {
        let read = |text: &str| id(text.as_bytes(), 7).ok().map(|id| (id.term, id.seq));
        let most = u64::MAX;
        for (text, is) in [
            ("0", Some((0, 7))),
            ("0-0", Some((0, 0))),
            ("18446744073709551615-18446744073709551615", Some((most, most))),
            ("18446744073709551616-0", None),
            ("1-18446744073709551616", None),
            ("1-", None),
            ("-1", None),
            ("", None),
            ("1-2-3", None),
            ("*", None),
            ("1-*", None),
        ] {
            assert_eq!(read(text), is, "{text}");
        }
    }
}
