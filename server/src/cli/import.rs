//! `tidemark import`: rows, flags or events from CSV files into a running server, pipelined over
//! several connections.
//!
//! The import talks RESP like any client, so it works from any machine, and what it loads is logged
//! and replicated like all writes. Every line becomes one command, and its reply is matched to the
//! line number, so that whatever is wrong is said of a line: with the file (no integer, too few
//! columns) or with the server's answer (out of memory, an unknown field).
//!
//! - rows `id,like,repost,comment,read` (the header names the fields): `CNT.SET post id like n ...`
//! - flags `id,member` (`--space` names an existence space): `PH.ADD liked member id`
//! - events `created_at,post_id,origin_post_id,user_id`: `FEED.ACT repost user origin`; an empty
//!   origin is an original post, and skipped
//!
//! Importing a file twice changes nothing the second time: rows are set, not added, a flag is set
//! or not, and an action that was done counts once.

mod pipe;

use crate::cli::connect::{ConnectArgs, Link, put_bulk, put_head};
use clap::{Args, ValueEnum};
use flate2::read::MultiGzDecoder;
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use pipe::{Event, Pipe};
use redis_protocol::resp2::types::OwnedFrame;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A longer line is no CSV of ours; it is counted as bad and passed over without being held in
/// memory.
const LINE_MOST_BYTES: usize = 64 << 10;
/// Bad lines that are shown; the rest are only counted.
const SHOWN: usize = 5;
/// After so many lines it is looked whether a connection has failed.
const LINES_PER_LOOK: u64 = 256;

/// Loads counters, flags or events from CSV files into a running server.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark import posts.csv                   rows: id,like,repost,comment,read
                                              (the header names the fields)
  tidemark import --space liked likes.csv     flags: id,member (a line per like)
  tidemark import reposts.csv.gz              events: created_at,post_id,
                                              origin_post_id,user_id
  zcat old.csv.gz | tidemark import -         from standard input
  tidemark import --kind rows --fields like,read counts.csv
                                              a file without a header
  export REDISCLI_AUTH=secret
  tidemark import --host db1 --user loader --tls --cacert ca.pem posts.csv
                                              with a login, encrypted

Bad lines are counted and the first few shown with their number and reason; the rest of the file \
goes on, and the exit status is 1.
With --strict the import stops at the first one. What was sent before stays: importing again is \
harmless.")]
pub struct ImportArgs {
    /// Files to load, plain or gzip; `-` is standard input.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Where the server is, and the login.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Connections to use at a time.
    #[arg(
        long,
        default_value_t = 4,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    pub connections: u16,
    /// What the lines are; by default the header and the space tell.
    #[arg(long, value_enum)]
    pub kind: Option<Kind>,
    /// Rows: the counter space to set. Flags: the existence space.
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

impl Default for ImportArgs {
    fn default() -> Self {
        ImportArgs {
            files: Vec::new(),
            connect: ConnectArgs::default(),
            connections: 4,
            kind: None,
            space: "post".to_owned(),
            fields: Vec::new(),
            action: "repost".to_owned(),
            strict: false,
        }
    }
}

/// What a file's lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// `id,field,field,...`: the counters of one id.
    Rows,
    /// `id,member`: one flag of one id.
    Flags,
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
    /// Flags sent.
    pub flags: u64,
    /// Events sent as actions.
    pub events: u64,
    /// Flags and events that changed something: the first repost of a post by a user.
    pub changed: u64,
    /// Flags and events that changed nothing: they were there before.
    pub repeated: u64,
    /// Flags and events of posts below the horizon: it is unknown whether they were there.
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
        "{path}: {source} (after line {line}; what was sent until there is loaded, and importing \
         again is harmless)"
    )]
    File {
        /// Which file.
        path: String,
        /// The last line that was read whole.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// The server could not be reached, or did not let us in.
    #[error("cannot import into {address}: {source}")]
    Connect {
        /// The server.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The server went away, or refuses everything.
    #[error(
        "{address}: {reason} ({path}: the lines up to {acknowledged} are loaded; importing again \
         is harmless)"
    )]
    Server {
        /// The server.
        address: String,
        /// While reading which file.
        path: String,
        /// All lines up to this one were answered.
        acknowledged: u64,
        /// Why.
        reason: String,
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
    /// The file says neither what it is, nor do the options; or the server lacks what they name.
    #[error("{0}")]
    Kind(String),
}

