//! A layout describes how the source Redis stores counters or flags in one kind of key.
//!
//! ```text
//! hash    key=post:{id} space=post                      one hash per row, fields are counters
//! hash    key=p:{id} space=post fields=likes>like,reads>read    renamed fields; others ignored
//! string  key=like:{id} space=post fields=like          one key per counter
//! string  key=post:{id}:{field} space=post              one key per counter, named in the key
//! string  key=c:{id} space=post fields=like,read pack=struct:<I4I4  packed by struct.pack (Lua)
//! string  key=c:{id} space=post fields=like,read pack=msgpack       packed by cmsgpack.pack
//! buckets key=likes:{id} space=post fields=like per=1000   hash = id / 1000, field = id % 1000
//! buckets key=likes:{id} space=post fields=like         the field is the id itself
//! buckets key=likes space=post fields=like              one hash; the field is the id
//! buckets key=b:{id} space=post fields=like field=user.{id}     fields are complete old keys
//! string  key=view:{id}:{shard} space=post fields=read sum=0..15    shards of a counter
//! set     key=liked:{id} space=liked                    one set of members per post
//! bits    key=likers:{id} space=liked                   one bitmap per post: bit = member
//! set     key=liked:{id} space=liked count=post.like    the cardinality is also a counter
//! ```

use super::packed::Format;
use crate::import::spaces::check_field;
use counter::Field;
use dataset::key_patterns::{KeyMatch, Kind, Pattern};
use node::runtime::glob;

/// Type of a key, and what the key stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    /// A hash with the counters of a row.
    Hash,
    /// A string with one counter, or with several packed counters.
    String,
    Set,
    /// A bitmap of members that are small numbers.
    Bits,
    /// A hash with one counter for each of this many ids; 0 if the field names are the ids
    /// themselves.
    Buckets(u64),
    /// A set whose cardinality is a counter.
    Card,
    /// A bitmap whose number of set bits is a counter.
    Ones,
}

/// Encoding of several counters in one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Decimal,
    /// Written by `struct.pack`.
    Struct(Format),
    /// Written by `cmsgpack.pack`.
    Msgpack,
}

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) text: String,
    pub(crate) container: Container,
    /// Pattern of the keys, or `None` if there is only one key.
    pattern: Option<Pattern>,
    /// Template of the key, with `{id}` and `{field}`.
    key: String,
    pub(crate) glob: String,
    pub(crate) space: String,
    /// Counters: name in the source and name in the space.
    pub(crate) fields: Vec<(String, String)>,
    /// Whether the layout lists no fields. If so, `fields` contains all counters of the space, and
    /// any other name is an error.
    pub(crate) all_fields: bool,
    pub(crate) packing: Packing,
    /// Values of `{shard}`. A counter is the sum over all shards, and a set is the union of all
    /// shards.
    pub(super) shards: Vec<String>,
    /// Pattern of a bucket's fields, unless they are plain numbers.
    pub(super) entry: Option<(Pattern, String)>,
    /// Declarations of the counters in [`Layout::fields`].
    pub(super) declared: Vec<Field>,
    /// Whether [`Layout::fields`] contains all counters of the space.
    pub(crate) has_all: bool,
    /// Counters that other layouts list explicitly. The other layouts take precedence for these
    /// counters.
    pub(super) others: Vec<DelegatedCounter>,
    /// For keys with one counter: pattern of the hash that may hold other counters of the row.
    pub(super) row: Option<Pattern>,
}

#[derive(Clone, Debug)]
pub(super) struct DelegatedCounter {
    /// Index in [`Layout::fields`].
    pub(super) at: usize,
    is_cell: bool,
    /// Text of the other layout, or `None` if each key of the other layout is compared with the
    /// hash.
    pub(super) text: Option<String>,
}

/// Maximum number of shards of a counter. When one shard changes, the import reads all shards.
const MAX_SHARDS: usize = 256;

/// Ids whose counters in a changed key may have been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ids {
    Between(u64, u64),
    /// Any id of the space, because the former ids of the key are unknown.
    Any,
}

impl Layout {
    /// Parses `KIND name=value ...`. Each `count=` adds another layout.
    pub(crate) fn parse_all(text: &str) -> Result<Vec<Layout>, String> {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let mut counts = Vec::new();
        words.retain(|word| match word.strip_prefix("count=") {
            Some(count) => {
                counts.push(count.to_owned());
                false
            }
            None => true,
        });
        let first = Layout::parse(&words.join(" "))?;
        let count = |count: &String| {
            let (space, field) = count
                .rsplit_once('.')
                .ok_or_else(|| format!("count={count}: expected SPACE.FIELD"))?;
            let container = match first.container {
                Container::Set => Container::Card,
                Container::Bits => Container::Ones,
                _ => return Err("count= is only for set and bits".to_owned()),
            };
            let fields = vec![(field.to_owned(), field.to_owned())];
            let (space, text) = (space.to_owned(), format!("{} count={count}", first.text));
            Ok(Layout { container, fields, space, text, all_fields: false, ..first.clone() })
        };
        let counted = counts.iter().map(count).collect::<Result<Vec<_>, _>>()?;
        Ok(std::iter::once(first.clone()).chain(counted).collect())
    }

