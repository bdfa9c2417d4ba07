//! Prepared requests and their expected replies. Comparing replies byte for byte costs the client
//! almost no CPU time.

use crate::data::{Data, Liked, Page};
use crate::layout::Layout;
use client::{Inbox, MAX_INBOX_BYTES};
use std::io::{self, Read, Write as _};
use std::net::TcpStream;
use tidemark_bench::server::Server;

/// A sequence of requests and replies.
#[derive(Default)]
pub(crate) struct Pool {
    requests: Vec<u8>,
    replies: Vec<u8>,
    /// End offsets of each request and reply.
    ends: Vec<(usize, usize)>,
    /// Number of lines in each reply.
    lines: Vec<usize>,
}

/// Numbers of compared flags and compared likes, and of false positives among them.
#[derive(Default, Clone, Copy)]
pub(crate) struct Checked {
    pub(crate) flags: u64,
    pub(crate) false_yes: u64,
    /// Number of likes of the compared posts.
    pub(crate) likes: u64,
    /// Number of likes whose counter was not incremented because of a false positive.
    pub(crate) uncounted: u64,
}

impl Pool {
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

    /// Requests all pages once and compares them with the data. Counters must be equal and set
    /// flags must be found. A flag that is not set may be found at the false-positive rate of a
    /// Bloom filter, and FEED.ACT may suppress likes at the same rate. Counts both kinds of false
    /// positives. The caller decides how many are acceptable.
    pub(crate) fn of_pages(
        server: &Server,
        layout: Layout,
        (data, liked): (&Data, &Liked),
        pages: &[Page],
    ) -> io::Result<(Pool, Checked)> {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
        stream.set_nodelay(true)?;
        let mut inbox = Inbox::new(MAX_INBOX_BYTES);
        let (mut pool, mut checked) = (Pool::default(), Checked::default());
        let (mut request, mut reply, mut buf) = (Vec::new(), Vec::new(), vec![0; 1 << 16]);
        for page in pages {
            request.clear();
            reply.clear();
            layout.page(page, &mut request);
            stream.write_all(&request)?;
            let mut frames = Vec::new();
            while frames.len() < layout.replies(page) {
                match inbox.take()? {
                    Some(frame) => frames.push(frame),
                    None => match stream.read(&mut buf)? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        got => {
                            reply.extend_from_slice(&buf[..got]);
                            inbox.room()?.extend_from_slice(&buf[..got]);
                        }
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

    /// Returns the requests of an index range.
    pub(crate) fn requests(&self, from: usize, to: usize) -> &[u8] {
        &self.requests[self.starts(from).0..self.starts(to).0]
    }

    /// Returns the replies of an index range.
    pub(crate) fn replies(&self, from: usize, to: usize) -> &[u8] {
        &self.replies[self.starts(from).1..self.starts(to).1]
    }

    /// Returns the number of lines in these replies.
    pub(crate) fn lines(&self, from: usize, to: usize) -> usize {
        self.lines[from..to].iter().sum()
    }

    /// Mean bytes of a request and of a reply.
    pub(crate) fn bytes(&self) -> (f64, f64) {
        (
            self.requests.len() as f64 / self.len() as f64,
            self.replies.len() as f64 / self.len() as f64,
        )
    }
}
