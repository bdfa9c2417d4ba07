//! Imports keys that match a layout only partly, and counters and sets that are spread over several
//! keys. Also checks how data that is not copied is counted.

use super::from::{BOUNDED, Redis, TELLS, ask, done, ended, import};
use harness::program::{Program, until};
use redis::cmd;
use std::path::Path;
use std::time::{Duration, Instant};

fn values(program: &Program, key: &str, fields: &[&str]) -> Vec<String> {
    fields.iter().map(|field| ask(program, &format!("HGET {key} {field}"))).collect()
}

fn layouts<'a>(all: &[&'a str]) -> Vec<&'a str> {
    all.iter().flat_map(|layout| ["--layout", layout]).collect()
}

const FIELDS: [&str; 4] = ["like", "repost", "comment", "read"];

#[test]
fn valid_fields_are_copied_beside_a_bad_one() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    redis.run(&[TELLS, "HSET post:1 like 2 repost 23 comment 46 read 12.5", "HSET post:2 read x"]);
    let words = ["post:1: field 'read': \"12.5\" is not an integer", "1 rows set", "2 bad keys"];
    let from = |more: &[&str]| import(folder.path(), redis.port, program.port, more);
    done(from(&[]), 1, &words);
    assert_eq!(values(&program, "post:1", &FIELDS), ["2", "23", "46", "0"]);
    assert_eq!(ask(&program, "EXISTS post:2"), "0");
    // The rejected field keeps its value, and the other fields follow the source.
    ask(&program, "HSET post:1 read 7");
    let child = from(&["--follow", "--until-idle", "2"]).spawn().unwrap();
    redis.listens();
    redis.run(&["HINCRBY post:1 like 5", "HDEL post:1 repost"]);
    until("the change is copied", || values(&program, "post:1", &FIELDS) == ["7", "0", "46", "7"]);
    ended(&child.wait_with_output().unwrap(), 1, &["keys could not be copied completely"]);
    let words = ["2 keys not readable; 0 keys differ"];
    done(from(&["--only-verify", "--allow-extra"]), 1, &words);
    // Packed values in a msgpack map must also be integers: 12.5 is refused.
    let script = "return redis.call('SET', 'm:3', cmsgpack.pack({like = 4, read = 12.5}))";
    cmd("EVAL").arg(script).arg(0).query::<()>(&mut redis.connection()).unwrap();
    let packed = layouts(&["string key=m:{id} space=post fields=like,read pack=msgpack"]);
    done(from(&packed), 1, &["m:3: field 'read': msgpack: 12.5 is not an integer", "1 rows set"]);
    assert_eq!(values(&program, "post:3", &["like", "read"]), ["4", "0"]);
}

/// If the server refuses one value, the other counters of the row are still copied.
#[test]
fn valid_fields_are_copied_beside_one_out_of_bounds() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start_with(&folder.path().join("server"), BOUNDED);
    redis.run(&["HSET post:1 like 5 stock 500", "HSET post:2 like 6 stock 50"]);
    let words = [
        "post:1: the value of 'stock' would be out of bounds {0..100}",
        "2 rows set",
        "1 bad keys",
    ];
    done(import(folder.path(), redis.port, program.port, &[]), 1, &words);
    assert_eq!(values(&program, "post:1", &["like", "stock"]), ["5", "0"]);
    assert_eq!(values(&program, "post:2", &["like", "stock"]), ["6", "50"]);
}

#[test]
fn deleted_keys_with_all_fields_named_delete_the_row() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    redis.run(&[TELLS, "HSET p:1 l 1 r 2 c 3 v 4", "HSET p:2 l 9", "HSET half:3 l 5"]);
    let script = "return redis.call('SET', 's:4', cmsgpack.pack(1, 2, 3, 4))";
    cmd("EVAL").arg(script).arg(0).query::<()>(&mut redis.connection()).unwrap();
    let run = |layout: &str, work: &dyn Fn()| {
        let more = [&layouts(&[layout])[..], &["--follow", "--until-idle", "3"]].concat();
        let child = import(folder.path(), redis.port, program.port, &more).spawn().unwrap();
        redis.listens();
        work();
        ended(&child.wait_with_output().unwrap(), 0, &["0 bad keys"]);
    };
    let exists = |id: u64| ask(&program, &format!("EXISTS post:{id}")) == "1";
    run("hash key=p:{id} space=post fields=l>like,r>repost,c>comment,v>read", &|| {
        until("both keys are copied", || exists(1) && exists(2));
        redis.run(&["DEL p:1", "PEXPIRE p:2 20"]);
        until("both keys are deleted", || !exists(1) && !exists(2));
    });
    let packed = "string key=s:{id} space=post fields=like,repost,comment,read pack=msgpack";
    run(packed, &|| {
        until("the key is copied", || exists(4));
        redis.run(&["DEL s:4"]);
        until("the key is deleted", || !exists(4));
    });
    ask(&program, "HSET post:3 read 8");
    run("hash key=half:{id} space=post fields=l>like", &|| {
        until("the key is copied", || ask(&program, "HGET post:3 like") == "5");
        redis.run(&["DEL half:3"]);
        until("the counter is 0", || ask(&program, "HGET post:3 like") == "0");
        assert_eq!(ask(&program, "HGET post:3 read"), "8");
    });
}

