//! Layouts of the data in each server, and the commands to read a page from them.
//!
//! | layout | a post | a viewer's flags | a page of 20 |
//! |---|---|---|---|
//! | `feed` | row of a counter space | pairs of two existence spaces | one FEED.GET |
//! | `binary` | the same | the same | one FEED.GET ... BINARY |
//! | `stock` | the same | the same | 20 HMGET and 2 PH.EXISTS: an unmodified Redis client |
//! | `hash` | a hash of four fields | two sets of post ids | 20 HMGET and 2 SMISMEMBER |
//! | `string` | four strings | the same | one MGET of 80 keys and 2 SMISMEMBER |
//! | `bucket` | a hash per 100 posts, four fields per post | the same | 20 HMGET, 2 SMISMEMBER |
//! | `bloom` | same as `hash` | two Bloom filters (0.01 %) | 20 HMGET and 2 BF.MEXISTS |

use crate::data::{self, Counts, Data, FIELDS, Page};
use client::{Client, Reply, put_command};
use std::io;

/// A layout of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Feed,
    Binary,
    Stock,
    Hash,
    String,
    Bucket,
    Bloom,
}

/// Posts per bucket.
const BUCKET: u64 = 100;
const SETS: [&str; 2] = ["liked", "read"];

/// Contents of a page: counters and flags of each post.
pub(crate) type Shown = Vec<(Counts, [bool; 2])>;

