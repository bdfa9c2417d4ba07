//! Bit layout of a bucket.
//!
//! ```text
//!   bit 0        40         40 + 8n                                        64 * words
//!   | header     | n bytes  | n tails: rest of the tag, field, field, ...  | unused |
//! ```
//!
//! A slot's *tag* is the remainder of its id (low bits) and its *state* (high bits). State 0 marks
//! an empty slot; state p + 1 marks a row stored at probe p.
//!
//! The low byte of every tag is stored at the beginning of the bucket, so one SIMD pass over a few
//! words finds all candidate slots. The *tail* of a slot holds the rest of the tag and the fields,
//! bit-packed.
//!
//! A field holds 0..=2^width-2. The all-ones code is the *escape*: the value is in the aux
//! dictionary.

use crate::schema::Schema;

/// Words of a bucket when fewer than [`MIN_BUCKET_SLOTS`] rows fit in [`NARROW_BUCKET_WORDS`].
const WIDE_WORDS: usize = 32;
/// Words of a bucket: two cache lines.
pub(crate) const NARROW_BUCKET_WORDS: usize = 16;
const MIN_BUCKET_SLOTS: usize = 12;
/// Bits of the bucket header: lock, version and overflow marks.
pub(crate) const HEADER_BITS: u32 = 40;
pub(crate) const STATE_BITS: u32 = 3;

/// Position of a field within a slot's tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inline {
    /// Offset from the start of the tail, in bits.
    pub(crate) offset: u32,
    pub(crate) width: u32,
}

impl Inline {
    /// Code that marks a value stored in the aux dictionary: all ones.
    #[inline(always)]
    pub(crate) fn escape(self) -> u64 {
        u64::MAX >> (64u32.wrapping_sub(self.width) & 63)
    }

    /// Returns the code for `value`; the escape if the value does not fit.
    #[inline(always)]
    pub(crate) fn encode(self, value: i64) -> u64 {
        // Negative values become huge as u64, so they escape too.
        (value as u64).min(self.escape())
    }
}

/// Bucket layout shared by all buckets of a table segment.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) remainder_bits: u32,
    /// Increment of a tag for one further probe: a single bit, just above the remainder.
    pub(crate) probe_one: u64,
    /// Words of a bucket, a multiple of a cache line.
    pub(crate) words: usize,
    pub(crate) slots: usize,
    /// Bit offset of the first tail.
    pub(crate) rest_at: u32,
    /// Length of a tail, in bits.
    pub(crate) rest_bits: u32,
    /// Number of tag bits that are stored in the tail, and a mask with this number of one bits.
    pub(crate) tag_rest_bits: u32,
    pub(crate) tag_rest_mask: u64,
    /// Fields by position. A dropped field, or a field newer than this table, is `None`.
    pub(crate) fields: Vec<Option<Inline>>,
    /// Bitmap of the positions that are `Some` in `fields`.
    pub(crate) inline_fields: u64,
    /// Number of words, and number of cache lines, that contain the first bytes of the tags.
    pub(crate) byte_words: usize,
    pub(crate) byte_lines: usize,
    /// Bitmap of the tag bytes in each of these lines, one bit per byte.
    pub(crate) lanes: [u64; WIDE_WORDS / 8],
    /// Extraction plan for all fields, or `None` if a tail exceeds 64 bits.
    pub(crate) packed: Option<Packed>,
}

/// Extraction plan for tails of at most 64 bits.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    /// Shift and mask by position; the mask of a field without inline bits is 0.
    fields: Vec<(u32, u64)>,
    /// The first four entries of `fields`, for the unrolled path.
    four: [(u32, u64); 4],
    /// Bitmaps of the lowest bit of every field, and of the bit above every field.
    lowest: u64,
    above: u64,
}

impl Packed {
    fn new(fields: &[Option<Inline>]) -> Packed {
        let bits = |of: fn(&Inline) -> u32| {
            fields.iter().flatten().fold(0, |bits, i| bits | (1u128 << of(i)) as u64)
        };
        let take = |f: &Option<Inline>| f.map_or((0, 0), |i| (i.offset, i.escape()));
        Packed {
            fields: fields.iter().map(take).collect(),
            four: std::array::from_fn(|i| fields.get(i).map_or((0, 0), take)),
            lowest: bits(|i| i.offset),
            above: bits(|i| i.offset + i.width),
        }
    }

