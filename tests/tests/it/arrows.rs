//! Which part may use which: the arrows between crates, and between the directories of a crate, are
//! those that docs/arrows.md lists, and none closes a circle.
//!
//! An arrow between crates is a path dependency. An arrow inside a crate is a path that begins with
//! `crate::` or leaves its module by `super::`, in code that is no test. A directory is a module of
//! the crate's root, be it a folder or a file. The crate's root is called `root`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Arrows = BTreeMap<String, BTreeSet<String>>;
/// A text, and the names of modules.
type Names = (String, Vec<String>);

/// Crates in which circles are looked for.
const CRATES: [&str; 13] = [
    "cli",
    "counter",
    "dataset",
    "digits",
    "ledger",
    "node",
    "phantom",
    "rdb",
    "replication",
    "resp",
    "rolling",
    "server",
    "store",
];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The lists of docs/arrows.md: fenced blocks ```` ```arrows NAME ```` of lines
/// `from -> to, to`.
fn listed() -> BTreeMap<String, Arrows> {
    let page = std::fs::read_to_string(top().join("docs/arrows.md")).unwrap();
    let blocks = page.split("```arrows ").skip(1).map(|block| block.split("```").next().unwrap());
    let line = |line: &str| {
        let (from, to) = line.split_once("->")?;
        let to = to.split(',').map(|to| to.trim().to_owned()).collect();
        Some((from.trim().to_owned(), to))
    };
    blocks
        .map(|block| {
            let (name, lines) = block.split_once('\n').unwrap();
            (name.trim().to_owned(), lines.lines().filter_map(line).collect())
        })
        .collect()
}

/// Path dependencies of the workspace's members, those of tests left out.
fn between_crates() -> Arrows {
    let folders = std::fs::read_dir(top()).unwrap().map(|entry| entry.unwrap().path());
    let manifests = folders.filter_map(|folder| {
        let text = std::fs::read_to_string(folder.join("Cargo.toml")).ok()?;
        Some((folder.file_name()?.to_str()?.to_owned(), text))
    });
    let manifests: BTreeMap<String, String> =
        manifests.filter(|(name, _)| name != "fuzz").collect();
    let mut arrows = Arrows::new();
    for (name, text) in &manifests {
        let lines = text.lines().skip_while(|line| *line != "[dependencies]").skip(1);
        for line in lines.take_while(|line| !line.starts_with('[')) {
            let used = line.split(['.', ' ', '=']).next().unwrap().trim_start_matches("tidemark-");
            if manifests.contains_key(used) {
                arrows.entry(name.clone()).or_default().insert(used.to_owned());
            }
        }
    }
    arrows
}

fn sources(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|end| end == "rs") {
            all.push(path);
        }
    }
}

/// The code of a file, without comments and without what is only built for tests. Gives also the
/// modules in other files that are.
fn code(text: &str) -> (String, Vec<String>) {
    let (mut kept, mut only_tests, mut lines) = (String::new(), Vec::new(), text.lines());
    while let Some(line) = lines.next() {
        let line = line.trim();
        if line.starts_with("#[cfg(") && line.contains("test") && !line.contains("not(test") {
            let next = lines.next().unwrap_or_default().trim();
            let module = next.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
            match module.strip_prefix("mod ").and_then(|name| name.strip_suffix(';')) {
                Some(name) => only_tests.push(name.to_owned()),
                // A module in braces is the last item of its file.
                None if module.starts_with("mod ") => break,
                None => {}
            }
            continue;
        }
        kept.push_str(line.split("//").next().unwrap_or_default());
        kept.push('\n');
    }
    (kept, only_tests)
}

/// First segments behind `prefix`, lists in braces taken apart.
fn firsts<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        if code[..at].ends_with(|c| is_name(c) || c == ':') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.push(rest.split(|c| !is_name(c)).next().unwrap_or_default());
            continue;
        };
        let (mut depth, mut item) = (0, 0);
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    let name = list[item..i].trim();
                    found.push(name.split(|c| !is_name(c)).next().unwrap_or_default());
                    item = i + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// Arrows between the modules of a crate's root.
fn inside(name: &str) -> Arrows {
    let root = top().join(name).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let parts = |file: &Path| -> Vec<String> {
        let inner = file.strip_prefix(&root).unwrap().with_extension("");
        let parts = inner.iter().map(|part| part.to_str().unwrap().to_owned());
        parts.filter(|part| !["mod", "lib", "main"].contains(&part.as_str())).collect()
    };
    let all: BTreeSet<String> =
        files.iter().filter_map(|file| parts(file).first().cloned()).collect();
    let read =
        files.iter().map(|file| (parts(file), code(&std::fs::read_to_string(file).unwrap())));
    let read: Vec<(Vec<String>, Names)> = read.collect();
    let only_tests: BTreeSet<Vec<String>> = read
        .iter()
        .flat_map(|(place, (_, names))| {
            names.iter().map(|name| [place.as_slice(), std::slice::from_ref(name)].concat())
        })
        .collect();
    let mut arrows = Arrows::new();
    for (place, (text, _)) in &read {
        let Some(from) = place.first() else { continue };
        if (1..=place.len()).any(|n| only_tests.contains(&place[..n])) {
            continue;
        }
        let up = "super::".repeat(place.len());
        for to in firsts(text, "crate::").into_iter().chain(firsts(text, &up)) {
            // What is no module is an item of the root.
            let to = if all.contains(to) { to } else { "root" };
            let is_name = !to.is_empty() && to != from;
            if is_name {
                arrows.entry(from.clone()).or_default().insert(to.to_owned());
            }
        }
    }
    arrows
}

/// As the page lists them.
fn text(arrows: &Arrows) -> String {
    let line = |(from, to): (&String, &BTreeSet<String>)| {
        format!("{from} -> {}\n", to.iter().cloned().collect::<Vec<_>>().join(", "))
    };
    arrows.iter().map(line).collect()
}

/// The parts that reach each other.
fn circle(arrows: &Arrows) -> BTreeSet<String> {
    let mut reached = arrows.clone();
    loop {
        let longer = reached.iter().map(|(from, to)| {
            let further = to.iter().filter_map(|to| reached.get(to)).flatten();
            (from.clone(), to.iter().chain(further).cloned().collect())
        });
        let longer: Arrows = longer.collect();
        if longer == reached {
            break;
        }
        reached = longer;
    }
    reached.iter().filter(|(from, to)| to.contains(*from)).map(|(from, _)| from.clone()).collect()
}

#[test]
fn arrows_between_crates_are_those_of_the_page() {
    let arrows = between_crates();
    assert!(circle(&arrows).is_empty(), "{:?}", circle(&arrows));
    let page = listed().remove("crates").unwrap_or_default();
    assert!(arrows == page, "docs/arrows.md lists other arrows than these:\n{}", text(&arrows));
}

#[test]
fn arrows_between_directories_are_those_of_the_page() {
    for name in ["dataset", "node", "server"] {
        let (arrows, page) = (inside(name), listed().remove(name).unwrap_or_default());
        let shown = text(&arrows);
        assert!(arrows == page, "docs/arrows.md lists other arrows of {name}:\n{shown}");
    }
}

#[test]
fn no_arrow_closes_a_circle() {
    for name in CRATES {
        assert_eq!(circle(&inside(name)), BTreeSet::new(), "{name}");
    }
}

#[test]
fn an_arrow_back_is_found() {
    let arrow = |from: &str, to: &str| (from.to_owned(), BTreeSet::from([to.to_owned()]));
    let straight = Arrows::from([arrow("net", "handlers"), arrow("handlers", "acl")]);
    assert!(circle(&straight).is_empty());
    let back =
        Arrows::from([arrow("net", "handlers"), arrow("handlers", "acl"), arrow("acl", "net")]);
    assert_eq!(circle(&back).len(), 3);
    let text = "use crate::{acl, net::{workers, x}};\n// crate::gone\n\
                fn f() { crate::roles::go() }\n\
                #[cfg(test)]\nmod tests {\n use crate::handlers;\n}";
    assert_eq!(firsts(&code(text).0, "crate::"), ["acl", "net", "roles"]);
}
