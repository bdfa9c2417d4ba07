//! Recommends the field widths that use the fewest bytes for the current values.
//!
//! Each additional bit of width costs one bit per row. Each bit saved moves more values to the aux
//! dictionary, where a value takes [`AUX_ENTRY_BITS`]. A bucket holds a whole number of rows. Only
//! the sum of all widths therefore matters, and only if it changes the number of rows per bucket.
//! The search finds the best widths for *every* sum (a knapsack by dynamic programming) and then
//! picks the sum with the fewest bytes.

use crate::schema::{MAX_ROW_BITS, Schema};
use crate::sizing;
use crate::space::{Space, all_tables};
use crate::table::Table;
use rolling::{Entry, Tables};
use std::fmt;

/// Bits per aux entry: one word at the typical load factor of its array, plus a small penalty for
/// the extra branch.
const AUX_ENTRY_BITS: f64 = 84.0;
/// Additional memory, in bits, of a value that is negative or at least 2^26 - 1.
const WIDE_VALUE_BITS: f64 = 320.0;
/// Approximate number of sampled rows.
const SAMPLE_ROWS: u64 = 1 << 20;

/// Recommendation for a field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldAdvice {
    /// Name of the field.
    pub name: String,
    /// Current width in bits.
    pub width: u8,
    /// Recommended width in bits.
    pub best: u8,
    /// Share of rows whose value is in the aux dictionary, at the current width.
    pub aux_share: f64,
    /// Share of rows whose value would be in the aux dictionary, at the recommended width.
    pub best_aux_share: f64,
    /// Mean of the sampled values.
    pub mean: f64,
    /// Largest sampled value.
    pub max: i64,
}

/// Recommended widths and their effect on memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Advice for each field that is not dropped, in the order of positions.
    pub fields: Vec<FieldAdvice>,
    /// Number of sampled rows.
    pub rows: u64,
    /// Bytes per row of a full table with the current widths.
    pub bytes_per_row: f64,
    /// Bytes per row of a full table with the recommended widths.
    pub best_bytes_per_row: f64,
}

impl Advice {
    /// Returns the recommended widths in schema syntax: `like:10 repost:5`.
    pub fn schema(&self) -> String {
        let fields: Vec<String> =
            self.fields.iter().map(|f| format!("{}:{}", f.name, f.best)).collect();
        fields.join(" ")
    }

    /// Returns the share of bytes that the recommendation saves.
    pub fn saving(&self) -> f64 {
        1.0 - self.best_bytes_per_row / self.bytes_per_row
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:16} {:>5} {:>5} {:>10} {:>10} {:>12}",
            "field", "bits", "best", "in aux", "then", "mean"
        )?;
        for field in &self.fields {
            writeln!(
                f,
                "{:16} {:>5} {:>5} {:>9.3}% {:>9.3}% {:>12.1}",
                field.name,
                field.width,
                field.best,
                100.0 * field.aux_share,
                100.0 * field.best_aux_share,
                field.mean
            )?;
        }
        write!(
            f,
            "bytes per row {:.2} now, {:.2} then: {:.1} % less ({} rows sampled)",
            self.bytes_per_row,
            self.best_bytes_per_row,
            100.0 * self.saving(),
            self.rows
        )
    }
}

/// Returns the width that a value needs; 65 for a negative value, which no width can hold.
fn bits_of(value: i64) -> usize {
    // All ones is the escape, so `value` fits in w bits if value + 1 < 2^w.
    if value < 0 { 65 } else { (64 - (value as u64 + 1).leading_zeros()) as usize }
}

/// Returns whether an aux entry for the value needs [`WIDE_VALUE_BITS`] in addition.
fn is_wide_value(value: i64) -> bool {
    !(0..(1 << 26) - 1).contains(&value)
}

/// Returns the memory, in bits, that a value in a field of this width uses in the aux dictionary.
pub(crate) fn aux_bits(value: i64, width: u8) -> f64 {
    match bits_of(value) <= usize::from(width) {
        true => 0.0,
        false => AUX_ENTRY_BITS + if is_wide_value(value) { WIDE_VALUE_BITS } else { 0.0 },
    }
}

#[derive(Clone)]
struct Distribution {
    /// Number of values for each result of [`bits_of`].
    by_bits: [u64; 66],
    wide_values: u64,
    sum: f64,
    max: i64,
}

impl Distribution {
    const EMPTY: Distribution =
        Distribution { by_bits: [0; 66], wide_values: 0, sum: 0.0, max: i64::MIN };

    fn note(&mut self, value: i64) {
        self.by_bits[bits_of(value)] += 1;
        self.wide_values += u64::from(is_wide_value(value));
        self.sum += value as f64;
        self.max = self.max.max(value);
    }

    /// Number of values that do not fit in `width` bits.
    fn wider_values(&self, width: usize) -> u64 {
        self.by_bits[width + 1..].iter().sum()
    }

