//! The receiving side of a lane.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::buffer::Dest;
use crate::geometry::Geometry;
use crate::layout::{CREDIT_BITS, LATER, Lane, WORDS, place_of_credit};
use crate::numbers::Numbers;
use crate::segment::Segment;
use crate::sync::{AtomicU64, Pool, fence, store_and_fence};
use crate::violation::Violation;

/// The receiving side of a lane. One user at a time, but for [`has_bytes`](Self::has_bytes),
/// [`head`](Self::head), the bits and the words, which anyone may look at.
///
/// Bytes are numbered from 0, the lane's first. The head is the number of the first byte
/// not yet consumed. [`readable`](Self::readable) looks at what the sender has published
/// and keeps it; the calls that move bytes work on what it found last.
#[derive(Clone, Copy, Debug)]
pub struct Receiver<'a> {
    lane: &'a Lane,
    numbers: Numbers<'a>,
    pool: Pool<'a>,
    geometry: Geometry,
}

/// Bytes that a receiver has found, from its head on. Good until it consumes.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    head: u64,
    bytes: usize,
}

impl Found {
    /// How many there are.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The stream position `offset` after the head, and how many of `len` bytes there are from there on.
    #[inline(always)]
    fn within(&self, offset: usize, len: usize) -> (u64, usize) {
        let at = self.head.wrapping_add(offset as u64);
        (at, len.min(self.bytes.saturating_sub(offset)))
    }
}

impl<'a> Receiver<'a> {
    #[inline]
    pub(crate) fn new(segment: &'a Segment, lane: &'a Lane, pool: Pool<'a>, number: usize) -> Self {
        Self {
            lane,
            numbers: Numbers::new(segment, lane, number),
            pool,
            geometry: segment.geometry(),
        }
    }

    /// A copy for a call that is seldom made: it takes an address, and what has one is kept in memory and not in
    /// registers.
    #[inline(always)]
    #[must_use]
    pub const fn apart(&self) -> Self {
        Self {
            lane: self.lane,
            numbers: self.numbers,
            pool: self.pool,
            geometry: self.geometry,
        }
    }

    /// Bytes published and not yet consumed, counted from the head, with what has been released in between.
    ///
    /// # Errors
    /// [`Violation`] when the sender's tail makes no sense.
    #[inline(always)]
    pub fn readable(&self) -> Result<usize, Violation> {
        self.look(self.head())
    }

    #[inline(always)]
    fn look(&self, head: u64) -> Result<usize, Violation> {
        // Pairs with the release store in `Sender::publish`: bytes and table entries below this tail are there.
        let tail = self.lane.sender.tail.load(Acquire);
        let bytes = tail.wrapping_sub(head);
        if bytes > self.geometry.span() {
            return Err(Violation::Tail { head, tail });
        }
        self.lane.receiver_own.seen.set(tail);
        Ok(narrow(bytes))
    }

    /// Like [`readable`](Self::readable), but content with what was seen before if that is at least `enough` bytes: the
    /// sender's line is left to the sender while there is work without it.
    ///
    /// # Errors
    /// [`Violation`] when the sender's tail makes no sense.
    #[inline(always)]
    pub fn readable_or(&self, enough: usize) -> Result<usize, Violation> {
        self.find(enough).map(|found| found.bytes)
    }

    /// What [`readable_or`](Self::readable_or) finds, to be moved by [`copy_found`](Self::copy_found) and
    /// [`consume_found`](Self::consume_found) without another look.
    ///
    /// # Errors
    /// [`Violation`] when the sender's tail makes no sense.
    #[inline(always)]
    pub fn find(&self, enough: usize) -> Result<Found, Violation> {
        let found = self.found();
        if found.bytes >= enough.max(1) {
            return Ok(found);
        }
        let bytes = self.look(found.head)?;
        Ok(Found { bytes, ..found })
    }

    /// What [`readable`](Self::readable) saw last: costs no look at what the sender writes.
    #[inline(always)]
    pub fn found(&self) -> Found {
        let head = self.head();
        Found {
            head,
            bytes: self.seen(head),
        }
    }

    /// The position after the last published byte, without taking notice of it: for a look from outside, while another
    /// thread may be receiving. Differs from [`head`](Self::head) when there is something to receive.
    #[inline(always)]
    pub fn published(&self) -> u64 {
        // Acquire as in `readable`.
        self.lane.sender.tail.load(Acquire)
    }

    /// Whether there is something to be read, be it a [`Violation`]. Keeps nothing, so
    /// that who does not use the receiver may ask too.
    #[inline]
    pub fn has_bytes(&self) -> bool {
        // Nothing is read on the strength of it, so no ordering is needed.
        self.lane.sender.tail.load(Relaxed) != self.head()
    }

