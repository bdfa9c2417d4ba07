//! Parser for [`Spec::usage`], the syntax after a command's name. COMMAND DOCS reports the
//! resulting argument tree.
//!
//! ```text
//!   key                  one word; its type follows from its name
//!   NX                   a literal token
//!   EX seconds           a word preceded by a token
//!   [ ... ]              optional
//!   < a | b >            alternatives; without < > inside [ ]
//!   key [key ...]        repeats the preceding argument any number of times
//!   TO host port         inside [ ]: several words preceded by one token
//! ```

use node::command::keyspec;
use node::command::spec::Spec;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) name: String,
    /// Redis's type name: `key`, `string`, `integer`, `double`, `pattern`, `unix-time`,
    /// `pure-token`, `oneof`, `block`.
    pub(crate) kind: &'static str,
    /// Index of the key specification that describes this argument.
    pub(crate) key: Option<usize>,
    /// The literal token, or the token that precedes the argument.
    pub(crate) token: Option<String>,
    pub(crate) optional: bool,
    pub(crate) multiple: bool,
    /// Whether the token is repeated with each value.
    pub(crate) multiple_token: bool,
    /// Choices of `oneof`, members of `block`.
    pub(crate) parts: Vec<Argument>,
}

/// Argument names whose type is integer.
const INTEGERS: &[&str] = &[
    "bits",
    "bytes",
    "client-id",
    "cluster_bus_port",
    "config-epoch",
    "count",
    "cursor",
    "db",
    "decrement",
    "delta",
    "destination-db",
    "end",
    "end-slot",
    "frequency",
    "id",
    "increment",
    "index",
    "limit",
    "low",
    "max",
    "milliseconds",
    "min",
    "numkeys",
    "numlocal",
    "numreplicas",
    "offset",
    "port",
    "protocol",
    "protover",
    "capacity",
    "maxage",
    "expansion",
    "seconds",
    "slot",
    "start",
    "start-slot",
    "tables",
    "timeout",
    "ttl",
];
const DOUBLES: &[&str] = &["error_rate", "error"];
/// Argument names whose type is key, in commands with keys.
const KEYS: &[&str] = &["key", "newkey", "source", "destination"];
/// Commands whose numeric arguments are doubles instead of integers.
const FRACTIONS: &[&str] = &["incrbyfloat", "hincrbyfloat", "debug|sleep"];

pub(crate) fn arguments(spec: &Spec) -> Vec<Argument> {
    let marks = ["[", "]", "<", ">", "|"];
    let spaced = marks
        .iter()
        .fold(spec.usage.to_owned(), |text, mark| text.replace(mark, &format!(" {mark} ")));
    let words: Vec<&str> = spaced.split_ascii_whitespace().collect();
    let mut reader = UsageParser { spec, words: &words, keys: 0 };
    let found = reader.alternatives();
    debug_assert!(reader.words.is_empty(), "{}: {}", spec.name, spec.usage);
    found
}

struct UsageParser<'a> {
    spec: &'a Spec,
    words: &'a [&'a str],
    keys: usize,
}

impl<'a> UsageParser<'a> {
    fn peek(&self) -> &'a str {
        self.words.first().copied().unwrap_or_default()
    }

    fn next(&mut self) -> &'a str {
        let word = self.peek();
        self.words = self.words.get(1..).unwrap_or_default();
        word
    }

    /// Parses sequences separated by `|`. Returns a single sequence unchanged.
    fn alternatives(&mut self) -> Vec<Argument> {
        let mut choices = vec![self.sequence()];
        while self.peek() == "|" {
            self.next();
            choices.push(self.sequence());
        }
        if choices.len() == 1 {
            return choices.remove(0);
        }
        vec![group("oneof", choices.into_iter().map(joined).collect())]
    }

    /// Parses a sequence up to the end of the text or a closing bracket.
    fn sequence(&mut self) -> Vec<Argument> {
        let mut found: Vec<Argument> = Vec::new();
        while !["", "|", "]", ">"].contains(&self.peek()) {
            match self.next() {
                "[" => match self.repeated() {
                    Some((length, with_token)) => {
                        // Marks the preceding arguments as repeated.
                        let from = found.len() - length.min(found.len());
                        let mut again = joined(found.split_off(from));
                        (again.multiple, again.multiple_token) = (true, with_token);
                        found.push(again);
                    }
                    None => {
                        let mut inner = self.alternatives();
                        self.next();
                        let announces = inner.len() > 1
                            && inner[0].kind == "pure-token"
                            && inner[1].token.is_none();
                        let mut one = if announces {
                            let token = inner.remove(0).token;
                            Argument { token, ..group("block", inner) }
                        } else {
                            joined(inner)
                        };
                        one.optional = true;
                        found.push(one);
                    }
                },
                "<" => {
                    found.append(&mut self.alternatives());
                    self.next();
                }
                word if is_token(word) => found.push(self.token(word)),
                word => found.push(self.word(word)),
            }
        }
        found
    }

    /// Parses the content of `[x ...]`, which repeats the preceding arguments. Returns the number
    /// of repeated arguments, and whether the token is repeated with them.
    fn repeated(&mut self) -> Option<(usize, bool)> {
        let close = self.words.iter().position(|word| *word == "]")?;
        let (inner, last) = self.words[..close].split_at(close.checked_sub(1)?);
        if last != ["..."] || inner.contains(&"[") {
            return None;
        }
        self.words = &self.words[close + 1..];
        let with_token = inner.first().is_some_and(|word| is_token(word));
        Some((inner.len() - usize::from(with_token), with_token))
    }

    /// Parses a literal token, with its value if one follows.
    fn token(&mut self, token: &str) -> Argument {
        let next = self.peek();
        let announces_one =
            next == "<" || (!["", "|", "[", "]", ">", "..."].contains(&next) && !is_token(next));
        // A token before several words applies to all words in the bracket.
        let several = self
            .words
            .get(1)
            .is_some_and(|word| !["|", "[", "]", ">"].contains(word) && !is_token(word));
        if announces_one && (next == "<" || !several) {
            let next = self.next();
            let mut one = match next {
                "<" => {
                    let inner = joined(self.alternatives());
                    self.next();
                    inner
                }
                word => self.word(word),
            };
            one.token = Some(token.to_owned());
            return one;
        }
        Argument {
            token: Some(token.to_owned()),
            ..leaf(&token.to_ascii_lowercase(), "pure-token")
        }
    }

    fn word(&mut self, name: &str) -> Argument {
        let name = name.to_owned();
        if KEYS.contains(&name.as_str()) && self.spec.keys.are_keys() {
            let key = Some(self.keys.min(keyspec::of(self.spec).len() - 1));
            self.keys += 1;
            return Argument { key, ..leaf(&name, "key") };
        }
        let kind = match name.as_str() {
            _ if FRACTIONS.contains(&self.spec.name) && INTEGERS.contains(&name.as_str()) => {
                "double"
            }
            // Stream entry ids are strings, because they have two parts.
            "id" | "start" | "end" | "lastid" if self.spec.group == "stream" => "string",
            "min-idle-time" if self.spec.name.ends_with("claim") => "string",
            name if INTEGERS.contains(&name) => "integer",
            name if DOUBLES.contains(&name) => "double",
            name if name.starts_with("unix-time") => "unix-time",
            "pattern" => "pattern",
            _ => "string",
        };
        leaf(&name, kind)
    }
}

