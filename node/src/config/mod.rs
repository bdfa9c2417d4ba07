//! The configuration: one TOML file. `sections` declares each setting once, with its unit, default
//! and documentation. `tidemark config` prints a configuration file from these declarations.
//! `config/tidemark.toml` is the output of `tidemark config --all`, as a test checks.
//!
//! The server refuses a file with an undeclared key and reports the key and its line, because a
//! misspelled limit must not be ignored.

mod ingest;
mod memory;
mod print;
mod sections;

use dataset::Options;
use dataset::catalogue::{Catalogue, Described};
pub(crate) use dataset::options::Key;
use dataset::options::check::Lists;
use dataset::options::units::Unit;
pub use dataset::options::{
    Action, Counter, Existence, Expire, Fsync, LedgerMode, Spill, Tokens, View,
};
use dataset::options::{defaults, words};
pub use ingest::{Broker, Mapped, Verb};
pub use ingest::{Ingest, IngestFormat, IngestPoison, IngestStart};
pub(crate) use sections::SECTIONS;
pub use sections::{
    Admin, AuthClients, BACKLOG, Backup, Changes, Cluster, DEFAULT_ADMIN_PORT, DEFAULT_PORT,
    Durability, LeaseMode, LogFormat, ReadFrom, Replication, Security, Server, Shard, Tls,
};

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Reason why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file is not valid TOML, contains an unknown key, or has a value of the wrong type.
    #[error("{path}: {source}")]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Error of the TOML parser, with line and column.
        source: Box<toml::de::Error>,
    },
    /// The values are inconsistent or out of range.
    #[error("configuration: {0}")]
    Invalid(String),
}

/// Selects the settings that [`Config::print`] prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The first group, and all settings that differ from their defaults.
    Short,
    /// The first group, the lists, and all settings that differ from their defaults.
    Lists,
    /// All groups and lists.
    All,
}

/// The whole configuration. Without a configuration file the server uses `Config::default()`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[server]`
    pub server: Server,
    /// `[admin]`
    pub admin: Admin,
    /// `[durability]`
    pub durability: Durability,
    /// `[backup]`
    pub backup: Backup,
    /// `[security]`
    pub security: Security,
    /// `[tls]`
    pub tls: Tls,
    /// `[replication]`
    pub replication: Replication,
    /// `[cluster]`
    pub cluster: Cluster,
    /// `[spill]`
    pub spill: Spill,
    /// `[tokens]`
    pub tokens: Tokens,
    /// `[changes]`
    pub changes: Changes,
    /// `[[counter]]`
    pub counter: Vec<Counter>,
    /// `[[existence]]`
    pub existence: Vec<Existence>,
    /// `[[view]]`
    pub view: Vec<View>,
    /// `[[action]]`
    pub action: Vec<Action>,
    /// `[[ingest]]`
    pub ingest: Vec<Ingest>,
    /// `[[shard]]`
    pub shard: Vec<Shard>,
    /// Path of the configuration file, for CONFIG REWRITE.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// Names of the lists in the configuration file.
    #[serde(skip)]
    pub lists: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        let Options { spill, tokens, counter, existence, view, action, .. } = Options::default();
        Config {
            server: Server::default(),
            admin: Admin::default(),
            durability: Durability::default(),
            backup: Backup::default(),
            security: Security::default(),
            tls: Tls::default(),
            replication: Replication::default(),
            cluster: Cluster::default(),
            spill,
            tokens,
            changes: Changes::default(),
            counter,
            existence,
            view,
            action,
            ingest: Vec::new(),
            shard: Vec::new(),
            file: None,
            lists: Vec::new(),
        }
    }
}

/// Replaces strings by lists where a setting is a list. Redis's configuration file also separates
/// the items by spaces (`bind = "0.0.0.0"`).
fn read_words(written: &mut toml::Table) {
    let defaults = toml::Table::try_from(Config::default()).unwrap_or_default();
    let item = |section: &str| match section {
        "counter" => toml::Table::try_from(Counter::default()).unwrap_or_default(),
        "existence" => toml::Table::try_from(Existence::default()).unwrap_or_default(),
        _ => toml::Table::new(),
    };
    for (section, values) in written {
        match values {
            toml::Value::Table(values) => {
                let like = defaults.get(section).and_then(toml::Value::as_table);
                like.into_iter().for_each(|like| read_words_like(like, values));
            }
            toml::Value::Array(items) => {
                let like = item(section);
                let tables = items.iter_mut().filter_map(toml::Value::as_table_mut);
                tables.for_each(|values| read_words_like(&like, values));
            }
            _ => {}
        }
    }
}

