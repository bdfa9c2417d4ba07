//! The path of a page, for a tool that counts: requests go through a turn without a socket, over
//! and over.
//!
//! ```text
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*Local*turn*' \
//!     target/debug/page_path page 1000
//! ```
//!
//! Words: `page` (20 posts, unpipelined), `young` (the same, in spaces whose old tables lie on the
//! disk), `pages` (8 of them in a turn), `binary`, `stock` (20 HMGET and 2 PH.EXISTS), `likes` (16
//! FEED.ACT of new likes in a turn), `ping`. Prints how many requests it made, in all and after the
//! first turn.

use std::error::Error;
use tidemark_tests::{TestServer, request};

/// Posts that the pages show.
const POSTS: u64 = 4_000;

const FIRST: u64 = 3_631_614_501_919_378;

fn post(index: u64) -> String {
    (FIRST + index * 4194).to_string()
}

fn words_of(request: &str) -> Vec<&str> {
    request.split(' ').collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(what), Some(turns)) = (words.next(), words.next()) else {
        return Err("page_path WHAT TURNS".into());
    };
    let turns: u64 = turns.parse()?;
    let spills = what == "young";
    let server = TestServer::with(|config| {
        config.counter[0].spill = spills;
        config.existence.iter_mut().for_each(|space| space.spill = spills);
    });
    let mut local = server.server().local().ok_or("no client")?;
    let mut rng = fastrand::Rng::with_seed(1);
    // Not through `Local`, so that a tool may count that from its first call on.
    let mut raw = server.raw();
    if spills {
        let spaces = [
            ("post", "CNT.INCRBY post {} like 1"),
            ("liked", "PH.ADD liked 42 {}"),
            ("read", "PH.ADD read 42 {}"),
        ];
        for (space, add) in spaces {
            for id in (1..=100).rev().map(|before| FIRST - before * 4194) {
                let told = raw.ask(&words_of(&add.replace("{}", &id.to_string()))) + &raw.line();
                if told != "*1:1" {
                    return Err(format!("{space}: {told}").into());
                }
            }
            raw.ask(&["TM.ROLL", space]);
            let spilled = raw.ask(&["TM.SPILL", space]);
            if spilled != ":100" {
                return Err(format!("{space}: {spilled} instead of 100 were spilled").into());
            }
        }
    }
    for first in (0..POSTS).step_by(100) {
        let mut bytes = Vec::new();
        for index in first..first + 100 {
            let count = |rng: &mut fastrand::Rng, most: f64| {
                ((rng.f64().powi(4) * most) as u64).to_string()
            };
            let (like, repost, comment) =
                (count(&mut rng, 200.0), count(&mut rng, 40.0), count(&mut rng, 40.0));
            let read = count(&mut rng, 15_000.0);
            let fields = ["like", &like, "repost", &repost, "comment", &comment, "read", &read];
            bytes.extend(request(&[&["CNT.SET", "post", &*post(index)], &fields[..]].concat()));
        }
        let ids: Vec<String> = (0..20).map(|_| post(first + rng.u64(0..100))).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        bytes.extend(request(&[&["PH.ADD", "liked", "42"], &ids[..]].concat()));
        raw.send(&bytes);
        for _ in 0..100 {
            raw.line();
        }
        for _ in 0..21 {
            raw.line();
        }
    }
    let page = |rng: &mut fastrand::Rng| -> Vec<String> {
        (0..20).map(|_| post(rng.u64(..POSTS))).collect()
    };
    let get = |rng: &mut fastrand::Rng, last: &[&str]| {
        let ids = page(rng);
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        request(&[&["FEED.GET", "home", "42"], &ids[..], last].concat())
    };
    let (mut requests, mut replies) = (0, 0);
    for _ in 0..turns {
        let bytes = match &*what {
            "ping" => request(&["PING"]),
            "page" | "young" => get(&mut rng, &[]),
            "binary" => get(&mut rng, &["BINARY"]),
            "pages" => (0..8).flat_map(|_| get(&mut rng, &[])).collect(),
            "stock" => {
                let ids = page(&mut rng);
                let hmget = |id: &String| {
                    request(&["HMGET", &format!("post:{id}"), "like", "repost", "comment", "read"])
                };
                let mut bytes: Vec<u8> = ids.iter().flat_map(hmget).collect();
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                for space in ["liked", "read"] {
                    bytes.extend(request(&[&["PH.EXISTS", space, "42"], &ids[..]].concat()));
                }
                bytes
            }
            "likes" => (0..16)
                .flat_map(|_| {
                    let viewer = rng.u64(1000..1 << 40).to_string();
                    request(&["FEED.ACT", "like", &viewer, &post(rng.u64(..POSTS))])
                })
                .collect(),
            other => return Err(format!("unknown: {other}").into()),
        };
        replies += local.turn(&bytes).len();
        requests += bytes.iter().filter(|&&b| b == b'*').count();
    }
    println!("{requests} requests, {replies} bytes of replies");
    drop(local);
    server.stop();
    Ok(())
}
