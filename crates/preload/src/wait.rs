//! Calls that wait for descriptors.

use core::ffi::c_int;
use libc::{epoll_event, nfds_t, pollfd, sigset_t, timespec};
use viaduct_socket::descriptors::table;
use viaduct_socket::epoll::ctl::{self, Asked};
use viaduct_socket::epoll::wait::{self as waiting, Timeout};
use viaduct_socket::poll::{self, Wait};
use viaduct_socket::real::{self, bare};
use viaduct_socket::sys::{self, Events, raw};
use viaduct_socket::{epoll, is_nowhere};

/// Nanoseconds of a timeout in milliseconds; negative: for ever.
fn from_ms(ms: c_int) -> Option<u64> {
    u64::try_from(ms).ok().map(|ms| ms * 1_000_000)
}

/// Nanoseconds of a timeout; null: for ever. `Err`: not a time.
pub(crate) unsafe fn from_timespec(time: *const timespec) -> Result<Option<u64>, ()> {
    // SAFETY: null or the program's time.
    let Some(time) = (unsafe { time.as_ref() }) else {
        return Ok(None);
    };
    match (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(ns)) if ns < 1_000_000_000 => {
            Ok(Some(seconds.saturating_mul(1_000_000_000).saturating_add(ns)))
        }
        _ => Err(()),
    }
}

