//! The thread that reads one source: first all keys, then changed keys.

use super::follow::{ChangeQueue, ChangedKey};
use super::items::Read;
use super::layout::{Ids, Layout};
use super::missing::{AmbiguousIds, Finder};
use super::reader::{KeyReader, RateLimiter, ScanStats};
use super::source::RedisSource;
use super::state::ScanPosition;
use crate::import::rows::{AllRows, Cursor, Row};
use client::ConnectArgs;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

const ITEMS: usize = 1000;
const CHANGED_KEYS: usize = 500;
/// Number of ids that one check for missing rows covers.
const IDS: u64 = 1000;
/// Interval between checks that the source still sends notifications.
const SETTING_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Pause between polls for changed keys.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(super) enum ReaderMessage {
    /// The scan begins: number of keys, and start position.
    Started(u64, ScanPosition),
    Read(Vec<Read>),
    /// All keys before this position have been sent.
    ScanStepDone(ScanPosition, ScanStats),
    /// All keys that had changed by this time have been sent.
    ChangesRead(Instant),
    /// The reader has ended: `true` if it read all keys, `false` if it was stopped.
    Ended(io::Result<bool>),
}

/// State shared by all readers, used to delete rows that are missing in the sources.
pub(super) struct MissingRowDeletes {
    pub(super) connect: ConnectArgs,
    pub(super) sources: Vec<RedisSource>,
    pub(super) ambiguous_ids: Mutex<AmbiguousIds>,
    /// Number of readers that have not finished their scan.
    pub(super) scanning: AtomicUsize,
}

/// Ids whose rows may have been removed by the change of a key, and the number of batches sent at
/// that time.
struct Suspects {
    told: u64,
    space: String,
    ids: Ids,
}

pub(super) struct ReaderParams {
    pub(super) number: usize,
    pub(super) sources: Vec<RedisSource>,
    pub(super) layouts: Arc<Vec<Layout>>,
    pub(super) place: ScanPosition,
    pub(super) rate: Option<f64>,
    pub(super) changes: Option<Arc<ChangeQueue>>,
    pub(super) deletes: Option<Arc<MissingRowDeletes>>,
    /// Whether to unset the members of a set before the set is copied.
    pub(super) renews: bool,
    /// Number of acknowledged batches of changed keys.
    pub(super) acknowledged: Arc<AtomicU64>,
    pub(super) until_idle: Option<Duration>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) tell: SyncSender<(usize, ReaderMessage)>,
}

/// The receiver has ended, so the reader must end as well.
struct ReceiverGone;

struct ReaderThread {
    reading: ReaderParams,
    reader: KeyReader,
    /// Connections for finding missing rows, opened on first use.
    finder: Option<Finder>,
    suspects: VecDeque<Suspects>,
    /// Number of batches of changed keys sent so far.
    told: u64,
}

impl ReaderParams {
    pub(super) fn run(self) {
        let (number, tell) = (self.number, self.tell.clone());
        if let Ok(outcome) = self.read() {
            let _ = tell.send((number, ReaderMessage::Ended(outcome)));
        }
    }

    fn tell(&self, told: ReaderMessage) -> Result<(), ReceiverGone> {
        self.tell.send((self.number, told)).map_err(|_| ReceiverGone)
    }

    /// Returns whether the reader read all keys.
    fn read(mut self) -> Result<io::Result<bool>, ReceiverGone> {
        let rate = self.rate.map(RateLimiter::new);
        let begin = || {
            let layouts = self.layouts.clone();
            let mut reader =
                KeyReader::open(&self.sources, self.number, layouts, rate, self.renews)?;
            let source_info = reader.source_info()?;
            io::Result::Ok((reader, source_info))
        };
        let (reader, (keys, run_id)) = match begin() {
            Ok(begun) => begun,
            Err(error) => return Ok(Err(error)),
        };
        if self.place.run_id != run_id || run_id.is_empty() {
            let source = self.place.source.clone();
            self.place = ScanPosition { source, run_id, ..ScanPosition::default() };
        }
        self.tell(ReaderMessage::Started(keys, self.place.clone()))?;
        let suspects = VecDeque::new();
        ReaderThread { reading: self, reader, finder: None, suspects, told: 0 }.run()
    }
}

/// Returns from the function with the connection's error; the caller reports it.
macro_rules! whole {
    ($outcome:expr) => {
        match $outcome {
            Ok(value) => value,
            Err(error) => return Ok(Err(error)),
        }
    };
}

