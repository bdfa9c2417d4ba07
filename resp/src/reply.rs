//! Encodes replies directly into the connection's output buffer, in the client's protocol version.
//!
//! RESP2 lacks some types of RESP3. Each method documents what it writes in RESP2 instead. Only
//! [`Reply::error`] writes errors. It removes CR, LF and NUL, so that an error that quotes client
//! input cannot inject another reply.

/// Protocol version of a connection, chosen by HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Initial version of every connection.
    #[default]
    Resp2,
    /// Version after `HELLO 3`.
    Resp3,
}

/// Maximum length of an error in bytes. Longer errors are truncated.
const MAX_ERROR: usize = 1024;

/// Writer of replies for one connection. To write an aggregate, first write its length
/// (`array(2)`), then its elements.
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> Reply<'a> {
    /// Creates a writer that appends to `out`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Reply<'a> {
        Reply { out, protocol }
    }

    /// Reborrows the writer.
    #[inline]
    pub fn again(&mut self) -> Reply<'_> {
        Reply { out: self.out, protocol: self.protocol }
    }

    /// Returns the output buffer, for replies that are already encoded.
    #[inline]
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Returns the protocol version.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Changes the protocol version for later replies. HELLO replies in the new version.
    #[inline]
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Returns the length of the output buffer, for [`Reply::rewind`].
    #[inline]
    pub fn mark(&self) -> usize {
        self.out.len()
    }

    /// Discards all output since `mark`.
    #[inline]
    pub fn rewind(&mut self, mark: usize) {
        self.out.truncate(mark);
    }

    /// Writes `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// Writes a simple string. The text must not contain CR or LF.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(text.bytes().all(|byte| !matches!(byte, b'\r' | b'\n')));
        self.line(b'+', text.as_bytes());
    }

    /// Writes an error; `text` includes the prefix (`ERR no such thing`). Replaces CR, LF and NUL
    /// by spaces, and truncates the text after 1 KiB.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        self.out.push(b'-');
        let cut = &text[..text.len().min(MAX_ERROR)];
        self.out.extend(cut.iter().map(|&b| if matches!(b, b'\r' | b'\n' | 0) { b' ' } else { b }));
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes an integer.
    #[inline]
    pub fn int(&mut self, value: i64) {
        if let Ok(small @ 0..=9) = u8::try_from(value) {
            self.out.extend_from_slice(&[b':', b'0' + small, b'\r', b'\n']);
            return;
        }
        let mut buf = [0; 24];
        buf[22..].copy_from_slice(b"\r\n");
        let at = digits(value, &mut buf, 22);
        buf[at - 1] = b':';
        self.out.extend_from_slice(&buf[at - 1..]);
    }

    /// Writes `rows` arrays of `width` integers as elements of an array whose header the caller has
    /// written.
    ///
    /// - `bits`: bitwise OR of all integers, or a superset.
    /// - `most`: size in bytes of the output buffer above which the call stops. The caller then
    ///   closes the client.
    /// - `write`: writes the header and the integers of one row.
    /// - `refused`: returns an error to write instead of the row.
    ///
    /// This method resizes the output buffer only once per group of rows.
    #[inline]
    pub fn int_rows<'t>(
        &mut self,
        rows: usize,
        width: usize,
        bits: u64,
        most: usize,
        mut write: impl FnMut(usize, &mut IntRow<'_>),
        refused: impl Fn(usize) -> Option<&'t [u8]>,
    ) {
        let null =
            if self.protocol == Protocol::Resp3 { (b"_\r\n\0\0", 3) } else { (b"$-1\r\n", 5) };
        let head = SMALL.get(width).map(|word| word ^ u64::from(b':' ^ b'*'));
        // The buffer is zeroed before use, so do not make it larger than the rows require.
        let small = bits >> 19 == 0;
        let room =
            head.map_or(MAX_HEADER, length) + width * if small { MAX_SMALL_INT } else { MAX_INT };
        let mut row = 0;
        while row < rows && self.out.len() <= most {
            let start = self.out.len();
            let together = (ROWS_BYTES / room).clamp(1, rows - row);
            self.out.resize(start + together * room + FAST_ROW_BYTES, 0);
            let mut writer =
                IntRow { out: &mut self.out[start..], at: 0, null, width, head, small };
            let mut refusal = None;
            for _ in 0..together {
                refusal = refused(row);
                if refusal.is_none() {
                    write(row, &mut writer);
                }
                row = row.wrapping_add(1);
                if refusal.is_some() {
                    break;
                }
            }
            let end = start + writer.at;
            self.out.truncate(end);
            if let Some(text) = refusal {
                self.error(text);
            }
        }
    }

    /// Writes a count as an integer.
    #[inline]
    pub fn count(&mut self, value: usize) {
        self.int(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// Writes a bulk string.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes a number as a bulk string, as in the reply to GET.
    #[inline]
    pub fn bulk_int(&mut self, value: i64) {
        let mut buf = [0; 20];
        let at = digits(value, &mut buf, 20);
        self.bulk(&buf[at..]);
    }

    /// Writes a bulk string of `length` bytes, which `write` appends to the buffer.
    ///
    /// # Panics
    ///
    /// Panics if `write` appends a different number of bytes.
    #[inline]
    pub fn bulk_with(&mut self, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.header(b'$', length);
        let start = self.out.len();
        write(self.out);
        assert!(
            self.out.len() == start + length,
            "{} bytes written to a bulk of length {length}",
            self.out.len() - start
        );
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes human-readable text: a verbatim string, or in RESP2 a bulk string.
    #[inline]
    pub fn text(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.header(b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Writes a null reply: `_` in RESP3, the null bulk string in RESP2.
    #[inline]
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Writes a null array reply: `_` in RESP3, the null array in RESP2.
    #[inline]
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Writes a boolean: `#t` or `#f`; in RESP2 1 or 0.
    #[inline]
    pub fn bool(&mut self, value: bool) {
        match self.protocol {
            Protocol::Resp2 => self.int(i64::from(value)),
            Protocol::Resp3 => {
                self.out.extend_from_slice(if value { b"#t\r\n" } else { b"#f\r\n" })
            }
        }
    }

    /// Writes a floating-point number; in RESP2 a bulk string.
    pub fn double(&mut self, value: f64) {
        let text = if value.is_nan() {
            "nan".to_owned()
        } else if value.is_infinite() {
            if value > 0.0 { "inf".to_owned() } else { "-inf".to_owned() }
        } else {
            value.to_string()
        };
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => self.line(b',', text.as_bytes()),
        }
    }

    /// Writes the header of an array. `length` elements must follow.
    #[inline]
    pub fn array(&mut self, length: usize) {
        self.header(b'*', length);
    }

    /// Writes the header of a map; in RESP2 of an array. `pairs` keys and values must follow.
    #[inline]
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', pairs * 2),
            Protocol::Resp3 => self.header(b'%', pairs),
        }
    }

    /// Writes the header of a set; in RESP2 of an array. `length` elements must follow.
    pub fn set(&mut self, length: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', length),
            Protocol::Resp3 => self.header(b'~', length),
        }
    }

    /// Writes the header of an out-of-band message; in RESP2 of an array. `length` elements must
    /// follow.
    pub fn push(&mut self, length: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', length),
            Protocol::Resp3 => self.header(b'>', length),
        }
    }

    #[inline]
    fn header(&mut self, marker: u8, length: usize) {
        if length <= 9 {
            // Fast path: most lengths have one digit, which needs no division.
            self.out.extend_from_slice(&[marker, b'0' + length as u8, b'\r', b'\n']);
            return;
        }
        let mut buf = [0; 24];
        buf[22..].copy_from_slice(b"\r\n");
        let at = digits(i64::try_from(length).unwrap_or(i64::MAX), &mut buf, 22);
        buf[at - 1] = marker;
        self.out.extend_from_slice(&buf[at - 1..]);
    }

    fn line(&mut self, marker: u8, text: &[u8]) {
        self.out.push(marker);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Writer of a row; see [`Reply::int_rows`].
pub struct IntRow<'a> {
    /// Output buffer. It has room for all remaining rows, plus [`FAST_ROW_BYTES`] bytes.
    out: &'a mut [u8],
    at: usize,
    /// Encoded null, and the length of that encoding.
    null: (&'static [u8; 5], usize),
    width: usize,
    /// Encoded header of a row, in the format of [`SMALL`], or `None` if the header does not fit
    /// into that format.
    head: Option<u64>,
    /// Whether all integers are in 0..2^19.
    small: bool,
}

/// Size in bytes of a header, four integers less than 2^19 and two flags (48), rounded up, plus
/// eight bytes for one more store.
const FAST_ROW_BYTES: usize = 64 + 8;

impl IntRow<'_> {
    /// Writes the next integer of the row.
    #[inline(always)]
    pub fn int(&mut self, value: i64) {
        self.at = put_int(self.out, self.at, value);
    }

    /// Writes 1 or 0, or a null for `None`.
    #[inline(always)]
    pub fn flag(&mut self, value: Option<bool>) {
        match value {
            // Store a whole word. Loading bytes that were stored one by one would stall.
            Some(value) => {
                let word = u32::from_le_bytes(*b":0\r\n") + (u32::from(value) << 8);
                put(self.out, self.at, u64::from(word));
                self.at = self.at.wrapping_add(4);
            }
            None => {
                let (bytes, length) = self.null;
                self.out[self.at..self.at + 5].copy_from_slice(bytes);
                self.at += length;
            }
        }
    }

    /// Writes the row's header, encoded like an integer but with `*`.
    #[inline(always)]
    pub fn header(&mut self) {
        let start = self.at;
        if let Some(head) = self.head {
            put(self.out, start, head);
            self.at = start.wrapping_add(length(head));
        } else {
            self.int(self.width as i64);
            self.out[start] = b'*';
        }
    }

    /// Writes a whole row of four integers and two known flags with a single bounds check.
    #[inline(always)]
    pub fn usual(&mut self, ints: &[i64; 4], flags: [bool; 2]) {
        debug_assert_eq!(self.width, 6);
        let from = self.at;
        let room = self.out.get_mut(from..).and_then(<[u8]>::first_chunk_mut::<FAST_ROW_BYTES>);
        let (Some(room), Some(head), true) = (room, self.head, self.small) else {
            self.header();
            ints.iter().for_each(|&value| self.int(value));
            return flags.iter().for_each(|&flag| self.flag(Some(flag)));
        };
        // `FAST_ROW_BYTES` includes eight spare bytes, so a store at any `at % 64` is in bounds.
        let mut put =
            |at: usize, word: u64| room[at % 64..][..8].copy_from_slice(&word.to_le_bytes());
        put(0, head);
        let mut at = length(head);
        for &value in ints {
            at = put_small(&mut put, at, value as u32 as usize);
        }
        // Write both flags with one store; see `flag`.
        let [first, second] = flags.map(u64::from);
        put(at, u64::from_le_bytes(*b":0\r\n:0\r\n") + (first << 8) + (second << 40));
        self.at = from.wrapping_add(at).wrapping_add(8);
    }
}

