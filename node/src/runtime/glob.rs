//! Redis's glob patterns: `*`, `?`, `[a-z]`, `[^x]` and `\` for quoting. Matching is not recursive,
//! so it uses constant stack space. The running time is at most proportional to the pattern's
//! length times the text's length.

/// Whether all of `text` matches. If `fold` is true, the comparison is case-insensitive.
pub fn matches(pattern: &[u8], text: &[u8], fold: bool) -> bool {
    let (mut p, mut t) = (0, 0);
    // Pattern position after the last star, and the start of the text matched after it. On a
    // mismatch the star consumes one more character.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, t));
            p += 1;
            continue;
        }
        let next = match text.get(t) {
            Some(&byte) if p < pattern.len() => one(pattern, p, byte, fold),
            Some(_) => None,
            None if p == pattern.len() => return true,
            None => return false,
        };
        match (next, retry) {
            (Some(next), _) => {
                p = next;
                t += 1;
            }
            (None, Some((after_star, from))) => {
                retry = Some((after_star, from + 1));
                p = after_star;
                t = from + 1;
            }
            (None, None) => return false,
        }
    }
}

/// Matches one element of the pattern, at `p`, with `byte`. Returns the position after the element.
fn one(pattern: &[u8], p: usize, byte: u8, fold: bool) -> Option<usize> {
    let same = |a: u8, b: u8| a == b || (fold && a.eq_ignore_ascii_case(&b));
    match pattern[p] {
        b'?' => Some(p + 1),
        b'\\' if p + 1 < pattern.len() => same(pattern[p + 1], byte).then_some(p + 2),
        b'[' => {
            let mut i = p + 1;
            let negated = pattern.get(i) == Some(&b'^');
            i += usize::from(negated);
            let mut found = false;
            loop {
                match (pattern.get(i), pattern.get(i + 1), pattern.get(i + 2)) {
                    (None, ..) => break,
                    (Some(b']'), ..) => {
                        i += 1;
                        break;
                    }
                    (Some(b'\\'), Some(&quoted), _) => {
                        found |= same(quoted, byte);
                        i += 2;
                    }
                    (Some(&low), Some(b'-'), Some(&high)) => {
                        let (low, high) = (low.min(high), low.max(high));
                        found |= (low..=high).contains(&byte);
                        if fold {
                            found |= (low..=high).contains(&byte.to_ascii_lowercase())
                                || (low..=high).contains(&byte.to_ascii_uppercase());
                        }
                        i += 3;
                    }
                    (Some(&single), ..) => {
                        found |= same(single, byte);
                        i += 1;
                    }
                }
            }
            (found != negated).then_some(i)
        }
        literal => same(literal, byte).then_some(p + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_in_redis() {
        let cases = [
            ("*", "", true),
            ("*", "abc", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("a*b*c", "aXbYbZc", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hxllo", false),
            ("[abc", "a", true),
            ("abc\\", "abc\\", true),
            ("max*", "maxmemory", true),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("***a", "bca", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes(), false),
                expected,
                "{pattern} {text}"
            );
        }
        assert!(matches(b"MAX*", b"maxmemory", true));
        assert!(!matches(b"MAX*", b"maxmemory", false));
        assert!(matches(b"[A-C]x", b"bX", true));
    }

    #[test]
    fn a_hostile_pattern_costs_length_times_length() {
        let pattern = b"a*".repeat(2_000);
        let text = vec![b'a'; 20_000];
        assert!(!matches(&[&pattern[..], b"b"].concat(), &text, false));
    }
}
