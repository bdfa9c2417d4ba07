//! Saves the log tail that a replica discards when its history diverges from its master's. The tail
//! is stored in a folder `dropped-<from>-<end>-<chain>` of the data folder.
//!
//! The folder contains the log segments with the discarded part (`tidemark dump` prints them). If
//! the discarded part begins before the log, the folder also contains the snapshot and is a
//! complete data folder for `tidemark serve --dir`. Immutable files are hard links, which use no
//! extra space while the originals exist. A replica that reconnects reuses an existing folder. The
//! operator removes the folder.

use crate::roles::node::Node;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use store::{MANIFEST, Position, SegmentName, parse_segment_name};

/// Name of the folder until its files are complete. A failed attempt may leave the folder behind.
const UNFINISHED: &str = ".tidemark-dropped.tmp";

/// Saves the log from offset `from` to its end, durably. Returns the folder, or `None` if the
/// folder exists already or if there is nothing to save.
pub(crate) fn keep(node: &Node, from: u64, end: Position) -> Result<Option<PathBuf>, store::Error> {
    let disk = node.store.disk().clone();
    let Some(folder) = disk.place().map(Path::to_path_buf) else { return Ok(None) };
    let io = |source| store::Error::Io {
        path: folder.clone(),
        doing: "copying the discarded log in",
        source,
    };
    let (mut segments, mut oldest) = (Vec::new(), u64::MAX);
    for name in disk.list().map_err(io)? {
        let SegmentName::Segment(number) = parse_segment_name(&name) else { continue };
        let Some(head) = node.store.segment_head(number)? else { continue };
        let size = disk.open(&name).and_then(|f| f.size()).map_err(io)?;
        oldest = oldest.min(head.base);
        if head.base + size.saturating_sub(store::SEGMENT_HEAD_BYTES) > from
            && size > store::SEGMENT_HEAD_BYTES
        {
            segments.push(name);
        }
    }
    let manifest = node.store.manifest().clone();
    let (mut files, mut all) = (Vec::new(), segments);
    if oldest > from && !manifest.files.is_empty() {
        // Replay begins in a segment that the manifest lists, so copy all segments of the manifest.
        files = manifest.files.iter().map(|f| f.name.clone()).collect();
        all = disk.list().map_err(io)?;
        all.retain(|name| matches!(parse_segment_name(name), SegmentName::Segment(_)));
    }
    if files.is_empty() && all.is_empty() {
        return Ok(None);
    }
    let kept = folder.join(format!("dropped-{from}-{}-{:08x}", end.offset, end.chain));
    if kept.is_dir() {
        return Ok(None);
    }
    let unfinished = folder.join(UNFINISHED);
    match std::fs::remove_dir_all(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    let made = || -> io::Result<()> {
        std::fs::create_dir(&unfinished)?;
        for name in &all {
            copy(&folder.join(name), &unfinished.join(name))?;
        }
        if !files.is_empty() {
            let path = unfinished.join(MANIFEST);
            std::fs::write(&path, manifest.encode())?;
            File::open(&path)?.sync_all()?;
        }
        for name in &files {
            let (old, new) = (folder.join(name), unfinished.join(name));
            std::fs::hard_link(&old, &new).or_else(|_| copy(&old, &new))?;
        }
        File::open(&unfinished)?.sync_all()?;
        std::fs::rename(&unfinished, &kept)?;
        disk.sync_dir()
    };
    match made() {
        Ok(()) => Ok(Some(kept)),
        Err(error) => {
            // Free the space, because the disk may be full.
            let _ = std::fs::remove_dir_all(&unfinished);
            Err(io(error))
        }
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::copy(from, to)?;
    File::open(to)?.sync_all()
}
