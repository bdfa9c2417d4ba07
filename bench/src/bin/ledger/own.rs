//! Stores pairs with the `ledger` crate. The thread that inserts the pairs also flushes them.

use crate::{Args, Outcome};
use ledger::{Answer, Flush, Ledger, Member, Options};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use store::{RealDisk, Store, StoreOptions};

pub(crate) struct Pairs {
    store: Store,
    ledger: Ledger,
    asked: Cell<u64>,
    reads: Cell<u64>,
}

impl Pairs {
    pub(crate) fn open(folder: &Path, args: &Args) -> Outcome<Pairs> {
        let store = Store::open(Arc::new(RealDisk::open(folder)?), StoreOptions::default())?;
        let options = Options { memory_pairs: args.memory_pairs, ..Options::default() };
        let ledger = Ledger::open(&store, 1, 15, options)?;
        Ok(Pairs { store, ledger, asked: Cell::default(), reads: Cell::default() })
    }

    pub(crate) fn insert(&mut self, id: u64, member: u64) -> Outcome<()> {
        self.ledger.set(id, Member::Number(member), true);
        if self.ledger.is_due() {
            self.ledger.flush(&self.store, Flush::Most, 0, || Ok(0))?;
        }
        Ok(())
    }

    pub(crate) fn contains(&self, id: u64, member: u64) -> Outcome<bool> {
        let mut answer = self.ledger.ask(id, Member::Number(member));
        self.asked.set(self.asked.get() + 1);
        loop {
            match answer {
                Answer::Known(set) => return Ok(set),
                Answer::NeedsBlock(question) => {
                    self.reads.set(self.reads.get() + 1);
                    answer = question.read()?;
                }
            }
        }
    }

    pub(crate) fn sync(&mut self) -> Outcome<()> {
        self.ledger.flush(&self.store, Flush::All, 0, || Ok(0))?;
        Ok(())
    }

    /// Returns the bytes on disk and a description of the runs.
    pub(crate) fn figures(&self) -> (u64, String) {
        let stats = self.ledger.stats();
        let pairs = stats.run_pairs as f64;
        let text = format!(
            "{} runs in {} ranges, {:.2} bits of memory per pair, written {:.1} times each",
            stats.runs,
            stats.ranges,
            stats.index_bytes as f64 * 8.0 / pairs,
            stats.written_pairs as f64 / pairs,
        );
        (stats.run_bytes, text)
    }
}
