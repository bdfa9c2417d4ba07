//! Replica's end of a link. The follower appends received batches to its log, applies them and
//! acknowledges them. If it cannot continue its log, it fetches a whole data set.
//!
//! **Continuation** (R1): the replica continues if the master's log contains the end of its own
//! log.
//!
//! **Full sync** (R3): otherwise the replica fetches the whole data set in the cases below, and
//! refuses the master in all other cases. A wrong REPLICAOF or a master with a lost disk therefore
//! cannot delete the replica's data.
//!
//! - The master has another data set: only if this node is empty, or FORCE was given.
//! - The master has removed the log at the replica's position: only if the master has more
//!   promotions, or equally many and a log that is at least as long.
//! - The histories diverge: only if the master has more promotions, or equally many and another
//!   term. If the terms are equal, the lost part must not have been durable on the master.
//! - The master's log is shorter: only if FORCE was given. The master has lost data, or has not
//!   received it yet.
//!
//! **Acknowledgements**: *written* is the end of the applied log, *durable* the end of the synced
//! log. The host chooses whether batches are synced before they are applied
//! ([`ReplicaHost::sync_after_ms`]).

use store::{
    BatchHead, Disk, Error, FileEntry, Lineage, Manifest, ReplicaLog, SegmentHead, Staging,
    VerifiedFile,
};

use crate::divergence::{Divergence, divergence, headers};
use crate::link::{LinkError, Refusal, Timeouts};
use crate::term::promotions;
use crate::wire::{
    Hello, MAX_MESSAGE_BYTES, MessageReader, MessageWriter, ToMaster, ToReplica, Verdict,
    read_to_replica,
};
use std::sync::Arc;

/// Size of received batches in bytes that triggers a sync.
const UNSYNCED_BYTES: usize = 8 << 20;

/// The node that owns a [`Follower`].
pub trait ReplicaHost {
    /// Returns the node's log.
    fn log(&mut self) -> &mut ReplicaLog;
    /// Returns the node's disk.
    fn disk(&self) -> Arc<dyn Disk>;
    /// Returns the node's manifest.
    fn manifest(&self) -> Manifest;
    /// Whether the node is empty, so that a full sync overwrites no data.
    fn is_empty(&self) -> bool;
    /// Returns the maximum delay between applying and syncing a batch, in milliseconds. 0 means
    /// that a batch is synced before it is applied.
    fn sync_after_ms(&self) -> u64;
    /// Checks whether the node can apply a batch with this unverified body. After an error the
    /// batch is not appended, and the link ends.
    fn may_apply(&mut self, _body: &[u8]) -> Result<(), String> {
        Ok(())
    }
    /// Checks whether the node can open the part of the staged data set that has arrived. After an
    /// error the link ends, and the node keeps its data.
    fn may_open(&mut self, _staged: &Staging) -> Result<(), String> {
        Ok(())
    }
    /// Applies a batch that is in the log. Returns false if the node must reload its data to apply
    /// the batch.
    fn apply(&mut self, head: &BatchHead, body: &[u8]) -> Result<bool, String>;
    /// Saves the batches from this offset on. A full sync will drop them, and the master may not
    /// have them.
    fn save_dropped_batches(&mut self, from: u64) -> Result<(), Error>;
    /// Called before a full sync. From now on this node must not be promoted with its current data.
    fn gives_up(&mut self) -> Result<(), Error> {
        Ok(())
    }
    /// Called when the whole log is applied.
    fn settled(&mut self);
}

/// Next step of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowerStep {
    /// Continue.
    On,
    /// A complete data set is staged: close the store and open the folder again.
    Adopt,
    /// Close the store and reload the same data.
    Reopen,
}

#[derive(Debug)]
enum State {
    Greeted,
    Following,
    /// The replica has sent WantManifest. The list contains the files that an earlier attempt has
    /// verified.
    AwaitManifest(Vec<FileEntry>),
    /// The master sends a file, or the log of a full sync.
    Fetching(Box<Staging>),
}

