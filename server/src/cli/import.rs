//! `tidemark import`: rows or events from CSV files into a running server, pipelined.
//!
//! The import talks RESP like any client, so it works from any machine, and what it loads is logged
//! and replicated like all writes. Every line becomes one command, and its reply is matched to the
//! line number, so that whatever is wrong is said of a line: with the file (no integer, too few
//! columns) or with the server's answer (out of memory, an unknown field).
//!
//! - rows `id,like,repost,comment,read` (the header names the fields): `CNT.SET post id like n ...`
//! - events `created_at,post_id,origin_post_id,user_id`: `FEED.ACT repost user origin`; an empty
//!   origin is an original post, and skipped
//!
//! Importing a file twice changes nothing the second time: rows are set, not added, and an action
//! that was done counts once.

use super::client::Client;
use clap::{Args, ValueEnum};
use flate2::read::MultiGzDecoder;
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use redis_protocol::resp2::types::OwnedFrame;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A longer line is no CSV of ours; it is counted as bad and passed over without being held in
/// memory.
const LINE_MOST_BYTES: usize = 64 << 10;
/// Bad lines that are shown; the rest are only counted.
const SHOWN: usize = 5;

/// Loads counters or events from CSV files (plain or gzip) into a running server.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark import posts.csv                   rows: id,like,repost,comment,read (the header names the fields)
  tidemark import reposts.csv.gz              events: created_at,post_id,origin_post_id,user_id
  zcat old.csv.gz | tidemark import -         from standard input
  tidemark import --kind rows --fields like,read --space post counts.csv
                                              a file without a header

Bad lines are counted and the first few shown with their number and reason; the rest of the file goes on (exit status 0).
With --strict the import stops at the first one (exit status 1). What was sent before stays: importing again is harmless.")]
pub struct ImportArgs {
    /// Files to load, plain or gzip; `-` is standard input.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// The server's host.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// The server's port.
    #[arg(long, default_value_t = crate::config::DEFAULT_PORT)]
    pub port: u16,
    /// What the lines are; by default the header tells.
    #[arg(long, value_enum)]
    pub kind: Option<Kind>,
    /// Rows: the counter space to set.
    #[arg(long, default_value = "post")]
    pub space: String,
    /// Rows without a header: the fields after the id, in order.
    #[arg(long, value_delimiter = ',')]
    pub fields: Vec<String>,
    /// Events: the action that each one does.
    #[arg(long, default_value = "repost")]
    pub action: String,
    /// Stop at the first bad line.
    #[arg(long)]
    pub strict: bool,
}

/// What a file's lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// `id,field,field,...`: the counters of one id.
    Rows,
    /// `created_at,post_id,origin_post_id,user_id`: one user reposts one post.
    Events,
}

/// What came of an import.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Data lines read: all but headers and empty lines.
    pub lines: u64,
    /// Rows set.
    pub rows: u64,
    /// Events sent as actions.
    pub events: u64,
    /// Events that changed something: the first repost of a post by a user.
    pub changed: u64,
    /// Events that changed nothing: the user had done it before.
    pub repeated: u64,
    /// Events of posts below the horizon: nobody can say whether it had been done.
    pub unknown: u64,
    /// Lines of original posts (no origin): nothing to do.
    pub originals: u64,
    /// Lines that the file or the server said no to.
    pub bad: u64,
}

/// Why an import ended before the end of its files.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file could not be read.
    #[error(
        "{path}: {source} (after line {line}; what was sent until there is loaded, and importing again is harmless)"
    )]
    File {
        /// Which file.
        path: String,
        /// The last line that was read whole.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// The server could not be reached, or went away.
    #[error("{address}: {source} (lines up to {acknowledged} of {path} were acknowledged)")]
    Server {
        /// Whom we talked to.
        address: String,
        /// While reading which file.
        path: String,
        /// The last line whose reply came.
        acknowledged: u64,
        /// Why.
        source: io::Error,
    },
    /// `--strict`, and a line was bad.
    #[error("{path}, line {line}: {reason}")]
    Strict {
        /// Which file.
        path: String,
        /// Which line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The file says neither what it is, nor do the options.
    #[error("{0}")]
    Kind(String),
}

/// Runs the import; progress goes to standard error, the summary to standard output.
pub fn run(args: &ImportArgs) -> Result<Summary, ImportError> {
    let started = Instant::now();
    let address = format!("{}:{}", args.host, args.port);
    let server = |source| ImportError::Server {
        address: address.clone(),
        path: args.files[0].display().to_string(),
        acknowledged: 0,
        source,
    };
    let client = Client::connect((args.host.as_str(), args.port)).map_err(server)?;
    let mut import = Import {
        args,
        address,
        client,
        sent: VecDeque::new(),
        summary: Summary::default(),
        shown: 0,
    };
    for path in &args.files {
        import.file(path)?;
    }
    let (summary, seconds) = (import.summary, started.elapsed());
    // A closed standard output is no reason to fail.
    let _ = writeln!(
        io::stdout(),
        "{} lines in {}: {} rows set; {} events, {} changed, {} repeated, {} below the horizon; {} original posts; {} bad lines",
        HumanCount(summary.lines),
        HumanDuration(seconds),
        HumanCount(summary.rows),
        HumanCount(summary.events),
        HumanCount(summary.changed),
        HumanCount(summary.repeated),
        HumanCount(summary.unknown),
        HumanCount(summary.originals),
        HumanCount(summary.bad),
    );
    Ok(summary)
}

/// How lines of the current file are read.
enum Shape {
    Rows { fields: Vec<String> },
    Events,
}

struct Import<'a> {
    args: &'a ImportArgs,
    address: String,
    client: Client,
    /// Line numbers of the commands whose replies are outstanding, and what they were.
    sent: VecDeque<(u64, Kind)>,
    summary: Summary,
    shown: usize,
}

