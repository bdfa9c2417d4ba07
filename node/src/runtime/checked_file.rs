//! Small text files of the data folder with a checksum. The last line is `check 1f2e3d4c`, the
//! CRC-32C of the lines before it.

use crate::runtime::atomic_file;
use std::io;
use std::path::Path;

/// Appends the check line to the text of a file.
pub(crate) fn sealed(lines: &str) -> String {
    format!("{lines}check {:08x}\n", crc32c::crc32c(lines.as_bytes()))
}

/// Returns the lines before the check line, or `None` if the last line is not a correct check line.
pub(crate) fn unsealed(text: &str) -> Option<&str> {
    let (lines, _) = text.rsplit_once("check ")?;
    (text == sealed(lines)).then_some(lines)
}

/// Reads a file. Returns `None` if the file does not exist. `advice` tells the operator what to do
/// about a damaged file.
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
        // If the path is not a folder, opening the store reports the error.
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => Ok(None),
        Err(e) => Err(io::Error::new(e.kind(), format!("reading {}: {e}", path.display()))),
    }
}

/// Replaces a file durably. Creates the folder if necessary.
pub(crate) fn write(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    store::create_folder(dir)?;
    atomic_file::replace(&dir.join(name), text.as_bytes())
}
