//! What a program finds as the user left it: whether SIGPIPE and SIGCHLD are ignored, which signals are blocked or
//! pending, which standard descriptors are closed, and its environment but for our variables. And what no shell may
//! read, and no viaductd is to run as.
//!
//! Rust's runtime ignores SIGPIPE before `main`, and its way of turning into another program sets SIGPIPE to its
//! default and unblocks every signal. It also opens `/dev/null` in the place of standard descriptors that are closed. A
//! program under `viaduct run` is to see none of it. So what was there is noted before the runtime starts, and put back
//! at the last moment.

use std::ffi::{CString, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::{io, iter};

static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);
static SIGCHLD_IGNORED: AtomicBool = AtomicBool::new(false);
static SIGCHLD_PENDING: AtomicBool = AtomicBool::new(false);
/// Whether children wait to be reaped that whoever was this process before has left.
static HAS_ENDED_CHILDREN: AtomicBool = AtomicBool::new(false);
static HAS_FORKED: AtomicBool = AtomicBool::new(false);
/// A bit for each standard descriptor.
static CLOSED: AtomicU8 = AtomicU8::new(0);

const STANDARD: [libc::c_int; 3] = [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO];

// SAFETY: the C library calls each function in this section once before `main`; what it passes is not used.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = note;

extern "C" fn note() {
    SIGPIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    SIGCHLD_PENDING.store(is_pending(libc::SIGCHLD), Ordering::Relaxed);
    if is_ignored(libc::SIGCHLD) {
        SIGCHLD_IGNORED.store(true, Ordering::Relaxed);
        HAS_ENDED_CHILDREN.store(has_news_of_children(), Ordering::Relaxed);
        // While it is ignored nobody learns how a child has ended, neither viaductd's nor the one on trial.
        // SAFETY: no handler is installed.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
    for fd in STANDARD {
        // SAFETY: asks only.
        let is_closed = unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0;
        CLOSED.fetch_or(u8::from(is_closed) << fd, Ordering::Relaxed);
    }
}

/// Whether standard output was closed when this process began.
pub(crate) fn is_output_closed() -> bool {
    CLOSED.load(Ordering::Relaxed) >> libc::STDOUT_FILENO & 1 == 1
}

fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only, and has room for the answer.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } == 0;
    // SAFETY: all zero is a valid value, whether or not the call has filled it.
    let action = unsafe { action.assume_init() };
    known && action.sa_sigaction == libc::SIG_IGN
}

fn is_pending(signal: libc::c_int) -> bool {
    let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: asks only, and has room for the answer.
    unsafe { libc::sigpending(pending.as_mut_ptr()) };
    // SAFETY: a set, of which all zero is the empty one.
    unsafe { libc::sigismember(pending.as_ptr(), signal) == 1 }
}

/// Whether a child has ended, stopped or gone on, and nobody has asked for its status yet.
fn has_news_of_children() -> bool {
    let mut news = MaybeUninit::<libc::siginfo_t>::zeroed();
    let kinds = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED;
    // SAFETY: asks only, and has room for the answer.
    let known = unsafe { libc::waitid(libc::P_ALL, 0, news.as_mut_ptr(), kinds | libc::WNOHANG | libc::WNOWAIT) } == 0;
    // SAFETY: all zero is a valid value, whether or not the call has filled it, and it fills it for a child.
    known && unsafe { news.assume_init().si_pid() } != 0
}

/// To be called before this process makes a child, which it reaps itself.
pub(crate) fn about_to_fork() {
    HAS_FORKED.store(true, Ordering::Relaxed);
}

/// Leaves the program nothing of the children of this process, and all of those that it has had itself: before it
/// turned into this one.
fn forget_children() {
    if SIGCHLD_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        // Those that have ended meanwhile: the kernel would not have kept them. Those from before cannot be told from
        // them, and are the program's to reap.
        if !HAS_ENDED_CHILDREN.load(Ordering::Relaxed) {
            // SAFETY: asks for no status.
            while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
        }
        return;
    }
    let may_be_ours = HAS_FORKED.load(Ordering::Relaxed) && !SIGCHLD_PENDING.load(Ordering::Relaxed);
    // One that is pending stands for all children since.
    if may_be_ours && is_pending(libc::SIGCHLD) && !has_news_of_children() {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: a set, of which all zero is the empty one.
        unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD) };
        let mut signal = 0;
        // SAFETY: it is pending, so there is nothing to wait for.
        unsafe { libc::sigwait(set.as_ptr(), &raw mut signal) };
        // It may have come to stand for another child after the look.
        if has_news_of_children() {
            // SAFETY: tells this process alone, which has it blocked.
            unsafe { libc::kill(libc::getpid(), libc::SIGCHLD) };
        }
    }
}

/// Has `command`, when this process turns into it, find signals and standard descriptors as this process found them.
pub(crate) fn as_found(command: &mut Command) {
    let disposition = match SIGPIPE_IGNORED.load(Ordering::Relaxed) {
        true => libc::SIG_IGN,
        false => libc::SIG_DFL,
    };
    let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: asks only, and has room for the answer.
    let known = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), blocked.as_mut_ptr()) } == 0;
    // SAFETY: all zero is the empty set.
    let blocked = unsafe { blocked.assume_init() };
    let closed = CLOSED.load(Ordering::Relaxed);
    let restore = move || {
        // SAFETY: no handler is installed, so nothing can run at a wrong time.
        unsafe { libc::signal(libc::SIGPIPE, disposition) };
        forget_children();
        if known {
            // SAFETY: the set is valid and outlives the call.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, std::ptr::null_mut()) };
        }
        for fd in STANDARD.into_iter().filter(|fd| closed >> fd & 1 == 1) {
            // SAFETY: it is what the runtime has opened there, of which nobody holds the number.
            unsafe { libc::close(fd) };
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls and neither allocates nor locks.
    unsafe { command.pre_exec(restore) };
}

/// Has this process, which is about to start viaductd, scheduled as others are. What it may not change stays.
pub(crate) fn as_others() {
    let others = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads one structure, and is about this process alone.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const others) };
}

/// Has the program find the variable set so: where it found it before, or else behind the others. What else it finds
/// stays as it is, in its order, and with what is no variable; `Command` would sort it. To be called last but for what
/// turns into the program.
pub(crate) fn set_variable(name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) {
    // SAFETY: the process has no other threads.
    unsafe { std::env::set_var(name, value) };
}

/// Has the program not find the variable. The others stay as [`set_variable`] says.
pub(crate) fn remove_variable(name: impl AsRef<OsStr>) {
    // SAFETY: the process has no other threads.
    unsafe { std::env::remove_var(name) };
}

/// Has `command` turn into its program without the C library, which has a shell read what the kernel refuses. A shell
/// that reads a binary of another machine, or a damaged one, does what the bytes happen to mean. To be called last.
pub(crate) fn without_shell(command: &mut Command, name: &OsStr) -> io::Result<()> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let arguments = iter::once(name)
        .chain(command.get_args())
        .map(|word| CString::new(word.as_bytes()));
    let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
    let program = CString::new(command.get_program().as_bytes())?;
    let become_it = move || {
        let arguments: Vec<_> = arguments
            .iter()
            .map(|argument| argument.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        // SAFETY: the C library's list, which nobody changes meanwhile.
        let variables = unsafe { environ };
        // SAFETY: strings and lists end in zero and outlive the call.
        unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), variables) };
        Err(io::Error::last_os_error())
    };
    // SAFETY: nothing is forked, so the closure may allocate.
    unsafe { command.pre_exec(become_it) };
    Ok(())
}
