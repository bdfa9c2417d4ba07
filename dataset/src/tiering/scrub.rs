//! The scrubber reads all cold files at a limited rate and verifies their checksums. It detects
//! damage while a replica or a backup still has the data.
//!
//! The spill thread runs it. Between two steps of other work it reads one piece of a file,
//! bypassing the page cache. Spills and merges delay the scrubber, and it does not catch up
//! afterwards.
//!
//! A pass reads the files that exist at its start. A new pass starts every week. A restart of the
//! server begins a new pass.

use crate::cold::{Cold, DAMAGE_CONSEQUENCE};
use crate::engines::Engines;
use crate::live::Live;
use crate::log_records::RecordKind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use store::{Damage, FileEntry, Scrub, Store, time};

/// Time between the starts of two passes.
const PASS_INTERVAL: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of times that a piece is deferred while requests wait for the disk, each time by
/// the duration of a piece.
const MAX_DEFERRALS: u32 = 3;

#[derive(Default)]
struct ScrubPace {
    due: Option<Instant>,
    /// Duration of the last piece at the configured rate.
    piece: Duration,
    deferred: u32,
}

impl ScrubPace {
    /// Time to wait before the next piece; zero if it may be read now. `is_awaited`: whether
    /// requests wait for the disk.
    fn wait(&mut self, now: Instant, is_awaited: bool) -> Duration {
        let left = self.due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
        if !left.is_zero() {
            return left;
        }
        if is_awaited && self.deferred < MAX_DEFERRALS {
            self.deferred += 1;
            self.due = Some(now + self.piece);
            return self.piece;
        }
        self.deferred = 0;
        Duration::ZERO
    }

    /// Schedules the next piece after `bytes` bytes read since `began`, at `rate` bytes per second.
    fn read(&mut self, began: Instant, bytes: u64, rate: u64) {
        self.piece = Duration::from_secs_f64(bytes as f64 / rate as f64);
        self.due = Some(began + self.piece);
    }
}

struct ScrubPass {
    /// Files to read, in reverse order.
    files: Vec<FileEntry>,
    /// Current file, and whether it is damaged so far.
    now: Option<(FileEntry, Scrub, bool)>,
    left_bytes: u64,
}

#[derive(Default)]
pub(super) struct Scrubber {
    /// Data set of the current pass. A full sync replaces the data set.
    of: Weak<Cold>,
    pace: ScrubPace,
    /// Rate of the last piece, in bytes per second.
    rate: u64,
    pass: Option<ScrubPass>,
    began: Option<Instant>,
}

impl Scrubber {
    /// Reads a piece if one is due. Returns the time until the next piece.
    pub(super) fn step(&mut self, live: &Live<'_>) -> Duration {
        let cold = live.current.load().cold.clone();
        let rate = live.scrub_bytes_per_s;
        if rate == 0 || self.of.as_ptr() != Arc::as_ptr(&cold) {
            *self = Scrubber { of: Arc::downgrade(&cold), ..Scrubber::default() };
            cold.figures.scrub_left_bytes.store(0, Relaxed);
        }
        if rate == 0 || !cold.any() {
            return Duration::MAX;
        }
        if rate != self.rate {
            // Reset the schedule: after a piece at one byte per second the next piece would be due
            // only after a day.
            (self.rate, self.pace) = (rate, ScrubPace::default());
        }
        let now = time::now();
        let wait = self.pace.wait(now, cold.is_awaited());
        if !wait.is_zero() {
            return wait;
        }
        if self.pass.is_none() {
            let due = self.began.map(|began| began + PASS_INTERVAL);
            let left = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
            if !left.is_zero() {
                return left;
            }
            self.pass = ScrubPass::begin(live.store);
            self.began = self.pass.as_ref().map(|_| now);
        }
        let Some(pass) = &mut self.pass else { return Duration::MAX };
        let bytes = pass.step(live, &cold);
        cold.figures.scrubbed_bytes.fetch_add(bytes, Relaxed);
        cold.figures.scrub_left_bytes.store(pass.left_bytes, Relaxed);
        if pass.now.is_none() && pass.files.is_empty() {
            self.pass = None;
            cold.figures.scrub_passes.fetch_add(1, Relaxed);
            cold.figures.scrub_last_s.store(time::unix_us() / 1_000_000, Relaxed);
        }
        self.pace.read(now, bytes, rate);
        self.pace.piece
    }
}

impl ScrubPass {
    fn begin(store: &Store) -> Option<ScrubPass> {
        let mut files = store.cold_files();
        files.sort_by(|a, b| b.name.cmp(&a.name));
        let left_bytes = files.iter().map(|file| file.bytes).sum();
        (!files.is_empty()).then_some(ScrubPass { files, now: None, left_bytes })
    }

