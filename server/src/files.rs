//! Small text files that operators own (the configuration, the users): replaced as a whole, safely.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces a file: after a crash at any moment it has the old text or the new one, and once this has returned the new one. Its
/// permissions stay; a new one can be read by its owner alone, for it may hold passwords.
pub(crate) fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    // The file that a link points to is meant, not the link.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".tidemark-").suffix(".tmp").tempfile_in(folder)?;
    file.write_all(text)?;
    if let Ok(old) = std::fs::metadata(&path) {
        file.as_file().set_permissions(old.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(&path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::replace;
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
}
