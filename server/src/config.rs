//! The configuration: one TOML file. Each setting is declared once, below, with its unit, its default and its documentation;
//! `tidemark config` prints the file from these declarations, and `config/tidemark.toml` is what it prints (a test compares).
//!
//! A key that is not declared is refused with its name and line: a misspelt limit must not go unnoticed.

use crate::keys::{Kind, Pattern};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The port that Tidemark listens on unless told otherwise.
pub const DEFAULT_PORT: u16 = 6399;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not TOML, or names a key that does not exist, or gives it a value of another type.
    #[error("{path}: {source}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Line, column and what is wrong there.
        source: Box<toml::de::Error>,
    },
    /// The values do not fit together.
    #[error("configuration: {0}")]
    Invalid(String),
}

/// One key of a section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// The lines of its documentation.
    pub(crate) doc: &'static [&'static str],
    /// What Redis calls it: CONFIG GET and SET know it by both names.
    pub(crate) redis: &'static [&'static str],
    /// Whether CONFIG SET may change it: who uses it looks each time ([`crate::settings`]).
    pub(crate) live: bool,
}

/// Declares a section: the struct, its defaults and its documentation, from one text. `#[redis = "..."]` gives Redis's name of a key, with the
/// same unit; `#[live = true]` says that it may be changed while the server runs.
macro_rules! section {
    ($(#[doc = $about:literal])+ $name:ident { $(
        $(#[doc = $doc:literal])+ $(#[redis = $redis:literal])* $(#[live = $live:literal])? $field:ident: $type:ty = $default:expr,
    )* }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $( $(#[doc = $doc])+ pub $field: $type, )* }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $field: $default, )* }
            }
        }

        impl $name {
            const ABOUT: &'static [&'static str] = &[$($about),+];
            pub(crate) const KEYS: &'static [Key] = &[$(
                Key { name: stringify!($field), doc: &[$($doc),+], redis: &[$($redis),*], live: false $(|| $live)? },
            )*];
        }
    };
}

section! {
    /// Where the server listens, and what it allows its clients.
    Server {
        /// Addresses to listen on. Only this machine by default: the protocol is not encrypted and there is no password.
        #[redis = "bind"]
        bind: Vec<String> = vec!["127.0.0.1".to_owned()],
        /// The TCP port; 0 lets the system choose.
        #[redis = "port"]
        port: u16 = DEFAULT_PORT,
        /// Threads that serve connections; 0 means one per core.
        workers: usize = 0,
        /// Most clients at a time; one more is answered "ERR max number of clients reached". Lowered if the system allows fewer open files.
        #[redis = "maxclients"]
        #[live = true]
        max_clients: usize = 10_000,
        /// Connections that the system may hold before the server accepts them.
        #[redis = "tcp-backlog"]
        backlog: i32 = 511,
        /// A client that has sent nothing for so many seconds is disconnected; 0 means never.
        #[redis = "timeout"]
        #[live = true]
        idle_timeout_s: u64 = 0,
        /// Probes clients that have been silent for so many seconds, so that dead ones are found; 0 means never.
        #[redis = "tcp-keepalive"]
        #[live = true]
        tcp_keepalive_s: u64 = 300,
        /// Most bytes in one argument of a request.
        #[redis = "proto-max-bulk-len"]
        #[live = true]
        max_bulk_bytes: usize = 512 << 20,
        /// Most bytes of one client's requests that wait to be complete. A client that goes beyond is disconnected.
        #[redis = "client-query-buffer-limit"]
        #[live = true]
        max_query_buffer_bytes: usize = 64 << 20,
        /// Most bytes of replies that wait for one client. A client that goes beyond is disconnected. Requests of a client that
        /// does not read its replies are not read either, so only one huge reply, or messages that nobody asked for, get here.
        #[live = true]
        max_output_buffer_bytes: usize = 256 << 20,
        /// Most bytes of messages (channels, MONITOR) that wait for one client. A client that goes beyond is disconnected.
        #[live = true]
        max_push_buffer_bytes: usize = 32 << 20,
        /// Most channels, and patterns of channels, that one client listens to.
        #[live = true]
        max_subscriptions: usize = 10_000,
        /// Most bytes of the commands that one client queues between MULTI and EXEC. Other writers wait while they are executed.
        #[live = true]
        max_transaction_bytes: usize = 16 << 20,
        /// Most keys that one client watches.
        #[live = true]
        max_watched_keys: usize = 10_000,
        /// SLOWLOG keeps commands that take at least so many microseconds; -1 for none. Below 10000 every command is timed, which costs each some
        /// 50 ns.
        #[redis = "slowlog-log-slower-than"]
        #[live = true]
        slowlog_slower_than_us: i64 = 10_000,
        /// Most entries of SLOWLOG.
        #[redis = "slowlog-max-len"]
        #[live = true]
        slowlog_max_len: usize = 128,
        /// LATENCY keeps commands that take at least so many milliseconds; 0 for none. If not 0, every command is timed.
        #[redis = "latency-monitor-threshold"]
        #[live = true]
        latency_threshold_ms: u64 = 0,
        /// On shutdown, replies that are on their way get so many milliseconds to arrive.
        #[live = true]
        shutdown_grace_ms: u64 = 1_000,
    }
}

