//! Kernels before Linux 6.9, which know no peek offset on TCP sockets.

use libc::{sock_filter, sock_fprog};
use std::mem::offset_of;

/// Instructions of a filter (linux/filter.h).
const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const UNLESS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANSWER: u32 = libc::BPF_RET | libc::BPF_K;

fn narrow<From, To: TryFrom<From>>(number: From) -> To {
    To::try_from(number).ok().expect("small, and not below 0")
}

fn instruction(code: u32, k: u32, unless: u8) -> sock_filter {
    sock_filter {
        code: narrow(code),
        jt: 0,
        jf: unless,
        k,
    }
}

/// From now on the kernel refuses to set peek offsets for the calling thread, and for those that it begins.
pub(crate) fn refuse_peek_offsets() {
    let call = narrow(offset_of!(libc::seccomp_data, nr));
    // The lower halves of its second and third argument.
    let arguments: u32 = narrow(offset_of!(libc::seccomp_data, args));
    let mut rules = [
        instruction(LOAD, call, 0),
        instruction(UNLESS, narrow(libc::SYS_setsockopt), 5),
        instruction(LOAD, arguments + 8, 0),
        instruction(UNLESS, narrow(libc::SOL_SOCKET), 3),
        instruction(LOAD, arguments + 16, 0),
        instruction(UNLESS, narrow(libc::SO_PEEK_OFF), 1),
        instruction(ANSWER, libc::SECCOMP_RET_ERRNO | libc::EOPNOTSUPP.cast_unsigned(), 0),
        instruction(ANSWER, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = sock_fprog {
        len: narrow(rules.len()),
        filter: rules.as_mut_ptr(),
    };
    // SAFETY: the filter outlives the calls, which only read it.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(refused, "no filter: {}", std::io::Error::last_os_error());
}
