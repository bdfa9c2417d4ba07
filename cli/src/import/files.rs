//! Imports files: CSV with or without a header, and JSON lines.

use super::args::{ImportArgs, Kind, LineShape, renamed};
use super::command::{Command, LineOutcome, named_columns};
use super::csv::{Columns, Records};
use super::json;
use super::lanes::Lanes;
use super::lines::{Lines, open};
use super::pipe::{Event, Pipe, ReplyCounts};
use super::spaces::Spaces;
use super::summary::{ImportError, MAX_SHOWN_ERRORS, Summary};
use indicatif::ProgressBar;
use std::io::{self, BufRead};
use std::path::Path;

/// Number of lines between checks for failed connections.
const LINES_PER_LOOK: u64 = 256;

pub(super) struct FileImport<'a> {
    pub(super) args: &'a ImportArgs,
    pub(super) summary: Summary,
    pub(super) shown: usize,
}

struct InputFile {
    name: String,
    progress: ProgressBar,
}

/// Returns whether the file begins with a JSON object.
fn is_json(reader: &mut dyn BufRead) -> io::Result<bool> {
    let bytes = reader.fill_buf()?;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    Ok(bytes.trim_ascii_start().starts_with(b"{"))
}

impl Summary {
    fn add(&mut self, tally: &ReplyCounts, shape: Option<LineShape>) {
        let answered = tally.changed + tally.repeated + tally.unknown;
        match shape {
            Some(LineShape::Rows { .. }) => self.rows += tally.done,
            Some(LineShape::Flags) => self.flags += answered,
            Some(LineShape::Events) => self.events += answered,
            None => {}
        }
        self.bad += tally.bad;
        self.changed += tally.changed;
        self.repeated += tally.repeated;
        self.unknown += tally.unknown;
    }
}

