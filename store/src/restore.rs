//! Restore of a data folder from a backup, as of the backup's end or of another log position.
//!
//! 1. [`plan`] verifies every checksum of its input before any write, and determines where the log
//!    will end.
//! 2. [`restore`] writes the folder under a temporary name, then syncs and renames it. In an
//!    existing empty folder, such as a mount point, [`restore`] writes the manifest last. A server
//!    does not start from a folder with files but no manifest.
//!
//! As in a promotion, the log gets a new segment with a higher term. The restored node therefore
//! begins a new history, which replicas can distinguish from the old history.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::archive::folders_in;
use crate::backup::{Backup, clear, open_disk, publish, unfinished, walk, with_ends};
use crate::copy::{check_of, copy};
use crate::disk::{Disk, RealDisk};
use crate::error::{Error, Result};
use crate::log::{LogOptions, Position};
use crate::manifest::{BACKUP, MANIFEST, Manifest};
use crate::replay::read_segment_head;
use crate::replica_log::ReplicaLog;
use crate::segment::{SegmentHead, SegmentName, parse_segment_name, segment_name};

/// End of the restored log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreTarget {
    /// End of the backup.
    Backup,
    /// End of the available log.
    Latest,
    /// Last batch that ends at or before this offset.
    Offset(u64),
    /// End of the last batch that precedes all batches written after this time, in milliseconds
    /// since 1970.
    Time(u64),
}

/// A segment, and the folder that contains it.
#[derive(Clone)]
struct SourceSegment {
    head: SegmentHead,
    disk: Arc<dyn Disk>,
}

/// A verified restore.
pub struct RestorePlan {
    /// Description of the backup.
    pub backup: Backup,
    /// End of the restored log.
    pub end: Position,
    /// Time of the last restored batch, in milliseconds since 1970; 0 for none.
    pub time_ms: u64,
    /// Number of bytes to write.
    pub bytes: u64,
    /// Whether the available log continues after `end`.
    pub goes_on: bool,
    manifest: Manifest,
    disk: Arc<dyn Disk>,
    segments: Vec<SourceSegment>,
}

/// Verifies a backup and the required part of the log after it.
///
/// Searches for segments in `archives`, which are archives or data folders. `progress` receives the
/// number of bytes read by each step.
pub fn plan(
    folder: &Path,
    archives: &[PathBuf],
    until: RestoreTarget,
    progress: &dyn Fn(u64) -> Result<()>,
) -> Result<RestorePlan> {
    let disk = open_disk(folder)?;
    let backup = Backup::read(&*disk)?.ok_or_else(|| {
        Error::Refused(format!("{} is not a backup: {BACKUP} is missing", folder.display()))
    })?;
    for file in &backup.files {
        if check_of(&*disk, &file.name, file.bytes, progress)? != file.check {
            let what = "its checksum differs from the backup";
            return Err(Error::corrupt(disk.path(&file.name), 0, what));
        }
    }
    let manifest =
        Manifest::read(&*disk)?.ok_or_else(|| Error::corrupt(disk.path(MANIFEST), 0, "missing"))?;
    check_early(&backup, until)?;
    let mut segments = of_backup(&backup, &disk)?;
    let goes_beyond = match until {
        RestoreTarget::Backup => false,
        RestoreTarget::Latest => true,
        RestoreTarget::Offset(offset) => offset > backup.position.offset,
        // Later batches may have the same timestamp.
        RestoreTarget::Time(time) => time >= backup.time_ms,
    };
    let mut newest = None;
    if goes_beyond {
        newest = extend(&mut segments, &backup, archives)?;
    }
    let (end, time_ms, goes_on) = find_end(&segments, &backup, until, goes_beyond)?;
    if let (RestoreTarget::Offset(offset), false) = (until, goes_on)
        && end.offset < offset
    {
        return Err(missing(&end, newest, &format!("offset {offset}")));
    }
    if let (RestoreTarget::Time(_) | RestoreTarget::Latest, false, Some(_)) =
        (until, goes_on, newest)
    {
        return Err(missing(&end, newest, "the requested end"));
    }
    segments.retain(|source| source.head.segment <= end.segment);
    let bytes = manifest.files.iter().map(|f| f.bytes).sum::<u64>()
        + sizes(&segments, end).iter().map(|(_, bytes)| bytes).sum::<u64>();
    Ok(RestorePlan { backup, end, time_ms, bytes, goes_on, manifest, disk, segments })
}

/// Error for a target after the end of the log. `newest` is an existing segment that does not
/// continue this log.
fn missing(end: &Position, newest: Option<u64>, what: &str) -> Error {
    let gap = newest.map_or(String::new(), |segment| {
        format!("; segment {segment} exists, but segments before it are missing")
    });
    Error::Refused(format!(
        "the log ends at offset {}, before {what}{gap}. Add more of the log with --log",
        end.offset
    ))
}

