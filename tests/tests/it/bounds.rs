//! Limits of an existence space that clients could otherwise exceed. Each limit is tested over the
//! wire: the error, the metric, and that the data is unchanged.

use super::cold::call;
use redis::{Connection, Value, cmd};
use std::collections::HashMap;
use tidemark_server::config::LedgerMode;
use tidemark_tests::TestServer;

/// Returns a number that TM.SPACE LIST shows for the space `liked`.
fn figure(c: &mut Connection, name: &str) -> u64 {
    figure_of(c, "liked", name)
}

fn figure_of(c: &mut Connection, space: &str, name: &str) -> u64 {
    let spaces: Vec<HashMap<String, Value>> = call(c, "TM.SPACE LIST").unwrap();
    let found = spaces.into_iter().find(|s| s["name"] == Value::BulkString(space.into())).unwrap();
    redis::from_redis_value(found[name].clone()).unwrap()
}

fn in_info(c: &mut Connection, field: &str) -> u64 {
    let info: String = call(c, "INFO").unwrap();
    let line = info.lines().find(|line| line.starts_with("existence_liked:")).unwrap();
    let value = line.split([':', ',']).find_map(|pair| pair.strip_prefix(&format!("{field}=")));
    value.unwrap_or_else(|| panic!("no {field} in {line}")).parse().unwrap()
}

/// Returns the likes of a post and the member's own flag, from a page.
fn page(c: &mut Connection, member: u64, id: u64) -> (i64, Option<i64>) {
    let rows: Vec<Vec<Option<i64>>> = call(c, &format!("FEED.GET home {member} {id}")).unwrap();
    (rows[0][0].unwrap(), rows[0][4])
}

/// Adds enough ids for the space to learn the normal range, so that the space stores no id as an
/// outlier (an id far above all tables).
fn settle(c: &mut Connection, space: &str) {
    let ids: Vec<u64> = (1000..1200).collect();
    cmd("PH.ADD").arg(space).arg(1_000_000).arg(ids).query::<()>(c).unwrap();
}

#[test]
fn unlike_beyond_max_revoked_changes_no_flag_or_counter() {
    // Only spaces without a ledger have this limit.
    let server = TestServer::with(|config| {
        let liked = &mut config.existence[0];
        (liked.max_unset, liked.ledger) = (20, LedgerMode::Off);
    });
    let c = &mut server.connection();
    settle(c, "liked");
    for member in 0..50 {
        assert_eq!(call::<Vec<i64>>(c, &format!("FEED.ACT like {member} 1001")).unwrap(), [1]);
    }
    for member in 0..20 {
        assert_eq!(call::<Vec<i64>>(c, &format!("FEED.UNDO like {member} 1001")).unwrap(), [1]);
    }
    assert_eq!((figure(c, "most_revoked"), in_info(c, "most_revoked")), (20, 20));
    let text = "too many unset pairs in this table (max_unset)";
    for command in [
        "FEED.UNDO like 20 1001",
        "PH.DEL liked 20 1001",
        "SREM liked:1001 20",
        "CF.DEL liked:1001 20",
    ] {
        let error = call::<Value>(c, command).and_then(Value::extract_error).unwrap_err();
        assert!(
            error.code() == Some("OOM") && error.to_string().contains(text),
            "{command}: {error}"
        );
        assert_eq!(page(c, 20, 1001), (30, Some(1)), "{command}");
    }
    // SMOVE does not add a member to the destination if it cannot remove the member from the
    // source.
    let error = call::<Value>(c, "SMOVE liked:1001 liked:1002 20")
        .and_then(Value::extract_error)
        .unwrap_err();
    assert!(error.code() == Some("OOM") && error.to_string().contains(text), "{error}");
    assert_eq!(call::<Vec<i64>>(c, "PH.EXISTS liked 20 1001 1002").unwrap(), [1, 0]);
    // A pair may be removed again, and adding a removed pair frees its entry.
    assert_eq!(call::<Vec<i64>>(c, "FEED.UNDO like 3 1001").unwrap(), [0]);
    assert_eq!(call::<Vec<i64>>(c, "FEED.ACT like 3 1001").unwrap(), [1]);
    assert_eq!(figure(c, "most_revoked"), 19);
    assert_eq!(call::<Vec<i64>>(c, "FEED.UNDO like 20 1001").unwrap(), [1]);
    assert_eq!(page(c, 20, 1001), (30, Some(0)));
    // The limit applies per table.
    call::<()>(c, "TM.ROLL liked").unwrap();
    assert_eq!(call::<Vec<i64>>(c, "FEED.ACT like 7 2001").unwrap(), [1]);
    assert_eq!(call::<Vec<i64>>(c, "FEED.UNDO like 7 2001").unwrap(), [1]);
    // The limit survives a restart from a snapshot. (After a replay of the log alone, removed pairs
    // were never set and need no entry.)
    call::<()>(c, "SAVE").unwrap();
    let server = server.restart();
    let c = &mut server.connection();
    assert_eq!(figure(c, "most_revoked"), 20);
    assert_eq!(
        (page(c, 20, 1001), page(c, 3, 1001), page(c, 7, 2001)),
        ((30, Some(0)), (30, Some(1)), (0, Some(0)))
    );
    assert!(call::<Vec<i64>>(c, "FEED.UNDO like 21 1001").unwrap_err().to_string().contains(text));
}

