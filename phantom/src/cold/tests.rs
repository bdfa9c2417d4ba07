use super::*;
use crate::codec::{CHECKSUM_BYTES, Header};
use crate::filter::Filter;
use crate::{Answer, Chain, ColdBackend, Member, Options, TableDecoder, Unreadable};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use xxhash_rust::xxh3::xxh3_64;

mod restarts;

/// Simulated disk: the stored tables by lowest id.
#[derive(Default)]
pub(crate) struct Shelf {
    tables: Mutex<BTreeMap<u64, Arc<Stored>>>,
    last: AtomicU64,
}

struct Stored {
    identity: u64,
    pages: Vec<[u8; PAGE_BYTES]>,
    note: Vec<u8>,
    chain: Arc<Chain>,
    reads: AtomicU64,
    spoiled: AtomicBool,
}

impl ColdBackend for Stored {
    fn has(&self, pair: &Pair) -> Result<bool, Unreadable> {
        if self.spoiled.load(Relaxed) {
            return Err(Unreadable { id: pair.id, why: "spoiled".into() });
        }
        let mut places = self.chain.places(pair).enumerate();
        Ok(places.any(|(filter, page)| {
            self.reads.fetch_add(1, Relaxed);
            self.chain.has(filter, pair, &self.pages[page])
        }))
    }

    fn read(&self, first: usize, pages: &mut [u8]) -> Result<(), Unreadable> {
        if self.spoiled.load(Relaxed) {
            return Err(Unreadable { id: 0, why: "spoiled".into() });
        }
        self.reads.fetch_add(1, Relaxed);
        let there = &self.pages.as_flattened()[first * PAGE_BYTES..];
        pages.copy_from_slice(&there[..pages.len()]);
        Ok(())
    }

    fn identity(&self) -> u64 {
        self.identity
    }
}

impl Shelf {
    /// Spills or merges the table at `low`. Calls `midway` after half of the pages are written.
    pub(crate) fn write(&self, space: &Space, low: u64, midway: impl FnOnce()) {
        let rewrite = space.begin_rewrite(low).unwrap().unwrap();
        self.take(space, rewrite, midway);
    }

    pub(crate) fn take(&self, space: &Space, mut rewrite: Rewrite, midway: impl FnOnce()) {
        let low = rewrite.range().0;
        let old = self.tables.lock().get(&low).cloned();
        assert_eq!(rewrite.is_spill(), old.is_none());
        let (mut pages, mut page, mut midway) = (vec![], [0; PAGE_BYTES], Some(midway));
        while rewrite
            .next(&mut page, |at, page| {
                page.copy_from_slice(&old.as_ref().unwrap().pages[at]);
                Ok::<(), Unreadable>(())
            })
            .unwrap()
        {
            pages.push(page);
            if pages.len() * 2 >= rewrite.pages()
                && let Some(midway) = midway.take()
            {
                midway();
            }
        }
        let note = rewrite.note();
        let identity = 1 + self.last.fetch_add(1, Relaxed);
        let chain = Note::decode(space.options(), &note).unwrap().chain().clone();
        assert_eq!(chain.pages(), pages.len());
        let stored = Arc::new(Stored {
            identity,
            pages,
            note,
            chain,
            reads: AtomicU64::new(0),
            spoiled: AtomicBool::new(false),
        });
        space.end_rewrite(rewrite, stored.clone());
        self.tables.lock().insert(low, stored);
    }

    /// Returns the space after a restart from the stored tables and a snapshot.
    pub(crate) fn restored(&self, space: &Space) -> Space {
        let head = space.encode_head();
        let (mut tables, mut late) = (vec![], HashMap::new());
        for (low, _) in space.ranges_in_memory() {
            let mut decoder = TableDecoder::new(space.options(), u64::MAX);
            assert!(space.encode_table(low, |bytes| decoder.feed(bytes)).unwrap());
            tables.push(decoder.finish().unwrap());
        }
        space.encode_late(|bytes| LatePairs::take(&mut late, bytes)).unwrap();
        for stored in self.tables.lock().values() {
            let note = Note::decode(space.options(), &stored.note).unwrap();
            let low = note.range().0;
            tables.retain(|table| table.range().0 != low);
            tables.push(note.table(stored.clone(), late.get(&low), false).unwrap());
        }
        let layout = space.layout();
        let restored = Space::restore(space.options().clone(), &head, &layout, tables).unwrap();
        restored.put_late(&late).unwrap();
        restored.lead();
        restored
    }
}