/// `tidemark import`: an error also if lines were bad.
pub(super) fn main(args: &ImportArgs) -> Result<(), String> {
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
    let Summary { rows, flags, events, originals, .. } = summary;
    let mut text = format!("{} lines in {}", HumanCount(summary.lines), HumanDuration(seconds));
    let parts =
        [(rows, "rows set"), (flags, "flags"), (events, "events"), (originals, "original posts")];
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

/// How lines of the current file are read.
enum Shape {
    Rows { fields: Vec<String> },
    Flags,
    Events,
}

/// What the server has, as far as it tells us.
#[derive(Default)]
struct Spaces {
    counters: Vec<String>,
    existences: Vec<String>,
    actions: Vec<String>,
}

impl Spaces {
    /// Asks. Users without the right to ask hear of what is missing with the first line.
    async fn ask(link: &mut Link) -> io::Result<Spaces> {
        let mut spaces = Spaces::default();
        for (name, kind) in names(link.call(&[b"TM.SPACE", b"LIST"]).await?) {
            match kind.as_deref() {
                Some("counter") => spaces.counters.push(name),
                Some("existence") => spaces.existences.push(name),
                _ => {}
            }
        }
        let actions = names(link.call(&[b"TM.ACTION", b"LIST"]).await?);
        spaces.actions = actions.into_iter().map(|(name, _)| name).collect();
        Ok(spaces)
    }

    /// Whether what a file wants is there.
    fn check(&self, shape: &Shape, args: &ImportArgs) -> Result<(), String> {
        let (what, name, all) = match shape {
            Shape::Rows { .. } => ("counter space", &args.space, &self.counters),
            Shape::Flags => ("existence space", &args.space, &self.existences),
            Shape::Events => ("action", &args.action, &self.actions),
        };
        if all.is_empty() || all.contains(name) {
            return Ok(());
        }
        Err(format!("the server has no {what} '{name}'; it has: {}", all.join(", ")))
    }
}

/// The values of `name` and `kind` in each of the maps of a list.
fn names(reply: OwnedFrame) -> Vec<(String, Option<String>)> {
    let OwnedFrame::Array(maps) = reply else { return Vec::new() };
    let text = |frame: &OwnedFrame| match frame {
        OwnedFrame::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    };
    let one = |map: OwnedFrame| {
        let OwnedFrame::Array(items) = map else { return None };
        let value = |key: &str| {
            let pair = items.chunks(2).find(|pair| text(&pair[0]).as_deref() == Some(key))?;
            text(pair.get(1)?)
        };
        Some((value("name")?, value("kind")))
    };
    maps.into_iter().filter_map(one).collect()
}

struct Import<'a> {
    args: &'a ImportArgs,
    summary: Summary,
    shown: usize,
}

/// A file that is being read, for errors.
struct Source {
    name: String,
    progress: ProgressBar,
}

