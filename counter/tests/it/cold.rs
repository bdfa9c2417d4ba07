//! Compares cold rows with a model. Random changes occur before, between and after the steps of a
//! spill.

use counter::{Alteration, Bounds, Change, ColdBackend, Error, Options, Schema, Space, Unreadable};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

/// A backend that keeps all spilled rows in one map. A writer must fetch a row before it can read
/// it.
#[derive(Clone, Default)]
struct Shelf {
    rows: Arc<Mutex<BTreeMap<u64, Vec<i64>>>>,
    fetched: Arc<Mutex<HashSet<u64>>>,
    spoiled: Arc<Mutex<HashSet<u64>>>,
}

impl Shelf {
    fn check(&self, id: u64) -> Result<(), Unreadable> {
        let is_spoiled = self.spoiled.lock().unwrap().contains(&id);
        if is_spoiled { Err(Unreadable { id, why: "spoiled".into() }) } else { Ok(()) }
    }
}

impl ColdBackend for Shelf {
    fn get(&self, id: u64, out: &mut [i64]) -> Result<bool, Unreadable> {
        self.check(id)?;
        let rows = self.rows.lock().unwrap();
        let Some(row) = rows.get(&id) else { return Ok(false) };
        out.fill(0);
        out[..row.len()].copy_from_slice(row);
        Ok(true)
    }

    fn at_hand(&self, id: u64, out: &mut [i64]) -> Option<bool> {
        self.fetched.lock().unwrap().contains(&id).then(|| self.get(id, out).unwrap())
    }

    fn fetch(&self, id: u64) -> Result<(), Unreadable> {
        self.check(id)?;
        self.fetched.lock().unwrap().insert(id);
        Ok(())
    }
}

struct Case {
    space: Space,
    shelf: Shelf,
    model: BTreeMap<u64, [i64; 2]>,
    rng: fastrand::Rng,
}

impl Case {
    /// Applies random changes to the ids from 1000 to 1000 + `most`.
    fn change(&mut self, number: usize, most: u64) {
        for _ in 0..number {
            let id = 1000 + self.rng.u64(..most);
            match self.rng.u32(0..5) {
                0 => {
                    let existed = self.model.remove(&id).is_some();
                    assert_eq!(self.space.delete(id).unwrap(), existed, "deleting {id}");
                }
                1 => {
                    let row = [self.rng.i64(..1000), self.rng.i64(..) >> self.rng.u32(..60)];
                    self.space.set(id, &[(0, row[0]), (1, row[1])]).unwrap();
                    self.model.insert(id, row);
                }
                _ => {
                    let (field, delta) = (self.rng.usize(..2), self.rng.i64(-5..50));
                    let row = self.model.entry(id).or_default();
                    row[field] += delta;
                    let mut out = Vec::new();
                    self.space
                        .add(id, &[Change { field, delta }], &Bounds::default(), &mut out)
                        .unwrap();
                    assert_eq!(out, [row[field]], "{id}");
                }
            }
        }
        self.shelf.fetched.lock().unwrap().clear();
    }

    fn verify(&self, most: u64) {
        let mut row = [0; 2];
        for id in 1000..1000 + most {
            let found = self.space.get(id, &mut row).unwrap().then_some(row);
            assert_eq!(found, self.model.get(&id).copied(), "{id}");
            assert_eq!(self.space.exists(id).unwrap(), found.is_some());
        }
    }

    /// Spills a range in the same steps as the server, and applies random changes between the
    /// steps.
    fn spill(&mut self, low: u64, last: u64, most: u64) {
        let between = |case: &mut Case| {
            let number = case.rng.usize(..40);
            case.change(number, most);
            case.verify(most);
        };
        let mut spill = self.space.begin_spill(low, last);
        between(self);
        let mut file = BTreeMap::new();
        let mut old: Vec<(u64, Vec<i64>)> = self
            .shelf
            .rows
            .lock()
            .unwrap()
            .range(low..=last)
            .map(|(&id, row)| (id, row.clone()))
            .collect();
        old.reverse();
        between(self);
        // Spills a few rows, one row, or all rows per batch.
        let at_once = [7, 1, 100_000][self.rng.usize(..3)];
        let (mut ids, mut before) = (Vec::new(), None);
        while self.space.next_ids(&mut spill, at_once, &mut ids) {
            assert!(
                ids.len() <= at_once
                    && ids.is_sorted_by(|a, b| a < b)
                    && before < ids.first().copied()
            );
            assert!((low..=last).contains(&ids[0]) && ids[ids.len() - 1] <= last);
            before = ids.last().copied();
            let (mut rows, mut found) = (Vec::new(), Vec::new());
            self.space.spill_rows(&ids, &mut rows, &mut found);
            for ((&id, row), found) in ids.iter().zip(rows.chunks(2)).zip(found) {
                while let Some((older, row)) = old.pop_if(|row| row.0 <= id) {
                    if older < id && !self.space.has_tombstone(older) {
                        file.insert(older, row);
                    }
                }
                if found {
                    file.insert(id, row.to_vec());
                }
            }
            if self.rng.u32(..at_once as u32 + 4) < 4 {
                between(self);
            }
        }
        while let Some((older, row)) = old.pop() {
            if !self.space.has_tombstone(older) {
                file.insert(older, row);
            }
        }
        {
            let mut rows = self.shelf.rows.lock().unwrap();
            rows.retain(|id, _| !(low..=last).contains(id));
            rows.extend(file.iter().map(|(&id, row)| (id, row.clone())));
        }
        between(self);
        self.space.remove_tombstones(&spill);
        between(self);
        let file: Vec<(u64, Vec<i64>)> = file.into_iter().collect();
        for part in file.chunks(11) {
            let ids: Vec<u64> = part.iter().map(|row| row.0).collect();
            let rows: Vec<i64> = part.iter().flat_map(|row| row.1.clone()).collect();
            self.space.drop_spilled(&ids, &rows, 2);
            if self.rng.u32(..4) == 0 {
                between(self);
            }
        }
        between(self);
        self.space.end_spill(&spill).unwrap();
        between(self);
    }
}