/// Implements `read_words` for a section. `like` contains a value of the right type for each key.
fn read_words_like(like: &toml::Table, values: &mut toml::Table) {
    for (key, value) in values {
        let (Some(like), toml::Value::String(text)) = (like.get(key), &*value) else { continue };
        if like.is_array()
            && let Ok(read) = words::parsed(like, text)
        {
            *value = read;
        }
    }
}

impl Config {
    /// Returns the memory limit of the server in bytes.
    pub fn memory_bytes(&self) -> u64 {
        match self.server.memory_bytes {
            0 => memory::default_bytes(),
            bytes => bytes,
        }
    }

    /// Returns the options of a new data folder. An existing data folder has its own catalogue of
    /// spaces, views and actions.
    pub fn data_set(&self) -> Options {
        // In a cluster the hash tag of a key must be its id.
        if self.cluster.enabled {
            let mut tagged = self.clone();
            tagged.put_hash_tags();
            return tagged.options();
        }
        self.options()
    }

    fn options(&self) -> Options {
        Options {
            dir: self.durability.dir.clone(),
            fsync: self.durability.fsync,
            keep_log_bytes: self.durability.keep_log_bytes,
            memory_bytes: self.memory_bytes(),
            spill: self.spill.clone(),
            tokens: self.tokens.clone(),
            counter: self.counter.clone(),
            existence: self.existence.clone(),
            view: self.view.clone(),
            action: self.action.clone(),
        }
    }

    /// Replaces the lists of spaces, views and actions by those of a data folder's catalogue.
    pub fn describe(&mut self, catalogue: &Catalogue) {
        let Config { counter, existence, view, action, .. } = self;
        catalogue.describe(Described { counter, existence, view, action });
    }

    /// Reads and checks a configuration file.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let mut config = Config::parse(&text, path)?;
        let written: toml::Table = toml::from_str(&text).unwrap_or_default();
        config.lists = written.into_iter().filter(|(_, v)| v.is_array()).map(|(k, _)| k).collect();
        config.file = Some(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        Ok(config)
    }

