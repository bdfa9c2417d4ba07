//! Cold rows on a full or corrupted disk.

use super::cold::{
    FIELDS, Truth, call, damage_file, fill, fill_from, info, likes, lines, small, tight, verify,
    was_read_ahead,
};
use redis::{Connection, Value};
use std::collections::BTreeMap;
use tidemark_tests::TestServer;

/// Cold files have their own size limit, which simulates a disk that fills up during a spill or a
/// merge while the log still has space.
#[test]
fn rows_survive_and_spilling_resumes_after_cold_files_are_full() {
    let server = TestServer::with(|config| {
        tight(config);
        // The limit has space for two and a half files.
        config.spill.max_bytes = 160_000;
    });
    let mut connection = server.connection();
    let mut truth = Truth::new();
    let mut next = 80_000;
    fill(&mut connection, next, &mut truth);
    let mut add = |connection: &mut Connection, truth: &mut Truth| -> redis::RedisResult<()> {
        let (id, row) =
            (1_000_000 + next * 37, [next as i64 % 50, 3, next as i64 % 41, next as i64 % 5000]);
        let mut command = redis::cmd("CNT.SET");
        command.arg("post").arg(id);
        for (field, value) in FIELDS.iter().zip(row) {
            command.arg(field).arg(value);
        }
        command.exec(connection)?;
        truth.insert(id, row);
        next += 1;
        Ok(())
    };
    let refused = loop {
        if let Err(error) = add(&mut connection, &mut truth) {
            break error.to_string();
        }
        assert!(truth.len() < 400_000, "no write was rejected");
    };
    assert!(refused.contains("OOM") && refused.contains("memory limit"), "{refused}");
    let rows = info(&mut connection, "cold_rows");
    assert!(rows > 10_000 && info(&mut connection, "spill_failures") > 0, "{rows}");
    let text: String = redis::cmd("INFO").arg("cold").query(&mut connection).unwrap();
    assert!(text.contains("spill_last_status:err") && text.contains("max_disk"), "{text}");
    // A failed spill leaves no file.
    let files = || {
        let names =
            std::fs::read_dir(server.folder()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().contains(".tcold")).count() as u64
    };
    tidemark_tests::eventually("files were left over", || {
        files() == info(&mut connection, "cold_files")
    });
    // Old rows can still be read, changed and deleted.
    verify(&server, &truth, &[]);
    let ids: Vec<u64> = truth.keys().copied().collect();
    // Returns the number of rows whose change was refused; a change may need more memory than the
    // limit has left.
    let some = |truth: &mut Truth, connection: &mut Connection| {
        let mut refused = 0;
        for &id in ids.iter().step_by(97) {
            match redis::cmd("HINCRBY")
                .arg(format!("post:{id}"))
                .arg("like")
                .arg(1)
                .query::<i64>(connection)
            {
                Ok(_) => truth.get_mut(&id).unwrap()[0] += 1,
                Err(error) => {
                    assert!(error.to_string().contains("OOM"), "{error}");
                    refused += 1;
                }
            }
        }
        refused
    };
    let refused = some(&mut truth, &mut connection);
    assert!(refused < ids.len() / 97 / 10, "{refused} of {}", ids.len() / 97);
    verify(&server, &truth, &[]);
    let killed = server.killed();
    verify(&killed, &truth, &[]);
    // Leave no space for a merge either.
    let _: Value = call(&mut connection, "CONFIG SET spill.max_disk 1").unwrap();
    let told = call::<u64>(&mut connection, "TM.SPILL post 1").unwrap_err().to_string();
    assert!(told.contains("disk full") && told.contains("max_disk"), "{told}");
    verify(&server, &truth, &[]);
    let _: Value = call(&mut connection, "CONFIG SET spill.max_disk 0").unwrap();
    tidemark_tests::eventually("spilling works", || {
        let text: String = redis::cmd("INFO").arg("cold").query(&mut connection).unwrap();
        text.contains("spill_last_status:ok")
    });
    add(&mut connection, &mut truth).unwrap();
    let more = truth.len() as u64;
    fill_from(&mut connection, more, 50_000, &mut truth);
    tidemark_tests::eventually("spilling works again", || {
        info(&mut connection, "cold_rows") > rows + 10_000
    });
    assert_eq!(some(&mut truth, &mut connection), 0, "space is available again");
    verify(&server, &truth, &[]);
    let text: String = redis::cmd("INFO").arg("cold").query(&mut connection).unwrap();
    assert!(text.contains("spill_last_status:ok"), "{text}");
    verify(&server.restart(), &truth, &[]);
}

