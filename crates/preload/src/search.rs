//! Direct search, for `libviaduct` to find: a program that runs under Viaduct has its connections here.

use crate::transfer::one;
use core::ffi::{c_int, c_uint, c_void};
use libc::{cmsghdr, msghdr, size_t, ssize_t};
use viaduct_socket::descriptors::{lifecycle, table};
use viaduct_socket::{Vector, is_nowhere, options, real, search, sys};

/// `viaduct_seek_recv(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn viaduct_preload_seek_recv(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    offset: size_t,
) -> ssize_t {
    if buffer.is_null() && len > 0 && flags & libc::MSG_TRUNC == 0 {
        return sys::fail(libc::EFAULT);
    }
    let conn = match search::connection(fd) {
        Ok(conn) => conn,
        Err(errno) => return sys::fail(errno),
    };
    let parts = one(buffer.cast_const(), len);
    // SAFETY: the program's own call.
    let direct = move || unsafe { real::recv(fd, buffer, len, flags) };
    // SAFETY: the program's buffer.
    search::seek_receive(conn, unsafe { Vector::new(&parts) }, flags, offset, direct)
}

/// `viaduct_readable(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn viaduct_preload_readable(fd: c_int) -> ssize_t {
    let conn = match search::connection(fd) {
        Ok(conn) => conn,
        Err(errno) => return sys::fail(errno),
    };
    match options::readable_bytes(conn) {
        Some(bytes) => bytes as ssize_t,
        // Any socket of the Internet that has been connected is kept here.
        None if !conn.has_lane() && !lifecycle::is_tcp(fd) => sys::fail(libc::EOPNOTSUPP),
        None => options::queued_bytes(conn),
    }
}

/// Whether the descriptor is known to be of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn viaduct_preload_is_stream(fd: c_int) -> bool {
    table::connection(fd).is_some_and(options::is_stream)
}

/// `SOL_VIADUCT` and `VIADUCT_SEEK` of `viaduct.h`.
const SOL_VIADUCT: c_int = 0x5641;
const VIADUCT_SEEK: c_int = 1;

/// The offset that a receive asks for by a control message, if it asks. Only looked for on sockets of the type for it:
/// elsewhere the room for control messages holds whatever it held before.
///
/// # Errors
/// `EINVAL`: it has no room for an offset.
pub(crate) unsafe fn offset_of(fd: c_int, message: *const msghdr) -> Result<Option<usize>, c_int> {
    if !search::streams::is(fd) {
        return Ok(None);
    }
    // SAFETY: the program's header.
    let (control, room) = unsafe { ((*message).msg_control, (*message).msg_controllen) };
    if is_nowhere(control) {
        return Ok(None);
    }
    // Not by CMSG_NXTHDR, which passes over one that is cut short.
    let mut at = 0;
    while room.saturating_sub(at) >= size_of::<cmsghdr>() {
        // SAFETY: the program vouches for so much room.
        let header = unsafe { control.byte_add(at).cast::<cmsghdr>().read_unaligned() };
        let (len, left) = (header.cmsg_len, room - at);
        // SAFETY: only computes.
        let (least, whole) = unsafe { (libc::CMSG_LEN(0), libc::CMSG_LEN(size_of::<u64>() as c_uint)) };
        if header.cmsg_level == SOL_VIADUCT && header.cmsg_type == VIADUCT_SEEK {
            if len < whole as usize || len > left {
                return Err(libc::EINVAL);
            }
            // SAFETY: within the message.
            let offset = unsafe { control.byte_add(at + least as usize).cast::<u64>().read_unaligned() };
            return Ok(Some(usize::try_from(offset).unwrap_or(usize::MAX)));
        }
        if len < least as usize || len > left {
            break;
        }
        at += len.next_multiple_of(align_of::<cmsghdr>());
    }
    Ok(None)
}

/// Receives on `fd` from an offset on. `direct`: the program's own call, without it.
pub(crate) fn receive_at(
    fd: c_int,
    vector: Vector<'_>,
    flags: c_int,
    offset: usize,
    direct: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if vector.is_nowhere() && flags & libc::MSG_TRUNC == 0 {
        return sys::fail(libc::EFAULT);
    }
    match search::connection(fd) {
        // Descriptors do not come over a stream.
        Ok(conn) => search::seek_receive(conn, vector, flags & !libc::MSG_CMSG_CLOEXEC, offset, direct),
        Err(errno) => sys::fail(errno),
    }
}
