//! The command line. Each file is one subcommand; this one says which there are.

pub mod client;
pub mod day;
pub mod demo;
mod full_tables;
pub mod import;
mod inspect;
mod serve;
mod terminal;

use crate::config::Config;
use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Counters and yes/no flags of feed pages, in one round trip.
#[derive(Parser, Debug)]
#[command(
    name = "tidemark",
    version,
    after_help = "Try it: `tidemark demo` loads a day of posts, prints a feed page, and leaves the server up for redis-cli."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Runs the server.
    Serve(serve::ServeArgs),
    Import(import::ImportArgs),
    Demo(demo::DemoArgs),
    Check(inspect::CheckArgs),
    Dump(inspect::DumpArgs),
    /// Prints the configuration file with every key, its default and what it means.
    #[command(after_long_help = "\
Examples:
  tidemark config > tidemark.toml        a file to start from; keep only what you change
  tidemark config --config my.toml       what the server would run with, defaults filled in; complains if the file is wrong")]
    Config {
        /// Print this file's values instead of the defaults.
        #[arg(long, value_name = "FILE")]
        config: Option<std::path::PathBuf>,
    },
    /// Prints the reference of all commands that the server speaks (docs/commands.md).
    Commands,
}

/// Runs the program.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args).map_err(|e| e.to_string()),
        Command::Import(args) => import::run(&args).map(drop).map_err(|e| e.to_string()),
        Command::Check(args) => inspect::check(&args),
        Command::Dump(args) => inspect::dump(&args),
        Command::Config { config } => print_config(config.as_deref()),
        Command::Commands => print(&crate::commands::reference()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("tidemark: {text}");
            ExitCode::FAILURE
        }
    }
}

fn print_config(path: Option<&std::path::Path>) -> Result<(), String> {
    let config = match path {
        Some(path) => Config::load(path).map_err(|e| e.to_string())?,
        None => Config::default(),
    };
    print(&config.print())
}

/// A reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> Result<(), String> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("cannot write: {e}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        super::Cli::command().debug_assert();
    }
}
