//! The main use case on real input: repost events of a microblog are imported over the wire and
//! queried.
//!
//! The tests use a generated file of the same format ([`tidemark_tests::reposts`]), and the real
//! data set as well if it exists at `../shared/data`.

use cli::import::{ImportArgs, run};
use client::ConnectArgs;
use flate2::read::MultiGzDecoder;
use redis::Commands;
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use tidemark_tests::{TestServer, reposts};

/// Path of the real data set, searched in all parent folders.
pub(super) fn real_file() -> Option<PathBuf> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().map(|a| a.join("shared/data/weibo_reposts.csv.gz")).find(|p| p.exists())
}

/// Generates a file of the same format.
pub(super) fn generated_file(folder: &Path, originals: usize) -> PathBuf {
    let path = folder.join("reposts.csv.gz");
    let file = std::fs::File::create(&path).unwrap();
    let mut gz = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    gz.write_all(reposts::csv(7, originals).as_bytes()).unwrap();
    gz.finish().unwrap();
    path
}

/// Computes the expected result with plain sets: users that reposted each post, number of events,
/// number of originals.
pub(super) fn reposters(path: &Path) -> (BTreeMap<u64, HashSet<u64>>, u64, u64) {
    let mut users: BTreeMap<u64, HashSet<u64>> = BTreeMap::new();
    let (mut events, mut originals) = (0, 0);
    let file = std::fs::File::open(path).unwrap();
    for line in BufReader::new(MultiGzDecoder::new(file)).lines().skip(1) {
        let line = line.unwrap();
        let columns: Vec<&str> = line.split(',').collect();
        match columns[2].parse() {
            Ok(origin) => {
                users.entry(origin).or_default().insert(columns[3].parse().unwrap());
                events += 1;
            }
            Err(_) => originals += 1,
        }
    }
    (users, events, originals)
}

/// Returns the arguments of `tidemark import FILE` for this server.
fn arguments(server: &TestServer, file: PathBuf, strict: bool) -> ImportArgs {
    ImportArgs {
        files: vec![file],
        connect: ConnectArgs { port: server.port(), ..ConnectArgs::default() },
        strict,
        ..ImportArgs::default()
    }
}

fn import(server: &TestServer, file: PathBuf) -> cli::import::Summary {
    run(&arguments(server, file, false)).unwrap()
}

/// This test needs nothing outside the repository.
#[test]
fn generated_reposts_are_counted_once_per_user() {
    let folder = tempfile::tempdir().unwrap();
    let path = generated_file(folder.path(), 500);
    let (posts, pairs, events) = reposts_are_counted_once_per_user(&path);
    assert_eq!(posts, 500);
    assert!((10_000..40_000).contains(&events), "{events}");
    assert!((5 * events..8 * events).contains(&(10 * pairs)), "{pairs} pairs of {events}");
}

/// Repeats the test with the real data set, if available.
#[test]
fn real_reposts_are_counted_once_per_user() {
    if let Some(path) = real_file() {
        let found = reposts_are_counted_once_per_user(&path);
        assert_eq!(found, (521, 63_172, 113_110), "the data set differs");
    }
}

