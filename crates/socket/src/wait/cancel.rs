//! Cancellation of threads.
//!
//! The C library's calls act on a cancellation that is pending before they do anything else. Ours sleep in such calls,
//! but seldom sleep: so they ask first, once the program has cancelled a thread at all.

use crate::real;
use crate::sys::threads;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

static USED: AtomicBool = AtomicBool::new(false);

/// The program is about to cancel a thread, which may be its only one: not every C library then says that there are
/// several.
pub fn requested() {
    threads::several();
    USED.store(true, Relaxed);
}

/// Ends the calling thread if it has been cancelled. Nothing may be owned.
#[inline]
pub fn point() {
    if USED.load(Relaxed) {
        real::test_cancel();
    }
}
