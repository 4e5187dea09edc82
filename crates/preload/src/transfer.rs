//! Calls that move bytes.

use core::ffi::{c_int, c_void};
use libc::{iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};
use viaduct_socket::descriptors::{lifecycle, table};
use viaduct_socket::real::{self, bare};
use viaduct_socket::{Vector, by_kernel, receive, send as send_on, send_with_control, sys};

/// The list of one buffer.
pub(crate) fn one(buffer: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec {
        iov_base: buffer.cast_mut(),
        iov_len: len,
    }]
}

/// The program's list of buffers; `None` where the kernel would call it invalid or too much.
pub(crate) unsafe fn list<'a>(parts: *const iovec, count: usize) -> Option<Vector<'a>> {
    if parts.is_null() && count > 0 || count > 1024 {
        return None;
    }
    if count == 0 {
        // SAFETY: no buffers.
        return Some(unsafe { Vector::new(&[]) });
    }
    // SAFETY: the program vouches for its list.
    let parts = unsafe { core::slice::from_raw_parts(parts, count) };
    let valid = parts.iter().all(|part| isize::try_from(part.iov_len).is_ok());
    // SAFETY: the program vouches for its buffers.
    valid.then(|| unsafe { Vector::new(parts) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    let parts = one(buffer.cast_const(), count);
    match table::connection(fd) {
        Some(conn) if count.cast_signed() > 0 => {
            // SAFETY: the program's own call.
            let direct = move || unsafe { bare::read(|| conn.may_wait(0), fd, buffer, count) };
            // SAFETY: the program's buffer.
            receive(conn, unsafe { Vector::new(&parts) }, 0, direct)
        }
        // SAFETY: the program's own call.
        _ => unsafe { real::read(fd, buffer, count) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t) -> ssize_t {
    if count > size {
        overflow();
    }
    // SAFETY: as for `read`.
    unsafe { read(fd, buffer, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program's list.
    match (table::connection(fd), unsafe {
        list(parts, count.try_into().unwrap_or(usize::MAX))
    }) {
        (Some(conn), Some(vector)) if !vector.is_empty() => {
            // SAFETY: the program's own call.
            receive(conn, vector, 0, || unsafe {
                bare::readv(|| conn.may_wait(0), fd, parts, count)
            })
        }
        // SAFETY: the program's own call.
        _ => unsafe { real::readv(fd, parts, count) },
    }
}

/// What `preadv2` and `pwritev2` do on a stream.
enum Moves {
    /// As by other calls with these flags.
    With(c_int),
    /// What flags ask for that are not known here.
    Unknown,
    /// Nothing: the kernel refuses.
    Nothing,
}

/// What is asked for by a place in the stream, which a socket has not, and flags.
fn moves_by(offset: off_t, flags: c_int) -> Moves {
    let known = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND;
    match offset {
        -1 if flags & !known != 0 => Moves::Unknown,
        -1 if flags & libc::RWF_NOWAIT != 0 => Moves::With(libc::MSG_DONTWAIT),
        -1 => Moves::With(0),
        _ => Moves::Nothing,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's own call.
    let direct = move || unsafe { real::preadv2(fd, parts, count, offset, flags) };
    let Some(conn) = table::connection(fd) else {
        return direct();
    };
    // SAFETY: the program's list.
    match (moves_by(offset, flags), unsafe {
        list(parts, count.try_into().unwrap_or(usize::MAX))
    }) {
        (Moves::With(flags), Some(vector)) if !vector.is_empty() => receive(conn, vector, flags, direct),
        // On a lane as in a kernel that does not know them.
        (Moves::Unknown, Some(vector)) if !vector.is_empty() => {
            by_kernel(conn, 0, direct).unwrap_or_else(|| sys::fail(libc::EOPNOTSUPP))
        }
        _ => direct(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv64v2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as for `preadv2`.
    unsafe { preadv2(fd, parts, count, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's own call.
    let direct = move || unsafe { real::pwritev2(fd, parts, count, offset, flags) };
    let Some(conn) = table::connection(fd) else {
        return direct();
    };
    // SAFETY: the program's list.
    match (moves_by(offset, flags), unsafe {
        list(parts, count.try_into().unwrap_or(usize::MAX))
    }) {
        (Moves::With(flags), Some(vector)) => send_on(conn, vector, flags, direct),
        (Moves::Unknown, Some(vector)) if !vector.is_empty() => send_with_control(conn, direct),
        _ => direct(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as for `pwritev2`.
    unsafe { pwritev2(fd, parts, count, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let parts = one(buffer.cast_const(), len);
    match table::connection(fd) {
        Some(conn) => {
            // SAFETY: the program's own call.
            let direct = move || unsafe { bare::recv(|| conn.may_wait(flags), fd, buffer, len, flags) };
            // SAFETY: the program's buffer.
            receive(conn, unsafe { Vector::new(&parts) }, flags, direct)
        }
        // SAFETY: the program's own call.
        None => unsafe { real::recv(fd, buffer, len, flags) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    if len > size {
        overflow();
    }
    // SAFETY: as for `recv`.
    unsafe { recv(fd, buffer, len, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    let parts = one(buffer.cast_const(), len);
    let Some(conn) = table::connection(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::recvfrom(fd, buffer, len, flags, address, address_len) };
    };
    let mut kernel = false;
    let mut direct = || {
        kernel = true;
        // SAFETY: the program's own call.
        unsafe { bare::recvfrom(|| conn.may_wait(flags), fd, buffer, len, flags, address, address_len) }
    };
    // SAFETY: the program's buffer.
    let received = receive(conn, unsafe { Vector::new(&parts) }, flags, &mut direct);
    if received >= 0 && !kernel && !address.is_null() && !address_len.is_null() {
        // A stream names no sender.
        // SAFETY: the program's length.
        unsafe { *address_len = 0 };
    }
    received
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    size: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    if len > size {
        overflow();
    }
    // SAFETY: as for `recvfrom`.
    unsafe { recvfrom(fd, buffer, len, flags, address, address_len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
    let parts = one(buffer, count);
    match table::connection(fd) {
        Some(conn) if count.cast_signed() > 0 => {
            // SAFETY: the program's own call.
            let direct = move || unsafe { bare::write(|| conn.may_wait(0), fd, buffer, count) };
            // SAFETY: the program's buffer.
            send_on(conn, unsafe { Vector::new(&parts) }, 0, direct)
        }
        // SAFETY: the program's own call.
        _ => unsafe { real::write(fd, buffer, count) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program's list.
    match (table::connection(fd), unsafe {
        list(parts, count.try_into().unwrap_or(usize::MAX))
    }) {
        (Some(conn), Some(vector)) => {
            // SAFETY: the program's own call.
            send_on(conn, vector, 0, || unsafe {
                bare::writev(|| conn.may_wait(0), fd, parts, count)
            })
        }
        // SAFETY: the program's own call.
        _ => unsafe { real::writev(fd, parts, count) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let parts = one(buffer, len);
    match table::connection(fd) {
        Some(conn) => {
            // SAFETY: the program's own call.
            let direct = move || unsafe { bare::send(|| conn.may_wait(flags), fd, buffer, len, flags) };
            // SAFETY: the program's buffer.
            send_on(conn, unsafe { Vector::new(&parts) }, flags, direct)
        }
        // SAFETY: the program's own call.
        None => unsafe { real::send(fd, buffer, len, flags) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    let parts = one(buffer, len);
    let opens = flags & libc::MSG_FASTOPEN != 0;
    match table::connection(fd) {
        Some(conn) if !(opens && conn.is_early()) => {
            let waits = move || conn.may_wait(flags);
            // SAFETY: the program's own call.
            let direct = move || unsafe { bare::sendto(waits, fd, buffer, len, flags, address, address_len) };
            // SAFETY: the program's buffer.
            send_on(conn, unsafe { Vector::new(&parts) }, flags, direct)
        }
        // SAFETY: the program's own call.
        None if !opens => unsafe { real::sendto(fd, buffer, len, flags, address, address_len) },
        _ => {
            // SAFETY: the program's own call.
            let sent = unsafe { real::sendto(fd, buffer, len, flags, address, address_len) };
            if sent >= 0 {
                lifecycle::fast_opened(fd);
            }
            sent
        }
    }
}

/// A fortified call found the program's buffer too small: ends the process as the C library does.
pub(crate) fn overflow() -> ! {
    sys::abort()
}
