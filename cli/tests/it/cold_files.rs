//! Opens thousands of cold files. The process starts with a lower limit on open files, which the
//! server must raise.

use client::{Client, Reply};
use harness::program::{FIRST, Program, call, count, text};
use std::path::Path;

const PER_TABLE: u64 = 100;
const TABLES: u64 = 2500;
const ROWS: u64 = PER_TABLE * TABLES;

fn start(dir: &Path) -> Program {
    let config = dir.join("tidemark.toml");
    let text = format!(
        "[durability]\nfsync = \"no\"\nsnapshot_every = 0\n[spill]\ncache = 1_000_000\n\
         [[counter]]\nname = \"post\"\nfields = \"like:12 repost:8 comment:8 read:16\"\n\
         spill = true\nrows_per_table = {PER_TABLE}\n"
    );
    std::fs::write(&config, text).unwrap();
    let few = ["sh", "-c", "ulimit -Sn 256; exec \"$@\"", "sh"];
    let data = dir.join("data");
    let options = ["--config", config.to_str().unwrap()];
    Program::start_as(&few, &data, &options)
        .unwrap_or_else(|said| panic!("the server did not start: {said:#?}"))
}

fn id(row: u64) -> u64 {
    FIRST + row * 4096
}

fn verify(client: &mut Client) {
    for first in (0..ROWS).step_by(500) {
        let ids: Vec<Vec<u8>> = (first..first + 500).map(|row| text(id(row))).collect();
        let words: Vec<&[u8]> =
            [&b"CNT.GET"[..], b"post"].into_iter().chain(ids.iter().map(Vec::as_slice)).collect();
        let rows = (first..first + 500).map(|row| {
            Reply::Array([row as i64, (row % 7) as i64, 0, 0].map(Reply::Integer).to_vec())
        });
        assert_eq!(client.call(&words).unwrap(), Reply::Array(rows.collect()), "from row {first}");
    }
}

#[test]
fn thousands_of_files_are_opened_searched_and_opened_again() {
    // Use a memory file system, because syncing thousands of files would take minutes and is not
    // under test.
    let memory = Path::new("/dev/shm");
    let folder =
        if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let program = start(folder.path());
    let mut client = program.client();
    for row in 0..ROWS {
        let (like, repost) = (text(row), text(row % 7));
        client.push(&[b"CNT.SET", b"post", &text(id(row)), b"like", &like, b"repost", &repost]);
        if client.is_full() || row == ROWS - 1 {
            (0..client.waiting()).for_each(|_| {
                assert_eq!(client.reply().unwrap(), Reply::SimpleString(b"OK".to_vec()))
            });
        }
    }
    let Reply::Integer(left) = call(&mut client, &format!("TM.SPILL post {TABLES}")) else {
        panic!("no number")
    };
    assert!(left > 240_000, "{left} rows were spilled");
    let files = count(&mut client, "cold_files");
    assert!(files > 2000, "{files}");
    let descriptors =
        std::fs::read_dir(format!("/proc/{}/fd", program.child.id())).unwrap().count() as u64;
    assert!(
        descriptors > files,
        "{descriptors} descriptors of {files} files: the limit of 256 was raised"
    );
    verify(&mut client);
    // A lookup reads one block, because the in-memory indexes map a row to its file and block.
    let (before, reads) =
        (count(&mut client, "cold_cache_misses"), count(&mut client, "cold_reads"));
    call(&mut client, &format!("CNT.GET post {} {}", id(7), id(PER_TABLE * 900 + 3)));
    assert!(
        count(&mut client, "cold_reads") - reads <= 2
            && count(&mut client, "cold_cache_misses") - before <= 2
    );
    assert!(program.terminate().success());
    let program = start(folder.path());
    let mut client = program.client();
    assert_eq!(count(&mut client, "cold_files"), files);
    verify(&mut client);
    program.kill();
    let program = start(folder.path());
    verify(&mut program.client());
}
