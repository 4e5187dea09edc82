//! When a source of an inbox is to be looked at.
//!
//! An edge tells of news. But a search that needs a larger buffer sets `SO_RCVLOWAT`, at which the kernel tells of the
//! bytes that are there as if they had just come: so where there are some, it counts whether they have become more.
//! Whether the socket can hold what is missing is not told by edges in any case, so such a source is looked at now and
//! then as well, less and less often.

use super::instant::Instant;
use super::wait;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Before the first look without news, and between those that have long found none.
const NAP: Duration = Duration::from_millis(1);
pub(super) const LONGEST_NAP: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Attention {
    /// Something may have come since the last look.
    news: bool,
    /// Bytes that could be received then, unless some have been since.
    there: Option<usize>,
    /// The next look without news, and how long after the last.
    due: Option<Instant>,
    nap: Duration,
}

impl Attention {
    /// Of a source that nobody has looked at.
    pub(super) fn new() -> Self {
        Self {
            news: true,
            there: None,
            due: None,
            nap: NAP,
        }
    }

    /// An edge has come, or more can be had than before.
    pub(super) fn note(&mut self) {
        self.news = true;
    }

    /// Bytes have been received, or the look has stopped at something.
    pub(super) fn forget(&mut self) {
        (self.there, self.nap) = (None, NAP);
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether a look is wanted now or at some time.
    pub(super) fn is_due(&self) -> bool {
        self.news || self.due.is_some()
    }

    /// Whether a look may find more than the last did, in a socket in which that has left bytes or has not.
    pub(super) fn begin(&mut self, fd: BorrowedFd<'_>, left: bool, now: Instant) -> bool {
        let due = self.due.is_some_and(|due| due <= now);
        if !self.news && !due {
            return false;
        }
        if left {
            let there = crate::readable(fd).ok();
            let same = there.is_some() && there == self.there;
            if same && !due && !wait::has_ended(fd) {
                self.news = false;
                return false;
            }
            self.nap = if same { LONGEST_NAP.min(self.nap * 2) } else { NAP };
            self.there = there;
        } else {
            (self.there, self.nap) = (None, NAP);
        }
        // Until the look has found all there is.
        self.news = true;
        self.due = None;
        true
    }

    /// A look is over, and another would find no more. `waits`: what is missing may be kept back by the bytes that are
    /// left.
    pub(super) fn rest(&mut self, waits: bool, now: Instant) {
        self.news = false;
        if waits {
            self.due = Some(now + self.nap);
        }
    }
}
