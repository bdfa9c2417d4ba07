//! Fuzz targets for every parser of untrusted bytes in this crate, and a deterministic test that
//! feeds them seeded random bytes.
//!
//! A target must return for any input. If input is accepted, printing the parsed value and parsing
//! the result again must give the same value.

pub(crate) mod commands;

pub use commands::commands;

use node::acl;
use node::config::{Config, Extent, Security};
use node::runtime::glob;
use resp::{Limits, Scan, Scanner, integer, natural};
use std::path::Path;

type Requests = Vec<Vec<Vec<u8>>>;

/// Returns the requests found in `pieces`, and the error text if a request was refused. Uses one
/// scanner and one buffer for all pieces, as a connection does.
fn scan(pieces: &[&[u8]], limits: &Limits) -> (Requests, Option<String>) {
    let (mut scanner, mut buf, mut found) = (Scanner::default(), Vec::new(), Vec::new());
    for piece in pieces {
        buf.extend_from_slice(piece);
        let mut at = 0;
        loop {
            match scanner.scan(&buf[at..], limits) {
                Scan::Incomplete => break,
                Scan::Nothing(length) => {
                    assert!(length > 0 && at + length <= buf.len());
                    at += length;
                }
                Scan::Request(length) => {
                    assert!(length > 0 && at + length <= buf.len());
                    let args = scanner.args(&buf[at..]);
                    assert!(!args.is_empty() && args.len() <= limits.max_args.max(length));
                    found.push(args.iter().map(<[u8]>::to_vec).collect());
                    at += length;
                }
                Scan::Refused(why) => return (found, Some(why.to_string())),
            }
        }
        buf.drain(..at);
    }
    (found, None)
}

/// Fuzz target for the request scanner. Chunking must not change the result, and redis-protocol
/// must decode the same requests. The first byte of the input selects the limits and the chunk
/// size.
pub fn scanner(input: &[u8]) {
    use redis_protocol::resp2::{decode::decode, types::OwnedFrame};
    let Some((&cut, bytes)) = input.split_first() else { return };
    let limits = if cut & 1 == 0 {
        Limits { max_args: 1 << 20, max_bulk_bytes: 512 << 20, unauthenticated: false }
    } else {
        Limits::UNAUTHENTICATED
    };
    let whole = scan(&[bytes], &limits);
    let size = 1 + usize::from(cut >> 1);
    let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
    assert_eq!(scan(&pieces, &limits), whole, "pieces of {size}");
    let first = match Scanner::default().scan(bytes, &limits) {
        Scan::Request(length) if bytes[0] == b'*' => length,
        _ => return,
    };
    match decode(bytes) {
        Ok(Some((OwnedFrame::Array(frames), length))) => {
            assert_eq!(length, first);
            let theirs: Vec<Vec<u8>> = frames
                .into_iter()
                .map(|frame| {
                    if let OwnedFrame::BulkString(bytes) = frame {
                        bytes
                    } else {
                        panic!("{frame:?}")
                    }
                })
                .collect();
            assert_eq!(theirs, whole.0[0]);
        }
        other => panic!("our parser found a request, redis-protocol {other:?}"),
    }
}

/// Fuzz target for ACL files. Accepted users must print as lines that parse to the same users.
pub fn users(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let security =
        Security { acl_file: "users.acl".to_owned(), max_users: 100, ..Security::default() };
    let Ok(users) = acl::parse_file(text, &security) else { return };
    let lines = |users: &std::collections::BTreeMap<String, std::sync::Arc<acl::User>>| {
        users.values().map(|user| format!("user {}\n", user.line())).collect::<String>()
    };
    let written = lines(&users);
    let again = acl::parse_file(&written, &security)
        .unwrap_or_else(|e| panic!("parsed {text:?}, but not its printed form {written:?}: {e}"));
    assert_eq!(lines(&again), written);
}

/// Fuzz target for configuration files. Accepted input must print as text that parses to the same
/// configuration.
pub fn config(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(config) = Config::parse(text, Path::new("fuzz.toml")) else { return };
    // Skip empty lists. An empty list prints no section, and a missing section parses as the
    // default.
    if config.counter.is_empty()
        || config.existence.is_empty()
        || config.view.is_empty()
        || config.action.is_empty()
    {
        return;
    }
    let printed = config.print(Extent::All);
    let again = Config::parse(&printed, Path::new("printed.toml"))
        .unwrap_or_else(|e| panic!("{text:?}: {e}\n{printed}"));
    assert_eq!(again, config);
}