impl ReaderThread {
    fn run(&mut self) -> Result<io::Result<bool>, ReceiverGone> {
        while !self.reading.place.done {
            if self.is_stopped() {
                return Ok(Ok(false));
            }
            // Read changed keys between steps, so that they do not wait for the end of the scan.
            whole!(self.changed()?);
            whole!(self.scan()?);
        }
        if let Some(deletes) = self.reading.deletes.clone() {
            deletes.scanning.fetch_sub(1, Relaxed);
            // Only the first reader searches for rows that all sources lack.
            if self.reading.number == 0 && !whole!(self.delete_missing(&deletes)?) {
                return Ok(Ok(false));
            }
        }
        let Some(changes) = self.reading.changes.clone() else { return Ok(Ok(true)) };
        let mut asked = Instant::now();
        loop {
            if asked.elapsed() >= SETTING_CHECK_INTERVAL {
                asked = Instant::now();
                whole!(self.reader.check_setting());
            }
            if whole!(self.changed()?) {
                continue;
            }
            let is_idle = self.reading.until_idle.is_some_and(|most| changes.idle() >= most);
            // If the reader of another source was stopped during its scan, discard the suspects.
            let is_scanning = |deletes: &Arc<MissingRowDeletes>| deletes.scanning.load(Relaxed) > 0;
            let is_done =
                self.suspects.is_empty() || self.reading.deletes.as_ref().is_some_and(is_scanning);
            if (is_idle || self.is_stopped()) && is_done {
                whole!(self.reader.check_setting());
                return Ok(Ok(true));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn is_stopped(&self) -> bool {
        self.reading.stop.load(Relaxed)
    }

    fn scan(&mut self) -> Result<io::Result<()>, ReceiverGone> {
        let ReaderThread { reading, reader, .. } = self;
        let mut sender = BatchSender::new(reading);
        let scanned = reader.scan(reading.place.cursor, &mut |read| {
            if let Some(deletes) = &reading.deletes {
                deletes.ambiguous_ids.lock().note(&reading.layouts, &read);
            }
            sender.push(read);
        });
        sender.end()?;
        let (next, seen) = whole!(scanned);
        let place = &mut reading.place;
        place.cursor = next;
        place.keys += seen.keys;
        place.done = next == 0;
        let place = place.clone();
        reading.tell(ReaderMessage::ScanStepDone(place, seen))?;
        Ok(Ok(()))
    }

    /// Reads a batch of changed keys, or checks a suspect. Returns whether there was work.
    fn changed(&mut self) -> Result<io::Result<bool>, ReceiverGone> {
        if whole!(self.read_changed()?) { Ok(Ok(true)) } else { self.check_oldest_suspect() }
    }

    /// Reads a batch of changed keys and records suspects. Returns whether there was a batch.
    fn read_changed(&mut self) -> Result<io::Result<bool>, ReceiverGone> {
        let Some(changes) = &self.reading.changes else { return Ok(Ok(false)) };
        let (mut keys, since) = whole!(changes.take(CHANGED_KEYS));
        let Some(since) = since else { return Ok(Ok(false)) };
        if self.reading.deletes.is_none() {
            keys.iter_mut().for_each(|changed| changed.removed = false);
        }
        self.told += 1;
        for ChangedKey { key, .. } in keys.iter().filter(|changed| changed.removed) {
            for layout in self.reading.layouts.iter() {
                let Some(ids) = layout.ids(key) else { continue };
                let space = layout.space.clone();
                if ids == Ids::Any {
                    // One pass over the space covers all earlier suspects of that kind.
                    self.suspects.retain(|other| other.ids != ids || other.space != space);
                }
                self.suspects.push_back(Suspects { told: self.told, space, ids });
            }
        }
        let mut sender = BatchSender::new(&self.reading);
        let keys = keys.into_iter();
        let read = self.reader.read(keys, true, &mut |_| {}, &mut |read| sender.push(read));
        sender.end()?;
        whole!(read);
        self.reading.tell(ReaderMessage::ChangesRead(since))?;
        Ok(Ok(true))
    }

    /// Checks the oldest suspect if its batch of changed keys has been acknowledged. Returns
    /// whether it checked a suspect.
    fn check_oldest_suspect(&mut self) -> Result<io::Result<bool>, ReceiverGone> {
        let acknowledged = self.reading.acknowledged.load(Relaxed);
        let is_ripe = self.suspects.front().is_some_and(|some| some.told <= acknowledged);
        let (true, Some(deletes)) = (is_ripe, self.reading.deletes.clone()) else {
            return Ok(Ok(false));
        };
        // Ids whose keys cannot be derived from the id are known only after all scans have ended.
        if deletes.scanning.load(Relaxed) > 0 {
            return Ok(Ok(false));
        }
        let Some(Suspects { space, ids, .. }) = self.suspects.pop_front() else {
            return Ok(Ok(false));
        };
        let (mut first, last) = match ids {
            Ids::Between(first, last) => (first, last),
            Ids::Any => {
                whole!(self.delete_of(&deletes, &space, false)?);
                return Ok(Ok(true));
            }
        };
        loop {
            let end = last.min(first.saturating_add(IDS - 1));
            let ids: Vec<u64> = (first..=end).collect();
            let finder = whole!(self.finder(&deletes));
            let rows = whole!(finder.ours().get(&space, &ids));
            whole!(self.delete(&deletes, &space, &rows)?);
            if end == last {
                return Ok(Ok(true));
            }
            first = end + 1;
        }
    }

    fn finder(&mut self, deletes: &MissingRowDeletes) -> io::Result<&mut Finder> {
        if self.finder.is_none() {
            let (ours, spaces) = AllRows::open(&deletes.connect)?;
            let (layouts, rate) =
                (self.reading.layouts.clone(), self.reading.rate.map(RateLimiter::new));
            self.finder = Some(Finder::open(ours, &deletes.sources, layouts, spaces.fields, rate)?);
        }
        self.finder.as_mut().ok_or_else(|| io::Error::other("no finder"))
    }

    /// Reports all rows that are missing in the sources. Returns false if the reader was stopped.
    fn delete_missing(
        &mut self,
        deletes: &MissingRowDeletes,
    ) -> Result<io::Result<bool>, ReceiverGone> {
        while deletes.scanning.load(Relaxed) > 0 {
            if self.is_stopped() {
                return Ok(Ok(false));
            }
            whole!(self.changed()?);
            std::thread::sleep(POLL_INTERVAL);
        }
        for space in whole!(self.finder(deletes)).spaces() {
            if !whole!(self.delete_of(deletes, &space, true)?) {
                return Ok(Ok(false));
            }
        }
        Ok(Ok(true))
    }

    fn delete_of(
        &mut self,
        deletes: &MissingRowDeletes,
        space: &str,
        may_stop: bool,
    ) -> Result<io::Result<bool>, ReceiverGone> {
        let mut cursor = Some(Cursor::default());
        while let Some(at) = cursor {
            if may_stop && self.is_stopped() {
                return Ok(Ok(false));
            }
            whole!(self.read_changed()?);
            let (rows, next) = whole!(whole!(self.finder(deletes)).ours().page(space, at));
            whole!(self.delete(deletes, space, &rows)?);
            cursor = next;
        }
        whole!(whole!(self.finder(deletes)).ours().check_slots());
        Ok(Ok(true))
    }

    fn delete(
        &mut self,
        deletes: &MissingRowDeletes,
        space: &str,
        rows: &[Row],
    ) -> Result<io::Result<()>, ReceiverGone> {
        let finder = whole!(self.finder(deletes));
        let ambiguous_ids = deletes.ambiguous_ids.lock();
        let missing = whole!(finder.missing(space, rows, &ambiguous_ids));
        let reads = whole!(finder.reads(missing, &ambiguous_ids));
        drop(ambiguous_ids);
        let mut sender = BatchSender::new(&self.reading);
        reads.into_iter().for_each(|read| sender.push(read));
        sender.end()?;
        Ok(Ok(()))
    }
}

struct BatchSender<'a> {
    reading: &'a ReaderParams,
    reads: Vec<Read>,
    items: usize,
    gone: bool,
}

impl<'a> BatchSender<'a> {
    fn new(reading: &'a ReaderParams) -> BatchSender<'a> {
        BatchSender { reading, reads: Vec::new(), items: 0, gone: false }
    }

    fn push(&mut self, read: Read) {
        self.items += 1 + read.items.len();
        self.reads.push(read);
        if self.items >= ITEMS {
            self.send();
        }
    }

    fn send(&mut self) {
        self.items = 0;
        let reads = std::mem::take(&mut self.reads);
        self.gone |= self.reading.tell(ReaderMessage::Read(reads)).is_err();
    }

    fn end(mut self) -> Result<(), ReceiverGone> {
        if !self.reads.is_empty() {
            self.send();
        }
        if self.gone { Err(ReceiverGone) } else { Ok(()) }
    }
}
