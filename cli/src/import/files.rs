//! Import of files: CSV with or without a header, JSON lines.

use super::command::{Command, Shape};
use super::csv::Columns;
use super::json;
use super::lines::{Lines, open};
use super::pipe::{Event, Pipe, Tally};
use super::spaces::Spaces;
use super::{ImportArgs, ImportError, Kind, SHOWN, Summary};
use indicatif::ProgressBar;
use std::io::{self, BufRead};
use std::path::Path;

/// After so many lines it is looked whether a connection has failed.
const LINES_PER_LOOK: u64 = 256;

pub(super) struct Import<'a> {
    pub(super) args: &'a ImportArgs,
    pub(super) summary: Summary,
    pub(super) shown: usize,
}

/// A file that is being read, for errors.
struct Source {
    name: String,
    progress: ProgressBar,
}

impl Summary {
    /// Adds what became of the lines of one shape.
    fn add(&mut self, tally: &Tally, shape: Option<Shape>) {
        let answered = tally.changed + tally.repeated + tally.unknown;
        match shape {
            Some(Shape::Rows { .. }) => self.rows += tally.done,
            Some(Shape::Flags) => self.flags += answered,
            Some(Shape::Events) => self.events += answered,
            None => {}
        }
        self.bad += tally.bad;
        self.changed += tally.changed;
        self.repeated += tally.repeated;
        self.unknown += tally.unknown;
    }
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

    pub(super) fn file(&mut self, path: &Path) -> Result<(), ImportError> {
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
        let mut is_json = false;
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
            let first = command.is_none();
            is_json |= first && line.first() == Some(&b'{');
            let pushed = if is_json {
                match json::object(line) {
                    Err(reason) => Err(reason),
                    Ok(object) => {
                        let command = match &command {
                            Some(command) => command,
                            None => command.insert(self.of_object(&object, &spaces)?),
                        };
                        command.push_object(&object, lines.number, &mut pipe)
                    }
                }
            } else {
                columns.split(line);
                if first {
                    let (shape, is_header) = self.shape(&source.name, &columns, &spaces)?;
                    spaces.check(&shape, self.args).map_err(ImportError::Kind)?;
                    command = Some(Command::new(shape, self.args));
                    if is_header {
                        continue;
                    }
                }
                let push = |command: &Command| command.push(&columns, lines.number, &mut pipe);
                command.as_ref().map_or(Ok(false), push)
            };
            self.summary.lines += 1;
            match pushed {
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
        self.summary.add(&tally, command.map(|command| command.shape));
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

    /// What a file of JSON lines holds, by the first object.
    fn of_object(&self, object: &json::Object, spaces: &Spaces) -> Result<Command, ImportError> {
        let shape = match self.args.kind.unwrap_or_else(|| json::kind_of(object)) {
            Kind::Rows => Shape::Rows { fields: Vec::new() },
            Kind::Flags => Shape::Flags,
            Kind::Events => Shape::Events,
        };
        spaces.check(&shape, self.args).map_err(ImportError::Kind)?;
        Ok(Command::new(shape, self.args))
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
