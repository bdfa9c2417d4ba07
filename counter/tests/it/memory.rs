//! Compares the accounted bytes of a space with those of the allocator and of mapped pages.

use counter::{Bounds, Change, ColdBackend, Error, Options, Schema, Space, Unreadable};

fn space(schema: &str) -> Space {
    Space::new(Options::new(Schema::parse(schema).unwrap())).unwrap()
}

/// Returns by how much `f` increases the allocator's bytes and the space's accounted bytes.
fn growth(space: &Space, f: impl FnOnce()) -> (i64, i64) {
    let before = space.memory_bytes() as i64;
    let info = allocation_counter::measure(f);
    (info.bytes_current, space.memory_bytes() as i64 - before)
}

/// Asserts that the actual bytes do not exceed the accounted bytes and are not much lower.
fn assert_counted(what: &str, (taken, said): (i64, i64)) {
    println!("{what}: {taken} bytes allocated, {said} reported");
    assert!(
        taken <= said && said * 2 <= taken * 3,
        "{what}: {taken} bytes allocated, {said} reported"
    );
}

#[test]
fn values_that_outgrow_26_bits() {
    let space = space("a:4 b:4");
    for id in 0..10_000u64 {
        space.set((1 << 40) + id * 7919 % 10_000, &[(0, 1)]).unwrap();
    }
    while space.maintain() {}
    // Writes the same value to all rows. The first value already needs an aux entry per row, so the
    // second fill does not enlarge the arrays of aux words.
    let fill = |value| {
        (0..10_000u64)
            .for_each(|id| _ = space.set((1 << 40) + id * 37 % 10_000, &[(0, value)]).unwrap())
    };
    fill(1 << 20);
    assert_counted("giants", growth(&space, || fill(-1)));
    let (taken, said) = growth(&space, || fill(1));
    assert!(taken < 0 && said < 0, "{taken} allocated, {said} reported: memory is released");
}

#[test]
fn rows_far_ahead() {
    let space = space("a:4 b:4 c:9");
    (0..5000u64).for_each(|id| _ = space.set((1 << 40) + id, &[(0, 1)]).unwrap());
    while space.maintain() {}
    let mut out = vec![];
    let ahead = growth(&space, || {
        for i in 0..5000u64 {
            // These ids are too close to the end of the id space for a table, so they stay outliers
            // (stored outside the tables).
            space.set((15 << 60) + i * 7919 % 5000, &[(2, 1)]).unwrap();
            for j in 0..16 {
                let change = [Change { field: 1, delta: 1 }];
                space
                    .add((1 << 40) + (i + j) % 5000, &change, &Bounds::default(), &mut out)
                    .unwrap();
            }
        }
    });
    assert!(space.outlier_rows() >= 4999, "{}", space.outlier_rows());
    assert_counted("outlier rows", ahead);
}

/// A backend without rows of its own that reports every row as present.
struct Everything;

impl ColdBackend for Everything {
    fn get(&self, _: u64, out: &mut [i64]) -> Result<bool, Unreadable> {
        out.fill(1);
        Ok(true)
    }

    fn at_hand(&self, id: u64, out: &mut [i64]) -> Option<bool> {
        Some(self.get(id, out).unwrap())
    }

    fn fetch(&self, _: u64) -> Result<(), Unreadable> {
        Ok(())
    }
}

/// Tombstones count towards the memory limit. Deletions are never refused, but later writes are.
#[test]
fn ids_that_were_deleted_below_the_line() {
    let space = space("a:4");
    (0..20_000u64).for_each(|id| _ = space.set(id, &[(0, 1)]).unwrap());
    space.attach(Box::new(Everything), 10_000, None);
    // First delete the rows that are in tables.
    (0..10_000u64).for_each(|id| assert!(space.delete(id * 7919 % 10_000).unwrap()));
    let spill = space.begin_spill(0, 9_999);
    space.remove_tombstones(&spill);
    assert_eq!(space.tombstones(), (0, 0));
    let die = || (0..10_000u64).for_each(|id| assert!(space.delete(id * 7919 % 10_000).unwrap()));
    assert_counted("deleted ids", growth(&space, die));
    assert_eq!(space.tombstones(), (10_000, 400_000));
    assert_eq!(space.count_tombstones(100, 199).0, 100);
    assert!(space.tombstones_in(100, 199).into_iter().eq(100..200));
    assert!((0..10_000).all(|id| !space.exists(id).unwrap()));
    space.set_memory_limit_bytes(space.memory_bytes());
    assert!(matches!(space.set(1 << 40, &[(0, 1)]), Err(Error::Full { .. })));
    let spill = space.begin_spill(0, 4_999);
    let (taken, said) = growth(&space, || space.remove_tombstones(&spill));
    assert_eq!((space.tombstones().0, said), (5_000, -200_000));
    assert!(taken < -100_000, "{taken}");
    space.set(1 << 40, &[(0, 1)]).unwrap();
}

#[test]
fn tables_of_a_few_rows() {
    let space = space("like:12 repost:8 comment:8 read:16");
    (0..5000u64).for_each(|id| _ = space.set((1 << 40) + id, &[(0, 1)]).unwrap());
    while space.maintain() {}
    let before = space.tables().len();
    let (heap, said) = growth(&space, || {
        for i in 5000..6000u64 {
            space.set((1 << 40) + i, &[(0, 1)]).unwrap();
            assert!(space.roll_now().unwrap());
        }
    });
    let tables = space.tables();
    // Buckets are mapped in whole pages.
    let pages = |t: &counter::TableStats| {
        let buckets = t.capacity / t.bucket_slots as u64;
        (buckets * 128 + 8).next_multiple_of(4096) as i64 + t.extend_bytes as i64
    };
    let mapped: i64 = tables[before..].iter().map(pages).sum();
    assert!(tables.len() >= before + 1000);
    assert_counted("small tables", (heap + mapped, said));
    let sum: u64 = tables.iter().map(|t| t.bytes).sum();
    assert_eq!(sum, space.memory_bytes(), "all bytes belong to tables");
}
