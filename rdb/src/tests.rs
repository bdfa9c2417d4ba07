//! Tests with payloads of real servers, hand-written payloads in older and newer encodings, and
//! malicious payloads.

use crate::{Element, Error, Kind, MAX_UNPACKED_BYTES, Payload, dump_hash, dump_string, write};

/// Payloads of redis-server 7.0.15, and their elements.
pub(crate) const ALL: &[(&str, &[&str])] = &[
    (
        "1038380000000800846c696b65050501847265616405c12c0287636f6d6d656e7408f290eefe04867265706f\
         737407f4ffffffffffffff7f09ff0a00d8f18301b35145bb",
        &["like", "5", "read", "300", "comment", "-70000", "repost", "9223372036854775807"],
    ),
    (
        "04030472656164c12c0107636f6d6d656e74c290eefeff046c696b65c0050a006427c97d289d0dd0",
        &["read", "300", "comment", "-70000", "like", "5"],
    ),
    ("0b0e0200000003000000010002002c010a00e510b28e7b9529aa", &["1", "2", "300"]),
    (
        "0b200800000003000000f9ffffffffffffff010000000000000000f2052a010000000a006d4fc23220067c02",
        &["-7", "1", "5000000000"],
    ),
    ("0203c02a03616263c0070a001a3c4aa8ea7b849e", &["42", "abc", "7"]),
    (
        "0202c3094040016262e03300016262c0070a00e92e67b7162e4fda",
        &["bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "7"],
    ),
    ("00c139300a009d94ea2793fc08b9", &["12345"]),
    ("000568656c6c6f0a006372df766534200a", &["hello"]),
    ("0013393232333337323033363835343737353830360a00845d3e5aa8b94dd6", &["9223372036854775806"]),
];

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..][..2], 16).unwrap()).collect()
}

/// Returns the elements, with `expires` after each expiring field.
fn elements(bytes: &[u8]) -> Result<Vec<String>, Error> {
    let mut all = Vec::new();
    Payload::open(bytes)?.elements(|element| {
        all.push(match element {
            Element::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Element::Expires => "expires".to_owned(),
        });
        Ok::<(), Error>(())
    })?;
    Ok(all)
}

/// Returns a payload with a valid footer. Its RDB version supports all types.
fn sealed(value: &[u8]) -> Vec<u8> {
    write::seal(value.to_vec(), 12)
}

/// Encodes a string with a four-byte length.
fn text(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x80];
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
    out
}

fn listpack(elements: &[&[u8]]) -> Vec<u8> {
    let body: Vec<u8> = elements
        .iter()
        .flat_map(|element| [*element, &[element.len() as u8]].concat())
        .chain([0xff])
        .collect();
    let mut out = (body.len() as u32 + 6).to_le_bytes().to_vec();
    out.extend_from_slice(&(elements.len() as u16).to_le_bytes());
    out.extend(body);
    out
}

#[test]
fn payloads_of_a_real_server_are_read() {
    for (hex, expected) in ALL {
        assert_eq!(elements(&unhex(hex)).unwrap(), *expected, "{hex}");
    }
}

#[test]
fn kinds_are_those_of_the_types() {
    let kind = |hex: &str| Payload::open(&unhex(hex)).unwrap().kind();
    assert_eq!(kind(ALL[0].0), Kind::Hash);
    assert_eq!(kind(ALL[2].0), Kind::Set);
    assert_eq!(kind(ALL[6].0), Kind::String);
    for (number, name) in [(1, "a list"), (18, "a list"), (3, "a sorted set"), (21, "a stream")] {
        assert_eq!(elements(&sealed(&[number, 1, 0])), Err(Error::Type(name)));
    }
    for number in [26, 29, 200] {
        let unknown = elements(&sealed(&[number, 1])).unwrap_err();
        assert_eq!(unknown, Error::UnknownType { number, version: 12 });
        let text = format!("RDB type {number} in a payload of RDB version 12");
        assert!(unknown.to_string().contains(&text), "{unknown}");
    }
}

