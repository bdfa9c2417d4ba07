//! The sections: each setting with its name, unit, default and documentation. Those of spaces,
//! views and actions are [`dataset::options`].

pub use client::DEFAULT_PORT;
use dataset::options::{Fsync, Key, Spill, Tokens};
use dataset::section;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Maximum number of connections that wait for accept(), as Redis's default.
pub const BACKLOG: i32 = 511;

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

section! {
    /// Network, memory and clients.
    Server {
        /// Addresses to listen on. The default serves only this machine. Name others for remote
        /// clients, and set security.password or users then.
        #[redis = "bind"]
        #[group = 1]
        bind: Vec<String> = vec!["127.0.0.1".to_owned()],
        /// TCP port; 0 lets the system choose. Change it if another server uses the port.
        #[redis = "port"]
        #[group = 1]
        port: u16 = DEFAULT_PORT,
        /// Format of the log on standard error: "text", or "json" for log collectors.
        #[group = 1]
        log_format: LogFormat = LogFormat::Text,
        /// Maximum memory of the process, such as "8gb"; 0 is 70 % of the machine or
        /// container. Lower it if other programs need memory. At the limit the server moves old
        /// tables to disk, or refuses new data with OOM errors.
        #[redis = "maxmemory"]
        #[live = true]
        #[group = 1]
        #[key = "memory"]
        #[with = "dataset::options::units::bytes"]
        memory_bytes: u64 = 0,
        /// Number of threads that serve connections; 0 is one per core. Lower it to leave cores
        /// to other programs.
        #[group = 2]
        workers: usize = 0,
        /// Maximum number of clients; more get an error. Raise it with the system's limit of
        /// open files (ulimit -n).
        #[redis = "maxclients"]
        #[live = true]
        #[group = 2]
        max_clients: usize = 10_000,
        /// Time after which an idle client is disconnected; 0 is never. Set it if clients leak
        /// connections. Subscribers and replicas are exempt.
        #[redis = "timeout"]
        #[live = true]
        #[group = 3]
        #[key = "idle_timeout"]
        #[with = "dataset::options::units::seconds"]
        idle_timeout_s: u64 = 0,
        /// Idle time before the system probes a connection; 0 is never.
        #[redis = "tcp-keepalive"]
        #[live = true]
        #[key = "tcp_keepalive"]
        #[with = "dataset::options::units::seconds"]
        tcp_keepalive_s: u64 = 300,
        /// Maximum size of one argument.
        #[redis = "proto-max-bulk-len"]
        #[live = true]
        #[key = "max_bulk"]
        #[with = "dataset::options::units::bytes"]
        max_bulk_bytes: usize = 512 << 20,
        /// Maximum number of arguments of a request that runs without yielding, such as MSET.
        /// Requests for many ids may have 2^20.
        #[live = true]
        max_request_args: usize = 16_384,
        /// Maximum size of a client's unfinished requests. The server disconnects a client that
        /// exceeds it.
        #[redis = "client-query-buffer-limit"]
        #[live = true]
        #[key = "max_query_buffer"]
        #[with = "dataset::options::units::bytes"]
        max_query_buffer_bytes: usize = 64 << 20,
        /// Maximum size of a client's pending replies. Beyond it the server stops reading its
        /// requests, and disconnects it if it takes no reply for 10 seconds.
        #[live = true]
        #[key = "max_output_buffer"]
        #[with = "dataset::options::units::bytes"]
        max_output_buffer_bytes: usize = 256 << 20,
        /// Maximum size of a client's pending messages (channels, MONITOR); beyond it the
        /// client is disconnected.
        #[live = true]
        #[key = "max_push_buffer"]
        #[with = "dataset::options::units::bytes"]
        max_push_buffer_bytes: usize = 32 << 20,
        /// Maximum memory of all clients together; 0 is no limit. Beyond it the largest ones
        /// are disconnected, except replicas and clients with CLIENT NO-EVICT ON.
        #[redis = "maxmemory-clients"]
        #[live = true]
        #[key = "max_clients_memory"]
        #[with = "dataset::options::units::bytes"]
        max_clients_memory_bytes: usize = 1 << 30,
        /// Maximum number of channels and patterns of one client.
        #[live = true]
        max_subscriptions: usize = 10_000,
        /// Maximum memory of a client's subscriptions: the names, and 352 bytes for each.
        #[live = true]
        #[key = "max_subscriptions_memory"]
        #[with = "dataset::options::units::bytes"]
        max_subscription_bytes: usize = 8 << 20,
        /// Maximum size of the commands that a client queues between MULTI and EXEC.
        #[live = true]
        #[key = "max_transaction"]
        #[with = "dataset::options::units::bytes"]
        max_transaction_bytes: usize = 16 << 20,
        /// Maximum number of arguments of the commands that a client queues between MULTI and
        /// EXEC.
        #[live = true]
        max_transaction_args: usize = 32_768,
        /// Maximum number of keys that one client watches; 192 bytes each.
        #[live = true]
        max_watched_keys: usize = 10_000,
        /// Maximum number of keys that CLIENT TRACKING remembers, some 200 bytes each; 0 is no
        /// limit. Beyond it the server invalidates random keys.
        #[redis = "tracking-table-max-keys"]
        #[live = true]
        max_tracked_keys: usize = 1_000_000,
        /// Duration from which SLOWLOG records a command; "off" records none. Lower it to find
        /// slow commands. Below 10ms the server times every command, which takes about 50 ns
        /// each.
        #[redis = "slowlog-log-slower-than"]
        #[live = true]
        #[group = 3]
        #[key = "slowlog_slower_than"]
        #[with = "dataset::options::units::micros"]
        slowlog_slower_than_us: i64 = 10_000,
        /// Maximum number of entries of SLOWLOG.
        #[redis = "slowlog-max-len"]
        #[live = true]
        slowlog_max_len: usize = 128,
        /// Duration from which LATENCY records a command; 0 records none.
        #[redis = "latency-monitor-threshold"]
        #[live = true]
        #[key = "latency_threshold"]
        #[with = "dataset::options::units::millis"]
        latency_threshold_ms: u64 = 0,
        /// How long a shutdown waits for replies to be sent.
        #[live = true]
        #[key = "shutdown_grace"]
        #[with = "dataset::options::units::millis"]
        shutdown_grace_ms: u64 = 1_000,
        /// How long a master's shutdown waits for its replicas to receive the last writes; 0
        /// does not wait. Raise it if replicas lag for longer, and give the service manager
        /// more time, too.
        #[redis = "shutdown-timeout"]
        #[live = true]
        #[group = 3]
        #[key = "shutdown_timeout"]
        #[with = "dataset::options::units::seconds"]
        shutdown_timeout_s: u64 = 10,
    }
}

