//! Atomic replacement of small text files that operators own: the configuration and the ACL file.

use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use tempfile::NamedTempFile;

/// Prefix and suffix of a temporary file, with random characters between them.
const UNFINISHED: [&str; 2] = [".tidemark-", ".tmp"];
/// Locked while a temporary file of this process may exist.
static REPLACING: Mutex<()> = Mutex::new(());

/// Replaces a file atomically and durably. After a crash the file has either the old or the new
/// text. The permissions are preserved. Only the owner can read a new file, because the file may
/// contain passwords.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    // Follow a symbolic link instead of replacing it.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _one = REPLACING.lock();
    let mut file = new_temp_file(folder)?;
    file.write_all(text)?;
    if let Ok(old) = std::fs::metadata(&path) {
        file.as_file().set_permissions(old.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(&path)?;
    File::open(folder)?.sync_all()
}

fn new_temp_file(folder: &Path) -> io::Result<NamedTempFile> {
    let [prefix, suffix] = UNFINISHED;
    tempfile::Builder::new().prefix(prefix).suffix(suffix).tempfile_in(folder)
}

/// Removes temporary files left by a crash of [`replace`] from a folder that no other process uses.
pub fn remove_unfinished(folder: &Path) -> io::Result<()> {
    let _one = REPLACING.lock();
    let [prefix, suffix] = UNFINISHED;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_suffix(suffix));
        // Tempfile uses exactly this length. Files with similar names belong to other software.
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
    use super::{new_temp_file, remove_unfinished, replace};
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
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            2,
            "no temporary file remains"
        );
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
        new_temp_file(folder.path()).unwrap().keep().unwrap();
        remove_unfinished(folder.path()).unwrap();
        let there = |name: &&str| folder.path().join(name).exists();
        assert!(others.iter().all(there) && there(&".tidemark-folder.tmp"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), others.len() + 1);
    }
}
