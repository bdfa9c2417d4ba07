//! Incremental decoder of received bytes. It searches each byte for the end of a reply once, and
//! decodes a reply when it is complete.

use crate::reply::Reply;
use resp::ReplyEnd;
use std::io::{self, ErrorKind};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Minimum room for a read in bytes.
const READ_BYTES: usize = 64 << 10;

/// Maximum bytes of received and undecoded replies: Redis's limit for a query buffer.
pub const MAX_INBOX_BYTES: usize = 1 << 30;

/// Received bytes of a connection.
#[derive(Debug)]
pub struct Inbox {
    bytes: Vec<u8>,
    /// Number of decoded bytes in `bytes`.
    start: usize,
    /// Search for the end of the reply at `start`.
    end: ReplyEnd,
    max_bytes: usize,
}

impl Inbox {
    /// Creates a decoder that holds up to `max_bytes` undecoded bytes and one read.
    pub fn new(max_bytes: usize) -> Inbox {
        Inbox { bytes: Vec::new(), start: 0, end: ReplyEnd::default(), max_bytes }
    }

    /// Returns the undecoded bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Discards the first `length` undecoded bytes, which must be whole replies.
    pub fn skip(&mut self, length: usize) {
        self.start += length;
        self.end = ReplyEnd::default();
    }

    /// Decodes the next reply. Returns `None` if the reply is incomplete.
    pub fn take(&mut self) -> io::Result<Option<Reply>> {
        let bytes = &self.bytes[self.start..];
        let Some(length) = self.end.find(bytes).map_err(|_| invalid(bytes))? else {
            return Ok(None);
        };
        let reply = Reply::decode(&mut &bytes[..length], 0).ok_or_else(|| invalid(bytes))?;
        self.skip(length);
        Ok(Some(reply))
    }

    /// Returns the buffer to which the caller appends received bytes.
    pub fn room(&mut self) -> io::Result<&mut Vec<u8>> {
        self.bytes.drain(..self.start);
        self.start = 0;
        if self.bytes.len() > self.max_bytes {
            return Err(too_long(self.max_bytes));
        }
        self.bytes.reserve(READ_BYTES);
        Ok(&mut self.bytes)
    }

    /// Reads the bytes that are available, and waits if there are none.
    pub async fn read(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        match from.read_buf(self.room()?).await? {
            0 => Err(closed()),
            _ => Ok(()),
        }
    }
}

fn invalid(bytes: &[u8]) -> io::Error {
    let start = bytes[..bytes.len().min(40)].escape_ascii();
    let why = format!("the server sent an invalid RESP reply: \"{start}\"");
    io::Error::new(ErrorKind::InvalidData, why)
}

/// Returns the error for a connection closed by the server.
pub fn closed() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")
}

