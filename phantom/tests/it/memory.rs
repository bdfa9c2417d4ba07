//! Compares the reported memory of a space with the allocated memory.

use phantom::{Change, Member, Options, Space};

fn space() -> Space {
    let options =
        Options { pairs_per_table: 100_000, max_tables: 400, seed: 1, ..Options::default() };
    let space = Space::new(options).expect("small tables");
    (0..1000).for_each(|id| _ = space.add(id, &Member::Number(0)).expect("room"));
    space
}

/// Returns the number of bytes by which a space grows during `change`, as reported and as
/// allocated. Both numbers exclude filters, which are not on the heap.
fn grown(space: &Space, change: impl FnOnce()) -> (f64, f64) {
    let filters =
        || space.tables().iter().map(|table| table.capacity as f64 * 19.9 / 8.0).sum::<f64>();
    let said = || space.memory_bytes() as f64 - filters();
    let before = said();
    let heap = allocation_counter::measure(change).bytes_current as f64;
    (said() - before, heap)
}

fn agree((said, heap): (f64, f64), what: &str) {
    assert!(said > heap * 0.75 && said < heap * 1.35, "{what}: {said} reported, {heap} allocated");
}

#[test]
fn what_is_held_exactly_is_counted() {
    let add = |space: &Space, id: u64, member: u64| {
        assert_ne!(space.add(id, &Member::Number(member)).expect("room"), Change::Unknown);
    };
    for (ids, pairs) in [(60_000, 1), (1000, 60), (3, 20_000)] {
        let space = space();
        let far = |i: u64| u64::MAX - 1_000_000 + i * 7;
        let more = grown(&space, || (0..ids * pairs).for_each(|n| add(&space, far(n % ids), n)));
        assert_eq!(space.outlier_pairs() as u64, ids * pairs);
        agree(more, &format!("{pairs} outlier pairs of each of {ids} ids"));
    }
    for number in [1000, 100_000] {
        let space = space();
        (0..number).for_each(|n| add(&space, n % 1000, 1000 + n));
        let more = grown(&space, || {
            (0..number)
                .for_each(|n| _ = space.remove(n % 1000, &Member::Number(1000 + n)).expect("room"))
        });
        agree(more, &format!("{number} unset again"));
    }
}

#[test]
fn tables_are_counted() {
    let options =
        Options { pairs_per_table: 3000, max_tables: 4000, seed: 1, ..Options::default() };
    let space = Space::new(options).expect("small tables");
    let mut id = 0;
    let more = grown(&space, || {
        while space.layout().len() < 300 {
            space.add(id, &Member::Number(0)).expect("room");
            id += 1;
        }
    });
    // The estimate for filters counts bits per pair, not whole pages.
    let (said, heap) = more;
    assert!(heap > 300.0 * 1000.0 && said > heap * 0.75, "{said} reported, {heap} allocated");
}
