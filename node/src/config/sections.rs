//! The sections: each setting with its name, unit, default and documentation. Those of spaces,
//! views and actions are [`dataset::options`].

use dataset::options::{Fsync, Key, Spill, Tokens};
use dataset::section;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The port that Tidemark listens on unless told otherwise.
pub const DEFAULT_PORT: u16 = 6399;

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
        /// Memory that the server may take, in bytes: tables of all spaces, the cache of cold rows,
        /// buffers and all else. The spaces share it by what they need: see docs/configuration.md.
        /// 0 means 70 % of what the machine has, or the container (cgroup).
        #[redis = "maxmemory"]
        #[live = true]
        memory_bytes: u64 = 0,
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
        /// Maximum number of arguments of a request that is executed in one go, such as MSET. A
        /// longer request is refused. Other clients of the same worker wait for it: at most 20 ms
        /// with the default. Requests for many ids (CNT.GET, CNT.MINCRBY, CNT.DEL, FEED.*, PH.*,
        /// DEL, EXISTS, MGET, SADD, ...) yield to others after 512 ids or 2 ms, and may have 2^20
        /// arguments; in a transaction or a cluster they are executed in one go.
        #[live = true]
        max_request_args: usize = 16_384,
        /// Most bytes of one client's requests that wait to be complete. A client that goes beyond
        /// is disconnected.
        #[redis = "client-query-buffer-limit"]
        #[live = true]
        max_query_buffer_bytes: usize = 64 << 20,
        /// Most bytes of pending replies of one client. Beyond it the server reads none of its
        /// requests and disconnects it if it takes no reply for 10 seconds. One reply of this size,
        /// or as many bytes of channel messages, disconnect it at once.
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
        /// which writers of the same ids wait for. With the default EXEC takes 40 ms at most.
        #[live = true]
        max_transaction_args: usize = 32_768,
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

/// The port of metrics and the dashboard unless told otherwise.
pub const DEFAULT_ADMIN_PORT: u16 = 6398;

section! {
    /// The admin port: metrics, health and the dashboard over HTTP, read-only (docs/admin.md).
    Admin {
        /// The address to listen on. Beyond the loopback interface what shows clients, slow
        /// commands or data needs a user of the ACL with +@admin (HTTP basic authentication, not
        /// encrypted); metrics and health are open to all that reach the port.
        bind: String = "127.0.0.1".to_owned(),
        /// The TCP port; 0 switches it off. If another process has it at the start, the server
        /// warns and runs without it: give each node of a machine its own.
        port: u16 = DEFAULT_ADMIN_PORT,
        /// Names of this server in URLs, in addition to its addresses, localhost and bind. A
        /// request whose Host header has another name is answered 421.
        #[live = true]
        hosts: Vec<String> = vec![],
    }
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
    /// Backups: BACKUP TO, and by a timetable. docs/operations.md says how to restore one.
    Backup {
        /// The folder for backups, and the only place where BACKUP writes; empty: there are none.
        /// It belongs to one server, and lies outside the data folder. On the same file system
        /// snapshots and cold files are linked and take no room of their own; a machine that is
        /// lost takes both, so copy it elsewhere, too.
        dir: PathBuf = PathBuf::new(),
        /// A backup is made every so many seconds (86400 is a day); 0 means never by itself.
        #[live = true]
        every_s: u64 = 0,
        /// So many of the backups that are made by themselves are kept, the newest ones. Those of
        /// BACKUP TO are kept until an operator removes them.
        #[live = true]
        keep: usize = 7,
        /// The log is kept beside the backups for so many seconds, so that a backup can be restored
        /// up to any time since; 0 means not at all. To have every time since the oldest backup,
        /// set every_s * (keep + 1).
        #[live = true]
        keep_log_s: u64 = 0,
        /// Most bytes per second that are copied; 0 means as fast as it goes. Links cost nothing.
        #[live = true]
        bytes_per_s: u64 = 64 << 20,
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

/// What becomes of writes once the lease of a master is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseMode {
    /// They are taken: leases mean nothing.
    Disabled,
    /// They are refused.
    BlockWrite,
}

/// Which node of a shard a page is read from, by a node of another shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadFrom {
    /// Its master.
    Master,
    /// The one that has answered fastest.
    Nearest,
    /// Its replicas by turns; its master if none of them answers.
    Replica,
}