impl FileImport<'_> {
    fn connect(&self) -> Result<(Pipe, Spaces), ImportError> {
        let connect = &self.args.connect;
        let open = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let opened = runtime.block_on(Lanes::open(connect, self.args.connections));
            let (lanes, spaces) = opened?;
            Ok((Pipe::start(lanes, runtime)?, spaces))
        };
        open().map_err(|source| ImportError::Connect { address: connect.address(), source })
    }

    pub(super) fn file(&mut self, path: &Path) -> Result<(), ImportError> {
        let name = path.display().to_string();
        let failed = |line, source| ImportError::File { path: name.clone(), line, source };
        let (progress, mut reader) = open(path).map_err(|e| failed(0, e))?;
        let source = InputFile { name: name.clone(), progress };
        // Clear the progress bar even on errors, so that messages are not printed on the same line
        // as the bar.
        let outcome = self.lines(&source, &mut reader, &failed);
        source.progress.finish_and_clear();
        outcome
    }

    fn lines(
        &mut self,
        source: &InputFile,
        reader: &mut dyn BufRead,
        failed: &dyn Fn(u64, io::Error) -> ImportError,
    ) -> Result<(), ImportError> {
        let (mut pipe, spaces) = self.connect()?;
        let (command, last) = match is_json(reader).map_err(|e| failed(0, e))? {
            true => self.json(source, reader, failed, &mut pipe, &spaces)?,
            false => self.csv(source, reader, failed, &mut pipe, &spaces)?,
        };
        let address = self.args.connect.address();
        let tally = pipe.finish(
            |event, pipe| self.event(source, event, pipe, last),
            |source| ImportError::Connect { address, source },
        )?;
        self.summary.add(&tally, command.map(|command| command.shape));
        Ok(())
    }

    fn json(
        &mut self,
        source: &InputFile,
        reader: &mut dyn BufRead,
        failed: &dyn Fn(u64, io::Error) -> ImportError,
        pipe: &mut Pipe,
        spaces: &Spaces,
    ) -> Result<(Option<Command>, u64), ImportError> {
        let mut lines = Lines { line: Vec::new(), number: 0 };
        let mut command: Option<Command> = None;
        loop {
            let number = lines.number;
            let object = match lines.next(reader).map_err(|e| failed(number, e))? {
                None => return Ok((command, number)),
                Some(line) => {
                    let object = line.map_err(str::to_owned).and_then(json::object);
                    match self.args.kind {
                        None | Some(Kind::Rows) => {
                            object.map(|object| json::renamed(object, &self.args.fields))
                        }
                        Some(Kind::Flags | Kind::Events) => object,
                    }
                }
            };
            let pushed = match object {
                Err(reason) => Err(reason),
                Ok(object) => {
                    let command = match &command {
                        Some(command) => command,
                        None => command.insert(self.of_object(&object, spaces)?),
                    };
                    command.push_object(&object, lines.number, pipe)
                }
            };
            self.pushed(source, lines.number, pushed, pipe)?;
        }
    }

    fn csv(
        &mut self,
        source: &InputFile,
        reader: &mut dyn BufRead,
        failed: &dyn Fn(u64, io::Error) -> ImportError,
        pipe: &mut Pipe,
        spaces: &Spaces,
    ) -> Result<(Option<Command>, u64), ImportError> {
        let mut records = Records::new();
        let mut command: Option<Command> = None;
        loop {
            let number = records.line;
            let pushed = match records.next(reader).map_err(|e| failed(number, e))? {
                None => return Ok((command, number)),
                Some(Err(reason)) => Err(reason.to_owned()),
                Some(Ok(())) => {
                    let columns = &records.columns;
                    match &command {
                        Some(command) => command.push(columns, records.line, pipe),
                        None => {
                            let (shape, is_header) = self.shape(&source.name, columns, spaces)?;
                            spaces.check(&shape, self.args).map_err(|why| {
                                let is_named = !is_header || !self.args.fields.is_empty();
                                let advice = match why.contains("no such field") && !is_named {
                                    true => "; choose the columns with --fields 'old>new,...'",
                                    false => "",
                                };
                                ImportError::Kind(format!("{why}{advice}"))
                            })?;
                            let command = command.insert(Command::new(shape, self.args));
                            if is_header {
                                continue;
                            }
                            command.push(columns, records.line, pipe)
                        }
                    }
                }
            };
            self.pushed(source, records.line, pushed, pipe)?;
        }
    }

    fn pushed(
        &mut self,
        source: &InputFile,
        line: u64,
        pushed: Result<LineOutcome, String>,
        pipe: &Pipe,
    ) -> Result<(), ImportError> {
        self.summary.lines += 1;
        match pushed {
            Ok(LineOutcome::Command) => {}
            Ok(LineOutcome::OriginalPost) => self.summary.originals += 1,
            Ok(LineOutcome::NoCounters) => self.summary.without_counters += 1,
            Err(reason) => {
                self.summary.bad += 1;
                self.bad(source, line, reason)?;
            }
        }
        if self.summary.lines.is_multiple_of(LINES_PER_LOOK) {
            for event in pipe.events() {
                self.event(source, event, pipe, line)?;
            }
        }
        Ok(())
    }

    fn event(
        &mut self,
        source: &InputFile,
        event: Event,
        pipe: &Pipe,
        last: u64,
    ) -> Result<(), ImportError> {
        let reason = match event {
            Event::Bad { line, reason } => {
                return self.bad(source, line, format!("the server replied: {reason}"));
            }
            Event::Refused { line, reason } => format!("line {line} was rejected: {reason}"),
            Event::Broken(error) => error.to_string(),
        };
        Err(ImportError::Server {
            address: self.args.connect.address(),
            path: source.name.clone(),
            acknowledged: pipe.answered_through(last),
            reason,
        })
    }

    /// Determines the command for a JSON file from its first object.
    fn of_object(&self, object: &json::Object, spaces: &Spaces) -> Result<Command, ImportError> {
        let shape = match self.args.kind.unwrap_or_else(|| json::kind_of(object)) {
            Kind::Rows => LineShape::rows(Vec::new()),
            Kind::Flags => LineShape::Flags,
            Kind::Events => LineShape::Events,
        };
        spaces.check(&shape, self.args).map_err(ImportError::Kind)?;
        Ok(Command::new(shape, self.args))
    }

    /// Determines the shape of a CSV file from its first line, the options and the space. Also
    /// returns whether the first line is a header.
    fn shape(
        &self,
        name: &str,
        columns: &Columns,
        spaces: &Spaces,
    ) -> Result<(LineShape, bool), ImportError> {
        let first: Vec<String> =
            columns.iter().map(|c| String::from_utf8_lossy(c).trim().to_string()).collect();
        let is_header = first.iter().any(|c| c.bytes().any(|b| b.is_ascii_alphabetic()));
        let kind = match self.args.kind {
            Some(kind) => kind,
            None if first.first().is_some_and(|c| c == "id") => Kind::Rows,
            None if is_header && self.args.fields.iter().any(|name| renamed(name).1 == "id") => {
                Kind::Rows
            }
            None if first == ["created_at", "post_id", "origin_post_id", "user_id"] => Kind::Events,
            None => {
                return Err(ImportError::Kind(format!(
                    "{name}: unknown header: expected `id,<field>,...`, `id,member` or \
                     `created_at,post_id,origin_post_id,user_id`. Use --kind rows, --kind flags or \
                     --kind events for a file without a header, or choose the columns of rows with \
                     --fields 'post_id>id,likes>like'"
                )));
            }
        };
        // Members may contain letters, so in a file of flags only the id column distinguishes a
        // header from data.
        let is_id = |c: &str| c.bytes().all(|b| b.is_ascii_digit());
        let is_of_flags = || spaces.existences.contains(&self.args.space);
        let has_member = || {
            let fields = spaces.fields.get(&self.args.space);
            fields.is_some_and(|fields| fields.iter().any(|field| field == "member"))
        };
        let is_unnamed_space = |first: &[String]| {
            self.args.kind.is_none()
                && first == ["id", "member"]
                && !has_member()
                && !spaces.existences.is_empty()
        };
        let shape = match kind {
            Kind::Events => LineShape::Events,
            Kind::Flags => {
                return Ok((LineShape::Flags, !is_id(&first[0])));
            }
            Kind::Rows if is_of_flags() && first.len() == 2 => {
                return Ok((LineShape::Flags, !is_id(&first[0])));
            }
            Kind::Rows if is_of_flags() => {
                return Err(ImportError::Kind(format!(
                    "{name}: '{}' is an existence space and needs lines of `id,member`, but the \
                     file has {} columns",
                    self.args.space,
                    first.len()
                )));
            }
            Kind::Rows if is_unnamed_space(&first) => {
                return Err(ImportError::Kind(format!(
                    "{name}: `id,member` are flags: use --space with an existence space; the \
                     server has: {}",
                    spaces.existences.join(", ")
                )));
            }
            Kind::Rows if !self.args.fields.is_empty() && is_header => {
                named_columns(&first, &self.args.fields)
                    .map_err(|why| ImportError::Kind(format!("{name}: {why}")))?
            }
            Kind::Rows if !self.args.fields.is_empty() => LineShape::rows(self.args.fields.clone()),
            Kind::Rows if is_header => LineShape::rows(first[1..].to_vec()),
            Kind::Rows => {
                return Err(ImportError::Kind(format!(
                    "{name}: the file has no header: name the fields with --fields like,repost,..."
                )));
            }
        };
        Ok((shape, is_header))
    }

    /// Reports a bad line. With `--strict`, returns it as an error.
    fn bad(&mut self, source: &InputFile, line: u64, reason: String) -> Result<(), ImportError> {
        let (name, progress) = (&source.name, &source.progress);
        if self.args.strict {
            return Err(ImportError::Strict { path: name.clone(), line, reason });
        }
        self.shown += 1;
        if self.shown <= MAX_SHOWN_ERRORS {
            progress.suspend(|| eprintln!("{name}, line {line}: {reason}"));
        } else if self.shown == MAX_SHOWN_ERRORS + 1 {
            progress.suspend(|| eprintln!("further bad lines are counted but not shown"));
        }
        Ok(())
    }
}
