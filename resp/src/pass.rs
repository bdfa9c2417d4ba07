//! Finds the end of a reply, and the elements of a RESP2 reply, to forward replies between cluster
//! nodes.

use crate::integer;

/// Maximum length in bytes of a line: a type with a number, or an error.
const MAX_LINE_BYTES: usize = 64 << 10;
/// Maximum length of a string in bytes, as in Redis.
const MAX_BULK_BYTES: i64 = 512 << 20;
/// Maximum number of elements of an array, and of pairs of a map.
const MAX_LENGTH: i64 = u32::MAX as i64;

/// Error for bytes that are not a valid reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidReply;

/// Incremental search for the end of a reply. Each call resumes where the previous call stopped, so
/// a long reply is examined only once.
#[derive(Clone, Copy, Debug)]
pub struct ReplyEnd {
    at: usize,
    /// Number of replies and elements whose ends were not found yet.
    left: usize,
}

impl Default for ReplyEnd {
    fn default() -> ReplyEnd {
        ReplyEnd { at: 0, left: 1 }
    }
}

/// Returns the first line, without CR LF. Returns `None` if the line is incomplete.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, InvalidReply> {
    // Fast path: nearly all lines are a type and one digit.
    if let [_, _, b'\r', b'\n', ..] = bytes {
        return Ok(Some(&bytes[..2]));
    }
    match bytes.iter().take(MAX_LINE_BYTES).position(|&byte| byte == b'\n') {
        Some(at) if at > 1 && bytes[at - 1] == b'\r' => Ok(Some(&bytes[..at - 1])),
        Some(_) => Err(InvalidReply),
        None if bytes.len() >= MAX_LINE_BYTES => Err(InvalidReply),
        None => Ok(None),
    }
}

fn length(digits: &[u8], most: i64) -> Result<usize, InvalidReply> {
    match integer(digits) {
        Some(-1) => Ok(0),
        Some(length) if (0..=most).contains(&length) => Ok(length as usize),
        _ => Err(InvalidReply),
    }
}

impl ReplyEnd {
    /// Returns the length of the first reply in `bytes`, or `None` if the reply is incomplete. Each
    /// call must pass the bytes of the previous call, and may append more bytes.
    pub fn find(&mut self, bytes: &[u8]) -> Result<Option<usize>, InvalidReply> {
        while self.left > 0 {
            let Some(line) = line(&bytes[self.at..])? else { return Ok(None) };
            let mut end = self.at + line.len() + 2;
            match line[0] {
                b':' | b'+' | b'-' | b',' | b'#' | b'_' => {}
                b'$' if line == b"$-1" => {}
                b'$' | b'=' => {
                    end += length(&line[1..], MAX_BULK_BYTES)? + 2;
                    if end > bytes.len() {
                        return Ok(None);
                    }
                }
                b'*' | b'~' | b'>' => self.left += length(&line[1..], MAX_LENGTH)?,
                b'%' => self.left += 2 * length(&line[1..], MAX_LENGTH)?,
                _ => return Err(InvalidReply),
            }
            self.at = end;
            self.left -= 1;
        }
        Ok(Some(self.at))
    }
}

/// Iterates over the elements of a complete array reply. Returns `None` if the reply is not an
/// array.
pub fn elements(reply: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let head = line(reply).ok()?.filter(|line| line[0] == b'*')?;
    let mut left = length(&head[1..], MAX_LENGTH).ok()?;
    let mut rest = &reply[head.len() + 2..];
    Some(std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let end = ReplyEnd::default().find(rest).ok().flatten()?;
        let (element, behind) = rest.split_at(end);
        rest = behind;
        Some(element)
    }))
}

/// Converts a complete RESP2 reply to RESP3 and appends it. RESP3 has only one kind of null.
pub fn put_resp3(mut reply: &[u8], out: &mut Vec<u8>) {
    while let Ok(Some(head)) = line(reply) {
        let string = match head[0] {
            b'$' => length(&head[1..], MAX_BULK_BYTES).ok().filter(|_| head != b"$-1"),
            _ => None,
        };
        let end = (head.len() + 2 + string.map_or(0, |length| length + 2)).min(reply.len());
        match head {
            b"$-1" | b"*-1" => out.extend_from_slice(b"_\r\n"),
            _ => out.extend_from_slice(&reply[..end]),
        }
        reply = &reply[end..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: [&str; 9] = [
        "+OK\r\n",
        "-ERR no\r\n",
        ":-7\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "$4\r\na\r\nb\r\n",
        "*0\r\n",
        "*2\r\n*2\r\n:1\r\n$-1\r\n*-1\r\n",
        "*3\r\n$0\r\n\r\n*1\r\n*1\r\n+x\r\n:2\r\n",
    ];

    /// Every proper prefix of a reply is incomplete. Bytes of a following reply do not change the
    /// result.
    #[test]
    fn a_reply_ends_where_its_last_element_does() {
        let resp3 =
            [",1.5\r\n", "#t\r\n", "_\r\n", "=5\r\ntxt:a\r\n", ">1\r\n%1\r\n+a\r\n~1\r\n:1\r\n"];
        for reply in REPLIES.into_iter().chain(resp3) {
            let bytes = format!("{reply}+OK\r\n").into_bytes();
            let mut end = ReplyEnd::default();
            for length in 0..reply.len() {
                assert_eq!(end.find(&bytes[..length]), Ok(None), "{length} of {reply:?}");
            }
            assert_eq!(end.find(&bytes), Ok(Some(reply.len())), "{reply:?}");
        }
        for broken in ["x\r\n", "\r\n", "+OK\n", "$-2\r\n", "*x\r\n", "$536870913\r\n", "!1\r\n"] {
            assert_eq!(
                ReplyEnd::default().find(broken.as_bytes()),
                Err(InvalidReply),
                "{broken:?}"
            );
        }
        assert_eq!(ReplyEnd::default().find(&[b'+'; MAX_LINE_BYTES]), Err(InvalidReply));
    }

    #[test]
    fn elements_are_whole_replies() {
        let all = format!("*{}\r\n{}", REPLIES.len(), REPLIES.concat());
        let found: Vec<_> = elements(all.as_bytes()).unwrap().collect();
        assert_eq!(found, REPLIES.map(str::as_bytes));
        assert_eq!(elements(b"*-1\r\n").unwrap().count(), 0);
        assert!(elements(b":1\r\n").is_none());
    }

    #[test]
    fn resp3_has_one_null() {
        let mut out = Vec::new();
        put_resp3(b"*3\r\n$-1\r\n*-1\r\n$3\r\n$-1\r\n:1\r\n", &mut out);
        assert_eq!(out, b"*3\r\n_\r\n_\r\n$3\r\n$-1\r\n:1\r\n");
        for reply in ["+OK\r\n", "*1\r\n*2\r\n:1\r\n-ERR no\r\n", "$0\r\n\r\n"] {
            out.clear();
            put_resp3(reply.as_bytes(), &mut out);
            assert_eq!(out, reply.as_bytes());
        }
    }
}
