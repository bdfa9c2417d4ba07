//! Fuzz target for replication links, and a deterministic test that feeds it seeded input.
//!
//! A real master sends to a real replica. An intermediary drops, repeats, changes and forges
//! messages. Forged messages have valid checksums, including those of segments, batches and
//! manifests. Each end of the link must continue, or close the link with an error.

use crate::wire::{MessageReader, MessageWriter, read_to_master, read_to_replica};
use crate::{Follower, FollowerStep, LinkError, LogSource, ReplicaHost, Sender, Timeouts};
use std::sync::Arc;
use store::{
    Batch, BatchHead, Check, Disk, Error, Lineage, Log, Manifest, Records, ReplicaLog, SegmentHead,
    SimDisk, Store, StoreOptions, Tag, frame_head,
};

const NUMBERS: [u64; 10] =
    [0, 1, 2, 80, 4096, 1 << 32, 1 << 63, u64::MAX - 100, u64::MAX - 1, u64::MAX];

/// Source of decisions; returns 0 once the input is exhausted.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Returns `was` unchanged in half of all cases, otherwise a nearby or an extreme number.
    fn number(&mut self, was: u64) -> u64 {
        match self.byte() {
            0..128 => was,
            near @ 128..192 => was.wrapping_add(u64::from(near)).wrapping_sub(160),
            other => NUMBERS[usize::from(other) % NUMBERS.len()],
        }
    }

    fn bytes(&mut self) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(usize::from(self.byte()).min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// One direction of a link. A hostile intermediary changes its messages.
#[derive(Default)]
struct MessageStream {
    reader: MessageReader,
    sent: u64,
    /// Last segment header, for forged batches. The next field is the offset after the last batch.
    segment: Option<SegmentHead>,
    byte: u64,
}

impl MessageStream {
    /// Returns the bytes that arrive at the other end.
    fn pass(&mut self, sent: &[u8], input: &mut Input<'_>) -> Vec<u8> {
        self.reader.feed(sent);
        let (mut honest, mut out) = (Vec::new(), Vec::new());
        while let Ok(Some(body)) = self.reader.next(crate::MAX_MESSAGE_BYTES) {
            honest.push(body.to_vec());
        }
        for body in honest {
            match input.byte() % 16 {
                0..9 => self.put(&body, &mut out),
                9 => {}
                10 => (0..2).for_each(|_| self.put(&body, &mut out)),
                11 => {
                    let mut body = body;
                    let at = usize::from(input.byte()) % body.len();
                    body[at] ^= input.byte();
                    self.put(&body, &mut out);
                }
                12 => self.put(&body[..1 + usize::from(input.byte()) % body.len()], &mut out),
                13 => self.put(input.bytes(), &mut out),
                _ => {
                    let body = self.forge(body, input);
                    self.put(&body, &mut out);
                }
            }
        }
        out
    }

    fn put(&mut self, body: &[u8], out: &mut Vec<u8>) {
        if body.is_empty() {
            return;
        }
        if let Some((68, rest)) = body.split_first().map(|(kind, rest)| (*kind, rest))
            && let Ok(head) = SegmentHead::decode(rest)
        {
            (self.segment, self.byte) = (Some(head), 80);
        }
        if body[0] == 69 {
            self.byte += body.len() as u64 - 1;
        }
        out.extend_from_slice(&frame_head(Check::new().u64(self.sent), body));
        out.extend_from_slice(body);
        self.sent += 1;
    }

    /// Returns a message of the same kind with other contents and valid checksums.
    fn forge(&mut self, body: Vec<u8>, input: &mut Input<'_>) -> Vec<u8> {
        let (kind, rest) = (body[0], &body[1..]);
        let forged = match kind {
            66 => Manifest::decode(rest).ok().map(|mut manifest| {
                manifest.number = input.number(manifest.number);
                manifest.durable = input.number(manifest.durable);
                manifest.replay.segment = input.number(manifest.replay.segment).max(1);
                manifest.replay.byte = input.number(manifest.replay.byte).max(80);
                manifest.replay.offset = input.number(manifest.replay.offset);
                manifest.files.iter_mut().for_each(|file| file.bytes = input.number(file.bytes));
                manifest.encode().into_bytes()
            }),
            68 => SegmentHead::decode(rest).ok().map(|mut head| {
                head.segment = input.number(head.segment).max(1);
                head.previous = input.number(head.previous).min(head.segment - 1);
                head.base = input.number(head.base);
                head.sequence = input.number(head.sequence);
                head.term = input.number(head.term);
                head.encode().to_vec()
            }),
            69 => self.segment.map(|segment| batch(&segment, self.byte, rest, input)),
            _ => {
                let mut rest = rest.to_vec();
                let at = usize::from(input.byte()) % rest.len().max(1);
                let number = input.number(0).to_le_bytes();
                rest.iter_mut().skip(at).zip(number).for_each(|(byte, new)| *byte = new);
                Some(rest)
            }
        };
        [vec![kind], forged.unwrap_or_default()].concat()
    }
}

/// Forges a batch for this location; store/src/batch.rs describes the fields.
fn batch(segment: &SegmentHead, byte: u64, honest: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let mut head: Vec<u8> = honest.iter().copied().take(40).collect();
    head.resize(40, 0);
    let body = input.bytes();
    let old = |head: &[u8], at: usize| {
        u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default())
    };
    let (sequence, unsynced) = (input.number(old(&head, 8)), input.number(0) as u32);
    head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[8..16].copy_from_slice(&sequence.to_le_bytes());
    head[24..28].copy_from_slice(&unsynced.to_le_bytes());
    let offset = segment.base.wrapping_add(byte - 80);
    let place = |at: u64| Check::new().bytes(&segment.lineage.0).u64(segment.segment).u64(at);
    let chain = place(offset).bytes(&head[..32]).bytes(body).value();
    head[32..36].copy_from_slice(&chain.to_le_bytes());
    let check = place(byte).bytes(&head[..36]).value();
    head[36..40].copy_from_slice(&check.to_le_bytes());
    [&head, body].concat()
}

