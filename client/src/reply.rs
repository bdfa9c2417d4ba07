//! Replies in both versions of RESP.

/// Maximum depth of nested replies. Bounds the recursion on bytes of a hostile server.
const MAX_DEPTH: usize = 32;

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple string such as `OK`.
    SimpleString(Vec<u8>),
    /// An error such as `ERR syntax error`.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A bulk string.
    BulkString(Vec<u8>),
    /// A null of either version.
    Null,
    /// An array.
    Array(Vec<Reply>),
    /// RESP3: a floating-point number, in the server's notation.
    Double(String),
    /// RESP3: a boolean.
    Boolean(bool),
    /// RESP3: a verbatim string without its format.
    Verbatim(Vec<u8>),
    /// RESP3: a set.
    Set(Vec<Reply>),
    /// RESP3: a map, in the server's order.
    Map(Vec<(Reply, Reply)>),
    /// RESP3: an out-of-band message.
    Push(Vec<Reply>),
}

impl Reply {
    /// Decodes the first reply, whose end [`resp::ReplyEnd`] has found, and removes it from `rest`.
    pub(crate) fn decode(rest: &mut &[u8], depth: usize) -> Option<Reply> {
        let end = rest.iter().position(|&byte| byte == b'\n').filter(|_| depth < MAX_DEPTH)?;
        let (&kind, line) = rest[..end].strip_suffix(b"\r")?.split_first()?;
        *rest = &rest[end + 1..];
        let text = || String::from_utf8_lossy(line).into_owned();
        let length = || usize::try_from(resp::integer(line)?).ok();
        let mut items = |each| {
            let items = (0..length()? * each).map(|_| Reply::decode(rest, depth + 1));
            items.collect::<Option<Vec<_>>>()
        };
        Some(match kind {
            b'+' => Reply::SimpleString(line.to_vec()),
            b'-' => Reply::Error(text()),
            b':' => Reply::Integer(resp::integer(line)?),
            b',' => Reply::Double(text()),
            b'#' => Reply::Boolean(line == b"t"),
            b'_' => Reply::Null,
            b'$' | b'*' if line == b"-1" => Reply::Null,
            b'$' | b'=' => {
                let (bytes, after) = rest.split_at_checked(length()? + 2)?;
                *rest = after;
                let bytes = &bytes[..bytes.len() - 2];
                match kind {
                    b'$' => Reply::BulkString(bytes.to_vec()),
                    // Skips the three letters of the format and the colon.
                    _ => Reply::Verbatim(bytes.get(4..)?.to_vec()),
                }
            }
            b'*' => Reply::Array(items(1)?),
            b'~' => Reply::Set(items(1)?),
            b'>' => Reply::Push(items(1)?),
            b'%' => {
                let mut items = items(2)?.into_iter();
                Reply::Map(std::iter::from_fn(|| items.next().zip(items.next())).collect())
            }
            _ => return None,
        })
    }

    /// Returns the bytes of a bulk or simple string.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::BulkString(bytes) | Reply::SimpleString(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the bytes of a bulk or simple string.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Reply::BulkString(bytes) | Reply::SimpleString(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the text of a bulk or simple string, or `None` for any other reply. Replaces invalid
    /// UTF-8.
    pub fn into_text(self) -> Option<String> {
        self.into_bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the value of an integer.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Reply::Integer(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the value of a name in an array of alternating names and values.
    pub fn get(&self, name: &str) -> Option<&Reply> {
        let mut pairs = self.items().chunks_exact(2);
        pairs.find(|pair| pair[0].as_bytes() == Some(name.as_bytes())).map(|pair| &pair[1])
    }

    /// Returns the elements of an array; empty for another reply.
    pub fn items(&self) -> &[Reply] {
        match self {
            Reply::Array(items) => items,
            _ => &[],
        }
    }
}

/// Returns the value of a field in the text of an INFO reply.
pub fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}
