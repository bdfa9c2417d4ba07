//! What changed since the last commit, by id: the seam between the engines and the log.
//!
//! The log holds state, not deltas (promise 2): "row X is now ...", "pair Y is set". So a write need only leave a *mark*; when the log
//! thread takes the marks it reads what the marked rows and pairs are *now*. A row written 100,000 times between two commits is one mark
//! and one record.
//!
//! A like moves a flag and a counter together, and a crash must not part them. Both belong to the same id, so marks lie in
//! shards *by id*: a writer holds its shard's mutex from before its first change until after its last mark, and the log thread
//! holds it while it takes the shard's marks and reads the marked state. Hence every batch of the log is, for each id, a state
//! that was between two writes, never in the midst of one. A shard is held for a few microseconds, and no reader of rows or
//! flags ever takes one.
//!
//! Tickets: a commit visits each shard once, so a mark that is left before the n-th visit is in the n-th commit. [`Changes::write`]
//! returns that number; a reply that must be durable waits until the log has synced it.
//!
//! Order of locks: shard, then whatever the engines lock.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Shards of marks. While one is being read (some microseconds per commit) a writer finds it taken with probability 1/256.
const SHARDS: usize = 256;

/// What was changed: the names of a record, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mark {
    /// The row of `id` in the counter space with this number.
    Row {
        /// Number of the space in the catalogue.
        space: u32,
        /// The row's id.
        id: u64,
    },
    /// One pair of the existence space with this number.
    Pair {
        /// Number of the space in the catalogue.
        space: u32,
        /// The pair's id.
        id: u64,
        /// Its other half.
        member: MarkedMember,
    },
}

/// A member as the log names it: as short as it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MarkedMember {
    /// A member that is a number.
    Number(u64),
    /// Any other: the hash of the whole pair under the space's seed, as the phantom engine gives it.
    Hash(u128),
}

/// The marks are made of uniform hashes and ids of ours to mix: one multiplication per word will do. Not keyed: a flood of
/// equal buckets would cost its sender a commit's worth of comparisons, once, since the set is emptied by every commit.
#[derive(Default)]
struct MarkHasher(u64);

impl Hasher for MarkHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(b.into()));
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }
    fn write_u128(&mut self, word: u128) {
        self.write_u64(word as u64);
        self.write_u64((word >> 64) as u64);
    }
    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}

type Marks = HashSet<Mark, BuildHasherDefault<MarkHasher>>;

#[derive(Default)]
struct Shard {
    /// How many commits have taken this shard's marks.
    visits: u64,
    marks: Marks,
}

/// The marks since the last commit. See the top of the file.
pub struct Changes {
    shards: Box<[Mutex<Shard>]>,
    pending: AtomicUsize,
    most: usize,
}

/// The shard of one id, held: leave marks in it.
pub struct Writing<'a> {
    shard: &'a mut Shard,
}

impl Writing<'_> {
    /// Marks what has changed, or is about to.
    pub fn mark(&mut self, mark: Mark) {
        self.shard.marks.insert(mark);
    }
}

