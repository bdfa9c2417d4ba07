//! `tidemark check` and `tidemark dump`: read-only inspection of a data folder.
//!
//! Startup stops at the first damage. A check continues: it reads every byte of all files in the
//! manifest, every batch of the log, and files that no manifest lists. If the manifest or the log
//! is damaged, the check verifies each remaining file by its own header. In that case the check
//! cannot detect missing files.

use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;

use crate::backup::Backup;
use crate::batch::Lineage;
use crate::cold::{BLOCK_BYTES, ColdFile, PageFile, Scrub, parse_cold_name};
use crate::copy::check_of;
use crate::disk::{Disk, LOCK, TEMPORARY};
use crate::error::{Error, Result};
use crate::frame::Check;
use crate::manifest::{BACKUP, FileEntry, MANIFEST, Manifest, Role, Tag, is_ours};
use crate::record::Records;
use crate::replay::{
    BatchReader, NextBatch, Path, ReplayMode, find_path, read_segment_head, replay,
    segment_numbers, segments_back,
};
use crate::segment::{SegmentHead, SegmentName, parse_segment_name, segment_name};
use crate::snapshot::{SnapshotReader, parse_snapshot_name, read_small};
use crate::staging::pending;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// No problem.
    Good,
    /// A deviation without data loss, which the next startup corrects.
    Note,
    /// The system refused a read, so the contents are unknown.
    NotRead,
    /// Damage. The next startup will fail.
    Damage,
}

/// One line of a report.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Severity of the finding.
    pub severity: Severity,
    /// Name of the file, or of the folder for a general finding.
    pub file: String,
    /// Description of the finding.
    pub text: String,
}

/// Result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Findings in order of inspection: manifest, its files, log, other files.
    pub findings: Vec<Finding>,
    /// Number of verified bytes.
    pub bytes: u64,
    /// Number of batches in the log.
    pub batches: u64,
    /// Number of records in the log.
    pub records: u64,
}

impl Report {
    /// Returns the highest severity of all findings.
    pub fn severity(&self) -> Severity {
        self.findings.iter().map(|f| f.severity).max().unwrap_or(Severity::Good)
    }

    fn add(&mut self, severity: Severity, file: &str, text: impl Into<String>) {
        self.findings.push(Finding { severity, file: file.to_string(), text: text.into() });
    }

    fn error(&mut self, file: &str, error: &Error) {
        let severity = if error.is_transient() { Severity::NotRead } else { Severity::Damage };
        self.add(severity, file, format!("{error}. {}", error.advice()));
    }
}

/// Maximum number of attempts if a server publishes manifests during the check.
const MAX_ATTEMPTS: usize = 5;

/// Verifies a data folder. A server may use the folder concurrently. In that case the check may
/// omit the latest batches.
pub fn check(disk: &dyn Disk) -> Result<Report> {
    let number = || Manifest::read(disk).ok().flatten().map(|manifest| manifest.number);
    let mut looks = 0;
    loop {
        let before = number();
        let report = check_once(disk)?;
        looks += 1;
        // The server may have legitimately removed files of the older manifest.
        if report.severity() < Severity::NotRead || number() == before || looks == MAX_ATTEMPTS {
            return Ok(report);
        }
    }
}

fn check_once(disk: &dyn Disk) -> Result<Report> {
    let mut report = Report::default();
    let pending = pending(disk)?;
    let disk: &dyn Disk = match &pending {
        Some(adopted) => {
            let text = "a full sync is complete but not in place yet, the next start installs it. \
                This check reads the new data set";
            report.add(Severity::Note, MANIFEST, text);
            adopted
        }
        None => disk,
    };
    let names = disk.list().map_err(|e| Error::io(disk.path(""), "listing", e))?;
    let manifest = check_manifest(disk, &names, &mut report);
    if let Some(manifest) = &manifest {
        for file in &manifest.files {
            check_file(disk, file, manifest.lineage, &mut report);
        }
        check_log(disk, manifest, &mut report);
    } else {
        for name in &names {
            check_alone(disk, name, &mut report);
        }
    }
    check_backup(disk, manifest.as_ref(), &names, &mut report);
    check_names(manifest.as_ref(), &names, &mut report);
    Ok(report)
}

