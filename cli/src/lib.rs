//! The command line of `tidemark`. Each file implements one subcommand. Tests call subcommands
//! within the test process.
#![forbid(unsafe_code)]

mod cluster;
mod cluster_nodes;
mod config;
pub mod day;
pub mod demo;
mod export;
mod full_tables;
mod generate;
pub mod import;
mod inspect;
mod ping;
mod restore;
mod serve;
pub mod size;
mod terminal;
mod upgrade;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;
use terminal::print;

/// Counters and yes/no flags of feed pages, in one round trip.
#[derive(Parser, Debug)]
#[command(
    name = "tidemark",
    version = env!("TIDEMARK_BUILD"),
    after_help = "\
Examples:
  tidemark demo                        load generated data and show a page
  tidemark serve --dir data            serve on 127.0.0.1:6399
  tidemark config > tidemark.toml      print settings with documentation

`tidemark help COMMAND` has more examples."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Runs the server.
    Serve(serve::ServeArgs),
    Import(Box<import::ImportArgs>),
    Export(export::ExportArgs),
    Demo(demo::DemoArgs),
    Check(inspect::CheckArgs),
    Dump(inspect::DumpArgs),
    Restore(restore::RestoreArgs),
    Ping(ping::PingArgs),
    Upgrade(upgrade::UpgradeArgs),
    Cluster(cluster::ClusterArgs),
    Config(config::ConfigArgs),
    Size(Box<size::SizeArgs>),
    /// Prints the reference of all RESP commands (docs/commands.md).
    Commands,
    Completions(generate::CompletionsArgs),
    Man(generate::ManArgs),
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args).map_err(|e| e.to_string()),
        Command::Import(args) => import::main(&args),
        Command::Export(args) => export::run(&args),
        Command::Check(args) => inspect::check(&args),
        Command::Dump(args) => inspect::dump(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Upgrade(args) => upgrade::run(&args),
        Command::Cluster(args) => cluster::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Size(args) => size::run(&args),
        Command::Completions(args) => generate::completions(&args, &mut Cli::command()),
        Command::Man(args) => generate::manual(&args, Cli::command()),
        Command::Commands => print(&tidemark_server::reference::reference()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("tidemark: {text}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }

    /// Examples must not wrap in a terminal of 80 columns. The description of each command must fit
    /// one line of the list.
    #[test]
    fn help_fits_80_columns() {
        let command = super::Cli::command();
        let all = std::iter::once(&command).chain(command.get_subcommands());
        for command in all {
            let name = command.get_name();
            let help = [command.get_after_help(), command.get_after_long_help()];
            for line in help
                .into_iter()
                .flatten()
                .flat_map(|h| h.to_string().lines().map(str::to_owned).collect::<Vec<_>>())
            {
                let is_example = line.starts_with("  ");
                assert!(!is_example || line.chars().count() <= 80, "{name}: {line}");
            }
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty() && about.len() <= 80, "{name}: {about}");
        }
    }
}
