//! Measures the memory per post and per flag in full tables. Fills spaces of the default
//! configuration by calling the engines directly, without a server.

use crate::day;
use node::config::Config;
use std::fmt::Display;

const SEED: u64 = 20_260_102;
/// Number of pairs per table in this measurement. Larger tables use the same memory per pair.
const PAIRS_PER_TABLE: u64 = 1 << 20;
/// Number of flag tables to fill. The first few tables are smaller than later tables.
const TABLES: usize = 6;
/// Average number of flags per post.
const FLAGS_PER_POST: usize = 10;
const RECENT_POSTS: usize = 20_000;
const USERS: u64 = 50_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Full {
    pub(super) post_bytes: f64,
    pub(super) flag_bits: f64,
    pub(super) posts: u64,
    pub(super) flags: u64,
}

/// Fills tables with the options of the first counter space and the first existence space in the
/// configuration. The call takes about a second.
pub(super) fn measure(config: &Config) -> Result<Full, String> {
    let (posts, post_bytes) = counters(&config.counter[0])?;
    let (flags, flag_bytes) = flags(&config.existence[0])?;
    Ok(Full {
        post_bytes: post_bytes as f64 / posts.max(1) as f64,
        flag_bits: flag_bytes as f64 * 8.0 / flags.max(1) as f64,
        posts,
        flags,
    })
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// Returns the number of rows and bytes in all tables except the newest, which is not full.
fn counters(made: &node::config::Counter) -> Result<(u64, u64), String> {
    let schema = counter::Schema::parse(&made.fields).map_err(text)?;
    let fields = ["like", "repost", "comment", "read"].map(|name| schema.index_of(name.as_bytes()));
    let rows_per_table = made.rows_per_table;
    let options = counter::Options { rows_per_table, ..counter::Options::new(schema) };
    let space = counter::Space::new(options).map_err(text)?;
    for post in day::posts(SEED, rows_per_table as usize * 2) {
        let cells = fields.iter().zip(post.counts);
        let cells: Vec<(usize, i64)> =
            cells.filter_map(|(at, n)| at.map(|at| (at, n as i64))).collect();
        space.set(post.id, &cells).map_err(text)?;
    }
    let mut tables = space.ranges();
    tables.pop();
    Ok((tables.iter().map(|t| t.rows).sum(), tables.iter().map(|t| t.bytes).sum()))
}

/// Returns the number of pairs and bytes in all tables except the newest. Most flags go to recent
/// posts, so each table also receives late pairs.
fn flags(made: &node::config::Existence) -> Result<(u64, u64), String> {
    let space = phantom::Space::new(phantom::Options {
        false_positive_rate: made.false_positive_rate,
        pairs_per_table: PAIRS_PER_TABLE,
        ..phantom::Options::default()
    })
    .map_err(text)?;
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut post = RECENT_POSTS;
    while space.tables().len() < TABLES {
        for _ in 0..RECENT_POSTS / 10 * FLAGS_PER_POST {
            post += usize::from(rng.usize(0..FLAGS_PER_POST) == 0);
            let age = (rng.f64().powi(3) * RECENT_POSTS as f64) as usize;
            // Ids with gaps, like ids composed of a timestamp and a sequence number.
            let id = (post - age) as u64 * 4_099;
            space.add(id, &rng.u64(0..USERS).into()).map_err(text)?;
        }
    }
    let tables = space.tables();
    let full = &tables[..TABLES - 1];
    Ok((full.iter().map(|t| t.pairs).sum(), full.iter().map(|t| t.bytes as u64).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the numbers in docs/performance.md: 9.5 bytes per row, and 20 bits per pair plus the
    /// cost of late pairs.
    #[test]
    fn full_tables_cost_what_the_documentation_says() {
        let full = measure(&Config::default()).unwrap();
        assert!((8.5..11.0).contains(&full.post_bytes), "{full:?}");
        assert!((19.0..29.0).contains(&full.flag_bits), "{full:?}");
        assert!(full.posts >= 1_000_000 && full.flags >= 2_000_000, "{full:?}");
    }
}
