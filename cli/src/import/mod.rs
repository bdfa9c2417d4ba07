//! `tidemark import`: loads rows, flags or events from files, or from a running Redis (`redis`),
//! into a running server.
//!
//! The import is an ordinary RESP client with several pipelined connections. The import can run on
//! any machine, and the server logs and replicates the import's writes like any other writes. Each
//! line becomes one command, and each reply is matched to its line number. Errors in the file (not
//! an integer, too few columns) and errors from the server (out of memory, unknown field) are
//! therefore reported with a line number.
//!
//! - rows `id,like,repost,comment,read` (the header names the fields): `CNT.SET post id like n
//!   ...`; as JSON `{"id": 17, "like": 5}`
//! - flags `id,member` (`--space` names an existence space): `PH.ADD liked member id`; as JSON
//!   `{"id": 17, "member": 7}`
//! - events `created_at,post_id,origin_post_id,user_id`: `FEED.ACT repost user origin`; as JSON
//!   `{"user": 7, "id": 17}`. An event with an empty origin is an original post and is skipped.
//!
//! Importing a file is idempotent: rows are set rather than incremented, and a repeated flag or
//! action has no effect.

mod args;
mod command;
mod csv;
mod files;
mod json;
mod lanes;
pub(super) mod lines;
mod pipe;
pub(super) mod redis;
pub(super) mod rows;
pub(super) mod spaces;
mod summary;

pub use args::{ImportArgs, Kind};
pub use summary::{ImportError, Summary};

use files::FileImport;
use indicatif::{HumanCount, HumanDuration};
use std::io::{self, Write};
use std::time::Instant;

/// Runs `tidemark import`. Returns an error if any line was bad.
pub(super) fn main(args: &ImportArgs) -> Result<(), String> {
    if !args.from.is_empty() {
        return redis::main(args);
    }
    match run(args).map_err(|e| e.to_string())?.bad {
        0 => Ok(()),
        1 => Err("1 bad line was not loaded".to_owned()),
        bad => Err(format!("{} bad lines were not loaded", HumanCount(bad))),
    }
}

/// Runs the import. Writes progress to standard error, and the summary to standard output.
pub fn run(args: &ImportArgs) -> Result<Summary, ImportError> {
    let started = Instant::now();
    let mut import = FileImport { args, summary: Summary::default(), shown: 0 };
    for path in &args.files {
        import.file(path)?;
    }
    let (summary, seconds) = (import.summary, started.elapsed());
    let Summary { rows, flags, events, originals, without_counters, .. } = summary;
    let mut text = format!("{} lines in {}", HumanCount(summary.lines), HumanDuration(seconds));
    let parts = [
        (rows, "rows set"),
        (flags, "flags"),
        (events, "events"),
        (originals, "original posts"),
        (without_counters, "rows without counters"),
    ];
    for (count, what) in parts.into_iter().filter(|(count, _)| *count > 0) {
        text += &format!("; {} {what}", HumanCount(count));
    }
    if flags + events > 0 {
        text += &format!(
            "; {} changed, {} repeated, {} below the horizon",
            HumanCount(summary.changed),
            HumanCount(summary.repeated),
            HumanCount(summary.unknown)
        );
    }
    // A closed standard output is not a failure of the import.
    let _ = writeln!(io::stdout(), "{text}; {} bad lines", HumanCount(summary.bad));
    Ok(summary)
}
