//! Stores the progress of an import in a small file, so that the import can resume after a crash.
//!
//! The import stores a cursor once all rows and flags before it have been acknowledged for
//! [`MIN_ACK_AGE`]. A server with `fsync = "everysec"` can lose the writes of the last second when
//! it crashes.

use node::runtime::atomic_file;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Minimum age of an acknowledgement before the cursor is stored.
pub(crate) const MIN_ACK_AGE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScanPosition {
    pub(crate) source: String,
    /// Run id of the server process that issued the cursor.
    pub(crate) run_id: String,
    /// Cursor of SCAN; 0 before the first step and after the last step.
    pub(crate) cursor: u64,
    pub(crate) keys: u64,
    pub(crate) done: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImportState {
    /// Identity of the import: sources, layouts and target. Two different imports need different
    /// state files.
    pub(crate) import: Vec<String>,
    /// Lineage of the server's data set; empty if unknown.
    #[serde(default)]
    pub(crate) target: String,
    pub(crate) places: Vec<ScanPosition>,
}

pub(crate) struct StateFile(PathBuf);

impl StateFile {
    pub(crate) fn at(path: &Path) -> StateFile {
        StateFile(path.to_owned())
    }

    /// Reads the import's state; returns `None` if there is no file. Fails if the file belongs to
    /// another import.
    pub(crate) fn read(
        &self,
        import: &[String],
        target: &str,
    ) -> Result<Option<ImportState>, String> {
        let text = match std::fs::read(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("cannot be read", &error)),
            Ok(text) => text,
        };
        let state: ImportState = serde_json::from_slice(&text).map_err(|error| {
            let io = io::Error::other(error);
            self.failed("is not the state file of an import (delete it to start over)", &io)
        })?;
        if state.import != import {
            return Err(format!(
                "{} belongs to another import ({}): delete it, or use another file with --state",
                self.0.display(),
                state.import.join("; ")
            ));
        }
        if ![target, &state.target].contains(&"") && state.target != target {
            return Err(format!(
                "the data set of the server differs from the one in the state file {}: delete that \
                 file to start over",
                self.0.display()
            ));
        }
        Ok(Some(state))
    }

    pub(crate) fn write(&self, state: &ImportState) -> Result<(), String> {
        let text = serde_json::to_vec_pretty(state).unwrap_or_default();
        atomic_file::replace(&self.0, &text).map_err(|e| self.failed("cannot be written", &e))
    }

    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_file(&self.0);
    }

    pub(crate) fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn failed(&self, what: &str, error: &io::Error) -> String {
        format!("{} {what}: {error}", self.0.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_read_as_it_was_written_and_is_of_one_import() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::at(&folder.path().join("state"));
        let import = vec!["a".to_owned()];
        let read = |import: &[String]| file.read(import, "b");
        assert_eq!(read(&import), Ok(None));
        let place = ScanPosition {
            source: "redis://a:1".to_owned(),
            cursor: u64::MAX,
            ..ScanPosition::default()
        };
        let (import_of, target) = (import.clone(), "b".to_owned());
        let state = ImportState { import: import_of, target, places: vec![place] };
        file.write(&state).unwrap();
        assert_eq!(read(&import), Ok(Some(state)));
        assert!(file.read(&import, "c").unwrap_err().contains("data set of the server differs"));
        assert!(file.read(&import, "").unwrap().is_some(), "INFO is forbidden");
        assert!(read(&["b".to_owned()]).unwrap_err().contains("belongs to another import (a)"));
        std::fs::write(&file.0, "{").unwrap();
        assert!(read(&import).unwrap_err().contains("not the state file of an import"));
        file.remove();
        assert_eq!(read(&import), Ok(None));
    }
}