/// Checks and returns the manifest. A missing manifest is damage if the folder has data files.
fn check_manifest(disk: &dyn Disk, names: &[String], report: &mut Report) -> Option<Manifest> {
    match Manifest::read(disk) {
        Ok(Some(manifest)) => {
            let text = format!(
                "manifest {} of lineage {}, {} files",
                manifest.number,
                manifest.lineage,
                manifest.files.len()
            );
            report.add(Severity::Good, MANIFEST, text);
            Some(manifest)
        }
        Ok(None) => {
            let severity = if names.iter().any(|n| is_ours(n) && !n.ends_with(TEMPORARY)) {
                Severity::Damage
            } else {
                Severity::Note
            };
            report.add(severity, MANIFEST, "missing");
            None
        }
        Err(error) => {
            report.error(MANIFEST, &error);
            None
        }
    }
}

fn check_file(disk: &dyn Disk, file: &FileEntry, lineage: Lineage, report: &mut Report) {
    let looked = match file.role {
        Role::Snapshot => SnapshotReader::open(disk, &file.name, Some((file, lineage)))
            .and_then(|r| read_all(r, report))
            .map(|rows| Some((rows, "rows"))),
        Role::Cold => Scrub::begin(disk, file, lineage).map(|scrub| {
            report.bytes += file.bytes;
            scrub_all(scrub, &file.name, report)
        }),
    };
    match looked {
        Ok(Some((rows, unit))) => {
            let tag = &file.tag;
            let text = format!(
                "{rows} {unit} of space {} kind {}, ids {} to {}",
                tag.space, tag.kind, tag.low, tag.high
            );
            report.add(Severity::Good, &file.name, text);
        }
        Ok(None) => {}
        Err(error) => report.error(&file.name, &error),
    }
}

/// Maximum number of damaged parts of one file to report individually.
const MAX_REPORTED_PARTS: usize = 16;

/// Reads a whole cold file and reports its damage. Returns the number of rows or pages, and the
/// unit, if the file is intact.
fn scrub_all(scrub: Scrub, name: &str, report: &mut Report) -> Option<(u64, &'static str)> {
    let mut found = Vec::new();
    let has = scrub.run(&mut found);
    found.iter().take(MAX_REPORTED_PARTS).for_each(|damage| report.error(name, &damage.error));
    if found.len() > MAX_REPORTED_PARTS {
        let text = format!("and {} more damaged parts", found.len() - MAX_REPORTED_PARTS);
        report.add(Severity::Damage, name, text);
    }
    found.is_empty().then_some(has)
}

fn check_names(manifest: Option<&Manifest>, names: &[String], report: &mut Report) {
    for name in names.iter().filter(|n| ![MANIFEST, LOCK, BACKUP].contains(&n.as_str())) {
        let named = manifest.is_some_and(|m| m.files.iter().any(|f| f.name == **name));
        if name.ends_with(TEMPORARY) && is_ours(name) {
            report.add(Severity::Note, name, "incomplete; the next start removes it");
        } else if (parse_snapshot_name(name).is_some() || parse_cold_name(name).is_some())
            && !named
            && manifest.is_some()
        {
            report.add(Severity::Note, name, "not in the manifest; the next start removes it");
        } else if !is_ours(name) {
            report.add(Severity::Note, name, "unknown file, ignored");
        }
    }
}

