//! Direct search on a connection with a lane, across the stretches that its bytes travelled on.
//!
//! At any time the unreceived bytes lie in at most three parts: raw bytes before a promotion, the lane's stretch, and
//! raw bytes after its demotion; no other promotion comes before the lane's has been received. The first byte of the
//! first part is the area's base. Bytes received at the head are given up at once, so what the rest of this crate
//! computes of readiness stays right; blocks that lie wholly in a hole go back to the sender at once.

mod parts;

use super::area::{Area, Peeked};
use super::kernel::{BEHIND_URGENT_DATA, Front, is_told_once, peek_at_offset, peek_from, peek_over};
use super::waiting::{announce, lift_mark};
use super::{Ask, Step, front};
use crate::agent::counters;
use crate::conn::{self, Conn};
use crate::kernel;
use crate::lock::Guard;
use crate::path::marks::{Marks, look_at_marks, look_behind_bells};
use crate::receive::{lane, needs};
use crate::sys::memory::discard;
use crate::sys::{Errno, raw};
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use parts::{Parts, Place};
use viaduct_channel::{Dest, Found, Receiver};
use viaduct_control::counters::slot;
use viaduct_stream::{Incoming, Source};

/// So many bytes of what is read next are fetched in advance; of more the processor sees by itself what is going on.
const FORESEEN: usize = 8 << 10;
/// So few are fetched at once, whichever is wanted first.
const TOGETHER: usize = 1 << 10;

/// Takes all that a call asks for, where it is in the lane and before any hole, as it mostly is; `None`: it is not so
/// simple.
#[inline(always)]
pub(super) fn take_simply(conn: &Conn, guard: &Guard<'_>, area: &Area, dest: Dest<'_>, offset: u64) -> Option<usize> {
    let (holes, lane) = (&area.holes, conn.segment(guard)?.receiver(conn.side()));
    let (want, base) = (dest.len(), area.base.load(Relaxed));
    let end = offset.saturating_add(want as u64);
    let simple = holes.is_intact() && base == holes.head() && Incoming::new(lane).source() == Source::Lane;
    if !simple || end > holes.run() {
        return None;
    }
    let mut there = lane.find(narrow(end)).ok()?;
    if (there.len() as u64) < end {
        return None;
    }
    let (from, to) = (base + offset, base + end);
    if offset > 0 {
        if !holes.has_room(from, to) {
            return None;
        }
        foresee(&lane, there, narrow(offset), want);
        lane.copy_found(there, dest, narrow(offset));
        let hole = holes.take(from, to).ok()?;
        if is_block(&lane, hole) {
            give_back(conn, guard, hole, (from, to), (base, u64::MAX));
        }
        return Some(want);
    }
    lane.copy_found(there, dest, 0);
    // With what has been received behind it. That has been published, if the peer is honest.
    let mut gone = narrow(holes.advance(to).saturating_sub(base));
    if gone > there.len() {
        there = lane.find(gone).unwrap_or(there);
        gone = gone.min(there.len());
    }
    consume(conn, area, &lane, there, gone);
    Some(want)
}

/// Takes so many bytes off the front of the lane, as [`Area::consume`] does.
#[inline(always)]
fn consume(conn: &Conn, area: &Area, lane: &Receiver<'_>, there: Found, bytes: usize) {
    lane::count(conn, bytes);
    area.holes.begin_change();
    let gained = lane.consume_found(there, bytes);
    area.base.store(area.base.load(Relaxed) + bytes as u64, Relaxed);
    area.holes.end_change();
    if gained != 0 {
        lane::gave_back(conn, lane.apart());
    }
}

/// What is searched for is about to be read, and what lies before most likely next.
#[inline(always)]
fn foresee(lane: &Receiver<'_>, there: Found, before: usize, want: usize) {
    let all = before.saturating_add(want);
    if all <= TOGETHER {
        return lane.prefetch(there, 0, all);
    }
    foresee_far(lane.apart(), there, before, want);
}

#[inline(never)]
fn foresee_far(lane: Receiver<'_>, there: Found, before: usize, want: usize) {
    lane.prefetch(there, before, want.min(FORESEEN));
    lane.prefetch(there, 0, before.min(FORESEEN));
}

/// A lane has room for twice as much by itself.
const FAR: u64 = 512 << 10;

/// Whether a block may lie wholly in `hole`.
#[inline(always)]
fn is_block(lane: &Receiver<'_>, hole: (u64, u64)) -> bool {
    hole.1.saturating_sub(hole.0) >= lane.block_size() as u64
}

