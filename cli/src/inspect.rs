//! `tidemark check` and `tidemark dump`: inspect the files of a data folder without a server.

use clap::Args;
use dataset::recovery::catalogue_of;
use node::cluster::file;
use node::cluster::file::StoredState;
use node::config::Config;
use node::roles::role;
use node::roles::role::Role;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use store::{Finding, RealDisk, Report, Severity};

/// Verifies a data folder, and explains damage and its repair.
///
/// The exit status is 1 if anything is damaged or unreadable, or differs from the file of --config.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark check data       verifies all checksums, and that no file is missing
  tidemark check data --config tidemark.toml
                            also compares spaces, fields, views and actions
                            with the configuration file

The command writes nothing. While a server uses the folder, the end of the newest log segment can \
appear torn, because the server is writing it.")]
pub(super) struct CheckArgs {
    /// Data folder to verify.
    pub(super) dir: PathBuf,
    /// Configuration file to compare with the spaces, views and actions of the data folder.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

/// Prints a file of a data folder: manifest, log segment, snapshot or cold file.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark dump data/tidemark.manifest
  tidemark dump data/log-0000000000000001.tlog
  tidemark dump --payloads data/log-0000000000000001.tlog
                            also prints the payload bytes")]
pub(super) struct DumpArgs {
    /// File to print.
    pub(super) file: PathBuf,
    /// Also print the payloads of records and chunks.
    #[arg(long)]
    pub(super) payloads: bool,
}

pub(super) fn disk(dir: &std::path::Path) -> Result<RealDisk, String> {
    // `RealDisk::open` would create a missing folder.
    if !dir.is_dir() {
        return Err(format!("{} is not a directory", dir.display()));
    }
    RealDisk::open(dir).map_err(|e| format!("{}: {e}", dir.display()))
}

/// Runs `tidemark check`.
pub(super) fn check(args: &CheckArgs) -> Result<(), String> {
    let mut report = store::check(&disk(&args.dir)?).map_err(|e| format!("{e}. {}", e.advice()))?;
    check_ours(&args.dir, &mut report);
    let differences =
        args.config.as_deref().map(|file| differences(&args.dir, file)).transpose()?;
    let mut out = io::stdout().lock();
    // A closed pipe is not an error.
    for finding in &report.findings {
        let mark = match finding.severity {
            Severity::Good => "ok    ",
            Severity::Note => "note  ",
            Severity::NotRead => "UNREAD",
            Severity::Damage => "DAMAGE",
        };
        let _ = writeln!(out, "{mark}  {}: {}", finding.file, finding.text);
    }
    let is_good = |finding: &Finding| matches!(finding.severity, Severity::Good);
    let (bytes, batches, records) = (report.bytes, report.batches, report.records);
    let _ =
        writeln!(out, "{bytes} bytes verified, {batches} batches and {records} records in the log");
    match report.severity() {
        Severity::Damage => {
            Err("the folder is damaged: a server refuses to start, or returns errors for rows in \
                 damaged blocks"
                .to_owned())
        }
        Severity::NotRead => Err("some files could not be read: see the UNREAD lines".to_owned()),
        Severity::Note if bytes == 0 && !report.findings.iter().any(is_good) => {
            Err(format!("{} is neither a data folder nor a backup", args.dir.display()))
        }
        _ => match differences.filter(|lines| !lines.is_empty()) {
            Some(lines) => Err(lines.join("\n")),
            None => Ok(()),
        },
    }
}

/// Returns a line for each difference between a configuration file and a data folder.
fn differences(dir: &Path, file: &Path) -> Result<Vec<String>, String> {
    let config = Config::load(file).map_err(|e| e.to_string())?;
    let catalogue = catalogue_of(&disk(dir)?).map_err(|e| e.to_string())?;
    let catalogue = catalogue.ok_or_else(|| format!("{} is not a data folder", dir.display()))?;
    let options = config.data_set();
    Ok(catalogue.completed(&options).differences(&options, &config.lists))
}

/// Checks the files of the server that do not belong to the store.
fn check_ours(dir: &Path, report: &mut Report) {
    let role =
        |role: Role| role.master.map_or("a master".to_owned(), |m| format!("a replica of {m}"));
    note(report, role::NAME, Role::read(dir).map(|read| read.map(role)));
    let cluster = |kept: StoredState| {
        let StoredState { topology, .. } = kept;
        format!("topology version {}, {} nodes", topology.version, topology.members().len())
    };
    note(report, file::NAME, StoredState::read(dir).map(|read| read.map(cluster)));
}

/// Adds a finding about a file, if the file exists.
fn note(report: &mut Report, name: &str, read: io::Result<Option<String>>) {
    report.findings.retain(|finding| finding.file != name);
    let (severity, text) = match read {
        Ok(None) => return,
        Ok(Some(text)) => (Severity::Good, text),
        Err(error) if error.kind() != io::ErrorKind::Other => {
            (Severity::NotRead, error.to_string())
        }
        Err(error) => (Severity::Damage, error.to_string()),
    };
    report.findings.push(Finding { severity, file: name.to_owned(), text });
}

/// Runs `tidemark dump`.
pub(super) fn dump(args: &DumpArgs) -> Result<(), String> {
    let name =
        args.file.file_name().and_then(|n| n.to_str()).ok_or("the file name is not valid UTF-8")?;
    let dir = args
        .file
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(std::path::Path::new("."));
    let mut out = io::BufWriter::new(io::stdout().lock());
    let outcome = store::dump(&disk(dir)?, name, args.payloads, &mut out);
    // Print the part that was readable before the error.
    let _ = out.flush();
    match outcome {
        Err(store::Error::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
            Ok(())
        }
        outcome => outcome.map_err(|e| format!("{e}. {}", e.advice())),
    }
}
