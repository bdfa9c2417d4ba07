//! Table of all commands, by name and by number.

use crate::command::spec::Spec;
use std::sync::OnceLock;

/// Slots of the hash table: a power of two, several times the number of commands.
const SLOTS: usize = 1024;
const EMPTY: u16 = u16::MAX;

struct Table {
    specs: Vec<Spec>,
    /// For each command, its index among all commands and subcommands. The last element is their
    /// total number.
    bits: Vec<usize>,
    slots: [u16; SLOTS],
}

static TABLE: OnceLock<Table> = OnceLock::new();

/// Sets the commands of this process. Must be called before a node exists; later calls have no
/// effect.
pub fn install(specs: impl FnOnce() -> Vec<Spec>) {
    TABLE.get_or_init(|| Table::new(specs()));
}

#[inline]
fn table() -> &'static Table {
    /// Used by processes that execute no commands.
    static NONE: Table = Table { specs: Vec::new(), bits: Vec::new(), slots: [EMPTY; SLOTS] };
    #[cfg(test)]
    install(|| tests::ROWS.to_vec());
    TABLE.get().unwrap_or(&NONE)
}

impl Table {
    fn new(specs: Vec<Spec>) -> Table {
        assert!(specs.len() * 4 <= SLOTS, "enlarge SLOTS");
        let mut slots = [EMPTY; SLOTS];
        for (number, spec) in (0u16..).zip(&specs) {
            let mut slot = slot_of(spec.name.as_bytes());
            while slots[slot] != EMPTY {
                let other = specs[usize::from(slots[slot])].name;
                assert!(other != spec.name, "duplicate command {other}");
                slot = (slot + 1) % SLOTS;
            }
            slots[slot] = number;
        }
        let mut bits = vec![0];
        for spec in &specs {
            bits.push(bits[bits.len() - 1] + 1 + spec.subcommands.len());
        }
        Table { specs, bits, slots }
    }
}

/// FNV-1a of the name with the case bit cleared, which makes the hash case-insensitive.
#[inline]
fn slot_of(name: &[u8]) -> usize {
    let mut hash = 0xcbf2_9ce4u32;
    for &byte in name {
        hash = (hash ^ u32::from(byte & 0xdf)).wrapping_mul(0x0100_0193);
    }
    (hash >> 8) as usize % SLOTS
}

/// Number and specification of a command.
pub type Found = Option<(u16, &'static Spec)>;

/// Finds a command by its case-insensitive name.
#[inline]
pub fn find(name: &[u8]) -> Found {
    let table = table();
    let mut slot = slot_of(name);
    loop {
        let number = table.slots[slot];
        let spec = table.specs.get(usize::from(number))?;
        if spec.name.len() == name.len() && spec.name.as_bytes().eq_ignore_ascii_case(name) {
            return Some((number, spec));
        }
        slot = (slot + 1) % SLOTS;
    }
}

/// Maximum length of a name that [`Lookup`] caches, in bytes.
const KNOWN_BYTES: usize = 16;

/// Caches the last result of [`find`]. Each connection has its own cache, because clients tend to
/// repeat a command.
#[derive(Default)]
pub struct Lookup {
    name: [u8; KNOWN_BYTES],
    length: usize,
    found: Found,
}

impl Lookup {
    /// Finds a command like [`find`], and caches the result.
    #[inline]
    pub fn find(&mut self, name: &[u8]) -> Found {
        if self.name.get(..self.length) == Some(name) {
            return self.found;
        }
        let found = find(name);
        if let Some(place) = self.name.get_mut(..name.len()) {
            place.copy_from_slice(name);
            (self.length, self.found) = (name.len(), found);
        }
        found
    }
}

/// Returns all top-level commands.
pub fn all() -> &'static [Spec] {
    &table().specs
}

/// Returns the index of a command (`sub` 0), or of its subcommand `sub` (from 1), among all
/// commands and subcommands.
#[inline]
pub fn bit_of(number: u16, sub: u32) -> usize {
    table().bits[usize::from(number)] + sub as usize
}

/// Number of commands and subcommands.
pub fn bits() -> usize {
    table().bits.last().copied().unwrap_or_default()
}

/// Returns all commands and subcommands with their indexes.
pub fn with_numbers() -> impl Iterator<Item = (usize, &'static Spec)> {
    all().iter().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands)).enumerate()
}