    /// Parses `KIND name=value ...` without `count=`.
    fn parse(text: &str) -> Result<Layout, String> {
        let mut words = text.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let (mut key, mut space, mut fields, mut per, mut packing) =
            (None, None, Vec::new(), None, Packing::Decimal);
        let (mut shards, mut entry) = (Vec::new(), None);
        for word in words {
            let (name, value) =
                word.split_once('=').ok_or_else(|| format!("'{word}': expected NAME=VALUE"))?;
            match name {
                "key" => key = Some(value),
                "space" => space = Some(value.to_owned()),
                "fields" => fields = value.split(',').map(renamed).collect(),
                "sum" => shards = shards_of(value)?,
                "field" => entry = Some((pattern_of(value)?, value.to_owned())),
                "per" => {
                    let number = value.parse::<u64>().ok().filter(|per| *per > 0);
                    per =
                        Some(number.ok_or_else(|| {
                            format!("per={value}: expected a number greater than 0")
                        })?);
                }
                "pack" if value == "msgpack" => packing = Packing::Msgpack,
                "pack" => match value.strip_prefix("struct:") {
                    Some(format) => packing = Packing::Struct(Format::parse(format)?),
                    None => return Err(format!("pack={value}: expected msgpack or struct:FORMAT")),
                },
                _ => return Err(format!("unknown option '{name}='")),
            }
        }
        let container = match kind {
            "hash" => Container::Hash,
            "string" => Container::String,
            "set" => Container::Set,
            "bits" => Container::Bits,
            "buckets" => Container::Buckets(per.take().unwrap_or(0)),
            _ => {
                return Err(format!(
                    "unknown kind '{kind}': expected hash, string, set, bits or buckets"
                ));
            }
        };
        if per.is_some() {
            return Err("per= is only for buckets".to_owned());
        }
        let key = key.ok_or("key= is missing")?;
        if key.contains("{shard}") == shards.is_empty() {
            return Err("{shard} in key= and sum= must be used together".to_owned());
        }
        let pattern = match container {
            Container::Buckets(0) if !key.contains('{') => None,
            // If an id has leading zeros, the keys of the other shards cannot be derived from the
            // id.
            _ => Some(pattern_of(key)?.padded(shards.is_empty())),
        };
        let layout = Layout {
            text: text.split_whitespace().collect::<Vec<_>>().join(" "),
            container,
            glob: glob_of(key),
            pattern,
            key: key.to_owned(),
            space: space.ok_or("space= is missing")?,
            all_fields: fields.is_empty(),
            fields,
            packing,
            shards,
            entry,
            declared: Vec::new(),
            has_all: false,
            others: Vec::new(),
            row: None,
        };
        layout.check()?;
        Ok(layout)
    }

    /// Returns whether the keys, or the fields of the buckets, contain the name of the counter.
    pub(super) fn names_field(&self) -> bool {
        match &self.entry {
            Some((pattern, _)) => pattern.has_field(),
            None => self.shards.is_empty() && self.pattern.as_ref().is_some_and(Pattern::has_field),
        }
    }

    fn check(&self) -> Result<(), String> {
        let (container, names_field) = (self.container, self.names_field());
        let is_packed = self.packing != Packing::Decimal;
        let is_bucket = matches!(container, Container::Buckets(_));
        let is_described = !self.fields.is_empty() || is_packed;
        let is_value = (container == Container::String || is_bucket) && !names_field;
        let wrong = [
            (
                names_field && container != Container::String && self.entry.is_none(),
                "{field} in key= is only for string",
            ),
            (names_field && is_described, "{field} names the counter, so fields= is not allowed"),
            (self.entry.is_some() && !is_bucket, "field= is only for buckets"),
            (!self.shards.is_empty() && is_bucket, "sum= is not allowed for buckets"),
            (
                self.names_field() && self.key.contains("{field}") && is_bucket,
                "with field=, the key of buckets must not contain {field}",
            ),
            (
                container == Container::Hash && is_packed,
                "pack= is not allowed for hash: each field is one counter",
            ),
            (
                is_value && !is_packed && self.fields.len() != 1,
                "fields= must name one counter; use pack= for several in one value",
            ),
            (is_value && self.fields.is_empty(), "fields= must name the packed counters in order"),
            (self.is_flags() && is_described, "fields= and pack= are not allowed for set and bits"),
        ];
        if let Some((_, why)) = wrong.iter().find(|(is, _)| *is) {
            return Err((*why).to_owned());
        }
        if let Packing::Struct(format) = &self.packing
            && format.numbers() != self.fields.len()
        {
            let (packed, named) = (format.numbers(), self.fields.len());
            return Err(format!("pack= has {packed} numbers, but fields= has {named} names"));
        }
        for (at, (_, to)) in self.fields.iter().enumerate() {
            if self.fields[..at].iter().any(|(_, other)| other == to) {
                return Err(format!("fields= names '{to}' twice"));
            }
        }
        Ok(())
    }

