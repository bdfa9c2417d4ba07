//! BACKUP commands. `node/src/roles/backup.rs` makes the backup.

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Once};
use node::command::error::{Printable, refuse};
use node::command::spec::{ALWAYS, NO_KEYS, Outcome, flag};
use node::roles::backup;
use node::roles::backup_state::{ArchiveState, BackupOutcome, Status};

const SERVER: Group = Group::new("server", "0.1.0", NO_KEYS);
const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT | flag::STALE;

#[rustfmt::skip]
pub(crate) const BACKUP: Command =
    SERVER.container("backup", "A container for commands about backups.", &[
        SERVER.help("backup|help"),
        SERVER.row("backup|status", 2, ALWAYS | flag::ADMIN, "", Once(status),
            "Returns a map with the state of the running backup, the result of the last backup, \
             and the offset up to which the log is archived."),
        SERVER.row("backup|stop", 2, ALWAYS | flag::ADMIN, "", Once(stop),
            "Cancels the running backup and deletes its files."),
        SERVER.row("backup|to", 3, ADMIN | flag::NO_MULTI, "dir", Once(to),
            "Starts a backup into a new folder below backup.dir, for example nightly/monday. With \
             the name . the server generates the name of the folder. Reads and writes continue \
             during the backup. BACKUP STATUS and INFO persistence show when the backup is \
             complete. The backup contains all writes acknowledged before the command, and may \
             contain later writes. `tidemark restore` creates a data folder from a backup."),
    ]);

fn to(call: &mut Call<'_>) -> Outcome {
    let text = call.args.at(2);
    let config = call.node.config();
    let folder = std::str::from_utf8(text).ok();
    let folder = folder.ok_or_else(|| refuse!("ERR Invalid folder name '{}'", Printable(text)));
    let folder = backup::place(&config, folder?).map_err(|why| refuse!("ERR {why}"))?;
    // Run this on another thread, because the folder may be on a slow network file system.
    call.answer_later(move |node, reply| {
        backup::look(&node.config(), &folder).map_err(|why| refuse!("ERR {why}"))?;
        if !node.backups.begin(folder) {
            return Err(refuse!("ERR Background backup already in progress"));
        }
        reply.simple("Background backup started");
        Ok(())
    })
}

fn stop(call: &mut Call<'_>) -> Outcome {
    if !call.node.backups.give_up() {
        return Err(refuse!("ERR No backup in progress"));
    }
    call.reply.ok();
    Ok(())
}

enum ReplyValue {
    Text(String),
    Number(u64),
}

fn status(call: &mut Call<'_>) -> Outcome {
    let Status { running, copied, linked, expected, last, kept, .. } = call.node.backups.status();
    let (text, number) = (|text: &str| ReplyValue::Text(text.to_owned()), ReplyValue::Number);
    let mut said = vec![("state", text(if running.is_some() { "running" } else { "idle" }))];
    if let Some((folder, since)) = running {
        said.push(("folder", ReplyValue::Text(folder.display().to_string())));
        said.push(("seconds", number(since.elapsed().as_secs())));
        said.push(("bytes", number(copied + linked)));
        said.push(("bytes_expected", number(expected)));
        said.push(("bytes_copied", number(copied)));
    }
    if let Some(last) = last {
        said.push(("last_status", text(last.fate.name())));
        said.push(("last_folder", ReplyValue::Text(last.folder.display().to_string())));
        said.push(("last_ended", number(last.ended_s)));
        said.push(("last_seconds", number(last.took.as_secs())));
        match &last.fate {
            BackupOutcome::Made { backup, copied } => {
                said.push(("last_offset", number(backup.position.offset)));
                said.push(("last_time_ms", number(backup.time_ms)));
                said.push(("last_bytes", number(backup.bytes())));
                said.push(("last_bytes_copied", number(*copied)));
            }
            BackupOutcome::Stopped => {}
            BackupOutcome::Failed(why) => said.push(("last_error", text(why))),
        }
    } else {
        said.push(("last_status", text("none")));
    }
    said.push(("log", text(kept.name())));
    match kept {
        ArchiveState::Off => {}
        ArchiveState::UpTo(offset) => said.push(("log_offset", number(offset))),
        ArchiveState::Failed(why) => said.push(("log_error", text(&why))),
    }
    call.reply.map(said.len());
    for (name, value) in said {
        call.reply.bulk(name.as_bytes());
        match value {
            ReplyValue::Text(text) => call.reply.bulk(text.as_bytes()),
            ReplyValue::Number(number) => call.reply.int(i64::try_from(number).unwrap_or(i64::MAX)),
        }
    }
    Ok(())
}
