//! Whether the process has several threads.

use core::ffi::c_char;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicU8};

/// `__libc_single_threaded` of the C library (version 2.32 and later), which it clears before it makes the second
/// thread.
static SINGLE: AtomicPtr<c_char> = AtomicPtr::new(SEVERAL.as_ptr().cast());
static SEVERAL: AtomicU8 = AtomicU8::new(0);

/// Finds out how the C library tells, when ours is loaded.
pub(crate) fn prepare() {
    // SAFETY: a valid name.
    let single = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__libc_single_threaded".as_ptr()) };
    if !single.is_null() {
        SINGLE.store(single.cast(), Relaxed);
    }
}

/// Whether the process has no other thread, as far as the C library knows; false where that cannot be asked.
#[inline]
pub fn single_threaded() -> bool {
    // SAFETY: a byte of the C library's or ours, which live as long as the process; no other thread writes to it while
    // it says that there is none.
    unsafe { AtomicU8::from_ptr(SINGLE.load(Relaxed).cast()) }.load(Relaxed) != 0
}

/// There may be threads that the C library does not know of, or one that has cancelled itself.
pub(crate) fn several() {
    SINGLE.store(SEVERAL.as_ptr().cast(), Relaxed);
}
