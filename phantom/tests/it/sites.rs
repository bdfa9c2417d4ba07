//! A second site: a copy of a space that goes its own way, and comes back by blocks.

use phantom::{BlockPlace, MergeError, Pair, Space, TableDecoder, Unreadable};

/// A copy, made as a snapshot is, that takes writes of its own.
pub(crate) fn copy(space: &Space) -> Space {
    let head = space.encode_head();
    let table = |low: u64| {
        let mut decoder = TableDecoder::new(space.options(), 1 << 30);
        assert_eq!(
            space.encode_table(low, |piece| decoder.feed(piece)),
            Ok(true),
            "nothing is recycled meanwhile"
        );
        decoder.finish().expect("what was encoded")
    };
    let tables = space.layout().iter().map(|at| table(at.low)).collect();
    let options = space.options().clone();
    let copy = Space::restore(options, &head, &space.layout(), tables).expect("a whole snapshot");
    copy.restore_generations(&space.forgotten(0, u64::MAX));
    copy.lead();
    copy
}

/// What a merge leaves to be logged.
#[derive(Default)]
pub(crate) struct Merged {
    pub(crate) blocks: Vec<BlockPlace>,
    pub(crate) pairs: Vec<Pair>,
    /// Ranges of the tables of which all blocks were merged.
    pub(crate) whole: Vec<(u64, u64)>,
    pub(crate) refused: Vec<MergeError>,
}

/// Brings all blocks that differ from one site to another.
pub(crate) fn merge(here: &Space, there: &Space) -> Merged {
    let mut merged = Merged::default();
    for at in there.layout() {
        let Some(theirs) = there.digest(at.low).unwrap() else { continue };
        let ours = here.digest(at.low).unwrap().map_or(vec![], |digest| digest.blocks);
        let differ: Vec<usize> =
            (0..theirs.blocks.len()).filter(|&i| ours.get(i) != Some(&theirs.blocks[i])).collect();
        let mut bytes = vec![];
        let sink = |block: &[u8]| {
            bytes.extend_from_slice(block);
            Ok::<(), Unreadable>(())
        };
        assert_eq!(there.export_blocks(at.low, &differ, sink), Ok(true));
        let (mut rest, refused) = (&bytes[..], merged.refused.len());
        while !rest.is_empty() && merged.refused.len() == refused {
            let block = here.read_block(&mut rest);
            match block.and_then(|block| Ok((block.place(), here.merge_block(&block, || ())?))) {
                Ok((place, ((), changed))) => {
                    merged
                        .pairs
                        .extend(changed.into_iter().map(|hash| Pair::from_hash(place.low, hash)));
                    merged.blocks.push(place);
                }
                Err(error) => merged.refused.push(error),
            }
        }
        if merged.refused.len() == refused {
            merged.whole.push((theirs.low, theirs.last));
        }
    }
    merged
}
