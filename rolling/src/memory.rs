//! Zeroed memory for tables, viewed as atomic words and backed by huge pages.
//!
//! The kernel allocates a page when it is first touched, so opening a table of any size is fast.
//! Tables of 2 MiB or more request huge pages. With small pages, random reads would wait longer for
//! address translation than for the data.
//!
//! Of the crates `rolling`, `counter` and `phantom` only this file contains `unsafe`, for three
//! reasons:
//! - *Viewing the map as atomics.* The map is private, anonymous, zeroed, page-aligned and owned by
//!   `Words`, which never exposes its bytes. All access is through `&[AtomicU64]`, for which any
//!   bit pattern is valid. The destructor unmaps the memory, when no borrow exists. The memory is
//!   anonymous, so no truncated file can raise SIGBUS. If the machine runs out of memory, the
//!   kernel's OOM killer acts as for any allocation.
//! - *Prefetching.* The instruction is a hint and never faults, whatever the address.
//! - *Comparing sixteen bytes at a time.* Uses SSE2, which every x86-64 processor has.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::atomic::AtomicU64;

/// Size of a huge page. Maps of at least this size request huge pages.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Size of a regular (small) page.
const PAGE_BYTES: usize = 4096;

/// A fixed number of zeroed `AtomicU64`, aligned to a page.
pub struct Words {
    /// A raw map, because creating a `&[u8]` view of the memory, even briefly, would invalidate the
    /// pointers used for writes.
    map: memmap2::MmapRaw,
    len: usize,
}

impl Words {
    /// Maps `len` zeroed words.
    pub fn zeroed(len: usize) -> std::io::Result<Words> {
        let bytes = len.max(1).checked_mul(8).ok_or_else(|| {
            std::io::Error::new(std::io::ErrorKind::OutOfMemory, "table size overflows")
        })?;
        // Linux aligns maps of whole huge pages since 6.7. Older kernels leave small pages at both
        // ends.
        let is_large = bytes >= HUGE_PAGE_BYTES;
        let mapped = if is_large {
            bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).unwrap_or(bytes)
        } else {
            bytes
        };
        let map = memmap2::MmapOptions::new().len(mapped).map_anon()?;
        #[cfg(target_os = "linux")]
        if is_large {
            // Round up if the last huge page is at least 7/8 full.
            let huge = (bytes + HUGE_PAGE_BYTES / 8) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            // Fails on a kernel without transparent huge pages. The map then uses small pages and
            // is slower.
            let _ = map.advise_range(memmap2::Advice::HugePage, 0, huge);
        }
        Ok(Words { map: map.into(), len })
    }

    /// Returns the size in bytes, rounded up to whole pages. Pages that were never touched count as
    /// well.
    pub fn size_bytes(&self) -> usize {
        Words::bytes_of(self.len)
    }

    /// Size of `len` words in bytes, rounded up to whole pages.
    pub fn bytes_of(len: usize) -> usize {
        len.max(1).saturating_mul(8).div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES)
    }

    /// Prefetches the cache line of word `index`, which may be out of bounds.
    #[inline(always)]
    pub fn prefetch(&self, index: usize) {
        self.prefetch_lines::<1>(index);
    }

    /// Prefetches `LINES` consecutive cache lines, starting with the line that contains word
    /// `index`.
    #[inline(always)]
    pub fn prefetch_lines<const LINES: usize>(&self, index: usize) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..LINES {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let address =
                self.map.as_ptr().wrapping_add(index.wrapping_mul(8).wrapping_add(64 * line));
            // SAFETY: a prefetch is a hint; it never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = index;
    }
}

