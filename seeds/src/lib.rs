//! How much a randomised test does.
//!
//! Each test names its full amount. The quick tier (`./test`) does a tenth of it, rounded up;
//! `./test --all` sets `TIDEMARK_FULL` and does all of it. Four variables override both:
//!
//! | variable | meaning |
//! |---|---|
//! | `TIDEMARK_SEED` | the first seed; without `TIDEMARK_RUNS` the only one |
//! | `TIDEMARK_RUNS` | number of seeds, or of rounds of a test that kills a server |
//! | `TIDEMARK_STEPS` | steps of each seed, or posts or likes of a load |
//! | `TIDEMARK_SECONDS` | duration of a test that runs for a time |

use std::ops::Range;

/// Returns a number from the environment.
///
/// # Panics
/// If the variable is not a number.
#[must_use]
pub fn given(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Whether the environment names a seed: the test then replays it, and asserts nothing about what
/// all seeds together have reached.
#[must_use]
pub fn is_replay() -> bool {
    given("TIDEMARK_SEED").is_some()
}

/// Returns the seeds to run, `full` of them from 0 on in the full tier.
#[must_use]
pub fn seeds(full: u64) -> Range<u64> {
    seeds_at_least(1, full)
}

/// Returns the seeds to run: `full` of them in the full tier, `least` or more in the quick one, for
/// a test that asserts what all its seeds together have reached.
#[must_use]
pub fn seeds_at_least(least: u64, full: u64) -> Range<u64> {
    let first = given("TIDEMARK_SEED");
    let default = if first.is_some() { 1 } else { of_tier(full).max(least) };
    let first = first.unwrap_or(0);
    first..first + given("TIDEMARK_RUNS").unwrap_or(default)
}

/// Returns the number of rounds of a test that repeats itself, `full` in the full tier.
#[must_use]
pub fn rounds(full: u64) -> u64 {
    given("TIDEMARK_RUNS").unwrap_or_else(|| of_tier(full))
}

/// Returns the number of rounds, `full` in the full tier and `least` or more in the quick one.
#[must_use]
pub fn rounds_at_least(least: u64, full: u64) -> u64 {
    given("TIDEMARK_RUNS").unwrap_or_else(|| of_tier(full).max(least))
}

/// Returns the seconds that a test runs for, `full` in the full tier.
#[must_use]
pub fn seconds(full: u64) -> u64 {
    given("TIDEMARK_SECONDS").unwrap_or_else(|| of_tier(full))
}

/// Whether this is the full tier.
#[must_use]
pub fn is_full() -> bool {
    std::env::var_os("TIDEMARK_FULL").is_some()
}

/// Returns the part of `full` that the tier does.
fn of_tier(full: u64) -> u64 {
    if is_full() { full } else { full.div_ceil(10) }
}