struct FuzzReplica {
    store: Store,
    log: ReplicaLog,
    is_empty: bool,
    sync_after_ms: u64,
}

impl ReplicaHost for FuzzReplica {
    fn log(&mut self) -> &mut ReplicaLog {
        &mut self.log
    }
    fn disk(&self) -> Arc<dyn Disk> {
        self.store.disk().clone()
    }
    fn manifest(&self) -> Manifest {
        self.store.manifest().clone()
    }
    fn is_empty(&self) -> bool {
        self.is_empty
    }
    fn sync_after_ms(&self) -> u64 {
        self.sync_after_ms
    }
    fn apply(&mut self, _: &BatchHead, body: &[u8]) -> Result<bool, String> {
        Records::new(body).try_for_each(|record| record.map(drop))?;
        Ok(true)
    }
    fn drops(&mut self, _: u64) -> Result<(), Error> {
        Ok(())
    }
    fn settled(&mut self) {}
}

fn replica(disk: &SimDisk) -> Result<FuzzReplica, Error> {
    let store =
        Store::open_with(Arc::new(disk.clone()), StoreOptions::default(), || Ok(Lineage([2; 16])))?;
    store.load(1, |_, _| Ok(()), |_| ())?;
    let (log, end) = store.replay_following(&mut |_, _| Ok(()), |_| ())?;
    Ok(FuzzReplica {
        is_empty: end.position.offset == 0 && store.manifest().files.is_empty(),
        sync_after_ms: 0,
        log,
        store,
    })
}

/// Returns a master whose log is partly covered by a snapshot.
fn master() -> (Store, Log) {
    let made = || -> Result<(Store, Log), Error> {
        let disk = Arc::new(SimDisk::new(1));
        let store = Store::open_with(disk, StoreOptions::default(), || Ok(Lineage([1; 16])))?;
        let (mut log, _) = store.replay(|_| Ok(()), |_| ())?;
        for round in 0..6u8 {
            let mut batch = Batch::new();
            batch.push(1, 1, &[round; 20]);
            log.append(&batch, 1_000)?;
            let durable = log.sync()?;
            match round {
                1 | 4 => log.roll(0)?,
                2 => {
                    let mut snapshot = store.begin_snapshot(durable);
                    let mut file =
                        snapshot.file(Tag { space: 1, kind: 1, low: 0, high: 9, stamp: 1 })?;
                    file.write(&[7; 300], 3)?;
                    snapshot.add(file.finish()?);
                    snapshot.commit(durable)?;
                }
                _ => {}
            }
        }
        Ok((store, log))
    };
    made().expect("this disk has no faults")
}

/// Tests messages and whole links.
pub fn link(input: &[u8]) {
    messages(input);
    let mut input = Input(input);
    let (store, log) = master();
    let disk = SimDisk::new(2);
    for _ in 0..1 + input.byte() % 3 {
        let Ok(mut here) = replica(&disk) else { return };
        here.sync_after_ms = u64::from(input.byte() % 2) * 50;
        let outcome = talk(&mut here, &store, &log, &mut input);
        drop(here);
        // Simulate a restart of the process and another link.
        if let Err(LinkError::Store(Error::Corrupt { .. })) = outcome {
            return;
        }
    }
}

