//! Kills the real binary (SIGKILL) after an ALTER and a spill of rows with the new schema. The
//! replay begins at a log position before the ALTER, although cold files already have the wider
//! schema.
//!
//! `TIDEMARK_RUNS` (default 3) sets the number of runs, `TIDEMARK_SEED` the seed.

use client::{Client, Reply};
use harness::program::{Program, call, count, refusal, rounds, text, tidemark, until};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of new rows per round.
const ROWS: u64 = 30_000;
/// Fields in the configuration. Each round adds another field.
const FIELDS: [&str; 4] = ["like", "repost", "comment", "read"];

/// Values of each row, in the order in which the fields were created.
type Truth = BTreeMap<u64, Vec<i64>>;

fn start(dir: &Path) -> Program {
    let text = "[durability]\nfsync = \"always\"\nsnapshot_every = 0\nsnapshot_log = 0\n\
                [[counter]]\nname = \"post\"\nfields = \"like:12 repost:8 comment:8 read:16\"\n\
                rows = \"post:{id}\"\nspill = true\nrows_per_table = 10_000\n\
                memory_limit = 1_000_000\n\
                [[view]]\nname = \"home\"\ncounters = [\"post.like\", \"post.read\"]\n";
    Program::start_with(dir, text)
}

/// Sets one field of some rows and records the values. Retries rows that the server refused for
/// lack of memory, because a new table may have to wait for a spill.
fn set(client: &mut Client, truth: &mut Truth, field: (usize, &str), rows: &[(u64, i64)]) {
    for rows in rows.chunks(500) {
        let mut left = rows.to_vec();
        let begin = Instant::now();
        while !left.is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(60), "no memory for {:?}", left[0]);
            for (id, value) in &left {
                let key = [b"post:", &text(*id)[..]].concat();
                let value = value.to_string();
                client.push(&[b"HSET", &key, field.1.as_bytes(), value.as_bytes()]);
            }
            let mut refused = Vec::new();
            for (id, value) in left {
                match client.reply().unwrap() {
                    Reply::Integer(_) => {
                        let row = truth.entry(id).or_default();
                        row.resize(row.len().max(field.0 + 1), 0);
                        row[field.0] = value;
                    }
                    reply if refusal(&reply).starts_with("OOM") => refused.push((id, value)),
                    reply => panic!("{reply:?}"),
                }
            }
            left = refused;
        }
    }
}

fn verify(program: &Program, truth: &Truth, fields: &[String]) {
    let mut client = program.client();
    let all: Vec<(&u64, &Vec<i64>)> = truth.iter().collect();
    for some in all.chunks(500) {
        for (id, _) in some {
            let key = [b"post:", &text(**id)[..]].concat();
            let names = fields.iter().map(|name| name.as_bytes());
            let words: Vec<&[u8]> = [&b"HMGET"[..], &key].into_iter().chain(names).collect();
            client.push(&words);
        }
        for (id, row) in some {
            let Reply::Array(found) = client.reply().unwrap() else { panic!("no row") };
            let value = |frame: &Reply| match frame {
                Reply::BulkString(n) => std::str::from_utf8(n).unwrap().parse().unwrap(),
                other => panic!("row {id}: {other:?}"),
            };
            let found: Vec<i64> = found.iter().map(value).collect();
            let mut expected = (*row).clone();
            expected.resize(fields.len(), 0);
            assert_eq!(found, expected, "row {id}");
        }
    }
}

fn is_sound(dir: &Path) {
    let told = tidemark(&["check", dir.join("data").to_str().unwrap()]);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stdout));
}

