//! Key patterns: map Redis keys (`post:17`, `post:17:like`, `liked:17`) to rows, cells and pairs.
//!
//! A pattern is fixed text with an `{id}` and, for cells, a `{field}` after it. A cell pattern
//! without `{field}` refers to the space's first field. An id is a canonical decimal `u64`, so that
//! a row has only one key: `017` is invalid unless the space accepts padded ids. The configuration
//! must not have two patterns that match the same key, so their order does not matter. As an
//! exception, a pattern for counters and a pattern for pairs without members may match the same
//! key. In this case the command determines the space.
//!
//! Braces around `{id}` are literal: the pattern `post:{{id}}` matches `post:{17}`. Proxies and
//! clusters route a key by its hash tag, the text in braces. All keys of one post are thus on one
//! server.

mod overlap;

pub(crate) use overlap::overlap;

use std::fmt;

/// Kind of object that a pattern's keys name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A row of counters, for hash commands.
    Row,
    /// One counter, for string commands.
    Cell,
    /// All pairs of one id, for set and Bloom commands.
    Pair,
}

/// Parsed key pattern. See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Text before the id.
    prefix: Box<[u8]>,
    /// Text after the id, up to the field if the pattern has a field.
    middle: Box<[u8]>,
    /// Text after the field, or `None` if the pattern has no field.
    end: Option<Box<[u8]>>,
    /// Whether ids may have leading zeros; see [`Pattern::padded`].
    padded: bool,
}

/// Reason for refusing a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// No `{id}`, or more than one.
    #[error("key pattern '{0}' must contain one {{id}}")]
    NoId(String),
    /// More than one `{field}`, a `{field}` before `{id}`, or a `{field}` in a pattern for rows or
    /// pairs.
    #[error(
        "key pattern '{0}' may contain one {{field}}, after {{id}}, and only in a list of cells"
    )]
    Field(String),
    /// Text after `{id}` that begins with a digit, or no text between `{id}` and `{field}`.
    #[error("key pattern '{0}' does not show where the id ends: put a non-digit after {{id}}")]
    Open(String),
    /// Whitespace or control characters.
    #[error("key pattern '{0}' contains a space or control character")]
    Space(String),
}

/// Maximum number of digits of a padded id. Each number of leading zeros yields another key of the
/// row, and client tracking stores each of them.
const MAX_ID_DIGITS: usize = 64;

/// Result of matching a key against a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyMatch<'k> {
    /// The key does not match.
    No,
    /// The key matches, but its id exceeds 64 bits.
    IdTooBig,
    /// The key matches, but its id has leading zeros and would be a second key of the row.
    IdPadded,
    /// The id and the field, which is empty if the pattern has no field.
    Yes(u64, &'k [u8]),
}

/// Returns the text after the prefix `start`. Does not compare an empty prefix: its pointer
/// dangles, and glibc's memcmp for AVX-512 loads from it with an empty mask. The processor
/// suppresses the fault, but this takes about 100 ns.
#[inline]
fn behind<'k>(text: &'k [u8], start: &[u8]) -> Option<&'k [u8]> {
    if start.is_empty() { Some(text) } else { text.strip_prefix(start) }
}

/// Strips leading zeros, but not those of ids with more than [`MAX_ID_DIGITS`] digits, which are
/// too big.
fn unpadded(digits: &[u8]) -> &[u8] {
    if digits.len() > MAX_ID_DIGITS {
        return digits;
    }
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    &digits[zeros.min(digits.len().saturating_sub(1))..]
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        write!(f, "{}{{id}}{}", text(&self.prefix), text(&self.middle))?;
        match &self.end {
            Some(end) => write!(f, "{{field}}{}", text(end)),
            None => Ok(()),
        }
    }
}

impl Pattern {
    /// Parses patterns separated by whitespace. SCAN and KEYS return keys of the first pattern.
    pub fn parse_all(kind: Kind, text: &str) -> Result<Vec<Pattern>, PatternError> {
        text.split_ascii_whitespace().map(|text| Pattern::parse(kind, text)).collect()
    }

