//! Calls that move bytes by message headers, which name buffers and carry control messages.

use crate::control::{fill_header, hand_over_passed, note_room_for_control, take_in_passed};
use crate::search::{offset_of, receive_at};
use crate::transfer::list;
use crate::wait::from_timespec;
use core::ffi::{c_int, c_uint};
use libc::{mmsghdr, msghdr, ssize_t};
use viaduct_socket::descriptors::{lifecycle, table};
use viaduct_socket::real::{self, bare};
use viaduct_socket::search::{self, streams};
use viaduct_socket::{by_kernel, is_nowhere, options, receive, send as send_on, send_with_control, sys};

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let conn = table::connection(fd);
    let mut kernel = false;
    let mut direct = || {
        kernel = true;
        let waits = || conn.is_none_or(|conn| conn.may_wait(flags));
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
    let mut is_urgent = false;
    // SAFETY: the program vouches for `count` messages and for its time, of which the kernel takes note after each
    // message only.
    let done = each_message(messages, count, |message| unsafe {
        if left == Some(0) || is_urgent {
            return -1;
        }
        let received = recvmsg(fd, &raw mut (*message).msg_hdr, flags & !libc::MSG_WAITFORONE);
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        left = deadline.map(|deadline| deadline.saturating_sub(sys::now_ns()));
        // The kernel ends the call with such a message.
        is_urgent = received >= 0 && (*message).msg_hdr.msg_flags & libc::MSG_OOB != 0;
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
    for index in 0..count {
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
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some(conn) = table::connection(fd) else {
        // SAFETY: the program's own call, and its header.
        return unsafe {
            hand_over_passed(message);
            real::sendmsg(fd, message, flags)
        };
    };
    // SAFETY: the program's own call.
    let direct = move || unsafe { bare::sendmsg(|| conn.may_wait(flags), fd, message, flags) };
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

/// The kernel sends no more in one call, but receives as many as there is room for.
const MOST_SENT: c_uint = 1024;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if table::connection(fd).is_none() || is_nowhere(messages) {
        let most = if is_nowhere(messages) { 0 } else { count.min(MOST_SENT) };
        for index in 0..most as usize {
            // SAFETY: the program vouches for `count` messages.
            unsafe { hand_over_passed(&raw const (*messages.add(index)).msg_hdr) };
        }
        // SAFETY: the program's own call.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    let mut is_cut = false;
    // SAFETY: the program vouches for `count` messages.
    each_message(messages, count.min(MOST_SENT), |message| unsafe {
        // What follows a message of which a part has gone would be taken for its rest.
        if is_cut {
            return -1;
        }
        let header = &raw const (*message).msg_hdr;
        let sent = sendmsg(fd, header, flags);
        is_cut = sent >= 0
            && sent.cast_unsigned() < list((*header).msg_iov, (*header).msg_iovlen).map_or(0, |all| all.len());
        sent
    })
}