/// The server is killed after an ALTER and a spill, before any snapshot. The server must start with
/// all rows. A replica with the same memory limit must be able to copy all rows.
#[test]
fn rows_spilled_after_an_alter_survive_kill_9_and_a_full_sync() {
    let (rounds, seed) = rounds(3);
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let [master, replica] = ["master", "replica"].map(|name| folder.path().join(name));
    let (mut truth, mut fields) = (Truth::new(), FIELDS.map(str::to_owned).to_vec());
    for round in 0..rounds {
        let program = start(&master);
        verify(&program, &truth, &fields);
        let mut client = program.client();
        let fresh: Vec<_> = (round * ROWS..(round + 1) * ROWS).map(|id| (id, 1)).collect();
        set(&mut client, &mut truth, (0, "like"), &fresh);
        let changed: Vec<_> =
            (0..(round + 1) * ROWS).step_by(2).map(|id| (id, rng.i64(2..100))).collect();
        set(&mut client, &mut truth, (0, "like"), &changed);

        let name = format!("extra{round}");
        let words = format!("TM.SPACE ALTER post ADD {name}:14");
        assert_eq!(refusal(&call(&mut client, &words)), "", "{words}");
        let at = fields.len();
        fields.push(name);
        let touched: Vec<_> = (0..(round + 1) * ROWS)
            .step_by(rng.usize(3..12))
            .map(|id| (id, rng.i64(1..1000)))
            .collect();
        set(&mut client, &mut truth, (at, &fields[at]), &touched);
        assert_eq!(refusal(&call(&mut client, "TM.SPILL post 100")), "");
        // At the crash, some of these rows are only in memory and in the log.
        let last: Vec<_> = touched.iter().step_by(50).map(|&(id, n)| (id, n + 7)).collect();
        set(&mut client, &mut truth, (at, &fields[at]), &last);
        program.kill();
        is_sound(&master);

        // Start a second time, because the first start merged files during the replay.
        let program = start(&master);
        verify(&program, &truth, &fields);
        program.kill();
        is_sound(&master);
        let program = start(&master);
        verify(&program, &truth, &fields);
        assert!(count(&mut program.client(), "cold_files") > 0);
        program.kill();
    }

    let program = start(&master);
    let mut client = program.client();
    // Each row is counted once, whether it is in memory or on disk.
    assert_eq!(call(&mut client, "DBSIZE"), Reply::Integer(truth.len() as i64));
    let copy = start(&replica);
    let words = format!("REPLICAOF 127.0.0.1 {}", program.port);
    assert_eq!(refusal(&copy.ask(&words)), "");
    until("the replica has all data", || copy.info("master_link_status") == "up");
    verify(&copy, &truth, &fields);
    assert!(copy.info("cold_files").parse::<u64>().unwrap() > 0);
    copy.kill();
    is_sound(&replica);
    verify(&start(&replica), &truth, &fields);

    // `tidemark check` also detects a log that ends before the newest change in cold files.
    let path = replica.join("data/log-0000000000000001.tlog");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let told = tidemark(&["check", replica.join("data").to_str().unwrap()]);
    assert_eq!(told.status.code(), Some(1), "{}", String::from_utf8_lossy(&told.stdout));
    assert!(program.terminate().success());
}

/// Each ALTER splits small tables, and each spill empties some tables. A space with a small limit
/// must still accept rows. `small_neighbours_become_one_table` in `counter/src/rewrite.rs` tests
/// how small tables are joined.
#[test]
fn a_small_space_takes_rows_after_many_alters() {
    let folder = tempfile::tempdir().unwrap();
    let program = start(folder.path());
    let mut client = program.client();
    let (mut truth, mut fields) = (Truth::new(), FIELDS.map(str::to_owned).to_vec());
    let mut rng = fastrand::Rng::with_seed(1);
    for round in 0..24 {
        // Clusters of ids far from each other, like the posts of a few users.
        let fresh: Vec<_> =
            (0..6_000).map(|i| ((round * 6 + i / 1000) * 100_000_000 + i % 1000, 1)).collect();
        set(&mut client, &mut truth, (0, "like"), &fresh);
        let name = format!("extra{round}");
        let words = format!("TM.SPACE ALTER post ADD {name}:6");
        assert_eq!(refusal(&call(&mut client, &words)), "", "{words}");
        fields.push(name);
        let all: Vec<u64> = truth.keys().copied().collect();
        let touched: Vec<_> =
            (0..1_000).map(|_| (all[rng.usize(..all.len())], rng.i64(1..50))).collect();
        let at = fields.len() - 1;
        set(&mut client, &mut truth, (at, &fields[at]), &touched);
    }
    verify(&program, &truth, &fields);
    let tables = || {
        let Reply::Array(all) = call(&mut program.client(), "TM.TABLES post") else {
            panic!("no tables")
        };
        let is_memory = |table: &Reply| format!("{table:?}").contains("109, 101, 109, 111");
        let in_memory = all.iter().filter(|table| is_memory(table)).count();
        (all.len(), in_memory)
    };
    until("small tables are merged", || {
        let (all, in_memory) = tables();
        eprintln!("{all} tables and files, {in_memory} in memory");
        in_memory <= 2 * (all - in_memory) + 6
    });
    assert_eq!(call(&mut client, "DBSIZE"), Reply::Integer(truth.len() as i64));
}

