//! `tidemark export`: writes the rows of a counter space as CSV, as JSON lines, or to a Redis
//! server.
//!
//! `CNT.SCAN` lists the rows in memory and on disk while writes continue. A row that exists
//! throughout the scan appears at least once. In a cluster, the export reads all masters. Flags
//! cannot be exported, because a filter cannot list its members.

use crate::import::lines::rate;
use crate::import::redis::layout::{printable, shown};
use crate::import::redis::source::{RedisSource, Side};
use crate::import::rows::{AllRows, Cursor, Row};
use clap::{Args, ValueEnum};
use client::{Client, ConnectArgs, Reply, put_command};
use dataset::key_patterns::{Kind, Pattern};
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Writes the rows of a counter space as CSV, as JSON lines, or into a Redis.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark export > posts.csv                 CSV: id,like,repost,comment,read
  tidemark export --space user --format jsonl -o users.jsonl
                                              {\"id\":17,\"follower\":5,...}
  tidemark export --to redis://:secret@old:6379
                                              one hash per row, at its key
  tidemark export --to redis://old --row-keys p:{id}

A row that changes during the export may appear twice; the last one has the newest values. Flags \
cannot be exported: a filter cannot list its members. In a cluster, name any node: the export \
contains the rows of all masters.")]
pub(super) struct ExportArgs {
    /// Server address and login.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Counter space to export.
    #[arg(long, default_value = "post")]
    pub space: String,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    pub format: Format,
    /// Output file, replaced only when the export is complete. Default: standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Redis to write to: redis://user:password@host:port/db, or rediss:// for TLS. Only the host
    /// is required. Each row is written as a hash and overwrites fields with the same names.
    #[arg(long, value_name = "URL", conflicts_with_all = ["output", "format"])]
    pub to: Option<String>,
    /// CA certificates (PEM) to verify the TLS certificate of --to.
    #[arg(long, value_name = "FILE", requires = "to")]
    pub to_cacert: Option<String>,
    /// Pattern of the keys in --to. Default: `SPACE:{id}`.
    #[arg(long, value_name = "PATTERN", requires = "to")]
    pub row_keys: Option<String>,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A header and one line per row.
    Csv,
    /// One object per line.
    Jsonl,
}

enum Target {
    Lines(Format, Box<dyn Write>, Option<PartialFile>),
    Redis(Client, Pattern),
}

/// Temporary file in the folder of the output file. When the temporary file is complete, it
/// replaces the output file.
struct PartialFile {
    path: PathBuf,
    to: PathBuf,
}

impl PartialFile {
    /// Returns `None` if the path exists and is not a regular file (/dev/stdout, a pipe), because
    /// it cannot be replaced.
    fn of(path: &Path) -> Option<PartialFile> {
        let to = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if to.exists() && !to.is_file() {
            return None;
        }
        let mut name = to.file_name()?.to_owned();
        name.push(".partial");
        Some(PartialFile { path: to.with_file_name(name), to })
    }

    fn take_place(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()?;
        std::fs::rename(&self.path, &self.to)
    }
}

pub(super) fn run(args: &ExportArgs) -> Result<(), String> {
    let started = Instant::now();
    let (mut all, fields) = server(args)?;
    let mut target = target(args)?;
    if let Target::Lines(Format::Csv, out, _) = &mut target {
        let header = std::iter::once("id").chain(fields.iter().map(String::as_str));
        written(writeln!(out, "{}", header.collect::<Vec<_>>().join(",")))?;
    }
    let style = ProgressStyle::with_template("{spinner} {human_pos} rows, {rate}, {elapsed}");
    let bar = ProgressBar::no_length().with_style(
        style.unwrap_or_else(|_| ProgressStyle::default_spinner()).with_key("rate", rate),
    );
    let failed = |e: io::Error| format!("cannot export: {e}");
    let (mut cursor, mut count) = (Some(Cursor::default()), 0);
    while let Some(at) = cursor {
        let (found, next) = all.page(&args.space, at).map_err(failed)?;
        count += found.len() as u64;
        bar.inc(found.len() as u64);
        target.put(&fields, &found)?;
        cursor = next;
    }
    all.check_slots().map_err(failed)?;
    if let Target::Lines(_, out, partial_file) = &mut target {
        written(out.flush())?;
        if let Some(partial_file) = partial_file {
            partial_file.take_place().map_err(|e| format!("{}: {e}", partial_file.to.display()))?;
        }
    }
    bar.finish_and_clear();
    eprintln!("{} rows in {}", HumanCount(count), HumanDuration(started.elapsed()));
    Ok(())
}

fn server(args: &ExportArgs) -> Result<(AllRows, Vec<String>), String> {
    let (all, mut spaces) = AllRows::open(&args.connect)
        .map_err(|e| format!("cannot export {}: {e}", args.connect.address()))?;
    let space = &args.space;
    match spaces.fields.remove(space) {
        Some(fields) => Ok((all, fields)),
        None if spaces.existences.contains(space) => Err(format!(
            "'{space}' is an existence space and cannot be exported: a filter cannot list its \
             members"
        )),
        None => Err(format!(
            "no such counter space '{space}'; the server has: {}",
            spaces.counters.join(", ")
        )),
    }
}

fn target(args: &ExportArgs) -> Result<Target, String> {
    if let Some(url) = &args.to {
        let source = RedisSource::parse(Side::To, url, args.to_cacert.as_deref())?;
        let key = args.row_keys.clone().unwrap_or_else(|| format!("{}:{{id}}", args.space));
        let pattern = Pattern::parse(Kind::Row, &key).map_err(|error| error.to_string())?;
        let remote = source.open().map_err(|error| format!("{source}: {error}"))?;
        return Ok(Target::Redis(remote, pattern));
    }
    let Some(path) = &args.output else {
        let out = Box::new(BufWriter::new(io::stdout()));
        return Ok(Target::Lines(args.format, out, None));
    };
    let partial_file = PartialFile::of(path);
    let path = partial_file.as_ref().map_or(path, |partial_file| &partial_file.path);
    let file = File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Target::Lines(args.format, Box::new(BufWriter::new(file)), partial_file))
}