    /// Aux bits per row at this width.
    fn cost(&self, width: usize, rows: f64) -> f64 {
        let wider_values = self.wider_values(width) as f64;
        (wider_values * AUX_ENTRY_BITS
            + (self.wide_values as f64).min(wider_values) * WIDE_VALUE_BITS)
            / rows
    }
}

/// Returns, for every sum of widths, the lowest aux cost and its widths.
fn best_by_sum(fields: &[Distribution], rows: f64) -> Vec<Option<(f64, Vec<u8>)>> {
    let most = MAX_ROW_BITS as usize;
    let mut best: Vec<Option<(f64, Vec<u8>)>> = vec![None; most + 1];
    best[0] = Some((0.0, vec![]));
    for field in fields {
        let costs: Vec<f64> =
            (0..=64).map(|w| if w == 0 { 0.0 } else { field.cost(w, rows) }).collect();
        let mut next = vec![None; most + 1];
        for (sum, entry) in best.iter().enumerate() {
            let Some((cost, widths)) = entry else { continue };
            for width in 1..=64.min(most - sum) {
                let cost = cost + costs[width];
                let slot: &mut Option<(f64, Vec<u8>)> = &mut next[sum + width];
                if slot.as_ref().is_none_or(|s| cost < s.0) {
                    let mut widths = widths.clone();
                    widths.push(width as u8);
                    *slot = Some((cost, widths));
                }
            }
        }
        best = next;
    }
    best
}

impl Space {
    /// Recommends widths from a sample of about a million rows. Returns `None` if there are no
    /// rows.
    pub fn advise(&self) -> Option<Advice> {
        let Ok(advice) = self.advise_with(0, |_, _| Ok::<_, std::convert::Infallible>(()));
        advice
    }

    /// Like [`Space::advise`], but includes rows outside memory. `elsewhere` is the number of those
    /// rows. `sample(n, f)` must call `f` for about n of those rows.
    pub fn advise_with<E>(
        &self,
        elsewhere: u64,
        sample: impl FnOnce(u64, &mut dyn FnMut(&[i64])) -> Result<(), E>,
    ) -> Result<Option<Advice>, E> {
        let shape = self.shape.load_full();
        let living: Vec<(usize, u8, String)> =
            shape.schema.living().map(|(i, f)| (i, f.width, f.name.clone())).collect();
        let mut fields = vec![Distribution::EMPTY; living.len()];
        let mut rows = 0u64;
        let mut room = Vec::new();
        let tables = self.ring.load_full();
        let stride = ((self.rows() + elsewhere) / SAMPLE_ROWS).max(1);
        for table in all_tables(&tables) {
            for number in (0..table.buckets()).step_by(stride as usize) {
                table.visit(number, shape.living, shape.schema.width(), &mut room, |_, _, row| {
                    rows += 1;
                    fields.iter_mut().zip(&living).for_each(|(d, (at, _, _))| d.note(row[*at]));
                });
            }
        }
        // Read all outliers (ids far above all others) instead of a sample. In a new space all rows
        // are outliers; other spaces have few outliers.
        let mut waiting = Vec::new();
        self.outliers.for_each(|id, row| {
            waiting.push(id);
            rows += 1;
            let value = |at: usize| row.values.get(at).copied().unwrap_or(0);
            fields.iter_mut().zip(&living).for_each(|(d, (at, _, _))| d.note(value(*at)));
        });
        let mut range_densities = range_densities(&tables);
        // The density of ids is known only for tables. Use the density of the table that contains
        // the median row, or of the newest table if no row is in memory.
        let mut newest = range_densities.last().map_or(1.0, |crowd| crowd.0);
        if elsewhere == 0 && !waiting.is_empty() {
            waiting.sort_unstable();
            newest = sizing::gap(&waiting, waiting.len() as u64) as f64;
        }
        range_densities.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut below, in_tables) = (0, range_densities.iter().map(|crowd| crowd.1).sum::<u64>());
        let middle = range_densities.iter().find(|crowd| {
            below += crowd.1;
            below * 2 > in_tables
        });
        let ids_per_row = middle.map_or(newest, |crowd| crowd.0);
        if elsewhere > 0 {
            sample(elsewhere / stride, &mut |row| {
                rows += 1;
                fields
                    .iter_mut()
                    .zip(&living)
                    .for_each(|(d, (at, _, _))| d.note(row.get(*at).copied().unwrap_or(0)));
            })?;
        }
        if rows == 0 {
            return Ok(None);
        }
        Ok(Some(advice(&shape.schema, &living, &fields, rows, ids_per_row)))
    }
}