fn talk(
    here: &mut FuzzReplica,
    store: &Store,
    log: &Log,
    input: &mut Input<'_>,
) -> Result<FollowerStep, LinkError> {
    let origin = LogSource { store, end: log.durable(), term: log.term() };
    let times = Timeouts { heartbeat_ms: 10, timeout_ms: 1_000 };
    let (mut sender, mut down, mut up) =
        (Sender::new(times, 1 << 20, 0), MessageStream::default(), MessageStream::default());
    let mut to_master = Vec::new();
    let mut follower =
        Follower::new(times, input.byte() % 2 == 1, ("::1", 1), here, &mut to_master, 0)?;
    for now_ms in (0..400).step_by(20) {
        let arrives = up.pass(&std::mem::take(&mut to_master), input);
        sender.receive(&arrives, &origin, now_ms)?;
        let mut to_replica = Vec::new();
        sender.fill(&mut to_replica, &origin, now_ms)?;
        let arrives = down.pass(&to_replica, input);
        let course = follower.receive(&arrives, here, &mut to_master, now_ms)?;
        if course != FollowerStep::On {
            return Ok(course);
        }
        if follower.is_verifying() {
            follower.look(here, &mut to_master)?;
        }
        let course = follower.settle(here, &mut to_master, now_ms)?;
        if course != FollowerStep::On {
            return Ok(course);
        }
        follower.check_timeout(now_ms)?;
        follower.tick(here, &mut to_master, now_ms)?;
    }
    Ok(FollowerStep::On)
}