    /// Copies bytes from `offset` after the head on, without consuming them. Returns how many there were, as far as
    /// [`readable`](Self::readable) last saw and `dest` holds. Bytes of released blocks are garbage.
    #[inline(always)]
    pub fn copy_out(&self, dest: Dest<'_>, offset: usize) -> usize {
        self.copy_found(self.found(), dest, offset)
    }

    /// Like [`copy_out`](Self::copy_out), of what was found.
    #[inline(always)]
    pub fn copy_found(&self, found: Found, dest: Dest<'_>, offset: usize) -> usize {
        let (at, want) = found.within(offset, dest.len());
        if self.is_in_one_block(at, want) {
            self.read_block(at, dest.slice(0, want))
        } else {
            self.apart().read_across(at, dest.slice(0, want))
        }
    }

    /// False of nothing: there is no block to be asked for, which the sender may be choosing now.
    #[inline(always)]
    fn is_in_one_block(&self, at: u64, bytes: usize) -> bool {
        bytes.wrapping_sub(1) < self.geometry.block_size() - self.geometry.offset_of(at)
    }

    /// Fills `dest` from stream position `at` on, up to the end of a block. Returns how many bytes there were.
    #[inline(always)]
    fn read_block(&self, at: u64, dest: Dest<'_>) -> usize {
        let block = self.numbers.block(self.geometry.block_of(at));
        self.pool.read(block, self.geometry.offset_of(at), dest)
    }

    /// Fills all of `dest`.
    #[inline(never)]
    fn read_across(self, at: u64, dest: Dest<'_>) -> usize {
        let mut done = 0;
        while done < dest.len() {
            done += self.read_block(at.wrapping_add(done as u64), dest.slice(done, usize::MAX));
        }
        done
    }

    /// Has the processor fetch `len` bytes from `offset` after the head on, as far as they were found: it foresees what
    /// is read in a row only.
    #[inline(always)]
    pub fn prefetch(&self, found: Found, offset: usize, len: usize) {
        let (at, want) = found.within(offset, len);
        if self.is_in_one_block(at, want) {
            self.prefetch_block(at, want);
        } else {
            self.apart().prefetch_across(at, want);
        }
    }

    /// Those up to the end of a block. Returns how many there were.
    #[inline(always)]
    fn prefetch_block(&self, at: u64, bytes: usize) -> usize {
        let block = self.numbers.block(self.geometry.block_of(at));
        self.pool.prefetch(block, self.geometry.offset_of(at), bytes)
    }

    #[inline(never)]
    fn prefetch_across(self, at: u64, bytes: usize) {
        let mut done = 0;
        while done < bytes {
            done += self.prefetch_block(at.wrapping_add(done as u64), bytes - done);
        }
    }

    /// Moves the head over `bytes` bytes, as far as [`readable`](Self::readable) last saw
    /// any, and gives back the blocks left behind. Returns how many blocks the sender has
    /// gained by it; unless 0, [`take_credit_wait`](Self::take_credit_wait) is due.
    #[inline(always)]
    pub fn consume(&self, bytes: usize) -> usize {
        self.consume_found(self.found(), bytes)
    }

    /// Like [`consume`](Self::consume), of what was found.
    #[inline(always)]
    pub fn consume_found(&self, found: Found, bytes: usize) -> usize {
        let head = found.head;
        let next = head.wrapping_add(bytes.min(found.bytes) as u64);
        let (from, to) = (self.geometry.block_of(head), self.geometry.block_of(next));
        if from == to {
            self.store_head(next);
            0
        } else {
            self.apart().leave(from, to, next)
        }
    }

    /// Gives back the blocks that lie wholly in the stream positions `from..to`, which have been read already, although
    /// the head is not there yet. Blocks given back before stay so. Returns how many were given back now; unless 0,
    /// [`take_credit_wait`](Self::take_credit_wait) is due.
    pub fn release(&self, from: u64, to: u64) -> usize {
        let head = self.head();
        let from = from.max(head);
        let to = to.min(head.wrapping_add(self.seen(head) as u64));
        let first = self
            .geometry
            .block_of(from.saturating_add(self.geometry.block_size() as u64 - 1));
        let mut given = self.given();
        let before = given;
        for logical in first..self.geometry.block_of(to) {
            if !self.lane.released.contains(logical) {
                // Marked before the credit is out: killed in between, the block is lost to the lane, not used twice.
                self.lane.released.insert(logical);
                given = self.prepare(given, logical);
            }
        }
        if given != before {
            self.give(given);
        }
        narrow(given.wrapping_sub(before))
    }

