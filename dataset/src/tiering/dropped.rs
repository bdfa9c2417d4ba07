//! Removes the files of dropped spaces.

use crate::commit::dirty_parts::DirtyParts;
use crate::engines::Engines;
use crate::live::Live;
use store::{FileEntry, Store};

/// Removes the files of dropped spaces. Returns whether it removed a file.
///
/// The deletion of the space must already be durable in the log, because recovery requires the
/// files of all spaces in the catalogue. No other thread may write files.
pub(crate) fn remove_dropped(
    store: &Store,
    engines: &Engines,
    parts: &DirtyParts,
) -> store::Result<bool> {
    let manifest = store.manifest().clone();
    let dropped = manifest.files.iter().filter(|file| engines.is_dropped(file.tag.space));
    let dropped: Vec<&FileEntry> = dropped.collect();
    if dropped.is_empty() {
        return Ok(false);
    }
    dropped.iter().for_each(|file| parts.forget_space(file.tag.space));
    let names: Vec<String> = dropped.iter().map(|file| file.name.clone()).collect();
    store.replace_files(Vec::new(), &names, 0)?;
    store.trim()?;
    Ok(true)
}

/// Flushes the log, then removes the files of dropped spaces. Returns whether it removed a file.
pub fn forget_dropped(live: &Live<'_>) -> store::Result<bool> {
    let has_any = || {
        let engines = live.current.load();
        live.store.manifest().files.iter().any(|file| engines.is_dropped(file.tag.space))
    };
    if !has_any() {
        return Ok(false);
    }
    live.durability.flush()?;
    let _alone = live.snapshots.interrupt();
    remove_dropped(live.store, &live.current.load(), &live.durability.parts)
}
