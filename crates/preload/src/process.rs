//! Processes and signals.

use crate::unwind;
use core::ffi::{c_char, c_int, c_ulong, c_void};
use libc::pid_t;
use viaduct_socket::descriptors::{predecessors, successors};
use viaduct_socket::process::{self, lodgers};
use viaduct_socket::wait::{cancel, signals};
use viaduct_socket::{real, sys};

/// A child of `vfork` would run our hooks on its parent's memory; a forked one has its own. POSIX allows the exchange.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vfork() -> pid_t {
    // SAFETY: no arguments.
    unsafe { real::fork() }
}

/// `fork` without telling anybody.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Fork() -> pid_t {
    // SAFETY: no arguments.
    process::forking(|| unsafe { real::_Fork() } as isize) as pid_t
}

/// Whether a child made with these flags gets memory of its own, as after `fork`.
pub(crate) fn has_own_memory(flags: u64) -> bool {
    flags & (libc::CLONE_VM | libc::CLONE_THREAD) as u64 == 0
}

type Start = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// What a cloned child begins with. It lies in memory of the parent's, of which the child has a copy.
struct Beginning {
    start: Start,
    argument: *mut c_void,
}

unsafe extern "C-unwind" fn begin(beginning: *mut c_void) -> c_int {
    process::forked();
    // SAFETY: given to `clone` below.
    let beginning = unsafe { &*beginning.cast::<Beginning>() };
    // SAFETY: the program's function.
    unsafe { (beginning.start)(beginning.argument) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn clone(
    start: Option<Start>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    tls: *mut c_void,
    child: *mut c_void,
) -> c_int {
    let call = |start: *const c_void, argument: *mut c_void| {
        // SAFETY: the program's own call.
        unsafe { real::clone(start, stack, flags, argument, parent, tls, child) }
    };
    let Some(start) = start.filter(|_| has_own_memory(flags as u64)) else {
        lodgers::expect(flags as u64);
        let start = start.map_or(core::ptr::null(), |start| start as *const c_void);
        return call(start, argument);
    };
    let mut beginning = Beginning { start, argument };
    process::forking(|| call(begin as Start as *const c_void, (&raw mut beginning).cast()) as isize) as c_int
}

/// The process ends without telling anybody.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    process::exiting();
    sys::raw::exit(status)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    // SAFETY: as for `_exit`.
    unsafe { _exit(status) }
}

/// From now on, threads ask whether they have been cancelled.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_cancel(thread: libc::pthread_t) -> c_int {
    cancel::requested();
    unwind::prepare();
    // SAFETY: the program's own call.
    unsafe { real::pthread_cancel(thread) }
}

/// Defines hooks of calls by which a thread ends itself, which unwinds its stack.
macro_rules! exits {
    ($($name:ident($value:ty))*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(value: $value) {
                unwind::prepare();
                viaduct_socket::ending();
                // SAFETY: the program's own call, which does not return.
                unsafe { real::$name(value) }
            }
        )*
    };
}

exits! { pthread_exit(*mut c_void) thrd_exit(c_int) }

/// Where the stack will be after a jump to `place`: a word of the C library's `jmp_buf` that it has encrypted
/// (`PTR_MANGLE`).
unsafe fn stack_at(place: *const c_void) -> usize {
    /// The number of the word (`JB_RSP`).
    const STACK: usize = 6;
    // SAFETY: the program's buffer, which `setjmp` has filled.
    let mut stack = unsafe { *place.cast::<usize>().add(STACK) };
    // SAFETY: reads a word of the thread's control block that the C library has put there for this (`pointer_guard`).
    unsafe {
        core::arch::asm!("ror {0}, 17", "xor {0}, fs:[0x30]", inout(reg) stack, options(pure, readonly, nostack));
    }
    stack
}

/// Defines hooks of jumps: a handler may leave calls of ours by one.
macro_rules! jumps {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(place: *mut c_void, value: c_int) {
                // SAFETY: the program's buffer.
                viaduct_socket::jumping(unsafe { stack_at(place) });
                // SAFETY: the program's own call, which does not return.
                unsafe { real::$name(place, value) }
            }
        )*
    };
}

jumps! { longjmp _longjmp siglongjmp __longjmp_chk }

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

installers! { signal ssignal sysv_signal __sysv_signal bsd_signal sigset }

/// Defines hooks of calls that make a child which becomes another program within the C library.
macro_rules! spawners {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(
                pid: *mut pid_t,
                program: *const c_char,
                actions: *const c_void,
                attributes: *const c_void,
                arguments: *const *const c_char,
                environment: *const *const c_char,
            ) -> c_int {
                successors::spawning();
                // SAFETY: the program's own call.
                let error = unsafe { real::$name(pid, program, actions, attributes, arguments, environment) };
                if error != 0 {
                    successors::spawning_failed();
                }
                error
            }
        )*
    };
}

spawners! { posix_spawn posix_spawnp }

/// A spawned program gets the descriptors that its parent has put in place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut libc::posix_spawn_file_actions_t,
    fd: c_int,
    new: c_int,
) -> c_int {
    successors::handing_over(fd);
    // SAFETY: the program's own call.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, new) }
}

/// `prctl` takes its arguments as the machine passes words, however many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        process::confining();
    }
    // SAFETY: the program's own call.
    unsafe { real::prctl(option, a, b, c, d) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: no pointers.
    process::locking(flags & libc::MCL_FUTURE != 0, || unsafe { real::mlockall(flags) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn munlockall() -> c_int {
    // SAFETY: no arguments.
    process::locking(false, || unsafe { real::munlockall() })
}

/// Runs when the library is loaded.
extern "C" fn loaded() {
    viaduct_socket::remember_environment();
    viaduct_socket::hold_instance();
    real::prepare();
    process::prepare();
    predecessors::inherited();
    // SAFETY: a function that lives as long as the process.
    unsafe { __cxa_at_quick_exit(exiting_quickly, core::ptr::null_mut()) };
}

unsafe extern "C" {
    fn __cxa_at_quick_exit(action: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = loaded;

/// Runs when the process ends in an orderly way.
extern "C" fn exiting() {
    process::exiting();
}

/// Runs when the process ends by `quick_exit`, after what the program has asked for.
extern "C" fn exiting_quickly(_: *mut c_void) {
    process::exiting();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = exiting;
