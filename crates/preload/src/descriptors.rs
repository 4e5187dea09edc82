//! Calls by which descriptors come and go.

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use libc::{DIR, FILE, sockaddr, socklen_t};
use viaduct_socket::descriptors::{lifecycle, predecessors, successors, table};
use viaduct_socket::process;
use viaduct_socket::wait::cancel;
use viaduct_socket::{is_nowhere, real, sys};

/// Defines hooks of calls that make one descriptor of a kind that is none of ours.
macro_rules! creators {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
                // SAFETY: the program's own call.
                let fd = unsafe { real::$name($($argument),*) };
                lifecycle::fresh(fd);
                fd
            }
        )*
    };
}

creators! {
    open(path: *const c_char, flags: c_int, mode: c_uint);
    open64(path: *const c_char, flags: c_int, mode: c_uint);
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint);
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint);
    creat(path: *const c_char, mode: c_uint);
    eventfd(value: c_uint, flags: c_int);
    timerfd_create(clock: c_int, flags: c_int);
    signalfd(fd: c_int, mask: *const c_void, flags: c_int);
    memfd_create(name: *const c_char, flags: c_uint);
    inotify_init();
    inotify_init1(flags: c_int);
    mkstemp(template: *mut c_char);
    mkstemp64(template: *mut c_char);
    mkostemp(template: *mut c_char, flags: c_int);
    mkostemp64(template: *mut c_char, flags: c_int);
    mkstemps(template: *mut c_char, suffix: c_int);
    mkstemps64(template: *mut c_char, suffix: c_int);
    mkostemps(template: *mut c_char, suffix: c_int, flags: c_int);
    mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int);
    shm_open(name: *const c_char, flags: c_int, mode: c_uint);
    posix_openpt(flags: c_int);
    fanotify_init(flags: c_uint, file_flags: c_uint);
    pidfd_open(process: c_int, flags: c_uint);
    __open(path: *const c_char, flags: c_int, mode: c_uint);
    __open64(path: *const c_char, flags: c_int, mode: c_uint);
    __open_2(path: *const c_char, flags: c_int);
    __open64_2(path: *const c_char, flags: c_int);
    __openat_2(dir: c_int, path: *const c_char, flags: c_int);
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int);
}

/// Defines hooks of calls that open a stream within the C library, where no other hook sees it.
macro_rules! stream_creators {
    ($($name:ident($($argument:ident: $type:ty),*) -> $stream:ty, $number:path;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> *mut $stream {
                // SAFETY: the program's own call.
                let stream = unsafe { real::$name($($argument),*) };
                if !stream.is_null() {
                    // SAFETY: a new stream.
                    lifecycle::fresh(unsafe { $number(stream) });
                }
                stream
            }
        )*
    };
}

stream_creators! {
    fopen(path: *const c_char, mode: *const c_char) -> FILE, libc::fileno;
    fopen64(path: *const c_char, mode: *const c_char) -> FILE, libc::fileno;
    tmpfile() -> FILE, libc::fileno;
    tmpfile64() -> FILE, libc::fileno;
    popen(command: *const c_char, mode: *const c_char) -> FILE, libc::fileno;
    opendir(path: *const c_char) -> DIR, libc::dirfd;
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int {
    // SAFETY: no pointers.
    let new = unsafe { real::pidfd_getfd(process, fd, flags) };
    predecessors::fetched(new);
    new
}

/// The kinds of sockets, without the flags that go with them (linux/net.h).
const KIND: c_int = 0xf;
/// `SOCK_SEEK_STREAM` of `viaduct.h`; no kernel has a kind of this number.
const SEEK_STREAM: c_int = 13;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if kind & KIND != SEEK_STREAM {
        // SAFETY: the program's own call.
        let fd = unsafe { real::socket(domain, kind, protocol) };
        let is_tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
            && kind & KIND == libc::SOCK_STREAM
            && matches!(protocol, 0 | libc::IPPROTO_TCP);
        if is_tcp {
            lifecycle::made_socket(fd, false);
        } else {
            lifecycle::fresh(fd);
        }
        return fd;
    }
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        sys::set_errno(libc::ESOCKTNOSUPPORT);
        return -1;
    }
    // SAFETY: no pointers.
    let fd = unsafe { real::socket(domain, kind & !KIND | libc::SOCK_STREAM, protocol) };
    lifecycle::made_socket(fd, true);
    fd
}

/// Defines hooks of calls that make two descriptors.
macro_rules! pair_creators {
    ($($name:ident($($argument:ident: $type:ty),*) into $ends:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
                // SAFETY: the program's own call.
                let result = unsafe { real::$name($($argument),*) };
                if result == 0 {
                    // SAFETY: the call has written both.
                    unsafe {
                        lifecycle::fresh(*$ends);
                        lifecycle::fresh(*$ends.add(1));
                    }
                }
                result
            }
        )*
    };
}

