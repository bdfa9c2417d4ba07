//! How counters and flags lie in a Redis: one layout a kind of key.
//!
//! ```text
//! hash    key=post:{id} space=post                          a hash a row, its fields the counters
//! hash    key=p:{id} space=post fields=likes>like,reads>read         other names; others are left
//! string  key=like:{id} space=post fields=like              a key a counter
//! string  key=post:{id}:{field} space=post                  the same, with the name in the key
//! string  key=c:{id} space=post fields=like,read pack=struct:<I4I4   packed by Lua's struct.pack
//! string  key=c:{id} space=post fields=like,read pack=msgpack        packed by cmsgpack.pack
//! buckets key=likes:{id} space=post fields=like per=1000    hash = id / 1000, field = id % 1000
//! buckets key=likes:{id} space=post fields=like             the field is the id itself
//! buckets key=likes space=post fields=like                  the same, in one hash
//! set     key=liked:{id} space=liked                        a set of members a post
//! bits    key=likers:{id} space=liked                       a bitmap a post: bit = member
//! set     key=liked:{id} space=liked count=post.like        their number is a counter, too
//! ```

use super::packed::{self, Format};
use dataset::key_patterns::{Kind, Match, Pattern};
use node::runtime::glob;

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    /// A row.
    Hash,
    /// A counter, or several that are packed.
    String,
    /// Members.
    Set,
    /// Members that are small numbers.
    Bits,
    /// Counters of so many ids each; 0: fields are ids.
    Buckets(u64),
    /// A set of which the number of members is a counter.
    Card,
    /// The same of a bitmap.
    Ones,
}

/// How several counters lie in one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// One, as decimal text.
    Decimal,
    /// By `struct.pack`.
    Struct(Format),
    /// By `cmsgpack.pack`.
    Msgpack,
}

/// One kind of key. See the top of the file.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// As it was given.
    pub(crate) text: String,
    pub(crate) container: Container,
    /// `None`: the one key.
    pattern: Option<Pattern>,
    /// The key, with `{id}` and `{field}`.
    key: String,
    /// For SCAN and PSUBSCRIBE.
    pub(crate) glob: String,
    /// Where it goes.
    pub(crate) space: String,
    /// Counters: the name there, and the name here.
    pub(crate) fields: Vec<(String, String)>,
    /// The fields were not named: they are all of the space, and a foreign one is an error.
    pub(crate) all_fields: bool,
    pub(crate) packing: Packing,
    /// Of a hash: positions in [`Layout::fields`] that keys of other layouts have. What the hash
    /// lacks of them is not 0.
    elsewhere: Vec<usize>,
}

/// The ids of which a key may have lost counters, when it has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ids {
    /// First and last.
    Between(u64, u64),
    /// All ids of the space: those that the key had are not known.
    Any,
}

/// What one key has for one id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// Counters by their positions in [`Layout::fields`].
    Row(u64, Vec<(usize, i64)>),
    /// A hash: the counters that it has. The others of [`Layout::fields`] are 0, if no other key
    /// has them.
    Hash(u64, Vec<(usize, i64)>),
    /// The key of a row of which nothing else has counters is gone.
    Gone(u64),
    /// No key at all has counters of the row.
    Missing(u64),
    /// All members that the id had are unset; those that it has now follow.
    Unset(u64),
    /// A flag.
    Member(u64, Vec<u8>),
}

impl Item {
    /// The id of a row.
    pub(crate) fn row(&self) -> Option<u64> {
        match *self {
            Item::Row(id, _) | Item::Hash(id, _) | Item::Gone(id) | Item::Missing(id) => Some(id),
            Item::Member(..) | Item::Unset(_) => None,
        }
    }

    /// The id.
    pub(crate) fn id(&self) -> u64 {
        match *self {
            Item::Member(id, _) | Item::Unset(id) => id,
            Item::Row(id, _) | Item::Hash(id, _) | Item::Gone(id) | Item::Missing(id) => id,
        }
    }
}