/// The port of metrics and the dashboard unless told otherwise.
pub const DEFAULT_ADMIN_PORT: u16 = 6398;

section! {
    /// Metrics, health and the dashboard over HTTP, read-only: docs/admin.md.
    Admin {
        /// Address to listen on. Change it to let another machine collect metrics. On an address
        /// other than loopback the dashboard needs a user with +@admin; metrics and health do
        /// not. HTTP is not encrypted.
        #[group = 2]
        bind: String = "127.0.0.1".to_owned(),
        /// HTTP port of metrics, health and dashboard; 0 switches them off. Change it for a
        /// second server on the same machine.
        #[group = 1]
        port: u16 = DEFAULT_ADMIN_PORT,
        /// Further host names that URLs may use for this server; others get status 421. Set
        /// them if a proxy or DNS name leads to the port.
        #[live = true]
        #[group = 3]
        hosts: Vec<String> = vec![],
    }
}

section! {
    /// The log and its snapshots.
    Durability {
        /// Folder for the log, snapshots and files of old data. Name a folder on a durable
        /// disk. Each server needs its own.
        #[redis = "dir"]
        #[group = 1]
        dir: PathBuf = PathBuf::from("data"),
        /// When a write is on disk: "always" is before its reply, "everysec" at most a second
        /// later, "no" when the system decides. Take "always" if a crash must not lose an
        /// acknowledged write.
        #[redis = "appendfsync"]
        #[live = true]
        #[group = 1]
        fsync: Fsync = Fsync::Everysec,
        /// Size of the log since the last snapshot at which the server writes the next one; 0
        /// is no limit. The server starts one at this size or after snapshot_every, whichever is
        /// first. Lower it for faster starts, raise it to write less.
        #[live = true]
        #[group = 3]
        #[key = "snapshot_log"]
        #[with = "dataset::options::units::bytes"]
        snapshot_log_bytes: u64 = 256 << 20,
        /// Time since the last snapshot after which the server writes the next one if data
        /// changed; 0 is never. snapshot_log may start it earlier. Lower it for faster starts.
        #[live = true]
        #[group = 2]
        #[key = "snapshot_every"]
        #[with = "dataset::options::units::seconds"]
        snapshot_every_s: u64 = 3_600,
        /// Size of the old log that a node keeps for replicas that reconnect. A replica that
        /// missed more copies all data instead. Set it to the size of all writes during a
        /// replica's longest outage, on each node: any may become the master. If the disk is
        /// full, the server deletes this log before it refuses writes.
        #[group = 2]
        #[key = "keep_log"]
        #[with = "dataset::options::units::bytes"]
        keep_log_bytes: u64 = 2 << 30,
        /// Whether PING fails while the log cannot be written, so that Sentinel promotes a replica.
        #[live = true]
        ping_fails_with_log: bool = true,
    }
}

