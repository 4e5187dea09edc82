//! Which signal handlers ask for interrupted calls to be restarted.
//!
//! The kernel restarts a blocking `recv` after a handler installed with `SA_RESTART`, but never a `poll`, which is what our waits
//! are made of. So we keep count of the handlers without the flag: while there are none, an interrupted wait goes on. Calls with a
//! timeout (`SO_RCVTIMEO`) are never restarted by the kernel either.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Bit N: signal N+1 has a handler without `SA_RESTART`.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// Notes a successful `sigaction` with these flags; `handled`: the disposition is a function.
pub fn installed(signal: i32, handled: bool, flags: i32) {
    let Some(bit) = u32::try_from(signal - 1)
        .ok()
        .and_then(|shift| 1_u64.checked_shl(shift))
    else {
        return;
    };
    if handled && flags & libc::SA_RESTART == 0 {
        INTERRUPTING.fetch_or(bit, Relaxed);
    } else {
        INTERRUPTING.fetch_and(!bit, Relaxed);
    }
}

/// Whether a wait that was interrupted goes on; `timed`: the call has a timeout.
pub(crate) fn all_restart(timed: bool) -> bool {
    !timed && INTERRUPTING.load(Relaxed) == 0
}
