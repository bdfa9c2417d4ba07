//! Small text files of a data folder that check themselves: their last line is `check 1f2e3d4c`,
//! the CRC-32C of the lines before.

use crate::runtime::atomic_file;
use std::io;
use std::path::Path;

/// The lines, and their check.
pub(crate) fn sealed(lines: &str) -> String {
    format!("{lines}check {:08x}\n", crc32c::crc32c(lines.as_bytes()))
}

/// The lines before the check, if that is right and the last thing in the text.
pub(crate) fn unsealed(text: &str) -> Option<&str> {
    let (lines, _) = text.rsplit_once("check ")?;
    (text == sealed(lines)).then_some(lines)
}

/// Reads a file of a folder, if it is there. `advice`: what to do about a damaged one.
pub(crate) fn read<T>(
    dir: &Path,
    name: &str,
    decode: impl FnOnce(&str) -> Option<T>,
    advice: &str,
) -> io::Result<Option<T>> {
    let path = dir.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let unsound = || io::Error::other(format!("{} is damaged; {advice}", path.display()));
            decode(&text).map(Some).ok_or_else(unsound)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        // What is no folder has no such file; opening it reports that.
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => Ok(None),
        // The kind and the system's words, with the place.
        Err(e) => Err(io::Error::new(e.kind(), format!("reading {}: {e}", path.display()))),
    }
}

/// Replaces a file of a folder, which is made if it is not there. Durable when this returns.
pub(crate) fn write(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    store::create_folder(dir)?;
    atomic_file::replace(&dir.join(name), text.as_bytes())
}
