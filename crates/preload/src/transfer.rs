//! Calls that move bytes.

use crate::control::{fill_header, hand_over_passed, note_room_for_control, take_in_passed};
use crate::search::{offset_of, receive_at};
use crate::wait::from_timespec;
use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use viaduct_socket::descriptors::{lifecycle, table};
use viaduct_socket::real::{self, bare};
use viaduct_socket::search::{self, streams};
use viaduct_socket::{Vector, by_kernel, is_nowhere, options, receive, send as send_on, send_with_control, sys};

/// The list of one buffer.
pub(crate) fn one(buffer: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec {
        iov_base: buffer.cast_mut(),
        iov_len: len,
    }]
}

/// The program's list of buffers; `None` where the kernel would call it invalid or too much.
unsafe fn list<'a>(parts: *const iovec, count: usize) -> Option<Vector<'a>> {
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
            let direct = move || unsafe { bare::read(conn.may_wait(0), fd, buffer, count) };
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
                bare::readv(conn.may_wait(0), fd, parts, count)
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
        (Moves::Unknown, _) => by_kernel(conn, 0, direct).unwrap_or_else(|| sys::fail(libc::EOPNOTSUPP)),
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
        (Moves::Unknown, _) => send_with_control(conn, direct),
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
            let direct = move || unsafe { bare::recv(conn.may_wait(flags), fd, buffer, len, flags) };
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
        unsafe { bare::recvfrom(conn.may_wait(flags), fd, buffer, len, flags, address, address_len) }
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
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let conn = table::connection(fd);
    let mut kernel = false;
    let mut direct = || {
        kernel = true;
        let waits = conn.is_none_or(|conn| conn.may_wait(flags));
        // SAFETY: the program's own call.
        unsafe { bare::recvmsg(waits, fd, message, flags) }
    };
    // The sign bit is MSG_CMSG_COMPAT, which the kernel refuses.
    if is_nowhere(message) || flags < 0 {
        return direct();
    }
    // The header of a call on anything else is the kernel's to read, wherever it is.
    if conn.is_none() && !streams::is(fd) {
        let received = direct();
        if received >= 0 {
            // SAFETY: the program's header, which the kernel has filled.
            unsafe { take_in_passed(message) };
        }
        return received;
    }
    if let Some(conn) = conn {
        // SAFETY: the program's header.
        unsafe { note_room_for_control(conn, message) };
    }
    // SAFETY: the program's header.
    let offset = match unsafe { offset_of(fd, message) } {
        Ok(offset) => offset,
        Err(errno) => return sys::fail(errno),
    };
    // SAFETY: the program's header and list.
    let Some(vector) = (unsafe { list((*message).msg_iov, (*message).msg_iovlen) }) else {
        return direct();
    };
    let received = match (offset, conn) {
        (Some(offset), _) => receive_at(fd, vector, flags, offset, &mut direct),
        (None, Some(conn)) => receive(conn, vector, flags, &mut direct),
        (None, None) => return direct(),
    };
    if received >= 0 && kernel {
        // An accepted connection may turn out to be no TCP connection.
        // SAFETY: the program's header, which the kernel has filled.
        unsafe { take_in_passed(message) };
    } else if received >= 0 {
        let is_cut = received > 0 && conn.is_some_and(options::has_control);
        let rest = conn.and_then(options::told_rest);
        // SAFETY: the program's header.
        unsafe { fill_header(message, flags, is_cut, rest) };
    }
    received
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    // SAFETY: the program's own call.
    let direct = move || unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    let searched = streams::is(fd);
    // Which may have taken the socket's error.
    if searched && let Err(errno) = search::connection(fd) {
        sys::set_errno(errno);
        return -1;
    }
    let take_in = |done: c_int| {
        for index in 0..done {
            // SAFETY: the kernel has filled so many of the program's messages.
            unsafe { take_in_passed(&raw const (*messages.add(index as usize)).msg_hdr) };
        }
        done
    };
    let Some(conn) = table::connection(fd).filter(|_| !is_nowhere(messages)) else {
        return take_in(direct());
    };
    // The kernel knows nothing of offsets.
    if !searched {
        if count > 0 {
            // SAFETY: the program vouches for `count` messages.
            unsafe { note_room_for_control(conn, &raw const (*messages).msg_hdr) };
        }
        let mut done = -1;
        let known = by_kernel(conn, flags, || {
            done = direct();
            // SAFETY: the kernel has filled so many of the program's messages.
            let bytes = (0..done).map(|index| unsafe { (*messages.add(index as usize)).msg_len as ssize_t });
            if done > 0 { bytes.sum() } else { done as ssize_t }
        });
        if known.is_some() {
            return take_in(done);
        }
    }
    if let Some(errno) = lifecycle::first_error(conn) {
        sys::set_errno(errno);
        return -1;
    }
    // SAFETY: null or the program's time.
    let deadline = match unsafe { from_timespec(timeout) } {
        Ok(time) => time.map(|time| sys::now_ns().saturating_add(time)),
        Err(()) => {
            sys::set_errno(libc::EINVAL);
            return -1;
        }
    };
    let mut flags = flags;
    let mut error = 0;
    let mut left = deadline.map(|_| 1);
    // SAFETY: the program vouches for `count` messages and for its time, of which the kernel takes note after each message only.
    let done = each_message(messages, count, |message| unsafe {
        if left == Some(0) {
            return -1;
        }
        let received = recvmsg(fd, &raw mut (*message).msg_hdr, flags & !libc::MSG_WAITFORONE);
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        left = deadline.map(|deadline| deadline.saturating_sub(sys::now_ns()));
        if received < 0 {
            error = sys::errno();
        }
        received
    });
    // The call tells how many messages came, and the next one what ended it.
    if done > 0 && !matches!(error, 0 | libc::EAGAIN | libc::EINTR) {
        lifecycle::keep_error(conn, error);
    }
    if let Some(left) = left
        && done > 0
    {
        // SAFETY: not null, since there is a deadline.
        unsafe { *timeout = sys::timespec(left) };
    }
    done
}

