//! Request scanner: finds the end of a request and the ranges of its arguments without copying
//! them.
//!
//! The scanner is *resumable*: when more bytes of an incomplete request arrive, it continues where
//! it stopped. A decoder that starts over for each packet needs 25 ms for 10,000 arguments. The
//! scanner is *total*: every input yields a request, "incomplete" or an error. The scanner never
//! allocates memory based on a header. A header that announces 512 MB or a million arguments
//! therefore costs nothing until the bytes arrive.
//!
//! Like Redis it accepts two forms:
//!
//! ```text
//!   *2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n     an array of bulk strings
//!   ECHO "hi there"\r\n                  inline: a line; words, quotes and escapes as in a shell
//! ```
//!
//! Errors have the same text as in Redis. The scanner is stricter in two cases, to prevent request
//! smuggling through a proxy that parses the same bytes differently. CR LF must follow a bulk
//! string (Redis skips two bytes without checking them). LF must follow the CR that ends a header
//! line.

use super::Args;
use super::inline::split;
use super::span::Span;
use std::ops::Range;

/// Maximum length of an inline request or a header line in bytes, as in Redis.
const MAX_LINE: usize = 64 * 1024;
/// Maximum number of spans for which an idle scanner retains memory.
const MAX_IDLE_SPANS: usize = 1024;

/// Maximum number of bytes that an idle scanner retains for inline requests.
const MAX_IDLE_INLINE_BYTES: usize = 1024;

/// Limits for the requests of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of arguments per request.
    pub max_args: usize,
    /// Maximum size of an argument in bytes.
    pub max_bulk_bytes: usize,
    /// True until the peer has authenticated. The error messages depend on this flag.
    pub unauthenticated: bool,
}

impl Limits {
    /// Limits of Redis for clients that have not authenticated.
    pub const UNAUTHENTICATED: Limits =
        Limits { max_args: 10, max_bulk_bytes: 16_384, unauthenticated: true };
}

/// Protocol error. The connection sends the text and closes, because the start of the next request
/// is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The number after `*` is invalid or too large.
    #[error("Protocol error: invalid multibulk length")]
    MultibulkLength,
    /// Too many arguments before authentication.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedMultibulkLength,
    /// The number after `$` is invalid or too large.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An argument is too long before authentication.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedBulkLength,
    /// The `*` line is too long.
    #[error("Protocol error: too big mbulk count string")]
    LongMultibulkLine,
    /// The `$` line is too long.
    #[error("Protocol error: too big bulk count string")]
    LongBulkLine,
    /// An inline request is too long.
    #[error("Protocol error: too big inline request")]
    LongInline,
    /// A quote is unterminated, or the closing quote is not followed by a space.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// The first byte of a bulk string is not `$`.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0))]
    ExpectedBulk(u8),
    /// The bytes are a TLS ClientHello.
    #[error("Protocol error: this port does not speak TLS")]
    Tls,
    /// The line ends in `HTTP/1.x`. The connection closes without a reply.
    #[error("Protocol error: this port does not speak HTTP")]
    Http,
    /// CR LF is missing at the end of a bulk string.
    #[error("Protocol error: expected CRLF after a bulk string")]
    ExpectedCrLf,
}

/// Result of [`Scanner::scan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The request is incomplete. Call again with the same bytes, followed by more bytes.
    Incomplete,
    /// An empty request (an empty line, `*0` or `*-1`). The caller must skip this many bytes.
    Nothing(usize),
    /// A complete request of this many bytes. [`Scanner::args`] returns its arguments.
    Request(usize),
    /// Protocol error. Send the error and close the connection.
    Refused(Malformed),
}

#[derive(Clone, Copy)]
enum ScanState {
    /// The scanner expects the first byte of a request.
    Start,
    /// The scanner expects the `$` of an argument.
    Header,
    /// The scanner expects an argument of this length.
    Body(usize),
}

enum HeaderLine {
    Value(i64, usize),
    Partial,
    Long,
    Invalid,
}

