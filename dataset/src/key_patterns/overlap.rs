//! Decides whether two patterns have a key in common.
//!
//! The keys of a pattern form a regular language: prefix, digits, middle, and for cells any bytes
//! and end. Two such languages intersect if the product of their automata reaches a pair of final
//! states. Any sequence of digits counts as an id, even with leading zeros or more than 64 bits. A
//! pattern refuses such keys with a specific error, so no other pattern may match them.

use crate::key_patterns::Pattern;

/// State of a pattern's automaton.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    /// Number of bytes read of the prefix.
    Prefix(usize),
    /// At least one digit was read.
    Id,
    /// Number of bytes read of the text after the id, at least 1.
    Middle(usize),
    /// At least one byte of the field was read.
    Field,
    /// Number of bytes read of the text after the field, at least 1.
    End(usize),
}

impl State {
    /// Returns the states after one more byte. A byte of the field may also begin the end.
    fn after(self, pattern: &Pattern, byte: u8) -> impl Iterator<Item = State> {
        let is = |text: &[u8], at: usize| text.get(at) == Some(&byte);
        let Pattern { prefix, middle, end, .. } = pattern;
        let mut next = [None; 2];
        match self {
            State::Prefix(at) if at < prefix.len() => {
                next[0] = is(prefix, at).then_some(State::Prefix(at + 1));
            }
            State::Prefix(_) => next[0] = byte.is_ascii_digit().then_some(State::Id),
            State::Id => {
                next[0] = byte.is_ascii_digit().then_some(State::Id);
                next[1] = is(middle, 0).then_some(State::Middle(1));
            }
            State::Middle(at) if at < middle.len() => {
                next[0] = is(middle, at).then_some(State::Middle(at + 1));
            }
            State::Middle(_) => next[0] = end.is_some().then_some(State::Field),
            State::Field => {
                let end = end.as_deref().unwrap_or_default();
                next = [Some(State::Field), is(end, 0).then_some(State::End(1))];
            }
            State::End(at) => {
                let end = end.as_deref().unwrap_or_default();
                next[0] = is(end, at).then_some(State::End(at + 1));
            }
        }
        next.into_iter().flatten()
    }

    /// Returns whether the automaton accepts in this state: the bytes read so far are a complete
    /// key.
    fn is_final(self, pattern: &Pattern) -> bool {
        match (self, &pattern.end) {
            (State::Prefix(_), _) => false,
            (State::Id, None) => pattern.middle.is_empty(),
            (State::Middle(at), None) => at == pattern.middle.len(),
            (State::Id | State::Middle(_), Some(_)) => false,
            (State::Field, Some(end)) => end.is_empty(),
            (State::End(at), Some(end)) => at == end.len(),
            // Only patterns with a field reach these states.
            (State::Field | State::End(_), None) => false,
        }
    }
}

/// Returns a representative of each class of bytes that the patterns distinguish: the bytes of
/// their texts, a digit, and one other byte.
fn alphabet(a: &Pattern, b: &Pattern) -> Vec<u8> {
    let mut bytes = vec![b'0'];
    for Pattern { prefix, middle, end, .. } in [a, b] {
        bytes.extend_from_slice(prefix);
        bytes.extend_from_slice(middle);
        bytes.extend_from_slice(end.as_deref().unwrap_or_default());
    }
    bytes.extend((0..=u8::MAX).find(|byte| !byte.is_ascii_digit() && !bytes.contains(byte)));
    bytes.sort_unstable();
    bytes.dedup();
    bytes
}

/// Whether some key matches both patterns. Visits each pair of states once. The number of these
/// pairs is at most the product of the pattern lengths, and usually the length of the common
/// prefix.
pub(crate) fn overlap(a: &Pattern, b: &Pattern) -> bool {
    let same = a.prefix.len().min(b.prefix.len());
    if a.prefix[..same] != b.prefix[..same] {
        return false;
    }
    let start = (State::Prefix(same), State::Prefix(same));
    let alphabet = alphabet(a, b);
    let (mut seen, mut todo) = (std::collections::HashSet::from([start]), vec![start]);
    while let Some((of_a, of_b)) = todo.pop() {
        if of_a.is_final(a) && of_b.is_final(b) {
            return true;
        }
        for &byte in &alphabet {
            for next_a in of_a.after(a, byte) {
                for next_b in of_b.after(b, byte) {
                    if seen.insert((next_a, next_b)) {
                        todo.push((next_a, next_b));
                    }
                }
            }
        }
    }
    false
}
