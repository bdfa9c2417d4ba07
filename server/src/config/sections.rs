//! The sections: each setting with its name, unit, default and documentation.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The port that Tidemark listens on unless told otherwise.
pub const DEFAULT_PORT: u16 = 6399;

/// One key of a section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// The lines of its documentation.
    pub(crate) doc: &'static [&'static str],
    /// What Redis calls it: CONFIG GET and SET know it by both names.
    pub(crate) redis: &'static [&'static str],
    /// Whether CONFIG SET may change it: its users look each time ([`crate::runtime::settings`]).
    pub(crate) live: bool,
    /// A password: CONFIG GET shows it only to users with all rights.
    pub(crate) secret: bool,
}

/// Declares a section: the struct, its defaults and its documentation, from one text. `#[redis =
/// "..."]` gives Redis's name of a key, with the same unit; `#[live = true]` says that it may be
/// changed while the server runs, `#[secret = true]` that it is a password.
macro_rules! section {
    ($(#[doc = $about:literal])+ $name:ident { $(
        $(#[doc = $doc:literal])+ $(#[redis = $redis:literal])* $(#[live = $live:literal])?
        $(#[secret = $secret:literal])? $field:ident: $type:ty = $default:expr,
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
            pub(super) const ABOUT: &'static [&'static str] = &[$($about),+];
            pub(crate) const KEYS: &'static [Key] = &[$(
                Key {
                    name: stringify!($field),
                    doc: &[$($doc),+],
                    redis: &[$($redis),*],
                    live: false $(|| $live)?,
                    secret: false $(|| $secret)?,
                },
            )*];
        }
    };
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object a line.
    Json,
}

