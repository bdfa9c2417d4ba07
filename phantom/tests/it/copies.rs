//! Copies a space through its snapshot format.

use phantom::{Space, TableDecoder};

/// Returns a copy that accepts writes.
pub(crate) fn copy(space: &Space) -> Space {
    let head = space.encode_head();
    let table = |low: u64| {
        let mut decoder = TableDecoder::new(space.options(), 1 << 30);
        assert_eq!(
            space.encode_table(low, |piece| decoder.feed(piece)),
            Ok(true),
            "nothing is recycled in between"
        );
        decoder.finish().expect("the encoded table decodes")
    };
    let tables: Vec<_> = space.layout().iter().map(|at| table(at.low)).collect();
    let copy = Space::restore(space.options().clone(), &head, &space.layout(), tables)
        .expect("a whole snapshot");
    copy.restore_generations(&space.forgotten(0, u64::MAX));
    copy.lead();
    copy
}