fn options(rate: f64) -> Options {
    Options {
        false_positive_rate: rate,
        pairs_per_table: 8000,
        max_tables: 3,
        seed: 5,
        spill: true,
        ..Options::default()
    }
}

fn member(n: u64) -> Member<'static> {
    Member::Number(n)
}

/// Returns a space with one closed table: `n` consecutive ids starting at 100, with one viewer
/// each.
fn filled(rate: f64, n: u64) -> Space {
    filled_as(options(rate), n)
}

fn filled_as(options: Options, n: u64) -> Space {
    let space = Space::new(options).unwrap();
    (0..n).for_each(|n| assert_ne!(space.add(100 + n, &member(n)).unwrap(), Change::Unknown));
    while space.maintain() {}
    assert!(space.roll_now());
    space
}

type Truth = HashMap<(u64, u64), bool>;

fn verify(space: &Space, truth: &Truth, what: &str) {
    for (&(id, viewer), &set) in truth {
        let wanted = if set { Answer::Yes } else { Answer::No };
        assert_eq!(space.contains(id, &member(viewer)).unwrap(), wanted, "{what}: {id} {viewer}");
    }
    let pairs: Vec<_> = truth.iter().take(500).collect();
    for ((id, viewer), set) in pairs {
        let mut out = vec![];
        space.contains_batch(&member(*viewer), &[*id, id + 1, *id], &mut out).unwrap();
        assert_eq!(
            (out[0] == Answer::Yes, out[2] == Answer::Yes),
            (*set, *set),
            "{what}: a page of {id}"
        );
    }
}

/// Checks that cold tables lose no pair (P1) and meet the false-positive rate (P2), through late
/// pairs, deletions, merges and restarts.
#[test]
fn pairs_of_tables_elsewhere_are_found_and_changed() {
    for seed in 0..3 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (shelf, mut space, mut truth) =
            (Shelf::default(), Space::new(options(0.001)).unwrap(), Truth::new());
        let mut newest = 1000u64;
        for step in 0..480 {
            for _ in 0..100 {
                let late = random.u8(..10) < 3;
                let id = if late { random.u64(1000..newest + 1) } else { newest };
                newest += u64::from(random.u8(..4) == 0);
                let viewer = random.u64(..300);
                let unset = random.u8(..5) == 0;
                let before = truth.get(&(id, viewer)).copied().unwrap_or(false);
                let change = if unset {
                    space.remove(id, &member(viewer))
                } else {
                    space.add(id, &member(viewer))
                };
                // A false positive may hide the first write of a pair.
                let change = change.unwrap();
                assert_ne!(change, Change::Unknown, "the horizon does not move");
                if truth.contains_key(&(id, viewer)) {
                    assert_eq!(
                        change == Change::Changed,
                        before == unset,
                        "seed {seed} step {step}: {id} {viewer}"
                    );
                }
                if truth.contains_key(&(id, viewer)) || change == Change::Changed {
                    truth.insert((id, viewer), !unset);
                }
            }
            while space.is_short() {
                let (low, bytes) = space.oldest_in_memory().unwrap();
                assert!(bytes >= 4096);
                let mut more = vec![];
                shelf.write(&space, low, || {
                    for viewer in 1000..1010 {
                        assert_eq!(
                            space.add(low.max(1000), &member(viewer)).unwrap(),
                            Change::Changed
                        );
                        more.push((low.max(1000), viewer));
                    }
                });
                truth.extend(more.into_iter().map(|pair| (pair, true)));
            }
            let (late, most) = space.late();
            assert!(late <= most);
            if late > most / 2
                && let Some((low, _)) = space.most_late(|_| true)
            {
                shelf.write(&space, low, || ());
            }
            while space.maintain() {}
            if step % 60 == 59 {
                verify(&space, &truth, "served");
                let before = (space.layout(), space.late().0, space.pairs());
                space = shelf.restored(&space);
                assert_eq!((space.layout(), space.late().0), (before.0, before.1));
                assert!(
                    space.pairs().abs_diff(before.2) * 50 < before.2,
                    "{} pairs, {} before",
                    space.pairs(),
                    before.2
                );
                verify(&space, &truth, "restored");
            }
        }
        assert_eq!(space.horizon(), 0);
        let tables = shelf.tables.lock();
        assert!(tables.len() > 3, "{} tables elsewhere", tables.len());
        // Probes do not read cold tables, so their rate is measured here.
        let seen: HashSet<u64> = truth.keys().map(|pair| pair.0).collect();
        let ids: Vec<u64> = seen.into_iter().filter(|&id| space.is_cold(id)).collect();
        let asked = 60_000;
        let yes = (0..asked).filter(|&n| {
            space.contains(ids[n % ids.len()], &member(1 << 40 | n as u64)).unwrap() == Answer::Yes
        });
        let rate = yes.count() as f64 / asked as f64;
        assert!(rate < 0.0014, "{rate}");
        for stats in space.tables_probed(100) {
            assert!(!stats.is_cold || stats.bytes <= 200_000, "{stats:?}");
            assert!(
                !stats.is_cold || (stats.measured.canaries == 0 && stats.expected_rate <= 0.001),
                "{stats:?}"
            );
            let is_looked_at = (stats.measured.rate().is_some(), stats.bits_set.is_some());
            assert_eq!(is_looked_at, (!stats.is_cold, !stats.is_cold), "{stats:?}");
        }
    }
}