#[test]
fn shards_of_a_counter_are_summed() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    let mut pipe = redis::pipe();
    for id in 1..=500u64 {
        for shard in (0..3).filter(|shard| id % 4 != *shard) {
            pipe.cmd("SET").arg(format!("view:{id}:shard:{shard}")).arg(id + shard).ignore();
        }
    }
    pipe.query::<()>(&mut redis.connection()).unwrap();
    redis.run(&[TELLS, "SET view:7:shard:3 1", "SET view:501:shard:1 x", "SET view:501:shard:2 1"]);
    let sum = |id: u64| (0..3).filter(|s| id % 4 != *s).map(|s| id + s).sum::<u64>().to_string();
    let read = |id: u64| ask(&program, &format!("HGET post:{id} read"));
    let from = |more: &[&str]| import(folder.path(), redis.port, program.port, more);
    // Pass three layouts that store the same counter.
    let apart = ["0", "1", "2"]
        .map(|shard| format!("string key=view:{{id}}:shard:{shard} space=post fields=read"));
    let apart: Vec<&str> = layouts(&apart.each_ref().map(|text| &text[..]));
    done(from(&apart), 1, &["'read' of the space 'post'", "sum="]);
    assert_eq!(ask(&program, "DBSIZE"), "0");
    let layout = layouts(&["string key=view:{id}:shard:{shard} space=post fields=read sum=0..2"]);
    let words =
        ["500 rows set", "1 bad keys", "view:501:shard:1: shard '1': \"x\"", "view:7:shard:3"];
    done(from(&layout), 1, &words);
    assert_eq!((1..=500).filter(|id| read(*id) != sum(*id)).count(), 0);
    assert_eq!(read(501), "-");
    redis.run(&["DEL view:501:shard:1 view:501:shard:2"]);
    done(from(&[&layout[..], &["--verify"]].concat()), 0, &["; 0 keys differ; 0 extra rows"]);
    // A change of any shard changes the sum. Deleting the last shard of a row deletes the row.
    let more = ["--follow", "--delete-missing", "--until-idle", "3"];
    let child = from(&[&layout[..], &more].concat()).spawn().unwrap();
    redis.listens();
    redis.run(&["INCRBY view:8:shard:1 1000", "DEL view:9:shard:0", "SET view:600:shard:2 5"]);
    redis.run(&["DEL view:10:shard:0 view:10:shard:1"]);
    until("sums follow", || {
        (read(8), read(9), read(600)) == ("1019".into(), "11".into(), "5".into())
    });
    ended(&child.wait_with_output().unwrap(), 0, &["0 bad keys"]);
    assert_eq!(ask(&program, "EXISTS post:10"), "0");
    done(from(&[&layout[..], &["--only-verify"]].concat()), 0, &["; 0 keys differ; 0 extra rows"]);
    redis.run(&["HSET h:1:a like 1 read 2", "HSET h:1:b like 10", "HSET h:2:b read 5"]);
    let hashes = layouts(&["hash key=h:{id}:{shard} space=post sum=a,b"]);
    done(from(&hashes), 0, &["2 rows set"]);
    assert_eq!(values(&program, "post:1", &FIELDS), ["11", "0", "0", "2"]);
    assert_eq!(values(&program, "post:2", &FIELDS), ["0", "0", "0", "5"]);
}

