//! Waking the receiver, and sleeping for lack of space.

use super::{Sender, lowest};
use crate::layout::{CREDIT_BITS, LATER, place_of_credit};
use crate::sync::fence;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

impl Sender<'_> {
    /// After a publication: the bits the receiver sleeps with, which are taken, so that
    /// the caller must ring the bells they stand for. 0 when the receiver is awake, or
    /// waits for more than has been published.
    #[inline]
    #[must_use = "bits taken must be answered with a bell"]
    pub fn take_wait(&self) -> u32 {
        // The fence of `publish` pairs with that in `Receiver::arm`: either the receiver's
        // second look finds the tail published before it, or the load below finds its bits.
        match self.lane.receiver.wait.load(Relaxed) {
            0 => 0,
            _ => self.take_due(),
        }
    }

    #[cold]
    fn take_due(&self) -> u32 {
        let signal = &self.lane.receiver;
        // Pairs with the release in `Receiver::arm_until`.
        if signal.wait.load(Acquire) & LATER != 0 {
            let missing = signal.until.load(Relaxed).wrapping_sub(self.tail());
            if missing.cast_signed() > 0 {
                return 0;
            }
        }
        signal.wait.swap(0, AcqRel) & !LATER
    }

    /// Before sleeping for lack of space: leaves bits for the receiver to take once it
    /// has given blocks back. The caller must look at [`space`](Self::space) again
    /// afterwards.
    ///
    /// The lowest eight bits are the caller's.
    pub fn arm_credit(&self, bits: u32) {
        let wait = &self.lane.sender.credit_wait;
        if wait.fetch_or(bits & CREDIT_BITS, AcqRel) & LATER != 0 {
            // Whoever waits for more is woken too, and looks again.
            wait.fetch_and(CREDIT_BITS, AcqRel);
        }
        // Pairs with the fences in `Receiver::give` and `Receiver::want`.
        fence(SeqCst);
    }

    /// Like [`arm_credit`](Self::arm_credit), but for a waiter whom less than `room` bytes of space
    /// does not help: it is not woken before as many blocks have come back, unless others wait for
    /// less or the receiver needs more. Where not so many can come back, all that can wake it.
    pub fn arm_credit_for(&self, bits: u32, room: usize) {
        let wait = &self.lane.sender.credit_wait;
        let free = wait.load(Relaxed);
        if free & CREDIT_BITS == 0
            && let Some(until) = self.credits_for(room)
        {
            let later = LATER | place_of_credit(until) | bits & CREDIT_BITS;
            if wait.compare_exchange(free, later, AcqRel, Relaxed).is_ok() {
                // As in `arm_credit`.
                fence(SeqCst);
                return;
            }
        }
        self.arm_credit(bits);
    }

    /// The credits given since the lane began with which it will have `room` bytes of space, or all blocks that can
    /// come back. `None`: any block helps, or it is not for blocks that there is no space.
    fn credits_for(&self, room: usize) -> Option<u64> {
        // Before anything else: blocks that come back meanwhile have the waiter woken too early, not too late.
        let given = self.lane.receiver_own.credit_tail.load(Acquire);
        // Read once: to others than its user all this is a hint, but one that holds together.
        let (taken, grown, free) = self.stock();
        let pending = lowest(given).wrapping_sub(taken) as usize;
        let filling = usize::from(self.geometry.offset_of(self.tail()) != 0);
        let lent = grown.checked_sub(free.checked_add(pending)? + filling)?;
        let missing = room.saturating_sub(self.space()).div_ceil(self.geometry.block_size());
        let least = missing.min(lent);
        let helps = least > 1 && self.in_flight() <= self.capacity() && !self.is_wanted();
        helps.then(|| given.wrapping_add(least as u64))
    }

    /// Takes bits back. Returns those that were still there; for the others a bell has
    /// been or will be rung.
    pub fn disarm_credit(&self, bits: u32) -> u32 {
        let (wait, bits) = (&self.lane.sender.credit_wait, bits & CREDIT_BITS);
        if wait.load(Relaxed) & bits == 0 {
            return 0;
        }
        wait.fetch_and(!bits, AcqRel) & bits
    }

    /// Whether one of these bits is still there: no bell that they stand for has been or
    /// will be rung.
    pub fn awaits_credit(&self, bits: u32) -> bool {
        self.lane.sender.credit_wait.load(Relaxed) & bits & CREDIT_BITS != 0
    }
}