section! {
    /// Where the server listens, and what it allows its clients.
    Server {
        /// Addresses to listen on. Only this machine by default: the protocol is not encrypted and
        /// there is no password.
        #[redis = "bind"]
        bind: Vec<String> = vec!["127.0.0.1".to_owned()],
        /// The TCP port; 0 lets the system choose.
        #[redis = "port"]
        port: u16 = DEFAULT_PORT,
        /// How the log's lines on standard error are written: "text" for people, "json" for
        /// collectors (one object a line: timestamp, level, message).
        log_format: LogFormat = LogFormat::Text,
        /// Threads that serve connections; 0 means one per core.
        workers: usize = 0,
        /// Most clients at a time; one more is answered "ERR max number of clients reached".
        /// Lowered if the system allows fewer open files.
        #[redis = "maxclients"]
        #[live = true]
        max_clients: usize = 10_000,
        /// Connections that the system may hold before the server accepts them.
        #[redis = "tcp-backlog"]
        backlog: i32 = 511,
        /// A client that has sent nothing for so many seconds is disconnected, unless it listens,
        /// follows or waits; 0 means never.
        #[redis = "timeout"]
        #[live = true]
        idle_timeout_s: u64 = 0,
        /// Probes clients that have been silent for so many seconds, so that dead ones are found; 0
        /// means never. At most 32767.
        #[redis = "tcp-keepalive"]
        #[live = true]
        tcp_keepalive_s: u64 = 300,
        /// Most bytes in one argument of a request.
        #[redis = "proto-max-bulk-len"]
        #[live = true]
        max_bulk_bytes: usize = 512 << 20,
        /// Most arguments of one request: keys, ids, members, values. A request beyond it is
        /// refused. The other clients of a worker wait while it is executed: with the default 20 ms
        /// at most, with 4096 less than 5 ms (FEED.ACT takes about 1.2 us per id, a read a fifth of
        /// that).
        #[live = true]
        max_request_args: usize = 16_384,
        /// Most bytes of one client's requests that wait to be complete. A client that goes beyond
        /// is disconnected.
        #[redis = "client-query-buffer-limit"]
        #[live = true]
        max_query_buffer_bytes: usize = 64 << 20,
        /// Most bytes of replies that wait for one client. A client that goes beyond is
        /// disconnected. Requests of a client that does not read its replies are not read either,
        /// so only one huge reply, or messages of channels, get here.
        #[live = true]
        max_output_buffer_bytes: usize = 256 << 20,
        /// Most bytes of messages (channels, MONITOR) that wait for one client. A client that goes
        /// beyond is disconnected.
        #[live = true]
        max_push_buffer_bytes: usize = 32 << 20,
        /// Most bytes of all of that, of all clients together (requests, replies, messages,
        /// commands between MULTI and EXEC, subscriptions, watched keys); 0 means any number.
        /// Beyond it the clients that take most are disconnected, except those with CLIENT NO-EVICT
        /// ON, and replicas.
        #[redis = "maxmemory-clients"]
        #[live = true]
        max_clients_memory_bytes: usize = 1 << 30,
        /// Most channels, and patterns of channels, that one client listens to.
        #[live = true]
        max_subscriptions: usize = 10_000,
        /// Most bytes of the names that one client listens to, with 352 for each name. They count
        /// as its memory.
        #[live = true]
        max_subscription_bytes: usize = 8 << 20,
        /// Most bytes of the commands that one client queues between MULTI and EXEC. Other writers
        /// wait while they are executed.
        #[live = true]
        max_transaction_bytes: usize = 16 << 20,
        /// Most arguments of the commands on data that one client queues between MULTI and EXEC,
        /// which writers of the same ids wait for. With the default EXEC takes 80 ms at most.
        #[live = true]
        max_transaction_args: usize = 65_536,
        /// Most keys that one client watches. Each counts 192 bytes in its memory.
        #[live = true]
        max_watched_keys: usize = 10_000,
        /// Most keys that the server remembers for clients that track (CLIENT TRACKING); a key that
        /// several clients have read counts once for each. Each takes some 200 bytes. Beyond it
        /// keys are forgotten at random, and their readers told that they are invalid; 0 means any
        /// number.
        #[redis = "tracking-table-max-keys"]
        #[live = true]
        max_tracked_keys: usize = 1_000_000,
        /// SLOWLOG keeps commands that take at least so many microseconds; -1 for none. Below 10000
        /// every command is timed, which costs each some 50 ns.
        #[redis = "slowlog-log-slower-than"]
        #[live = true]
        slowlog_slower_than_us: i64 = 10_000,
        /// Most entries of SLOWLOG.
        #[redis = "slowlog-max-len"]
        #[live = true]
        slowlog_max_len: usize = 128,
        /// LATENCY keeps commands that take at least so many milliseconds; 0 for none. If not 0,
        /// every command is timed.
        #[redis = "latency-monitor-threshold"]
        #[live = true]
        latency_threshold_ms: u64 = 0,
        /// On shutdown, replies that are on their way get so many milliseconds to arrive.
        #[live = true]
        shutdown_grace_ms: u64 = 1_000,
        /// On shutdown a master waits at most so many seconds until its replicas have what was
        /// written last, and a FAILOVER is over; 0 means not at all.
        #[redis = "shutdown-timeout"]
        #[live = true]
        shutdown_timeout_s: u64 = 10,
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
        /// When a write is safe: "always" (before its reply), "everysec" (at most a second later),
        /// "no" (when the system sees fit).
        #[redis = "appendfsync"]
        #[live = true]
        fsync: Fsync = Fsync::Everysec,
        /// A snapshot is written when the log has grown by so many bytes since the last one; 0
        /// means never for that.
        #[live = true]
        snapshot_log_bytes: u64 = 256 << 20,
        /// A snapshot is written when so many seconds have passed since the last one and something
        /// has changed; 0 means never for that.
        #[live = true]
        snapshot_every_s: u64 = 3_600,
        /// The log is kept for replicas that were away, up to so many bytes, though a snapshot has
        /// made it unnecessary. It lies in segments of 64 MiB, so this is 32 of them. A replica
        /// that was away while more was written needs a full sync: set what is written in the
        /// longest time that a replica may be away ("master_repl_offset" of INFO tells the bytes),
        /// the disk permitting. On replicas, too: one of them may be the next master. On a full
        /// disk it gives way, oldest first.
        keep_log_bytes: u64 = 2 << 30,
        /// Whether PING answers an error while the log cannot be written, so that Sentinel lets a
        /// replica take over. Otherwise it answers PONG, and the server goes on answering reads.
        #[live = true]
        ping_fails_with_log: bool = true,
    }
}