/// Checks the files of a backup that its manifest does not cover.
fn check_backup(
    disk: &dyn Disk,
    manifest: Option<&Manifest>,
    names: &[String],
    report: &mut Report,
) {
    let backup = match Backup::read(disk) {
        Ok(Some(backup)) => backup,
        Ok(None) => return,
        Err(error) => return report.error(BACKUP, &error),
    };
    for file in &backup.files {
        let entry = manifest.and_then(|m| m.file(&file.name));
        if entry.is_some_and(|entry| (entry.bytes, entry.check) == (file.bytes, file.check)) {
            continue;
        }
        match check_of(disk, &file.name, file.bytes, &|_| Ok(())) {
            Ok(check) if check == file.check => report.bytes += file.bytes,
            Ok(_) => {
                let what = "its checksum differs from the backup";
                report.add(Severity::Damage, &file.name, what);
            }
            Err(error) => report.error(&file.name, &error),
        }
    }
    let ours = |name: &&String| is_ours(name) && backup.file(name).is_none();
    for name in names.iter().filter(ours) {
        report.add(
            Severity::Damage,
            name,
            "not listed in the backup, so it belongs to another folder",
        );
    }
    let Backup { from, from_ms, position, time_ms, .. } = &backup;
    let text = format!(
        "a backup of {} files, {} bytes, restorable to offsets {from} (time {from_ms}) to {} (time \
         {time_ms}), and further with a later log",
        backup.files.len(),
        backup.bytes(),
        position.offset
    );
    report.add(Severity::Good, BACKUP, text);
}

fn read_all(mut reader: SnapshotReader, report: &mut Report) -> Result<u64> {
    let mut chunk = Vec::new();
    while reader.next(&mut chunk)? {
        report.bytes += chunk.len() as u64;
    }
    Ok(reader.rows())
}

fn check_log(disk: &dyn Disk, manifest: &Manifest, report: &mut Report) {
    let path = match find_path(disk, manifest.lineage, manifest.replay, false) {
        Ok(path) => path,
        Err(error) => {
            report.error("the log", &error);
            return check_segments_from(disk, manifest.replay.segment, report);
        }
    };
    for &n in &path.void {
        report.add(
            Severity::Note,
            &segment_name(n),
            "void: unfinished, or replaced after a disk error",
        );
    }
    if let Err(error) = check_kept(disk, manifest, &path, report) {
        report.error("the log", &error);
    }
    let mut apply = |head: &crate::batch::BatchHead, body: &[u8]| {
        let mut n = 0;
        for record in Records::new(body) {
            record?;
            n += 1;
        }
        if n == head.records {
            Ok(())
        } else {
            Err(format!("the batch header counts {} records, the batch contains {n}", head.records))
        }
    };
    match replay(disk, &path, manifest.replay, ReplayMode::Check, &mut apply, &mut |_| ()) {
        Ok(end) => {
            report.bytes += end.bytes;
            report.batches += end.batches;
            report.records += end.records;
            for head in &path.segments {
                let text = format!("segment {} from offset {}", head.segment, head.base);
                report.add(Severity::Good, &segment_name(head.segment), text);
            }
            let last = segment_name(end.position.segment);
            if end.position.offset < manifest.durable {
                let text = format!(
                    "ends at offset {}, but was durable up to {}: batches are missing",
                    end.position.offset, manifest.durable
                );
                report.add(Severity::Damage, &last, text);
            }
            if end.torn_bytes > 0 {
                let text = format!(
                    "{} bytes after byte {} are an incomplete batch, which a start truncates. This \
                     is normal after a crash; otherwise check the disk",
                    end.torn_bytes, end.position.byte
                );
                report.add(Severity::Note, &last, text);
            }
            let text =
                format!("{} batches, {} records, up to {}", end.batches, end.records, end.position);
            report.add(Severity::Good, &last, text);
        }
        Err(error) => {
            report.error("the log", &error);
            // Everything before the damage is intact.
            let is_damaged = |n: &u64| match &error {
                Error::Corrupt { path, .. } => *path == disk.path(&segment_name(*n)),
                _ => false,
            };
            let damaged = path.segments.iter().map(|head| head.segment).rev().find(is_damaged);
            check_segments_from(disk, damaged.map_or(manifest.replay.segment, |n| n + 1), report);
        }
    }
}

/// Checks each segment after the damage individually.
fn check_segments_from(disk: &dyn Disk, first: u64, report: &mut Report) {
    for n in segment_numbers(disk).unwrap_or_default().into_iter().filter(|&n| n >= first) {
        check_alone(disk, &segment_name(n), report);
    }
}