/// A lookup in a cold table reads one page per filter. A lookup of a late or deleted pair reads no
/// page.
#[test]
fn a_check_reads_one_page_of_each_filter() {
    let (shelf, space) = (Shelf::default(), filled(0.0001, 700));
    shelf.write(&space, 0, || ());
    let stored = shelf.tables.lock()[&0].clone();
    let reads = |f: &dyn Fn()| {
        let before = stored.reads.load(Relaxed);
        f();
        stored.reads.load(Relaxed) - before
    };
    assert_eq!(stored.chain.links(), 1);
    assert_eq!(reads(&|| assert_eq!(space.contains(100, &member(0)).unwrap(), Answer::Yes)), 1);
    assert_eq!(reads(&|| assert_eq!(space.contains(100, &member(999)).unwrap(), Answer::No)), 1);
    assert_eq!(reads(&|| assert_eq!(space.add(100, &member(1000)).unwrap(), Change::Changed)), 1);
    assert_eq!(
        reads(&|| assert_eq!(space.contains(100, &member(1000)).unwrap(), Answer::Yes)),
        0,
        "the pair is late"
    );
    assert_eq!(reads(&|| assert_eq!(space.remove(100, &member(0)).unwrap(), Change::Changed)), 1);
    assert_eq!(
        reads(&|| assert_eq!(space.contains(100, &member(0)).unwrap(), Answer::No)),
        0,
        "the pair is revoked"
    );
    assert_eq!(reads(&|| assert_eq!(space.add(100, &member(0)).unwrap(), Change::Changed)), 0);
    assert_eq!(
        reads(&|| space.put(&space.pair(101, &member(5000)), true).unwrap()),
        0,
        "replaying the log again"
    );
    // Put more pairs than the first filter has room for, so that the table appends filters to the
    // chain. A lookup of a pair in the last filter reads one page of each filter.
    (0..2000).for_each(|n| space.put(&space.pair(102, &member(n)), true).unwrap());
    shelf.write(&space, 0, || ());
    let stored = shelf.tables.lock()[&0].clone();
    assert!(stored.chain.links() > 1);
    let before = stored.reads.load(Relaxed);
    assert_eq!(space.contains(102, &member(1999)).unwrap(), Answer::Yes);
    assert_eq!((stored.reads.load(Relaxed) - before) as usize, stored.chain.links());
    assert_eq!(space.late().0, 0);
}

