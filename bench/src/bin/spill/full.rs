//! Tests a disk that fills up during a spill and during a merge.

use crate::node::{Node, Setup};
use crate::rows::{Rows, SPACE, id};
use crate::{check, error, is_writing, wait_for};
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of requests that are sent together.
const REQUESTS_PER_BATCH: usize = 100;
/// Size of the disk.
const DISK_MIB: u64 = 512;

/// A mounted file system. The destructor unmounts it.
struct Disk<'a>(&'a Path);

impl Disk<'_> {
    fn mount(path: &Path) -> io::Result<Disk<'_>> {
        std::fs::create_dir_all(path)?;
        let size = format!("size={DISK_MIB}m");
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(path).status()?;
        if status.success() {
            Ok(Disk(path))
        } else {
            Err(error("cannot mount a tmpfs: requires root"))
        }
    }

    /// Fills the disk, leaving `but` bytes free, or fewer if other processes write at the same
    /// time.
    fn fill(&self, but: u64) -> io::Result<()> {
        let file = std::fs::File::create(self.0.join("ballast"))?;
        let mut size = 0;
        loop {
            let free = rustix::fs::statvfs(self.0)?;
            let more = (free.f_bavail * free.f_frsize).saturating_sub(but).min(8 << 20);
            if more == 0 {
                return Ok(());
            }
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), size, more) {
                Ok(()) => size += more,
                // Another process has used the remaining space.
                Err(rustix::io::Errno::NOSPC) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn relieve(&self) -> io::Result<()> {
        std::fs::remove_file(self.0.join("ballast"))
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

/// Sets rows `from..to` until the server refuses a row. Returns the sequence number of the refused
/// row, and the error.
fn set(node: &Node, all: &Rows, from: u64, to: u64) -> io::Result<(u64, Option<String>)> {
    use client::Reply::Error;
    let mut client = node.client()?;
    let names = ["like", "repost", "comment", "read"];
    for first in (from..to).step_by(REQUESTS_PER_BATCH) {
        let numbers = first..(first + REQUESTS_PER_BATCH as u64).min(to);
        for number in numbers.clone() {
            let mut words = vec!["CNT.SET".to_owned(), SPACE.to_owned(), id(number).to_string()];
            let row = all.row(number);
            names
                .iter()
                .zip(row)
                .for_each(|(name, value)| words.extend([(*name).to_owned(), value.to_string()]));
            client.push(&words.iter().map(String::as_bytes).collect::<Vec<_>>());
        }
        let replies = numbers.clone().map(|_| client.reply()).collect::<io::Result<Vec<_>>>()?;
        for (number, reply) in numbers.zip(replies) {
            if let Error(why) = reply {
                return Ok((number, Some(why)));
            }
        }
    }
    Ok((to, None))
}

/// Fills the disk while a cold file is being written, until that write fails. `attempt` triggers a
/// write and returns whether it succeeded.
fn fill_in_the_middle(
    disk: &Disk<'_>,
    data: &Path,
    mut attempt: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    for _ in 0..50 {
        let over = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let filling = scope.spawn(|| {
                // A small file may be written completely between two polls.
                wait_for("a cold file", 60, || Ok(is_writing(data) || over.load(Relaxed)))?;
                disk.fill(0)
            });
            let written = attempt();
            over.store(true, Relaxed);
            let written = written?;
            filling.join().map_err(|_| error("filling the disk panicked"))??;
            Ok::<_, io::Error>(written)
        })?;
        if !written {
            return Ok(());
        }
        disk.relieve()?;
    }
    Err(error("every file was complete before the disk was full"))
}