/// Gives the blocks back that are whole since `taken` has become part of `hole`, all of them stream positions. The lane
/// begins at the first of `within`, and has so many bytes.
#[inline(never)]
fn give_back(conn: &Conn, guard: &Guard<'_>, hole: (u64, u64), taken: (u64, u64), within: (u64, u64)) {
    let Some(segment) = conn.segment(guard) else { return };
    let lane = segment.receiver(conn.side());
    let block = lane.block_size() as u64;
    // Blocks further away were whole before, or are not yet.
    let near = |at: u64| at.max(within.0).saturating_sub(within.0).min(within.1);
    let from = near(hole.0.max(taken.0.saturating_sub(block)));
    let to = near(hole.1.min(taken.1.saturating_add(block)));
    let head = lane.head();
    if from < to && lane.release(head.wrapping_add(from), head.wrapping_add(to)) != 0 {
        let bits = lane.take_credit_wait();
        if bits != 0 {
            needs::ring_for_credit(conn, bits);
        }
    }
}

/// The receiving direction of an attached connection, owned.
#[derive(Debug)]
pub(crate) struct Stretches<'a> {
    conn: &'a Conn,
    guard: &'a Guard<'a>,
    area: &'static Area,
    peeked: &'static Peeked,
    lane: Receiver<'a>,
    incoming: Incoming<'a>,
}

impl<'a> Stretches<'a> {
    /// `None` if it has not been searched.
    pub(crate) fn new(conn: &'a Conn, guard: &'a Guard<'a>) -> Option<Self> {
        let lane = conn.segment(guard)?.receiver(conn.side());
        let Front { area, peeked, .. } = front(conn)?;
        Some(Self {
            conn,
            guard,
            area,
            peeked,
            lane,
            incoming: Incoming::new(lane),
        })
    }

    fn base(&self) -> u64 {
        self.area.base.load(Relaxed)
    }

    /// Takes what is there now. `last`: the caller has waited.
    pub(crate) fn attempt(&self, ask: &Ask<'_>, last: bool) -> Result<Step, Errno> {
        let step = self.look(ask, last);
        // Whoever else peeks at this connection, for marks, begins at the front.
        peek_from(self.conn.fd(), self.area, 0);
        step
    }

    fn look(&self, ask: &Ask<'_>, last: bool) -> Result<Step, Errno> {
        peek_from(self.conn.fd(), self.area, 0);
        self.settle()?;
        let holes = &self.area.holes;
        let want = ask.vector.len().saturating_sub(ask.skip);
        let from = holes.position(ask.offset);
        let end = holes
            .position(ask.offset.saturating_add(want as u64 - 1))
            .saturating_add(1);
        let parts = self.parts(end.saturating_sub(self.base()))?;
        if ask.offset > 0 && parts.all[0].place == Place::Lane {
            foresee(
                &self.lane,
                self.lane.found(),
                narrow(from.saturating_sub(self.base())),
                want,
            );
        }
        if ask.takes() && !holes.has_room(from, end) {
            return Err(libc::ENOBUFS);
        }
        if ask.whole && !self.reaches(&parts, from, end) {
            let most = self.most_held(&parts, ask, end);
            if most < end && self.reaches(&parts, from, most) {
                return Err(libc::ENOBUFS);
            }
            return self.lacking(&parts, ask, most, last);
        }
        let mut done = 0;
        while done < want {
            let at = holes.position(ask.offset + if ask.takes() { 0 } else { done as u64 });
            let room = holes.next(at).map_or(u64::MAX, |hole| hole.0) - at;
            let (place, into, ready) = self.locate(&parts, at);
            let most = narrow(room.min(ready)).min(want - done);
            if most == 0 {
                break;
            }
            let got = match place {
                Place::Lane => self.copy(ask, done, into, most),
                Place::Kernel => match self.peek(into, ask, done, most) {
                    Ok(got) => got,
                    Err(libc::EAGAIN | libc::EINTR) => break,
                    Err(errno) if done > 0 => {
                        self.keep(errno);
                        break;
                    }
                    Err(errno) => return Err(errno),
                },
            };
            if got == 0 {
                break;
            }
            if ask.takes() && !self.take(&parts, at, at + got as u64) {
                // There was room for as much as was asked for, which reached up to a hole.
                if done == 0 {
                    return Err(libc::ENOBUFS);
                }
                break;
            }
            done += got;
        }
        if done > 0 {
            if ask.takes() {
                if let Err(errno) = self.settle() {
                    self.keep(errno);
                }
            } else if done < want {
                self.tell_of_rest(&parts, holes.position(ask.offset + done as u64), end);
            }
            return Ok(Step::Bytes(done));
        }
        self.lacking(&parts, ask, from.saturating_add(1), last)
    }

    /// Bytes have been received: an error behind them is for the next call.
    fn keep(&self, errno: Errno) {
        if is_told_once(errno) {
            self.conn.set_error(errno);
        }
    }

