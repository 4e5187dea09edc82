//! Closing what processes have sent, without waiting for anybody; `docs/threat-model.md` has what this does not cover.
//!
//! A process may send any descriptor that it has, and viaductd's may then be the last of its file. To close that of a
//! socket takes as long as its owner has said (`SO_LINGER`), but no longer than to the next signal: while there is
//! something to do one comes again and again. The server of a FUSE file is told when a descriptor is closed, and no
//! signal ends the wait for its answer. So what may be such a file is not closed, and its user turned away once that
//! has happened often enough. Of a socket nothing is asked or changed: somebody may hold its lock.

use anyhow::Context;
use nix::sys::signal::{SigEvent, SigSet, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use rustix::fs::{AtFlags, FileType, StatxFlags, fcntl_get_seals, statx};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long a call may wait that a signal interrupts.
const PATIENCE: Duration = Duration::from_micros(250);
/// Descriptors of one user that are kept because closing them might wait.
const KEPT_PER_USER: usize = 16;

/// Keeps the loop from waiting where it closes something.
#[derive(Debug)]
pub(crate) struct Closing {
    timer: Timer,
    kept: HashMap<u32, Vec<OwnedFd>>,
}

impl Closing {
    /// # Errors
    /// There is no timer to be had, or the signal cannot be caught.
    pub(crate) fn new() -> anyhow::Result<Self> {
        // A signal that is ignored interrupts nothing.
        signal_hook::flag::register(libc::SIGALRM, Arc::new(AtomicBool::new(false))).context("SIGALRM")?;
        // Whoever started viaductd may have blocked it.
        SigSet::from(Signal::SIGALRM).thread_unblock().context("SIGALRM")?;
        let signal = SigEvent::new(SigevNotify::SigevSignal {
            signal: Signal::SIGALRM,
            si_value: 0,
        });
        Ok(Self {
            timer: Timer::new(ClockId::CLOCK_MONOTONIC, signal).context("timer")?,
            kept: HashMap::new(),
        })
    }

    /// From now on waits are interrupted, until [`Closing::rest`].
    pub(crate) fn hurry(&mut self) {
        self.set(Expiration::Interval(PATIENCE.into()));
    }

    /// Interrupts nothing any more.
    pub(crate) fn rest(&mut self) {
        // An expiration of nought disarms it, timer_settime(2).
        self.set(Expiration::OneShot(Duration::ZERO.into()));
    }

    fn set(&mut self, expiration: Expiration) {
        if let Err(error) = self.timer.set(expiration, TimerSetTimeFlags::empty()) {
            tracing::error!("timer: {error}");
        }
    }

    /// Closes what a process of `user` has sent, but for what might have viaductd wait. Returns whether there was
    /// nothing of that kind.
    pub(crate) fn discard(&mut self, user: u32, sent: impl IntoIterator<Item = OwnedFd>) -> bool {
        let mut harmless = true;
        for descriptor in sent {
            if !has_nobody_to_tell(descriptor.as_fd()) {
                harmless = false;
                let kept = self.kept.entry(user).or_default();
                kept.push(descriptor);
                if kept.len() == KEPT_PER_USER {
                    tracing::warn!(
                        user,
                        "not served any more: has sent {KEPT_PER_USER} files that may not let go"
                    );
                }
            }
        }
        harmless
    }

    /// Whether `user` has sent too much that cannot be closed.
    pub(crate) fn bars(&self, user: u32) -> bool {
        self.kept.get(&user).is_some_and(|kept| kept.len() >= KEPT_PER_USER)
    }
}

/// Whether the file is one of the kernel's own kinds, to which nobody listens when a descriptor of it is closed:
/// sockets, pipes, eventfds and the like, files in shared memory.
fn has_nobody_to_tell(descriptor: BorrowedFd<'_>) -> bool {
    // What the kernel knows is enough: a server that is asked may let that wait as well.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Ok(found) = statx(descriptor, c"", flags, StatxFlags::TYPE) else {
        return false;
    };
    let mode = u32::from(found.stx_mode);
    let kind = FileType::from_raw_mode(mode);
    let is_anonymous = mode & libc::S_IFMT == 0;
    is_anonymous || matches!(kind, FileType::Socket | FileType::Fifo) || fcntl_get_seals(descriptor).is_ok()
}
