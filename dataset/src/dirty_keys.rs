//! Marks: what a write tells the commit thread that it has changed.
//!
//! ```text
//!   word 0      id: so marks of one id sort together, and one comparison usually decides
//!   words 1, 2  member of a pair: a number and 0, or the hash of the pair;
//!               of a block: filter << 32 | its number; of a token: its hash; of an offset: its
//!               number; else 0
//!   word 3      space << 32 | kind << 25 | counters << 1 | state
//!               counters: the row of this id there has changed, too, or 0; state: the pair is set
//! ```
//!
//! A like, which sets a pair and moves a row of the same id, is one mark. So marks of one pair
//! differ in the lowest 25 bits only, and lie side by side.
//!
//! Some hundred thousand a second are made, sorted and read, so a mark is small (two to a cache
//! line) and plain: four words, no branch to compare them.
//!
//! A mark names what changed; its state is read when it is logged. One thing it says itself: *this
//! pair is set*. Only a write that is marked, too, unsets a pair, and marks of one id meet in one
//! stripe of the committer. So if nothing else is marked of the pair, it is still set, and its
//! filter, which is rarely in the cache, need not be asked (`told`).

use phantom::Member;

/// What a write has changed. See the top of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(align(32))]
pub struct Mark {
    id: u64,
    member: [u64; 2],
    what: u64,
}

const _: () = assert!(size_of::<Mark>() == 32);

const STATE: u64 = 1;
const COUNTERS_AT: u32 = 1;
const KIND_AT: u32 = 25;
const SPACE_AT: u32 = 32;

const CATALOGUE: u64 = 0;
const ROW: u64 = 1;
const PAIR: u64 = 2;
const HASHED_PAIR: u64 = 3;
const TOKEN: u64 = 4;
const OFFSET: u64 = 5;
const FORGOTTEN: u64 = 6;
const GROUPS: u64 = 7;

/// A mark, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// The catalogue or the layout of a ring: the commit thread looks at them with every batch, and
    /// this makes that there is one.
    Catalogue,
    /// The row of this id in the counter space with this number.
    Row(u32, u64),
    /// One pair of the existence space with this number, by its id and its other half; whether it
    /// is set, as far as its writer knew.
    Pair(u32, u64, MarkedMember, bool),
    /// A token with this hash was used on a row.
    Token(u128),
    /// The offset with this number has moved.
    Offset(u32),
    /// All pairs of this id of the existence space with this number were unset.
    Forgotten(u32, u64),
    /// The cursor of a group has moved: the groups know which.
    Groups,
}

impl Mark {
    /// The catalogue or the layout of a ring.
    pub const CATALOGUE: Mark = Mark { id: 0, member: [0; 2], what: CATALOGUE << KIND_AT };

    /// The cursor of a group.
    pub const GROUPS: Mark = Mark { id: 0, member: [0; 2], what: GROUPS << KIND_AT };

    #[inline]
    fn new(kind: u64, space: u32, id: u64, member: [u64; 2]) -> Mark {
        Mark { id, member, what: u64::from(space) << SPACE_AT | kind << KIND_AT }
    }

    /// A row of a counter space.
    #[inline]
    pub fn row(space: u32, id: u64) -> Mark {
        Mark::new(ROW, space, id, [0; 2])
    }

    /// A pair of an existence space, and whether it is set now.
    #[inline]
    pub fn pair(space: u32, id: u64, member: MarkedMember, set: bool) -> Mark {
        let (kind, member) = match member {
            MarkedMember::Number(n) => (PAIR, [n, 0]),
            MarkedMember::Hash(hash) => (HASHED_PAIR, hash),
        };
        let mark = Mark::new(kind, space, id, member);
        Mark { what: mark.what | u64::from(set), ..mark }
    }

    /// The same, and the row of its id in the counter space with this number. `None`: the number is
    /// too high to be named beside the pair.
    #[inline]
    pub fn with_row(self, counters: u32) -> Option<Mark> {
        let fits = counters < 1 << (KIND_AT - COUNTERS_AT);
        fits.then_some(Mark { what: self.what | u64::from(counters) << COUNTERS_AT, ..self })
    }

    /// A token that was used on this row, beside which the row is marked.
    pub fn token(space: u32, id: u64, hash: u128) -> Mark {
        Mark::new(TOKEN, space, id, [(hash >> 64) as u64, hash as u64])
    }