/// Fuzz target for glob patterns and integers. The pattern ends at the first 0xff byte of the
/// input.
pub fn words(input: &[u8]) {
    if let Some(value) = natural(input) {
        assert_eq!(value.to_string().as_bytes(), input);
    }
    if let Some(value) = integer(input) {
        assert_eq!(value.to_string().as_bytes(), input);
    }
    let at = input.iter().position(|b| *b == 0xff).unwrap_or(input.len());
    let (pattern, text) = input.split_at(at);
    let found = glob::matches(pattern, text, false);
    if found {
        // A negated class may match fewer bytes when case is ignored.
        assert!(
            glob::matches(pattern, text, true) || pattern.contains(&b'^'),
            "a case-insensitive match includes every case-sensitive one"
        );
        assert!(
            glob::matches(&[pattern, b"*"].concat(), text, false)
                || pattern.ends_with(b"\\")
                || pattern.contains(&b'[')
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mutates a copy of one seed: truncates, changes, removes, and inserts bytes or words.
    fn mutated(random: &mut fastrand::Rng, seeds: &[&[u8]], words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = random.choice(seeds).expect("a seed").to_vec();
        for _ in 0..random.usize(..6) {
            let at = random.usize(..=bytes.len());
            match random.u8(..5) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] = random.u8(..),
                2 => {
                    bytes.splice(at..at, random.choice(words).expect("a word").iter().copied());
                }
                3 => {
                    let other = random.choice(seeds).expect("a seed");
                    let from = random.usize(..=other.len());
                    bytes.splice(at..at, other[from..].iter().take(60).copied());
                }
                _ if at < bytes.len() => {
                    bytes.remove(at);
                }
                _ => {}
            }
        }
        bytes
    }

    #[test]
    fn seeded_rounds_of_commands() {
        for seed in 0..3_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let input: Vec<u8> = (0..random.usize(..400)).map(|_| random.u8(..)).collect();
            let outcome = std::panic::catch_unwind(|| commands(&input));
            assert!(outcome.is_ok(), "seed {seed}: {input:?}");
        }
    }

    fn rounds(target: fn(&[u8]), seeds: &[&[u8]], words: &[&[u8]]) {
        for seed in 0..3_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let input = mutated(&mut random, seeds, words);
            let outcome = std::panic::catch_unwind(|| target(&input));
            assert!(outcome.is_ok(), "seed {seed}: {:?}", String::from_utf8_lossy(&input));
        }
    }

    #[test]
    fn seeded_rounds_of_the_scanner() {
        rounds(
            scanner,
            &[
                b"\x10*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n*1\r\n$4\r\nPING\r\n",
                b"\x08*3\r\n$4\r\nECHO\r\n$4\r\nfour\r\n$4\r\nfive\r\n",
                b"\x03SET \"a b\" 'c'\r\n\r\n*0\r\n*-1\r\nPING\n",
                b"\x00*3\r\n$0\r\n\r\n$10\r\n0123456789\r\n$1\r\n\r\r\n",
            ],
            &[
                b"\r\n",
                b"*1\r\n",
                b"$1\r\n",
                b"-1",
                b"9999999999999999999",
                b"\"",
                b"'",
                b"\\x4",
                b" HTTP/1.1\r\n",
                b"\0",
            ],
        );
    }

    #[test]
    fn seeded_rounds_of_users() {
        rounds(
            users,
            &[
                b"user alice on >a ~post:* %R~x* &c* +@read -@dangerous +config|get (~q +get)\n\
                 user default on nopass ~* &* +@all\n",
                b"# c\n\nuser bob off \
                 #2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881 $home %W$like \
                 -@all +feed.get\n",
                b"user d ~a %wrr~* ~b\n",
                b"user c reset resetkeys resetchannels allkeys allchannels allcommands nocommands \
                 clearselectors\n",
            ],
            &[
                b" ",
                b"\n",
                b"user ",
                b"(~q))",
                b"+",
                b"-@",
                b"~",
                b"%RW~",
                b"$*",
                b"(",
                b")",
                b"|",
                b"on",
                b"\xc3\xa9",
                b"&*",
                b"~*",
                b"\x0b",
                b"\xc2\xa0",
            ],
        );
    }

    #[test]
    fn seeded_rounds_of_the_configuration() {
        let printed = Config::default().print(Extent::All);
        rounds(
            config,
            &[
                printed.as_bytes(),
                b"[server]\nport = 7\nbind = [\"::1\"]\n[security]\nusers = [\"a on\"]\n[tls]\n\
                 auth_clients = \"no\"\n",
            ],
            &[
                b"\n",
                b"[",
                b"]",
                b"\"",
                b"= 1\n",
                b"= -1\n",
                b"[[counter]]\n",
                b"name = \"x\"\n",
                b"99999999999999999999",
                b"1e400",
                b"'''",
            ],
        );
    }

    #[test]
    fn seeded_rounds_of_words() {
        rounds(
            words,
            &[
                b"a*b[c-d]?\\*\xffaxbc*",
                b"18446744073709551615",
                b"-9223372036854775808",
                b"*****[^a\xffbbbbb",
            ],
            &[b"*", b"?", b"[", b"]", b"-", b"\\", b"^", b"[^d]", b"D", b"\xff", b"0"],
        );
    }
}