    /// Parses a pattern of this kind.
    pub fn parse(kind: Kind, text: &str) -> Result<Pattern, PatternError> {
        if text.bytes().any(|b| b.is_ascii_whitespace() || b.is_ascii_control()) {
            return Err(PatternError::Space(text.to_owned()));
        }
        let Some((prefix, rest)) = text.split_once("{id}") else {
            return Err(PatternError::NoId(text.to_owned()));
        };
        if rest.contains("{id}") {
            return Err(PatternError::NoId(text.to_owned()));
        }
        let field = || PatternError::Field(text.to_owned());
        let (middle, end) = match (kind, rest.split_once("{field}")) {
            (Kind::Cell, Some((middle, end))) => (middle, Some(end)),
            (_, Some(_)) => return Err(field()),
            // Without a field the keys name the first field of the space.
            (_, None) => (rest, None),
        };
        if prefix.contains("{field}") || end.is_some_and(|e| e.contains("{field}")) {
            return Err(field());
        }
        let open = middle.bytes().next().is_some_and(|b| b.is_ascii_digit())
            || (end.is_some() && middle.is_empty());
        if open {
            return Err(PatternError::Open(text.to_owned()));
        }
        let boxed = |s: &str| s.as_bytes().into();
        Ok(Pattern {
            prefix: boxed(prefix),
            middle: boxed(middle),
            end: end.map(boxed),
            padded: false,
        })
    }

    /// Sets whether ids may have leading zeros, so that `000017` means 17. The keys of
    /// `redis-benchmark -r` are padded.
    pub fn padded(self, padded: bool) -> Pattern {
        Pattern { padded, ..self }
    }

    /// Whether the pattern has `{field}`.
    pub fn has_field(&self) -> bool {
        self.end.is_some()
    }

