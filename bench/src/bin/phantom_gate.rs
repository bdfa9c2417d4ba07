//! What counters of 0 spare a feed page: how many flags they disprove, and how many wrong hearts a
//! page shows, beside a page that believes the filter for every flag.
//!
//! `cargo run --release -p tidemark-bench --bin phantom_gate`

use clap::Parser;
use dataset::catalogue::Catalogue;
use dataset::commit::Durability;
use dataset::engines::{Engines, Page};
use dataset::options::{Fsync, Options};
use phantom::{Answer, Member};
use std::sync::Arc;

/// Loads posts with likes and reposts, and reads pages.
#[derive(Parser)]
struct Args {
    /// Posts.
    #[arg(long, default_value_t = 100_000)]
    posts: u64,
    /// Pages that are read.
    #[arg(long, default_value_t = 100_000)]
    pages: u64,
    /// One in so many likes is taken back.
    #[arg(long, default_value_t = 50)]
    undone: u64,
    /// Configured error rate.
    #[arg(long, default_value_t = 0.01)]
    rate: f64,
}

const PAGE: usize = 32;

// Long: one measurement after the other.
fn main() {
    let args = Args::parse();
    let mut config = Options::default();
    for existence in &mut config.existence {
        existence.false_positive_rate = args.rate;
        existence.pairs_per_table = 1 << 20;
        existence.seed = 5;
    }
    config.view[0].flags = ["liked", "reposted"].map(str::to_owned).into();
    let catalogue = Catalogue::default().completed(&config);
    let engines =
        Engines::new(&config, &catalogue, Arc::new(Durability::new(Fsync::No))).expect("spaces");
    let mut rng = fastrand::Rng::with_seed(1);
    let first = 1u64 << 40;
    let (mut row, mut undone) = (vec![], 0u64);
    for post in first..first + args.posts {
        for (action, mean, zero) in [("like", 39.0, 0.1), ("repost", 4.0, 0.66)] {
            let action = engines.action(action.as_bytes()).expect("configured");
            for _ in 0..count(&mut rng, mean, zero) {
                let viewer = Member::Number(1 << 32 | rng.u64(0..1 << 24));
                engines.act(action, &viewer, post, &mut row).expect("room");
                if rng.u64(0..args.undone) == 0 {
                    engines.undo(action, &viewer, post, &mut row).expect("room");
                    undone += 1;
                }
            }
        }
        if post % 1024 == 0 {
            while engines.maintain() {}
        }
    }
    while engines.maintain() {}
    // Viewers that have done nothing: every yes is wrong.
    let view = engines.view(b"home").expect("configured");
    let spaces =
        ["liked", "reposted"].map(|name| engines.existence(name.as_bytes()).expect("configured"));
    let post = engines.counter(b"post").expect("configured");
    let fields =
        ["like", "repost"].map(|name| post.schema().index_of(name.as_bytes()).expect("configured"));
    let (mut page, mut answers, mut ids) = (Page::default(), vec![], vec![0; PAGE]);
    let (mut spared, mut wrong_gated, mut wrong, mut pages_gated, mut pages_wrong) =
        ([0u64; 2], 0u64, 0u64, 0u64, 0u64);
    for viewer in 0..args.pages {
        ids.iter_mut().for_each(|id| *id = first + rng.u64(0..args.posts));
        let viewer = Member::Number(viewer);
        engines.feed_get(view, &viewer, &ids, &mut page).expect("all is in memory");
        let (mut here_gated, mut here) = (0, 0);
        for (flag, space) in spaces.iter().enumerate() {
            answers.clear();
            space.contains_batch(&viewer, &ids, &mut answers).expect("all is in memory");
            here += answers.iter().filter(|answer| **answer == Answer::Yes).count() as u64;
            here_gated += (0..PAGE).filter(|&i| page.flag(i, flag) == Answer::Yes).count() as u64;
            let loose = space.loose().read(space);
            let closed = |&i: &usize| page.counter(i, fields[flag]) == 0 && !loose.holds(ids[i]);
            spared[flag] += (0..PAGE).filter(closed).count() as u64;
        }
        wrong_gated += here_gated;
        wrong += here;
        pages_gated += u64::from(here_gated > 0);
        pages_wrong += u64::from(here > 0);
    }
    let share = |n: u64, of: u64| 100.0 * n as f64 / of as f64;
    let flags = args.pages * PAGE as u64;
    println!(
        "{} posts, {undone} undone, {} pages of {PAGE} posts with two flags, rate {}",
        args.posts, args.pages, args.rate
    );
    println!(
        "flags disproved: liked {:.1} %, reposted {:.1} %",
        share(spared[0], flags),
        share(spared[1], flags)
    );
    println!(
        "wrong hearts per page: {:.4} gated, {:.4} not",
        wrong_gated as f64 / args.pages as f64,
        wrong as f64 / args.pages as f64
    );
    println!(
        "pages with a wrong heart: {:.2} % gated, {:.2} % not",
        share(pages_gated, args.pages),
        share(pages_wrong, args.pages)
    );
    println!("loose ids: {:?}", spaces.map(|space| space.loose().size()));
}

/// The count of a post: 0 for the share `zero` of posts, else log-normal, so that the mean over
/// all posts is `mean`.
fn count(rng: &mut fastrand::Rng, mean: f64, zero: f64) -> u64 {
    if rng.f64() < zero {
        return 0;
    }
    let normal =
        (-2.0 * rng.f64().max(1e-12).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos();
    let sigma = 1.2f64;
    ((mean / (1.0 - zero)).ln() - sigma * sigma / 2.0 + sigma * normal).exp().min(100_000.0).ceil()
        as u64
}
