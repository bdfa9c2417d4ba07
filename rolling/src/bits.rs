//! Sets of integers from 0 to 31, stored as bitmaps.

/// Returns the elements of a set in ascending order.
#[inline(always)]
pub fn ones(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        // Tells the compiler that the index is below 32.
        let first = (set != 0).then(|| set.trailing_zeros() as usize % 32);
        set &= set.wrapping_sub(1);
        first
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_set_has_the_numbers_of_its_bits() {
        for set in [0, 1, 1 << 31, 0b1010_0110, u32::MAX] {
            let expected: Vec<usize> = (0..32).filter(|i| set >> i & 1 == 1).collect();
            assert_eq!(super::ones(set).collect::<Vec<_>>(), expected);
        }
    }
}
