//! Thread that reads one source: first all keys, then changed keys.

use super::follow::{Changed, Changes};
use super::items::Read;
use super::layout::{Ids, Layout};
use super::missing::{Finder, Untold};
use super::reader::{Rate, Reader, Seen};
use super::source::Source;
use super::state::Place;
use crate::import::rows::{AllRows, Cursor, Row};
use node::client::connect::ConnectArgs;
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
const SETTING_EVERY: Duration = Duration::from_secs(5);
/// Pause between polls for changed keys.
const PAUSE: Duration = Duration::from_millis(10);

pub(super) enum Told {
    /// The scan begins: number of keys, and start position.
    Begins(u64, Place),
    Read(Vec<Read>),
    /// All keys before this position have been sent.
    Scanned(Place, Seen),
    /// All keys that had changed by this time have been sent.
    Followed(Instant),
    /// The reader has ended: `true` if it read all keys, `false` if it was stopped.
    Ended(io::Result<bool>),
}

/// State that all readers share to delete rows that are missing at the sources.
pub(super) struct Deletes {
    pub(super) connect: ConnectArgs,
    pub(super) sources: Vec<Source>,
    pub(super) untold: Mutex<Untold>,
    /// Number of readers that have not finished their scan.
    pub(super) scanning: AtomicUsize,
}

/// Ids whose rows a changed key may have removed, and the number of batches sent at that time.
struct Suspects {
    told: u64,
    space: String,
    ids: Ids,
}

pub(super) struct Reading {
    pub(super) number: usize,
    pub(super) sources: Vec<Source>,
    pub(super) layouts: Arc<Vec<Layout>>,
    pub(super) place: Place,
    pub(super) rate: Option<f64>,
    pub(super) changes: Option<Arc<Changes>>,
    pub(super) deletes: Option<Arc<Deletes>>,
    /// Whether to unset the members of a set before the set is copied.
    pub(super) renews: bool,
    /// Number of acknowledged batches of changed keys.
    pub(super) acknowledged: Arc<AtomicU64>,
    pub(super) until_idle: Option<Duration>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) tell: SyncSender<(usize, Told)>,
}

/// The receiver has ended, so the reader must end as well.
struct Gone;

struct Work {
    reading: Reading,
    reader: Reader,
    /// Connections to look for missing rows, opened on first use.
    finder: Option<Finder>,
    suspects: VecDeque<Suspects>,
    /// Number of batches of changed keys sent so far.
    told: u64,
}

impl Reading {
    pub(super) fn run(self) {
        let (number, tell) = (self.number, self.tell.clone());
        if let Ok(outcome) = self.read() {
            let _ = tell.send((number, Told::Ended(outcome)));
        }
    }

    fn tell(&self, told: Told) -> Result<(), Gone> {
        self.tell.send((self.number, told)).map_err(|_| Gone)
    }

