//! The task runner: long runs, seeds, benchmarks, transcripts, printed pages, dependencies.
//!
//! A long run is a test of the workspace with more seeds or steps than in CI. For each run, `cargo
//! xtask` sets up to four environment variables and prints the resulting command, which can be run
//! without xtask.

mod dependencies;
mod runs;

use clap::{Args, Parser, Subcommand};
use runs::{RUNS, Run};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Long runs, seeds, benchmarks, transcripts, printed pages and dependency checks of Tidemark.
#[derive(Parser)]
#[command(
    bin_name = "cargo xtask",
    after_long_help = "\
Examples:
  cargo xtask test counter                    the tests of one crate
  cargo xtask sim replication --seed 7        replays one seed of the replication simulator
  cargo xtask sim crash --runs 100000         a hundred thousand seeds of crashes
  cargo xtask model commands --steps 20000000 compares commands with plain maps, for longer
  cargo xtask play kill --runs 200            kill -9 of the real program, 200 times
  cargo xtask seeds --minutes 60              all simulators and models in turn, with new seeds
  cargo xtask soak --hours 2                  three nodes and Sentinels with all kinds of faults
  cargo xtask memory --minutes 25             checks that client memory is released
  cargo xtask upgrade                         a rolling upgrade from an older commit
  cargo xtask bench                           lists the benchmarks
  cargo xtask bench feed -- --posts 100000    builds and runs one
  cargo xtask transcripts --rewrite           rewrites the golden transcripts
  cargo xtask print                           rewrites docs/commands.md and other generated pages

A failed random test prints its seed. Pass it to --seed of the same run.
CI runs `./test`, which does not need this program."
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs the tests of one crate, as `./test` does
    Test {
        /// Folder of the crate: counter, server, cli, tests
        folder: String,
        /// Parts of test names; by default all tests run
        filter: Vec<String>,
    },
    /// Simulators: simulated disks, clocks or networks with faults, driven by a seed
    #[command(after_help = runs::help("sim"))]
    Sim(RunOptions),
    /// Random operations, compared with a plain map after each step
    #[command(after_help = runs::help("model"))]
    Model(RunOptions),
    /// Tests of the real server process: kills, disconnects, failovers
    #[command(after_help = runs::help("play"))]
    Play(RunOptions),
    /// Runs all simulators and models one after the other with new seeds, for a given time
    Seeds {
        /// Duration; the run in progress is finished
        #[arg(long, default_value_t = 60)]
        minutes: u64,
    },
    /// Runs three nodes and three Sentinels under load, with all kinds of faults and an independent
    /// checker (tests/soak/everything.py). Writes a page with plots
    Soak {
        /// Duration in hours; fractions are allowed
        #[arg(long, default_value = "2")]
        hours: String,
        /// Folder for the data of the nodes, the state of the checker and the page. A later run
        /// continues with its contents
        #[arg(long, default_value = "target/soak")]
        folder: PathBuf,
        /// Seed of the faults; random by default
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Builds a benchmark in release mode and runs it; lists all benchmarks without a name
    Bench {
        /// Name: a file or folder of bench/src/bin
        name: Option<String>,
        /// Options of the benchmark, after `--`; `-- --help` lists them
        #[arg(last = true)]
        options: Vec<String>,
    },
    /// Runs the golden transcripts of tests/scripts
    Transcripts {
        /// Part of their names: `feed`, or `feed::page`
        filter: Option<String>,
        /// Writes the replies of this build into the files. Review the difference before you commit
        #[arg(long)]
        rewrite: bool,
    },
    /// Prints the generated files: docs/commands.md, docs/metrics.md, config/tidemark.toml,
    /// docs/compatibility.md
    Print,
    /// Checks dependencies: licences, sources, banned, duplicate and unused crates; see deny.toml
    Dependencies,
    /// Checks that the workspace builds with its oldest supported Rust (rust-version)
    Msrv,
    /// Clients make a server allocate memory, which it must free within a minute without load
    Memory {
        /// Duration in minutes (tests/soak/memory.py)
        #[arg(long, default_value_t = 25)]
        minutes: u64,
    },
    /// A rolling upgrade under load, from the binary of an older commit
    Upgrade {
        /// Commit of the old binary. Default: the last commit before backups that has the file
        /// formats of 0.1.0
        #[arg(long, default_value = DEFAULT_OLD_COMMIT)]
        from: String,
    },
    /// Copies rows and flags from a real redis-server with MIGRATE, import and import --follow,
    /// kills both sides during the copy, and compares all data
    Migrate {
        /// Number of rows, and of flags (tests/soak/migrate.py)
        #[arg(long, default_value_t = 5_000_000)]
        posts: u64,
    },
    /// Explores every interleaving of the lock-free bucket with loom. Takes minutes
    Loom,
    /// Checks the counter engine's unit tests for undefined behaviour with Miri (nightly Rust)
    Miri,
    /// Coverage-guided fuzzing (nightly Rust and cargo-fuzz); see fuzz/run
    Fuzz {
        /// Seconds per target
        seconds: u64,
        /// Targets; all by default
        targets: Vec<String>,
    },
}

