//! How often a connection looks at what costs time, and what its recent traffic was like.

use crate::conn::Conn;
use crate::memory::idle;
use crate::sys;
use core::sync::atomic::Ordering::Relaxed;
use viaduct_control::Reason;

/// Of calls that follow each other, so many do not read the clock.
const UNCHECKED: u32 = 3;
/// So many receives without a send in between are a stream and no conversation.
const STREAK: u32 = 64;
/// A lane in which nothing moves for so many nanoseconds is stuck, and no sleep for room in one is longer.
pub(crate) const STUCK_NS: u64 = 20_000_000;
/// How often a peer is probed that may be gone unseen, in nanoseconds.
const PROBE_NS: u64 = 1_000_000_000;
/// The first sleep for room in a lane whose receiver has no means to ring, in nanoseconds.
const FIRST_NAP_NS: u64 = 50_000;

/// How long a sleep may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bound {
    /// As long as the program says: whoever is waited for rings.
    Program,
    /// Somebody waits for room in a lane, whose receiver may die without a sign.
    Room,
    /// Likewise, and the receiver has no means to ring.
    UnrungRoom,
}

/// The lengths of the sleeps of one wait.
#[derive(Debug)]
pub(crate) struct Naps {
    next_ns: u64,
}

impl Naps {
    /// Begins a wait.
    pub(crate) fn new() -> Self {
        Self { next_ns: FIRST_NAP_NS }
    }

    /// Of the time `left` (`None`: for ever), how much to sleep now. The caller is about to.
    pub(crate) fn next(&mut self, bound: Bound, left: Option<u64>) -> Option<u64> {
        let most = match bound {
            Bound::Program => match idle::tend() {
                Some(most) => most,
                None => return left,
            },
            Bound::Room => STUCK_NS,
            Bound::UnrungRoom => {
                let nap = self.next_ns;
                self.next_ns = (nap * 2).min(STUCK_NS);
                nap
            }
        };
        Some(left.map_or(most, |left| left.min(most)))
    }
}

impl Conn {
    /// Whether the kernel connection was last looked at longer than `us` microseconds ago; if so, now counts as a look.
    #[inline]
    pub(crate) fn due_for_check(&self, us: u64) -> bool {
        let now = sys::ticks();
        let due = self.is_due(now, us);
        if due {
            self.checked_at.store(now, Relaxed);
        }
        due
    }

    /// Whether the last mark behind the peer's FIN was put longer than `us` microseconds ago.
    pub(crate) fn may_mark(&self, us: u64) -> bool {
        sys::ticks().wrapping_sub(self.marked_at.load(Relaxed)) > us * sys::ticks_per_us()
    }

    /// The same; if so, the next is due as long after now.
    pub(crate) fn is_due_for_mark(&self, us: u64) -> bool {
        let due = self.may_mark(us);
        if due {
            self.marked_at.store(sys::ticks(), Relaxed);
        }
        due
    }

    /// The kernel has just said that there are bytes or room, and nothing of an end.
    pub(crate) fn heard(&self) {
        self.heard_at.store(sys::ticks(), Relaxed);
    }

    /// Waits have told of an error or an end, or a mark may have been answered with one: whoever sends next asks the
    /// kernel which, if there is no room or the peer has ended.
    #[cold]
    pub(crate) fn look_soon(&self) {
        for word in [&self.checked_at, &self.heard_at] {
            word.store(0, Relaxed);
        }
        self.unchecked.store(0, Relaxed);
    }

    #[inline]
    fn is_due(&self, now: u64, us: u64) -> bool {
        now.wrapping_sub(self.checked_at.load(Relaxed)) > us * sys::ticks_per_us()
    }

    fn has_heard(&self, us: u64) -> bool {
        sys::ticks().wrapping_sub(self.heard_at.load(Relaxed)) <= us * sys::ticks_per_us()
    }

    /// Like [`due_for_check`](Self::due_for_check) with every call, but where calls follow each other fast, the clock
    /// is only read with every fourth.
    #[inline]
    pub(crate) fn due_for_check_of_many(&self, us: u64) -> bool {
        !self.may_go_unchecked(us) && self.due_for_check(us)
    }

    /// Whether [`due_for_check_of_many`](Self::due_for_check_of_many) would say no. Counts as asking it only then.
    #[inline(always)]
    pub(crate) fn may_go_unchecked(&self, us: u64) -> bool {
        let left = self.unchecked.load(Relaxed);
        let next = match left.checked_sub(1) {
            Some(next) => next,
            None if self.is_due(sys::ticks(), us) && !self.has_heard(us) => return false,
            None => UNCHECKED,
        };
        self.unchecked.store(next, Relaxed);
        true
    }

    /// So many bytes have been received from the lane. The receiving direction is owned.
    #[inline]
    pub(crate) fn received_again(&self, bytes: usize) {
        self.rest.count(bytes);
        self.streak.store(self.streak.load(Relaxed).saturating_add(1), Relaxed);
    }

    /// Bytes have been sent on the lane.
    #[inline]
    pub(crate) fn sent_again(&self) {
        if self.streak.load(Relaxed) != 0 {
            self.streak.store(0, Relaxed);
        }
    }

    /// Whether bytes have been received from the lane since some were sent on it.
    #[inline]
    pub(crate) fn has_received_since(&self) -> bool {
        self.streak.load(Relaxed) != 0
    }

    /// Whether this end receives message after message without answering.
    #[inline]
    pub(crate) fn only_receives(&self) -> bool {
        self.streak.load(Relaxed) >= STREAK
    }

    /// Notes that the lane was full too long; promotions wait a while.
    pub(crate) fn note_stall(&self) {
        self.stalled_at.store(sys::now_ns(), Relaxed);
        self.set_reason(Reason::LaneStall);
    }

    /// Whether the receiver of a full lane has made no progress for [`STUCK_NS`], as far as this has been called.
    pub(crate) fn stuck_at(&self, progress: u64) -> bool {
        let mark = progress.wrapping_add(1);
        let now = sys::now_ns();
        if self.stuck_at.swap(mark, Relaxed) != mark {
            self.stuck_since.store(now, Relaxed);
        }
        now.saturating_sub(self.stuck_since.load(Relaxed)) >= STUCK_NS
    }

    /// Whether a peer that may be gone unseen was last probed a second ago; if so, it is now.
    pub(crate) fn is_due_for_probe(&self) -> bool {
        let now = sys::now_ns();
        let due = now.saturating_sub(self.probed_at.load(Relaxed)) >= PROBE_NS;
        if due {
            self.probed_at.store(now, Relaxed);
        }
        due
    }

    /// Whether the last stall is long enough ago to try the lane again.
    pub(crate) fn stall_over(&self) -> bool {
        let stalled = self.stalled_at.load(Relaxed);
        if stalled == 0 {
            return true;
        }
        let over = sys::now_ns().saturating_sub(stalled) > 2_000_000;
        if over {
            self.stalled_at.store(0, Relaxed);
        }
        over
    }
}
