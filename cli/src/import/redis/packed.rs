//! Unpacks values with several counters, as Lua scripts write them with `struct.pack` and
//! `cmsgpack.pack`.

/// A counter, or the reason why it is rejected.
pub(crate) type Checked = Result<i64, String>;

/// A format of `struct.pack`: byte order and alignment, then one letter per value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format(Vec<Piece>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// An integer of `bytes` bytes, aligned to a multiple of `align`.
    Integer { bytes: usize, align: usize, signed: bool, big: bool },
    /// Number of bytes to skip.
    Skip(usize),
}

const NATIVE_INT: usize = 4;
const NATIVE_LONG: usize = 8;

impl Format {
    /// Parses `<>=!N`, the integers `bBhHlLTiIN`, and the skipped `x` and `cN`. Ignores spaces.
    pub(crate) fn parse(text: &str) -> Result<Format, String> {
        let (mut big, mut most_align) = (cfg!(target_endian = "big"), 1);
        let mut pieces = Vec::new();
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            let mut digits = String::new();
            while let Some(digit) = letters.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            let number = match digits.as_str() {
                "" => None,
                digits => Some(digits.parse::<usize>().ok().filter(|n| *n <= 1 << 20)),
            };
            let wrong = || format!("struct: '{letter}{digits}' is not supported");
            let mut integer = |bytes: usize, signed| {
                let align = bytes.min(most_align);
                pieces.push(Piece::Integer { bytes, align, signed, big });
            };
            match (letter, number) {
                ('<', None) => big = false,
                ('>', None) => big = true,
                ('=', None) => big = cfg!(target_endian = "big"),
                ('!', None) => most_align = NATIVE_LONG,
                ('!', Some(Some(align))) if align.is_power_of_two() => most_align = align,
                ('b', None) => integer(1, true),
                ('B', None) => integer(1, false),
                ('h', None) => integer(2, true),
                ('H', None) => integer(2, false),
                ('l', None) => integer(NATIVE_LONG, true),
                ('L' | 'T', None) => integer(NATIVE_LONG, false),
                ('i' | 'I', None) => integer(NATIVE_INT, letter == 'i'),
                ('i' | 'I', Some(Some(bytes @ 1..=8))) => integer(bytes, letter == 'i'),
                ('x', None) => pieces.push(Piece::Skip(1)),
                ('c', Some(Some(bytes))) => pieces.push(Piece::Skip(bytes)),
                (' ', None) => {}
                _ => return Err(wrong()),
            }
        }
        Ok(Format(pieces))
    }

    pub(crate) fn numbers(&self) -> usize {
        self.0.iter().filter(|piece| matches!(piece, Piece::Integer { .. })).count()
    }

    /// Unpacks the integers of a value. If an integer does not fit a counter, only that counter is
    /// rejected.
    pub(crate) fn unpack(&self, value: &[u8]) -> Result<Vec<Checked>, String> {
        let (mut at, mut found) = (0usize, Vec::new());
        for piece in &self.0 {
            let (length, align) = match *piece {
                Piece::Integer { bytes, align, .. } => (bytes, align),
                Piece::Skip(bytes) => (bytes, 1),
            };
            at = at.next_multiple_of(align.max(1));
            let bytes = value.get(at..at + length);
            let bytes = bytes.ok_or_else(|| {
                format!("struct: the value has {} bytes, fewer than the format needs", value.len())
            })?;
            at += length;
            if let Piece::Integer { signed, big, .. } = *piece {
                found.push(integer(bytes, signed, big));
            }
        }
        if at != value.len() {
            return Err(format!(
                "struct: the value has {} bytes, but the format has {at}",
                value.len()
            ));
        }
        Ok(found)
    }
}