    /// Returns the number of values that [`Packed::take`] writes.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        self.fields.len()
    }

    /// Extracts all fields of a tail. Returns false, and leaves meaningless values in `out`, if any
    /// field is escaped.
    #[inline(always)]
    pub(crate) fn take(&self, rest: u64, out: &mut [i64]) -> bool {
        self.fill(rest, out);
        self.is_whole(rest)
    }

    /// Returns true if all fields of the tail are stored without an escape code. Bits above the
    /// tail do not matter.
    #[inline(always)]
    pub(crate) fn is_whole(&self, rest: u64) -> bool {
        // Add one to every field at once. Only a field of all ones carries into the bit above it,
        // or out of the word.
        let (sum, carried) = rest.overflowing_add(self.lowest);
        ((sum ^ rest ^ self.lowest) & self.above == 0) & !carried
    }

    /// Extracts all fields of a tail into `out`, which holds [`Packed::width`] values.
    #[inline(always)]
    pub(crate) fn fill(&self, rest: u64, out: &mut [i64]) {
        let take = |&(shift, mask): &(u32, u64)| (rest.wrapping_shr(shift) & mask) as i64;
        // Four fields are the common case, for which unrolled code needs half the instructions.
        if let Ok(four) = <&mut [i64; 4]>::try_from(&mut *out) {
            *four = self.four.each_ref().map(take);
        } else {
            out.iter_mut().zip(&self.fields).for_each(|(value, field)| *value = take(field));
        }
    }
}

impl Layout {
    /// Bytes of a layout per field.
    pub(crate) const FIELD_BYTES: usize = size_of::<Option<Inline>>() + size_of::<(u32, u64)>();

    pub(crate) fn new(schema: &Schema, remainder_bits: u32) -> Layout {
        let tag_rest_bits = remainder_bits + STATE_BITS - 8;
        let mut offset = tag_rest_bits;
        let fields = schema.fields().iter().map(|field| {
            let inline = Inline { offset, width: u32::from(field.width) };
            (!field.dropped).then(|| {
                offset += inline.width;
                inline
            })
        });
        let fields: Vec<Option<Inline>> = fields.collect();
        let inline_fields =
            fields.iter().enumerate().fold(0, |bits, (i, f)| bits | u64::from(f.is_some()) << i);
        let (words, slots) = Layout::shape(offset + 8);
        let bytes = HEADER_BITS as usize / 8 + slots;
        let byte_words = bytes.div_ceil(8);
        let mut lanes = [0; WIDE_WORDS / 8];
        for byte in HEADER_BITS as usize / 8..bytes {
            lanes[byte / 64] |= 1 << (byte % 64);
        }
        let packed = (offset <= 64).then(|| Packed::new(&fields));
        Layout {
            remainder_bits,
            probe_one: 1 << remainder_bits,
            words,
            slots,
            rest_at: HEADER_BITS + 8 * slots as u32,
            rest_bits: offset,
            tag_rest_bits,
            tag_rest_mask: (1 << tag_rest_bits) - 1,
            fields,
            inline_fields,
            byte_words,
            byte_lines: byte_words.div_ceil(8),
            lanes,
            packed,
        }
    }

    /// Returns words and slots of a bucket for slots of `slot_bits` bits.
    fn shape(slot_bits: u32) -> (usize, usize) {
        let slots = |words: usize| (words * 64 - HEADER_BITS as usize) / slot_bits as usize;
        let words = if slots(NARROW_BUCKET_WORDS) >= MIN_BUCKET_SLOTS {
            NARROW_BUCKET_WORDS
        } else {
            WIDE_WORDS
        };
        (words, slots(words))
    }

    /// Bits of a slot: its first byte and its tail.
    pub(crate) fn slot_bits(&self) -> u32 {
        self.rest_bits + 8
    }

    /// Encodes a row (values by position; missing values are 0) as tail bits. Returns `None` if a
    /// value does not fit or a tail exceeds 64 bits.
    #[inline]
    pub(crate) fn pack(&self, row: &[i64]) -> Option<u64> {
        if self.rest_bits > 64 {
            return None;
        }
        let mut bits = 0;
        for (inline, &value) in self.fields.iter().zip(row) {
            // A field without inline bits has been dropped, so readers never request it.
            let Some(inline) = inline else { continue };
            let code = inline.encode(value);
            if code == inline.escape() {
                return None;
            }
            bits |= code << inline.offset;
        }
        Some(bits)
    }

    #[inline(always)]
    pub(crate) fn remainder(&self, tag: u64) -> u64 {
        tag & (self.probe_one - 1)
    }

    /// Returns the extraction plan if it yields exactly the `living` fields of rows of `width`
    /// values.
    #[inline(always)]
    pub(crate) fn plan_for(&self, living: u64, width: usize) -> Option<&Packed> {
        self.packed
            .as_ref()
            .filter(|packed| packed.width() == width && living == self.inline_fields)
    }

    /// Returns the bits of the field at `position`, if this table stores it inline.
    #[inline(always)]
    pub(crate) fn inline(&self, position: usize) -> Option<Inline> {
        self.fields.get(position).copied().flatten()
    }

