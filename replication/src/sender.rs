//! Master's end of a link: sends the log files to one replica and, for a full sync, the files of
//! the snapshot.
//!
//! A sender buffers no data and reads files only when there is room to send (R4). It pins the files
//! of a full sync until the link closes, or until the log retained for the sync exceeds a limit. If
//! the limit is exceeded, the replica must request the manifest again, but keeps the files that it
//! has fetched.

use std::sync::Arc;

use store::{
    DiskFile, Pin, Position, PositionMissing, SegmentHead, Step, Store, Tail, read_full_at,
};

use crate::link::{LinkError, Timeouts};
use crate::term::promotions;
use crate::wire::{
    Hello, MAX_MESSAGE_BYTES, MessageReader, MessageWriter, ToMaster, ToReplica, Verdict,
    read_to_master,
};

/// Size of the output in bytes at which a sender stops adding messages.
pub const WINDOW_BYTES: usize = 1 << 20;

/// Bytes of a file per message.
const CHUNK_BYTES: usize = 256 << 10;

/// Distance from the end of the log, in bytes, within which reads are served from the page cache.
const RECENT_BYTES: u64 = 256 << 10;

/// Maximum number of segment headers in Welcome. At the default segment size of 64 MiB, they cover
/// 64 GiB of log.
const MAX_HEADS: usize = 1024;

/// Maximum size of a replica's message in bytes.
const REPLICA_MESSAGE_BYTES: usize = 4 << 10;

/// Data source of a sender.
#[derive(Clone, Copy, Debug)]
pub struct LogSource<'a> {
    /// Data folder of the master.
    pub store: &'a Store,
    /// End of the log that replicas may receive. The log up to this position is written. The node
    /// decides whether it must also be durable.
    pub end: Position,
    /// Term of the newest segment.
    pub term: u64,
}

/// Activity of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// Waits for Hello, or for the replica's response to Welcome.
    Nothing,
    /// Sends a full sync.
    Files,
    /// Sends the log from the replica's position.
    Log,
}

/// Properties of the replica.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address that the replica has announced. Empty if the replica has not announced an address.
    pub ip: String,
    /// Port that the replica listens on; 0 before Hello.
    pub port: u16,
    /// Whether the replica has data of this lineage but needs a full sync.
    pub refused_log: bool,
    /// End of the replica's log, if this master's log does not contain that position.
    pub diverged_at: Option<u64>,
    /// What the sender currently sends.
    pub sending: Sending,
    /// Offset up to which the replica has written and applied the log.
    pub written: u64,
    /// Offset up to which the replica's log is durable.
    pub durable: u64,
    /// Time of the replica's last message.
    pub heard_ms: u64,
}

enum SenderWork {
    Nothing,
    Manifest,
    File { file: Box<dyn DiskFile>, at: u64, end: u64 },
    Log { tail: Box<Tail>, first: Option<SegmentHead> },
    Gone,
}

/// State machine of the master's end of a link. See the module documentation.
pub struct Sender {
    times: Timeouts,
    /// Maximum size in bytes of the log retained for a full sync.
    pinned_bytes: u64,
    reader: MessageReader,
    writer: MessageWriter,
    peer: Peer,
    /// Verdict that the Welcome message contained, or `None` until Welcome has been sent.
    welcome: Option<Verdict>,
    hello: Option<Hello>,
    work: SenderWork,
    pin: Option<Arc<Pin>>,
    /// End of the log when the files were pinned. The manifest retains earlier parts of the log.
    pinned_from: u64,
    /// Whether the pin was released. If so, the sender ignores requests that the replica sent
    /// before it was notified.
    is_pin_released: bool,
    chunk: Vec<u8>,
    sent_ms: u64,
    /// Greatest end of the log that was sent or announced.
    announced_end: u64,
    asked_to_step_down: bool,
    /// Final end of the log to announce, after this node has stepped down.
    final_end: Option<u64>,
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender")
            .field("peer", &self.peer)
            .field("welcome", &self.welcome)
            .finish_non_exhaustive()
    }
}