    pub(crate) fn is_flags(&self) -> bool {
        matches!(self.container, Container::Set | Container::Bits)
    }

    /// Configures a key pattern of the space itself. The pattern accepts ids with leading zeros
    /// only if the space accepts them.
    fn of_space(mut self, padded_ids: bool) -> Layout {
        self.pattern = self.pattern.map(|pattern| pattern.padded(padded_ids));
        self
    }

    /// Returns the reason if a key matches the pattern but has no valid id.
    pub(crate) fn refusal(&self, key: &[u8]) -> Option<String> {
        let space = &self.space;
        match self.pattern.as_ref()?.read(key) {
            KeyMatch::IdPadded => Some(format!(
                "the id has leading zeros, which the space '{space}' does not accept (padded_ids)"
            )),
            KeyMatch::IdTooBig => Some("the id is greater than 18446744073709551615".to_owned()),
            KeyMatch::Yes(..) | KeyMatch::No => None,
        }
    }

    /// Copies the declarations of the named counters, or of all counters.
    pub(crate) fn declare(&mut self, all: &[Field]) -> Result<(), String> {
        if self.all_fields {
            self.fields = all.iter().map(|one| (one.name.clone(), one.name.clone())).collect();
        }
        let names: Vec<String> = all.iter().map(|one| one.name.clone()).collect();
        self.fields.iter().try_for_each(|(_, to)| check_field(&self.space, &names, to))?;
        let declared = |(_, to): &(String, String)| all.iter().find(|one| one.name == *to).cloned();
        self.declared = self.fields.iter().filter_map(declared).collect();
        self.has_all = self.fields.len() == all.len();
        Ok(())
    }

    /// If this layout lists no counters, records the counters that other layouts list. Those
    /// layouts take precedence for these counters.
    pub(crate) fn note_others(&mut self, others: &[Layout]) {
        let is_row = |other: &&Layout| {
            other.space == self.space && other.container == Container::Hash && other.all_fields
        };
        let row = others.iter().find(is_row).filter(|row| row.shards.is_empty());
        if self.has_one() {
            self.row = row.and_then(|row| row.pattern.clone());
        }
        if self.is_flags() || !self.all_fields {
            return;
        }
        for (at, (_, field)) in self.fields.iter().enumerate() {
            let names = |other: &&Layout| !other.all_fields && other.has(&self.space, field);
            if let Some(other) = others.iter().find(names) {
                let text = Some(other.text.clone()).filter(|_| !other.has_one());
                self.others.push(DelegatedCounter { at, is_cell: other.is_cell(), text });
            }
        }
    }

    fn has_one(&self) -> bool {
        self.container == Container::String && self.packing == Packing::Decimal
    }

    fn has(&self, space: &str, field: &str) -> bool {
        self.space == space && !self.is_flags() && self.fields.iter().any(|(_, to)| to == field)
    }

    /// Returns a counter that both layouts store, or `None` if one layout takes precedence over the
    /// other. A hash and single-counter keys may share a row.
    pub(crate) fn conflict(&self, other: &Layout) -> Option<&str> {
        if self.all_fields != other.all_fields
            || self.all_fields && self.names_field() != other.names_field()
        {
            return None;
        }
        let shared = self.fields.iter().find(|(_, to)| other.has(&self.space, to));
        shared.filter(|_| !self.is_flags()).map(|(_, to)| &to[..])
    }

    /// Returns whether another layout may hold a counter that this key lacks.
    pub(super) fn may_be_in_other_layout(&self, at: usize) -> bool {
        // Single-counter keys are excluded, because their existence is checked per row.
        self.others.iter().any(|other| other.at == at && !other.is_cell)
    }