/// When a write is safe on the disk, seen from the client that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Fsync {
    /// At most a second after its reply.
    Everysec,
    /// Before its reply: writers that arrive together share one sync of the disk.
    Always,
    /// When the operating system sees fit.
    No,
}

section! {
    /// What outlives the process.
    Durability {
        /// The folder for the log, the snapshots and the cold files. It belongs to one server.
        #[redis = "dir"]
        dir: PathBuf = PathBuf::from("data"),
        /// When a write is safe: "always" (before its reply), "everysec" (at most a second later), "no" (when the system sees fit).
        #[redis = "appendfsync"]
        #[live = true]
        fsync: Fsync = Fsync::Everysec,
        /// A snapshot is written when the log has grown by so many bytes since the last one; 0 means never for that.
        #[live = true]
        snapshot_log_bytes: u64 = 256 << 20,
        /// A snapshot is written when so many seconds have passed since the last one and something has changed; 0 means never for that.
        #[live = true]
        snapshot_every_s: u64 = 3_600,
        /// The log is kept for replicas that were away, up to so many bytes, though a snapshot has made it unnecessary.
        keep_log_bytes: u64 = 1 << 30,
        /// Whether PING answers an error while the log cannot be written, so that Sentinel lets a replica take over. Otherwise it
        /// answers PONG, and the server goes on answering reads.
        #[live = true]
        ping_fails_with_log: bool = true,
    }
}

section! {
    /// Who may do what. docs/security.md has the threats and what guards against them.
    Security {
        /// Password of the user `default`; empty: none is needed. ACL SETUSER default, and a line for it in `users` or `acl_file`, go before.
        #[redis = "requirepass"]
        #[live = true]
        password: String = String::new(),
        /// While the user `default` needs no password, connections from other machines are told so ("DENIED") and closed.
        #[redis = "protected-mode"]
        #[live = true]
        protected_mode: bool = true,
        /// A file of users, one per line: `user name rules`. ACL LOAD and ACL SAVE read and write it. Empty: users are below.
        #[redis = "aclfile"]
        acl_file: String = String::new(),
        /// Users: `name rules`, as ACL LIST shows them. CONFIG REWRITE writes them here.
        users: Vec<String> = vec![],
        /// Most users.
        #[live = true]
        max_users: usize = 10_000,
        /// Refusals that ACL LOG remembers.
        #[redis = "acllog-max-len"]
        #[live = true]
        acl_log_entries: usize = 128,
        /// Commands that nobody may use, whatever the users' rules: names ("shutdown", "config|set") and categories ("@dangerous").
        deny_commands: Vec<String> = vec![],
        /// A client that must log in, or make a TLS handshake, and has not done so after so many seconds is disconnected; 0 means never.
        #[live = true]
        handshake_timeout_s: u64 = 10,
    }
}