    /// Builds the tag of a row stored at probe number `probe`.
    #[inline(always)]
    pub(crate) fn tag(&self, remainder: u64, probe: u64) -> u64 {
        remainder | (probe + 1).wrapping_shl(self.remainder_bits)
    }

    /// Returns the load factor at which a table of this layout is closed. The value includes a
    /// safety margin of 1 % below the load factor at which one row in a thousand finds all of its
    /// probes full (simulated, see docs/performance/journal.md). Buckets with more slots reach a
    /// higher load factor.
    pub(crate) fn close_load_factor(&self) -> f64 {
        close_load_factor(self.slots)
    }

    /// Returns bytes and rows per bucket of a table that is about to be closed, for slots whose
    /// fields and remainder take `bits` bits.
    pub(crate) fn bytes_and_rows(bits: u32) -> (f64, f64) {
        let (words, slots) = Layout::shape(bits + STATE_BITS);
        (words as f64 * 8.0, slots as f64 * close_load_factor(slots))
    }
}

fn close_load_factor(slots: usize) -> f64 {
    match slots {
        28.. => 0.93,
        20.. => 0.92,
        14.. => 0.91,
        12.. => 0.89,
        8.. => 0.86,
        6.. => 0.84,
        4.. => 0.78,
        3 => 0.73,
        2 => 0.65,
        _ => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_lie_bit_behind_bit_and_inside_the_bucket() {
        for (schema, remainder_bits, slots) in [
            ("like:12 repost:8 comment:8 read:16", 18, 15),
            ("a:1", 5, 109),
            ("a:64 b:64", 60, 10),
            ("x:10 !y:30 z:2", 12, 36),
        ] {
            let layout = Layout::new(&Schema::parse(schema).unwrap(), remainder_bits);
            assert_eq!(layout.slots, slots, "{schema}");
            let (end, bits) =
                (layout.rest_at + layout.slots as u32 * layout.rest_bits, 64 * layout.words as u32);
            assert!(end <= bits && end + layout.slot_bits() > bits);
            assert_eq!(layout.lanes.iter().map(|l| l.count_ones()).sum::<u32>(), slots as u32);
            let mut next = layout.tag_rest_bits;
            for inline in layout.fields.iter().flatten() {
                assert_eq!(inline.offset, next);
                next += inline.width;
            }
            assert_eq!(next, layout.rest_bits);
        }
    }

    /// Compares extraction of a whole row with the encoded values, for random widths and values at
    /// both ends of each field's range.
    #[test]
    fn fields_of_a_word_come_out_as_they_went_in() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut escapes = 0;
        for _ in 0..if cfg!(miri) { 20 } else { 20_000 } {
            let remainder_bits = rng.u32(5..=20);
            let mut room = 64 - (remainder_bits + STATE_BITS - 8);
            let mut text = String::new();
            while room > 0 && text.len() < 60 {
                let width = rng.u32(1..=room);
                let dropped = if rng.u32(0..5) == 0 { "!" } else { "" };
                text += &format!("{dropped}f{}:{width} ", text.len());
                room -= if dropped.is_empty() { width } else { 0 };
            }
            let layout = Layout::new(&Schema::parse(text.trim()).unwrap(), remainder_bits);
            let packed = layout.packed.as_ref().unwrap();
            let mut rest = rng.u64(..) & layout.tag_rest_mask;
            let (mut values, mut escaped) = (Vec::new(), false);
            for inline in &layout.fields {
                let value = inline.map_or(0, |i| {
                    [0, i.escape() - 1, i.escape(), rng.u64(0..=i.escape())][rng.usize(0..4)]
                });
                rest |= inline.map_or(0, |i| value << i.offset);
                escaped |= inline.is_some_and(|i| value == i.escape());
                values.push(value as i64);
            }
            let mut out = vec![-1; packed.width()];
            assert_eq!(packed.take(rest, &mut out), !escaped, "{text}");
            assert_eq!(out, values, "{text}");
            escapes += u32::from(escaped);
        }
        assert!(escapes > 0);
    }

    #[test]
    fn what_fits_is_itself_and_the_rest_escapes() {
        let inline = Inline { offset: 0, width: 8 };
        assert_eq!(
            [0, 254, 255, 256, -1, i64::MIN].map(|v| inline.encode(v)),
            [0, 254, 255, 255, 255, 255]
        );
        let widest = Inline { offset: 0, width: 64 };
        assert_eq!(widest.encode(i64::MAX), i64::MAX as u64);
        assert_eq!(widest.encode(-1), widest.escape());
        let narrowest = Inline { offset: 0, width: 1 };
        assert_eq!([0, 1].map(|v| narrowest.encode(v)), [0, 1]);
    }
}
