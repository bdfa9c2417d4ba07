//! Marks: small records that name the changed keys for the commit thread.
//!
//! ```text
//!   word 0      id; marks of one id are adjacent after sorting
//!   words 1, 2  pair: member and 0, or the hash of the pair
//!               token: its hash; offset: its number and 0; other kinds: 0
//!   word 3      space << 32 | kind << 25 | counters << 1 | state
//!               counters: counter space whose row of this id also changed, or 0
//!               state: 1 if the pair is set
//! ```
//!
//! One mark describes a like, which sets a pair and changes a row of the same id. Marks of one pair
//! differ only in the lowest 25 bits, so they are adjacent after sorting.
//!
//! The server creates and sorts more than 100,000 marks per second. A mark is therefore four plain
//! words, two marks per cache line, and its comparison has no branches.
//!
//! A mark names a key, not a value: the commit thread reads the state when it encodes the record.
//! The exception is the bit *this pair is set*. Every write that unsets a pair creates a mark, and
//! all marks of an id are in one stripe of the committer. So if all marks of a pair have the bit,
//! the pair is still set. The commit thread then skips the lookup in the filter, which would miss
//! the CPU cache (`told`).

use phantom::Member;

/// Mark of one change. See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(align(32))]
pub struct Mark {
    id: u64,
    member: [u64; 2],
    what: u64,
}

const _: () = assert!(size_of::<Mark>() == 32);

const STATE_BIT: u64 = 1;
const COUNTERS_SHIFT: u32 = 1;
const KIND_SHIFT: u32 = 25;
const SPACE_SHIFT: u32 = 32;

const CATALOGUE: u64 = 0;
const ROW: u64 = 1;
const PAIR: u64 = 2;
const HASHED_PAIR: u64 = 3;
const TOKEN: u64 = 4;
const OFFSET: u64 = 5;
const FORGOTTEN: u64 = 6;
const GROUPS: u64 = 7;

/// Decoded mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// The catalogue or the layout of a ring. The commit thread checks both with every batch; this
    /// mark only triggers a batch.
    Catalogue,
    /// Row: space number and id.
    Row(u32, u64),
    /// Pair: space number, id, member, and whether the writer set the pair.
    Pair(u32, u64, MarkedMember, bool),
    /// Hash of a token that was used on a row.
    Token(u128),
    /// Ingest offset that was changed, identified by its number.
    Offset(u32),
    /// All pairs of an id were unset: space number and id.
    Forgotten(u32, u64),
    /// A cursor of a group was changed. [`crate::groups`] tracks which cursors have changed.
    Groups,
}

impl Mark {
    /// Mark of the catalogue, or of the layout of a ring.
    pub const CATALOGUE: Mark = Mark { id: 0, member: [0; 2], what: CATALOGUE << KIND_SHIFT };

    /// Mark of a changed cursor of a group.
    pub const GROUPS: Mark = Mark { id: 0, member: [0; 2], what: GROUPS << KIND_SHIFT };

    #[inline]
    fn new(kind: u64, space: u32, id: u64, member: [u64; 2]) -> Mark {
        Mark { id, member, what: u64::from(space) << SPACE_SHIFT | kind << KIND_SHIFT }
    }

    /// Creates the mark of a row of a counter space.
    #[inline]
    pub fn row(space: u32, id: u64) -> Mark {
        Mark::new(ROW, space, id, [0; 2])
    }

    /// Creates the mark of a pair of an existence space; `set` is its new state.
    #[inline]
    pub fn pair(space: u32, id: u64, member: MarkedMember, set: bool) -> Mark {
        let (kind, member) = match member {
            MarkedMember::Number(n) => (PAIR, [n, 0]),
            MarkedMember::Hash(hash) => (HASHED_PAIR, hash),
        };
        let mark = Mark::new(kind, space, id, member);
        Mark { what: mark.what | u64::from(set), ..mark }
    }

    /// Adds the row of the same id in the counter space `number`. Returns `None` if the number
    /// exceeds 24 bits.
    #[inline]
    pub fn with_row(self, counters: u32) -> Option<Mark> {
        let fits = counters < 1 << (KIND_SHIFT - COUNTERS_SHIFT);
        fits.then_some(Mark { what: self.what | u64::from(counters) << COUNTERS_SHIFT, ..self })
    }

    /// Creates the mark of a token used on this row. The row needs a separate mark.
    pub fn token(space: u32, id: u64, hash: u128) -> Mark {
        Mark::new(TOKEN, space, id, [(hash >> 64) as u64, hash as u64])
    }