    /// An offset that has moved. In the stripe of the catalogue, beside all that was taken over.
    pub fn offset(number: u32) -> Mark {
        Mark::new(OFFSET, 0, 0, [number.into(), 0])
    }

    /// An id of an existence space of which all pairs were unset.
    pub fn forgotten(space: u32, id: u64) -> Mark {
        Mark::new(FORGOTTEN, space, id, [0; 2])
    }

    /// The space's number and the id; of the catalogue 0.
    #[inline]
    pub fn place(&self) -> (u32, u64) {
        ((self.what >> SPACE_AT) as u32, self.id)
    }

    /// The number of the counter space of which the row of this id has changed, beside what else
    /// the mark says.
    #[inline]
    pub fn row_beside(&self) -> Option<u32> {
        match (self.what >> COUNTERS_AT) as u32 & ((1 << (KIND_AT - COUNTERS_AT)) - 1) {
            0 => None,
            counters => Some(counters),
        }
    }

    /// What it says.
    #[inline]
    pub fn read(&self) -> Marked {
        let (space, id) = self.place();
        let pair = |member| Marked::Pair(space, id, member, self.what & STATE != 0);
        match self.what >> KIND_AT & ((1 << (SPACE_AT - KIND_AT)) - 1) {
            ROW => Marked::Row(space, id),
            PAIR => pair(MarkedMember::Number(self.member[0])),
            HASHED_PAIR => pair(MarkedMember::Hash(self.member)),
            FORGOTTEN => Marked::Forgotten(space, id),
            GROUPS => Marked::Groups,
            TOKEN => Marked::Token(MarkedMember::hash_of(self.member)),
            OFFSET => Marked::Offset(self.member[0] as u32),
            _ => Marked::Catalogue,
        }
    }

    /// Whether two marks are of one pair, whatever they say of it.
    #[inline]
    fn is_beside(&self, other: &Mark) -> bool {
        (self.id, self.member, self.what >> KIND_AT)
            == (other.id, other.member, other.what >> KIND_AT)
    }
}

/// What the marks of one stripe (sorted, each once) tell of the pair that is marked at `at`:
/// `Some(true)` that it is set. `Some(false)`: that this mark is to be passed over, as the next one
/// is of the same pair. `None`: nothing, its state must be read.
#[inline]
pub(crate) fn told(marks: &[Mark], at: usize) -> Option<bool> {
    let mark = &marks[at];
    if marks.get(at + 1).is_some_and(|next| mark.is_beside(next)) {
        return Some(false);
    }
    let mut all = marks[..=at].iter().rev().take_while(|before| mark.is_beside(before));
    all.all(|mark| mark.what & STATE != 0).then_some(true)
}

/// A member as the log names it: as short as it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkedMember {
    /// A member that is a number, of an id that was not forgotten before the pair was set.
    Number(u64),
    /// Any other: the hash of the whole pair under the space's seed, as the phantom engine gives
    /// it; high half first.
    Hash([u64; 2]),
}

impl MarkedMember {
    /// As the space's pairs with this id name the member.
    #[inline]
    pub fn new(space: &phantom::Space, id: u64, member: &Member<'_>) -> MarkedMember {
        match *member {
            Member::Number(n) if space.generation(id) == 0 => MarkedMember::Number(n),
            _ => MarkedMember::of_hash(space.pair(id, member).hash()),
        }
    }

    /// A member that is named by the hash of its pair.
    pub fn of_hash(hash: u128) -> MarkedMember {
        MarkedMember::Hash([(hash >> 64) as u64, hash as u64])
    }