impl Import<'_> {
    fn file(&mut self, path: &Path) -> Result<(), ImportError> {
        let name = path.display().to_string();
        let failed = |line, source| ImportError::File { path: name.clone(), line, source };
        let (progress, mut reader) = open(path).map_err(|e| failed(0, e))?;
        let mut lines = Lines { line: Vec::new(), number: 0 };
        let mut columns = Columns::default();
        let mut shape = None;
        loop {
            let number = lines.number;
            let line = match lines.next(&mut reader).map_err(|e| failed(number, e))? {
                None => break,
                Some(Err(reason)) => {
                    self.summary.lines += 1;
                    self.bad(&progress, &name, lines.number, reason.into())?;
                    continue;
                }
                Some(Ok(line)) => line,
            };
            columns.split(line);
            let shape = match &shape {
                Some(shape) => shape,
                None => {
                    let (found, is_header) = self.shape(&name, &columns)?;
                    let found = shape.insert(found);
                    if is_header {
                        continue;
                    }
                    found
                }
            };
            self.summary.lines += 1;
            match self.line(shape, &columns, lines.number) {
                Ok(()) => {}
                Err(reason) => self.bad(&progress, &name, lines.number, reason)?,
            }
            if self.client.is_full() {
                // Half, so that the server always has something to do while we read the file.
                self.replies(&progress, &name, Client::IN_FLIGHT / 2)?;
            }
        }
        self.replies(&progress, &name, 0)?;
        progress.finish_and_clear();
        Ok(())
    }

    /// What the file holds, by its first line and the options; and whether that line is a header.
    fn shape(&self, name: &str, columns: &Columns) -> Result<(Shape, bool), ImportError> {
        let first: Vec<String> =
            columns.iter().map(|c| String::from_utf8_lossy(c).trim().to_string()).collect();
        let is_header = first.iter().any(|c| c.bytes().any(|b| b.is_ascii_alphabetic()));
        let kind = match self.args.kind {
            Some(kind) => kind,
            None if first.first().is_some_and(|c| c == "id") => Kind::Rows,
            None if first == ["created_at", "post_id", "origin_post_id", "user_id"] => Kind::Events,
            None => {
                return Err(ImportError::Kind(format!(
                    "{name}: the first line is neither `id,<field>,...` nor `created_at,post_id,origin_post_id,user_id`: \
                     say what the lines are with --kind rows or --kind events"
                )));
            }
        };
        let shape = match kind {
            Kind::Events => Shape::Events,
            Kind::Rows if !self.args.fields.is_empty() => {
                Shape::Rows { fields: self.args.fields.clone() }
            }
            Kind::Rows if is_header => Shape::Rows { fields: first[1..].to_vec() },
            Kind::Rows => {
                return Err(ImportError::Kind(format!(
                    "{name}: no header names the fields: say them with --fields like,repost,..."
                )));
            }
        };
        Ok((shape, is_header))
    }

    /// Turns one line into one command, or says what is wrong with it.
    fn line(&mut self, shape: &Shape, columns: &Columns, number: u64) -> Result<(), String> {
        match shape {
            Shape::Rows { fields } => {
                if columns.len() != fields.len() + 1 {
                    return Err(format!(
                        "{} columns, expected {}",
                        columns.len(),
                        fields.len() + 1
                    ));
                }
                let id = integer::<u64>("id", columns.get(0))?;
                for (field, value) in fields.iter().zip(columns.iter().skip(1)) {
                    integer::<i64>(field, value)?;
                }
                let mut command: Vec<&[u8]> = vec![b"CNT.SET", self.args.space.as_bytes(), id];
                for (field, value) in fields.iter().zip(columns.iter().skip(1)) {
                    command.push(field.as_bytes());
                    command.push(value);
                }
                self.client.push(&command);
                self.sent.push_back((number, Kind::Rows));
            }
            Shape::Events => {
                if columns.len() != 4 {
                    return Err(format!("{} columns, expected 4", columns.len()));
                }
                integer::<u64>("post_id", columns.get(1))?;
                let user = integer::<u64>("user_id", columns.get(3))?;
                if columns.get(2).is_empty() {
                    self.summary.originals += 1;
                    return Ok(());
                }
                let origin = integer::<u64>("origin_post_id", columns.get(2))?;
                self.client.push(&[b"FEED.ACT", self.args.action.as_bytes(), user, origin]);
                self.sent.push_back((number, Kind::Events));
            }
        }
        Ok(())
    }

    /// Takes replies until only `leave` are outstanding.
    fn replies(
        &mut self,
        progress: &ProgressBar,
        name: &str,
        leave: usize,
    ) -> Result<(), ImportError> {
        while self.sent.len() > leave {
            let (line, kind) = self.sent[0];
            let reply = self.client.reply().map_err(|source| ImportError::Server {
                address: self.address.clone(),
                path: name.into(),
                acknowledged: line - 1,
                source,
            })?;
            self.sent.pop_front();
            if let OwnedFrame::Error(reason) = reply {
                self.bad(progress, name, line, format!("the server says: {reason}"))?;
                continue;
            }
            match kind {
                Kind::Rows => self.summary.rows += 1,
                Kind::Events => {
                    self.summary.events += 1;
                    match reply {
                        OwnedFrame::Array(items) => match items.first() {
                            Some(OwnedFrame::Integer(1)) => self.summary.changed += 1,
                            Some(OwnedFrame::Integer(_)) => self.summary.repeated += 1,
                            _ => self.summary.unknown += 1,
                        },
                        _ => self.summary.unknown += 1,
                    }
                }
            }
        }
        Ok(())
    }

    fn bad(
        &mut self,
        progress: &ProgressBar,
        name: &str,
        line: u64,
        reason: String,
    ) -> Result<(), ImportError> {
        self.summary.bad += 1;
        if self.args.strict {
            progress.abandon();
            return Err(ImportError::Strict { path: name.into(), line, reason });
        }
        self.shown += 1;
        if self.shown <= SHOWN {
            progress.suspend(|| eprintln!("{name}, line {line}: {reason}"));
        } else if self.shown == SHOWN + 1 {
            progress.suspend(|| eprintln!("more bad lines are counted, not shown"));
        }
        Ok(())
    }
}

