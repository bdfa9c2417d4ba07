//! A disk that fills up in the middle of a spill, and in the middle of a merge.

use crate::node::{Node, Setup};
use crate::rows::Rows;
use crate::{check, error, wait_for};
use std::io;
use std::path::Path;
use std::process::Command;

/// The disk.
const DISK_MIB: u64 = 512;

/// A file system of its own; gone with this.
struct Disk<'a>(&'a Path);

impl Disk<'_> {
    fn mount(path: &Path) -> io::Result<Disk<'_>> {
        std::fs::create_dir_all(path)?;
        let size = format!("size={DISK_MIB}m");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(path).status()?;
        if status.success() { Ok(Disk(path)) } else { Err(error("no tmpfs can be mounted: this needs root")) }
    }

    /// Leaves so many bytes free, or a little less: others write meanwhile.
    fn fill(&self, but: u64) -> io::Result<()> {
        let file = std::fs::File::create(self.0.join("ballast"))?;
        let mut size = 0;
        loop {
            let free = rustix::fs::statvfs(self.0)?;
            let more = (free.f_bavail * free.f_frsize).saturating_sub(but).min(8 << 20);
            if more == 0 {
                return Ok(());
            }
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), size, more)?;
            size += more;
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

pub(crate) fn run(dir: &Path, setup: &Setup) -> io::Result<()> {
    let disk = Disk::mount(dir)?;
    let data = dir.join("data");
    let setup = &Setup { limit_mib: 32, per_table: 1 << 18, ..setup.clone() };
    let (all, rows) = (Rows::new(), 4_000_000);
    let mut node = Node::start(&data, setup)?;
    let count = |node: &Node| -> io::Result<[f64; 2]> { Ok([node.info("cold_rows")?, node.info("spill_failures")?]) };

    println!("full in the middle of a spill");
    node.begin_load(0, rows)?;
    wait_for("some spills", 60, || Ok(count(&node)?[0] > 1e6))?;
    // The log goes on a while; the next file does not fit.
    disk.fill(1 << 20)?;
    wait_for("a spill fails", 60, || Ok(count(&node)?[1] > 0.0))?;
    let told = wait_for("new rows are refused", 60, || Ok(node.call(&["CNT.SET", "post", "1", "like", "1"]).is_err()));
    told?;
    let told = node.call(&["CNT.SET", "post", "1", "like", "1"]);
    println!("  a new row is refused: {}", told.map_or_else(|e| e.to_string(), |reply| format!("no, {reply}")));
    let there = count(&node)?[0] as u64;
    let read = check::whole_or_absent(&node, &all, 0, there)?;
    println!("  reads go on: {read} of the {there} spilled rows are right");
    if read != there {
        return Err(error("rows are missing"));
    }
    disk.relieve()?;
    node.end_load()?;
    println!("  with room again the load went on to its end");
    let took = check::every_row(&node, &all, rows, 0)?;
    println!("  every one of {rows} rows is right ({:.0} s)", took.as_secs_f64());

    println!("full in the middle of a merge");
    check::change(&node, &all, rows, 0)?;
    node.call(&["WAITAOF", "1", "0", "10000"])?;
    // Less than one merged file needs.
    disk.fill(2 << 20)?;
    match node.call(&["TM.SPILL", "post", "1"]) {
        Ok(reply) => return Err(error(format!("a merge has succeeded: {reply}"))),
        Err(refused) => println!("  the merge is refused: {refused}"),
    }
    check::every_row(&node, &all, rows, 1)?;
    println!("  every one of {rows} rows is right meanwhile");
    disk.relieve()?;
    wait_for("merges go on", 60, || Ok(node.call(&["TM.SPILL", "post", "100"]).is_ok()))?;
    check::every_row(&node, &all, rows, 1)?;
    println!("  and after merges with room again; {:.0} changed rows wait", node.info("merge_backlog_rows")?);
    node.kill()?;
    let node = Node::start(&data, setup)?;
    check::every_row(&node, &all, rows, 1)?;
    println!("  and after a kill -9");
    node.stop()?;
    drop(disk);
    Ok(())
}
