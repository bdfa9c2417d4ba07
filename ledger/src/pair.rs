//! [`Pair`] and [`Pairs`], a compact list of pairs.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Maximum length of a member in bytes. Leaves room for several members in a block.
pub const MAX_MEMBER_BYTES: usize = 512;

/// Second half of a pair. Numbers sort before byte strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Member<'a> {
    /// A member that is a number.
    Number(u64),
    /// Any other bytes, at most [`MAX_MEMBER_BYTES`].
    Bytes(&'a [u8]),
}

/// A [`Member`] that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnedMember {
    /// A member that is a number.
    Number(u64),
    /// A member of any other bytes.
    Bytes(Box<[u8]>),
}

impl OwnedMember {
    /// Returns the borrowed member.
    pub fn as_member(&self) -> Member<'_> {
        match self {
            OwnedMember::Number(number) => Member::Number(*number),
            OwnedMember::Bytes(bytes) => Member::Bytes(bytes),
        }
    }
}

impl Member<'_> {
    /// Returns a copy that owns its bytes.
    pub fn to_owned(self) -> OwnedMember {
        match self {
            Member::Number(number) => OwnedMember::Number(number),
            Member::Bytes(bytes) => OwnedMember::Bytes(bytes.into()),
        }
    }
}

pub(crate) fn hash_of(id: u64, member: Member<'_>) -> u64 {
    match member {
        Member::Number(number) => {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&id.to_le_bytes());
            bytes[8..].copy_from_slice(&number.to_le_bytes());
            xxh3_64(&bytes)
        }
        Member::Bytes(bytes) => xxh3_64_with_seed(bytes, xxh3_64(&id.to_le_bytes())),
    }
}

/// A pair with its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// First half of the pair.
    pub id: u64,
    /// Second half of the pair.
    pub member: Member<'a>,
    /// Whether the pair is set; false means that it was unset.
    pub set: bool,
}

impl<'a> Pair<'a> {
    /// Returns the member if it is a number, else 0.
    pub(crate) fn number(&self) -> u64 {
        match self.member {
            Member::Number(number) => number,
            Member::Bytes(_) => 0,
        }
    }

    /// Returns the sort key.
    pub fn key(&self) -> (u64, Member<'a>) {
        (self.id, self.member)
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    /// The number, or the string's offset in `bytes`.
    word: u64,
    /// Length of the string in bytes, or `NUMBER` for a number.
    length: u32,
    set: bool,
}

const NUMBER: u32 = u32::MAX;

/// List of pairs. A pair takes 24 bytes plus the bytes of a string.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
}

fn pair_of<'a>(entry: &Entry, bytes: &'a [u8]) -> Pair<'a> {
    let member = match entry.length {
        NUMBER => Member::Number(entry.word),
        length => Member::Bytes(&bytes[entry.word as usize..][..length as usize]),
    };
    Pair { id: entry.id, member, set: entry.set }
}

impl Pairs {
    pub(crate) fn with_room(pairs: usize) -> Pairs {
        Pairs { entries: Vec::with_capacity(pairs), bytes: Vec::new() }
    }

    /// Appends a pair.
    #[inline]
    pub fn push(&mut self, pair: Pair<'_>) {
        let Pair { id, member, set } = pair;
        let (word, length) = match member {
            Member::Number(number) => (number, NUMBER),
            Member::Bytes(bytes) => {
                let at = self.bytes.len() as u64;
                self.bytes.extend_from_slice(bytes);
                (at, bytes.len() as u32)
            }
        };
        self.entries.push(Entry { id, word, length, set });
    }

    /// Returns the pair at `index`, if any.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Pair<'_>> {
        self.entries.get(index).map(|entry| pair_of(entry, &self.bytes))
    }

    /// Returns the last pair.
    pub fn last(&self) -> Option<Pair<'_>> {
        self.entries.last().map(|entry| pair_of(entry, &self.bytes))
    }

    /// Returns an iterator over all pairs.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Pair<'_>> {
        self.entries.iter().map(|entry| pair_of(entry, &self.bytes))
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all pairs but keeps the capacity.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
    }

    /// Sorts the pairs by id, then member. Fast for long ascending sequences.
    pub fn sort(&mut self) {
        let bytes = &self.bytes;
        self.entries.sort_by(|a, b| pair_of(a, bytes).key().cmp(&pair_of(b, bytes).key()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_sort_by_id_then_numbers_then_strings() {
        let mut pairs = Pairs::default();
        let sorted: [(u64, Member<'_>); 6] = [
            (0, Member::Number(0)),
            (0, Member::Number(u64::MAX)),
            (0, Member::Bytes(b"")),
            (0, Member::Bytes(b"a")),
            (0, Member::Bytes(b"aa")),
            (u64::MAX, Member::Number(3)),
        ];
        for (id, member) in sorted.into_iter().rev() {
            pairs.push(Pair { id, member, set: true });
        }
        pairs.sort();
        assert_eq!(pairs.iter().map(|pair| pair.key()).collect::<Vec<_>>(), sorted);
        assert_eq!(pairs.get(6), None);
    }
}