/// Exits without an error if the reader has closed the pipe (`| head`).
fn written(outcome: io::Result<()>) -> Result<(), String> {
    match outcome {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => Err(format!("cannot write: {e}")),
        Ok(()) => Ok(()),
    }
}

impl Target {
    fn put(&mut self, fields: &[String], rows: &[Row]) -> Result<(), String> {
        match self {
            Target::Lines(format, out, _) => {
                for (id, values) in rows {
                    let line = match format {
                        Format::Csv => values
                            .iter()
                            .fold(id.to_string(), |line, value| format!("{line},{value}")),
                        Format::Jsonl => {
                            // Field names contain no characters that need escapes.
                            let pairs = fields.iter().zip(values);
                            let pairs: String =
                                pairs.map(|(name, value)| format!(",\"{name}\":{value}")).collect();
                            format!("{{\"id\":{id}{pairs}}}")
                        }
                    };
                    written(writeln!(out, "{line}"))?;
                }
            }
            Target::Redis(remote, pattern) => {
                let (mut requests, mut keys) = (Vec::new(), Vec::with_capacity(rows.len()));
                for (id, values) in rows {
                    let mut key = Vec::new();
                    pattern.write(*id, b"", &mut key);
                    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
                    let mut request: Vec<&[u8]> = vec![b"HSET", &key];
                    for (name, text) in fields.iter().zip(&texts) {
                        request.extend([name.as_bytes(), text.as_bytes()]);
                    }
                    put_command(&mut requests, &request);
                    keys.push(key);
                }
                let (mut refused, mut keys) = (None, keys.iter());
                let sent = remote.batch(&requests, rows.len(), |reply| {
                    let key = keys.next();
                    if let (Reply::Error(reason), Some(key)) = (reply, key) {
                        refused.get_or_insert((key.clone(), reason));
                    }
                });
                sent.map_err(|error| format!("--to: {error}"))?;
                if let Some((key, reason)) = refused {
                    let reason = printable(&reason);
                    return Err(format!("--to: {}: the server replied: {reason}", shown(&key)));
                }
            }
        }
        Ok(())
    }
}