impl Sender {
    /// Begins a link. A full sync retains at most `pinned_bytes` of log in addition to the usual
    /// retention.
    pub fn new(times: Timeouts, pinned_bytes: u64, now_ms: u64) -> Sender {
        let peer = Peer {
            ip: String::new(),
            port: 0,
            refused_log: false,
            diverged_at: None,
            sending: Sending::Nothing,
            written: 0,
            durable: 0,
            heard_ms: now_ms,
        };
        Sender {
            times,
            pinned_bytes,
            reader: MessageReader::default(),
            writer: MessageWriter::default(),
            peer,
            welcome: None,
            hello: None,
            work: SenderWork::Nothing,
            pin: None,
            pinned_from: 0,
            is_pin_released: false,
            chunk: Vec::new(),
            sent_ms: now_ms,
            announced_end: 0,
            asked_to_step_down: false,
            final_end: None,
        }
    }

    /// Whether the replica has asked this node to step down since the last call.
    pub fn take_step_down(&mut self) -> bool {
        std::mem::take(&mut self.asked_to_step_down)
    }

    /// Records that the node has stepped down. The sender notifies the replica after it has sent
    /// the log up to `end`.
    pub fn stepped_down(&mut self, end: u64) {
        self.final_end = Some(end);
    }

    /// Returns the properties of the replica.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Processes bytes from the replica.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        origin: &LogSource<'_>,
        now_ms: u64,
    ) -> Result<(), LinkError> {
        self.peer.heard_ms = now_ms;
        self.announced_end = self.announced_end.max(origin.end.offset);
        self.reader.feed(bytes);
        loop {
            let body = self.reader.next(REPLICA_MESSAGE_BYTES).map_err(LinkError::Protocol)?;
            let Some(body) = body else { return Ok(()) };
            let message = read_to_master(body).map_err(LinkError::Protocol)?;
            self.take(message, origin)?;
        }
    }

    fn take(&mut self, message: ToMaster, origin: &LogSource<'_>) -> Result<(), LinkError> {
        let protocol = |what: &str| Err(LinkError::Protocol(what.to_owned()));
        match message {
            ToMaster::Hello(hello) => {
                if self.hello.is_some() {
                    return protocol("a second Hello");
                }
                (self.peer.ip, self.peer.port) = (hello.ip.clone(), hello.port);
                self.hello = Some(hello);
                Ok(())
            }
            _ if self.welcome.is_none() => protocol("a message before Welcome"),
            ToMaster::Ack { written, durable } => {
                if durable > written || written > self.announced_end {
                    return protocol("an acknowledgement of data that was not sent");
                }
                (self.peer.written, self.peer.durable) = (written, durable);
                Ok(())
            }
            ToMaster::StepDown if self.peer.sending == Sending::Log => {
                self.asked_to_step_down = true;
                Ok(())
            }
            ToMaster::StepDown => protocol("step-down request from a replica without the log"),
            _ if self.welcome == Some(Verdict::Continue) => {
                protocol("manifest request without a full sync")
            }
            ToMaster::WantManifest => {
                self.is_pin_released = false;
                self.peer.sending = Sending::Files;
                self.peer.refused_log = self.welcome != Some(Verdict::Foreign);
                (self.pin, self.pinned_from) = (Some(origin.store.pin()), origin.end.offset);
                self.work = SenderWork::Manifest;
                Ok(())
            }
            ToMaster::WantFile { .. } | ToMaster::WantLog { .. } if self.is_pin_released => Ok(()),
            ToMaster::WantFile { name, from } => {
                let Some(pin) = &self.pin else {
                    return protocol("file request before the manifest");
                };
                self.work = match pin.manifest.file(&name) {
                    Some(entry) if from <= entry.bytes => match origin.store.disk().open(&name) {
                        Ok(file) => SenderWork::File { file, at: from, end: entry.bytes },
                        Err(_) => SenderWork::Gone,
                    },
                    Some(_) => return protocol("file request beyond its end"),
                    None => return protocol("request for a file outside the manifest"),
                };
                Ok(())
            }
            ToMaster::WantLog { segment } => {
                let is_known =
                    self.pin.as_ref().is_some_and(|pin| pin.manifest.replay.segment == segment);
                if !is_known && segment != Position::START.segment {
                    return protocol("log request before the manifest");
                }
                self.work = match first_position(origin, segment)? {
                    None => SenderWork::Gone,
                    Some(start) => match Tail::find(origin.store.disk(), start, origin.end)? {
                        Ok(tail) => {
                            SenderWork::Log { first: Some(tail.segment()), tail: Box::new(tail) }
                        }
                        Err(_) => SenderWork::Gone,
                    },
                };
                Ok(())
            }
        }
    }

    /// Adds messages to `out` until it contains [`WINDOW_BYTES`] or nothing remains to send.
    ///
    /// Called when there is room to send, when the log has grown, and at each tick.
    pub fn fill(
        &mut self,
        out: &mut Vec<u8>,
        origin: &LogSource<'_>,
        now_ms: u64,
    ) -> Result<(), LinkError> {
        self.tick(origin.end);
        self.announced_end = self.announced_end.max(origin.end.offset);
        if self.welcome.is_none()
            && let Some(hello) = self.hello.clone()
        {
            self.answer(&hello, out, origin)?;
            self.sent_ms = now_ms;
        }
        if self.welcome.is_none() {
            return Ok(());
        }
        while out.len() < WINDOW_BYTES {
            match &mut self.work {
                SenderWork::Nothing => break,
                SenderWork::Gone => {
                    self.writer.put_master_message(out, &ToReplica::Gone);
                    self.work = SenderWork::Nothing;
                }
                SenderWork::Manifest => {
                    let text =
                        self.pin.as_ref().map(|pin| pin.manifest.encode()).unwrap_or_default();
                    self.writer.put_master_message(out, &ToReplica::Manifest(text.as_bytes()));
                    self.work = SenderWork::Nothing;
                }
                SenderWork::File { file, at, end } => {
                    let want = CHUNK_BYTES.min((*end - *at) as usize);
                    self.chunk.resize(want, 0);
                    let read = read_full_at(&**file, &mut self.chunk, *at);
                    if !matches!(read, Ok(n) if n == want) {
                        self.work = SenderWork::Gone;
                        continue;
                    }
                    self.writer.put_master_message(out, &ToReplica::Chunk(&self.chunk));
                    *at += want as u64;
                    if at == end {
                        self.work = SenderWork::Nothing;
                    }
                }
                SenderWork::Log { tail, first } => {
                    if let Some(head) = first.take() {
                        self.writer.put_master_message(out, &ToReplica::Segment(&head.encode()));
                    }
                    match tail.next(origin.end) {
                        Ok(Step::Segment(head)) => {
                            self.writer.put_master_message(out, &ToReplica::Segment(&head.encode()))
                        }
                        Ok(Step::Batch(_, frame)) => {
                            self.writer.put_master_message(out, &ToReplica::Batch(frame))
                        }
                        Ok(Step::End) => break,
                        // The segment was removed. The replica reconnects, and Welcome then has the
                        // verdict `Removed`.
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        if let (SenderWork::Log { tail, .. }, Some(end)) = (&self.work, self.final_end)
            && tail.position().offset >= end
        {
            self.writer.put_master_message(out, &ToReplica::SteppedDown { end });
            self.final_end = None;
        }
        let is_due = now_ms.saturating_sub(self.sent_ms) >= self.times.heartbeat_ms;
        // During a file transfer the chunks keep the link alive.
        if is_due && !matches!(self.work, SenderWork::File { .. }) {
            self.writer.put_master_message(
                out,
                &ToReplica::Heartbeat { end: origin.end.offset, time_ms: now_ms },
            );
            self.sent_ms = now_ms;
        }
        Ok(())
    }

    /// Returns an error if the replica has sent nothing for too long.
    ///
    /// Called periodically, even without room to send. Must not be called while input is pending,
    /// because a busy master may read a message long after the message has arrived.
    pub fn check_timeout(&self, now_ms: u64) -> Result<(), LinkError> {
        self.times.check_timeout(self.peer.heard_ms, now_ms)
    }

    /// Releases the pin if the retained log exceeds the limit. Called even without room to send,
    /// because a replica that reads nothing must not retain more of the log.
    pub fn tick(&mut self, end: Position) {
        if self.pin.is_some() && end.offset.saturating_sub(self.pinned_from) > self.pinned_bytes {
            self.pin = None;
            self.is_pin_released = true;
            self.work = SenderWork::Gone;
        }
    }

    fn answer(
        &mut self,
        hello: &Hello,
        out: &mut Vec<u8>,
        origin: &LogSource<'_>,
    ) -> Result<(), LinkError> {
        let store = origin.store;
        let is_other = |term: u64| term != hello.term && promotions(term) >= promotions(hello.term);
        let verdict = if hello.lineage != store.lineage() {
            Verdict::Foreign
        } else {
            match Tail::find(store.disk(), hello.position, origin.end)? {
                Ok(tail)
                    if tail.segment().term == hello.term || hello.position == Position::START =>
                {
                    let first = (hello.position.byte == store::SEGMENT_HEAD_BYTES)
                        .then_some(tail.segment());
                    self.work = SenderWork::Log { tail: Box::new(tail), first };
                    self.peer.sending = Sending::Log;
                    // The replica's next acknowledgement reports its durable offset.
                    (self.peer.written, self.peer.durable) = (hello.position.offset, 0);
                    Verdict::Continue
                }
                // If the terms differ, the replica's data is on a branch that a promotion has
                // abandoned, so the logs diverge.
                Err(PositionMissing::Short) if !is_other(origin.term) => Verdict::Short,
                Ok(_) | Err(PositionMissing::Diverged | PositionMissing::Short) => {
                    Verdict::Diverged
                }
                Err(PositionMissing::Removed) => Verdict::Removed,
            }
        };
        let mut segments = Vec::new();
        if !matches!(verdict, Verdict::Continue | Verdict::Foreign) {
            for head in store::segments_back(&**store.disk(), origin.end.segment, MAX_HEADS)? {
                segments.extend_from_slice(&head.encode());
            }
        }
        let (lineage, term, end) = (store.lineage(), origin.term, origin.end.offset);
        self.writer.put_master_message(
            out,
            &ToReplica::Welcome { verdict, lineage, term, end, segments: &segments },
        );
        self.welcome = Some(verdict);
        self.peer.diverged_at = (verdict != Verdict::Continue).then_some(hello.position.offset);
        Ok(())
    }

    /// Whether all data left to send is recent and therefore in the page cache.
    pub fn is_at_hand(&self, origin: &LogSource<'_>) -> bool {
        match &self.work {
            SenderWork::Log { tail, first: None } => {
                let at = tail.position();
                at.segment == origin.end.segment
                    && origin.end.offset.saturating_sub(at.offset) < RECENT_BYTES
            }
            _ => false,
        }
    }

    /// Sends the reason why the link is refused. The caller then closes the link.
    pub fn refuse(&mut self, out: &mut Vec<u8>, why: &str) {
        self.writer.put_master_message(out, &ToReplica::Refused(why));
    }
}

/// Returns the first position of a segment, or `None` if the segment was removed. Segment 1 means
/// the first segment of the log, whose number may be higher.
fn first_position(origin: &LogSource<'_>, segment: u64) -> Result<Option<Position>, LinkError> {
    let store = origin.store;
    let head = if segment == Position::START.segment {
        store.first_segment(origin.end)?
    } else if store.oldest_segment()?.is_none_or(|oldest| oldest > segment) {
        None
    } else {
        store.segment_head(segment)?
    };
    Ok(head.map(|head| Position::first_of(&head)))
}

const _: () = assert!(CHUNK_BYTES + 64 < MAX_MESSAGE_BYTES);
const _: () = assert!(MAX_HEADS * store::SEGMENT_HEAD_BYTES as usize + 64 < MAX_MESSAGE_BYTES);
