//! A data folder from a backup: as the backup has it, or as the log tells it up to some place
//! behind it.
//!
//! 1. [`plan`] reads everything that is to be used, and compares every checksum, before a byte is
//!    written. It decides where the log is to end.
//! 2. [`restore`] writes the folder under another name, syncs and renames it. Into a folder that is
//!    there already, and empty (a mount point, say), it writes the manifest last: no server starts
//!    from a folder that has files and no manifest.
//!
//! The log gets one more segment, with the term of a promotion: the restored node is another one.
//! What it writes is a history of its own, which no replica takes for the old one's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::archive::folders_in;
use crate::backup::{Backup, clear, opened, publish, unfinished, walk, with_ends};
use crate::copy::{check_of, copy};
use crate::disk::{Disk, RealDisk};
use crate::error::{Error, Result};
use crate::log::{LogOptions, Position};
use crate::manifest::{BACKUP, MANIFEST, Manifest};
use crate::replay::read_segment_head;
use crate::replica_log::FollowLog;
use crate::segment::{SegmentHead, SegmentName, parse_segment_name, segment_name};

/// Where a restored log is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Where the backup does.
    Backup,
    /// Where the log does, as far as it is there.
    Latest,
    /// At the last batch that ends at this offset or before it.
    Offset(u64),
    /// Before the first batch that was written later, in milliseconds since 1970.
    Time(u64),
}

/// A segment, and the folder that has it.
#[derive(Clone)]
struct Source {
    head: SegmentHead,
    disk: Arc<dyn Disk>,
}

/// What is to be restored; all of it was read.
pub struct Plan {
    /// The backup.
    pub backup: Backup,
    /// Where the log is to end.
    pub end: Position,
    /// The time of the last batch before that; 0 if there is none.
    pub time_ms: u64,
    /// Bytes to write.
    pub bytes: u64,
    /// The log goes on behind that.
    pub goes_on: bool,
    manifest: Manifest,
    disk: Arc<dyn Disk>,
    segments: Vec<Source>,
}

/// Verifies a backup, and the log behind it as far as it is needed: segments are looked for in the
/// folders of these archives, or in a data folder. `progress` is told of bytes that were read.
pub fn plan(
    folder: &Path,
    archives: &[PathBuf],
    until: Until,
    progress: &dyn Fn(u64) -> Result<()>,
) -> Result<Plan> {
    let disk = opened(folder)?;
    let backup = Backup::read(&*disk)?.ok_or_else(|| {
        Error::Refused(format!("{} is no backup: it has no {BACKUP}", folder.display()))
    })?;
    for file in &backup.files {
        if check_of(&*disk, &file.name, file.bytes, progress)? != file.check {
            let what = "its checksum is not the one that the backup has";
            return Err(Error::corrupt(disk.path(&file.name), 0, what));
        }
    }
    let manifest =
        Manifest::read(&*disk)?.ok_or_else(|| Error::corrupt(disk.path(MANIFEST), 0, "missing"))?;
    check_early(&backup, until)?;
    let mut segments = of_backup(&backup, &disk)?;
    let goes_beyond = match until {
        Until::Backup => false,
        Until::Latest => true,
        Until::Offset(offset) => offset > backup.position.offset,
        // Batches behind it may be of the same millisecond.
        Until::Time(time) => time >= backup.time_ms,
    };
    let mut newest = None;
    if goes_beyond {
        newest = extend(&mut segments, &backup, archives)?;
    }
    let (end, time_ms, goes_on) = find_end(&segments, &backup, until, goes_beyond)?;
    if let (Until::Offset(offset), false) = (until, goes_on)
        && end.offset < offset
    {
        return Err(missing(&end, newest, &format!("offset {offset}")));
    }
    if let (Until::Time(_) | Until::Latest, false, Some(_)) = (until, goes_on, newest) {
        return Err(missing(&end, newest, "what was asked for"));
    }
    segments.retain(|source| source.head.segment <= end.segment);
    let bytes = manifest.files.iter().map(|f| f.bytes).sum::<u64>()
        + sizes(&segments, end).iter().map(|(_, bytes)| bytes).sum::<u64>();
    Ok(Plan { backup, end, time_ms, bytes, goes_on, manifest, disk, segments })
}

