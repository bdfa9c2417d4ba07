//! RESP2 replies, parsed from the bytes of a client's socket.

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Int(i64),
    Text(String),
    Error(String),
    Nil,
    Array(Vec<Reply>),
}

impl Reply {
    /// Parses the first reply. Returns the reply and its length, or `None` if the reply is
    /// incomplete.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Reply, usize)> {
        let end = bytes.windows(2).position(|two| two == b"\r\n")?;
        let line = String::from_utf8_lossy(&bytes[1..end]).into_owned();
        let number = || line.parse::<i64>().expect("invalid number in a reply");
        let mut at = end + 2;
        let reply = match bytes[0] {
            b'+' => Reply::Text(line),
            b'-' => Reply::Error(line),
            b':' => Reply::Int(number()),
            b'$' if number() < 0 => Reply::Nil,
            b'$' => {
                let length = number() as usize;
                let text = bytes.get(at..at + length)?;
                at += length + 2;
                if bytes.len() < at {
                    return None;
                }
                Reply::Text(String::from_utf8_lossy(text).into_owned())
            }
            b'*' if number() < 0 => Reply::Nil,
            b'*' => {
                let mut all = Vec::new();
                for _ in 0..number() {
                    let (one, used) = Reply::read(&bytes[at..])?;
                    all.push(one);
                    at += used;
                }
                Reply::Array(all)
            }
            other => panic!("invalid RESP2 reply {other}: {line}"),
        };
        Some((reply, at))
    }

    /// Returns the value of a counter. Nil counts as 0.
    pub(crate) fn count(&self) -> Option<i64> {
        match self {
            Reply::Int(value) => Some(*value),
            Reply::Nil => Some(0),
            Reply::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    pub(crate) fn items(&self) -> &[Reply] {
        match self {
            Reply::Array(items) => items,
            _ => &[],
        }
    }
}