#[test]
fn ziplists_of_redis_6_are_read() {
    // Integers encoded as immediate values and in 8, 16, 24, 32 and 64 bits.
    let entries: &[&[u8]] = &[
        b"\x00\x04like",
        b"\x06\xf6",
        b"\x02\x04read",
        b"\x06\xfe\xfe",
        b"\x03\x01a",
        b"\x03\xc0\x2c\x01",
        b"\x04\x01b",
        b"\x03\xf0\x90\xee\xfe",
        b"\x05\x40\x01c",
        b"\x04\xd0\xff\xff\xff\x7f",
        b"\x06\x80\x00\x00\x00\x01d",
        b"\xfe\x07\x00\x00\x00\xe0\x00\x00\x00\x00\x00\x00\x00\x80",
    ];
    let body = entries.concat();
    let mut blob = (body.len() as u32 + 11).to_le_bytes().to_vec();
    blob.extend_from_slice(&10u32.to_le_bytes());
    blob.extend_from_slice(&(entries.len() as u16).to_le_bytes());
    blob.extend_from_slice(&body);
    blob.push(0xff);
    let expected = "like 5 read -2 a 300 b -70000 c 2147483647 d -9223372036854775808";
    let payload = |blob: &[u8]| sealed(&[&[13][..], &text(blob)].concat());
    assert_eq!(elements(&payload(&blob)).unwrap().join(" "), expected);
    // A header with a wrong count, and an end mark before the last entry.
    let mut lies = blob.clone();
    lies[8] += 2;
    assert!(matches!(elements(&payload(&lies)), Err(Error::Format(_))));
    blob[0] -= 1;
    assert!(matches!(elements(&payload(&blob)), Err(Error::Format(_))));
}

#[test]
fn listpacks_hold_all_their_encodings() {
    let all: &[&[u8]] = &[
        b"\x7f",
        b"\xc0\x80",
        b"\xdf\xff",
        b"\xf1\x00\x80",
        b"\xf2\x00\x00\x80",
        b"\xf3\x00\x00\x00\x80",
        b"\xf4\x00\x00\x00\x00\x00\x00\x00\x80",
        b"\x83abc",
        b"\xe0\x03abd",
        b"\xf0\x03\x00\x00\x00abe",
    ];
    let payload = sealed(&[&[20][..], &text(&listpack(all))].concat());
    let expected = "127 128 -1 -32768 -8388608 -2147483648 -9223372036854775808 abc abd abe";
    assert_eq!(elements(&payload).unwrap().join(" "), expected);
    // An entry whose length takes two bytes.
    let long = [&b"\xe0\xc8"[..], &[b'x'; 200], b"\x01\xcb"].concat();
    let mut blob = (long.len() as u32 + 7).to_le_bytes().to_vec();
    blob.extend_from_slice(&[1, 0]);
    blob.extend_from_slice(&long);
    blob.push(0xff);
    let payload = sealed(&[&[20][..], &text(&blob)].concat());
    assert_eq!(elements(&payload).unwrap(), ["x".repeat(200)]);
}

#[test]
fn fields_that_expire_are_told() {
    // Hash table of Redis 7.4 and later: earliest expiry, then triples of expiry, field, value.
    let plain = b"\x02\x00\x04like\xc0\x05\x01\x04read\xc0\x07";
    let with_minimum = sealed(&[&[24][..], &[9; 8], plain].concat());
    assert_eq!(elements(&with_minimum).unwrap(), ["like", "5", "read", "expires", "7"]);
    let candidate = sealed(&[&[22][..], plain].concat());
    assert_eq!(elements(&candidate), elements(&with_minimum));
    // Listpack: field, value, expiry.
    let packed = listpack(&[b"\x84like", b"\x05", b"\x00", b"\x84read", b"\x07", b"\xf1\x10\x27"]);
    for (number, minimum) in [(25u8, &[9; 8][..]), (23, &[])] {
        let payload = sealed(&[&[number], minimum, &text(&packed)].concat());
        assert_eq!(elements(&payload), elements(&with_minimum));
    }
    // Valkey 9 uses type 22 for another layout: field, value, expiry.
    let valkey =
        [&b"\x16\x02\x04like\xc0\x05"[..], &[0xff; 8], b"\x04read\xc0\x07", &[1; 8]].concat();
    let valkey = write::seal(valkey, 80);
    assert_eq!(elements(&valkey), elements(&with_minimum));
}

