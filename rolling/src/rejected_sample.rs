//! Ids for which an outlier map had no room. When many have gathered they are asked where the
//! frontier should be: they are a sample of the traffic then, which what is aside is not.
//!
//! Of one id no more are gathered than count: else a popular one, of which there are more in every
//! sample, would keep the others from ever being enough. So few ids, however often they come, make
//! no sample. And what does not become one in time ([`Frontier::sample_eras`]) is of strays that
//! came long ago, or now and then, and is begun anew: they do not speak for the traffic of today.

use crate::frontier::{Frontier, LEAP_ENTRIES_OF_ID, QUORUM};
use std::collections::BTreeMap;

/// See the top of the file. It takes some 100 KB at most, and none once they were asked.
#[derive(Default)]
pub(crate) struct RejectedSample {
    /// How often each was noted. (In order, and by no hash, whose seed a hostile client might
    /// guess.)
    times: BTreeMap<u64, u8>,
    /// The sum of those.
    noted: usize,
    /// The era of the first one.
    since: u32,
}

impl RejectedSample {
    /// Notes an id. If that makes a sample: this. The next one is begun.
    pub(crate) fn note(&mut self, frontier: &Frontier, id: u64) -> Option<RejectedSample> {
        let now = frontier.era();
        if self.times.is_empty() || now.wrapping_sub(self.since) > frontier.sample_eras() {
            *self = RejectedSample { since: now, ..RejectedSample::default() };
        }
        let times = self.times.entry(id).or_default();
        if usize::from(*times) < LEAP_ENTRIES_OF_ID {
            *times += 1;
            self.noted += 1;
        }
        let enough = self.noted >= frontier.sample() && self.times.len() >= QUORUM;
        enough.then(|| std::mem::take(self))
    }

