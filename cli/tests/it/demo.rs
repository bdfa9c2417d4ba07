//! `tidemark demo`, which `./run` builds and starts: its output, and the sample output in the
//! README.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

const TIDEMARK: &str = env!("CARGO_BIN_EXE_tidemark");
const README: &str = include_str!("../../../README.md");

/// Returns the output of a run that Ctrl-C stops after the last line.
fn run() -> Vec<String> {
    let mut demo =
        Command::new(TIDEMARK).arg("demo").stdout(Stdio::piped()).env("TERM", "xterm").spawn();
    let demo = demo.as_mut().unwrap();
    let mut lines = Vec::new();
    for line in BufReader::new(demo.stdout.take().unwrap()).lines() {
        lines.push(line.unwrap());
        if lines[lines.len() - 1].starts_with("In full tables") {
            let pid = rustix::process::Pid::from_child(demo);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        }
    }
    assert!(demo.wait().unwrap().success());
    lines
}

/// Replaces the variable parts of a line: numbers, the folder name, widths. Keeps the rows of the
/// page unchanged, because the generated day is always the same.
fn shape(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_row = words.first().is_some_and(|word| word.len() == 16 && is_figure(word));
    let shape = |word: &&str| {
        let figure = word.trim_start_matches("1/").trim_end_matches(['.', '/', 's']);
        match () {
            () if is_row => word.to_string(),
            () if is_figure(figure) => "#".into(),
            () if word.starts_with("/tmp/") => "FOLDER".into(),
            () => word.to_string(),
        }
    };
    words.iter().map(shape).collect::<Vec<_>>().join(" ")
}

fn is_figure(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.chars().all(|c| c.is_ascii_digit() || c == ',' || c == '.')
}

fn memory(lines: &[String]) -> Vec<(f64, f64)> {
    let figures = |line: &String| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "bytes" || *word == "bits")?;
        Some((words[at - 1].parse().ok()?, words.get(at + 1)?.parse().ok()?))
    };
    lines.iter().filter_map(figures).collect()
}

/// The sample in the README matches a real run: the same lines, the same page, and numbers within
/// bounds. To update it, copy the output of `./run`.
#[test]
fn readme_shows_a_real_run_of_the_demo_in_80_columns() {
    let lines = run();
    let all = lines.join("\n");
    for line in &lines {
        assert!(line.chars().count() <= 80, "wider than 80 columns: {line}");
    }
    assert!(!all.contains('\x1b'), "colours in a pipe:\n{all}");

    let address = lines.last().and_then(|line| line.strip_prefix("Dashboard: "));
    let address = address.expect("the last line names the dashboard");
    assert!(address.starts_with("http://127.0.0.1:") && address.ends_with('/'), "{address}");

    let start = README.find("The server listens on port").expect("README shows a run");
    let sample: Vec<String> = README[start..]
        .lines()
        .take_while(|line| !line.starts_with("```"))
        .map(str::to_owned)
        .collect();
    // "..." replaces omitted lines.
    let mut rest = lines.iter();
    let mut may_skip = false;
    for line in &sample {
        if line.trim() == "..." {
            may_skip = true;
            continue;
        }
        let found = if may_skip {
            rest.any(|printed| shape(printed) == shape(line))
        } else {
            rest.next().is_some_and(|printed| shape(printed) == shape(line))
        };
        assert!(found, "README has a line that the run did not print: {line}\n{all}");
        may_skip = false;
    }

    let (shown, measured) = (memory(&sample), memory(&lines));
    assert_eq!((shown.len(), measured.len()), (4, 4), "{all}");
    for ((our, redis), (our_now, redis_now)) in shown.into_iter().zip(measured) {
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.15;
        assert!(near(our, our_now), "README says {our}, the run {our_now}\n{all}");
        assert!(
            near(redis, redis_now),
            "README says {redis} for Redis, the run {redis_now}\n{all}"
        );
    }
}

/// Starts a demo. Returns the process, the remaining lines of its output, and the folder that the
/// first line names.
fn begun(posts: &str) -> (Child, Lines<BufReader<ChildStdout>>, String) {
    let mut demo = Command::new(TIDEMARK)
        .args(["demo", "--posts", posts])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let folder = first.split_whitespace().last().unwrap().trim_end_matches('.').to_owned();
    (demo, lines, folder)
}

/// Ctrl-C during the load ends the demo without an error and deletes its folder.
#[test]
fn ctrl_c_while_the_demo_loads_leaves_no_folder() {
    let (demo, lines, folder) = begun("20000000");
    assert!(std::path::Path::new(&folder).join("tidemark.lock").exists(), "{folder}");
    let pid = rustix::process::Pid::from_child(&demo);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let said = demo.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success(), "{errors}");
    assert!(!errors.contains("error") && rest.iter().all(|line| !line.contains("Ctrl-C")));
    assert!(!std::path::Path::new(&folder).exists(), "{folder} was not removed");
}

/// `./run | head`: a closed pipe ends the demo without a panic.
#[test]
fn a_reader_that_has_seen_enough_ends_the_demo() {
    let (demo, lines, folder) = begun("1000");
    drop(lines);
    let said = demo.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success() && errors.is_empty(), "{errors}");
    assert!(!std::path::Path::new(&folder).exists(), "{folder} was not removed");
}
