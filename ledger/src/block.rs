//! Block of a run: hundreds to thousands of pairs in 4 KiB, grouped by id.
//!
//! ```text
//!   bits  field
//!     16  groups, at least 1
//!     64  lowest id
//!         then for each group, the pairs of one id and one kind of member:
//!    code   id minus the id of the previous group
//!       1   kind: 0 numbers, 1 byte strings
//!       1   whether any pair is unset
//!    code   n - 1, for n pairs
//!       n   if any pair is unset: one bit per pair, 1 if it is unset
//!         numbers:
//!       6   k
//!       1   whether the next 64 bits are a base
//!     n*k   the lower k bits of each member minus the base
//!           the upper parts in ascending order, each as a difference to the previous one: as
//!           many zeros, then a one
//!         byte strings, each:
//!    code   length of the prefix shared with the previous one
//!    code   length of the rest
//!           the rest
//!         zeros
//! ```
//!
//! `bits.rs` defines `code`. Groups are sorted by id, numbers before strings. The numbers of a
//! group are an Elias-Fano list (P. Elias, "Efficient storage and retrieval by content and address
//! of static files", JACM 1974) with the k that gives the smallest encoding. A member takes about
//! log2(d) + 1.6 bits, where d is the mean distance between members. A group that continues from
//! the previous block stores a base.
//!
//! A lookup skips earlier groups by counting one bits, 64 bits at a time. In the group of the
//! searched id, the lookup counts zeros to find the upper part. The file stores a checksum per
//! block (`store/src/cold/pages.rs`).

use crate::bits::{BitReader, BitWriter, bits_of};
use crate::pair::{Member, Pair, Pairs};
use store::{BLOCK_BYTES, bits};

/// Maximum number of pairs in a block. Each pair takes at least two bits.
const MAX_PAIRS: usize = BLOCK_BYTES * 4;
const BITS: usize = BLOCK_BYTES * 8;
const HEADER_BYTES: usize = 16 + 64;

const TRUNCATED_GROUP: &str = "the block ends within a group";

/// Returns the best `k` for `n` numbers up to `span`, and the encoded size in bits.
#[inline]
fn packed(n: u64, span: u64) -> (u32, usize) {
    let guess = (span / n).max(1).ilog2();
    let cost = |k: u32| (n * u64::from(k + 1) + (span >> k)) as usize;
    // `k` is optimal if the mean distance is about 1.4 times 2^k.
    let below = guess.saturating_sub(1);
    if cost(below) < cost(guess) { (below, cost(below)) } else { (guess, cost(guess)) }
}

/// Pairs of one id and one kind of member.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// Difference to the id of the previous group.
    step: u64,
    strings: bool,
    pairs: usize,
    unset: usize,
    first: u64,
    last: u64,
    /// Encoded size of the strings, in bits.
    string_bits: usize,
}

struct Packing {
    base: Option<u64>,
    k: u32,
    bits: usize,
}

impl Group {
    fn packing(&self) -> Packing {
        let n = self.pairs as u64;
        let (k, plain) = packed(n, self.last);
        let (based_k, based) = packed(n, self.last - self.first);
        if based + 64 < plain {
            Packing { base: Some(self.first), k: based_k, bits: based + 64 }
        } else {
            Packing { base: None, k, bits: plain }
        }
    }

    fn bits(&self) -> usize {
        let members = if self.strings { self.string_bits } else { 7 + self.packing().bits };
        let unset = if self.unset > 0 { self.pairs } else { 0 };
        bits_of(self.step) + 2 + bits_of(self.pairs as u64 - 1) + unset + members
    }
}

fn shared(before: &[u8], bytes: &[u8]) -> usize {
    before.iter().zip(bytes).take_while(|(a, b)| a == b).count()
}

/// Collects ascending pairs until a block is full.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    pairs: Pairs,
    /// Groups of the current block. Only the last group can grow.
    groups: Vec<Group>,
    complete: usize,
    /// Upper bound of the last group's size in bits, and the `k` of its numbers. Each new number
    /// raises the bound by its maximum cost. The exact size takes a division to compute, so it is
    /// computed only when the group has doubled or the bound exceeds the block.
    bound: (usize, u32),
}

