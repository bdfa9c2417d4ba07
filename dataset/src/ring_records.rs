//! Records of the rings of existence spaces: layouts and frontiers.

use crate::log_records::{put_number, take_number};
use phantom::{Layout, Range};

pub(crate) fn encode_ring(layout: &[Layout]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = 0;
    for at in layout {
        put_number(&mut out, at.low - before);
        put_number(&mut out, at.pages as u64);
        put_number(&mut out, at.roll_at);
        before = at.low;
    }
    out
}

pub(crate) fn decode_ring(bytes: &[u8]) -> Result<Vec<Layout>, String> {
    decode(bytes, true)
}

/// Decodes a layout written by an older release, which does not contain the number of pairs at
/// which a table is closed.
pub(crate) fn decode_layout(bytes: &[u8]) -> Result<Vec<Layout>, String> {
    decode(bytes, false)
}

fn decode(mut bytes: &[u8], has_roll_points: bool) -> Result<Vec<Layout>, String> {
    let mut layout: Vec<Layout> = Vec::new();
    let mut low = 0u64;
    while !bytes.is_empty() {
        let step = take_number(&mut bytes)?;
        let pages = take_number(&mut bytes)?;
        low = low.checked_add(step).ok_or("a table above 2^64-1")?;
        if step == 0 && !layout.is_empty() {
            return Err("two tables with the same lowest id".to_owned());
        }
        let pages = usize::try_from(pages)
            .ok()
            .filter(|&p| p <= 1 << 40)
            .ok_or("a table with too many pages")?;
        let roll_at = if has_roll_points { take_number(&mut bytes)? } else { 0 };
        layout.push(Layout { low, pages, roll_at });
    }
    Ok(layout)
}

pub(crate) fn encode_frontier(ranges: &[Range]) -> Vec<u8> {
    let mut out = Vec::new();
    Range::encode(ranges).into_iter().for_each(|n| put_number(&mut out, n));
    out
}

pub(crate) fn decode_frontier(mut bytes: &[u8]) -> Result<Vec<Range>, String> {
    let mut numbers = Vec::new();
    while !bytes.is_empty() {
        numbers.push(take_number(&mut bytes)?);
    }
    Range::decode(&numbers).ok_or_else(|| "no frontier".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_read_back() {
        let layout = vec![
            Layout { low: 7, pages: 1, roll_at: 0 },
            Layout { low: 8, pages: 300, roll_at: 1000 },
            Layout { low: u64::MAX, pages: 2, roll_at: u64::MAX },
        ];
        let bytes = encode_ring(&layout);
        assert_eq!(decode_ring(&bytes).unwrap(), layout);
        assert!(decode_ring(&bytes[..bytes.len() - 1]).is_err(), "cut off");
        assert_eq!(decode_ring(&[]).unwrap(), []);
        assert_eq!(decode_layout(&[7, 1]).unwrap(), layout[..1], "written by an older build");
        assert_eq!(decode_layout(&[]).unwrap(), []);
        assert!(decode_layout(&[5, 1, 0, 1]).is_err(), "not rising");
        assert!(decode_layout(&[5]).is_err(), "cut off");
        let range = |start, high, window| Range { start, high, window };
        let one = vec![range(0, u64::MAX, u64::MAX)];
        let two = vec![range(0, 300, 1024), range(1 << 52, 1 << 53, 7)];
        for ranges in [vec![], vec![range(0, 0, 1024)], one, two] {
            let bytes = encode_frontier(&ranges);
            assert_eq!(decode_frontier(&bytes), Ok(ranges.clone()));
            let is_other = |end: usize| decode_frontier(&bytes[..end]) != Ok(ranges.clone());
            assert!((0..bytes.len()).all(is_other), "cut off");
        }
        assert_eq!(decode_frontier(&[9, 7]), Ok(vec![range(0, 9, 7)]), "written by an older build");
        assert!(decode_frontier(&[1, 1, 1]).is_err());
    }
}