/// A corrupted block must not read as zeros: requests that need the block fail, and all other
/// requests succeed.
#[test]
fn a_spoiled_block_is_an_error_and_never_a_no() {
    let server = TestServer::with(|config| {
        small(config);
        // Use a tiny cache, so that blocks are read from disk.
        config.spill.cache_bytes = 4096;
    });
    let mut connection = server.connection();
    let ids: Vec<u64> = (0..12_000).map(|i| 1_000_000 + i * 37).collect();
    for page in ids.chunks(500) {
        redis::cmd("FEED.ACT")
            .arg("like")
            .arg(7)
            .arg(page)
            .query::<Value>(&mut connection)
            .unwrap();
    }
    let _: u64 = call(&mut connection, "TM.SPILL post 4").unwrap();
    for entry in std::fs::read_dir(server.folder()).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().ends_with(".tcold") {
            // The first block of rows follows the header's block.
            damage_file(&entry.path(), 4096, 4096);
        }
    }
    let [spoiled, other] = [ids[0], ids[11_999]];
    for text in [
        format!("FEED.GET home 7 {spoiled} BINARY"),
        format!("HINCRBY post:{spoiled} like 1"),
        format!("HGET post:{spoiled} like"),
        format!("EXISTS post:{spoiled}"),
    ] {
        let told = format!("{:?}", call::<Value>(&mut connection, &text));
        assert!(told.contains("cannot be read"), "{text}: {told}");
        // The next command is not affected.
        assert_eq!(likes(&mut connection, 7, &[other]), [[1, 1]], "after {text}");
    }
    // In requests for many rows, only the elements of unreadable rows are errors.
    for (text, wanted) in [
        (format!("FEED.GET home 7 {other} {spoiled} {other} {spoiled} MARK like"), 4),
        (format!("CNT.GET post {other} {spoiled} {other} {spoiled}"), 4),
        (format!("FEED.ACT like 8 {other} {spoiled}"), 2),
        (format!("FEED.UNDO like 7 {other} {spoiled}"), 2),
        (format!("CNT.MINCRBY post {other} repost 1 {spoiled} repost 1"), 2),
        (
            format!(
                "MGET post:{other}:like post:{spoiled}:like post:{other}:read post:{spoiled}:read"
            ),
            4,
        ),
        (format!("MINCR post:{other}:repost post:{spoiled}:repost"), 2),
    ] {
        let told = lines(&server, &text);
        assert!(told.starts_with(&format!("*{wanted}|")), "{text}: {told}");
        assert_eq!(told.matches("cannot be read").count(), wanted / 2, "{text}: {told}");
    }
    assert_eq!(likes(&mut connection, 7, &[other]), [[1, 0]], "liked by 8 and no longer by 7");
    // Setting a flag without its counter needs no row; neither does a repeated like.
    let _: Value = call(&mut connection, &format!("PH.ADD liked 9 {spoiled}")).unwrap();
    let again: Vec<i64> = call(&mut connection, &format!("FEED.ACT like 7 {spoiled}")).unwrap();
    assert_eq!(again, [0]);
    assert!(info(&mut connection, "cold_corrupt_blocks") > 0);
    was_read_ahead(&mut connection);
}

