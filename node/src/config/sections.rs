//! Sections of the configuration: each setting with its name, unit, default and documentation. The
//! settings of spaces, views and actions are in [`dataset::options`].

pub use client::DEFAULT_PORT;
use dataset::options::{Fsync, Key, Spill, Tokens};
use dataset::section;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Maximum number of connections that wait for accept(), as Redis's default.
pub const BACKLOG: i32 = 511;

/// Format of the server's log messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

section! {
    /// Settings of the network, memory and clients.
    Server {
        /// Addresses to listen on. By default only clients on this machine can connect. For remote
        /// clients, add addresses and set security.password or security.users.
        #[redis = "bind"]
        #[group = 1]
        bind: Vec<String> = vec!["127.0.0.1".to_owned()],
        /// TCP port; 0 lets the system choose a port. Change it if another server uses the port.
        #[redis = "port"]
        #[group = 1]
        port: u16 = DEFAULT_PORT,
        /// Format of the log on standard error: "text", or "json" for log collectors.
        #[group = 1]
        log_format: LogFormat = LogFormat::Text,
        /// Maximum memory of the process, such as "8gb"; 0 means 70 % of the memory of the machine
        /// or container. Lower it if other programs need memory. At the limit the server moves old
        /// tables to disk, or rejects new data with OOM errors.
        #[redis = "maxmemory"]
        #[live = true]
        #[group = 1]
        #[key = "memory"]
        #[with = "dataset::options::units::bytes"]
        memory_bytes: u64 = 0,
        /// Number of threads that serve connections; 0 means one per core. Lower it to leave cores
        /// to other programs.
        #[group = 2]
        workers: usize = 0,
        /// Maximum number of clients; further clients receive an error. Raise it together with the
        /// system's limit on open files (ulimit -n).
        #[redis = "maxclients"]
        #[live = true]
        #[group = 2]
        max_clients: usize = 10_000,
        /// Close a connection after its client is idle for this long; 0 disables the timeout. Set
        /// it if clients leak connections. Subscribers and replicas are exempt.
        #[redis = "timeout"]
        #[live = true]
        #[group = 3]
        #[key = "idle_timeout"]
        #[with = "dataset::options::units::seconds"]
        idle_timeout_s: u64 = 0,
        /// Idle time after which the system sends TCP keepalive probes; 0 disables them.
        #[redis = "tcp-keepalive"]
        #[live = true]
        #[key = "tcp_keepalive"]
        #[with = "dataset::options::units::seconds"]
        tcp_keepalive_s: u64 = 300,
        /// Maximum size of an argument.
        #[redis = "proto-max-bulk-len"]
        #[live = true]
        #[key = "max_bulk"]
        #[with = "dataset::options::units::bytes"]
        max_bulk_bytes: usize = 512 << 20,
        /// Maximum number of arguments of a request that runs without yielding, such as MSET.
        /// Requests for many ids may have 2^20 arguments.
        #[live = true]
        max_request_args: usize = 16_384,
        /// Maximum size of a client's unfinished requests. The server disconnects a client that
        /// exceeds it.
        #[redis = "client-query-buffer-limit"]
        #[live = true]
        #[key = "max_query_buffer"]
        #[with = "dataset::options::units::bytes"]
        max_query_buffer_bytes: usize = 64 << 20,
        /// Maximum size of a client's pending replies. At the limit the server stops reading the
        /// client's requests, and disconnects a client that reads no reply for 10 seconds.
        #[live = true]
        #[key = "max_output_buffer"]
        #[with = "dataset::options::units::bytes"]
        max_output_buffer_bytes: usize = 256 << 20,
        /// Maximum size of a client's pending messages (channels, MONITOR). The server disconnects
        /// a client that exceeds it.
        #[live = true]
        #[key = "max_push_buffer"]
        #[with = "dataset::options::units::bytes"]
        max_push_buffer_bytes: usize = 32 << 20,
        /// Maximum total memory of all clients; 0 means no limit. Above it the server disconnects
        /// the largest clients, except replicas and clients with CLIENT NO-EVICT ON.
        #[redis = "maxmemory-clients"]
        #[live = true]
        #[key = "max_clients_memory"]
        #[with = "dataset::options::units::bytes"]
        max_clients_memory_bytes: usize = 1 << 30,
        /// Maximum number of channels and patterns that a client subscribes to.
        #[live = true]
        max_subscriptions: usize = 10_000,
        /// Maximum memory of a client's subscriptions: each takes its name and 352 bytes.
        #[live = true]
        #[key = "max_subscriptions_memory"]
        #[with = "dataset::options::units::bytes"]
        max_subscription_bytes: usize = 8 << 20,
        /// Maximum total size of the commands that a client queues between MULTI and EXEC.
        #[live = true]
        #[key = "max_transaction"]
        #[with = "dataset::options::units::bytes"]
        max_transaction_bytes: usize = 16 << 20,
        /// Maximum total number of arguments of the commands that a client queues between MULTI and
        /// EXEC.
        #[live = true]
        max_transaction_args: usize = 32_768,
        /// Maximum number of keys that a client watches; each takes 192 bytes.
        #[live = true]
        max_watched_keys: usize = 10_000,
        /// Maximum number of keys that CLIENT TRACKING remembers, about 200 bytes each; 0 means no
        /// limit. Above it the server evicts and invalidates random keys.
        #[redis = "tracking-table-max-keys"]
        #[live = true]
        max_tracked_keys: usize = 1_000_000,
        /// SLOWLOG records commands that take at least this long; "off" disables it. Lower it to
        /// find slow commands. Below 10ms the server times every command, which costs about 50 ns
        /// per command.
        #[redis = "slowlog-log-slower-than"]
        #[live = true]
        #[group = 3]
        #[key = "slowlog_slower_than"]
        #[with = "dataset::options::units::micros"]
        slowlog_slower_than_us: i64 = 10_000,
        /// Maximum number of entries in the slow log.
        #[redis = "slowlog-max-len"]
        #[live = true]
        slowlog_max_len: usize = 128,
        /// LATENCY records commands that take at least this long; 0 disables it.
        #[redis = "latency-monitor-threshold"]
        #[live = true]
        #[key = "latency_threshold"]
        #[with = "dataset::options::units::millis"]
        latency_threshold_ms: u64 = 0,
        /// Maximum time that a shutdown waits for all replies to be sent.
        #[live = true]
        #[key = "shutdown_grace"]
        #[with = "dataset::options::units::millis"]
        shutdown_grace_ms: u64 = 1_000,
        /// Time between automatic audits, such as "1d"; 0 disables them. An audit compares counters
        /// with the number of members in the ledger, and changes nothing (docs/audit.md).
        #[live = true]
        #[group = 2]
        #[key = "audit_every"]
        #[with = "dataset::options::units::seconds"]
        audit_every_s: u64 = 0,
        /// Maximum time that a master's shutdown waits for its replicas to receive the last writes;
        /// 0 disables the wait. Raise it if replicas lag more, and also raise the stop timeout of
        /// the service manager.
        #[redis = "shutdown-timeout"]
        #[live = true]
        #[group = 3]
        #[key = "shutdown_timeout"]
        #[with = "dataset::options::units::seconds"]
        shutdown_timeout_s: u64 = 10,
    }
}

