//! Small text files that operators own (the configuration, the users): replaced as a whole, safely.

use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use tempfile::NamedTempFile;

/// A file that is to take another's place is called so until it does, with some random letters in
/// between.
const UNFINISHED: [&str; 2] = [".tidemark-", ".tmp"];
/// Held while there may be such a file of this process.
static REPLACING: Mutex<()> = Mutex::new(());

/// Replaces a file: after a crash at any moment it has the old text or the new one, and once this
/// has returned the new one. Its permissions stay; a new one can be read by its owner alone, for it
/// may hold passwords.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    // The file that a link points to is meant, not the link.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _one = REPLACING.lock();
    let mut file = unfinished(folder)?;
    file.write_all(text)?;
    if let Ok(old) = std::fs::metadata(&path) {
        file.as_file().set_permissions(old.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(&path)?;
    File::open(folder)?.sync_all()
}

fn unfinished(folder: &Path) -> io::Result<NamedTempFile> {
    let [prefix, suffix] = UNFINISHED;
    tempfile::Builder::new().prefix(prefix).suffix(suffix).tempfile_in(folder)
}

/// Removes what a kill in the middle of [`replace`] has left in a folder that is no other
/// process's.
pub fn remove_unfinished(folder: &Path) -> io::Result<()> {
    let _one = REPLACING.lock();
    let [prefix, suffix] = UNFINISHED;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_suffix(suffix));
        // As many letters as tempfile takes: what only looks like it belongs to another program.
        let is_ours = random.is_some_and(|random| {
            random.len() == 6 && random.bytes().all(|b| b.is_ascii_alphanumeric())
        });
        if is_ours && entry.file_type()?.is_file() {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{remove_unfinished, replace, unfinished};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_replaced_with_its_permissions_and_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a"), folder.path().join("b"));
        replace(&path, b"one").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        replace(&link, b"two").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
        assert!(replace(&folder.path().join("no/such"), b"x").is_err());
    }

    #[test]
    fn only_what_a_replacement_has_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let others = [
            ".tidemark-.tmp",
            ".tidemark-abc123.tmp~",
            ".tidemark-abc12.tmp",
            ".tidemark-a-c123.tmp",
            "tidemark-abc123.tmp",
        ];
        for name in others.iter().chain(&[".tidemark-abc123.tmp", ".tidemark-XyZ000.tmp"]) {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        std::fs::create_dir(folder.path().join(".tidemark-folder.tmp")).unwrap();
        unfinished(folder.path()).unwrap().keep().unwrap();
        remove_unfinished(folder.path()).unwrap();
        let there = |name: &&str| folder.path().join(name).exists();
        assert!(others.iter().all(there) && there(&".tidemark-folder.tmp"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), others.len() + 1);
    }
}
