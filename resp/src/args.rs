//! Arguments of a request, as slices of the read buffer.

use super::span::Span;

/// Arguments of one request, beginning with the command's name. Copying the value is cheap, because
/// it contains only two slices.
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

    /// Returns the number of arguments, including the command's name.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no arguments. A complete request has at least one argument; a part of a
    /// request may have none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the argument at `index`. Returns an empty slice if the index is out of range, so
    /// that a bug in a command cannot crash the server.
    #[inline]
    pub fn at(&self, index: usize) -> &'a [u8] {
        match self.spans.get(index) {
            Some(span) => &self.bytes[span.range()],
            None => &[],
        }
    }

    /// Returns the arguments from `first` on.
    #[inline]
    pub fn from(&self, first: usize) -> Args<'a> {
        Args { bytes: self.bytes, spans: self.spans.get(first..).unwrap_or(&[]) }
    }

    /// Returns the arguments before `end`.
    #[inline]
    pub fn until(&self, end: usize) -> Args<'a> {
        Args { bytes: self.bytes, spans: self.spans.get(..end).unwrap_or(self.spans) }
    }

    /// Iterates over the arguments in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.spans.iter().map(move |span| &bytes[span.range()])
    }
}
