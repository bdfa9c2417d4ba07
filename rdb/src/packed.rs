//! Compact encodings of small sets and hashes, serialized as one string: intset, ziplist, listpack.

use crate::error::Error;
use crate::reader::{EMPTY, Element, Scratch};

const BROKEN: Error = Error::Format("invalid packed list");
/// Header value for an unknown number of elements.
const UNKNOWN_COUNT: u64 = 0xffff;

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], Error> {
    let (taken, left) = rest.split_at_checked(count).ok_or(BROKEN)?;
    *rest = left;
    Ok(taken)
}

fn array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Error> {
    let (taken, left) = rest.split_first_chunk().ok_or(BROKEN)?;
    *rest = left;
    Ok(*taken)
}

/// Decodes a little-endian integer of 1 to 8 bytes.
fn integer(bytes: &[u8]) -> i64 {
    let filled = bytes.iter().rev().fold(0, |value: u64, byte| value << 8 | u64::from(*byte));
    let unused = 64 - 8 * bytes.len() as u32;
    (filled << unused) as i64 >> unused
}

/// Reads an intset: the integer width in bytes (4 bytes), the count (4 bytes), then integers of
/// that width.
pub(crate) fn intset<E: From<Error>>(
    blob: &[u8],
    give: &mut impl FnMut(Element<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut rest = blob;
    let width = u32::from_le_bytes(array(&mut rest)?) as usize;
    let count = u32::from_le_bytes(array(&mut rest)?) as usize;
    if !matches!(width, 2 | 4 | 8) || count.checked_mul(width) != Some(rest.len()) {
        return Err(BROKEN.into());
    }
    if count == 0 {
        return Err(EMPTY.into());
    }
    let mut text = Scratch::default();
    rest.chunks_exact(width).try_for_each(|bytes| give(Element::Text(text.decimal(integer(bytes)))))
}

enum Entry<'a> {
    Text(&'a [u8]),
    Integer(i64),
}

/// Calls a function for each entry of a list, and returns the number of entries. The length and the
/// count in the list's header must match the entries, and the end mark must be present.
fn for_each_entry<'a, E: From<Error>>(
    blob: &'a [u8],
    header_bytes: usize,
    next: impl Fn(u8, &mut &'a [u8]) -> Result<Entry<'a>, Error>,
    mut give: impl FnMut(Entry<'a>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut rest = blob;
    let header = take(&mut rest, header_bytes)?;
    let total = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let counted = u16::from_le_bytes([header[header_bytes - 2], header[header_bytes - 1]]);
    if total != blob.len() {
        return Err(BROKEN.into());
    }
    let mut count = 0;
    loop {
        let [first] = array(&mut rest)?;
        if first == 0xff {
            break;
        }
        give(next(first, &mut rest)?)?;
        count += 1;
    }
    if !rest.is_empty() || u64::from(counted) != UNKNOWN_COUNT && u64::from(counted) != count {
        return Err(BROKEN.into());
    }
    Ok(count)
}

/// Reads one entry of a ziplist (Redis 2.6 to 6). An entry consists of the length of the previous
/// entry (1 or 5 bytes), an encoding, and the content.
fn ziplist_entry<'a>(first: u8, rest: &mut &'a [u8]) -> Result<Entry<'a>, Error> {
    if first == 0xfe {
        take(rest, 4)?;
    }
    let [encoding] = array(rest)?;
    let length = match encoding >> 6 {
        0 => usize::from(encoding),
        1 => usize::from(encoding & 0x3f) << 8 | usize::from(array::<1>(rest)?[0]),
        2 => u32::from_be_bytes(array(rest)?) as usize,
        _ => {
            let width = match encoding {
                0xc0 => 2,
                0xd0 => 4,
                0xe0 => 8,
                0xf0 => 3,
                0xfe => 1,
                0xf1..=0xfd => return Ok(Entry::Integer(i64::from(encoding & 0xf) - 1)),
                _ => return Err(BROKEN),
            };
            return Ok(Entry::Integer(integer(take(rest, width)?)));
        }
    };
    Ok(Entry::Text(take(rest, length)?))
}

/// Reads one entry of a listpack (Redis 7). An entry consists of an encoding, the content, and the
/// length of both (1 to 5 bytes).
fn listpack_entry<'a>(first: u8, rest: &mut &'a [u8]) -> Result<Entry<'a>, Error> {
    let before = rest.len();
    let number = |rest: &mut &'a [u8], width| take(rest, width).map(integer).map(Entry::Integer);
    let entry = match first {
        0x00..=0x7f => Entry::Integer(i64::from(first)),
        0x80..=0xbf => Entry::Text(take(rest, usize::from(first & 0x3f))?),
        0xc0..=0xdf => {
            let value = i64::from(first & 0x1f) << 8 | i64::from(array::<1>(rest)?[0]);
            Entry::Integer((value << 51) >> 51)
        }
        0xe0..=0xef => {
            let length = usize::from(first & 0xf) << 8 | usize::from(array::<1>(rest)?[0]);
            Entry::Text(take(rest, length)?)
        }
        0xf0 => {
            let length = u32::from_le_bytes(array(rest)?) as usize;
            Entry::Text(take(rest, length)?)
        }
        0xf1 => number(rest, 2)?,
        0xf2 => number(rest, 3)?,
        0xf3 => number(rest, 4)?,
        0xf4 => number(rest, 8)?,
        _ => return Err(BROKEN),
    };
    let length_bytes = match 1 + before - rest.len() {
        0..=0x7f => 1,
        0x80..=0x3ffe => 2,
        0x3fff..=0x1f_fffe => 3,
        0x1f_ffff..=0xfff_fffe => 4,
        _ => 5,
    };
    take(rest, length_bytes)?;
    Ok(entry)
}

fn as_text<E>(
    entry: Entry<'_>,
    scratch: &mut Scratch,
    give: &mut impl FnMut(Element<'_>) -> Result<(), E>,
) -> Result<(), E> {
    match entry {
        Entry::Text(text) => give(Element::Text(text)),
        Entry::Integer(value) => give(Element::Text(scratch.decimal(value))),
    }
}

pub(crate) fn ziplist<E: From<Error>>(
    blob: &[u8],
    give: &mut impl FnMut(Element<'_>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut scratch = Scratch::default();
    for_each_entry(blob, 10, ziplist_entry, |entry| as_text(entry, &mut scratch, give))
}

pub(crate) fn listpack<E: From<Error>>(
    blob: &[u8],
    give: &mut impl FnMut(Element<'_>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut scratch = Scratch::default();
    for_each_entry(blob, 6, listpack_entry, |entry| as_text(entry, &mut scratch, give))
}

/// Reads a listpack of triples: field, value and expiry. An expiry of 0 means that the field does
/// not expire.
pub(crate) fn expiring_listpack<E: From<Error>>(
    blob: &[u8],
    give: &mut impl FnMut(Element<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut scratch = Scratch::default();
    let (mut value, mut count) = (None, 0);
    for_each_entry(blob, 6, listpack_entry, |entry| {
        count += 1;
        match (count % 3, value.take()) {
            (1, _) => as_text(entry, &mut scratch, give)?,
            (2, _) => value = Some(entry),
            (_, held) => {
                if !matches!(entry, Entry::Integer(0)) {
                    give(Element::Expires)?;
                }
                held.into_iter().try_for_each(|value| as_text(value, &mut scratch, give))?;
            }
        }
        Ok::<(), E>(())
    })?;
    match count % 3 {
        _ if count == 0 => Err(EMPTY.into()),
        0 => Ok(()),
        _ => Err(Error::Format("a field has no value").into()),
    }
}