/// An unreadable file prevents merges of only its own range. The pending changes to rows of the
/// file stay in memory and are served.
#[test]
fn a_damaged_file_keeps_no_other_from_being_merged() {
    let server = TestServer::with(|config| {
        tight(config);
        // The merge must find the damage, not the scrubber.
        config.spill.scrub_bytes_per_s = 0;
    });
    let mut connection = server.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 50_000, &mut truth);
    let _: u64 = call(&mut connection, "TM.SPILL post 9").unwrap();
    assert!(
        info(&mut connection, "cold_files") >= 3 && info(&mut connection, "cold_rows") > 40_000
    );
    // Choose the file of the first full table. The first block of rows in the file follows the
    // header's block.
    let tables: Vec<BTreeMap<String, Value>> = call(&mut connection, "TM.TABLES post").unwrap();
    let whole = tables
        .iter()
        .find(|table| redis::from_redis_value::<u64>(table["rows"].clone()).unwrap() > 10_000);
    let field =
        |name: &str| redis::from_redis_value::<String>(whole.unwrap()[name].clone()).unwrap();
    let (low, last): (u64, u64) = (field("low").parse().unwrap(), field("last").parse().unwrap());
    damage_file(&server.folder().join(field("file")), 4096, 4096);
    let ids: Vec<u64> = truth.range(low..=last).map(|(&id, _)| id).collect();
    let told = call::<Value>(&mut connection, &format!("HGET post:{} like", ids[0]))
        .unwrap_err()
        .to_string();
    assert!(told.contains("cannot be read"), "{told}");
    // Change rows after the damaged block.
    let change = |connection: &mut Connection, truth: &mut Truth, ids: &[u64]| {
        for ids in ids.chunks(500) {
            let mut pipe = redis::pipe();
            for &id in ids {
                pipe.cmd("HINCRBY").arg(format!("post:{id}")).arg("like").arg(1).ignore();
                truth.get_mut(&id).unwrap()[0] += 1;
            }
            pipe.query::<()>(connection).unwrap();
        }
    };
    change(&mut connection, &mut truth, &ids[2_000..]);
    tidemark_tests::eventually("merging the table fails", || {
        info(&mut connection, "spill_failures") > 0
    });
    let merges = info(&mut connection, "merges");
    for round in 0..4 {
        let others: Vec<u64> = truth.range(last + 1..).map(|(&id, _)| id).take(5_000).collect();
        change(&mut connection, &mut truth, &others);
        tidemark_tests::eventually("the other tables are merged", || {
            info(&mut connection, "merges") > merges + round
        });
    }
    let text: String = redis::cmd("INFO").arg("cold").query(&mut connection).unwrap();
    assert!(text.contains("spill_last_status:err") && text.contains("is damaged"), "{text}");
    // Expect all rows except those in the lost block.
    let mut readable: Truth =
        truth.into_iter().filter(|(id, _)| !ids[..2_000].contains(id)).collect();
    verify(&server, &readable, &[]);
    fill_from(&mut connection, 50_000, 30_000, &mut readable);
    verify(&server, &readable, &[]);
    verify(&server.killed(), &readable, &[]);
}