fn check_early(backup: &Backup, until: RestoreTarget) -> Result<()> {
    let early = match until {
        RestoreTarget::Offset(offset) => offset < backup.from,
        RestoreTarget::Time(time) => time < backup.from_ms,
        RestoreTarget::Backup | RestoreTarget::Latest => false,
    };
    if early {
        return Err(Error::Refused(format!(
            "this backup can be restored to offset {} or later, {} s before its end. Use an older \
             backup",
            backup.from,
            backup.time_ms.saturating_sub(backup.from_ms) / 1_000
        )));
    }
    Ok(())
}

fn of_backup(backup: &Backup, disk: &Arc<dyn Disk>) -> Result<Vec<SourceSegment>> {
    let mut segments = Vec::new();
    for file in &backup.files {
        let SegmentName::Segment(number) = parse_segment_name(&file.name) else { continue };
        let head = read_segment_head(&**disk, number)?
            .map_err(|bad| Error::corrupt(disk.path(&file.name), 0, bad.to_string()))?;
        segments.push(SourceSegment { head, disk: disk.clone() });
    }
    Ok(segments)
}

/// Appends the archived segments after the backup's end. Returns the segment number of a newer
/// segment that does not continue them, if any.
fn extend(
    segments: &mut Vec<SourceSegment>,
    backup: &Backup,
    archives: &[PathBuf],
) -> Result<Option<u64>> {
    let Some(last) = segments.pop() else { return Ok(None) };
    let mut found = Vec::new();
    for archive in archives {
        let own = (archive.clone(), open_disk(archive)?.list().unwrap_or_default());
        for (folder, names) in folders_in(archive).into_iter().chain([own]) {
            let disk = open_disk(&folder)?;
            for name in names {
                let SegmentName::Segment(number) = parse_segment_name(&name) else { continue };
                let Ok(head) = read_segment_head(&*disk, number)? else { continue };
                if head.lineage == backup.lineage && head.segment == number {
                    found.push(SourceSegment { head, disk: disk.clone() });
                }
            }
        }
    }
    // Use the longest copy of the backup's last segment.
    let size = |source: &SourceSegment| {
        let file = source.disk.open(&segment_name(source.head.segment));
        file.and_then(|file| file.size()).unwrap_or(0)
    };
    let same = found.iter().filter(|source| source.head == last.head).chain([&last]);
    let longest = same.max_by_key(|source| size(source)).cloned();
    let mut at = longest.unwrap_or(last);
    let mut least = backup.position.offset;
    loop {
        // If there are several successors, the last successor is valid. The other successors are
        // left from a failure or an abandoned history.
        let follows = |source: &&SourceSegment| {
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

/// Reads the log up to the target. Returns the end, the time of the last batch before it, and
/// whether the log continues.
fn find_end(
    segments: &[SourceSegment],
    backup: &Backup,
    until: RestoreTarget,
    goes_beyond: bool,
) -> Result<(Position, u64, bool)> {
    let heads: Vec<_> = segments.iter().map(|s| (s.head, &*s.disk)).collect();
    let (mut time_ms, mut goes_on) = (0, false);
    let end = walk(&heads, (!goes_beyond).then_some(backup.position), &mut |at, batch| {
        let is_before = match until {
            _ if at.offset <= backup.from => true,
            RestoreTarget::Backup | RestoreTarget::Latest => true,
            RestoreTarget::Offset(offset) => at.offset <= offset,
            RestoreTarget::Time(time) => batch.time_ms <= time,
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

fn sizes(segments: &[SourceSegment], end: Position) -> Vec<(SegmentHead, u64)> {
    let heads: Vec<_> = segments.iter().map(|source| source.head).collect();
    with_ends(&heads, end)
}

/// Restores into `to`, which must be missing or empty. `term` receives the old term and returns the
/// term of the new segment.
pub fn restore(
    plan: &RestorePlan,
    to: &Path,
    term: impl FnOnce(u64) -> u64,
    progress: &dyn Fn(u64) -> Result<()>,
) -> Result<()> {
    let is_there = match std::fs::read_dir(to) {
        Ok(mut entries) => {
            // ext4 creates `lost+found` in the root of a file system.
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
    plan: &RestorePlan,
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
    let log = ReplicaLog::open(to.clone(), manifest.lineage, plan.end)?;
    let next = term(log.term().max(manifest.term));
    let log = log.into_log(LogOptions::default(), next)?;
    manifest.term = log.term();
    manifest.durable = plan.end.offset;
    drop(log);
    manifest.write(&*to)
}
