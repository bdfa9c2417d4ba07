//! Measures the true false-positive rate: *canaries* are pairs that no client can have set, so each
//! yes is a false positive.
//!
//! At a rate of 0.01 % ten thousand of them bring one yes, which says nothing. So a background
//! thread asks for some now and then ([`Space::probe`](crate::Space::probe)), of one table after
//! the other, until each has had so many that [`YES_WANTED`] wrong answers are to be expected;
//! then the rate is known to a third. What was asked adds up, but for a table that has grown by a
//! sixteenth: its rate is another one by then.
//!
//! Of few canaries the bounds say more than the rate: an alarm for a rate that is not kept looks at
//! [`Measured::at_least`].

/// A table that has had canaries for so many wrong answers, at the configured rate, needs no more.
pub(crate) const YES_WANTED: f64 = 100.0;
/// A bound is so many standard deviations off: one of 740 is beyond it by chance.
const DEVIATIONS: f64 = 3.0;

/// What canaries say of an error rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Pairs that were asked for and that no client can have set.
    pub canaries: u64,
    /// Those that were answered with yes.
    pub yes: u64,
}

impl Measured {
    /// The share of wrong answers. `None`: none was asked for.
    pub fn rate(&self) -> Option<f64> {
        (self.canaries > 0).then(|| self.yes as f64 / self.canaries as f64)
    }

    /// The rate is no lower than this, but for one in 740: an upper bound of nothing is 0.
    ///
    /// This and the next are Byar's bounds of a Poisson mean (Breslow and Day, Statistical Methods
    /// in Cancer Research II, 1987): within some percent of the exact ones for any number, 0
    /// included.
    pub fn at_least(&self) -> f64 {
        let yes = self.yes as f64;
        let bound =
            yes * (1.0 - 1.0 / (9.0 * yes) - DEVIATIONS / (3.0 * yes.sqrt())).max(0.0).powi(3);
        if self.yes == 0 { 0.0 } else { bound / self.canaries as f64 }
    }

    /// The rate is no higher than this, but for one in 740; 1 if none was asked for.
    pub fn at_most(&self) -> f64 {
        let more = self.yes as f64 + 1.0;
        let bound = more * (1.0 - 1.0 / (9.0 * more) + DEVIATIONS / (3.0 * more.sqrt())).powi(3);
        (bound / self.canaries.max(1) as f64).min(1.0)
    }
}

/// What a table keeps of them.
#[derive(Clone, Copy, Default)]
pub(crate) struct FpEstimator {
    pub(crate) measured: Measured,
    /// The pairs in the table when counting began.
    pub(crate) pairs: u64,
    /// Which canaries are next.
    pub(crate) next: u64,
}

impl FpEstimator {
    /// Whether they speak of a table of so many pairs.
    pub(crate) fn are_of(&self, pairs: u64) -> bool {
        pairs <= self.pairs + self.pairs / 16
    }
}