/// Default port of metrics and the dashboard.
pub const DEFAULT_ADMIN_PORT: u16 = 6398;

section! {
    /// Metrics, health and the dashboard over HTTP, read-only: docs/admin.md.
    Admin {
        /// Address to listen on. Change it to let another machine collect metrics. On an address
        /// other than loopback the dashboard needs a user with +@admin; metrics and health do
        /// not. HTTP is not encrypted.
        #[group = 2]
        bind: String = "127.0.0.1".to_owned(),
        /// HTTP port for metrics, health checks and the dashboard; 0 disables them. Change it for a
        /// second server on the same machine.
        #[group = 1]
        port: u16 = DEFAULT_ADMIN_PORT,
        /// Additional host names that clients may use in URLs of this server; requests with other
        /// names fail with status 421. Set them if clients use a proxy or a DNS name.
        #[live = true]
        #[group = 3]
        hosts: Vec<String> = vec![],
    }
}

section! {
    /// The log and its snapshots.
    Durability {
        /// Data folder, for the log, snapshots and files of old data. Choose a folder on a durable
        /// disk. Each server needs its own folder.
        #[redis = "dir"]
        #[group = 1]
        dir: PathBuf = PathBuf::from("data"),
        /// When the log is synced to disk: "always" before the reply to a write, "everysec" within
        /// a second, "no" when the operating system decides. Use "always" if a crash must not lose
        /// an acknowledged write.
        #[redis = "appendfsync"]
        #[live = true]
        #[group = 1]
        fsync: Fsync = Fsync::Everysec,
        /// The server writes a snapshot when the log since the last snapshot has this size; 0 means
        /// no limit. snapshot_every may start a snapshot earlier. Lower it for faster restarts,
        /// raise it to write less.
        #[live = true]
        #[group = 3]
        #[key = "snapshot_log"]
        #[with = "dataset::options::units::bytes"]
        snapshot_log_bytes: u64 = 256 << 20,
        /// Time between snapshots if data has changed; 0 disables these snapshots. snapshot_log may
        /// start a snapshot earlier. Lower it for faster restarts.
        #[live = true]
        #[group = 2]
        #[key = "snapshot_every"]
        #[with = "dataset::options::units::seconds"]
        snapshot_every_s: u64 = 3_600,
        /// Size of the old log that a node keeps for replicas that reconnect. A replica that is
        /// further behind copies all data instead. Set it on every node, as any node may become the
        /// master. Choose the amount written during the longest expected outage of a replica. If
        /// the disk is full, the server deletes this log before it rejects writes.
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
        /// Folder for backups, outside the data folder; empty disables backups. A backup on the
        /// disk of the data folder takes little extra space, but is lost with that disk. Copy such
        /// backups to another machine.
        #[group = 1]
        dir: PathBuf = PathBuf::new(),
        /// Time between automatic backups, such as "1d"; 0 disables them. Needs backup.dir.
        #[live = true]
        #[group = 1]
        #[key = "every"]
        #[with = "dataset::options::units::seconds"]
        every_s: u64 = 0,
        /// Number of automatic backups to keep; the server deletes older automatic backups. Raise
        /// it to keep backups for longer. Backups made by BACKUP TO are never deleted.
        #[live = true]
        #[group = 2]
        keep: usize = 7,
        /// Time for which backup.dir also keeps the log, to restore the data of any moment after
        /// the oldest backup in this period; 0 keeps no log. Needs backup.dir. To cover all
        /// backups, set it to backup.every multiplied by backup.keep + 1: "8d" for "1d" and 7.
        #[live = true]
        #[group = 2]
        #[key = "keep_log"]
        #[with = "dataset::options::units::seconds"]
        keep_log_s: u64 = 0,
        /// Maximum bytes per second that a backup copies; 0 means no limit.
        #[live = true]
        #[key = "rate"]
        #[with = "dataset::options::units::bytes"]
        bytes_per_s: u64 = 64 << 20,
    }
}

