//! Output and exit status of `tidemark import`.

mod from;
mod layouts;

use client::Reply;
use harness::program::{Program, call};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn import(program: &Program, args: &[&str]) -> Output {
    Command::new(harness::program())
        .args(["import", "--port", &program.port.to_string()])
        .args(args)
        .env_remove("REDISCLI_AUTH")
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    std::fs::write(folder.join(name), text).unwrap();
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn exit_status_is_0_only_if_all_lines_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("data"), "no");
    let file = |name: &str, text: &str| file(folder.path(), name, text);
    let rows = file("rows.csv", "id,like,read\n1,10,100\n2,20,200\n");
    let flags = file("flags.csv", "id,member\n1,7\n2,by-name\n1,7\n");
    let events =
        file("events.csv", "created_at,post_id,origin_post_id,user_id\nt,5,1,9\nt,6,,9\nt,7,1,9\n");
    // Members with line breaks inside quotes and with spaces, and lines that end with CR.
    let quoted = file("quoted.csv", "id,member\n5,\"two\nlines\"\n5,\"blank \"\n5,blank \n");
    let cr = file("cr.csv", "id,like\r6,60\r7,70\r");
    let open = file("open.csv", "id,member\n8,1\n8,\"2\n8,3\n");
    let bad = file("bad.csv", "id,like\n1,x\n3,30\n");
    let header = file("header.csv", "id,likes,repost\n1,1,1\n");
    let other = file("other.csv", "title,likes,post_id\n\"A, B\",5,51\nC,6,52\n");
    let other_json = file("other.jsonl", "{\"post_id\": 53, \"likes\": 7, \"title\": \"x\"}\n");
    let shifted = file("shifted.csv", "title,likes,post_id\nA, B,5,54\n");
    let renamed = ["--fields", "post_id>id,likes>like"];
    let twice = file("twice.csv", "id,like,like\n1,1,2\n");
    let json = file("twice.jsonl", "{\"id\": 9, \"like\": 1, \"like\": 2}\n");
    let null = file(
        "null.jsonl",
        "{\"id\": 46, \"like\": null, \"read\": 3}\n{\"id\": 47, \"like\": null}\n",
    );
    let no_id = file("no_id.jsonl", "{\"id\": null, \"like\": 1}\n");
    let no_value = file("no_value.csv", "id,like\n1,\n");
    let (strange, empty) = (file("strange.csv", "a,b\n1,2\n"), file("empty.csv", ""));
    let gone = folder.path().join("gone.csv").to_str().unwrap().to_owned();
    let cases: &[(&[&str], i32, &str)] = &[
        (&[&rows], 0, "2 lines in"),
        (&["--connections", "1", &rows], 0, "2 rows set; 0 bad lines"),
        (&[&empty], 0, "0 lines in"),
        (&[&null], 0, "1 rows set; 1 rows without counters; 0 bad lines"),
        (&[&no_id], 1, "\"id\" is missing"),
        (&[&no_value], 1, "like: \"\" is not an integer"),
        (&["--space", "liked", &flags], 0, "3 flags; 2 changed, 1 repeated, 0 below the horizon"),
        (&["--space", "liked", &flags], 0, "3 flags; 0 changed, 3 repeated"),
        (&["--space", "read", "--kind", "flags", &flags], 0, "3 flags; 2 changed"),
        (
            &[&flags],
            1,
            "use --space with an existence space; the server has: liked, reposted, read",
        ),
        (&["--space", "liked", &quoted], 0, "3 flags; 2 changed, 1 repeated"),
        (&[&cr], 0, "2 rows set; 0 bad lines"),
        (&["--space", "liked", &open], 1, "line 3: unterminated quoted field"),
        (&["--verify", &rows], 2, "cannot be used with"),
        (&["--delete-missing", &rows], 2, "cannot be used with"),
        (&[&events], 0, "2 events; 1 original posts; 1 changed, 1 repeated"),
        (&[&bad], 1, "line 2: like: \"x\" is not an integer or out of range"),
        (&[&bad], 1, "1 bad line was not loaded"),
        (&["--strict", &bad], 1, "line 2: like: \"x\""),
        (&[&gone], 1, "No such file"),
        (&[&strange], 1, "unknown header: expected"),
        (&["--space", "liked", &rows], 1, "is an existence space and needs lines of `id,member`"),
        (
            &["--space", "nope", &rows],
            1,
            "no such counter space 'nope'; the server has: post, user",
        ),
        (
            &["--kind", "flags", &flags],
            1,
            "no such existence space 'post'; the server has: liked, reposted, read",
        ),
        (
            &["--action", "nope", &events],
            1,
            "no such action 'nope'; the server has: like, repost, read",
        ),
        (&["--kind", "rows", "--fields", "share", &bad], 1, "--fields: no such column 'share'"),
        (&["--fields", "like>share", &bad], 1, "no such field 'share' in the space 'post'"),
        (&[renamed[0], renamed[1], &other], 0, "2 rows set; 0 bad lines"),
        (&[renamed[0], renamed[1], &other_json], 0, "1 rows set; 0 bad lines"),
        (&[renamed[0], renamed[1], &shifted], 1, "4 columns, expected 3"),
        (&[&other], 1, "or choose the columns of rows with --fields 'post_id>id,likes>like'"),
        (&["--fields", "likes>like", &header], 0, "1 rows set; 0 bad lines"),
        (
            &[&header],
            1,
            "it has: like, repost, comment, read; choose the columns with --fields 'old>new",
        ),
        (&[&twice], 1, "duplicate field 'like'"),
        (&[&json], 1, "line 1: not a JSON object: duplicate key \"like\""),
        (&["--host", "127.0.0.1", "--port", "1", &rows], 2, "cannot be used multiple times"),
        (&["--cacert", "x", &rows], 2, "--tls"),
    ];
    for (args, status, words) in cases {
        let output = import(&program, args);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(*status), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
    let mut client = program.client();
    let integers = |all: &[i64]| Reply::Array(all.iter().map(|&n| Reply::Integer(n)).collect());
    for (command, expected) in [
        ("CNT.GET post 2", Reply::Array(vec![integers(&[20, 0, 0, 200])])),
        ("PH.EXISTS liked 7 1 2", integers(&[1, 0])),
        ("PH.EXISTS liked by-name 2", integers(&[1])),
        ("PH.EXISTS liked blank 5", integers(&[0])),
        ("PH.EXISTS liked 1 8", integers(&[1])),
        ("HGET post:7 like", Reply::BulkString("70".into())),
        (
            "CNT.GET post 51 53",
            Reply::Array(vec![integers(&[5, 0, 0, 0]), integers(&[7, 0, 0, 0])]),
        ),
        ("HGET post:3 like", Reply::BulkString("30".into())),
        ("HGET post:1 repost", Reply::BulkString("1".into())),
    ] {
        assert_eq!(call(&mut client, command), expected, "{command}");
    }
}

