//! A pair, and a list of pairs.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Longest member, in bytes. A longer one is refused: a block must hold several.
pub const MAX_MEMBER_BYTES: usize = 512;

/// The second half of a pair. Numbers come before byte strings in the order of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Member<'a> {
    /// A number.
    Number(u64),
    /// Any other bytes, at most [`MAX_MEMBER_BYTES`].
    Bytes(&'a [u8]),
}

/// A [`Member`] that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnedMember {
    /// A number.
    Number(u64),
    /// Any other bytes.
    Bytes(Box<[u8]>),
}

impl OwnedMember {
    /// The member, borrowed.
    pub fn as_member(&self) -> Member<'_> {
        match self {
            OwnedMember::Number(number) => Member::Number(*number),
            OwnedMember::Bytes(bytes) => Member::Bytes(bytes),
        }
    }
}

impl Member<'_> {
    /// A copy that owns its bytes.
    pub fn to_owned(self) -> OwnedMember {
        match self {
            Member::Number(number) => OwnedMember::Number(number),
            Member::Bytes(bytes) => OwnedMember::Bytes(bytes.into()),
        }
    }
}

/// The hash by which filters of runs know a pair. It is part of the file format.
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

/// A pair, and whether it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The first half.
    pub id: u64,
    /// The second half.
    pub member: Member<'a>,
    /// False: the pair was set and is not any more.
    pub set: bool,
}

impl<'a> Pair<'a> {
    /// Its member if that is a number, else 0.
    pub(crate) fn number(&self) -> u64 {
        match self.member {
            Member::Number(number) => number,
            Member::Bytes(_) => 0,
        }
    }

    /// By what pairs are sorted.
    pub fn key(&self) -> (u64, Member<'a>) {
        (self.id, self.member)
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    /// The number, or where in `bytes` the string begins.
    word: u64,
    /// Bytes of the string; `NUMBER`: it is a number.
    length: u32,
    set: bool,
}

const NUMBER: u32 = u32::MAX;

/// A list of pairs: 24 bytes each, and the bytes of strings.
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
    /// None, with room for so many.
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

    /// The pair at `index`, if there is one.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Pair<'_>> {
        self.entries.get(index).map(|entry| pair_of(entry, &self.bytes))
    }

    /// The last pair.
    pub fn last(&self) -> Option<Pair<'_>> {
        self.entries.last().map(|entry| pair_of(entry, &self.bytes))
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Pair<'_>> {
        self.entries.iter().map(|entry| pair_of(entry, &self.bytes))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets all of them, and keeps the memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
    }

    /// Sorts them by id, then member: quickly if there are long pieces that rise.
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
