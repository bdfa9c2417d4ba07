//! Zeroed, huge-page-backed memory for tables, as atomic words.
//!
//! Fresh pages cost nothing until they are touched, so opening a table is instant whatever its
//! size; a table of 2 MiB or more asks for huge pages: what is read at random waits for the
//! translation of its address more than for the line itself.
//!
//! This is the one file of the workspace's engines with `unsafe`, for three things that safe Rust
//! cannot say:
//! - *View of the map as atomics.* The map is private, anonymous, zero-filled, page-aligned and
//!   owned by `Words`, which never hands out its bytes: all access goes through `&[AtomicU64]`, for
//!   which any bit pattern is valid. It is unmapped on drop only, when no borrow is left. Anonymous
//!   memory has no file behind it, so there is no SIGBUS from a truncated file; when the machine
//!   has no memory left the kernel's out-of-memory killer acts, as it does for any allocation.
//! - *Prefetch.* A hint; it reads nothing, whatever the address.
//! - *Bytes compared sixteen at a time.* Instructions that every x86-64 processor has; Rust wants
//!   that said where they are used.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::atomic::AtomicU64;

/// From this size on, tables ask for huge pages, and a table of a whole number of them lies in
/// nothing else.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What the kernel gives memory in.
const PAGE_BYTES: usize = 4096;

/// A fixed number of zeroed `AtomicU64`, aligned to a page.
pub struct Words {
    /// Raw: a view as `&[u8]`, even for a moment, would forbid all writes through what is derived
    /// from it.
    map: memmap2::MmapRaw,
    len: usize,
}

impl Words {
    /// `len` zeroed words. Fails only when the address space or the commit limit is exhausted.
    pub fn zeroed(len: usize) -> std::io::Result<Words> {
        let bytes = len.max(1).checked_mul(8).ok_or_else(|| {
            std::io::Error::new(std::io::ErrorKind::OutOfMemory, "table size overflows")
        })?;
        // Maps of whole huge pages are laid on their boundaries (by Linux since 6.7; before, the
        // first and the last part would lie in small ones).
        let is_large = bytes >= HUGE_PAGE_BYTES;
        let mapped = if is_large {
            bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).unwrap_or(bytes)
        } else {
            bytes
        };
        let map = memmap2::MmapOptions::new().len(mapped).map_anon()?;
        #[cfg(target_os = "linux")]
        if is_large {
            // What is behind the last whole one gets one, too, if it fills nearly all of it.
            let huge = (bytes + HUGE_PAGE_BYTES / 8) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            // A kernel without transparent huge pages refuses; small pages serve as well, only
            // slower.
            let _ = map.advise_range(memmap2::Advice::HugePage, 0, huge);
        }
        Ok(Words { map: map.into(), len })
    }

    /// Bytes of pages, touched or not.
    pub fn size_bytes(&self) -> usize {
        Words::bytes_of(self.len)
    }

    /// The same of `len` words.
    pub fn bytes_of(len: usize) -> usize {
        len.max(1).saturating_mul(8).div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES)
    }

    /// Hints that the cache line holding word `index` will be read soon. An index out of bounds
    /// does no harm.
    #[inline(always)]
    pub fn prefetch(&self, index: usize) {
        self.prefetch_lines::<1>(index);
    }

    /// The same for so many cache lines, from the one of word `index` on.
    #[inline(always)]
    pub fn prefetch_lines<const LINES: usize>(&self, index: usize) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..LINES {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let address =
                self.map.as_ptr().wrapping_add(index.wrapping_mul(8).wrapping_add(64 * line));
            // SAFETY: a hint: it reads nothing, and raises no fault whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = index;
    }
}

/// Hints that the cache line of `at` will be read soon.
///
/// Many hints are best given in short bursts, ten lines or twenty, with computing between them:
///
/// - A processor has room for some two dozen lines that are on their way, those of others among
///   them, and one may drop what goes beyond: on Zen 4 16 lines that are asked for one right after
///   the other all come, of 20 sometimes, of 24 always some do not (`bench/src/bin/hints.rs`),
///   which is a whole wait later.
/// - A hint for an address that the processor has no translation of holds up those behind it until
///   that is found, and half a dozen translations are looked for at a time, of the few hundred
///   instructions that are under way. So hints far apart, each behind the computing of its address,
///   take two to four times as long on memory of a gigabyte as those of a burst.
#[inline(always)]
pub fn prefetch<T>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    hint::<{ std::arch::x86_64::_MM_HINT_T0 }, T>(at);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The same for a line that will be written: it comes without the others' copies, so that the write
/// need not wait for these to go.
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
    // SAFETY: a hint: it reads nothing.
    unsafe { std::arch::x86_64::_mm_prefetch::<KIND>(std::ptr::from_ref(at).cast()) };
}

/// A bit for each byte of `words`, lowest byte first, that is `byte`. At most eight words.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn equal_bytes<const N: usize>(words: [u64; N], byte: u8) -> u64 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    const { assert!(N.is_multiple_of(2) && N <= 8) };
    let mut equal = 0;
    for i in (0..N).step_by(2) {
        // SAFETY: plain arithmetic on values; SSE2 is part of x86-64.
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

/// The same anywhere, eight bytes at a time (Lamport, Multiple Byte Processing with Full-Word
/// Instructions, 1975).
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
pub(crate) fn equal_bytes_by_word<const N: usize>(words: [u64; N], byte: u8) -> u64 {
    const LOW_BITS: u64 = 0x0101_0101_0101_0101;
    const HIGH_BITS: u64 = LOW_BITS << 7;
    /// Brings bit 8k to bit 56 + k.
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
        // and is only ever accessed as atomics (see the top of the file).
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
