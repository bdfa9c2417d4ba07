//! `tidemark import --from` and `tidemark export` with a real redis-server.

use crate::beside_redis::redis as start_redis;
use crate::tls::Authority;
use redis::{Connection, cmd};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tidemark_server::config::AuthClients;
use tidemark_tests::{TestServer, eventually};

fn connect(port: u16) -> Connection {
    redis::Client::open(("127.0.0.1", port)).unwrap().get_connection().unwrap()
}

/// Returns the command `tidemark WORDS` with `folder` as its working directory.
fn tidemark(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(harness::program());
    command.current_dir(folder).args(words).env_remove("REDISCLI_AUTH");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
}

/// Builds `import --from redis://127.0.0.1:FROM --port TO ...`.
fn import(folder: &Path, from: u16, to: u16, more: &[&str]) -> Command {
    let (from, to) = (format!("redis://127.0.0.1:{from}"), to.to_string());
    tidemark(folder, &[&["import", "--from", &from, "--port", &to], more].concat())
}

fn done(mut command: Command, words: &[&str]) -> String {
    let output = command.output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    words.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
    said
}

fn fill(theirs: &mut Connection, posts: u64) {
    for from in (1..=posts).step_by(1000) {
        let mut pipe = redis::pipe();
        for id in from..(from + 1000).min(posts + 1) {
            let values = [("like", id as i64), ("read", -(id as i64)), ("comment", 70_000)];
            pipe.cmd("HSET").arg(format!("post:{id}")).arg(&values[..1 + id as usize % 3]).ignore();
            pipe.cmd("SADD").arg(format!("liked:{}", id % 100 + 1)).arg(id).ignore();
        }
        pipe.query::<()>(theirs).unwrap();
    }
}

fn row(connection: &mut Connection, key: &str) -> BTreeMap<String, i64> {
    cmd("HGETALL").arg(key).query(connection).unwrap()
}

#[test]
fn import_copies_what_the_servers_key_patterns_name() {
    let (redis, server) = (start_redis(), TestServer::start());
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let folder = tempfile::tempdir().unwrap();
    fill(&mut theirs, 5000);
    cmd("SET").arg("post:9000:like").arg(12).query::<()>(&mut theirs).unwrap();
    cmd("SET").arg("session:1").arg("foreign").query::<()>(&mut theirs).unwrap();
    // Existing counters stay unless Redis has the same counter.
    cmd("HSET").arg("post:5001").arg("like").arg(3).query::<i64>(&mut ours).unwrap();
    cmd("HSET").arg("post:17").arg("like").arg(3).query::<i64>(&mut ours).unwrap();
    let words = ["5,102 keys", "5,001 rows set, 5,000 flags", "0 bad keys", "0 keys differ"];
    let words = [&words[..], &["1 keys match no pattern (session:1)"]].concat();
    let more = ["--verify", "--allow-extra"];
    done(import(folder.path(), redis.port, server.port(), &more), &words);
    assert!(!folder.path().join("tidemark-import.state").exists(), "the import is complete");
    assert_eq!(row(&mut ours, "post:17")["like"], 17);
    assert_eq!(row(&mut ours, "post:5001")["like"], 3);
    assert_eq!(row(&mut ours, "post:9000")["like"], 12);
    let set: Vec<i64> =
        cmd("SMISMEMBER").arg("liked:1").arg(&[100, 200, 5000, 17]).query(&mut ours).unwrap();
    assert_eq!(set, [1, 1, 1, 0]);
    // Differences and mismatched keys are reported, and the exit status is nonzero.
    cmd("HSET").arg("post:17").arg("like").arg(18).query::<i64>(&mut theirs).unwrap();
    cmd("SADD").arg("liked:1").arg("stranger").query::<i64>(&mut theirs).unwrap();
    cmd("HSET").arg("post:18").arg("comment").arg("many").query::<i64>(&mut theirs).unwrap();
    let more = ["--only-verify", "--report", "differences"];
    let output = import(folder.path(), redis.port, server.port(), &more).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let said = said(&output);
    for word in ["2 keys differ", "1 keys not readable", "post:18: field 'comment'", "1 extra rows"]
    {
        assert!(said.contains(word), "{word}: {said}");
    }
    let report = std::fs::read_to_string(folder.path().join("differences")).unwrap();
    assert!(
        report.contains("post:17: like is 18 on the source and 17 on the server\n"),
        "{report}"
    );
    assert!(report.contains("liked:1: member stranger is not set\n"), "{report}");
    assert!(report.contains("post 5001: like 3 exists only on the server\n"), "{report}");
    assert!(report.contains("post:18: field 'comment'"), "{report}");
}