    /// The hash of [`MarkedMember::Hash`].
    pub fn hash_of([high, low]: [u64; 2]) -> u128 {
        u128::from(high) << 64 | u128::from(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_read_back_at_the_ends_of_their_range() {
        for space in [0, 1, u32::MAX] {
            for id in [0, 1, u64::MAX] {
                assert_eq!(Mark::row(space, id).read(), Marked::Row(space, id));
                assert_eq!(Mark::forgotten(space, id).read(), Marked::Forgotten(space, id));
                assert_eq!(Mark::row(space, id).place(), (space, id));
                let token = Mark::token(space, id, u128::MAX - 2);
                assert_eq!(token.read(), Marked::Token(u128::MAX - 2));
                assert_eq!((token.place(), token.row_beside()), ((space, id), None));
                for member in [
                    MarkedMember::Number(u64::MAX),
                    MarkedMember::Number(0),
                    MarkedMember::of_hash(u128::MAX - 1),
                ] {
                    for set in [false, true] {
                        let mark = Mark::pair(space, id, member, set);
                        assert_eq!(
                            (mark.read(), mark.row_beside()),
                            (Marked::Pair(space, id, member, set), None)
                        );
                        for counters in [1, (1 << 24) - 1] {
                            let mark = mark.with_row(counters).unwrap();
                            assert_eq!(mark.read(), Marked::Pair(space, id, member, set));
                            assert_eq!(
                                (mark.row_beside(), mark.place()),
                                (Some(counters), (space, id))
                            );
                        }
                        assert_eq!(mark.with_row(1 << 24), None);
                    }
                }
            }
        }
        assert_eq!(Mark::offset(u32::MAX).read(), Marked::Offset(u32::MAX));
        assert_eq!(Mark::offset(7).place(), Mark::CATALOGUE.place());
        assert_eq!(Mark::CATALOGUE.read(), Marked::Catalogue);
        assert_eq!(Mark::GROUPS.read(), Marked::Groups);
        assert_eq!((Mark::CATALOGUE.place(), Mark::CATALOGUE.row_beside()), ((0, 0), None));
        assert_eq!(Mark::row(u32::MAX, 7).row_beside(), None);
    }

    /// Liked by one action, by another one that moves other counters, and without any; then by the
    /// first again, and taken back.
    #[test]
    fn marks_of_one_pair_are_told_once_whatever_rows_they_name() {
        let number = MarkedMember::Number;
        let like = |counters| Mark::pair(7, 1, number(5), true).with_row(counters).unwrap();
        // Marks that sort next to them: the member as a hash, in another space, a forgotten id.
        let others = [
            Mark::pair(7, 1, MarkedMember::Hash([5, 0]), true),
            Mark::pair(8, 1, number(5), false),
            Mark::forgotten(7, 1),
            Mark::row(3, 1),
        ];
        let told_of = |of_it: &[Mark]| {
            let mut marks = [of_it, &others].concat();
            marks.sort_unstable();
            marks.dedup();
            let at = |mark: &Mark| told(&marks, marks.iter().position(|m| m == mark).unwrap());
            let mut told: Vec<_> =
                of_it.iter().map(at).filter(|&told| told != Some(false)).collect();
            told.dedup();
            assert_eq!((at(&others[0]), at(&others[1])), (Some(true), None));
            told
        };
        let bare = Mark::pair(7, 1, number(5), true);
        let unset = Mark::pair(7, 1, number(5), false);
        assert_eq!(told_of(&[like(3)]), [Some(true)]);
        assert_eq!(told_of(&[like(3), bare, like(4)]), [Some(true)], "once");
        assert_eq!(told_of(&[like(3), unset]), [None]);
        assert_eq!(told_of(&[like(4), like(3), unset.with_row(3).unwrap(), bare]), [None]);
        assert_eq!(told_of(&[unset.with_row(4).unwrap()]), [None]);
    }

    #[test]
    fn a_pair_is_told_only_if_its_marks_agree_that_it_is_set() {
        let pair = |id, member, set| Mark::pair(7, id, MarkedMember::Number(member), set);
        let mut marks = vec![
            pair(1, 5, true),
            pair(1, 6, false),
            pair(1, 6, true),
            pair(2, 6, false),
            pair(2, 7, true),
            Mark::pair(8, 2, MarkedMember::Number(6), true),
            Mark::pair(7, 2, MarkedMember::Hash([6, 0]), true),
            Mark::row(7, 2),
        ];
        marks.sort_unstable();
        let told: Vec<_> = (0..marks.len())
            .filter(|&at| matches!(marks[at].read(), Marked::Pair(..)))
            .map(|at| (marks[at].read(), told(&marks, at)))
            .collect();
        let number = MarkedMember::Number;
        assert_eq!(
            told,
            [
                (Marked::Pair(7, 1, number(5), true), Some(true)),
                // One of the two is passed over, for the other the pair is read.
                (Marked::Pair(7, 1, number(6), false), Some(false)),
                (Marked::Pair(7, 1, number(6), true), None),
                (Marked::Pair(7, 2, number(6), false), None),
                (Marked::Pair(7, 2, MarkedMember::Hash([6, 0]), true), Some(true)),
                (Marked::Pair(8, 2, number(6), true), Some(true)),
                (Marked::Pair(7, 2, number(7), true), Some(true)),
            ]
        );
    }
}
