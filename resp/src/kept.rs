//! Copies of requests that are executed later, when the read buffer already contains other data.

use super::args::Args;
use super::span::Span;

/// Estimated memory per request in bytes, in addition to its arguments.
const REQUEST_BYTES: usize = 2 * size_of::<usize>();

/// Queue of copied requests.
#[derive(Default)]
pub struct RequestQueue {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    /// End offsets of each request in `bytes` and in `spans`.
    ends: Vec<(usize, usize)>,
}

impl RequestQueue {
    /// Appends a copy of a request.
    pub fn push(&mut self, args: Args<'_>) {
        self.push_all(args.iter());
    }

    /// Appends a request with these arguments, given as text.
    pub fn push_words(&mut self, words: &[&str]) {
        self.push_all(words.iter().map(|word| word.as_bytes()));
    }

    /// Appends a request with these arguments.
    pub fn push_all<'w>(&mut self, words: impl Iterator<Item = &'w [u8]>) {
        let start = self.bytes.len();
        for word in words {
            let from = self.bytes.len() - start;
            self.bytes.extend_from_slice(word);
            self.spans.push(Span::new(from, self.bytes.len() - start));
        }
        self.ends.push((self.bytes.len(), self.spans.len()));
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the memory use in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.spans.len() * size_of::<Span>() + self.ends.len() * REQUEST_BYTES
    }

    /// Returns the first request, or an empty request if the queue is empty.
    pub fn first(&self) -> Args<'_> {
        self.iter().next().unwrap_or(Args::new(&[], &[]))
    }

    /// Iterates over the requests in order.
    pub fn iter(&self) -> impl Iterator<Item = Args<'_>> {
        let mut start = (0, 0);
        self.ends.iter().map(move |&end| {
            let (bytes, spans) = (start.0..end.0, start.1..end.1);
            start = end;
            Args::new(&self.bytes[bytes], &self.spans[spans])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Scan, Scanner};

    #[test]
    fn requests_are_kept_as_they_were() {
        let limits = Limits { max_args: 100, max_bulk_bytes: 100, unauthenticated: false };
        let bytes = b"SET a b\r\n*2\r\n$0\r\n\r\n$2\r\n\r\n\r\nPING\r\n";
        let (mut kept, mut at) = (RequestQueue::default(), 0);
        let mut scanner = Scanner::default();
        while let Scan::Request(length) = scanner.scan(&bytes[at..], &limits) {
            kept.push(scanner.args(&bytes[at..]));
            at += length;
        }
        let all: Vec<Vec<&[u8]>> = kept.iter().map(|args| args.iter().collect()).collect();
        assert_eq!(all, [vec![&b"SET"[..], b"a", b"b"], vec![b"", b"\r\n"], vec![b"PING"]]);
        assert_eq!((kept.len(), kept.bytes()), (3, 11 + 6 * 8 + 3 * 16));
    }
}
