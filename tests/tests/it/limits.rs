//! Every collection that a peer can grow has a limit: docs/limits.md lists each collection of the
//! server under the limit that applies to it.
//!
//! A collection is a field of a struct or variant, or a static, whose type contains one of
//! `COLLECTION_TYPES` or an alias of such a type in the same crate. References are excluded,
//! because the owner of the collection is listed. Local variables, test code and fuzzing code are
//! excluded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const CRATES: &str =
    "client counter dataset ledger node phantom rdb replication resp rolling server store";

const COLLECTION_TYPES: &str = "BTreeMap BTreeSet BinaryHeap BytesMut Cache DashMap HashMap \
    HashSet HashTable LinkedList Slab SmallVec UnboundedReceiver UnboundedSender Vec VecDeque";

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page(name: &str) -> String {
    std::fs::read_to_string(top().join("docs").join(name)).unwrap()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the length of the comment, string or character literal at the start of a text, or 0.
fn opaque(text: &str) -> usize {
    let inner = text.strip_prefix(['b', 'c']).unwrap_or(text);
    let prefix = text.len() - inner.len();
    let through = |from: usize, end: &str| {
        prefix + inner[from..].find(end).map_or(inner.len(), |at| from + at + end.len())
    };
    let raw = inner.strip_prefix('r').unwrap_or_default();
    let hashes = raw.len() - raw.trim_start_matches('#').len();
    let mut chars = inner.chars();
    match (chars.next(), chars.next(), chars.next()) {
        (Some('/'), Some('/'), _) if prefix == 0 => through(2, "\n"),
        (Some('/'), Some('*'), _) if prefix == 0 => through(2, "*/"),
        (Some('r'), ..) if raw[hashes..].starts_with('"') => {
            through(hashes + 2, &format!("\"{}", "#".repeat(hashes)))
        }
        (Some('\''), Some('\\'), Some(escaped)) => through(2 + escaped.len_utf8(), "'"),
        (Some('\''), Some(c), Some('\'')) => prefix + 2 + c.len_utf8(),
        (Some('"'), ..) => {
            let escapes = |at: usize| at - inner[..at].trim_end_matches('\\').len();
            let mut quotes = inner.match_indices('"').skip(1);
            let end = quotes.find(|(at, _)| escapes(*at).is_multiple_of(2));
            prefix + end.map_or(inner.len(), |(at, _)| at + 1)
        }
        _ => 0,
    }
}

/// Splits source text into words, lifetimes and punctuation. `->`, `=>` and `::` are single tokens.
fn tokens(text: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(c) = rest.chars().next() {
        let skipped = if c.is_whitespace() { c.len_utf8() } else { opaque(rest) };
        if skipped > 0 {
            rest = &rest[skipped..];
            continue;
        }
        let length = match c {
            '\'' => 1 + rest[1..].find(|c| !is_word(c)).unwrap_or(rest.len() - 1),
            _ if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ if ["->", "=>", "::"].iter().any(|mark| rest.starts_with(mark)) => 2,
            _ => c.len_utf8(),
        };
        found.push(&rest[..length]);
        rest = &rest[length..];
    }
    found
}

/// Whether `<` is a bracket (in types) or an operator (in code).
const TYPE: bool = true;
const CODE: bool = false;

/// Returns where the text starting at `from` ends: at one of `ends` outside all brackets, or at a
/// closing bracket of the context.
fn end_of(is_type: bool, tokens: &[&str], from: usize, ends: &[&str]) -> usize {
    let mut open = Vec::new();
    for (at, token) in tokens.iter().enumerate().skip(from) {
        if open.is_empty() && (ends.contains(token) || *token == ">" && is_type) {
            return at;
        }
        match *token {
            "(" | "[" | "{" => open.push(*token),
            "<" if is_type => open.push("<"),
            ">" if open.last() == Some(&"<") => _ = open.pop(),
            ")" | "]" | "}" => {
                // `<` was an operator, as in `[u8; 1 << 3]`.
                while open.pop_if(|last| *last == "<").is_some() {}
                if open.pop().is_none() {
                    return at;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// Returns the position after the bracket that closes the one before `from`.
fn behind(tokens: &[&str], from: usize) -> usize {
    end_of(CODE, tokens, from, &[]) + 1
}

/// Returns whether a `cfg` condition can hold outside tests and fuzzing.
fn can_hold(condition: &[&str]) -> bool {
    let [how @ ("any" | "all"), "(", inner @ .., ")"] = condition else {
        return !matches!(condition, ["test" | "fuzzing" | "loom"]);
    };
    let (mut parts, mut from) = (Vec::new(), 0);
    while from < inner.len() {
        let end = end_of(CODE, inner, from, &[","]);
        parts.push(can_hold(&inner[from..end]));
        from = end + 1;
    }
    if *how == "any" { parts.contains(&true) } else { !parts.contains(&false) }
}

#[derive(Default)]
struct Declared<'a> {
    /// Names of fields and statics, with the tokens of their types.
    fields: Vec<(String, Vec<&'a str>)>,
    aliases: Vec<(&'a str, Vec<&'a str>)>,
    /// Names of test-only modules in other files.
    only_tests: Vec<&'a str>,
}

impl<'a> Declared<'a> {
    fn of(text: &'a str) -> Self {
        let (tokens, mut at, mut all) = (tokens(text), 0, Self::default());
        while at < tokens.len() {
            at = match &tokens[at..] {
                ["#", "[", ..] => all.attribute(&tokens, at),
                ["struct", name, ..] => all.container(&tokens, at + 2, name),
                ["enum", name, ..] => all.variants(&tokens, at + 2, name),
                // A section of the settings: `Name { field: Type = default, ... }`.
                ["section", "!", "{", name, "{", ..] => all.container(&tokens, at + 4, name),
                ["static", name, ":", ..] => all.field(&tokens, at + 3, name, &["=", ";"]),
                ["type", name, "=" | "<", ..] => {
                    let end = end_of(TYPE, &tokens, at + 2, &[";"]);
                    all.aliases.push((name, tokens[at + 2..end].to_vec()));
                    end
                }
                _ => at + 1,
            };
        }
        all
    }

    /// Skips an attribute, and the item after it if that is test-only.
    fn attribute(&mut self, tokens: &[&'a str], at: usize) -> usize {
        let mut from = behind(tokens, at + 2);
        if !matches!(&tokens[at + 2..from - 1], ["cfg", "(", inner @ .., ")"] if !can_hold(inner)) {
            return from;
        }
        while tokens.get(from) == Some(&"#") {
            from = behind(tokens, from + 2);
        }
        let end = end_of(TYPE, tokens, from, &[";", ",", "{"]);
        if let Some(at) = tokens[from..end].iter().position(|token| *token == "mod") {
            self.only_tests.push(tokens[from + at + 1]);
        }
        if tokens.get(end) == Some(&"{") { behind(tokens, end + 1) } else { end }
    }

    fn field(&mut self, tokens: &[&'a str], at: usize, name: &str, ends: &[&str]) -> usize {
        let end = end_of(TYPE, tokens, at, ends);
        self.fields.push((name.to_owned(), tokens[at..end].to_vec()));
        end
    }

    /// Collects the fields of a struct or variant; `at` is after its name.
    fn container(&mut self, tokens: &[&'a str], at: usize, name: &str) -> usize {
        let open = end_of(TYPE, tokens, at, &["{", "(", "=", ";", ","]);
        let is_tuple = tokens.get(open) == Some(&"(");
        if !is_tuple && tokens.get(open) != Some(&"{") {
            return open;
        }
        let (mut at, mut place) = (open + 1, 0);
        loop {
            at = match tokens.get(at) {
                None | Some(&(")" | "}")) => return at + 1,
                Some(&"#") => self.attribute(tokens, at),
                Some(&"=") => end_of(CODE, tokens, at, &[","]),
                Some(&"pub") if tokens[at + 1] == "(" => behind(tokens, at + 2),
                Some(&("," | "pub")) => at + 1,
                Some(_) if is_tuple => {
                    place += 1;
                    self.field(tokens, at, &format!("{name}.{}", place - 1), &[","])
                }
                Some(field) => self.field(tokens, at + 2, &format!("{name}.{field}"), &[",", "="]),
            }
        }
    }

    fn variants(&mut self, tokens: &[&'a str], at: usize, name: &str) -> usize {
        let mut at = end_of(TYPE, tokens, at, &["{", ";"]) + 1;
        loop {
            at = match tokens.get(at) {
                None | Some(&"}") => return at + 1,
                Some(&"#") => self.attribute(tokens, at),
                Some(&"=") => end_of(CODE, tokens, at, &[","]),
                Some(&",") => at + 1,
                Some(word) => self.container(tokens, at + 1, &format!("{name}::{word}")),
            };
        }
    }
}

/// Returns whether a type owns a growable collection. Types behind references and types of function
/// arguments do not count.
fn grows(tokens: &[&str], names: &BTreeSet<&str>) -> bool {
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at..] {
            ["&" | "->", ..] => at = end_of(TYPE, tokens, at + 1, &[",", "+"]),
            ["Fn" | "FnMut" | "FnOnce" | "fn", "(", ..] => at = behind(tokens, at + 2),
            // A path into another crate is not a local alias.
            [other, "::", _, ..] if CRATES.split(' ').any(|name| name == *other) => at += 3,
            [name, ..] if names.contains(name) => return true,
            _ => at += 1,
        }
    }
    false
}

fn module(path: &str) -> PathBuf {
    let path = Path::new(path).with_extension("");
    let is_folder = ["mod", "lib", "main"].iter().any(|name| path.ends_with(name));
    if is_folder { path.parent().unwrap().to_owned() } else { path }
}

/// Returns the collections declared in one crate's files, as `path: Name.field`.
fn collections(files: &[(String, String)]) -> BTreeSet<String> {
    let declared: Vec<_> = files.iter().map(|(path, text)| (path, Declared::of(text))).collect();
    let mut names: BTreeSet<&str> = COLLECTION_TYPES.split_whitespace().collect();
    let aliases = || declared.iter().flat_map(|(_, all)| &all.aliases);
    while let Some((name, _)) = aliases().find(|(n, of)| !names.contains(n) && grows(of, &names)) {
        names.insert(name);
    }
    let (mut only_tests, mut found) = (Vec::new(), BTreeSet::new());
    for (path, all) in &declared {
        only_tests.extend(all.only_tests.iter().map(|name| module(path).join(name)));
    }
    for (path, all) in &declared {
        if !only_tests.iter().any(|test| module(path).starts_with(test)) {
            let fields = all.fields.iter().filter(|(_, of)| grows(of, &names));
            found.extend(fields.map(|(name, _)| format!("{path}: {name}")));
        }
    }
    found
}

fn read(folder: &Path, all: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(top()).unwrap().to_str().unwrap().to_owned();
        // store/src/sim is the simulator's in-memory disk and clock.
        let is_code = !["tests", "tests.rs", "store/src/sim"].iter().any(|end| path.ends_with(end));
        if path.is_dir() && is_code {
            read(&path, all);
        } else if name.ends_with(".rs") && is_code {
            all.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

/// Parses the lists of docs/limits.md, fenced blocks ```` ```limits NAME ```` of lines `path:
/// Name.field, Name.field`. Returns each collection with the names of its lists.
fn listed(page: &str) -> BTreeMap<String, Vec<String>> {
    let mut listed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for block in page.split("```limits ").skip(1) {
        let (name, lines) = block.split("```").next().unwrap().split_once('\n').unwrap();
        for (path, fields) in lines.lines().filter_map(|line| line.split_once(": ")) {
            for field in fields.split(',').map(str::trim) {
                listed.entry(format!("{path}: {field}")).or_default().push(name.to_owned());
            }
        }
    }
    listed
}

/// Returns words in backticks of the form `table.key` that are not file names.
fn settings(text: &str) -> BTreeSet<String> {
    let spans = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_small = |text: &str| text.chars().all(|c| c == '_' || c.is_ascii_lowercase());
    let is_setting = |word: &&str| {
        let parts = word.split_once('.').filter(|(table, key)| is_small(table) && is_small(key));
        parts.is_some_and(|(_, key)| !["rs", "md", "toml"].contains(&key))
    };
    spans.filter(is_setting).map(str::to_owned).collect()
}

/// Returns the settings in the example file of docs/settings.md.
fn known_settings() -> BTreeSet<String> {
    let shown = page("settings.md");
    let file = shown.split("{{#include ").nth(1).unwrap().split("}}").next().unwrap();
    let (mut known, mut table) = (BTreeSet::new(), String::new());
    // In the example file, lists that are empty by default are commented out.
    for line in page(file).lines().map(|line| line.trim_start_matches('#')) {
        match line.split_once(" = ") {
            _ if line.starts_with('[') => table = line.trim_matches(['[', ']']).to_owned(),
            Some((key, _)) if key.contains('.') => _ = known.insert(key.to_owned()),
            Some((key, _)) => _ = known.insert(format!("{table}.{key}")),
            None => {}
        }
    }
    known
}

#[test]
fn every_collection_names_its_bound() {
    let mut found = BTreeSet::new();
    for name in CRATES.split(' ') {
        let mut files = Vec::new();
        read(&top().join(name).join("src"), &mut files);
        found.extend(collections(&files));
    }
    let (listed, mut wrong) = (listed(&page("limits.md")), String::new());
    for name in found.iter().filter(|name| !listed.contains_key(*name)) {
        wrong += &format!("\n{name} can grow: name its bound in docs/limits.md, or give it one");
    }
    for (name, lists) in &listed {
        if !found.contains(name) {
            wrong += &format!("\n{name} is no collection: take it out of docs/limits.md");
        } else if lists.len() > 1 {
            wrong += &format!("\n{name} is in {lists:?} of docs/limits.md: leave one of them");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn settings_that_bound_something_are_there() {
    let mut known = known_settings();
    known.extend(settings(&page("configuration.md")));
    let missing: Vec<String> = settings(&page("limits.md")).difference(&known).cloned().collect();
    assert!(missing.is_empty(), "docs/limits.md names settings that are none: {missing:?}");
    assert!(known.contains("server.max_clients") && known.contains("existence.max_unset"));
    assert_eq!(settings("`server.workers` `a/b.rs` `x.md` `A.b` a.b `spill`").len(), 1);
}

/// Returns the collections found in `a/lib.rs` and a second file.
fn found(text: &str, more: &str, more_text: &str) -> Vec<String> {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    collections(&[file("a/lib.rs", text), file(more, more_text)])
        .iter()
        .map(|name| name.replace("a/lib.rs: ", ""))
        .collect()
}

#[test]
fn fields_variants_and_statics_are_found() {
    let text = "pub struct A<'a, T: Into<u8>> where T: Copy {\n pub(in crate::b) long: Option<\n
        Box<Vec<\n   u8>>,\n >,\n one: u8, #[doc = \"Vec<u8>\"] map: HashMap<u8, Vec<T>>,
        lent: &'a mut Vec<u8>, lends: (&'a [Vec<u8>], BTreeSet<u8>), sized: [u8; 1 << 3],
        calls: Box<dyn Fn(Vec<u8>) -> Vec<u8>>, last: VecDeque<(u8, u8)> }
        struct B(pub(crate) u8, SmallVec<[u8; 4]>); struct Empty;
        enum E { One, Two(u8, Vec<u8>), Three { in_it: Slab<u8> }, Four = 1 << 2, Five(Cache) }
        thread_local! { static S: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) }; }
        static T: [Mutex<HashSet<u8>>; 3] = make(); section! { /// x
            C { #[live = true] bits: u64 = 1 << 20, users: Vec<String> = vec![], } }
        fn f(v: Vec<u8>) -> Vec<u8> { let v: Vec<u8> = a < b; struct Inner { deep: Vec<u8> } }
        struct G { a: Wide, b: Option<Rows>, c: store::Rows, d: Plain }";
    let more = "type Wide = Arc<Rows>;\npub type Rows<'a> = Vec<(u8, u8)>;\ntype Plain = [u8; 4];";
    let names = "A.last A.lends A.long A.map B.1 C.users E::Five.0 E::Three.in_it E::Two.1 G.a G.b \
                 Inner.deep S T";
    assert_eq!(found(text, "a/b.rs", more), names.split(' ').collect::<Vec<_>>());
}

#[test]
fn tests_comments_and_strings_are_no_code() {
    let text = "// struct A { a: Vec<u8> }\n/* struct B(Vec<u8>); */
        const S: &str = \"struct C(Vec<u8>); \\\" struct D(Vec<u8>);\";
        const R: &str = r#\"\" struct E(Vec<u8>); \"#; const Q: [char; 2] = ['\"', '\\''];
        #[cfg(test)] mod b; #[cfg(any(test, fuzzing))] pub mod c { struct F(Vec<u8>); }
        #[cfg(all(test, not(loom)))] #[allow(x)] mod d { fn f() { a < b } struct G(Vec<u8>); }
        struct H { #[cfg(test)] a: HashMap<u8, Vec<u8>>, b: Vec<u8> }
        #[cfg(not(loom))] struct I(Vec<u8>);
        #[cfg(any(test, not(target_arch = \"x\")))] struct J(Vec<u8>);";
    assert_eq!(found(text, "a/b/mod.rs", "struct K(Vec<u8>);"), ["H.b", "I.0", "J.0"]);
}

#[test]
fn lists_are_read_as_they_stand() {
    let page = "```limits one\na/b.rs: A.a, A.b\n```\nc: no\n```limits two\na/b.rs: A.b\n```\n";
    let listed = listed(page);
    assert_eq!((listed.len(), &listed["a/b.rs: A.b"][..]), (2, &["one".into(), "two".into()][..]));
}
