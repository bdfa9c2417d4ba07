//! Columns of a line of CSV.

/// The columns of one line, quotes resolved as RFC 4180 has them.
#[derive(Default)]
pub(super) struct Columns {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Columns {
    pub(super) fn split(&mut self, line: &[u8]) {
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

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, column: usize) -> &[u8] {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.text[start..self.ends[column]]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
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
}
