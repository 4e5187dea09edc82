//! The sending side of a lane.

mod growth;
mod sleep;

use core::sync::atomic::Ordering::{Acquire, Relaxed};

#[cfg(not(loom))]
use crate::buffer::Dest;
use crate::buffer::{Source, Stores};
use crate::geometry::Geometry;
use crate::layout::{Lane, SMALL_BLOCKS, WORDS};
use crate::numbers::Numbers;
use crate::segment::Segment;
use crate::sync::{AtomicU64, Pool, order_past_cache, store_and_fence};
use crate::violation::Violation;

/// Places that [`Sender::append_by`] has filled at once: 64 KiB in blocks of a page, with parts of one at both ends.
#[cfg(not(loom))]
const PLACES: usize = 17;

/// The sending side of a lane. One user at a time, but for [`tail`](Self::tail),
/// [`in_flight`](Self::in_flight), the bits and the words, which anyone may look at, and
/// [`space`](Self::space) and [`prefetch`](Self::prefetch), which to others are hints.
///
/// Bytes are numbered from 0, the lane's first. The tail is the number of the next byte.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    lane: &'a Lane,
    numbers: Numbers<'a>,
    pool: Pool<'a>,
    geometry: Geometry,
    number: usize,
    segment: &'a Segment,
}

impl<'a> Sender<'a> {
    #[inline]
    pub(crate) fn new(segment: &'a Segment, lane: &'a Lane, pool: Pool<'a>, number: usize) -> Self {
        Self {
            lane,
            numbers: Numbers::new(segment, lane, number),
            pool,
            geometry: segment.geometry(),
            number,
            segment,
        }
    }

    /// Appends bytes and publishes them. Returns how many went in: fewer than offered
    /// when the lane became full, 0 when it was.
    ///
    /// # Errors
    /// [`Violation`] when the peer's words make no sense; nothing is published then.
    #[inline(always)]
    pub fn append(&self, source: Source<'_>) -> Result<usize, Violation> {
        let tail = self.tail();
        let done = self.write(tail, source, Stores::Cached)?;
        if done != 0 {
            self.publish(tail.wrapping_add(done as u64));
        }
        Ok(done)
    }