/// Scanner for the requests of one connection. See the module documentation.
///
/// The scanner stores the arguments of several consecutive requests, so that the caller can inspect
/// all of them before executing the first. See [`Scanner::discard_complete_requests`].
pub struct Scanner {
    /// Arguments of all requests since [`Scanner::discard_complete_requests`], then those of the
    /// current partial request.
    spans: Vec<Span>,
    /// Index in `spans` of the current request's first argument.
    first: usize,
    /// Index in `spans` of the last complete request's first argument. The arguments of that
    /// request end at `first`.
    last: usize,
    /// Unescaped arguments of an inline request. The spans of an inline request are ranges of this
    /// buffer.
    inline: Vec<u8>,
    is_inline: bool,
    state: ScanState,
    pos: usize,
    /// Number of arguments of the current request that are still to be scanned.
    remaining_args: usize,
    /// Position up to which the input was searched for a line end.
    searched: usize,
}

impl Default for Scanner {
    fn default() -> Self {
        Scanner {
            spans: Vec::new(),
            first: 0,
            last: 0,
            inline: Vec::new(),
            is_inline: false,
            state: ScanState::Start,
            pos: 0,
            remaining_args: 0,
            searched: 0,
        }
    }
}

impl Scanner {
    /// Scans for a request at the start of `buf`.
    ///
    /// After [`Scan::Incomplete`], `buf` must contain the same bytes followed by more bytes,
    /// possibly at another address. After any other result, `buf` must begin after the scanned
    /// request.
    #[inline]
    // Long: this function is a `match` with an arm for each state. The arms share the loop and its
    // position.
    pub fn scan(&mut self, buf: &[u8], limits: &Limits) -> Scan {
        loop {
            match self.state {
                ScanState::Start => {
                    match buf.first() {
                        None => return Scan::Incomplete,
                        Some(b'*') => {}
                        Some(_) => return self.scan_inline(buf),
                    }
                    match self.number(buf, 0) {
                        HeaderLine::Partial => return Scan::Incomplete,
                        HeaderLine::Long => return self.refuse(Malformed::LongMultibulkLine),
                        HeaderLine::Invalid => return self.refuse(Malformed::MultibulkLength),
                        HeaderLine::Value(count, next) => {
                            if count <= 0 {
                                self.reset();
                                return Scan::Nothing(next);
                            }
                            let count = usize::try_from(count).unwrap_or(usize::MAX);
                            if count > limits.max_args {
                                return self.refuse(if limits.unauthenticated {
                                    Malformed::UnauthenticatedMultibulkLength
                                } else {
                                    Malformed::MultibulkLength
                                });
                            }
                            self.is_inline = false;
                            self.remaining_args = count;
                            self.pos = next;
                            self.state = ScanState::Header;
                        }
                    }
                }
                ScanState::Header => {
                    if self.scan_short(buf, limits) {
                        return self.whole();
                    }
                    match buf.get(self.pos) {
                        None => return Scan::Incomplete,
                        Some(b'$') => {}
                        Some(&other) => return self.refuse(Malformed::ExpectedBulk(other)),
                    }
                    match self.number(buf, self.pos) {
                        HeaderLine::Partial => return Scan::Incomplete,
                        HeaderLine::Long => return self.refuse(Malformed::LongBulkLine),
                        HeaderLine::Invalid => return self.refuse(Malformed::BulkLength),
                        HeaderLine::Value(length, next) => {
                            let Ok(length) = usize::try_from(length) else {
                                return self.refuse(Malformed::BulkLength);
                            };
                            if length > limits.max_bulk_bytes {
                                return self.refuse(if limits.unauthenticated {
                                    Malformed::UnauthenticatedBulkLength
                                } else {
                                    Malformed::BulkLength
                                });
                            }
                            self.pos = next;
                            self.state = ScanState::Body(length);
                        }
                    }
                }
                ScanState::Body(length) => {
                    let end = self.pos + length;
                    if buf.len() < end + 2 {
                        return Scan::Incomplete;
                    }
                    if buf[end] != b'\r' || buf[end + 1] != b'\n' {
                        return self.refuse(Malformed::ExpectedCrLf);
                    }
                    self.spans.push(Span::new(self.pos, end));
                    self.pos = end + 2;
                    self.remaining_args -= 1;
                    if self.remaining_args == 0 {
                        return self.whole();
                    }
                    self.state = ScanState::Header;
                }
            }
        }
    }

