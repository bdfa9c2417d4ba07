//! State of the process that knows no data: settings, clients, memory limits, channels, monitors,
//! slow log, command statistics, TLS, shutdown.

pub(crate) mod atomic_file;
pub(crate) mod blocking;
pub(crate) mod client_memory;
pub(crate) mod clients;
pub(crate) mod command_stats;
pub(crate) mod foreign_settings;
pub(crate) mod glob;
pub(crate) mod inbox;
pub(crate) mod ingest;
pub(crate) mod monitors;
pub(crate) mod open_files;
pub(crate) mod pause;
pub(crate) mod process_memory;
pub(crate) mod pubsub;
pub(crate) mod service_manager;
pub(crate) mod settings;
pub(crate) mod shutdown;
pub(crate) mod slowlog;
pub(crate) mod tally;
pub mod tls;
pub(crate) mod tracking;
pub(crate) mod utc;