fn check_alone(disk: &dyn Disk, name: &str, report: &mut Report) {
    let looked = if let SegmentName::Segment(number) = parse_segment_name(name) {
        check_segment_alone(disk, number, report)
    } else if parse_snapshot_name(name).is_some() {
        SnapshotReader::open(disk, name, None)
            .and_then(|reader| read_all(reader, report))
            .map(|rows| format!("{rows} rows"))
    } else if parse_cold_name(name).is_some() {
        match Scrub::begin_any(disk, name).map(|scrub| scrub_all(scrub, name, report)) {
            Ok(Some((rows, unit))) => Ok(format!("{rows} {unit}")),
            Ok(None) => return,
            Err(error) => Err(error),
        }
    } else {
        return;
    };
    match looked {
        Ok(text) => report.add(Severity::Good, name, format!("intact on its own: {text}")),
        Err(error) => report.error(name, &error),
    }
}

fn check_segment_alone(disk: &dyn Disk, number: u64, report: &mut Report) -> Result<String> {
    let name = segment_name(number);
    let head = read_segment_head(disk, number)?
        .map_err(|bad| Error::corrupt(disk.path(&name), 0, bad.to_string()))?;
    let file = disk.open(&name).map_err(|e| Error::io(disk.path(&name), "opening", e))?;
    let mut reader = BatchReader::new(file, disk.path(&name), head, None)?;
    loop {
        match reader.next()? {
            NextBatch::Batch(batch) => report.bytes += batch.bytes(),
            NextBatch::End => {
                return Ok(format!("offsets {} to {}", head.base, reader.position().offset));
            }
            NextBatch::Bad(what) => {
                let byte = reader.position().byte;
                if let Some(proof) = reader.proof_of_damage()? {
                    let what = format!(
                        "{what}; the batch at byte {proof} was written when this position was \
                         already durable"
                    );
                    return Err(Error::corrupt(disk.path(&name), byte, what));
                }
                return Ok(format!("up to byte {byte}, followed by a torn tail or void batches"));
            }
        }
    }
}

/// Checks the segments before the replay position, which only replicas need.
fn check_kept(
    disk: &dyn Disk,
    manifest: &Manifest,
    path: &Path,
    report: &mut Report,
) -> Result<()> {
    let Some(first) = path.segments.first() else { return Ok(()) };
    let older = segments_back(disk, first.previous, usize::MAX)?;
    for &n in path.obsolete.iter().filter(|&&n| older.iter().all(|head| head.segment != n)) {
        let text = "no intact segment continues it: void, or before damage; neither a start nor a \
            replica needs it";
        report.add(Severity::Note, &segment_name(n), text);
    }
    // Each segment must end at the base of the next segment, and the last segment at the replay
    // position.
    let heads: Vec<SegmentHead> = older.iter().rev().chain([first]).copied().collect();
    let begins = heads.iter().skip(1).map(|next| (next.base, next.chain));
    for (head, (end, chain)) in
        heads.iter().zip(begins.chain([(manifest.replay.offset, manifest.replay.chain)]))
    {
        let name = segment_name(head.segment);
        let file = disk.open(&name).map_err(|e| Error::io(disk.path(&name), "opening", e))?;
        let mut reader = BatchReader::new(file, disk.path(&name), *head, None)?;
        let mut wrong = None;
        while reader.position().offset < end && wrong.is_none() {
            match reader.next()? {
                NextBatch::Batch(batch) => report.bytes += batch.bytes(),
                NextBatch::End => wrong = Some("the file ends too early"),
                NextBatch::Bad(what) => wrong = Some(what),
            }
        }
        let at = reader.position();
        if wrong.is_none() && (at.offset, at.chain) != (end, chain) {
            wrong = Some("the next segment does not continue it");
        }
        match wrong {
            Some(what) => {
                let text = format!(
                    "damaged at byte {}: {what}. A start does not read it; a replica that needs it \
                     gets a full sync",
                    at.byte
                );
                report.add(Severity::Note, &name, text);
            }
            None if head.segment != first.segment => {
                report.add(Severity::Good, &name, "kept for replicas; a start does not need it");
            }
            None => {}
        }
    }
    Ok(())
}