    /// The ids of a sample, each as often as it was noted, but for those that the frontier has
    /// reached meanwhile.
    pub(crate) fn ahead(self, frontier: &Frontier) -> Vec<u64> {
        let high = frontier.high();
        let ahead = self.times.into_iter().filter(|&(id, _)| Some(id) > high);
        ahead.flat_map(|(id, times)| std::iter::repeat_n(id, usize::from(times))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::Admission;
    use crate::outliers::Outliers;

    const HIGH: u64 = 1 << 50;
    const FAR: u64 = 1 << 55;

    /// A space that has a frontier at [`HIGH`], and no room aside.
    struct Full {
        frontier: Frontier,
        outliers: Outliers<()>,
    }

    impl Full {
        fn new(max_aside: usize) -> Full {
            Full {
                frontier: Frontier::restore(Some(HIGH), 1024, None, max_aside),
                outliers: Outliers::default(),
            }
        }

        /// Writes each id; how many are refused.
        fn write(&self, ids: impl Iterator<Item = u64>) -> usize {
            let refused = ids.filter(|&id| self.frontier.admit(id) == Admission::Ahead);
            refused.inspect(|&id| _ = self.outliers.turn_away(&self.frontier, id)).count()
        }

        fn high(&self) -> u64 {
            self.frontier.high().expect("it has one")
        }

        fn gathered(&self) -> usize {
            self.outliers.rejected_sample().times.len()
        }
    }

    #[test]
    fn popular_ids_displace_no_others() {
        for (max_aside, sample) in [(500, 512), (1 << 16, 4096)] {
            // How many of a hundred are for so many posts of the day.
            for (popular, ids) in [(0, 1), (2, 1), (30, 1), (90, 1), (30, 20), (90, 20)] {
                let space = Full::new(max_aside);
                let posts = 50 * sample as u64;
                let refused = space.write(
                    (0..posts).map(|i| FAR + if i % 100 < popular { i % ids } else { i / 4 }),
                );
                let most = 100 * sample / (100 - popular as usize) + 100;
                assert!(
                    refused <= most,
                    "{refused} refused, {popular} % for {ids}, room for {max_aside}"
                );
                assert_eq!((space.high(), space.gathered()), (FAR + (posts - 1) / 4, 0));
            }
        }
    }

    /// However often they come; and they take no memory. Sixty-four would be many, as they are for
    /// an outlier map that has room.
    #[test]
    fn few_ids_are_no_sample() {
        for max_aside in [500, 1 << 16] {
            for ids in [1, 2, 63] {
                let space = Full::new(max_aside);
                assert_eq!(space.write((0..1_000_000).map(|i| FAR + i % ids)), 1_000_000);
                assert_eq!((space.high(), space.gathered()), (HIGH, ids as usize));
                assert_eq!(space.write(HIGH..HIGH + 1000), 0, "the traffic goes on where it was");
            }
            let space = Full::new(max_aside);
            space.write((0..4096).map(|i| FAR + i % 64));
            assert_eq!(space.high(), FAR + 63);
        }
    }

    #[test]
    fn ids_near_the_end_of_all_are_not_gathered() {
        let space = Full::new(1 << 16);
        assert_eq!(space.write((0..100_000).map(|i| u64::MAX - i * 1000)), 100_000);
        assert_eq!((space.high(), space.gathered()), (HIGH, 0));
        // Among the traffic they take no place in the sample.
        space.write((0..10_000).flat_map(|i| [u64::MAX - i * 1000, FAR + i]));
        assert_eq!(space.high(), FAR + 9999);
    }

    #[test]
    fn strays_beside_traffic_move_nothing() {
        let space = Full::new(1 << 16);
        let refused = space.write(
            (0..100_000).flat_map(|i| [HIGH + i, FAR + i / 2].into_iter().take(1 + i as usize % 2)),
        );
        assert_eq!((refused, space.high()), (50_000, HIGH + 99_999));
    }

    /// Hundreds of strays are too few to be the traffic, whatever other ids came once.
    #[test]
    fn strays_of_before_do_not_speak_for_today() {
        let old = |n: u64| (0..n).map(|i| HIGH - i);
        let strays = |from: u64, to: u64| (from..to).map(|i| FAR + i);
        let verify = |what: &str, space: &Full| {
            assert_eq!(space.write(strays(4000, 4700)), 700);
            assert_eq!(space.high(), HIGH, "{what}");
            // Ids that keep coming become the traffic.
            space.write(strays(4700, 20_000));
            assert_eq!(space.high(), FAR + 19_999, "{what}");
        };
        let space = Full::new(1 << 16);
        space.write(strays(0, 3450).chain(old(100_000)));
        verify("all at once, then none", &space);
        let space = Full::new(1 << 16);
        (0..3450).for_each(|i| _ = space.write(strays(i, i + 1).chain(old(79))));
        verify("now and then", &space);
        let space = Full::new(1 << 16);
        space.write(strays(0, 3450));
        space.frontier.advance(&mut vec![]);
        space.write(old(100_000));
        verify("before others were asked, of those in the aside", &space);
        let space = Full::new(1 << 16);
        space.write(strays(0, 3450));
        space.frontier.tell(Some(HIGH), 1024);
        space.frontier.follow(false);
        verify("before it was a replica for a while", &space);
    }

    /// Another site said how far its ids reach.
    #[test]
    fn ids_that_were_reached_are_not_asked() {
        let space = Full::new(1 << 16);
        assert_eq!(space.write((0..3000).map(|i| HIGH + 5000 + i)), 3000);
        space.frontier.adopt(Some(HIGH + 9000), 0);
        // These would be enough together with those.
        assert_eq!(space.write((0..2000).map(|i| FAR + (i << 30))), 2000);
        assert_eq!((space.high(), space.frontier.window()), (HIGH + 9000, 1024));
    }

    #[test]
    fn writers_gather_together() {
        let space = Full::new(1 << 16);
        let refused: usize = std::thread::scope(|s| {
            let writers: Vec<_> = (0..4)
                .map(|n| {
                    let space = &space;
                    s.spawn(move || {
                        space.write(
                            (0..40_000).map(|i| FAR + if i % 3 == 0 { 0 } else { i * 4 + n }),
                        )
                    })
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().expect("no panic")).sum()
        });
        assert!(refused < 80_000 && space.high() > FAR, "{refused} of 160,000 refused");
    }
}
