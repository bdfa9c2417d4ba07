//! Id ranges that cannot be merged because a file is unreadable.
//!
//! Merges skip such a range for `RETRY_INTERVAL` and continue with other ranges of the space. No
//! data is lost: the range's rows in memory stay there, and readable blocks of the file remain
//! available. Merges retry the range, because the disk may recover or the file may be restored.

use std::time::{Duration, Instant};
use store::time;

/// Time between attempts to merge a range.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Quarantined id ranges of one space, both ends inclusive, and the time of each retry.
#[derive(Default)]
pub(crate) struct Quarantine(parking_lot::Mutex<Vec<(u64, u64, Instant)>>);

impl Quarantine {
    /// Updates the quarantine after a spill or merge of `low..=last`, and returns `outcome`. Damage
    /// and I/O errors add the range; success removes all ranges that overlap it.
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

    pub(crate) fn add(&self, low: u64, last: u64) {
        let mut ranges = self.0.lock();
        ranges.retain(|range| last < range.0 || range.1 < low);
        ranges.push((low, last, time::now() + RETRY_INTERVAL));
    }

    pub(crate) fn has(&self, low: u64, last: u64) -> bool {
        let now = time::now();
        self.0.lock().iter().any(|range| range.0 <= last && low <= range.1 && now < range.2)
    }

    /// Whether any range is quarantined, including ranges whose retry time has passed.
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
        // Other errors do not change the quarantine.
        damaged
            .note(100, 199, Err::<(), _>(store::Error::Refused("not now".to_owned())))
            .unwrap_err();
        damaged
            .note(300, 399, Err::<(), _>(store::Error::Refused("not now".to_owned())))
            .unwrap_err();
        assert!(damaged.has(100, 199) && !damaged.has(300, 399));
        // A successful merge of a larger range removes it.
        damaged.note(0, 250, Ok(())).unwrap();
        assert!(!damaged.any());
    }
}
