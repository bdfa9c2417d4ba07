//! `tidemark restore`: creates a data folder from a backup, at the time of the backup or at any
//! later point that the log covers.

use clap::Args;
use node::runtime::utc;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use store::{ARCHIVE, RestorePlan, RestoreTarget};

/// Makes a verified data folder from a backup, up to any position or time.
///
/// Verifies all checksums before writing anything. The exit status is 1 if a checksum is wrong.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark restore /backups/auto-20261125T030000Z --to data
  tidemark restore /backups/auto-20261125T030000Z --to data --until latest
  tidemark restore /backups/nightly --to data --until '2026-11-25 10:59:59'
  tidemark restore /backups/nightly --to data --until 73400412 --log old-data

Then start `tidemark serve --dir data`. It is a master with a new replication id and accepts \
writes at once. Its replicas need a full sync.")]
pub(super) struct RestoreArgs {
    /// Backup folder, with a tidemark.backup.
    backup: PathBuf,
    /// Data folder to create. The folder must be empty or not exist.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// End of the restored log: an offset, a time (2026-11-25T10:59:59Z; UTC unless it has an
    /// offset), or "latest". Default: the end of the backup.
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
    /// Folder with later parts of the log: an archive or a data folder. Repeatable. Default: a
    /// folder `log` next to the backup or in a parent folder.
    #[arg(long, value_name = "DIR")]
    log: Vec<PathBuf>,
}

fn until(text: &str) -> Result<RestoreTarget, String> {
    if text.eq_ignore_ascii_case("latest") {
        return Ok(RestoreTarget::Latest);
    }
    if text.bytes().all(|b| b.is_ascii_digit())
        && let Ok(offset) = text.parse()
    {
        return Ok(RestoreTarget::Offset(offset));
    }
    utc::parse(text).map(RestoreTarget::Time).ok_or_else(|| {
        format!(
            "--until '{text}': expected an offset, a time such as 2026-11-25T10:59:59Z, or 'latest'"
        )
    })
}

/// Returns the archive next to the backup, or next to one of its parent folders.
fn archive_of(backup: &Path) -> Option<PathBuf> {
    let backup = std::path::absolute(backup).ok()?;
    backup.ancestors().skip(1).take(4).map(|above| above.join(ARCHIVE)).find(|path| path.is_dir())
}

/// Returns the archive inside `dir`, or `dir` itself.
fn archive_in(dir: &Path) -> PathBuf {
    let archive = dir.join(ARCHIVE);
    if archive.is_dir() { archive } else { dir.to_owned() }
}

pub(super) fn run(args: &RestoreArgs) -> Result<(), String> {
    let until = args.until.as_deref().map_or(Ok(RestoreTarget::Backup), until)?;
    let archives: Vec<PathBuf> = match &args.log[..] {
        [] => archive_of(&args.backup).into_iter().collect(),
        given => given.iter().map(|dir| archive_in(dir)).collect(),
    };
    let text = |error: store::Error| match &error {
        store::Error::Refused(why) => why.clone(),
        _ => format!("{error}. {}", error.advice_outside_data_folder()),
    };
    let read = Cell::new(0);
    let count = |bytes| {
        read.set(read.get() + bytes);
        Ok(())
    };
    let plan = store::plan(&args.backup, &archives, until, &count).map_err(text)?;
    crate::terminal::print(&format!("{} bytes verified\n", read.get()))?;
    let term = |term| replication::next_term(term, 1, fastrand::u32(..));
    store::restore(&plan, &args.to, term, &|_| Ok(())).map_err(text)?;
    crate::terminal::print(&summary(&plan, &args.to, until))
}

fn summary(plan: &RestorePlan, to: &Path, until: RestoreTarget) -> String {
    let time = if plan.time_ms == 0 { "unknown".to_owned() } else { utc::shown(plan.time_ms) };
    let mut text = format!(
        "restored to {}: {} bytes, up to offset {}, last change at {time}\n",
        to.display(),
        plan.bytes,
        plan.end.offset
    );
    if let (RestoreTarget::Time(_), false) = (until, plan.goes_on) {
        text.push_str(
            "note: the log ends before the requested time; later writes, if any, are missing\n",
        );
    }
    if let (RestoreTarget::Latest, true) = (until, plan.end.offset <= plan.backup.position.offset) {
        text.push_str(
            "note: found no log after the end of the backup; later writes, if any, are missing \
             (use --log to name a folder with more of the log)\n",
        );
    }
    if let RestoreTarget::Offset(offset) = until
        && offset > plan.end.offset
    {
        text.push_str(&format!(
            "note: offset {offset} is inside a batch; that batch was not restored\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_position_or_a_time() {
        assert_eq!(until("12"), Ok(RestoreTarget::Offset(12)));
        assert_eq!(until("Latest"), Ok(RestoreTarget::Latest));
        assert_eq!(until("2026-11-25T03:06:19Z"), Ok(RestoreTarget::Time(1_795_575_979_000)));
        for wrong in ["", "now", "-1", "99999999999999999999", "2026-11-25"] {
            assert!(until(wrong).is_err(), "{wrong}");
        }
    }
}
