//! Checks of dependencies: licences, sources, banned and duplicate crates according to `deny.toml`,
//! and unused crates.
//!
//! `deny.toml` is the configuration of cargo-deny, which takes three minutes to compile on a new
//! machine. This module makes the three checks that need no network in a second, based on `cargo
//! metadata`. If cargo-deny is installed, xtask runs it as well, which also checks advisories.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Part of `deny.toml` that these checks use.
#[derive(Deserialize)]
struct Rules {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<NamedEntry>,
    skip: Vec<NamedEntry>,
}

#[derive(Deserialize)]
struct NamedEntry {
    #[serde(rename = "crate")]
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Clone, Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// Origin of the package, or `None` for a member of the workspace.
    source: Option<String>,
}

/// Prints the checks that were made. The error lists all violations.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(root.join("deny.toml")).map_err(|e| e.to_string())?;
    let rules: Rules = toml::from_str(&text).map_err(|e| e.to_string())?;
    let mut wrong = Vec::new();
    for target in &rules.graph.targets {
        let packages = packages(root, target)?;
        println!("{target}: licences, sources and versions of {} packages", packages.len());
        wrong.extend(against(&rules, &packages));
    }
    wrong.extend(unused(root).err());
    if !has("cargo-deny") {
        println!("NOT CHECKED HERE: advisories (cargo install --locked cargo-deny)");
    } else if !advisories(root)? {
        wrong.push("cargo deny check: see above".to_owned());
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Returns the packages that are compiled for a target. `cargo metadata` contains their licences,
/// but also lists packages of disabled features. `cargo tree` lists only compiled packages.
fn packages(root: &Path, target: &str) -> Result<Vec<Package>, String> {
    let metadata = cargo(root, &["metadata", "--locked", "--format-version", "1"])?;
    let metadata: Metadata = serde_json::from_str(&metadata).map_err(|e| e.to_string())?;
    let words = ["tree", "--locked", "--workspace", "--prefix", "none", "--target", target];
    let tree = cargo(root, &words)?;
    // "name v1.2.3 (and more)"
    let used: BTreeSet<(&str, &str)> =
        tree.lines().filter_map(|l| l.split_once(" v")).map(|(n, v)| (n, first(v))).collect();
    let is_used = |package: &&Package| used.contains(&(&*package.name, &*package.version));
    Ok(metadata.packages.iter().filter(is_used).cloned().collect())
}

fn first(words: &str) -> &str {
    words.split(' ').next().unwrap_or(words)
}

fn cargo(root: &Path, words: &[&str]) -> Result<String, String> {
    let output =
        Command::new("cargo").args(words).current_dir(root).output().map_err(|e| e.to_string())?;
    match output.status.success() {
        true => String::from_utf8(output.stdout).map_err(|e| e.to_string()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Returns all violations, one sentence each.
fn against(rules: &Rules, packages: &[Package]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let Package { name, version, license, source } = package;
        let license = license.as_deref().unwrap_or("none");
        if !allows(&rules.licenses.allow, license) {
            wrong.push(format!("{name} {version}: the licence '{license}' is not allowed"));
        }
        let known = |registry: &String| source.as_deref() == Some(&format!("registry+{registry}"));
        if let Some(source) = source
            && !rules.sources.allow_registry.iter().any(known)
        {
            wrong.push(format!("{name} {version}: the source '{source}' is not allowed"));
        }
        if rules.bans.deny.iter().any(|banned| banned.name == *name) {
            wrong.push(format!("{name} {version} is banned"));
        }
        let full = format!("{name}@{version}");
        if !rules.bans.skip.iter().any(|skipped| skipped.name == full) {
            versions.entry(name).or_default().push(version);
        }
    }
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        wrong.push(format!("{name} has several versions: {}", versions.join(" and ")));
    }
    for skipped in &rules.bans.skip {
        if !packages.iter().any(|p| format!("{}@{}", p.name, p.version) == skipped.name) {
            wrong.push(format!("deny.toml skips {}, which is not a dependency", skipped.name));
        }
    }
    wrong
}

/// Whether a set of allowed licences satisfies a licence expression. `MIT/Apache-2.0` is the old
/// form of `MIT OR Apache-2.0`.
fn allows(allowed: &[String], expression: &str) -> bool {
    let Ok(parsed) = spdx::Expression::parse_mode(expression, spdx::ParseMode::LAX) else {
        return false;
    };
    parsed.evaluate(|requirement| allowed.contains(&requirement.to_string()))
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Runs cargo-machete, which lists the dependencies that no source file uses.
fn unused(root: &Path) -> Result<(), String> {
    let installed = root.join("target/tools/bin/cargo-machete");
    let program = if installed.exists() { installed } else { "cargo-machete".into() };
    if !has(&program.to_string_lossy()) {
        return Err("cargo-machete is missing: run tests/clients/setup".to_owned());
    }
    let output =
        Command::new(program).arg(".").current_dir(root).output().map_err(|e| e.to_string())?;
    match output.status.success() {
        true => {
            println!("no dependency is unused");
            Ok(())
        }
        false => Err(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}

/// Runs all checks of cargo-deny if the advisories can be fetched. Otherwise runs all except
/// advisories.
fn advisories(root: &Path) -> Result<bool, String> {
    let deny = |what: &[&str]| {
        let mut command = Command::new("cargo");
        command.args(["deny", "check"]).args(what).current_dir(root);
        command.status().map_err(|e| e.to_string())
    };
    let fetched = Command::new("cargo").args(["deny", "fetch", "db"]).current_dir(root).output();
    if fetched.is_ok_and(|output| output.status.success()) {
        return Ok(deny(&["--disable-fetch"])?.success());
    }
    println!("NOT CHECKED HERE: advisories (their database cannot be fetched)");
    Ok(deny(&["licenses", "bans", "sources"])?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, license: &str, source: &str) -> Package {
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            license: Some(license.to_owned()),
            source: (!source.is_empty()).then(|| source.to_owned()),
        }
    }

    /// The packages contain one violation of each rule, and packages without violations.
    #[test]
    fn each_rule_refuses_what_it_should() {
        let rules: Rules = toml::from_str(
            "[graph]\ntargets = []\n[licenses]\nallow = ['MIT', 'ISC']\n\
             [bans]\ndeny = [{ crate = 'openssl-sys' }]\nskip = [{ crate = 'old@1.0.0' }]\n\
             [sources]\nallow-registry = ['https://here']\n",
        )
        .unwrap();
        let here = "registry+https://here";
        let fine = [
            package("ours", "0.1.0", "MIT", ""),
            package("both", "1.0.0", "GPL-3.0-only OR MIT", here),
            package("slash", "1.0.0", "MIT/Apache-2.0", here),
            package("and", "1.0.0", "MIT AND ISC", here),
            package("old", "1.0.0", "MIT", here),
            package("old", "2.0.0", "MIT", here),
        ];
        assert_eq!(against(&rules, &fine), Vec::<String>::new());
        for (bad, why) in [
            (package("a", "1.0.0", "GPL-3.0-only", here), "the licence 'GPL-3.0-only'"),
            (package("a", "1.0.0", "MIT AND GPL-3.0-only", here), "the licence 'MIT AND GPL"),
            (package("a", "1.0.0", "no words", here), "the licence 'no words'"),
            (package("a", "1.0.0", "MIT", "git+https://here"), "the source 'git+"),
            (package("a", "1.0.0", "MIT", "registry+https://there"), "the source 'registry+"),
            (package("openssl-sys", "1.0.0", "MIT", here), "openssl-sys 1.0.0 is banned"),
            (package("both", "2.0.0", "MIT", here), "both has several versions: 1.0.0 and 2.0.0"),
        ] {
            let mut all = fine.to_vec();
            all.push(bad);
            let wrong = against(&rules, &all);
            assert!(wrong.len() == 1 && wrong[0].contains(why), "{why}: {wrong:?}");
        }
        let wrong = against(&rules, &fine[..4]);
        assert_eq!(wrong, ["deny.toml skips old@1.0.0, which is not a dependency"]);
    }
}
