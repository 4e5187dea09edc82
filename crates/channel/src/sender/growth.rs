//! How many blocks a lane has, and when it takes and gives back their memory.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{Sender, lowest, narrow};
use crate::layout::{CARRIED, EAGER_BLOCKS, LEAN_BLOCKS, SMALL_BLOCKS, TOGETHER};

impl Sender<'_> {
    /// Whether the lane could not grow because the system had no memory, or not for it ([`set_gate`](crate::set_gate)).
    /// Blocks may still come back; with none in use ([`in_flight`](Self::in_flight) is 0) none will.
    pub fn starved(&self) -> bool {
        self.lane.sender_own.starved.get() != 0
    }

    /// Has the lane hold no more than `bytes`, rounded up to blocks and at least two of
    /// them, but for what its receiver needs at once. Blocks already in use stay.
    pub fn limit(&self, bytes: usize) {
        let blocks = bytes.div_ceil(self.geometry.block_size()).max(2);
        let spared = self.geometry.blocks().saturating_sub(blocks);
        self.lane.sender_own.spared.set(narrow(spared));
    }

    /// Bytes that the lane holds at most, for now: a stream that goes on, [`grant`](Self::grant), and a receiver that
    /// needs more ([`Receiver::want`](crate::Receiver::want)) let it hold more. While the system has no memory, those
    /// of the blocks in use.
    pub fn capacity(&self) -> usize {
        let blocks = if self.starved() {
            self.grown()
        } else {
            self.blocks(self.tail())
        };
        blocks << self.geometry.block_shift()
    }

    /// Whether the receiver needs more than has been published before it consumes anything.
    pub fn is_wanted(&self) -> bool {
        self.wanted(self.tail()) > 0
    }

    /// Bytes from stream position `at` on that the receiver needs before it consumes anything.
    fn wanted(&self, at: u64) -> u64 {
        // The fence of `arm_credit` pairs with that in `Receiver::want`: either a look after it finds what is wanted,
        // or the receiver finds the bits.
        let wanted = self.lane.receiver.wanted.load(Relaxed).wrapping_sub(at);
        if wanted.cast_signed() > 0 { wanted } else { 0 }
    }

    /// Lets a lane that could hold more, but has not carried enough for it, have half as many blocks again: for a
    /// sender that found no space while it polled, or is not going to wait. False if it may have all already.
    #[cold]
    pub fn grant(&self) -> bool {
        let (blocks, most) = (self.blocks(self.tail()), self.most());
        if blocks >= most {
            return false;
        }
        let more = (blocks + blocks / 2).min(most);
        self.lane.sender_own.granted.fetch_max(narrow(more), Relaxed);
        true
    }

    /// Blocks that the lane may ever have, but for what its receiver needs at once.
    fn most(&self) -> usize {
        let spared = self.lane.sender_own.spared.get() as usize;
        self.geometry.blocks().saturating_sub(spared)
    }

    /// Blocks that may be in use while bytes are written at stream position `at`.
    fn blocks(&self, at: u64) -> usize {
        let (own, pool, grown) = (&self.lane.sender_own, self.geometry.blocks(), self.grown());
        let carried = self.geometry.block_of(self.tail().wrapping_sub(own.since.get())) / CARRIED;
        let earned = usize::try_from(carried).unwrap_or(pool) / TOGETHER * TOGETHER;
        let granted = own.granted.load(Relaxed) as usize;
        let blocks = earned.max(granted).max(EAGER_BLOCKS).min(self.most()).max(grown);
        if blocks == pool {
            return pool;
        }
        match self.wanted(at) {
            0 => blocks,
            wanted => {
                let begun = |at: u64| {
                    self.geometry
                        .block_of(at.saturating_add(self.geometry.block_size() as u64 - 1))
                };
                let missing = begun(at.saturating_add(wanted)).saturating_sub(begun(at));
                let busy = grown.saturating_sub(self.free_count() + self.pending().map_or(0, |(_, pending)| pending));
                let needed = usize::try_from(missing).unwrap_or(pool).saturating_add(busy);
                blocks.max(needed.min(pool))
            }
        }
    }

    /// Whether the lane has more blocks in use than one with little traffic.
    pub fn is_grown(&self) -> bool {
        self.grown() > LEAN_BLOCKS
    }

    /// Gives the memory of all blocks back but that of the one being filled, or of two. Only where all that was
    /// published has been consumed and every block has come back; answers whether it was so. The lane grows again as it
    /// did at first.
    #[cold]
    pub fn shrink(&self) -> bool {
        let tail = self.tail();
        // Pairs with the release store of the head in `Receiver::consume`: the receiver has read what it wanted in
        // blocks and table, and reads neither again before the tail moves.
        let drained = self.lane.receiver_own.head.load(Acquire) == tail;
        let (Ok((given, pending)), true) = (self.pending(), drained) else {
            return false;
        };
        let (grown, filling) = (self.grown(), self.geometry.offset_of(tail) != 0);
        if self.free_count() + pending + usize::from(filling) != grown {
            return false;
        }
        self.lane.sender_own.since.set(tail);
        self.lane.sender_own.granted.store(0, Relaxed);
        let given = lowest(given);
        let mut left = 0;
        if filling {
            if self.free_count() == 0 && !matches!(self.collect(), Ok(1..)) {
                // It is the only one.
                return grown == 1;
            }
            // Killed after this store, the lane goes on with that block and the lowest on the stack.
            self.set_stock(given, grown, 1);
            // What the block being filled holds has been consumed, so what is to come may as well stand in the first
            // that is neither of these.
            let first = usize::from(self.numbers.free(0) == 0);
            self.numbers.set_block(self.geometry.block_of(tail), first);
            left = first + 1;
        }
        self.set_stock(given, left, left.saturating_sub(1));
        // Whether there is memory now the next attempt to grow finds out.
        self.lane.sender_own.starved.set(0);
        self.segment.forget(self.number, left, grown.saturating_sub(left));
        true
    }

    /// Takes untouched blocks into use and puts them onto the free stack, which is empty.
    /// Returns how many it holds then. Grows by what is wanted now or by half, so that a
    /// busy lane takes few steps and an idle one little memory.
    #[cold]
    pub(super) fn grow(&self, at: u64, want: usize) -> usize {
        let own = &self.lane.sender_own;
        let grown = self.grown();
        let room = self.blocks(at).saturating_sub(grown);
        if room == 0 {
            return 0;
        }
        let wanted = want.div_ceil(self.geometry.block_size());
        let mut step = wanted.max(grown / 2).clamp(1, room);
        if grown + step > SMALL_BLOCKS && !self.numbers.is_large() && !self.enlarge(at, 0) {
            if grown >= SMALL_BLOCKS {
                return 0;
            }
            step = SMALL_BLOCKS - grown;
        }
        step = match self.segment.populate(self.number, grown, step) {
            0 => self.segment.populate(self.number, grown, 1),
            taken => taken,
        };
        if step == 0 {
            own.starved.set(1);
            return 0;
        }
        own.starved.set(0);
        for (place, block) in (grown..grown + step).rev().enumerate() {
            self.numbers.set_free(place, block);
        }
        self.set_stock(self.taken(), grown + step, step);
        #[cfg(not(loom))]
        if self.is_grown() {
            crate::segment::note_growth();
        }
        step
    }

    /// Blocks that can still be taken into use.
    pub(super) fn growable(&self) -> usize {
        if self.starved() {
            0
        } else {
            self.blocks(self.tail()).saturating_sub(self.grown())
        }
    }
}
