//! A generated file of reposts, of the shape of the real data set: CSV lines
//! `created_at,post_id,origin_post_id,user_id`, an original post before its reposts.
//!
//! As in the real file, the number of reposts per post is heavy-tailed, and about four of ten
//! reposts come from a user that has reposted that post before. The same seed gives the same file.

use cli::day;
use std::fmt::Write;

/// Users are drawn from this many.
const USERS: u64 = 20_000;

/// The text of a file with this many original posts, and about forty times as many reposts.
pub fn csv(seed: u64, originals: usize) -> String {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut text = String::from("created_at,post_id,origin_post_id,user_id\n");
    for post in day::posts(seed, originals) {
        let (hour, minute) = post.clock();
        let author = 833_930_000_000 + rng.u64(0..USERS);
        let at = format!("2026-01-01 {hour:02}:{minute:02}:{:02}", rng.u8(0..60));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{at},{},,{author}", post.id);
        let mut users = vec![author];
        let reposts = 1 + post.counts[0].min(2_000);
        for n in 1..=reposts {
            let again = rng.u8(0..10) < 4;
            let user =
                if again { users[rng.usize(0..users.len())] } else { author + rng.u64(0..USERS) };
            users.push(user);
            // The id of a repost is a little above that of its original.
            let _ = writeln!(text, "{at},{},{},{user}", post.id + n * 4_099, post.id);
        }
    }
    text
}
