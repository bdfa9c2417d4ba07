//! A term identifies the promotion that began a segment of the log.

/// Returns the term of a node promoted from `term`, `by` promotions later.
///
/// The upper half counts promotions. The lower half is random and distinguishes two nodes that were
/// promoted from the same history. If the count is at its maximum, which only a faulty master can
/// cause, the lower half increases instead. A node can therefore always be promoted, and terms
/// never decrease.
pub fn next_term(term: u64, by: u32, random: u32) -> u64 {
    match promotions(term) {
        u32::MAX => term.saturating_add(u64::from(random | 1)),
        count => u64::from(count.saturating_add(by.max(1))) << 32 | u64::from(random),
    }
}

/// Returns the number of promotions that led to a term.
pub fn promotions(term: u64) -> u32 {
    (term >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_rises_as_long_as_there_is_a_higher_one() {
        let last = u64::from(u32::MAX) << 32;
        for term in
            [0, 1, u64::from(u32::MAX), 1 << 32, last - 1, last, last + 1, u64::MAX - 1, u64::MAX]
        {
            for (by, random) in [(0, 0), (1, 0), (1, 1), (7, 1), (u32::MAX, u32::MAX)] {
                let next = next_term(term, by, random);
                assert!(next > term || next == u64::MAX, "{term:x} and {random:x}: {next:x}");
                assert!(
                    promotions(next) > promotions(term) || term >= last,
                    "{term:x} and {random:x}: {next:x}"
                );
            }
        }
    }
}