    /// Parses a key of this layout. Returns the id, or the bucket number, and the field.
    pub(crate) fn read<'k>(&self, key: &'k [u8]) -> Option<(u64, &'k [u8])> {
        match self.pattern.as_ref().map(|pattern| pattern.read(key)) {
            Some(KeyMatch::Yes(id, name)) if self.takes(name) => Some((id, name)),
            None if self.key.as_bytes() == key => Some((0, &[])),
            _ => None,
        }
    }

    /// Returns whether the text for `{shard}` or `{field}` is valid in this layout.
    fn takes(&self, name: &[u8]) -> bool {
        match self.shards.is_empty() {
            true => name.is_empty() || self.fields.is_empty() || self.position(name).is_some(),
            false => self.shard(name).is_some(),
        }
    }

    pub(crate) fn shard(&self, name: &[u8]) -> Option<usize> {
        self.shards.iter().position(|shard| shard.as_bytes() == name)
    }

    /// Returns the keys of an id, one per shard. Returns `None` if the keys cannot be derived from
    /// the id.
    pub(crate) fn keys(&self, id: u64, field: &[u8]) -> Option<Vec<Vec<u8>>> {
        match self.shards.is_empty() {
            true => Some(vec![self.key(id, field)?]),
            false => self.shards.iter().map(|shard| self.key(id, shard.as_bytes())).collect(),
        }
    }

    /// Returns whether the keys of all shards are combined into one row.
    pub(crate) fn is_sum(&self) -> bool {
        !self.is_flags() && !self.shards.is_empty()
    }

    /// Number of keys that are read together for one item.
    pub(crate) fn parts(&self) -> usize {
        let shards = if self.is_sum() { self.shards.len() } else { 1 };
        shards + usize::from(self.row.is_some())
    }

    /// Returns the hash, and its field, that may also hold the counter of a key. `field` is the
    /// counter in the key's name.
    pub(crate) fn row_key<'f>(&'f self, id: u64, field: &'f [u8]) -> Option<(Vec<u8>, &'f [u8])> {
        let mut key = Vec::new();
        self.row.as_ref()?.write(id, b"", &mut key);
        let field = match self.names_field() {
            true => field,
            false => self.fields.first()?.1.as_bytes(),
        };
        Some((key, field))
    }

    /// Returns the name of a bucket's field for a counter of the id.
    pub(crate) fn bucket_field(&self, id: u64, field: &[u8]) -> Vec<u8> {
        let Some((pattern, _)) = &self.entry else {
            let number = match self.container {
                Container::Buckets(per) => id.checked_rem(per).unwrap_or(id),
                _ => id,
            };
            return number.to_string().into_bytes();
        };
        let mut name = Vec::new();
        pattern.write(id, field, &mut name);
        name
    }

    /// Returns the key with this counter or shard of the id. Returns `None` if the key cannot be
    /// derived from the id.
    pub(crate) fn key(&self, id: u64, field: &[u8]) -> Option<Vec<u8>> {
        let Some(pattern) = &self.pattern else { return Some(self.key.clone().into_bytes()) };
        let number = match self.container {
            Container::Buckets(per) => id.checked_div(per)?,
            _ => id,
        };
        let first = self.shards.first().filter(|_| field.is_empty());
        let mut key = Vec::new();
        pattern.write(number, first.map_or(field, |shard| shard.as_bytes()), &mut key);
        Some(key)
    }

    pub(crate) fn ids(&self, key: &[u8]) -> Option<Ids> {
        let (number, _) = self.read(key)?;
        match self.container {
            Container::Hash | Container::String | Container::Card | Container::Ones => {
                Some(Ids::Between(number, number))
            }
            Container::Buckets(per) if per > 0 => {
                let low = number.checked_mul(per)?;
                Some(Ids::Between(low, low.saturating_add(per - 1)))
            }
            // A single hash holds all ids. With several hashes, the id does not determine the hash.
            Container::Buckets(_) if self.pattern.is_none() => Some(Ids::Any),
            _ => None,
        }
    }

    /// Returns whether [`Layout::key`] would produce this key, that is, whether the id has no
    /// leading zeros.
    pub(crate) fn is_plain(&self, key: &[u8]) -> bool {
        let Some((number, field)) = self.read(key) else { return false };
        let Some(pattern) = &self.pattern else { return true };
        let mut plain = Vec::with_capacity(key.len());
        pattern.write(number, field, &mut plain);
        plain == key
    }
}

/// Parses `FIRST..LAST`, or a list of names.
fn shards_of(value: &str) -> Result<Vec<String>, String> {
    let wrong =
        || format!("sum={value}: expected FIRST..LAST or a list of names, at most {MAX_SHARDS}");
    let shards: Vec<String> = match value.split_once("..") {
        None => value.split(',').map(str::to_owned).collect(),
        Some((first, last)) => {
            let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
            let (first, last) = (number(first)?, number(last)?);
            (first..=last).take(MAX_SHARDS + 1).map(|shard| shard.to_string()).collect()
        }
    };
    let is_name =
        |shard: &String| !shard.is_empty() && shards.iter().filter(|s| *s == shard).count() == 1;
    let is_right = !shards.is_empty() && shards.len() <= MAX_SHARDS && shards.iter().all(is_name);
    is_right.then_some(shards.clone()).ok_or_else(wrong)
}