    /// Parses and checks the text of a configuration file. Errors contain `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let wrong = |source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) };
        let mut written: toml::Table = toml::from_str(text).map_err(wrong)?;
        let mut config: Config = match toml::from_str(text) {
            Ok(config) => config,
            Err(error) => {
                read_words(&mut written);
                // Return the first error, because it has a line number of the file.
                written.clone().try_into().map_err(|_| wrong(error))?
            }
        };
        if !written.contains_key("view") {
            config.view = defaults::views(&config.counter, &config.existence);
        }
        if !written.contains_key("action") {
            config.action = defaults::actions(&config.counter, &config.existence);
        }
        config.validate()?;
        Ok(config)
    }

    /// Checks every integer of the sections against its range.
    fn check_ranges(&self) -> Result<(), ConfigError> {
        let all = toml::Table::try_from(self).map_err(|e| ConfigError::Invalid(e.to_string()))?;
        for (section, keys) in SECTIONS {
            let Some(values) = all.get(*section).and_then(toml::Value::as_table) else { continue };
            for key in *keys {
                let Some(value) = values.get(key.name).and_then(|value| number(key, value)) else {
                    continue;
                };
                let range = range_of(section, key);
                if !range.contains(&value) {
                    let shown = |number: &i64| match (key.unit(), u64::try_from(*number)) {
                        (Some(unit), Ok(number)) => unit.format(number),
                        _ => number.to_string(),
                    };
                    let (least, most) = (shown(range.start()), shown(range.end()));
                    return Err(ConfigError::Invalid(format!(
                        "{section}.{} is {}: must be {least} to {most}",
                        key.name,
                        shown(&value)
                    )));
                }
            }
        }
        Ok(())
    }

    /// Puts the id of every key pattern in braces: `post:{{id}}` has keys like `post:{17}`.
    /// Patterns that already have the braces do not change. Proxies and cluster clients choose the
    /// server of a key by its hash tag, the text in braces. So the row, cells and flags of an id
    /// are on one server.
    pub fn put_hash_tags(&mut self) {
        let counters = self.counter.iter_mut().flat_map(|c| [&mut c.rows, &mut c.cells]);
        for patterns in counters.chain(self.existence.iter_mut().map(|e| &mut e.pairs)) {
            let mut tagged: Vec<String> = Vec::new();
            for pattern in patterns.split_ascii_whitespace() {
                let pattern = pattern.replace("{{id}}", "{id}").replace("{id}", "{{id}}");
                if !tagged.contains(&pattern) {
                    tagged.push(pattern);
                }
            }
            *patterns = tagged.join(" ");
        }
    }

    /// Checks the backup settings. The backup folder and the data folder must not contain each
    /// other.
    fn check_backup(&self) -> Result<(), ConfigError> {
        let invalid = |text: String| Err(ConfigError::Invalid(text));
        let backup = &self.backup;
        if backup.keep == 0 {
            return invalid("backup.keep must be at least 1".to_owned());
        }
        if backup.dir.as_os_str().is_empty() {
            let needs = [("every", backup.every_s), ("keep_log", backup.keep_log_s)];
            return match needs.iter().find(|(_, value)| *value > 0) {
                Some((name, _)) => {
                    invalid(format!("backup.{name} is set, but not backup.dir: name a folder"))
                }
                None => Ok(()),
            };
        }
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let (backups, data) = (absolute(&backup.dir), absolute(&self.durability.dir));
        if backups.starts_with(&data) || data.starts_with(&backups) {
            return invalid(format!(
                "backup.dir is {}, and durability.dir is {}: neither may lie in the other",
                backups.display(),
                data.display()
            ));
        }
        Ok(())
    }

    /// Checks that the values are valid and consistent. The engines check the schemas and filters.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |text: String| Err(ConfigError::Invalid(text));
        let server = &self.server;
        if server.bind.is_empty() {
            return invalid("server.bind is empty: name an address to listen on".to_owned());
        }
        if server.max_clients == 0 {
            return invalid("server.max_clients must be at least 1".to_owned());
        }
        self.check_ranges()?;
        self.check_backup()?;
        Ingest::check(&self.ingest).map_err(ConfigError::Invalid)?;
        let Config { counter, existence, view, action, .. } = self;
        let is_default = |view: &View| defaults::is_view(counter, existence, view);
        let lists = Lists { counter, existence, view, action };
        lists.check((&is_default, &defaults::is_action)).map_err(ConfigError::Invalid)
    }
}

/// Maximum value of a duration setting, in the unit of the setting, as in Redis. A deadline
/// computed from such a duration fits an `Instant`.
const MOST_TIME: i64 = i32::MAX as i64;
/// Maximum value of `tcp_keepalive`, in seconds. Linux refuses larger values (MAX_TCP_KEEPIDLE),
/// and the server could then not set up any connection.
const MOST_KEEPALIVE_S: i64 = 32_767;
/// Maximum value of a setting that is a number of threads.
const MOST_THREADS: i64 = 1_024;

/// Settings that have a specific range.
const RANGES: &[(&str, &str, std::ops::RangeInclusive<i64>)] = &[
    ("server", "tcp_keepalive", 0..=MOST_KEEPALIVE_S),
    ("server", "workers", 0..=MOST_THREADS),
    ("server", "max_request_args", 64..=1 << 20),
    ("server", "max_transaction_args", 64..=1 << 20),
    // Argument positions in the query buffer are 32 bits wide.
    ("server", "max_bulk", 64 << 10..=2 << 30),
    ("server", "max_query_buffer", 1 << 20..=2 << 30),
    ("server", "max_output_buffer", 1 << 20..=2 << 30),
    // All changes of a transaction are logged in one batch.
    ("server", "max_transaction", 0..=64 << 20),
    ("server", "slowlog_slower_than", -1..=i64::MAX),
    ("spill", "read_threads", 0..=MOST_THREADS),
    ("tokens", "max_tokens", 0..=1 << 30),
    ("tokens", "keep", 1..=MOST_TIME),
    ("changes", "max_groups", 0..=1 << 16),
    ("changes", "max_consumers", 1..=1 << 20),
    ("changes", "max_pending", 1..=1 << 24),
    ("replication", "timeout", 1..=MOST_TIME),
    ("cluster", "peer_timeout", 1..=60_000),
    ("cluster", "node_timeout", 100..=MOST_TIME),
];

