//! Runs the golden transcripts in `tests/scripts`. Each file is one test, so
//! `cargo test --test transcripts feed` runs the transcripts of one folder.
//!
//! `cargo xtask transcripts --rewrite` (`TIDEMARK_REWRITE=1`) writes the current replies to the
//! files. Read the diff before committing it.

use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

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
        // Other tests read the transcripts concurrently.
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

/// Checks that each transcript begins with a sentence about its subject.
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
            return Err(format!("{name} has no introduction").into());
        }
        if let Some(line) = text.lines().find(|l| l.starts_with('#') && l.chars().count() > 100) {
            return Err(format!("{name}: a comment of more than 100 columns: {line}").into());
        }
    }
    Ok(())
}

/// Returns the commands in the transcripts, each with the first line of its reply.
fn commands_with_replies() -> Vec<(String, String)> {
    let mut commands_with_replies = Vec::new();
    for (_, path) in stories() {
        let text = fs::read_to_string(path).expect("a story");
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let Some((client, command)) = line.split_once("> ") else { continue };
            if client.contains(' ') {
                continue;
            }
            let command = match command.strip_prefix("for ").and_then(|c| c.split_once(": ")) {
                Some((_, command)) => command,
                None => command,
            };
            let reply = lines.peek().copied().unwrap_or_default();
            commands_with_replies.push((command.to_owned(), reply.to_owned()));
        }
    }
    commands_with_replies
}

/// Checks the transcripts of the commands in docs/commands.md that concern spaces, views, actions,
/// rows and forgotten ids. Each command must occur with a success and with an error. Each keyword
/// of a command's usage (WIDEN, TOKEN, BINARY) must occur in some transcript.
fn stories_show_every_line_about_schemas() -> Result<(), Failed> {
    let docs = fs::read_to_string(root().join("docs/commands.md"))?;
    let wanted = ["Spaces and tables", "Views and actions", "Counters"];
    let usages: Vec<&str> = docs
        .split("\n## ")
        .flat_map(|section| {
            let is_wanted = wanted.iter().any(|title| section.starts_with(title));
            section.lines().filter_map(move |line| {
                let usage = line.strip_prefix("### `")?.strip_suffix('`')?;
                (is_wanted || usage.starts_with("TM.FORGET")).then_some(usage)
            })
        })
        .collect();
    if usages.len() < 25 {
        return Err(format!("only {usages:?} in docs/commands.md").into());
    }
    let commands_with_replies = commands_with_replies();
    let mut missing = Vec::new();
    for usage in usages {
        let is_upper = |word: &&str| word.chars().all(|c| c.is_ascii_uppercase() || c == '.');
        let name = usage.split(' ').take_while(is_upper).collect::<Vec<_>>().join(" ");
        let of_it: Vec<_> = commands_with_replies
            .iter()
            .filter_map(|(command, reply)| {
                let arguments = command.strip_prefix(&name)?;
                (arguments.is_empty() || arguments.starts_with(' ')).then_some((arguments, reply))
            })
            .collect();
        if !of_it.iter().any(|(_, reply)| reply.starts_with("(error)")) {
            missing.push(format!("{name}: an error"));
        }
        if !of_it.iter().any(|(_, reply)| !reply.starts_with("(error)")) {
            missing.push(format!("{name}: a reply"));
        }
        let words = usage[name.len()..].split(|c: char| !c.is_ascii_alphabetic());
        for word in words.filter(|word| word.len() > 1).filter(is_upper) {
            let sends =
                |arguments: &str| arguments.split(' ').any(|a| a.eq_ignore_ascii_case(word));
            if !of_it.iter().any(|(arguments, _)| sends(arguments)) {
                missing.push(format!("{name}: {word}"));
            }
        }
    }
    match missing.as_slice() {
        [] => Ok(()),
        missing => Err(format!("no story shows {}", missing.join("; ")).into()),
    }
}

/// Checks that some transcript sets each key of the configuration's spaces, views and actions by a
/// command.
fn stories_give_every_option_by_command() -> Result<(), Failed> {
    let config = fs::read_to_string(root().join("config/tidemark.toml"))?;
    let commands_with_replies = commands_with_replies();
    let gives = |section: &str, key: &str| {
        commands_with_replies.iter().any(|(command, _)| {
            let words: Vec<&str> = command.split(' ').collect();
            let is_about = match (section, words.as_slice()) {
                ("counter" | "existence", ["TM.SPACE", "ALTER", _, "SET", ..]) => true,
                (_, ["TM.SPACE", "CREATE", _, kind, ..]) => kind.eq_ignore_ascii_case(section),
                ("view", ["TM.VIEW", "CREATE", ..]) | ("action", ["TM.ACTION", "CREATE", ..]) => {
                    true
                }
                _ => false,
            };
            is_about && words[3..].contains(&key)
        })
    };
    let (mut section, mut keys, mut missing) = ("", 0, BTreeSet::new());
    for line in config.lines() {
        let line = line.trim_start_matches('#').trim_start();
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
        }
        let Some((key, _)) = line.split_once(" = ") else { continue };
        let is_ours = ["counter", "existence", "view", "action"].contains(&section);
        let is_key = key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        if is_ours && is_key && key != "name" {
            keys += 1;
            if !gives(section, key) {
                missing.insert(format!("{section}.{key}"));
            }
        }
    }
    if keys < 35 {
        return Err(format!("only {keys} options in config/tidemark.toml").into());
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("no story gives {missing:?} by command").into()),
    }
}

/// Checks that replies are printed as by redis-cli, in RESP2 and RESP3.
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
        &["TM.SPACE", "LIST"],
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
    // Transcript tests mostly wait, so many of them can run concurrently.
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
        "stories_show_every_line_about_schemas",
        stories_show_every_line_about_schemas,
    ));
    tests.push(Trial::test(
        "stories_give_every_option_by_command",
        stories_give_every_option_by_command,
    ));
    libtest_mimic::run(&args, tests).exit();
}