/// Handles messages one by one until one fails; the number handled, or -1 if the first failed.
fn each_message(messages: *mut mmsghdr, count: c_uint, mut handle: impl FnMut(*mut mmsghdr) -> ssize_t) -> c_int {
    let mut done = 0;
    for index in 0..count.min(1024) {
        let message = messages.wrapping_add(index as usize);
        let moved = handle(message);
        let Ok(len) = c_uint::try_from(moved) else { break };
        // SAFETY: one of the program's messages.
        unsafe { (*message).msg_len = len };
        done += 1;
    }
    if done == 0 && count > 0 { -1 } else { done }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
    let parts = one(buffer, count);
    match table::connection(fd) {
        Some(conn) if count.cast_signed() > 0 => {
            // SAFETY: the program's own call.
            let direct = move || unsafe { bare::write(conn.may_wait(0), fd, buffer, count) };
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
                bare::writev(conn.may_wait(0), fd, parts, count)
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
            let direct = move || unsafe { bare::send(conn.may_wait(flags), fd, buffer, len, flags) };
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
            let waits = conn.may_wait(flags);
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

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some(conn) = table::connection(fd) else {
        // SAFETY: the program's own call, and its header.
        return unsafe {
            hand_over_passed(message);
            real::sendmsg(fd, message, flags)
        };
    };
    // SAFETY: the program's own call.
    let direct = move || unsafe { bare::sendmsg(conn.may_wait(flags), fd, message, flags) };
    if is_nowhere(message) {
        return direct();
    }
    // SAFETY: the program's header.
    if unsafe { (*message).msg_controllen > 0 && !is_nowhere((*message).msg_control) } {
        // An accepted connection may turn out to be no TCP connection.
        // SAFETY: the program's header.
        unsafe { hand_over_passed(message) };
        return send_with_control(conn, direct);
    }
    // SAFETY: the program's header and list.
    match unsafe { list((*message).msg_iov, (*message).msg_iovlen) } {
        Some(vector) => send_on(conn, vector, flags, direct),
        None => direct(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if table::connection(fd).is_none() || is_nowhere(messages) {
        let most = if is_nowhere(messages) { 0 } else { count.min(1024) };
        for index in 0..most as usize {
            // SAFETY: the program vouches for `count` messages.
            unsafe { hand_over_passed(&raw const (*messages.add(index)).msg_hdr) };
        }
        // SAFETY: the program's own call.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    // SAFETY: the program vouches for `count` messages.
    each_message(messages, count, |message| unsafe {
        sendmsg(fd, &raw const (*message).msg_hdr, flags)
    })
}

/// A fortified call found the program's buffer too small: ends the process as the C library does.
pub(crate) fn overflow() -> ! {
    sys::abort()
}
