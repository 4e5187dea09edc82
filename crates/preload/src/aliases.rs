//! Other names of hooks, by which the C library exports its functions too.

use core::ffi::{c_char, c_int, c_ulong, c_void};
use libc::{FILE, fd_set, nfds_t, pid_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};

macro_rules! aliases {
    ($($alias:ident is $module:ident::$name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $alias($($argument: $type),*) -> $result {
                // SAFETY: the program's own call.
                unsafe { crate::$module::$name($($argument),*) }
            }
        )*
    };
}

aliases! {
    __read is transfer::read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    __write is transfer::write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    __send is transfer::send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    __connect is descriptors::connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    __close is descriptors::close(fd: c_int) -> c_int;
    __dup2 is descriptors::dup2(old: c_int, new: c_int) -> c_int;
    __fcntl is descriptors::fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    __pipe is descriptors::pipe(ends: *mut c_int) -> c_int;
    _IO_fclose is descriptors::fclose(stream: *mut FILE) -> c_int;
    _IO_fdopen is descriptors::fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    __poll is wait::poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    __select is select::select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    __sigaction is process::sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    __vfork is process::vfork() -> pid_t;
}
