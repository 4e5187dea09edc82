//! Outer bells: Unix stream sockets, of which one end rings and the other listens.

use super::{Errno, raw};
use core::ffi::c_int;

/// Sends a byte, without waiting and without a signal.
///
/// # Errors
/// The listener has gone, or has more bytes than it can hold; or there is no such socket.
#[inline]
pub(crate) fn ring(fd: c_int) -> Result<(), Errno> {
    raw::send(fd, &[1], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).map(drop)
}

/// Takes what has been sent. False if no more can come, somebody having shut the connection down, or if more has come than rings can have sent.
pub(crate) fn drain(fd: c_int) -> bool {
    // The kernel holds some 280 bytes that were sent one by one.
    let mut bytes = [0; 256];
    for _ in 0..4 {
        match raw::recv(fd, &mut bytes, libc::MSG_DONTWAIT) {
            Ok(0) => return false,
            Ok(len) if len == bytes.len() => {}
            Ok(_) | Err(libc::EAGAIN | libc::EINTR) => return true,
            Err(_) => return false,
        }
    }
    false
}

/// Lets no more be sent or received, so that whoever rings learns that nobody listens.
pub(crate) fn end(fd: c_int) {
    // SAFETY: no pointers.
    let _ = unsafe { raw::call(libc::SYS_shutdown, [fd as usize, libc::SHUT_RDWR as usize, 0, 0, 0, 0]) };
}

/// The number of `SO_PASSRIGHTS`, for which the C library's headers have no name yet.
const PASSRIGHTS: c_int = 83;

/// Whether an end that has just come may be listened to. Urgent bytes count as others, so that they are taken too, and descriptors are not let in, since whoever takes
/// the last one of a socket may have to wait for it (`SO_LINGER`). Before Linux 6.16 nothing keeps them out.
pub(crate) fn prepare(fd: c_int) -> bool {
    let (zero, one): (c_int, c_int) = (0, 1);
    raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, &one).is_ok()
        && raw::setsockopt(fd, libc::SOL_SOCKET, PASSRIGHTS, &zero).is_ok()
        && has_only_bytes(fd)
}

/// Whether no descriptors have come before they were kept out.
fn has_only_bytes(fd: c_int) -> bool {
    let mut bytes = [0_u8; 256];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all zero is a valid message header. Without room for them, descriptors are told of and not taken.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    let flags = (libc::MSG_DONTWAIT | libc::MSG_PEEK) as usize;
    let place = (&raw mut message).expose_provenance();
    // SAFETY: the header and all it points to outlive the call.
    let seen = unsafe { raw::call(libc::SYS_recvmsg, [fd as usize, place, flags, 0, 0, 0]) };
    match seen {
        Ok(len) => message.msg_flags & libc::MSG_CTRUNC == 0 && len < bytes.len(),
        Err(errno) => errno == libc::EAGAIN,
    }
}

/// Closes an end that is not listened to, unless that might take long: then it stays until the process ends.
pub(crate) fn dispose(fd: c_int) {
    end(fd);
    if has_only_bytes(fd) {
        raw::close(fd);
    } else {
        crate::agent::hide(fd);
    }
}

/// Puts the file of `fresh` in the place of `fd`'s, and closes `fresh`.
pub(crate) fn replace(fd: c_int, fresh: c_int) -> bool {
    // SAFETY: no pointers; both descriptors are ours.
    let done = unsafe {
        raw::call(
            libc::SYS_dup3,
            [fresh as usize, fd as usize, libc::O_CLOEXEC as usize, 0, 0, 0],
        )
    };
    raw::close(fresh);
    done.is_ok()
}