/// Prefetches the cache line that contains `at`, for a read.
///
/// Issue hints in short bursts of ten to twenty cache lines, with computation between the bursts:
///
/// - A processor tracks about two dozen outstanding cache lines and may drop further hints. On Zen
///   4 sixteen consecutive hints all succeed, twenty sometimes, and 24 never. A dropped hint later
///   costs a full cache miss.
/// - A hint that needs an address translation delays the hints behind it. Processors resolve about
///   six translations at a time, within a window of a few hundred instructions. With a gigabyte of
///   tables, hints separated by address computations take two to four times as long as a burst.
#[inline(always)]
pub fn prefetch<T>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    hint::<{ std::arch::x86_64::_MM_HINT_T0 }, T>(at);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches the cache line that contains `at`, for a write. This also invalidates the copies of
/// other cores in advance.
#[inline(always)]
pub fn prefetch_to_write<T>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    hint::<{ std::arch::x86_64::_MM_HINT_ET0 }, T>(at);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn hint<const KIND: i32, T>(at: &T) {
    // SAFETY: a prefetch is a hint; it never faults.
    unsafe { std::arch::x86_64::_mm_prefetch::<KIND>(std::ptr::from_ref(at).cast()) };
}

/// Returns a bitmap of the bytes of `words` that equal `byte`. The lowest bit stands for the lowest
/// byte. There may be at most eight words.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn equal_bytes<const N: usize>(words: [u64; N], byte: u8) -> u64 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    const { assert!(N.is_multiple_of(2) && N <= 8) };
    let mut equal = 0;
    for i in (0..N).step_by(2) {
        // SAFETY: arithmetic on values; SSE2 is part of x86-64.
        let mask = unsafe {
            let sixteen = _mm_set_epi64x(words[i + 1] as i64, words[i] as i64);
            _mm_movemask_epi8(_mm_cmpeq_epi8(sixteen, _mm_set1_epi8(byte as i8)))
        };
        equal |= (mask as u64) << (8 * i);
    }
    equal
}

#[cfg(not(target_arch = "x86_64"))]
pub use equal_bytes_by_word as equal_bytes;

/// Portable version of [`equal_bytes`] that compares eight bytes at a time (Lamport, Multiple Byte
/// Processing with Full-Word Instructions, 1975).
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
pub(crate) fn equal_bytes_by_word<const N: usize>(words: [u64; N], byte: u8) -> u64 {
    const LOW_BITS: u64 = 0x0101_0101_0101_0101;
    const HIGH_BITS: u64 = LOW_BITS << 7;
    /// Multiplier that moves bit `8k` to bit `56 + k`.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let mut equal = 0;
    for (i, word) in words.into_iter().enumerate() {
        let x = word ^ (u64::from(byte) * LOW_BITS);
        let zeros = !(((x & !HIGH_BITS) + !HIGH_BITS) | x) & HIGH_BITS;
        equal |= ((zeros >> 7).wrapping_mul(GATHER) >> 56) << (8 * i);
    }
    equal
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline(always)]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the map is page-aligned, at least `len * 8` bytes long, lives as long as `self`,
        // and is only accessed as atomics (see the head of this file).
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().cast::<AtomicU64>(), self.len) }
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
            words.prefetch_lines::<2>(0);
            words.prefetch_lines::<2>(len.wrapping_sub(1));
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(Words::zeroed(usize::MAX).is_err());
        assert!(Words::zeroed(usize::MAX / 8).is_err());
    }

    #[test]
    fn equal_bytes_are_found_exactly() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..if cfg!(miri) { 50 } else { 50_000 } {
            let some = [0, 1, 0x7F, 0x80, 0xFF, rng.u8(..)];
            let bytes: [[u8; 8]; 8] =
                std::array::from_fn(|_| std::array::from_fn(|_| some[rng.usize(0..6)]));
            let byte = some[rng.usize(0..6)];
            let words = bytes.map(u64::from_le_bytes);
            let expected =
                (0..64).fold(0, |bits, i| bits | u64::from(bytes.as_flattened()[i] == byte) << i);
            assert_eq!(equal_bytes(words, byte), expected, "{byte} in {bytes:?}");
            assert_eq!(equal_bytes_by_word(words, byte), expected, "{byte} in {bytes:?}");
            assert_eq!(
                equal_bytes(*words.first_chunk::<4>().unwrap(), byte),
                expected & 0xFFFF_FFFF
            );
        }
    }
}
