//! Section `[[ingest]]`: sources of events, and the mapping of events to actions and counters.

use serde::{Deserialize, Serialize};

/// Encoding of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IngestFormat {
    /// JSON, one object per line.
    Json,
    /// Binary format, described in docs/ingest.md.
    Binary,
}

/// Start position of a source that has never been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IngestStart {
    /// The oldest message in the broker.
    First,
    /// Only messages that arrive from now on.
    New,
}

/// Handling of an event that cannot be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IngestPoison {
    /// Writes it to the dead letters and continues with the next event.
    Skip,
    /// Halts the source before this event until an operator resumes it.
    Stop,
}

dataset::section! {
    /// A stream of events that the master reads, each event exactly once: docs/ingest.md. Every
    /// node that may become the master needs the same sources. By default there are none.
    Ingest {
        /// Name of the source, 1 to 64 of a-z, A-Z, 0-9, _ and -. The position in the stream is
        /// stored under this name, so a renamed source is a new source.
        #[group = 2]
        name: String = String::new(),
        /// Broker: nats://host:4222, kafka://host:9092 or redis://host:6379. For NATS and Kafka you
        /// may list several, separated by commas.
        #[group = 2]
        url: String = String::new(),
        /// User name for the broker. If it is empty, the password is a NATS token.
        #[group = 2]
        user: String = String::new(),
        /// Password of that user.
        #[secret = true]
        #[group = 2]
        password: String = String::new(),
        /// Whether to encrypt the connection.
        #[group = 2]
        tls: bool = false,
        /// PEM file with the authorities that sign the broker's certificate; if empty, those of the
        /// system are used.
        ca_file: String = String::new(),
        /// Name of the JetStream stream, the Kafka topic, or the key of the Redis stream.
        #[group = 2]
        stream: String = String::new(),
        /// JetStream subjects to read, such as "likes.>"; empty reads all.
        #[group = 2]
        subject: String = String::new(),
        /// Format of events: "json", one object per line, or "binary".
        #[group = 2]
        format: IngestFormat = IngestFormat::Json,
        /// Events as "NAME = act ACTION", "NAME = undo ACTION", "NAME = increment SPACE.FIELD" or
        /// "NAME = set SPACE.FIELD". If empty, "like" runs the action like, and "unlike" undoes it.
        /// Binary events refer to this list by index.
        #[group = 2]
        events: Vec<String> = Vec::new(),
        /// JSON key that contains the name of the event.
        event_name: String = "event".to_owned(),
        /// JSON key that contains the id.
        id_name: String = "id".to_owned(),
        /// JSON key that contains the member.
        member_name: String = "member".to_owned(),
        /// JSON key that contains the name of the counter, for increment and set.
        field_name: String = "field".to_owned(),
        /// JSON key that contains the number, for increment and set.
        value_name: String = "value".to_owned(),
        /// For Redis: field of a stream entry that contains the events. If an entry has no such
        /// field, its fields form one event.
        payload: String = "payload".to_owned(),
        /// Where a new source begins: "first" (the oldest message), or "new" (new messages only).
        #[group = 2]
        start: IngestStart = IngestStart::First,
        /// Maximum number of events that are applied together, 1 to 4096.
        batch: usize = 512,
        /// Handling of invalid events: "skip" writes the event to the dead letter file, "stop"
        /// halts the source. Use "stop" if no event may be lost.
        #[group = 2]
        poison: IngestPoison = IngestPoison::Skip,
        /// Dead letter file, with one JSON object per line. If empty, the file is NAME.dead in the
        /// data folder.
        dead_letters: String = String::new(),
        /// Maximum size of the dead letter file. Further dead letters are only counted.
        #[key = "max_dead_letters"]
        #[with = "dataset::options::units::bytes"]
        dead_letter_bytes: u64 = 64 << 20,
    }
}

/// Maximum number of events per step.
const MOST_EVENTS: usize = 4096;

impl Ingest {
    /// Checks each source and that the names of the sources differ.
    pub(super) fn check(all: &[Ingest]) -> Result<(), String> {
        for (index, source) in all.iter().enumerate() {
            let name = &source.name;
            let refused = |why: &str| Err(format!("ingest '{name}': {why}"));
            let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            if !(1..=64).contains(&name.len()) || !name.bytes().all(is_fine) {
                return refused("a name has 1 to 64 of a-z, A-Z, 0-9, _ and -");
            }
            if all[..index].iter().any(|other| other.name == *name) {
                return Err(format!("two sources of events are named '{name}'"));
            }
            let of_it = |why: String| format!("ingest '{name}': {why}");
            let (broker, hosts) = Broker::of(&source.url).map_err(of_it)?;
            if source.stream.is_empty() {
                return refused("stream is empty");
            }
            if broker != Broker::Nats && !source.subject.is_empty() {
                return refused("only JetStream has subjects");
            }
            if broker == Broker::Redis && hosts.contains(',') {
                return refused("a stream of Redis is on one server");
            }
            if !(1..=MOST_EVENTS).contains(&source.batch) {
                return refused(&format!("batch is {}: must be 1 to {MOST_EVENTS}", source.batch));
            }
            Mapped::all(&source.events).map_err(of_it)?;
            if source.format == IngestFormat::Binary && source.events.is_empty() {
                return refused("binary events are numbers of the list 'events', which is empty");
            }
            let names = [
                &source.event_name,
                &source.id_name,
                &source.member_name,
                &source.field_name,
                &source.value_name,
            ];
            let is_twice = |at: usize| names[..at].contains(&names[at]);
            if names.iter().any(|name| name.is_empty()) || (0..5).any(is_twice) {
                return refused("the parts of an event need names, each its own");
            }
        }
        Ok(())
    }
}

