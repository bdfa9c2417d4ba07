//! Parses inline requests. An inline request is one line of words, with quotes and escapes as in a
//! shell.

use super::span::Span;

/// Splits a line into words like Redis's `sdssplitargs`. Returns `None` for an unterminated quote,
/// or a closing quote inside a word.
pub(super) fn split(line: &[u8], words: &mut Vec<u8>, spans: &mut Vec<Span>) -> Option<()> {
    // As in Redis, only some of the characters that `isspace` skips before a word also end a word.
    let is_space = |b: u8| b.is_ascii_whitespace() || b == 0x0b;
    let ends_word = |b: u8| matches!(b, b' ' | b'\n' | b'\r' | b'\t');
    let mut rest = line;
    loop {
        while let [first, tail @ ..] = rest
            && is_space(*first)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Some(());
        }
        let start = words.len();
        let mut quote = None;
        loop {
            match (quote, rest) {
                (None, []) => break,
                (None, [b, ..]) if ends_word(*b) => break,
                (None, [b @ (b'"' | b'\''), tail @ ..]) => {
                    quote = Some(*b);
                    rest = tail;
                }
                (None, [b, tail @ ..]) => {
                    words.push(*b);
                    rest = tail;
                }
                (Some(_), []) => return None,
                (Some(b'"'), [b'\\', b'x', high, low, tail @ ..])
                    if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
                {
                    words.push(hex(*high) << 4 | hex(*low));
                    rest = tail;
                }
                (Some(b'"'), [b'\\', b, tail @ ..]) => {
                    words.push(match b {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 8,
                        b'a' => 7,
                        other => *other,
                    });
                    rest = tail;
                }
                (Some(b'\''), [b'\\', b'\'', tail @ ..]) => {
                    words.push(b'\'');
                    rest = tail;
                }
                (Some(open), [b, tail @ ..]) if *b == open => {
                    if tail.first().is_some_and(|&b| !is_space(b)) {
                        return None;
                    }
                    quote = None;
                    rest = tail;
                }
                (Some(_), [b, tail @ ..]) => {
                    words.push(*b);
                    rest = tail;
                }
            }
        }
        spans.push(Span::new(start, words.len()));
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}
