//! Where the unreceived bytes of a connection with a lane lie.

use super::{Stretches, narrow};
use crate::search::kernel::peek_from;
use crate::sys::memory::BUFFER;
use crate::sys::{Errno, raw};
use crate::{kernel, receive, send};
use libc::c_int;
use viaduct_control::counters::Path;
use viaduct_stream::{MARK_BACK, Source};

/// Where one part's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Kernel,
    Lane,
}

/// A part of what is unreceived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) place: Place,
    /// Bytes of it that are there.
    pub(super) ready: u64,
    /// Bytes of it that there will ever be; `u64::MAX` for the last.
    pub(super) len: u64,
    /// What its place holds before it.
    pub(super) from: u64,
}

/// What is unreceived, in the stream's order; whatever is not in it raises one of the counts, which were taken first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    pub(super) all: [Part; 3],
    /// What the lane had published.
    pub(super) published: u64,
    /// Bytes that the kernel held, if that matters.
    pub(super) queued: u64,
}

impl Part {
    const NONE: Self = Self {
        place: Place::Lane,
        ready: 0,
        len: 0,
        from: 0,
    };

    /// A part that more may follow to.
    fn open(place: Place, ready: u64) -> Self {
        Self {
            place,
            ready,
            len: u64::MAX,
            from: 0,
        }
    }
}

impl Stretches<'_> {
    /// Bytes in the lane, as far as that matters: at least so many, or all.
    pub(super) fn in_lane(&self, enough: usize) -> Result<u64, Errno> {
        self.lane
            .readable_or(enough)
            .map(|bytes| bytes as u64)
            .map_err(|_| send::violated(self.conn))
    }

    /// The parts, by the receivers' law: bytes of the kernel's are counted before the epoch is looked at.
    /// `enough`: no more bytes than so many matter.
    pub(super) fn parts(&self, enough: u64) -> Result<Parts, Errno> {
        loop {
            let one = |part, published, queued| Parts {
                all: [part, Part::NONE, Part::NONE],
                published,
                queued,
            };
            match self.incoming.source() {
                Source::Lane => {
                    let ready = self.in_lane(narrow(enough))?;
                    return Ok(one(
                        Part::open(Place::Lane, ready),
                        self.lane.head().wrapping_add(ready),
                        0,
                    ));
                }
                Source::LaneThenRaw => {
                    let published = self.lane.published();
                    let ready = self.in_lane(usize::MAX)?;
                    if ready == 0 {
                        self.incoming.lane_drained();
                        self.conn.receives_on(Path::Tcp);
                        continue;
                    }
                    let rest = Part {
                        len: ready,
                        ..Part::open(Place::Lane, ready)
                    };
                    let queued = self.raw_bytes();
                    return Ok(Parts {
                        all: [rest, Part::open(Place::Kernel, queued), Part::NONE],
                        published,
                        queued,
                    });
                }
                Source::RawUntil(until) => {
                    let left = receive::approach(self.conn, &self.incoming, until)?;
                    if left != 0 {
                        return self.around_promotion(left);
                    }
                }
                Source::Raw => {
                    self.conn.pay_ready(self.guard);
                    let published = self.lane.published();
                    let queued = self.raw_bytes();
                    if self.incoming.source() == Source::Raw {
                        return Ok(one(Part::open(Place::Kernel, queued), published, queued));
                    }
                }
            }
        }
    }

    /// Bytes that the kernel holds, all raw. Behind urgent data it counts none until the first of them has been
    /// received.
    fn raw_bytes(&self) -> u64 {
        let fd = self.conn.fd();
        match kernel::queued(fd) as u64 {
            0 if kernel::is_at_mark(fd) && raw::poll_now(fd, libc::POLLIN) != 0 => 1,
            queued => queued,
        }
    }

    /// The parts while `left` raw bytes stand before a promotion.
    pub(super) fn around_promotion(&self, left: u64) -> Result<Parts, Errno> {
        let published = self.lane.published();
        let queued = kernel::queued(self.conn.fd()) as u64;
        let before = Part {
            len: left,
            ..Part::open(Place::Kernel, left.min(queued))
        };
        // The lane is looked at after the mark that ends its stretch: all of that has been published by then.
        let back = self.find_back(left, queued)?;
        let lane = Part::open(Place::Lane, self.in_lane(usize::MAX)?);
        let all = match back {
            None => [before, lane, Part::NONE],
            Some(from) => [
                before,
                Part {
                    len: lane.ready,
                    ..lane
                },
                Part {
                    from,
                    ..Part::open(Place::Kernel, queued.saturating_sub(from))
                },
            ],
        };
        Ok(Parts { all, published, queued })
    }

    /// How many of the `queued` bytes of the kernel's stand before what is raw again, if the lane's stretch has ended;
    /// the first `left` are raw and marks follow.
    fn find_back(&self, left: u64, queued: u64) -> Result<Option<u64>, Errno> {
        let (fd, mut at) = (self.conn.fd(), left);
        let mut marks = [0; 512];
        let mut found = None;
        while found.is_none() && at < queued {
            let offset = c_int::try_from(at).map_err(|_| libc::ENOBUFS)?;
            if !peek_from(fd, self.area, offset) {
                // Linux before 6.9: as far as the buffer reaches.
                self.peeked.forget();
                let seen = self.peeked.buffer.peek(fd, BUFFER).unwrap_or(0);
                let back = self.peeked.buffer.find(MARK_BACK, narrow(at), seen);
                return Ok(back.map(|index| index as u64 + 1));
            }
            let Ok(seen @ 1..) = raw::recv(fd, &mut marks, libc::MSG_PEEK | libc::MSG_DONTWAIT) else {
                break;
            };
            let ends = |mark: &u8| *mark == MARK_BACK;
            found = marks
                .iter()
                .take(seen)
                .position(ends)
                .map(|index| at + index as u64 + 1);
            at += seen as u64;
        }
        peek_from(fd, self.area, 0);
        Ok(found)
    }

    /// The part that position `at` is in, how far into its place, and how many bytes are there from it on.
    pub(super) fn locate(&self, parts: &Parts, at: u64) -> (Place, u64, u64) {
        let mut into = at.saturating_sub(self.base());
        for part in &parts.all {
            if into < part.len {
                return (part.place, part.from + into, part.ready.saturating_sub(into));
            }
            into -= part.len;
        }
        (Place::Lane, 0, 0)
    }

    /// How many bytes the kernel must hold for what it lacks of those before `end`; `None`: it is the lane that lacks
    /// some.
    pub(super) fn lacks_in_kernel(&self, parts: &Parts, end: u64) -> Option<u64> {
        let mut needed = end.saturating_sub(self.base());
        for part in &parts.all {
            let here = needed.min(part.len);
            if here > part.ready {
                return (part.place == Place::Kernel).then(|| part.from.saturating_add(here));
            }
            needed -= here;
        }
        None
    }

    /// Whether everything from `from` on up to `end` is there. Kernel bytes before the lane's may still be on their
    /// way, which keeps nobody from those behind.
    pub(super) fn reaches(&self, parts: &Parts, from: u64, end: u64) -> bool {
        let (from, end) = (from.saturating_sub(self.base()), end.saturating_sub(self.base()));
        let mut before = 0_u64;
        for part in &parts.all {
            let behind = before.saturating_add(part.len);
            if from < behind && end.min(behind) > before.saturating_add(part.ready) {
                return false;
            }
            if end <= behind {
                return true;
            }
            before = behind;
        }
        false
    }
}
