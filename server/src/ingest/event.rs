//! Strict parser for the events in broker messages. A malformed event is a poison event.
//!
//! A message holds any number of events, either as lines of JSON objects or in a binary format,
//! concatenated:
//!
//! ```text
//!   number << 1 | text   number: index of the event in the list `events`, from 0
//!   id
//!   act, undo            member: a number, or, if text is 1, a length and that many bytes
//!   increment, set       zigzag value
//! ```
//!
//! All numbers are LEB128. A malformed line of JSON is one poison event. The end of a malformed
//! binary event is unknown, so the rest of its message is one poison event.

use dataset::engines::events::EventEffect;
use dataset::engines::{Action, CounterSpace, Engines};
use dataset::log_records::take_number;
use node::config::{Ingest, IngestFormat};
use node::config::{Mapped, Verb};
use phantom::Member;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

const MAX_MEMBER_BYTES: usize = 64 << 10;

#[derive(Debug, PartialEq)]
pub(super) struct Event<'a> {
    name: Name<'a>,
    pub(super) id: u64,
    member: Option<Cow<'a, [u8]>>,
    number: Option<u64>,
    field: Option<Cow<'a, str>>,
    value: Option<i64>,
}

#[derive(Debug, PartialEq)]
enum Name<'a> {
    Text(Cow<'a, str>),
    /// Index into the list `events`.
    Place(usize),
}

/// A parsed event, or the reason why the event is malformed.
pub(super) type Read<'a> = Result<Event<'a>, String>;

/// Parses the next event and removes its bytes from `rest`. Returns `None` at the end of the
/// message.
pub(super) fn next<'a>(
    rest: &mut &'a [u8],
    config: &Ingest,
    mapped: &[Mapped],
) -> Option<(&'a [u8], Read<'a>)> {
    match config.format {
        IngestFormat::Json => loop {
            if rest.is_empty() {
                return None;
            }
            let end = rest.iter().position(|&byte| byte == b'\n');
            let line = rest[..end.unwrap_or(rest.len())].trim_ascii();
            *rest = &rest[end.map_or(rest.len(), |end| end + 1)..];
            if !line.is_empty() {
                return Some((line, read_json(line, config)));
            }
        },
        IngestFormat::Binary => {
            let all = *rest;
            if all.is_empty() {
                return None;
            }
            let event = read_binary(rest, mapped);
            if event.is_err() {
                *rest = &[];
            }
            Some((&all[..all.len() - rest.len()], event))
        }
    }
}

fn read_binary<'a>(rest: &mut &'a [u8], mapped: &[Mapped]) -> Read<'a> {
    let head = take_number(rest)?;
    let (place, is_text) = ((head >> 1) as usize, head & 1 == 1);
    let verb = mapped.get(place).map(|mapped| mapped.verb);
    let verb = verb.ok_or_else(|| format!("event number {place} is not in the list of events"))?;
    let id = take_number(rest)?;
    let name = Name::Place(place);
    let mut event = Event { name, id, member: None, number: None, field: None, value: None };
    match verb {
        Verb::Act | Verb::Undo if is_text => {
            let length = usize::try_from(take_number(rest)?).ok();
            let length = length.filter(|length| *length <= MAX_MEMBER_BYTES);
            let split = length.and_then(|length| rest.split_at_checked(length));
            let (member, behind) = split.ok_or("member truncated or too long")?;
            *rest = behind;
            event.member = Some(Cow::Borrowed(member));
        }
        Verb::Act | Verb::Undo => event.number = Some(take_number(rest)?),
        Verb::Increment | Verb::Set if is_text => return Err("unexpected member".into()),
        Verb::Increment | Verb::Set => {
            let value = take_number(rest)?;
            event.value = Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    Ok(event)
}

fn read_json<'a>(line: &'a [u8], config: &Ingest) -> Read<'a> {
    let mut reader = serde_json::Deserializer::from_slice(line);
    let event = Object(config).deserialize(&mut reader).map_err(|e| e.to_string())?;
    reader.end().map_err(|e| e.to_string())?;
    Ok(event)
}

