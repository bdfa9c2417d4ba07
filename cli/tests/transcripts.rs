//! Runs the golden transcripts of `tests/scripts`: each file is a test of its own, so that
//! `cargo test --test transcripts feed` runs the stories of one folder.
//!
//! `cargo xtask transcripts --rewrite` (`TIDEMARK_REWRITE=1`) writes the replies into the files
//! anew; read the difference before you commit it.

use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// All stories, with their names: folder and file.
fn stories() -> Vec<(String, PathBuf)> {
    let mut stories = Vec::new();
    for folder in fs::read_dir(root().join("tests/scripts")).expect("the stories").flatten() {
        if !folder.path().is_dir() {
            continue;
        }
        for file in fs::read_dir(folder.path()).expect("a folder").flatten() {
            let path = file.path();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            stories.push((format!("{}::{name}", folder.file_name().to_string_lossy()), path));
        }
    }
    stories.sort();
    stories
}

fn run(path: &Path) -> Result<(), Failed> {
    let outcome = harness::transcript::run(path)?;
    if std::env::var_os("TIDEMARK_REWRITE").is_some() {
        // Others read the stories at the same time.
        if fs::read_to_string(path)? != outcome.text {
            fs::write(path, outcome.text)?;
        }
        return Ok(());
    }
    match outcome.differences.as_slice() {
        [] => Ok(()),
        differences => Err(format!(
            "{}\n\nIf the new replies are right: cargo xtask transcripts --rewrite",
            differences.join("\n")
        )
        .into()),
    }
}

/// A story teaches something, and says so in a sentence at its top.
fn every_story_begins_with_a_sentence() -> Result<(), Failed> {
    let stories = stories();
    if stories.len() < 40 {
        return Err(format!("{} stories, not 40", stories.len()).into());
    }
    for (name, path) in stories {
        let text = fs::read_to_string(path)?;
        let top: Vec<&str> =
            text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim).collect();
        if !top.join(" ").contains('.') {
            return Err(format!("{name} does not say what it teaches").into());
        }
        if let Some(line) = text.lines().find(|l| l.starts_with('#') && l.chars().count() > 100) {
            return Err(format!("{name}: a comment of more than 100 columns: {line}").into());
        }
    }
    Ok(())
}

/// The commands about spaces, tables, views and actions in docs/commands.md are all used by the
/// stories of schema changes; TM.SPILL has a folder of its own.
fn schema_stories_use_every_command_about_spaces() -> Result<(), Failed> {
    let docs = fs::read_to_string(root().join("docs/commands.md"))?;
    let sections = docs.split("\n## ").filter(|section| {
        section.starts_with("Spaces and tables") || section.starts_with("Views and actions")
    });
    let names: BTreeSet<String> = sections
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("### `"))
        .map(|line| {
            let words = line.trim_end_matches('`').split(' ');
            let upper = |w: &&str| w.chars().all(|c| c.is_ascii_uppercase() || c == '.');
            words.take_while(upper).collect::<Vec<_>>().join(" ")
        })
        .collect();
    if names.len() < 10 {
        return Err(format!("only {names:?} in docs/commands.md").into());
    }
    let mut told = String::new();
    for (name, path) in stories() {
        if name.starts_with("schema::") || name.starts_with("spill::") {
            told += &fs::read_to_string(path)?;
        }
    }
    match names.iter().find(|name| !told.contains(&format!("> {name}"))) {
        Some(name) => Err(format!("no story of schema or spill uses {name}").into()),
        None => Ok(()),
    }
}

/// What a story shows is what its reader sees with redis-cli, in RESP2 and RESP3.
fn replies_are_printed_as_redis_cli_prints_them() -> Result<(), Failed> {
    harness::transcript::compare_with_redis_cli(&[
        &["SET", "post:17:like", "5"],
        &["HGETALL", "post:17"],
        &["HGETALL", "post:18"],
        &["HGET", "post:18", "like"],
        &["FEED.GET", "home", "7", "17", "18", "19", "20", "21", "22", "23", "24", "25", "26"],
        &["FEED.GET", "home", "7", "17", "BINARY"],
        &["ECHO", "\"a\\b\"\n\t\r\u{7}\u{8}\u{1}\u{e9}"],
        &["ECHO", ""],
        &["PING"],
        &["NOPE"],
        &["TM.VIEW", "LIST"],
        &["TM.DIGEST", "liked"],
        &["TM.ADVISE", "post"],
        &["TM.TABLES", "post"],
        &["COMMAND", "INFO", "get", "nope"],
        &["COMMAND", "DOCS", "get"],
        &["ACL", "GETUSER", "default"],
        &["KEYS", "nope*"],
        &["CONFIG", "GET", "nope"],
    ])?;
    Ok(())
}

fn main() {
    let mut args = Arguments::from_args();
    // A story waits more than it works.
    args.test_threads = args.test_threads.or(Some(8));
    let stories = stories().into_iter().map(|(name, path)| Trial::test(name, move || run(&path)));
    let mut tests: Vec<Trial> = stories.collect();
    tests.push(Trial::test(
        "every_story_begins_with_a_sentence",
        every_story_begins_with_a_sentence,
    ));
    tests.push(Trial::test(
        "replies_are_printed_as_redis_cli_prints_them",
        replies_are_printed_as_redis_cli_prints_them,
    ));
    tests.push(Trial::test(
        "schema_stories_use_every_command_about_spaces",
        schema_stories_use_every_command_about_spaces,
    ));
    libtest_mimic::run(&args, tests).exit();
}