section! {
    /// Users and their permissions: docs/security.md.
    Security {
        /// Password of the user "default"; if empty, no password is required. Set it before you add
        /// addresses to server.bind. ACL SETUSER, or an entry for "default" in security.users or
        /// acl_file, overrides this password.
        #[redis = "requirepass"]
        #[live = true]
        #[secret = true]
        #[group = 1]
        password: String = String::new(),
        /// Whether the server refuses connections from other machines while the user "default"
        /// needs no password. To allow such connections, set a password or disable the user
        /// "default". Set false only in a trusted network.
        #[redis = "protected-mode"]
        #[live = true]
        #[group = 3]
        protected_mode: bool = true,
        /// File with users, one "user NAME RULES" per line, for ACL LOAD and ACL SAVE; if empty,
        /// the users are in security.users. Set it to share users among servers.
        #[redis = "aclfile"]
        #[group = 2]
        acl_file: String = String::new(),
        /// Users, each as "NAME RULES" with the rules of ACL SETUSER, such as "app on >secret ~*
        /// +@read +@write". Add one user per application to limit its commands and keys.
        #[group = 1]
        users: Vec<String> = vec![],
        /// Maximum number of users.
        #[live = true]
        max_users: usize = 10_000,
        /// Maximum number of entries in ACL LOG.
        #[redis = "acllog-max-len"]
        #[live = true]
        acl_log_entries: usize = 128,
        /// Commands that no user may call: names ("shutdown", "config|set") or categories
        /// ("@dangerous"). Set it to disable commands permanently.
        #[group = 2]
        deny_commands: Vec<String> = vec![],
        /// Maximum time for a client's TLS handshake and login; 0 means no limit.
        #[live = true]
        #[key = "handshake_timeout"]
        #[with = "dataset::options::units::seconds"]
        handshake_timeout_s: u64 = 10,
    }
}

