//! Direct search on a connection with a lane, across the stretches that its bytes travelled on.
//!
//! At any time the unreceived bytes lie in at most two parts: what is left of the present stretch, and what is there of
//! the next. The first byte of the first part is the area's base. Bytes received at the head are given up at once, so what the rest
//! of this crate computes of readiness stays right; blocks that lie wholly in a hole go back to the sender at once.

use super::area::Area;
use super::kernel::{peek_at_offset, peek_from};
use super::waiting::{Mark, refuse_if_full};
use super::{Ask, Step};
use crate::conn::{self, Conn};
use crate::lock::Guard;
use crate::marks::{Marks, look_at_marks};
use crate::sys::memory::discard;
use crate::sys::{Errno, raw};
use crate::{counters, kernel, receive, send};
use core::sync::atomic::Ordering::Relaxed;
use viaduct_channel::Receiver;
use viaduct_control::counters::{Path, slot};
use viaduct_stream::{Incoming, Source};

/// Where one part's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Kernel,
    Lane,
}

/// A part of what is unreceived.
#[derive(Clone, Copy, Debug)]
struct Part {
    place: Place,
    /// Bytes of it that are there.
    ready: u64,
    /// Bytes of it that there will ever be; `u64::MAX` for the last.
    len: u64,
}

impl Part {
    const NONE: Self = Self {
        place: Place::Lane,
        ready: 0,
        len: 0,
    };
}

/// The receiving direction of an attached connection, owned.
#[derive(Debug)]
pub(crate) struct Stretches<'a> {
    conn: &'a Conn,
    guard: &'a Guard<'a>,
    area: &'a Area,
    lane: Receiver<'a>,
    incoming: Incoming<'a>,
}

impl<'a> Stretches<'a> {
    pub(crate) fn new(conn: &'a Conn, guard: &'a Guard<'a>, area: &'a Area) -> Option<Self> {
        let lane = conn.segment(guard)?.receiver(conn.side());
        Some(Self {
            conn,
            guard,
            area,
            lane,
            incoming: Incoming::new(lane),
        })
    }

    fn base(&self) -> u64 {
        self.area.base.load(Relaxed)
    }

    fn in_lane(&self) -> Result<u64, Errno> {
        self.lane
            .readable()
            .map(|bytes| bytes as u64)
            .map_err(|_| send::violated(self.conn))
    }

    /// The parts, by the receivers' law: bytes of the kernel's are counted before the epoch is looked at.
    fn parts(&self) -> Result<[Part; 2], Errno> {
        let open = |place, ready| Part {
            place,
            ready,
            len: u64::MAX,
        };
        loop {
            match self.incoming.source() {
                Source::Lane => return Ok([open(Place::Lane, self.in_lane()?), Part::NONE]),
                Source::LaneThenRaw => {
                    let ready = self.in_lane()?;
                    if ready == 0 {
                        self.incoming.lane_drained();
                        self.conn.receives_on(Path::Tcp);
                        continue;
                    }
                    let rest = Part {
                        place: Place::Lane,
                        ready,
                        len: ready,
                    };
                    return Ok([rest, open(Place::Kernel, kernel::queued(self.conn.fd()) as u64)]);
                }
                Source::RawUntil(until) => {
                    if receive::approach(self.conn, &self.incoming, until)? {
                        continue;
                    }
                    let left = until.saturating_sub(receive::position(self.conn));
                    let rest = Part {
                        place: Place::Kernel,
                        ready: left.min(kernel::queued(self.conn.fd()) as u64),
                        len: left,
                    };
                    return Ok([rest, open(Place::Lane, self.in_lane()?)]);
                }
                Source::Raw => {
                    self.conn.pay_ready(self.guard);
                    let ready = kernel::queued(self.conn.fd()) as u64;
                    if self.incoming.source() == Source::Raw {
                        return Ok([open(Place::Kernel, ready), Part::NONE]);
                    }
                }
            }
        }
    }

    /// The part that position `at` is in, how far in, and how many bytes are there from it on.
    fn locate(&self, parts: &[Part; 2], at: u64) -> (Place, u64, u64) {
        let [first, second] = parts;
        let into = at.saturating_sub(self.base());
        if into < first.len {
            return (first.place, into, first.ready.saturating_sub(into));
        }
        let into = into - first.len;
        (second.place, into, second.ready.saturating_sub(into))
    }