/// An import that finds no data fails.
#[test]
fn import_of_nothing_fails() {
    let (redis, server) = (start_redis(), TestServer::start());
    let mut theirs = connect(redis.port);
    let folder = tempfile::tempdir().unwrap();
    let fails = |why: &str| {
        let output = import(folder.path(), redis.port, server.port(), &[]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(why), "{}", said(&output));
    };
    fails("nothing was copied: the source has no keys");
    for id in 0..20 {
        cmd("HSET")
            .arg(format!("article:{id}"))
            .arg("like")
            .arg(1)
            .query::<i64>(&mut theirs)
            .unwrap();
    }
    fails("none of 20 keys matches a pattern (post:*");
    let layout = ["--layout", "hash key=article:{id} space=post"];
    done(import(folder.path(), redis.port, server.port(), &layout), &["20 rows set"]);
}

fn run(connection: &mut Connection, lines: &[&str]) {
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        cmd(words[0]).arg(&words[1..]).query::<redis::Value>(connection).unwrap();
    }
}

/// Keys deleted while no import runs appear in no scan. A verification finds their rows, and
/// `--delete-missing` deletes them with the flags of deleted posts.
#[test]
fn deleted_keys_are_found_and_deleted() {
    let (redis, server) = (start_redis(), TestServer::start());
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let folder = tempfile::tempdir().unwrap();
    fill(&mut theirs, 3000);
    // Padded ids are not mistaken for deleted keys.
    run(&mut ours, &["TM.SPACE ALTER post SET padded_ids yes"]);
    run(&mut theirs, &["HSET post:0009000 like 9", "SET post:0009001:read 9"]);
    done(import(folder.path(), redis.port, server.port(), &["--verify"]), &["; 0 extra rows"]);
    run(
        &mut theirs,
        &["DEL post:17", "UNLINK post:18 liked:18", "HDEL post:21 like", "SREM liked:1 100 200"],
    );
    run(&mut theirs, &["HSET post:19 like 0 comment 0 read 0"]);
    run(&mut ours, &["HSET post:8000 like 3"]);
    let more = ["--only-verify", "--report", "differences"];
    let output = import(folder.path(), redis.port, server.port(), &more).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let report = std::fs::read_to_string(folder.path().join("differences")).unwrap();
    for line in [
        "post 17: like 17, comment 70000, read -17 exists only on the server\n",
        "post 18: like 18 exists only on the server\n",
        "post 21: like 21 exists only on the server\n",
        "post 8000: like 3 exists only on the server\n",
    ] {
        assert!(report.contains(line), "{line}: {report}");
    }
    assert_eq!(report.matches("exists only on the server").count(), 4, "{report}");
    // Nothing is deleted without the option.
    done(import(folder.path(), redis.port, server.port(), &[]), &[]);
    assert_eq!(row(&mut ours, "post:17")["like"], 17);
    let more = ["--delete-missing", "--verify"];
    let words = ["4 rows deleted that the source lacks", "; 0 keys differ; 0 extra rows"];
    done(import(folder.path(), redis.port, server.port(), &more), &words);
    for (key, there) in [("post:17", 0), ("post:18", 0), ("post:21", 0), ("post:8000", 0)] {
        assert_eq!(cmd("EXISTS").arg(key).query::<i64>(&mut ours).unwrap(), there, "{key}");
    }
    assert_eq!(row(&mut ours, "post:9000")["like"], 9);
    assert_eq!(row(&mut ours, "post:9001")["read"], 9);
    let is_set = |ours: &mut Connection, key: &str, member: u64| {
        cmd("SISMEMBER").arg(key).arg(member).query::<i64>(ours).unwrap() == 1
    };
    assert!(!is_set(&mut ours, "liked:18", 17), "the post is deleted");
    assert!(is_set(&mut ours, "liked:1", 100), "a scan removed a member");
    done(import(folder.path(), redis.port, server.port(), &["--renew-sets", "--verify"]), &[]);
    assert!(!is_set(&mut ours, "liked:1", 100) && is_set(&mut ours, "liked:1", 300));
}

