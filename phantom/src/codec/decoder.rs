//! Decoder of stored tables; implements D1 to D4 of `codec`.

use super::{
    BLOCK_HASHES, BLOCK_WORDS, CHECKSUM_BYTES, DecodeError, HEADER_BYTES, Header, StoredTable,
    TABLE_MAGIC, check_header,
};
use crate::filter::Filter;
use crate::hash::Seed;
use crate::options::Options;
use crate::sizing::{Sizing, uncertainty};
use crate::table::{ChainedFilter, Table};
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh3::xxh3_64;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Next {
    Header,
    /// Words of the filter `link`, starting at index `at`.
    Words {
        link: usize,
        at: usize,
    },
    Hashes {
        at: usize,
    },
    End,
}

/// Decodes one table from pieces of any size. See the module documentation of `codec`.
pub struct TableDecoder {
    seed: Seed,
    limit_bytes: u64,
    verify: bool,
    next: Next,
    offset: u64,
    /// Received bytes of the current header or block.
    buffer: Vec<u8>,
    header: Option<Header>,
    filters: Vec<Filter>,
    revoked: Vec<u128>,
}

impl TableDecoder {
    /// Returns a decoder for a table of the space with these `options`. `limit_bytes` bounds the
    /// memory of the table.
    pub fn new(options: &Options, limit_bytes: u64) -> TableDecoder {
        TableDecoder {
            seed: Seed::new(options.seed),
            limit_bytes,
            verify: true,
            next: Next::Header,
            offset: 0,
            buffer: vec![],
            header: None,
            filters: vec![],
            revoked: vec![],
        }
    }

    /// Disables checksums, which would reject nearly all fuzzed input.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn without_checksums(mut self) -> TableDecoder {
        self.verify = false;
        self
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn is_whole(&self) -> bool {
        self.next == Next::End
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn needs_bytes(&self) -> usize {
        self.needs() - self.buffer.len()
    }

    fn corrupt(&self, what: &'static str) -> DecodeError {
        DecodeError::Corrupt { offset: self.offset, what }
    }

    /// Size of the current header or block, including its checksum.
    fn needs(&self) -> usize {
        let body = match self.next {
            Next::Header => HEADER_BYTES,
            Next::Words { link, at } => {
                (self.filters[link].words().len() - at).min(BLOCK_WORDS) * 8
            }
            Next::Hashes { at } => {
                (self.header.as_ref().map_or(0, |header| header.revoked) - at).min(BLOCK_HASHES)
                    * 16
            }
            Next::End => return 0,
        };
        body + CHECKSUM_BYTES
    }

    /// Decodes the next piece.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), DecodeError> {
        while !bytes.is_empty() {
            let needs = self.needs();
            if needs == 0 {
                return Err(self.corrupt("bytes after the end"));
            }
            let (now, later) = bytes.split_at(bytes.len().min(needs - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == needs {
                let buffer = std::mem::take(&mut self.buffer);
                let (body, check) = buffer.split_at(needs - CHECKSUM_BYTES);
                if self.verify && xxh3_64(body).to_le_bytes() != check {
                    return Err(self.corrupt("checksum mismatch"));
                }
                self.take(body)?;
                self.offset += needs as u64;
                self.buffer = buffer;
                self.buffer.clear();
            }
        }
        Ok(())
    }

    fn take(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        match self.next {
            Next::Header => self.header(body),
            Next::Words { link, at } => {
                let words = self.filters[link].words();
                for (word, bytes) in words[at..].iter().zip(body.as_chunks().0) {
                    word.store(u64::from_le_bytes(*bytes), Relaxed);
                }
                let at = at + body.len() / 8;
                self.next = if at < words.len() {
                    Next::Words { link, at }
                } else if link + 1 < self.filters.len() {
                    Next::Words { link: link + 1, at: 0 }
                } else {
                    self.hashes_or_end()
                };
                Ok(())
            }
            Next::Hashes { .. } => {
                self.revoked
                    .extend(body.as_chunks().0.iter().map(|bytes| u128::from_le_bytes(*bytes)));
                self.next = self.hashes_or_end();
                Ok(())
            }
            Next::End => Err(self.corrupt("bytes after the end")),
        }
    }

    fn hashes_or_end(&self) -> Next {
        let at = self.revoked.len();
        if self.header.as_ref().is_some_and(|header| at < header.revoked) {
            Next::Hashes { at }
        } else {
            Next::End
        }
    }

    fn header(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        let header = check_header(body, TABLE_MAGIC, self.seed, self.limit_bytes)?;
        let new = |i| {
            let (sizing, pages) = Sizing::geometry(header.rate, header.pages, i);
            Filter::new(sizing, pages).map_err(|_| DecodeError::NoMemory)
        };
        self.filters = (0..header.links).map(new).collect::<Result<_, _>>()?;
        self.header = Some(header);
        self.next = Next::Words { link: 0, at: 0 };
        Ok(())
    }

    /// Returns the table. Fails if the input is incomplete.
    pub fn finish(self) -> Result<StoredTable, DecodeError> {
        let Some(header) = self.header.as_ref().filter(|_| self.next == Next::End) else {
            return Err(self.corrupt("unexpected end"));
        };
        assert!(
            header.links == self.filters.len() && header.pages == self.filters[0].pages(),
            "D1"
        );
        let (low, last, rate) = (header.low, header.last, header.rate);
        let (claimed, early) = (header.pairs, header.early);
        let mut links = vec![];
        for (i, filter) in self.filters.into_iter().enumerate() {
            // D4: derive the number of pairs from the number of set bits.
            let counted = filter.sizing().pairs_of(filter.ones(), filter.pages());
            let slack = uncertainty(counted);
            // Replay may insert late pairs in a different order, so a filter may exceed its
            // capacity. The table then reports a higher rate.
            let pairs = claimed[i].clamp(counted.saturating_sub(slack), counted + slack);
            links.push(ChainedFilter::new(filter, pairs));
        }
        let first = links.remove(0);
        let table = Table::from_links(rate, first, links, early);
        for hash in self.revoked {
            table.revoked.reserve(usize::MAX);
            table.revoked.insert_reserved(hash);
        }
        Ok(StoredTable { low, last, table, next_pages: 0, is_later: false })
    }
}
