//! Dependency rules: crates depend on each other only as listed in docs/arrows.md, and neither
//! crates nor the files of a crate form a cycle.
//!
//! A file depends on another file if its code names an item that the other file defines, in a `use`
//! or in a path that starts with `crate`, `super`, `self`, a child module or an imported module.
//! Names are resolved through re-exports. `pub use child::Item` in a `mod.rs` is therefore not a
//! dependency, unless the `mod.rs` itself uses `Item`. Test code is excluded. Methods have no path,
//! so an `impl` block outside its type's file is not detected.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Arrows = BTreeMap<String, BTreeSet<String>>;
/// Path of a module from the crate root; empty for the root.
type Module = Vec<String>;

/// Crates whose files are checked.
const CRATES: [&str; 17] = [
    "bench",
    "cli",
    "client",
    "counter",
    "dataset",
    "digits",
    "harness",
    "ledger",
    "node",
    "phantom",
    "rdb",
    "replication",
    "resp",
    "rolling",
    "server",
    "simulator",
    "store",
];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Reads the list in docs/arrows.md, a fenced block ```` ```arrows ```` of lines `from -> to, to`.
fn listed() -> Arrows {
    let page = std::fs::read_to_string(top().join("docs/arrows.md")).unwrap();
    let block = page.split("```arrows\n").nth(1).and_then(|rest| rest.split("```").next());
    let arrow = |line: &str| {
        let (from, to) = line.split_once("->")?;
        let to = to.split(',').map(|to| to.trim().to_owned()).collect();
        Some((from.trim().to_owned(), to))
    };
    block.unwrap_or_default().lines().filter_map(arrow).collect()
}

/// Returns the path dependencies of workspace members, except dev-dependencies.
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

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the code of a file without comments and test code, and the names of its test modules in
/// other files.
fn code(text: &str) -> (String, Vec<String>) {
    let (mut kept, mut test_modules) = (String::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if !(line.starts_with("#[cfg(") && line.contains("test") && !line.contains("not(test")) {
            kept.push_str(line.split("//").next().unwrap_or_default());
            kept.push('\n');
            continue;
        }
        let (mut item, mut depth) = (lines.next().unwrap_or_default(), 0);
        let module = item.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        if let Some(name) = module.strip_prefix("mod ").and_then(|name| name.strip_suffix(';')) {
            test_modules.push(name.to_owned());
            continue;
        }
        // Skips the item up to its last brace, or to `;` or `,` if it has none.
        loop {
            let count = |brackets: [char; 3]| item.matches(brackets).count() as i32;
            depth += count(['(', '[', '{']) - count([')', ']', '}']);
            let is_end = item.trim_end().ends_with(['}', ';', ',']);
            if depth <= 0 && is_end {
                break;
            }
            let Some(next) = lines.next() else { break };
            item = next;
        }
    }
    (kept, test_modules)
}

/// A name imported by `use`: its path and its local name.
#[derive(Clone, Debug, PartialEq)]
struct Import {
    path: Vec<String>,
    alias: String,
    is_public: bool,
}

/// Parses a use tree, without `use`, up to the `;`.
fn use_tree(tree: &str, before: &[String], is_public: bool, found: &mut Vec<Import>) {
    let tree = tree.trim();
    if let Some((front, list)) = tree.split_once('{') {
        let parts = front.split("::").map(str::trim).filter(|part| !part.is_empty());
        let before: Vec<String> = before.iter().cloned().chain(parts.map(str::to_owned)).collect();
        let list = &list[..list.rfind('}').unwrap_or(list.len())];
        let (mut depth, mut start) = (0, 0);
        for (at, c) in list.char_indices().chain([(list.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    use_tree(&list[start..at], &before, is_public, found);
                    start = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    if tree.is_empty() {
        return;
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(p, a)| (p, Some(a.trim())));
    let parts = path.split("::").map(|part| part.trim().to_owned());
    let mut path: Vec<String> = before.iter().cloned().chain(parts).collect();
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let alias = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), str::to_owned);
    found.push(Import { path, alias, is_public });
}

fn imports(code: &str) -> (Vec<Import>, String) {
    let (mut found, mut rest) = (Vec::new(), String::new());
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        let is_public = line.starts_with("pub");
        let bare = if is_public { line.split_once(' ').map_or("", |(_, bare)| bare) } else { line };
        if let Some(first) = bare.strip_prefix("use ") {
            let mut tree = first.to_owned();
            while !tree.contains(';') {
                let Some(next) = lines.next() else { break };
                tree.push_str(next.trim());
            }
            use_tree(tree.split(';').next().unwrap_or_default(), &[], is_public, &mut found);
        } else if !(bare.starts_with("mod ") && bare.ends_with(';')) {
            rest.push_str(line);
            rest.push('\n');
        }
    }
    (found, rest)
}

/// Returns all paths `a::b` in code without imports.
fn paths(code: &str) -> BTreeSet<Vec<String>> {
    let words = code.split(|c: char| !is_name(c) && c != ':');
    let path = |word: &str| {
        let path: Vec<String> = word.split("::").map(str::to_owned).collect();
        (path.len() > 1 && path.iter().all(|part| part.chars().all(is_name))).then_some(path)
    };
    // `::<` and `::{` leave an empty last part.
    words.filter_map(|word| path(word.trim_end_matches(':'))).collect()
}

fn names(code: &str) -> BTreeSet<&str> {
    code.split(|c: char| !is_name(c)).collect()
}

/// Files of a crate, by module: imports and remaining code.
struct Files(BTreeMap<Module, (Vec<Import>, String)>);

impl Files {
    fn read(texts: impl Iterator<Item = (Module, String)>) -> Files {
        let (mut files, mut tests) = (BTreeMap::new(), BTreeSet::new());
        for (module, text) in texts {
            let (code, test_modules) = code(&text);
            let children = test_modules.into_iter().map(|name| [&module[..], &[name]].concat());
            tests.extend(children);
            files.insert(module, imports(&code));
        }
        files.retain(|module, _| !(1..=module.len()).any(|n| tests.contains(&module[..n])));
        Files(files)
    }

    fn of(name: &str) -> Files {
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
        let root = top().join(name).join("src");
        let mut all = Vec::new();
        sources(&root, &mut all);
        // A binary with a library in the same package is a separate crate.
        let has_library = root.join("lib.rs").exists();
        all.retain(|file| !(has_library && *file == root.join("main.rs")));
        let module = |file: &Path| -> Module {
            let inner = file.strip_prefix(&root).unwrap().with_extension("");
            let mut parts: Module =
                inner.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            parts.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
            parts
        };
        Files::read(all.iter().map(|file| (module(file), std::fs::read_to_string(file).unwrap())))
    }

    /// Returns the path from the crate root, if it stays within this crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                let above = &module[..module.len().checked_sub(ups)?];
                Some([above, &path[ups..]].concat())
            }
            _ => {
                let child = [module, std::slice::from_ref(first)].concat();
                self.0.contains_key(&child).then(|| [&child[..], rest].concat())
            }
        }
    }

    /// Returns the module of the file that defines an absolute path.
    fn definer(&self, path: &[String], depth: usize) -> Module {
        let known = (0..=path.len()).rev().find(|&n| self.0.contains_key(&path[..n]));
        let n = known.unwrap_or(0);
        let module = path[..n].to_vec();
        if let (Some(name), Some((imports, _))) = (path.get(n), self.0.get(&module))
            && let Some(import) = imports.iter().find(|import| import.alias == *name)
            && let Some(next) = self.absolute(&module, &import.path)
            && depth < 8
            && next != path
        {
            return self.definer(&[&next[..], &path[n + 1..]].concat(), depth + 1);
        }
        module
    }

    fn arrows(&self) -> Arrows {
        let shown = |module: &Module| {
            if module.is_empty() { "root".to_owned() } else { module.join("/") }
        };
        let mut arrows = Arrows::new();
        for (module, (imports, rest)) in &self.0 {
            let names = names(rest);
            let mut used = Vec::new();
            for import in imports {
                let Some(path) = self.absolute(module, &import.path) else { continue };
                let is_index = import.is_public && path.starts_with(module);
                if !is_index || names.contains(import.alias.as_str()) {
                    used.push(path);
                }
            }
            for path in paths(rest) {
                used.extend(self.absolute(module, &path));
                // The first part may be an imported module.
                let imported = imports.iter().find(|import| import.alias == path[0]);
                let imported = imported.and_then(|import| self.absolute(module, &import.path));
                used.extend(imported.map(|first| [&first[..], &path[1..]].concat()));
            }
            let files = used.iter().map(|path| self.definer(path, 0)).filter(|to| to != module);
            arrows.entry(shown(module)).or_default().extend(files.map(|to| shown(&to)));
        }
        arrows
    }
}

/// Returns the nodes on a cycle.
fn circle(arrows: &Arrows) -> BTreeSet<String> {
    let reaches_itself = |start: &&String| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![*start]);
        while let Some(from) = todo.pop() {
            let to = arrows.get(from).into_iter().flatten();
            todo.extend(to.filter(|to| seen.insert(*to)));
        }
        seen.contains(start)
    };
    arrows.keys().filter(reaches_itself).cloned().collect()
}

#[test]
fn arrows_between_crates_are_those_of_the_page() {
    let arrows = between_crates();
    assert!(circle(&arrows).is_empty(), "{:?}", circle(&arrows));
    let line = |(from, to): (&String, &BTreeSet<String>)| {
        format!("{from} -> {}\n", to.iter().cloned().collect::<Vec<_>>().join(", "))
    };
    let text: String = arrows.iter().map(line).collect();
    assert!(arrows == listed(), "docs/arrows.md differs from the code:\n{text}");
}

#[test]
fn no_files_form_a_circle() {
    let mut wrong = String::new();
    for name in CRATES {
        let arrows = Files::of(name).arrows();
        let circle = circle(&arrows);
        for file in &circle {
            let to: Vec<_> = arrows[file].intersection(&circle).cloned().collect();
            wrong += &format!("\n{name}/{file} -> {}", to.join(", "));
        }
    }
    assert!(wrong.is_empty(), "cycle of files; move the shared items below them:{wrong}");
}

fn arrows_of(texts: &[(&str, &str)]) -> Arrows {
    fn module(name: &str) -> Module {
        name.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }
    Files::read(texts.iter().map(|(name, text)| (module(name), (*text).to_owned()))).arrows()
}

#[test]
fn a_circle_is_found_through_re_exports() {
    let index = ("store", "mod log;\nmod page;\npub use log::Log;\npub(crate) use page::{Page};");
    let log = ("store/log", "use super::Page;\npub struct Log(Page);");
    let page = |text| ("store/page", text);
    let straight = arrows_of(&[("", "mod store;"), index, log, page("pub struct Page;")]);
    assert!(circle(&straight).is_empty(), "{straight:?}");
    assert_eq!(straight["store/log"], BTreeSet::from(["store/page".to_owned()]));
    for text in [
        "use crate::store::Log;",
        "use crate::store::{self};\nfn f(_: store::Log) {}",
        "fn f(_: super::Log) {}",
        "use crate::{\n    store::log::{Log as L},\n};",
    ] {
        let back = arrows_of(&[("", "mod store;"), index, log, page(text)]);
        assert_eq!(circle(&back).len(), 2, "{text}: {back:?}");
    }
}

#[test]
fn a_parent_that_uses_its_re_export_depends_on_it() {
    let child = ("child", "use super::Shared;\npub struct Item(Shared);");
    let index = "mod child;\npub use child::Item;\npub struct Shared;";
    assert!(circle(&arrows_of(&[("", index), child])).is_empty());
    let user = "mod child;\npub use child::Item;\npub struct Shared(Box<Item>);";
    assert_eq!(circle(&arrows_of(&[("", user), child])).len(), 2);
}

#[test]
fn test_code_and_comments_are_no_arrows() {
    let a = "// crate::b\n#[cfg(test)]\nuse crate::b::B;\n#[cfg(test)]\nfn f() {\n    \
             crate::b::g();\n}\nfn h() {}\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}";
    let arrows = arrows_of(&[("a", a), ("b", "use crate::a;\n#[cfg(test)]\nmod c;"), ("b/c", "")]);
    assert!(circle(&arrows).is_empty(), "{arrows:?}");
    assert!(arrows["a"].is_empty() && !arrows.contains_key("b/c"), "{arrows:?}");
    let shipped = format!("{a}\nfn k() {{\n    crate::b::g();\n}}");
    assert_eq!(circle(&arrows_of(&[("a", &shipped), ("b", "use crate::a;")])).len(), 2);
}
