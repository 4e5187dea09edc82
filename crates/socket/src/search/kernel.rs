//! Direct search on a connection whose bytes are all in the kernel.
//!
//! Large pieces are peeked at their offset (`SO_PEEK_OFF`) and thrown away when the head reaches them, so nothing is
//! copied twice. For small pieces the two system calls that this costs are more than the copy: the front of the stream
//! is peeked in bulk, and calls are served from there. Either way the bytes stay in the kernel until they have been
//! received in order, and **the kernel holds unread bytes exactly if there are any**: bytes that have been received are
//! thrown away at the latest when nothing unread is known to stand behind them. So readiness, as the kernel tells it,
//! is right without anybody's help.

use super::area::{Area, Peeked, UNKNOWN, UNTOLD};
use super::waiting::lift_mark;
use super::{Ask, Step};
use crate::kernel::{self, Untold};
use crate::lock::Locks;
use crate::sys::memory::{BUFFER, discard};
use crate::sys::{Errno, raw};
use crate::vector::Vector;
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use viaduct_channel::Dest;

/// Pieces at least this long are not peeked in bulk.
const LARGE: usize = 48 << 10;
/// Of pieces at least this long, the one that is searched for goes to where the program wants it at once.
const MIDDLE: usize = 8 << 10;
/// Pieces of the present size to be peeked in one go.
const BULK: usize = 64;
/// So many pieces of the present size that are passed over are most likely received later, one by one.
const PASSED: usize = 256;
/// The least that is peeked in one go.
const LEAST: usize = 4 << 10;

/// What a search fails with whose bytes stand behind urgent data.
pub(super) const BEHIND_URGENT_DATA: Errno = libc::EOPNOTSUPP;

/// Whether an error behind bytes that have been received is kept for the next call: the kernel tells it once. Others
/// are of this call alone.
pub(super) fn is_told_once(errno: Errno) -> bool {
    !matches!(errno, libc::EAGAIN | libc::EINTR | libc::ENOBUFS | BEHIND_URGENT_DATA)
}

/// A searched direction that is in the kernel; owned by the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Front<'a> {
    pub(crate) fd: c_int,
    pub(crate) area: &'a Area,
    pub(crate) peeked: &'a Peeked,
    /// The connection's, where there is a record of it.
    pub(crate) locks: Option<&'a Locks>,
}

