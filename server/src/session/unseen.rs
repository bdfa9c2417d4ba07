//! Options and result of PH.UNSEEN.

use node::command::id_list::ID_BYTES;
use resp::Reply;

/// Options of PH.UNSEEN.
#[derive(Clone, Copy, Default)]
pub(crate) struct UnseenOptions {
    /// Maximum number of ids in the reply.
    pub(crate) limit: usize,
    /// Whether ids below the horizon count as unseen.
    pub(crate) below_is_unseen: bool,
    /// Whether the reply is a bitmap.
    pub(crate) bits: bool,
    /// Whether the request sets the flags of the ids in the reply.
    pub(crate) marks: bool,
    /// Whether the request passes the ids as one packed string.
    pub(crate) is_packed: bool,
}

/// Result of PH.UNSEEN, which may take several turns.
#[derive(Default)]
pub(crate) struct Unseen {
    pub(crate) options: UnseenOptions,
    /// Number of unseen ids.
    count: usize,
    /// Unseen ids as little-endian u64, or a bitmap of all given ids.
    pub(crate) bytes: Vec<u8>,
}

impl Unseen {
    /// Creates an empty result for `given` ids.
    pub(crate) fn new(options: UnseenOptions, given: usize) -> Unseen {
        let mut unseen = Unseen { options, ..Unseen::default() };
        unseen.restart(given);
        unseen
    }

    /// Discards the result; `given` is the number of ids to test.
    pub(crate) fn restart(&mut self, given: usize) {
        self.count = 0;
        self.bytes.clear();
        self.bytes.resize(if self.options.bits { given.div_ceil(8) } else { 0 }, 0);
    }

    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.count < self.options.limit
    }

    /// Adds an unseen id; `index` is its position among the given ids.
    #[inline]
    pub(crate) fn push(&mut self, index: usize, id: u64) {
        self.count += 1;
        if self.options.bits {
            self.bytes[index / 8] |= 0x80 >> (index % 8);
        } else {
            self.bytes.extend_from_slice(&id.to_le_bytes());
        }
    }

    pub(crate) fn write(&self, reply: &mut Reply<'_>) {
        if self.options.bits || self.options.is_packed {
            return reply.bulk(&self.bytes);
        }
        let ids = self.bytes.as_chunks::<ID_BYTES>().0;
        reply.array(ids.len());
        for id in ids.iter().map(|id| u64::from_le_bytes(*id)) {
            match i64::try_from(id) {
                Ok(id) => reply.int(id),
                Err(_) => reply.bulk(id.to_string().as_bytes()),
            }
        }
    }
}