    /// Peeks at what the kernel holds `into` bytes before.
    fn peek(&self, into: u64, ask: &Ask<'_>, done: usize, most: usize) -> Result<usize, Errno> {
        let fd = self.conn.fd();
        match peek_at_offset(fd, self.area, into, ask, done, most) {
            Err(libc::EOPNOTSUPP) => peek_over(fd, self.peeked, into, ask, done, most).map(|(_, copied)| copied),
            other => other,
        }
    }

    fn copy(&self, ask: &Ask<'_>, done: usize, into: u64, most: usize) -> usize {
        if ask.truncates() {
            return most;
        }
        let mut copied = 0;
        for dest in ask.vector.dests(ask.skip + done, most) {
            copied += self.lane.copy_out(dest, narrow(into) + copied);
        }
        copied
    }

    /// Notes that `from..to` has been received, and gives back the blocks that are whole now; false if there is no room
    /// for a hole.
    fn take(&self, parts: &Parts, from: u64, to: u64) -> bool {
        let Ok(hole) = self.area.holes.take(from, to) else {
            return false;
        };
        if hole.1 <= self.area.holes.head() {
            return true;
        }
        let [first, second, _] = &parts.all;
        let within = match first.place {
            Place::Lane => (self.base(), first.ready),
            Place::Kernel => (self.base().saturating_add(first.len), second.ready),
        };
        if is_block(&self.lane, hole) {
            give_back(self.conn, self.guard, hole, (from, to), within);
        }
        true
    }

