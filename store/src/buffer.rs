//! Shrinks reusable buffers after a burst.

/// Capacity in bytes up to which buffers never shrink.
const MIN_CAPACITY_BYTES: usize = 256 << 10;

/// Empties a buffer. Shrinks the buffer if its capacity is large and less than a quarter of the
/// capacity was used.
///
/// A steady load therefore never reallocates. The first small use after a burst releases the
/// memory.
pub fn clear<T>(buffer: &mut Vec<T>) {
    let (used, has) = (buffer.len() * size_of::<T>(), buffer.capacity() * size_of::<T>());
    buffer.clear();
    if has > MIN_CAPACITY_BYTES && used < has / 4 {
        buffer.shrink_to(MIN_CAPACITY_BYTES / size_of::<T>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_small_use_after_a_burst_gives_back() {
        let mut buffer = Vec::new();
        for _ in 0..2 {
            buffer.extend(0..1_000_000_u64);
            clear(&mut buffer);
            assert!(
                buffer.is_empty() && buffer.capacity() >= 1_000_000,
                "a large buffer in use is kept"
            );
        }
        buffer.push(1);
        clear(&mut buffer);
        assert!(buffer.is_empty() && buffer.capacity() <= MIN_CAPACITY_BYTES / 8);
        buffer.extend(0..1000);
        clear(&mut buffer);
        assert!(buffer.capacity() >= 1000);
    }
}
