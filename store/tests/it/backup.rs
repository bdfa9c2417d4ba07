//! Tests of backups and restores on a real disk, while the log begins new segments, restarts and
//! loses its tail.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::basics::{LINEAGE, batch, options};
use store::{
    ARCHIVE, Archive, Backup, BackupProgress, Error, Log, Position, RealDisk, RestorePlan,
    RestoreTarget, Result, Severity, Store, Tag, back_up, backups_in, check, dump,
    newest_backup_in, plan, remove, restore,
};

/// A store whose state is the number of its records. The n-th record contains n, and so does a
/// snapshot of n records.
struct Node {
    dir: PathBuf,
    store: Store,
    log: RefCell<Log>,
    /// End offset and time of each record.
    written: Vec<(u64, u64)>,
    now_ms: u64,
}

fn open(dir: &Path) -> (Store, Log, u64) {
    let disk = Arc::new(RealDisk::open(dir).unwrap());
    let store = Store::open_with(disk, options(400), || Ok(LINEAGE)).unwrap();
    let state = std::sync::atomic::AtomicU64::new(0);
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let set = |n| state.store(n, std::sync::atomic::Ordering::Relaxed);
    store
        .load(
            1,
            |_, chunk| {
                set(number(chunk));
                Ok(())
            },
            |_| (),
        )
        .unwrap();
    // The records must continue the snapshot without a gap.
    let mut last = None;
    let (log, _) = store
        .replay(
            |record| {
                let n = number(record.payload);
                assert!(last.is_none_or(|last| n == last + 1), "{n}, expected {last:?}");
                let before = state.load(std::sync::atomic::Ordering::Relaxed);
                assert!(n <= before + 1, "{n} after a snapshot of {before}");
                last = Some(n);
                set(n.max(before));
                Ok(())
            },
            |_| (),
        )
        .unwrap();
    (store, log, state.into_inner())
}

impl Node {
    fn new(dir: &Path) -> Node {
        let (store, log, _) = open(dir);
        let log = RefCell::new(log);
        Node { dir: dir.to_owned(), store, log, written: Vec::new(), now_ms: 1_000 }
    }

    fn append(&mut self, rng: &mut fastrand::Rng) {
        // Sometimes the clock does not advance.
        self.now_ms += rng.u64(0..3) * 10;
        let n = self.written.len() as u64 + 1;
        let log = self.log.get_mut();
        let at = log.append(&batch(&[&n.to_le_bytes()]), self.now_ms).unwrap();
        log.sync().unwrap();
        self.written.push((at.offset, self.now_ms));
    }

    /// Takes a snapshot, which includes records appended during the walk.
    fn snapshot(&mut self, rng: &mut fastrand::Rng) {
        let begins = self.log.get_mut().durable();
        (0..rng.u32(0..4)).for_each(|_| self.append(rng));
        let durable = self.log.get_mut().durable();
        let mut snapshot = self.store.begin_snapshot(begins);
        let stamp = self.written.len() as u64;
        let tag = Tag { space: 1, kind: 1, low: 0, high: u64::MAX, stamp };
        let mut file = snapshot.file(tag).unwrap();
        file.write(&stamp.to_le_bytes(), 1).unwrap();
        snapshot.add(file.finish().unwrap());
        snapshot.commit(durable).unwrap();
    }

    /// Stops, optionally leaves a torn tail, and starts again.
    fn restart(self, rng: &mut fastrand::Rng) -> Node {
        let Node { dir, store, log, written, now_ms } = self;
        let segment = log.borrow().written().segment;
        drop((store, log));
        if rng.bool() {
            let name = dir.join(format!("log-{segment:016}.tlog"));
            let torn: Vec<u8> = (0..rng.usize(1..90)).map(|_| rng.u8(..)).collect();
            std::io::Write::write_all(
                &mut std::fs::OpenOptions::new().append(true).open(name).unwrap(),
                &torn,
            )
            .unwrap();
        }
        let (store, log, state) = open(&dir);
        assert_eq!(state, written.len() as u64);
        Node { dir, store, log: RefCell::new(log), written, now_ms }
    }

