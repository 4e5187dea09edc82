//! By what a connection's peer rings this end, and whether that is counted on.

use crate::conn::pace::STUCK_NS;
use crate::sys;
use crate::wait::bell::RUNG_BY_NONE;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// For how long a bell that does not ring is first not counted on, in nanoseconds, and how often that is doubled.
const REST_NS: u64 = 1_000_000_000;
const DOUBLED: u32 = 6;
/// What is found of several threads, or of sleeps that the program has bounded, is one finding if it is no further
/// apart.
const ONE_FINDING_NS: u64 = STUCK_NS / 2;

/// What the peer rings.
#[derive(Debug)]
pub(crate) struct Rung {
    /// See [`Conn::known_bell`](crate::conn::Conn::known_bell).
    by: AtomicU32,
    /// The same, while it is not counted on.
    foregone: AtomicU32,
    /// Since when it is doubted or not counted on, in nanoseconds; 0: it is not.
    since: AtomicU64,
    /// How often running it has been given up.
    times: AtomicU32,
}

impl Rung {
    pub(crate) const fn none() -> Self {
        Self {
            by: AtomicU32::new(RUNG_BY_NONE),
            foregone: AtomicU32::new(RUNG_BY_NONE),
            since: AtomicU64::new(0),
            times: AtomicU32::new(0),
        }
    }

    /// The peer rings by this from now on.
    pub(crate) fn begin(&self, by: u32) {
        self.foregone.store(RUNG_BY_NONE, Relaxed);
        self.since.store(0, Relaxed);
        self.times.store(0, Relaxed);
        self.by.store(by, Relaxed);
    }

    /// By what it rings now. One that has not been counted on for a while is tried again: who could not ring, having no
    /// place for the bell or a full sending end, may be able to by now, or was merely late.
    #[inline]
    pub(crate) fn by(&self) -> u32 {
        let by = self.by.load(Relaxed);
        if by == RUNG_BY_NONE && self.foregone.load(Relaxed) != RUNG_BY_NONE {
            self.try_again();
            return self.by.load(Relaxed);
        }
        by
    }

    /// Doubted still: the first sleep for room that it does not end gives it up again.
    #[cold]
    fn try_again(&self) {
        let now = sys::now_ns();
        let rest = REST_NS << self.times.load(Relaxed).saturating_sub(1).min(DOUBLED);
        if now.saturating_sub(self.since.load(Relaxed)) >= rest {
            self.since.store(now, Relaxed);
            // Of several threads that come here at once one finds it.
            let by = self.foregone.swap(RUNG_BY_NONE, Relaxed);
            if by != RUNG_BY_NONE {
                self.by.store(by, Relaxed);
            }
        }
    }

    /// Whether it is not known to ring.
    pub(crate) fn is_doubted(&self) -> bool {
        self.since.load(Relaxed) != 0
    }

    /// It has rung.
    pub(crate) fn rang(&self) {
        self.since.store(0, Relaxed);
        self.times.store(0, Relaxed);
    }

    /// It was to ring, and has not. Twice running: it is not counted on for a while. The sending direction is owned.
    pub(crate) fn went_unrung(&self) {
        let now = sys::now_ns();
        let since = self.since.load(Relaxed);
        if since == 0 {
            self.since.store(now, Relaxed);
        } else if now.saturating_sub(since) >= ONE_FINDING_NS && self.by.load(Relaxed) != RUNG_BY_NONE {
            self.since.store(now, Relaxed);
            self.times.store(self.times.load(Relaxed).saturating_add(1), Relaxed);
            self.foregone.store(self.by.swap(RUNG_BY_NONE, Relaxed), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::bell::RUNG_BY_EVENTFD;

    /// So long ago is what has been noted last.
    fn pass(rung: &Rung, ns: u64) {
        rung.since.store(rung.since.load(Relaxed).saturating_sub(ns), Relaxed);
    }

    #[test]
    fn a_bell_that_is_not_rung_is_tried_again_ever_more_seldom() {
        let rung = Rung::none();
        rung.begin(RUNG_BY_EVENTFD);
        rung.went_unrung();
        rung.went_unrung();
        assert_eq!(rung.by(), RUNG_BY_EVENTFD, "two threads have found the same");
        let mut rest = REST_NS;
        for _ in 0..=DOUBLED + 2 {
            pass(&rung, STUCK_NS);
            rung.went_unrung();
            pass(&rung, rest - REST_NS / 2);
            assert_eq!(rung.by(), RUNG_BY_NONE);
            pass(&rung, REST_NS / 2);
            assert_eq!(rung.by(), RUNG_BY_EVENTFD);
            rest = (rest * 2).min(REST_NS << DOUBLED);
        }
        rung.rang();
        rung.went_unrung();
        assert_eq!(rung.by(), RUNG_BY_EVENTFD, "once may be by chance");
        pass(&rung, STUCK_NS);
        rung.went_unrung();
        assert_eq!(rung.by(), RUNG_BY_NONE);
        pass(&rung, REST_NS);
        assert_eq!(
            rung.by(),
            RUNG_BY_EVENTFD,
            "it has rung, so not for longer than at first"
        );
        rung.begin(RUNG_BY_NONE);
        assert_eq!(rung.by(), RUNG_BY_NONE);
    }
}
