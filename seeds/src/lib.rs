//! Determines how many seeds and rounds a randomized test runs.
//!
//! Each test specifies its full number of seeds or rounds. The quick tier (`./test`) runs a tenth
//! of that number, rounded up. `./test --all` sets `TIDEMARK_FULL` and runs the full number. Four
//! variables override both:
//!
//! | variable | meaning |
//! |---|---|
//! | `TIDEMARK_SEED` | the first seed; without `TIDEMARK_RUNS` the only one |
//! | `TIDEMARK_RUNS` | number of seeds, or of rounds of a test that kills a server |
//! | `TIDEMARK_STEPS` | steps of each seed, or posts or likes of a load |
//! | `TIDEMARK_SECONDS` | duration of a test that runs for a time |

use std::ops::Range;

/// Parses a number from an environment variable.
///
/// # Panics
/// If the variable is not a number.
#[must_use]
pub fn given(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Whether the environment specifies a seed. The test then replays this seed, and does not check
/// conditions that only all seeds together meet.
#[must_use]
pub fn is_replay() -> bool {
    given("TIDEMARK_SEED").is_some()
}

/// Returns the seeds to run. In the full tier these are `full` seeds, starting at 0.
#[must_use]
pub fn seeds(full: u64) -> Range<u64> {
    seeds_at_least(1, full)
}

/// Returns the seeds to run: `full` seeds in the full tier, and at least `least` seeds in the quick
/// tier. Used by tests that check a condition which only all seeds together meet.
#[must_use]
pub fn seeds_at_least(least: u64, full: u64) -> Range<u64> {
    let first = given("TIDEMARK_SEED");
    let default = if first.is_some() { 1 } else { of_tier(full).max(least) };
    let first = first.unwrap_or(0);
    first..first + given("TIDEMARK_RUNS").unwrap_or(default)
}

/// Returns the number of rounds of a repeated test, which is `full` in the full tier.
#[must_use]
pub fn rounds(full: u64) -> u64 {
    given("TIDEMARK_RUNS").unwrap_or_else(|| of_tier(full))
}

/// Returns the number of rounds: `full` in the full tier, and at least `least` in the quick tier.
#[must_use]
pub fn rounds_at_least(least: u64, full: u64) -> u64 {
    given("TIDEMARK_RUNS").unwrap_or_else(|| of_tier(full).max(least))
}

/// Returns how many seconds a test runs, which is `full` in the full tier.
#[must_use]
pub fn seconds(full: u64) -> u64 {
    given("TIDEMARK_SECONDS").unwrap_or_else(|| of_tier(full))
}

/// Whether the tests run in the full tier.
#[must_use]
pub fn is_full() -> bool {
    std::env::var_os("TIDEMARK_FULL").is_some()
}

/// Returns `full`, or a tenth of it in the quick tier.
fn of_tier(full: u64) -> u64 {
    if is_full() { full } else { full.div_ceil(10) }
}