section! {
    /// Users and their rights. docs/security.md has the threats and what guards against them.
    Security {
        /// Password of the user `default`; empty: none is needed. ACL SETUSER default, and a line
        /// for it in `users` or `acl_file`, go before.
        #[redis = "requirepass"]
        #[live = true]
        #[secret = true]
        password: String = String::new(),
        /// While the user `default` needs no password, connections from other machines are told so
        /// ("DENIED") and closed.
        #[redis = "protected-mode"]
        #[live = true]
        protected_mode: bool = true,
        /// A file of users, one per line: `user name rules`. ACL LOAD and ACL SAVE read and write
        /// it. Empty: users are below.
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
        /// Commands denied to every user, whatever the rules: names ("shutdown", "config|set") and
        /// categories ("@dangerous").
        deny_commands: Vec<String> = vec![],
        /// A client that must log in, or make a TLS handshake, and has not done so after so many
        /// seconds is disconnected; 0 means never.
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
    /// Encryption. Certificates are read again, for new connections, when CONFIG SET names one of
    /// these keys.
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
        /// Whether clients must show a certificate: "yes", "no", or "optional" (one that is shown
        /// must be right).
        #[redis = "tls-auth-clients"]
        #[live = true]
        auth_clients: AuthClients = AuthClients::Yes,
    }
}

section! {
    /// Replicas and masters. The role itself is kept in the data folder: REPLICAOF changes it,
    /// durably.
    Replication {
        /// "host port" of the master to follow when the data folder is new; empty: this is a
        /// master.
        replicaof: String = String::new(),
        /// The password that the master asks for, and the user if not the default one.
        #[redis = "masterauth"]
        #[live = true]
        #[secret = true]
        master_auth: String = String::new(),
        /// See master_auth.
        #[redis = "masteruser"]
        #[live = true]
        master_user: String = String::new(),
        /// Whether the link to the master is encrypted: its port is one of `tls.port`, its
        /// certificate signed by `tls.ca_file`.
        #[redis = "tls-replication"]
        #[live = true]
        tls: bool = false,
        /// Where others reach this node, if not at the address that its master sees and its own
        /// port.
        #[redis = "replica-announce-ip"]
        #[redis = "slave-announce-ip"]
        #[live = true]
        replica_announce_ip: String = String::new(),
        /// See replica_announce_ip; 0 means the own port.
        #[redis = "replica-announce-port"]
        #[redis = "slave-announce-port"]
        #[live = true]
        replica_announce_port: u16 = 0,
        /// Sentinel promotes the replica with the lowest one; never one with 0. While a replica has
        /// no complete data set it says 0.
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
        /// Most bytes of log that are kept for a full sync beyond what is kept anyway; one that
        /// takes longer fetches a newer snapshot's files.
        #[live = true]
        sync_log_bytes: u64 = 4 << 30,
        /// Whether a master that has had replicas, or has been one, refuses writes after a restart,
        /// until Sentinel names it, or REPLICAOF NO ONE, or, where no Sentinel has ever spoken, a
        /// replica follows it: another node may have become the master meanwhile. Also when
        /// Sentinel says that another node has.
        #[live = true]
        fence: bool = true,
    }
}

/// How what lies on the disk is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum IoMethod {
    /// By io_uring where the system allows it, else by threads.
    Auto,
    /// By threads.
    Threads,
}

section! {
    /// Rows of old posts on the disk: tables of a counter space that reaches its memory limit. What
    /// that takes beside the spaces' limits: cache_bytes; about 6 bytes per 4 KiB of files (their
    /// index, INFO cold_index_bytes); 24 bytes per row that was deleted on the disk and not merged
    /// yet, at most a sixteenth of the limit; while a table is written one byte per row of it, at
    /// least 1 MiB, and 1 MiB of buffers; while many rows are written at all, 16 MiB of log that is
    /// not synced yet, and 32 bytes per change that waits to be logged, at most 24 MiB (INFO
    /// log_queue_bytes); per worker 128 KiB into which io_uring reads.
    Spill {
        /// Most bytes of memory for rows that were read from the disk.
        cache_bytes: u64 = 64 << 20,
        /// How the disk is read: "auto" (each worker reads by itself, by io_uring, where the system
        /// allows that, else as by "threads"), "threads" (by threads of their own). INFO
        /// cold_io_method says which it is.
        io_method: IoMethod = IoMethod::Auto,
        /// Threads that read from the disk: as many reads as the disk serves well at a time. Where
        /// io_uring reads they are for what it could not.
        read_threads: usize = 16,
        /// Most bytes that cold files may take on the disk; 0 means as many as it has. At the
        /// limit, as on a full disk, tables stay in memory: then new rows are refused with an OOM
        /// error, and it goes on by itself when there is room. A merge needs room for what it
        /// writes anew on top.
        #[live = true]
        max_bytes: u64 = 0,
        /// Most bytes per second that merging writes to the disk; 0 means as fast as it goes.
        /// Spilling when memory runs short is never slowed down.
        #[live = true]
        merge_bytes_per_s: u64 = 32 << 20,
    }
}