impl Builder {
    /// Adds a pair if there is room. An empty block has room for any pair.
    #[inline]
    pub(crate) fn push(&mut self, pair: Pair<'_>) -> bool {
        let last = self.pairs.last();
        let strings = matches!(pair.member, Member::Bytes(_));
        let (number, string_bits) = match pair.member {
            Member::Number(number) => (number, 0),
            Member::Bytes(bytes) => {
                let before = match last {
                    Some(Pair { id, member: Member::Bytes(before), .. }) if id == pair.id => before,
                    _ => &[],
                };
                let shared = shared(before, bytes);
                let rest = bytes.len() - shared;
                (0, bits_of(shared as u64) + bits_of(rest as u64) + 8 * rest)
            }
        };
        let unset = usize::from(!pair.set);
        let goes_on = last.is_some_and(|last| {
            last.id == pair.id && matches!(last.member, Member::Bytes(_)) == strings
        });
        let (complete, group) = match self.groups.last() {
            Some(group) if goes_on => {
                let group = Group {
                    pairs: group.pairs + 1,
                    unset: group.unset + unset,
                    last: number,
                    string_bits: group.string_bits + string_bits,
                    ..*group
                };
                (self.complete, group)
            }
            before => {
                let step = pair.id - last.map_or(pair.id, |last| last.id);
                let (first, last) = (number, number);
                let group = Group { step, strings, pairs: 1, unset, first, last, string_bits };
                (self.complete + before.map_or(0, Group::bits), group)
            }
        };
        let room = (BITS - HEADER_BYTES).saturating_sub(complete);
        let mut bound = self.bound;
        // The length code of a group grows at powers of two. Subtracting a base may raise the
        // difference between two upper parts by one.
        let is_simple = goes_on && !strings && group.unset == 0;
        if is_simple && !(group.pairs - 1).is_power_of_two() {
            let (before, k) = (last.map_or(0, |last| last.number()), bound.1);
            let further = ((number >> k) - (before >> k)) as usize;
            bound.0 = bound.0.saturating_add(further).saturating_add(2 + k as usize);
        } else {
            bound.0 = usize::MAX;
        }
        if bound.0 > room {
            let k = if strings { 0 } else { group.packing().k };
            bound = (group.bits(), k);
        }
        let full = self.pairs.len() == MAX_PAIRS || bound.0 > room;
        if full && !self.pairs.is_empty() {
            return false;
        }
        assert!(!full, "any pair fits into an empty block");
        match self.groups.last_mut() {
            Some(last) if goes_on => *last = group,
            _ => self.groups.push(group),
        }
        (self.complete, self.bound) = (complete, bound);
        self.pairs.push(pair);
        true
    }

    pub(crate) fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    /// Encodes the pairs and starts the next block. There must be at least one pair.
    pub(crate) fn finish(&mut self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        let mut out = BitWriter::new(&mut block);
        out.put(16, self.groups.len() as u64);
        out.put(64, self.pairs.get(0).map_or(0, |first| first.id));
        let mut from = 0;
        for group in &self.groups {
            let n = group.pairs;
            let pairs = || (from..from + n).filter_map(|at| self.pairs.get(at));
            out.number(group.step);
            out.put(1, u64::from(group.strings));
            out.put(1, u64::from(group.unset > 0));
            out.number(n as u64 - 1);
            if group.unset > 0 {
                pairs().for_each(|pair| out.put(1, u64::from(!pair.set)));
            }
            if group.strings {
                put_strings(&mut out, pairs());
            } else {
                put_numbers(&mut out, &group.packing(), pairs());
            }
            from += n;
        }
        self.pairs.clear();
        self.groups.clear();
        self.complete = 0;
        block
    }
}