/// Effect of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The event runs an action.
    Act,
    /// The event undoes an action.
    Undo,
    /// The event adds to counters.
    Increment,
    /// The event sets counters.
    Set,
}

/// One entry of the list `events`: `name = verb target`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Name of the event, as in the message.
    pub name: String,
    /// Effect of the event.
    pub verb: Verb,
    /// Name of an action, or a counter as space.field.
    pub target: String,
}

impl Mapped {
    /// Parses the list `events`.
    pub fn all(events: &[String]) -> Result<Vec<Mapped>, String> {
        let mut all: Vec<Mapped> = Vec::new();
        for text in events {
            let wrong = || {
                format!(
                    "'{text}' is not 'name = act ACTION', 'name = undo ACTION', 'name = increment \
                     SPACE.FIELD' or 'name = set SPACE.FIELD'"
                )
            };
            let (name, doing) = text.split_once('=').ok_or_else(wrong)?;
            let (verb, target) = doing.trim().split_once(' ').ok_or_else(wrong)?;
            let verb = match verb {
                "act" => Verb::Act,
                "undo" => Verb::Undo,
                "increment" => Verb::Increment,
                "set" => Verb::Set,
                _ => return Err(wrong()),
            };
            let (name, target) = (name.trim().to_owned(), target.trim().to_owned());
            let is_counter = matches!(verb, Verb::Increment | Verb::Set);
            if name.is_empty() || target.is_empty() || is_counter != target.contains('.') {
                return Err(wrong());
            }
            if all.iter().any(|other| other.name == name) {
                return Err(format!("the event '{name}' is there twice"));
            }
            all.push(Mapped { name, verb, target });
        }
        Ok(all)
    }
}

/// Kind of broker, given by the scheme of the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broker {
    /// A NATS server with JetStream.
    Nats,
    /// Any broker with Kafka's protocol.
    Kafka,
    /// A stream of a Redis server.
    Redis,
}

impl Broker {
    /// Parses a URL such as `nats://host:4222`. Returns the kind of broker and the text after the
    /// scheme.
    pub(crate) fn of(url: &str) -> Result<(Broker, &str), String> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let broker = match scheme {
            "nats" => Broker::Nats,
            "kafka" => Broker::Kafka,
            "redis" | "valkey" => Broker::Redis,
            _ => {
                return Err("url begins with none of nats://, kafka:// and redis://".to_owned());
            }
        };
        let is_built = match broker {
            Broker::Nats => cfg!(feature = "nats"),
            Broker::Kafka => cfg!(feature = "kafka"),
            Broker::Redis => true,
        };
        if !is_built {
            return Err(format!("this program was built without the feature '{scheme}'"));
        }
        if rest.is_empty() || rest.contains('@') {
            return Err(
                "url has no host, or a login: user and password are keys of their own".into()
            );
        }
        Ok((broker, rest))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Extent};
    use std::path::Path;

    #[test]
    fn sources_that_cannot_be_are_refused_by_name() {
        let parse = |text: &str| {
            let text = format!("[[ingest]]\n{text}");
            Config::parse(&text, Path::new("t.toml")).map_err(|e| e.to_string())
        };
        let whole = "name = \"a\"\nstream = \"s\"\nurl = \"redis://h\"\n";
        let config = parse(whole).unwrap();
        assert_eq!(Config::parse(&config.print(Extent::All), Path::new("t.toml")).unwrap(), config);
        let cases = [
            ("", "a name has 1 to 64"),
            ("name = \"a b\"", "a name has 1 to 64"),
            ("name = \"a\"\nurl = \"http://h\"", "none of nats://, kafka:// and redis://"),
            ("name = \"a\"\nurl = \"redis://u:p@h\"", "keys of their own"),
            ("name = \"a\"\nurl = \"redis://h\"", "stream is empty"),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let cases = [
            ("url = \"redis://h,i\"", "on one server"),
            ("subject = \"x\"", "only JetStream"),
            ("batch = 0", "batch is 0"),
            ("batch = 4097", "batch is 4097"),
            ("format = \"binary\"", "which is empty"),
            ("events = [\"like\"]", "'like' is not 'name = act"),
            ("events = [\"a = act post.like\"]", "is not"),
            ("events = [\"a = set post\"]", "is not"),
            ("events = [\"a = act like\", \"a = undo like\"]", "there twice"),
            ("id_name = \"event\"", "each its own"),
            ("[[ingest]]\nname = \"a\"", "two sources of events are named 'a'"),
            ("lag = 1", "lag"),
        ];
        for (more, expected) in cases {
            let whole = if more.starts_with("url") {
                whole.replace("url = \"redis://h\"\n", "")
            } else {
                whole.to_owned()
            };
            let error = parse(&format!("{whole}{more}\n")).unwrap_err();
            assert!(error.contains(expected), "{more}: {error}");
        }
    }
}
