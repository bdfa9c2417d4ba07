//! Kills the real binary (SIGKILL) during a mix of changes and snapshots. Each atomic change is
//! either completely present or completely absent. With `always`, all acknowledged changes are
//! present. With `everysec`, all acknowledged changes that are older than a second are present.
//!
//! Each *actor* sends numbered changes one after another. The state after a restart shows which
//! change was applied last. `TIDEMARK_RUNS` (default 6; 200 before a release) sets the number of
//! runs, `TIDEMARK_SEED` the seed.

use client::{Client, Reply};
use dataset::log_records::{RecordKind, RowsWriter};
use harness::program::{FIRST, Program, call, cannot, names, refusal, rounds, text};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use store::{Batch, RealDisk, Store, StoreOptions};

/// Maximum loss with `everysec`.
const A_SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq)]
enum ChangeKind {
    /// MSET of many cells, which belong to many stripes of the log's queue.
    Mset,
    /// EXEC: sets two cells, and sets and unsets a flag of both posts.
    Exec,
    /// EXEC: odd changes create two rows, and even changes delete them.
    Del,
    Flag,
    /// A flag that is set and unset together with its counter.
    Act,
    /// Adds a field to the space. This change is rare, because a space has at most 64 fields.
    Alter,
}

struct Actor {
    kind: ChangeKind,
    at: u64,
    /// Sequence number of the last change that the actor sent.
    sent: u64,
    acknowledged: Vec<(u64, Instant)>,
    /// Sequence number of the last change that survived the latest restart.
    found: u64,
}

/// Number of ids per actor; an id may have a flag, a counter, a row, or a cell.
const IDS: u64 = 32;

/// Returns the requests of one atomic change. The change succeeded if no reply is an error.
fn requests(kind: ChangeKind, at: u64, n: u64) -> Vec<String> {
    let odd = n % 2 == 1;
    match kind {
        ChangeKind::Mset => {
            let cells = (0..IDS).flat_map(|i| {
                ["repost", "read"].map(|field| format!("post:{}:{field} {n}", at + i))
            });
            vec![format!("MSET {}", cells.collect::<Vec<_>>().join(" "))]
        }
        ChangeKind::Exec => vec![
            "MULTI".into(),
            format!("SET post:{at}:read {n}"),
            format!("PH.{} liked 7 {at} {}", if odd { "ADD" } else { "DEL" }, at + 1),
            format!("SET post:{}:comment {n}", at + 1),
            "EXEC".into(),
        ],
        ChangeKind::Del => {
            let one = |id: u64| {
                if odd {
                    format!("HSET post:{id} read {n} like 3")
                } else {
                    format!("DEL post:{id}")
                }
            };
            vec!["MULTI".into(), one(at), one(at + 1), "EXEC".into()]
        }
        ChangeKind::Flag => vec![format!("PH.{} liked 7 {at}", if odd { "ADD" } else { "DEL" })],
        ChangeKind::Act => vec![format!("FEED.{} like 7 {at}", if odd { "ACT" } else { "UNDO" })],
        ChangeKind::Alter => vec![format!("TM.SPACE ALTER post ADD f{n}:3")],
    }
}

impl Actor {
    fn new(kind: ChangeKind, at: u64) -> Actor {
        Actor { kind, at, sent: 0, acknowledged: vec![], found: 0 }
    }

    fn act(&mut self, port: u16, most: u64) {
        let Ok(mut client) = Client::connect(("127.0.0.1", port)) else { return };
        for _ in 0..most {
            let n = self.sent + 1;
            let requests = requests(self.kind, self.at, n);
            // From here on, the change may be present after a restart.
            self.sent = n;
            for request in &requests {
                client.push(&request.split(' ').map(str::as_bytes).collect::<Vec<_>>());
            }
            for request in &requests {
                let Ok(reply) = client.reply() else { return };
                assert_eq!(refusal(&reply), "", "{request}");
                if let Reply::Array(replies) = &reply {
                    replies.iter().for_each(|reply| assert_eq!(refusal(reply), "", "{request}"));
                }
            }
            self.acknowledged.push((n, Instant::now()));
        }
    }

