//! fjall: the key is id and member, most significant byte first; there is no value. Pairs come in
//! batches of a thousand, each with the place of the log up to which it goes, as our log would feed
//! it; its own journal is synced only when asked to.

use crate::{Args, Keeper, Outcome};
use fjall::{
    CompressionType, Config, Keyspace, PartitionCreateOptions, PartitionHandle, PersistMode,
};
use std::path::Path;

const BATCH: usize = 1000;

pub(crate) struct Tree {
    keyspace: Keyspace,
    pairs: PartitionHandle,
    place: PartitionHandle,
    waiting: Vec<[u8; 16]>,
    inserted: u64,
}

fn key(id: u64, member: u64) -> [u8; 16] {
    (u128::from(id) << 64 | u128::from(member)).to_be_bytes()
}

impl Tree {
    fn write(&mut self) -> Outcome<()> {
        let mut batch = self.keyspace.batch();
        for key in self.waiting.drain(..) {
            batch.insert(&self.pairs, key, []);
        }
        batch.insert(&self.place, "applied", self.inserted.to_le_bytes());
        Ok(batch.commit()?)
    }
}

impl Keeper for Tree {
    fn open(folder: &Path, args: &Args) -> Outcome<Tree> {
        let keyspace = Config::new(folder)
            .cache_size(8 << 20)
            .manual_journal_persist(true)
            .flush_workers(1)
            .compaction_workers(1)
            .open()?;
        let options = PartitionCreateOptions::default()
            .block_size(4096)
            .compression(CompressionType::Lz4)
            .max_memtable_size((args.memory_pairs * 32) as u32)
            .manual_journal_persist(true);
        let pairs = keyspace.open_partition("pairs", options)?;
        let place = keyspace.open_partition("place", PartitionCreateOptions::default())?;
        Ok(Tree { keyspace, pairs, place, waiting: Vec::new(), inserted: 0 })
    }

    fn insert(&mut self, id: u64, member: u64) -> Outcome<()> {
        self.waiting.push(key(id, member));
        self.inserted += 1;
        if self.waiting.len() == BATCH { self.write() } else { Ok(()) }
    }

    fn contains(&self, id: u64, member: u64) -> Outcome<bool> {
        Ok(self.pairs.contains_key(key(id, member))?)
    }

    fn sync(&mut self) -> Outcome<()> {
        self.write()?;
        Ok(self.keyspace.persist(PersistMode::SyncAll)?)
    }

    fn settle(&mut self) -> Outcome<()> {
        self.pairs.rotate_memtable_and_wait()?;
        loop {
            let before = self.keyspace.compactions_completed();
            std::thread::sleep(std::time::Duration::from_secs(2));
            let is_quiet = self.keyspace.active_compactions() == 0;
            if is_quiet && self.keyspace.compactions_completed() == before {
                return Ok(());
            }
        }
    }

    fn figures(&self) -> (u64, String) {
        let text = format!(
            "{} segments, {} MB of journals besides",
            self.pairs.segment_count(),
            self.keyspace.journal_disk_space() >> 20
        );
        (self.pairs.disk_space(), text)
    }
}
