//! Reads CSV records with the parser of the `csv` crate: RFC 4180 quotes, line breaks inside
//! quotes, and lines that end with LF, CRLF or CR.
//!
//! Records are bounded. An unclosed quote turns the rest of the file into one record, which is
//! counted as bad and not buffered.

use super::lines::MAX_LINE_BYTES;
use csv_core::{ReadRecordResult, Reader};
use std::io::{self, BufRead};

const MAX_COLUMNS: usize = 1024;

pub(super) struct Columns {
    text: Vec<u8>,
    ends: Vec<usize>,
    count: usize,
}

impl Columns {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn get(&self, column: usize) -> &[u8] {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.text[start..self.ends[column]]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i))
    }

    fn is_blank(&self) -> bool {
        self.count == 0 || self.count == 1 && self.get(0).trim_ascii().is_empty()
    }
}

pub(super) struct Records {
    csv: Reader,
    pub(super) columns: Columns,
    /// Line number at which the last record begins. The first line is 1.
    pub(super) line: u64,
    /// Line number of the next line.
    next_line: u64,
    /// Whether the last byte was a CR. If so, an LF that follows belongs to the same line end.
    after_cr: bool,
}

impl Records {
    pub(super) fn new() -> Records {
        let columns =
            Columns { text: vec![0; MAX_LINE_BYTES], ends: vec![0; MAX_COLUMNS], count: 0 };
        Records { csv: Reader::new(), columns, line: 1, next_line: 1, after_cr: false }
    }

