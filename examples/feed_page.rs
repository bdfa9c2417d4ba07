//! A feed page with redis-rs: `cargo run -p tidemark-tests --example feed_page -- PORT FIRST_ID`

use redis::Commands;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let (port, first): (u16, u64) = (args[1].parse()?, args[2].parse()?);
    let (viewer, posts) = (7, [first, first + 1]);
    let mut r = redis::Client::open(("127.0.0.1", port))?.get_connection()?;

    // The viewer likes the first post. The reply is 1 for a new like. A repeated like changes
    // nothing, and the reply is 0.
    let _: (i64,) = redis::cmd("FEED.ACT").arg("like").arg(viewer).arg(first).query(&mut r)?;
    // Counts a comment with HINCRBY: each counter of a post is a field of its hash.
    let _: i64 = r.hincr(format!("post:{first}"), "comment", 1)?;
    // Reads the page. Each entry has the counters of the view, followed by the viewer's flags.
    let page: Vec<[i64; 6]> =
        redis::cmd("FEED.GET").arg("home").arg(viewer).arg(&posts).query(&mut r)?;

    for (post, [like, _repost, comment, _read, liked, _seen]) in posts.iter().zip(page) {
        let liked = if liked == 1 { "yes" } else { "no" };
        println!("post {post}: {like} likes, {comment} comments; liked by me: {liked}");
    }
    Ok(())
}
