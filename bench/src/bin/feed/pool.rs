//! Requests made before a run, with the replies that they must get, byte for byte: so the load
//! costs the client next to nothing, and nothing that a server answers goes unchecked.

use crate::data::{Data, Liked, Page};
use crate::layout::Layout;
use redis_protocol::resp2::decode::decode;
use std::io::{self, Read, Write as _};
use std::net::TcpStream;
use tidemark_bench::server::Server;

/// Requests in a row, and the replies in the same order.
#[derive(Default)]
pub(crate) struct Pool {
    requests: Vec<u8>,
    replies: Vec<u8>,
    /// Where each request and each reply ends.
    ends: Vec<(usize, usize)>,
    /// Lines of each reply.
    lines: Vec<usize>,
}

/// Answers that were not the model's, of all that were compared.
#[derive(Default, Clone, Copy)]
pub(crate) struct Checked {
    pub(crate) flags: u64,
    pub(crate) false_yes: u64,
    /// Likes of the posts looked at.
    pub(crate) likes: u64,
    /// Those of them that were taken for given already, so that their counter was not moved: the
    /// cost of a false yes.
    pub(crate) uncounted: u64,
}

impl Pool {
    /// One request, one reply.
    pub(crate) fn of(request: &[u8], reply: &[u8], copies: usize) -> Pool {
        let mut pool = Pool::default();
        for _ in 0..copies {
            pool.push(request, reply, 0);
        }
        pool
    }

    fn push(&mut self, request: &[u8], reply: &[u8], lines: usize) {
        self.requests.extend_from_slice(request);
        self.replies.extend_from_slice(reply);
        self.ends.push((self.requests.len(), self.replies.len()));
        self.lines.push(lines);
    }

    /// Asks the server for all pages, one by one, and compares its answers with the data: counters
    /// must be equal, a flag that is set must be found; one that is not may be found by the
    /// configured rate of a Bloom filter, and is counted. So may a like be that FEED.ACT took for
    /// given: that is counted, too, and how many there may be is for the caller to say.
    pub(crate) fn of_pages(
        server: &Server,
        layout: Layout,
        (data, liked): (&Data, &Liked),
        pages: &[Page],
    ) -> io::Result<(Pool, Checked)> {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
        stream.set_nodelay(true)?;
        let (mut pool, mut checked) = (Pool::default(), Checked::default());
        let (mut request, mut reply, mut buf) = (Vec::new(), Vec::new(), vec![0; 1 << 16]);
        for page in pages {
            request.clear();
            reply.clear();
            layout.page(page, &mut request);
            stream.write_all(&request)?;
            let mut frames = Vec::new();
            let mut used = 0;
            while frames.len() < layout.replies(page) {
                match decode(&reply[used..]).map_err(|e| io::Error::other(e.to_string()))? {
                    Some((frame, length)) => {
                        frames.push(frame);
                        used += length;
                    }
                    None => match stream.read(&mut buf)? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        got => reply.extend_from_slice(&buf[..got]),
                    },
                }
            }
            let shown = layout.read(page, &frames)?;
            for (&post, (counts, flags)) in page.posts.iter().zip(&shown) {
                let (sums, expected) = data.truth(liked, page.viewer, post);
                let lost = expected.iter().zip(flags).any(|(set, shown)| *set && !shown);
                let given = liked.of(post);
                let uncounted = sums[0] - counts[0];
                if counts[1..] != sums[1..] || lost || !(0..=given).contains(&uncounted) {
                    return Err(io::Error::other(format!(
                        "post {post} for {}: {counts:?} {flags:?}",
                        page.viewer
                    )));
                }
                checked.likes += given as u64;
                checked.uncounted += uncounted as u64;
                checked.flags += 2;
                checked.false_yes +=
                    expected.iter().zip(flags).filter(|(set, shown)| !**set && **shown).count()
                        as u64;
            }
            pool.push(&request, &reply, layout.lines(page));
        }
        Ok((pool, checked))
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    fn starts(&self, index: usize) -> (usize, usize) {
        index.checked_sub(1).map_or((0, 0), |before| self.ends[before])
    }

    /// The requests from one index to another.
    pub(crate) fn requests(&self, from: usize, to: usize) -> &[u8] {
        &self.requests[self.starts(from).0..self.starts(to).0]
    }

    /// Their replies.
    pub(crate) fn replies(&self, from: usize, to: usize) -> &[u8] {
        &self.replies[self.starts(from).1..self.starts(to).1]
    }

    /// Lines of their replies.
    pub(crate) fn lines(&self, from: usize, to: usize) -> usize {
        self.lines[from..to].iter().sum()
    }

    /// Bytes of a request and a reply, in the mean.
    pub(crate) fn bytes(&self) -> (f64, f64) {
        (
            self.requests.len() as f64 / self.len() as f64,
            self.replies.len() as f64 / self.len() as f64,
        )
    }
}
