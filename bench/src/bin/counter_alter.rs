//! Pages and increments while the schema changes: does anybody wait for it?
//!
//! `cargo build --release -p tidemark -p tidemark-bench`, then `target/release/counter_alter
//! --rows 5000000`. Fields are added, widened and dropped in turn; all tables are rewritten after
//! each, in the background. Pages are asked for at an even rate, and timed from the moment when
//! each was due; so are increments, which go to old rows, half of them to the field that changed
//! last. *dd* stands for any program that takes a processor as long as the rewriting does: what a
//! page waits beside that is the machine's doing.

use clap::Parser;
use node::client::Client;
use redis_protocol::resp2::types::OwnedFrame;
use std::io;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidemark_bench::play::{fill, load, percentile, post, row_tidemark, text};
use tidemark_bench::server::{Place, Server};

/// Measures replies beside changes of the schema.
#[derive(Parser)]
struct Args {
    /// Rows.
    #[arg(long, default_value_t = 5_000_000)]
    rows: u64,
    /// Pages of 20 posts a second, and as many increments.
    #[arg(long, default_value_t = 500)]
    rate: u64,
    /// Rounds of an addition, a widening and a drop.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    place: Place,
}

/// How long nothing happens, and how long dd runs.
const CALM: Duration = Duration::from_secs(6);
const PHASES: [&str; 3] = ["nothing else", "ALTER", "dd"];
const OVER: usize = PHASES.len();

/// Asks at an even rate until it is over. Microseconds by phase, each from the moment when the
/// request was due.
fn ask(
    server: &Server,
    rate: u64,
    stage: &AtomicUsize,
    mut request: impl FnMut(&mut Client) -> io::Result<()>,
) -> io::Result<[Vec<f64>; 3]> {
    let mut client = server.client()?;
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut due = Instant::now();
    loop {
        let phase = stage.load(Relaxed);
        if phase == OVER {
            return Ok(times);
        }
        due += Duration::from_secs_f64(1.0 / rate as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        request(&mut client)?;
        if phase == stage.load(Relaxed) {
            times[phase].push(due.elapsed().as_secs_f64() * 1e6);
        }
    }
}

/// Changes the schema, and waits until no table has another one; how long the reply took, in
/// microseconds.
fn alter(client: &mut Client, words: &[&[u8]]) -> io::Result<f64> {
    let begun = Instant::now();
    let reply = client.call(&[&[&b"TM.SPACE"[..], b"ALTER", b"post"], words].concat())?;
    let us = begun.elapsed().as_secs_f64() * 1e6;
    let OwnedFrame::BulkString(schema) = reply else {
        return Err(io::Error::other(format!("ALTER: {reply:?}")));
    };
    while !tables(client)?.iter().all(|table| value(table, b"fields") == Some(&schema)) {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(us)
}

fn tables(client: &mut Client) -> io::Result<Vec<OwnedFrame>> {
    match client.call(&[b"TM.TABLES", b"post"])? {
        OwnedFrame::Array(tables) => Ok(tables),
        other => Err(io::Error::other(format!("TM.TABLES: {other:?}"))),
    }
}

/// A table's value of this name.
fn value<'a>(table: &'a OwnedFrame, name: &[u8]) -> Option<&'a Vec<u8>> {
    let OwnedFrame::Array(words) = table else { return None };
    words.chunks_exact(2).find_map(|pair| match pair {
        [OwnedFrame::BulkString(key), OwnedFrame::BulkString(value)] if key == name => Some(value),
        _ => None,
    })
}