/// Imports a file and checks every counter and flag. Returns the numbers of posts, pairs and
/// events.
fn reposts_are_counted_once_per_user(path: &Path) -> (usize, u64, u64) {
    let (users, events, originals) = reposters(path);
    let pairs: u64 = users.values().map(|u| u.len() as u64).sum();

    let server = TestServer::start();
    let summary = import(&server, path.to_path_buf());
    assert_eq!((summary.events, summary.originals, summary.bad), (events, originals, 0));
    assert_eq!(summary.changed + summary.repeated, events);
    assert_eq!(summary.unknown, 0);
    let lost = pairs - summary.changed;
    assert!(
        lost as f64 <= 3.0 + 3.0 * 0.0001 * pairs as f64,
        "{lost} first reposts were not counted"
    );

    let mut connection = server.connection();
    let mut off = 0;
    for (origin, users) in &users {
        let count: u64 = connection.hget(format!("post:{origin}"), "repost").unwrap();
        assert!(count <= users.len() as u64, "{origin}: {count} reposts by {} users", users.len());
        off += users.len() as u64 - count;
        let mut check = redis::cmd("BF.MEXISTS");
        check.arg(format!("reposted:{origin}"));
        for user in users {
            check.arg(user);
        }
        let found: Vec<u8> = check.query(&mut connection).unwrap();
        assert!(found.iter().all(|&f| f == 1), "{origin}: a set pair was reported as unset");
    }
    assert_eq!(off, lost, "counters and flags differ");

    // Look up a million absent pairs: real posts with users that are not in the file.
    let origins: Vec<u64> = users.keys().copied().collect();
    let (mut asked, mut wrong) = (0u64, 0u64);
    let mut rng = fastrand::Rng::with_seed(5);
    for chunk in 0..1000 {
        let origin = origins[chunk % origins.len()];
        let mut check = redis::cmd("BF.MEXISTS");
        check.arg(format!("reposted:{origin}"));
        for _ in 0..1000 {
            check.arg(1_000_000_000_000u64 + rng.u64(0..1 << 50));
        }
        let found: Vec<u8> = check.query(&mut connection).unwrap();
        asked += found.len() as u64;
        wrong += found.iter().filter(|&&f| f == 1).count() as u64;
    }
    let rate = wrong as f64 / asked as f64;
    eprintln!(
        "{asked} unset pairs: {wrong} false positives, {:.4} %; {lost} reposts lost",
        rate * 100.0
    );
    assert!(asked >= 1_000_000 && rate <= 0.0002, "{rate}");

    // A second import changes nothing.
    let again = import(&server, path.to_path_buf());
    assert_eq!((again.events, again.changed), (events, 0));
    (users.len(), pairs, events)
}

#[test]
fn bad_lines_are_named_and_skipped() {
    let server = TestServer::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.csv");
    let text = "id,like,repost,comment,read\n1,10,0,0,100\nx,1,1,1,1\n2,5,5\n\n\
                18446744073709551616,1,1,1,1\n3,9223372036854775807,-1,70000,-9223372036854775808\n\
                18446744073709551615,7,7,7,7\n4,1,1,1,1e3\n5,1,2,3,4\n\"open,1,2,3,4";
    std::fs::write(&file, text).unwrap();
    let summary = import(&server, file.clone());
    assert_eq!((summary.lines, summary.rows, summary.bad), (9, 4, 5));
    let mut connection = server.connection();
    let row = |c: &mut redis::Connection, id: u64| -> Vec<i64> {
        c.hmget(format!("post:{id}"), &["like", "repost", "comment", "read"]).unwrap()
    };
    assert_eq!(row(&mut connection, 1), [10, 0, 0, 100]);
    assert_eq!(row(&mut connection, 3), [i64::MAX, -1, 70000, i64::MIN]);
    assert_eq!(row(&mut connection, u64::MAX), [7, 7, 7, 7]);
    assert_eq!(row(&mut connection, 5), [1, 2, 3, 4]);

    let strict = run(&arguments(&server, file.clone(), true));
    let error = strict.unwrap_err().to_string();
    assert!(error.contains("line 3") && error.contains("\"x\""), "{error}");

    // The header names an unknown field: no line is sent.
    std::fs::write(&file, "id,like,share\n1,2,3\n").unwrap();
    let error = run(&arguments(&server, file.clone(), false)).unwrap_err().to_string();
    assert!(error.contains("no such field 'share' in the space 'post'"), "{error}");
    // A truncated gzip stream is an error that names the file.
    let whole = {
        let mut gz = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
        gz.write_all(text.repeat(1000).as_bytes()).unwrap();
        gz.finish().unwrap()
    };
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let args = arguments(&server, file, false);
    let error = run(&args).unwrap_err().to_string();
    assert!(error.contains("rows.csv"), "{error}");
}
