//! Index of a run: finds the block of a pair from the first pair of each block.
//!
//! ```text
//!   offset  size  field
//!        0     1  w         bits of an id, 0..=64
//!        1     1  v         bits of a member, 0..=64
//!        2     4  strings   number of blocks that continue an id with a string
//!        6        for each block: id of its first pair minus the run's first id, w bits
//!                 for each block: whether it continues the last id of the previous block, 1 bit
//!                 for each block: its first member if it continues an id and the member is a
//!                 number, v bits
//!                 each of the three is padded to a whole byte
//!                 for each string: block (4), length (2), bytes
//! ```
//!
//! If a block begins with the first pair of an id, the index stores no member for the block,
//! because all pairs of the id are in this block or in later blocks. A string is truncated to the
//! shortest prefix that is greater than the last string of the previous block.

use crate::pair::{Member, Pair};
use store::bits;

/// Collects the first pair of each block while a run is written.
#[derive(Debug, Default)]
pub(crate) struct FirstPairs {
    ids: Vec<u64>,
    continues_id: Vec<bool>,
    members: Vec<u64>,
    strings: Vec<(u32, Box<[u8]>)>,
}

impl FirstPairs {
    /// Adds a block that begins with `first`. `before` is the last pair of the previous block.
    pub(crate) fn push(&mut self, first: Pair<'_>, before: Option<Pair<'_>>) {
        let before = before.filter(|before| before.id == first.id);
        let member = match (before.map(|before| before.member), first.member) {
            (None, _) => 0,
            (Some(_), Member::Number(number)) => number,
            (Some(before), Member::Bytes(bytes)) => {
                let shared = match before {
                    Member::Bytes(before) => {
                        before.iter().zip(bytes).take_while(|(a, b)| a == b).count() + 1
                    }
                    Member::Number(_) => 0,
                };
                self.strings.push((self.ids.len() as u32, bytes[..shared.min(bytes.len())].into()));
                0
            }
        };
        self.ids.push(first.id);
        self.continues_id.push(before.is_some());
        self.members.push(member);
    }

    pub(crate) fn blocks(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn first_id(&self) -> u64 {
        self.ids.first().copied().unwrap_or(0)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let first = self.first_id();
        let width = bits::width_of(self.ids.last().map_or(0, |last| last - first));
        let of_members = bits::width_of(self.members.iter().copied().max().unwrap_or(0));
        let mut out = vec![width as u8, of_members as u8];
        out.extend_from_slice(&(self.strings.len() as u32).to_le_bytes());
        pack(&mut out, width, self.ids.iter().map(|id| id - first));
        pack(&mut out, 1, self.continues_id.iter().map(|&continues_id| u64::from(continues_id)));
        pack(&mut out, of_members, self.members.iter().copied());
        for (block, string) in &self.strings {
            out.extend_from_slice(&block.to_le_bytes());
            out.extend_from_slice(&(string.len() as u16).to_le_bytes());
            out.extend_from_slice(string);
        }
        out
    }
}

fn pack(out: &mut Vec<u8>, width: u32, numbers: impl ExactSizeIterator<Item = u64>) {
    let mut packed = vec![0; (numbers.len() * width as usize).div_ceil(8)];
    for (at, number) in numbers.enumerate() {
        bits::put(&mut packed, at * width as usize, width, number);
    }
    out.extend_from_slice(&packed);
}

#[derive(Debug)]
struct Packed {
    width: u32,
    bytes: Box<[u8]>,
}

impl Packed {
    fn take(bytes: &mut &[u8], width: u32, n: usize) -> Option<Packed> {
        let (packed, rest) = bytes.split_at_checked((n * width as usize).div_ceil(8))?;
        *bytes = rest;
        Some(Packed { width, bytes: packed.into() })
    }

    fn get(&self, at: usize) -> u64 {
        bits::get(&self.bytes, at * self.width as usize, self.width)
    }
}

#[derive(Debug)]
pub(crate) struct Index {
    first: u64,
    blocks: usize,
    ids: Packed,
    continues_id: Packed,
    members: Packed,
    /// Truncated strings with the indexes of their blocks, in ascending order.
    strings: Box<[(u32, Box<[u8]>)]>,
}

impl Index {
    /// Decodes the index of `blocks` blocks from the start of `bytes`.
    pub(crate) fn decode(
        bytes: &mut &[u8],
        first: u64,
        blocks: usize,
    ) -> Result<Index, &'static str> {
        Index::take(bytes, first, blocks)
            .ok_or("the index is truncated, or its ids are not ascending")
    }

    fn take(bytes: &mut &[u8], first: u64, blocks: usize) -> Option<Index> {
        let (head, rest) = bytes.split_first_chunk::<6>()?;
        *bytes = rest;
        let [width, of_members] = [head[0], head[1]].map(u32::from);
        let strings = u32::from_le_bytes([head[2], head[3], head[4], head[5]]);
        if width > 64 || of_members > 64 || strings as usize > blocks {
            return None;
        }
        let ids = Packed::take(bytes, width, blocks)?;
        let continues_id = Packed::take(bytes, 1, blocks)?;
        let members = Packed::take(bytes, of_members, blocks)?;
        let mut list: Vec<(u32, Box<[u8]>)> = Vec::new();
        for _ in 0..strings {
            let (head, rest) = bytes.split_first_chunk::<6>()?;
            let block = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
            let length = u16::from_le_bytes([head[4], head[5]]);
            let (string, rest) = rest.split_at_checked(length.into())?;
            *bytes = rest;
            let rises = list.last().is_none_or(|last| last.0 < block);
            if !rises || block as usize >= blocks || continues_id.get(block as usize) == 0 {
                return None;
            }
            list.push((block, string.into()));
        }
        let index = Index { first, blocks, ids, continues_id, members, strings: list.into() };
        let rises = (1..blocks).all(|at| index.ids.get(at - 1) <= index.ids.get(at));
        let fits = first.checked_add(index.ids.get(blocks.checked_sub(1)?)).is_some();
        (rises && fits && index.ids.get(0) == 0 && no_block_continues_id(&index)).then_some(index)
    }

    pub(crate) fn id(&self, block: usize) -> u64 {
        self.first + self.ids.get(block)
    }

    fn is_before(&self, (id, member): (u64, Member<'_>), block: usize) -> bool {
        let first = self.id(block);
        if id != first || self.continues_id.get(block) == 0 {
            return id < first;
        }
        match self.strings.binary_search_by_key(&(block as u32), |string| string.0) {
            Ok(at) => member < Member::Bytes(&self.strings[at].1),
            Err(_) => member < Member::Number(self.members.get(block)),
        }
    }

    /// Returns the only block that may contain the pair.
    pub(crate) fn block_of(&self, id: u64, member: Member<'_>) -> usize {
        let (mut from, mut to) = (0, self.blocks);
        while to - from > 1 {
            let middle = usize::midpoint(from, to);
            if self.is_before((id, member), middle) { to = middle } else { from = middle }
        }
        from
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let packed = [&self.ids, &self.continues_id, &self.members];
        let strings =
            self.strings.iter().map(|(_, string)| size_of::<(u32, Box<[u8]>)>() + string.len());
        packed.iter().map(|packed| packed.bytes.len()).sum::<usize>() + strings.sum::<usize>()
    }
}

fn no_block_continues_id(index: &Index) -> bool {
    index.continues_id.get(0) == 0
}
