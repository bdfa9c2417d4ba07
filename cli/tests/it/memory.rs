//! Compares the memory of the process with INFO after a burst of clients of all kinds. After a
//! quiet minute, INFO must account for all but 30 MB of the resident memory.

use client::Client;
use harness::program::{FIRST, Program, count, refusal};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const MAX_OTHER_BYTES: u64 = 30 << 20;
const POSTS: u64 = 200_000;
const FREE_TIMEOUT: Duration = Duration::from_secs(60);

const CONFIG: &str = "[server]\nmax_request_args = 1_048_576\nmax_transaction_args = 1_048_576\n";

fn post(rng: &mut fastrand::Rng) -> Vec<u8> {
    (FIRST + rng.u64(..POSTS)).to_string().into_bytes()
}

fn push(client: &mut Client, words: &[&[u8]], ids: impl Iterator<Item = Vec<u8>>) {
    let ids: Vec<Vec<u8>> = ids.collect();
    let words: Vec<&[u8]> = words.iter().copied().chain(ids.iter().map(Vec::as_slice)).collect();
    client.push(&words);
}

fn take(client: &mut Client) {
    while client.waiting() > 0 {
        let reply = client.reply().unwrap();
        assert_eq!(refusal(&reply), "");
    }
}

/// Returns the resident memory, excluding file mappings, which other processes may share.
fn resident(program: &Program) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.child.id())).unwrap();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    kilobytes.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

fn all_posts() -> impl Iterator<Item = Vec<u8>> {
    (FIRST..FIRST + POSTS).map(|id| id.to_string().into_bytes())
}

fn storm(program: &Program) -> Vec<Client> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut clients: Vec<Client> = (0..500).map(|_| program.client()).collect();
    for client in &mut clients {
        for _ in 0..8 {
            push(client, &[b"FEED.GET", b"home", b"7"], (0..50).map(|_| post(&mut rng)));
        }
        client.send().unwrap();
    }
    clients.iter_mut().for_each(take);
    let mut large: Vec<Client> = (0..6).map(|_| program.client()).collect();
    for (n, client) in large.iter_mut().enumerate() {
        match n % 3 {
            0 => push(client, &[b"FEED.GET", b"home", b"7"], all_posts()),
            1 => push(client, &[b"FEED.ACT", b"like", b"8"], all_posts()),
            _ => {
                client.push(&[b"MULTI"]);
                for _ in 0..50_000 {
                    let key = [b"post:".to_vec(), post(&mut rng)].concat();
                    client.push(&[b"HINCRBY", &key, b"read", b"1"]);
                }
                client.push(&[b"EXEC"]);
            }
        }
        client.send().unwrap();
    }
    large.iter_mut().for_each(take);
    // Clients that request large replies and do not read them, announce large requests and do not
    // send them, or subscribe to every change.
    let silent: Vec<TcpStream> = (0..50)
        .map(|n| {
            let mut stream = TcpStream::connect(("127.0.0.1", program.port)).unwrap();
            let words = match n % 5 {
                0 => "FEED.GET home 7".to_owned() + &format!(" {FIRST}").repeat(20_000),
                1 => "*1048576".to_owned(),
                2 => "MONITOR".to_owned(),
                3 => "HELLO 3\r\nCLIENT TRACKING ON BCAST".to_owned(),
                _ => "SUBSCRIBE news".to_owned(),
            };
            stream.write_all((words + "\r\n").as_bytes()).unwrap();
            stream
        })
        .collect();
    let talker = &mut clients[0];
    for _ in 0..200 {
        push(talker, &[b"FEED.ACT", b"like", b"9"], (0..100).map(|_| post(&mut rng)));
    }
    take(talker);
    drop((silent, large));
    clients.truncate(100);
    clients
}

#[test]
fn what_is_not_accounted_for_stays_below_thirty_megabytes() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start_with(folder.path(), CONFIG);
    let mut client = program.client();
    for first in (0..POSTS).step_by(1000) {
        let ids = (first..first + 1000).map(|n| (FIRST + n).to_string().into_bytes());
        push(&mut client, &[b"FEED.ACT", b"like", b"42"], ids);
    }
    take(&mut client);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let open = storm(&program);
        let began = Instant::now();
        loop {
            std::thread::sleep(Duration::from_secs(2));
            let (resident, accounted) =
                (resident(&program), count(&mut client, "used_memory_dataset"));
            let other = resident.saturating_sub(accounted);
            if other < MAX_OTHER_BYTES {
                seen.push((began.elapsed().as_secs(), resident >> 20, accounted >> 20));
                break;
            }
            assert!(
                began.elapsed() < FREE_TIMEOUT,
                "{resident} bytes, of which {accounted} are known"
            );
        }
        drop(open);
    }
    println!("seconds, MB in RAM, MB accounted for, after each storm: {seen:?}");
}