    /// Whether the lane can ever hold the bytes before stream position `to` while the head stays where it is and no
    /// more blocks are released.
    pub fn can_hold(&self, to: u64) -> bool {
        let first = self.geometry.block_of(self.head());
        let blocks = self
            .geometry
            .block_of(to.saturating_sub(1))
            .saturating_sub(first)
            .saturating_add(1);
        if blocks <= self.geometry.blocks() as u64 {
            return true;
        }
        !self.lane.released.is_empty() && to <= self.reach()
    }

    /// Up to which stream position the lane can ever hold bytes while the head stays where it is and no more blocks are
    /// released.
    pub fn reach(&self) -> u64 {
        let first = self.geometry.block_of(self.head());
        let mut kept = 0;
        let has_room = |logical: &u64| {
            kept += usize::from(!self.lane.released.contains(*logical));
            kept <= self.geometry.blocks()
        };
        let all = first..first.saturating_add(self.geometry.logical() as u64);
        let blocks = all.take_while(has_room).count() as u64;
        first.saturating_add(blocks).saturating_mul(self.block_size() as u64)
    }

    /// Says that the bytes before stream position `until` are needed before any more is consumed: the lane has room for
    /// them at once, as far as its pool goes, whatever it has carried and been limited to. Returns the bits that the
    /// sender sleeps with for lack of space, which are taken, so that the caller must ring the bells they stand for.
    /// For the receiver's user only.
    #[must_use = "bits taken must be answered with a bell"]
    pub fn want(&self, until: u64) -> u32 {
        let wanted = &self.lane.receiver.wanted;
        if wanted.load(Relaxed).wrapping_sub(until).cast_signed() >= 0 {
            return 0;
        }
        wanted.store(until, Relaxed);
        // Pairs with the fence in `Sender::arm_credit`.
        fence(SeqCst);
        match self.lane.sender.credit_wait.load(Relaxed) {
            0 => 0,
            // Whatever they wait for: there is space now.
            _ => self.take_credit_bits(),
        }
    }

    /// Bytes of a block, the least that [`release`](Self::release) gives back.
    pub fn block_size(&self) -> usize {
        self.geometry.block_size()
    }

    /// Bytes consumed in order since the lane began.
    #[inline(always)]
    pub fn head(&self) -> u64 {
        self.lane.receiver_own.head.load(Relaxed)
    }

    /// Before sleeping for lack of bytes: leaves bits for the sender to take once it has
    /// published. The caller must look at [`readable`](Self::readable) again afterwards.
    ///
    /// The highest bit is the lane's own.
    pub fn arm(&self, bits: u32) {
        let wait = &self.lane.receiver.wait;
        if wait.fetch_or(bits & !LATER, AcqRel) & LATER != 0 {
            // Whoever waits for more is woken too, and looks again.
            wait.fetch_and(!LATER, AcqRel);
        }
        // Pairs with the fence in `Sender::publish`: either the sender finds these bits,
        // or the look at the tail after this fence finds what the sender published.
        fence(SeqCst);
    }

    /// Like [`arm`](Self::arm), but for a waiter whom nothing helps before the tail has come to stream position
    /// `until`: it is not woken earlier, unless others wait for less. For the receiver's user only.
    pub fn arm_until(&self, bits: u32, until: u64) {
        let signal = &self.lane.receiver;
        let free = signal.wait.load(Relaxed);
        if free & !LATER == 0 {
            signal.until.store(until, Relaxed);
            let bits = bits | LATER;
            // Release pairs with the acquire in `Sender::take_due`: who sees these bits sees their position.
            if signal.wait.compare_exchange(free, bits, AcqRel, Relaxed).is_ok() {
                // As in `arm`.
                fence(SeqCst);
                return;
            }
        }
        self.arm(bits);
    }

    /// Takes bits back. Returns those that were still there; for the others a bell has been or will be rung.
    pub fn disarm(&self, bits: u32) -> u32 {
        let wait = &self.lane.receiver.wait;
        if wait.load(Relaxed) & bits == 0 {
            return 0;
        }
        wait.fetch_and(!bits, AcqRel) & bits
    }

    /// When the sender [turned to this lane](crate::Sender::set_sent_at); 0: it has not said. Written by the peer: not
    /// to be relied on.
    #[inline]
    pub fn sent_at(&self) -> u64 {
        self.lane.sender.sent_at.load(Relaxed)
    }

