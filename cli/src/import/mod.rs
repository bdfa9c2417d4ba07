//! `tidemark import`: rows, flags or events from files, or from a running Redis (`redis`), into a
//! running server, pipelined over several connections.
//!
//! The import talks RESP like any client, so it works from any machine, and what it loads is logged
//! and replicated like all writes. Every line becomes one command, and its reply is matched to the
//! line number, so that whatever is wrong is said of a line: with the file (no integer, too few
//! columns) or with the server's answer (out of memory, an unknown field).
//!
//! - rows `id,like,repost,comment,read` (the header names the fields): `CNT.SET post id like n
//!   ...`; as JSON `{"id": 17, "like": 5}`
//! - flags `id,member` (`--space` names an existence space): `PH.ADD liked member id`; as JSON
//!   `{"id": 17, "member": 7}`
//! - events `created_at,post_id,origin_post_id,user_id`: `FEED.ACT repost user origin`; an empty
//!   origin is an original post, and skipped; as JSON `{"user": 7, "id": 17}`
//!
//! Importing a file twice changes nothing the second time: rows are set, not added, a flag is set
//! or not, and an action that was done counts once.

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

use files::Import;
use indicatif::{HumanCount, HumanDuration};
use std::io::{self, Write};
use std::time::Instant;

/// `tidemark import`: an error also if lines were bad.
pub(super) fn main(args: &ImportArgs) -> Result<(), String> {
    if !args.from.is_empty() {
        return redis::main(args);
    }
    match run(args).map_err(|e| e.to_string())?.bad {
        0 => Ok(()),
        1 => Err("one line was bad, and is not loaded".to_owned()),
        bad => Err(format!("{} lines were bad, and are not loaded", HumanCount(bad))),
    }
}

/// Runs the import; progress goes to standard error, the summary to standard output.
pub fn run(args: &ImportArgs) -> Result<Summary, ImportError> {
    let started = Instant::now();
    let mut import = Import { args, summary: Summary::default(), shown: 0 };
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
    // A closed standard output is no reason to fail.
    let _ = writeln!(io::stdout(), "{text}; {} bad lines", HumanCount(summary.bad));
    Ok(summary)
}
