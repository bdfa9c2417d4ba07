//! AMONG, the last option of FEED.GET: which of many members have set a flag on each id.
//!
//! ```text
//!   AMONG flag [TOP count] (MEMBERS packed | OF space | member [member ...])
//! ```
//!
//! All arguments from AMONG on belong to the option. Functions that search a request for ids or for
//! other options stop before it, because a member may look like an id or like an option.

use resp::Args;

/// Position of the first id or option of FEED.GET.
const FIRST_ID: usize = 3;

/// Returns the position of AMONG, if the request has the option.
pub fn position(args: Args<'_>) -> Option<usize> {
    (FIRST_ID..args.len()).find(|&at| is_among(args, at))
}

/// Whether the argument at this position is AMONG. In `FEED.GET ... MARK among`, the word is the
/// name of an action.
#[inline]
pub fn is_among(args: Args<'_>, at: usize) -> bool {
    args.at(at).eq_ignore_ascii_case(b"AMONG")
        && args.at(0).eq_ignore_ascii_case(b"FEED.GET")
        && !names_action(args, at)
}

/// Whether the argument at this position of FEED.GET is the action after MARK. The action itself
/// may be called `mark`, and so may the viewer.
pub fn names_action(args: Args<'_>, at: usize) -> bool {
    let is_mark = |at: usize| at >= FIRST_ID && args.at(at).eq_ignore_ascii_case(b"MARK");
    is_mark(at - 1) && !is_mark(at - 2)
}

/// Returns the arguments before AMONG: the ids and the other options.
pub fn before(args: Args<'_>) -> Args<'_> {
    args.until(position(args).unwrap_or(args.len()))
}

/// Whether AMONG precedes this position, so that the argument is a member.
pub fn precedes(args: Args<'_>, at: usize) -> bool {
    position(args).is_some_and(|among| among < at)
}

/// Returns the positions of the spaces that the option reads: the flag, and the space after OF.
pub fn spaces(args: Args<'_>) -> impl Iterator<Item = usize> {
    let parts = position(args).map(|at| Parts::new(args, at));
    parts.into_iter().flat_map(|parts| [Some(parts.flag), parts.space].into_iter().flatten())
}

/// Positions of the parts of the option.
pub struct Parts {
    /// Position of the flag's name.
    pub flag: usize,
    /// Position of the number after TOP.
    pub top: Option<usize>,
    /// Position of the packed members after MEMBERS.
    pub packed: Option<usize>,
    /// Position of the space's name after OF.
    pub space: Option<usize>,
    /// Position of the first member, if the members are separate arguments.
    pub first: usize,
}

impl Parts {
    /// Finds the parts of the option that begins at position `at`. MEMBERS and OF are recognized
    /// only if exactly one argument follows.
    pub fn new(args: Args<'_>, at: usize) -> Parts {
        let is = |at: usize, word: &[u8]| args.at(at).eq_ignore_ascii_case(word);
        let flag = at + 1;
        let top = is(flag + 1, b"TOP").then_some(flag + 2);
        let first = top.unwrap_or(flag) + 1;
        let pair = |word| (args.len() == first + 2 && is(first, word)).then_some(first + 1);
        Parts { flag, top, packed: pair(b"MEMBERS"), space: pair(b"OF"), first }
    }
}

/// Returns the number of bytes that the option adds to a binary row: the number of members as i64,
/// and `top` of them as u64.
pub fn binary_bytes(top: usize) -> usize {
    (1 + top) * 8
}