/// Checks that a cold table meets its false-positive rate (P2) after many merges. Compares the pair
/// count of each filter with its capacity, and looks up unset pairs.
#[test]
fn merging_again_and_again_keeps_the_rate() {
    for (rate, seed) in [(0.01, 1), (0.001, 2)] {
        let mut random = fastrand::Rng::with_seed(seed);
        let options = Options { pairs_per_table: 8 * 8000, ..options(rate) };
        let space = Space::new(options).unwrap();
        let mut viewer = 0;
        let mut like = |space: &Space, count: u64| {
            let from = viewer;
            viewer += count;
            (from..viewer).for_each(|n| {
                assert_ne!(space.add(100 + n % 900, &member(n)).unwrap(), Change::Unknown)
            });
        };
        // The first table closes while its filter has room for late pairs.
        like(&space, 6000);
        assert!(space.roll_now());
        let shelf = Shelf::default();
        let (mut merges, mut most_links) = (0, 0);
        for _ in 0..120 {
            let count = [3, 40, 500, 1200][random.usize(0..4)];
            like(&space, count.min(space.late().1 as u64 * 3 / 4));
            shelf.write(&space, 0, || ());
            merges += 1;
            let chain = shelf.tables.lock()[&0].chain.clone();
            for part in &chain.parts {
                assert!(
                    part.pairs <= part.sizing.capacity(part.pages),
                    "{} of {} pages",
                    part.pairs,
                    part.pages
                );
            }
            assert!(chain.rate() <= rate, "{} after {merges} merges", chain.rate());
            most_links = most_links.max(chain.links());
        }
        assert_eq!(space.late().0, 0);
        let chain = shelf.tables.lock()[&0].chain.clone();
        assert!(viewer > 25_000 && most_links > 3, "{viewer} pairs in {most_links} filters");
        // The chain on disk may have one filter more than a chain in memory, because only the last
        // filter of a chain may be nearly empty.
        let memory =
            Table::new(rate, Filter::new(Table::first_sizing(rate), chain.first_pages()).unwrap());
        (0..viewer)
            .for_each(|n| Table::set(memory.room(|_| true).unwrap(), &space.seed.canary(1, n)));
        assert!(chain.links() <= memory.links().count() + 1, "{} filters", chain.links());
        assert!(
            (0..viewer).all(|n| space.contains(100 + n % 900, &member(n)).unwrap() == Answer::Yes)
        );
        let asked = (400.0 / rate) as u64;
        let yes = (0..asked)
            .filter(|n| space.contains(100 + n % 900, &member(1 << 40 | n)).unwrap() == Answer::Yes)
            .count();
        // Four standard deviations, plus a few percent for filters with few pages.
        assert!(
            (yes as f64) < 400.0 * 1.05 + 4.0 * 20.0,
            "{yes} false positives in {asked} lookups at {rate}"
        );
    }
}

/// Replay after a crash delivers late pairs that the cold table already contains.
#[test]
fn a_log_that_is_read_again_makes_a_table_elsewhere_no_larger() {
    for late in [0, 3000] {
        let space = filled(0.001, 7000);
        let shelf = Shelf::default();
        shelf.write(&space, 0, || ());
        let pairs = 7000 + late.min(space.late().1 as u64);
        for n in 7000..pairs {
            assert_ne!(space.add(100 + n % 7000, &member(n)).unwrap(), Change::Unknown);
        }
        shelf.write(&space, 0, || ());
        let before = shelf.tables.lock()[&0].chain.clone();
        for _ in 0..3 {
            for n in 0..pairs {
                space.put(&space.pair(100 + n % 7000, &member(n)), true).unwrap();
            }
            assert!(space.late().0 > 0);
            shelf.write(&space, 0, || ());
            let after = shelf.tables.lock()[&0].chain.clone();
            assert_eq!((after.pages(), after.pairs()), (before.pages(), before.pairs()));
        }
        assert_ne!(space.add(100, &member(1 << 30)).unwrap(), Change::Unknown);
        shelf.write(&space, 0, || ());
        assert_eq!(space.contains(100, &member(1 << 30)).unwrap(), Answer::Yes);
    }
}

/// A failed read makes the lookup or write fail, and changes nothing. In a batch, only the affected
/// id fails.
#[test]
fn what_cannot_be_read_is_not_taken_for_a_no() {
    let (shelf, space) = (Shelf::default(), filled(0.001, 500));
    shelf.write(&space, 0, || ());
    shelf.tables.lock()[&0].spoiled.store(true, Relaxed);
    let unreadable = Unreadable { id: 107, why: "spoiled".into() };
    assert_eq!(space.contains(107, &member(7)), Err(unreadable.clone()));
    let is_it = |error: Error| matches!(error, Error::Unreadable(told) if told == unreadable);
    assert!(space.add(107, &member(7)).is_err_and(is_it));
    assert!(space.remove(107, &member(7)).is_err_and(is_it));
    let young = 610;
    space.add(young, &member(7)).unwrap();
    let mut answers = vec![];
    let failed = space.contains_batch(&member(7), &[young, 107], &mut answers).unwrap_err();
    assert_eq!((failed.all(), answers[0]), (&[unreadable.clone()][..], Answer::Yes));
    assert_eq!(space.late().0, 0);
    shelf.tables.lock()[&0].spoiled.store(false, Relaxed);
    assert_eq!(space.contains(107, &member(7)).unwrap(), Answer::Yes);
}

