//! Parses a transcript into steps. `tests/scripts/README.md` describes the format.

/// One step: its first line and the lines below it.
#[derive(Debug)]
pub(super) struct Step {
    /// Line number in the file, from 1.
    pub(super) line: usize,
    /// Text of the first line.
    pub(super) head: String,
    pub(super) kind: Kind,
    /// Lines after the first line: a configuration, or the expected output.
    pub(super) body: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A comment or an empty line.
    Text,
    /// `@ word ...`
    Directive(Vec<String>),
    /// `$ tidemark ...`
    Shell(Vec<String>),
    /// `name> COMMAND ...`
    Command(Command),
    /// `name<`: reads the next reply or message of a connection.
    Read(String),
}

/// A request on a connection.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) connection: String,
    pub(super) words: Vec<Vec<u8>>,
    /// `| show NAME...` and `| text`, in order.
    pub(super) filters: Vec<Vec<String>>,
    /// `for n in 1..100 step 10:`
    pub(super) repeat: Option<(u64, u64, usize)>,
    /// `&` at the end of the line: do not wait for the reply.
    pub(super) in_background: bool,
}

/// Parses a file. The error contains the line.
pub(super) fn parse(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let kind = kind_of(line).map_err(|why| format!("line {}: {why}: {line}", i + 1))?;
        match kind {
            Some(kind) => {
                steps.push(Step { line: i + 1, head: line.to_owned(), kind, body: Vec::new() });
            }
            None => {
                // Inside a configuration, empty lines and comments belong to the step.
                let texts = steps.iter().rev().take_while(|step| step.kind == Kind::Text).count();
                let texts = steps.split_off(steps.len() - texts);
                let step = steps
                    .last_mut()
                    .filter(|step| texts.is_empty() || matches!(step.kind, Kind::Directive(_)));
                let step = step.ok_or_else(|| {
                    format!("line {}: the line belongs to no step: {line}", i + 1)
                })?;
                step.body.extend(texts.into_iter().map(|text| text.head));
                step.body.push(line.to_owned());
            }
        }
    }
    Ok(steps)
}

/// Returns the kind of step that a line starts, or `None` if it continues the previous step.
fn kind_of(line: &str) -> Result<Option<Kind>, String> {
    if line.is_empty() || line.starts_with('#') {
        return Ok(Some(Kind::Text));
    }
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    if let Some(rest) = line.strip_prefix("@ ") {
        return Ok(Some(Kind::Directive(words(without_comment(rest)))));
    }
    if let Some(rest) = line.strip_prefix("$ ") {
        return Ok(Some(Kind::Shell(words(without_comment(rest)))));
    }
    let name = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).unwrap_or(line.len());
    match (name, &line[name..]) {
        (1.., rest) if rest.starts_with("> ") => {
            command(&line[..name], &rest[2..]).map(|command| Some(Kind::Command(command)))
        }
        (1.., rest) if without_comment(rest) == "<" => {
            Ok(Some(Kind::Read(line[..name].to_owned())))
        }
        _ => Ok(None),
    }
}

/// Removes a trailing comment, which starts with two spaces and a `#`.
fn without_comment(text: &str) -> &str {
    text.split_once("  #").map_or(text, |(before, _)| before).trim_end()
}

fn command(connection: &str, text: &str) -> Result<Command, String> {
    let mut text = without_comment(text);
    let mut command = Command { connection: connection.to_owned(), ..Command::default() };
    if let Some(before) = text.strip_suffix(" &") {
        (text, command.in_background) = (before, true);
    }
    let mut parts = text.split(" | ");
    text = parts.next().unwrap_or_default();
    command.filters =
        parts.map(|part| part.split_whitespace().map(str::to_owned).collect()).collect();
    if let Some(rest) = text.strip_prefix("for n in ") {
        let (range, rest) = rest.split_once(": ").ok_or("a loop is `for n in 1..9: COMMAND`")?;
        let (range, step) = range.split_once(" step ").unwrap_or((range, "1"));
        let (from, to) = range.split_once("..").ok_or("a range is `1..9`")?;
        let number = |text: &str| text.replace(',', "").parse::<u64>().map_err(|e| e.to_string());
        command.repeat = Some((number(from)?, number(to)?, number(step)? as usize));
        text = rest;
    }
    command.words = split(text)?;
    Ok(command)
}

/// Splits a command line into words, with the quoting rules of redis-cli.
fn split(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut bytes = text.bytes().peekable();
    loop {
        while bytes.next_if(|b| *b == b' ').is_some() {}
        let Some(first) = bytes.next() else { return Ok(words) };
        let mut word = Vec::new();
        if first == b'"' || first == b'\'' {
            loop {
                match bytes.next().ok_or("unbalanced quotes")? {
                    end if end == first => break,
                    b'\\' if first == b'"' => word.push(escaped(&mut bytes)?),
                    byte => word.push(byte),
                }
            }
        } else {
            word.push(first);
            while let Some(byte) = bytes.next_if(|b| *b != b' ') {
                word.push(byte);
            }
        }
        words.push(word);
    }
}

fn escaped(bytes: &mut impl Iterator<Item = u8>) -> Result<u8, String> {
    Ok(match bytes.next().ok_or("unbalanced quotes")? {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'x' => {
            let digits: String = bytes.take(2).map(char::from).collect();
            u8::from_str_radix(&digits, 16).map_err(|e| e.to_string())?
        }
        other => other,
    })
}
