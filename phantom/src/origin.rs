//! What answers for a pair: for tools that show how an answer came about. Not for the page path.

use crate::Member;
use crate::space::Space;

/// What answers for a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is set, and held exactly: its id lies far ahead of all others.
    Outlier,
    /// Nothing: the id lies below the horizon.
    BelowHorizon,
    /// It was set and unset again, which is held exactly.
    Unset,
    /// A table's filters.
    Filter {
        /// The lowest id of the table's range.
        low: u64,
        /// The highest (inclusive).
        last: u64,
        /// The filters lie on the disk.
        is_cold: bool,
    },
}

impl Space {
    /// What answers for this pair at the moment.
    pub fn origin(&self, id: u64, member: &Member) -> Origin {
        let pair = self.pair(id, member);
        if self.is_outlier(&pair) {
            return Origin::Outlier;
        }
        match self.table_over(id) {
            None => Origin::BelowHorizon,
            Some((_, table)) if table.revoked.contains(pair.hash()) => Origin::Unset,
            Some(((low, last), table)) => {
                Origin::Filter { low, last, is_cold: table.cold().is_some() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn a_pair_is_answered_by_a_filter_exactly_once_unset_and_by_nothing_below_the_horizon() {
        let space = Space::new(Options { first_id: 10, ..Options::default() }).unwrap();
        let member = Member::Number(5);
        for id in 10..5000 {
            space.add(id, &member).unwrap();
        }
        assert!(matches!(
            space.origin(20, &member),
            Origin::Filter { low: 10, is_cold: false, .. }
        ));
        space.remove(20, &member).unwrap();
        assert_eq!(space.origin(20, &member), Origin::Unset);
        assert_eq!(space.origin(9, &member), Origin::BelowHorizon);
        space.add(u64::MAX / 2, &member).unwrap();
        assert_eq!(space.origin(u64::MAX / 2, &member), Origin::Outlier);
    }
}