/// Returns the error for a reply longer than the limit.
pub fn too_long(max_bytes: usize) -> io::Error {
    let why = format!("the server's reply exceeds {max_bytes} bytes");
    io::Error::new(ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use resp::{Protocol, Reply as Writer};

    /// Returns a random reply of either protocol version, and appends its encoding.
    fn random(rng: &mut fastrand::Rng, protocol: Protocol, depth: u32, out: &mut Vec<u8>) -> Reply {
        let mut writer = Writer::new(out, protocol);
        let text = |rng: &mut fastrand::Rng| {
            let bytes = (0..rng.usize(..6)).map(|_| *rng.choice(b"a$*\r\n\xff").unwrap());
            bytes.collect::<Vec<u8>>()
        };
        let length = rng.usize(..4);
        let kinds = if protocol == Protocol::Resp2 { 6 } else { 12 };
        let kind = rng.usize(..kinds);
        let mut items = |count: usize, out: &mut Vec<u8>| {
            (0..count).map(|_| random(rng, protocol, depth - 1, out)).collect::<Vec<_>>()
        };
        match kind {
            5 if depth > 0 => {
                writer.array(length);
                Reply::Array(items(length, out))
            }
            6 if depth > 0 => {
                writer.set(length);
                Reply::Set(items(length, out))
            }
            7 if depth > 0 => {
                writer.push(length);
                Reply::Push(items(length, out))
            }
            8 if depth > 0 => {
                writer.map(length);
                let pairs = (0..length).map(|_| {
                    let mut pair = items(2, out).into_iter();
                    (pair.next().unwrap(), pair.next().unwrap())
                });
                Reply::Map(pairs.collect())
            }
            9 => {
                writer.double(1.5);
                Reply::Double("1.5".to_owned())
            }
            10 => {
                writer.bool(length > 1);
                Reply::Boolean(length > 1)
            }
            11 => {
                writer.text("a\r\nb");
                Reply::Verbatim(b"a\r\nb".to_vec())
            }
            0 => {
                writer.simple("OK");
                Reply::SimpleString(b"OK".to_vec())
            }
            1 => {
                writer.error("ERR no");
                Reply::Error("ERR no".to_owned())
            }
            2 => {
                let value = rng.i64(..) >> rng.u32(..64);
                writer.int(value);
                Reply::Integer(value)
            }
            3 => {
                if length > 1 {
                    writer.null()
                } else {
                    writer.null_array()
                }
                Reply::Null
            }
            _ => {
                let bytes = text(rng);
                writer.bulk(&bytes);
                Reply::BulkString(bytes)
            }
        }
    }

    /// Decodes with the crate redis-protocol, which knows RESP2 without the order of RESP3 maps.
    fn oracle(frame: redis_protocol::resp2::types::OwnedFrame) -> Reply {
        use redis_protocol::resp2::types::OwnedFrame;
        match frame {
            OwnedFrame::SimpleString(bytes) => Reply::SimpleString(bytes),
            OwnedFrame::Error(text) => Reply::Error(text),
            OwnedFrame::Integer(value) => Reply::Integer(value),
            OwnedFrame::BulkString(bytes) => Reply::BulkString(bytes),
            OwnedFrame::Array(items) => Reply::Array(items.into_iter().map(oracle).collect()),
            OwnedFrame::Null => Reply::Null,
        }
    }

    #[test]
    fn replies_are_decoded_from_pieces_of_any_size() {
        let mut rng = fastrand::Rng::with_seed(1);
        for round in 0..4_000 {
            let protocol = if round % 2 == 0 { Protocol::Resp2 } else { Protocol::Resp3 };
            let mut bytes = Vec::new();
            let sent: Vec<Reply> =
                (0..3).map(|_| random(&mut rng, protocol, 3, &mut bytes)).collect();
            let (mut inbox, mut received) = (Inbox::new(0), Vec::new());
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rng.usize(1..=rest.len()));
                inbox.bytes.extend_from_slice(piece);
                rest = after;
                while let Some(reply) = inbox.take().unwrap() {
                    received.push(reply);
                }
            }
            assert_eq!(received, sent, "{}", bytes.escape_ascii());
            if protocol == Protocol::Resp2 {
                let first = redis_protocol::resp2::decode::decode(&bytes).unwrap();
                assert_eq!(first.map(|(frame, _)| oracle(frame)), received.into_iter().next());
            }
        }
    }

    #[test]
    fn hostile_replies_are_errors() {
        let decode = |bytes: &[u8]| {
            let mut inbox = Inbox::new(10);
            inbox.room().unwrap().extend_from_slice(bytes);
            let reply = inbox.take().map_err(|error| error.to_string());
            (reply, inbox.room().map(drop).map_err(|error| error.to_string()))
        };
        let invalid =
            |start: &str| Err(format!("the server sent an invalid RESP reply: \"{start}\""));
        assert_eq!(decode(b"HTTP/1.1 400\r\n").0, invalid("HTTP/1.1 400\\r\\n"));
        assert_eq!(decode(b":1x\r\n").0, invalid(":1x\\r\\n"));
        assert_eq!(decode(b"=1\r\na\r\n").0, invalid("=1\\r\\na\\r\\n"));
        // No memory for elements that have not arrived.
        assert_eq!(decode(b"*4294967295\r\n").0, Ok(None));
        let too_long = Err("the server's reply exceeds 10 bytes".to_owned());
        assert_eq!(decode(b"$100\r\nabcdefg"), (Ok(None), too_long));
        let deep = [&b"*1\r\n".repeat(1 << 20)[..], b":1\r\n"].concat();
        assert!(decode(&deep).0.is_err(), "the recursion is bounded");
        assert!(decode(&deep[deep.len() - 4 * 32..]).0.is_ok());
    }
}
