//! The replica's end of a link: appends what comes to its own log, applies it, acknowledges it; or
//! fetches a whole data set.
//!
//! **When it follows** (R1): the master's log passes through the end of its own.
//!
//! **When it fetches everything** (R3), and otherwise refuses, so that a mistake or a lost disk on
//! the other side costs nothing here:
//!
//! - The master has another data set (or an empty one): if this node holds nothing, or is forced.
//! - It has the same history, but the log before this position is gone: if it was promoted at least
//!   as often.
//! - It has the same history up to some place, then another: if it was promoted more often, or as
//!   often by another promotion; or if it never was, and had promised nothing of what it lost, as
//!   that was not synced there.
//! - It has the same history, but less of it: if this node is forced. Something was lost, or the
//!   master does not have it yet.
//!
//! **What it acknowledges**: as *written* what is in its log and applied, as *durable* what is
//! synced, too. Which of the two has to come first is its node's choice
//! ([`ReplicaHost::sync_after_ms`]).

use store::{
    BatchHead, Disk, Error, Fetched, FileEntry, FollowLog, Lineage, Manifest, SegmentHead, Staging,
};

use crate::divergence::{Divergence, divergence, headers};
use crate::link::{LinkError, Refusal, Timeouts};
use crate::term::promotions;
use crate::wire::{
    Hello, MAX_MESSAGE_BYTES, Reader, ToMaster, ToReplica, Verdict, Writer, read_to_replica,
};
use std::sync::Arc;

/// Received batches are synced, at the latest, when there are so many bytes of them.
const UNSYNCED_BYTES: usize = 8 << 20;

/// What a follower works on: its node.
pub trait ReplicaHost {
    /// The node's log.
    fn log(&mut self) -> &mut FollowLog;
    /// Its disk.
    fn disk(&self) -> Arc<dyn Disk>;
    /// Its manifest.
    fn manifest(&self) -> Manifest;
    /// Whether it holds nothing that would be missed, should another data set take its place.
    fn is_empty(&self) -> bool;
    /// How long what was applied may wait for its sync, in milliseconds; 0: it is durable before it
    /// is applied.
    fn sync_after_ms(&self) -> u64;
    /// Whether a batch with this body, not checked yet, could be made true here. If not, the link
    /// ends with the reason, and the log stays without it.
    fn may_take(&mut self, _body: &[u8]) -> Result<(), String> {
        Ok(())
    }
    /// Whether this data set, as far as it is here, could be opened here. If not, the link ends
    /// with the reason, and this node keeps what it has.
    fn may_open(&mut self, _staged: &Staging) -> Result<(), String> {
        Ok(())
    }
    /// Makes a batch true, which is in the log already. False: the data set must be opened anew to
    /// do so.
    fn apply(&mut self, head: &BatchHead, body: &[u8]) -> Result<bool, String>;
    /// Batches from this offset on, of which the master does not have all, will be dropped: they
    /// are to be put into safety.
    fn drops(&mut self, from: u64) -> Result<(), Error>;
    /// The data are to be replaced by the master's: from now on they are not what this node is to
    /// be promoted with.
    fn gives_up(&mut self) -> Result<(), Error> {
        Ok(())
    }
    /// All that is in the log is applied.
    fn settled(&mut self);
}

/// How the link goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkStep {
    /// As before.
    On,
    /// Another data set is there, complete: this one is to be closed, and the folder opened anew.
    Adopt,
    /// The data set is to be opened anew, as it is.
    Reopen,
}

#[derive(Debug)]
enum State {
    /// Hello was sent.
    Greeted,
    /// The log comes in.
    Following,
    /// WantManifest was sent; of an earlier one these files are here.
    AwaitManifest(Vec<FileEntry>),
    /// A file, or the log of a full sync, comes in.
    Fetching(Box<Staging>),
}

