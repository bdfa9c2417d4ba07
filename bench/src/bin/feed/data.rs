//! The posts, the flags and the pages that all servers get: the same, from one seed.

use fastrand::Rng;
use std::collections::{HashMap, HashSet};

/// Counters of a post: likes, reposts, comments, reads.
pub(crate) type Counts = [i64; 4];
/// Their names, in the order of the page.
pub(crate) const FIELDS: [&str; 4] = ["like", "repost", "comment", "read"];

/// Flags that one viewer has set, on average.
const FLAGS_PER_VIEWER: u64 = 100;
/// The hot posts: so many of the newest.
const HOT: u64 = 20_000;

/// What the servers hold.
pub(crate) struct Data {
    /// Posts by index, oldest first.
    pub(crate) counts: Vec<Counts>,
    /// Per viewer the posts that he has liked, and those that he has read; rising.
    pub(crate) flags: Vec<[Vec<u32>; 2]>,
    order: Order,
}

/// Order of the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Half of them on the hot posts; a post gets its flags when it is new, or a while later.
    Time,
    /// 70 % on the newest tenth of the posts, the others on any post, in random order.
    Random,
}

/// What one server holds beside the data: likes of the runs so far.
#[derive(Default)]
pub(crate) struct Liked {
    pairs: HashSet<(usize, u32)>,
    counts: HashMap<u32, i64>,
}

impl Liked {
    /// A like that is not set yet.
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

    /// How often a post was liked.
    pub(crate) fn of(&self, post: u32) -> i64 {
        self.counts.get(&post).copied().unwrap_or(0)
    }

    /// Pages of posts that were liked.
    pub(crate) fn pages(&self, most: usize) -> Vec<Page> {
        let posts: Vec<u32> = self.counts.keys().copied().collect();
        posts
            .chunks_exact(20)
            .take(most)
            .map(|posts| Page { viewer: 0, posts: posts.to_vec() })
            .collect()
    }
}

/// Where the posts of a page come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// The newest 20,000, the newest of them most often.
    Hot,
    /// All, each as often as any other.
    Uniform,
}

/// One page: its viewer and its posts.
pub(crate) struct Page {
    pub(crate) viewer: usize,
    pub(crate) posts: Vec<u32>,
}

/// The id of a post: 16 digits, with gaps, as microblogs have them.
pub(crate) fn post(index: u64) -> u64 {
    3_631_614_501_919_378 + index * 4194
}

/// The id of a viewer.
pub(crate) fn viewer(index: usize) -> u64 {
    5_000_000_000 + index as u64 * 7
}

impl Data {
    /// Log-normal counts (likes with a mean of 39, reads of 2,900, two thirds of reposts and
    /// comments 0); two flags of five are likes, and the posts that have them are as likely hot as
    /// not.
    pub(crate) fn new(posts: u64, flags: u64, order: Order, rng: &mut Rng) -> Data {
        let newest = |rng: &mut Rng| match order {
            Order::Time if rng.bool() => pick(From::Hot, posts, rng),
            Order::Random if rng.u8(..10) < 7 => (posts - 1 - rng.u64(..posts.div_ceil(10))) as u32,
            _ => pick(From::Uniform, posts, rng),
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

    /// How many flags there are.
    pub(crate) fn pairs(&self) -> u64 {
        self.flags.iter().flatten().map(|set| set.len() as u64).sum()
    }

    /// All flags (viewer, liked or read, post) in the order in which servers get them.
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

    /// What a page must show of a post to a viewer: counters; liked, read.
    pub(crate) fn truth(&self, liked: &Liked, viewer: usize, post: u32) -> (Counts, [bool; 2]) {
        let mut counts = self.counts[post as usize];
        counts[0] += liked.of(post);
        let [mut likes, read] =
            self.flags[viewer].each_ref().map(|set| set.binary_search(&post).is_ok());
        likes |= liked.pairs.contains(&(viewer, post));
        (counts, [likes, read])
    }

    /// `number` pages of `size` posts, two of which, in the mean, the viewer has liked or read.
    pub(crate) fn pages(&self, number: usize, size: usize, from: From, rng: &mut Rng) -> Vec<Page> {
        let posts = self.counts.len() as u64;
        (0..number)
            .map(|_| {
                let viewer = rng.usize(..self.flags.len());
                let own = &self.flags[viewer];
                let one = |rng: &mut Rng| match rng.u8(0..20) {
                    side @ 0..2 if from == From::Uniform => {
                        *rng.choice(&own[usize::from(side)]).unwrap_or(&0)
                    }
                    _ => pick(from, posts, rng),
                };
                Page { viewer, posts: (0..size).map(|_| one(rng)).collect() }
            })
            .collect()
    }
}

fn pick(from: From, posts: u64, rng: &mut Rng) -> u32 {
    let index = match from {
        From::Hot => posts - 1 - (rng.f64().powi(3) * HOT.min(posts) as f64) as u64,
        From::Uniform => rng.u64(..posts),
    };
    index as u32
}

fn log_normal(rng: &mut Rng, mu: f64, sigma: f64) -> i64 {
    let (a, b) = (1.0 - rng.f64(), rng.f64());
    let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
    (mu + sigma * normal).exp() as i64
}
