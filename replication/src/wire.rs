//! Encoding of a link's messages. A message has the frame format of the store (length, CRC-32C,
//! body). To detect lost and repeated messages, the CRC also covers the message's sequence number,
//! which starts at 0 in each direction. A body consists of a kind and little-endian fields.

use store::{Check, FRAME_BYTES, Frame, Lineage, MAX_BODY_BYTES, Position, frame_head, read_frame};

/// Protocol version. Must be equal on both ends.
pub const PROTOCOL: u32 = 3;

/// Maximum size of a message in bytes: a batch with the largest body, plus overhead.
pub const MAX_MESSAGE_BYTES: usize = MAX_BODY_BYTES + (64 << 10);

/// First message of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Lineage of the replica's data.
    pub lineage: Lineage,
    /// End of the replica's log.
    pub position: Position,
    /// Term of the segment at that position.
    pub term: u64,
    /// Address at which the replica is reachable, if it announces an address.
    pub ip: String,
    /// Port that the replica listens on.
    pub port: u16,
}

/// Whether the master's log contains the replica's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The log contains the position. The master sends the log from there.
    Continue,
    /// The answer is unknown, because that part of the log was removed.
    Removed,
    /// The log does not contain the position, because the histories diverge.
    Diverged,
    /// The log does not contain the position, because the master has another data set.
    Foreign,
    /// The log does not contain the position, because the master's log ends earlier.
    Short,
}

/// Messages of the replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToMaster {
    Hello(Hello),
    Ack {
        written: u64,
        durable: u64,
    },
    WantManifest,
    WantFile {
        name: String,
        from: u64,
    },
    WantLog {
        segment: u64,
    },
    /// Request to accept no more writes, because this replica becomes the master.
    StepDown,
}

