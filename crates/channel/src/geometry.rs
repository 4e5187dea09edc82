//! How a segment is divided into blocks.

use crate::layout::{HEADER_BYTES, LOGICAL, MAX_BLOCKS};

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
    /// 256 blocks of 4 KiB: one MiB a lane, of which untouched blocks cost nothing.
    #[cfg(not(loom))]
    pub const DEFAULT: Self = Self { shift: 12, blocks: 256 };

    /// A geometry of `blocks` blocks of `1 << block_shift` bytes a lane.
    ///
    /// `None` unless `block_shift` is in `12..=16` and `blocks` is a power of two in
    /// `8..=256`.
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

    /// Bytes of a segment: the header page, and for each lane a pool and as much room for
    /// what its receiver gives back.
    pub const fn segment_len(self) -> usize {
        HEADER_BYTES + 4 * self.capacity()
    }

    /// Furthest that an honest tail can be ahead of the head, in bytes. More than
    /// [`capacity`](Self::capacity), since blocks released in the middle are used again.
    #[inline(always)]
    pub(crate) const fn span(self) -> u64 {
        (LOGICAL as u64) << self.shift
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