/// Parses a pattern of keys or of bucket fields. The pattern accepts leading zeros;
/// [`Layout::of_space`] overrides this for patterns of a space.
fn pattern_of(text: &str) -> Result<Pattern, String> {
    // Parse `{shard}` like `{field}`: each stands for a name within the key.
    let plain = text.replacen("{shard}", "{field}", 1);
    let kind = if plain.contains("{field}") { Kind::Cell } else { Kind::Row };
    let pattern = Pattern::parse(kind, &plain).map_err(|error| {
        let error = error.to_string();
        if text.contains("{shard}") { error.replace("{field}", "{shard}") } else { error }
    })?;
    Ok(pattern.padded(true))
}

fn renamed(field: &str) -> (String, String) {
    let (from, to) = field.split_once('>').unwrap_or((field, field));
    (from.to_owned(), to.to_owned())
}

pub(super) fn in_field(name: &[u8], error: &str) -> String {
    format!("field '{}': {error}", name[..name.len().min(40)].escape_ascii())
}

pub(super) fn decimal(text: &[u8]) -> Result<i64, String> {
    resp::integer(text).ok_or_else(|| {
        format!(
            "\"{}\" is not an integer or out of range",
            text[..text.len().min(40)].escape_ascii()
        )
    })
}

fn glob_of(key: &str) -> String {
    let escaped: String = key
        .chars()
        .flat_map(|c| {
            (if "*?[]\\^".contains(c) { Some('\\') } else { None }).into_iter().chain([c])
        })
        .collect();
    ["{id}", "{field}", "{shard}"].iter().fold(escaped, |glob, name| glob.replace(name, "*"))
}

/// Returns the layouts of a space's own key patterns. `first` is the first counter of the space.
/// Single-counter keys without `{field}` store this counter.
pub(crate) fn of_patterns(
    kind: Kind,
    space: &str,
    patterns: &str,
    first: &str,
    padded_ids: bool,
    in_cluster: bool,
) -> Result<Vec<Layout>, String> {
    let container = match kind {
        Kind::Row => "hash",
        Kind::Cell => "string",
        Kind::Pair => "set",
    };
    let one = |key: &str| {
        let mut text = format!("{container} key={key} space={space}");
        if kind == Kind::Cell && !key.contains("{field}") {
            text += &format!(" fields={first}");
        }
        Ok(Layout::parse(&text)?.of_space(padded_ids))
    };
    // In a cluster, patterns have hash tags. The source may use the same keys without hash tags.
    let mut all: Vec<String> = patterns.split_whitespace().map(str::to_owned).collect();
    for tagged in patterns.split_whitespace().filter(|_| in_cluster) {
        let plain = tagged.replacen("{{id}}", "{id}", 1);
        if !all.contains(&plain) {
            all.push(plain);
        }
    }
    all.iter().map(|key| one(key)).collect()
}

/// Returns whether a key or channel matches the glob.
pub(crate) fn fits(glob: &str, key: &[u8]) -> bool {
    glob::matches(glob.as_bytes(), key, false)
}

pub(crate) fn shown(key: &[u8]) -> String {
    printable(&String::from_utf8_lossy(&key[..key.len().min(80)]))
}

