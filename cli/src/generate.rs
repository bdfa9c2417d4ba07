//! `tidemark completions` and `tidemark man`: generated from the command line's definition.

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use std::path::PathBuf;

/// Prints a completion script for a shell.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark completions bash > /etc/bash_completion.d/tidemark
  tidemark completions zsh > /usr/local/share/zsh/site-functions/_tidemark
  tidemark completions fish > ~/.config/fish/completions/tidemark.fish")]
pub(super) struct CompletionsArgs {
    /// Shell to generate the script for.
    shell: Shell,
}

/// Prints the manual page, or writes the pages of all subcommands.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark man | man -l -                     shows the main page
  tidemark man --dir /usr/local/share/man/man1
                                              one page per subcommand")]
pub(super) struct ManArgs {
    /// Folder for `tidemark.1` and one page per subcommand. Default: print the main page.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn completions(args: &CompletionsArgs, cli: &mut Command) -> Result<(), String> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, cli, "tidemark", &mut script);
    crate::terminal::print(&String::from_utf8_lossy(&script))
}

pub(super) fn manual(args: &ManArgs, cli: Command) -> Result<(), String> {
    match &args.dir {
        Some(dir) => clap_mangen::generate_to(cli, dir)
            .map_err(|e| format!("cannot write manual pages to {}: {e}", dir.display())),
        None => {
            let mut page = Vec::new();
            Man::new(cli).render(&mut page).map_err(|e| e.to_string())?;
            crate::terminal::print(&String::from_utf8_lossy(&page))
        }
    }
}