impl Layout {
    /// Reads `KIND name=value ...`. `count=` makes a second layout of it.
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
                .ok_or_else(|| format!("count={count} is not SPACE.FIELD"))?;
            let container = match first.container {
                Container::Set => Container::Card,
                Container::Bits => Container::Ones,
                _ => return Err("only sets and bits have count=".to_owned()),
            };
            let fields = vec![(field.to_owned(), field.to_owned())];
            let (space, text) = (space.to_owned(), format!("{} count={count}", first.text));
            Ok(Layout { container, fields, space, text, all_fields: false, ..first.clone() })
        };
        let counted = counts.iter().map(count).collect::<Result<Vec<_>, _>>()?;
        Ok(std::iter::once(first.clone()).chain(counted).collect())
    }

    /// Reads `KIND name=value ...`.
    fn parse(text: &str) -> Result<Layout, String> {
        let mut words = text.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let (mut key, mut space, mut fields, mut per, mut packing) =
            (None, None, Vec::new(), None, Packing::Decimal);
        for word in words {
            let (name, value) =
                word.split_once('=').ok_or_else(|| format!("'{word}' is not NAME=VALUE"))?;
            match name {
                "key" => key = Some(value),
                "space" => space = Some(value.to_owned()),
                "fields" => fields = value.split(',').map(renamed).collect(),
                "per" => {
                    let number = value.parse::<u64>().ok().filter(|per| *per > 0);
                    per = Some(number.ok_or_else(|| format!("per={value} is no number above 0"))?);
                }
                "pack" if value == "msgpack" => packing = Packing::Msgpack,
                "pack" => match value.strip_prefix("struct:") {
                    Some(format) => packing = Packing::Struct(Format::parse(format)?),
                    None => return Err(format!("pack={value} is neither msgpack nor struct:...")),
                },
                _ => return Err(format!("there is no '{name}='")),
            }
        }
        let container = match kind {
            "hash" => Container::Hash,
            "string" => Container::String,
            "set" => Container::Set,
            "bits" => Container::Bits,
            "buckets" => Container::Buckets(per.take().unwrap_or(0)),
            _ => return Err(format!("'{kind}' is none of hash, string, set, bits, buckets")),
        };
        if per.is_some() {
            return Err("only buckets have per=".to_owned());
        }
        let key = key.ok_or("key= is missing")?;
        let kind = if key.contains("{field}") { Kind::Cell } else { Kind::Row };
        let pattern = match container {
            Container::Buckets(0) if !key.contains('{') => None,
            // How another's keys write ids is not known: [`Layout::of_space`] says it of ours.
            _ => Some(Pattern::parse(kind, key).map_err(|error| error.to_string())?.padded(true)),
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
            elsewhere: Vec::new(),
        };
        layout.check()?;
        Ok(layout)
    }

    /// Whether its keys name the counter.
    fn names_field(&self) -> bool {
        self.pattern.as_ref().is_some_and(Pattern::has_field)
    }

    fn check(&self) -> Result<(), String> {
        let (container, names_field) = (self.container, self.names_field());
        let is_packed = self.packing != Packing::Decimal;
        let is_described = !self.fields.is_empty() || is_packed;
        let is_value =
            matches!(container, Container::String | Container::Buckets(_)) && !names_field;
        let wrong = [
            (names_field && container != Container::String, "only keys of strings have {field}"),
            (names_field && is_described, "{field} in the key names the counter: no fields="),
            (container == Container::Hash && is_packed, "a hash has a counter a field: no pack="),
            (
                is_value && !is_packed && self.fields.len() != 1,
                "fields= names the one counter, or pack= says how several lie",
            ),
            (is_value && self.fields.is_empty(), "fields= names the packed counters, in order"),
            (self.is_flags() && is_described, "members have no counters: no fields=, no pack="),
        ];
        if let Some((_, why)) = wrong.iter().find(|(is, _)| *is) {
            return Err((*why).to_owned());
        }
        if let Packing::Struct(format) = &self.packing
            && format.numbers() != self.fields.len()
        {
            let (packed, named) = (format.numbers(), self.fields.len());
            return Err(format!("pack= has {packed} numbers, and fields= names {named}"));
        }
        for (at, (_, to)) in self.fields.iter().enumerate() {
            if self.fields[..at].iter().any(|(_, other)| other == to) {
                return Err(format!("fields= gives '{to}' two values"));
            }
        }
        Ok(())
    }

    /// Whether it goes to an existence space.
    pub(crate) fn is_flags(&self) -> bool {
        matches!(self.container, Container::Set | Container::Bits)
    }

    /// One of a space's own patterns, which reads ids with zeros in front only if the space does.
    fn of_space(mut self, padded_ids: bool) -> Layout {
        self.pattern = self.pattern.map(|pattern| pattern.padded(padded_ids));
        self
    }

    /// Why a key that has its shape names no id, if so.
    pub(crate) fn refusal(&self, key: &[u8]) -> Option<String> {
        let space = &self.space;
        match self.pattern.as_ref()?.read(key) {
            Match::IdPadded => Some(format!(
                "its id begins with zeros, which the space '{space}' does not take (padded_ids)"
            )),
            Match::IdTooBig => Some("its id is above 18446744073709551615".to_owned()),
            Match::Yes(..) | Match::No => None,
        }
    }

    /// Notes which of its counters keys of other layouts have.
    pub(crate) fn note_others(&mut self, others: &[Layout]) {
        if self.container != Container::Hash {
            return;
        }
        let is_there = |field: &String| {
            let mut others = others.iter().filter(|other| {
                other.space == self.space
                    && other.container != Container::Hash
                    && !other.is_flags()
                    // Which counters of a row have keys of their own, is seen row by row.
                    && !other.is_cell()
            });
            others.any(|other| other.fields.iter().any(|(_, to)| to == field))
        };
        let all = self.fields.iter().enumerate();
        self.elsewhere = all.filter(|(_, (_, to))| is_there(to)).map(|(at, _)| at).collect();
    }

    /// The id, or the number of the bucket, and the field that a key of this layout has.
    pub(crate) fn read<'k>(&self, key: &'k [u8]) -> Option<(u64, &'k [u8])> {
        match self.pattern.as_ref().map(|pattern| pattern.read(key)) {
            Some(Match::Yes(id, field)) => Some((id, field)),
            None if self.key.as_bytes() == key => Some((0, &[])),
            _ => None,
        }
    }

    /// The key that has this counter of an id; `None` where the id does not tell the key.
    pub(crate) fn key(&self, id: u64, field: &[u8]) -> Option<Vec<u8>> {
        let Some(pattern) = &self.pattern else { return Some(self.key.clone().into_bytes()) };
        let number = match self.container {
            Container::Buckets(per) => id.checked_div(per)?,
            _ => id,
        };
        let mut key = Vec::new();
        pattern.write(number, field, &mut key);
        Some(key)
    }

    /// The ids of which a key has counters.
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
            // One hash; of several, an id does not tell which one has it.
            Container::Buckets(_) if self.pattern.is_none() => Some(Ids::Any),
            _ => None,
        }
    }

    /// Whether the key is written as [`Layout::key`] writes it: with no zeros in front of the id.
    pub(crate) fn is_plain(&self, key: &[u8]) -> bool {
        let Some((number, field)) = self.read(key) else { return false };
        let Some(pattern) = &self.pattern else { return true };
        let mut plain = Vec::with_capacity(key.len());
        pattern.write(number, field, &mut plain);
        plain == key
    }

    /// What a field of a hash or of a bucket holds.
    fn position(&self, name: &[u8]) -> Option<usize> {
        self.fields.iter().position(|(from, _)| from.as_bytes() == name)
    }

    /// Counters of a value.
    fn values(&self, value: &[u8]) -> Result<Vec<(usize, i64)>, String> {
        let numbered = |values: Vec<i64>| values.into_iter().enumerate().collect::<Vec<_>>();
        let values = match &self.packing {
            Packing::Decimal => vec![(0, decimal(value)?)],
            Packing::Struct(format) => numbered(format.unpack(value)?),
            Packing::Msgpack => match packed::msgpack(value)? {
                packed::Unpacked::List(values) => numbered(values),
                packed::Unpacked::Map(named) => named
                    .into_iter()
                    .filter_map(|(name, value)| Some((self.position(&name)?, value)))
                    .collect(),
            },
        };
        if values.len() > self.fields.len() {
            let (found, named) = (values.len(), self.fields.len());
            return Err(format!("{found} packed values, and fields= names {named}"));
        }
        Ok(values)
    }

    /// The counters of a hash, from its fields and values in turn.
    pub(crate) fn hash<'v>(
        &self,
        id: u64,
        all: impl Iterator<Item = (&'v [u8], &'v [u8])>,
    ) -> Result<Item, String> {
        let mut values = Vec::with_capacity(self.fields.len());
        for (name, value) in all {
            match self.position(name) {
                Some(at) => values.push((at, decimal(value).map_err(|e| in_field(name, &e))?)),
                None if self.all_fields => {
                    return Err(in_field(name, &format!("the space '{}' has none", self.space)));
                }
                None => {}
            }
        }
        Ok(Item::Hash(id, values))
    }

    /// The values of a hash with those that it lacks, unless other keys have them.
    pub(crate) fn with_lacking(
        &self,
        values: &[(usize, i64)],
        others_have: bool,
    ) -> Vec<(usize, i64)> {
        let has = |at| values.iter().any(|value| value.0 == at);
        let is_elsewhere = |at| others_have || self.elsewhere.contains(&at);
        let lacking = (0..self.fields.len()).filter(|at| !is_elsewhere(*at) && !has(*at));
        values.iter().copied().chain(lacking.map(|at| (at, 0))).collect()
    }

    /// Whether each key has one counter of a row, which other keys may have others of.
    pub(crate) fn is_cell(&self) -> bool {
        match self.container {
            Container::String => self.names_field(),
            Container::Card | Container::Ones => true,
            _ => false,
        }
    }

    /// The counters of a string; of `field` if the key names one.
    pub(crate) fn string(&self, id: u64, field: &[u8], value: &[u8]) -> Result<Item, String> {
        if !self.names_field() {
            return Ok(Item::Row(id, self.values(value)?));
        }
        let at = self.position(field);
        let at =
            at.ok_or_else(|| in_field(field, &format!("the space '{}' has none", self.space)))?;
        Ok(Item::Row(id, vec![(at, decimal(value)?)]))
    }

    /// The counters of one field of a bucket.
    pub(crate) fn bucket(&self, bucket: u64, field: &[u8], value: &[u8]) -> Result<Item, String> {
        let number = resp::natural(field).ok_or_else(|| in_field(field, "it is no number"))?;
        let id = match self.container {
            Container::Buckets(per) if per > 0 => {
                if number >= per {
                    return Err(in_field(field, &format!("per={per}")));
                }
                bucket.checked_mul(per).and_then(|low| low.checked_add(number))
            }
            _ => Some(number),
        };
        let id = id.ok_or_else(|| in_field(field, "the id is above 18446744073709551615"))?;
        let values = self.values(value).map_err(|error| in_field(field, &error))?;
        Ok(Item::Row(id, values))
    }

    /// The key is not there any more.
    pub(crate) fn gone(&self, id: u64, field: &[u8]) -> Option<Item> {
        match self.container {
            Container::Hash if self.all_fields && self.elsewhere.is_empty() => Some(Item::Gone(id)),
            Container::String if self.names_field() => {
                Some(Item::Row(id, vec![(self.position(field)?, 0)]))
            }
            Container::Hash | Container::String | Container::Card | Container::Ones => {
                Some(Item::Row(id, self.with_lacking(&[], false)))
            }
            // Which ids or members it had is not known.
            Container::Set | Container::Bits | Container::Buckets(_) => None,
        }
    }

    /// The classes of keyspace notifications that tell of changes: of the type, of keys as such,
    /// of expiry and of eviction.
    pub(crate) fn classes(&self) -> &'static str {
        match self.container {
            Container::Hash | Container::Buckets(_) => "ghxe",
            Container::String | Container::Bits | Container::Ones => "g$xe",
            Container::Set | Container::Card => "gsxe",
        }
    }

    /// Whether an event may have removed members, or fields of a hash.
    pub(crate) fn may_remove(&self, event: &[u8]) -> bool {
        match self.container {
            Container::Set => event != b"sadd",
            // Whether a bit was set or cleared is not said.
            Container::Bits => true,
            Container::Hash | Container::Buckets(_) => !matches!(event, b"hset" | b"hincrby"),
            Container::String | Container::Card | Container::Ones => false,
        }
    }
}

