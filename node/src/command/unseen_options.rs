//! Options of PH.UNSEEN, which precede its ids.

use resp::Args;

/// One option. A missing value is `None`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum UnseenOption<'a> {
    /// `LIMIT count`
    Limit(Option<&'a [u8]>),
    /// `BELOW seen|unseen`
    Below(Option<&'a [u8]>),
    /// `BITS`
    Bits,
    /// `MARK`
    Mark,
}

/// Iterator over the options of a request. The iteration ends at the first argument that is not an
/// option.
pub struct Options<'a> {
    args: Args<'a>,
    at: usize,
}

impl<'a> Options<'a> {
    /// Iterates over the options from argument `first` on.
    pub fn new(args: Args<'a>, first: usize) -> Options<'a> {
        Options { args, at: first }
    }

    /// Returns the position after the options.
    pub fn end(mut self) -> usize {
        self.by_ref().for_each(drop);
        self.at
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = UnseenOption<'a>;

    fn next(&mut self) -> Option<UnseenOption<'a>> {
        let (word, next) = (self.args.at(self.at), self.at + 1);
        let value = (next < self.args.len()).then(|| self.args.at(next));
        let (option, end) = if word.eq_ignore_ascii_case(b"LIMIT") {
            (UnseenOption::Limit(value), next + 1)
        } else if word.eq_ignore_ascii_case(b"BELOW") {
            (UnseenOption::Below(value), next + 1)
        } else if word.eq_ignore_ascii_case(b"BITS") {
            (UnseenOption::Bits, next)
        } else if word.eq_ignore_ascii_case(b"MARK") {
            (UnseenOption::Mark, next)
        } else {
            return None;
        };
        self.at = end.min(self.args.len());
        Some(option)
    }
}