section! {
    /// A counter space: one 64-bit id -> several counters, packed to the bit.
    Counter {
        /// Its name in commands (`CNT.GET post 17`) and in views and actions.
        name: String = String::new(),
        /// The counters of a row, in order, each with its width in bits (1 to 64). A value that
        /// needs more bits is still held exactly, in the aux dictionary: pick the width that most
        /// rows need, not the largest. `TM.ADVISE` will compute it. At most 64 in the space's life,
        /// with those that were dropped.
        fields: String = String::new(),
        /// Keys of rows, for the hash commands (`HGETALL post:17`). Empty: rows have no keys.
        /// Braces around {id} are text: "post:{{id}}" has keys like post:{17}, a hash tag, by which
        /// proxies and clients of several servers send all keys of an id to one of them (`tidemark
        /// config --hash-tags` prints all patterns in that form).
        rows: String = String::new(),
        /// Keys of single counters, for the string commands (`INCR post:17:like`). Empty: cells
        /// have no keys. Without `{field}` a key names the first field of its row: cells =
        /// "views:{id}" of a space of one field gives the keys `views:17`.
        cells: String = String::new(),
        /// Whether ids in keys may begin with zeros, which change nothing: `post:000000000017` is
        /// then `post:17`, as `redis-benchmark -r` writes it. Replies (SCAN, KEYS) show ids without
        /// zeros.
        padded_ids: bool = false,
        /// Whether GET and MGET on a row's key answer the row as one text,
        /// `repost:20,like:20,comment:20`, empty if there is no row, as the clients of Weibo's
        /// service expect (with rows = "{id}", cells = "{id}.{field}"). Otherwise a row is a hash,
        /// and GET refuses it.
        text_rows: bool = false,
        /// Whether the oldest tables move to the disk when the space nears its memory limit. A
        /// space that does not spill stays in memory. Off until it has been shown at hundreds of
        /// millions of rows.
        spill: bool = false,
        /// Rows that a table is made for. A table is allocated when its range begins to be used,
        /// not before. A row takes its bits plus about 3.5 bytes for its id and empty slots. With
        /// spill = true fewer, if the memory limit has no room for four such tables.
        rows_per_table: u64 = 1 << 20,
        /// Most bytes of memory for this space's tables; beyond it, when nothing can be spilled,
        /// writes of new rows are refused with an OOM error. While a table that deletions have
        /// emptied is replaced by a smaller one there may be more, by that one.
        memory_limit_bytes: u64 = 1 << 30,
        /// An id further than this above the highest one is refused ("ERR key too big"); 0 means
        /// never. The first id of a space may be any: where a first row with a low id (a test's)
        /// keeps the real ids out, delete it.
        max_ahead: u64 = 0,
    }
}