section! {
    /// A node of a cluster: it serves the slots that its topology gives to its shard, and sends
    /// clients elsewhere for all others. docs/cluster.md has the whole.
    Cluster {
        /// Whether this is a node of a cluster. A controller tells it the topology, by Kvrocks'
        /// CLUSTERX commands. Keys need their id in braces then, post:{1001}, so the patterns of a
        /// new data folder are made so.
        #[redis = "cluster-enabled"]
        enabled: bool = false,
        /// What becomes of writes once the lease is over that a controller gives a master by
        /// CLUSTERX HEARTBEAT: "block-write" (they are refused: another node may be the master) or
        /// "disabled". Without any HEARTBEAT there is no lease.
        #[redis = "master-lease-mode"]
        #[live = true]
        master_lease_mode: LeaseMode = LeaseMode::BlockWrite,
        /// Sentinels that say which nodes are the masters of the shards of this file (`[[shard]]`),
        /// as host:port. Without any a controller does.
        sentinels: Vec<String> = Vec::new(),
        /// The user and the password that they ask for, if any.
        #[live = true]
        sentinel_user: String = String::new(),
        /// See sentinel_user.
        #[live = true]
        #[secret = true]
        sentinel_auth: String = String::new(),
        /// How long a node waits for another one's part of a page, in milliseconds, from 1 to
        /// 60,000. Later the ids of that shard have an error in their places.
        #[live = true]
        peer_timeout_ms: u64 = 500,
        /// A node that has not answered this one for so long, in milliseconds, at least 100, is
        /// shown as failed (`fail?` in CLUSTER NODES), and CLUSTER SLOTS leaves it out as a
        /// replica. Which node is the master of what is not decided by it.
        #[redis = "cluster-node-timeout"]
        #[live = true]
        node_timeout_ms: u64 = 5_000,
        /// Which node of another shard the rows of a page are read from: "master", "nearest" (the
        /// one that has answered fastest) or "replica" (its replicas by turns). Not "master": a
        /// replica also answers for its own shard.
        #[live = true]
        read_from: ReadFrom = ReadFrom::Master,
        /// A replica that has not had all of its master's changes for so many milliseconds answers
        /// no part of a page: its master is asked. An idle master says each second that there is
        /// nothing new.
        #[live = true]
        max_staleness_ms: u64 = 5_000,
    }
}

section! {
    /// A shard of a cluster whose masters Sentinel chooses: all nodes have the same list. This is a
    /// sample: there is none by default, and a controller says which shards there are.
    Shard {
        /// Its name, for people.
        name: String = String::new(),
        /// Its slots: "0-8191", or several ranges with blanks between.
        slots: String = String::new(),
        /// What Sentinel calls its master.
        master: String = String::new(),
    }
}

impl Cluster {
    /// Whether leases count.
    pub fn is_leased(&self) -> bool {
        self.enabled && self.master_lease_mode == LeaseMode::BlockWrite
    }
}

section! {
    /// Consumer groups of `tm:changes`. How far back its entries go is durability.keep_log_bytes.
    Changes {
        /// Most groups of all streams together.
        #[live = true]
        max_groups: usize = 64,
        /// Most consumers of a group.
        #[live = true]
        max_consumers: usize = 1_000,
        /// Most entries of a group that were delivered and not acknowledged. About 100 bytes each.
        #[live = true]
        max_pending: usize = 10_000,
    }
}

/// The sections that hold single values, as CONFIG knows them. (Spaces, views and actions are
/// changed by commands of their own.)
pub(crate) const SECTIONS: &[(&str, &[Key])] = &[
    ("server", Server::KEYS),
    ("admin", Admin::KEYS),
    ("durability", Durability::KEYS),
    ("backup", Backup::KEYS),
    ("security", Security::KEYS),
    ("tls", Tls::KEYS),
    ("spill", Spill::KEYS),
    ("tokens", Tokens::KEYS),
    ("changes", Changes::KEYS),
    ("replication", Replication::KEYS),
    ("cluster", Cluster::KEYS),
];
