//! Where two histories part: what a replica that does not go on from its own position has alone,
//! and is about to drop.
//!
//! A segment has one writer, and a header (number, term, base, chain before it) that no other
//! writer's has. So two logs that have a segment with the same header have the same batches in it,
//! as far as both go; and the newest such segment is where they part. Each knows its own segments:
//! the master names its own in Welcome, the replica compares.
//!
//! They part, by the newest segment that both have:
//!
//! - It is there: where the first of the two leaves it.
//! - It is gone; the master's oldest is of the same term as our newest, and later: nowhere before
//!   what was durable at the master that wrote ours (`unsynced_bytes` of our batches).
//! - It is gone otherwise: perhaps anywhere; all that we have may be ours alone.

use store::{Error, FollowLog, SEGMENT_HEAD_BYTES, SegmentHead, segments_back};

/// Between which offsets two histories part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divergence {
    /// What lies before is in both.
    pub(crate) at_least: u64,
    /// What lies behind is not.
    pub(crate) at_most: u64,
}

/// Headers as they came in Welcome, the newest first.
pub(crate) fn headers(bytes: &[u8]) -> Option<Vec<SegmentHead>> {
    let (whole, rest) = bytes.as_chunks::<{ SEGMENT_HEAD_BYTES as usize }>();
    let heads: Result<Vec<_>, _> = whole.iter().map(|head| SegmentHead::decode(head)).collect();
    heads.ok().filter(|_| rest.is_empty())
}

/// Where our log parts from the master's, which ends at `end` and has these segments.
pub(crate) fn divergence(
    log: &FollowLog,
    end: u64,
    theirs: &[SegmentHead],
) -> Result<Divergence, Error> {
    let written = log.written();
    let ours = segments_back(log.disk(), written.segment, usize::MAX)?;
    // Where each of the segments ends.
    let ends = |last: u64, heads: &[SegmentHead]| -> Vec<u64> {
        std::iter::once(last).chain(heads.iter().map(|head| head.base)).take(heads.len()).collect()
    };
    for (our, our_end) in ours.iter().zip(ends(written.offset, &ours)) {
        let same = theirs.iter().zip(ends(end, theirs)).find(|(their, _)| *their == our);
        if let Some((_, their_end)) = same {
            let at = our_end.min(their_end).max(our.base);
            return Ok(Divergence { at_least: at, at_most: at });
        }
    }
    let at_most = theirs.last().map_or(end, |oldest| oldest.base.min(end)).min(written.offset);
    let at_least = match (ours.first(), theirs.last()) {
        (Some(our), Some(their)) if our.term == their.term && our.segment < their.segment => {
            log.durable_at_master()?.min(at_most)
        }
        _ => 0,
    };
    Ok(Divergence { at_least, at_most })
}
