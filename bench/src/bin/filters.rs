//! Pages of 20 ids looked up in filters of the same pairs, by turns: ours; a quotient filter, which
//! can unset; binary fuse filters, which are built once of all their pairs.
//!
//! `cargo xtask bench filters -- [--pairs 100000,20000000]`
//!
//! A member has 20 pairs, an id 100. A page that hits asks for a member's 20 ids, one that misses
//! for 20 ids of a member that has none. Every filter is asked page by page, for pairs hashed as
//! ours are, which the crates could not share with a page; `hashing alone` is what that takes. All
//! memory is in huge pages, as ours is.
//!
//! - *qfilter, xorf*: the crates, as they are called by their users.
//! - *fetched ahead*: the same bits in memory of ours, with the lines of the whole page fetched
//!   before any is looked at, as [`phantom`] does. This is what an engine would have.
//! - *and late ones*: a static filter without the last pairs (`--late`), which came when it was
//!   built, and ours beside it for these. A page looks into both.

use allocation_counter::measure;
use clap::Parser;
use phantom::{Answer, Member, Options, Space};
use rolling::Words;
use std::error::Error;
use std::hint::black_box;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use tidemark_bench::cpu_ns;
use xorf::{BinaryFuse8, BinaryFuse16, Descriptor, Filter};

/// Looks up the same pages in filters of several kinds.
#[derive(Parser)]
struct Args {
    /// How many pairs each has; several numbers are measured one after the other.
    #[arg(long, value_delimiter = ',', default_values_t = [100_000, 20_000_000])]
    pairs: Vec<u64>,
    /// The share of pairs that come when a static filter is built already.
    #[arg(long, default_value_t = 0.08)]
    late: f64,
    /// Turns of each, of which the median counts.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Pages in each turn.
    #[arg(long, default_value_t = 20_000)]
    pages: u64,
    /// Pages by which false positives are counted.
    #[arg(long, default_value_t = 500_000)]
    rate_pages: u64,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

const PAGE: usize = 20;
const RATE: f64 = 0.0001;
/// A quotient filter is full at this load, as `qfilter` has it.
const LOAD: f64 = 0.95;
/// Bits of a fingerprint for [`RATE`]: 13.3, of which there are no whole ones.
const WIDTH: u32 = 14;
/// No pair is of a member from here on.
const NO_MEMBERS: u64 = 1 << 40;

/// A member and ids.
type Page = (u64, [u64; PAGE]);
/// Bits of the ids of a page that are set.
type Look = Box<dyn Fn(&Page) -> u32>;

/// What it takes to build a filter, or to insert all pairs.
#[derive(Clone, Copy)]
struct Making {
    ns_per_pair: f64,
    /// At the peak; the filter and the input, hashes of 8 bytes, are left out.
    bytes_beside_per_pair: f64,
}

/// One filter: what it takes, and nanoseconds per id of its turns.
struct Contender {
    name: &'static str,
    bits_per_pair: f64,
    making: Option<Making>,
    look: Look,
    misses: Vec<f64>,
    hits: Vec<f64>,
    rate: f64,
}

/// The ids of pairs, and their hashes.
struct Pairs {
    count: u64,
    /// Ids are as many as this, times 20.
    stratum: u64,
    space: Space,
}

impl Pairs {
    fn new(count: u64) -> Outcome<Pairs> {
        let options = Options { pairs_per_table: 8, max_tables: 2, seed: 7, ..Options::default() };
        Ok(Pairs { count, stratum: (count / 2000).max(20), space: Space::new(options)? })
    }

    /// A member's n-th id: of each twentieth of the ids one.
    fn id(&self, member: u64, n: u64) -> u64 {
        let random = mix(member.wrapping_mul(PAGE as u64).wrapping_add(n), 1);
        (1 << 50) + n * self.stratum + random % self.stratum
    }

    fn page(&self, member: u64) -> Page {
        (member, std::array::from_fn(|n| self.id(member, n as u64)))
    }

    /// Id and member of each of these pairs, in the order in which they came.
    fn each(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        range.map(|i| (self.id(i / PAGE as u64, i % PAGE as u64), i / PAGE as u64))
    }