/// See the top of the file.
#[derive(Debug)]
pub struct Follower {
    times: Timeouts,
    forced: bool,
    reader: Reader,
    writer: Writer,
    state: State,
    heard_ms: u64,
    said_ms: u64,
    /// Written and durable, as it was last said.
    acknowledged: (u64, u64),
    /// Since when something waits for its sync.
    unsynced_ms: Option<u64>,
    /// Batches that are in the log and not applied: heads, and where their bodies end.
    pending: Vec<(BatchHead, usize)>,
    bodies: Vec<u8>,
    /// The master's end, as it last said.
    master_end: u64,
    /// Of the data that a full sync has brought.
    fetched_bytes: u64,
    /// Where the master's log ends for good, once it has stepped down for this replica.
    stepped_down_at: Option<u64>,
}

impl Follower {
    /// A link that has just come up: says Hello. `forced`: whatever the master has is taken.
    pub fn new(
        times: Timeouts,
        forced: bool,
        (ip, port): (&str, u16),
        local: &mut impl ReplicaHost,
        out: &mut Vec<u8>,
        now_ms: u64,
    ) -> Result<Follower, LinkError> {
        let replay = local.manifest().replay;
        let (position, term) = local.log().resume_point(replay)?;
        let lineage = local.log().lineage();
        let mut writer = Writer::default();
        let hello = Hello { lineage, position, term, ip: ip.to_owned(), port };
        writer.replica_says(out, &ToMaster::Hello(hello));
        Ok(Follower {
            times,
            forced,
            reader: Reader::default(),
            writer,
            state: State::Greeted,
            heard_ms: now_ms,
            said_ms: now_ms,
            acknowledged: (0, 0),
            unsynced_ms: None,
            pending: Vec::new(),
            bodies: Vec::new(),
            master_end: 0,
            fetched_bytes: 0,
            stepped_down_at: None,
        })
    }

    /// Whether the log comes in, from the own position on.
    pub fn is_following(&self) -> bool {
        matches!(self.state, State::Following)
    }

    /// Whether a full sync is under way, and how many bytes it has brought.
    pub fn is_fetching(&self) -> Option<u64> {
        matches!(self.state, State::AwaitManifest(_) | State::Fetching(_))
            .then_some(self.fetched_bytes)
    }

    /// The master's end, as it last said.
    pub fn master_end(&self) -> u64 {
        self.master_end
    }

    /// Asks the master to accept no more writes: this replica takes its place. Only a replica that
    /// [follows](Follower::is_following) may ask.
    pub fn ask_to_step_down(&mut self, out: &mut Vec<u8>) {
        self.writer.replica_says(out, &ToMaster::StepDown);
    }

    /// Whether the master has stepped down, and everything in its log is applied here.
    pub fn has_whole_log(&self, local: &mut impl ReplicaHost) -> bool {
        let end = self.stepped_down_at;
        self.pending.is_empty() && end.is_some_and(|end| local.log().written().offset >= end)
    }

