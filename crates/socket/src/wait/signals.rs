//! Which signal handlers ask for interrupted calls to be restarted.
//!
//! The kernel restarts a blocking `recv` after a handler installed with `SA_RESTART`, but never a `poll`, which is what
//! our waits are made of. So we keep count of the handlers of either kind. While there are only such with the flag, an
//! interrupted wait goes on; while there are only such without, it ends. Where a program has both, nobody can tell
//! afterwards which of them ran: then a receive sleeps in a call that the kernel restarts by itself (`mixed`). Calls
//! with a timeout (`SO_RCVTIMEO`) are never restarted by the kernel either.

use core::cell::Cell;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Bit N: signal N+1 has a handler without `SA_RESTART`.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);
/// Bit N: signal N+1 has a handler with `SA_RESTART`.
static RESTARTING: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The thread has changed handlers since it began to sleep: so one of them has that has interrupted the sleep.
    static CHANGED: Cell<bool> = const { Cell::new(false) };
}

/// Notes a successful `sigaction` with these flags; `handled`: the disposition is a function.
pub fn installed(signal: i32, handled: bool, flags: i32) {
    let Some(bit) = u32::try_from(signal - 1)
        .ok()
        .and_then(|shift| 1_u64.checked_shl(shift))
    else {
        return;
    };
    CHANGED.set(true);
    let restarts = flags & libc::SA_RESTART != 0;
    for (word, kind) in [(&INTERRUPTING, false), (&RESTARTING, true)] {
        if handled && restarts == kind {
            word.fetch_or(bit, Relaxed);
        } else {
            word.fetch_and(!bit, Relaxed);
        }
    }
}

/// What was asked for when a sleep began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    all_restart: bool,
}

/// Before a sleep that may be interrupted.
pub(crate) fn before_sleep() -> Before {
    CHANGED.set(false);
    Before {
        all_restart: all_restart(),
    }
}

impl Before {
    /// Whether the sleep, which was interrupted, goes on: as the handler asked when it was called, whatever it has
    /// changed since. `timed`: the call has a timeout.
    pub(crate) fn goes_on(self, timed: bool) -> bool {
        !timed && if CHANGED.get() { self.all_restart } else { all_restart() }
    }
}

fn all_restart() -> bool {
    INTERRUPTING.load(Relaxed) == 0
}

/// Whether some handlers ask for a restart and others do not.
#[inline]
pub(crate) fn mixed() -> bool {
    RESTARTING.load(Relaxed) != 0 && INTERRUPTING.load(Relaxed) != 0
}
