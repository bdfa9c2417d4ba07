//! The densest manual encoding of the counters in Redis, for comparison. Redis stores one hash per
//! 100 posts, small enough for a listpack. A hash has one field per post, whose value contains the
//! four counters as varints. A read scans the hash. An increment is a script that unpacks the
//! value, adds to the counters and packs the value again.
//!
//! Consecutive ids favour this encoding: a field name is a number less than 100 and takes two
//! bytes. Ids with gaps would need several more bytes per post.

use client::{Client, Reply};
use std::io;
use std::path::Path;
use std::time::Instant;
use tidemark_bench::server::Server;

/// Posts per hash.
const POSTS: u64 = 100;

/// Adds `ARGV[2..5]` to the counters of post `ARGV[1]` in `KEYS[1]`. A varint has seven bits per
/// byte, lowest bits first. The high bit is set in all bytes except the last.
const ADD: &str = "
local packed = redis.call('HGET', KEYS[1], ARGV[1]) or '\\0\\0\\0\\0'
local at, out = 1, {}
for i = 2, 5 do
  local value, factor = 0, 1
  repeat
    local byte = packed:byte(at)
    at = at + 1
    value = value + (byte % 128) * factor
    factor = factor * 128
  until byte < 128
  value = value + tonumber(ARGV[i])
  while value >= 128 do
    out[#out + 1] = string.char(128 + value % 128)
    value = math.floor(value / 128)
  end
  out[#out + 1] = string.char(value)
end
redis.call('HSET', KEYS[1], ARGV[1], table.concat(out))
return 1";

/// A Redis server that stores posts in the packed encoding.
pub(crate) struct Packed {
    server: Server,
    client: Client,
    script: Vec<u8>,
    begin: (Instant, u64, f64),
    waiting: usize,
}

fn text(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}

/// Returns the key (at most six bytes) and the field (two digits) of post `number`.
fn place(number: u64) -> (Vec<u8>, Vec<u8>) {
    let hash = number / POSTS;
    let bytes = hash.to_be_bytes();
    (bytes[bytes.iter().position(|b| *b != 0).unwrap_or(7)..].to_vec(), text(number % POSTS))
}

impl Packed {
    /// Starts the server.
    pub(crate) fn new(program: &Path) -> io::Result<Packed> {
        let options = &["--appendonly", "no", "--hash-max-listpack-entries", "100"];
        let server = Server::redis(program, &std::env::temp_dir(), options)?;
        let mut client = server.client()?;
        let Reply::BulkString(script) = client.call(&[b"SCRIPT", b"LOAD", ADD.as_bytes()])? else {
            return Err(io::Error::other("SCRIPT LOAD"));
        };
        let begin = (Instant::now(), used(&server)?, server.cpu_s());
        Ok(Packed { server, client, script, begin, waiting: 0 })
    }

    /// Adds to a post's counters with the script.
    pub(crate) fn add(&mut self, number: u64, row: [i64; 4]) -> io::Result<()> {
        let (key, field) = place(number);
        let row = row.map(|v| text(v as u64));
        self.client.push(&[
            b"EVALSHA",
            &self.script,
            b"1",
            &key,
            &field,
            &row[0],
            &row[1],
            &row[2],
            &row[3],
        ]);
        self.waiting += 1;
        if self.waiting == 200 { self.settle() } else { Ok(()) }
    }

    fn settle(&mut self) -> io::Result<()> {
        for _ in 0..std::mem::take(&mut self.waiting) {
            let reply = self.client.reply()?;
            if reply != Reply::Integer(1) {
                return Err(io::Error::other(format!("{reply:?}")));
            }
        }
        Ok(())
    }

    /// Compares the totals with `sums` and prints the memory per post.
    pub(crate) fn show(&mut self, posts: u64, sums: [i64; 4]) -> io::Result<()> {
        self.settle()?;
        let (begin, before, cpu) = self.begin;
        let (took, cpu) = (begin.elapsed(), self.server.cpu_s() - cpu);
        let mut found = [0; 4];
        for number in 0..posts {
            let (key, field) = place(number);
            self.client.push(&[b"HGET", &key, &field]);
            if number % 200 < 199 && number + 1 < posts {
                continue;
            }
            for _ in 0..number % 200 + 1 {
                let Reply::BulkString(packed) = self.client.reply()? else {
                    return Err(io::Error::other("a post was not found"));
                };
                let mut values = packed.split_inclusive(|byte| byte & 128 == 0);
                for sum in &mut found {
                    let digits = values.next().unwrap_or_default().iter().rev();
                    *sum += digits.fold(0, |value, byte| value * 128 + i64::from(byte & 127));
                }
            }
        }
        assert_eq!(found, sums, "all increments were applied");
        let encoding = self.client.call(&[b"OBJECT", b"ENCODING", &place(0).0])?;
        println!(
            "\npacked by a Lua script in Redis: {posts} posts, {:.3} bytes per row ({:.3} \
             resident), {encoding:?}; {:.1?}, {:.0} ns of server CPU time per increment",
            (used(&self.server)? - before) as f64 / posts as f64,
            self.server.memory_mib() * 1048576.0 / posts as f64,
            took,
            cpu * 1e9 / (2 * posts) as f64
        );
        Ok(())
    }
}

fn used(server: &Server) -> io::Result<u64> {
    server.info("used_memory")?.parse().map_err(io::Error::other)
}
