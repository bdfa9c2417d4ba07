//! Measures the actual false-positive rate with *canaries*: pairs that no client can set, so that
//! every positive answer is false.
//!
//! At a rate of 0.01 % ten thousand canaries give one false positive, which is too few for an
//! estimate. A background thread therefore probes one table after another
//! ([`Space::probe`](crate::Space::probe)), until [`FALSE_POSITIVES_WANTED`] false positives are
//! expected per table. The rate is then known to within a third of its value. The counts start over
//! when the table has grown by a sixteenth, which changes its rate.
//!
//! With few canaries the bounds are more useful than the rate. An alarm for an exceeded rate should
//! use [`CanaryCounts::at_least`].

/// Number of expected false positives at which probing of a table stops.
pub(crate) const FALSE_POSITIVES_WANTED: f64 = 100.0;
/// Width of a bound in standard deviations. By chance, one estimate in 740 exceeds the bound.
const DEVIATIONS: f64 = 3.0;

/// Results of canary lookups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CanaryCounts {
    /// Number of canaries looked up.
    pub canaries: u64,
    /// Number of false positives.
    pub yes: u64,
}

impl CanaryCounts {
    /// Returns the measured false-positive rate, or `None` without canaries.
    pub fn rate(&self) -> Option<f64> {
        (self.canaries > 0).then(|| self.yes as f64 / self.canaries as f64)
    }

    /// Returns a lower bound of the rate that holds in 739 of 740 cases; 0 without canaries.
    ///
    /// This bound and [`CanaryCounts::at_most`] are Byar's bounds of a Poisson mean (Breslow and
    /// Day, Statistical Methods in Cancer Research II, 1987). They are within a few percent of the
    /// exact bounds for all counts, including 0.
    pub fn at_least(&self) -> f64 {
        let yes = self.yes as f64;
        let bound =
            yes * (1.0 - 1.0 / (9.0 * yes) - DEVIATIONS / (3.0 * yes.sqrt())).max(0.0).powi(3);
        if self.yes == 0 { 0.0 } else { bound / self.canaries as f64 }
    }

    /// Returns an upper bound of the rate that holds in 739 of 740 cases; 1 without canaries.
    pub fn at_most(&self) -> f64 {
        let more = self.yes as f64 + 1.0;
        let bound = more * (1.0 - 1.0 / (9.0 * more) + DEVIATIONS / (3.0 * more.sqrt())).powi(3);
        (bound / self.canaries.max(1) as f64).min(1.0)
    }
}

/// Canary counts of a table.
#[derive(Clone, Copy, Default)]
pub(crate) struct FpEstimator {
    pub(crate) measured: CanaryCounts,
    /// Number of pairs in the table when counting began.
    pub(crate) pairs: u64,
    /// Sequence number of the next canary.
    pub(crate) next: u64,
}

impl FpEstimator {
    /// Whether the counts still describe a table with `pairs` pairs.
    pub(crate) fn count_for(&self, pairs: u64) -> bool {
        pairs <= self.pairs + self.pairs / 16
    }
}
