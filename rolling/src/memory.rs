//! Zeroed, huge-page-backed memory for tables, as atomic words.
//!
//! Fresh pages cost nothing until they are touched, so opening a table is instant whatever its size; a table of 2 MiB or more
//! asks for huge pages, which makes random access a tenth to a third faster (fewer TLB misses).
//!
//! This is the one file of the crate with `unsafe`, for two things that safe Rust cannot say:
//! - *View of the map as atomics.* The map is private, anonymous, zero-filled, page-aligned and owned by `Words`, which never
//!   hands out its bytes: all access goes through `&[AtomicU64]`, for which any bit pattern is valid. It is unmapped on drop only,
//!   when no borrow is left. Anonymous memory has no file behind it, so there is no SIGBUS from a truncated file; when the
//!   machine has no memory left the kernel's out-of-memory killer acts, as it does for any allocation.
//! - *Prefetch.* A hint; it reads nothing, whatever the address.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::atomic::AtomicU64;

/// From this size on, tables ask for huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A fixed number of zeroed `AtomicU64`, aligned to a page.
pub struct Words {
    map: memmap2::MmapMut,
    len: usize,
}

impl Words {
    /// `len` zeroed words. Fails only when the address space or the commit limit is exhausted.
    pub fn zeroed(len: usize) -> std::io::Result<Words> {
        let bytes = len
            .max(1)
            .checked_mul(8)
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::OutOfMemory, "table size overflows"))?;
        let map = memmap2::MmapOptions::new().len(bytes).map_anon()?;
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_PAGE_BYTES {
            // A kernel without transparent huge pages refuses; small pages serve as well, only slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Words { map, len })
    }

    /// Size in bytes, touched or not.
    pub fn size_bytes(&self) -> usize {
        self.len * 8
    }

    /// Hints that the cache line holding word `index` will be read soon. An index out of bounds is ignored.
    #[inline(always)]
    pub fn prefetch(&self, index: usize) {
        #[cfg(target_arch = "x86_64")]
        if index < self.len {
            // SAFETY: a hint that dereferences nothing, and the address lies within the map.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(self.map.as_ptr().add(index * 8).cast());
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = index;
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline(always)]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the map is page-aligned, at least `len * 8` bytes long, lives as long as `self`, and is only ever accessed as
        // atomics (see the top of the file).
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast::<AtomicU64>(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn fresh_words_are_zero_and_keep_what_is_stored() {
        for len in [0, 1, 511, 512, 1 << 19] {
            let words = Words::zeroed(len).unwrap();
            assert_eq!(words.len(), len);
            assert!(words.iter().all(|w| w.load(Relaxed) == 0));
            for (i, w) in words.iter().enumerate() {
                w.store(i as u64, Relaxed);
            }
            assert!(words.iter().enumerate().all(|(i, w)| w.load(Relaxed) == i as u64));
            words.prefetch(0);
            words.prefetch(usize::MAX);
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(Words::zeroed(usize::MAX).is_err());
        assert!(Words::zeroed(usize::MAX / 8).is_err());
    }
}