    /// Returns the number of records before an offset or a time.
    fn before(&self, is_before: impl Fn(&(u64, u64)) -> bool) -> u64 {
        self.written.iter().take_while(|written| is_before(written)).count() as u64
    }
}

impl BackupProgress for Node {
    fn expect(&self, _: u64) {}
    fn advance(&self, _: u64, _: bool) -> Result<()> {
        Ok(())
    }
    fn end(&self) -> Result<Position> {
        self.log.borrow_mut().sync()
    }
    fn now_ms(&self) -> u64 {
        self.now_ms
    }
}

fn planned(folder: &Path, archives: &[PathBuf], until: RestoreTarget) -> Result<RestorePlan> {
    plan(folder, archives, until, &|_| Ok(()))
}

fn restored(plan: &RestorePlan, to: &Path) -> u64 {
    restore(plan, to, |term| term + 1, &|_| Ok(())).unwrap();
    assert!(check(&RealDisk::open(to).unwrap()).unwrap().severity() <= Severity::Good);
    let (store, log, state) = open(to);
    assert_eq!(log.term(), store.manifest().term);
    assert_eq!(log.written().offset, plan.end.offset);
    state
}

#[test]
fn any_backup_is_restored_to_any_place_that_its_log_has() {
    for seed in seeds::seeds(20) {
        eprintln!("TIDEMARK_SEED={seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        // Use an in-memory file system, because a run has thousands of syncs.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let root = folder.path().join("backups");
        let mut node = Node::new(&folder.path().join("data"));
        let mut archive = Archive::new(&root);
        let mut backups = Vec::new();
        for step in 0..rng.usize(20..60) {
            match rng.u32(0..12) {
                0 => node.snapshot(&mut rng),
                1 => {
                    node = node.restart(&mut rng);
                    archive = Archive::new(&root);
                }
                2 => {
                    let there = root.join(format!("b{step:03}"));
                    let previous = newest_backup_in(&root, LINEAGE).map(|(path, _)| path);
                    let backup = back_up(&node.store, &there, previous.as_deref(), &node).unwrap();
                    assert_eq!(Backup::of(&there).as_ref(), Some(&backup));
                    let found = check(&RealDisk::open(&there).unwrap()).unwrap();
                    assert_eq!(found.severity(), Severity::Good, "{found:#?}");
                    backups.push((there, backup));
                }
                3 => _ = node.log.get_mut().roll(0),
                _ => node.append(&mut rng),
            }
            // Keep segments until they are archived.
            let durable = node.log.get_mut().durable();
            node.store.keep_log_from(archive.follow(&node.store, durable, &|_| Ok(())).unwrap());
        }
        let all = node.written.clone();
        let end = node.log.get_mut().durable().offset;
        let archives = [root.join(ARCHIVE)];
        for (there, backup) in &backups {
            let to = folder.path().join("restored");
            let state = restored(&planned(there, &archives, RestoreTarget::Backup).unwrap(), &to);
            assert_eq!(state, node.before(|w| w.0 <= backup.position.offset));
            std::fs::remove_dir_all(&to).unwrap();

            let plan = planned(there, &archives, RestoreTarget::Latest).unwrap();
            assert_eq!((plan.end.offset, plan.goes_on), (end, false));
            assert_eq!(restored(&plan, &to), all.len() as u64);
            std::fs::remove_dir_all(&to).unwrap();

            let offset = rng.u64(backup.from..=end);
            let plan = planned(there, &archives, RestoreTarget::Offset(offset)).unwrap();
            assert_eq!(restored(&plan, &to), node.before(|w| w.0 <= offset), "offset {offset}");
            std::fs::remove_dir_all(&to).unwrap();

            let time = rng.u64(backup.from_ms..=node.now_ms.max(backup.from_ms));
            let plan = planned(there, &archives, RestoreTarget::Time(time)).unwrap();
            let least = node.before(|w| w.0 <= backup.from);
            let expected = node.before(|w| w.1 <= time).max(least);
            assert_eq!(restored(&plan, &to), expected, "time {time}");
            assert_eq!(plan.goes_on, expected < all.len() as u64);
            std::fs::remove_dir_all(&to).unwrap();

            for early in
                [RestoreTarget::Offset(backup.from.wrapping_sub(1)), RestoreTarget::Time(0)]
            {
                let is_early = backup.from > 0 && backup.from_ms > 0;
                let refused = planned(there, &archives, early).err().map(|e| e.to_string());
                let is_refused = refused.is_some_and(|why| why.contains("Use an older backup"));
                assert!(!is_early || is_refused);
            }
            let refused = planned(there, &archives, RestoreTarget::Offset(end + 1));
            assert!(matches!(refused, Err(Error::Refused(_))));
        }
        // The remaining backups do not depend on a removed backup.
        if let Some((first, _)) = backups.first() {
            remove(first).unwrap();
            assert_eq!(backups_in(&root).len(), backups.len() - 1);
        }
        for (there, _) in backups.iter().skip(1) {
            planned(there, &archives, RestoreTarget::Latest).unwrap();
        }
    }
}

fn node_with_files(dir: &Path) -> (Node, fastrand::Rng) {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut node = Node::new(dir);
    (0..20).for_each(|_| node.append(&mut rng));
    node.snapshot(&mut rng);
    (0..20).for_each(|_| node.append(&mut rng));
    (node, rng)
}

#[test]
fn files_that_never_change_are_shared() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let (mut node, mut rng) = node_with_files(&folder.path().join("data"));
    let backup = back_up(&node.store, &folder.path().join("b/one"), None, &node).unwrap();
    let name = backup.files.iter().find(|file| file.name.ends_with(".tsnap")).unwrap().name.clone();
    let inode = |path: PathBuf| path.metadata().unwrap().ino();
    let first = inode(folder.path().join("b/one").join(&name));
    assert_eq!(inode(folder.path().join("data").join(&name)), first);
    // The server may remove the original file.
    node.snapshot(&mut rng);
    assert!(!folder.path().join("data").join(&name).exists());
    assert_eq!(inode(folder.path().join("b/one").join(&name)), first);
    let name = back_up(&node.store, &folder.path().join("b/one"), None, &node).unwrap_err();
    assert!(name.to_string().contains("exists already"), "{name}");

    // On another file system the first backup is a copy, and the second links to it.
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
    let there = other.path().join("one");
    let backup = back_up(&node.store, &there, None, &node).unwrap();
    let next = back_up(&node.store, &other.path().join("two"), Some(&there), &node).unwrap();
    for file in backup.files.iter().filter(|file| file.name.ends_with(".tsnap")) {
        assert!(next.files.contains(file));
        let pair = ["one", "two"].map(|name| inode(other.path().join(name).join(&file.name)));
        assert_eq!(pair[0], pair[1]);
    }
    planned(&other.path().join("two"), &[], RestoreTarget::Backup).unwrap();
}

