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

/// Takes what has been sent. False if no more can come: somebody has shut the connection down.
pub(crate) fn drain(fd: c_int) -> bool {
    let mut bytes = [0; 256];
    loop {
        match raw::recv(fd, &mut bytes, libc::MSG_DONTWAIT) {
            Ok(0) => return false,
            Ok(len) if len == bytes.len() => {}
            Ok(_) | Err(libc::EAGAIN | libc::EINTR) => return true,
            Err(_) => return false,
        }
    }
}

/// Has urgent bytes count as others, so that they are taken too.
pub(crate) fn prepare(fd: c_int) -> bool {
    let one: c_int = 1;
    raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, &one).is_ok()
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
