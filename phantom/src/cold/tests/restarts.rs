//! Restarts of a space with several id ranges, from an old snapshot, cold tables and the log. The
//! process may be killed during a restart after it has merged a table.

use super::*;
use crate::{Layout, Origin};
use rolling::Range;

/// Log batch: layout and frontier if they changed, then the set pairs.
struct Batch {
    layout: Option<Vec<Layout>>,
    ranges: Option<Vec<Range>>,
    pairs: Vec<(u64, u64)>,
}

struct Past {
    head: Vec<u8>,
    tables: Vec<Vec<u8>>,
    late: Vec<Vec<u8>>,
    layout: Vec<Layout>,
    /// Number of log batches before the snapshot.
    batches: usize,
}

struct Master {
    space: Space,
    log: Vec<Batch>,
    logged: (Vec<Layout>, Vec<Range>),
    next: u64,
}

impl Master {
    fn new(options: Options) -> Master {
        Master {
            space: Space::new(options).unwrap(),
            log: vec![],
            logged: Default::default(),
            next: 100,
        }
    }

    fn set(&mut self, pairs: impl IntoIterator<Item = (u64, u64)>) {
        let pairs: Vec<(u64, u64)> = pairs.into_iter().collect();
        for &(id, viewer) in &pairs {
            assert_ne!(self.space.add(id, &member(viewer)).unwrap(), Change::Unknown);
        }
        while self.space.maintain() {}
        let now = (self.space.layout(), self.space.course(0).ranges);
        let layout = (now.0 != self.logged.0).then(|| now.0.clone());
        let ranges = (now.1 != self.logged.1).then(|| now.1.clone());
        self.log.push(Batch { layout, ranges, pairs });
        self.logged = now;
    }

    /// Sets one pair for each of 50 new ids of the lower range.
    fn fill(&mut self) {
        self.set((self.next..self.next + 50).map(|id| (id, id % 7)));
        self.next += 50;
    }

    fn snapshot(&self) -> Past {
        let head = self.space.encode_head();
        let table = |(low, _): (u64, u64)| {
            let mut bytes = vec![];
            let add = |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                Ok::<(), ()>(())
            };
            assert!(self.space.encode_table(low, add).unwrap());
            bytes
        };
        let tables = self.space.ranges_in_memory().into_iter().map(table).collect();
        let mut late = vec![];
        let add = |piece: &[u8]| {
            late.push(piece.to_vec());
            Ok::<(), ()>(())
        };
        self.space.encode_late(add).unwrap();
        Past { head, tables, late, layout: self.space.layout(), batches: self.log.len() }
    }

    /// Restarts from the tables currently on the shelf. Calls `each` after each log batch.
    fn restart(&self, shelf: &Shelf, past: &Past, mut each: impl FnMut(usize, &Space)) -> Space {
        let options = self.space.options().clone();
        let mut late = HashMap::new();
        past.late.iter().for_each(|piece| LatePairs::take(&mut late, piece).unwrap());
        let mut tables = vec![];
        for bytes in &past.tables {
            let mut decoder = TableDecoder::new(&options, u64::MAX);
            decoder.feed(bytes).unwrap();
            tables.push(decoder.finish().unwrap());
        }
        for stored in shelf.tables.lock().values() {
            let note = Note::decode(&options, &stored.note).unwrap();
            let low = note.range().0;
            tables.retain(|table| table.range().0 != low);
            tables.push(note.table(stored.clone(), late.get(&low), false).unwrap());
        }
        let space = Space::restore(options, &past.head, &past.layout, tables).unwrap();
        space.put_late(&late).unwrap();
        for (at, batch) in self.log.iter().enumerate().skip(past.batches) {
            batch.layout.iter().for_each(|layout| space.put_layout(layout).unwrap());
            batch.ranges.iter().for_each(|ranges| space.put_frontier(ranges));
            for &(id, viewer) in &batch.pairs {
                space.put(&space.pair(id, &member(viewer)), true).unwrap();
            }
            each(at, &space);
        }
        space.lead();
        space
    }

    fn verify(&self, space: &Space, what: &str) {
        for &(id, viewer) in self.log.iter().flat_map(|batch| &batch.pairs) {
            let answer = space.contains(id, &member(viewer)).unwrap();
            assert_eq!(answer, Answer::Yes, "{what}: {id} {viewer}");
        }
    }
}

/// A restart merges a table before replay reaches the next table of the range. The new file then
/// covers ids up to the upper range, and the process is killed. The next restart must not assign
/// all ids of that file to the range. Otherwise an outlier (an id far above all tables) among them
/// would move into the table of that file. Lookups would miss the outlier once replay of the log
/// creates another table for its id.
#[test]
fn outlier_in_a_gap_survives_a_killed_start() {
    const FAR: u64 = 1 << 40;
    let options = Options { max_outliers: 1024, max_tables: 20, ..options(0.0001) };
    let (shelf, mut master) = (Shelf::default(), Master::new(options));
    (0..10).for_each(|_| master.fill());
    master.set((0..200).map(|n| (FAR + 16 * n, n)));
    // This id is below the first id of the upper range, but far above the lower range.
    let outlier = (FAR - 100, 1);
    master.set([outlier]);
    assert_eq!(master.space.origin(outlier.0, &member(outlier.1)), Origin::Outlier);
    let low = master.space.range_over(200).unwrap().0;
    let past = master.snapshot();
    master.set([(150, 1 << 20), (151, 1 << 20)]);
    while master.space.range_over(master.next - 1).unwrap().0 == low {
        master.fill();
    }
    master.fill();
    shelf.write(&master.space, low, || ());

    let mut killed = false;
    master.restart(&shelf, &past, |_, space| {
        if !killed {
            shelf.write(space, low, || ());
            killed = true;
        }
    });
    assert!(killed);
    let restarted = master.restart(&shelf, &past, |_, _| ());
    master.verify(&restarted, "restarted");
    let origin = restarted.origin(outlier.0, &member(outlier.1));
    assert_eq!(origin, Origin::Outlier, "the table has not moved");
    assert_eq!(restarted.layout(), master.space.layout());
}
