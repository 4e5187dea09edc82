//! The same calls without the C library's frame: the hook enters the kernel itself. For hooks that have something to do
//! afterwards; the others jump to the C library's function and leave nothing open.
//!
//! Kernels that guard their own returns leave the processor without our callers' addresses, so each function that is
//! open during a system call returns by a misprediction. A hook that has something to do afterwards stays open as well,
//! beside the C library's function; without that one there is one frame, as there is natively.
//!
//! What that function does beside entering the kernel is to act on the cancellation of a thread. So whoever may wait,
//! and may be cancelled meanwhile, goes through it, and so does everybody if it is not the C library's, but another
//! preloaded library's.

use crate::sys::{raw, set_errno, threads};
use crate::wait::cancel;
use core::ffi::{CStr, c_int, c_long, c_void};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use libc::{epoll_event, iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};

/// Whether the functions behind ours are the C library's.
static ARE_ITS_OWN: AtomicBool = AtomicBool::new(false);

/// Whether a call that waits as told may do without the C library. Of several threads each ends here if it has been
/// cancelled; one that is alone and has cancelled itself counts as several (`cancel::requested`).
#[inline(always)]
fn may_be_bare(waits: impl FnOnce() -> bool) -> bool {
    if !ARE_ITS_OWN.load(Relaxed) {
        return false;
    }
    if threads::single_threaded() {
        return true;
    }
    if waits() {
        return false;
    }
    cancel::point();
    true
}

/// An argument as the kernel takes it.
trait Word {
    fn word(self) -> usize;
}

macro_rules! words {
    ($($type:ty),*) => {$(
        impl Word for $type {
            #[inline(always)]
            fn word(self) -> usize {
                self as usize
            }
        }
    )*};
}

words!(c_int, usize, socklen_t, nfds_t);

impl<T> Word for *const T {
    #[inline(always)]
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

impl<T> Word for *mut T {
    #[inline(always)]
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

/// Enters the kernel and answers as the C library does.
///
/// # Safety
/// As for the system call.
#[inline(always)]
unsafe fn ask(number: c_long, words: [usize; 6]) -> isize {
    // SAFETY: passed on to the caller.
    match unsafe { raw::call(number, words) } {
        Ok(value) => value.cast_signed(),
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

macro_rules! bare {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $number:ident + [$($rest:literal),*];)*) => {
        /// Points of cancellation all: their names, and the functions behind ours.
        const POINTS: &[(&CStr, fn() -> *mut c_void)] = &[$((super::$name::NAME, super::$name::find)),*];

        $(
            /// The C library's function of this name, or what it asks of the kernel; `waits`: whether it may wait.
            ///
            /// # Safety
            /// As for the function.
            #[inline(always)]
            pub unsafe fn $name(waits: impl FnOnce() -> bool, $($argument: $type),*) -> $result {
                if may_be_bare(waits) {
                    // SAFETY: the function's system call with its arguments, for which the caller vouches.
                    unsafe { ask(libc::$number, [$($argument.word(),)* $($rest),*]) as $result }
                } else {
                    // SAFETY: passed on to the caller.
                    unsafe { super::$name($($argument),*) }
                }
            }
        )*
    };
}

bare! {
    read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t = SYS_read + [0, 0, 0];
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = SYS_readv + [0, 0, 0];
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t = SYS_recvfrom + [0, 0];
    recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t = SYS_recvfrom + [];
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = SYS_recvmsg + [0, 0, 0];
    write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t = SYS_write + [0, 0, 0];
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = SYS_writev + [0, 0, 0];
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t = SYS_sendto + [0, 0];
    sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t = SYS_sendto + [];
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = SYS_sendmsg + [0, 0, 0];
    poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int = SYS_poll + [0, 0, 0];
    epoll_wait(set: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int) -> c_int = SYS_epoll_wait + [0, 0];
}

/// The C library's function of this name, or what it asks of the kernel. No point of cancellation.
///
/// # Safety
/// As for the function.
#[inline(always)]
pub unsafe fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if ARE_ITS_OWN.load(Relaxed) {
        let words = [set.word(), operation.word(), fd.word(), event.word(), 0, 0];
        // SAFETY: the function's system call with its arguments, for which the caller vouches.
        unsafe { ask(libc::SYS_epoll_ctl, words) as c_int }
    } else {
        // SAFETY: passed on to the caller.
        unsafe { super::epoll_ctl(set, operation, fd, event) }
    }
}

/// Finds out whose functions are behind ours, when the library is loaded.
pub(super) fn prepare() {
    // SAFETY: a valid name; nothing is loaded.
    let library = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return;
    }
    let others = [(super::epoll_ctl::NAME, super::epoll_ctl::find as fn() -> *mut c_void)];
    let are_its_own = POINTS.iter().chain(&others).all(|(name, behind_ours)| {
        // SAFETY: an open library and a valid name.
        behind_ours() == unsafe { libc::dlsym(library, name.as_ptr()) }
    });
    ARE_ITS_OWN.store(are_its_own, Relaxed);
    // SAFETY: opened above, and in use by this library.
    unsafe { libc::dlclose(library) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::errno;

    #[test]
    fn the_c_library_is_found_behind_us() {
        prepare();
        assert!(ARE_ITS_OWN.load(Relaxed));
    }

    #[test]
    fn answers_are_the_functions() {
        prepare();
        let mut byte = 0_u8;
        for waits in [false, true] {
            // SAFETY: no such descriptor, a valid place.
            let read = unsafe { read(|| waits, -1, (&raw mut byte).cast(), 1) };
            assert_eq!((read, errno()), (-1, libc::EBADF));
            // SAFETY: no entries.
            assert_eq!(unsafe { poll(|| waits, core::ptr::null_mut(), 0, 0) }, 0);
        }
        // SAFETY: no such set, no event.
        let changed = unsafe { epoll_ctl(-1, libc::EPOLL_CTL_DEL, -1, core::ptr::null_mut()) };
        assert_eq!((changed, errno()), (-1, libc::EBADF));
    }
}
