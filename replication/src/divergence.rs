//! Computes where two histories diverge. A replica that fetches its master's data loses the part of
//! its own log after that point.
//!
//! Only one node writes a segment, and no other node writes a segment with an equal header (number,
//! term, base, chain value). If two logs have a segment with equal headers, they therefore contain
//! the same batches in that segment, up to the shorter end. The newest segment that both logs share
//! shows where they diverge. The master lists its segments in Welcome, and the replica compares
//! them with its own:
//!
//! - The logs share a segment: they diverge at the lower of its two ends.
//! - The logs share no segment, and the master's oldest segment has the same term as the replica's
//!   newest one and a higher number: the divergence is not before the offset that was durable on
//!   the master that wrote the replica's log (`unsynced_bytes` of its batches).
//! - Otherwise the divergence may be anywhere.

use store::{Error, ReplicaLog, SEGMENT_HEAD_BYTES, SegmentHead, segments_back};

/// Range of offsets in which two histories diverge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divergence {
    /// The logs are equal before this offset.
    pub(crate) at_least: u64,
    /// The logs differ after this offset.
    pub(crate) at_most: u64,
}

/// Decodes the segment headers in Welcome, newest first.
pub(crate) fn headers(bytes: &[u8]) -> Option<Vec<SegmentHead>> {
    let (whole, rest) = bytes.as_chunks::<{ SEGMENT_HEAD_BYTES as usize }>();
    let heads: Result<Vec<_>, _> = whole.iter().map(|head| SegmentHead::decode(head)).collect();
    heads.ok().filter(|_| rest.is_empty())
}

/// Returns where the replica's log diverges from the master's. The master's log ends at `end` and
/// has the segments `theirs`.
pub(crate) fn divergence(
    log: &ReplicaLog,
    end: u64,
    theirs: &[SegmentHead],
) -> Result<Divergence, Error> {
    let written = log.written();
    let ours = segments_back(log.disk(), written.segment, usize::MAX)?;
    // Returns the end of each segment.
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