    /// Fast path for complete arguments of less than 100 bytes. Consumes as many arguments as
    /// possible, and leaves the rest to the state machine. Returns whether the request is complete.
    #[inline]
    fn scan_short(&mut self, buf: &[u8], limits: &Limits) -> bool {
        if limits.max_bulk_bytes < 99 || u32::try_from(buf.len()).is_err() {
            return false;
        }
        let (mut pos, mut remaining_args) = (self.pos, self.remaining_args);
        let mut rest = buf.get(pos..).unwrap_or_default();
        // Previous header, its mask, and its decoded lengths. Consecutive arguments often have
        // equal lengths. The initial value is the header of PING.
        let (mut last, mut bytes, mut length, mut header) =
            (u64::from_le_bytes(*b"$4\r\n\0\0\0\0"), 0xffff_ffff, 4, 4);
        while remaining_args > 0 {
            // Compare "$dd\r\n" or "$d\r\n" as one word. A load of eight bytes is possible except
            // near the end of the buffer.
            let Some(&head) = rest.first_chunk() else { break };
            let word = u64::from_le_bytes(head);
            if (word ^ last) & bytes != 0 {
                let (one, two) = (
                    word ^ u64::from_le_bytes(*b"$0\r\n\0\0\0\0"),
                    word ^ u64::from_le_bytes(*b"$00\r\n\0\0\0"),
                );
                if two & 0xff_ff00_00ff == 0 {
                    let (tens, ones) = (two >> 8 & 0xff, two >> 16 & 0xff);
                    if tens.wrapping_sub(1) > 8 || ones > 9 {
                        break;
                    }
                    (length, header) = ((tens * 10 + ones) as usize, 5);
                } else {
                    // The byte may not be a digit.
                    let ones = one >> 8 & 0xff;
                    if one & 0xffff_00ff != 0 || ones > 9 {
                        break;
                    }
                    (length, header) = (ones as usize, 4);
                }
                (last, bytes) = (word, u64::MAX >> (64 - 8 * header));
            }
            let text = header + length;
            let Some((argument, behind)) = rest.split_at_checked(text + 2) else { break };
            if argument.last_chunk() != Some(b"\r\n") {
                break;
            }
            // All values are at most the length of the buffer, so the arithmetic does not overflow.
            let (start, end) = (pos.wrapping_add(header), pos.wrapping_add(text));
            self.spans.push(Span { start: start as u32, end: end as u32 });
            pos = end.wrapping_add(2);
            remaining_args -= 1;
            rest = behind;
        }
        self.pos = pos;
        self.remaining_args = remaining_args;
        remaining_args == 0
    }

    /// Completes a request.
    #[inline]
    fn whole(&mut self) -> Scan {
        let consumed = self.pos;
        self.last = self.first;
        self.first = self.spans.len();
        self.reset();
        Scan::Request(consumed)
    }

    /// Returns the arguments of the last request. `buf` must be the same as in [`Scanner::scan`].
    #[inline]
    pub fn args<'a>(&'a self, buf: &'a [u8]) -> Args<'a> {
        self.args_in(buf, self.last_spans(), self.is_inline)
    }

    /// Returns the range of the last request's arguments, for [`Scanner::args_in`].
    #[inline]
    pub fn last_spans(&self) -> Range<usize> {
        self.last..self.first
    }

    /// Whether the last request is inline.
    #[inline]
    pub fn is_inline(&self) -> bool {
        self.is_inline
    }

    /// Returns the arguments of a request scanned since [`Scanner::discard_complete_requests`].
    /// `buf` must be the buffer passed to [`Scanner::scan`] for that request. An inline request
    /// must be the last scanned request.
    #[inline]
    pub fn args_in<'a>(&'a self, buf: &'a [u8], spans: Range<usize>, is_inline: bool) -> Args<'a> {
        Args::new(if is_inline { &self.inline } else { buf }, self.spans.get(spans).unwrap_or(&[]))
    }