#[test]
fn restore_detects_any_changed_byte_before_it_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (node, mut rng) = node_with_files(&folder.path().join("data"));
    let there = folder.path().join("backup");
    let backup = back_up(&node.store, &there, None, &node).unwrap();
    drop(node);
    let disk = RealDisk::open(&there).unwrap();
    let names = backup.files.iter().map(|file| file.name.clone());
    for name in names.chain([store::BACKUP.to_owned()]) {
        let path = there.join(&name);
        let whole = std::fs::read(&path).unwrap();
        let mut damaged = Vec::new();
        for _ in 0..20 {
            let mut bytes = whole.clone();
            bytes[rng.usize(..whole.len())] ^= 1 << rng.u32(..8);
            damaged.push(bytes);
        }
        damaged.push(whole[..whole.len() - 1].to_vec());
        damaged.push([&whole[..], &[0]].concat());
        for bytes in damaged {
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, bytes).unwrap();
            let refused = planned(&there, &[], RestoreTarget::Backup).err().unwrap().to_string();
            assert!(refused.contains(&name), "{name}: {refused}");
            let found = check(&disk).unwrap();
            assert!(found.severity() == Severity::Damage, "{name}: {found:#?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(planned(&there, &[], RestoreTarget::Backup).is_err(), "{name} is missing");
        std::fs::write(&path, whole).unwrap();
    }
    assert_eq!(check(&disk).unwrap().severity(), Severity::Good);
    let mut text = Vec::new();
    dump(&disk, store::BACKUP, false, &mut text).unwrap();
    assert_eq!(Backup::decode(&text), Ok(backup));
}