    /// When the master last said something.
    pub fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// Takes bytes that came from the master.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        local: &mut impl ReplicaHost,
        out: &mut Vec<u8>,
        now_ms: u64,
    ) -> Result<LinkStep, LinkError> {
        self.heard_ms = now_ms;
        self.reader.feed(bytes);
        let mut reader = std::mem::take(&mut self.reader);
        let course = loop {
            let body = match reader.next(MAX_MESSAGE_BYTES) {
                Ok(Some(body)) => body,
                Ok(None) => break Ok(LinkStep::On),
                Err(what) => break Err(LinkError::Protocol(what)),
            };
            let message = match read_to_replica(body) {
                Ok(message) => message,
                Err(what) => break Err(LinkError::Protocol(what)),
            };
            match self.take(message, local, out, now_ms) {
                Ok(LinkStep::On) => {}
                other => break other,
            }
        };
        self.reader = reader;
        course
    }

    // Long: one arm for each message and state.
    fn take(
        &mut self,
        message: ToReplica<'_>,
        local: &mut impl ReplicaHost,
        out: &mut Vec<u8>,
        now_ms: u64,
    ) -> Result<LinkStep, LinkError> {
        match (message, &mut self.state) {
            (ToReplica::Refused(why), _) => return Err(LinkError::Refused(why.to_owned())),
            (ToReplica::Heartbeat { end, .. }, _) => {
                self.master_end = self.master_end.max(end);
                // A sign of life, also from a replica that has nothing to acknowledge.
                self.acknowledge(local, out, now_ms);
            }
            (ToReplica::SteppedDown { end }, State::Following) => {
                self.stepped_down_at = Some(end);
                self.master_end = self.master_end.max(end);
            }
            (ToReplica::Welcome { verdict, lineage, term, end, segments }, State::Greeted) => {
                self.master_end = end;
                if verdict == Verdict::Continue {
                    self.state = State::Following;
                    self.acknowledge(local, out, now_ms);
                } else {
                    // All rows of this data set were deleted by commands, which count as any others
                    // do.
                    if verdict != Verdict::Foreign || !local.is_empty() {
                        self.give_up(verdict, (lineage, term, end), segments, local)?;
                    }
                    local.gives_up()?;
                    self.want_manifest(out);
                }
            }
            (ToReplica::Manifest(text), State::AwaitManifest(here)) => {
                let manifest = Manifest::decode(text).map_err(|e| {
                    LinkError::Protocol(format!("a manifest that cannot be read: {e:?}"))
                })?;
                let staging = Staging::begin(
                    local.disk(),
                    manifest,
                    &local.manifest(),
                    std::mem::take(here),
                )?;
                self.state = State::Fetching(Box::new(staging));
                self.look(local, out)?;
            }
            (ToReplica::Chunk(bytes), State::Fetching(staging)) => {
                self.fetched_bytes += bytes.len() as u64;
                match staging.write(bytes)? {
                    Fetched::Part => {}
                    Fetched::Whole => self.want_next(local, out)?,
                    Fetched::Damaged => return Err(LinkError::Damaged),
                }
            }
            (ToReplica::Gone, State::Fetching(_) | State::AwaitManifest(_)) => {
                self.want_manifest(out)
            }
            (ToReplica::Segment(bytes), State::Fetching(staging)) => {
                self.fetched_bytes += bytes.len() as u64;
                let head = segment(bytes)?;
                staging.log()?.begin(head).map_err(refused)?;
            }
            (ToReplica::Batch(frame), State::Fetching(staging)) => {
                self.fetched_bytes += frame.len() as u64;
                may_take(local, frame)?;
                let log = staging.log()?;
                log.append(frame).map_err(refused)?;
                if log.written().offset - log.durable().offset >= UNSYNCED_BYTES as u64 {
                    log.sync()?;
                }
            }
            (ToReplica::Segment(bytes), State::Following) => {
                let course = self.settle(local, out, now_ms)?;
                if course != LinkStep::On {
                    return Ok(course);
                }
                local.log().begin(segment(bytes)?).map_err(refused)?;
            }
            (ToReplica::Batch(frame), State::Following) => {
                may_take(local, frame)?;
                let head = local.log().append(frame).map_err(refused)?;
                self.master_end = self.master_end.max(local.log().written().offset);
                self.bodies.extend_from_slice(&frame[store::BATCH_HEAD_BYTES..]);
                self.pending.push((head, self.bodies.len()));
                if self.bodies.len() >= UNSYNCED_BYTES {
                    return self.settle(local, out, now_ms);
                }
            }
            (message, state) => {
                return Err(LinkError::Protocol(format!(
                    "{message:.40?} in the state {state:.20?}"
                )));
            }
        }
        Ok(LinkStep::On)
    }

    /// All that there is, for what the master has, if that may be (the table at the top of the
    /// file). What it has not is handed out first, whatever may be of that.
    fn give_up(
        &self,
        verdict: Verdict,
        (lineage, term, end): (Lineage, u64, u64),
        segments: &[u8],
        local: &mut impl ReplicaHost,
    ) -> Result<(), LinkError> {
        let theirs = headers(segments)
            .ok_or_else(|| LinkError::Protocol("segments that cannot be read".to_owned()))?;
        let log = local.log();
        let divergence = match verdict {
            Verdict::Foreign => Divergence { at_least: 0, at_most: 0 },
            _ => divergence(log, end, &theirs)?,
        };
        if !self.forced {
            may_fetch(verdict, (lineage, term, end), divergence.at_most, log)?;
        }
        if log.holds_after(divergence.at_least)? {
            local.drops(divergence.at_least)?;
        }
        Ok(())
    }

    fn want_manifest(&mut self, out: &mut Vec<u8>) {
        self.writer.replica_says(out, &ToMaster::WantManifest);
        // Where the master's log grows faster than what is here can be looked at, looking at all of
        // it again would never end.
        let here = match std::mem::replace(&mut self.state, State::Greeted) {
            State::Fetching(staging) => staging.into_whole(),
            State::AwaitManifest(here) => here,
            State::Greeted | State::Following => Vec::new(),
        };
        self.state = State::AwaitManifest(here);
    }

    /// Whether [`Follower::look`] has something to do.
    pub fn is_looking(&self) -> bool {
        matches!(&self.state, State::Fetching(staging) if !staging.is_known())
    }

    /// Looks at some of what an earlier link has left, and when that is known asks for the rest. To
    /// be called again and again, with all else in between: a peer that waits for all of it would
    /// give this one up, and the next link begin anew with it.
    pub fn look(
        &mut self,
        local: &mut impl ReplicaHost,
        out: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        let State::Fetching(staging) = &mut self.state else { return Ok(()) };
        staging.look()?;
        if staging.is_known() { self.want_next(local, out) } else { Ok(()) }
    }

    fn want_next(
        &mut self,
        local: &mut impl ReplicaHost,
        out: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        let State::Fetching(staging) = &mut self.state else { return Ok(()) };
        local.may_open(staging).map_err(LinkError::Unready)?;
        match staging.wanted()? {
            Some((entry, from)) => {
                self.writer.replica_says(out, &ToMaster::WantFile { name: entry.name, from });
            }
            None => {
                let segment = staging.manifest().replay.segment;
                staging.log()?;
                self.writer.replica_says(out, &ToMaster::WantLog { segment });
            }
        }
        Ok(())
    }

    /// To be called when no more bytes are there at the moment: makes true what came, and says so.
    pub fn settle(
        &mut self,
        local: &mut impl ReplicaHost,
        out: &mut Vec<u8>,
        now_ms: u64,
    ) -> Result<LinkStep, LinkError> {
        match &mut self.state {
            State::Following => {
                if local.sync_after_ms() == 0 {
                    local.log().sync()?;
                }
                if !self.apply(local)? {
                    return Ok(LinkStep::Reopen);
                }
                self.sync_if_due(local, now_ms)?;
                if (local.log().written().offset, local.log().durable().offset) != self.acknowledged
                {
                    self.acknowledge(local, out, now_ms);
                }
            }
            State::Fetching(staging) if staging.missing() == 0 && staging.has_log() => {
                let end = staging.log()?.sync()?;
                if staging.is_whole() && end.offset >= self.master_end {
                    local.may_open(staging).map_err(LinkError::Unready)?;
                    let State::Fetching(staging) =
                        std::mem::replace(&mut self.state, State::Greeted)
                    else {
                        return Ok(LinkStep::On);
                    };
                    staging.commit()?;
                    return Ok(LinkStep::Adopt);
                }
            }
            _ => {}
        }
        Ok(LinkStep::On)
    }

    fn apply(&mut self, local: &mut impl ReplicaHost) -> Result<bool, LinkError> {
        let mut start = 0;
        for (head, end) in self.pending.drain(..) {
            if !local.apply(&head, &self.bodies[start..end]).map_err(LinkError::Apply)? {
                return Ok(false);
            }
            start = end;
        }
        self.bodies.clear();
        self.bodies.shrink_to(UNSYNCED_BYTES);
        local.settled();
        Ok(true)
    }

    fn sync_if_due(&mut self, local: &mut impl ReplicaHost, now_ms: u64) -> Result<(), LinkError> {
        let after_ms = local.sync_after_ms();
        let log = local.log();
        let waiting = log.written().offset - log.durable().offset;
        if waiting == 0 {
            self.unsynced_ms = None;
        } else if now_ms - *self.unsynced_ms.get_or_insert(now_ms) >= after_ms
            || waiting >= 2 * UNSYNCED_BYTES as u64
        {
            log.sync()?;
            self.unsynced_ms = None;
            local.settled();
        }
        Ok(())
    }

    /// The link has ended: applies what is in the log and not applied yet. If it cannot, the data
    /// set must be opened anew.
    pub fn finish(&mut self, local: &mut impl ReplicaHost) -> Result<LinkStep, LinkError> {
        Ok(if self.is_following() && !self.apply(local)? { LinkStep::Reopen } else { LinkStep::On })
    }

    fn acknowledge(&mut self, local: &mut impl ReplicaHost, out: &mut Vec<u8>, now_ms: u64) {
        self.said_ms = now_ms;
        // While files come in, the old data's positions would mean nothing.
        let (written, durable) = match self.state {
            State::Following => (local.log().written().offset, local.log().durable().offset),
            State::Greeted => return,
            _ => (0, 0),
        };
        // Written counts when it is applied. A beat may come between a batch and the moment when it
        // is.
        let written =
            if self.pending.is_empty() { written } else { self.acknowledged.0.max(durable) };
        self.acknowledged = (written, durable);
        self.writer.replica_says(out, &ToMaster::Ack { written, durable });
    }

    /// An error if the master has said nothing for too long. To be called now and then, where
    /// nothing is there to be read: what it has said in time may be read late, as this end was
    /// busy.
    pub fn hears(&self, now_ms: u64) -> Result<(), LinkError> {
        self.times.hears(self.heard_ms, now_ms)
    }

    /// Time goes by.
    pub fn tick(
        &mut self,
        local: &mut impl ReplicaHost,
        out: &mut Vec<u8>,
        now_ms: u64,
    ) -> Result<(), LinkError> {
        let before = local.log().durable();
        if self.is_following() {
            self.sync_if_due(local, now_ms)?;
        }
        if now_ms.saturating_sub(self.said_ms) >= self.times.heartbeat_ms
            || local.log().durable() != before
        {
            self.acknowledge(local, out, now_ms);
        }
        Ok(())
    }
}