/// The text of an integer that fits `T`, as it will be sent.
fn integer<'a, T: std::str::FromStr>(what: &str, text: &'a [u8]) -> Result<&'a [u8], String> {
    let text = text.trim_ascii();
    match std::str::from_utf8(text).ok().and_then(|t| t.parse::<T>().ok()) {
        // What Rust reads and Redis does not.
        Some(_) if !text.starts_with(b"+") => Ok(text),
        _ => Err(format!(
            "{what}: \"{}\" is not an integer or out of range",
            text[..text.len().min(40)].escape_ascii()
        )),
    }
}

/// Opens a file, or standard input, plain or gzip, with a bar that shows how far we are in the
/// file's bytes.
fn open(path: &Path) -> io::Result<(ProgressBar, Box<dyn BufRead>)> {
    let style = |template: &str| {
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
    };
    let (progress, raw): (ProgressBar, Box<dyn Read>) = if path == Path::new("-") {
        let progress = ProgressBar::no_length()
            .with_style(style("{spinner} {bytes} read, {bytes_per_sec}, {elapsed}"));
        (progress.clone(), Box::new(progress.wrap_read(io::stdin())))
    } else {
        let file = File::open(path)?;
        let template = "{wide_bar} {percent:>3} %  {bytes_per_sec}, {eta} left";
        let progress = ProgressBar::new(file.metadata()?.len()).with_style(style(template));
        (progress.clone(), Box::new(progress.wrap_read(file)))
    };
    let mut reader = BufReader::with_capacity(256 << 10, raw);
    let gzip = reader.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    let reader: Box<dyn BufRead> = match gzip {
        true => Box::new(BufReader::with_capacity(256 << 10, MultiGzDecoder::new(reader))),
        false => Box::new(reader),
    };
    Ok((progress, reader))
}