/// For each table range, returns the number of ids per row and the number of rows.
fn range_densities(tables: &Tables<Table>) -> Vec<(f64, u64)> {
    // A drained table and its replacements form one range.
    let is_one = |a: &Entry<Table>, b: &Entry<Table>| match (a.drains(), b.drains()) {
        (Some(a), Some(b)) => std::ptr::eq(a, b),
        _ => false,
    };
    let crowd = |entries: &[Entry<Table>]| {
        let drained = entries[0].drains().map(rolling::Slot::table);
        let (low, last) = (entries[0].slot().low(), entries[entries.len() - 1].slot().last());
        let all = || entries.iter().map(Entry::table).chain(drained);
        let here: u64 = all().map(Table::rows).sum();
        let (ids, most) = match entries {
            // The newest table continues to fill.
            [newest] if last == u64::MAX => {
                let (table, span) = (newest.table(), newest.table().span());
                (span.1 - span.0, here.max(table.roll_at()))
            }
            // Most of the drained table's rows are below the newest part.
            [.., newest] if last == u64::MAX => (newest.slot().low() - 1 - low, here),
            _ => (last - low, here),
        };
        ((ids as f64 + 1.0) / most.max(1) as f64, here)
    };
    tables.entries().chunk_by(is_one).map(crowd).collect()
}