/// Makes a wait as its system call does it, which tells what is left of the time.
///
/// # Safety
/// As for the wait.
pub(crate) unsafe fn telling_what_is_left(time: *mut timespec, wait: impl FnOnce(*const timespec) -> c_int) -> c_int {
    let from = sys::now_ns();
    // SAFETY: null or the program's time.
    let ns = unsafe { from_timespec(time) };
    let result = wait(time);
    if let Ok(Some(ns @ 1..)) = ns {
        let left = ns.saturating_sub(sys::now_ns().saturating_sub(from));
        // As the kernel: where the time cannot be written, the program is not told.
        let _ = raw::write_if_possible(time, &sys::timespec(left));
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the program's own call.
    let direct = || unsafe { bare::poll(|| timeout_ms != 0, entries, count, timeout_ms) };
    // SAFETY: the program vouches for its entries.
    unsafe { poll_with(entries, count, from_ms(timeout_ms), core::ptr::null(), direct) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    entries: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    size: usize,
) -> c_int {
    if size / size_of::<pollfd>() < count as usize {
        crate::transfer::overflow();
    }
    // SAFETY: as for `poll`.
    unsafe { poll(entries, count, timeout_ms) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    entries: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own call.
    let direct = || unsafe { real::ppoll(entries, count, timeout, mask) };
    // SAFETY: the program's timeout.
    match unsafe { from_timespec(timeout) } {
        // SAFETY: the program vouches for its entries and mask.
        Ok(ns) => unsafe { poll_with(entries, count, ns, mask, direct) },
        Err(()) => direct(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    entries: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    size: usize,
) -> c_int {
    if size / size_of::<pollfd>() < count as usize {
        crate::transfer::overflow();
    }
    // SAFETY: as for `ppoll`.
    unsafe { ppoll(entries, count, timeout, mask) }
}

/// Polls, by the program's own call `direct` where no lane is concerned.
unsafe fn poll_with(
    entries: *mut pollfd,
    count: nfds_t,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
    direct: impl FnOnce() -> c_int,
) -> c_int {
    let count = match usize::try_from(count) {
        Ok(count @ 1..=0x10_0000) if !is_nowhere(entries) => count,
        _ => return direct(),
    };
    let fds = || {
        // SAFETY: the program vouches for `count` entries.
        let entries = unsafe { core::slice::from_raw_parts(entries, count) };
        entries.iter().map(|entry| entry.fd)
    };
    let left = match wait_without_lanes(fds, timeout_ns, direct) {
        Waited::Ended(result) => return result,
        Waited::Left(left) => left,
    };
    let how = Wait { timeout_ns: left, mask };
    // SAFETY: the program vouches for `count` entries.
    match poll::poll(unsafe { core::slice::from_raw_parts_mut(entries, count) }, how) {
        Ok(ready) => c_int::try_from(ready).unwrap_or(c_int::MAX),
        Err(errno) => {
            sys::set_errno(errno);
            -1
        }
    }
}

/// How far a wait has come without lanes.
pub(crate) enum Waited {
    Ended(c_int),
    /// A lane is concerned, and so much of the time is left.
    Left(Option<u64>),
}

/// Makes the program's own call where no lane is concerned. If one has come by its end, because another thread had its
/// connection taken in, what ended it may have been a mark and no byte of the stream.
pub(crate) fn wait_without_lanes<F: Iterator<Item = c_int>>(
    fds: impl Fn() -> F,
    timeout_ns: Option<u64>,
    direct: impl FnOnce() -> c_int,
) -> Waited {
    if poll::concerns(fds()) {
        return Waited::Left(timeout_ns);
    }
    if sys::single_threaded() {
        return Waited::Ended(direct());
    }
    let until = timeout_ns.map(|ns| sys::now_ns().saturating_add(ns));
    let result = direct();
    if result > 0 && poll::concerns(fds()) {
        Waited::Left(until.map(|until| until.saturating_sub(sys::now_ns())))
    } else {
        Waited::Ended(result)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the program's own call.
    let fd = unsafe { real::epoll_create(size) };
    viaduct_socket::descriptors::lifecycle::fresh(fd);
    if fd >= 0 {
        epoll::created(fd);
    }
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the program's own call.
    let fd = unsafe { real::epoll_create1(flags) };
    viaduct_socket::descriptors::lifecycle::fresh(fd);
    if fd >= 0 {
        epoll::created(fd);
    }
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let Some(index) = table::epoll_set(set) else {
        // SAFETY: the program's own call.
        return unsafe { real::epoll_ctl(set, operation, fd, event) };
    };
    // SAFETY: the program's own call.
    let direct = move || unsafe { bare::epoll_ctl(set, operation, fd, event) };
    // Now: when the kernel has taken it, the program may use its memory for something else, or another thread that has
    // been told of the event may.
    let (events, data) = match operation {
        libc::EPOLL_CTL_DEL => (0, 0),
        _ if is_nowhere(event) => return direct(),
        // SAFETY: the program's event.
        _ => unsafe { ((*event).events, (*event).u64) },
    };
    let asked = || Asked {
        set: index,
        operation,
        fd,
        events,
        data,
    };
    match ctl::begin(index, fd) {
        Some(change) => change.make(asked(), direct),
        None => epoll_ctl_otherwise(asked(), set, event),
    }
}

/// What is not the change of a connection's only registration, and one without a lane. Not inlined, so that the rest
/// fits in few cache lines.
#[inline(never)]
fn epoll_ctl_otherwise(asked: Asked, set: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the program's own call.
    let direct = move || unsafe { bare::epoll_ctl(set, asked.operation, asked.fd, event) };
    ctl::control(asked, direct)
}

/// The kernel fills no more at once, and refuses who has room for more.
const MOST_EVENTS: usize = i32::MAX as usize / size_of::<epoll_event>();

/// The parts that all kinds of waiting in a set share.
#[inline(always)]
unsafe fn wait_in_set(
    set: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: Timeout,
    mask: *const sigset_t,
    direct: impl FnOnce() -> c_int,
) -> c_int {
    let (Some(index), Ok(room @ 1..=MOST_EVENTS)) = (table::epoll_set(set), usize::try_from(room)) else {
        return direct();
    };
    if is_nowhere(events) {
        return direct();
    }
    // SAFETY: the program vouches for its buffer.
    let mut events = unsafe { Events::new(events, room) };
    let ours = match waiting::begin(index) {
        waiting::Wait::Unknown => return direct(),
        waiting::Wait::Plain(wait) => wait.end(direct() as isize, &mut events),
        waiting::Wait::Ours(wait) => Err(wait),
    };
    c_int::try_from(ours.unwrap_or_else(|wait| wait.make(&mut events, timeout, mask))).unwrap_or(-1)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
) -> c_int {
    let timeout = Timeout {
        ns: from_ms(timeout_ms),
        fine: false,
    };
    // SAFETY: the program's own call.
    unsafe {
        wait_in_set(set, events, room, timeout, core::ptr::null(), || {
            bare::epoll_wait(|| timeout_ms != 0, set, events, room, timeout_ms)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    let timeout = Timeout {
        ns: from_ms(timeout_ms),
        fine: false,
    };
    // SAFETY: the program's own call.
    unsafe {
        wait_in_set(set, events, room, timeout, mask, || {
            real::epoll_pwait(set, events, room, timeout_ms, mask)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own call.
    let direct = move || unsafe { real::epoll_pwait2(set, events, room, timeout, mask) };
    // SAFETY: the program's timeout.
    match unsafe { from_timespec(timeout) } {
        // SAFETY: the program's buffer and mask.
        Ok(ns) => unsafe { wait_in_set(set, events, room, Timeout { ns, fine: true }, mask, direct) },
        Err(()) => direct(),
    }
}