    /// Returns the memory use in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + self.inline.capacity()
    }

    /// Returns the number of stored arguments.
    #[inline]
    pub fn kept(&self) -> usize {
        self.spans.len()
    }

    /// Discards all complete requests, and keeps the current partial request.
    #[inline]
    pub fn discard_complete_requests(&mut self) {
        if self.first == self.spans.len() {
            self.spans.clear();
            if self.spans.capacity() > MAX_IDLE_SPANS {
                self.spans.shrink_to(MAX_IDLE_SPANS);
            }
            if self.inline.capacity() > MAX_IDLE_INLINE_BYTES {
                self.inline = Vec::new();
            }
        } else {
            self.spans.drain(..self.first);
        }
        (self.first, self.last) = (0, 0);
    }

    /// Discards all requests, including a partial request. The next call begins at the first byte
    /// of a request.
    #[inline]
    pub fn restart(&mut self) {
        self.spans.truncate(self.first);
        self.discard_complete_requests();
        self.reset();
    }

    #[inline]
    fn reset(&mut self) {
        self.state = ScanState::Start;
        self.pos = 0;
        self.searched = 0;
    }

    #[cold]
    fn refuse(&mut self, why: Malformed) -> Scan {
        self.reset();
        Scan::Refused(why)
    }

    /// Parses the number in the header line whose marker is at `at`.
    #[inline]
    fn number(&mut self, buf: &[u8], at: usize) -> HeaderLine {
        // Fast path: a few digits followed by CR and LF, all within the buffer.
        let digits = &buf[at + 1..];
        let mut value = 0i64;
        let mut length = 0;
        while length < 18 && length < digits.len() && digits[length].is_ascii_digit() {
            value = value * 10 + i64::from(digits[length] - b'0');
            length += 1;
        }
        let canonical = length == 1 || (length > 1 && digits[0] != b'0');
        if canonical
            && digits.len() >= length + 2
            && digits[length] == b'\r'
            && digits[length + 1] == b'\n'
        {
            self.searched = 0;
            return HeaderLine::Value(value, at + 1 + length + 2);
        }
        self.slow_number(buf, at)
    }

    #[cold]
    fn slow_number(&mut self, buf: &[u8], at: usize) -> HeaderLine {
        let from = self.searched.max(at + 1);
        let Some(cr) = find(b'\r', buf, from) else {
            self.searched = buf.len();
            return if buf.len() - at > MAX_LINE { HeaderLine::Long } else { HeaderLine::Partial };
        };
        if cr + 1 == buf.len() {
            self.searched = cr;
            return HeaderLine::Partial;
        }
        self.searched = 0;
        match super::integer(&buf[at + 1..cr]) {
            Some(value) if buf[cr + 1] == b'\n' => HeaderLine::Value(value, cr + 2),
            _ => HeaderLine::Invalid,
        }
    }

    fn scan_inline(&mut self, buf: &[u8]) -> Scan {
        if buf.starts_with(&[0x16, 3]) {
            return self.refuse(Malformed::Tls);
        }
        let Some(lf) = find(b'\n', buf, self.searched) else {
            self.searched = buf.len();
            return if buf.len() > MAX_LINE {
                self.refuse(Malformed::LongInline)
            } else {
                Scan::Incomplete
            };
        };
        let line = buf[..lf].strip_suffix(b"\r").unwrap_or(&buf[..lf]);
        if line.len() > MAX_LINE {
            return self.refuse(Malformed::LongInline);
        }
        if matches!(line, [.., b' ', b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0' | b'1']) {
            return self.refuse(Malformed::Http);
        }
        self.inline.clear();
        self.is_inline = true;
        if split(line, &mut self.inline, &mut self.spans).is_none() {
            self.spans.truncate(self.first);
            return self.refuse(Malformed::UnbalancedQuotes);
        }
        self.pos = lf + 1;
        if self.spans.len() == self.first {
            self.reset();
            Scan::Nothing(lf + 1)
        } else {
            self.whole()
        }
    }
}