/// Decimal digits of the numbers "00" to "99". With this table one division yields two digits.
const PAIRS: [u8; 200] = {
    let mut pairs = [0; 200];
    let mut i = 0;
    while i < 100 {
        pairs[i * 2] = b'0' + (i / 10) as u8;
        pairs[i * 2 + 1] = b'0' + (i % 10) as u8;
        i += 1;
    }
    pairs
};

/// Number of bytes by which the buffer grows for a group of rows.
const ROWS_BYTES: usize = 8 << 10;

/// Maximum size in bytes of an encoded integer: `:-9223372036854775808\r\n`.
const MAX_INT: usize = 23;

/// Maximum size in bytes of an encoded integer less than 2^19: `:524287\r\n`. A null is shorter.
const MAX_SMALL_INT: usize = 9;

const MAX_HEADER: usize = MAX_INT;

/// Encoded integers `:0\r\n` to `:1023\r\n`. The first byte is the lowest; the highest byte is the
/// length.
static SMALL: [u64; 1024] = {
    let mut small = [0; 1024];
    let mut i = 0;
    while i < 1024 {
        let (mut word, mut length, mut power) = (b':' as u64, 1, 1);
        while i / power > 9 {
            power *= 10;
        }
        while power > 0 {
            word |= ((i / power % 10) as u64 + 0x30) << (8 * length);
            length += 1;
            power /= 10;
        }
        word |= 0x0a0d << (8 * length);
        small[i] = word | (length + 2) << 56;
        i += 1;
    }
    small
};