/// The log ends, and what was asked for lies behind it. `newest`: a segment that is there and
/// cannot be reached.
fn missing(end: &Position, newest: Option<u64>, what: &str) -> Error {
    let gap = newest.map_or(String::new(), |segment| {
        format!("; segment {segment} is there, but not all between")
    });
    Error::Refused(format!(
        "the log that was found ends at offset {}, before {what}{gap}; name more of it with --log",
        end.offset
    ))
}

/// A backup cannot be restored to what it was before.
fn check_early(backup: &Backup, until: Until) -> Result<()> {
    let early = match until {
        Until::Offset(offset) => offset < backup.from,
        Until::Time(time) => time < backup.from_ms,
        Until::Backup | Until::Latest => false,
    };
    if early {
        return Err(Error::Refused(format!(
            "this backup can be restored to offset {} and what is later, which is {} s before its \
             end; take an older backup",
            backup.from,
            backup.time_ms.saturating_sub(backup.from_ms) / 1_000
        )));
    }
    Ok(())
}

/// The segments that the backup has itself, in order.
fn of_backup(backup: &Backup, disk: &Arc<dyn Disk>) -> Result<Vec<Source>> {
    let mut segments = Vec::new();
    for file in &backup.files {
        let SegmentName::Segment(number) = parse_segment_name(&file.name) else { continue };
        let head = read_segment_head(&**disk, number)?
            .map_err(|bad| Error::corrupt(disk.path(&file.name), 0, bad.to_string()))?;
        segments.push(Source { head, disk: disk.clone() });
    }
    Ok(segments)
}

/// Adds what the archives have behind the backup's end. Gives a newer segment that cannot be
/// reached, if there is one.
fn extend(
    segments: &mut Vec<Source>,
    backup: &Backup,
    archives: &[PathBuf],
) -> Result<Option<u64>> {
    let Some(last) = segments.pop() else { return Ok(None) };
    let mut found = Vec::new();
    for archive in archives {
        let own = (archive.clone(), opened(archive)?.list().unwrap_or_default());
        for (folder, names) in folders_in(archive).into_iter().chain([own]) {
            let disk = opened(&folder)?;
            for name in names {
                let SegmentName::Segment(number) = parse_segment_name(&name) else { continue };
                let Ok(head) = read_segment_head(&*disk, number)? else { continue };
                if head.lineage == backup.lineage && head.segment == number {
                    found.push(Source { head, disk: disk.clone() });
                }
            }
        }
    }
    // The backup's last one, in its longest copy.
    let size = |source: &Source| {
        let file = source.disk.open(&segment_name(source.head.segment));
        file.and_then(|file| file.size()).unwrap_or(0)
    };
    let same = found.iter().filter(|source| source.head == last.head).chain([&last]);
    let longest = same.max_by_key(|source| size(source)).cloned();
    let mut at = longest.unwrap_or(last);
    let mut least = backup.position.offset;
    loop {
        // Of several the last one counts: others were left after a failure, or belong to a history
        // that was given up for it.
        let follows = |source: &&Source| {
            source.head.previous == at.head.segment
                && source.head.term >= at.head.term
                && source.head.base >= least
        };
        let next = found.iter().filter(follows);
        let next = next.max_by_key(|s| (s.head.term, s.head.segment, size(s))).cloned();
        segments.push(at);
        let Some(next) = next else { break };
        least = next.head.base;
        at = next;
    }
    let reached = segments.last().map_or(0, |source| source.head.segment);
    let newest = found.iter().map(|source| source.head.segment).max();
    Ok(newest.filter(|&newest| newest > reached))
}

