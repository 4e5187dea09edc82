//! Control messages: what comes and goes beside a stream's bytes.

use core::ffi::{c_int, c_uint};
use libc::msghdr;
use viaduct_socket::conn::Conn;
use viaduct_socket::descriptors::{predecessors, successors};
use viaduct_socket::{is_nowhere, options};

/// A receive on `conn` may tell, in control messages, what options ask for.
pub(crate) unsafe fn note_room_for_control(conn: &'static Conn, message: *const msghdr) {
    // SAFETY: the program's header.
    if unsafe { (*message).msg_controllen > 0 && !is_nowhere((*message).msg_control) } {
        options::giving_room_for_control(conn);
    }
}

/// What the kernel puts into a header that received stream bytes, the `rest` that is to be told of with it. `is_cut`:
/// there would be more to tell.
pub(crate) unsafe fn fill_header(message: *mut msghdr, flags: c_int, mut is_cut: bool, rest: Option<c_int>) {
    // SAFETY: the program's header, and its room for control messages.
    unsafe {
        let room = if is_nowhere((*message).msg_control) {
            0
        } else {
            (*message).msg_controllen
        };
        (*message).msg_controllen = 0;
        if let Some(rest) = rest {
            let len = room.min(libc::CMSG_LEN(size_of::<c_int>() as c_uint) as usize);
            let data = len.checked_sub(libc::CMSG_LEN(0) as usize);
            is_cut |= data.is_none_or(|data| data < size_of::<c_int>());
            if let Some(data) = data {
                let header = (*message).msg_control.cast::<libc::cmsghdr>();
                header.write_unaligned(libc::cmsghdr {
                    cmsg_len: len,
                    cmsg_level: libc::IPPROTO_TCP,
                    cmsg_type: libc::TCP_CM_INQ,
                });
                core::ptr::copy_nonoverlapping((&raw const rest).cast(), header.add(1).cast::<u8>(), data);
                (*message).msg_controllen = room.min(libc::CMSG_SPACE(size_of::<c_int>() as c_uint) as usize);
            }
        }
        (*message).msg_namelen = 0;
        (*message).msg_flags = (flags & libc::MSG_CMSG_CLOEXEC) | (libc::MSG_CTRUNC * c_int::from(is_cut));
    }
}

/// Sockets that the program passes to another process go back to TCP first.
pub(crate) unsafe fn hand_over_passed(message: *const msghdr) {
    // SAFETY: null or the program's header, with its control messages.
    unsafe { each_descriptor(message, successors::handing_over) };
}

/// Sockets that the program has been passed by another process are noted.
pub(crate) unsafe fn take_in_passed(message: *const msghdr) {
    // SAFETY: the program's header, which the kernel has filled.
    unsafe { each_descriptor(message, predecessors::passed) };
}

/// Calls `concerned` with each descriptor among the control messages of `message`.
unsafe fn each_descriptor(message: *const msghdr, concerned: fn(c_int)) {
    // SAFETY: null or the program's header, with its control messages.
    unsafe {
        if is_nowhere(message) || is_nowhere((*message).msg_control) {
            return;
        }
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let bytes = bytes.min((*message).msg_controllen);
                let fds = libc::CMSG_DATA(header).cast::<c_int>();
                for index in 0..(bytes / size_of::<c_int>()).min(253) {
                    concerned(fds.add(index).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}
