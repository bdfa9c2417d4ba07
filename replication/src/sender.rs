//! The master's end of a link: one replica is fed from the files of the log, and of the snapshot if
//! it needs that.
//!
//! A sender keeps no copy of anything: it reads when there is room to send (R4). What a full sync
//! needs is pinned in the store until the link is closed, or until the log that is kept for it
//! exceeds a limit; then the replica is told to begin that part anew, and keeps the files that it
//! has.

use std::sync::Arc;

use store::{Absent, DiskFile, Pin, Position, SegmentHead, Step, Store, Tail, read_full_at};

use crate::link::{LinkError, Timeouts};
use crate::term::promotions;
use crate::wire::{
    Hello, MAX_MESSAGE_BYTES, Reader, ToMaster, ToReplica, Verdict, Writer, read_to_master,
};

/// A sender adds messages to its output until so many bytes wait there.
pub const WINDOW_BYTES: usize = 1 << 20;

/// Bytes of a file per message.
const CHUNK_BYTES: usize = 256 << 10;

/// What was written so little ago is read from the system's memory.
const AT_HAND_BYTES: u64 = 256 << 10;

/// So many headers of segments, at most, are named to a replica that cannot go on: 64 GiB of log.
const MAX_HEADS: usize = 1024;

/// The longest message of a replica.
const REPLICA_MESSAGE_BYTES: usize = 4 << 10;

/// What a sender reads from.
#[derive(Clone, Copy, Debug)]
pub struct LogSource<'a> {
    /// The data folder.
    pub store: &'a Store,
    /// Replicas get what lies before. It is written, at least: whether it has to be durable first
    /// is the node's choice.
    pub end: Position,
    /// Of the newest segment.
    pub term: u64,
}

/// What a sender does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// Waits for Hello, or for what the replica makes of the answer.
    Nothing,
    /// A full sync.
    Files,
    /// The log, from the replica's own position.
    Log,
}

/// What is known of the replica.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it says that it can be reached; empty if it does not.
    pub ip: String,
    /// The port that it listens on; 0 before Hello.
    pub port: u16,
    /// Whether it has data of this lineage, and had to be refused the log behind them.
    pub refused_log: bool,
    /// End of its log, if this master's log does not continue from there.
    pub diverged_at: Option<u64>,
    /// What it gets.
    pub sending: Sending,
    /// Its log is written up to here, and it shows what is in it.
    pub written: u64,
    /// Its log is durable up to here.
    pub durable: u64,
    /// When it last said something.
    pub heard_ms: u64,
}

enum Work {
    Nothing,
    Manifest,
    File { file: Box<dyn DiskFile>, at: u64, end: u64 },
    Log { tail: Box<Tail>, first: Option<SegmentHead> },
    Gone,
}