/// Whether clients of the TLS port must show a certificate that `ca_file` has signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthClients {
    /// They need none.
    No,
    /// They must.
    Yes,
    /// They need none, but one that they show must be right.
    Optional,
}

section! {
    /// Encryption. Certificates are read again, for new connections, when CONFIG SET names one of these keys.
    Tls {
        /// The port that speaks TLS, at the addresses of `server.bind`; 0 means none.
        #[redis = "tls-port"]
        port: u16 = 0,
        /// The server's certificate and those between it and its root, in PEM.
        #[redis = "tls-cert-file"]
        #[live = true]
        cert_file: String = String::new(),
        /// Its private key, in PEM.
        #[redis = "tls-key-file"]
        #[live = true]
        key_file: String = String::new(),
        /// Certificates of the authorities that clients' certificates must be signed by, in PEM.
        #[redis = "tls-ca-cert-file"]
        #[live = true]
        ca_file: String = String::new(),
        /// Whether clients must show a certificate: "yes", "no", or "optional" (one that is shown must be right).
        #[redis = "tls-auth-clients"]
        #[live = true]
        auth_clients: AuthClients = AuthClients::Yes,
    }
}

section! {
    /// Replicas and masters. The role itself is kept in the data folder: REPLICAOF changes it, durably.
    Replication {
        /// "host port" of the master to follow when the data folder is new; empty: this is a master.
        replicaof: String = String::new(),
        /// The password that the master asks for, and the user if not the default one.
        #[redis = "masterauth"]
        #[live = true]
        master_auth: String = String::new(),
        /// See master_auth.
        #[redis = "masteruser"]
        #[live = true]
        master_user: String = String::new(),
        /// Whether the link to the master is encrypted: its port is one of `tls.port`, its certificate signed by `tls.ca_file`.
        #[redis = "tls-replication"]
        #[live = true]
        tls: bool = false,
        /// Where others reach this node, if not at the address that its master sees and its own port.
        #[redis = "replica-announce-ip"]
        #[redis = "slave-announce-ip"]
        #[live = true]
        replica_announce_ip: String = String::new(),
        /// See replica_announce_ip; 0 means the own port.
        #[redis = "replica-announce-port"]
        #[redis = "slave-announce-port"]
        #[live = true]
        replica_announce_port: u16 = 0,
        /// Sentinel promotes the replica with the lowest one; never one with 0. While a replica has no complete data set it says 0.
        #[redis = "replica-priority"]
        #[redis = "slave-priority"]
        #[live = true]
        replica_priority: u32 = 100,
        /// Writes are refused (NOREPLICAS) while fewer replicas follow closely; 0 means never.
        #[redis = "min-replicas-to-write"]
        #[redis = "min-slaves-to-write"]
        #[live = true]
        min_replicas_to_write: usize = 0,
        /// A replica follows closely if it was heard within so many seconds.
        #[redis = "min-replicas-max-lag"]
        #[redis = "min-slaves-max-lag"]
        #[live = true]
        min_replicas_max_lag_s: u64 = 10,
        /// A peer that was not heard for so many seconds is given up.
        #[redis = "repl-timeout"]
        #[live = true]
        timeout_s: u64 = 60,
        /// Most replicas; one more is answered "ERR max number of replicas reached".
        #[live = true]
        max_replicas: usize = 32,
        /// Most bytes of log that are kept for a full sync beyond what is kept anyway; one that takes longer fetches a newer snapshot's files.
        #[live = true]
        sync_log_bytes: u64 = 4 << 30,
        /// Whether a master that has had replicas refuses writes after a restart, until a replica follows it, Sentinel names it, or REPLICAOF NO
        /// ONE: somebody else may have become the master meanwhile.
        #[live = true]
        fence: bool = true,
    }
}