fn integer(bytes: &[u8], signed: bool, big: bool) -> Result<i64, String> {
    let shift = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    let value = if big { bytes.iter().fold(0, shift) } else { bytes.iter().rev().fold(0, shift) };
    let unused = 64 - 8 * bytes.len() as u32;
    if signed {
        return Ok((value << unused) as i64 >> unused);
    }
    i64::try_from(value).map_err(|_| format!("{value} is greater than 9223372036854775807"))
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unpacked {
    /// One or more numbers, or a table of numbers.
    List(Vec<Checked>),
    Map(Vec<(Vec<u8>, Checked)>),
}

/// Unpacks a table of integers, or a sequence of integers.
pub(crate) fn msgpack(value: &[u8]) -> Result<Unpacked, String> {
    let mut rest = value;
    let (kind, count) = match value.first() {
        Some(&first @ 0x80..=0x8f) => (b'm', usize::from(first & 0xf)),
        Some(&first @ 0x90..=0x9f) => (b'l', usize::from(first & 0xf)),
        Some(0xdc | 0xde) => {
            let count = unsigned(value.get(1..3).ok_or(TRUNCATED)?) as usize;
            (if value[0] == 0xde { b'm' } else { b'l' }, count)
        }
        _ => (b'n', usize::MAX),
    };
    let head = match value.first() {
        _ if kind == b'n' => 0,
        Some(0xdc | 0xde) => 3,
        _ => 1,
    };
    rest = rest.get(head..).ok_or(TRUNCATED)?;
    let (mut list, mut map) = (Vec::new(), Vec::new());
    while !rest.is_empty() && list.len() + map.len() < count {
        if kind == b'm' {
            let name = match scalar(&mut rest)? {
                Scalar::Text(text) => text.to_vec(),
                Scalar::Integer(number) => number.to_string().into_bytes(),
                Scalar::Other(why) => return Err(why),
            };
            map.push((name, number(scalar(&mut rest)?)));
        } else {
            list.push(number(scalar(&mut rest)?));
        }
    }
    if !rest.is_empty() || kind != b'n' && list.len() + map.len() < count {
        return Err(TRUNCATED.to_owned());
    }
    Ok(if kind == b'm' { Unpacked::Map(map) } else { Unpacked::List(list) })
}

const TRUNCATED: &str = "msgpack: the value is truncated, or has more than one table";

enum Scalar<'a> {
    Integer(i64),
    Text(&'a [u8]),
    /// Reason why a value is not a counter.
    Other(String),
}

fn number(scalar: Scalar<'_>) -> Result<i64, String> {
    match scalar {
        Scalar::Integer(number) => Ok(number),
        Scalar::Other(why) => Err(why),
        Scalar::Text(text) => resp::integer(text).ok_or_else(|| {
            format!("msgpack: \"{}\" is not an integer", text[..text.len().min(40)].escape_ascii())
        }),
    }
}

fn unsigned(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn scalar<'a>(rest: &mut &'a [u8]) -> Result<Scalar<'a>, String> {
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at_checked(count).ok_or(TRUNCATED)?;
        *rest = left;
        Ok::<&[u8], String>(taken)
    };
    let first = take(1)?[0];
    Ok(match first {
        0x00..=0x7f => Scalar::Integer(i64::from(first)),
        0xe0..=0xff => Scalar::Integer(i64::from(first as i8)),
        0xa0..=0xbf => Scalar::Text(take(usize::from(first & 0x1f))?),
        0xd9 => {
            let length = usize::from(take(1)?[0]);
            Scalar::Text(take(length)?)
        }
        0xda => {
            let length = unsigned(take(2)?) as usize;
            Scalar::Text(take(length)?)
        }
        0xcc..=0xcf => match integer(take(1 << (first - 0xcc))?, false, true) {
            Ok(number) => Scalar::Integer(number),
            Err(why) => Scalar::Other(format!("msgpack: {why}")),
        },
        0xc0 | 0xc2 | 0xc3 => {
            Scalar::Other("msgpack: nil, true and false are not integers".to_owned())
        }
        0xd0..=0xd3 => Scalar::Integer(integer(take(1 << (first - 0xd0))?, true, true)?),
        // Lua's numbers are doubles. cmsgpack packs whole numbers up to 2^53 as integers.
        0xca | 0xcb => {
            let value = match take(if first == 0xca { 4 } else { 8 })? {
                &[a, b, c, d] => f64::from(f32::from_be_bytes([a, b, c, d])),
                bytes => f64::from_bits(unsigned(bytes)),
            };
            if value.fract() != 0.0 || value.abs() >= 9.2e18 {
                return Ok(Scalar::Other(format!("msgpack: {value} is not an integer")));
            }
            Scalar::Integer(value as i64)
        }
        _ => return Err(format!("msgpack: a value of type {first:#04x} is not an integer")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_struct_are_read() {
        let unpack = |format: &str, value: &[u8]| {
            let all = Format::parse(format).unwrap().unpack(value)?;
            all.into_iter().collect::<Result<Vec<i64>, String>>()
        };
        assert_eq!(
            unpack("<I4 i2b", b"\xff\xff\xff\xff\xfe\xff\x80"),
            Ok(vec![4_294_967_295, -2, -128])
        );
        assert_eq!(unpack(">Hl", b"\x01\x00\0\0\0\0\0\0\0\x05"), Ok(vec![256, 5]));
        // The second value is aligned to 4, so two bytes of padding precede it.
        assert_eq!(unpack("<!4HI4", b"\x01\0\xaa\xaa\x05\0\0\0"), Ok(vec![1, 5]));
        assert_eq!(unpack("<c3xB", b"abc\0\x09"), Ok(vec![9]));
        assert!(unpack("<I4", b"\x01").unwrap_err().contains("fewer than the format needs"));
        assert!(unpack("<B", b"\x01\x02").unwrap_err().contains("the format has 1"));
        assert!(unpack("<L", &[0xff; 8]).unwrap_err().contains("is greater than"));
        for bad in ["d", "f", "s", "i9", "c", "!3", "<I4Z"] {
            assert!(Format::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn values_of_cmsgpack_are_read() {
        let list = |bytes: &[u8]| msgpack(bytes);
        assert_eq!(list(b"\x05\xcd\x01\x2c\xff"), Ok(Unpacked::List(vec![Ok(5), Ok(300), Ok(-1)])));
        assert_eq!(
            list(b"\x93\x05\xce\x00\x01\x11\x70\xd1\xff\x00"),
            Ok(Unpacked::List(vec![Ok(5), Ok(70_000), Ok(-256)]))
        );
        assert_eq!(list(b"\xdc\x00\x01\xa2\x33\x37"), Ok(Unpacked::List(vec![Ok(37)])));
        assert_eq!(
            list(b"\x81\xa4like\xcb\x40\x14\0\0\0\0\0\0"),
            Ok(Unpacked::Map(vec![(b"like".to_vec(), Ok(5))]))
        );
        for bad in [&b"\x93\x05"[..], b"\x81\xa4like", b"\x91\x90", b"\x90\x05"] {
            assert!(list(bad).is_err(), "{bad:?}");
        }
        // An invalid value does not affect other values.
        for bad in [
            &b"\xc0"[..],
            b"\xa1x",
            b"\xcb\x3f\xf8\0\0\0\0\0\0",
            &[0xcf, 255, 255, 255, 255, 255, 255, 255, 255],
        ] {
            let two = [&b"\x92"[..], bad, b"\x05"].concat();
            let Ok(Unpacked::List(values)) = list(&two) else { panic!("{bad:?}") };
            assert!(values[0].is_err() && values[1] == Ok(5), "{bad:?}");
        }
    }
}
