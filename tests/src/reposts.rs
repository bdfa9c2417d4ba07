//! Generator for a file of reposts in the format of the real data set: CSV lines
//! `created_at,post_id,origin_post_id,user_id`, with the original post before its reposts.
//!
//! As in the real file, the number of reposts per post is heavy-tailed, and about 40% of the
//! reposts repeat an earlier repost by the same user. The output is a function of the seed.

use cli::day;
use std::fmt::Write;

/// Number of distinct users.
const USERS: u64 = 20_000;

/// Returns the text of a file with this many original posts and about 40 times as many reposts.
pub fn csv(seed: u64, originals: usize) -> String {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut text = String::from("created_at,post_id,origin_post_id,user_id\n");
    for post in day::posts(seed, originals) {
        let (hour, minute) = post.clock();
        let author = 833_930_000_000 + rng.u64(0..USERS);
        let at = format!("2026-01-01 {hour:02}:{minute:02}:{:02}", rng.u8(0..60));
        let _ = writeln!(text, "{at},{},,{author}", post.id);
        let mut users = vec![author];
        let reposts = 1 + post.counts[0].min(2_000);
        for n in 1..=reposts {
            let again = rng.u8(0..10) < 4;
            let user =
                if again { users[rng.usize(0..users.len())] } else { author + rng.u64(0..USERS) };
            users.push(user);
            let _ = writeln!(text, "{at},{},{},{user}", post.id + n * 4_099, post.id);
        }
    }
    text
}
