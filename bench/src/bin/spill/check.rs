//! Checks that rows have the expected values.

use crate::node::{CheckedConnection, Node};
use crate::rows::{Rows, SPACE, STRIDE, id, reply, request};
use std::io;
use std::time::{Duration, Instant};

/// Rows per request. The rows are consecutive, so most rows of a request are in one block.
const ROWS_PER_REQUEST: u64 = 1000;
/// Maximum number of pending requests per connection.
const MAX_PENDING_REQUESTS: usize = 4;
/// Number of connections.
const CONNECTIONS: u64 = 2;

/// Checks that every row of `0..rows` has its value after `rounds` rounds of changes. Returns the
/// duration.
pub(crate) fn every_row(node: &Node, all: &Rows, rows: u64, rounds: u64) -> io::Result<Duration> {
    sampled_pages(node, all, rows, rounds, 1)
}

/// Like [`every_row`], but checks only one in `pages` pages of consecutive rows.
pub(crate) fn sampled_pages(
    node: &Node,
    all: &Rows,
    rows: u64,
    rounds: u64,
    pages: u64,
) -> io::Result<Duration> {
    let began = Instant::now();
    let part = rows.div_ceil(CONNECTIONS);
    std::thread::scope(|scope| {
        let parts = (0..CONNECTIONS).map(|n| (n * part)..((n + 1) * part).min(rows));
        let threads: Vec<_> = parts
            .map(|range| scope.spawn(move || some_rows(node, all, range, rounds, pages)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| io::Error::other("a check panicked"))?
        })
    })?;
    Ok(began.elapsed())
}

fn some_rows(
    node: &Node,
    all: &Rows,
    range: std::ops::Range<u64>,
    rounds: u64,
    pages: u64,
) -> io::Result<()> {
    pages_of(node, all, range, rounds, pages, |link, first, text| {
        link.expect(text)
            .map_err(|error| io::Error::other(format!("rows from number {first}: {error}")))?;
        Ok(true)
    })
}

/// Requests one in `pages` pages of consecutive rows. Calls `look` for each requested page, with
/// the sequence number of its first row and the expected reply. Stops when `look` returns false.
fn pages_of(
    node: &Node,
    all: &Rows,
    range: std::ops::Range<u64>,
    rounds: u64,
    pages: u64,
    mut look: impl FnMut(&mut CheckedConnection, u64, &[u8]) -> io::Result<bool>,
) -> io::Result<()> {
    let mut link = node.connect()?;
    let (mut bytes, mut ids) = (Vec::new(), Vec::new());
    let mut expected = std::collections::VecDeque::new();
    let mut from = range.start;
    while from < range.end || !expected.is_empty() {
        if from < range.end && expected.len() < MAX_PENDING_REQUESTS {
            let to = (from + ROWS_PER_REQUEST).min(range.end);
            ids.clear();
            ids.extend((from..to).map(id));
            bytes.clear();
            request(&["CNT.GET", SPACE], &ids, &mut bytes);
            link.send(&bytes)?;
            let mut text = format!("*{}\r\n", ids.len()).into_bytes();
            (from..to).for_each(|number| reply(all.after(number, rounds), &mut text));
            expected.push_back((from, text));
            from += ROWS_PER_REQUEST * pages;
        } else if let Some((first, text)) = expected.pop_front()
            && !look(&mut link, first, &text)?
        {
            return Ok(());
        }
    }
    Ok(())
}

/// Checks rows that were being loaded during a kill. Each row must be complete or absent. The check
/// ends at the first request whose rows are all absent. Returns the number of complete rows.
pub(crate) fn whole_or_absent(node: &Node, all: &Rows, from: u64, to: u64) -> io::Result<u64> {
    let mut client = node.client()?;
    // Count complete pages up to the first page that differs.
    let mut whole = from;
    pages_of(node, all, from..to, 0, 1, |link, first, text| {
        let same = link.differs(text)?.is_none();
        if same {
            whole = (first + ROWS_PER_REQUEST).min(to);
        }
        Ok(same)
    })?;
    let mut there = whole - from;
    for first in (whole..to).step_by(ROWS_PER_REQUEST as usize) {
        let numbers: Vec<u64> = (first..(first + ROWS_PER_REQUEST).min(to)).collect();
        let ids: Vec<String> = numbers.iter().map(|&number| id(number).to_string()).collect();
        let words: Vec<&[u8]> = [&b"CNT.GET"[..], SPACE.as_bytes()]
            .into_iter()
            .chain(ids.iter().map(String::as_bytes))
            .collect();
        use client::Reply::{Array, Integer};
        let Array(rows) = client.call(&words)? else {
            return Err(io::Error::other("unexpected reply"));
        };
        let mut seen = 0;
        for (row, &number) in rows.iter().zip(&numbers) {
            let Array(values) = row else { continue };
            let values: Vec<i64> =
                values.iter().map(|v| if let Integer(n) = v { *n } else { i64::MIN }).collect();
            if values != all.row(number) {
                return Err(io::Error::other(format!("row {number} is incomplete: {values:?}")));
            }
            seen += 1;
        }
        there += seen;
        if seen == 0 {
            break;
        }
    }
    Ok(there)
}

/// Applies one round of changes to all rows (see `rows.rs`) and checks every reply.
pub(crate) fn change(node: &Node, all: &Rows, rows: u64, round: u64) -> io::Result<Duration> {
    let began = Instant::now();
    let mut link = node.connect()?;
    let with = |at: u64| -> Vec<u64> { (at..rows).step_by(STRIDE as usize).collect() };
    let (raised, deleted) = (with(round), with(STRIDE - 1 - round));
    for (raised, deleted) in
        raised.chunks(ROWS_PER_REQUEST as usize).zip(deleted.chunks(ROWS_PER_REQUEST as usize))
    {
        let (mut bytes, mut text) = (Vec::new(), Vec::new());
        let mut words = vec!["CNT.MINCRBY".to_owned(), SPACE.to_owned()];
        text.extend_from_slice(format!("*{}\r\n", raised.len()).as_bytes());
        for &number in raised {
            words.extend([id(number).to_string(), "like".to_owned(), "1".to_owned()]);
            text.extend_from_slice(format!(":{}\r\n", all.row(number)[0] + 1).as_bytes());
        }
        request(&words.iter().map(String::as_str).collect::<Vec<_>>(), &[], &mut bytes);
        let ids: Vec<u64> = deleted.iter().map(|&number| id(number)).collect();
        request(&["CNT.DEL", SPACE], &ids, &mut bytes);
        text.extend_from_slice(format!(":{}\r\n", ids.len()).as_bytes());
        link.send(&bytes)?;
        link.expect(&text)?;
    }
    Ok(began.elapsed())
}
