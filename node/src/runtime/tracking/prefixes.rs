//! Key prefixes of clients in broadcast mode.
//!
//! A lookup tests one prefix of the key for each prefix length in use. Its cost does not depend on
//! the number of clients.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Maximum length of a prefix in bytes, which bounds the cost of matching a key.
pub const MAX_PREFIX: usize = crate::runtime::pubsub::MAX_PATTERN;

/// Clients that track a prefix, and the changed keys that match the prefix.
type Matches<'p, 'n> = (&'p BTreeSet<u64>, Vec<&'n [u8]>);

#[derive(Default)]
pub(crate) struct Prefixes {
    trackers: BTreeMap<Box<[u8]>, BTreeSet<u64>>,
    /// Number of prefixes by length.
    lengths: BTreeMap<usize, usize>,
}

impl Prefixes {
    pub(crate) fn len(&self) -> usize {
        self.trackers.len()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&[u8], &BTreeSet<u64>)> {
        self.trackers.iter().map(|(prefix, numbers)| (&**prefix, numbers))
    }

    pub(crate) fn add(&mut self, prefix: &[u8], number: u64) {
        if let Some(numbers) = self.trackers.get_mut(prefix) {
            numbers.insert(number);
            return;
        }
        self.trackers.insert(prefix.into(), BTreeSet::from([number]));
        *self.lengths.entry(prefix.len()).or_default() += 1;
    }

    pub(crate) fn remove(&mut self, prefix: &[u8], number: u64) {
        let Some(numbers) = self.trackers.get_mut(prefix) else { return };
        numbers.remove(&number);
        if !numbers.is_empty() {
            return;
        }
        self.trackers.remove(prefix);
        if let Some(count) = self.lengths.get_mut(&prefix.len()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    /// For each prefix that matches some of `names`, returns the clients that track it and the
    /// matching names.
    pub(crate) fn matching<'n>(&self, names: &'n BTreeSet<Vec<u8>>) -> Vec<Matches<'_, 'n>> {
        let mut found: BTreeMap<&[u8], Matches<'_, 'n>> = BTreeMap::new();
        for name in names {
            for length in self.lengths.keys().take_while(|length| **length <= name.len()) {
                if let Some((prefix, numbers)) = self.trackers.get_key_value(&name[..*length]) {
                    found.entry(prefix).or_insert_with(|| (numbers, Vec::new())).1.push(name);
                }
            }
        }
        found.into_values().collect()
    }

    /// Returns the clients that track a prefix which may match a key beginning with one of
    /// `starts`.
    pub(crate) fn touching<'a>(
        &'a self,
        starts: &'a [Vec<u8>],
    ) -> impl Iterator<Item = &'a BTreeSet<u64>> {
        let touches = |prefix: &[u8]| starts.iter().any(|start| overlap(start, prefix));
        self.trackers.iter().filter(move |(prefix, _)| touches(prefix)).map(|(_, numbers)| numbers)
    }
}

/// Whether a key can begin with both strings.
fn overlap(a: &[u8], b: &[u8]) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// Two overlapping prefixes of one client, which would cause two notifications for the same key.
#[derive(Debug, PartialEq, Eq)]
pub enum Overlap<'a> {
    /// A new prefix and an existing prefix of the client.
    Existing(&'a [u8], &'a [u8]),
    /// Two new prefixes.
    Provided(&'a [u8], &'a [u8]),
}