fn may_take(local: &mut impl ReplicaHost, frame: &[u8]) -> Result<(), LinkError> {
    local
        .may_take(frame.get(store::BATCH_HEAD_BYTES..).unwrap_or_default())
        .map_err(LinkError::Unready)
}

fn segment(bytes: &[u8]) -> Result<SegmentHead, LinkError> {
    SegmentHead::decode(bytes).map_err(|e| LinkError::Protocol(format!("a segment: {e}")))
}

/// What the log refuses the peer has sent wrongly; all else is the own disk.
fn refused(error: Error) -> LinkError {
    match error {
        Error::Refused(what) => LinkError::Protocol(what),
        other => other.into(),
    }
}

/// The table at the top of the file. `divergence`: where, at the latest, the histories part.
fn may_fetch(
    verdict: Verdict,
    (lineage, term, end): (Lineage, u64, u64),
    divergence: u64,
    log: &FollowLog,
) -> Result<(), LinkError> {
    let (position, own_term) = (log.written(), log.term());
    let behind = Refusal::Behind { ours: position.offset, theirs: end };
    let (theirs, ours) = (promotions(term), promotions(own_term));
    match verdict {
        Verdict::Continue => Ok(()),
        Verdict::Foreign => {
            Err(LinkError::Unfit(Refusal::Foreign { ours: log.lineage(), theirs: lineage }))
        }
        Verdict::Removed if theirs >= ours && end >= position.offset => Ok(()),
        Verdict::Removed if theirs > ours => Ok(()),
        Verdict::Diverged if theirs > ours || (theirs == ours && term != own_term) => Ok(()),
        // Its power failed, say: what it had not synced is gone there, and others may have been
        // told what it wrote since.
        Verdict::Diverged if theirs == ours && divergence >= log.durable_at_master()? => Ok(()),
        Verdict::Removed | Verdict::Diverged | Verdict::Short => Err(LinkError::Unfit(behind)),
    }
}