fn put_strings<'p>(out: &mut BitWriter<'_>, pairs: impl Iterator<Item = Pair<'p>>) {
    let mut before: &[u8] = &[];
    for pair in pairs {
        let Member::Bytes(bytes) = pair.member else { continue };
        let shared = shared(before, bytes);
        out.number(shared as u64);
        out.number((bytes.len() - shared) as u64);
        bytes[shared..].iter().for_each(|&byte| out.put(8, u64::from(byte)));
        before = bytes;
    }
}

fn put_numbers<'p>(
    out: &mut BitWriter<'_>,
    packing: &Packing,
    pairs: impl Iterator<Item = Pair<'p>> + Clone,
) {
    let Packing { base, k, .. } = *packing;
    out.put(6, u64::from(k));
    out.put(1, u64::from(base.is_some()));
    if let Some(base) = base {
        out.put(64, base);
    }
    let numbers = pairs.filter_map(|pair| match pair.member {
        Member::Number(number) => Some(number - base.unwrap_or(0)),
        Member::Bytes(_) => None,
    });
    for number in numbers.clone() {
        out.put(k, number & !(u64::MAX << k));
    }
    let mut before = 0;
    for number in numbers {
        out.skip(((number >> k) - before) as usize);
        out.put(1, 1);
        before = number >> k;
    }
}

struct GroupHead {
    id: u64,
    strings: bool,
    pairs: usize,
    /// Position of the bits that mark unset pairs, if any pair is unset.
    unset: Option<usize>,
}

struct Numbers {
    base: u64,
    k: u32,
    lows: usize,
    highs: usize,
}

/// Block with a verified checksum.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    bytes: &'a [u8; BLOCK_BYTES],
}

/// Result whose error describes the damage.
type Decoded<T> = Result<T, &'static str>;