    /// Reads the next record that is not empty into [`Records::columns`]. Returns
    /// `Some(Err(reason))` for an unusable record.
    pub(super) fn next(
        &mut self,
        reader: &mut dyn BufRead,
    ) -> io::Result<Option<Result<(), &'static str>>> {
        loop {
            let outcome = self.record(reader)?;
            if outcome != Some(Ok(())) || !self.columns.is_blank() {
                return Ok(outcome);
            }
        }
    }

    fn record(&mut self, reader: &mut dyn BufRead) -> io::Result<Option<Result<(), &'static str>>> {
        let (mut written, mut count, mut is_begun, mut is_long) = (0, 0, false, false);
        loop {
            let input = reader.fill_buf()?;
            let is_end = input.is_empty();
            // The end of the file also ends a record, except inside quotes.
            let input: &[u8] = if is_end { b"\n" } else { input };
            let (result, read, more, ends) = self.csv.read_record(
                input,
                &mut self.columns.text[written..],
                &mut self.columns.ends[count..],
            );
            if !is_end {
                is_begun = self.count_lines(is_begun, &input[..read]);
                reader.consume(read);
            }
            (written, count) = (written + more, count + ends);
            match result {
                ReadRecordResult::InputEmpty if is_end && is_begun => {
                    self.csv.reset();
                    return Ok(Some(Err(
                        "unterminated quoted field: the rest of the file was not read",
                    )));
                }
                ReadRecordResult::InputEmpty if is_end => return Ok(None),
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    // Discard the rest of the record by overwriting the buffer.
                    (written, count, is_long) = (0, 0, true);
                }
                ReadRecordResult::Record if is_long => {
                    return Ok(Some(Err("longer than 65536 bytes or 1024 columns")));
                }
                ReadRecordResult::Record => {
                    self.columns.count = count;
                    return Ok(Some(Ok(())));
                }
                // The first read may have consumed only the UTF-8 byte order mark.
                ReadRecordResult::End if !is_end => self.csv.reset(),
                ReadRecordResult::End => return Ok(None),
            }
        }
    }

    /// Counts the line ends in `bytes`. A record begins after any empty lines before it. Returns
    /// whether the record has begun.
    fn count_lines(&mut self, mut is_begun: bool, bytes: &[u8]) -> bool {
        for &byte in bytes {
            match byte {
                b'\n' if self.after_cr => {}
                b'\n' | b'\r' => self.next_line += 1,
                _ if !is_begun => {
                    is_begun = true;
                    self.line = self.next_line;
                }
                _ => {}
            }
            self.after_cr = byte == b'\r';
        }
        is_begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the line of each record with its columns or error. Also reads the text with small
    /// buffers, and asserts that the result is the same.
    fn records(text: &str) -> Vec<(u64, Result<Vec<String>, &'static str>)> {
        let of = |capacity| {
            let mut reader = io::BufReader::with_capacity(capacity, text.as_bytes());
            let (mut records, mut all) = (Records::new(), Vec::new());
            while let Some(outcome) = records.next(&mut reader).unwrap() {
                let columns = records.columns.iter();
                let columns = columns.map(|c| String::from_utf8_lossy(c).into_owned()).collect();
                all.push((records.line, outcome.map(|()| columns)));
            }
            all
        };
        let all = of(1 << 16);
        (3..20).for_each(|capacity| assert_eq!(of(capacity), all, "{text:?}"));
        all
    }

    fn columns(line: &str) -> Vec<String> {
        records(line).remove(0).1.unwrap()
    }

    #[test]
    fn columns_are_split_as_csv_has_them() {
        assert_eq!(columns("1,2,3"), ["1", "2", "3"]);
        assert_eq!(columns("2013-09-12 12:31:14,3631614501919378,,833933534602").len(), 4);
        assert_eq!(columns("a,"), ["a", ""]);
        assert_eq!(columns(","), ["", ""]);
        assert_eq!(columns("\"1\",\"a,\"\"b\",3"), ["1", "a,\"b", "3"]);
        assert_eq!(columns("\"a\r\nb\",2"), ["a\r\nb", "2"]);
        assert_eq!(columns("1,bob \n"), ["1", "bob "]);
        assert_eq!(columns("x"), ["x"]);
    }

    #[test]
    fn lines_are_counted_by_any_line_break_also_inside_of_quotes() {
        for end in ["\n", "\r\n", "\r"] {
            let text = ["\u{feff}a,b", "", "1,\"2", "3\"", "  ", "4,5"].join(end);
            let quoted = format!("2{end}3");
            let expected = [(1, vec!["a", "b"]), (3, vec!["1", &quoted]), (6, vec!["4", "5"])];
            let found = records(&text);
            let found: Vec<(u64, Vec<&str>)> = found
                .iter()
                .map(|(line, all)| (*line, all.as_ref().unwrap().iter().map(|c| &c[..]).collect()))
                .collect();
            assert_eq!(found, expected, "{end:?}");
        }
    }

    #[test]
    fn quote_that_is_never_closed_is_an_error() {
        let found = records("1,2\n\"3,4\n5,6\n");
        assert_eq!(found[0], (1, Ok(vec!["1".to_owned(), "2".to_owned()])));
        assert!(found.len() == 2 && found[1].0 == 2, "{found:?}");
        assert!(found[1].1.as_ref().unwrap_err().contains("unterminated quoted field"));
    }

    #[test]
    fn records_are_bounded() {
        let long = "9".repeat(10 * MAX_LINE_BYTES);
        let mut reader = io::Cursor::new(format!("a,b\n\n{long}\n{}\nlast", ",".repeat(5000)));
        let mut records = Records::new();
        assert_eq!(records.next(&mut reader).unwrap(), Some(Ok(())));
        for line in [3, 4] {
            assert!(records.next(&mut reader).unwrap().unwrap().is_err());
            assert_eq!(records.line, line);
        }
        assert_eq!(records.next(&mut reader).unwrap(), Some(Ok(())));
        assert_eq!((records.line, records.columns.get(0)), (5, &b"last"[..]));
        assert_eq!(records.next(&mut reader).unwrap(), None);
        let mut unclosed = io::Cursor::new(format!("\"{long}"));
        let mut records = Records::new();
        assert!(
            records
                .next(&mut unclosed)
                .unwrap()
                .unwrap()
                .unwrap_err()
                .contains("unterminated quoted field")
        );
        assert_eq!(records.next(&mut unclosed).unwrap(), None);
    }
}