impl Changes {
    /// No marks. `most`: how many may wait for a commit before [`Changes::is_full`] says so.
    pub fn new(most: usize) -> Changes {
        Changes { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), pending: AtomicUsize::new(0), most }
    }

    /// Runs one write to `id`, alone among the writers of its shard and the log thread. Gives what it gave, and the number of the
    /// commit that will hold its marks.
    pub fn write<R>(&self, id: u64, f: impl FnOnce(&mut Writing<'_>) -> R) -> (R, u64) {
        let at = (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize % SHARDS;
        let mut shard = self.shards[at].lock();
        let before = shard.marks.len();
        let result = f(&mut Writing { shard: &mut shard });
        let added = shard.marks.len() - before;
        if added > 0 {
            self.pending.fetch_add(added, Relaxed);
        }
        (result, shard.visits + 1)
    }

    /// How many marks wait.
    pub fn pending(&self) -> usize {
        self.pending.load(Relaxed)
    }

    /// Whether so many marks wait that writes should be refused until the log has caught up.
    pub fn is_full(&self) -> bool {
        self.pending() >= self.most
    }

    /// Takes all marks, shard by shard; `read` is called for each while its shard is held, to read what is marked now. Only
    /// the log thread may call this. Returns the number of this commit.
    pub fn take(&self, mut read: impl FnMut(&Mark)) -> u64 {
        let mut commit = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.marks.iter().for_each(&mut read);
            self.pending.fetch_sub(shard.marks.len(), Relaxed);
            shard.marks.clear();
            // What a burst has needed is not kept for ever.
            shard.marks.shrink_to(1024);
            shard.visits += 1;
            commit = shard.visits;
        }
        commit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

    #[test]
    fn a_hot_row_is_one_mark() {
        let changes = Changes::new(10);
        for _ in 0..1000 {
            let ((), ticket) = changes.write(7, |w| w.mark(Mark::Row { space: 0, id: 7 }));
            assert_eq!(ticket, 1);
        }
        assert_eq!(changes.pending(), 1);
        let mut seen = vec![];
        assert_eq!(changes.take(|m| seen.push(*m)), 1);
        assert_eq!(seen, [Mark::Row { space: 0, id: 7 }]);
        assert_eq!(changes.pending(), 0);
        assert_eq!(changes.write(7, |_| ()).1, 2);
    }

    #[test]
    fn the_limit_is_seen() {
        let changes = Changes::new(3);
        for id in 0..3 {
            assert!(!changes.is_full());
            changes.write(id, |w| w.mark(Mark::Pair { space: 1, id, member: MarkedMember::Number(5) }));
        }
        assert!(changes.is_full());
        changes.take(|_| ());
        assert!(!changes.is_full());
    }

    /// Two halves of one id move together; no commit sees one without the other, and every write is in the commit of its ticket.
    #[test]
    fn no_commit_parts_a_flag_from_its_counter() {
        const IDS: u64 = 64;
        let changes = Changes::new(usize::MAX);
        let halves: Vec<[AtomicU64; 2]> = (0..IDS).map(|_| Default::default()).collect();
        let done = AtomicBool::new(false);
        let mut committed: HashMap<u64, (u64, u64)> = HashMap::new();
        std::thread::scope(|s| {
            let writers: Vec<_> = (0..2)
                .map(|seed| {
                    let (changes, halves) = (&changes, &halves);
                    s.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(seed);
                        let mut tickets = vec![];
                        for _ in 0..100_000 {
                            let id = rng.u64(0..IDS);
                            let (value, ticket) = changes.write(id, |w| {
                                w.mark(Mark::Row { space: 0, id });
                                let value = halves[id as usize][0].fetch_add(1, SeqCst) + 1;
                                halves[id as usize][1].fetch_add(1, SeqCst);
                                value
                            });
                            tickets.push((id, value, ticket));
                        }
                        tickets
                    })
                })
                .collect();
            let log = s.spawn(|| {
                // By commit: id -> value that it holds.
                let mut commits: Vec<HashMap<u64, u64>> = vec![HashMap::new()];
                loop {
                    let last = done.load(SeqCst);
                    let mut batch = HashMap::new();
                    let number = changes.take(|mark| {
                        let Mark::Row { id, .. } = *mark else { panic!("no pair was marked") };
                        let [a, b] = [0, 1].map(|i| halves[id as usize][i].load(SeqCst));
                        assert_eq!(a, b, "a commit in the midst of a write");
                        batch.insert(id, a);
                    });
                    assert_eq!(number, commits.len() as u64);
                    commits.push(batch);
                    if last {
                        return commits;
                    }
                }
            });
            let tickets: Vec<_> = writers.into_iter().flat_map(|w| w.join().unwrap()).collect();
            done.store(true, SeqCst);
            let commits = log.join().unwrap();
            for (id, value, ticket) in tickets {
                let held = commits[ticket as usize].get(&id).copied().unwrap_or(0);
                assert!(held >= value, "id {id}: commit {ticket} holds {held}, not {value}");
                committed.insert(id, (held, value));
            }
        });
        assert_eq!(committed.len() as u64, IDS);
    }
}