/// Escapes control characters, so that text from other servers cannot control the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // Unicode characters that change the text direction.
        let turns = ['\u{200e}'..='\u{200f}', '\u{202a}'..='\u{202e}', '\u{2066}'..='\u{2069}'];
        if c.is_control() || turns.iter().any(|some| some.contains(&c)) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::redis::items::{Item, Read};
    use client::Reply;

    /// Returns the items of the replies, the reject reason, and the number of foreign fields.
    fn read(of: &Layout, id: u64, field: &str, parts: &[Reply]) -> (Vec<Item>, String, usize) {
        let mut read = Read::of(Vec::new(), 0, Vec::new());
        of.read_row(id, field.as_bytes(), parts, &mut read);
        (read.items, read.bad.unwrap_or_default(), read.foreign.len())
    }

    fn bulk(text: impl AsRef<[u8]>) -> Reply {
        Reply::BulkString(text.as_ref().to_vec())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Reply {
        Reply::Array(pairs.iter().flat_map(|(a, b)| [bulk(a), bulk(b)]).collect())
    }

    fn row(id: u64, values: &[(usize, i64)]) -> (Vec<Item>, String, usize) {
        (vec![Item::Row(id, values.to_vec())], String::new(), 0)
    }

    fn bucket(of: &Layout, bucket: u64, field: &str) -> (Vec<Item>, String, usize) {
        let mut read = Read::of(Vec::new(), 0, Vec::new());
        of.read_bucket(bucket, field.as_bytes(), b"5", &mut read);
        (read.items, read.bad.unwrap_or_default(), read.foreign.len())
    }

    fn fields(names: &str) -> Vec<Field> {
        names.split(' ').map(|word| Field::parse(word).unwrap()).collect()
    }

    fn layout(text: &str) -> Layout {
        Layout::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn keys_give_ids() {
        let post = layout("hash key=post:{id} space=post fields=like");
        assert_eq!(post.read(b"post:17"), Some((17, &b""[..])));
        assert_eq!(post.read(b"post:007"), Some((7, &b""[..])), "padded ids are read");
        assert_eq!((post.read(b"post:x"), post.read(b"post:17:like")), (None, None));
        assert_eq!(post.glob, "post:*");
        let cell = layout("string key=p[{{id}}]:{field} space=post");
        assert_eq!(cell.glob, "p\\[{*}\\]:*");
        assert_eq!(cell.read(b"p[{17}]:like"), Some((17, &b"like"[..])));
        let ours = |key, padded| {
            let mut all = of_patterns(Kind::Cell, "post", key, "like", padded, false).unwrap();
            all.remove(0)
        };
        let first = ours("like:{id}", false);
        assert_eq!(read(&first, 17, "", &[bulk("5")]), row(17, &[(0, 5)]));
        assert_eq!((first.read(b"like:007"), first.refusal(b"like:7")), (None, None));
        assert!(first.refusal(b"like:007").unwrap().contains("has leading zeros"));
        assert_eq!(ours("like:{id}", true).read(b"like:007"), Some((7, &b""[..])));
        let keys = |patterns, in_cluster| {
            let all = of_patterns(Kind::Row, "post", patterns, "like", false, in_cluster).unwrap();
            all.iter().map(|layout| layout.key(7, b"").unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(keys("p:{{id}}", true), [&b"p:{7}"[..], b"p:7"]);
        assert_eq!(keys("p:{{id}}", false), [b"p:{7}"]);
        assert_eq!(keys("p:{id} p:{{id}}", true), [&b"p:7"[..], b"p:{7}"]);
    }

    /// A hash that lacks a counter, or a deleted hash, must not reset a counter that another key
    /// stores.
    #[test]
    fn a_hash_leaves_what_other_keys_have() {
        let mut hash = layout("hash key=post:{id} space=post");
        hash.declare(&fields("like:8 read:8")).unwrap();
        assert_eq!(hash.with_zeros_for_lacking(&[(1, Some(7))], false), [(1, 7), (0, 0)]);
        assert_eq!(hash.gone(3, b""), Some(Item::RowKeyDeleted(3)));
        let (plain, mut like) = (hash.clone(), layout("string key=l:{id} space=post fields=like"));
        hash.note_others(std::slice::from_ref(&like));
        assert_eq!(hash.with_zeros_for_lacking(&[(1, Some(7))], false), [(1, 7)]);
        assert_eq!(hash.gone(3, b""), Some(Item::Row(3, vec![(1, 0)])));
        // A single-counter key is compared with the hash.
        like.note_others(std::slice::from_ref(&plain));
        assert_eq!(like.row_key(3, b""), Some((b"post:3".to_vec(), &b"like"[..])));
        assert_eq!(read(&like, 3, "", &[bulk("5"), Reply::Integer(0)]), row(3, &[(0, 5)]));
        let (items, why, _) = read(&like, 3, "", &[bulk("5"), Reply::Integer(1)]);
        assert_eq!(
            (items, why),
            (vec![], "the hash post:3 also has a value for this counter".to_owned())
        );
        // Keys of other layouts are not compared with the hash, so their counters are rejected in
        // the hash.
        let mut hash = plain;
        hash.note_others(&[layout("buckets key=likes space=post fields=like")]);
        let (items, why, _) = read(&hash, 3, "", &[pairs(&[("like", "1"), ("read", "2")])]);
        assert_eq!(items, [Item::Hash(3, vec![(0, None), (1, Some(2))])]);
        assert!(why.contains("its values are imported by buckets key=likes"), "{why}");
    }

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        assert_eq!(shown(b"post:\x1b[2J\x9b\r\n\xe5\xbe\xae"), "post:\\u{1b}[2J\u{fffd}\\r\\n微");
        assert_eq!(printable("\u{202e}a\u{9b}"), "\\u{202e}a\\u{9b}");
    }

    #[test]
    fn values_become_rows() {
        let hash = layout("hash key=p:{id} space=post fields=likes>like,read");
        let given = pairs(&[("likes", "5"), ("color", "red")]);
        assert_eq!(read(&hash, 7, "", &[given]).0, [Item::Hash(7, vec![(0, Some(5))])]);
        assert_eq!(hash.with_zeros_for_lacking(&[(0, Some(5))], false), [(0, 5), (1, 0)]);
        assert_eq!(hash.with_zeros_for_lacking(&[(0, Some(5))], true), [(0, 5)]);
        assert_eq!(hash.with_zeros_for_lacking(&[(0, None)], false), [(1, 0)]);
        assert_eq!(read(&hash, 7, "", &[pairs(&[("color", "red")])]), (vec![], String::new(), 0));
        let (items, why, _) = read(&hash, 7, "", &[pairs(&[("read", "1.5"), ("likes", "2")])]);
        assert_eq!(items, [Item::Hash(7, vec![(1, None), (0, Some(2))])]);
        assert_eq!(why, "field 'read': \"1.5\" is not an integer or out of range");
        let packed = layout("string key=c:{id} space=post fields=like,read pack=struct:<I4I2");
        let value = bulk(b"\x05\x00\x00\x00\x07\x00");
        assert_eq!(read(&packed, 7, "", &[value]), row(7, &[(0, 5), (1, 7)]));
        let msgpack = layout("string key=c:{id} space=post fields=like,read pack=msgpack");
        let map = bulk(b"\x82\xa4read\x07\xa5color\x01");
        assert_eq!(read(&msgpack, 7, "", &[map]), row(7, &[(1, 7)]));
        assert!(
            read(&msgpack, 7, "", &[bulk(b"\x01\x02\x03")]).1.contains("found 3 packed values")
        );
        let mut bounded = layout("hash key=p:{id} space=post");
        bounded.declare(&fields("like:8{0..9} read:8{0..9}sat")).unwrap();
        let given = pairs(&[("like", "10"), ("read", "10"), ("title", "x")]);
        let (items, why, foreign) = read(&bounded, 7, "", &[given]);
        assert_eq!((items, foreign), (vec![Item::Hash(7, vec![(0, None), (1, Some(9))])], 1));
        assert_eq!(why, "the value of 'like' would be out of bounds {0..9}");
    }

    #[test]
    fn fields_of_buckets_are_ids_or_old_keys() {
        let buckets = layout("buckets key=likes:{id} space=post fields=like per=1000");
        assert_eq!(bucket(&buckets, 3, "17"), row(3017, &[(0, 5)]));
        assert!(!bucket(&buckets, 3, "1000").1.is_empty());
        assert!(bucket(&buckets, u64::MAX, "1").1.contains("the id is greater"));
        let one = layout("buckets key=likes space=post fields=like");
        assert_eq!((one.read(b"likes"), one.read(b"likes:1")), (Some((0, &b""[..])), None));
        assert_eq!(bucket(&one, 0, "17"), row(17, &[(0, 5)]));
        assert_eq!(one.key(17, b""), Some(b"likes".to_vec()));
        let of_ids = layout("buckets key=likes:{id} space=post fields=like");
        assert_eq!(bucket(&of_ids, 3, "17"), row(17, &[(0, 5)]));
        let old = layout("buckets key=likes:{id} space=post fields=like field=user.{id}");
        assert_eq!(bucket(&old, 3, "user.17"), row(17, &[(0, 5)]));
        assert_eq!(bucket(&old, 3, "17").1, "field '17': it does not match user.{id}");
        assert_eq!(old.bucket_field(17, b""), b"user.17");
        let mut named = layout("buckets key=b:{id} space=post field=p:{id}:{field} per=10");
        named.declare(&fields("like:8 read:8")).unwrap();
        assert_eq!(bucket(&named, 1, "p:17:read"), row(17, &[(1, 5)]));
        assert_eq!(bucket(&named, 1, "p:17:title"), (vec![], String::new(), 1));
        assert!(bucket(&named, 2, "p:17:read").1.contains("belongs to another bucket (per=10)"));
        assert_eq!((named.key(17, b""), named.is_cell()), (Some(b"b:1".to_vec()), true));
    }

    #[test]
    fn shards_are_summed() {
        let views = layout("string key=view:{id}:{shard} space=post fields=read sum=0..2");
        assert_eq!(
            (views.read(b"view:7:2"), views.glob.as_str()),
            (Some((7, &b"2"[..])), "view:*:*")
        );
        assert_eq!((views.read(b"view:7:3"), views.read(b"view:07:1")), (None, None));
        assert!(views.refusal(b"view:07:1").is_some());
        assert_eq!((views.parts(), views.is_cell()), (3, false));
        let sum = |parts: [Reply; 3]| read(&views, 7, "2", &parts);
        assert_eq!(sum([bulk("1"), Reply::Null, bulk("5")]), row(7, &[(0, 6)]));
        let (items, why, _) = sum([bulk("1"), bulk("x"), bulk("5")]);
        assert!(items.is_empty() && why.starts_with("shard '1': \"x\""), "{why}");
        let most = i64::MAX.to_string();
        assert_eq!(
            sum([bulk(&most), bulk("1"), bulk("1")]).1,
            "field 'read': the sum of the shards is out of range"
        );
        let hash = layout("hash key=h:{id}.{shard} space=post fields=like,read sum=us,eu");
        assert_eq!(hash.keys(7, b"").unwrap(), [b"h:7.us", b"h:7.eu"]);
        let parts =
            [pairs(&[("like", "1"), ("read", "x")]), pairs(&[("read", "2"), ("like", "3")])];
        let (items, why, _) = read(&hash, 7, "us", &parts);
        assert_eq!(items, [Item::Hash(7, vec![(0, Some(4)), (1, None)])]);
        assert!(why.starts_with("field 'read': \"x\""), "{why}");
        let set = Layout::parse_all("set key=l:{id}:{shard} space=liked sum=a,b count=post.like");
        let set = set.unwrap();
        assert_eq!((set[0].parts(), set[1].parts()), (1, 2));
        assert_eq!(
            read(&set[1], 7, "a", &[Reply::Integer(2), Reply::Integer(3)]),
            row(7, &[(0, 5)])
        );
    }

    #[test]
    fn one_counter_has_one_source() {
        let all = |text: &str| {
            let mut all = Layout::parse_all(text).unwrap();
            let last = all.last_mut().unwrap();
            last.declare(&fields("like:8 read:8")).unwrap();
            all.pop().unwrap()
        };
        let like = all("string key=like:{id} space=post fields=like");
        for (text, is_refused) in [
            ("string key=l:{id} space=post fields=like", true),
            ("set key=l:{id} space=liked count=post.like", true),
            ("hash key=p:{id} space=post fields=read,like", true),
            ("hash key=p:{id} space=post fields=read", false),
            ("string key=l:{id} space=user fields=like", false),
            ("hash key=p:{id} space=post", false),
            ("string key=p:{id}:{field} space=post", false),
        ] {
            assert_eq!(like.conflict(&all(text)).is_some(), is_refused, "{text}");
        }
        let hash = all("hash key=p:{id} space=post");
        assert_eq!(hash.conflict(&all("hash key=q:{id} space=post")), Some("like"));
        assert_eq!(hash.conflict(&all("string key=p:{id}:{field} space=post")), None);
    }

    #[test]
    fn layouts_that_make_no_sense_are_refused() {
        for (text, why) in [
            ("", "expected hash"),
            ("list key=l:{id} space=post", "expected hash"),
            ("hash space=post", "key= is missing"),
            ("hash key=p:{id}", "space= is missing"),
            ("hash key=post space=post", "{id}"),
            ("hash key=p:{id} space=post colour", "expected NAME=VALUE"),
            ("hash key=p:{id} space=post colour=1", "unknown option 'colour='"),
            ("string key=p:{id} space=post", "fields= must name"),
            ("string key=p:{id} space=post fields=a,b", "use pack="),
            ("string key=p:{id}:{field} space=post fields=a", "{field} names the counter"),
            ("hash key=p:{id}:{field} space=post", "is only for string"),
            ("buckets key=p:{id} space=post fields=a per=0", "greater than 0"),
            ("string key=p:{id} space=post fields=a pack=zip", "expected msgpack"),
            ("string key=p:{id} space=post fields=a pack=struct:Q", "struct"),
            ("set key=p:{id} space=liked fields=a", "not allowed for set"),
            ("set key=p:{id} space=liked count=like", "expected SPACE.FIELD"),
            ("hash key=p:{id} space=post count=post.like", "only for set and bits"),
            ("string key=p:{id} space=post fields=a,b pack=struct:<I4", "has 1 numbers"),
            ("hash key=p:{id} space=post fields=a>c,b>c", "names 'c' twice"),
            ("string key=p:{id} space=post fields=a per=7", "per= is only for buckets"),
            ("string key=p:{id}:{shard} space=post fields=a", "used together"),
            ("string key=p:{id} space=post fields=a sum=0..3", "used together"),
            ("string key=p:{shard}:{id} space=post fields=a sum=0..3", "one {shard}, after {id}"),
            ("string key=p:{id}:{shard} space=post fields=a sum=3..0", "expected FIRST..LAST"),
            ("string key=p:{id}:{shard} space=post fields=a sum=0..256", "at most 256"),
            ("string key=p:{id}:{shard} space=post fields=a sum=a,b,a", "a list of names"),
            ("buckets key=p:{id}:{shard} space=post fields=a sum=0..3", "not allowed for buckets"),
            ("string key=p:{id} space=post fields=a field=u.{id}", "field= is only for buckets"),
            ("buckets key=p:{id} space=post fields=a field=u", "must contain one {id}"),
        ] {
            let error = Layout::parse_all(text).map(|_| ()).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