    fn hashes(&self, range: Range<u64>) -> Vec<u64> {
        self.each(range).map(|(id, member)| self.space.pair(id, &member.into()).low).collect()
    }
}

/// Hashes of the pairs of a page.
struct Hasher(Space);

impl Hasher {
    fn new() -> Outcome<Hasher> {
        Ok(Hasher(Pairs::new(0)?.space))
    }

    #[inline(always)]
    fn page(&self, (member, ids): &Page) -> [u64; PAGE] {
        let member = Member::Number(*member);
        std::array::from_fn(|i| self.0.pair(ids[i], &member).low)
    }

    /// As the users of a crate would: one by one.
    #[inline(always)]
    fn each(&self, page: &Page, contains: impl Fn(u64) -> bool) -> u32 {
        let keys = self.page(page);
        bits_of(|i| contains(keys[i]))
    }
}

#[inline(always)]
fn bits_of(is_set: impl Fn(usize) -> bool) -> u32 {
    (0..PAGE).fold(0, |bits, i| bits | u32::from(is_set(i)) << i)
}

/// Values of a few bits, one right behind the other.
struct Packed(Words);

impl Packed {
    fn new(bits: usize) -> Outcome<Packed> {
        // One more word, so that a value may be read with its successor.
        Ok(Packed(Words::zeroed(bits / 64 + 2)?))
    }

    #[inline(always)]
    fn get(&self, bit: usize, width: u32) -> u64 {
        let (word, shift) = (bit / 64, bit % 64);
        let (low, high) = (self.0[word].load(Relaxed), self.0[word + 1].load(Relaxed));
        (low >> shift | high << 1 << (63 - shift)) & (u64::MAX >> (64 - width))
    }

    /// Of bits that are 0.
    fn set(&self, bit: usize, value: u64) {
        let (word, shift) = (bit / 64, bit % 64);
        self.0[word].fetch_or(value << shift, Relaxed);
        self.0[word + 1].fetch_or(value >> 1 >> (63 - shift), Relaxed);
    }