/// Returns the first overlap of a client's new prefixes, in Redis's order.
pub fn find_overlap<'a>(
    existing: &'a BTreeSet<Box<[u8]>>,
    new: &[&'a [u8]],
) -> Option<Overlap<'a>> {
    let mut counts: BTreeMap<&[u8], usize> = BTreeMap::new();
    new.iter().for_each(|prefix| *counts.entry(prefix).or_default() += 1);
    for (index, prefix) in new.iter().enumerate() {
        let shorter = (0..=prefix.len()).find_map(|length| existing.get(&prefix[..length]));
        let behind = (Bound::Excluded(*prefix), Bound::Unbounded);
        let longer = || existing.range::<[u8], _>(behind).next();
        if let Some(other) = shorter.or_else(|| longer().filter(|known| known.starts_with(prefix)))
        {
            return Some(Overlap::Existing(prefix, other));
        }
        // Scans the other prefixes only if this prefix overlaps one of them.
        let is_twice = counts.get(prefix).is_some_and(|count| *count > 1)
            || (0..prefix.len()).any(|length| counts.contains_key(&prefix[..length]))
            || counts.range::<[u8], _>(behind).next().is_some_and(|(k, _)| k.starts_with(prefix));
        let overlaps = |other: &&&[u8]| overlap(other, prefix);
        if is_twice && let Some(other) = new[index + 1..].iter().find(overlaps) {
            return Some(Overlap::Provided(prefix, other));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn key_matches_each_of_its_prefixes_until_removal() {
        let mut prefixes = Prefixes::default();
        for (prefix, number) in [("", 1), ("post:", 2), ("post:7", 3), ("liked:", 2), ("post:", 4)]
        {
            prefixes.add(prefix.as_bytes(), number);
        }
        assert_eq!(prefixes.len(), 4);
        let of = |prefixes: &Prefixes, all: &[&str]| -> Vec<(Vec<u64>, Vec<String>)> {
            let text = |keys: Vec<&[u8]>| {
                keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
            };
            let all = names(all);
            let found = prefixes.matching(&all).into_iter();
            found.map(|(numbers, keys)| (numbers.iter().copied().collect(), text(keys))).collect()
        };
        let both = ["post:7", "post:8"].map(str::to_owned).to_vec();
        assert_eq!(
            of(&prefixes, &["post:7", "post:8"]),
            [
                (vec![1], both.clone()),
                (vec![2, 4], both.clone()),
                (vec![3], vec!["post:7".to_owned()])
            ]
        );
        prefixes.remove(b"post:", 2);
        prefixes.remove(b"post:7", 3);
        prefixes.remove(b"", 1);
        prefixes.remove(b"", 1);
        assert_eq!(of(&prefixes, &["post:7", "post:8"]), [(vec![4], both)]);
        prefixes.remove(b"post:", 4);
        prefixes.remove(b"liked:", 2);
        assert_eq!((prefixes.len(), prefixes.lengths.len()), (0, 0));
    }

    #[test]
    fn overlaps_are_found_in_any_order() {
        let none = BTreeSet::new();
        let find = |existing: &BTreeSet<Box<[u8]>>, new: &[&str]| {
            let new: Vec<&[u8]> = new.iter().map(|prefix| prefix.as_bytes()).collect();
            find_overlap(existing, &new).map(|found| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                match found {
                    Overlap::Existing(a, b) => (text(a), text(b), true),
                    Overlap::Provided(a, b) => (text(a), text(b), false),
                }
            })
        };
        let told = |a: &str, b: &str, is_old| Some((a.to_owned(), b.to_owned(), is_old));
        assert_eq!(find(&none, &["FOOBAR", "FOO"]), told("FOOBAR", "FOO", false));
        assert_eq!(find(&none, &["FOO", "FOOBAR"]), told("FOO", "FOOBAR", false));
        assert_eq!(find(&none, &["FOO", "FOO"]), told("FOO", "FOO", false));
        assert_eq!(find(&none, &["x", ""]), told("x", "", false));
        // `b` overlaps `ba`, although the prefixes next to them in sort order do not overlap.
        assert_eq!(find(&none, &["a", "b", "c", "ba", "bb"]), told("b", "ba", false));
        assert_eq!(find(&none, &["ab", "ac", "a"]), told("ab", "a", false));
        assert_eq!(find(&none, &["ad", "ac", "ab", "b", "a"]), told("ad", "a", false));
        assert_eq!(find(&none, &["post:", "liked:", "user:"]), None);
        let old: BTreeSet<Box<[u8]>> = ["FOO", "BAR"].map(|old| old.as_bytes().into()).into();
        assert_eq!(find(&old, &["FO"]), told("FO", "FOO", true));
        assert_eq!(find(&old, &["BARB"]), told("BARB", "BAR", true));
        assert_eq!(find(&old, &["BAZ", "F", "G"]), told("F", "FOO", true));
        assert_eq!(find(&old, &["BAZ", "G"]), None);
    }
}
