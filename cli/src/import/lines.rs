//! Opens plain or gzip files and reads lines of bounded length.

use flate2::bufread::GzDecoder;
use indicatif::{HumanCount, ProgressBar, ProgressState, ProgressStyle};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Maximum length of a line. A longer line is counted as bad and skipped without buffering.
pub(super) const MAX_LINE_BYTES: usize = 64 << 10;

pub(crate) fn rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    let _ = write!(out, "{}/s", HumanCount(state.per_sec() as u64));
}

/// Opens a plain or gzip file, or standard input. The progress bar shows the position in the file,
/// in bytes.
pub(super) fn open(path: &Path) -> io::Result<(ProgressBar, Box<dyn BufRead>)> {
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
        true => Box::new(BufReader::with_capacity(256 << 10, Gzip::new(reader))),
        false => Box::new(reader),
    };
    Ok((progress, reader))
}

/// Reads the concatenated members of a gzip file. Like gzip, skips zero bytes after a member,
/// because tapes and some tools pad files with zeros.
struct Gzip<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Gzip<R> {
    fn new(reader: R) -> Gzip<R> {
        Gzip(Some(GzDecoder::new(reader)))
    }
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let bytes = member.read(out)?;
            if bytes > 0 || out.is_empty() {
                return Ok(bytes);
            }
            let rest = self.0.take().map(GzDecoder::into_inner);
            if let Some(mut rest) = rest
                && !skip_zeros(&mut rest)?
            {
                self.0 = Some(GzDecoder::new(rest));
            }
        }
        Ok(0)
    }
}

/// Skips zeros. Returns whether the input ends after them.
fn skip_zeros(reader: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let buffer = reader.fill_buf()?;
        let length = buffer.len();
        let zeros = buffer.iter().take_while(|byte| **byte == 0).count();
        reader.consume(zeros);
        if zeros < length || length == 0 {
            return Ok(length == 0);
        }
    }
}

pub(super) struct Lines {
    pub(super) line: Vec<u8>,
    /// Line number of the last line read. The first line is 1.
    pub(super) number: u64,
}

impl Lines {
    /// Returns the next non-empty line without its line break, or `Some(Err(reason))` for a line
    /// that is too long.
    pub(super) fn next(
        &mut self,
        reader: &mut dyn BufRead,
    ) -> io::Result<Option<Result<&[u8], &'static str>>> {
        loop {
            self.line.clear();
            if reader.take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut self.line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.line.len() > MAX_LINE_BYTES && !self.line.ends_with(b"\n") {
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

/// Discards input up to and including the next line break.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn zeros_behind_the_last_gzip_member_are_ignored() {
        let read = |parts: &[&[u8]]| {
            let all = parts.concat();
            let mut text = String::new();
            let gzip = Gzip::new(BufReader::with_capacity(16, &all[..]));
            BufReader::new(gzip).read_to_string(&mut text).map(|_| text)
        };
        let (one, two) = (gzip("1,2\n"), gzip("3,4\n"));
        assert_eq!(read(&[&one]).unwrap(), "1,2\n");
        assert_eq!(read(&[&one, &two, &[0; 512]]).unwrap(), "1,2\n3,4\n");
        assert_eq!(read(&[&one, &[0; 7], &two]).unwrap(), "1,2\n3,4\n");
        assert!(read(&[&one, &[0; 7], b"x"]).is_err());
        assert!(read(&[&one[..one.len() - 8], &[0; 8]]).is_err(), "checksum mismatch");
    }

    #[test]
    fn lines_are_bounded_and_numbered() {
        let long = "9".repeat(10 * MAX_LINE_BYTES);
        let text = format!("\u{feff}a,b\r\n\n{long}\nlast");
        let (mut reader, mut lines) = (io::Cursor::new(text), Lines { line: vec![], number: 0 });
        assert_eq!(lines.next(&mut reader).unwrap(), Some(Ok(&b"a,b"[..])));
        assert!(lines.next(&mut reader).unwrap().unwrap().is_err());
        assert!(lines.line.capacity() < 3 * MAX_LINE_BYTES);
        assert_eq!(lines.next(&mut reader).unwrap(), Some(Ok(&b"last"[..])));
        assert_eq!(lines.number, 4);
        assert_eq!(lines.next(&mut reader).unwrap(), None);
    }
}
