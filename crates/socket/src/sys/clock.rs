//! Clocks.

use super::raw;
use core::ffi::c_void;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicU64};
use libc::{c_int, clockid_t, timespec};

/// The C library's own `clock_gettime`. Another library may stand before it (libfaketime) and tell the program a time
/// that stands still, or runs.
static OWN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn now_ns() -> u64 {
    read_clock(libc::CLOCK_MONOTONIC)
}

/// The same as of the kernel's last tick, a few milliseconds ago at most, for less: the processor's counter is not
/// read.
pub(crate) fn coarse_now_ns() -> u64 {
    read_clock(libc::CLOCK_MONOTONIC_COARSE)
}

/// Nanoseconds that the calling thread has run.
pub(crate) fn thread_ns() -> u64 {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read_clock(clock: clockid_t) -> u64 {
    let function = OWN.load(Relaxed);
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    if function.is_null() {
        let (clock, place) = (clock.cast_unsigned() as usize, (&raw mut time).expose_provenance());
        // SAFETY: the kernel writes one timespec, which outlives the call.
        let _ = unsafe { raw::call(libc::SYS_clock_gettime, [clock, place, 0, 0, 0, 0]) };
    } else {
        // SAFETY: what was found is this function, which writes one timespec.
        unsafe {
            let read =
                core::mem::transmute::<*mut c_void, unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int>(function);
            read(clock, &raw mut time)
        };
    }
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Finds the clock, when ours is loaded: a signal handler could not, nor a thread for which a library waits while it is
/// loaded, nor the program's heap, which the look-up asks for memory. The kernel tells the time until then.
#[cold]
pub fn find_clock() {
    let mut own = libc::clock_gettime as *mut c_void;
    // SAFETY: valid names; nothing is loaded, and the library stays.
    unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if !library.is_null() {
            let found = libc::dlsym(library, c"clock_gettime".as_ptr());
            if !found.is_null() {
                own = found;
            }
            libc::dlclose(library);
        }
    }
    OWN.store(own, Relaxed);
}

/// A cheap, monotonic enough clock in units of [`ticks_per_us`].
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    now_ns()
}

/// Ticks in a microsecond, measured once over about 50 us.
#[inline]
pub fn ticks_per_us() -> u64 {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    let known = TICKS.load(Relaxed);
    if known != 0 {
        return known;
    }
    let (from, from_ns) = (ticks(), now_ns());
    let mut to_ns = from_ns;
    while to_ns.saturating_sub(from_ns) < 50_000 {
        to_ns = now_ns();
    }
    let measured = (ticks().wrapping_sub(from) * 1000 / (to_ns - from_ns).max(1)).max(1);
    TICKS.store(measured, Relaxed);
    measured
}