/// The import drops no value silently: it either refuses the layouts or rejects the second value.
#[test]
fn two_values_of_one_counter_are_refused() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    redis.run(&[
        "HSET post:1 read 1",
        "SET likes:1 5",
        "HSET post:2 like 7 read 2",
        "SET likes:2 8",
    ]);
    let from = |more: &[&str]| import(folder.path(), redis.port, program.port, more);
    let both = ["hash key=post:{id} space=post", "string key=likes:{id} space=post fields=like"];
    let words = ["likes:2: the hash post:2 also has a value for this counter", "1 bad keys"];
    done(from(&layouts(&both)), 1, &words);
    assert_eq!(values(&program, "post:1", &["like", "read"]), ["5", "1"]);
    assert_eq!(values(&program, "post:2", &["like", "read"]), ["7", "2"]);
    let cases = [
        ["hash key=a:{id} space=post fields=like", "string key=b:{id} space=post fields=like"],
        ["hash key=a:{id} space=post", "hash key=b:{id} space=post"],
        ["set key=a:{id} space=liked count=post.like", "string key=b:{id} space=post fields=like"],
    ];
    for case in cases {
        done(from(&layouts(&case)), 1, &["'like' of the space 'post' has two sources"]);
    }
    redis.run(&["HSET post:9 like 1", "SET post:9:like 2", "SET post:9:comment 3"]);
    let words = ["post:9:like: the hash post:9 also has a value for this counter", "1 bad keys"];
    done(from(&[]), 1, &words);
    assert_eq!(values(&program, "post:9", &["like", "comment"]), ["1", "3"]);
    // Sets of the same space are merged.
    let sets = ["set key=a:{id} space=liked", "set key=b:{id} space=liked"];
    redis.run(&["SADD a:1 5", "SADD b:1 6"]);
    done(from(&layouts(&sets)), 0, &["2 flags"]);
}

#[test]
fn fields_of_no_counter_are_counted_by_name() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    let mut pipe = redis::pipe();
    for id in 1..=300u64 {
        let row = cmd("HSET").arg(format!("post:{id}")).arg(&["title", "A", "author", "B"]).clone();
        pipe.add_command(row).ignore();
        if id != 300 {
            pipe.cmd("HSET").arg(format!("post:{id}")).arg("like").arg(id).ignore();
        }
    }
    pipe.query::<()>(&mut redis.connection()).unwrap();
    let from = |more: &[&str]| import(folder.path(), redis.port, program.port, more);
    let words =
        ["299 rows set", "600 fields are not counters", "title 300", "author 300", "fields="];
    done(from(&["--verify"]), 0, &words);
    assert_eq!(values(&program, "post:17", &FIELDS), ["17", "0", "0", "0"]);
    assert_eq!(ask(&program, "EXISTS post:300"), "0", "a row without counters was copied");
    // If the source has no known field, nothing is copied, which is an error.
    let more = layouts(&["hash key=post:{id} space=user"]);
    done(from(&more), 1, &["nothing was copied", "like 299", "fields="]);
}

#[test]
fn keys_left_behind_are_counted_by_prefix() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    let mut pipe = redis::pipe();
    for id in 1..=400u64 {
        pipe.cmd("HSET").arg(format!("post:{id}")).arg("like").arg(id).ignore();
        pipe.cmd("SET").arg(format!("session:{id}x")).arg(id).ignore();
        if id % 2 == 0 {
            pipe.cmd("SET").arg(format!("cache{id}")).arg(id).ignore();
            pipe.cmd("EXPIRE").arg(format!("post:{id}")).arg(9000).ignore();
        }
        if id % 4 == 0 {
            pipe.cmd("SADD").arg(format!("liked:{id}")).arg(id).ignore();
            pipe.cmd("EXPIRE").arg(format!("liked:{id}")).arg(9000).ignore();
        }
    }
    pipe.cmd("SET").arg("queue").arg(1).ignore();
    pipe.query::<()>(&mut redis.connection()).unwrap();
    let words = [
        "601 keys match no pattern (session:* 400, cache* 200, queue)",
        "300 keys have an expiration, which is not copied (post:* 200, liked:* 100)",
    ];
    done(import(folder.path(), redis.port, program.port, &[]), 0, &words);
}