impl Layout {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Layout::Feed => "feed",
            Layout::Binary => "binary",
            Layout::Stock => "stock",
            Layout::Hash => "hash",
            Layout::String => "string",
            Layout::Bucket => "bucket",
            Layout::Bloom => "bloom",
        }
    }

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Layout::Feed | Layout::Binary | Layout::Stock)
    }

    /// Number of replies to the commands of a page.
    pub(crate) fn replies(self, page: &Page) -> usize {
        match self {
            Layout::Feed | Layout::Binary => 1,
            Layout::String => 3,
            Layout::Stock | Layout::Hash | Layout::Bucket | Layout::Bloom => page.posts.len() + 2,
        }
    }

    /// Number of lines in these replies; 0 for binary replies.
    pub(crate) fn lines(self, page: &Page) -> usize {
        let posts = page.posts.len();
        match self {
            Layout::Feed => 1 + posts * 7,
            Layout::Binary => 0,
            Layout::String => 1 + posts * 8 + 2 * (1 + posts),
            Layout::Stock | Layout::Hash | Layout::Bucket | Layout::Bloom => {
                posts * 9 + 2 * (1 + posts)
            }
        }
    }

    /// Appends the commands of a page.
    pub(crate) fn page(self, page: &Page, out: &mut Vec<u8>) {
        let viewer = data::viewer(page.viewer).to_string();
        let ids: Vec<String> =
            page.posts.iter().map(|&p| data::post(u64::from(p)).to_string()).collect();
        let with_ids = |words: &[&str], out: &mut Vec<u8>| {
            let words: Vec<&str> =
                words.iter().copied().chain(ids.iter().map(String::as_str)).collect();
            command(&words, out);
        };
        match self {
            Layout::Feed | Layout::Binary => {
                let mut words: Vec<&str> = vec!["FEED.GET", "home", &viewer];
                words.extend(ids.iter().map(String::as_str));
                if self == Layout::Binary {
                    words.push("BINARY");
                }
                command(&words, out);
            }
            Layout::Stock | Layout::Hash | Layout::Bloom => {
                for id in &ids {
                    command(
                        &[
                            "HMGET",
                            &format!("post:{id}"),
                            FIELDS[0],
                            FIELDS[1],
                            FIELDS[2],
                            FIELDS[3],
                        ],
                        out,
                    );
                }
            }
            Layout::String => {
                let mut words = vec!["MGET".to_owned()];
                words.extend(
                    ids.iter().flat_map(|id| FIELDS.map(|field| format!("post:{id}:{field}"))),
                );
                command(&words.iter().map(String::as_str).collect::<Vec<_>>(), out);
            }
            Layout::Bucket => {
                for &post in &page.posts {
                    let (bucket, at) = bucketed(u64::from(post));
                    let fields = ["l", "r", "c", "v"].map(|field| format!("{at}{field}"));
                    command(
                        &["HMGET", &bucket, &fields[0], &fields[1], &fields[2], &fields[3]],
                        out,
                    );
                }
            }
        }
        for set in SETS {
            match self {
                Layout::Feed | Layout::Binary => {}
                Layout::Stock => with_ids(&["PH.EXISTS", set, &viewer], out),
                Layout::Bloom => with_ids(&["BF.MEXISTS", &format!("{set}:{viewer}")], out),
                Layout::Hash | Layout::String | Layout::Bucket => {
                    with_ids(&["SMISMEMBER", &format!("{set}:{viewer}")], out);
                }
            }
        }
    }

    /// Appends the commands of a like. Returns the number of lines in their replies.
    pub(crate) fn like(self, viewer: usize, post: u64, out: &mut Vec<u8>) -> usize {
        let (viewer, id) = (data::viewer(viewer).to_string(), data::post(post).to_string());
        if self.is_ours() {
            command(&["FEED.ACT", "like", &viewer, &id], out);
            return 2;
        }
        let set = if self == Layout::Bloom { "BF.ADD" } else { "SADD" };
        command(&["MULTI"], out);
        command(&[set, &format!("liked:{viewer}"), &id], out);
        match self {
            Layout::String => command(&["INCR", &format!("post:{id}:like")], out),
            Layout::Bucket => {
                let (bucket, at) = bucketed(post);
                command(&["HINCRBY", &bucket, &format!("{at}l"), "1"], out);
            }
            _ => command(&["HINCRBY", &format!("post:{id}"), "like", "1"], out),
        }
        command(&["EXEC"], out);
        6
    }

    /// Stores all posts.
    pub(crate) fn load_posts(self, data: &Data, client: &mut Client) -> io::Result<()> {
        for (index, counts) in data.counts.iter().enumerate() {
            let id = data::post(index as u64).to_string();
            let [like, repost, comment, read] = counts.map(|n| n.to_string());
            let row = [FIELDS[0], &like, FIELDS[1], &repost, FIELDS[2], &comment, FIELDS[3], &read];
            let words: Vec<String> = match self {
                Layout::Feed | Layout::Binary | Layout::Stock => {
                    ["CNT.SET", "post", &id].iter().chain(&row).map(|&w| w.to_owned()).collect()
                }
                Layout::Hash | Layout::Bloom => ["HSET", &format!("post:{id}")]
                    .iter()
                    .chain(&row)
                    .map(|&w| w.to_owned())
                    .collect(),
                Layout::String => {
                    ["MSET".to_owned()]
                        .into_iter()
                        .chain(row.chunks(2).flat_map(|cell| {
                            [format!("post:{id}:{}", cell[0]), cell[1].to_owned()]
                        }))
                        .collect()
                }
                Layout::Bucket => {
                    let (bucket, at) = bucketed(index as u64);
                    let fields =
                        ["l", "r", "c", "v"].into_iter().zip([&like, &repost, &comment, &read]);
                    ["HSET".to_owned(), bucket]
                        .into_iter()
                        .chain(fields.flat_map(|(field, n)| [format!("{at}{field}"), n.clone()]))
                        .collect()
                }
            };
            push(client, &words.iter().map(String::as_bytes).collect::<Vec<_>>())?;
        }
        drain(client)
    }

    /// Stores all flags in chronological order.
    pub(crate) fn load_flags(self, data: &Data, client: &mut Client) -> io::Result<()> {
        if self == Layout::Bloom {
            for index in 0..data.flags.len() {
                for set in SETS {
                    let key = format!("{set}:{}", data::viewer(index));
                    push(client, &[b"BF.RESERVE", key.as_bytes(), b"0.0001", b"100"])?;
                }
            }
        }
        for (viewer, set, post) in data.history() {
            let (viewer, set, id) = (
                data::viewer(viewer).to_string(),
                SETS[set],
                data::post(u64::from(post)).to_string(),
            );
            let key = format!("{set}:{viewer}");
            let words = match self {
                Layout::Feed | Layout::Binary | Layout::Stock => {
                    ["PH.ADD", set, &viewer, &id].to_vec()
                }
                Layout::Bloom => ["BF.ADD", &key, &id].to_vec(),
                Layout::Hash | Layout::String | Layout::Bucket => ["SADD", &key, &id].to_vec(),
            };
            push(client, &words.into_iter().map(str::as_bytes).collect::<Vec<_>>())?;
        }
        drain(client)
    }

    pub(crate) fn read(self, page: &Page, replies: &[Reply]) -> io::Result<Shown> {
        let posts = page.posts.len();
        let wrong = || {
            io::Error::other(format!(
                "{}: unexpected reply to a page request: {replies:?}",
                self.name()
            ))
        };
        match self {
            Layout::Feed => {
                let rows = replies.first().and_then(array).ok_or_else(wrong)?;
                let row = |row| {
                    let values: Vec<i64> = array(row)?.iter().map_while(number).collect();
                    let counts = values.get(..4)?.try_into().ok()?;
                    Some((counts, [*values.get(4)? == 1, *values.get(5)? == 1]))
                };
                rows.iter().map(row).collect::<Option<Shown>>().ok_or_else(wrong)
            }
            Layout::Binary => {
                let Some(Reply::BulkString(bytes)) = replies.first() else {
                    return Err(wrong());
                };
                let row = |row: &[u8]| {
                    let counts = std::array::from_fn(|i| {
                        i64::from_le_bytes(row[i * 8..][..8].try_into().unwrap_or_default())
                    });
                    (counts, [row[32] == 1, row[33] == 1])
                };
                if bytes.len() == posts * 34 {
                    Ok(bytes.chunks_exact(34).map(row).collect())
                } else {
                    Err(wrong())
                }
            }
            Layout::String | Layout::Stock | Layout::Hash | Layout::Bucket | Layout::Bloom => {
                let (rows, flags) =
                    replies.split_at_checked(replies.len() - 2).ok_or_else(wrong)?;
                let all: Vec<i64> =
                    rows.iter().filter_map(array).flatten().map_while(number).collect();
                let flag = |side: usize, i: usize| Some(number(array(&flags[side])?.get(i)?)? == 1);
                let row = |i: usize| {
                    let counts = all.get(i * 4..i * 4 + 4)?.try_into().ok()?;
                    Some((counts, [flag(0, i)?, flag(1, i)?]))
                };
                (0..posts).map(row).collect::<Option<Shown>>().ok_or_else(wrong)
            }
        }
    }
}

/// Returns the hash key of a post, and the prefix of its fields.
fn bucketed(post: u64) -> (String, u64) {
    (format!("b:{}", data::post(post) / 4194 / BUCKET), data::post(post) / 4194 % BUCKET)
}

fn array(frame: &Reply) -> Option<&Vec<Reply>> {
    if let Reply::Array(frames) = frame { Some(frames) } else { None }
}

fn number(frame: &Reply) -> Option<i64> {
    match frame {
        Reply::Integer(n) => Some(*n),
        Reply::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

pub(crate) fn command(words: &[&str], out: &mut Vec<u8>) {
    put_command(out, &words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
}

fn push(client: &mut Client, words: &[&[u8]]) -> io::Result<()> {
    client.push(words);
    if client.is_full() { drain(client) } else { Ok(()) }
}

fn drain(client: &mut Client) -> io::Result<()> {
    while client.waiting() > 0 {
        if let Reply::Error(words) = client.reply()? {
            return Err(io::Error::other(format!("while loading: {words}")));
        }
    }
    Ok(())
}
