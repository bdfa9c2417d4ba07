//! Process state that does not depend on the data: settings, clients, memory limits, channels,
//! monitors, slow log, command statistics, TLS and shutdown.

pub mod arrival;
pub mod atomic_file;
pub(crate) mod blocking;
pub mod blocking_task;
pub(crate) mod checked_file;
pub(crate) mod client_memory;
pub mod clients;
pub mod command_stats;
pub mod counters;
pub(crate) mod foreign_settings;
pub mod glob;
pub(crate) mod inbox;
pub mod ingest;
pub(crate) mod monitors;
pub mod open_files;
pub mod pause;
pub mod process_memory;
pub mod pubsub;
pub mod service_manager;
pub mod settings;
pub mod shutdown;
pub mod slowlog;
pub mod tls;
pub mod tracking;
pub mod utc;