/// While the host does not spill, the ring stops rolling and the newest table grows. At the memory
/// limit writes fail; after a spill they succeed again. The limit on late pairs behaves in the same
/// way.
#[test]
fn without_room_elsewhere_there_is_an_error_and_nothing_is_lost() {
    let (shelf, space) = (Shelf::default(), Space::new(options(0.01)).unwrap());
    let (mut n, mut tables) = (0u64, 0);
    let refused = loop {
        match space.add(1000 + n / 50, &member(n)) {
            Ok(_) => n += 1,
            Err(error) => break error,
        }
        tables = tables.max(space.layout().len());
        assert!(n < 200_000);
    };
    assert!(matches!(refused, Error::Full), "{refused}");
    assert!(space.is_short() && space.horizon() == 0, "{tables} tables");
    let all = |space: &Space| {
        (0..n).all(|n| space.contains(1000 + n / 50, &member(n)).unwrap() == Answer::Yes)
    };
    assert!(all(&space));
    let (low, _) = space.oldest_in_memory().unwrap();
    while space.is_short()
        && let Some((low, _)) = space.oldest_in_memory()
    {
        shelf.write(&space, low, || ());
        while space.maintain() {}
    }
    // This id is not in the newest table. Its table is closed and still full.
    assert_eq!(space.add(1001 + n / 50, &member(n)).unwrap(), Change::Changed);
    assert!(all(&space));
    let mut late = 0;
    let refused = loop {
        match space.add(1000, &member(1 << 30 | late)) {
            Ok(_) => late += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::LateFull), "{refused}");
    assert!(late > 0 && space.late().0 == space.late().1);
    shelf.write(&space, low, || ());
    assert_eq!(space.late().0, 0);
    assert!((0..late).all(|n| space.contains(1000, &member(1 << 30 | n)).unwrap() == Answer::Yes));
}

/// A snapshot during a spill contains the late pairs. A truncated or corrupt note is rejected.
#[test]
fn a_frozen_table_survives_a_restart() {
    let (shelf, space) = (Shelf::default(), filled(0.001, 500));
    let rewrite = space.begin_rewrite(0).unwrap().unwrap();
    let late = |n: u64| (100 + n % 500, member(n));
    (500..540).for_each(|n| assert_eq!(space.add(late(n).0, &late(n).1).unwrap(), Change::Changed));
    (480..520)
        .for_each(|n| assert_eq!(space.remove(late(n).0, &late(n).1).unwrap(), Change::Changed));
    let right = |space: &Space| {
        (0..540).all(|n| {
            (space.contains(late(n).0, &late(n).1).unwrap() == Answer::Yes)
                != (480..520).contains(&n)
        })
    };
    assert!(right(&space));
    let restored = shelf.restored(&space);
    assert!(right(&restored) && !restored.is_cold(100));
    let note = rewrite.note();
    assert!(Note::decode(space.options(), &note).is_ok());
    for at in 0..note.len() {
        let mut spoiled = note.clone();
        spoiled[at] ^= 0x10;
        assert!(Note::decode(space.options(), &spoiled).is_err(), "byte {at}");
        assert!(Note::decode(space.options(), &note[..at]).is_err(), "cut at {at}");
    }
    drop(rewrite);
    shelf.write(&space, 0, || ());
    assert!(right(&space) && right(&shelf.restored(&space)));
}