#[test]
fn every_row_is_right_between_all_steps_of_a_spill() {
    for seed in 0..4 {
        let schema = Schema::parse("like:6 read:10").unwrap();
        let space = Space::new(Options { rows_per_table: 200, ..Options::new(schema) }).unwrap();
        let shelf = Shelf::default();
        space.attach(Box::new(shelf.clone()), 0, None);
        let mut case =
            Case { space, shelf, model: BTreeMap::new(), rng: fastrand::Rng::with_seed(seed) };
        let most = 1500;
        // Ids ascend, so that full tables are closed.
        for i in 0..most {
            case.space.set(1000 + i, &[(0, i as i64), (1, 7)]).unwrap();
            case.model.insert(1000 + i, [i as i64, 7]);
        }
        while case.space.maintain() {}
        case.verify(most);
        for _ in 0..12 {
            let ranges = case.space.ranges();
            let closed = ranges.len() - 1;
            assert!(closed >= 2, "{closed}");
            let from = case.rng.usize(..closed.min(3));
            let to = (from + case.rng.usize(..2)).min(closed - 1);
            case.spill(ranges[from].low, ranges[to].last, most);
            while case.space.maintain() {}
            case.verify(most);
        }
        assert!(case.shelf.rows.lock().unwrap().len() > 100, "seed {seed}");
    }
}

/// The spilled file lacks a field that is added during the spill.
#[test]
fn field_added_during_spill_keeps_its_writes() {
    let schema = Schema::parse("like:6").unwrap();
    let space = Space::new(Options { rows_per_table: 50_000, ..Options::new(schema) }).unwrap();
    let shelf = Shelf::default();
    space.attach(Box::new(shelf.clone()), 0, None);
    (0..200_000).for_each(|id| _ = space.set(id, &[(0, 1)]).unwrap());
    while space.maintain() {}
    let last = space.ranges().iter().rev().nth(1).expect("the closed tables").last;
    let ids: Vec<u64> = (0..=last).collect();
    assert!(ids.len() > 50_000);
    for round in 1..6 {
        let mut spill = space.begin_spill(0, last);
        while space.next_ids(&mut spill, 1 << 20, &mut Vec::new()) {}
        let row: Vec<i64> = (0..round).map(|field| if field == 0 { 1 } else { 7 }).collect();
        let rows = row.repeat(ids.len());
        shelf.rows.lock().unwrap().extend(ids.iter().map(|&id| (id, row.clone())));
        space.remove_tombstones(&spill);
        let started = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                started.wait();
                space.drop_spilled(&ids, &rows, round)
            });
            started.wait();
            space
                .alter(&Alteration::Add {
                    name: format!("f{round}"),
                    width: 3,
                    bounds: Default::default(),
                })
                .unwrap();
            for &id in ids.iter().rev() {
                let change = Change { field: round, delta: 7 };
                space.add(id, &[change], &Bounds::default(), &mut Vec::new()).unwrap();
            }
        });
        let mut row = vec![0; round + 1];
        let lost =
            ids.iter().filter(|&&id| !space.get(id, &mut row).unwrap() || row[round] != 7).count();
        assert_eq!(lost, 0, "round {round}");
        space.end_spill(&spill).unwrap();
        while space.maintain() {}
    }
}

/// Every read and write of an unreadable row fails and changes nothing. In a batch only this id
/// fails.
#[test]
fn a_row_that_cannot_be_read_is_an_error_and_not_absent() {
    let (space, shelf) =
        (Space::new(Options::new(Schema::parse("a:12").unwrap())).unwrap(), Shelf::default());
    space.attach(Box::new(shelf.clone()), 2000, Some((1000, 1009)));
    for id in 1000..1010 {
        shelf.rows.lock().unwrap().insert(id, vec![7]);
    }
    shelf.spoiled.lock().unwrap().insert(1004);
    let unreadable = Unreadable { id: 1004, why: "spoiled".into() };
    let mut row = [3];
    assert_eq!(space.get(1004, &mut row), Err(unreadable.clone()));
    assert_eq!((row, space.exists(1004)), ([0], Err(unreadable.clone())));
    assert_eq!(space.delete(1004), Err(unreadable.clone()));
    let changed = [space.set(1004, &[(0, 1)]).map(|_| ()), {
        space.add(1004, &[Change { field: 0, delta: 1 }], &Bounds::default(), &mut Vec::new())
    }];
    assert!(changed.iter().all(|changed| *changed == Err(Error::Unreadable(unreadable.clone()))));
    let (mut rows, mut found) = (vec![], vec![]);
    let failed = space.get_batch(&[1003, 1004, 1005], &mut rows, &mut found).unwrap_err();
    assert_eq!(failed.all(), [unreadable]);
    assert_eq!((&rows[..], &found[..]), (&[7, 0, 7][..], &[true, false, true][..]));
    shelf.spoiled.lock().unwrap().clear();
    assert_eq!((space.get(1004, &mut row), row), (Ok(true), [7]));
}
