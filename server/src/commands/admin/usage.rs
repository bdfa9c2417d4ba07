//! What follows a command's name, taken apart: [`Spec::usage`] is read into the tree of arguments
//! that COMMAND DOCS tells.
//!
//! ```text
//!   key                  one word; its type follows from its name
//!   NX                   a word as it stands
//!   EX seconds           a word that is announced by another
//!   [ ... ]              may be left out
//!   < a | b >            one of these; inside [ ] without the < >
//!   key [key ...]        what stands in the brackets once more, as often as wanted
//!   TO host port         in [ ]: several words that are announced by one
//! ```

use node::command::keyspec;
use node::command::spec::Spec;

/// One argument, or several that belong together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) name: String,
    /// In Redis's words: `key`, `string`, `integer`, `double`, `pattern`, `unix-time`,
    /// `pure-token`, `oneof`, `block`.
    pub(crate) kind: &'static str,
    /// Which of the command's key specifications it belongs to.
    pub(crate) key: Option<usize>,
    /// The word as it stands, or the word before it.
    pub(crate) token: Option<String>,
    pub(crate) optional: bool,
    pub(crate) multiple: bool,
    /// With its token each time.
    pub(crate) multiple_token: bool,
    /// Of `oneof` the choices, of `block` the parts.
    pub(crate) parts: Vec<Argument>,
}

/// Words that are numbers, by their names.
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
/// Words that are keys where a command has keys.
const KEYS: &[&str] = &["key", "newkey", "source", "destination"];
/// Commands that take other numbers than those names say.
const FRACTIONS: &[&str] = &["incrbyfloat", "hincrbyfloat", "debug|sleep"];

/// The arguments of a command.
pub(crate) fn arguments(spec: &Spec) -> Vec<Argument> {
    let marks = ["[", "]", "<", ">", "|"];
    let spaced = marks
        .iter()
        .fold(spec.usage.to_owned(), |text, mark| text.replace(mark, &format!(" {mark} ")));
    let words: Vec<&str> = spaced.split_ascii_whitespace().collect();
    let mut reader = Reader { spec, words: &words, keys: 0 };
    let found = reader.alternatives();
    debug_assert!(reader.words.is_empty(), "{}: {}", spec.name, spec.usage);
    found
}

struct Reader<'a> {
    spec: &'a Spec,
    words: &'a [&'a str],
    /// Keys so far.
    keys: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> &'a str {
        self.words.first().copied().unwrap_or_default()
    }

    fn next(&mut self) -> &'a str {
        let word = self.peek();
        self.words = self.words.get(1..).unwrap_or_default();
        word
    }

    /// Sequences with `|` between them; a single sequence as it is.
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

    /// Up to the end, or to what closes it.
    fn sequence(&mut self) -> Vec<Argument> {
        let mut found: Vec<Argument> = Vec::new();
        while !["", "|", "]", ">"].contains(&self.peek()) {
            match self.next() {
                "[" => match self.repeated() {
                    Some((length, with_token)) => {
                        // What is behind the token comes again, and the token with it or not.
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

    /// Whether the bracket that was just opened only says that what was before it may come again:
    /// of how many arguments, and whether with their token.
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

    /// A word as it stands, or one that announces the next.
    fn token(&mut self, token: &str) -> Argument {
        let next = self.peek();
        let announces_one =
            next == "<" || (!["", "|", "[", "]", ">", "..."].contains(&next) && !is_token(next));
        // Several words behind it: the bracket around them makes them one.
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
            // Entries of streams have ids of two parts.
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

/// Several as one, named after its parts.
fn group(kind: &'static str, parts: Vec<Argument>) -> Argument {
    let name = parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join("_");
    Argument { parts, ..leaf(&name, kind) }
}

/// One argument as it is, several as a block.
fn joined(mut parts: Vec<Argument>) -> Argument {
    if parts.len() == 1 { parts.remove(0) } else { group("block", parts) }
}

#[cfg(test)]
mod tests {
    use super::{Argument, Spec, arguments};
    use crate::commands::families::install;
    use node::command::table::{find, with_numbers};

    /// Written as redis-cli shows it: what was read is written as it stood.
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
