//! Where a word of a request lies in its bytes.

use std::ops::Range;

/// Where one argument lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    #[inline]
    pub(super) fn new(start: usize, end: usize) -> Span {
        // The query buffer is limited to less than 4 GiB by the configuration, so neither is ever
        // cut.
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
