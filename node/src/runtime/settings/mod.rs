//! Configuration at run time: live settings, CONFIG SET, CONFIG GET and CONFIG REWRITE.
//!
//! All code reads the [`Config`] as one immutable value, and a change publishes a new one. So
//! readers never block and never see a partial change. A setting has a name `section.key`, as in
//! the file. Some settings also have Redis's name. A few names exist only for Redis's tools. Their
//! values are derived or constant (`foreign_settings`).

mod lists;

use lists::put;

use crate::config::{Config, ConfigError, Key, SECTIONS};
use crate::runtime::atomic_file;
use crate::runtime::foreign_settings::{IMMUTABLE, Idle, fixed, read_buffer_limits, why_fixed};
use arc_swap::{ArcSwap, Guard};
use dataset::options::units::Unit;
use dataset::options::words::parsed;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use toml::{Table, Value};

/// Current configuration.
pub struct Settings {
    now: ArcSwap<Config>,
    /// Serializes changes. A thread never waits while holding this lock.
    changing: Mutex<()>,
    idle: Mutex<Idle>,
    writing: Mutex<()>,
    version: AtomicU64,
}

/// Error of CONFIG SET or CONFIG REWRITE.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// The setting is unknown.
    #[error("ERR Unknown option or number of arguments for CONFIG SET - '{0}'")]
    Unknown(String),
    /// The value is invalid, or the setting cannot change at run time.
    #[error("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}")]
    Refused {
        /// Name of the setting.
        name: String,
        /// Reason for the error.
        why: String,
    },
    /// CONFIG REWRITE was sent to a server without a configuration file.
    #[error("ERR The server is running without a config file")]
    NoFile,
    /// The configuration file cannot be written.
    #[error("ERR Rewriting config file: {0}")]
    Rewrite(String),
}

impl Settings {
    pub(crate) fn new(config: Config) -> Settings {
        Settings {
            now: ArcSwap::from_pointee(config),
            changing: Mutex::default(),
            idle: Mutex::default(),
            writing: Mutex::default(),
            version: AtomicU64::new(0),
        }
    }

    /// Returns the current configuration. Do not hold the guard across a wait.
    #[inline]
    pub(crate) fn now(&self) -> Guard<Arc<Config>> {
        self.now.load()
    }

    /// Returns a number that increases with every change of the configuration or of users'
    /// permissions. Code with a cached copy compares this number to detect changes.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// Increments the version, so that code with a cached copy reloads it.
    pub fn touch(&self) {
        self.version.fetch_add(1, Relaxed);
    }

    /// Changes the configuration atomically. `change` edits a copy, which is validated. `apply`
    /// receives the old and the new configuration. If `apply` succeeds, the new configuration is
    /// published.
    pub fn change<E: From<ConfigError>>(
        &self,
        change: impl FnOnce(&mut Config) -> Result<(), E>,
        apply: impl FnOnce(&Config, &Config) -> Result<(), E>,
    ) -> Result<(), E> {
        let _one = self.changing.lock();
        let before = self.now.load_full();
        let mut after = Config::clone(&before);
        change(&mut after)?;
        after.validate()?;
        apply(&before, &after)?;
        self.now.store(Arc::new(after));
        self.touch();
        Ok(())
    }

    /// Writes changed values into the configuration file, durably, and preserves the rest,
    /// including comments. `complete` adds the users and the catalogue's spaces, which are not part
    /// of the settings.
    pub fn rewrite(&self, complete: impl FnOnce(&mut Config)) -> Result<(), SetError> {
        let _one = self.writing.lock();
        let mut config = Config::clone(&self.now.load());
        complete(&mut config);
        let path = config.file.as_deref().ok_or(SetError::NoFile)?;
        let wrong = |what: String| SetError::Rewrite(format!("{}: {what}", path.display()));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let text = rewritten(&text, &config).map_err(wrong)?;
        // An invalid file must not replace a valid file.
        Config::parse(&text, path).map_err(|e| wrong(e.to_string()))?;
        atomic_file::replace(path, text.as_bytes()).map_err(|e| wrong(e.to_string()))
    }
}

impl From<ConfigError> for SetError {
    fn from(error: ConfigError) -> SetError {
        let text = error.to_string();
        let text = text.strip_prefix("configuration: ").unwrap_or(&text);
        // Error messages of the validation begin with the name of the key.
        let name = text.split(' ').next().unwrap_or_default().to_owned();
        SetError::Refused { name, why: text.to_owned() }
    }
}

