//! Options of PH.UNSEEN, which precede its ids.

use resp::Args;

/// Returns whether the options of PH.UNSEEN include MARK, and the position after the options.
pub fn read(args: Args<'_>, first: usize) -> (bool, usize) {
    let (mut at, mut marks) = (first, false);
    loop {
        let word = args.at(at);
        if word.eq_ignore_ascii_case(b"MARK") {
            (marks, at) = (true, at + 1);
        } else if word.eq_ignore_ascii_case(b"BITS") {
            at += 1;
        } else if word.eq_ignore_ascii_case(b"LIMIT") || word.eq_ignore_ascii_case(b"BELOW") {
            at += 2;
        } else {
            return (marks, at.min(args.len()));
        }
    }
}
