//! The repository's scripts: `./test` and the installers of its packages. The tests run the scripts
//! on a copy of their folder, with stub programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with copies of the scripts, and a folder of stubs at the start of PATH.
struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new(scripts: &[&str]) -> Stage {
        let stage = Stage { folder: tempfile::tempdir().unwrap() };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for script in scripts {
            stage.file(script, &fs::read_to_string(root.join(script)).unwrap());
        }
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes an executable file and creates its parent folders.
    fn file(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn stub(&self, name: &str, body: &str) {
        self.file(&format!("bin/{name}"), &format!("#!/bin/bash\n{body}\n"));
    }

    fn link(&self, name: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/usr/lib/systemd/system/any.service", path).unwrap();
    }

    fn run(&self, script: &str, args: &[&str]) -> Output {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(self.path(script));
        command.current_dir(self.folder.path()).args(args).env("PATH", path);
        // Without cargo's environment file in HOME, PATH keeps the stub of cargo first.
        command.env("HOME", self.folder.path()).env("INSTALL_ROOT", self.path("root"));
        command.output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Server packages enable themselves at boot. The stub of apt-get simulates this behaviour, and
/// checks that services cannot start during the installation.
#[test]
fn installed_packages_leave_no_service_enabled() {
    for (own_policy, apt_fails) in [(false, false), (true, false), (true, true)] {
        let stage = Stage::new(&["scripts/install_packages"]);
        stage.stub("sudo", "exec \"$@\"");
        stage.stub("systemctl", "[ \"$1 $2\" = \"--root=$INSTALL_ROOT/ disable\" ]");
        stage.stub("update-rc.d", "mv $INSTALL_ROOT/etc/rc2.d/S01$1 $INSTALL_ROOT/etc/rc2.d/K01$1");
        stage.stub(
            "apt-get",
            &format!(
                "[ $1 = install ] || exit 0
                 $INSTALL_ROOT/usr/sbin/policy-rc.d; echo $? >$INSTALL_ROOT/may_start
                 echo \"$*\" >$INSTALL_ROOT/asked
                 ln -s /lib/x $INSTALL_ROOT/etc/systemd/system/multi-user.target.wants/new.service
                 ln -s /lib/x $INSTALL_ROOT/etc/systemd/system/alias.service
                 ln -s ../init.d/new $INSTALL_ROOT/etc/rc2.d/S01new
                 exit {}",
                if apt_fails { 100 } else { 0 }
            ),
        );
        let wants = "root/etc/systemd/system/multi-user.target.wants";
        stage.link(&format!("{wants}/old.service"));
        stage.link("root/etc/rc2.d/S01old");
        let policy = "root/usr/sbin/policy-rc.d";
        fs::create_dir_all(stage.path("root/usr/sbin")).unwrap();
        if own_policy {
            stage.file(policy, "#!/bin/sh\nexit 0\n");
        }
        let done = stage.run("scripts/install_packages", &["redis-server", "nutcracker"]);
        assert_eq!(done.status.code(), Some(if apt_fails { 100 } else { 0 }), "{done:?}");
        let read = |name: &str| fs::read_to_string(stage.path(name)).unwrap();
        assert!(read("root/asked").ends_with("redis-server nutcracker\n"));
        assert_eq!(read("root/may_start"), "101\n", "services may start while packages arrive");
        let names = |folder: &str| -> Vec<String> {
            let entries = fs::read_dir(stage.path(folder)).unwrap();
            let mut names: Vec<String> =
                entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(names(wants), ["old.service"]);
        assert_eq!(names("root/etc/systemd/system"), ["multi-user.target.wants"]);
        assert_eq!(names("root/etc/rc2.d"), ["K01new", "S01old"]);
        assert_eq!(names("root/usr/sbin"), if own_policy { vec!["policy-rc.d"] } else { vec![] });
        if own_policy {
            assert_eq!(read(policy), "#!/bin/sh\nexit 0\n", "the machine's own policy is back");
        }
    }
}

/// Runs `./test` with stubs: cargo prints `lines`, and the checks exit with these codes.
struct TestRun {
    lines: &'static str,
    arguments: &'static [&'static str],
    has_nextest: bool,
    tests: i32,
    lints: i32,
    setup: i32,
    rustup: i32,
}

const NEXTEST_LINES: &str = "        PASS [   0.103s] (1/3) x::it a\n        PASS [  12.004s] \
                             (2/3) x::it b\n        PASS [   1.500s] (3/3) x::it c\nSKIPPED: c: \
                             needs strace\nSKIPPED: c: needs a disk\n     Summary [  12.100s] 3 \
                             tests run: 3 passed, 4 skipped\n";

const QUICK: TestRun = TestRun {
    lines: NEXTEST_LINES,
    arguments: &[],
    has_nextest: true,
    tests: 0,
    lints: 0,
    setup: 0,
    rustup: 0,
};

impl TestRun {
    /// Returns the output and the exit code.
    fn run(&self) -> (String, i32) {
        let stage = Stage::new(&["test", "scripts/toolchain", "scripts/test_totals"]);
        stage.file("tests/clients/setup", &format!("#!/bin/sh\nexit {}\n", self.setup));
        stage.file("scripts/style", "#!/bin/sh\n");
        stage.file("scripts/plots", "#!/bin/sh\n");
        stage.file("deploy/check", "#!/bin/sh\n");
        fs::write(stage.path("lines"), self.lines).unwrap();
        fs::write(stage.path("Cargo.toml"), "rust-version = \"1.2\"\n").unwrap();
        stage.stub("rustup", &format!("echo $* >>asked; exit {}", self.rustup));
        stage.stub("cc", "exit 0");
        let (tests, lints) = (self.tests, self.lints);
        let run = format!(
            "case \"$*\" in
             *--no-run*|*--doc*) exit 0;;
             esac
             grep -v ^SKIPPED lines; grep ^SKIPPED lines >>$TIDEMARK_SKIPPED; exit {tests}"
        );
        let nextest = if self.has_nextest { run.as_str() } else { "exit 101" };
        stage.stub(
            "cargo",
            &format!(
                "[ \"$*\" != 'xtask msrv' ] || grep -q '1.2 cargo' asked || exit 1
                 [ \"$*\" != 'nextest --version' ] || exit {}
                 case $1 in
                 nextest) {nextest};;
                 test) {run};;
                 clippy) exit {lints};;
                 esac",
                i32::from(!self.has_nextest)
            ),
        );
        let done = stage.run("test", self.arguments);
        (text(&done.stdout), done.status.code().unwrap())
    }
}

