//! Table sizing: computes the dimensions that need the fewest bits for a number of rows and an id
//! range.

use crate::key::{MIN_BUCKETS, MIN_REMAINDER_BITS, prime_from, prime_to};
use crate::layout::Layout;
use crate::schema::Schema;

/// Upper bound of the number of buckets.
const MAX_BUCKETS: u64 = 1 << 31;

/// Dimensions of a table's main segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizing {
    /// Lowest id of the table.
    pub(crate) base: u64,
    /// A prime number.
    pub(crate) buckets: u64,
    pub(crate) remainder_bits: u32,
}

impl Sizing {
    /// Sizes a table that covers at least `base..=last` and holds `rows` rows at the load factor at
    /// which it is closed.
    pub(crate) fn new(schema: &Schema, base: u64, last: u64, rows: u64) -> Sizing {
        let span = u128::from(last - base) + 1;
        let mut bits = MIN_REMAINDER_BITS;
        loop {
            let layout = Layout::new(schema, bits);
            let needed = rows as f64 / (layout.slots as f64 * layout.close_load_factor());
            let buckets = (needed.ceil() as u64).clamp(MIN_BUCKETS, MAX_BUCKETS);
            if u128::from(buckets) << bits >= span {
                return Sizing { base, buckets: prime_from(buckets), remainder_bits: bits };
            }
            bits += 1;
        }
    }

    /// Rounds the number of buckets up to whole huge pages, if the buckets fill at least one huge
    /// page.
    pub(crate) fn in_whole_pages(self, schema: &Schema) -> Sizing {
        let bucket = Layout::new(schema, self.remainder_bits).words as u64 * 8;
        if self.bytes(schema) < rolling::HUGE_PAGE_BYTES as u64 {
            return self;
        }
        // Buckets need one word of padding.
        let whole =
            self.bytes(schema).next_multiple_of(rolling::HUGE_PAGE_BYTES as u64) / bucket - 1;
        let buckets = prime_to(whole.min(MAX_BUCKETS));
        Sizing { buckets: buckets.max(self.buckets), ..self }
    }

    /// Reduces `rows`, for which this table was sized, to the number that fits in whole huge pages.
    /// The result is at least the number of rows in one huge page.
    pub(crate) fn rows_of_whole_pages(&self, schema: &Schema, rows: u64) -> u64 {
        let (bytes, page) = (self.bytes(schema), rolling::HUGE_PAGE_BYTES as u64);
        if bytes <= page {
            return rows;
        }
        // Subtract half a percent, because the number of buckets is rounded up to a prime.
        (rows as f64 * (bytes / page * page) as f64 / bytes as f64 * 0.995) as u64
    }

    pub(crate) fn bytes(&self, schema: &Schema) -> u64 {
        (self.buckets * Layout::new(schema, self.remainder_bits).words as u64) * 8
    }
}

/// Bytes of buckets per row in a large table that is about to be closed, for rows of `field_bits`
/// bits and `ids_per_row` ids for each row. More rows per bucket mean fewer buckets, so each row
/// stores more bits of its id.
pub fn bytes_per_row(field_bits: u32, ids_per_row: f64) -> f64 {
    let plans =
        (MIN_REMAINDER_BITS..=60).map(|bits| (bits, Layout::bytes_and_rows(field_bits + bits)));
    let wide_enough =
        |&(bits, (_, rows)): &(u32, (f64, f64))| rows * ids_per_row <= 2f64.powi(bits as i32);
    plans.into_iter().find(wide_enough).map_or(f64::INFINITY, |(_, (bytes, rows))| bytes / rows)
}

/// Returns the mean gap between the ids of a table, computed from an ascending sample. Ignores the
/// lowest and the highest tenth, which may contain extreme ids.
pub(crate) fn gap(sample: &[u64], rows: u64) -> u64 {
    let n = sample.len();
    if n < 20 {
        return 1 << 12;
    }
    let (low, high) = (sample[n / 10], sample[n - 1 - n / 10]);
    ((u128::from(high - low) * 10 / 8) / u128::from(rows.max(1))).clamp(1, u128::from(u64::MAX))
        as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_covers_its_range_with_the_fewest_bits() {
        let schema = Schema::parse("like:12 repost:8 comment:8 read:16").unwrap();
        for (base, last, rows) in [
            (0, u64::MAX, 1),
            (0, u64::MAX, 1 << 20),
            (5, 5, 100),
            (1 << 50, (1 << 50) + (1 << 32), 1 << 20),
            (0, 1 << 20, 1 << 20),
        ] {
            let sizing = Sizing::new(&schema, base, last, rows);
            let layout = Layout::new(&schema, sizing.remainder_bits);
            assert!(
                u128::from(sizing.buckets) << sizing.remainder_bits > u128::from(last - base),
                "{sizing:?}"
            );
            assert!(
                (sizing.buckets * layout.slots as u64) as f64 * layout.close_load_factor()
                    >= rows as f64 - 1.0
            );
        }
        // For a million posts whose ids are 4,096 apart on average, a row takes about 64 bits in
        // total.
        let sizing = Sizing::new(&schema, 1 << 50, (1 << 50) + (1 << 32) - 1, 1 << 20);
        assert!(
            sizing.bytes(&schema) < (1 << 20) * 19 / 2,
            "{}",
            sizing.bytes(&schema) as f64 / f64::from(1 << 20)
        );
    }

    #[test]
    fn a_large_plan_fills_its_huge_pages() {
        let schema = Schema::parse("like:12 repost:8 comment:8 read:16").unwrap();
        for rows in [1000, 200_000, 300_000, 1 << 20, 5_000_000, 67_108_864] {
            let exact = Sizing::new(&schema, 0, rows << 12, rows);
            let sizing = exact.clone().in_whole_pages(&schema);
            let (bytes, page) = (sizing.bytes(&schema) + 8, rolling::HUGE_PAGE_BYTES as u64);
            if exact.bytes(&schema) < page {
                assert_eq!(sizing, exact);
                continue;
            }
            assert_eq!(bytes.div_ceil(page), exact.bytes(&schema).div_ceil(page), "{rows} rows");
            assert!(
                bytes.next_multiple_of(page) - bytes < page / 8,
                "{rows} rows in {bytes} bytes"
            );
        }
    }

    #[test]
    fn rows_of_whole_pages_fill_no_further_page() {
        let schema = Schema::parse("like:12 repost:8 comment:8 read:16").unwrap();
        let page = rolling::HUGE_PAGE_BYTES as u64;
        for rows in [1000, 200_000, 1 << 18, 300_000, 444_000, 1 << 20] {
            let exact = Sizing::new(&schema, 0, rows << 12, rows);
            let fewer = exact.rows_of_whole_pages(&schema, rows);
            let made = Sizing::new(&schema, 0, fewer << 12, fewer).in_whole_pages(&schema);
            let pages = (exact.bytes(&schema) / page).max(1);
            assert_eq!((made.bytes(&schema) + 8).div_ceil(page), pages, "{rows} rows");
            assert!(fewer <= rows && fewer * 2 >= rows.min(1 << 18), "{fewer} of {rows} rows");
        }
    }

    #[test]
    fn the_gap_does_not_heed_strays() {
        let mut ids: Vec<u64> = (0..1000).map(|i| (1 << 50) + i * 4096).collect();
        ids[0] = 0;
        ids[999] = u64::MAX;
        assert!((4000..4200).contains(&gap(&ids, 1000)));
        assert!((400..420).contains(&gap(&ids, 10_000)), "a sample of a tenth");
        assert_eq!(gap(&[7; 100], 100), 1);
    }
}
