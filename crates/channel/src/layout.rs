//! What lies where in a segment's header page. `docs/memory-layout.md` is the same in
//! words; the assertions below keep both honest.
//!
//! Lines are grouped in pairs of 128 bytes, because processors fetch the neighbour of a
//! line too: what one side writes often never shares a pair with what the other side
//! reads often, except where reading it is the purpose.

use crate::numbers::{Edge, Small};
use crate::sync::{AtomicU32, AtomicU64, PlainU32, PlainU64};

/// Bytes of the header page.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Bytes before the pools: the header page and each lane's larger tables.
pub(crate) const HEAD_BYTES: usize = HEADER_BYTES + 2 * LARGE_BYTES;
/// Bytes of a lane's larger tables, whole pages.
pub(crate) const LARGE_BYTES: usize = 8192;
/// Marks a segment: `viaductS`, read as little-endian.
#[cfg(not(loom))]
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"viaductS");
/// Version of the layout and of the rules for it.
#[cfg(not(loom))]
pub(crate) const VERSION: u32 = 7;
/// Words a side's signal line has for the layer above.
pub(crate) const WORDS: usize = 4;

/// Most blocks of a pool.
#[cfg(not(any(test, loom)))]
pub(crate) const MAX_BLOCKS: usize = 1024;
/// Most blocks whose numbers are kept in the header page; each fits a byte.
#[cfg(not(any(test, loom)))]
pub(crate) const SMALL_BLOCKS: usize = 256;
// So few that tests go from one kind of tables to the other all the time.
#[cfg(all(test, not(loom)))]
pub(crate) const MAX_BLOCKS: usize = 16;
#[cfg(all(test, not(loom)))]
pub(crate) const SMALL_BLOCKS: usize = 4;
#[cfg(loom)]
pub(crate) const MAX_BLOCKS: usize = 4;
#[cfg(loom)]
pub(crate) const SMALL_BLOCKS: usize = 2;
/// Blocks that a lane may have without more ado. Of more it has at most one for [`CARRIED`] that it has carried: to
/// touch memory for the first time costs as much as to copy into it several times, which a stream that ends soon never
/// gets back.
#[cfg(not(any(test, loom)))]
pub(crate) const EAGER_BLOCKS: usize = 256;
#[cfg(not(any(test, loom)))]
pub(crate) const CARRIED: u64 = 32;
/// What has been carried lets a lane grow by so many blocks together: neighbours stay neighbours.
#[cfg(not(any(test, loom)))]
pub(crate) const TOGETHER: usize = 128;
#[cfg(all(test, not(loom)))]
pub(crate) const EAGER_BLOCKS: usize = 8;
#[cfg(all(test, not(loom)))]
pub(crate) const CARRIED: u64 = 2;
#[cfg(all(test, not(loom)))]
pub(crate) const TOGETHER: usize = 2;
#[cfg(loom)]
pub(crate) const EAGER_BLOCKS: usize = 3;
#[cfg(loom)]
pub(crate) const CARRIED: u64 = 2;
#[cfg(loom)]
pub(crate) const TOGETHER: usize = 1;
/// Blocks of a lane with little traffic: one that has more is worth being made smaller again.
#[cfg(not(any(test, loom)))]
pub(crate) const LEAN_BLOCKS: usize = 8;
#[cfg(any(test, loom))]
pub(crate) const LEAN_BLOCKS: usize = 1;
/// Words of the bitmap of released logical blocks.
const RELEASED_WORDS: usize = (2 * MAX_BLOCKS).div_ceil(64);

/// The header page. Atomics throughout, so that a reference to it is sound whoever writes.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    pub(crate) block_shift: AtomicU32,
    pub(crate) blocks: AtomicU32,
    pub(crate) id: AtomicU64,
    pub(crate) lanes: [Lane; 2],
}

/// One direction's words.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct Lane {
    pub(crate) sender: SenderSignal,
    pub(crate) sender_own: SenderOwn,
    pub(crate) receiver: ReceiverSignal,
    pub(crate) edges: Edges,
    pub(crate) receiver_own: ReceiverOwn,
    /// Logical blocks given back before the head reached them. Receiver's own.
    pub(crate) released: Released,
    /// Block numbers as long as there are few.
    pub(crate) small: Small,
}

/// Written by the sender, polled by the receiver.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct SenderSignal {
    /// Bytes published since the lane began.
    pub(crate) tail: AtomicU64,
    pub(crate) words: [AtomicU64; WORDS],
    /// What the sender waits for blocks with; taken by the receiver. See [`CREDIT_BITS`].
    pub(crate) credit_wait: AtomicU32,
    /// When the sender turned to this lane, by the callers' clock. A hint.
    pub(crate) sent_at: AtomicU64,
}

/// The sender's own words.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct SenderOwn {
    /// Entries of the free stack, 16 bits; above them the physical blocks in use, 16 bits: those from there on have no
    /// memory, or hold nothing; and above these, modulo 2^32, the credits taken since the lane began. One word, so that
    /// no block is ever in two places, or in none for long.
    pub(crate) stock: PlainU64,
    /// A logical block that the head is known to have reached.
    pub(crate) known_head: PlainU64,
    /// Not zero: the system had no memory when the pool last tried to grow.
    pub(crate) starved: PlainU32,
    /// Blocks that the sender leaves untouched, so that less is in flight than the pool could hold.
    pub(crate) spared: PlainU32,
    /// The tail when the pool last began to grow from nothing.
    pub(crate) since: PlainU64,
    /// Blocks that the lane may have because somebody found no space in fewer.
    pub(crate) granted: AtomicU32,
    /// One more word for the layer above, which the receiver hardly ever reads.
    pub(crate) aside: AtomicU64,
}

