//! Processes and signals.

use core::ffi::c_int;
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

/// Sees to it that a handler installed by another call than `sigaction` is known with the flags it has now.
fn installed_somehow(signal: c_int) {
    let errno = sys::errno();
    let mut action = core::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only, and has room for the answer.
    let known = unsafe { real::sigaction(signal, core::ptr::null(), action.as_mut_ptr()) } == 0;
    if known {
        // SAFETY: the call has filled it.
        let action = unsafe { action.assume_init() };
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        signals::installed(signal, handled, action.sa_flags);
    }
    sys::set_errno(errno);
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn siginterrupt(signal: c_int, interrupt: c_int) -> c_int {
    // SAFETY: the program's own call.
    let result = unsafe { real::siginterrupt(signal, interrupt) };
    installed_somehow(signal);
    result
}

/// Defines hooks of calls that install a handler and choose its flags themselves.
macro_rules! installers {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(signal: c_int, handler: libc::ssize_t) -> libc::ssize_t {
                // SAFETY: the program's own call.
                let old = unsafe { real::$name(signal, handler) };
                installed_somehow(signal);
                old
            }
        )*
    };
}

installers! { signal sysv_signal __sysv_signal bsd_signal sigset }

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