#[test]
fn report_lists_all_bad_keys() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    let fill: Vec<String> =
        (1..=20).map(|id| format!("HSET post:{id} like x{id} read 1")).collect();
    redis.run(&fill.iter().map(String::as_str).collect::<Vec<_>>());
    let from = |more: &[&str]| import(folder.path(), redis.port, program.port, more);
    done(from(&["--report", "rejects"]), 1, &["20 bad keys"]);
    let lines = || {
        let text = std::fs::read_to_string(folder.path().join("rejects")).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines().len(), 20);
    let one = "post:7: field 'like': \"x7\" is not an integer or out of range".to_owned();
    assert!(lines().contains(&one), "{:?}", lines());
    done(
        from(&["--report", "/nonexistent/report"]),
        1,
        &["--report: /nonexistent/report: No such"],
    );
    // With --verify, the report lists each key once.
    redis.run(&["HSET post:21 like 5"]);
    done(from(&["--report", "rejects", "--verify"]), 1, &["20 bad keys", "20 keys not readable"]);
    assert_eq!(lines().iter().filter(|line| **line == one).count(), 1);
}

/// Layouts for buckets whose field names are complete old keys, and for posts whose members are in
/// several sets.
#[test]
fn old_keys_as_fields_and_sets_in_buckets_are_read() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    let mut pipe = redis::pipe();
    for id in 1..=300u64 {
        let (bucket, key) = (format!("likes:{}", id % 7), format!("user.{id}"));
        pipe.cmd("HSET").arg(bucket).arg(key).arg(3 * id).ignore();
        let (bucket, key) = (format!("all:{}", id / 100), format!("post:{id}:"));
        let pairs = [(format!("{key}like"), id), (format!("{key}read"), 2 * id)];
        pipe.cmd("HSET").arg(bucket).arg(&pairs).ignore();
        for n in 0..4 {
            let members = [10 * id + n, 10 * id + n + 5];
            pipe.cmd("SADD").arg(format!("lkb:{id}:{n}")).arg(&members).ignore();
        }
    }
    pipe.query::<()>(&mut redis.connection()).unwrap();
    redis.run(&[TELLS, "HSET likes:3 usr.5 1"]);
    let old = [
        "buckets key=likes:{id} space=post fields=repost field=user.{id}",
        "buckets key=all:{id} space=post field=post:{id}:{field} per=100",
        "set key=lkb:{id}:{shard} space=liked sum=0..3 count=post.comment",
    ];
    let from = |more: &[&str]| import(folder.path(), redis.port, program.port, more);
    let more = layouts(&old);
    done(from(&more), 1, &["likes:3: field 'usr.5': it does not match user.{id}", "1 bad keys"]);
    redis.run(&["HDEL likes:3 usr.5"]);
    let equal = ["; 0 keys differ; 0 extra rows"];
    done(from(&[&more[..], &["--verify"]].concat()), 0, &equal);
    let row = |id: u64| values(&program, &format!("post:{id}"), &FIELDS);
    let is_set = |id: u64, member: u64| ask(&program, &format!("SISMEMBER liked:{id} {member}"));
    for id in [1, 100, 300u64] {
        let expected = [id, 3 * id, 8, 2 * id].map(|n| n.to_string());
        assert_eq!(row(id), expected);
        let members: Vec<String> = (0..10).map(|n| is_set(id, 10 * id + n)).collect();
        assert_eq!(members, ["1", "1", "1", "1", "0", "1", "1", "1", "1", "0"]);
    }
    // A member leaves one of the sets; the other members of the post remain.
    let options = ["--follow", "--delete-missing", "--until-idle", "3"];
    let child = from(&[&more[..], &options].concat()).spawn().unwrap();
    redis.listens();
    redis.run(&["SREM lkb:7:1 71", "HDEL all:0 post:8:like", "HINCRBY likes:2 user.9 1"]);
    until("the pair is unset", || is_set(7, 71) == "0");
    until("the other pairs are set", || is_set(7, 70) == "1" && is_set(7, 78) == "1");
    until("the counter is updated", || row(7)[2] == "7");
    until("fields follow", || row(8)[0] == "0" && row(9)[1] == "28");
    ended(&child.wait_with_output().unwrap(), 0, &["0 bad keys"]);
    done(from(&[&more[..], &["--only-verify"]].concat()), 0, &equal);
}

#[test]
fn unknown_host_ends_the_import_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&folder.path().join("server"), "no");
    let began = Instant::now();
    let mut command = std::process::Command::new(harness::program());
    command.current_dir(Path::new(folder.path()));
    command.args(["import", "--port", &program.port.to_string()]);
    command.args(["--from", "redis://no-such-host.invalid"]);
    done(command, 1, &["cannot resolve 'no-such-host.invalid'"]);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}