/// Reads the log, and finds where it is to end. Gives the time of the last batch before that, and
/// whether there are more.
fn find_end(
    segments: &[Source],
    backup: &Backup,
    until: Until,
    goes_beyond: bool,
) -> Result<(Position, u64, bool)> {
    let heads: Vec<_> = segments.iter().map(|s| (s.head, &*s.disk)).collect();
    let (mut time_ms, mut goes_on) = (0, false);
    let end = walk(&heads, (!goes_beyond).then_some(backup.position), &mut |at, batch| {
        let is_before = match until {
            _ if at.offset <= backup.from => true,
            Until::Backup | Until::Latest => true,
            Until::Offset(offset) => at.offset <= offset,
            Until::Time(time) => batch.time_ms <= time,
        };
        if is_before {
            time_ms = batch.time_ms;
        }
        goes_on |= !is_before;
        is_before
    })?;
    if end.offset < backup.from {
        let what = format!("the log ends at {end}, before offset {}", backup.from);
        return Err(Error::Refused(what));
    }
    Ok((end, time_ms, goes_on))
}

fn sizes(segments: &[Source], end: Position) -> Vec<(SegmentHead, u64)> {
    let heads: Vec<_> = segments.iter().map(|source| source.head).collect();
    with_ends(&heads, end)
}

/// Writes what was planned into a folder that is not there, or empty. `term` gives the term that
/// follows one.
pub fn restore(
    plan: &Plan,
    to: &Path,
    term: impl FnOnce(u64) -> u64,
    progress: &dyn Fn(u64) -> Result<()>,
) -> Result<()> {
    let is_there = match std::fs::read_dir(to) {
        Ok(mut entries) => {
            // The top of a fresh file system has its own.
            let is_other = |e: &std::io::Result<std::fs::DirEntry>| {
                e.as_ref().map_or(true, |e| e.file_name() != "lost+found")
            };
            if entries.any(|entry| is_other(&entry)) {
                return Err(Error::Refused(format!("{} is not empty", to.display())));
            }
            true
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
        Err(e) => return Err(Error::io(to, "reading", e)),
    };
    if is_there {
        let written = write(plan, to, term, progress);
        if written.is_err() {
            for name in std::fs::read_dir(to).into_iter().flatten().flatten() {
                let _ = std::fs::remove_file(name.path());
            }
        }
        return written;
    }
    let (unfinished, parent) = unfinished(to)?;
    clear(&unfinished)?;
    let written =
        write(plan, &unfinished, term, progress).and_then(|()| publish(&unfinished, to, &parent));
    if written.is_err() {
        let _ = clear(&unfinished);
    }
    written
}

fn write(
    plan: &Plan,
    folder: &Path,
    term: impl FnOnce(u64) -> u64,
    progress: &dyn Fn(u64) -> Result<()>,
) -> Result<()> {
    let to = Arc::new(RealDisk::open(folder).map_err(|e| Error::io(folder, "creating", e))?);
    let mut manifest = plan.manifest.clone();
    for file in &manifest.files {
        let name = &*file.name;
        let check = copy((&*plan.disk, name), (&*to, name), file.bytes, progress)?;
        if check != file.check {
            let what = "it has changed since it was verified";
            return Err(Error::corrupt(plan.disk.path(name), 0, what));
        }
    }
    for (source, (head, bytes)) in plan.segments.iter().zip(sizes(&plan.segments, plan.end)) {
        let name = segment_name(head.segment);
        copy((&*source.disk, &name), (&*to, &name), bytes, progress)?;
    }
    let heads: Vec<_> = plan.segments.iter().map(|s| (s.head, &*to as &dyn Disk)).collect();
    if !heads.is_empty() && walk(&heads, Some(plan.end), &mut |_, _| true)? != plan.end {
        let what = "the log has changed since it was verified";
        return Err(Error::corrupt(to.path(&segment_name(plan.end.segment)), 0, what));
    }
    let log = FollowLog::open(to.clone(), manifest.lineage, plan.end)?;
    let next = term(log.term().max(manifest.term));
    let log = log.into_log(LogOptions::default(), next)?;
    manifest.term = log.term();
    manifest.durable = plan.end.offset;
    drop(log);
    manifest.write(&*to)
}
