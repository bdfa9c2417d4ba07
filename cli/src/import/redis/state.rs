//! How far an import has come, in a small file, so that it goes on there after an end of any kind.
//!
//! A cursor is written down when all rows and flags before it were acknowledged for [`SETTLED`]: a
//! server with `fsync = "everysec"` that is killed loses what it acknowledged in the last second.

use node::runtime::atomic_file;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How old an acknowledgement must be.
pub(crate) const SETTLED: Duration = Duration::from_secs(2);

/// Of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Its address.
    pub(crate) source: String,
    /// The process of which the cursor is.
    pub(crate) run_id: String,
    /// Of SCAN; 0 before the first step, and behind the last.
    pub(crate) cursor: u64,
    /// Keys before it.
    pub(crate) keys: u64,
    pub(crate) done: bool,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// What is imported into what: another import has another file.
    pub(crate) import: Vec<String>,
    /// The data set of the server that it goes into; empty: unknown.
    #[serde(default)]
    pub(crate) target: String,
    pub(crate) places: Vec<Place>,
}

/// The file.
pub(crate) struct StateFile(PathBuf);

impl StateFile {
    pub(crate) fn at(path: &Path) -> StateFile {
        StateFile(path.to_owned())
    }

    /// What it says of this import; an error if it is of another.
    pub(crate) fn read(&self, import: &[String], target: &str) -> Result<Option<State>, String> {
        let text = match std::fs::read(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("cannot be read", &error)),
            Ok(text) => text,
        };
        let state: State = serde_json::from_slice(&text).map_err(|error| {
            let io = io::Error::other(error);
            self.failed("is no state of an import (delete it to begin anew)", &io)
        })?;
        if state.import != import {
            return Err(format!(
                "{} is of another import ({}): delete it, or name another with --state",
                self.0.display(),
                state.import.join("; ")
            ));
        }
        if ![target, &state.target].contains(&"") && state.target != target {
            return Err(format!(
                "the server has another data set than the one that {} is of, where this import \
                 was before: delete that file to begin anew",
                self.0.display()
            ));
        }
        Ok(Some(state))
    }

    pub(crate) fn write(&self, state: &State) -> Result<(), String> {
        let text = serde_json::to_vec_pretty(state).unwrap_or_default();
        atomic_file::replace(&self.0, &text).map_err(|e| self.failed("cannot be written", &e))
    }

    /// The import is complete.
    pub(crate) fn remove(&self) {
        // It may never have been there.
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
        let place =
            Place { source: "redis://a:1".to_owned(), cursor: u64::MAX, ..Place::default() };
        let (import_of, target) = (import.clone(), "b".to_owned());
        let state = State { import: import_of, target, places: vec![place] };
        file.write(&state).unwrap();
        assert_eq!(read(&import), Ok(Some(state)));
        assert!(file.read(&import, "c").unwrap_err().contains("another data set"));
        assert!(file.read(&import, "").unwrap().is_some(), "INFO is forbidden");
        assert!(read(&["b".to_owned()]).unwrap_err().contains("of another import (a)"));
        std::fs::write(&file.0, "{").unwrap();
        assert!(read(&import).unwrap_err().contains("no state of an import"));
        file.remove();
        assert_eq!(read(&import), Ok(None));
    }
}