/// Late pairs exceed the capacity of the next filter. All filters but the last are filled, the
/// false-positive rate is met, and replay adds no pages.
#[test]
fn late_pairs_leave_no_filter_empty_before_another() {
    let options = Options { pairs_per_table: 1 << 17, max_tables: 60, ..options(0.001) };
    let space = filled_as(options, 16_000);
    let shelf = Shelf::default();
    shelf.write(&space, 0, || ());
    let chain = space.table_at(0).unwrap().1.cold().unwrap().chain();
    let (first, room) = (chain.first_capacity(), chain.first_capacity() - chain.pairs());
    // The highest ids belong to the next table.
    let late = |n: u64| space.pair(100 + n % 10_000, &member(100_000 + n));
    let number = room + first / 4;
    (0..number).for_each(|n| space.put(&late(n), true).unwrap());
    shelf.write(&space, 0, || ());
    let chain = shelf.tables.lock()[&0].chain.clone();
    assert!(chain.links() >= 3 && chain.parts.iter().all(|part| part.pairs > 0));
    assert!(chain.rate() <= 0.001);
    let never = |n: &u64| space.contains(100 + n % 10_000, &member(1 << 40 | n)).unwrap();
    let wrong = (0..200_000).filter(|n| never(n) == Answer::Yes).count();
    assert!(wrong < 260, "{wrong} false positives in 200,000 at a rate of 0.001");
    assert!((0..number).all(|n| space.contains_pair(&late(n)).unwrap() == Answer::Yes));
    // Replay delivers the pairs again; the rewrite recognizes them with few reads.
    let stored = shelf.tables.lock()[&0].clone();
    (0..number).for_each(|n| space.put(&late(n), true).unwrap());
    let before = stored.reads.load(Relaxed);
    shelf.write(&space, 0, || ());
    let reads = stored.reads.load(Relaxed) - before;
    assert!(reads < chain.pages() as u64, "{reads} reads of {} pages", chain.pages());
    let again = shelf.tables.lock()[&0].chain.clone();
    assert_eq!((again.pages(), again.pairs()), (chain.pages(), chain.pairs()));
}

/// Pages and note of version 1 must not change.
#[test]
fn version_1_is_written() {
    let (shelf, space) = (Shelf::default(), filled(0.001, 700));
    (0..40).for_each(|n| assert_eq!(space.remove(100 + n, &member(n)).unwrap(), Change::Changed));
    shelf.write(&space, 0, || ());
    let stored = shelf.tables.lock()[&0].clone();
    // Compares only the header, because the order of the deleted pairs in the note is not defined.
    let head = &stored.note[..Header::BYTES + 8];
    assert_eq!(stored.note.len(), head.len() + 40 * 16 + CHECKSUM_BYTES);
    assert_eq!(
        [xxh3_64(head), xxh3_64(stored.pages.as_flattened())],
        [13810108977991204620, 16445629328258781893]
    );
}

/// Runs readers and writers concurrently with spills and merges. Readers find every set pair. If
/// two writers set the same pair, one gets `Changed`.
#[test]
fn requests_do_not_wait_for_a_spill_and_miss_nothing() {
    const IDS: u64 = 900;
    const LATE: u64 = 90;
    let (shelf, space) = (Shelf::default(), filled(0.001, IDS));
    let (done, changed) = (AtomicU64::new(0), AtomicU64::new(0));
    let pair = |n: u64| (100 + n % IDS, member(10_000 + n));
    for round in 0..20u64 {
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (space, done, changed) = (&space, &done, &changed);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread);
                    for _ in 0..3000 {
                        let n = random.u64(..IDS);
                        assert_eq!(space.contains(100 + n, &member(n)).unwrap(), Answer::Yes);
                        let n = random.u64(..=done.load(SeqCst)).saturating_sub(1);
                        let (id, viewer) = pair(n);
                        assert!(
                            done.load(SeqCst) == 0
                                || space.contains(id, &viewer).unwrap() == Answer::Yes,
                            "late {n}"
                        );
                    }
                });
                scope.spawn(move || {
                    for n in round * LATE..(round + 1) * LATE {
                        let (id, viewer) = pair(n);
                        let change = space.add(id, &viewer).unwrap();
                        changed.fetch_add(u64::from(change == Change::Changed), SeqCst);
                        done.fetch_max(n + 1, SeqCst);
                        std::thread::yield_now();
                    }
                });
            }
            shelf.write(&space, 0, || ());
        });
        shelf.write(&space, 0, || ());
    }
    let (all, changed) = (20 * LATE, changed.load(SeqCst));
    // A false positive suppresses a change.
    assert!((all - 10..=all).contains(&changed), "{changed}");
    assert!((0..all).all(|n| space.contains(pair(n).0, &pair(n).1).unwrap() == Answer::Yes));
}
