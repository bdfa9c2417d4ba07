//! `tidemark config`: the configuration file, from the defaults or from a file's values.

use clap::Args;
use dataset::recovery::catalogue_of;
use node::config::Config;
use std::path::PathBuf;

/// Prints the configuration file with every key, its default and what it means.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark config > tidemark.toml      to start from; keep only what you change
  tidemark config --config my.toml     what the server would run with, defaults
                                       filled in; complains of a wrong file
  tidemark config --dir data           the spaces, views and actions that this
                                       data folder has, as they are by now
  tidemark config --hash-tags          keys like post:{17} and liked:{17}, for
                                       twemproxy and clients of several servers")]
pub(super) struct ConfigArgs {
    /// Print this file's values instead of the defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the spaces, views and actions of this data folder. It is only read, also beside a
    /// running server.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Put the id of every key pattern in braces, so that a proxy keeps all keys of an id on one
    /// server.
    #[arg(long)]
    hash_tags: bool,
}

/// Runs `tidemark config`.
pub(super) fn run(args: &ConfigArgs) -> Result<(), String> {
    let mut config = match &args.config {
        Some(path) => Config::load(path).map_err(|e| e.to_string())?,
        None => Config::default(),
    };
    if let Some(dir) = &args.dir {
        let disk = super::inspect::disk(dir)?;
        let catalogue = catalogue_of(&disk).map_err(|e| e.to_string())?;
        let catalogue = catalogue.ok_or_else(|| format!("{} is no data folder", dir.display()))?;
        // What a catalogue of an older release does not say, the configuration does.
        config.describe(&catalogue.completed(&config.data_set()));
        config.durability.dir.clone_from(dir);
    }
    if args.hash_tags {
        config.put_hash_tags();
        // Patterns that were apart may be one now.
        config.validate().map_err(|e| e.to_string())?;
    }
    crate::terminal::print(&config.print())
}