/// `old>new`, or a name for both.
fn renamed(field: &str) -> (String, String) {
    let (from, to) = field.split_once('>').unwrap_or((field, field));
    (from.to_owned(), to.to_owned())
}

fn in_field(name: &[u8], error: &str) -> String {
    format!("field '{}': {error}", name[..name.len().min(40)].escape_ascii())
}

fn decimal(text: &[u8]) -> Result<i64, String> {
    resp::integer(text).ok_or_else(|| {
        format!(
            "\"{}\" is not an integer or out of range",
            text[..text.len().min(40)].escape_ascii()
        )
    })
}

/// The pattern of a key as a glob.
fn glob_of(key: &str) -> String {
    let escaped: String = key
        .chars()
        .flat_map(|c| {
            (if "*?[]\\^".contains(c) { Some('\\') } else { None }).into_iter().chain([c])
        })
        .collect();
    escaped.replace("{id}", "*").replace("{field}", "*")
}

/// The layouts that the server's own key patterns describe. `first`: the first counter of the
/// space, which keys of cells without `{field}` have.
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
    // A node of a cluster has patterns with hash tags only; its source may know none.
    let mut all: Vec<String> = patterns.split_whitespace().map(str::to_owned).collect();
    for tagged in patterns.split_whitespace().filter(|_| in_cluster) {
        let plain = tagged.replacen("{{id}}", "{id}", 1);
        if !all.contains(&plain) {
            all.push(plain);
        }
    }
    all.iter().map(|key| one(key)).collect()
}