pair_creators! {
    pipe(ends: *mut c_int) into ends;
    pipe2(ends: *mut c_int, flags: c_int) into ends;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) into ends;
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let unknown = is_nowhere(address) || (len as usize) < size_of::<libc::sa_family_t>();
    // SAFETY: the program's address, long enough for its family.
    if !unknown && unsafe { (*address).sa_family } == libc::AF_UNSPEC as libc::sa_family_t {
        lifecycle::disconnecting(fd);
    }
    // SAFETY: the program's own call.
    let result = unsafe { real::connect(fd, address, len) };
    let errno = sys::errno();
    // Interrupted, the kernel goes on connecting.
    if result == 0 || matches!(errno, libc::EINPROGRESS | libc::EINTR) {
        // SAFETY: null or the program's address, which the kernel has just read.
        let family = unsafe { address.as_ref() }.map_or(0, |address| address.sa_family);
        lifecycle::connected(fd, family.into(), result != 0);
        sys::set_errno(errno);
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program's own call.
    let new = unsafe { real::accept(fd, address, len) };
    if new >= 0 {
        lifecycle::accepted(new, fd);
    }
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the program's own call.
    let new = unsafe { real::accept4(fd, address, len, flags) };
    if new >= 0 {
        lifecycle::accepted(new, fd);
    }
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match table::connection(fd) {
        // SAFETY: the program's own call.
        Some(conn) => lifecycle::shut_down(conn, how, || unsafe { real::shutdown(fd, how) }),
        // SAFETY: the program's own call.
        None => unsafe { real::shutdown(fd, how) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if lifecycle::hidden(fd) {
        sys::set_errno(libc::EBADF);
        return -1;
    }
    // A thread that has been cancelled closes nothing.
    cancel::point();
    lifecycle::closing(fd);
    // SAFETY: the program's own call.
    unsafe { real::close(fd) }
}

/// The C library puts other files in place of the standard descriptors by calls of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn daemon(stays: c_int, keeps_streams: c_int) -> c_int {
    // SAFETY: no pointers.
    let result = process::continuing_in_child(|| unsafe { real::daemon(stays, keeps_streams) });
    if result == 0 && keeps_streams == 0 {
        (0..=libc::STDERR_FILENO).for_each(lifecycle::fresh);
    }
    result
}

const CLOSE_RANGE_UNSHARE: c_int = 2;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let (from, to) = (c_int::try_from(first), c_int::try_from(last).unwrap_or(c_int::MAX));
    match from {
        Ok(from) if first <= last && flags & !CLOSE_RANGE_UNSHARE == 0 => {
            lifecycle::closing_range(from, to, |from, to| {
                // SAFETY: the program's own call, in parts.
                unsafe { real::close_range(from.cast_unsigned(), to.cast_unsigned(), flags) }
            })
        }
        // SAFETY: the program's own call; CLOSE_RANGE_CLOEXEC closes nothing now, and ours are so already.
        _ => unsafe { real::close_range(first, last, flags) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: as for `close_range`.
    unsafe { close_range(first.max(0).cast_unsigned(), c_uint::MAX, 0) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    if !stream.is_null() {
        // SAFETY: the program's stream.
        let fd = unsafe { libc::fileno(stream) };
        if fd >= 0 {
            lifecycle::closing(fd);
        }
    }
    // SAFETY: the program's own call.
    unsafe { real::fclose(stream) }
}

/// Defines hooks of calls that close a stream and open another in its place, most often with its number.
macro_rules! reopeners {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(
                path: *const c_char,
                mode: *const c_char,
                stream: *mut FILE,
            ) -> *mut FILE {
                // SAFETY: the program's stream.
                let fd = unsafe { libc::fileno(stream) };
                if fd >= 0 {
                    lifecycle::closing(fd);
                }
                // SAFETY: the program's own call.
                unsafe { real::$name(path, mode, stream) }
            }
        )*
    };
}

reopeners! { freopen freopen64 }

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if let Some(conn) = table::connection(fd)
        && !lifecycle::to_stdio(conn)
    {
        sys::set_errno(libc::EAGAIN);
        return core::ptr::null_mut();
    }
    // SAFETY: the program's own call.
    unsafe { real::fdopen(fd, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    if lifecycle::hidden(old) {
        sys::set_errno(libc::EBADF);
        return -1;
    }
    // SAFETY: the program's own call.
    let new = unsafe { real::dup(old) };
    lifecycle::duplicated(old, new);
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: the program's own call.
    unsafe { duplicate_onto(old, new, 0, || real::dup2(old, new)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: the program's own call.
    unsafe { duplicate_onto(old, new, flags, || real::dup3(old, new, flags)) }
}

fn duplicate_onto(old: c_int, new: c_int, flags: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if lifecycle::hidden(old) || lifecycle::hidden(new) {
        sys::set_errno(libc::EBADF);
        return -1;
    }
    // What the kernel refuses closes nothing.
    if old != new && flags & !libc::O_CLOEXEC == 0 && sys::is_open(old) && sys::may_open(new) {
        lifecycle::closing(new);
    }
    let is_for_successor = old != new && flags & libc::O_CLOEXEC == 0 && successors::is_copied_for_successor(old);
    let result = call();
    lifecycle::duplicated(old, result);
    if is_for_successor {
        successors::keeping(result);
    }
    result
}

/// `fcntl` takes its argument as the machine passes a word, whatever it is.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the program's own call.
    unsafe { control(fd, command, argument, || real::fcntl(fd, command, argument)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the program's own call.
    unsafe { control(fd, command, argument, || real::fcntl64(fd, command, argument)) }
}

fn control(fd: c_int, command: c_int, argument: c_ulong, call: impl FnOnce() -> c_int) -> c_int {
    if lifecycle::hidden(fd) {
        sys::set_errno(libc::EBADF);
        return -1;
    }
    let stays_open = || argument as c_int & libc::FD_CLOEXEC == 0 && successors::is_closed_by_exec(fd);
    let stays_open = command == libc::F_SETFD && stays_open();
    let result = call();
    if result < 0 {
        return result;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => lifecycle::duplicated(fd, result),
        libc::F_SETFD if stays_open => successors::keeping(fd),
        libc::F_SETFL => {
            if let Some(conn) = table::connection(fd) {
                let flags = argument as c_int;
                viaduct_socket::options::blocking_changed(conn, flags & libc::O_NONBLOCK != 0);
                if flags & libc::O_ASYNC != 0 {
                    viaduct_socket::options::signal_driven(conn);
                }
            }
        }
        _ => {}
    }
    result
}