#[derive(Args)]
struct RunOptions {
    /// Name of the run
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: String,
    /// First seed; without --runs, the only one
    #[arg(long)]
    seed: Option<u64>,
    /// Number of seeds, or of rounds
    #[arg(long)]
    runs: Option<u64>,
    /// Steps per seed
    #[arg(long)]
    steps: Option<u64>,
    /// Duration in seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// Prints the command without running it
    #[arg(long)]
    dry_run: bool,
}

fn main() -> ExitCode {
    match carry_out(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(task: Task) -> Result<(), String> {
    match task {
        Task::Sim(chosen) => chosen.start("sim"),
        Task::Model(chosen) => chosen.start("model"),
        Task::Play(chosen) => chosen.start("play"),
        Task::Seeds { minutes } => seeds(Duration::from_secs(minutes * 60)),
        Task::Soak { hours, folder, seed } => soak(&hours, &folder, seed),
        Task::Bench { name, options } => bench(name.as_deref(), &options),
        Task::Test { folder, filter } => test(&folder, &filter),
        Task::Transcripts { filter, rewrite } => {
            let mut words = vec!["test", "-p", "tidemark", "--test", "transcripts"];
            words.extend(filter.as_deref().map(|filter| ["--", filter]).into_iter().flatten());
            let rewrite = rewrite.then_some(("TIDEMARK_REWRITE", "1".to_owned()));
            cargo(&words, rewrite.as_slice())
        }
        Task::Print => print(),
        Task::Dependencies => dependencies::check(&root()),
        Task::Msrv => msrv(),
        Task::Memory { minutes } => script("memory.py", &["--minutes", &minutes.to_string()]),
        Task::Migrate { posts } => script("migrate.py", &["--posts", &posts.to_string()]),
        Task::Upgrade { from } => upgrade(&from),
        Task::Loom => cargo(
            &["test", "-p", "counter", "--lib", "--release"],
            &[("RUSTFLAGS", "--cfg loom".to_owned())],
        ),
        Task::Miri => cargo(&["+nightly", "miri", "test", "-p", "counter", "--lib"], &[]),
        Task::Fuzz { seconds, targets } => {
            let mut command = Command::new(root().join("fuzz/run"));
            command.arg(seconds.to_string()).args(targets);
            status(&mut command)
        }
    }
}

/// Returns the folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

impl RunOptions {
    fn start(&self, group: &str) -> Result<(), String> {
        let run = runs::find(group, &self.name)?;
        let variables = run.variables([self.seed, self.runs, self.steps, self.seconds])?;
        if self.dry_run {
            println!("{}", shown(&run.words(), &variables));
            return Ok(());
        }
        cargo(&run.words(), &variables)
    }
}

fn shown(words: &[&str], variables: &[(&str, String)]) -> String {
    let quoted = |value: &str| match value.contains(' ') {
        true => format!("\"{value}\""),
        false => value.to_owned(),
    };
    let variables = variables.iter().map(|(name, value)| format!("{name}={} ", quoted(value)));
    format!("{}cargo {}", variables.collect::<String>(), words.join(" "))
}

/// Prints the command and runs it.
fn cargo(words: &[&str], variables: &[(&str, String)]) -> Result<(), String> {
    eprintln!("$ {}", shown(words, variables));
    // Runs the `cargo` in PATH, because rustup's cargo selects a toolchain (`+nightly`) and the
    // cargo that runs xtask does not. Removes the variables that cargo has set for xtask, which
    // would affect the new cargo.
    let mut command = Command::new("cargo");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text == "CARGO_MANIFEST_DIR" || text == "CARGO" {
            command.env_remove(&name);
        }
    }
    if words.first().is_some_and(|word| word.starts_with('+')) {
        command.env_remove("RUSTUP_TOOLCHAIN");
    }
    status(command.current_dir(root()).args(words).envs(variables.iter().map(|(n, v)| (n, v))))
}

/// Runs the tests of the crate in a folder, with cargo-nextest if it is installed.
fn test(folder: &str, filter: &[String]) -> Result<(), String> {
    let file = root().join(folder).join("Cargo.toml");
    let text =
        std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let manifest: toml::Table = text.parse().map_err(|error| format!("{folder}: {error}"))?;
    let name = manifest["package"]["name"].as_str().ok_or("the package has no name")?;
    let nextest = Command::new("cargo").args(["nextest", "--version"]).output();
    let has_nextest = nextest.is_ok_and(|done| done.status.success());
    let start: &[&str] = if has_nextest { &["nextest", "run"] } else { &["test"] };
    let words = [start, &["-p", name, "--no-fail-fast"], if has_nextest { &[] } else { &["--"] }];
    let filter: Vec<&str> = filter.iter().map(String::as_str).collect();
    cargo(&[words.concat(), filter].concat(), &[])
}

fn status(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the command exited with {status}")),
        Err(e) => Err(format!("{}: {e}", command.get_program().to_string_lossy())),
    }
}

