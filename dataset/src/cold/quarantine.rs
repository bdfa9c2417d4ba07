//! Ranges of which a file cannot be read: merging them is left alone for a while, so that the
//! others of their space are merged.
//!
//! Nothing is given up: the rows of the range that are in memory stay there, those of the file that
//! can be read are, and it is tried again, as a disk or a file may come back.

use std::time::{Duration, Instant};
use store::time;

/// After a failure a range is tried again so much later.
const RETRY: Duration = Duration::from_secs(60);

/// The ranges of one space that could not be read, and when each is tried again.
#[derive(Default)]
pub(crate) struct Quarantine(parking_lot::Mutex<Vec<(u64, u64, Instant)>>);

impl Quarantine {
    /// Notes how work on a range of ids, both ends included, ended, and hands that on.
    pub(crate) fn note<T>(
        &self,
        low: u64,
        last: u64,
        outcome: store::Result<T>,
    ) -> store::Result<T> {
        let is_of_the_file =
            matches!(&outcome, Err(store::Error::Corrupt { .. } | store::Error::Io { .. }));
        if is_of_the_file {
            self.add(low, last);
        } else if outcome.is_ok() {
            self.0.lock().retain(|range| last < range.0 || range.1 < low);
        }
        outcome
    }

    /// A file of a range of ids is known to be damaged.
    pub(crate) fn add(&self, low: u64, last: u64) {
        let mut ranges = self.0.lock();
        ranges.retain(|range| last < range.0 || range.1 < low);
        ranges.push((low, last, time::now() + RETRY));
    }

    /// Whether work on any id of a range would only fail again.
    pub(crate) fn has(&self, low: u64, last: u64) -> bool {
        let now = time::now();
        self.0.lock().iter().any(|range| range.0 <= last && low <= range.1 && now < range.2)
    }

    /// Whether there are any, tried again or not.
    pub(crate) fn any(&self) -> bool {
        !self.0.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_left_alone_until_it_can() {
        let damaged = Quarantine::default();
        let corrupt = || store::Error::Corrupt {
            path: "a".into(),
            offset: 4096,
            what: "a checksum".to_owned(),
        };
        assert!(!damaged.any() && !damaged.has(0, u64::MAX));
        damaged.note(100, 199, Err::<(), _>(corrupt())).unwrap_err();
        assert!(damaged.has(0, 100) && damaged.has(199, u64::MAX) && damaged.has(150, 150));
        assert!(!damaged.has(0, 99) && !damaged.has(200, u64::MAX));
        // What the range is not to blame for says nothing of it.
        damaged
            .note(100, 199, Err::<(), _>(store::Error::Refused("not now".to_owned())))
            .unwrap_err();
        damaged
            .note(300, 399, Err::<(), _>(store::Error::Refused("not now".to_owned())))
            .unwrap_err();
        assert!(damaged.has(100, 199) && !damaged.has(300, 399));
        // Together with its neighbours it went well.
        damaged.note(0, 250, Ok(())).unwrap();
        assert!(!damaged.any());
    }
}