#[test]
fn refusal_of_every_line_ends_the_import() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("data"), "no");
    let rows =
        file(folder.path(), "rows.csv", &("id,like\n".to_owned() + &"1,1\n".repeat(100_000)));
    let ask = |command: &str| call(&mut program.client(), command);
    ask("ACL SETUSER reader on >secret ~* +@all -@write");
    let output = import(&program, &["--user", "reader", "--pass", "secret", &rows]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("line 2 was rejected: NOPERM") && text.lines().count() == 1, "{text}");
    for (args, words) in [
        (&["--user", "reader", "--pass", "wrong"][..], "WRONGPASS"),
        (&["--user", "reader", "--password", "wrong"], "WRONGPASS"),
        (&["--user", "nobody"], "WRONGPASS"),
    ] {
        let output = import(&program, &[args, &[&rows]].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains(words), "{}", said(&output));
    }
    call(&mut program.client(), "CONFIG SET requirepass hidden");
    let output = import(&program, &[&rows]);
    assert!(said(&output).contains("Give --user and --pass"), "{}", said(&output));
    let small = file(folder.path(), "small.csv", "id,like\n1,1\n");
    let output = import(&program, &["-a", "hidden", &small]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let mut command = Command::new(harness::program());
    command
        .args(["import", "-p", &program.port.to_string(), &small])
        .env("REDISCLI_AUTH", "hidden");
    assert!(command.status().unwrap().success());
    drop(program);
    let output =
        Command::new(harness::program()).args(["import", "--port", "1", &small]).output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("cannot import into 127.0.0.1:1: Connection refused"), "{text}");
}

/// The server is killed during the import. The import reports this immediately, with the last line
/// up to which all lines are loaded. If the server syncs before it replies, these lines are present
/// after a restart.
#[test]
fn kill_of_the_server_is_said_with_the_last_loaded_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path(), "always");
    let mut child = Command::new(harness::program())
        .args(["import", "--port", &program.port.to_string(), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufWriter::new(child.stdin.take().unwrap());
    writeln!(lines, "id,like").unwrap();
    // Read rows until one is missing. Line n + 1 sets row n.
    for id in 1_u64.. {
        if writeln!(lines, "{id},{}", id % 1000).is_err() {
            break;
        }
        if id == 50_000 {
            lines.flush().unwrap();
            program.sigkill();
        }
        assert!(id < 50_000_000, "the import did not stop reading");
    }
    drop(lines);
    let output = child.wait_with_output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("the server closed the connection"), "{text}");
    let (_, rest) = text.split_once("lines up to ").unwrap_or_else(|| panic!("{text}"));
    let through: u64 = rest.split(' ').next().unwrap().parse().unwrap();
    let program = Program::start(folder.path(), "always");
    let mut client = program.client();
    for id in 1..through {
        let expected = Reply::BulkString((id % 1000).to_string().into());
        assert_eq!(call(&mut client, &format!("HGET post:{id} like")), expected, "row {id}");
    }
}
