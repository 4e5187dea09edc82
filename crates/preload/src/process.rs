//! Processes, signals and raw system calls.

use crate::{descriptors, transfer};
use core::ffi::{c_char, c_int, c_long, c_void};
use libc::pid_t;
use viaduct_socket::{lifecycle, real, signals, sys};

/// A child of `vfork` would run our hooks on its parent's memory; a forked one has its own. POSIX allows the exchange.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vfork() -> pid_t {
    // SAFETY: no arguments.
    unsafe { real::fork() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the program's own call.
    let result = unsafe { real::sigaction(signal, action, old) };
    // SAFETY: null or the program's action.
    if let (0, Some(action)) = (result, unsafe { action.as_ref() }) {
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        signals::installed(signal, handled, action.sa_flags);
    }
    result
}

/// Raw system calls that programs make of socket calls take the same way as these. A program that asks for io_uring is told that the
/// kernel has none: what it would do there could not be seen.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let fd = a as c_int;
    let at = core::ptr::with_exposed_provenance_mut::<c_void>(b as usize);
    // SAFETY: the program's own call.
    unsafe {
        match number {
            libc::SYS_close => descriptors::close(fd).into(),
            libc::SYS_close_range => descriptors::close_range(a as u32, b as u32, c as c_int).into(),
            libc::SYS_dup => descriptors::dup(fd).into(),
            libc::SYS_dup3 => descriptors::dup3(fd, b as c_int, c as c_int).into(),
            libc::SYS_read => transfer::read(fd, at, c as usize) as c_long,
            libc::SYS_write => transfer::write(fd, at, c as usize) as c_long,
            libc::SYS_readv => transfer::readv(fd, at.cast(), c as c_int) as c_long,
            libc::SYS_writev => transfer::writev(fd, at.cast(), c as c_int) as c_long,
            libc::SYS_recvfrom => transfer::recvfrom(
                fd,
                at,
                c as usize,
                d as c_int,
                core::ptr::with_exposed_provenance_mut(e as usize),
                core::ptr::with_exposed_provenance_mut(f as usize),
            ) as c_long,
            libc::SYS_sendto => transfer::sendto(
                fd,
                at,
                c as usize,
                d as c_int,
                core::ptr::with_exposed_provenance(e as usize),
                f as u32,
            ) as c_long,
            libc::SYS_recvmsg => transfer::recvmsg(fd, at.cast(), c as c_int) as c_long,
            libc::SYS_sendmsg => transfer::sendmsg(fd, at.cast(), c as c_int) as c_long,
            libc::SYS_io_uring_setup => {
                sys::set_errno(libc::ENOSYS);
                -1
            }
            _ => real::syscall(number, a, b, c, d, e, f),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    lifecycle::executing();
    // SAFETY: the program's own call.
    let result = unsafe { real::execve(path, arguments, environment) };
    lifecycle::executing_failed();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
    lifecycle::executing();
    // SAFETY: the program's own call.
    let result = unsafe { real::execv(path, arguments) };
    lifecycle::executing_failed();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
    lifecycle::executing();
    // SAFETY: the program's own call.
    let result = unsafe { real::execvp(file, arguments) };
    lifecycle::executing_failed();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvpe(
    file: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    lifecycle::executing();
    // SAFETY: the program's own call.
    let result = unsafe { real::execvpe(file, arguments, environment) };
    lifecycle::executing_failed();
    result
}

/// A spawned program gets the descriptors that its parent has put in place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut libc::posix_spawn_file_actions_t,
    fd: c_int,
    new: c_int,
) -> c_int {
    lifecycle::handing_over(fd);
    // SAFETY: the program's own call.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, new) }
}

/// Runs when the library is loaded.
extern "C" fn loaded() {
    viaduct_socket::remember_environment();
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = loaded;

/// Runs when the process ends in an orderly way.
extern "C" fn exiting() {
    lifecycle::exiting();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = exiting;
