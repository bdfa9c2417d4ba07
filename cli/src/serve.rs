//! `tidemark serve`: reads the configuration, starts the server, and waits until it stops.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use node::config::{Config, Fsync, LogFormat};
use node::runtime::shutdown::Stop;
use std::path::PathBuf;
use tidemark_server::{Sockets, run as run_server};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

/// Runs the server until SIGINT, SIGTERM, SIGQUIT or SHUTDOWN.
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark serve                              port 6399, data in ./data
  tidemark serve --config tidemark.toml --port 7000
  tidemark serve --dir /var/lib/tidemark --fsync always

Then, from another terminal:
  redis-cli -p 6399 FEED.ACT like 7 1001      user 7 likes post 1001
  redis-cli -p 6399 FEED.GET home 7 1001 1002
                                       a page of two posts for user 7:
                                       like repost comment read, liked read
  redis-cli -p 6399 HGETALL post:1001         the same counters, as a Redis hash

Signals: SIGTERM, SIGINT and SIGQUIT stop the server without losing data. SIGHUP reloads the TLS
certificates. SIGUSR1 and SIGUSR2 have no effect. The log goes to standard error, so there is no
log file to reopen.

`tidemark config --all` prints all settings. Options on the command line override the file.")]
pub(super) struct ServeArgs {
    /// Configuration file (TOML). Default: the built-in settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder for the log, snapshots and cold files.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Address to listen on. Repeatable.
    #[arg(long, value_name = "ADDRESS")]
    bind: Vec<String>,
    /// TCP port; 0 lets the system choose one.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Port of the metrics and the dashboard; 0 disables both.
    #[arg(long, value_name = "PORT")]
    admin_port: Option<u16>,
    /// When writes are synced to disk.
    #[arg(long, value_name = "WHEN", value_parser = fsync())]
    fsync: Option<Fsync>,
}

/// Returns a parser for the fsync policies, which have the same names as in the configuration file.
fn fsync() -> impl TypedValueParser<Value = Fsync> {
    let all = [Fsync::Everysec, Fsync::Always, Fsync::No];
    PossibleValuesParser::new(all.map(Fsync::name))
        .map(move |name| *all.iter().find(|policy| policy.name() == name).unwrap_or(&all[0]))
}

pub(super) fn run(args: &ServeArgs) -> Result<(), String> {
    let mut config = match &args.config {
        Some(path) => Config::load(path).map_err(|e| e.to_string())?,
        None => Config::default(),
    };
    if let Some(dir) = &args.dir {
        config.durability.dir.clone_from(dir);
    }
    if !args.bind.is_empty() {
        config.server.bind.clone_from(&args.bind);
    }
    if let Some(port) = args.port {
        config.server.port = port;
    }
    if let Some(port) = args.admin_port {
        config.admin.port = port;
    }
    if let Some(fsync) = args.fsync {
        config.durability.fsync = fsync;
    }
    config.validate().map_err(|e| e.to_string())?;
    write_log(config.server.log_format);
    let sockets = Sockets::from_service_manager().map_err(|e| e.to_string())?;
    let stop = Stop::new();
    stop.on_signals().map_err(|e| format!("cannot install signal handlers: {e}"))?;
    run_server(config, sockets, stop).map_err(|e| e.to_string())
}

fn write_log(format: LogFormat) {
    // Suppress rskafka's log lines: rskafka logs each attempt, whereas the ingest logs an
    // unreachable broker only once.
    let usual =
        || Targets::new().with_default(LevelFilter::INFO).with_target("rskafka", LevelFilter::OFF);
    // RUST_LOG holds a level, or targets with levels (`info,store=debug`).
    let filter = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .with_target(false)
        // Otherwise the subscriber reports its own write errors on stderr, and panics if stderr is
        // closed or its disk is full.
        .log_internal_errors(false);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => Box::new(lines),
        LogFormat::Json => Box::new(
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false),
        ),
    };
    tracing_subscriber::registry().with(lines).with(filter.unwrap_or_else(usual)).init();
}