fn last(out: &str) -> &str {
    out.lines().last().unwrap_or_default()
}

/// The last line contains only the totals, regardless of which part failed.
#[test]
fn test_script_ends_with_one_line_of_totals() {
    // The run has seven parts and three tests, one of them skipped.
    let (out, code) = QUICK.run();
    assert_eq!((last(&out), code), ("9 passed, 0 failed, 1 skipped", 0), "{out}");
    assert!(out.contains("SKIPPED: c: needs strace"), "{out}");
    let slowest: Vec<&str> =
        out.lines().skip_while(|line| *line != "-- the 20 slowest").skip(1).take(3).collect();
    assert_eq!(slowest, ["12.004 s  x::it b", "1.500 s  x::it c", "0.103 s  x::it a"], "{out}");
    let durations = out.lines().rev().nth(1).unwrap_or_default();
    for part in [
        "format ",
        "style ",
        "plots ",
        "build ",
        "lints ",
        "documentation ",
        "examples ",
        "tests ",
        "in all ",
    ] {
        assert!(durations.contains(part), "{durations}");
    }

    // With `--all` the run has three more parts.
    let (out, code) = TestRun { arguments: &["--all"], ..QUICK }.run();
    assert_eq!((last(&out), code), ("12 passed, 0 failed, 1 skipped", 0), "{out}");
    let durations = out.lines().rev().nth(1).unwrap_or_default();
    for part in ["dependencies ", "oldest Rust ", "deploy "] {
        assert!(durations.contains(part), "{durations}");
    }

    // A failing part does not stop the other parts.
    let (out, code) = TestRun { lints: 1, setup: 1, ..QUICK }.run();
    assert_eq!((last(&out), code), ("7 passed, 2 failed, 1 skipped", 1), "{out}");
    assert!(out.contains("FAILED: build, lints"), "{out}");

    let lines = "        FAIL [   0.103s] (1/4) x::it a\n    test result: FAILED. 0 passed; 1 \
                 failed; 0 ignored;\n     Summary [  12.100s] 4 tests run: 2 \
                 passed (1 slow), 1 failed, 1 timed out, 0 skipped\nerror: test run failed\n";
    let (out, code) = TestRun { lines, tests: 100, ..QUICK }.run();
    assert_eq!((last(&out), code), ("9 passed, 2 failed, 0 skipped", 1), "{out}");
    assert!(out.contains("x::it a"), "{out}");

    // Now the tests do not compile.
    let (out, code) =
        TestRun { lines: "error: could not compile `x`\n", tests: 101, ..QUICK }.run();
    assert_eq!((last(&out), code), ("7 passed, 1 failed, 0 skipped", 1), "{out}");

    let (_, code) = TestRun { arguments: &["--full"], ..QUICK }.run();
    assert_eq!(code, 2);
}