section! {
    /// Rows of old posts on the disk: tables of a counter space that reaches its memory limit.
    Spill {
        /// Most bytes of memory for rows that were read from the disk.
        cache_bytes: u64 = 64 << 20,
        /// Threads that read from the disk: as many reads as the disk serves well at a time.
        read_threads: usize = 16,
        /// Most bytes per second that merging writes to the disk; 0 means as fast as it goes. Spilling when memory runs short is never slowed down.
        merge_bytes_per_s: u64 = 32 << 20,
    }
}

section! {
    /// A counter space: one 64-bit id -> several counters, packed to the bit.
    Counter {
        /// Its name in commands (`CNT.GET post 17`) and in views and actions.
        name: String = String::new(),
        /// The counters of a row, in order, each with its width in bits (1 to 64). A value that needs more bits is still held
        /// exactly, in the aux dictionary: pick the width that most rows need, not the largest. `TM.ADVISE` will compute it.
        fields: String = String::new(),
        /// Keys of rows, for the hash commands (`HGETALL post:17`). Empty: rows have no keys.
        rows: String = String::new(),
        /// Keys of single counters, for the string commands (`INCR post:17:like`). Empty: cells have no keys.
        cells: String = String::new(),
        /// Whether GET and MGET on a row's key answer the row as one text, `repost:20,like:20,comment:20`, empty if there is no row, as the clients of
        /// Weibo's service expect (with rows = "{id}", cells = "{id}.{field}"). Otherwise a row is a hash, and GET refuses it.
        text_rows: bool = false,
        /// Whether the oldest tables move to the disk when the space nears its memory limit. A space that does not spill stays in memory.
        /// Off until it has been shown at hundreds of millions of rows.
        spill: bool = false,
        /// Rows that a table is made for. A table is allocated when its range begins to be used, not before. A row takes its bits
        /// plus about 3.5 bytes for its id and empty slots.
        rows_per_table: u64 = 1 << 20,
        /// Most bytes of memory for this space's tables; beyond it, when nothing can be spilled, writes of new rows are refused with an OOM error.
        memory_limit_bytes: u64 = 1 << 30,
        /// An id further than this above the highest one is refused ("ERR key too big"); 0 means never. The first id of a space may be any:
        /// where a first row with a low id (a test's) keeps the real ids out, delete it.
        max_ahead: u64 = 0,
    }
}

section! {
    /// An existence space: (id, member) -> yes or no, in Bloom filters.
    Existence {
        /// Its name in commands (`PH.EXISTS liked 7 17`) and in views and actions.
        name: String = String::new(),
        /// Keys of an id's pairs, for the set and Bloom commands (`SISMEMBER liked:17 7`, `BF.ADD liked:17 7`). Empty: pairs have no keys.
        pairs: String = String::new(),
        /// Whether a pair has a member. If not, an id alone is set or not, as the clients of Weibo's service have it (with pairs = "{id}"): BFSET, BFGET,
        /// EXISTS, DEL; commands that name a member are refused, and no view or action can show or move it.
        members: bool = true,
        /// Share of pairs that were never set and are still answered yes. A page of 32 posts with two flags shows a wrong one
        /// on 0.64 % of pages at 0.0001, on 47 % at 0.01. Ten times fewer errors cost about five more bits per pair.
        false_positive_rate: f64 = 0.0001,
        /// Pairs that a table is made for; about 20 bits each at 0.0001.
        pairs_per_table: u64 = 4 << 20,
        /// Most tables. When one more would be needed, the oldest is recycled: its ids answer "unknown" from then on.
        max_tables: usize = 64,
        /// Most bytes of memory for this space; 0 means twice what `max_tables` full tables take. At the limit a table that gets more late
        /// pairs than it has room for refuses them with an OOM error; the newest one goes on.
        memory_limit_bytes: u64 = 0,
        /// Most unset ("unliked") pairs per table, held exactly.
        max_revoked: usize = 1 << 20,
        /// Most pairs of ids that are far ahead of all others, held exactly.
        max_aside: usize = 1 << 16,
        /// Where an action ties the flag to a counter, a counter of 0 answers for the flag; but not at ids where that would not be certain, as after an
        /// undo. At most so many ids are known one by one, 16 bytes each; when there are more, the older half becomes "all ids up to here".
        max_loose: usize = 1 << 16,
        /// An id further than this above the highest one is refused ("ERR key too big"); 0 means never. The first id of a space may be any:
        /// where a first row with a low id (a test's) keeps the real ids out, delete it.
        max_ahead: u64 = 0,
        /// Seed of the hashes. Keep it secret from those who could choose ids or members to fill a filter; 0 means that the
        /// server picks one at random when the space is made.
        seed: u64 = 0,
    }
}