/// Encoded digits `000\r\n` to `999\r\n`. The first byte is the lowest.
static THREE: [u64; 1000] = {
    let mut three = [0; 1000];
    let mut i = 0;
    while i < 1000 {
        let digits = [(i / 100) as u64, (i / 10 % 10) as u64, (i % 10) as u64];
        three[i] = 0x0a_0d30_3030 | digits[0] | digits[1] << 8 | digits[2] << 16;
        i += 1;
    }
    three
};

/// Returns the length of a word of [`SMALL`].
#[inline(always)]
fn length(word: u64) -> usize {
    (word >> 56) as usize
}

/// Stores eight bytes at `out[at..]`. Panics if they do not fit.
#[inline(always)]
fn put(out: &mut [u8], at: usize, word: u64) {
    *out.get_mut(at..).and_then(<[u8]>::first_chunk_mut).expect("the caller reserved the bytes") =
        word.to_le_bytes();
}

/// Writes an integer from 0 to 999,999 at `at`, with stores of eight bytes. Returns the end offset.
#[inline(always)]
fn put_small(mut put: impl FnMut(usize, u64), at: usize, value: usize) -> usize {
    if value < 1000 {
        let word = SMALL[value];
        put(at, word);
        return at.wrapping_add(length(word));
    }
    let head = SMALL[value / 1000 % SMALL.len()];
    put(at, head);
    // The second store overwrites the CR LF of the first.
    let at = at.wrapping_add(length(head)).wrapping_sub(2);
    put(at, THREE[value % 1000]);
    at.wrapping_add(5)
}

