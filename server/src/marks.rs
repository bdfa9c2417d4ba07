//! Marks: what a write tells the commit thread that it has changed.
//!
//! ```text
//!   word 0     id                                               so that marks of one id sort together, and one comparison usually decides
//!   words 1, 2 member of a pair                                 a number and 0, or the hash of the pair; filter << 32 | number of a block; else 0
//!   word 3     space << 8 | kind << 1 | state                   state: the pair is set
//! ```
//!
//! Some hundred thousand a second are made, sorted and read, so a mark is small (two to a cache line) and plain: four words, no branch to compare them.
//!
//! A mark names what changed; its state is read when it is logged. One thing it says itself: *this pair is set*. Only a write that is
//! marked, too, unsets a pair, and marks of one id meet in one stripe of the committer. So if nothing else is marked of the pair, it is
//! still set, and its filter, which is rarely in the cache, need not be asked (`told`).

use phantom::{BlockPlace, Member};

/// What a write has changed. See the top of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    id: u64,
    member: [u64; 2],
    what: u64,
}

const _: () = assert!(size_of::<Mark>() == 32);

const STATE: u64 = 1;
const KIND_BITS: u32 = 8;

const CATALOGUE: u64 = 0;
const ROW: u64 = 1 << 1;
const PAIR: u64 = 2 << 1;
const HASHED_PAIR: u64 = 3 << 1;
const LOOSE: u64 = 4 << 1;
const BLOCK: u64 = 5 << 1;

/// A mark, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// The catalogue or the layout of a ring: the commit thread looks at them with every batch, and this makes that there is one.
    Catalogue,
    /// The row of this id in the counter space with this number.
    Row(u32, u64),
    /// One pair of the existence space with this number, by its id and its other half; whether it is set, as far as its writer knew.
    Pair(u32, u64, MarkedMember, bool),
    /// This id of the existence space with this number became loose.
    Loose(u32, u64),
    /// A block of the existence space with this number was joined with another site's: where it is.
    Block(u32, BlockPlace),
}

impl Mark {
    /// The catalogue or the layout of a ring.
    pub const CATALOGUE: Mark = Mark { id: 0, member: [0; 2], what: CATALOGUE };

    #[inline]
    fn new(kind: u64, space: u32, id: u64, member: [u64; 2]) -> Mark {
        Mark { id, member, what: u64::from(space) << KIND_BITS | kind }
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
        Mark::new(kind | u64::from(set), space, id, member)
    }

    /// An id of an existence space that became loose.
    #[inline]
    pub fn loose(space: u32, id: u64) -> Mark {
        Mark::new(LOOSE, space, id, [0; 2])
    }

    /// A block of an existence space that was joined with another site's.
    pub fn block(space: u32, place: BlockPlace) -> Mark {
        Mark::new(BLOCK, space, place.low, [(place.link as u64) << 32 | place.block as u64, 0])
    }

    /// The space's number and the id; of the catalogue 0.
    #[inline]
    pub fn place(&self) -> (u32, u64) {
        ((self.what >> KIND_BITS) as u32, self.id)
    }

    /// What it says.
    #[inline]
    pub fn read(&self) -> Marked {
        let (space, id) = self.place();
        let pair = |member| Marked::Pair(space, id, member, self.what & STATE != 0);
        match self.what & ((1 << KIND_BITS) - 1) & !STATE {
            ROW => Marked::Row(space, id),
            PAIR => pair(MarkedMember::Number(self.member[0])),
            HASHED_PAIR => pair(MarkedMember::Hash(self.member)),
            LOOSE => Marked::Loose(space, id),
            BLOCK => {
                let (link, block) = (self.member[0] >> 32, self.member[0] as u32);
                Marked::Block(space, BlockPlace { low: id, link: link as usize, block: block as usize })
            }
            _ => Marked::Catalogue,
        }
    }

    /// Whether two different marks are of one pair.
    fn contradicts(&self, other: &Mark) -> bool {
        (self.id, self.member, self.what ^ STATE) == (other.id, other.member, other.what)
    }
}

/// What the marks of one stripe (sorted, each once) tell of the pair that is marked at `at`: `Some(true)` that it is set. `Some(false)`: that this mark
/// is to be passed over, as the next one is of the same pair. `None`: nothing, its state must be read.
#[inline]
pub(crate) fn told(marks: &[Mark], at: usize) -> Option<bool> {
    let mark = &marks[at];
    if marks.get(at + 1).is_some_and(|next| mark.contradicts(next)) {
        return Some(false);
    }
    let is_alone = at == 0 || !mark.contradicts(&marks[at - 1]);
    (is_alone && mark.what & STATE != 0).then_some(true)
}

/// A member as the log names it: as short as it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkedMember {
    /// A member that is a number.
    Number(u64),
    /// Any other: the hash of the whole pair under the space's seed, as the phantom engine gives it; high half first.
    Hash([u64; 2]),
}

impl MarkedMember {
    /// As the space's pairs with this id name the member.
    #[inline]
    pub fn new(space: &phantom::Space, id: u64, member: &Member<'_>) -> MarkedMember {
        match *member {
            Member::Number(n) => MarkedMember::Number(n),
            Member::Bytes(_) => MarkedMember::of_hash(space.pair(id, member).hash()),
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
                assert_eq!(Mark::loose(space, id).read(), Marked::Loose(space, id));
                assert_eq!(Mark::row(space, id).place(), (space, id));
                let place = BlockPlace { low: id, link: 15, block: u32::MAX as usize };
                assert_eq!(Mark::block(space, place).read(), Marked::Block(space, place));
                for member in
                    [MarkedMember::Number(u64::MAX), MarkedMember::Number(0), MarkedMember::of_hash(u128::MAX - 1)]
                {
                    for set in [false, true] {
                        assert_eq!(Mark::pair(space, id, member, set).read(), Marked::Pair(space, id, member, set));
                    }
                }
            }
        }
        assert_eq!(Mark::CATALOGUE.read(), Marked::Catalogue);
        assert_eq!(Mark::CATALOGUE.place(), (0, 0));
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
