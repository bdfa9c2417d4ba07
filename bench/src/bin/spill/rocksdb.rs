//! Measures RocksDB for comparison, with its own `db_bench` (Debian: rocksdb-tools). The database
//! has the same number of rows. Keys are sequential and 8 bytes long. Values are random and 6 bytes
//! long, about the size of a row in Tidemark. Settings: a Bloom filter with 10 bits per key, a
//! cache of 8 MiB, and direct I/O.

use crate::reads::times_of_children;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SETTINGS: &str = "--key_size=8 --value_size=6 --compression_ratio=1 --bloom_bits=10 \
                        --block_size=4096 --cache_size=8388608 --open_files=-1";

/// A filled database.
pub(crate) struct Peer {
    dir: PathBuf,
    rows: u64,
    compression: &'static str,
    pub(crate) bytes_per_row: f64,
}

impl Peer {
    /// Fills a database and compacts it to its lowest level.
    pub(crate) fn fill(dir: &Path, rows: u64, compression: &'static str) -> io::Result<Peer> {
        let mut peer = Peer { dir: dir.to_owned(), rows, compression, bytes_per_row: f64::NAN };
        if peer.dir.exists() {
            std::fs::remove_dir_all(&peer.dir)?;
        }
        peer.run("--benchmarks=fillseq,compact --disable_wal=1")?;
        let files = std::fs::read_dir(&peer.dir)?;
        let tables = files.flatten().filter(|file| file.path().extension() == Some("sst".as_ref()));
        let bytes: u64 = tables.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
        peer.bytes_per_row = bytes as f64 / rows as f64;
        Ok(peer)
    }

    /// Reads random rows with `readers` threads. Returns reads per second and CPU microseconds per
    /// read, excluding startup.
    pub(crate) fn read(&self, readers: u64, number: u64) -> io::Result<(f64, f64)> {
        let run = |each: u64| {
            self.run(&format!(
                "--benchmarks=readrandom --use_existing_db=1 --use_direct_reads=1 \
                 --threads={readers} --reads={each}"
            ))
        };
        let (_, starting) = run(1)?;
        let (per_s, all) = run(number / readers)?;
        Ok((per_s, (all - starting).max(0.0) / (number - readers) as f64))
    }

    /// Runs a benchmark. Returns the operations per second and the CPU time of the process in
    /// microseconds.
    fn run(&self, words: &str) -> io::Result<(f64, f64)> {
        let before = times_of_children(std::process::id());
        let output = Command::new("db_bench")
            .args(SETTINGS.split_ascii_whitespace())
            .args(words.split_ascii_whitespace())
            .arg(format!("--compression_type={}", self.compression))
            .arg(format!("--num={}", self.rows))
            .arg(format!("--db={}", self.dir.display()))
            .stderr(Stdio::null())
            .output()
            .map_err(|error| io::Error::other(format!("db_bench (rocksdb-tools): {error}")))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let words: Vec<&str> = said.split_ascii_whitespace().collect();
        let at = words.iter().rposition(|word| *word == "ops/sec");
        let per_s = at.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok());
        let per_s = per_s.ok_or_else(|| io::Error::other(format!("db_bench printed: {said}")))?;
        Ok((per_s, times_of_children(std::process::id()) - before))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.dir);
    }
}
