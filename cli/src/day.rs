//! Generates a realistic day of a microblog: posts with their ids and counts, and their readers.
//!
//! - Ids are `(unix - 515483463) << 22 | low bits`, like Weibo's public 16-digit ids. Ids increase
//!   with time, and the gaps between ids depend on the hour of the day.
//! - Counts are heavy-tailed (log-normal, sigma about 2). The mean is 39 likes and 2,900 reads; the
//!   median post has five likes. Two thirds of the posts have no repost and no comment.
//! - Active users read more, and users prefer recent posts.
//!
//! The same seed generates the same day.

/// Epoch of Weibo's ids, in Unix seconds.
const EPOCH_SECONDS: u64 = 515_483_463;
const SEQUENCE_BITS: u32 = 22;
const DAY_SECONDS: u64 = 86_400;
/// 2026-01-01 00:00:00 UTC.
const FIRST_SECOND: u64 = 1_767_225_600;
/// Posts per hour of the day from midnight, in arbitrary units: a quiet night, a noon peak and a
/// late evening peak.
const HOURS: [u64; 24] = [
    60, 40, 22, 14, 10, 10, 16, 30, 48, 62, 70, 76, 84, 78, 70, 68, 68, 70, 76, 86, 96, 104, 100,
    82,
];

/// A post and its counts at the end of the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// Id; increases with time.
    pub id: u64,
    /// Likes, reposts, comments, reads.
    pub counts: [u64; 4],
}

impl Post {
    /// Returns the hour and minute of the post.
    pub fn clock(&self) -> (u64, u64) {
        let second = ((self.id >> SEQUENCE_BITS) + EPOCH_SECONDS - FIRST_SECOND) % DAY_SECONDS;
        (second / 3600, second / 60 % 60)
    }
}

/// Generates `count` posts in id order.
pub fn posts(seed: u64, count: usize) -> Vec<Post> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let whole: u64 = HOURS.iter().sum();
    let mut ids: Vec<u64> = (0..count)
        .map(|_| {
            let mut at = rng.u64(0..whole);
            let hour = HOURS.iter().position(|&share| {
                let here = at < share;
                at = at.saturating_sub(share);
                here
            });
            let second =
                FIRST_SECOND - EPOCH_SECONDS + hour.unwrap_or(0) as u64 * 3600 + rng.u64(0..3600);
            (second << SEQUENCE_BITS) | rng.u64(0..1 << SEQUENCE_BITS)
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().map(|id| Post { id, counts: counts(&mut rng) }).collect()
}

fn counts(rng: &mut fastrand::Rng) -> [u64; 4] {
    // A post with many likes also has many reads, so all counts share one random factor for the
    // popularity of the post. Each count also varies independently.
    let fame = normal(rng);
    let mut draw = |mean: f64, sigma: f64, own: f64| {
        let z = fame * (1.0 - own * own).sqrt() + own * normal(rng);
        (mean.ln() - sigma * sigma / 2.0 + sigma * z).exp() as u64
    };
    let like = draw(39.0, 2.0, 0.4);
    let read = draw(2900.0, 1.6, 0.4).max(like);
    let (repost, comment) = (draw(27.0, 2.2, 0.6), draw(21.0, 2.0, 0.6));
    let some = |n: u64, lucky: bool| if lucky { n.max(1) } else { 0 };
    [like, some(repost, rng.u8(0..3) == 0), some(comment, rng.u8(0..3) == 0), read]
}

/// Draws from the standard normal distribution (Box and Muller, 1958).
fn normal(rng: &mut fastrand::Rng) -> f64 {
    let (u, v) = (1.0 - rng.f64(), rng.f64());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Returns an endless sequence of (post index, user) pairs. Recent posts and active users occur
/// most often.
pub fn readings(seed: u64, posts: usize, users: u64) -> impl Iterator<Item = (usize, u64)> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5EED);
    std::iter::repeat_with(move || {
        let age = rng.f64().powi(3) * posts as f64;
        let user = (rng.f64().powi(2) * users as f64) as u64;
        (posts - 1 - (age as usize).min(posts - 1), 1_000_000_000 + user)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_as_a_microblog_sees_it() {
        let day = posts(1, 200_000);
        assert_eq!(day, posts(1, 200_000), "the same seed, the same day");
        assert!(day.windows(2).all(|w| w[0].id < w[1].id));
        assert!(day.iter().all(|p| (10u64.pow(15)..10u64.pow(16)).contains(&p.id)), "16 digits");
        assert!(day[0].clock().0 == 0 && day[day.len() - 1].clock().0 == 23);
        let mean =
            |i: usize| day.iter().map(|p| p.counts[i]).sum::<u64>() as f64 / day.len() as f64;
        assert!((25.0..60.0).contains(&mean(0)), "likes {}", mean(0));
        assert!((2300.0..3600.0).contains(&mean(3)), "reads {}", mean(3));
        for i in [1, 2] {
            let none = day.iter().filter(|p| p.counts[i] == 0).count() as f64 / day.len() as f64;
            assert!((0.6..0.7).contains(&none), "field {i}: {none} have none");
        }
        let recent =
            readings(1, day.len(), 1000).take(10_000).filter(|r| r.0 >= day.len() * 9 / 10).count();
        assert!(recent > 4000, "{recent} of 10000 readings are of the newest tenth");
    }
}