/// Messages of the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToReplica<'a> {
    Welcome {
        verdict: Verdict,
        lineage: Lineage,
        term: u64,
        end: u64,
        /// Headers of the master's newest segments, newest first. The replica uses them to locate
        /// the divergence. Empty with `Continue` or `Foreign`.
        segments: &'a [u8],
    },
    Manifest(&'a [u8]),
    Chunk(&'a [u8]),
    Segment(&'a [u8]),
    Batch(&'a [u8]),
    Heartbeat {
        end: u64,
        time_ms: u64,
    },
    /// The requested data was removed. The replica must request the manifest again.
    Gone,
    Refused(&'a str),
    /// The master accepts no more writes, and its log ends at this offset.
    SteppedDown {
        end: u64,
    },
}

/// Encodes and numbers messages.
#[derive(Debug, Default)]
pub(crate) struct MessageWriter {
    sent: u64,
    body: Vec<u8>,
}

impl MessageWriter {
    fn put(&mut self, out: &mut Vec<u8>, kind: u8, fields: &[&[u8]]) {
        self.body.clear();
        self.body.push(kind);
        fields.iter().for_each(|field| self.body.extend_from_slice(field));
        out.extend_from_slice(&frame_head(Check::new().u64(self.sent), &self.body));
        out.extend_from_slice(&self.body);
        self.sent += 1;
        if self.body.capacity() > 4 << 20 {
            self.body = Vec::new();
        }
    }

    pub(crate) fn put_replica_message(&mut self, out: &mut Vec<u8>, message: &ToMaster) {
        match message {
            ToMaster::Hello(hello) => {
                let at = &hello.position;
                let mut fixed = PROTOCOL.to_le_bytes().to_vec();
                fixed.extend_from_slice(&hello.lineage.0);
                for n in [at.segment, at.byte, at.offset, at.sequence, hello.term] {
                    fixed.extend_from_slice(&n.to_le_bytes());
                }
                fixed.extend_from_slice(&at.chain.to_le_bytes());
                fixed.extend_from_slice(&hello.port.to_le_bytes());
                self.put(out, 1, &[&fixed, hello.ip.as_bytes()]);
            }
            ToMaster::Ack { written, durable } => {
                self.put(out, 2, &[&written.to_le_bytes(), &durable.to_le_bytes()]);
            }
            ToMaster::WantManifest => self.put(out, 3, &[]),
            ToMaster::WantFile { name, from } => {
                self.put(out, 4, &[&from.to_le_bytes(), name.as_bytes()])
            }
            ToMaster::WantLog { segment } => self.put(out, 5, &[&segment.to_le_bytes()]),
            ToMaster::StepDown => self.put(out, 6, &[]),
        }
    }

    pub(crate) fn put_master_message(&mut self, out: &mut Vec<u8>, message: &ToReplica<'_>) {
        match *message {
            ToReplica::Welcome { verdict, lineage, term, end, segments } => {
                let numbers: Vec<u8> = [term, end].iter().flat_map(|n| n.to_le_bytes()).collect();
                self.put(
                    out,
                    65,
                    &[&PROTOCOL.to_le_bytes(), &[verdict as u8], &lineage.0, &numbers, segments],
                );
            }
            ToReplica::Manifest(text) => self.put(out, 66, &[text]),
            ToReplica::Chunk(bytes) => self.put(out, 67, &[bytes]),
            ToReplica::Segment(head) => self.put(out, 68, &[head]),
            ToReplica::Batch(frame) => self.put(out, 69, &[frame]),
            ToReplica::Heartbeat { end, time_ms } => {
                self.put(out, 70, &[&end.to_le_bytes(), &time_ms.to_le_bytes()]);
            }
            ToReplica::Gone => self.put(out, 71, &[]),
            ToReplica::Refused(text) => self.put(out, 72, &[text.as_bytes()]),
            ToReplica::SteppedDown { end } => self.put(out, 73, &[&end.to_le_bytes()]),
        }
    }
}

/// Decodes a byte stream into message bodies.
#[derive(Debug, Default)]
pub(crate) struct MessageReader {
    buffer: Vec<u8>,
    at: usize,
    received: u64,
}

impl MessageReader {
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        if self.buffer.is_empty() && self.buffer.capacity() > 4 << 20 {
            self.buffer = Vec::new();
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the body of the next complete message, at most `limit` bytes long.
    pub(crate) fn next(&mut self, limit: usize) -> Result<Option<&[u8]>, String> {
        let rest = &self.buffer[self.at..];
        match read_frame(Check::new().u64(self.received), rest, limit) {
            Frame::Whole(body, _) => {
                let start = self.at + FRAME_BYTES;
                self.at = start + body.len();
                self.received += 1;
                Ok(Some(&self.buffer[start..self.at]))
            }
            Frame::Part(_) => Ok(None),
            Frame::Bad(what) => Err(format!("message {}: {what}", self.received)),
        }
    }
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn text(&mut self, most: usize) -> Option<String> {
        let text = std::str::from_utf8(std::mem::take(&mut self.0)).ok()?;
        (text.len() <= most && !text.chars().any(char::is_control)).then(|| text.to_owned())
    }
    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

pub(crate) fn read_to_master(body: &[u8]) -> Result<ToMaster, String> {
    let (&kind, rest) = body.split_first().ok_or("an empty message")?;
    let mut f = Fields(rest);
    let read = |f: &mut Fields<'_>| -> Option<ToMaster> {
        let message = match kind {
            1 => {
                if f.u32()? != PROTOCOL {
                    return None;
                }
                let lineage = Lineage(f.array()?);
                let [segment, byte, offset, sequence, term] =
                    [f.u64()?, f.u64()?, f.u64()?, f.u64()?, f.u64()?];
                let chain = f.u32()?;
                let port = f.array().map(u16::from_le_bytes)?;
                let position = Position { segment, byte, offset, sequence, chain };
                ToMaster::Hello(Hello { lineage, position, term, ip: f.text(255)?, port })
            }
            2 => ToMaster::Ack { written: f.u64()?, durable: f.u64()? },
            3 => ToMaster::WantManifest,
            4 => ToMaster::WantFile { from: f.u64()?, name: f.text(255)? },
            5 => ToMaster::WantLog { segment: f.u64()? },
            6 => ToMaster::StepDown,
            _ => return None,
        };
        f.end()?;
        Some(message)
    };
    read(&mut f).ok_or_else(|| format!("unexpected message of kind {kind}, or of another version"))
}

pub(crate) fn read_to_replica(body: &[u8]) -> Result<ToReplica<'_>, String> {
    let (&kind, rest) = body.split_first().ok_or("an empty message")?;
    let mut f = Fields(rest);
    let read = |f: &mut Fields<'_>| -> Option<ToReplica<'_>> {
        Some(match kind {
            65 => {
                if f.u32()? != PROTOCOL {
                    return None;
                }
                let verdict = match f.array::<1>()?[0] {
                    0 => Verdict::Continue,
                    1 => Verdict::Removed,
                    2 => Verdict::Diverged,
                    3 => Verdict::Foreign,
                    4 => Verdict::Short,
                    _ => return None,
                };
                let lineage = Lineage(f.array()?);
                let [term, end] = [f.u64()?, f.u64()?];
                let segments = &rest[rest.len() - f.0.len()..];
                ToReplica::Welcome { verdict, lineage, term, end, segments }
            }
            66 => ToReplica::Manifest(rest),
            67 => ToReplica::Chunk(rest),
            68 => ToReplica::Segment(rest),
            69 => ToReplica::Batch(rest),
            70 => {
                let beat = ToReplica::Heartbeat { end: f.u64()?, time_ms: f.u64()? };
                f.end()?;
                beat
            }
            71 => {
                f.end()?;
                ToReplica::Gone
            }
            72 => ToReplica::Refused(std::str::from_utf8(rest).ok()?),
            73 => {
                let end = f.u64()?;
                f.end()?;
                ToReplica::SteppedDown { end }
            }
            _ => return None,
        })
    };
    read(&mut f).ok_or_else(|| format!("unexpected message of kind {kind}, or of another version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> ToMaster {
        let position = Position { segment: 1, byte: 2, offset: u64::MAX, sequence: 4, chain: 5 };
        ToMaster::Hello(Hello {
            lineage: Lineage([7; 16]),
            position,
            term: 9,
            ip: "::1".to_owned(),
            port: 6399,
        })
    }

    #[test]
    fn messages_read_back_whatever_the_pieces() {
        let messages = [
            hello(),
            ToMaster::Ack { written: 1, durable: u64::MAX },
            ToMaster::WantManifest,
            ToMaster::WantFile { name: "snap-1".to_owned(), from: 3 },
            ToMaster::WantLog { segment: 8 },
            ToMaster::StepDown,
        ];
        let (mut writer, mut bytes) = (MessageWriter::default(), Vec::new());
        messages.iter().for_each(|m| writer.put_replica_message(&mut bytes, m));
        for piece in 1..bytes.len() {
            let (mut reader, mut read) = (MessageReader::default(), Vec::new());
            for chunk in bytes.chunks(piece) {
                reader.feed(chunk);
                while let Some(body) = reader.next(1000).unwrap() {
                    read.push(read_to_master(body).unwrap());
                }
            }
            assert_eq!(read, messages);
        }
        let answers = [
            ToReplica::Welcome {
                verdict: Verdict::Diverged,
                lineage: Lineage([1; 16]),
                term: 1,
                end: 3,
                segments: b"heads",
            },
            ToReplica::Manifest(b"m"),
            ToReplica::Chunk(b""),
            ToReplica::Segment(b"s"),
            ToReplica::Batch(b"b"),
            ToReplica::Heartbeat { end: 1, time_ms: 2 },
            ToReplica::Gone,
            ToReplica::Refused("no"),
            ToReplica::SteppedDown { end: 4 },
        ];
        let (mut writer, mut reader, mut bytes) =
            (MessageWriter::default(), MessageReader::default(), Vec::new());
        answers.iter().for_each(|m| writer.put_master_message(&mut bytes, m));
        reader.feed(&bytes);
        for answer in &answers {
            assert_eq!(read_to_replica(reader.next(1000).unwrap().unwrap()).unwrap(), *answer);
        }
    }

    #[test]
    fn lost_repeated_and_damaged_messages_are_found() {
        let (mut writer, mut bytes) = (MessageWriter::default(), Vec::new());
        writer.put_replica_message(&mut bytes, &ToMaster::WantManifest);
        let first = bytes.clone();
        let mut reader = MessageReader::default();
        reader.feed(&first);
        assert!(reader.next(1000).unwrap().is_some());
        reader.feed(&first);
        assert!(reader.next(1000).is_err(), "repeated");
        bytes.clear();
        writer.put_replica_message(&mut bytes, &hello());
        let mut reader = MessageReader::default();
        reader.feed(&bytes);
        assert!(reader.next(1000).is_err(), "the previous frame was lost");
        for bit in 0..bytes.len() * 8 {
            let mut reader = MessageReader { received: 1, ..MessageReader::default() };
            bytes[bit / 8] ^= 1 << (bit % 8);
            reader.feed(&bytes);
            assert!(!matches!(reader.next(1000), Ok(Some(_))), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Arbitrary input gives a message or an error, never a panic.
    #[test]
    fn no_bytes_make_a_reader_panic() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..100_000 {
            let body: Vec<u8> = (0..rng.usize(0..80))
                .map(|i| {
                    if i == 0 {
                        rng.choice([1, 2, 3, 4, 5, 6, 65, 66, 68, 70, 72, 73, 90]).unwrap_or(0)
                    } else {
                        rng.u8(..)
                    }
                })
                .collect();
            let _ = (read_to_master(&body), read_to_replica(&body));
        }
    }
}