/// Deserializes a JSON object whose fields have the configured names.
struct Object<'c>(&'c Ingest);

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Event<'de>;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Event<'de>, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Event<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Event<'de>, A::Error> {
        use serde::de::Error;
        let config = self.0;
        let names = [
            &config.event_name,
            &config.id_name,
            &config.member_name,
            &config.field_name,
            &config.value_name,
        ];
        let mut found: [Option<Scalar<'de>>; 5] = [const { None }; 5];
        while let Some(Word(key)) = map.next_key_seed(AsWord)? {
            match names.iter().position(|name| **name == key) {
                Some(place) if found[place].is_some() => {
                    return Err(A::Error::custom(format!("duplicate field '{key}'")));
                }
                Some(place) => found[place] = Some(map.next_value_seed(AsScalar)?),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let wrong =
            |name: &str, what: &str| A::Error::custom(format!("'{name}' is not a valid {what}"));
        let missing = |name: &str| A::Error::custom(format!("missing field '{name}'"));
        // A field with the value null counts as absent, because some serializers write null for an
        // absent field.
        let is_there = |scalar: &Scalar<'de>| !matches!(scalar, Scalar::Null);
        let [name, id, member, field, value] = found.map(|scalar| scalar.filter(is_there));
        let name = match name.ok_or_else(|| missing(&config.event_name))? {
            Scalar::Text(text) => Name::Text(text),
            _ => return Err(wrong(&config.event_name, "string")),
        };
        let id = id.ok_or_else(|| missing(&config.id_name))?;
        let id = id.natural().ok_or_else(|| wrong(&config.id_name, "id (0 to 2^64-1)"))?;
        let (number, member) = match member {
            None => (None, None),
            Some(Scalar::Number(number)) => (Some(number), None),
            Some(Scalar::Text(text)) if text.len() <= MAX_MEMBER_BYTES => (
                None,
                Some(match text {
                    Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                    Cow::Owned(text) => Cow::Owned(text.into_bytes()),
                }),
            ),
            Some(Scalar::Text(_)) => {
                let name = &config.member_name;
                return Err(A::Error::custom(format!(
                    "'{name}' is longer than {MAX_MEMBER_BYTES} bytes"
                )));
            }
            Some(_) => return Err(wrong(&config.member_name, "member (number or string)")),
        };
        let field = match field {
            None => None,
            Some(Scalar::Text(text)) => Some(text),
            Some(_) => return Err(wrong(&config.field_name, "string")),
        };
        let integer = |value: Scalar<'de>| {
            value.integer().ok_or_else(|| wrong(&config.value_name, "64-bit integer"))
        };
        let value = value.map(integer).transpose()?;
        Ok(Event { name, id, member, number, field, value })
    }
}

/// A string. It is borrowed, unless the JSON string contains escapes.
struct Word<'de>(Cow<'de, str>);
struct AsWord;

impl<'de> DeserializeSeed<'de> for AsWord {
    type Value = Word<'de>;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Word<'de>, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for AsWord {
    type Value = Word<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Word<'de>, E> {
        Ok(Word(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Word<'de>, E> {
        Ok(Word(Cow::Owned(text.to_owned())))
    }
}

/// An integer, a string, or null.
enum Scalar<'de> {
    Null,
    Number(u64),
    Negative(i64),
    Text(Cow<'de, str>),
}

impl Scalar<'_> {
    /// Returns the value as a number. Also parses strings, because languages without 64-bit
    /// integers send numbers as strings.
    fn natural(&self) -> Option<u64> {
        match self {
            Scalar::Number(number) => Some(*number),
            Scalar::Text(text) => resp::natural(text.as_bytes()),
            Scalar::Negative(_) | Scalar::Null => None,
        }
    }

    fn integer(&self) -> Option<i64> {
        match self {
            Scalar::Number(number) => i64::try_from(*number).ok(),
            Scalar::Negative(number) => Some(*number),
            Scalar::Text(text) => resp::integer(text.as_bytes()),
            Scalar::Null => None,
        }
    }
}

struct AsScalar;

impl<'de> DeserializeSeed<'de> for AsScalar {
    type Value = Scalar<'de>;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Scalar<'de>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AsScalar {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or an integer")
    }

    fn visit_unit<E>(self) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Null)
    }

    fn visit_u64<E>(self, number: u64) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Number(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Negative(number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Text(Cow::Owned(text.to_owned())))
    }
}

/// Returns an error if a configured event refers to an action or counter that does not exist. The
/// source then waits until the action or counter exists.
pub(super) fn missing(mapped: &[Mapped], engines: &Engines) -> Option<String> {
    mapped.iter().find_map(|mapped| {
        let why = target(mapped.verb, &mapped.target, engines).err()?;
        Some(format!("events: '{}': {why}", shown(&mapped.name)))
    })
}

enum Target<'e> {
    Action(&'e Action),
    Counter(&'e CounterSpace, usize),
}

fn target<'e>(verb: Verb, name: &str, engines: &'e Engines) -> Result<Target<'e>, String> {
    match verb {
        Verb::Act | Verb::Undo => {
            let action = engines.action(name.as_bytes());
            let action = action.ok_or_else(|| format!("no such action '{}'", shown(name)))?;
            Ok(Target::Action(action))
        }
        Verb::Increment | Verb::Set => {
            let none = || format!("no such counter '{}'", shown(name));
            let (space, field) = name.split_once('.').ok_or_else(none)?;
            let space = engines.counter(space.as_bytes()).ok_or_else(none)?;
            let field = space.index_of(field.as_bytes()).ok_or_else(none)?;
            Ok(Target::Counter(space, field))
        }
    }
}