/// Finds fields deleted from bucket hashes. In one layout a bucket has consecutive ids, in the
/// other layout arbitrary ids.
#[test]
fn deleted_fields_of_buckets_are_found() {
    let (redis, server) = (start_redis(), TestServer::start());
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let folder = tempfile::tempdir().unwrap();
    let mut pipe = redis::pipe();
    for id in 1..=3000u64 {
        pipe.cmd("HSET").arg(format!("likes:{}", id / 1000)).arg(id % 1000).arg(id).ignore();
        pipe.cmd("HSET").arg(format!("reads:{}", id % 7)).arg(id).arg(2 * id).ignore();
    }
    pipe.query::<()>(&mut theirs).unwrap();
    let layouts = [
        "buckets key=likes:{id} space=post fields=like per=1000",
        "buckets key=reads:{id} space=post fields=read",
    ];
    let more: Vec<&str> = layouts.iter().flat_map(|layout| ["--layout", layout]).collect();
    let import = |options: &[&str]| {
        import(folder.path(), redis.port, server.port(), &[&more[..], options].concat())
    };
    done(import(&["--verify"]), &["; 0 extra rows"]);
    run(&mut theirs, &["HDEL likes:2 5", "HDEL reads:0 7", "DEL likes:1"]);
    run(&mut ours, &["HSET post:5000 like 1 comment 2"]);
    let output = import(&["--only-verify", "--report", "differences"]).output().unwrap();
    assert!(said(&output).contains("1,003 extra rows"), "{}", said(&output));
    let report = std::fs::read_to_string(folder.path().join("differences")).unwrap();
    for line in ["post 5000: like 1 ", "post 2005: like 2005 ", "post 7: read 14 ", "post 1000: "] {
        assert!(report.contains(line), "{line}: {report}");
    }
    done(import(&["--delete-missing"]), &[]);
    let now = row(&mut ours, "post:5000");
    assert_eq!((now["like"], now["comment"]), (0, 2), "comments were not in a layout");

    let set = ["SET", "notify-keyspace-events", "KA"];
    cmd("CONFIG").arg(&set).query::<()>(&mut theirs).unwrap();
    let options = ["--layout", layouts[0], "--follow", "--delete-missing", "--until-idle", "3"];
    let folder = tempfile::tempdir().unwrap();
    let running = crate::import_redis::import(folder.path(), redis.port, server.port(), &options);
    let running = { running }.spawn().unwrap();
    eventually("rows of the deleted bucket are gone", || {
        cmd("HGET").arg("post:1005").arg("like").query::<Option<i64>>(&mut ours).unwrap()
            != Some(1005)
    });
    assert_eq!(row(&mut ours, "post:1005")["read"], 2010);
    run(&mut theirs, &["HDEL likes:2 6"]);
    eventually("the deleted field is 0", || row(&mut ours, "post:2006")["like"] == 0);
    assert_eq!(row(&mut ours, "post:2007")["like"], 2007);
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

/// Tests deletions while the import follows: expiry, removed members and fields, and FLUSHALL.
#[test]
fn import_follows_deletions() {
    let (redis, server) = (start_redis(), TestServer::start());
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let folder = tempfile::tempdir().unwrap();
    fill(&mut theirs, 2000);
    run(&mut theirs, &["CONFIG SET notify-keyspace-events K$ghs", "SET post:30:read 7"]);
    let more = ["--follow", "--delete-missing", "--until-idle", "4"];
    let output = import(folder.path(), redis.port, server.port(), &more).output().unwrap();
    let why = "CONFIG SET notify-keyspace-events K$eghsx";
    assert!(!output.status.success() && said(&output).contains(why), "{}", said(&output));
    run(&mut theirs, &["CONFIG SET notify-keyspace-events K$eghsx"]);
    let running = import(folder.path(), redis.port, server.port(), &more).spawn().unwrap();
    let exists =
        |ours: &mut Connection, key: &str| cmd("EXISTS").arg(key).query::<i64>(ours).unwrap() == 1;
    let is_set = |ours: &mut Connection, key: &str, member: u64| {
        cmd("SISMEMBER").arg(key).arg(member).query::<i64>(ours).unwrap() == 1
    };
    eventually("all keys are copied", || {
        exists(&mut ours, "post:2000") && exists(&mut ours, "post:1")
    });
    eventually("all keys are copied", || is_set(&mut ours, "liked:1", 100));
    run(
        &mut theirs,
        &[
            "PEXPIRE post:17 50",
            "SREM liked:1 100",
            "DEL liked:2",
            "SPOP liked:3 100",
            "DEL post:30",
        ],
    );
    eventually("it expired", || !exists(&mut ours, "post:17"));
    eventually("members are removed", || {
        [("liked:1", 100), ("liked:2", 1), ("liked:3", 2)]
            .iter()
            .all(|(key, member)| !is_set(&mut ours, key, *member))
    });
    assert!(is_set(&mut ours, "liked:1", 200), "the other members are set again");
    eventually("fields removed from hashes with keys of single counters", || {
        row(&mut ours, "post:30")["like"] == 0 && row(&mut ours, "post:30")["read"] == 7
    });
    run(&mut theirs, &["FLUSHALL", "HSET post:7 like 70"]);
    eventually("all other rows are deleted", || {
        !exists(&mut ours, "post:1") && !exists(&mut ours, "post:30")
    });
    eventually("a later key is copied", || row(&mut ours, "post:7").get("like") == Some(&70));
    let output = running.wait_with_output().unwrap();
    let text = said(&output);
    assert!(
        output.status.success() && text.contains("all keys of the source were deleted"),
        "{text}"
    );
}

/// A set that is deleted while no import runs appears in no scan. After the set is recreated, the
/// import leaves only the new members.
#[test]
fn renewed_sets_lose_members_from_before_the_import() {
    let (redis, server) = (start_redis(), TestServer::start());
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let folder = tempfile::tempdir().unwrap();
    run(
        &mut theirs,
        &[
            "CONFIG SET notify-keyspace-events KA",
            "SADD liked:1 7 8",
            "SADD liked:2 7",
            "SADD liked:3 7",
        ],
    );
    done(import(folder.path(), redis.port, server.port(), &[]), &["4 flags"]);
    run(&mut theirs, &["DEL liked:1", "SREM liked:2 7", "SADD liked:2 8"]);
    let more = ["--follow", "--renew-sets", "--until-idle", "3"];
    let mut running = import(folder.path(), redis.port, server.port(), &more).spawn().unwrap();
    let mut text = BufReader::new(running.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("following changes") {
        line.clear();
        assert!(text.read_line(&mut line).unwrap() > 0, "the import has exited");
    }
    run(&mut theirs, &["SADD liked:1 9", "SADD liked:3 9"]);
    let members = |ours: &mut Connection, key: &str| -> Vec<i64> {
        cmd("SMISMEMBER").arg(key).arg(&[7, 8, 9]).query(ours).unwrap()
    };
    eventually("new members are copied", || {
        members(&mut ours, "liked:1") == [0, 0, 1] && members(&mut ours, "liked:3") == [1, 0, 1]
    });
    assert_eq!(members(&mut ours, "liked:2"), [0, 1, 0]);
    let mut rest = String::new();
    text.read_to_string(&mut rest).unwrap();
    assert!(running.wait().unwrap().success(), "{rest}");
}

/// Imports layouts of older applications, which redis-server and Lua create.
#[test]
fn import_reads_older_layouts() {
    let (redis, server) = (start_redis(), TestServer::start());
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let folder = tempfile::tempdir().unwrap();
    let mut pipe = redis::pipe();
    for id in 1..=3000u64 {
        pipe.cmd("HSET").arg(format!("likes:{}", id / 1000)).arg(id % 1000).arg(id * 3).ignore();
        pipe.cmd("SET").arg(format!("reads:{id}")).arg(id * 7).ignore();
        pipe.cmd("HSET").arg("comments").arg(id).arg(id + 1).ignore();
    }
    for id in 1..=200u64 {
        for bit in [0, 7, 8, id, 600_000 + id] {
            pipe.cmd("SETBIT").arg(format!("likers:{id}")).arg(bit).arg(1).ignore();
        }
        let packed = "redis.call('SET', KEYS[1], struct.pack('<I4i2', ARGV[1], -5))
            redis.call('SET', KEYS[2], cmsgpack.pack({follower = tonumber(ARGV[1]), post = 9}))";
        let keys = [format!("s:{id}"), format!("m:{id}")];
        pipe.cmd("EVAL").arg(packed).arg(2).arg(&keys).arg(id * 1000).ignore();
    }
    pipe.query::<()>(&mut theirs).unwrap();
    let layouts = [
        "buckets key=likes:{id} space=post fields=like per=1000",
        "string key=reads:{id} space=post fields=read",
        "buckets key=comments space=post fields=comment",
        "bits key=likers:{id} space=liked count=post.repost",
        "string key=m:{id} space=user fields=follower,post pack=msgpack",
    ];
    let more: Vec<&str> = layouts.iter().flat_map(|layout| ["--layout", layout]).collect();
    let more = [&more[..], &["--verify"]].concat();
    done(import(folder.path(), redis.port, server.port(), &more), &["0 bad keys", "0 keys differ"]);
    for id in [1, 999, 1000, 3000u64] {
        let row = row(&mut ours, &format!("post:{id}"));
        assert_eq!((row["like"], row["read"]), (id as i64 * 3, id as i64 * 7));
        assert_eq!(row["comment"], id as i64 + 1);
        // The field is the BITCOUNT of the post's bitmap, if the post has a bitmap.
        assert_eq!(row["repost"], if id <= 200 { 5 } else { 0 });
    }
    for id in [1u64, 200] {
        let members = [0, 7, 8, id, 600_000 + id, 9 + id];
        let set: Vec<i64> =
            cmd("SMISMEMBER").arg(format!("liked:{id}")).arg(&members).query(&mut ours).unwrap();
        assert_eq!(set, [1, 1, 1, 1, 1, 0], "{id}");
        let user = row(&mut ours, &format!("user:{id}"));
        assert_eq!((user["follower"], user["post"]), (id as i64 * 1000, 9));
    }
    let layout = "string key=s:{id} space=user fields=follower,following pack=struct:<I4i2";
    done(import(folder.path(), redis.port, server.port(), &["--layout", layout, "--verify"]), &[]);
    assert_eq!(row(&mut ours, "user:7")["following"], -5);
    // Refuse layouts that name an unknown space, field or kind.
    for (layout, why) in [
        ("hash key=post:{id} space=nope", "no such counter space 'nope'; the server has: post"),
        (
            "string key=r:{id} space=post fields=nope",
            "no such field 'nope' in the space 'post'; it has: like, repost",
        ),
        ("zset key=r:{id} space=post", "expected hash, string, set, bits or buckets"),
    ] {
        let output =
            import(folder.path(), redis.port, server.port(), &["--layout", layout]).output();
        let output = output.unwrap();
        assert!(!output.status.success() && said(&output).contains(why), "{}", said(&output));
    }
}

fn durable_redis(folder: &Path, port: u16) -> Child {
    let child = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--save", "", "--appendonly", "yes", "--dir"])
        .arg(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("redis-server answers", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
            && cmd("PING").query::<String>(&mut connect(port)).is_ok_and(|pong| pong == "PONG")
    });
    child
}

/// Kills the import twice, and then redis-server, which restarts with another key order. Both sides
/// must be equal at the end.
#[test]
fn import_goes_on_after_kills_of_either_side() {
    let folder = tempfile::tempdir().unwrap();
    let data = tempfile::tempdir().unwrap();
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let mut redis = durable_redis(data.path(), port);
    let server = TestServer::start();
    fill(&mut connect(port), 30_000);
    let state = folder.path().join("tidemark-import.state");
    let keys = || {
        let text = std::fs::read_to_string(&state).unwrap_or_default();
        let text = text.split("\"keys\": ").nth(1).map(str::to_owned).unwrap_or_default();
        text.split(',').next().and_then(|keys| keys.parse::<u64>().ok()).unwrap_or(0)
    };
    let slow = ["--rate", "3000"];
    let mut before = 0;
    for _ in 0..2 {
        let mut running = import(folder.path(), port, server.port(), &slow).spawn().unwrap();
        eventually("the state has advanced", || keys() > before);
        running.kill().unwrap();
        running.wait().unwrap();
        before = keys();
    }
    let running =
        import(folder.path(), port, server.port(), &["--rate", "3000", "--verify"]).spawn();
    eventually("the state has advanced again", || keys() > before);
    redis.kill().unwrap();
    redis.wait().unwrap();
    let mut redis = durable_redis(data.path(), port);
    let output = running.unwrap().wait_with_output().unwrap();
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("retrying") && text.contains("; 0 keys differ"), "{text}");
    assert!(!state.exists());
    // The state of another import is refused.
    let other = "{\"import\":[\"redis://other:1\"],\"places\":[]}";
    std::fs::write(&state, other).unwrap();
    let output = import(folder.path(), port, server.port(), &[]).output().unwrap();
    assert!(!output.status.success() && said(&output).contains("belongs to another import"));
    redis.kill().unwrap();
    redis.wait().unwrap();
    // Without a reachable server the command fails with an error.
    std::fs::remove_file(&state).unwrap();
    let output = import(folder.path(), port, server.port(), &["--retry", "1"]).output().unwrap();
    let text = said(&output);
    assert!(!output.status.success() && text.contains("refused"), "{text}");
}

/// Writes continue while the import copies and follows; afterwards both sides become equal. Rows
/// are deleted as well; removed members are only counted.
#[test]
fn import_follows_changes_until_both_are_equal() {
    let (redis, server) = (start_redis(), TestServer::start());
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let folder = tempfile::tempdir().unwrap();
    fill(&mut theirs, 5000);
    let output = import(folder.path(), redis.port, server.port(), &["--follow"]).output().unwrap();
    let why = "CONFIG SET notify-keyspace-events K$eghsx";
    assert!(!output.status.success() && said(&output).contains(why), "{}", said(&output));
    let set = ["SET", "notify-keyspace-events", "K$eghsx"];
    cmd("CONFIG").arg(&set).query::<()>(&mut theirs).unwrap();
    let port = redis.port;
    let more = ["--follow", "--until-idle", "2", "--rate", "4000", "--verify"];
    let running = import(folder.path(), port, server.port(), &more).spawn().unwrap();
    // The import copies during the first writes and follows the source during the last writes.
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..200 {
        let mut pipe = redis::pipe();
        for _ in 0..50 {
            let id = random.u64(1..8000);
            pipe.cmd("HINCRBY").arg(format!("post:{id}")).arg("like").arg(1).ignore();
            pipe.cmd("SADD").arg(format!("liked:{id}")).arg(random.u64(..100)).ignore();
            pipe.cmd("INCR").arg(format!("post:{}:read", 10_000 + id)).ignore();
        }
        pipe.cmd("DEL").arg(format!("post:{}", random.u64(1..8000))).ignore();
        pipe.query::<()>(&mut theirs).unwrap();
        // Give the import time to read.
        std::thread::sleep(Duration::from_millis(20));
    }
    cmd("DEL").arg("post:17").query::<i64>(&mut theirs).unwrap();
    cmd("SREM").arg("liked:1").arg(&[100, 200]).query::<i64>(&mut theirs).unwrap();
    let output = running.wait_with_output().unwrap();
    let text = said(&output);
    assert!(output.status.success() && text.contains("; 0 keys differ"), "{text}");
    assert!(text.contains("1 removals of members not copied"), "{text}");
    let there: i64 = cmd("EXISTS").arg("post:17").query(&mut ours).unwrap();
    assert_eq!(there, 0, "the key was deleted");
}

/// Imports with a password, from another database and over TLS, and checks the error texts.
#[test]
fn import_logs_in_at_the_source() {
    let redis = start_redis();
    let authority = Authority::new();
    authority.sign("server");
    let settings = authority.settings("server", AuthClients::No);
    let tls_port = settings.port;
    let server = TestServer::with(|config| config.tls = settings);
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let folder = tempfile::tempdir().unwrap();
    cmd("SELECT").arg(3).query::<()>(&mut theirs).unwrap();
    cmd("HSET").arg("post:1").arg("like").arg(5).query::<i64>(&mut theirs).unwrap();
    let user = ["SETUSER", "loader", "on", ">p@ss", "~*", "+@read", "+info", "+select", "+scan"];
    cmd("ACL").arg(&user).query::<()>(&mut theirs).unwrap();
    let to = server.port().to_string();
    let from = |url: &str| {
        let mut command = tidemark(folder.path(), &["import", "--port", &to, "--retry", "0"]);
        command.args(["--from", url]);
        command
    };
    let url = format!("redis://loader:p%40ss@127.0.0.1:{}/3", redis.port);
    done(from(&url), &["1 rows set"]);
    assert_eq!(row(&mut ours, "post:1")["like"], 5);
    let wrong = format!("redis://loader:wrong@127.0.0.1:{}/3", redis.port);
    // Permanent errors are not retried, regardless of --retry.
    let fails_at_once = |mut command: Command, why: &str| {
        let started = Instant::now();
        let output = command.args(["--retry", "60"]).output().unwrap();
        let text = said(&output);
        assert!(!output.status.success() && text.contains(why), "{text}");
        assert!(!text.contains("wrong@") && !text.contains("retrying"), "{text}");
        assert!(started.elapsed() < Duration::from_secs(20), "{text}");
    };
    let from_again = |url: &str| tidemark(folder.path(), &["import", "--port", &to, "--from", url]);
    fails_at_once(from_again(&wrong), "WRONGPASS");
    // Use a password from the environment, then a user without the right to read.
    let without = format!("redis://loader@127.0.0.1:{}/3", redis.port);
    let mut command = from(&without);
    command.env("TIDEMARK_SOURCE_PASSWORD", "p@ss");
    done(command, &["1 rows set"]);
    fails_at_once(from_again(&without), "WRONGPASS");
    cmd("ACL").arg(&["SETUSER", "loader", "-hgetall"]).query::<()>(&mut theirs).unwrap();
    fails_at_once(from_again(&url), "NOPERM");
    cmd("CONFIG").arg(&["SET", "requirepass", "p@ss"]).query::<()>(&mut theirs).unwrap();
    let nobody = format!("redis://127.0.0.1:{}/3", redis.port);
    fails_at_once(from_again(&nobody), "or set TIDEMARK_SOURCE_PASSWORD");
    // Imports from one Tidemark server into another over TLS.
    let second = TestServer::start();
    let url = format!("rediss://127.0.0.1:{tls_port}");
    let ca = authority.path("ca.pem");
    let to = second.port().to_string();
    let words = ["import", "--from", &url, "--from-cacert", ca.to_str().unwrap(), "--port", &to];
    let layout = ["--layout", "hash key=post:{id} space=post"];
    done(tidemark(folder.path(), &[&words[..], &layout].concat()), &["1 rows set"]);
    assert_eq!(row(&mut second.connection(), "post:1")["like"], 5);
}

/// Export to CSV, JSON lines and Redis, and back, preserves the data.
#[test]
fn export_and_import_are_inverse() {
    let (redis, server, second) = (start_redis(), TestServer::start(), TestServer::start());
    let (mut ours, mut copy) = (server.connection(), second.connection());
    let folder = tempfile::tempdir().unwrap();
    let wide = [0, 1, -1, i64::MAX, i64::MIN];
    for id in 0..2500u64 {
        let values = [("like", wide[id as usize % 5]), ("read", id as i64)];
        let id = if id == 0 { u64::MAX } else { id };
        cmd("HSET").arg(format!("post:{id}")).arg(&values).query::<i64>(&mut ours).unwrap();
    }
    let [from, to] = [&server, &second].map(|server| server.port().to_string());
    let export = ["export", "--port", &from];
    for (format, file) in [("csv", "rows.csv"), ("jsonl", "rows.jsonl")] {
        let more = ["--format", format, "-o", file];
        done(tidemark(folder.path(), &[&export[..], &more].concat()), &["2,500 rows"]);
        done(tidemark(folder.path(), &["import", "--port", &to, file]), &["2,500 rows set"]);
        for id in [1, 2, 3, 4, 2499, u64::MAX] {
            let key = format!("post:{id}");
            assert_eq!(row(&mut copy, &key), row(&mut ours, &key));
            cmd("DEL").arg(&key).query::<i64>(&mut copy).unwrap();
        }
    }
    let url = format!("redis://127.0.0.1:{}", redis.port);
    let more = ["--to", &url, "--row-keys", "p:{id}"];
    done(tidemark(folder.path(), &[&export[..], &more].concat()), &[]);
    let layout = ["--layout", "hash key=p:{id} space=post", "--only-verify"];
    done(
        import(folder.path(), redis.port, server.port(), &layout),
        &["2,500 rows", "0 keys differ"],
    );
    let output = tidemark(folder.path(), &[&export[..], &["--space", "liked"]].concat()).output();
    assert!(said(&output.unwrap()).contains("a filter cannot list its members"));
}

/// A post may have counters in a hash and in separate keys, as the default patterns allow. Neither
/// form overwrites the other, in any order of SCAN and after later changes to the hash.
#[test]
fn hash_and_keys_of_single_counters_make_one_row() {
    let (redis, server) = (start_redis(), TestServer::start());
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let folder = tempfile::tempdir().unwrap();
    let mut pipe = redis::pipe();
    for id in 1..=2000u64 {
        pipe.cmd("HSET").arg(format!("post:{id}")).arg("like").arg(id).ignore();
        pipe.cmd("SET").arg(format!("post:{id}:read")).arg(2 * id).ignore();
    }
    pipe.query::<()>(&mut theirs).unwrap();
    let is_right = |ours: &mut Connection, id: u64, more: i64| {
        let row = row(ours, &format!("post:{id}"));
        (row["like"], row["read"]) == (id as i64 + more, 2 * id as i64)
    };
    done(import(folder.path(), redis.port, server.port(), &["--verify"]), &["0 keys differ"]);
    assert_eq!((1..=2000).filter(|id| !is_right(&mut ours, *id, 0)).count(), 0);

    cmd("CONFIG")
        .arg(&["SET", "notify-keyspace-events", "K$eghsx"])
        .query::<()>(&mut theirs)
        .unwrap();
    let more = ["--follow", "--until-idle", "3"];
    let follows = import(folder.path(), redis.port, server.port(), &more).spawn().unwrap();
    eventually("it listens", || cmd("PUBSUB").arg("NUMPAT").query::<i64>(&mut theirs).unwrap() > 0);
    let mut pipe = redis::pipe();
    (1..=2000u64).for_each(|id| {
        pipe.cmd("HINCRBY").arg(format!("post:{id}")).arg("like").arg(1).ignore();
    });
    pipe.cmd("DEL").arg("post:7").ignore().query::<()>(&mut theirs).unwrap();
    eventually("the changes are copied", || {
        (1..=2000).filter(|id| *id != 7).all(|id| is_right(&mut ours, id, 1))
    });
    assert_eq!(row(&mut ours, "post:7")["read"], 14, "the key still exists");
    let output = follows.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

/// Dropped fields are not exported.
#[test]
fn dropped_fields_are_in_no_export() {
    let (redis, server, second) = (start_redis(), TestServer::start(), TestServer::start());
    let (mut theirs, mut ours) = (connect(redis.port), server.connection());
    let folder = tempfile::tempdir().unwrap();
    for line in [
        "HSET post:1 like 1 repost 2 comment 3 read 4",
        "TM.VIEW DROP home",
        "TM.ACTION DROP repost",
        "TM.SPACE ALTER post DROP repost",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut ours).unwrap();
    }
    let [from, to] = [&server, &second].map(|server| server.port().to_string());
    let output = tidemark(folder.path(), &["export", "--port", &from]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "id,like,comment,read\n1,1,3,4\n");
    let url = format!("redis://127.0.0.1:{}", redis.port);
    done(tidemark(folder.path(), &["export", "--port", &from, "--to", &url]), &[]);
    let here = BTreeMap::from([("like", 1), ("comment", 3), ("read", 4)]);
    let here: BTreeMap<String, i64> = here.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    assert_eq!(row(&mut theirs, "post:1"), here);
    done(import(folder.path(), redis.port, server.port(), &["--verify"]), &["0 keys differ"]);
    std::fs::write(folder.path().join("rows.csv"), &output.stdout).unwrap();
    done(tidemark(folder.path(), &["import", "--port", &to, "rows.csv"]), &["1 rows set"]);
    assert_eq!(row(&mut second.connection(), "post:1")["comment"], 3);
}

/// Imports flags and events as JSON lines. Invalid lines are reported by line number.
#[test]
fn json_lines_are_rows_flags_or_events() {
    let server = TestServer::start();
    let mut ours = server.connection();
    let folder = tempfile::tempdir().unwrap();
    let port = server.port().to_string();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        let more: &[&str] = if name == "flags" { &["--space", "liked"] } else { &[] };
        let words = [&["import", "--port", &port, "--action", "like", name], more].concat();
        said(&tidemark(folder.path(), &words).output().unwrap())
    };
    let text =
        file("rows", "{\"id\": 1, \"like\": 5}\n{\"id\": 2}\n\n{\"read\": 7, \"id\": \"2\"}\nx\n");
    assert!(text.contains("2 rows set; 2 bad lines"), "{text}");
    assert!(text.contains("rows, line 2: the line has no counters"), "{text}");
    assert!(text.contains("rows, line 5: not a JSON object"), "{text}");
    let text = file("flags", "{\"id\": 1, \"member\": 18446744073709551616}\n");
    assert!(text.contains("\"member\" is not a 64-bit integer"), "{text}");
    let text = file("flags", "{\"id\": 1, \"member\": \"a\"}\n{\"id\": 1, \"member\": 7}\n");
    assert!(text.contains("2 flags; 2 changed"), "{text}");
    let text = file("events", "{\"user\": 8, \"id\": 1}\n{\"user\": 8, \"id\": 1}\n");
    assert!(text.contains("2 events; 1 changed, 1 repeated"), "{text}");
    assert_eq!(row(&mut ours, "post:1")["like"], 6);
    let set: Vec<i64> =
        cmd("SMISMEMBER").arg("liked:1").arg(&["a", "7", "8", "9"]).query(&mut ours).unwrap();
    assert_eq!(set, [1, 1, 1, 0]);
}
