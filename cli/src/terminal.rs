//! Terminal output: colour if supported, numbers with separators, and tables that fit 80 columns.

use std::ffi::OsStr;
use std::io::{IsTerminal, Write};

#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    colour: bool,
}

impl Paint {
    /// Enables colour if stdout is a terminal, unless `NO_COLOR` (<https://no-color.org>) is set or
    /// the terminal is dumb.
    pub(super) fn of_stdout() -> Paint {
        let var = |name| std::env::var_os(name).unwrap_or_default();
        Paint::choose(std::io::stdout().is_terminal(), &var("NO_COLOR"), &var("TERM"))
    }

    fn choose(terminal: bool, no_color: &OsStr, term: &OsStr) -> Paint {
        Paint { colour: terminal && no_color.is_empty() && term != "dumb" }
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(super) fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(super) fn red(self, text: &str) -> String {
        self.with("31", text)
    }
}

/// Formats a number with separators: `501,184`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Align {
    Left,
    Right,
    Centre,
}

/// Formats a table with two leading spaces and columns two spaces apart.
///
/// `paint` receives the row (0 is the header), the column and the padded cell. Lines have no
/// trailing spaces.
pub(super) fn table(
    columns: &[Align],
    rows: &[Vec<String>],
    paint: impl Fn(usize, usize, &str) -> String,
) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for (y, row) in rows.iter().enumerate() {
        let last = row.iter().rposition(|cell| !cell.is_empty()).unwrap_or(0);
        for (x, cell) in row.iter().enumerate().take(last + 1) {
            let wide = widths[x];
            let padded = match columns[x] {
                Align::Left if x == last => cell.clone(),
                Align::Left => format!("{cell:<wide$}"),
                Align::Right => format!("{cell:>wide$}"),
                Align::Centre => {
                    let padded = format!("{cell:^wide$}");
                    if x == last { padded.trim_end().to_owned() } else { padded }
                }
            };
            text.push_str("  ");
            text.push_str(&paint(y, x, &padded));
        }
        text.push('\n');
    }
    text
}

/// Prints to standard output. A closed pipe (`| head`) is not an error.
pub(super) fn print(text: &str) -> Result<(), String> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("cannot write: {e}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_needs_a_terminal_and_no_refusal() {
        let colour = |terminal, no_color: &str, term: &str| {
            Paint::choose(terminal, no_color.as_ref(), term.as_ref()).bold("x") != "x"
        };
        assert!(colour(true, "", "xterm"));
        assert!(!colour(false, "", "xterm"), "a pipe");
        assert!(!colour(true, "1", "xterm"), "NO_COLOR");
        assert!(!colour(true, "", "dumb"));
    }

    #[test]
    fn figures_are_grouped_by_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (501_184, "501,184")] {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn tables_are_aligned_and_end_no_line_in_spaces() {
        let rows = [["post", "likes", "liked"], ["17", "1,623", "♥"], ["5250", "9", ""]]
            .map(|row| row.map(str::to_owned).to_vec());
        let text = table(&[Align::Left, Align::Right, Align::Centre], &rows, |_, _, c| c.into());
        assert_eq!(text, "  post  likes  liked\n  17    1,623    ♥\n  5250      9\n");
    }
}