section! {
    /// Backups, by the command BACKUP TO or on a schedule. See docs/operations.md for
    /// restoring a backup.
    Backup {
        /// Folder for backups, outside the data folder; empty switches them off. A backup on the
        /// disk of the data folder takes little space, but a failed disk destroys both. Copy
        /// such backups to another machine.
        #[group = 1]
        dir: PathBuf = PathBuf::new(),
        /// Time between automatic backups, such as "1d"; 0 makes none. Needs backup.dir.
        #[live = true]
        #[group = 1]
        #[key = "every"]
        #[with = "dataset::options::units::seconds"]
        every_s: u64 = 0,
        /// Number of automatic backups to keep; the server deletes older ones. Raise it to go
        /// back further. The server never deletes backups of BACKUP TO.
        #[live = true]
        #[group = 2]
        keep: usize = 7,
        /// Time for which backup.dir also keeps the log, to restore any moment since the
        /// oldest backup in that time; 0 keeps none. Needs backup.dir. To cover all backups,
        /// multiply backup.every by one more than backup.keep: "8d" for "1d" and 7.
        #[live = true]
        #[group = 2]
        #[key = "keep_log"]
        #[with = "dataset::options::units::seconds"]
        keep_log_s: u64 = 0,
        /// Maximum bytes per second that a backup copies; 0 is no limit.
        #[live = true]
        #[key = "rate"]
        #[with = "dataset::options::units::bytes"]
        bytes_per_s: u64 = 64 << 20,
    }
}