/// Prints the structure of a data file as text, one element per line. With `payloads` also prints
/// records and chunks in hexadecimal. Stops at damage and reports its location.
pub fn dump(disk: &dyn Disk, name: &str, payloads: bool, out: &mut dyn Write) -> Result<()> {
    let mut text = Dump { out, payloads, path: disk.path(name) };
    if name == BACKUP {
        let backup = Backup::read(disk)?
            .ok_or_else(|| Error::Refused(format!("no {BACKUP} in this folder")))?;
        return text.line(backup.encode().trim_end());
    }
    if name == MANIFEST {
        let manifest = Manifest::read(disk)?
            .ok_or_else(|| Error::Refused(format!("no {MANIFEST} in this folder")))?;
        return text.line(manifest.encode().trim_end());
    }
    if let SegmentName::Segment(number) = parse_segment_name(name) {
        return dump_segment(disk, number, &mut text);
    }
    if parse_snapshot_name(name).is_some() {
        return dump_snapshot(disk, name, &mut text);
    }
    if parse_cold_name(name).is_some() {
        return dump_cold(disk, name, &mut text);
    }
    Err(Error::Refused(format!("{name} is not the name of a data file")))
}

struct Dump<'a> {
    out: &'a mut dyn Write,
    payloads: bool,
    path: std::path::PathBuf,
}

impl Dump<'_> {
    fn line(&mut self, text: &str) -> Result<()> {
        writeln!(self.out, "{text}").map_err(|e| Error::io(&self.path, "printing", e))
    }

    fn payload(&self, bytes: &[u8]) -> String {
        let mut text = format!("{} bytes", bytes.len());
        if self.payloads {
            text.push(' ');
            for byte in bytes {
                let _ = write!(text, "{byte:02x}"); // cannot fail for a String
            }
        }
        text
    }
}

fn dump_segment(disk: &dyn Disk, number: u64, text: &mut Dump<'_>) -> Result<()> {
    let name = segment_name(number);
    let head = match read_segment_head(disk, number)? {
        Ok(head) => head,
        Err(bad) => return text.line(&format!("byte 0: {bad}")),
    };
    text.line(&format!(
        "segment {} lineage {} continues {}{} base {} sequence {} term {} chain {:08x}",
        head.segment,
        head.lineage,
        head.previous,
        if head.void { " (batches after its end there are void)" } else { "" },
        head.base,
        head.sequence,
        head.term,
        head.chain
    ))?;
    let file = disk.open(&name).map_err(|e| Error::io(disk.path(&name), "opening", e))?;
    let mut reader = BatchReader::new(file, disk.path(&name), head, None)?;
    loop {
        let at = reader.position();
        match reader.next()? {
            NextBatch::Batch(batch) => {
                let kind = if batch.is_seal() { "seal" } else { "batch" };
                text.line(&format!(
                    "byte {} offset {} {kind} {} records {} bytes {} time {} unsynced {} chain \
                     {:08x}",
                    at.byte,
                    at.offset,
                    batch.sequence,
                    batch.records,
                    batch.body_bytes,
                    batch.time_ms,
                    batch.unsynced_bytes,
                    batch.chain
                ))?;
                for record in Records::new(reader.body()) {
                    let line = match record {
                        Ok(r) => format!(
                            "  space {} kind {} {}",
                            r.space,
                            r.kind,
                            text.payload(r.payload)
                        ),
                        Err(what) => format!("  {what}"),
                    };
                    text.line(&line)?;
                }
            }
            NextBatch::End => return text.line(&format!("byte {} end", at.byte)),
            NextBatch::Bad(what) => {
                let rest = reader.size().saturating_sub(at.byte);
                let verdict = match reader.proof_of_damage()? {
                    Some(proof) => format!(
                        "damage: the batch at byte {proof} was written when this position was \
                         durable"
                    ),
                    None => "a torn tail, or batches that the next segment makes void".to_string(),
                };
                return text
                    .line(&format!("byte {} {what}; {rest} bytes follow; {verdict}", at.byte));
            }
        }
    }
}

fn whose(lineage: Lineage, tag: &Tag) -> String {
    let Tag { space, kind, low, high, stamp } = tag;
    format!("lineage {lineage} space {space} kind {kind} ids {low} to {high} stamp {stamp}")
}