    #[inline(always)]
    fn prefetch(&self, bit: usize) {
        self.0.prefetch(bit / 64);
    }
}

/// As in `xorf`: how a key is hashed, and the three places of a hash.
#[inline(always)]
fn mix(key: u64, seed: u64) -> u64 {
    let mut hash = key.wrapping_add(seed);
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

#[inline(always)]
fn fuse_places(hash: u64, at: &Descriptor) -> [u32; 3] {
    let range = u128::from(at.segment_count_length);
    let first = (u128::from(hash).wrapping_mul(range) >> 64) as u32;
    let second = first.wrapping_add(at.segment_length);
    let third = second.wrapping_add(at.segment_length);
    [
        first,
        second ^ (hash >> 18) as u32 & at.segment_length_mask,
        third ^ hash as u32 & at.segment_length_mask,
    ]
}

/// A binary fuse filter of the crate's, of whose fingerprints so many bits are kept: what holds
/// for the exclusive or of three fingerprints holds for a part of their bits, too.
struct Fuse {
    at: Descriptor,
    width: u32,
    fingerprints: Packed,
}

/// Where the pairs of a page are in it.
struct FusePlaces([(u64, [usize; 3]); PAGE]);

impl Fuse {
    fn new(of: &BinaryFuse16, width: u32) -> Outcome<Fuse> {
        let fingerprints = Packed::new(of.fingerprints.len() * width as usize)?;
        for (i, &fingerprint) in of.fingerprints.iter().enumerate() {
            let kept = u64::from(fingerprint) & (u64::MAX >> (64 - width));
            fingerprints.set(i * width as usize, kept);
        }
        Ok(Fuse { at: of.descriptor.clone(), width, fingerprints })
    }

    fn bits(&self) -> f64 {
        self.fingerprints.0.size_bytes() as f64 * 8.0
    }

    /// In bursts of fifteen lines, as `rolling::prefetch` advises.
    #[inline(always)]
    fn place(&self, keys: &[u64; PAGE]) -> FusePlaces {
        const BURST: usize = 5;
        let mut places = [(0, [0; 3]); PAGE];
        for (places, keys) in places.chunks_mut(BURST).zip(keys.chunks(BURST)) {
            for (place, &key) in places.iter_mut().zip(keys) {
                let hash = mix(key, self.at.seed);
                let at = fuse_places(hash, &self.at).map(|i| i as usize * self.width as usize);
                *place = (hash ^ hash >> 32, at);
            }
            for at in places.iter().flat_map(|(_, at)| at) {
                self.fingerprints.prefetch(*at);
            }
        }
        FusePlaces(places)
    }

    #[inline(always)]
    fn answer(&self, FusePlaces(places): &FusePlaces) -> u32 {
        bits_of(|i| {
            let (fingerprint, at) = places[i];
            let found = at.iter().fold(0, |all, &at| all ^ self.fingerprints.get(at, self.width));
            (fingerprint ^ found) & (u64::MAX >> (64 - self.width)) == 0
        })
    }
}

/// A rank-select quotient filter in the layout of `qfilter`, only read: blocks of 64 slots with an
/// offset, a bit per quotient that is there, a bit per slot that ends a run, and remainders. It has
/// as many blocks as it needs, not a power of two.
struct Quotients {
    slots: u64,
    blocks: Packed,
}

/// Where the pairs of a page are in it.
struct QuotientPlaces([(u64, u64); PAGE]);

impl Quotients {
    /// Bits of a block: its offset, then the two bits per slot, then the remainders.
    const BLOCK: usize = 8 + 64 + 64 + 64 * WIDTH as usize;

    fn new(keys: &[u64]) -> Outcome<Quotients> {
        let slots = ((keys.len() as f64 / LOAD) as u64).next_multiple_of(64);
        // What the last runs push beyond the end.
        let blocks = slots as usize / 64 + 8;
        let filter = Quotients { slots, blocks: Packed::new(blocks * Self::BLOCK)? };
        let mut sorted: Vec<u64> = keys.iter().map(|&key| filter.fingerprint(key)).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut free = 0;
        let mut next = 0;
        for block in 0..blocks as u64 {
            let offset = u64::saturating_sub(free, block * 64);
            filter.blocks.set(Self::header(block), u64::from(u8::try_from(offset)?));
            while next < sorted.len() && sorted[next] >> WIDTH < (block + 1) * 64 {
                let quotient = sorted[next] >> WIDTH;
                let run = sorted[next..].iter().take_while(|&&s| s >> WIDTH == quotient).count();
                free = free.max(quotient);
                for fingerprint in &sorted[next..next + run] {
                    let remainder = fingerprint & (u64::MAX >> (64 - WIDTH));
                    filter.blocks.set(Self::remainder(free), remainder);
                    free += 1;
                }
                filter.blocks.set(Self::header(block) + 8 + quotient as usize % 64, 1);
                let end = free - 1;
                filter.blocks.set(Self::header(end / 64) + 72 + end as usize % 64, 1);
                next += run;
            }
        }
        Ok(filter)
    }

    fn bits(&self) -> f64 {
        self.blocks.0.size_bytes() as f64 * 8.0
    }

    /// Evenly among all, in the order of the slots.
    #[inline(always)]
    fn fingerprint(&self, key: u64) -> u64 {
        (u128::from(key).wrapping_mul(u128::from(self.slots << WIDTH)) >> 64) as u64
    }

    #[inline(always)]
    fn header(block: u64) -> usize {
        block as usize * Self::BLOCK
    }

    #[inline(always)]
    fn remainder(slot: u64) -> usize {
        Self::header(slot / 64) + 8 + 128 + (slot % 64) as usize * WIDTH as usize
    }

    /// The line of the header, and that in which the remainders most likely begin: some ten slots
    /// further on, at this load.
    #[inline(always)]
    fn place(&self, keys: &[u64; PAGE]) -> QuotientPlaces {
        const BURST: usize = 7;
        const FURTHER: u64 = 10;
        let mut places = [(0, 0); PAGE];
        for (places, keys) in places.chunks_mut(BURST).zip(keys.chunks(BURST)) {
            for (place, &key) in places.iter_mut().zip(keys) {
                let fingerprint = self.fingerprint(key);
                *place = (fingerprint >> WIDTH, fingerprint & (u64::MAX >> (64 - WIDTH)));
            }
            for (quotient, _) in places {
                self.blocks.prefetch(Self::header(*quotient / 64));
                self.blocks.prefetch(Self::remainder(*quotient + FURTHER));
            }
        }
        QuotientPlaces(places)
    }

    #[inline(always)]
    fn answer(&self, QuotientPlaces(places): &QuotientPlaces) -> u32 {
        bits_of(|i| self.contains(places[i].0, places[i].1))
    }

    #[inline(always)]
    fn contains(&self, quotient: u64, remainder: u64) -> bool {
        let (block, slot) = (quotient / 64, quotient % 64);
        let header = Self::header(block);
        let occupied = self.blocks.get(header + 8, 64);
        if occupied >> slot & 1 == 0 {
            return false;
        }
        let offset = self.blocks.get(header, 8);
        // How many runs of this block lie before the pair's.
        let mut before = (occupied & ((1 << slot) - 1)).count_ones();
        let (mut end_block, skipped) = (block + offset / 64, offset % 64);
        let mut ends = self.blocks.get(Self::header(end_block) + 72, 64) >> skipped << skipped;
        while ends.count_ones() <= before {
            before -= ends.count_ones();
            end_block += 1;
            ends = self.blocks.get(Self::header(end_block) + 72, 64);
        }
        let end = end_block * 64 + u64::from(select(ends, before));
        // Backwards, to the end of the run before or the run's first place.
        let first = quotient.max(block * 64 + offset);
        let mut at = end;
        loop {
            if self.blocks.get(Self::remainder(at), WIDTH) == remainder {
                return true;
            }
            if at == first {
                return false;
            }
            at -= 1;
            if at / 64 < end_block {
                end_block = at / 64;
                ends = self.blocks.get(Self::header(end_block) + 72, 64);
            }
            if ends >> (at % 64) & 1 == 1 {
                return false;
            }
        }
    }
}

/// The place of the n-th one of `word`, from 0 on, which has more than n.
#[inline(always)]
fn select(word: u64, n: u32) -> u32 {
    const fn each(byte: u64) -> u64 {
        byte * 0x0101_0101_0101_0101
    }
    const HIGH: u64 = each(0x80);
    let pairs = word - ((word >> 1) & each(0x55));
    let nibbles = (pairs & each(0x33)) + ((pairs >> 2) & each(0x33));
    let bytes = (nibbles + (nibbles >> 4)) & each(0x0f);
    // Ones up to and including each byte; the bytes that have no more than n are before it.
    let sums = bytes.wrapping_mul(each(1));
    let upto = ((each(u64::from(n)) | HIGH) - sums) & HIGH;
    let byte = 8 * upto.count_ones();
    let mut rest = n - (sums << 8 >> byte & 0xff) as u32;
    let mut left = word >> byte;
    while rest > 0 {
        left &= left - 1;
        rest -= 1;
    }
    byte + left.trailing_zeros()
}

/// A space whose first table is full when it has so many pairs.
fn space_for(pairs: u64, rate: f64) -> Outcome<Space> {
    let options = Options {
        false_positive_rate: rate,
        pairs_per_table: pairs * 8,
        max_tables: 2,
        max_revoked: usize::MAX,
        seed: 7,
        ..Options::default()
    };
    Ok(Space::new(options)?)
}

/// Adds pairs, each fetched ahead as the server does for requests that came together.
fn add(space: &Space, pairs: &Pairs, range: Range<u64>) -> Outcome<()> {
    let mut ahead = pairs.each(range.clone()).skip(16);
    for (id, member) in pairs.each(range) {
        if let Some((id, member)) = ahead.next() {
            space.prefetch(id, &member.into());
        }
        space.add(id, &member.into())?;
    }
    Ok(())
}

#[inline(always)]
fn look_into(space: &Space, (member, ids): &Page, meanwhile: impl Fn() -> u32) -> u32 {
    let lookup = space.lookup(&Member::Number(*member), ids);
    let mut room = lookup.pairs();
    let placed = lookup.place(&mut room);
    let more = meanwhile();
    more | placed.answer(|found| found, &mut Vec::new()).yes
}

/// Runs `make`, and says what it took.
fn made<T>(pairs: u64, make: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Making)> {
    let mut made = None;
    let before = cpu_ns();
    let memory = measure(|| made = Some(make()));
    let ns = (cpu_ns() - before) as f64;
    let bytes = memory.bytes_max as f64 - memory.bytes_current as f64;
    let making =
        Making { ns_per_pair: ns / pairs as f64, bytes_beside_per_pair: bytes / pairs as f64 };
    Ok((made.ok_or("measured without running")??, making))
}

/// All filters of so many pairs.
struct Field {
    pairs: Pairs,
    hasher: Rc<Hasher>,
    contenders: Vec<Contender>,
    ours: Rc<Space>,
    quotients: Rc<qfilter::Filter>,
}

impl Field {
    fn new(count: u64, late: f64) -> Outcome<Field> {
        let pairs = Pairs::new(count)?;
        let hasher = Rc::new(Hasher::new()?);
        let (ours, making) = made(count, || {
            let space = space_for(count, RATE)?;
            add(&space, &pairs, 0..count)?;
            Ok(Rc::new(space))
        })?;
        let bits = full_bits(&ours, count)?;
        // As many pairs as fill a power of two of slots.
        let slots = (count as f64 / LOAD) as u64;
        let filled = ((1 << slots.ilog2()) as f64 * LOAD) as u64;
        let keys = pairs.hashes(0..filled);
        let (quotients, inserting) = made(filled, || {
            let mut filter = qfilter::Filter::new(filled, RATE)?;
            keys.iter().try_for_each(|&key| filter.insert_fingerprint(false, key).map(|_| ()))?;
            Ok(Rc::new(filter))
        })?;
        let mut field = Field {
            pairs,
            hasher,
            contenders: vec![],
            ours: ours.clone(),
            quotients: quotients.clone(),
        };
        field.enter("ours", bits, Some(making), move |_, page| look_into(&ours, page, || 0));
        let hashing =
            |hasher: &Hasher, page: &Page| hasher.each(page, |key| black_box(key) == u64::MAX);
        field.enter("hashing alone", 0.0, None, hashing);
        let bits = quotients.memory_usage() as f64 * 8.0 / filled as f64;
        field.enter("qfilter", bits, Some(inserting), move |hasher, page| {
            hasher.each(page, |key| quotients.contains_fingerprint(key))
        });
        let keys = field.pairs.hashes(0..count);
        let own = Quotients::new(&keys)?;
        let bits = own.bits() / count as f64;
        field.enter("quotient filter, fetched ahead", bits, None, move |hasher, page| {
            own.answer(&own.place(&hasher.page(page)))
        });
        field.enter_fuse(&keys)?;
        field.enter_late(keys, (count as f64 * (1.0 - late)) as u64)?;
        Ok(field)
    }

    fn enter(
        &mut self,
        name: &'static str,
        bits_per_pair: f64,
        making: Option<Making>,
        look: impl Fn(&Hasher, &Page) -> u32 + 'static,
    ) {
        let hasher = self.hasher.clone();
        self.contenders.push(Contender {
            name,
            bits_per_pair,
            making,
            look: Box::new(move |page| look(&hasher, page)),
            misses: vec![],
            hits: vec![],
            rate: 0.0,
        });
    }

    fn enter_fuse(&mut self, keys: &[u64]) -> Outcome<()> {
        let count = keys.len() as u64;
        let (eight, making) = made(count, || Ok(BinaryFuse8::try_from(keys)?))?;
        let bits = eight.fingerprints.len() as f64 * 8.0 / count as f64;
        self.enter("xorf, BinaryFuse8", bits, Some(making), move |hasher, page| {
            hasher.each(page, |key| eight.contains(&key))
        });
        let (sixteen, making) = made(count, || Ok(BinaryFuse16::try_from(keys)?))?;
        for (name, width) in [
            ("binary fuse, 13 bits, fetched ahead", 13),
            ("binary fuse, 14 bits, fetched ahead", 14),
        ] {
            let fuse = Fuse::new(&sixteen, width)?;
            self.enter(name, fuse.bits() / count as f64, Some(making), move |hasher, page| {
                fuse.answer(&fuse.place(&hasher.page(page)))
            });
        }
        let bits = sixteen.fingerprints.len() as f64 * 16.0 / count as f64;
        self.enter("xorf, BinaryFuse16", bits, Some(making), move |hasher, page| {
            hasher.each(page, |key| sixteen.contains(&key))
        });
        Ok(())
    }
    /// A static filter of the pairs below `built`, and ours of the rest.
    fn enter_late(&mut self, mut keys: Vec<u64>, built: u64) -> Outcome<()> {
        let count = keys.len() as u64;
        keys.truncate(usize::try_from(built)?);
        let fuse = Fuse::new(&BinaryFuse16::try_from(&keys)?, WIDTH)?;
        // The rates of both add up.
        let late = space_for(count - built, RATE - 0.5f64.powi(WIDTH as i32))?;
        add(&late, &self.pairs, built..count)?;
        let bits = full_bits(&late, count - built)?;
        let both = (fuse.bits() + bits * (count - built) as f64) / count as f64;
        self.enter("binary fuse, 14 bits, and late ones", both, None, move |hasher, page| {
            let places = fuse.place(&hasher.page(page));
            look_into(&late, page, || fuse.answer(&places))
        });
        Ok(())
    }

    /// All filters, by turns.
    fn play(&mut self, rounds: usize, pages: u64) {
        // Those that all filters have.
        let common = self.quotients.len() / PAGE as u64 - 1;
        let mut rng = fastrand::Rng::with_seed(28);
        for round in 0..rounds {
            let mut ask = |first: u64, members: u64| -> Vec<Page> {
                (0..pages).map(|_| self.pairs.page(first + rng.u64(0..members))).collect()
            };
            let (misses, hits) = (ask(NO_MEMBERS, NO_MEMBERS), ask(0, common));
            let number = self.contenders.len();
            for i in 0..number {
                let contender = &mut self.contenders[(round + i) % number];
                contender.misses.push(turn(&contender.look, &misses).0);
                let (ns, found) = turn(&contender.look, &hits);
                contender.hits.push(ns);
                let all = pages * PAGE as u64;
                assert!(found == all || contender.making.is_none() && found == 0, "a false no");
            }
        }
    }

    /// False positives, by so many pages that miss.
    fn measure_rates(&mut self, pages: u64) {
        for contender in &mut self.contenders {
            let all = (0..pages).map(|i| self.pairs.page(3 * NO_MEMBERS + i));
            let found: u64 = all.map(|page| u64::from((contender.look)(&page).count_ones())).sum();
            contender.rate = found as f64 / (pages * PAGE as u64) as f64;
        }
    }

    /// Unsets one pair of a hundred in ours and in `qfilter`, and looks for the others.
    fn print_unset(&self) -> Outcome<()> {
        let all = self.quotients.len();
        let some = all / 100;
        let before = cpu_ns();
        for (id, member) in self.pairs.each(0..some) {
            self.ours.remove(id, &member.into())?;
        }
        let ours = (cpu_ns() - before) as f64 / some as f64;
        let mut quotients = qfilter::Filter::clone(&self.quotients);
        let keys = self.pairs.hashes(0..all);
        let before = cpu_ns();
        for &key in &keys[..some as usize] {
            quotients.remove_fingerprint(key);
        }
        let theirs = (cpu_ns() - before) as f64 / some as f64;
        println!("\nTo unset a pair takes ours {ours:.0} ns, qfilter {theirs:.0} ns.");
        let (mut ours, mut theirs) = (0, 0);
        for ((id, member), key) in self.pairs.each(some..all).zip(&keys[some as usize..]) {
            ours += u64::from(self.ours.contains(id, &member.into())? != Answer::Yes);
            theirs += u64::from(!quotients.contains_fingerprint(*key));
        }
        println!(
            "After {some} were unset ours lacks {ours} of {} others, qfilter {theirs}.",
            all - some
        );
        Ok(())
    }

    fn print(&self, rounds: usize) {
        println!(
            "\n{} pairs, {rounds} turns, medians; × ours of the same turn\n",
            self.pairs.count
        );
        println!(
            "| filter | bits per pair | false positives, % | ns per miss | × | ns per hit | × | \
             ns to build or insert | bytes beside |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        let ours = &self.contenders[0];
        for contender in &self.contenders {
            let making = contender.making.map_or("| | |".to_owned(), |making| {
                format!("| {:.0} | {:.1} |", making.ns_per_pair, making.bytes_beside_per_pair)
            });
            println!(
                "| {} | {:.2} | {:.4} | {:.1} | {:.2} | {:.1} | {:.2} {making}",
                contender.name,
                contender.bits_per_pair,
                contender.rate * 100.0,
                median(contender.misses.iter().copied()),
                ratio(&contender.misses, &ours.misses),
                median(contender.hits.iter().copied()),
                ratio(&contender.hits, &ours.hits),
            );
        }
    }
}

/// Bits per pair of a space's first table, which has them all, and no extension.
fn full_bits(space: &Space, pairs: u64) -> Outcome<f64> {
    let table = space.tables().into_iter().next().ok_or("a space has a table")?;
    if table.extensions > 0 || table.pairs < pairs * 999 / 1000 {
        return Err(format!("{} pairs, {} extensions", table.pairs, table.extensions).into());
    }
    Ok(table.bytes as f64 * 8.0 / pairs as f64)
}

/// Bits per pair of the closed tables of a space of the default settings, if it has any when so
/// many pairs have come about in the order of their ids, some of them late.
fn closed_bits(pairs: u64) -> Outcome<Option<f64>> {
    const PAIRS_PER_ID: u64 = 10;
    const RECENT_IDS: f64 = 20_000.0;
    let options = Options { pairs_per_table: 8 << 20, max_tables: 1000, ..Options::default() };
    let space = Space::new(options)?;
    let mut rng = fastrand::Rng::with_seed(28);
    for i in 0..pairs {
        let age = (rng.f64().powi(3) * RECENT_IDS) as u64;
        let id = (1 << 50) + (i / PAIRS_PER_ID).saturating_sub(age);
        space.add(id, &rng.u64(0..50_000_000).into())?;
    }
    while space.maintain() {}
    let tables = space.tables();
    let closed = &tables[..tables.len() - 1];
    let (bytes, held) =
        closed.iter().fold((0, 0), |(bytes, pairs), at| (bytes + at.bytes, pairs + at.pairs));
    Ok((held > 0).then(|| bytes as f64 * 8.0 / held as f64))
}

/// Nanoseconds per id, and ids found.
fn turn(look: &Look, pages: &[Page]) -> (f64, u64) {
    let before = cpu_ns();
    let found = pages.iter().map(|page| u64::from(look(page).count_ones())).sum();
    ((cpu_ns() - before) as f64 / (pages.len() * PAGE) as f64, found)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn ratio(values: &[f64], to: &[f64]) -> f64 {
    median(values.iter().zip(to).map(|(value, to)| value / to))
}

fn main() -> Outcome<()> {
    // The allocator asks for huge pages for the crates' memory only if it is told so.
    const TUNABLES: &str = "GLIBC_TUNABLES";
    if std::env::var_os(TUNABLES).is_none() {
        let mut again = Command::new(std::env::current_exe()?);
        again.args(std::env::args_os().skip(1)).env(TUNABLES, "glibc.malloc.hugetlb=1");
        return Err(again.exec().into());
    }
    let args = Args::parse();
    for &count in &args.pairs {
        let mut field = Field::new(count, args.late)?;
        field.play(args.rounds, args.pages);
        field.measure_rates(args.rate_pages);
        field.print(args.rounds);
        field.print_unset()?;
        drop(field);
        if let Some(bits) = closed_bits(count)? {
            println!("Closed tables of a space by default take {bits:.1} bits per pair.");
        }
    }
    Ok(())
}
