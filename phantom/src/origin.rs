//! Source of an answer, for diagnostic tools; not used on the hot path.

use crate::Member;
use crate::space::Space;

/// Source of the answer for a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The pair is set, and the space stores it exactly as an outlier (a pair of an id far above
    /// all tables).
    Outlier,
    /// The id is below the horizon, so its state is unknown.
    RecycledIds,
    /// The pair is in the set of deleted pairs.
    Unset,
    /// The answer comes from the filters of a table.
    Filter {
        /// Lowest id of the table's range.
        low: u64,
        /// Highest id of the table's range (inclusive).
        last: u64,
        /// Whether the filters are on disk.
        is_cold: bool,
    },
}

impl Space {
    /// Returns the current source of the answer for this pair.
    pub fn origin(&self, id: u64, member: &Member) -> Origin {
        let pair = self.pair(id, member);
        if self.is_outlier(&pair) {
            return Origin::Outlier;
        }
        match self.table_over(id) {
            None => Origin::RecycledIds,
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
    fn origin_is_filter_or_unset_or_below_horizon() {
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
        assert_eq!(space.origin(9, &member), Origin::RecycledIds);
        space.add(u64::MAX / 2, &member).unwrap();
        assert_eq!(space.origin(u64::MAX / 2, &member), Origin::Outlier);
    }
}