    /// Returns whether the reader read all keys.
    fn read(mut self) -> Result<io::Result<bool>, Gone> {
        let rate = self.rate.map(Rate::new);
        let begin = || {
            let layouts = self.layouts.clone();
            let mut reader = Reader::open(&self.sources, self.number, layouts, rate, self.renews)?;
            let about = reader.about()?;
            io::Result::Ok((reader, about))
        };
        let (reader, (keys, run_id)) = match begin() {
            Ok(begun) => begun,
            Err(error) => return Ok(Err(error)),
        };
        if self.place.run_id != run_id || run_id.is_empty() {
            let source = self.place.source.clone();
            self.place = Place { source, run_id, ..Place::default() };
        }
        self.tell(Told::Begins(keys, self.place.clone()))?;
        let suspects = VecDeque::new();
        Work { reading: self, reader, finder: None, suspects, told: 0 }.run()
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

impl Work {
    fn run(&mut self) -> Result<io::Result<bool>, Gone> {
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
            if asked.elapsed() >= SETTING_EVERY {
                asked = Instant::now();
                whole!(self.reader.check_setting());
            }
            if whole!(self.changed()?) {
                continue;
            }
            let is_idle = self.reading.until_idle.is_some_and(|most| changes.idle() >= most);
            // If another source was stopped during its scan, discard the suspects.
            let is_scanning = |deletes: &Arc<Deletes>| deletes.scanning.load(Relaxed) > 0;
            let is_done =
                self.suspects.is_empty() || self.reading.deletes.as_ref().is_some_and(is_scanning);
            if (is_idle || self.is_stopped()) && is_done {
                whole!(self.reader.check_setting());
                return Ok(Ok(true));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn is_stopped(&self) -> bool {
        self.reading.stop.load(Relaxed)
    }

    fn scan(&mut self) -> Result<io::Result<()>, Gone> {
        let Work { reading, reader, .. } = self;
        let mut sender = Sender::new(reading);
        let scanned = reader.scan(reading.place.cursor, &mut |read| {
            if let Some(deletes) = &reading.deletes {
                deletes.untold.lock().note(&reading.layouts, &read);
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
        reading.tell(Told::Scanned(place, seen))?;
        Ok(Ok(()))
    }

    /// Reads a batch of changed keys, or checks a suspect. Returns whether there was work.
    fn changed(&mut self) -> Result<io::Result<bool>, Gone> {
        if whole!(self.read_changed()?) { Ok(Ok(true)) } else { self.look_for_suspects() }
    }

    /// Reads a batch of changed keys and records suspects. Returns whether there was a batch.
    fn read_changed(&mut self) -> Result<io::Result<bool>, Gone> {
        let Some(changes) = &self.reading.changes else { return Ok(Ok(false)) };
        let (mut keys, since) = whole!(changes.take(CHANGED_KEYS));
        let Some(since) = since else { return Ok(Ok(false)) };
        if self.reading.deletes.is_none() {
            keys.iter_mut().for_each(|changed| changed.removed = false);
        }
        self.told += 1;
        for Changed { key, .. } in keys.iter().filter(|changed| changed.removed) {
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
        let mut sender = Sender::new(&self.reading);
        let keys = keys.into_iter();
        let read = self.reader.read(keys, true, &mut |_| {}, &mut |read| sender.push(read));
        sender.end()?;
        whole!(read);
        self.reading.tell(Told::Followed(since))?;
        Ok(Ok(true))
    }

    /// Checks the oldest suspect if its batch of changed keys has been acknowledged. Returns
    /// whether it checked one.
    fn look_for_suspects(&mut self) -> Result<io::Result<bool>, Gone> {
        let acknowledged = self.reading.acknowledged.load(Relaxed);
        let is_ripe = self.suspects.front().is_some_and(|some| some.told <= acknowledged);
        let (true, Some(deletes)) = (is_ripe, self.reading.deletes.clone()) else {
            return Ok(Ok(false));
        };
        // The ids whose keys do not follow from the id are known only after all scans.
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

    fn finder(&mut self, deletes: &Deletes) -> io::Result<&mut Finder> {
        if self.finder.is_none() {
            let (ours, spaces) = AllRows::open(&deletes.connect)?;
            let (layouts, rate) = (self.reading.layouts.clone(), self.reading.rate.map(Rate::new));
            self.finder = Some(Finder::open(ours, &deletes.sources, layouts, spaces.fields, rate)?);
        }
        self.finder.as_mut().ok_or_else(|| io::Error::other("no finder"))
    }

    /// Reports all rows that are missing at the sources. Returns false if the reader was stopped.
    fn delete_missing(&mut self, deletes: &Deletes) -> Result<io::Result<bool>, Gone> {
        while deletes.scanning.load(Relaxed) > 0 {
            if self.is_stopped() {
                return Ok(Ok(false));
            }
            whole!(self.changed()?);
            std::thread::sleep(PAUSE);
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
        deletes: &Deletes,
        space: &str,
        may_stop: bool,
    ) -> Result<io::Result<bool>, Gone> {
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
        deletes: &Deletes,
        space: &str,
        rows: &[Row],
    ) -> Result<io::Result<()>, Gone> {
        let finder = whole!(self.finder(deletes));
        let untold = deletes.untold.lock();
        let missing = whole!(finder.missing(space, rows, &untold));
        let reads = whole!(finder.reads(missing, &untold));
        drop(untold);
        let mut sender = Sender::new(&self.reading);
        reads.into_iter().for_each(|read| sender.push(read));
        sender.end()?;
        Ok(Ok(()))
    }
}

struct Sender<'a> {
    reading: &'a Reading,
    reads: Vec<Read>,
    items: usize,
    gone: bool,
}

impl<'a> Sender<'a> {
    fn new(reading: &'a Reading) -> Sender<'a> {
        Sender { reading, reads: Vec::new(), items: 0, gone: false }
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
        self.gone |= self.reading.tell(Told::Read(reads)).is_err();
    }

    fn end(mut self) -> Result<(), Gone> {
        if !self.reads.is_empty() {
            self.send();
        }
        if self.gone { Err(Gone) } else { Ok(()) }
    }
}
