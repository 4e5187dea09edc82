//! Looking at what is unread without receiving it: over the ends of stretches, since what follows in the stream may
//! have travelled otherwise.
//!
//! What is unread lies in at most three parts: raw bytes before a promotion, the lane's, and raw bytes after its
//! demotion.

use crate::conn::Conn;
use crate::lock::Guard;
use crate::path::marks::{Marks, look_at_marks, look_past_bells};
use crate::receive::waiting::END;
use crate::receive::{self, Found, needs};
use crate::sys::{Errno, raw};
use crate::vector::Vector;
use crate::wait::{self, Deadline, Woken, bell};
use crate::{kernel, send};
use libc::c_int;
use viaduct_channel::{Receiver, Segment};
use viaduct_stream::{Incoming, MARK_BACK, Source};

/// How often the parts are looked for again because a stretch ended meanwhile.
const ROUNDS: u32 = 8;

/// What is unread, in the stream's order.
#[derive(Clone, Copy, Debug, Default)]
struct Unread {
    /// Raw bytes before the lane's.
    before: usize,
    lane: usize,
    /// Raw bytes after the lane's, and what the kernel holds before them.
    behind: usize,
    from: usize,
}

/// The receiving direction of an attached connection, owned.
#[derive(Debug)]
pub(crate) struct Peek<'a> {
    conn: &'a Conn,
    guard: &'a Guard<'a>,
    lane: Receiver<'a>,
    incoming: Incoming<'a>,
}

impl<'a> Peek<'a> {
    pub(crate) fn new(conn: &'a Conn, guard: &'a Guard<'a>, lane: Receiver<'a>) -> Self {
        Self {
            conn,
            guard,
            lane,
            incoming: Incoming::new(lane),
        }
    }

    /// How many bytes are there. `quiet`: there was nothing on the kernel connection, see
    /// [`is_quiet`](crate::path::marks::is_quiet).
    pub(crate) fn readable(&self, quiet: bool) -> Result<usize, Errno> {
        if quiet && self.incoming.source() == Source::Lane && !self.incoming.sender_leaves() {
            return self.in_lane(usize::MAX);
        }
        self.parts().map(|unread| unread.before + unread.lane + unread.behind)
    }

    /// Peeks at more than the stretch at hand may hold. `None`: that has enough, or there is nothing at all.
    pub(crate) fn attempt(&self, vector: Vector<'_>, flags: c_int) -> Result<Option<Found>, Errno> {
        let want = vector.len();
        if self.incoming.source() == Source::Lane {
            let there = self.in_lane(want)?;
            if there < want {
                self.needs(want);
            }
            // An empty lane's marks are for the receive to look at, which does not do so each time.
            if there == 0 || there >= want {
                return Ok(None);
            }
        }
        let unread = self.parts()?;
        let raw_first = matches!(self.incoming.source(), Source::RawUntil(_));
        if raw_first && unread.behind == 0 && unread.before + unread.lane < want {
            self.needs(want.saturating_sub(unread.before));
        }
        let fd = self.conn.fd();
        let flags = flags & (libc::MSG_PEEK | libc::MSG_TRUNC);
        let mut done = 0;
        if unread.before > 0 {
            done = kernel::receive(fd, vector, 0, unread.before, flags).unwrap_or(0);
        }
        if done == unread.before {
            let bytes = unread.lane.min(want - done);
            if flags & libc::MSG_TRUNC == 0 {
                let mut copied = 0;
                for dest in vector.dests(done, bytes) {
                    copied += self.lane.copy_out(dest, copied);
                }
            }
            done += bytes;
        }
        let ends = done > 0 && unread.behind > 0 && self.is_at_urgent_data(unread.from);
        if done == unread.before + unread.lane && done < want && unread.behind > 0 && !ends {
            let got = self.peek_behind(unread.from, || kernel::receive(fd, vector, done, unread.behind, flags));
            if got.is_none() && unread.before == 0 {
                // Out of the way, then, for the next look.
                look_at_marks(self.conn, &self.incoming, &self.lane)?;
            }
            done += got.and_then(Result::ok).unwrap_or(0);
        }
        Ok((done > 0).then_some(Found::Bytes(done)))
    }

    /// So many bytes of the lane are asked for, and left where they are: whoever finds fewer may look until there are
    /// as many. Of more than the lane can ever hold, a little more than there is.
    fn needs(&self, bytes: usize) {
        let whole = self.lane.head().wrapping_add(bytes as u64);
        if !needs::want(self.conn, &self.lane, whole) {
            needs::want_more(self.conn, &self.lane);
        }
    }

    fn in_lane(&self, enough: usize) -> Result<usize, Errno> {
        let readable = self.lane.readable_or(enough);
        readable.map_err(|_| send::violated(self.conn))
    }

