//! Sets the build information for `tidemark --version`. Works without git.
#![allow(missing_docs, reason = "a build script")]

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TIDEMARK_COMMIT");
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    // A debug build has no commit id, because each commit would relink all tests.
    let commit = match (var("TIDEMARK_COMMIT"), var("PROFILE").as_str()) {
        (named, _) if !named.is_empty() => Some(named),
        (_, "release") => commit(),
        _ => None,
    };
    let commit = commit.map_or("commit unknown".to_owned(), |commit| format!("commit {commit}"));
    let system = format!("{}-{}", var("CARGO_CFG_TARGET_ARCH"), var("CARGO_CFG_TARGET_OS"));
    let version = var("CARGO_PKG_VERSION");
    println!(
        "cargo::rustc-env=TIDEMARK_BUILD={version} ({commit}, {system}, {}; tls, \
         jemalloc)",
        var("PROFILE")
    );
}

/// Returns the commit of the work tree with this file, or `None` if the file is not under git.
fn commit() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // Each commit, checkout and merge appends a line to this file.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