#[test]
fn open_refuses_a_backup_and_restore_a_nonempty_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (node, _) = node_with_files(&folder.path().join("data"));
    let there = folder.path().join("backup");
    back_up(&node.store, &there, None, &node).unwrap();
    let refused = Store::open(Arc::new(RealDisk::open(&there).unwrap()), options(400)).unwrap_err();
    assert!(refused.to_string().contains("tidemark restore"), "{refused}");

    let plan = planned(&there, &[], RestoreTarget::Backup).unwrap();
    let to = folder.path().join("to");
    std::fs::create_dir(&to).unwrap();
    std::fs::write(to.join("a file"), "of others").unwrap();
    let refused = restore(&plan, &to, |term| term + 1, &|_| Ok(())).unwrap_err();
    assert!(refused.to_string().contains("is not empty"), "{refused}");
    std::fs::remove_file(to.join("a file")).unwrap();

    // An aborted restore removes its files, but not an existing folder.
    let stop = |_| Err(Error::Refused("enough".to_owned()));
    restore(&plan, &to, |term| term + 1, &stop).unwrap_err();
    assert_eq!(std::fs::read_dir(&to).unwrap().count(), 0);
    std::fs::remove_dir(&to).unwrap();
    restore(&plan, &to, |term| term + 1, &stop).unwrap_err();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "data and backup");
    std::fs::create_dir(&to).unwrap();
    assert_eq!(restored(&plan, &to), node.written.len() as u64);
}

/// A missing or damaged segment of the archive makes later positions unreachable, and the error
/// reports this.
#[test]
fn a_hole_in_the_archive_is_no_end_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (mut node, mut rng) = node_with_files(&folder.path().join("data"));
    let root = folder.path().join("backups");
    let there = root.join("one");
    back_up(&node.store, &there, None, &node).unwrap();
    let before = node.log.get_mut().durable();
    (0..60).for_each(|_| node.append(&mut rng));
    let end = node.log.get_mut().durable();
    Archive::new(&root).follow(&node.store, end, &|_| Ok(())).unwrap();
    let archives = [root.join(ARCHIVE)];
    assert_eq!(planned(&there, &archives, RestoreTarget::Latest).unwrap().end, end);

    let name = format!("log-{:016}.tlog", before.segment + 2);
    let path = archives[0].join(format!("{LINEAGE}-{:016x}", 0)).join(name);
    let whole = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for until in
        [RestoreTarget::Latest, RestoreTarget::Time(node.now_ms), RestoreTarget::Offset(end.offset)]
    {
        let refused = planned(&there, &archives, until).err().unwrap().to_string();
        assert!(refused.contains("segments before it are missing"), "{until:?}: {refused}");
    }
    planned(&there, &archives, RestoreTarget::Offset(before.offset + 1)).unwrap();
    let mut bytes = whole.clone();
    bytes[200] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let refused = planned(&there, &archives, RestoreTarget::Latest).err().unwrap();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
    // The data folder still has the missing segment.
    let archives = [node.dir.clone()];
    assert_eq!(planned(&there, &archives, RestoreTarget::Latest).unwrap().end, end);
}