/// State machine of the replica's end of a link. See the module documentation.
#[derive(Debug)]
pub struct Follower {
    times: Timeouts,
    forced: bool,
    reader: MessageReader,
    writer: MessageWriter,
    state: State,
    heard_ms: u64,
    sent_ms: u64,
    /// Written and durable offsets in the last acknowledgement.
    acknowledged: (u64, u64),
    /// Time at which the host noticed the oldest unsynced batch.
    unsynced_ms: Option<u64>,
    /// Heads of batches that are in the log but not applied, with the ends of their bodies in
    /// `bodies`.
    pending: Vec<(BatchHead, usize)>,
    bodies: Vec<u8>,
    /// End of the master's log, as last reported by the master.
    master_end: u64,
    fetched_bytes: u64,
    /// Final end of the log of a master that has stepped down, otherwise `None`.
    master_final_end: Option<u64>,
}

impl Follower {
    /// Opens a link and sends Hello. A `forced` replica accepts any data set of the master.
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
        let mut writer = MessageWriter::default();
        let hello = Hello { lineage, position, term, ip: ip.to_owned(), port };
        writer.put_replica_message(out, &ToMaster::Hello(hello));
        Ok(Follower {
            times,
            forced,
            reader: MessageReader::default(),
            writer,
            state: State::Greeted,
            heard_ms: now_ms,
            sent_ms: now_ms,
            acknowledged: (0, 0),
            unsynced_ms: None,
            pending: Vec::new(),
            bodies: Vec::new(),
            master_end: 0,
            fetched_bytes: 0,
            master_final_end: None,
        })
    }

    /// Whether the replica receives the log from its own position on, without a full sync.
    pub fn is_following(&self) -> bool {
        matches!(self.state, State::Following)
    }

    /// Returns the number of bytes received so far in the current full sync, or `None` if no full
    /// sync is running.
    pub fn is_fetching(&self) -> Option<u64> {
        matches!(self.state, State::AwaitManifest(_) | State::Fetching(_))
            .then_some(self.fetched_bytes)
    }

    /// Returns the end of the master's log, as last reported.
    pub fn master_end(&self) -> u64 {
        self.master_end
    }

    /// Asks the master to stop accepting writes, because this replica will take over. The replica
    /// must [follow](Follower::is_following) the master.
    pub fn ask_to_step_down(&mut self, out: &mut Vec<u8>) {
        self.writer.put_replica_message(out, &ToMaster::StepDown);
    }

    /// Whether the master has stepped down and this replica has applied the master's whole log.
    pub fn has_whole_log(&self, local: &mut impl ReplicaHost) -> bool {
        let end = self.master_final_end;
        self.pending.is_empty() && end.is_some_and(|end| local.log().written().offset >= end)
    }

    /// Returns the time of the master's last message.
    pub fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// Processes bytes from the master.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        local: &mut impl ReplicaHost,
        out: &mut Vec<u8>,
        now_ms: u64,
    ) -> Result<FollowerStep, LinkError> {
        self.heard_ms = now_ms;
        self.reader.feed(bytes);
        let mut reader = std::mem::take(&mut self.reader);
        let course = loop {
            let body = match reader.next(MAX_MESSAGE_BYTES) {
                Ok(Some(body)) => body,
                Ok(None) => break Ok(FollowerStep::On),
                Err(what) => break Err(LinkError::Protocol(what)),
            };
            let message = match read_to_replica(body) {
                Ok(message) => message,
                Err(what) => break Err(LinkError::Protocol(what)),
            };
            match self.take(message, local, out, now_ms) {
                Ok(FollowerStep::On) => {}
                other => break other,
            }
        };
        self.reader = reader;
        course
    }

    // Long: this function is a `match` with an arm of a few lines for each pair of message and
    // state.
    fn take(
        &mut self,
        message: ToReplica<'_>,
        local: &mut impl ReplicaHost,
        out: &mut Vec<u8>,
        now_ms: u64,
    ) -> Result<FollowerStep, LinkError> {
        match (message, &mut self.state) {
            (ToReplica::Refused(why), _) => return Err(LinkError::Refused(why.to_owned())),
            (ToReplica::Heartbeat { end, .. }, _) => {
                self.master_end = self.master_end.max(end);
                // Acknowledge even if nothing has changed, to keep the link alive.
                self.acknowledge(local, out, now_ms);
            }
            (ToReplica::SteppedDown { end }, State::Following) => {
                self.master_final_end = Some(end);
                self.master_end = self.master_end.max(end);
            }
            (ToReplica::Welcome { verdict, lineage, term, end, segments }, State::Greeted) => {
                self.master_end = end;
                if verdict == Verdict::Continue {
                    self.state = State::Following;
                    self.acknowledge(local, out, now_ms);
                } else {
                    // The node counts as empty even if its log has records of deletions.
                    if verdict != Verdict::Foreign || !local.is_empty() {
                        self.save_diverged_batches(verdict, (lineage, term, end), segments, local)?;
                    }
                    local.gives_up()?;
                    self.want_manifest(out);
                }
            }
            (ToReplica::Manifest(text), State::AwaitManifest(here)) => {
                let manifest = Manifest::decode(text)
                    .map_err(|e| LinkError::Protocol(format!("invalid manifest: {e:?}")))?;
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
                    VerifiedFile::Part => {}
                    VerifiedFile::Whole => self.want_next(local, out)?,
                    VerifiedFile::Damaged => return Err(LinkError::Damaged),
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
                may_apply(local, frame)?;
                let log = staging.log()?;
                log.append(frame).map_err(refused)?;
                if log.written().offset - log.durable().offset >= UNSYNCED_BYTES as u64 {
                    log.sync()?;
                }
            }
            (ToReplica::Segment(bytes), State::Following) => {
                let course = self.settle(local, out, now_ms)?;
                if course != FollowerStep::On {
                    return Ok(course);
                }
                local.log().begin(segment(bytes)?).map_err(refused)?;
            }
            (ToReplica::Batch(frame), State::Following) => {
                may_apply(local, frame)?;
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
        Ok(FollowerStep::On)
    }

    /// Checks the rules in the module documentation: whether the master's data may replace this
    /// node's data. Then saves the batches that the master does not have.
    fn save_diverged_batches(
        &self,
        verdict: Verdict,
        (lineage, term, end): (Lineage, u64, u64),
        segments: &[u8],
        local: &mut impl ReplicaHost,
    ) -> Result<(), LinkError> {
        let theirs =
            headers(segments).ok_or_else(|| LinkError::Protocol("invalid segments".to_owned()))?;
        let log = local.log();
        let divergence = match verdict {
            Verdict::Foreign => Divergence { at_least: 0, at_most: 0 },
            _ => divergence(log, end, &theirs)?,
        };
        if !self.forced {
            may_fetch(verdict, (lineage, term, end), divergence.at_most, log)?;
        }
        if log.has_data_after(divergence.at_least)? {
            local.save_dropped_batches(divergence.at_least)?;
        }
        Ok(())
    }

    fn want_manifest(&mut self, out: &mut Vec<u8>) {
        self.writer.put_replica_message(out, &ToMaster::WantManifest);
        // Keep the verified files. Otherwise the sync would never end if the master's log grows
        // faster than the replica verifies files.
        let here = match std::mem::replace(&mut self.state, State::Greeted) {
            State::Fetching(staging) => staging.into_whole(),
            State::AwaitManifest(here) => here,
            State::Greeted | State::Following => Vec::new(),
        };
        self.state = State::AwaitManifest(here);
    }

    /// Whether [`Follower::look`] has work to do.
    pub fn is_verifying(&self) -> bool {
        matches!(&self.state, State::Fetching(staging) if !staging.is_known())
    }

    /// Verifies some of the files that an earlier link fetched. After the last of them, requests
    /// the remaining files.
    ///
    /// The caller calls this function repeatedly, and does other work between the calls. Verifying
    /// all files in one call could exceed the peer's timeout, and the next link would have to start
    /// over.
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
        local.may_open(staging).map_err(LinkError::CannotApply)?;
        match staging.wanted()? {
            Some((entry, from)) => {
                self.writer
                    .put_replica_message(out, &ToMaster::WantFile { name: entry.name, from });
            }
            None => {
                let segment = staging.manifest().replay.segment;
                staging.log()?;
                self.writer.put_replica_message(out, &ToMaster::WantLog { segment });
            }
        }
        Ok(())
    }

    /// Applies, syncs and acknowledges the received batches. Called when no more input is
    /// available.
    pub fn settle(
        &mut self,
        local: &mut impl ReplicaHost,
        out: &mut Vec<u8>,
        now_ms: u64,
    ) -> Result<FollowerStep, LinkError> {
        match &mut self.state {
            State::Following => {
                if local.sync_after_ms() == 0 {
                    local.log().sync()?;
                }
                if !self.apply(local)? {
                    return Ok(FollowerStep::Reopen);
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
                    local.may_open(staging).map_err(LinkError::CannotApply)?;
                    let State::Fetching(staging) =
                        std::mem::replace(&mut self.state, State::Greeted)
                    else {
                        return Ok(FollowerStep::On);
                    };
                    staging.commit()?;
                    return Ok(FollowerStep::Adopt);
                }
            }
            _ => {}
        }
        Ok(FollowerStep::On)
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

    /// Applies the remaining batches in the log after the link has ended. Returns `Reopen` if the
    /// node must reload its data.
    pub fn finish(&mut self, local: &mut impl ReplicaHost) -> Result<FollowerStep, LinkError> {
        Ok(if self.is_following() && !self.apply(local)? {
            FollowerStep::Reopen
        } else {
            FollowerStep::On
        })
    }

    fn acknowledge(&mut self, local: &mut impl ReplicaHost, out: &mut Vec<u8>, now_ms: u64) {
        self.sent_ms = now_ms;
        // During a full sync the offsets of the old data are meaningless.
        let (written, durable) = match self.state {
            State::Following => (local.log().written().offset, local.log().durable().offset),
            State::Greeted => return,
            _ => (0, 0),
        };
        // Report only applied batches as written. A heartbeat may be due while a received batch is
        // not applied.
        let written =
            if self.pending.is_empty() { written } else { self.acknowledged.0.max(durable) };
        self.acknowledged = (written, durable);
        self.writer.put_replica_message(out, &ToMaster::Ack { written, durable });
    }

    /// Returns an error if the master has sent nothing for too long.
    ///
    /// Called only when no input is pending, because a busy replica may read a message long after
    /// the message has arrived.
    pub fn check_timeout(&self, now_ms: u64) -> Result<(), LinkError> {
        self.times.check_timeout(self.heard_ms, now_ms)
    }

    /// Syncs and acknowledges if due. Called periodically.
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
        if now_ms.saturating_sub(self.sent_ms) >= self.times.heartbeat_ms
            || local.log().durable() != before
        {
            self.acknowledge(local, out, now_ms);
        }
        Ok(())
    }
}

