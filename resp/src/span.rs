//! Range of an argument in the bytes of its request.

use std::ops::Range;

/// Range of one argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    #[inline]
    pub(super) fn new(start: usize, end: usize) -> Span {
        // The cast is lossless, because the configuration limits the query buffer to less than 4
        // GiB.
        Span {
            start: u32::try_from(start).unwrap_or(u32::MAX),
            end: u32::try_from(end).unwrap_or(u32::MAX),
        }
    }

    #[inline]
    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}