    /// Takes in order what no hole is near, which is what most calls do; 0: it is not so simple.
    fn in_order(&self, ask: &Ask<'_>) -> Result<usize, Errno> {
        let holes = &self.area.holes;
        let simple = ask.offset == 0 && ask.takes() && self.base() == holes.head();
        if !simple || self.incoming.source() != Source::Lane {
            return Ok(0);
        }
        let want = ask.vector.len().saturating_sub(ask.skip);
        let most = narrow((want as u64).min(self.in_lane()?));
        if most as u64 >= holes.run() {
            return Ok(0);
        }
        let got = self.copy(ask, 0, 0, most);
        receive::consume(self.conn, &self.lane, got);
        holes.advance(got as u64);
        self.area.base.store(holes.head(), Relaxed);
        Ok(got)
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
        let simply = self.in_order(ask)?;
        if simply > 0 {
            return Ok(Step::Bytes(simply));
        }
        self.settle()?;
        let holes = &self.area.holes;
        let want = ask.vector.len().saturating_sub(ask.skip);
        let end = holes
            .position(ask.offset.saturating_add(want as u64 - 1))
            .saturating_add(1);
        if ask.takes() && !holes.has_room(holes.position(ask.offset), end) {
            return Err(libc::ENOBUFS);
        }
        let parts = self.parts()?;
        if ask.whole && !self.reaches(&parts, end) {
            return self.lacking(&parts, end, last);
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
                Place::Kernel => match peek_at_offset(self.conn.fd(), self.area, into, ask, done, most) {
                    Ok(got) => got,
                    Err(_) if done > 0 => break,
                    Err(libc::EAGAIN | libc::EINTR) => break,
                    Err(errno) => return Err(errno),
                },
            };
            if got == 0 {
                break;
            }
            if ask.takes() {
                self.take(&parts, at, at + got as u64);
            }
            done += got;
        }
        if done > 0 {
            if ask.takes() {
                self.settle()?;
            }
            return Ok(Step::Bytes(done));
        }
        self.lacking(&parts, holes.position(ask.offset).saturating_add(1), last)
    }

    /// Whether everything before `end` that is not in a hole is there.
    fn reaches(&self, parts: &[Part; 2], end: u64) -> bool {
        let [first, second] = parts;
        let needed = end.saturating_sub(self.base());
        if needed <= first.len {
            needed <= first.ready
        } else {
            // Kernel bytes before the lane's may still be on their way.
            first.ready == first.len && needed - first.len <= second.ready
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

    /// Notes that `from..to` has been received, and gives back the blocks that are whole now.
    fn take(&self, parts: &[Part; 2], from: u64, to: u64) {
        let Ok(hole) = self.area.holes.take(from, to) else {
            return;
        };
        if hole.1 <= self.area.holes.head() {
            return;
        }
        let [first, _] = parts;
        let (begin, limit) = match first.place {
            Place::Lane => (self.base(), first.ready),
            Place::Kernel => (self.base().saturating_add(first.len), u64::MAX),
        };
        // Blocks further away were whole before, or are not yet.
        let block = self.lane.block_size() as u64;
        let near = |at: u64| at.max(begin).saturating_sub(begin).min(limit);
        let from = near(hole.0.max(from.saturating_sub(block)));
        let to = near(hole.1.min(to.saturating_add(block)));
        let head = self.lane.head();
        if from < to && self.lane.release(head + from, head + to) != 0 {
            let bits = self.lane.take_credit_wait();
            if bits != 0 {
                receive::ring_for_credit(self.conn, bits);
            }
        }
    }

    /// Gives up what has been received at the front, stretch by stretch.
    pub(crate) fn settle(&self) -> Result<(), Errno> {
        loop {
            let owed = self.area.holes.head().saturating_sub(self.base());
            if owed == 0 {
                return Ok(());
            }
            let [first, _] = self.parts()?;
            let now = narrow(owed.min(first.ready));
            if now == 0 {
                return Ok(());
            }
            let gone = match first.place {
                Place::Lane => {
                    receive::consume(self.conn, &self.lane, now);
                    now
                }
                Place::Kernel => match discard(self.conn.fd(), now) {
                    Ok(0) | Err(libc::EAGAIN | libc::EINTR) => return Ok(()),
                    Ok(gone) => {
                        self.conn.advance(gone);
                        counters::add(self.conn, slot::BYTES_RECEIVED, gone as u64);
                        gone
                    }
                    Err(errno) => return Err(errno),
                },
            };
            self.area.base.fetch_add(gone as u64, Relaxed);
        }
    }

    /// The bytes before `end` are not all there: is that the end, too much, or just not yet?
    fn lacking(&self, parts: &[Part; 2], end: u64, last: bool) -> Result<Step, Errno> {
        let [first, second] = parts;
        let queued = if first.place == Place::Kernel {
            first.ready
        } else {
            second.ready
        };
        let not_yet = Step::Stretches {
            lane: self.lane.published(),
            kernel: if first.place == Place::Lane && first.len == u64::MAX {
                0
            } else {
                queued
            },
        };
        if self.incoming.source() == Source::Lane {
            let needed = self.lane.head() + end.saturating_sub(self.base());
            if !self.lane.can_hold(needed) && !self.ask_for_kernel(end) {
                return Err(libc::ENOBUFS);
            }
            let before = self.lane.published();
            return match look_at_marks(self.conn, &self.incoming, &self.lane)? {
                Marks::None => Ok(not_yet),
                Marks::End => Ok(Step::End),
                Marks::Changed if self.incoming.source() != Source::Lane || self.lane.published() != before => {
                    Ok(Step::Again)
                }
                Marks::Changed if self.conn.flag(conn::PEER_FIN) => match self.conn.has_error() {
                    true => Err(self.conn.take_error()),
                    false => Ok(Step::End),
                },
                Marks::Changed => Ok(not_yet),
            };
        }
        let over = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        if raw::poll_now(self.conn.fd(), over) & over != 0 {
            let now = self.parts()?;
            let grown =
                (0..2).any(|part| now.get(part).map(|part| part.ready) != parts.get(part).map(|part| part.ready));
            return Ok(if grown { Step::Again } else { Step::End });
        }
        if last && let (Place::Kernel, into, _) = self.locate(parts, end - 1) {
            let _mark = Mark::at(self.conn.fd(), self.area, into + 1);
            refuse_if_full(self.conn.fd(), self.area, into + 1)?;
        }
        Ok(not_yet)
    }

    /// The lane can never hold so much. If the program has made the socket's buffer large enough for all of it, the stream goes on
    /// there.
    fn ask_for_kernel(&self, end: u64) -> bool {
        // The kernel counts what surrounds the bytes too.
        if narrow(end.saturating_sub(self.base()))
            > usize::try_from(kernel::buffer_size(self.conn.fd())).unwrap_or(0) / 2
        {
            return false;
        }
        self.incoming.request_raw(true);
        let _ = raw::eventfd_ring(self.conn.peer_bell());
        true
    }
}

fn narrow(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
