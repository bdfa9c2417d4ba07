//! Posts, flags and pages, generated from one seed. All servers store the same data.

use fastrand::Rng;
use std::collections::{HashMap, HashSet};

/// Counters of a post: likes, reposts, comments, reads.
pub(crate) type Counts = [i64; 4];
/// Names of the counters, in the order of the page.
pub(crate) const FIELDS: [&str; 4] = ["like", "repost", "comment", "read"];

const FLAGS_PER_VIEWER: u64 = 100;
/// Number of newest posts that count as hot.
const HOT: u64 = 20_000;

/// Data that every server stores.
pub(crate) struct Data {
    /// Counters of each post, oldest post first.
    pub(crate) counts: Vec<Counts>,
    /// Liked and read posts of each viewer, in ascending order.
    pub(crate) flags: Vec<[Vec<u32>; 2]>,
    order: Order,
}

/// Order in which the flags are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Half of the flags go to hot posts. A post receives its flags when it is new, or shortly
    /// afterwards.
    Time,
    /// 70 % of the flags go to the newest tenth of the posts, and 30 % to any post. The order is
    /// random.
    Random,
}

/// Likes that one server has received in addition to the loaded data.
#[derive(Default)]
pub(crate) struct Liked {
    pairs: HashSet<(usize, u32)>,
    counts: HashMap<u32, i64>,
}

impl Liked {
    /// Draws a viewer, and a post that the viewer has not liked yet.
    pub(crate) fn next(&mut self, data: &Data, rng: &mut Rng) -> (usize, u32) {
        loop {
            let (viewer, post) =
                (rng.usize(..data.flags.len()), rng.u32(..data.counts.len() as u32));
            if !data.flags[viewer][0].contains(&post) && self.pairs.insert((viewer, post)) {
                *self.counts.entry(post).or_insert(0) += 1;
                return (viewer, post);
            }
        }
    }

    /// Number of likes that a post has received.
    pub(crate) fn of(&self, post: u32) -> i64 {
        self.counts.get(&post).copied().unwrap_or(0)
    }

    /// Returns pages of posts that have received likes.
    pub(crate) fn pages(&self, most: usize) -> Vec<Page> {
        let posts: Vec<u32> = self.counts.keys().copied().collect();
        posts
            .chunks_exact(20)
            .take(most)
            .map(|posts| Page { viewer: 0, posts: posts.to_vec() })
            .collect()
    }
}

/// Distribution of the posts of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostDistribution {
    /// Only the newest 20,000 posts. Newer posts are drawn more often.
    Hot,
    /// All posts, uniformly.
    Uniform,
}

pub(crate) struct Page {
    pub(crate) viewer: usize,
    pub(crate) posts: Vec<u32>,
}

/// Id of a post: a 16-digit number, with gaps between consecutive posts.
pub(crate) fn post(index: u64) -> u64 {
    3_631_614_501_919_378 + index * 4194
}

/// Id of a viewer.
pub(crate) fn viewer(index: usize) -> u64 {
    5_000_000_000 + index as u64 * 7
}

impl Data {
    /// Draws log-normal counts: means of 39 likes and 2,900 reads, and 0 for two thirds of the
    /// reposts and comments. Two flags in five are likes. `order` determines the posts.
    pub(crate) fn new(posts: u64, flags: u64, order: Order, rng: &mut Rng) -> Data {
        let newest = |rng: &mut Rng| match order {
            Order::Time if rng.bool() => pick(PostDistribution::Hot, posts, rng),
            Order::Random if rng.u8(..10) < 7 => (posts - 1 - rng.u64(..posts.div_ceil(10))) as u32,
            _ => pick(PostDistribution::Uniform, posts, rng),
        };
        let counts = (0..posts)
            .map(|_| {
                let rare =
                    |rng: &mut Rng| if rng.u8(0..3) == 0 { log_normal(rng, 1.0, 1.5) } else { 0 };
                [log_normal(rng, 2.2, 1.7), rare(rng), rare(rng), log_normal(rng, 6.6, 1.65)]
            })
            .collect();
        let viewers = (flags / FLAGS_PER_VIEWER).max(1);
        let flags = (0..viewers)
            .map(|_| {
                [40, 60].map(|number| {
                    let mut set: Vec<u32> = (0..number).map(|_| newest(rng)).collect();
                    set.sort_unstable();
                    set.dedup();
                    set
                })
            })
            .collect();
        Data { counts, flags, order }
    }

    pub(crate) fn pairs(&self) -> u64 {
        self.flags.iter().flatten().map(|set| set.len() as u64).sum()
    }

    /// Returns all flags (viewer, liked or read, post) in the order in which servers receive them.
    pub(crate) fn history(&self) -> Vec<(usize, usize, u32)> {
        let mut rng = Rng::with_seed(self.counts.len() as u64);
        let posts = self.counts.len() as u32;
        let mut all: Vec<(u32, usize, usize, u32)> = Vec::new();
        for (viewer, sets) in self.flags.iter().enumerate() {
            for (kind, set) in sets.iter().enumerate() {
                let when = |post, rng: &mut Rng| match self.order {
                    Order::Time => post + rng.u32(..posts / 50 + 1),
                    Order::Random => rng.u32(..),
                };
                all.extend(set.iter().map(|&post| (when(post, &mut rng), viewer, kind, post)));
            }
        }
        all.sort_unstable();
        all.into_iter().map(|(_, viewer, kind, post)| (viewer, kind, post)).collect()
    }

    /// Returns the expected entry of a page: counters, and the flags liked and read.
    pub(crate) fn truth(&self, liked: &Liked, viewer: usize, post: u32) -> (Counts, [bool; 2]) {
        let mut counts = self.counts[post as usize];
        counts[0] += liked.of(post);
        let [mut likes, read] =
            self.flags[viewer].each_ref().map(|set| set.binary_search(&post).is_ok());
        likes |= liked.pairs.contains(&(viewer, post));
        (counts, [likes, read])
    }

    /// Returns `number` pages of `size` random posts. With `Uniform` the viewer has liked or read
    /// one post in ten.
    pub(crate) fn pages(
        &self,
        number: usize,
        size: usize,
        from: PostDistribution,
        rng: &mut Rng,
    ) -> Vec<Page> {
        let posts = self.counts.len() as u64;
        (0..number)
            .map(|_| {
                let viewer = rng.usize(..self.flags.len());
                let own = &self.flags[viewer];
                let one = |rng: &mut Rng| match rng.u8(0..20) {
                    side @ 0..2 if from == PostDistribution::Uniform => {
                        *rng.choice(&own[usize::from(side)]).unwrap_or(&0)
                    }
                    _ => pick(from, posts, rng),
                };
                Page { viewer, posts: (0..size).map(|_| one(rng)).collect() }
            })
            .collect()
    }
}

fn pick(from: PostDistribution, posts: u64, rng: &mut Rng) -> u32 {
    let index = match from {
        PostDistribution::Hot => posts - 1 - (rng.f64().powi(3) * HOT.min(posts) as f64) as u64,
        PostDistribution::Uniform => rng.u64(..posts),
    };
    index as u32
}

fn log_normal(rng: &mut Rng, mu: f64, sigma: f64) -> i64 {
    let (a, b) = (1.0 - rng.f64(), rng.f64());
    let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
    (mu + sigma * normal).exp() as i64
}