fn dump_snapshot(disk: &dyn Disk, name: &str, text: &mut Dump<'_>) -> Result<()> {
    let mut reader = SnapshotReader::open(disk, name, None)?;
    let head = *reader.head();
    let whose = whose(head.lineage, &head.tag);
    text.line(&format!("snapshot file, {whose} body {} bytes", head.body_bytes))?;
    let mut chunk = Vec::new();
    loop {
        let at = reader.at();
        if !reader.next(&mut chunk)? {
            return text.line(&format!("byte {at} end, {} rows", reader.rows()));
        }
        let check = Check::new().bytes(&chunk).value();
        let line =
            format!("byte {at} chunk, CRC-32C of its body {check:08x}, {}", text.payload(&chunk));
        text.line(&line)?;
    }
}

fn dump_cold(disk: &dyn Disk, name: &str, text: &mut Dump<'_>) -> Result<()> {
    let (file, note) = PageFile::open_any(disk, name)?;
    let whose = whose(file.lineage(), &file.entry().tag);
    if file.has_rows() {
        return dump_rows(&Arc::new(ColdFile::new(file, &note)?), &whose, text);
    }
    text.line(&format!(
        "page file, {whose}, {} pages, note {}",
        file.pages(),
        text.payload(&note)
    ))?;
    let mut page = [0; BLOCK_BYTES];
    for number in 0..file.pages() {
        file.read(number, &mut page)?;
        let ones: u32 = page.iter().map(|byte| byte.count_ones()).sum();
        let byte = (1 + number) * page.len() as u64;
        let shown = if text.payloads { text.payload(&page) } else { String::new() };
        text.line(&format!("byte {byte} page {number}, {ones} bits set {shown}"))?;
    }
    Ok(())
}

fn dump_rows(file: &Arc<ColdFile>, whose: &str, text: &mut Dump<'_>) -> Result<()> {
    let head = *file.head();
    text.line(&format!(
        "cold file, {whose}, {} rows of {} values in {} blocks, ids {} to {}",
        head.rows, head.columns, head.blocks, head.first, head.last
    ))?;
    let (mut rows, mut ids, mut values) = (file.rows(), Vec::new(), Vec::new());
    while rows.next(&mut ids, &mut values)? {
        let byte = rows.at() * BLOCK_BYTES as u64;
        text.line(&format!(
            "byte {byte} block {}, {} rows from {}",
            rows.at() - 1,
            ids.len(),
            ids[0]
        ))?;
        if text.payloads {
            for (i, id) in ids.iter().enumerate() {
                text.line(&format!("  {id} {:?}", &values[i * head.columns..][..head.columns]))?;
            }
        }
    }
    Ok(())
}

/// Returns the lineage of a folder, or `None` without a manifest.
pub fn lineage_of(disk: &dyn Disk) -> Result<Option<Lineage>> {
    Ok(Manifest::read(disk)?.map(|m| m.lineage))
}

/// Passes the snapshot's small file of this kind to `each`, then the payloads of the log's records
/// of this kind in order.
///
/// Does not write, so a server may use the folder concurrently. The server's latest writes may be
/// missing.
pub fn peek(disk: &dyn Disk, kind: u8, each: &mut dyn FnMut(&[u8])) -> Result<()> {
    let pending = pending(disk)?;
    let disk: &dyn Disk = pending.as_ref().map_or(disk, |adopted| adopted);
    let Some(manifest) = Manifest::read(disk)? else { return Ok(()) };
    let is_it = |file: &&FileEntry| {
        file.role == Role::Snapshot && file.tag.space == 0 && file.tag.kind == u32::from(kind)
    };
    if let Some(file) = manifest.files.iter().find(is_it) {
        each(&read_small(disk, file, manifest.lineage)?);
    }
    let path = find_path(disk, manifest.lineage, manifest.replay, false)?;
    let mut apply = |_: &crate::batch::BatchHead, body: &[u8]| {
        for record in Records::new(body) {
            let record = record?;
            if record.kind == kind {
                each(record.payload);
            }
        }
        Ok(())
    };
    replay(disk, &path, manifest.replay, ReplayMode::Check, &mut apply, &mut |_| ())?;
    Ok(())
}