section! {
    /// A view: what FEED.GET answers for each id.
    View {
        /// Its name (`FEED.GET home ...`).
        name: String = String::new(),
        /// Counters, in order: a counter space for all its fields ("post"), or one of them ("post.like").
        counters: Vec<String> = vec![],
        /// Flags, in order: existence spaces.
        flags: Vec<String> = vec![],
    }
}

section! {
    /// An action: a flag and a counter that move together, so that a repeated like counts once.
    Action {
        /// Its name (`FEED.ACT like ...`).
        name: String = String::new(),
        /// The existence space that remembers who did it.
        flag: String = String::new(),
        /// The counter that it moves, as "space.field".
        counter: String = String::new(),
    }
}

/// The whole configuration. `Config::default()` is what the program runs with when no file is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[server]`
    pub server: Server,
    /// `[durability]`
    pub durability: Durability,
    /// `[security]`
    pub security: Security,
    /// `[tls]`
    pub tls: Tls,
    /// `[replication]`
    pub replication: Replication,
    /// `[spill]`
    pub spill: Spill,
    /// `[[counter]]`
    pub counter: Vec<Counter>,
    /// `[[existence]]`
    pub existence: Vec<Existence>,
    /// `[[view]]`
    pub view: Vec<View>,
    /// `[[action]]`
    pub action: Vec<Action>,
    /// The file that it was read from, for CONFIG REWRITE.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        let text = str::to_owned;
        let existence =
            |name: &str| Existence { name: text(name), pairs: format!("{name}:{{id}}"), ..Existence::default() };
        let action =
            |name: &str, flag: &str| Action { name: text(name), flag: text(flag), counter: format!("post.{name}") };
        Config {
            server: Server::default(),
            durability: Durability::default(),
            security: Security::default(),
            tls: Tls::default(),
            replication: Replication::default(),
            spill: Spill::default(),
            counter: vec![
                Counter {
                    name: text("post"),
                    fields: text("like:12 repost:8 comment:8 read:16"),
                    rows: text("post:{id}"),
                    cells: text("post:{id}:{field}"),
                    ..Counter::default()
                },
                Counter {
                    name: text("user"),
                    fields: text("follower:16 following:10 post:12"),
                    rows: text("user:{id}"),
                    spill: false,
                    ..Counter::default()
                },
            ],
            existence: vec![existence("liked"), existence("reposted"), existence("read")],
            view: vec![View {
                name: text("home"),
                counters: vec![text("post")],
                flags: vec![text("liked"), text("read")],
            }],
            action: vec![action("like", "liked"), action("repost", "reposted"), action("read", "read")],
            file: None,
        }
    }
}