#[test]
fn test_script_counts_without_nextest_too() {
    const GOOD: &str = "test a ... ok\ntest b ... ok\n\n\
                test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; \
                finished in 0.1s\ntest c ... ok\ntest d ... ignored, reason\n\
                test result: ok. 41 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
                finished in 0.1s\nSKIPPED: c: needs strace\nSKIPPED: c: needs a disk\n";
    const BAD: &str = "test b ... FAILED\ntest result: FAILED. 2 passed; 1 failed; 0 ignored; 0 \
                measured; 0 filtered out; finished in 0.1s\nerror: test failed, to rerun pass \
                `-p x --lib`\n";
    let stock = TestRun { lines: GOOD, has_nextest: false, ..QUICK };
    let (out, code) = stock.run();
    assert_eq!((last(&out), code), ("49 passed, 0 failed, 2 skipped", 0), "{out}");
    assert!(out.contains("test d ... ignored"), "{out}");

    let (out, code) = TestRun { lines: BAD, tests: 101, ..stock }.run();
    assert_eq!((last(&out), code), ("9 passed, 1 failed, 0 skipped", 1), "{out}");
    assert!(out.contains("test b ... FAILED"), "{out}");

    // A killed test program prints no result.
    let killed = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; \
                  finished in 0.1s\nerror: test failed, to rerun pass `-p x --test y`\n";
    let (out, code) = TestRun { lines: killed, tests: 101, ..stock }.run();
    assert_eq!((last(&out), code), ("9 passed, 1 failed, 0 skipped", 1), "{out}");
}

/// If a check cannot run on this machine, the script reports it as skipped, not as failed.
#[test]
fn an_oldest_rust_that_cannot_be_installed_is_named() {
    let (out, code) = TestRun { arguments: &["--all"], rustup: 1, ..QUICK }.run();
    assert!(out.contains("NOT CHECKED HERE: Rust 1.2 cannot be installed"), "{out}");
    assert_eq!((last(&out), code), ("12 passed, 0 failed, 1 skipped", 0), "{out}");
}

/// Debian 12 has no rustup package: a machine without Rust gets a single explanation.
#[test]
fn missing_rust_is_named_where_it_cannot_be_installed() {
    let stage = Stage::new(&["scripts/toolchain"]);
    stage.stub("cc", "exit 0");
    stage.file("scripts/install_packages", "#!/bin/bash\necho \"asked: $*\"\nexit 100\n");
    let done = Command::new("/bin/bash")
        .args(["-c", ". scripts/toolchain"])
        .current_dir(stage.folder.path())
        .env("HOME", stage.folder.path())
        .env("PATH", stage.path("bin"))
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert_eq!(text(&done.stdout), "asked: rustup\n");
    assert!(text(&done.stderr).contains("https://rustup.rs"), "{done:?}");
}