fn find(byte: u8, buf: &[u8], from: usize) -> Option<usize> {
    buf[from..].iter().position(|&b| b == byte).map(|i| from + i)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { max_args: 1 << 20, max_bulk_bytes: 512 << 20, unauthenticated: false };

    type Requests = Vec<Vec<Vec<u8>>>;

    /// Scans `bytes` in pieces that end at `cuts`. Returns all requests, and the error if any.
    fn scan_in_pieces(
        bytes: &[u8],
        cuts: &[usize],
        limits: &Limits,
    ) -> (Requests, Option<Malformed>) {
        let mut scanner = Scanner::default();
        let mut requests = Vec::new();
        let mut start = 0;
        for &end in cuts.iter().chain([&bytes.len()]) {
            loop {
                let buf = &bytes[start..end.max(start)];
                match scanner.scan(buf, limits) {
                    Scan::Incomplete => break,
                    Scan::Nothing(n) => start += n,
                    Scan::Request(n) => {
                        assert!(n <= buf.len());
                        requests.push(scanner.args(buf).iter().map(<[u8]>::to_vec).collect());
                        start += n;
                        if requests.len() % 3 == 0 {
                            scanner.discard_complete_requests();
                        }
                    }
                    Scan::Refused(why) => return (requests, Some(why)),
                }
            }
        }
        (requests, None)
    }

    fn scan_all(bytes: &[u8]) -> (Requests, Option<Malformed>) {
        scan_in_pieces(bytes, &[], &LIMITS)
    }

    fn words(line: &str) -> Vec<Vec<u8>> {
        line.split('|').map(|w| w.as_bytes().to_vec()).collect()
    }

    #[test]
    fn requests_are_found_at_every_split_point() {
        let bytes = b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n\r\n*0\r\n*-1\r\nPING\r\nset \"a b\" 'c' d\n\
                      *1\r\n$0\r\n\r\n*3\r\n$1\r\na\r\n$4\r\n\r\n\r\n\r\n$1\r\nb\r\n";
        let expected = vec![
            words("ECHO|hi"),
            words("PING"),
            words("set|a b|c|d"),
            words(""),
            vec![b"a".to_vec(), b"\r\n\r\n".to_vec(), b"b".to_vec()],
        ];
        assert_eq!(scan_all(bytes), (expected.clone(), None));
        for a in 0..=bytes.len() {
            for b in a..=bytes.len() {
                assert_eq!(
                    scan_in_pieces(bytes, &[a, b], &LIMITS),
                    (expected.clone(), None),
                    "cut at {a} and {b}"
                );
            }
        }
        let each: Vec<usize> = (0..bytes.len()).collect();
        assert_eq!(scan_in_pieces(bytes, &each, &LIMITS), (expected, None));
    }

    #[test]
    fn malformed_requests_are_refused_in_the_words_of_redis() {
        let long = |head: &[u8], byte: u8| {
            let mut bytes = head.to_vec();
            bytes.resize(head.len() + MAX_LINE + 1, byte);
            bytes
        };
        let cases: Vec<(Vec<u8>, Limits, &str)> = vec![
            (b"*2147483648\r\n".to_vec(), LIMITS, "Protocol error: invalid multibulk length"),
            // The second header differs from the first by one byte.
            (
                b"*2\r\n$4\r\nPING\r\n#4\r\nPING\r\n".to_vec(),
                LIMITS,
                "Protocol error: expected '$', got '#'",
            ),
            (
                b"*2\r\n$4\r\nPING\r\n$4\rxPING\r\n".to_vec(),
                LIMITS,
                "Protocol error: invalid bulk length",
            ),
            (
                b"*2\r\n$4\r\nPING\r\n$4x\nPING\r\n".to_vec(),
                LIMITS,
                "Protocol error: invalid bulk length",
            ),
            (
                b"*2\r\n$10\r\n0123456789\r\n$10\rx0123456789\r\n".to_vec(),
                LIMITS,
                "Protocol error: invalid bulk length",
            ),
            (
                b"*2\r\n$10\r\n0123456789\r\n$10x\n0123456789\r\n".to_vec(),
                LIMITS,
                "Protocol error: invalid bulk length",
            ),
            (
                b"*2\r\n$10\r\n0123456789\r\n$1a\r\n0123456789\r\n".to_vec(),
                LIMITS,
                "Protocol error: invalid bulk length",
            ),
            (
                b"*2\r\n$10\r\n0123456789\r\n$11\r\n0123456789\r\n\0".to_vec(),
                LIMITS,
                "Protocol error: expected CRLF after a bulk string",
            ),
            (
                b"*1\r\n\0\0\0\0\0\0\0\0\0\0".to_vec(),
                LIMITS,
                "Protocol error: expected '$', got '\0'",
            ),
            (b"*1048577\r\n".to_vec(), LIMITS, "Protocol error: invalid multibulk length"),
            (b"*abc\r\n".to_vec(), LIMITS, "Protocol error: invalid multibulk length"),
            (b"*\r\n".to_vec(), LIMITS, "Protocol error: invalid multibulk length"),
            (b"*01\r\n".to_vec(), LIMITS, "Protocol error: invalid multibulk length"),
            (
                b"*99999999999999999999\r\n".to_vec(),
                LIMITS,
                "Protocol error: invalid multibulk length",
            ),
            (
                b"*11\r\n".to_vec(),
                Limits::UNAUTHENTICATED,
                "Protocol error: unauthenticated multibulk length",
            ),
            (
                b"*1\r\n$16385\r\n".to_vec(),
                Limits::UNAUTHENTICATED,
                "Protocol error: unauthenticated bulk length",
            ),
            (b"*1\r\n$-1\r\n".to_vec(), LIMITS, "Protocol error: invalid bulk length"),
            (b"*1\r\n$536870913\r\n".to_vec(), LIMITS, "Protocol error: invalid bulk length"),
            (b"*1\r\n$x\r\n".to_vec(), LIMITS, "Protocol error: invalid bulk length"),
            (b"*1\r\n!4\r\nPING\r\n".to_vec(), LIMITS, "Protocol error: expected '$', got '!'"),
            (long(b"*", b'1'), LIMITS, "Protocol error: too big mbulk count string"),
            (long(b"*1\r\n$", b'1'), LIMITS, "Protocol error: too big bulk count string"),
            (long(b"", b'a'), LIMITS, "Protocol error: too big inline request"),
            (b"set \"a\r\n".to_vec(), LIMITS, "Protocol error: unbalanced quotes in request"),
            (b"set \"a\"b\r\n".to_vec(), LIMITS, "Protocol error: unbalanced quotes in request"),
            (b"set 'a\r\n".to_vec(), LIMITS, "Protocol error: unbalanced quotes in request"),
            // These requests are refused, although Redis accepts them.
            (
                b"*1\r\n$4\r\nPINGxx".to_vec(),
                LIMITS,
                "Protocol error: expected CRLF after a bulk string",
            ),
            (
                b"*1\r\n$4\r\nPING\n\n".to_vec(),
                LIMITS,
                "Protocol error: expected CRLF after a bulk string",
            ),
            (b"*1\rx$4\r\nPING\r\n".to_vec(), LIMITS, "Protocol error: invalid multibulk length"),
            (b"*1\n$4\nPING\n*\r\n".to_vec(), LIMITS, "Protocol error: invalid multibulk length"),
        ];
        for (bytes, limits, text) in cases {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
            let (requests, why) = scan_in_pieces(&bytes, &[], &limits);
            assert!(requests.is_empty(), "{shown:?}");
            assert_eq!(why.map(|w| w.to_string()).as_deref(), Some(text), "{shown:?}");
            if bytes.len() < 100 {
                for cut in 0..bytes.len() {
                    let (_, why) = scan_in_pieces(&bytes, &[cut], &limits);
                    assert_eq!(
                        why.map(|w| w.to_string()).as_deref(),
                        Some(text),
                        "{shown:?} cut at {cut}"
                    );
                }
            }
        }
        for nothing in [&b"*-10\r\n"[..], b"*-1\r\n", b"*0\r\n", b"\r\n", b"\n", b"   \r\n"] {
            assert_eq!(scan_all(nothing), (vec![], None));
        }
        assert_eq!(
            scan_all(b"*1\r\n$536870912\r\n"),
            (vec![], None),
            "an incomplete bulk of the maximum size is not an error"
        );
    }

    #[test]
    fn inline_words_are_split_as_in_redis() {
        let cases: &[(&[u8], &str)] = &[
            (b"a b  c\r\n", "a|b|c"),
            (b"\"a\\x41\\n\\q\" b\n", "aA\nq|b"),
            (b"'it\\'s' \"\" x\n", "it's||x"),
            (b"pre\"fix\"\n", "prefix"),
            (b"\x0ba\x0bb\t\x0c\n", "a\x0bb"),
            (b"\"\\x4\"\n", "x4"),
        ];
        for (line, expected) in cases {
            assert_eq!(
                scan_all(line),
                (vec![words(expected)], None),
                "{:?}",
                String::from_utf8_lossy(line)
            );
        }
    }

    #[test]
    fn announced_sizes_allocate_nothing() {
        let mut scanner = Scanner::default();
        assert_eq!(scanner.scan(b"*1048576\r\n$536870912\r\nabc", &LIMITS), Scan::Incomplete);
        assert_eq!(scanner.spans.capacity(), 0);
    }

    /// Compares the scanner with the crate redis-protocol. For valid arrays of bulk strings, both
    /// must return the same arguments and length, and report each prefix as incomplete.
    #[test]
    fn agrees_with_redis_protocol_on_the_same_bytes() {
        use redis_protocol::resp2::{decode::decode, types::OwnedFrame};
        let seed = 20_260_101;
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..3_000 {
            let mut bytes = Vec::new();
            for _ in 0..random.usize(1..4) {
                let count = random.usize(1..6);
                bytes.extend_from_slice(format!("*{count}\r\n").as_bytes());
                for _ in 0..count {
                    let length = random.usize(0..12);
                    bytes.extend_from_slice(format!("${length}\r\n").as_bytes());
                    bytes.extend(
                        (0..length).map(|_| if random.bool() { b'\r' } else { random.u8(..) }),
                    );
                    bytes.extend_from_slice(b"\r\n");
                }
            }
            // A third of the iterations damage one byte. If redis-protocol accepts the damaged
            // request, the scanner must return the same arguments.
            let damaged = round % 3 == 0;
            if damaged {
                let at = random.usize(..bytes.len());
                bytes[at] = *random.choice(b"$*\r\n0123456789-x").expect("not empty");
            }
            for cut in 0..=bytes.len() {
                let buf = &bytes[..cut];
                let mut scanner = Scanner::default();
                let ours = scanner.scan(buf, &LIMITS);
                match decode(buf) {
                    Ok(Some((OwnedFrame::Array(frames), consumed))) if !frames.is_empty() => {
                        let theirs: Option<Vec<Vec<u8>>> = frames
                            .into_iter()
                            .map(|f| if let OwnedFrame::BulkString(b) = f { Some(b) } else { None })
                            .collect();
                        // Arrays of types other than bulk strings are not requests.
                        let Some(theirs) = theirs else { continue };
                        // redis-protocol accepts "$01", the scanner does not.
                        if damaged && matches!(ours, Scan::Refused(_)) {
                            continue;
                        }
                        assert_eq!(
                            ours,
                            Scan::Request(consumed),
                            "seed {seed} round {round} cut {cut}"
                        );
                        let found: Vec<Vec<u8>> =
                            scanner.args(buf).iter().map(<[u8]>::to_vec).collect();
                        assert_eq!(found, theirs, "seed {seed} round {round} cut {cut}");
                    }
                    Ok(None) if !damaged => {
                        assert_eq!(ours, Scan::Incomplete, "seed {seed} round {round} cut {cut}")
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn any_bytes_give_an_outcome_and_pieces_change_nothing() {
        let seed = 99;
        let mut random = fastrand::Rng::with_seed(seed);
        let alphabet = b"*$\r\n0123456789-\"'\\x ab\0\xff";
        for round in 0..30_000 {
            let bytes: Vec<u8> = (0..random.usize(0..60))
                .map(|_| *random.choice(alphabet).expect("not empty"))
                .collect();
            let whole = scan_all(&bytes);
            let mut cuts: Vec<usize> =
                (0..random.usize(0..6)).map(|_| random.usize(0..=bytes.len())).collect();
            cuts.sort_unstable();
            assert_eq!(scan_in_pieces(&bytes, &cuts, &LIMITS), whole, "seed {seed} round {round}");
        }
    }
}