#[test]
fn footers_are_checked_as_redis_does() {
    let good = dump_string(7);
    assert_eq!(elements(&good).unwrap(), ["7"]);
    for length in 0..good.len() {
        assert_eq!(elements(&good[..length]), Err(Error::Footer), "{length}");
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert_eq!(elements(&bad), Err(Error::Footer), "{at}");
    }
    for (version, is_known) in [(1, true), (16, true), (17, false), (79, false), (80, true)] {
        assert_eq!(
            elements(&write::seal(vec![0, 0xc0, 7], version)).is_ok(),
            is_known,
            "{version}"
        );
    }
    assert_eq!(elements(&write::seal(vec![0, 0xc0, 7], u16::MAX)), Err(Error::Footer));
}

/// Lengths and counts up to 2^64-1 at each position must be rejected immediately.
#[test]
fn lengths_that_lie_take_no_memory_and_no_time() {
    let huge: [&[u8]; 4] = [
        b"\x81\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x81\x80\x00\x00\x00\x00\x00\x00\x00",
        b"\x80\xff\xff\xff\xff",
        b"\x7f\xff",
    ];
    let started = std::time::Instant::now();
    for length in huge {
        for number in [0, 2, 4, 11, 13, 16, 20, 22, 23, 24, 25] {
            let payload = sealed(&[&[number], length, b"\x01a\x01b"].concat());
            assert!(matches!(elements(&payload), Err(Error::Format(_))), "{number} {length:?}");
        }
        // Try each value as the compressed and as the uncompressed length of a string.
        for value in [
            [b"\x00\xc3", length, b"\x05aaaaa"].concat(),
            [b"\x00\xc3\x05", length, b"aaaaa"].concat(),
        ] {
            assert!(matches!(elements(&sealed(&value)), Err(Error::Format(_))), "{value:?}");
        }
    }
    let intset =
        |count: &[u8; 4]| [&b"\x0b\x0c\x08\x00\x00\x00"[..], count, b"\x00\x00\x00\x00"].concat();
    for count in [b"\xff\xff\xff\xff", b"\x00\x00\x00\x20", b"\x01\x00\x00\x00"] {
        assert!(matches!(elements(&sealed(&intset(count))), Err(Error::Format(_))));
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(1));
}

/// The maximum expansion of LZF is from three bytes to 264.
#[test]
fn compressed_strings_unpack_to_a_limit() {
    let bomb = |length: usize| {
        let mut packed = b"\x00a".to_vec();
        let mut unpacked = 1;
        while unpacked < length {
            packed.extend_from_slice(b"\xe0\xff\x00");
            unpacked += 264;
        }
        let mut value = b"\x00\xc3".to_vec();
        for length in [packed.len(), unpacked] {
            value.push(0x80);
            value.extend_from_slice(&(length as u32).to_be_bytes());
        }
        value.extend_from_slice(&packed);
        sealed(&value)
    };
    let fits = elements(&bomb(MAX_UNPACKED_BYTES - 300)).unwrap();
    assert!(fits[0].len() > MAX_UNPACKED_BYTES - 300 && fits[0].bytes().all(|b| b == b'a'));
    assert!(elements(&bomb(MAX_UNPACKED_BYTES)).is_err());
    // A back reference before the start of the output, and truncated strings.
    for packed in [&b"\x20\x05"[..], b"\x00a\xe0", b"\x1fabc"] {
        let value = [b"\x00\xc3", &[packed.len() as u8, 10][..], packed].concat();
        assert!(matches!(elements(&sealed(&value)), Err(Error::Format(_))), "{packed:?}");
    }
}

#[test]
fn an_error_of_the_taker_ends_it() {
    let payload = unhex(ALL[2].0);
    let mut taken = 0;
    let outcome = Payload::open(&payload).unwrap().elements(|_| {
        taken += 1;
        Err(Error::Format("enough"))
    });
    assert_eq!((outcome, taken), (Err(Error::Format("enough")), 1));
}

#[test]
fn what_is_dumped_reads_the_same() {
    for value in
        [0, -1, 127, 128, -129, 32_767, 32_768, i64::from(i32::MAX) + 1, i64::MIN, i64::MAX]
    {
        assert_eq!(elements(&dump_string(value)).unwrap(), [value.to_string()]);
    }
    let long = "f".repeat(100);
    let fields = [(&b"like"[..], 5), (long.as_bytes(), i64::MIN)];
    let dumped = dump_hash(fields.into_iter());
    assert_eq!(elements(&dumped).unwrap(), ["like", "5", &long, "-9223372036854775808"]);
}
