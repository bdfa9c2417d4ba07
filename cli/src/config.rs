//! `tidemark config`: prints a configuration file with the default values, or with the values of a
//! given file.

use clap::Args;
use dataset::recovery::catalogue_of;
use node::config::{Config, Extent};
use std::path::PathBuf;

/// Prints the configuration file with documentation.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark config > tidemark.toml      a file to start from
  tidemark config --all                all settings, and the default spaces
  tidemark config --config my.toml     checks a file and prints its values
  tidemark config --dir data           the spaces, views and actions of a data
                                       folder
  tidemark config --hash-tags          keys like post:{17} and liked:{17}, for
                                       twemproxy and clients of several servers")]
pub(super) struct ConfigArgs {
    /// Print all settings, and the spaces, views and actions.
    #[arg(long)]
    all: bool,
    /// Print this file's values instead of the defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the spaces, views and actions of this data folder. The folder is only read, even while
    /// a server uses it.
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
        // The configuration supplies values that are missing in a catalogue of an older release.
        config.describe(&catalogue.completed(&config.data_set()));
        config.durability.dir.clone_from(dir);
    }
    if args.hash_tags {
        config.put_hash_tags();
        // Adding hash tags can make two different patterns equal.
        config.validate().map_err(|e| e.to_string())?;
    }
    let extent = match args {
        ConfigArgs { all: true, .. } => Extent::All,
        ConfigArgs { dir: None, .. } => Extent::Short,
        _ => Extent::Lists,
    };
    crate::terminal::print(&config.print(extent))
}
