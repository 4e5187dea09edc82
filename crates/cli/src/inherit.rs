//! What a program finds as the user left it: whether SIGPIPE is ignored, and which signals are blocked. And what no shell may read.
//!
//! Rust's runtime ignores SIGPIPE before `main`, and its way of turning into another program sets SIGPIPE to its default and unblocks
//! every signal. A program under `viaduct run` is to see neither. So the disposition is noted before the runtime starts, and put
//! back at the last moment.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, iter};

static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);

// SAFETY: the C library calls each function in this section once before `main`; what it passes is not used.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = note;

extern "C" fn note() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only, and has room for the answer.
    let known = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), action.as_mut_ptr()) } == 0;
    // SAFETY: all zero is a valid value, whether or not the call has filled it.
    let action = unsafe { action.assume_init() };
    SIGPIPE_IGNORED.store(known && action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// Has `command`, when this process turns into it, find signals as this process found them.
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
    let restore = move || {
        // SAFETY: no handler is installed, so nothing can run at a wrong time.
        unsafe { libc::signal(libc::SIGPIPE, disposition) };
        if known {
            // SAFETY: the set is valid and outlives the call.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, std::ptr::null_mut()) };
        }
        Ok(())
    };
    // SAFETY: the closure makes two system calls and neither allocates nor locks.
    unsafe { command.pre_exec(restore) };
}

/// Has `command` turn into its program without the C library, which has a shell read what the kernel refuses. A shell that reads a
/// binary of another machine, or a damaged one, does what the bytes happen to mean. To be called last.
pub(crate) fn without_shell(command: &mut Command, name: &OsStr) -> io::Result<()> {
    let mut variables: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => variables.insert(key.to_owned(), value.to_owned()),
            None => variables.remove(key),
        };
    }
    let variables = variables
        .iter()
        .map(|(key, value)| [key.as_bytes(), b"=", value.as_bytes()].concat());
    let arguments = iter::once(name)
        .chain(command.get_args())
        .map(|word| word.as_bytes().to_owned());
    let program = CString::new(command.get_program().as_bytes())?;
    let arguments = arguments.map(CString::new).collect::<Result<Vec<_>, _>>()?;
    let variables = variables.map(CString::new).collect::<Result<Vec<_>, _>>()?;
    let become_it = move || {
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            strings
                .iter()
                .map(|string| string.as_ptr())
                .chain([std::ptr::null()])
                .collect()
        };
        let (arguments, variables) = (pointers(&arguments), pointers(&variables));
        // SAFETY: strings and lists end in zero and outlive the call.
        unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
        Err(io::Error::last_os_error())
    };
    // SAFETY: nothing is forked, so the closure may allocate.
    unsafe { command.pre_exec(become_it) };
    Ok(())
}