    /// After blocks were given back: the bits the sender sleeps with for lack of space, which are taken, so that the
    /// caller must ring the bells they stand for. 0 when it does not wait, or waits for more blocks.
    #[inline]
    #[must_use = "bits taken must be answered with a bell"]
    pub fn take_credit_wait(&self) -> u32 {
        // The fences of `give` and `want` pair with that in `Sender::arm_credit`: either the sender's second
        // look finds what came before them, or the load below finds its bits.
        match self.lane.sender.credit_wait.load(Relaxed) {
            0 => 0,
            _ => self.take_due_credit(),
        }
    }

    #[cold]
    fn take_due_credit(&self) -> u32 {
        let wait = self.lane.sender.credit_wait.load(Relaxed);
        if wait & LATER != 0 {
            // Above the bits of either number, the sign of the distance.
            let missing = (wait & !CREDIT_BITS & !LATER).wrapping_sub(place_of_credit(self.given())) << 1;
            if missing.cast_signed() > 0 {
                return 0;
            }
        }
        self.take_credit_bits()
    }

    fn take_credit_bits(&self) -> u32 {
        self.lane.sender.credit_wait.swap(0, AcqRel) & CREDIT_BITS
    }

    /// One of the receiver's [`WORDS`](crate::WORDS) words for the layer above, counted
    /// modulo their number. Written by this side.
    #[inline]
    pub fn word(&self, number: usize) -> &'a AtomicU64 {
        &self.lane.receiver.words[number % WORDS]
    }

    /// The same, of the sender. Written by the peer.
    #[inline]
    pub fn peer_word(&self, number: usize) -> &'a AtomicU64 {
        &self.lane.sender.words[number % WORDS]
    }

    /// The sender's word [aside](crate::Sender::aside). Written by the peer.
    pub fn peer_aside(&self) -> &'a AtomicU64 {
        &self.lane.sender_own.aside
    }

    /// Bytes after `head` that `readable` last saw.
    #[inline(always)]
    fn seen(&self, head: u64) -> usize {
        let bytes = self.lane.receiver_own.seen.get().wrapping_sub(head);
        // The word is this side's own, but a hostile peer can reach it.
        if bytes > self.geometry.span() { 0 } else { narrow(bytes) }
    }

    #[inline(always)]
    fn store_head(&self, head: u64) {
        // Pairs with the acquire load in `Sender::window`: table entries of blocks behind the head have been read.
        self.lane.receiver_own.head.store(head, Release);
    }

    /// Moves the head to `next` and with it out of the logical blocks `from..to`. Returns how many those are.
    #[inline(never)]
    fn leave(self, from: u64, to: u64, next: u64) -> usize {
        let mut given = self.given();
        let mut released = false;
        // The table is read before the head moves, since from then on the sender may
        // write it anew. What is put into the ring stays unseen until `give`.
        for logical in from..to {
            if self.lane.released.contains(logical) {
                released = true;
            } else {
                given = self.prepare(given, logical);
            }
        }
        // The head moves before credits go out: killed in between, blocks are lost to the lane, not given back twice.
        self.store_head(next);
        if released {
            (from..to).for_each(|logical| self.lane.released.remove(logical));
        }
        self.give(given);
        narrow(to.saturating_sub(from))
    }

    /// Leaves blocks behind as [`consume`](Self::consume) does, and is killed before the sender has their credits.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn consume_and_die(&self, bytes: usize) {
        let next = self.head().wrapping_add(bytes as u64);
        let mut given = self.given();
        for logical in self.geometry.block_of(self.head())..self.geometry.block_of(next) {
            given = self.prepare(given, logical);
        }
        self.store_head(next);
    }

    #[inline(always)]
    fn given(&self) -> u64 {
        self.lane.receiver_own.credit_tail.load(Relaxed)
    }

    /// Puts a logical block's physical block into the credit ring. Returns the number of credits with it.
    #[inline]
    fn prepare(&self, given: u64, logical: u64) -> u64 {
        self.numbers.set_credit(given, logical);
        given.wrapping_add(1)
    }

    /// Lets the sender have the credits prepared.
    #[inline]
    fn give(&self, given: u64) {
        // Pairs with the acquire load in `Sender::pending`: the bytes of blocks given
        // back have been read. And with the fence in `Sender::arm_credit`, before the load in
        // `take_credit_wait`.
        store_and_fence(&self.lane.receiver_own.credit_tail, given);
    }
}

/// A number of bytes or blocks that has been checked to be at most a lane's span.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "at most 2^27")]
const fn narrow(number: u64) -> usize {
    number as usize
}