fn script(name: &str, options: &[&str]) -> Result<(), String> {
    cargo(&["build", "--release", "--locked"], &[])?;
    let mut command = Command::new(root().join("tests/soak").join(name));
    status(command.arg(root().join("target/release/tidemark")).args(options))
}

/// Default commit of `cargo xtask upgrade`, used until there is a release.
const DEFAULT_OLD_COMMIT: &str = "9e2b30e6";

/// Builds the binary of a commit in a separate worktree and runs the upgrade test with it.
fn upgrade(from: &str) -> Result<(), String> {
    let git = |words: &[&str]| {
        let output = Command::new("git").current_dir(root()).args(words).output();
        let output = output.map_err(|e| format!("git: {e}"))?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(said(&output.stdout)) } else { Err(said(&output.stderr)) }
    };
    let commit = git(&["rev-parse", "--verify", "--quiet", &format!("{from}^{{commit}}")]);
    let commit = commit.map_err(|_| {
        format!(
            "commit {from} is not in this clone: run `git fetch --unshallow`, or choose another \
             one with --from"
        )
    })?;
    let (folder, target) = (root().join("target/upgrade/source"), root().join("target/upgrade"));
    let source = folder.display().to_string();
    // Removes the worktree of an interrupted run.
    let _ = git(&["worktree", "remove", "--force", &source]);
    git(&["worktree", "add", "--force", "--detach", &source, &commit])?;
    eprintln!("$ cargo build --bin tidemark    # of {commit}");
    let mut build = Command::new("cargo");
    let built = status(
        build
            .current_dir(&folder)
            .env("CARGO_TARGET_DIR", target.join("build"))
            .args(["build", "--locked", "--bin", "tidemark"]),
    );
    git(&["worktree", "remove", "--force", &source])?;
    built?;
    let old = target.join("build/debug/tidemark").display().to_string();
    let words = ["test", "-p", "tidemark", "--test", "upgrade", "--", "--nocapture"];
    cargo(&words, &[("TIDEMARK_OLD", old)])
}

fn soak(hours: &str, folder: &Path, seed: Option<u64>) -> Result<(), String> {
    let python = root().join("target/clients/redis-py-new/bin/python");
    if !python.exists() {
        return Err("run tests/clients/setup first".to_owned());
    }
    cargo(&["build", "--release", "--locked"], &[])?;
    let mut command = Command::new(python);
    command.current_dir(root()).arg("tests/soak/everything.py").arg("target/release/tidemark");
    command.args(["--hours", hours, "--folder"]).arg(folder);
    command.args(seed.iter().flat_map(|seed| ["--seed".to_owned(), seed.to_string()]));
    status(&mut command)
}

fn seeds(time: Duration) -> Result<(), String> {
    let started = Instant::now();
    let all: Vec<&Run> = RUNS.iter().filter(|run| run.has_seeds()).collect();
    for (i, run) in all.iter().cycle().enumerate() {
        if started.elapsed() >= time {
            println!("{i} runs in {} s, none failed", started.elapsed().as_secs());
            break;
        }
        // Seeds are short, and greater than the seeds that CI runs.
        let seed = fastrand::u64(10_000..1 << 40);
        cargo(&run.words(), &run.variables([Some(seed), run.seeds_at_a_time(), None, None])?)?;
    }
    Ok(())
}