fn is_token(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-') && !word.is_empty()
}

fn leaf(name: &str, kind: &'static str) -> Argument {
    Argument {
        name: name.to_owned(),
        kind,
        key: None,
        token: None,
        optional: false,
        multiple: false,
        multiple_token: false,
        parts: Vec::new(),
    }
}

fn group(kind: &'static str, parts: Vec<Argument>) -> Argument {
    let name = parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join("_");
    Argument { parts, ..leaf(&name, kind) }
}

fn joined(mut parts: Vec<Argument>) -> Argument {
    if parts.len() == 1 { parts.remove(0) } else { group("block", parts) }
}

#[cfg(test)]
mod tests {
    use super::{Argument, Spec, arguments};
    use crate::commands::families::install;
    use node::command::table::{find, with_numbers};

    /// Formats an argument as redis-cli does. The result equals the parsed text.
    fn written(argument: &Argument) -> String {
        let parts: Vec<String> = argument.parts.iter().map(written).collect();
        let mut text = match (argument.kind, argument.token.as_deref()) {
            ("pure-token", Some(token)) => token.to_owned(),
            ("oneof", None) if argument.optional => parts.join("|"),
            ("oneof", token) => {
                [token.map_or(String::new(), |t| format!("{t} ")), format!("<{}>", parts.join("|"))]
                    .concat()
            }
            ("block", token) => {
                [token.map_or(String::new(), |t| format!("{t} ")), parts.join(" ")].concat()
            }
            (_, token) => {
                [token.map_or(String::new(), |t| format!("{t} ")), argument.name.clone()].concat()
            }
        };
        if argument.multiple {
            let again = match &argument.token {
                Some(token) if !argument.multiple_token => {
                    text.trim_start_matches(token.as_str()).trim_start()
                }
                _ => &text,
            };
            text = format!("{text} [{again} ...]");
        }
        if argument.optional { format!("[{text}]") } else { text }
    }

    fn whole(spec: &Spec) -> String {
        arguments(spec).iter().map(written).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_usage_is_read_and_written_as_it_stands() {
        install();
        for (_, spec) in with_numbers() {
            assert_eq!(whole(spec), spec.usage, "{}", spec.name);
        }
    }

    #[test]
    fn arguments_have_types_and_keys_their_specifications() {
        install();
        let of = |name: &str| arguments(find(name.as_bytes()).unwrap().1);
        let copy = of("copy");
        let shown: Vec<_> =
            copy.iter().map(|a| (a.name.as_str(), a.kind, a.key, a.optional)).collect();
        assert_eq!(
            shown,
            [
                ("source", "key", Some(0), false),
                ("destination", "key", Some(1), false),
                ("destination-db", "integer", None, true),
                ("replace", "pure-token", None, true),
            ]
        );
        let mset = &of("mset")[0];
        assert!((mset.kind, mset.multiple, mset.parts.len()) == ("block", true, 2), "{mset:?}");
        assert_eq!(of("incrby")[1].kind, "integer");
        assert_eq!(of("incrbyfloat")[1].kind, "double");
        let failover = &of("failover")[0];
        assert_eq!(
            (failover.kind, failover.token.as_deref(), failover.parts.len()),
            ("block", Some("TO"), 3)
        );
    }
}
