//! A Rust client that requests a page in binary form and decodes it. `docs/binary.md` describes the
//! format.
//!
//! ```text
//! cargo run -p tidemark-tests --example binary_page -- redis://127.0.0.1:6399/ home 42 17 18 19
//! ```

use std::error::Error;

/// One entry of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Post {
    /// Id of the post.
    pub(crate) id: u64,
    /// Values of the view's counters.
    pub(crate) counters: Vec<i64>,
    /// The view's flags, or `None` if the id is below the horizon.
    pub(crate) flags: Vec<Option<bool>>,
}

/// Decodes the reply to `FEED.GET ... BINARY`. The view has the given numbers of counters and
/// flags.
pub(crate) fn decode(
    reply: &[u8],
    ids: &[u64],
    counters: usize,
    flags: usize,
) -> Result<Vec<Post>, String> {
    let width = counters * 8 + flags;
    if reply.len() != width * ids.len() {
        return Err(format!("{} bytes instead of {} rows of {width}", reply.len(), ids.len()));
    }
    let post = |(&id, row): (&u64, &[u8])| {
        let (numbers, marks) = row.split_at(counters * 8);
        let (eights, _) = numbers.as_chunks::<8>();
        let flag = |&mark: &u8| match mark {
            0 | 1 => Ok(Some(mark == 1)),
            0xff => Ok(None),
            other => Err(format!("invalid flag {other}")),
        };
        Ok(Post {
            id,
            counters: eights.iter().map(|eight| i64::from_le_bytes(*eight)).collect(),
            flags: marks.iter().map(flag).collect::<Result<_, String>>()?,
        })
    };
    ids.iter().zip(reply.chunks_exact(width.max(1))).map(post).collect()
}

/// Requests a page of a view that has the given numbers of counters and flags.
pub(crate) fn page(
    connection: &mut redis::Connection,
    view: &str,
    viewer: u64,
    ids: &[u64],
    counters: usize,
    flags: usize,
) -> Result<Vec<Post>, Box<dyn Error>> {
    let reply: Vec<u8> =
        redis::cmd("FEED.GET").arg(view).arg(viewer).arg(ids).arg("BINARY").query(connection)?;
    Ok(decode(&reply, ids, counters, flags)?)
}

/// The default view has four counters and two flags.
#[allow(dead_code, reason = "the tests take this file as a module")]
fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, view, viewer, ids @ ..] = &args[..] else {
        return Err("usage: binary_page URL VIEW VIEWER ID...".into());
    };
    let ids: Vec<u64> = ids.iter().map(|id| id.parse()).collect::<Result<_, _>>()?;
    let mut connection = redis::Client::open(url.as_str())?.get_connection()?;
    for Post { id, counters, flags } in page(&mut connection, view, viewer.parse()?, &ids, 4, 2)? {
        println!("{id}: {counters:?} {flags:?}");
    }
    Ok(())
}