fn bench(name: Option<&str>, options: &[String]) -> Result<(), String> {
    let folder = root().join("bench/src/bin");
    let mut found: Vec<(String, String)> = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(|e| e.to_string())?.flatten() {
        let path = entry.path();
        let file = if path.is_dir() { path.join("main.rs") } else { path.clone() };
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let about: Vec<&str> =
            text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
        let about = about.iter().take_while(|line| !line.is_empty()).copied();
        let about = about.collect::<Vec<_>>().join(" ");
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        found.push((stem, about));
    }
    found.sort();
    let Some(name) = name else {
        for (name, about) in &found {
            println!("{name:18} {about}");
        }
        return Ok(());
    };
    if !found.iter().any(|(known, _)| known == name) {
        return Err(format!("no benchmark '{name}'; `cargo xtask bench` lists them"));
    }
    // Several benchmarks start the server from their own folder.
    cargo(&["build", "--release", "--bin", "tidemark", "-p", "tidemark"], &[])?;
    let mut words = vec!["run", "--release", "-p", "tidemark-bench", "--bin", name, "--"];
    words.extend(options.iter().map(String::as_str));
    cargo(&words, &[])
}

fn print() -> Result<(), String> {
    cargo(&["build", "--bin", "tidemark"], &[])?;
    for (words, file) in
        [(&["commands"][..], "docs/commands.md"), (&["config", "--all"], "config/tidemark.toml")]
    {
        let mut program = Command::new(root().join("target/debug/tidemark"));
        let output = program.args(words).output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        std::fs::write(root().join(file), output.stdout).map_err(|e| e.to_string())?;
        println!("{file}");
    }
    let prints = [("TIDEMARK_PRINT", "1".to_owned())];
    let metrics = ["test", "-p", "node", "--lib", "the_documentation_lists"];
    cargo(&metrics, &prints)?;
    cargo(&["test", "-p", "tidemark-tests", "--test", "it", "compatibility"], &prints)
}

fn msrv() -> Result<(), String> {
    let text = std::fs::read_to_string(root().join("Cargo.toml")).map_err(|e| e.to_string())?;
    let manifest: toml::Table = text.parse().map_err(|e| format!("{e}"))?;
    let version = manifest["workspace"]["package"]["rust-version"].as_str().unwrap_or_default();
    let toolchain = format!("+{version}");
    // Use a separate target folder, so that the builds in the usual one stay valid.
    cargo(&[&toolchain, "check", "--locked", "--target-dir", "target/msrv"], &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_seed_alone_is_one_run_and_its_command_is_shown() {
        let run = runs::find("sim", "replication").unwrap();
        let variables = run.variables([Some(7), None, None, None]).unwrap();
        assert_eq!(
            shown(&run.words(), &variables),
            "TIDEMARK_SEED=7 TIDEMARK_RUNS=1 cargo test -p replication --test it -- \
             --include-ignored --nocapture"
        );
    }

    #[test]
    fn what_a_run_does_not_have_is_refused() {
        let run = runs::find("play", "links").unwrap();
        let refused = run.variables([Some(7), None, None, None]).unwrap_err();
        assert_eq!(refused, "links has no option --seed; it has --seconds");
        assert!(runs::find("sim", "nope").unwrap_err().contains("replication"));
    }

    /// Each variable must be read by the test, or it would have no effect.
    #[test]
    fn the_tests_read_the_variables_that_are_set() {
        for run in RUNS {
            let text = std::fs::read_to_string(root().join(run.file)).unwrap();
            for name in run.names() {
                // A test may read these variables through the crate `seeds` or
                // `harness::program::rounds`.
                let by: &[&str] = match name {
                    "TIDEMARK_SEED" => &["seeds::seeds", "rounds("],
                    "TIDEMARK_RUNS" => &["seeds::seeds", "rounds("],
                    "TIDEMARK_SECONDS" => &["seeds::seconds("],
                    _ => &[],
                };
                let is_read = text.contains(name) || by.iter().any(|by| text.contains(by));
                assert!(is_read, "{} does not read {name}", run.file);
            }
        }
    }
}