/// Whether a name of a channel or key fits the glob; used to tell keys of several layouts apart.
pub(crate) fn fits(glob: &str, key: &[u8]) -> bool {
    glob::matches(glob.as_bytes(), key, false)
}

/// A text of any bytes for people.
pub(crate) fn shown(key: &[u8]) -> String {
    printable(&String::from_utf8_lossy(&key[..key.len().min(80)]))
}

/// A stranger's text as a terminal may show it: what steers one is escaped.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // What turns the direction of a line, too.
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
        assert_eq!(first.string(17, b"", b"5"), Ok(Item::Row(17, vec![(0, 5)])));
        assert_eq!((first.read(b"like:007"), first.refusal(b"like:7")), (None, None));
        assert!(first.refusal(b"like:007").unwrap().contains("begins with zeros"));
        assert_eq!(ours("like:{id}", true).read(b"like:007"), Some((7, &b""[..])));
        let keys = |patterns, in_cluster| {
            let all = of_patterns(Kind::Row, "post", patterns, "like", false, in_cluster).unwrap();
            all.iter().map(|layout| layout.key(7, b"").unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(keys("p:{{id}}", true), [&b"p:{7}"[..], b"p:7"]);
        assert_eq!(keys("p:{{id}}", false), [b"p:{7}"]);
        assert_eq!(keys("p:{id} p:{{id}}", true), [&b"p:7"[..], b"p:{7}"]);
    }

    /// What another key has is not 0 because the hash lacks it, nor when the hash is gone.
    #[test]
    fn a_hash_leaves_what_other_keys_have() {
        let mut hash = layout("hash key=post:{id} space=post");
        hash.fields = ["like", "read"].map(|name| (name.to_owned(), name.to_owned())).to_vec();
        assert_eq!(hash.with_lacking(&[(1, 7)], false), [(1, 7), (0, 0)]);
        hash.note_others(&[layout("string key=like:{id} space=post fields=like")]);
        assert_eq!(hash.with_lacking(&[(1, 7)], false), [(1, 7)]);
        assert_eq!(hash.gone(3, b""), Some(Item::Row(3, vec![(1, 0)])));
    }

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        assert_eq!(shown(b"post:\x1b[2J\x9b\r\n\xe5\xbe\xae"), "post:\\u{1b}[2J\u{fffd}\\r\\n微");
        assert_eq!(printable("\u{202e}a\u{9b}"), "\\u{202e}a\\u{9b}");
    }

    #[test]
    fn values_become_rows() {
        let hash = layout("hash key=p:{id} space=post fields=likes>like,read");
        let pairs = [(&b"likes"[..], &b"5"[..]), (b"color", b"red")];
        assert_eq!(hash.hash(7, pairs.into_iter()), Ok(Item::Hash(7, vec![(0, 5)])));
        assert_eq!(hash.with_lacking(&[(0, 5)], false), [(0, 5), (1, 0)]);
        assert_eq!(hash.with_lacking(&[(0, 5)], true), [(0, 5)]);
        let bad = [(&b"read"[..], &b"1.5"[..])];
        let error = hash.hash(7, bad.into_iter()).unwrap_err();
        assert_eq!(error, "field 'read': \"1.5\" is not an integer or out of range");
        let buckets = layout("buckets key=likes:{id} space=post fields=like per=1000");
        assert_eq!(buckets.bucket(3, b"17", b"5"), Ok(Item::Row(3017, vec![(0, 5)])));
        assert!(buckets.bucket(3, b"1000", b"5").is_err());
        assert!(buckets.bucket(u64::MAX, b"1", b"5").unwrap_err().contains("the id is above"));
        let one = layout("buckets key=likes space=post fields=like");
        assert_eq!((one.read(b"likes"), one.read(b"likes:1")), (Some((0, &b""[..])), None));
        assert_eq!(one.bucket(0, b"17", b"5"), Ok(Item::Row(17, vec![(0, 5)])));
        assert_eq!(one.key(17, b""), Some(b"likes".to_vec()));
        let of_ids = layout("buckets key=likes:{id} space=post fields=like");
        assert_eq!(of_ids.bucket(3, b"17", b"5"), Ok(Item::Row(17, vec![(0, 5)])));
        let packed = layout("string key=c:{id} space=post fields=like,read pack=struct:<I4I2");
        let value = b"\x05\x00\x00\x00\x07\x00";
        assert_eq!(packed.string(7, b"", value), Ok(Item::Row(7, vec![(0, 5), (1, 7)])));
        let msgpack = layout("string key=c:{id} space=post fields=like,read pack=msgpack");
        let map = b"\x82\xa4read\x07\xa5color\x01";
        assert_eq!(msgpack.string(7, b"", map), Ok(Item::Row(7, vec![(1, 7)])));
        assert!(msgpack.string(7, b"", b"\x01\x02\x03").unwrap_err().contains("3 packed values"));
    }

    #[test]
    fn layouts_that_make_no_sense_are_refused() {
        for (text, why) in [
            ("", "none of hash"),
            ("list key=l:{id} space=post", "none of hash"),
            ("hash space=post", "key= is missing"),
            ("hash key=p:{id}", "space= is missing"),
            ("hash key=post space=post", "{id}"),
            ("hash key=p:{id} space=post colour", "not NAME=VALUE"),
            ("hash key=p:{id} space=post colour=1", "no 'colour='"),
            ("string key=p:{id} space=post", "fields= names"),
            ("string key=p:{id} space=post fields=a,b", "pack= says"),
            ("string key=p:{id}:{field} space=post fields=a", "{field} in the key"),
            ("hash key=p:{id}:{field} space=post", "only keys of strings"),
            ("buckets key=p:{id} space=post fields=a per=0", "above 0"),
            ("string key=p:{id} space=post fields=a pack=zip", "neither msgpack"),
            ("string key=p:{id} space=post fields=a pack=struct:Q", "struct"),
            ("set key=p:{id} space=liked fields=a", "no counters"),
            ("set key=p:{id} space=liked count=like", "not SPACE.FIELD"),
            ("hash key=p:{id} space=post count=post.like", "only sets and bits"),
            ("string key=p:{id} space=post fields=a,b pack=struct:<I4", "has 1 numbers"),
            ("hash key=p:{id} space=post fields=a>c,b>c", "gives 'c' two values"),
            ("string key=p:{id} space=post fields=a per=7", "only buckets have per="),
        ] {
            let error = Layout::parse_all(text).map(|_| ()).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