/// The sections that hold single values, as CONFIG knows them. (Spaces, views and actions are changed by the TM commands.)
pub(crate) const SECTIONS: &[(&str, &[Key])] = &[
    ("server", Server::KEYS),
    ("durability", Durability::KEYS),
    ("security", Security::KEYS),
    ("tls", Tls::KEYS),
    ("spill", Spill::KEYS),
    ("replication", Replication::KEYS),
];

/// The head of the printed file.
const PREAMBLE: &str = "\
# Tidemark's configuration. Every key is listed with its default; a file needs only what it changes.
# Lists of spaces, views and actions replace the default ones of their kind as a whole.
# A key marked * can be changed while the server runs: CONFIG SET section.key value, then CONFIG REWRITE to keep it.
#
# Sizing. Memory grows by table as ids arrive, and stops at each space's limit:
#   counter space     rows x (bits of all fields / 8 + 3.5) bytes; ids in random order: a tenth more
#   existence space   pairs x 20 bits at a false-positive rate of 0.0001 when tables are full, 28 with all that goes on; tables x pairs_per_table are remembered
# For a machine with 100 GB, say 2 billion posts and 20 billion flags: post 2e9 x 9 = 18 GB, flags 20e9 x 28 / 8 = 70 GB:
#   counter.post      rows_per_table = 67_108_864      memory_limit_bytes = 22_000_000_000
#   existence.*       pairs_per_table = 268_435_456    max_tables = 25      (3 spaces x 25 tables x 0.27e9 pairs)
# Bigger tables cost fewer steps per lookup; smaller ones roll, recycle and spill in finer steps. 30 to 100 tables per space are good.
";

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let mut config = Config::parse(&text, path)?;
        config.file = Some(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        Ok(config)
    }

    /// Reads and checks the text of a file; `path` is named in errors.
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text)
            .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })?;
        config.validate()?;
        Ok(config)
    }

    /// Checks that the values fit together. What a schema or a filter may be, the engines check.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |text: String| Err(ConfigError::Invalid(text));
        let server = &self.server;
        if server.bind.is_empty() {
            return invalid("server.bind is empty: name an address to listen on".to_owned());
        }
        if server.max_clients == 0 {
            return invalid("server.max_clients must be at least 1".to_owned());
        }
        // Argument positions in the query buffer are 32 bits wide.
        for (name, value, least) in [
            ("max_bulk_bytes", server.max_bulk_bytes, 64 << 10),
            ("max_query_buffer_bytes", server.max_query_buffer_bytes, 1 << 20),
            ("max_output_buffer_bytes", server.max_output_buffer_bytes, 1 << 20),
        ] {
            if !(least..=2 << 30).contains(&value) {
                return invalid(format!("server.{name} is {value}: must be {least} to {}", 2u64 << 30));
            }
        }
        // What it changes becomes one batch of the log.
        if server.max_transaction_bytes > 64 << 20 {
            return invalid("server.max_transaction_bytes must be at most 67108864".to_owned());
        }
        let names = |kind, names: Vec<&str>| check_names(kind, &names);
        names("counter or existence space", {
            let counters = self.counter.iter().map(|c| c.name.as_str());
            counters.chain(self.existence.iter().map(|e| e.name.as_str())).collect()
        })?;
        names("view", self.view.iter().map(|v| v.name.as_str()).collect())?;
        names("action", self.action.iter().map(|a| a.name.as_str()).collect())?;

        let mut patterns: Vec<(String, Pattern)> = Vec::new();
        let counters = self.counter.iter().flat_map(|c| [(Kind::Row, &c.rows), (Kind::Cell, &c.cells)]);
        for (kind, text) in counters.chain(self.existence.iter().map(|e| (Kind::Pair, &e.pairs))) {
            if text.is_empty() {
                continue;
            }
            let pattern = Pattern::parse(kind, text).map_err(|e| ConfigError::Invalid(e.to_string()))?;
            if let Some((other, _)) = patterns.iter().find(|(_, p)| p.overlaps(&pattern)) {
                return invalid(format!("key patterns '{other}' and '{text}' could both match one key"));
            }
            patterns.push((text.clone(), pattern));
        }
        for existence in &self.existence {
            let rate = existence.false_positive_rate;
            if !phantom::RATES.contains(&rate) {
                return invalid(format!(
                    "existence space '{}': false_positive_rate is {rate}: must lie between 0.0000001 and 0.25",
                    existence.name
                ));
            }
        }
        let has_no_members = |name: &String| self.existence.iter().any(|e| e.name == *name && !e.members);
        let is_existence = |name: &str| self.existence.iter().any(|e| e.name == name);
        for view in &self.view {
            if let Some(flag) = view.flags.iter().find(|f| has_no_members(f)) {
                return invalid(format!(
                    "view '{}': the existence space '{flag}' has no members (members = false)",
                    view.name
                ));
            }
            if let Some(flag) = view.flags.iter().find(|f| !is_existence(f)) {
                return invalid(format!("view '{}': there is no existence space '{flag}'", view.name));
            }
            for counter in &view.counters {
                let space = counter.split_once('.').map_or(counter.as_str(), |(space, _)| space);
                if !self.counter.iter().any(|c| c.name == space) {
                    return invalid(format!("view '{}': there is no counter space '{space}'", view.name));
                }
            }
        }
        for action in &self.action {
            if has_no_members(&action.flag) {
                return invalid(format!(
                    "action '{}': the existence space '{}' has no members (members = false)",
                    action.name, action.flag
                ));
            }
            if !is_existence(&action.flag) {
                return invalid(format!("action '{}': there is no existence space '{}'", action.name, action.flag));
            }
            let Some((space, _)) = action.counter.split_once('.') else {
                return invalid(format!(
                    "action '{}': counter is '{}': write it as space.field",
                    action.name, action.counter
                ));
            };
            if !self.counter.iter().any(|c| c.name == space) {
                return invalid(format!("action '{}': there is no counter space '{space}'", action.name));
            }
        }
        Ok(())
    }

    /// The file with every key, its documentation and these values.
    pub fn print(&self) -> String {
        let mut out = PREAMBLE.to_owned();
        print_section(&mut out, "[server]", Server::ABOUT, Server::KEYS, &self.server, true);
        print_section(&mut out, "[durability]", Durability::ABOUT, Durability::KEYS, &self.durability, true);
        print_section(&mut out, "[security]", Security::ABOUT, Security::KEYS, &self.security, true);
        print_section(&mut out, "[tls]", Tls::ABOUT, Tls::KEYS, &self.tls, true);
        print_section(&mut out, "[replication]", Replication::ABOUT, Replication::KEYS, &self.replication, true);
        print_section(&mut out, "[spill]", Spill::ABOUT, Spill::KEYS, &self.spill, true);
        for (i, item) in self.counter.iter().enumerate() {
            print_section(&mut out, "[[counter]]", Counter::ABOUT, Counter::KEYS, item, i == 0);
        }
        for (i, item) in self.existence.iter().enumerate() {
            print_section(&mut out, "[[existence]]", Existence::ABOUT, Existence::KEYS, item, i == 0);
        }
        for (i, item) in self.view.iter().enumerate() {
            print_section(&mut out, "[[view]]", View::ABOUT, View::KEYS, item, i == 0);
        }
        for (i, item) in self.action.iter().enumerate() {
            print_section(&mut out, "[[action]]", Action::ABOUT, Action::KEYS, item, i == 0);
        }
        out
    }
}