/// Resolves an event to a change, using the current actions and counters.
pub(super) fn resolve<'e>(
    event: &'e Event<'_>,
    mapped: &'e [Mapped],
    engines: &'e Engines,
) -> Result<EventEffect<'e>, String> {
    let (verb, name) = match &event.name {
        Name::Place(place) => {
            let mapped = mapped.get(*place).ok_or("the event is not in the list of events")?;
            (mapped.verb, mapped.target.as_str())
        }
        Name::Text(name) if mapped.is_empty() => by_its_own_name(event, name, engines)?,
        Name::Text(name) => {
            let mapped = mapped.iter().find(|mapped| mapped.name == *name);
            let mapped = mapped.ok_or_else(|| format!("unknown event '{}'", shown(name)))?;
            (mapped.verb, mapped.target.as_str())
        }
    };
    match target(verb, name, engines)? {
        Target::Action(action) => {
            let member = match (&event.member, event.number) {
                (_, Some(number)) => Member::Number(number),
                (Some(text), None) => Member::parse(text),
                (None, None) => return Err("action without a member".to_owned()),
            };
            Ok(if verb == Verb::Act {
                EventEffect::Act(action, member)
            } else {
                EventEffect::Undo(action, member)
            })
        }
        Target::Counter(space, field) => match (verb, event.value) {
            (Verb::Set, Some(value)) => Ok(EventEffect::Set(space, field, value)),
            (Verb::Set, None) => Err("missing value to set".to_owned()),
            (_, value) => Ok(EventEffect::Add(space, field, value.unwrap_or(1))),
        },
    }
}

/// Interprets an event name when the configuration lists no events: an action, `un` plus an action,
/// `increment`, or `set`.
fn by_its_own_name<'e>(
    event: &'e Event<'_>,
    name: &'e str,
    engines: &Engines,
) -> Result<(Verb, &'e str), String> {
    let of_field = |verb| match &event.field {
        Some(field) => Ok((verb, &**field)),
        None => Err(format!("'{}' has no field", shown(name))),
    };
    if engines.action(name.as_bytes()).is_some() {
        return Ok((Verb::Act, name));
    }
    match name {
        "increment" => of_field(Verb::Increment),
        "set" => of_field(Verb::Set),
        _ => match name.strip_prefix("un") {
            Some(undone) if engines.action(undone.as_bytes()).is_some() => Ok((Verb::Undo, undone)),
            _ => Err(format!("unknown event '{}'", shown(name))),
        },
    }
}