    /// Creates the mark of a changed offset. The mark belongs to the catalogue's stripe, which the
    /// writer locks together with the stripes of the events' ids.
    pub fn offset(number: u32) -> Mark {
        Mark::new(OFFSET, 0, 0, [number.into(), 0])
    }

    /// Creates the mark for an id of an existence space whose pairs were all unset.
    pub fn forgotten(space: u32, id: u64) -> Mark {
        Mark::new(FORGOTTEN, space, id, [0; 2])
    }

    /// Returns the space's number and the id; zeros for the catalogue.
    #[inline]
    pub fn place(&self) -> (u32, u64) {
        ((self.what >> SPACE_SHIFT) as u32, self.id)
    }

    /// Returns the space number of the counter row with this id that also changed.
    #[inline]
    pub fn changed_row_space(&self) -> Option<u32> {
        match (self.what >> COUNTERS_SHIFT) as u32 & ((1 << (KIND_SHIFT - COUNTERS_SHIFT)) - 1) {
            0 => None,
            counters => Some(counters),
        }
    }

    /// Decodes the mark.
    #[inline]
    pub fn read(&self) -> Marked {
        let (space, id) = self.place();
        let pair = |member| Marked::Pair(space, id, member, self.what & STATE_BIT != 0);
        match self.what >> KIND_SHIFT & ((1 << (SPACE_SHIFT - KIND_SHIFT)) - 1) {
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

    /// Whether both marks name the same pair; their states and rows may differ.
    #[inline]
    fn is_same_pair(&self, other: &Mark) -> bool {
        (self.id, self.member, self.what >> KIND_SHIFT)
            == (other.id, other.member, other.what >> KIND_SHIFT)
    }
}

/// Derives the state of the pair of mark `at` from the marks of one stripe (sorted, without
/// duplicates):
/// - `Some(true)`: the pair is set.
/// - `Some(false)`: skip this mark, because the next mark names the same pair.
/// - `None`: the state is unknown and must be read.
#[inline]
pub(crate) fn told(marks: &[Mark], at: usize) -> Option<bool> {
    let mark = &marks[at];
    if marks.get(at + 1).is_some_and(|next| mark.is_same_pair(next)) {
        return Some(false);
    }
    let mut all = marks[..=at].iter().rev().take_while(|before| mark.is_same_pair(before));
    all.all(|mark| mark.what & STATE_BIT != 0).then_some(true)
}

/// A member in a mark or in a log record, in the shorter of two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkedMember {
    /// A number. Used only if the id was never forgotten before the pair was set.
    Number(u64),
    /// Any other member: hash of the whole pair under the space's seed, high half first.
    Hash([u64; 2]),
}

impl MarkedMember {
    /// Returns the form of `member` for pairs of `id`.
    #[inline]
    pub fn new(space: &phantom::Space, id: u64, member: &Member<'_>) -> MarkedMember {
        match *member {
            Member::Number(n) if space.generation(id) == 0 => MarkedMember::Number(n),
            _ => MarkedMember::of_hash(space.pair(id, member).hash()),
        }
    }

    /// Creates the hash form from a pair's hash.
    pub fn of_hash(hash: u128) -> MarkedMember {
        MarkedMember::Hash([(hash >> 64) as u64, hash as u64])
    }

    /// Joins the halves of a [`MarkedMember::Hash`].
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
                assert_eq!((token.place(), token.changed_row_space()), ((space, id), None));
                for member in [
                    MarkedMember::Number(u64::MAX),
                    MarkedMember::Number(0),
                    MarkedMember::of_hash(u128::MAX - 1),
                ] {
                    for set in [false, true] {
                        let mark = Mark::pair(space, id, member, set);
                        assert_eq!(
                            (mark.read(), mark.changed_row_space()),
                            (Marked::Pair(space, id, member, set), None)
                        );
                        for counters in [1, (1 << 24) - 1] {
                            let mark = mark.with_row(counters).unwrap();
                            assert_eq!(mark.read(), Marked::Pair(space, id, member, set));
                            assert_eq!(
                                (mark.changed_row_space(), mark.place()),
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
        assert_eq!((Mark::CATALOGUE.place(), Mark::CATALOGUE.changed_row_space()), ((0, 0), None));
        assert_eq!(Mark::row(u32::MAX, 7).changed_row_space(), None);
    }

    /// Tests likes by two actions that change different counters, a flag without an action, and an
    /// unset.
    #[test]
    fn marks_of_one_pair_are_told_once_whatever_rows_they_name() {
        let number = MarkedMember::Number;
        let like = |counters| Mark::pair(7, 1, number(5), true).with_row(counters).unwrap();
        // Marks that sort next to the likes: a hashed member, another space, a forgotten id.
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
                // The first mark is skipped; the second requires a read.
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