/// Waits until a file is written and the INFO field `figure` increases, or until a write fails.
/// Returns whether the write succeeded.
fn was_written(node: &Node, data: &Path, figure: &str) -> io::Result<bool> {
    let (before, failures, began) =
        (node.info(figure)?, node.info("spill_failures")?, Instant::now());
    while began.elapsed().as_secs() < 60 {
        if node.info("spill_failures")? > failures {
            return Ok(false);
        }
        if node.info(figure)? > before && !is_writing(data) {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(error(format!("{figure}: no file and no failure within 60 s")))
}

pub(crate) fn run(dir: &Path, setup: &Setup) -> io::Result<()> {
    let disk = Disk::mount(dir)?;
    let data = dir.join("data");
    let setup = &Setup { limit_mib: 32, per_table: 1 << 18, ..setup.clone() };
    let (all, mut rows) = (Rows::new(), 12_000_000);
    let mut node = Node::start(&data, setup)?;
    let cold_rows = |node: &Node| node.info("cold_rows");

    println!("the disk fills up during a spill");
    node.begin_load(0, rows)?;
    wait_for("some spills", 60, || Ok(cold_rows(&node)? > 1e6))?;
    fill_in_the_middle(&disk, &data, || was_written(&node, &data, "cold_rows"))?;
    println!("  a spill failed: {}", node.text("spill_last_error")?);
    // The log is on the same disk. Further writes fill the disk, even if loading has ended.
    let mut told = None;
    wait_for("rejection of new rows", 60, || {
        (rows, told) = set(&node, &all, rows, rows + 1000)?;
        Ok(told.is_some())
    })?;
    let told = told.unwrap_or_default();
    println!("  a new row was rejected: {told}");
    let there = cold_rows(&node)? as u64;
    let read = check::whole_or_absent(&node, &all, 0, there)?;
    println!("  reads continue: {read} of the {there} spilled rows are correct");
    if read != there {
        return Err(error("rows are missing"));
    }
    disk.relieve()?;
    node.end_load()?;
    println!("  after space was freed, the load completed");
    check::every_row(&node, &all, rows, 0)?;
    println!("  all {rows} rows are correct");

    println!("no space for cold files, only for the log");
    node.call(&["CONFIG", "SET", "spill.max_disk", "1"])?;
    let (first, told) = set(&node, &all, rows, rows + 10_000_000)?;
    let told = told.ok_or_else(|| error("no write was rejected"))?;
    println!("  after {} more rows, a row was rejected: {told}", first - rows);
    if !told.starts_with("OOM") {
        return Err(error("the error is not OOM"));
    }
    rows = first;
    check::every_row(&node, &all, rows, 0)?;
    node.call(&["CONFIG", "SET", "spill.max_disk", "0"])?;
    let until = rows + 500_000;
    wait_for("the load resumes", 60, || {
        rows = set(&node, &all, rows, until)?.0;
        Ok(rows == until)
    })?;
    check::every_row(&node, &all, rows, 0)?;
    println!("  after space was freed, the load resumed; all {rows} rows are correct");

    println!("the disk fills up during a merge");
    // Make the merge so slow that the disk can fill up before it ends.
    node.call(&["CONFIG", "SET", "spill.merge_rate", "500000"])?;
    check::change(&node, &all, rows, 0)?;
    node.call(&["WAITAOF", "1", "0", "10000"])?;
    fill_in_the_middle(&disk, &data, || was_written(&node, &data, "merges"))?;
    println!("  a merge failed: {}", node.text("spill_last_error")?);
    check::every_row(&node, &all, rows, 1)?;
    println!("  all {rows} rows are correct during the failure");
    disk.relieve()?;
    node.call(&["CONFIG", "SET", "spill.merge_rate", "0"])?;
    wait_for("merges resume", 60, || Ok(node.call(&["TM.SPILL", "post", "100"]).is_ok()))?;
    check::every_row(&node, &all, rows, 1)?;
    println!(
        "  after space was freed, merges resumed; {:.0} changed rows pending",
        node.info("merge_backlog_rows")?
    );
    node.kill()?;
    let node = Node::start(&data, setup)?;
    check::every_row(&node, &all, rows, 1)?;
    println!("  all rows are correct after a kill -9");
    node.stop()?;
    drop(disk);
    Ok(())
}