/// Converts Redis's `save` to `snapshot_every`: empty, or seconds and a number of changes, which
/// must be 1.
fn save_every(value: &str) -> Result<u64, String> {
    let words: Vec<&str> = value.split_ascii_whitespace().collect();
    match words[..] {
        [] => Ok(0),
        [seconds, "1"] => seconds.parse().map_err(|_| "Invalid save parameters".to_owned()),
        [_, changes] if changes.parse::<u64>().is_ok() => {
            Err("snapshots are triggered by time only, use '<seconds> 1'".to_owned())
        }
        _ => Err("Invalid save parameters".to_owned()),
    }
}

/// Formats a value for CONFIG GET: booleans as yes and no, strings without quotes, and lists
/// separated by spaces.
fn shown(value: &Value) -> String {
    match value {
        Value::Boolean(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// Formats a value for a setting with Redis's name. Such numbers have no units.
fn without_unit(key: &Key, text: &str) -> String {
    match key.unit().map(|unit| unit.parse(text)) {
        None => text.to_owned(),
        Some(Ok(number)) => number.to_string(),
        Some(Err(_)) => "-1".to_owned(),
    }
}

/// Adds the unit to a time that is set under Redis's name. Under the name of this server, a time
/// without a unit is in seconds.
fn with_unit(key: &Key, name: &str, value: &str) -> Result<String, &'static str> {
    let is_redis = key.redis.iter().any(|redis| redis.eq_ignore_ascii_case(name));
    match key.unit().map(Unit::suffix) {
        Some(suffix) if is_redis && !suffix.is_empty() => match value.parse::<i64>() {
            Ok(number) => Ok(format!("{number}{suffix}")),
            Err(_) => Err("argument couldn't be parsed into an integer"),
        },
        _ => Ok(value.to_owned()),
    }
}

/// Returns all settings by name, including those for Redis's tools. Omits seeds, and passwords
/// unless `with_secrets`. `config` includes the catalogue's spaces; `port` is the actual port.
pub fn list(
    settings: &Settings,
    config: &Config,
    port: u16,
    with_secrets: bool,
) -> Vec<(String, String)> {
    let all = Table::try_from(config).unwrap_or_default();
    let fixed = fixed(config, port);
    let is_fixed = |name: &str| fixed.iter().any(|(fixed, _)| *fixed == name);
    let mut out: Vec<(String, String)> =
        fixed.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    out.extend(settings.idle.lock().all().map(|(name, value)| (name.to_owned(), value.to_owned())));
    for (section, keys) in SECTIONS {
        let Some(values) = all.get(*section).and_then(Value::as_table) else { continue };
        for key in *keys {
            // Users are omitted, because ACL LIST shows them.
            if key.name == "users" || key.secret && !with_secrets {
                continue;
            }
            let text = values.get(key.name).map(shown).unwrap_or_default();
            // Fixed settings are already listed, with their actual values.
            let redis = key.redis.iter().filter(|redis| !is_fixed(redis));
            out.extend(redis.map(|redis| ((*redis).to_owned(), without_unit(key, &text))));
            out.push((format!("{section}.{}", key.name), text));
        }
    }
    for (section, items) in
        all.iter().filter_map(|(section, value)| Some((section, value.as_array()?)))
    {
        for item in items.iter().filter_map(Value::as_table) {
            let name = item.get("name").and_then(Value::as_str).unwrap_or_default();
            let keys = item.iter().filter(|(key, _)| *key != "name" && *key != "seed");
            out.extend(keys.map(|(key, value)| (format!("{section}.{name}.{key}"), shown(value))));
        }
    }
    out.sort();
    out
}

/// Finds a key by one of its case-insensitive names: Redis's name, `section.key`, or the key alone
/// if it is unique.
fn find(name: &str) -> Option<(&'static str, &'static Key)> {
    let all =
        || SECTIONS.iter().flat_map(|(section, keys)| keys.iter().map(move |key| (*section, key)));
    let is_ours = |section: &str, key: &Key| {
        name.split_once('.').is_some_and(|(s, k)| {
            s.eq_ignore_ascii_case(section) && k.eq_ignore_ascii_case(key.name)
        })
    };
    let is_redis = |key: &Key| key.redis.iter().any(|redis| redis.eq_ignore_ascii_case(name));
    let mut alone = all().filter(|(_, key)| key.name.eq_ignore_ascii_case(name));
    all()
        .find(|(section, key)| is_ours(section, key) || is_redis(key))
        .or_else(|| alone.next().filter(|_| alone.next().is_none()))
}

/// CONFIG SET: applies all pairs or none. `apply`: see [`Settings::change`].
pub fn set(
    settings: &Settings,
    pairs: &[(String, String)],
    port: u16,
    apply: impl FnOnce(&Config, &Config) -> Result<(), String>,
) -> Result<(), SetError> {
    let refused =
        |name: &str, why: &str| SetError::Refused { name: name.to_owned(), why: why.to_owned() };
    let mut idle = settings.idle.lock().clone();
    let change = |config: &mut Config| {
        let mut all = Table::try_from(&*config).unwrap_or_default();
        for (i, (name, value)) in pairs.iter().enumerate() {
            let fixed = fixed(config, port).into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
            let known = find(name);
            let is_idle = fixed.is_none() && known.is_none();
            if is_idle && !idle.all().any(|(n, _)| n.eq_ignore_ascii_case(name)) {
                // Settings of spaces, views and actions cannot be changed here.
                let is_listed = list(settings, config, port, true)
                    .iter()
                    .any(|(listed, _)| listed.eq_ignore_ascii_case(name));
                return Err(if is_listed {
                    refused(name, IMMUTABLE)
                } else {
                    SetError::Unknown(name.clone())
                });
            }
            if pairs[..i].iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
                return Err(refused(name, "duplicate parameter"));
            }
            let changes = match (fixed, known) {
                (Some(("save", _)), _) => {
                    let every_s = save_every(value).map_err(|why| refused(name, &why))?;
                    vec![("durability", "snapshot_every", format!("{every_s}s"))]
                }
                (Some(("client-output-buffer-limit", _)), _) => {
                    let limits = read_buffer_limits(value).map_err(|why| refused(name, why))?;
                    limits.into_iter().map(|(key, bytes)| ("server", key, bytes)).collect()
                }
                // A setting with a derived value (maxmemory) is set to the literal value.
                (_, Some((section, key))) if key.live => {
                    let value = with_unit(key, name, value).map_err(|why| refused(name, why))?;
                    vec![(section, key.name, value)]
                }
                // A fixed setting accepts its current value.
                (Some((_, is)), _) if is == *value => continue,
                (Some((fixed, _)), _) => return Err(refused(name, why_fixed(fixed))),
                (None, Some(_)) => return Err(refused(name, IMMUTABLE)),
                (None, None) => {
                    let set = idle.set(name, value).unwrap_or(Ok(()));
                    set.map_err(|why| refused(name, why))?;
                    continue;
                }
            };
            for (section, key, value) in changes {
                let Some(slot) = all.get_mut(section).and_then(|s| s.get_mut(key)) else {
                    continue;
                };
                *slot = parsed(slot, &value).map_err(|why| refused(name, why))?;
            }
            // Check each setting separately, so that the error names the invalid setting.
            all.clone().try_into::<Config>().map_err(|e| refused(name, &worded(e.message())))?;
        }
        let (file, lists) = (config.file.take(), std::mem::take(&mut config.lists));
        *config = all.try_into().map_err(|e: toml::de::Error| refused(&pairs[0].0, e.message()))?;
        (config.file, config.lists) = (file, lists);
        Ok(())
    };
    let names = || pairs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join("', '");
    settings.change(change, |before, after| {
        apply(before, after).map_err(|why| refused(&names(), &why))
    })?;
    *settings.idle.lock() = idle;
    Ok(())
}

/// Converts an error about an unknown value of an enum to Redis's text.
fn worded(message: &str) -> String {
    match message.split_once(", expected one of ") {
        Some((_, words)) => {
            format!("argument(s) must be one of the following: {}", words.replace('`', ""))
        }
        None => message.to_owned(),
    }
}

/// Returns the text of a configuration file with the current values. Writes a key only if its value
/// differs from the file's, or from the default if the file lacks the key.
fn rewritten(text: &str, config: &Config) -> Result<String, String> {
    let mut file: toml_edit::DocumentMut =
        text.parse().map_err(|e: toml_edit::TomlError| e.message().to_owned())?;
    let written: Table = toml::from_str(text).map_err(|e| e.message().to_owned())?;
    // Values of the file in normalized form: "1024mb" becomes "1gb".
    let read = Config::parse(text, Path::new("")).map_err(|e| e.to_string())?;
    let read = Table::try_from(&read).map_err(|e| e.to_string())?;
    let values = Table::try_from(config).map_err(|e| e.to_string())?;
    let defaults = Table::try_from(Config::default()).map_err(|e| e.to_string())?;
    for (section, keys) in SECTIONS {
        for key in *keys {
            let of = |all: &Table| all.get(*section).and_then(|s| s.get(key.name)).cloned();
            let Some(value) = of(&values) else { continue };
            let is_written = of(&written).is_some();
            if of(if is_written { &read } else { &defaults }).as_ref() == Some(&value) {
                continue;
            }
            let table = file.entry(section).or_insert_with(toml_edit::table);
            let table =
                table.as_table_like_mut().ok_or_else(|| format!("'{section}' is not a table"))?;
            put(table, key.name, &value)?;
        }
    }
    lists::write(&mut file, &written, &read, &values, &defaults)?;
    Ok(file.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
    }

    fn change(settings: &Settings, list: &[(&str, &str)]) -> Result<(), String> {
        set(settings, &pairs(list), 7000, |_, _| Ok(())).map_err(|e| e.to_string())
    }

    #[test]
    fn each_setting_is_listed_once_and_accepts_its_own_value() {
        let settings = Settings::new(Config::default());
        let all = list(&settings, &settings.now(), 7000, true);
        let mut names: Vec<&String> = all.iter().map(|(n, _)| n).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len(), "duplicate name");
        for (section, keys) in SECTIONS {
            for key in keys.iter().filter(|key| key.name != "users") {
                let ours = format!("{section}.{}", key.name);
                for name in key.redis.iter().map(|r| (*r).to_owned()).chain([ours]) {
                    let (_, value) =
                        all.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name}"));
                    let outcome = change(&settings, &[(&name, value)]);
                    let immutable =
                        outcome.as_ref().is_err_and(|e| e.ends_with("can't set immutable config"));
                    assert!(
                        if key.live || name == "port" { outcome.is_ok() } else { immutable },
                        "{name}: {outcome:?}"
                    );
                }
            }
        }
        assert_eq!(**settings.now(), Config::default());
    }

    /// Metrics exporters and runbooks read and set these names.
    #[test]
    fn redis_settings_are_answered_and_supported_ones_take_effect() {
        let settings = Settings::new(Config::default());
        let value = |name: &str| {
            let all = list(&settings, &settings.now(), 7000, true);
            all.into_iter().find(|(n, _)| n == name).map(|(_, value)| value)
        };
        let of = |text: &str| Some(text.to_owned());
        assert_eq!(value("maxmemory-policy"), of("noeviction"));
        assert_eq!(value("notify-keyspace-events"), of(""));
        change(&settings, &[("notify-keyspace-events", ""), ("maxmemory-policy", "noeviction")])
            .unwrap();
        for (name, other, why) in [
            ("notify-keyspace-events", "KEA", "keyspace events are not supported"),
            ("maxmemory-policy", "allkeys-lru", "eviction is not supported"),
            ("loglevel", "debug", "RUST_LOG"),
            ("latency-tracking", "no", "latency tracking cannot be disabled"),
            ("hz", "many", "couldn't be parsed"),
            ("activedefrag", "1", "must be 'yes' or 'no'"),
            ("client-output-buffer-limit", "normal 1", "Wrong number of arguments"),
            ("client-output-buffer-limit", "wrong 1 1 1", "Invalid client class"),
            ("client-output-buffer-limit", "normal x 1 1", "Error in hard, soft"),
        ] {
            let error = change(&settings, &[("timeout", "9"), (name, other)]).unwrap_err();
            assert!(error.contains(why), "{name}: {error}");
        }
        assert_eq!(settings.now().server.idle_timeout_s, 0);
        change(
            &settings,
            &[
                (
                    "client-output-buffer-limit",
                    "normal 0 0 0 slave 256mb 64mb 60 pubsub 16mb 8mb 60",
                ),
                ("HZ", "100"),
                ("hash-max-listpack-entries", "64"),
            ],
        )
        .unwrap();
        let now = settings.now();
        let limits = (now.server.max_output_buffer_bytes, now.server.max_push_buffer_bytes);
        assert_eq!(limits, (2 << 30, 16 << 20));
        assert_eq!(value("hz"), of("100"));
        assert_eq!(value("hash-max-listpack-entries"), of("64"));
        let shown = "normal 2147483648 0 0 slave 0 0 0 pubsub 16777216 0 0";
        assert_eq!(value("client-output-buffer-limit"), of(shown));
    }

    #[test]
    fn a_change_is_whole_or_not_at_all() {
        let settings = Settings::new(Config::default());
        let before = settings.version();
        change(&settings, &[("MAXCLIENTS", "4"), ("server.idle_timeout", "7"), ("save", "")])
            .unwrap();
        assert_eq!(settings.now().server.max_clients, 4);
        change(&settings, &[("max_clients", "5")]).unwrap();
        assert!(change(&settings, &[("dir", "/x")]).is_err(), "several sections have one");
        assert!(settings.version() > before);
        let now = settings.now();
        assert_eq!(
            (now.server.max_clients, now.server.idle_timeout_s, now.durability.snapshot_every_s),
            (5, 7, 0)
        );
        let set_failed = |name: &str, why: &str| {
            format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}")
        };
        let cases: &[(&[(&str, &str)], String)] = &[
            (
                &[("maxclients", "9"), ("nope", "1")],
                "ERR Unknown option or number of arguments for CONFIG SET - 'nope'".into(),
            ),
            (
                &[("timeout", "9"), ("maxclients", "x")],
                set_failed("maxclients", "argument couldn't be parsed into an integer"),
            ),
            (
                &[("timeout", "9"), ("maxclients", "-1")],
                "ERR CONFIG SET failed (possibly related to argument 'maxclients')".into(),
            ),
            (
                &[("timeout", "9"), ("maxclients", "0")],
                set_failed("server.max_clients", "server.max_clients must be at least 1"),
            ),
            (&[("timeout", "9"), ("TIMEOUT", "9")], set_failed("TIMEOUT", "duplicate parameter")),
            (&[("timeout", "9"), ("dir", "/")], set_failed("dir", "can't set immutable config")),
            // CONFIG SET knows all names that CONFIG GET lists.
            (
                &[("counter.post.rows", "x:{id}")],
                set_failed("counter.post.rows", "can't set immutable config"),
            ),
            (
                &[("VIEW.home.flags", "liked")],
                set_failed("VIEW.home.flags", "can't set immutable config"),
            ),
            (
                &[("counter.post.nope", "1")],
                "ERR Unknown option or number of arguments for CONFIG SET - 'counter.post.nope'"
                    .into(),
            ),
            (
                &[("timeout", "9"), ("appendonly", "no")],
                set_failed("appendonly", "the log cannot be disabled"),
            ),
            (
                &[("timeout", "9"), ("proto-max-bulk-len", "1x")],
                set_failed("proto-max-bulk-len", "argument must be a memory value"),
            ),
            (
                &[("timeout", "9"), ("proto-max-bulk-len", "9999999999gb")],
                set_failed("proto-max-bulk-len", "argument must be a memory value"),
            ),
            (&[("timeout", "9"), ("save", "900 x")], set_failed("save", "Invalid save parameters")),
        ];
        for (pairs, expected) in cases {
            let error = change(&settings, pairs).unwrap_err();
            assert!(error.starts_with(expected.as_str()), "{pairs:?}: {error}");
        }
        let error = set(&settings, &pairs(&[("timeout", "9")]), 1, |_, _| Err("no".to_owned()))
            .unwrap_err();
        assert_eq!(error.to_string(), set_failed("timeout", "no"));
        assert_eq!(settings.now().server.idle_timeout_s, 7);
        change(&settings, &[("proto-max-bulk-len", "1MB"), ("appendonly", "yes")]).unwrap();
        assert_eq!(settings.now().server.max_bulk_bytes, 1 << 20);
    }

    #[test]
    fn a_rewrite_changes_values_and_keeps_comments() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.toml");
        let text = "# mine\n[server]\nport = 7 # seven\nmax_clients = 9  # nine\n\n# posts\n\
                    [[counter]]\nname = \"post\"\nfields = \"like:12\"\nrows = \"post:{id}\"\n\
                    [[view]]\nname = \"home\"\ncounters = [\"post\"]\n";
        let text = format!("action = []\n{text}");
        std::fs::write(&path, &text).unwrap();
        let settings = Settings::new(Config::load(&path).unwrap());
        settings.rewrite(|_| ()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "nothing changed");
        change(&settings, &[("maxclients", "10"), ("appendfsync", "no"), ("timeout", "3")])
            .unwrap();
        settings.rewrite(|_| ()).unwrap();
        let expected = text.replace(
            "max_clients = 9  # nine\n",
            "max_clients = 10  # nine\nidle_timeout = \"3s\"\n",
        ) + "\n[durability]\nfsync = \"no\"\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(Config::load(&path).unwrap(), **settings.now());
        // A default value must be written if the file has another value.
        change(&settings, &[("timeout", "0")]).unwrap();
        settings.rewrite(|_| ()).unwrap();
        assert_eq!(Config::load(&path).unwrap().server.idle_timeout_s, 0);
    }

    #[test]
    fn a_rewrite_of_the_printed_file_keeps_its_comments() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.toml");
        let text = Config::default().print(crate::config::Extent::All);
        std::fs::write(&path, &text).unwrap();
        let settings = Settings::new(Config::load(&path).unwrap());
        change(&settings, &[("maxclients", "77"), ("timeout", "90")]).unwrap();
        settings.rewrite(|_| ()).unwrap();
        let written = std::fs::read_to_string(&path).unwrap();
        assert_eq!(Config::load(&path).unwrap(), **settings.now());
        let expected = text
            .replace("server.max_clients = 10000", "server.max_clients = 77")
            .replace("server.idle_timeout = \"0\"", "server.idle_timeout = \"90s\"");
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&written), sorted(&expected));
    }

    #[test]
    fn a_rewrite_after_a_rename_changes_the_name_where_it_stands() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.toml");
        let text = "action = []\nview = []\n# posts\n[[counter]]\nname = \"post\" # the first\n\
                    fields = \"like:12,  read:4\"\nrows = \"post:{id}\"\n\n# users\n[[counter]]\n\
                    name = \"user\"\nfields = \"follower:8\"\n\n# hearts\n[[existence]]\n\
                    name = \"liked\"\nseed = 7\n\n[[existence]]\nname = \"seen\"\n";
        let text = text.replace(",  ", " ");
        std::fs::write(&path, &text).unwrap();
        let settings = Settings::new(Config::load(&path).unwrap());
        let folder_has = |config: &mut Config| {
            // The data folder has the same entry with normalized fields and a secret seed.
            config.counter[0].name = "article".to_owned();
            config.counter[0].fields = "like:12 read:4".to_owned();
            config.existence[0].name = "loved".to_owned();
            config.existence[0].seed = 0;
        };
        settings.rewrite(folder_has).unwrap();
        let expected = text
            .replace("\"post\" # the first", "\"article\" # the first")
            .replace("\"liked\"", "\"loved\"");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        settings.rewrite(folder_has).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            expected,
            "a second rewrite changes nothing"
        );
    }

    #[test]
    fn a_file_that_was_broken_meanwhile_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.toml");
        std::fs::write(&path, "[server]\n").unwrap();
        let settings = Settings::new(Config::load(&path).unwrap());
        change(&settings, &[("timeout", "3")]).unwrap();
        for broken in ["[server\n", "server = 3\n", "[server]\nnope = 3\n"] {
            std::fs::write(&path, broken).unwrap();
            assert!(
                settings
                    .rewrite(|_| ())
                    .unwrap_err()
                    .to_string()
                    .starts_with("ERR Rewriting config file: ")
            );
            assert_eq!(std::fs::read_to_string(&path).unwrap(), broken);
        }
        std::fs::remove_file(&path).unwrap();
        settings.rewrite(|_| ()).unwrap();
        assert_eq!(Config::load(&path).unwrap().server.idle_timeout_s, 3);
        std::fs::remove_dir_all(folder.path()).unwrap();
        assert!(settings.rewrite(|_| ()).is_err());
        assert_eq!(Settings::new(Config::default()).rewrite(|_| ()), Err(SetError::NoFile));
    }
}