impl Front<'_> {
    fn base(&self) -> u64 {
        self.area.base.load(Relaxed)
    }

    /// Bytes that a receive would find.
    pub(crate) fn readable(&self) -> usize {
        let holes = &self.area.holes;
        let taken = holes.head().saturating_sub(self.base()) + holes.bytes();
        kernel::queued(self.fd).saturating_sub(narrow(taken))
    }

    /// Takes all that a call asks for, where it has been peeked and stands before any hole; `None`: it is not so
    /// simple.
    #[inline]
    pub(crate) fn take_simply(&self, dest: Dest<'_>, offset: u64) -> Option<usize> {
        let holes = &self.area.holes;
        let (want, head, (first, last)) = (dest.len(), holes.head(), self.peeked.range(self.area));
        let end = offset.saturating_add(want as u64);
        let (from, to) = (head.saturating_add(offset), head.saturating_add(end));
        let simple = holes.is_intact() && self.area.error.load(Relaxed) == 0;
        if !simple || from < first || to > last || end > holes.run() || !holes.has_room(from, to) {
            return None;
        }
        self.peeked.buffer.copy_out(narrow(from - first), dest);
        if offset == 0 {
            holes.advance(to);
        } else {
            let _ = holes.take(from, to);
        }
        self.settle_received();
        Some(want)
    }

    /// Takes what is there now. `last`: the caller has waited for more, so that too little may be the end.
    pub(crate) fn attempt(&self, ask: &Ask<'_>, last: bool) -> Result<Step, Errno> {
        let holes = &self.area.holes;
        let want = ask.vector.len().saturating_sub(ask.skip);
        let end = holes
            .position(ask.offset.saturating_add(want as u64 - 1))
            .saturating_add(1);
        if ask.takes() && !holes.has_room(holes.position(ask.offset), end) {
            return Err(libc::ENOBUFS);
        }
        let mut ended = false;
        // What ends further away than is ever peeked in bulk is not looked for there at all, nor what lies far behind
        // all that has been peeked.
        let passed = end.saturating_sub(want as u64 + self.peeked.range(self.area).1.max(self.base()));
        let near = passed <= MIDDLE.max(want.saturating_mul(PASSED)) as u64;
        let small = want < LARGE && !ask.shared && near && end.saturating_sub(self.base()) <= BUFFER as u64;
        let short = || self.peeked.range(self.area).1 < end;
        // Counting costs less than to peek in vain, which a bulk is not after a wait.
        if ask.whole && !(small && last) && self.counted(end) < end {
            return self.lacking(ask, end, last, ended);
        }
        if small && want >= MIDDLE && short() && self.take_behind(ask, end, want)? {
            return Ok(Step::Bytes(want));
        }
        if small && short() {
            ended = self.fill(end, want)?;
            if ask.whole && short() {
                return self.lacking(ask, end, last, ended);
            }
        }
        let mut done = 0;
        while done < want {
            let at = holes.position(ask.offset + if ask.takes() { 0 } else { done as u64 });
            let room = holes.next(at).map_or(u64::MAX, |hole| hole.0) - at;
            let most = usize::try_from(room).unwrap_or(usize::MAX).min(want - done);
            let (from, to) = self.peeked.range(self.area);
            let got = if at >= from && at < to {
                copy_peeked(self.peeked, ask, done, narrow(at - from), most.min(narrow(to - at)))
            } else if small {
                // More than was peeked has not arrived.
                0
            } else {
                let got = if ask.takes() && at == holes.head() {
                    self.in_order(ask, done, most)
                } else {
                    self.at_offset(ask, done, at, most)
                };
                match got {
                    Ok(got) => {
                        ended = got == 0;
                        got
                    }
                    Err(libc::EAGAIN | libc::EINTR) => 0,
                    Err(errno) if done > 0 => {
                        self.keep(errno);
                        0
                    }
                    Err(errno) => return Err(errno),
                }
            };
            if got == 0 {
                break;
            }
            if ask.takes() && holes.take(at, at + got as u64).is_err() {
                // There was room for as much as was asked for, which reached up to a hole.
                if done == 0 {
                    return Err(libc::ENOBUFS);
                }
                break;
            }
            done += got;
            if got < most && to <= at {
                break;
            }
        }
        if done > 0 {
            if ask.takes() {
                self.settle_received();
            }
            return Ok(Step::Bytes(done));
        }
        self.lacking(ask, holes.position(ask.offset).saturating_add(1), last, ended)
    }

    /// Too little is there to go on.
    fn lacking(&self, ask: &Ask<'_>, end: u64, last: bool, ended: bool) -> Result<Step, Errno> {
        // What has been received takes no room from what is waited for.
        self.settle(true)?;
        // What is there comes before an error, as it does from the kernel.
        let kept = self.area.error.swap(0, Relaxed);
        if kept != 0 {
            return Err(kept);
        }
        let over = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        if ended && self.base() == self.area.holes.head() && self.area.holes.count() == 0 && ask.offset == 0 {
            return Ok(Step::End);
        }
        let told = if last || ended {
            raw::poll_now(self.fd, over | libc::POLLPRI)
        } else {
            0
        };
        if told & libc::POLLPRI != 0 && ask.offset > 0 && self.count() < end {
            return Err(BEHIND_URGENT_DATA);
        }
        if told & over != 0 {
            // Whatever came before the end is there by now.
            if self.there(end) >= end {
                return Ok(Step::Again);
            }
            return match self.peek_at(self.there(end), ask, 0, 1) {
                Ok(0) => Ok(Step::End),
                Ok(_) => Ok(Step::Again),
                Err(libc::EAGAIN | libc::EINTR) => Ok(Step::Nothing { until: end }),
                Err(errno) => Err(errno),
            };
        }
        Ok(Step::Nothing { until: end })
    }

    /// Position up to which bytes are in the kernel or at least `enough`.
    fn there(&self, enough: u64) -> u64 {
        let known = self.peeked.range(self.area).1.max(self.base());
        if known >= enough { known } else { self.count() }
    }

    /// Position up to which bytes are in the kernel.
    fn count(&self) -> u64 {
        let there = self.base() + kernel::queued(self.fd) as u64;
        self.area.there.store(there, Relaxed);
        there
    }

    /// The same as last counted, if that is at least `enough`: to count takes as long as to copy some KiB.
    fn counted(&self, enough: u64) -> u64 {
        let last = self.area.there.load(Relaxed);
        if last >= enough { last } else { self.there(enough) }
    }

    /// Peeks the front of the stream, up to position `end` at least, which is near enough; true if the stream ends
    /// there.
    #[cold]
    fn fill(&self, end: u64, want: usize) -> Result<bool, Errno> {
        self.settle(true)?;
        let base = self.base();
        let reach = narrow(end.saturating_sub(base));
        // Who walks away from the front goes on, and each peek begins there: twice as far copies each byte twice at
        // most.
        let len = want
            .saturating_mul(BULK)
            .max(LEAST)
            .max(reach.saturating_mul(2))
            .min(BUFFER);
        peek_from(self.fd, self.area, 0);
        // Whatever interrupts the call, what the buffer held is no longer there.
        self.peeked.forget();
        match self.peeked.buffer.peek(self.fd, len) {
            Ok(got) => {
                self.peeked.set(self.area, base, got as u64);
                Ok(got == 0)
            }
            Err(libc::EAGAIN | libc::EINTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Takes a piece that ends at position `end` and stands behind others, if it is all there and none of it peeked:
    /// the front of the stream is peeked in bulk, but the piece to where the program wants it and not into the buffer,
    /// where nobody will look for it.
    fn take_behind(&self, ask: &Ask<'_>, end: u64, want: usize) -> Result<bool, Errno> {
        let holes = &self.area.holes;
        let from = holes.position(ask.offset);
        let Some(dest) = ask.vector.only_dest() else {
            return Ok(false);
        };
        let plain = ask.takes() && !ask.truncates() && ask.skip == 0 && ask.offset > 0;
        if !plain || end.saturating_sub(from) != want as u64 || self.peeked.range(self.area).1 > from {
            return Ok(false);
        }
        self.settle(true)?;
        let base = self.base();
        let before = narrow(from.saturating_sub(base));
        let piece = libc::iovec {
            iov_base: dest.as_mut_ptr().cast(),
            iov_len: want,
        };
        // Searches that follow are most likely like this one. What is peeked beyond the last whole one is peeked again
        // with the next.
        let reach = before + want;
        let there = narrow(self.counted(end).saturating_sub(base)).min(BUFFER);
        let whole = (there / reach).max(1) * reach;
        let parts = [(0, before), (reach, whole)].map(|(from, to)| self.peeked.buffer.part(from, to));
        let [Some(before_it), Some(behind_it)] = parts else {
            return Ok(false);
        };
        peek_from(self.fd, self.area, 0);
        // As in `fill`.
        self.peeked.forget();
        let parts = [before_it, piece, behind_it];
        let got = match kernel::receive(self.fd, Vector::own(&parts), 0, usize::MAX, libc::MSG_PEEK) {
            Ok(got) => got,
            Err(libc::EAGAIN | libc::EINTR) => 0,
            Err(errno) => return Err(errno),
        };
        if got < reach || holes.take(from, end).is_err() {
            // What there is of it is peeked anew.
            self.peeked.set(self.area, base, got.min(before) as u64);
            return Ok(false);
        }
        self.peeked.set(self.area, base, got as u64);
        self.settle_received();
        Ok(true)
    }

    /// Receives at the head as the kernel does.
    fn in_order(&self, ask: &Ask<'_>, done: usize, most: usize) -> Result<usize, Errno> {
        self.settle(true)?;
        let (holes, flags) = (&self.area.holes, ask.flags & libc::MSG_TRUNC);
        // As in `Area::consume`, and the head goes with it.
        holes.begin_change();
        let received = kernel::receive(self.fd, ask.vector, ask.skip + done, most, flags);
        if let Ok(got) = received {
            self.area.base.fetch_add(got as u64, Relaxed);
            holes.advance(holes.head() + got as u64);
        }
        holes.end_change();
        received.inspect(|_| lift_mark(self.fd, self.area))
    }

    fn at_offset(&self, ask: &Ask<'_>, done: usize, at: u64, most: usize) -> Result<usize, Errno> {
        let got = self.peek_at(at, ask, done, most)?;
        // The kernel counts up to urgent data only, and peeks behind it as if it were a byte of the stream.
        if got > 0 && self.counted(at + got as u64) < at + got as u64 {
            let base = self.base();
            self.settle(true)?;
            // It may have stood among what had been received.
            if self.base() == base {
                return Err(BEHIND_URGENT_DATA);
            }
            return self.at_offset(ask, done, at, most);
        }
        Ok(got)
    }

    /// Bytes have been received: an error behind them is for the next call.
    fn keep(&self, errno: Errno) {
        if is_told_once(errno) {
            self.area.error.store(errno, Relaxed);
        }
    }

    /// The same as [`settle`](Self::settle) once a call has received what it is to answer.
    fn settle_received(&self) {
        if let Err(errno) = self.settle(false) {
            self.keep(errno);
        }
    }

    fn peek_at(&self, at: u64, ask: &Ask<'_>, done: usize, most: usize) -> Result<usize, Errno> {
        let offset = at - self.base();
        match peek_at_offset(self.fd, self.area, offset, ask, done, most) {
            Err(libc::EOPNOTSUPP) => {
                self.settle(true)?;
                let (got, copied) = peek_over(self.fd, self.peeked, at - self.base(), ask, done, most)?;
                self.peeked.set(self.area, self.base(), got);
                Ok(copied)
            }
            other => other,
        }
    }

    /// Throws away what has been received at the front; unless `all`, only if no unread bytes are known behind it.
    pub(crate) fn settle(&self, all: bool) -> Result<(), Errno> {
        let head = self.area.holes.head();
        if !all && self.peeked.range(self.area).1 > head {
            return Ok(());
        }
        // Bounded: the kernel stops at urgent data only.
        for _ in 0..4 {
            let owed = narrow(head.saturating_sub(self.base()));
            if owed == 0 {
                return Ok(());
            }
            self.note_origin();
            match self.area.consume(|| discard(self.fd, owed)) {
                Ok(0) | Err(libc::EAGAIN | libc::EINTR) => return Ok(()),
                // Whoever waits for others counts from another place now.
                Ok(_) => lift_mark(self.fd, self.area),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Before the first bytes are thrown away: no call takes any but those that mind holes by then. Without a record of
    /// the connection nobody will ask.
    fn note_origin(&self) {
        let area = self.area;
        let Some(locks) = self.locks.filter(|_| area.origin.load(Relaxed) == UNKNOWN) else {
            return;
        };
        peek_from(self.fd, area, 0);
        match kernel::receive_position_surely(self.fd, locks) {
            Ok(position) => area.origin.store(position.wrapping_sub(self.base()), Relaxed),
            Err(Untold::Ended) => area.origin.store(UNTOLD, Relaxed),
            Err(Untold::Busy) => {}
        }
    }

    /// Throws away what has been received at the front where the holes are damaged, for somebody who knows of none. The
    /// head is as before the call that nobody has ended, or as after it; how many bytes have gone the kernel tells.
    /// Where it does not, no byte is handed over, but an error.
    pub(crate) fn settle_damaged(&self, locks: &Locks) {
        // Where nothing has been thrown away yet. This may be asked more than once.
        self.note_origin();
        let (head, origin) = (self.area.holes.head(), self.area.origin.load(Relaxed));
        match kernel::receive_position_surely(self.fd, locks) {
            Ok(position) if !matches!(origin, UNKNOWN | UNTOLD) => {
                let owed = narrow(head.saturating_sub(position.wrapping_sub(origin)));
                if owed > 0 {
                    let _ = discard(self.fd, owed);
                }
            }
            Err(Untold::Ended) if kernel::queued(self.fd) == 0 => {}
            _ => kernel::give_up(self.fd),
        }
    }
}

/// Peeks into a socket's stream without looking at what lies before; `EOPNOTSUPP` where the kernel cannot.
pub(crate) fn peek_at_offset(
    fd: c_int,
    area: &Area,
    offset: u64,
    ask: &Ask<'_>,
    done: usize,
    most: usize,
) -> Result<usize, Errno> {
    let offset = c_int::try_from(offset).map_err(|_| libc::ENOBUFS)?;
    if !peek_from(fd, area, offset) {
        return Err(libc::EOPNOTSUPP);
    }
    let flags = libc::MSG_PEEK | (ask.flags & libc::MSG_TRUNC);
    kernel::receive(fd, ask.vector, ask.skip + done, most, flags)
}

/// The same where the kernel cannot: Linux before 6.9. What lies before is peeked too, as far as the buffer reaches:
/// how much that was, and how much of it was copied.
#[cold]
pub(crate) fn peek_over(
    fd: c_int,
    peeked: &Peeked,
    offset: u64,
    ask: &Ask<'_>,
    done: usize,
    most: usize,
) -> Result<(u64, usize), Errno> {
    peeked.forget();
    let offset = narrow(offset);
    if offset >= BUFFER {
        return Err(libc::ENOBUFS);
    }
    let got = peeked.buffer.peek(fd, BUFFER)?;
    let there = got.saturating_sub(offset).min(most);
    if there == 0 {
        // An error would be told behind what is there, and was not.
        kernel::take_error(fd)?;
    }
    Ok((got as u64, copy_peeked(peeked, ask, done, offset, there)))
}

fn copy_peeked(peeked: &Peeked, ask: &Ask<'_>, done: usize, from: usize, most: usize) -> usize {
    if ask.truncates() {
        return most;
    }
    let mut copied = 0;
    for dest in ask.vector.dests(ask.skip + done, most) {
        copied += peeked.buffer.copy_out(from + copied, dest);
    }
    copied
}

/// Has the next peek begin at an offset; false where the kernel cannot. The option moves with what is peeked and
/// received, so it is set before each peek, once it has been set.
pub(crate) fn peek_from(fd: c_int, area: &Area, offset: c_int) -> bool {
    let set = |offset: c_int| raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &offset).is_ok();
    if offset != 0 {
        // First: who is killed in between leaves it to others to set the option back.
        area.peeks_behind.store(1, Relaxed);
        let can = set(offset);
        if !can {
            area.peeks_behind.store(0, Relaxed);
        }
        can
    } else {
        if area.peeks_behind.load(Relaxed) != 0 && set(-1) {
            area.peeks_behind.store(0, Relaxed);
        }
        true
    }
}

fn narrow(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
