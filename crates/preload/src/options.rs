//! Options and `ioctl`.

use core::ffi::{c_int, c_ulong, c_void};
use libc::socklen_t;
use viaduct_socket::descriptors::{successors, table};
use viaduct_socket::options::{self, Verdict};
use viaduct_socket::{is_nowhere, real, sys};

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the program's own call.
    let direct = move || unsafe { real::setsockopt(fd, level, name, value, len) };
    let Some(conn) = table::connection(fd) else {
        return direct();
    };
    // The kernel refuses a negative length.
    let len = if is_nowhere(value) {
        0
    } else {
        usize::try_from(len.cast_signed()).unwrap_or(0)
    };
    // SAFETY: the program vouches for `len` bytes.
    let number = (len >= size_of::<c_int>()).then(|| unsafe { value.cast::<c_int>().read_unaligned() });
    // SAFETY: as above.
    let long = (len >= size_of::<i64>()).then(|| unsafe { value.cast::<i64>().read_unaligned() });
    match options::setting(conn, level, name, number) {
        Verdict::Done => 0,
        Verdict::Refuse(errno) => {
            sys::set_errno(errno);
            -1
        }
        _ => {
            let result = options::undisturbed(conn, (level, name), direct);
            if result == 0 {
                options::was_set(conn, level, name, number, long);
            }
            result
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the program's own call.
    let direct = move || unsafe { real::getsockopt(fd, level, name, value, len) };
    let Some(conn) = table::connection(fd) else {
        return direct();
    };
    // SAFETY: the program vouches for the length, which the kernel refuses if it is negative.
    if is_nowhere(value) || is_nowhere(len) || unsafe { (*len).cast_signed() } < 0 {
        return direct();
    }
    match options::getting(conn, level, name) {
        // SAFETY: the program vouches for the length and that many bytes.
        Verdict::Answer(answer) => unsafe {
            let room = (*len as usize).min(size_of::<c_int>());
            core::ptr::copy_nonoverlapping((&raw const answer).cast::<u8>(), value.cast::<u8>(), room);
            *len = room as socklen_t;
            0
        },
        Verdict::Refuse(errno) => {
            sys::set_errno(errno);
            -1
        }
        _ => options::undisturbed(conn, (level, name), direct),
    }
}

/// linux/sockios.h; the libc crate has no names for these.
const SIOCATMARK: c_ulong = 0x8905;
const SIOCOUTQNSD: c_ulong = 0x894b;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    // SAFETY: the program's own call.
    let direct = move || unsafe { real::ioctl(fd, request, argument) };
    let Some(conn) = table::connection(fd) else {
        return direct();
    };
    if request == libc::FIONCLEX && successors::is_closed_by_exec(fd) {
        successors::keeping(fd);
    }
    let place = core::ptr::with_exposed_provenance_mut::<c_int>(argument as usize);
    if is_nowhere(place) {
        return direct();
    }
    let answer = match request {
        libc::FIONREAD => options::readable_bytes(conn),
        libc::TIOCOUTQ => options::unsent_bytes(conn),
        // What is in the lane has gone out; the kernel would count marks.
        SIOCOUTQNSD => options::unsent_bytes(conn).map(|_| 0),
        libc::FIONBIO => {
            let result = direct();
            if result == 0 {
                // SAFETY: the kernel has read it too.
                options::blocking_changed(conn, unsafe { *place } != 0);
            }
            return result;
        }
        SIOCATMARK => options::at_mark(conn),
        libc::FIOASYNC => {
            options::signal_driven(conn);
            None
        }
        _ => None,
    };
    match answer {
        Some(number) => {
            // SAFETY: the program vouches for one int.
            unsafe { *place = number };
            0
        }
        None => direct(),
    }
}

/// The C library asks the kernel by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    match table::connection(fd).and_then(options::at_mark) {
        Some(answer) => answer,
        // SAFETY: no pointers.
        None => unsafe { real::sockatmark(fd) },
    }
}
