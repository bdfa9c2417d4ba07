//! A persistent ordered map, whose versions are immutable. The outlier map publishes the entries of
//! outliers (ids far above all tables) in such a map.
//!
//! ```text
//!   branch, split 1100     ids less than 1100 are on the left, others on the right
//!                          the lowest set bit of the split differs between the two sides
//!                          higher bits are equal in all ids of the branch
//!    /              \
//!   1011      branch, split 1110
//! ```
//!
//! A change copies the branches on the path to the root, of which there are at most 64. All other
//! branches are shared with the previous version. The shape depends on the ids only, not on their
//! order of insertion.

use std::sync::Arc;

/// First id of the upper half of the id space.
pub const UPPER_HALF_START: u64 = 1 << 63;

/// A map of values by id. Cloning takes constant time.
pub(crate) struct PersistentTrie<V> {
    root: Option<Node<V>>,
    len: usize,
    /// Number of ids that are at least [`UPPER_HALF_START`].
    upper: usize,
}

enum Node<V> {
    Leaf(u64, Arc<V>),
    Branch(Arc<Branch<V>>),
}

struct Branch<V> {
    split: u64,
    left: Node<V>,
    right: Node<V>,
}

impl<V> Default for PersistentTrie<V> {
    fn default() -> Self {
        PersistentTrie { root: None, len: 0, upper: 0 }
    }
}

// Implemented by hand, because `derive` would require `V: Clone`.
impl<V> Clone for PersistentTrie<V> {
    fn clone(&self) -> Self {
        PersistentTrie { root: self.root.clone(), len: self.len, upper: self.upper }
    }
}

impl<V> Clone for Node<V> {
    fn clone(&self) -> Self {
        match self {
            Node::Leaf(id, value) => Node::Leaf(*id, value.clone()),
            Node::Branch(branch) => Node::Branch(branch.clone()),
        }
    }
}

impl<V> PersistentTrie<V> {
    /// Number of ids.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of ids that are at least [`UPPER_HALF_START`].
    pub(crate) fn upper(&self) -> usize {
        self.upper
    }

    /// Returns the value of `id`.
    pub(crate) fn get(&self, id: u64) -> Option<&Arc<V>> {
        let mut node = self.root.as_ref()?;
        loop {
            match node {
                Node::Leaf(at, value) => return (*at == id).then_some(value),
                Node::Branch(branch) => node = branch.side(id),
            }
        }
    }

    /// Lowest id.
    pub(crate) fn first(&self) -> Option<u64> {
        let mut first = None;
        self.visit(0, |id, _| {
            first = Some(id);
            false
        });
        first
    }

    /// Highest id.
    pub(crate) fn last(&self) -> Option<u64> {
        let mut node = self.root.as_ref()?;
        loop {
            match node {
                Node::Leaf(id, _) => return Some(*id),
                Node::Branch(branch) => node = &branch.right,
            }
        }
    }

    /// Calls `f` for each id of at least `from` and its value, in ascending order, until `f`
    /// returns `false`.
    pub(crate) fn visit(&self, from: u64, mut f: impl FnMut(u64, &Arc<V>) -> bool) {
        if let Some(root) = &self.root {
            root.visit(from, &mut f);
        }
    }

    pub(crate) fn set(&mut self, id: u64, value: Arc<V>) {
        if self.get(id).is_none() {
            self.len += 1;
            self.upper += usize::from(id >= UPPER_HALF_START);
        }
        self.root = Some(match &self.root {
            Some(root) => root.with(id, value),
            None => Node::Leaf(id, value),
        });
    }

    /// Removes `id`, if present.
    pub(crate) fn remove(&mut self, id: u64) {
        if self.get(id).is_some() {
            self.len -= 1;
            self.upper -= usize::from(id >= UPPER_HALF_START);
            self.root = self.root.as_ref().and_then(|root| root.without(id));
        }
    }
}

impl<V> Node<V> {
    fn branch(split: u64, left: Node<V>, right: Node<V>) -> Node<V> {
        Node::Branch(Arc::new(Branch { split, left, right }))
    }

    fn visit(&self, from: u64, f: &mut impl FnMut(u64, &Arc<V>) -> bool) -> bool {
        match self {
            Node::Leaf(id, value) => *id < from || f(*id, value),
            Node::Branch(branch) => {
                (from >= branch.split || branch.left.visit(from, f)) && branch.right.visit(from, f)
            }
        }
    }

