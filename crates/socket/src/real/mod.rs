//! The C library's own functions, found behind ours.
//!
//! A second corner of `unsafe`: each function here is the one the program would have called without us, with the same
//! contract. They are declared as able to unwind, because a cancelled thread unwinds through them.
#![expect(non_snake_case, reason = "the C library's names")]

#[expect(
    clippy::cast_possible_truncation,
    reason = "words pass the system-call boundary as they are"
)]
pub mod bare;

use crate::sys::{Errno, Events, errno, find_clock, next_symbol, set_errno, threads, timespec};
use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::sync::atomic::AtomicPtr;
use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd, sigset_t, size_t, sockaddr, socklen_t,
    ssize_t, timeval,
};

macro_rules! real {
    ($all:ident, else $without:expr; $($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        const $all: &[fn() -> *mut c_void] = &[$($name::find),*];

        $(
            mod $name {
                use super::{AtomicPtr, CStr, c_void, next_symbol};

                #[inline]
                pub(super) fn find() -> *mut c_void {
                    static SLOT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
                    next_symbol(&SLOT, NAME)
                }

                pub(super) const NAME: &CStr =
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    };
            }

            /// The C library's function of this name; fails with `ENOSYS` where it has none.
            ///
            /// # Safety
            /// As for the function.
            #[inline]
            #[allow(clippy::unused_unit, reason = "every function's result is named")]
            pub unsafe fn $name($($argument: $type),*) -> $result {
                let function = $name::find();
                if function.is_null() {
                    set_errno(libc::ENOSYS);
                    return $without;
                }
                // SAFETY: the symbol is the C library's, whose declaration this is.
                let function = unsafe {
                    core::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $result>(function)
                };
                // SAFETY: passed on to the caller.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

real! {
    NUMBERS, else -1;
    read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut libc::timespec) -> c_int;
    write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(input: c_int, input_offset: *mut off_t, output: c_int, output_offset: *mut off_t, len: size_t, flags: c_uint) -> ssize_t;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(old: c_int, new: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    ppoll(entries: *mut pollfd, count: nfds_t, timeout: *const libc::timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const libc::timespec, mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(set: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(set: c_int, events: *mut epoll_event, room: c_int, timeout: *const libc::timespec, mask: *const sigset_t) -> c_int;
    open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    creat(path: *const c_char, mode: c_uint) -> c_int;
    eventfd(value: c_uint, flags: c_int) -> c_int;
    timerfd_create(clock: c_int, flags: c_int) -> c_int;
    signalfd(fd: c_int, mask: *const c_void, flags: c_int) -> c_int;
    memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    inotify_init() -> c_int;
    inotify_init1(flags: c_int) -> c_int;
    pipe(ends: *mut c_int) -> c_int;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int;
    fclose(stream: *mut libc::FILE) -> c_int;
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut libc::posix_spawn_file_actions_t, fd: c_int, new: c_int) -> c_int;
    fork() -> pid_t;
    sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execveat(dir: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    siginterrupt(signal: c_int, interrupt: c_int) -> c_int;
    signal(signal: c_int, handler: ssize_t) -> ssize_t;
    sysv_signal(signal: c_int, handler: ssize_t) -> ssize_t;
    __sysv_signal(signal: c_int, handler: ssize_t) -> ssize_t;
    bsd_signal(signal: c_int, handler: ssize_t) -> ssize_t;
    sigset(signal: c_int, handler: ssize_t) -> ssize_t;
    ssignal(signal: c_int, handler: ssize_t) -> ssize_t;
    __open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    __open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    __open_2(path: *const c_char, flags: c_int) -> c_int;
    __open64_2(path: *const c_char, flags: c_int) -> c_int;
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    mkstemp(template: *mut c_char) -> c_int;
    mkstemp64(template: *mut c_char) -> c_int;
    mkostemp(template: *mut c_char, flags: c_int) -> c_int;
    mkostemp64(template: *mut c_char, flags: c_int) -> c_int;
    mkstemps(template: *mut c_char, suffix: c_int) -> c_int;
    mkstemps64(template: *mut c_char, suffix: c_int) -> c_int;
    mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int;
    mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int;
    shm_open(name: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    posix_openpt(flags: c_int) -> c_int;
    daemon(stays: c_int, keeps_streams: c_int) -> c_int;
    fanotify_init(flags: c_uint, file_flags: c_uint) -> c_int;
    pidfd_open(process: c_int, flags: c_uint) -> c_int;
    pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int;
    sockatmark(fd: c_int) -> c_int;
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    mlockall(flags: c_int) -> c_int;
    munlockall() -> c_int;
    _Fork() -> pid_t;
    clone(start: *const c_void, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut c_void, tls: *mut c_void, child: *mut c_void) -> c_int;
    pthread_cancel(thread: libc::pthread_t) -> c_int;
    aio_read(block: *mut c_void) -> c_int;
    aio_read64(block: *mut c_void) -> c_int;
    aio_write(block: *mut c_void) -> c_int;
    aio_write64(block: *mut c_void) -> c_int;
    lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int;
    lio_listio64(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int;
}

real! {
    POINTERS, else core::ptr::null_mut();
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    tmpfile() -> *mut libc::FILE;
    tmpfile64() -> *mut libc::FILE;
    popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    opendir(path: *const c_char) -> *mut libc::DIR;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE;
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE;
}

real! {
    NOTHING, else ();
    pthread_testcancel() -> ();
    pthread_exit(value: *mut c_void) -> ();
    thrd_exit(value: c_int) -> ();
    longjmp(place: *mut c_void, value: c_int) -> ();
    _longjmp(place: *mut c_void, value: c_int) -> ();
    siglongjmp(place: *mut c_void, value: c_int) -> ();
    __longjmp_chk(place: *mut c_void, value: c_int) -> ();
}

/// Finds them, when the library is loaded: later a handler may have interrupted the dynamic linker, or the program may
/// be about to ask why a look-up of its own has failed (`dlerror`), which the next one makes it forget.
pub fn prepare() {
    for find in [NUMBERS, POINTERS, NOTHING].into_iter().flatten() {
        find();
    }
    threads::prepare();
    bare::prepare();
    find_clock();
    // What is missing is not the program's to hear of.
    // SAFETY: no arguments.
    unsafe { libc::dlerror() };
}

/// Finds what [`test_cancel`] calls, which is all that a library needs that does searches only.
pub(crate) fn prepare_test_cancel() {
    pthread_testcancel::find();
}

/// Ends the calling thread if it has been cancelled.
#[cold]
pub(crate) fn test_cancel() {
    // SAFETY: no arguments; callers own nothing.
    unsafe { pthread_testcancel() };
}

/// `ppoll` on entries of our own. A cancellation point.
pub(crate) fn ppoll_wait(entries: &mut [pollfd], timeout: Option<&libc::timespec>) -> Result<usize, Errno> {
    let timeout = timeout.map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the entries and the timeout outlive the call; no mask.
    let count = unsafe {
        ppoll(
            entries.as_mut_ptr(),
            entries.len() as nfds_t,
            timeout,
            core::ptr::null(),
        )
    };
    usize::try_from(count).map_err(|_| errno())
}

/// Sleeps until the socket has bytes, an error or its end, in a call that the kernel restarts after signal handlers
/// that want it so. False if a signal handler ran that does not. A cancellation point.
pub(crate) fn peek_wait(fd: c_int) -> bool {
    let mut byte = 0_u8;
    // SAFETY: room for one byte.
    let result = unsafe { recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    result >= 0 || errno() != libc::EINTR
}

/// Waits in a set for events behind those already in `events`. A cancellation point.
pub(crate) fn epoll_sleep(
    set: c_int,
    events: &mut Events,
    timeout_ns: Option<u64>,
    fine: bool,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    let (at, room) = events.free();
    let room_int = c_int::try_from(room).unwrap_or(c_int::MAX);
    let to_the_nanosecond = match timeout_ns {
        Some(ns) if fine => {
            let timeout = timespec(ns);
            // SAFETY: the program's buffer and mask, and a timeout that outlives the call.
            let count = unsafe { epoll_pwait2(set, at, room_int, &raw const timeout, mask) };
            usize::try_from(count).map_err(|_| errno())
        }
        _ => Err(libc::ENOSYS),
    };
    let count = match to_the_nanosecond {
        // Linux before 5.11 knows milliseconds only.
        Err(libc::ENOSYS) => {
            let ms = timeout_ns.map_or(-1, |ns| c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX));
            // SAFETY: the program's buffer and mask.
            let count = unsafe { epoll_pwait(set, at, room_int, ms, mask) };
            usize::try_from(count).map_err(|_| errno())?
        }
        known => known?,
    };
    events.filled_by_kernel(count);
    Ok(count)
}

/// `ppoll` on entries of our own under the program's signal mask. A cancellation point.
pub(crate) fn ppoll_masked(
    entries: &mut [pollfd],
    timeout: Option<&libc::timespec>,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    let timeout = timeout.map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the entries and the timeout outlive the call; the mask is null or the program's.
    let count = unsafe { ppoll(entries.as_mut_ptr(), entries.len() as nfds_t, timeout, mask) };
    usize::try_from(count).map_err(|_| errno())
}

#[cfg(test)]
mod tests {
    #[test]
    fn functions_are_there() {
        // SAFETY: a C string that is never changed.
        let version = unsafe { core::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        let minor = version.to_str().unwrap().split('.').nth(1).unwrap();
        // Some came with versions 2.34 to 2.36 of the C library.
        let permitted = if minor.parse::<u32>().unwrap() >= 36 { 0 } else { 6 };
        let all = [super::NUMBERS, super::POINTERS, super::NOTHING];
        let missing = all.into_iter().flatten().filter(|find| find().is_null()).count();
        assert!(missing <= permitted, "{missing}");
    }
}