/// Writes an integer at `out[at..]`, and returns the end offset. There must be room for eight bytes
/// more than [`MAX_INT`].
#[inline(always)]
fn put_int(out: &mut [u8], at: usize, value: i64) -> usize {
    if let 0..=999_999 = value {
        return put_small(|at, word| put(out, at, word), at, value as usize);
    }
    let mut buf = [0; 24];
    buf[22..].copy_from_slice(b"\r\n");
    let from = digits(value, &mut buf, 22) - 1;
    buf[from] = b':';
    let length = 24 - from;
    out[at..at + length].copy_from_slice(&buf[from..]);
    at + length
}

/// Writes `value` in decimal digits that end before `buf[end]`, at most 20 bytes. Returns the start
/// offset.
#[inline]
fn digits(value: i64, buf: &mut [u8], end: usize) -> usize {
    let mut rest = value.unsigned_abs();
    let mut at = end;
    while rest >= 100 {
        let pair = (rest % 100) as usize * 2;
        rest /= 100;
        at -= 2;
        buf[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    if rest >= 10 {
        let pair = rest as usize * 2;
        at -= 2;
        buf[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    } else {
        at -= 1;
        buf[at] = b'0' + rest as u8;
    }
    if value < 0 {
        at -= 1;
        buf[at] = b'-';
    }
    at
}

/// Appends `value` in decimal.
pub fn decimal(value: i64, out: &mut Vec<u8>) {
    let mut buf = [0; 20];
    let at = digits(value, &mut buf, 20);
    out.extend_from_slice(&buf[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply::new(&mut out, protocol));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn both_protocols() {
        type Case = (fn(&mut Reply<'_>), &'static str, &'static str);
        let cases: &[Case] = &[
            (|r| r.ok(), "+OK\r\n", "+OK\r\n"),
            (|r| r.simple("PONG"), "+PONG\r\n", "+PONG\r\n"),
            (|r| r.int(-12), ":-12\r\n", ":-12\r\n"),
            (|r| r.bulk(b"0123456789"), "$10\r\n0123456789\r\n", "$10\r\n0123456789\r\n"),
            (
                |r| r.bulk_int(i64::MIN),
                "$20\r\n-9223372036854775808\r\n",
                "$20\r\n-9223372036854775808\r\n",
            ),
            (|r| r.null(), "$-1\r\n", "_\r\n"),
            (|r| r.null_array(), "*-1\r\n", "_\r\n"),
            (|r| r.bool(true), ":1\r\n", "#t\r\n"),
            (|r| r.bool(false), ":0\r\n", "#f\r\n"),
            (|r| r.double(0.5), "$3\r\n0.5\r\n", ",0.5\r\n"),
            (|r| r.double(f64::NEG_INFINITY), "$4\r\n-inf\r\n", ",-inf\r\n"),
            (|r| r.array(12), "*12\r\n", "*12\r\n"),
            (|r| r.map(3), "*6\r\n", "%3\r\n"),
            (|r| r.set(3), "*3\r\n", "~3\r\n"),
            (|r| r.push(3), "*3\r\n", ">3\r\n"),
            (|r| r.text("hi"), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
            (|r| r.bulk_with(2, |out| out.extend(b"ab")), "$2\r\nab\r\n", "$2\r\nab\r\n"),
        ];
        for (i, (write, two, three)) in cases.iter().enumerate() {
            assert_eq!(written(Protocol::Resp2, write), *two, "case {i}");
            assert_eq!(written(Protocol::Resp3, write), *three, "case {i}");
        }
    }

    #[test]
    fn an_error_is_one_line_whatever_it_quotes() {
        let text = written(Protocol::Resp2, |r| r.error(b"ERR unknown command 'a\r\n+OK\0'"));
        assert_eq!(text, "-ERR unknown command 'a  +OK '\r\n");
        let long = written(Protocol::Resp2, |r| r.error(vec![b'x'; 100_000]));
        assert_eq!(long.len(), 1 + MAX_ERROR + 2);
    }

    #[test]
    fn integers_are_written_as_the_standard_library_writes_them() {
        let mut random = fastrand::Rng::with_seed(3);
        let edges = [0, 9, 10, 99, 100, 101, 999, 1000, i64::MAX, i64::MIN, -1, -9, -10, -99, -100];
        let values = edges
            .into_iter()
            .chain(-2..20_000)
            .chain([999_999, 1_000_000, 100_000, 123_456])
            .chain((0..100_000).map(|_| random.i64(..) >> random.u32(0..64)));
        for value in values {
            assert_eq!(written(Protocol::Resp2, |r| r.int(value)), format!(":{value}\r\n"));
            assert_eq!(
                written(Protocol::Resp2, |r| r.int_rows(
                    1,
                    4,
                    value as u64,
                    usize::MAX,
                    |_, row| {
                        row.header();
                        row.int(value);
                        [None, Some(true), Some(false)].into_iter().for_each(|flag| row.flag(flag));
                    },
                    |_| None
                )),
                format!("*4\r\n:{value}\r\n$-1\r\n:1\r\n:0\r\n")
            );
            let mut out = Vec::new();
            decimal(value, &mut out);
            assert_eq!(out, value.to_string().into_bytes());
        }
    }

    /// Tests rows of four integers and two flags, including rows too large for the fast path.
    #[test]
    fn usual_rows_are_written_as_others_are() {
        let mut random = fastrand::Rng::with_seed(9);
        for most in [10, 1_000, 1_001, 100_000, (1 << 19) - 1, 1 << 19, i64::MAX] {
            for rows in [0, 1, 2, 200] {
                let mut value = || {
                    let edge = 10i64.pow(random.u32(0..6)) - random.i64(0..2);
                    [random.i64(0..=most), edge.min(most), most][random.usize(0..3)]
                };
                let data: Vec<[i64; 4]> =
                    (0..rows).map(|_| std::array::from_fn(|_| value())).collect();
                let flags = |row: usize| [row.is_multiple_of(2), row.is_multiple_of(3)];
                let bits = data.as_flattened().iter().fold(0, |bits, &value| bits | value as u64);
                let found = written(Protocol::Resp2, |r| {
                    r.int_rows(
                        rows,
                        6,
                        bits,
                        usize::MAX,
                        |row, out| out.usual(&data[row], flags(row)),
                        |_| None,
                    );
                });
                let expected = written(Protocol::Resp2, |r| {
                    for (row, values) in data.iter().enumerate() {
                        r.array(6);
                        values.iter().for_each(|&value| r.int(value));
                        flags(row).iter().for_each(|&flag| r.bool(flag));
                    }
                });
                assert_eq!(found, expected);
            }
        }
    }

    /// Tests any number of rows of any width, including rows with errors and replies that span
    /// several allocations.
    #[test]
    fn rows_are_written_as_arrays_of_integers() {
        for (rows, width) in [(0, 3), (1, 0), (1, 1), (7, 12), (1000, 6), (3, 1000), (2, 123_456)] {
            let value =
                |row: usize, column: usize| (row * 7919 + column * 104_729) as i64 % 3_000_000 - 5;
            let refused = |row: usize| (row % 5 == 3).then_some(&b"ERR no"[..]);
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                let expected = written(protocol, |r| {
                    for row in 0..rows {
                        if refused(row).is_some() {
                            r.error("ERR no");
                            continue;
                        }
                        r.array(width);
                        for column in 0..width {
                            if column % 3 == 2 { r.null() } else { r.int(value(row, column)) }
                        }
                    }
                });
                let found = written(protocol, |r| {
                    let write = |row: usize, to: &mut IntRow<'_>| {
                        to.header();
                        for column in 0..width {
                            if column % 3 == 2 { to.flag(None) } else { to.int(value(row, column)) }
                        }
                    };
                    let bits = (0..rows * width)
                        .fold(0, |bits, i| bits | value(i / width, i % width) as u64);
                    r.int_rows(rows, width, bits, usize::MAX, write, refused);
                });
                assert!(found == expected, "{rows} rows of {width}");
                // Output stops at the limit. At most one group of rows exceeds the limit.
                let most = expected.len() / 2;
                let cut = written(protocol, |r| {
                    let write = |_, to: &mut IntRow<'_>| {
                        to.header();
                        (0..width).for_each(|_| to.int(-5));
                    };
                    r.int_rows(rows, width, u64::MAX, most, write, refused);
                });
                assert!(
                    rows == 0 || cut.len() > most.min(expected.len() / 2),
                    "{rows} rows of {width}"
                );
                assert!(
                    cut.len() <= most + ROWS_BYTES.max(width * MAX_INT + MAX_HEADER),
                    "{rows} rows of {width}"
                );
            }
        }
    }

    /// The crate redis-protocol decodes the same values from both protocol versions.
    #[test]
    fn redis_protocol_reads_what_is_written() {
        use redis_protocol::{resp2, resp3};
        let write = |r: &mut Reply<'_>| {
            r.map(2);
            r.bulk(b"a");
            r.array(4);
            r.int(-7);
            r.null();
            r.bool(true);
            r.error("ERR x");
            r.bulk(b"b");
            r.set(2);
            r.text("t");
            r.double(1.5);
        };
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let mut out = Vec::new();
            write(&mut Reply::new(&mut out, protocol));
            let consumed = match protocol {
                Protocol::Resp2 => resp2::decode::decode(&out).unwrap().map(|(frame, n)| {
                    assert!(format!("{frame:?}").contains("Integer(-7)"), "{frame:?}");
                    n
                }),
                Protocol::Resp3 => {
                    resp3::decode::complete::decode(&out).unwrap().map(|(frame, n)| {
                        assert!(matches!(frame, resp3::types::OwnedFrame::Map { .. }), "{frame:?}");
                        n
                    })
                }
            };
            assert_eq!(consumed, Some(out.len()));
        }
    }
}
