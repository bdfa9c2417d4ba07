//! The scripts of the repository: `./test` and what installs its packages. They run in a copy of
//! their folder, with stubs of the programs that they call.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with copies of scripts, and one of stubs that comes first in PATH.
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

    /// Writes an executable file, and the folders above it.
    fn file(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A program that the script calls. With root's sudo a script calls it as it is.
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
        // A home without cargo's own environment file: the stub of cargo stays first.
        command.env("HOME", self.folder.path()).env("INSTALL_ROOT", self.path("root"));
        command.output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// F19: the packages of servers enable themselves at boot. The stub of apt-get does what their
/// installation does, and looks whether services may start meanwhile.
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

/// `./test` with a stub of cargo that prints these lines for `cargo test`.
fn test_run(lines: &str, test_exit: i32, lints_exit: i32, setup_exit: i32) -> (String, i32) {
    test_run_with_rustup(lines, test_exit, lints_exit, setup_exit, 0)
}

fn test_run_with_rustup(
    lines: &str,
    test_exit: i32,
    lints_exit: i32,
    setup_exit: i32,
    rustup_exit: i32,
) -> (String, i32) {
    let stage = Stage::new(&["test", "scripts/toolchain", "scripts/test_totals"]);
    stage.file("tests/clients/setup", &format!("#!/bin/sh\nexit {setup_exit}\n"));
    stage.file("scripts/style", "#!/bin/sh\n");
    stage.file("scripts/plots", "#!/bin/sh\n");
    stage.file("deploy/check", "#!/bin/sh\n");
    fs::write(stage.path("lines"), lines).unwrap();
    fs::write(stage.path("Cargo.toml"), "rust-version = \"1.2\"\n").unwrap();
    stage.stub("rustup", &format!("echo $* >>asked; exit {rustup_exit}"));
    stage.stub("cc", "exit 0");
    stage.stub(
        "cargo",
        &format!(
            "[ \"$*\" != 'xtask msrv' ] || grep -q '1.2 cargo' asked || exit 1
             case $1 in
             test) grep -v ^SKIPPED lines; grep ^SKIPPED lines >>$TIDEMARK_SKIPPED; exit \
             {test_exit};;
             clippy) exit {lints_exit};;
             esac"
        ),
    );
    let done = stage.run("test", &[]);
    (text(&done.stdout), done.status.code().unwrap())
}

/// F19: the last line is the sum of all results, alone on its line, whatever failed before it.
#[test]
fn test_script_ends_with_one_line_of_totals() {
    let good = "test a ... ok\ntest b ... ok\n\n\
                test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; \
                finished in 0.1s\ntest c ... ok\ntest d ... ignored, reason\n\
                test result: ok. 41 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
                finished in 0.1s\nSKIPPED: c: needs strace\nSKIPPED: c: needs a disk\n";
    let last = |out: &str| out.lines().last().unwrap_or_default().to_owned();

    // Nine parts and 42 tests, one of which could not run.
    let (out, code) = test_run(good, 0, 0, 0);
    assert_eq!((last(&out).as_str(), code), ("51 passed, 0 failed, 2 skipped", 0), "{out}");
    assert!(out.contains("SKIPPED: c: needs strace"), "{out}");
    assert!(out.contains("test d ... ignored"), "{out}");
    let durations = out.lines().rev().nth(1).unwrap_or_default();
    for part in [
        "setup ",
        "format ",
        "style ",
        "lints ",
        "dependencies ",
        "oldest Rust ",
        "tests ",
        "deploy ",
    ] {
        assert!(durations.contains(part), "{durations}");
    }

    // A part that fails keeps none of the others from running.
    let (out, code) = test_run(good, 0, 1, 1);
    assert_eq!((last(&out).as_str(), code), ("49 passed, 2 failed, 2 skipped", 1), "{out}");
    assert!(out.contains("FAILED: setup, lints"), "{out}");

    let bad = "test b ... FAILED\ntest result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; \
               0 filtered out; finished in 0.1s\nerror: test failed, to rerun pass `-p x --lib`\n";
    let (out, code) = test_run(bad, 101, 0, 0);
    assert_eq!((last(&out).as_str(), code), ("11 passed, 1 failed, 0 skipped", 1), "{out}");
    assert!(out.contains("test b ... FAILED"), "{out}");

    // A test program that was killed prints no result.
    let killed = format!("{good}{bad}error: test failed, to rerun pass `-p x --test y`\n");
    let (out, code) = test_run(&killed, 101, 0, 0);
    assert_eq!((last(&out).as_str(), code), ("53 passed, 2 failed, 2 skipped", 1), "{out}");

    // The tests do not build.
    let (out, code) = test_run("error: could not compile `x`\n", 101, 0, 0);
    assert_eq!((last(&out).as_str(), code), ("9 passed, 1 failed, 0 skipped", 1), "{out}");
}

/// A check that cannot be made here is named, and fails nothing.
#[test]
fn an_oldest_rust_that_cannot_be_installed_is_named() {
    let good = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; \
                finished in 0.1s\n";
    let (out, code) = test_run_with_rustup(good, 0, 0, 0, 1);
    assert!(out.contains("NOT CHECKED HERE: Rust 1.2 cannot be installed"), "{out}");
    assert_eq!((out.lines().last(), code), (Some("11 passed, 0 failed, 0 skipped"), 0), "{out}");
}

/// Debian 12 has no package of rustup: a machine without Rust gets one sentence that says so.
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