// Long: one measurement after the other.
fn main() -> io::Result<()> {
    let args = Args::parse();
    let server = args.place.tidemark("everysec", "")?;
    fill(&server, args.rows, row_tidemark)?;
    println!(
        "{} rows, {} pages and increments a second each, load {}",
        args.rows,
        args.rate,
        load()
    );
    let (stage, changed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (mut pages, mut adds, alters) = std::thread::scope(|s| {
        let (server, stage, changed) = (&server, &stage, &changed);
        let pages = s.spawn(move || {
            let mut rng = fastrand::Rng::with_seed(1);
            ask(server, args.rate, stage, |client| {
                let ids: Vec<Vec<u8>> = (0..20).map(|_| text(post(rng.u64(..args.rows)))).collect();
                let mut words: Vec<&[u8]> = vec![b"FEED.GET", b"home", b"7"];
                words.extend(ids.iter().map(Vec::as_slice));
                match client.call(&words)? {
                    OwnedFrame::Array(page) if page.len() == 20 => Ok(()),
                    other => Err(io::Error::other(format!("FEED.GET: {other:?}"))),
                }
            })
        });
        let adds = s.spawn(move || {
            let mut rng = fastrand::Rng::with_seed(2);
            ask(server, args.rate, stage, |client| {
                let key = [b"post:", &text(post(rng.u64(..args.rows)))[..]].concat();
                let field = format!("x{}", changed.load(Relaxed));
                let field = if rng.bool() && field != "x0" { field.as_bytes() } else { b"like" };
                match client.call(&[b"HINCRBY", &key, field, b"3"])? {
                    // It may have been dropped meanwhile.
                    OwnedFrame::Integer(_) => Ok(()),
                    OwnedFrame::Error(e) if e.contains("No schema field") => Ok(()),
                    other => Err(io::Error::other(format!("HINCRBY: {other:?}"))),
                }
            })
        });
        let control = || -> io::Result<(Vec<f64>, f64)> {
            let mut client = server.client()?;
            let mut alters = Vec::new();
            std::thread::sleep(CALM);
            stage.store(1, Relaxed);
            let begun = Instant::now();
            for round in 1..=args.rounds {
                let name = format!("x{round}");
                alters.push(alter(&mut client, &[b"ADD", format!("{name}:14").as_bytes()])?);
                changed.store(round, Relaxed);
                alters.push(alter(
                    &mut client,
                    &[b"WIDEN", b"like", text(12 + 4 * round as u64).as_slice()],
                )?);
                alters.push(alter(&mut client, &[b"DROP", name.as_bytes()])?);
                changed.store(0, Relaxed);
            }
            let took = begun.elapsed().as_secs_f64();
            stage.store(2, Relaxed);
            let mut dd = Command::new("dd");
            dd.args(["if=/dev/urandom", "of=/dev/null", "bs=64K"]).stderr(Stdio::null());
            let mut dd = dd.spawn()?;
            std::thread::sleep(CALM);
            dd.kill()?;
            dd.wait()?;
            Ok((alters, took))
        };
        let alters = control();
        stage.store(OVER, Relaxed);
        let panicked = |_| io::Error::other("a client panicked");
        Ok::<_, io::Error>((
            pages.join().map_err(panicked)??,
            adds.join().map_err(panicked)??,
            alters?,
        ))
    })?;
    let (mut alters, took) = alters;
    println!(
        "{:>12} {:>12} {:>8} {:>8} {:>8} {:>8} {:>8}   microseconds",
        "", "beside", "number", "p50", "p99", "p99.9", "most"
    );
    for (name, times) in [("pages", &mut pages), ("increments", &mut adds)] {
        for (phase, times) in PHASES.iter().zip(times) {
            let [p50, p99, p999, most] =
                [0.5, 0.99, 0.999, 1.0].map(|share| percentile(times, share));
            println!(
                "{name:>12} {phase:>12} {:>8} {p50:>8.0} {p99:>8.0} {p999:>8.0} {most:>8.0}",
                times.len()
            );
        }
    }
    let n = alters.len();
    println!(
        "{n} changes, each answered in {:.0} microseconds at most (median {:.0}), and all tables \
         rewritten after each, in {took:.1} s",
        percentile(&mut alters, 1.0),
        percentile(&mut alters, 0.5)
    );
    Ok(())
}