/// A restore of a backup from an abandoned history does not continue with the log of another term.
#[test]
fn restore_does_not_follow_an_abandoned_history() {
    let folder = tempfile::tempdir().unwrap();
    let (mut node, mut rng) = node_with_files(&folder.path().join("data"));
    let root = folder.path().join("backups");
    let early = root.join("early");
    back_up(&node.store, &early, None, &node).unwrap();
    let fork = node.log.get_mut().durable();
    let plan = planned(&early, &[], RestoreTarget::Backup).unwrap();
    let won = folder.path().join("won");
    assert_eq!(restored(&plan, &won), node.written.len() as u64);
    // Both histories continue, with different terms.
    (0..30).for_each(|_| node.append(&mut rng));
    let late = root.join("late");
    let backup = back_up(&node.store, &late, None, &node).unwrap();
    let mut archive = Archive::new(&root);
    archive.follow(&node.store, backup.position, &|_| Ok(())).unwrap();
    let (store, mut log, _) = open(&won);
    let n = node.before(|w| w.0 <= fork.offset);
    for n in n + 1..n + 41 {
        log.append(&batch(&[&n.to_le_bytes()]), node.now_ms + n).unwrap();
    }
    let end = log.sync().unwrap();
    let mut archive = Archive::new(&root);
    archive.follow(&store, end, &|_| Ok(())).unwrap();
    let archives = [root.join(ARCHIVE)];
    let plan = planned(&early, &archives, RestoreTarget::Latest).unwrap();
    assert_eq!(plan.end, end, "the later promotion wins");
    let plan = planned(&late, &archives, RestoreTarget::Backup).unwrap();
    assert_eq!(restored(&plan, &folder.path().join("to")), node.written.len() as u64);
    let latest = planned(&late, &archives, RestoreTarget::Latest);
    let is_own = latest.as_ref().is_ok_and(|plan| plan.end == backup.position);
    assert!(is_own || latest.is_err(), "nothing of the other history");
}

#[test]
fn an_archive_keeps_what_is_not_old_and_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let (mut node, mut rng) = node_with_files(&folder.path().join("data"));
    let root = folder.path().join("backups");
    let there = root.join("one");
    (0..40).for_each(|_| node.append(&mut rng));
    back_up(&node.store, &there, None, &node).unwrap();
    (0..40).for_each(|_| node.append(&mut rng));
    let end = node.log.get_mut().durable();
    let mut archive = Archive::new(&root);
    archive.follow(&node.store, end, &|_| Ok(())).unwrap();
    let of_term = root.join(ARCHIVE).join(format!("{LINEAGE}-{:016x}", 0));
    let names = || {
        let mut names: Vec<_> =
            std::fs::read_dir(&of_term).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        names
    };
    let all = names();
    assert!(all.len() > 8, "{all:?}");
    let half = of_term.join("log-0000000000000003.tlog.tmp");
    std::fs::write(&half, "half").unwrap();
    let now = std::time::SystemTime::now();
    let hour = std::time::Duration::from_secs(3600);
    assert_eq!(archive.trim(now - hour).unwrap(), 0);
    // The data folder's hard links share the modification time.
    let written = |path: &PathBuf, at| {
        std::fs::File::options().append(true).open(path).unwrap().set_modified(at).unwrap();
    };
    all[..4].iter().chain([&half]).for_each(|path| written(path, now - 2 * hour));
    assert_eq!(archive.trim(now - hour).unwrap(), 5);
    assert_eq!(names(), all[4..]);
    let archives = [root.join(ARCHIVE)];
    assert_eq!(planned(&there, &archives, RestoreTarget::Latest).unwrap().end, end);
    // The newest segment stays even if it is old.
    assert_eq!(archive.trim(now + hour).unwrap() as usize, all.len() - 5);
    assert_eq!(names(), all[all.len() - 1..]);
    let refused = planned(&there, &archives, RestoreTarget::Latest).err().unwrap().to_string();
    assert!(refused.contains("segments before it are missing"), "{refused}");
    // The whole folder of an abandoned history is removed.
    assert_eq!(Archive::new(&root).trim(now + hour).unwrap(), 1);
    assert!(!of_term.exists());
}
