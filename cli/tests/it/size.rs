//! Tests `tidemark size`: loads a tenth of a workload into a real server with the printed settings.
//! The resources that the server uses must match the computed resources within 5 %.

use clap::Parser;
use cli::size::{Plan, SizeArgs};
use client::Reply;
use harness::program::Program;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

const POSTS_PER_DAY: u64 = 6_000_000;
const OUTLIERS: f64 = 0.02;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    size: SizeArgs,
}

/// Returns the options for a single day with `posts` posts, all of them in memory.
fn options(posts: u64) -> Vec<String> {
    let one_day = "--retention-days 1 --memory-days 1 --like-days 1 --read-days 1";
    let text =
        format!("--posts-per-day {posts} --reads-per-post 3 --outliers {OUTLIERS} {one_day}");
    text.split(' ').map(str::to_owned).collect()
}

fn plan(posts: u64) -> Plan {
    let words = std::iter::once("size".to_owned()).chain(options(posts));
    Plan::of(&Cli::parse_from(words).size).unwrap()
}

#[track_caller]
fn assert_close(what: &str, computed: f64, measured: f64) {
    let ratio = measured / computed;
    eprintln!("{what}: computed {computed:.0}, measured {measured:.0}, ratio {ratio:.3}");
    assert!((0.95..=1.05).contains(&ratio), "{what}: computed {computed}, measured {measured}");
}

fn figure(spaces: &Reply, space: &str, name: &str) -> f64 {
    let text = |frame: &Reply| match frame {
        Reply::BulkString(bytes) | Reply::SimpleString(bytes) => {
            String::from_utf8(bytes.clone()).unwrap()
        }
        Reply::Integer(n) => n.to_string(),
        Reply::Null => "nil".to_owned(),
        // Key patterns of the space.
        Reply::Array(_) => String::new(),
        other => panic!("{other:?}"),
    };
    let Reply::Array(spaces) = spaces else { panic!("{spaces:?}") };
    for one in spaces {
        let Reply::Array(pairs) = one else { panic!("{one:?}") };
        let words: Vec<String> = pairs.iter().map(text).collect();
        if words[1] == space {
            let at = words.iter().position(|word| word == name).unwrap();
            return words[at + 1].parse().unwrap();
        }
    }
    panic!("no space {space}")
}

/// Writes the files of one day: rows with realistic counts, and flags that favour recent posts.
/// Returns the ids of the posts.
fn generate(folder: &std::path::Path, posts: usize) -> Vec<u64> {
    let mut rng = fastrand::Rng::with_seed(11);
    let mut ids: Vec<u64> =
        (0..posts).map(|_| (1 << 50) + rng.u64(0..posts as u64 * 4096)).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut rows = String::from("id,like,repost,comment,read\n");
    for id in &ids {
        let most = |rng: &mut fastrand::Rng, digits: usize| {
            10u64.pow(u32::try_from(rng.usize(0..digits)).unwrap()) * rng.u64(1..=4)
        };
        let (like, read) = (most(&mut rng, 3), most(&mut rng, 4));
        let read = if rng.f64() < OUTLIERS { 70_000 + read } else { read };
        rows += &format!("{id},{like},{},{},{read}\n", rng.u64(0..30), rng.u64(0..30));
    }
    std::fs::write(folder.join("rows.csv"), rows).unwrap();
    for (name, per_post) in [("liked", 2), ("read", 3)] {
        let mut lines = String::from("id,member\n");
        for flag in 0..ids.len() * per_post {
            let age = (rng.f64().powi(3) * 3_000.0) as usize;
            let at = (flag / per_post).saturating_sub(age);
            lines += &format!("{},{}\n", ids[at], rng.u64(0..50_000_000));
        }
        std::fs::write(folder.join(format!("{name}.csv")), lines).unwrap();
    }
    ids
}