#[test]
fn ids_beyond_max_ahead_are_refused_or_become_outliers() {
    let server = TestServer::with(|config| {
        config.existence[0].max_ahead = 1 << 20;
    });
    let c = &mut server.connection();
    settle(c, "liked");
    settle(c, "reposted");
    assert_eq!(in_info(c, "outlier_pairs"), 0);
    for id in [u64::MAX, 1 << 63, 1200 + (1 << 20)] {
        for command in [
            format!("PH.ADD liked 7 {id}"),
            format!("FEED.ACT like 7 {id}"),
            format!("BF.ADD liked:{id} 7"),
        ] {
            let error =
                call::<Value>(c, &command).and_then(Value::extract_error).unwrap_err().to_string();
            assert!(error.contains("key too big"), "{command}: {error}");
        }
        assert_eq!(page(c, 7, id), (0, Some(0)), "neither flag nor counter");
    }
    assert_eq!(call::<Vec<i64>>(c, &format!("PH.ADD liked 7 {}", 1100 + (1 << 20))).unwrap(), [1]);
    // Without max_ahead, distant ids are stored exactly as outliers and do not move the range.
    let mut rng = fastrand::Rng::with_seed(1);
    let mut far = vec![u64::MAX];
    let mut pipe = redis::pipe();
    for i in 0..500 {
        pipe.cmd("PH.ADD").arg("reposted").arg(7).arg(far[i]);
        far.push(rng.u64(1 << 50..));
        // Outliers must be few among many normal ids; otherwise they would define the range.
        pipe.cmd("PH.ADD")
            .arg("reposted")
            .arg(8 + i)
            .arg((1000..1020).collect::<Vec<u64>>())
            .ignore();
    }
    assert_eq!(pipe.query::<Vec<Vec<i64>>>(c).unwrap(), vec![[1]; 500]);
    assert_eq!(figure_of(c, "reposted", "outlier_pairs"), 500);
    let server = server.restart();
    let c = &mut server.connection();
    let held: Vec<i64> = cmd("PH.EXISTS").arg("reposted").arg(7).arg(&far[..500]).query(c).unwrap();
    assert_eq!(held, [1; 500]);
    assert_eq!(
        call::<Vec<i64>>(c, &format!("PH.EXISTS reposted 1000000 {} 1100", u64::MAX)).unwrap(),
        [0, 1]
    );
    assert_eq!(
        call::<Vec<i64>>(c, &format!("PH.EXISTS reposted 8 {} 1100", u64::MAX)).unwrap(),
        [0, 0]
    );
    assert_eq!(call::<Vec<i64>>(c, "PH.ADD reposted 7 1201").unwrap(), [1], "new ids are accepted");
}

/// A member is hashed for each id, so a member of several megabytes with a thousand ids would take
/// seconds.
#[test]
fn a_long_member_comes_with_few_ids() {
    let server = TestServer::start();
    let c = &mut server.connection();
    let member = "m".repeat(8192);
    let ids: Vec<u64> = (1000..1513).collect();
    let ask = |c: &mut Connection, command: &str, name: &str, member: &str, ids: &[u64]| {
        cmd(command).arg(name).arg(member).arg(ids).query::<Value>(c)
    };
    for (command, name) in [
        ("PH.ADD", "read"),
        ("PH.EXISTS", "read"),
        ("PH.DEL", "read"),
        ("FEED.ACT", "read"),
        ("FEED.UNDO", "read"),
        ("FEED.GET", "home"),
    ] {
        let error = ask(c, command, name, &member, &ids).unwrap_err().to_string();
        assert!(
            error.contains("of 8192 bytes is allowed with at most 512 ids"),
            "{command}: {error}"
        );
        ask(c, command, name, &member, &ids[..512]).unwrap();
        ask(c, command, name, &member[..1024], &ids).unwrap();
    }
    // The limit does not apply to a single id, or to several members of one id.
    let member = "m".repeat(5 << 20);
    ask(c, "PH.ADD", "read", &member, &ids[..1]).unwrap();
    let mut page = cmd("FEED.GET");
    page.arg("home").arg(&member).arg(ids[0]).arg("BINARY").query::<Value>(c).unwrap();
    let error = ask(c, "PH.ADD", "read", &member, &ids[..2]).unwrap_err().to_string();
    assert!(error.contains("is allowed with at most 1 ids"), "{error}");
    let added = cmd("SADD").arg("read:1000").arg(&member).arg("2").query::<i64>(c).unwrap();
    assert_eq!(added, 1, "one pair was already set");
}