/// Seldom written by the receiver, looked at by the sender after each publication, so it
/// stays in both caches.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct ReceiverSignal {
    /// What the receiver sleeps with; taken by the sender.
    pub(crate) wait: AtomicU32,
    pub(crate) words: [AtomicU64; WORDS],
    /// While [`LATER`] is among the bits, the tail that they wait for.
    pub(crate) until: AtomicU64,
    /// The tail that the receiver needs before it consumes anything, if the lane has not come as far.
    pub(crate) wanted: AtomicU64,
}

/// Where the larger tables begin. Written once each and looked at all the time, so it stays
/// in both caches.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct Edges {
    /// The first logical block in the larger table. Written by the sender.
    pub(crate) blocks: Edge,
    /// The first credit in the larger ring. Written by the receiver.
    pub(crate) credits: Edge,
}

/// Among the bits of who waits: they are not to be taken before the tail, or the credits, have come as far as it says.
pub(crate) const LATER: u32 = 1 << 31;

/// Of a sender's, those that are its own. With [`LATER`], those between say how far, as [`place_of_credit`] does:
/// several threads may wait for one lane's blocks, and what they wait for must not be parted from their bits.
pub(crate) const CREDIT_BITS: u32 = 0xFF;

/// A number of credits, modulo as many as fit, in the bits of a sender that waits for it.
#[expect(clippy::cast_possible_truncation, reason = "modulo")]
pub(crate) const fn place_of_credit(given: u64) -> u32 {
    (given as u32) << CREDIT_BITS.count_ones() & !LATER
}

/// One bit a logical block, by number modulo twice [`MAX_BLOCKS`].
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct Released([PlainU64; RELEASED_WORDS]);

/// The receiver's own words, of which the sender reads the first two when it is out of
/// blocks.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct ReceiverOwn {
    /// Bytes consumed in order since the lane began.
    pub(crate) head: AtomicU64,
    /// Credits given since the lane began.
    pub(crate) credit_tail: AtomicU64,
    /// The tail as the receiver last found it, checked then.
    pub(crate) seen: PlainU64,
}

impl Released {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.get() == 0)
    }

    #[inline]
    pub(crate) fn contains(&self, logical: u64) -> bool {
        let (word, bit) = self.locate(logical);
        word.get() & bit != 0
    }

    #[inline]
    pub(crate) fn insert(&self, logical: u64) {
        let (word, bit) = self.locate(logical);
        word.set(word.get() | bit);
    }

    #[inline]
    pub(crate) fn remove(&self, logical: u64) {
        let (word, bit) = self.locate(logical);
        word.set(word.get() & !bit);
    }

    #[inline]
    fn locate(&self, logical: u64) -> (&PlainU64, u64) {
        let at = index(logical, 2 * MAX_BLOCKS);
        (&self.0[at / 64], 1 << (at % 64))
    }
}

/// `number` modulo a power of two.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "only the lowest bits are used")]
pub(crate) const fn index(number: u64, len: usize) -> usize {
    number as usize & (len - 1)
}

#[cfg(not(any(test, loom)))]
const _: () = {
    use crate::numbers::Large;
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Header>() <= HEADER_BYTES);
    assert!(size_of::<Header>() == 3456);
    assert!(size_of::<Lane>() == 1664);
    assert!(size_of::<Large>() == LARGE_BYTES);
    assert!(offset_of!(Header, magic) == 0);
    assert!(offset_of!(Header, version) == 8);
    assert!(offset_of!(Header, block_shift) == 12);
    assert!(offset_of!(Header, blocks) == 16);
    assert!(offset_of!(Header, id) == 24);
    assert!(offset_of!(Header, lanes) == 128);
    assert!(offset_of!(Lane, sender) == 0);
    assert!(offset_of!(SenderSignal, tail) == 0);
    assert!(offset_of!(SenderSignal, words) == 8);
    assert!(offset_of!(SenderSignal, credit_wait) == 40);
    assert!(offset_of!(SenderSignal, sent_at) == 48);
    assert!(offset_of!(Lane, sender_own) == 64);
    assert!(offset_of!(SenderOwn, stock) == 0);
    assert!(offset_of!(SenderOwn, known_head) == 8);
    assert!(offset_of!(SenderOwn, starved) == 16);
    assert!(offset_of!(SenderOwn, spared) == 20);
    assert!(offset_of!(SenderOwn, since) == 24);
    assert!(offset_of!(SenderOwn, granted) == 32);
    assert!(offset_of!(SenderOwn, aside) == 40);
    assert!(offset_of!(Lane, receiver) == 128);
    assert!(offset_of!(ReceiverSignal, wait) == 0);
    assert!(offset_of!(ReceiverSignal, words) == 8);
    assert!(offset_of!(ReceiverSignal, until) == 40);
    assert!(offset_of!(ReceiverSignal, wanted) == 48);
    assert!(offset_of!(Lane, edges) == 192);
    assert!(offset_of!(Edges, blocks) == 0);
    assert!(offset_of!(Edges, credits) == 8);
    assert!(offset_of!(Lane, receiver_own) == 256);
    assert!(offset_of!(ReceiverOwn, head) == 0);
    assert!(offset_of!(ReceiverOwn, credit_tail) == 8);
    assert!(offset_of!(ReceiverOwn, seen) == 16);
    assert!(offset_of!(Lane, released) == 384);
    assert!(offset_of!(Lane, small) == 640);
    assert!(offset_of!(Small, table) == 0);
    assert!(offset_of!(Small, free) == 512);
    assert!(offset_of!(Small, credits) == 768);
    assert!(offset_of!(Large, table) == 0);
    assert!(offset_of!(Large, free) == 4096);
    assert!(offset_of!(Large, credits) == 6144);
};