    /// The parts, by the receivers' law: bytes of the kernel's are counted before the epoch is looked at.
    fn parts(&self) -> Result<Unread, Errno> {
        let none = Unread::default();
        for _ in 0..ROUNDS {
            match self.incoming.source() {
                // The marks are left as long as the lane has bytes, for others who sleep.
                Source::Lane if self.in_lane(usize::MAX)? > 0 => return self.around_promotion(0),
                Source::Lane => {
                    let seen = look_past_bells(self.conn, &self.incoming, &self.lane)?;
                    if seen != Marks::Changed {
                        return Ok(none);
                    }
                }
                // The marks have been taken, and none come before the lane's bytes have been received.
                Source::LaneThenRaw => {
                    let lane = self.in_lane(usize::MAX)?;
                    let behind = kernel::queued(self.conn.fd());
                    return Ok(Unread { lane, behind, ..none });
                }
                Source::RawUntil(until) => {
                    let left = receive::approach(self.conn, &self.incoming, until)?;
                    if left != 0 {
                        return self.around_promotion(usize::try_from(left).unwrap_or(usize::MAX));
                    }
                }
                Source::Raw => {
                    let before = kernel::queued(self.conn.fd());
                    if self.incoming.source() == Source::Raw {
                        return Ok(Unread { before, ..none });
                    }
                }
            }
        }
        Ok(none)
    }

    /// The parts while `left` raw bytes stand before the lane's.
    fn around_promotion(&self, left: usize) -> Result<Unread, Errno> {
        let queued = kernel::queued(self.conn.fd());
        if queued < left {
            return Ok(Unread {
                before: queued,
                ..Unread::default()
            });
        }
        // The lane is looked at after the mark that ends its stretch: all of that has been published by then.
        let from = self.find_back(left, queued);
        Ok(Unread {
            before: left,
            lane: self.in_lane(usize::MAX)?,
            behind: from.map_or(0, |from| queued.saturating_sub(from)),
            from: from.unwrap_or(0),
        })
    }

    /// How many of the kernel's `queued` bytes stand before what is raw again, if the lane's stretch has ended; the
    /// first `left` are raw and marks follow.
    fn find_back(&self, left: usize, queued: usize) -> Option<usize> {
        let mut marks = [0; 512];
        let mut at = left;
        while at < queued {
            let look = || raw::recv(self.conn.fd(), &mut marks, libc::MSG_PEEK | libc::MSG_DONTWAIT);
            let seen = self.peek_behind(at, look)?.ok().filter(|seen| *seen > 0)?;
            if let Some(index) = marks.iter().take(seen).position(|mark| *mark == MARK_BACK) {
                return Some(at + index + 1);
            }
            at += seen;
        }
        None
    }

    /// Whether urgent data in line is what the kernel holds behind its first `from` bytes: as with TCP, it is not
    /// looked at together with what stands before.
    fn is_at_urgent_data(&self, from: usize) -> bool {
        let fd = self.conn.fd();
        let Some(before) = from.checked_sub(1) else {
            return kernel::is_at_mark(fd);
        };
        // The kernel tells where the data stands only at the head, but ends any look there.
        let look = || raw::recv(fd, &mut [0; 2], libc::MSG_PEEK | libc::MSG_DONTWAIT);
        raw::poll_now(fd, libc::POLLPRI) != 0 && self.peek_behind(before, look) == Some(Ok(1))
    }

    /// Makes a call that peeks `from` bytes behind the kernel's first; `None` where the kernel cannot, direct search
    /// has it do so already, or a sleeper may be about to peek: it would wait for what is behind.
    fn peek_behind<T>(&self, from: usize, call: impl FnOnce() -> T) -> Option<T> {
        if from == 0 {
            return Some(call());
        }
        let disturbs = self.guard.searched() || self.conn.has_sleepers();
        let at = c_int::try_from(from).ok().filter(|_| !disturbs)?;
        let locks = self.conn.locks()?;
        let done = self.conn.peek_from(locks, at).then(call);
        // Whoever peeks for marks begins at the front.
        self.conn.peek_from(locks, -1);
        done
    }
}

/// Waits until a peek with `MSG_WAITALL` may find more than it did. What it found stays where it is and would end any
/// other wait at once, so this one looks again and again.
#[cold]
pub(super) fn wait_for_more(conn: &Conn, deadline: Deadline) -> Result<Woken, Errno> {
    const NAP_NS: u64 = 1_000_000;
    // No receive goes on to urgent data, but one that begins with some goes on behind it.
    let begins_with_it = || {
        kernel::is_at_mark(conn.fd())
            && conn.own_receive(conn.id()).is_some_and(|guard| {
                let in_lane = |segment: &Segment| segment.receiver(conn.side()).readable() != Ok(0);
                !conn.segment(&guard).is_some_and(in_lane)
            })
    };
    let told = raw::poll_now(conn.fd(), libc::POLLRDHUP | libc::POLLPRI);
    if told & !libc::POLLPRI != 0 || told != 0 && !begins_with_it() {
        return Err(END);
    }
    Ok(wait::sleep(
        conn,
        bell::BY_SOCKET,
        wait::FOR_CREDIT,
        deadline,
        Some(NAP_NS),
    ))
}