#[test]
fn a_tenth_of_a_workload_takes_what_was_computed_for_it() {
    let tenth = POSTS_PER_DAY / 10;
    let plan = plan(tenth);
    let folder = tempfile::tempdir().unwrap();
    let printed = Command::new(harness::program())
        .arg("size")
        .args(options(tenth))
        .arg("--toml")
        .output()
        .unwrap();
    let file = folder.path().join("tidemark.toml");
    std::fs::write(&file, &printed.stdout).unwrap();
    let words = ["--config", file.to_str().unwrap()];
    let server = Program::start_as(&[], &folder.path().join("data"), &words).unwrap();

    let ids = generate(folder.path(), usize::try_from(tenth).unwrap());
    for space in ["post", "liked", "read"] {
        let name = if space == "post" { "rows" } else { space };
        // Use one connection, so that ids arrive in order.
        let port = server.port.to_string();
        let import = Command::new(harness::program())
            .args(["import", "-p", &port, "--connections", "1", "--space", space])
            .arg(folder.path().join(format!("{name}.csv")))
            .output()
            .unwrap();
        assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
    }

    let spaces = server.ask("TM.SPACE LIST");
    assert_close("memory of post", plan.row_memory, figure(&spaces, "post", "memory_bytes"));
    let tables = figure(&spaces, "post", "tables");
    assert!((tables - plan.tables as f64).abs() <= 1.0, "{tables} of {}", plan.tables);
    for flags in &plan.flags {
        let name = flags.name;
        assert_close(&format!("flags of {name}"), flags.flags, figure(&spaces, name, "pairs"));
        assert_close(
            &format!("memory of {name}"),
            flags.bytes,
            figure(&spaces, name, "memory_bytes"),
        );
        let tables = figure(&spaces, name, "tables");
        assert_close(&format!("tables of {name}"), flags.tables as f64, tables);
    }

    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let mut bytes = 0;
    let pages = 200;
    for page in 0..pages {
        let ids = &ids[page * 1_000..page * 1_000 + 20];
        let list: Vec<String> = ids.iter().map(u64::to_string).collect();
        write!(stream, "FEED.GET home 7 {}\r\nPING\r\n", list.join(" ")).unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"+PONG\r\n") {
            let mut piece = [0; 4096];
            let n = stream.read(&mut piece).unwrap();
            assert!(n > 0, "the server closed the connection");
            reply.extend_from_slice(&piece[..n]);
        }
        bytes += reply.len() - b"+PONG\r\n".len();
    }
    assert_close("bytes of a page", plan.page_bytes, bytes as f64 / pages as f64);
    assert!(server.terminate().success());
}

/// The filters of the last seven days are in memory. Older filters, and the ledger of a whole year,
/// are on disk.
#[test]
fn likes_of_all_days_are_on_the_disk() {
    let words = "size --posts-per-day 1000000 --likes-per-post 2 --like-days 7";
    let plan = Plan::of(&Cli::parse_from(words.split(' ')).size).unwrap();
    let [liked, read] = &plan.flags[..] else { panic!("{:?}", plan.flags) };
    assert_eq!((liked.ledger_pairs, liked.flags), (Some(730e6), 14e6));
    assert_close("likes on disk", 730e6 * 5.0 + 716e6 * liked.bits / 8.0, liked.disk_bytes());
    assert_eq!((read.ledger_pairs, read.disk_bytes()), (None, 0.0));
}

#[test]
fn ten_times_the_posts_take_ten_times_the_memory() {
    let (all, tenth) = (plan(POSTS_PER_DAY), plan(POSTS_PER_DAY / 10));
    assert_close("rows", all.row_memory / 10.0, tenth.row_memory);
    for (all, tenth) in all.flags.iter().zip(&tenth.flags) {
        assert_close(all.name, all.bytes / 10.0, tenth.bytes);
    }
}

#[test]
fn numbers_that_mean_nothing_are_refused() {
    for (option, value) in [
        ("--like-days", "inf"),
        ("--like-days", "NaN"),
        ("--cores", "0"),
        ("--outliers", "2"),
        ("--false-positive-rate", "-1"),
        ("--pages-per-second", "1e13"),
    ] {
        let told = std::process::Command::new(harness::program())
            .args(["size", "--posts-per-day", "1000000", &format!("{option}={value}")])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(
            said.contains("invalid value") && told.status.code() == Some(2),
            "{option}: {said}"
        );
    }
}