/// Whether clients of the TLS port must present a certificate signed by an authority in `ca_file`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthClients {
    /// Clients need no certificate.
    No,
    /// Clients must present a valid certificate.
    Yes,
    /// Clients need no certificate, but a certificate that they present must be valid.
    Optional,
}

section! {
    /// TLS settings. The server reloads the files when CONFIG SET changes one of the settings.
    Tls {
        /// TLS port on the addresses of server.bind; 0 disables TLS for clients. Set it if the
        /// network is not trusted.
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
        /// PEM file with the certificates of trusted authorities, which sign the certificates of
        /// clients and, with replication.tls, of the master. Required unless auth_clients is "no"
        /// and replication.tls is false.
        #[redis = "tls-ca-cert-file"]
        #[live = true]
        #[group = 2]
        ca_file: String = String::new(),
        /// Whether clients must present a certificate: "yes", "no", or "optional", which verifies a
        /// certificate only if the client presents one. Use "no" if passwords suffice.
        #[redis = "tls-auth-clients"]
        #[live = true]
        #[group = 2]
        auth_clients: AuthClients = AuthClients::Yes,
    }
}

section! {
    /// Replicas and masters: docs/operations.md.
    Replication {
        /// "HOST PORT" of the master, for a replica with a new data folder; empty for a master.
        /// Later the command REPLICAOF changes the role, which the data folder stores.
        #[group = 1]
        replicaof: String = String::new(),
        /// Password of the master. Set it if the master requires a password. Also set it on the
        /// master, which may become a replica after a failover.
        #[redis = "masterauth"]
        #[live = true]
        #[secret = true]
        #[group = 2]
        master_auth: String = String::new(),
        /// User name for the master; empty means the user "default". Set it if the master has a
        /// user for replicas.
        #[redis = "masteruser"]
        #[live = true]
        #[group = 2]
        master_user: String = String::new(),
        /// Whether to connect to the master over TLS, at its tls.port. The master's certificate
        /// must be signed by an authority in tls.ca_file.
        #[redis = "tls-replication"]
        #[live = true]
        #[group = 2]
        tls: bool = false,
        /// Address at which other nodes reach this node. Set it behind NAT or in a container; if
        /// empty, the master uses the connection's address.
        #[redis = "replica-announce-ip"]
        #[redis = "slave-announce-ip"]
        #[live = true]
        #[group = 2]
        replica_announce_ip: String = String::new(),
        /// Port at which other nodes reach this node; 0 means server.port. Set it with
        /// replica_announce_ip.
        #[redis = "replica-announce-port"]
        #[redis = "slave-announce-port"]
        #[live = true]
        #[group = 2]
        replica_announce_port: u16 = 0,
        /// Priority for Sentinel, which promotes the replica with the lowest number; a replica with
        /// 0 is never promoted. Change it to prefer or avoid a machine.
        #[redis = "replica-priority"]
        #[redis = "slave-priority"]
        #[live = true]
        #[group = 2]
        replica_priority: u32 = 100,
        /// Minimum number of connected replicas; with fewer replicas, writes fail with NOREPLICAS.
        /// 0 disables this check. A replica counts while its last message is at most 10 seconds old
        /// (min_replicas_max_lag). Only WAIT confirms that a replica has received a write.
        #[redis = "min-replicas-to-write"]
        #[redis = "min-slaves-to-write"]
        #[live = true]
        #[group = 2]
        min_replicas_to_write: usize = 0,
        /// Time since its last message after which min_replicas_to_write ignores a replica.
        #[redis = "min-replicas-max-lag"]
        #[redis = "min-slaves-max-lag"]
        #[live = true]
        #[key = "min_replicas_max_lag"]
        #[with = "dataset::options::units::seconds"]
        min_replicas_max_lag_s: u64 = 10,
        /// Time without a message after which a master or replica is considered lost.
        #[redis = "repl-timeout"]
        #[live = true]
        #[key = "timeout"]
        #[with = "dataset::options::units::seconds"]
        timeout_s: u64 = 60,
        /// Maximum number of replicas.
        #[live = true]
        max_replicas: usize = 32,
        /// Whether a restarted master rejects writes (READONLY) until its role is confirmed by
        /// Sentinel, by REPLICAOF NO ONE or, without Sentinel, by a replica that connects. Applies
        /// only to a master that has ever had replicas. Set false only if no other node can become
        /// the master.
        #[live = true]
        #[group = 3]
        fence: bool = true,
    }
}

