//! Buffers that are filled and emptied again and again: what a burst took is given back.

/// What an empty buffer may keep, in bytes, whatever it was used for.
const KEPT_BYTES: usize = 256 << 10;

/// Empties a buffer. It keeps its memory for the next use, unless it has much of it and this use
/// took less than a quarter: so under a steady load nothing is allocated anew, and the first small
/// use after a burst gives back what the burst took.
pub fn clear<T>(buffer: &mut Vec<T>) {
    let (used, has) = (buffer.len() * size_of::<T>(), buffer.capacity() * size_of::<T>());
    buffer.clear();
    if has > KEPT_BYTES && used < has / 4 {
        buffer.shrink_to(KEPT_BYTES / size_of::<T>());
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
            assert!(buffer.is_empty() && buffer.capacity() >= 1_000_000, "it will be so again");
        }
        buffer.push(1);
        clear(&mut buffer);
        assert!(buffer.is_empty() && buffer.capacity() <= KEPT_BYTES / 8);
        buffer.extend(0..1000);
        clear(&mut buffer);
        assert!(buffer.capacity() >= 1000);
    }
}