impl Import<'_> {
    /// Opens the connections, and asks what the server has.
    fn connect(&self) -> Result<(Pipe, Spaces), ImportError> {
        let connect = &self.args.connect;
        let open = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let tls = connect.tls()?;
            let (links, spaces) = runtime.block_on(async {
                let mut links = vec![connect.open(tls.as_ref()).await?];
                let spaces = Spaces::ask(&mut links[0]).await?;
                for _ in 1..self.args.connections {
                    links.push(connect.open(tls.as_ref()).await?);
                }
                io::Result::Ok((links, spaces))
            })?;
            Ok((Pipe::start(links, runtime)?, spaces))
        };
        open().map_err(|source| ImportError::Connect { address: connect.address(), source })
    }

    fn file(&mut self, path: &Path) -> Result<(), ImportError> {
        let name = path.display().to_string();
        let failed = |line, source| ImportError::File { path: name.clone(), line, source };
        let (progress, mut reader) = open(path).map_err(|e| failed(0, e))?;
        let source = Source { name: name.clone(), progress };
        // Cleared whatever happens: what is said last must not stand beside a bar.
        let outcome = self.lines(&source, &mut reader, &failed);
        source.progress.finish_and_clear();
        outcome
    }

    fn lines(
        &mut self,
        source: &Source,
        reader: &mut dyn BufRead,
        failed: &dyn Fn(u64, io::Error) -> ImportError,
    ) -> Result<(), ImportError> {
        let (mut pipe, spaces) = self.connect()?;
        let mut lines = Lines { line: Vec::new(), number: 0 };
        let mut columns = Columns::default();
        let mut command: Option<Command> = None;
        loop {
            let number = lines.number;
            let line = match lines.next(reader).map_err(|e| failed(number, e))? {
                None => break,
                Some(Err(reason)) => {
                    self.summary.lines += 1;
                    self.summary.bad += 1;
                    self.bad(source, lines.number, reason.into())?;
                    continue;
                }
                Some(Ok(line)) => line,
            };
            columns.split(line);
            let command = match &command {
                Some(command) => command,
                None => {
                    let (shape, is_header) = self.shape(&source.name, &columns, &spaces)?;
                    spaces.check(&shape, self.args).map_err(ImportError::Kind)?;
                    let made = command.insert(Command::new(shape, self.args));
                    if is_header {
                        continue;
                    }
                    made
                }
            };
            self.summary.lines += 1;
            match command.push(&columns, lines.number, &mut pipe) {
                Ok(true) => {}
                Ok(false) => self.summary.originals += 1,
                Err(reason) => {
                    self.summary.bad += 1;
                    self.bad(source, lines.number, reason)?;
                }
            }
            if lines.number.is_multiple_of(LINES_PER_LOOK) {
                for event in pipe.events() {
                    self.event(source, event, &pipe, lines.number)?;
                }
            }
        }
        let last = lines.number;
        let address = self.args.connect.address();
        let tally = pipe.finish(
            |event, pipe| self.event(source, event, pipe, last),
            |source| ImportError::Connect { address, source },
        )?;
        let summary = &mut self.summary;
        summary.bad += tally.bad;
        let answered = tally.changed + tally.repeated + tally.unknown;
        match command.map(|command| command.shape) {
            Some(Shape::Rows { .. }) => summary.rows += tally.done,
            Some(Shape::Flags) => summary.flags += answered,
            Some(Shape::Events) => summary.events += answered,
            None => {}
        }
        summary.changed += tally.changed;
        summary.repeated += tally.repeated;
        summary.unknown += tally.unknown;
        Ok(())
    }

    /// What a connection told.
    fn event(
        &mut self,
        source: &Source,
        event: Event,
        pipe: &Pipe,
        last: u64,
    ) -> Result<(), ImportError> {
        let reason = match event {
            Event::Bad { line, reason } => {
                return self.bad(source, line, format!("the server says: {reason}"));
            }
            Event::Refused { line, reason } => format!("line {line} is refused: {reason}"),
            Event::Broken(error) => error.to_string(),
        };
        Err(ImportError::Server {
            address: self.args.connect.address(),
            path: source.name.clone(),
            acknowledged: pipe.answered_through(last),
            reason,
        })
    }

    /// What the file holds, by its first line, the options and the space; and whether that line is
    /// a header.
    fn shape(
        &self,
        name: &str,
        columns: &Columns,
        spaces: &Spaces,
    ) -> Result<(Shape, bool), ImportError> {
        let first: Vec<String> =
            columns.iter().map(|c| String::from_utf8_lossy(c).trim().to_string()).collect();
        let is_header = first.iter().any(|c| c.bytes().any(|b| b.is_ascii_alphabetic()));
        let kind = match self.args.kind {
            Some(kind) => kind,
            None if first.first().is_some_and(|c| c == "id") => Kind::Rows,
            None if first == ["created_at", "post_id", "origin_post_id", "user_id"] => Kind::Events,
            None => {
                return Err(ImportError::Kind(format!(
                    "{name}: the first line is neither `id,<field>,...`, `id,member` nor \
                     `created_at,post_id,origin_post_id,user_id`: say what the lines are with \
                     --kind rows, --kind flags or --kind events"
                )));
            }
        };
        // A member may have letters: only the id tells a header of flags.
        let is_id = |c: &str| c.bytes().all(|b| b.is_ascii_digit());
        let is_of_flags = || spaces.existences.contains(&self.args.space);
        let shape = match kind {
            Kind::Events => Shape::Events,
            Kind::Flags => {
                return Ok((Shape::Flags, !is_id(&first[0])));
            }
            Kind::Rows if is_of_flags() && first.len() == 2 => {
                return Ok((Shape::Flags, !is_id(&first[0])));
            }
            Kind::Rows if is_of_flags() => {
                return Err(ImportError::Kind(format!(
                    "{name}: the space '{}' holds flags, whose lines are `id,member`; these have \
                     {} columns",
                    self.args.space,
                    first.len()
                )));
            }
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

    /// Shows a bad line, or ends with it.
    fn bad(&mut self, source: &Source, line: u64, reason: String) -> Result<(), ImportError> {
        let (name, progress) = (&source.name, &source.progress);
        if self.args.strict {
            return Err(ImportError::Strict { path: name.clone(), line, reason });
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

/// How a line becomes a command.
struct Command {
    shape: Shape,
    /// The command up to its first value.
    head: Vec<u8>,
    /// The names of a row's fields, as arguments.
    fields: Vec<Vec<u8>>,
}

impl Command {
    fn new(shape: Shape, args: &ImportArgs) -> Command {
        let bulk = |text: &str| {
            let mut out = Vec::new();
            put_bulk(&mut out, text.as_bytes());
            out
        };
        let (name, of, fields) = match &shape {
            Shape::Rows { fields } => ("CNT.SET", &args.space, &fields[..]),
            Shape::Flags => ("PH.ADD", &args.space, &[][..]),
            Shape::Events => ("FEED.ACT", &args.action, &[][..]),
        };
        let arguments = if matches!(shape, Shape::Rows { .. }) { 3 + 2 * fields.len() } else { 4 };
        let mut head = Vec::new();
        put_head(&mut head, b'*', arguments);
        head.extend([bulk(name), bulk(of)].concat());
        let fields = fields.iter().map(|field| bulk(field)).collect();
        Command { shape, head, fields }
    }

    /// Turns one line into one command, or says what is wrong with it. False: there is nothing to
    /// do.
    fn push(&self, columns: &Columns, line: u64, pipe: &mut Pipe) -> Result<bool, String> {
        let expected = match &self.shape {
            Shape::Rows { fields } => fields.len() + 1,
            Shape::Flags => 2,
            Shape::Events => 4,
        };
        if columns.len() != expected {
            return Err(format!("{} columns, expected {expected}", columns.len()));
        }
        match &self.shape {
            Shape::Rows { fields } => {
                let (id, number) = integer::<u64>("id", columns.get(0))?;
                for (field, value) in fields.iter().zip(columns.iter().skip(1)) {
                    integer::<i64>(field, value)?;
                }
                pipe.push(number, line, |out| {
                    out.extend_from_slice(&self.head);
                    put_bulk(out, id);
                    for (field, value) in self.fields.iter().zip(columns.iter().skip(1)) {
                        out.extend_from_slice(field);
                        put_bulk(out, value.trim_ascii());
                    }
                });
            }
            Shape::Flags => {
                let (id, number) = integer::<u64>("id", columns.get(0))?;
                self.push_pair(number, line, columns.get(1), id, pipe);
            }
            Shape::Events => {
                integer::<u64>("post_id", columns.get(1))?;
                let (user, _) = integer::<u64>("user_id", columns.get(3))?;
                if columns.get(2).is_empty() {
                    return Ok(false);
                }
                let (origin, number) = integer::<u64>("origin_post_id", columns.get(2))?;
                self.push_pair(number, line, user, origin, pipe);
            }
        }
        Ok(true)
    }

    fn push_pair(&self, number: u64, line: u64, member: &[u8], id: &[u8], pipe: &mut Pipe) {
        pipe.push(number, line, |out| {
            out.extend_from_slice(&self.head);
            put_bulk(out, member);
            put_bulk(out, id);
        });
    }
}

/// The text of an integer that fits `T`, as it will be sent, and its value.
fn integer<'a, T: std::str::FromStr>(what: &str, text: &'a [u8]) -> Result<(&'a [u8], T), String> {
    let text = text.trim_ascii();
    match std::str::from_utf8(text).ok().and_then(|t| t.parse::<T>().ok()) {
        // What Rust reads and Redis does not.
        Some(value) if !text.starts_with(b"+") => Ok((text, value)),
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
        if !line.contains(&b'"') {
            self.text.clear();
            self.ends.clear();
            for column in line.split(|&b| b == b',') {
                self.text.extend_from_slice(column);
                self.ends.push(self.text.len());
            }
            return;
        }
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
            Ok((&b"18446744073709551615"[..], u64::MAX))
        );
        assert!(integer::<u64>("id", b"18446744073709551616").is_err());
        assert!(integer::<u64>("id", b"-1").is_err());
        assert_eq!(
            integer::<i64>("like", b"-9223372036854775808"),
            Ok((&b"-9223372036854775808"[..], i64::MIN))
        );
        for bad in [&b"+1"[..], b"", b"1.0", b"0x10", b"1e3", b"\xff", b"1 2"] {
            assert!(integer::<i64>("like", bad).is_err(), "{bad:?}");
        }
    }
}