    /// Gives up what has been received at the front, stretch by stretch.
    pub(crate) fn settle(&self) -> Result<(), Errno> {
        loop {
            let owed = self.area.holes.head().saturating_sub(self.base());
            if owed == 0 {
                return Ok(());
            }
            let [first, ..] = self.parts(owed)?.all;
            let now = narrow(owed.min(first.ready));
            if now == 0 {
                // A mark that ends the stretch may not have been looked at yet.
                let on_lane = self.incoming.source() == Source::Lane;
                if on_lane
                    && look_at_marks(self.conn, &self.incoming, &self.lane)? == Marks::Changed
                    && self.incoming.source() != Source::Lane
                {
                    continue;
                }
                return Ok(());
            }
            if first.place == Place::Lane {
                consume(self.conn, self.area, &self.lane, self.lane.found(), now);
                continue;
            }
            match self.area.consume(|| self.discard(now)) {
                Ok(0) | Err(libc::EAGAIN | libc::EINTR) => return Ok(()),
                Ok(gone) => {
                    counters::add(self.conn, slot::BYTES_RECEIVED, gone as u64);
                    lift_mark(self.conn.fd(), self.area);
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Throws raw bytes away.
    fn discard(&self, bytes: usize) -> Result<usize, Errno> {
        let gone = self.conn.take_counted(|| discard(self.conn.fd(), bytes))?;
        if gone > 0
            && let Source::RawUntil(_) = self.incoming.source()
        {
            self.incoming.approached();
        }
        Ok(gone)
    }

    /// Bytes that a receive would find, as far as the parts before are all there.
    pub(crate) fn readable(&self) -> Result<u64, Errno> {
        let parts = match self.incoming.source() {
            // The mark that ends its stretch may not have been looked at, and is left to those who sleep until it
            // comes.
            Source::Lane => self.around_promotion(0)?,
            _ => self.parts(u64::MAX)?,
        };
        let mut there = 0_u64;
        for part in parts.all {
            there += part.ready;
            if part.ready != part.len {
                break;
            }
        }
        let holes = &self.area.holes;
        let owed = holes.head().saturating_sub(self.base());
        // What has been taken of those behind is not among them.
        let taken = holes.bytes_before(self.base().saturating_add(there));
        Ok(there.saturating_sub(owed + taken))
    }

    /// The lane's position behind what ends at `end`, if it is there, or will be.
    fn behind(&self, parts: &Parts, end: u64) -> Option<u64> {
        let (place, into, _) = self.locate(parts, end.saturating_sub(1));
        (place == Place::Lane).then(|| self.lane.head().wrapping_add(into + 1))
    }

    /// Whether what ends at `end` is in the lane and more than it can hold, and the kernel cannot stand in. If it fits,
    /// the sender hears that it is needed: where the caller has waited, or a lane has little room beside so much. Then
    /// it gets as much again, to go on while the rest is received.
    fn is_too_far(&self, parts: &Parts, end: u64, waited: bool) -> bool {
        let Some(until) = self.behind(parts, end) else {
            return false;
        };
        if !self.lane.can_hold(until) {
            return !self.ask_for_kernel(end);
        }
        let ahead = until.wrapping_sub(self.lane.head());
        let far = ahead > FAR;
        let enough = far && needs::want(self.conn, &self.lane, until.wrapping_add(ahead));
        if !enough && (far || waited || self.incoming.source() != Source::Lane) {
            needs::want(self.conn, &self.lane, until);
        }
        false
    }

    /// Up to where a call waits for bytes that end at `end`: a peek at the head, which shows what can be held, for no
    /// more than that.
    fn most_held(&self, parts: &Parts, ask: &Ask<'_>, end: u64) -> u64 {
        match self.behind(parts, end) {
            Some(until)
                if !ask.takes() && ask.offset == 0 && !self.lane.can_hold(until) && !self.ask_for_kernel(end) =>
            {
                end.saturating_sub(until.wrapping_sub(self.lane.reach()))
            }
            _ => end,
        }
    }

    /// A peek found bytes up to position `next` only, and not up to `end`. Whoever waits for the others sees no more of
    /// this socket than that it is readable.
    fn tell_of_rest(&self, parts: &Parts, next: u64, end: u64) {
        let want = |end| {
            let until = self.behind(parts, end);
            until.is_some_and(|until| needs::want(self.conn, &self.lane, until))
        };
        if !want(end) {
            want(next.saturating_add(1));
        }
    }

    /// The bytes before `end` are not all there: is that the end, too much, or just not yet?
    fn lacking(&self, parts: &Parts, ask: &Ask<'_>, end: u64, last: bool) -> Result<Step, Errno> {
        let not_yet = |until, kernel| Step::Stretches {
            lane: parts.published,
            until,
            kernel,
        };
        if self.incoming.source() == Source::Lane {
            let too_far = self.is_too_far(parts, end, last);
            let until = self.lane.head().wrapping_add(end.saturating_sub(self.base()));
            if !last && !too_far {
                // Marks cost a system call, and most waits are over before a sleep.
                return Ok(not_yet(until, 0));
            }
            let (marks, known) = look_behind_bells(self.conn, &self.incoming, &self.lane)?;
            return match marks {
                Marks::None if too_far => Err(libc::ENOBUFS),
                Marks::None => Ok(not_yet(until, known)),
                Marks::End => Ok(Step::End),
                Marks::Changed
                    if self.incoming.source() != Source::Lane || self.lane.published() != parts.published =>
                {
                    Ok(Step::Again)
                }
                Marks::Changed if self.conn.flag(conn::PEER_FIN) => match self.conn.has_error() {
                    true => Err(self.conn.take_error()),
                    false => Ok(Step::End),
                },
                Marks::Changed if too_far => Err(libc::ENOBUFS),
                Marks::Changed => Ok(not_yet(until, known)),
            };
        }
        let not_yet = not_yet(parts.published.wrapping_add(1), parts.queued);
        let over = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        let told = raw::poll_now(self.conn.fd(), over | libc::POLLPRI);
        if told & libc::POLLPRI != 0 && ask.offset > 0 && last {
            return Err(BEHIND_URGENT_DATA);
        }
        if told & over != 0 {
            let now = self.parts(u64::MAX)?;
            let grown =
                now.queued != parts.queued || now.all.map(|part| part.ready) != parts.all.map(|part| part.ready);
            return if grown {
                Ok(Step::Again)
            } else {
                self.how_it_ended(parts.queued, not_yet)
            };
        }
        if self.is_too_far(parts, end, last) {
            return Err(libc::ENOBUFS);
        }
        // A buffer that is empty is not too small yet.
        if last
            && parts.queued > 0
            && let Some(bytes) = self.lacks_in_kernel(parts, end)
        {
            announce(self.conn.fd(), self.area, self.base() + bytes)?;
        }
        Ok(not_yet)
    }

    /// The kernel connection has ended, and all `queued` bytes that it holds are known: in order, or with an error?
    fn how_it_ended(&self, queued: u64, not_yet: Step) -> Result<Step, Errno> {
        let offset = c_int::try_from(queued).map_err(|_| libc::ENOBUFS)?;
        if !peek_from(self.conn.fd(), self.area, offset) {
            return kernel::take_error(self.conn.fd()).map(|()| Step::End);
        }
        let seen = raw::recv(self.conn.fd(), &mut [0; 1], libc::MSG_PEEK | libc::MSG_DONTWAIT);
        peek_from(self.conn.fd(), self.area, 0);
        match seen {
            Ok(0) => Ok(Step::End),
            Ok(_) => Ok(Step::Again),
            Err(libc::EAGAIN | libc::EINTR) => Ok(not_yet),
            Err(errno) => Err(errno),
        }
    }

    /// The lane can never hold so much. If the program has made the socket's buffer large enough for all of it, the
    /// stream goes on there.
    fn ask_for_kernel(&self, end: u64) -> bool {
        let room = kernel::room_set(self.conn.fd());
        if room == 0 || end.saturating_sub(self.base()) > room {
            return false;
        }
        needs::go_on_in_kernel(self.conn, &self.incoming);
        true
    }
}

fn narrow(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