/// Handling of writes after the lease of a master has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseMode {
    /// The master accepts writes regardless of leases.
    Disabled,
    /// The master refuses writes.
    BlockWrite,
}

/// Node of another shard from which a node reads rows of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadFrom {
    /// The master of the shard.
    Master,
    /// The master or replica that replies fastest.
    Nearest,
    /// The replicas of the shard in turn, or its master if no replica is available.
    Replica,
}

section! {
    /// A cluster of several shards: docs/cluster.md.
    Cluster {
        /// Whether this node is part of a cluster. In a new data folder, all key patterns then
        /// contain the id in braces (post:{17}), so that all keys of an id are on one node. Set it
        /// if one machine is too small.
        #[redis = "cluster-enabled"]
        #[group = 2]
        enabled: bool = false,
        /// Behavior of a master whose lease from CLUSTERX HEARTBEAT has expired: "block-write"
        /// refuses writes, "disabled" ignores leases.
        #[redis = "master-lease-mode"]
        #[live = true]
        master_lease_mode: LeaseMode = LeaseMode::BlockWrite,
        /// Sentinels that select the masters of the shards ([[shard]]), each as "host:port". Leave
        /// it empty if a controller sends the topology (CLUSTERX).
        #[group = 2]
        sentinels: Vec<String> = Vec::new(),
        /// User name for the Sentinels. Set it if the Sentinels have users.
        #[live = true]
        #[group = 2]
        sentinel_user: String = String::new(),
        /// Password for the Sentinels. Set it if the Sentinels require one.
        #[live = true]
        #[secret = true]
        #[group = 2]
        sentinel_auth: String = String::new(),
        /// Timeout for rows from another shard, 1ms to 60s. After it, their ids return errors.
        /// Lower it if a late page is worse than a partial page.
        #[live = true]
        #[key = "peer_timeout"]
        #[with = "dataset::options::units::millis"]
        peer_timeout_ms: u64 = 500,
        /// Time without a reply after which CLUSTER NODES shows a node as failed; at least 100ms.
        #[redis = "cluster-node-timeout"]
        #[live = true]
        #[key = "node_timeout"]
        #[with = "dataset::options::units::millis"]
        node_timeout_ms: u64 = 5_000,
        /// Node of another shard that serves the shard's rows of a page: "master", "replica" (round
        /// robin; the master if no replica is available), or "nearest" (the master or replica that
        /// replies fastest). Use "replica" or "nearest" to spread reads if rows may be a few
        /// seconds old.
        #[live = true]
        #[group = 2]
        read_from: ReadFrom = ReadFrom::Master,
        /// Maximum lag of a replica that serves rows of a page.
        #[live = true]
        #[key = "max_staleness"]
        #[with = "dataset::options::units::millis"]
        max_staleness_ms: u64 = 5_000,
    }
}

section! {
    /// A shard whose master is selected by Sentinel. Each node's configuration must list all
    /// shards. By default there are none.
    Shard {
        /// Name of the shard, for operators.
        #[group = 2]
        name: String = String::new(),
        /// Slot ranges, separated by spaces. All shards together must cover 0-16383.
        #[group = 2]
        slots: String = String::new(),
        /// Name of the shard's master in Sentinel.
        #[group = 2]
        master: String = String::new(),
    }
}

impl Cluster {
    /// Whether writes require a lease.
    pub fn is_leased(&self) -> bool {
        self.enabled && self.master_lease_mode == LeaseMode::BlockWrite
    }
}

section! {
    /// Consumer groups of the stream tm:changes.
    Changes {
        /// Maximum number of consumer groups of all streams together.
        #[live = true]
        max_groups: usize = 64,
        /// Maximum number of consumers in a group.
        #[live = true]
        max_consumers: usize = 1_000,
        /// Maximum number of unacknowledged entries of a group, about 100 bytes each.
        #[live = true]
        max_pending: usize = 10_000,
    }
}

/// Sections with single values, for CONFIG GET and CONFIG SET. Spaces, views and actions have
/// commands of their own.
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