section! {
    /// Users and their permissions: docs/security.md.
    Security {
        /// Password of the user "default"; empty needs none. Set it before you listen on other
        /// addresses. A line for "default" in security.users or acl_file replaces this password,
        /// and so does ACL SETUSER.
        #[redis = "requirepass"]
        #[live = true]
        #[secret = true]
        #[group = 1]
        password: String = String::new(),
        /// Whether the server refuses connections from other machines while the user "default"
        /// needs no password. Other users do not count: set a password or switch "default" off.
        /// Set false only in a trusted network.
        #[redis = "protected-mode"]
        #[live = true]
        #[group = 3]
        protected_mode: bool = true,
        /// File of users, one "user NAME RULES" per line, for ACL LOAD and ACL SAVE; empty uses
        /// security.users. Set it to share one file among servers.
        #[redis = "aclfile"]
        #[group = 2]
        acl_file: String = String::new(),
        /// Users, each as "NAME RULES" with the rules of ACL SETUSER, such as "app on >secret ~*
        /// +@read +@write". Add one per application to limit its commands and keys.
        #[group = 1]
        users: Vec<String> = vec![],
        /// Maximum number of users.
        #[live = true]
        max_users: usize = 10_000,
        /// Maximum number of entries of ACL LOG.
        #[redis = "acllog-max-len"]
        #[live = true]
        acl_log_entries: usize = 128,
        /// Commands that no user may call: names ("shutdown", "config|set") or categories
        /// ("@dangerous"). Set it to switch off commands for good.
        #[group = 2]
        deny_commands: Vec<String> = vec![],
        /// How long a client may take for the TLS handshake and its login; 0 is no limit.
        #[live = true]
        #[key = "handshake_timeout"]
        #[with = "dataset::options::units::seconds"]
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
    /// Encryption. CONFIG SET of a file makes the server read it again.
    Tls {
        /// Port for TLS at the addresses of server.bind; 0 is none. Set it if the network is
        /// not trusted.
        #[redis = "tls-port"]
        #[group = 2]
        port: u16 = 0,
        /// PEM file with the server's certificate and its chain. Required with tls.port. The
        /// server reads it at startup, on SIGHUP, and when CONFIG SET changes a tls setting.
        #[redis = "tls-cert-file"]
        #[live = true]
        #[group = 2]
        cert_file: String = String::new(),
        /// PEM file with the private key of the certificate, unencrypted. Required with
        /// tls.port. The server reads it again together with cert_file.
        #[redis = "tls-key-file"]
        #[live = true]
        #[group = 2]
        key_file: String = String::new(),
        /// PEM file with trusted authorities. They sign the certificates of clients, and of
        /// the master with replication.tls. Required unless auth_clients is "no" and
        /// replication.tls is false.
        #[redis = "tls-ca-cert-file"]
        #[live = true]
        #[group = 2]
        ca_file: String = String::new(),
        /// Whether clients must present a certificate: "yes", "no", or "optional", which
        /// verifies a certificate only if the client presents one. Take "no" if passwords
        /// suffice.
        #[redis = "tls-auth-clients"]
        #[live = true]
        #[group = 2]
        auth_clients: AuthClients = AuthClients::Yes,
    }
}

section! {
    /// Replicas and masters: docs/operations.md.
    Replication {
        /// "HOST PORT" of the master, for a replica with a new data folder; empty is a master.
        /// Later the command REPLICAOF changes the role, and the folder remembers it.
        #[group = 1]
        replicaof: String = String::new(),
        /// Password for the master. Set it if the master has one, and on the master itself for
        /// the time after a failover.
        #[redis = "masterauth"]
        #[live = true]
        #[secret = true]
        #[group = 2]
        master_auth: String = String::new(),
        /// User for the master; empty is the user "default". Set it if the master has a user
        /// for replicas.
        #[redis = "masteruser"]
        #[live = true]
        #[group = 2]
        master_user: String = String::new(),
        /// Whether to connect to the master by TLS, at its tls.port. An authority in
        /// tls.ca_file must have signed the master's certificate.
        #[redis = "tls-replication"]
        #[live = true]
        #[group = 2]
        tls: bool = false,
        /// Address at which others reach this node. Set it behind NAT or in a container; empty
        /// is the address that the master sees.
        #[redis = "replica-announce-ip"]
        #[redis = "slave-announce-ip"]
        #[live = true]
        #[group = 2]
        replica_announce_ip: String = String::new(),
        /// Port at which others reach this node; 0 is server.port. Set it with
        /// replica_announce_ip.
        #[redis = "replica-announce-port"]
        #[redis = "slave-announce-port"]
        #[live = true]
        #[group = 2]
        replica_announce_port: u16 = 0,
        /// Priority for Sentinel, which promotes the replica with the lowest number; 0 is
        /// never. Set it to prefer or spare a machine.
        #[redis = "replica-priority"]
        #[redis = "slave-priority"]
        #[live = true]
        #[group = 2]
        replica_priority: u32 = 100,
        /// Minimum number of connected replicas; with fewer, writes get the error NOREPLICAS.
        /// A replica counts while its last message is at most 10 seconds old
        /// (min_replicas_max_lag). This does not confirm that a replica has a write: WAIT does.
        /// 0 needs none.
        #[redis = "min-replicas-to-write"]
        #[redis = "min-slaves-to-write"]
        #[live = true]
        #[group = 2]
        min_replicas_to_write: usize = 0,
        /// Maximum time since a replica's last message for min_replicas_to_write.
        #[redis = "min-replicas-max-lag"]
        #[redis = "min-slaves-max-lag"]
        #[live = true]
        #[key = "min_replicas_max_lag"]
        #[with = "dataset::options::units::seconds"]
        min_replicas_max_lag_s: u64 = 10,
        /// Silence after which a master or replica counts as lost.
        #[redis = "repl-timeout"]
        #[live = true]
        #[key = "timeout"]
        #[with = "dataset::options::units::seconds"]
        timeout_s: u64 = 60,
        /// Maximum number of replicas.
        #[live = true]
        max_replicas: usize = 32,
        /// Whether a restarted master refuses writes (READONLY) until its role is confirmed.
        /// This applies if it had replicas at any time before. Sentinel, REPLICAOF NO ONE or,
        /// without Sentinel, a replica that connects confirms it. Set false only if no other
        /// node can become the master.
        #[live = true]
        #[group = 3]
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
    /// A cluster of several shards: docs/cluster.md.
    Cluster {
        /// Whether this node is part of a cluster. In a new data folder all key patterns then
        /// have the id in braces, post:{17}, so that all keys of an id are on one node. Set it
        /// when one machine is too small.
        #[redis = "cluster-enabled"]
        #[group = 2]
        enabled: bool = false,
        /// What a master does whose lease from CLUSTERX HEARTBEAT has expired: "block-write",
        /// or "disabled" for no leases.
        #[redis = "master-lease-mode"]
        #[live = true]
        master_lease_mode: LeaseMode = LeaseMode::BlockWrite,
        /// Sentinels that choose the masters of the shards below ([[shard]]), each as
        /// "host:port". Empty if a controller sends the topology (CLUSTERX).
        #[group = 2]
        sentinels: Vec<String> = Vec::new(),
        /// User for the Sentinels. Set it if they have users.
        #[live = true]
        #[group = 2]
        sentinel_user: String = String::new(),
        /// Password for the Sentinels. Set it if they have one.
        #[live = true]
        #[secret = true]
        #[group = 2]
        sentinel_auth: String = String::new(),
        /// How long a page waits for rows of another shard, from 1ms to 60s; missing ids then
        /// have an error in their place. Lower it if a late page is worse than a partial one.
        #[live = true]
        #[group = 3]
        #[key = "peer_timeout"]
        #[with = "dataset::options::units::millis"]
        peer_timeout_ms: u64 = 500,
        /// Silence after which CLUSTER NODES shows a node as failed, at least 100ms.
        #[redis = "cluster-node-timeout"]
        #[live = true]
        #[key = "node_timeout"]
        #[with = "dataset::options::units::millis"]
        node_timeout_ms: u64 = 5_000,
        /// Which node of another shard returns its rows of a page: "master", "replica" (each
        /// in turn), or "nearest", the master or replica with the fastest replies. If no replica
        /// is available, the master replies. Take "replica" or "nearest" to spread reads, if
        /// rows may be some seconds old.
        #[live = true]
        #[group = 2]
        read_from: ReadFrom = ReadFrom::Master,
        /// Maximum lag of a replica that returns rows of a page.
        #[live = true]
        #[key = "max_staleness"]
        #[with = "dataset::options::units::millis"]
        max_staleness_ms: u64 = 5_000,
    }
}

section! {
    /// A shard whose master Sentinel chooses. All nodes list all shards. There is none by
    /// default.
    Shard {
        /// Name, for people.
        #[group = 2]
        name: String = String::new(),
        /// Slots, as ranges separated by spaces. All shards together need 0-16383.
        #[group = 2]
        slots: String = String::new(),
        /// Name of the shard's master in Sentinel.
        #[group = 2]
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
    /// Consumer groups of the stream tm:changes.
    Changes {
        /// Maximum number of groups of all streams.
        #[live = true]
        max_groups: usize = 64,
        /// Maximum number of consumers of a group.
        #[live = true]
        max_consumers: usize = 1_000,
        /// Maximum number of unacknowledged entries of a group, about 100 bytes each.
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