    /// Checks the state after a restart; `killed` is the time of the preceding kill.
    fn check(&mut self, client: &mut Client, killed: Option<Instant>, what: &str) {
        let safe = |at: &Instant| killed.is_none_or(|killed| *at + A_SECOND < killed);
        let least =
            self.acknowledged.iter().rev().find(|(_, at)| safe(at)).map_or(self.found, |&(n, _)| n);
        let what = format!("{what}: {:?}: {least} durable, {} sent", self.kind, self.sent);
        let in_bounds = |n: u64| assert!((least..=self.sent).contains(&n), "{what}: {n} was found");
        let mut ask = |words: String| call(client, &words);
        let number = |reply: &Reply| match reply {
            Reply::Integer(n) => *n as u64,
            Reply::BulkString(n) => String::from_utf8_lossy(n).parse().unwrap(),
            Reply::Null => 0,
            other => panic!("{what}: {other:?}"),
        };
        let numbers = |reply: Reply| match reply {
            Reply::Array(items) => items.iter().map(number).collect::<Vec<u64>>(),
            other => panic!("{what}: {other:?}"),
        };
        let at = self.at;
        // The flag only shows whether the number is odd or even, so this returns the highest sent
        // number with that parity.
        let parity = |is_set: bool| {
            let n = if (self.sent % 2 == 1) == is_set {
                self.sent
            } else {
                self.sent.saturating_sub(1)
            };
            assert!(n >= least && (n % 2 == 1) == is_set, "{what}: it is set: {is_set}");
            n
        };
        self.found = match self.kind {
            ChangeKind::Mset => {
                let cells = (0..IDS).flat_map(|i| {
                    ["repost", "read"].map(|field| format!("post:{}:{field}", at + i))
                });
                let found = numbers(ask(format!("MGET {}", cells.collect::<Vec<_>>().join(" "))));
                assert!(found.iter().all(|&n| n == found[0]), "{what}: partial: {found:?}");
                in_bounds(found[0]);
                found[0]
            }
            ChangeKind::Exec => {
                let found = numbers(ask(format!("MGET post:{at}:read post:{}:comment", at + 1)));
                assert_eq!(found[0], found[1], "{what}: torn");
                let n = found[0];
                in_bounds(n);
                let flags = numbers(ask(format!("PH.EXISTS liked 7 {at} {}", at + 1)));
                assert_eq!(flags, [n % 2; 2], "{what}: {n}: differs from its flags");
                n
            }
            ChangeKind::Del => {
                let found = [at, at + 1].map(|id| number(&ask(format!("HGET post:{id} read"))));
                assert_eq!(found[0], found[1], "{what}: torn");
                if found[0] > 0 {
                    in_bounds(found[0]);
                    found[0]
                } else {
                    parity(false)
                }
            }
            ChangeKind::Flag => parity(numbers(ask(format!("PH.EXISTS liked 7 {at}"))) == [1]),
            ChangeKind::Act => {
                let (set, count) = (
                    numbers(ask(format!("PH.EXISTS liked 7 {at}"))) == [1],
                    ask(format!("HGET post:{at} like")),
                );
                assert_eq!(
                    u64::from(set),
                    number(&count),
                    "{what}: the flag differs from its counter"
                );
                parity(set)
            }
            ChangeKind::Alter => {
                let Reply::Array(all) = ask(format!("HKEYS post:{at}")) else {
                    panic!("{what}: no fields")
                };
                let has = |n: &u64| all.contains(&Reply::BulkString(format!("f{n}").into_bytes()));
                let n = (1..=self.sent).take_while(has).last().unwrap_or(0);
                assert_eq!(
                    all.len() as u64,
                    4 + n,
                    "{what}: fields are missing in between: {all:?}"
                );
                in_bounds(n);
                // If the client did not receive the acknowledgement, it may add the field again.
                self.sent = n;
                n
            }
        };
        self.acknowledged.clear();
    }
}