    /// Matches a key.
    #[inline]
    pub fn read<'k>(&self, key: &'k [u8]) -> KeyMatch<'k> {
        let Some(rest) = behind(key, &self.prefix) else { return KeyMatch::No };
        // Fast path, because most keys of rows end with the id.
        if self.middle.is_empty()
            && self.end.is_none()
            && let Some(id) = digits::natural(rest)
        {
            return KeyMatch::Yes(id, b"");
        }
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let (digits, rest) = rest.split_at(digits);
        let Some(rest) = behind(rest, &self.middle) else { return KeyMatch::No };
        let field = match &self.end {
            None if rest.is_empty() => rest,
            None => return KeyMatch::No,
            Some(end) => {
                let field = if end.is_empty() { Some(rest) } else { rest.strip_suffix(&**end) };
                match field {
                    Some(field) if !field.is_empty() => field,
                    _ => return KeyMatch::No,
                }
            }
        };
        let id = if self.padded { unpadded(digits) } else { digits };
        match digits::natural(id) {
            Some(id) => KeyMatch::Yes(id, field),
            None if self.padded && id.len() >= 20 => KeyMatch::IdTooBig,
            // A canonical number that exceeds 64 bits.
            None if digits.len() >= 20 && digits[0] != b'0' => KeyMatch::IdTooBig,
            None if digits.len() >= 2 => KeyMatch::IdPadded,
            None => KeyMatch::No,
        }
    }

    /// Whether a key would match if its id were a valid number.
    pub fn fits_but_for_id(&self, key: &[u8]) -> bool {
        let Some(rest) = behind(key, &self.prefix) else { return false };
        let is_text = |id: &[u8]| !id.is_empty() && !id.iter().all(u8::is_ascii_digit);
        match &self.end {
            None => rest.strip_suffix(&*self.middle).is_some_and(is_text),
            Some(end) => rest.strip_suffix(&**end).is_some_and(|rest| {
                let middle = &*self.middle;
                let mut places = rest.windows(middle.len().max(1));
                places
                    .position(|at| at == middle)
                    .is_some_and(|at| is_text(&rest[..at]) && rest.len() > at + middle.len())
            }),
        }
    }

    /// Returns the common prefix of the pattern's keys.
    pub(crate) fn start(&self) -> &[u8] {
        &self.prefix
    }

    /// Appends the key of `id` (and `field`).
    pub fn write(&self, id: u64, field: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(id.to_string().as_bytes());
        out.extend_from_slice(&self.middle);
        if let Some(end) = &self.end {
            out.extend_from_slice(field);
            out.extend_from_slice(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(kind: Kind, text: &str) -> Pattern {
        Pattern::parse(kind, text).unwrap()
    }

    #[test]
    fn keys_are_read_and_written() {
        let row = pattern(Kind::Row, "post:{id}");
        let cell = pattern(Kind::Cell, "post:{id}:{field}");
        let bare = pattern(Kind::Cell, "{id}.{field}");
        let cases: &[(&Pattern, &str, KeyMatch<'static>)] = &[
            (&row, "post:17", KeyMatch::Yes(17, b"")),
            (&row, "post:0", KeyMatch::Yes(0, b"")),
            (&row, "post:18446744073709551615", KeyMatch::Yes(u64::MAX, b"")),
            (&row, "post:18446744073709551616", KeyMatch::IdTooBig),
            (&row, "post:017", KeyMatch::IdPadded),
            (&row, "post:00000000000000000000000001", KeyMatch::IdPadded),
            (&cell, "post:017:like", KeyMatch::IdPadded),
            (&row, "post:", KeyMatch::No),
            (&row, "post:-1", KeyMatch::No),
            (&row, "post:17:like", KeyMatch::No),
            (&row, "post:17x", KeyMatch::No),
            (&row, "pos", KeyMatch::No),
            (&row, "", KeyMatch::No),
            (&cell, "post:17:like", KeyMatch::Yes(17, b"like")),
            (&cell, "post:17:", KeyMatch::No),
            (&cell, "post:17", KeyMatch::No),
            (&cell, "post:99999999999999999999:like", KeyMatch::IdTooBig),
            (&bare, "44.like", KeyMatch::Yes(44, b"like")),
            (&bare, ".like", KeyMatch::No),
        ];
        for (pattern, key, expected) in cases {
            assert_eq!(pattern.read(key.as_bytes()), *expected, "{key}");
            if let KeyMatch::Yes(id, field) = expected {
                let mut out = Vec::new();
                pattern.write(*id, field, &mut out);
                assert_eq!(out, key.as_bytes());
            }
        }
    }

    #[test]
    fn padded_ids_are_read_as_what_they_mean() {
        let cell = pattern(Kind::Cell, "key:{id}").padded(true);
        for (key, expected) in [
            ("key:000000000042", KeyMatch::Yes(42, &b""[..])),
            ("key:42", KeyMatch::Yes(42, b"")),
            ("key:000000000000", KeyMatch::Yes(0, b"")),
            ("key:00000000018446744073709551615", KeyMatch::Yes(u64::MAX, b"")),
            ("key:00000000018446744073709551616", KeyMatch::IdTooBig),
            ("key:", KeyMatch::No),
            ("key:00x", KeyMatch::No),
        ] {
            assert_eq!(cell.read(key.as_bytes()), expected, "{key}");
        }
        let mut out = Vec::new();
        cell.write(42, b"", &mut out);
        assert_eq!(out, b"key:42");
    }

    #[test]
    fn a_text_in_the_place_of_the_id_is_told_from_another_key() {
        let row = pattern(Kind::Row, "post:{id}");
        let cell = pattern(Kind::Cell, "post:{id}:{field}");
        let framed = pattern(Kind::Row, "{{id}}:x");
        for (pattern, key, expected) in [
            (&row, "post:abc", true),
            (&row, "post:-1", true),
            (&row, "post:1.5", true),
            (&row, "post:", false),
            (&row, "session:abc", false),
            (&cell, "post:abc:like", true),
            (&cell, "post:abc", false),
            (&cell, "post::like", false),
            (&cell, "post:abc:", false),
            (&framed, "{abc}:x", true),
            (&framed, "{abc}", false),
        ] {
            assert_eq!(pattern.fits_but_for_id(key.as_bytes()), expected, "{pattern} {key}");
        }
    }

    #[test]
    fn patterns_that_name_nothing_clear_are_refused() {
        use PatternError::*;
        let t = |s: &str| s.to_owned();
        assert_eq!(Pattern::parse(Kind::Row, "post"), Err(NoId(t("post"))));
        assert_eq!(Pattern::parse(Kind::Row, "{id}{id}"), Err(NoId(t("{id}{id}"))));
        assert_eq!(Pattern::parse(Kind::Row, "a{id}:{field}"), Err(Field(t("a{id}:{field}"))));
        assert_eq!(Pattern::parse(Kind::Pair, "a{id}:{field}"), Err(Field(t("a{id}:{field}"))));
        assert_eq!(Pattern::parse(Kind::Cell, "{field}:{id}"), Err(Field(t("{field}:{id}"))));
        assert_eq!(Pattern::parse(Kind::Cell, "a{id}{field}"), Err(Open(t("a{id}{field}"))));
        assert_eq!(Pattern::parse(Kind::Pair, "a{id}0"), Err(Open(t("a{id}0"))));
        assert_eq!(Pattern::parse(Kind::Pair, "a {id}"), Err(Space(t("a {id}"))));
    }

    #[test]
    fn overlaps_are_found() {
        let row = |t| pattern(Kind::Row, t);
        let cell = |t| pattern(Kind::Cell, t);
        let cases = [
            (row("post:{id}"), row("post:{id}"), true),
            (row("post:{id}"), row("user:{id}"), false),
            (row("post:{id}"), cell("post:{id}:{field}"), false),
            (row("post:{id}:x"), cell("post:{id}:{field}"), true),
            (cell("post:{id}.{field}"), cell("post:{id}:{field}"), false),
            (cell("post:{id}:{field}"), cell("post:{id}:x:{field}"), true),
            (row("a{id}"), row("a1{id}"), true),
            (row("{id}"), row("post:{id}"), false),
            (row("{id}"), cell("{id}.{field}"), false),
            (row("a{id}"), row("ab{id}"), false),
            (row("a{id}"), cell("a{id}"), true),
            (cell("a{id}"), cell("a{id}:{field}"), false),
            // One pattern has text where the other pattern has its id. The rest of both patterns
            // must also match.
            (row("foo1_t__{id}~h"), row("foo{id}~h"), false),
            (row("foo1~h{id}~h"), row("foo{id}~h"), false),
            (row("foo1{id}~h"), row("foo{id}~h"), true),
            (row("a1:{id}"), cell("a{id}:{field}"), true),
            (row("a1.{id}"), cell("a{id}:{field}"), false),
            (row("a1:x{id}"), cell("a{id}:{field}:y"), false),
            (row("a1:x{id}:y"), cell("a{id}:{field}:y"), true),
            (cell("p{id}:{field}:a"), cell("p{id}:{field}:b"), false),
            (cell("p{id}:{field}:ab"), cell("p{id}:{field}b"), true),
            (row("p{id}:ab"), cell("p{id}:a{field}b"), false),
            (row("p{id}:axb"), cell("p{id}:a{field}b"), true),
            // Keys that a pattern refuses because the id is padded or too large also count as
            // overlap.
            (row("a{id}"), row("a0{id}"), true),
            (row("a{id}"), row("a99999999999999999999{id}"), true),
            (row("post:{{id}}"), row("post:{id}"), false),
            (row("post:{{id}}"), cell("post:{{id}}:{field}"), false),
            (row("post:{{id}}:x"), cell("post:{{id}}:{field}"), true),
        ];
        for (a, b, expected) in cases {
            assert_eq!(overlap(&a, &b), expected, "{a:?} {b:?}");
            assert_eq!(overlap(&b, &a), expected, "{b:?} {a:?}");
        }
    }

    /// Compares [`overlap`] for all pairs of short patterns with an exhaustive search. The search
    /// tries all keys of up to nine bytes from three letters.
    #[test]
    fn patterns_overlap_exactly_if_a_key_fits_both() {
        let mut patterns = Vec::new();
        for prefix in ["", "1", "a", "a1", "a1b", "1b"] {
            for middle in ["", "b", "a", "ba"] {
                patterns.push(pattern(Kind::Row, &format!("{prefix}{{id}}{middle}")));
                for end in ["", "a", "1", "ab"].iter().filter(|_| !middle.is_empty()) {
                    let text = format!("{prefix}{{id}}{middle}{{field}}{end}");
                    patterns.push(pattern(Kind::Cell, &text));
                }
            }
        }
        let mut shared = vec![vec![false; patterns.len()]; patterns.len()];
        let mut keys: Vec<Vec<u8>> = vec![vec![]];
        for _ in 0..9 {
            let longer = |key: &Vec<u8>| b"1ab".map(|byte| [&key[..], &[byte]].concat());
            keys = keys.iter().flat_map(longer).collect();
            for key in &keys {
                let fits: Vec<usize> = (0..patterns.len())
                    .filter(|&p| patterns[p].read(key) != KeyMatch::No)
                    .collect();
                for &a in &fits {
                    fits.iter().for_each(|&b| shared[a][b] = true);
                }
            }
        }
        for (a, one) in patterns.iter().enumerate() {
            for (b, other) in patterns.iter().enumerate() {
                // The shortest common key of these patterns has at most nine bytes.
                assert_eq!(overlap(one, other), shared[a][b], "{one:?} {other:?}");
            }
        }
    }

    /// Keys may contain hash tags.
    #[test]
    fn braces_around_an_id_are_text() {
        let row = pattern(Kind::Row, "post:{{id}}");
        let cell = pattern(Kind::Cell, "post:{{id}}:{field}");
        assert_eq!(row.read(b"post:{1001}"), KeyMatch::Yes(1001, b""));
        assert_eq!(cell.read(b"post:{1001}:like"), KeyMatch::Yes(1001, b"like"));
        for key in ["post:1001", "post:{1001", "post:1001}", "post:{{1001}}", "post:{}"] {
            assert_eq!(row.read(key.as_bytes()), KeyMatch::No, "{key}");
        }
        let mut out = Vec::new();
        cell.write(7, b"read", &mut out);
        assert_eq!(out, b"post:{7}:read");
    }
}