section! {
    /// An existence space: (id, member) -> yes or no, in Bloom filters.
    Existence {
        /// Its name in commands (`PH.EXISTS liked 7 17`) and in views and actions.
        name: String = String::new(),
        /// Keys of an id's pairs, for the set and Bloom commands (`SISMEMBER liked:17 7`, `BF.ADD
        /// liked:17 7`). Empty: pairs have no keys.
        pairs: String = String::new(),
        /// Whether ids in keys may begin with zeros, which change nothing: `liked:000000000017` is
        /// then `liked:17`.
        padded_ids: bool = false,
        /// Whether a pair has a member. If not, an id alone is set or not, as the clients of
        /// Weibo's service have it (with pairs = "{id}"): BFSET, BFGET, EXISTS, DEL; commands that
        /// name a member are refused, and no view or action can show or move it. Such keys may also
        /// be those of a counter space (rows = "{id}"): then BFSET, BFGET, BFMSET and BFMGET mean
        /// the flag, and all other commands the counters.
        members: bool = true,
        /// The lowest id of a new space: ids below it are answered as ids below the horizon are
        /// (nil, and -1 by BFSET and BFGET), and take no pairs. Kept with the space's data: what a
        /// space was made with holds.
        first_id: u64 = 0,
        /// Share of pairs that were never set and are still answered yes. A page of 32 posts with
        /// two flags shows a wrong one on 0.64 % of pages at 0.0001, on 47 % at 0.01. Ten times
        /// fewer errors cost about five more bits per pair. INFO shows the measured rate; alert
        /// when measured_at_least is above this setting.
        false_positive_rate: f64 = 0.0001,
        /// Pairs that a table is made for; about 20 bits each at 0.0001. The first table of a space
        /// is an eighth of that, then each is twice the one before.
        pairs_per_table: u64 = 8 << 20,
        /// Most tables in memory. When one more would be needed, the oldest is recycled: its ids
        /// lie below the horizon then, and answer "unknown" (nil). An action on such an id answers
        /// nil and moves no counter: an old post cannot be liked any more. Where it must be, choose
        /// more tables, or let the oldest move to the disk: see spill.
        max_tables: usize = 32,
        /// Whether the oldest table moves to the disk instead of being recycled: one 4 KiB read per
        /// flag of an old post then, and the horizon stays where it is. What is set late of such
        /// tables is held exactly until it is merged, in at most a sixteenth of the memory that the
        /// tables may take; beyond that it is refused with an OOM error. While there is no room on
        /// the disk the newest table goes on, up to the memory limit. TM.MERGE is refused.
        spill: bool = false,
        /// Most bytes of memory for this space; 0 means twice what `max_tables` full tables take.
        /// At the limit a table that gets more late pairs than it has room for refuses them with an
        /// OOM error; the newest one goes on.
        memory_limit_bytes: u64 = 0,
        /// Most unset ("unliked") pairs per table, held exactly.
        max_revoked: usize = 1 << 20,
        /// Most pairs of ids that are far ahead of all others, held exactly, at least 1; beyond
        /// that they are refused with an OOM error. When a sixteenth of so many, or 4,096, are
        /// there, and most new ids are, the others follow them.
        max_aside: usize = 1 << 16,
        /// Where an action ties the flag to a counter, a counter of 0 answers for the flag; but not
        /// at ids where that would not be certain, as after an undo. At most so many ids are known
        /// one by one, 16 bytes each; when there are more, the older half becomes "all ids up to
        /// here". Ids far ahead, whose flags are held exactly, are none of them.
        max_loose: usize = 1 << 16,
        /// An id further than this above the highest one is refused ("ERR key too big"); 0 means
        /// never. The first id of a space may be any: where a first row with a low id (a test's)
        /// keeps the real ids out, delete it.
        max_ahead: u64 = 0,
        /// Seed of the hashes. Keep it secret: with it a client could choose ids or members that
        /// fill a filter; 0 means that the server picks one at random when the space is made.
        seed: u64 = 0,
    }
}

section! {
    /// A view: what FEED.GET answers for each id. Without any in the file there is `home`, with
    /// what the spaces have of the counters and flags below.
    View {
        /// Its name (`FEED.GET home ...`).
        name: String = String::new(),
        /// Counters, in order: "post.like" for a field, "post" for all fields that the space has.
        /// Name the fields: with "post" every page has one value more, for all clients at once,
        /// when TM.SPACE ALTER adds a field.
        counters: Vec<String> = vec![],
        /// Flags, in order: existence spaces.
        flags: Vec<String> = vec![],
    }
}

section! {
    /// An action: a flag and a counter that move together, so that a repeated like counts once.
    /// Without any in the file there are those of the actions below whose flag and counter the
    /// spaces have.
    Action {
        /// Its name (`FEED.ACT like ...`).
        name: String = String::new(),
        /// The existence space that remembers which members did it.
        flag: String = String::new(),
        /// The counter that it moves, as "space.field".
        counter: String = String::new(),
    }
}

/// The sections that hold single values, as CONFIG knows them. (Fields of spaces are changed by
/// TM.SPACE ALTER; spaces, views and actions by the file and a start.)
pub(crate) const SECTIONS: &[(&str, &[Key])] = &[
    ("server", Server::KEYS),
    ("durability", Durability::KEYS),
    ("security", Security::KEYS),
    ("tls", Tls::KEYS),
    ("spill", Spill::KEYS),
    ("replication", Replication::KEYS),
];