#[test]
fn what_belongs_together_is_never_parted_by_kill_9() {
    let (rounds, seed) = rounds(6);
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let kinds = [
        ChangeKind::Mset,
        ChangeKind::Mset,
        ChangeKind::Exec,
        ChangeKind::Exec,
        ChangeKind::Del,
        ChangeKind::Flag,
        ChangeKind::Act,
        ChangeKind::Alter,
    ];
    let mut actors: Vec<Actor> =
        kinds.iter().zip(0..).map(|(&kind, i)| Actor::new(kind, FIRST + i * 100_000)).collect();
    let (mut all, mut in_snapshots, mut killed) = (0, 0, None);
    for round in 0..=rounds {
        let fsync = if round % 2 == 0 { "always" } else { "everysec" };
        let program = Program::start(folder.path(), fsync);
        let mut client = program.client();
        if round == 0 {
            // Create the row whose fields the test reads, and enough other ids for the server to
            // learn the usual id range.
            let ids: Vec<String> = (0..300).map(|i| (FIRST + i * 3000).to_string()).collect();
            assert_eq!(
                refusal(&call(&mut client, &format!("PH.ADD liked 1 {}", ids.join(" ")))),
                ""
            );
            assert_eq!(
                refusal(&call(&mut client, &format!("HSET post:{} like 1", FIRST + 700_000))),
                ""
            );
        }
        actors.iter_mut().for_each(|actor| {
            actor.check(&mut client, killed, &format!("round {round}, seed {seed}"))
        });
        if round == rounds {
            break;
        }
        let pause = Duration::from_millis(rng.u64(1..if fsync == "always" { 600 } else { 2500 }));
        let is_over = &AtomicBool::new(false);
        let port = program.port;
        let at = std::thread::scope(|scope| {
            for actor in &mut actors {
                let most = match actor.kind {
                    ChangeKind::Alter if round % 4 > 0 || actor.sent > 50 => 0,
                    ChangeKind::Alter => 1,
                    _ => u64::MAX,
                };
                scope.spawn(move || actor.act(port, most));
            }
            // Take snapshots continuously, so that most kills interrupt a snapshot.
            scope.spawn(move || {
                let Ok(mut client) = Client::connect(("127.0.0.1", port)) else { return };
                while !is_over.load(SeqCst) && client.call(&[b"BGSAVE"]).is_ok() {
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
            std::thread::sleep(pause);
            is_over.store(true, SeqCst);
            let at = Instant::now();
            program.kill();
            at
        });
        killed = (fsync == "everysec").then_some(at);
        let left = names(folder.path());
        in_snapshots += u64::from(left.iter().any(|name| name.ends_with(store::TEMPORARY)));
        let made: usize = actors.iter().map(|actor| actor.acknowledged.len()).sum();
        eprintln!("round {round}, {fsync}: {made} acknowledged, killed after {pause:?}");
        all += made as u64;
    }
    eprintln!("{all} changes acknowledged; {in_snapshots} of {rounds} kills left a partial file");
    assert!(all > rounds * 10, "the test made too few changes: {all}");
}

/// Number of fields of a row. A change of any field takes about 600 bytes in the log.
const WIDE: usize = 60;
/// Rows per client. The changes of all rows of one client fit into a batch, but the changes of both
/// clients do not.
const ROWS: u64 = 58_000;

/// Writes the rows of both clients to the log of a folder that no server uses, which is much faster
/// than requests.
fn append_wide_rows(dir: &Path) {
    let store =
        Store::open(Arc::new(RealDisk::open(dir).unwrap()), StoreOptions::default()).unwrap();
    let (mut log, _) = store.replay(|_| Ok(()), |_| ()).unwrap();
    for first in (0..2 * ROWS).step_by(10_000) {
        let mut writer = RowsWriter::new(WIDE);
        for id in first..(first + 10_000).min(2 * ROWS) {
            let values: Vec<i64> = (0..WIDE as i64).map(|n| i64::MAX - n).collect();
            writer.row(id, Some(&values));
        }
        let mut batch = Batch::new();
        batch.push(1, RecordKind::Rows as u8, &writer.finish());
        log.append(&batch, 1).unwrap();
    }
    log.seal(1).unwrap();
    store.record_durable(&log).unwrap();
}

/// Sets a field of all rows of a client, with one command or in a transaction. The connection may
/// break during the call.
fn set_all(port: u16, first: u64, value: u64, by_exec: bool) -> bool {
    let Ok(mut client) = Client::connect(("127.0.0.1", port)) else { return false };
    let value = text(value);
    let keys: Vec<String> = (first..first + ROWS).map(|id| format!("w:{id}:like")).collect();
    if !by_exec {
        let cells = keys.iter().flat_map(|key| [key.as_bytes(), &value]);
        let words: Vec<&[u8]> = [&b"MSET"[..]].into_iter().chain(cells).collect();
        return client.call(&words).is_ok_and(|reply| refusal(&reply).is_empty());
    }
    client.push(&[b"MULTI"]);
    let mut replies = 1;
    for key in &keys {
        client.push(&[b"SET", key.as_bytes(), &value]);
        replies += 1;
        if client.is_full() {
            for _ in 0..std::mem::take(&mut replies) {
                if client.reply().is_err() {
                    return false;
                }
            }
        }
    }
    client.push(&[b"EXEC"]);
    (0..replies).all(|_| client.reply().is_ok())
        && client.reply().is_ok_and(|reply| refusal(&reply).is_empty())
}

fn values(client: &mut Client, first: u64) -> Vec<Reply> {
    let mut all = vec![];
    for from in (first..first + ROWS).step_by(1000) {
        let keys: Vec<String> =
            (from..(from + 1000).min(first + ROWS)).map(|id| format!("w:{id}:like")).collect();
        let Reply::Array(some) = call(client, &format!("MGET {}", keys.join(" "))) else {
            panic!("MGET")
        };
        for value in some {
            if !all.contains(&value) {
                all.push(value);
            }
        }
    }
    all
}

/// The atomic changes of two clients end up in one commit, which waits for a slow sync. Together
/// they are too large for one log batch. The test kills the server at each write of the commit.
#[test]
fn changes_too_large_for_one_batch_stay_atomic_after_kill_9() {
    if Command::new("strace").arg("-V").output().is_err() {
        return cannot("requires strace");
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let config = folder.path().join("tidemark.toml");
    let fields: Vec<String> = (4..WIDE).map(|n| format!("f{n}:4")).collect();
    let text_of = format!(
        "[server]\nmax_request_args = 1_048_576\nmax_transaction_args = 1_048_576\n[durability]\n\
         fsync = \"always\"\n[[counter]]\nname = \"post\"\n\
         fields = \"like:4 repost:4 comment:4 read:4 {}\"\nrows = \"w:{{id}}\"\n\
         cells = \"w:{{id}}:{{field}}\"\n",
        fields.join(" ")
    );
    std::fs::write(&config, text_of).unwrap();
    let options = ["--config", config.to_str().unwrap()];
    let start =
        || Program::start_as(&[], &dir, &options).unwrap_or_else(|said| panic!("{said:#?}"));
    assert!(start().terminate().success());
    append_wide_rows(&dir);
    let (mut written, mut before) = (0, None);
    // The next start checks the result of the previous kill.
    let mut check = |program: &Program, before: Option<(u64, [bool; 2])>| {
        let Some((value, said)) = before else { return };
        for (i, said) in said.into_iter().enumerate() {
            let found = values(&mut program.client(), i as u64 * ROWS);
            assert_eq!(found.len(), 1, "{value}: partial: {found:?}");
            let is_new = found[0] == Reply::BulkString(text(value));
            eprintln!("{value}, client {i}: acknowledged {said}, there {is_new}");
            assert!(is_new || !said, "{value}: acknowledged but lost");
            written += u64::from(is_new);
        }
    };
    // Five small writes, and one write with a slow sync, precede the two changes.
    let steps = [(8, [false, true]), (9, [true, false])];
    for (step, by_exec) in steps.into_iter().take(seeds::rounds(2) as usize) {
        let kill = format!("inject=pwrite64:signal=KILL:when={step}");
        let strace = [
            ["strace", "-D", "-f", "-q", "-o", "/dev/null", "-e", "trace=fdatasync,pwrite64", "-e"]
                .as_slice(),
            &["inject=fdatasync:delay_enter=1500000:when=6+", "-e", &kill],
        ]
        .concat();
        let mut program =
            Program::start_as(&strace, &dir, &options).unwrap_or_else(|said| panic!("{said:#?}"));
        check(&program, before);
        let mut client = program.client();
        for _ in 0..5 {
            assert_eq!(refusal(&call(&mut client, "INCR w:4000000000:read")), "");
        }
        let (port, value) = (program.port, 1000 + step);
        let said = std::thread::scope(|scope| {
            scope.spawn(move || client.call(&[b"INCR", b"w:4000000000:read"]));
            let both = [0, 1]
                .map(|i| scope.spawn(move || set_all(port, i * ROWS, value, by_exec[i as usize])));
            both.map(|one| one.join().unwrap())
        });
        before = Some((value, said));
        program.sigkill();
    }
    check(&start(), before);
    assert!(written > 0, "no client wrote anything");
}