    fn step(&mut self, live: &Live<'_>, cold: &Cold) -> u64 {
        let is_named = |file: &FileEntry| live.store.manifest().file(&file.name).is_some();
        let Some((file, mut scrub, was_damaged)) =
            self.now.take().or_else(|| self.open(live, cold))
        else {
            return 0;
        };
        let mut found = Vec::new();
        let bytes = scrub.step(&mut found);
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        // Do not report damage in a file that was removed during the read.
        let is_damaged = was_damaged || !found.is_empty();
        if !found.is_empty() && is_named(&file) {
            report(&live.current.load(), &file, &found);
        }
        match bytes {
            0 if !is_damaged => cold.damaged.clear_damage(&file.name),
            0 => {}
            _ => self.now = Some((file, scrub, is_damaged)),
        }
        bytes
    }

    /// Opens the next file that still exists. Reports and skips files that cannot be opened.
    fn open(&mut self, live: &Live<'_>, cold: &Cold) -> Option<(FileEntry, Scrub, bool)> {
        while let Some(file) = self.files.pop() {
            if live.store.manifest().file(&file.name).is_none() {
                self.left_bytes = self.left_bytes.saturating_sub(file.bytes);
                continue;
            }
            match live.store.scrub(&file) {
                Ok(scrub) => return Some((file, scrub, false)),
                Err(error @ store::Error::Corrupt { offset, .. }) => {
                    report(
                        &live.current.load(),
                        &file,
                        &[Damage { offset, is_block: false, error }],
                    );
                }
                Err(error) => {
                    cold.figures.errors.fetch_add(1, Relaxed);
                    tracing::error!("{error}: skipped by this scrub. {}", error.advice());
                }
            }
            self.left_bytes = self.left_bytes.saturating_sub(file.bytes);
        }
        None
    }
}

/// Records damaged blocks, logs newly found blocks, and excludes the file's range from merges.
fn report(engines: &Engines, file: &FileEntry, found: &[Damage]) {
    let cold = &engines.cold;
    let is_new = |damage: &&Damage| cold.damaged.note(&file.name, damage.offset);
    let new: Vec<&Damage> = found.iter().filter(is_new).collect();
    if let Some(Damage { is_block, error, .. }) = new.first() {
        let count = |is_meant: fn(&store::Error) -> bool| {
            new.iter().filter(|damage| is_meant(&damage.error)).count() as u64
        };
        let is_corrupt = |error: &store::Error| matches!(error, store::Error::Corrupt { .. });
        let corrupt = count(is_corrupt);
        cold.figures.corrupt.fetch_add(corrupt, Relaxed);
        cold.figures.errors.fetch_add(new.len() as u64 - corrupt, Relaxed);
        let others = match new.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more blocks after it"),
        };
        let what = match is_block {
            true => DAMAGE_CONSEQUENCE,
            false => {
                "The server keeps running with its copy in memory, but would refuse to start again."
            }
        };
        tracing::error!("scrubbing: {error}{others}. {what} {}", error.advice());
    }
    let (tag, kind) = (&file.tag, file.tag.kind);
    if kind == RecordKind::Rows as u32 {
        let space = engines.counter_by_number(tag.space);
        space.inspect(|s| s.cold().damaged.add(tag.low, tag.high));
    } else if kind == RecordKind::Table as u32 {
        // The quarantine identifies a table of pairs by its lowest id. Ledgers skip damaged ranges
        // themselves.
        let space = engines.existence_by_number(tag.space);
        space.inspect(|s| s.cold().damaged.add(tag.low, tag.low));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures the bytes read in ten simulated seconds: without requests, with requests that
    /// always wait, and with a busy spill thread.
    #[test]
    fn scrub_runs_at_a_quarter_of_its_rate_while_requests_wait() {
        const PIECE: u64 = 1 << 17;
        const RATE: u64 = 1 << 20;
        let began = Instant::now();
        let read_in = |seconds: u64, is_awaited: bool, busy: Duration| {
            let (mut pace, mut now, mut bytes) = (ScrubPace::default(), began, 0);
            while now < began + Duration::from_secs(seconds) {
                match pace.wait(now, is_awaited) {
                    Duration::ZERO => {
                        pace.read(now, PIECE, RATE);
                        bytes += PIECE;
                        // The read itself takes 7 ms, which count towards the duration of the
                        // piece.
                        now += Duration::from_millis(7) + busy;
                    }
                    wait => now += wait,
                }
            }
            bytes
        };
        assert_eq!(read_in(10, false, Duration::ZERO), 10 * RATE);
        // The first piece has no duration yet, so it is not deferred.
        let beside_requests = read_in(10, true, Duration::ZERO);
        assert!((0..=PIECE).contains(&(beside_requests - 10 * RATE / 4)), "{beside_requests}");
        // The scrubber does not make up for the two seconds that a merge takes.
        assert_eq!(read_in(10, false, Duration::from_secs(2)), 5 * PIECE);
        // A new rate applies from the next piece.
        let mut pace = ScrubPace::default();
        pace.read(began, PIECE, RATE / 2);
        assert_eq!(pace.wait(began, false), Duration::from_millis(250));
        assert_eq!(pace.wait(began + Duration::from_millis(250), false), Duration::ZERO);
    }
}