/// Lines of bounded length. A quote that is never closed spoils its own line, not the rest of the
/// file, which is why records are cut at line ends before the CSV reader sees them.
struct Lines {
    line: Vec<u8>,
    /// Of the line that was read last, from 1.
    number: u64,
}

impl Lines {
    /// The next line that is not empty, without its end; `Some(Err(reason))` for one that is too
    /// long.
    fn next(
        &mut self,
        reader: &mut dyn BufRead,
    ) -> io::Result<Option<Result<&[u8], &'static str>>> {
        loop {
            self.line.clear();
            if reader.take(LINE_MOST_BYTES as u64 + 1).read_until(b'\n', &mut self.line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.line.len() > LINE_MOST_BYTES && !self.line.ends_with(b"\n") {
                skip_line(reader)?;
                return Ok(Some(Err("longer than 65536 bytes")));
            }
            if self.number == 1 && self.line.starts_with(b"\xef\xbb\xbf") {
                self.line.drain(..3);
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        Ok(Some(Ok(self.line.trim_ascii_end())))
    }
}

/// Reads up to and including the next line end, keeping nothing.
fn skip_line(reader: &mut dyn BufRead) -> io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        let (used, found) = match buffer.iter().position(|&b| b == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffer.len(), false),
        };
        reader.consume(used);
        if found || used == 0 {
            return Ok(());
        }
    }
}

/// The columns of one line, quotes resolved as RFC 4180 has them.
#[derive(Default)]
struct Columns {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Columns {
    fn split(&mut self, line: &[u8]) {
        // No column is longer than the line, and there are at most as many as bytes, plus one.
        self.text.resize(line.len() + 2, 0);
        self.ends.resize(line.len() + 2, 0);
        let mut csv = csv_core::Reader::new();
        let (_, mut read, mut written, mut columns) =
            csv.read_record(line, &mut self.text, &mut self.ends);
        // An end of input closes the record.
        let (_, more_read, more_written, more) =
            csv.read_record(&line[read..], &mut self.text[written..], &mut self.ends[columns..]);
        read += more_read;
        written += more_written;
        columns += more;
        debug_assert!(read <= line.len() && written <= self.text.len());
        self.ends.truncate(columns);
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, column: usize) -> &[u8] {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.text[start..self.ends[column]]
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(line: &str) -> Vec<String> {
        let mut columns = Columns::default();
        columns.split(line.as_bytes());
        columns.iter().map(|c| String::from_utf8_lossy(c).into_owned()).collect()
    }

    #[test]
    fn columns_are_split_as_csv_has_them() {
        assert_eq!(columns("1,2,3"), ["1", "2", "3"]);
        assert_eq!(columns("2013-09-12 12:31:14,3631614501919378,,833933534602").len(), 4);
        assert_eq!(columns("a,"), ["a", ""]);
        assert_eq!(columns(","), ["", ""]);
        assert_eq!(columns("\"1\",\"a,\"\"b\",3"), ["1", "a,\"b", "3"]);
        assert_eq!(columns("\"never closed,2,3"), ["never closed,2,3"]);
        assert_eq!(columns("x"), ["x"]);
    }

    #[test]
    fn lines_are_bounded_and_numbered() {
        let long = "9".repeat(10 * LINE_MOST_BYTES);
        let text = format!("\u{feff}a,b\r\n\n{long}\nlast");
        let (mut reader, mut lines) = (io::Cursor::new(text), Lines { line: vec![], number: 0 });
        assert_eq!(lines.next(&mut reader).unwrap(), Some(Ok(&b"a,b"[..])));
        assert!(lines.next(&mut reader).unwrap().unwrap().is_err());
        assert!(lines.line.capacity() < 3 * LINE_MOST_BYTES);
        assert_eq!(lines.next(&mut reader).unwrap(), Some(Ok(&b"last"[..])));
        assert_eq!(lines.number, 4);
        assert_eq!(lines.next(&mut reader).unwrap(), None);
    }

    #[test]
    fn integers_are_checked_before_they_are_sent() {
        assert_eq!(
            integer::<u64>("id", b" 18446744073709551615 "),
            Ok(&b"18446744073709551615"[..])
        );
        assert!(integer::<u64>("id", b"18446744073709551616").is_err());
        assert!(integer::<u64>("id", b"-1").is_err());
        assert_eq!(
            integer::<i64>("like", b"-9223372036854775808"),
            Ok(&b"-9223372036854775808"[..])
        );
        for bad in [&b"+1"[..], b"", b"1.0", b"0x10", b"1e3", b"\xff", b"1 2"] {
            assert!(integer::<i64>("like", bad).is_err(), "{bad:?}");
        }
    }
}