/// Runs random sequences of all changes that affect cold rows. Fields are added, widened and
/// dropped, rows set and deleted, tables spilled, and snapshots written. The server is killed
/// during a spill, during a snapshot, or at another time. Every row must have its acknowledged
/// values, and `tidemark check` must find no damage.
#[test]
fn rows_survive_any_order_of_alters_spills_snapshots_and_kills() {
    let (rounds, seed) = rounds(5);
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    // Position and name of each field in use.
    let named = |(at, name): (usize, &str)| (at, name.to_owned());
    let mut fields: Vec<(usize, String)> = FIELDS.into_iter().enumerate().map(named).collect();
    let (mut truth, mut made, mut next) = (Truth::new(), FIELDS.len(), 0);
    for _ in 0..rounds {
        let program = start(folder.path());
        verify_living(&program, &truth, &fields);
        let mut client = program.client();
        let mut alter = |words: &str| {
            let words = format!("TM.SPACE ALTER post {words}");
            assert_eq!(refusal(&call(&mut client, &words)), "", "{words}");
        };
        for _ in 0..rng.usize(4..10) {
            let at = rng.usize(..fields.len());
            match rng.u32(..9) {
                0 => {
                    let (name, bits) = (format!("extra{made}"), rng.u32(1..40));
                    alter(&format!("ADD {name}:{bits}"));
                    fields.push((made, name));
                    made += 1;
                }
                // Only added fields can be dropped, because the view uses the configured fields.
                1 if at >= FIELDS.len() => alter(&format!("DROP {}", fields.remove(at).1)),
                1 | 2 => alter(&format!("WIDEN {}:64", fields[at].1)),
                3 => {
                    let gone: Vec<u64> = truth.keys().copied().step_by(rng.usize(2..60)).collect();
                    let mut client = program.client();
                    for id in gone {
                        let reply = call(&mut client, &format!("CNT.DEL post {id}"));
                        match refusal(&reply) {
                            "" => drop(truth.remove(&id)),
                            refused => assert!(refused.starts_with("OOM"), "{refused}"),
                        }
                    }
                }
                4 => assert_eq!(refusal(&program.ask("SAVE")), ""),
                5 => assert_eq!(refusal(&program.ask("TM.SPILL post 100")), ""),
                6 => {
                    let rows: Vec<_> = truth.keys().copied().step_by(rng.usize(1..20)).collect();
                    let rows: Vec<_> =
                        rows.into_iter().map(|id| (id, rng.i64(-5..1 << 20))).collect();
                    let (position, name) = &fields[at];
                    set(&mut program.client(), &mut truth, (*position, name), &rows);
                }
                _ => {
                    let fresh: Vec<_> =
                        (0..rng.u64(1..8_000)).map(|n| (next + n * 3, n as i64)).collect();
                    next += fresh.len() as u64 * 3;
                    let (position, name) = &fields[at];
                    set(&mut program.client(), &mut truth, (*position, name), &fresh);
                }
            }
        }
        // The kill interrupts this command.
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", program.port)).unwrap();
        let words: &[u8] = [&b"TM.SPILL post 100\r\n"[..], b"SAVE\r\n", b""][rng.usize(..3)];
        std::io::Write::write_all(&mut stream, words).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(rng.u64(..40)));
        program.kill();
        is_sound(folder.path());
    }
    let program = start(folder.path());
    verify_living(&program, &truth, &fields);
}

fn verify_living(program: &Program, truth: &Truth, fields: &[(usize, String)]) {
    let value = |row: &Vec<i64>, at: usize| row.get(at).copied().unwrap_or(0);
    let row = |row: &Vec<i64>| fields.iter().map(|(at, _)| value(row, *at)).collect();
    let living: Truth = truth.iter().map(|(id, values)| (*id, row(values))).collect();
    let names: Vec<String> = fields.iter().map(|(_, name)| name.clone()).collect();
    verify(program, &living, &names);
}