/// Returns the indexes of a command with its subcommands, or of one subcommand (`config|get`);
/// empty if the name is unknown.
pub fn numbers_named(name: &str) -> std::ops::Range<usize> {
    let (command, own) =
        name.split_once('|').map_or((name, None), |(command, own)| (command, Some(own)));
    let Some((number, spec)) = find(command.as_bytes()) else { return 0..0 };
    let first = bit_of(number, 0);
    match own {
        None => first..first + 1 + spec.subcommands.len(),
        Some(own) => {
            match spec.subcommands.iter().position(|s| s.own_name().eq_ignore_ascii_case(own)) {
                Some(at) => first + 1 + at..first + 2 + at,
                None => 0..0,
            }
        }
    }
}

/// Returns the name of a command or subcommand by its index ([`bit_of`]).
pub(crate) fn name_of_bit(bit: usize) -> &'static str {
    with_numbers().nth(bit).map_or("NULL", |(_, spec)| spec.name)
}

/// Returns the name of a command. `numbers` has the command in the low 16 bits and its subcommand
/// (from 1) in the high bits.
pub fn name_of(numbers: u32) -> &'static str {
    let Some(spec) = table().specs.get((numbers & 0xffff) as usize) else { return "NULL" };
    match (numbers >> 16).checked_sub(1) {
        None => spec.name,
        Some(sub) => spec.subcommands.get(sub as usize).map_or(spec.name, |s| s.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::spec::{ALWAYS, Cost, NO_KEYS, ONE_KEY, READ, flag};

    const fn row(name: &'static str, group: &'static str, flags: u32) -> Spec {
        let keys = if flags & ALWAYS == 0 { ONE_KEY } else { NO_KEYS };
        Spec {
            name,
            arity: -2,
            flags,
            keys,
            group,
            since: "1.0.0",
            usage: "",
            summary: "",
            cost: Cost::Constant,
            uses: ("", ""),
            tips: &[],
            subcommands: &[],
        }
    }

    #[rustfmt::skip]
    pub(super) const ROWS: &[Spec] = &[
        row("get", "string", READ),
        row("set", "string", flag::WRITE),
        row("keys", "generic", flag::READONLY | ALWAYS),
        row("select", "connection", ALWAYS),
        Spec {
            subcommands: &[
                row("config|get", "server", ALWAYS | flag::ADMIN),
                row("config|set", "server", ALWAYS | flag::ADMIN),
            ],
            ..row("config", "server", ALWAYS)
        },
        Spec {
            subcommands: &[row("acl|whoami", "server", ALWAYS)],
            ..row("acl", "server", ALWAYS)
        },
        Spec {
            subcommands: &[row("script|exists", "scripting", ALWAYS)],
            ..row("script", "scripting", ALWAYS)
        },
    ];

    #[test]
    fn names_are_found_in_any_case_and_others_are_not() {
        for spec in all() {
            for name in [spec.name.to_owned(), spec.name.to_ascii_uppercase()] {
                assert_eq!(find(name.as_bytes()).map(|(_, s)| s.name), Some(spec.name));
            }
            assert!(find(format!("{}!", spec.name).as_bytes()).is_none());
        }
        for name in [&b""[..], b"\0", b"no such command", b"GE\x14", &[b'A'; 10_000]] {
            assert!(find(name).is_none());
        }
    }

    /// Covers repeated names, upper and lower case, prefixes, extensions, unknown names, and names
    /// too long to cache.
    #[test]
    fn a_cached_lookup_equals_an_uncached_one() {
        let mut names: Vec<Vec<u8>> =
            all().iter().map(|spec| spec.name.as_bytes().to_vec()).collect();
        names.extend(
            ["GET", "get", "ge", "getx", "", "\0", "sixteen letters.", "sixteen letters.."]
                .map(|n| n.as_bytes().to_vec()),
        );
        names.push(vec![b'A'; 10_000]);
        let mut random = fastrand::Rng::with_seed(1);
        let mut lookup = Lookup::default();
        for _ in 0..20_000 {
            let name = &names[random.usize(..names.len())];
            for _ in 0..random.usize(1..3) {
                assert_eq!(
                    lookup.find(name).map(|(number, _)| number),
                    find(name).map(|(number, _)| number)
                );
            }
        }
    }
}