    /// Appends several pieces and publishes them together. Returns how many bytes went
    /// in; once one piece does not fit whole, later ones are left out.
    ///
    /// # Errors
    /// [`Violation`] when the peer's words make no sense; nothing is published then.
    #[inline]
    pub fn append_many<'s>(
        &self,
        sources: impl IntoIterator<Item = Source<'s>>,
        stores: Stores,
    ) -> Result<usize, Violation> {
        let tail = self.tail();
        let mut done = 0;
        let mut written = Ok(0);
        for source in sources {
            written = self.write(tail.wrapping_add(done as u64), source, stores);
            done += *written.as_ref().unwrap_or(&0);
            if written != Ok(source.len()) {
                break;
            }
        }
        if stores == Stores::PastCache {
            order_past_cache();
        }
        written?;
        if done != 0 {
            self.publish(tail.wrapping_add(done as u64));
        }
        Ok(done)
    }

    /// Has `fill` put up to `len` bytes where they belong, which may be in several places, and publishes them. `fill`
    /// answers how many bytes it has written, from the first place on. Returns how many bytes went in.
    ///
    /// # Errors
    /// [`Violation`] when the peer's words make no sense; nothing is published then.
    #[cfg(not(loom))]
    pub fn append_by(&self, len: usize, fill: impl FnOnce(&[Dest<'_>]) -> usize) -> Result<usize, Violation> {
        let tail = self.tail();
        let (mut blocks, mut rooms) = ([0; PLACES], [Dest::NOWHERE; PLACES]);
        let (mut room, mut places) = (0, 0);
        for (found, place) in blocks.iter_mut().zip(&mut rooms) {
            let at = tail.wrapping_add(room as u64);
            let Some(block) = self.block_for(at, len - room)? else {
                break;
            };
            (*found, *place) = (block, self.pool.room(block, self.geometry.offset_of(at), len - room));
            room += place.len();
            places += 1;
            if room == len {
                break;
            }
        }
        let filled = if room == 0 { 0 } else { fill(&rooms[..places]).min(room) };
        for (block, place) in blocks[..places].iter().zip(&rooms).rev() {
            room -= place.len();
            if room < filled || self.geometry.offset_of(tail.wrapping_add(room as u64)) != 0 {
                break;
            }
            // Not needed after all.
            let free = self.free_count();
            self.numbers.set_free(free, *block);
            self.set_stock(self.taken(), self.grown(), free + 1);
        }
        if filled != 0 {
            self.publish(tail.wrapping_add(filled as u64));
        }
        Ok(filled)
    }

    /// Bytes that could be appended now: in the current block, in free blocks, and in
    /// blocks not yet in use, should the system have memory for them. Where the peer's
    /// words make no sense there is space, so that the caller appends and finds out.
    pub fn space(&self) -> usize {
        let own = &self.lane.sender_own;
        let tail = self.tail();
        let offset = self.geometry.offset_of(tail);
        let (rest, next) = match offset {
            0 => (0, self.geometry.block_of(tail)),
            _ => (self.geometry.block_size() - offset, self.geometry.block_of(tail) + 1),
        };
        let pending = self
            .pending()
            .map_or_else(|_| self.geometry.blocks(), |(_, pending)| pending);
        let blocks = self.free_count() + pending + self.growable();
        let blocks = blocks.min(self.geometry.blocks());
        let ahead = next.wrapping_sub(own.known_head.get());
        let reach = if self.starved() {
            self.numbers.reach()
        } else {
            self.geometry.logical()
        };
        let window = if ahead <= reach.saturating_sub(blocks) as u64 {
            blocks
        } else {
            self.window(tail, next, reach).unwrap_or(reach)
        };
        rest + (blocks.min(window) << self.geometry.block_shift())
    }

    /// Whether [`append`](Self::append) would take a byte now; cheaper than
    /// [`space`](Self::space).
    pub fn has_space(&self) -> bool {
        self.geometry.offset_of(self.tail()) != 0 || self.space() != 0
    }

    /// Has the processor take the cache line of the next byte, which the receiver has read the last bytes from: an
    /// [`append`](Self::append) that follows soon need not wait for it. A hint; where the next byte begins a block,
    /// nothing.
    #[inline(always)]
    pub fn prefetch(&self) {
        let tail = self.tail();
        let offset = self.geometry.offset_of(tail);
        if offset != 0 {
            let block = self.numbers.block(self.geometry.block_of(tail));
            self.pool.prefetch_to_write(block, offset);
        }
    }

    /// Bytes published since the lane began.
    #[inline(always)]
    pub fn tail(&self) -> u64 {
        self.lane.sender.tail.load(Relaxed)
    }

    /// Bytes published and not yet consumed in order.
    pub fn in_flight(&self) -> usize {
        let head = self.lane.receiver_own.head.load(Relaxed);
        let bytes = self.tail().wrapping_sub(head).min(self.geometry.span());
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Before the bytes: notes when the sender turned to this lane from another, or, after them, when it woke the
    /// receiver. Of several lanes with bytes their receiver takes those first whose senders turned to them first. By
    /// one clock for all that may share a receiver.
    #[inline]
    pub fn set_sent_at(&self, now: u64) {
        self.lane.sender.sent_at.store(now, Relaxed);
    }

    /// One of the sender's [`WORDS`](crate::WORDS) words for the layer above, counted
    /// modulo their number. Written by this side.
    #[inline]
    pub fn word(&self, number: usize) -> &'a AtomicU64 {
        &self.lane.sender.words[number % WORDS]
    }

    /// One more, for what the receiver hardly ever reads. Written by this side; 0 where that is of an earlier release.
    pub fn aside(&self) -> &'a AtomicU64 {
        &self.lane.sender_own.aside
    }

    /// The same, of the receiver. Written by the peer.
    #[inline]
    pub fn peer_word(&self, number: usize) -> &'a AtomicU64 {
        &self.lane.receiver.words[number % WORDS]
    }

    #[inline(always)]
    fn publish(&self, tail: u64) {
        // Pairs with the acquire load in `Receiver::readable`: bytes and table entries
        // written before are seen by who sees this tail. And with the fence in
        // `Receiver::arm`, before the load in `take_wait`.
        store_and_fence(&self.lane.sender.tail, tail);
    }

    /// Writes bytes from stream position `at` on without publishing them. Returns how
    /// many found room.
    #[inline(always)]
    fn write(&self, at: u64, source: Source<'_>, stores: Stores) -> Result<usize, Violation> {
        let offset = self.geometry.offset_of(at);
        if offset != 0 && source.len() <= self.geometry.block_size() - offset {
            let block = self.numbers.block(self.geometry.block_of(at));
            Ok(self.pool.write(block, offset, source, stores))
        } else {
            self.write_across(at, source, stores)
        }
    }

    /// The same where blocks end and begin.
    #[inline(never)]
    fn write_across(&self, mut at: u64, source: Source<'_>, stores: Stores) -> Result<usize, Violation> {
        let mut done = 0;
        while done < source.len() {
            let rest = source.slice(done, usize::MAX);
            let Some(block) = self.block_for(at, rest.len())? else {
                break;
            };
            let n = self.pool.write(block, self.geometry.offset_of(at), rest, stores);
            done += n;
            at = at.wrapping_add(n as u64);
        }
        Ok(done)
    }

    /// The physical block that stream position `at` is in, a new one where a block begins there; `None` when there is
    /// none. `want` bytes are about to be written.
    #[inline(always)]
    fn block_for(&self, at: u64, want: usize) -> Result<Option<usize>, Violation> {
        let logical = self.geometry.block_of(at);
        if self.geometry.offset_of(at) != 0 {
            return Ok(Some(self.numbers.block(logical)));
        }
        let block = self.take_block(at, want)?;
        if let Some(block) = block {
            self.numbers.set_block(logical, block);
        }
        Ok(block)
    }

    /// A physical block for the logical block that begins at stream position `at`, when
    /// there is one. `want` bytes are about to be written.
    fn take_block(&self, at: u64, want: usize) -> Result<Option<usize>, Violation> {
        let logical = self.geometry.block_of(at);
        let ahead = logical.wrapping_sub(self.lane.sender_own.known_head.get());
        if ahead >= self.numbers.reach() as u64 && !self.reaches(at, logical)? {
            return Ok(None);
        }
        let mut count = self.free_count();
        if count == 0 {
            count = self.collect()?;
        }
        if count == 0 {
            count = self.grow(at, want);
        }
        let Some(top) = count.checked_sub(1) else {
            return Ok(None);
        };
        // Killed after this store, the block is lost to the lane, not used twice.
        self.set_stock(self.taken(), self.grown(), top);
        Ok(Some(self.numbers.free(top)))
    }

    /// Whether the table has room for a logical block, which begins at stream position
    /// `at`, after a look at the peer's head and, if need be, in the larger table.
    #[cold]
    fn reaches(&self, at: u64, logical: u64) -> Result<bool, Violation> {
        if self.window(at, logical, self.numbers.reach())? != 0 {
            return Ok(true);
        }
        let ahead = logical.wrapping_sub(self.lane.sender_own.known_head.get());
        Ok(!self.numbers.is_large() && ahead < self.geometry.logical() as u64 && self.enlarge(at, self.free_count()))
    }

    /// Goes on in larger tables, while bytes are written at stream position `at` and
    /// `free` blocks are on the stack. `false` when there are none or no memory for them.
    #[cold]
    fn enlarge(&self, at: u64, free: usize) -> bool {
        if self.geometry.blocks() <= SMALL_BLOCKS {
            return false;
        }
        let begun = self.tail().saturating_add(self.geometry.block_size() as u64 - 1);
        let (first, next) = (self.geometry.block_of(begun), self.geometry.block_of(at));
        let done = self.numbers.enlarge(first, next, free);
        self.lane.sender_own.starved.set(u32::from(!done));
        done
    }

    /// Logical blocks that a table for `reach` of them has room for from block `next` on,
    /// after a look at the peer's head. `tail` is any position between the lane's tail and
    /// `next`.
    #[cold]
    fn window(&self, tail: u64, next: u64, reach: usize) -> Result<usize, Violation> {
        // Pairs with the release store of the head in `Receiver::consume`: the receiver
        // has read the table entries that this side may overwrite from now on.
        let head = self.lane.receiver_own.head.load(Acquire);
        if tail.wrapping_sub(head) > self.geometry.span() {
            return Err(Violation::Head { head, tail });
        }
        let reached = self.geometry.block_of(head);
        self.lane.sender_own.known_head.set(reached);
        let ahead = usize::try_from(next.wrapping_sub(reached)).unwrap_or(reach);
        Ok(reach.saturating_sub(ahead))
    }

    /// Moves returned blocks onto the free stack, which is empty. Returns how many it holds
    /// then. They will be used in the order of their return, in which they were read:
    /// neighbours stay together, and the processor foresees where bytes go and come from.
    fn collect(&self) -> Result<usize, Violation> {
        let (given, pending) = self.pending()?;
        let mut count = 0;
        for back in 1..=pending as u64 {
            let block = self.numbers.credit(given.wrapping_sub(back));
            if block < self.geometry.blocks() {
                self.numbers.set_free(count, block);
                count += 1;
            }
        }
        self.set_stock(lowest(given), self.grown(), count);
        Ok(count)
    }

    /// Credits given since the lane began, and how many of them are not yet taken.
    fn pending(&self) -> Result<(u64, usize), Violation> {
        let taken = self.taken();
        // Pairs with the release store in `Receiver::give`: the receiver has done with the
        // bytes of the blocks that it gave back before.
        let given = self.lane.receiver_own.credit_tail.load(Acquire);
        let pending = lowest(given).wrapping_sub(taken) as usize;
        if pending <= self.geometry.blocks() {
            Ok((given, pending))
        } else {
            Err(Violation::Credits { taken, given })
        }
    }

    pub(crate) fn grown(&self) -> usize {
        self.stock().1.min(self.geometry.blocks())
    }

    /// The physical block of a logical one.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn physical(&self, logical: u64) -> usize {
        self.numbers.block(logical)
    }

    fn free_count(&self) -> usize {
        self.stock().2.min(self.geometry.blocks())
    }

    /// Credits taken since the lane began, modulo 2^32.
    fn taken(&self) -> u32 {
        self.stock().0
    }

    /// Credits taken, blocks in use and free ones, as they stand in one word, unchecked.
    fn stock(&self) -> (u32, usize, usize) {
        let stock = self.lane.sender_own.stock.get();
        let (grown, free) = (quarter(stock >> 16), quarter(stock));
        (lowest(stock >> 32), grown.into(), free.into())
    }

    fn set_stock(&self, taken: u32, grown: usize, free: usize) {
        let stock = u64::from(taken) << 32 | (grown as u64) << 16 | free as u64;
        self.lane.sender_own.stock.set(stock);
    }
}

/// The lower half of a word.
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
const fn lowest(word: u64) -> u32 {
    word as u32
}

/// The lowest quarter of a word.
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
const fn quarter(word: u64) -> u16 {
    word as u16
}

/// A number of blocks as it is stored.
#[expect(clippy::cast_possible_truncation, reason = "at most 1024")]
const fn narrow(blocks: usize) -> u32 {
    blocks as u32
}
