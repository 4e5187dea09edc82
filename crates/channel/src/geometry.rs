//! How a segment is divided into blocks.

use crate::layout::{HEAD_BYTES, MAX_BLOCKS, SMALL_BLOCKS};

/// Smallest and largest block sizes, as powers of two. Tests and models use tiny blocks,
/// so that every edge of a block is met often.
#[cfg(not(any(test, loom)))]
const SHIFTS: core::ops::RangeInclusive<u32> = 12..=16;
#[cfg(any(test, loom))]
const SHIFTS: core::ops::RangeInclusive<u32> = 1..=16;

/// Fewest blocks of a lane's pool.
#[cfg(not(any(test, loom)))]
const MIN_BLOCKS: u32 = 8;
#[cfg(any(test, loom))]
const MIN_BLOCKS: u32 = 1;

/// Most blocks of a pool that lie beside each other. Pools take turns, so that the first
/// blocks of both are near the header: an idle connection then takes one page of the
/// kernel's tables, not one for each pool.
#[cfg(not(loom))]
const CHUNK: usize = 16;

/// Block size and number of blocks, the same for both lanes of a segment.
///
/// A value of this type is always within the permitted range, so masks made from it are
/// the bounds checks of the hot path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    shift: u32,
    blocks: u32,
}

impl Geometry {
    /// 1024 blocks of 4 KiB: four MiB a lane, of which untouched blocks cost nothing.
    #[cfg(not(loom))]
    pub const DEFAULT: Self = Self {
        shift: 12,
        blocks: 1024,
    };

    /// A geometry of `blocks` blocks of `1 << block_shift` bytes a lane.
    ///
    /// `None` unless `block_shift` is in `12..=16` and `blocks` is a power of two in
    /// `8..=1024`.
    pub const fn new(block_shift: u32, blocks: u32) -> Option<Self> {
        let shift_fits = block_shift >= *SHIFTS.start() && block_shift <= *SHIFTS.end();
        let blocks_fit = blocks >= MIN_BLOCKS && blocks as usize <= MAX_BLOCKS;
        if shift_fits && blocks_fit && blocks.is_power_of_two() {
            Some(Self {
                shift: block_shift,
                blocks,
            })
        } else {
            None
        }
    }

    /// Block size as a power of two.
    #[inline(always)]
    pub const fn block_shift(self) -> u32 {
        self.shift
    }

    /// Bytes of a block.
    #[inline(always)]
    pub const fn block_size(self) -> usize {
        1 << self.shift
    }

    /// Blocks of a lane's pool.
    #[inline(always)]
    pub const fn blocks(self) -> usize {
        self.blocks as usize
    }

    /// The same, as the header has it.
    #[cfg(not(loom))]
    pub(crate) const fn block_count(self) -> u32 {
        self.blocks
    }

    /// Bytes that a lane can hold unconsumed.
    pub const fn capacity(self) -> usize {
        self.blocks() << self.shift
    }

    /// Bytes of a segment: the header page, and for each lane the larger tables, a pool
    /// and as much room for what its receiver gives back.
    pub const fn segment_len(self) -> usize {
        HEAD_BYTES + 4 * self.capacity()
    }

    /// Blocks that lie beside each other before the other pool of a pair has its turn.
    #[cfg(not(loom))]
    pub(crate) const fn chunk(self) -> usize {
        if self.blocks() < CHUNK { self.blocks() } else { CHUNK }
    }

    /// Where a block begins, in bytes from its pool's first on. Of the two pools of a pair
    /// each lies in the other's gaps. The block's number is taken modulo their number.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) const fn place(self, block: usize) -> usize {
        let block = block & (self.blocks() - 1);
        (block + (block & !(CHUNK - 1))) << self.shift
    }

    /// Logical blocks that can be between head and tail. At least twice the pool, so that
    /// blocks released in the middle of the stream are of use to a sender before the head
    /// moves.
    #[inline(always)]
    pub(crate) const fn logical(self) -> usize {
        2 * if self.blocks() > SMALL_BLOCKS {
            MAX_BLOCKS
        } else {
            SMALL_BLOCKS
        }
    }

    /// Furthest that an honest tail can be ahead of the head, in bytes. More than
    /// [`capacity`](Self::capacity), since blocks released in the middle are used again.
    #[inline(always)]
    pub(crate) const fn span(self) -> u64 {
        (self.logical() as u64) << self.shift
    }

    /// Number of the logical block that holds stream position `at`.
    #[inline(always)]
    pub(crate) const fn block_of(self, at: u64) -> u64 {
        at >> self.shift
    }

    /// Offset of stream position `at` in its block.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "masked to at most 16 bits")]
    pub(crate) const fn offset_of(self, at: u64) -> usize {
        at as usize & (self.block_size() - 1)
    }
}

#[cfg(not(loom))]
impl Default for Geometry {
    fn default() -> Self {
        Self::DEFAULT
    }
}
