//! Requested changes to a row, and the bounds of an addition.

use crate::Error;

/// Change of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Position of the field.
    pub field: usize,
    /// Amount to add.
    pub delta: i64,
}

/// Bounds of an addition's result. A bound limits only changes towards the bound: a value that is
/// already out of bounds may move back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Lowest result of a decrement.
    pub min: Option<i64>,
    /// Highest result of an increment.
    pub max: Option<i64>,
    /// Whether the result is clamped to the bound (SAT). Otherwise the addition is refused (FAIL).
    pub saturate: bool,
}

impl Bounds {
    /// Returns `old + delta` within the bounds.
    pub(crate) fn add(&self, old: i64, delta: i64) -> Result<i64, Error> {
        let sum = old.checked_add(delta);
        // The bound in the direction of `delta`. If `old` is already beyond this bound, the value
        // must not move further.
        let (bound, beyond) = if delta < 0 {
            let bound = self.min.map(|min| min.min(old));
            (bound, bound.is_some_and(|b| sum.is_none_or(|s| s < b)))
        } else {
            let bound = self.max.map(|max| max.max(old));
            (bound, bound.is_some_and(|b| sum.is_none_or(|s| s > b)))
        };
        match (bound, beyond) {
            (Some(bound), true) if self.saturate => Ok(bound),
            (_, true) if sum.is_some() => Err(Error::Bounds),
            _ => sum.ok_or(Error::Overflow),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_restrain_the_way_towards_them() {
        let fail = Bounds { min: Some(0), max: Some(10), saturate: false };
        let sat = Bounds { saturate: true, ..fail };
        let none = Bounds::default();
        for (bounds, old, delta, expected) in [
            (fail, 3, -3, Ok(0)),
            (fail, 3, -4, Err(Error::Bounds)),
            (sat, 3, -4, Ok(0)),
            (fail, 3, 8, Err(Error::Bounds)),
            (sat, 3, 8, Ok(10)),
            (fail, -5, 3, Ok(-2)),
            (fail, -5, -1, Err(Error::Bounds)),
            (sat, -5, -1, Ok(-5)),
            (sat, -5, 100, Ok(10)),
            (fail, 12, -1, Ok(11)),
            (none, i64::MAX, 1, Err(Error::Overflow)),
            (none, i64::MIN, -1, Err(Error::Overflow)),
            (sat, i64::MAX, i64::MAX, Ok(i64::MAX)),
            (sat, 5, i64::MAX, Ok(10)),
            (fail, 5, i64::MAX, Err(Error::Overflow)),
            (none, 0, i64::MIN, Ok(i64::MIN)),
        ] {
            assert_eq!(bounds.add(old, delta), expected, "{bounds:?} {old} {delta}");
        }
    }
}