    fn with(&self, id: u64, value: Arc<V>) -> Node<V> {
        // A number that has the bits which all ids of this node have in common.
        let like = match self {
            Node::Leaf(at, _) if *at == id => return Node::Leaf(id, value),
            Node::Leaf(at, _) => *at,
            Node::Branch(branch) if branch.covers(id) => {
                let Branch { split, left, right } = &**branch;
                return if id < *split {
                    Node::branch(*split, left.with(id, value), right.clone())
                } else {
                    Node::branch(*split, left.clone(), right.with(id, value))
                };
            }
            Node::Branch(branch) => branch.split,
        };
        let part = 1 << (like ^ id).ilog2();
        let split = (id | part) & !(part - 1);
        let leaf = Node::Leaf(id, value);
        if id < split {
            Node::branch(split, leaf, self.clone())
        } else {
            Node::branch(split, self.clone(), leaf)
        }
    }

    /// Returns a copy of the node without `id`, which must be present. Returns `None` if nothing
    /// remains.
    fn without(&self, id: u64) -> Option<Node<V>> {
        let Node::Branch(branch) = self else { return None };
        let Branch { split, left, right } = &**branch;
        Some(if id < *split {
            left.without(id)
                .map_or_else(|| right.clone(), |left| Node::branch(*split, left, right.clone()))
        } else {
            right
                .without(id)
                .map_or_else(|| left.clone(), |right| Node::branch(*split, left.clone(), right))
        })
    }
}

impl<V> Branch<V> {
    fn side(&self, id: u64) -> &Node<V> {
        if id < self.split { &self.left } else { &self.right }
    }

    /// Whether `id` has the bits that all ids below this branch have in common.
    fn covers(&self, id: u64) -> bool {
        (self.split ^ id) >> self.split.trailing_zeros() <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn entries(map: &PersistentTrie<u64>, from: u64, most: usize) -> Vec<(u64, u64)> {
        let mut seen = vec![];
        map.visit(from, |id, value| {
            seen.push((id, **value));
            seen.len() < most
        });
        seen
    }

    /// Compares the map with a `BTreeMap`, for ids that share none, some or nearly all of their
    /// bits. Older versions must not change.
    #[test]
    fn it_is_an_ordered_map_and_stays_what_it_was() {
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut map, mut plain) = (PersistentTrie::default(), BTreeMap::new());
        let mut versions = vec![];
        for step in 0..20_000u64 {
            let near = rng.u64(..100);
            let id = match rng.u8(..6) {
                0 => u64::MAX - near,
                1 => near,
                2 => (1 << 63) - 50 + near,
                3 => 1 << (near % 64),
                4 => near << 57,
                _ => (1 << 50) + near * 4096,
            };
            if rng.u8(..5) < 2 {
                map.remove(id);
                plain.remove(&id);
            } else {
                map.set(id, Arc::new(step));
                plain.insert(id, step);
            }
            let from = if rng.bool() { id } else { id.wrapping_add(1) };
            assert_eq!(map.get(from).map(|value| **value), plain.get(&from).copied());
            assert_eq!(
                (map.first(), map.last()),
                (plain.keys().next().copied(), plain.keys().next_back().copied())
            );
            let expected: Vec<_> =
                plain.range(from..).take(5).map(|(&id, &value)| (id, value)).collect();
            assert_eq!(entries(&map, from, 5), expected, "step {step}");
            assert_eq!(map.len(), plain.len());
            assert_eq!(map.upper(), plain.range(UPPER_HALF_START..).count());
            if step % 1000 == 0 {
                versions.push((map.clone(), plain.clone()));
            }
        }
        for (map, plain) in versions {
            assert!(entries(&map, 0, usize::MAX).into_iter().eq(plain));
        }
    }

    #[test]
    fn it_becomes_empty_again_and_has_room_for_all_ids() {
        let mut map = PersistentTrie::default();
        let ids = || (0..64).map(|bit| 1u64 << bit).chain([0, u64::MAX]);
        ids().for_each(|id| map.set(id, Arc::new(id)));
        assert_eq!((map.len(), map.first(), map.last()), (66, Some(0), Some(u64::MAX)));
        assert_eq!(map.upper(), 2);
        ids().for_each(|id| map.remove(id));
        assert_eq!((map.len(), map.upper(), map.first(), map.last()), (0, 0, None, None));
        map.remove(7);
        assert!(map.get(7).is_none());
    }
}
