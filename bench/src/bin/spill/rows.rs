//! Rows that the benchmark stores. The id and the expected values are functions of a row's number,
//! so that every row can be checked without storing it.
//!
//! Row n has a random id in the n-th range of 4,096 ids. Counts are log-normal as in
//! `counter_memory`: means of 39 likes, 2,900 reads, 8 reposts and 8 comments. Two thirds of the
//! reposts and comments are 0. Changes are applied in rounds. Round `r` adds 1 to the likes of rows
//! whose number modulo [`STRIDE`] is `r`, and deletes rows whose number modulo [`STRIDE`] is
//! `STRIDE - 1 - r`.

use client::put_command;

/// Name of the counter space, which has `FIELDS` fields.
pub(crate) const SPACE: &str = "post";
pub(crate) const FIELDS: usize = 4;
/// In a round, one row in `STRIDE` changes and one row in `STRIDE` is deleted.
pub(crate) const STRIDE: u64 = 100;
/// Width of the id range in which each post has its id.
const GAP: u64 = 4096;
/// Number of distinct values in each column.
const DRAWN: usize = 1 << 16;

pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (x >> 32)
}

/// Id of a post.
pub(crate) fn id(number: u64) -> u64 {
    (1 << 50) + number * GAP + mix(number) % GAP
}

/// Expected values of the rows.
#[derive(Clone)]
pub(crate) struct Rows {
    columns: std::sync::Arc<[Vec<i64>; FIELDS]>,
}

impl Rows {
    pub(crate) fn new() -> Rows {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut column = |mean: f64, sigma: f64, share: f64| {
            let mut one = || {
                if rng.f64() >= share {
                    return 0;
                }
                // Box-Muller transform.
                let normal = (-2.0 * (1.0 - rng.f64()).ln()).sqrt()
                    * (rng.f64() * std::f64::consts::TAU).cos();
                ((mean / share).ln() - sigma * sigma / 2.0 + sigma * normal).exp() as i64
            };
            (0..DRAWN).map(|_| one()).collect()
        };
        let third = 1.0 / 3.0;
        Rows {
            columns: std::sync::Arc::new([
                column(39.0, 2.0, 1.0),
                column(8.0, 1.8, third),
                column(8.0, 1.8, third),
                column(2900.0, 1.6, 1.0),
            ]),
        }
    }

    /// Initial counters of a post.
    pub(crate) fn row(&self, number: u64) -> [i64; FIELDS] {
        let drawn = mix(number ^ 0x5851_F42D_4C95_7F2D);
        std::array::from_fn(|field| self.columns[field][(drawn >> (16 * field)) as usize % DRAWN])
    }

    /// Returns the counters of a post after `rounds` rounds of changes, or `None` if the row was
    /// deleted.
    pub(crate) fn after(&self, number: u64, rounds: u64) -> Option<[i64; FIELDS]> {
        let at = number % STRIDE;
        if at >= STRIDE - rounds {
            return None;
        }
        let mut row = self.row(number);
        row[0] += i64::from(at < rounds);
        Some(row)
    }
}

/// Appends a number as text. `write!` would take most of the time of a check.
fn number(mut n: u64, out: &mut Vec<u8>) {
    let (mut digits, mut at) = ([0; 20], 20);
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return out.extend_from_slice(&digits[at..]);
        }
    }
}

/// Appends the reply of CNT.GET for a row.
pub(crate) fn reply(row: Option<[i64; FIELDS]>, out: &mut Vec<u8>) {
    let Some(row) = row else { return out.extend_from_slice(b"*-1\r\n") };
    out.push(b'*');
    number(FIELDS as u64, out);
    out.extend_from_slice(b"\r\n");
    for value in row {
        // Counts are never negative.
        out.push(b':');
        number(value.unsigned_abs(), out);
        out.extend_from_slice(b"\r\n");
    }
}

pub(crate) fn request(words: &[&str], ids: &[u64], out: &mut Vec<u8>) {
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    let words = words.iter().copied().chain(ids.iter().map(String::as_str));
    put_command(out, &words.map(str::as_bytes).collect::<Vec<_>>());
}
