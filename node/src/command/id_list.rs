//! Ids among the arguments of a request: one decimal number per argument, or `IDS packed`, one
//! string of little-endian u64.
//!
//! Every other argument is an option. PH.UNSEEN takes its options before the ids, because some of
//! them have numeric values.

use crate::command::among::{self, is_among, names_action};
use crate::command::spec::{MEMBER, Spec, flag};
use crate::command::unseen_options::Options;
use resp::{Args, natural};
use std::slice;

/// Maximum number of ids in one packed string.
pub const MAX_PACKED_IDS: usize = 100_000;
/// Size of a packed id in bytes.
pub const ID_BYTES: usize = 8;

const WORD: &[u8] = b"IDS";

/// Iterator over the ids of a request, with the position of the argument that contains each id.
pub struct Ids<'a> {
    args: Args<'a>,
    at: usize,
    step: usize,
    spec: &'a Spec,
    packed: slice::Iter<'a, [u8; ID_BYTES]>,
}

impl<'a> Ids<'a> {
    /// Iterates over the ids from argument `first` on. Skips options and an incomplete packed id.
    #[inline]
    pub fn new(spec: &'a Spec, args: Args<'a>, first: usize, step: usize) -> Ids<'a> {
        let at = first_id(spec, args, first);
        Ids { args, at, step, spec, packed: [].iter() }
    }
}

impl Iterator for Ids<'_> {
    type Item = (usize, u64);

    #[inline]
    fn next(&mut self) -> Option<(usize, u64)> {
        if let Some(id) = self.packed.next() {
            return Some((self.at - 1, u64::from_le_bytes(*id)));
        }
        while self.at < self.args.len() {
            let (at, word) = (self.at, self.args.at(self.at));
            self.at = at.saturating_add(self.step);
            if let Some(id) = natural(word) {
                return Some((at, id));
            }
            if is_among(self.args, at) {
                self.at = self.args.len();
            } else if announces_packed(self.spec, self.args, at) {
                self.packed = self.args.at(self.at).as_chunks().0.iter();
                self.at += 1;
                if let Some(id) = self.packed.next() {
                    return Some((at + 1, u64::from_le_bytes(*id)));
                }
            }
        }
        None
    }
}

/// Returns the position of the packed ids, if the request has some.
pub fn packed(spec: &Spec, args: Args<'_>) -> Option<usize> {
    if !spec.has(flag::PACKED) {
        return None;
    }
    let mut words = first_id(spec, args, MEMBER + 1)..args.len().saturating_sub(1);
    let at = words.find(|&at| announces_packed(spec, args, at))?;
    (!among::precedes(args, at)).then_some(at + 1)
}

/// Whether the argument at this position is the word IDS before packed ids. In `FEED.GET ... MARK
/// ids`, that word is the name of an action.
#[inline]
fn announces_packed(spec: &Spec, args: Args<'_>, at: usize) -> bool {
    let is_action = || spec.name == "feed.get" && names_action(args, at);
    is_ids(args.at(at)) && spec.has(flag::PACKED) && !is_action()
}

/// Returns the number of packed ids in a request. The result may be too high for a command that
/// does not accept packed ids.
pub fn count_packed(args: Args<'_>) -> usize {
    let words = MEMBER + 1..args.len().saturating_sub(1);
    words.filter(|&at| is_ids(args.at(at))).map(|at| args.at(at + 1).len() / ID_BYTES).sum()
}

/// Whether an argument is the word IDS, in any case.
#[inline]
pub fn is_ids(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(WORD)
}

/// Returns the ids of a packed string, or `None` if its length is not a multiple of [`ID_BYTES`].
pub fn unpack(packed: &[u8]) -> Option<impl ExactSizeIterator<Item = u64> + use<'_>> {
    let (ids, rest) = packed.as_chunks();
    rest.is_empty().then(|| ids.iter().map(|id| u64::from_le_bytes(*id)))
}

/// Returns the position of the first id or of the word IDS. `first` is the position after the fixed
/// arguments.
#[inline]
pub fn first_id(spec: &Spec, args: Args<'_>, first: usize) -> usize {
    if spec.name == "ph.unseen" { Options::new(args, first).end() } else { first }
}
