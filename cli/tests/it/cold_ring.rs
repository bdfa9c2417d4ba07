//! The real program where io_uring is refused, by whom so ever (seccomp, kernel.io_uring_disabled,
//! an old kernel: strace plays them), and where it is refused later, in the middle of reads: cold
//! rows are read all the same.

use harness::program::{FIRST, Program, call, cannot, count, info, text};
use node::client::Client;
use redis_protocol::resp2::types::OwnedFrame;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;

const ROWS: u64 = 20_000;

/// The program, and what it will have said from its start on when it has ended.
struct Running {
    program: Program,
    said: JoinHandle<Vec<String>>,
}

impl Running {
    /// Ends it, in order. Gives what it said of io_uring.
    fn end(self) -> Vec<String> {
        assert!(self.program.terminate().success());
        self.said.join().unwrap().into_iter().filter(|line| line.contains("io_uring")).collect()
    }
}

fn start(under: &[&str], dir: &Path) -> Running {
    let config = dir.join("tidemark.toml");
    // Nearly nothing is cached.
    let text = "[server]\nworkers = 2\nmax_request_args = 32_768\n[durability]\nfsync = \"no\"\n\
                [spill]\ncache_bytes = 4096\n[[counter]]\nname = \"post\"\n\
                fields = \"like:12 repost:8 comment:8 read:16\"\nspill = true\n\
                rows_per_table = 2000\n";
    std::fs::write(&config, text).unwrap();
    let options = ["--config", config.to_str().unwrap()];
    let (program, lines) =
        Program::start_until(under, &dir.join("data"), &options, "ready to accept")
            .unwrap_or_else(|said| panic!("it did not start: {said:#?}"));
    Running { program, said: std::thread::spawn(|| lines.map_while(Result::ok).collect()) }
}

fn id(row: u64) -> u64 {
    FIRST + row * 4096
}

fn fill(client: &mut Client) {
    for row in 0..ROWS {
        let (like, repost) = (text(row % 4000), text(row % 7));
        client.push(&[b"CNT.SET", b"post", &text(id(row)), b"like", &like, b"repost", &repost]);
        if client.is_full() || row == ROWS - 1 {
            (0..client.waiting()).for_each(|_| {
                assert_eq!(client.reply().unwrap(), OwnedFrame::SimpleString(b"OK".to_vec()))
            });
        }
    }
    call(client, "TM.SPILL post 100");
}

/// These rows, in one request, are as they were written.
fn ask(client: &mut Client, rows: std::ops::Range<u64>) {
    let ids: Vec<Vec<u8>> = rows.clone().map(|row| text(id(row))).collect();
    let words: Vec<&[u8]> =
        [&b"CNT.GET"[..], b"post"].into_iter().chain(ids.iter().map(Vec::as_slice)).collect();
    let row =
        |row: u64| [(row % 4000) as i64, (row % 7) as i64, 0, 0].map(OwnedFrame::Integer).to_vec();
    let expected = rows.clone().map(|n| OwnedFrame::Array(row(n))).collect();
    assert_eq!(
        client.call(&words).unwrap(),
        OwnedFrame::Array(expected),
        "from row {}",
        rows.start
    );
}

fn verify(program: &Program) {
    // So that each worker has some.
    let mut clients: Vec<Client> = (0..4).map(|_| program.client()).collect();
    for first in (0..ROWS).step_by(50) {
        ask(&mut clients[(first / 50 % 4) as usize], first..first + 50);
    }
}