/// See the top of the file.
pub struct Sender {
    times: Timeouts,
    /// Most bytes of log that are kept for a full sync.
    pinned_bytes: u64,
    reader: Reader,
    writer: Writer,
    peer: Peer,
    /// The position from which it followed, once it did.
    welcome: Option<Verdict>,
    hello: Option<Hello>,
    work: Work,
    pin: Option<Arc<Pin>>,
    /// The log's end when it was pinned: what was there before is kept by the manifest itself.
    pinned_from: u64,
    /// The pin was dropped: what the replica asks for before it has heard of it is not answered.
    given_up: bool,
    chunk: Vec<u8>,
    said_ms: u64,
    /// The furthest end that it was told of, or sent.
    said_end: u64,
    /// The replica asks this node to step down for it.
    asked_to_step_down: bool,
    /// Where the log ends after that, until the replica has been told so.
    steps_down_at: Option<u64>,
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
    /// A link that has just come up. For a full sync at most `pinned_bytes` of the log are kept
    /// beyond what is kept anyway.
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
            reader: Reader::default(),
            writer: Writer::default(),
            peer,
            welcome: None,
            hello: None,
            work: Work::Nothing,
            pin: None,
            pinned_from: 0,
            given_up: false,
            chunk: Vec::new(),
            said_ms: now_ms,
            said_end: 0,
            asked_to_step_down: false,
            steps_down_at: None,
        }
    }

    /// Whether the replica has asked this node to step down, since the last call.
    pub fn take_step_down(&mut self) -> bool {
        std::mem::take(&mut self.asked_to_step_down)
    }

    /// The node has stepped down: the replica is told so after everything before `end`.
    pub fn stepped_down(&mut self, end: u64) {
        self.steps_down_at = Some(end);
    }

    /// The replica, as far as it is known.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Takes bytes that came from the replica.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        origin: &LogSource<'_>,
        now_ms: u64,
    ) -> Result<(), LinkError> {
        self.peer.heard_ms = now_ms;
        self.said_end = self.said_end.max(origin.end.offset);
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
                if durable > written || written > self.said_end {
                    return protocol("an acknowledgement of what was never sent");
                }
                (self.peer.written, self.peer.durable) = (written, durable);
                Ok(())
            }
            ToMaster::StepDown if self.peer.sending == Sending::Log => {
                self.asked_to_step_down = true;
                Ok(())
            }
            ToMaster::StepDown => protocol("a replica without the log takes no master's place"),
            _ if self.welcome == Some(Verdict::Continue) => protocol("a full sync was not offered"),
            ToMaster::WantManifest => {
                self.given_up = false;
                self.peer.sending = Sending::Files;
                self.peer.refused_log = self.welcome != Some(Verdict::Foreign);
                (self.pin, self.pinned_from) = (Some(origin.store.pin()), origin.end.offset);
                self.work = Work::Manifest;
                Ok(())
            }
            ToMaster::WantFile { .. } | ToMaster::WantLog { .. } if self.given_up => Ok(()),
            ToMaster::WantFile { name, from } => {
                let Some(pin) = &self.pin else { return protocol("a file before the manifest") };
                self.work = match pin.manifest.file(&name) {
                    Some(entry) if from <= entry.bytes => match origin.store.disk().open(&name) {
                        Ok(file) => Work::File { file, at: from, end: entry.bytes },
                        Err(_) => Work::Gone,
                    },
                    Some(_) => return protocol("a file from behind its end"),
                    None => return protocol("a file that the manifest does not name"),
                };
                Ok(())
            }
            ToMaster::WantLog { segment } => {
                let is_known =
                    self.pin.as_ref().is_some_and(|pin| pin.manifest.replay.segment == segment);
                if !is_known && segment != Position::START.segment {
                    return protocol("a log before the manifest");
                }
                self.work = match first_place(origin, segment)? {
                    None => Work::Gone,
                    Some(start) => match Tail::find(origin.store.disk(), start, origin.end)? {
                        Ok(tail) => Work::Log { first: Some(tail.segment()), tail: Box::new(tail) },
                        Err(_) => Work::Gone,
                    },
                };
                Ok(())
            }
        }
    }

    /// Adds messages to `out` until it holds [`WINDOW_BYTES`], or there is nothing more to say now.
    /// To be called whenever there is room, whenever the log has grown, and with each tick.
    pub fn fill(
        &mut self,
        out: &mut Vec<u8>,
        origin: &LogSource<'_>,
        now_ms: u64,
    ) -> Result<(), LinkError> {
        self.tick(origin.end);
        self.said_end = self.said_end.max(origin.end.offset);
        if self.welcome.is_none()
            && let Some(hello) = self.hello.clone()
        {
            self.answer(&hello, out, origin)?;
            self.said_ms = now_ms;
        }
        if self.welcome.is_none() {
            return Ok(());
        }
        while out.len() < WINDOW_BYTES {
            match &mut self.work {
                Work::Nothing => break,
                Work::Gone => {
                    self.writer.master_says(out, &ToReplica::Gone);
                    self.work = Work::Nothing;
                }
                Work::Manifest => {
                    let text =
                        self.pin.as_ref().map(|pin| pin.manifest.encode()).unwrap_or_default();
                    self.writer.master_says(out, &ToReplica::Manifest(text.as_bytes()));
                    self.work = Work::Nothing;
                }
                Work::File { file, at, end } => {
                    let want = CHUNK_BYTES.min((*end - *at) as usize);
                    self.chunk.resize(want, 0);
                    let read = read_full_at(&**file, &mut self.chunk, *at);
                    if !matches!(read, Ok(n) if n == want) {
                        self.work = Work::Gone;
                        continue;
                    }
                    self.writer.master_says(out, &ToReplica::Chunk(&self.chunk));
                    *at += want as u64;
                    if at == end {
                        self.work = Work::Nothing;
                    }
                }
                Work::Log { tail, first } => {
                    if let Some(head) = first.take() {
                        self.writer.master_says(out, &ToReplica::Segment(&head.encode()));
                    }
                    match tail.next(origin.end) {
                        Ok(Step::Segment(head)) => {
                            self.writer.master_says(out, &ToReplica::Segment(&head.encode()))
                        }
                        Ok(Step::Batch(_, frame)) => {
                            self.writer.master_says(out, &ToReplica::Batch(frame))
                        }
                        Ok(Step::End) => break,
                        // Removed under it: the next link learns that it is gone.
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        if let (Work::Log { tail, .. }, Some(end)) = (&self.work, self.steps_down_at)
            && tail.position().offset >= end
        {
            self.writer.master_says(out, &ToReplica::SteppedDown { end });
            self.steps_down_at = None;
        }
        let is_due = now_ms.saturating_sub(self.said_ms) >= self.times.heartbeat_ms;
        // In the middle of a file nothing else is heard anyway, and a beat would only part two
        // chunks.
        if is_due && !matches!(self.work, Work::File { .. }) {
            self.writer.master_says(
                out,
                &ToReplica::Heartbeat { end: origin.end.offset, time_ms: now_ms },
            );
            self.said_ms = now_ms;
        }
        Ok(())
    }

    /// An error if the replica has said nothing for too long. To be called now and then, also while
    /// there is no room to send, and where nothing is there to be read: what it has said in time
    /// may be read late, as this end was busy.
    pub fn hears(&self, now_ms: u64) -> Result<(), LinkError> {
        self.times.hears(self.peer.heard_ms, now_ms)
    }

    /// The log grows. To be called also while there is no room to send: a replica that reads
    /// nothing pins no more of it than others.
    pub fn tick(&mut self, end: Position) {
        if self.pin.is_some() && end.offset.saturating_sub(self.pinned_from) > self.pinned_bytes {
            self.pin = None;
            self.given_up = true;
            self.work = Work::Gone;
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
                    self.work = Work::Log { tail: Box::new(tail), first };
                    self.peer.sending = Sending::Log;
                    // How much of it is durable the replica says with its next word.
                    (self.peer.written, self.peer.durable) = (hello.position.offset, 0);
                    Verdict::Continue
                }
                // It would have to come back through places where others were promoted since.
                Err(Absent::Short) if !is_other(origin.term) => Verdict::Short,
                Ok(_) | Err(Absent::Diverged | Absent::Short) => Verdict::Diverged,
                Err(Absent::Removed) => Verdict::Removed,
            }
        };
        let mut segments = Vec::new();
        if !matches!(verdict, Verdict::Continue | Verdict::Foreign) {
            for head in store::segments_back(&**store.disk(), origin.end.segment, MAX_HEADS)? {
                segments.extend_from_slice(&head.encode());
            }
        }
        let (lineage, term, end) = (store.lineage(), origin.term, origin.end.offset);
        self.writer.master_says(
            out,
            &ToReplica::Welcome { verdict, lineage, term, end, segments: &segments },
        );
        self.welcome = Some(verdict);
        self.peer.diverged_at = (verdict != Verdict::Continue).then_some(hello.position.offset);
        Ok(())
    }

    /// Whether all that it has to do now is quick: to say what was written a moment ago, which is
    /// still in memory, and to take an acknowledgement.
    pub fn is_at_hand(&self, origin: &LogSource<'_>) -> bool {
        match &self.work {
            Work::Log { tail, first: None } => {
                let at = tail.position();
                at.segment == origin.end.segment
                    && origin.end.offset.saturating_sub(at.offset) < AT_HAND_BYTES
            }
            _ => false,
        }
    }

    /// Tells the replica why it is not served; then the link is to be closed.
    pub fn refuse(&mut self, out: &mut Vec<u8>, why: &str) {
        self.writer.master_says(out, &ToReplica::Refused(why));
    }
}

/// The first place of a segment, if it is still there; of the first one: where the log begins,
/// whichever number that has.
fn first_place(origin: &LogSource<'_>, segment: u64) -> Result<Option<Position>, LinkError> {
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