/// Escapes and truncates untrusted text for an error message.
fn shown(word: &str) -> String {
    word.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<'a>(mut bytes: &'a [u8], config: &Ingest, mapped: &[Mapped]) -> Vec<Read<'a>> {
        std::iter::from_fn(|| next(&mut bytes, config, mapped).map(|(_, read)| read)).collect()
    }

    #[test]
    fn lines_are_events_or_poison_one_by_one() {
        let config = Ingest::default();
        let read = |text: &str| -> Vec<Option<String>> {
            let all = all(text.as_bytes(), &config, &[]);
            all.into_iter().map(|read| read.err()).collect()
        };
        assert_eq!(read("\n \r\n"), []);
        assert_eq!(
            read(
                "{\"event\":\"like\",\"id\":17,\"member\":7}\n\n{\"event\":\"like\",\"id\":\"17\",\
                  \"member\":\"ann\",\"at\":[1.5,{}]}\r\n"
            ),
            [None, None]
        );
        let cases = [
            ("{", "EOF"),
            ("[]", "an object"),
            ("{}", "missing field 'event'"),
            ("{\"event\":\"like\"}", "missing field 'id'"),
            ("{\"event\":1,\"id\":1}", "'event' is not a valid string"),
            ("{\"event\":\"like\",\"id\":-1}", "'id' is not a valid id"),
            ("{\"event\":\"like\",\"id\":18446744073709551616}", "invalid type: floating point"),
            ("{\"event\":\"like\",\"id\":\"18446744073709551616\"}", "'id' is not a valid id"),
            ("{\"event\":\"like\",\"id\":\"017\"}", "'id' is not a valid id"),
            ("{\"event\":\"like\",\"id\":1.5}", "floating point"),
            ("{\"event\":\"like\",\"id\":null}", "missing field 'id'"),
            ("{\"event\":null,\"id\":1}", "missing field 'event'"),
            (
                "{\"event\":\"like\",\"id\":1,\"member\":null,\"member\":7}",
                "duplicate field 'member'",
            ),
            ("{\"event\":\"like\",\"id\":1,\"id\":2}", "duplicate field 'id'"),
            ("{\"event\":\"like\",\"id\":1,\"member\":-7}", "'member' is not a valid member"),
            (
                "{\"event\":\"set\",\"id\":1,\"value\":9223372036854775808}",
                "'value' is not a valid 64-bit",
            ),
            ("{\"event\":\"like\",\"id\":1} x", "trailing"),
            ("{\"event\":\"\u{7f}\",\"id\":1,\"field\":{}}", "invalid type: map"),
        ];
        for (line, expected) in cases {
            let found = read(&format!("{line}\n{{\"event\":\"like\",\"id\":1}}"));
            assert!(found[0].as_ref().is_some_and(|e| e.contains(expected)), "{line}: {found:?}");
            assert_eq!(found[1..], [None], "{line}: the next line is a separate event");
        }
        assert!(all(b"{\"event\":\"\xff\",\"id\":1}", &config, &[])[0].is_err());
    }

    #[test]
    fn null_in_an_optional_part_is_as_if_it_were_absent() {
        let config = Ingest::default();
        let read = |parts: &str| {
            let line = format!("{{\"event\":\"x\",\"id\":2{parts}}}");
            let all = all(line.as_bytes(), &config, &[]);
            format!("{all:?}")
        };
        for (with, without) in [
            (",\"member\":7,\"field\":null,\"value\":null", ",\"member\":7"),
            (
                ",\"member\":null,\"field\":\"post.read\",\"value\":3",
                ",\"field\":\"post.read\",\"value\":3",
            ),
            (",\"field\":\"post.read\",\"value\":null", ",\"field\":\"post.read\""),
            (",\"member\":null,\"field\":null,\"value\":null", ""),
        ] {
            assert_eq!(read(with), read(without));
            assert!(!read(with).contains("Err"), "{}", read(with));
        }
    }

    fn compact() -> (Ingest, Vec<Mapped>) {
        let config = Ingest {
            format: IngestFormat::Binary,
            events: [
                "l = act like",
                "u = undo like",
                "v = increment post.read",
                "s = set post.read",
            ]
            .map(str::to_owned)
            .to_vec(),
            ..Ingest::default()
        };
        let mapped = Mapped::all(&config.events).unwrap();
        (config, mapped)
    }

    #[test]
    fn the_compact_form_is_read_event_by_event() {
        let (config, mapped) = compact();
        let bytes = [
            &[0, 17, 7][..],
            &[3, 17, 3, b'a', b'n', b'n'],
            &[4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 9],
            &[6, 17, 8],
        ]
        .concat();
        let read = all(&bytes, &config, &mapped);
        let event = |place, id, number, member: Option<&'static [u8]>, value| {
            let member = member.map(Cow::Borrowed);
            Ok(Event { name: Name::Place(place), id, member, number, field: None, value })
        };
        assert_eq!(
            read,
            [
                event(0, 17, Some(7), None, None),
                event(1, 17, None, Some(b"ann"), None),
                event(2, u64::MAX, None, None, Some(-5)),
                event(3, 17, None, None, Some(4)),
            ]
        );
        // The rest of a malformed message is one poison event.
        let has_refused_command = [&bytes[..3], &[8, 1, 1, 1, 1]].concat();
        let read = all(&has_refused_command, &config, &mapped);
        assert!(read.len() == 2 && read[0].is_ok() && read[1].is_err(), "{read:?}");
        assert!(all(&bytes[..2], &config, &mapped)[0].is_err());
        assert!(all(&[5, 1, 1], &config, &mapped)[0].is_err(), "an increment takes no member");
    }

    /// Each call must consume bytes for any input.
    #[test]
    fn arbitrary_bytes_cause_no_panic_or_endless_loop() {
        let mut rng = fastrand::Rng::with_seed(5);
        let (binary, mapped) = compact();
        let json = Ingest::default();
        let words =
            ["{", "}", "\"event\"", ":", ",", "\"like\"", "\"id\"", "1", "-", "\n", "[", "\\"];
        for _ in 0..50_000 {
            let bytes: Vec<u8> = (0..rng.usize(0..30)).map(|_| rng.u8(..)).collect();
            let text: String =
                (0..rng.usize(0..20)).map(|_| words[rng.usize(..words.len())]).collect();
            for bytes in [&bytes[..], text.as_bytes()] {
                assert!(all(bytes, &json, &[]).len() <= bytes.len());
                assert!(all(bytes, &binary, &mapped).len() <= bytes.len());
            }
        }
    }
}
