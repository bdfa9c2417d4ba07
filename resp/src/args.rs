//! The arguments of one request: slices of the read buffer, found by the scanner.

use super::span::Span;

/// The arguments of one request, the command's name first. A view: copying it copies two pointers.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8], spans: &'a [Span]) -> Args<'a> {
        Args { bytes, spans }
    }

    /// How many there are, the command's name included.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is none. A request has at least one, a part of it may have none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Argument `index`; empty if there are fewer, so that a wrong index in a command cannot stop
    /// the server.
    #[inline]
    pub fn at(&self, index: usize) -> &'a [u8] {
        match self.spans.get(index) {
            Some(span) => &self.bytes[span.range()],
            None => &[],
        }
    }

    /// The arguments from `first` on.
    #[inline]
    pub fn from(&self, first: usize) -> Args<'a> {
        Args { bytes: self.bytes, spans: self.spans.get(first..).unwrap_or(&[]) }
    }

    /// The arguments in front of `end`.
    #[inline]
    pub fn until(&self, end: usize) -> Args<'a> {
        Args { bytes: self.bytes, spans: self.spans.get(..end).unwrap_or(self.spans) }
    }

    /// All, in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.spans.iter().map(move |span| &bytes[span.range()])
    }
}