/// Returns the value of a numeric setting, in the unit of the configuration's field.
fn number(key: &Key, value: &toml::Value) -> Option<i64> {
    match (key.unit(), value.as_str()) {
        (Some(unit), Some(text)) => i64::try_from(unit.parse(text).ok()?).ok(),
        _ => value.as_integer(),
    }
}

/// Returns the valid range of an integer setting.
fn range_of(section: &str, key: &Key) -> std::ops::RangeInclusive<i64> {
    let own = RANGES.iter().find(|(s, n, _)| (*s, *n) == (section, key.name));
    match own {
        Some((_, _, range)) => range.clone(),
        None if matches!(key.unit(), Some(Unit::Seconds | Unit::Millis)) => 0..=MOST_TIME,
        None => i64::MIN..=i64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("t.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn the_printed_file_is_the_default_and_the_shipped_file() {
        let printed = Config::default().print(Extent::All);
        assert_eq!(parse(&printed), Ok(Config::default()));
        let short = Config::default().print(Extent::Short);
        assert_eq!(parse(&short), Ok(Config::default()));
        assert!(short.lines().count() <= 80, "{}", short.lines().count());
        assert_eq!(parse(&Config::default().print(Extent::Lists)), Ok(Config::default()));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/tidemark.toml");
        let shipped = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            shipped == printed,
            "config/tidemark.toml is not what `tidemark config` prints: write it anew with\n  \
             cargo run -p tidemark -- config --all > config/tidemark.toml"
        );
    }

    #[test]
    fn the_printed_file_has_at_most_70_settings() {
        let printed = Config::default().print(Extent::All);
        let mut names: Vec<&str> = printed
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| Some(line.split_once(" = ")?.0))
            .collect();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() <= 70, "{}: {names:?}", names.len());
        for (section, keys) in SECTIONS {
            for key in *keys {
                let name = format!("{section}.{}", key.name);
                assert_eq!(names.contains(&name.as_str()), key.group > 0, "{name}");
            }
        }
    }

    #[test]
    fn a_changed_setting_is_printed_whatever_its_group() {
        let text = "[server]\nmax_watched_keys = 7\nworkers = 2\n[[existence]]\nname = \"liked\"\n\
                    max_tables = 3\n";
        let config = parse(text).unwrap();
        for extent in [Extent::Short, Extent::Lists, Extent::All] {
            assert_eq!(parse(&config.print(extent)).as_ref(), Ok(&config), "{extent:?}");
        }
    }

    /// F17: if a file omits a list, the default of that list is consistent with the other lists.
    #[test]
    fn default_views_and_actions_go_with_their_spaces() {
        let of = |text: &str| {
            let config = parse(text).unwrap();
            let view = |v: &View| [&v.counters[..], &v.flags[..]].concat().join(" ");
            let views: Vec<String> = config.view.iter().map(view).collect();
            let actions: Vec<&str> = config.action.iter().map(|a| a.name.as_str()).collect();
            // Empty lists must also survive a round trip.
            assert_eq!(parse(&config.print(Extent::All)).as_ref(), Ok(&config), "{text}");
            (views.join("; "), actions.join(" "))
        };
        let counters = "post.like post.repost post.comment post.read";
        let cases = [
            ("", format!("{counters} liked read"), "like repost read"),
            ("[[counter]]\nname = \"photo\"\nfields = \"like:8\"", String::new(), ""),
            (
                "[[counter]]\nname = \"post\"\nfields = \"like:8 share:4\"",
                "post.like liked read".to_owned(),
                "like",
            ),
            ("[[existence]]\nname = \"read\"", format!("{counters} read"), "read"),
            ("[[existence]]\nname = \"read\"\nmembers = false", counters.to_owned(), ""),
            ("counter = []", String::new(), ""),
            ("existence = []", counters.to_owned(), ""),
            ("view = []", String::new(), "like repost read"),
            ("action = []", format!("{counters} liked read"), ""),
        ];
        for (text, views, actions) in cases {
            assert_eq!(of(text), (views, actions.to_owned()), "{text}");
        }
    }

    /// F12: the patterns of `tidemark config --hash-tags`.
    #[test]
    fn hash_tags_are_put_once() {
        let mut config = Config::default();
        config.put_hash_tags();
        assert_eq!(config.counter[0].rows, "post:{{id}}");
        assert_eq!(config.counter[0].cells, "post:{{id}}:{field}");
        assert_eq!(config.counter[1].cells, "");
        assert_eq!(config.existence[0].pairs, "liked:{{id}}");
        assert_eq!(parse(&config.print(Extent::All)), Ok(config.clone()));
        let once = config.clone();
        config.put_hash_tags();
        assert_eq!(config, once);
        // Patterns that become equal are merged.
        config.counter[0].rows = "post:{{id}} post:{id} p{id}".to_owned();
        config.put_hash_tags();
        assert_eq!(config.counter[0].rows, "post:{{id}} p{{id}}");
        config.validate().unwrap();
        config.counter[0].rows = "post:{id} post:{id}".to_owned();
        assert!(config.validate().is_err(), "the same twice");
    }

    #[test]
    fn an_unknown_key_is_refused_with_name_and_line() {
        let error = parse("[server]\nport = 1\nmax_client = 2\n").unwrap_err();
        assert!(error.contains("line 3") && error.contains("max_client"), "{error}");
        let error = parse("[[counter]]\nname = \"a\"\nfield = \"x:1\"\n").unwrap_err();
        assert!(error.contains("line 3") && error.contains("field"), "{error}");
        let error = parse("[server]\nport = \"x\"\n").unwrap_err();
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn values_that_do_not_fit_are_refused_by_name() {
        let cases = [
            ("[server]\nbind = []", "server.bind is empty"),
            ("[server]\nmax_clients = 0", "max_clients"),
            ("[server]\nmax_query_buffer = 10", "max_query_buffer is 10: must be 1mb to 2gb"),
            ("[replication]\ntimeout = 0", "timeout is 0: must be 1s to"),
            ("[replication]\ntimeout = \"2147483648s\"", "timeout is 2147483648s"),
            ("[server]\ntcp_keepalive = 32768", "tcp_keepalive is 32768s: must be 0 to 32767s"),
            ("[server]\nshutdown_grace = \"2147483648ms\"", "must be 0 to 2147483647ms"),
            ("[server]\nidle_timeout = 9223372036854775807", "must be 0 to 2147483647s"),
            ("[server]\nmax_request_args = 63", "must be 64 to 1048576"),
            ("[server]\nmax_transaction_args = 1048577", "must be 64 to 1048576"),
            ("[server]\nworkers = 1025", "server.workers is 1025: must be 0 to 1024"),
            ("[spill]\nread_threads = 1025", "spill.read_threads is 1025: must be 0 to 1024"),
            ("[durability]\nsnapshot_every = 2147483648", "must be 0 to 2147483647s"),
            ("[[counter]]\nfields = \"a:1\"", "'' cannot name a counter or existence space"),
            ("[[counter]]\nname = \"A b\"", "'A b' cannot name a counter or existence space"),
            (
                "view = []\naction = []\n[[counter]]\nname = \"read\"",
                "two counter or existence spaces are named 'read'",
            ),
            ("[[counter]]\nname = \"post\"\nrows = \"p\"", "must contain one {id}"),
            (
                "[[counter]]\nname = \"post\"\nrows = \"liked:{id}\"",
                "'liked:{id}' and 'liked:{id}' could both match",
            ),
            (
                "[[existence]]\nname = \"liked\"\nfalse_positive_rate = 0.7",
                "false_positive_rate is 0.7",
            ),
            (
                "[[existence]]\nname = \"x\"\nmembers = false\n[[view]]\nname = \"v\"\n\
                 flags = [\"x\"]",
                "view 'v': the existence space 'x' has no members",
            ),
            (
                "[[view]]\nname = \"v\"\nflags = [\"x\"]",
                "view 'v': there is no existence space 'x'",
            ),
            (
                "[[view]]\nname = \"v\"\ncounters = [\"x.y\"]",
                "view 'v': there is no counter space 'x'",
            ),
            (
                "[[action]]\nname = \"a\"\nflag = \"x\"",
                "action 'a': there is no existence space 'x'",
            ),
            (
                "[[action]]\nname = \"a\"\nflag = \"read\"\ncounter = \"post\"",
                "write it as space.field",
            ),
            (
                "[[action]]\nname = \"a\"\nflag = \"read\"\ncounter = \"x.like\"",
                "there is no counter space 'x'",
            ),
            ("[[view]]\nname = \"v\"\n[[view]]\nname = \"v\"", "two views are named 'v'"),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    /// F24: every duration setting accepts both ends of its range and rejects values outside it.
    #[test]
    fn every_duration_is_bounded() {
        for (section, keys) in SECTIONS {
            for key in *keys {
                let Some(unit @ (Unit::Seconds | Unit::Millis)) = key.unit() else { continue };
                let range = range_of(section, key);
                assert!(*range.end() <= MOST_TIME, "{section}.{}", key.name);
                // A backup schedule needs a folder.
                let more = if *section == "backup" { "dir = \"/backups\"\n" } else { "" };
                for value in [*range.start(), *range.end()] {
                    let (name, suffix) = (key.name, unit.suffix());
                    let text = format!("[{section}]\n{more}{name} = \"{value}{suffix}\"\n");
                    assert!(parse(&text).is_ok(), "{text}");
                }
                for value in [range.start() - 1, range.end() + 1] {
                    let (name, suffix) = (key.name, unit.suffix());
                    let text = format!("[{section}]\n{name} = \"{value}{suffix}\"\n");
                    assert!(parse(&text).is_err(), "{text}");
                }
            }
        }
    }

    #[test]
    fn backups_have_a_place_of_their_own() {
        let file = |backups: &str, data: &str| {
            parse(&format!("[backup]\ndir = \"{backups}\"\n[durability]\ndir = \"{data}\"\n"))
        };
        assert!(file("/backups", "/data").is_ok() && file("/data2", "/data").is_ok());
        for (backups, data) in [("/data", "/data"), ("/data/b", "/data"), ("/", "/data")] {
            assert!(file(backups, data).unwrap_err().contains("neither may lie in the other"));
        }
        for alone in ["every = \"1m\"", "keep_log = 60"] {
            let error = parse(&format!("[backup]\n{alone}\n")).unwrap_err();
            assert!(error.contains("not backup.dir"), "{error}");
        }
        assert!(parse("[backup]\nkeep = 0\n").is_err());
    }

    #[test]
    fn sizes_have_units_and_lists_are_words() {
        let text = "[server]\nmemory = \"8gb\"\nbind = \"0.0.0.0 ::1\"\n[[counter]]\n\
                    name = \"post\"\nmemory_limit = \"64mb\"\nfields = \"like:12\"\n\
                    rows = \"post:{id}\"\n[[existence]]\nname = \"liked\"\n\
                    pairs = \"liked:{id}\"\n";
        let config = parse(text).unwrap();
        assert_eq!(config.server.memory_bytes, 8 << 30);
        assert_eq!(config.server.bind, ["0.0.0.0", "::1"]);
        assert_eq!(config.counter[0].memory_limit_bytes, 64 << 20);
        for wrong in ["memory = \"8tb\"", "port = \"7000\"", "memory_bytes = \"8gb\""] {
            let error = parse(&format!("[server]\n{wrong}\n")).unwrap_err();
            assert!(error.contains("line 2"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_file_needs_only_what_it_changes() {
        let config = parse("[server]\nport = 7000\n[durability]\nfsync = \"always\"\n").unwrap();
        assert_eq!((config.server.port, config.durability.fsync), (7000, Fsync::Always));
        assert_eq!(config.counter, Config::default().counter);
    }
}
