//! A thread that reads one source: all of its keys, and those that have changed.

use super::follow::Changes;
use super::layout::Layout;
use super::reader::{Rate, Read, Reader};
use super::source::Source;
use super::state::Place;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// Items of one message.
const ITEMS: usize = 1000;
/// Changed keys that are read together.
const CHANGED_KEYS: usize = 500;

/// What a reader tells.
pub(super) enum Told {
    /// So many keys there are; it begins here.
    Begins(u64, Place),
    /// What some keys hold.
    Read(Vec<Read>),
    /// All keys up to this place were told of.
    Scanned(Place, usize),
    /// All keys that had changed since then were told of.
    Followed(Instant),
    /// It has ended: at the end of all keys, or because it was stopped.
    Ended(io::Result<bool>),
}

/// See the top of the file.
pub(super) struct Reading {
    pub(super) number: usize,
    pub(super) source: Source,
    pub(super) layouts: Arc<Vec<Layout>>,
    pub(super) place: Place,
    pub(super) rate: Option<f64>,
    pub(super) changes: Option<Arc<Changes>>,
    pub(super) until_idle: Option<Duration>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) tell: SyncSender<(usize, Told)>,
}

/// The other side has ended: so does this one.
struct Gone;

impl Reading {
    pub(super) fn run(mut self) {
        if let Ok(outcome) = self.read() {
            let _ = self.tell(Told::Ended(outcome));
        }
    }

    fn tell(&self, told: Told) -> Result<(), Gone> {
        self.tell.send((self.number, told)).map_err(|_| Gone)
    }

    /// Whether it came to the end of all keys.
    fn read(&mut self) -> Result<io::Result<bool>, Gone> {
        let rate = self.rate.map(Rate::new);
        let begin = || {
            let mut reader = Reader::open(&self.source, self.layouts.clone(), rate)?;
            let about = reader.about()?;
            io::Result::Ok((reader, about))
        };
        let (mut reader, (keys, run_id)) = match begin() {
            Ok(begun) => begun,
            Err(error) => return Ok(Err(error)),
        };
        if self.place.run_id != run_id || run_id.is_empty() {
            let source = self.place.source.clone();
            self.place = Place { source, run_id, ..Place::default() };
        }
        self.tell(Told::Begins(keys, self.place.clone()))?;
        while !self.place.done {
            if self.stop.load(Relaxed) {
                return Ok(Ok(false));
            }
            // What has changed meanwhile is not kept waiting for the end of the scan.
            if let Err(error) = self.changed(&mut reader)? {
                return Ok(Err(error));
            }
            let mut sender = Sender { reading: self, reads: Vec::new(), items: 0, gone: false };
            let scanned = reader.scan(sender.reading.place.cursor, &mut |read| sender.push(read));
            sender.end()?;
            let (next, seen) = match scanned {
                Ok(scanned) => scanned,
                Err(error) => return Ok(Err(error)),
            };
            self.place.cursor = next;
            self.place.keys += seen as u64;
            self.place.done = next == 0;
            self.tell(Told::Scanned(self.place.clone(), seen))?;
        }
        let Some(changes) = self.changes.clone() else { return Ok(Ok(true)) };
        loop {
            match self.changed(&mut reader)? {
                Err(error) => return Ok(Err(error)),
                Ok(true) => continue,
                Ok(false) => {}
            }
            let is_idle = self.until_idle.is_some_and(|most| changes.idle() >= most);
            if is_idle || self.stop.load(Relaxed) {
                return Ok(Ok(true));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Reads some of the keys that have changed; whether there were any.
    fn changed(&self, reader: &mut Reader) -> Result<io::Result<bool>, Gone> {
        let Some(changes) = &self.changes else { return Ok(Ok(false)) };
        let (keys, since) = match changes.take(CHANGED_KEYS) {
            Ok(taken) => taken,
            Err(error) => return Ok(Err(error)),
        };
        let Some(since) = since else { return Ok(Ok(false)) };
        let mut sender = Sender { reading: self, reads: Vec::new(), items: 0, gone: false };
        let read = reader.read(keys.into_iter(), true, &mut |read| sender.push(read));
        sender.end()?;
        self.tell(Told::Followed(since))?;
        Ok(read.map(|()| true))
    }
}

/// Tells what was read in messages of some size.
struct Sender<'a> {
    reading: &'a Reading,
    reads: Vec<Read>,
    items: usize,
    gone: bool,
}

impl Sender<'_> {
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