/// Computes the recommendation. `living` contains position, width and name of each field.
fn advice(
    schema: &Schema,
    living: &[(usize, u8, String)],
    fields: &[Distribution],
    rows: u64,
    ids_per_row: f64,
) -> Advice {
    let n = rows as f64;
    let bytes = |sum: u32, aux_bits: f64| sizing::bytes_per_row(sum, ids_per_row) + aux_bits / 8.0;
    let now: f64 = fields.iter().zip(living).map(|(d, (_, w, _))| d.cost(usize::from(*w), n)).sum();
    let bytes_per_row = bytes(schema.row_bits(), now);
    let mut best = (bytes_per_row, living.iter().map(|l| l.1).collect::<Vec<u8>>());
    for (sum, entry) in best_by_sum(fields, n).into_iter().enumerate() {
        let Some((aux_bits, widths)) = entry else { continue };
        let bytes = bytes(sum as u32, aux_bits);
        if bytes < best.0 {
            best = (bytes, widths);
        }
    }
    let advice =
        living.iter().zip(fields).zip(&best.1).map(|(((_, width, name), d), &best)| FieldAdvice {
            name: name.clone(),
            width: *width,
            best,
            aux_share: d.wider_values(usize::from(*width)) as f64 / n,
            best_aux_share: d.wider_values(usize::from(best)) as f64 / n,
            mean: d.sum / n,
            max: d.max,
        });
    Advice { fields: advice.collect(), rows, bytes_per_row, best_bytes_per_row: best.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Schema};

    /// In a space with fewer than 64 ids, all rows are outliers.
    #[test]
    fn advice_is_given_of_a_space_that_has_hardly_begun() {
        let space = Space::new(Options::new(Schema::parse("a:30 b:2").unwrap())).unwrap();
        (0..63).for_each(|id| space.put((1 << 40) + id * 100, Some(&[1, 9])).unwrap());
        assert_eq!((space.outlier_rows(), space.ranges()[0].rows), (63, 0));
        let advice = space.advise().unwrap();
        assert_eq!(advice.rows, 63);
        assert_eq!((advice.fields[0].max, advice.fields[0].mean), (1, 1.0));
        assert!(advice.fields[0].best <= 2 && advice.fields[1].best >= 4, "{advice:?}");
        assert!(advice.bytes_per_row > 4.0 && advice.bytes_per_row < 32.0, "{advice:?}");
        let range = space.outlier_range().unwrap();
        assert_eq!((range.low, range.last, range.rows), (1 << 40, (1 << 40) + 6200, 63));
    }

    #[test]
    fn what_fits_is_counted_as_the_layout_stores_it() {
        let mut d = Distribution::EMPTY;
        [0, 1, 2, 3, 254, 255, -1, i64::MAX].into_iter().for_each(|v| d.note(v));
        // One bit holds only 0, eight bits up to 254, 63 bits all but the largest value, and 64
        // bits all but the negative value.
        assert_eq!([1, 2, 8, 9, 63, 64].map(|w| d.wider_values(w)), [7, 5, 3, 2, 2, 1]);
        assert_eq!(d.wide_values, 2);
    }

    // Needs full tables, which takes an hour under Miri.
    #[cfg_attr(miri, ignore)]
    #[test]
    fn advice_saves_what_it_says() {
        let schema = Schema::parse("a:30 b:2").unwrap();
        let space =
            Space::new(Options { rows_per_table: 1 << 14, ..Options::new(schema) }).unwrap();
        assert!(space.advise().is_none());
        let mut rng = fastrand::Rng::with_seed(1);
        for id in 0..60_000 {
            space.put((1 << 40) + id * 100, Some(&[rng.i64(0..60), rng.i64(0..1000)])).unwrap();
        }
        while space.maintain() {}
        let advice = space.advise().unwrap();
        assert_eq!(advice.schema(), "a:6 b:10", "{advice}");
        // There are nine times as many rows outside memory, with larger values.
        let elsewhere = space.rows() * 9;
        let cold = space.advise_with(elsewhere, |most, f| {
            assert_eq!(most, elsewhere);
            (0..most).for_each(|_| f(&[rng.i64(0..1000)]));
            Ok::<_, std::convert::Infallible>(())
        });
        let Ok(Some(cold)) = cold else { panic!("no advice") };
        assert_eq!((cold.fields[0].best, cold.rows), (10, space.rows() * 10), "{cold}");
        assert!((cold.fields[0].mean - 452.5).abs() < 5.0, "{cold}");
        for (field, width) in [("a", 6), ("b", 10)] {
            space.alter(&crate::Alteration::Widen { name: field.into(), width }).unwrap();
        }
        while space.maintain() {}
        let closed = space.tables();
        let big = closed.iter().max_by_key(|t| t.rows).unwrap();
        // Excludes the fixed bytes per table, which dominate with so few rows.
        let off =
            (big.bytes - big.extend_bytes) as f64 / big.rows as f64 / advice.best_bytes_per_row;
        assert!((0.9..1.1).contains(&off), "{advice}\n{big:?}");
        assert!(space.advise().unwrap().saving() < 0.02);
    }

    /// Compares the advice with an exhaustive search over all widths of three fields. The cost of a
    /// choice is the actual table size plus the aux entries of the values that do not fit.
    #[cfg_attr(miri, ignore)]
    #[test]
    fn no_widths_are_better_than_those_advised() {
        const ROWS: usize = 20_000;
        for seed in 0..6 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let schema = Schema::parse("a:13 b:5 c:16").unwrap();
            let space =
                Space::new(Options { rows_per_table: 1 << 12, ..Options::new(schema) }).unwrap();
            // Each field has its own scale, a long tail, and rare giant or negative values.
            let scales: [f64; 3] = std::array::from_fn(|_| rng.f64() * 8.0);
            let rows: Vec<[i64; 3]> = (0..ROWS as u64)
                .map(|i| {
                    let row = scales.map(|scale| match rng.u32(0..2000) {
                        0 => -rng.i64(1..9),
                        1 => rng.i64(1 << 26..1 << 40),
                        _ => (scale + rng.f64().powi(3) * 6.0).exp() as i64 - 1,
                    });
                    space.put((1 << 40) + i * 100, Some(&row)).unwrap();
                    row
                })
                .collect();
            let fits = |value: i64, width: usize| value >= 0 && value < (1 << width) - 1;
            let aux_bits = |field: usize, width: usize| {
                let out = rows.iter().map(|row| row[field]).filter(|&value| !fits(value, width));
                out.map(|value| {
                    if fits(value, 26) { AUX_ENTRY_BITS } else { AUX_ENTRY_BITS + WIDE_VALUE_BITS }
                })
                .sum::<f64>()
            };
            let aux: Vec<[f64; 25]> = (0..3)
                .map(|field| {
                    std::array::from_fn(|width| {
                        if width > 0 { aux_bits(field, width) } else { f64::INFINITY }
                    })
                })
                .collect();
            let (last, n) = ((1 << 40) + ROWS as u64 * 100, ROWS as f64);
            let bytes = |a: usize, b: usize, c: usize| {
                let schema = Schema::parse(&format!("a:{a} b:{b} c:{c}")).unwrap();
                let table = sizing::Sizing::new(&schema, 1 << 40, last, ROWS as u64).bytes(&schema);
                (table as f64 + (aux[0][a] + aux[1][b] + aux[2][c]) / 8.0) / n
            };
            let mut best = (f64::INFINITY, [0; 3]);
            for (a, b, c) in
                (1..=24).flat_map(|a| (1..=24).flat_map(move |b| (1..=24).map(move |c| (a, b, c))))
            {
                let bytes = bytes(a, b, c);
                if bytes < best.0 {
                    best = (bytes, [a, b, c]);
                }
            }
            let advice = space.advise().unwrap();
            let widths: Vec<usize> = advice.fields.iter().map(|f| usize::from(f.best)).collect();
            let advised = bytes(widths[0], widths[1], widths[2]);
            println!(
                "seed {seed}: advised {widths:?}, {advised:.3} bytes; best {best:?}; now {:.3}",
                bytes(13, 5, 16)
            );
            assert!(
                advised <= best.0 * 1.005,
                "seed {seed}: {widths:?} {advised}, {best:?}\n{advice}"
            );
            assert!(
                (advice.best_bytes_per_row / advised - 1.0).abs() < 0.05,
                "seed {seed}: {advised}\n{advice}"
            );
        }
    }
}
