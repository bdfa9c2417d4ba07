//! Traffic that leaps ahead of a frontier, or begins anew behind it.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the report")]

use counter::{Bounds, Change, Options, Schema, Space};

/// One in twenty is for the post of the day, far more than its share of what is asked for a leap.
#[test]
fn one_popular_row_does_not_keep_the_traffic_out_of_a_full_aside() {
    for max_aside in [500, 1 << 16] {
        let space = Space::new(Options { max_aside, ..Options::new(Schema::parse("like:20").unwrap()) }).unwrap();
        let mut out = vec![];
        let mut add = |id| space.add(id, &[Change { field: 0, delta: 1 }], &Bounds::default(), &mut out);
        (0..5000).for_each(|id| add(id).unwrap());
        let full = (0..max_aside as u64 + 100).filter(|i| add(u64::MAX - i).is_err()).count();
        assert!(full > 90 && space.aside_rows() >= max_aside as u64, "{full} refused");
        let post = |i: u64| (1u64 << 40) + if i.is_multiple_of(20) { 7 } else { i / 10 };
        let refused = (0..30_000).filter(|&i| add(post(i)).is_err()).count();
        assert!(refused < 10_000, "{refused} refused with room for {max_aside}");
        let mut row = [0];
        assert!(space.get((1 << 40) + 2999, &mut row) && row == [10], "{row:?}");
    }
}