/// Without any request, the scrubber finds corrupted blocks of rows, filters and a ledger, and INFO
/// names the files. Other blocks are served; merges proceed and lose no readable rows of the
/// damaged files. Once the disk is repaired, a second pass clears the report.
#[test]
fn scrubbing_finds_what_the_disk_has_spoiled() {
    let server = TestServer::with(|config| {
        small(config);
        config.spill.scrub_bytes_per_s = 0;
        config.counter[0].rows_per_table = 10_000;
        config.existence[0].pairs_per_table = 16_000;
    });
    let mut connection = server.connection();
    let mut truth = Truth::new();
    fill(&mut connection, 50_000, &mut truth);
    let ids: Vec<u64> = truth.keys().copied().collect();
    for page in ids.chunks(500) {
        redis::cmd("PH.ADD").arg("liked").arg(7).arg(page).exec(&mut connection).unwrap();
    }
    let _: u64 = call(&mut connection, "TM.SPILL post 9").unwrap();
    let _: u64 = call(&mut connection, "TM.SPILL liked 9").unwrap();
    let manifest = store::RealDisk::open(server.folder()).unwrap();
    let manifest = store::Manifest::read(&manifest).unwrap().unwrap();
    let mut kinds: Vec<_> =
        manifest.files.iter().filter(|f| f.role == store::Role::Cold && f.bytes > 20_000).collect();
    kinds.sort_by_key(|file| (file.tag.kind, file.tag.low));
    kinds.dedup_by_key(|file| file.tag.kind);
    assert_eq!(kinds.len(), 3, "rows, filters and a run: {kinds:?}");
    // Corrupts the second and third block.
    let paths: Vec<_> = kinds.iter().map(|file| server.folder().join(&file.name)).collect();
    let before: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    paths.iter().for_each(|path| damage_file(path, 8192 + 100, 4096));
    assert_eq!(info(&mut connection, "scrub_passes"), 0);
    let _: Value = call(&mut connection, "CONFIG SET spill.scrub_rate 1000000000").unwrap();
    tidemark_tests::eventually("a pass", || info(&mut connection, "scrub_passes") == 1);
    let text: String = call(&mut connection, "INFO cold").unwrap();
    let named = text.lines().find_map(|line| line.strip_prefix("cold_damaged:")).unwrap();
    let mut wanted: Vec<&str> = kinds.iter().map(|file| file.name.as_str()).collect();
    wanted.sort_unstable();
    assert_eq!(named.split(',').collect::<Vec<_>>(), wanted, "{text}");
    assert_eq!(info(&mut connection, "cold_damaged_blocks"), 6);
    let cold = manifest.files.iter().filter(|file| file.role == store::Role::Cold);
    let bytes: u64 = cold.map(|file| file.bytes).sum();
    assert_eq!(info(&mut connection, "scrub_read_bytes"), bytes);
    assert!(info(&mut connection, "scrub_last_pass_time") > 1_700_000_000);
    assert_eq!(info(&mut connection, "scrub_left_bytes"), 0);
    // Change all rows to force merges. The damaged file must stay, with all its readable rows.
    let rows = &kinds[0];
    let told = |connection: &mut Connection| {
        let (mut right, mut refused) = (0, 0);
        for page in ids.chunks(500) {
            let mut pipe = redis::pipe();
            page.iter().for_each(|id| _ = pipe.cmd("HGET").arg(format!("post:{id}")).arg("like"));
            let pipe = pipe.ignore_errors();
            let values: Vec<redis::RedisResult<i64>> = pipe.query(connection).unwrap();
            values.into_iter().zip(page).for_each(|(told, id)| match told {
                Ok(likes) if likes == truth[id][0] => right += 1,
                Ok(other) => panic!("{other} likes of {id}"),
                Err(error) => {
                    assert!(error.to_string().contains("cannot be read"), "{error}");
                    refused += 1;
                }
            });
        }
        (right, refused)
    };
    let (right, refused) = told(&mut connection);
    assert!((1..4_000).contains(&refused), "{refused} rejected rows of two blocks");
    let merges = info(&mut connection, "merges");
    for page in ids.chunks(500) {
        let mut pipe = redis::pipe();
        page.iter()
            .for_each(|id| _ = pipe.cmd("HINCRBY").arg(format!("post:{id}")).arg("repost").arg(1));
        let _ = pipe.ignore_errors().query::<Value>(&mut connection);
    }
    for _ in 0..9 {
        let _ = call::<u64>(&mut connection, "TM.SPILL post 1");
    }
    assert!(info(&mut connection, "merges") > merges, "the other tables are merged");
    assert!(server.folder().join(&rows.name).exists());
    assert_eq!(told(&mut connection), (right, refused));
    // Restore the contents of the files, as from a backup.
    for (path, bytes) in paths.iter().zip(&before) {
        if path.exists() {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
        }
    }
    let _: Value = call(&mut connection, "CONFIG SET spill.scrub_rate 0").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let _: Value = call(&mut connection, "CONFIG SET spill.scrub_rate 1000000000").unwrap();
    tidemark_tests::eventually("another pass", || info(&mut connection, "scrub_passes") == 2);
    let text: String = call(&mut connection, "INFO cold").unwrap();
    assert!(text.contains("cold_damaged:\r\n"), "{text}");
    assert_eq!(told(&mut connection), (ids.len(), 0));
}
