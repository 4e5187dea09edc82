//! The block numbers of a lane: which block holds which part of the stream, which are free,
//! which come back.
//!
//! A lane keeps them in the header page, a byte each, as long as it has no more blocks than
//! a byte can name, so that one with little traffic takes no memory for them. One that
//! grows further goes on in larger tables behind the header page. Nothing moves then: from
//! a logical block on, which the sender tells, the table is the larger one, and from a
//! credit on, which the receiver tells, the credits are.

use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::layout::{Lane, MAX_BLOCKS, SMALL_BLOCKS, index};
use crate::segment::Segment;
use crate::sync::{AtomicU64, PlainU8, PlainU16};

/// The tables of up to [`SMALL_BLOCKS`] blocks.
pub(crate) type Small = Tables<PlainU8, SMALL_BLOCKS, { 2 * SMALL_BLOCKS }>;
/// The tables of up to [`MAX_BLOCKS`] blocks.
pub(crate) type Large = Tables<PlainU16, MAX_BLOCKS, { 2 * MAX_BLOCKS }>;

/// Block numbers of a lane.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Tables<N, const BLOCKS: usize, const LOGICAL: usize> {
    /// Physical block of each logical block, by number modulo its length. Written by the
    /// sender before the tail that covers it, read by the receiver after that tail.
    pub(crate) table: [N; LOGICAL],
    /// Free physical blocks, the next to be used last. Sender's own.
    pub(crate) free: [N; BLOCKS],
    /// Physical blocks on their way back, by number of the credit modulo its length.
    /// Written by the receiver before `credit_tail`, read by the sender after it.
    pub(crate) credits: [N; BLOCKS],
}

/// The number from which on entries are in the larger tables, plus one; 0 while none are.
///
/// Set before the position that covers the entry is published, and never to more than that.
/// Who has seen that position sees this, and an earlier entry is in the small tables either
/// way, so loads need no ordering.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(transparent)]
pub(crate) struct Edge(AtomicU64);

/// The block numbers of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers<'a> {
    lane: &'a Lane,
    segment: &'a Segment,
    number: usize,
}

#[cfg(loom)]
impl<N: Default, const BLOCKS: usize, const LOGICAL: usize> Default for Tables<N, BLOCKS, LOGICAL> {
    fn default() -> Self {
        Self {
            table: core::array::from_fn(|_| N::default()),
            free: core::array::from_fn(|_| N::default()),
            credits: core::array::from_fn(|_| N::default()),
        }
    }
}

impl Edge {
    #[inline(always)]
    fn is_before(&self, number: u64) -> bool {
        number >= self.0.load(Relaxed).wrapping_sub(1)
    }

    fn is_set(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    fn set(&self, number: u64) {
        // As of the plain words: the order of stores is what makes a kill harmless.
        self.0.store(number.wrapping_add(1), Release);
    }
}

impl<'a> Numbers<'a> {
    #[inline(always)]
    pub(crate) fn new(segment: &'a Segment, lane: &'a Lane, number: usize) -> Self {
        Self { lane, segment, number }
    }

    #[inline]
    fn large(&self) -> &'a Large {
        self.segment.large(self.number)
    }

    /// Physical block of a logical one.
    #[inline(always)]
    pub(crate) fn block(&self, logical: u64) -> usize {
        if self.lane.edges.blocks.is_before(logical) {
            self.large().table[index(logical, 2 * MAX_BLOCKS)].get().into()
        } else {
            self.lane.small.table[index(logical, 2 * SMALL_BLOCKS)].get().into()
        }
    }

    /// Says which physical block a logical one has. The sender's.
    #[inline]
    pub(crate) fn set_block(&self, logical: u64, block: usize) {
        if self.lane.edges.blocks.is_before(logical) {
            self.large().table[index(logical, 2 * MAX_BLOCKS)].set(wide(block));
        } else {
            self.lane.small.table[index(logical, 2 * SMALL_BLOCKS)].set(narrow(block));
        }
    }

    /// The block of a credit.
    #[inline]
    pub(crate) fn credit(&self, number: u64) -> usize {
        if self.lane.edges.credits.is_before(number) {
            self.large().credits[index(number, MAX_BLOCKS)].get().into()
        } else {
            self.lane.small.credits[index(number, SMALL_BLOCKS)].get().into()
        }
    }

    /// Makes a credit of a logical block's physical one. The receiver's.
    #[inline]
    pub(crate) fn set_credit(&self, number: u64, logical: u64) {
        let block = self.block(logical);
        let edge = &self.lane.edges.credits;
        if self.lane.edges.blocks.is_before(logical) && !edge.is_before(number) {
            // Its number may need the room. Of those before, no more are on their way back
            // than the small tables have room for. An edge that is further on was set for a
            // credit that its giver, killed, did not give.
            edge.set(number);
        }
        if edge.is_before(number) {
            self.large().credits[index(number, MAX_BLOCKS)].set(wide(block));
        } else {
            self.lane.small.credits[index(number, SMALL_BLOCKS)].set(narrow(block));
        }
    }

    /// The free block at a place of the stack. The sender's.
    #[inline]
    pub(crate) fn free(&self, place: usize) -> usize {
        if self.is_large() {
            self.large().free[place % MAX_BLOCKS].get().into()
        } else {
            self.lane.small.free[place % SMALL_BLOCKS].get().into()
        }
    }

    /// Puts a free block at a place of the stack. The sender's.
    #[inline]
    pub(crate) fn set_free(&self, place: usize, block: usize) {
        if self.is_large() {
            self.large().free[place % MAX_BLOCKS].set(wide(block));
        } else {
            self.lane.small.free[place % SMALL_BLOCKS].set(narrow(block));
        }
    }

    /// Whether blocks are free, and new logical ones named, in the larger tables.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.lane.edges.blocks.is_set()
    }

    /// Logical blocks that the table has room for as it is now.
    #[inline]
    pub(crate) fn reach(&self) -> usize {
        2 * if self.is_large() { MAX_BLOCKS } else { SMALL_BLOCKS }
    }

    /// Goes on in the larger tables from logical block `first` on, the first without
    /// published bytes; those before `next` have blocks already, and `free` ones are on the
    /// stack. `false` when the system has no memory. The sender's.
    #[cold]
    pub(crate) fn enlarge(&self, first: u64, next: u64, free: usize) -> bool {
        if self.is_large() {
            // An edge that moved on would leave published blocks behind it.
            return true;
        }
        if !self.segment.populate_large(self.number) {
            return false;
        }
        let begun = next.wrapping_sub(first).min(2 * SMALL_BLOCKS as u64);
        for logical in (0..begun).map(|n| first.wrapping_add(n)) {
            let block = wide(self.block(logical));
            self.large().table[index(logical, 2 * MAX_BLOCKS)].set(block);
        }
        for place in 0..free.min(SMALL_BLOCKS) {
            self.large().free[place].set(wide(self.free(place)));
        }
        self.lane.edges.blocks.set(first);
        true
    }
}

/// A block number as the small tables have it. What a hostile peer makes larger is cut like
/// any other number.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "honest ones are less than 256")]
const fn narrow(block: usize) -> u8 {
    // Few blocks fit the small tables of tests: as where there are 256, no more keep their number.
    #[cfg(any(test, loom))]
    let block = block % SMALL_BLOCKS;
    block as u8
}

/// A block number as the larger tables have it.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "honest ones are less than 1024")]
const fn wide(block: usize) -> u16 {
    block as u16
}