/// Tests arbitrary message bodies. If a body is accepted, encoding the message again must give the
/// same bytes.
fn messages(body: &[u8]) {
    let (mut writer, mut bytes) = (MessageWriter::default(), Vec::new());
    if let Ok(message) = read_to_master(body) {
        writer.put_replica_message(&mut bytes, &message);
    } else if let Ok(message) = read_to_replica(body) {
        writer.put_master_message(&mut bytes, &message);
    } else {
        return;
    }
    let (mut reader, whole) = (MessageReader::default(), frame_head(Check::new().u64(0), body));
    assert_eq!(bytes, [&whole[..], body].concat());
    reader.feed(&bytes);
    assert_eq!(reader.next(crate::MAX_MESSAGE_BYTES), Ok(Some(body)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::Position;

    #[test]
    fn seeded_rounds_of_links() {
        for seed in 0..3_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let input: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..)).collect();
            let outcome = std::panic::catch_unwind(|| link(&input));
            assert!(outcome.is_ok(), "seed {seed}: {input:?}");
        }
    }

    #[test]
    fn seeded_rounds_of_messages() {
        for seed in 0..30_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let kinds = [1, 2, 3, 4, 5, 65, 66, 67, 68, 69, 70, 71, 72];
            let mut body: Vec<u8> = (0..random.usize(1..100))
                .map(|_| random.choice([0, 1, 7, 255, b'a']).unwrap_or(0))
                .collect();
            body[0] = random.choice(kinds).unwrap_or(1);
            messages(&body);
        }
    }

    /// After a power cut during the creation of the first segment, the folder contains an empty
    /// segment file. The log begins after this file.
    #[test]
    fn a_log_that_does_not_begin_with_its_oldest_file_is_fetched() {
        let disk = Arc::new(SimDisk::new(1));
        let store =
            Store::open_with(disk.clone(), StoreOptions::default(), || Ok(Lineage([1; 16])))
                .expect("a store");
        drop(disk.create("log-0000000000000001.tlog").expect("this disk has no faults"));
        let (mut log, _) = store.replay(|_| Ok(()), |_| ()).expect("the store is empty");
        let mut batch = Batch::new();
        batch.push(1, 1, &[7; 20]);
        log.append(&batch, 1_000).and_then(|_| log.sync()).expect("this disk has no faults");
        assert_eq!(store.oldest_segment().expect("a log"), Some(1));
        assert!(log.durable().segment > 1);
        let disk = SimDisk::new(2);
        let mut here = replica(&disk).expect("the disk is empty");
        let course = talk(&mut here, &store, &log, &mut Input(&[])).expect("the link is honest");
        assert_eq!(course, FollowerStep::Adopt);
    }

    /// A replica reads nothing until the pinned log exceeds its limit. The sender must release the
    /// pin although it cannot notify the replica.
    #[test]
    fn unread_full_sync_pins_no_more_log_than_the_limit() {
        let (store, log) = master();
        let disk = SimDisk::new(2);
        let mut here = replica(&disk).expect("the disk is empty");
        let times = Timeouts { heartbeat_ms: 10, timeout_ms: 1_000 };
        let (end, mut sender) = (log.durable(), Sender::new(times, 100, 0));
        let origin = LogSource { store: &store, end, term: log.term() };
        let (mut up, mut down) = (Vec::new(), Vec::new());
        let mut follower =
            Follower::new(times, false, ("", 1), &mut here, &mut up, 0).expect("a link");
        for _ in 0..2 {
            sender.receive(&std::mem::take(&mut up), &origin, 0).expect("the replica is honest");
            sender.fill(&mut down, &origin, 0).expect("the replica is honest");
            follower
                .receive(&std::mem::take(&mut down), &mut here, &mut up, 0)
                .expect("the master is honest");
        }
        let name = store.manifest().files[0].name.clone();
        let grown = |bytes| Position { offset: end.offset + bytes, ..end };
        sender.tick(grown(100));
        assert!(store.is_pinned(&name));
        sender.tick(grown(101));
        assert!(!store.is_pinned(&name));
        sender.check_timeout(999).expect("the peer spoke a moment ago");
        assert!(matches!(sender.check_timeout(1_000), Err(LinkError::Timeout(1_000))));
        // A busy node may not yet have read messages that have arrived.
        sender.fill(&mut down, &origin, 5_000).expect("a node that was stalled keeps its peers");
        follower.check_timeout(999).expect("the peer spoke a moment ago");
        assert!(matches!(follower.check_timeout(1_000), Err(LinkError::Timeout(1_000))));
        follower
            .tick(&mut here, &mut up, 5_000)
            .expect("a replica that was stalled keeps the link");
    }

    /// The log repeatedly exceeds the limit while the replica verifies files of an earlier link.
    /// The replica must not verify them again.
    #[test]
    fn verified_files_stay_verified_when_manifest_is_sent_again() {
        let (store, log) = master();
        let made = || -> Result<(), Error> {
            let mut snapshot = store.begin_snapshot(log.durable());
            let mut file = snapshot.file(Tag { space: 1, kind: 2, low: 0, high: 9, stamp: 1 })?;
            for _ in 0..8 {
                file.write(&[7; 300 << 10], 3)?;
            }
            snapshot.add(file.finish()?);
            snapshot.commit(log.durable())
        };
        made().expect("this disk has no faults");
        let (end, times) = (log.durable(), Timeouts::default());
        let origin = LogSource { store: &store, end, term: log.term() };
        let disk = SimDisk::new(2);
        let grown = Position { offset: end.offset + 101, ..end };
        for link in 0..2 {
            let mut here = replica(&disk).expect("a replica");
            let (mut up, mut sender) = (Vec::new(), Sender::new(times, 100, 0));
            let mut follower =
                Follower::new(times, false, ("", 1), &mut here, &mut up, 0).expect("a link");
            let mut exchange = |sender: &mut Sender, follower: &mut Follower| {
                let mut down = Vec::new();
                sender
                    .receive(&std::mem::take(&mut up), &origin, 0)
                    .expect("the replica is honest");
                sender.fill(&mut down, &origin, 0).expect("the replica is honest");
                follower.receive(&down, &mut here, &mut up, 0).expect("the master is honest");
                if follower.is_verifying() {
                    follower.look(&mut here, &mut up).expect("its own disk works");
                }
                // The first link transfers the files, and is closed before the sync is complete.
                if link == 0 {
                    FollowerStep::On
                } else {
                    follower.settle(&mut here, &mut up, 0).expect("its own disk works")
                }
            };
            if link == 0 {
                (0..100).for_each(|_| _ = exchange(&mut sender, &mut follower));
                continue;
            }
            // Verify all files.
            let mut looks = 0;
            while looks == 0 || follower.is_verifying() {
                exchange(&mut sender, &mut follower);
                looks += usize::from(follower.is_verifying());
                assert!(
                    follower.is_fetching().is_some_and(|bytes| bytes == 0),
                    "the staging verifies first"
                );
            }
            for _ in 0..3 {
                sender.tick(grown);
                exchange(&mut sender, &mut follower);
                exchange(&mut sender, &mut follower);
                assert!(follower.is_fetching().is_some() && !follower.is_verifying());
            }
            let mut courses = (0..10).map(|_| exchange(&mut sender, &mut follower));
            assert!(courses.any(|course| course == FollowerStep::Adopt));
        }
    }

    /// A link without the intermediary transfers everything.
    #[test]
    fn an_honest_link_ends_with_the_masters_data() {
        let (store, log) = master();
        let disk = SimDisk::new(2);
        let mut here = replica(&disk).expect("the disk is empty");
        let course = talk(&mut here, &store, &log, &mut Input(&[])).expect("the link is honest");
        assert_eq!(course, FollowerStep::Adopt);
        drop(here);
        let mut here = replica(&disk).expect("the data set is complete");
        assert_eq!(
            talk(&mut here, &store, &log, &mut Input(&[])).expect("the link is honest"),
            FollowerStep::On
        );
        assert_eq!(here.log.durable(), log.durable());
    }
}