/// The documentation is printed with the first of several entries only.
fn print_section(out: &mut String, head: &str, about: &[&str], keys: &[Key], values: &impl Serialize, first: bool) {
    out.push('\n');
    if first {
        for line in about {
            let _ = writeln!(out, "#{line}");
        }
    }
    let _ = writeln!(out, "{head}");
    let values = toml::Table::try_from(values).unwrap_or_default();
    for key in keys {
        if first {
            for (i, line) in key.doc.iter().enumerate() {
                let _ = writeln!(out, "#{}{line}", if i == 0 && key.live { " *" } else { "" });
            }
        }
        if let Some(value) = values.get(key.name) {
            let _ = writeln!(out, "{} = {value}", key.name);
        }
    }
}

/// Names are short words: they appear in commands, keys, file names and metrics.
fn check_names(kind: &str, names: &[&str]) -> Result<(), ConfigError> {
    for (i, name) in names.iter().enumerate() {
        let legal = (1..=64).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && !name.starts_with(|c: char| c.is_ascii_digit());
        if !legal {
            return Err(ConfigError::Invalid(format!(
                "a {kind} is named '{name}': a name has 1 to 64 of a-z, 0-9 and _, and does not begin with a digit"
            )));
        }
        if names[..i].contains(name) {
            return Err(ConfigError::Invalid(format!("two {kind}s are named '{name}'")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("t.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn the_printed_file_is_the_default_and_the_shipped_file() {
        let printed = Config::default().print();
        assert_eq!(parse(&printed), Ok(Config::default()));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/tidemark.toml");
        let shipped = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            shipped == printed,
            "config/tidemark.toml is not what `tidemark config` prints: write it anew with\n  cargo run -p tidemark-server -- config > config/tidemark.toml"
        );
    }

    #[test]
    fn the_printed_file_has_every_key() {
        let printed = Config::default().print();
        let sections = [
            Server::KEYS,
            Durability::KEYS,
            Security::KEYS,
            Tls::KEYS,
            Replication::KEYS,
            Counter::KEYS,
            Existence::KEYS,
            View::KEYS,
            Action::KEYS,
        ];
        for Key { name, .. } in sections.concat() {
            assert!(printed.contains(&format!("\n{name} = ")), "{name}");
        }
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
            ("[server]\nmax_query_buffer_bytes = 10", "max_query_buffer_bytes is 10"),
            ("[[counter]]\nfields = \"a:1\"", "is named ''"),
            ("[[counter]]\nname = \"A b\"", "is named 'A b'"),
            (
                "view = []\naction = []\n[[counter]]\nname = \"read\"",
                "two counter or existence spaces are named 'read'",
            ),
            ("[[counter]]\nname = \"post\"\nrows = \"p\"", "must have one {id}"),
            ("[[counter]]\nname = \"post\"\nrows = \"liked:{id}\"", "'liked:{id}' and 'liked:{id}' could both match"),
            ("[[existence]]\nname = \"liked\"\nfalse_positive_rate = 0.7", "false_positive_rate is 0.7"),
            (
                "[[existence]]\nname = \"x\"\nmembers = false\n[[view]]\nname = \"v\"\nflags = [\"x\"]",
                "view 'v': the existence space 'x' has no members",
            ),
            ("[[view]]\nname = \"v\"\nflags = [\"x\"]", "view 'v': there is no existence space 'x'"),
            ("[[view]]\nname = \"v\"\ncounters = [\"x.y\"]", "view 'v': there is no counter space 'x'"),
            ("[[action]]\nname = \"a\"\nflag = \"x\"", "action 'a': there is no existence space 'x'"),
            ("[[action]]\nname = \"a\"\nflag = \"read\"\ncounter = \"post\"", "write it as space.field"),
            ("[[action]]\nname = \"a\"\nflag = \"read\"\ncounter = \"x.like\"", "there is no counter space 'x'"),
            ("[[view]]\nname = \"v\"\n[[view]]\nname = \"v\"", "two views are named 'v'"),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_needs_only_what_it_changes() {
        let config = parse("[server]\nport = 7000\n[durability]\nfsync = \"always\"\n").unwrap();
        assert_eq!((config.server.port, config.durability.fsync), (7000, Fsync::Always));
        assert_eq!(config.counter, Config::default().counter);
    }
}