impl<'a> Block<'a> {
    pub(crate) fn new(bytes: &'a [u8; BLOCK_BYTES]) -> Block<'a> {
        Block { bytes }
    }

    fn begin(self) -> (BitReader<'a>, u64, u64) {
        let mut reader = BitReader { bytes: self.bytes, at: 0 };
        let (groups, id) = (reader.take(16), reader.take(64));
        (reader, groups, id)
    }

    /// Decodes the next group head. `before` is the id of the previous group, or the block's first
    /// id.
    fn head(reader: &mut BitReader<'_>, before: u64) -> Decoded<GroupHead> {
        let step = reader.number().ok_or(TRUNCATED_GROUP)?;
        let id = before.checked_add(step).ok_or("an id of more than 64 bits")?;
        let (strings, some_unset) = (reader.take(1) == 1, reader.take(1) == 1);
        let more = reader.number().ok_or(TRUNCATED_GROUP)?;
        if more >= MAX_PAIRS as u64 {
            return Err("the pair count of a group is out of bounds");
        }
        let pairs = more as usize + 1;
        let unset = some_unset.then_some(reader.at);
        reader.at += if some_unset { pairs } else { 0 };
        if reader.at > BITS {
            Err(TRUNCATED_GROUP)
        } else {
            Ok(GroupHead { id, strings, pairs, unset })
        }
    }

    fn numbers(reader: &mut BitReader<'_>, pairs: usize) -> Decoded<Numbers> {
        let k = reader.take(6) as u32;
        let base = if reader.take(1) == 1 { reader.take(64) } else { 0 };
        let lows = reader.at;
        let highs = lows + pairs * k as usize;
        if highs > BITS { Err(TRUNCATED_GROUP) } else { Ok(Numbers { base, k, lows, highs }) }
    }

    fn highs_end(self, mut at: usize, mut ones: usize) -> Decoded<usize> {
        while at < BITS {
            let mut word = bits::get(self.bytes, at, 64);
            let here = word.count_ones() as usize;
            if here < ones {
                ones -= here;
                at += 64;
                continue;
            }
            (1..ones).for_each(|_| word &= word - 1);
            let end = at + word.trailing_zeros() as usize + 1;
            return if end <= BITS { Ok(end) } else { Err(TRUNCATED_GROUP) };
        }
        Err(TRUNCATED_GROUP)
    }

    fn string_lengths(reader: &mut BitReader<'_>) -> Decoded<(usize, usize)> {
        let (shared, rest) =
            (reader.number().ok_or(TRUNCATED_GROUP)?, reader.number().ok_or(TRUNCATED_GROUP)?);
        let room = (BITS.saturating_sub(reader.at) / 8) as u64;
        if rest > room || shared > BLOCK_BYTES as u64 {
            return Err(TRUNCATED_GROUP);
        }
        Ok((shared as usize, rest as usize))
    }

    /// Returns whether the pair is set, or `None` if the block does not contain it.
    pub(crate) fn find(self, id: u64, member: Member<'_>) -> Decoded<Option<bool>> {
        let (mut reader, groups, mut at_id) = self.begin();
        for _ in 0..groups {
            let head = Block::head(&mut reader, at_id)?;
            at_id = head.id;
            if head.id > id {
                break;
            }
            let index = match (head.strings, member) {
                (false, Member::Number(number)) if head.id == id => {
                    let numbers = Block::numbers(&mut reader, head.pairs)?;
                    self.find_number(&numbers, head.pairs, number)?
                }
                (true, Member::Bytes(bytes)) if head.id == id => {
                    Block::find_string(&mut reader, head.pairs, bytes)?
                }
                (false, _) => {
                    let numbers = Block::numbers(&mut reader, head.pairs)?;
                    reader.at = self.highs_end(numbers.highs, head.pairs)?;
                    continue;
                }
                (true, _) => {
                    for _ in 0..head.pairs {
                        let (_, rest) = Block::string_lengths(&mut reader)?;
                        reader.at += 8 * rest;
                    }
                    continue;
                }
            };
            let is_set =
                |index| head.unset.is_none_or(|at| bits::get(self.bytes, at + index, 1) == 0);
            return Ok(index.map(is_set));
        }
        Ok(None)
    }

    fn find_number(self, numbers: &Numbers, pairs: usize, number: u64) -> Decoded<Option<usize>> {
        let &Numbers { base, k, lows, highs } = numbers;
        let Some(number) = number.checked_sub(base) else { return Ok(None) };
        let (high, low) = (number >> k, number & !(u64::MAX << k));
        let (mut at, mut index, mut zeros) = (highs, 0, 0u64);
        while index < pairs && at < BITS {
            let mut word = bits::get(self.bytes, at, 64);
            let ones = word.count_ones() as usize;
            if zeros + (64 - ones as u64) < high {
                (zeros, index, at) = (zeros + 64 - ones as u64, index + ones, at + 64);
                continue;
            }
            let mut used = 0;
            while word != 0 && index < pairs {
                let skipped = word.trailing_zeros();
                zeros += u64::from(skipped);
                if zeros > high {
                    return Ok(None);
                }
                if zeros == high && bits::get(self.bytes, lows + index * k as usize, k) == low {
                    return Ok(Some(index));
                }
                index += 1;
                used += skipped + 1;
                word = word.checked_shr(skipped + 1).unwrap_or(0);
            }
            zeros += u64::from(64 - used);
            at += 64;
        }
        if index < pairs { Err(TRUNCATED_GROUP) } else { Ok(None) }
    }

    fn find_string(
        reader: &mut BitReader<'_>,
        pairs: usize,
        string: &[u8],
    ) -> Decoded<Option<usize>> {
        // Length of the prefix that the searched string shares with the previous string.
        let mut same = 0;
        for index in 0..pairs {
            let (shared, rest) = Block::string_lengths(reader)?;
            let from = reader.at;
            reader.at += 8 * rest;
            // This string differs from the searched one at the same byte as the previous string.
            if index > 0 && shared > same {
                continue;
            }
            let equal = (0..rest)
                .take_while(|&at| {
                    let byte = bits::get(reader.bytes, from + 8 * at, 8) as u8;
                    string.get(shared + at) == Some(&byte)
                })
                .count();
            same = shared + equal;
            if equal == rest && same == string.len() {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Appends all pairs and checks their order.
    pub(crate) fn append_to(self, pairs: &mut Pairs) -> Decoded<()> {
        let (mut reader, groups, mut id) = self.begin();
        if groups == 0 {
            return Err("the block has no groups");
        }
        let mut before: Option<(u64, bool)> = None;
        let mut string = Vec::new();
        for _ in 0..groups {
            let head = Block::head(&mut reader, id)?;
            id = head.id;
            if before.is_some_and(|before| (id, head.strings) <= before) {
                return Err("groups of the block are not ascending");
            }
            before = Some((id, head.strings));
            let is_set =
                |index| head.unset.is_none_or(|at| bits::get(self.bytes, at + index, 1) == 0);
            if head.strings {
                string.clear();
                for index in 0..head.pairs {
                    Block::next_string(&mut reader, &mut string, index)?;
                    pairs.push(Pair { id, member: Member::Bytes(&string), set: is_set(index) });
                }
            } else {
                let numbers = Block::numbers(&mut reader, head.pairs)?;
                reader.at = self.append_numbers(&head, &numbers, is_set, pairs)?;
            }
        }
        if reader.at > BITS { Err(TRUNCATED_GROUP) } else { Ok(()) }
    }

    fn next_string(reader: &mut BitReader<'_>, string: &mut Vec<u8>, index: usize) -> Decoded<()> {
        let (shared, rest) = Block::string_lengths(reader)?;
        if shared > string.len() || (index == 0 && shared > 0) {
            return Err("a member's shared prefix is too long");
        }
        let replaced = string.get(shared).copied();
        let is_longer = shared == string.len();
        string.truncate(shared);
        string.extend((0..rest).map(|_| reader.take(8) as u8));
        let rises = match (replaced, string.get(shared)) {
            (Some(old), Some(&new)) => new > old,
            (None, Some(_)) => is_longer,
            (_, None) => false,
        };
        if index > 0 && !rises {
            return Err("members of a group are not ascending");
        }
        if string.len() > crate::pair::MAX_MEMBER_BYTES {
            return Err("a member exceeds the length limit");
        }
        Ok(())
    }

    fn append_numbers(
        self,
        head: &GroupHead,
        numbers: &Numbers,
        is_set: impl Fn(usize) -> bool,
        pairs: &mut Pairs,
    ) -> Decoded<usize> {
        let &Numbers { base, k, lows, highs } = numbers;
        let (mut at, mut index, mut high) = (highs, 0, 0u64);
        let mut before = None;
        while at < BITS {
            let mut word = bits::get(self.bytes, at, 64);
            let mut used = 0;
            while word != 0 {
                let skipped = word.trailing_zeros();
                high += u64::from(skipped);
                used += skipped + 1;
                word = word.checked_shr(skipped + 1).unwrap_or(0);
                let low = bits::get(self.bytes, lows + index * k as usize, k);
                // May wrap in a damaged block. The order check below rejects the result.
                let number = (high << k | low).wrapping_add(base);
                if before.is_some_and(|before| number <= before) {
                    return Err("members of a group are not ascending");
                }
                before = Some(number);
                let member = Member::Number(number);
                pairs.push(Pair { id: head.id, member, set: is_set(index) });
                index += 1;
                if index == head.pairs {
                    return Ok(at + used as usize);
                }
            }
            high += u64::from(64 - used);
            at += 64;
        }
        Err(TRUNCATED_GROUP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(pairs: &[(u64, Member<'_>, bool)]) -> (Vec<[u8; BLOCK_BYTES]>, Vec<usize>) {
        let (mut builder, mut blocks, mut counts) = (Builder::default(), vec![], vec![]);
        for &(id, member, set) in pairs {
            let pair = Pair { id, member, set };
            if !builder.push(pair) {
                counts.push(builder.pairs().len());
                blocks.push(builder.finish());
                assert!(builder.push(pair));
            }
        }
        counts.push(builder.pairs().len());
        blocks.push(builder.finish());
        (blocks, counts)
    }

    /// Checks that lookups find all pairs, and miss adjacent pairs that are absent.
    fn check(pairs: &[(u64, Member<'_>, bool)]) {
        let (blocks, counts) = build(pairs);
        let mut at = 0;
        for (bytes, n) in blocks.iter().zip(counts) {
            let block = Block::new(bytes);
            let mut read = Pairs::default();
            block.append_to(&mut read).unwrap();
            let here = &pairs[at..at + n];
            assert_eq!(read.len(), n);
            for (pair, &(id, member, set)) in read.iter().zip(here) {
                assert_eq!(pair, Pair { id, member, set });
            }
            for &(id, member, set) in here.iter().step_by(1 + n / 300) {
                assert_eq!(block.find(id, member), Ok(Some(set)), "{id} {member:?}");
                let others = match member {
                    Member::Number(n) => [n.wrapping_add(1), n.wrapping_sub(1)].map(Member::Number),
                    Member::Bytes(b) => [Member::Bytes(&b[..b.len() / 2]), Member::Number(77)],
                };
                for other in others {
                    let there = here.iter().find(|pair| (pair.0, pair.1) == (id, other));
                    assert_eq!(
                        block.find(id, other),
                        Ok(there.map(|pair| pair.2)),
                        "{id} {other:?}"
                    );
                }
            }
            at += n;
        }
        assert_eq!(at, pairs.len());
    }

    #[test]
    fn extreme_numbers_read_back() {
        let of = Member::Number;
        check(&[(0, of(0), true)]);
        check(&[(u64::MAX, of(u64::MAX), false)]);
        check(&[
            (0, of(0), true),
            (0, of(u64::MAX), false),
            (0, Member::Bytes(b""), true),
            (0, Member::Bytes(b"\0"), true),
            (5, of(1 << 63), true),
            (u64::MAX, of(0), false),
            (u64::MAX, of(u64::MAX), true),
            (u64::MAX, Member::Bytes(&[255; 512]), true),
        ]);
    }

    #[test]
    fn random_groups_read_back() {
        let mut random = fastrand::Rng::with_seed(1);
        for round in 0..60 {
            let mut pairs = std::collections::BTreeMap::new();
            let width = random.u32(1..=64);
            let strings: Vec<Vec<u8>> = (0..40)
                .map(|_| (0..random.usize(0..30)).map(|_| random.u8(b'a'..b'd')).collect())
                .collect();
            for _ in 0..random.u32(1..6) {
                let id = random.u64(..) >> random.u32(0..64);
                for _ in 0..random.u32(0..5000) {
                    let member = match round % 3 {
                        0 if random.u8(..) < 8 => Member::Bytes(&strings[random.usize(0..40)]),
                        _ => Member::Number(random.u64(..) >> (64 - width)),
                    };
                    pairs.insert((id, member), random.u8(..) > 9 || round % 2 == 0);
                }
            }
            let pairs: Vec<_> = pairs.into_iter().map(|((id, m), set)| (id, m, set)).collect();
            if !pairs.is_empty() {
                check(&pairs);
            }
        }
    }

    #[test]
    fn long_strings_fill_blocks_one_by_one() {
        let strings: Vec<Vec<u8>> =
            (0..40u8).map(|n| (0..512u16).map(|at| n ^ at as u8).collect()).collect();
        let mut pairs: Vec<_> =
            strings.iter().map(|string| (7, Member::Bytes(string.as_slice()), true)).collect();
        pairs.sort();
        check(&pairs);
    }

    #[test]
    fn members_take_few_bits() {
        let mut random = fastrand::Rng::with_seed(3);
        // Fifty members below 2^40 have 35.8 bits of entropy each.
        for (bits, most) in [(40, 4.7), (64, 7.75)] {
            let mut pairs = std::collections::BTreeSet::new();
            for id in 0..1000 {
                (0..50).for_each(|_| {
                    pairs.insert((id << 20, random.u64(..) >> (64 - bits)));
                });
            }
            let pairs: Vec<_> =
                pairs.into_iter().map(|(id, m)| (id, Member::Number(m), true)).collect();
            let each = build(&pairs).0.len() as f64 * 4096.0 / pairs.len() as f64;
            assert!(each < most, "{each} bytes of {bits} bits");
        }
    }
}