#[test]
fn where_io_uring_is_refused_threads_read() {
    if Command::new("strace").arg("-V").output().is_err() {
        return cannot("refusing io_uring needs strace");
    }
    let folder = tempfile::tempdir().unwrap();
    let running = start(&[], folder.path());
    let program = &running.program;
    let mut client = program.client();
    fill(&mut client);
    assert!(count(&mut client, "cold_rows") > ROWS / 2);
    verify(program);
    let has = info(&mut client, "cold_io_method") == "io_uring";
    assert_eq!(count(&mut client, "cold_reads_by_ring") > 0, has);
    if !has {
        cannot("refusing io_uring needs a system that has it");
    }
    assert_eq!(running.end().len(), usize::from(!has), "whether it is missed");
    let injections = [
        // As seccomp says it, an old kernel, and a limit of locked memory.
        ("io_uring_setup:error=EPERM", "threads"),
        ("io_uring_setup:error=ENOSYS", "threads"),
        ("io_uring_setup:error=ENOMEM", "threads"),
        // Counted for each thread: the worker that has tried whether there is one gets none of its
        // own, the other does.
        ("io_uring_setup:error=ENOMEM:when=2+", "io_uring"),
        ("io_uring_register:error=EINVAL", "threads"),
        // Nothing is ever read by it; or one of a few times, for want of memory.
        ("io_uring_enter:error=EAGAIN", "io_uring"),
        ("io_uring_enter:error=EBUSY:when=20+3", "io_uring"),
        ("io_uring_enter:error=EINTR:when=5+2", "io_uring"),
    ];
    for (injection, method) in injections {
        let inject = format!("inject={injection}");
        let trace = ["strace", "-D", "-f", "--seccomp-bpf", "-q", "-o", "/dev/null", "-e"];
        let running = start(
            &[
                &trace[..],
                &["trace=io_uring_setup,io_uring_register,io_uring_enter", "-e", &inject],
            ]
            .concat(),
            folder.path(),
        );
        let program = &running.program;
        verify(program);
        let mut client = program.client();
        assert_eq!(
            info(&mut client, "cold_io_method"),
            if has { method } else { "threads" },
            "{injection}"
        );
        assert_eq!(count(&mut client, "cold_reads_in_place"), 0, "{injection}");
        let (reads, by_ring) =
            (count(&mut client, "cold_reads"), count(&mut client, "cold_reads_by_ring"));
        assert!(
            by_ring < reads || injection.contains("EINTR"),
            "{injection}: {by_ring} of {reads}"
        );
        let most_by_ring = method == "io_uring" && !injection.ends_with("EAGAIN") && has;
        assert_eq!(by_ring > 0, most_by_ring, "{injection}: {by_ring} of {reads}");
        let said = running.end();
        // Once, or once by each worker; nothing of what is only interrupted.
        let times = match injection {
            _ if method == "threads" || !has => 1..=1,
            _ if injection.contains("EINTR") => 0..=0,
            _ => 1..=2,
        };
        assert!(times.contains(&said.len()), "{injection}: {said:#?}");
    }
}

/// All of them by one request, and each by one of a pipeline, the replies of which are not read for
/// a while.
#[test]
fn twenty_thousand_rows_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let Running { program, .. } = start(&[], folder.path());
    let mut client = program.client();
    fill(&mut client);
    ask(&mut client, 0..ROWS);
    let mut pipe = TcpStream::connect(("127.0.0.1", program.port)).unwrap();
    let mut expected = Vec::new();
    let mut requests = Vec::new();
    for row in 0..ROWS {
        write!(requests, "CNT.GET post {}\r\n", id(row)).unwrap();
        write!(expected, "*1\r\n*4\r\n:{}\r\n:{}\r\n:0\r\n:0\r\n", row % 4000, row % 7).unwrap();
    }
    pipe.write_all(&requests).unwrap();
    let mut replies = vec![0; expected.len()];
    pipe.read_exact(&mut replies).unwrap();
    assert!(replies == expected, "a reply is wrong, or out of its order");
    assert_eq!(count(&mut client, "cold_reads_in_place"), 0, "all of it is read ahead");
}

/// Killed, or told to end, with reads under way: that delays nothing, and nothing is missing at the
/// next start.
#[test]
fn it_ends_in_the_middle_of_reads() {
    let folder = tempfile::tempdir().unwrap();
    let Running { program, .. } = start(&[], folder.path());
    fill(&mut program.client());
    assert!(program.terminate().success());
    for is_killed in [true, false, true, false] {
        let Running { program, .. } = start(&[], folder.path());
        let ids: Vec<String> = (0..ROWS).map(|row| id(row).to_string()).collect();
        let mut pipes: Vec<_> =
            (0..4).map(|_| TcpStream::connect(("127.0.0.1", program.port)).unwrap()).collect();
        for (n, pipe) in pipes.iter_mut().enumerate() {
            // From different rows on.
            let ids = ids.iter().cycle().skip(n * 5_000).take(ids.len());
            let requests: String = ids.map(|id| format!("CNT.GET post {id}\r\n")).collect();
            let mut link = pipe.try_clone().unwrap();
            // It may end before it has taken all of that.
            std::thread::spawn(move || link.write_all(requests.as_bytes()));
        }
        pipes.iter_mut().for_each(|pipe| pipe.read_exact(&mut [0]).unwrap());
        if is_killed {
            program.kill();
        } else {
            assert!(program.terminate().success());
        }
    }
    verify(&start(&[], folder.path()).program);
}