fn may_apply(local: &mut impl ReplicaHost, frame: &[u8]) -> Result<(), LinkError> {
    local
        .may_apply(frame.get(store::BATCH_HEAD_BYTES..).unwrap_or_default())
        .map_err(LinkError::CannotApply)
}

fn segment(bytes: &[u8]) -> Result<SegmentHead, LinkError> {
    SegmentHead::decode(bytes).map_err(|e| LinkError::Protocol(format!("a segment: {e}")))
}

/// Converts an error of the store. `Error::Refused` means that the peer's message is invalid; other
/// errors come from the local disk.
fn refused(error: Error) -> LinkError {
    match error {
        Error::Refused(what) => LinkError::Protocol(what),
        other => other.into(),
    }
}

/// Applies the rules for a full sync from the module documentation. `divergence` is the highest
/// offset at which the histories may diverge.
fn may_fetch(
    verdict: Verdict,
    (lineage, term, end): (Lineage, u64, u64),
    divergence: u64,
    log: &ReplicaLog,
) -> Result<(), LinkError> {
    let (position, own_term) = (log.written(), log.term());
    let behind = Refusal::Behind { ours: position.offset, theirs: end };
    let (theirs, ours) = (promotions(term), promotions(own_term));
    match verdict {
        Verdict::Continue => Ok(()),
        Verdict::Foreign => {
            Err(LinkError::CannotFollow(Refusal::Foreign { ours: log.lineage(), theirs: lineage }))
        }
        Verdict::Removed if theirs >= ours && end >= position.offset => Ok(()),
        Verdict::Removed if theirs > ours => Ok(()),
        Verdict::Diverged if theirs > ours || (theirs == ours && term != own_term) => Ok(()),
        // The master has lost only unsynced data, for example in a power cut. It may have
        // acknowledged later writes.
        Verdict::Diverged if theirs == ours && divergence >= log.durable_at_master()? => Ok(()),
        Verdict::Removed | Verdict::Diverged | Verdict::Short => {
            Err(LinkError::CannotFollow(behind))
        }
    }
}
